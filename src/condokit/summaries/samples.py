"""Rows of both domains at the compared confounder values, for divergences between samples."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit.checks import Array, refusal
from condokit.compare.comparison import Comparison
from condokit.conditionals import Conditional, Moments
from condokit.data.arrays import ones_for_zeros
from condokit.data.grouped import GroupedMoments, GroupedScatter
from condokit.data.study import Study
from condokit.data.subsets import subsample
from condokit.summaries.gaussians import (
    GaussianPair,
    Shares,
    few_points,
    gaussians_of,
    regularise,
    residuals,
)
from condokit.summaries.moments import MomentPair, is_flat, refuse_continuous, refuse_weights
from condokit.summaries.resampled import Parcels

_MOST_IMPUTED = 2000  # support points at which rows are imputed, at most
_DRAWS = 100  # rows at each support point of continuous confounders
_LIGHTLY = Shares(0.1, 0.01)
_FAR = 6.0  # median deviations from a stratum's median beyond which a value is cut; 4 sd of normals
Sides = tuple[list[Array], list[Array]]


@dataclass(frozen=True)
class Samples:
    """Sorted rows of both domains at every support value, and the weights of these values."""

    query: list[Array]
    reference: list[Array]
    weights: Array
    subjects: Sides | None = None  # the subject of each row, in the same lists
    n_rows: int | None = None  # rows of the smaller domain, if the samples are drawn along curves
    is_rectangular: bool = False  # whether the domains have different features

    def half(self, which: int) -> "Samples":
        """Return every other subject, in order of appearance; `which` is 0 or 1."""
        who = self._who()
        numbers, first = np.unique(np.concatenate([*who[0], *who[1]]), return_index=True)
        return self._of_subjects(numbers[np.argsort(first)][which::2])

    def of(self, features: Array) -> "Samples":
        """Return some of the features."""
        return self.each(lambda rows: rows[:, features], lambda rows: rows[:, features])

    def strata(self, chosen: Array) -> "Samples":
        """Return some of the strata; their weights sum to one again."""
        weights = self.weights[chosen] / self.weights[chosen].sum()
        query, reference, *subjects = (
            [side[k] for k in chosen]
            for side in (self.query, self.reference, *(self.subjects or ()))
        )
        both: Any = tuple(subjects) or None
        return replace(self, query=query, reference=reference, weights=weights, subjects=both)

    def without_tails(self) -> "Samples":
        """Return the samples with values far from all others cut; see `cut_tails`."""
        return replace(self, query=cut_tails(self.query), reference=cut_tails(self.reference))

    def thinned(self, most: int) -> "Samples":
        """Return at most `most` rows of each stratum and domain, evenly spaced."""
        sides = (self.query, self.reference)
        return self._take([[subsample(len(rows), most) for rows in side] for side in sides])

    def part(self, share: float) -> "Samples":
        """Return the rows of about this share of the subjects, evenly spaced."""
        who = self._who()
        numbers = np.unique(np.concatenate([*who[0], *who[1]]))
        chosen = subsample(len(numbers), max(2, round(share * len(numbers))))
        return self._of_subjects(numbers[chosen])

    def _of_subjects(self, chosen: Array) -> "Samples":
        """Return the rows of the chosen subjects."""
        return self._take([[np.isin(who, chosen) for who in side] for side in self._who()])

    def resampled(self, rng: np.random.Generator) -> "Samples":
        """Return rows drawn with replacement, those of a subject together."""
        both = [*self.query, *self.reference]
        cell = np.repeat(np.arange(len(both)), [len(rows) for rows in both])
        number = np.arange(len(cell))
        if self.subjects is not None:
            number = np.concatenate([*self.subjects[0], *self.subjects[1]])
        units = Parcels(number, cell, len(self.query), self.subjects is not None)
        times = np.split(units.draw(rng).astype(np.intp), np.flatnonzero(np.diff(cell)) + 1)
        rows = [np.repeat(np.arange(len(n)), n) for n in times]
        return self._take([rows[: len(self.query)], rows[len(self.query) :]])

    def each(
        self, of_query: Callable[[Array], Array], of_reference: Callable[[Array], Array]
    ) -> "Samples":
        """Return the samples with the rows of each domain transformed by a function."""
        query, reference = map(of_query, self.query), map(of_reference, self.reference)
        return replace(self, query=list(query), reference=list(reference))

    def _take(self, chosen: list[list[Array]]) -> "Samples":
        """Return the rows with these numbers, by domain and stratum."""

        def of(sides: Sides) -> list[list[Array]]:
            return [[part[rows] for part, rows in zip(*both)] for both in zip(sides, chosen)]

        subjects: Any = self.subjects and tuple(of(self.subjects))
        query, reference = of((self.query, self.reference))
        return replace(self, query=query, reference=reference, subjects=subjects)

    def _who(self) -> Sides:
        """Return subjects; where these are unknown, equal rows are taken as one subject's."""
        start, numbers = 0, []
        for rows in () if self.subjects else [*self.query, *self.reference]:
            numbers.append(start + np.unique(rows, axis=0, return_inverse=True)[1].ravel())
            start += len(rows)
        return self.subjects or (numbers[: len(self.query)], numbers[len(self.query) :])


