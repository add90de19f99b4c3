"""Families of maps, among which a divergence finds the best."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from sklearn.base import BaseEstimator

from condokit.checks import Array, check_integer, check_word
from condokit.maps.coordinates import AllMatrices, Coordinates, Diagonals, Rotations


class MapFamily(BaseEstimator, ABC):
    """A set of maps, among which a divergence finds the best: the base of all kinds of maps.

    Parameters
    ----------
    links : as for `LocationScale`, default=None
        The scale on which the maps work.

    Examples
    --------
    >>> from condokit import LocationScale, LowRank
    >>> LocationScale.form, LowRank.form
    ('diagonal', 'low-rank')
    """

    # "diagonal", "monotone", "matrix" or "low-rank": what its maps look like. A divergence says
    # for each form what it needs to know of the data.
    form: ClassVar[str]
    is_free: ClassVar[bool] = False  # whether all matrices are in it
    is_rigid: ClassVar[bool] = False
    has_scale: ClassVar[bool] = True
    has_offset: ClassVar[bool] = True

    def __init__(self, links: Any = None) -> None:
        self.links = links


class DiagonalFamily(MapFamily):
    r"""Maps :math:`x_j \mapsto m_j x_j + b_j`; `has_scale` and `has_offset` say what is free.

    Parameters
    ----------
    links : as for `LocationScale`, default=None
        The scale on which the maps work.

    Examples
    --------
    A gain without a baseline:

    >>> import numpy as np
    >>> from condokit import ConDoAdapter
    >>> from condokit.maps.families import DiagonalFamily
    >>> class Gain(DiagonalFamily):
    ...     has_offset = False
    >>> old = np.linspace(1, 2, 50)[:, None]
    >>> ConDoAdapter(Gain(), shrinkage=None).fit_pair(old / 3, old).map_
    AffineMap of 1 feature (diagonal)
      x0 -> 3 * x0 + 0
    """

    form = "diagonal"

    def around(self, scale: Array, offset: Array) -> Coordinates:
        """Return coordinates of the family near one of its maps.

        Parameters
        ----------
        scale, offset : ndarray of shape (n_features,)
            The map.

        Returns
        -------
        Coordinates
            Its numbers that may change, as one vector.
        """
        return Diagonals(scale, offset, self.has_scale, self.has_offset)


class Identity(DiagonalFamily):
    """The identity alone: nothing is changed.

    Parameters
    ----------
    links : as for `LocationScale`, default=None
        Has no effect.

    Examples
    --------
    >>> import numpy as np
    >>> from condokit import ConDoAdapter, Identity
    >>> old = np.linspace(0, 1, 20)[:, None]
    >>> ConDoAdapter(Identity()).fit_pair(old + 5, old).transform([[5.5]])
    array([[5.5]])
    """

    has_scale = False
    has_offset = False


class Shift(DiagonalFamily):
    """An offset for every feature.

    Parameters
    ----------
    links : as for `LocationScale`, default=None
        The scale on which offsets are added.

    Examples
    --------
    >>> import numpy as np
    >>> from condokit import ConDoAdapter, Shift
    >>> old = np.linspace(0, 1, 20)[:, None]
    >>> ConDoAdapter(Shift(), shrinkage=None).fit_pair(old + 5, old).transform([[5.5]]).round(6)
    array([[0.5]])
    """

    has_scale = False


class LocationScale(DiagonalFamily):
    """A positive scale and an offset for every feature.

    Parameters
    ----------
    links : str, float, sequence, dict or None, default=None
        "log", "logit" or a power for all features or some; the map works on that scale.

    Examples
    --------
    A positive feature stays positive on the scale of its logarithm:

    >>> import numpy as np
    >>> from condokit import ConDoAdapter, LocationScale
    >>> old = np.exp(np.linspace(0, 1, 20))[:, None]
    >>> adapter = ConDoAdapter(LocationScale("log"), shrinkage=None).fit_pair(10 * old, old)
    >>> adapter.transform([[80.0]]).round(6)
    array([[8.]])
    """


@dataclass(frozen=True)
class Search:
    """How a family of matrices is searched."""

    units: str  # units that keep the family what it is; see `condokit.solvers.units`
    n_starts: int  # maps to start from
    max_iter: int  # most iterations from each


class Monotone(MapFamily):
    """An increasing curve for every feature, as far as the data bend it from a straight line.

    Parameters
    ----------
    links : as for `LocationScale`, default=None
        The scale on which the map is a curve.

    Examples
    --------
    The new device shows the exponential of what the old one shows:

    >>> import numpy as np
    >>> from condokit import ConDoAdapter, Monotone
    >>> rng = np.random.default_rng(0)
    >>> old, new = rng.normal(size=(200, 1)), np.exp(rng.normal(size=(200, 1)))
    >>> adapter = ConDoAdapter(Monotone()).fit_pair(new, old)
    >>> adapter.map_.kind, adapter.report_.bent_features
    ('monotone', ['column 0'])
    """

    form = "monotone"


class MatrixFamily(MapFamily):
    """Maps with a full matrix; `around` is all that one of your own must have.

    Parameters
    ----------
    links : as for `LocationScale`, default=None
        The scale on which the maps work.

    Examples
    --------
    >>> from condokit import Affine, Orthogonal
    >>> from condokit.maps.families import MatrixFamily
    >>> issubclass(Affine, MatrixFamily), Orthogonal.is_rigid
    (True, True)
    """

    form = "matrix"
    search: Search = Search("as given", 11, 500)
    orientation: str = "any"

    @property
    def keeps_orientation(self) -> bool:
        """Whether only maps with a positive determinant are searched."""
        check_word(f"'orientation' of {type(self).__name__}", self.orientation, ("any", "kept"))
        return self.orientation == "kept"

    @abstractmethod
    def around(self, A: Array, b: Array) -> Coordinates:
        """Return coordinates of the family near a map.

        Parameters
        ----------
        A : ndarray of shape (n_features, n_features)
            The matrix of a map.
        b : ndarray of shape (n_features,)
            Its offset.

        Returns
        -------
        Coordinates
            Its numbers that may change, as one vector; see `condokit.maps.coordinates`.
        """


class Affine(MatrixFamily):
    """Any matrix and offset.

    Parameters
    ----------
    n_starts : int, default=30
        Maps to start from: a diagonal one, transport, matched axes, then random rotations and
        reflections in turn; at most 3 beyond 30 features, and 20 for divergences between samples.
        A search ends early with a map that only chance could improve upon.
    max_iter : int, default=100
        Most Newton steps; of L-BFGS, five times as many given more than two support values.
    links : as for `LocationScale`, default=None
        The scale on which the map is affine.
    orientation : {"any", "kept"}, default="any"
        Whether reflections are searched as well, or, as the paper describes, only matrices with
        det A > 0. Between different features there is no orientation.

    Examples
    --------
    >>> from condokit import ConDoAdapter, Affine, datasets
    >>> p = datasets.make_categorical2d(random_state=0)  # sheared rings; the truth is p.A
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> adapter = ConDoAdapter(Affine(orientation="kept")).fit_pair(*data)
    >>> adapter.map_.A.round(1)
    array([[1.4, 0.8],
           [0.5, 1.6]])
    >>> p.A
    array([[1.5, 0.7],
           [0.7, 1.5]])
    """

    is_free = True

    def __init__(
        self,
        n_starts: int = 30,
        max_iter: int = 100,
        links: Any = None,
        orientation: Literal["any", "kept"] = "any",
    ) -> None:
        self.n_starts, self.max_iter, self.links = n_starts, max_iter, links
        self.orientation = orientation

    @property
    def search(self) -> Search:  # type: ignore[override]  # noqa: D102
        for name in ("n_starts", "max_iter"):
            check_integer(f"{name} of Affine", getattr(self, name), 1)
        return Search("white", self.n_starts, self.max_iter)

    def around(self, A: Array, b: Array) -> Coordinates:  # noqa: D102
        return AllMatrices(A, b)


class Rigid(MatrixFamily):
    """Maps that keep angles: rotations and reflections, with one scale or none."""

    is_rigid = True
    search = Search("common", 11, 200)

    def __init__(self, links: Any = None, orientation: Literal["any", "kept"] = "any") -> None:
        self.links, self.orientation = links, orientation

    def around(self, A: Array, b: Array) -> Coordinates:  # noqa: D102
        return Rotations(A, b, self.has_scale)


class Orthogonal(Rigid):
    """A rotation or reflection, and an offset: distances are kept.

    Parameters
    ----------
    links, orientation
        As for `Affine`.

    Examples
    --------
    >>> import numpy as np
    >>> from condokit import ConDoAdapter, Orthogonal
    >>> rng, turn = np.random.default_rng(0), np.array([[0.8, -0.6], [0.6, 0.8]])
    >>> new, old = (rng.exponential(size=(300, 2)) * [3, 1] for _ in range(2))
    >>> ConDoAdapter(Orthogonal()).fit_pair(new, old @ turn.T).map_.A.round(1)
    array([[ 0.8, -0.6],
           [ 0.6,  0.8]])
    """

    has_scale = False


class Similarity(Rigid):
    """One positive scale for all features, a rotation or reflection, and an offset.

    Parameters
    ----------
    links, orientation
        As for `Affine`.

    Examples
    --------
    >>> from condokit import Orthogonal, Similarity
    >>> Orthogonal.has_scale, Similarity.has_scale
    (False, True)
    """


class LowRank(MapFamily):
    """A scale and an offset for every feature, plus a matrix of low rank; never a square matrix.

    Parameters
    ----------
    rank : int, default=2
        Rank of what is added to the diagonal.
    links : as for `LocationScale`, default=None
        The scale on which the map is affine.

    Examples
    --------
    >>> from condokit import ConDoAdapter, LowRank, datasets
    >>> eeg = datasets.make_eeg(100, 100, random_state=0)
    >>> features = eeg.X_query[:, :4], eeg.X_reference[:, :4]
    >>> adapter = ConDoAdapter(LowRank(1))
    >>> map_ = adapter.fit_pair(*features, eeg.seizure_query, eeg.seizure_reference).map_
    >>> map_.kind, map_.left.shape
    ('low-rank', (4, 1))
    """

    form = "low-rank"

    def __init__(self, rank: int = 2, links: Any = None) -> None:
        self.rank, self.links = rank, links


MAPS: dict[str, type[MapFamily]] = {
    "identity": Identity,
    "shift": Shift,
    "location-scale": LocationScale,
    "monotone": Monotone,
    "affine": Affine,
    "low-rank": LowRank,
    "orthogonal": Orthogonal,
    "similarity": Similarity,
}
