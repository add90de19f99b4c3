"""Confounders that are noisy or hidden: errors of maps against the truth, and intervals.

Writes results/HIDDEN.md. Run with `make evidence`.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from condokit import ConDoAdapter

N = 500  # rows of a domain
D = 3  # features
FIRST = 50_000  # seed

NOISY = {  # share of signal, and what else differs from two normal confounders of equal spread
    "reliability .8": {"share": 0.8},
    "reliability .6": {"share": 0.6},
    "and an exact one that goes with it": {"share": 0.6, "other": "exact"},
    "and another noisy one": {"share": 0.6, "other": "noisy"},
    "and a category that goes with it": {"share": 0.6, "other": "levels"},
    "two measurements of .6 each": {"share": 0.6, "repeats": 2},
    "curved effect": {"share": 0.6, "curve": 0.3},
    "query spread 1.5 times": {"share": 0.7, "spread": 1.5},
    "query spread 2/3": {"share": 0.7, "spread": 2 / 3},
    "uniform, [4, 8] and [0, 8]": {"share": 0.8, "kind": "uniform"},
    "exponential": {"share": 0.8, "kind": "exponential"},
}


def noisy(seed, share, other=None, repeats=1, curve=0.0, spread=1.0, kind="normal"):
    """Return features, the truth of the query's, confounders, and shares of the noisy ones."""
    rng = np.random.default_rng(seed)
    query = np.arange(2 * N) < N
    if kind == "uniform":
        z = np.where(query, rng.uniform(4, 8, 2 * N), rng.uniform(0, 8, 2 * N)) / 2
    elif kind == "exponential":
        z = rng.exponential(size=2 * N) + query
    else:
        z = rng.normal(size=2 * N) * np.where(query, spread, 1.0) + 1.5 * query
    variance = np.mean([z[query].var(), z[~query].var()])
    table, known = {}, {}
    effect = rng.choice([-1, 1], D) * rng.uniform(0.7, 1.3, D) / np.sqrt(variance)
    X = (z + curve * z**2)[:, None] * effect
    if other == "levels":
        level = (z + rng.normal(size=2 * N) > 0.75).astype(int)
        table["b"] = np.array(["low", "high"])[level]
        X += level[:, None] * rng.normal(size=D)
    elif other is not None:
        second = 0.6 * z + 0.8 * rng.normal(size=2 * N)
        X += second[:, None] * rng.normal(size=D) * 0.7
        table["b"] = second
    X += 0.6 * rng.normal(size=X.shape)
    truth, exact = X[query].copy(), pd.DataFrame({"a": z, **table})
    X[query] = (X[query] - 2 * rng.normal(size=D)) / rng.uniform(0.5, 2, D)
    error = np.sqrt(variance * (1 - share) / share)
    measured = z[:, None] + error * rng.normal(size=(2 * N, repeats))
    seen = exact.assign(a=measured.mean(axis=1))
    known["a"] = share if repeats == 1 else variance / (variance + error**2 / repeats)
    if other == "noisy":
        own = exact.b[~query].var()
        seen["b"] += np.sqrt(own * 0.25) * rng.normal(size=2 * N)
        known["b"] = 0.8
    columns = pd.DataFrame(measured).add_prefix("a_")
    return X, query, truth, exact, seen, known, columns


def fitted(X, query, Z, reliability=None):
    sides = (None, None) if Z is None else (Z[query], Z[~query])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how = {"reliability": reliability, "min_overlap": 0.0}
        return ConDoAdapter(**how).fit_pair(X[query], X[~query], *sides)


def size(adapter, X, query, truth):
    return np.sqrt(np.mean((adapter.transform(X[query]) - truth) ** 2 / truth.var(axis=0)))


def compare_noisy(seed, setting):
    X, query, truth, exact, seen, known, columns = noisy(seed, **setting)
    wrong = [{n: min(max(s + by, 0.05), 1.0) for n, s in known.items()} for by in (0.1, -0.1)]
    reliability = known
    if columns.shape[1] > 1:
        seen_by_column = pd.concat([seen.drop(columns="a"), columns], axis=1)
        reliability = {"a": list(columns)}
        calibrated = fitted(X, query, seen_by_column, reliability)
    else:
        calibrated = fitted(X, query, seen, reliability)
    others = [fitted(X, query, None), fitted(X, query, seen)]
    others += [calibrated, *(fitted(X, query, seen, w) for w in wrong), fitted(X, query, exact)]
    # intervals of values across the query's range
    rows = np.linspace(0, len(truth) - 1, 40).astype(int)
    mapped, sd = calibrated.transform(X[query][rows], return_std=True)
    inside = np.abs(mapped - truth[rows]) <= 1.96 * sd
    return [*(size(a, X, query, truth) for a in others), inside.mean()]


