"""From `Domains` and the four ingredients to a fitted map: the only place where they meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from condokit.checks import Array, LowOverlapWarning, listing, warn
from condokit.compare.overlap import Columns, Overlap
from condokit.compare.priors import BasePrior
from condokit.compare.support import Support
from condokit.conditionals.base import BaseConditional
from condokit.data.covariates import Covariates
from condokit.data.domains import Domains, Strata

_HEAVY_TAILS = 30.0  # fourth moment in standard units; 3 is normal, 9 exponential


@dataclass(frozen=True)
class Comparison:
    """What is compared: strata, the rows in them, and their confounders as numbers.

    Where values are missing, `observed` counts the rows of every feature, query and reference.
    """

    strata: Strata
    support: Support
    overlap: Overlap
    used: Array
    covariates: Covariates
    observed: tuple[Array, Array] | None = None


def prior_weights(prior: BasePrior, comparison: Comparison) -> Array:
    """Return the weights of the strata, or of those in which a feature is known for every one."""
    if comparison.observed is None:
        return comparison.support.weights
    query, reference = comparison.observed
    both = query + reference
    shares = (count / count.sum(axis=0) for count in (query, reference, both))
    weights = np.where(both > 0, prior.weigh(*shares), 0.0)
    return weights / weights.sum(axis=0)


def _user_kernel(prior: BasePrior, conditional: BaseConditional) -> Any:
    """Return the user's kernel on confounders; both ingredients need the same one."""
    kernels = [getattr(ingredient, "kernel", None) for ingredient in (prior, conditional)]
    if (kernels[0] is None) != (kernels[1] is None):
        raise ValueError(
            "A kernel on confounders must be given to both prior and conditional: "
            "prior=ProductPrior(kernel=k), conditional=KernelSmoother(kernel=k)."
        )
    return kernels[0]


def _covariates(
    domains: Domains, strata: Strata, support: Support, as_given: bool
) -> tuple[Array, Covariates]:
    """Return the rows compared and their confounders as numbers, or also as they were given."""
    category = support.place(strata)
    used = np.flatnonzero(category >= 0)
    Z = np.empty((len(used), len(domains.continuous)))
    for j, confounder in enumerate(domains.continuous):
        assert confounder.values is not None
        z = confounder.values[used]
        Z[:, j] = _standard(z)
    objects = None
    if as_given:
        columns = [c.as_given()[used] for c in domains.confounders]
        objects = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
        Z = np.empty((len(used), 0))
    weights = None if domains.weights is None else domains.weights[used]
    return used, Covariates(Z, category[used], len(support.index), objects, weights)


def _standard(z: Array) -> Array:
    """Return a confounder in standard units; normal scores of its ranks if its tails are heavy."""
    largest = float(np.abs(z).max(initial=0.0))
    z = z / largest if largest > 0 else z
    spread = float(z.std())
    if spread == 0:
        return np.zeros(len(z))
    z = (z - z.mean()) / spread
    if np.mean(z**4) > _HEAVY_TAILS:
        ordered = np.sort(z)
        rank = np.searchsorted(ordered, z, "left") + np.searchsorted(ordered, z, "right")
        z = ndtri(rank / (2 * len(z)))  # ties share their mean rank
        z /= z.std()
    return z


def _columns(domains: Domains, covariates: Covariates, used: Array) -> Columns:
    kept = domains.is_query if domains.keep is None else domains.is_query[domains.keep]
    names = [confounder.name for confounder in domains.continuous]
    n_query = int(kept.sum())
    return Columns(names, covariates, domains.is_query[used], n_query, len(kept) - n_query)


def _warn_dropped(support: Support) -> None:
    rows = [sum(row[key] for row in support.dropped) for key in ("n_query", "n_reference")]
    values = [tuple(row[name] for name in support.names) for row in support.dropped]
    what = "{n_values} confounder value(s) occur in one domain only and are not compared"
    warn(
        "one-domain-only",
        what + ": {values} ({n_query:rows} query and {n_reference:rows} reference rows).",
        LowOverlapWarning,
        noted=f"{what}.",
        n_values=len(values),
        values=listing(values),
        n_query=rows[0],
        n_reference=rows[1],
    )
