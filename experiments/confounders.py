"""Measure adaptation given continuous, many and mixed confounders, and the choice of map="auto".

Writes one row per scenario and method to results/confounders.csv, and prints them.
"""

import csv
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import sklearn
from protocols import EFFECTS, continuous1d, mixed, rmse

import condokit
from condokit import ConDoAdapter

METHODS = {
    "default": {},
    "plain": {"shrinkage": None},
    "auto": {"map": "auto"},
    "kernel": {"divergence": "reverse-kl", "conditional": "kernel"},
}
NOTHING = {"scale": 1.0, "offset": 0.0}
SEED = 10_000


def scenarios():
    """Yield (setting, effect, n_simulations, methods, arguments of continuous1d)."""
    for effect in EFFECTS:
        yield "both shifts", effect, 80, list(METHODS), {}
        yield "people shift only", effect, 80, ["plain", "auto"], NOTHING
        yield "no shift", effect, 40, ["plain", "auto"], {**NOTHING, "people_shift": False}
        yield "feature shift only", effect, 40, ["default", "auto"], {"people_shift": False}
        for noise, extra in (("both shifts", {}), ("people shift only", NOTHING)):
            yield f"noisy, {noise}", effect, 40, ["default", "auto"], {"noise": True, **extra}
        for kind in ("split", "irrelevant"):
            for columns in (2, 8, 32):
                arguments = {"columns": columns, "kind": kind}
                yield f"{columns} columns, {kind}", effect, 40, ["default"], arguments
        for offset in (0.1, 0.5, 1.0, 2.0):  # 0.05 to 1 conditional sd of the homoscedastic effect
            arguments = {"scale": 1.0, "offset": offset}
            yield f"offset {offset}", effect, 40, ["plain", "auto"], arguments
        for scale in (1.02, 1.05, 1.1, 1.2, 1.3, 2.0):
            arguments = {"scale": scale, "offset": 0.0}
            yield f"scale {scale}", effect, 40, ["plain", "auto"], arguments


def simulate(job):
    """Return (error, scale covered) of one fit."""
    effect, seed, method, arguments = job
    warnings.simplefilter("ignore", condokit.LowOverlapWarning)
    pair = mixed(seed) if effect == "mixed" else continuous1d(effect, seed, **arguments)
    adapter = ConDoAdapter(**METHODS[method]).fit_pair(
        pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference
    )
    error = rmse(adapter.transform(pair.X_heldout), pair.truth_heldout)
    covered = float("nan")
    if adapter.map_se_ is not None and method == "plain":
        truth = 1 / arguments.get("scale", 2.0)
        covered = abs(adapter.map_.scale[0] - truth) < 1.96 * adapter.map_se_["scale"][0]
    return error, covered


def main():
    todo = [*scenarios(), ("mixed", "mixed", 40, ["default", "kernel"], {})]
    rows = []
    with ProcessPoolExecutor() as pool:
        for setting, effect, n, methods, arguments in todo:
            for method in methods:
                jobs = [(effect, SEED + s, method, arguments) for s in range(n)]
                errors, covered = np.array(list(pool.map(simulate, jobs, chunksize=10))).T
                se = errors.std(ddof=1) / np.sqrt(n)
                rows.append(
                    [setting, effect, n, method, f"{errors.mean():.4f}", f"{se:.4f}"]
                    + [f"{covered.mean():.3f}" if method == "plain" else ""]
                )
                print("{:28} {:16} {:4} {:8} {:>8} +- {:>7} {:>6}".format(*rows[-1]), flush=True)
    path = Path(__file__).parent / "results" / "confounders.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["setting", "effect", "n_simulations", "method", "heldout_rmse", "se", "coverage_scale"]
            + ["condokit", "numpy", "scikit-learn"]
        )
        versions = [condokit.__version__, np.__version__, sklearn.__version__]
        writer.writerows([*row, *versions] for row in rows)
    print(f"Wrote {path}")


if __name__ == "__main__":
    main()
