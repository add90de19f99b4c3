"""Standard errors of maps, and of the values that they give."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from condokit.checks import Array, refusal
from condokit.data import links
from condokit.data.arrays import ones_for_zeros
from condokit.maps.base import Map
from condokit.maps.monotone import interpolated

_MOST_VALUES = 1 << 22  # of rows under all draws that are kept at a time


class StandardErrors(ABC):
    r"""Standard errors of a map.

    A map that is pulled from its plain estimate :math:`m, b` to :math:`\tilde m, \tilde b` is
    farther from the truth than sampling alone tells, so the pull counts as an error of its own:
    :math:`\mathrm{se}^2 + (\tilde m x + \tilde b - m x - b)^2`.
    """

    @property
    def scale(self) -> Array:
        """Standard errors of the scales, or of the entries of the matrix."""
        raise AttributeError("Curves have no scale.")

    @property
    def offset(self) -> Array:
        """Standard errors of the offset, which is the image of zero."""
        return self.std(np.zeros((1, self.scale.shape[-1])))[0]

    def tables(self) -> dict[str, Array]:
        """Return the errors of the numbers that the map is made of."""
        return {"scale": self.scale, "offset": self.offset}

    @abstractmethod
    def std(self, X: Array) -> Array:
        """Return the standard error of the image of every value, on the scale of the links."""

    def of_mapped(self, X: Array, map: Map) -> Array:
        """Return the standard errors of mapped rows; with links, half the change that they make."""
        with np.errstate(over="ignore", invalid="ignore"):
            if map.links is None:
                found = self.std(X)
            else:
                linked = links.apply(map.links, X, [f"column {j}" for j in range(X.shape[1])], "X")
                mapped, error = map.without_links(linked), self.std(linked)
                above, below = (links.undo(map.links, mapped + sign * error) for sign in (1, -1))
                found = np.abs(above - below) / 2
        if not (np.isfinite(found) | np.isnan(X).any(axis=1, keepdims=True)).all():
            raise refusal(
                "The standard errors of mapped values are too large for double precision; pass "
                "{@`X`} in other units."
            )
        return found


@dataclass(frozen=True)
class DiagonalErrors(StandardErrors):
    r"""Standard errors of a diagonal map, x to r + m (x - c).

    A pull is one of :math:`\log m` and one of r: :math:`\tilde m^2 [\mathrm{se}(\log m)^2 +
    (\log \tilde m - \log m)^2]` and :math:`\mathrm{se}(r)^2 + (\tilde r - r)^2`, so that a plain
    scale that few rows made absurd does not make the error of a sound one absurd.
    """

    of_scale: Array  # of m
    of_image: Array  # of r
    centre: Array  # c, the point whose image is learned independently of the scale
    covariance: Array | float = 0.0  # of the two errors, as far as it is not nothing

    @classmethod
    def of(cls, plain: Any, settled: Any) -> "DiagonalErrors | None":
        """Return the errors of a solution that was pulled from a plain one, if they are known."""
        if plain.se_log_scale is None or plain.se_image is None:
            return None
        log_scale = np.hypot(
            plain.se_log_scale * plain.widening, np.log(settled.scale / plain.scale)
        )
        at_centre = settled.image + settled.scale * (plain.centre - settled.centre)
        image = np.hypot(plain.se_image * plain.widening, at_centre - plain.image)
        covariance = 0.0 if plain.covariance is None else settled.scale * plain.covariance
        return cls(settled.scale * log_scale, image, plain.centre, covariance)

    @property
    def scale(self) -> Array:  # noqa: D102
        return self.of_scale

    def std(self, X: Array) -> Array:  # noqa: D102
        away = X - self.centre
        both = np.hypot(self.of_image, away * self.of_scale)
        unit = ones_for_zeros(both)  # so that squares of large values do not overflow
        return both * np.sqrt(np.maximum(1 + 2 * (away / unit) * (self.covariance / unit), 0.0))


@dataclass(frozen=True)
class CurveErrors(StandardErrors):
    """Standard errors of increasing curves, at their knots, and growing beyond them."""

    knots: Array  # (n_features, n_knots)
    values: Array  # errors of the values there
    slopes: Array  # (n_features, 2): by which they grow below and above

    def tables(self) -> dict[str, Array]:  # noqa: D102
        return {"values": self.values}

    def std(self, X: Array) -> Array:  # noqa: D102
        growth = self.slopes * np.array([-1.0, 1.0])
        rows = zip(X.T, self.knots, self.values, growth)
        return np.column_stack([interpolated(*row) for row in rows])


@dataclass(frozen=True)
class DrawnErrors(StandardErrors):
    """Maps refitted to resampled rows."""

    scales: Array  # (n_draws, n_features) or (n_draws, n_outputs, n_features): or matrices
    offsets: Array  # (n_draws, n_outputs)
    # by how much scale and offset of the map differ from the plain estimate that was refitted
    pull: tuple[Array, Array] | None = None

    def among(self, kept: Array) -> "DrawnErrors":
        """Return the errors of more features, of which these are kept; the others have none."""
        if kept.all():
            return self
        pull = self.pull and (_put(self.pull[0], kept, 0), _put(self.pull[1], kept, 0))
        return DrawnErrors(_put(self.scales, kept, 1), _put(self.offsets, kept, 1), pull)

    @property
    def scale(self) -> Array:  # noqa: D102
        return np.hypot(self.scales.std(axis=0, ddof=1), 0.0 if self.pull is None else self.pull[0])

    def std(self, X: Array) -> Array:  # noqa: D102
        out, step = np.empty((len(X), self.offsets.shape[1])), _MOST_VALUES // self.offsets.size + 1
        for start in range(0, len(X), step):
            part = X[start : start + step]
            values = [_times(part, A) + b for A, b in zip(self.scales, self.offsets)]
            out[start : start + step] = np.std(values, axis=0, ddof=1)
        return out if self.pull is None else np.hypot(out, _times(X, self.pull[0]) + self.pull[1])


def _times(X: Array, scale: Array) -> Array:
    """Return rows times scales, or times the transposed matrix."""
    return X * scale if scale.ndim == 1 else X @ scale.T


def _put(values: Array, kept: Array, n_before: int) -> Array:
    """Put values into zeros at the places that are kept, along all axes but the first ones."""
    n_axes = values.ndim - n_before
    result = np.zeros(values.shape[:n_before] + (len(kept),) * n_axes)
    places: Any = (..., *np.ix_(*[np.flatnonzero(kept)] * n_axes))
    result[places] = values
    return result
