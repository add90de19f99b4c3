"""Roles: which columns of a table are the label, confounders, features, weights, subjects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from condokit.checks import (
    LEAST_WEIGHT,
    Array,
    check_length,
    check_weights,
    check_word,
    did_you_mean,
    listing,
    refusal,
)
from condokit.data.columns import as_array, factorize
from condokit.data.confounders import NamedColumns
from condokit.data.measurements import measurements
from condokit.data.noise import check_reliability, repeats_of
from condokit.data.tables import Table, as_narwhals, refuse_duplicates

AS_VALUES = "(values)"  # stands for a role that was given as values, which are not remembered


@dataclass(frozen=True)
class Roles:
    """The roles that a user gives to columns: names of columns, or the values of all rows."""

    label: Any = None  # the domain or batch of every row
    confounders: Any = None
    features: Any = None
    groups: Any = None  # the subject of every row
    sample_weight: Any = None
    bridge: Any = None  # equal values identify one sample that was measured several times
    categorical: Any = None  # confounders whose numbers are codes of categories
    missing: str = "raise"  # what to do with rows that lack a confounder
    reliability: Any = None  # of confounders that were measured with error
    argument: str = "domain"  # the name of the argument for the label
    confounders_argument: str = "confounders"

    def __post_init__(self) -> None:
        check_word("'missing'", self.missing, ("raise", "drop", "impute"))
        object.__setattr__(self, "reliability", check_reliability(self.reliability))

    @classmethod
    def of_pair(
        cls, Z: tuple[Any, Any], confounders: Any, groups: Any, sample_weight: Any, **others: Any
    ) -> "tuple[Roles, Roles]":
        """Return the roles of two tables, given as names for both or as pairs of values."""
        arguments = "Z_query", "Z_reference"
        if (Z[0] is None) != (Z[1] is None):
            raise ValueError("Give both Z_query and Z_reference, or neither.")
        if confounders is not None:
            if Z[0] is not None:
                raise ValueError("Give confounders or Z_query and Z_reference, not both.")
            Z = _both("confounders", confounders, are_names(confounders))
            arguments = "confounders", "confounders"
        both = {"confounders": Z, "confounders_argument": arguments}
        for name, given in (("groups", groups), ("sample_weight", sample_weight)):
            both[name] = _both(name, given, isinstance(given, str))
        query, reference = (cls(**{n: v[k] for n, v in both.items()}, **others) for k in (0, 1))
        return query, reference

    def read(self, table: Table) -> "RoleColumns":
        """Find all columns that have a role in a table, and refuse those that are not there."""
        taken: list[str] = []
        label = None
        if self.label is not None:
            label = one_column(table, self.argument, self.label, taken)
        columns = confounder_columns(
            table, self.confounders, taken, self.confounders_argument, self.reliability
        )
        others = {
            argument: given if given is None else one_column(table, argument, given, taken)
            for argument, given in (("groups", self.groups), ("bridge", self.bridge))
        }
        weight = self.sample_weight
        if isinstance(weight, str):
            weight = one_column(table, "sample_weight", weight, taken)
        return RoleColumns(table, taken, label, columns, weights=weight, **others)


def remembered(**given: Any) -> dict[str, Any]:
    """Return roles that were given as names, to be used for other tables; else `AS_VALUES`."""
    return {name: value if _names(value) else AS_VALUES for name, value in given.items()}


def recalled(known: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return roles as given here or, where they are None, as given to `fit`."""
    found = {name: known.get(name) if value is None else value for name, value in given.items()}
    if lost := [name for name, value in found.items() if value is AS_VALUES]:
        text = "{names} were given to fit as values. Name their columns here, or give the values."
        raise refusal(text, names=listing(lost))
    return found


def _names(value: Any) -> bool:
    """Return whether a role is given as names or positions of columns, or not at all."""
    is_list = isinstance(value, list | tuple) and all(isinstance(one, str | int) for one in value)
    return value is None or isinstance(value, str) or is_list


