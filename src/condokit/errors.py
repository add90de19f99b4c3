"""Standard errors of maps that have no formula for them, from resampled summaries of the data."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from condokit.checks import Array
from condokit.compare.comparison import Comparison
from condokit.data.domains import Domains
from condokit.divergences import Divergence
from condokit.maps.coordinates import AllMatrices
from condokit.maps.standard_errors import DrawnErrors, JoinedErrors, StandardErrors
from condokit.solvers.gaussian_kl import MOST_DENSE
from condokit.solvers.one_step import OneStep
from condokit.solvers.solution import Solution
from condokit.solvers.units import Units
from condokit.summaries.gaussians import GaussianPair, Skewness, without_constant
from condokit.summaries.resampled import ResampledGaussians

_DRAWS = 60
# of what drawing does to the weights of rows: all of it makes errors of few rows too large (means
# and covariances enter through their inverses), a tenth of it too small
_AMOUNT = 0.5
_MOST_FEATURES = 100  # of maps in closed form; of others MOST_DENSE
_PARCELS = 100  # of rows in every cell
_FEWEST_PARCELS = 20
_MOST_NUMBERS = 5_000_000  # in the scatter matrices of all parcels
_Map = tuple[Array, Array]  # A and b
_Refit = Callable[[Any], _Map]  # of another summary; of None, the plain map


def matrix_errors(
    domains: Domains,
    comparison: Comparison,
    divergence: Divergence,
    family: Any,
    pair: GaussianPair,
    found: Solution,  # of the features that vary
    settled: Solution,  # of all features, pulled as was asked
) -> StandardErrors | None:
    """Return the errors of a matrix that was found from Gaussians of strata, if they are known."""
    d = domains.n_features
    some, kept = without_constant(pair)
    features = np.flatnonzero(kept)
    most = min(_PARCELS, _MOST_NUMBERS // (2 * len(pair.weights) * d * d))
    if domains.continuous or most < _FEWEST_PARCELS:
        return None
    if d > (_MOST_FEATURES if divergence.in_closed_form else MOST_DENSE):
        return None
    rows = ResampledGaussians(domains, comparison, pair, most)
    try:
        refit = _refit_matrix(divergence, family, some, found)
        if refit is None:
            return None
        draws = (refit(rows.draw(_AMOUNT).of(features)) for _ in range(_DRAWS))
        part = settled.scale[np.ix_(kept, kept)], settled.offset[kept]
        n_units = rows.parcels.fewest / len(pair.weights)
        errors = _drawn(refit(None), draws, part, n_units)
    except np.linalg.LinAlgError:
        return None
    return errors if kept.all() else JoinedErrors(d, ((features, errors),))


def _drawn(plain: _Map, draws: Iterator[_Map], settled: _Map, n_units: float) -> DrawnErrors:
    """Return errors from maps drawn around a plain one, wider for few draws and rows."""
    # Student's factor, by the draws and by the rows or subjects of a typical stratum
    dof = 1 / (1 / (_DRAWS - 1) + 1 / max(n_units - 1, 1.0))
    wider = float(stdtrit(dof, 0.975) / ndtri(0.975))
    parts = [np.stack(part) for part in zip(*draws)]
    scales, offsets = (old + wider * (new - old) for old, new in zip(plain, parts))
    return DrawnErrors(scales, offsets, (settled[0] - plain[0], settled[1] - plain[1]))


def _refit_matrix(
    divergence: Any, family: Any, pair: GaussianPair, found: Solution
) -> _Refit | None:
    """Return what finds the map of another pair: in closed form, or by one step from the map."""
    here = found.scale, found.offset
    if divergence.in_closed_form:
        known = replace(pair, skewness=pair.skewness and _remembered(pair.skewness))
        divergence.solve(family, known)

        def solved(other: GaussianPair | None) -> _Map:
            if other is None:
                return here
            there = divergence.solve(family, replace(other, skewness=known.skewness))
            A, b = there.scale - here[0], there.offset - here[1]
            return here[0] + A / _AMOUNT, here[1] + b / _AMOUNT

        return solved
    if len(pair.weights) == 1:  # a rotation is not determined
        return None
    units = Units(pair, family.search.units)
    objective = divergence.matrix_objective(units)
    # penalties and bounds pull the map from the plain one, to which the step leads
    around = AllMatrices if family.is_penalised else family.around
    near = around(*units.encode(*here))
    if objective is None or near.bounds is not None:
        return None
    step = OneStep(objective, near)

    def stepped(other: GaussianPair | None) -> _Map:
        goal = None if other is None else divergence.matrix_objective(units.holding(other))
        return units.decode(*step(goal, _AMOUNT))

    return stepped


def _remembered(skewness: Skewness) -> Skewness:
    """Return skewness along axes near those that are asked for first, without another look."""
    known: list[tuple[Array, ...]] = []

    def near(*axes: Array) -> tuple[Array, Array]:
        if not known:
            known.extend([axes, skewness(*axes)])
        query, reference = (
            value * np.sign((old * new).sum(axis=0))
            for old, new, value in zip(known[0], axes, known[1])
        )
        return query, reference

    return near
