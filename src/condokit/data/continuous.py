"""Sums with continuous confounders by cell: products with features, and counts in bins."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from condokit.checks import SMALLEST, Array, listing, refusal
from condokit.data.arrays import ones_for_zeros
from condokit.data.basis import RangeBasis
from condokit.data.products import GroupedProducts
from condokit.data.spots import Rule, Spots
from condokit.io.schema import refuse_if

_BINS = 20  # of the range of each confounder
_REWEIGHTINGS = 8  # iterations of reweighted least squares for curves with heavy-tailed residuals
_MOST_ROBUST = 32  # neighbourhoods of a group in reweighted sums
_RANK = 1e-10  # share of a variance that may be rounding
_LEAST_PART = 0.3  # of a variance, in other groups of rows, that tells slopes
_NU = 4.0  # degrees of freedom of Student's t, whose weights are used for heavy-tailed features


class Continuous:
    """Products of features with functions of continuous confounders, by group, and counts in bins.

    The bins divide the range of each confounder evenly. Parts can be merged in any order, as with
    `GroupedProducts`, if they have the same basis.
    """

    def __init__(self, basis: RangeBasis, n_groups: int, n_features: int) -> None:
        self.basis = basis
        self.products = GroupedProducts(n_groups, basis.n_columns, n_features)
        self.bins = np.zeros((n_groups, len(basis.names), _BINS))
        # products of heavy-tailed features, with weights of Student's t around their curves
        self.robust: dict[int, GroupedProducts] = {}
        # the functions of each group, see `RangeBasis.columns`; a file may hold only some, and
        # then the sums of the others are zero
        self.level = np.full(n_groups, basis.n_bent)
        self.spots: Spots | None = None  # where rows lie, if needed for disclosure control
        # of features in `robust`: how many rows of equal weight the smallest group is worth
        self.smallest: dict[int, float] = {}

    def restrict(self, level: Array | int) -> None:
        """Set the sums of functions above a level to zero."""
        self.level = np.minimum(self.level, level)
        for known in np.unique(self.level[self.level < self.basis.n_bent]):
            gone = np.setdiff1d(np.arange(self.basis.n_columns), self.basis.columns(known))
            at = np.flatnonzero(self.level == known)[:, None]
            for one in (self.products, *self.products.own.values(), *self.robust.values()):
                one.mean[at, gone] = one.scatter[at, gone] = 0.0
                one.scatter[at[:, :, None], np.arange(one.n_columns)[:, None], gone] = 0.0

    def update(self, X: Array, values: Array, groups: Array, weights: Array | None = None) -> None:
        """Add rows of features and of confounders; negative groups are left out."""
        here = groups >= 0
        X, values, groups = X[here], values[here], groups[here]
        weights = None if weights is None else weights[here]
        self.products.update(X, self.basis(values), groups, weights)
        self.restrict(self.level)
        if self.spots is not None:
            self.spots.update(X, values, groups, weights)
        low, high = np.array(self.basis.ranges).T
        place = np.minimum(((values - low) / (high - low) * _BINS).astype(np.intp), _BINS - 1)
        n, p, _ = self.bins.shape
        for j in range(p):
            count = np.bincount(groups * _BINS + place[:, j], weights, n * _BINS)
            self.bins[:, j] += count.reshape(n, _BINS)

    def parts(self) -> "Iterator[tuple[Array, Continuous]]":
        """Yield groups of features with values in the same rows, and their sums."""
        for features, products in self.products.parts():
            part = self.of(features)
            part.products = products
            yield features, part

    def curves(self, values: Array, groups: Array, j: int) -> Array:
        """Return the fitted curve of feature j at each row, minus the mean of the row's group."""
        one = self.robust[j] if j in self.robust else self.products.of(np.array([j]))
        away = self.basis(values) - one.mean[groups, : one.n_columns]
        return np.einsum("nr,nr->n", away, one.roots()[2][groups, :, 0])

    def reweigh(
        self, j: int, x: Array, values: Array, groups: Array, weights: Array, *how: Any
    ) -> None:
        r"""Refit the curves of feature j by reweighted least squares, given all rows.

        Curves have the same slopes in all groups of a label. Weights are those of Student's t,
        :math:`(\nu + 1) / (\nu + e^2 / \sigma^2)`, scaled to mean one. `how` are the label of
        each group, and `least`: rows are summed in neighbourhoods of so many rows or more,
        and where a few would have most of the weight, all count the same.
        """
        label, least = how
        assert self.spots is not None
        known = ~np.isnan(x)
        x, values, groups, weights = x[known], values[known], groups[known], weights[known]
        spots = self.spots.of(np.array([j]))
        number = spots.neighbours(least, _MOST_ROBUST)
        near = spots.of_rows(values, groups, number)
        Phi = spots.functions(number)[near]
        n_near, columns = int(number.max(initial=-1)) + 1, self.basis.columns(self.basis.n_bent)
        self.robust[j] = one = self.products.of(np.array([j]))
        for _ in range(_REWEIGHTINGS):
            n = ones_for_zeros(one.count)
            left = (one.squares[:, 0] - n * (one.roots()[1][:, :, 0] ** 2).sum(axis=1)) / n
            e = x - one.mean[groups, -1] - self.curves(values, groups, j)
            t = (_NU + 1) / (_NU + e**2 / np.maximum(left, SMALLEST**2)[groups])
            mean = np.bincount(near, t, n_near) / ones_for_zeros(np.bincount(near, None, n_near))
            t = np.where((_rows_worth(t * weights, near, n_near) < least)[near], mean[near], t)
            total = np.bincount(groups, t, len(n))
            t /= (total / ones_for_zeros(np.bincount(groups, minlength=len(n))))[groups]
            one = GroupedProducts(len(n), one.n_columns, 1)
            one.update(x[:, None], Phi, groups, t * weights)
            one.share(label)
            for name in np.unique(label):  # smooth curves, as residuals from them are written
                mine = np.flatnonzero(label == name)
                beta = one.smooth(mine, columns, len(self.basis.columns(0)))
                G = one.scatter[np.ix_(mine, columns, columns)]
                one.scatter[mine[:, None], columns, -1] = G @ beta[:, 0]
            self.robust[j] = one
        first = np.unique(number, return_index=True)[1]
        several = np.bincount(spots.cell[first], minlength=len(n)) > 1
        worth = _rows_worth(t * weights, near, n_near)[near][several[groups]]
        self.smallest[j] = float(worth.min(initial=np.inf))

    def cumulants(self) -> tuple[Array, Array, Array]:
        """Return residual variances, explained variances, and the fourth cumulants of curves.

        Each has the shape (n_groups, n_features). Cumulants are computed at the centres of bins, as
        if confounders were independent, since the sums hold no joint distribution of confounders;
        then they are scaled to the explained variance.
        """
        c = self.products.roots()[1]
        columns, n_straight = self.basis.columns(self.basis.n_bent), len(self.basis.columns(0))
        slopes = np.zeros((len(self.bins), self.basis.n_columns, self.products.n_features))
        for g in np.flatnonzero(self.products.count):
            slopes[g, columns] = self.products.smooth(np.array([g]), columns, n_straight)
        n = ones_for_zeros(self.products.count)[:, None]
        second = (c**2).sum(axis=1)
        left = np.maximum(self.products.squares / n - second, 0.0)
        low, high = np.array(self.basis.ranges).T
        sums = np.zeros((2, *second.shape))
        for j in range(len(low)):
            at = np.tile((low + high) / 2, (_BINS, 1))
            at[:, j] = low[j] + (high[j] - low[j]) * (np.arange(_BINS) + 0.5) / _BINS
            share = self.bins[:, j] / ones_for_zeros(self.bins[:, j].sum(axis=1))[:, None]
            curve = self.basis(at) @ slopes  # (n_groups, n_bins, n_features)
            curve -= np.einsum("gb,gbd->gd", share, curve)[:, None]
            m2, m4 = (np.einsum("gb,gbd->gd", share, curve**k) for k in (2, 4))
            sums += np.stack([m2, m4 - 3 * m2**2])
        return left, second, sums[1] * (second / ones_for_zeros(sums[0])) ** 2

    def merge(self, other: "Continuous", place: Array | None = None) -> None:
        """Add the sums of another object; `place` renumbers its groups, -1 leaves one out."""
        if self.basis != other.basis:
            raise ValueError(
                f"The functions of continuous confounders differ: {self.basis} and {other.basis}. "
                "All parts must have the same ranges, and come from the same version of condokit."
            )
        self.products.merge(other.products, place)
        for j, one in other.robust.items():
            if j not in self.robust:
                self.robust[j] = GroupedProducts(len(self.bins), one.n_columns, 1)
            self.robust[j].merge(one, place)
            self.smallest[j] = min(self.smallest.get(j, np.inf), other.smallest.get(j, np.inf))
        to = np.arange(len(other.bins)) if place is None else place
        np.add.at(self.bins, to[to >= 0], other.bins[to >= 0])
        has_rows = (to >= 0) & (other.products.count > 0)
        if other.spots is None and has_rows.any():
            self.spots = None
        elif self.spots is not None and other.spots is not None:
            self.spots.merge(other.spots, place)
        np.minimum.at(self.level, to[has_rows], other.level[has_rows])
        self.restrict(self.level)

    def resized(self, n_groups: int) -> "Continuous":
        """Return a copy with more groups, which are empty."""
        new = Continuous(self.basis, n_groups, self.products.n_features)
        new.spots = self.spots and Spots(self.basis, self.products.n_features)
        new.merge(self)
        return new

    def of(self, features: Array) -> "Continuous":
        """Return some of the features."""
        part = Continuous(self.basis, 0, 0)
        part.products, part.bins = self.products.of(features), self.bins
        part.level, part.spots = self.level, self.spots and self.spots.of(features)
        number = {j: k for k, j in enumerate(features.tolist())}
        part.robust = {number[j]: one for j, one in self.robust.items() if j in number}
        part.smallest = {number[j]: one for j, one in self.smallest.items() if j in number}
        return part

    def suppressed(self, kept: list[int], label: Array, few: float, rule: Rule) -> "Continuous":
        """Return some groups, given their labels, without sums that reveal a few rows.

        Products keep the `rule`, see `Spots`. Bins of a weight below `few` are averaged
        with their neighbours. A feature with less loses its sums.
        Where rows of a weight below `few` lack a feature, its sums of functions are replaced by
        those of all rows, because the difference of the two would be the sums of these few rows.
        """
        place = np.full(len(self.bins), -1)
        place[kept] = np.arange(len(kept))
        found = Continuous(self.basis, len(kept), self.products.n_features)
        found.spots = Spots(self.basis, self.products.n_features)
        found.merge(self, place)
        if found.spots is None:
            raise refusal(
                "Sums with {names} from files of condokit 1.0.0rc1 may reveal single rows. Compute "
                "the statistics from rows again.",
                names=listing(self.basis.names),
            )
        coarse = found.spots.products(label, rule)
        _fill(coarse, found.products, self.basis.names)
        found.products = coarse
        whole, r = found.products, self.basis.n_columns
        own = list(whole.own)  # their columns here end where the first value was missing
        for table in (whole.mean, whole.scatter):
            table[..., [r + j for j in own]] = 0.0
        whole.squares[:, own] = 0.0
        for one in (*whole.own.values(), *found.robust.values()):
            one.forget(one.count < few)
        for one in whole.own.values():
            lacking = whole.count - one.count
            some = (lacking > 0) & (lacking < few)
            one.mean[some, :r] = whole.mean[some, :r]
            share = (one.count / np.maximum(whole.count, 1e-300))[:, None, None]
            for k in np.flatnonzero(some):
                G, S = one.scatter[k, :, :r], one.scatter[k, :, r:]
                one.scatter[k, :, r:] = _as_if(new := whole.scatter[k, :, :r] * share[k], G, S)
                one.scatter[k, :, :r] = new
        bins = [[_coarse(counts, few) for counts in cell] for cell in found.bins]
        found.bins = np.array(bins).reshape(found.bins.shape)
        return found

    @classmethod
    def read(cls, fields: dict[str, Any]) -> "Continuous":
        """Read the fields of a file of schema 1; refuse sums that do not fit the basis."""
        basis = RangeBasis.from_dict(fields["basis"])
        products = GroupedProducts.from_dict(fields["products"])
        robust = {j: GroupedProducts.from_dict(one) for j, one in fields["robust"].items()}
        widths = {one.n_columns for one in (products, *products.own.values(), *robust.values())}
        is_wrong = widths != {basis.n_columns} or fields["bins"].shape[1] != len(basis.names)
        refuse_if(is_wrong, "'continuous.products' or 'bins' do not fit 'continuous.basis'")
        found = cls(basis, 0, 0)
        found.products, found.bins, found.robust = products, fields["bins"], robust
        found.level = np.full(len(found.bins), basis.n_bent)
        return found


