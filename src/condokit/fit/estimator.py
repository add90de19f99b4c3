"""The base class of both adapters: features of the fit, `transform`, and fits from statistics."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from condokit.checks import Array, NeedsRows, Note, listing, noting, refusal, said, warn
from condokit.data.blocks import Blocks, blocks_of
from condokit.data.tables import Table
from condokit.maps.base import Map
from condokit.maps.provenance import thawed
from condokit.maps.standard_errors import StandardErrors
from condokit.statistics.domains import hinted, merge_parts
from condokit.statistics.gather import Statistics


class Adapter(TransformerMixin, BaseEstimator, ABC):
    """What both adapters share; a subclass says how maps are found and which map a row takes."""

    n_features_in_: int
    _columns: list[int] | None  # positions of the features in an array; None if all columns are

    @abstractmethod
    def _fit_statistics(self, statistics: Statistics, notes: list[Note]) -> Self:
        """Learn the maps from merged statistics; warnings are appended to `notes`."""

    @abstractmethod
    def _fitted(self) -> Mapping[Any, Map]:
        """Return the fitted maps by label of domain or batch."""

    @abstractmethod
    def _place(self, label: Any, table: Table) -> tuple[Array, Array | None]:
        """Return each row's position among the fitted maps, and mark rows that stay unchanged."""

    @abstractmethod
    def _map_lazily(self, maps: Mapping[Any, Map], blocks: Blocks, label: Any) -> Any:
        """Map rows that are not in memory, block by block."""

    def fit_statistics(self, statistics: Any) -> Self:
        """Learn the maps from statistics (sums over rows) instead of rows.

        Parameters
        ----------
        statistics : Statistics or list of Statistics
            Statistics of all domains or batches; those in a list are merged. If they were not saved
            to files (which round) and no feature has heavy tails, the maps equal those of a fit to
            all rows, up to rounding errors.

        Returns
        -------
        ConDoAdapter or BatchAdapter
            The fitted adapter itself. Only `map="location-scale"` and `map="shift"` can be learned
            from statistics; `map="auto"` means the first.
        """
        with noting() as notes:
            merged = merge_parts(statistics)
            with hinted(merged):
                return self._fit_statistics(merged, notes)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the mapped features, which are those of the input.

        Parameters
        ----------
        input_features : array-like of str or None, default=None
            Names of the features, if they had none when the adapter was fitted.

        Returns
        -------
        ndarray of str
            The names, of shape (n_features,).
        """
        check_is_fitted(self)
        names, columns = getattr(self, "feature_names_in_", None), self._columns
        if names is None and columns is not None and input_features is None:
            return np.array([f"x{j}" for j in columns], dtype=object)
        if names is None:
            found = OneToOneFeatureMixin.get_feature_names_out(self, input_features)
            return np.asarray(found[columns or slice(None)])
        if input_features is not None and not set(names) <= set(input_features):
            raise ValueError("input_features is not equal to feature_names_in_.")
        return np.asarray(names, dtype=object)

    def __getstate__(self) -> Any:
        return {name: thawed(value) for name, value in super().__getstate__().items()}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _keep_features(self, table: Table) -> None:
        """Store names and number of the features in scikit-learn's fitted attributes."""
        by_place = table.columns is None and [*table.positions] != [*range(table.width)]
        self._columns = list(table.positions) if by_place else None
        self.n_features_in_ = table.width if by_place else table.n_features
        if table.feature_names is not None:
            self.feature_names_in_ = np.asarray(table.feature_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _matched(self, X: Any) -> tuple[Table, Table]:
        """Return X as a table, and a table of the features that the adapter was fitted with."""
        everything, owner = Table(X), type(self).__name__
        names, columns = getattr(self, "feature_names_in_", None), self._columns
        if names is not None and everything.columns is None:
            text = "X does not have valid feature names, but {owner} was fitted with feature names"
            warn("no-names", text, UserWarning, owner=owner)
        elif names is None and everything.columns is not None:
            text = "X has feature names, but {owner} was fitted without feature names"
            warn("names", text, UserWarning, owner=owner)
        if columns is not None and everything.n_features == len(columns):
            return everything, everything.select(None)  # the features, as transform returns them
        table = everything.match(names, self.n_features_in_, owner)
        return everything, table if columns is None else everything.select(columns)

    def _transform(self, X: Any, label: Any, return_std: bool) -> Any:
        """Map each row by the map of its label; with `return_std` also return standard errors."""
        maps = self._fitted()
        # scikit-learn's set_output expects an array, which it puts into the container asked for
        configured = getattr(self, "_sklearn_output_config", {}).get("transform")
        as_array = (configured or get_config()["transform_output"]) != "default"
        found = self._apply(X, label, maps, None, as_array)
        if not return_std:  # errors of matrices are slow, and computed only when asked for
            return found
        errors = {name: one.errors for name, one in maps.items()}
        return found, self._apply(X, label, maps, errors, as_array)

    def _apply(
        self,
        X: Any,
        label: Any,
        maps: Mapping[Any, Map],
        errors: Mapping[Any, StandardErrors | None] | None = None,
        as_array: bool = False,
    ) -> Any:
        """Return mapped rows, or their standard errors if `errors` are given, in X's container."""
        if (blocks := blocks_of(X)) is not None:
            if errors is not None:
                raise NeedsRows(said("{@`return_std`} needs rows in memory. Collect {@`X`} first."))
            return self._map_lazily(maps, blocks, label)
        everything, table = self._matched(X)
        table.refuse_empty()
        (code, stays), each = self._place(label, everything), list(maps.values())
        known = None if errors is None else [errors[name] for name in maps]
        unknown = [n for b, n in enumerate(maps) if known and known[b] is None and b in code]
        if unknown:
            text = "The standard errors of {names} are not known; find them with "
            raise refusal(text + "condokit.bootstrap(adapter, X, ...).", names=listing(unknown))

        def fill(result: Array, rows: slice, chunk: Array) -> None:
            """Fill in the mapped values, or errors, of a chunk of rows."""
            _map_chunk(result, table, chunk, code[rows], each, known)
            if stays is not None:
                result[stays[rows]] = chunk[stays[rows]] if known is None else 0.0

        names = each[0].outputs(table.columns)
        if table.is_annotated and each[0].shape[0] == table.n_features and not as_array:
            return table.refilled(fill, known is None)
        result = table.output(each[0].shape[0])
        for rows, chunk in table.chunks():
            fill(result[rows], rows, chunk)
        if as_array:
            return result

        def depends(marked: Array) -> Array:
            """Mark the mapped values that depend on marked input values (missing ones)."""
            found = np.empty((len(marked), each[0].shape[0]), dtype=bool)
            for b, one in enumerate(each):
                found[code == b] = one.depends(marked[code == b])
            return found

        return table.rebuild(result, names, known is None, depends)


def map_rows(table: Table, code: Array, maps: Sequence[Map]) -> Array:
    """Map row i by `maps[code[i]]`."""
    result = table.output(maps[0].shape[0])
    for rows, chunk in table.chunks():
        _map_chunk(result[rows], table, chunk, code[rows], maps)
    return result


def _map_chunk(
    result: Array,
    table: Table,
    chunk: Array,
    code: Array,
    maps: Sequence[Map],
    errors: Sequence[Any] | None = None,
) -> None:
    """Map rows of a table into `result`; if `errors` are given, find standard errors instead."""
    present = np.flatnonzero(np.bincount(code)).tolist()
    for b in present:
        mine: Any = slice(None) if len(present) == 1 else code == b
        if errors is not None:
            result[mine] = errors[b].of_mapped(chunk[mine], maps[b])
            continue
        values = result if len(present) == 1 else np.empty_like(result[mine])
        maps[b].apply_chunk(chunk[mine], table, values)
        if values is not result:
            result[mine] = values


def how_read(adapter: Any) -> dict[str, Any]:
    """Return the settings of an adapter that say how confounders are read, for `Roles`."""
    return {name: getattr(adapter, name) for name in ("categorical", "missing", "reliability")}


def is_routed(adapter: Any, method: str, name: str) -> bool:
    """Return whether the user asked scikit-learn to pass this metadata on to a method."""
    asked = getattr(adapter, "_metadata_request", None)  # there once a set_..._request was called
    return asked is not None and getattr(asked, method).requests.get(name) is True
