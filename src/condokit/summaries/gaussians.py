"""From `Domains` to both domains as Gaussians, for the maps that have a full matrix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from condokit.checks import Array
from condokit.compare.support import Support
from condokit.data.domains import Domains, Strata
from condokit.data.subsets import folds
from condokit.summaries.covariances import (
    GaussianPair,
    Gaussians,
    GroupedScatter,
    Shares,
    Skewness,
    choose_shares,
    regularise,
)
from condokit.summaries.curves import Curves, few_points, residuals
from condokit.summaries.flat import is_flat

_FOLDS = 5
_MOST_NUMBERS = 50_000_000  # in all covariances of a domain
_LARGEST = 1e150


def by_strata(
    domains: Domains, strata: Strata, support: Support, regularised: bool
) -> tuple[GaussianPair, dict[str, Shares]]:
    """Return means and covariances within strata, and how they were regularised."""
    n_values, d = len(support.levels), domains.n_features
    if n_values * d * d > _MOST_NUMBERS:
        raise ValueError(
            f"A full matrix needs a covariance of {d} x {d} features in each of {n_values} strata, "
            "which is too much. Use map='low-rank' or 'blocks', or fewer strata."
        )
    n_folds = _FOLDS if n_values * d * d * _FOLDS <= _MOST_NUMBERS else 2
    if not regularised:
        n_folds = 1
    place = support.place(strata)
    cell = place.copy()
    if n_folds > 1:
        # one fold number per row; the fold is the slow index of a cell
        sided = 2 * place + ~domains.is_query
        cell = place + n_values * folds(sided, n_folds, domains.groups)
        cell[place < 0] = -1
    scatters = [GroupedScatter(n_folds * n_values, d) for _ in range(2)]
    for rows, chunk in domains.chunks():
        with np.errstate(invalid="ignore", over="ignore"):
            here = domains.is_query[rows]
            for scatter, side in zip(scatters, (here, ~here)):
                weights = None if domains.weights is None else domains.weights[rows][side]
                scatter.update(chunk[side], cell[rows][side], weights)
    sides, shares = [], {}
    for scatter, name in zip(scatters, ("query", "reference")):
        if not np.abs(scatter.scatter).max(initial=0.0) < _LARGEST:
            raise ValueError(
                "The features are too large for double precision (their squares exceed 1e150). "
                "Rescale them."
            )
        gaussians = scatter.without(-1, n_folds).gaussians()
        if n_folds > 1:
            shares[name] = choose_shares(scatter, n_folds)
            gaussians = regularise(gaussians, shares[name])
        sides.append(gaussians)
    query, reference = sides
    skewness = _skewness_in_strata(domains, place, query, reference)
    return GaussianPair(query, reference, support.weights, skewness), shares


def _skewness_in_strata(
    domains: Domains, place: Array, query: Gaussians, reference: Gaussians
) -> Skewness:
    """Return a function that reads all rows for the skewness of both domains along axes."""

    def skewness(axes_query: Array, axes_reference: Array) -> tuple[Array, Array]:
        sides = ((query, axes_query, True), (reference, axes_reference, False))
        size = [_spread_along(gaussians, axes) for gaussians, axes, _ in sides]
        powers = np.zeros((2, 4, axes_query.shape[1]))
        for rows, chunk in domains.chunks():
            for side, (gaussians, axes, is_query) in enumerate(sides):
                mine = (domains.is_query[rows] == is_query) & (place[rows] >= 0)
                along = (chunk[mine] - gaussians.mean[place[rows][mine]]) @ axes / size[side]
                weights = None if domains.weights is None else domains.weights[rows][mine]
                powers[side] += _powers(along, weights)
        return _skewness(powers[0]), _skewness(powers[1])

    return skewness


def _spread_along(gaussians: Gaussians, axes: Array) -> Array:
    """Return the pooled within-stratum standard deviation along axes."""
    share = gaussians.count / gaussians.count.sum()
    pooled = np.tensordot(share, gaussians.cov, axes=1)
    return np.sqrt(np.maximum(((pooled @ axes) * axes).sum(axis=0), 1e-300))


def _powers(along: Array, weights: Array | None) -> Array:
    """Return the sums of the powers 0 to 3 of scores, cut at three standard deviations."""
    x = np.clip(along, -3, 3)
    w = np.ones(len(x)) if weights is None else weights
    return np.stack([np.full(x.shape[1], w.sum()), w @ x, w @ x**2, w @ x**3])


def _skewness(powers: Array) -> Array:
    mean, square, cube = powers[1:] / np.maximum(powers[0], 1e-300)
    variance = np.maximum(square - mean**2, 1e-300)
    return (cube - 3 * mean * square + 2 * mean**3) / variance**1.5


def by_curves(
    domains: Domains, curves: Curves, regularised: bool
) -> tuple[GaussianPair, dict[str, Shares]]:
    r"""Return means and covariances :math:`D(z) R D(z)` at a bounded number of support points.

    :math:`D(z)` are the standard deviations of the conditional estimator, R the correlation of
    the residuals in units of these, one for all z.
    """
    used, covariates = curves.used, curves.covariates
    X, is_query = domains.rows(used), domains.is_query[used]
    at, weights, nearest = few_points(curves)

    def own_weights(rows: Array) -> Array:
        return covariates.counts[rows]

    sides, shares, scores = [], {}, []
    for name, side in (("query", is_query), ("reference", ~is_query)):
        own = covariates.take(side)
        residual, here, there = residuals(curves.conditional, X[side], own, at)
        scores.append(X[side] - here.mean)
        fold = np.zeros(len(residual), dtype=np.intp)
        n_folds = _FOLDS if regularised else 1
        if regularised:
            groups = None if domains.groups is None else domains.groups[used][side]
            fold = folds(fold, n_folds, groups)
        scatter = GroupedScatter(n_folds, X.shape[1])
        scatter.update(residual, fold, own_weights(side))
        whole = scatter.without(-1, n_folds).gaussians()
        if regularised:
            shares[name] = choose_shares(scatter, n_folds)
            whole = regularise(whole, shares[name])
        sd = np.sqrt(np.diag(whole.cov[0]))
        correlation = whole.cov[0] / np.outer(sd, sd)
        spread = np.sqrt(there.var)
        cov = spread[:, :, None] * correlation * spread[:, None, :]
        placed = side & (nearest >= 0)
        count = np.bincount(nearest[placed], own_weights(placed), minlength=len(weights))
        sides.append(Gaussians(there.mean, cov, np.maximum(count, 1e-6)))

    def skewness(axes_query: Array, axes_reference: Array) -> tuple[Array, Array]:
        along = (scores[0] @ axes_query, scores[1] @ axes_reference)
        first, second = (_skewness(_powers(a / a.std(axis=0), None)) for a in along)
        return first, second

    return GaussianPair(sides[0], sides[1], weights, skewness), shares


def without_flat(pair: GaussianPair) -> tuple[GaussianPair, Array]:
    """Leave out features that are constant within strata in a domain; return which are kept."""
    kept = np.ones(pair.n_features, dtype=bool)
    for side in (pair.query, pair.reference):
        kept &= ~is_flat(side.mean, np.einsum("kii->ki", side.cov))
    if kept.all():
        return pair, kept
    some = pair.of(np.flatnonzero(kept))
    skewness = pair.skewness
    if skewness is not None:
        d, place = len(kept), np.flatnonzero(kept)

        def embedded(axes_query: Array, axes_reference: Array) -> tuple[Array, Array]:
            both = np.zeros((2, d, len(place)))
            both[0, place], both[1, place] = axes_query, axes_reference
            return skewness(both[0], both[1])

        some = replace(some, skewness=embedded)
    return some, kept
