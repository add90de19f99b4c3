"""From `Domains` and the four ingredients to a fitted map: the only place where they meet."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtri
from sklearn.base import clone

from condokit._validation import (
    Array,
    IdentifiabilityWarning,
    LowOverlapWarning,
    NoOverlapError,
    check_number,
    listing,
)
from condokit.conditionals import BaseConditional, SmoothConditional, StrataConditional, Stratified
from condokit.divergences import BaseDivergence, MomentDivergence, RowDivergence, Solution
from condokit.domains import Domains, Moments, Strata, Support
from condokit.fragility import weak_points
from condokit.frames import Table
from condokit.maps import AffineMap, DiagonalFamily, MapFamily
from condokit.overlap import Columns, Overlap, measure_overlap
from condokit.priors import BasePrior
from condokit.selection import CANDIDATES, average_candidates
from condokit.shrinkage import Kept, keep, share_variances, shrink
from condokit.smoothing import Covariates

_HEAVY_TAILS = 30.0  # fourth moment in standard units; 3 is normal, 9 exponential
_ROUNDING = 1e-13  # relative spread below which a feature is constant
_TO_THE_USER = 6  # frames from a warning to the call of fit


@dataclass(frozen=True)
class Recipe:
    """The four ingredients, and how cautious to be."""

    family: MapFamily
    prior: BasePrior
    conditional: BaseConditional
    divergence: BaseDivergence
    averages: bool
    shrinkage: Any
    warn_overlap: float
    min_overlap: float


@dataclass(frozen=True)
class Fit:
    """A fitted map, and what is known of it."""

    map: AffineMap
    errors: dict[str, Array] | None
    support: Support
    overlap: Overlap
    report: dict[str, Any]


@dataclass(frozen=True)
class _Comparison:
    """What is compared: strata, the rows in them, and their confounders as numbers."""

    strata: Strata
    support: Support
    overlap: Overlap
    used: Array
    covariates: Covariates


def fit_map(domains: Domains, recipe: Recipe) -> Fit:
    """Compare the two domains given the confounders, and find the best map of the family."""
    check_number("warn_overlap", recipe.warn_overlap, 0, 1)
    check_number("min_overlap", recipe.min_overlap, 0, 1)
    recipe = replace(
        recipe,
        **{
            name: clone(getattr(recipe, name))
            for name in ("family", "prior", "conditional", "divergence")
        },
    )
    comparison = _compare(domains, recipe)
    solution, unit, flat = _solve(domains, recipe, comparison)
    for weakness in weak_points(domains, comparison.strata, comparison.support):
        warnings.warn(weakness, IdentifiabilityWarning, stacklevel=_TO_THE_USER - 2)
    errors = _standard_errors(solution)
    table = domains.tables[0]
    support = comparison.support
    everything = np.ones(domains.n_features)
    kept = Kept(everything, everything)
    candidates: dict[str, Any] = {}
    if recipe.averages:
        solution, candidates = _averaged(solution, support, table)
    elif recipe.shrinkage == "auto":
        solution, kept = shrink(solution, unit)
    elif recipe.shrinkage:
        share = (1 - recipe.shrinkage) * everything
        kept = Kept(share, share)
        solution = keep(solution, kept)
    report = {
        "rows_query": float(support.count_query.sum()),
        "rows_reference": float(support.count_reference.sum()),
        "n_iter": solution.n_iter,
        "kept_log_scale": float(kept.log_scale.mean()),
        "kept_shift": float(kept.shift.mean()),
        "constant_features": _names(table, flat),
        "missing_confounders": domains.missing,
        **candidates,
    }
    _refuse_failure(solution, table, support)
    affine = AffineMap(solution.scale, solution.offset, table.feature_names)
    return Fit(affine, errors, support, comparison.overlap, report)


def _refuse_failure(solution: Solution, table: Table, support: Support) -> None:
    failed = ~(np.isfinite(solution.scale) & np.isfinite(solution.offset))
    if failed.any():
        raise ValueError(
            f"No map could be found for {listing(_names(table, failed))} from "
            f"{support.count_query.sum():g} query and {support.count_reference.sum():g} reference "
            "rows. Use map='shift', fewer confounders, or more rows."
        )


def _compare(domains: Domains, recipe: Recipe) -> _Comparison:
    """Find what the domains have in common, and refuse or warn if it is little."""
    kernel = _user_kernel(recipe.prior, recipe.conditional)
    strata = (domains if kernel is None else replace(domains, confounders=[])).strata()
    support = recipe.prior.support(domains, strata)
    if support.dropped:
        _warn_dropped(support)
    used, covariates = np.empty(0, dtype=np.intp), Covariates(np.empty((0, 0)), np.empty(0), 1)
    needs_rows = isinstance(recipe.divergence, RowDivergence)
    if domains.continuous or needs_rows or isinstance(recipe.conditional, SmoothConditional):
        used, covariates = _covariates(domains, strata, support, kernel is not None)
    columns = None
    if domains.continuous and kernel is None:
        columns = _columns(domains, covariates, used)
    overlap = measure_overlap(strata, columns)
    _check_overlap(overlap, recipe)
    return _Comparison(strata, support, overlap, used, covariates)


def _solve(
    domains: Domains, recipe: Recipe, comparison: _Comparison
) -> tuple[Solution, Array, Array]:
    """Return the best map, the reference's spread, and which features are constant."""
    family, conditional, divergence = recipe.family, recipe.conditional, recipe.divergence
    table, strata, support = domains.tables[0], comparison.strata, comparison.support
    used, covariates = comparison.used, comparison.covariates
    if isinstance(divergence, RowDivergence):
        # strata only tell what is constant, and whether there are rows enough
        query, reference = Stratified().moments(domains, strata, support)
        query, reference, flat = _without_flat(family, query, reference, table)
        solution = divergence.minimize(family, domains, covariates, used)
        unit = np.sqrt(support.weights @ reference.var)
        return _leave_scale(solution, flat), unit, flat

    assert isinstance(divergence, MomentDivergence)
    if isinstance(conditional, SmoothConditional):
        weighted = domains.weights is not None and len(set(domains.weights[used])) > 1
        if weighted and not conditional.takes_weights:
            raise ValueError(
                f"'sample_weight' cannot be used with {type(conditional).__name__}; use "
                "divergence='likelihood'."
            )
        few = min(support.count_query.sum(), support.count_reference.sum())
        if few < 2:
            raise ValueError(
                "A domain has only 1 sample, so its spread cannot be learned. Add rows, or use "
                "divergence='likelihood' with map='shift'."
            )
        rows, weights = recipe.prior.points(covariates, domains.is_query[used])
        query, reference = _smoothed(conditional, domains, used, covariates, rows)
        query, reference, flat = _without_flat(family, query, reference, table)
        solution = divergence.minimize(family, query, reference, weights)
        # neighbouring points share rows, so the errors are not known
        solution = replace(solution, se_log_scale=None, se_image=None)
    else:
        assert isinstance(conditional, StrataConditional)
        _refuse_continuous(domains)
        weights = support.weights
        query, reference = conditional.moments(domains, strata, support)
        query, reference, flat = _without_flat(family, query, reference, table)
        if recipe.shrinkage == "auto":
            query, reference = share_variances(query), share_variances(reference)
        solution = divergence.minimize(family, query, reference, weights)
    return _leave_scale(solution, flat), np.sqrt(weights @ reference.var), flat


