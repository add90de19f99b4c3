"""Tables from files, whole or in batches."""

from __future__ import annotations

import csv
import glob
import hashlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from condokit.checks import FileError
from condokit.io.formats import Content, PathLike, Request, arrow, format_of, need, shown, worded
from condokit.io.h5ad import read_h5ad
from condokit.io.text import Text

if TYPE_CHECKING:
    import pyarrow as pa


def files_of(path: PathLike) -> list[str]:
    """Return the files of a path: all in a folder, or all that match a pattern, or the file."""
    name = str(path)
    if os.path.isdir(name):
        name = os.path.join(glob.escape(name), "*.*")
    elif os.path.exists(name) or not glob.has_magic(name):
        return [name]
    found = sorted(file for file in glob.glob(name, recursive=True) if os.path.isfile(file))
    if not found:
        there = "is a folder without files" if os.path.isdir(path) else "matches no file"
        raise FileError(f"{path} {there}.")
    return found


def read_table(path: PathLike, *, format: str | None = None, **text: Any) -> pa.Table:
    """Read a table of at least one row into memory; tables of several files are concatenated.

    The format is that of the file's suffix, unless `format` names another (as "csv" or "tsv.gz");
    "-" is standard input, by default CSV. `text` are the options of `Text`.
    """
    tables = []
    for file in files_of(path):
        with Scan(file, format, sys.maxsize, text) as scan:
            tables += list(scan)
            if tables[1:] and set(tables[-1].column_names) != set(tables[0].column_names):
                raise FileError(f"{file} has other columns than {files_of(path)[0]}.")
    if not tables:
        raise FileError(f"{shown(path)} has no rows.")
    with worded(path):
        return arrow().concat_tables(tables, promote_options="permissive")


def scan_table(
    path: PathLike,
    *,
    format: str | None = None,
    batch_rows: int | None = None,
    columns: Sequence[str] | None = None,
    **text: Any,
) -> Scan:
    """Open a table to be read in batches, in constant memory; parameters as in `read_table`.

    `batch_rows` is the largest number of rows of a batch; by default a batch has about 16 MB. Of a
    Parquet file, only `columns` are read. Parquet from standard input is held in memory, since its
    index is at the end.
    """
    first, *others = files_of(path)
    return Scan(first, format, batch_rows, text, columns, others)


class Scan:
    """A table that is read once, from top to bottom: iterate for `pyarrow.Table` batches.

    `others` are more files with the same columns, which are read after the first.
    """

    def __init__(
        self,
        path: PathLike,
        format: str | None,
        batch_rows: int | None,
        text: Any,
        columns: Sequence[str] | None = None,
        others: Sequence[str] = (),
    ) -> None:
        self.path, self._files = path, ExitStack()
        self.current = path  # the file that is being read
        self._others = [partial(Scan, file, format, batch_rows, text, columns) for file in others]
        self.format, zipped = format_of(path, format)
        arrow()
        piped, whole = str(path) == "-", batch_rows == sys.maxsize
        request = Request(path, self._files, batch_rows, piped, whole, columns)
        readers = {"parquet": _parquet, "arrow": _ipc, "h5ad": read_h5ad}
        if self.format == "xlsx":  # it is turned into CSV, so that types are inferred as for text
            text = {**text, "delimiter": ",", "decimal": ".", "encoding": "utf-8"}
        read = readers.get(self.format, Text(self.format, zipped, **text).open)
        try:
            with worded(path):
                if not piped and (Path(path).is_file() or not Path(path).exists()):
                    open(path, "rb").close()  # raises Python's errors, which `worded` knows
                if self.format == "xlsx":
                    request = request._replace(content=_as_csv(path, piped))
                self.schema, n_rows, self._tables = read(request)
                self.names = list(self.schema.names)
                request.check(self.names)
                if n_rows == 0:  # None if it is not known before the end
                    raise FileError(f"{shown(path)} has no rows.")
        except BaseException:
            self._files.close()
            raise
        self._n_own, self.n_rows = n_rows, None if others else n_rows
        self.batch_rows = request.rows_of_batch(len(self.names))  # largest number in a batch

    def __iter__(self) -> Iterator[pa.Table]:
        n_read = 0
        while True:
            with worded(self.path):
                table = next(self._tables, None)
            if table is None:
                break
            n_read += len(table)
            for start in range(0, len(table), self.batch_rows):
                yield table.slice(start, self.batch_rows)
        if self._n_own not in (None, n_read):
            raise FileError(f"{shown(self.path)} changed while it was read.")
        for opening in self._others:
            with opening() as scan:
                self.current = scan.path
                if scan.names != self.names:
                    raise FileError(f"{scan.path} has other columns than {self.path}.")
                for table in scan:
                    with worded(scan.path):
                        yield table if table.schema == self.schema else table.cast(self.schema)

    def close(self, *_: object) -> None:
        """Close the file; nothing can be read after that."""
        self._tables = iter(())
        self._files.close()

    def __enter__(self) -> Self:
        return self

    __exit__ = close


def sha256(path: PathLike) -> str:
    """Return the SHA-256 hash of a file, in hexadecimal."""
    with worded(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _as_csv(path: PathLike, piped: bool) -> bytes:
    """Return the first sheet of an Excel file as CSV; formulas become their stored values."""
    openpyxl = need("openpyxl", "Excel files need the package openpyxl", "excel")
    place = io.BytesIO(sys.stdin.buffer.read()) if piped else path
    book = openpyxl.load_workbook(place, read_only=True, data_only=True)
    text = io.StringIO()
    rows = (["" if cell is None else cell for cell in row] for row in book.worksheets[0].values)
    csv.writer(text).writerows(row for row in rows if any(cell != "" for cell in row))
    book.close()
    return text.getvalue().encode()


def _parquet(request: Request) -> Content:
    """Open a Parquet file."""
    from pyarrow import parquet

    pa, whole, piped = arrow(), request.is_whole, request.is_piped
    source = pa.BufferReader(sys.stdin.buffer.read()) if piped else pa.OSFile(str(request.path))
    # pre-buffering would read row groups far ahead of the batches
    options = {"pre_buffer": whole, "buffer_size": 0 if whole else 1 << 20}
    file = parquet.ParquetFile(request.files.enter_context(source), **options)
    schema = file.schema_arrow
    if whole:
        tables = iter([file.read()])
    else:
        if request.columns is not None:
            wanted = [field for field in schema if field.name in request.columns]
            schema = pa.schema(wanted, schema.metadata)
        rows, names = request.rows_of_batch(len(schema)), request.columns
        batches = file.iter_batches(rows, columns=None if names is None else list(names))
        tables = (pa.Table.from_batches([batch]) for batch in batches)
    return _content(schema, file.metadata.num_rows, tables)


def _ipc(request: Request) -> Content:
    """Open an Arrow file or stream."""
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
    batches = map(file.get_batch, range(file.num_record_batches)) if is_file else file
    return _content(file.schema, None, (pa.Table.from_batches([b]) for b in batches))


def _content(schema: pa.Schema, n_rows: int | None, tables: Any) -> Content:
    """Return tables with string views cast to strings, as pyarrow supports views only in part."""
    pa = arrow()

    def plain(kind: Any) -> Any:
        if pa.types.is_dictionary(kind):
            return pa.dictionary(kind.index_type, plain(kind.value_type), kind.ordered)
        return pa.string() if kind == pa.string_view() else kind

    wanted = pa.schema([f.with_type(plain(f.type)) for f in schema], schema.metadata)
    return Content(wanted, n_rows, (t if t.schema == wanted else t.cast(wanted) for t in tables))
