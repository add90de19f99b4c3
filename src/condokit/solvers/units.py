"""Units in which maps are searched, y = B x + c, and conversions from and to the user's."""

from copy import copy
from dataclasses import replace

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros
from condokit.solvers.solution import Solution
from condokit.summaries.gaussians import GaussianPair, Gaussians
from condokit.summaries.moments import MomentPair

TINY = 1e-12


class Units:
    """Both domains in units in which matrices are searched.

    "white": the balanced covariances of both domains are the identity. "common": all features are
    divided by one number, so that angles are kept. "samples": the query is white, and features of
    the reference have unit variances. "as given": for families of which nothing is known.
    """

    query: Gaussians  # in these units
    reference: Gaussians

    def __init__(self, pair: GaussianPair, kind: str) -> None:
        self.weights = pair.weights
        self._middle_query, cov_query = pair.query.balanced(pair.weights)
        self._middle_reference, cov_reference = pair.reference.balanced(pair.weights)
        self.n_features = len(cov_query)
        size = ones_for_zeros(np.sqrt(np.diag(cov_reference)))
        if kind == "common":
            size = np.full(len(size), np.sqrt(np.mean(size**2)))
        elif kind == "as given":
            size = np.ones(len(size))
            self._middle_query, self._middle_reference = np.zeros(len(cov_query)), 0 * size
        self._from_reference, self._to_reference = np.diag(1 / size), np.diag(size)
        self._from_query, self._to_query = self._from_reference, self._to_reference
        if kind in ("white", "samples"):
            self._from_query, self._to_query = _roots(cov_query)
        if kind == "white":
            self._from_reference, self._to_reference = _roots(cov_reference)
        # of the matrices that lead back to the user's units of the query and of the reference
        both = self._to_query, self._to_reference
        self.log_dets = [float(np.linalg.slogdet(turn)[1]) for turn in both]
        held = self.holding(pair)
        self.query, self.reference = held.query, held.reference

    def holding(self, pair: GaussianPair) -> "Units":
        """Return an object with another pair of Gaussians, converted to the same units."""
        other = copy(self)
        other.query, other.reference = (
            Gaussians(rows(side.mean), turn @ side.cov @ turn.T, side.count)
            for side, rows, turn in (
                (pair.query, self.of_query, self._from_query),
                (pair.reference, self.of_reference, self._from_reference),
            )
        )
        return other

    def of_query(self, rows: Array) -> Array:
        """Return rows of the query in these units."""
        return (rows - self._middle_query) @ self._from_query.T

    def of_reference(self, rows: Array) -> Array:
        """Return rows of the reference in these units."""
        return (rows - self._middle_reference) @ self._from_reference.T

    def encode(self, A: Array, b: Array) -> tuple[Array, Array]:
        """Return the map in these units."""
        B = self._from_reference @ A @ self._to_query
        return B, self._from_reference @ (A @ self._middle_query + b - self._middle_reference)

    def decode(self, B: Array, c: Array) -> tuple[Array, Array]:
        """Return the map in the user's units."""
        A = self._to_reference @ B @ self._from_query
        return A, self._middle_reference + self._to_reference @ c - A @ self._middle_query


class FeatureUnits:
    """Features in units of the reference's spread, for diagonal maps.

    They are `centred` if the maps have offsets.
    """

    def __init__(self, pair: MomentPair, centred: bool = True) -> None:
        reference, weights = pair.reference, pair.weights
        self._middle_query = weights @ pair.query.mean * centred
        self._middle = weights @ reference.mean * centred
        spread = weights @ (reference.var + (reference.mean - self._middle) ** 2)
        self.size = ones_for_zeros(np.sqrt(spread))

    def of_query(self, rows: Array) -> Array:  # noqa: D102
        return (rows - self._middle_query) / self.size

    def of_reference(self, rows: Array) -> Array:  # noqa: D102
        return (rows - self._middle) / self.size

    def encode(self, A: Array, b: Array) -> tuple[Array, Array]:
        """Return a diagonal map in these units; scales are the same."""
        return A, (A * self._middle_query + b - self._middle) / self.size

    def decode(self, B: Array, c: Array) -> tuple[Array, Array]:  # noqa: D102
        return B, self._middle + self.size * c - B * self._middle_query


def decoded(units: Units | FeatureUnits, solution: Solution) -> Solution:
    """Return a solution in the user's units."""
    A, b = units.decode(solution.scale, solution.offset)
    return replace(solution, scale=A, centre=np.zeros(A.shape[-1]), image=b)


def _roots(cov: Array) -> tuple[Array, Array]:
    """Return a matrix that whitens a covariance, and its inverse."""
    sd = ones_for_zeros(np.sqrt(np.diag(cov)))
    size, turn = np.linalg.eigh(cov / np.outer(sd, sd))
    size = np.sqrt(np.maximum(size, TINY * size[-1]))
    return (turn / size) @ turn.T / sd, sd[:, None] * ((turn * size) @ turn.T)
