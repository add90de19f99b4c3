"""Diagonal plus low rank: maps of very many features, at a cost that is linear in their number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from condokit.checks import Array

_MOST_FACTORS = 10
_NOISE_FLOOR = 0.05  # least share of a variance that factors leave
_POOLED = 0.5  # share of the pooled covariance in that of a stratum


@dataclass(frozen=True)
class FactorGaussian:
    r"""A Gaussian with covariance :math:`\Psi + F F'`, diagonal plus factors.

    Attributes
    ----------
    mean, noise : ndarray of shape (n_features,)
        The mean and the diagonal.
    factors : ndarray of shape (n_features, n_factors)
        F.
    """

    mean: Array
    noise: Array
    factors: Array

    def times(self, M: Array) -> Array:
        """Return the covariance times M."""
        return self.noise[:, None] * M + self.factors @ (self.factors.T @ M)

    def precision(self) -> tuple[Array, Array]:
        r"""Return p and W of the inverse :math:`\operatorname{diag}(p) - W W'` (Woodbury)."""
        p = 1 / self.noise
        scaled = self.factors * p[:, None]
        core = np.eye(self.factors.shape[1]) + self.factors.T @ scaled
        return p, scaled @ np.linalg.inv(np.linalg.cholesky(core)).T

    def log_det(self) -> float:
        """Return the log-determinant of the covariance."""
        core = self.factors.T @ (self.factors / self.noise[:, None])
        return float(np.log(self.noise).sum() + np.linalg.slogdet(np.eye(len(core)) + core)[1])


def factor_gaussians(
    residual: Array, place: Array, mean: Array, counts: Array | None = None
) -> list[FactorGaussian]:
    r"""Return one Gaussian per stratum from residual rows, each half its own, half pooled.

    The leading principal axes of the covariance are its factors, with what exceeds the average of
    the others as their size; the rest of every feature's variance is noise.
    """
    d = residual.shape[1]
    counts = np.ones(len(residual)) if counts is None else counts
    residual, place, counts = residual[counts > 0], place[counts > 0], counts[counts > 0]
    residual = residual * np.sqrt(counts)[:, None]
    n = float(counts.sum())
    pooled = residual / np.sqrt(max(n - len(mean), 1))
    result = []
    for k in range(len(mean)):
        own, n_own = residual[place == k], float(counts[place == k].sum())
        rows = np.vstack(
            [
                own * np.sqrt((1 - _POOLED) / max(n_own - 1, 1)),
                pooled * np.sqrt(_POOLED if n_own > 1 else 1.0),
            ]
        )
        variance = (rows**2).sum(axis=0)
        gram = rows @ rows.T if len(rows) <= d else rows.T @ rows
        q = min(_MOST_FACTORS, len(gram) - 1, int(n) // 4)
        size, axes = np.linalg.eigh(gram)
        rest = float(size[: len(size) - q].mean()) if len(size) > q else 0.0
        size, axes = size[len(size) - q :], axes[:, len(axes) - q :]
        if len(rows) <= d:
            axes = rows.T @ axes / np.sqrt(np.maximum(size, 1e-300))
        factors = axes * np.sqrt(np.maximum(size - rest, 0.0))
        noise = np.maximum(variance - (factors**2).sum(axis=1), _NOISE_FLOOR * variance)
        result.append(FactorGaussian(mean[k], np.maximum(noise, 1e-12), factors))
    return result
