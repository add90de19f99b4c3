"""Full matrices: objectives with gradients, their solvers, and the starts of these.

A map is written as y = B x + c in units in which the problem has unit curvature; `Units` goes back
and forth.
"""

from __future__ import annotations

import numpy as np

from condokit.checks import Array
from condokit.maps.families import Affine
from condokit.solvers.base import Objective, Solved
from condokit.solvers.lbfgs import lbfgs


def free(objective: Objective, B: Array, c: Array, max_iter: int = 500) -> Solved:
    """Return the local minimum reached from (B, c) by L-BFGS; the sign of det B is kept."""
    d = len(B)
    sign = np.linalg.slogdet(B)[0]

    def function(v: Array) -> tuple[float, Array]:
        B, c = v[: d * d].reshape(d, d), v[d * d :]
        if np.linalg.slogdet(B)[0] != sign:  # across det = 0
            return np.inf, v
        value, d_B, d_c = objective(B, c)
        return value, np.concatenate([d_B.ravel(), d_c])

    best = lbfgs(function, np.concatenate([B.ravel(), c]), max_iter=max_iter)
    B, c = best.x[: d * d].reshape(d, d), best.x[d * d :]
    return B, c, float(best.fun), int(best.nit), float(np.abs(best.jac).max())


def rigid(objective: Objective, B: Array, c: Array, has_scale: bool, max_iter: int = 200) -> Solved:
    r"""Return the best :math:`s Q`, Q orthogonal, near B, by L-BFGS over Cayley transforms.

    :math:`Q = Q_0 (I - S)(I + S)^{-1}` with S skew-symmetric has
    :math:`dQ = -2 Q_0 M\, dS\, M`, :math:`M = (I + S)^{-1}`.
    """
    d = len(B)
    upper = np.triu_indices(d, 1)
    eye = np.eye(d)
    left, size, right = np.linalg.svd(B)
    centre, log_scale, n_iter = left @ right, float(np.log(size).mean()) * has_scale, 0

    def parts(v: Array) -> tuple[Array, Array, float]:
        S = np.zeros((d, d))
        S[upper] = v[: len(upper[0])]
        S -= S.T
        M = np.linalg.inv(eye + S)
        return centre @ (eye - S) @ M, M, float(np.exp(v[-1])) if has_scale else 1.0

    def function(v: Array) -> tuple[float, Array]:
        Q, M, scale = parts(v)
        value, d_B, d_c = objective(scale * Q, v[len(upper[0]) : len(upper[0]) + d])
        g = -2 * scale * M.T @ centre.T @ d_B @ M.T
        d_scale = [scale * float((d_B * Q).sum())] if has_scale else []
        return value, np.concatenate([(g - g.T)[upper], d_c, d_scale])

    for _ in range(
        3
    ):  # a Cayley transform reaches half a turn only in the limit: begin again there
        v = np.concatenate([np.zeros(len(upper[0])), c, [log_scale] if has_scale else []])
        best = lbfgs(function, v, max_iter=max_iter)
        n_iter += int(best.nit)
        centre, _, scale = parts(best.x)
        c, log_scale = best.x[len(upper[0]) : len(upper[0]) + d], float(np.log(scale))
        if np.abs(best.x[: len(upper[0])]).max(initial=0.0) < 0.5:
            break
    return scale * centre, c, float(best.fun), n_iter, float(np.abs(best.jac).max())


def bounded(
    objective: Objective, B: Array, c: Array, family: Affine, max_iter: int = 1000
) -> Solved:
    r"""Return the best B with a pull to the identity and bounds, by L-BFGS-B.

    :math:`B = I + U - V` with :math:`U, V \ge 0`, so that the absolute values of :math:`B - I` are
    :math:`U + V`, and :math:`B \ge 0` where :math:`V \le I`.
    """
    d = len(B)
    n = d * d
    eye = np.eye(d)
    if family.nonnegative:
        B = np.maximum(B, 1e-3 * eye)
    change = B - eye

    def function(v: Array) -> tuple[float, Array]:
        U, V, c = v[:n].reshape(d, d), v[n : 2 * n].reshape(d, d), v[2 * n :]
        change = U - V
        value, d_B, d_c = objective(eye + change, c)
        value += family.l1 * float((U + V).sum()) + family.l2 * float((change**2).sum())
        d_B = d_B + 2 * family.l2 * change
        return value, np.concatenate([(family.l1 + d_B).ravel(), (family.l1 - d_B).ravel(), d_c])

    most = np.where(eye > 0, 1.0, 0.0) if family.nonnegative else np.full((d, d), np.inf)
    limits = np.concatenate([np.full(n, np.inf), most.ravel(), np.full(d, np.inf)])
    least = np.concatenate([np.zeros(2 * n), np.full(d, -np.inf)])
    best = lbfgs(
        function,
        np.concatenate([np.maximum(change, 0).ravel(), np.maximum(-change, 0).ravel(), c]),
        bounds=(least, limits),
        max_iter=max_iter,
    )
    U, V = best.x[:n].reshape(d, d), best.x[n : 2 * n].reshape(d, d)
    step = np.clip(best.x - best.jac, least, limits) - best.x  # zero at a minimum within bounds
    B, c = eye + U - V, best.x[2 * n :]
    return B, c, objective(B, c)[0], int(best.nit), float(np.abs(step).max())
