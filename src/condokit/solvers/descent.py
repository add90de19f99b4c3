"""Descent within any family of maps, by L-BFGS in its coordinates."""

from collections.abc import Callable

import numpy as np

from condokit.checks import Array
from condokit.maps.coordinates import Coordinates
from condokit.solvers.lbfgs import lbfgs
from condokit.solvers.solution import Solution

Evaluation = tuple[float, Array, Array]  # a value, and its gradients in two arguments
# of a map (A, b) in the solver's units; infinite where A is singular
Objective = Callable[[Array, Array], Evaluation]


def infinite(A: Array, b: Array) -> Evaluation:
    """Return the value of an objective where it has none."""
    return np.inf, np.zeros_like(A), np.zeros_like(b)


def added(one: Evaluation, other: Evaluation) -> Evaluation:
    """Return the sum of two objectives, and of their gradients."""
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def descend(
    objective: Objective, near: Coordinates, max_iter: int, ftol: float = 1e-13, gtol: float = 1e-8
) -> Solution:
    """Return the local minimum that is reached from where the coordinates start."""
    if len(near.start) == 0:
        A, b = near.unpack(near.start)
        return Solution.of(A, b, objective=objective(A, b)[0])
    n_iter, here = 0, near
    while True:

        def function(theta: Array, here: Coordinates = here) -> tuple[float, Array]:
            value, d_A, d_b = objective(*here.unpack(theta))
            return value + here.penalty(theta), here.pull_back(theta, d_A, d_b)

        best = lbfgs(
            function, here.start, bounds=here.bounds, max_iter=max_iter, ftol=ftol, gtol=gtol
        )
        n_iter += int(best.nit)
        if (following := here.renewed(best.x)) is None:
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
    return lambda A, b: objective(A, b) if np.linalg.slogdet(A)[0] == sign else infinite(A, b)
