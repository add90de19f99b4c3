"""Standard errors of maps and of mapped values, as a covariance or as draws.

The errors of lines and curves are covariances of their coefficients, feature by feature; those of a
matrix are draws, each a change of all its entries at once. Both can be propagated through other
maps, and both are written to the file of their map, rounded.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit.checks import Array, refusal
from condokit.data import links
from condokit.data.arrays import ones_for_zeros
from condokit.maps.formula import interpolated
from condokit.maps.profile import multiples, steps

_MOST_VALUES = 1 << 22  # mapped values of all draws that are in memory at a time
_DIGITS = 3  # significant digits of errors in files,
_DIGITS_OF_MATRICES = 6  # and of matrices, whose large errors cancel if features are correlated


class StandardErrors(ABC):
    r"""Standard errors of a map.

    Shrinkage from the unshrunken estimate :math:`m, b` to :math:`\tilde m, \tilde b` adds a bias to
    the sampling error, so the squared change is added to the variance:
    :math:`\mathrm{se}^2 + (\tilde m x + \tilde b - m x - b)^2`.
    """

    is_drawn: bool = False  # whether they come from resampled rows, not from a formula

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

    def to_dict(self) -> dict[str, Array]:
        """Return numbers for a file, rounded so that they reveal no row; may be empty."""
        return {}

    def of_mapped(self, X: Array, map: Any) -> Array:
        """Return the standard errors of mapped rows; with links, half of the ±1 error interval."""
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

    Shrinkage is counted on the scales of :math:`\log m` and r: :math:`\tilde m^2
    [\mathrm{se}(\log m)^2 + (\log \tilde m - \log m)^2]` and :math:`\mathrm{se}(r)^2 +
    (\tilde r - r)^2`, so that an absurd unshrunken scale, from few rows, does not make the error of
    a reasonable shrunken scale absurd.
    """

    of_scale: Array  # of m
    of_image: Array  # of r
    centre: Array  # c, the point whose image is learned independently of the scale
    covariance: Array | float = 0.0  # of the errors of m and r
    is_drawn: bool = False

    @classmethod
    def of(cls, unshrunken: Any, shrunken: Any) -> "DiagonalErrors | None":
        """Return the errors of a shrunken solution, given the unshrunken one, if known."""
        if unshrunken.se_log_scale is None or unshrunken.se_image is None:
            return None
        log_scale = np.hypot(
            unshrunken.se_log_scale * unshrunken.widening, np.log(shrunken.scale / unshrunken.scale)
        )
        at_centre = shrunken.image + shrunken.scale * (unshrunken.centre - shrunken.centre)
        image = np.hypot(unshrunken.se_image * unshrunken.widening, at_centre - unshrunken.image)
        covariance = (
            0.0 if unshrunken.covariance is None else shrunken.scale * unshrunken.covariance
        )
        return cls(shrunken.scale * log_scale, image, unshrunken.centre, covariance)

    @property
    def scale(self) -> Array:  # noqa: D102
        return self.of_scale

    def std(self, X: Array) -> Array:
        """Return the root of se(r)^2 + se(m)^2 (x - c)^2 + 2 cov (x - c), (n_rows, n_features)."""
        away = X - self.centre
        both = np.hypot(self.of_image, away * self.of_scale)
        unit = ones_for_zeros(both)  # so that squares of large values do not overflow
        return both * np.sqrt(np.maximum(1 + 2 * (away / unit) * (self.covariance / unit), 0.0))

    def at(self, centre: Array) -> "DiagonalErrors":
        """Return the same errors, parametrised around another centre."""
        image = self.std(centre[None])[0]
        covariance = self.covariance + (centre - self.centre) * self.of_scale**2
        return replace(self, of_image=image, centre=centre, covariance=covariance)

    def passed(self, map: Any) -> "LineErrors":
        """Return the errors after another affine map."""
        if map.kind != "diagonal":
            return self.draws().passed(map)
        scale, image = np.abs(map.scale) * self.of_scale, np.abs(map.scale) * self.of_image
        both = map.scale**2 * self.covariance
        return replace(self, of_scale=scale, of_image=image, covariance=both)

    def behind(self, map: Any, centre: Array) -> "LineErrors":
        """Return the errors as functions of the input of an affine map that is applied before."""
        if map.kind != "diagonal":
            return self.draws().behind(map, centre)
        here = self.at(map.without_links(centre[None])[0])
        scale, both = here.of_scale * np.abs(map.scale), here.covariance * map.scale
        return replace(here, of_scale=scale, covariance=both, centre=centre)

    def plus(self, other: "LineErrors", times: float = 1.0) -> "LineErrors":
        """Return the errors of a sum; variances and covariances add up around one centre.

        `other` is independent; its variance is multiplied by `times`.
        """
        if not isinstance(other, DiagonalErrors):
            return self.draws().plus(other, times)
        other, root = other.at(self.centre), np.sqrt(times)
        scale = np.hypot(self.of_scale, root * other.of_scale)
        image = np.hypot(self.of_image, root * other.of_image)
        both = self.covariance + times * other.covariance
        return DiagonalErrors(scale, image, self.centre, both, self.is_drawn or other.is_drawn)

    def draws(self) -> "DrawnErrors":
        """Return the same errors as draws, each of which changes one feature."""
        free, own = self._uncorrelated(), np.arange(len(self.centre))
        scales = np.zeros((2 * len(own), len(own), len(own)))
        images = np.zeros((2 * len(own), len(own)))
        images[own, own] = free.of_image
        scales[len(own) + own, own, own] = free.of_scale
        return DrawnErrors(scales, images, free.centre).at(self.centre)

    def _uncorrelated(self) -> "DiagonalErrors":
        """Return the same errors around the point whose image is uncorrelated with the scale."""
        move = self.covariance / ones_for_zeros(self.of_scale) / ones_for_zeros(self.of_scale)
        found = self.at(self.centre - np.where(self.of_scale > 0, move, 0.0))
        return replace(found, covariance=0.0)

    def to_dict(self) -> dict[str, Array]:  # noqa: D102
        found = self._uncorrelated()
        centre = _near(found.centre, found.of_image, found.of_scale)
        scale, image = _few_digits(found.of_scale), _few_digits(found.of_image)
        return {"scale": scale, "image": image, "centre": centre}


