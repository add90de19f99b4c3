"""Time and memory of the location-scale adapter as ratios to StandardScaler, side by side.

Each ratio is the median over repeats of (ours / theirs) measured next to each other in one run.
"""

import subprocess
import sys
import time
import tracemalloc

import numpy as np
from sklearn.preprocessing import StandardScaler

from condokit import ConDoAdapter


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ratio(ours, theirs, repeats):
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(repeats)]
    return np.median([a / b for a, b in pairs]), *np.median(pairs, axis=0)


def show(name, result, target):
    value, ours, theirs = result
    print(f"{name:44}{value:8.2f}x  (target {target}; {ours * 1e3:.1f} ms / {theirs * 1e3:.1f} ms)")


def long_tables():
    rng = np.random.default_rng(0)
    n = 1_000_000
    X_query, X_reference = (rng.normal(size=(n, 50)) for _ in range(2))
    strata = np.array(["north", "east", "south", "west"])
    Z_query, Z_reference = (strata[rng.integers(0, 4, n)] for _ in range(2))

    def fit():
        return ConDoAdapter().fit_pair(X_query, X_reference, Z_query, Z_reference)

    def fit_scalers():
        return [StandardScaler().fit(X) for X in (X_query, X_reference)]

    show("fit 2 x 1,000,000 x 50, 4 strata", ratio(fit, fit_scalers, 5), "<= 0.8")
    adapter, (scaler, _) = fit(), fit_scalers()
    result = ratio(lambda: adapter.transform(X_query), lambda: scaler.transform(X_query), 5)
    show("transform 1,000,000 x 50", result, "<= 1")
    tracemalloc.start()
    fit()
    peak = tracemalloc.get_traced_memory()[1] / X_query.nbytes
    tracemalloc.stop()
    print(f"{'extra memory of fit, share of one input':44}{peak:8.3f}   (target < 0.1)")


def wide_tables():
    rng = np.random.default_rng(0)
    X_query, X_reference = rng.normal(size=(18, 22_283)), rng.normal(size=(19, 22_283))
    Z_query, Z_reference = np.repeat(["c", "n"], [14, 4]), np.repeat(["c", "n"], [15, 4])
    result = ratio(
        lambda: ConDoAdapter().fit_pair(X_query, X_reference, Z_query, Z_reference),
        lambda: [StandardScaler().fit(X) for X in (X_query, X_reference)],
        100,
    )
    show("fit 37 x 22,283, 2 strata", result, "<= 2")


def imports():
    def start(code):
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    theirs = start("import sklearn.preprocessing")
    show("import condokit", ratio(start("import condokit"), theirs, 7), "<= 1.3")
    ours = start("from condokit import ConDoAdapter")
    show("from condokit import ConDoAdapter", ratio(ours, theirs, 7), "<= 1.3")


if __name__ == "__main__":
    imports()
    wide_tables()
    long_tables()
