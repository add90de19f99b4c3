"""Maps of resampled data, each by one Newton step from the fitted map."""

from collections.abc import Callable

import numpy as np
from scipy import linalg

from condokit.checks import Array

_STEP = 1e-5  # of finite differences of gradients, in the solver's units
_WIDE_STEP = 0.03  # the same for divergences between rows
_FLAT = 1e-4  # share of a curvature that other coordinates leave, below which it counts as none
Function = Callable[[Array], tuple[float, Array]]  # value and gradient at theta


class OneStep:
    r"""One Newton step from theta to the minimum of another objective.

    With H the derivative of the gradient at :math:`\theta`, a nearby objective whose gradient there
    is :math:`g_b` has its minimum at about :math:`\theta - H^{-1} g_b`. Objectives of resampled
    rows differ only by sampling errors, so the step's error is of second order.
    """

    def __init__(
        self,
        function: Function,
        theta: Array,
        between_rows: bool = False,
        idle: Array | None = None,  # directions that do not change the map
    ) -> None:
        # gradients between rows are smooth only on average, so wide differences to either side
        size, H = _WIDE_STEP if between_rows else _STEP, np.empty((len(theta), len(theta)))
        here = function(theta)[1]
        for j, step in enumerate(size * np.eye(len(theta))):
            if between_rows:
                H[j] = (function(theta + step)[1] - function(theta - step)[1]) / (2 * size)
            else:
                H[j] = (function(theta + step)[1] - here) / size
        H = (H + H.T) / 2
        if idle is not None:
            ways = np.linalg.svd(idle, full_matrices=False)[2]
            H += np.trace(H) / len(H) * ways.T @ ways
        self._theta, self._unit = theta, 1 / np.sqrt(np.maximum(np.diag(H), 1e-300))
        self._root = linalg.cholesky(H * np.outer(self._unit, self._unit), lower=True)
        if not (np.diag(self._root) ** 2 > _FLAT).all():
            raise np.linalg.LinAlgError("the data do not determine the map")

    def __call__(self, gradient: Array) -> Array:
        """Return theta after the step, given a gradient there."""
        step = linalg.cho_solve((self._root, True), self._unit * gradient)
        return self._theta - self._unit * step
