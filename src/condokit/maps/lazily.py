"""Maps of rows that are not in memory: expressions of engines, Dask blocks, Arrow batches."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np

from condokit.checks import Array, NeedsRows, refusal, unknown_columns
from condokit.data.blocks import Blocks
from condokit.data.links import LEAST_SHARE, MOST_SHARE, Link
from condokit.data.roles import is_reference_row
from condokit.data.tables import Table
from condokit.io.formats import arrow
from condokit.maps.formula import in_groups, write_outputs


def map_lazily(affine: Any, blocks: Blocks, reference: tuple[str, Any] | None = None) -> Any:
    """Return the same kind of lazy table with its features mapped; all other columns stay.

    `reference` is a column and a label: rows with this label are not mapped.
    """
    names = affine.feature_names
    if blocks.columns is None:
        if affine.n_features_in_ != blocks.width:
            raise ValueError(
                f"X has {blocks.width} features, but the map is expecting "
                f"{affine.n_features_in_} features as input."
            )
        chunks = blocks.native.chunks[0], (affine.shape[0],)
        kind = np.float32 if blocks.native.dtype == np.float32 else np.float64
        how = partial(_map_array, affine)
        return blocks.native.map_blocks(how, dtype=kind, chunks=chunks, meta=np.empty((0, 0), kind))
    if names is None:
        raise refusal("A map without names of features needs {@`X`} in memory: collect it first.")
    wanted = [*names, *([] if reference is None else [reference[0]])]
    if missing := [name for name in wanted if name not in blocks.columns]:
        raise unknown_columns("feature_names", missing, blocks.columns)
    if reference is not None and affine.has_own_outputs:
        raise ValueError("Rows cannot pass a map between different features as they are.")
    if blocks.lazy is None:
        return _mapped_batches(affine, blocks, reference)
    return _with_expressions(affine, blocks, reference).to_native()


def _map_array(affine: Any, block: Array) -> Array:
    """Return a block of a Dask array mapped."""
    return affine.apply(Table(block)) if len(block) else np.empty((0, affine.shape[0]), block.dtype)


def map_lazily_but(affine: Any, blocks: Blocks, domain: Any, labels: tuple[Any, Any]) -> Any:
    """Map rows that are not in memory, except those whose domain is the second label."""
    if domain is None:
        return map_lazily(affine, blocks)
    if blocks.columns is not None:
        _check_column("domain", domain)
        return map_lazily(affine, blocks, (domain, labels[1]))
    from dask import array

    shape = Table(np.broadcast_to(0.0, (blocks.n_rows or 0, blocks.width)))
    unchanged, old = is_reference_row(domain, shape, labels), blocks.native
    stays = array.from_array(unchanged[:, None], chunks=(old.chunks[0], 1))
    return array.where(stays, old, map_lazily(affine, blocks))


def _check_column(argument: str, value: Any) -> None:
    """Refuse labels of rows that are not in memory, unless a column has them."""
    if not isinstance(value, str):
        text = f"{{@'{argument}'}} must name a column of {{@`X`}}, which is not in memory. "
        raise refusal(text + "Got {got}.", got=type(value).__name__)


def _mapped_batches(affine: Any, blocks: Blocks, reference: tuple[str, Any] | None) -> Any:
    """Return a reader of Arrow that maps each batch when it is asked for."""
    pa = arrow()

    def moved(table: Any) -> Any:
        """Return a batch with its features mapped, except rows of the reference."""
        stays = None
        if reference is not None:
            labels = table.column(reference[0]).to_pylist()
            stays = np.array([label == reference[1] for label in labels], dtype=bool)
        return map_batch(affine, table, stays)

    def batches() -> Iterator[Any]:
        """Yield mapped batches."""
        for table in blocks:
            yield from moved(table).to_batches()

    empty = nw.from_native(blocks.first()).head(0).to_native()
    return pa.RecordBatchReader.from_batches(moved(empty).schema, batches())


def map_lazily_by(maps: Mapping[Any, Any], blocks: Blocks, batch: Any) -> Any:
    """Map the rows of each batch by its map; rows of other batches become null."""
    names = next(iter(maps.values())).feature_names
    if blocks.lazy is None or names is None:
        text = "Maps of batches need rows in memory, or a lazy frame with names of features."
        raise NeedsRows(text)
    _check_column("batch", batch)
    if missing := [name for name in (*names, batch) if name not in (blocks.columns or ())]:
        raise unknown_columns(
            "batch" if missing == [batch] else "feature_names", missing, blocks.columns or ()
        )
    frame = _Expressions(blocks.lazy, schema := blocks.schema or {})
    made: list[Any] = [nw.lit(None, nw.Float64)] * len(names)
    for label, affine in maps.items():
        mine, mapped = nw.col(batch) == label, frame.outputs(affine)
        made = [nw.when(mine).then(y).otherwise(other) for y, other in zip(mapped, made)]
    return frame.with_columns(made, [schema[name] for name in names], names, []).to_native()


def _with_expressions(
    affine: Any, blocks: Blocks, reference: tuple[str, Any] | None
) -> nw.LazyFrame[Any]:
    """Return the outputs as expressions of the engine; what is missing stays missing."""
    names, schema = affine.feature_names, blocks.schema or {}
    frame = _Expressions(blocks.lazy, schema)
    mapped = frame.outputs(affine)
    outputs = list(affine.outputs(names) or names)
    if reference is not None:
        stays = nw.col(reference[0]) == reference[1]
        olds = (nw.col(name).cast(nw.Float64) for name in names)
        mapped = [nw.when(stays).then(x).otherwise(y) for x, y in zip(olds, mapped)]
    single = nw.Float32 if all(schema[name] == nw.Float32 for name in names) else nw.Float64
    kinds = [single if affine.has_own_outputs else schema[name] for name in outputs]
    return frame.with_columns(mapped, kinds, outputs, [n for n in names if n not in outputs])


class _Expressions:
    """A lazy table, to which the outputs of maps are added as expressions."""

    def __init__(self, lazy: Any, schema: Mapping[str, Any]) -> None:
        self.lazy, self.known = lazy, set(schema)
        self.spare: list[str] = []  # columns made on the way

    def outputs(self, affine: Any) -> list[Any]:
        """Return the outputs of a map."""
        columns = [nw.col(name).cast(nw.Float64) for name in affine.feature_names]
        return write_outputs(affine, columns, self)

    def with_columns(
        self, values: Sequence[Any], kinds: Sequence[Any], names: Sequence[str], gone: list[str]
    ) -> nw.LazyFrame[Any]:
        """Return the table with values by name, in single precision where columns have it."""
        made = [
            (y.cast(nw.Float32) if kind == nw.Float32 else y).alias(name)
            for y, kind, name in zip(values, kinds, names)
        ]
        lazy, gone = self.lazy.with_columns(*made), [*gone, *self.spare]
        return lazy.drop(*gone) if gone else lazy

    def step(self, letter: str, values: list[Any], beside: Sequence[Any] = ()) -> list[Any]:
        """Add columns for the factors of a low-rank map, on which every output depends."""
        if letter != "t":
            return values
        made = []
        for k, value in enumerate(values):
            name = f"factor {k}"
            while name in self.known:
                name = f"_{name}"
            self.known.add(name)
            made.append(value.alias(name))
            self.spare.append(name)
        self.lazy = self.lazy.with_columns(*made)
        return [nw.col(name) for name in self.spare[-len(values) :]]

    def product(self, weight: float, x: Any) -> Any:
        """Return a column times a number."""
        return x * weight

    def nothing(self, x: Any) -> list[Any]:
        """Return terms of a sum that is zero, and missing where the column is."""
        return [x * 0.0]

    def sum(self, terms: list[Any], offset: float | None = None) -> Any:
        """Return a sum of terms, nested in groups."""
        total = reduce(add, in_groups(terms, partial(reduce, add)))
        return total if offset is None else total + offset

    def curve(self, x: Any, knots: Array, lines: list[tuple[float, float, float]]) -> Any:
        """Return pieces of lines, each for values below its knot."""
        *below, curve = (value + (x - knot) * slope for knot, value, slope in lines)
        for knot, line in zip(knots[::-1], below[::-1]):
            curve = nw.when(x < float(knot)).then(line).otherwise(curve)
        return curve

    def link(self, x: Any, link: Link) -> Any:
        """Return a column on the scale of its link, missing outside the link's domain."""
        if link is None:
            return x
        if link == "log":
            return nw.when(x > 0).then(x).log()
        if link == "logit":
            inner = nw.when((x > 0) & (x < 1)).then(x)
            return inner.log() - (1.0 - inner).log()
        return nw.when(x >= 0).then(x) ** float(link)

    def unlink(self, y: Any, link: Link) -> Any:
        """Return a column back from the scale of its link."""
        if link is None:
            return y
        if link == "log":
            return y.exp()
        if link == "logit":
            return (1.0 / (1.0 + (y * -1.0).exp())).clip(LEAST_SHARE, MOST_SHARE)
        return y.clip(0.0) ** (1 / float(link))


