"""L-BFGS for any function or family of maps, with progress, and stopped by Ctrl-C."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController

from condokit.checks import Array, within
from condokit.io.progress import progress
from condokit.maps.coordinates import Coordinates
from condokit.solvers.solution import Solution

Evaluation = tuple[float, Array, Array]  # a value, and its gradients in two arguments
# of a map (A, b) in the solver's units; infinite where A is singular
Objective = Callable[[Array, Array], Evaluation]


@dataclass
class Watch:
    """Progress of a fit, and whether the user has stopped it."""

    show: Callable[[int, str], None]  # shows the number of evaluations and the present objective
    stopped: bool = False  # whether Ctrl-C was pressed: searches then end where they are
    n_evaluations: int = 0


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)
_pools = cache(ThreadpoolController)


@contextmanager
def threads(n_jobs: int | None) -> Iterator[None]:
    """Limit linear algebra to so many threads: None is 1, -1 all there are."""
    limit = 1 if n_jobs is None else None if n_jobs == -1 else int(n_jobs)
    with _pools().limit(limits=limit, user_api="blas"):
        yield


@contextmanager
def watched(verbose: bool, n_jobs: int | None) -> Iterator[Watch]:
    """Run a fit with so many threads, show progress, and let Ctrl-C end searches."""
    shown = progress("evaluations", None, verbose, "Fitting")
    with shown as show, threads(n_jobs), within(_watch, Watch(show)) as watch:
        yield watch


def lbfgs(
    function: Callable[[Array], tuple[float, Array]],
    start: Array,  # the value there must be finite
    *,
    max_iter: int = 500,
    ftol: float = 1e-13,  # relative decrease of the value to stop at
    gtol: float = 1e-8,  # largest entry of the gradient to stop at
) -> Any:
    """Minimise a function of value and gradient; Ctrl-C keeps the best point, if `watched`."""
    watch = _watch.get()
    worst, n_evaluations = 0.0, 0
    best: dict[str, Any] | None = None

    def finite(v: Array) -> tuple[float, Array]:
        """Return value and gradient, a large number if infinite; remember the best point."""
        nonlocal worst, best, n_evaluations
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # of a step too far
            value, gradient = function(v)
        n_evaluations += 1
        if watch is not None:
            watch.n_evaluations += 1
            watch.show(watch.n_evaluations, f"objective {value:.6g}")
        if not np.isfinite(value):  # worse than anything seen, but a number to interpolate with
            return worst + 10 + abs(worst), np.zeros_like(v)
        worst = max(worst, value)
        if best is None or value < best["fun"]:
            best = {"fun": value, "x": v.copy(), "jac": gradient}
        return value, gradient

    try:
        if watch is not None and watch.stopped:
            finite(start)
            raise KeyboardInterrupt
        options: Any = {"maxiter": max_iter, "maxfun": 2 * max_iter, "ftol": ftol, "gtol": gtol}
        return minimize(finite, start, jac=True, method="L-BFGS-B", options=options)
    except KeyboardInterrupt:
        if watch is None or best is None:
            raise
        watch.stopped = True
        return SimpleNamespace(**best, nit=n_evaluations)


def infinite(A: Array, b: Array) -> Evaluation:
    """Return an infinite value with zero gradients, as of a singular matrix."""
    return np.inf, np.zeros_like(A), np.zeros_like(b)


def in_coordinates(
    objective: Objective, near: Coordinates
) -> Callable[[Array], tuple[float, Array]]:
    """Return an objective of maps as a function of coordinates, with its gradient."""

    def function(theta: Array) -> tuple[float, Array]:
        """Return value and gradient at theta."""
        value, d_A, d_b = objective(*near.unpack(theta))
        return value, near.pull_back(theta, d_A, d_b)

    return function


def descend(
    objective: Objective, near: Coordinates, max_iter: int, ftol: float = 1e-13, gtol: float = 1e-8
) -> Solution:
    """Return the local minimum that is reached from the start of the coordinates."""
    if len(near.start) == 0:
        A, b = near.unpack(near.start)
        return Solution.of(A, b, objective=objective(A, b)[0])
    n_iter, here = 0, near
    while True:
        function = in_coordinates(objective, here)
        best = lbfgs(function, here.start, max_iter=max_iter, ftol=ftol, gtol=gtol)
        n_iter += int(best.nit)
        if (following := here.renewed(best.x)) is None:
            break
        here = following
    A, b = here.unpack(best.x)
    norm = float(np.abs(best.jac).max())
    return Solution.of(A, b, objective=float(best.fun), n_iter=n_iter, gradient_norm=norm)


def keeping_orientation(objective: Objective, A: Array) -> Objective:
    """Return the objective, infinite where det has another sign than det A."""
    sign = np.linalg.slogdet(A)[0]
    return lambda A, b: objective(A, b) if np.linalg.slogdet(A)[0] == sign else infinite(A, b)
