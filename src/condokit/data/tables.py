"""Tables of any library, as input and output: pandas, polars, pyarrow, NumPy, AnnData."""

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from scipy import sparse

from condokit.checks import (
    LARGEST,
    Array,
    did_you_mean,
    listing,
    refusal,
    refuse_extremes,
    sizes,
    unknown_columns,
    warn,
)

_CHUNK_ELEMENTS = 1 << 17  # a chunk and its square stay in cache
_MIN_CHUNK_ROWS = 256
_SLOW = 32  # factor of the chunk size for tables on disk, or computed when read
_CONVERT = "Convert them to numbers, for example with .astype(float), or leave them out."


class Table:
    """The feature columns of a user's table, which is never changed nor copied as a whole."""

    def __init__(self, X: Any, name: str = "X") -> None:
        self.name = name  # what error messages call it
        self.is_annotated = hasattr(X, "var_names") and hasattr(X, "obs")  # AnnData
        self.native = X
        frame = None if self.is_annotated else _as_frame(X, name)
        self._is_frame = frame is not None
        if self.is_annotated:
            self._data: Any = _variables(X, name)
            self.columns: list[str] | None = [str(name) for name in X.var_names]
            obs = X.obs.to_memory() if hasattr(X.obs, "to_memory") else X.obs
            self.about = as_narwhals(obs.reset_index(drop=True).rename(columns=str))
        else:
            self._data = _as_array(X, name) if frame is None else frame
            self.columns = None if frame is None else _string_names(list(frame.columns), name)
            self.about = frame
        self._place = {column: i for i, column in enumerate(self.columns or [])}
        self._types = [] if frame is None else list(frame.schema.values())
        self.n_rows, self.width = self._data.shape
        self.positions: Sequence[int] = range(self.width)
        self.is_slow = hasattr(self._data, "chunks")  # in a file, or lazy

    @classmethod
    def named(cls, values: Array, names: Sequence[str] | None) -> "Table":
        """Return an array as a table whose columns have names."""
        table = cls(values)
        table.columns = None if names is None else list(names)
        table._place = {name: i for i, name in enumerate(names or ())}
        return table

    @property
    def n_features(self) -> int:
        """Number of selected columns."""
        return len(self.positions)

    @property
    def labels(self) -> list[str]:
        """Names of the selected columns as messages show them."""
        if self.columns is None:
            return [f"column {position}" for position in self.positions]
        return [self.columns[position] for position in self.positions]

    @property
    def feature_names(self) -> list[str] | None:
        """Names of the selected columns, or None for an array."""
        return None if self.columns is None else self.labels

    @property
    def described(self) -> list[str]:
        """Names of the columns that can have a role: of AnnData, those of `obs`."""
        return list(self.about.columns) if self.is_annotated else self.columns or []

    @property
    def entries(self) -> Any:
        """All columns as a sparse matrix of rows, None if they are not one in memory."""
        return self._data if sparse.issparse(self._data) else None

    def column(self, argument: str, name: str) -> nw.Series[Any]:
        """Return the named column as a series."""
        self.refuse_unknown(argument, [name])
        return self.about[name]

    def is_number(self, name: str) -> bool:
        """Return whether a column holds numbers."""
        return bool(self._types[self._place[name]].is_numeric())

    def select(self, features: Any, reserved: Sequence[str] = ()) -> "Table":
        """Keep the features: given by name, pattern or position, or all that are not reserved."""
        chosen, taken = self.positions, set() if self.is_annotated else set(reserved)
        if features is not None:
            chosen = self.find(features, taken)
        elif self.columns is not None and taken:
            chosen = [i for i in chosen if self.columns[i] not in taken]
        if not chosen:
            raise ValueError(
                f"Found array with 0 feature(s) (shape=({self.n_rows}, 0)) while a minimum of 1 is "
                f"required: {self.name} has no feature column left."
            )
        table = self._with(chosen)
        if not self._types:  # an array
            return table
        text = [
            f"{label} ({dtype})"
            for label, dtype in zip(table.labels, table._dtypes())
            # a column without any value, of any type, is one of missing values
            if not (dtype.is_numeric() or dtype == nw.Boolean)
            and not 0 < self.n_rows == self._data[label].null_count()
        ]
        if text:
            bad = f"columns that are not numeric: {listing(text)}"
            raise ValueError(f"{self.name} has {bad}. {_CONVERT}")
        return table

    def names_of(self, chosen: Array) -> list[str]:
        """Return what the chosen features are called."""
        return list(np.asarray(self.labels, dtype=object)[chosen]) if chosen.any() else []

    def take(self, places: Iterable[int]) -> "Table":
        """Return the table with some of its selected columns, by their place among them."""
        return self._with([self.positions[j] for j in places])

    def _with(self, positions: Sequence[int]) -> "Table":
        """Return the table with the columns at these positions selected."""
        table = copy(self)
        table.positions = positions
        return table

    def match(self, names: Sequence[str] | None, n_features: int, owner: str) -> "Table":
        """Find the fitted features again: by name where both sides have names, else by place."""
        if names is not None and self.columns is not None:
            missing = [name for name in names if name not in self._place]
            if missing:
                few = missing if len(missing) <= 3 else ()  # more were hardly misspelt
                hints = "".join(did_you_mean(name, self.columns) for name in few)
                raise ValueError(
                    "The feature names should match those that were passed during fit.\n"
                    f"{self.name} lacks {listing(missing)}, which {owner} was fitted with.{hints}"
                )
            chosen = [self._place[name] for name in names]
            return self.select(range(self.n_features) if chosen == [*self.positions] else chosen)
        if self.n_features != n_features:
            turned = f" {self.name} looks transposed: samples are rows."
            raise ValueError(
                f"{self.name} has {self.n_features} features, but {owner} is expecting "
                f"{n_features} features as input.{turned if self.n_rows == n_features else ''}"
            )
        return self.select(None)

    def chunks(self) -> Iterator[tuple[slice, Array]]:
        """Yield (rows, float64 array) from top to bottom; NaN and infinity pass through."""
        elements = _CHUNK_ELEMENTS * (_SLOW if self.is_slow else 1)
        step = max(_MIN_CHUNK_ROWS, elements // max(self.n_features, 1))
        for start in range(0, self.n_rows, step):
            rows = slice(start, min(start + step, self.n_rows))
            yield rows, self.read(rows)

    def refuse_unknown(self, argument: str, names: list[str]) -> None:
        """Refuse names that are not columns; `argument` is what the user called them."""
        known = set(self.described)
        if names and self.columns is None:
            raise ValueError(
                f"'{argument}' is the column name {names[0]!r}, but {self.name} has no column "
                f"names. Pass `{argument}` as an array with one entry per row."
            )
        unknown = [name for name in names if name not in known]
        if unknown:
            place = "its obs" if self.is_annotated else self.name
            raise unknown_columns(argument, unknown, self.described, place)

    def refuse_empty(self) -> None:
        """Raise an error if there are no rows."""
        if self.n_rows == 0:
            raise ValueError(
                f"Found array with 0 sample(s) (shape=(0, {self.n_features})) while a minimum of 1 "
                f"is required: {self.name} is empty."
            )

    def refuse_extremes(self, largest: float = LARGEST) -> None:
        """Refuse columns with infinite values, or values above the largest that can be used."""
        size = np.zeros(self.n_features)
        for _, chunk in self.chunks():
            size = np.maximum(size, sizes(chunk))
        refuse_extremes(self.name, self.labels, size, largest)

    def output(self, width: int | None = None) -> Array:
        """Return an empty array for a result with these rows, and these or so many columns."""
        if self._is_frame:
            single = all(dtype == nw.Float32 for dtype in self._dtypes())
        else:
            single = self._data.dtype == np.float32
        width = self.n_features if width is None else width
        return np.empty((self.n_rows, width), np.float32 if single else np.float64)

    def rebuild(
        self,
        values: Array,
        names: Sequence[str] | None = None,
        are_mapped: bool = True,
        depends: Callable[[Array], Array] | None = None,
    ) -> Any:
        """Put an array into the kind of container that this table came in, keeping its index.

        Null stays null in containers that distinguish it from NaN. `depends` says which mapped
        values depend on the marked ones; by default each depends on that in its own place.
        Variables of AnnData that are not mapped stay, or are zero if the values are errors
        (`are_mapped` is False).
        """
        if self.is_annotated:
            if names is not None and len(names) != self.n_features:
                return type(self.native.obs)(values, columns=names, index=self.native.obs_names)

            def fill(result: Array, rows: slice, chunk: Array) -> None:
                result[:] = values[rows]

            return self.refilled(fill, are_mapped)
        if not self._is_frame:
            return values
        names = self.labels if names is None else list(names)
        same = len(names) == self.n_features
        dtypes = [values.dtype] * len(names)
        if same:
            single = np.dtype(np.float32)
            dtypes = [single if d == nw.Float32 else values.dtype for d in self._dtypes()]
        native = self._data.to_native()
        columns = {
            name: values[:, j].astype(dtype, copy=False)
            for j, (name, dtype) in enumerate(zip(names, dtypes))
        }
        if nw.dependencies.is_pandas_dataframe(native):
            # one block is faster than columns
            block = values.astype(dtypes[0], copy=False) if len(set(dtypes)) == 1 else columns
            frame = type(native)(block, columns=names, index=native.index)
            if nullable := _nullable_types(native, self.positions, names if same else ()):
                frame = frame.astype(nullable)
            if self.columns is None and same:
                frame.columns = self.native.columns[list(self.positions)]
            return frame
        made = nw.from_dict(columns, backend=self._data.implementation)
        own = [self._data[:, position] for position in self.positions]
        if any(column.null_count() for column in own):  # null rather than NaN
            nulls = np.column_stack([column.is_null().to_numpy() for column in own])
            lost = (nulls if depends is None else depends(nulls)) & np.isnan(values)
            for name, mark in ((n, mark) for n, mark in zip(names, lost.T) if mark.any()):
                mask = nw.new_series("null", ~mark, backend=made.implementation)
                made = made.with_columns(nw.when(mask).then(made[name]).alias(name))
        return made.to_native()

    def replaced(self, values: Array) -> "Table":
        """Return the table with other values of its features, and all other columns."""
        if self.is_annotated:
            obs = self.about.to_native()
            obs, var = obs.set_axis(obs.index.astype(str)), type(obs)(index=self.labels)
            return Table(type(self.native)(values, obs=obs, var=var), self.name)
        if not self._is_frame:
            return Table(values, self.name)
        native, backend = self._data.to_native(), self._data.implementation
        if nw.dependencies.is_pandas_dataframe(native):  # one block is faster than columns
            block = type(native)(values, columns=self.labels)
            frame = native.drop(columns=block.columns).reset_index(drop=True).join(block)
            frame = frame[list(native.columns)].set_axis(native.index)
            return Table(frame, self.name)._with(self.positions)
        made = {
            name: nw.new_series(name, column, backend=backend)
            for name, column in zip(self.labels, values.T)
        }  # `with_columns` of pyarrow copies all columns for each of them
        frame = self._data.select(*[made.get(name, nw.col(name)) for name in self._data.columns])
        return Table(frame.to_native(), self.name)._with(self.positions)

    def refilled(self, fill: Callable[[Array, slice, Array], None], are_mapped: bool) -> Any:
        """Return AnnData with new values of the selected variables, as sparse as X; see `rebuild`.

        `fill(result, rows, chunk)` writes new values of a chunk of rows into an array, so that a
        sparse result is never dense as a whole.
        """
        kind, turned = getattr(self.native.X, "format", None), np.zeros(2)
        dtype = self.output(0).dtype
        was_negative, parts = False, list[Any]()
        is_matrix = self.is_slow or sparse.isspmatrix(self._data)
        rows_of: Any = sparse.csr_matrix if is_matrix else sparse.csr_array
        for rows, block in self._with(range(self.width)).chunks():
            old = block[:, self.positions]
            fill(new := np.empty(old.shape, dtype), rows, old)
            below = new < 0
            turned += (below & (old > 0)).sum(), (below & (old == 0)).sum()
            was_negative |= bool((old < 0).any())
            part = block.astype(dtype) if are_mapped else np.zeros(block.shape, dtype)
            part[:, self.positions] = new
            parts.append(part if kind is None else rows_of(part))
        positive, zero = turned / max(self.n_rows * self.n_features, 1)
        if are_mapped and turned.any() and not was_negative:
            text = "Of the mapped values, {positive:.1%} are negative that were positive, and "
            text += "{zero:.1%} that were zero."
            warn("negative-values", text, UserWarning, positive=positive, zero=zero)
        X = np.concatenate(parts) if kind is None else sparse.vstack(parts, format=kind)
        data = self.native  # read before a file is closed
        result = data.to_memory() if data.isbacked or self.is_slow else data.copy()
        result.X = X
        return result

    def read(self, rows: Any) -> Array:
        """Return rows of the selected columns as float64; numbers of rows must increase."""
        if not self._is_frame:
            block = self._data[rows]
            block = block.compute() if hasattr(block, "compute") else block  # lazy
            if self.positions != range(self.width):
                block = block[:, np.asarray(self.positions)]
            block = block.toarray() if hasattr(block, "toarray") else block
            return block if block.dtype == np.float64 else block.astype(np.float64)
        whole = self.positions == range(self.width)
        part = self._data[rows] if whole else self._data[rows, list(self.positions)]
        values = part.to_numpy()
        if values.dtype.kind not in "fiub":  # nullable columns
            values = np.column_stack([_floats(column) for column in part.iter_columns()])
        return np.asarray(values, dtype=np.float64)

    def vectors(self) -> list[Array]:
        """Return the selected columns as float64, without copying what is so already."""
        if not self._is_frame:
            return list(self.read(slice(0, self.n_rows)).T)
        return [_floats(self._data[:, position]) for position in self.positions]

    def _dtypes(self) -> list[nw.dtypes.DType]:
        """Return the types of the selected columns of a data frame."""
        return [self._types[position] for position in self.positions]

    def find(self, features: Any, reserved: set[str]) -> Sequence[int]:
        """Return the places of columns that are given by name, pattern or position."""
        if isinstance(features, range):
            return features
        is_list = np.iterable(features) and not isinstance(features, str)
        chosen: dict[int, None] = {}
        missing: list[Any] = []
        for want in features if is_list else [features]:
            if isinstance(want, str):
                if self.columns is None:
                    raise ValueError(
                        f"'features' names {want!r}, but {self.name} has no column names; "
                        "give column numbers instead."
                    )
                # an exact name first: columns may be called 'a[1]' or 'x*'
                hits = [want] if want in self._place else fnmatch.filter(self.labels, want)
                hits = [hit for hit in hits if hit == want or hit not in reserved]
                chosen.update({self._place[hit]: None for hit in hits})
                missing += [] if hits else [want]
            elif isinstance(want, int | np.integer) and not isinstance(want, bool):
                if not -self.n_features <= want < self.n_features:
                    raise ValueError(
                        f"'features' asks for column {want}, but {self.name} has "
                        f"{self.n_features} columns."
                    )
                chosen[int(want) % self.n_features] = None
            else:
                text = "{@'features'} must list column names, patterns or numbers. Got {want!r}."
                raise refusal(text, want=want)
        if missing:
            raise unknown_columns("features", missing, self.columns or [], self.name)
        both = [self.columns[i] for i in chosen if self.columns and self.columns[i] in reserved]
        if both:
            text = "{@'features'} lists {both}, which is also the domain, a confounder or the "
            text += "groups. A column is one or the other."
            raise refusal(text, both=listing(both))
        return list(chosen)


def _floats(column: nw.Series[Any]) -> Array:
    """Return a column as float64, NaN where it has no value."""
    values = column.to_numpy()
    if values.dtype.kind not in "fiub":  # null among whole numbers, decimals, or no value at all
        values = column.cast(nw.Float64).to_numpy()
    return np.asarray(values, dtype=np.float64)


def _nullable_types(native: Any, positions: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """Return the types of pandas that know null, by the names of columns that have one."""
    found = {}
    for position, name in zip(positions, names):
        kind = native.dtypes.iloc[position]
        if hasattr(kind, "pyarrow_dtype"):
            found[name] = "float[pyarrow]" if str(kind).startswith("float[") else "double[pyarrow]"
        elif hasattr(kind, "na_value") and hasattr(kind, "numpy_dtype"):
            found[name] = "Float32" if str(kind) == "Float32" else "Float64"
    return found


def as_narwhals(X: Any, eager_only: bool = True) -> Any:
    """Return a data frame or series wrapped by narwhals, None if it is neither."""
    if type(X) is np.ndarray:  # asked for at every door, and slow to find out
        return None
    try:
        return nw.from_native(X, eager_only=eager_only, allow_series=True)
    except TypeError:
        return None


def refuse_duplicates(X: Any, name: str, hint: str = "") -> None:
    """Refuse a data frame in which two columns have the same name."""
    names: Iterable[Any] = ()
    if nw.dependencies.is_pandas_dataframe(X):
        names = () if X.columns.is_unique else X.columns
    elif nw.dependencies.is_pyarrow_table(X):
        names = X.column_names
    twice = [column for column, times in Counter(names).items() if times > 1]
    if twice:
        raise ValueError(f"{name} has duplicate column names: {listing(twice)}.{hint}")


def _variables(data: Any, name: str) -> Any:
    """Return X of AnnData in a form that can be read by rows: dense, sparse, or in a file."""
    X, twice = data.X, [n for n, times in Counter(data.var_names).items() if times > 1]
    if X is None or twice:
        why = "it has no X; layers go through condokit.anndata.adapt(adata, layer=...)"
        if twice:
            why = f"var_names are not unique, {listing(twice)}; call adata.var_names_make_unique()"
        raise ValueError(f"The AnnData of {name} cannot be read: {why}.")
    if hasattr(X, "strides"):  # an array in memory
        return _as_array(X, name)
    if X.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold numbers, but the dtype of its X is {X.dtype}.")
    if getattr(X, "format", "csr") != "csr":  # of use to nobody by rows
        return (X.to_memory() if hasattr(X, "to_memory") else X).tocsr()
    return _StoredRows(X) if hasattr(X, "group") else X


class _StoredRows:
    """Rows of a sparse matrix in a file; anndata does not read them with every SciPy."""

    def __init__(self, X: Any) -> None:
        self.shape, self.dtype, self._group = X.shape, X.dtype, X.group
        self._ends, self.chunks = X.group["indptr"][:], None  # as of other data in files

    def __getitem__(self, rows: slice) -> Any:
        ends = self._ends[rows.start : rows.stop + 1]
        some = slice(int(ends[0]), int(ends[-1]))
        parts = self._group["data"][some], self._group["indices"][some], ends - ends[0]
        return sparse.csr_matrix(parts, shape=(len(ends) - 1, self.shape[1]))


def _as_frame(X: Any, name: str) -> nw.DataFrame[Any] | None:
    """Return a data frame as narwhals sees it, None for others; refuse lazy frames and series."""
    refuse_duplicates(X, name, " Rename them.")
    frame = as_narwhals(X, eager_only=False)
    if isinstance(frame, nw.LazyFrame):
        raise TypeError(f"{name} is a lazy frame; collect it first, for example with .collect().")
    if isinstance(frame, nw.Series):
        raise ValueError(
            f"Expected 2D array, got 1D array instead: {name} is a single column. Reshape your "
            "data: pass a data frame with one column."
        )
    return frame


def _as_array(X: Any, name: str) -> Array:
    """Return a two-dimensional array of numbers; refuse everything else with advice."""
    if hasattr(X, "tocsr") or hasattr(X, "todense"):
        raise TypeError(
            f"Sparse data was passed for {name}, but dense data is required. "
            "Convert it with '.toarray()': an offset would fill the zeros anyway."
        )
    if np.ma.isMaskedArray(X):
        X = np.ma.filled(X.astype(np.float64), np.nan)
    try:
        array = np.asarray(X)
    except ValueError as error:
        raise ValueError(f"{name} cannot be read as a table: {error}.") from None
    if array.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {array.ndim}D array instead (shape {array.shape}) for {name}. "
            "Reshape your data: samples are rows, features are columns."
        )
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} has dtype {array.dtype}.")
    if array.dtype.kind not in "fiubO":
        raise ValueError(
            f"{name} must hold numbers, but its dtype is {array.dtype}. Convert it first, for "
            "example with .astype(float)."
        )
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{name} must hold numbers: {error}.") from None
    return array


def _string_names(columns: list[Any], name: str) -> list[str] | None:
    """Return names of columns if these are text, None if they are numbers 0, 1, ..."""
    kinds = {isinstance(column, str) for column in columns}
    if kinds == {True, False}:
        raise TypeError(
            "Feature names are only supported if all input features have string names, but "
            f"{name} mixes strings with others. Convert them: X.columns = X.columns.astype(str)."
        )
    if kinds == {False} and columns != list(range(len(columns))):
        raise ValueError(
            f"The column names of {name} are not strings ({listing(columns)}), so columns cannot "
            "be found by name. Convert them: X.columns = X.columns.astype(str)."
        )
    return columns if kinds != {False} else None
