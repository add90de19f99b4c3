"""The search of full matrices: from many starts, the best of which is polished."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from condokit.checks import Array
from condokit.maps.coordinates import AllMatrices
from condokit.maps.families import MatrixFamily
from condokit.solvers.descent import Objective, descend, keeping_orientation
from condokit.solvers.gaussian_kl import MOST_DENSE, KLObjective
from condokit.solvers.solution import Solution
from condokit.solvers.starts import FLIP_FEE, Start, starts
from condokit.solvers.units import Units, decoded
from condokit.summaries.gaussians import GaussianPair

_FLIP_FEE_PER_ROW = 0.01

Solver = Callable[[Array, Array], Solution]


def minimise(
    family: MatrixFamily,
    pair: GaussianPair,
    make_objective: Callable[[Units], Objective] | None = None,
) -> Solution:
    """Find the best matrix of a family for an objective; without any, for reverse KL.

    Among all matrices, reverse KL explores the starts; for other objectives where that is cheap.
    """
    units, n_starts = Units(pair, family.search.units), family.search.n_starts
    few, max_iter = pair.n_features <= MOST_DENSE, int(family.search.max_iter)
    objective: Objective
    if make_objective:
        objective = make_objective(units)
    else:
        objective = kl = KLObjective(units)
    if not family.is_free:
        begin = starts(units, pair, n_starts)
        return best_of(units, lambda B, c: descend(objective, family.around(B, c), max_iter), begin)

    def descent(max_iter: int) -> Solver:
        return lambda B, c: descend(keeping_orientation(objective, B), AllMatrices(B, c), max_iter)

    begin = starts(units, pair, n_starts if few else min(n_starts, 3))
    if not make_objective:
        finish: Solver = partial(kl.solve, max_iter=max_iter)
        if n_starts == 1:  # nothing to explore
            return best_of(units, finish, begin)
    elif few:
        kl, finish = KLObjective(units), descent(5 * max_iter)
    else:
        return best_of(units, descent(50), begin, descent(5 * max_iter))
    best = best_of(units, kl.explore, begin, finish, kl.enough())
    return replace(best, curvature=kl.curvature(units.encode(best.scale, best.offset)[0]))


def best_of(
    units: Units,
    solve: Solver,
    starts: Iterable[Start],
    polish: Solver | None = None,
    enough: float = -np.inf,
) -> Solution:
    """Solve from every start and keep the best, polished; a reflection must be worth its fee.

    That is `FLIP_FEE` nats in all, and `_FLIP_FEE_PER_ROW` nats per row and feature: rows are
    neither Gaussian nor independent, and most instruments do not turn the world inside out. Starts
    are no longer tried after a map that keeps the orientation has a value below `enough`.
    """
    n_rows = max(float(units.query.count.sum()), 1.0)
    fee = max(FLIP_FEE / n_rows, _FLIP_FEE_PER_ROW * units.n_features)

    def cost(solution: Solution) -> float:
        return solution.objective + fee * solution.is_reflection

    def solved(solve: Solver, start: Solution) -> Solution:
        return decoded(units, solve(*units.encode(start.scale, start.offset)))

    found: dict[str, Solution] = {}
    for name, start in starts:
        solution = solved(solve, start)
        if np.isfinite(solution.objective) and np.isfinite(solution.scale).all():
            found[name] = solution
            if solution.objective < enough and not solution.is_reflection:
                break
    if not found:
        raise FloatingPointError("no start led to a finite map")
    best = min(found.values(), key=cost)
    if polish is not None:
        # the best of either orientation, if it is not clear which will win
        sides = ([s for s in found.values() if s.is_reflection == turned] for turned in (0, 1))
        rivals = [min(side, key=cost) for side in sides if side]
        close = [rival for rival in rivals if cost(rival) < cost(best) + max(1.0, fee)]
        best = min((solved(polish, rival) for rival in close), key=cost)
    return replace(best, starts={name: s.objective for name, s in found.items()})
