"""Both domains as Gaussians at the compared confounder values, for maps with a full matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from condokit.checks import Array, said
from condokit.compare.comparison import Comparison
from condokit.conditionals import Conditional
from condokit.data.domains import Domains
from condokit.data.grouped import GroupedScatter
from condokit.data.subsets import folds, subsample
from condokit.summaries.curves import few_points, residuals
from condokit.summaries.moments import is_flat, refuse_continuous, refuse_huge

_POOLED: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
_DIAGONAL: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
_MANY_FEATURES = 200  # beyond, fewer candidates are tried
_MOST_STRATA = 50  # on which the choice among them is made
_FOLDS = 5
_MOST_NUMBERS = 50_000_000  # in all covariances of a domain
_LARGEST = 1e150
_SINGULAR = 1e-10  # share of a variance that other features leave, below which it is none


@dataclass(frozen=True)
class Shares:
    """How a covariance is regularised: the share of the pooled one, then of the diagonal."""

    pooled: float = 0.0
    diagonal: float = 0.0


@dataclass(frozen=True)
class Gaussians:
    """Conditional means and covariances of one domain at every support value."""

    mean: Array  # (n_values, n_features): means
    cov: Array  # (n_values, n_features, n_features): covariances
    count: Array  # (n_values,): rows behind them

    def of(self, features: Array) -> Gaussians:
        """Return the marginal law of some of the features."""
        cov = self.cov[:, features[:, None], features]
        return Gaussians(self.mean[:, features], cov, self.count)

    def balanced(self, weights: Array) -> tuple[Array, Array]:
        r"""Return the mean M and the covariance of the mixture with these weights.

        :math:`\sum_n w_n [\Sigma_n + (\mu_n - M)(\mu_n - M)']`.
        """
        mean = weights @ self.mean
        between = self.mean - mean
        within = np.tensordot(weights, self.cov, axes=1)
        return mean, within + (between.T * weights) @ between


Skewness = Callable[[Array, Array], tuple[Array, Array]]


@dataclass(frozen=True)
class GaussianPair:
    """Both domains as Gaussians at the support values, with the weights of these."""

    # the domains
    query: Gaussians
    reference: Gaussians
    weights: Array  # (n_values,): prior weights; they sum to one
    # from axes of the query and of the reference to the skewness along them
    skewness: Skewness | None = None
    # how the covariances of "query" and "reference" were regularised, if they were
    shares: dict[str, Shares] = field(default_factory=dict)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.query.mean.shape[1]

    def means_only(self) -> tuple[Array, Array]:
        """Return the identity, and the offset that brings the balanced means together."""
        return np.eye(self.n_features), self.weights @ (self.reference.mean - self.query.mean)

    def of(self, features: Array) -> GaussianPair:
        """Return the marginal laws of some of the features."""
        return GaussianPair(self.query.of(features), self.reference.of(features), self.weights)

    def swapped(self) -> GaussianPair:
        """Return the pair with query and reference exchanged."""
        skewness = self.skewness
        back: Skewness | None = None
        if skewness is not None:
            back = lambda left, right: skewness(right, left)[::-1]  # noqa: E731
        return GaussianPair(self.reference, self.query, self.weights, back)


def gaussians_of(scatter: GroupedScatter) -> Gaussians:
    """Return means and covariances; a stratum with one row borrows the pooled covariance."""
    dof = scatter.count - 1
    lone = dof < 0.5
    pooled = scatter.scatter[~lone].sum(axis=0) / max(float(dof[~lone].sum()), 1e-300)
    cov = scatter.scatter / np.where(lone, 1.0, dof)[:, None, None]
    cov[lone] = pooled
    return Gaussians(scatter.mean, cov, scatter.count)


def regularise(
    gaussians: Gaussians, shares: Shares, strata: Array | slice = slice(None)
) -> Gaussians:
    r"""Pull covariances to what strata have in common, and to their diagonal.

    :math:`(1 - \beta) S_k + \beta \operatorname{diag} S_k` with
    :math:`S_k = (1 - \alpha) \Sigma_k + \alpha \bar\Sigma`, the pooled within-stratum covariance;
    of all strata or some.
    """
    dof = np.maximum(gaussians.count - 1, 0.0)
    dof = dof / dof.sum() if dof.sum() > 0 else np.full(len(dof), 1 / len(dof))
    pooled = np.tensordot(dof, gaussians.cov, axes=1)
    cov = (1 - shares.pooled) * gaussians.cov[strata] + shares.pooled * pooled
    diagonal = np.arange(cov.shape[1])
    variances = cov[:, diagonal, diagonal]
    cov = (1 - shares.diagonal) * cov
    cov[:, diagonal, diagonal] = variances
    return Gaussians(gaussians.mean[strata], cov, gaussians.count[strata])


def choose_shares(scatter: GroupedScatter, n_folds: int) -> Shares:
    """Choose the shares by the Gaussian likelihood of held-out folds."""
    varies = np.flatnonzero(np.einsum("kii->ki", scatter.scatter).sum(axis=0) > 0)
    if len(varies) < scatter.mean.shape[1]:
        part = GroupedScatter(len(scatter.count), 0)
        part.count, part.mean = scatter.count, scatter.mean[:, varies]
        part.scatter = scatter.scatter[:, varies[:, None], varies]
        scatter = part
    n_features = scatter.mean.shape[1]
    pooled, diagonal, folds = _POOLED, _DIAGONAL, range(n_folds)
    if n_features > _MANY_FEATURES:
        pooled, diagonal, folds = (0.0, 0.5, 1.0), (0.01, 0.1, 0.3), range(1)
    loss = np.zeros((len(pooled), len(diagonal)))
    for fold in folds:
        known, asked = scatter.without(fold, n_folds), scatter.fold(fold, n_folds)
        model = gaussians_of(known)
        seen = np.flatnonzero((known.count > 0) & (asked.count > 0))
        seen = seen[subsample(len(seen), _MOST_STRATA)]
        from_mean = asked.mean - known.mean
        count = asked.count[:, None, None]
        about = asked.scatter + count * from_mean[:, :, None] * from_mean[:, None, :]
        for i, alpha in enumerate(pooled):
            for j, beta in enumerate(diagonal):
                cov = regularise(model, Shares(alpha, beta), seen).cov
                sign, log_det = np.linalg.slogdet(cov)
                if (sign <= 0).any():
                    loss[i, j] = np.inf
                    continue
                inside = np.einsum("kij,kij->", np.linalg.inv(cov), about[seen])
                loss[i, j] += asked.count[seen] @ log_det + inside
    best = np.unravel_index(np.argmin(loss), loss.shape)
    return Shares(pooled[best[0]], diagonal[best[1]])


def gaussian_pair(
    domains: Domains, comparison: Comparison, conditional: Conditional, regularised: bool
) -> GaussianPair:
    """Return both domains as Gaussians at the support values."""
    if conditional.is_smooth:
        return _along_curves(domains, comparison, conditional, regularised)
    refuse_continuous(domains)
    return _in_strata(domains, comparison, regularised)


def _in_strata(domains: Domains, comparison: Comparison, regularised: bool) -> GaussianPair:
    """Return means and covariances within strata."""
    place, support = comparison.place, comparison.support
    n_values, d = len(support.levels), domains.n_features
    if n_values * d * d > _MOST_NUMBERS:
        raise ValueError(
            said(
                f"A full matrix needs a covariance of {d} x {d} features in each of {n_values} "
                "strata, which is too much. Use {@map='low-rank'} or 'blocks', or fewer strata."
            )
        )
    n_folds = _FOLDS if n_values * d * d * _FOLDS <= _MOST_NUMBERS else 2
    if not regularised:
        n_folds = 1
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
        refuse_huge(np.abs(scatter.scatter), _LARGEST)
        gaussians = gaussians_of(scatter.without(-1, n_folds))
        if n_folds > 1:
            shares[name] = choose_shares(scatter, n_folds)
            gaussians = regularise(gaussians, shares[name])
        sides.append(gaussians)
    query, reference = sides
    skewness = _skewness_in_strata(domains, place, query, reference)
    return GaussianPair(query, reference, support.weights, skewness, shares)


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


def _along_curves(
    domains: Domains, comparison: Comparison, conditional: Conditional, regularised: bool
) -> GaussianPair:
    r"""Return means and covariances :math:`D(z) R D(z)` at a bounded number of support points.

    :math:`D(z)` are the standard deviations of the conditional estimator, R the correlation of
    the residuals in units of these, one for all z.
    """
    used, covariates = comparison.used, comparison.covariates
    X, is_query = domains.rows(used), comparison.is_query
    at, weights, nearest = few_points(comparison)

    def own_weights(rows: Array) -> Array:
        return covariates.counts[rows]

    sides, shares, scores = [], {}, []
    for name, side in (("query", is_query), ("reference", ~is_query)):
        own = covariates.take(side)
        residual, here, there = residuals(conditional, X[side], own, at)
        scores.append(X[side] - here.mean)
        fold = np.zeros(len(residual), dtype=np.intp)
        n_folds = _FOLDS if regularised else 1
        if regularised:
            groups = None if domains.groups is None else domains.groups[used][side]
            fold = folds(fold, n_folds, groups)
        scatter = GroupedScatter(n_folds, X.shape[1])
        scatter.update(residual, fold, own_weights(side))
        whole = gaussians_of(scatter.without(-1, n_folds))
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

    return GaussianPair(sides[0], sides[1], weights, skewness, shares)


def without_constant(pair: GaussianPair) -> tuple[GaussianPair, Array]:
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


def is_singular(pair: GaussianPair) -> bool:
    """Tell whether a covariance is singular, of features that vary."""
    some, _ = without_constant(pair)
    covs = np.concatenate([some.query.cov, some.reference.cov])
    variances = np.einsum("kii->ki", covs)
    try:
        left = np.einsum("kii->ki", np.linalg.cholesky(covs)) ** 2  # what others leave of a feature
    except np.linalg.LinAlgError:
        return True
    return bool((left < _SINGULAR * variances).any())
