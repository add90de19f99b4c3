"""Our exceptions and warnings, and the checks that word them."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_notes: ContextVar[list[str] | None] = ContextVar("notes", default=None)


class NoOverlapError(ValueError):
    """No confounder value occurs in both domains, so there is nothing to compare."""


class MapFileError(ValueError):
    """A file is not a map that this version of condokit can read."""


class FileError(ValueError):
    """A file cannot be read or written; the message says why in one line."""


class LowOverlapWarning(UserWarning):
    """The comparison rests on a part of the data only."""


class IdentifiabilityWarning(UserWarning):
    """The data do not determine a part of the map, which is then left at its simplest."""


@contextmanager
def noting() -> Iterator[list[str]]:
    """Keep the text of our warnings, whether or not the user wants to see them."""
    notes: list[str] = []
    before = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(before)


@contextmanager
def quietly() -> Iterator[None]:
    """Neither show warnings nor note them."""
    with noting(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def warn(message: str, category: type[Warning], noted: str | None = None) -> None:
    """Warn at the line of the user's code that led here.

    `noted` is what may be kept of a message that names values of subjects.
    """
    notes = _notes.get()
    if notes is not None:
        notes.append(f"{category.__name__}: {noted or message}")
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("condokit"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def listing(items: Iterable[Any], most: int = 5) -> str:
    """Name the first few items: ``'a', 'b', 'c' and 7 more``."""
    items = list(items)
    shown = ", ".join(repr(item) for item in items[:most])
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return a hint naming the nearest known spelling, or an empty string."""
    spelling = {str(k).casefold(): k for k in known}
    close = difflib.get_close_matches(str(name).casefold(), spelling, n=1)
    return f" Did you mean {spelling[close[0]]!r}?" if close else ""


def pick(argument: str, value: Any, named: Mapping[str, Any], base: type) -> Any:
    """Turn the name of an ingredient into an instance; let an instance pass."""
    if isinstance(value, base):
        return value
    if isinstance(value, str) and value in named:
        return named[value]()
    names = ", ".join(repr(name) for name in named)
    raise ValueError(
        f"'{argument}' must be one of {names} or an instance of {base.__name__}. "
        f"Got {value!r} instead.{did_you_mean(value, named)}"
    )


def unknown_columns(argument: str, missing: Sequence[Any], known: Sequence[Any]) -> ValueError:
    """Word the error for names that are not columns of the table."""
    hints = "".join(did_you_mean(name, known) for name in missing[:3])
    return ValueError(
        f"'{argument}' names {listing(missing)}, which X does not have. "
        f"Its columns are {listing(known, 10)}.{hints}"
    )


def infinite(name: str, bad: Mapping[str, int]) -> ValueError:
    """Word the error for infinite values, given how many each column has."""
    where = "; ".join(f"{column}: {n} inf" for column, n in list(bad.items())[:5])
    more = f"; and {len(bad) - 5} more columns" if len(bad) > 5 else ""
    return ValueError(
        f"{name} contains infinity ({where}{more}). Correct these values, set them to NaN if they "
        "are unknown, or leave the columns out with `features`."
    )


def check_number(argument: str, value: Any, low: float, high: float = np.inf) -> None:
    """Refuse a parameter that is no number in a range."""
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        span = f"from {low:g} to {high:g}" if np.isfinite(high) else f"of at least {low:g}"
        raise ValueError(f"'{argument}' must be a number {span}. Got {value!r} instead.")


def check_integer(argument: str, value: Any, low: int) -> None:
    """Refuse a parameter that is no whole number of at least `low`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < low:
        raise ValueError(
            f"'{argument}' must be a whole number of at least {low}. Got {value!r} instead."
        )


def check_seed(random_state: Any) -> int:
    """Return a seed, 0 for None; refuse what is none."""
    seed = 0 if random_state is None else random_state
    check_integer("random_state", seed, 0)
    return int(seed)


def check_length(argument: str, values: Any, n_rows: int, table: str) -> None:
    """Refuse row-wise metadata that does not have one entry per row."""
    if len(values) != n_rows:
        raise ValueError(
            f"'{argument}' has {len(values)} entries but {table} has {n_rows} rows; "
            "one entry per row is needed."
        )


def check_weights(weights: Any, n_rows: int, table: str) -> Array:
    """Return sample weights as non-negative finite float64, one per row."""
    try:
        weights = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"'sample_weight' must hold numbers: {error}.") from None
    if weights.ndim == 0:
        weights = np.full(n_rows, float(weights))
    if weights.ndim != 1:
        raise ValueError(
            "Sample weights must be 1D array or scalar: 'sample_weight' has the shape "
            f"{weights.shape}."
        )
    check_length("sample_weight", weights, n_rows, table)
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError("'sample_weight' must be finite and not negative.")
    return weights
