"""Full matrices: objectives with gradients, their solvers, and the starts of these.

A map is written as y = B x + c in units in which the problem has unit curvature; `Units` goes back
and forth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy import linalg
from scipy.special import digamma

from condokit._validation import Array
from condokit.domains import GaussianPair, Gaussians
from condokit.maps import Affine, MatrixFamily, Rigid
from condokit.optimise import lbfgs
from condokit.statistics import positive

Start = tuple[str, Array, Array]
Solved = tuple[Array, Array, float, int, float]  # B, c, value, iterations, norm of the gradient
Solver = Callable[[Array, Array], Solved]

MOST_DENSE = 30  # features up to which the operator of the quadratic form is built
_RIGID_STARTS = 11
_MOST_CURVED = 15  # features up to which the least curvature is computed
_ENOUGH_ROWS = 2.5  # per feature in every stratum
_FLIP_FEE = 5.0  # nats that the data must give for a reflection
_FLIP_FEE_PER_ROW = 0.01
_TINY = 1e-12


@dataclass(frozen=True)
class MatrixSolution:
    """The best matrix of a family, and how it was found.

    Attributes
    ----------
    A, b : ndarray
        The map; A may be the diagonal of a diagonal matrix.
    objective : float
        What was made small, without penalties.
    n_iter : int
        Iterations from the best start.
    gradient_norm : float
        Largest entry of the gradient in the solver's units, along what is free.
    starts : dict of str to float
        What each start led to: the objective, or the reverse KL divergence where that explores.
    curvature : float
        Least second derivative of reverse KL at the map, in white units, where it is known: times
        the rows, how well the data determine what they determine least.
    """

    A: Array
    b: Array
    objective: float
    n_iter: int = 0
    gradient_norm: float = 0.0
    starts: dict[str, float] | None = None
    curvature: float = float("nan")

    @property
    def is_reflection(self) -> bool:
        """Whether the map turns the orientation around."""
        if self.A.ndim == 1:
            return bool(np.prod(np.sign(self.A)) < 0)
        return self.A.shape[0] == self.A.shape[1] and bool(np.linalg.slogdet(self.A)[0] < 0)

    def facts(self) -> dict[str, object]:
        """Return what is known of the solution, for the report."""
        size = np.abs(self.A) if self.A.ndim == 1 else np.linalg.svd(self.A, compute_uv=False)
        return {
            "objective": self.objective,
            "n_iter": self.n_iter,
            "gradient_norm": self.gradient_norm,
            "starts": self.starts or {},
            "condition_number": float(size.max() / size.min()) if size.min() > 0 else np.inf,
            "flips_orientation": self.is_reflection,
            "curvature": self.curvature,
        }


class Units:
    """Both domains in units that suit a solver, and the way there and back for maps.

    "white": the balanced covariances of both domains are the identity. "feature": every feature,
    in both domains, is divided by the reference's standard deviation, so that the identity stays
    the identity. "common": all features are divided by one number, so that angles stay as well.
    "samples": the query is white, features of the reference have unit variances.

    Parameters
    ----------
    pair : GaussianPair
        The domains.
    kind : {"white", "feature", "common", "samples"}
        The units.
    """

    def __init__(self, pair: GaussianPair, kind: str) -> None:
        self.weights = pair.weights
        self._middle_query, cov_query = pair.query.balanced(pair.weights)
        self._middle_reference, cov_reference = pair.reference.balanced(pair.weights)
        self.n_features = len(cov_query)
        if kind == "white":
            self._from_query, self._to_query = _roots(cov_query)
            self._from_reference, self._to_reference = _roots(cov_reference)
        else:
            size = positive(np.sqrt(np.diag(cov_reference)))
            if kind == "common":
                size = np.full(len(size), np.sqrt(np.mean(size**2)))
            self._from_reference, self._to_reference = np.diag(1 / size), np.diag(size)
            self._from_query, self._to_query = self._from_reference, self._to_reference
            if kind == "samples":
                self._from_query, self._to_query = _roots(cov_query)
        self.log_dets = (
            float(np.linalg.slogdet(self._to_query)[1]),
            float(np.linalg.slogdet(self._to_reference)[1]),
        )
        self.query = _moved(pair.query, self._middle_query, self._from_query)
        self.reference = _moved(pair.reference, self._middle_reference, self._from_reference)

    def of_query(self, rows: Array) -> Array:
        """Return rows of the query in these units."""
        return (rows - self._middle_query) @ self._from_query.T

    def of_reference(self, rows: Array) -> Array:
        """Return rows of the reference in these units."""
        return (rows - self._middle_reference) @ self._from_reference.T

    def encode(self, A: Array, b: Array) -> tuple[Array, Array]:
        """Return the map in these units."""
        B = self._from_reference @ A @ self._to_query
        return B, self._from_reference @ (A @ self._middle_query + b - self._middle_reference)

    def decode(self, B: Array, c: Array) -> tuple[Array, Array]:
        """Return the map in the user's units."""
        A = self._to_reference @ B @ self._from_query
        return A, self._middle_reference + self._to_reference @ c - A @ self._middle_query


