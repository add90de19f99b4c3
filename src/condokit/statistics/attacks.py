"""Attacks on a statistics file: attempts to compute values of single rows from its sums."""

from collections.abc import Iterator
from itertools import combinations_with_replacement
from math import comb
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import nnls

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros
from condokit.data.bins import BROAD, NARROW
from condokit.statistics.guard import is_spread

_GRID = 155  # values of a confounder on which its distribution is recovered
_NEAR = 0.02  # share of the range within which rows are taken as one group
_TELLING = 0.75  # an attack succeeds if a few rows have more of the weight of a combination
_MOST_GROUPS = 300  # groups of the second round for which possible values are enumerated
_ROWS_OF_GROUP = 8  # largest such group
_MOST_SETS = 200_000  # sets of values that are tried for a group
_STEPS = (1.0, 0.1, 0.01)  # units to which values may have been rounded
_EXACT, _ROUNDED = 1e-7, 0.05  # precision of the sums in files of schema 1 and schema 2


def attacks(document: dict[str, Any], stats: Any) -> list[dict[str, Any]]:
    """Return the attacks that succeed: the kind, where, and a sentence that explains each."""
    return [*_isolated(document, stats), *_enumerated(document, stats), *_rare(document, stats)]


def _isolated(document: dict[str, Any], stats: Any) -> Iterator[dict[str, Any]]:
    """Attack rows with isolated confounder values, whose features the products may reveal."""
    known = stats.sums.continuous
    # later sums are written so that no combination rests on few rows (`data.spots`): what this
    # attack would find in them are places of groups, taken for rows
    if known is None or document["schema"] > 1:
        return
    pools = [(" / ".join(map(str, cell)), np.array([k])) for cell, k in stats.cells.items()]
    few = document["min_cell"] * document["largest_weight"]
    for where, pool in pools:
        for j, name in enumerate(known.basis.names):
            found = _apart(known, pool, j, few)
            if found is not None:
                at, share = found
                text = (
                    f"A few rows of {where} with {name!r} near {at:.3g} are far from all others: a "
                    f"combination of the sums with {name!r} has {share:.0%} of its weight on them. "
                    "Anyone who knows a person with such a value can compute their features."
                )
                yield {"kind": "isolated", "where": where, "confounder": name, "text": text}


def _apart(known: Any, pool: Array, j: int, few: float) -> tuple[float, float] | None:
    """Return the value of confounder j at which a few isolated rows lie, and their weight.

    None if there seem to be none. The distribution of the confounder is recovered on a grid by
    non-negative least squares: numbers of rows that reproduce the sums of functions and of their
    products. The weight is the largest that these rows have in any linear combination of functions:
    the largest generalised eigenvalue of their products and those of all rows. `pool` are cells
    whose sums are used together, `few` the number of rows from which there is no danger.
    """
    basis, products = known.basis, known.products
    n, level = products.count[pool], int(known.level[pool].min(initial=basis.n_bent))
    columns = np.array([k for k in basis.columns(level) if _is_of(basis, int(k), j)])
    if not n.sum():
        return None
    share = n / n.sum()
    G = products.scatter[np.ix_(pool, columns, columns)].sum(axis=0) / n.sum()
    means = products.mean[np.ix_(pool, columns)]
    second = G + (share[:, None] * means).T @ means
    low, high = basis.ranges[j]
    z = np.tile([(a + b) / 2 for a, b in basis.ranges], (_GRID, 1))
    z[:, j] = np.linspace(low, high, _GRID)
    Phi = basis(z)[:, columns]
    i, k = np.triu_indices(len(columns))
    A = np.vstack([np.ones(_GRID), Phi.T, (Phi[:, i] * Phi[:, k]).T])
    b = np.concatenate([[1.0], share @ means, second[i, k]])
    size = np.sqrt((A**2).mean(axis=1))
    rows = n.sum() * nnls(A / size[:, None], b / size, maxiter=50 * _GRID)[0]
    size = ones_for_zeros(np.sqrt(np.diag(G)))
    total = G * n.sum() / np.outer(size, size) + 1e-9 * n.sum() * np.eye(len(G))
    away = (Phi - share @ means) / size
    best = (0.0, 0.0)
    for place in np.flatnonzero(rows > 0.3):
        near = np.abs(z[:, j] - z[place, j]) <= _NEAR * (high - low)
        if 0.5 <= rows[near].sum() < few - 0.5:
            part = (rows[near, None] * away[near]).T @ away[near]
            value = float(eigh(part, total, eigvals_only=True)[-1])
            best = max(best, (value, float(z[place, j])))
    return (best[1], min(best[0], 1.0)) if best[0] > _TELLING else None