def _as_if(new: Array, G: Array, S: Array) -> Array:
    r"""Return products of functions with features as if those of functions, G, were others.

    Groups of the rows that know a feature are not those of all rows, so their functions differ:
    slopes from products of both would be absurd. Along a direction with :math:`v'Gv = \mu v'G'v`,
    G' being the new products, S becomes :math:`S / \mu`, which has the same slope; where
    :math:`\mu` is small it is noise, and is divided by `_LEAST_PART`.
    """
    size = ones_for_zeros(np.sqrt(np.maximum(np.diag(new), 0.0)))
    value, vector = np.linalg.eigh(new / np.outer(size, size))
    good = value > _RANK * len(value)
    W = vector[:, good] / np.sqrt(value[good]) / size[:, None]
    part, Q = np.linalg.eigh(W.T @ G @ W)
    V = W @ Q
    return np.asarray(new @ V / np.maximum(part, _LEAST_PART) @ V.T @ S)


def _rows_worth(w: Array, number: Array, n: int) -> Array:
    """Return for each group how many rows of equal weight it is worth."""
    most = np.zeros(n)
    np.maximum.at(most, number, w)
    return np.asarray(np.bincount(number, w**2, n) / ones_for_zeros(most) ** 2)


def _fill(coarse: GroupedProducts, products: GroupedProducts, names: Any) -> None:
    """Take over the products of groups that were read from files; refuse groups read in part."""
    for j in products.own:
        if j not in coarse.own:
            coarse.own[j] = coarse.of(np.array([j]))
        _fill(coarse.own[j], products.own[j], names)
    read = (coarse.count == 0) & (products.count > 0)
    if (np.abs(coarse.count - products.count)[~read] > 1e-6 * products.count[~read]).any():
        raise refusal(
            "Sums with {names} of a cell are partly from a file and partly from rows, and would "
            "reveal single rows. Compute the statistics of all rows of the cell again.",
            names=listing(names),
        )
    coarse.squares[:] = products.squares
    for name in ("count", "mean", "scatter"):
        getattr(coarse, name)[read] = getattr(products, name)[read]


def _coarse(counts: Array, least: float) -> Array:
    """Average small bins with their neighbours, so that each group has `least` rows or more."""
    edges, total = [0], 0.0
    for k, count in enumerate(counts, 1):
        total += count
        if total >= least:
            edges.append(k)
            total = 0.0
    edges = edges[: max(len(edges) - 1, 1)] if total or edges[-1] < len(counts) else edges[:-1]
    means = np.add.reduceat(counts, edges) / np.diff([*edges, len(counts)])
    return np.repeat(means, np.diff([*edges, len(counts)]))
