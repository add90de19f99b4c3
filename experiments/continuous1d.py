"""One feature and a continuous confounder: 8 settings x 3 effects, train and heldout."""

import numpy as np
from compare import of_the_paper
from figures import SHOWN, bars, legend, means, save, subplots
from methods import COLORS, fit_all, fits_of, methods, parameter_errors, rmse

from condokit.datasets import EFFECTS, make_continuous1d

TITLE = "One feature, a continuous confounder"
FRESH = True
SETTINGS = [
    (noise, confounder, feature)
    for noise in (False, True)
    for confounder in (True, False)
    for feature in (True, False)
]


def _name(noise, confounder, feature):
    return "-".join(
        [
            "Noisy" if noise else "NoiseFree",
            "TargetShift" if confounder else "NoTargetShift",
            "FeatureShift" if feature else "NoFeatureShift",
        ]
    )


PUBLISHED_EFFECTS = dict(
    zip(EFFECTS, ("Homoscedastic Linear", "Heteroscedastic Linear", "Nonlinear"))
)
SCENARIOS = [f"{_name(*setting)} / {effect}" for setting in SETTINGS for effect in EFFECTS]
TEXT = [f"text (sd 1): {_name(*SETTINGS[0])} / homoscedastic"]
SCENARIOS += TEXT
QUICK = SCENARIOS[:6]
METRICS = {"heldout_rmse": "test_rmse", "train_rmse": "train_rmse"}
BEST = dict.fromkeys(METRICS, "low")


def published_key(scenario):
    if scenario in TEXT:
        return None
    setting, effect = scenario.split(" / ")
    return "continuous1d", f"{setting} / {PUBLISHED_EFFECTS[effect]}"


def draw(scenario, seed):
    """Draw one problem; all settings of a seed come from one stream."""
    if scenario in TEXT:
        return make_continuous1d("homoscedastic", sd=1.0, random_state=seed)
    rng = np.random.RandomState(seed)
    for noise, confounder, feature in SETTINGS:
        for effect in EFFECTS:
            problem = make_continuous1d(
                effect,
                confounder_shift=confounder,
                scale=2.0 if feature else 1.0,
                offset=5.0 if feature else 0.0,
                noise=float(noise),
                random_state=rng,
            )
            if scenario == f"{_name(noise, confounder, feature)} / {effect}":
                return problem
    raise ValueError(scenario)


def run(scenario, seed, quick=False):
    return measure(draw(scenario, seed), seed, quick)


def measure(problem, seed, quick, leave_out=()):
    """Fit all methods; yield their errors on the query and on heldout rows, and their maps."""
    yield {"method": "oracle", **errors(problem, problem.A.item(), problem.b.item())}
    fits = methods(epochs=100, learning_rate=0.01, continuous=True, seed=seed)
    for name, fitted, seconds in fit_all(problem, fits_of(fits, seed, quick), leave_out):
        yield {
            "method": name,
            **errors(problem, fitted.A.item(), fitted.b.item()),
            **parameter_errors(fitted, problem.A, problem.b),
            "seconds": seconds,
        }


def errors(problem, a, b):
    return {
        "train_rmse": rmse(a * problem.X_query + b, problem.truth),
        "heldout_rmse": rmse(a * problem.X_heldout + b, problem.truth_heldout),
        "a": a,
        "b": b,
    }


def figures(table, folder):
    table = _published(table)
    for noise in (False, True):
        _scatter(table, _name(noise, True, True), folder)
    for metric in METRICS:
        _summary(table, metric, folder)
    _parameters(table, folder)


def _scatter(table, setting, folder):
    """Points of the last simulation, errors averaged over all."""
    shown = ("none", "Gaussian OT", "MMD", "ConDo KL", "ConDo MMD", "condokit auto")
    figure, panels = subplots(len(shown), 3, size=(9, 11), sharex=True, sharey=True)
    for column, effect in zip(panels.T, EFFECTS):
        scenario = f"{setting} / {effect}"
        rows = table[table["scenario"] == scenario]
        last = rows["seed"].max()
        problem = draw(scenario, last)
        for axes, method in zip(column, shown):
            of = rows[rows["method"] == method]
            a, b = of.loc[of["seed"] == last, ["a", "b"]].iloc[0]
            axes.scatter(problem.z_reference, problem.X_reference, 5, "tab:blue", label="reference")
            axes.scatter(problem.z_query, problem.X_query, 5, "tab:orange", label="observed query")
            axes.scatter(problem.z_query, problem.truth, 5, "tab:green", label="truth of the query")
            if method != "none":
                adapted = a * problem.X_query + b
                axes.scatter(problem.z_query, adapted, 5, "tab:red", label="adapted query")
            train, heldout = of["train_rmse"].mean(), of["heldout_rmse"].mean()
            axes.text(
                0.03, 0.95, f"rMSE: {train:.2f} ({heldout:.2f})", va="top", transform=axes.transAxes
            )
            if effect == EFFECTS[0]:
                axes.set_ylabel("before" if method == "none" else method)
        column[0].set_title(effect)
        column[-1].set_xlabel("confounder")
    legend(figure, panels[1, 0], markerscale=2)
    save(figure, folder, f"continuous1d-{'noisy-' if setting.startswith('Noisy') else ''}scatter")


