"""From two domains and the ingredients to a fitted map: compare, summarise, solve, shrink."""

from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from condokit.checks import Array, check_integer, check_number, listing, quietly, refusal, warn
from condokit.compare.comparison import Comparison, compare
from condokit.compare.priors import Prior, Support
from condokit.compare.weak_points import warn_of_few_to_smooth, warn_weak_points
from condokit.conditionals import Conditional
from condokit.data.arrays import computing
from condokit.data.links import check_links
from condokit.data.missing import (
    complete_counts,
    missing_features,
    same_gaps,
    with_gaps,
    without_gaps,
)
from condokit.data.reader import in_blocks
from condokit.data.study import Study
from condokit.data.sums import no_rows
from condokit.data.tables import Table
from condokit.divergences import Divergence, PooledLikelihood, ReverseKL
from condokit.fit.errors import (
    Later,
    SolvedMap,
    low_rank_errors,
    matrix_errors,
    moment_errors,
    sample_errors,
)
from condokit.fit.fit_curves import FEWEST_ROWS, fit_curves, suspected
from condokit.fit.record import Fit, FitReport
from condokit.fit.rotations import (
    ALIKE,
    AXES_ALIKE,
    check_rectangular,
    has_ties,
    warn_constant,
    warn_of_rotations,
)
from condokit.fit.shrinkage import shrink
from condokit.law.estimate import together_of
from condokit.maps.affine import AffineMap
from condokit.maps.base import Map
from condokit.maps.families import Affine, Identity, LocationScale, MapFamily, Monotone, Shift
from condokit.maps.monotone import MonotoneMap
from condokit.maps.standard_errors import CurveErrors, DiagonalErrors, StandardErrors
from condokit.solvers.matrices import nearest_rigid
from condokit.solvers.solution import Curves, Solution, joined, only_shifted
from condokit.summaries.factors import Factors
from condokit.summaries.gaussians import GaussianPair, gaussian_pair, is_singular, without_constant
from condokit.summaries.moments import MomentPair, moment_pair
from condokit.summaries.rows import Rows
from condokit.summaries.samples import as_moments, sample_rows

_DETERMINED = 20.0  # curvature times rows; above 70 where maps are found again, below 8 if not
_MANY_ROWS = 100_000  # from which rows are summed in blocks, given continuous confounders
_ENOUGH_ROWS = 2  # rows per feature in every stratum, from which covariances are not regularised
_LONE = 1.5  # a domain whose strata all have fewer (possibly weighted) rows shows no spread


@dataclass(frozen=True)
class Recipe:
    """The four ingredients, and how cautious to be."""

    family: Any
    prior: Prior
    conditional: Conditional
    divergence: Divergence
    sparing: bool  # whether lines are bent only where a curve is more likely than a line
    shrinkage: Any
    warn_overlap: float
    min_overlap: float
    finds_errors: bool = True  # whether to resample for standard errors that have no formula
    start: tuple[Array, Array] | None = None  # a matrix and offset to search from
    in_units: bool = False  # whether features are scaled to unit variance before a matrix is found

    @property
    def needs(self) -> str:
        """The summary that the divergence works on: "rows", "moments", "samples" or the like."""
        return self.divergence.needs(self.family)

    def checked(self) -> "Recipe":
        """Refuse what cannot be fitted, before anything is computed; ingredients are copied."""
        check_number("warn_overlap", self.warn_overlap, 0, 1)
        check_number("min_overlap", self.min_overlap, 0, 1)
        reason = self.divergence.supports(self.family)
        if reason is None and (self.family.form, self.needs) not in _FITS:
            reason = f"No {self.family.form} map is found from {self.needs!r}; see `forms`."
        if reason is not None:
            raise ValueError(reason)
        names = ("family", "prior", "conditional", "divergence")
        return replace(self, **{name: deepcopy(getattr(self, name)) for name in names})

    def compare(self, domains: Study, quiet: bool = False) -> Comparison:
        """Find what the domains have in common; see `condokit.compare.comparison.compare`."""
        return compare(
            domains,
            self.prior,
            self.conditional,
            by_rows=self.needs == "rows",
            limits=(self.warn_overlap, self.min_overlap),
            quiet=quiet,
        )

    def diagonal(self) -> "Recipe":
        """Return the recipe of a location-scale map in place of one with a matrix."""
        keeps = self.divergence.forms.get("diagonal") == "moments"
        divergence = self.divergence if keeps else PooledLikelihood()
        return replace(self, family=LocationScale(), divergence=divergence)


