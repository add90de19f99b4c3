"""The paper's data sets with a categorical confounder, drawn in the order of its protocols."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Pair:
    """Two domains, their confounder, and what the query rows would be without the shift."""

    X_query: np.ndarray
    X_reference: np.ndarray
    Z_query: np.ndarray
    Z_reference: np.ndarray
    truth: np.ndarray


def rmse(adapted, truth):
    """Root mean squared error over all rows and features."""
    return float(np.sqrt(np.mean((adapted - truth) ** 2)))


def data_folder():
    """Return the folder of the real data sets, or None."""
    folder = os.environ.get("CONDOKIT_DATA")
    return Path(folder) if folder and Path(folder).is_dir() else None


def categorical1d(n, seed):
    """Draw one feature, two classes, n rows in each domain; observed query = 2 x + 5."""
    rng = np.random.RandomState(seed)
    many, few = round(3 * n / 4), round(n / 4)
    query_h = rng.normal(5, 1, few)
    reference_h = rng.normal(5, 1, many)
    query_n = rng.normal(0, 2, n - few)
    reference_n = rng.normal(0, 2, n - many)
    truth = np.concatenate([query_h, query_n])[:, None]
    return Pair(
        2 * truth + 5,
        np.concatenate([reference_h, reference_n])[:, None],
        np.repeat(["h", "n"], [few, n - few]),
        np.repeat(["h", "n"], [many, n - many]),
        truth,
    )


@cache
def _measurements():
    folder = data_folder()
    if folder is None:
        raise FileNotFoundError("ANSUR II is not here; set CONDOKIT_DATA to the data folder.")
    import pandas as pd

    table = pd.read_csv(folder / "ansur2.csv.gz")
    return table.iloc[:, 1:94].to_numpy(float), (table["Gender"] == "Male").to_numpy()


def ansur(seed, *, n=500, shift="large", people_shift=True):
    """Draw ANSUR II: 93 measurements, gender as the confounder, the map from target to source.

    `shift` is "large" (the paper's: scales and offsets U[.5, 2]), None, or (r, s): scales within r
    of one and offsets within s standard deviations. `n` people per domain; fewer than 500 are a
    subsample in which both genders occur in both domains.
    """
    measurements, is_man = _measurements()
    rng = np.random.RandomState(seed)
    men = rng.choice(np.flatnonzero(is_man), 500, replace=False)
    women = rng.choice(np.flatnonzero(~is_man), 500, replace=False)
    X = measurements[np.concatenate([men, women])]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    gender = np.repeat(["man", "woman"], 500)
    man, woman = np.arange(500), np.arange(500, 1000)
    rng.shuffle(man)
    rng.shuffle(woman)
    k = 375 if people_shift else 250
    reference = np.concatenate([man[:k], woman[: 500 - k]])
    query = np.concatenate([man[k:], woman[500 - k :]])
    rng.shuffle(reference)
    rng.shuffle(query)
    scale, offset = np.ones(93), np.zeros(93)
    if shift == "large":
        scale, offset = rng.uniform(0.5, 2, 93), rng.uniform(0.5, 2, 93)
    elif shift is not None:
        scale = 1 + rng.uniform(-shift[0], shift[0], 93)
        offset = rng.uniform(-shift[1], shift[1], 93)
    if n < 500:
        query, reference = (_subsample(rows, gender, n, rng) for rows in (query, reference))
    truth = X[query]
    return Pair(truth * scale + offset, X[reference], gender[query], gender[reference], truth)


def _subsample(rows, gender, n, rng):
    while True:
        chosen = rng.choice(rows, n, replace=False)
        if len(set(gender[chosen])) == 2:
            return chosen


def bladderbatch(seed=None):
    """Return (X, result, batch) of batches 2 and 5; with a seed, without 7 cancers of batch 2."""
    folder = data_folder()
    if folder is None:
        raise FileNotFoundError("bladderbatch is not here; set CONDOKIT_DATA to the data folder.")
    import pandas as pd

    X = np.load(folder / "bladderbatch_expr.npz")["expr"]
    people = pd.read_csv(folder / "bladderbatch_pheno.csv")
    keep = people["batch"].isin([2, 5]).to_numpy()
    X, people = X[keep], people[keep]
    result, batch = people["result"].to_numpy(str), people["batch"].to_numpy()
    if seed is not None:
        cancer = np.flatnonzero((batch == 2) & (result == "Cancer"))
        dropped = np.random.RandomState(seed).choice(cancer, 7, replace=False)
        X, result, batch = (np.delete(a, dropped, axis=0) for a in (X, result, batch))
    return X, result, batch
