"""Products of functions of confounders with features, by group: all that regression needs."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from condokit.checks import Array

_TABLES = ("count", "mean", "scatter", "squares")


class GroupedProducts:
    r"""Count, mean and centred products of columns phi and features x in every group.

    Kept are :math:`\sum_i w_i (\phi_i - \bar\phi)(v_i - \bar v)'` with v = (phi, x), and squares of
    features. Two parts a, b of a group combine with :math:`\delta \delta' n_a n_b / n`, as in
    `GroupedScatter`: order and split matter for rounding only, and raw squares are never summed.

    Where a feature is missing, the row is left out of this feature's sums alone: from then on it
    has products of its own (`own`), with those of phi in its rows.
    """

    def __init__(self, n_groups: int, n_columns: int, n_features: int) -> None:
        self.n_columns, self.n_features = n_columns, n_features
        wide = n_columns + n_features
        self.count = np.zeros(n_groups)
        self.mean = np.zeros((n_groups, wide))
        self.scatter = np.zeros((n_groups, n_columns, wide))
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
        for j, one in self._apart({*self.own, *map(int, gaps)}):
            known = ~np.isnan(X[:, j])
            one.update(X[known][:, [j]], Phi[known], groups[known], weights[known])
        kind = np.int16 if len(self.count) < 1 << 15 else np.int64  # which sorts fast
        order = np.argsort(groups.astype(kind), kind="stable")
        V, groups, weights = np.empty((len(X), self.mean.shape[1])), groups[order], weights[order]
        r = self.n_columns
        V[:, :r], V[:, r:] = Phi[order], X[order]
        V[:, [r + j for j in self.own]] = 0.0
        first = np.flatnonzero(np.diff(groups, prepend=-1))
        for start, stop in zip(first, [*first[1:], len(V)]):
            part, w = V[start:stop], weights[start:stop]
            origin, n = part[0].copy(), float(w.sum())
            part -= origin  # exact for constants, and safe whatever the offset
            shift = w @ part / n
            part -= shift
            squares = np.einsum("ni,ni,n->i", part[:, r:], part[:, r:], w)
            scatter = (part[:, :r] * w[:, None]).T @ part
            self._add(groups[start], n, origin + shift, scatter, squares)

    def merge(self, other: "GroupedProducts", place: Array | None = None) -> None:
        """Add what another object has gathered; its groups go to a `place` each, -1 is nowhere."""
        for j, one in self._apart({*self.own, *other.own}):
            one.merge(other.of(np.array([j])), place)
        for g in np.flatnonzero(other.count):
            to = g if place is None else place[g]
            if to >= 0:
                self._add(to, *(getattr(other, name)[g] for name in _TABLES))

    def _apart(self, features: set[int]) -> "Iterator[tuple[int, GroupedProducts]]":
        """Yield features with products of their own, which begin as those of all rows so far."""
        for j in sorted(features):
            if j not in self.own:
                self.own[j] = self.of(np.array([j]))
            yield j, self.own[j]

    def _add(self, g: Any, count: float, mean: Array, scatter: Array, squares: Array) -> None:
        before, r = self.count[g], self.n_columns
        total, delta = before + count, mean - self.mean[g]
        tie = before * count / total
        self.scatter[g] += scatter + tie * np.outer(delta[:r], delta)
        self.squares[g] += squares + tie * delta[r:] ** 2
        self.mean[g] += delta * (count / total)
        self.count[g] = total

    def resized(self, n_groups: int) -> "GroupedProducts":
        """Return the same with more groups, empty ones."""
        other = GroupedProducts(n_groups, self.n_columns, self.n_features)
        other.own = {j: one.resized(n_groups) for j, one in self.own.items()}
        here = len(self.count)
        for name in _TABLES:
            getattr(other, name)[:here] = getattr(self, name)
        return other

    def of(self, features: Array) -> "GroupedProducts":
        """Return some of the features, as a new object."""
        if len(features) == 1 and (one := self.own.get(int(features[0]))) is not None:
            return one.of(np.zeros(1, np.intp))
        part = GroupedProducts(len(self.count), self.n_columns, len(features))
        columns = np.append(np.arange(self.n_columns), self.n_columns + features)
        part.count, part.mean = self.count.copy(), self.mean[:, columns]
        part.scatter, part.squares = self.scatter[:, :, columns], self.squares[:, features]
        part.own = {k: self.own[j] for k, j in enumerate(features.tolist()) if j in self.own}
        return part

    def parts(self) -> Iterator[tuple[Array, "GroupedProducts"]]:
        """Yield the features that are known in the same rows, and their products."""
        alike: dict[bytes, list[int]] = {}
        for j in range(self.n_features):
            one = self.own.get(j)
            rows = b"" if one is None else np.round(one.mean[:, : self.n_columns], 9).tobytes()
            alike.setdefault(rows + (b"" if one is None else one.count.tobytes()), []).append(j)
        for features in map(np.array, alike.values()):
            same = self.of(features)
            if own := list(same.own.values()):
                same.count, r = own[0].count, self.n_columns
                for name in ("mean", "scatter"):
                    columns = [getattr(one, name)[..., r:] for one in own]
                    columns.insert(0, getattr(own[0], name)[..., :r])
                    setattr(same, name, np.concatenate(columns, axis=-1))
                same.squares = np.concatenate([one.squares for one in own], axis=1)
                same.own = {}
            yield features, same

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers."""
        record: dict[str, Any] = {name: getattr(self, name).tolist() for name in _TABLES}
        own = {str(j): one.to_dict() for j, one in self.own.items()}
        return {"n_columns": self.n_columns, **record, "own": own}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "GroupedProducts":
        """Return what `to_dict` has written."""
        squares = np.array(record["squares"], dtype=float)
        found = cls(squares.shape[0], record["n_columns"], squares.shape[1])
        for name in _TABLES:
            table = np.array(record[name], dtype=float)
            setattr(found, name, table.reshape(getattr(found, name).shape))
        found.own = {int(j): cls.from_dict(one) for j, one in record["own"].items()}
        return found
