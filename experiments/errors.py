"""Simulations behind standard errors without a formula: how often 95% intervals hold the truth.

Writes results/errors.csv. Run with `make evidence`.
"""

import sys
import warnings

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from tables import write

from condokit import ConDoAdapter

# map, divergence, truth, features, rows in a stratum and domain, strata, rows of a subject
SETTINGS = [
    ("affine", "likelihood", "matrix", 3, 100, 3, 1),
    ("affine", "likelihood", "matrix", 5, 100, 3, 1),
    ("affine", "likelihood", "matrix", 3, 120, 3, 4),
    ("affine", "reverse-kl", "matrix", 3, 100, 3, 1),
    ("affine", "ot", "symmetric", 4, 150, 1, 1),
    ("affine", "ot", "symmetric", 3, 160, 2, 4),
    ("orthogonal", "likelihood", "rotation", 4, 100, 3, 1),
    ("similarity", "likelihood", "rotation", 3, 100, 3, 1),
    ("low-rank", "reverse-kl", "low rank", 20, 100, 3, 1),
    ("affine", "energy", "matrix", 3, 100, 3, 1),
    ("location-scale", "mmd", "diagonal", 3, 100, 3, 1),
]


def true_matrix(kind, d, rng):
    """Return a matrix to be found."""
    A = np.eye(d) + 0.3 * rng.normal(size=(d, d))
    if kind == "symmetric":
        return A @ A.T
    if kind == "rotation":
        turn = 0.3 * np.triu(A - np.eye(d), 1)
        return np.linalg.solve(np.eye(d) + turn - turn.T, np.eye(d) - turn + turn.T)
    if kind == "diagonal":
        return np.diag(rng.uniform(0.6, 1.6, d))
    if kind == "low rank":
        left, right = (np.linalg.qr(rng.normal(size=(d, 2)))[0] for _ in range(2))
        return np.diag(rng.uniform(0.7, 1.4, d)) + 0.5 * left @ right.T
    return A


def simulate(kind, d, n, n_strata, size, seed):
    """Make two domains whose strata differ in means and covariances; `size` rows of a subject."""
    shape, rng = np.random.default_rng(1000 + d), np.random.default_rng(seed)
    means = shape.normal(size=(n_strata, d))
    roots = [np.linalg.qr(shape.normal(size=(d, d)))[0] * shape.uniform(0.5, 2, d) for _ in means]
    A, b = true_matrix(kind, d, shape), shape.normal(size=d)
    stratum, who = np.repeat(np.arange(n_strata), n), np.arange(n_strata * n) // size
    sides = []
    for _ in range(2):
        noise = rng.normal(size=(len(who), d))
        if size > 1:
            noise = np.sqrt(0.5) * (noise + rng.normal(size=(who.max() + 1, d))[who])
        sides.append(means[stratum] + np.einsum("nij,nj->ni", np.array(roots)[stratum], noise))
    X = (sides[0] - b) @ np.linalg.inv(A).T
    groups = (who, who + len(who)) if size > 1 else None
    Z = [None if n_strata == 1 else stratum.astype(str)] * 2
    return (X, sides[1], *Z), groups, A, b


def in_errors(setting, seed):
    """Return how many errors scales or entries, offsets and values are from the truth."""
    map_, divergence, *problem = setting
    data, groups, A, b = simulate(*problem, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter = ConDoAdapter(map_, divergence=divergence).fit_pair(*data, groups=groups)
    if adapter.map_se_ is None:
        return None
    scale, offset = adapter.map_se_["scale"], adapter.map_se_["offset"]
    found, true = (adapter.map_.A, A) if scale.ndim == 2 else (adapter.map_.scale, np.diag(A))
    X = data[0][::37]
    value, error = adapter.transform(X, return_std=True)
    parts = (
        (found - true) / scale,
        (adapter.map_.offset - b) / offset,
        (value - X @ A.T - b) / error,
    )
    return [np.ravel(part) for part in parts]


def measure(setting, n_simulations):
    """Return the shares of 95% intervals that hold the truth."""
    found = [in_errors(setting, seed) for seed in range(n_simulations)]
    known = [parts for parts in found if parts is not None]
    names = ("map", "divergence", "truth", "features", "rows", "strata", "subject_rows")
    row = dict(zip(names, map(str, setting))) | {"simulations": len(found)}
    row["unknown"] = len(found) - len(known)
    for name, parts in zip(("entries", "offsets", "values"), zip(*known)):
        z = np.concatenate(parts)
        row |= {
            f"{name}_held": round(float(np.mean(np.abs(z) < 1.96)), 3),
            f"{name}_z": round(float(np.sqrt(np.mean(z**2))), 3),
        }
    return row


def main(n_simulations):
    jobs = (delayed(measure)(setting, n_simulations) for setting in SETTINGS)
    rows = Parallel(n_jobs=-1)(jobs)
    print(pd.DataFrame(rows).to_string(index=False))
    write("errors.csv", [list(rows[0]), *(list(row.values()) for row in rows)])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
