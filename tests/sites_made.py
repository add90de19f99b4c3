"""Hospitals that share no rows."""

import numpy as np
import pandas as pd

FEATURES = ["crp", "hb", "na", "wbc"]
SITES = {"A": (300, 0.0, 1.0), "B": (260, 1.0, 1.3), "C": (220, -1.0, 0.8)}


def hospital(label, seed=None, n=None):
    """Return the rows of a hospital, in which two combinations of levels are rare."""
    n_rows, shift, scale = SITES[label]
    n_rows = n or n_rows
    rng = np.random.default_rng(ord(label) if seed is None else seed)
    sex, ward = rng.choice(["F", "M"], n_rows), rng.choice(["icu", "surgery"], n_rows, p=[0.4, 0.6])
    ward[:3] = "burns"
    sex[:3] = "F"
    X = rng.normal(size=(n_rows, 4)) + 0.8 * (sex == "F")[:, None] + (ward == "icu")[:, None]
    X[:, 1] += 0.5 * X[:, 0]
    table = pd.DataFrame(shift + scale * X, columns=FEATURES)
    return table.assign(sex=sex, ward=ward, patient=[f"{label}{i}" for i in range(n_rows)])


def without_few(table, by=("sex", "ward"), least=5):
    """Return a table without the rows of small cells."""
    size = table.groupby(list(by))[table.columns[0]].transform("size")
    return table[size >= least].reset_index(drop=True)