def _refuse_continuous(domains: Domains) -> None:
    if domains.continuous:
        raise ValueError(
            "This divergence with conditional='stratified' needs categorical confounders, but "
            f"{listing([c.name for c in domains.continuous])} is continuous. Use "
            "divergence='likelihood', conditional='kernel', or list it in `categorical`."
        )


def _check_overlap(overlap: Overlap, recipe: Recipe) -> None:
    """Refuse or warn if there is little to compare, naming the confounders to blame."""
    worst = [
        f"{name} {c:.2f}" for name, c in overlap.by_confounder.items() if c < recipe.warn_overlap
    ]
    blame = f" (alone: {', '.join(worst)})" if worst else ""
    facts = f"the overlap coefficient of the confounders is {overlap.coefficient:.2f}{blame}"
    if overlap.coefficient < recipe.min_overlap:
        raise NoOverlapError(
            f"{facts}, below min_overlap={recipe.min_overlap}. Adaptation compares like with "
            "like: leave a confounder out, add samples, or lower min_overlap."
        )
    if overlap.coefficient < recipe.warn_overlap:
        warnings.warn(
            f"{facts}: the comparison rests on about {overlap.effective_query:.0f} query and "
            f"{overlap.effective_reference:.0f} reference rows, and standard errors do not "
            "show how far the rest is extrapolated.",
            LowOverlapWarning,
            stacklevel=_TO_THE_USER,
        )


