r"""Rows that stand for products: as many as there are columns, with the same sums of two factors.

For a group of n rows with columns of mean m and covariance :math:`A A'`, and a feature of mean
:math:`\mu` with coefficients c on :math:`A^{-1} (\phi - m)` and residuals of variance
:math:`\tau^2`, let u run over the r + 1 corners of a regular simplex with mean 0 and covariance I,
and e over three values with the moments of the residuals. The rows

.. math:: \phi = m + A u, \quad x = \mu + c'u + \tau e

with equal shares of n over u have the group's count, means, and all products of two columns or of
columns and features. So whatever is a function of these (scales, offsets, evidence, variances of
groups) comes out the same, to rounding, as from all rows. Residuals have their own moments up to
the fourth and do not depend on u: errors are those of rows whose residuals are alike given their
group.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import helmert

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros
from condokit.data.grouped import GroupedMoments
from condokit.data.products import GroupedProducts
from condokit.solvers.pooled.stacked import nodes

_RANK = 1e-12  # share of a variance that is rounding


@dataclass(frozen=True)
class NodeRows:
    """Rows that stand for groups of rows."""

    X: Array  # (n_rows, n_features)
    Phi: Array  # (n_rows, n_columns)
    counts: Array  # (n_rows, 1 or n_features)
    group: Array  # (n_rows,)


def node_rows(products: GroupedProducts, residuals: GroupedMoments | None = None) -> NodeRows:
    """Return rows with the same products; without moments of `residuals` these are normal."""
    present = np.flatnonzero(products.count)
    n, r = products.count[present], products.n_columns
    mean, squares = products.mean[present], products.squares[present]
    A, c = _roots(products, present)
    left = np.maximum(squares / n[:, None] - (c**2).sum(axis=1), 0.0)
    corners = np.sqrt(r + 1.0) * helmert(r + 1).T  # (r + 1, r)
    Phi = mean[:, None, :r] + corners @ np.swapaxes(A, 1, 2)
    X = mean[:, None, r:] + corners @ c
    E, shares = _residual_nodes(left, None if residuals is None else (residuals, present))
    X = (X[None] + E[:, :, None]).swapaxes(0, 1)  # (group, residual node, corner, feature)
    counts = shares[:, :, None] * np.full((r + 1, 1), 1 / (r + 1)) * n[:, None, None]
    counts = counts.swapaxes(0, 1).reshape(-1, shares.shape[2])
    Phi = np.repeat(Phi[:, None], 3, axis=1).reshape(-1, r)
    return NodeRows(X.reshape(len(Phi), -1), Phi, counts, np.repeat(present, 3 * (r + 1)))


def _residual_nodes(
    variance: Array, known: tuple[GroupedMoments, Array] | None
) -> tuple[Array, Array]:
    """Return three values of residuals (3, n_groups, n_features), and their shares."""
    if known is None:
        sd = np.sqrt(3 * variance)
        return np.stack([sd, 0 * sd, -sd]), np.array([1 / 6, 2 / 3, 1 / 6]).reshape(3, 1, 1)
    moments, present = known
    own = GroupedMoments(len(present), variance.shape[1])
    n, own.count = ones_for_zeros(moments.count[present])[:, None], np.ones(len(present))
    sd = ones_for_zeros(np.sqrt(moments.squares[present] / n))
    own.squares, own.third = variance, moments.third[present] / n * (np.sqrt(variance) / sd) ** 3
    own.fourth = moments.fourth[present] / n * (variance / sd**2) ** 2
    E, shares, _ = nodes(own, np.zeros(1), np.ones(1))
    return E.reshape(3, *variance.shape), shares.reshape(3, *variance.shape)


def _roots(products: GroupedProducts, present: Array) -> tuple[Array, Array]:
    """Return A, shape (n_groups, r, r), and the coefficients c, shape (n_groups, r, n_features)."""
    n, r = ones_for_zeros(products.count[present]), products.n_columns
    scatter = products.scatter[present][:, :r] / n[:, None, None]
    size = ones_for_zeros(np.sqrt(np.einsum("gii->gi", scatter[:, :, :r])))
    R = scatter[:, :, :r] / (size[:, :, None] * size[:, None, :])
    value, vector = np.linalg.eigh((R + np.swapaxes(R, 1, 2)) / 2)
    good = value > _RANK * r
    root = np.sqrt(np.where(good, value, 0.0))
    A = size[:, :, None] * vector * root[:, None, :]
    turned = np.swapaxes(vector, 1, 2) @ (scatter[:, :, r:] / size[:, :, None])
    return A, turned * np.where(good, 1 / ones_for_zeros(root), 0.0)[:, :, None]


def unexplained(stats: GroupedMoments, products: GroupedProducts | None) -> Array:
    """Return products of a few features by group, less what columns explain of these, if known."""
    together = stats.products
    assert together is not None
    if products is None:
        return together.scatter
    _, c = _roots(products, np.arange(len(products.count)))
    share = together.count.sum() / max(float(products.count.sum()), 1.0)
    c = c[:, :, stats.few] * np.sqrt(share * products.count)[:, None, None]
    return together.scatter - np.swapaxes(c, 1, 2) @ c
