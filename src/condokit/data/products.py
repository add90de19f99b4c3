"""Sums of products of confounders' functions with features, by group, for regressions."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros
from condokit.data.grouped import without_repeats

_VALUES = 1 << 18  # numbers of a chunk, which stays in cache
_FEWEST_ROWS = 256  # rows of a group in a chunk, on average, at least
_RANK = 1e-14  # share of a variance that may be rounding
_DEPENDENT = 1e-10  # share of a column's variance that others leave, below which it depends on them
_TABLES = ("count", "mean", "scatter", "squares")


class GroupedProducts:
    r"""Count, mean and centred products of columns phi and features x in every group.

    The sums are :math:`\sum_i w_i (\phi_i - \bar\phi)(v_i - \bar v)'` with v = (phi, x), and the
    squares of features. Two parts a, b of a group combine with :math:`\delta \delta' n_a n_b / n`,
    as in `GroupedScatter`. So order and split of rows matter for rounding only, and no squares of
    uncentred values are summed, which would lose digits.

    Where a feature is missing, the row is left out of the sums of this feature only. Such a feature
    therefore has separate products (`own`), with those of phi in the rows where it has a value.
    """

    def __init__(self, n_groups: int, n_columns: int, n_features: int) -> None:
        self.n_columns, self.n_features = n_columns, n_features
        wide = n_columns + n_features
        self.count = np.zeros(n_groups)
        self.mean = np.zeros((n_groups, wide))
        self.scatter = np.zeros((n_groups, n_columns, wide))
        self.squares = np.zeros((n_groups, n_features))
        self.own: dict[int, GroupedProducts] = {}  # separate products of incomplete features

    def update(self, X: Array, Phi: Array, groups: Array, weights: Array | None = None) -> None:
        """Add rows; `groups` holds the group number of each, negative numbers are left out."""
        keep = groups >= 0 if weights is None else (groups >= 0) & (weights > 0)
        if not keep.all():
            X, Phi, groups = X[keep], Phi[keep], groups[keep]
            weights = None if weights is None else weights[keep]
        with np.errstate(invalid="ignore"):
            gaps = () if np.isfinite(X.sum()) else np.flatnonzero(np.isnan(X).any(axis=0))
        for j, one in self._apart({*self.own, *map(int, gaps)}):
            known = ~np.isnan(X[:, j])
            w = None if weights is None else weights[known]
            one.update(X[known][:, [j]], Phi[known], groups[known], w)
        step = max(_FEWEST_ROWS * len(self.count), _VALUES // self.mean.shape[1])
        for start in range(0, len(X), step):
            few = slice(start, start + step)
            w = None if weights is None else weights[few]
            self._update(X[few], Phi[few], groups[few], w)

    def _update(self, X: Array, Phi: Array, groups: Array, weights: Array | None) -> None:
        """Add a chunk of rows that fits in cache."""
        kind = np.int16 if len(self.count) < 1 << 15 else np.int64  # which sorts fast
        order = np.argsort(groups.astype(kind), kind="stable")
        V, r, groups = np.empty((len(X), 1 + self.mean.shape[1])), 1 + self.n_columns, groups[order]
        V[:, 0], V[:, 1:r], V[:, r:] = 1.0, Phi[order], X[order]
        V[:, [r + j for j in self.own]] = 0.0
        first = np.flatnonzero(np.diff(groups, prepend=-1))
        sums, found = np.empty((len(first), r, V.shape[1])), []
        for k, (start, stop) in enumerate(zip(first, [*first[1:], len(V)])):
            part = V[start:stop]
            origin = part[: min(16, 1 << (len(part).bit_length() - 1))].mean(axis=0)
            origin[0] = 0.0  # the mean of 2, 4, 8 or 16 equal values is exact
            part -= origin
            left = part if weights is None else part * weights[order[start:stop], None]
            np.matmul(left[:, :r].T, part, out=sums[k])
            found.append((origin[1:], np.einsum("ni,ni->i", left[:, r:], part[:, r:])))
        if not found:
            return
        origins, squares = map(np.stack, zip(*found))
        n = sums[:, 0, 0]
        shift = sums[:, 0, 1:] / n[:, None]
        scatter = sums[:, 1:, 1:] - (n[:, None] * shift)[:, : r - 1, None] * shift[:, None]
        squares = np.maximum(squares - n[:, None] * shift[:, r - 1 :] ** 2, 0.0)
        self._add(groups[first], n, origins + shift, scatter, squares)

    def merge(self, other: "GroupedProducts", place: Array | None = None) -> None:
        """Add the sums of another object; `place` renumbers its groups, -1 leaves one out."""
        for j, one in self._apart({*self.own, *other.own}):
            one.merge(other.of(np.array([j])), place)
        for at, to in without_repeats(other.count, place):
            self._add(to, *(getattr(other, name)[at] for name in _TABLES))

    def _apart(self, features: set[int]) -> "Iterator[tuple[int, GroupedProducts]]":
        """Yield incomplete features and their products; new ones start with those of all rows."""
        for j in sorted(features):
            if j not in self.own:
                self.own[j] = self.of(np.array([j]))
            yield j, self.own[j]

    def _add(self, to: Any, count: Array, mean: Array, scatter: Array, squares: Array) -> None:
        """Add the sums of other rows to groups, each of which occurs at most once in `to`."""
        before, r = self.count[to], self.n_columns
        total, delta = before + count, mean - self.mean[to]
        tie = before * count / total
        scatter = scatter + tie[:, None, None] * delta[:, :r, None] * delta[:, None]
        self.scatter[to] += scatter
        self.squares[to] += squares + tie[:, None] * delta[:, r:] ** 2
        self.mean[to] += delta * (count / total)[:, None]
        self.count[to] = total

    def roots(self) -> tuple[Array, Array, Array]:
        r"""Return roots A of the covariances :math:`A A'` of columns, and regressions of features.

        The coefficients c, shape (n_groups, n_columns, n_features), are those on
        :math:`A^{-1} (\phi - \bar\phi)`. The third result are the slopes on columns,
        :math:`A^{-1\prime} c`, of the same shape. Directions whose variance is only rounding are
        left out.
        """
        r, n = self.n_columns, ones_for_zeros(self.count)[:, None, None]
        squares = np.einsum("gii->gi", self.scatter[:, :, :r])  # rounding may make them negative
        size = ones_for_zeros(np.sqrt(np.maximum(squares, 0.0) / n[:, 0]))
        R = self.scatter[:, :, :r] / (n * size[:, :, None] * size[:, None, :])
        value, vector = np.linalg.eigh((R + np.swapaxes(R, 1, 2)) / 2)
        root = np.sqrt(np.where(value > _RANK * max(r, 1), value, 0.0))[:, None]
        inverse = vector / size[:, :, None] * np.where(root > 0, 1 / ones_for_zeros(root), 0.0)
        c = np.swapaxes(inverse, 1, 2) @ (self.scatter[:, :, r:] / n)
        return size[:, :, None] * vector * root, c, inverse @ c

    def pooled(
        self, groups: Array, columns: Array, least: float = _DEPENDENT
    ) -> tuple[Array, Array, float]:
        r"""Return the root L of the covariance :math:`L L'` within groups, slopes, and row count.

        L is the Cholesky factor. Slopes are the coefficients :math:`L^{-1} \mathrm{cov}(\phi, x)`
        of features on :math:`L^{-1} (\phi - \bar\phi)`. Columns of which earlier ones leave a share
        of the variance below `least` have zeros.
        """
        n, r = float(self.count[groups].sum()), self.n_columns
        sums = self.scatter[groups].sum(axis=0) / max(n, 1e-300)
        G, S = sums[np.ix_(columns, columns)], sums[columns][:, r:]
        L, c = np.zeros_like(G), np.zeros_like(S)
        for k in range(len(G)):
            for j in range(k):
                if L[j, j] > 0:
                    L[k, j] = (G[j, k] - L[j, :j] @ L[k, :j]) / L[j, j]
            left = G[k, k] - L[k, :k] @ L[k, :k]
            if left > least * G[k, k]:
                L[k, k] = np.sqrt(left)
                c[k] = (S[k] - L[k, :k] @ c[:k]) / L[k, k]
        return L, c, n

    def smooth(self, groups: Array, columns: Array, n_straight: int) -> Array:
        """Return coefficients (n_columns, n_features) of curves within groups, by ridge regression.

        The coefficients of bent functions, after the first `n_straight` columns, have a normal
        prior, whose variance is that of the largest likelihood.
        """
        L, c, n = self.pooled(groups, columns)
        whole = self.squares[groups].sum(axis=0) / max(n, 1e-300)
        explained = (c**2).sum(axis=0)  # not more than the whole but for rounding
        left = np.maximum(whole - explained, _RANK * np.maximum(whole, explained))
        noise = np.maximum(left, 1e-300) / max(n, 1.0)  # variance of the errors of c
        V, d, W = np.linalg.svd(L[n_straight:, n_straight:].T)
        y = (V.T @ c[n_straight:])[:, None]  # (n_bent, 1, n_features)
        ratio = np.append(0.0, np.geomspace(1e-2, 1e6, 33))[:, None] / max(float(d @ d), 1e-300)
        signal = ratio * (d**2)[:, None, None]  # variance of y from the curve, relative to noise
        loss = (y**2 / noise / (1 + signal) + np.log1p(signal)).sum(axis=0)
        kept = np.take_along_axis(signal, loss.argmin(axis=0)[None, None], axis=1)[:, 0]
        bent = W.T @ (y[:, 0] * kept / (1 + kept) / ones_for_zeros(d)[:, None])
        first = L[:n_straight, :n_straight].T
        straight = np.linalg.pinv(first) @ (c[:n_straight] - L[n_straight:, :n_straight].T @ bent)
        return np.vstack([straight, bent])

    def are_possible(self) -> bool:
        """Return whether products of columns can be those of rows, up to rounding."""
        G = self.scatter[:, :, : self.n_columns]
        squares, rounding = np.einsum("gii->gi", G), 1e-6 * self.count[:, None]
        size = np.sqrt(np.maximum(squares, 0.0))
        most = 1.001 * size[:, :, None] * size[:, None] + rounding[:, :, None]
        return bool((squares >= -rounding).all() and (np.abs(G) <= most).all())

    def resized(self, n_groups: int) -> "GroupedProducts":
        """Return a copy with more groups, which are empty."""
        other = GroupedProducts(n_groups, self.n_columns, self.n_features)
        other.merge(self)
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
        """Yield features with values in the same rows, and their products."""
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

    def share(self, label: Array) -> None:
        """Divide the products of each label among its groups, in proportion to their rows."""
        for name in np.unique(label):
            mine = np.flatnonzero(label == name)
            part: Array = self.count[mine] / max(float(self.count[mine].sum()), 1e-300)
            self.scatter[mine] = part[:, None, None] * self.scatter[mine].sum(axis=0)

    def forget(self, groups: Array) -> None:
        """Empty some groups."""
        for name in _TABLES:
            getattr(self, name)[groups] = 0.0

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "GroupedProducts":
        """Return the products in a file of schema 1, whose fields are arrays."""
        found = cls(0, record["n_columns"], record["squares"].shape[1])
        for name in _TABLES:
            setattr(found, name, record[name])
        found.own = {j: cls.from_dict(one) for j, one in record.get("own", {}).items()}
        return found
