"""How confounders are read: their kind, their levels, and rows where they are missing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from condokit.checks import LARGEST, Array, did_you_mean, is_number, listing, refusal, sizes
from condokit.data.columns import as_array, factorize, kind_of
from condokit.data.disclosure import MIN_CELL
from condokit.data.measurements import CODES, looks_like
from condokit.data.noise import repeats_of
from condokit.data.study import Confounder

NamedColumns = list[tuple[str, Any]]  # confounders of one table: name and values


def encode(name: str, columns: Sequence[Any], declared: bool = False) -> Confounder:
    """Return a confounder: continuous if it has more than two numbers and is not `declared`."""
    kind = refuse_dates(name, columns)
    if kind.endswith("number") and not declared:
        values = np.concatenate([as_array(column, np.float64) for column in columns])
        refuse_extreme_numbers(name, values)
        known = values[~np.isnan(values)]
        if len(known) == 0 or not has_two_values(known):
            gaps, few = len(values) - len(known), may_be_codes(kind, known)
            return Confounder(name, True, values=values, n_missing=gaps, may_be_codes=few)
    levels, codes = factorize(columns, name, allow_missing=True)
    large = [n for n in levels if type(n) is int and abs(n) >= 1 << 63]
    if large and kind == "category" and not declared:
        text = "Confounder {name!r} holds whole numbers beyond 64 bits. Convert it to float; if "
        raise refusal(text + "they are categories, {@list it in `categorical`}.", name=name)
    return Confounder(name, False, levels, codes, n_missing=int((codes < 0).sum()))


def as_number(confounder: Confounder) -> Confounder:
    """Return a confounder as continuous, even if it has only two values."""
    if confounder.is_number:
        return confounder
    if not all(map(is_number, confounder.levels)):
        text = "{@'ranges'} names {name!r}, which is not numeric or was declared categorical."
        raise refusal(text, name=confounder.name)
    values = confounder.as_given().astype(float)
    return replace(confounder, is_number=True, values=values, levels=[])


def refuse_dates(name: str, columns: Sequence[Any]) -> str:
    """Return the kind of a confounder; refuse dates, which are neither numbers nor categories."""
    # of several columns the first in the alphabet: category, datetime, number, whole number
    kind = min(kind_of(column) for column in columns)
    if kind == "datetime":
        raise ValueError(
            f"Confounder {name!r} holds dates or times. Convert it to a number, for example the "
            "number of days, or to categories."
        )
    return kind


def refuse_extreme_numbers(name: str, values: Array) -> None:
    """Refuse a confounder of numbers that are infinite, or too large to compute with."""
    if n := int(np.isinf(values).sum()):
        text = "Confounder {name!r} has {n:rows} infinite values. Correct them, or set them to NaN."
        raise refusal(text, name=name, n=n)
    most = float(sizes(values))
    if most > LARGEST:
        text = "Confounder {name!r} has values of up to {most:.3g}, which are too large to compute "
        text += "with (the limit is {largest:g}). Rescale it, for example to multiples of "
        text += "{unit:.0e}; if such values mark unknown ones, set them to NaN."
        unit = 10.0 ** np.floor(np.log10(most))
        raise refusal(text, name=name, most=most, largest=LARGEST, unit=unit)


def has_two_values(values: Array) -> bool:
    """Return whether numbers have at most two distinct values, and so are taken as categories."""
    known = values[~np.isnan(values)]
    low, high = known.min(initial=np.inf), known.max(initial=-np.inf)
    return bool(((known == low) | (known == high)).all())


def may_be_codes(kind: str, known: Array) -> bool:
    """Return whether a confounder has few distinct whole numbers, which may be codes."""
    return kind == "whole number" and looks_like(known, known == 0) == CODES


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


def mean_of_repeats(
    tables: list[NamedColumns], reliability: Mapping[Any, Any]
) -> tuple[dict[str, list[Any]], dict[Any, Any]]:
    """Return the columns of every confounder, and the reliabilities.

    Columns that are repeated measurements of one confounder become their mean, and the measurements
    themselves take the place of their names in the reliabilities.
    """
    columns = {name: [dict(table)[name] for table in tables] for name, _ in tables[0]}
    measured = dict(reliability)
    for name, names in repeats_of(reliability).items():
        if lacking := [one for one in names if one not in columns]:
            text = "{@'reliability'} of {name!r} lists {which}, which is not in {@`confounders`}."
            raise refusal(text, name=name, which=listing(lacking))
        if odd := [o for o in names if not all(kind_of(c).endswith("number") for c in columns[o])]:
            text = "{@'reliability'} of {name!r} lists {which}, which is not numeric."
            raise refusal(text, name=name, which=listing(odd))
        parts = [[as_array(c, np.float64) for c in columns.pop(one)] for one in names]
        values = np.column_stack([np.concatenate(part) for part in parts])
        for one, column in zip(names, values.T):
            refuse_extreme_numbers(one, column)
        known = ~np.isnan(values)
        n = known.sum(axis=1)
        mean = np.where(known, values, 0.0).sum(axis=1) / np.where(n, n, np.nan)
        columns[name], measured[name] = [mean], values
    return columns, measured


def refuse_gaps(name: str, n_missing: int, n_rows: int, missing: str, hint: bool = True) -> None:
    """Refuse missing values of a confounder, unless `missing` says what to do with them.

    The hint at imputation is omitted where it would need all rows in memory.
    """
    if n_missing and missing == "raise":
        text = f"Confounder {{name!r}} has {{n:rows}} missing values (of {n_rows}). Use "
        text += "{@missing='drop'} to leave these rows out"
        text += " or {@missing='impute'} to fill them in." if hint else "."
        raise refusal(text, name=name, n=n_missing)
    if n_missing == n_rows:
        raise ValueError(f"Confounder {name!r} has no values: all are missing.")


def fill_gaps(
    confounder: Confounder, gaps: Array, site: Array, labels: Sequence[Any]
) -> Confounder:
    """Impute missing values by the median or the most frequent level in the row's domain."""
    values, codes = confounder.values, confounder.codes.copy()
    values = None if values is None else values.copy()
    for label in range(len(labels)):
        lacking, known = (site == label) & gaps, (site == label) & ~gaps
        if not lacking.any():
            continue
        known = known if known.any() else ~gaps
        if values is None:
            codes[lacking] = np.bincount(codes[known]).argmax()
        else:
            values[lacking] = np.median(values[known])
    return replace(confounder, codes=codes, values=values)


def refuse_few_known(
    name: str, gaps: Array, site: Array, labels: Sequence[Any], are_sides: bool
) -> None:
    """Refuse to impute a confounder that is missing in all rows of a domain, or in all but few."""
    for k, label in enumerate(labels):
        mine = gaps[site == k]
        if mine.any() and (~mine).sum() < min(MIN_CELL, mine.sum()):
            of = f"{label} rows" if are_sides else f"rows of {label!r}"
            where = f"all {of}" if mine.all() else f"all but fewer than {MIN_CELL} {of}"
            raise ValueError(
                f"Confounder {name!r} is missing in {where}, so that it cannot be imputed. Leave "
                "it out, or get its values."
            )
