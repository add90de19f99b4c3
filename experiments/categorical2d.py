"""Rings in the plane with a categorical confounder: affine maps, two classification tasks."""

import numpy as np
from compare import by_method, of_the_paper
from figures import SHOWN, bars, legend, means, save, subplots
from methods import fit_all, fits_of, methods, parameter_errors, rmse

from condokit.datasets import SCENARIOS as GENERATED
from condokit.datasets import make_categorical2d

TITLE = "Two features, a categorical confounder"
SCENARIOS = ["No Confounding", "Confounded", "Confounded - Random Transform"]
QUICK = SCENARIOS
FRESH = True
METRICS = {"heldout_rmse": "test_rmse", "train_rmse": "train_rmse"}
BEST = dict.fromkeys(METRICS, "low")


def published_key(scenario):
    return "categorical2d", scenario


def draw(scenario, seed):
    """Draw one problem; the scenarios of a seed come from one stream."""
    rng = np.random.RandomState(seed)
    for name, generated in zip(SCENARIOS, GENERATED):
        problem = make_categorical2d(generated, random_state=rng)
        if name == scenario:
            return problem
    raise ValueError(scenario)


def run(scenario, seed, quick=False):
    problem = draw(scenario, seed)
    fits = methods("affine", epochs=100, learning_rate=0.01, seed=seed)
    fits = {"oracle": lambda p: p, **fits_of(fits, seed, quick)}
    for name, fitted, seconds in fit_all(problem, fits):
        adapt = fitted if name != "oracle" else (lambda X: X @ problem.A.T + problem.b)
        up_heldout = np.arange(200) < 100
        yield {
            "method": name,
            "train_rmse": rmse(adapt(problem.X_query), problem.truth),
            "heldout_rmse": rmse(adapt(problem.X_heldout), problem.truth_heldout),
            **_accuracies(
                problem, adapt(problem.X_query), problem.X_query, problem.Z_query == "up"
            ),
            **{
                f"heldout_{k}": v
                for k, v in _accuracies(
                    problem, adapt(problem.X_heldout), problem.X_heldout, up_heldout
                ).items()
            },
            **parameter_errors(fitted, problem.A, problem.b),
            **dict(zip(("A00", "A01", "A10", "A11", "b0", "b1"), [*fitted.A.ravel(), *fitted.b])),
            "seconds": seconds,
        }


def _accuracies(problem, adapted, raw, up):
    """Apply fixed rules to rows carried back by the true map: up if y > 1, right if x > 0."""
    back = (adapted - problem.b) @ np.linalg.inv(problem.A).T
    return {
        "acc_up": float(np.mean((back[:, 1] > 1) == up)),
        "acc_right": float(np.mean((back[:, 0] > 0) == (raw[:, 0] > 0))),
        "acc_published_rule": float(np.mean((back[:, 1] > 1.5) == up)),
    }


def figures(table, folder):
    table = of_the_paper(table)
    _scatter(table, folder)
    figure, panels = subplots(1, 2, size=(11, 3.6))
    for axes, metric in zip(panels[0], ("A_error", "b_error")):
        bars(axes, *means(table, metric), groups=SCENARIOS)
        axes.set_title(f"error of {metric[0]}")
        axes.set_ylim(0)
        axes.tick_params(axis="x", labelsize=7)
    legend(figure, panels[0, 0])
    save(figure, folder, "categorical2d-parameters")


