"""Probabilities that rows of the same distribution differ as much from those of the fit.

The statistics have a known distribution for n new and m old rows, one feature at a time. Tails are
those of Student's t, whose degrees of freedom say how heavy the feature's tails are.
"""

import numpy as np
from scipy.special import betaln, gammaln, stdtr, stdtrit

from condokit.checks import Array

TIED = 1.0  # degrees of freedom for features with so many equal values that tails mean nothing
_HEAVY = 3.0  # degrees of freedom of features with clearly heavy tails, hard to estimate;
_CLEARLY = 8.0  # those whose kurtosis is that of a t with fewer degrees of freedom than this
_LIGHTEST = 100.0  # degrees of freedom: as good as normal
_NO_VARIANCE = 5.0  # degrees of freedom below which variances are poorly known,
_POOR = 60.0  # as if this were the kurtosis
_DECILE = 0.1  # share of equal values that makes a feature discrete
_BEYOND = 10.0  # tails are those of the t to an area of 1 / (10 m), and `_HEAVY` farther out
_CLOSE = 0.5  # standard deviations from the mean
_MOST_COUNTED = 1000  # rows: shares of more rows are known as well, and sums stay short
_LEAST_VARIANCE = 1e-24  # of unit variance: rounding


def degrees_of_freedom(kurtosis: Array, n_rows: Array) -> Array:
    r"""Return degrees of freedom of a Student t whose tails are about as heavy, or heavier.

    It has the kurtosis :math:`3 + 6/(\nu - 4)`, two standard errors above that of the rows.
    """
    excess = np.maximum(kurtosis - 3 + 2 * np.sqrt(24 / np.maximum(n_rows, 1)), 0.01)
    nu = np.minimum(4 + 6 / excess, _LIGHTEST)
    return np.round(np.where(nu < _CLEARLY, _HEAVY, nu), 1)


def are_tied(ordered: Array) -> Array:
    """Mark features with a tenth or more of equal values in the middle or at an end of their range.

    `ordered` are rows with every column sorted and NaN last.
    """
    column, last = np.arange(ordered.shape[1]), np.maximum((~np.isnan(ordered)).sum(axis=0) - 1, 0)
    lowest, below, middle, above, highest = (
        ordered[np.round(share * last).astype(np.intp), column]
        for share in (0.0, _DECILE, 0.5, 1 - _DECILE, 1.0)
    )
    return (lowest == below) | (below == middle) | (middle == above) | (above == highest)


def assumed(tails: Array | None, low: Array, high: Array) -> Array:
    """Return degrees of freedom, with a cautious guess where a map's file does not have them.

    `low` and `high` are the ends of the range in standard deviations from the mean. An end close to
    the mean is the value of many rows, so that tails mean nothing.
    """
    guess = np.where((low > -_CLOSE) | (high < _CLOSE), TIED, _HEAVY)
    return guess if tails is None else np.where(np.isnan(tails), guess, tails)


def chance_of_value(far: Array, end: Array, area: Array, tails: Array, m: Array) -> Array:
    """Return the probability of a value farther out, in one tail.

    `far` is the distance of the value from the mean, and `end` that of the last old value with the
    share `area` of rows beyond it, both outwards in standard deviations. If the end is infinite, it
    is unknown, and the standard deviation is used. Tails are those of a t up to an area of 1 / (10
    m); farther out, where there was no row, they fall as :math:`x^{-3}`.
    """
    nu = np.minimum(tails, np.maximum(m - 1, 1.0))
    # a t of unit variance; of heavy tails the standard deviation is rather too small
    unit = np.sqrt((1 + 1 / m) * np.where(nu > _HEAVY, 1 - 2 / np.maximum(nu, _HEAVY), 1.0))
    reached = np.maximum(end, 1.0) / stdtrit(nu, 1 - np.minimum(area, 0.1))
    unit = np.where(np.isfinite(end), reached, unit)
    least = 1 / (_BEYOND * m)
    z, last = np.maximum(far, 0.0) / unit, stdtrit(nu, 1 - least)
    beyond = least * (np.maximum(z, last) / last) ** -np.minimum(nu, _HEAVY)
    return np.where(z > last, beyond, stdtr(nu, -z))


def chance_of_mean(shift: Array, variance: Array, n: Array, m: Array) -> Array:
    r"""Return the p-value of a difference of means; the variance in the fit is one.

    :math:`t = \delta / \sqrt{\max(s^2, 1) (1/n + 1/m)}`: with the larger variance, a single value
    far away cannot move the mean by more than its own error. One row shows nothing about the mean.
    """
    error = np.sqrt(np.maximum(variance, 1.0) * (1 / np.maximum(n, 1) + 1 / m))
    p = 2 * stdtr(np.maximum(m - 1, 1.0), -np.abs(shift) / error)
    return np.where(n > 1, p, 1.0)


def chance_of_spread(
    variance: Array, kurtosis: Array, tails: Array, tied: Array, n: Array, m: Array
) -> Array:
    r"""Return the p-value of a ratio F of variances, valid for heavy tails as well.

    :math:`\log F` has the variance :math:`(\kappa - 1) (1/(n-1) + 1/(m-1))`, with the larger
    kurtosis of old and new rows. It is compared with a t. If the spread is larger, this has Box's
    :math:`2 (n - 1) / (\kappa - 1)` degrees of freedom (with m if smaller); if it is smaller, n -
    1, for then no new value is far away. Where tails fall as :math:`x^{-3}`, one value makes a
    variance r times as large with a probability of about :math:`n^{-1/2} r^{-3/2}`, and the larger
    p-value counts.
    """
    heavy = tails < _NO_VARIANCE
    least = np.where(heavy, _POOR, 3 + 6 / np.maximum(tails - 4, 1.0))
    kurtosis = np.where(heavy, _POOR, np.maximum(kurtosis, least))
    n, m = np.maximum(n - 1, 1.0), np.maximum(m - 1, 1.0)
    log_ratio = np.log(np.maximum(variance, _LEAST_VARIANCE))
    size, few = np.abs(log_ratio), np.minimum(n, m)
    dof = np.where(heavy | (log_ratio < 0), n, np.maximum(2 * few / (kurtosis - 1), 0.5))
    p = 2 * stdtr(dof, -size / np.sqrt((kurtosis - 1) * (1 / n + 1 / m)))
    p = np.where(heavy, np.maximum(p, few**-0.5 * np.exp(-1.5 * size)), p)
    # a few rows of a feature with many equal values may well be all equal
    return np.where(tied & (log_ratio < 0), 1.0, p)


def chance_of_count(k: Array, n: Array, k_old: Array, m: Array) -> Array:
    r"""Return the probability that at least k of n rows are hits, if `k_old` of m old rows were.

    Beta-binomial: :math:`\sum_{j \ge k} \binom nj B(j + a, n - j + b) / B(a, b)` with
    :math:`a = k_{old} + 1, b = m - k_{old} + 1`. It holds for any distribution, since rows are
    exchangeable.
    """
    p = np.ones(len(k))
    for j in np.flatnonzero((k > 0) & (k / np.maximum(n, 1) > k_old / m)):
        new, old = (min(1.0, _MOST_COUNTED / x[j]) for x in (n, m))
        size, a = np.ceil(n[j] * new), k_old[j] * old + 1
        b = (m[j] - k_old[j]) * old + 1
        hits = np.arange(np.floor(k[j] * new), size + 1)
        ways = gammaln(size + 1) - gammaln(hits + 1) - gammaln(size - hits + 1)
        p[j] = np.exp(ways + betaln(hits + a, size - hits + b) - betaln(a, b)).sum()
    return np.minimum(p, 1.0)
