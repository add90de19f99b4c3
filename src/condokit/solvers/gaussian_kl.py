"""The Gaussian KL divergence of full matrices: the objective, and two ways to minimise it."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import digamma

from condokit.checks import Array
from condokit.maps.coordinates import AllMatrices
from condokit.solvers.lbfgs import Evaluation, descend, infinite, keeping_orientation, lbfgs
from condokit.solvers.solution import Solution
from condokit.solvers.units import Units
from condokit.summaries.gaussians import GaussianPair

MOST_DENSE = 30  # features up to which the operator of the quadratic form is built
_MOST_CURVED = 15  # features up to which the least curvature is computed
_ENOUGH_ROWS = 2.5  # per feature in every stratum, for `enough`


class KLObjective:
    r"""Gaussian KL divergence of the mapped query from the reference, averaged over the prior.

    With :math:`P_k = \Sigma_{r,k}^{-1}`, :math:`C_k = \Sigma_{q,k}` and
    :math:`r_k = B \mu_k + c - \nu_k`,

    .. math::
        L(B, c) = -\log|\det B| + \tfrac12 \sum_k w_k [\operatorname{tr}(P_k B C_k B')
            + r_k' P_k r_k] + \mathrm{const}, \qquad
        \nabla_B = \sum_k w_k P_k (B C_k + r_k \mu_k') - B^{-T}.

    `forward` is the divergence of the reference from the mapped query instead: that of the inverse
    map, :math:`L(B^{-1}, -B^{-1} c)` with the domains exchanged.
    """

    def __init__(self, units: Units | GaussianPair, forward: bool = False) -> None:
        query, reference = units.query, units.reference
        if forward:
            query, reference = reference, query
        self.forward = forward
        self.weights = weights = units.weights
        self.counts = query.count, reference.count
        self.mean, self.cov, self.goal = query.mean, query.cov, reference.mean
        self.precision = np.linalg.inv(reference.cov)
        self.weighted = weights[:, None, None] * self.precision
        log_ratio = np.linalg.slogdet(reference.cov)[1] - np.linalg.slogdet(query.cov)[1]
        self.constant = 0.5 * float(weights @ log_ratio - query.mean.shape[1])

    def __call__(self, B: Array, c: Array) -> Evaluation:
        """Return the value and the gradients."""
        log_det, inverse = log_det_inverse(B)
        if inverse is None:
            return infinite(B, c)
        if not self.forward:
            return self._reverse(B, c, log_det, inverse)
        value, d_B, d_c = self._reverse(inverse, -inverse @ c, -log_det, B)
        pull = inverse.T @ d_c
        return value, -inverse.T @ d_B @ inverse.T + np.outer(pull, inverse @ c), -pull

    def _reverse(self, B: Array, c: Array, log_det: float, inverse: Array) -> Evaluation:
        """Return value and gradients of reverse KL, given log|det B| and the inverse of B."""
        residual = self.mean @ B.T + c - self.goal
        PBC, pull = self._pulled(B, residual)
        value = 0.5 * float((PBC * B).sum() + (pull * residual).sum()) - log_det
        return value + self.constant, PBC + pull.T @ self.mean - inverse.T, pull.sum(axis=0)

    def _pulled(self, B: Array, residual: Array) -> tuple[Array, Array]:
        """Return the sum of P B C over support values, and each P r, both weighted."""
        PBC = np.tensordot(self.weighted, B @ self.cov, axes=([0, 2], [0, 1]))
        return PBC, np.einsum("kij,kj->ki", self.weighted, residual)

    def offset(self, B: Array) -> Array:
        r"""Return the best c, :math:`\bar P^{-1} \sum w_k P_k (\nu_k - B \mu_k)`."""
        wanted = np.einsum("kij,kj->i", self.weighted, self.goal - self.mean @ B.T)
        return np.linalg.solve(self.weighted.sum(axis=0), wanted)

    def expected(self) -> float:
        """Return the expected divergence between two samples of one law, normal in every stratum.

        With n query and m reference rows and :math:`f = (m - 1) / (m - d - 2)`, the expectation of
        twice the divergence in a stratum is :math:`f d (1 + 1/n + 1/m) - d` plus the expected
        difference of the log-determinants. It is infinite where strata are too small.
        """
        d = self.mean.shape[1]
        n, m = self.counts
        if min(n.min(), m.min()) < d + 3:
            return np.inf
        log_m, log_n = (
            digamma((rows - 1 - np.arange(d)[:, None]) / 2).sum(axis=0) - d * np.log(rows - 1)
            for rows in (m, n)
        )
        factor = (m - 1) / (m - d - 2)
        twice = factor * d * (1 + 1 / n + 1 / m) - d + log_m - log_n
        return 0.5 * float(self.weights @ twice)

    def enough(self) -> float:
        """Return the divergence expected of the right map after its fit: less is only chance.

        It is less than `expected` by the share of the d (d + 1) fitted numbers in the d (d + 3) / 2
        moments of each support value.
        """
        n_values, d = self.mean.shape
        if min(rows.min() for rows in self.counts) < _ENOUGH_ROWS * d + 3:
            return -np.inf  # too few to tell
        return self.expected() * max(0.0, 1 - 2 * (d + 1) / (n_values * (d + 3)))

    def curvature(self, B: Array) -> float:
        """Return the least eigenvalue of the Hessian in B; nan for more than 15 features."""
        if len(B) > _MOST_CURVED:
            return float("nan")
        return float(np.linalg.eigvalsh(self._hessian(np.linalg.inv(B)))[0])

    def _hessian(self, inverse: Array) -> Array:
        """Return the Hessian in vec(B), given B^-1; that of -log|det B| is V -> B^-T V' B^-T."""
        curved = np.einsum("bi,ja->ijab", inverse, inverse)
        return self._quadratic[0] + curved.reshape(inverse.size, inverse.size)

    def explore(self, B: Array, c: Array) -> Solution:
        """Return a map near the local minimum that is reached from B, at low cost."""
        if len(B) > MOST_DENSE:
            return self._by_descent(B, 50)
        best = lbfgs(self._on_operator(B), B.ravel(), max_iter=300, ftol=1e-7, gtol=1e-3)
        return self._finished(best.x.reshape(B.shape), int(best.nit))

    def solve(self, B: Array, c: Array, max_iter: int = 100) -> Solution:
        """Return the local minimum that is reached from B; the sign of det B is kept."""
        if len(B) <= MOST_DENSE:
            return self._finished(*self._newton(B, max_iter))
        # two support values hardly determine a matrix: an early stop keeps it near its start
        return self._by_descent(B, max_iter if len(self.weights) <= 2 else 5 * max_iter)

    def _by_descent(self, B: Array, max_iter: int) -> Solution:
        """Minimise for many features, by L-BFGS."""
        return descend(keeping_orientation(self, B), AllMatrices(B, self.offset(B)), max_iter)

    def _finished(self, B: Array, n_iter: int) -> Solution:
        """Return the solution with the best offset for B."""
        c = self.offset(B)
        value, d_B, _ = self(B, c)
        norm = float(np.abs(d_B).max())
        return Solution.of(B, c, objective=value, n_iter=n_iter, gradient_norm=norm)

    def _on_operator(self, B: Array) -> Callable[[Array], tuple[float, Array]]:
        """Return the divergence of vec(B), up to a constant; infinite if det B changes its sign."""
        Q, g = self._quadratic
        sign = np.linalg.slogdet(B)[0]

        def function(v: Array) -> tuple[float, Array]:
            """Return value and gradient at v = vec(B)."""
            det_sign, log_det = np.linalg.slogdet(v.reshape(B.shape))
            if det_sign != sign:
                return np.inf, v
            Qv = Q @ v
            value = float(0.5 * v @ Qv - g @ v - log_det)
            return value, Qv - g - np.linalg.inv(v.reshape(B.shape)).T.ravel()

        return function

    @cached_property
    def _quadratic(self) -> tuple[Array, Array]:
        r"""Q and g of :math:`L = \tfrac12 v' Q v - g' v - \log|\det B| + k`, v = vec(B)."""
        n_values, d = self.mean.shape
        second = self.cov + self.mean[:, :, None] * self.mean[:, None, :]
        flat = self.weighted.reshape(n_values, -1).T @ second.reshape(n_values, -1)
        Q = flat.reshape(d, d, d, d).transpose(0, 2, 1, 3).reshape(d * d, d * d)
        T = np.einsum("kia,kb->iab", self.weighted, self.mean).reshape(d, d * d)
        total = self.weighted.sum(axis=0)
        pull = np.einsum("kij,kj->ki", self.weighted, self.goal)
        g = (pull.T @ self.mean).ravel() - np.linalg.solve(total, pull.sum(axis=0)) @ T
        return Q - T.T @ np.linalg.solve(total, T), g

    def _newton(self, B: Array, max_iter: int) -> tuple[Array, int]:
        """Newton's method with trust regions."""
        settings: Any = {"method": "trust-exact", "options": {"gtol": 1e-9, "maxiter": max_iter}}
        # pinv: a step that is tried may end at a singular matrix, whose value is infinite
        settings["hess"] = lambda v: self._hessian(np.linalg.pinv(v.reshape(B.shape)))
        best = minimize(self._on_operator(B), B.ravel(), jac=True, **settings)
        return best.x.reshape(B.shape), int(best.nit)


def log_det_inverse(B: Array) -> tuple[float, Array | None]:
    """Return log |det B| and the inverse, None where B is singular."""
    sign, log_det = np.linalg.slogdet(B)
    if sign == 0 or not np.isfinite(log_det):
        return 0.0, None
    return float(log_det), np.linalg.inv(B)


def gap(A: Array, b: Array, pair: GaussianPair) -> float:
    """Return the Gaussian KL divergence of the mapped query from the reference, in nats."""
    units = Units(pair, "white")
    try:
        return KLObjective(units)(*units.encode(A, b))[0]
    except np.linalg.LinAlgError:  # a covariance is singular
        return float("nan")
