"""Outputs of models that cannot be retrained, by stratum, before and after a map."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np

from condokit.checks import Array, listing
from condokit.data.disclosure import hidden_cells, mean_of, too_few
from condokit.data.records import Sheet
from condokit.data.roles import column_values
from condokit.data.tables import Table
from condokit.trust.blocks import ComparableRows

_N_BINS = 5  # of predictions, to be compared with the truth


@dataclass(frozen=True)
class _Outputs:
    """Outputs of one model for the comparable rows, each of shape (n_rows,)."""

    model: str  # its name
    kind: str  # "P(class)" of a classifier, "prediction" of a regression
    before: Array
    after: Array
    truth: Array  # the output of a perfect model; NaN where labels are missing


def model_sheets(
    models: Any,
    labels: Any,
    rows: ComparableRows,
    strata: list[str],
    tables: Sequence[Table],
    min_cell: int,
) -> tuple[Sheet, Sheet, Sheet]:
    """Return three tables: mean outputs of models by stratum, calibration, and errors."""
    if models is None:
        if labels is not None:
            raise ValueError("'labels' are for `models`, which are not given.")
        return Sheet({}), Sheet({}), Sheet({})
    if not isinstance(models, dict):
        models = {type(models).__name__: models}
    if not isinstance(labels, dict):
        labels = {} if labels is None else dict.fromkeys(models, labels)
    if strange := [name for name in labels if name not in models]:
        raise ValueError(f"'labels' names {listing(strange)}, which is not among the models.")
    outputs = [_outputs(name, m, labels.get(name), rows, tables) for name, m in models.items()]
    by_stratum = _by_stratum(outputs, strata, rows, bool(labels), min_cell)
    names = ("model", "version", "predicted", "true", "n_rows")
    calibration = Sheet.of_rows(_calibration(outputs, rows, min_cell), names)
    return Sheet.of_rows(by_stratum), calibration, Sheet.of_rows(_errors(outputs, rows, min_cell))


def _outputs(
    name: str, model: Any, labels: Any, rows: ComparableRows, tables: Sequence[Table]
) -> _Outputs:
    """Return the outputs of one model for rows before and after the map, and the truth."""
    table = tables[0]

    def predicted(X: Any) -> tuple[Array, str]:
        if table.columns is not None and hasattr(model, "feature_names_in_"):  # as it was trained
            columns = {name: X[:, j] for j, name in enumerate(table.labels)}
            X = nw.from_dict(columns, backend=table.about.implementation).to_native()
        return _predictions(name, model, X)

    with np.errstate(over="warn", divide="warn", invalid="warn"):  # not ours to refuse
        (before, kind), (after, _) = predicted(rows.before), predicted(rows.after)
    truth = np.full(len(before), np.nan)
    if labels is not None:
        values = _of_all_rows(tables, labels)[rows.row_number]
        truth = _true_values(name, values, list(getattr(model, "classes_", [])))
    return _Outputs(name, kind, before, after, truth)


def _of_all_rows(tables: Sequence[Table], labels: Any) -> Array:
    """Return the labels of all rows; of two tables, those of the second after the first's."""
    if len(tables) == 1 or isinstance(labels, str):
        return np.concatenate([np.asarray(column_values(t, "labels", labels)) for t in tables])
    values, n = np.asarray(labels), sum(t.n_rows for t in tables)
    if len(values) != n:
        raise ValueError(f"'labels' must have {n} values, of X and of X_reference below it.")
    return values


def _predictions(name: str, model: Any, X: Any) -> tuple[Array, str]:
    """Return one number per row, and its kind: "P(class)" or "prediction"."""
    if not hasattr(model, "predict"):
        raise ValueError(f"The model {name!r} has no `predict`. Pass fitted models.")
    classes = getattr(model, "classes_", None)
    wanted = "give binary classifiers or regressions."
    if classes is not None and len(classes) != 2:
        raise ValueError(f"The model {name!r} has {len(classes)} classes; {wanted}")
    try:
        if classes is not None and hasattr(model, "predict_proba"):
            return np.asarray(model.predict_proba(X), dtype=float)[:, 1], f"P({classes[1]})"
        values = np.asarray(model.predict(X))
    except ValueError as error:
        raise ValueError(f"The model {name!r} does not take these features: {error}") from None
    if classes is not None:
        return (values == classes[1]).astype(float), f"P({classes[1]})"
    if values.dtype.kind not in "iufb":
        raise ValueError(f"The model {name!r} predicts {values.dtype}, not numbers; {wanted}")
    return values.astype(float), "prediction"


