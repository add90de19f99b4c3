"""Disclosure control of what is printed or saved: numbers of small cells are hidden."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from condokit.checks import Array, Sentence, whole

MIN_CELL = 5  # figures of fewer rows are not shown: a common rule for tables of counts


def hiding_few(sentence: str, naming: Callable[[str], str] = str) -> str:
    """Return the text of a sentence with small numbers of rows hidden; see `Sentence`."""
    if not isinstance(sentence, Sentence):
        return sentence
    return sentence.in_words(naming, lambda n: f"<{MIN_CELL}" if small_cells(n) else whole(n))


def shown_names(names: Iterable[Any], counts: Array, least: int = MIN_CELL) -> list[Any]:
    """Return names of cells, "(rare)" for those with few rows."""
    return ["(rare)" if few else name for name, few in zip(names, small_cells(counts, least))]


def hidden_overlap(overlap: dict[str, Any], query: float, reference: float) -> dict[str, Any]:
    """Return the record of an overlap without figures that reveal a few rows."""
    few, rows = shares_of_few(overlap["outside"], query), {"query": query, "reference": reference}
    outside = {n: None if n in few else share for n, share in overlap["outside"].items()}
    effective = {f"effective_{side}": total for side, total in rows.items()}
    worth = {name: rounded_beside(overlap[name], total) for name, total in effective.items()}
    return {**overlap, "outside": outside, **worth}


def too_few(count: Any, least: int = MIN_CELL) -> Any:
    """Tell where there are fewer rows than may be shown, or none."""
    return np.asarray(count) < least


def mean_of(values: Array, least: int = MIN_CELL) -> float | None:
    """Return the mean of the known values, None if they are too few."""
    known = values[~np.isnan(values)]
    return None if too_few(len(known), least) else float(known.mean())


def small_cells(counts: Any, least: int = MIN_CELL) -> Any:
    """Mark the cells whose figures are not shown: those with some rows, but fewer than `least`."""
    return (counts > 0) & (counts < least)


def hidden_cells(counts: Array, least: int = MIN_CELL) -> Array:
    """Mark the cells whose means are not shown together with the mean of all rows."""
    hidden = small_cells(counts, least)
    # one more cell if the hidden mean could be computed as the difference from all rows
    if hidden.any() and (hidden.sum() == 1 or counts[hidden].sum() < least):
        hidden[np.where(counts >= least, counts, np.inf).argmin()] = True
    return hidden


def share_of(count: float, total: float, least: int = MIN_CELL) -> str:
    """Return a share of rows in words; "a few" if it stands for too few rows to be shown."""
    return "a few" if too_few(count, least) else f"{count / total:.0%}"


def number_of(count: int, least: int = MIN_CELL) -> str:
    """Return a number of rows for a sentence, "a few" if it is too small."""
    return "a few" if too_few(count, least) else str(count)


def shares_of_few(shares: dict[str, float], n_rows: float, least: int = MIN_CELL) -> set[str]:
    """Return the names of shares that correspond to fewer than `least` rows."""
    return {name for name, share in shares.items() if 0 < share * n_rows <= least - 0.5}


def rounded_beside(count: float, total: float) -> Any:
    """Return a count, rounded if its difference from the total is that of a small cell."""
    return f"~{MIN_CELL * round(count / MIN_CELL)}" if small_cells(total - count) else count


def counted(count: int) -> str:
    """Return a number of rows for a message, "<5" for a small cell."""
    return f"<{MIN_CELL}" if small_cells(count) else f"{count:,}"


def hidden_counts(counts: Array, least: int = MIN_CELL) -> list[Any]:
    """Return counts for a table, with those of small cells hidden."""
    small, larger = small_cells(counts, least), counts >= least
    shown = [
        f"<{least}" if hide else int(n) if float(n).is_integer() else float(n)
        for n, hide in zip(counts.tolist(), small)
    ]
    if small.any() and larger.any():  # or the total minus the others would be the small count
        next_one = int(np.where(larger, counts, np.inf).argmin())
        shown[next_one] = f"~{least * round(float(counts[next_one]) / least)}"
    return shown


def size_of(shown: Any) -> tuple[float, bool]:
    """Return the approximate size of a count in a table, and whether it is hidden."""
    return float(str(shown).lstrip("<~")), str(shown).startswith("<")
