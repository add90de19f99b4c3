"""How sure we are of a map: refits to resampled rows, by reweighted moments where possible."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from scipy.special import stdtrit

from condokit.adapter import ConDoAdapter
from condokit.checks import Array, check_integer, check_seed, warn
from condokit.conditionals import Moments, Stratified
from condokit.conditionals.strata import moments_from
from condokit.data.arrays import columns, ones_for_zeros, rms
from condokit.data.domains import Domains
from condokit.data.grouped import GroupedMoments, ObservedMoments
from condokit.data.links import check_links
from condokit.data.records import Part, Record, Sheet
from condokit.divergences import MomentDivergence
from condokit.fit import Recipe, fit_quietly, solve_moments
from condokit.maps.families import DiagonalFamily
from condokit.maps.standard_errors import DrawnErrors
from condokit.solvers.lbfgs import threads
from condokit.summaries.moments import cells, paired
from condokit.trust.rereading import in_order, read_again

_MOST_PARCELS = 500  # into which the rows of a cell are dealt, to be resampled
_FEWEST_DRAWS = 20
_LEVEL = 0.95
_OTHER_MODE = 0.5  # of the size of a matrix, beyond which a draw found another one


@dataclass(frozen=True, repr=False)
class Bootstrap(Record):
    """Standard errors and intervals of a map from resampled rows; see `bootstrap`.

    Attributes
    ----------
    n_resamples, n_failed : int
        Maps that were refitted, and those that could not be.
    features : Sheet
        Of a diagonal map: scale and offset of every feature with standard errors and 95% intervals.
        Of a matrix: the standard error of the image of the query's mean.
    stability : float
        Root mean squared change of the matrix relative to its size, in standard units; of a
        diagonal map the same of its scales.
    other_modes : float
        Share of refits that are more than half the size of the matrix away: another solution.
    errors : DrawnErrors
        The maps. Not printed.
    """

    n_resamples: int
    n_failed: int
    features: Sheet
    stability: float
    other_modes: float
    errors: DrawnErrors = field(metadata={"private": True})

    def parts(self) -> list[Part]:  # noqa: D102
        text = f"{self.n_resamples} refits to resampled rows"
        text += f" ({self.n_failed} more failed)." if self.n_failed else "."
        text += f" Scales or matrix entries vary by {self.stability:.1%} of their size"
        if self.other_modes > 0:
            text += f", and {self.other_modes:.0%} of the refits found another solution"
        return [("", f"{text}."), ("By feature", self.features)]


def bootstrap(
    adapter: ConDoAdapter,
    X: Any,
    *,
    domain: Any,
    confounders: Any = None,
    features: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    n_resamples: int = 200,
    n_jobs: int | None = None,
    verbose: bool = False,
    random_state: int | None = None,
) -> Bootstrap:
    """Refit a map to resampled rows, and learn its standard errors.

    Rows are drawn with replacement within strata and domains, subjects (`groups`) within domains,
    those of both domains for both at once.
    Diagonal maps over strata are refitted from reweighted moments of at most 500 random parcels of
    rows in every cell, without another look at the rows; other maps from weighted rows. What is
    refitted is the plain estimate; a pull to the identity counts as an error of its own. The
    adapter's `map_se_` and `transform(X, return_std=True)` use the result from then on.

    Parameters
    ----------
    adapter : ConDoAdapter
        A fitted adapter; the map that it chose is refitted, the choice is not repeated.
    X : array or data frame of shape (n_rows, n_columns)
        The table that it was fitted on.
    domain, confounders, features, groups, sample_weight : array-like, str or list of str
        As in `ConDoAdapter.fit`.
    n_resamples : int, default=200
        Refits.
    n_jobs : int or None, default=None
        Processes for maps that need their rows again: None is 1, -1 all there are.
    verbose : bool, default=False
        Whether to show progress on the error stream. Ctrl-C ends with the refits so far.
    random_state : int or None, default=None
        Seed; None is 0.

    Returns
    -------
    Bootstrap
        Standard errors, intervals and stability.

    Examples
    --------
    >>> from condokit import ConDoAdapter, bootstrap, datasets
    >>> df = datasets.make_eeg(random_state=0).to_frame()
    >>> roles = {"domain": "device", "confounders": ["seizure"], "features": ["eeg_*"]}
    >>> adapter = ConDoAdapter(reference="v1").fit(df, **roles)
    >>> found = bootstrap(adapter, df, **roles)
    >>> found.n_resamples, found.features["feature"][0]
    (200, 'eeg_delta_F3')
    """
    domains = read_again(adapter, X, domain, confounders, features, groups, sample_weight)
    return bootstrap_domains(adapter, domains, n_resamples, n_jobs, verbose, random_state)


def bootstrap_domains(
    adapter: ConDoAdapter,
    domains: Domains,
    n_resamples: int = 200,
    n_jobs: int | None = None,
    verbose: bool = False,
    random_state: int | None = None,
) -> Bootstrap:
    """Refit a map to resampled rows of domains that have been read already."""
    check_integer("n_resamples", n_resamples, _FEWEST_DRAWS)
    seed = check_seed(random_state)
    if "pairs" in adapter.report_:
        raise ValueError("A map that was refined by pairs cannot be refitted without them.")
    domains = in_order(domains, adapter.map_)
    recipe = adapter.chosen_.recipe
    family = recipe.family
    domains = replace(domains, links=check_links(family.links, domains.tables[0].labels))
    if _has_moments(recipe, domains):
        draws = _by_moments(domains, recipe, n_resamples, seed)
    else:
        if isinstance(family, DiagonalFamily):
            recipe = replace(recipe, shrinkage=None, averages=False)
        draws = _by_rows(domains, recipe, n_resamples, seed, n_jobs)
    with threads(1):
        found, n_failed = _gathered(draws, n_resamples, verbose)
    (scale, offset), *others = found  # the first is the plain map of all rows
    affine = adapter.map_
    pull = None
    if isinstance(family, DiagonalFamily):
        pull = affine.scale - scale, affine.offset - offset
    errors = DrawnErrors(np.stack([s for s, _ in others]), np.stack([b for _, b in others]), pull)
    result = _summary(adapter, domains, errors, n_failed)
    adapter.errors_ = errors
    return result


def _has_moments(recipe: Recipe, domains: Domains) -> bool:
    """Tell whether a map is learned from moments of strata alone."""
    return (
        isinstance(recipe.family, DiagonalFamily)
        and isinstance(recipe.divergence, MomentDivergence)
        and type(recipe.conditional) is Stratified
        and not domains.continuous
    )


def _gathered(
    draws: Iterator[tuple[Array, Array] | None], n_resamples: int, verbose: bool
) -> tuple[list[tuple[Array, Array]], int]:
    """Collect refits, with progress and ready for Ctrl-C."""
    found: list[tuple[Array, Array]] = []
    n_failed, shown = 0, 0.0
    try:
        for draw in draws:
            if draw is None:
                n_failed += 1
            else:
                found.append(draw)
            now = time.monotonic()
            if verbose and now - shown > 0.2:
                shown = now
                done = len(found) + n_failed
                sys.stderr.write(f"\rcondokit: {done} of {n_resamples} refits   ")
                sys.stderr.flush()
    except KeyboardInterrupt:
        if len(found) < _FEWEST_DRAWS:
            raise
        warn(
            "interrupted",
            "Interrupted: errors come from {n} refits.",
            UserWarning,
            n=len(found),
        )
    if verbose and shown:
        sys.stderr.write("\n")
    if len(found) < _FEWEST_DRAWS:
        raise ValueError(
            f"Only {len(found)} of {n_resamples} refits to resampled rows succeeded: there are too "
            "few rows for this map."
        )
    return found, n_failed


def _by_moments(
    domains: Domains, recipe: Recipe, n_resamples: int, seed: int
) -> Iterator[tuple[Array, Array] | None]:
    """Refit from moments of parcels of rows: all of them first, then reweighted.

    A cell with G parcels gets G - 1 draws, which makes the variance of its mean unbiased.
    """
    comparison = recipe.compare(domains, quiet=True)
    n_values = len(comparison.support.levels)
    cell = cells(domains, comparison)
    rng = np.random.default_rng(seed)
    parcel, cell_of_parcel, unit_of_parcel = _parcels(domains, cell, rng)
    kind = GroupedMoments if domains.gaps is None else ObservedMoments
    stats = kind(len(cell_of_parcel), domains.n_features)
    for rows, chunk in domains.chunks():
        weights = None if domains.weights is None else domains.weights[rows]
        stats.update(chunk, parcel[rows], weights)
    weights = comparison.weights
    drawn = np.ones(len(cell_of_parcel))
    independent = _merged(stats, cell_of_parcel, 2 * n_values, drawn)[0]
    for k in range(n_resamples + 1):
        if k > 0:
            drawn = _draw(unit_of_parcel, cell_of_parcel, n_values, domains.groups is not None, rng)
        count, mean, squares = _merged(stats, cell_of_parcel, 2 * n_values, drawn)
        if ((count == 0) & (independent > 0)).any():
            yield None
            continue
        # draws are one short of the parcels, rows should count as before
        rescaled = independent / ones_for_zeros(count)
        count, squares = independent, squares * columns(rescaled)
        halves = (slice(None, n_values), slice(n_values, None))
        query, reference = (
            moments_from(count[h], mean[h], squares[h], independent[h]) for h in halves
        )
        yield _refit_moments(recipe, query, reference, weights)


def _refit_moments(
    recipe: Recipe, query: Moments, reference: Moments, weights: Array
) -> tuple[Array, Array] | None:
    try:
        pair = paired(
            query, reference, weights, recipe.shrinkage == "auto", recipe.family.has_scale
        )
        solution = solve_moments(recipe.family, recipe.divergence, pair)
    except (ValueError, FloatingPointError):
        return None
    if not (np.isfinite(solution.scale).all() and np.isfinite(solution.offset).all()):
        return None
    return solution.scale, solution.offset


def _parcels(domains: Domains, cell: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Deal rows to parcels that are drawn as one; return each row's, and each one's cell and unit.

    Without subjects, the rows of a cell go to at most 500 parcels at random, and a parcel is a
    unit. Subjects are dealt to at most 500 units, which have a parcel in every cell.
    """
    used = np.flatnonzero(cell >= 0)
    if domains.groups is None:
        unit = np.zeros(len(cell), dtype=np.int64)
        for c in np.unique(cell[used]):
            rows = used[cell[used] == c]
            unit[rows] = rng.permutation(len(rows)) % _MOST_PARCELS
    else:
        subjects = int(domains.groups.max()) + 1
        unit = rng.permutation(subjects)[domains.groups] % _MOST_PARCELS
    width = _MOST_PARCELS
    distinct, codes = np.unique(
        cell[used].astype(np.int64) * width + unit[used], return_inverse=True
    )
    parcel = np.full(len(cell), -1, dtype=np.int64)
    parcel[used] = codes
    return parcel, distinct // width, distinct % width


