"""What the two domains have in common; little is refused, or warned of."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from condokit.checks import (
    Array,
    LowOverlapWarning,
    NoOverlapError,
    check_number,
    listing,
    refusal,
    said,
    warn,
)
from condokit.compare.overlap import Overlap, measure_overlap
from condokit.compare.priors import Prior, ProductPrior, Support
from condokit.conditionals.base import Conditional, Stratified
from condokit.data.covariates import Covariates, objects_of
from condokit.data.study import Strata, Study
from condokit.data.subsets import subsample


@dataclass(frozen=True)
class Comparison:
    """What is compared: strata, the rows in them, and their confounders as numbers."""

    prior: Prior
    strata: Strata  # all combinations of categories
    support: Support  # those that are compared
    overlap: Overlap
    used: Array  # the numbers of the rows that are compared, where rows are asked for
    is_query: Array  # which of these rows are query rows
    covariates: Covariates  # confounders of these rows as numbers
    place: Array  # number of every row's value among those compared, -1 for none
    fraction: float = 1.0  # share of the support points that are looked at, the paper's F

    @cached_property
    def points(self) -> tuple[Array, Array]:
        """The used rows that are support points of continuous confounders, by number; weights."""
        rows, weights = self.prior.points(self.covariates, self.is_query)
        order = self.covariates.take(rows).order
        some = np.sort(order[subsample(len(rows), round(self.fraction * len(rows)) or 1)])
        return rows[some], weights[some] / weights[some].sum()

    @property
    def fewest_rows(self) -> float:
        """The number of rows that are compared, of the smaller domain."""
        return float(min(self.support.count_query.sum(), self.support.count_reference.sum()))


def compare(
    domains: Study,
    prior: Prior | None = None,
    conditional: Conditional | None = None,
    *,
    by_rows: bool = False,
    limits: tuple[float, float] = (0.0, 0.0),
    quiet: bool = False,
    measured: bool = False,
    each: bool = True,
) -> Comparison:
    """Find what the domains have in common, and refuse or warn if it is little.

    With `by_rows` the confounders of single rows are gathered even if all are categories. `limits`
    are the overlap coefficients below which to warn, and to refuse. If `quiet`, nothing is refused
    or warned of, and the overlap is computed only if it is `measured`. `each` says whether the
    overlap of each confounder on its own is computed as well, which takes as long again for each.
    """
    prior, conditional = prior or ProductPrior(), conditional or Stratified()
    kernel = _user_kernel(prior, conditional)
    _refuse_bandwidth(domains, prior, conditional)
    strata = (domains if kernel is None else replace(domains, confounders=[])).strata()
    support = prior.support(domains, strata)
    if support.dropped and not quiet:
        _warn_dropped(support)
    used, covariates = np.empty(0, dtype=np.intp), Covariates(np.empty((0, 0)), np.empty(0), 1)
    place, n_values = support.place(strata), len(support.levels)
    if domains.continuous or by_rows or conditional.is_smooth:
        used = np.flatnonzero(place >= 0)
        covariates = Covariates.of(domains, used, place[used], n_values, kernel is not None)
        if prior.sees_objects:
            covariates = replace(covariates, objects=objects_of(domains, used))
    is_query, overlap = domains.is_query[used], Overlap(np.nan)
    if measured or not quiet:
        overlap = measure_overlap(domains, strata, covariates, is_query, each)
    if not quiet:
        _check_overlap(overlap, *limits)
    share = getattr(conditional, "fraction", 1.0)
    check_number("fraction", share, 1e-6, 1)
    return Comparison(prior, strata, support, overlap, used, is_query, covariates, place, share)


def _user_kernel(prior: Prior, conditional: Conditional) -> Any:
    """Return the user's kernel on confounders; both ingredients need the same one."""
    kernels = [getattr(ingredient, "kernel", None) for ingredient in (prior, conditional)]
    if (kernels[0] is None) != (kernels[1] is None):
        text = "A kernel on confounders must be given to both prior and conditional: "
        raise ValueError(
            f"{text}prior=ProductPrior(kernel=k), conditional=KernelSmoother(kernel=k)."
        )
    return kernels[0]


def _refuse_bandwidth(domains: Study, *ingredients: Any) -> None:
    """Refuse the width of a kernel on numbers where there are none."""
    given = [one for one in ingredients if getattr(one, "bandwidth", None) is not None]
    if given and not domains.continuous:
        text = "'bandwidth' of {kind} is that of continuous confounders, and there are none: leave "
        raise refusal(text + "it out.", kind=type(given[0]).__name__)


def _warn_dropped(support: Support) -> None:
    """Warn of levels that occur in one domain only."""
    what = "{n_values} confounder value(s) occur in one domain only and are not compared"
    text = what + ": {values} ({n_query:rows} query and {n_reference:rows} reference rows)."
    rows = {n: sum(row[n] for row in support.dropped) for n in ("n_query", "n_reference")}
    known = {"n_values": len(support.dropped), "values": listing(support.left_out()), **rows}
    warn("one-domain-only", text, LowOverlapWarning, noted=f"{what}.", **known)


def _check_overlap(overlap: Overlap, warn_below: float, refuse_below: float) -> None:
    """Refuse or warn if there is little to compare, naming confounders with little overlap."""
    worst = [f"{name} {c:.2f}" for name, c in overlap.by_confounder.items() if c < warn_below]
    blame = f" (alone: {', '.join(worst)})" if worst else ""
    facts = dict[str, Any](coefficient=overlap.coefficient, blame=blame, least=refuse_below)
    text = "the overlap coefficient of the confounders is {coefficient:.2f}{blame}"
    if overlap.coefficient < refuse_below:
        text += ", below {@min_overlap=}{least}. Adaptation compares like with like: add samples "
        text += "of one domain with values that the other has, or lower {@min_overlap}. Without a "
        text += "confounder, its difference would be removed as if it were technical."
        raise NoOverlapError(said(text, **facts))
    if overlap.coefficient < warn_below:
        text += ": the comparison rests on about {query:rows} query and {reference:rows} reference "
        text += "rows, and standard errors do not show how far the rest is extrapolated."
        facts |= {s: round(getattr(overlap, f"effective_{s}")) for s in ("query", "reference")}
        warn("low-overlap", text, LowOverlapWarning, **facts)
