"""Optimal transport between Gaussians with confounder-balanced moments; matching of axes."""

from typing import ClassVar

import numpy as np

from condokit.checks import Array, said
from condokit.conditionals import Moments
from condokit.divergences.base import Divergence, GaussianDivergence, in_units
from condokit.maps.families import DiagonalFamily, MapFamily, MatrixFamily
from condokit.solvers.gaussian_kl import gap
from condokit.solvers.lbfgs import Evaluation
from condokit.solvers.matrices import match_axes, nearest_rigid, transport_matrix
from condokit.solvers.solution import Solution, decorrelated, no_change
from condokit.summaries.gaussians import GaussianPair
from condokit.summaries.moments import MomentPair


class GaussianOT(GaussianDivergence):
    r"""Squared 2-Wasserstein distance between Gaussians with prior-weighted moments.

    Each domain is summarised by its balanced mean :math:`M = \sum_n w_n \mu_n` and variance
    :math:`V = \sum_n w_n [\sigma_n^2 + (\mu_n - M)^2]`, as if the confounders of both domains had
    the law of the prior. Per feature the distance is
    :math:`(M_q - M_r)^2 + (\sqrt{V_q} - \sqrt{V_r})^2`, and the map that makes it zero is
    :math:`m = \sqrt{V_r / V_q},\ b = M_r - m M_q`. Without confounders this is the classical
    matching of mean and standard deviation. The best map without an offset is
    :math:`m = (M_q M_r + \sqrt{V_q V_r}) / (M_q^2 + V_q)`.

    For full matrices with balanced covariances :math:`C_q, C_r`, the map is the symmetric
    :math:`A = C_q^{-1/2} (C_q^{1/2} C_r C_q^{1/2})^{1/2} C_q^{-1/2}`.

    Examples
    --------
    >>> from condokit import ConDoAdapter, GaussianOT, datasets
    >>> p = datasets.make_categorical1d(200, random_state=0)  # the true map is x / 2 - 2.5
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> adapter = ConDoAdapter(divergence=GaussianOT()).fit_pair(*data)
    >>> adapter.map_.scale.round(1)
    array([0.5])
    """

    in_closed_form = True

    def value_and_grad(self, query: Moments, reference: Moments, weights: Array) -> Evaluation:  # noqa: D102
        w = weights[:, None]
        mean_q, sd_q = _balanced(query, weights)
        mean_r, sd_r = _balanced(reference, weights)
        value = float(((mean_q - mean_r) ** 2 + (sd_q - sd_r) ** 2).sum())
        d_var = w * (1 - sd_r / sd_q)
        d_mean = 2 * w * (mean_q - mean_r) + 2 * d_var * (query.mean - mean_q)
        return value, d_mean, d_var

    def supports(self, family: MapFamily) -> str | None:  # noqa: D102
        if family.form == "matrix" and not family.is_free:
            text = "{@divergence='ot'} finds diagonal maps and {@map='affine'}. Use another "
            return said(text + "divergence, such as 'likelihood', for this map.")
        return super().supports(family)

    @in_units
    def solve_diagonal(self, family: DiagonalFamily, pair: MomentPair) -> Solution:
        """Return the exact minimum."""
        query, reference, weights = pair.query, pair.reference, pair.weights
        centre, sd_query = _balanced(query, weights)
        image, sd_reference = _balanced(reference, weights)
        scale = np.ones(len(centre))
        se_log_scale = covariance = none = np.zeros(len(centre))
        if not family.has_offset and not family.has_scale:
            return no_change(centre)
        if not family.has_offset:
            # means of opposite signs could make the best scale negative: at least 1e-6 is taken
            size = centre**2 + sd_query**2
            scale = np.maximum(centre * image + sd_query * sd_reference, 1e-6 * size) / size
            return Solution(scale, none, none)
        if family.has_scale:
            scale = sd_reference / sd_query
            se_log_scale = np.sqrt(
                _variance_of_log_sd(query, centre, sd_query, weights)
                + _variance_of_log_sd(reference, image, sd_reference, weights)
            )
            covariance = weights**2 @ (
                (reference.mean - image) / sd_reference**2 * reference.variance_of_mean
                + scale * (query.mean - centre) / sd_query**2 * query.variance_of_mean
            )
        at_centre = reference.variance_of_mean + scale**2 * query.variance_of_mean
        se_image = np.sqrt(weights**2 @ at_centre)
        found = Solution(scale, centre, image, se_log_scale=se_log_scale, se_image=se_image)
        return decorrelated(found, covariance)

    def solve_matrix(self, family: MatrixFamily, pair: GaussianPair) -> Solution:
        """Return the optimal transport between the balanced Gaussians."""
        mean_q, cov_q = pair.query.balanced(pair.weights)
        mean_r, cov_r = pair.reference.balanced(pair.weights)
        A = transport_matrix(cov_q, cov_r)
        b = mean_r - A @ mean_q
        return Solution.of(A, b, objective=gap(A, b, pair))


