"""Functions of continuous confounders over declared ranges, the same wherever rows are."""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from condokit.checks import Array, listing, refusal
from condokit.conditionals.curves import cross
from condokit.data.covariates import Covariates
from condokit.solvers.curves import Cubic
from condokit.solvers.pooled.design import (
    KNOTS,
    MOST_CROSSED,
    Block,
    Design,
    free_columns,
    level_columns,
)

_CROSSED = 4  # functions of a curve, the smoothest, that levels may have of their own
_MOST_PAIRED = 6  # confounders whose products are functions too


@dataclass(frozen=True)
class RangeBasis:
    """Each confounder as it is and bent (a natural cubic spline of fixed knots), and products.

    Knots are spread evenly over the declared range. Rows that are told by these functions are
    `Covariates` whose columns Z hold the values of all functions.
    """

    names: tuple[str, ...]
    ranges: tuple[tuple[float, float], ...]
    n_knots: int = KNOTS

    @classmethod
    def of(cls, ranges: dict[str, tuple[float, float]]) -> "RangeBasis":
        """Take declared ranges such as {"age": (18, 95)}."""
        return cls(tuple(ranges), tuple((float(low), float(high)) for low, high in ranges.values()))

    @cached_property
    def _cubic(self) -> Cubic:
        """The spline in standard units of the range, which all confounders share."""
        ends = np.sqrt(3.0)  # of a uniform distribution with variance 1
        return Cubic(ends * (2 * (np.arange(self.n_knots) + 0.5) / self.n_knots - 1))

    @cached_property
    def _pairs(self) -> list[tuple[int, int]]:
        p = len(self.names)
        return list(combinations(range(p), 2)) if p <= _MOST_PAIRED else []

    @property
    def n_bent(self) -> int:
        """Functions that bend one confounder."""
        return int(self._cubic.turn.shape[1])

    @property
    def n_columns(self) -> int:
        """All functions: linear ones, products of two, and those that bend."""
        return len(self.names) * (1 + self.n_bent) + len(self._pairs)

    def __call__(self, values: Array) -> Array:
        """Return all functions at rows of confounders; those out of their range are refused."""
        low, high = np.array(self.ranges).reshape(-1, 2).T
        outside = ~((values >= low) & (values <= high))
        if outside.any():
            j = int(outside.any(axis=0).argmax())
            odd = values[outside[:, j], j]
            raise refusal(
                "{n:rows} values of {name!r} are missing or out of the declared range {low:g} to "
                "{high:g}, such as {odd}. Declare a wider one at every site with {@`ranges`}, or "
                "leave these rows out.",
                n=len(odd),
                name=self.names[j],
                low=low[j],
                high=high[j],
                odd=listing([f"{value:g}" for value in np.unique(odd)], 3),
            )
        T = (values - (low + high) / 2) * (np.sqrt(12.0) / (high - low))
        paired = [T[:, [i]] * T[:, [j]] for i, j in self._pairs]
        return np.hstack([T, *paired, *(self._cubic.bent(t) for t in T.T)])

    def free(self, at: Covariates) -> tuple[Design, list[Block]]:
        """Return columns that are always fitted, and those that rows are too few to leave free."""
        p = len(self.names)
        return free_columns(at, lambda rows: rows.Z[:, :p], float(at.counts.sum()))

    def candidates(self, at: Covariates) -> list[Block]:
        """Return the blocks that may be added: curves, slopes by level, products."""
        p, K, size = len(self.names), at.n_categories, self.n_bent
        start = p + len(self._pairs)
        bent = [slice(start + k * size, start + (k + 1) * size) for k in range(p)]
        found = [Block(f"curve {k}", _columns(own)) for k, own in enumerate(bent)]
        if self._pairs:
            found.append(Block("products", _columns(slice(p, start))))
        if K > 1 and p * (K - 1) <= MOST_CROSSED:
            found.append(Block("slopes", _crossed(slice(0, p))))
            if _CROSSED * (K - 1) <= MOST_CROSSED:
                ends = (slice(own.stop - _CROSSED, own.stop) for own in bent)
                found += [Block(f"curve {k} by level", _crossed(own)) for k, own in enumerate(ends)]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return names, ranges and the number of knots."""
        ranges = {name: list(ends) for name, ends in zip(self.names, self.ranges)}
        return {"ranges": ranges, "n_knots": self.n_knots}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "RangeBasis":
        """Return what `to_dict` has written."""
        found = cls.of(record["ranges"])
        return cls(found.names, found.ranges, int(record["n_knots"]))


def _columns(own: slice) -> Any:
    return lambda rows: rows.Z[:, own]


def _crossed(own: slice) -> Any:
    return lambda rows: cross(level_columns(rows), rows.Z[:, own])
