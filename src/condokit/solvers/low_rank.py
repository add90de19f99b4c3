"""Diagonal plus low rank: maps of very many features, at a cost that is linear in their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, svds

from condokit.checks import Array
from condokit.solvers.lbfgs import lbfgs
from condokit.solvers.solution import Solution
from condokit.summaries.factors import FactorGaussian, FactorPair

_PULL = 0.4  # of the noise in the gradient, sqrt(features / rows)


def minimise_low_rank(pair: FactorPair, start: Solution, rank: int) -> Solution:
    """Return the best map of low rank beside a diagonal, after which the pair is given."""
    scale, offset = start.scale, start.offset
    unit, middle = pair.unit, pair.middle
    penalty = _PULL * float(np.sqrt(len(unit) / pair.fewest_rows))
    objective = LowRankKL(pair.query, pair.reference, pair.weights, penalty)
    (m, U, V, c), best = objective.minimise(rank)
    # y = unit (m x' + U V' x' + c) + middle with x' = (scale x + offset - middle) / unit
    from_middle = (offset - middle) / unit
    return Solution.of(
        m * scale,
        unit * (m * from_middle + U @ (V.T @ from_middle) + c) + middle,
        left=U * unit[:, None],
        right=V * (scale / unit)[:, None],
        objective=float(best.fun),
        n_iter=int(best.nit),
        gradient_norm=float(np.abs(best.jac).max()),
    )


class LowRankKL:
    r"""Reverse KL of :math:`x \mapsto \operatorname{diag}(m) x + U V' x + c`, linear in features.

    The gradient in the matrix, :math:`G = \sum_k w_k P_k (A C_k + r_k \mu_k') - A^{-T}`, is never
    formed: all that is needed are :math:`G V`, :math:`G' U` and its diagonal, which follow from
    products of diagonal-plus-low-rank matrices with thin ones.

    Parameters
    ----------
    query, reference : list of FactorGaussian
        The domains at the support values.
    weights : ndarray
        Prior weights.
    penalty : float
        Weight of :math:`(|U|^2 + |V|^2) / 2`.
    """

    def __init__(
        self,
        query: list[FactorGaussian],
        reference: list[FactorGaussian],
        weights: Array,
        penalty: float,
    ) -> None:
        self.query, self.reference, self.weights = query, reference, weights
        self.precisions = [side.precision() for side in reference]
        self.penalty = penalty
        ratio = [r.log_det() - q.log_det() for q, r in zip(query, reference)]
        self.constant = 0.5 * float(weights @ np.array(ratio) - len(query[0].mean))

    def value_and_grad(self, m: Array, U: Array, V: Array, c: Array) -> tuple[float, list[Array]]:
        """Return the value and the gradients in log m, U, V and c."""
        inverse = _inverse(m, U, V)
        if inverse is None:
            return np.inf, []
        value = self.constant - inverse.log_det
        value += 0.5 * self.penalty * float((U**2).sum() + (V**2).sum())
        diagonal = -inverse.diagonal()
        GV = -inverse.transposed_times(V)
        GU = -inverse.times(U)
        d_c = np.zeros_like(c)
        for w, q, r, (p, W) in zip(self.weights, self.query, self.reference, self.precisions):
            residual = m * q.mean + U @ (V.T @ q.mean) + c - r.mean
            pull = p * residual - W @ (W.T @ residual)
            # P A = diag(p m) + L R'
            AW = m[:, None] * W + V @ (U.T @ W)
            L, R = np.hstack([p[:, None] * U, -W]), np.hstack([V, AW])
            CR, CV = q.times(R), q.times(V)
            PAC_diagonal = p * m * (q.noise + (q.factors**2).sum(axis=1)) + (L * CR).sum(axis=1)
            PACV = (p * m)[:, None] * CV + L @ (R.T @ CV)
            CAPU = q.times((p * m)[:, None] * U) + CR @ (L.T @ U)
            diagonal = diagonal + w * (PAC_diagonal + pull * q.mean)
            GV = GV + w * (PACV + np.outer(pull, q.mean @ V))
            GU = GU + w * (CAPU + np.outer(q.mean, pull @ U))
            d_c += w * pull
            # tr(P A C A') = sum of diag(P A C) against the diagonal of A, and P A C V against U
            value += 0.5 * w * float(PAC_diagonal @ m + (PACV * U).sum() + pull @ residual)
        GV, GU = GV + self.penalty * U, GU + self.penalty * V
        return float(value), [diagonal * m, GV, GU, d_c]

    def leading(self, rank: int) -> tuple[Array, Array]:
        """Return the steepest directions of low rank at the identity, as factors U and V."""
        d = len(self.query[0].mean)

        def product(M: Array, transposed: bool) -> Array:
            M = M.reshape(d, -1)
            total = M.copy()
            for w, q, r, (p, W) in zip(self.weights, self.query, self.reference, self.precisions):
                gap = q.mean - r.mean
                pull = p * gap - W @ (W.T @ gap)
                if transposed:
                    PM = p[:, None] * M - W @ (W.T @ M)
                    total -= w * (q.times(PM) + np.outer(q.mean, pull @ M))
                else:
                    CM = q.times(M)
                    total -= w * (p[:, None] * CM - W @ (W.T @ CM) + np.outer(pull, q.mean @ M))
            return total

        operator = LinearOperator(
            (d, d),
            matvec=lambda v: product(v, False),
            rmatvec=lambda v: product(v, True),
            matmat=lambda M: product(M, False),
            rmatmat=lambda M: product(M, True),
            dtype=np.float64,
        )
        left, size, right = svds(operator, k=rank, random_state=0)
        start = 0.3 * np.sqrt(np.minimum(size, 1.0))
        return left * start, right.T * start

    def minimise(self, rank: int, max_iter: int = 300) -> tuple[list[Array], Any]:
        """Return m, U, V, c near the identity, and the result of the search."""
        d = len(self.query[0].mean)
        U, V = self.leading(rank)
        shapes = [(d,), (d, rank), (d, rank), (d,)]
        ends = np.cumsum([0] + [int(np.prod(shape)) for shape in shapes])

        def parts(v: Array) -> list[Array]:
            log_m, U, V, c = (v[a:b].reshape(s) for a, b, s in zip(ends[:-1], ends[1:], shapes))
            return [np.exp(np.clip(log_m, -20, 20)), U, V, c]

        def function(v: Array) -> tuple[float, Array]:
            value, gradient = self.value_and_grad(*parts(v))
            return value, np.concatenate([g.ravel() for g in gradient]) if gradient else v

        zero = np.zeros(d)
        start = np.concatenate([zero, U.ravel(), V.ravel(), zero])
        best = lbfgs(function, start, max_iter=max_iter, ftol=1e-6, gtol=1e-6)
        return parts(best.x), best


@dataclass(frozen=True)
class _Inverse:
    """The inverse of diag(m) + U V', as diag(1 / m) - left right'."""

    scale: Array
    left: Array
    right: Array
    log_det: float

    def diagonal(self) -> Array:
        return self.scale - (self.left * self.right).sum(axis=1)

    def times(self, M: Array) -> Array:
        return self.scale[:, None] * M - self.left @ (self.right.T @ M)

    def transposed_times(self, M: Array) -> Array:
        return self.scale[:, None] * M - self.right @ (self.left.T @ M)


def _inverse(m: Array, U: Array, V: Array) -> _Inverse | None:
    """Return the inverse; None where the determinant is not positive."""
    left: Array = U / m[:, None]
    right: Array = V / m[:, None]
    core = np.eye(U.shape[1]) + V.T @ left
    sign, log_det = np.linalg.slogdet(core)
    if sign <= 0 or not np.isfinite(log_det):
        return None
    left = np.linalg.solve(core.T, left.T).T
    return _Inverse(1 / m, left, right, float(np.log(m).sum() + log_det))
