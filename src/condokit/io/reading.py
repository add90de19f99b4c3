"""Tables from files, whole or in batches."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from condokit.checks import FileError
from condokit.io.formats import (
    DELIMITERS,
    PathLike,
    anndata,
    arrow,
    format_of,
    select,
    shown,
    worded,
)
from condokit.io.text import Text

if TYPE_CHECKING:
    import pyarrow as pa

OBSERVED = b"condokit.observed"  # in a schema's metadata: columns that describe rows, as JSON
_VALUES = 1 << 21  # per batch: 16 MB of float64


def read_table(
    path: PathLike,
    *,
    format: str | None = None,
    delimiter: str | None = None,
    na_values: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    encoding: str = "utf-8",
    decimal: str = ".",
    numbers: Collection[str] = (),
    texts: Collection[str | None] | None = (),
) -> pa.Table:
    """Read a table into memory.

    Parameters
    ----------
    path : str or path
        A file, whose suffix tells the format (.csv, .tsv, .txt, each also with .gz; .parquet or
        .pq; .feather or .arrow; .h5ad), or "-" for standard input.
    format : str, default=None
        The format if the suffix does not tell; "csv" for standard input.
    delimiter : str, default=None
        What separates the columns of text. By default a tab in .tsv, else found among comma, tab,
        semicolon and bar.
    na_values : list of str, default=None
        What stands for a missing value in text. By default `MISSING`, of which "." and "-" count
        in columns of numbers only.
    columns : list of str, default=None
        The columns to read, in this order; by default all.
    encoding : str, default="utf-8"
        The encoding of text.
    decimal : str, default="."
        The decimal mark of text.
    numbers : collection of str, default=()
        Columns of text that hold numbers, even if they look like codes.
    texts : collection of str or None, default=()
        Columns of text that stay as they are written, marks of missing values included. None: all
        that are not in `numbers`.

    Returns
    -------
    pyarrow.Table
        With at least one row.
    """
    text = (delimiter, na_values, encoding, decimal, numbers, texts)
    with _scan(path, format, text, sys.maxsize, columns, whole=True) as scan:
        tables = list(scan)
    return arrow().concat_tables(tables)


def scan_table(
    path: PathLike,
    *,
    format: str | None = None,
    delimiter: str | None = None,
    na_values: Sequence[str] | None = None,
    batch_rows: int | None = None,
    encoding: str = "utf-8",
    decimal: str = ".",
    numbers: Collection[str] = (),
    texts: Collection[str | None] | None = (),
) -> Scan:
    """Open a table to be read in batches, in constant memory; parameters as in `read_table`.

    `batch_rows` is the most rows of a batch, by default such that it takes about 16 MB. Parquet
    from standard input is held in memory, since its index comes last.
    """
    text = (delimiter, na_values, encoding, decimal, numbers, texts)
    return _scan(path, format, text, batch_rows)


class Scan:
    """A table that is read once, from top to bottom: iterate for `pyarrow.Table` batches.

    Attributes
    ----------
    names : list of str
    schema : pyarrow.Schema
        Of every batch.
    n_rows : int or None
        None if it is not known before the end.
    format : str
        "csv", "tsv", "txt", "parquet", "arrow" or "h5ad".
    """

    def __init__(self, path: PathLike, format: str, batch_rows: int | None) -> None:
        self.path = path
        self.format = format
        self.schema: pa.Schema = None
        self.n_rows: int | None = None
        self._batch_rows = batch_rows
        self._tables: Iterator[pa.Table] = iter(())
        self._files = ExitStack()

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    @property
    def batch_rows(self) -> int:
        """The most rows of a batch."""
        return self._batch_rows or max(_VALUES // max(len(self.schema), 1), 1)

    def __iter__(self) -> Iterator[pa.Table]:
        with worded(self.path):
            table = next(self._tables, None)
        while table is not None:
            step = self.batch_rows
            yield from (table.slice(start, step) for start in range(0, len(table), step))
            with worded(self.path):
                table = next(self._tables, None)

    def close(self) -> None:
        """Close the file; nothing can be read any more."""
        self._tables = iter(())
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sha256(path: PathLike) -> str:
    """Return the SHA-256 hash of a file, in hexadecimal."""
    with worded(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _scan(
    path: PathLike,
    format: str | None,
    text: tuple[Any, ...],
    batch_rows: int | None,
    columns: Sequence[str] | None = None,
    whole: bool = False,
) -> Scan:
    kind, zipped = format_of(path, format)
    arrow()
    scan = Scan(path, kind, batch_rows)
    try:
        with worded(path):
            if str(path) != "-" and (Path(path).is_file() or not Path(path).exists()):
                open(path, "rb").close()  # for Python's own errors
            if kind in DELIMITERS:
                parsed = Text(path, zipped, kind, *text).open(scan._files, columns, whole)
                scan.schema, scan.n_rows, scan._tables = parsed
            else:
                {"parquet": _parquet, "arrow": _ipc, "h5ad": _h5ad}[kind](scan, columns, whole)
            if scan.n_rows == 0:
                raise FileError(f"{shown(path)} has no rows.")
    except BaseException:
        scan.close()
        raise
    return scan


def _parquet(scan: Scan, columns: Sequence[str] | None, whole: bool) -> None:
    from pyarrow import parquet

    pa = arrow()
    piped = str(scan.path) == "-"
    source = pa.BufferReader(sys.stdin.buffer.read()) if piped else pa.OSFile(str(scan.path))
    # pre-buffering would read row groups far ahead of the batches
    options = {"pre_buffer": whole, "buffer_size": 0 if whole else 1 << 20}
    file = parquet.ParquetFile(scan._files.enter_context(source), **options)
    names = select(scan.path, file.schema_arrow.names, columns)
    scan.n_rows = file.metadata.num_rows
    scan.schema = _chosen(file.schema_arrow, names)
    if whole:
        scan._tables = iter([file.read(columns).select(names)])
    else:
        batches = file.iter_batches(scan.batch_rows, columns=columns)
        scan._tables = (pa.Table.from_batches([batch]).select(names) for batch in batches)


def _chosen(schema: pa.Schema, names: list[str]) -> pa.Schema:
    """Return the schema of some columns, which keeps what it knows besides."""
    return arrow().schema([schema.field(name) for name in names], metadata=schema.metadata)


def _ipc(scan: Scan, columns: Sequence[str] | None, whole: bool) -> None:
    pa = arrow()
    if str(scan.path) == "-":
        piped: Any = sys.stdin.buffer
        is_file = piped.peek(6)[:6] == b"ARROW1"
        source = pa.BufferReader(piped.read()) if is_file else piped
    else:
        source = scan._files.enter_context(pa.OSFile(str(scan.path)))
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
    file = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
    names = select(scan.path, file.schema.names, columns)
    scan.schema = _chosen(file.schema, names)
    batches = map(file.get_batch, range(file.num_record_batches)) if is_file else file
    scan._tables = (pa.Table.from_batches([batch]).select(names) for batch in batches)


def _h5ad(scan: Scan, columns: Sequence[str] | None, whole: bool) -> None:
    """Columns are the names of the observations, obs, and X, which may be sparse."""
    pa = arrow()
    if str(scan.path) == "-":
        raise FileError("An .h5ad file cannot be read from standard input; give its name.")
    data = anndata().read_h5ad(scan.path, backed="r")
    scan._files.callback(data.file.close)
    needed, memory = 8 * data.n_obs * data.n_vars, _memory()
    if whole and needed > memory / 2:
        raise FileError(
            f"{scan.path} would take {needed / 1e9:.1f} GB as a dense table, more than half of "
            f"the {memory / 1e9:.1f} GB of memory; select fewer variables."
        )
    X = data.X
    if hasattr(X, "to_memory"):  # sparse, and of use to nobody by rows on disk
        X = X.to_memory().tocsr()
    label = data.obs.index.name or "obs_names"
    obs = data.obs.rename_axis(label).reset_index()
    variables = [] if X is None else list(data.var_names)
    observed = [str(name) for name in obs.columns]
    names = select(scan.path, [*observed, *variables], columns)

    def part(start: int, stop: int) -> Any:
        table = pa.Table.from_pandas(obs.iloc[start:stop], preserve_index=False)
        arrays = list(table.columns)
        if X is not None:
            values = X[start:stop]
            values = values.toarray() if hasattr(values, "toarray") else values
            arrays += list(np.ascontiguousarray(values.T))
        table = pa.table(arrays, names=[*table.column_names, *variables])
        return table.select(names).replace_schema_metadata({OBSERVED: json.dumps(observed)})

    scan.schema, scan.n_rows = part(0, 0).schema, data.n_obs
    step = min(scan.batch_rows, data.n_obs)
    scan._tables = (part(start, start + step) for start in range(0, data.n_obs, step or 1))


def _memory() -> float:
    """Return the bytes of memory that the machine has."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return 16e9
