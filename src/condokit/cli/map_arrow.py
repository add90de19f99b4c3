"""Maps applied to batches of Arrow tables, column by column where the map allows it."""

from __future__ import annotations

from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.tables import Table
from condokit.io.extras import arrow
from condokit.maps.affine import AffineMap

pa = arrow()


def map_batch(affine: AffineMap, batch: Any, as_is: Array | None = None) -> Any:
    """Return an Arrow table with its features mapped, save in rows that `as_is` marks.

    Other columns, the order of columns and null values stay; a map between different features
    puts its outputs last.
    """
    fields = {field.name: field for field in batch.schema}
    columns = dict(zip(batch.column_names, batch.columns))
    names = list(affine.feature_names or columns)
    outputs = list(affine.outputs(names) or names)
    if affine.kind == "diagonal" and affine.links is None:
        mapped = [
            _scaled(columns[name], scale, offset, name)
            for name, scale, offset in zip(names, affine.scale, affine.offset)
        ]
    else:
        table = Table(batch).match(affine.feature_names, affine.n_features_in_, "the map")
        values = affine.apply(table) if batch.num_rows else np.empty((0, len(outputs)))
        mapped = [pa.array(column, from_pandas=True) for column in values.T]
    if as_is is not None and as_is.any():
        if outputs != names:
            raise ValueError("Rows cannot pass a map between different features as they are.")
        kept = [columns[name].cast(new.type) for name, new in zip(names, mapped)]
        mapped = [pa.compute.if_else(as_is, old, new) for old, new in zip(kept, mapped)]
    if outputs != names:
        columns = {name: column for name, column in columns.items() if name not in names}
    for name, column in zip(outputs, mapped):
        single = name in fields and pa.types.is_float32(fields[name].type)
        columns[name] = column.cast(pa.float32()) if single else column
    schema = pa.schema(
        [
            fields[name].with_type(column.type) if name in fields else (name, column.type)
            for name, column in columns.items()
        ],
        metadata=batch.schema.metadata,
    )
    return pa.table(list(columns.values()), schema=schema)


def some_rows(affine: AffineMap, batch: Any, step: int) -> Array:
    """Return the features of every so manieth row, for a look at drift."""
    part = batch if step == 1 else batch.take(np.arange(0, batch.num_rows, step))
    table = Table(part).match(affine.feature_names, affine.n_features_in_, "the map")
    chunks = [chunk for _, chunk in table.chunks()]
    return np.concatenate(chunks) if chunks else np.empty((0, affine.n_features_in_))


def _scaled(column: Any, scale: float, offset: float, name: str) -> Any:
    """Return scale x + offset of a column of numbers, in its precision if it is floating."""
    if not (pa.types.is_float64(column.type) or pa.types.is_float32(column.type)):
        column = column.cast(pa.float64())
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(array, pa.ChunkedArray):  # no rows at all
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    x = array.to_numpy(zero_copy_only=False)
    y = np.multiply(x, scale, dtype=np.float64)
    y += offset
    y = y.astype(x.dtype, copy=False)
    if not np.isfinite(y.sum()) and np.isinf(y).any():
        count = int(np.isinf(x).sum())
        what = f"has {count} infinite values" if count else "becomes too large for its precision"
        raise ValueError(f"Column {name!r} {what}.")
    gaps = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(y, type=array.type, mask=gaps)