def sample_rows(
    domains: Study, comparison: Comparison, conditional: Conditional, max_rows: int
) -> Samples:
    """Return rows of both domains: observed ones in strata, or drawn along curves."""
    if not conditional.is_smooth:
        refuse_continuous(domains)
        return _in_strata(domains, comparison, max_rows)
    draw = _imputed if conditional.imputes_rows else _along_curves
    n_rows = int(np.bincount(comparison.is_query, minlength=2).min())
    return replace(draw(domains, comparison, conditional), n_rows=n_rows)


def _in_strata(domains: Study, comparison: Comparison, max_rows: int) -> Samples:
    """Return the rows of every stratum, at most `max_rows` of each domain."""
    place, weights, groups = comparison.place, comparison.support.weights, domains.groups
    used = np.flatnonzero(place >= 0)
    counts = np.ones(len(place), dtype=np.intp)
    if domains.weights is not None:
        counts = np.rint(domains.weights).astype(np.intp)
        if not np.array_equal(counts, domains.weights):
            raise refusal(
                "{@'sample_weight'} must hold whole numbers for divergences between samples, "
                "which repeat rows. Round the weights, or use {@divergence='likelihood'}."
            )

    def side(query: bool) -> Sides:
        """Return the rows of a domain by stratum, and their subjects."""
        X = domains.side(query, used)
        mine = used[domains.is_query[used] == query]
        strata = [np.flatnonzero(place[mine] == k) for k in range(len(weights))]
        who, often = np.zeros(len(mine)) if groups is None else groups[mine], counts[mine]
        strata = [rows[_sorted(X[rows], who[rows], max_rows, often[rows])] for rows in strata]
        return [X[rows] for rows in strata], [who[rows] for rows in strata]

    samples = _both(side, weights)
    return samples if groups is not None else replace(samples, subjects=None)


def _along_curves(domains: Study, comparison: Comparison, conditional: Conditional) -> Samples:
    r"""Return whole rows :math:`\mu(z) + \sigma(z) \epsilon_i` at a bounded number of points."""
    used, groups = comparison.used, domains.groups
    at, weights, _ = few_points(comparison)

    def side(query: bool) -> Sides:
        """Return drawn rows of a domain at every point, and their subjects."""
        mine = comparison.is_query == query
        X, own = domains.side(query, used), comparison.covariates.take(mine)
        residual, _, there = residuals(conditional, X, own, at)
        who = np.zeros(len(own.Z)) if groups is None else groups[used][mine]
        rows = _sorted(residual, who, _DRAWS)
        residual, who = residual[rows], who[rows]
        if groups is None:  # each residual is a subject, whose rows are at all points
            who = np.arange(len(rows)) + (0 if query else _DRAWS)
        drawn = [mean + np.sqrt(var) * residual for mean, var in zip(there.mean, there.var)]
        return drawn, [who] * len(weights)

    return _both(side, weights)


