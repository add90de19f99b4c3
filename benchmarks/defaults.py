"""Processor time of the default beside simpler tools, in one process; ratios are what counts.

    OMP_NUM_THREADS=1 python benchmarks/defaults.py

combatlearn and POT are compared where they are installed.
"""

import time
import warnings
from functools import partial

import numpy as np
import pandas as pd
from sklearn.preprocessing import StandardScaler

from condokit import ConDoAdapter

warnings.simplefilter("ignore")


def seconds(call, repeats=3):
    """Return the least processor time of some calls."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def show(name, ours, other, called, target):
    print(
        f"{name:44} {ours:8.3f} s  {called} {other:8.3f} s  ratio {ours / other:6.2f}  ({target})"
    )


def combat(X, batch, z):
    """Return a fit of ComBat with the same covariate, or None."""
    try:
        from combatlearn import ComBat
    except ImportError:
        return None
    index = pd.RangeIndex(len(X))
    model = ComBat(
        batch=pd.Series(batch, index=index),
        continuous_covariates=pd.DataFrame({"z": z}, index=index),
        method="fortin",
    )
    frame = pd.DataFrame(X, index=index)
    return lambda: model.fit(frame)


def continuous(rng, n, d, heavy=False):
    z = rng.normal(size=2 * n)
    noise = rng.standard_t(3, (2 * n, d)) if heavy else rng.normal(size=(2 * n, d))
    X = z[:, None] * rng.normal(size=d) + noise
    return X[:n], X[n:], z[:n], z[n:]


def fit(*data, **options):
    return lambda: ConDoAdapter(**options).fit_pair(*data)


def main():
    rng = np.random.default_rng(0)
    for n, d in ((2000, 2000), (100_000, 20)):
        data = continuous(rng, n, d)
        ours = seconds(fit(*data))
        other = combat(np.vstack(data[:2]), np.repeat([0, 1], n), np.concatenate(data[2:]))
        name = f"{n} + {n} x {d}, continuous"
        if other is not None:
            show(name, ours, seconds(other), "combatlearn", "1.0 wanted")
        heavy = continuous(rng, n, d, heavy=True)
        tails = seconds(fit(*heavy), 1)
        show(f"{name}, t_3", tails, ours, "normal data", "5 wanted")
    for n, d, target in ((2000, 2000, "3 wanted"), (500_000, 50, "0.8 wanted")):
        X, k = rng.normal(size=(2 * n, d)), rng.choice(["a", "b", "c"], 2 * n)
        ours = seconds(fit(X[:n], X[n:], k[:n], k[n:]))
        other = seconds(partial(StandardScaler().fit, X))
        show(f"{n} + {n} x {d}, categories", ours, other, "StandardScaler", target)
    try:
        import ot
    except ImportError:
        return
    for n, d in ((1000, 30), (20_000, 50)):
        X, Y = rng.normal(size=(n, d)), rng.normal(size=(n, d))
        ours = seconds(fit(X, Y, map="affine", divergence="ot"))
        other = seconds(partial(ot.gaussian.empirical_bures_wasserstein_mapping, X, Y))
        show(f"{n} + {n} x {d}, affine without confounders", ours, other, "POT", "1.2 wanted")


if __name__ == "__main__":
    main()