def _balanced(moments: Moments, weights: Array) -> tuple[Array, Array]:
    """Return balanced means and standard deviations, (n_features,)."""
    mean = weights @ moments.mean
    return mean, np.sqrt(weights @ (moments.var + (moments.mean - mean) ** 2))


def _variance_of_log_sd(moments: Moments, mean: Array, sd: Array, weights: Array) -> Array:
    """Return the sampling variance of the logarithm of balanced standard deviations."""
    from_mean = moments.mean - mean
    terms = moments.variance_of_variance + 4 * from_mean**2 * moments.variance_of_mean
    return weights**2 @ terms / (4 * sd**4)


class PCMatch(Divergence):
    r"""Match the principal axes of the balanced covariances in order of their size.

    :math:`A = V_r \operatorname{diag}(s_j \sqrt{\lambda_{r,j} / \lambda_{q,j}}) V_q'`, with axes V
    and variances :math:`\lambda` along them. The sign :math:`s_j` of axis j is the more likely one,
    by the stratum means along it: their log-likelihood ratio is
    :math:`2 \sum_k u_{q,jk} u_{r,jk} / (1/n_k + 1/m_k)`, with means u in units of the axis' spread
    and :math:`n_k, m_k` rows, plus :math:`2 g_q g_r / (6/N_q + 6/N_r)` for the skewnesses g within
    strata. If the result is a reflection, the sign of the least certain axis is changed, unless
    even that one is certain.

    This finds rotations that moments of strata cannot determine, if the axes have distinct sizes
    and the shift does not change their order. Otherwise it is poor, so it is the default without
    confounders only (for rotations).

    Examples
    --------
    >>> import numpy as np
    >>> from condokit import ConDoAdapter, PCMatch
    >>> rng, turn = np.random.default_rng(0), np.array([[0.8, -0.6], [0.6, 0.8]])
    >>> new, old = (rng.exponential(size=(300, 2)) * [3, 1] for _ in range(2))
    >>> adapter = ConDoAdapter("orthogonal", divergence=PCMatch()).fit_pair(new, old @ turn.T)
    >>> adapter.map_.A.round(1)
    array([[ 0.8, -0.6],
           [ 0.6,  0.8]])
    """

    forms: ClassVar[dict[str, str]] = {"matrix": "gaussians"}
    in_closed_form = True

    def supports(self, family: MapFamily) -> str | None:  # noqa: D102
        if family.form == "matrix" and not (family.is_free or family.is_rigid):
            text = "{@divergence='pc-match'} finds {@map='affine'}, 'orthogonal' and 'similarity', "
            return said(text + "not {family}.", family=type(family).__name__)
        return super().supports(family)

    def solve(self, family: MatrixFamily, summary: GaussianPair) -> Solution:
        """Return the map in closed form."""
        A, b, is_told = match_axes(summary, family.keeps_orientation)
        if family.is_rigid:
            weights = summary.weights
            A = nearest_rigid(A, family.has_scale)
            b = weights @ summary.reference.mean - A @ (weights @ summary.query.mean)
        return Solution.of(A, b, objective=gap(A, b, summary), is_told=is_told)
