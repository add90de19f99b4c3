"""Increasing curves on simulated sensors: errors of lines, curves and "auto", and coverage.

    OMP_NUM_THREADS=1 python experiments/curves.py [--n 5] [--seed 90000]

Writes results/CURVES.md. A reference value y depends on a group, a continuous confounder or both,
whose shares differ between the domains; the query is seen through a sensor. Errors are root mean
squares on 2000 fresh query rows, in standard deviations of the truth.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit

from condokit import ConDoAdapter

RESULTS = Path(__file__).parent / "results" / "CURVES.md"
SENSORS = {
    "asinh": lambda y: np.arcsinh(1.5 * y),
    "logistic": lambda y: 4 * expit(1.3 * y),
    "power": lambda y: np.sign(y + 3) * np.abs(y + 3) ** 1.7,
    "saturating": lambda y: 5 * np.exp(0.9 * y) / (1.5 + np.exp(0.9 * y)),
    "softplus": lambda y: np.log1p(np.exp(1.2 * y)),
    "line": lambda y: 1.3 * y + 0.5,
    "no shift": lambda y: y,
}
MAPS = ("location-scale", "monotone", "auto")


def noise(kind, rng, shape):
    """Return residuals of variance one."""
    return rng.exponential(size=shape) - 1 if kind == "exponential" else rng.normal(size=shape)


def draw(sensor, given, law, n, seed, d=3):
    """Return rows of both domains, fresh query rows and their truth."""
    rng = np.random.default_rng(seed)
    mean, sd = rng.normal(size=(3, d)), rng.uniform(0.6, 1.2, (3, d))
    slope, curve = rng.uniform(0.3, 0.9, d) * rng.choice([-1, 1], d), rng.uniform(-0.2, 0.2, d)

    def side(shares, centre, n):
        k, z = rng.choice(3, n, p=np.array(shares) / 6), rng.normal(centre, 1, n)
        e = noise(law, rng, (n, d))
        if given == "category":
            return mean[k] + sd[k] * e, pd.DataFrame({"k": [f"l{i}" for i in k]})
        if given == "continuous":
            line = 1.2 * slope * z[:, None] + curve * z[:, None] ** 2
            return line + 0.8 * e, pd.DataFrame({"z": z})
        mixed = mean[k] + slope * z[:, None] + 0.8 * sd[k] * e
        return mixed, pd.DataFrame({"k": [f"l{i}" for i in k], "z": z})

    (yq, Zq), (yr, Zr), (yt, _) = (
        side(*how) for how in (((3, 2, 1), 0.5, n), ((1, 2, 3), -0.5, n), ((3, 2, 1), 0.5, 2000))
    )
    see = SENSORS[sensor]
    return (see(yq), yr, Zq, Zr), see(yt), yt


def cell(sensor, given, law, n, seeds):
    """Return mean errors of the maps, and the coverage of the curves' intervals."""
    rows = []
    for seed in seeds:
        data, X, truth = draw(sensor, given, law, n, seed)
        row = []
        for name in MAPS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                adapter = ConDoAdapter(name, warn_overlap=0, min_overlap=0).fit_pair(*data)
            mapped = adapter.transform(X)
            row.append(np.sqrt(np.mean((mapped - truth) ** 2 / truth.var(axis=0))))
            if name == "monotone":
                value, error = adapter.transform(X, return_std=True)
                row.append(np.mean(np.abs(value - truth) < 1.96 * error))
        rows.append(row)
    return np.mean(rows, axis=0)


def main():
    """Measure all cells and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=5)
    parser.add_argument("--seed", type=int, default=90_000)
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.n)
    head = (
        "| sensor | given | law | rows | line | curve | curve / line | auto / better | coverage |"
    )
    lines = [
        "# Increasing curves on simulated sensors",
        "",
        f"Made by `experiments/curves.py`: {options.n} simulations of 3 features each, seeds from",
        f"{options.seed}. Errors in standard deviations of the truth; coverage of 95% intervals of",
        "values mapped by curves.",
        "",
        head,
        "|" + "---|" * 9,
    ]
    for n in (100, 500, 2000):
        for sensor in SENSORS:
            for given in ("category", "continuous", "both"):
                for law in ("normal", "exponential"):
                    if n != 500 and law == "exponential":
                        continue
                    line, curve, held, auto = cell(sensor, given, law, n, seeds)
                    figures = f"{line:.3f} | {curve:.3f} | {curve / line:.2f} | "
                    figures += f"{auto / min(line, curve):.2f} | {held:.2f}"
                    lines.append(f"| {sensor} | {given} | {law} | {n} | {figures} |")
                    print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