def hidden(seed, group=0.0, gain=1.0, n=N, d=20, k=8, noise=0.7):
    """Return a table moved by a hidden technical group that controls show; see `main`."""
    rng = np.random.default_rng(seed)
    query = np.arange(2 * n) < n
    sick = rng.random(2 * n) < np.where(query, 0.7, 0.3)
    technical = (rng.random(2 * n) < np.where(query, 0.8, 0.2)) * 2.0
    biology = rng.random(2 * n) < np.where(query, 0.8, 0.2)
    clean = np.outer(sick, rng.normal(size=d)) + group * np.outer(biology, rng.normal(size=d))
    clean += rng.normal(size=clean.shape)
    level = technical - technical[~query].mean()
    X = clean + np.outer(level, rng.normal(size=d))
    X[query] /= gain
    C = np.outer(level, rng.normal(size=k)) + noise * rng.normal(size=(2 * n, k))
    frame = pd.DataFrame(np.hstack([X, C]))
    frame.columns = [f"x{j}" for j in range(d)] + [f"c{j}" for j in range(k)]
    frame["sick"], frame["domain"] = sick, np.where(query, "query", "reference")
    return frame, clean[query]


HIDDEN = {
    "technical group": {},
    "the same, 100 rows a domain": {"n": 100},
    "the same, poor controls": {"noise": 1.5},
    "and a gain of 1.5": {"gain": 1.5},
    "and a hidden biological group": {"group": 1.0},
}


def compare_hidden(seed, setting):
    frame, truth = hidden(seed, **setting)
    new, found = frame[frame.domain == "query"], []
    both = {"controls": ["c*"]}
    for settings, confounders in (
        ({"map": "identity"}, ["sick"]),
        ({"map": "shift", "shrinkage": None}, None),
        ({"map": "shift", "shrinkage": None}, ["sick"]),
        ({}, ["sick"]),
        (both, None),
        (both, ["sick"]),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapter = ConDoAdapter(**settings)
            adapter.fit(frame, domain="domain", confounders=confounders, features=["x*", "c*"])
        mapped = adapter.transform(new).filter(like="x").to_numpy()
        found.append(np.sqrt(np.mean((mapped - truth) ** 2 / truth.var(axis=0))))
    return found


def table(heads, settings, compare, n):
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name, setting in settings.items():
        jobs = (delayed(compare)(FIRST + seed, setting) for seed in range(n))
        means = np.mean(Parallel(n_jobs=1)(jobs), axis=0)
        lines.append(f"| {name} | " + " | ".join(f"{v:.3f}" for v in means) + " |")
        print(lines[-1], flush=True)
    return lines


def main(n=24):
    heads = ["setting", "no confounder", "as measured", "calibrated", "share + .1", "share - .1"]
    noisy_lines = table([*heads, "true", "coverage"], NOISY, compare_noisy, n)
    heads = ["setting", "as is", "shift", "shift given the known", "map given the known"]
    hidden_lines = table([*heads, "controls", "controls, then map"], HIDDEN, compare_hidden, n)
    text = [
        "# Noisy and hidden confounders",
        "",
        f"Written by `experiments/hidden.py`: means of {n} simulations (seeds from {FIRST}).",
        "",
        f"**Noisy**: {N} + {N} rows, {D} features, root mean squared error of mapped query rows in",
        "standard deviations. Calibrated with the true reliability (from the differences of two",
        "measurements where there are two), or one that is off by .1; coverage of nominal 95%",
        "intervals of mapped values, with the reliability taken as known.",
        "",
        *noisy_lines,
        "",
        "**Hidden**: 20 features, 8 controls, a technical group (80% of the query, 20% of the",
        "reference) moves features and controls; the truth is without it, at the reference's mean.",
        "A hidden biological group, which controls do not show, belongs to the truth: a map given",
        "known confounders takes it for a shift, before and after controls.",
        "",
        *hidden_lines,
        "",
    ]
    Path(__file__).with_name("results").joinpath("HIDDEN.md").write_text("\n".join(text))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
