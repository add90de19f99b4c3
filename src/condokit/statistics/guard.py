r"""Disclosure control of statistics files: which sums may be written, and with how many digits.

The rule: no linear combination of the numbers in a file has more than half of its weight on fewer
than `min_cell` rows, and none has more than a fifth on one row. Five measures enforce it.

- Products are taken with functions of confounders that, where the rule asks for it, are the same
  for all rows of a group of neighbours (`data.spots`).
- A feature takes part in products only if its values do not single out a few rows (`is_spread`),
  and must not be another one times a function of a confounder (`refuse_multiples`).
- Features that determine one another have values in the same rows (`refuse_twins`).
- Instead of third and fourth powers, classes of a domain's skewness and kurtosis are written.
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
_PART = 0.05  # slope, in standard units, of a feature that determines another
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


def shapes(stats: Any, cells: list[int], enough: Array, few: float) -> tuple[Array, Array]:
    r"""Return skewness and kurtosis of features within some cells, NaN where rows are too few.

    `enough` (n_cells, n_features) marks features with enough values in a cell. Of what curves leave
    the kurtosis is one of 1, 3, 9, 36, ..., and the skewness one of 0, 2, 8: with more digits,
    one value far from all others could be computed from them. The kurtosis is also cut at
    :math:`n / (2.5 k)` with k = `few`. A row's share of the squares is at most the root of
    kurtosis / n: at the limit about a third, so the file shows no row with more than that.
    """
    moments, continuous = stats.sums.moments, stats.sums.continuous
    n, sd = np.where(enough, moments.n_values[cells], 0.0), moments.sd[cells]
    n = np.where(sd > 0, n, 0.0)
    total, unit = n.sum(axis=0), np.where(sd > 0, sd, 1.0)
    left, bent = unit**2, np.zeros_like(unit)
    if continuous is not None:
        left, _, bent = (one[cells] for one in continuous.cumulants())
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        third, fourth, curve, rest = (
            np.where(n > 0, values, 0.0).sum(axis=0) / ones_for_zeros(total)
            for values in (
                moments.third[cells] / unit**3,
                moments.fourth[cells] / unit**4,
                n * (3 + bent / unit**4),
                n * (left / unit**2) ** 2,
            )
        )
        if not stats.is_rounded:
            fourth = curve + rest * (_kurtosis(3 + (fourth - curve) / ones_for_zeros(rest)) - 3)
            third = np.sign(third) * np.where(abs(third) < 1, 0.0, _nearest(abs(third), 2.0))
    most = total / (SPREAD * few)
    is_known = most >= 4.0  # so that the limit is above the normal distribution's 3
    fourth = np.clip(fourth, 1.0, np.maximum(most, 1.0))
    third = np.clip(third, -np.sqrt(fourth - 1), np.sqrt(fourth - 1))
    pair = rounded(third, 1.0), rounded(fourth, 0.1)
    return tuple(np.where(is_known, one, np.nan) for one in pair)  # type: ignore[return-value]


def _kurtosis(values: Array) -> Array:
    """Return the class of values of kurtosis: two-valued, about normal, or how heavy tails are."""
    light = np.where(values < 1.5, 1.0, 3.0)
    return np.asarray(np.where(values < np.sqrt(18.0), light, _nearest(values, 9.0)))


def _nearest(values: Array, typical: float) -> Array:
    """Return `typical` times the power of 4, at least 1, that is nearest to a value."""
    power = np.rint(np.log(np.maximum(values / typical, 1.0)) / np.log(4.0))
    return np.asarray(typical * 4.0**power)


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


def refuse_twins(X: Array, gaps: Array, count: Array, names: Array, least: int) -> None:
    r"""Refuse features that others determine linearly, if few rows of a cell lack some of them.

    The sum of one less that of the other is then the value of the few rows that lack one, up to
    :math:`\sqrt n s` with s the standard deviation of what the others leave. `X` are some of the
    rows, `gaps` how many rows of each cell lack each feature.
    """
    d, known = X.shape[1], ~np.isnan(X)
    if not 1 < d <= _MOST_COMPARED or not gaps.any():
        return
    Y = np.where(known, X - np.nanmean(np.where(known.any(axis=0), X, 0.0), axis=0), 0.0)
    Y /= ones_for_zeros(np.sqrt((Y**2).mean(axis=0)))
    K = known.astype(float)
    n, S, Q = np.maximum(K.T @ K, 1.0), Y.T @ K, (Y**2).T @ K
    squares = np.maximum(Q - S**2 / n, 0.0)  # of one feature where another is known as well
    alike = (Y.T @ Y - S * S.T / n) ** 2 / ones_for_zeros(squares * squares.T)
    left = np.where((n > 8) & (squares * squares.T > 0), np.maximum(1 - alike, 0.0), 1.0)
    pairs = np.argwhere(left * count.min() < 1)
    found = [(i, np.array([j]), left[i, j]) for i, j in pairs if i != j]
    rows = Y[known.all(axis=1)]
    if len(rows) > 4 * (d + 1):  # what all others leave of a feature is in the inverse
        P = np.linalg.pinv(np.cov(rows.T) + 1e-9 * np.eye(d), hermitian=True)
        slopes = P / np.diag(P)[:, None]
        some = [
            np.flatnonzero((abs(row) > _PART) & (np.arange(d) != i)) for i, row in enumerate(slopes)
        ]
        found += [(i, one, 1 / P[i, i]) for i, one in enumerate(some) if len(one)]
    for i, others, rest in found:
        lack = abs(gaps[:, others] - gaps[:, [i]])
        unlike = (known[:, others] != known[:, [i]]).sum(axis=0)
        many = unlike / len(X) * count[:, None] >= 2 * least  # rows of a cell that lack only one
        few = (lack > 0) & (lack < least) & ~many | (unlike > 0) & (unlike < least)
        if (rest * count[few.any(axis=1)] < 1).any():
            raise refusal(
                "Sums of {one!r} and {others} would reveal the few rows that lack only one of "
                "them, because one nearly is a linear function of the other. {@Leave one out of "
                "`features`}, or the rows that lack one.",
                one=names[i],
                others=listing(names[others]),
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