class Objective(Protocol):
    """A function of a map in the solver's units, with its gradients in B and c."""

    def __call__(self, B: Array, c: Array) -> tuple[float, Array, Array]:
        """Return the value and the gradients; infinity where B is singular."""


class KLObjective:
    r"""Gaussian KL divergence of the mapped query from the reference, averaged over the prior.

    With :math:`P_k = \Sigma_{r,k}^{-1}`, :math:`C_k = \Sigma_{q,k}` and
    :math:`r_k = B \mu_k + c - \nu_k`,

    .. math::
        L(B, c) = -\log|\det B| + \tfrac12 \sum_k w_k [\operatorname{tr}(P_k B C_k B')
            + r_k' P_k r_k] + \mathrm{const}, \qquad
        \nabla_B = \sum_k w_k P_k (B C_k + r_k \mu_k') - B^{-T}.

    Parameters
    ----------
    units : Units
        The domains.
    forward : bool, default=False
        The divergence of the reference from the mapped query instead: that of the inverse map,
        :math:`L(B^{-1}, -B^{-1} c)` with the domains exchanged.
    """

    def __init__(self, units: Units, forward: bool = False) -> None:
        query, reference, weights = units.query, units.reference, units.weights
        self.forward = forward
        if forward:
            query, reference = reference, query
        self.weights = weights
        self.counts = query.count, reference.count
        self.mean, self.cov, self.goal = query.mean, query.cov, reference.mean
        self.precision = np.linalg.inv(reference.cov)
        self.weighted = weights[:, None, None] * self.precision
        log_ratio = np.linalg.slogdet(reference.cov)[1] - np.linalg.slogdet(query.cov)[1]
        self.constant = 0.5 * float(weights @ log_ratio - query.mean.shape[1])

    def __call__(self, B: Array, c: Array) -> tuple[float, Array, Array]:
        """Return the value and the gradients."""
        log_det, inverse = _log_det_inverse(B)
        if inverse is None:
            return np.inf, np.zeros_like(B), np.zeros_like(c)
        if not self.forward:
            return self._reverse(B, c, log_det, inverse)
        value, d_B, d_c = self._reverse(inverse, -inverse @ c, -log_det, B)
        pull = inverse.T @ d_c
        return value, -inverse.T @ d_B @ inverse.T + np.outer(pull, inverse @ c), -pull

    def _reverse(
        self, B: Array, c: Array, log_det: float, inverse: Array
    ) -> tuple[float, Array, Array]:
        residual = self.mean @ B.T + c - self.goal
        pull = np.einsum("kij,kj->ki", self.weighted, residual)
        PBC = np.tensordot(self.weighted, B @ self.cov, axes=([0, 2], [0, 1]))
        value = 0.5 * float((PBC * B).sum() + (pull * residual).sum()) - log_det
        return value + self.constant, PBC + pull.T @ self.mean - inverse.T, pull.sum(axis=0)

    def offset(self, B: Array) -> Array:
        r"""Return the best c, :math:`\bar P^{-1} \sum w_k P_k (\nu_k - B \mu_k)`."""
        total = self.weighted.sum(axis=0)
        wanted = np.einsum("kij,kj->i", self.weighted, self.goal - self.mean @ B.T)
        return np.linalg.solve(total, wanted)

    def expected(self) -> float:
        r"""Return the divergence between samples of one law that is normal in every stratum.

        With n query and m reference rows and :math:`f = (m - 1) / (m - d - 2)`, the expectation of
        twice the divergence in a stratum is :math:`f d (1 + 1/n + 1/m) - d` plus that of the
        difference of the log-determinants. Infinite where strata are too small.
        """
        d = self.mean.shape[1]
        n, m = self.counts
        if min(n.min(), m.min()) < d + 3:
            return np.inf
        steps = np.arange(d)[:, None]
        logs = [
            digamma((rows - 1 - steps) / 2).sum(axis=0) - d * np.log(rows - 1) for rows in (m, n)
        ]
        factor = (m - 1) / (m - d - 2)
        twice = factor * d * (1 + 1 / n + 1 / m) - d + logs[0] - logs[1]
        return 0.5 * float(self.weights @ twice)

    def enough(self) -> float:
        """Return a value that only chance could improve upon: what is expected after a fit.

        A matrix and an offset take their share of the degrees of freedom of all strata. Minus
        infinity where strata have too few rows to tell.
        """
        n_values, d = self.mean.shape
        if min(rows.min() for rows in self.counts) < _ENOUGH_ROWS * d + 3:
            return -np.inf
        return self.expected() * max(0.0, 1 - 2 * (d + 1) / (n_values * (d + 3)))

    def curvature(self, B: Array) -> float:
        """Return the least eigenvalue of the Hessian in B, for few features."""
        if len(B) > _MOST_CURVED:
            return float("nan")
        return float(np.linalg.eigvalsh(self._hessian(np.linalg.inv(B)))[0])

    def _hessian(self, inverse: Array) -> Array:
        """Return the Hessian in vec(B) where B has this inverse; -log det has V -> B^-T V' B^-T."""
        n = inverse.size
        return self._quadratic()[0] + np.einsum("bi,ja->ijab", inverse, inverse).reshape(n, n)

    def explore(self, B: Array, c: Array) -> Solved:
        """Return a map near the local minimum that is reached from B, at little cost."""
        if len(B) <= MOST_DENSE:
            return self._on_operator(B)
        if len(self.weights) <= 2:
            return self._finished(*self._row_sweeps(B, 5))
        return free(self, B, self.offset(B), 50)

    def solve(self, B: Array, c: Array, max_iter: int = 100) -> Solved:
        """Return the local minimum that is reached from B; the sign of det B is kept."""
        if len(B) <= MOST_DENSE:
            return self._finished(*self._newton(B, max_iter))
        if len(self.weights) <= 2:
            return self._finished(*self._row_sweeps(B, max_iter))
        return free(self, B, self.offset(B), 5 * max_iter)

    def _finished(self, B: Array, n_iter: int) -> Solved:
        c = self.offset(B)
        value, d_B, _ = self(B, c)
        return B, c, value, n_iter, float(np.abs(d_B).max())

    def _on_operator(self, B: Array) -> Solved:
        """L-BFGS to a low precision, at a cost that does not depend on the support values."""
        Q, g, constant = self._quadratic()
        d = len(B)
        sign = np.linalg.slogdet(B)[0]

        def function(v: Array) -> tuple[float, Array]:
            det_sign, log_det = np.linalg.slogdet(v.reshape(d, d))
            if det_sign != sign:
                return np.inf, v
            Qv = Q @ v
            value = float(0.5 * v @ Qv - g @ v - log_det)
            return value, Qv - g - np.linalg.inv(v.reshape(d, d)).T.ravel()

        best = lbfgs(function, B.ravel(), max_iter=300, ftol=1e-7, gtol=1e-3)
        B = best.x.reshape(d, d)
        value = float(best.fun) + constant
        return B, self.offset(B), value, int(best.nit), float(np.abs(best.jac).max())

    def _quadratic(self) -> tuple[Array, Array, float]:
        r"""Return Q, g and k of :math:`L = \tfrac12 v' Q v - g' v - \log|\det B| + k`, v = vec(B).

        One matrix product over the support values; afterwards their number does not matter.
        """
        if not hasattr(self, "_operator"):
            n_values, d = self.mean.shape
            second = self.cov + self.mean[:, :, None] * self.mean[:, None, :]
            flat = self.weighted.reshape(n_values, -1).T @ second.reshape(n_values, -1)
            Q = flat.reshape(d, d, d, d).transpose(0, 2, 1, 3).reshape(d * d, d * d)
            T = np.einsum("kia,kb->iab", self.weighted, self.mean).reshape(d, d * d)
            total = self.weighted.sum(axis=0)
            pull = np.einsum("kij,kj->ki", self.weighted, self.goal)
            centre = np.linalg.solve(total, pull.sum(axis=0))
            g = (pull.T @ self.mean).ravel() - centre @ T
            constant = 0.5 * float((pull * self.goal).sum() - centre @ pull.sum(axis=0))
            Q = Q - T.T @ np.linalg.solve(total, T)
            self._operator = Q, g, constant + self.constant
        return self._operator

    def _newton(self, B: Array, max_iter: int) -> tuple[Array, int]:
        """Newton's method with a Levenberg shift where the Hessian is not positive."""
        Q, g, _ = self._quadratic()
        d = len(B)
        diagonal = np.arange(d * d)

        def value(B: Array) -> float:
            v = B.ravel()
            return float(0.5 * v @ Q @ v - g @ v - np.linalg.slogdet(B)[1])

        sign, here, shift = np.linalg.slogdet(B)[0], value(B), 0.0
        for n_iter in range(1, max_iter + 1):
            inverse = np.linalg.inv(B)
            gradient = Q @ B.ravel() - g - inverse.T.ravel()
            if np.abs(gradient).max() < 1e-9:
                return B, n_iter
            hessian = self._hessian(inverse)
            while True:
                try:
                    shifted = hessian.copy()
                    shifted[diagonal, diagonal] += shift
                    step = linalg.cho_solve(linalg.cho_factor(shifted), gradient)
                    trial = B - step.reshape(d, d)
                    there = value(trial) if np.linalg.slogdet(trial)[0] == sign else np.inf
                    if there <= here + 1e-14 * abs(here):
                        break
                except linalg.LinAlgError:
                    pass
                shift = max(4 * shift, 1e-3)
                if shift > 1e12:
                    return B, n_iter
            done = here - there < 1e-13 * max(1.0, abs(here)) and np.abs(gradient).max() < 1e-6
            B, here, shift = trial, there, shift / 8 if shift > 1e-3 else 0.0
            if done:
                return B, n_iter
        return B, max_iter

    def _row_sweeps(self, B: Array, max_iter: int, tolerance: float = 1e-9) -> tuple[Array, int]:
        r"""Closed-form updates of one row at a time, for at most two support values.

        Two pairs of covariances can be made diagonal at once, :math:`E' P_k E` and
        :math:`F' C_k F`. With :math:`B = E Z F'` the quadratic form separates into rows z,
        :math:`z' M_i z - 2 q_i' z` with :math:`M_i` diagonal plus rank one, and the determinant is
        linear in each: with y the i-th column of :math:`Z^{-1}`, the best row is
        :math:`M_i^{-1}(q_i + y / \tau)`, where :math:`\tau` solves
        :math:`\tau^2 - (y' M_i^{-1} q_i) \tau - y' M_i^{-1} y = 0`.
        """
        delta, E = linalg.eigh(self.precision[0], self.weighted.sum(axis=0))
        gamma, F = linalg.eigh(self.cov[0], np.tensordot(self.weights, self.cov, axes=1))
        left = [self.weights[0] * delta]
        right = [gamma]
        if len(self.weights) > 1:
            left.append(1 - left[0])
            right.append((1 - self.weights[0] * gamma) / self.weights[1])
        H = np.einsum("ki,kj->ij", np.array(left), np.array(right))
        if len(self.weights) > 1:
            tie = left[0] * left[1]  # they sum to one
            jump = F.T @ (self.mean[0] - self.mean[1])
            wanted = np.linalg.solve(E, self.goal[0] - self.goal[1])
        else:
            tie, jump, wanted = np.zeros(len(B)), np.zeros(len(B)), np.zeros(len(B))
        Z = np.linalg.solve(E, B) @ np.linalg.inv(F).T
        bent = jump / H  # row i: diag(h_i)^-1 jump
        reach = bent @ jump
        damp = (tie / (1 + tie * reach))[:, None] * bent
        Mq = (tie * wanted)[:, None] * (bent - reach[:, None] * damp)
        n_iter, moved = 0, np.inf
        while n_iter < max_iter and moved > tolerance:
            n_iter += 1
            inverse = np.asfortranarray(np.linalg.inv(Z))
            before = Z.copy()
            for i in range(len(Z)):
                y = inverse[:, i].copy()
                My = y / H[i] - (bent[i] @ y) * damp[i]
                linear, square = float(y @ Mq[i]), float(y @ My)
                root = math.sqrt(linear**2 + 4 * square)
                tau = (linear + root) / 2 if linear > 0 else 2 * square / (root - linear)
                row = Mq[i] + My / tau
                # the inverse of Z with its row replaced, in place
                linalg.blas.dger(-1 / tau, y, (row - Z[i]) @ inverse, a=inverse, overwrite_a=1)
                Z[i] = row
            moved = float(np.abs(Z - before).max() / np.abs(Z).max())
        return E @ Z @ F.T, n_iter


