"""From what the user passes to `Domains`: the checks and conversions of fit and fit_pair."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from condokit.checks import (
    Array,
    check_length,
    check_numbers,
    check_total,
    check_weights,
    check_word,
    did_you_mean,
    listing,
    refusal,
    require_domain,
)
from condokit.data.arrays import sides
from condokit.data.columns import as_array, factorize, kind_of
from condokit.data.domains import Confounder, Domains
from condokit.data.measurements import CODES, looks_like, measurements, mostly_zero
from condokit.data.missing import with_gaps
from condokit.data.noise import calibrated, check_reliability, repeats_of
from condokit.data.tables import Table, as_narwhals, refuse_duplicates

NamedColumns = list[tuple[str, Any]]  # confounders of one table: name and values


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
    reliability: Any = None,
) -> Domains:
    """Read one table whose rows `domain` labels; the checks of `ConDoAdapter.fit`."""
    require_domain(domain)
    roles = confounders, features, groups, sample_weight, categorical, missing, reliability
    return _labelled(X, "domain", domain, None, reference, *roles)[0]


def from_batches(
    X: Any, batch: Any, bridge: Any, *roles: Any
) -> tuple[Domains, Array, list[Any], Array | None]:
    """Read one table whose rows `batch` labels: the checks of `BatchAdapter.fit`.

    Return domains whose reference is the largest batch, the number of each row's batch, the labels,
    and the number of each row's sample among those that were measured in several batches, or -1.
    Roles are those of `from_table` without domain and reference.
    """
    if batch is None:
        raise ValueError(
            "'batch' is required: an array with the batch of each row, or the name of the column "
            "that holds it."
        )
    return _labelled(X, "batch", batch, bridge, None, *roles)


def from_site(
    X: Any, domain: Any, label: Any, *roles: Any
) -> tuple[Domains, Array, list[Any], Array | None]:
    """Read a table as `from_batches`, of any number of labels: of each row, or one `label`."""
    if (domain is None) == (label is None):
        raise refusal("Give either {@'domain'}, the labels of rows, or {@'label'}, one for all.")
    given = domain if label is None else [label] * Table(X).n_rows
    return _labelled(X, "site", given, None, None, *roles)


def _labelled(
    X: Any,
    argument: str,
    given: Any,
    bridge: Any,
    reference: Any,
    confounders: Any,
    features: Any,
    groups: Any,
    sample_weight: Any,
    categorical: Any,
    missing: str,
    reliability: Any = None,
) -> tuple[Domains, Array, list[Any], Array | None]:
    """Read one table with labelled rows; also each row's label, all labels, each row's bridge."""
    table = Table(X)
    reserved: list[str] = []
    said = "domain" if argument == "site" else argument
    labels = one_column(table, said, given, reserved)
    reliability = check_reliability(reliability)
    columns = confounder_columns(table, confounders, reserved, "confounders", reliability)
    group_codes = _group_codes([table], [groups], [reserved])
    if isinstance(sample_weight, str):
        sample_weight = one_column(table, "sample_weight", sample_weight, reserved)
    bridges = None
    if bridge is not None:
        given = one_column(table, "bridge", bridge, reserved)
        names, bridges = factorize([given], "bridge", allow_missing=True)
        bridges[bridges == (names.index("") if "" in names else -1)] = -1
    weights = _weights([table], [sample_weight])
    table.refuse_empty()
    levels, codes = factorize([labels], said)
    if argument == "domain":
        query_label, reference_label = name_domains(levels, len(codes), reference)
    elif len(levels) < 2 and argument == "batch":
        text = "{@'batch'} has the label {only} alone; there is nothing to compare."
        raise refusal(text, only=listing(levels))
    else:
        query_label, reference_label = "other batches", levels[np.bincount(codes).argmax()]
    is_query = codes != levels.index(reference_label)
    left: dict[str, str] = {}
    if features is None and table.columns is not None and not table.is_annotated:
        free = [column for column in table.columns if column not in reserved]
        taken, left = measurements([table], free, is_query)
        features = taken if left else None
    n_zero = 0
    if features is None and table.is_annotated:
        n_zero, features = mostly_zero([table.select(None)], codes)
    table = table.select(features, reserved)
    domains = Domains(
        (table,),
        is_query,
        [],
        labels=(query_label, reference_label),
        weights=weights,
        groups=group_codes,
        left=left,
        unused=_unused([table], [reserved]),
        n_mostly_zero=n_zero,
    )
    how: tuple[Any, ...] = categorical, missing, reliability
    if argument != "domain":
        excused = np.zeros(len(codes), dtype=bool) if bridges is None else bridges >= 0
        how = *how, excused, codes, levels
    return _with_confounders(domains, [columns], *how), codes, levels, bridges


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
    features: Any = None,
    reliability: Any = None,
) -> Domains:
    """Read two tables, perhaps of different features; the checks of `ConDoAdapter.fit_pair`."""
    tables = [Table(X_query, "X_query"), Table(X_reference, "X_reference")]
    if (tables[0].columns is None) != (tables[1].columns is None):
        raise ValueError(
            "X_query and X_reference must both have column names or both have none; "
            f"got {type(X_query).__name__} and {type(X_reference).__name__}."
        )
    if (Z_query is None) != (Z_reference is None):
        raise ValueError("Give Z_query and Z_reference together, or neither.")
    reserved: list[list[str]] = [[], []]
    reliability = check_reliability(reliability)
    query = confounder_columns(tables[0], Z_query, reserved[0], "Z_query", reliability)
    reference = confounder_columns(tables[1], Z_reference, reserved[1], "Z_reference", reliability)
    group_codes = _group_codes(tables, _pair("groups", groups), reserved)
    for table in tables:
        table.refuse_empty()
    is_query = np.repeat([True, False], [table.n_rows for table in tables])
    left: dict[str, str] = {}
    n_zero = 0
    if features is not None:
        query_table = tables[0].select(features, reserved[0])
        tables = [query_table, tables[1].select(query_table.feature_names or features, reserved[1])]
    else:
        tables, left = _select_features(tables, reserved, any_features, is_query)
        if all(table.is_annotated for table in tables) and tables[0].labels == tables[1].labels:
            n_zero, places = mostly_zero(tables, is_query.astype(np.intp))
            tables = tables if places is None else [table.take(places) for table in tables]
    names, by_name = [name for name, _ in query], dict(reference)
    if sorted(names) != sorted(name for name, _ in reference):
        raise ValueError(
            f"Z_query has the columns {listing(names)} but Z_reference has "
            f"{listing(name for name, _ in reference)}; they must be the same confounders."
        )
    reference = [(name, by_name[name]) for name in names]
    weights = _weights(tables, _pair("sample_weight", sample_weight))
    domains = Domains(
        tuple(tables),
        is_query,
        [],
        weights=weights,
        groups=group_codes,
        left=left,
        unused=_unused(tables, reserved),
        n_mostly_zero=n_zero,
    )
    return _with_confounders(domains, [query, reference], categorical, missing, reliability)


def _unused(tables: list[Table], reserved: list[list[str]]) -> tuple[str, ...]:
    """Return the columns of all tables that have no role."""
    taken = {name for names in reserved for name in names}.union(*(t.labels for t in tables))
    shared = set(tables[0].described).intersection(*(t.described for t in tables)) - taken
    return tuple(name for name in tables[0].described if name in shared)


def is_reference_row(domain: Any, table: Table, labels: tuple[Any, Any]) -> Array:
    """Mark the rows that a transform leaves as they are; labels are (query, reference)."""
    query_label, reference_label = labels
    levels, codes = factorize([one_column(table, "domain", domain, [])], "domain")
    strange = [level for level in levels if level not in labels]
    if strange:
        raise ValueError(
            f"'domain' has the label {listing(strange)}, which was not there when fitting; "
            f"known are {query_label!r} (query) and {reference_label!r} (reference)."
        )
    return np.array([level == reference_label for level in levels])[codes]


def batch_of_rows(batch: Any, table: Table, known: list[Any]) -> Array:
    """Return the number of each row's batch among those that have a map."""
    levels, codes = factorize([one_column(table, "batch", batch, [])], "batch")
    place = {_spelled(label): k for k, label in enumerate(known)}
    strange = [level for level in levels if _spelled(level) not in place]
    if strange:
        text = "{@'batch'} has the label {strange}, which has no map; known are {known}.{hint} "
        text += "Learn the map of a new batch with add_batch."
        hint = did_you_mean(strange[0], known)
        raise refusal(text, strange=listing(strange), known=listing(known, 12), hint=hint)
    return np.array([place[_spelled(level)] for level in levels])[codes]


