"""Weak points of the data for maps: the same checks for two domains and for many batches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit.checks import Array, Sentence, listing, warn
from condokit.compare.comparison import Comparison
from condokit.conditionals.base import Conditional
from condokit.conditionals.curves import Splines
from condokit.conditionals.kernel import KernelSmoother
from condokit.data.arrays import NORMAL_95, ones_for_zeros, sides
from condokit.data.grouped import GroupedMoments
from condokit.data.study import Study
from condokit.data.subsets import subsample
from condokit.statistics.domains import OTHER_UNITS

FEW_SUBJECTS = 5  # below this, differences between people and between devices look the same
_FEW_ROWS = 5
_FEWEST_SMOOTHED = 10  # rows that a kernel needs in a category; twice as many with each number
_MOST_NAMED = 5  # parts of the rows that a sentence names, at most
_FEWEST_OTHERS = 20  # rows needed to call one of them an outlier
_SORTED_VALUES = 1 << 17  # values that are sorted at a time, to stay in the cache
_ROWS_OF_TYPICAL = 500  # rows from which the typical distance from the median is computed
FAR_AWAY = 50.0  # robust standard deviations


@dataclass(frozen=True)
class WeakPoint:
    """Something that makes maps weak, as a warning or a finding."""

    code: str
    template: str
    fields: dict[str, Any]

    def warn(self) -> None:
        """Warn of this weak point."""
        warn(self.code, self.template, **self.fields)

    @property
    def sentence(self) -> Sentence:
        """The warning as a sentence with fields."""
        return Sentence(self.template, self.fields, self.code)


def warn_weak_points(domains: Study, comparison: Comparison) -> None:
    """Warn of weak points of the data on which the map between two domains rests."""
    support = comparison.support
    for name, counts in (("query", support.count_query), ("reference", support.count_reference)):
        if counts.sum() < _FEW_ROWS:
            text = "Only {n:rows} of the {side} rows can be compared, so the map and its errors "
            warn("few-rows", text + "are guesses.", n=counts.sum(), side=name)
    compared = comparison.place >= 0
    parts = {f"the {name} rows": compared & side for name, side in sides(domains.is_query)}
    for point in weak_points(domains, parts):
        point.warn()


def batch_weak_points(study: Study) -> Iterator[WeakPoint]:
    """Yield weak points of the data on which the maps of many batches rest."""
    kept = study.kept()
    parts = {f"batch {label!r}": kept & (study.code == k) for k, label in enumerate(study.labels)}
    each = study.rows_behind if study.weights is None else study.weights
    if few := [name for name, mine in parts.items() if each[mine].sum() < _FEW_ROWS]:
        text = "Fewer than {least} rows in {where}: maps and errors of so few are guesses."
        yield WeakPoint("few-rows", text, {"least": _FEW_ROWS, "where": _named(few)})
    yield from weak_points(study, parts)
    if study.is_whole and (names := _in_other_units(study, list(parts.values()))):
        text = "Values of {names} are more than {ratio:g} times larger in one batch than in "
        text += "another: are they in the same units?"
        yield WeakPoint("units", text, {"names": listing(names), "ratio": OTHER_UNITS})


def weak_points(study: Study, parts: Mapping[str, Array]) -> Iterator[WeakPoint]:
    """Yield weak points in parts of the rows, one part for each domain in order, by name."""
    table, masks = study.tables[0], list(parts.values())
    if study.gaps is not None and (rare := _fewest_values(study, masks) < _FEW_ROWS).any():
        text = "Mostly missing, with fewer than {least} values of a domain to compare: {names}. "
        text += "Their maps are guesses, and show these few values to all who have the maps."
        names = listing(table.names_of(rare))
        yield WeakPoint("mostly-missing", text, {"least": _FEW_ROWS, "names": names})
    if few := few_subjects(study, parts):
        text = "Fewer than {least} subjects in {where}: what one person or sample has of its own "
        text += "is mixed up with the device, and standard errors do not show it. Add subjects."
        yield WeakPoint("few-subjects", text, {"least": FEW_SUBJECTS, "where": _named(few)})
    found = _outlying_features(study, masks)
    hit = [(where, places) for where, places in zip(parts, found) if len(places)]
    if hit:
        text = "Values of {names} in {where} are more than {far:g} robust standard deviations away "
        text += "from the others, and decide the map alone. Correct or leave out these rows, or "
        text += "transform the feature."
        names = listing(table.take(np.unique(np.concatenate([places for _, places in hit]))).labels)
        where = _named([where for where, _ in hit])
        yield WeakPoint("far-away", text, {"names": names, "where": where, "far": FAR_AWAY})


def _named(parts: list[str]) -> str:
    """Name the first few parts of the rows."""
    last = f"{len(parts) - _MOST_NAMED + 1} others" if len(parts) > _MOST_NAMED else parts[-1]
    return " and ".join(filter(None, [", ".join(parts[: _MOST_NAMED - 1][: len(parts) - 1]), last]))


def warn_of_few_to_smooth(conditional: Conditional, comparison: Comparison, n_numbers: int) -> None:
    """Warn if means and spreads given the confounders are smoothed from very few rows.

    A kernel does not smooth across categories, and each further number makes rows near a point
    rarer; splines are additive, so that each number needs only as many rows more. Below the limits,
    at least one in ten scales of equal domains was off by a factor of 1.65 or more (normal
    features, one to three numbers).
    """
    n_strata, rows = len(comparison.support.weights), comparison.fewest_rows
    if isinstance(conditional, KernelSmoother):
        rows /= n_strata
        fewest = _FEWEST_SMOOTHED * 2**n_numbers if n_numbers or n_strata > 1 else 0
        text = "A kernel smooths within categories, which have about {n} rows of a domain each: "
    else:
        fewest = 2 * _FEWEST_SMOOTHED * n_numbers if isinstance(conditional, Splines) else 0
        text = "Splines of {numbers} continuous confounders have about {n} rows of a domain: "
    if rows < fewest:
        text += "means and spreads of so few are noise, which makes scales wrong. Leave "
        text += "{@`divergence`} and {@`conditional`} to the default, or merge categories."
        warn("few-rows-to-smooth", text, n=round(rows), numbers=n_numbers)


def few_subjects(study: Study, parts: Mapping[str, Array]) -> list[str]:
    """Name the parts of the rows with fewer than five subjects, if subjects are known."""
    if study.groups is None:
        return []
    return [n for n, mine in parts.items() if len(np.unique(study.groups[mine])) < FEW_SUBJECTS]


def _fewest_values(study: Study, parts: Sequence[Array]) -> Array:
    """Return how many values of every feature are known in the part with the fewest."""
    if study.is_whole and study.weights is not None:
        study = replace(study, weights=None)
    known = _gathered(study, parts).n
    return np.broadcast_to(known, (len(parts), study.n_features)).min(axis=0)


def _gathered(study: Study, parts: Sequence[Array]) -> GroupedMoments:
    """Return the moments of parts of the rows."""
    return study.gather(np.select(list(parts), range(len(parts)), -1), len(parts))


def _in_other_units(study: Study, parts: Sequence[Array]) -> list[str]:
    """Name features whose spreads differ so much between parts that units must differ."""
    sd = _gathered(study, parts).sd
    sd = sd[[int(mine.sum()) >= _FEW_ROWS for mine in parts]]
    if len(sd) < 2:
        return []
    low = np.where(sd > 0, sd, np.inf).min(axis=0)
    far = sd.max(axis=0) > OTHER_UNITS * ones_for_zeros(np.where(np.isfinite(low), low, 0.0))
    return [str(name) for name in study.tables[0].names_of(far & np.isfinite(low))]


def _outlying_features(domains: Study, parts: Sequence[Array]) -> list[Array]:
    """Return the features that have a value very far from the others, for each part of the rows.

    A value is far if its distance from the median exceeds `FAR_AWAY` times the 95% quantile of such
    distances over 1.96, which is a robust standard deviation. Medians and quantiles are those of a
    sample of rows. All rows are read only where moments do not rule such a value out.
    """
    if not domains.has_rows:
        return [np.empty(0, dtype=np.intp) for _ in parts]
    found = []
    stats = _gathered(domains, parts)
    for part, mean, fourth in zip(parts, stats.mean, stats.fourth):
        own = np.flatnonzero(part)
        if len(own) < _FEWEST_OTHERS:
            found.append(np.empty(0, dtype=np.intp))
            continue
        sample = domains.rows(own[subsample(len(own), _ROWS_OF_TYPICAL)])
        step = max(8, _SORTED_VALUES // len(sample))
        known = [_typical(sample[:, k : k + step]) for k in range(0, sample.shape[1], step)]
        n, middle, typical = (np.concatenate(tables) for tables in zip(*known))
        limit = np.where(
            (n >= _FEWEST_OTHERS) & (typical > 0), FAR_AWAY / NORMAL_95 * typical, np.inf
        )
        # no value is farther from the mean than the fourth root of the sum of fourth powers
        suspect = np.abs(mean - middle) + fourth**0.25 > limit
        places = np.flatnonzero(suspect)
        far = _farthest(domains.of(places), part, middle[places]) if len(places) else np.zeros(0)
        found.append(places[far > limit[places]])
    return found


def _typical(sample: Array) -> tuple[Array, Array, Array]:
    """Return how many values are known, their median, and the 95% quantile of distances from it."""
    ordered = np.sort(sample, axis=0)  # NaN is last
    n, column = (~np.isnan(ordered)).sum(axis=0), np.arange(ordered.shape[1])
    middle = ordered[(n - 1) // 2, column]
    away = np.abs(ordered - middle)
    away.sort(axis=0)
    return n, middle, away[n - 1 - np.maximum(n // 20, 1), column]


def _farthest(domains: Study, part: Array, middle: Array) -> Array:
    """Return the largest distance of values of every feature from its middle."""
    far = np.zeros(len(middle))
    for rows, chunk in domains.chunks():
        low, high = extremes(chunk[part[rows]])
        far = np.maximum(far, np.maximum(high - middle, middle - low))
    return far


def extremes(X: Array) -> tuple[Array, Array]:
    """Return the lowest and highest known value of every column; low > high where there is none."""
    low, high = X.min(axis=0, initial=np.inf), X.max(axis=0, initial=-np.inf)
    if np.isnan(low).any():  # rare, and slower
        low = np.fmin.reduce(X, axis=0, initial=np.inf)
        high = np.fmax.reduce(X, axis=0, initial=-np.inf)
    return low, high