class LikelihoodObjective:
    r"""Minus the log-likelihood of one Gaussian per support value for both domains, per query row.

    With :math:`n_k, m_k` query and reference rows, :math:`\delta_k = B \mu_k + c - \nu_k` and

    .. math::
        S_k = \frac{n_k B C_k B' + m_k \Sigma_k + h_k \delta_k \delta_k'}{n_k + m_k},\quad
        h_k = \frac{n_k m_k}{n_k + m_k},

    it is :math:`-N_q \log|\det B| + \sum_k \tfrac{n_k + m_k}{2} \log\det S_k`: the likelihood
    with its means and covariances profiled out.
    """

    def __init__(self, units: Units) -> None:
        query, reference = units.query, units.reference
        self.query, self.reference = query, reference
        self.total = query.count + reference.count
        self.tie = query.count * reference.count / self.total
        self.n_query = float(query.count.sum())
        self._query_part = (query.count / self.total)[:, None, None] * query.cov
        self._reference_part = (reference.count / self.total)[:, None, None] * reference.cov
        # what the units add, so that the value is that of the user's units
        ratio = float(reference.count.sum()) / self.n_query
        self.constant = units.log_dets[0] + ratio * units.log_dets[1]

    def __call__(self, B: Array, c: Array) -> tuple[float, Array, Array]:
        """Return the value and the gradients."""
        log_det, inverse = _log_det_inverse(B)
        if inverse is None:
            return np.inf, np.zeros_like(B), np.zeros_like(c)
        delta = self.query.mean @ B.T + c - self.reference.mean
        BC = B @ self._query_part
        S = BC @ B.T + self._reference_part
        S += (self.tie / self.total)[:, None, None] * delta[:, :, None] * delta[:, None, :]
        log_dets = np.linalg.slogdet(S)[1]
        S_inverse = np.linalg.inv(S)
        value = float(self.total @ log_dets) / 2 - self.n_query * log_det
        pull = self.tie[:, None] * np.einsum("kij,kj->ki", S_inverse, delta)
        gradient = np.tensordot(self.total[:, None, None] * S_inverse, BC, axes=([0, 2], [0, 1]))
        gradient += pull.T @ self.query.mean - self.n_query * inverse.T
        value = value / self.n_query + self.constant
        return value, gradient / self.n_query, pull.sum(axis=0) / self.n_query


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


