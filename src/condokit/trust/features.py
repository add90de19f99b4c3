"""What a feature looks like: constant, discrete, bounded, heavy-tailed or mostly missing."""

from __future__ import annotations

import numpy as np

from condokit.checks import Array
from condokit.data.disclosure import MIN_CELL
from condokit.data.domains import Domains
from condokit.data.subsets import subsample

_MOST_ROWS = 4000  # of a domain that are looked at
_FEWEST_ROWS = 20  # below which nothing is said of a distribution
_HEAVY_TAILS = 20.0  # fourth moment in standard units; 3 is normal, 9 exponential
_FAR_AWAY = 50.0  # robust standard deviations
_SKEWED = 1.5
_FEW_VALUES = 10
_PILE = 0.02  # share of rows at the lowest or highest value
_MOSTLY = 0.5  # share of missing values

ADVICE = {
    "constant": "It is only shifted; leave it out with `features` if it means nothing.",
    "mostly missing": "Its map rests on few rows.",
    "heavy-tailed": "A few values decide its map: correct them, or use links such as 'log'.",
    "bounded": "A scale moves the bound: see `links`, or adapt it apart.",
    "positive and skewed": "A link keeps it positive: LocationScale(links={...: 'log'}).",
    "discrete": "Mapped values will not be whole numbers or codes.",
}


def sample_of(domains: Domains, most: int = _MOST_ROWS) -> tuple[Array, Array]:
    """Return at most so many rows of each domain, evenly taken, and which of them are query's."""
    kept = domains.kept()
    chosen = []
    for side in (domains.is_query, ~domains.is_query):
        rows = np.flatnonzero(side & kept)
        chosen.append(rows[subsample(len(rows), most)])
    rows = np.sort(np.concatenate(chosen))
    X = np.empty((len(rows), domains.n_features))
    for place, chunk in domains.chunks():
        first, last = np.searchsorted(rows, [place.start, place.stop])
        X[first:last] = chunk[rows[first:last] - place.start]
    return X, domains.is_query[rows]


def describe_features(domains: Domains) -> dict[str, dict[str, str]]:
    """Return what is remarkable about features: {feature: {kind: explanation}}.

    Looks at no more than 4000 rows of each domain; only a suspected constant is read in full.
    """
    X, is_query = sample_of(domains)
    labels = domains.tables[0].labels
    found: dict[str, dict[str, str]] = {}
    missing = np.isnan(X)
    for name, side in (("query", is_query), ("reference", ~is_query)):
        absent = missing[side].mean(axis=0)
        for j in np.flatnonzero(absent > _MOSTLY):
            few = (1 - absent[j]) * side.sum() < MIN_CELL
            much = "nearly all" if few else f"{absent[j]:.0%}"
            found.setdefault(labels[j], {})["mostly missing"] = f"{much} missing in {name}"
        low, high = _extremes(X[side])
        flat = np.flatnonzero(low == high)
        still = flat[_stay_flat(domains, side_rows(domains, name), flat)]
        for j in still:
            found.setdefault(labels[j], {})["constant"] = f"one value in {name}"
    if len(X) < _FEWEST_ROWS:
        return found
    for label, x in zip(labels, X.T):
        if "constant" not in found.get(label, {}):
            notes = _distribution(x, is_query)
            if notes:
                found.setdefault(label, {}).update(notes)
    return found


def side_rows(domains: Domains, name: str) -> Array:
    """Mark the kept rows of one domain."""
    return domains.kept() & (domains.is_query if name == "query" else ~domains.is_query)


def _extremes(X: Array) -> tuple[Array, Array]:
    """Return the lowest and highest known value of every feature; NaN if there is none."""
    low = np.where(np.isnan(X), np.inf, X).min(axis=0, initial=np.inf)
    high = np.where(np.isnan(X), -np.inf, X).max(axis=0, initial=-np.inf)
    return np.where(low > high, np.nan, low), np.where(low > high, np.nan, high)


def _stay_flat(domains: Domains, side: Array, suspects: Array) -> Array:
    """Tell which suspected constants are constant in all rows of one side."""
    if len(suspects) == 0:
        return np.empty(0, dtype=bool)
    low, high = np.full(len(suspects), np.inf), np.full(len(suspects), -np.inf)
    for rows, chunk in domains.chunks():
        part = chunk[side[rows]][:, suspects]
        low = np.minimum(low, np.where(np.isnan(part), np.inf, part).min(axis=0, initial=np.inf))
        high = np.maximum(
            high, np.where(np.isnan(part), -np.inf, part).max(axis=0, initial=-np.inf)
        )
    return low == high


def _distribution(x: Array, is_query: Array) -> dict[str, str]:
    """Describe one feature that varies; tails are judged in each domain alone."""
    known = x[~np.isnan(x)]
    if len(known) < _FEWEST_ROWS:
        return {}
    notes: dict[str, str] = {}
    values = np.unique(known)
    whole = bool((known == np.round(known)).all())
    if len(values) <= _FEW_VALUES:
        notes["discrete"] = f"{len(values)} different values"
    elif whole and len(values) < 0.2 * len(known):
        notes["discrete"] = "whole numbers"
    if len(values) > 2:
        for name, bound in (("lowest", values[0]), ("highest", values[-1])):
            at_bound = (known == bound).sum()
            share = at_bound / len(known)
            if share >= _PILE and at_bound >= MIN_CELL and "discrete" not in notes:
                notes["bounded"] = f"{share:.0%} of rows at the {name} value"
    for side in (is_query, ~is_query):
        part = x[side]
        part = part[~np.isnan(part)]
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
