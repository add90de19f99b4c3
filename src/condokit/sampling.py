"""From `Domains` to rows of both domains at the support values, for divergences between samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from condokit._validation import Array
from condokit.conditionals import Chained
from condokit.covariances import GroupedScatter, Shares, regularise
from condokit.divergences.matrix import (
    MOST_DENSE,
    KLObjective,
    Start,
    Units,
    principal_axes,
    starts,
    transport_matrix,
)
from condokit.domains import Domains, GaussianPair, Moments, Samples, evenly
from condokit.matrices import Curves, few_points, residuals
from condokit.statistics import GroupedMoments, positive

_MOST_IMPUTED = 2000  # support points at which rows are imputed
_DRAWS = 100  # rows at each support point of continuous confounders
_MODES = 5  # maps that other divergences suggest as starts
_MODE_SEARCHES = 20
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
    some = evenly(len(rows), _MOST_IMPUTED)
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
    return order[evenly(len(order), most)]


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


def matrix_starts(pair: GaussianPair, n_starts: int = _MODE_SEARCHES) -> list[Start]:
    """Return full matrices to start from: the best few that Gaussian divergences suggest."""
    units = Units(pair, "white")
    if pair.n_features > MOST_DENSE or len(pair.weights) == 1:
        return list(starts(units, pair, min(n_starts, 3)))
    objective = KLObjective(units)
    found: list[tuple[float, Start]] = []
    for name, A, b in starts(units, pair, min(n_starts, _MODE_SEARCHES)):
        B, c, value, *_ = objective.explore(*units.encode(A, b))
        if all(abs(value - other) > 1e-3 * max(1.0, abs(value)) for other, _ in found):
            found.append((value, (name, *units.decode(B, c))))
    found.sort(key=lambda item: item[0])
    return [start for _, start in found[:_MODES]]


def rectangular_starts(pair: GaussianPair) -> list[Start]:
    """Return maps between different features: from stratum means, and from principal axes."""
    weights = pair.weights
    mean_q, size_q, axes_q = principal_axes(pair.query, weights)
    mean_r, size_r, axes_r = principal_axes(pair.reference, weights)
    between_q, between_r = pair.query.mean - mean_q, pair.reference.mean - mean_r
    cov_q = (axes_q * size_q**2) @ axes_q.T
    # the regression of the reference's stratum means on the query's, kept small by its spread
    A_means = (between_r.T * weights) @ between_q
    A_means = A_means @ np.linalg.inv((between_q.T * weights) @ between_q + 0.05 * cov_q)
    p = min(len(size_q), len(size_r))
    lead_q, lead_r = slice(len(size_q) - p, None), slice(len(size_r) - p, None)
    along = (between_q @ axes_q / size_q)[:, lead_q], (between_r @ axes_r / size_r)[:, lead_r]
    sign = np.where((weights[:, None] * along[0] * along[1]).sum(axis=0) < 0, -1.0, 1.0)
    A_axes = (axes_r[:, lead_r] * (sign * size_r[lead_r] / size_q[lead_q])) @ axes_q[:, lead_q].T
    # the means' map brought to the reference's spread by transport
    cov = A_means @ cov_q @ A_means.T
    cov += 1e-3 * np.diag(np.diag((axes_r * size_r**2) @ axes_r.T))
    A_moved = transport_matrix(cov, (axes_r * size_r**2) @ axes_r.T) @ A_means
    maps = {"means": A_means, "axes": A_axes, "moved means": A_moved}
    return [(name, A, mean_r - A @ mean_q) for name, A in maps.items()]
