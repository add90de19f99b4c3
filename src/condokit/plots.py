"""Figures of what `assess`, `evaluate` and a fitted adapter say; needs the extra `plot`.

Every function draws from a record, computes nothing of its own, and returns a matplotlib figure.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from condokit.adapter import ConDoAdapter
from condokit.checks import listing
from condokit.trust.agreement import Agreement
from condokit.trust.assess import Assessment
from condokit.trust.evaluate import Evaluation

REFERENCE, BEFORE, AFTER = "#6b7280", "#d97706", "#1d4ed8"
_MOST_ROWS = 40
_INTERVAL = 1.96


def _pyplot() -> Any:
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "Plots need matplotlib: install condokit with the extra 'plot', condokit[plot]."
        ) from None
    return pyplot


def overlap(assessment: Assessment) -> Any:
    """Draw the share of each domain's rows by confounder values; hidden counts are left open."""
    plt = _pyplot()
    sheet = assessment.strata
    names = sheet["rows with"][:_MOST_ROWS]
    if not names:
        raise ValueError("There are no confounders to draw.")
    figure, axis = plt.subplots(figsize=(7, 1.2 + 0.42 * len(names)), layout="constrained")
    place = np.arange(len(names))
    note = ""
    for key, total, colour, label, step in (
        ("n_query", assessment.n_query, BEFORE, "query", -0.2),
        ("n_reference", assessment.n_reference, REFERENCE, "reference", 0.2),
    ):
        counts = sheet[key][:_MOST_ROWS]
        hidden = np.array([isinstance(c, str) and c.startswith("<") for c in counts])
        numbers = np.array([float(str(c).lstrip("<~")) for c in counts]) / max(total, 1)
        axis.barh(place + step, np.where(hidden, 0, numbers), 0.38, color=colour, label=label)
        if hidden.any():
            note = " (dotted: fewer rows than may be shown)"
            axis.barh(
                (place + step)[hidden], numbers[hidden], 0.38, fill=False, edgecolor=colour, ls=":"
            )
    axis.set_yticks(place, [_literal(name) for name in names])
    axis.invert_yaxis()
    axis.set_xlabel(f"share of the domain's rows{note}")
    coefficient = "none" if assessment.overlap is None else f"{assessment.overlap.coefficient:.2f}"
    axis.set_title(f"Overlap of the confounders: {coefficient}", loc="left")
    axis.legend(frameon=False)
    return _tidy(figure)


def love(evaluation: Evaluation) -> Any:
    """Draw the shift of every feature given the confounders, before and after the map."""
    plt = _pyplot()
    sheet = evaluation.features
    before, after = (np.abs(sheet[f"shift_{name}"]) for name in ("before", "after"))
    rows = np.argsort(-np.maximum(before, after), kind="stable")[:_MOST_ROWS]
    figure, axis = plt.subplots(figsize=(7, 1.2 + 0.24 * len(rows)), layout="constrained")
    place = np.arange(len(rows))
    axis.hlines(place, before[rows], after[rows], color="#d1d5db", zorder=1)
    axis.scatter(before[rows], place, color=BEFORE, label="before", zorder=2)
    axis.scatter(after[rows], place, color=AFTER, label="after", zorder=3)
    axis.axvline(0.1, color=REFERENCE, ls=":", lw=1)
    axis.set_yticks(place, [_literal(sheet["feature"][i]) for i in rows])
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set_xlabel("difference between domains given the confounders, in standard deviations")
    more = len(before) - len(rows)
    axis.set_title(
        "Shift by feature" + (f" (the largest; {more} more)" if more else ""), loc="left"
    )
    axis.legend(frameon=False)
    return _tidy(figure)


