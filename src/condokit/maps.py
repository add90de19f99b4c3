"""Ingredient 1, the map: families of maps to choose from, and the frozen AffineMap they yield."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from condokit import mapfile
from condokit._validation import Array, did_you_mean, listing
from condokit.domains import Moments
from condokit.frames import Table


class AffineMap(TransformerMixin, BaseEstimator):
    r"""A fixed map :math:`x \mapsto A x + b` from query features to reference features.

    Immutable, and a scikit-learn transformer that is always fitted: put it in a `Pipeline` in front
    of a model that was trained on reference data.

    Parameters
    ----------
    scale : array-like of shape (n_features,)
        The diagonal of A.
    offset : array-like of shape (n_features,)
        The vector b.
    feature_names : sequence of str or None, default=None
        Names of the features; data frames are then matched by name.

    Examples
    --------
    >>> from condokit import AffineMap
    >>> celsius = AffineMap([5 / 9], [-160 / 9])
    >>> celsius([[212.0], [32.0]]).round(6)
    array([[100.],
           [  0.]])
    >>> celsius.inverse()([[100.0]]).round(6)
    array([[212.]])
    """

    scale: Array
    offset: Array
    feature_names: tuple[str, ...] | None

    def __init__(self, scale: Any, offset: Any, feature_names: Sequence[str] | None = None) -> None:
        arrays = {}
        for name, value in (("scale", scale), ("offset", offset)):
            array = np.array(value, dtype=np.float64)
            if array.ndim != 1 or len(array) == 0:
                raise ValueError(
                    f"'{name}' must be a vector with one number per feature. "
                    f"Got shape {array.shape}."
                )
            if not np.isfinite(array).all():
                raise ValueError(f"'{name}' must be finite.")
            array.flags.writeable = False
            arrays[name] = array
        if len(arrays["scale"]) != len(arrays["offset"]):
            raise ValueError(
                f"'scale' has {len(arrays['scale'])} entries and 'offset' {len(arrays['offset'])}."
            )
        names = None if feature_names is None else tuple(str(name) for name in feature_names)
        n_features = len(arrays["scale"])
        if names is not None and not len(names) == len(set(names)) == n_features:
            raise ValueError(
                f"'feature_names' must be {n_features} different names. Got {listing(names)}."
            )
        self.__dict__.update(arrays, feature_names=names)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_sklearn_output_config":  # set_output changes what comes out, not the map
            self.__dict__[name] = value
            return
        raise AttributeError(f"AffineMap is immutable; make a new one instead of setting {name!r}.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("AffineMap is immutable.")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied map, read-only as before."""
        self.__dict__.update(state)
        for array in (self.scale, self.offset):
            array.flags.writeable = False

    def __sklearn_clone__(self) -> AffineMap:
        return AffineMap(self.scale, self.offset, self.feature_names)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def set_params(self, **params: Any) -> AffineMap:
        """Refuse: a map is immutable. An empty call is allowed."""
        if params:
            raise AttributeError("AffineMap is immutable; make a new one instead.")
        return self

    @property
    def kind(self) -> str:
        """How the matrix is stored and applied."""
        return "diagonal"

    @property
    def A(self) -> Array:
        """The matrix, made on request."""
        return np.diag(self.scale)

    @property
    def b(self) -> Array:
        """The offset."""
        return self.offset

    @property
    def n_features_in_(self) -> int:
        """Number of features."""
        return len(self.scale)

    def __call__(self, X: Any) -> Any:
        """Map every row; the result is the same kind of table as X."""
        table = Table(X).match(self.feature_names, self.n_features_in_, "this AffineMap")
        return table.rebuild(self.apply(table), self.feature_names if table.columns else None)

    def apply(self, table: Table) -> Array:
        """Map the rows of a table whose columns are in order; refuse NaN and infinity."""
        out = table.output()
        for rows, chunk in table.chunks():
            result = out[rows]
            with np.errstate(over="ignore", invalid="ignore"):
                if result.dtype == np.float64:
                    np.multiply(chunk, self.scale, out=result)
                    result += self.offset
                else:
                    result[...] = chunk * self.scale + self.offset
            if not np.isfinite(result.sum(dtype=np.float64)):
                table.refuse_non_finite()
                if not np.isfinite(result).all():
                    raise ValueError(
                        f"Mapped values are too large for {result.dtype}; pass {table.name} in "
                        "other units or with more precision."
                    )
        return out

    def inverse(self) -> AffineMap:
        """Return the map from reference features back to query features."""
        flat = np.flatnonzero(self.scale == 0)
        if len(flat):
            names = self.feature_names or [f"column {j}" for j in range(len(self.scale))]
            raise ValueError(
                f"The map has no inverse: the scale of {listing([names[j] for j in flat])} is 0."
            )
        with np.errstate(over="ignore"):
            scale, offset = 1 / self.scale, -self.offset / self.scale
        if not (np.isfinite(scale).all() and np.isfinite(offset).all()):
            raise ValueError("The map has no finite inverse: a scale is too close to 0.")
        return AffineMap(scale, offset, self.feature_names)

    def compose(self, other: AffineMap) -> AffineMap:
        """Return the map that applies `other` first and then this one.

        Features are matched by name when both maps have names.
        """
        if self.feature_names is not None and other.feature_names is not None:
            place = {name: j for j, name in enumerate(other.feature_names)}
            missing = [name for name in self.feature_names if name not in place]
            if missing or len(place) != len(self.scale):
                raise ValueError(
                    "The two maps have different features: "
                    f"{listing(missing or set(place) - set(self.feature_names))} is in one only."
                    + "".join(did_you_mean(name, place) for name in missing[:1])
                )
            order = [place[name] for name in self.feature_names]
        elif len(other.scale) == len(self.scale):
            order = list(range(len(self.scale)))
        else:
            raise ValueError(
                f"The two maps have {len(self.scale)} and {len(other.scale)} features."
            )
        return AffineMap(
            self.scale * other.scale[order],
            self.scale * other.offset[order] + self.offset,
            self.feature_names or other.feature_names,
        )

    def fit(self, X: Any = None, y: Any = None) -> AffineMap:
        """Do nothing: the map is fixed."""
        return self

    def transform(self, X: Any) -> Any:
        """Map every row, as calling the map does."""
        return self(X)

    def inverse_transform(self, X: Any) -> Any:
        """Map every row back."""
        return self.inverse()(X)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the features, which the map does not change."""
        names = self.feature_names or input_features
        if names is None:
            names = [f"x{j}" for j in range(len(self.scale))]
        return np.asarray(list(names), dtype=object)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the map to a small readable JSON file."""
        mapfile.write(
            path,
            {
                "kind": self.kind,
                "feature_names": None if self.feature_names is None else list(self.feature_names),
                "scale": self.scale.tolist(),
                "offset": self.offset.tolist(),
            },
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AffineMap:
        """Read a map that `save` wrote; refuse any other file with a `MapFileError`."""
        content = mapfile.read(path)
        return cls(content["scale"], content["offset"], content["feature_names"])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, AffineMap)
            and self.feature_names == other.feature_names
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.offset, other.offset)
        )

    def __hash__(self) -> int:
        return hash((self.scale.tobytes(), self.offset.tobytes(), self.feature_names))

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        n = len(self.scale)
        names = self.feature_names or [f"x{j}" for j in range(n)]
        lines = [f"AffineMap of {n} feature{'s' * (n != 1)} ({self.kind})"]
        for name, scale, offset in list(zip(names, self.scale, self.offset))[:6]:
            lines.append(
                f"  {name} -> {scale:.6g} * {name} {'-+'[int(offset >= 0)]} {abs(offset):.6g}"
            )
        return "\n".join(lines + ["  ..."] * (n > 6))

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(repr(self))}</pre>"


