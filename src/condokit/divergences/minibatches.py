"""The paper's search for the minimum of MMD: minibatches and AdamW, from the identity."""

from collections.abc import Callable
from typing import Any

import numpy as np

from condokit.checks import Array, check_integer, check_number, is_number
from condokit.divergences.samples import RowDivergence, gradient_in_map, mapped
from condokit.maps.families import MapFamily
from condokit.solvers.solution import Solution
from condokit.summaries.samples import Samples

Radial = Callable[[Array], tuple[Array, Array]]
_BETAS = 0.9, 0.999  # decay rates of AdamW's moments
_EPSILON = 1e-8  # added to AdamW's divisor


def rbf(squares: Array) -> tuple[Array, Array]:
    r"""Return the kernel :math:`e^{-s}` of squared distances over the width, and its slope."""
    values = np.exp(-squares)
    return values, -values


class MinibatchMMD(RowDivergence):
    r"""The paper's minibatch MMD: slow, and far from the minimum by default.

    Pairs of sets of rows are drawn: first a confounder value from the prior, then `K_X` rows of
    each domain given that value. A step uses `K_Z` pairs of sets. It is an AdamW step on the sum of
    their squared MMD (as a V-statistic, so that a row is also paired with itself), starting from
    the identity. After `patience` epochs without a lower loss the search stops; the map with the
    lowest loss is returned.

    Parameters
    ----------
    k_X, h_X, K_X, K_Z, F, epochs, learning_rate, weight_decay, patience, random_state
        As in `condokit.paper.ConDo`. Without `h_X` the width is computed again at every step, and
        the gradient takes it as constant.
    redrawn : bool, default=False
        Whether sets are drawn again in every epoch; otherwise all epochs use those of the first.

    Examples
    --------
    >>> from condokit import ConDoAdapter, datasets
    >>> from condokit.divergences.minibatches import MinibatchMMD
    >>> p = datasets.make_categorical1d(200, random_state=0)  # the true map is x / 2 - 2.5
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> divergence = MinibatchMMD(epochs=100, learning_rate=0.01)
    >>> adapter = ConDoAdapter(divergence=divergence, shrinkage=None).fit_pair(*data)
    >>> adapter.map_.scale.round(1)
    array([0.5])
    """

    def __init__(
        self,
        *,
        k_X: Radial | None = None,
        h_X: float | None = None,
        K_X: int = 20,
        K_Z: int = 8,
        F: float = 1.0,
        epochs: int = 5,
        learning_rate: float = 0.001,
        weight_decay: float = 1e-4,
        patience: int = 3,
        random_state: int = 0,
        redrawn: bool = False,
    ) -> None:
        self.k_X, self.h_X, self.K_X, self.K_Z, self.F = k_X, h_X, K_X, K_Z, F
        self.epochs, self.learning_rate, self.weight_decay = epochs, learning_rate, weight_decay
        self.patience, self.redrawn, self.random_state = patience, redrawn, random_state

    max_rows = 10**9

    def supports(self, family: MapFamily) -> str | None:  # noqa: D102
        if family.form == "matrix" and not family.is_free:
            return "MinibatchMMD finds diagonal and free affine maps only."
        return super().supports(family)

    def solve(self, family: Any, summary: Samples) -> Solution:  # noqa: D102
        self._check()
        rng = np.random.default_rng(self.random_state)
        X, Y = self._draw(summary, rng)
        b: Array = np.zeros(Y.shape[2])
        A: Array = np.ones(len(b)) if family.form == "diagonal" else np.eye(len(b), X.shape[2])
        moves_A, moves_b = family.has_scale, family.has_offset
        state = np.zeros((2, A.size + len(b)))  # AdamW's running moments of the gradient
        best, worse, step = (np.inf, A, b), 0, 0
        for epoch in range(self.epochs):
            if epoch and self.redrawn:
                X, Y = self._draw(summary, rng)
            loss = 0.0
            for first in range(0, len(X), self.K_Z):
                here = slice(first, first + self.K_Z)
                value, pull = self.of_sets(mapped(X[here], A, b), Y[here])
                pull, rows = (part.reshape(-1, part.shape[2]) for part in (pull, X[here]))
                d_A, d_b = gradient_in_map(pull, rows, A) * moves_A, pull.sum(axis=0) * moves_b
                step, loss = step + 1, loss + value
                move = self.learning_rate * _adam(state, np.append(d_A.ravel(), d_b), step)
                decay = 1 - self.learning_rate * self.weight_decay
                A = A * (decay if moves_A else 1.0) - move[: A.size].reshape(A.shape)
                b = b * decay - move[A.size :]
            worse = 0 if loss < best[0] else worse + 1
            best = (loss, A, b) if loss < best[0] else best
            if worse >= self.patience:
                break
        return Solution.of(best[1], best[2], objective=best[0] / len(X), n_iter=step)

    def _check(self) -> None:
        """Raise an error for settings with which there is no descent."""
        for name in ("K_Z", "epochs", "patience"):
            check_integer(name, getattr(self, name), 1)
        check_integer("K_X", self.K_X, 2)
        check_number("learning_rate", self.learning_rate, 1e-300)
        check_number("weight_decay", self.weight_decay, 0)
        check_share(self.F)
        if self.h_X is not None:
            check_number("h_X", self.h_X, 1e-300)
        if self.k_X is not None:
            _check_radial(self.k_X)

    def _draw(self, samples: Samples, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return pairs of sets, each of shape (n_sets, K_X, n_features)."""
        sides = samples.query, samples.reference
        fewest = samples.n_rows or min(sum(map(len, side)) for side in sides)
        n_sets = max(1, int(self.F * fewest))
        values = rng.choice(len(samples.weights), n_sets, p=samples.weights)
        X, Y = (
            np.stack([side[k][rng.integers(0, len(side[k]), self.K_X)] for k in values])
            for side in sides
        )
        return X, Y

    def of_sets(self, Z: Array, Y: Array) -> tuple[float, Array]:
        """Return the sum of squared MMD over pairs of sets, and its gradient in the rows of Z."""
        both = np.concatenate([Z, Y], axis=1)
        far = both - both.mean(axis=1, keepdims=True)
        size = (far**2).sum(axis=-1)
        square = size[:, :, None] + size[:, None] - 2 * far @ far.transpose(0, 2, 1)
        square = np.maximum(square, 0.0)
        n, m = Z.shape[1], Y.shape[1]
        width = square.sum(axis=(1, 2), keepdims=True) / ((n + m) * (n + m - 1))
        width = np.maximum(width, 1e-300) if self.h_X is None else self.h_X
        sign = np.repeat([1 / n, -1 / m], [n, m])
        shares = sign[:, None] * sign
        values, slopes = (self.k_X or rbf)(square / width)
        weighted, slope = values * shares, (slopes * shares)[:, :n] / width
        gradient = 4 * (slope.sum(axis=2)[:, :, None] * Z - slope @ both)
        return float(weighted.sum()), gradient


def _adam(state: Array, gradient: Array, step: int) -> Array:
    """Update AdamW's moments in place, and return the step's direction, at most about one."""
    for moment, beta, power in zip(state, _BETAS, (1, 2)):
        moment *= beta
        moment += (1 - beta) * gradient**power
    mean, square = (moment / (1 - beta**step) for moment, beta in zip(state, _BETAS))
    return np.asarray(mean / (np.sqrt(square) + _EPSILON))


def check_share(F: Any) -> None:
    """Raise an error if F is no share of the rows."""
    if not (is_number(F) and 0 < F <= 1):
        raise ValueError(f"'F' must be a share of the rows, above 0 and at most 1. Got {F!r}.")


def _check_radial(kernel: Any) -> None:
    """Raise an error if a kernel does not return values and their derivative, by differences."""
    must = "'k_X' must take squared distances over the width, and return the kernel and its slope"
    if not callable(kernel):
        raise ValueError(f"{must}. Got {kernel!r}.")
    s, step = np.array([[0.5, 1.0], [2.0, 4.0]]), 1e-6
    try:
        values, slopes = (np.asarray(part, dtype=float) for part in kernel(s))
        moved = np.subtract(*(np.asarray(kernel(s + h)[0]) for h in (step, -step))) / (2 * step)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{must}. It failed: {error}.") from None
    if values.shape != s.shape or slopes.shape != s.shape:
        raise ValueError(f"{must}, both of their shape {s.shape}. Got {values.shape}.")
    if not np.isfinite(values).all() or (values < 0).any():
        raise ValueError("'k_X' must return finite numbers that are not negative.")
    if not np.allclose(slopes, moved, rtol=1e-3, atol=1e-6):
        raise ValueError("The slope that 'k_X' returns is not that of its values.")
