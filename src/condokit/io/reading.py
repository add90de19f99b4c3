"""Tables from files, whole or in batches."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from condokit.checks import FileError
from condokit.io.extras import arrow
from condokit.io.formats import (
    DELIMITERS,
    Content,
    PathLike,
    Request,
    format_of,
    select,
    shown,
    worded,
)
from condokit.io.h5ad import read_h5ad
from condokit.io.text import Text, TextOptions

if TYPE_CHECKING:
    import pyarrow as pa


def read_table(
    path: PathLike,
    *,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    **text: Unpack[TextOptions],
) -> pa.Table:
    """Read a table into memory.

    Parameters
    ----------
    path : str or path
        A file, whose suffix tells the format (.csv, .tsv, .txt, each also with .gz; .parquet or
        .pq; .feather or .arrow; .h5ad), or "-" for standard input.
    format : str, default=None
        The format if the suffix does not tell; "csv" for standard input.
    columns : list of str, default=None
        The columns to read, in this order; by default all.
    delimiter : str, default=None
        What separates the columns of text. By default a tab in .tsv, else found among comma, tab,
        semicolon and bar.
    na_values : list of str, default=None
        What stands for a missing value in text. By default `MISSING`, of which "." and "-" count
        in columns of numbers only.
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
    with _scan(path, format, text, columns, sys.maxsize) as scan:
        tables = list(scan)
    return arrow().concat_tables(tables)


def scan_table(
    path: PathLike,
    *,
    format: str | None = None,
    batch_rows: int | None = None,
    **text: Unpack[TextOptions],
) -> Scan:
    """Open a table to be read in batches, in constant memory; parameters as in `read_table`.

    `batch_rows` is the most rows of a batch, by default such that it takes about 16 MB. Parquet
    from standard input is held in memory, since its index comes last.
    """
    return _scan(path, format, text, None, batch_rows)


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
    batch_rows : int
        The most rows of a batch.
    """

    def __init__(self, request: Request, format: str, content: Content) -> None:
        self.path, self.format, self._files = request.path, format, request.files
        self.schema, self.n_rows, self._tables = content
        self.names = list(self.schema.names)
        self.batch_rows = request.rows_of_batch(len(self.names))

    def __iter__(self) -> Iterator[pa.Table]:
        while True:
            with worded(self.path):
                table = next(self._tables, None)
            if table is None:
                return
            for start in range(0, len(table), self.batch_rows):
                yield table.slice(start, self.batch_rows)

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
    text: TextOptions,
    columns: Sequence[str] | None,
    batch_rows: int | None,
) -> Scan:
    kind, zipped = format_of(path, format)
    arrow()
    request = Request(path, ExitStack(), columns, batch_rows)
    try:
        with worded(path):
            if not request.is_piped and (Path(path).is_file() or not Path(path).exists()):
                open(path, "rb").close()  # for Python's own errors
            readers = {"parquet": _parquet, "arrow": _ipc, "h5ad": read_h5ad}
            readers |= dict.fromkeys(DELIMITERS, Text(path, kind, zipped, **text).open)
            content = readers[kind](request)
            if content.n_rows == 0:
                raise FileError(f"{shown(path)} has no rows.")
            return Scan(request, kind, content)
    except BaseException:
        request.files.close()
        raise


def _parquet(request: Request) -> Content:
    from pyarrow import parquet

    pa, whole = arrow(), request.is_whole
    piped = request.is_piped
    source = pa.BufferReader(sys.stdin.buffer.read()) if piped else pa.OSFile(str(request.path))
    # pre-buffering would read row groups far ahead of the batches
    options = {"pre_buffer": whole, "buffer_size": 0 if whole else 1 << 20}
    file = parquet.ParquetFile(request.files.enter_context(source), **options)
    schema, columns = file.schema_arrow, request.columns
    names = select(request.path, schema.names, columns)
    if whole:
        tables = iter([file.read(columns).select(names)])
    else:
        batches = file.iter_batches(request.rows_of_batch(len(names)), columns=columns)
        tables = (pa.Table.from_batches([batch]).select(names) for batch in batches)
    return Content(_chosen(schema, names), file.metadata.num_rows, tables)


def _ipc(request: Request) -> Content:
    pa = arrow()
    if request.is_piped:
        piped: Any = sys.stdin.buffer
        is_file = piped.peek(6)[:6] == b"ARROW1"
        source = pa.BufferReader(piped.read()) if is_file else piped
    else:
        source = request.files.enter_context(pa.OSFile(str(request.path)))
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
    file = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
    names = select(request.path, file.schema.names, request.columns)
    batches = map(file.get_batch, range(file.num_record_batches)) if is_file else file
    tables = (pa.Table.from_batches([batch]).select(names) for batch in batches)
    return Content(_chosen(file.schema, names), None, tables)


def _chosen(schema: pa.Schema, names: list[str]) -> pa.Schema:
    """Return the schema of some columns, which keeps what it knows besides."""
    return arrow().schema([schema.field(name) for name in names], metadata=schema.metadata)