def _user_kernel(prior: BasePrior, conditional: BaseConditional) -> Any:
    """Return the user's kernel on confounders; both ingredients need the same one."""
    kernels = [getattr(ingredient, "kernel", None) for ingredient in (prior, conditional)]
    if (kernels[0] is None) != (kernels[1] is None):
        raise ValueError(
            "A kernel on confounders must be given to both prior and conditional: "
            "prior=ProductPrior(kernel=k), conditional=KernelSmoother(kernel=k)."
        )
    return kernels[0]


def _smoothed(
    conditional: SmoothConditional,
    domains: Domains,
    used: Array,
    covariates: Covariates,
    rows: Array,
) -> tuple[Moments, Moments]:
    """Return the moments of (query, reference) at the confounders of some rows."""
    X, is_query, at = domains.rows(used), domains.is_query[used], covariates.take(rows)
    query, reference = (
        conditional.moments_at(X[side], covariates.take(side), at) for side in (is_query, ~is_query)
    )
    return query, reference


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


def _averaged(
    solution: Solution, support: Support, table: Table
) -> tuple[Solution, dict[str, Any]]:
    """Average the candidate maps, and say which of them each feature's map mostly is."""
    n_rows = float(support.count_query.sum() + support.count_reference.sum())
    solution, weights = average_candidates(solution, n_rows)
    chosen = [CANDIDATES[k] for k in weights.argmax(axis=1)]
    return solution, {
        "candidates": dict(zip(CANDIDATES, weights.mean(axis=0).tolist())),
        "chosen": dict(zip(table.labels, chosen)),
        "candidate_weights": weights,
    }


def _names(table: Table, chosen: Array) -> list[str]:
    """Return the names of the chosen features."""
    return list(np.asarray(table.labels, dtype=object)[chosen]) if chosen.any() else []


def _without_flat(
    family: MapFamily, query: Moments, reference: Moments, table: Table
) -> tuple[Moments, Moments, Array]:
    """Mark features that are constant within strata in a domain, and give them unit variances."""
    has_scale = not isinstance(family, DiagonalFamily) or family.has_scale
    single = [
        name
        for name, moments in (("query", query), ("reference", reference))
        if not (moments.dof > 0).any()
    ]
    if single and has_scale:
        raise ValueError(
            f"The {' and the '.join(single)} domain has only 1 sample in each stratum compared, so "
            "a scale cannot be learned. Add rows, merge strata, or use map='shift'."
        )
    flat = _is_flat(query) | _is_flat(reference)
    if not flat.any():
        return query, reference, flat
    if has_scale:
        warnings.warn(
            f"Constant within strata in a domain, so only shifted: {listing(_names(table, flat))}.",
            IdentifiabilityWarning,
            stacklevel=_TO_THE_USER,
        )
    query, reference = (
        replace(
            moments,
            var=np.where(flat, 1.0, moments.var),
            precision=np.where(flat, 1.0, moments.precision),
        )
        for moments in (query, reference)
    )
    return query, reference, flat


def _is_flat(moments: Moments) -> Array:
    """Mark features whose spread within strata is nothing but rounding."""
    rounding = _ROUNDING * np.abs(moments.mean).max(axis=0)
    return moments.var.max(axis=0) <= rounding**2


def _leave_scale(solution: Solution, flat: Array) -> Solution:
    """Give flat features the scale one, and no standard error: none is known."""
    if not flat.any():
        return solution
    errors: dict[str, Any] = {
        name: np.where(flat, 0.0, error)
        for name in ("se_log_scale", "se_image")
        if (error := getattr(solution, name)) is not None
    }
    return replace(solution, scale=np.where(flat, 1.0, solution.scale), **errors)


def _standard_errors(solution: Solution) -> dict[str, Array] | None:
    """Return the errors of scale and offset; log m and the image of the centre are independent."""
    if solution.se_log_scale is None or solution.se_image is None:
        return None
    scale = solution.scale * solution.se_log_scale
    return {"scale": scale, "offset": np.hypot(solution.se_image, solution.centre * scale)}


def _warn_dropped(support: Support) -> None:
    rows = [sum(row[key] for row in support.dropped) for key in ("n_query", "n_reference")]
    values = [tuple(row[name] for name in support.names) for row in support.dropped]
    warnings.warn(
        f"{len(values)} confounder value(s) occur in one domain only and are not compared: "
        f"{listing(values)} ({rows[0]:g} query and {rows[1]:g} reference rows).",
        LowOverlapWarning,
        stacklevel=_TO_THE_USER,
    )
