"""Five plates of a protein panel whose patients overlap in part, and controls of three of them."""

from pathlib import Path

import numpy as np
import pandas as pd

PROTEINS = [
    "IL6", "IL8", "IL10", "TNF", "CXCL9", "CXCL10", "CCL2", "CCL3", "VEGFA", "HGF", "OPN", "GDF15",
]  # fmt: skip
PLATES = {  # the groups of patients on it, and its wells
    "P1": (("healthy", "mild"), 70),
    "P2": (("mild", "moderate"), 60),
    "P3": (("moderate", "severe"), 60),
    "P4": (("healthy", "mild", "moderate"), 50),
    "P5": (("child",), 40),
}
GROUPS = ("healthy", "mild", "moderate", "severe", "child")
N_CONTROLS = 6
MEASURED_AGAIN = 0.3  # sd of a control measured again, of that between people


def make(folder: Path) -> None:
    """Write the plates, their controls, and what P1 would have shown of all samples."""
    rng, p = np.random.default_rng(11), len(PROTEINS)
    plate = np.concatenate([[name] * n for name, (_, n) in PLATES.items()])
    group = np.concatenate([rng.choice(groups, n) for groups, n in PLATES.values()])
    steps = np.cumsum(np.abs(rng.normal(0.5, 0.4, (len(GROUPS), p))), axis=0)
    sd = rng.uniform(0.6, 1.0, p)
    mean = rng.uniform(2, 8, p) + steps[[GROUPS.index(g) for g in group]]
    truth = mean + sd * rng.normal(size=mean.shape)
    centre = rng.uniform(3, 9, p)
    scale = {name: np.exp(0.1 * rng.normal(size=p)) for name in PLATES}
    shift = {name: 0.7 * sd * rng.normal(size=p) for name in PLATES}
    scale["P1"], shift["P1"] = np.ones(p), np.zeros(p)

    def seen(values: np.ndarray, where: np.ndarray) -> np.ndarray:
        a, b = (np.stack([effect[name] for name in where]) for effect in (scale, shift))
        return centre + a * (values - centre) + b

    names = [f"A{i:03d}" for i in range(1, len(plate) + 1)]
    known = pd.DataFrame({"sample": names, "plate": plate, "group": group})
    for name, values in (("plates", seen(truth, plate)), ("plates_truth", truth)):
        table = pd.DataFrame(values.round(3), columns=PROTEINS)
        known.join(table).to_csv(folder / f"{name}.csv", index=False)

    pooled = truth[rng.choice(len(truth), N_CONTROLS, replace=False)]
    where = np.repeat(["P1", "P3", "P5"], N_CONTROLS)
    again = np.tile(pooled, (3, 1)) + MEASURED_AGAIN * sd * rng.normal(size=(3 * N_CONTROLS, p))
    controls = pd.DataFrame({"sample": np.tile([f"QC{i}" for i in range(1, 7)], 3), "plate": where})
    table = pd.DataFrame(seen(again, where).round(3), columns=PROTEINS)
    controls.assign(group=None).join(table).to_csv(folder / "plates_controls.csv", index=False)
