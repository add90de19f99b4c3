"""Products of functions of confounders with features, by group: all that regression needs."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.subsets import subsample


class GroupedProducts:
    r"""Count, mean and centred products of columns phi and features x in every group.

    Kept are :math:`\sum_i w_i (\phi_i - \bar\phi)(v_i - \bar v)'` with v = (phi, x), the squares of
    features, and, if asked, their products with `n_crossed` features, evenly taken of all. Two
    parts a, b of a group combine with :math:`\delta \delta' n_a n_b / n`, as in `GroupedScatter`:
    order and split matter for rounding only, and sums are never taken of raw squares.

    Where a feature is missing, the row is left out of this feature's sums alone: from then on it
    has products of its own (`own`), phi's included.
    """

    def __init__(self, n_groups: int, n_columns: int, n_features: int, n_crossed: int = 0) -> None:
        self.crossed = subsample(n_features, n_crossed) if n_crossed else np.zeros(0, np.intp)
        self.n_columns, self.n_features = n_columns, n_features
        wide = n_columns + n_features
        self.count = np.zeros(n_groups)
        self.mean = np.zeros((n_groups, wide))
        self.scatter = np.zeros((n_groups, n_columns + len(self.crossed), wide))
        self.squares = np.zeros((n_groups, n_features))
        self.own: dict[int, GroupedProducts] = {}  # of features that are missing somewhere

    def update(self, X: Array, Phi: Array, groups: Array, weights: Array | None = None) -> None:
        """Add rows; `groups` holds the group number of each, negative numbers are left out."""
        weights = np.ones(len(X)) if weights is None else weights
        keep = (groups >= 0) & (weights > 0)
        if not keep.all():
            X, Phi, groups, weights = X[keep], Phi[keep], groups[keep], weights[keep]
        with np.errstate(invalid="ignore"):
            gaps = () if np.isfinite(X.sum()) else np.flatnonzero(np.isnan(X).any(axis=0))
        for j in sorted({*self.own, *(int(j) for j in gaps)}):
            one = self.own.setdefault(j, self.of(np.array([j])))
            known = ~np.isnan(X[:, j])
            one.update(X[known][:, [j]], Phi[known], groups[known], weights[known])
        V = np.concatenate([Phi, X], axis=1)
        V[:, [self.n_columns + j for j in self.own]] = 0.0
        kind = np.int16 if len(self.count) < 1 << 15 else np.int64  # which sorts fast
        order = np.argsort(groups.astype(kind), kind="stable")
        V, groups, weights = V[order], groups[order], weights[order]
        first = np.flatnonzero(np.diff(groups, prepend=-1))
        r, left = self.n_columns, self._left()
        for start, stop in zip(first, [*first[1:], len(V)]):
            part, w = V[start:stop], weights[start:stop, None]
            origin, n = part[0].copy(), float(w.sum())
            part -= origin  # exact for constants, and safe whatever the offset
            shift = w[:, 0] @ part / n
            part -= shift
            weighted = part[:, left] * w
            squares = np.einsum("ni,ni,n->i", part[:, r:], part[:, r:], w[:, 0])
            self._add(groups[start], n, origin + shift, weighted.T @ part, squares)

    def merge(self, other: "GroupedProducts") -> None:
        """Add what another object has gathered."""
        for j in sorted({*self.own, *other.own}):
            one = self.own.setdefault(j, self.of(np.array([j])))
            one.merge(other.of(np.array([j])))
        for g in np.flatnonzero(other.count):
            self._add(g, other.count[g], other.mean[g], other.scatter[g], other.squares[g])

    def _add(self, g: Any, count: float, mean: Array, scatter: Array, squares: Array) -> None:
        before = self.count[g]
        total, delta = before + count, mean - self.mean[g]
        tie = before * count / total
        self.scatter[g] += scatter + tie * np.outer(delta[self._left()], delta)
        self.squares[g] += squares + tie * delta[self.n_columns :] ** 2
        self.mean[g] += delta * (count / total)
        self.count[g] = total

    def _left(self) -> Array:
        """Return the columns whose products with all others are kept."""
        return np.append(np.arange(self.n_columns), self.n_columns + self.crossed)

    def of(self, features: Array) -> "GroupedProducts":
        """Return some features, or one that is missing in rows of its own, as a new object."""
        if len(features) == 1 and (one := self.own.get(int(features[0]))) is not None:
            return one.of(np.zeros(1, np.intp))
        r = self.n_columns
        part = GroupedProducts(len(self.count), r, len(features))
        columns = np.append(np.arange(r), r + features)
        part.count, part.mean = self.count.copy(), self.mean[:, columns]
        part.scatter, part.squares = self.scatter[:, :r, columns], self.squares[:, features]
        return part

    def parts(self) -> Iterator[tuple[Array, "GroupedProducts"]]:
        """Yield the features that are known in the same rows, and their products."""
        whole = np.setdiff1d(np.arange(self.n_features), list(self.own))
        if len(whole) == self.n_features:
            yield whole, self
            return
        if len(whole):
            yield whole, self.of(whole)
        for j in sorted(self.own):
            yield np.array([j]), self.own[j]

    def regrouped(self, place: Array, n_groups: int) -> "GroupedProducts":
        """Return groups merged: `place` is the new number of each, negative if it is left out."""
        new = GroupedProducts(n_groups, self.n_columns, self.n_features, len(self.crossed))
        for g in np.flatnonzero((place >= 0) & (self.count > 0)):
            own = self.count[g], self.mean[g], self.scatter[g], self.squares[g]
            new._add(place[g], *own)
        new.own = {j: one.regrouped(place, n_groups) for j, one in self.own.items()}
        return new

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers."""
        names = ("count", "mean", "scatter", "squares")
        record: dict[str, Any] = {name: getattr(self, name).tolist() for name in names}
        record.update(n_columns=self.n_columns, n_crossed=len(self.crossed))
        record["own"] = {str(j): one.to_dict() for j, one in self.own.items()}
        return record

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "GroupedProducts":
        """Return what `to_dict` has written."""
        squares = np.array(record["squares"], dtype=float)
        size = squares.shape[0], record["n_columns"], squares.shape[1], record["n_crossed"]
        found = cls(*size)
        for name in ("count", "mean", "scatter", "squares"):
            table = np.array(record[name], dtype=float)
            setattr(found, name, table.reshape(getattr(found, name).shape))
        found.own = {int(j): cls.from_dict(one) for j, one in record["own"].items()}
        return found
