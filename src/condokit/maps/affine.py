"""The affine map x -> A x + b, with its matrix diagonal, of low rank or dense."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from condokit.checks import Array, listing
from condokit.maps.base import Map
from condokit.maps.matrices import Matrix, average, checked, matrix_of, refuse_infinity
from condokit.maps.profile import Profile


class AffineMap(Map):
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

    kinds = ("diagonal", "low-rank", "dense")
    matrix: Matrix
    scale: Array  # the diagonal of the matrix, or all of it
    left: Array | None  # the factors of a low-rank matrix
    right: Array | None
    offset: Array

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
        matrix = matrix_of(scale, left, right)
        b = checked("offset", offset, "vector with one number per feature", (1,))
        if len(matrix.scale) != len(b):
            raise ValueError(f"'scale' has {len(matrix.scale)} entries and 'offset' {len(b)}.")
        common = feature_names, links, output_names, fitted_on, provenance
        parts = {"matrix": matrix, "offset": b, "left": None, "right": None, **matrix.arrays()}
        super().__init__(matrix.kind, matrix.shape, *common, **parts)

    @property
    def A(self) -> Array:
        """The matrix, made on request; of features on the scale of their links."""
        return self.matrix.array()

    @property
    def b(self) -> Array:
        """The offset."""
        return self.offset

    def arrays(self) -> dict[str, Any]:  # noqa: D102
        return {"scale": self.scale, "offset": self.offset, **self.matrix.arrays()}

    def without_links(self, X: Array, out: Array | None = None) -> Array:  # noqa: D102
        result = self.matrix.product(X, out)
        result += self.offset
        return result

    def _padded(self, places: list[int], n: int) -> dict[str, Any]:
        dense = self.kind == "dense"
        scale, offset = np.eye(n) if dense else np.ones(n), np.zeros(n)
        scale[np.ix_(places, places) if dense else places] = self.scale
        offset[places] = self.offset
        found = {"scale": scale, "offset": offset}
        for name, part in self.matrix.arrays().items():
            if name in ("left", "right"):
                found[name] = np.zeros((n, part.shape[1]))
                found[name][places] = part
        return found

    def _only(self, kept: Array) -> dict[str, Any]:
        return {"scale": np.where(kept, self.scale, 1.0), "offset": np.where(kept, self.offset, 0)}

    def depends(self, marked: Array) -> Array:  # noqa: D102
        return self.matrix.depends(marked)

    def log_slopes(self, X: Array) -> Array:
        """Return log |det A| for every row, minus infinity if the matrix is singular."""
        return np.full(len(X), self.matrix.log_det())

    @classmethod
    def average(cls, maps: "Sequence[AffineMap]", weights: Array) -> "AffineMap":
        """Return the weighted average of maps between the same features and links."""
        if len(maps) == 1:
            return maps[0]
        offset = np.tensordot(weights, [one.offset for one in maps], axes=1)
        arrays = average([one.matrix for one in maps], weights).arrays()
        first = maps[0]
        return cls(offset=offset, **arrays, feature_names=first.feature_names, links=first.links)

    def inverse(self) -> "AffineMap":  # noqa: D102
        if self.is_rectangular:
            raise ValueError(
                f"The map takes {self.n_features_in_} features to {self.shape[0]} and has no "
                "inverse. Use pseudo_inverse() for the best approximation."
            )
        if self.kind == "diagonal" and not self.scale.all():
            names = self.feature_names or [f"column {j}" for j in range(len(self.scale))]
            flat = listing([name for name, scale in zip(names, self.scale) if scale == 0])
            raise ValueError(f"The map has no inverse: the scale of {flat} is 0.")
        return self._back(self.matrix.inverse())

    def pseudo_inverse(self) -> "AffineMap":
        """Return the map back by the pseudo-inverse, for maps without an inverse.

        Returns
        -------
        AffineMap
            The map with the pseudo-inverse of the matrix.
        """
        return self._back(Matrix(np.linalg.pinv(self.A)))

    def _back(self, matrix: Matrix) -> "AffineMap":
        """Return the map back, given the inverse of the matrix."""
        with np.errstate(over="ignore", invalid="ignore"):
            offset = -matrix.product(self.offset[None])[0]
        refuse_infinity(offset)
        return AffineMap(offset=offset, **matrix.arrays(), links=self.links, **self.turned_names())

    def inverse_transform(self, X: Any) -> Any:  # noqa: D102
        return (self.pseudo_inverse() if self.is_rectangular else self.inverse())(X)

    def compose(self, other: Any) -> Any:  # noqa: D102
        if other.kind == "monotone":
            return other.of_line(self).with_errors(self.errors).compose(other)
        order, names = self.joined(other)
        if not (self.has_own_outputs or other.has_own_outputs):
            first = other.matrix.take(order)
        else:  # only the outputs of the other map are reordered, not its features
            first = other.matrix if order == sorted(order) else Matrix(other.A[order])
        offset = self.without_links(other.offset[order][None])[0]
        both = AffineMap(offset=offset, **self.matrix.compose(first).arrays(), **names)
        return both.with_errors_of(other, self) if order == sorted(order) else both

    def _kind_in_words(self) -> str:
        return self.kind if self.left is None else f"low-rank: diagonal plus {self.left.shape[1]}"

    def formula(self, j: int, names: Sequence[str]) -> str:
        """Write one output as a sum of its largest terms."""
        row = self.matrix.row(j)
        largest = [j] if self.kind == "diagonal" else list(np.argsort(-np.abs(row))[:3])
        largest = [k for k in largest if row[k] != 0] or [j]
        terms = [f"{_signed(row[k])} * {names[k]}" for k in largest]
        terms += ["+ ..."] if np.count_nonzero(row) > len(largest) else []
        text = " ".join([*terms, _signed(self.offset[j])])
        return text.removeprefix("+ ") if text.startswith("+") else f"-{text[2:]}"


def _signed(number: float) -> str:
    """Return a number with its sign in front, for a sum."""
    return f"{'-' if number < 0 else '+'} {abs(number):.6g}"