def _draw(
    unit: Array, cell: Array, n_values: int, by_subject: bool, rng: np.random.Generator
) -> Array:
    """Return how often every parcel is drawn: within cells, or subjects within domains.

    A subject of both domains is drawn for both, so that what it has in common cancels.
    """
    drawn = np.zeros(len(unit))
    if by_subject:
        units, place = np.unique(unit, return_inverse=True)
        kind, times = np.zeros((2, len(units)), dtype=int)
        kind[place[cell < n_values]] += 1
        kind[place[cell >= n_values]] += 2
        for k in np.unique(kind):
            n = int((kind == k).sum())
            times[kind == k] = rng.multinomial(max(n - 1, 1), np.full(n, 1 / n))
        return times[place].astype(float)
    for c in np.unique(cell):
        mine = np.flatnonzero(cell == c)
        n = len(mine)
        drawn[mine] = rng.multinomial(max(n - 1, 1), np.full(n, 1 / n))
    return drawn


def _merged(
    stats: GroupedMoments, cell: Array, n_cells: int, drawn: Array
) -> tuple[Array, Array, Array]:
    """Return count, mean and sum of squares of cells from parcels that count so often."""
    by_feature = stats.count.ndim == 2
    d = stats.mean.shape[1]
    count = np.zeros((n_cells, d) if by_feature else n_cells)
    mean, squares = np.zeros((2, n_cells, d))
    for c in np.unique(cell):
        mine = np.flatnonzero((cell == c) & (drawn > 0))
        if len(mine) == 0:
            continue
        n = stats.count[mine] * (drawn[mine, None] if by_feature else drawn[mine])
        count[c] = n.sum(axis=0)
        share = columns(n) / ones_for_zeros(n.sum(axis=0))
        first = stats.mean[mine[0]]
        centred = stats.mean[mine] - first
        middle = (share * centred).sum(axis=0)
        mean[c] = first + middle
        weight = columns(n)
        within = (drawn[mine, None] * stats.squares[mine]).sum(axis=0)
        squares[c] = within + (weight * (centred - middle) ** 2).sum(axis=0)
    return count, mean, squares