def map_batch(affine: Any, batch: Any, as_is: Array | None = None) -> Any:
    """Return an Arrow table with its features mapped, save in rows that `as_is` marks."""
    # Other columns, the order of columns and null values stay; a map between different features
    # puts its outputs last.
    pa, columns = arrow(), dict(zip(batch.column_names, batch.columns))
    names = list(affine.feature_names or columns)
    outputs = list(affine.outputs(names) or names)
    if affine.kind == "diagonal" and affine.links is None:
        parts = zip(names, affine.scale, affine.offset)
        mapped = [_scaled(columns[name], scale, offset, name) for name, scale, offset in parts]
    else:
        table = matched(affine, batch)
        values = affine.apply(table) if batch.num_rows else np.empty((0, len(outputs)))
        mapped = [pa.array(column, from_pandas=True) for column in values.T]
    if as_is is not None and as_is.any():
        if outputs != names:
            raise ValueError("Rows cannot pass a map between different features as they are.")
        kept = [columns[name].cast(new.type) for name, new in zip(names, mapped)]
        mapped = [pa.compute.if_else(as_is, old, new) for old, new in zip(kept, mapped)]
    if outputs != names:
        columns = {name: column for name, column in columns.items() if name not in names}
    return with_columns(batch.select(list(columns)), outputs, mapped)