def _is_of(basis: Any, column: int, j: int) -> bool:
    """Return whether a column of the basis is a function of confounder j only."""
    first = len(basis.names) + basis.n_pairs
    return column == j or (column >= first and (column - first) // basis.n_bent == j)


def _enumerated(document: dict[str, Any], stats: Any) -> Iterator[dict[str, Any]]:
    """Attack groups of the second round: only one set of rounded values may fit mean and spread."""
    if stats.sums.continuous is not None:  # bins hold residuals, which are not round numbers
        return
    moments, known, tried = stats.sums.moments, dict[int, int](), 0
    close, broad = (_EXACT, NARROW) if document["schema"] == 1 else (_ROUNDED, BROAD)
    for one in document["values"]:
        j, k = one["feature"], stats.cells[(one["domain"], *one["levels"])]
        mean, unit = moments.mean[k, j], broad * (moments.sd[k, j] or 1.0)
        for n, pair in zip(one["counts"], zip(*one["ends"])):
            if n > _ROWS_OF_GROUP or n % 1 or tried >= _MOST_GROUPS:
                continue
            tried += 1
            u = np.arcsinh((np.array(pair) - mean) / unit)
            known[j] = known.get(j, 0) + int(n) * _is_single(u, int(n), mean, unit, close)
    for j, n_rows in known.items():
        if n_rows:
            name = stats.names[j]
            text = (
                f"If {name!r} was rounded, {n_rows} of its values can be computed: in groups of "
                "the second round, only one set of values has the mean and spread."
            )
            yield {"kind": "enumerated", "feature": name, "n_rows": n_rows, "text": text}


def _is_single(u: Array, n: int, mean: float, unit: float, close: float) -> bool:
    """Return whether exactly one set of n rounded values has the mean and spread of the ends u.

    u are the two ends of a group after arcsinh((x - mean) / unit), in which bins are defined.
    """
    middle, spread = float(u.mean()), float(abs(u[1] - u[0]) / 2)
    reach, slack = spread * np.sqrt(n - 1), close / np.sqrt(n) if close > _EXACT else close
    ends = mean + unit * np.sinh([middle - reach - slack, middle + reach + slack])
    for step in _STEPS:
        first, last = np.ceil(ends[0] / step - 1e-6), np.floor(ends[1] / step + 1e-6)
        many = int(last - first) + 1
        if many < 1:
            continue
        if many > 1000 or comb(many + n - 1, n) > _MOST_SETS:
            return False
        values = np.arcsinh((step * (first + np.arange(many)) - mean) / unit)
        sets = values[np.array(list(combinations_with_replacement(range(many), n)))]
        fits = (abs(sets.mean(axis=1) - middle) <= slack) & (
            abs(sets.std(axis=1) - spread) <= max(slack, 1e-4 if close == _EXACT else slack)
        )
        if fits.any():
            return int(fits.sum()) == 1
    return False


def _rare(document: dict[str, Any], stats: Any) -> Iterator[dict[str, Any]]:
    """Attack features whose products with others are nearly the means of a few rows.

    That is so if a few rows hold most of a feature's deviations, such as a rare yes.
    """
    moments = stats.sums.moments
    few = (document["min_cell"] - 1) * document["largest_weight"]
    if document["schema"] > 1:  # which has no such products
        return
    has_correlations = {one["domain"] for one in document["correlations"]}
    for k, label in enumerate(stats.labels):
        mine = stats.label_of_cell == k
        squares, fourth = moments.squares[mine].sum(axis=0), moments.fourth[mine].sum(axis=0)
        has_products = np.isin(np.arange(stats.n_features), moments.few)
        has_products &= label in has_correlations
        has_products |= stats.sums.continuous is not None
        rare = has_products & (squares > 0) & ~is_spread(squares, fourth, few)
        for name in stats.names[rare]:
            text = (
                f"A few rows of {label!r} hold most of the deviations of {name!r}: its products "
                "with other features and confounders are nearly the means of these rows."
            )
            yield {"kind": "rare", "where": str(label), "feature": name, "text": text}
