"""Data on which a map rests too lightly: very few rows, or values far from all others."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from condokit.checks import Array, listing
from condokit.compare.priors import Support
from condokit.data.arrays import sides
from condokit.data.grouped import GroupedMoments
from condokit.data.study import Strata, Study
from condokit.data.subsets import subsample

_FEW_ROWS = 5
_FEWEST_OTHERS = 20  # rows that it takes to call one of them an outlier
_MOST_ROWS = 500  # that tell how far most values are
_FAR_AWAY = 50.0  # robust standard deviations


def weak_points(
    domains: Study, strata: Strata, support: Support
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield code, template and fields of what makes the map unreliable, if anything."""
    table, both = domains.tables[0], (domains.is_query, ~domains.is_query)
    for name, counts in (("query", support.count_query), ("reference", support.count_reference)):
        if counts.sum() < _FEW_ROWS:
            yield (
                "few-rows",
                "Only {n:rows} of the {side} rows can be compared, so the map and its errors are "
                "guesses.",
                {"n": counts.sum(), "side": name},
            )
    kept = domains.kept()
    each = domains.rows_behind
    known = [each[kept & side].sum() - gap for gap, side in zip(domains.gaps or (), both)]
    if known and (rare := np.minimum(*known) < _FEW_ROWS).any():
        yield (
            "mostly-missing",
            "Mostly missing, with fewer than {least} values of a domain to compare: {names}. "
            "Their maps are guesses.",
            {"least": _FEW_ROWS, "names": listing(table.names_of(rare))},
        )
    compared = support.place(strata) >= 0
    names, rows = zip(*((name, compared & side) for name, side in sides(domains.is_query)))
    for name, places in zip(names, outlying_features(domains, rows)):
        if len(places):
            yield (
                "far-away",
                "Values of {names} in the {side} rows are more than {far:g} robust standard "
                "deviations away from the others, and decide the map alone. Correct or leave out "
                "these rows, or transform the feature.",
                {"names": listing(table.take(places).labels), "side": name, "far": _FAR_AWAY},
            )


def outlying_features(domains: Study, parts: Sequence[Array]) -> list[Array]:
    """Return the features that have a value very far from the others, for each part of the rows.

    Far from the median, in units of the distance that 19 in 20 of some rows keep, over its normal
    value. Rows are read where moments do not rule such a value out.
    """
    if not domains.has_rows:
        return [np.empty(0, dtype=np.intp) for _ in parts]
    found = []
    for part, stats in zip(parts, _moments(domains, parts)):
        own = np.flatnonzero(part)
        if len(own) < _FEWEST_OTHERS:
            found.append(np.empty(0, dtype=np.intp))
            continue
        sample = np.sort(domains.rows(own[subsample(len(own), _MOST_ROWS)]), axis=0)
        n, column = (~np.isnan(sample)).sum(axis=0), np.arange(domains.n_features)  # NaN is last
        middle = sample[(n - 1) // 2, column]
        typical = np.sort(np.abs(sample - middle), axis=0)[n - 1 - np.maximum(n // 20, 1), column]
        limit = np.where((n >= _FEWEST_OTHERS) & (typical > 0), _FAR_AWAY / 1.96 * typical, np.inf)
        # no value is farther from the mean than the fourth root of the sum of fourth powers
        suspect = np.abs(stats.mean[0] - middle) + stats.fourth[0] ** 0.25 > limit
        places = np.flatnonzero(suspect)
        far = _farthest(domains.of(places), part, middle[places]) if len(places) else np.zeros(0)
        found.append(places[far > limit[places]])
    return found


def _moments(domains: Study, parts: Sequence[Array]) -> Iterator[GroupedMoments]:
    """Yield the moments of parts of the rows."""
    number = np.select(list(parts), range(len(parts)), -1)
    whole = domains.gather(number, len(parts))
    for k in range(len(parts)):
        part = GroupedMoments(1, domains.n_features)
        part.merge(whole, np.where(np.arange(len(parts)) == k, 0, -1))
        yield part


def _farthest(domains: Study, part: Array, middle: Array) -> Array:
    """Return how far the farthest value of every feature is from its middle."""
    far = np.zeros(len(middle))
    for rows, chunk in domains.chunks():
        away = np.abs(chunk[part[rows]] - middle)
        far = np.fmax(far, np.fmax.reduce(away, axis=0, initial=0.0))
    return far
