"""Models that cannot be retrained: what they say of each stratum, before and after a map."""

from __future__ import annotations

from typing import Any

import numpy as np

from condokit.checks import Array, listing
from condokit.data.disclosure import hidden_cells
from condokit.data.records import Sheet


def predictions(name: str, model: Any, X: Any) -> tuple[Array, str]:
    """Return one number per row and what it is: a probability, a class share or a prediction."""
    if not hasattr(model, "predict"):
        raise ValueError(f"The model {name!r} has no `predict`. Pass fitted models.")
    classes = getattr(model, "classes_", None)
    if classes is not None and len(classes) != 2:
        raise ValueError(
            f"The model {name!r} has {len(classes)} classes; give binary classifiers or "
            "regressions."
        )
    try:
        if classes is not None:
            if hasattr(model, "predict_proba"):
                return np.asarray(model.predict_proba(X), dtype=float)[:, 1], f"P({classes[1]})"
            return (np.asarray(model.predict(X)) == classes[1]).astype(float), f"P({classes[1]})"
        values = np.asarray(model.predict(X))
    except ValueError as error:
        raise ValueError(f"The model {name!r} does not take these features: {error}") from None
    if values.dtype.kind not in "iufb":
        raise ValueError(
            f"The model {name!r} predicts {values.dtype}, not numbers; give binary classifiers or "
            "regressions."
        )
    return values.astype(float), "prediction"


def true_values(name: str, values: Array, classes: list[Any]) -> Array:
    """Return labels as numbers, of a classifier 1 for its second class; NaN where missing."""
    missing = np.array([v is None or v != v for v in values.tolist()])
    if not classes:
        try:
            return np.where(missing, np.nan, values).astype(float)
        except (TypeError, ValueError):
            raise ValueError(
                f"'labels' of the model {name!r} must be numbers. Got {values.dtype}."
            ) from None
    strange = ~np.isin(values[~missing], classes) if (~missing).any() else np.array([False])
    if strange.any():
        raise ValueError(
            f"'labels' of the model {name!r} must be its classes, {listing(classes)}. Got "
            f"{values[~missing][strange][0]!r}."
        )
    return np.where(missing, np.nan, values == classes[1]).astype(float)


def by_stratum(
    outputs: dict[str, dict[str, Array]],
    what: dict[str, str],
    truth: dict[str, Array],
    strata: list[str],
    stratum: Array,
    is_query: Array,
    min_cell: int,
) -> Sheet:
    """Lay out mean outputs of every model by stratum, for reference rows and query rows.

    `outputs[model]` holds "before" and "after" for all rows (equal for reference rows). With the
    `truth`, the mean of the labels and the mean squared error (the Brier score of a probability).
    Cells of fewer than `min_cell` rows are not shown, nor those that would tell them.
    """
    sides = (is_query, ~is_query)
    counts = [np.bincount(stratum[side], minlength=len(strata)) for side in sides]
    shown = [~hidden_cells(count, min_cell) for count in counts]
    columns: dict[str, list[Any]] = {
        key: []
        for key in ("model", "output", "rows with", "reference", "query_before", "query_after")
    }
    if truth:
        for key in ("query_truth", "error_before", "error_after", "error_reference"):
            columns[key] = []
    for model, versions in outputs.items():
        for k in (None, *range(len(strata))):
            query, reference = (
                side if k is None else side & (stratum == k) & is_shown[k]
                for side, is_shown in zip(sides, shown)
            )
            cells = {
                "reference": (reference, versions["after"]),
                "query_before": (query, versions["before"]),
                "query_after": (query, versions["after"]),
            }
            columns["model"].append(model)
            columns["output"].append(what[model])
            columns["rows with"].append("all" if k is None else strata[k])
            for key, (rows, values) in cells.items():
                columns[key].append(_mean(values[rows], min_cell))
            if truth:
                y = truth.get(model)
                columns["query_truth"].append(None if y is None else _mean(y[query], min_cell))
                for key, rows, version in (
                    ("error_before", query, "before"),
                    ("error_after", query, "after"),
                    ("error_reference", reference, "after"),
                ):
                    error = None
                    if y is not None:
                        error = _mean((versions[version][rows] - y[rows]) ** 2, min_cell)
                    columns[key].append(error)
    return Sheet(columns)


def calibration(
    outputs: dict[str, dict[str, Array]],
    truth: dict[str, Array],
    is_query: Array,
    min_cell: int,
    n_bins: int = 5,
) -> Sheet:
    """Compare predicted with true shares of query rows, in bins of the prediction."""
    columns: dict[str, list[Any]] = {
        key: [] for key in ("model", "version", "predicted", "true", "n_rows")
    }
    for model, y in truth.items():
        for version, values in outputs[model].items():
            p, t = values[is_query], y[is_query]
            known = ~np.isnan(t)
            p, t = p[known], t[known]
            for part in np.array_split(np.argsort(p, kind="stable"), n_bins):
                if len(part) >= min_cell:
                    columns["model"].append(model)
                    columns["version"].append(version)
                    columns["predicted"].append(float(p[part].mean()))
                    columns["true"].append(float(t[part].mean()))
                    columns["n_rows"].append(len(part))
    return Sheet(columns)


def _mean(values: Array, min_cell: int) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) >= min_cell else None
