"""Figures of what `assess`, `evaluate` and a fitted adapter say; needs the extra `plot`.

Every function draws from a record, computes nothing of its own, and returns a matplotlib figure,
at most as wide as two columns of a journal.
"""

import io
import textwrap
from collections.abc import Callable, Collection, Iterator
from functools import wraps
from importlib import import_module
from inspect import cleandoc, signature
from typing import Any, TypeVar

import numpy as np

from condokit.adapter import ConDoAdapter
from condokit.batches.adapter import BatchAdapter
from condokit.checks import Array, listing
from condokit.data.arrays import NORMAL_95
from condokit.data.disclosure import size_of
from condokit.io.formats import need
from condokit.maps.monotone import drawn_curves
from condokit.trust.agreement import Agreement
from condokit.trust.assess import Assessment
from condokit.trust.evaluation import BatchEvaluation, Evaluation
from condokit.trust.pictures import Pictures

REFERENCE, BEFORE, AFTER = "#6b7280", "#d97706", "#1d4ed8"
__all__ = [
    "against",
    "bland_altman",
    "components",
    "confounders",
    "densities",
    "love",
    "map_curves",
    "map_intervals",
    "overlap",
    "site_effects",
    "variance",
]
_MOST_BARS = 40
_MOST_CURVES = 12
_MOST_PANELS = 6  # side by side
_MOST_NAMED = 12  # sites in a legend
_NUMBERED = ("agreement", "distribution")
_SINGLE = ("overlap", "shift", "map", "components", "variance", "against", "confounders", "sites")
FIGURES = (*_SINGLE, *(f"{name}_{k}" for name in _NUMBERED for k in range(1, 7)))  # of a report
_DECADES = 1.0  # of standard deviations that share an axis
_PAGE = 7.1  # inches: two columns of a journal
_STYLE = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.titlesize": 9,
    "figure.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
}
_FIRST = {
    "evaluation": "evaluation : Evaluation or BatchEvaluation\n    What `evaluate` returned.",
    "adapter": "adapter : ConDoAdapter or BatchAdapter\n    A fitted adapter.",
}
_CURVES = ("before", "query, as recorded", BEFORE, "--"), ("after", "query, mapped", AFTER, "-")
_OF_SITE = {"reference": "all others, mapped", **{one[1]: one[1][7:] for one in _CURVES}}
_BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "ncols": 3, "borderaxespad": 2.5}
_RETURNS = "Returns\n-------\nmatplotlib.figure.Figure\n    The figure.\n\n"
_EXAMPLE = """>>> from condokit import ConDoAdapter, datasets, evaluate, plots
>>> df = datasets.make_eeg(60, 60, random_state=0).to_frame()
>>> roles = {"domain": "device", "confounders": "seizure", "features": ["*F3", "*F4"]}
>>> adapter = ConDoAdapter(reference="v1").fit(df, **roles)
"""
_Draws = TypeVar("_Draws", bound=Callable[..., Any])


def _figure_of(draw: _Draws) -> _Draws:
    """Let a public function draw in our style, and tell what all of them take and return."""

    @wraps(draw)
    def drawn(*given: Any, **named: Any) -> Any:
        with pyplot().rc_context(_STYLE):
            return draw(*given, **named)

    text, example = cleandoc(draw.__doc__ or "").split("Examples\n--------\n")
    if "Parameters\n" not in text:
        text += f"Parameters\n----------\n{_FIRST[next(iter(signature(draw).parameters))]}\n\n"
    example = example if "import numpy" in example else _EXAMPLE + example
    drawn.__doc__ = f"{text}{_RETURNS}Examples\n--------\n{example}"
    return drawn  # type: ignore[return-value]