def solutions(
    units: Units, solve: Solver, starts: Iterable[Start], enough: float
) -> dict[str, MatrixSolution]:
    """Solve from every start, until a map that keeps the orientation has a value below `enough`."""
    found: dict[str, MatrixSolution] = {}
    for name, A, b in starts:
        B, c, value, n_iter, gradient = solve(*units.encode(A, b))
        if np.isfinite(value) and np.isfinite(B).all():
            found[name] = MatrixSolution(*units.decode(B, c), value, n_iter, gradient)
            if value < enough and not found[name].is_reflection:
                break
    return found


def best_of(
    units: Units,
    solve: Solver,
    starts: Iterable[Start],
    polish: Solver | None = None,
    enough: float = -np.inf,
) -> MatrixSolution:
    """Solve from every start and keep the best, polished; a reflection must be worth its fee.

    That is `_FLIP_FEE` nats in all, and `_FLIP_FEE_PER_ROW` nats per row and feature: rows are
    neither Gaussian nor independent, and most instruments do not turn the world inside out.
    """
    fee = _FLIP_FEE / max(float(units.query.count.sum()), 1.0)
    fee = max(fee, _FLIP_FEE_PER_ROW * units.n_features)

    def cost(solution: MatrixSolution) -> float:
        return solution.objective + fee * solution.is_reflection

    found = solutions(units, solve, starts, enough)
    if not found:
        raise FloatingPointError("no start led to a finite map")
    values = {name: solution.objective for name, solution in found.items()}
    best = min(found.values(), key=cost)
    if polish is not None:
        # the best of either orientation, if it is not clear which will win
        sides = ([s for s in found.values() if s.is_reflection == turned] for turned in (0, 1))
        rivals = [min(side, key=cost) for side in sides if side]
        polished = []
        for rival in rivals:
            if cost(rival) < cost(best) + max(1.0, fee):
                B, c, value, n_iter, gradient = polish(*units.encode(rival.A, rival.b))
                polished.append(MatrixSolution(*units.decode(B, c), value, n_iter, gradient))
        best = min(polished, key=cost)
    return replace(best, starts=values)


