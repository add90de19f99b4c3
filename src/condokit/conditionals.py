"""Ingredient 3, features given confounders: moments of each domain at the compared values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator

from condokit._validation import Array
from condokit.domains import Domains, Moments, Strata, Support
from condokit.kernels import Kernel, call, check_kernel, column_widths, rbf_delta
from condokit.smoothing import (
    Basis,
    Covariates,
    Products,
    Regression,
    curve_bases,
    fit_noise,
    squared_residuals,
)
from condokit.statistics import (
    GroupedMoments,
    ObservedMoments,
    columns,
    effective_counts,
    positive,
)

_FEATURE_BATCH = 256
_MOST_SMOOTHED = 2000  # rows of a domain that a kernel smoother uses
_WIDEST = 2.0  # factor of Silverman's bandwidth that a search starts from
_NARROWINGS = 8  # at most, by the root of two each
_CAUTION = 1.0  # standard errors by which a narrower bandwidth must be better
_FEW_COLUMNS = 32  # up to which products with the kernel are taken together
_FEW_ROWS = 3  # of a category, below which it borrows spread
_FAR = 1e-12  # weight of every row far from all rows
_LARGEST_SQUARE = 1e150
_VARIANCE_FLOOR = 1e-4  # of the feature's pooled within-stratum variance


class BaseConditional(BaseEstimator, ABC):
    """An estimator of the features of each domain given the confounders."""


class SmoothConditional(BaseConditional):
    """An estimator for confounders of any kind, one domain at a time."""

    takes_weights: ClassVar[bool] = False

    @abstractmethod
    def moments_at(self, X: Array, covariates: Covariates, at: Covariates) -> Moments:
        """Return the moments of features X, known at `covariates`, at other confounder values."""

    def sample_at(
        self, X: Array, covariates: Covariates, at: Covariates, n_draws: int, rng: Any
    ) -> Array:
        r"""Draw features at other confounder values, shape (n_values, n_draws, n_features).

        Whole rows of standardised residuals, :math:`\mu(z) + \sigma(z) \epsilon_i`, which keeps the
        correlations between features.
        """
        here = self.moments_at(X, covariates, covariates)
        there = self.moments_at(X, covariates, at)
        residual = (X - here.mean) / np.sqrt(here.var)
        share = covariates.counts / covariates.counts.sum()
        rows = rng.choice(len(X), (len(at.Z), n_draws), p=share)
        return there.mean[:, None] + np.sqrt(there.var)[:, None] * residual[rows]


class KernelSmoother(SmoothConditional):
    r"""Local linear means, and smoothed squared residuals as variances.

    One matrix of smoothing weights serves all features. The bandwidth is a multiple of Silverman's:
    twice that, narrowed by :math:`\sqrt 2` as long as the leave-one-out likelihood of all features
    gains more than its standard error. Categories with fewer than three rows borrow the spread of
    all others.

    Parameters
    ----------
    bandwidth : float or None, default=None
        Factor of Silverman's bandwidth. None chooses it by leave-one-out likelihood.
    kernel : callable or None, default=None
        k(Z1, Z2) -> matrix on the confounders as they are given; means are then local averages.
    """

    takes_weights = True

    def __init__(self, bandwidth: float | None = None, kernel: Kernel | None = None) -> None:
        self.bandwidth = bandwidth
        self.kernel = kernel

    def moments_at(self, X: Array, covariates: Covariates, at: Covariates) -> Moments:  # noqa: D102
        check_kernel(self.kernel, self.bandwidth)
        if len(X) > _MOST_SMOOTHED:
            rows = covariates.thinned(_MOST_SMOOTHED)
            X, covariates = X[rows], replace(covariates.take(rows), weights=None)
        counts = covariates.counts
        share = counts / counts.sum()
        middle = share @ X
        X = X - middle
        width = column_widths(covariates)
        fixed = self.bandwidth is not None or self.kernel is not None or len(width) == 0
        width *= (self.bandwidth or 1.0) if fixed else _WIDEST
        K = self._kernel(covariates, covariates, width)
        likelihood, square = self._at_rows(X, covariates, K)
        best = 0
        for k in range(1, 1 if fixed else _NARROWINGS + 1):
            K = K * K  # as wide as before, over the root of two
            tried = self._at_rows(X, covariates, K)
            gain = tried[0] - likelihood
            mean = share @ gain
            if mean > _CAUTION * np.sqrt(share @ (gain - mean) ** 2 / counts.sum()):
                best, (likelihood, square) = k, tried
            elif k > best + 1:
                break
        width = width * 0.5 ** (best / 2)
        K = self._kernel(at, covariates, width)
        means, _, total = _local_linear(X, self._lines(covariates), self._lines(at), K, counts)
        square *= counts[:, None]
        rare = np.bincount(covariates.category, counts, covariates.n_categories) < _FEW_ROWS
        if rare.any() and self.kernel is None:  # spreads of rare categories are those of all
            borrowing = rare[at.category]
            anywhere = [
                Covariates(c.Z, 0 * c.category, 1) for c in (at.take(borrowing), covariates)
            ]
            K[borrowing] = self._kernel(anywhere[0], anywhere[1], width)
            total[borrowing] = (K[borrowing] @ counts + _FAR * counts.sum())[:, None]
        var = (K @ square + _FAR * square.sum(axis=0)) / total
        var = np.maximum(var, _VARIANCE_FLOOR * (share @ X**2))
        count = total[:, 0] ** 2 / ((K * K) @ counts + _FAR**2 * counts.sum())
        with np.errstate(divide="ignore"):
            return Moments(means + middle, var, 1 / var, count, np.maximum(count - 1, 0.5))

    def _at_rows(self, X: Array, covariates: Covariates, K: Array) -> tuple[Array, Array]:
        """Return the leave-one-out likelihood of every row, and squared residuals."""
        Z = self._lines(covariates)
        counts = covariates.counts
        mean, tilt, total = _local_linear(X, Z, Z, K, counts)
        own = np.diag(K)[:, None]
        left_out = np.maximum(1 - own * tilt, 0.05)
        square = ((X - mean) / left_out) ** 2
        sums = counts @ square
        pooled = np.maximum(sums / counts.sum(), 1e-300)
        nearby = (K @ (counts[:, None] * square) - own * square + _FAR * sums) / (total - own)
        var = np.maximum(nearby, 1e-3 * pooled)
        likelihood = -0.5 * (np.log(var) + square / var).mean(axis=1)
        # residuals of the curve itself, not of curves without the row
        return likelihood, square * left_out

    def _lines(self, covariates: Covariates) -> Array:
        """Return the columns in which means are local lines."""
        return covariates.Z[:, :0] if self.kernel is not None else covariates.Z

    def _kernel(self, left: Covariates, right: Covariates, width: Array) -> Array:
        """Return the kernel, at most about one."""
        if self.kernel is not None:
            K = call(self.kernel, left, right)
            return K / max(float(K.max()), 1e-300)
        if right.Z.shape[1] == 0:
            return (left.category[:, None] == right.category).astype(float)
        return rbf_delta(left, right, width)


class Splines(SmoothConditional):
    """Penalised curves of the mean and of the log-variance of every feature.

    Additive curves, surfaces of two or three columns, and curves for every category, with
    smoothness by empirical Bayes; see `condokit.smoothing`.

    Parameters
    ----------
    n_knots : int, default=12
        Knots of each mean curve; half of them for the variance.
    max_iter : int, default=10
        Alternations of mean and variance.
    """

    takes_weights = True

    def __init__(self, n_knots: int = 12, max_iter: int = 10) -> None:
        self.n_knots = n_knots
        self.max_iter = max_iter

    def moments_at(self, X: Array, covariates: Covariates, at: Covariates) -> Moments:  # noqa: D102
        counts = covariates.counts
        middle = counts @ X / counts.sum()
        spread = np.sqrt(counts @ (X - middle) ** 2 / counts.sum())
        unit = positive(spread)
        bases = curve_bases(covariates, self.n_knots, (X - middle) / unit)
        products, Psi = Products(bases[0](covariates)), bases[1](covariates)
        means, variances = np.empty((2, len(at.Z), X.shape[1]))
        for start in range(0, X.shape[1], _FEATURE_BATCH):
            batch = slice(start, start + _FEATURE_BATCH)
            Y = (X[:, batch] - middle[batch]) / unit[batch]
            beta, gamma, bounds = self._fit(Y, bases, products, Psi, counts)
            means[:, batch] = bases[0](at) @ beta.T * unit[batch] + middle[batch]
            log_var = np.clip(bases[1](at) @ gamma.T, *bounds)
            floor = np.where(spread[batch] > 0, _VARIANCE_FLOOR, 0.0)
            variances[:, batch] = np.maximum(np.exp(log_var), floor) * unit[batch] ** 2
        count = np.full(len(at.Z), counts.sum() / len(bases[0].block))
        with np.errstate(divide="ignore"):
            return Moments(means, variances, 1 / variances, count, np.maximum(count - 1, 0.5))

    def _fit(
        self,
        Y: Array,
        bases: tuple[Basis, Basis],
        products: Products,
        Psi: Array,
        counts: Array,
    ) -> tuple[Array, Array, Array]:
        """Alternate mean and variance curves of standardised features."""
        mean, noise = Regression(bases[0], Y.shape[1], 1.0), Regression(bases[1], Y.shape[1], 0.3)
        log_var = None
        precision = np.full(Y.shape, 1 / 0.3)
        for _ in range(self.max_iter):
            W = counts[:, None] * precision
            cov = mean.posterior(products.gram(W))
            beta = np.einsum("drs,sd->dr", cov, products.Phi.T @ (W * Y))
            mean.update_prior(beta)
            square = squared_residuals(Y, products, beta, cov, precision)
            gamma, log_var, bounds = fit_noise(noise, Psi, counts, square, log_var)
            precision = np.exp(-log_var)
        return beta, gamma, bounds


class Chained(SmoothConditional):
    """The paper's chained imputation: gradient-boosted trees and predictive mean matching.

    Every feature in turn is predicted from the confounders and the other features; a draw is the
    observed value of one of the rows whose prediction is nearest. For comparison: slower and
    noisier than the other estimators. Needs LightGBM (``pip install condokit[lightgbm]``).

    Parameters
    ----------
    n_draws : int, default=20
        Imputations at every confounder value; their mean and variance are the moments.
    n_iter : int, default=2
        Rounds over the features.
    n_neighbors : int, default=5
        Nearest predictions among which a draw is chosen.
    n_estimators : int, default=30
        Trees of a model.
    fraction : float, default=1.0
        Share of the rows that a model is trained on, the paper's F.
    random_state : int, default=0
        Seed.
    """

    def __init__(
        self,
        n_draws: int = 20,
        n_iter: int = 2,
        n_neighbors: int = 5,
        n_estimators: int = 30,
        fraction: float = 1.0,
        random_state: int = 0,
    ) -> None:
        self.n_draws = n_draws
        self.n_iter = n_iter
        self.n_neighbors = n_neighbors
        self.n_estimators = n_estimators
        self.fraction = fraction
        self.random_state = random_state

    def moments_at(self, X: Array, covariates: Covariates, at: Covariates) -> Moments:  # noqa: D102
        rng = np.random.default_rng(self.random_state)
        draws = self.sample_at(X, covariates, at, self.n_draws, rng)
        pooled = X.var(axis=0, ddof=1)
        var = np.maximum(draws.var(axis=1, ddof=1), _VARIANCE_FLOOR * pooled)
        # the inverse of a variance of few draws is biased upwards
        precision = max(self.n_draws - 3, 1) / ((self.n_draws - 1) * positive(var))
        count = np.full(len(at.Z), float(self.n_draws))
        return Moments(draws.mean(axis=1), var, precision, count, count - 1)

    def sample_at(  # noqa: D102
        self, X: Array, covariates: Covariates, at: Covariates, n_draws: int, rng: Any
    ) -> Array:
        try:
            import lightgbm
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "conditional='chained' needs LightGBM; install it with the extra "
                "'condokit[lightgbm]'."
            ) from None
        known, asked = (
            np.column_stack([c.Z, np.eye(c.n_categories)[c.category]]) for c in (covariates, at)
        )
        n_features = X.shape[1]
        out = X[rng.integers(0, len(X), (len(asked), n_draws))]
        n_rows = max(2, round(self.fraction * len(X)))
        for _ in range(self.n_iter if n_features > 1 else 1):
            for j in range(n_features):
                rows = rng.choice(len(X), n_rows, replace=False)
                others = np.delete(X, j, axis=1)
                inputs = np.column_stack([known, others])[rows]
                model = lightgbm.train(
                    {
                        "objective": "regression",
                        "min_data_in_leaf": min(20, max(2, n_rows // 10)),
                        "num_threads": 1,
                        "verbosity": -1,
                        "seed": int(rng.integers(2**31)),
                    },
                    lightgbm.Dataset(inputs, X[rows, j]),
                    num_boost_round=self.n_estimators,
                )
                # trees predict in steps: ties are broken at random, anew for every draw
                spread = 1e-6 * float(X[:, j].std())
                donors = np.asarray(model.predict(inputs))
                for draw in range(n_draws):
                    others = np.delete(out[:, draw], j, axis=1)
                    wanted = np.asarray(model.predict(np.column_stack([asked, others])))
                    shaken = donors + spread * rng.normal(size=n_rows)
                    order = np.argsort(shaken)
                    wanted += spread * rng.normal(size=len(asked))
                    place = np.searchsorted(shaken[order], wanted)
                    near = place + rng.integers(0, self.n_neighbors, len(asked))
                    near = np.clip(near - self.n_neighbors // 2, 0, n_rows - 1)
                    out[:, draw, j] = X[rows[order[near]], j]
        return out


class StrataConditional(BaseConditional):
    """An estimator for categorical confounders, all rows in one pass."""

    @abstractmethod
    def moments(
        self, domains: Domains, strata: Strata, support: Support
    ) -> tuple[Moments, Moments]:
        """Return the moments of (query, reference) at the support values."""


class Stratified(StrataConditional):
    r"""Means and variances within each stratum, in one pass over the rows.

    Variances have the divisor n - 1. A stratum with one row borrows the pooled within-stratum
    variance of its domain, and no variance is taken below 1e-4 of that. With `groups`, rows of one
    subject count for less (see `condokit.statistics.effective_counts`). Where values are missing,
    each feature has the moments of its own rows in the strata where both domains have some.
    """

    def moments(  # noqa: D102
        self, domains: Domains, strata: Strata, support: Support
    ) -> tuple[Moments, Moments]:
        n_values = len(support.levels)
        cell = cell_of(domains, strata, support)
        stats = _gather(domains, cell, 2 * n_values)
        if domains.gaps is not None:  # what one domain alone has is not compared
            common = (stats.count[:n_values] > 0) & (stats.count[n_values:] > 0)
            _leave_out(stats, ~np.concatenate([common, common]))
        counts = stats.count
        if domains.groups is not None:
            counts = self._independent(domains, cell, stats)
        halves = (slice(None, n_values), slice(n_values, None))
        query, reference = (
            moments_from(stats.count[h], stats.mean[h], stats.squares[h], counts[h]) for h in halves
        )
        return query, reference

    @staticmethod
    def _independent(domains: Domains, cell: Array, stats: GroupedMoments) -> Array:
        """Return the number of independent rows in each cell."""
        assert domains.groups is not None
        used = cell >= 0
        pairs = cell.astype(np.int64) * (domains.groups.max() + 1) + domains.groups
        distinct, codes = np.unique(pairs[used], return_inverse=True)
        cluster = np.full(len(cell), -1, dtype=np.int64)
        cluster[used] = codes
        clusters = _gather(domains, cluster, len(distinct))
        stratum = distinct // (domains.groups.max() + 1)
        if domains.gaps is not None:
            _leave_out(clusters, stats.count[stratum] == 0)
        return effective_counts(stats.count, stats.squares, clusters, stratum)


def _local_linear(
    X: Array, Z: Array, at: Array, K: Array, counts: Array
) -> tuple[Array, Array, Array]:
    r"""Return local linear means, the tilt of every point at itself, and sums of the kernel.

    With local mean and covariance :math:`\bar z_i, S_i` of the confounders Z, the mean at a point
    :math:`z_i` is :math:`\sum_j K_{ij} t_i(z_j) x_j`, where
    :math:`t_i(z) = [1 - (z - \bar z_i)' S_i^{-1} (\bar z_i - z_i)] / \sum_j K_{ij}`. Every row
    stands for `counts` rows.
    """
    (n, p), d = Z.shape, X.shape[1]
    line = np.concatenate([np.ones((n, 1)), Z], axis=1)
    squares = (Z[:, :, None] * Z[:, None, :]).reshape(n, -1)
    few = d * (1 + p) <= _FEW_COLUMNS
    tilted = (line[:, :, None] * (X if few else X[:, :0])[:, None, :]).reshape(n, -1)
    products = np.concatenate([line, squares, tilted], axis=1)
    products *= counts[:, None]
    sums = K @ products
    sums += _FAR * products.sum(axis=0)  # far from all rows, every row counts a little
    total = sums[:, :1]
    coefficients = 1 / total
    if p:
        middle = sums[:, 1 : p + 1] / total
        spread = (sums[:, p + 1 : p + 1 + p * p] / total).reshape(-1, p, p)
        spread -= middle[:, :, None] * middle[:, None, :]
        trace = np.trace(spread, axis1=1, axis2=2) / p
        spread += (1e-3 * trace[:, None, None] + 1e-12) * np.eye(p)
        slope = middle - at
        slope = (
            slope / spread[:, 0] if p == 1 else np.linalg.solve(spread, slope[:, :, None])[..., 0]
        )
        constant = 1 + (slope * middle).sum(axis=1, keepdims=True)
        coefficients = np.concatenate([constant, -slope], axis=1) / total
    if few:
        mean = np.einsum("ik,ikd->id", coefficients, sums[:, 1 + p + p * p :].reshape(-1, 1 + p, d))
    else:
        X = counts[:, None] * X
        mean = (K * (coefficients @ line.T)) @ X + _FAR * coefficients @ (line.T @ X)
    tilt = coefficients[:, :1] + (coefficients[:, 1:] * at).sum(axis=1, keepdims=True)
    return mean, tilt, total


def moments_from(count: Array, mean: Array, squares: Array, independent: Array) -> Moments:
    """Turn grouped sums into moments, with borrowed and floored variances."""
    dof = count - 1
    lone = dof < 0.5
    some = ~lone if lone.ndim == 1 else ~lone.all(axis=1)
    pooled = np.where(columns(lone), 0.0, squares)[some].sum(axis=0)
    pooled /= np.maximum(np.where(lone, 0.0, dof)[some].sum(axis=0), 1e-300)
    var = np.where(columns(lone), pooled, squares / columns(np.where(lone, 1.0, dof)))
    var = np.maximum(var, _VARIANCE_FLOOR * pooled)
    with np.errstate(divide="ignore"):
        precision = 1 / var
    # one subject with many rows still has a variance, if a poor one
    return Moments(
        mean, var, precision, independent, np.where(lone, 0.0, np.maximum(independent - 1, 0.5))
    )


def cell_of(domains: Domains, strata: Strata, support: Support) -> Array:
    """Return the cell of every row: query's support values, then the reference's; -1 for none."""
    cell = support.place(strata)
    cell[(cell >= 0) & ~domains.is_query] += len(support.levels)
    return cell


def _leave_out(stats: GroupedMoments, places: Array) -> None:
    """Forget what was gathered in some places of the table."""
    for table in (stats.count, stats.mean, stats.squares):
        table[places] = 0.0


def _gather(domains: Domains, groups: Array, n_groups: int) -> GroupedMoments:
    """Read all rows once."""
    kind = GroupedMoments if domains.gaps is None else ObservedMoments
    stats = kind(n_groups, domains.n_features)
    weights = domains.weights
    for rows, chunk in domains.chunks():
        with np.errstate(invalid="ignore", over="ignore"):
            stats.update(chunk, groups[rows], None if weights is None else weights[rows])
    if not stats.squares.max(initial=0.0) < _LARGEST_SQUARE:
        raise ValueError(
            "The features are too large for double precision (their squares exceed 1e150). "
            "Rescale them."
        )
    return stats


CONDITIONALS: dict[str, type[BaseConditional]] = {
    "stratified": Stratified,
    "kernel": KernelSmoother,
    "splines": Splines,
    "chained": Chained,
}
