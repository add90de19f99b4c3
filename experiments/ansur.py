"""ANSUR II: 93 body measurements, gender as the confounder, four shifts and two tasks."""

from dataclasses import dataclass, replace
from functools import cache

import classifiers
import numpy as np
import pandas as pd
from compare import gain, improves, is_noninferior, listed, mean, word
from figures import bars, horizontal, legend, save, subplots
from methods import (
    COLORS,
    REPEATED,
    SLOW,
    TwoDomains,
    fit_all,
    methods,
    parameter_errors,
    rmse,
)
from protocols import measurements, people
from scipy.stats import gaussian_kde, ortho_group
from sklearn.model_selection import StratifiedKFold, cross_val_score

TITLE = "ANSUR II: 93 body measurements, gender as the confounder"
SHIFTS = {  # of gender, of features
    "target shift + feature shift": (True, True),
    "target shift only": (True, False),
    "feature shift only": (False, True),
    "no shift": (False, False),
}
FAMILIES = ("affine", "location-scale")
POSITIVE = "affine det>0"  # as the text says; the published runs did not enforce it
SCENARIOS = [f"{family}, {shift}" for family in FAMILIES for shift in SHIFTS]
SCENARIOS += [f"{POSITIVE}, {shift}" for shift, (_, feature) in SHIFTS.items() if feature]
QUICK = [f"{family}, target shift + feature shift" for family in FAMILIES]
TABPFN = QUICK
SEEDS = range(4)
TABPFN_SEEDS = 3
TASKS = ("Gender", "Height")
# fitted the other way round too, which costs a classifier each
ON_ADAPTED = (
    "Gaussian OT",
    "MMD",
    "ConDo KL (as published)",
    "ConDo KL",
    "ConDo MMD",
    "condokit",
    "condokit auto",
)
DEPTH = 3  # of trees: more than twice as fast with 93 features, as accurate on the seed tried
QUANTILES = np.linspace(0, 1, 21)  # of the errors of single features
ACCURACIES = [f"acc_{task}{kind}" for kind in ("", "_onadapted") for task in TASKS]
METRICS = {
    "rmse": "rmse",
    **{f"{metric}{suffix}": metric for suffix in ("", "_logreg") for metric in ACCURACIES},
}
BEST = {
    "rmse": "low",
    "heldout_rmse": "low",
    "A_error": "low",
    "b_error": "low",
    **{f"{metric}{suffix}": "high" for suffix in ("", "_logreg") for metric in ACCURACIES},
}
# published name: the same here
REPEATED = {
    **REPEATED,
    "Source": "source (training rows)",
    "Target (pre-feature shift)": "target before shift",
}


def published_key(scenario):
    return None if scenario.startswith(POSITIVE) else ("ansur", scenario)


@dataclass(frozen=True)
class Problem(TwoDomains):
    """Two domains, heldout query rows, the true map from query to reference, and labels."""

    truth: np.ndarray
    X_heldout: np.ndarray
    truth_heldout: np.ndarray
    A: np.ndarray
    b: np.ndarray
    labels_query: dict
    labels_reference: dict

    def swapped(self):
        """Return the problem of mapping reference rows to observed query rows."""
        return replace(
            self,
            X_query=self.X_reference,
            X_reference=self.X_query,
            Z_query=self.Z_reference,
            Z_reference=self.Z_query,
        )


def parts(scenario):
    """Return the family of a scenario, and whether gender and features shift."""
    family, shift = scenario.split(", ")
    return family, *SHIFTS[shift]


def draw(family, gender_shift, feature_shift, seed):
    """Draw people and then the shift from one stream; heldout people from another."""
    rng = np.random.RandomState(seed)
    X, is_man, query, reference, rows, middle, spread = people(gender_shift, rng)
    mix, offset = _shift(family, rng) if feature_shift else (np.eye(93), np.zeros(93))
    data = measurements()
    heldout = (data.X[_unused(rows, data.gender == "Male", seed)] - middle) / spread
    truth = X[query]
    A = np.linalg.inv(mix).T
    gender, is_tall = data.gender[rows], data.height[rows] > 66
    labels_query, labels_reference = (
        {"Gender": is_man[side], "Height": is_tall[side]} for side in (query, reference)
    )
    return Problem(
        truth @ mix + offset,
        X[reference],
        gender[query],
        gender[reference],
        truth,
        heldout @ mix + offset,
        heldout,
        A,
        -A @ offset,
        labels_query,
        labels_reference,
    )