@dataclass(frozen=True)
class RoleColumns:
    """The columns of one table that have a role."""

    table: Table
    taken: list[str]  # names of these columns, which cannot be features
    label: Any
    confounders: NamedColumns
    groups: Any = None
    bridge: Any = None
    weights: Any = None


@dataclass(frozen=True)
class Chosen:
    """The chosen features, and why other columns are not features."""

    tables: list[Table]
    left: dict[str, str] = field(default_factory=dict)  # why other columns are not features


def _both(argument: str, given: Any, is_name: bool) -> tuple[Any, Any]:
    """Return a role for each of two tables, given as names for both or as a pair."""
    if given is None or is_name:
        return given, given
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ValueError(
            f"'{argument}' must be a pair (query, reference) in fit_pair, or name columns that "
            f"both tables have. Got {type(given).__name__}."
        )
    return given[0], given[1]


def choose_features(found: Sequence[RoleColumns], features: Any, site: Array) -> Chosen:
    """Select the features by name, or by guessing if none are named, from tables that match."""
    tables, taken = [one.table for one in found], found[0].taken
    if features is not None:
        first = tables[0].select(features, taken)
        names = first.feature_names or features
        return Chosen([first, *(o.table.select(names, o.taken) for o in found[1:])])
    if all(table.is_annotated for table in tables):
        return Chosen([tables[0].select(None), *(t.select(tables[0].labels) for t in tables[1:])])
    if any(table.columns is None for table in tables):
        return Chosen([one.table.select(None, one.taken) for one in found])
    free = [column for column in tables[0].labels if column not in taken]
    names, left = measurements(tables, free, site)
    first = tables[0].select(names if left else None, taken)
    return Chosen([first, *(table.select(first.labels) for table in tables[1:])], left)


def unused_columns(found: Sequence[RoleColumns], tables: Sequence[Table]) -> tuple[str, ...]:
    """Return the columns that all tables have, without a role, and that are not features."""
    taken = {name for one in found for name in one.taken}.union(*(t.labels for t in tables))
    shared = set(tables[0].described).intersection(*(t.described for t in tables)) - taken
    return tuple(name for name in tables[0].described if name in shared)


def subjects(found: Sequence[RoleColumns]) -> Array | None:
    """Return the number of each row's subject; the same label in two tables is one subject."""
    if all(one.groups is None for one in found):
        return None
    labels = [
        one.groups
        if one.groups is not None
        else [(one.table.name, i) for i in range(one.table.n_rows)]  # each row is its own subject
        for one in found
    ]
    return factorize(labels, "groups")[1]


def row_weights(found: Sequence[RoleColumns]) -> Array | None:
    """Return the weights of all rows; if only one table has weights, ones for the other."""
    if all(one.weights is None for one in found):
        return None
    given = [1.0 if one.weights is None else one.weights for one in found]
    each = (check_weights(w, one.table.n_rows, one.table.name) for w, one in zip(given, found))
    return np.concatenate(list(each))


def check_total_weight(total: float, side: str) -> None:
    """Refuse weights of a domain that add up to one row or less."""
    if total == 0:
        text = f"{{@'sample_weight'}} is zero for all {side} rows (weights below {LEAST_WEIGHT:g} "
        raise refusal(text + "count as zero).")
    if total <= 1:
        text = f"{{@'sample_weight'}} sums to {total:g} over the {side} rows. Weights count "
        text += "rows (2 stands for two equal rows): scale them to a mean of about one."
        raise refusal(text)


def one_column(table: Table, argument: str, value: Any, taken: list[str]) -> Any:
    """Return the values of a role, which is given as a column name or as values."""
    if isinstance(value, str):
        column = table.column(argument, value)
        taken.append(str(value))
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


def are_names(given: Any) -> bool:
    """Return whether something is a name, or a list of names."""
    names = [given] if isinstance(given, str) else given
    return isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)


