"""Optimal transport between Gaussians with confounder-balanced moments."""

from __future__ import annotations

import numpy as np

from condokit._validation import Array
from condokit.divergences.base import (
    MatrixDivergence,
    MomentDivergence,
    Solution,
    decorrelated,
    no_change,
    variance_of_mean,
    variance_of_variance,
)
from condokit.divergences.matrix import MatrixSolution, gap, transport_matrix
from condokit.domains import GaussianPair, Moments
from condokit.maps import Affine, DiagonalFamily, MatrixFamily
from condokit.statistics import average, columns


class GaussianOT(MomentDivergence, MatrixDivergence):
    r"""Squared 2-Wasserstein distance between Gaussians with prior-weighted moments.

    Each domain is summed up by its balanced mean :math:`M = \sum_n w_n \mu_n` and variance
    :math:`V = \sum_n w_n [\sigma_n^2 + (\mu_n - M)^2]`, as if both had the confounders of the
    prior. Per feature the distance is :math:`(M_q - M_r)^2 + (\sqrt{V_q} - \sqrt{V_r})^2`, and
    the map that makes it zero is :math:`m = \sqrt{V_r / V_q},\ b = M_r - m M_q`. Without
    confounders this is the classical matching of mean and standard deviation.

    For full matrices with balanced covariances :math:`C_q, C_r`, the map is the symmetric
    :math:`A = C_q^{-1/2} (C_q^{1/2} C_r C_q^{1/2})^{1/2} C_q^{-1/2}`.
    """

    def value_and_grad(  # noqa: D102
        self, query: Moments, reference: Moments, weights: Array
    ) -> tuple[float, Array, Array]:
        w = columns(weights)
        mean_q, sd_q = _balanced(query, weights)
        mean_r, sd_r = _balanced(reference, weights)
        value = float(((mean_q - mean_r) ** 2 + (sd_q - sd_r) ** 2).sum())
        d_var = w * (1 - sd_r / sd_q)
        d_mean = 2 * w * (mean_q - mean_r) + 2 * d_var * (query.mean - mean_q)
        return value, d_mean, d_var

    def minimize(
        self, family: DiagonalFamily, query: Moments, reference: Moments, weights: Array
    ) -> Solution:
        """Return the exact minimum."""
        centre, sd_query = _balanced(query, weights)
        if not family.has_offset:
            return no_change(centre)
        image, sd_reference = _balanced(reference, weights)
        scale = np.ones(len(centre))
        se_log_scale = covariance = np.zeros(len(centre))
        if family.has_scale:
            scale = sd_reference / sd_query
            se_log_scale = np.sqrt(
                _variance_of_log_sd(query, centre, sd_query, weights)
                + _variance_of_log_sd(reference, image, sd_reference, weights)
            )
            covariance = average(
                weights**2,
                (reference.mean - image) / sd_reference**2 * variance_of_mean(reference)
                + scale * (query.mean - centre) / sd_query**2 * variance_of_mean(query),
            )
        at_centre = variance_of_mean(reference) + scale**2 * variance_of_mean(query)
        se_image = np.sqrt(average(weights**2, at_centre))
        return decorrelated(Solution(scale, centre, image, se_log_scale, se_image), covariance)

    def solve(self, family: MatrixFamily, pair: GaussianPair) -> MatrixSolution:
        """Return the optimal transport between the balanced Gaussians."""
        if not isinstance(family, Affine) or family.is_penalised:
            raise ValueError(
                "divergence='ot' finds diagonal maps and map='affine' without penalties. Use "
                "another divergence, such as 'likelihood', for this map."
            )
        (mean_q, cov_q), (mean_r, cov_r) = (
            side.balanced(pair.weights) for side in (pair.query, pair.reference)
        )
        A = transport_matrix(cov_q, cov_r)
        b = mean_r - A @ mean_q
        return MatrixSolution(A, b, gap(A, b, pair))


def _balanced(moments: Moments, weights: Array) -> tuple[Array, Array]:
    mean = average(weights, moments.mean)
    return mean, np.sqrt(average(weights, moments.var + (moments.mean - mean) ** 2))


def _variance_of_log_sd(moments: Moments, mean: Array, sd: Array, weights: Array) -> Array:
    from_mean = moments.mean - mean
    terms = variance_of_variance(moments) + 4 * from_mean**2 * variance_of_mean(moments)
    return average(weights**2, terms) / (4 * sd**4)
