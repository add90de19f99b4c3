"""Gaussian KL divergences: reverse, forward, and their sum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import columns
from condokit.divergences.base import (
    MatrixDivergence,
    MomentDivergence,
    Solution,
    decorrelated,
    no_change,
    variance_of_mean,
    variance_of_variance,
)
from condokit.maps.families import DiagonalFamily, MatrixFamily
from condokit.solvers.base import MatrixSolution, Objective
from condokit.solvers.gaussian_kl import KLObjective
from condokit.solvers.matrices import minimise
from condokit.solvers.units import Units
from condokit.summaries.covariances import GaussianPair
from condokit.summaries.moments import Moments


class ReverseKL(MomentDivergence, MatrixDivergence):
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
    """

    def __init__(self, variant: str = "exact") -> None:
        self.variant = variant

    def value_and_grad(  # noqa: D102
        self, query: Moments, reference: Moments, weights: Array
    ) -> tuple[float, Array, Array]:
        w = columns(weights)
        error = query.mean - reference.mean
        log_ratio = np.log(query.var * reference.precision)
        excess = query.var + error**2
        if self._is_exact():
            terms = w * (reference.precision * excess - 1 - log_ratio) / 2
            d_mean = w * reference.precision * error
            d_var = w * (reference.precision - 1 / query.var) / 2
        else:
            terms = w * (excess - reference.var * (1 + log_ratio))
            d_mean = 2 * w * error
            d_var = w * (1 - reference.var / query.var)
        return float(terms.sum()), d_mean, d_var

    def minimize(
        self, family: DiagonalFamily, query: Moments, reference: Moments, weights: Array
    ) -> Solution:
        """Return the exact minimum."""
        w = columns(weights)
        exact = self._is_exact()
        v = w * reference.precision if exact else np.broadcast_to(w, reference.var.shape)
        total = v.sum(axis=0)
        centre = (v * query.mean).sum(axis=0) / total
        if not family.has_offset:
            return no_change(centre)
        image = (v * reference.mean).sum(axis=0) / total
        from_centre = query.mean - centre
        from_image = reference.mean - image
        error_query, error_reference = variance_of_mean(query), variance_of_mean(reference)
        scale = np.ones(len(centre))
        se_log_scale = covariance = np.zeros(len(centre))
        if family.has_scale:
            spread = query.var + from_centre**2
            P = (v * spread).sum(axis=0)
            Q = (v * from_centre * from_image).sum(axis=0)
            R = 1.0 if exact else (w * reference.var).sum(axis=0)
            scale = (Q + np.sqrt(Q**2 + 4 * P * R)) / (2 * P)
            # P m^2 - Q m - R = 0, differentiated in each moment; a_q and a_r drop out
            pull = (
                v * reference.precision * (scale * spread - from_centre * from_image)
                if exact
                else w / scale
            )
            pull_query = v * (from_image - 2 * scale * from_centre)
            pull_reference = v * from_centre
            variance = (
                (scale * v) ** 2 * variance_of_variance(query)
                + pull**2 * variance_of_variance(reference)
                + pull_query**2 * error_query
                + pull_reference**2 * error_reference
            ).sum(axis=0)
            slope = P * scale + R / scale
            se_log_scale = np.sqrt(variance) / slope
            both = v * (pull_reference * error_reference - scale * pull_query * error_query)
            covariance = both.sum(axis=0) / (slope * total)
        at_centre = error_reference + scale**2 * error_query
        se_image = np.sqrt((v**2 * at_centre).sum(axis=0)) / total
        return decorrelated(Solution(scale, centre, image, se_log_scale, se_image), covariance)

    def solve(self, family: MatrixFamily, pair: GaussianPair) -> MatrixSolution:
        """Find the best full matrix: the objective is `condokit.divergences.matrix.KLObjective`."""
        if not self._is_exact():
            raise ValueError("variant='paper' of ReverseKL is for diagonal maps only.")
        return minimise(family, pair, KLObjective)

    def _is_exact(self) -> bool:
        if self.variant not in ("exact", "paper"):
            raise ValueError(
                f"'variant' of ReverseKL must be 'exact' or 'paper'. Got {self.variant!r}."
            )
        return self.variant == "exact"


class ForwardKL(MomentDivergence, MatrixDivergence):
    r"""Gaussian KL divergence of the reference from the mapped query, averaged over the prior.

    A divergence does not change when both sides are mapped, so this is the reverse divergence of
    the inverse map, from reference to query: solve that, and invert.
    """

    def value_and_grad(  # noqa: D102
        self, query: Moments, reference: Moments, weights: Array
    ) -> tuple[float, Array, Array]:
        w = columns(weights)
        error = query.mean - reference.mean
        excess = reference.var + error**2
        terms = w * (query.precision * excess - 1 + np.log(query.var / reference.var)) / 2
        d_mean = w * query.precision * error
        d_var = w * (1 - query.precision * excess) / (2 * query.var)
        return float(terms.sum()), d_mean, d_var

    def minimize(
        self, family: DiagonalFamily, query: Moments, reference: Moments, weights: Array
    ) -> Solution:
        """Return the exact minimum."""
        back = ReverseKL().minimize(family, reference, query, weights)
        assert back.se_image is not None
        scale = 1 / back.scale
        return replace(
            back, scale=scale, centre=back.image, image=back.centre, se_image=back.se_image * scale
        )

    def solve(self, family: MatrixFamily, pair: GaussianPair) -> MatrixSolution:
        """Find the best full matrix."""
        if family.is_penalised:
            return minimise(family, pair, lambda units: KLObjective(units, forward=True))
        back = ReverseKL().solve(family, pair.swapped())
        A = np.linalg.inv(back.A)
        return replace(back, A=A, b=-A @ back.b)


class Jeffreys(MomentDivergence, MatrixDivergence):
    """The sum of the reverse and the forward KL divergence, which treats both domains alike."""

    def value_and_grad(  # noqa: D102
        self, query: Moments, reference: Moments, weights: Array
    ) -> tuple[float, Array, Array]:
        back = ReverseKL().value_and_grad(query, reference, weights)
        forth = ForwardKL().value_and_grad(query, reference, weights)
        return back[0] + forth[0], back[1] + forth[1], back[2] + forth[2]

    def solve(self, family: MatrixFamily, pair: GaussianPair) -> MatrixSolution:
        """Find the best full matrix."""

        def both(units: Units) -> Objective:
            back, forth = KLObjective(units), KLObjective(units, forward=True)

            def objective(B: Array, c: Array) -> tuple[float, Array, Array]:
                one, other = back(B, c), forth(B, c)
                return one[0] + other[0], one[1] + other[1], one[2] + other[2]

            return objective

        return minimise(family, pair, both)
