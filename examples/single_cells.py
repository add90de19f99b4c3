"""
Single cells in four plates
===========================

Cells of an AnnData are made comparable between plates, and cell types with other shares stay apart.

Counts of four cell types are simulated in four plates, whose shares of the types differ widely.
Each plate has its own capture efficiency, gene by gene. We normalise, take logarithms and principal
components, and map the plates to the first one as in a scanpy workflow.
"""

# %%
# The data
# --------
# Sparse counts in ``adata.X``, plate and cell type in ``adata.obs``. Take types from markers or
# from a classifier that was trained elsewhere, not from clusters of these same cells: such clusters
# follow the plates, and would keep what we want to remove.

import warnings

import anndata
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

import condokit.anndata

rng = np.random.default_rng(1)
types = np.array(["T cell", "B cell", "monocyte", "NK cell"])
shares = {
    "plate1": [0.40, 0.20, 0.25, 0.15],
    "plate2": [0.15, 0.25, 0.55, 0.05],
    "plate3": [0.60, 0.10, 0.05, 0.25],
    "plate4": [0.25, 0.60, 0.15, 0.00],  # no NK cells at all
}
n_cells, n_genes = 250, 300
level = rng.normal(0.5, 1.2, n_genes)  # log mean of each gene
markers = (rng.random((4, n_genes)) < 0.12) * rng.normal(1.2, 0.4, (4, n_genes))
states = 0.25 * rng.normal(size=(3, n_genes))  # what varies within types
parts, truths, tables = [], [], []
for number, (plate, share) in enumerate(shares.items()):
    kind = rng.choice(4, n_cells, p=share)
    depth = rng.normal(0, 0.3, (n_cells, 1))
    efficiency = rng.normal(0, 0.5, n_genes) * (number > 0)  # of the plate
    rate = level + markers[kind] + rng.normal(size=(n_cells, 3)) @ states + depth
    seed = rng.integers(2**32)
    for values, shift in ((parts, efficiency), (truths, 0 * efficiency)):
        values.append(np.random.default_rng(seed).poisson(np.exp(rate + shift)))
    tables.append(pd.DataFrame({"plate": plate, "cell_type": types[kind]}))
obs = pd.concat(tables, ignore_index=True)
obs.index = "cell" + obs.index.astype(str)
adata = anndata.AnnData(sparse.csr_matrix(np.vstack(parts).astype(np.float32)), obs=obs)
adata.var_names = [f"gene{j}" for j in range(n_genes)]
print(pd.crosstab(obs["plate"], obs["cell_type"]))

# %%
# Normalise, logarithms, components
# ---------------------------------
# With scanpy these are ``sc.pp.normalize_total``, ``sc.pp.log1p`` and ``sc.pp.pca``. condokit's
# maps shift and stretch, so counts should become logarithms first.


def log_normalised(counts):
    """Return log1p of counts that sum to the same in every cell."""
    total = np.asarray(counts.sum(axis=1)).ravel()
    return sparse.csr_matrix(counts.multiply((np.median(total) / total)[:, None])).log1p()


adata.layers["counts"] = adata.X.copy()
adata.X = log_normalised(adata.X)
adata.obsm["X_pca"] = PCA(10, random_state=0).fit_transform(adata.X.toarray())

# %%
# Map the plates
# --------------
# Once for the components, which neighbours and clusters use, and once for the genes.

keys = {"batch_key": "plate", "reference": "plate1", "confounder_keys": ["cell_type"]}
condokit.anndata.adapt(adata, use_rep="X_pca", **keys)
facts = adata.uns["X_pca_condokit"]["batches"]
print(
    pd.DataFrame({name: facts[name] for name in ("batch", "error_before", "error_after")}).round(2)
)

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    condokit.anndata.adapt(adata, key_added="mapped", **keys)
for warning in told:
    print("-", warning.message)

# %%
# ``adata.obsm["X_pca_condokit"]`` and ``adata.layers["mapped"]`` are the results; ``adata.X`` is as
# it was. Zeros of genes that most cells express move with their plate, so some mapped values are
# negative: use the layer for models and figures, and the counts for tests that need counts. Go on
# with ``sc.pp.neighbors(adata, use_rep="X_pca_condokit")``.
#
# Before and after
# ----------------

plates = dict(zip(shares, ["#2a6fb0", "#e07a1f", "#2e8b57", "#b04a8f"]))
shades = dict(zip(types, ["#222222", "#d9a400", "#7fb3d5", "#c0392b"]))
fig, axes = plt.subplots(2, 2, figsize=(9, 7.6))
order = rng.permutation(adata.n_obs)
for row, key, name in zip(axes, ("X_pca", "X_pca_condokit"), ("normalised", "mapped")):
    for ax, column, colours in zip(row, ("plate", "cell_type"), (plates, shades)):
        colour = adata.obs[column].astype(str).map(colours).to_numpy()
        ax.scatter(*adata.obsm[key][order, :2].T, s=5, c=colour[order], alpha=0.7)
        ax.set(xticks=[], yticks=[], xlabel="PC 1", ylabel="PC 2")
        ax.set_title(f"{name}, by {column.replace('_', ' ')}")
for ax, colours in zip(axes[0], (plates, shades)):
    handles = [plt.Line2D([], [], marker="o", ls="", ms=5, color=c) for c in colours.values()]
    ax.legend(handles, list(colours), fontsize=8)
fig.tight_layout()

# %%
# Did types stay, did plates mix?
# -------------------------------
# Of the 15 nearest neighbours of a cell: how many are of its type? And of those, how many are of
# its own plate? The last is compared with what perfect mixing would give.


def neighbours(values):
    """Return shares of neighbours of the same type, and of the same plate within the type."""
    near = NearestNeighbors(n_neighbors=16).fit(values).kneighbors(return_distance=False)[:, 1:]
    kind, plate = (adata.obs[c].astype(str).to_numpy() for c in ("cell_type", "plate"))
    same = kind[near] == kind[:, None]
    return same.mean(), (plate[near] == plate[:, None])[same].mean()


counts = pd.crosstab(adata.obs["plate"], adata.obs["cell_type"]).to_numpy()
mixed = (counts**2 / counts.sum(axis=0)).sum() / counts.sum()
for key in ("X_pca", "X_pca_condokit"):
    kind, plate = neighbours(adata.obsm[key])
    print(f"{key:<15} same type {kind:.2f}, same plate {plate:.2f} (perfectly mixed: {mixed:.2f})")

# %%
# The cells are simulated, so we know what the first plate would have shown of all of them. This is
# the systematic error of the genes that were mapped, in standard deviations, for every type:

truth = log_normalised(sparse.csr_matrix(np.vstack(truths))).toarray()
first = (adata.obs["plate"] == "plate1").to_numpy()
done = (abs(adata.layers["mapped"] - adata.X).max(axis=0).toarray().ravel()) > 0
sd = truth[first].std(axis=0)
found = {}
for name, values in (("normalised", adata.X), ("mapped", adata.layers["mapped"])):
    wrong = (values.toarray() - truth)[:, done] / sd[done]
    mean = pd.DataFrame(wrong).groupby([adata.obs["cell_type"].to_numpy(), first]).mean()
    found[name] = np.sqrt((mean.xs(False, level=1) ** 2).mean(axis=1))
print(pd.DataFrame(found).round(2))
