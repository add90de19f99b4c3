"""Full matrices: objectives with gradients, their solvers, and the starts of these.

A map is written as y = B x + c in units in which the problem has unit curvature; `Units` goes back
and forth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from condokit.checks import Array

Solved = tuple[Array, Array, float, int, float]  # B, c, value, iterations, norm of the gradient
Solver = Callable[[Array, Array], Solved]
MOST_DENSE = 30  # features up to which the operator of the quadratic form is built


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


class Objective(Protocol):
    """A function of a map in the solver's units, with its gradients in B and c."""

    def __call__(self, B: Array, c: Array) -> tuple[float, Array, Array]:
        """Return the value and the gradients; infinity where B is singular."""


def _log_det_inverse(B: Array) -> tuple[float, Array | None]:
    sign, log_det = np.linalg.slogdet(B)
    if sign == 0 or not np.isfinite(log_det):
        return 0.0, None
    return float(log_det), np.linalg.inv(B)
