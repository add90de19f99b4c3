"""Categories alone: estimates and errors from moments of (level, side) cells."""

from dataclasses import dataclass

import numpy as np

from condokit.checks import Array
from condokit.solvers.pooled.design import best_scale
from condokit.solvers.pooled.noise import share_levels
from condokit.solvers.pooled.projections import Reduced, residual_variance, strata_reduced
from condokit.solvers.pooled.rowwise import LARGEST_LEVERAGE, Batch, blend
from condokit.summaries.rows import Rows

_IS_QUERY = np.array([1.0, 0.0])[:, None]


@dataclass(frozen=True)
class StrataMoments:
    """Counts, means and central sums of powers 2 to 4 of (level, side) cells; side 0 is the query.

    All but `count` have the shape (n_levels, 2, n_features), in standard units of each side.
    """

    count: Array
    mean: Array
    powers: tuple[Array, Array, Array]

    @classmethod
    def of(cls, rows: Rows) -> "StrataMoments":
        """Return the moments of the compared strata in standard units."""
        stats, unit = rows.strata, rows.unit

        def by_level(table: Array) -> Array:
            return np.stack(np.split(table, 2), axis=1)

        powers = (stats.squares, stats.third, stats.fourth)
        scaled = [by_level(power) / unit**k for k, power in zip((2, 3, 4), powers)]
        mean = (by_level(stats.mean) - rows.mean) / unit
        return cls(by_level(stats.count[:, None]), mean, (scaled[0], scaled[1], scaled[2]))

    @property
    def dof(self) -> float:
        """Rows less levels and the offset."""
        total = self.count.sum(axis=1)
        return max(float(total.sum()) - int((total > 0).sum()) - 1, 1.0)


def fit_moments(
    cells: StrataMoments, fixed: Array, constant: Array, n_effective: float
) -> tuple[Batch, Array]:
    """Fit all features as normal, and return the kurtosis of their residuals.

    Residuals and scores are polynomials of x in every cell, so that sums of their squares are
    combinations of moments. `constant` features have one variance for all levels.
    """
    n, x, (c2, c3, c4) = cells.count, cells.mean, cells.powers
    d = x.shape[2]
    total = n.sum(1)
    N = float(n.sum())
    dof = cells.dof
    nq = np.asarray(n[:, 0].sum())
    share = n[:, 0] / np.maximum(total, 1e-300)
    m, v, precision, red = _alternate(cells, fixed, constant, n_effective, dof)
    s2 = residual_variance(red, m, dof)
    gap = m * (x[:, 0] + red.b[1]) + red.b[0] - x[:, 1]
    n_eff = np.maximum(red.n_eff, 0.25)
    sv = (s2 * v)[:, None]
    # e = i + j t, m y1 = k + l t in each cell, t = x less the cell's mean
    off = np.stack([1 - share, -share], axis=1)  # (K, 2, 1)
    i, k = off * gap[:, None], off * (m * (x[:, 0] + red.b[1]))[:, None]
    j = np.stack([np.broadcast_to(m, v.shape), np.ones(v.shape)], axis=1)
    l = j * _IS_QUERY  # noqa: E741
    fourth = n * i**4 + 6 * i**2 * j**2 * c2 + 4 * i * j**3 * c3 + j**4 * c4
    kurtosis = (fourth / sv**2).sum((0, 1)) / N
    Q = ((n * i * k + j * l * c2) / sv).sum(1)  # of e m y1, by level
    spread = ((n * i**2 + j**2 * c2) / sv).sum(1)  # of e^2, by level
    freed, drop = _freed(Q, spread, n_eff, dof, precision, constant)
    quad = m**2 * red.G[2] / s2
    model = np.maximum(quad - n_eff, 0.0) + 2 * n_eff * np.maximum(1 - n_eff / dof, 0.02)
    H = np.maximum(quad + n_eff - drop, 0.25 * model)
    # psi = A + B t + C t^2, with the level's multiple of (r^2 - dof / N) / 2 taken off
    f = 0.5 * freed[:, None]
    A = i * k / sv - _IS_QUERY * n_eff / nq - f * (i**2 / sv - dof / N)
    B = (i * l + k * j) / sv - 2 * f * i * j / sv
    C = j * l / sv - f * j**2 / sv
    inverse = np.where(total > 0, 1 / np.maximum(total, 1e-300), 0.0)
    h = inverse[:, None] + off**2 / (v * red.gqq)[:, None]
    rest = 1 - np.minimum(h, LARGEST_LEVERAGE)
    sums = n * A**2 + (B**2 + 2 * A * C) * c2 + 2 * B * C * c3 + C**2 * c4
    V_sand = (sums / rest**2).sum((0, 1)) / H**2
    weight = off / (v * red.gqq)[:, None]
    V_b = (weight**2 * (n * i**2 + j**2 * c2) / rest**2).sum((0, 1))
    cross = n * A * i + B * j * c2 + C * (i * c2 + j * c3)
    cov = (weight * cross / rest**2).sum((0, 1)) / H
    V, V_image, cov = blend(V_sand, 1 / model, V_b, s2 / red.gqq, cov, N, dof)
    return Batch(m, red, s2, np.full(d, np.inf), V, V_image, cov), kurtosis


