"""Maps with a diagonal plus a low-rank matrix, at a cost linear in the number of features."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, svds

from condokit.checks import Array
from condokit.maps.matrices import DiagonalPlusLowRank
from condokit.solvers.lbfgs import lbfgs
from condokit.solvers.solution import Solution
from condokit.summaries.factors import FactorGaussian, FactorPair

_PULL = 0.4  # weight of the penalty, over the noise of the gradient: sqrt(features / rows)


def minimise_low_rank(pair: FactorPair, start: Solution, rank: int) -> Solution:
    """Return the best map of low rank after the diagonal map `start`, which `pair` includes."""
    objective = LowRankKL(pair.query, pair.reference, pair.weights, penalty_of(pair))
    U, V = objective.leading(rank)
    zero, function = np.zeros(len(U)), partial(objective.of_numbers, rank=rank)
    begin = np.concatenate([zero, U.ravel(), V.ravel(), zero])
    best = lbfgs(function, begin, max_iter=300, ftol=1e-6, gtol=1e-6)
    found, norm = after_start(pair, start, best.x, rank), float(np.abs(best.jac).max())
    return replace(found, objective=float(best.fun), n_iter=int(best.nit), gradient_norm=norm)


def penalty_of(pair: FactorPair) -> float:
    """Return the weight of the penalty, which decreases with the number of rows."""
    return _PULL * float(np.sqrt(len(pair.unit) / pair.fewest_rows))


def after_start(pair: FactorPair, start: Solution, theta: Array, rank: int) -> Solution:
    """Return the map that theta = (log m, U, V, c) stands for, after the diagonal map `start`."""
    # y = unit (m x' + U V' x' + c) + middle with x' = (scale x + offset - middle) / unit
    m, U, V, c = parts(theta, rank)
    from_middle = (start.offset - pair.middle) / pair.unit
    return Solution.of(
        m * start.scale,
        pair.unit * (m * from_middle + U @ (V.T @ from_middle) + c) + pair.middle,
        left=U * pair.unit[:, None],
        right=V * (start.scale / pair.unit)[:, None],
    )


def after_own_diagonal(pair: FactorPair, solution: Solution) -> Array:
    """Return theta of a low-rank map, relative to its own diagonal part."""
    left, right = np.asarray(solution.left), np.asarray(solution.right)
    U = left / pair.unit[:, None]
    V = right * (pair.unit / solution.scale)[:, None]
    c = -U @ (V.T @ ((solution.offset - pair.middle) / pair.unit))
    return np.concatenate([np.zeros(len(c)), U.ravel(), V.ravel(), c])


def turns(theta: Array, rank: int) -> Array:
    """Return the directions in which theta may change without changing the map."""
    # U V' = (U + U K)(V - V K')' up to second order
    m, U, V, c = parts(theta, rank)
    rest = np.zeros(len(m))
    changes = ((U @ K, -V @ K.T) for K in np.eye(rank**2).reshape(-1, rank, rank))
    return np.array([np.concatenate([rest, u.ravel(), v.ravel(), rest]) for u, v in changes])


def parts(theta: Array, rank: int) -> list[Array]:
    """Return m, U, V and c from log m, U, V and c in one array."""
    d = len(theta) // (2 + 2 * rank)
    log_m, U, V, c = np.split(theta, np.cumsum([d, d * rank, d * rank]))
    m: Array = np.exp(np.clip(log_m, -20, 20))
    return [m, U.reshape(d, rank), V.reshape(d, rank), c]


class LowRankKL:
    r"""Reverse KL of :math:`x \mapsto \operatorname{diag}(m) x + U V' x + c`, linear in features.

    The gradient in the matrix, :math:`G = \sum_k w_k P_k (A C_k + r_k \mu_k') - A^{-T}`, is never
    formed: all that is needed are :math:`G V`, :math:`G' U` and its diagonal, which follow from
    products of diagonal-plus-low-rank matrices with thin ones.
    """

    def __init__(
        self,
        query: list[FactorGaussian],
        reference: list[FactorGaussian],
        weights: Array,
        penalty: float,  # weight of (|U|^2 + |V|^2) / 2
    ) -> None:
        self.penalty = penalty
        sides = [(w, q.mean, q.cov, r.mean, r.cov) for w, q, r in zip(weights, query, reference)]
        # weight, mean and covariance of the query, mean and precision of the reference
        self.strata: list[Any] = [(*side, S.inverse()) for *side, S in sides]
        ratio = sum(w * (S.log_det() - C.log_det()) for w, _, C, _, S in sides)
        self.constant = 0.5 * (ratio - len(query[0].mean))

    def value_and_grad(self, m: Array, U: Array, V: Array, c: Array) -> tuple[float, list[Array]]:
        """Return the value and the gradients in log m, U, V and c."""
        A = DiagonalPlusLowRank(m, U, V)
        sign, log_det = np.linalg.slogdet(A.core())
        if sign <= 0 or not np.isfinite(log_det):
            return np.inf, []
        value = self.constant - np.log(m).sum() - log_det
        value += 0.5 * self.penalty * float((U**2).sum() + (V**2).sum())
        inverse = A.inverse()
        diagonal, GV, GU, d_c = -inverse.diagonal(), -(inverse.T @ V), -(inverse @ U), 0 * c
        for w, mean, C, goal, P in self.strata:
            residual = A @ mean + c - goal
            pull = P @ residual
            # P A = diag(p m) + L R'
            pm = P.scale * m
            L, R = np.hstack([P.scale[:, None] * U, P.left]), np.hstack([V, A.T @ P.right])
            CR, CV = C @ R, C @ V
            PAC_diagonal = pm * C.diagonal() + (L * CR).sum(axis=1)
            PACV = pm[:, None] * CV + L @ (R.T @ CV)
            CAPU = C @ (pm[:, None] * U) + CR @ (L.T @ U)
            diagonal = diagonal + w * (PAC_diagonal + pull * mean)
            GV = GV + w * (PACV + np.outer(pull, mean @ V))
            GU = GU + w * (CAPU + np.outer(mean, pull @ U))
            d_c += w * pull
            # tr(P A C A') = sum of diag(P A C) against the diagonal of A, and P A C V against U
            value += 0.5 * w * float(PAC_diagonal @ m + (PACV * U).sum() + pull @ residual)
        GV, GU = GV + self.penalty * U, GU + self.penalty * V
        return float(value), [diagonal * m, GV, GU, d_c]

    def leading(self, rank: int) -> tuple[Array, Array]:
        """Return the steepest low-rank directions at the identity, as factors U and V."""
        # the gradients are G V in U if U = 0, and G' U in V if V = 0
        one, none = np.ones(len(self.strata[0][1])), np.zeros(len(self.strata[0][1]))

        def product(M: Array) -> Array:
            """Return minus the gradient matrix G times M."""
            M = M.reshape(len(one), -1)
            return -self.value_and_grad(one, 0 * M, M, none)[1][1]

        def back(M: Array) -> Array:
            """Return minus the transposed gradient matrix G' times M."""
            M = M.reshape(len(one), -1)
            return -self.value_and_grad(one, M, 0 * M, none)[1][2]

        shape = len(one), len(one)
        operator = LinearOperator(shape, product, back, product, np.float64, back)
        left, size, right = svds(operator, k=rank, random_state=0)
        start = 0.3 * np.sqrt(np.minimum(size, 1.0))
        return left * start, right.T * start

    def of_numbers(self, theta: Array, rank: int) -> tuple[float, Array]:
        """Return the value and the gradient in (log m, U, V, c)."""
        value, gradient = self.value_and_grad(*parts(theta, rank))
        return value, np.concatenate([g.ravel() for g in gradient]) if gradient else theta
