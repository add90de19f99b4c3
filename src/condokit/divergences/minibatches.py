"""The paper's own way to the minimum of MMD: minibatches and AdamW from the identity."""

from collections.abc import Callable
from typing import Any

import numpy as np

from condokit.checks import Array, check_integer, check_number
from condokit.divergences.samples import RowDivergence, gradient_in_map, mapped
from condokit.maps.families import MapFamily
from condokit.solvers.solution import Solution
from condokit.summaries.samples import Samples

Radial = Callable[[Array], tuple[Array, Array]]
_BETAS = 0.9, 0.999  # of AdamW
_EPSILON = 1e-8


def rbf(squares: Array) -> tuple[Array, Array]:
    r"""Return the kernel :math:`e^{-s}` of squared distances over the width, and its slope."""
    values = np.exp(-squares)
    return values, -values


class MinibatchMMD(RowDivergence):
    r"""The paper's minibatch MMD: slow, and far from the minimum by default.

    Pairs of sets of rows are drawn: a confounder value from the prior, then `n_samples` rows of
    either domain given it. Every step takes `n_values` pairs and follows the gradient of the sum
    of their squared MMD, all pairs of rows counted, by AdamW from the identity.

    Parameters
    ----------
    epochs : int, default=5
        Passes over all pairs of sets.
    learning_rate : float, default=0.001
        Of AdamW; at most about the length of a step in any parameter.
    n_values : int, default=8
        Pairs of sets in a step.
    n_samples : int, default=20
        Rows in a set.
    fraction : float, default=1.0
        Pairs of sets, as a share of the rows of the smaller domain.
    redrawn : bool, default=False
        Whether the sets of an epoch are new ones; otherwise those of the first serve all.
    kernel : callable or None, default=None
        From squared distances over the width to the kernel and its slope, both of their shape.
        None is :math:`e^{-s}`.
    bandwidth : float or None, default=None
        The width h of :math:`s = |x - y|^2 / h`. None is the mean squared distance of distinct rows
        in the two sets, found anew at every step and held constant in the gradient.
    weight_decay : float, default=0.0001
        Of AdamW, towards zero.
    patience : int, default=3
        Epochs without a lower loss after which to stop; the best epoch is kept.
    random_state : int, default=0
        Seed.

    Examples
    --------
    >>> from condokit import ConDoAdapter, datasets
    >>> from condokit.divergences.minibatches import MinibatchMMD
    >>> p = datasets.make_categorical1d(200, random_state=0)  # the true map is x / 2 - 2.5
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> adapter = ConDoAdapter(divergence=MinibatchMMD(100, 0.01), shrinkage=None).fit_pair(*data)
    >>> adapter.map_.scale.round(1)
    array([0.5])
    """

    def __init__(
        self,
        epochs: int = 5,
        learning_rate: float = 0.001,
        n_values: int = 8,
        n_samples: int = 20,
        fraction: float = 1.0,
        redrawn: bool = False,
        kernel: Radial | None = None,
        bandwidth: float | None = None,
        weight_decay: float = 1e-4,
        patience: int = 3,
        random_state: int = 0,
    ) -> None:
        self.epochs, self.learning_rate, self.n_values = epochs, learning_rate, n_values
        self.n_samples, self.fraction, self.redrawn = n_samples, fraction, redrawn
        self.kernel, self.bandwidth, self.weight_decay = kernel, bandwidth, weight_decay
        self.patience, self.random_state = patience, random_state

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
            for first in range(0, len(X), self.n_values):
                here = slice(first, first + self.n_values)
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
        """Refuse settings that make no descent."""
        for name in ("epochs", "n_values", "n_samples", "patience"):
            check_integer(name, getattr(self, name), 1 if name != "n_samples" else 2)
        check_number("learning_rate", self.learning_rate, 1e-300)
        check_number("weight_decay", self.weight_decay, 0)
        check_number("fraction", self.fraction, 1e-12, 1)
        if self.bandwidth is not None:
            check_number("bandwidth", self.bandwidth, 1e-300)

    def _draw(self, samples: Samples, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return pairs of sets, each of shape (n_sets, n_samples, n_features)."""
        sides = samples.query, samples.reference
        fewest = samples.n_rows or min(sum(map(len, side)) for side in sides)
        n_sets = max(1, int(self.fraction * fewest))
        values = rng.choice(len(samples.weights), n_sets, p=samples.weights)
        X, Y = (
            np.stack([side[k][rng.integers(0, len(side[k]), self.n_samples)] for k in values])
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
        width = np.maximum(width, 1e-300) if self.bandwidth is None else self.bandwidth
        sign = np.repeat([1 / n, -1 / m], [n, m])
        shares = sign[:, None] * sign
        values, slopes = (self.kernel or rbf)(square / width)
        weighted, slope = values * shares, (slopes * shares)[:, :n] / width
        gradient = 4 * (slope.sum(axis=2)[:, :, None] * Z - slope @ both)
        return float(weighted.sum()), gradient


def _adam(state: Array, gradient: Array, step: int) -> Array:
    """Renew the running moments, and return the direction of the step, at most about one."""
    for moment, beta, power in zip(state, _BETAS, (1, 2)):
        moment *= beta
        moment += (1 - beta) * gradient**power
    mean, square = (moment / (1 - beta**step) for moment, beta in zip(state, _BETAS))
    return np.asarray(mean / (np.sqrt(square) + _EPSILON))
