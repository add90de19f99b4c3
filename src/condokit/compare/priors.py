"""The prior over confounders: which values are compared, and with what weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from condokit.checks import Array, NoOverlapError
from condokit.compare.support import Support, no_overlap
from condokit.data.covariates import Covariates
from condokit.data.domains import Domains, Strata
from condokit.data.kernels import (
    NOTHING,
    Kernel,
    check_kernel,
    column_widths,
    density,
    likelihood_factor,
)
from condokit.data.subsets import subsample_sides

_MOST_POINTS = 1000  # support points of continuous confounders


class Prior(BaseEstimator, ABC):
    """Where and how strongly the two domains are compared."""

    @abstractmethod
    def weigh(self, share_query: Array, share_reference: Array, share_pooled: Array) -> Array:
        """Return weights >= 0 of strata, given their shares in each domain and in all rows.

        Arrays of shape (n_strata,), or (n_strata, n_features) where values are missing.
        """

    @abstractmethod
    def points(self, covariates: Covariates, is_query: Array) -> tuple[Array, Array]:
        """Return the rows whose continuous confounders are compared, and their weights."""

    def support(self, domains: Domains, strata: Strata) -> Support:
        """Return the strata seen in both domains with weights that sum to one."""
        in_both = (strata.count_query > 0) & (strata.count_reference > 0)
        common = np.flatnonzero(in_both)
        if len(common) == 0:
            raise no_overlap(strata)
        n_query, n_reference = strata.count_query, strata.count_reference
        weights = self.weigh(
            n_query / n_query.sum(),
            n_reference / n_reference.sum(),
            (n_query + n_reference) / (n_query.sum() + n_reference.sum()),
        )[common]
        alone = [
            {
                **dict(zip(strata.names, strata.levels[k])),
                "n_query": n_query[k].item(),
                "n_reference": n_reference[k].item(),
            }
            for k in np.flatnonzero(~in_both & (n_query + n_reference > 0))
        ]
        return Support(
            names=strata.names,
            levels=[strata.levels[k] for k in common],
            weights=weights / weights.sum(),
            count_query=n_query[common],
            count_reference=n_reference[common],
            dropped=alone,
            index=common,
        )


class ProductPrior(Prior):
    r"""Weight confounder values by the product of their densities in the two domains.

    For strata with shares :math:`p_q` and :math:`p_r`, the true product is
    :math:`w \propto p_q p_r`; the equation of the paper weights every pooled row by
    :math:`p_q p_r`, so that a stratum gets :math:`w \propto p_q p_r (N_q p_q + N_r p_r)`. Either
    is zero where one domain has no rows.

    Parameters
    ----------
    variant : {"product", "paper"}, default="product"
        The true product, or the equation of the paper.
    kernel : callable or None, default=None
        k(Z1, Z2) -> matrix on the confounders as they are given, whatever they are. None is RBF
        for continuous columns times equality of categories.
    bandwidth : float, "likelihood" or None, default=None
        Factor of Silverman's bandwidth; None is 1. "likelihood" takes the factor under which the
        rows of each domain are likeliest, each left out of the density once.
    """

    def __init__(
        self,
        variant: str = "product",
        kernel: Kernel | None = None,
        bandwidth: float | str | None = None,
    ) -> None:
        self.variant = variant
        self.kernel = kernel
        self.bandwidth = bandwidth

    def points(  # noqa: D102
        self, covariates: Covariates, is_query: Array
    ) -> tuple[Array, Array]:
        # true product: half the mass on query rows weighted by the reference's density, half the
        # other way round; paper: all rows weighted by both densities
        rows = subsample_sides(is_query, _MOST_POINTS // 2)
        at = covariates.take(rows)
        f_query, f_reference = (
            density(at, side, self._widths(side), self.kernel)
            for side in (covariates.take(is_query), covariates.take(~is_query))
        )
        here = is_query[rows]
        if self._is_paper():
            weights = f_query * f_reference * at.counts
        else:
            weights = np.where(here, f_reference, f_query) * at.counts
        if not weights.max() > NOTHING:
            raise NoOverlapError("The confounders of the two domains do not overlap at all.")
        if not self._is_paper():
            for side in (here, ~here):
                weights[side] /= max(weights[side].sum(), NOTHING)
        return rows, weights / weights.sum()

    def weigh(  # noqa: D102
        self, share_query: Array, share_reference: Array, share_pooled: Array
    ) -> Array:
        product = share_query * share_reference
        return product * share_pooled if self._is_paper() else product

    def _widths(self, covariates: Covariates) -> Array:
        """Return the bandwidths of one domain's density."""
        width = column_widths(covariates)
        if isinstance(self.bandwidth, str) and self.bandwidth == "likelihood":
            check_kernel(self.kernel, None)
            if self.kernel is not None:
                raise ValueError("bandwidth='likelihood' cannot be used with a kernel of your own.")
            return likelihood_factor(covariates, width) * width
        check_kernel(self.kernel, self.bandwidth)
        return width if self.bandwidth is None else float(self.bandwidth) * width

    def _is_paper(self) -> bool:
        if self.variant not in ("product", "paper"):
            raise ValueError(
                f"'variant' of ProductPrior must be 'product' or 'paper'. Got {self.variant!r}."
            )
        return self.variant == "paper"


class UniformPrior(Prior):
    """Weight all confounder values seen in both domains equally."""

    def weigh(  # noqa: D102
        self, share_query: Array, share_reference: Array, share_pooled: Array
    ) -> Array:
        return np.ones_like(share_query)

    def points(  # noqa: D102
        self, covariates: Covariates, is_query: Array
    ) -> tuple[Array, Array]:
        rows = subsample_sides(is_query, _MOST_POINTS // 2)
        counts = covariates.take(rows).counts
        return rows, counts / counts.sum()


def _paper_prior() -> ProductPrior:
    return ProductPrior(variant="paper")


PRIORS: dict[str, Any] = {
    "product": ProductPrior,
    "paper": _paper_prior,
    "uniform": UniformPrior,
}
