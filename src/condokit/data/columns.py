"""Columns of any library and kind: what they hold, as arrays, and as numbered levels."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from condokit.checks import Array, refusal

CHUNK_ROWS = 1 << 16  # rows whose metadata are handled at a time
_FEW_LEVELS = 16  # up to this many levels, comparing whole columns is faster than a dictionary


def kind_of(column: Any) -> str:
    """Return "whole number", "number", "datetime" or "category"."""
    if hasattr(column, "to_native"):
        dtype = column.dtype
        numeric, temporal, whole = dtype.is_numeric(), dtype.is_temporal(), dtype.is_integer()
    else:
        kind = np.asarray(column).dtype.kind
        numeric, temporal, whole = kind in "iuf", kind in "mM", kind in "iu"
    if whole:
        return "whole number"
    return "number" if numeric else "datetime" if temporal else "category"


def as_array(column: Any, dtype: Any = None) -> Array:
    """Return a series of any library, or a list, as an array."""
    return np.asarray(column.to_numpy() if hasattr(column, "to_native") else column, dtype)


def _parts(column: Any) -> Iterator[list[Any]]:
    """Yield the values as plain Python objects, a part at a time."""
    for start in range(0, len(column), CHUNK_ROWS):
        part = column[start : start + CHUNK_ROWS]
        if hasattr(part, "to_native"):
            yield part.to_list()
        else:
            yield part if isinstance(part, list) else np.asarray(part).tolist()


def as_text(label: Any) -> str | None:
    """Return a label as it is typed on the command line, None if it is missing."""
    return None if _is_missing(label) or label == "" else str(label)


def factorize(
    columns: Sequence[Any], name: str, allow_missing: bool = False
) -> tuple[list[Any], Array]:
    """Return the distinct values of all columns, sorted, and each row's number (-1: missing)."""
    number: dict[Any, int] = {}  # of every distinct value, in order of appearance
    numbers = [np.empty(0, dtype=np.int32)]
    few = _few_levels(columns[0]) if len(columns) == 1 and len(columns[0]) > CHUNK_ROWS else None
    if few is not None:
        number, numbers = {value: k for k, value in enumerate((*few[0], None))}, [few[1]]
        numbers[0][few[1] < 0] = len(few[0])
    for part in (part for column in columns if few is None for part in _parts(column)):
        try:
            new = set(part).difference(number)
        except TypeError:
            text = f"{name!r} holds values that cannot be compared, such as lists."
            raise ValueError(f"{text} Convert them to text or numbers.") from None
        number.update(zip(new, range(len(number), len(number) + len(new))))
        numbers.append(np.fromiter(map(number.__getitem__, part), np.int32, len(part)))
    levels = in_order(value for value in number if not _is_missing(value))
    place = np.full(len(number), -1, dtype=np.int32)
    for i, value in enumerate(levels):
        place[number[value]] = i
    codes = place[np.concatenate(numbers)]
    n_missing = 0 if allow_missing else int((codes < 0).sum())
    if n_missing:
        text = f"{{name!r}} has {{n:rows}} missing values (of {len(codes)}). Drop these rows, or "
        raise refusal(text + "give them a separate category.", name=name, n=n_missing)
    return levels, codes


def in_order(levels: Iterable[Any]) -> list[Any]:
    """Return distinct values, sorted."""
    levels = list(levels)
    try:
        return sorted(levels)
    except TypeError:
        return sorted(levels, key=lambda value: (type(value).__name__, str(value)))


def number_levels(column: Any, name: str) -> tuple[list[Any], Array]:
    """Return distinct values, in any order, and each row's number (-1: missing)."""
    return _few_levels(column) or factorize([column], name, allow_missing=True)


def _few_levels(column: Any) -> tuple[list[Any], Array] | None:
    """Return distinct values and each row's number (-1: missing), if these are few."""
    codes, levels = np.full(len(column), -2, dtype=np.int32), list[Any]()
    is_series = hasattr(column, "to_native")
    if not is_series:
        column = np.asarray(column)
        if column.dtype == object or column.ndim != 1:  # objects define equality as they like
            return None
    has_gaps = is_series and column.null_count() > 0
    if has_gaps:
        codes[column.is_null().to_numpy()] = -1
    while len(levels) < _FEW_LEVELS and len(codes):
        place = int((codes == -2).argmax())
        if codes[place] != -2:
            return levels, codes
        value = column[place]
        value = value.item() if hasattr(value, "item") else value
        if _is_missing(value):  # such as NaN
            break
        same = column == value
        same = as_array(same.fill_null(False) if has_gaps else same, bool)
        np.copyto(codes, np.int32(len(levels)), where=same)
        levels.append(value)
    return None


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN or a missing value of pandas."""
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    return bool(value != value)  # only NaN is not equal to itself


def compress(values: Array) -> tuple[Array, Array]:
    """Return the distinct non-negative integers and each row's number among them."""
    if values.max() > 4 * len(values) + 1_000_000:
        distinct, codes = np.unique(values, return_inverse=True)
        return distinct, codes.astype(np.int32)
    seen = np.zeros(int(values.max()) + 1, dtype=bool)
    seen[values] = True
    distinct = np.flatnonzero(seen)
    number = np.zeros(len(seen), dtype=np.int32)
    number[distinct] = np.arange(len(distinct))
    return distinct, number[values]
