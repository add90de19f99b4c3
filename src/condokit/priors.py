"""Ingredient 2, the prior: which confounder values are compared, and with what weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from condokit._validation import Array
from condokit.domains import Domains, Strata, Support, no_overlap


class BasePrior(BaseEstimator, ABC):
    """Where and how strongly the two domains are compared."""

    @abstractmethod
    def weigh(self, share_query: Array, share_reference: Array, share_pooled: Array) -> Array:
        """Return weights >= 0 of strata, given their shares in each domain and in all rows."""

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


class ProductPrior(BasePrior):
    r"""Weight confounder values by the product of their densities in the two domains.

    For strata with shares :math:`p_q` and :math:`p_r`, the true product is
    :math:`w \propto p_q p_r`; the equation of the paper weights every pooled row by
    :math:`p_q p_r`, so that a stratum gets :math:`w \propto p_q p_r (N_q p_q + N_r p_r)`. Either
    is zero where one domain has no rows.

    Parameters
    ----------
    variant : {"product", "paper"}, default="product"
        The true product, or the equation of the paper.
    """

    def __init__(self, variant: str = "product") -> None:
        self.variant = variant

    def weigh(  # noqa: D102
        self, share_query: Array, share_reference: Array, share_pooled: Array
    ) -> Array:
        if self.variant not in ("product", "paper"):
            raise ValueError(
                f"'variant' of ProductPrior must be 'product' or 'paper'. Got {self.variant!r}."
            )
        product = share_query * share_reference
        return product * share_pooled if self.variant == "paper" else product


class UniformPrior(BasePrior):
    """Weight all confounder values seen in both domains equally."""

    def weigh(  # noqa: D102
        self, share_query: Array, share_reference: Array, share_pooled: Array
    ) -> Array:
        return np.ones_like(share_query)


def _paper_prior() -> ProductPrior:
    return ProductPrior(variant="paper")


PRIORS: dict[str, Any] = {
    "product": ProductPrior,
    "paper": _paper_prior,
    "uniform": UniformPrior,
}
