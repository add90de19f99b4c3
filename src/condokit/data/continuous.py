"""What is known of continuous confounders by cells: products with features, and counts in bins."""

from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.basis import RangeBasis
from condokit.data.products import GroupedProducts

_BINS = 20


class Continuous:
    """Products of a basis with features, and counts of confounders in bins of their range.

    Parts merge in any order, as `GroupedProducts` do; those of another basis do not.
    """

    def __init__(self, basis: RangeBasis, n_groups: int, n_features: int) -> None:
        self.basis = basis
        self.products = GroupedProducts(n_groups, basis.n_columns, n_features)
        self.bins = np.zeros((n_groups, len(basis.names), _BINS))

    @property
    def fewest_rows(self) -> int:
        """The fewest rows of a cell that is written: twice the sums that tell of their values.

        From as many sums of functions as there are rows, the values of a confounder can be found.
        """
        per_confounder = -(-self.basis.n_products // len(self.basis.names))
        return 2 * max(self.basis.n_columns + 2, per_confounder)

    def update(self, X: Array, values: Array, groups: Array, weights: Array | None = None) -> None:
        """Add rows of features and of confounders; negative groups are left out."""
        here = groups >= 0
        X, values, groups = X[here], values[here], groups[here]
        weights = None if weights is None else weights[here]
        self.products.update(X, self.basis(values), groups, weights)
        low, high = np.array(self.basis.ranges).T
        place = np.minimum(((values - low) / (high - low) * _BINS).astype(np.intp), _BINS - 1)
        n, p, _ = self.bins.shape
        for j in range(p):
            count = np.bincount(groups * _BINS + place[:, j], weights, n * _BINS)
            self.bins[:, j] += count.reshape(n, _BINS)

    def merge(self, other: "Continuous", place: Array | None = None) -> None:
        """Add what another object has gathered; its groups go to a `place` each, -1 is nowhere."""
        if self.basis != other.basis:
            raise ValueError(
                f"Functions of continuous confounders differ: {self.basis} and {other.basis}. All "
                "parts must have the same ranges, from the same version of condokit."
            )
        self.products.merge(other.products, place)
        to = np.arange(len(other.bins)) if place is None else place
        np.add.at(self.bins, to[to >= 0], other.bins[to >= 0])

    def resized(self, n_groups: int) -> "Continuous":
        """Return the same with more groups, empty ones."""
        new = Continuous(self.basis, n_groups, self.products.n_features)
        new.merge(self)
        return new

    def of(self, features: Array) -> "Continuous":
        """Return some of the features."""
        part = Continuous(self.basis, 0, 0)
        part.products, part.bins = self.products.of(features), self.bins
        return part

    def written(self, kept: list[int], min_cell: int, fewest: int) -> dict[str, Any]:
        """Return some groups as plain numbers that tell of no fewer than `min_cell` rows.

        `fewest` are those of a feature that is written. Bins with fewer than `min_cell` rows share
        those of their neighbours. A feature that is known in too few rows has none; where too few
        lack it, the functions of confounders are those of all rows, as the difference would be
        those of the few.
        """
        place = np.full(len(self.bins), -1)
        place[kept] = np.arange(len(kept))
        found = Continuous(self.basis, len(kept), self.products.n_features)
        found.merge(self, place)
        whole, r = found.products, self.basis.n_columns
        own = list(whole.own)  # whose columns here are of rows before the first gap
        for table in (whole.mean, whole.scatter):
            table[..., [r + j for j in own]] = 0.0
        whole.squares[:, own] = 0.0
        for one in whole.own.values():
            for name in ("count", "mean", "scatter", "squares"):
                getattr(one, name)[one.count < fewest] = 0.0
            lacking = whole.count - one.count
            few = (lacking > 0) & (lacking < min_cell)
            one.mean[few, :r] = whole.mean[few, :r]
            share = (one.count / np.maximum(whole.count, 1e-300))[few, None, None]
            one.scatter[few, :, :r] = whole.scatter[few, :, :r] * share
        bins = [[_coarse(counts, min_cell).tolist() for counts in cell] for cell in found.bins]
        return {"basis": self.basis.to_dict(), "products": whole.to_dict(), "bins": bins}

    @classmethod
    def read(cls, content: dict[str, Any]) -> "Continuous":
        """Return what was written."""
        products = GroupedProducts.from_dict(content["products"])
        basis = RangeBasis.from_dict(content["basis"])
        found = cls(basis, len(products.count), products.n_features)
        found.products, bins = products, np.array(content["bins"], dtype=float)
        found.bins = bins.reshape(found.bins.shape)
        if products.n_columns != basis.n_columns:
            raise ValueError("'products' do not fit 'basis'")
        return found


def _coarse(counts: Array, least: int) -> Array:
    """Return counts of bins, those of fewer rows joined with their neighbours and shared evenly."""
    edges, total = [0], 0.0
    for k, count in enumerate(counts, 1):
        total += count
        if total >= least:
            edges.append(k)
            total = 0.0
    edges = edges[: max(len(edges) - 1, 1)] if total or edges[-1] < len(counts) else edges[:-1]
    means = np.add.reduceat(counts, edges) / np.diff([*edges, len(counts)])
    return np.repeat(means, np.diff([*edges, len(counts)]))
