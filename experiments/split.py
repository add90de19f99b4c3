"""The continuous confounder split into 1 to 32 columns that sum to it."""

from compare import by_method
from continuous1d import METRICS, PUBLISHED_EFFECTS, measure
from irrelevant import BEST as BEST
from irrelevant import FRESH as FRESH
from irrelevant import QUICK as QUICK
from irrelevant import SCENARIOS, draw_columns, panels
from irrelevant import SEEDS as SEEDS

from condokit.datasets import EFFECTS

TITLE = "Split confounders"


def published_key(scenario):
    p, effect = scenario.split(" / ")
    return "continuous1d_split_confounders", f"{p} / {PUBLISHED_EFFECTS[effect]}"


def draw(scenario, seed):
    return draw_columns(scenario, seed, "split")


def run(scenario, seed, quick=False):
    return measure(draw(scenario, seed), seed, quick)


def figures(table, folder):
    for metric in METRICS:
        panels(table, metric, folder, "split")


def _effective(table):
    mean = by_method(table, "heldout_rmse")
    shown = ("Gaussian OT", "MMD", "ConDo KL", "ConDo MMD", "condokit", "condokit auto")
    text = "; ".join(
        f"{m} " + " / ".join(f"{mean.loc[m, f'32 / {e}']:.2f}" for e in EFFECTS) for m in shown
    )
    holds = all(
        mean.loc[["ConDo KL", "ConDo MMD"], s].max() < mean.loc[["Gaussian OT", "MMD"], s].min()
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
    "The text calls the decomposition noisy; the columns sum to the confounder exactly.",
    "The published ConDo MMD was given a second, different split; here all methods get the first.",
]
