"""Maps applied to batches of Arrow tables, column by column where the map allows it."""

from __future__ import annotations

from typing import Any

import numpy as np

from condokit._validation import Array
from condokit.frames import Table
from condokit.maps import AffineMap


def map_batch(affine: AffineMap, batch: Any) -> Any:
    """Return an Arrow table with its features mapped.

    Other columns, the order of columns and null values stay; a map between different features
    puts its outputs last.
    """
    import pyarrow as pa

    place = {name: j for j, name in enumerate(batch.column_names)}
    names = list(affine.feature_names or batch.column_names)
    outputs = list(affine.outputs(names) or names)
    by_column = affine.kind == "diagonal" and affine.links is None
    if by_column and all(_is_floating(batch.schema.field(name).type) for name in names):
        mapped = [
            _scaled(batch.column(place[name]), scale, offset, name)
            for name, scale, offset in zip(names, affine.scale, affine.offset)
        ]
    else:
        table = Table(batch).match(affine.feature_names, affine.n_features_in_, "the map")
        values = affine.apply(table) if batch.num_rows else np.empty((0, len(outputs)))
        mapped = [pa.array(column, from_pandas=True) for column in values.T]
    columns = dict(zip(batch.column_names, batch.columns))
    if outputs != names:
        columns = {name: column for name, column in columns.items() if name not in names}
    columns.update(zip(outputs, mapped))
    return pa.table(columns)


def some_rows(affine: AffineMap, batch: Any, step: int) -> Array:
    """Return the features of every so manieth row, for a look at drift."""
    part = batch if step == 1 else batch.take(np.arange(0, batch.num_rows, step))
    table = Table(part).match(affine.feature_names, affine.n_features_in_, "the map")
    chunks = [chunk for _, chunk in table.chunks()]
    return np.concatenate(chunks) if chunks else np.empty((0, affine.n_features_in_))


def _is_floating(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_float64(kind) or types.is_float32(kind)


def _scaled(column: Any, scale: float, offset: float, name: str) -> Any:
    """Return scale x + offset of a floating column, in its precision."""
    import pyarrow as pa

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