# the map, facts for the report, and the map's standard errors or a function that computes them
Found = tuple[Solution, dict[str, Any], StandardErrors | Later | None]


def fit_map(domains: Study, recipe: Recipe, quiet: bool = False) -> Fit:
    """Compare the two domains given the confounders, and find the best map of the family."""
    recipe = recipe.checked()
    if not domains.is_whole:
        domains = _as_needed(domains, recipe)
    elif _is_cheaper_in_blocks(domains, recipe):
        domains = in_blocks(domains)
    links = recipe.family.links
    if links is not None and not domains.is_rectangular:
        domains = replace(domains, links=check_links(links, domains.tables[0].labels))
    # rows with missing values are excluded, unless every feature is fitted by itself
    alone = recipe.family.form in ("diagonal", "monotone") and recipe.needs != "samples"
    usable = domains if domains.gaps is None or alone else without_gaps(domains)
    with computing("map"):
        comparison = recipe.compare(usable, quiet)
        warn_of_few_to_smooth(recipe.conditional, comparison, len(domains.continuous))
        found = _FITS[recipe.family.form, recipe.needs](usable, recipe, comparison)
        if found is None:  # too few rows for a matrix, or equal values
            recipe, usable, overlap = recipe.diagonal(), domains, comparison.overlap
            comparison = replace(recipe.compare(usable, quiet=True), overlap=overlap)
            found = _fit_diagonal(usable, recipe, comparison)
            found[1].setdefault("fallback", "location-scale")
    solution, facts, errors = found
    table, support = usable.tables[0], comparison.support
    if not domains.is_rectangular:
        if not quiet:
            warn_weak_points(usable, comparison)
        _refuse_failure(solution, table, support)
    outputs = usable.tables[1].feature_names if domains.is_rectangular else None
    found_map = _map_of(solution, table, usable.links, outputs)
    report = FitReport(
        float(support.count_query.sum()),
        float(support.count_reference.sum()),
        domains.missing,
        missing_features(domains),
        complete_counts(domains),
        **facts,
    )
    is_line = isinstance(recipe.family, LocationScale) and recipe.shrinkage == "auto"
    begins_curves = is_line and domains.is_whole and domains.gaps is None
    straight = (comparison, solution) if begins_curves else None
    return Fit(found_map, errors, support, comparison.overlap, report, straight)


def _is_cheaper_in_blocks(domains: Study, recipe: Recipe) -> bool:
    """Return whether rows are many and the fit, given numbers, needs only sums over them."""
    plain = recipe.family.form == "diagonal" and recipe.family.links is None
    by_sums = plain and recipe.needs == "rows" and domains.groups is None
    return by_sums and bool(domains.continuous) and len(domains.is_query) > _MANY_ROWS


def _as_needed(domains: Study, recipe: Recipe) -> Study:
    """Return domains that are not in memory as they are if their sums suffice, else a sample."""
    family, needs = recipe.family, recipe.needs
    by_strata = not recipe.conditional.is_smooth and not domains.continuous
    if family.form == "diagonal" and family.links is None:
        if needs == "rows" or (needs == "moments" and by_strata):
            return domains
    elif needs == "gaussians" and by_strata and domains.sums_only.has_covariances:
        count = domains.sums_only.moments.count
        many = count[count > 0].min() >= _ENOUGH_ROWS * domains.n_features
        plain = many or recipe.divergence.in_closed_form or recipe.shrinkage != "auto"
        if plain:
            return domains
    return from_sample(domains)