def _by_rows(
    domains: Domains, recipe: Recipe, n_resamples: int, seed: int, n_jobs: int | None
) -> Iterator[tuple[Array, Array] | None]:
    """Refit from all rows and from reweighted ones, in parallel if asked."""
    comparison = recipe.compare(domains, quiet=True)
    cell = cells(domains, comparison)
    n_values = len(comparison.support.levels)
    used = np.flatnonzero(cell >= 0)
    unit = np.arange(len(used)) if domains.groups is None else domains.groups[used]
    seeds = [None, *np.random.SeedSequence(seed).spawn(n_resamples)]
    jobs = (
        delayed(_refit_rows)(domains, recipe, used, unit, cell[used], n_values, s) for s in seeds
    )
    yield from Parallel(n_jobs=n_jobs or 1, return_as="generator")(jobs)


def _refit_rows(
    domains: Domains,
    recipe: Recipe,
    used: Array,
    unit: Array,
    cell: Array,
    n_values: int,
    seed: np.random.SeedSequence | None,
) -> tuple[Array, Array] | None:
    drawn = np.ones(len(used))
    if seed is not None:
        rng = np.random.default_rng(seed)
        drawn = _draw(unit, cell, n_values, domains.groups is not None, rng)
    weights = np.zeros(len(domains.is_query))
    base = 1.0 if domains.weights is None else domains.weights[used]
    weights[used] = drawn * base
    try:
        fit = fit_quietly(replace(domains, weights=weights, keep=weights > 0), recipe)
    except (ValueError, FloatingPointError, np.linalg.LinAlgError):
        return None
    affine = fit.map
    return (affine.scale if affine.kind == "diagonal" else affine.A), affine.offset


