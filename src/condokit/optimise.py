"""One way to call the general minimiser of smooth functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from scipy.optimize import Bounds, OptimizeResult, minimize
from threadpoolctl import ThreadpoolController

from condokit._validation import Array


def lbfgs(
    function: Callable[[Array], tuple[float, Array]],
    start: Array,
    *,
    bounds: tuple[Array, Array] | None = None,
    max_iter: int = 500,
    ftol: float = 1e-13,
    gtol: float = 1e-8,
) -> OptimizeResult:
    """Minimise a function that returns value and gradient; infinite values cut the step.

    Parameters
    ----------
    function : callable
        From parameters to (value, gradient).
    start : ndarray
        Where to begin; the value there must be finite.
    bounds : tuple of ndarray or None, default=None
        Least and largest parameters.
    max_iter : int, default=500
        Most iterations.
    ftol, gtol : float
        Relative decrease of the value, and largest entry of the gradient, to stop at.
    """
    worst = 0.0

    def finite(v: Array) -> tuple[float, Array]:
        nonlocal worst
        value, gradient = function(v)
        if not np.isfinite(value):  # worse than anything seen, but a number to interpolate with
            return worst + 10 + abs(worst), np.zeros_like(v)
        worst = max(worst, value)
        return value, gradient

    # small products: threads cost more than they give, much more where cores are shared
    with _threads().limit(limits=1, user_api="blas"):
        return minimize(
            finite,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=None if bounds is None else Bounds(*bounds),
            options={"maxiter": max_iter, "maxfun": 2 * max_iter, "ftol": ftol, "gtol": gtol},
        )


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()