def _summary(table, metric, folder):
    figure, panels = subplots(4, 2, size=(10, 9), sharey="row")
    mean, _ = means(table, metric)
    for (noise, *shifts), axes in zip(SETTINGS, panels.T.ravel()):
        setting = _name(noise, *shifts)
        bars(axes, mean, groups=[f"{setting} / {effect}" for effect in EFFECTS])
        axes.set_xticks(range(3), EFFECTS)
        axes.set_title(setting)
        axes.set_ylabel(f"{metric.split('_')[0]} rMSE")
    legend(figure, panels[0, 0])
    save(figure, folder, f"continuous1d-{metric.split('_')[0]}")


def _parameters(table, folder):
    figure, panels = subplots(4, 2, size=(10, 9))
    drawn = [
        ("b", *means(table, "b_error"), 0.0, "o", 4),
        ("A", *means(table, "A_error"), 0.05, "_", 8),
    ]
    for (noise, *shifts), axes in zip(SETTINGS, panels.T.ravel()):
        setting = _name(noise, *shifts)
        for k, effect in enumerate(EFFECTS):
            for j, method in enumerate(SHOWN):
                key = (f"{setting} / {effect}", method)
                place = k + (j - 2.5) * 0.13
                for name, mean, sd, aside, mark, size in drawn:
                    axes.errorbar(
                        place + aside,
                        mean[key],
                        sd[key],
                        color=COLORS[method],
                        marker=mark,
                        ms=size,
                        capsize=1.5,
                        label=f"{method}: {name}" if k == 0 else None,
                    )
        axes.set_yscale("symlog", linthresh=0.01)
        axes.set_ylim(0)
        axes.set_xticks(range(3), EFFECTS)
        axes.set_title(setting)
        axes.set_ylabel("parameter error")
    legend(figure, panels[0, 0])
    save(figure, folder, "continuous1d-parameters")


def _published(table):
    """Return what can be compared with published numbers."""
    return of_the_paper(table)[lambda rows: ~rows["scenario"].isin(TEXT)]


def _ratio(table, method, with_shift):
    """Error of a method divided by that of the better baseline, in every setting."""
    mean, _ = means(_published(table), "heldout_rmse")
    wanted = "-TargetShift-" if with_shift else "-NoTargetShift-"
    return {
        scenario: mean[scenario, method] / min(mean[scenario, "Gaussian OT"], mean[scenario, "MMD"])
        for scenario in dict.fromkeys(s for s, _ in mean.index)
        if wanted in scenario
    }


def _claim(with_shift, limit):
    def check(table):
        text, holds = [], True
        for method in ("ConDo KL", "ConDo MMD", "condokit", "condokit auto"):
            ratios = _ratio(table, method, with_shift)
            worst = max(ratios, key=ratios.get)
            text.append(f"{method} at most {ratios[worst]:.2f} ({worst})")
            holds &= not method.startswith("ConDo") or ratios[worst] < limit
        return holds, "heldout rMSE divided by that of the better baseline: " + "; ".join(text)

    return check


def _parameters_better(table):
    rows = _published(table)
    rows = rows[rows["scenario"].str.contains("-TargetShift-")]
    text, holds = [], True
    for metric in ("A_error", "b_error"):
        mean, _ = means(rows, metric)
        by = mean.unstack()
        best = by[["Gaussian OT", "MMD"]].min(axis=1)
        for method in ("ConDo KL", "ConDo MMD", "condokit", "condokit auto"):
            won = int((by[method] < best).sum())
            text.append(f"{metric} {method} {won} of {len(by)}")
            holds &= not method.startswith("ConDo") or won == len(by)
    return holds, "settings with target shift in which both baselines err more: " + ", ".join(text)


CLAIMS = [
    (
        "ConDo strongly outperforms vanilla adaptation whenever there is target shift",
        _claim(True, 0.6),
    ),
    ("ConDo is not inferior without target shift (within 10%)", _claim(False, 1.1)),
    ("ConDo improves the estimated parameters whenever there is target shift", _parameters_better),
]
NOTES = [
    "The text gives the homoscedastic effect a standard deviation of 1, the published numbers were "
    "made with 2. Both are run; the row that starts with `text` has 1.",
    "The published ConDo KLD divides its centring means by the number of prior points a second "
    "time, so its offset is always near zero. Where there is no feature shift that is a free "
    "shrinkage towards the truth; the repeated method has no such slip, and `condokit auto` finds "
    "these settings by choosing among maps.",
    "The published imputations come from another implementation of chained equations, and the "
    "published MMDs were not seeded: these two agree within noise only.",
    "The caption of the scatter figure says that the data are noise-free, its label says noisy; "
    "both are drawn.",
]
