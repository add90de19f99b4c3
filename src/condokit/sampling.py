"""From `Domains` to rows of both domains at the support values, for divergences between samples."""

from __future__ import annotations

import numpy as np

from condokit._validation import Array
from condokit.conditionals import SmoothConditional
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
from condokit.domains import Domains, GaussianPair, Samples, evenly
from condokit.matrices import few_points, residuals
from condokit.smoothing import Covariates

_DRAWS = 100  # rows at each support point of continuous confounders
_MODES = 5  # maps that other divergences suggest as starts
_MODE_SEARCHES = 20


def by_strata(domains: Domains, place: Array, weights: Array, max_rows: int) -> Samples:
    """Return the rows of every stratum, at most so many of each domain."""
    sides = []
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
        sides.append([_thinned(np.repeat(X[k], counts[mine[k]], axis=0), max_rows) for k in strata])
    return Samples(sides[0], sides[1], weights)


def by_curves(
    domains: Domains,
    conditional: SmoothConditional,
    used: Array,
    covariates: Covariates,
    points: tuple[Array, Array],
) -> Samples:
    r"""Return rows :math:`\mu(z) + \sigma(z) \epsilon_i` at a bounded number of support points.

    Whole rows of standardised residuals keep the correlations between features.
    """
    at, weights, _ = few_points(covariates, *points)
    sides = []
    for query in (True, False):
        mine = domains.is_query[used] == query
        X, own = domains.side(query, used), covariates.take(mine)
        residual, _, there = residuals(conditional, X, own, at)
        residual = _thinned(residual, _DRAWS)
        sides.append([mean + np.sqrt(var) * residual for mean, var in zip(there.mean, there.var)])
    return Samples(sides[0], sides[1], weights)


def _thinned(rows: Array, most: int) -> Array:
    """Return rows in an order of their own, at most so many, evenly taken."""
    rows = rows[np.lexsort(rows.T[::-1])]
    return rows[evenly(len(rows), most)]


def as_gaussians(samples: Samples) -> GaussianPair:
    """Return means and lightly regularised covariances of the samples."""
    sides = []
    for rows in (samples.query, samples.reference):
        scatter = GroupedScatter(len(rows), rows[0].shape[1])
        place = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
        scatter.update(np.concatenate(rows), place)
        sides.append(regularise(scatter.gaussians(), Shares(0.1, 0.01)))
    return GaussianPair(sides[0], sides[1], samples.weights)


def matrix_starts(pair: GaussianPair) -> list[Start]:
    """Return full matrices to start from: the best few that Gaussian divergences suggest."""
    units = Units(pair, "white")
    if pair.n_features > MOST_DENSE or len(pair.weights) == 1:
        return list(starts(units, pair, 3))
    objective = KLObjective(units)
    found: list[tuple[float, Start]] = []
    for name, A, b in starts(units, pair, _MODE_SEARCHES):
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