def map_intervals(adapter: ConDoAdapter) -> Any:
    """Draw scales and offsets of a diagonal map with 95% intervals where they are known."""
    plt = _pyplot()
    affine = adapter.map_
    if affine.kind != "diagonal":
        raise ValueError("Only diagonal maps have one scale and one offset for every feature.")
    names = list(affine.get_feature_names_out())
    rows = np.arange(len(names))
    if len(names) > _MOST_ROWS:
        rows = np.sort(np.argsort(-np.abs(np.log(np.abs(affine.scale))))[:_MOST_ROWS])
    figure, axes = plt.subplots(
        1, 2, figsize=(9, 1.2 + 0.24 * len(rows)), sharey=True, layout="constrained"
    )
    errors = adapter.map_se_
    place = np.arange(len(rows))
    for axis, key, values, neutral in (
        (axes[0], "scale", affine.scale, 1.0),
        (axes[1], "offset", affine.offset, 0.0),
    ):
        axis.axvline(neutral, color=REFERENCE, ls=":", lw=1)
        bars = None if errors is None else _INTERVAL * errors[key][rows]
        axis.errorbar(values[rows], place, xerr=bars, fmt="o", color=AFTER, ms=4, capsize=2)
        axis.set_title(key, loc="left")
    axes[0].set_yticks(place, [_literal(names[i]) for i in rows])
    axes[0].invert_yaxis()
    axes[0].set_xlabel("times the query's value")
    axes[1].set_xlabel("in units of the reference")
    return _tidy(figure)


def densities(evaluation: Evaluation, feature: str | None = None) -> Any:
    """Draw a feature by stratum: reference, query as recorded, and query mapped."""
    plt = _pyplot()
    known = evaluation.densities
    feature = next(iter(known)) if feature is None else feature
    if feature not in known:
        raise ValueError(f"'feature' must be one of {listing(known, 10)}. Got {feature!r}.")
    grid, strata = known[feature]["grid"], known[feature]["strata"]
    figure, axes = plt.subplots(
        1, len(strata), figsize=(1 + 2.9 * len(strata), 3), squeeze=False, layout="constrained"
    )
    for axis, (name, curves) in zip(axes[0], strata.items()):
        axis.set_title(_literal(name), loc="left", fontsize=10)
        axis.set_yticks([])
        if curves["reference"] is not None:
            axis.fill_between(grid, curves["reference"], color=REFERENCE, alpha=0.35, lw=0)
        for key, colour, style in (("before", BEFORE, "--"), ("after", AFTER, "-")):
            if curves[key] is not None:
                axis.plot(grid, curves[key], color=colour, ls=style)
        if any(curve is None for curve in curves.values()):
            axis.set_xlabel("too few rows to show all", fontsize=8)
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=REFERENCE, alpha=0.35, label="reference"),
        plt.Line2D([], [], color=BEFORE, ls="--", label="query, as recorded"),
        plt.Line2D([], [], color=AFTER, label="query, mapped"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(_literal(feature), x=0.01, ha="left")
    return _tidy(figure)


def bland_altman(agreement: Agreement, feature: str | None = None) -> Any:
    """Draw differences of paired measurements against their means, with limits of agreement."""
    plt = _pyplot()
    names = agreement.features["feature"]
    feature = names[0] if feature is None else feature
    if feature not in names:
        raise ValueError(f"'feature' must be one of {listing(names, 10)}. Got {feature!r}.")
    j = names.index(feature)
    row = next(iter(agreement.features.take([j]).rows()))
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    axis.scatter(agreement.mean[:, j], agreement.difference[:, j], s=14, color=AFTER, alpha=0.7)
    axis.axhline(0, color=REFERENCE, lw=1)
    for key, style in (("bias", "-"), ("lower", "--"), ("upper", "--")):
        axis.axhline(row[key], color=BEFORE, ls=style, lw=1)
        axis.annotate(
            f"{key} {row[key]:.3g}",
            (1, row[key]),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8,
        )
    axis.set_xlabel("mean of mapped and reference value")
    axis.set_ylabel("mapped minus reference")
    axis.set_title(f"{_literal(feature)}: {agreement.n_pairs} pairs", loc="left")
    return _tidy(figure)


def _literal(name: str) -> str:
    """Return a name as matplotlib shows it letter by letter, not as a formula."""
    return name.replace("$", r"\$")


def _tidy(figure: Any) -> Any:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(length=0)
    return figure