def _spelled(label: Any) -> Any:
    """Return a label so that 1 and "1", True and "True" differ, but 1 and 1.0 do not."""
    return label if isinstance(label, str) else (type(label) is bool, label)


def column_values(table: Table, argument: str, value: Any) -> Array:
    """Return row-wise values, given as such or as a column name, as an array."""
    return as_array(one_column(table, argument, value, []))


def name_domains(labels: list[Any], n_rows: int, reference: Any) -> tuple[Any, Any]:
    """Return (query label, reference label)."""
    if len(labels) != 2:
        few = "; with 1 sample there is nothing to compare" if n_rows == 1 else ""
        text = f"{{@'domain'}} must have exactly two labels. Got {len(labels)} ({{labels}}){few}."
        if len(labels) > 2:
            text += (
                " For one pair of them, {@fit on the rows of two labels}; for all of them, {@use "
            )
            text += "BatchAdapter}."
        raise refusal(text, labels=listing(labels))
    if reference is None:
        if set(labels) == {"query", "reference"}:
            return "query", "reference"
        raise ValueError(
            f"'reference' must name the domain to map to, {labels[0]!r} or {labels[1]!r}: "
            f"for example ConDoAdapter(reference={labels[0]!r}). It may be left out only when the "
            "labels are 'query' and 'reference'."
        )
    if reference not in labels:
        text = "{@'reference'} is {got!r}, but the domain labels are {known}.{hint}"
        hint = did_you_mean(reference, labels)
        raise refusal(text, got=reference, known=listing(labels), hint=hint)
    return next(label for label in labels if label != reference), reference


