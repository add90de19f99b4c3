"""The paper's own way to the minimum of MMD, minibatches, which every table compares."""

from typing import Any

import numpy as np

from condokit.checks import Array, check_integer
from condokit.divergences.samples import RowDivergence, gradient_in_map, mapped
from condokit.maps.families import MapFamily
from condokit.solvers.solution import Solution
from condokit.summaries.samples import Samples


class StochasticMMD(RowDivergence):
    r"""The paper's minibatch MMD, for comparison: slow, and far from the minimum by default.

    Pairs of sets of rows are drawn once: a confounder value from the prior, then `n_samples` rows
    of either domain given it. Every step takes `n_values` pairs and follows the gradient of the sum
    of their squared MMD, with the kernel :math:`\exp(-|x - y|^2 / h)` and h the mean squared
    distance of distinct rows in the two sets, by AdamW from the identity.

    Parameters
    ----------
    epochs : int, default=5
        Passes over all pairs of sets.
    learning_rate : float, default=0.001
        Of AdamW, with decay 1e-4 towards zero; at most the length of a step in any parameter.
    n_values : int, default=8
        Pairs of sets in a step.
    n_samples : int, default=20
        Rows in a set.
    n_sets : int or None, default=None
        Pairs of sets; None for as many as the smaller domain has rows.
    patience : int, default=3
        Epochs without a lower loss after which to stop; the best epoch is kept.
    random_state : int, default=0
        Seed.
    """

    def __init__(
        self,
        epochs: int = 5,
        learning_rate: float = 0.001,
        n_values: int = 8,
        n_samples: int = 20,
        n_sets: int | None = None,
        patience: int = 3,
        random_state: int = 0,
    ) -> None:
        self.epochs, self.learning_rate, self.n_values = epochs, learning_rate, n_values
        self.n_samples, self.n_sets, self.patience = n_samples, n_sets, patience
        self.random_state = random_state

    max_rows = 10**9

    def supports(self, family: MapFamily) -> str | None:  # noqa: D102
        if family.form == "matrix" and not family.is_free:
            return "StochasticMMD finds diagonal and free affine maps only."
        return super().supports(family)

    def solve(self, family: Any, summary: Samples) -> Solution:  # noqa: D102
        for name in ("epochs", "n_values", "n_samples", "patience"):
            check_integer(name, getattr(self, name), 1 if name != "n_samples" else 2)
        if self.n_sets is not None:
            check_integer("n_sets", self.n_sets, 1)
        rng = np.random.default_rng(self.random_state)
        sides = summary.query, summary.reference
        n_sets = self.n_sets or summary.n_rows or min(sum(map(len, side)) for side in sides)
        values = rng.choice(len(summary.weights), n_sets, p=summary.weights)
        X, Y = (
            np.stack([side[k][rng.integers(0, len(side[k]), self.n_samples)] for k in values])
            for side in sides
        )
        b: Array = np.zeros(Y.shape[2])
        A: Array = np.ones(len(b)) if family.form == "diagonal" else np.eye(len(b), X.shape[2])
        moves_A, moves_b = family.has_scale, family.has_offset
        state = np.zeros((2, A.size + len(b)))  # AdamW's running moments of the gradient
        best, worse, step = (np.inf, A, b), 0, 0
        for _ in range(self.epochs):
            loss = 0.0
            for first in range(0, n_sets, self.n_values):
                here = slice(first, first + self.n_values)
                value, pull = _mmd_of_sets(mapped(X[here], A, b), Y[here])
                pull, rows = (part.reshape(-1, part.shape[2]) for part in (pull, X[here]))
                d_A, d_b = gradient_in_map(pull, rows, A) * moves_A, pull.sum(axis=0) * moves_b
                gradient = np.concatenate([d_A.ravel(), d_b])
                step, loss = step + 1, loss + value
                state[0] = 0.9 * state[0] + 0.1 * gradient
                state[1] = 0.999 * state[1] + 0.001 * gradient**2
                mean, square = state[0] / (1 - 0.9**step), state[1] / (1 - 0.999**step)
                move = self.learning_rate * mean / (np.sqrt(square) + 1e-8)
                decay = 1 - self.learning_rate * 1e-4
                A = A * (decay if moves_A else 1.0) - move[: A.size].reshape(A.shape)
                b = b * decay - move[A.size :]
            worse = 0 if loss < best[0] else worse + 1
            best = (loss, A, b) if loss < best[0] else best
            if worse >= self.patience:
                break
        return Solution.of(best[1], best[2], objective=best[0] / n_sets, n_iter=step)


def _mmd_of_sets(Z: Array, Y: Array) -> tuple[float, Array]:
    """Return the sum of squared MMD over pairs of sets, and its gradient in the rows of Z."""
    both = np.concatenate([Z, Y], axis=1)
    far = both - both.mean(axis=1, keepdims=True)
    size = (far**2).sum(axis=-1)
    square = size[:, :, None] + size[:, None] - 2 * far @ far.transpose(0, 2, 1)
    square = np.maximum(square, 0.0)
    n, m = Z.shape[1], Y.shape[1]
    width = square.sum(axis=(1, 2), keepdims=True) / ((n + m) * (n + m - 1))
    width = np.maximum(width, 1e-300)
    sign = np.repeat([1 / n, -1 / m], [n, m])
    weighted = np.exp(-square / width) * sign[:, None] * sign
    slope = -weighted[:, :n] / width  # of k in the squared distance
    gradient = 4 * (slope.sum(axis=2)[:, :, None] * Z - slope @ both)
    return float(weighted.sum()), gradient