def _shift(family, rng):
    """Draw matrix and offset; rows are multiplied from the left."""
    if family == "location-scale":
        return np.diag(rng.uniform(0.5, 2, 93)), rng.uniform(0.5, 2, 93)
    left = ortho_group.rvs(93, random_state=rng)
    sizes = rng.uniform(0.5, 2, 93)
    right = ortho_group.rvs(93, random_state=rng)
    if family == POSITIVE and np.linalg.det(left) * np.linalg.det(right) < 0:
        left[:, -1] *= -1
    return left * sizes @ right, np.zeros(93)


def _unused(rows, is_man, seed):
    """Return 250 men and 250 women of whom nothing is known."""
    rng = np.random.default_rng(seed)
    left = np.setdiff1d(np.arange(len(is_man)), rows)
    return np.concatenate(
        [rng.choice(left[is_man[left] == sex], 250, replace=False) for sex in (True, False)]
    )


@cache
def trained(gender_shift, seed, quick):
    """Train all classifiers on reference rows; return them and what they reach unshifted.

    The same for all shifts of features, which come later in the stream.
    """
    problem = draw("location-scale", gender_shift, False, seed)
    X, truth = problem.X_reference, problem.truth
    models, rows = {}, {"source (training rows)": {}, "target before shift": {}}
    if not quick:
        rows["source (cross-validated)"] = {}
    for task in TASKS:
        y, y_query = problem.labels_reference[task], problem.labels_query[task]
        for suffix, name in classifiers.chosen().items():
            metric = f"acc_{task}{suffix}"
            model = models[metric] = classifiers.make(name, DEPTH).fit(X, y)
            rows["source (training rows)"][metric] = _accuracy(model, X, y)
            rows["target before shift"][metric] = _accuracy(model, truth, y_query)
            if not quick:
                folds = StratifiedKFold(5, shuffle=True, random_state=0)
                scores = cross_val_score(classifiers.make(name, DEPTH), X, y, cv=folds)
                rows["source (cross-validated)"][metric] = float(scores.mean())
    return models, rows


def run(scenario, seed, quick=False):
    family, gender_shift, feature_shift = parts(scenario)
    problem = draw(family, gender_shift, feature_shift, seed)
    models, unshifted = trained(gender_shift, seed, quick)
    for name, accuracies in unshifted.items():
        yield {"method": name, **accuracies}
    fits = methods("affine" if family == POSITIVE else family, seed=seed)
    names = () if family == POSITIVE else ON_ADAPTED[:1] if quick else ON_ADAPTED
    turned = {name: fits[name] for name in names}
    on_adapted = {name: fitted for name, fitted, _ in fit_all(problem.swapped(), turned)}
    before = _by_feature(problem.X_query, problem.truth) if feature_shift else 1.0
    for name, fitted, seconds in fit_all(problem, fits, SLOW if quick else ()):
        adapted = fitted(problem.X_query)
        yield {
            "method": name,
            "rmse": rmse(adapted, problem.truth),
            "heldout_rmse": rmse(fitted(problem.X_heldout), problem.truth_heldout),
            **parameter_errors(fitted, problem.A, problem.b),
            **{
                metric: _accuracy(model, adapted, problem.labels_query[metric.split("_")[1]])
                for metric, model in models.items()
            },
            **(_on_adapted(on_adapted[name], problem) if name in on_adapted else {}),
            "seconds": seconds,
            "by_feature": _text(_by_feature(adapted, problem.truth) / before),
        }


def _on_adapted(fitted, problem):
    """Return accuracies on raw query rows of classifiers trained on mapped reference rows."""
    X = fitted(problem.X_reference)
    return {
        f"acc_{task}_onadapted{suffix}": _accuracy(
            classifiers.make(name, DEPTH).fit(X, problem.labels_reference[task]),
            problem.X_query,
            problem.labels_query[task],
        )
        for task in TASKS
        for suffix, name in classifiers.chosen().items()
    }


def _accuracy(model, X, y):
    return float(np.mean(model.predict(X) == y))


def _by_feature(X, truth):
    return np.sqrt(np.mean((X - truth) ** 2, axis=0))


