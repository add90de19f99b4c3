"""Maps of resampled data by one Newton step each, from the map that was found."""

import numpy as np
from scipy import linalg

from condokit.checks import Array
from condokit.maps.coordinates import Coordinates
from condokit.solvers.lbfgs import Objective

_STEP = 1e-5  # of differences of gradients, in the solver's units
_FLAT = 1e-7  # share of a curvature that other coordinates leave, below which it is none


class OneStep:
    r"""One Newton step from a map to where another objective is least.

    With :math:`\theta` the coordinates of the map, g and H the gradient there and its derivative,
    the minimum of a nearby objective with gradient :math:`g_b` is about
    :math:`\theta - H^{-1} g_b`. Objectives of reweighted rows differ only by their sampling error,
    so what the step leaves is of the second order.
    """

    def __init__(self, objective: Objective, near: Coordinates) -> None:
        self.near, theta = near, near.start
        self.gradient = self._gradient(objective, theta)
        H = np.empty((len(theta), len(theta)))
        for j, step in enumerate(_STEP * np.eye(len(theta))):
            H[j] = (self._gradient(objective, theta + step) - self.gradient) / _STEP
        H = (H + H.T) / 2
        self._size = 1 / np.sqrt(np.maximum(np.diag(H), 1e-300))
        self._root = linalg.cholesky(H * np.outer(self._size, self._size), lower=True)
        if not (np.diag(self._root) ** 2 > _FLAT).all():
            raise np.linalg.LinAlgError("the data do not determine the map")

    def _gradient(self, objective: Objective, theta: Array) -> Array:
        _, d_A, d_b = objective(*self.near.unpack(theta))
        return self.near.pull_back(theta, d_A, d_b)

    def __call__(
        self, objective: Objective | None = None, amount: float = 1.0
    ) -> tuple[Array, Array]:
        """Return the map after the step, `1 / amount` times as far from that of no objective."""
        gradient = self.gradient
        if objective is not None:
            there = self._gradient(objective, self.near.start)
            gradient = gradient + (there - gradient) / amount
        step = linalg.cho_solve((self._root, True), self._size * gradient)
        return self.near.unpack(self.near.start - self._size * step)