def from_sample(domains: Study) -> Study:
    """Return the sample of rows that is held of domains not in memory, and warn of that."""
    if not domains.has_rows:
        raise no_rows()
    text = "Maps of this kind need rows, not sums over rows: a sample of {n} rows is used."
    warn("sample", text, UserWarning, n=len(domains.is_query))
    return with_gaps(domains.sampled())


def _map_of(solution: Solution, table: Table, links: Any, outputs: Any) -> Map:
    """Return the map that a solution stands for."""
    told = {"feature_names": table.feature_names, "links": links, "output_names": outputs}
    if (curves := solution.curves) is not None:
        return MonotoneMap(curves.knots, curves.values, curves.slopes, **told)
    factors: dict[str, Any] = {"left": solution.left, "right": solution.right}
    return AffineMap(solution.scale, solution.offset, **factors, **told)


def fit_quietly(domains: Study, recipe: Recipe) -> Fit:
    """Fit a part of the data, without warnings that the fit of all rows has given already."""
    with quietly():
        return fit_map(domains, replace(recipe, finds_errors=False), quiet=True)


def fit_solution(domains: Study, recipe: Recipe) -> Solution:
    """Return a diagonal map before shrinkage, with standard errors if the divergence has any."""
    recipe = recipe.checked()
    comparison = recipe.compare(domains, quiet=True)
    if _has_no_spread(recipe, comparison):
        raise ValueError("A domain has one row in each stratum compared, and no spread.")
    return _fit_diagonal(domains, recipe, comparison)[0]


def likely_curves(
    domains: Study, recipe: Recipe, line: Any, straight: tuple[Comparison, Solution] | None = None
) -> tuple[Array, Curves] | None:
    """Return the features for which a curve is more likely than a line, and their curves.

    Returns None if there is no such feature. `line` is the fitted map, and `straight` the
    comparison and solution from which it came, if they are known: curves then start from them, and
    the line is not fitted a second time.
    """
    whole = domains.is_whole and domains.confounders and not domains.is_rectangular
    if not whole or not len(places := suspected(domains, line.scale, line.offset)):
        return None
    how = replace(recipe, family=Monotone(), divergence=PooledLikelihood(), sparing=True)
    part, how = domains.of(places), replace(how, shrinkage="auto", min_overlap=0.0)
    try:
        with quietly():
            if straight is None:
                found = _fit_monotone(part, how, how.compare(part, quiet=True))[0].curves
            else:
                compared, own = straight[0], straight[1].lines(places)
                found = fit_curves(part, how.compare, compared, own, None, "auto", True)
    except (ValueError, ArithmeticError, np.linalg.LinAlgError):
        return None
    if found is None or not len(bent := np.flatnonzero(found.bent > 0.5)):
        return None
    parts = {name: getattr(found, name)[bent] for name in found.__dataclass_fields__}
    return places[bent], Curves(**parts)


def _refuse_failure(solution: Solution, table: Table, support: Support) -> None:
    """Raise an error if scales or offsets of a feature are not finite."""
    finite = np.isfinite(solution.scale)
    failed = ~((finite if finite.ndim == 1 else finite.all(axis=1)) & np.isfinite(solution.offset))
    if failed.any():
        raise refusal(
            "No map could be found for {names} from {n_query:rows} query and "
            "{n_reference:rows} reference rows. Use {@map='shift'}, fewer confounders, or more "
            "rows.",
            names=listing(table.names_of(failed)),
            n_query=support.count_query.sum(),
            n_reference=support.count_reference.sum(),
        )


