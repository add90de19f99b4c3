"""Natural cubic splines, and functions of continuous confounders over declared ranges."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from condokit.checks import Array, refusal

KNOTS = 14  # of a curve
MOST_PAIRED = 6  # confounders whose products are functions too
_RANGE_KNOTS = 10  # over a declared range: more would reveal more of rows, and fit hardly better
# Signs of the functions at the last knot, where they are not near 0. Signs of eigenvectors depend
# on the machine, but files of sites hold sums of these functions, which must add up. With 10 knots
# they are those of files of schema 1, with other numbers of knots all positive.
_SIGNS = {_RANGE_KNOTS: np.array([-1, -1, 1, 1, -1, 1, -1, 1])}


class Cubic:
    """Natural cubic splines of one variable t: the functions 1, t, and bent functions.

    Bent functions are combinations of :math:`|t - k|^3` over knots k, with coefficients orthogonal
    to 1 and k, and scaled so that the squared coefficients of a curve add up to the integral of
    :math:`f''^2`.
    """

    def __init__(self, knots: Array) -> None:
        self.knots = knots
        from scipy.linalg import null_space  # slow to import

        free = null_space(np.stack([np.ones(len(knots)), knots]))
        value, vector = np.linalg.eigh(free.T @ np.abs(knots[:, None] - knots) ** 3 @ free)
        good = value > 1e-9 * value[-1]  # smaller eigenvalues are rounding
        self.turn = free @ (vector[:, good] / np.sqrt(value[good]))

    def bent(self, t: Array) -> Array:
        """Return the bent functions at some points, without 1 and t."""
        away = np.abs(t[:, None] - self.knots)
        return np.asarray((away * away * away) @ self.turn)

    def __call__(self, t: Array) -> Array:
        """Return all functions at some points."""
        return np.column_stack([np.ones(len(t)), t, self.bent(t)])

    def slopes(self, t: Array) -> Array:
        """Return the derivatives of all functions at some points."""
        away = t[:, None] - self.knots
        radial = 3 * away * np.abs(away) @ self.turn
        return np.column_stack([np.zeros(len(t)), np.ones(len(t)), radial])


@dataclass(frozen=True)
class RangeBasis:
    """Functions of continuous confounders: straight lines, products of two, and natural splines.

    The knots of the splines are spread evenly over the declared range.
    """

    names: tuple[str, ...]
    ranges: tuple[tuple[float, float], ...]
    n_knots: int = _RANGE_KNOTS

    @classmethod
    def of(cls, ranges: dict[str, tuple[float, float]]) -> "RangeBasis":
        """Take declared ranges such as {"age": (18, 95)}."""
        return cls(tuple(ranges), tuple((float(low), float(high)) for low, high in ranges.values()))

    @cached_property
    def _cubic(self) -> Cubic:
        """The spline, in units in which a uniform distribution over the range has variance 1."""
        ends = np.sqrt(3.0)  # of a uniform distribution with variance 1
        cubic = Cubic(ends * (2 * (np.arange(self.n_knots) + 0.5) / self.n_knots - 1))
        cubic.turn *= np.where(cubic.turn[-1] < 0, -1, 1) * _SIGNS.get(self.n_knots, 1)
        return cubic

    @property
    def n_pairs(self) -> int:
        """The number of products of two confounders."""
        p = len(self.names)
        return p * (p - 1) // 2 if p <= MOST_PAIRED else 0

    @property
    def n_bent(self) -> int:
        """The number of bent functions of each confounder."""
        return int(self._cubic.turn.shape[1])

    @property
    def n_columns(self) -> int:
        """The number of all functions: straight lines, products of two, and bent ones."""
        return len(self.names) * (1 + self.n_bent) + self.n_pairs

    @property
    def lowest(self) -> int:
        """The lowest level of `columns`: straight lines only."""
        return -1 if self.n_pairs else 0

    def columns(self, level: int) -> Array:
        """Return the numbers of the functions that are used at a level, lower levels first.

        Level -1 has a straight line for each confounder, level 0 also their products, and level k
        also the k smoothest bent functions of each.
        """
        p, n = len(self.names), self.n_bent
        ends = p + self.n_pairs + n * np.arange(1, p + 1) - 1
        bent = [ends - k for k in range(max(level, 0))]
        straight = np.arange(p + (self.n_pairs if level >= 0 else 0))
        return np.concatenate([straight, *bent]).astype(np.intp)

    def check(self, values: Array) -> None:
        """Refuse values of confounders that are missing or out of their declared range."""
        low, high = np.array(self.ranges).T
        outside = ~((values >= low) & (values <= high))
        if outside.any():
            j = int(outside.any(axis=0).argmax())
            x = values[:, j]
            counts = {"below": x < low[j], "above": x > high[j], "missing": np.isnan(x)}
            raise refusal(
                "{n:rows} values of {name!r} are missing or outside its declared range {low:g} to "
                "{high:g} ({missing} missing, {below} below, {above} above). Declare a wider range "
                "at every site with {@`ranges`}, or leave these rows out.",
                **{"n": int(outside[:, j].sum()), "name": self.names[j]},
                **{"low": low[j], "high": high[j]},
                **{name: int(mark.sum()) for name, mark in counts.items()},
            )

    def __call__(self, values: Array) -> Array:
        """Return all functions at rows of confounders; values out of range are refused."""
        self.check(values)
        T = self.standard(values)
        return np.hstack([T, self._pairs(T), *(self._cubic.bent(t) for t in T.T)])

    def standard(self, values: Array) -> Array:
        """Return confounders in units in which a uniform distribution has variance 1."""
        low, high = np.array(self.ranges).T
        return np.asarray((values - (low + high) / 2) * (np.sqrt(12.0) / (high - low)))

    def _pairs(self, T: Array) -> Array:
        """Return the products of every two columns, if they are functions."""
        return paired(T) if self.n_pairs else T[:, :0]

    @property
    def n_quadratic(self) -> int:
        """The number of columns of `quadratic`."""
        return 2 * len(self.names) + self.n_pairs

    def quadratic(self, values: Array) -> Array:
        """Return confounders in standard units, their squares, and products of two."""
        T = self.standard(values)
        return np.hstack([T, T**2, self._pairs(T)])

    def of_groups(self, Q: Array) -> Array:
        """Return all functions of groups of rows, given the means of `quadratic`.

        Bent functions are those of two points, one standard deviation below and above the mean.
        """
        p, end = len(self.names), np.sqrt(3.0)
        mean, square, pairs = np.split(Q, [p, 2 * p], axis=1)
        sd = np.sqrt(np.maximum(square - mean**2, 0.0))
        points = [np.clip(one, -end, end) for one in (mean - sd, mean + sd)]
        bent = [sum(self._cubic.bent(t[:, j]) for t in points) / 2 for j in range(p)]
        return np.hstack([mean, pairs, *bent])

    def to_dict(self) -> dict[str, Any]:
        """Return names, ranges and the number of knots."""
        ranges = {name: list(ends) for name, ends in zip(self.names, self.ranges)}
        return {"ranges": ranges, "n_knots": self.n_knots}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "RangeBasis":
        """Return what `to_dict` has written."""
        found = cls.of(record["ranges"])
        return cls(found.names, found.ranges, record["n_knots"])


def paired(Z: Array) -> Array:
    """Return the products of every two columns."""
    one, other = np.triu_indices(Z.shape[1], 1)
    return np.asarray(Z[:, one] * Z[:, other])