def _true_values(name: str, values: Array, classes: list[Any]) -> Array:
    """Return labels as numbers, NaN where missing; of a classifier, 1 for its second class."""
    missing = np.array([v is None or v != v for v in values.tolist()])
    must = f"'labels' of the model {name!r} must be"
    if not classes:
        try:
            return np.where(missing, np.nan, values).astype(float)
        except (TypeError, ValueError):
            raise ValueError(f"{must} numbers. Got {values.dtype}.") from None
    known = values[~missing]
    strange = known[~np.isin(known, classes)] if len(known) else known
    if len(strange):
        raise ValueError(f"{must} its classes, {listing(classes)}. Got {strange[0]!r}.")
    return np.where(missing, np.nan, values == classes[1]).astype(float)


def _by_stratum(
    outputs: list[_Outputs], strata: list[str], rows: ComparableRows, labelled: bool, min_cell: int
) -> Iterator[dict[str, Any]]:
    """Yield mean outputs by model and stratum, with labels also errors; small cells are hidden."""
    sides = (rows.is_query, ~rows.is_query)
    cells = [("all", *sides)]
    for k, stratum in enumerate(strata):
        cells.append((stratum, *(side & (rows.category == k) for side in sides)))
    for one in outputs:
        error_before, error_after = (one.before - one.truth) ** 2, (one.after - one.truth) ** 2
        told = list[dict[str, Array]]()
        for _, query, reference in cells:
            figures = {"reference": one.after[reference]}
            figures |= {"query_before": one.before[query], "query_after": one.after[query]}
            if labelled:
                figures |= {"query_truth": one.truth[query], "error_before": error_before[query]}
                figures |= {"error_after": error_after[query]}
                figures["error_reference"] = error_after[reference]
            told.append(figures)
        hidden = {}
        for name in told[0]:
            counts = np.array([(~np.isnan(figures[name])).sum() for figures in told[1:]])
            hidden[name] = [False, *hidden_cells(counts, min_cell)]
        for k, ((stratum, *_), figures) in enumerate(zip(cells, told)):
            means = {n: None if hidden[n][k] else mean_of(x, min_cell) for n, x in figures.items()}
            yield {"model": one.model, "output": one.kind, "rows with": stratum, **means}


def _calibration(outputs: list[_Outputs], rows: ComparableRows, min_cell: int) -> Iterator[Any]:
    """Compare predicted with true shares of query rows, in bins of the prediction."""
    for one in outputs:
        known = rows.is_query & ~np.isnan(one.truth)
        for version in ("before", "after") if one.kind != "prediction" else ():
            p, t = getattr(one, version)[known], one.truth[known]
            for part in np.array_split(np.argsort(p, kind="stable"), _N_BINS):
                if not too_few(len(part), min_cell):
                    shares = float(p[part].mean()), float(t[part].mean())
                    yield one.model, version, *shares, len(part)


def _errors(outputs: list[_Outputs], rows: ComparableRows, min_cell: int) -> Iterator[Any]:
    r"""Yield errors e = prediction - truth of regressions: their mean, spread and both together.

    :math:`RMSEP^2 = mean(e^2)`; bias is the mean of e, and SEP its standard deviation
    (denominator n - 1), so that :math:`RMSEP^2 = bias^2 + SEP^2 (n - 1) / n`.
    """
    for one in outputs:
        there = ~np.isnan(one.truth)
        versions = {
            "reference": (one.after, ~rows.is_query),
            "query before": (one.before, rows.is_query),
            "query after": (one.after, rows.is_query),
        }
        for version, (predicted, side) in versions.items() if one.kind == "prediction" else ():
            e = (predicted - one.truth)[side & there]
            if len(e) > 1 and not too_few(len(e), min_cell):
                sizes = {"RMSEP": np.sqrt(np.mean(e**2)), "bias": e.mean(), "SEP": e.std(ddof=1)}
                numbers = {name: float(size) for name, size in sizes.items()}
                yield {"model": one.model, "data": version, **numbers, "n_rows": len(e)}