@dataclass(frozen=True)
class CurveErrors(StandardErrors):
    """Standard errors of increasing curves, at their knots, growing beyond them.

    Between knots they are interpolated, as if errors of neighbouring knots were fully correlated.
    """

    knots: Array  # (n_features, n_knots)
    values: Array  # errors of the values there
    slopes: Array  # (n_features, 2): growth per unit below the first and above the last knot
    is_drawn: bool = False

    @classmethod
    def at_knots(cls, knots: Array, std: Any) -> "CurveErrors":
        """Return errors from a function of rows, evaluated at the knots and one range beyond."""
        values, slopes = beside_knots(std, knots)
        return cls(knots, values, np.maximum(slopes * [-1.0, 1.0], 0.0))

    def tables(self) -> dict[str, Array]:  # noqa: D102
        return {"values": self.values}

    def std(self, X: Array) -> Array:  # noqa: D102
        growth = self.slopes * np.array([-1.0, 1.0])
        rows = zip(X.T, self.knots, self.values, growth)
        return np.column_stack([interpolated(*row) for row in rows])

    def to_dict(self) -> dict[str, Array]:  # noqa: D102
        return {"values": _few_digits(self.values), "slopes": _few_digits(self.slopes)}


@dataclass(frozen=True)
class DrawnErrors(StandardErrors):
    r"""Standard errors of a matrix as draws: changes of all its entries, whose squares add up.

    :math:`\mathrm{se}_j(x)^2 = \sum_k (i_{kj} + s_{kj}' (x - c))^2` over draws k, for output j.
    """

    scales: Array  # (n_draws, n_outputs, n_features)
    images: Array  # (n_draws, n_outputs): changes of the image of the centre
    centre: Array  # (n_features,)
    by_output: bool = False  # whether draws of different outputs are independent
    is_drawn: bool = True

    @property
    def scale(self) -> Array:  # noqa: D102
        found: Array = np.sqrt((self.scales**2).sum(axis=0))
        return found

    def std(self, X: Array) -> Array:  # noqa: D102
        out, step = np.empty((len(X), self.images.shape[1])), _MOST_VALUES // self.images.size + 1
        for start in range(0, len(X), step):
            part = X[start : start + step] - self.centre
            change = [part @ scale.T + image for scale, image in zip(self.scales, self.images)]
            out[start : start + step] = np.linalg.norm(change, axis=0)
        return out

    def at(self, centre: Array) -> "DrawnErrors":
        """Return the same errors, parametrised around another centre."""
        images = self.images + self.scales @ (centre - self.centre)
        return replace(self, images=images, centre=centre)

    def passed(self, map: Any) -> "DrawnErrors":
        """Return the errors after another affine map, which is applied to every draw."""
        if map.kind == "diagonal":
            scales = map.scale[:, None] * self.scales
            return replace(self, scales=scales, images=map.scale * self.images)
        A, scales, images = map.A, self.scales, self.images
        if self.by_output:  # one draw for each output, so that they stay independent
            scales, images = (
                np.einsum("kj...,ji->kji...", part, np.eye(len(A.T))).reshape(-1, *part.shape[1:])
                for part in (scales, images)
            )
        return replace(self, scales=A @ scales, images=images @ A.T, by_output=False)

    def behind(self, map: Any, centre: Array) -> "DrawnErrors":
        """Return the errors as functions of the input of an affine map that is applied before."""
        here = self.at(map.without_links(centre[None])[0])
        return replace(here, scales=here.scales @ map.A, centre=centre)

    def plus(self, other: Any, times: float = 1.0) -> "DrawnErrors":
        """Return the errors of a sum: the draws of both."""
        other = other.draws() if isinstance(other, DiagonalErrors) else other
        other = other.at(self.centre)
        scales = np.concatenate([self.scales, np.sqrt(times) * other.scales])
        images = np.concatenate([self.images, np.sqrt(times) * other.images])
        return DrawnErrors(scales, images, self.centre, self.by_output or other.by_output)

    def to_dict(self) -> dict[str, Array]:
        """Return the factor of a covariance for every output, in place of the draws.

        Seeds are known, so draws from few rows would reveal the influence of each row.
        """
        wide = self.scales.shape[2]
        best = np.linalg.lstsq(self.scales.reshape(-1, wide), -self.images.ravel(), rcond=1e-8)[0]
        slopes = np.sqrt((self.scales**2).sum(axis=(0, 1)))
        found = self.at(_near(self.centre + best, self.at(self.centre + best)._size, slopes))
        changes = np.concatenate([found.images[:, :, None], found.scales], axis=2)
        padded = np.zeros((changes.shape[1], max(wide + 1, len(changes)), wide + 1))
        padded[:, : len(changes)] = changes.transpose(1, 0, 2)
        factors: Any = np.linalg.qr(padded, mode="r")
        return {"factors": _few_digits(factors, _DIGITS_OF_MATRICES), "centre": found.centre}

    @property
    def _size(self) -> float:
        """The error of the image of the centre, of all outputs together."""
        return float(np.sqrt((self.images**2).sum()))


