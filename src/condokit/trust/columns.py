"""Looks at columns: features with unusual values, and unused columns that may be confounders."""

from collections import Counter, defaultdict

import numpy as np
from scipy.special import fdtrc, stdtrit

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

_MOST_DESCRIBED = 4000  # rows of a domain from which features are described
_FEWEST_ROWS = 20  # with fewer rows, nothing is said about a distribution
_HEAVY_TAILS = 20.0  # fourth moment in standard units; 3 is normal, 9 exponential
_SKEWED = 1.5  # skewness; 0 is symmetric, 2 exponential
_FEW_VALUES = 10  # distinct values up to which a feature is discrete
_PILE = 0.02  # share of rows at the lowest or highest value, from which this is a bound
_MOSTLY = 0.5  # share of missing values
_MOST_REGRESSED = 2000  # rows of a domain in which unused columns are tested
_MOST_FEATURES = 200  # features on which unused columns are tested
_MOST_COLUMNS = 200  # unused columns that are tested
# Many unused columns of numbers, or columns with names like those of features or of each other, are
# further measurements rather than confounders: the device moves them too.
_MOST_MEASURED = 10
_FEWEST_ALIKE = 3
_MOST_LEVELS = 20  # of an unused column that may be a category
_FEWEST_OF_LEVEL = 5  # rows of a level that is tested
_LEVEL = 0.01  # of tests, after Bonferroni's correction
_NOTABLE = 0.1  # standard deviations by which a column must move the shift to be named
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
    "bounded": said("A scale moves bounds: use {@`links` of LocationScale}, or a map of its own."),
    "positive and skewed": said("A link keeps it positive: see {@`links` of LocationScale}."),
    "discrete": "Mapped values will not be whole numbers or codes.",
    "counts": said(MULTIPLIED),
}


def describe_features(domains: Study) -> Sheet:
    """Return a table of unusual features with the kind and the evidence.

    At most 4000 rows of a domain are used.
    """
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
    """Return the positions of features that are constant in all rows of one domain.

    `part` is a subsample of these rows: only features that are constant in it are looked up in all.
    """
    low, high = extremes(part)
    suspects = np.flatnonzero(low == high)
    low, high = low[suspects], high[suspects]
    for rows, chunk in domains.chunks() if len(suspects) else ():
        lowest, highest = extremes(chunk[side[rows]][:, suspects])
        low, high = np.minimum(low, lowest), np.maximum(high, highest)
    return suspects[low == high]


def _distribution(x: Array, is_query: Array) -> dict[str, str]:
    """Describe one feature that varies; tails are judged within each domain."""
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
    """Describe the bound that many rows share, if there is one; the highest value if both are."""
    for name, bound in (("highest", highest), ("lowest", lowest)):
        n = (known == bound).sum()
        if n / len(known) >= _PILE and not too_few(n):
            return f"{n / len(known):.0%} of rows at the {name} value"
    return None


def unused_that_matter(domains: Study) -> list[Finding]:
    r"""Find unused columns that may be confounders: tied to the domain and to the features.

    A column U is named if, given the confounders Z that are used, F tests find an effect of U on
    the domain and on a feature (at 1%, Bonferroni-corrected for the numbers of columns and
    features), and if adding U to the regression of such a feature on (1, query, Z) changes the
    coefficient of `query` by more than a tenth of a standard deviation.
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


def _differs_in_samples(u: Array, bridge: Array, is_query: Array) -> bool:
    """Return whether values of the same samples differ between the domains, beyond chance."""
    here = np.flatnonzero(bridge >= 0)
    sides = [here[is_query[here] == side] for side in (True, False)]
    n = [np.bincount(bridge[side], minlength=bridge.max(initial=-1) + 1) for side in sides]
    both = np.minimum(*n) > 0
    if both.sum() < _FEWEST_OF_LEVEL:
        return False
    means = [
        np.bincount(bridge[side], u[side], len(k))[both] / k[both] for side, k in zip(sides, n)
    ]
    gap = means[0] - means[1]
    error = gap.std(ddof=1) / np.sqrt(len(gap))
    return bool(np.abs(gap.mean()) > stdtrit(len(gap) - 1, 1 - _LEVEL / 2) * error)


def _columns(domains: Study, rows: Array) -> dict[str, Array]:
    """Return the unused columns that may be confounders, each as an array (n_rows, n_numbers).

    Dates, row numbers, columns whose ranges do not overlap between the domains, and what looks like
    further measurements are excluded; so are numbers that differ between the domains in the same
    samples (bridges), as the devices measure them.
    """
    found: dict[str, Array] = {}
    measured, is_query, bridge = [], domains.is_query[rows], domains.bridge[rows]
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
        alike = alike or _differs_in_samples(found[name][:, 0], bridge, is_query)
        if len(measured) > _MOST_MEASURED or alike or _stem(name) in features:
            del found[name]
    return found


def _stem(name: str) -> str:
    """Return the first word of a name without its digits; measurements of one kind share it."""
    return next(iter(words_of(name)), "").rstrip("0123456789")


def _kinds(name: str) -> set[tuple[str, str]]:
    """Return the first and last word of a name; measurements of one kind share one of them."""
    return {("first", _stem(name)), ("last", next(iter(words_of(name)[::-1]), ""))}


def _levels(values: Array, is_query: Array) -> Array | None:
    """Return indicators of all levels but the first, (n_rows, n_levels - 1).

    None if there are too many levels, or if no level occurs in both domains: the column is then
    another name of the domain.
    """
    text = np.array([str(value) for value in values])
    levels, code, count = np.unique(text, return_inverse=True, return_counts=True)
    if not 2 <= len(levels) <= _MOST_LEVELS:
        return None
    seen = [np.bincount(code[side], minlength=len(levels)) > 0 for _, side in sides(is_query)]
    if not (seen[0] & seen[1]).any():
        return None
    often = np.flatnonzero(count >= _FEWEST_OF_LEVEL)[1:]
    return (code[:, None] == often).astype(float) if len(often) else None


def _p_value(Y: Array, U: Array, n_used: int) -> Array:
    """Return p-values of F tests whether columns U explain each column of Y.

    Both are residuals of a regression on `n_used` other columns.
    """
    total, left = (Y**2).sum(axis=0), (left_of(U, Y) ** 2).sum(axis=0)
    k, dof = U.shape[1], len(U) - n_used - U.shape[1]
    if dof < 1:
        return np.ones(Y.shape[1])
    ratio = (total - left) / k / np.maximum(left / dof, 1e-300)
    return np.where(total > 1e-12 * len(U), fdtrc(k, dof, np.maximum(ratio, 0.0)), 1.0)
