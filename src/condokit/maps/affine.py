"""Ingredient 1, the map: families of maps to choose from, and the frozen AffineMap they yield."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from condokit.checks import Array, MapFileError, did_you_mean, listing
from condokit.data.links import Link, check_links
from condokit.data.links import apply as apply_links
from condokit.data.links import undo as undo_links
from condokit.data.tables import Table
from condokit.maps import file as mapfile
from condokit.maps.profile import Check, Profile, check
from condokit.maps.provenance import Facts, check_provenance


class AffineMap(TransformerMixin, BaseEstimator):
    r"""A fixed map :math:`x \mapsto A x + b` from query features to reference features.

    Immutable, and a scikit-learn transformer that is always fitted: put it in a `Pipeline` in front
    of a model that was trained on reference data. The matrix is stored and applied in the form it
    has: diagonal, diagonal plus low rank, or dense.

    Parameters
    ----------
    scale : array-like of shape (n_features,) or (n_outputs, n_features)
        The diagonal of A, or all of it.
    offset : array-like of shape (n_outputs,)
        The vector b; there are as many outputs as features unless A is rectangular.
    feature_names : sequence of str or None, default=None
        Names of the features; data frames are then matched by name.
    left : array-like of shape (n_features, rank) or None, default=None
        With it, :math:`A = \operatorname{diag}(\mathrm{scale}) + \mathrm{left}\,
        \mathrm{right}'`.
    right : array-like of shape (n_features, rank) or None, default=None
        Goes with `left`.
    links : str, float, sequence, dict or None, default=None
        "log", "logit" or a power for all features or some: applied before the map and undone
        after it, so that positive or bounded features stay so.
    output_names : sequence of str or None, default=None
        Names of the outputs of a rectangular map; otherwise they are those of the features.
    fitted_on : Profile or None, default=None
        Range and moments of the data that the map was fitted on, for `check`.
    provenance : dict or None, default=None
        How the map was fitted, in plain text and numbers; a fitted adapter fills it in.

    Examples
    --------
    >>> from condokit import AffineMap
    >>> celsius = AffineMap([5 / 9], [-160 / 9])
    >>> celsius([[212.0], [32.0]]).round(6)
    array([[100.],
           [  0.]])
    >>> celsius.inverse()([[100.0]]).round(6)
    array([[212.]])
    >>> AffineMap([[0.0, 1.0], [1.0, 0.0]], [0.0, 0.0])([[1.0, 2.0]])
    array([[2., 1.]])
    """

    scale: Array
    offset: Array
    feature_names: tuple[str, ...] | None
    left: Array | None
    right: Array | None
    links: tuple[Link, ...] | None
    output_names: tuple[str, ...] | None
    fitted_on: Profile | None
    provenance: Facts | None

    def __init__(
        self,
        scale: Any,
        offset: Any,
        feature_names: Sequence[str] | None = None,
        *,
        left: Any = None,
        right: Any = None,
        links: Any = None,
        output_names: Sequence[str] | None = None,
        fitted_on: Profile | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        parts = {
            "scale": _frozen("scale", scale, (1, 2)),
            "offset": _frozen("offset", offset, (1,)),
            "left": None if left is None else _frozen("left", left, (2,)),
            "right": None if right is None else _frozen("right", right, (2,)),
        }
        n_features = _check_shapes(parts)
        names = None if feature_names is None else tuple(str(name) for name in feature_names)
        if names is not None and not len(names) == len(set(names)) == n_features:
            raise ValueError(
                f"'feature_names' must be {n_features} different names. Got {listing(names)}."
            )
        checked = None
        if links is not None:
            checked = check_links(links, names or [f"column {j}" for j in range(n_features)])
        outputs = None if output_names is None else tuple(str(name) for name in output_names)
        assert parts["offset"] is not None
        n_outputs = len(parts["offset"])
        if n_outputs != n_features and checked is not None:
            raise ValueError("'links' need a map with as many outputs as features.")
        if outputs is not None and not len(outputs) == len(set(outputs)) == n_outputs:
            raise ValueError(
                f"'output_names' must be {n_outputs} different names. Got {listing(outputs)}."
            )
        self.__dict__.update(
            parts,
            feature_names=names,
            links=checked,
            output_names=outputs,
            fitted_on=fitted_on,
            provenance=check_provenance(provenance),
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):  # scikit-learn's notes, such as those of set_output
            self.__dict__[name] = value
            return
        raise AttributeError(f"AffineMap is immutable; make a new one instead of setting {name!r}.")

    def __delattr__(self, name: str) -> None:
        if name.startswith("_"):
            del self.__dict__[name]
            return
        raise AttributeError("AffineMap is immutable.")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied map, read-only as before."""
        self.__dict__.update({"provenance": None, **state})
        for array in self._arrays():
            array.flags.writeable = False

    def __sklearn_clone__(self) -> AffineMap:
        return self.remembering(self.fitted_on, self.provenance)

    def remembering(
        self, profile: Profile | None, provenance: Mapping[str, Any] | None = None
    ) -> AffineMap:
        """Return the same map with a profile of the data it was fitted on, and how it was."""
        return AffineMap(
            self.scale,
            self.offset,
            self.feature_names,
            left=self.left,
            right=self.right,
            links=self.links,
            output_names=self.output_names,
            fitted_on=profile,
            provenance=provenance,
        )

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def set_params(self, **params: Any) -> AffineMap:
        """Refuse: a map is immutable. An empty call is allowed."""
        if params:
            raise AttributeError("AffineMap is immutable; make a new one instead.")
        return self

    @property
    def kind(self) -> str:
        """How the matrix is stored and applied: "diagonal", "low-rank" or "dense"."""
        if self.scale.ndim == 2:
            return "dense"
        return "diagonal" if self.left is None else "low-rank"

    @property
    def A(self) -> Array:
        """The matrix, made on request; of features on the scale of their links."""
        if self.scale.ndim == 2:
            return self.scale
        A = np.diag(self.scale)
        return A if self.left is None or self.right is None else A + self.left @ self.right.T

    @property
    def b(self) -> Array:
        """The offset."""
        return self.offset

    @property
    def n_features_in_(self) -> int:
        """Number of features."""
        return int(self.scale.shape[-1])

    @property
    def is_rectangular(self) -> bool:
        """Whether there are other numbers of outputs and features."""
        return len(self.offset) != self.n_features_in_

    def __call__(self, X: Any) -> Any:
        """Map every row; the result is the same kind of table as X."""
        table = Table(X).match(self.feature_names, self.n_features_in_, "this AffineMap")
        return table.rebuild(self.apply(table), self.outputs(table.columns))

    def outputs(self, columns: Sequence[str] | None) -> Sequence[str] | None:
        """Return the names of what comes out of columns with or without names."""
        if self.is_rectangular:
            return self.output_names or [f"y{j}" for j in range(len(self.offset))]
        return self.output_names or (self.feature_names if columns else None)

    def apply(self, table: Table) -> Array:
        """Map the rows of a table whose columns are in order; refuse infinity.

        An output is NaN where it depends on a missing value: where its entry in A is not zero.
        """
        out = table.output(len(self.offset))
        for rows, chunk in table.chunks():
            result = out[rows]
            with np.errstate(over="ignore", invalid="ignore"):
                if result.dtype == np.float64 and self.kind == "diagonal" and self.links is None:
                    np.multiply(chunk, self.scale, out=result)
                    result += self.offset
                else:
                    chunk = apply_links(self.links, chunk, table.labels, table.name)
                    result[...] = undo_links(self.links, self.linear(chunk))
                if not np.isfinite(result.sum(dtype=np.float64)):
                    missing = np.isnan(chunk)
                    if np.isinf(chunk).any():
                        table.refuse_infinity()
                    if missing.any() and self.kind != "diagonal":
                        known = np.where(missing, 0.0, chunk)
                        result[...] = undo_links(self.links, self.linear(known))
                        missing = self._depends(missing)
                        result[missing] = np.nan
                    if not (np.isfinite(result) | missing).all():
                        raise ValueError(
                            f"Mapped values are too large for {result.dtype}; pass {table.name} in "
                            "other units or with more precision."
                        )
        return out

    def _depends(self, inputs: Array) -> Array:
        """Mark the outputs that depend on any of the marked inputs, row by row."""
        marked = inputs.astype(np.float64)
        if self.scale.ndim == 2:
            return marked @ (self.scale != 0).T > 0
        outputs = inputs & (self.scale != 0)
        if self.left is not None and self.right is not None:
            outputs |= marked @ (self.right != 0) @ (self.left != 0).T > 0
        return outputs

    def linear(self, X: Array) -> Array:
        """Return A x + b for every row x, without links."""
        return self._product(X) + self.offset

    def log_det(self) -> float:
        """Return log |det A|, minus infinity if the matrix is singular."""
        if self.scale.ndim == 2:
            return float(np.linalg.slogdet(self.scale)[1])
        with np.errstate(divide="ignore"):
            result = float(np.log(np.abs(self.scale)).sum())
            if self.left is not None and self.right is not None:
                core = self.right.T @ (self.left / self.scale[:, None])
                result += float(np.linalg.slogdet(np.eye(len(core)) + core)[1])
        return result

    def inverse(self) -> AffineMap:
        """Return the map from reference features back to query features."""
        if self.is_rectangular:
            raise ValueError(
                f"The map takes {self.n_features_in_} features to {len(self.offset)} and has no "
                "inverse. pseudo_inverse() is the nearest there is."
            )
        if self.kind == "diagonal":
            flat = np.flatnonzero(self.scale == 0)
            if len(flat):
                names = self.feature_names or [f"column {j}" for j in range(len(self.scale))]
                raise ValueError(
                    "The map has no inverse: the scale of "
                    f"{listing([names[j] for j in flat])} is 0."
                )
            parts: dict[str, Any]
            with np.errstate(over="ignore"):
                parts = {"scale": 1 / self.scale, "offset": -self.offset / self.scale}
        else:
            parts = self._inverse_parts()
        if not all(np.isfinite(part).all() for part in parts.values()):
            raise ValueError("The map has no finite inverse: its matrix is too close to singular.")
        return AffineMap(links=self.links, **self._turned_names(), **parts)

    def _inverse_parts(self) -> dict[str, Any]:
        """Invert a matrix; diagonal plus low rank by Woodbury's identity stays in that form."""
        try:
            if self.left is None or self.right is None:
                inverse = np.linalg.inv(self.scale)
                return {"scale": inverse, "offset": -inverse @ self.offset}
            with np.errstate(divide="ignore", invalid="ignore"):
                scale = 1 / self.scale
                left: Array = self.left * scale[:, None]
                right: Array = self.right * scale[:, None]
                core = np.eye(left.shape[1]) + self.right.T @ left
            left = -np.linalg.solve(core.T, left.T).T
        except np.linalg.LinAlgError:
            raise ValueError("The map has no inverse: its matrix is singular.") from None
        offset = -(scale * self.offset + left @ (right.T @ self.offset))
        return {"scale": scale, "offset": offset, "left": left, "right": right}

    def pseudo_inverse(self) -> AffineMap:
        """Return the map back that is shortest where there are many, and nearest where none."""
        back = np.linalg.pinv(self.A)
        return AffineMap(back, -back @ self.offset, links=self.links, **self._turned_names())

    def _turned_names(self) -> dict[str, Any]:
        """Return the names of a map that goes the other way."""
        if self.output_names is None:
            if self.is_rectangular:
                return {"output_names": self.feature_names}
            return {"feature_names": self.feature_names}
        return {"feature_names": self.output_names, "output_names": self.feature_names}

    def compose(self, other: AffineMap) -> AffineMap:
        """Return the map that applies `other` first and then this one.

        Features are matched by name when both maps have names.
        """
        n = self.n_features_in_
        renames = self.output_names is not None or other.output_names is not None
        if self.is_rectangular or other.is_rectangular or renames:
            yields = other.output_names or (None if other.is_rectangular else other.feature_names)
            if len(other.offset) != n:
                raise ValueError(
                    f"The other map yields {len(other.offset)} features, this one takes {n}."
                )
            if self.links is not None or other.links is not None:
                raise ValueError("Maps with links and other outputs do not make one map.")
            if self.feature_names is not None and yields is not None:
                if set(yields) != set(self.feature_names):
                    raise ValueError(
                        f"The other map yields {listing(yields)}, this one takes "
                        f"{listing(self.feature_names)}."
                    )
                order = [yields.index(name) for name in self.feature_names]
                other = AffineMap(other.A[order], other.offset[order], other.feature_names)
            return AffineMap(
                self._product(other.A.T).T,
                self.linear(other.offset[None])[0],
                other.feature_names,
                output_names=self.output_names or (self.feature_names if renames else None),
            )
        if self.feature_names is not None and other.feature_names is not None:
            place = {name: j for j, name in enumerate(other.feature_names)}
            missing = [name for name in self.feature_names if name not in place]
            if missing or len(place) != n:
                raise ValueError(
                    "The two maps have different features: "
                    f"{listing(missing or set(place) - set(self.feature_names))} is in one only."
                    + "".join(did_you_mean(name, place) for name in missing[:1])
                )
            other = other._in_order([place[name] for name in self.feature_names])
        elif other.n_features_in_ != n:
            raise ValueError(f"The two maps have {n} and {other.n_features_in_} features.")
        if self.links != other.links:
            raise ValueError("The two maps have different links, so they do not make one map.")
        offset = self.linear(other.offset[None])[0]
        names = self.feature_names or other.feature_names
        parts: dict[str, Any] = {}
        if "dense" in (self.kind, other.kind):
            scale = self._product(other.A.T).T
        else:
            scale = self.scale * other.scale
            pairs = []
            if self.left is not None and self.right is not None:
                pairs.append((self.left, other._transposed_product(self.right)))
            if other.left is not None and other.right is not None:
                pairs.append((self.scale[:, None] * other.left, other.right))
            if pairs:
                parts = {
                    "left": np.hstack([left for left, _ in pairs]),
                    "right": np.hstack([right for _, right in pairs]),
                }
        return AffineMap(scale, offset, names, links=self.links, **parts)

    def _product(self, X: Array) -> Array:
        """Return A x for every row x."""
        if self.scale.ndim == 2:
            return X @ self.scale.T
        result = X * self.scale
        if self.left is not None and self.right is not None:
            result += (X @ self.right) @ self.left.T
        return result

    def _transposed_product(self, V: Array) -> Array:
        """Return A' v for every column v, for a map that is not dense."""
        result = V * self.scale[:, None]
        if self.left is not None and self.right is not None:
            result += self.right @ (self.left.T @ V)
        return result

    def _in_order(self, order: list[int]) -> AffineMap:
        scale = self.scale[np.ix_(order, order)] if self.kind == "dense" else self.scale[order]
        return AffineMap(
            scale,
            self.offset[order],
            left=None if self.left is None else self.left[order],
            right=None if self.right is None else self.right[order],
            links=None if self.links is None else [self.links[j] for j in order],
        )

    def _arrays(self) -> list[Array]:
        parts = (self.scale, self.offset, self.left, self.right)
        return [part for part in parts if part is not None]

    def fit(self, X: Any = None, y: Any = None) -> AffineMap:
        """Do nothing: the map is fixed."""
        return self

    def transform(self, X: Any) -> Any:
        """Map every row, as calling the map does."""
        return self(X)

    def inverse_transform(self, X: Any) -> Any:
        """Map every row back."""
        return (self.pseudo_inverse() if self.is_rectangular else self.inverse())(X)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of what comes out: those of the features, unless it has its own."""
        names = self.outputs(["named"]) or input_features
        if names is None:
            names = [f"x{j}" for j in range(self.n_features_in_)]
        return np.asarray(list(names), dtype=object)

    def check(self, X: Any) -> Check:
        """Tell whether new query rows look like those that the map was fitted on.

        Needs no confounders, so other subjects and a drifting device look alike. Nothing is
        refused: columns that are missing or unknown, values far outside, and moments that moved are
        reported.

        Parameters
        ----------
        X : array or data frame of shape (n_rows, n_columns)
            Rows that are about to be mapped.

        Returns
        -------
        Check
            The verdict with its reasons, and a table of all features.
        """
        return check(X, self.feature_names, self.n_features_in_, self.fitted_on)

    def save(self, path: str | os.PathLike[str] | IO[bytes]) -> None:
        """Write the map to a small readable JSON file, or an open one; the same for the same."""
        content: dict[str, Any] = {"kind": self.kind, "feature_names": self.feature_names}
        for name in ("scale", "offset", "left", "right"):
            part = getattr(self, name)
            if part is not None:
                content[name] = part.tolist()
        for name in ("links", "output_names", "provenance"):
            if getattr(self, name) is not None:
                content[name] = getattr(self, name)
        if self.fitted_on is not None:
            content["fitted_on"] = self.fitted_on.to_dict()
        mapfile.write(path, content)

    @classmethod
    def load(cls, path: str | os.PathLike[str] | IO[bytes]) -> AffineMap:
        """Read a map that `save` wrote; refuse any other file with a `MapFileError`."""
        content = mapfile.read(path)
        names = ("left", "right", "links", "output_names", "provenance")
        parts = {name: content.get(name) for name in names}
        profile = content.get("fitted_on")
        try:
            if profile is not None:
                parts["fitted_on"] = Profile.from_dict(profile, content["scale"].shape[-1])
            return cls(content["scale"], content["offset"], content["feature_names"], **parts)
        except ValueError as error:
            raise MapFileError(f"{path} is damaged: {error}") from None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, AffineMap)
            and (self.feature_names, self.links, self.output_names)
            == (other.feature_names, other.links, other.output_names)
            and len(self._arrays()) == len(other._arrays())
            and all(map(np.array_equal, self._arrays(), other._arrays()))
        )

    def __hash__(self) -> int:
        return hash((*(a.tobytes() for a in self._arrays()), self.feature_names, self.links))

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        n, n_outputs = self.n_features_in_, len(self.offset)
        names = self.feature_names or [f"x{j}" for j in range(n)]
        outputs = self.outputs(names) or names
        kind = self.kind if self.left is None else f"low-rank: diagonal plus {self.left.shape[1]}"
        size = f"{n} feature{'s' * (n != 1)}" + f" to {n_outputs}" * self.is_rectangular
        lines = [f"AffineMap of {size} ({kind})"]
        for j in range(min(n_outputs, 6)):
            if self.scale.ndim == 2:
                row = self.scale[j]
            else:
                row = np.zeros(n)
                row[j] = self.scale[j]
                if self.left is not None and self.right is not None:
                    row += self.right @ self.left[j]
            lines.append(f"  {_shown(j, outputs, self.links)} -> " + self._formula(j, row, names))
        return "\n".join(lines + ["  ..."] * (n_outputs > 6))

    def _formula(self, j: int, row: Array, names: Sequence[str]) -> str:
        """Write one output as a sum of its largest terms."""
        largest = [j] if self.kind == "diagonal" else list(np.argsort(-np.abs(row))[:3])
        largest = [k for k in largest if row[k] != 0] or [j]
        terms = [(float(row[k]), f" * {_shown(k, names, self.links)}") for k in largest]
        if np.count_nonzero(row) > len(largest):
            terms.append((np.nan, "..."))
        terms.append((float(self.offset[j]), ""))
        text = ""
        for number, name in terms:
            shown = "" if np.isnan(number) else f"{abs(number):.6g}"
            sign = "-" if number < 0 else "+"
            first = "-" if number < 0 else ""
            text += f" {sign} {shown}{name}" if text else f"{first}{shown}{name}"
        return text

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(repr(self))}</pre>"


def _frozen(name: str, value: Any, dimensions: tuple[int, ...]) -> Array:
    array = np.array(value, dtype=np.float64)
    if array.ndim not in dimensions or array.size == 0:
        kind = "vector with one number per feature"
        if dimensions == (1, 2):
            kind += ", or a matrix"
        elif dimensions == (2,):
            kind = "matrix with one row per feature"
        raise ValueError(f"'{name}' must be a {kind}. Got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"'{name}' must be finite.")
    array.flags.writeable = False
    return array


def _check_shapes(parts: dict[str, Array | None]) -> int:
    """Refuse parts that do not make a map; return the number of features."""
    scale, offset, left, right = parts["scale"], parts["offset"], parts["left"], parts["right"]
    assert scale is not None
    assert offset is not None
    if len(scale) != len(offset):
        raise ValueError(f"'scale' has {len(scale)} entries and 'offset' {len(offset)}.")
    if (left is None) != (right is None):
        raise ValueError("'left' and 'right' must be given together.")
    if left is not None and right is not None:
        if scale.ndim == 2:
            raise ValueError("'left' and 'right' go with a vector 'scale', not with a matrix.")
        if left.shape != right.shape or len(left) != len(offset):
            raise ValueError(
                f"'left' and 'right' must both have {len(offset)} rows and as many columns as each "
                f"other. Got shapes {left.shape} and {right.shape}."
            )
    return scale.shape[-1]


def _shown(j: int, names: Sequence[str], links: tuple[Link, ...] | None) -> str:
    """Return the name of a feature with its link around it."""
    link = None if links is None else links[j]
    if link is None:
        return names[j]
    return f"{link}({names[j]})" if isinstance(link, str) else f"{names[j]}^{link:g}"
