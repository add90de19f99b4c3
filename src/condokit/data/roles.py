"""From what the user passes to `Domains`: the checks and conversions of fit and fit_pair."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np

from condokit.checks import (
    Array,
    check_length,
    check_weights,
    did_you_mean,
    listing,
    said,
    unknown_columns,
)
from condokit.data.domains import PART, Confounder, Domains
from condokit.data.missing import with_gaps
from condokit.data.tables import Table, is_frame


def from_table(
    X: Any,
    domain: Any,
    confounders: Any,
    features: Any,
    groups: Any,
    sample_weight: Any,
    reference: Any,
    categorical: Any,
    missing: str,
) -> Domains:
    """Read one table whose rows `domain` labels; the checks of `ConDoAdapter.fit`."""
    table = Table(X)
    if domain is None:
        raise ValueError(
            "'domain' is required: an array with the domain label of each row, or the name of the "
            "column that holds it. For two separate tables use fit_pair."
        )
    reserved: list[str] = []
    labels = _column(table, "domain", domain, reserved)
    columns = _columns(table, confounders, reserved)
    group_codes = None
    if groups is not None:
        group_codes = _factorize([_column(table, "groups", groups, reserved)], "groups")[1]
    weights = None
    if sample_weight is not None:
        if isinstance(sample_weight, str):
            sample_weight = _column(table, "sample_weight", sample_weight, reserved)
        weights = check_weights(sample_weight, table.n_rows, table.name)
    hint = "Name the feature columns with `features=`, for example features=['eeg_*']."
    features_table = (
        table.select(None, reserved, hint, flags=False)
        if features is None
        else table.select(features, reserved)
    )
    features_table.refuse_empty()
    levels, codes = _factorize([labels], "domain")
    query_label, reference_label = _name_domains(levels, len(codes), reference)
    is_query = codes == levels.index(query_label)
    return _checked(
        Domains(
            (features_table,),
            is_query,
            labels=(query_label, reference_label),
            weights=weights,
            groups=group_codes,
            **_encode([columns], categorical, missing, is_query),
        )
    )


def from_pair(
    X_query: Any,
    X_reference: Any,
    Z_query: Any,
    Z_reference: Any,
    groups: Any,
    sample_weight: Any,
    categorical: Any,
    missing: str,
    any_features: bool = False,
) -> Domains:
    """Read two tables; the checks of `ConDoAdapter.fit_pair`.

    With `any_features` the tables may have different features.
    """
    tables = [Table(X_query, "X_query"), Table(X_reference, "X_reference")]
    if (tables[0].columns is None) != (tables[1].columns is None):
        raise ValueError(
            "X_query and X_reference must both have column names or both have none; "
            f"got {type(X_query).__name__} and {type(X_reference).__name__}."
        )
    if (Z_query is None) != (Z_reference is None):
        raise ValueError("Give Z_query and Z_reference together, or neither.")
    reserved: list[list[str]] = [[], []]
    sides = [
        _columns(table, Z, taken, argument)
        for table, Z, taken, argument in zip(
            tables, (Z_query, Z_reference), reserved, ("Z_query", "Z_reference")
        )
    ]
    group_codes = None
    if groups is not None:
        # the same label in both tables is the same subject, measured in both domains
        parts = [
            _column(table, "groups", g, taken) if g is not None else _own_groups(table)
            for table, g, taken in zip(tables, _pair("groups", groups), reserved)
        ]
        group_codes = _factorize(parts, "groups")[1]
    other = any_features and _are_different(tables, reserved)
    if other:
        tables = [table.select(None, taken) for table, taken in zip(tables, reserved)]
        for table in tables:
            table.refuse_empty()
    else:
        tables = _same_features(tables, reserved)
    names = [[name for name, _ in side] for side in sides]
    if sorted(names[0]) != sorted(names[1]):
        raise ValueError(
            f"Z_query has the columns {listing(names[0])} but Z_reference has {listing(names[1])}; "
            "they must be the same confounders."
        )
    by_name = dict(sides[1])
    sides[1] = [(name, by_name[name]) for name in names[0]]

    weights = None
    if sample_weight is not None:
        pair = _pair("sample_weight", sample_weight)
        weights = np.concatenate(
            [
                np.ones(t.n_rows) if w is None else check_weights(w, t.n_rows, t.name)
                for w, t in zip(pair, tables)
            ]
        )
    is_query = np.repeat([True, False], [table.n_rows for table in tables])
    return _checked(
        Domains(
            (tables[0], tables[1]),
            is_query,
            weights=weights,
            groups=group_codes,
            **_encode(sides, categorical, missing, is_query),
        )
    )


def is_reference_row(domain: Any, table: Table, labels: tuple[Any, Any]) -> Array:
    """Mark the rows that a transform leaves as they are; labels are (query, reference)."""
    query_label, reference_label = labels
    levels, codes = _factorize([_column(table, "domain", domain, [])], "domain")
    strange = [level for level in levels if level not in (query_label, reference_label)]
    if strange:
        raise ValueError(
            f"'domain' has the label {listing(strange)}, which was not there when fitting; "
            f"known are {query_label!r} (query) and {reference_label!r} (reference)."
        )
    return np.array([level == reference_label for level in levels])[codes]


def column_values(table: Table, argument: str, value: Any) -> Array:
    """Return row-wise values, given as such or as a column name, as an array."""
    values = _column(table, argument, value, [])
    return np.asarray(values.to_numpy() if isinstance(values, nw.Series) else values)


def _name_domains(labels: list[Any], n_rows: int, reference: Any) -> tuple[Any, Any]:
    """Return (query label, reference label)."""
    if len(labels) != 2:
        few = "; with 1 sample there is nothing to compare" if n_rows == 1 else ""
        raise ValueError(
            f"'domain' must have exactly two labels. Got {len(labels)} ({listing(labels)}){few}."
        )
    if reference is None:
        if set(labels) == {"query", "reference"}:
            return "query", "reference"
        raise ValueError(
            f"'reference' must name the domain to map to, {labels[0]!r} or {labels[1]!r}: "
            f"for example ConDoAdapter(reference={labels[0]!r}). It may be left out only when the "
            "labels are 'query' and 'reference'."
        )
    if reference not in labels:
        raise ValueError(
            f"'reference' is {reference!r}, but the domain labels are {listing(labels)}."
            f"{did_you_mean(reference, labels)}"
        )
    return next(label for label in labels if label != reference), reference


def _checked(domains: Domains) -> Domains:
    weights = domains.weights
    if weights is not None:
        used = weights > 0
        if not used.all():
            keep = used if domains.keep is None else used & domains.keep
            domains = replace(domains, keep=keep)
        for name, side in (("query", domains.is_query), ("reference", ~domains.is_query)):
            total = weights[side].sum()
            if total == 0:
                raise ValueError(said(f"{{@'sample_weight'}} is zero for all {name} rows."))
            if total <= 1:
                raise ValueError(
                    said(
                        f"{{@'sample_weight'}} sums to {total:g} over the {name} rows. Weights "
                        "count rows (2 stands for two equal rows): scale them to a mean of about "
                        "one."
                    )
                )
    return with_gaps(domains)


def _own_groups(table: Table) -> list[Any]:
    """Return a group of its own for each row."""
    return [(table.name, i) for i in range(table.n_rows)]


def _are_different(tables: list[Table], reserved: list[list[str]]) -> bool:
    """Tell whether two tables have different features."""
    query, reference = (
        [c for c in table.columns or [] if c not in set(taken)]
        for table, taken in zip(tables, reserved)
    )
    if tables[0].columns is None or tables[1].columns is None:
        return tables[0].n_features != tables[1].n_features
    # tables that share some names are meant to be alike: a typing error, not another assay
    return not set(query) & set(reference)


def _same_features(tables: list[Table], reserved: list[list[str]]) -> list[Table]:
    """Select the same features in the same order from both tables."""
    query, reference = tables
    if query.columns is not None and reference.columns is not None:
        left = [
            [c for c in table.columns or [] if c not in set(taken)]
            for table, taken in zip(tables, reserved)
        ]
        _refuse_other_columns(*left)
        tables = [query.select(None, reserved[0]), reference.select(left[0])]
    else:
        if query.n_features != reference.n_features:
            turned = query.n_rows == reference.n_rows < min(query.n_features, reference.n_features)
            hint = " The tables look transposed: samples are rows." if turned else ""
            raise ValueError(
                said(
                    f"X_query has {query.n_features} features and X_reference has "
                    f"{reference.n_features}; they must be the same features, or else use "
                    f"{{@map='affine'}} with {{@divergence='mmd'}}.{hint}"
                )
            )
        tables = [table.select(None) for table in tables]
    for table in tables:
        table.refuse_empty()
    return tables


def _refuse_other_columns(query: list[str], reference: list[str]) -> None:
    known_query, known_reference = set(query), set(reference)
    only_query = [c for c in query if c not in known_reference]
    only_reference = [c for c in reference if c not in known_query]
    if only_query or only_reference:
        parts = [
            f"{name} alone has {listing(columns)}"
            for name, columns in (("X_query", only_query), ("X_reference", only_reference))
            if columns
        ]
        hints = "".join(did_you_mean(c, only_reference) for c in only_query[:3])
        raise ValueError(
            f"X_query and X_reference must have the same columns; {'; '.join(parts)}.{hints}"
        )


def _pair(argument: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError(f"'{argument}' must be a pair (query, reference) in fit_pair.")
    return value


def _series_or_list(argument: str, value: Any, table: Table) -> Any:
    if is_frame(value):
        series = nw.from_native(value, eager_only=True, allow_series=True)
        if isinstance(series, nw.DataFrame):
            if len(series.columns) != 1:
                raise ValueError(f"'{argument}' must be one column. Got {len(series.columns)}.")
            series = series[series.columns[0]]
        check_length(argument, series, table.n_rows, table.name)
        return series
    array = value if isinstance(value, list | tuple) else np.asarray(value)
    if isinstance(array, np.ndarray) and array.ndim != 1:
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        else:
            raise ValueError(f"'{argument}' must be one-dimensional. Got shape {array.shape}.")
    if len(array) != table.n_rows and len(array) == table.n_features:
        raise ValueError(
            f"'{argument}' has {len(array)} entries but {table.name} has {table.n_rows} rows and "
            f"{table.n_features} columns: {table.name} looks transposed. Samples are rows."
        )
    check_length(argument, array, table.n_rows, table.name)
    return array


def _column(table: Table, argument: str, value: Any, reserved: list[str]) -> Any:
    """Return row-wise metadata given as a column name or as values."""
    if isinstance(value, str):
        column = table.column(argument, value)
        reserved.append(value)
        return column
    return _series_or_list(argument, value, table)


def _columns(
    table: Table, confounders: Any, reserved: list[str], argument: str = "confounders"
) -> list[tuple[str, Any]]:
    """Return the confounders as (name, values)."""
    if confounders is None:
        return []
    if isinstance(confounders, str):
        confounders = [confounders]
    if isinstance(confounders, list | tuple) and all(isinstance(c, str) for c in confounders):
        names = list(dict.fromkeys(confounders))
        known = table.columns or []
        missing = [name for name in names if name not in known]
        if not missing:
            return [(name, _column(table, argument, name, reserved)) for name in names]
        if len(confounders) != table.n_rows:  # otherwise: one value per row
            if table.columns is None:
                table.column(argument, names[0])
            raise unknown_columns(argument, missing, known)
    if isinstance(confounders, list | tuple) and {"name", "column"} == {
        "name" if isinstance(c, str) else "column" if hasattr(c, "__len__") else "value"
        for c in confounders
    }:
        raise ValueError(
            f"'{argument}' mixes column names with columns of values. List names only, or pass "
            "values as a data frame or a dictionary of columns."
        )
    if isinstance(confounders, dict):
        return [
            (str(name), _series_or_list(f"{argument}[{name!r}]", values, table))
            for name, values in confounders.items()
        ]
    twice = [c for c, n in Counter(getattr(confounders, "columns", ())).items() if n > 1]
    if twice:
        raise ValueError(f"'{argument}' has duplicate column names: {listing(twice)}.")
    if is_frame(confounders):
        frame = nw.from_native(confounders, eager_only=True, allow_series=True)
        check_length(argument, frame, table.n_rows, table.name)
        if isinstance(frame, nw.DataFrame):
            return [(str(name), frame[name]) for name in frame.columns]
        return [(str(frame.name or "confounder 0"), frame)]
    array = np.asarray(confounders) if not hasattr(confounders, "ndim") else confounders
    if array.ndim == 1:
        return [("confounder 0", _series_or_list(argument, confounders, table))]
    if array.ndim != 2:
        raise ValueError(f"'{argument}' must have one or two dimensions. Got shape {array.shape}.")
    if array.shape[0] != table.n_rows and array.shape[1] == table.n_rows:
        raise ValueError(
            f"'{argument}' has shape {array.shape} but {table.name} has {table.n_rows} rows: it "
            "looks transposed. Samples are rows."
        )
    check_length(argument, array, table.n_rows, table.name)
    return [(f"confounder {j}", array[:, j]) for j in range(array.shape[1])]


def _encode(
    sides: list[list[tuple[str, Any]]], categorical: Any, missing: str, is_query: Array
) -> dict[str, Any]:
    """Encode the confounders of all tables together, and deal with missing values."""
    if missing not in ("raise", "drop", "impute"):
        raise ValueError(f"'missing' must be 'raise', 'drop' or 'impute'. Got {missing!r} instead.")
    names = [name for name, _ in sides[0]]
    declared = _declared(categorical, names)
    confounders = []
    counts: dict[str, int] = {}
    absent = np.zeros(len(is_query), dtype=bool)
    for j, name in enumerate(names):
        columns = [side[j][1] for side in sides]
        confounder = _encode_one(name, columns, name in declared, is_query)
        gaps = confounder.codes < 0 if confounder.values is None else np.isnan(confounder.values)
        n_missing = int(gaps.sum())
        if n_missing:
            if missing == "raise":
                raise ValueError(
                    said(
                        f"Confounder {{name!r}} has {n_missing} missing values (of {len(gaps)}). "
                        "Use {@missing='drop'} to leave these rows out or {@missing='impute'} to "
                        "fill them in.",
                        name=name,
                    )
                )
            counts[name] = n_missing
            if n_missing == len(gaps):
                raise ValueError(f"Confounder {name!r} has no values: all {n_missing} are missing.")
            absent |= gaps
            for side, mine in (("query", is_query), ("reference", ~is_query)):
                if missing == "impute" and gaps[mine].all():
                    raise ValueError(
                        f"Confounder {name!r} is missing in all {side} rows, so nothing can be "
                        "filled in. Leave it out, or get its values."
                    )
            confounder = _filled(confounder, gaps, is_query)
        confounders.append(confounder)
    keep = ~absent if missing == "drop" and absent.any() else None
    for side, mine in (("query", is_query), ("reference", ~is_query)):
        if keep is not None and not keep[mine].any():
            raise ValueError(
                f"No {side} row is left after dropping {int(absent[mine].sum())} rows with missing "
                f"confounders ({', '.join(f'{n}: {c}' for n, c in counts.items())})."
            )
    return {"confounders": confounders, "keep": keep, "missing": counts}


def _encode_one(name: str, columns: list[Any], declared: bool, is_query: Array) -> Confounder:
    kind = _kind(columns)
    if kind == "datetime":
        raise ValueError(
            f"Confounder {name!r} holds dates or times. Convert it to a number, for example of "
            "days, or to categories."
        )
    if kind == "number" and not declared:
        values = np.concatenate(
            [
                np.asarray(c.to_numpy() if isinstance(c, nw.Series) else c, dtype=np.float64)
                for c in columns
            ]
        )
        n_infinite = int(np.isinf(values).sum())
        if n_infinite:
            raise ValueError(f"Confounder {name!r} has {n_infinite} infinite values.")
        if not _has_two_values(values):
            return Confounder(name, [], np.empty(0, dtype=np.int32), values)
    return Confounder(name, *_factorize(columns, name, allow_missing=True))


def _has_two_values(values: Array) -> bool:
    """Tell whether there are at most two different values."""
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return False
    if (known == known[0]).all():
        return True
    second = known[np.argmax(known != known[0])]
    return bool(((known == known[0]) | (known == second)).all())


def _filled(confounder: Confounder, gaps: Array, is_query: Array) -> Confounder:
    """Fill gaps with the median or the most frequent level of the row's domain."""
    values, codes = confounder.values, confounder.codes.copy()
    values = None if values is None else values.copy()
    for side in (is_query, ~is_query):
        known = side & ~gaps
        known = known if known.any() else ~gaps
        if values is None:
            codes[side & gaps] = np.bincount(codes[known]).argmax()
        else:
            values[side & gaps] = np.median(values[known])
    return Confounder(confounder.name, confounder.levels, codes, values)


