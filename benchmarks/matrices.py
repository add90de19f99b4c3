"""Time of affine reverse KL, at what objective, and the cost of many features with low rank.

The published package (condo 1.1.0) is a black box in an environment that peers.py makes: the same
rows, side by side, each in a fresh process with one thread.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
import protocols
from blackbox import run
from peers import environment

from condokit import ConDoAdapter
from condokit.solvers.gaussian_kl import gap
from condokit.summaries.gaussians import GaussianPair, Gaussians

OURS = """
from condokit import Affine, ConDoAdapter
def fit():
    adapter = ConDoAdapter(Affine({arguments}), divergence="reverse-kl", shrinkage=None)
    return adapter.fit_pair(Xq, Xr, Zq, Zr)
"""
PUBLISHED = """
import condo
def fit():
    adapter = condo.ConDoAdapterKLD(transform_type="affine", verbose=0)
    adapter.fit(Xq, Xr, Zq[:, None], Zr[:, None])
    return adapter
"""
SCRIPT = """
import sys, time, warnings
import numpy as np
warnings.simplefilter("ignore")
data = np.load(sys.argv[1], allow_pickle=False)
Xq, Xr, Zq, Zr = (data[name] for name in ("Xq", "Xr", "Zq", "Zr"))
{fit}
times = []
for _ in range({repeats}):
    start = time.perf_counter()
    adapter = fit()
    times.append(time.perf_counter() - start)
d = Xq.shape[1]
b = np.asarray(adapter.transform(np.zeros((1, d))))[0]
A = (np.asarray(adapter.transform(np.eye(d))) - b).T
np.savez(sys.argv[2], A=A, b=b)
print(np.median(times))
"""


def strata(n_features, n_strata, n, seed=0):
    """Draw Gaussian strata of n rows each in both domains, and a query with a random matrix."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(n_strata, n_features))
    factors = rng.normal(size=(n_strata, 3, n_features))
    sides = [
        mean[:, None]
        + rng.normal(size=(n_strata, n, 3)) @ factors
        + 0.5 * rng.normal(size=(n_strata, n, n_features))
        for _ in range(2)
    ]
    query, reference = (side.reshape(-1, n_features) for side in sides)
    A = np.eye(n_features) + 0.3 * rng.normal(size=(n_features, n_features))
    A[0] *= np.sign(np.linalg.det(A))
    Z = np.repeat([f"z{k}" for k in range(n_strata)], n)
    return query @ A.T + 1, reference, Z, Z


def ansur():
    pair = protocols.ansur(0, shift="affine")
    return pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference


def divergence(A, b, Xq, Xr, Zq, Zr):
    """Return the mean KL divergence over strata, in nats, from plain covariances."""
    sides = []
    for X, Z in ((Xq, Zq), (Xr, Zr)):
        rows = [X[level == Z] for level in np.unique(Zr)]
        mean = np.array([x.mean(axis=0) for x in rows])
        sides.append(Gaussians(mean, np.array([np.cov(x.T) for x in rows]), np.ones(len(rows))))
    weights = np.full(len(sides[0].count), 1 / len(sides[0].count))
    return gap(A, b, GaussianPair(*sides, weights))


def measure(python, fit, repeats, data, folder):
    """Return (median seconds of a fit, divergence of its map) in a fresh process."""
    given, found = folder / "data.npz", folder / "map.npz"
    np.savez(given, **dict(zip(("Xq", "Xr", "Zq", "Zr"), data)))
    words = run(python, SCRIPT.format(fit=fit, repeats=repeats), given, found)
    result = np.load(found)
    return float(words[-1]), divergence(result["A"], result["b"], *data)


def compare(published):
    cases = {
        "5 features, 1000 strata": lambda: strata(5, 1000, 20),
        "20 features, 1000 strata": lambda: strata(20, 1000, 60),
        "20 features, 10 strata": lambda: strata(20, 10, 100),
    }
    if protocols.data_folder() is not None:
        cases["93 features, 2 strata (ANSUR)"] = ansur
    with tempfile.TemporaryDirectory() as folder:
        for name, make in cases.items():
            data = make()
            print(name)
            theirs, value = measure(published, PUBLISHED, 1, data, Path(folder))
            print(f"  {'published':28}{theirs * 1e3:10.1f} ms, KL {value:.4f} nats", flush=True)
            for label, arguments in (
                ("default", ""),
                ("one start, at most 3 steps", "n_starts=1, max_iter=3"),
            ):
                ours = OURS.format(arguments=arguments)
                seconds, value = measure(sys.executable, ours, 5, data, Path(folder))
                print(
                    f"  {label:28}{seconds * 1e3:10.1f} ms, KL {value:.4f} nats, "
                    f"{theirs / seconds:.0f}x faster",
                    flush=True,
                )


def growth():
    print("low-rank map, 200 + 200 rows, one categorical confounder")
    rng = np.random.default_rng(0)
    times = []
    sizes = (2500, 5000, 10_000, 20_000)
    for d in sizes:
        Xq, Xr = rng.normal(size=(2, 200, d)) + rng.normal(size=(2, 200, 3)) @ rng.normal(
            size=(3, d)
        )
        Z = np.repeat(["a", "b"], 100)
        start = time.perf_counter()
        adapter = ConDoAdapter("low-rank").fit_pair(Xq, Xr, Z, Z)
        fitted = time.perf_counter()
        adapter.transform(Xq)
        times.append(fitted - start)
        print(
            f"  {d:6} features: fit {times[-1]:6.2f} s ({adapter.report_['n_iter']} iterations), "
            f"transform {(time.perf_counter() - fitted) * 1e3:6.1f} ms"
        )
    slope = np.polyfit(np.log(sizes), np.log(times), 1)[0]
    print(f"  time grows like features^{slope:.2f}")


def auto(n=10_320, n_features=7, repeats=3):
    """Time of map="auto" as a multiple of the default fit, two continuous confounders."""
    print(f"map='auto', {n} + {n} rows, {n_features} features, two continuous confounders")
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(0.4 + 0.6 * np.eye(n_features))
    slopes = rng.normal(size=(2, n_features))
    Zq, Zr = rng.uniform(0.3, 1, (n, 2)), rng.uniform(0, 0.8, (n, 2))
    Xq, Xr = (
        np.sin(3 * Z) @ slopes + 0.5 * rng.normal(size=(n, n_features)) @ root.T for Z in (Zq, Zr)
    )
    turn = np.eye(n_features) + 0.3 * np.triu(np.ones((n_features, n_features)), 1)
    for name, X in (("scaled", 1.3 * Xq + 0.5), ("mixed", Xq @ turn.T)):
        times = {"location-scale": [], "auto": []}
        for map_, seconds in list(times.items()) * repeats:
            start = time.process_time()
            adapter = ConDoAdapter(map_).fit_pair(X, Xr, Zq, Zr)
            seconds.append(time.process_time() - start)
        plain, chosen = (np.median(seconds) for seconds in times.values())
        print(
            f"  {name}: {chosen:.2f} s, {chosen / plain:.1f} times the default fit (target < 10); "
            f"{adapter.report_['chosen_map']}"
        )


if __name__ == "__main__":
    auto()
    compare(environment("condo"))
    growth()
