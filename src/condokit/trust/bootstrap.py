"""How sure we are of a map: refits to resampled rows, by reweighted moments where possible."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from scipy.special import stdtrit

from condokit.adapter import ConDoAdapter
from condokit.checks import Array, check_integer, check_seed, warn
from condokit.choose import Candidate
from condokit.conditionals.base import moments_from
from condokit.data.arrays import columns, ones_for_zeros, rms
from condokit.data.domains import Domains
from condokit.data.grouped import GroupedMoments, ObservedMoments
from condokit.data.links import check_links
from condokit.data.records import Part, Record, Sheet
from condokit.fit import Recipe, solve_moments
from condokit.io.progress import progress
from condokit.maps.standard_errors import DrawnErrors
from condokit.solvers.lbfgs import threads
from condokit.summaries.moments import cells, paired
from condokit.trust.blocks import read_as_fitted

_MOST_PARCELS = 500  # into which the rows of a cell are dealt, to be resampled
_FEWEST_DRAWS = 20
_LEVEL = 0.95
_OTHER_MODE = 0.5  # of the size of a matrix, beyond which a draw found another one
_Draw = tuple[Array, Array]  # scale or matrix, and offset
_Draws = Iterator[_Draw | None]  # None if a refit failed


@dataclass(frozen=True, repr=False)
class Bootstrap(Record):
    """Standard errors and intervals of a map from resampled rows; see `bootstrap`."""

    # maps that were refitted, and those that could not be
    n_resamples: int
    n_failed: int
    # of a diagonal map: scale and offset of every feature with standard errors and 95% intervals.
    # Of a matrix: the standard error of the image of the query's mean
    features: Sheet
    # root mean squared change of the matrix relative to its size, in standard units; of a diagonal
    # map the same of its scales
    stability: float
    # share of refits that are more than half the size of the matrix away: another solution
    other_modes: float
    errors: DrawnErrors = field(metadata={"private": True})  # the maps. Not printed

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
    those of both domains for both at once. Diagonal maps over strata are refitted from reweighted
    moments of at most 500 random parcels of rows in every cell, without another look at the rows;
    other maps from weighted rows. What is refitted is the plain estimate; a pull to the identity
    counts as an error of its own. The adapter's `map_se_` and `transform(X, return_std=True)` use
    the result from then on.

    Parameters
    ----------
    adapter : ConDoAdapter
        A fitted adapter; the map that it chose is refitted, the choice is not repeated.
    X, domain, confounders, features, groups, sample_weight
        The table that it was fitted on, as in `ConDoAdapter.fit`; or its `Domains` as X.
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
    >>> bootstrap(adapter, df, **roles).n_resamples
    200
    """
    domains = read_as_fitted(adapter, X, domain, confounders, features, groups, sample_weight)
    check_integer("n_resamples", n_resamples, _FEWEST_DRAWS)
    seed = check_seed(random_state)
    if "pairs" in adapter.report_:
        raise ValueError("A map that was refined by pairs cannot be refitted without them.")
    chosen, recipe = adapter.chosen_, adapter.chosen_.recipe
    is_diagonal = recipe.family.form == "diagonal" and not chosen.parts
    domains = replace(domains, links=check_links(recipe.family.links, domains.tables[0].labels))
    if is_diagonal and recipe.needs == "moments" and not recipe.conditional.is_smooth:
        draws = _by_moments(domains, recipe, n_resamples, seed)
    else:
        plain = replace(recipe, shrinkage=None, averages=False) if is_diagonal else recipe
        draws = _by_rows(domains, replace(chosen, recipe=plain), n_resamples, seed, n_jobs)
    with threads(1):
        found, n_failed = _gathered(draws, n_resamples, verbose)
    affine, (scales, offsets) = adapter.map_, (np.stack(part) for part in zip(*found))
    # the first is the plain map of all rows
    pull = (affine.scale - scales[0], affine.offset - offsets[0]) if is_diagonal else None
    errors = DrawnErrors(scales[1:], offsets[1:], pull)
    result = _summary(adapter, domains, errors, n_failed)
    adapter.errors_ = errors
    return result