def _fit_diagonal(domains: Study, recipe: Recipe, comparison: Comparison) -> Found:
    """Return a diagonal map after shrinkage, with its standard errors."""
    table, fallback = domains.tables[0], dict[str, Any]()
    if domains.gaps is not None:
        plain, unit, flat = _solve_by_gaps(domains, recipe)
    else:
        if _has_no_spread(recipe, comparison):
            warn(
                "no-spread",
                "A domain has one row in each stratum compared, so a scale cannot be learned: "
                "features are only shifted. Add rows or merge strata to learn one.",
            )
            recipe, fallback = _without_scale(recipe), {"fallback": "shift"}
        summary = _summarised(domains, recipe, comparison)
        plain = _with_known_errors(recipe.divergence.solve(recipe.family, summary), summary)
        unit, flat = summary.spread, summary.flat
    plain = _counting_subjects(plain, unit, domains, comparison)
    constant = flat & ~np.asarray(plain.law.get("mostly_zero", False))  # zeros stay zero
    if recipe.family.has_scale:
        warn_constant(table, constant)
    together = None
    shrinks = recipe.shrinkage == "auto" and plain.se_image is not None and len(unit) > 1
    if shrinks and plain.evidence is None and not domains.confounders and domains.gaps is None:
        together = together_of(Rows.read(domains, comparison, recipe.family.has_scale))
    solution, facts = shrink(plain, unit, recipe.shrinkage, together, table)
    facts = {"constant_features": table.names_of(constant), **facts, **fallback}
    errors: StandardErrors | None = DiagonalErrors.of(plain, solution)
    resamples = recipe.finds_errors and domains.is_whole
    if errors is None and resamples and recipe.needs == "moments":
        fitted = SolvedMap(recipe.divergence, recipe.family, plain, solution, ~flat)
        errors = moment_errors(fitted, domains, comparison, recipe.shrinkage == "auto")
    return solution, facts, errors


def _counting_subjects(
    plain: Solution, unit: Array, domains: Study, comparison: Comparison
) -> Solution:
    """Widen the errors of shifts if a domain has one subject only, who is in no other domain.

    The variance between subjects cannot be estimated then. It is assumed to be as large as the
    variance within them, so a shift has at least the standard error of a difference of two means
    over that many subjects.
    """
    if domains.groups is None or plain.se_image is None:
        return plain
    sides = (comparison.place >= 0) & np.stack([domains.is_query, ~domains.is_query])
    query, reference = (np.unique(domains.groups[side]) for side in sides)
    alone = min(len(query), len(reference)) == 1 and not np.intersect1d(query, reference).size
    people = unit * np.sqrt(1 / len(query) + 1 / len(reference))
    return replace(plain, se_image=np.maximum(plain.se_image, people)) if alone else plain


def _has_no_spread(recipe: Recipe, comparison: Comparison) -> bool:
    """Return whether a scale is asked for, but a domain has a single row in every stratum."""
    counts = comparison.support.count_query.max(), comparison.support.count_reference.max()
    by_strata = recipe.needs == "rows" or not recipe.conditional.is_smooth
    return by_strata and recipe.family.has_scale and min(counts) < _LONE


def _without_scale(recipe: Recipe) -> Recipe:
    """Return the same recipe with all scales fixed at one: a shift, or the identity."""
    kind = Shift if recipe.family.has_offset else Identity
    return replace(recipe, family=kind(recipe.family.links))


def _summarised(domains: Study, recipe: Recipe, comparison: Comparison) -> Rows | MomentPair:
    """Return the summary of the data from which the divergence finds a diagonal map."""
    if recipe.needs == "rows":
        return Rows.read(domains, comparison, recipe.family.has_scale)
    return _moments(domains, recipe, comparison)


def _moments(domains: Study, recipe: Recipe, comparison: Comparison) -> MomentPair:
    """Return moments of both domains; shrinkage pools variances over strata."""
    shared, scaled = recipe.shrinkage == "auto", recipe.family.has_scale
    return moment_pair(domains, comparison, recipe.conditional, shared, scaled)


def _with_known_errors(solution: Solution, summary: Rows | MomentPair) -> Solution:
    """Return a diagonal map without those standard errors that moments do not determine.

    Rows determine all of them.
    """
    if isinstance(summary, Rows):
        return solution
    solution = replace(solution, widening=summary.widening)
    if not summary.knows_errors:
        solution = replace(solution, se_log_scale=None, se_image=None)
    return only_shifted(solution, summary.flat)


