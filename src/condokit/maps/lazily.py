"""Maps of rows that are not in memory: expressions of engines, blocks of Dask, batches of Arrow."""

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

_MOST_TERMS = 30  # of a sum that is not split, since engines bound the depth of expressions


def map_lazily(affine: Any, blocks: Blocks, reference: tuple[str, Any] | None = None) -> Any:
    """Return the same kind of lazy table with its features mapped; all other columns stay.

    Rows with a label of `reference`, a column and a label, stay as they are.
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
    return affine.apply(Table(block)) if len(block) else np.empty((0, affine.shape[0]), block.dtype)


def map_lazily_but(affine: Any, blocks: Blocks, domain: Any, labels: tuple[Any, Any]) -> Any:
    """Map rows that are not in memory, but for those whose domain is the second of the labels."""
    if domain is None:
        return map_lazily(affine, blocks)
    if blocks.columns is not None:
        if not isinstance(domain, str):
            text = "{@'domain'} must name a column of {@`X`}, which is not in memory. Got {got}."
            raise refusal(text, got=type(domain).__name__)
        return map_lazily(affine, blocks, (domain, labels[1]))
    shape = Table(np.broadcast_to(0.0, (blocks.n_rows or 0, blocks.width)))
    unchanged = is_reference_row(domain, shape, labels)
    return _keep_rows(blocks.native, map_lazily(affine, blocks), unchanged)


def _keep_rows(old: Any, new: Any, unchanged: Array) -> Any:
    """Return a mapped array of Dask in which some rows are as they were."""
    from dask import array

    return array.where(array.from_array(unchanged[:, None], chunks=(old.chunks[0], 1)), old, new)


def _mapped_batches(affine: Any, blocks: Blocks, reference: tuple[str, Any] | None) -> Any:
    """Return a reader of Arrow that maps each batch when it is asked for."""
    pa = arrow()

    def moved(table: Any) -> Any:
        stays = None
        if reference is not None:
            labels = table.column(reference[0]).to_pylist()
            stays = np.array([label == reference[1] for label in labels], dtype=bool)
        return map_batch(affine, table, stays)

    def batches() -> Iterator[Any]:
        for table in blocks:
            yield from moved(table).to_batches()

    empty = nw.from_native(blocks.first()).head(0).to_native()
    return pa.RecordBatchReader.from_batches(moved(empty).schema, batches())


def map_lazily_by(maps: Mapping[Any, Any], blocks: Blocks, batch: Any) -> Any:
    """Map the rows of every batch by a map of its own; rows of other batches become null."""
    names = next(iter(maps.values())).feature_names
    if blocks.lazy is None or names is None:
        text = "Maps of batches need rows in memory, or a lazy frame with names of features."
        raise NeedsRows(text)
    if not isinstance(batch, str):
        text = "{@'batch'} must name a column of {@`X`}, which is not in memory. Got {got}."
        raise refusal(text, got=type(batch).__name__)
    if missing := [name for name in (*names, batch) if name not in (blocks.columns or ())]:
        raise unknown_columns(
            "batch" if missing == [batch] else "feature_names", missing, blocks.columns or ()
        )
    lazy, schema, spare = blocks.lazy, blocks.schema or {}, list[str]()
    made: list[Any] = [nw.lit(None, nw.Float64)] * len(names)
    for label, affine in maps.items():
        lazy, mapped, extra = _expressions(affine, lazy, {**schema, **dict.fromkeys(spare)})
        spare += extra
        mine = nw.col(batch) == label
        made = [nw.when(mine).then(y).otherwise(other) for y, other in zip(mapped, made)]
    kinds = [schema[name] for name in names]
    lazy = lazy.with_columns(*_named(made, kinds, names))
    return (lazy.drop(*spare) if spare else lazy).to_native()


def _with_expressions(
    affine: Any, blocks: Blocks, reference: tuple[str, Any] | None
) -> nw.LazyFrame[Any]:
    """Return the outputs as expressions of the engine; what is missing stays missing."""
    names, schema = affine.feature_names, blocks.schema or {}
    lazy, mapped, spare = _expressions(affine, blocks.lazy, schema)
    outputs = list(affine.outputs(names) or names)
    if reference is not None:
        stays = nw.col(reference[0]) == reference[1]
        olds = (nw.col(name).cast(nw.Float64) for name in names)
        mapped = [nw.when(stays).then(x).otherwise(y) for x, y in zip(olds, mapped)]
    single = nw.Float32 if all(schema[name] == nw.Float32 for name in names) else nw.Float64
    kinds = [single if affine.has_own_outputs else schema[name] for name in outputs]
    lazy = lazy.with_columns(*_named(mapped, kinds, outputs))
    gone = [name for name in names if name not in outputs] + spare
    return lazy.drop(*gone) if gone else lazy


def _named(values: Sequence[Any], kinds: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Return expressions with names, in single precision where columns have it."""
    return [
        (y.cast(nw.Float32) if kind == nw.Float32 else y).alias(name)
        for y, kind, name in zip(values, kinds, names)
    ]