def _gathered(draws: _Draws, n_resamples: int, verbose: bool) -> tuple[list[_Draw], int]:
    """Collect refits and count those that failed, with progress and ready for Ctrl-C."""
    found: list[_Draw] = []
    n_tried = 0
    try:
        with progress("refits", n_resamples + 1, verbose) as advance:
            for n_tried, draw in enumerate(draws, start=1):
                found += [] if draw is None else [draw]
                advance(n_tried, "")
    except KeyboardInterrupt:
        if len(found) < _FEWEST_DRAWS:
            raise
        warn("interrupted", "Interrupted: errors come from {n} refits.", UserWarning, n=len(found))
    if len(found) < _FEWEST_DRAWS:
        what = f"{len(found)} of {n_resamples} refits to resampled rows succeeded"
        raise ValueError(f"Only {what}: there are too few rows for this map.")
    return found, n_tried - len(found)


@dataclass(frozen=True)
class _Units:
    """What is drawn with replacement: rows or parcels of rows in cells, or subjects of domains."""

    number: Array  # the subject, or the number of a parcel
    cell: Array  # that it lies in; those of the query come first
    n_query_cells: int
    are_subjects: bool

    def draw(self, rng: np.random.Generator) -> Array:
        """Return how often every one is drawn."""
        kind, place = self.cell, np.arange(len(self.cell))
        if self.are_subjects:  # one of both domains is drawn for both: what is common cancels
            subjects, place = np.unique(self.number, return_inverse=True)
            kind, is_query = np.zeros(len(subjects), dtype=int), self.cell < self.n_query_cells
            kind[place[is_query]] += 1
            kind[place[~is_query]] += 2
        times = np.zeros(len(kind))
        for k in np.unique(kind):
            n = int((kind == k).sum())
            # one fewer than there are: the variance of their mean is unbiased
            times[kind == k] = rng.multinomial(max(n - 1, 1), np.full(n, 1 / n))
        return times[place]


def _by_moments(domains: Domains, recipe: Recipe, n_resamples: int, seed: int) -> _Draws:
    """Refit from moments of parcels of rows: all of them first, then reweighted."""
    comparison = recipe.compare(domains, quiet=True)
    n_values = len(comparison.support.levels)
    rng = np.random.default_rng(seed)
    parcel, units = _parcels(domains, cells(domains, comparison), n_values, rng)
    kind = GroupedMoments if domains.gaps is None else ObservedMoments
    stats = kind(len(units.cell), domains.n_features)
    for rows, chunk in domains.chunks():
        weights = None if domains.weights is None else domains.weights[rows]
        stats.update(chunk, parcel[rows], weights)
    drawn = np.ones(len(units.cell))
    independent = _merged(stats, units.cell, 2 * n_values, drawn)[0]
    for k in range(n_resamples + 1):
        drawn = units.draw(rng) if k > 0 else drawn
        count, mean, squares = _merged(stats, units.cell, 2 * n_values, drawn)
        if ((count == 0) & (independent > 0)).any():
            yield None
            continue
        # draws are one short of the parcels, rows should count as before
        squares = squares * columns(independent / ones_for_zeros(count))
        query, reference = (
            moments_from(independent[half], mean[half], squares[half], independent[half])
            for half in (slice(None, n_values), slice(n_values, None))
        )
        shared, scaled = recipe.shrinkage == "auto", recipe.family.has_scale
        try:
            pair = paired(query, reference, comparison.weights, shared, scaled)
            found = solve_moments(recipe.family, recipe.divergence, pair)
        except (ValueError, FloatingPointError):
            yield None
            continue
        is_known = np.isfinite(found.scale).all() and np.isfinite(found.offset).all()
        yield (found.scale, found.offset) if is_known else None


def _parcels(domains: Domains, cell: Array, n_values: int, rng: Any) -> tuple[Array, _Units]:
    """Deal the rows of a cell, or subjects, to at most 500 parcels; return each row's, and all."""
    used = np.flatnonzero(cell >= 0)
    if domains.groups is not None:
        unit = rng.permutation(int(domains.groups.max()) + 1)[domains.groups] % _MOST_PARCELS
    else:
        unit = np.zeros(len(cell), dtype=np.int64)
        for c in np.unique(cell[used]):
            rows = used[cell[used] == c]
            unit[rows] = rng.permutation(len(rows)) % _MOST_PARCELS
    crossed = cell[used].astype(np.int64) * _MOST_PARCELS + unit[used]
    parcel = np.full(len(cell), -1, dtype=np.int64)
    distinct, parcel[used] = np.unique(crossed, return_inverse=True)
    cell_of_parcel, number = np.divmod(distinct, _MOST_PARCELS)
    return parcel, _Units(number, cell_of_parcel, n_values, domains.groups is not None)