def _pair(argument: str, value: Any) -> Sequence[Any]:
    if value is None:
        return None, None
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError(f"'{argument}' must be a pair (query, reference) in fit_pair.")
    return value


def _group_codes(
    tables: list[Table], groups: Sequence[Any], reserved: list[list[str]]
) -> Array | None:
    """Return the number of each row's subject; the same label in two tables is one subject."""
    if all(given is None for given in groups):
        return None
    labels = [
        one_column(table, "groups", given, taken)
        if given is not None
        else [(table.name, i) for i in range(table.n_rows)]  # each row is its own subject
        for table, given, taken in zip(tables, groups, reserved)
    ]
    return factorize(labels, "groups")[1]


def _weights(tables: list[Table], weights: Sequence[Any]) -> Array | None:
    """Return the weights of all rows, ones for a table that has none beside one that has."""
    if all(given is None for given in weights):
        return None
    pairs = [(table, 1.0 if given is None else given) for table, given in zip(tables, weights)]
    return np.concatenate([check_weights(w, table.n_rows, table.name) for table, w in pairs])


def _select_features(
    tables: list[Table], reserved: list[list[str]], any_features: bool, is_query: Array
) -> tuple[list[Table], dict[str, str]]:
    """Select the same features in the same order from both tables, or each one's own."""
    query, reference = tables
    if query.columns is None or reference.columns is None:
        if query.n_features != reference.n_features and not any_features:
            turned = query.n_rows == reference.n_rows < min(query.n_features, reference.n_features)
            hint = " The tables look transposed: samples are rows." if turned else ""
            text = f"X_query has {query.n_features} features and X_reference has "
            text += f"{reference.n_features}; they must be the same features, or else use "
            raise refusal(text + "{@map='affine'}." + hint)
    else:
        left, right = (
            [column for column in t.labels if t.is_annotated or column not in taken]
            for t, taken in zip(tables, reserved)
        )
        # tables that share some names are meant to be alike: a typing error, not another assay
        if not any_features or not set(left).isdisjoint(right):
            _refuse_other_columns(left, right)
            if query.is_annotated and reference.is_annotated:
                return [query.select(None, reserved[0]), reference.select(left)], {}
            taken, others = measurements(tables, left, is_query)
            kept = query.select(taken if others else None, reserved[0])
            return [kept, reference.select(taken if others else left)], others
    return [table.select(None, taken) for table, taken in zip(tables, reserved)], {}