def with_columns(batch: Any, names: list[str], values: list[Any]) -> Any:
    """Return an Arrow table with other values of some columns, or with these as well."""
    pa = arrow()
    fields = {field.name: field for field in batch.schema}
    columns = dict(zip(batch.column_names, batch.columns))
    for name, column in zip(names, values):
        single = name in fields and pa.types.is_float32(fields[name].type)
        columns[name] = column.cast(pa.float32()) if single else column
    made = [
        fields[name].with_type(column.type) if name in fields else (name, column.type)
        for name, column in columns.items()
    ]
    return pa.table(list(columns.values()), pa.schema(made, metadata=batch.schema.metadata))


def matched(affine: Any, batch: Any) -> Table:
    """Return the features of a map in a table."""
    return Table(batch).match(affine.feature_names, affine.n_features_in_, "the map")


def _scaled(column: Any, scale: float, offset: float, name: str) -> Any:
    """Return scale x + offset of a column of numbers, in its precision if it is floating."""
    pa = arrow()
    if column.type not in (pa.float64(), pa.float32()):
        column = column.cast(pa.float64(), safe=False)  # rounds whole numbers beyond 2 ** 53
    chunks = column.chunks or [pa.array([], column.type)]
    array = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    x = array.to_numpy(zero_copy_only=False)
    y = np.multiply(x, scale, dtype=np.float64)
    y += offset
    y = y.astype(x.dtype, copy=False)
    if not np.isfinite(y.sum()) and np.isinf(y).any():
        given = np.isinf(x).any()
        what = "has infinite values" if given else "becomes too large for its precision"
        raise ValueError(f"Column {name!r} {what}.")
    gaps = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(y, type=array.type, mask=gaps)
