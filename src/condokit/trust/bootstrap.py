"""Bootstrap: standard errors of a map from refits to resampled rows."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from scipy.special import stdtrit

from condokit.adapter import ConDoAdapter
from condokit.batches.adapter import BatchAdapter
from condokit.batches.estimate import find_maps
from condokit.checks import Array, check_integer, check_seed, quietly, refusal, warn
from condokit.data.arrays import ones_for_zeros, rms
from condokit.data.links import check_links
from condokit.data.noise import recalibrated
from condokit.data.records import Part, Record, Sheet
from condokit.data.study import Study
from condokit.fit.choose import Candidate
from condokit.fit.fit_map import Recipe, solve_moments
from condokit.io.progress import progress
from condokit.maps.families import LocationScale
from condokit.maps.standard_errors import CurveErrors, StandardErrors, beside_knots, drawn
from condokit.solvers.lbfgs import threads
from condokit.summaries.moments import cells
from condokit.summaries.resampled import Parcels, ResampledMoments
from condokit.trust.blocks import read_as_fitted

_MOST_PARCELS = 500  # groups of rows in a cell; where moments suffice, groups are resampled
_FEWEST_DRAWS = 20  # successful refits
_LEVEL = 0.95  # of intervals
_OTHER_MODE = 0.5  # change relative to a matrix's size, beyond which a refit found another optimum
_FAILURES = (ValueError, FloatingPointError, np.linalg.LinAlgError)
_Draw = tuple[Array, Array]  # scale or matrix, and offset
_Draws = Iterator[_Draw | None]  # None if a refit failed


@dataclass(frozen=True, repr=False)
class Bootstrap(Record):
    """Standard errors and intervals of a map from resampled rows; see `bootstrap`."""

    n_resamples: int  #: Maps that were refitted.
    n_failed: int  #: Those that could not be.
    #: Of a diagonal map: scale and offset of every feature with standard errors and 95% intervals.
    #: Of a matrix, or of curves: the standard error of the image of the query's mean.
    features: Sheet
    #: Root mean squared change of the matrix relative to its size, in standard units; of a diagonal
    #: map the same of its scales, of curves that of their values relative to their range.
    stability: float
    #: Share of refits that are more than half the size of the matrix away: another solution.
    other_modes: float
    #: The errors of the map, which the adapter has from then on. Not printed.
    errors: StandardErrors = field(metadata={"private": True})

    def parts(self) -> list[Part]:  # noqa: D102
        text = f"{self.n_resamples} refits to resampled rows"
        text += f" ({self.n_failed} more failed)." if self.n_failed else "."
        text += f" Scales or matrix entries vary by {self.stability:.1%} of their size"
        if self.other_modes > 0:
            text += f", and {self.other_modes:.0%} of the refits found another solution"
        return [("", f"{text}."), ("By feature", self.features)]


def bootstrap(
    adapter: ConDoAdapter | BatchAdapter,
    X: Any,
    *,
    domain: Any = None,
    batch: Any = None,
    bridge: Any = None,
    confounders: Any = None,
    features: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    n_resamples: int = 200,
    n_jobs: int | None = None,
    verbose: bool = False,
    random_state: int | None = None,
) -> Any:
    """Estimate the standard errors of a fitted map by the bootstrap.

    Rows are drawn with replacement within each stratum of each domain. With `groups`, whole
    subjects are drawn; one with rows in both domains is drawn for both at once. Diagonal maps of
    strata are refitted from moments: the rows of each stratum and domain are dealt to at most 500
    random groups, and the moments of groups are reweighted, which is fast. Other maps are refitted
    to weighted rows. The plain estimate is refitted, without shrinkage; the distance by which
    shrinkage moved the map is added to its errors as a bias. The adapter's `map_se_` and
    `transform(X, return_std=True)` use the result from then on.

    Parameters
    ----------
    adapter : ConDoAdapter or BatchAdapter
        A fitted adapter. The kind of map that it chose is refitted; the choice is not repeated.
    X, domain
        The table that the adapter was fitted on, as in `ConDoAdapter.fit`; X may be its `Study`.
    batch, bridge : array-like of shape (n_rows,) or str, default=None
        For a `BatchAdapter`, in place of `domain`; as in `BatchAdapter.fit`.
    confounders, features, groups, sample_weight
        As in the fit of the adapter.
    n_resamples : int, default=200
        Number of refits.
    n_jobs : int or None, default=None
        Number of processes for maps that are refitted to rows: None is 1, -1 is one per processor.
    verbose : bool, default=False
        Whether to show progress on the error stream. Ctrl-C ends with the refits so far.
    random_state : int or None, default=None
        Seed of the resampling; None is 0.

    Returns
    -------
    Bootstrap or dict
        Standard errors, intervals and stability of the map; for a `BatchAdapter`, the standard
        errors by batch.

    Examples
    --------
    >>> from condokit import ConDoAdapter, bootstrap, datasets
    >>> df = datasets.make_eeg(100, 100, random_state=0).to_frame()
    >>> roles = {"domain": "device", "confounders": "seizure", "features": ["*F3", "*F4"]}
    >>> adapter = ConDoAdapter(reference="v1").fit(df, **roles)
    >>> found = bootstrap(adapter, df, **roles, n_resamples=20)
    >>> found.n_resamples, list(found.features.columns)[:3]
    (20, ['feature', 'scale', 'scale_se'])
    """
    check_integer("n_resamples", n_resamples, _FEWEST_DRAWS)
    seed = check_seed(random_state)
    if isinstance(adapter, BatchAdapter):
        study = adapter.read_as_fitted(X, batch, confounders, groups, sample_weight, bridge)
        return _of_batches(adapter, study, n_resamples, seed, verbose)
    domains = read_as_fitted(adapter, X, domain, confounders, features, groups, sample_weight)
    if not domains.is_whole:
        raise refusal(
            "bootstrap resamples rows, which must all be in memory. Collect {@`X`} first."
        )
    if "pairs" in adapter.report_:
        raise ValueError("A map that was refined by pairs cannot be refitted without them.")
    chosen, recipe, fitted = adapter.chosen_, adapter.chosen_.recipe, adapter.map_
    curves = fitted if fitted.kind == "monotone" else None
    if curves is None and recipe.family.form == "monotone":  # no line was bent, nor is one now
        recipe = replace(recipe, family=LocationScale(recipe.family.links))
        chosen = replace(chosen, recipe=recipe)
    is_line = recipe.family.form == "diagonal"
    is_diagonal = fitted.kind == "diagonal" and is_line and not chosen.parts
    in_strata = recipe.needs == "moments" and not recipe.conditional.is_smooth
    if is_diagonal and in_strata and domains.gaps is None:
        draws = _by_moments(domains, recipe, n_resamples, seed)
    else:
        if is_diagonal or curves is not None:
            chosen = replace(chosen, recipe=replace(recipe, shrinkage=None, sparing=False))
        draws = _by_rows(domains, chosen, n_resamples, seed, n_jobs, curves)
    with threads(1):
        alike = (draw if curves is not None else _alike(draw, fitted.kind) for draw in draws)
        found, n_failed = _gathered(alike, n_resamples, verbose)
    # the first refit is the plain map (without shrinkage) of all rows
    first, second = (np.stack(part) for part in zip(*found))
    if curves is not None:
        errors, figures, moved = _errors_of_curves(curves, first, second)
    else:
        pull = (fitted.scale - first[0], fitted.offset - second[0]) if is_diagonal else None
        errors, figures, moved = _errors_of_lines(adapter, first[1:], second[1:], pull)
    is_matrix = fitted.kind not in ("diagonal", "monotone")
    other_modes = float(np.mean(moved > _OTHER_MODE)) if is_matrix else 0.0
    adapter.errors_ = errors
    features = Sheet({"feature": domains.tables[0].labels, **figures})
    return Bootstrap(len(first) - 1, n_failed, features, rms(moved), other_modes, errors)


def _errors_of_curves(
    curves: Any, values: Array, slopes: Array
) -> tuple[StandardErrors, dict[str, Array], Array]:
    """Return standard errors at the knots, a table of features, and changes relative to the range.

    `values` (1 + n_resamples, n_features, n_knots) and `slopes` are of refits, all rows first.
    """
    error = np.hypot(values[1:].std(axis=0, ddof=1), curves.values - values[0])
    growth = np.hypot(slopes[1:].std(axis=0, ddof=1), curves.slopes - slopes[0])
    errors = CurveErrors(curves.knots, error, growth, is_drawn=True)
    mean = curves.fitted_on.mean[None]
    figures = {"change": (curves.without_links(mean) - mean)[0], "se": errors.std(mean)[0]}
    wide = np.ptp(curves.values, axis=1)[:, None]
    return errors, figures, (values[1:] - values[1:].mean(axis=0)) / wide


def _of_batches(
    adapter: BatchAdapter, study: Study, n_resamples: int, seed: int, verbose: bool
) -> dict[Any, StandardErrors]:
    """Refit the maps of all batches to resampled rows, and store their errors in the adapter."""
    _, reference, paths, _ = adapter.graph(study)
    if adapter.reference_ == "consensus":
        raise ValueError("Maps to a consensus cannot be refitted; name a reference.")
    if any(one.kind == "monotone" for one in adapter.maps_.values()):
        raise ValueError("Curves of many batches cannot be refitted; `errors_` come with the fit.")
    plain = adapter.one_adapter().set_params(shrinkage=None)
    strata, rng = study.strata(), np.random.default_rng(seed)
    cell = np.where(strata.codes < 0, -1, study.code * len(strata.levels) + strata.codes)
    used = np.flatnonzero(cell >= 0)
    # samples of several batches, and subjects, are drawn as a whole
    unit = used if study.groups is None else study.groups[used]
    unit = np.where(study.bridge[used] >= 0, unit.max() + 1 + study.bridge[used], unit)
    parcels = Parcels(unit, cell[used], int(cell.max()) + 1, len(np.unique(unit)) < len(unit))
    others = [b for b in paths if b != reference]

    def draws() -> _Draws:
        for k in range(n_resamples + 1):
            times = parcels.draw(rng) if k > 0 else 1.0
            try:
                with quietly():
                    again = _reweighted(study, used, times)
                    maps, _, _ = find_maps(again, plain, reference, paths, adapter.report_.joint)
            except _FAILURES:
                yield None
                continue
            made = [maps[b] for b in others]
            yield np.stack([_entries(one) for one in made]), np.stack([one.offset for one in made])

    found, _ = _gathered(draws(), n_resamples, verbose)
    scales, offsets = (np.stack(part) for part in zip(*found))
    errors: dict[Any, StandardErrors] = {}
    for place, b in enumerate(others):
        affine = adapter.maps_[study.labels[b]]
        pull = _entries(affine) - scales[0, place], affine.offset - offsets[0, place]
        errors[study.labels[b]] = drawn(scales[1:, place], offsets[1:, place], pull)
    adapter.errors_ = {**adapter.errors_, **errors}
    return errors


def _gathered(draws: _Draws, n_resamples: int, verbose: bool) -> tuple[list[_Draw], int]:
    """Collect refits and count failed ones; show progress, and stop early at Ctrl-C."""
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


def _by_moments(domains: Study, recipe: Recipe, n_resamples: int, seed: int) -> _Draws:
    """Yield refits from moments of groups of rows: of all rows first, then reweighted."""
    domains = replace(domains, links=check_links(recipe.family.links, domains.tables[0].labels))
    comparison, rng = recipe.compare(domains, quiet=True), np.random.default_rng(seed)
    shared, scaled = recipe.shrinkage == "auto", recipe.family.has_scale
    rows = ResampledMoments(domains, comparison, shared, scaled, rng, _MOST_PARCELS)
    for k in range(n_resamples + 1):
        drawn = rows.parcels.draw(rng) if k > 0 else np.ones(len(rows.parcels.cell))
        try:
            found = solve_moments(recipe.family, recipe.divergence, rows.pair(drawn))
        except _FAILURES:
            yield None
            continue
        is_known = np.isfinite(found.scale).all() and np.isfinite(found.offset).all()
        yield (found.scale, found.offset) if is_known else None


def _by_rows(
    domains: Study,
    chosen: Candidate,
    n_resamples: int,
    seed: int,
    n_jobs: int | None,
    curves: Any = None,
) -> _Draws:
    """Yield refits to rows: to all of them first, then reweighted; in parallel if asked."""
    comparison = chosen.recipe.compare(domains, quiet=True)
    cell = cells(domains, comparison)
    used = np.flatnonzero(cell >= 0)
    number = used if domains.groups is None else domains.groups[used]
    units = Parcels(number, cell[used], len(comparison.support.levels), domains.groups is not None)
    seeds = [None, *np.random.SeedSequence(seed).spawn(n_resamples)]
    jobs = (delayed(_refit_rows)(domains, chosen, used, units, seed, curves) for seed in seeds)
    yield from Parallel(n_jobs=n_jobs or 1, return_as="generator")(jobs)


def _refit_rows(
    domains: Study, chosen: Candidate, used: Array, units: Parcels, seed: Any, curves: Any
) -> _Draw | None:
    """Refit to rows weighted by how often they are drawn; without a seed, to each row once.

    Given curves, return the values of the refit at their knots, and its slopes beyond these.
    """
    times = 1.0 if seed is None else units.draw(np.random.default_rng(seed))
    try:
        affine = chosen.refit(_reweighted(domains, used, times))
    except _FAILURES:
        return None
    if curves is not None:
        return beside_knots(affine.without_links, curves.knots)
    return _entries(affine), affine.offset


def _entries(affine: Any) -> Array:
    """Return the scales of a diagonal map (n_features,), or the matrix of another."""
    return affine.scale if affine.kind == "diagonal" else affine.A


def _alike(draw: _Draw | None, kind: str) -> _Draw | None:
    """Return a refit in the form of the fitted map, if possible; None if it is a matrix instead."""
    if draw is None or draw[0].ndim == (1 if kind == "diagonal" else 2):
        return draw
    return None if kind == "diagonal" else (np.diag(draw[0]), draw[1])


def _reweighted(domains: Study, used: Array, times: Array | float) -> Study:
    """Return the domains with weighted rows; regression calibration is done again with these."""
    weights = np.zeros(len(domains.is_query))
    weights[used] = times
    weights *= 1.0 if domains.weights is None else domains.weights
    return recalibrated(replace(domains, weights=weights, keep=weights > 0))


def _errors_of_lines(
    adapter: ConDoAdapter, scales: Array, offsets: Array, pull: Any
) -> tuple[StandardErrors, dict[str, Array], Array]:
    """Return standard errors, a table of features, and the relative change of each refit.

    The change is the Frobenius norm over that of the map, in standard units.
    """
    affine, errors = adapter.map_, drawn(scales, offsets, pull)
    mean, sd = affine.fitted_on.mean[None], ones_for_zeros(affine.fitted_on.sd)
    if affine.kind == "diagonal":
        figures, entries, unit = _intervals(adapter, errors), affine.scale, np.ones(len(sd))
    else:
        figures = {"image_of_mean": affine.without_links(mean)[0], "se": errors.std(mean)[0]}
        # in units that make every feature's spread one
        entries, unit = affine.A, sd / sd[:, None]
    change = (scales - scales.mean(axis=0)) * unit
    size = np.sqrt(np.sum((entries * unit) ** 2))
    moved = np.sqrt(np.sum(change.reshape(len(scales), -1) ** 2, axis=1)) / max(size, 1e-300)
    return errors, figures, moved


def _intervals(adapter: ConDoAdapter, errors: StandardErrors) -> dict[str, Array]:
    """Return scales and offsets with standard errors and 95% intervals by Student's t.

    Intervals of scales are computed for log-scales, so that they stay positive.
    """
    affine, support = adapter.map_, adapter.support_
    rows = support.count_query.sum() + support.count_reference.sum()
    dof = max(float(rows) - 2 * len(support.weights), 1.0)
    reach = float(stdtrit(dof, 0.5 + _LEVEL / 2))
    # limits beyond a factor of 1e13 (exp(30)) mean nothing, and could overflow
    log = np.minimum(errors.scale / ones_for_zeros(np.abs(affine.scale)), 30.0 / reach)
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