def _refuse_other_columns(query: list[str], reference: list[str]) -> None:
    common = set(query).intersection(reference)
    only_query = [column for column in query if column not in common]
    only_reference = [column for column in reference if column not in common]
    if only_query or only_reference:
        alone = {"X_query": only_query, "X_reference": only_reference}
        parts = [f"{name} alone has {listing(found)}" for name, found in alone.items() if found]
        hints = "".join(did_you_mean(c, only_reference) for c in only_query[:3])
        raise ValueError(
            f"X_query and X_reference must have the same columns; {'; '.join(parts)}.{hints}"
        )


def one_column(table: Table, argument: str, value: Any, reserved: list[str]) -> Any:
    """Return row-wise metadata given as a column name or as values."""
    if isinstance(value, str):
        column = table.column(argument, value)
        reserved.append(value)
        return column
    return _series_or_list(argument, value, table)


def _series_or_list(argument: str, value: Any, table: Table) -> Any:
    """Return one value per row, as a narwhals series, a list, a tuple or an array."""
    values: Any = as_narwhals(value)
    if hasattr(values, "columns"):
        if len(values.columns) != 1:
            raise ValueError(f"'{argument}' must be one column. Got {len(values.columns)}.")
        values = values[values.columns[0]]
    elif values is None:
        values = value if isinstance(value, list | tuple) else np.asarray(value)
        if getattr(values, "ndim", 1) != 1:
            if values.shape[1:] != (1,):
                raise ValueError(f"'{argument}' must be one-dimensional. Got shape {values.shape}.")
            values = values[:, 0]
        if len(values) != table.n_rows and len(values) == table.n_features:
            raise ValueError(
                f"'{argument}' has {len(values)} entries but {table.name} has {table.n_rows} rows "
                f"and {table.n_features} columns: {table.name} looks transposed. Samples are rows."
            )
    check_length(argument, values, table.n_rows, table.name)
    return values


def confounder_columns(
    table: Table, given: Any, reserved: list[str], argument: str, reliability: Mapping[Any, Any]
) -> NamedColumns:
    """Return the confounders as (name, values), whichever way they were given."""
    given = [given] if isinstance(given, str) else given
    if given is None:
        return []
    if isinstance(given, list | tuple):
        repeats = repeats_of(reliability)
        if repeats and set(map(str, given)) & repeats.keys():
            reserved += repeats.keys()
            given = [column for name in given for column in repeats.get(name, [name])]
        are_names = [isinstance(value, str) for value in given]
        if all(are_names):
            names = list(dict.fromkeys(given))
            if len(given) != table.n_rows or set(names).issubset(table.described):
                table.refuse_unknown(argument, names)
                return [(name, one_column(table, argument, name, reserved)) for name in names]
        elif any(are_names) and all(hasattr(value, "__len__") for value in given):
            raise ValueError(
                f"'{argument}' mixes column names with columns of values. List names only, or pass "
                "values as a data frame or a dictionary of columns."
            )
    if isinstance(given, dict):
        return [
            (str(name), _series_or_list(f"{argument}[{name!r}]", values, table))
            for name, values in given.items()
        ]
    refuse_duplicates(given, f"'{argument}'")
    frame = as_narwhals(given)
    if frame is not None:
        check_length(argument, frame, table.n_rows, table.name)
        if hasattr(frame, "columns"):
            return [(str(name), frame[name]) for name in frame.columns]
        return [(str(frame.name or "confounder 0"), frame)]
    array = given if hasattr(given, "ndim") else np.asarray(given)
    if array.ndim == 1:
        return [("confounder 0", _series_or_list(argument, given, table))]
    if array.ndim != 2:
        raise ValueError(f"'{argument}' must have one or two dimensions. Got shape {array.shape}.")
    if array.shape[0] != table.n_rows and array.shape[1] == table.n_rows:
        raise ValueError(
            f"'{argument}' has shape {array.shape} but {table.name} has {table.n_rows} rows: it "
            "looks transposed. Samples are rows."
        )
    check_length(argument, array, table.n_rows, table.name)
    return [(f"confounder {j}", array[:, j]) for j in range(array.shape[1])]


