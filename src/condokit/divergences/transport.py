"""Optimal transport between Gaussians with confounder-balanced moments."""

from __future__ import annotations

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import average, columns
from condokit.divergences.base import (
    MatrixDivergence,
    MomentDivergence,
    Solution,
    decorrelated,
    no_change,
    variance_of_mean,
    variance_of_variance,
)
from condokit.maps.families import Affine, DiagonalFamily, MatrixFamily, Rigid
from condokit.solvers.base import MatrixSolution
from condokit.solvers.gaussian_kl import gap
from condokit.solvers.starts import match_axes, nearest_rigid, transport_matrix
from condokit.summaries.covariances import GaussianPair
from condokit.summaries.moments import Moments


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


class PCMatch(MatrixDivergence):
    r"""Align the principal axes of the balanced covariances in order of their size.

    :math:`A = V_r \operatorname{diag}(s_j \sqrt{\lambda_{r,j} / \lambda_{q,j}}) V_q'`. The sign
    :math:`s_j` of an axis is the one under which the stratum means along it agree: as a
    log-likelihood ratio, :math:`2 \sum_k u_{q,jk} u_{r,jk} / (1/n_k + 1/m_k)` with means u in units
    of the axis' spread, plus :math:`2 g_q g_r / (6/N_q + 6/N_r)` for skewnesses g within strata. If
    that leaves a reflection, the least certain axis is turned, unless even it is certain.

    Finds rotations that moments of strata cannot determine, if the sizes of the axes are distinct
    and kept by the shift; poor where they are not, so never a default.
    """

    def solve(self, family: MatrixFamily, pair: GaussianPair) -> MatrixSolution:
        """Return the map in closed form."""
        if family.is_penalised:
            raise ValueError("divergence='pc-match' takes no penalty or bound on the matrix.")
        A, b = match_axes(pair)
        if isinstance(family, Rigid):
            A = nearest_rigid(A, family.has_scale)
            b = pair.weights @ pair.reference.mean - A @ (pair.weights @ pair.query.mean)
        return MatrixSolution(A, b, gap(A, b, pair))
