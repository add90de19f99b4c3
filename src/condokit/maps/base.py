"""The base of all fitted maps: immutable, transformers without fitting, saved as files."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from inspect import signature
from operator import attrgetter
from typing import Any, ClassVar, Self

import narwhals.stable.v2 as nw
import numpy as np

from condokit.checks import Array, check_word, did_you_mean, listing, needs_rows, unknown_columns
from condokit.data import links as linking
from condokit.data.blocks import blocks_of
from condokit.data.tables import Table
from condokit.io import documents
from condokit.io.documents import Place
from condokit.maps import file as mapfile
from condokit.maps.lazily import map_lazily
from condokit.maps.profile import Check, Profile, check
from condokit.maps.provenance import FrozenDict, check_provenance, frozen, thawed
from condokit.maps.standard_errors import CurveErrors, StandardErrors, chained, read_errors

_MOST_SHOWN = 6  # outputs that are printed
# fields of a file that are not arguments of the constructor
_NO_ARGUMENTS = {"format", "schema", "condokit", "sha256", "kind", "label"}
_NO_ARGUMENTS |= {"fitted_on", "provenance", "errors"}
_ERRORS = "_errors"  # attribute with the standard errors, or a function that computes them
_CONTAINER = "_container"  # attribute with the container that `set_output` chose
_IDENTITY = attrgetter("kind", "feature_names", "links", "output_names")  # maps are equal if these
# and their numbers are


class Map(ABC):
    """A fixed map from query features to reference features: the base of all kinds of maps.

    It has the methods that scikit-learn expects of a transformer, but does not import scikit-learn,
    which takes longer than all else that a map needs to be read and applied. Think twice before
    adding anything. A new class of maps sets `kinds` and writes the abstract methods; its
    constructor passes names, links, origin and its numbers to that of the base.
    """

    kinds: ClassVar[tuple[str, ...]] = ()  # values of "kind" in the files that the class reads
    #: JSON Schema of its numbers, for kinds that the published schema does not have.
    fields: ClassVar[Mapping[str, Any]] = {}
    kind: str  # one of `kinds`
    shape: tuple[int, int]  # (n_outputs, n_features)
    n_features_in_: int
    is_rectangular: bool  # whether these numbers differ
    feature_names: tuple[str, ...] | None
    output_names: tuple[str, ...] | None
    links: tuple[linking.Link, ...] | None
    fitted_on: Profile | None
    provenance: FrozenDict | None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        mapfile.enter(cls, vars(cls).get("kinds", ()), cls.fields)

    def __init__(
        self,
        kind: str,
        shape: tuple[int, int],
        feature_names: Sequence[str] | None = None,
        links: Any = None,
        output_names: Sequence[str] | None = None,
        fitted_on: Profile | None = None,
        provenance: Mapping[str, Any] | None = None,
        **own: Any,
    ) -> None:
        names = _different("feature_names", feature_names, shape[1])
        outputs = _different("output_names", output_names, shape[0])
        checked = None
        if links is not None:
            checked = linking.check_links(links, names or [f"column {j}" for j in range(shape[1])])
        rectangular = shape[0] != shape[1]
        if rectangular and checked is not None:
            raise ValueError("'links' can only be used with as many outputs as features.")
        self.__dict__.update(own, kind=kind, shape=shape, is_rectangular=rectangular)
        self.__dict__["n_features_in_"] = shape[1]
        self.__dict__.update(feature_names=names, output_names=outputs, links=checked)
        self.__dict__.update(fitted_on=fitted_on, provenance=check_provenance(provenance))

    @abstractmethod
    def arrays(self) -> dict[str, Any]:
        """Return the numbers of the map by name, as in its file."""

    @abstractmethod
    def without_links(self, X: Array, out: Array | None = None) -> Array:
        """Map every row; both X and the result are on the scale of the links."""

    def reach(self) -> tuple[Array, Array] | None:
        """Return the lowest and highest values of features seen in the fit; None without limits."""
        return None

    def depends(self, marked: Array) -> Array:
        """Mark the outputs that depend on any of the marked features, row by row."""
        return marked

    @abstractmethod
    def inverse(self) -> "Map":
        """Return the map from reference features back to query features.

        Returns
        -------
        AffineMap or MonotoneMap
            The map back; an error if there is none.
        """

    @abstractmethod
    def compose(self, other: Any) -> "Map":
        """Return the map that applies `other` first and then this one.

        Features are matched by name when both maps have names. With a map of curves, the other must
        be diagonal or one of curves as well; a matrix is refused.

        Parameters
        ----------
        other : AffineMap or MonotoneMap
            The map that comes first.

        Returns
        -------
        AffineMap or MonotoneMap
            Both in one.

        Examples
        --------
        >>> from condokit import AffineMap
        >>> AffineMap([2.0], [1.0]).compose(AffineMap([3.0], [0.0]))
        AffineMap of 1 feature (diagonal)
          x0 -> 6 * x0 + 1
        """

    def only(self, names: Sequence[str | int]) -> "Self":
        """Return the map that changes some features and leaves all others as they are.

        Parameters
        ----------
        names : sequence of str or int
            The features to change: names, or positions if the map has no names. Those that are
            better for the map are ``[f for f in features if f not in evaluation.leave_alone]``.

        Returns
        -------
        AffineMap or MonotoneMap
            A map of the same features; an error for matrices, whose features go together.

        Examples
        --------
        >>> from condokit import AffineMap
        >>> AffineMap([2.0, 3.0], [1.0, 1.0], ["a", "b"]).only(["b"])
        AffineMap of 2 features (diagonal)
          a -> 1 * a + 0
          b -> 3 * b + 1
        """
        if self.kind not in ("diagonal", "monotone"):
            raise ValueError("A matrix mixes features, so it cannot map only some of them.")
        known: Sequence[Any] = self.feature_names or range(self.n_features_in_)
        if strange := [name for name in names if name not in known]:
            raise ValueError(f"'names' has {listing(strange)}, which is not a feature of the map.")
        kept = np.array([name in names for name in known])
        links = self.links
        if links is not None:
            links = tuple(link if keep else None for link, keep in zip(links, kept))
        found = type(self)(**self._only(kept), links=links, feature_names=self.feature_names)
        return found.with_origin(self.fitted_on, self.provenance)

    def _only(self, kept: Array) -> dict[str, Any]:
        """Return the numbers of the map with the identity for features that are not kept."""
        raise NotImplementedError

    @abstractmethod
    def formula(self, j: int, names: Sequence[str]) -> str:
        """Write one output in terms of the features."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):  # scikit-learn sets private attributes, as in set_output
            raise AttributeError(
                f"{type(self).__name__} is immutable; make a new one instead of setting {name!r}."
            )
        self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        if not name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} is immutable.")
        del self.__dict__[name]

    def set_params(self, **params: Any) -> Self:
        """Refuse: a map is immutable. An empty call is allowed."""
        if params:
            raise AttributeError(f"{type(self).__name__} is immutable; make a new one instead.")
        return self

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments that make the same map, as scikit-learn asks for them.

        Parameters
        ----------
        deep : ignored
            Present for scikit-learn's interface.

        Returns
        -------
        dict
            Arguments of the constructor by name.
        """
        return {name: getattr(self, name) for name in signature(type(self)).parameters}

    def __getstate__(self) -> Any:
        self.__dict__[_ERRORS] = self.errors  # a function that computes them cannot be pickled
        return {name: thawed(value) for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied map, read-only as before."""
        facts = state.get("provenance")
        self.__dict__.update(state, provenance=None if facts is None else frozen(facts))
        for value in state.values():
            if hasattr(value, "flags"):
                value.flags.writeable = False

    def with_origin(
        self, fitted_on: Profile | None, provenance: Mapping[str, Any] | None = None
    ) -> Self:
        """Return the same map with the profile of its data, and with facts about the fit."""
        same = object.__new__(type(self))
        own = {k: value for k, value in vars(self).items() if not k.startswith("_") or k == _ERRORS}
        same.__dict__.update(own, fitted_on=fitted_on, provenance=check_provenance(provenance))
        return same

    @property
    def errors(self) -> StandardErrors | None:
        """Standard errors of the map, None if unknown; those of matrices are computed on demand."""
        found = self.__dict__.get(_ERRORS)
        if callable(found):
            found = self.__dict__[_ERRORS] = found()
        return found

    def with_errors(
        self, errors: StandardErrors | Callable[[], StandardErrors | None] | None
    ) -> Self:
        """Return the same map with its errors, or with a function that computes them."""
        same = self.with_origin(self.fitted_on, self.provenance)
        same.__dict__[_ERRORS] = errors
        return same

    def with_errors_of(self, first: "Map", second: "Map") -> Self:
        """Return this map, which is `second` after `first`, with the errors of both if known."""
        if any(one.__dict__.get(_ERRORS) is None for one in (first, second)):
            return self
        return self.with_errors(partial(chained, first, second, self))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Map)
            and _IDENTITY(self) == _IDENTITY(other)
            and all(map(np.array_equal, self.arrays().values(), other.arrays().values()))
        )

    def __hash__(self) -> int:
        numbers = (array.tobytes() for array in self.arrays().values())
        return hash((*numbers, self.feature_names, self.links))

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> Self:
        return self.with_origin(self.fitted_on, self.provenance)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        known = {"transformer_tags": TransformerTags(), "input_tags": InputTags(allow_nan=True)}
        return Tags(None, TargetTags(required=False), requires_fit=False, **known)

    _sklearn_auto_wrap_output_keys: ClassVar[set[str]] = {"transform"}

    def set_output(self, *, transform: str | None = None) -> Self:
        """Choose the container of mapped values, as in scikit-learn.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"} or None, default=None
            The container; "default" is that of the rows, None changes nothing.

        Returns
        -------
        AffineMap or MonotoneMap
            The map itself.
        """
        if transform is not None:
            check_word("transform", transform, ("default", "pandas", "polars"))
            self.__dict__[_CONTAINER] = transform
        return self

    def _in_container(self, mapped: Any, X: Any) -> Any:
        """Return mapped rows in the container that was set, for the map or for scikit-learn."""
        wanted = self.__dict__.get(_CONTAINER)
        if wanted is None and "sklearn" in sys.modules:
            wanted = sys.modules["sklearn"].get_config()["transform_output"]
        if wanted in (None, "default") or type(mapped).__module__.split(".")[0] == wanted:
            return mapped
        values, names = np.asarray(mapped), map(str, self.get_feature_names_out())
        columns = dict(zip(names, values.T))
        frame = nw.from_dict(columns, backend=wanted).to_native()
        return frame.set_axis(X.index) if wanted == "pandas" and hasattr(X, "index") else frame

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Map every row; the map is fixed.

        Parameters
        ----------
        X : array or data frame of shape (n_rows, n_columns)
            Query rows.
        y : ignored
            Present for scikit-learn's interface.

        Returns
        -------
        array or data frame of shape (n_rows, n_features)
            The mapped features.
        """
        return self.transform(X)

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Do nothing: the map is fixed.

        Parameters
        ----------
        X, y : ignored
            Present for scikit-learn's interface.

        Returns
        -------
        AffineMap or MonotoneMap
            The map itself.
        """
        return self

    def transform(self, X: Any, *, return_std: bool = False) -> Any:
        """Map every row, as calling the map does.

        Of lazy frames, Dask collections and Arrow datasets the result is lazy as well, with all
        other columns as they are.

        Parameters
        ----------
        X : array or data frame of shape (n_rows, n_columns)
            Query rows. Features are found by name if the map has names.
        return_std : bool, default=False
            Whether to return also the standard error of every mapped value, as far as it comes from
            the map. Known of fitted maps, and kept by `save`.

        Returns
        -------
        array or data frame of shape (n_rows, n_features)
            The mapped features, in the container of X; with `return_std` a pair of these.
        """
        if not return_std:
            return self._in_container(self(X), X)
        if self.errors is None:
            raise ValueError(
                "The standard errors of this map are not known. They come with a fit; leave "
                "'return_std' out for other maps."
            )
        if blocks_of(X) is not None:
            raise needs_rows("{@`return_std`} needs rows in memory. Collect {@`X`} first.")
        table = self._matched(X)
        errors = table.output(self.shape[0])
        for rows, chunk in table.chunks():
            errors[rows] = self.errors.of_mapped(chunk, self)
        names = self.outputs(table.columns)
        return self(X), table.rebuild(errors, names, False, depends=self.depends)

    def inverse_transform(self, X: Any) -> Any:
        """Map every row back.

        Parameters
        ----------
        X : array or data frame of shape (n_rows, n_columns)
            Rows in the reference's units.

        Returns
        -------
        array or data frame of shape (n_rows, n_features)
            The features in the query's units, in the container of X.
        """
        return self.inverse()(X)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of what comes out: those of the features, unless it has its own.

        Parameters
        ----------
        input_features : array-like of str or None, default=None
            Names of the features, if the map does not know them.

        Returns
        -------
        ndarray of str
            The names.
        """
        names = self.outputs(["named"]) or input_features
        places = range(self.n_features_in_)
        return np.array([f"x{j}" for j in places] if names is None else list(names), dtype=object)

    def __call__(self, X: Any) -> Any:
        """Map every row; see `transform`."""
        if (blocks := blocks_of(X)) is not None:
            return map_lazily(self, blocks)
        table = self._matched(X)
        return table.rebuild(self.apply(table), self.outputs(table.columns), depends=self.depends)

    def _matched(self, X: Any) -> Table:
        """Return the features of a table in the order of the map."""
        owner = f"this {type(self).__name__}"
        return Table(X).match(self.feature_names, self.n_features_in_, owner)

    def outputs(self, columns: Sequence[str] | None) -> Sequence[str] | None:
        """Return the names of what comes out of columns with or without names."""
        if self.is_rectangular:
            return self.output_names or [f"y{j}" for j in range(self.shape[0])]
        return self.output_names or (self.feature_names if columns else None)

    def apply(self, table: Table) -> Array:
        """Map the rows of a table whose columns are in order; refuse infinity."""
        # an output is NaN if it depends on a missing value, that is if its entry of A is not zero
        out = table.output(self.shape[0])
        for rows, chunk in table.chunks():
            self.apply_chunk(chunk, table, out[rows])
        return out

    def apply_chunk(self, chunk: Array, table: Table, result: Array) -> None:
        """Map some rows of a table into a result; see `apply`."""
        with np.errstate(over="ignore", invalid="ignore"):
            chunk = linking.apply(self.links, chunk, table.labels, table.name)
            self._map_into(result, chunk)
            if np.isfinite(result.sum(dtype=np.float64)):
                return
            if np.isinf(chunk).any():
                table.refuse_extremes(np.inf)
            missing = np.isnan(chunk)
            lost = self.depends(missing)
            if not np.array_equal(np.isnan(result), lost):
                self._map_into(result, np.where(missing, 0.0, chunk))
                result[lost] = np.nan
            if not (np.isfinite(result) | lost).all():
                raise ValueError(
                    f"Mapped values are too large for {result.dtype}. Pass {table.name} in other "
                    "units, or as float64."
                )

    def _map_into(self, result: Array, X: Array) -> None:
        """Map rows into an array, with links and the precision of the array."""
        if self.links is None and result.dtype == np.float64:
            self.without_links(X, result)
        else:
            result[...] = linking.undo(self.links, self.without_links(X))

    def check(self, X: Any) -> Check:
        """Return whether rows that are about to be mapped look like those the map was fitted on.

        Needs no confounders, so other subjects and a drifting device look alike. Nothing is
        refused: columns that are missing or unknown, values far outside, and moments that moved are
        reported, as a verdict with its reasons and a table of all features.

        Parameters
        ----------
        X : array or data frame of shape (n_rows, n_columns)
            Query rows.

        Returns
        -------
        Check
            What was found; print it.

        Examples
        --------
        >>> from condokit import ConDoAdapter, datasets
        >>> eeg = datasets.make_eeg(random_state=0)
        >>> map_ = ConDoAdapter().fit_pair(eeg.X_query, eeg.X_reference).map_
        >>> map_.check(eeg.X_query).verdict, map_.check(1000 * eeg.X_query).verdict
        ('as fitted', 'look')
        """
        return check({None: self}, X)

    def among(self, columns: Sequence[str]) -> Self:
        """Return the map of more columns, which leaves those that are no features as they are.

        For a pipeline in front of a model that needs all columns in their places.

        Parameters
        ----------
        columns : sequence of str
            The names of all columns, in the order in which they come out.

        Returns
        -------
        AffineMap or MonotoneMap
            A map of as many features as there are columns.

        Examples
        --------
        >>> from condokit import AffineMap
        >>> AffineMap([2.0], [1.0], ["b"]).among(["a", "b"])
        AffineMap of 2 features (diagonal)
          a -> 1 * a + 0
          b -> 2 * b + 1
        """
        if self.feature_names is None or self.has_own_outputs:
            raise ValueError("'among' needs a map with feature names and the same outputs.")
        place = {str(name): j for j, name in enumerate(columns)}
        if missing := [name for name in self.feature_names if name not in place]:
            raise unknown_columns("columns", missing, list(place), "the list")
        places, links = [place[name] for name in self.feature_names], None
        if self.links is not None:
            known = dict(zip(self.feature_names, self.links))
            links = [known.get(str(name)) for name in columns]
        parts: dict[str, Any] = {"feature_names": columns, "links": links}
        found = type(self)(**self._padded(places, len(columns)), **parts)
        return found.with_origin(None, self.provenance)

    def _padded(self, places: list[int], n: int) -> dict[str, Any]:
        """Return the numbers of a map of n features, with this one's at some of the places."""
        raise ValueError(f"A map of the kind {self.kind!r} has no place among other columns.")

    def turned_names(self) -> dict[str, Any]:
        """Return the names of the inverse map, as arguments of its constructor."""
        if self.output_names is None:
            place = "output_names" if self.is_rectangular else "feature_names"
            return {place: self.feature_names}
        return {"feature_names": self.output_names, "output_names": self.feature_names}

    @property
    def has_own_outputs(self) -> bool:
        """Whether outputs differ from the features in number or name."""
        return self.is_rectangular or self.output_names is not None

    def joined(self, other: "Map") -> tuple[list[int], dict[str, Any]]:
        """Return which output of the other map each feature of this map takes, and joint names.

        Names are arguments of the composed map's constructor. Unless one of the maps has other
        outputs than features, the other map's features are reordered as well, and links are kept.
        """
        n, there = self.n_features_in_, other.shape[0]
        own = self.has_own_outputs or other.has_own_outputs
        if own and there != n:
            raise ValueError(f"The other map has {there} outputs, but this map takes {n} features.")
        if own and (self.links is not None or other.links is not None):
            raise ValueError(
                "Maps with links cannot be composed with maps whose outputs are not their features."
            )
        takes, order = self.feature_names, list(range(n))
        yields = other.output_names or (None if other.is_rectangular else other.feature_names)
        if takes is not None and yields is not None:
            place = {name: j for j, name in enumerate(yields)}
            missing = [name for name in takes if name not in place]
            if own and missing:
                raise ValueError(
                    f"The other map's outputs are {listing(yields)}, but this map takes "
                    f"{listing(takes)}."
                )
            if missing or there != n:
                raise ValueError(
                    "The two maps have different features: "
                    f"only one of them has {listing(missing or set(place) - set(takes))}."
                    + "".join(did_you_mean(name, place) for name in missing[:1])
                )
            order = [place[name] for name in takes]
        elif there != n:
            raise ValueError(f"The two maps have {n} and {there} features.")
        if own:
            renames = other.output_names is not None and not self.is_rectangular
            outputs = self.output_names or (takes if renames else None)
            return order, {"feature_names": other.feature_names, "output_names": outputs}
        if self.links != (other.links and tuple(other.links[j] for j in order)):
            raise ValueError("The two maps have different links, so they cannot be composed.")
        return order, {"feature_names": takes or other.feature_names, "links": self.links}

    def save(self, path: Place, *, errors: bool | None = None) -> None:
        """Write the map to a small readable JSON file, the same bytes for the same map.

        Parameters
        ----------
        path : path or open file
            Where to write, whole or not at all.
        errors : bool or None, default=None
            Whether standard errors are written, as far as they are known, for
            ``transform(X, return_std=True)``. None writes those of lines and curves; those of a
            matrix of d features are found first, and are about d times as many numbers as it has.
        """
        documents.write(path, self.to_dict(errors), mapfile.MAPS)

    def to_dict(self, errors: bool | None = None) -> dict[str, Any]:
        """Return the content of the map's file, with standard errors as in `save`."""
        optional = {
            "links": self.links,
            "output_names": self.output_names,
            "provenance": self.provenance,
            "fitted_on": self.fitted_on and self.fitted_on.to_dict(),
            "errors": self._errors_for_file(errors),
        }
        return {
            "kind": self.kind,
            "feature_names": self.feature_names,
            **{name: array.tolist() for name, array in self.arrays().items()},
            **{name: value for name, value in optional.items() if value is not None},
        }

    def _errors_for_file(self, wanted: bool | None) -> dict[str, Any] | None:
        """Return standard errors as fields of a file, None if they are not written."""
        is_small = self.kind in ("diagonal", "monotone")
        if not (is_small if wanted is None else wanted) or self.errors is None:
            return None
        if isinstance(self.errors, CurveErrors) != (self.kind == "monotone"):
            return None  # the file format has only errors of the map's own kind
        fields = self.errors.to_dict()
        known = fields and all(np.isfinite(numbers).all() for numbers in fields.values())
        return {name: numbers.tolist() for name, numbers in fields.items()} if known else None

    @classmethod
    def load(cls, path: Place) -> Self:
        """Read a map that `save` wrote; refuse any other file with a `MapFileError`.

        Parameters
        ----------
        path : path or open file
            The file.

        Returns
        -------
        AffineMap or MonotoneMap
            The map, equal to the one that was saved.
        """
        return mapfile.read(path, cls)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Self:
        """Return the map with these fields of a file; raise a ValueError if they are not valid."""
        arguments = {name: value for name, value in content.items() if name not in _NO_ARGUMENTS}
        profile = content.get("fitted_on")
        profile = None if profile is None else Profile.from_dict(profile)
        found = cls(**arguments).with_origin(profile, content.get("provenance"))
        errors = content.get("errors")
        return found if errors is None else found.with_errors(read_errors(found, errors))

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        n_outputs, n = self.shape
        names = self.feature_names or [f"x{j}" for j in range(n)]
        outputs = self.outputs(names) or names
        size = f"{n} feature{'s' * (n != 1)}" + f" to {n_outputs}" * self.is_rectangular
        lines = [f"{type(self).__name__} of {size} ({self._kind_in_words()})"]
        for j, output in enumerate(self._shown(outputs[:_MOST_SHOWN])):
            lines.append(f"  {output} -> {self.formula(j, self._shown(names))}")
        return "\n".join(lines + ["  ..."] * (n_outputs > _MOST_SHOWN))

    def _kind_in_words(self) -> str:
        return self.kind

    def _shown(self, names: Sequence[str]) -> list[str]:
        """Return names with their links around them."""
        links = self.links or [None] * len(names)
        forms: dict[linking.Link, str] = {None: "{0}", "log": "log({0})", "logit": "logit({0})"}
        return [forms.get(k, "{0}^{1:g}").format(n, k) for n, k in zip(names, links)]

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def _different(argument: str, names: Sequence[str] | None, n: int) -> tuple[str, ...] | None:
    """Return names as text; refuse them unless they are n distinct ones."""
    if names is None:
        return None
    texts = tuple(str(name) for name in names)
    if not len(texts) == len(set(texts)) == n:
        raise ValueError(f"'{argument}' must be {n} different names. Got {listing(texts)}.")
    return texts
