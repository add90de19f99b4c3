"""Gene expression of two batches, 22,283 genes of 37 samples, some with cancer."""

import numpy as np
import protocols
import published
from compare import mean
from figures import means, save, subplots
from methods import COLORS, REPEATED, SLOW, TwoDomains, fit_all, methods
from sklearn.metrics import silhouette_score

TITLE = "Gene expression in two batches"
ALL, REMOVED = SCENARIOS = ["all samples", "7 removed"]
QUICK = SCENARIOS
SEEDS = range(5)  # minibatches of 22,283 genes are slow
METRICS = {"sil_cancer": "sil_cancer", "sil_batch": "sil_batch"}
BEST = {"sil_cancer": "high", "sil_batch": "zero"}


def published_key(scenario):
    return "bladderbatch" if scenario == ALL else "bladderbatch_confounded", scenario


def draw(scenario, seed):
    """Return both batches, without seven cancers of batch 2 that the seed names if asked."""
    X, result, batch = protocols.bladderbatch(seed if scenario == REMOVED else None)
    query, reference = batch == 2, batch == 5
    return TwoDomains(X[query], X[reference], result[query], result[reference])


def run(scenario, seed, quick=False):
    if scenario == ALL and seed > 0:
        return  # nothing is drawn
    problem = draw(scenario, seed)
    fits = methods(epochs=100, learning_rate=0.01, seed=seed)
    for name, fitted, seconds in fit_all(problem, fits, SLOW if quick else ()):
        yield {"method": name, **silhouettes(problem, fitted), "seconds": seconds}


def silhouettes(problem, fitted):
    """Return the silhouettes of adapted batch 2 and batch 5, by cancer and by batch."""
    both = np.vstack([fitted(problem.X_query), problem.X_reference])
    batch = np.repeat([2, 5], [len(problem.X_query), len(problem.X_reference)])
    cancer = np.concatenate([problem.Z_query, problem.Z_reference])
    return {
        "sil_cancer": float(silhouette_score(both, cancer)),
        "sil_batch": float(silhouette_score(both, batch)),
    }


def figures(table, folder):
    """Draw the paper's two tables: bars with standard deviations; diamonds are published."""
    figure, panels = subplots(2, 2, size=(9.5, 6.5), sharex="col", sharey=True)
    for line, scenario in zip(panels, SCENARIOS):
        rows = table[table["scenario"] == scenario]
        experiment, setting = published_key(scenario)
        for axes, metric in zip(line, METRICS):
            value, sd = means(rows, metric, ["method"])
            place = {method: k for k, method in enumerate(value.index)}
            axes.barh(
                list(place.values()),
                value,
                xerr=sd if len(rows) > len(value) else None,
                color=[COLORS[method] for method in place],
                error_kw={"linewidth": 0.8, "ecolor": "0.4"},
                capsize=1.5,
            )
            for name, known in published.NUMBERS[experiment][setting].items():
                if REPEATED[name] in place:
                    axes.plot(known[metric], place[REPEATED[name]], "D", ms=4, mfc="w", mec="k")
            axes.set_yticks(list(place.values()), list(place))
            axes.set_title(f"{scenario}: by {'cancer' if metric == 'sil_cancer' else 'batch'}")
            axes.axvline(0, color="0.5", linewidth=0.8)
    panels[0, 0].invert_yaxis()
    panels[0, 0].set_xlim(0, 0.36)
    for axes, wanted in zip(panels[-1], ("large", "zero")):
        axes.set_xlabel(f"silhouette ({wanted} is wanted; diamonds: published)")
    save(figure, folder, "bladderbatch")


REPEATS = ("Gaussian OT", "MMD", "ConDo KL", "ConDo MMD")
LISTED = ("none", *REPEATS, "ConDo KL (as published)", "condokit", "condokit auto")


