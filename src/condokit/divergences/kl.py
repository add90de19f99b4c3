"""Gaussian KL divergences: reverse and forward."""

from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from condokit.checks import Array, check_integer, check_word
from condokit.conditionals import Moments
from condokit.divergences.base import GaussianDivergence, in_units
from condokit.maps.families import DiagonalFamily, LocationScale, MapFamily, MatrixFamily
from condokit.solvers.gaussian_kl import KLObjective
from condokit.solvers.lbfgs import Evaluation, Objective
from condokit.solvers.low_rank import minimise_low_rank
from condokit.solvers.matrices import minimise
from condokit.solvers.solution import Solution, decorrelated, no_change, only_shifted
from condokit.solvers.units import Units
from condokit.summaries.gaussians import GaussianPair
from condokit.summaries.moments import MomentPair


class ReverseKL(GaussianDivergence):
    r"""Gaussian KL divergence of mapped query from reference, averaged over the prior.

    Per feature, with prior weights :math:`w_n` (S = query, T = reference in the paper's formulas),

    .. math::
        L(m, b) = \sum_n w_n \Big[ -\log m
            + \frac{m^2 \sigma_{q,n}^2 + (m \mu_{q,n} + b - \mu_{r,n})^2}{2 \sigma_{r,n}^2} \Big].

    With :math:`v_n = w_n / \sigma_{r,n}^2`, the v-weighted means :math:`a_q, a_r`,
    :math:`P = \sum v_n [\sigma_{q,n}^2 + (\mu_{q,n} - a_q)^2]` and
    :math:`Q = \sum v_n (\mu_{q,n} - a_q)(\mu_{r,n} - a_r)`, its only minimum is

    .. math::
        m = \frac{Q + \sqrt{Q^2 + 4 P}}{2 P}, \qquad b = a_r - m\, a_q.

    Parameters
    ----------
    variant : {"exact", "paper"}, default="exact"
        "paper" is the formula of the paper's appendix, which multiplies each summand by its own
        :math:`2 \sigma_{r,n}^2` and so minimises something else unless all of these are equal:
        :math:`v_n = w_n` and :math:`4 P \sum_n w_n \sigma_{r,n}^2` under the root. For comparison.

    Examples
    --------
    >>> from condokit import ConDoAdapter, ReverseKL, datasets
    >>> p = datasets.make_categorical1d(200, random_state=0)  # the true map is x / 2 - 2.5
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> adapter = ConDoAdapter(divergence=ReverseKL()).fit_pair(*data)
    >>> adapter.map_.scale.round(1)
    array([0.5])
    """

    forms: ClassVar[dict[str, str]] = {**GaussianDivergence.forms, "low-rank": "factors"}

    def __init__(self, variant: Literal["exact", "paper"] = "exact") -> None:
        self.variant = variant

    def value_and_grad(self, query: Moments, reference: Moments, weights: Array) -> Evaluation:  # noqa: D102
        w, error = weights[:, None], query.mean - reference.mean
        log_ratio, excess = np.log(query.var * reference.precision), query.var + error**2
        if self._is_exact():
            terms = w * (reference.precision * excess - 1 - log_ratio) / 2
            d_mean = w * reference.precision * error
            d_var = w * (reference.precision - 1 / query.var) / 2
        else:
            terms = w * (excess - reference.var * (1 + log_ratio))
            d_mean = 2 * w * error
            d_var = w * (1 - reference.var / query.var)
        return float(terms.sum()), d_mean, d_var

    def supports(self, family: MapFamily) -> str | None:  # noqa: D102
        if self._is_exact() or family.form == "diagonal":
            return super().supports(family)
        if family.form == "low-rank":
            return self.refusal(family)
        return "variant='paper' of ReverseKL is for diagonal maps only."

    def solve(self, family: Any, summary: Any) -> Solution:  # noqa: D102
        if family.form != "low-rank":
            return super().solve(family, summary)
        check_integer("rank of LowRank", family.rank, 1)
        start = self.solve_diagonal(LocationScale(), summary.moments)
        start = only_shifted(start, summary.moments.flat)
        return minimise_low_rank(summary.after(start.scale, start.offset), start, family.rank)

    def solve_matrix(self, family: MatrixFamily, pair: GaussianPair) -> Solution:  # noqa: D102
        return minimise(family, pair)

    def matrix_objective(self, units: Units) -> Objective:  # noqa: D102
        return KLObjective(units)

    @in_units
    def solve_diagonal(self, family: DiagonalFamily, pair: MomentPair) -> Solution:
        r"""Return the exact minimum with its standard errors.

        Without an offset both weighted means are taken as 0. The error of the scale comes from the
        delta method: :math:`P m^2 - Q m - R = 0` is differentiated with respect to each moment.
        """
        query, reference, w = pair.query, pair.reference, pair.weights[:, None]
        exact = self._is_exact()
        v = w * reference.precision if exact else np.broadcast_to(w, reference.var.shape)
        total = v.sum(axis=0)
        centre = (v * query.mean).sum(axis=0) / total
        if not family.has_offset and not family.has_scale:
            return no_change(centre)
        image = (v * reference.mean).sum(axis=0) / total
        scale = np.ones(len(centre))
        se_log_scale = covariance = none = np.zeros(len(centre))
        if not family.has_offset:
            centre = image = none
        from_centre, from_image = query.mean - centre, reference.mean - image
        error_query, error_reference = query.variance_of_mean, reference.variance_of_mean
        if family.has_scale:
            spread = query.var + from_centre**2
            P = (v * spread).sum(axis=0)
            Q = (v * from_centre * from_image).sum(axis=0)
            R = 1.0 if exact else (w * reference.var).sum(axis=0)
            root = np.abs(Q) + np.sqrt(Q**2 + 4 * P * R)
            scale = np.where(Q < 0, 2 * R / root, root / (2 * P))  # without cancellation of digits
            # derivatives with respect to each moment; those through a_q and a_r are zero
            pull = w / scale
            if exact:
                pull = v * reference.precision * (scale * spread - from_centre * from_image)
            pull_query = v * (from_image - 2 * scale * from_centre)
            pull_reference = v * from_centre
            variance = (
                (scale * v) ** 2 * query.variance_of_variance
                + pull**2 * reference.variance_of_variance
                + pull_query**2 * error_query
                + pull_reference**2 * error_reference
            ).sum(axis=0)
            slope = P * scale + R / scale
            se_log_scale = np.sqrt(variance) / slope
            both = v * (pull_reference * error_reference - scale * pull_query * error_query)
            covariance = both.sum(axis=0) / (slope * total)
        if not family.has_offset:
            return Solution(scale, none, none, se_log_scale=se_log_scale, se_image=none)
        at_centre = error_reference + scale**2 * error_query
        se_image = np.sqrt((v**2 * at_centre).sum(axis=0)) / total
        found = Solution(scale, centre, image, se_log_scale=se_log_scale, se_image=se_image)
        return decorrelated(found, covariance)

    def _is_exact(self) -> bool:
        """Return whether the variant is the exact one."""
        check_word("'variant' of ReverseKL", self.variant, ("exact", "paper"))
        return self.variant == "exact"


