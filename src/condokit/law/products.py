r"""Rows that stand for products: few rows with the same sums of products as all rows of a group.

For a group of n rows with columns of mean m and covariance :math:`A A'`, and a feature of mean
:math:`\mu` with coefficients c on :math:`A^{-1} (\phi - m)` and residuals of variance
:math:`\tau^2`, let u run over the r + 1 corners of a regular simplex with mean 0 and covariance I,
and e over three values with mean 0, variance 1 and the kurtosis of residuals. The rows

.. math:: \phi = m + A u, \quad x = \mu + c'u + \tau e

with equal shares of n over u have the group's count, means, and all products of two columns or of
columns and features. So whatever is a function of these (scales, offsets, evidence, variances of
groups) comes out the same, to rounding, as from all rows. What is lost: residuals do not depend on
u, so that standard errors are those of rows whose residuals are alike over each group.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import helmert

from condokit.checks import SMALLEST, Array
from condokit.data.continuous import Continuous
from condokit.data.grouped import GroupedMoments
from condokit.data.products import GroupedProducts


@dataclass(frozen=True)
class NodeRows:
    """Rows that stand for groups of rows."""

    X: Array  # (n_rows, n_features)
    Phi: Array  # (n_rows, n_columns)
    counts: Array  # (n_rows, 1 or n_features)
    group: Array  # (n_rows,)


def node_rows(products: GroupedProducts, kurtosis: Array | float = 3.0) -> NodeRows:
    """Return rows with the same products, whose residuals have the given kurtosis k (by feature).

    The three residuals are -sqrt(k), 0 and sqrt(k), with shares 1/2k, 1 - 1/k and 1/2k: their
    variance is 1 and their kurtosis k.
    """
    present = np.flatnonzero(products.count)
    n, r, k = products.count[present], products.n_columns, np.atleast_1d(kurtosis)
    mean, squares = products.mean[present], products.squares[present]
    A, c = (table[present] for table in products.roots()[:2])
    left = np.maximum(squares / n[:, None] - (c**2).sum(axis=1), 0.0)
    corners = np.sqrt(r + 1.0) * helmert(r + 1).T  # (r + 1, r)
    Phi = mean[:, None, :r] + corners @ np.swapaxes(A, 1, 2)
    E, shares = np.sqrt(k * left), np.stack([0.5 / k, 1 - 1 / k, 0.5 / k])
    X = (mean[:, None, r:] + corners @ c)[:, None] + np.stack([E, 0 * E, -E], axis=1)[:, :, None]
    counts = n[:, None, None, None] / (r + 1) * shares[:, None] * np.ones((r + 1, 1))
    Phi = np.repeat(Phi[:, None], 3, axis=1)  # (group, residual, corner, column), as the others
    group = np.repeat(present, 3 * (r + 1))
    size = len(group), -1
    return NodeRows(X.reshape(size), Phi.reshape(size), counts.reshape(size), group)


def value_rows(
    products: GroupedProducts, X: Array, counts: Array, group: Array, unit: Array
) -> NodeRows:
    """Return rows that stand for one feature's values, which lack the curves of confounders.

    `X` and `counts` have the shape (n_values, 1), in standard units, as has `unit`; `group` is that
    of each value. Each value is repeated at all corners of its group, with the curve added there.
    """
    r = products.n_columns
    A, c, _ = products.roots()
    corners = np.sqrt(r + 1.0) * helmert(r + 1).T
    Phi = products.mean[:, None, :r] + corners @ np.swapaxes(A, 1, 2)
    X = X[:, None] + (corners @ c)[group] / unit[:, None]
    counts = np.repeat(counts / (r + 1), r + 1, axis=0)
    return NodeRows(X.reshape(-1, 1), Phi[group].reshape(-1, r), counts, np.repeat(group, r + 1))


def residual_kurtosis(stats: GroupedMoments, continuous: Continuous) -> tuple[Array, Array]:
    """Return the kurtosis of residuals, (n_features,), and which features have heavy tails.

    The fourth cumulant of a feature is that of its curve plus that of the residual. So the curve's
    is subtracted, and the rest is pooled over the groups in which the curve explains less than it
    leaves. With variances v of the feature and s of residuals, the variance of the excess kurtosis
    is about :math:`24 (v / s)^4 / n`. Tails are heavy if the excess is beyond five standard errors
    plus one half.
    """
    left, second, fourth = continuous.cumulants()
    n, used = np.maximum(stats.n, 1.0), (second < left) & (left > SMALLEST**2)
    least, weight = np.where(used, left, 1.0), np.where(used, n, 0.0)
    excess = (stats.fourth / n - 3 * (stats.squares / n) ** 2 - fourth) / least / least
    total = np.maximum(weight.sum(axis=0), 1e-300)
    excess = np.where(weight > 0, excess * weight, 0.0).sum(axis=0) / total
    error = (weight * (1 + np.where(used, second, 0.0) / least) ** 4).sum(axis=0)
    heavy = excess > 5 * np.sqrt(24 * error) / total + 0.5
    return np.where(heavy, 3 + excess, 3.0), heavy


def unexplained(stats: GroupedMoments, products: GroupedProducts | None) -> Array:
    """Return products of some features by group, less what known columns explain of them.

    The columns' products may be those of all rows, where those of features are of a sample: they
    are scaled to its size.
    """
    together = stats.products
    assert together is not None
    if products is None:
        return together.scatter
    _, c, _ = products.roots()
    share = together.count.sum() / max(float(products.count.sum()), 1.0)
    c = c[:, :, stats.few] * np.sqrt(share * products.count)[:, None, None]
    return together.scatter - np.swapaxes(c, 1, 2) @ c
