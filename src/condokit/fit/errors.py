"""Standard errors of maps without a formula for them, by the bootstrap.

Rows are drawn with replacement within each stratum of each domain, those of a subject together, and
summarised (as means and covariances, for example). The map of such a summary is near the fitted
map. So where a full fit is slow, it is replaced by one Newton step from the fitted map, which costs
one gradient. The errors of matrices are computed when they are first asked for; until then sums are
kept, not the rows. If the search ended early, or shrinkage moved the map from the plain estimate,
that distance is added as a bias.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from condokit.checks import Array
from condokit.compare.comparison import Comparison
from condokit.conditionals import Conditional
from condokit.conditionals.curves import Splines
from condokit.data.study import Study
from condokit.divergences.samples import EXPLORED_ROWS, SampleObjective, sample_units, with_spread
from condokit.maps.coordinates import Coordinates
from condokit.maps.standard_errors import StandardErrors, drawn
from condokit.solvers.gaussian_kl import MOST_DENSE
from condokit.solvers.lbfgs import in_coordinates
from condokit.solvers.low_rank import LowRankKL, after_own_diagonal, after_start, penalty_of, turns
from condokit.solvers.one_step import Function, OneStep
from condokit.solvers.solution import Solution
from condokit.solvers.units import FeatureUnits, Units
from condokit.summaries.factors import FactorPair, Factors
from condokit.summaries.gaussians import GaussianPair, without_constant
from condokit.summaries.moments import cells
from condokit.summaries.resampled import (
    ResampledCurves,
    ResampledGaussians,
    ResampledMoments,
    parcels,
)
from condokit.summaries.samples import Samples

_DRAWS = 60  # bootstrap samples, where they are drawn from sums
_ROW_DRAWS = 40  # bootstrap samples, where each goes through all rows
_RESAMPLED_ROWS = 300  # of a stratum, for divergences between samples, whose cost is quadratic
# weights deviate from 1 by this share of a bootstrap's, and changes of maps are divided by it: with
# 1 errors of few rows are too large (covariances enter by their inverses), with .1 too small
_AMOUNT = 0.5
_LITTLE = 0.25  # the same for maps of low rank, where products of two changes would count
_FEWEST_DRAWS = 20  # successful ones; with fewer, errors are unknown
_MOST_CLOSED = 100  # features of maps in closed form; for others it is MOST_DENSE
_MOST_NUMBERS = 400  # free numbers of a map between samples, or of one of low rank
_MOST_VALUES = 2_000_000  # rows times features, where each bootstrap sample goes through all rows
_PARCELS = 100  # parts into which the rows of a cell are dealt; parts are drawn, not rows
_FEWEST_PARCELS = 20  # below which memory for their scatter matrices would be too small
_MOST_SCATTERED = 5_000_000  # numbers in the scatter matrices of all parcels (40 MB)
_Map = tuple[Array, Array]  # A and b
Later = Callable[[], "StandardErrors | None"]


@dataclass(frozen=True)
class SolvedMap:
    """A fitted map whose standard errors are wanted, and the ingredients that found it."""

    divergence: Any
    family: Any
    found: Solution  # before shrinkage, of the features that vary
    shrunk: Solution  # after shrinkage, of all features
    kept: Array  # (n_features,) bool: the features that vary


def matrix_errors(
    fitted: SolvedMap,
    domains: Study,
    comparison: Comparison,
    conditional: Conditional,
    pair: GaussianPair,
) -> Later | None:
    """Return a function that computes the errors of a matrix found from Gaussians, or None."""
    d, n_values, closed = domains.n_features, len(pair.weights), fitted.divergence.in_closed_form
    most = min(_PARCELS, _MOST_SCATTERED // (2 * n_values * d * d))
    smooth = conditional.is_smooth  # then every bootstrap sample goes through all rows
    too_large = d * comparison.used.size > _MOST_VALUES if smooth else most < _FEWEST_PARCELS
    slow = smooth and not isinstance(conditional, Splines)
    open_turn = not closed and n_values == 1  # one stratum leaves a rotation open
    if too_large or slow or open_turn or d > (_MOST_CLOSED if closed else MOST_DENSE):
        return None
    some, features = without_constant(pair)[0], np.flatnonzero(fitted.kept)

    def again(other: GaussianPair) -> _Map:
        found = fitted.divergence.solve(fitted.family, other)
        return found.scale, found.offset

    rows: ResampledGaussians | ResampledCurves
    if smooth:
        rows = ResampledCurves(domains, comparison, pair, conditional)
    else:
        rows = ResampledGaussians(domains, comparison, pair, most)

    def later() -> StandardErrors | None:
        refit = again if closed else _stepped(fitted, some)
        if refit is None:
            return None
        n_draws = _ROW_DRAWS if smooth else _DRAWS
        others = (rows.draw(_AMOUNT).of(features) for _ in range(n_draws))
        n_units = rows.parcels.fewest / (1 if smooth else n_values)
        return _errors(fitted, map(refit, chain([some], others)), n_units, _AMOUNT)

    return later


def _stepped(fitted: SolvedMap, pair: GaussianPair) -> Callable[[GaussianPair], _Map] | None:
    """Return a function that finds the map of a resampled pair by one Newton step.

    None if nothing in the map is free, or if the data do not determine it (a singular Hessian).
    """
    units = Units(pair, fitted.family.search.units)
    near = _around(fitted, units)
    objective = fitted.divergence.matrix_objective
    if near is None or (here := objective(units)) is None:
        return None
    try:
        step = OneStep(in_coordinates(here, near), near.start)
    except np.linalg.LinAlgError:
        return None

    def refit(other: GaussianPair) -> _Map:
        _, gradient = in_coordinates(objective(units.holding(other)), near)(near.start)
        return units.decode(*near.unpack(step(gradient)))

    return refit


def sample_errors(fitted: SolvedMap, samples: Samples) -> Later | None:
    """Return a function that computes the errors of a map found from samples, or None.

    `samples` contain the features that vary. Rows that were drawn along fitted curves do not show
    the sampling error of these curves, so errors are unknown then.
    """
    known = hasattr(fitted.divergence, "distances") and samples.n_rows is None
    return partial(_sample_errors, fitted, samples) if known else None


def _sample_errors(fitted: SolvedMap, samples: Samples) -> StandardErrors | None:
    """Return the errors of a map that was found from the rows of strata; None if unknown."""
    samples = with_spread(fitted.family, samples)
    units = sample_units(fitted.family, samples)
    near = _around(fitted, units)
    if near is None or len(near.start) > _MOST_NUMBERS:
        return None

    def function(some: Samples) -> Function:
        inside = some.each(units.of_query, units.of_reference)
        return in_coordinates(SampleObjective(inside, fitted.divergence), near)

    few = samples.thinned(EXPLORED_ROWS)
    share = min(1.0, _RESAMPLED_ROWS / max(map(len, samples.query + samples.reference)))
    some = samples if share == 1 else samples.part(share)
    if not min(map(len, some.query + some.reference)):
        return None
    try:
        step = OneStep(function(few), near.start, between_rows=True)
    except np.linalg.LinAlgError:
        return None
    whole, rng = function(samples)(near.start)[1], np.random.default_rng(0)
    others = (some.resampled(rng) for _ in range(_ROW_DRAWS))
    others = (sample for sample in others if min(map(len, sample.query + sample.reference)))
    gradients = np.array([function(sample)(near.start)[1] for sample in others])
    if len(gradients) < _FEWEST_DRAWS:
        return None
    # Centred, since a row drawn twice is at distance 0 from its copy, so that the mean over draws
    # is not the gradient of all rows. Errors of n of N rows are sqrt(N / n) times those of all.
    changes = np.sqrt(share) * (gradients - gradients.mean(axis=0))
    steps = map(step, chain([whole], whole + changes))
    maps = (units.decode(*near.unpack(theta)) for theta in steps)
    fewest = min(sum(map(len, side)) for side in (samples.query, samples.reference))
    return _errors(fitted, maps, fewest / len(samples.weights))


def moment_errors(
    fitted: SolvedMap, domains: Study, comparison: Comparison, shared: bool
) -> StandardErrors | None:
    """Return the errors of a diagonal map that was found from moments of strata, or None."""
    family, kept, rng = fitted.family, fitted.kept, np.random.default_rng(0)
    nothing_free = not (family.has_scale or family.has_offset)
    too_large = 2 * domains.n_features > _MOST_NUMBERS
    if nothing_free or comparison.used.size or too_large or domains.gaps is not None:
        return None
    rows = ResampledMoments(domains, comparison, shared, family.has_scale, rng, _PARCELS)

    def refit(weights: Array) -> _Map:
        found = fitted.divergence.solve(family, rows.pair(weights))
        return found.scale[kept], found.offset[kept]

    once = np.ones(len(rows.parcels.cell))
    others = (rows.parcels.weights(rng, _AMOUNT) for _ in range(_DRAWS))
    n_units = rows.parcels.fewest / len(comparison.support.weights)
    return _errors(fitted, map(refit, chain([once], others)), n_units, _AMOUNT)


def _around(fitted: SolvedMap, units: Units | FeatureUnits) -> Coordinates | None:
    """Return coordinates of maps near the fitted one; None if nothing in the map is free."""
    near = fitted.family.around(*units.encode(fitted.found.scale, fitted.found.offset))
    return near if len(near.start) else None


def low_rank_errors(fitted: SolvedMap, factors: Factors) -> StandardErrors | None:
    """Return the errors of a map of low rank; None if unknown."""
    found, rank = fitted.found, fitted.family.rank
    domains, comparison, d = factors.domains, factors.comparison, len(found.scale)
    too_large = d * (2 + 2 * rank) > _MOST_NUMBERS or d * len(domains.is_query) > _MOST_VALUES
    if too_large or factors.conditional.is_smooth:
        return None
    pair = factors.after(found.scale, found.offset)
    theta = after_own_diagonal(pair, found)

    def function(some: FactorPair, penalty: float) -> Function:
        objective = LowRankKL(some.query, some.reference, some.weights, penalty)
        return partial(objective.of_numbers, rank=rank)

    try:
        step = OneStep(function(pair, penalty_of(pair)), theta, idle=turns(theta, rank))
    except np.linalg.LinAlgError:
        return None
    rng, n_values = np.random.default_rng(0), len(comparison.support.levels)
    parcel, units = parcels(domains, cells(domains, comparison), n_values, rng, _PARCELS)
    once = np.ones(len(parcel)) if domains.weights is None else domains.weights

    def resampled() -> FactorPair:
        weights = once * np.append(units.weights(rng, _LITTLE), 0.0)[parcel]
        other = replace(factors, domains=replace(domains, weights=weights))
        return other.after(found.scale, found.offset, pair)

    def refit(some: FactorPair) -> _Map:
        result = after_start(pair, found, step(function(some, 0.0)(theta)[1]), rank).dense()
        return result.scale, result.offset

    maps = map(refit, chain([pair], (resampled() for _ in range(_ROW_DRAWS))))
    whole = replace(fitted, shrunk=fitted.shrunk.dense())
    return _errors(whole, maps, units.fewest / n_values, _LITTLE)


def _errors(
    fitted: SolvedMap, maps: Iterable[_Map], n_units: float, amount: float = 1.0
) -> StandardErrors | None:
    """Return the errors, given the map of all rows and then those of the bootstrap samples.

    `amount` is the share of a full bootstrap step by which weights were changed, and `n_units` the
    number of rows or subjects of a typical stratum.
    """
    plain, *draws = maps
    draws = [draw for draw in draws if np.isfinite(draw[0]).all() and np.isfinite(draw[1]).all()]
    if len(draws) < _FEWEST_DRAWS:
        return None
    # Student's factor for the number of draws and that of rows or subjects in a typical stratum
    dof = 1 / (1 / (len(draws) - 1) + 1 / max(n_units - 1, 1.0))
    wider = float(stdtrit(dof, 0.975) / ndtri(0.975)) / amount
    parts = (np.stack(part) for part in zip(*draws))
    scales, offsets = (old + wider * (new - old) for old, new in zip(plain, parts))
    A, b, kept = fitted.shrunk.scale, fitted.shrunk.offset, np.flatnonzero(fitted.kept)
    A = A[kept] if A.ndim == 1 else A[np.ix_(kept, kept)]
    pull = _put(A - plain[0], fitted.kept, 0), _put(b[kept] - plain[1], fitted.kept, 0)
    return drawn(_put(scales, fitted.kept, 1), _put(offsets, fitted.kept, 1), pull)


def _put(values: Array, kept: Array, n_before: int) -> Array:
    """Return an array of zeros with values at the kept features, along all but the first axes."""
    if kept.all():
        return values
    n_axes = values.ndim - n_before
    result = np.zeros(values.shape[:n_before] + (len(kept),) * n_axes)
    places: Any = (..., *np.ix_(*[np.flatnonzero(kept)] * n_axes))
    result[places] = values
    return result
