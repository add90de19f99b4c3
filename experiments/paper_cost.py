"""How the cost of the paper's methods grows: exponents in rows, features and confounder values.

Prints the processor time of fits at several sizes, and the slope of its logarithm between the two
largest. Run as ``python experiments/paper_cost.py``; it takes about two minutes.
"""

import time
import warnings

import numpy as np

from condokit import ConDoAdapter
from condokit.paper import ConDo, MMDBaseline, OTBaseline

CATEGORIES = {
    "OT, location-scale": OTBaseline(),
    "OT, affine": OTBaseline("affine"),
    "ConDo KL, location-scale": ConDo("kl"),
    "ConDo KL, affine, 10 steps": ConDo("kl", "affine", steps=10),
    "MMD, 1 epoch": MMDBaseline("affine", epochs=1),
    "ConDo MMD, 1 epoch": ConDo("mmd", "affine", epochs=1),
    "condokit's default": ConDoAdapter(),
}
NUMBERS = {"ConDo KL given a number": ConDo("kl"), "default given a number": ConDoAdapter()}


def draw(n, d, levels=2, numbers=False):
    """Return rows of both domains, with so many levels or one number as confounder."""
    rng = np.random.default_rng(0)
    Z = rng.uniform(0, 1, (2, n)) if numbers else rng.integers(0, levels, (2, n)).astype(str)
    level = Z.astype(float) / (1 if numbers else max(levels - 1, 1))
    X, Y = level[:, :, None] * np.ones(d) + rng.normal(size=(2, n, d))
    return 2 * X + 5, Y, Z[0], Z[1]


def cost(adapter, data):
    """Return the processor time of a fit, the least of three."""
    data = data if isinstance(adapter, ConDo) or type(adapter) is ConDoAdapter else data[:2]
    seconds = []
    for _ in range(3):
        start = time.process_time()
        adapter.fit_pair(*data)
        seconds.append(time.process_time() - start)
    return min(seconds)


def show(title, sizes, methods, of):
    """Print a line for each method."""
    print(f"\n{title}: {', '.join(map(str, sizes))}")
    for name, adapter in methods.items():
        seconds = [cost(adapter, of(size)) for size in sizes]
        slope = np.log(seconds[-1] / seconds[-2]) / np.log(sizes[-1] / sizes[-2])
        print(
            f"{name:28}{''.join(f'{s:9.3f}' for s in seconds)}   exponent {slope:.1f}", flush=True
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    show("rows of a domain", (1000, 4000, 16000), CATEGORIES, lambda n: draw(n, 5))
    show("features", (10, 30, 90), CATEGORIES, lambda d: draw(400, d))
    some = {name: CATEGORIES[name] for name in ("ConDo KL, location-scale", "condokit's default")}
    show("levels of a category", (4, 16, 64), some, lambda k: draw(2000, 5, k))
    show("rows, given a number", (100, 200, 400), NUMBERS, lambda n: draw(n, 2, numbers=True))
    show("features, given a number", (2, 4, 8), NUMBERS, lambda d: draw(100, d, numbers=True))