LineErrors = DiagonalErrors | DrawnErrors  # of affine maps, which others propagate exactly


def drawn(scales: Array, offsets: Array, pull: tuple[Array, Array] | None = None) -> LineErrors:
    """Return the errors of scales or matrices that were refitted to resampled rows.

    `pull` is the change by shrinkage, from the unshrunken scale and offset to those of the map.
    """
    changes = []
    for k, refits in enumerate((scales, offsets)):
        own = (refits - refits.mean(axis=0)) / np.sqrt(len(refits) - 1)
        changes.append(own if pull is None else np.concatenate([own, pull[k][None]]))
    slope, image = changes
    if slope.ndim == 3:
        return DrawnErrors(slope, image, np.zeros(slope.shape[2]))
    of_scale = np.sqrt((slope**2).sum(axis=0))
    unit = ones_for_zeros(of_scale)
    centre = -((slope / unit) * image).sum(axis=0) / unit  # whose image is uncorrelated
    return DiagonalErrors(
        of_scale, np.sqrt(((image + slope * centre) ** 2).sum(axis=0)), centre, is_drawn=True
    )


def chained(first: Any, second: Any, both: Any) -> StandardErrors | None:
    """Return the errors of two maps in sequence, taken as independent; None if one is unknown."""
    one, two = first.errors, second.errors
    if one is None or two is None:
        return None
    if isinstance(one, LineErrors) and isinstance(two, LineErrors):
        found: StandardErrors = one.passed(second).plus(two.behind(first, one.centre))
        return found

    def std(X: Array) -> Array:
        """Return errors of both maps, the first's passed through the second by differences."""
        error, Y = one.std(X), first.without_links(X)
        above, below = (second.without_links(Y + sign * error) for sign in (1, -1))
        return np.hypot((above - below) / 2, two.std(Y))

    if both.kind == "monotone":
        knots = both.knots
    elif isinstance(one, CurveErrors):
        knots = one.knots
    else:
        knots = first.inverse().without_links(two.knots.T).T
    return CurveErrors.at_knots(knots, std)


