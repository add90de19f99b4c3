"""Both domains as Gaussians with few factors, for maps of thousands of features."""

from dataclasses import dataclass

import numpy as np
from sklearn.utils.extmath import randomized_svd

from condokit.checks import Array
from condokit.compare.comparison import Comparison
from condokit.conditionals import Conditional
from condokit.data.arrays import ones_for_zeros
from condokit.data.grouped import GroupedMoments
from condokit.data.study import Study
from condokit.maps.matrices import DiagonalPlusLowRank
from condokit.summaries.gaussians import few_points, residuals
from condokit.summaries.moments import MomentPair

_MOST_FACTORS = 10  # factors of a covariance, at most
_NOISE_FLOOR = 0.05  # share of a feature's variance that factors leave, at least
_POOLED = 0.5  # share of the pooled covariance in that of each stratum


@dataclass(frozen=True)
class FactorGaussian:
    r"""A Gaussian with covariance :math:`\Psi + F F'`, diagonal plus factors."""

    mean: Array
    noise: Array  # (n_features,): the diagonal
    factors: Array  # (n_features, n_factors)

    def moved(self, mean: Array, var: Array) -> "FactorGaussian":
        """Return the Gaussian with another mean, and variances multiplied by `var`."""
        return FactorGaussian(mean, self.noise * var, self.factors * np.sqrt(var)[:, None])

    @property
    def cov(self) -> DiagonalPlusLowRank:
        """The covariance."""
        return DiagonalPlusLowRank(self.noise, self.factors, self.factors)


def factor_gaussians(
    residual: Array, place: Array, mean: Array, counts: Array | None = None
) -> list[FactorGaussian]:
    """Return one Gaussian per stratum from residual rows.

    Its covariance is half that of the stratum and half the pooled one.
    """
    counts = np.ones(len(residual)) if counts is None else counts
    residual, place, counts = residual[counts > 0], place[counts > 0], counts[counts > 0]
    residual = residual * np.sqrt(counts)[:, None]
    n = float(counts.sum())
    pooled = residual / np.sqrt(max(n - len(mean), 1))
    result = []
    for k in range(len(mean)):
        n_own = float(counts[place == k].sum())
        own = residual[place == k] * np.sqrt((1 - _POOLED) / max(n_own - 1, 1))
        rows = np.vstack([own, pooled * np.sqrt(_POOLED if n_own > 1 else 1.0)])
        variance = (rows**2).sum(axis=0)
        q = max(1, min(_MOST_FACTORS, min(rows.shape) - 1, int(n) // 4))
        _, size, axes = randomized_svd(rows, q, random_state=0)
        # factors are the leading axes, with the variance that exceeds the average of the others
        rest = (variance.sum() - (size**2).sum()) / max(min(rows.shape) - q, 1)
        factors = axes.T * np.sqrt(np.maximum(size**2 - rest, 0.0))
        noise = np.maximum(variance - (factors**2).sum(axis=1), _NOISE_FLOOR * variance)
        result.append(FactorGaussian(mean[k], np.maximum(noise, 1e-12), factors))
    return result


@dataclass(frozen=True)
class FactorPair:
    """Both domains after a diagonal map, in standard units of the reference."""

    query: list[FactorGaussian]  # at the support values
    reference: list[FactorGaussian]
    weights: Array  # prior weights of these
    middle: Array  # (n_features,): the units
    unit: Array
    fewest_rows: float  # rows of the smaller domain


@dataclass(frozen=True)
class Factors:
    """What a search of low-rank maps needs: moments for its start, then factor Gaussians."""

    moments: MomentPair
    domains: Study
    comparison: Comparison
    conditional: Conditional

    def after(self, scale: Array, offset: Array, like: FactorPair | None = None) -> FactorPair:
        """Return both domains after a diagonal map of the query; in units of `like` if given."""
        domains, place = self.domains, self.comparison.place
        used = np.flatnonzero(place >= 0)
        X, is_query = domains.rows(used), domains.is_query[used]
        X[is_query] = X[is_query] * scale + offset
        counts = np.ones(len(used)) if domains.weights is None else domains.weights[used]
        share = counts[~is_query] / counts[~is_query].sum()
        middle = share @ X[~is_query]
        unit = np.sqrt(ones_for_zeros(share @ (X[~is_query] - middle) ** 2))
        if like is not None:
            middle, unit = like.middle, like.unit
        X -= middle
        X /= unit
        weights, sides = self.comparison.support.weights, []
        if self.conditional.is_smooth:
            at, weights, _ = few_points(self.comparison)
        for side in (is_query, ~is_query):
            if self.conditional.is_smooth:
                own = self.comparison.covariates.take(side)
                residual, _, there = residuals(self.conditional, X[side], own, at)
                none, zero = np.zeros(len(residual), dtype=np.intp), np.zeros((1, X.shape[1]))
                [whole] = factor_gaussians(residual, none, zero, counts[side])
                moments = zip(there.mean, ones_for_zeros(there.var))
                sides.append([whole.moved(*moment) for moment in moments])
            else:
                mine = place[used][side]
                stats = GroupedMoments(len(weights), X.shape[1])
                stats.update(X[side], mine, counts[side])
                residual = X[side] - stats.mean[mine]
                sides.append(factor_gaussians(residual, mine, stats.mean, counts[side]))
        fewest = float(min(counts[is_query].sum(), counts[~is_query].sum()))
        return FactorPair(sides[0], sides[1], weights, middle, unit, fewest)