def _text(errors):
    """Write the quantiles of the errors of single features into one cell."""
    return " ".join(f"{value:.3g}" for value in np.quantile(errors, QUANTILES))


def errors_of_features(table, scenario, method):
    """Return the errors of single features over all seeds, read from their quantiles."""
    rows = table[(table["scenario"] == scenario) & (table["method"] == method)]
    middle = (np.arange(93) + 0.5) / 93
    return np.concatenate(
        [np.interp(middle, QUANTILES, np.array(cell.split(), float)) for cell in rows["by_feature"]]
    )


def figures(table, folder):
    for shift, name in zip(SHIFTS, ("both", "gender", "features", "none")):
        _overview(table, shift, folder, name)
    _trained_on_adapted(table, folder)
    _parameters(table, folder)


def _overview(table, shift, folder, name):
    """Accuracies and the densities of errors of single features, for both families."""
    shown = ("source (training rows)", "source (cross-validated)", "target before shift", "none")
    figure, panels = subplots(2, 3, size=(11, 6.5), width_ratios=(1, 1, 1.1))
    for row, family in zip(panels, FAMILIES):
        scenario = f"{family}, {shift}"
        of = table[table["scenario"] == scenario]
        for axes, task in zip(row, TASKS):
            metric = f"acc_{task}"
            horizontal(axes, of, metric, (*shown, *ON_ADAPTED), f"{metric}_logreg")
            axes.set_xlim(0, 1.02)
            axes.set_title(f"{family}: {task.lower()}")
        row[1].set_yticklabels([])
        _densities(row[2], table, scenario)
        row[2].set_title(f"{family}: single features")
    for axes in panels[-1, :2]:
        axes.set_xlabel("accuracy (diamonds: logistic regression)")
    relative = SHIFTS[shift][1]
    panels[-1, 2].set_xlabel("rMSE after / before" if relative else "rMSE")
    figure.suptitle(shift)
    save(figure, folder, f"ansur-{name}")


def _densities(axes, table, scenario):
    tallest = []
    for method in ON_ADAPTED:
        values = errors_of_features(table, scenario, method)
        if values.std() < 0.02:  # too narrow for a curve
            axes.axvline(values.mean(), color=COLORS[method], label=method, linestyle=":")
            continue
        x = np.linspace(values.min(), min(values.max(), 3), 300)
        density = gaussian_kde(values)(x)
        tallest.append(density.max())
        # condokit and condokit auto may coincide
        style = "--" if method == "condokit auto" else "-"
        axes.plot(x, density, style, color=COLORS[method], label=method)
    axes.set_ylim(0, 1.5 * np.median(tallest))
    axes.set_xlim(0)
    axes.set_ylabel("density")
    if parts(scenario)[2]:
        axes.axvline(1, color="0.6", linewidth=0.8, zorder=0)


def _trained_on_adapted(table, folder):
    figure, panels = subplots(2, 2, size=(8, 5.5))
    for row, family in zip(panels, FAMILIES):
        of = table[table["scenario"] == f"{family}, target shift + feature shift"]
        for axes, task in zip(row, TASKS):
            metric = f"acc_{task}_onadapted"
            horizontal(axes, of, metric, ON_ADAPTED, f"{metric}_logreg")
            axes.set_xlim(0, 1.02)
            axes.set_title(f"{family}: {task.lower()}")
        row[1].set_yticklabels([])
    for axes in panels[-1]:
        axes.set_xlabel("accuracy (diamonds: logistic regression)")
    figure.suptitle("Classifiers trained on mapped source rows, applied to the target as observed")
    save(figure, folder, "ansur-onadapted")


def _parameters(table, folder):
    figure, panels = subplots(1, 2, size=(8, 3.6))
    for axes, family in zip(panels[0], FAMILIES):
        groups = table[table["scenario"] == f"{family}, target shift + feature shift"].groupby(
            "method"
        )
        columns = {"b": groups["b_error"], "A": groups["A_error"]}
        values, spreads = (
            pd.concat({name: how(column) for name, column in columns.items()})
            for how in (lambda c: c.mean(), lambda c: c.std(ddof=0))
        )
        bars(axes, values, spreads, ON_ADAPTED)
        axes.set_yscale("log")
        axes.set_title(family)
    panels[0, 0].set_ylabel("norm of the error")
    legend(figure, panels[0, 0])
    save(figure, folder, "ansur-parameters")


