"""Bulk expression of three batches, and cells of three plates, both with a known truth."""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy import sparse

GENES = [
    "ACTB", "GAPDH", "CD3E", "CD8A", "GZMB", "PDCD1", "MS4A1", "CD19", "CD14", "LYZ",
    "FCGR3A", "NKG7", "EPCAM", "KRT8", "KRT18", "VIM", "FN1", "COL1A1", "COL3A1", "ACTA2",
    "PECAM1", "VWF", "MKI67", "TOP2A", "CCNB1", "MYC", "TP53", "CDKN1A", "VEGFA", "HIF1A",
]  # fmt: skip
BATCHES = {"run1": (30, 0.35), "run2": (24, 0.70), "run3": (20, 0.50)}  # samples, share of tumours
PLATES = {"plate1": (0.5, 0.3, 0.2), "plate2": (0.15, 0.35, 0.5), "plate3": (0.7, 0.3, 0.0)}
TYPES = ("T cell", "B cell", "monocyte")
N_CELLS = 200


def make(folder: Path) -> None:
    """Write the tables."""
    bulk(np.random.default_rng(5), folder)
    cells(np.random.default_rng(6), folder)


def bulk(rng: np.random.Generator, folder: Path) -> None:
    """Write log2 CPM (genes in rows, as most tools write them), samples, and the truth."""
    samples = pd.DataFrame(
        [
            {"batch": batch, "tissue": "tumour" if rng.random() < share else "normal"}
            for batch, (n, share) in BATCHES.items()
            for _ in range(n)
        ]
    )
    samples.insert(0, "sample", [f"S{i:02d}" for i in range(1, len(samples) + 1)])
    tumour, p = (samples["tissue"] == "tumour").to_numpy(), len(GENES)
    effect = np.where(rng.random(p) < 0.5, rng.normal(0, 1.2, p), 0.0)
    truth = rng.uniform(3, 11, p) + effect * tumour[:, None]
    truth = truth + rng.uniform(0.4, 0.9, p) * rng.normal(size=truth.shape)
    seen = truth.copy()
    for batch in list(BATCHES)[1:]:
        rows = (samples["batch"] == batch).to_numpy()
        scale, shift = np.exp(0.1 * rng.normal(size=p)), rng.normal(0.2, 0.7, p)
        seen[rows] = truth.mean(0) + scale * (truth[rows] - truth.mean(0)) + shift
    for name, values in (("expression", seen), ("expression_truth", truth)):
        table = pd.DataFrame(values.T.round(3), index=GENES, columns=samples["sample"])
        table.rename_axis("gene").to_csv(folder / f"{name}.csv")
    samples.to_csv(folder / "expression_samples.csv", index=False)


def cells(rng: np.random.Generator, folder: Path) -> None:
    """Write counts of cells as h5ad, sparse, with plate and type."""
    import anndata

    p = 120
    level, markers = rng.normal(0.6, 1.0, p), rng.normal(1.3, 0.3, (3, p))
    markers *= rng.random((3, p)) < 0.15
    counts, kinds = [], []
    for number, share in enumerate(PLATES.values()):
        kind = rng.choice(3, N_CELLS, p=share)
        rate = level + markers[kind] + rng.normal(0, 0.3, (N_CELLS, 1))
        rate = rate + (number > 0) * rng.normal(0, 0.5, p)
        counts.append(rng.poisson(np.exp(rate)))
        kinds.append(kind)
    codes = {"plate": np.repeat(range(3), N_CELLS), "cell_type": np.concatenate(kinds)}
    labels = {"plate": pd.Index(PLATES, dtype=object), "cell_type": pd.Index(TYPES, dtype=object)}
    obs = pd.DataFrame({k: pd.Categorical.from_codes(codes[k], labels[k]) for k in codes})
    obs.index = pd.Index([f"cell{i:03d}" for i in range(len(obs))], dtype=object)
    var = pd.DataFrame(index=pd.Index([f"gene{j:03d}" for j in range(p)], dtype=object))
    X = sparse.csr_matrix(np.vstack(counts).astype(np.float32))
    anndata.AnnData(X, obs=obs, var=var).write_h5ad(folder / "cells.h5ad", compression="gzip")