def minimise(
    family: MatrixFamily,
    pair: GaussianPair,
    make_objective: Callable[[Units], Objective],
) -> MatrixSolution:
    """Find the best matrix of a family for an objective.

    Reverse KL explores the starts of free matrices, also for other objectives where it is cheap.
    """
    if isinstance(family, Rigid):
        units = Units(pair, "common")
        objective, has_scale = make_objective(units), family.has_scale
        return best_of(
            units,
            lambda B, c: rigid(objective, B, c, has_scale),
            starts(units, pair, _RIGID_STARTS),
        )
    assert isinstance(family, Affine)
    if family.is_penalised:
        units = Units(pair, "feature")
        objective = make_objective(units)
        return best_of(units, lambda B, c: bounded(objective, B, c, family), starts(units, pair, 1))
    units = Units(pair, "white")
    objective = make_objective(units)
    few = pair.n_features <= MOST_DENSE
    begin = starts(units, pair, family.n_starts if few else min(family.n_starts, 3))
    max_iter = int(family.max_iter)
    if isinstance(objective, KLObjective) and not objective.forward:
        kl = objective

        def finish(B: Array, c: Array) -> Solved:
            return kl.solve(B, c, max_iter)

        if family.n_starts == 1:  # nothing to explore
            return best_of(units, finish, begin)
        best = best_of(units, kl.explore, begin, finish, kl.enough())
        return replace(best, curvature=kl.curvature(units.encode(best.A, best.b)[0]))

    def polish(B: Array, c: Array) -> Solved:
        return free(objective, B, c, 5 * max_iter)

    if few:
        kl = KLObjective(units)
        best = best_of(units, kl.explore, begin, polish, kl.enough())
        return replace(best, curvature=kl.curvature(units.encode(best.A, best.b)[0]))
    return best_of(units, lambda B, c: free(objective, B, c, 50), begin, polish)