def solve_moments(family: MapFamily, divergence: Divergence, pair: MomentPair) -> Solution:
    """Return the best diagonal map between moments, with the standard errors that these have."""
    return _with_known_errors(divergence.solve(family, pair), pair)


def _solve_by_gaps(domains: Study, recipe: Recipe) -> tuple[Solution, Array, Array]:
    """Fit features with missing values: those missing in the same rows together, on other rows.

    Returns the joined solution, and for every feature its spread and whether it is constant.
    """
    results, unit, flat = [], np.empty(domains.n_features), np.zeros(domains.n_features, bool)
    for features, known in same_gaps(domains):
        part = replace(domains.of(features), keep=known, gaps=None)
        try:
            compared = recipe.compare(part, quiet=True)
            lone = _has_no_spread(recipe, compared)
            own = _without_scale(recipe) if lone else recipe
            summary = _summarised(part, own, compared)
            solution = _with_known_errors(own.divergence.solve(own.family, summary), summary)
        except ValueError as error:
            names = listing(part.tables[0].labels)
            raise type(error)(f"{names}, where values are known: {error}") from None
        unit[features], flat[features] = summary.spread, summary.flat
        flat[features] |= lone
        results.append((features, solution))
    return joined(results), unit, flat


def _fit_monotone(domains: Study, recipe: Recipe, comparison: Comparison) -> Found:
    """Return increasing curves; lines if the rows are too few for curves."""
    straight = replace(recipe, family=LocationScale())
    plain = replace(straight, shrinkage="auto" if recipe.shrinkage == "auto" else None)
    line, facts, errors = _fit_diagonal(domains, plain, comparison)
    if "fallback" in facts:  # not even a scale can be learned
        return line, facts, errors
    again, how = partial(straight.compare, quiet=True), (recipe.shrinkage, recipe.sparing)
    own = errors() if callable(errors) else errors
    curves = fit_curves(domains, again, comparison, line, own, *how)
    if curves is None:
        if not recipe.sparing:
            warn(
                "few-rows-for-curves",
                "No curve can be learned: fewer than {fewest:.0f} comparable rows in a domain, or "
                "few different values; a location-scale map is fitted instead.",
                fewest=FEWEST_ROWS,
            )
        if recipe.shrinkage not in ("auto", None):
            line, facts, errors = _fit_diagonal(domains, straight, comparison)
        return line, facts | ({} if recipe.sparing else {"fallback": "location-scale"}), errors
    likely = domains.tables[0].names_of(curves.bent > 0.5)
    facts |= {"bent_features": likely, "bent": curves.bent}
    errors = CurveErrors(curves.knots, curves.sd, curves.sd_slopes)
    return replace(line, curves=curves), facts, errors


