"""Full matrices: objectives with gradients, their solvers, and the starts of these.

A map is written as y = B x + c in units in which the problem has unit curvature; `Units` goes back
and forth.
"""

from __future__ import annotations

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import positive
from condokit.summaries.covariances import GaussianPair, Gaussians

_TINY = 1e-12


class Units:
    """Both domains in units that suit a solver, and the way there and back for maps.

    "white": the balanced covariances of both domains are the identity. "feature": every feature,
    in both domains, is divided by the reference's standard deviation, so that the identity stays
    the identity. "common": all features are divided by one number, so that angles stay as well.
    "samples": the query is white, features of the reference have unit variances.

    Parameters
    ----------
    pair : GaussianPair
        The domains.
    kind : {"white", "feature", "common", "samples"}
        The units.
    """

    def __init__(self, pair: GaussianPair, kind: str) -> None:
        self.weights = pair.weights
        self._middle_query, cov_query = pair.query.balanced(pair.weights)
        self._middle_reference, cov_reference = pair.reference.balanced(pair.weights)
        self.n_features = len(cov_query)
        if kind == "white":
            self._from_query, self._to_query = _roots(cov_query)
            self._from_reference, self._to_reference = _roots(cov_reference)
        else:
            size = positive(np.sqrt(np.diag(cov_reference)))
            if kind == "common":
                size = np.full(len(size), np.sqrt(np.mean(size**2)))
            self._from_reference, self._to_reference = np.diag(1 / size), np.diag(size)
            self._from_query, self._to_query = self._from_reference, self._to_reference
            if kind == "samples":
                self._from_query, self._to_query = _roots(cov_query)
        self.log_dets = (
            float(np.linalg.slogdet(self._to_query)[1]),
            float(np.linalg.slogdet(self._to_reference)[1]),
        )
        self.query = _moved(pair.query, self._middle_query, self._from_query)
        self.reference = _moved(pair.reference, self._middle_reference, self._from_reference)

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


def _roots(cov: Array) -> tuple[Array, Array]:
    """Return a matrix that makes a covariance white, and its inverse; features in any units."""
    sd = positive(np.sqrt(np.diag(cov)))
    size, turn = np.linalg.eigh(cov / np.outer(sd, sd))
    size = np.sqrt(np.maximum(size, _TINY * size[-1]))
    return (turn / size) @ turn.T / sd, sd[:, None] * ((turn * size) @ turn.T)


def _moved(gaussians: Gaussians, middle: Array, turn: Array) -> Gaussians:
    return Gaussians(
        (gaussians.mean - middle) @ turn.T, turn @ gaussians.cov @ turn.T, gaussians.count
    )
