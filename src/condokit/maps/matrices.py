"""The matrix of an affine map, stored as it is: diagonal, plus low rank, or dense."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from condokit.checks import Array


@dataclass(frozen=True, eq=False)
class Matrix:
    """A dense matrix A, perhaps rectangular; immutable."""

    scale: Array  # all of the matrix, or its diagonal in a shorter form

    def __post_init__(self) -> None:
        for name, array in vars(self).items():
            view = np.asarray(array, dtype=np.float64).view()
            view.flags.writeable = False
            self.__dict__[name] = view

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    @property
    def kind(self) -> str:
        """The form of the matrix: "diagonal", "low-rank" or "dense"."""
        if self.scale.ndim == 2:
            return "dense"
        return "low-rank" if "left" in self.arrays() else "diagonal"

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of outputs and inputs."""
        return len(self.scale), self.scale.shape[-1]

    def arrays(self) -> dict[str, Any]:
        """Return the arrays that make up the matrix: `scale`, and perhaps `left` and `right`."""
        return {name: array for name, array in vars(self).items() if array.size}

    def product(self, X: Array, out: Array | None = None) -> Array:
        """Return A x for every row x."""
        return np.matmul(X, self.scale.T, out=out)

    @property
    def T(self) -> "Matrix":
        """The transposed matrix."""
        return Matrix(self.scale.T)

    def __matmul__(self, M: Array) -> Array:
        return self.product(M.T).T

    def inverse(self) -> "Matrix":
        """Return the inverse in the same form; raise a ValueError if there is none."""
        try:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                inverse = self._inverse()
        except np.linalg.LinAlgError:
            raise ValueError("The map has no inverse: its matrix is singular.") from None
        refuse_infinity(*inverse.arrays().values())
        return inverse

    def _inverse(self) -> "Matrix":
        return Matrix(np.linalg.inv(self.scale))

    def compose(self, other: "Matrix") -> "Matrix":
        """Return the product A B with another matrix B; it is dense only if one of them is."""
        return Matrix(other.T.product(self.scale))

    def scaled(self, factors: Array) -> "Matrix":
        """Return the matrix with each output multiplied by its factor."""
        return Matrix(factors[:, None] * self.scale)

    def plus(self, left: Array, right: Array) -> "Matrix":
        """Return A + left right'."""
        return Matrix(self.scale + left @ right.T)

    def log_det(self) -> float:
        """Return log |det A|, minus infinity if the matrix is singular."""
        return float(np.linalg.slogdet(self.scale)[1])

    def depends(self, marked: Array) -> Array:
        """Mark the outputs that depend on any of the marked inputs, row by row."""
        return marked.astype(np.float64) @ (self.scale != 0).T > 0

    def take(self, order: Sequence[int]) -> "Matrix":
        """Return the matrix with its features reordered, inputs and outputs alike."""
        return Matrix(self.scale[np.ix_(order, order)])

    def row(self, j: int) -> Array:
        """Return one row of the matrix."""
        return self.T.product(np.eye(1, self.shape[0], j))[0]

    def diagonal(self) -> Array:
        """Return the diagonal of a square matrix."""
        return np.diag(self.scale)

    def array(self) -> Array:
        """Return the whole matrix, made on request."""
        return self.scale