KL, AS_RUN = "ConDo KL", "ConDo KL (as published)"
LISTED = ("Gaussian OT", "MMD", AS_RUN, KL, "ConDo MMD", "condokit auto")


def _of(shift):
    return [f"{family}, {shift}" for family in FAMILIES]


BOTH = _of("target shift + feature shift")


def _claim(failures, scenarios, metrics):
    """Return a claim that holds if `failures(table, name of ConDo KL)` finds none.

    It is judged with ConDo KL as the text has it, and tells of the published one too.
    """

    def claim(table):
        found, as_run = (list(failures(table, kl)) for kl in (KL, AS_RUN))
        numbers = "; ".join(
            f"{scenario.split(', ')[0]} {metric}: {listed(table, scenario, metric, LISTED)}"
            for scenario in scenarios
            for metric in metrics
        )
        return not found, " ".join(
            [
                f"Fails for {'; '.join(found)}." if found else "Holds throughout.",
                f"With '{AS_RUN}' it {'fails for ' + '; '.join(as_run) if as_run else 'holds'}.",
                f"Means: {numbers}.",
            ]
        )

    return claim


def _against_vanilla(test, scenarios, metrics):
    """Return the claim that ConDo methods pass a test against their counterparts."""

    def failures(table, kl):
        for scenario in scenarios:
            for metric in metrics:
                for condo, vanilla in ((kl, "Gaussian OT"), ("ConDo MMD", "MMD")):
                    if not test(table, scenario, condo, vanilla, metric, BEST[metric]):
                        yield f"{scenario.split(', ')[0]} {metric}, {condo} against {vanilla}"

    return _claim(failures, scenarios, metrics)


def _not_best(table, kl):
    for scenario in BOTH:
        for metric in METRICS_SHOWN:
            for other in ("Gaussian OT", "MMD", "ConDo MMD"):
                if not is_noninferior(table, scenario, kl, other, metric, BEST[metric]):
                    yield f"{scenario.split(', ')[0]} {metric}, {other} is better"


def _less_worsened(table):
    shares = {
        s: {m: float(np.mean(errors_of_features(table, s, m) > 1)) for m in LISTED} for s in BOTH
    }
    holds, as_run = (
        all(
            of[condo] <= of[vanilla]
            for of in shares.values()
            for condo, vanilla in ((kl, "Gaussian OT"), ("ConDo MMD", "MMD"))
        )
        for kl in (KL, AS_RUN)
    )
    numbers = "; ".join(
        f"{s.split(', ')[0]}: " + ", ".join(f"{m} {share:.0%}" for m, share in of.items())
        for s, of in shares.items()
    )
    return holds, f"With '{AS_RUN}' it {word(as_run)}. Features made worse: {numbers}."


def _less_for_affine(table, kl):
    for condo, vanilla in ((kl, "Gaussian OT"), ("ConDo MMD", "MMD")):
        for metric in ON_ADAPTED_METRICS:
            affine, diagonal = (gain(table, s, condo, vanilla, metric, "high")[0] for s in BOTH)
            if affine <= diagonal:
                yield f"{metric}, {condo} over {vanilla}"


def _unlike(table, kl):
    """Find errors of parameters whose means differ by more than their spread over simulations."""
    for scenario in BOTH:
        rows = table[table["scenario"] == scenario].groupby("method")
        for metric in PARAMETERS:
            of = [rows[metric].get_group(m) for m in ("MMD", kl, "ConDo MMD")]
            centres = [x.mean() for x in of]
            if max(centres) - min(centres) > max(x.std(ddof=0) for x in of):
                yield f"{scenario.split(', ')[0]} {metric}"


def _ot_not_as_said(table, kl):
    for scenario, metrics, sign in ((BOTH[0], PARAMETERS[:1], -1), (BOTH[1], PARAMETERS, 1)):
        for metric in metrics:
            ot = mean(table, scenario, "Gaussian OT", metric)
            for other in ("MMD", kl, "ConDo MMD"):
                if sign * ot > sign * mean(table, scenario, other, metric):
                    yield f"{scenario.split(', ')[0]} {metric}, against {other}"


METRICS_SHOWN = ("rmse", "acc_Gender", "acc_Height")
PARAMETERS = ("A_error", "b_error")
ON_ADAPTED_METRICS = [f"acc_{task}_onadapted" for task in TASKS]


