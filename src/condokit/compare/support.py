"""The confounder values that are compared, with their weights and the rows behind them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from condokit.checks import Array, NoOverlapError, listing
from condokit.data.disclosure import hidden_counts, small_cells
from condokit.data.domains import Strata
from condokit.data.records import Sheet


@dataclass(frozen=True)
class Support:
    """The confounder values that are compared, with their weights and the rows behind them."""

    names: list[str]  # the confounders
    levels: list[tuple[Any, ...]]  # combinations of confounder values, (n_values,) as all below
    weights: Array  # prior weights; they sum to one
    count_query: Array  # rows of each domain (sums of `sample_weight` if given)
    count_reference: Array
    # confounder values seen in one domain only, with their counts: not compared
    dropped: list[dict[str, Any]] = field(default_factory=list)
    # place of each value among all strata
    index: Array = field(default_factory=lambda: np.empty(0, dtype=np.intp), repr=False)

    def place(self, strata: Strata) -> Array:
        """Return the place of every row among the values compared, -1 for rows that are not."""
        place = np.full(len(strata.levels) + 1, -1, dtype=np.int32)  # the last is that of code -1
        place[self.index] = np.arange(len(self.index), dtype=np.int32)
        return place[strata.codes]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the table as columns, ready for a data frame."""
        query, reference = self.count_query.tolist(), self.count_reference.tolist()
        counts = {"weight": self.weights.tolist(), "n_query": query, "n_reference": reference}
        return _columns(self.names, self.levels, counts)

    def __repr__(self) -> str:
        columns = self.to_dict()
        for name, counts in (("n_query", self.count_query), ("n_reference", self.count_reference)):
            columns[name] = hidden_counts(counts)
            if small_cells(counts).any():
                columns.pop("weight", None)  # it would tell them
        text = repr(Sheet(columns))
        if self.dropped:
            left_out = [tuple(row[name] for name in self.names) for row in self.dropped]
            text += f"\nnot compared (one domain only): {listing(left_out)}"
        return text


def no_overlap(strata: Strata) -> NoOverlapError:
    """Word the error for domains that share no stratum, with the table of counts."""
    query, reference = hidden_counts(strata.count_query), hidden_counts(strata.count_reference)
    counts = {"n_query": query, "n_reference": reference}
    columns = _columns(strata.names, strata.levels, counts)
    if len(strata.names) == 1:
        what = f"confounder {strata.names[0]!r} has no level in both domains"
    else:
        what = f"no combination of the confounders {listing(strata.names)} occurs in both domains"
    return NoOverlapError(
        f"{what}.\n{Sheet(columns)!r}\nAdaptation compares like with like: leave a confounder "
        "out, merge its levels, or add samples."
    )


def _columns(
    names: list[str], levels: list[tuple[Any, ...]], counts: dict[str, list[Any]]
) -> dict[str, list[Any]]:
    """Return one column per confounder, renamed if another column has its name, and counts."""
    columns = {}
    for j, name in enumerate(names):
        values = [level[j] for level in levels]
        if len(set(map(str, values))) < len(set(values)):  # 1 and "1" are two levels
            values = [repr(value) for value in values]
        columns[f"{name} (confounder)" if name in counts else name] = values
    return {**columns, **counts}