def files(
    adapter: ConDoAdapter | BatchAdapter,
    assessment: Any,
    evaluation: Evaluation | BatchEvaluation,
    formats: Collection[str],
) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the `FIGURES` that there are, as "png", "svg" or "pdf"."""
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # the same every time
    for name, figure in _drawn(adapter, assessment, evaluation):
        for kind in formats:
            options = {"dpi": 200, "bbox_inches": "tight", "metadata": undated.get(kind)}
            with pyplot().rc_context({"svg.hashsalt": "condokit"}):
                figure.savefig(file := io.BytesIO(), format=kind, **options)
            yield f"{name}.{kind}", file.getvalue()
        pyplot().close(figure)


def _drawn(adapter: Any, assessment: Any, evaluation: Any) -> Iterator[tuple[str, Any]]:
    """Yield the figures that there are, by name."""
    if isinstance(assessment, Assessment) and len(assessment.strata):
        yield "overlap", overlap(assessment)
    one, maps = _evaluations(evaluation), _maps(adapter)
    if one:
        yield "shift", love(evaluation)
    is_known = all(affine.fitted_on is not None for affine, _ in maps.values())
    if is_known and {affine.kind for affine, _ in maps.values()} <= {"diagonal"}:
        yield "map", map_intervals(adapter)
    elif isinstance(adapter, ConDoAdapter) and adapter.map_.kind == "monotone":
        yield "map", map_curves(adapter)
    if (known := evaluation.pictures) is not None:
        if known.n_features > 1:
            yield "components", components(evaluation)
        yield "variance", variance(evaluation)
        if known.confounders:
            yield "confounders", confounders(evaluation)
        if known.curves:
            yield "against", against(evaluation)
    if is_known:
        yield "sites", site_effects(adapter)
    found = [(name, each.agreement) for name, each in one.items() if each.agreement is not None]
    for k, (name, agreement) in enumerate(found[:_MOST_PANELS], 1):
        yield f"agreement_{k}", _of_site(bland_altman(agreement), name)
    drawn = [(name, each, feature) for name, each in one.items() for feature in each.densities]
    if len(one) > 1:  # the most shifted feature of every site
        drawn = [(n, each, next(iter(each.densities))) for n, each in one.items() if each.densities]
    for k, (name, each, feature) in enumerate(drawn[:_MOST_PANELS], 1):
        yield f"distribution_{k}", _of_site(densities(each, feature), name)


def _of_site(figure: Any, name: str) -> Any:
    """Say which site a figure is of."""
    if name:
        title = figure.get_suptitle()
        figure.suptitle(f"{_literal(name)}{': ' if title else ''}{title}", x=0.01, ha="left")
        for text in (text for legend in figure.legends for text in legend.get_texts()):
            text.set_text(_OF_SITE.get(text.get_text(), text.get_text()))
    return figure


def _evaluations(evaluation: Any) -> dict[str, Evaluation]:
    """Return what is known of the map of every site; of two domains there is one."""
    if isinstance(evaluation, Evaluation):
        return {"": evaluation}
    return {str(label): one for label, one in evaluation.evaluations.items()}


def _maps(adapter: Any) -> dict[str, tuple[Any, Any]]:
    """Return the map of every site but the reference, and its errors."""
    if isinstance(adapter, BatchAdapter):
        labels = [k for k in adapter.maps_ if k != adapter.reference_]
        return {str(k): (adapter.maps_[k], adapter.errors_[k]) for k in labels}
    return {"": (adapter.map_, adapter.errors_)}


@_figure_of
def overlap(assessment: Assessment) -> Any:
    """Draw the share of each domain's rows by confounder values; hidden counts are left open.

    Parameters
    ----------
    assessment : Assessment
        What `assess` returned.

    Examples
    --------
    >>> from condokit import assess
    >>> plots.overlap(assess(df, reference="v1", **roles)).axes[0].get_title("left")
    'Overlap of the confounders: 0.48'
    """
    sheet, note = assessment.strata, ""
    names = sheet["rows with"][:_MOST_BARS]
    if not names:
        raise ValueError("There are no confounders to draw.")
    figure, (axis,) = _figure(7, 1.2 + 0.42 * len(names))
    for side, colour, step in (("query", BEFORE, -0.2), ("reference", REFERENCE, 0.2)):
        place = np.arange(len(names)) + step
        counts, total = sheet[f"n_{side}"][:_MOST_BARS], getattr(assessment, f"n_{side}")
        sizes, hidden = (np.array(x) for x in zip(*map(size_of, counts)))
        share = sizes / max(total, 1)
        axis.barh(place, np.where(hidden, 0, share), 0.38, color=colour, label=side)
        if hidden.any():
            note = " (dotted: fewer rows than may be shown)"
            axis.barh(place[hidden], share[hidden], 0.38, fill=False, edgecolor=colour, ls=":")
    _name_rows(axis, names)
    coefficient = "none" if assessment.overlap is None else f"{assessment.overlap.coefficient:.2f}"
    title = f"Overlap of the confounders: {coefficient}"
    axis.set(title=title, xlabel=f"share of the domain's rows{note}")
    axis.legend()
    return figure


@_figure_of
def love(evaluation: Evaluation | BatchEvaluation) -> Any:
    """Draw the shift of every feature given the confounders, before and after the map, by site.

    Examples
    --------
    >>> figure = plots.love(evaluate(adapter, df, n_permutations=50))
    >>> figure.axes[0].get_title("left")
    'Shift by feature'
    """
    every = _evaluations(evaluation)
    worst = sorted(every, key=lambda label: -(every[label].error_before or 0.0))[:_MOST_PANELS]
    found = {label: one for label, one in every.items() if label in worst}
    shown, sheets = list(found), [one.features for one in found.values()]
    sizes = np.abs([[sheet[f"shift_{name}"] for name in ("before", "after")] for sheet in sheets])
    rows = np.argsort(-sizes.max(axis=(0, 1)), kind="stable")[:_MOST_BARS]
    wide = 7 if len(shown) == 1 else 2.4 + 1.9 * len(shown)
    how = {"sharey": True, "sharex": True}
    figure, axes = _figure(wide, 1.4 + 0.18 * len(rows), len(shown), **how)
    place = np.arange(len(rows))
    for axis, label, (before, after) in zip(axes, shown, sizes):
        axis.hlines(place, before[rows], after[rows], color="#d1d5db", zorder=1)
        axis.scatter(before[rows], place, color=BEFORE, marker="s", s=22, label="before", zorder=2)
        axis.scatter(after[rows], place, color=AFTER, s=24, label="after", zorder=3)
        axis.axvline(0.1, color=REFERENCE, ls=":", lw=1)
        axis.set_title(_literal(label))
    names = [str(sheets[0]["feature"][i]) for i in rows]
    _name_rows(axes[0], names)
    axes[0].set_xlim(left=0)
    more = sizes.shape[2] - len(rows)
    title = f"Shift by feature (the largest; {more} more)" if more else "Shift by feature"
    below = "difference given the confounders, in standard deviations"
    if len(shown) == 1:
        axes[0].set(title=title, xlabel=f"{below}; dotted: 0.1")
        axes[0].legend()
    else:
        figure.suptitle(title, x=0.01, ha="left")
        sites = _left(len(every) - len(shown), "sites with smaller errors")
        figure.supxlabel(f"{below}; dotted: 0.1{sites}")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return figure


@_figure_of
def map_intervals(adapter: ConDoAdapter | BatchAdapter) -> Any:
    """Draw scales of diagonal maps and their changes at the mean, with 95% intervals if known.

    Examples
    --------
    >>> [axis.get_title("left") for axis in plots.map_intervals(adapter).axes]
    ['scale', 'change at the mean']
    """
    maps = _maps(adapter)
    if any(affine.kind != "diagonal" for affine, _ in maps.values()):
        raise ValueError("Only diagonal maps have one scale and one offset for every feature.")
    names = next(iter(maps.values()))[0].get_feature_names_out()
    size = np.abs(np.log(np.abs([affine.scale for affine, _ in maps.values()]))).max(axis=0)
    rows = _largest(size, len(maps))
    figure, axes = _figure(_PAGE, 1.2 + _step(len(maps)) * len(rows), 2, sharey=True)
    found = [[None if x is None else x.scale for x in pair] for pair in maps.values()]
    _dots(axes[0], adapter, found, rows, names, 1.0)
    axes[0].set(title="scale", xlabel="times the value")
    found, sds = _changes(maps)
    found = [[None if x is None else x / sd for x in one] for one, sd in zip(found, sds)]
    _dots(axes[1], adapter, found, rows, names, 0.0)
    axes[1].set(title="change at the mean", xlabel="in standard deviations of what is mapped")
    _legend(figure, axes[0], len(maps))
    if len(names) > len(rows):
        text = f"{len(rows)} of {len(names):,} features, those with the largest and smallest scales"
        figure.suptitle(text, x=0.01, ha="left")
    return figure


@_figure_of
def map_curves(adapter: ConDoAdapter) -> Any:
    """Draw the curves of a map, the most bent first, with 95% intervals where they are known.

    Parameters
    ----------
    adapter : ConDoAdapter
        A fitted adapter, with ``map="monotone"``.

    Examples
    --------
    >>> import numpy as np
    >>> from condokit import ConDoAdapter, plots
    >>> rng = np.random.default_rng(0)
    >>> old, new = rng.normal(size=(100, 1)), np.exp(rng.normal(size=(100, 1)))
    >>> plots.map_curves(ConDoAdapter("monotone").fit_pair(new, old)).axes[0].get_title("left")
    'column 0'
    """
    curves = adapter.map_
    if curves.kind != "monotone":
        raise ValueError("Only a map of the kind 'monotone' has curves.")
    drawn = drawn_curves(curves, adapter.errors_, adapter.report_.get("bent"), _MOST_CURVES)
    figure, axes = _panels(len(drawn), 4, 2.4, 2.2)
    for axis, one in zip(axes, drawn):
        x, y = np.array(one["x"]), np.array(one["y"])
        axis.axline((x[0], x[0]), slope=1, color=REFERENCE, ls=":", lw=1)
        if one["low"] is not None:
            axis.fill_between(x, one["low"], one["high"], color=AFTER, alpha=0.2, lw=0)
        axis.plot(x, y, color=AFTER)
        ends = min(y[0], x[0]), max(y[-1], x[-1])
        axis.set(title=_literal(one["feature"]), xlabel="query", ylim=ends)
    axes[0].set_ylabel("mapped")
    return figure


@_figure_of
def densities(evaluation: Evaluation, feature: str | None = None) -> Any:
    """Draw a feature by stratum: reference, query as recorded, and query mapped.

    Parameters
    ----------
    evaluation : Evaluation
        What `evaluate` returned.
    feature : str or None, default=None
        The feature; None is the one that is most shifted.

    Examples
    --------
    >>> figure = plots.densities(evaluate(adapter, df, n_permutations=50), "eeg_alpha_F3")
    >>> [axis.get_title("left") for axis in figure.axes]
    ['all', 'seizure = False', 'seizure = True']
    """
    known = evaluation.densities
    feature = _one_of(known, feature)
    grid, strata = known[feature]["grid"], known[feature]["strata"]
    figure, axes = _panels(len(strata), 3, 2.2, 2.2)
    for axis, (name, curves) in zip(axes, strata.items()):
        axis.set(title=_literal(name), yticks=[])
        if curves["reference"] is not None:
            how = {"color": REFERENCE, "alpha": 0.35, "lw": 0, "label": "reference"}
            axis.fill_between(grid, curves["reference"], **how)
        for key, label, colour, style in _CURVES:
            if curves[key] is not None:
                axis.plot(grid, curves[key], color=colour, ls=style, label=label)
        if any(curve is None for curve in curves.values()):
            axis.set_xlabel("too few rows to show all")
    handles = {label: h for a in axes for h, label in zip(*a.get_legend_handles_labels())}
    figure.legend([*handles.values()], [*handles], loc="outside lower center", ncols=3)
    figure.suptitle(_literal(feature), x=0.01, ha="left")
    return figure


@_figure_of
def components(evaluation: Evaluation | BatchEvaluation) -> Any:
    """Draw the first two principal components before and after, by site and by confounder.

    A row before and a row after the maps, on the same axes.

    Examples
    --------
    >>> figure = plots.components(evaluate(adapter, df, n_permutations=50))
    >>> [axis.get_title("left") for axis in figure.axes[:2]]
    ['site, before', 'seizure, before']
    """
    known = _pictured(evaluation)
    few = [c for c in known.confounders if c.values is not None or len(c.levels) <= _MOST_NAMED]
    few = few[: _MOST_PANELS - 3]
    terms: list[Any] = [("site", None, known.domain, known.labels)]
    terms += [(c.name, c.values, c.codes, [str(one) for one in c.levels or ()]) for c in few]
    n = len(terms)
    figure, axes = _figure(0.8 + 2.6 * max(n, 1.5), 4.6, n, rows=2, sharex=True, sharey=True)
    for row, when in enumerate(("before", "after")):
        for axis, (title, values, codes, labels) in zip(axes[row * n :], terms):
            axis.set_title(_literal(f"{title}, {when}"))
            dots = {"s": 7, "alpha": 0.7, "lw": 0}
            if values is not None:
                drawn = axis.scatter(*known.scores[when].T, c=values, cmap="viridis", **dots)
                if row:
                    figure.colorbar(drawn, ax=axis, location="bottom", aspect=30, pad=0.02)
                continue
            for b, colour in enumerate(_colours(len(labels))):
                x, y = known.scores[when][codes == b].T
                axis.scatter(x, y, color=colour, label=_literal(labels[b]), **dots)
            if row and len(labels) <= _MOST_NAMED:
                axis.legend(
                    markerscale=2, handletextpad=0, columnspacing=0.5, **_BELOW | {"ncols": 2}
                )
    share = " and ".join(f"{one:.0%}" for one in known.explained)
    note = f"Axes: the first two components as recorded ({share} of the variance)"
    note += f"{_rows_left(known)}{_left(len(known.confounders) - len(few), 'confounders')}."
    _note(figure, note)
    return figure


@_figure_of
def variance(evaluation: Evaluation | BatchEvaluation) -> Any:
    """Draw what share of the variance site and confounders explain, each given the others.

    Medians over features, with lines from the first to the third quartile.

    Examples
    --------
    >>> figure = plots.variance(evaluate(adapter, df, n_permutations=50))
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['site', 'seizure', 'residual']
    """
    known = _pictured(evaluation)
    terms = list(dict.fromkeys(known.shares["term"]))[:_MOST_BARS]
    figure, (axis,) = _figure(6, 1.6 + 0.5 * len(terms))
    for when, colour, step in (("before", BEFORE, -0.18), ("after", AFTER, 0.18)):
        found = {row["term"]: row for row in known.shares.rows() if row["data"] == when}
        low, median, high = (
            np.array([found[t][k] for t in terms]) for k in ("low", "median", "high")
        )
        place = np.arange(len(terms)) + step
        axis.barh(place, median, 0.32, color=colour, label=when)
        axis.hlines(place, low, high, color="#111827", lw=1)
    _name_rows(axis, terms)
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    below = "share of variance, each given the others"
    axis.set(title="Partial shares of variance", xlabel=below, xlim=(0, None))
    axis.legend()
    note = f"Median of {known.n_features:,} features; lines: quartiles. Cubic in numbers, no "
    note += f"interactions; what terms share is in no bar{_rows_left(known)}."
    _note(figure, note)
    return figure


@_figure_of
def against(evaluation: Evaluation | BatchEvaluation, confounder: str | None = None) -> Any:
    """Draw features against a continuous confounder by site, before and after the maps.

    Means of bins with equal numbers of rows, of the most shifted features.

    Parameters
    ----------
    evaluation : Evaluation or BatchEvaluation
        What `evaluate` returned.
    confounder : str or None, default=None
        The confounder; None is the first continuous one.

    Examples
    --------
    >>> df, roles = df.assign(age=[*range(60)] * 2), roles | {"confounders": "age"}
    >>> adapter = ConDoAdapter(reference="v1").fit(df, **roles)
    >>> figure = plots.against(evaluate(adapter, df, n_permutations=50))
    >>> len(figure.axes)
    8
    """
    known = _pictured(evaluation)
    names = list(dict.fromkeys(one["confounder"] for one in known.curves))
    if not names:
        raise ValueError("There is no continuous confounder to draw against.")
    confounder = _one_of(names, confounder)
    drawn = [one for one in known.curves if one["confounder"] == confounder][:4]
    n = len(drawn)
    figure, axes = _figure(1 + 2.3 * n, 4.2, n, rows=2, sharex=True)
    colours = dict(zip(known.labels, _colours(len(known.labels))))
    few = len(known.labels) <= _MOST_NAMED
    how = {"marker": "o", "ms": 3, "lw": 1.2} if few else {"lw": 0.6, "alpha": 0.6}
    for k, one in enumerate(drawn):
        axes[k].sharey(axes[n + k])
        for row, when in enumerate(("before", "after")):
            axis = axes[row * n + k]
            for line in one["lines"]:
                label, colour = line["domain"], colours[line["domain"]]
                axis.plot(line["x"], line[when], color=colour, label=label, **how)
            axis.set(title="" if row else _literal(one["feature"], 22), ylabel="" if k else when)
        axes[n + k].set_xlabel(_literal(confounder))
    _legend(figure, axes[0], len(known.labels))
    note = f"Means of bins of a site's rows{_left(known.n_features - n, 'features')}"
    _note(figure, f"{note}{_rows_left(known)}.", top=True)
    return figure


@_figure_of
def confounders(evaluation: Evaluation | BatchEvaluation) -> Any:
    """Draw the confounders of every site: boxes of numbers, shares of levels.

    Examples
    --------
    >>> figure = plots.confounders(evaluate(adapter, df, n_permutations=50))
    >>> figure.axes[0].get_title("left")
    'seizure'
    """
    known = _pictured(evaluation)
    shown = known.confounders[:_MOST_PANELS]
    if not shown:
        raise ValueError("There are no confounders to draw.")
    n, has_boxes = len(known.labels), any(c.values is not None for c in shown)
    figure, axes = _panels(len(shown), 3, 2.8, 1.2 + 0.2 * n, sharey=True)
    black = {"medianprops": {"color": "#111827"}, "showfliers": False, "whis": (5, 95)}
    for axis, c in zip(axes, shown):
        axis.set_title(_literal(c.name))
        sites = [known.domain == b for b in range(n)]
        if c.values is not None:
            parts = [c.values[here & np.isfinite(c.values)] for here in sites]
            axis.boxplot(parts, positions=range(n), orientation="horizontal", widths=0.6, **black)
            continue
        levels = np.arange(len(c.levels))
        counts = np.array([(c.codes[here, None] == levels).sum(axis=0) for here in sites])
        shares, start = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), np.zeros(n)
        for level, share, colour in zip(c.levels, shares.T, _colours(len(levels))):
            axis.barh(range(n), share, 0.6, left=start, color=colour, label=_literal(str(level)))
            start = start + share
        axis.set_xlim(0, 1)
        if len(levels) <= _MOST_NAMED:
            axis.legend(handlelength=1, **_BELOW)
    _name_rows(axes[0], known.labels)
    more = _left(len(known.confounders) - len(shown), "confounders")
    note = "Boxes: quartiles, whiskers: 5 to 95%" if has_boxes else "Bars: shares of rows"
    _note(figure, f"{note}{_rows_left(known)}{more}.", top=True)
    return figure


@_figure_of
def site_effects(adapter: ConDoAdapter | BatchAdapter) -> Any:
    """Draw what maps add at the mean of every feature, with 95% intervals, features alike together.

    One panel for features whose standard deviations are of one order of size.

    Examples
    --------
    >>> len(plots.site_effects(adapter).axes)
    1
    """
    maps = _maps(adapter)
    affine = next(iter(maps.values()))[0]
    if affine.is_rectangular:
        raise ValueError("A map between different features adds nothing to a feature.")
    names = [str(name) for name in affine.get_feature_names_out()]
    found, sds = _changes(maps)
    size = np.max([np.abs(change) / sd for (change, _), sd in zip(found, sds)], axis=0)
    rows = _largest(np.nan_to_num(size), len(maps))
    panels = _of_one_size(np.nanmean(sds, axis=0), rows)
    heights = [1 + _step(len(maps)) * len(panel) for panel in panels]
    ratios = {"height_ratios": heights}
    figure, axes = _figure(_PAGE, 0.9 + sum(heights), rows=len(panels), gridspec_kw=ratios)
    for axis, panel in zip(axes, panels):
        _dots(axis, adapter, found, panel, names, 0.0)
    axes[0].set_title("Change at the mean of a site")
    axes[-1].set_xlabel("what the map adds, in units of the feature, with 95% intervals")
    _legend(figure, axes[0], len(maps))
    if len(rows) < len(names):
        text = f"The {len(rows)} largest changes in sd{_left(len(names) - len(rows), 'features')}."
        _note(figure, text, top=True)
    return figure


def _changes(maps: dict[str, tuple[Any, Any]]) -> tuple[list[Any], list[Array]]:
    """Return what maps add at the means of their data, with errors; and the spread of these."""
    if any(one.fitted_on is None for one, _ in maps.values()):
        raise ValueError("The maps do not say what data they were fitted on.")
    found, sds = [], [one.fitted_on.sd for one, _ in maps.values()]
    for one, errors in maps.values():
        mean = one.fitted_on.mean[None]
        found.append(((one(mean) - mean)[0], errors and errors.of_mapped(mean, one)[0]))
    return found, [np.where(sd > 0, sd, 1.0) for sd in sds]


def _of_one_size(sd: Any, rows: Any) -> list[Any]:
    """Return rows by features whose standard deviations are of the same size, in their order."""
    size = np.log10(np.where(sd > 0, sd, 1.0))[rows]
    order, groups = np.argsort(size, kind="stable"), list[list[int]]()
    for i in order:
        if not groups or size[i] - size[groups[-1][0]] > _DECADES:
            groups.append([])
        groups[-1].append(int(i))
    return [rows[sorted(group)] for group in sorted(groups, key=min)]


@_figure_of
def bland_altman(agreement: Agreement, feature: str | None = None) -> Any:
    """Draw differences of paired measurements against their means, with limits of agreement.

    Parameters
    ----------
    agreement : Agreement
        What `evaluate` with `pairs` returned as `agreement`.
    feature : str or None, default=None
        The feature; None is the one that agrees least as recorded (Lin's concordance).

    Examples
    --------
    >>> import numpy as np
    >>> from condokit import AffineMap, evaluate, plots
    >>> old = np.random.default_rng(0).normal(size=(20, 1))
    >>> X, domain = np.concatenate([old + 1, old]), ["query"] * 20 + ["reference"] * 20
    >>> pairs = range(20), range(20, 40)
    >>> found = evaluate(AffineMap([1.0], [-1.0]), X, domain=domain, pairs=pairs)
    >>> plots.bland_altman(found.agreement).axes[0].get_title("left")
    'column 0: 20 pairs'
    """
    names, ccc = agreement.features["feature"], np.array(agreement.features["ccc_before"], float)
    least = names[int(np.argmin(np.where(np.isfinite(ccc), ccc, np.inf)))]
    feature = _one_of(names, least if feature is None else feature)
    j, (figure, (axis,)) = names.index(feature), _figure(5, 3.2)
    axis.scatter(agreement.mean[:, j], agreement.difference[:, j], s=14, color=AFTER, alpha=0.7)
    axis.axhline(0, color=REFERENCE, lw=1)
    for key, style in (("bias", "-"), ("lower", "--"), ("upper", "--")):
        value = agreement.features[key][j]
        axis.axhline(value, color=BEFORE, ls=style, lw=1)
        where = {"xycoords": ("axes fraction", "data"), "ha": "left", "va": "center"}
        axis.annotate(f"{key}\n{value:.3g}".replace("-", "\N{MINUS SIGN}"), (1.01, value), **where)
    title = f"{_literal(feature)}: {agreement.n_pairs} pairs"
    axis.set(title=title, xlabel="mean of both values", ylabel="mapped minus reference")
    left = " Each pair was left out of the fit in turn." * (agreement.mapped_by == "left out")
    more = f" {agreement.concordance()}{_left(len(names) - 1, 'features', ' Not shown: ')}"
    _note(figure, f"{agreement.concordance(feature)}{left}{more * (len(names) > 1)}")
    return figure


def pyplot() -> Any:
    """Return matplotlib's, or say how to get it."""
    need("matplotlib", "Plots need matplotlib", "plot")
    return import_module("matplotlib.pyplot")


def _figure(
    width: float, height: float, n_axes: int = 1, rows: int = 1, **options: Any
) -> tuple[Any, Any]:
    """Return a figure and its axes, side by side, in as many rows."""
    options |= {"figsize": (min(width, _PAGE), height), "squeeze": False, "layout": "constrained"}
    figure, axes = pyplot().subplots(rows, n_axes, **options)
    for axis in axes.ravel():
        axis.tick_params(length=0, labelsize=_STYLE["font.size"])  # of ticks made later, too
    return figure, axes.ravel()


def _panels(n: int, most: int, wide: float, high: float, **options: Any) -> tuple[Any, Any]:
    """Return a figure of n panels of a size, with some of them side by side."""
    across = min(n, most)
    options["rows"] = -(-n // across)
    figure, axes = _figure(across * wide + 1, options["rows"] * high, across, **options)
    for axis in axes[n:]:
        axis.set_visible(False)
    return figure, axes


def _pictured(evaluation: Evaluation | BatchEvaluation) -> Pictures:
    if evaluation.pictures is None:
        raise ValueError("No rows are known of which a figure could be drawn.")
    return evaluation.pictures


def _colours(n: int) -> list[Any]:
    """Return as many colours: ten that differ well, of more the colours between them."""
    if n <= 10:
        return [pyplot().get_cmap("tab10")(k) for k in range(n)]
    return [pyplot().get_cmap("turbo")(k / (n - 1)) for k in range(n)]


def _largest(size: Array, n_sites: int) -> Array:
    """Return the features that are drawn, so that a figure of all sites fits a page."""
    most = max(min(_MOST_BARS, 4 * _MOST_BARS // n_sites), 5)
    return np.sort(np.argsort(-size, kind="stable")[:most])


def _step(n_sites: int) -> float:
    return min(0.1 + 0.05 * n_sites, 0.6)


def _dots(axis: Any, adapter: Any, found: Any, rows: Array, names: Any, neutral: float) -> None:
    """Draw numbers of features of every site, each in its colour, with intervals if known."""
    colours: dict[str, Any] = {"": AFTER}
    if isinstance(adapter, BatchAdapter):
        colours = dict(zip(map(str, adapter.maps_), _colours(len(adapter.maps_))))
    axis.axvline(neutral, color=REFERENCE, ls=":", lw=1)
    for k, (label, (value, error)) in enumerate(zip(_maps(adapter), found)):
        bars = None if error is None else NORMAL_95 * error[rows]
        at = np.arange(len(rows)) + 0.6 * ((k + 0.5) / len(found) - 0.5)
        dot = {"fmt": "o", "color": colours[label], "ms": 4, "capsize": 2, "label": label}
        axis.errorbar(value[rows], at, xerr=bars, **dot)
    _name_rows(axis, [names[j] for j in rows])
    axis.locator_params(axis="x", nbins=6)
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.6g}".replace("-", "\N{MINUS SIGN}"))


def _legend(figure: Any, axis: Any, n: int) -> None:
    """Name sites below all panels, if there are several, and not too many of them."""
    if n > 3 * _MOST_NAMED:
        text = f"{n} sites, from blue to red in the order of the report"
        figure.legend([], [], title=text, loc="outside lower center")
    elif n > 1:
        how = {"loc": "outside lower center", "ncols": min(n, 6)}
        figure.legend(*axis.get_legend_handles_labels(), **how)


def _left(n: int, what: str, before: str = "; not shown: ") -> str:
    """Say what a figure leaves out, nothing if it is complete."""
    return f"{before}{n:,} {what[:-1] if n == 1 else what}" if n > 0 else ""


def _rows_left(known: Pictures) -> str:
    return _left(known.n_rows - len(known.domain), "rows")


def _note(figure: Any, text: str, top: bool = False) -> None:
    """Write a line below a figure, or above it."""
    how: dict[str, Any] = {"x": 0.01, "ha": "left", "color": REFERENCE}
    text = "\n".join(textwrap.wrap(text, int(15.5 * figure.get_figwidth())))
    (figure.suptitle if top else figure.supxlabel)(text, **how)


def _name_rows(axis: Any, names: list[str]) -> None:
    axis.set_yticks(np.arange(len(names)), [_literal(name) for name in names])
    axis.set_ylim(len(names) - 0.4, -0.6)


def _one_of(known: Collection[str], feature: str | None) -> str:
    """Return the feature that was asked for, or the first."""
    feature = next(iter(known)) if feature is None else feature
    if feature not in known:
        raise ValueError(f"'feature' must be one of {listing(known, 10)}. Got {feature!r}.")
    return feature


def _literal(name: str, most: int = 1000) -> str:
    """Return a name as matplotlib shows it letter by letter, shortened if it is too long."""
    name = name if len(name) <= most else f"{name[: most // 2]}…{name[-most // 2 + 1 :]}"
    return name.replace("$", r"\$")