class MapFamily(BaseEstimator, ABC):
    """A set of maps with parameters `theta`, among which a divergence finds the best."""

    @abstractmethod
    def start(self, n_features: int) -> Array:
        """Return the parameters of the identity."""

    @abstractmethod
    def push(self, theta: Array, moments: Moments) -> Moments:
        """Return the moments of mapped features."""

    @abstractmethod
    def pull_back(self, theta: Array, moments: Moments, d_mean: Array, d_var: Array) -> Array:
        """Turn a gradient in the mapped moments into one in the parameters."""

    @abstractmethod
    def unpack(self, theta: Array, n_features: int) -> tuple[Array, Array]:
        """Return scale and offset."""


class DiagonalFamily(MapFamily):
    r"""Maps :math:`x_j \mapsto m_j x_j + b_j`; parameters are those of (log m, b) that are free."""

    has_scale: ClassVar[bool]
    has_offset: ClassVar[bool]

    def start(self, n_features: int) -> Array:  # noqa: D102
        return np.zeros(n_features * (self.has_scale + self.has_offset))

    def unpack(self, theta: Array, n_features: int) -> tuple[Array, Array]:  # noqa: D102
        scale = np.exp(theta[:n_features]) if self.has_scale else np.ones(n_features)
        offset = theta[-n_features:] if self.has_offset else np.zeros(n_features)
        return scale, offset

    def push(self, theta: Array, moments: Moments) -> Moments:  # noqa: D102
        scale, offset = self.unpack(theta, moments.mean.shape[1])
        return replace(
            moments,
            mean=moments.mean * scale + offset,
            var=moments.var * scale**2,
            precision=moments.precision / scale**2,
        )

    def pull_back(  # noqa: D102
        self, theta: Array, moments: Moments, d_mean: Array, d_var: Array
    ) -> Array:
        scale, _ = self.unpack(theta, moments.mean.shape[1])
        parts = []
        if self.has_scale:
            per_value = d_mean * moments.mean * scale + 2 * d_var * moments.var * scale**2
            parts.append(per_value.sum(axis=0))
        if self.has_offset:
            parts.append(d_mean.sum(axis=0))
        return np.concatenate(parts) if parts else np.empty(0)


class Identity(DiagonalFamily):
    """The identity alone: nothing is changed."""

    has_scale = False
    has_offset = False


class Shift(DiagonalFamily):
    """An offset for every feature."""

    has_scale = False
    has_offset = True


class LocationScale(DiagonalFamily):
    """A positive scale and an offset for every feature."""

    has_scale = True
    has_offset = True


MAPS: dict[str, type[MapFamily]] = {
    "identity": Identity,
    "shift": Shift,
    "location-scale": LocationScale,
}
