"""Both domains as Gaussians at the compared confounder values, for maps with a matrix."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from condokit.checks import Array, refusal
from condokit.compare.comparison import Comparison
from condokit.conditionals import Conditional, Moments
from condokit.data.arrays import ones_for_zeros
from condokit.data.covariates import Covariates
from condokit.data.grouped import GroupedScatter
from condokit.data.kernels import spread_points
from condokit.data.study import Study
from condokit.data.subsets import folds, subsample
from condokit.summaries.moments import is_flat, refuse_continuous

_POOLED: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)  # shares that are tried
_DIAGONAL: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)  # likewise
_MANY_FEATURES = 200  # above this, fewer shares are tried
_MOST_STRATA = 50  # strata by which shares are chosen, at most
_FOLDS = 5
_MOST_POINTS = 60  # support points of continuous confounders, at most
_MOST_NUMBERS = 50_000_000  # in all covariances of a domain, at most
_SINGULAR = 1e-10  # share of a variance that other features leave, at least
_FEW_SCORES, _MOST_SCORES = 2000, 1_000_000  # rows, or numbers, of residuals for their skewness


@dataclass(frozen=True)
class Shares:
    """How a covariance is regularised: the share of the pooled one, then of the diagonal."""

    pooled: float = 0.0
    diagonal: float = 0.0


@dataclass(frozen=True)
class Gaussians:
    """Conditional means and covariances of one domain at every support value."""

    mean: Array  # (n_values, n_features)
    cov: Array  # (n_values, n_features, n_features)
    count: Array  # (n_values,): numbers of rows

    def of(self, features: Array) -> "Gaussians":
        """Return the marginal law of some of the features."""
        cov = self.cov[:, features[:, None], features]
        return Gaussians(self.mean[:, features], cov, self.count)

    def balanced(self, weights: Array) -> tuple[Array, Array]:
        r"""Return M and the covariance :math:`\sum_n w_n [\Sigma_n + (\mu_n - M)(\mu_n - M)']`."""
        mean, within = weights @ self.mean, np.tensordot(weights, self.cov, axes=1)
        between = self.mean - mean
        return mean, within + (between.T * weights) @ between


@dataclass(frozen=True)
class GaussianPair:
    """Both domains as Gaussians at the support values, and the weights of these values."""

    query: Gaussians
    reference: Gaussians
    weights: Array  # (n_values,): prior weights, which sum to one
    scores: tuple[Array, Array] | None = None  # residuals of (query, reference)
    # how the covariances of "query" and "reference" were regularised, if they were
    shares: dict[str, Shares] = field(default_factory=dict)
    # matrix and offset from which to search, if they are nearly known
    start: tuple[Array, Array] | None = None

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.query.mean.shape[1]

    def means_only(self) -> tuple[Array, Array]:
        """Return the identity, and the offset that brings the balanced means together."""
        return np.eye(self.n_features), self.weights @ (self.reference.mean - self.query.mean)

    def of(self, features: Array) -> "GaussianPair":
        """Return the marginal laws of some of the features."""
        start = self.start and (self.start[0][np.ix_(features, features)], self.start[1][features])
        sides = self.query.of(features), self.reference.of(features)
        scores = self.scores and (self.scores[0][:, features], self.scores[1][:, features])
        return GaussianPair(*sides, self.weights, scores, start=start)

    def in_units(self, unit: Array) -> "GaussianPair":
        """Return the pair with every feature divided by its unit."""
        scores, start = self.scores, self.start
        scores = scores and (scores[0] / unit, scores[1] / unit)
        query, reference = (
            Gaussians(side.mean / unit, side.cov / np.outer(unit, unit), side.count)
            for side in (self.query, self.reference)
        )
        start = start and (start[0] / unit[:, None] * unit, start[1] / unit)
        return GaussianPair(query, reference, self.weights, scores, self.shares, start)

    def replaced(self, query: Gaussians, reference: Gaussians) -> "GaussianPair":
        """Return the pair with other Gaussians, which are regularised as its own were."""
        query, reference = (
            side if name not in self.shares else regularise(side, self.shares[name])
            for name, side in (("query", query), ("reference", reference))
        )
        return replace(self, query=query, reference=reference)

    def swapped(self) -> "GaussianPair":
        """Return the pair with query and reference exchanged."""
        scores = self.scores and self.scores[::-1]
        return GaussianPair(self.reference, self.query, self.weights, scores)


def gaussians_of(scatter: GroupedScatter) -> Gaussians:
    """Return means and covariances; a stratum with one row has the pooled covariance."""
    dof = scatter.count - 1
    lone = dof < 0.5
    pooled = scatter.scatter[~lone].sum(axis=0) / max(float(dof[~lone].sum()), 1e-300)
    cov = scatter.scatter / np.where(lone, 1.0, dof)[:, None, None]
    cov[lone] = pooled
    return Gaussians(scatter.mean, cov, scatter.count)


def regularise(
    gaussians: Gaussians, shares: Shares, strata: Array | slice = slice(None)
) -> Gaussians:
    r"""Shrink covariances towards the pooled one, and towards their diagonal.

    :math:`(1 - \beta) S_k + \beta \operatorname{diag} S_k` with
    :math:`S_k = (1 - \alpha) \Sigma_k + \alpha \bar\Sigma`, where :math:`\bar\Sigma` is the pooled
    within-stratum covariance. `strata` are those that are returned.
    """
    dof = np.maximum(gaussians.count - 1, 0.0)
    dof = dof / dof.sum() if dof.sum() > 0 else np.full(len(dof), 1 / len(dof))
    pooled = np.tensordot(dof, gaussians.cov, axes=1)
    plain = (1 - shares.pooled) * gaussians.cov[strata] + shares.pooled * pooled
    cov = (1 - shares.diagonal) * plain
    np.einsum("kii->ki", cov)[...] = np.einsum("kii->ki", plain)
    return Gaussians(gaussians.mean[strata], cov, gaussians.count[strata])


def choose_shares(scatter: GroupedScatter, n_folds: int) -> Shares:
    """Choose the shares of regularisation by the Gaussian likelihood of held-out folds."""
    constant = np.diag((scatter.squares.sum(axis=0) == 0).astype(float))
    pooled, diagonal, tried = _POOLED, _DIAGONAL, n_folds
    if len(constant) > _MANY_FEATURES:
        pooled, diagonal, tried = (0.0, 0.5, 1.0), (0.01, 0.1, 0.3), 1
    loss = np.zeros((len(pooled), len(diagonal)))
    for fold in range(tried):
        known, asked = scatter.without(fold, n_folds), scatter.fold(fold, n_folds)
        model = gaussians_of(known)
        seen = np.flatnonzero((known.count > 0) & (asked.count > 0))
        seen = seen[subsample(len(seen), _MOST_STRATA)]
        from_mean, count = asked.mean - known.mean, asked.count[:, None, None]
        about = asked.scatter + count * from_mean[:, :, None] * from_mean[:, None, :]
        for i, j in np.ndindex(loss.shape):
            cov = regularise(model, Shares(pooled[i], diagonal[j]), seen).cov + constant
            sign, log_det = np.linalg.slogdet(cov)
            if (sign <= 0).any():
                loss[i, j] = np.inf
                continue
            inside = np.einsum("kij,kij->", np.linalg.inv(cov), about[seen])
            loss[i, j] += asked.count[seen] @ log_det + inside
    best = np.unravel_index(np.argmin(loss), loss.shape)
    return Shares(pooled[best[0]], diagonal[best[1]])


def _learned(scatter: GroupedScatter, n_folds: int) -> tuple[Gaussians, Shares | None]:
    """Return the Gaussians of all folds, and how much each was regularised (if several folds)."""
    gaussians = gaussians_of(scatter.without(-1, n_folds))
    shares = choose_shares(scatter, n_folds) if n_folds > 1 else None
    return gaussians if shares is None else regularise(gaussians, shares), shares


def gaussian_pair(
    domains: Study, comparison: Comparison, conditional: Conditional, regularised: bool
) -> GaussianPair:
    """Return both domains as Gaussians at the support values: within strata, or along curves."""
    if conditional.is_smooth:
        return along_curves(domains, comparison, conditional, regularised)
    refuse_continuous(domains)
    place, support = comparison.place, comparison.support
    n_values, d = len(support.levels), domains.n_features
    if n_values * d * d > _MOST_NUMBERS:
        raise refusal(
            f"A full matrix needs a covariance of {d} x {d} features in each of {n_values} "
            "strata, which is too much. Use {@map='low-rank'}, or fewer strata."
        )
    n_folds, dealt = 1, np.zeros(len(place), dtype=np.intp)
    if regularised:
        n_folds = _FOLDS if n_values * d * d * _FOLDS <= _MOST_NUMBERS else 2
        of_side, marks = 2 * place + ~domains.is_query, domains.marks()
        dealt = folds(of_side, n_folds, domains.groups, values=marks)
    # number of a cell: first the domain, then the fold, then the stratum, which changes fastest
    cell = np.where(place < 0, -1, place + n_values * (dealt + n_folds * ~domains.is_query))
    both = domains.gather(cell, 2 * n_folds * n_values, GroupedScatter)
    sides, shares = zip(*(_learned(both.fold(k, 2), n_folds) for k in range(2)))
    scores = _scores(domains, place, sides)
    return GaussianPair(sides[0], sides[1], support.weights, scores, _by_domain(shares))


def _by_domain(shares: Sequence[Shares | None]) -> dict[str, Shares]:
    """Return how the covariances of both domains were regularised, if they were."""
    return {name: share for name, share in zip(("query", "reference"), shares) if share is not None}


def _scores(domains: Study, place: Array, sides: Sequence[Gaussians]) -> tuple[Array, Array] | None:
    """Return residuals of rows of both domains; weighted rows are taken in proportion."""
    if not domains.has_rows:
        return None
    found, most = [], max(_FEW_SCORES, _MOST_SCORES // domains.n_features)
    for is_query, side in zip((True, False), sides):
        mine = np.flatnonzero((place >= 0) & (domains.is_query == is_query))
        if len(mine) > most:  # by value, so that the order of rows does not matter
            mine = mine[np.lexsort(domains.marks()[mine].T)]
        upto = np.cumsum(np.ones(len(mine)) if domains.weights is None else domains.weights[mine])
        n = min(most, int(np.ceil(upto[-1])))
        mine = np.sort(mine[np.searchsorted(upto, (np.arange(n) + 0.5) / n * upto[-1])])
        found.append(domains.rows(mine) - side.mean[place[mine]])
    return found[0], found[1]


def along_curves(
    domains: Study,
    comparison: Comparison,
    conditional: Conditional,
    regularised: bool,
    known: tuple[Array, tuple[Covariates, Array, Array]] | None = None,
) -> GaussianPair:
    """Return means and covariances :math:`D(z) R D(z)` at points.

    D(z) are the standard deviations given the confounders z, and R is the correlation of residuals,
    which does not depend on z. `known` are the rows used and `few_points`, if known already.
    """
    used, covariates = comparison.used, comparison.covariates
    X, points = known or (domains.rows(used), few_points(comparison))
    (at, weights, nearest), n_folds = points, _FOLDS if regularised else 1
    sides, scores, shares = [], [], []
    for side in (comparison.is_query, ~comparison.is_query):
        own = covariates.take(side)
        residual, here, there = residuals(conditional, X[side], own, at)
        scores.append(X[side] - here.mean)
        fold = np.zeros(len(residual), dtype=np.intp)
        if regularised:
            groups = None if domains.groups is None else domains.groups[used][side]
            marks = domains.marks()[used][side]
            fold = folds(fold, n_folds, groups, values=marks)
        scatter = GroupedScatter(n_folds, X.shape[1])
        scatter.update(residual, fold, own.counts)
        whole, share = _learned(scatter, n_folds)
        shares.append(share)
        sd, spread = ones_for_zeros(np.sqrt(np.diag(whole.cov[0]))), np.sqrt(there.var)
        correlation = whole.cov[0] / np.outer(sd, sd)
        cov = spread[:, :, None] * correlation * spread[:, None, :]
        placed = side & (nearest >= 0)
        count = np.bincount(nearest[placed], covariates.counts[placed], minlength=len(weights))
        sides.append(Gaussians(there.mean, cov, np.maximum(count, 1e-6)))

    both = scores[0], scores[1]
    return GaussianPair(sides[0], sides[1], weights, both, _by_domain(shares))


def without_constant(pair: GaussianPair) -> tuple[GaussianPair, Array]:
    """Leave out features that are constant within strata in a domain; return which are kept."""
    kept = np.ones(pair.n_features, dtype=bool)
    for side in (pair.query, pair.reference):
        kept &= ~is_flat(side.mean, np.einsum("kii->ki", side.cov))
    return pair if kept.all() else pair.of(np.flatnonzero(kept)), kept


def is_singular(pair: GaussianPair) -> bool:
    """Return whether a covariance of the features that vary is singular."""
    some, _ = without_constant(pair)
    covs = np.concatenate([some.query.cov, some.reference.cov])
    variances = np.einsum("kii->ki", covs)
    try:
        left = np.einsum("kii->ki", np.linalg.cholesky(covs)) ** 2  # what others leave of a feature
    except np.linalg.LinAlgError:
        return True
    return bool((left < _SINGULAR * variances).any())


def residuals(
    conditional: Conditional, X: Array, own: Covariates, at: Covariates
) -> tuple[Array, Moments, Moments]:
    """Return residuals over their spread, and moments at the rows and at the points `at`."""
    both = conditional.moments_at(X, own, own.joined(at))
    here, there = both.of(slice(len(X))), both.of(slice(len(X), None))
    return (X - here.mean) / np.sqrt(ones_for_zeros(here.var)), here, there


def few_points(comparison: Comparison) -> tuple[Covariates, Array, Array]:
    """Return a few support points, their weights, and each row's nearest point, -1 for none."""
    from sklearn.cluster import KMeans  # slow to import

    covariates, (rows, weights) = comparison.covariates, comparison.points
    kernel = getattr(comparison.prior, "kernel", None)
    if kernel is not None:  # points of which nothing but the kernel is known
        given = covariates.take(rows)
        chosen, near, nearest = spread_points(kernel, given, weights, covariates, _MOST_POINTS)
        share = np.bincount(near, weights, minlength=len(chosen))
        return given.take(chosen), share / share.sum(), nearest
    centres, categories, shares = [], [], []
    nearest = np.full(len(covariates.Z), -1, dtype=np.intp)
    n_centres = 0
    for category in np.unique(covariates.category):  # centres are found within each category
        mine = covariates.category[rows] == category
        everyone = np.flatnonzero(covariates.category == category)
        if not weights[mine].sum() > 0:
            continue
        Z = covariates.Z[rows[mine]]
        n = min(max(2, round(_MOST_POINTS * len(Z) / len(rows))), len(np.unique(Z, axis=0)))
        if Z.shape[1] == 0 or n == 1:
            n, centre = 1, Z[:1]
            place, labels = np.zeros(len(everyone)), np.zeros(len(Z), dtype=np.intp)
        else:
            # sorted, so that the order of rows does not matter
            model = KMeans(n, n_init=1, random_state=0).fit(Z[np.lexsort(Z.T)])
            centre = model.cluster_centers_
            place, labels = model.predict(covariates.Z[everyone]), model.predict(Z)
        nearest[everyone] = place + n_centres
        n_centres += n
        centres.append(centre)
        categories += [category] * n
        shares.append(np.bincount(labels, weights[mine], minlength=n))
    share = np.concatenate(shares)
    at = Covariates(np.concatenate(centres), np.array(categories), covariates.n_categories)
    return at, share / share.sum(), nearest
