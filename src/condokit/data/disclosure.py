"""What may be shown of few rows: everything that is printed or saved passes through here."""

from __future__ import annotations

from typing import Any

import numpy as np

from condokit.checks import Array, Sentence

MIN_CELL = 5  # rows of a cell below which its figures are not shown


def told(sentence: str) -> str:
    """Return what may be kept of a sentence in a file: numbers of few rows are hidden."""
    if not isinstance(sentence, Sentence):
        return sentence

    def rows(count: Any) -> str:
        return f"<{MIN_CELL}" if 0 < count < MIN_CELL else f"{count:g}"

    return sentence.told(rows=rows)


def small_cells(counts: Array, least: int = MIN_CELL) -> Array:
    """Mark the cells whose figures are not shown: those with some rows, but fewer than `least`."""
    return (counts > 0) & (counts < least)


def hidden_cells(counts: Array, least: int = MIN_CELL) -> Array:
    """Mark the cells whose means are not shown beside that of all rows.

    Small cells, and the next larger one if together they have too few rows, or are just one: the
    mean of all would tell theirs.
    """
    hidden = small_cells(counts, least)
    if hidden.any() and (hidden.sum() == 1 or counts[hidden].sum() < least):
        hidden[np.where(counts >= least, counts, np.inf).argmin()] = True
    return hidden


def share_of(count: float, total: float, least: int = MIN_CELL) -> str:
    """Word a share of rows for a sentence, unless it is that of too few rows."""
    return f"{count / total:.0%}" if count >= least else "a few"


def hidden_counts(counts: Array, least: int = MIN_CELL) -> list[Any]:
    """Return counts for a table, without those of small cells.

    If there are any, the next larger count is rounded: the total would tell otherwise.
    """
    counts = np.asarray(counts)
    small = small_cells(counts, least)
    shown = [
        f"<{least}" if hide else int(n) if float(n).is_integer() else float(n)
        for n, hide in zip(counts.tolist(), small)
    ]
    larger = counts >= least
    if small.any() and larger.any():
        next_one = int(np.where(larger, counts, np.inf).argmin())
        shown[next_one] = f"~{least * round(float(counts[next_one]) / least)}"
    return shown
