"""Bootstrap: which rows are drawn together, and summaries of both domains for each draw."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.compare.comparison import Comparison
from condokit.conditionals.base import Conditional, moments_from
from condokit.data.arrays import ones_for_zeros
from condokit.data.grouped import GroupedMoments, GroupedScatter
from condokit.data.study import Study
from condokit.summaries.gaussians import GaussianPair, along_curves, few_points, gaussians_of
from condokit.summaries.moments import MomentPair, cells, paired


@dataclass(frozen=True)
class Parcels:
    """The units that are drawn with replacement: rows or groups of rows in cells, or subjects."""

    number: Array  # the subject, or the number of the parcel within its cell
    cell: Array  # the cell of each parcel; those of the query come first
    n_query_cells: int
    are_subjects: bool
    rows: Any = 1.0  # effective rows of each parcel, where rows have weights

    @property
    def fewest(self) -> int:
        """The number of units of the domain that has fewer."""
        is_query = self.cell < self.n_query_cells
        sides = self.number[is_query], self.number[~is_query]
        return min(len(np.unique(side)) if self.are_subjects else len(side) for side in sides)

    def draw(self, rng: np.random.Generator) -> Array:
        """Return how often each parcel is drawn."""
        kind, place = self._kinds()
        times = np.zeros(len(kind))
        for k in np.unique(kind):
            n = int((kind == k).sum())
            # n - 1 draws of n units: so the variance of their mean is unbiased
            times[kind == k] = rng.multinomial(max(n - 1, 1), np.full(n, 1 / n))
        return times[place]

    def weights(self, rng: np.random.Generator, amount: float) -> Array:
        """Return weights with mean one; deviations from it are `amount` times those of draws."""
        kind, place = self._kinds()
        _, of_kind, counts = np.unique(kind, return_inverse=True, return_counts=True)
        n_alike = counts[of_kind][place]
        change = self.draw(rng) * n_alike / np.maximum(n_alike - 1, 1) - 1
        return 1 + amount / np.sqrt(self.rows) * change

    def _kinds(self) -> tuple[Array, Array]:
        """Return the stratum in which each unit is drawn, and the unit of each parcel."""
        if not self.are_subjects:
            return self.cell, np.arange(len(self.cell))
        # a subject of both domains is drawn for both, since what it has in common cancels
        subjects, place = np.unique(self.number, return_inverse=True)
        kind, is_query = np.zeros(len(subjects), dtype=int), self.cell < self.n_query_cells
        kind[place[is_query]] |= 1
        kind[place[~is_query]] |= 2
        return kind, place


def parcels(
    domains: Study, cell: Array, n_values: int, rng: np.random.Generator, most: int
) -> tuple[Array, Parcels]:
    """Divide the rows of each cell, or the subjects, into at most `most` parcels at random.

    Returns the parcel of each row, -1 for none, and all parcels.
    """
    used = np.flatnonzero(cell >= 0)
    if domains.groups is not None:
        unit = rng.permutation(int(domains.groups.max()) + 1)[domains.groups] % most
    else:
        unit = np.zeros(len(cell), dtype=np.int64)
        # a number for each row that depends on its values only, not on the order of rows
        way = np.random.default_rng(0).normal(size=domains.n_features)
        mark = np.concatenate([np.nan_to_num(X) @ way for _, X in domains.chunks()])
        for c in np.unique(cell[used]):
            rows = used[cell[used] == c]
            rows = rows[np.argsort(mark[rows], kind="stable")]
            unit[rows] = rng.permutation(len(rows)) % most
    crossed = cell[used].astype(np.int64) * most + unit[used]
    parcel = np.full(len(cell), -1, dtype=np.int64)
    there = np.bincount(crossed) > 0
    distinct, parcel[used] = np.flatnonzero(there), (np.cumsum(there) - 1)[crossed]
    cell_of_parcel, number = np.divmod(distinct, most)
    if domains.weights is None or domains.groups is not None:
        return parcel, Parcels(number, cell_of_parcel, n_values, domains.groups is not None)
    weights, inside = domains.weights[used], parcel[used]
    rows = np.bincount(inside, weights**2) / ones_for_zeros(np.bincount(inside, weights))
    return parcel, Parcels(number, cell_of_parcel, n_values, False, np.maximum(rows, 1.0))


class ResampledMoments:
    """Moments of resampled rows in strata, from sums of parcels; rows are read once."""

    def __init__(
        self,
        domains: Study,
        comparison: Comparison,
        shared: bool,  # as in `moment_pair`
        scaled: bool,
        rng: np.random.Generator,
        most: int,
    ) -> None:
        self.weights, self.sharing = comparison.support.weights, (shared, scaled)
        self.n_values, cell = len(comparison.support.levels), cells(domains, comparison)
        parcel, self.parcels = parcels(domains, cell, self.n_values, rng, most)
        self.stats = domains.gather(parcel, len(self.parcels.cell))
        self.count = self._merged(np.ones(len(self.parcels.cell)))[0]

    def pair(self, drawn: Array) -> MomentPair:
        """Return the moments if each parcel counts as often as it was `drawn`."""
        count, mean, squares = self._merged(drawn)
        if ((count == 0) & (self.count > 0)).any():
            raise ValueError("no rows of a stratum were drawn")
        # there is one draw fewer than parcels, but rows should count as before
        squares = squares * (self.count / ones_for_zeros(count))[:, None]
        query, reference = (
            moments_from(self.count[half], mean[half], squares[half], self.count[half])
            for half in (slice(None, self.n_values), slice(self.n_values, None))
        )
        return paired(query, reference, self.weights, *self.sharing)

    def _merged(self, drawn: Array) -> tuple[Array, ...]:
        """Return count, mean and sum of squares of cells."""
        cell = self.parcels.cell
        merged = GroupedMoments(2 * self.n_values, self.stats.mean.shape[1])
        merged.update(self.stats.mean, cell, drawn * self.stats.count)
        first = np.flatnonzero(np.diff(cell, prepend=-1))  # every cell has parcels, one by one
        within = np.add.reduceat(drawn[:, None] * self.stats.squares, first)
        return merged.count, merged.mean, merged.squares + within


class ResampledGaussians:
    """Both domains as Gaussians of resampled rows, from sums of parcels; rows are read once."""

    def __init__(
        self, domains: Study, comparison: Comparison, pair: GaussianPair, most: int
    ) -> None:
        self.pair, self.rng = pair, np.random.default_rng(0)
        n_values, cell = len(comparison.support.levels), cells(domains, comparison)
        parcel, self.parcels = parcels(domains, cell, n_values, self.rng, most)
        self._stats = GroupedScatter(len(self.parcels.cell), domains.n_features)
        self._rows: tuple[Array, Array, Array | None] | None = None
        if len(parcel) <= self._stats.mean.size:  # rows are smaller than sums: keep them
            used = np.flatnonzero(parcel >= 0)
            weights = None if domains.weights is None else domains.weights[used]
            self._rows = domains.rows(used), parcel[used], weights
        else:
            self._stats = domains.gather(parcel, len(self.parcels.cell), GroupedScatter)
        sides = pair.query, pair.reference
        self.middle = np.concatenate([side.mean for side in sides])
        self.count = np.concatenate([side.count for side in sides])

    @cached_property
    def sums(self) -> Array:
        """Sums over parcels of 1, x and x x', with x measured from the mean of the cell."""
        stats = self._stats
        if self._rows is not None:
            stats.update(*self._rows)
        mean = stats.mean - self.middle[self.parcels.cell]
        square = stats.count[:, None, None] * mean[:, :, None] * mean[:, None, :] + stats.scatter
        ones = stats.count[:, None]
        return np.hstack([ones, ones * mean, square.reshape(len(mean), -1)])

    def draw(self, amount: float) -> GaussianPair:
        """Return the pair for rows with random weights; see `Parcels.weights`."""
        weights, d = self.parcels.weights(self.rng, amount), self.pair.n_features
        drawn = GroupedScatter(len(self.count), d)
        drawn.count[:] = self.count
        for c, n in enumerate(self.count):
            mine = self.parcels.cell == c
            total = weights[mine] @ self.sums[mine]
            mean, square = np.split(total[1:] / total[0], [d])
            drawn.mean[c] = self.middle[c] + mean
            drawn.scatter[c] = n * (square.reshape(d, d) - np.outer(mean, mean))
        return self.pair.replaced(*(gaussians_of(drawn.fold(k, 2)) for k in range(2)))


class ResampledCurves:
    """The same along curves of continuous confounders, which are fitted again for each draw."""

    def __init__(
        self, domains: Study, comparison: Comparison, pair: GaussianPair, conditional: Conditional
    ) -> None:
        self.pair, self.rng = pair, np.random.default_rng(0)
        self.domains, self.comparison, self.conditional = domains, comparison, conditional
        self.known = domains.rows(comparison.used), few_points(comparison)
        own, groups = comparison.covariates, comparison.covariates.groups
        cell = own.category + own.n_categories * ~comparison.is_query
        number = np.arange(len(cell)) if groups is None else groups
        rows = 1.0 if groups is not None else np.maximum(own.counts, 1.0)
        self.parcels = Parcels(number, cell, own.n_categories, groups is not None, rows)

    def draw(self, amount: float) -> GaussianPair:
        """Return the pair for rows with random weights; see `Parcels.weights`."""
        own = self.comparison.covariates
        weights = own.counts * self.parcels.weights(self.rng, amount)
        again = replace(self.comparison, covariates=replace(own, weights=weights))
        found = along_curves(self.domains, again, self.conditional, False, self.known)
        return self.pair.replaced(found.query, found.reference)