CLAIMS = [
    (
        "ConDo improves upon vanilla adaptation (gender and feature shift).",
        _against_vanilla(improves, BOTH, METRICS_SHOWN),
    ),
    (
        "ConDo Gaussian KLD provides the best performance across all metrics.",
        _claim(_not_best, BOTH, METRICS_SHOWN),
    ),
    ("ConDo is less likely to produce worsened data (relative rMSE > 1).", _less_worsened),
    (
        "The same pattern with classifiers trained on adapted data: ConDo methods outperform their "
        "baseline counterparts",
        _against_vanilla(improves, BOTH, ON_ADAPTED_METRICS),
    ),
    (
        "... especially for the affine transformation.",
        _claim(_less_for_affine, BOTH, ON_ADAPTED_METRICS),
    ),
    (
        "No systematic difference due to ConDo in parameters: MMD, ConDo Gaussian KLD and ConDo "
        "MMD perform equally well.",
        _claim(_unlike, BOTH, PARAMETERS),
    ),
    (
        "Gaussian OT performs poorly on affine parameters, while outcompeting the others on "
        "location-scale parameters.",
        _claim(_ot_not_as_said, BOTH, PARAMETERS),
    ),
    (
        "Improvement where only the distribution of gender shifts.",
        _against_vanilla(improves, _of("target shift only"), METRICS_SHOWN),
    ),
    (
        "Noninferiority where only features shift.",
        _against_vanilla(is_noninferior, _of("feature shift only"), METRICS_SHOWN),
    ),
    (
        "Noninferiority where nothing shifts.",
        _against_vanilla(is_noninferior, _of("no shift"), METRICS_SHOWN),
    ),
]
NOTES = [
    "The text draws affine shifts with a positive determinant. The published runs did not enforce "
    "it (simulations 0, 2, 3, 4 and 7 have a negative one, which a reverse-KL fit that starts at "
    "the identity cannot reach). Scenarios named 'det>0' negate the last column of U where needed; "
    "nothing was published for them.",
    "'ConDo KL (as published)' repeats the published numbers: its centring means are divided once "
    "more by the number of genders, which halves them, and the affine fit stops after ten steps of "
    "trust-region Newton-CG. 'ConDo KL' has neither; its affine objective, minimised further, fits "
    "noise, since a gender has as few as 125 rows for 93 features. It ends at condokit's limit of "
    "100 iterations (seen in simulation 0), so its affine errors depend on that limit.",
    "Where features do not shift, the slip pulls offsets to zero, which is the truth there: the "
    "published ConDo KLD looks better than an honest unshrunk estimate.",
    "The MMDs have 5 epochs of 63 steps of 0.001: no parameter can move by more than about 0.32, "
    "but scales and offsets are off by up to 1 and 4. Their published errors show the number of "
    "steps.",
    "The caption has relative rMSE as before / after; after / before is meant. The published "
    "curves are ratios of mean squared errors, and mean squared errors where features do not "
    "shift; here they are roots. Curves are drawn from the 21 quantiles that the table keeps.",
    "The published accuracy of 'Source' is that on the rows the classifier was trained on. The "
    "cross-validated one stands beside it.",
    "66 inches is not the median height: it is 68 over all people, and 67 if both sexes weigh "
    "the same.",
    "Published accuracies are TabPFN's. Compare the order of methods and the distance to 'target "
    "before shift', not the values.",
    "Published errors are those of the rows that adapters were fitted to. 'heldout_rmse' is that "
    "of 250 men and 250 women who were not drawn, under the same shift.",
    "ComBat moves every feature by itself, so it cannot undo an affine shift. New rows get the "
    "commonest gender of the reference, since theirs is not known.",
    f"Gradient boosting has trees of depth {DEPTH}, to save time; seven settings were tried on "
    "seed 1.",
    "The other direction (classifiers trained on adapted rows) was fitted for the published "
    "methods and for condokit, and not for 'det>0'.",
]
REASONS = {
    "target shift only": "Ours is at 'target before shift', which nothing should exceed.",
    "no shift": "Ours is at 'target before shift', which nothing should exceed.",
    "affine": "Near the ceiling ('target before shift'). The map is closer to the truth (rmse), "
    "its offset is not (b_error), and the means of the sexes depend on it.",
}
