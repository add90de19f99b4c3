"""False discoveries among features that are called better, and how many are found.

    python experiments/feature_verdicts.py

20 features, 50 + 50 rows, correlations of 0, .5 and .9; none, half or all features are shifted by
one standard deviation (20 studies each), and, where it is hard, all by .35 (60). Writes
results/features.csv.
"""

import warnings

import numpy as np
from tables import write

from condokit import ConDoAdapter, evaluate

D, N = 20, 50


def study(seed, correlation, share, size):
    """Return false discoveries and discoveries of shifts, as shares, of one study."""
    rng = np.random.default_rng(seed)
    mixed = np.linalg.cholesky(correlation + (1 - correlation) * np.eye(D))
    delta, m = np.zeros(D), int(share * D)
    delta[:m] = size * np.sign(rng.normal(size=m))
    sex, domain = rng.integers(0, 2, 2 * N).astype(str), np.repeat(["query", "reference"], N)
    X = rng.normal(size=(2 * N, D)) @ mixed.T + 0.5 * (sex == "1")[:, None]
    X[domain == "query"] += delta
    roles = {"domain": domain, "confounders": sex}
    adapter = ConDoAdapter().fit(X, **roles)
    found = evaluate(adapter, X, **roles, n_permutations=39)
    better = np.array(found.features["verdict"]) == "better"
    x = X[domain == "query"]
    truth, mapped = x - delta, adapter.map_(x)
    helps = ((x - truth) ** 2).mean(axis=0) > ((mapped - truth) ** 2).mean(axis=0)
    power = better[delta != 0].mean() if m else np.nan
    return (better & ~helps).sum() / max(better.sum(), 1), power


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    table = [("shift", "correlation", "share", "studies", "false_discoveries", "power")]
    for size, shares, studies in ((1.0, (0.0, 0.5, 1.0), 20), (0.35, (1.0,), 60)):
        for correlation in (0.0, 0.5, 0.9):
            for share in shares:
                seeds = [
                    1000 * k + int(10 * correlation) + int(100 * share) for k in range(studies)
                ]
                found = np.array([study(seed, correlation, share, size) for seed in seeds])
                rates = (f"{rate:.4f}" for rate in found.mean(axis=0))
                table.append((size, correlation, share, studies, *rates))
    write("features.csv", table)