def starts(units: Units, pair: GaussianPair, n: int) -> Iterator[Start]:
    """Yield n maps to start from: diagonal, transport, matched axes, then random rotations."""
    mean_q, cov_q = pair.query.balanced(pair.weights)
    mean_r, cov_r = pair.reference.balanced(pair.weights)
    A = np.diag(np.sqrt(np.diag(cov_r) / np.diag(cov_q)))
    yield "diagonal", A, mean_r - A @ mean_q
    if n > 1:
        A = transport_matrix(cov_q, cov_r)
        yield "transport", A, mean_r - A @ mean_q
    if n > 2:
        yield ("axes", *match_axes(pair))
    rng = np.random.default_rng(0)
    zero = np.zeros(units.n_features)
    for k in range(n - 3):
        Q, R = np.linalg.qr(rng.normal(size=(len(zero), len(zero))))
        Q = Q * np.sign(np.diag(R))
        if (np.linalg.slogdet(Q)[0] < 0) != (k % 2 == 1):
            Q[0] *= -1
        yield (f"{'reflection' if k % 2 else 'rotation'} {k // 2 + 1}", *units.decode(Q, zero))


def transport_matrix(cov_query: Array, cov_reference: Array) -> Array:
    r"""Return the symmetric A with :math:`A C_q A = C_r`, the optimal transport of Gaussians.

    :math:`C_q^{-1/2} (C_q^{1/2} C_r C_q^{1/2})^{1/2} C_q^{-1/2}`, computed as
    :math:`L_r U V' L_q^{-1}` from Cholesky factors and :math:`L_r' L_q = U S V'`, which keeps its
    accuracy when features have very different units.
    """
    left, right = _cholesky(cov_reference), _cholesky(cov_query)
    U, _, V = np.linalg.svd(left.T @ right)
    return left @ linalg.solve_triangular(right.T, (U @ V).T, lower=False).T


