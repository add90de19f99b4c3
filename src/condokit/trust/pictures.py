"""Data for figures of all sites: components, shares of variance, features against confounders."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros
from condokit.data.covariates import design, left_of
from condokit.data.disclosure import MIN_CELL, too_few
from condokit.data.records import Sheet
from condokit.data.study import Confounder, Study
from condokit.data.subsets import subsample

_ROWS_OF_PICTURE = 3000  # rows of all domains that are drawn
_MOST_VALUES = 6_000_000  # rows times features that are read for that (48 MB)
_MOST_FEATURES = 2000  # from which components and shares of variance are computed
_MOST_CURVES = 6  # features that are drawn against confounders
_N_BINS = 8  # of a continuous confounder
_VERSIONS = ("before", "after")


@dataclass(frozen=True)
class Pictures:
    """What figures need of the rows of all domains, before and after their maps."""

    labels: list[str]  # of the domains, the reference last
    domain: Array  # (n_rows,): position of each row's domain in `labels`
    confounders: list[Confounder]  # of these rows
    #: By "before" and "after", (n_rows, 2): scores on the first two principal axes of the rows
    #: before the maps.
    scores: dict[str, Array]
    explained: tuple[float, float]  # shares of the variance before that the two axes have
    shares: Sheet  # partial shares of variance by term, quartiles over features, before and after
    #: Means of features in bins of continuous confounders, by domain, before and after.
    curves: list[dict[str, Any]]
    unit: dict[str, float]  # standard deviation of the reference by feature
    n_rows: int  # all rows, of which some are drawn
    n_features: int


def pictures(study: Study, mapped: Callable[[Array], Array], shifted: list[str]) -> Pictures | None:
    """Gather the data for figures from a subsample of rows.

    `mapped` returns the mapped rows with given numbers; `shifted` are names of features in the
    order in which they are drawn against confounders. Missing values count as the mean of their
    domain.
    """
    kept = np.flatnonzero(study.kept())
    most = max(min(_ROWS_OF_PICTURE, _MOST_VALUES // max(study.n_features, 1)), 100)
    rows = kept[subsample(len(kept), most)]
    names = [str(name) for name in study.tables[0].labels]
    values = dict(zip(_VERSIONS, (study.rows(rows), mapped(rows))))
    domain = study.code[rows]
    known = ~np.isnan(values["before"])
    for X in values.values():
        _fill(X, domain, study.n_domains)
    reference = domain == study.reference
    if not reference.any():
        reference = ~reference
    unit = ones_for_zeros(values["after"][reference].std(axis=0))
    confounders = [
        replace(c, codes=c.codes[rows]) if c.values is None else replace(c, values=c.values[rows])
        for c in study.confounders
    ]
    chosen = subsample(len(names), _MOST_FEATURES)
    few = {name: X[:, chosen] / unit[chosen] for name, X in values.items()}
    scores, explained = _components(few)
    every = np.arange(len(rows))
    terms = {"site": (domain[:, None] == np.unique(domain)).astype(float)}
    terms |= {c.name: design([c], every, 3) for c in confounders}
    drawn = [names.index(name) for name in shifted[:_MOST_CURVES]]
    return Pictures(
        [str(label) for label in study.labels],
        domain,
        confounders,
        scores,
        explained,
        Sheet.of_rows(_shares(few, terms), ("data", "term", "low", "median", "high")),
        list(_curves(values, known, drawn, names, domain, study.labels, confounders)),
        dict(zip(names, unit.tolist())),
        len(kept),
        len(names),
    )


def _fill(X: Array, domain: Array, n_domains: int) -> None:
    """Replace missing values by the mean of their feature and domain.

    Where a domain has few values, all are replaced by the mean of all domains, else by zero.
    """
    if not np.isnan(X).any():
        return
    known = ~np.isnan(X)
    n, sums = (
        np.stack([part[domain == b].sum(axis=0) for b in range(n_domains)])
        for part in (known, np.where(known, X, 0.0))
    )
    few = too_few(n)
    every = np.where(few, 0.0, sums).sum(axis=0) / np.maximum(np.where(few, 0, n).sum(axis=0), 1)
    mean = np.where(few, every, sums / np.maximum(n, 1))
    X[:] = np.where(known & ~few[domain], X, mean[domain])


def _components(values: dict[str, Array]) -> tuple[dict[str, Array], tuple[float, float]]:
    """Return scores on the first two principal axes of rows before the maps, and their shares.

    With more features than rows the axes come from the smaller matrix X X'.
    """
    centre = values["before"].mean(axis=0)
    X = values["before"] - centre
    if X.shape[1] > len(X):
        size, U = np.linalg.eigh(X @ X.T)
        axes = X.T @ U[:, ::-1][:, :2] / np.sqrt(np.maximum(size[::-1][:2], 1e-300))
    else:
        size, V = np.linalg.eigh(X.T @ X)
        axes = V[:, ::-1][:, :2]
    total = max(float((X**2).sum()), 1e-300)
    shares = [max(float(one), 0.0) / total for one in size[::-1][:2]] + [0.0]
    scores = {name: (one - centre) @ axes for name, one in values.items()}
    if axes.shape[1] < 2:  # one feature: its values alone
        scores = {name: np.column_stack([one, np.zeros(len(one))]) for name, one in scores.items()}
    return scores, (shares[0], shares[1])


def _shares(values: dict[str, Array], terms: dict[str, Array]) -> Iterator[Any]:
    r"""Yield quartiles over features of each term's partial share of variance, and the residual's.

    The share of a term is :math:`(SSE_{-term} - SSE) / SST`: the increase of the residual sum of
    squares if the term is left out, over the total. That of the residual is SSE / SST.
    """
    for name, X in values.items():
        X = X - X.mean(axis=0)
        total = (X**2).sum(axis=0)
        varies = total > 0
        full = _unexplained(X, list(terms.values()))
        parts = {}
        for term in terms:
            rest = [columns for other, columns in terms.items() if other != term]
            parts[term] = _unexplained(X, rest) - full
        for term, square in {**parts, "residual": full}.items():
            share = np.maximum(square[varies] / total[varies], 0.0)
            low, median, high = np.quantile(share, [0.25, 0.5, 0.75]) if varies.any() else [0.0] * 3
            yield name, term, float(low), float(median), float(high)


def _unexplained(X: Array, terms: list[Array]) -> Array:
    """Return residual sums of squares of centred features after regression on all columns."""
    ones = np.ones((len(X), 1))
    return np.asarray((left_of(np.column_stack([ones, *terms]), X) ** 2).sum(axis=0))


def _curves(
    values: dict[str, Array],
    known: Array,
    features: list[int],
    names: list[str],
    domain: Array,
    labels: Any,
    confounders: list[Confounder],
) -> Iterator[dict[str, Any]]:
    """Yield means of features in bins of a continuous confounder, by domain, before and after.

    Bins have equal numbers of rows, five or more with both values, so that no single row is shown.
    """
    for confounder in confounders:
        if confounder.values is None:
            continue
        z = confounder.values
        for j in features:
            lines = []
            for b in np.unique(domain):
                rows = np.flatnonzero((domain == b) & known[:, j] & np.isfinite(z))
                n_bins = min(_N_BINS, len(rows) // MIN_CELL)
                if n_bins < 2:
                    continue
                bins = np.array_split(rows[np.argsort(z[rows], kind="stable")], n_bins)
                line: dict[str, Any] = {"domain": str(labels[b])}
                line["x"] = [float(z[part].mean()) for part in bins]
                for name, X in values.items():
                    line[name] = [float(X[part, j].mean()) for part in bins]
                lines.append(line)
            if lines:
                yield {"feature": names[j], "confounder": confounder.name, "lines": lines}
