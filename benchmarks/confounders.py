"""Time and memory of adaptation given continuous confounders, linear in rows and features.

Set CONDO_PYTHON to an interpreter that has the published package (condo 1.1.0) to compare with it
as a black box, side by side, each in a fresh process with one thread. Draws results/growth.png.
"""

import os
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
from blackbox import run

DATA = """
import time, warnings
import numpy as np
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
zq, zr = rng.uniform(4, 8, {nq}), rng.uniform(0, 8, {nr})
truth = 4 * zq[:, None] + 1 + 2 * rng.normal(size=({nq}, {d}))
Xr = 4 * zr[:, None] + 1 + 2 * rng.normal(size=({nr}, {d}))
Xq, Zq, Zr = 2 * truth + 5, zq[:, None], zr[:, None]
"""
OURS = """
from condokit import ConDoAdapter
def fit():
    return ConDoAdapter({arguments}).fit_pair(Xq, Xr, Zq, Zr)
"""
PUBLISHED = """
import condo
def fit():
    adapter = condo.ConDoAdapterKLD(transform_type="location-scale", verbose=0)
    adapter.fit(Xq, Xr, Zq, Zr)
    return adapter
"""
REPORT = """
times = []
for _ in range({repeats}):
    start = time.perf_counter()
    adapter = fit()
    times.append(time.perf_counter() - start)
error = np.sqrt(np.mean((np.asarray(adapter.transform(Xq)) - truth) ** 2))
print(np.median(times), error)
"""


def measure(python, code, repeats, **sizes):
    """Return (median seconds of a fit, rMSE) in a fresh process with one thread."""
    script = DATA.format(**sizes) + code + REPORT.format(repeats=repeats)
    seconds, error = run(python, script)[-2:]
    return float(seconds), float(error)


def compare(published):
    for nq, nr, d, repeats in ((100, 200, 1, 3), (500, 500, 10, 1)):
        sizes = {"nq": nq, "nr": nr, "d": d}
        print(f"{nq} + {nr} rows, {d} features, one continuous confounder")
        rows = {
            "default": measure(sys.executable, OURS.format(arguments=""), 20, **sizes),
            "kernel smoother": measure(
                sys.executable,
                OURS.format(arguments="divergence='reverse-kl', conditional='kernel'"),
                20,
                **sizes,
            ),
        }
        theirs = measure(published, PUBLISHED, repeats, **sizes) if published else None
        for name, (seconds, error) in rows.items():
            ratio = f", {theirs[0] / seconds:.0f}x faster" if theirs else ""
            print(f"  {name:18}{seconds * 1e3:10.1f} ms, rMSE {error:.3f}{ratio}")
        if theirs:
            print(f"  {'published':18}{theirs[0] * 1e3:10.1f} ms, rMSE {theirs[1]:.3f}")


def absolute():
    from condokit import ConDoAdapter

    cases = (
        (500, 500, 1000, 2, "< 3 s"),
        (60, 60, 22_283, 1, "< 6 s"),
        (500_000, 500_000, 10, 1, "< 20 s, memory < 2"),
    )
    for nq, nr, d, p, target in cases:
        rng = np.random.default_rng(0)
        Zq, Zr, B = (
            rng.uniform(0.3, 1, (nq, p)),
            rng.uniform(0, 1, (nr, p)),
            rng.normal(size=(p, d)),
        )
        Xq = 2 * (Zq @ B + 0.5 * rng.normal(size=(nq, d))) + 5
        Xr = Zr @ B + 0.5 * rng.normal(size=(nr, d))
        start = time.perf_counter()
        ConDoAdapter().fit_pair(Xq, Xr, Zq, Zr)
        seconds = time.perf_counter() - start
        tracemalloc.start()
        ConDoAdapter().fit_pair(Xq, Xr, Zq, Zr)
        memory = tracemalloc.get_traced_memory()[1] / (Xq.nbytes + Xr.nbytes)
        tracemalloc.stop()
        print(
            f"{nq} + {nr} rows, {d} features, {p} confounders: {seconds:.2f} s, "
            f"extra memory {memory:.2f} x input (target {target})"
        )


def growth():
    """Time against rows and against features: the exponent of a power law should be about 1."""
    from condokit import ConDoAdapter

    rng = np.random.default_rng(0)
    measured = {}
    for name, sizes in (
        ("rows", [(n, 10) for n in (50_000, 100_000, 200_000, 400_000)]),
        ("features", [(200, d) for d in (1000, 2000, 4000, 8000)]),
    ):
        seconds = []
        for n, d in sizes:
            z = rng.uniform(size=2 * n)
            X = z[:, None] + rng.normal(size=(2 * n, d))
            start = time.perf_counter()
            ConDoAdapter().fit_pair(X[:n], X[n:], z[:n], z[n:])
            seconds.append(time.perf_counter() - start)
        x = [2 * n if name == "rows" else d for n, d in sizes]
        exponent = np.polyfit(np.log(x), np.log(seconds), 1)[0]
        shown = ", ".join(f"{s:.2f}" for s in seconds)
        print(f"seconds for doubling {name}: {shown}; exponent {exponent:.2f}")
        measured[name] = x, seconds, exponent
    return measured


def plot(measured, path):
    """Draw time against rows and features on logarithmic axes, beside lines of exponent 1."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(8, 3.5), layout="constrained")
    fixed = {"rows": "10 features", "features": "200 + 200 rows"}
    for panel, (name, (x, seconds, exponent)) in zip(panels, measured.items()):
        linear = np.array(x) * np.exp(np.mean(np.log(seconds)) - np.mean(np.log(x)))
        panel.loglog(x, linear, "--", color="0.6", label="exponent 1")
        panel.loglog(x, seconds, "o-", label=f"measured, exponent {exponent:.2f}")
        panel.set_xticks(x, [f"{v:,}" for v in x])
        panel.minorticks_off()
        ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if t > min(linear) / 2]
        ticks = [t for t in ticks if t < 2 * max(linear)]
        panel.set_yticks(ticks, [f"{t:g}" for t in ticks])
        panel.set(xlabel=f"{name} ({fixed[name]})", ylabel="seconds of a default fit")
        panel.legend(frameon=False)
    figure.suptitle("Time of a default fit, one continuous confounder")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"Wrote {path}")


if __name__ == "__main__":
    compare(os.environ.get("CONDO_PYTHON"))
    absolute()
    plot(growth(), Path(__file__).parent / "results" / "growth.png")