def _with_confounders(
    domains: Domains,
    tables: list[NamedColumns],
    categorical: Any,
    missing: str,
    reliability: Mapping[Any, Any],
    excused: Array | None = None,
    site: Array | None = None,
    labels: Any = None,
) -> Domains:
    """Encode the confounders of all tables together, and leave out rows that cannot be used.

    `excused` rows may lack them: what they tell does not rest on confounders. `site` and `labels`
    are the domains in which noisy confounders are calibrated, if these are many.
    """
    check_word("'missing'", missing, ("raise", "drop", "impute"))
    is_query, weights = domains.is_query, domains.weights
    columns, reliability = _gathered(tables, reliability)
    names = list(columns)
    declared = declared_categorical(categorical, names)
    confounders = []
    counts: dict[str, int] = {}
    keep = np.ones(len(is_query), dtype=bool)
    for name in names:
        confounder = _encode(name, columns[name], name in declared)
        gaps = confounder.codes < 0 if confounder.values is None else np.isnan(confounder.values)
        if gaps.any():
            asked = gaps if excused is None else gaps & ~excused
            if asked.any():
                counts[name] = int(asked.sum())
                _check_gaps(name, asked, missing, is_query)
            confounder = _filled(confounder, gaps, is_query)
            if missing == "drop":
                keep &= ~asked
        confounders.append(confounder)
    for side, mine in sides(is_query):
        if not mine.any():  # a site may have one of them alone
            continue
        if not keep[mine].any():
            text = "No {side} row is left after dropping {n:rows} rows with missing confounders "
            raise refusal(text + "({names}).", side=side, n=mine.sum(), names=listing(counts))
        check_total(side, np.inf if weights is None else weights[mine].sum())
    if weights is not None:
        keep &= weights > 0
    kept = None if keep.all() else keep
    domains = replace(domains, confounders=confounders, keep=kept, missing=counts)
    domains = with_gaps(domains, by_side=excused is None)
    return calibrated(domains, reliability, site, labels)


def _gathered(
    tables: list[NamedColumns], reliability: Mapping[Any, Any]
) -> tuple[dict[str, list[Any]], dict[Any, Any]]:
    """Return the columns of every confounder, the mean of those that measure the same one."""
    # and reliabilities, with what was measured in place of names
    columns = {name: [dict(table)[name] for table in tables] for name, _ in tables[0]}
    measured = dict(reliability)
    for name, names in repeats_of(reliability).items():
        if lacking := [one for one in names if one not in columns]:
            what = (
                "{@'reliability'} of {name!r} lists {lacking}, which is not among {@`confounders`}."
            )
            raise refusal(what, name=name, lacking=listing(lacking))
        if text := [o for o in names if not all(kind_of(c).endswith("number") for c in columns[o])]:
            what = "{@'reliability'} of {name!r} lists {text}, which holds no numbers."
            raise refusal(what, name=name, text=listing(text))
        parts = [[as_array(c, np.float64) for c in columns.pop(one)] for one in names]
        values = np.column_stack([np.concatenate(part) for part in parts])
        for one, column in zip(names, values.T):
            check_numbers(one, column)
        known = ~np.isnan(values)
        n = known.sum(axis=1)
        mean = np.where(known, values, 0.0).sum(axis=1) / np.where(n, n, np.nan)
        columns[name], measured[name] = [mean], values
    return columns, measured


