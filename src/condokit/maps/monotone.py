"""Maps with one increasing curve per feature."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data import links as linking
from condokit.data.arrays import NORMAL_95
from condokit.maps.base import Map
from condokit.maps.formula import interpolated, lines_of
from condokit.maps.matrices import checked
from condokit.maps.profile import Profile


class MonotoneMap(Map):
    """A fixed map with an increasing curve for every feature: lines between knots, and beyond them.

    Immutable, and a scikit-learn transformer that is always fitted, as `AffineMap` is. The inverse
    is another such map, exactly.

    Parameters
    ----------
    knots : array-like of shape (n_features, n_knots)
        Increasing values of every feature, at least two.
    values : array-like of shape (n_features, n_knots)
        What these are mapped to, increasing as well.
    slopes : array-like of shape (n_features, 2) or None, default=None
        Slopes below the first and above the last knot; None goes on as the first and last lines.
    feature_names, links, output_names, fitted_on, provenance
        As for `AffineMap`, each None by default.

    Examples
    --------
    >>> from condokit import MonotoneMap
    >>> steeper = MonotoneMap([[0.0, 1.0, 2.0]], [[0.0, 1.0, 4.0]])
    >>> steeper([[0.5], [1.5], [3.0]])
    array([[0.5],
           [2.5],
           [7. ]])
    >>> steeper.inverse()([[7.0]])
    array([[3.]])
    """

    kinds = ("monotone",)
    knots: Array
    values: Array
    slopes: Array

    def __init__(
        self,
        knots: Any,
        values: Any,
        slopes: Any = None,
        feature_names: Sequence[str] | None = None,
        *,
        links: Any = None,
        output_names: Sequence[str] | None = None,
        fitted_on: Profile | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        x, y = (
            checked(name, given, "matrix with a row of increasing numbers per feature", (2,))
            for name, given in (("knots", knots), ("values", values))
        )
        if x.shape != y.shape or x.shape[1] < 2:
            raise ValueError(
                f"'knots' and 'values' must have the same shape, with at least 2 knots per "
                f"feature. Got {x.shape} and {y.shape}."
            )
        for name, rows in (("knots", x), ("values", y)):
            falling = np.flatnonzero((np.diff(rows, axis=1) <= 0).any(axis=1))
            if len(falling):
                raise ValueError(f"{name!r} must increase in every row; row {falling[0]} does not.")
        if slopes is None:
            with np.errstate(over="ignore"):
                steep = np.diff(y, axis=1) / np.diff(x, axis=1)
            slopes = steep[:, [0, -1]]
        ends = checked("slopes", slopes, "matrix with two numbers per feature", (2,))
        if ends.shape != (len(x), 2) or not (ends > 0).all():
            raise ValueError("'slopes' must be two positive numbers per feature.")
        common = feature_names, links, output_names, fitted_on, provenance
        parts: dict[str, Any] = {"knots": x, "values": y, "slopes": ends}
        super().__init__("monotone", (len(x), len(x)), *common, **parts)

    @classmethod
    def of_line(cls, affine: Any) -> "MonotoneMap":
        """Return a diagonal affine map with positive scales as curves of two knots."""
        if affine.kind != "diagonal" or not (affine.scale > 0).all():
            raise ValueError(
                "A map with a matrix, or with scales that are not positive, cannot be composed "
                "with curves. Apply the two maps one after the other, for example in a Pipeline."
            )
        profile = affine.fitted_on
        low, high = np.zeros(len(affine.scale)), np.ones(len(affine.scale))
        if profile is not None and np.isfinite(profile.mean).all() and (profile.sd > 0).all():
            low, high = profile.mean - profile.sd, profile.mean + profile.sd
        knots = np.column_stack([low, high])
        values = affine.scale[:, None] * knots + affine.offset[:, None]
        slopes, outputs = np.repeat(affine.scale[:, None], 2, axis=1), affine.output_names
        return cls(
            knots, values, slopes, affine.feature_names, links=affine.links, output_names=outputs
        )

    def arrays(self) -> dict[str, Any]:  # noqa: D102
        return {"knots": self.knots, "values": self.values, "slopes": self.slopes}

    def _padded(self, places: list[int], n: int) -> dict[str, Any]:
        line = np.tile(np.arange(float(self.knots.shape[1])), (n, 1))
        found = {"knots": line, "values": line.copy(), "slopes": np.ones((n, 2))}
        for name, part in self.arrays().items():
            found[name][places] = part
        return found

    def without_links(self, X: Array, out: Array | None = None) -> Array:  # noqa: D102
        result = np.empty(X.shape) if out is None else out
        for j, curve in enumerate(zip(self.knots, self.values, self.slopes)):
            result[:, j] = interpolated(X[:, j], *curve)
        return result

    def _only(self, kept: Array) -> dict[str, Any]:
        knots, values, slopes = (part.copy() for part in self.arrays().values())
        if self.links is not None:  # features that are not kept lose their links
            lost = [link is not None and not keep for link, keep in zip(self.links, kept)]
            knots[lost] = np.arange(knots.shape[1])
        values[~kept], slopes[~kept] = knots[~kept], 1.0
        return {"knots": knots, "values": values, "slopes": slopes}

    def log_slopes(self, X: Array) -> Array:
        """Return the sum over features of the logarithms of slopes at every row."""
        total = np.zeros(len(X))
        slopes = lines_of(*self.arrays().values())[2]
        for x, knots, steep in zip(X.T, self.knots, slopes):
            total += np.log(steep)[np.searchsorted(knots, x, side="right")]
        return total

    def inverse(self) -> "MonotoneMap":  # noqa: D102
        with np.errstate(over="ignore"):
            slopes = 1 / self.slopes
        return MonotoneMap(self.values, self.knots, slopes, links=self.links, **self.turned_names())

    def compose(self, other: Map) -> "MonotoneMap":  # noqa: D102
        order, names = self.joined(other)
        first: Any = other if other.kind == "monotone" else MonotoneMap.of_line(other)
        knots, values, slopes = (part[order] for part in first.arrays().values())
        back = first.inverse()
        x = np.empty((len(knots), knots.shape[1] + self.knots.shape[1]))
        for j, k in enumerate(order):
            inner = interpolated(self.knots[j], back.knots[k], back.values[k], back.slopes[k])
            x[j] = np.sort(np.concatenate([knots[j], inner]))
        x = _spread(x)
        middle = np.stack([interpolated(*row) for row in zip(x, knots, values, slopes)])
        y = self.without_links(middle.T).T
        both = MonotoneMap(x, _spread(y), slopes * self.slopes, **names)
        return both.with_errors_of(other, self) if order == sorted(order) else both

    def reach(self) -> tuple[Array, Array]:
        """Return the first and last knots; beyond them curves are extrapolated as lines."""
        with np.errstate(over="ignore"):
            low, high = (linking.undo(self.links, self.knots[:, [k]].T)[0] for k in (0, -1))
        return low, high

    def formula(self, j: int, names: Sequence[str]) -> str:
        """Write one output as a curve between its ends."""
        x, y = self.knots[j], self.values[j]
        return f"curve of {names[j]} from {x[0]:.6g}..{x[-1]:.6g} to {y[0]:.6g}..{y[-1]:.6g}"


def drawn_curves(curves: MonotoneMap, errors: Any, bent: Any, most: int) -> list[dict[str, Any]]:
    """Return the most bent curves for a figure, with 95% intervals if errors are known."""
    # values are on the scale of links, if there are any
    order = np.arange(len(curves.knots)) if bent is None else np.argsort(-bent, kind="stable")
    names = curves.feature_names or [f"column {j}" for j in range(len(curves.knots))]
    reach = None if errors is None else NORMAL_95 * errors.std(curves.knots.T).T
    out = []
    for j in order[:most]:
        y = curves.values[j]
        bounds = (None, None) if reach is None else (y - reach[j], y + reach[j])
        out.append({"feature": str(names[j]), "x": curves.knots[j], "y": y})
        out[-1] |= dict(zip(("low", "high"), bounds))
    return out


def _spread(rows: Array) -> Array:
    """Move numbers that are equal up to rounding apart, so that rows increase."""
    least = 1e-12 * np.maximum(np.abs(rows[:, [0, -1]]).max(axis=1), rows[:, -1] - rows[:, 0])
    steps = np.maximum(np.diff(rows, axis=1), np.maximum(least, 1e-300)[:, None])
    return np.column_stack([rows[:, 0], rows[:, :1] + np.cumsum(steps, axis=1)])