def _declared(categorical: Any, names: list[str]) -> set[str]:
    if categorical is None:
        return set()
    if isinstance(categorical, str | int):
        categorical = [categorical]
    try:
        wanted = list(categorical)
    except TypeError:
        raise ValueError(
            f"'categorical' must list names or positions of confounders. Got {categorical!r}."
        ) from None
    if wanted and all(isinstance(want, bool | np.bool_) for want in wanted):
        if len(wanted) != len(names):
            raise ValueError(
                f"'categorical' is a mask of {len(wanted)} booleans, but there are {len(names)} "
                "confounders."
            )
        return {name for name, want in zip(names, wanted) if want}
    declared = set()
    for want in wanted:
        if isinstance(want, int | np.integer) and -len(names) <= want < len(names):
            declared.add(names[int(want)])
        elif want in names:
            declared.add(want)
        else:
            raise ValueError(
                f"'categorical' lists {want!r}, which is not a confounder. "
                + (f"The confounders are {listing(names)}." if names else "There are none.")
                + did_you_mean(want, names)
            )
    return declared


def _kind(columns: Sequence[Any]) -> str:
    kinds = set()
    for column in columns:
        if isinstance(column, nw.Series):
            dtype = column.dtype
            if dtype.is_temporal():
                kinds.add("datetime")
            else:
                kinds.add("number" if dtype.is_numeric() else "category")
        else:
            kind = np.asarray(column).dtype.kind
            kinds.add("number" if kind in "iuf" else "datetime" if kind in "mM" else "category")
    return "category" if "category" in kinds else kinds.pop()


