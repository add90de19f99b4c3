"""Pooled conditional likelihood: reference rows and mapped query rows follow one law given z."""

from typing import Any, ClassVar, Literal

import numpy as np

from condokit.checks import Array, check_word
from condokit.divergences.base import Divergence
from condokit.law.estimate import fit_law
from condokit.solvers.gaussian_kl import log_det_inverse
from condokit.solvers.lbfgs import Evaluation, infinite
from condokit.solvers.matrices import minimise
from condokit.solvers.solution import Solution, no_change, without_offset
from condokit.solvers.units import Units


class PooledLikelihood(Divergence):
    r"""Likelihood of one conditional law shared by reference rows and mapped query rows.

    If :math:`m x_q + b` given z has the law of :math:`x_r` given z, both have the same mean and
    variance given z. Per feature, stack :math:`y = y_0 + m y_1 + b q` over (query, reference) rows,
    with :math:`y_0 = (0, x_r)`, :math:`y_1 = (x_q, 0)`, :math:`q = (1, 0)`, and let

    .. math:: y = U \beta + s \sqrt{v} \epsilon, \quad \epsilon \sim t_\nu.

    U has columns for the levels of categories and the continuous confounders (straight lines), and
    for curves, slopes by level and interactions if the restricted likelihood of all features
    together supports them. The variance v depends on levels, by empirical Bayes, and on continuous
    confounders if there is evidence. The degrees of freedom :math:`\nu` are estimated, and only
    features with heavy tails are reweighted. Rows of one subject (`groups`) share a random
    intercept. The closed forms are in `condokit.law.stacked`. No prior over the confounders is
    needed, and there may be any number of confounders. Increasing curves (`Monotone`) start from
    these straight lines; see `condokit.law.curves`. For full matrices, both domains share one
    Gaussian per support value; see `GaussianLikelihood`.

    Parameters
    ----------
    residuals : {"auto", "normal"}, default="auto"
        "normal" takes the residuals of diagonal maps as normal even if they have heavy tails, as
        statistics of one round must.

    Examples
    --------
    >>> from condokit import ConDoAdapter, PooledLikelihood, datasets
    >>> p = datasets.make_categorical1d(200, random_state=0)  # the true map is x / 2 - 2.5
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> adapter = ConDoAdapter(divergence=PooledLikelihood("normal")).fit_pair(*data)
    >>> adapter.map_.scale.round(1)
    array([0.5])
    """

    forms: ClassVar[dict[str, str]] = {
        "diagonal": "rows",
        "matrix": "gaussians",
        "monotone": "rows",
    }
    is_weighted = False

    def __init__(self, residuals: Literal["auto", "normal"] = "auto") -> None:
        self.residuals = residuals

    def solve(self, family: Any, summary: Any) -> Solution:  # noqa: D102
        check_word("'residuals' of PooledLikelihood", self.residuals, ("auto", "normal"))
        if family.form == "matrix":
            return minimise(family, summary, GaussianLikelihood)
        if not family.has_offset and not family.has_scale:
            return no_change(summary.mean[0])
        found = fit_law(summary, family.has_scale, self.residuals == "auto").solution()
        return found if family.has_offset else without_offset(found)

    def matrix_objective(self, units: Units) -> "GaussianLikelihood":  # noqa: D102
        return GaussianLikelihood(units)


class GaussianLikelihood:
    r"""Minus the log-likelihood of one Gaussian per support value for both domains, per query row.

    With :math:`n_k, m_k` query and reference rows, :math:`\delta_k = B \mu_k + c - \nu_k` and

    .. math::
        S_k = \frac{n_k B C_k B' + m_k \Sigma_k + h_k \delta_k \delta_k'}{n_k + m_k},\quad
        h_k = \frac{n_k m_k}{n_k + m_k},

    it is :math:`-N_q \log|\det B| + \sum_k \tfrac{n_k + m_k}{2} \log\det S_k`, divided by
    :math:`N_q`: the likelihood with means and covariances profiled out, except that the covariances
    :math:`C_k` and :math:`\Sigma_k` within domains have the divisors n - 1.
    """

    def __init__(self, units: Units) -> None:
        self.query, self.reference = query, reference = units.query, units.reference
        self.total = query.count + reference.count
        self.tie = query.count * reference.count / self.total
        self.n_query = float(query.count.sum())
        self._query_part = (query.count / self.total)[:, None, None] * query.cov
        self._reference_part = (reference.count / self.total)[:, None, None] * reference.cov
        # log-determinants of the change of units, so that the value is that of the user's units
        ratio = float(reference.count.sum()) / self.n_query
        self.constant = units.log_dets[0] + ratio * units.log_dets[1]

    def __call__(self, B: Array, c: Array) -> Evaluation:
        """Return the value and its gradients with respect to the matrix B and the offset c."""
        log_det, inverse = log_det_inverse(B)
        if inverse is None:  # -log|det B| is a barrier that no search crosses
            return infinite(B, c)
        delta = self.query.mean @ B.T + c - self.reference.mean
        BC = B @ self._query_part
        S = BC @ B.T + self._reference_part
        S += (self.tie / self.total)[:, None, None] * delta[:, :, None] * delta[:, None, :]
        S_inverse = np.linalg.inv(S)
        value = float(self.total @ np.linalg.slogdet(S)[1]) / 2 - self.n_query * log_det
        pull = self.tie[:, None] * np.einsum("kij,kj->ki", S_inverse, delta)
        gradient = np.tensordot(self.total[:, None, None] * S_inverse, BC, axes=([0, 2], [0, 1]))
        gradient += pull.T @ self.query.mean - self.n_query * inverse.T
        value = value / self.n_query + self.constant
        return value, gradient / self.n_query, pull.sum(axis=0) / self.n_query
