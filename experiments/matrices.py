"""Accuracy of full matrices and of the choice among maps; writes results/matrices.csv."""

import warnings
from collections import Counter
from functools import partial

import numpy as np
from protocols import SCENARIOS, ansur, categorical2d, data_folder, rmse, rotations
from tables import write

from condokit import ConDoAdapter

SEEDS = range(1000, 1010)
METHODS = {
    "auto": {"map": "auto"},
    "affine": {"map": "affine"},
    "affine likelihood": {"map": "affine", "divergence": "likelihood"},
    "affine reverse-kl": {"map": "affine", "divergence": "reverse-kl"},
    "affine ot": {"map": "affine", "divergence": "ot"},
    "affine pc-match": {"map": "affine", "divergence": "pc-match"},
    "location-scale": {"map": "location-scale"},
}
BETWEEN_SAMPLES = {
    f"affine {name}": {"map": "affine", "divergence": name} for name in ("mmd", "energy")
}


def problems():
    for size in ((5, 4, 500), (12, 6, 500), (3, 2, 500), (12, 6, 60)):
        yield f"rotations {size}", lambda seed, size=size: rotations(*size, seed)
    skewed = partial(rotations, 3, 2, 200, skewed=True)
    yield "skewed rotations (3, 2, 200)", skewed
    for scenario in SCENARIOS:
        yield f"categorical2d {scenario}", lambda seed, s=scenario: categorical2d(seed)[s]
    if data_folder() is not None:
        for name, shift in (("affine", "affine"), ("location-scale", "large"), ("no shift", None)):
            yield f"ansur {name}", partial(ansur, shift=shift)


def main():
    warnings.simplefilter("ignore")
    rows = []
    for name, draw in problems():
        pairs = [draw(seed) for seed in SEEDS]
        errors = {
            "identity": [rmse(p.X_query, p.truth) for p in pairs],
            "constant": [rmse(p.X_reference.mean(axis=0), p.truth) for p in pairs],
        }
        chosen = {}
        more = BETWEEN_SAMPLES if name.startswith("skewed") else {}
        for method, parameters in (METHODS | more).items():
            if name.startswith("ansur") and method in ("affine likelihood", "affine reverse-kl"):
                continue  # not identified, and slow
            errors[method], chosen[method] = [], Counter()
            for p in pairs:
                adapter = ConDoAdapter(**parameters)
                adapter.fit_pair(p.X_query, p.X_reference, p.Z_query, p.Z_reference)
                X, truth = p.X_query, p.truth
                if hasattr(p, "X_heldout"):
                    X, truth = p.X_heldout, p.truth_heldout
                errors[method].append(rmse(adapter.transform(X), truth))
                chosen[method][adapter.report_.get("chosen_map", "")] += 1
        for method, values in errors.items():
            kinds = "; ".join(f"{k} {n}" for k, n in chosen.get(method, {}).items() if k)
            rows.append(
                [name, len(values), method]
                + [f"{x:.4f}" for x in (np.mean(values), np.median(values), np.std(values))]
                + [kinds]
            )
            print("{:32} {:3} {:18} mean {:>8} median {:>8} sd {:>8} {}".format(*rows[-1]))
    names = ["problem", "n_simulations", "method", "mean_rmse", "median_rmse", "sd", "chosen"]
    write("matrices.csv", [names, *rows])


if __name__ == "__main__":
    main()