def averaged(maps: Sequence[Any], weights: Array, both: Any) -> StandardErrors | None:
    r"""Return the errors of an average g of affine maps, if those of all are known.

    The maps were learned from the same rows, and the weights w are their posterior probabilities,
    so the variance is :math:`\sum w_k [e_k^2 + (g_k - g)^2]`.
    """
    known = [one.errors for one in maps]
    if not all(isinstance(one, LineErrors) for one in known):
        return None
    centre, roots = known[0].centre, np.sqrt(weights)
    apart = np.stack([one.A - both.A for one in maps]) * roots[:, None, None]
    images = np.stack([one.offset - both.offset for one in maps]) * roots[:, None]
    total: Any = DrawnErrors(apart, images, np.zeros(len(centre))).at(centre)
    for own, weight in zip(known, weights):
        total = total.plus(own, weight)
    return total


def beside_knots(function: Any, knots: Array) -> tuple[Array, Array]:
    """Return values of a function of rows at the knots of curves, and slopes below and above."""
    ends, wide = knots[:, [0, -1]], np.ptp(knots, axis=1)[:, None] * [[-1.0, 1.0]]
    values, there, far = (function(x.T).T for x in (knots, ends, ends + wide))
    return values, (far - there) / wide


def common_shares(shares: Array) -> Array:
    r"""Return factors of the variances of maps to one reference, in that of all rows together.

    The errors of such maps share about half of their variance, that of the reference's rows. If e
    are the errors and w the shares of rows, the variance is
    :math:`\tfrac12 \sum w^2 e^2 + \tfrac12 (\sum w e)^2`. This is at most, and for equal errors is,
    :math:`\tfrac12 \sum (w^2 + w) e^2`.
    """
    return (shares**2 + shares) / 2


def of_rows(maps: Sequence[Any], shares: Array) -> StandardErrors | None:
    """Return the errors of rows that several maps moved to one reference; None if unknown."""
    known, times = [one.errors for one in maps], common_shares(shares)
    if any(one is None for one in known):
        return None
    back = [one.inverse() for one in maps]
    if not all(isinstance(one, LineErrors) for one in known):
        place = next(k for k, one in enumerate(known) if isinstance(one, CurveErrors))
        knots = maps[place].without_links(known[place].knots.T).T

        def std(Y: Array) -> Array:
            each = [e.std(turn.without_links(Y)) for e, turn in zip(known, back)]
            return np.sqrt(np.tensordot(times, np.square(each), axes=1))

        return CurveErrors.at_knots(knots, std)
    centre = maps[0].without_links(known[0].centre[None])[0]
    each = [error.behind(turn, centre) for error, turn in zip(known, back)]
    total: Any = DiagonalErrors(np.zeros(len(centre)), np.zeros(len(centre)), centre)
    for own, t in zip(each, times):
        total = total.plus(own, t)
    return total


def read_errors(map: Any, fields: dict[str, Array]) -> StandardErrors:
    """Return the errors of a map from the fields of its file."""
    if map.kind == "diagonal":
        return DiagonalErrors(fields["scale"], fields["image"], fields["centre"])
    if map.kind == "monotone":
        return CurveErrors(map.knots, fields["values"], fields["slopes"])
    factors = fields["factors"].transpose(1, 0, 2)
    return DrawnErrors(factors[:, :, 1:], factors[:, :, 0], fields["centre"], by_output=True)


def _near(centre: Array, image: Array | float, scale: Array) -> Array:
    """Round centres to a tenth of the errors of image over scale, which is a length in x."""
    with np.errstate(all="ignore"):
        step = steps(np.where(scale > 0, image / scale, np.nan))
    found = np.where(step > 0, multiples(np.rint, centre, step), _few_digits(centre))
    return np.where(scale > 0, found, 0.0)


def _few_digits(values: Array, n_digits: int = _DIGITS) -> Array:
    """Round numbers to a few significant digits."""
    found = [float(f"{value:.{n_digits - 1}e}") for value in values.ravel().tolist()]
    return np.array(found).reshape(values.shape)
