"""Whether intervals and expected errors of many batches hold, and whether plans beat chance.

    PYTHONPATH=experiments OMP_NUM_THREADS=1 python -m batches.trust [--seeds 40] [--seed 10000]

Writes experiments/results/BATCHES_TRUST.md.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np

import condokit
from batches.simulations import STUDIES
from condokit import BatchAdapter

PAGE = Path(__file__).parents[1] / "results" / "BATCHES_TRUST.md"
N_AGAIN = 8  # samples that are measured again
REPEAT = 0.4  # sd of measuring one again, in sd within strata


def covered(study):
    """Return coverage of 95% intervals of values, expected and actual error, by batch."""
    adapter = BatchAdapter(reference=study.reference)
    adapter.fit(study.X, batch=study.batch, confounders=study.confounders, bridge=study.bridge)
    moved, std = adapter.transform(study.X, batch=study.batch, return_std=True)
    found = {}
    for label, facts in adapter.report_.batches.items():
        rows = study.batch == label
        if label == study.reference:
            unit = study.X[rows].std(0)
            continue
        off = (moved - study.truth)[rows]
        inside = float((np.abs(off) <= 1.96 * std[rows]).mean())
        actual = float(np.sqrt(np.mean((off / unit) ** 2)))
        found[label] = inside, facts.error_after, actual
    return found


def islands(seed, n=40, d=20):
    """Return two pairs of batches that share no group, and a function that measures rows again."""
    rng = np.random.default_rng(seed)
    batch = np.repeat(np.arange(4), n)
    group = 2 * (batch > 1) + rng.integers(0, 2, 4 * n)
    sample = rng.normal(size=(4, d))[group] + rng.normal(size=(4 * n, d))
    scale, offset = np.exp(0.2 * rng.normal(size=(4, d))), 0.7 * rng.normal(size=(4, d))
    scale[0], offset[0] = 1.0, 0.0

    def measure(rows, where):
        values = sample[rows] + REPEAT * rng.normal(size=(len(rows), d))
        return (values - offset[where]) / scale[where]

    X = measure(np.arange(4 * n), batch)
    return X, batch, group.astype(str), measure, scale[batch] * X + offset[batch]


def error_with(moves, X, batch, group, measure, truth):
    """Return the error of maps that know these samples measured again."""
    rows, where = np.array(moves).T
    bridge = np.full(len(X) + len(rows), None, dtype=object)
    bridge[rows] = bridge[len(X) :] = [str(row) for row in rows]
    adapter = BatchAdapter(reference=0, unreachable="keep")
    adapter.fit(
        np.vstack([X, measure(rows, where)]),
        batch=np.concatenate([batch, where]),
        confounders=np.concatenate([group, group[rows]]),
        bridge=bridge,
    )
    off = (adapter.transform(X, batch=batch) - truth)[batch > 0]
    return float(np.sqrt(np.mean(off**2)))


def plans(seed):
    """Return errors with planned and with random samples measured again."""
    X, batch, group, measure, truth = islands(seed)
    plan = BatchAdapter(reference=0).plan(X, batch=batch, confounders=group, n=N_AGAIN)
    planned = [(one["row"], one["again_in"]) for one in plan.again]
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(X), N_AGAIN, replace=False)
    chance = [(row, rng.choice(np.delete(np.arange(4), batch[row]))) for row in rows]
    return [error_with(moves, X, batch, group, measure, truth) for moves in (planned, chance)]


def main():
    """Run all, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=10_000)
    asked = parser.parse_args()
    seeds = range(asked.seed, asked.seed + asked.seeds)
    lines = [
        "# Many batches: intervals, expected errors and plans",
        "",
        f"Written by `python -m batches.trust --seeds {asked.seeds} --seed {asked.seed}` "
        f"(`make evidence`) with condokit {condokit.__version__}. Coverage of 95% intervals of "
        "mapped values, and the expected over the actual error (`error_after`), mean over "
        "features, rows and seeds; batches by their labels, along chains by their distance.",
        "",
        "| study | coverage | expected / actual error |",
        "|---|---|---|",
    ]
    for name, make in STUDIES.items():
        found = [covered(make(seed)) for seed in seeds]
        shown = []
        for k in range(2):
            values = [
                np.mean([one[label][k] for one in found])
                / (1 if k == 0 else np.mean([one[label][2] for one in found]))
                for label in found[0]
            ]
            values = values if len(values) < 6 else [min(values), max(values)]
            shown.append((" " if len(found[0]) < 6 else " to ").join(f"{v:.2f}" for v in values))
        lines.append(f"| {name} | {shown[0]} | {shown[1]} |")
        print(lines[-1], flush=True)
    planned, chance = np.exp(np.log([plans(seed) for seed in seeds]).mean(axis=0))
    lines += [
        "",
        f"Plans: two pairs of batches that share no group, {N_AGAIN} samples measured again. Error "
        f"(geometric mean, sd) with those of `BatchAdapter.plan` {planned:.3f}, with random ones "
        f"{chance:.3f}.",
    ]
    print(lines[-1])
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
