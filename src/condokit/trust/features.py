"""What a feature looks like: constant, discrete, bounded, heavy-tailed or mostly missing."""

from collections import defaultdict

import numpy as np

from condokit.checks import Array, said
from condokit.data.disclosure import too_few
from condokit.data.records import Sheet
from condokit.data.study import Study
from condokit.data.subsets import subsample_sides

_MOST_ROWS = 4000  # of a domain that are looked at
_FEWEST_ROWS = 20  # below which nothing is said of a distribution
_HEAVY_TAILS = 20.0  # fourth moment in standard units; 3 is normal, 9 exponential
_FAR_AWAY = 50.0  # robust standard deviations
_SKEWED = 1.5
_FEW_VALUES = 10
_PILE = 0.02  # share of rows at the lowest or highest value
_MOSTLY = 0.5  # share of missing values

ADVICE = {
    "constant": said("It is only shifted; leave it out with {@`features`} if it means nothing."),
    "mostly missing": "Its map rests on few rows.",
    "heavy-tailed": said(
        "A few values decide its map: correct them, or use {@links such as 'log'}."
    ),
    "bounded": said("A scale moves the bound: see {@`links` of LocationScale}, or adapt it apart."),
    "positive and skewed": said("A link keeps it positive: see {@`links` of LocationScale}."),
    "discrete": "Mapped values will not be whole numbers or codes.",
}


def describe_features(domains: Study) -> Sheet:
    """Return what is remarkable about features in at most 4000 rows of a domain, and why."""
    kept, labels = domains.kept(), domains.tables[0].labels
    rows = np.sort(subsample_sides(domains.is_query, _MOST_ROWS, kept))
    X, is_query = domains.rows(rows), domains.is_query[rows]
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name, everyone in (("query", domains.is_query), ("reference", ~domains.is_query)):
        part = X[everyone[rows]]
        absent = np.isnan(part).mean(axis=0)
        for j in np.flatnonzero(absent > _MOSTLY):
            much = "nearly all" if too_few((1 - absent[j]) * len(part)) else f"{absent[j]:.0%}"
            found[labels[j]]["mostly missing"] = f"{much} missing in {name}"
        for j in _constant(domains, everyone & kept, part):
            found[labels[j]]["constant"] = f"one value in {name}"
    for label, x in zip(labels, X.T):
        if "constant" not in found[label]:
            found[label] |= _distribution(x, is_query)
    notes = [(label, *note) for label, notes in found.items() for note in notes.items()]
    return Sheet.of_rows(notes, ("feature", "kind", "because"))


def _constant(domains: Study, side: Array, part: Array) -> Array:
    """Return the features that are constant in all rows of one side, of which we have a part."""
    low, high = _extremes(part)
    suspects = np.flatnonzero(low == high)
    low, high = low[suspects], high[suspects]
    for rows, chunk in domains.chunks() if len(suspects) else ():
        lowest, highest = _extremes(chunk[side[rows]][:, suspects])
        low, high = np.minimum(low, lowest), np.maximum(high, highest)
    return suspects[low == high]


def _extremes(X: Array) -> tuple[Array, Array]:
    """Return the lowest and highest known value of every feature; low > high if there is none."""
    return np.fmin.reduce(X, axis=0, initial=np.inf), np.fmax.reduce(X, axis=0, initial=-np.inf)


def _distribution(x: Array, is_query: Array) -> dict[str, str]:
    """Describe one feature that varies; tails are judged in each domain alone."""
    known = x[~np.isnan(x)]
    if len(known) < _FEWEST_ROWS:
        return {}
    notes: dict[str, str] = {}
    values = np.unique(known)
    if len(values) <= _FEW_VALUES:
        notes["discrete"] = f"{len(values)} different values"
    elif (known == np.round(known)).all() and len(values) < 0.2 * len(known):
        notes["discrete"] = "whole numbers"
    elif (pile := _pile(known, values[0], values[-1])) is not None:
        notes["bounded"] = pile
    for side in (is_query, ~is_query):
        part = x[side & ~np.isnan(x)]
        if len(part) < _FEWEST_ROWS or part.std() == 0:
            continue
        z = (part - part.mean()) / part.std()
        typical = np.sort(np.abs(part - np.median(part)))
        robust = typical[len(part) - 1 - max(len(part) // 20, 1)] / 1.96
        if np.mean(z**4) > _HEAVY_TAILS or (robust > 0 and typical[-1] > _FAR_AWAY * robust):
            notes["heavy-tailed"] = "values far from all others"
        elif part.min() > 0 and np.mean(z**3) > _SKEWED:
            notes["positive and skewed"] = f"skewness {np.mean(z**3):.1f}"
    return notes


def _pile(known: Array, lowest: float, highest: float) -> str | None:
    """Say which end of the values, the highest if both, many rows share."""
    for name, bound in (("highest", highest), ("lowest", lowest)):
        n = (known == bound).sum()
        if n / len(known) >= _PILE and not too_few(n):
            return f"{n / len(known):.0%} of rows at the {name} value"
    return None
