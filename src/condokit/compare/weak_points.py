"""Data on which a map rests too lightly: very few rows, or values far from all others."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from condokit.checks import Array, listing
from condokit.compare.priors import Support
from condokit.data.arrays import sides
from condokit.data.domains import Domains, Strata
from condokit.data.subsets import subsample
from condokit.maps.profile import Profile

_FEW_ROWS = 5
_FEWEST_OTHERS = 20  # rows that it takes to call one of them an outlier
_MOST_ROWS = 2000
_FAR_AWAY = 50.0  # robust standard deviations


def weak_points(
    domains: Domains, strata: Strata, support: Support
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
    known = [(kept & side).sum() - gap for gap, side in zip(domains.gaps or (), both)]
    if known and (rare := np.minimum(*known) < _FEW_ROWS).any():
        yield (
            "mostly-missing",
            "Mostly missing, with fewer than {least} values of a domain to compare: {names}. "
            "Their maps are guesses.",
            {"least": _FEW_ROWS, "names": listing(table.names_of(rare))},
        )
    compared = support.place(strata) >= 0
    for name, side in sides(domains.is_query):
        places = outlying_features(domains, compared & side)
        if len(places):
            yield (
                "far-away",
                "Values of {names} in the {side} rows are more than {far:g} robust standard "
                "deviations away from the others, and decide the map alone. Correct or leave out "
                "these rows, or transform the feature.",
                {"names": listing(table.take(places).labels), "side": name, "far": _FAR_AWAY},
            )


def outlying_features(domains: Domains, side: Array) -> Array:
    r"""Return the features that have a value very far from the others on one side.

    Far from the median, in units of the distance that 19 in 20 rows keep, over its normal value. To
    save sorting, this looks only at features whose extremes are far out in standard deviations of
    at most 2000 rows: with one value at k robust ones among n normal ones, by about :math:`k /
    \sqrt{1 + k^2 / n}`.
    """
    everyone = np.flatnonzero(side)
    if len(everyone) < _FEWEST_OTHERS:
        return np.empty(0, dtype=np.intp)
    sample = domains.rows(everyone[subsample(len(everyone), _MOST_ROWS)])
    profile = Profile.of(sample, len(everyone), with_range=False)
    low = high = profile.mean
    known = np.zeros(domains.n_features)
    for rows, chunk in domains.chunks():
        mine = side[rows]
        X = chunk if mine.all() else chunk[mine]
        if len(X):
            known += len(X) if domains.gaps is None else (~np.isnan(X)).sum(axis=0)
            low, high = np.fmin(low, _least(X)), np.fmax(high, -_least(-X))
    n = np.maximum(len(sample) * (1 - profile.missing), 1.0)
    bound = 0.5 * _FAR_AWAY / np.sqrt(1 + _FAR_AWAY**2 / n)
    far = np.maximum(high - profile.mean, profile.mean - low) > bound * profile.sd
    suspects = np.flatnonzero(far & (known >= _FEWEST_OTHERS))
    if len(suspects) == 0:
        return suspects
    X = np.concatenate([chunk[np.ix_(side[rows], suspects)] for rows, chunk in domains.chunks()])
    distance = np.sort(np.abs(X - np.nanmedian(X, axis=0)), axis=0)  # NaN comes last
    last, column = known[suspects].astype(np.intp) - 1, np.arange(len(suspects))
    inner = last - np.maximum((last + 1) // 20, 1)
    typical, farthest = distance[inner, column] / 1.96, distance[last, column]
    return suspects[(typical > 0) & (farthest > _FAR_AWAY * typical)]


def _least(X: Array) -> Array:
    """Return the least known value of every column."""
    least = X.min(axis=0)
    return np.fmin.reduce(X, axis=0) if np.isnan(least).any() else least