def _imputed(domains: Study, comparison: Comparison, conditional: Any) -> Samples:
    """Return the rows that an estimator imputes at the support points; draws are subjects."""
    refuse_weights(domains, comparison, conditional)
    rows, weights = comparison.points
    some = subsample(len(rows), _MOST_IMPUTED)
    at, weights = comparison.covariates.take(rows[some]), weights[some] / weights[some].sum()
    rng = np.random.default_rng(conditional.random_state)
    n_draws = conditional.n_draws

    def side(query: bool) -> Sides:
        """Return imputed rows of a domain at every point; draws are subjects."""
        own = comparison.covariates.take(comparison.is_query == query)
        drawn = conditional.sample_at(domains.side(query, comparison.used), own, at, n_draws, rng)
        return list(drawn), [np.arange(n_draws) + (0 if query else n_draws)] * len(weights)

    return _both(side, weights)


def _both(side: Callable[[bool], Sides], weights: Array) -> Samples:
    """Return the samples, given a function that returns rows and subjects of a domain."""
    (query, who_query), (reference, who_reference) = side(True), side(False)
    return Samples(query, reference, weights, (who_query, who_reference))


def _sorted(rows: Array, subjects: Array, most: int, counts: Array | None = None) -> Array:
    """Return the numbers of at most `most` rows, sorted by their values and evenly spaced.

    So the result does not depend on the order of rows. Each row occurs as often as `counts` says.
    """
    order = np.lexsort([subjects, *rows.T[::-1]])
    upto = np.arange(1, len(order) + 1) if counts is None else np.cumsum(counts[order])
    return order[np.searchsorted(upto, subsample(int(upto[-1:].sum()), most), "right")]


def cut_tails(rows: list[Array]) -> list[Array]:
    """Cut values that are farther than six median deviations from their stratum's median.

    Median deviations are those over all strata; six are about four standard deviations of normals.
    """
    middle = [np.median(part, axis=0) for part in rows]
    away = [np.abs(part - m) for part, m in zip(rows, middle) if len(part) > 1]
    if not away:
        return rows
    limit = _FAR * np.median(np.concatenate(away), axis=0)
    limit[limit == 0] = np.inf  # most values are equal
    return [np.clip(part, m - limit, m + limit) for part, m in zip(rows, middle)]


def as_moments(samples: Samples) -> MomentPair:
    """Return means and lightly regularised variances of the samples."""
    sides = []
    for rows in (samples.query, samples.reference):
        stats = GroupedMoments(len(rows), rows[0].shape[1])
        stats.update(*_stacked(rows))
        dof = np.maximum(stats.count - 1, 0.0)
        pooled = stats.squares.sum(axis=0) / max(float(dof.sum()), 1.0)
        own = stats.squares / np.maximum(dof, 1.0)[:, None]
        share = np.where(dof > 0, _LIGHTLY.pooled, 1.0)[:, None]
        var = (1 - share) * own + share * pooled
        sides.append(Moments(stats.mean, var, 1 / ones_for_zeros(var), stats.count, dof))
    query, reference = sides
    flat = is_flat(query.mean, query.var) | is_flat(reference.mean, reference.var)
    return MomentPair(query, reference, samples.weights, flat)


def as_gaussians(samples: Samples) -> GaussianPair:
    """Return means and lightly regularised covariances of the samples."""
    sides = []
    for rows in (samples.query, samples.reference):
        scatter = GroupedScatter(len(rows), rows[0].shape[1])
        scatter.update(*_stacked(rows))
        sides.append(regularise(gaussians_of(scatter), _LIGHTLY))
    return GaussianPair(sides[0], sides[1], samples.weights)


def _stacked(rows: list[Array]) -> tuple[Array, Array]:
    """Return all rows, and the stratum of each."""
    return np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(part) for part in rows])
