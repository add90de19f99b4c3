"""A few standards, measured on both instruments: the fit beside what chemists do with them.

    OMP_NUM_THREADS=1 python experiments/standards.py [--n 20] [--seed 90000] [--only corn]

Writes results/STANDARDS.md: errors on held-out units relative to doing nothing, for 5 and 10
standards, alone or beside other rows of each domain that z confounds, and times on 80 x 700.
Real pairs are read from CONDOKIT_DATA.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from instruments import PAIRS, levels, rmse, split_pair, table
from instruments import sets as instrument_sets

from condokit import ConDoAdapter
from condokit.checks import Array

RESULTS = Path(__file__).parent / "results"
RIDGES = 10.0 ** np.arange(-8, 2)  # of the summed variance
Method = Callable[[Array, Array], Callable[[Array], Array]]


def sets() -> dict[str, tuple[Array, Array, Array, Array]]:
    """Return query readings, reference readings, z and unit of each development pair."""
    spectra = {}
    for device in ("m5", "mp5", "mp6"):
        columns = table(PAIRS / "corn" / f"corn_{device}.csv.gz")
        spectra[device] = np.column_stack([v for n, v in columns.items() if n != "sample"])
    z = table(PAIRS / "corn" / "corn_chem.csv")["Moisture"]
    found = {}
    for bands in (700, 35, 14):
        mean = {
            k: np.stack([part.mean(1) for part in np.array_split(s, bands, axis=1)], 1)
            for k, s in spectra.items()
        }
        for a, b in (("mp5", "m5"), ("mp6", "m5"), ("mp6", "mp5")):
            found[f"corn{bands} {a}>{b}"] = mean[a], mean[b], z, np.arange(80)
    found |= {k: v for k, v in instrument_sets().items() if not k.startswith("corn")}
    t = table(PAIRS / "airquality" / "AirQualityUCI.csv.gz")
    names = ["PT08_S1_CO", "PT08_S3_NOx", "PT08_S4_NO2", "CO_GT", "NOx_GT", "NO2_GT", "T"]
    values = np.column_stack([t[n] for n in names])
    ok = (values > np.array([0] * 6 + [-100])).all(axis=1)
    X = np.log(values[ok, :6])
    day = np.unique(t["Date"][ok], return_inverse=True)[1]
    hour = np.unique(day, return_index=True)[1] + 12  # one noon a day, about
    some = np.zeros(len(day), bool)
    some[np.minimum(hour, len(day) - 1)] = True
    X[:, 1] *= -1
    found["air quality"] = X[some, :3], X[some, 3:], values[ok, 6][some], day[some]
    return found


# --------------------------------------------------------------------------- rivals


def mean_shift(X: Array, Y: Array) -> Callable[[Array], Array]:
    shift = (Y - X).mean(axis=0)
    return lambda new: new + shift


def slope_and_bias(X: Array, Y: Array) -> Callable[[Array], Array]:
    left, right = X - X.mean(axis=0), Y - Y.mean(axis=0)
    slope = (left * right).sum(axis=0) / np.maximum((left**2).sum(axis=0), 1e-300)
    return lambda new: Y.mean(axis=0) + slope * (new - X.mean(axis=0))


def by_leave_one_out(left: Array, right: Array, values: Array, factors: list[Array]) -> int:
    """Return which hat matrix U diag(f) U' (plus a mean) has the least leave-one-out error."""
    errors = []
    for f in factors:
        hat = (values * f) @ values.T + 1 / len(left)
        gap = (right - hat @ right) / np.maximum(1 - np.diag(hat), 1e-9)[:, None]
        errors.append((gap**2).sum())
    return int(np.argmin(errors))


def direct(kind: str) -> Method:
    """Direct standardisation: a full matrix by ridge, or of the rank that predicts best."""

    def method(X: Array, Y: Array) -> Callable[[Array], Array]:
        left, right = X - X.mean(axis=0), Y - Y.mean(axis=0)
        U, size, back = np.linalg.svd(left, full_matrices=False)
        k = max(int((size > 1e-9 * size.max()).sum()), 1)
        U, size, back = U[:, :k], np.maximum(size[:k], 1e-300), back[:k]
        if kind == "ridge":
            factors = [size**2 / (size**2 + r * (size**2).sum()) for r in RIDGES]
        else:
            factors = [np.arange(len(size)) < k for k in range(1, min(k, len(X) - 2) + 1)]
        f = factors[by_leave_one_out(left, right, U, factors)]
        matrix = back.T @ ((f / size)[:, None] * (U.T @ right))
        return lambda new: Y.mean(axis=0) + (new - X.mean(axis=0)) @ matrix

    return method


def piecewise(half: int, rank: int) -> Method:
    """Piecewise direct standardisation: each channel from its neighbours' principal components."""

    def method(X: Array, Y: Array) -> Callable[[Array], Array]:
        d = X.shape[1]
        left, right = X - X.mean(axis=0), Y - Y.mean(axis=0)
        matrix = np.zeros((d, d))
        for j in range(d):
            near = slice(max(j - half, 0), j + half + 1)
            U, size, back = np.linalg.svd(left[:, near], full_matrices=False)
            k = min(rank, len(size), len(X) - 1)
            matrix[near, j] = back[:k].T @ (U[:, :k].T @ right[:, j] / np.maximum(size[:k], 1e-300))
        return lambda new: Y.mean(axis=0) + (new - X.mean(axis=0)) @ matrix

    return method


RIVALS: dict[str, Method] = {
    "mean shift": mean_shift,
    "slope, bias": slope_and_bias,
    "DS ridge": direct("ridge"),
    "DS low rank": direct("rank"),
    "PDS 3/1": piecewise(1, 1),
    "PDS 7/2": piecewise(3, 2),
    "PDS 11/3": piecewise(5, 3),
}


# --------------------------------------------------------------------------- cases


def draw(data, n: int, seed: int):
    """Return standards (rows) and test rows, and other rows of the query and the reference."""
    query, reference, test = split_pair(data, seed, small=False)
    unit, rng = data[3], np.random.default_rng(seed + 1)
    chosen = rng.choice(np.unique(unit[query | reference]), n, replace=False)
    standards = np.array([rng.choice(np.flatnonzero(unit == u)) for u in chosen])
    others = ~np.isin(unit, chosen)
    return (
        standards,
        np.flatnonzero(test),
        *(np.flatnonzero(s & others) for s in (query, reference)),
    )


def ours(data, standards: Array, query: Array, reference: Array, alone: bool, **options):
    Xq, Xr, z, unit = data
    n = len(standards)
    q, r = (
        standards if alone else np.concatenate([standards, rows]) for rows in (query, reference)
    )
    Z = (None, None) if alone else (z[q], z[r])
    who = None if len(np.unique(unit)) == len(unit) else (unit[q], unit[r])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter = ConDoAdapter(warn_overlap=0, min_overlap=0, **options)
        pairs = options and (np.arange(n), np.arange(n))
        return adapter.fit_pair(Xq[q], Xr[r], *Z, groups=who, pairs=(np.arange(n), np.arange(n)))
