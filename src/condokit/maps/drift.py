"""Chances that rows of the same law look as different as these from rows a map was fitted on.

Statistics whose distribution is known for n new and m old rows, of one feature at a time. Tails
are those of a Student t, whose degrees of freedom say how heavy the feature's tails are.
"""

import numpy as np
from scipy.special import betaln, gammaln, stdtr, stdtrit

from condokit.checks import Array

TIED = 1.0  # degrees of freedom for features with so many equal values that tails mean nothing
_HEAVY = 3.0  # degrees of freedom of features with clearly heavy tails, which are hard to tell,
_CLEARLY = 8.0  # those whose kurtosis is that of fewer degrees of freedom than these
_LIGHTEST = 100.0  # degrees of freedom: as good as normal
_NO_VARIANCE = 5.0  # degrees of freedom below which variances are poorly known,
_POOR = 60.0  # as with this kurtosis
_DECILE = 0.1
_BEYOND = 10.0  # tails are known to one in so many times the rows; farther out they are _HEAVY
_CLOSE = 0.5  # standard deviations
_MOST_COUNTED = 1000  # rows: shares of more are as certain, and sums stay short
_LEAST_VARIANCE = 1e-24  # of unit variance: rounding


def degrees_of_freedom(kurtosis: Array, n_rows: Array) -> Array:
    r"""Return degrees of freedom of a Student t with tails about as heavy, rather too few.

    That with a kurtosis of :math:`3 + 6/(\nu - 4)`, two standard errors above that of the rows.
    """
    excess = np.maximum(kurtosis - 3 + 2 * np.sqrt(24 / np.maximum(n_rows, 1)), 0.01)
    nu = np.minimum(4 + 6 / excess, _LIGHTEST)
    return np.round(np.where(nu < _CLEARLY, _HEAVY, nu), 1)


def are_tied(ordered: Array) -> Array:
    """Mark features of which a tenth of the values or more are equal, in the middle or at an end.

    `ordered` are rows with every column in order and NaN last.
    """
    column, last = np.arange(ordered.shape[1]), np.maximum((~np.isnan(ordered)).sum(axis=0) - 1, 0)
    lowest, below, middle, above, highest = (
        ordered[np.round(share * last).astype(np.intp), column]
        for share in (0.0, _DECILE, 0.5, 1 - _DECILE, 1.0)
    )
    return (lowest == below) | (below == middle) | (middle == above) | (above == highest)


def assumed(tails: Array | None, low: Array, high: Array) -> Array:
    """Return degrees of freedom, with a cautious guess where a map's file does not tell them.

    `low` and `high` are the ends of the range in standard deviations from the mean: one that is
    close to the mean is the value of many rows.
    """
    guess = np.where((low > -_CLOSE) | (high < _CLOSE), TIED, _HEAVY)
    return guess if tails is None else np.where(np.isnan(tails), guess, tails)


def chance_of_value(far: Array, end: Array, area: Array, tails: Array, m: Array) -> Array:
    r"""Return the predicted area of one tail beyond a value.

    `far` is how far the value is from the mean, and `end` how far the last value with this `area`
    beyond it, both outwards in standard deviations; the standard deviation is used if the end is
    infinite, that is unknown. Tails are those of a t up to an area of 1 / (10 m), and fall as
    :math:`x^{-3}` farther out, where no row has been.
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
    r"""Return the chance of a difference of means, of unit variance in the fit.

    :math:`t = \delta / \sqrt{\max(s^2, 1) (1/n + 1/m)}`: with the larger variance a single value
    far away cannot move the mean by more than its own error. Of one row nothing is known here.
    """
    error = np.sqrt(np.maximum(variance, 1.0) * (1 / np.maximum(n, 1) + 1 / m))
    p = 2 * stdtr(np.maximum(m - 1, 1.0), -np.abs(shift) / error)
    return np.where(n > 1, p, 1.0)


def chance_of_spread(
    variance: Array, kurtosis: Array, tails: Array, tied: Array, n: Array, m: Array
) -> Array:
    r"""Return the chance of a ratio F of variances, also where tails are heavy.

    :math:`\log F` has the variance :math:`(\kappa - 1) (1/(n-1) + 1/(m-1))`, with the kurtosis of
    old rows or of new ones, whichever is larger. It is compared with a t of Box's
    :math:`2 (n - 1) / (\kappa - 1)` degrees of freedom (n or m, the smaller), or n - 1 if the
    spread is smaller, for then no new value is far away. Where tails fall as :math:`x^{-3}`, one
    value makes a variance r times as large with a chance of about :math:`n^{-1/2} r^{-3/2}`, and
    the larger chance counts.
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
    # rows of a feature with many equal values are all equal now and then
    return np.where(tied & (log_ratio < 0), 1.0, p)


def chance_of_count(k: Array, n: Array, k_old: Array, m: Array) -> Array:
    r"""Return the chance that at least k of n new rows have what `k_old` of m old rows have.

    Beta-binomial: :math:`\sum_{j \ge k} \binom nj B(j + a, n - j + b) / B(a, b)` with
    :math:`a = k_{old} + 1, b = m - k_{old} + 1`. Whatever the law: rows of both are exchangeable.
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
