"""From `Domains` and the four ingredients to a fitted map: the only place where they meet."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit
from sklearn.base import clone

from condokit.checks import (
    Array,
    LowOverlapWarning,
    NoOverlapError,
    check_integer,
    check_number,
    listing,
    quietly,
    said,
    warn,
)
from condokit.compare.comparison import (
    Comparison,
    _columns,
    _covariates,
    _user_kernel,
    _warn_dropped,
    prior_weights,
)
from condokit.compare.overlap import Overlap, measure_overlap
from condokit.compare.priors import BasePrior, ProductPrior
from condokit.compare.support import Support
from condokit.compare.weak_points import weak_points
from condokit.conditionals.base import BaseConditional, SmoothConditional
from condokit.conditionals.strata import StrataConditional, Stratified
from condokit.data.arrays import average
from condokit.data.covariates import Covariates
from condokit.data.domains import Domains
from condokit.data.links import check_links
from condokit.data.missing import (
    complete_counts,
    complete_rows,
    missing_features,
    observed_counts,
    same_gaps,
)
from condokit.data.tables import Table
from condokit.divergences import (
    BaseDivergence,
    GaussianOT,
    MatrixDivergence,
    MomentDivergence,
    PCMatch,
    PooledLikelihood,
    ReverseKL,
    RowDivergence,
    SampleDivergence,
    Solution,
)
from condokit.divergences.base import joined
from condokit.divergences.samples import FeatureUnits
from condokit.maps.affine import AffineMap
from condokit.maps.families import (
    Affine,
    Blocks,
    DiagonalFamily,
    LocationScale,
    LowRank,
    MapFamily,
    MatrixFamily,
    Rigid,
    Shift,
)
from condokit.maps.standard_errors import DiagonalErrors
from condokit.shrinkage import CANDIDATES, Kept, average_candidates, keep, share_variances, shrink
from condokit.solvers.low_rank import low_rank
from condokit.solvers.starts import Start, matrix_starts, nearest_rigid, rectangular_starts
from condokit.solvers.units import Units
from condokit.summaries.covariances import GaussianPair, Shares
from condokit.summaries.curves import Curves
from condokit.summaries.flat import is_flat
from condokit.summaries.gaussians import by_curves, by_strata, without_flat
from condokit.summaries.moments import Moments
from condokit.summaries.samples import Samples, as_gaussians, as_moments
from condokit.summaries.samples import by_curves as samples_by_curves
from condokit.summaries.samples import by_strata as samples_by_strata

_MOST_SQUARE = 5000
_DETERMINED = 20.0  # curvature times rows; above 70 where maps are found again, below 8 if not
_ENOUGH_ROWS = 2  # per feature in every stratum, from which covariances are left as they are
_FEWEST_COMPLETE = 5  # rows of a domain without missing values, where only these can be used
_LONE = 1.5  # rows of a domain in every stratum, below which there is no spread
_SINGULAR = 1e-10  # share of a variance that other features leave, below which it is none


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
    errors: DiagonalErrors | None
    support: Support
    overlap: Overlap
    report: dict[str, Any]


def plain_recipe() -> Recipe:
    """Return ingredients for looking at domains: strata, whose overlap is never too small."""
    return Recipe(LocationScale(), ProductPrior(), Stratified(), ReverseKL(), False, None, 0.0, 0.0)


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
    candidates: dict[str, Any] = {}
    table = domains.tables[0]
    if recipe.family.links is not None and not domains.is_rectangular:
        domains = replace(domains, links=check_links(recipe.family.links, table.labels))
    everything, domains = domains, _readable(domains, recipe)
    gaps = _gaps(everything)
    comparison = compare(domains, recipe)
    if isinstance(recipe.divergence, SampleDivergence):
        return _finished(domains, comparison, gaps, *_fit_samples(domains, recipe, comparison))
    if not isinstance(recipe.family, DiagonalFamily):
        fit = {Blocks: _fit_blocks, LowRank: _fit_low_rank}.get(type(recipe.family), _fit_matrix)
        found = fit(domains, recipe, comparison)
        if found is not None:
            return _finished(domains, comparison, gaps, *found)
        recipe = replace(recipe, family=LocationScale(), divergence=_diagonal(recipe, domains))
        domains, overlap = everything, comparison.overlap
        comparison = replace(compare(domains, recipe, quiet=True), overlap=overlap)
        candidates["fallback"] = "location-scale"
    support = comparison.support
    solution, unit, flat = _solve(domains, recipe, comparison)
    _warn_weak_points(domains, comparison)
    plain = solution
    solution, kept, chances = settle(plain, unit, recipe, _n_rows(comparison))
    errors = _standard_errors(plain, solution)
    if chances is not None:
        candidates = _candidates(chances, table)
    report = {
        **_rows_compared(support),
        "n_iter": solution.n_iter,
        "kept_log_scale": float(kept.log_scale.mean()),
        "kept_shift": float(kept.shift.mean()),
        "constant_features": _names(table, flat),
        "missing_confounders": domains.missing,
        **gaps,
        **candidates,
    }
    _refuse_failure(solution.scale, solution.offset, table, support)
    affine = AffineMap(solution.scale, solution.offset, table.feature_names, links=domains.links)
    return Fit(affine, errors, support, comparison.overlap, report)


def settle(
    solution: Solution, unit: Array, recipe: Recipe, n_rows: Any
) -> tuple[Solution, Kept, Array | None]:
    """Average or shrink the plain map as asked; return also what was kept and candidate weights."""
    all_of_it = np.ones(len(solution.scale))
    kept = Kept(all_of_it, all_of_it)
    if recipe.averages:
        solution, chances = average_candidates(solution, n_rows)
        return solution, kept, chances
    if recipe.shrinkage == "auto":
        solution, kept = shrink(solution, unit)
    elif recipe.shrinkage:
        share = (1 - recipe.shrinkage) * all_of_it
        kept = Kept(share, share)
        solution = keep(solution, kept)
    return solution, kept, None


def _readable(domains: Domains, recipe: Recipe) -> Domains:
    """Leave out rows with missing values unless every feature, or block, is fitted by itself."""
    alone = isinstance(recipe.family, DiagonalFamily | Blocks)
    if domains.gaps is None or (alone and not isinstance(recipe.divergence, SampleDivergence)):
        return domains
    return _complete(domains)


def _complete(domains: Domains) -> Domains:
    """Leave out rows with missing values, and say so."""
    n_rows = complete_counts(domains)
    if min(n_rows.values()) < _FEWEST_COMPLETE:
        counts = {name: sum(n.values()) for name, n in missing_features(domains).items()}
        worst = sorted(counts, key=counts.__getitem__, reverse=True)
        raise ValueError(
            f"Only {n_rows['query']} query and {n_rows['reference']} reference rows lack no value, "
            f"too few for this map and divergence. Most is missing of {listing(worst)}: leave "
            "features out with `features`, or use map='location-scale'."
        )
    warn_incomplete(domains)
    return replace(domains, keep=complete_rows(domains), gaps=None)


def warn_incomplete(domains: Domains) -> None:
    """Say how much is missing, and how many rows are used."""
    assert domains.gaps is not None
    sides = zip(domains.gaps, (domains.is_query, ~domains.is_query))
    query, reference = (count.mean() / side.sum() for count, side in sides)
    n_rows = complete_counts(domains)
    warn(
        "complete-rows",
        "{query:.1%} of the query's and {reference:.1%} of the reference's values are missing. "
        "This map needs complete rows: {n_query:rows} query and {n_reference:rows} reference rows "
        "are.",
        query=query,
        reference=reference,
        n_query=n_rows["query"],
        n_reference=n_rows["reference"],
    )


def _gaps(domains: Domains) -> dict[str, Any]:
    """Count what is missing, for the report."""
    facts: dict[str, Any] = {"missing_features": missing_features(domains)}
    if domains.gaps is not None:
        facts["complete_rows"] = complete_counts(domains)
    return facts


def _finished(
    domains: Domains,
    comparison: Comparison,
    gaps: dict[str, Any],
    parts: dict[str, Array],
    facts: dict[str, Any],
) -> Fit:
    """Return a fit whose standard errors are not known, from the parts of its map."""
    table, support, outputs = domains.tables[0], comparison.support, None
    if domains.is_rectangular:
        outputs = domains.tables[1].feature_names
    else:
        _warn_weak_points(domains, comparison)
        _refuse_failure(parts["scale"], parts["offset"], table, support)
    affine = AffineMap(
        parts["scale"],
        parts["offset"],
        table.feature_names,
        left=parts.get("left"),
        right=parts.get("right"),
        links=domains.links,
        output_names=outputs,
    )
    report = {**_rows_compared(support), **facts, "missing_confounders": domains.missing, **gaps}
    return Fit(affine, None, support, comparison.overlap, report)


def fit_quietly(domains: Domains, recipe: Recipe) -> Fit:
    """Fit a part of the data again, without repeating what was said of all of it."""
    with quietly():
        return fit_map(domains, replace(recipe, min_overlap=0.0))


def _warn_weak_points(domains: Domains, comparison: Comparison) -> None:
    support, observed = comparison.support, comparison.observed
    for code, template, fields in weak_points(domains, comparison.strata, support, observed):
        warn(code, template, **fields)


def _rows_compared(support: Support) -> dict[str, float]:
    return {
        "rows_query": float(support.count_query.sum()),
        "rows_reference": float(support.count_reference.sum()),
    }


def _refuse_failure(scale: Array, offset: Array, table: Table, support: Support) -> None:
    finite = np.isfinite(scale) if scale.ndim == 1 else np.isfinite(scale).all(axis=1)
    failed = ~(finite & np.isfinite(offset))
    if failed.any():
        raise ValueError(
            f"No map could be found for {listing(_names(table, failed))} from "
            f"{support.count_query.sum():g} query and {support.count_reference.sum():g} reference "
            "rows. Use map='shift', fewer confounders, or more rows."
        )


def _fit_matrix(
    domains: Domains, recipe: Recipe, comparison: Comparison
) -> tuple[dict[str, Array], dict[str, Any]] | None:
    """Return the parts of a full matrix and facts; None if there are too few rows for it."""
    divergence, support, d = recipe.divergence, comparison.support, domains.n_features
    if not isinstance(divergence, MatrixDivergence):
        raise ValueError(
            f"{type(divergence).__name__} finds diagonal maps only, not "
            f"{type(recipe.family).__name__}."
        )
    rows = (support.count_query.sum(), support.count_reference.sum())
    if min(rows) - len(support.weights) < d + 1:
        warn(
            "few-rows-for-matrix",
            "A full matrix of {d} features cannot be learned from {n_query:rows} query and "
            "{n_reference:rows} reference rows in {n_strata} strata; a location-scale map is "
            "fitted instead.",
            d=d,
            n_query=rows[0],
            n_reference=rows[1],
            n_strata=len(support.weights),
        )
        return None
    closed_form = isinstance(divergence, GaussianOT | PCMatch)
    smallest = min(support.count_query.min(), support.count_reference.min())
    enough = closed_form or (smallest >= _ENOUGH_ROWS * d and not domains.continuous)
    regularised = recipe.shrinkage == "auto" and not enough
    pair, shares = gaussian_pair(domains, recipe, comparison, regularised)
    if not shares and not closed_form and _is_singular(pair):
        warn(
            "singular-covariance",
            "A covariance within a stratum is singular (collinear features, or fewer rows than "
            "features), so covariances are regularised.",
        )
        pair, shares = gaussian_pair(domains, recipe, comparison, True)
    if len(pair.weights) == 1 and not closed_form:
        warn(
            "one-stratum",
            "One stratum determines a matrix up to a rotation only; the result depends on where "
            "the search starts. Use {@divergence='ot'}, or compare given a confounder.",
        )
    assert isinstance(recipe.family, MatrixFamily)
    some, kept = without_flat(pair)
    _warn_flat(domains.tables[0], ~kept)
    A, b = np.eye(d), pair.weights @ (pair.reference.mean - pair.query.mean)
    facts: dict[str, Any] = {}
    if kept.any():
        solution = divergence.solve(recipe.family, some)
        A[np.ix_(kept, kept)], b[kept] = solution.A, solution.b
        facts = solution.facts()
        if len(pair.weights) > 1 and solution.curvature * min(rows) < _DETERMINED:
            warn(
                "strata-alike",
                "The strata are too much alike to determine the matrix: rotations that they hardly "
                "tell apart are as good. Use {@divergence='ot'}, {@map='location-scale'} or "
                "'auto'.",
            )
    A, b = _towards_identity(A, b, recipe)
    facts["covariances"] = {name: asdict(share) for name, share in shares.items()}
    facts["constant_features"] = _names(domains.tables[0], ~kept)
    return {"scale": A, "offset": b}, facts


def _fit_blocks(
    domains: Domains, recipe: Recipe, comparison: Comparison
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return a matrix that is full within groups of features and diagonal elsewhere."""
    assert isinstance(recipe.family, Blocks)
    d = domains.n_features
    if d > _MOST_SQUARE:
        raise ValueError(
            f"map='blocks' makes a matrix of {d} x {d}, which is too large (at most {_MOST_SQUARE} "
            "features). Use map='low-rank', or fit the groups one by one with `features`."
        )
    blocks = recipe.family.places(domains.tables[0].labels)
    scale, b = _fit_diagonal(domains, recipe, comparison)
    A, facts = np.diag(scale), []
    plain = None if isinstance(recipe.shrinkage, float) else recipe.shrinkage
    for block in blocks:
        part = replace(recipe, family=Affine(), shrinkage=plain)
        own, compared = domains.of(block), comparison
        if own.gaps is not None:
            own = _complete(own)
            compared = compare(own, part, quiet=True)
        found = _fit_matrix(own, part, compared)
        if found is not None:
            A[np.ix_(block, block)], b[block] = found[0]["scale"], found[0]["offset"]
            facts.append(found[1])
    A, b = _towards_identity(A, b, recipe)
    return {"scale": A, "offset": b}, {"blocks": facts}