def _merged(stats: GroupedMoments, cell: Array, n_cells: int, drawn: Array) -> tuple[Array, ...]:
    """Return count, mean and sum of squares of cells from parcels that count so often."""
    count = np.zeros((n_cells, *stats.count.shape[1:]))
    mean, squares = np.zeros((2, n_cells, stats.mean.shape[1]))
    for c in np.unique(cell[drawn > 0]):
        mine = np.flatnonzero((cell == c) & (drawn > 0))
        n = (stats.count[mine].T * drawn[mine]).T
        count[c] = n.sum(axis=0)
        centred = stats.mean[mine] - stats.mean[mine[0]]
        middle = (columns(n) / ones_for_zeros(count[c]) * centred).sum(axis=0)
        mean[c] = stats.mean[mine[0]] + middle
        within = (drawn[mine, None] * stats.squares[mine]).sum(axis=0)
        squares[c] = within + (columns(n) * (centred - middle) ** 2).sum(axis=0)
    return count, mean, squares


def _by_rows(
    domains: Domains, chosen: Candidate, n_resamples: int, seed: int, n_jobs: int | None
) -> _Draws:
    """Refit from all rows and from reweighted ones, in parallel if asked."""
    comparison = chosen.recipe.compare(domains, quiet=True)
    cell = cells(domains, comparison)
    used = np.flatnonzero(cell >= 0)
    number = used if domains.groups is None else domains.groups[used]
    units = _Units(number, cell[used], len(comparison.support.levels), domains.groups is not None)
    seeds = [None, *np.random.SeedSequence(seed).spawn(n_resamples)]
    jobs = (delayed(_refit_rows)(domains, chosen, used, units, seed) for seed in seeds)
    yield from Parallel(n_jobs=n_jobs or 1, return_as="generator")(jobs)


def _refit_rows(
    domains: Domains, chosen: Candidate, used: Array, units: _Units, seed: Any
) -> _Draw | None:
    """Refit to the rows used as often as they are drawn; once each without a seed."""
    weights = np.zeros(len(domains.is_query))
    weights[used] = 1.0 if seed is None else units.draw(np.random.default_rng(seed))
    weights *= 1.0 if domains.weights is None else domains.weights
    try:
        affine = chosen.refit(replace(domains, weights=weights, keep=weights > 0))
    except (ValueError, FloatingPointError, np.linalg.LinAlgError):
        return None
    return (affine.scale if affine.kind == "diagonal" else affine.A), affine.offset


def _summary(
    adapter: ConDoAdapter, domains: Domains, errors: DrawnErrors, n_failed: int
) -> Bootstrap:
    affine, n_draws = adapter.map_, len(errors.offsets)
    mean, sd = affine.fitted_on.mean[None], ones_for_zeros(affine.fitted_on.sd)  # type: ignore[union-attr]
    is_matrix = affine.kind != "diagonal"
    matrix = affine.A if is_matrix else affine.scale
    # entries in units that make every feature's spread one
    unit = sd / sd[:, None] if is_matrix else np.ones(len(sd))
    change = (errors.scales - errors.scales.mean(axis=0)) * unit
    size = np.sqrt(np.sum((matrix * unit) ** 2))
    moved = np.sqrt(np.sum(change.reshape(n_draws, -1) ** 2, axis=1)) / max(size, 1e-300)
    if is_matrix:
        figures = {"image_of_mean": affine.linear(mean)[0], "se": errors.std(mean)[0]}
    else:
        figures = _intervals(adapter, errors)
    other_modes = float(np.mean(moved > _OTHER_MODE)) if is_matrix else 0.0
    features = Sheet({"feature": domains.tables[0].labels, **figures})
    return Bootstrap(n_draws, n_failed, features, rms(moved), other_modes, errors)


def _intervals(adapter: ConDoAdapter, errors: DrawnErrors) -> dict[str, Array]:
    """Return scales and offsets with standard errors and 95% intervals; scales stay positive."""
    affine, support = adapter.map_, adapter.support_
    rows = support.count_query.sum() + support.count_reference.sum()
    dof = max(float(rows) - 2 * len(support.weights), 1.0)
    reach = float(stdtrit(dof, 0.5 + _LEVEL / 2))
    log = errors.scale / ones_for_zeros(np.abs(affine.scale))
    return {
        "scale": affine.scale,
        "scale_se": errors.scale,
        "scale_low": affine.scale * np.exp(-reach * log),
        "scale_high": affine.scale * np.exp(reach * log),
        "offset": affine.offset,
        "offset_se": errors.offset,
        "offset_low": affine.offset - reach * errors.offset,
        "offset_high": affine.offset + reach * errors.offset,
    }