def _expressions(affine: Any, lazy: Any, schema: Any) -> tuple[Any, list[Any], list[str]]:
    """Return a lazy table, the outputs of a map as its expressions, and columns made for these."""
    names = affine.feature_names
    links = affine.links or [None] * len(names)
    columns = [_linked(nw.col(name).cast(nw.Float64), link) for name, link in zip(names, links)]
    spare: list[str] = []
    if affine.kind == "monotone":
        mapped = [_curve(x, *c) for x, c in zip(columns, zip(*affine.arrays().values()))]
    elif affine.kind == "low-rank":
        spare = [_free(f"factor {k}", schema) for k in range(affine.right.shape[1])]
        sums = [_sum(_products(w, columns)) for w in affine.right.T]
        lazy = lazy.with_columns(*(total.alias(name) for total, name in zip(sums, spare)))
        terms = [
            _products([scale, *left], [x, *map(nw.col, spare)])
            for x, scale, left in zip(columns, affine.scale, affine.left)
        ]
        mapped = [_sum(own) + b for own, b in zip(terms, affine.offset.tolist())]
    elif affine.kind == "diagonal":
        parts = zip(columns, affine.scale.tolist(), affine.offset.tolist())
        mapped = [x * scale + offset for x, scale, offset in parts]
    else:
        sums = [_sum(_products(row, columns)) for row in affine.scale]
        mapped = [total + b for total, b in zip(sums, affine.offset.tolist())]
    if not affine.has_own_outputs:
        mapped = [_unlinked(y, link) for y, link in zip(mapped, links)]
    return lazy, mapped, spare


def _products(weights: Any, columns: Sequence[Any]) -> list[Any]:
    """Return the terms of a sum that are not zero."""
    return [x * float(w) for w, x in zip(weights, columns) if w != 0] or [columns[0] * 0.0]


def _sum(terms: list[Any]) -> Any:
    while len(terms) > _MOST_TERMS:
        groups = [terms[i : i + _MOST_TERMS] for i in range(0, len(terms), _MOST_TERMS)]
        terms = [reduce(add, group) for group in groups]
    return reduce(add, terms)


def _free(name: str, known: Any) -> str:
    """Return a name that no column has."""
    while name in known:
        name = f"_{name}"
    return name


def _curve(x: Any, knots: Array, values: Array, ends: Array) -> Any:
    """Return lines between knots, each from the knot where it begins."""
    slopes = [ends[0], *(np.diff(values) / np.diff(knots)), ends[1]]
    starts = zip([values[0], *values], [knots[0], *knots], slopes)
    lines = [float(value) + (x - float(knot)) * float(slope) for value, knot, slope in starts]
    curve = lines[-1]
    for knot, line in zip(knots[::-1], lines[-2::-1]):
        curve = nw.when(x < float(knot)).then(line).otherwise(curve)
    return curve


def _linked(x: Any, link: Link) -> Any:
    """Return a column on the scale of its link, null where that does not admit a value."""
    if link is None:
        return x
    if link == "log":
        return nw.when(x > 0).then(x).log()
    if link == "logit":
        inner = nw.when((x > 0) & (x < 1)).then(x)
        return inner.log() - (1.0 - inner).log()
    return nw.when(x >= 0).then(x) ** float(link)


def _unlinked(y: Any, link: Link) -> Any:
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