def principal_axes(gaussians: Gaussians, weights: Array) -> tuple[Array, Array, Array]:
    """Return the balanced mean, and sizes and axes of the balanced covariance, smallest first."""
    mean, cov = gaussians.balanced(weights)
    size, axes = np.linalg.eigh(cov)
    return mean, np.sqrt(np.maximum(size, _TINY * size[-1])), axes


def match_axes(pair: GaussianPair) -> tuple[Array, Array]:
    """Return the map that aligns the principal axes; see `condokit.PCMatch`."""
    query, reference, weights = pair.query, pair.reference, pair.weights
    mean_q, size_q, axes_q = principal_axes(query, weights)
    mean_r, size_r, axes_r = principal_axes(reference, weights)
    along_q = (query.mean - mean_q) @ axes_q / size_q
    along_r = (reference.mean - mean_r) @ axes_r / size_r
    noise = 1 / np.maximum(query.count, 1e-9) + 1 / np.maximum(reference.count, 1e-9)
    evidence = 2 * (along_q * along_r / noise[:, None]).sum(axis=0)
    if pair.skewness is not None:
        skew_q, skew_r = pair.skewness(axes_q, axes_r)
        evidence += 2 * skew_q * skew_r / (6 / query.count.sum() + 6 / reference.count.sum())
    sign = np.where(evidence < 0, -1.0, 1.0)
    orientation = np.linalg.slogdet(axes_r)[0] * np.linalg.slogdet(axes_q)[0] * sign.prod()
    least = int(np.argmin(np.abs(evidence)))
    if orientation < 0 and abs(evidence[least]) < _FLIP_FEE:
        sign[least] *= -1
    A = (axes_r * (sign * size_r / size_q)) @ axes_q.T
    return A, mean_r - A @ mean_q


def nearest_rigid(A: Array, has_scale: bool) -> Array:
    """Return the orthogonal matrix nearest to A, times the mean of its scales or one."""
    left, size, right = np.linalg.svd(A)
    return (float(np.exp(np.log(size).mean())) if has_scale else 1.0) * (left @ right)


def gap(A: Array, b: Array, pair: GaussianPair) -> float:
    """Return the Gaussian KL divergence of the mapped query from the reference, in nats.

    NaN where a covariance is singular.
    """
    units = Units(pair, "white")
    try:
        return KLObjective(units)(*units.encode(A, b))[0]
    except np.linalg.LinAlgError:
        return float("nan")


def _log_det_inverse(B: Array) -> tuple[float, Array | None]:
    sign, log_det = np.linalg.slogdet(B)
    if sign == 0 or not np.isfinite(log_det):
        return 0.0, None
    return float(log_det), np.linalg.inv(B)


def _cholesky(cov: Array) -> Array:
    """Return the Cholesky factor, of a slightly raised diagonal where there is none."""
    for raised in (0.0, 1e-12, 1e-9, 1e-6):
        try:
            return np.linalg.cholesky(cov + raised * np.diag(np.diag(cov)))
        except np.linalg.LinAlgError:
            continue
    raise FloatingPointError("a covariance is not positive")


def _roots(cov: Array) -> tuple[Array, Array]:
    """Return a matrix that makes a covariance white, and its inverse; features in any units."""
    sd = positive(np.sqrt(np.diag(cov)))
    size, turn = np.linalg.eigh(cov / np.outer(sd, sd))
    size = np.sqrt(np.maximum(size, _TINY * size[-1]))
    return (turn / size) @ turn.T / sd, sd[:, None] * ((turn * size) @ turn.T)


def _moved(gaussians: Gaussians, middle: Array, turn: Array) -> Gaussians:
    return Gaussians(
        (gaussians.mean - middle) @ turn.T, turn @ gaussians.cov @ turn.T, gaussians.count
    )