def _check_gaps(name: str, gaps: Array, missing: str, is_query: Array) -> None:
    """Refuse missing values of a confounder, or too many of them to be filled in."""
    n_missing = int(gaps.sum())
    if missing == "raise":
        text = f"Confounder {{name!r}} has {{n:rows}} missing values (of {len(gaps)}). Use "
        text += "{@missing='drop'} to leave these rows out or {@missing='impute'} to fill them in."
        raise refusal(text, name=name, n=n_missing)
    if n_missing == len(gaps):
        raise ValueError(f"Confounder {name!r} has no values: all are missing.")
    for side, mine in sides(is_query):
        if missing == "impute" and gaps[mine].all():
            raise ValueError(
                f"Confounder {name!r} is missing in all {side} rows, so nothing can be "
                "filled in. Leave it out, or get its values."
            )


def _encode(name: str, columns: Sequence[Any], declared: bool) -> Confounder:
    """Return a confounder: of numbers if it has more than two and is not declared otherwise."""
    # category before datetime before number before whole number
    kind = min(kind_of(column) for column in columns)
    if kind == "datetime":
        raise ValueError(
            f"Confounder {name!r} holds dates or times. Convert it to a number, for example of "
            "days, or to categories."
        )
    if kind.endswith("number") and not declared:
        values = np.concatenate([as_array(column, np.float64) for column in columns])
        check_numbers(name, values)
        known = values[~np.isnan(values)]
        if len(known) == 0 or not ((known == known.min()) | (known == known.max())).all():
            few = kind == "whole number" and looks_like(known, known == 0) == CODES
            return Confounder(name, [], np.empty(0, dtype=np.int32), values, few)
    levels, codes = factorize(columns, name, allow_missing=True)
    large = [n for n in levels if type(n) is int and abs(n) >= 1 << 63]
    if large and kind == "category" and not declared:
        text = (
            "Confounder {name!r} holds whole numbers beyond 64 bits. Convert it to float, or, if "
        )
        text += "its numbers are categories, {@list it in `categorical`}."
        raise refusal(text, name=name)
    return Confounder(name, levels, codes)


def _filled(confounder: Confounder, gaps: Array, is_query: Array) -> Confounder:
    """Fill gaps with the median or the most frequent level of the row's domain."""
    values, codes = confounder.values, confounder.codes.copy()
    values = None if values is None else values.copy()
    for _, side in sides(is_query):
        known = side & ~gaps
        known = known if known.any() else ~gaps
        if values is None:
            codes[side & gaps] = np.bincount(codes[known]).argmax()
        else:
            values[side & gaps] = np.median(values[known])
    return replace(confounder, codes=codes, values=values)


def declared_categorical(categorical: Any, names: list[str]) -> set[str]:
    """Return the confounders that are declared categorical by name, position or mask."""
    if categorical is None:
        return set()
    if not np.iterable(categorical) and not isinstance(categorical, int):
        raise ValueError(
            f"'categorical' must list names or positions of confounders. Got {categorical!r}."
        )
    wanted = [categorical] if isinstance(categorical, str | int) else list(categorical)
    if wanted and all(isinstance(want, bool | np.bool_) for want in wanted):
        if len(wanted) != len(names):
            raise ValueError(
                f"'categorical' is a mask of {len(wanted)} booleans, but there are {len(names)} "
                "confounders."
            )
        return {name for name, want in zip(names, wanted) if want}
    known = [*names, *range(-len(names), len(names))]
    unknown = [want for want in wanted if want not in known]
    if unknown:
        confounders = f"The confounders are {listing(names)}." if names else "There are none."
        raise ValueError(
            f"'categorical' lists {unknown[0]!r}, which is not a confounder. {confounders}"
            f"{did_you_mean(unknown[0], names)}"
        )
    return {want if want in names else names[int(want)] for want in wanted}
