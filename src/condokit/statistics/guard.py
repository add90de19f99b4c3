r"""Disclosure control of statistics files: which sums may be written, and with how many digits.

The rule: no linear combination of the numbers in a file has more than half of its weight on fewer
than `min_cell` rows, and none has more than a fifth on one row. Four measures enforce it.

- Products are taken with functions of confounders that, where the rule asks for it, are the same
  for all rows of a group of neighbours (`data.spots`).
- A feature takes part in products only if its values do not single out a few rows (`is_spread`),
  and must not be another one times a function of a confounder (`refuse_multiples`).
- Instead of third and fourth powers, a domain's skewness and kurtosis are written, up to a limit.
- All numbers are rounded to about a tenth of their standard error (`rounded`).
"""

from typing import Any

import numpy as np

from condokit.checks import Array, listing, refusal
from condokit.data.arrays import ones_for_zeros
from condokit.data.bins import OF_ERROR
from condokit.data.products import GroupedProducts
from condokit.data.spots import Rule

ONE, FEW = 1 / 5, 1 / 2  # largest share of the weight on one row, and on fewer than `min_cell`
AGAIN = 1e-8  # rounding step relative to the usual, for numbers that a file has already rounded
SPREAD = 2.0 ** (4 / 3)  # see `is_spread`
SEEN = 400  # rows in which `refuse_multiples` compares features,
_MOST_COMPARED = 1000  # if there are at most so many features
_NEW = 0.003  # share of a function's variance that lower ones must leave, or it is not written
_LEFT = 0.1  # share of squares that a multiple may leave unexplained


def rounded(values: Any, error: Any) -> Array:
    """Round to 1, 2 or 5 times a power of ten that is at most a tenth of the standard error.

    Deterministic, so that the same rows give the same file. Where the standard error is 0 or
    unknown, nothing is rounded.
    """
    values, error = np.broadcast_arrays(np.asarray(values, float), np.asarray(error, float))
    is_free = np.isfinite(error) & (error > 0) & np.isfinite(values)
    step = np.where(is_free, OF_ERROR * error, 1.0)
    power = np.floor(np.log10(step))
    with np.errstate(all="ignore"):
        first = step / 10.0**power
        step = np.where(first >= 5, 5.0, np.where(first >= 2, 2.0, 1.0))
        # a division by a power of ten gives the number that its shortest text says
        whole = np.rint(values / step / 10.0**power) * step
        found = np.where(power < 0, whole / 10.0**-power, whole * 10.0**power)
    return np.where(is_free & np.isfinite(found), found, values) + 0.0


def is_spread(squares: Array, fourth: Array, few: float) -> Array:
    r"""Return whether no `few` rows can hold more than half of the absolute deviations.

    Let M be the sum of squared deviations of a feature, F that of fourth powers, and k = `few`. By
    Hölder's inequality the absolute deviations of k rows add up to at most
    :math:`k^{3/4} F^{1/4}`, and those of all rows to at least :math:`M^{3/2} F^{-1/2}`. So
    :math:`M^2 / F \ge 2^{4/3} k` is sufficient. For comparison, a yes/no feature with k times "yes"
    among many rows has :math:`M^2 / F \approx k`.
    """
    return np.asarray((squares > 0) & (squares**2 >= SPREAD * few * fourth))