def confounder_columns(
    table: Table, given: Any, taken: list[str], argument: str, reliability: Mapping[Any, Any]
) -> NamedColumns:
    """Return the confounders as (name, values), however they were given."""
    given = [given] if isinstance(given, str) else given
    if given is None:
        return []
    if isinstance(given, list | tuple):
        repeats = repeats_of(reliability)
        if repeats and set(map(str, given)) & repeats.keys():
            taken += repeats.keys()
            given = [column for name in given for column in repeats.get(name, [name])]
        named = [isinstance(value, str) for value in given]
        if all(named):
            names = list(dict.fromkeys(given))
            if len(given) != table.n_rows or set(names).issubset(table.described):
                table.refuse_unknown(argument, names)
                return [(str(name), one_column(table, argument, name, taken)) for name in names]
        elif any(named) and all(hasattr(value, "__len__") for value in given):
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


def name_domains(labels: list[Any], n_rows: int, reference: Any) -> tuple[Any, Any]:
    """Return (query label, reference label)."""
    if len(labels) != 2:
        few = "; with 1 sample there is nothing to compare" if n_rows == 1 else ""
        text = f"{{@'domain'}} must have exactly two labels. Got {len(labels)} ({{labels}}){few}."
        if len(labels) == 1 and n_rows > 1:
            text += " In cross-validation each part needs rows of both: stratify or shuffle."
        if len(labels) > 2:
            text += " To compare two of them, {@fit on the rows of two labels}; to map all of them "
            text += "to one, {@use BatchAdapter}."
        raise refusal(text, labels=listing(labels))
    if reference is None:
        if set(labels) == {"query", "reference"}:
            return "query", "reference"
        raise ValueError(
            f"'reference' must name the domain to map to, {labels[0]!r} or {labels[1]!r}: "
            f"for example ConDoAdapter(reference={labels[0]!r}). It may be omitted only if the "
            "labels are 'query' and 'reference'."
        )
    if reference not in labels:
        text = "{@'reference'} is {got!r}, but the domain labels are {known}.{hint}"
        hint = did_you_mean(reference, labels)
        raise refusal(text, got=reference, known=listing(labels), hint=hint)
    return next(label for label in labels if label != reference), reference


def is_reference_row(domain: Any, table: Table, labels: tuple[Any, Any]) -> Array:
    """Mark the rows that a transform leaves as they are; labels are (query, reference)."""
    query_label, reference_label = labels
    levels, codes = factorize([one_column(table, "domain", domain, [])], "domain")
    strange = [level for level in levels if level not in labels]
    if strange:
        raise ValueError(
            f"'domain' has the label {listing(strange)}, which is unknown. The map was fitted with "
            f"the labels {query_label!r} (query) and {reference_label!r} (reference)."
        )
    return np.array([level == reference_label for level in levels])[codes]


def batch_of_rows(batch: Any, table: Table, known: list[Any]) -> Array:
    """Return the number of each row's batch among those that have a map."""
    levels, codes = factorize([one_column(table, "batch", batch, [])], "batch")
    place = {_spelled(label): k for k, label in enumerate(known)}
    strange = [level for level in levels if _spelled(level) not in place]
    if strange:
        text = "{@'batch'} has the label {strange}, for which there is no map. There are maps for "
        text += "{known}.{hint} Learn the map of a new batch with {@BatchAdapter.add_batch}."
        hint = did_you_mean(strange[0], known)
        raise refusal(text, strange=listing(strange), known=listing(known, 12), hint=hint)
    return np.array([place[_spelled(level)] for level in levels])[codes]


def _spelled(label: Any) -> Any:
    """Return a label so that 1 and "1", True and "True" differ, but 1 and 1.0 do not."""
    return label if isinstance(label, str) else (type(label) is bool, label)


def column_values(table: Table, argument: str, value: Any) -> Array:
    """Return row-wise values, given as such or as a column name, as an array."""
    return as_array(one_column(table, argument, value, []))
