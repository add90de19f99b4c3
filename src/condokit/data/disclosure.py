"""What may be shown of few rows: everything that is printed or saved passes through here."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from condokit.checks import Array, Sentence, whole

MIN_CELL = 5  # rows of a cell below which its figures are not shown


def told(sentence: str, naming: Callable[[str], str] = str) -> str:
    """Return what may be kept of a sentence: numbers of few rows are hidden; see `Sentence`."""
    if not isinstance(sentence, Sentence):
        return sentence
    return sentence.told(naming, lambda n: f"<{MIN_CELL}" if small_cells(n) else whole(n))


def shown_names(names: Iterable[Any], counts: Array, least: int = MIN_CELL) -> list[Any]:
    """Return names of cells, without those that few rows have in common."""
    return ["(rare)" if few else name for name, few in zip(names, small_cells(counts, least))]


def hidden_overlap(overlap: dict[str, Any], query: float, reference: float) -> dict[str, Any]:
    """Return the record of an overlap without what tells of a few of so many rows."""
    few, rows = shares_of_few(overlap["outside"], query), {"query": query, "reference": reference}
    outside = {n: None if n in few else share for n, share in overlap["outside"].items()}
    effective = {f"effective_{side}": total for side, total in rows.items()}
    worth = {name: rounded_beside(overlap[name], total) for name, total in effective.items()}
    return {**overlap, "outside": outside, **worth}


def too_few(count: Any, least: int = MIN_CELL) -> Any:
    """Tell where there are too few rows for figures of them to be shown, or none."""
    return np.asarray(count) < least


def mean_of(values: Array, least: int = MIN_CELL) -> float | None:
    """Return the mean of the known values; None for that of too few rows."""
    known = values[~np.isnan(values)]
    return None if too_few(len(known), least) else float(known.mean())


def small_cells(counts: Any, least: int = MIN_CELL) -> Any:
    """Mark the cells whose figures are not shown: those with some rows, but fewer than `least`."""
    return (counts > 0) & (counts < least)


def hidden_cells(counts: Array, least: int = MIN_CELL) -> Array:
    """Mark the cells whose means are not shown beside that of all rows."""
    hidden = small_cells(counts, least)
    # the next larger one too, if the mean of all would tell theirs
    if hidden.any() and (hidden.sum() == 1 or counts[hidden].sum() < least):
        hidden[np.where(counts >= least, counts, np.inf).argmin()] = True
    return hidden


def share_of(count: float, total: float, least: int = MIN_CELL) -> str:
    """Word a share of rows for a sentence, unless it is that of too few rows."""
    return "a few" if too_few(count, least) else f"{count / total:.0%}"


def number_of(count: int, least: int = MIN_CELL) -> str:
    """Word a number of rows for a sentence, unless it is that of a small cell."""
    return "a few" if too_few(count, least) else str(count)


def shares_of_few(shares: dict[str, float], n_rows: float, least: int = MIN_CELL) -> set[str]:
    """Name the shares of all rows that are those of a small cell."""
    return {name for name, share in shares.items() if 0 < share * n_rows <= least - 0.5}


def rounded_beside(count: float, total: float) -> Any:
    """Return a count; rounded if the total beside it would tell the size of a small cell."""
    return f"~{MIN_CELL * round(count / MIN_CELL)}" if small_cells(total - count) else count


def counted(count: int) -> str:
    """Return a number of rows for a message, unless it is that of a small cell."""
    return f"<{MIN_CELL}" if small_cells(count) else f"{count:,}"


def hidden_counts(counts: Array, least: int = MIN_CELL) -> list[Any]:
    """Return counts for a table, without those of small cells."""
    small, larger = small_cells(counts, least), counts >= least
    shown = [
        f"<{least}" if hide else int(n) if float(n).is_integer() else float(n)
        for n, hide in zip(counts.tolist(), small)
    ]
    if small.any() and larger.any():  # the total would tell: the next larger count is rounded
        next_one = int(np.where(larger, counts, np.inf).argmin())
        shown[next_one] = f"~{least * round(float(counts[next_one]) / least)}"
    return shown


def size_of(shown: Any) -> tuple[float, bool]:
    """Return about how large a count in a table is, and whether it is hidden, for a picture."""
    return float(str(shown).lstrip("<~")), str(shown).startswith("<")