def shapes(moments: Any, cells: list[int], enough: Array, few: float) -> tuple[Array, Array]:
    r"""Return skewness and kurtosis of features within some cells, NaN where rows are too few.

    `enough` (n_cells, n_features) marks features with enough values in a cell. The kurtosis is cut
    at :math:`n / (2.5 k)` with k = `few`. A row's share of the squares is at most the root of
    kurtosis / n: at the limit about a third, so the file shows no row with more than that.
    """
    n = np.where(enough, moments.n_values[cells], 0.0)
    sd = moments.sd[cells]
    n = np.where(sd > 0, n, 0.0)
    total, unit = n.sum(axis=0), np.where(sd > 0, sd, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        third, fourth = (
            np.where(n > 0, getattr(moments, name)[cells] / unit**k, 0.0).sum(axis=0)
            / ones_for_zeros(total)
            for name, k in (("third", 3), ("fourth", 4))
        )
    most = total / (SPREAD * few)
    is_known = most >= 4.0  # so that the limit is above the normal distribution's 3
    fourth = np.clip(fourth, 1.0, np.maximum(most, 1.0))
    third = np.clip(third, -np.sqrt(fourth - 1), np.sqrt(fourth - 1))
    error = 1 / np.sqrt(ones_for_zeros(total))
    pair = rounded(third, np.sqrt(6) * error), rounded(fourth, np.sqrt(24) * error)
    return tuple(np.where(is_known, one, np.nan) for one in pair)  # type: ignore[return-value]


def typical_correlation(moments: Any, cells: list[int], used: Array) -> float | None:
    """Return the root mean square correlation of some of the features within cells."""
    scatter = moments.products.scatter[cells].sum(axis=0)[np.ix_(used, used)]
    size = ones_for_zeros(np.sqrt(np.diag(scatter)))
    d = len(size)
    if d < 2:
        return None
    squares = (scatter / np.outer(size, size)) ** 2
    mean = (squares.sum() - np.trace(squares)) / (d * (d - 1))
    error = 1 / np.sqrt(max(float(moments.products.count[cells].sum()), 1.0))
    return float(rounded(np.sqrt(min(mean, 1.0)), error))


def rule(min_cell: int) -> Rule:
    """Return the rule for sums with continuous confounders."""
    return Rule(ONE, FEW, min_cell - 1)


def refuse_multiples(X: Array, Z: Array, ranges: Any, names: Array, numbers: Any) -> None:
    r"""Refuse a feature that is another one times a function of continuous confounders.

    Weight w and body-mass index :math:`w / h^2`, given the height h, have twice as many sums of the
    same w as the rule allows for. `X` and `Z` are some of the rows.
    """
    low, high = np.array(ranges, dtype=float).T
    T = (2 * Z - low - high) / (high - low)
    Phi, known = np.hstack([np.ones((len(T), 1)), T, T**2]), ~np.isnan(X)
    patterns, of_feature = np.unique(known, axis=1, return_inverse=True)
    of_feature = of_feature.ravel()
    for j in range(X.shape[1] if 1 < X.shape[1] <= _MOST_COMPARED else 0):
        for pattern, same in enumerate(patterns.T):
            rows, others = known[:, j] & same, np.flatnonzero(of_feature == pattern)
            others = others[others != j]
            if rows.sum() <= 4 * Phi.shape[1] or not len(others):
                continue
            Y, P, x = X[np.ix_(rows, others)], Phi[rows], X[rows, j, None]
            Y, x = (
                (part - part.mean(axis=0)) / ones_for_zeros(part.std(axis=0)) for part in (Y, x)
            )
            none, line, every = (
                ((Y - Q @ (Q.T @ Y)) ** 2).sum(axis=0)
                for Q in (np.linalg.qr(A)[0] for A in (P, np.hstack([P, x]), np.hstack([P, P * x])))
            )
            is_multiple = (every <= _LEFT * line) & (line > _LEFT**4 * none) & (none > 1e-9)
            if is_multiple.any():
                raise refusal(
                    "Sums of {one!r} and {other!r} together would reveal single rows, because one "
                    "is the other times a function of {numbers}. {@Leave one out of `features`}; "
                    "the map of the other says as much.",
                    one=names[j],
                    other=names[others[is_multiple.argmax()]],
                    numbers=listing(numbers),
                )


def written_products(
    one: GroupedProducts, label: Array, columns: Array, spread: Array, share: float
) -> dict[str, Any]:
    """Return means of functions by cell, and by domain their root and slopes, rounded.

    `spread` marks by domain and feature whether slopes may be written; numbers are rounded as if
    standard errors were `share` times as large.
    """
    domains, error = [], np.zeros((len(label), len(columns)))
    for k, name in enumerate(dict.fromkeys(label.tolist())):
        mine = np.flatnonzero(label == name)
        L, c, n = one.pooled(mine, columns, _NEW)
        size, root_n = np.sqrt(np.einsum("ij,ij->i", L, L)), np.sqrt(max(n, 1.0))
        count = np.maximum(one.count[mine], 1.0)
        error[mine] = size / np.sqrt(count)[:, None]
        c = np.where(spread[k], c, 0.0)
        squares = one.squares[mine].sum(axis=0) / max(n, 1e-300)
        left = np.maximum(squares - (c**2).sum(axis=0), 0.01 * squares)
        L = np.tril(rounded(L, share * np.diag(L)[:, None] / root_n))
        c = rounded(c, share * np.sqrt(left) / root_n)
        domains.append({"root": L.tolist(), "slopes": c.tolist()})
    mean = rounded(one.mean[:, columns], share * error)
    return {"mean": mean.tolist(), "domains": domains}


def squares_left(
    one: GroupedProducts,
    kept: list[int],
    label: Array,
    columns: Array,
    found: dict[str, Any],
    squares: Array,
    n_straight: int,
) -> Array:
    r"""Return sums of squares of cells, so that a reader finds the residuals' sums of squares.

    About a curve :math:`\phi'\beta`, the rows of a cell with the products G, S and the sum of
    squares q leave :math:`q - 2 \beta'S + \beta'G\beta`. A reader has for G and S the cell's share
    of what is written of the domain, so q is replaced by what makes the two equal at the domain's
    smoothest likely curve.
    """
    new, r = squares.copy(), one.n_columns
    for k, name in enumerate(dict.fromkeys(label.tolist())):
        mine = np.flatnonzero(label == name)
        cells = np.array(kept)[mine]
        beta = one.smooth(cells, columns, n_straight)
        G = one.scatter[np.ix_(cells, columns, columns)]
        S = one.scatter[np.ix_(cells, columns, np.arange(r, one.scatter.shape[2]))]
        new[mine] += np.einsum("rd,grs,sd->gd", beta, G, beta) - 2 * np.einsum(
            "rd,grd->gd", beta, S
        )
        L, c = (np.array(found["domains"][k][key]) for key in ("root", "slopes"))
        curve = L.T @ beta
        told = np.maximum((curve * (2 * c - curve)).sum(axis=0), 0.0)
        new[mine] += one.count[cells][:, None] * told
    return np.maximum(new, 1e-9 * squares)


def spread_products(
    written: dict[str, Any],
    label: Array,
    count: Array,
    mean: Array,
    squares: Array,
    basis: Any,
    level: int,
) -> GroupedProducts:
    """Return products of cells as read from a file: each cell's share of its domain's products."""
    columns, r = basis.columns(level), basis.n_columns
    one = GroupedProducts(len(count), r, mean.shape[1])
    one.count, one.squares = count.copy(), squares.copy()
    one.mean[:, columns], one.mean[:, r:] = written["mean"], mean
    for k, domain in enumerate(written["domains"]):
        L, c, mine = domain["root"], domain["slopes"], np.flatnonzero(label == k)
        n = count[mine][:, None, None]
        one.scatter[np.ix_(mine, columns, columns)] = n * (L @ L.T)
        wide = r + np.arange(mean.shape[1])
        one.scatter[np.ix_(mine, columns, wide)] = n * (L @ c)
    one.mean[count == 0], one.scatter[count == 0] = 0.0, 0.0
    return one
