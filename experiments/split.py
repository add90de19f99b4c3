"""The continuous confounder split into 1 to 32 columns that sum to it."""

import numpy as np
from continuous1d import METRICS, PUBLISHED_EFFECTS, measure
from irrelevant import COLUMNS, panels

from condokit.datasets import EFFECTS, make_continuous1d

TITLE = "Split confounders"
SCENARIOS = [f"{p} / {effect}" for p in COLUMNS for effect in EFFECTS]
QUICK = SCENARIOS[3:6]
FRESH = True
BEST = dict.fromkeys(METRICS, "low")


def published_key(scenario):
    p, effect = scenario.split(" / ")
    return "continuous1d_split_confounders", f"{p} / {PUBLISHED_EFFECTS[effect]}"


def draw(scenario, seed):
    """Draw one problem; all numbers of columns of a seed come from one stream."""
    rng = np.random.RandomState(seed)
    for p in COLUMNS:
        for effect in EFFECTS:
            problem = make_continuous1d(effect, n_confounders=p, columns="split", random_state=rng)
            rng.uniform(size=(300, p - 1))  # the published ConDo MMD was given a second split
            if scenario == f"{p} / {effect}":
                return problem
    raise ValueError(scenario)


def run(scenario, seed, quick=False):
    return measure(draw(scenario, seed), seed, quick)


def figures(table, folder):
    for metric in METRICS:
        panels(table, metric, folder, "split")


def _effective(table):
    mean = table[table["seed"] < 100].groupby(["scenario", "method"])["heldout_rmse"].mean()
    shown = ("Gaussian OT", "MMD", "ConDo KL", "ConDo MMD", "condokit", "condokit auto")
    text = "; ".join(
        f"{m} " + " / ".join(f"{mean[f'32 / {e}', m]:.2f}" for e in EFFECTS) for m in shown
    )
    holds = all(
        max(mean[s, "ConDo KL"], mean[s, "ConDo MMD"]) < min(mean[s, "Gaussian OT"], mean[s, "MMD"])
        for s in SCENARIOS
    )
    return holds, f"heldout rMSE with 32 columns ({' / '.join(EFFECTS)}): {text}"


CLAIMS = [
    (
        "ConDo is still effective with the confounder split into 2 to 32 columns (both ConDo "
        "methods below both baselines in every cell)",
        _effective,
    )
]
NOTES = [
    "With 16 and 32 columns the repeated ConDo KL errs more than the published one: trees of "
    "this implementation of chained equations see little of a sum of many columns.",
    "The text calls the decomposition noisy; the columns sum to the confounder exactly.",
    "The published ConDo MMD was given a second, different split; here all methods get the first.",
]
