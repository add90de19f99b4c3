"""What every divergence offers, and the general minimiser for those without a closed form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from condokit.checks import Array
from condokit.data.arrays import average, columns
from condokit.data.covariates import Covariates
from condokit.data.domains import Domains
from condokit.maps.families import DiagonalFamily, MatrixFamily
from condokit.solvers.base import MatrixSolution
from condokit.solvers.lbfgs import lbfgs
from condokit.summaries.covariances import GaussianPair
from condokit.summaries.moments import Moments


@dataclass(frozen=True)
class Solution:
    r"""The best map of a family, written as :math:`x \mapsto r + m (x - c)` for every feature.

    Attributes
    ----------
    scale : ndarray of shape (n_features,)
        m.
    centre, image : ndarray of shape (n_features,)
        c, the middle of the query data, and r, where it is mapped to.
    se_log_scale, se_image : ndarray of shape (n_features,) or None
        Sampling standard errors of log m and r, nearly independent of each other; None if unknown.
    n_iter : int
        Iterations; 0 for a closed form.
    widening : float or ndarray of shape (n_features,)
        Factor of standard errors for what few rows leave unknown of them.
    """

    scale: Array
    centre: Array
    image: Array
    se_log_scale: Array | None = None
    se_image: Array | None = None
    n_iter: int = 0
    widening: Any = 1.0

    @property
    def offset(self) -> Array:
        """The offset of the map, r - m c."""
        return self.image - self.scale * self.centre


class BaseDivergence(BaseEstimator, ABC):
    """What a map makes small."""


class MatrixDivergence(BaseDivergence):
    """A divergence that finds full matrices, from means and covariances."""

    @abstractmethod
    def solve(self, family: MatrixFamily, pair: GaussianPair) -> MatrixSolution:
        """Find the best map of a family."""


class RowDivergence(BaseDivergence):
    """A criterion that is computed from the rows themselves, with no prior and no conditional."""

    @abstractmethod
    def minimize(
        self, family: DiagonalFamily, domains: Domains, covariates: Covariates, used: Array
    ) -> Solution:
        """Find the best map of a family; `used` are the numbers of the rows compared."""


class MomentDivergence(BaseDivergence):
    """A divergence between mapped query moments and reference moments, averaged over the prior.

    `weights` have the shape (n_values,), or (n_values, n_features) where values are missing.
    """

    @abstractmethod
    def value_and_grad(
        self, query: Moments, reference: Moments, weights: Array
    ) -> tuple[float, Array, Array]:
        """Return the value and its gradients in the mean and the variance of mapped `query`."""

    def value(self, query: Moments, reference: Moments, weights: Array) -> float:
        """Return the value alone."""
        return self.value_and_grad(query, reference, weights)[0]

    def minimize(
        self, family: DiagonalFamily, query: Moments, reference: Moments, weights: Array
    ) -> Solution:
        """Find the best map of a family by L-BFGS, in units of the reference's spread.

        A divergence with a closed form overrides this.
        """
        middle = average(weights, reference.mean)
        unit = np.sqrt(average(weights, reference.var + (reference.mean - middle) ** 2))
        query_units = _standardise(query, middle, unit)
        reference_units = _standardise(reference, middle, unit)
        n_features = len(unit)

        def objective(theta: Array) -> tuple[float, Array]:
            mapped = family.push(theta, query_units)
            value, d_mean, d_var = self.value_and_grad(mapped, reference_units, weights)
            return value, family.pull_back(theta, query_units, d_mean, d_var)

        theta = family.start(n_features)
        n_iter = 0
        if len(theta):
            best = lbfgs(objective, theta, max_iter=1000, ftol=1e-14, gtol=1e-9)
            theta, n_iter = best.x, int(best.nit)
        scale, offset = family.unpack(theta, n_features)
        centre = average(weights, query.mean)
        image = middle + scale * (centre - middle) + offset * unit
        return Solution(scale, centre, image, n_iter=n_iter)


def _standardise(moments: Moments, middle: Array, unit: Array) -> Moments:
    return replace(
        moments,
        mean=(moments.mean - middle) / unit,
        var=moments.var / unit**2,
        precision=moments.precision * unit**2,
    )


def decorrelated(solution: Solution, covariance: Array) -> Solution:
    r"""Move the centre to the point whose image is learned independently of the scale.

    `covariance` is that of log m with the image of the present centre c. The image of another
    point x is r + m (x - c), whose covariance with log m vanishes at
    :math:`x = c - \mathrm{cov} / (m \operatorname{var}(\log m))`.
    """
    assert solution.se_log_scale is not None
    assert solution.se_image is not None
    variance = solution.se_log_scale**2
    known = variance > 0
    slope = np.where(known, covariance / np.where(known, variance, 1.0), 0.0)
    rest = solution.se_image**2 - slope * covariance
    return replace(
        solution,
        centre=solution.centre - slope / solution.scale,
        image=solution.image - slope,
        se_image=np.sqrt(np.maximum(rest, 0.01 * solution.se_image**2)),
    )


def no_change(centre: Array) -> Solution:
    """Return the identity as a solution."""
    zero = np.zeros(len(centre))
    return Solution(np.ones(len(centre)), centre, centre, zero, zero)


def joined(results: list[tuple[Array, Solution]]) -> Solution:
    """Put the solutions of groups of features together in the order of the features."""
    order = np.argsort(np.concatenate([features for features, _ in results]))
    parts = [part for _, part in results]
    names = ("scale", "centre", "image", "se_log_scale", "se_image")
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])[order]
        for name in names
        if getattr(parts[0], name) is not None
    }
    return replace(parts[0], n_iter=max(part.n_iter for part in parts), **arrays)


def variance_of_mean(moments: Moments) -> Array:
    """Return the sampling variance of the means."""
    return moments.var / columns(np.maximum(moments.count, 1.0))


def variance_of_variance(moments: Moments) -> Array:
    """Return the sampling variance of the variances of Gaussian rows, 2 var^2 / dof."""
    return 2 * moments.var**2 / columns(np.maximum(moments.dof, 1.0))
