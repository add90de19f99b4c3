"""Time and accuracy of conditional MMD, against the published package, and with many rows.

The published package (condo 1.1.0) is a black box in an environment that peers.py makes: the same
rows, side by side, each in a fresh process with one thread, in seconds
of processor time. It runs 100 epochs at a rate of 0.01 except on ANSUR, where it has its defaults.
"""

import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
import protocols
from blackbox import run
from peers import environment

from condokit import ConDoAdapter

OURS = """
from condokit import ConDoAdapter
def fit():
    return ConDoAdapter("{kind}", divergence="mmd").fit_pair(Xq, Xr, Zq, Zr)
"""
PUBLISHED = """
import condo
def fit():
    adapter = condo.ConDoAdapterMMD(transform_type="{kind}", {settings}verbose=0)
    adapter.fit(Xq, Xr, Zq[:, None], Zr[:, None])
    return adapter
"""
SCRIPT = """
import sys, time, warnings
import numpy as np
warnings.simplefilter("ignore")
data = np.load(sys.argv[1], allow_pickle=False)
Xq, Xr, Zq, Zr, truth = (data[name] for name in ("Xq", "Xr", "Zq", "Zr", "truth"))
{fit}
times = []
for _ in range({repeats}):
    start = time.process_time()
    adapter = fit()
    times.append(time.process_time() - start)
error = float("nan")
if truth.size:
    error = np.sqrt(np.mean((np.asarray(adapter.transform(Xq)) - truth) ** 2))
print(np.median(times), error)
"""


def measure(python, fit, repeats, data, folder):
    """Return (median seconds of a fit, rMSE) in a fresh process with one thread."""
    path = folder / "data.npz"
    np.savez(path, **dict(zip(("Xq", "Xr", "Zq", "Zr", "truth"), data)))
    words = run(python, SCRIPT.format(fit=fit, repeats=repeats), path)
    return tuple(map(float, words[-2:]))


def parts(pair):
    return pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference, pair.truth


def snareseq():
    data = np.load(protocols.data_folder() / "snareseq.npz")
    atac, rna = (X / np.linalg.norm(X, axis=1, keepdims=True) for X in (data["atac"], data["rna"]))
    types = data["cell_type"].astype(str)
    return atac, rna, types, types, np.empty(0)


def compare(published):
    long = "n_epochs=100, learning_rate=0.01, "
    cases = {
        "categorical1d, N = 500": (parts(protocols.categorical1d(500, 0)), "location-scale", long)
    }
    if protocols.data_folder() is not None:
        cases["ANSUR, affine"] = (parts(protocols.ansur(0, shift="affine")), "affine", "")
        cases["SNARE-seq, 19 to 10 features"] = (snareseq(), "affine", long)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, (data, kind, settings) in cases.items():
            seconds, error = measure(sys.executable, OURS.format(kind=kind), 3, data, folder)
            print(f"{title}: {seconds:.3f} s, rMSE {error:.3f}", end="", flush=True)
            theirs = PUBLISHED.format(kind=kind, settings=settings)
            theirs, their_error = measure(published, theirs, 1, data, folder)
            print(
                f"; published {theirs:.2f} s, rMSE {their_error:.3f}: "
                f"{theirs / seconds:.0f}x faster"
            )


def many_rows():
    rng = np.random.default_rng(0)
    n, d = 100_000, 20
    Z = np.repeat(["a", "b"], n // 2)
    X_reference = rng.exponential(size=(n, d)) + (Z == "a")[:, None]
    X_query = 2 * (rng.exponential(size=(n, d)) + (Z == "a")[:, None]) + 5
    tracemalloc.start()
    for kind in ("location-scale", "affine"):
        tracemalloc.reset_peak()
        start = time.perf_counter()
        adapter = ConDoAdapter(kind, divergence="mmd").fit_pair(X_query, X_reference, Z, Z)
        seconds = time.perf_counter() - start
        peak = tracemalloc.get_traced_memory()[1] / 1e9
        print(
            f"{n} + {n} rows x {d}, {kind}: {seconds:.1f} s, {peak:.2f} GB beyond the input, "
            f"mean scale {np.diag(adapter.map_.A).mean():.3f} (truth 0.5)"
        )
    tracemalloc.stop()


if __name__ == "__main__":
    compare(environment("condo"))
    many_rows()