def _alternate(
    cells: StrataMoments, fixed: Array, constant: Array, n_effective: float, dof: float
) -> tuple[Array, Array, float, Reduced]:
    """Renew scales and variances of levels in turn; return also the prior precision of these."""
    n, x, c2 = cells.count, cells.mean, cells.powers[0]
    K, _, d = x.shape
    total, nq = n.sum(1), np.asarray(n[:, 0].sum())
    g = n.prod(1) / np.maximum(total, 1e-300)
    v: Array = np.ones((K, d))
    precision = np.inf
    red = strata_reduced(n, x, c2, None, nq)
    m = np.where(np.isnan(fixed), best_scale(red.G, red.n_eff, dof), fixed)
    for _ in range(12 if K > 1 else 0):
        s2 = residual_variance(red, m, dof)
        gap = m * (x[:, 0] + red.b[1]) + red.b[0] - x[:, 1]
        squares = m**2 * c2[:, 0] + c2[:, 1] + g * gap**2
        own = np.maximum(total - 1, 0.0) - np.minimum(g / v / red.gqq, 1.0)
        own = np.maximum(np.broadcast_to(own, squares.shape), 0.0)
        log_v, precision = share_levels(squares / s2, own, n_effective)
        log_v -= (total * log_v).sum(0) / n.sum()
        v = np.where(constant, 1.0, np.exp(np.clip(log_v, -8, 8)))
        before = m
        red = strata_reduced(n, x, c2, v, nq)
        m = np.where(np.isnan(fixed), best_scale(red.G, red.n_eff, dof), fixed)
        if (np.abs(np.log(m / before)) * np.sqrt(np.maximum(red.n_eff, 1)) < 0.02).all():
            break
    return m, v, precision, red


def _freed(
    Q: Array, spread: Array, n_eff: Array, dof: float, precision: float, constant: Array
) -> tuple[Array, Array]:
    """Return the multiple of t taken off scores by level, and what H loses, for the variances."""
    if not np.isfinite(precision):
        return np.broadcast_to(2 * n_eff / dof, Q.shape), 2 * n_eff**2 / dof
    own = spread / 2 + precision
    a = precision / own
    H00 = np.maximum((spread / 2 * a).sum(0), 1e-12)
    common = (Q * a).sum(0) / H00
    freed = np.where(constant, Q.sum(0) / (dof / 2), Q / own + common * a)
    drop = (Q**2 / own).sum(0) + (Q * a).sum(0) ** 2 / H00
    return freed, np.where(constant, n_eff**2 / (dof / 2), drop)