def _summary(
    adapter: ConDoAdapter, domains: Domains, errors: DrawnErrors, n_failed: int
) -> Bootstrap:
    affine = adapter.map_
    names = domains.tables[0].labels
    n_draws = len(errors.offsets)
    middle, sd = affine.fitted_on.mean, ones_for_zeros(affine.fitted_on.sd)  # type: ignore[union-attr]
    matrix = affine.scale if affine.kind == "diagonal" else affine.A
    # entries in units that make every feature's spread one
    unit = np.ones(len(sd)) if matrix.ndim == 1 else sd / sd[:, None]
    change = (errors.scales - errors.scales.mean(axis=0)) * unit
    size = np.sqrt(np.sum((matrix * unit) ** 2))
    moved = np.sqrt(np.sum(change.reshape(n_draws, -1) ** 2, axis=1)) / max(size, 1e-300)
    if matrix.ndim == 1:
        support = adapter.support_
        rows = support.count_query.sum() + support.count_reference.sum()
        dof = max(float(rows) - 2 * len(support.weights), 1.0)
        reach = float(stdtrit(dof, 0.5 + _LEVEL / 2))
        log = errors.scale / ones_for_zeros(np.abs(matrix))
        sheet = Sheet(
            {
                "feature": names,
                "scale": matrix.tolist(),
                "scale_se": errors.scale.tolist(),
                "scale_low": (matrix * np.exp(-reach * log)).tolist(),
                "scale_high": (matrix * np.exp(reach * log)).tolist(),
                "offset": affine.offset.tolist(),
                "offset_se": errors.offset.tolist(),
                "offset_low": (affine.offset - reach * errors.offset).tolist(),
                "offset_high": (affine.offset + reach * errors.offset).tolist(),
            }
        )
    else:
        image = errors.std(middle[None])[0]
        sheet = Sheet(
            {
                "feature": names,
                "image_of_mean": affine.linear(middle[None])[0].tolist(),
                "se": image.tolist(),
            }
        )
    return Bootstrap(
        n_draws,
        n_failed,
        sheet,
        rms(moved),
        float(np.mean(moved > _OTHER_MODE)) if matrix.ndim == 2 else 0.0,
        errors,
    )