def _evidence(table, scenario):
    """Write all silhouettes, with standard errors where there are several simulations."""
    rows = table[table["scenario"] == scenario]
    found = []
    for metric, name in (("sil_cancer", "Cancer"), ("sil_batch", "Batch")):
        value, sd = means(rows, metric, ["method"])
        error = sd / np.sqrt(rows["seed"].nunique())
        texts = (
            f"{m} {value[m]:.4f}" + (f" ± {error[m]:.4f}" if error[m] > 0 else "") for m in LISTED
        )
        found.append(f"{name}: {', '.join(texts)}.")
    return " ".join(found)


def _claim(scenario, holds):
    """Return a claim about the cancer and batch silhouettes of a scenario, by method."""

    def claim(table):
        cancer, batch = (
            {method: mean(table, scenario, method, metric) for method in LISTED}
            for metric in METRICS
        )
        return bool(holds(cancer, batch)), _evidence(table, scenario)

    return claim


def _outperform(cancer, batch, one, other):
    return cancer[one] > cancer[other] and abs(batch[one]) < abs(batch[other])


CLAIMS = [
    (
        "All domain adaptation methods improve upon no adaptation (all samples).",
        _claim(ALL, lambda c, b: all(_outperform(c, b, m, "none") for m in REPEATS)),
    ),
    (
        "For cancer status, MMD has the largest silhouette score (all samples).",
        _claim(ALL, lambda c, b: c["MMD"] == max(c[m] for m in REPEATS)),
    ),
    (
        "For the batch variable, all adaptations produced slightly negative scores (all samples).",
        _claim(ALL, lambda c, b: all(-0.05 < b[m] < 0 for m in REPEATS)),
    ),
    (
        "The batch silhouette score is closest to zero for ConDo MMD (all samples).",
        _claim(ALL, lambda c, b: abs(b["ConDo MMD"]) == min(abs(b[m]) for m in REPEATS)),
    ),
    (
        "ConDo methods outperform their baseline counterparts (7 removed).",
        _claim(
            REMOVED,
            lambda c, b: (
                _outperform(c, b, "ConDo KL", "Gaussian OT")
                and _outperform(c, b, "ConDo MMD", "MMD")
            ),
        ),
    ),
    (
        "ConDo Gaussian KLD in particular produces gene expression data in which variation "
        "concords with cancer status rather than batch (7 removed).",
        _claim(
            REMOVED,
            lambda c, b: all(_outperform(c, b, "ConDo KL", m) for m in ("none", *REPEATS[:2])),
        ),
    ),
]
NOTES = [
    "The text's counts are wrong: batch 2 has 14 cancers and 4 others, batch 5 has 15 and 4. It "
    "says that non-cancer samples are removed, yet its own '4/11 non-cancerous' fits the removal "
    "of 7 cancers, which is what was done and is repeated here.",
    "The published ± of the second table is the standard deviation over simulations divided by 10, "
    "not by the square root of 10; errors here are divided by the root.",
    "The published ConDo KLD divides its centring means by the number of classes once more. "
    "'ConDo KL (as published)' has that slip and equals the published numbers in all printed "
    "digits, as 'none' and Gaussian OT do. 'ConDo KL' is the appendix without the slip, 'exact KL' "
    "the exact minimum.",
    "The published MMDs were not seeded, and the paper's table and the notebook differ in the "
    "fourth digit. ConDo MMD weighs strata by the paper's equation here, by sqrt(p_query "
    "p_reference) there.",
    "The published ComBat is not in the paper, and had an age that is not among the data. Here the "
    "samples that it maps are all given the same cancer status, since that of new samples is "
    "unknown.",
    "Nothing is drawn with all samples but the sets of the MMDs: one simulation.",
]
REASONS = {
    "all samples, sil_cancer": "The batches hardly differ in cancer here, so that conditioning "
    "costs precision and wins nothing; with induced confounding the order is reversed.",
    "all samples, sil_batch": "The difference is in the fourth decimal of an unseeded method.",
}