def _values(column: Any) -> Iterator[list[Any]]:
    """Yield the values as plain Python objects, a part at a time."""
    for start in range(0, len(column), PART):
        part = column[start : start + PART]
        if isinstance(part, nw.Series):
            yield part.to_list()
        else:
            yield part if isinstance(part, list) else np.asarray(part).tolist()


def _factorize(
    columns: Sequence[Any], name: str, allow_missing: bool = False
) -> tuple[list[Any], Array]:
    """Return the distinct values of all columns, sorted, and each row's number (-1: missing)."""
    number: dict[Any, int] = {}
    n_levels = 0
    codes = np.empty(sum(len(column) for column in columns), dtype=np.int32)
    n_done = 0
    for column in columns:
        for part in _values(column):
            try:
                new = set(part).difference(number)
            except TypeError:
                raise ValueError(
                    f"{name!r} holds values that cannot be compared, such as lists."
                ) from None
            for value in new:
                if _is_missing(value):
                    if not allow_missing:
                        _refuse_missing(columns, name)
                    number[value] = -1
                else:
                    number[value] = n_levels
                    n_levels += 1
            n_new = len(part)
            found = np.fromiter(map(number.__getitem__, part), dtype=np.int32, count=n_new)
            codes[n_done : n_done + n_new] = found
            n_done += n_new
    levels = [value for value, i in number.items() if i >= 0]
    try:
        levels.sort()
    except TypeError:
        levels.sort(key=lambda value: (type(value).__name__, str(value)))
    place = np.full(len(levels) + 1, -1, dtype=np.int32)
    for i, value in enumerate(levels):
        place[number[value]] = i
    return levels, place[codes]  # place[-1] is -1


def _refuse_missing(columns: Sequence[Any], name: str) -> None:
    n_rows = sum(len(column) for column in columns)
    n_missing = sum(
        _is_missing(value) for column in columns for part in _values(column) for value in part
    )
    raise ValueError(
        f"{name!r} has {n_missing} missing values (of {n_rows}). Drop these rows, or give "
        "them a category of their own."
    )


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    return isinstance(value, float | np.floating) and math.isnan(value)