def _fit_matrix(domains: Study, recipe: Recipe, comparison: Comparison) -> Found | None:
    """Return a full matrix; None if there are too few rows, or too few distinct values."""
    divergence, support, d = recipe.divergence, comparison.support, domains.n_features
    n_strata = len(support.weights)
    if comparison.fewest_rows - n_strata < d + 1:
        warn(
            "few-rows-for-matrix",
            "A full matrix of {d} features cannot be learned from {n_query:rows} query and "
            "{n_reference:rows} reference rows in {n_strata} strata; a location-scale map is "
            "fitted instead.",
            d=d,
            n_query=support.count_query.sum(),
            n_reference=support.count_reference.sum(),
            n_strata=n_strata,
        )
        return None
    if not (divergence.in_closed_form or domains.is_rectangular) and has_ties(domains):
        return None
    pair = replace(_gaussians(domains, recipe, comparison), start=recipe.start)
    if len(pair.weights) == 1 and not divergence.in_closed_form:
        warn(
            "one-stratum",
            "One stratum determines a matrix up to a rotation only; the result depends on where "
            "the search starts. Use {@divergence='ot'}, or compare given a confounder.",
        )
    some, kept = without_constant(pair)
    warn_constant(domains.tables[0], ~kept)
    start, facts = pair.means_only(), {}
    if kept.any():
        unit = np.ones(some.n_features)
        if recipe.in_units:
            unit = np.sqrt(np.diag(some.reference.balanced(some.weights)[1]))
            some = some.in_units(unit)
        found = divergence.solve(recipe.family, some)
        A, b = found.scale * unit[:, None] / unit, found.offset * unit
        solution = replace(found, scale=A, centre=np.zeros(len(b)), image=b)
        start, facts = _embedded(start, solution, kept), solution.search_facts()
        curvature = solution.curvature * comparison.fewest_rows
        if len(pair.weights) > 1 and curvature < _DETERMINED:
            warn("strata-alike", ALIKE)
        elif not solution.is_told:
            warn("axes-alike", AXES_ALIKE)
    facts["covariances"] = {name: asdict(share) for name, share in pair.shares.items()}
    facts["constant_features"] = domains.tables[0].names_of(~kept)
    shrunk, errors = _towards_identity(*start, recipe), None
    if recipe.finds_errors and kept.any() and domains.is_whole:
        fitted = SolvedMap(divergence, recipe.family, solution, shrunk, kept)
        errors = matrix_errors(fitted, domains, comparison, recipe.conditional, pair)
    return shrunk, facts, errors


def _gaussians(domains: Study, recipe: Recipe, comparison: Comparison) -> GaussianPair:
    """Return both domains as Gaussians, regularised where strata are small or singular."""
    support, closed = comparison.support, recipe.divergence.in_closed_form
    smallest = min(support.count_query.min(), support.count_reference.min())
    many = smallest >= _ENOUGH_ROWS * domains.n_features and not domains.continuous
    regularised = recipe.shrinkage == "auto" and not (closed or many)
    pair = gaussian_pair(domains, comparison, recipe.conditional, regularised)
    if pair.shares or closed or not is_singular(pair):
        return pair
    warn(
        "singular-covariance",
        "A covariance within a stratum is singular (collinear features, or fewer rows than "
        "features), so covariances are regularised.",
    )
    return gaussian_pair(domains, comparison, recipe.conditional, True)


def _embedded(start: tuple[Array, Array], solution: Solution, kept: Array) -> tuple[Array, Array]:
    """Put the map of the varying features into `start`, a map of all, and return that."""
    A, b = start
    A[kept if A.ndim == 1 else np.ix_(kept, kept)], b[kept] = solution.scale, solution.offset
    return A, b


def _fit_samples(domains: Study, recipe: Recipe, comparison: Comparison) -> Found:
    """Return the map that minimises a divergence between samples, such as MMD."""
    family: Any = recipe.family
    divergence: Any = recipe.divergence
    check_integer("max_rows", divergence.max_rows, 2)
    samples = sample_rows(domains, comparison, recipe.conditional, divergence.max_rows)
    if domains.is_rectangular:
        check_rectangular(recipe)
        solution = divergence.solve(family, replace(samples, is_rectangular=True))
        return solution, solution.search_facts(), None
    if min(max(map(len, side)) for side in (samples.query, samples.reference)) < 2:
        raise refusal(
            "A domain has only 1 sample in each stratum compared, so its spread cannot be "
            "learned. Add rows, merge strata, or use {@map='shift'} with "
            "{@divergence='reverse-kl'}."
        )
    moments = as_moments(samples)
    kept = ~moments.flat
    warn_constant(domains.tables[0], ~kept)
    A = np.ones(len(kept)) if family.form == "diagonal" else np.eye(len(kept))
    b = samples.weights @ (moments.reference.mean - moments.query.mean)
    start, facts = (A, b * family.has_offset), {}
    if kept.any():
        solution = divergence.solve(family, samples.of(kept))
        start, facts = _embedded(start, solution, kept), solution.search_facts()
        if recipe.finds_errors:
            warn_of_rotations(solution, divergence, samples.of(kept))
    facts["constant_features"] = domains.tables[0].names_of(~kept)
    shrunk, errors = _towards_identity(*start, recipe), None
    if recipe.finds_errors and kept.any():
        fitted = SolvedMap(divergence, family, solution, shrunk, kept)
        errors = sample_errors(fitted, samples.of(kept))
    return shrunk, facts, errors