class ForwardKL(GaussianDivergence):
    r"""Gaussian KL divergence of the reference from the mapped query, averaged over the prior.

    A divergence does not change when both sides are mapped, so this is the reverse divergence of
    the inverse map, from reference to query: solve that, and invert.

    Examples
    --------
    >>> from condokit import ConDoAdapter, ForwardKL, datasets
    >>> p = datasets.make_categorical1d(200, random_state=0)  # the true map is x / 2 - 2.5
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> adapter = ConDoAdapter(divergence=ForwardKL()).fit_pair(*data)
    >>> adapter.map_.scale.round(1)
    array([0.5])
    """

    def value_and_grad(self, query: Moments, reference: Moments, weights: Array) -> Evaluation:  # noqa: D102
        w, error = weights[:, None], query.mean - reference.mean
        excess = reference.var + error**2
        terms = w * (query.precision * excess - 1 + np.log(query.var / reference.var)) / 2
        d_mean = w * query.precision * error
        d_var = w * (1 - query.precision * excess) / (2 * query.var)
        return float(terms.sum()), d_mean, d_var

    def solve_diagonal(self, family: DiagonalFamily, pair: MomentPair) -> Solution:
        """Return the exact minimum."""
        back = ReverseKL().solve_diagonal(family, pair.swapped())
        scale, se_image = 1 / back.scale, np.asarray(back.se_image) / back.scale
        return replace(back, scale=scale, centre=back.image, image=back.centre, se_image=se_image)

    def solve_matrix(self, family: MatrixFamily, pair: GaussianPair) -> Solution:  # noqa: D102
        if not (family.is_free or family.is_rigid):  # the inverse may not be in the family
            return minimise(family, pair, self.matrix_objective)
        back = minimise(family, pair.swapped())
        A = np.linalg.inv(back.scale)
        return replace(back, scale=A, image=-A @ back.offset)

    def matrix_objective(self, units: Units) -> Objective:  # noqa: D102
        return KLObjective(units, forward=True)
