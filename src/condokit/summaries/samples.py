"""From `Domains` to rows of both domains at the support values, for divergences between samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from condokit.checks import Array
from condokit.conditionals.chained import Chained
from condokit.data.arrays import positive
from condokit.data.domains import Domains
from condokit.data.subsets import subsample
from condokit.summaries.covariances import GaussianPair, GroupedScatter, Shares, regularise
from condokit.summaries.curves import Curves, few_points, residuals
from condokit.summaries.grouped import GroupedMoments
from condokit.summaries.moments import Moments

Sides = tuple[list[Array], list[Array]]


@dataclass(frozen=True)
class Samples:
    """Rows of both domains at every support value, and the weights of these.

    Rows are sorted, so that nothing depends on the order they were given in. `n_rows` is that of
    the smaller domain, where rows are not observed ones but drawn.
    """

    query: list[Array]
    reference: list[Array]
    weights: Array
    subjects: Sides | None = None
    n_rows: int | None = None

    def half(self, which: int) -> Samples:
        """Return the rows of every other subject, to learn from or to judge by.

        Where subjects are not known, equal rows, which weights make, are of one.
        """
        query, reference = self.subjects or self._distinct()
        numbers, first = np.unique(np.concatenate([*query, *reference]), return_index=True)
        chosen = numbers[np.argsort(first)][which::2]
        return self._take([[np.isin(who, chosen) for who in side] for side in (query, reference)])

    def of(self, features: Array) -> Samples:
        """Return some of the features."""
        return self.each(lambda rows: rows[:, features], lambda rows: rows[:, features])

    def thinned(self, most: int) -> Samples:
        """Return at most so many rows of each, evenly taken."""
        sides = (self.query, self.reference)
        return self._take([[subsample(len(rows), most) for rows in side] for side in sides])

    def each(
        self, of_query: Callable[[Array], Array], of_reference: Callable[[Array], Array]
    ) -> Samples:
        """Return the samples with other features."""
        query, reference = map(of_query, self.query), map(of_reference, self.reference)
        return replace(self, query=list(query), reference=list(reference))

    def _take(self, chosen: list[list[Array]]) -> Samples:
        def of(sides: Sides) -> Sides:
            query, reference = (
                [part[rows] for part, rows in zip(*both)] for both in zip(sides, chosen)
            )
            return query, reference

        subjects = None if self.subjects is None else of(self.subjects)
        query, reference = of((self.query, self.reference))
        return replace(self, query=query, reference=reference, subjects=subjects)

    def _distinct(self) -> Sides:
        """Return numbers for sorted rows, the same for equal ones."""
        start, numbers = 0, []
        for rows in [*self.query, *self.reference]:
            new = np.ones(len(rows), dtype=bool)
            new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
            numbers.append(start + np.cumsum(new))
            start += int(new.sum())
        return numbers[: len(self.query)], numbers[len(self.query) :]


_MOST_IMPUTED = 2000  # support points at which rows are imputed
_DRAWS = 100  # rows at each support point of continuous confounders
_LIGHTLY = Shares(0.1, 0.01)


def by_strata(domains: Domains, place: Array, weights: Array, max_rows: int) -> Samples:
    """Return the rows of every stratum, at most so many of each domain."""
    sides, subjects = [], []
    used = np.flatnonzero(place >= 0)
    counts = np.ones(len(place), dtype=np.intp)
    if domains.weights is not None:
        counts = np.rint(domains.weights).astype(np.intp)
        if not np.array_equal(counts, domains.weights):
            raise ValueError(
                "'sample_weight' must hold whole numbers for divergences between samples, which "
                "repeat rows. Round the weights, or use divergence='likelihood'."
            )
    for query in (True, False):
        X = domains.side(query, used)
        mine = used[domains.is_query[used] == query]
        strata = [np.flatnonzero(place[mine] == k) for k in range(len(weights))]
        strata = [np.repeat(rows, counts[mine[rows]]) for rows in strata]
        who = np.zeros(len(mine)) if domains.groups is None else domains.groups[mine]
        strata = [rows[_thinned(X[rows], who[rows], max_rows)] for rows in strata]
        sides.append([X[rows] for rows in strata])
        subjects.append([who[rows] for rows in strata])
    known = None if domains.groups is None else (subjects[0], subjects[1])
    return Samples(sides[0], sides[1], weights, known)


def by_curves(domains: Domains, curves: Curves) -> Samples:
    r"""Return rows :math:`\mu(z) + \sigma(z) \epsilon_i` at a bounded number of support points.

    Whole rows of standardised residuals keep the correlations between features. An estimator that
    imputes rows draws them itself.
    """
    used, covariates = curves.used, curves.covariates
    is_query = domains.is_query[used]
    n_rows = min(int(is_query.sum()), int((~is_query).sum()))
    if isinstance(curves.conditional, Chained):
        return replace(_imputed(domains, curves, curves.conditional), n_rows=n_rows)
    at, weights, _ = few_points(curves)
    sides, subjects = [], []
    for query in (True, False):
        mine = is_query == query
        X, own = domains.side(query, used), covariates.take(mine)
        residual, _, there = residuals(curves.conditional, X, own, at)
        who = np.zeros(len(own.Z)) if domains.groups is None else domains.groups[used][mine]
        rows = _thinned(residual, who, _DRAWS)
        residual, who = residual[rows], who[rows]
        if domains.groups is None:  # a residual is at all points on the same side
            who = np.arange(len(rows)) + (0 if query else _DRAWS)
        sides.append([mean + np.sqrt(var) * residual for mean, var in zip(there.mean, there.var)])
        subjects.append([who] * len(weights))
    return Samples(sides[0], sides[1], weights, (subjects[0], subjects[1]), n_rows)


def _imputed(domains: Domains, curves: Curves, conditional: Chained) -> Samples:
    """Return the rows that chained equations draw at the support points; draws are subjects."""
    rows, weights = curves.points
    some = subsample(len(rows), _MOST_IMPUTED)
    at, weights = curves.covariates.take(rows[some]), weights[some] / weights[some].sum()
    rng = np.random.default_rng(conditional.random_state)
    sides, subjects = [], []
    for query in (True, False):
        mine = domains.is_query[curves.used] == query
        X, own = domains.side(query, curves.used), curves.covariates.take(mine)
        draws = conditional.sample_at(X, own, at, conditional.n_draws, rng)
        sides.append(list(draws))
        who = np.arange(conditional.n_draws) + (0 if query else conditional.n_draws)
        subjects.append([who] * len(weights))
    return Samples(sides[0], sides[1], weights, (subjects[0], subjects[1]))


def _thinned(rows: Array, subjects: Array, most: int) -> Array:
    """Return the numbers of rows in an order of their own, at most so many, evenly taken."""
    order = np.lexsort([subjects, *rows.T[::-1]])
    return order[subsample(len(order), most)]


def as_moments(samples: Samples) -> tuple[Moments, Moments]:
    """Return means and lightly regularised variances of (query, reference)."""
    sides = []
    for rows in (samples.query, samples.reference):
        stats = GroupedMoments(len(rows), rows[0].shape[1])
        stats.update(np.concatenate(rows), _strata(rows))
        dof = np.maximum(stats.count - 1, 0.0)
        pooled = stats.squares.sum(axis=0) / max(float(dof.sum()), 1.0)
        own = stats.squares / np.maximum(dof, 1.0)[:, None]
        share = np.where(dof > 0, _LIGHTLY.pooled, 1.0)[:, None]
        var = (1 - share) * own + share * pooled
        sides.append(Moments(stats.mean, var, 1 / positive(var), stats.count, dof))
    return sides[0], sides[1]


def as_gaussians(samples: Samples) -> GaussianPair:
    """Return means and lightly regularised covariances of the samples."""
    sides = []
    for rows in (samples.query, samples.reference):
        scatter = GroupedScatter(len(rows), rows[0].shape[1])
        scatter.update(np.concatenate(rows), _strata(rows))
        sides.append(regularise(scatter.gaussians(), _LIGHTLY))
    return GaussianPair(sides[0], sides[1], samples.weights)


def _strata(rows: list[Array]) -> Array:
    """Return the stratum of every row."""
    return np.repeat(np.arange(len(rows)), [len(part) for part in rows])
