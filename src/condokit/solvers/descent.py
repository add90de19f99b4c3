"""Descent within any family of maps, by L-BFGS in its coordinates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from condokit.checks import Array
from condokit.maps.coordinates import Coordinates
from condokit.solvers.lbfgs import lbfgs
from condokit.solvers.solution import Solution

# a function of a map (A, b) in the solver's units: its value, infinite where A is singular, and its
# gradients in A and b
Objective = Callable[[Array, Array], tuple[float, Array, Array]]


def descend(
    objective: Objective,
    coordinates: Coordinates,
    max_iter: int,
    ftol: float = 1e-13,
    gtol: float = 1e-8,
) -> Solution:
    """Return the local minimum that is reached from where the coordinates start."""
    n_iter, here = 0, coordinates
    while True:
        if len(here.start) == 0:
            A, b = here.unpack(here.start)
            return Solution.of(A, b, objective=objective(A, b)[0])

        def function(theta: Array, here: Coordinates = here) -> tuple[float, Array]:
            value, d_A, d_b = objective(*here.unpack(theta))
            return value + here.penalty(theta), here.pull_back(theta, d_A, d_b)

        best = lbfgs(
            function, here.start, bounds=here.bounds, max_iter=max_iter, ftol=ftol, gtol=gtol
        )
        n_iter += int(best.nit)
        following = here.renewed(best.x)
        if following is None:
            break
        here = following
    A, b = here.unpack(best.x)
    value = objective(A, b)[0] if here.penalty(best.x) else float(best.fun)
    step = -best.jac
    if here.bounds is not None:  # zero at a minimum within bounds
        step = np.clip(best.x - best.jac, *here.bounds) - best.x
    norm = float(np.abs(step).max())
    return Solution.of(A, b, objective=value, n_iter=n_iter, gradient_norm=norm)


def keeping_orientation(objective: Objective, A: Array) -> Objective:
    """Return the objective, infinite where the determinant has another sign than that of A."""
    sign = np.linalg.slogdet(A)[0]

    def guarded(A: Array, b: Array) -> tuple[float, Array, Array]:
        if np.linalg.slogdet(A)[0] != sign:
            return np.inf, np.zeros_like(A), np.zeros_like(b)
        return objective(A, b)

    return guarded
