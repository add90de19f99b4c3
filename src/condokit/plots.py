"""Figures of what `assess`, `evaluate` and a fitted adapter say; needs the extra `plot`.

Every function draws from a record, computes nothing of its own, and returns a matplotlib figure.
"""

import io
from collections.abc import Collection, Iterator
from importlib import import_module
from typing import Any

import numpy as np

from condokit.adapter import ConDoAdapter
from condokit.checks import listing
from condokit.data.disclosure import size_of
from condokit.io.formats import need
from condokit.maps.monotone import drawn_curves
from condokit.trust.agreement import Agreement
from condokit.trust.assess import Assessment
from condokit.trust.evaluate import Evaluation

REFERENCE, BEFORE, AFTER = "#6b7280", "#d97706", "#1d4ed8"
__all__ = ["bland_altman", "densities", "love", "map_curves", "map_intervals", "overlap"]
_MOST_ROWS = 40
_MOST_CURVES = 12
FIGURES = ("overlap", "shift", "map", *(f"distribution_{k}" for k in range(1, 7)))  # of a report
_INTERVAL = 1.96


def files(
    adapter: ConDoAdapter, assessment: Assessment, evaluation: Evaluation, formats: Collection[str]
) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the `FIGURES` that there are, as "png", "svg" or "pdf"."""
    drawn = {"overlap": overlap(assessment)} if len(assessment.strata) else {}
    drawn["shift"] = love(evaluation)
    if adapter.map_.kind in ("diagonal", "monotone"):
        drawn["map"] = (map_curves if adapter.map_.kind == "monotone" else map_intervals)(adapter)
    for name, feature in zip(FIGURES[3:], evaluation.densities):
        drawn[name] = densities(evaluation, feature)
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # the same every time
    for name, figure in drawn.items():
        for kind in formats:
            options = {"dpi": 200, "bbox_inches": "tight", "metadata": undated.get(kind)}
            with pyplot().rc_context({"svg.hashsalt": "condokit"}):
                figure.savefig(file := io.BytesIO(), format=kind, **options)
            yield f"{name}.{kind}", file.getvalue()
        pyplot().close(figure)


def overlap(assessment: Assessment) -> Any:
    """Draw the share of each domain's rows by confounder values; hidden counts are left open.

    Parameters
    ----------
    assessment : Assessment
        What `assess` returned.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Examples
    --------
    >>> from condokit import assess, datasets, plots
    >>> df = datasets.make_eeg(60, 60, random_state=0).to_frame()
    >>> roles = {"domain": "device", "confounders": "seizure", "features": ["*F3", "*F4"]}
    >>> plots.overlap(assess(df, reference="v1", **roles)).axes[0].get_title("left")
    'Overlap of the confounders: 0.48'
    """
    sheet, note = assessment.strata, ""
    names = sheet["rows with"][:_MOST_ROWS]
    if not names:
        raise ValueError("There are no confounders to draw.")
    figure, (axis,) = _figure(7, 1.2 + 0.42 * len(names))
    for side, colour, step in (("query", BEFORE, -0.2), ("reference", REFERENCE, 0.2)):
        place = np.arange(len(names)) + step
        counts, total = sheet[f"n_{side}"][:_MOST_ROWS], getattr(assessment, f"n_{side}")
        sizes, hidden = (np.array(x) for x in zip(*map(size_of, counts)))
        share = sizes / max(total, 1)
        axis.barh(place, np.where(hidden, 0, share), 0.38, color=colour, label=side)
        if hidden.any():
            note = " (dotted: fewer rows than may be shown)"
            axis.barh(place[hidden], share[hidden], 0.38, fill=False, edgecolor=colour, ls=":")
    _name_rows(axis, names)
    coefficient = "none" if assessment.overlap is None else f"{assessment.overlap.coefficient:.2f}"
    _label(axis, f"Overlap of the confounders: {coefficient}", f"share of the domain's rows{note}")
    axis.legend(frameon=False)
    return figure


def love(evaluation: Evaluation) -> Any:
    """Draw the shift of every feature given the confounders, before and after the map.

    Parameters
    ----------
    evaluation : Evaluation
        What `evaluate` returned.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Examples
    --------
    >>> from condokit import ConDoAdapter, datasets, evaluate, plots
    >>> df = datasets.make_eeg(60, 60, random_state=0).to_frame()
    >>> roles = {"domain": "device", "confounders": "seizure", "features": ["*F3", "*F4"]}
    >>> adapter = ConDoAdapter(reference="v1").fit(df, **roles)
    >>> figure = plots.love(evaluate(adapter, df, **roles, n_permutations=50))
    >>> figure.axes[0].get_title("left")
    'Shift by feature'
    """
    sheet = evaluation.features
    before, after = (np.abs(sheet[f"shift_{name}"]) for name in ("before", "after"))
    rows = np.argsort(-np.maximum(before, after), kind="stable")[:_MOST_ROWS]
    figure, (axis,) = _figure(7, 1.2 + 0.24 * len(rows))
    place = np.arange(len(rows))
    axis.hlines(place, before[rows], after[rows], color="#d1d5db", zorder=1)
    axis.scatter(before[rows], place, color=BEFORE, label="before", zorder=2)
    axis.scatter(after[rows], place, color=AFTER, label="after", zorder=3)
    axis.axvline(0.1, color=REFERENCE, ls=":", lw=1)
    _name_rows(axis, [sheet["feature"][i] for i in rows])
    axis.set_xlim(left=0)
    more = len(before) - len(rows)
    title = f"Shift by feature (the largest; {more} more)" if more else "Shift by feature"
    _label(axis, title, "difference between domains given the confounders, in standard deviations")
    axis.legend(frameon=False)
    return figure


def map_intervals(adapter: ConDoAdapter) -> Any:
    """Draw scales and offsets of a diagonal map with 95% intervals where they are known.

    Parameters
    ----------
    adapter : ConDoAdapter
        A fitted adapter.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Examples
    --------
    >>> from condokit import ConDoAdapter, datasets, plots
    >>> df = datasets.make_eeg(60, 60, random_state=0).to_frame()
    >>> roles = {"domain": "device", "confounders": "seizure", "features": ["*F3", "*F4"]}
    >>> adapter = ConDoAdapter(reference="v1").fit(df, **roles)
    >>> [axis.get_title("left") for axis in plots.map_intervals(adapter).axes]
    ['scale', 'offset']
    """
    affine, errors = adapter.map_, adapter.map_se_
    if affine.kind != "diagonal":
        raise ValueError("Only diagonal maps have one scale and one offset for every feature.")
    names = affine.get_feature_names_out()
    rows = np.arange(len(names))
    if len(names) > _MOST_ROWS:
        rows = np.sort(np.argsort(-np.abs(np.log(np.abs(affine.scale))))[:_MOST_ROWS])
    figure, axes = _figure(9, 1.2 + 0.24 * len(rows), 2, sharey=True)
    for axis, key, values, neutral, unit in (
        (axes[0], "scale", affine.scale, 1.0, "times the query's value"),
        (axes[1], "offset", affine.offset, 0.0, "in units of the reference"),
    ):
        axis.axvline(neutral, color=REFERENCE, ls=":", lw=1)
        bars = None if errors is None else _INTERVAL * errors[key][rows]
        place = np.arange(len(rows))
        axis.errorbar(values[rows], place, xerr=bars, fmt="o", color=AFTER, ms=4, capsize=2)
        _label(axis, key, unit)
    _name_rows(axes[0], [names[i] for i in rows])
    return figure


def map_curves(adapter: ConDoAdapter) -> Any:
    """Draw the curves of a map, the most bent first, with 95% intervals where they are known.

    Parameters
    ----------
    adapter : ConDoAdapter
        A fitted adapter, with ``map="monotone"``.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

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
    rows = -(-len(drawn) // 4)
    figure, axes = _figure(
        min(4, len(drawn)) * 2.6 + 0.6, 2.6 * rows, min(4, len(drawn)), rows=rows
    )
    for axis, one in zip(axes, drawn):
        x, y = np.array(one["x"]), np.array(one["y"])
        axis.axline((x[0], x[0]), slope=1, color=REFERENCE, ls=":", lw=1)
        if one["low"] is not None:
            axis.fill_between(x, one["low"], one["high"], color=AFTER, alpha=0.2, lw=0)
        axis.plot(x, y, color=AFTER)
        axis.set_ylim(min(y[0], x[0]), max(y[-1], x[-1]))
        _label(axis, _literal(one["feature"]), "query")
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
    axes[0].set_ylabel("mapped")
    return figure


def densities(evaluation: Evaluation, feature: str | None = None) -> Any:
    """Draw a feature by stratum: reference, query as recorded, and query mapped.

    Parameters
    ----------
    evaluation : Evaluation
        What `evaluate` returned.
    feature : str or None, default=None
        The feature; None is the one that is most shifted.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Examples
    --------
    >>> from condokit import ConDoAdapter, datasets, evaluate, plots
    >>> df = datasets.make_eeg(60, 60, random_state=0).to_frame()
    >>> roles = {"domain": "device", "confounders": "seizure", "features": ["*F3", "*F4"]}
    >>> adapter = ConDoAdapter(reference="v1").fit(df, **roles)
    >>> figure = plots.densities(evaluate(adapter, df, **roles, n_permutations=50), "eeg_alpha_F3")
    >>> [axis.get_title("left") for axis in figure.axes]
    ['all', 'seizure = False', 'seizure = True']
    """
    known = evaluation.densities
    feature = _one_of(known, feature)
    grid, strata = known[feature]["grid"], known[feature]["strata"]
    figure, axes = _figure(1 + 2.9 * len(strata), 3, len(strata))
    for axis, (name, curves) in zip(axes, strata.items()):
        axis.set_title(_literal(name), loc="left", fontsize=10)
        axis.set_yticks([])
        if curves["reference"] is not None:
            axis.fill_between(grid, curves["reference"], color=REFERENCE, alpha=0.35, lw=0)
        for key, colour, style in (("before", BEFORE, "--"), ("after", AFTER, "-")):
            if curves[key] is not None:
                axis.plot(grid, curves[key], color=colour, ls=style)
        if any(curve is None for curve in curves.values()):
            axis.set_xlabel("too few rows to show all", fontsize=8)
    from matplotlib import lines, patches

    handles = [
        patches.Patch(color=REFERENCE, alpha=0.35, label="reference"),
        lines.Line2D([], [], color=BEFORE, ls="--", label="query, as recorded"),
        lines.Line2D([], [], color=AFTER, label="query, mapped"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(_literal(feature), x=0.01, ha="left")
    return figure


def bland_altman(agreement: Agreement, feature: str | None = None) -> Any:
    """Draw differences of paired measurements against their means, with limits of agreement.

    Parameters
    ----------
    agreement : Agreement
        What `evaluate` with `pairs` returned as `agreement`.
    feature : str or None, default=None
        The feature; None is the first.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

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
    names = agreement.features["feature"]
    feature = _one_of(names, feature)
    j = names.index(feature)
    figure, (axis,) = _figure(6, 4)
    axis.scatter(agreement.mean[:, j], agreement.difference[:, j], s=14, color=AFTER, alpha=0.7)
    axis.axhline(0, color=REFERENCE, lw=1)
    for key, style in (("bias", "-"), ("lower", "--"), ("upper", "--")):
        value = agreement.features[key][j]
        axis.axhline(value, color=BEFORE, ls=style, lw=1)
        where = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        axis.annotate(f"{key} {value:.3g}", (1, value), fontsize=8, **where)
    axis.set_ylabel("mapped minus reference")
    title = f"{_literal(feature)}: {agreement.n_pairs} pairs"
    _label(axis, title, "mean of mapped and reference value")
    return figure


def pyplot() -> Any:
    """Return matplotlib's, or say how to get it."""
    need("matplotlib", "Plots need matplotlib", "plot")
    return import_module("matplotlib.pyplot")


def _figure(
    width: float, height: float, n_axes: int = 1, rows: int = 1, **options: Any
) -> tuple[Any, Any]:
    """Return a figure and its axes, side by side, in as many rows."""
    options |= {"figsize": (width, height), "squeeze": False, "layout": "constrained"}
    figure, axes = pyplot().subplots(rows, n_axes, **options)
    for axis in axes.ravel():
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(length=0)
    return figure, axes.ravel()


def _label(axis: Any, title: str, below: str) -> None:
    axis.set_title(title, loc="left")
    axis.set_xlabel(below)


def _name_rows(axis: Any, names: list[str]) -> None:
    axis.set_yticks(np.arange(len(names)), [_literal(name) for name in names])
    axis.invert_yaxis()


def _one_of(known: Collection[str], feature: str | None) -> str:
    """Return the feature that was asked for, or the first."""
    feature = next(iter(known)) if feature is None else feature
    if feature not in known:
        raise ValueError(f"'feature' must be one of {listing(known, 10)}. Got {feature!r}.")
    return feature


def _literal(name: str) -> str:
    """Return a name as matplotlib shows it letter by letter, not as a formula."""
    return name.replace("$", r"\$")
