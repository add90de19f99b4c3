"""What columns look like: odd features, and columns without a role that may be confounders."""

from collections import Counter, defaultdict

import numpy as np
from scipy.special import fdtrc

from condokit.checks import Array, listing, said
from condokit.compare.weak_points import FAR_AWAY, extremes
from condokit.data.arrays import NORMAL_95, ones_for_zeros, sides
from condokit.data.covariates import design, fitted, left_of
from condokit.data.disclosure import too_few
from condokit.data.measurements import (
    MULTIPLIED,
    look_like_counts,
    looks_like,
    looks_like_a_label,
    words_of,
)
from condokit.data.records import Finding, Sheet
from condokit.data.roles import column_values
from condokit.data.study import Study
from condokit.data.subsets import subsample, subsample_sides

_MOST_DESCRIBED = 4000  # of a domain whose features are described
_FEWEST_ROWS = 20  # below which nothing is said of a distribution
_HEAVY_TAILS = 20.0  # fourth moment in standard units; 3 is normal, 9 exponential
_SKEWED = 1.5
_FEW_VALUES = 10
_PILE = 0.02  # share of rows at the lowest or highest value
_MOSTLY = 0.5  # share of missing values
_MOST_REGRESSED = 2000  # rows of a domain, in which columns without a role are looked at
_MOST_FEATURES = 200
_MOST_COLUMNS = 200
_MOST_MEASURED = 10  # columns of numbers, beyond which these are other measurements, as are those
# whose names begin as those of features do: they move with the device themselves
_FEWEST_ALIKE = 3  # columns of one kind by the first or last word of their names, likewise
_MOST_LEVELS = 20
_FEWEST_OF_LEVEL = 5  # rows
_LEVEL = 0.01
_NOTABLE = 0.1  # standard deviations
_NAME_IT = (
    "Taking account of {it} moves features by up to {size:.2g} sd. If such differences are real "
    "and not technical, name such a column in {@`confounders`}."
)

ADVICE = {
    "constant": said("It is only shifted; leave it out with {@`features`} if it means nothing."),
    "mostly missing": "Its map rests on few rows.",
    "heavy-tailed": said(
        "A few values decide its map: correct them, or use {@links such as 'log'}."
    ),
    "bounded": said("A scale moves the bound: see {@`links` of LocationScale}, or adapt it apart."),
    "positive and skewed": said("A link keeps it positive: see {@`links` of LocationScale}."),
    "discrete": "Mapped values will not be whole numbers or codes.",
    "counts": said(MULTIPLIED),
}


def describe_features(domains: Study) -> Sheet:
    """Return what is remarkable about features in at most 4000 rows of a domain, and why."""
    kept, labels = domains.kept(), domains.tables[0].labels
    rows = np.sort(subsample_sides(domains.is_query, _MOST_DESCRIBED, kept))
    X, is_query = domains.rows(rows), domains.is_query[rows]
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name, side in sides(domains.is_query):
        part = X[side[rows]]
        absent = np.isnan(part).mean(axis=0)
        for j in np.flatnonzero(absent > _MOSTLY):
            much = "nearly all" if too_few((1 - absent[j]) * len(part)) else f"{absent[j]:.0%}"
            found[labels[j]]["mostly missing"] = f"{much} missing in {name}"
        for j in _constant(domains, side & kept, part):
            found[labels[j]]["constant"] = f"one value in {name}"
    is_count = look_like_counts(X)
    for label, x, counts in zip(labels, X.T, is_count):
        if counts and len(x) >= _FEWEST_ROWS:
            found[label]["counts"] = "whole numbers from 0 or 1 up, skewed"
        elif "constant" not in found[label]:
            found[label] |= _distribution(x, is_query)
    notes = [(label, *note) for label, notes in found.items() for note in notes.items()]
    return Sheet.of_rows(notes, ("feature", "kind", "because"))


