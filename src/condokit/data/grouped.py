"""Means, variances and covariances by group, computed in chunks that merge up to rounding."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from condokit.checks import LARGEST, Array
from condokit.data.arrays import is_constant, ones_for_zeros, sums_of
from condokit.data.subsets import subsample

_ENTRIES = 1 << 17  # entries of a sparse matrix that are summed at a time
_POWERS = "mean", "squares", "third", "fourth"
_MOST_TOGETHER = 32  # features whose products are summed
_FEW_FEATURES = 8  # features up to which outer products of rows are faster than a product per group


class GroupedMoments:
    r"""Count, mean and sums of powers 2 to 4 of deviations of every feature in every group.

    `update` takes a chunk of rows, `merge` another object of the same shape. In any order and any
    split they give the same numbers up to rounding, so that data larger than memory, or spread over
    machines, need nothing else. Two parts :math:`a, b` of a group combine as (Pébay 2008)

    .. math::
        \delta &= \mu_b - \mu_a,\quad n = n_a + n_b,\quad \mu = \mu_a + \delta\, n_b / n,\quad
        M = M_a + M_b + \delta^2 n_a n_b / n, \\
        T &= T_a + T_b + \delta^3 \frac{n_a n_b (n_a - n_b)}{n^2}
            + 3 \delta \frac{n_a M_b - n_b M_a}{n}, \\
        F &= F_a + F_b + \delta^4 \frac{n_a n_b (n_a^2 - n_a n_b + n_b^2)}{n^3}
            + 6 \delta^2 \frac{n_a^2 M_b + n_b^2 M_a}{n^2} + 4 \delta \frac{n_a T_b - n_b T_a}{n}.

    Within a chunk, sums are taken of differences from the group's first row: exact for constants,
    and safe from cancellation whatever the offset of the data.

    With `products`, also the scatter matrices of some features (`few`), from the rows in which all
    of these have a value.
    """

    def __init__(self, n_groups: int, n_features: int, products: bool = False) -> None:
        self.count = np.zeros(n_groups)  # rows; a weight of 2 counts as two
        # (n_groups, n_features): rows with a value, if some lack it
        self.known: Array | None = None
        self.mean, self.squares, self.third, self.fourth = np.zeros((4, n_groups, n_features))
        self.few = subsample(n_features, _MOST_TOGETHER)  # features of the products
        self.products = GroupedScatter(n_groups, len(self.few)) if products else None

    @property
    def n(self) -> Array:
        """How many values are known, shape (n_groups, 1 or n_features)."""
        return self.count[:, None] if self.known is None else self.known

    @property
    def n_values(self) -> Array:
        """How many values of every feature each group has, (n_groups, n_features)."""
        return np.broadcast_to(self.n, self.mean.shape)

    @property
    def sd(self) -> Array:
        """Standard deviations of features in groups (divided by n); 0 for constant features."""
        sd = np.sqrt(self.squares / ones_for_zeros(self.n))
        return np.where(is_constant(sd, self.mean), 0.0, sd)

    def update(
        self, X: Array, groups: Array, weights: Array | None = None, gaps: Array | None = None
    ) -> None:
        """Add rows; `groups` holds the group number of each, negative ones are left out.

        `gaps` marks missing values; the numbers in their place are ignored.
        """
        if gaps is not None:  # gaps become means, so that differences are small; then zeros
            X = np.where(gaps, 0.0, X)
            X = np.where(gaps, X.sum(axis=0) / np.maximum((~gaps).sum(axis=0), 1), X)
        present, count, origin, difference, members, *rows = _differences(
            X, groups, weights, len(self.count)
        )
        known, n = None, count[:, None]
        if gaps is not None:
            lacking = gaps[_used(groups, weights)]
            difference[lacking] = 0.0
            known = members @ (~lacking).astype(float)
            if weights is not None:  # whose sums in another order differ by rounding
                is_whole = members @ lacking.astype(float) == 0
                known = np.where(is_whole, n, np.minimum(known, n))
            n = ones_for_zeros(known)
        power, sums = difference.copy(), []
        for k in range(4):
            sums.append(members @ power / n)
            if k < 3:
                power *= difference
        if self.products is not None:
            some: Any = slice(None) if len(self.few) == X.shape[1] else self.few
            if gaps is None:
                parts = origin[:, some], difference[:, some], members
                self.products.add(present, count, *parts, *rows)
            else:
                complete = np.where(gaps[:, some].any(axis=1), -1, groups)
                self.products.update(X[:, some], complete, weights)
        self.add_means(present, count, known, origin, *sums)

    def update_columns(self, columns: Sequence[Array], groups: Array) -> bool:
        """Add many rows of few groups, as columns; False if a value is missing or too large."""
        n_groups, d = len(self.count), len(columns)
        small = groups.astype(np.int16) if n_groups < 1 << 15 else groups  # far faster to sort
        order = np.argsort(small, kind="stable")
        count = np.bincount(groups[groups >= 0], minlength=n_groups)
        at = np.flatnonzero(count)
        last = len(groups) - count.sum() + np.cumsum(count)[at]
        ends = list(zip(last - count[at], last))
        sums, origin = np.empty((4, len(at), d)), np.empty((len(at), d))
        one, two = np.empty((2, len(groups)))
        with np.errstate(invalid="ignore", over="ignore"):
            for j, column in enumerate(columns):
                np.take(column, order, out=one, mode="clip")
                for k, (start, stop) in enumerate(ends):
                    x, square = one[start:stop], two[start:stop]
                    origin[k, j] = x[0]
                    x -= x[0]
                    np.multiply(x, x, out=square)
                    sums[:, k, j] = x.sum(), square.sum(), square @ x, square @ square
        if not (np.abs(origin) + np.sqrt(sums[1]) <= LARGEST).all():
            return False
        self.add_means(at, count[at] * 1.0, None, origin, *(sums / count[at][:, None]))
        return True

    def add_means(
        self, present: Array, count: Array, known: Array | None, origin: Any, *powers: Array
    ) -> None:
        """Add groups, given the means of the first four powers of differences from an origin.

        From these follow the central moments, of which the fourth is at least the squared variance.
        """
        shift, second, third, fourth = powers
        square = shift**2
        squares = np.maximum(second - square, 0.0)
        cubes = third - shift * (3 * second - 2 * square)
        fourth = fourth - shift * (4 * third - shift * (6 * second - 3 * square))
        parts = [squares, cubes, np.maximum(fourth, squares**2)]
        n = count[:, None] if known is None else known
        self._add(present, count, known, origin + shift, *(n * p for p in parts))

    def update_sparse(
        self, X: Any, columns: Sequence[int], groups: Array, weights: Array | None = None
    ) -> None:
        """Add rows of some columns of a sparse matrix without making it dense."""
        used = groups >= 0
        count = np.bincount(groups[used], None if weights is None else weights[used])
        at = np.flatnonzero(count)
        sums = sparse_sums(X, columns, groups, (1, 2, 3, 4), weights)[:, at]
        self.add_means(at, count[at], None, 0.0, *(sums / count[at][:, None]))

    def merge(self, other: "GroupedMoments", place: Array | None = None) -> None:
        """Add the sums of another object; `place` renumbers its groups, -1 leaves one out."""
        for at, to in without_repeats(other.count, place):
            known = None if other.known is None else other.known[at]
            self._add(to, other.count[at], known, *(getattr(other, name)[at] for name in _POWERS))
        if self.products is None or other.products is None:
            return
        both, mine, theirs = np.intersect1d(self.few, other.few, return_indices=True)
        if len(both) < len(self.few):
            self.few, self.products = both, self.products.of(mine)
        self.products.merge(other.products.of(theirs), place)

    def of(self, features: Any) -> "GroupedMoments":
        """Return some of the features."""
        part = GroupedMoments(0, 0)
        part.count = self.count
        for name in _POWERS:
            setattr(part, name, getattr(self, name)[:, features])
        if self.known is not None:
            known = self.known[:, features]
            same = (known == known[:, :1]).all()
            part.known = None if same else known
            part.count = known[:, 0] if same else self.count
        if self.products is not None:
            number = np.full(self.mean.shape[1], -1)
            number[features] = np.arange(part.mean.shape[1])
            here = np.argsort(number[self.few], kind="stable")
            here = here[number[self.few[here]] >= 0]
            part.few, part.products = number[self.few[here]], self.products.of(here)
        return part

    def resized(self, n_groups: int) -> "GroupedMoments":
        """Return a copy with more groups, which are empty."""
        other = GroupedMoments(n_groups, self.mean.shape[1], self.products is not None)
        other.merge(self)
        return other

    def _add(
        self, present: Array, count: Array, known: Array | None, mean: Array, *sums: Array
    ) -> None:
        """Add sums of other rows to the groups `present`, each of which occurs once."""
        if self.known is None and known is not None:
            self.known = np.repeat(self.count[:, None], self.mean.shape[1], axis=1)
        squares, third, fourth = sums
        new = count[:, None] if known is None else known
        if not self.count[present].any():
            for name, table in zip(_POWERS, (mean, squares, third, fourth)):
                getattr(self, name)[present] = table
            self.count[present] = count
            if self.known is not None:
                self.known[present] = new
            return
        before, old, delta = self.n[present], self.squares[present], mean - self.mean[present]
        square = delta**2
        n, cubes = ones_for_zeros(before + new), self.third[present]
        self.third[present] += third + delta * square * (before * new * (before - new) / n**2)
        self.third[present] += 3 * delta * (before * squares - new * old) / n
        share = before * new * (before**2 - before * new + new**2) / n**3
        self.fourth[present] += fourth + square**2 * share
        self.fourth[present] += 6 * square * (before**2 * squares + new**2 * old) / n**2
        self.fourth[present] += 4 * delta * (before * third - new * cubes) / n
        self.squares[present] += squares + square * (before * new / n)
        self.mean[present] += delta * (new / n)
        self.count[present] += count
        if self.known is not None:
            self.known[present] += new


def without_repeats(count: Array, place: Array | None) -> Iterator[tuple[Array, Array]]:
    """Yield numbers of groups that are not empty, and their new numbers, without repeats in a step.

    Otherwise fancy-indexed += would add only one of several groups with the same new number.
    """
    present = np.flatnonzero(count)
    if place is None:
        yield present, present
        return
    present = present[place[present] >= 0]
    order = present[np.argsort(place[present], kind="stable")]
    first = np.flatnonzero(np.diff(place[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(first, np.diff([*first, len(order)]))
    for k in range(int(rank.max(initial=-1)) + 1):
        at = order[rank == k]
        yield at, place[at]


def sparse_sums(
    X: Any,
    columns: Sequence[int],
    groups: Array,
    powers: Sequence[int],
    weights: Array | None = None,
) -> Array:
    """Return sums of powers of the entries of sparse rows: (n_powers, n_groups, n_columns).

    The power 0 counts entries that are not zero; rows whose group is negative are left out.
    """
    d, nowhere, n_groups = len(columns), -(1 << 61), int(groups.max()) + 1
    number, sums = np.full(X.shape[1], nowhere), np.zeros((len(powers), n_groups * d))
    number[list(columns)] = np.arange(d)
    first = np.where(groups < 0, nowhere, groups.astype(np.intp) * d)
    step = max(1, _ENTRIES * X.shape[0] // max(X.nnz, 1))
    for start in range(0, X.shape[0], step):
        rows, ends = slice(start, start + step), X.indptr[start : start + step + 1]
        entries, sizes = slice(ends[0], ends[-1]), np.diff(ends)
        place, values = np.repeat(first[rows], sizes), X.data[entries]
        place += number[X.indices[entries]]
        w = None if weights is None else np.repeat(weights[rows], sizes)
        if place.min(initial=0) < 0:
            kept = np.flatnonzero(place >= 0)
            place, values, w = place[kept], values[kept], None if w is None else w[kept]
        for k, total in zip(powers, sums):
            part = values.astype(np.float64) ** k if k else values != 0
            total += np.bincount(place, part if w is None else w * part, len(total))
    return sums.reshape(len(powers), n_groups, d)


class GroupedScatter:
    r"""Count, mean and scatter matrix of every group, mergeable in any order.

    The scatter is :math:`\sum_i (x_i - \mu)(x_i - \mu)'`; two parts a, b combine as in
    `GroupedMoments`, with :math:`\delta \delta' n_a n_b / n`.
    """

    def __init__(self, n_groups: int, n_features: int) -> None:
        self.count = np.zeros(n_groups)
        self.mean = np.zeros((n_groups, n_features))
        self.scatter = np.zeros((n_groups, n_features, n_features))

    @property
    def squares(self) -> Array:
        """Sums of squared deviations of every feature."""
        return np.einsum("kii->ki", self.scatter)

    def update(self, X: Array, groups: Array, weights: Array | None = None) -> None:
        """Add rows; `groups` holds the group number of each, negative numbers are left out."""
        self.add(*_differences(X, groups, weights, len(self.count)))

    def add(
        self,
        present: Array,
        count: Array,
        origin: Array,
        difference: Array,
        members: Any,
        group: Array,
        weights: Array,
    ) -> None:
        """Add rows, given the results of `_differences`."""
        shift = members @ difference / count[:, None]
        if (np.diff(group) < 0).any():
            # few numbers are sorted in one pass
            kind = np.uint16 if len(present) < 1 << 16 else group.dtype
            order = np.argsort(group.astype(kind), kind="stable")
            group, weights, difference = group[order], weights[order], difference[order]
        else:
            difference = difference.copy()
        first = np.flatnonzero(np.diff(group, prepend=-1))
        scatter = _scatters(difference, weights, first, shift)
        self._add(present, count, origin + shift, scatter)

    def merge(self, other: "GroupedScatter", place: Array | None = None) -> None:
        """Add the sums of another object; `place` renumbers its groups, -1 leaves one out."""
        for at, to in without_repeats(other.count, place):
            self._add(to, other.count[at], other.mean[at], other.scatter[at])

    def of(self, features: Array) -> "GroupedScatter":
        """Return some of the features."""
        part = GroupedScatter(0, 0)
        part.count, part.mean = self.count, self.mean[:, features]
        part.scatter = self.scatter[:, features[:, None], features]
        return part

    def _add(self, present: Array, count: Array, mean: Array, scatter: Array) -> None:
        """Add sums of other rows to the groups `present`, each of which occurs once."""
        if not self.count[present].any():
            self.scatter[present], self.mean[present] = scatter, mean
            self.count[present] = count
            return
        total = self.count[present] + count
        delta = mean - self.mean[present]
        tie = (self.count[present] * count / total)[:, None, None]
        self.scatter[present] += scatter + tie * delta[:, :, None] * delta[:, None, :]
        self.mean[present] += delta * (count / total)[:, None]
        self.count[present] = total

    def without(self, fold: int, n_folds: int) -> "GroupedScatter":
        """Return the strata from groups (fold, stratum), without one fold; -1 excludes none."""
        rest = GroupedScatter(len(self.count) // n_folds, self.mean.shape[1])
        for f in range(n_folds):
            if f != fold:
                rest.merge(self.fold(f, n_folds))
        return rest

    def fold(self, fold: int, n_folds: int) -> "GroupedScatter":
        """Return the strata of one fold."""
        n_strata = len(self.count) // n_folds
        part, here = GroupedScatter(0, 0), slice(fold * n_strata, (fold + 1) * n_strata)
        part.count, part.mean, part.scatter = self.count[here], self.mean[here], self.scatter[here]
        return part


def _used(groups: Array, weights: Array | None) -> Array:
    """Mark rows that belong to a group and have a positive weight."""
    return groups >= 0 if weights is None else (groups >= 0) & (weights > 0)


def _differences(
    X: Array, groups: Array, weights: Array | None, n_groups: int
) -> tuple[Array, Array, Array, Array, Any, Array, Array]:
    """Return groups that occur, their counts and first rows, and differences of rows from these.

    Then follow the matrix of weights (n_groups, n_rows), which sums rows by group, and the group
    and the weight of each row.
    """
    if groups.min(initial=0) < 0 or (weights is not None and weights.min(initial=1) == 0):
        keep = _used(groups, weights)
        X, groups = X[keep], groups[keep]
        weights = None if weights is None else weights[keep]
    n_rows = len(groups)
    count = np.bincount(groups, weights, minlength=n_groups).astype(np.float64)
    present = np.flatnonzero(count)
    if len(present) < len(count):
        number = np.empty(len(count), dtype=np.intp)
        number[present] = np.arange(len(present))
        groups, count = number[groups], count[present]
    first = np.empty(len(present), dtype=np.intp)
    first[groups[::-1]] = np.arange(n_rows)[::-1]
    origin = X[first]
    difference = origin[groups]
    np.subtract(X, difference, out=difference)
    members = sums_of(groups, len(present), weights)
    weights = np.ones(n_rows) if weights is None else weights
    return present, count, origin, difference, members, groups, weights


def _scatters(rows: Array, weights: Array, first: Array, mean: Array) -> Array:
    """Return the scatter matrices of groups of sorted rows; `first` is where groups begin."""
    d, size = rows.shape[1], np.diff([*first, len(rows)])
    if d <= _FEW_FEATURES and len(first) * d >= len(rows):  # many small groups
        rows -= np.repeat(mean, size, axis=0)
        weighted = weights[:, None] * rows
        return np.add.reduceat(weighted[:, :, None] * rows[:, None, :], first)
    result, equal = np.empty((len(first), d, d)), bool((weights == 1).all())
    for k, (start, n) in enumerate(zip(first, size)):
        part = rows[start : start + n]
        part -= mean[k]
        result[k] = (part.T if equal else part.T * weights[start : start + n]) @ part
    return result


def effective_counts(
    count: Array, squares: Array, clusters: GroupedMoments, stratum: Array
) -> Array:
    r"""Return the effective sample size of each stratum when rows come in clusters.

    With :math:`n_g` rows of cluster g in a stratum of n rows and intra-class correlation
    :math:`\rho`, the variance of a mean is
    :math:`\sigma^2 [n (1 - \rho) + \rho \sum_g n_g^2] / n^2`, so the stratum is worth
    :math:`n^2 / [n (1 - \rho) + \rho \sum_g n_g^2]` rows. :math:`\rho` is the analysis-of-variance
    estimate, averaged over features and strata.

    `count` and `squares` are those of strata. `clusters` has the same rows by (stratum, cluster),
    and `stratum` is the stratum of each of its groups.
    """
    sum_sizes2 = np.bincount(stratum, clusters.count**2, len(count))
    n_clusters = np.bincount(stratum, clusters.count > 0, len(count))
    between_dof = np.maximum(n_clusters - 1, 0).sum()
    within_dof = (count - n_clusters).sum()
    if within_dof <= 0 or between_dof == 0:  # one row per cluster, or one cluster per stratum
        return np.minimum(count, n_clusters)
    within_squares = clusters.squares.sum(axis=0)
    within = within_squares / within_dof
    between = (squares.sum(axis=0) - within_squares) / between_dof
    typical = (count - sum_sizes2 / ones_for_zeros(count)).sum() / between_dof
    spread = between + (typical - 1) * within
    rho = np.where(spread > 0, (between - within) / ones_for_zeros(spread), 0.0)
    rho_mean = float(np.clip(rho, 0.0, 1.0).mean())
    return count**2 / ones_for_zeros(count * (1 - rho_mean) + rho_mean * sum_sizes2)
