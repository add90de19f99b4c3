"""Standard errors of maps that have no formula for them, from resampled summaries of the data.

A summary of resampled rows is near that of all rows, and so is its map: found again where that is
quick, or by one Newton step from the map that was found, which costs one gradient. The rows of a
cell are drawn with replacement, subjects together. Matrices are found again when their errors are
first asked for: what is kept until then are sums, not the rows. Where an early end of the search or
a share of the identity pulls the map from the plain estimate, that counts as an error of its own.
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

_DRAWS = 60
_ROW_DRAWS = 40  # where every draw looks at rows again
_RESAMPLED_ROWS = 300  # of a stratum, of which divergences between samples are resampled
# of what drawing does to the weights of rows: all of it makes errors of few rows too large, as
# covariances enter through their inverses, and a tenth of it too small
_AMOUNT = 0.5
_LITTLE = 0.25  # the same for maps of low rank, where products of two changes would count
_FEWEST_DRAWS = 20
_MOST_CLOSED = 100  # features of maps in closed form; of others MOST_DENSE
_MOST_NUMBERS = 400  # that a map between samples, or one of low rank, may have
_MOST_VALUES = 2_000_000  # of all features and rows, which every draw of low rank looks at
_PARCELS = 100  # of rows in every cell
_FEWEST_PARCELS = 20
_MOST_SCATTERED = 5_000_000  # numbers in the scatter matrices of all parcels
_Map = tuple[Array, Array]  # A and b
Later = Callable[[], "StandardErrors | None"]


@dataclass(frozen=True)
class SolvedMap:
    """A map and how it was found, of which the errors are asked for."""

    divergence: Any
    family: Any
    found: Solution  # of the features that vary
    shrunk: Solution  # of all features, pulled as was asked
    kept: Array  # the features that vary


def matrix_errors(
    fitted: SolvedMap,
    domains: Study,
    comparison: Comparison,
    conditional: Conditional,
    pair: GaussianPair,
) -> Later | None:
    """Return how to find the errors of a matrix of Gaussians, if they can be known."""
    d, n_values, closed = domains.n_features, len(pair.weights), fitted.divergence.in_closed_form
    most = min(_PARCELS, _MOST_SCATTERED // (2 * n_values * d * d))
    smooth = conditional.is_smooth  # so that every draw looks at all rows
    too_large = d * comparison.used.size > _MOST_VALUES if smooth else most < _FEWEST_PARCELS
    slow = smooth and not isinstance(conditional, Splines)
    if too_large or slow or d > (_MOST_CLOSED if closed else MOST_DENSE):
        return None
    some, features = without_constant(pair)[0], np.flatnonzero(fitted.kept)

    def again(other: GaussianPair) -> _Map:
        found = fitted.divergence.solve(fitted.family, other)
        return found.scale, found.offset

    if not closed and n_values == 1:  # one stratum leaves a rotation open
        return None
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
    """Return what finds the map of another pair by one step; None where nothing determines it."""
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
    """Return how to find the errors of a map of rows in strata, if they can be known."""
    # `samples` are of the features that vary; rows that were drawn along curves do not tell
    if not hasattr(fitted.divergence, "distances") or samples.n_rows is not None:
        return None
    return partial(_sample_errors, fitted, samples)


def _sample_errors(fitted: SolvedMap, samples: Samples) -> StandardErrors | None:
    """Return the errors of a map that was found from rows in strata."""
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
    # a row that is drawn twice is like itself, so that draws differ from all rows also on average;
    # the errors of all rows are smaller than those of some by the root of their share
    changes = np.sqrt(share) * (gradients - gradients.mean(axis=0))
    steps = map(step, chain([whole], whole + changes))
    maps = (units.decode(*near.unpack(theta)) for theta in steps)
    fewest = min(sum(map(len, side)) for side in (samples.query, samples.reference))
    return _errors(fitted, maps, fewest / len(samples.weights))


def moment_errors(
    fitted: SolvedMap, domains: Study, comparison: Comparison, shared: bool
) -> StandardErrors | None:
    """Return the errors of a diagonal map that was found from moments of strata, if possible."""
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
    """Return coordinates near the map that was found, if anything in it is free."""
    near = fitted.family.around(*units.encode(fitted.found.scale, fitted.found.offset))
    return near if len(near.start) else None


def low_rank_errors(fitted: SolvedMap, factors: Factors) -> StandardErrors | None:
    """Return the errors of a map of low rank, if they are known."""
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
    """Return errors from the plain map and those of draws, which went only so far."""
    plain, *draws = maps
    draws = [draw for draw in draws if np.isfinite(draw[0]).all() and np.isfinite(draw[1]).all()]
    if len(draws) < _FEWEST_DRAWS:
        return None
    # Student's factor, by the draws and by the rows or subjects of a typical stratum
    dof = 1 / (1 / (len(draws) - 1) + 1 / max(n_units - 1, 1.0))
    wider = float(stdtrit(dof, 0.975) / ndtri(0.975)) / amount
    parts = (np.stack(part) for part in zip(*draws))
    scales, offsets = (old + wider * (new - old) for old, new in zip(plain, parts))
    A, b, kept = fitted.shrunk.scale, fitted.shrunk.offset, np.flatnonzero(fitted.kept)
    A = A[kept] if A.ndim == 1 else A[np.ix_(kept, kept)]
    pull = _put(A - plain[0], fitted.kept, 0), _put(b[kept] - plain[1], fitted.kept, 0)
    return drawn(_put(scales, fitted.kept, 1), _put(offsets, fitted.kept, 1), pull)


def _put(values: Array, kept: Array, n_before: int) -> Array:
    """Put values into zeros at the places that are kept, along all axes but the first ones."""
    if kept.all():
        return values
    n_axes = values.ndim - n_before
    result = np.zeros(values.shape[:n_before] + (len(kept),) * n_axes)
    places: Any = (..., *np.ix_(*[np.flatnonzero(kept)] * n_axes))
    result[places] = values
    return result