def _constant(domains: Study, side: Array, part: Array) -> Array:
    """Return the features that are constant in all rows of one side, of which we have a part."""
    low, high = extremes(part)
    suspects = np.flatnonzero(low == high)
    low, high = low[suspects], high[suspects]
    for rows, chunk in domains.chunks() if len(suspects) else ():
        lowest, highest = extremes(chunk[side[rows]][:, suspects])
        low, high = np.minimum(low, lowest), np.maximum(high, highest)
    return suspects[low == high]


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
        robust = typical[len(part) - 1 - max(len(part) // 20, 1)] / NORMAL_95
        if np.mean(z**4) > _HEAVY_TAILS or (robust > 0 and typical[-1] > FAR_AWAY * robust):
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


def unused_that_matter(domains: Study) -> list[Finding]:
    r"""Name columns that were not used, differ between the domains, and go with the features.

    Both given the confounders Z: with and without the column U, the coefficient of the query in the
    regression of features on (1, query, Z) differs by more than a tenth of a standard deviation,
    and F tests find U among features and among domains at 1%, corrected for their numbers.
    """
    rows = np.sort(subsample_sides(domains.is_query, _MOST_REGRESSED, domains.kept()))
    if domains.groups is not None:  # a subject counts once in a domain
        mine = 2 * domains.groups[rows] + domains.is_query[rows]
        rows = rows[np.sort(np.unique(mine, return_index=True)[1])]
    columns = _columns(domains, rows)
    if not columns:
        return []
    few = domains.of(subsample(domains.n_features, _MOST_FEATURES))
    X, query = few.rows(rows), domains.is_query[rows].astype(float)
    X = np.where(np.isnan(X), np.nanmean(X, axis=0, where=~np.isnan(X)), X)
    X = X / ones_for_zeros(X.std(axis=0))
    D = design(domains.confounders, rows, 2)
    of_domain, of_query = left_of(D, np.column_stack([query])), np.column_stack([D, query])
    X_left, place = left_of(of_query, X), D.shape[1]
    without_it = fitted(of_query, X)[place]
    found = {}
    for name, U in columns.items():
        alone, beside = left_of(D, U), left_of(of_query, U)
        if not (beside.std(axis=0) > 1e-6).all():
            continue
        p_domain = _p_value(of_domain, alone, D.shape[1]).min() * len(columns)
        p_features = _p_value(X_left, beside, of_query.shape[1])
        real = p_features * len(p_features) * len(columns) < _LEVEL
        if p_domain < _LEVEL and real.any():
            with_it = fitted(np.column_stack([of_query, U]), X[:, real])[place]
            found[name] = float(np.abs(without_it[real] - with_it).max())
    found = {name: size for name, size in found.items() if size > _NOTABLE}
    names = sorted(found, key=lambda name: -found[name])
    if not names:
        return []
    verbs = ("is", "differs", "goes", "it") if len(names) == 1 else ("are", "differ", "go", "them")
    text = "{} {} not used, but {} between the domains and {} with the features."
    advice = said(_NAME_IT, it=verbs[3], size=max(found.values()))
    return [Finding("care", text.format(listing(names), *verbs[:3]), advice)]


def _columns(domains: Study, rows: Array) -> dict[str, Array]:
    """Return the columns that may be confounders, as numbers."""
    found: dict[str, Array] = {}
    measured, is_query = [], domains.is_query[rows]
    for name in domains.unused[:_MOST_COLUMNS]:
        values = np.concatenate([column_values(t, "X", name) for t in domains.tables])[rows]
        if values.dtype.kind in "iufb" and len(np.unique(values)) > 2:
            u = values.astype(np.float64)
            known = np.isfinite(u)
            whole = (u[known] == np.rint(u[known])).all()
            kind = looks_like(u, is_query) if whole else ""
            by_side = [u[side & known] for _, side in sides(is_query)]
            if kind.startswith(("dates", "another")) or min(map(len, by_side)) < _FEWEST_OF_LEVEL:
                continue
            if by_side[0].min() > by_side[1].max() or by_side[0].max() < by_side[1].min():
                continue
            measured += [] if looks_like_a_label(name) or kind else [name]
            found[name] = np.where(known, u, u[known].mean())[:, None]
        elif (levels := _levels(values, is_query)) is not None:
            found[name] = levels
    features = {_stem(name) for name in domains.tables[0].labels}
    kinds = Counter(kind for name in measured for kind in _kinds(name))
    for name in measured:
        alike = max(kinds[kind] for kind in _kinds(name)) >= _FEWEST_ALIKE
        if len(measured) > _MOST_MEASURED or alike or _stem(name) in features:
            del found[name]
    return found


def _stem(name: str) -> str:
    """Return the first word of a name without its digits, which measurements of a kind share."""
    return next(iter(words_of(name)), "").rstrip("0123456789")


def _kinds(name: str) -> set[tuple[str, str]]:
    """Return the first and the last word of a name, as measurements of one kind have them."""
    return {("first", _stem(name)), ("last", next(iter(words_of(name)[::-1]), ""))}


def _levels(values: Array, is_query: Array) -> Array | None:
    """Return marks of all levels but the first; None if they are many, or tell the domain."""
    text = np.array([str(value) for value in values])
    levels, code, count = np.unique(text, return_inverse=True, return_counts=True)
    if not 2 <= len(levels) <= _MOST_LEVELS:
        return None
    seen = [np.bincount(code[side], minlength=len(levels)) > 0 for _, side in sides(is_query)]
    if not (seen[0] & seen[1]).any():  # another name of the domain
        return None
    often = np.flatnonzero(count >= _FEWEST_OF_LEVEL)[1:]
    return (code[:, None] == often).astype(float) if len(often) else None


def _p_value(Y: Array, U: Array, n_used: int) -> Array:
    """Return the p-value of F tests that columns U, both less what D explains, explain Y."""
    total, left = (Y**2).sum(axis=0), (left_of(U, Y) ** 2).sum(axis=0)
    k, dof = U.shape[1], len(U) - n_used - U.shape[1]
    if dof < 1:
        return np.ones(Y.shape[1])
    ratio = (total - left) / k / np.maximum(left / dof, 1e-300)
    return np.where(total > 1e-12 * len(U), fdtrc(k, dof, np.maximum(ratio, 0.0)), 1.0)
