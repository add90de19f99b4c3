"""How the cost of the paper's methods grows with rows, features and confounder values.

Writes the processor time of fits at several sizes to `results/paper_cost.csv`, the least of three.
Run as ``python experiments/paper_cost.py``; it takes about four minutes.
"""

import csv
import time
import warnings
from pathlib import Path

import numpy as np

from condokit import ConDoAdapter
from condokit.paper import ConDo, MMDBaseline, OTBaseline

FILE = Path(__file__).parent / "results" / "paper_cost.csv"
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


def measured(what, sizes, methods, of):
    """Return the rows of the table for one thing that grows."""
    return [
        (name, what, size, f"{cost(adapter, of(size)):.3g}")
        for name, adapter in methods.items()
        for size in sizes
    ]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    some = {name: CATEGORIES[name] for name in ("ConDo KL, location-scale", "condokit's default")}
    rows = [
        *measured("rows", (1000, 4000, 16000), CATEGORIES, lambda n: draw(n, 5)),
        *measured("features", (10, 30, 90), CATEGORIES, lambda d: draw(400, d)),
        *measured("levels", (4, 16, 64), some, lambda k: draw(2000, 5, k)),
        *measured("rows", (100, 200, 400), NUMBERS, lambda n: draw(n, 2, numbers=True)),
        *measured("features", (2, 4, 8), NUMBERS, lambda d: draw(100, d, numbers=True)),
    ]
    with FILE.open("w", encoding="utf-8", newline="") as file:
        head = ("method", "of", "size", "seconds")
        csv.writer(file, lineterminator="\n").writerows([head, *rows])