def _fit_samples(
    domains: Domains, recipe: Recipe, comparison: Comparison
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parts of the map that brings samples nearest to each other, and facts."""
    family, divergence, support = recipe.family, recipe.divergence, comparison.support
    assert isinstance(divergence, SampleDivergence)
    check_integer("max_rows", divergence.max_rows, 2)
    if isinstance(family, LowRank | Blocks):
        raise ValueError(
            f"{type(divergence).__name__} does not find {type(family).__name__} maps; use "
            "map='location-scale', 'affine', 'orthogonal' or 'similarity'."
        )
    curves = _curves(domains, recipe, comparison)
    if curves is not None:
        samples = samples_by_curves(domains, curves)
    else:
        _refuse_continuous(domains)
        place = support.place(comparison.strata)
        samples = samples_by_strata(domains, place, support.weights, divergence.max_rows)
    if domains.is_rectangular:
        return _fit_rectangular(recipe, samples)
    if min(max(map(len, side)) for side in (samples.query, samples.reference)) < 2:
        raise ValueError(
            "A domain has only 1 sample in each stratum compared, so its spread cannot be learned. "
            "Add rows, merge strata, or use map='shift' with divergence='reverse-kl'."
        )
    query, reference = as_moments(samples)
    kept = ~(is_flat(query.mean, query.var) | is_flat(reference.mean, reference.var))
    _warn_flat(domains.tables[0], ~kept)
    diagonal = isinstance(family, DiagonalFamily)
    A = np.ones(len(kept)) if diagonal else np.eye(len(kept))
    b = samples.weights @ (reference.mean - query.mean)
    facts: dict[str, Any] = {}
    if kept.any():
        solution = divergence.solve(family, *_sample_problem(family, samples.of(kept)))
        A[kept if diagonal else np.ix_(kept, kept)], b[kept] = solution.A, solution.b
        facts = solution.facts()
    A, b = _towards_identity(A, b, recipe)
    facts["constant_features"] = _names(domains.tables[0], ~kept)
    return {"scale": A, "offset": b}, facts


def _sample_problem(
    family: MapFamily, samples: Samples
) -> tuple[Samples, Units | FeatureUnits, list[Start]]:
    """Return the samples, the units that suit a family, and maps to start from."""
    if isinstance(family, DiagonalFamily):
        query, reference = as_moments(samples)
        start = ReverseKL().minimize(family, query, reference, samples.weights)
        units = FeatureUnits(query, reference, samples.weights)
        return samples, units, [("moments", start.scale, start.offset)]
    pair = as_gaussians(samples)
    if isinstance(family, Affine):
        kind = "feature" if family.is_penalised else "samples"
        return samples, Units(pair, kind), matrix_starts(pair, family.n_starts)
    return samples, Units(pair, "common"), matrix_starts(pair)


def _fit_rectangular(recipe: Recipe, samples: Samples) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parts of a map between different features, and facts."""
    family, divergence = recipe.family, recipe.divergence
    assert isinstance(divergence, SampleDivergence)
    if not isinstance(family, Affine) or family.is_penalised or family.links is not None:
        raise ValueError(
            "A map between different features is map='affine' without links, penalties or bounds."
        )
    if isinstance(recipe.shrinkage, float):
        raise ValueError(
            "'shrinkage' cannot be a number for a map between different features: there is no "
            "identity to go to. Use 'auto' or None."
        )
    pair = as_gaussians(samples)
    begin = rectangular_starts(pair)[: family.n_starts]
    solution = divergence.solve(family, samples, Units(pair, "samples"), begin)
    return {"scale": solution.A, "offset": solution.b}, solution.facts()


def _fit_low_rank(
    domains: Domains, recipe: Recipe, comparison: Comparison
) -> tuple[dict[str, Array], dict[str, Any]] | None:
    """Return the parts of a map that is diagonal plus low rank, and facts."""
    assert isinstance(recipe.family, LowRank)
    rank = recipe.family.rank
    check_integer("rank of LowRank", rank, 1)
    if not isinstance(recipe.divergence, ReverseKL) or recipe.divergence.variant != "exact":
        raise ValueError(
            "map='low-rank' is found by divergence='reverse-kl' in its exact variant, not by "
            f"{recipe.divergence!r}."
        )
    support, d = comparison.support, domains.n_features
    fewest = min(support.count_query.sum(), support.count_reference.sum())
    if fewest < len(support.weights) + 8 or d <= rank + 1:
        warn(
            "few-rows-for-low-rank",
            "A matrix of rank {rank} cannot be learned from {d} features and {fewest:rows} rows in "
            "a domain; a location-scale map is fitted instead.",
            rank=rank,
            d=d,
            fewest=fewest,
        )
        return None
    curves = _curves(domains, recipe, comparison)
    place = support.place(comparison.strata)
    used = np.flatnonzero(place >= 0)
    start = _fit_diagonal(domains, recipe, comparison)
    parts, facts = low_rank(domains, place, used, curves, support.weights, start, rank)
    if isinstance(recipe.shrinkage, float):
        for name in ("left", "offset"):
            parts[name] = (1 - recipe.shrinkage) * parts[name]
        parts["scale"] = (1 - recipe.shrinkage) * parts["scale"] + recipe.shrinkage
    return parts, facts


def _fit_diagonal(domains: Domains, recipe: Recipe, comparison: Comparison) -> tuple[Array, Array]:
    """Return scale and offset of the plain location-scale map."""
    recipe = replace(recipe, family=LocationScale(), divergence=_diagonal(recipe, domains))
    solution, _, _ = _solve(domains, recipe, comparison)
    return solution.scale, solution.offset


def _solve(
    domains: Domains, recipe: Recipe, comparison: Comparison
) -> tuple[Solution, Array, Array]:
    """Return the best map, the reference's spread, and which features are constant."""
    if comparison.observed is None:
        solution, unit, flat = _solve_together(domains, recipe, comparison)
    else:
        nowhere = comparison.observed[0].sum(axis=0) == 0
        if nowhere.any():
            raise ValueError(
                f"Values of {listing(_names(domains.tables[0], nowhere))} are known in no stratum "
                "of both domains. Leave such features out with `features`, or a confounder out."
            )
        by_rows = isinstance(recipe.divergence, RowDivergence)
        one_by_one = by_rows or isinstance(recipe.conditional, SmoothConditional)
        solve = _solve_by_gaps if one_by_one else _solve_together
        solution, unit, flat = solve(domains, recipe, comparison)
    assert isinstance(recipe.family, DiagonalFamily)
    if recipe.family.has_scale:
        _warn_flat(domains.tables[0], flat)
    return solution, unit, flat


def _solve_by_gaps(
    domains: Domains, recipe: Recipe, comparison: Comparison
) -> tuple[Solution, Array, Array]:
    """Fit features that are known in the same rows together, on these rows alone."""
    assert comparison.observed is not None
    assert isinstance(recipe.family, DiagonalFamily)
    most = np.minimum(*(count.max(axis=0) for count in comparison.observed))
    results, unit, flat = [], np.empty(len(most)), np.empty(len(most), dtype=bool)
    for features, known in same_gaps(domains):
        part = replace(domains.of(features), keep=known, gaps=None)
        lone = recipe.family.has_scale and most[features[0]] < _LONE
        own = replace(recipe, family=Shift()) if lone else recipe
        try:
            found = _solve_together(part, own, compare(part, own, quiet=True))
        except ValueError as error:
            names = listing(part.tables[0].labels)
            raise type(error)(f"{names}, where values are known: {error}") from None
        solution, unit[features], flat[features] = found
        flat[features] |= lone
        results.append((features, solution))
    return joined(results), unit, flat


def gaussian_pair(
    domains: Domains, recipe: Recipe, comparison: Comparison, regularised: bool
) -> tuple[GaussianPair, dict[str, Shares]]:
    """Return both domains as Gaussians at the support values."""
    curves = _curves(domains, recipe, comparison)
    if curves is not None:
        return by_curves(domains, curves, regularised)
    _refuse_continuous(domains)
    return by_strata(domains, comparison.strata, comparison.support, regularised)


def _curves(domains: Domains, recipe: Recipe, comparison: Comparison) -> Curves | None:
    """Return what is compared along continuous confounders; None if strata are."""
    if not isinstance(recipe.conditional, SmoothConditional):
        return None
    used, covariates = comparison.used, comparison.covariates
    points = recipe.prior.points(covariates, domains.is_query[used])
    return Curves(recipe.conditional, used, covariates, points)


def determines_matrix(domains: Domains, recipe: Recipe, comparison: Comparison) -> bool:
    """Tell whether strata differ enough to determine a full matrix, by trying two starts."""
    pair, _ = gaussian_pair(domains, recipe, comparison, False)
    if _is_singular(pair):
        pair, _ = gaussian_pair(domains, recipe, comparison, True)
    some, kept = without_flat(pair)
    if not kept.any():
        return False
    solution = ReverseKL().solve(Affine(n_starts=2), some)
    support = comparison.support
    rows = min(support.count_query.sum(), support.count_reference.sum())
    return bool(solution.curvature * rows >= _DETERMINED)


def _is_singular(pair: GaussianPair) -> bool:
    some, _ = without_flat(pair)
    covs = np.concatenate([some.query.cov, some.reference.cov])
    variances = np.einsum("kii->ki", covs)
    try:
        left = np.einsum("kii->ki", np.linalg.cholesky(covs)) ** 2  # what others leave of a feature
    except np.linalg.LinAlgError:
        return True
    return bool((left < _SINGULAR * variances).any())


def _diagonal(recipe: Recipe, domains: Domains) -> BaseDivergence:
    """Return a divergence for diagonal maps in place of one for matrices alone."""
    if isinstance(recipe.divergence, MomentDivergence):
        return recipe.divergence
    return PooledLikelihood() if domains.continuous else ReverseKL()


def compare(
    domains: Domains, recipe: Recipe, quiet: bool = False, measured: bool = False
) -> Comparison:
    """Find what the domains have in common, and refuse or warn if it is little.

    Quietly, nothing is refused or said, and the overlap is not known unless it is `measured`.
    """
    kernel = _user_kernel(recipe.prior, recipe.conditional)
    strata = (domains if kernel is None else replace(domains, confounders=[])).strata()
    support = recipe.prior.support(domains, strata)
    if support.dropped and not quiet:
        _warn_dropped(support)
    used, covariates = np.empty(0, dtype=np.intp), Covariates(np.empty((0, 0)), np.empty(0), 1)
    needs_rows = isinstance(recipe.divergence, RowDivergence)
    if domains.continuous or needs_rows or isinstance(recipe.conditional, SmoothConditional):
        used, covariates = _covariates(domains, strata, support, kernel is not None)
    columns = None
    if domains.continuous and kernel is None:
        columns = _columns(domains, covariates, used)
    overlap = measure_overlap(strata, columns) if measured or not quiet else Overlap(np.nan)
    if not quiet:
        _check_overlap(overlap, recipe)
    observed = None
    if domains.gaps is not None:
        observed = observed_counts(domains, support.place(strata), len(support.levels))
    return Comparison(strata, support, overlap, used, covariates, observed)


def _solve_together(
    domains: Domains, recipe: Recipe, comparison: Comparison
) -> tuple[Solution, Array, Array]:
    """Return what `_solve` does, of features in one go."""
    family, conditional, divergence = recipe.family, recipe.conditional, recipe.divergence
    assert isinstance(family, DiagonalFamily)
    if not isinstance(divergence, MomentDivergence | RowDivergence):
        raise ValueError(
            f"{type(divergence).__name__} finds full matrices, not {type(family).__name__}. Use "
            "map='affine', or another divergence."
        )
    strata, support = comparison.strata, comparison.support
    used, covariates = comparison.used, comparison.covariates
    if isinstance(divergence, RowDivergence):
        # strata only tell what is constant, and whether there are rows enough
        query, reference = Stratified().moments(domains, strata, support)
        query, reference, flat = _without_flat(family, query, reference)
        solution = divergence.minimize(family, domains, covariates, used)
        unit = np.sqrt(support.weights @ reference.var)
        return _leave_scale(solution, flat), unit, flat

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
        query, reference, flat = _without_flat(family, query, reference)
        solution = divergence.minimize(family, query, reference, weights)
        # neighbouring points share rows, so the errors are not known
        solution = replace(solution, se_log_scale=None, se_image=None)
    else:
        assert isinstance(conditional, StrataConditional)
        _refuse_continuous(domains)
        weights = prior_weights(recipe.prior, comparison)
        query, reference = conditional.moments(domains, strata, support)
        return solve_moments(recipe, query, reference, weights)
    return _leave_scale(solution, flat), np.sqrt(average(weights, reference.var)), flat


def solve_moments(
    recipe: Recipe, query: Moments, reference: Moments, weights: Array
) -> tuple[Solution, Array, Array]:
    """Return the best map between moments of strata, the spread, and constant features."""
    family, divergence = recipe.family, recipe.divergence
    assert isinstance(family, DiagonalFamily)
    assert isinstance(divergence, MomentDivergence)
    query, reference, flat = _without_flat(family, query, reference)
    widening = _widening(query, reference, shared=recipe.shrinkage == "auto")
    if recipe.shrinkage == "auto":
        query, reference = share_variances(query), share_variances(reference)
    solution = replace(divergence.minimize(family, query, reference, weights), widening=widening)
    return _leave_scale(solution, flat), np.sqrt(average(weights, reference.var)), flat


def _widening(query: Moments, reference: Moments, shared: bool) -> Any:
    """Return the factor of standard errors that makes 95% of them 1.96, with few rows too.

    Student's quantile for the degrees of freedom of all variances, if they are shared; otherwise
    for their harmonic mean, to which the least known one counts most.
    """
    dof = np.concatenate([query.dof, reference.dof])
    seen = np.concatenate([query.count, reference.count]) > 0
    known = np.where(seen, np.maximum(dof, 0.5), 0.0)
    if shared:
        total = known.sum(axis=0)
    else:
        total = seen.sum(axis=0) / (seen / np.maximum(known, 0.5)).sum(axis=0)
    return stdtrit(np.maximum(total, 1.0), 0.975) / ndtri(0.975)


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
    facts: dict[str, Any] = {
        "coefficient": overlap.coefficient,
        "blame": blame,
        "least": recipe.min_overlap,
    }
    text = "the overlap coefficient of the confounders is {coefficient:.2f}{blame}"
    if overlap.coefficient < recipe.min_overlap:
        raise NoOverlapError(
            said(
                text + ", below {@min_overlap=}{least}. Adaptation compares like with like: leave "
                "a confounder out, add samples, or lower {@min_overlap}.",
                **facts,
            )
        )
    if overlap.coefficient < recipe.warn_overlap:
        warn(
            "low-overlap",
            text + ": the comparison rests on about {query:rows} query and {reference:rows} "
            "reference rows, and standard errors do not show how far the rest is extrapolated.",
            LowOverlapWarning,
            query=round(overlap.effective_query),
            reference=round(overlap.effective_reference),
            **facts,
        )


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


def _n_rows(comparison: Comparison) -> Any:
    """Return the number of rows compared, of every feature where values are missing."""
    counts = comparison.observed
    if counts is None:
        counts = comparison.support.count_query, comparison.support.count_reference
    return counts[0].sum(axis=0) + counts[1].sum(axis=0)


def _candidates(weights: Array, table: Table) -> dict[str, Any]:
    """Say which of the candidate maps each feature's map mostly is."""
    chosen = [CANDIDATES[k] for k in weights.argmax(axis=1)]
    return {
        "candidates": dict(zip(CANDIDATES, weights.mean(axis=0).tolist())),
        "chosen": dict(zip(table.labels, chosen)),
        "candidate_weights": weights,
    }


def _names(table: Table, chosen: Array) -> list[str]:
    """Return the names of the chosen features."""
    return list(np.asarray(table.labels, dtype=object)[chosen]) if chosen.any() else []


def _without_flat(
    family: DiagonalFamily, query: Moments, reference: Moments
) -> tuple[Moments, Moments, Array]:
    """Mark features that are constant within strata in a domain, and give them unit variances."""
    has_scale = family.has_scale
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
    flat = is_flat(query.mean, query.var) | is_flat(reference.mean, reference.var)
    if not flat.any():
        return query, reference, flat
    query, reference = (
        replace(
            moments,
            var=np.where(flat, 1.0, moments.var),
            precision=np.where(flat, 1.0, moments.precision),
        )
        for moments in (query, reference)
    )
    return query, reference, flat


def _warn_flat(table: Table, flat: Array) -> None:
    """Name the features that are constant within strata, if there are any."""
    if flat.any():
        warn(
            "constant-features",
            "Constant within strata in a domain, so only shifted: {names}.",
            names=listing(_names(table, flat)),
        )


def _towards_identity(A: Array, b: Array, recipe: Recipe) -> tuple[Array, Array]:
    """Pull a matrix and its offset to the identity by the share that was asked for, if any."""
    share = recipe.shrinkage
    if not isinstance(share, float):
        return A, b
    identity = np.ones(len(b)) if A.ndim == 1 else np.eye(len(b))
    A, b = (1 - share) * A + share * identity, (1 - share) * b
    if isinstance(recipe.family, Rigid):
        A = nearest_rigid(A, recipe.family.has_scale)
    return A, b


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


def _standard_errors(plain: Solution, settled: Solution) -> DiagonalErrors | None:
    """Return the errors of a map, with those of pulling the plain estimate to it."""
    if plain.se_log_scale is None or plain.se_image is None:
        return None
    return DiagonalErrors(
        plain.scale * plain.se_log_scale * plain.widening,
        plain.se_image * plain.widening,
        plain.centre,
        (settled.scale - plain.scale, settled.offset - plain.offset),
    )
