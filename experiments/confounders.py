"""Measure adaptation given continuous, many and mixed confounders, and the choice of map="auto".

Writes one row per scenario and method to results/confounders.csv, and the coverage of intervals
from few rows or subjects to results/coverage.csv, and prints them.
"""

import warnings
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from protocols import EFFECTS, continuous1d, mixed, rmse, subjects
from tables import write

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
        yield "no shift", effect, 40, ["plain", "auto"], {**NOTHING, "confounder_shift": False}
        yield "feature shift only", effect, 40, ["default", "auto"], {"confounder_shift": False}
        for noise, extra in (("both shifts", {}), ("people shift only", NOTHING)):
            yield f"noisy, {noise}", effect, 40, ["default", "auto"], {"noise": True, **extra}
        for kind in ("split", "irrelevant"):
            for columns in (2, 8, 32):
                arguments = {"n_confounders": columns, "columns": kind}
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


def coverage():
    """Return how often estimate +- 1.96 standard errors holds the truth, with few rows."""
    settings = [(n, 1, 0.0) for n in (10, 20, 50, 100)]
    settings += [(20, 10, correlation) for correlation in (0.0, 0.3, 0.8)]
    rows = []
    for effect in EFFECTS:
        for n, rows_each, correlation in settings:
            held = []
            for seed in range(SEED, SEED + 60):
                *data, who = subjects(effect, seed, n, rows_each=rows_each, correlation=correlation)
                adapter = ConDoAdapter(shrinkage=None, warn_overlap=0, min_overlap=0).fit_pair(
                    *data, groups=who if rows_each > 1 else None
                )
                if adapter.overlap_.coefficient > 0.4:
                    error = [adapter.map_.scale - 0.5, adapter.map_.offset + 2.5]
                    se = [adapter.map_se_["scale"], adapter.map_se_["offset"]]
                    held.append(np.abs(error) < 1.96 * np.array(se))
            held = np.concatenate(held, axis=1)
            share = [f"{value:.3f}" for value in held.mean(axis=1)]
            rows.append([effect, n, rows_each, correlation, held.shape[1], *share])
            print("{:16} {:4} subjects x {:2} rows, {:.1f}: {} fits, {} {}".format(*rows[-1]))
    names = ["effect", "subjects_per_domain", "rows_each", "correlation", "n_fits"]
    return [[*names, "coverage_scale", "coverage_offset"], *rows]


def main():
    warnings.simplefilter("ignore", condokit.LowOverlapWarning)
    write("coverage.csv", coverage())
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
    names = ["setting", "effect", "n_simulations", "method", "heldout_rmse", "se", "coverage_scale"]
    write("confounders.csv", [names, *rows])


if __name__ == "__main__":
    main()