def _scatter(table, folder):
    shown = ("none", *SHOWN[:4], "condokit auto")
    figure, panels = subplots(len(shown), 3, size=(11, 19))
    for column, scenario in zip(panels.T, SCENARIOS):
        rows = table[table["scenario"] == scenario]
        last = rows["seed"].max()
        problem = draw(scenario, last)
        line = np.column_stack([np.linspace(-1.6, 1.6, 50), np.ones(50)])
        for axes, method in zip(column, shown):
            of = rows[rows["method"] == method]
            numbers = of[of["seed"] == last].iloc[0]
            A = numbers[["A00", "A01", "A10", "A11"]].to_numpy(float).reshape(2, 2)
            adapted = problem.X_query @ A.T + numbers[["b0", "b1"]].to_numpy(float)
            axes.scatter(*problem.X_reference.T, 5, "tab:blue", label="reference")
            axes.scatter(*problem.X_query.T, 5, "tab:orange", label="observed query")
            axes.scatter(*problem.truth.T, 14, "tab:green", marker="+", label="truth of the query")
            if method != "none":
                pairs = np.stack([problem.X_query[::2], adapted[::2]], axis=1)
                for pair in pairs:
                    axes.plot(*pair.T, color="0.7", linewidth=0.3, zorder=0)
                axes.scatter(*adapted.T, 12, "tab:red", marker="x", label="adapted query", lw=0.8)
            axes.plot(*line.T, "c--", label="boundary of the rule")
            axes.plot(*(line @ problem.A.T + problem.b).T, "c--")
            axes.set_title(
                f"rMSE {of['train_rmse'].mean():.2f} ({of['heldout_rmse'].mean():.2f}), "
                f"up {of['acc_up'].mean():.2f} ({of['heldout_acc_up'].mean():.2f}), "
                f"right {of['acc_right'].mean():.2f} ({of['heldout_acc_right'].mean():.2f})",
                fontsize=7.5,
            )
            if scenario == SCENARIOS[0]:
                axes.set_ylabel("before" if method == "none" else method)
        column[-1].set_xlabel(scenario)
    legend(figure, panels[1, 0])
    save(figure, folder, "categorical2d")


def _mean(table, metric):
    return by_method(table, metric)[SCENARIOS]


def _better_than(metric, sign, label):
    """Check that both ConDo methods beat both baselines in the confounded scenarios."""

    def check(table):
        mean = sign * _mean(table, metric)[SCENARIOS[1:]]
        holds = mean.loc[["ConDo KL", "ConDo MMD"]].max() < mean.loc[["Gaussian OT", "MMD"]].min()
        text = "; ".join(
            f"{m} " + " / ".join(f"{abs(x):.3f}" for x in mean.loc[m])
            for m in (*SHOWN[:4], "condokit", "condokit auto")
        )
        return bool(holds.all()), f"{label}, {' / '.join(SCENARIOS[1:])}: {text}"

    return check


CLAIMS = [
    ("ConDo reduces the rMSE under confounding", _better_than("heldout_rmse", 1, "heldout rMSE")),
    (
        "ConDo improves the accuracy of the up/down task under confounding",
        _better_than("heldout_acc_up", -1, "heldout accuracy"),
    ),
    (
        "ConDo improves the accuracy of the left/right task under confounding",
        _better_than("heldout_acc_right", -1, "heldout accuracy"),
    ),
    (
        "ConDo improves the estimate of A under confounding",
        _better_than("A_error", 1, "error of A"),
    ),
    (
        "ConDo improves the estimate of b under confounding",
        _better_than("b_error", 1, "error of b"),
    ),
]
NOTES = [
    "The published accuracies use a threshold of 1.5 instead of the drawn boundary 1, and those of "
    "the heldout rows of the confounded scenarios compare with the labels of the training rows. "
    "Here the rule is up if y > 1 after carrying rows back by the true map, with their own labels; "
    "`acc_published_rule` of the table has the other threshold.",
    "The text announces a left/right task that was never published; it is here.",
    "The text draws the radius from N(0, 1), which gives no ring; the published data are points on "
    "the unit circle with noise.",
]
REASONS = {
    "No Confounding": "Both domains have exactly the same shares of both classes here, so that "
    "matching all rows may use the distance between the classes as well. A method that is given "
    "the confounder must not; the repeated ConDo KL and ours leave the same error.",
}
