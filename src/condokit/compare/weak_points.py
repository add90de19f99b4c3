"""Data on which a map rests too lightly: very few rows, or values far from all others."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from condokit.checks import Array, listing
from condokit.compare.priors import Support
from condokit.data.arrays import sides
from condokit.data.domains import Domains, Strata
from condokit.data.subsets import subsample

_FEW_ROWS = 5
_FEWEST_OTHERS = 20  # rows that it takes to call one of them an outlier
_MOST_ROWS = 500  # that tell how far most values are
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
    each = np.ones(len(kept))
    if domains.sums is not None:
        each = domains.sums.weights
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


def outlying_features(domains: Domains, parts: Sequence[Array]) -> list[Array]:
    """Return the features that have a value very far from the others, for each part of the rows.

    Far from the median, in units of the distance that 19 in 20 of some rows keep, over its normal
    value. Rows are read once for all parts.
    """
    unknown = domains.sums is not None and not domains.sums.are_rows
    everyone = {k: np.flatnonzero(part) for k, part in enumerate(parts)}
    looked_at = {k: r for k, r in everyone.items() if len(r) >= _FEWEST_OTHERS and not unknown}
    samples, ends = dict[int, Array](), dict[int, tuple[Array, Array]]()
    for k, own in looked_at.items():
        samples[k] = np.sort(domains.rows(own[subsample(len(own), _MOST_ROWS)]), axis=0)
        ends[k] = samples[k][0], samples[k][0]
    for rows, chunk in domains.chunks() if samples else ():
        for k in samples:
            X = chunk[parts[k][rows]]
            if len(X):
                low, high = ends[k]
                ends[k] = np.fmin(low, _least(X)), np.fmax(high, -_least(-X))
    found = [np.empty(0, dtype=np.intp) for _ in parts]
    for k, sample in samples.items():
        n, column = (~np.isnan(sample)).sum(axis=0), np.arange(domains.n_features)  # NaN is last
        middle = sample[(n - 1) // 2, column]
        typical = np.sort(np.abs(sample - middle), axis=0)[n - 1 - np.maximum(n // 20, 1), column]
        farthest = np.maximum(ends[k][1] - middle, middle - ends[k][0])
        enough = (n >= _FEWEST_OTHERS) & (typical > 0)
        found[k] = np.flatnonzero(enough & (farthest > _FAR_AWAY / 1.96 * typical))
    return found


def _least(X: Array) -> Array:
    """Return the least known value of every column."""
    least = X.min(axis=0)
    return np.fmin.reduce(X, axis=0) if np.isnan(least).any() else least
