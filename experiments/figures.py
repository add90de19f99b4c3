"""The style that all figures share."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from methods import COLORS

STYLE = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.dpi": 100,
    "font.size": 9,
    "legend.frameon": False,
    "savefig.bbox": "tight",
    "savefig.metadata": {"Software": None},
}
# the paper's four, then what is new
SHOWN = ("Gaussian OT", "MMD", "ConDo KL", "ConDo MMD", "condokit", "condokit auto")


def subplots(*shape, size, **options):
    """Return figure and axes in the common style."""
    with plt.rc_context({k: v for k, v in STYLE.items() if not k.startswith("savefig")}):
        return plt.subplots(*shape, figsize=size, layout="constrained", squeeze=False, **options)


def save(figure, folder, name):
    """Write a figure without dates, so that the same numbers give the same file."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def means(table, metric, by=("scenario", "method")):
    """Return mean and standard deviation (divisor n) over seeds."""
    groups = table.groupby(list(by), sort=False)[metric]
    return groups.mean(), groups.std(ddof=0)


def lines(axes, table, metric, x, methods=SHOWN):
    """Draw the mean of a metric against x for each method, with standard deviations."""
    for k, method in enumerate(methods):
        rows = table[table["method"] == method].groupby(x)[metric]
        if len(rows) == 0:
            continue
        mean, sd = rows.mean(), rows.std(ddof=0)
        axes.errorbar(
            mean.index * 1.02 ** (k - len(methods) / 2),  # so that bars do not hide each other
            mean,
            sd,
            color=COLORS[method],
            marker="x",
            capsize=2,
            linewidth=1.2,
            label=method,
        )


def bars(axes, values, errors=None, methods=SHOWN, groups=None):
    """Draw bars for methods within groups; `values` is indexed by (group, method)."""
    groups = list(groups if groups is not None else dict.fromkeys(g for g, _ in values.index))
    width = 0.8 / len(methods)
    for k, method in enumerate(methods):
        pairs = [(g, method) for g in groups]
        heights = [values.get(pair, np.nan) for pair in pairs]
        spread = None if errors is None else [errors.get(pair, np.nan) for pair in pairs]
        place = np.arange(len(groups)) + (k - (len(methods) - 1) / 2) * width
        axes.bar(
            place,
            heights,
            width,
            yerr=spread,
            color=COLORS[method],
            label=method,
            capsize=1.5,
            error_kw={"linewidth": 0.8},
        )
    axes.set_xticks(np.arange(len(groups)), groups)


def horizontal(axes, table, metric, methods, marked=None):
    """Draw a bar for each method from top to bottom; diamonds are the means of `marked`."""
    groups = table.groupby("method")
    mean, sd = groups[metric].mean(), groups[metric].std(ddof=0)
    shown = [method for method in methods if np.isfinite(mean.get(method, np.nan))]
    place = np.arange(len(shown))
    axes.barh(
        place,
        mean[shown],
        xerr=sd[shown],
        color=[COLORS.get(method.split(" w/o ")[0], "0.85") for method in shown],
        error_kw={"linewidth": 0.8, "ecolor": "0.4"},
        capsize=1.5,
    )
    if marked is not None:
        axes.plot(groups[marked].mean()[shown], place, "D", ms=4, mfc="white", mec="black")
    axes.set_yticks(place, shown)
    axes.invert_yaxis()


def legend(figure, axes, **options):
    """Put one legend for all panels at the right."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, **options)