@dataclass(frozen=True, eq=False)
class DiagonalPlusLowRank(Matrix):
    """diag(scale) + left right', where the factors have as many columns as the rank, or none."""

    left: Any = ()
    right: Any = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("left", "right"):
            self.__dict__[name] = getattr(self, name).reshape(len(self.scale), -1)

    def product(self, X: Array, out: Array | None = None) -> Array:  # noqa: D102
        result = np.multiply(X, self.scale, out=out)
        if self.left.size:
            result += (X @ self.right) @ self.left.T
        return result

    @property
    def T(self) -> Matrix:  # noqa: D102
        return DiagonalPlusLowRank(self.scale, self.right, self.left)

    def core(self) -> Array:
        """Return C = I + right' diag(scale)^-1 left: det A is det C times the product of scales."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.eye(self.left.shape[1]) + self.right.T @ (self.left / self.scale[:, None])

    def _inverse(self) -> Matrix:
        """Use Woodbury's identity: 1 / scale - left / scale core^-1 (right / scale)'."""
        scale = 1 / self.scale
        left = -np.linalg.solve(self.core().T, (self.left * scale[:, None]).T).T
        return DiagonalPlusLowRank(scale, left, self.right * scale[:, None])

    def compose(self, other: Matrix) -> Matrix:  # noqa: D102
        right = other.T @ self.right
        return other.scaled(self.scale).plus(self.left, right)

    def scaled(self, factors: Array) -> Matrix:  # noqa: D102
        return DiagonalPlusLowRank(factors * self.scale, factors[:, None] * self.left, self.right)

    def plus(self, left: Array, right: Array) -> Matrix:  # noqa: D102
        wider = np.hstack([left, self.left]), np.hstack([right, self.right])
        return DiagonalPlusLowRank(self.scale, *wider)

    def log_det(self) -> float:  # noqa: D102
        with np.errstate(divide="ignore"):
            of_scale = np.log(np.abs(self.scale)).sum()
        return float(of_scale + np.linalg.slogdet(self.core())[1])

    def depends(self, marked: Array) -> Array:
        """Mark the outputs that depend; those of a diagonal, a scale of 0 included."""
        if not self.left.size:
            return marked
        shared = marked.astype(np.float64) @ (self.right != 0) @ (self.left != 0).T > 0
        return marked & (self.scale != 0) | shared

    def take(self, order: Sequence[int]) -> Matrix:  # noqa: D102
        return DiagonalPlusLowRank(self.scale[order], self.left[order], self.right[order])

    def diagonal(self) -> Array:  # noqa: D102
        return self.scale + (self.left * self.right).sum(axis=1)

    def array(self) -> Array:  # noqa: D102
        return np.diag(self.scale) + self.left @ self.right.T


def matrix_of(scale: Any, left: Any = None, right: Any = None) -> Matrix:
    """Return a matrix of the form that the arrays have; copy them, and refuse invalid ones."""
    scale = checked("scale", scale, "vector with one number per feature, or a matrix", (1, 2))
    factors = [
        checked(name, value, "matrix with one row per feature", (2,))
        for name, value in (("left", left), ("right", right))
        if value is not None
    ]
    if not factors:
        return DiagonalPlusLowRank(scale) if scale.ndim == 1 else Matrix(scale)
    if len(factors) == 1:
        raise ValueError("'left' and 'right' must be given together.")
    if scale.ndim == 2:
        raise ValueError("'left' and 'right' go with a vector 'scale', not with a matrix.")
    left, right = factors
    if left.shape != right.shape or len(left) != len(scale):
        raise ValueError(
            f"'left' and 'right' must both have {len(scale)} rows and as many columns as each "
            f"other. Got shapes {left.shape} and {right.shape}."
        )
    return DiagonalPlusLowRank(scale, left, right)


def average(matrices: Sequence[Matrix], weights: Array) -> Matrix:
    """Return the weighted sum of square matrices; it is dense only if one of them is."""
    if any(matrix.kind == "dense" for matrix in matrices):
        return Matrix(sum(w * matrix.array() for w, matrix in zip(weights, matrices)))
    scale = sum(w * matrix.scale for w, matrix in zip(weights, matrices))
    result: Matrix = DiagonalPlusLowRank(scale)
    for w, matrix in zip(weights, matrices):
        parts = matrix.arrays()
        if "left" in parts:
            result = result.plus(w * parts["left"], parts["right"])
    return result


def checked(name: str, value: Any, what: str, dimensions: tuple[int, ...]) -> Array:
    """Return a read-only copy of finite numbers; refuse anything else."""
    array = np.array(value, dtype=np.float64)
    if array.ndim not in dimensions or array.size == 0:
        raise ValueError(f"'{name}' must be a {what}. Got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"'{name}' must be finite.")
    array.flags.writeable = False
    return array


def refuse_infinity(*arrays: Array) -> None:
    """Refuse the parts of an inverse if they are not finite."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("The map has no finite inverse: its matrix is too close to singular.")
