"""Writes tables, text and bytes to files, completely or not at all."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from condokit.checks import FileError
from condokit.io.atomic import whole_file
from condokit.io.formats import DELIMITERS, PathLike, arrow, exists, format_of, shown, worded

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_GROUP = 1 << 26  # bytes gathered before they are written
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")  # how cells begin that spreadsheets compute


def open_writer(
    path: PathLike, *, format: str | None = None, force: bool = False
) -> AbstractContextManager[Writer]:
    """Open a table for writing in batches; the file appears if the `with` block has no error.

    `path` and `format` are as in `read_table`; an existing file is an error unless `force`. The
    method ``write(table)`` of the result appends the rows of a `pyarrow.Table`.
    """
    kind, zipped = written_format(path, format)
    arrow()
    check_target(path, force)
    return _writing(path, kind, zipped, force)


def written_format(path: PathLike, format: str | None) -> tuple[str, bool]:
    """Return the format of an output, and whether it is compressed; some can only be read."""
    kind, zipped = format_of(path, format)
    if kind == "h5ad":
        raise FileError(f"{shown(path)}: .h5ad can only be written from .h5ad; choose .parquet.")
    if kind == "xlsx":
        raise FileError(f"{shown(path)}: .xlsx is read, but not written; choose .csv or .parquet.")
    return kind, zipped


@contextmanager
def _writing(path: PathLike, kind: str, zipped: bool, force: bool) -> Iterator[Writer]:
    """Write a table to a temporary file, which gets its name at the end."""
    with opened(path, force) as file:
        # gzip without name and time, so that equal tables give equal files
        packed = gzip.GzipFile("", "wb", 6, file, mtime=0) if zipped else None
        writer = Writer(packed or file, path, kind)
        try:
            yield writer
            writer.finish()
            with worded(path, "written"):
                if packed:
                    packed.close()
        except BaseException:
            with suppress(Exception):
                writer._sink.close()
            with suppress(Exception):  # closed here, or its errors would appear at collection
                if packed:
                    packed.close()
            raise


def write_files(contents: Mapping[Any, bytes], force: bool = False) -> None:
    """Write several files, each completely or not at all; see `together`."""
    with together(contents, force):
        pass


@contextmanager
def together(contents: Mapping[Any, bytes], force: bool = False) -> Iterator[None]:
    """Write files that get their names when the `with` block has ended without error.

    They are renamed one right after another, the first of `contents` last. "-" is standard output.
    """
    with ExitStack() as stack:
        for path in (path for path in contents if str(path) != "-"):
            check_target(path, force)
            file = stack.enter_context(opened(path, force))
            with worded(path, "written"):
                file.write(contents[path])
        yield
        if "-" in contents:
            with opened("-") as file, worded("-", "written"):
                file.write(contents["-"])


def spreadsheet(columns: Mapping[str, Any]) -> bytes:
    """Return a table as CSV for people, in which no cell is a formula for a spreadsheet.

    Text that would be one has a quote before it.
    """
    text, rows = io.StringIO(), [columns, *zip(*columns.values())]
    odd = lambda cell: isinstance(cell, str) and cell.startswith(_FORMULAS)  # noqa: E731
    cells = [[f"'{cell}" if odd(cell) else cell for cell in row] for row in rows]
    csv.writer(text, lineterminator="\n").writerows(cells)
    return text.getvalue().encode()


def check_target(path: PathLike, force: bool) -> None:
    """Raise an error, before anything is computed, if a file cannot be written."""
    if str(path) == "-":
        return
    if not str(path):
        raise FileError("An output has an empty name.")
    path = Path(path)
    if path.is_dir():
        raise FileError(f"{path} is a folder, not a file name.")
    if not path.parent.is_dir():
        raise FileError(f"{path} cannot be written: there is no folder {path.parent}.")
    if path.is_file() and not force:
        raise exists(str(path))
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise FileError(f"{path} cannot be written: permission denied.")


class Writer:
    """Writes the batches of one table; see `open_writer`."""

    def __init__(self, file: Any, path: PathLike, format: str) -> None:
        self.path, self.format, self._file = path, format, file
        self._sink: Any = None
        self._schema: pa.Schema = None
        self._waiting: list[pa.Table] = []
        self._size = 0
        self._levels: dict[int, pa.Array] = {}

    def write(self, table: pa.Table) -> None:
        """Append rows; every table must have the columns of the first."""
        with worded(self.path, "written"):
            if self._sink is None:
                self._schema = table.schema
                self._sink = self._start()
            if table.column_names != self._schema.names:
                raise FileError(f"{shown(self.path)}: the columns changed between batches.")
            same = table.schema.equals(self._schema)
            self._waiting.append(table if same else table.cast(self._schema))
            self._size += table.nbytes
            if self._size >= _ROW_GROUP:
                self.flush()

    def finish(self) -> None:
        """Write the rows that are still in memory, and the end of the file."""
        with worded(self.path, "written"):
            if self._sink is None:
                raise FileError(f"{shown(self.path)}: there was no table to write.")
            self.flush()
            self._sink.close()

    def _start(self) -> Any:
        """Return the object that writes tables in the format."""
        pa = arrow()
        if self.format == "parquet":
            from pyarrow import parquet

            # a dictionary of repeated values would only cost time for measurements
            coded = [f.name for f in self._schema if not pa.types.is_floating(f.type)]
            return parquet.ParquetWriter(self._file, self._schema, use_dictionary=coded)
        if self.format == "arrow":
            options = pa.ipc.IpcWriteOptions(compression="lz4", emit_dictionary_deltas=True)
            new = pa.ipc.new_stream if str(self.path) == "-" else pa.ipc.new_file
            return new(self._file, self._schema, options=options)
        delimiter = DELIMITERS[self.format]
        text = codecs.getwriter("utf-8")(self._file)
        csv.writer(text, delimiter=delimiter, lineterminator="\n").writerow(self._schema.names)
        coded = pa.types.is_dictionary
        kinds = [f.type.value_type if coded(f.type) else f.type for f in self._schema]
        self._schema = pa.schema(zip(self._schema.names, kinds))
        return _Lines(self._file, delimiter)

    def flush(self) -> None:
        """Write the rows that are still in memory, as one table."""
        if not self._waiting:
            return
        pa = arrow()
        with worded(self.path, "written"):
            table = pa.concat_tables(self._waiting)
            self._waiting, self._size = [], 0
            if self.format == "arrow":
                for place, field in enumerate(self._schema):
                    if pa.types.is_dictionary(field.type):
                        longer = self._extend(place, table.column(place))
                        table = table.set_column(place, field, longer)
            self._sink.write_table(table, None if self.format == "arrow" else len(table) or None)

    def _extend(self, place: int, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Extend the dictionary of earlier batches: an Arrow file can only add to it."""
        pa = arrow()
        if place in self._levels:
            kind, levels = column.type, self._levels[place]
            none = pa.array([], kind.index_type)
            before = pa.DictionaryArray.from_arrays(none, levels, ordered=kind.ordered)
            column = pa.chunked_array([before, *column.chunks])
        column = column.unify_dictionaries()
        if column.num_chunks:
            self._levels[place] = column.chunk(0).dictionary
        return column


class _Lines(NamedTuple):
    """Writes tables as text, with quotes only in tables that need them."""

    file: IO[bytes]
    delimiter: str

    def write_table(self, table: pa.Table, _: int | None) -> None:
        from pyarrow import csv as arrow_csv

        compute, mark = arrow().compute, self.delimiter
        special = f'[{mark}"\r\n]'
        texts = [c for c in table.columns if str(c.type) in ("string", "large_string")]
        found = (compute.any(compute.match_substring_regex(c, special)).as_py() for c in texts)
        style = "needed" if any(found) else "none"
        options = arrow_csv.WriteOptions(include_header=False, delimiter=mark, quoting_style=style)
        arrow_csv.write_csv(table, self.file, options)

    def close(self) -> None:
        """Do nothing: the caller, who opened the file, closes it."""


@contextmanager
def opened(path: PathLike, force: bool = True) -> Iterator[IO[bytes]]:
    """Open a file, or standard output, with errors of one line; see `whole_file`."""
    written = partial(worded, path, "written")
    if str(path) != "-":
        with whole_file(path, written, force) as file:
            yield file
        return
    if sys.stdout is None:
        raise FileError("Standard output is closed.")
    yield sys.stdout.buffer
    with written():
        sys.stdout.buffer.flush()
