"""Coordinates of families of maps: numbers that a search changes, and the map they stand for."""

from abc import ABC, abstractmethod

import numpy as np

from condokit.checks import Array


class Coordinates(ABC):
    """Parameters theta of the maps x -> A x + b of a family, near one of these."""

    start: Array  # theta of that map, or of the nearest one in the family

    @abstractmethod
    def unpack(self, theta: Array) -> tuple[Array, Array]:
        """Return A, or the diagonal of it, and b."""

    @abstractmethod
    def pull_back(self, theta: Array, d_A: Array, d_b: Array) -> Array:
        """Return the gradient in theta, given the gradients in A and b (chain rule)."""

    def renewed(self, theta: Array) -> "Coordinates | None":
        """Return coordinates around theta if these do not reach further; else None."""
        return None


class AllMatrices(Coordinates):
    """The entries of A and b themselves, of any shape."""

    def __init__(self, A: Array, b: Array) -> None:
        self.shape, self.size = A.shape, A.size
        self.start = np.concatenate([A.ravel(), b])

    def unpack(self, theta: Array) -> tuple[Array, Array]:  # noqa: D102
        return theta[: self.size].reshape(self.shape), theta[self.size :]

    def pull_back(self, theta: Array, d_A: Array, d_b: Array) -> Array:  # noqa: D102
        return np.concatenate([d_A.ravel(), d_b])


class Diagonals(Coordinates):
    """Logarithms of scales, relative to where they start, and offsets, as far as either is free."""

    def __init__(self, scale: Array, offset: Array, has_scale: bool, has_offset: bool) -> None:
        self.base = (scale, offset)
        self.n_scales, self.n_offsets = len(scale) * has_scale, len(offset) * has_offset
        self.start = np.concatenate([np.zeros(self.n_scales), offset[: self.n_offsets]])

    def unpack(self, theta: Array) -> tuple[Array, Array]:  # noqa: D102
        scale, offset = self.base
        if self.n_scales:
            scale = scale * np.exp(theta[: self.n_scales])
        return scale, theta[self.n_scales :] if self.n_offsets else offset

    def pull_back(self, theta: Array, d_A: Array, d_b: Array) -> Array:  # noqa: D102
        in_scale = d_A * self.unpack(theta)[0]
        return np.concatenate([in_scale[: self.n_scales], d_b[: self.n_offsets]])


class Rotations(Coordinates):
    r"""Rotations near A, with one scale or none, by Cayley transforms.

    :math:`Q = Q_0 (I - S)(I + S)^{-1}` with S skew-symmetric has
    :math:`dQ = -2 Q_0 M\, dS\, M`, :math:`M = (I + S)^{-1}`. Half a turn is reached only in the
    limit, so a search that went far begins again from where it is, at most twice.
    """

    def __init__(self, A: Array, b: Array, has_scale: bool, turns_left: int = 2) -> None:
        left, size, right = np.linalg.svd(A)
        self.centre, self.has_scale, self.turns_left = left @ right, has_scale, turns_left
        self.upper = np.triu_indices(len(b), 1)
        log_scale = [float(np.log(size).mean())] if has_scale else []
        self.start = np.concatenate([np.zeros(len(self.upper[0])), b, log_scale])

    def _parts(self, theta: Array) -> tuple[Array, Array, float]:
        """Return Q, M and the scale at theta."""
        eye = np.eye(len(self.centre))
        S = np.zeros(eye.shape)
        S[self.upper] = theta[: len(self.upper[0])]
        S -= S.T
        M = np.linalg.inv(eye + S)
        return self.centre @ (eye - S) @ M, M, float(np.exp(theta[-1])) if self.has_scale else 1.0

    def unpack(self, theta: Array) -> tuple[Array, Array]:  # noqa: D102
        Q, _, scale = self._parts(theta)
        first = len(self.upper[0])
        return scale * Q, theta[first : first + len(Q)]

    def pull_back(self, theta: Array, d_A: Array, d_b: Array) -> Array:  # noqa: D102
        Q, M, scale = self._parts(theta)
        g = -2 * scale * M.T @ self.centre.T @ d_A @ M.T
        d_scale = [scale * float((d_A * Q).sum())] if self.has_scale else []
        return np.concatenate([(g - g.T)[self.upper], d_b, d_scale])

    def renewed(self, theta: Array) -> Coordinates | None:  # noqa: D102
        if self.turns_left and (np.abs(theta[: len(self.upper[0])]) >= 0.5).any():
            return Rotations(*self.unpack(theta), self.has_scale, self.turns_left - 1)
        return None