def _fit_low_rank(domains: Study, recipe: Recipe, comparison: Comparison) -> Found | None:
    """Return a map whose matrix is diagonal plus low rank; None if rows are too few for it."""
    rank, d = recipe.family.rank, domains.n_features
    check_integer("rank of LowRank", rank, 1)
    fewest, moments, kept = comparison.fewest_rows, None, np.ones(d, dtype=bool)
    if fewest >= len(comparison.support.weights) + 8 and d > rank + 1:
        moments = _moments(domains, recipe, comparison)
        kept = ~moments.flat
        warn_constant(domains.tables[0], ~kept)
    if moments is None or kept.sum() <= rank + 1:
        warn(
            "few-rows-for-low-rank",
            "A matrix of rank {rank} cannot be learned from {d} features and {fewest:rows} rows in "
            "a domain; a location-scale map is fitted instead.",
            rank=rank,
            d=kept.sum(),
            fewest=fewest,
        )
        return None
    some = domains if kept.all() else domains.of(np.flatnonzero(kept))
    known = moments if kept.all() else _moments(some, recipe, comparison)
    factors = Factors(known, some, comparison, recipe.conditional)
    solution = recipe.divergence.solve(recipe.family, factors)
    facts = {name: getattr(solution, name) for name in ("objective", "n_iter", "gradient_norm")}
    facts["constant_features"] = domains.tables[0].names_of(~kept)
    shift = moments.weights @ (moments.reference.mean - moments.query.mean)
    start = _embedded((np.ones(d), shift), solution, kept)
    shrunk, errors = _towards_identity(*start, recipe), None
    share = 1.0 - recipe.shrinkage if isinstance(recipe.shrinkage, float) else 1.0
    left, right = np.zeros((2, d, rank))
    left[kept], right[kept] = share * np.asarray(solution.left), solution.right
    shrunk = replace(shrunk, left=left, right=right)
    if recipe.finds_errors:
        fitted = SolvedMap(recipe.divergence, recipe.family, solution, shrunk, kept)
        errors = low_rank_errors(fitted, factors)
    return shrunk, facts, errors


_FITS: dict[tuple[str, str], Any] = {
    ("diagonal", "moments"): _fit_diagonal,
    ("diagonal", "rows"): _fit_diagonal,
    ("diagonal", "samples"): _fit_samples,
    ("monotone", "rows"): _fit_monotone,
    ("matrix", "gaussians"): _fit_matrix,
    ("matrix", "samples"): _fit_samples,
    ("low-rank", "factors"): _fit_low_rank,
}


def determines_matrix(domains: Study, comparison: Comparison, conditional: Conditional) -> bool:
    """Return whether the strata differ enough to determine a full matrix.

    Reverse KL is minimised from two starts; the curvature at its minimum says how well the
    strata distinguish rotations.
    """
    pair = gaussian_pair(domains, comparison, conditional, False)
    if is_singular(pair):
        pair = gaussian_pair(domains, comparison, conditional, True)
    some, kept = without_constant(pair)
    if not kept.any():
        return False
    solution = ReverseKL().solve(Affine(n_starts=2), some)
    return bool(solution.curvature * comparison.fewest_rows >= _DETERMINED)


def _towards_identity(A: Array, b: Array, recipe: Recipe) -> Solution:
    """Return (1 - s) times the map plus s times the identity if `shrinkage` is a number s."""
    share = recipe.shrinkage
    if isinstance(share, float):
        identity = np.ones(len(b)) if A.ndim == 1 else np.eye(len(b))
        A, b = (1 - share) * A + share * identity, (1 - share) * b
        if recipe.family.is_rigid:  # an average of two rotations is none
            A = nearest_rigid(A, recipe.family.has_scale)
    return Solution.of(A, b)
