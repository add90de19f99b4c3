"""Time of assessing, resampling and testing, as ratios to one fit in the same run."""

import time
import warnings

import numpy as np

from condokit import ConDoAdapter, assess, bootstrap, evaluate


def seconds(task, repeats=3):
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        task()
        best = min(best, time.perf_counter() - start)
    return best


def problem(n, d, rng):
    z = np.r_[rng.random(n) < 0.6, rng.random(n) < 0.3].astype(int)
    X = rng.normal(size=(2 * n, d)) + z[:, None]
    X[:n] = (X[:n] - 1) / 2
    domain = np.repeat(["query", "reference"], n)
    return X, {"domain": domain, "confounders": {"z": z}}


def main():
    rng = np.random.default_rng(0)
    X, roles = problem(500_000, 50, rng)
    fit = seconds(lambda: ConDoAdapter().fit(X, **roles))
    ratio = seconds(lambda: assess(X, **roles)) / fit
    print(f"assess, 1,000,000 x 50: {ratio:.2f} times one fit (target: below 2)")

    X, roles = problem(50_000, 50, rng)
    adapter = ConDoAdapter().fit(X, **roles)
    fit = seconds(lambda: ConDoAdapter().fit(X, **roles))
    ratio = seconds(lambda: bootstrap(adapter, X, **roles)) / fit
    print(f"200 resamples, 100,000 x 50: {ratio:.1f} times one fit (target: at most 60)")

    X, roles = problem(500, 100, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter = ConDoAdapter().fit(X, **roles)
    took = seconds(lambda: evaluate(adapter, X, **roles), 1)
    print(f"evaluate with 200 permutations, 1000 x 100: {took:.1f} s (target: below 30)")


if __name__ == "__main__":
    main()
