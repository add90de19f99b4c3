"""Simulations behind the trust tools: size and power of the test, coverage of intervals.

Writes results/trust.csv. Run with `make evidence`.
"""

import sys
import warnings

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from tables import write

from condokit import AffineMap, ConDoAdapter, bootstrap, evaluate

TRUTH = 2.0, 1.0


def simulate(kind, n, rng, d=4):
    """Make two domains of n rows each; the reference is 2 x + 1 of the query, given z."""
    frames = []
    for name in ("query", "reference"):
        if kind == "categorical":
            z = rng.random(n) < (0.7 if name == "query" else 0.3)
            mean, sd = 2.0 * z, 1 + 0.5 * z
        else:
            z = rng.uniform(3, 8, n) if name == "query" else rng.uniform(0, 6, n)
            mean, sd = 1.5 * np.sin(z) + 0.5 * z, 0.5 + 0.2 * z
        X = mean[:, None] + sd[:, None] * (rng.normal(size=(n, d)) + 0.5 * rng.normal(size=(n, 1)))
        X = (X - TRUTH[1]) / TRUTH[0] if name == "query" else X
        frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(d)])
        frames.append(frame.assign(domain=name, z=z))
    return pd.concat(frames, ignore_index=True)


def tests(kind, n, n_simulations):
    """Return how often shift is found: after the true map, a fitted one, and one without z."""
    roles = {"domain": "domain", "confounders": ["z"]}
    hits = {}
    for seed in range(n_simulations):
        rng = np.random.default_rng(10_000 + seed)
        frame, other = simulate(kind, n, rng), simulate(kind, n, rng)
        names = [c for c in frame if c.startswith("x")]
        true = AffineMap(np.full(len(names), TRUTH[0]), np.full(len(names), TRUTH[1]), names)
        adapter = ConDoAdapter().fit(frame, **roles)
        blind = ConDoAdapter().fit(frame, domain="domain", features=names)
        for name, which, data in (
            ("true map", true, frame),
            ("fitted on these rows", adapter, frame),
            ("fitted on other rows", adapter, other),
            ("confounder left out", blind, frame),
        ):
            found = evaluate(which, data, **roles)
            row = hits.setdefault(name, [])
            row.append((found.features["p"][0], found.p_features, found.p_joint))
    for name, p in hits.items():
        share = (np.array(p) <= 0.05).mean(axis=0)
        yield from (
            {"what": "rejected", "kind": kind, "n": n, "map": name, "test": test, "share": s}
            for test, s in zip(("one feature", "any feature", "jointly"), share)
        )


def coverage(kind, n, n_simulations):
    """Return how often 95% intervals hold the truth: of scale, offset and single values."""
    roles = {"domain": "domain", "confounders": ["z"]}
    hits = {}
    for seed in range(n_simulations):
        frame = simulate(kind, n, np.random.default_rng(20_000 + seed))
        adapter = ConDoAdapter().fit(frame, **roles)
        new = frame[frame["domain"] == "query"].iloc[:5]
        names = list(adapter.feature_names_in_)
        for how in ("analytic", "bootstrap"):
            if how == "bootstrap":
                bootstrap(adapter, frame, **roles, n_resamples=60)
            value, error = adapter.transform(new, return_std=True)
            se = adapter.map_se_
            for what, miss, width in (
                ("scale", adapter.map_.scale - TRUTH[0], se["scale"]),
                ("offset", adapter.map_.offset - TRUTH[1], se["offset"]),
                ("value", value - (TRUTH[0] * new[names] + TRUTH[1]), error),
            ):
                inside = np.abs(np.asarray(miss)) < 1.96 * np.asarray(width)
                hits.setdefault((how, what), []).append(inside.mean())
    for (how, what), shares in hits.items():
        yield {
            "what": "covered",
            "kind": kind,
            "n": n,
            "map": how,
            "test": what,
            "share": float(np.mean(shares)),
        }


def measure(kind, n_simulations):
    """Return all rows of one kind of confounder; the slower kind is simulated less often."""
    warnings.simplefilter("ignore")
    n_simulations = n_simulations if kind == "categorical" else max(n_simulations // 3, 1)
    rows = list(tests(kind, 150, n_simulations))
    for n in (20, 50, 200):
        if kind == "categorical" or n == 50:
            rows += coverage(kind, n, n_simulations)
    return [{**row, "simulations": n_simulations} for row in rows]


def main(n_simulations):
    jobs = (delayed(measure)(kind, n_simulations) for kind in ("continuous", "categorical"))
    rows = [row for part in Parallel(n_jobs=-1)(jobs) for row in part]
    print(pd.DataFrame(rows).to_string(index=False))
    names = list(rows[0])
    write("trust.csv", [names, *([row[name] for name in names] for row in rows)])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 80)
