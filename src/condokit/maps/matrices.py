"""The matrix of an affine map in the form it has: diagonal, diagonal plus low rank, or dense."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from condokit.checks import Array
from condokit.maps.file import numbers


class Matrix(ABC):
    """A matrix A of one kind, with its own algebra; immutable.

    Attributes
    ----------
    kind : str
        "diagonal", "low-rank" or "dense".
    scale : ndarray of shape (n_inputs,) or (n_outputs, n_inputs)
        The diagonal of the matrix, or all of it.
    """

    kind: ClassVar[str]
    dimensions: ClassVar[dict[str, int]]  # of the arrays that it is made of
    scale: Array

    def __post_init__(self) -> None:
        for name, array in vars(self).items():
            view = np.asarray(array, dtype=np.float64).view()
            view.flags.writeable = False
            self.__dict__[name] = view

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of outputs and inputs."""
        return len(self.scale), self.scale.shape[-1]

    def arrays(self) -> dict[str, Any]:
        """Return what the matrix is made of: `scale`, and maybe `left` and `right`."""
        return dict(vars(self))

    @abstractmethod
    def product(self, X: Array, out: Array | None = None) -> Array:
        """Return A x for every row x."""

    @abstractmethod
    def transposed_product(self, X: Array) -> Array:
        """Return A' x for every row x."""

    def inverse(self) -> Matrix:
        """Return the inverse in the same form; raise a ValueError if there is none."""
        try:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                inverse = self._inverse()
        except np.linalg.LinAlgError:
            raise ValueError("The map has no inverse: its matrix is singular.") from None
        refuse_infinity(*inverse.arrays().values())
        return inverse

    @abstractmethod
    def _inverse(self) -> Matrix: ...

    @abstractmethod
    def compose(self, other: Matrix) -> Matrix:
        """Return the product A B with another matrix B; it is dense only if one of them is."""

    @abstractmethod
    def scaled(self, factors: Array) -> Matrix:
        """Return the matrix with every output multiplied by a factor of its own."""

    @abstractmethod
    def plus(self, left: Array, right: Array) -> Matrix:
        """Return A + left right'."""

    @abstractmethod
    def sign_and_log_det(self) -> tuple[float, float]:
        """Return the sign of the determinant, and the logarithm of its absolute value."""

    def log_det(self) -> float:
        """Return log |det A|, minus infinity if the matrix is singular."""
        return self.sign_and_log_det()[1]

    @abstractmethod
    def depends(self, marked: Array) -> Array:
        """Mark the outputs that depend on any of the marked inputs, row by row."""

    def take(self, order: Sequence[int]) -> Matrix:
        """Return the matrix with its features, inputs and outputs alike, in another order."""
        return _KINDS[self.kind](**{name: part[order] for name, part in self.arrays().items()})

    def row(self, j: int) -> Array:
        """Return one row of the matrix."""
        return self.transposed_product(np.eye(1, self.shape[0], j))[0]

    @abstractmethod
    def diagonal(self) -> Array:
        """Return the diagonal of the matrix."""

    @abstractmethod
    def array(self) -> Array:
        """Return the whole matrix, made on request."""

    def to_dict(self) -> dict[str, Any]:
        """Return kind and numbers as they stand in a file."""
        return {"kind": self.kind} | {name: part.tolist() for name, part in self.arrays().items()}

    @staticmethod
    def from_dict(content: dict[str, Any]) -> Matrix:
        """Read what `to_dict` wrote, among other keys; raise a ValueError for anything else."""
        made = _KINDS[content["kind"]]
        if {"left", "right"} & content.keys() != made.dimensions.keys() - {"scale"}:
            raise ValueError("'left' and 'right' belong to maps of the kind 'low-rank' alone.")
        return made(**{key: numbers(key, content, n) for key, n in made.dimensions.items()})


@dataclass(frozen=True, eq=False)
class Diagonal(Matrix):
    """diag(scale)."""

    scale: Array
    kind = "diagonal"
    dimensions = {"scale": 1}

    def product(self, X: Array, out: Array | None = None) -> Array:  # noqa: D102
        return np.multiply(X, self.scale, out=out)

    def transposed_product(self, X: Array) -> Array:  # noqa: D102
        return X * self.scale

    def _inverse(self) -> Matrix:
        return Diagonal(1 / self.scale)

    def compose(self, other: Matrix) -> Matrix:  # noqa: D102
        return other.scaled(self.scale)

    def scaled(self, factors: Array) -> Matrix:  # noqa: D102
        return Diagonal(factors * self.scale)

    def plus(self, left: Array, right: Array) -> Matrix:  # noqa: D102
        return DiagonalPlusLowRank(self.scale, left, right)

    def sign_and_log_det(self) -> tuple[float, float]:  # noqa: D102
        with np.errstate(divide="ignore"):
            return float(np.prod(np.sign(self.scale))), float(np.log(np.abs(self.scale)).sum())

    def depends(self, marked: Array) -> Array:
        """Mark the same places, those with a scale of 0 included."""
        return marked

    def diagonal(self) -> Array:  # noqa: D102
        return self.scale

    def array(self) -> Array:  # noqa: D102
        return np.diag(self.scale)


