"""Full matrices: objectives with gradients, their solvers, and the starts of these.

A map is written as y = B x + c in units in which the problem has unit curvature; `Units` goes back
and forth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from condokit.checks import Array
from condokit.maps.families import Affine, MatrixFamily, Rigid
from condokit.solvers.base import (
    MOST_DENSE,
    MatrixSolution,
    Objective,
    Solved,
    Solver,
    _log_det_inverse,
)
from condokit.solvers.descent import bounded, free, rigid
from condokit.solvers.gaussian_kl import KLObjective
from condokit.solvers.starts import _FLIP_FEE, Start, starts
from condokit.solvers.units import Units
from condokit.summaries.covariances import GaussianPair

_RIGID_STARTS = 11
_FLIP_FEE_PER_ROW = 0.01


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