@dataclass(frozen=True, eq=False)
class DiagonalPlusLowRank(Matrix):
    """diag(scale) + left right', with as many columns in `left` and `right` as the rank."""

    scale: Array
    left: Array
    right: Array
    kind = "low-rank"
    dimensions = {"scale": 1, "left": 2, "right": 2}

    def product(self, X: Array, out: Array | None = None) -> Array:  # noqa: D102
        result = np.multiply(X, self.scale, out=out)
        result += (X @ self.right) @ self.left.T
        return result

    def transposed_product(self, X: Array) -> Array:  # noqa: D102
        return X * self.scale + (X @ self.left) @ self.right.T

    def _core(self) -> Array:
        """Return I + right' left / scale, of the size of the rank: its determinant is the ratio."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.eye(self.left.shape[1]) + self.right.T @ (self.left / self.scale[:, None])

    def _inverse(self) -> Matrix:
        """Use Woodbury's identity: 1 / scale - left / scale core^-1 (right / scale)'."""
        scale = 1 / self.scale
        left = -np.linalg.solve(self._core().T, (self.left * scale[:, None]).T).T
        return DiagonalPlusLowRank(scale, left, self.right * scale[:, None])

    def compose(self, other: Matrix) -> Matrix:  # noqa: D102
        right = other.transposed_product(self.right.T).T
        return other.scaled(self.scale).plus(self.left, right)

    def scaled(self, factors: Array) -> Matrix:  # noqa: D102
        return DiagonalPlusLowRank(factors * self.scale, factors[:, None] * self.left, self.right)

    def plus(self, left: Array, right: Array) -> Matrix:  # noqa: D102
        wider = np.hstack([left, self.left]), np.hstack([right, self.right])
        return DiagonalPlusLowRank(self.scale, *wider)

    def sign_and_log_det(self) -> tuple[float, float]:  # noqa: D102
        sign, log_det = Diagonal(self.scale).sign_and_log_det()
        core_sign, core_log_det = np.linalg.slogdet(self._core())
        return sign * float(core_sign), log_det + float(core_log_det)

    def depends(self, marked: Array) -> Array:  # noqa: D102
        shared = marked.astype(np.float64) @ (self.right != 0) @ (self.left != 0).T > 0
        return marked & (self.scale != 0) | shared

    def diagonal(self) -> Array:  # noqa: D102
        return self.scale + (self.left * self.right).sum(axis=1)

    def array(self) -> Array:  # noqa: D102
        return np.diag(self.scale) + self.left @ self.right.T


@dataclass(frozen=True, eq=False)
class Dense(Matrix):
    """All entries, maybe of other numbers of outputs and inputs."""

    scale: Array
    kind = "dense"
    dimensions = {"scale": 2}

    def product(self, X: Array, out: Array | None = None) -> Array:  # noqa: D102
        return np.matmul(X, self.scale.T, out=out)

    def transposed_product(self, X: Array) -> Array:  # noqa: D102
        return X @ self.scale

    def _inverse(self) -> Matrix:
        return Dense(np.linalg.inv(self.scale))

    def compose(self, other: Matrix) -> Matrix:  # noqa: D102
        return Dense(other.transposed_product(self.scale))

    def scaled(self, factors: Array) -> Matrix:  # noqa: D102
        return Dense(factors[:, None] * self.scale)

    def plus(self, left: Array, right: Array) -> Matrix:  # noqa: D102
        return Dense(self.scale + left @ right.T)

    def sign_and_log_det(self) -> tuple[float, float]:  # noqa: D102
        sign, log_det = np.linalg.slogdet(self.scale)
        return float(sign), float(log_det)

    def depends(self, marked: Array) -> Array:  # noqa: D102
        return marked.astype(np.float64) @ (self.scale != 0).T > 0

    def take(self, order: Sequence[int]) -> Matrix:  # noqa: D102
        return Dense(self.scale[np.ix_(order, order)])

    def diagonal(self) -> Array:  # noqa: D102
        return np.diagonal(self.scale)

    def array(self) -> Array:  # noqa: D102
        return self.scale


_KINDS: dict[str, Any] = {made.kind: made for made in (Diagonal, DiagonalPlusLowRank, Dense)}


def matrix_of(scale: Any, left: Any = None, right: Any = None) -> Matrix:
    """Return a matrix of the kind that the arrays have; copy them, and refuse what makes none.

    Parameters
    ----------
    scale : array-like of shape (n_features,) or (n_outputs, n_features)
        The diagonal, or all of the matrix.
    left, right : array-like of shape (n_features, rank) or None, default=None
        With them, the matrix is diag(scale) + left right'.
    """
    scale = checked("scale", scale, "vector with one number per feature, or a matrix", (1, 2))
    factors = [
        checked(name, value, "matrix with one row per feature", (2,))
        for name, value in (("left", left), ("right", right))
        if value is not None
    ]
    if not factors:
        return Diagonal(scale) if scale.ndim == 1 else Dense(scale)
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
