"""Tables in files: read whole, streamed in batches, and written so that no half file is ever seen.

Text has no types, so they come from the whole file: whole numbers are int64, or float64 if any row
has a fraction; a column that mixes numbers and text is text, and so is one whose first rows hold
padded codes such as 007. `scan_table` therefore reads a text file of more than one block
twice: first for its types, refusing damaged rows before anything is computed, then for its batches.
Standard input is read once: its types come from the first block, and a later conflict is an error.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import re
import signal
import sys
import tempfile
import threading
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from condokit._validation import FileError, did_you_mean, listing

if TYPE_CHECKING:
    import pyarrow as pa

PathLike = str | os.PathLike[str]
_Types = dict[str, Any]

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", ".", "-")
_DASHES = {".", "-"}  # of the default marks, those that are text in a text column
_TEXT = {"csv": ",", "tsv": "\t", "txt": "\t"}
_FORMATS = {name: name for name in (*_TEXT, "parquet", "arrow", "h5ad")}
_FORMATS |= {"pq": "parquet", "feather": "arrow"}
_BYTES = 1 << 24  # of text parsed at once
_SAMPLE = 1 << 20  # bytes of text from which delimiter and codes are guessed
_VALUES = 1 << 21  # per batch: 16 MB of float64
_ROW_GROUP = 1 << 26  # bytes gathered before they are written
_WIDE = 1000  # columns from which one thread parses faster than several


def read_table(
    path: PathLike,
    *,
    format: str | None = None,
    delimiter: str | None = None,
    na_values: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    encoding: str = "utf-8",
    decimal: str = ".",
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

    Returns
    -------
    pyarrow.Table
        With at least one row.
    """
    text = (delimiter, na_values, encoding, decimal)
    with _scan(path, format, text, sys.maxsize, columns, whole=True) as scan:
        tables = list(scan)
    return _arrow().concat_tables(tables)


def scan_table(
    path: PathLike,
    *,
    format: str | None = None,
    delimiter: str | None = None,
    na_values: Sequence[str] | None = None,
    batch_rows: int | None = None,
    encoding: str = "utf-8",
    decimal: str = ".",
) -> Scan:
    """Open a table to be read in batches, in constant memory; parameters as in `read_table`.

    `batch_rows` is the most rows of a batch, by default such that it takes about 16 MB. Parquet
    from standard input is held in memory, since its index comes last.
    """
    return _scan(path, format, (delimiter, na_values, encoding, decimal), batch_rows)


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
        with _worded(self.path):
            table = next(self._tables, None)
        while table is not None:
            step = self.batch_rows
            yield from (table.slice(start, step) for start in range(0, len(table), step))
            with _worded(self.path):
                table = next(self._tables, None)

    def close(self) -> None:
        """Close the file; nothing can be read any more."""
        self._tables = iter(())
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_writer(
    path: PathLike, *, format: str | None = None, force: bool = False
) -> AbstractContextManager[Writer]:
    """Open a table for writing in batches; the file appears when the `with` block ends well.

    Until then it has another name in the same folder, which is removed upon any exception,
    interrupt or SIGTERM.

    Parameters
    ----------
    path : str or path
        The file, whose suffix tells the format, or "-" for standard output.
    format : str, default=None
        The format if the suffix does not tell; "csv" for standard output.
    force : bool, default=False
        Replace an existing file. Otherwise it is refused at once.

    Returns
    -------
    context manager of a Writer
        Whose ``write(table)`` appends the rows of a `pyarrow.Table`.
    """
    kind, zipped = _format(path, format)
    if kind == "h5ad":
        raise FileError(f"{_shown(path)}: .h5ad can only be written from .h5ad; choose .parquet.")
    _arrow()
    check_target(path, force)
    return _writing(path, kind, zipped)


def write_text(path: PathLike, text: str, force: bool = False) -> None:
    """Write a text in UTF-8, whole or not at all; "-" is standard output."""
    write_bytes(path, text.encode(), force)


def write_bytes(path: PathLike, content: bytes, force: bool = False) -> None:
    """Write bytes, whole or not at all; "-" is standard output."""
    check_target(path, force)
    with _atomic(path) as file, _worded(path, "written"):
        file.write(content)


def replace_h5ad(
    path_in: PathLike, path_out: PathLike, table: pa.Table, force: bool = False
) -> None:
    """Copy an .h5ad file with new values in X; obs, var, uns and all else stay.

    Parameters
    ----------
    path_in, path_out : str or path
        The files; they may be the same if `force`.
    table : pyarrow.Table
        One row per observation, in order, and one column per variable; others are ignored.
    force : bool, default=False
        Replace an existing file.
    """
    anndata = _anndata()
    import h5py  # which anndata brings

    check_target(path_out, force)
    with _worded(path_in), ExitStack() as stack:
        data = anndata.read_h5ad(path_in, backed="r")
        stack.callback(data.file.close)
        names, shape, single = list(data.var_names), data.shape, data.X.dtype == np.float32
    _select(path_out, table.column_names, names)
    if len(table) != shape[0]:
        raise FileError(
            f"{path_out} cannot be written: the table has {len(table)} rows, but {path_in} has "
            f"{shape[0]} observations."
        )
    with _atomic(path_out) as file, _worded(path_out, "written"):
        values = np.empty(shape, np.float32 if single else np.float64)
        for place, name in enumerate(names):
            values[:, place] = table.column(name).to_numpy()
        with h5py.File(path_in) as old, h5py.File(file.name, "w") as new:
            new.attrs.update(old.attrs)
            for key in old:
                if key != "X":
                    old.copy(key, new)
            new.create_dataset("X", data=values)
            new["X"].attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})


def sha256(path: PathLike) -> str:
    """Return the SHA-256 hash of a file, in hexadecimal."""
    with _worded(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Reading


def _scan(
    path: PathLike,
    format: str | None,
    text: tuple[Any, ...],
    batch_rows: int | None,
    columns: Sequence[str] | None = None,
    whole: bool = False,
) -> Scan:
    kind, zipped = _format(path, format)
    _arrow()
    scan = Scan(path, kind, batch_rows)
    try:
        with _worded(path):
            if str(path) != "-" and (Path(path).is_file() or not Path(path).exists()):
                open(path, "rb").close()  # for Python's own errors
            if kind in _TEXT:
                _Text(path, zipped, kind, *text).open(scan, columns, whole)
            else:
                {"parquet": _parquet, "arrow": _ipc, "h5ad": _h5ad}[kind](scan, columns, whole)
            if scan.n_rows == 0:
                raise FileError(f"{_shown(path)} has no rows.")
    except BaseException:
        scan.close()
        raise
    return scan


def _parquet(scan: Scan, columns: Sequence[str] | None, whole: bool) -> None:
    from pyarrow import parquet

    pa = _arrow()
    piped = str(scan.path) == "-"
    source = pa.BufferReader(sys.stdin.buffer.read()) if piped else pa.OSFile(str(scan.path))
    # pre-buffering would read row groups far ahead of the batches
    options = {"pre_buffer": whole, "buffer_size": 0 if whole else 1 << 20}
    file = parquet.ParquetFile(scan._files.enter_context(source), **options)
    names = _select(scan.path, file.schema_arrow.names, columns)
    scan.n_rows = file.metadata.num_rows
    scan.schema = pa.schema([file.schema_arrow.field(name) for name in names])
    if whole:
        scan._tables = iter([file.read(columns).select(names)])
    else:
        batches = file.iter_batches(scan.batch_rows, columns=columns)
        scan._tables = (pa.Table.from_batches([batch]).select(names) for batch in batches)


def _ipc(scan: Scan, columns: Sequence[str] | None, whole: bool) -> None:
    pa = _arrow()
    if str(scan.path) == "-":
        piped: Any = sys.stdin.buffer
        is_file = piped.peek(6)[:6] == b"ARROW1"
        source = pa.BufferReader(piped.read()) if is_file else piped
    else:
        source = scan._files.enter_context(pa.OSFile(str(scan.path)))
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
    file = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
    names = _select(scan.path, file.schema.names, columns)
    scan.schema = pa.schema([file.schema.field(name) for name in names])
    batches = map(file.get_batch, range(file.num_record_batches)) if is_file else file
    scan._tables = (pa.Table.from_batches([batch]).select(names) for batch in batches)


def _h5ad(scan: Scan, columns: Sequence[str] | None, whole: bool) -> None:
    """Columns are the names of the observations, obs, and X, which may be sparse."""
    pa = _arrow()
    if str(scan.path) == "-":
        raise FileError("An .h5ad file cannot be read from standard input; give its name.")
    data = _anndata().read_h5ad(scan.path, backed="r")
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
    names = _select(scan.path, [*map(str, obs.columns), *variables], columns)

    def part(start: int, stop: int) -> Any:
        table = pa.Table.from_pandas(obs.iloc[start:stop], preserve_index=False)
        arrays = list(table.columns)
        if X is not None:
            values = X[start:stop]
            values = values.toarray() if hasattr(values, "toarray") else values
            arrays += list(np.ascontiguousarray(values.T))
        return pa.table(arrays, names=[*table.column_names, *variables]).select(names)

    scan.schema, scan.n_rows = part(0, 0).schema, data.n_obs
    step = min(scan.batch_rows, data.n_obs)
    scan._tables = (part(start, start + step) for start in range(0, data.n_obs, step or 1))


class _Text:
    """A file of delimited text, parsed in blocks of whole rows."""

    def __init__(
        self,
        path: PathLike,
        zipped: bool,
        kind: str,
        delimiter: str | None,
        na_values: Sequence[str] | None,
        encoding: str,
        decimal: str,
    ) -> None:
        self.path = path
        self.zipped = zipped
        self.kind = kind
        self.delimiter = delimiter or ("\t" if kind == "tsv" else "")
        self.marks = list(MISSING if na_values is None else na_values)
        dashes = _DASHES if na_values is None else set()
        self.text_marks = [mark for mark in self.marks if mark not in dashes]
        self.encoding = encoding
        self.decimal = decimal
        self.names: list[str] = []
        self.columns: list[str] = []

    def open(self, scan: Scan, columns: Sequence[str] | None, whole: bool) -> None:
        """Find the types, and let the scan yield the tables."""
        pa = _arrow()
        size = None if whole else _BYTES
        blocks = self.blocks(scan, size)
        first, second = next(blocks, b""), next(blocks, None)
        types = self.examine(first, columns)
        table = self.infer(first, types, 0, 1)
        again: Iterable[bytes] = chain([first, second or b""], blocks)
        if second is None:
            scan.n_rows = len(table)
        elif str(self.path) != "-" and Path(self.path).is_file():
            scan.n_rows, line = len(table), 1 + first.count(b"\n")
            for block in chain([second], blocks):
                scan.n_rows += len(self.infer(block, types, scan.n_rows, line))
                line += block.count(b"\n")
            again = self.blocks(scan, size)
        # a column without any value has the type of measurements
        types = {n: pa.float64() if t == pa.null() else t for n, t in types.items()}
        scan.schema = pa.schema(types.items())
        if second is not None:
            scan._tables = self.parse_all(again, types)
        else:
            same = table.schema.equals(scan.schema)
            scan._tables = iter([table if same else table.cast(scan.schema)])

    def blocks(self, scan: Scan, size: int | None) -> Iterator[bytes]:
        """Yield the file in UTF-8, in pieces of about `size` bytes that end where a row ends."""
        if str(self.path) == "-":
            file: Any = sys.stdin.buffer
        else:
            file = scan._files.enter_context(open(self.path, "rb"))  # noqa: SIM115
        if self.zipped or file.peek(2)[:2] == b"\x1f\x8b":
            file = gzip.GzipFile(fileobj=file)
        encoded = self.encoding.casefold().replace("_", "-") not in ("utf-8", "utf8", "utf-8-sig")
        if encoded:
            file = io.TextIOWrapper(file, self.encoding, newline="")
            scan._files.callback(file.detach)
        position, rest = 0, b""
        while piece := file.read(size):
            rest += piece.encode() if encoded else piece
            end = _end_of_row(rest) if size else len(rest)
            if not end and size and len(rest) > 8 * size:
                end = rest.rfind(b"\n") + 1  # a quote in the middle of a field, never closed
            if end:
                yield self.check(rest[:end], position)
                position, rest = position + end, rest[end:]
        if rest:
            yield self.check(rest, position)

    def check(self, block: bytes, position: int) -> bytes:
        """Refuse what is not UTF-8."""
        if not block.isascii():
            try:
                block.decode()
            except UnicodeDecodeError as error:
                byte = f"byte {position + error.start:,}: 0x{block[error.start]:02x}"
                guess = "utf-16" if block[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1"
                raise FileError(
                    f"{_shown(self.path)} is not UTF-8 ({byte}). "
                    f"Convert it, or give its encoding, perhaps {guess!r}."
                ) from None
        return block

    def examine(self, block: bytes, columns: Sequence[str] | None) -> _Types:
        """Learn delimiter and names from the first rows, and a guess at the types."""
        pa = _arrow()
        end = block.rfind(b"\n", 0, _SAMPLE) + 1
        sample = block[:end] if end and len(block) > _SAMPLE else block
        if not sample.strip(b"\r\n\xef\xbb\xbf"):
            raise FileError(f"{_shown(self.path)} is empty.")
        self.delimiter = self.delimiter or _find_delimiter(sample, _TEXT[self.kind])
        table = self.parse(sample, {}, 0, 1)
        self.columns = _select(self.path, table.column_names, columns)
        self.names = table.column_names
        types = {name: table.schema.field(name).type for name in self.columns}
        whole = [name for name, kind in types.items() if kind == pa.int64()]
        texts = self.parse(sample, dict.fromkeys(whole, pa.string()), 0, 1)
        for name in whole:
            codes = pa.compute.match_substring_regex(texts.column(name), r"^[-+]?0[0-9]")
            if pa.compute.any(codes).as_py():
                types[name] = pa.string()
        return types

    def infer(self, block: bytes, types: _Types, row: int, line: int) -> pa.Table:
        """Parse a block, after widening the types as far as it needs."""
        pa = _arrow()
        known = {name: kind for name, kind in types.items() if kind != pa.null()}
        try:
            table = self.parse(block, known, row, line)
        except _ConflictError:
            texts = {name: kind for name, kind in known.items() if kind == pa.string()}
            table = self.parse(block, texts, row, line)
        types.update({f.name: _common_type(types[f.name], f.type) for f in table.schema})
        if any(types[field.name] != field.type for field in table.schema):
            table = self.parse(block, types, row, line)
        return table

    def parse_all(self, blocks: Iterable[bytes], types: _Types) -> Iterator[pa.Table]:
        """Yield the blocks as tables of known types."""
        row, line = 0, 1
        for block in blocks:
            table = self.parse(block, types, row, line)
            yield table
            row, line = row + len(table), line + block.count(b"\n")

    def parse(self, block: bytes, types: _Types, row: int, line: int) -> pa.Table:
        """Parse one block, which begins after so many rows and with this line of the file."""
        from pyarrow import csv as arrow_csv

        pa = _arrow()
        ragged: list[Any] = []
        names = self.names if line > 1 else None
        if b"\n" not in block:
            block += b"\n"  # else names alone are taken for nothing

        def refuse(invalid: Any) -> str:
            ragged.append(invalid)
            return "error"

        def read(size: int) -> Any:
            threads = len(self.names) < _WIDE
            read = arrow_csv.ReadOptions(use_threads=threads, block_size=size, column_names=names)
            parse = arrow_csv.ParseOptions(
                delimiter=self.delimiter,
                newlines_in_values=b'"' in block,
                ignore_empty_lines=len(self.names) != 1,
                invalid_row_handler=refuse,
            )
            convert = arrow_csv.ConvertOptions(
                check_utf8=False,
                column_types=types,
                null_values=self.marks,
                decimal_point=self.decimal,
                include_columns=self.columns if self.columns != self.names else None,
            )
            return arrow_csv.read_csv(pa.BufferReader(block), read, parse, convert)

        whole = min(len(block), 1 << 30) + 1
        try:
            try:
                table = read(whole if len(self.names) >= _WIDE else min(whole, 1 << 22))
            except pa.ArrowInvalid as error:
                if "straddl" not in str(error):
                    raise
                table = read(whole)  # a row is longer than usual
        except pa.ArrowInvalid as error:
            if ragged:
                at, bad = min((line + _line_of(bad.text, block), i) for i, bad in enumerate(ragged))
                found, wanted = ragged[bad].actual_columns, ragged[bad].expected_columns
                raise FileError(
                    f"{_shown(self.path)}, line {at:,}: {found} fields instead of {wanted} "
                    f"(delimiter {self.delimiter!r})."
                ) from None
            conflict = re.search(r"column #(\d+): .* error to (\S+): (.*)", str(error), re.DOTALL)
            if conflict is None:
                raise
            column, kind, value = conflict.groups()
            rows = block.count(b"\n")
            raise _ConflictError(
                f"{_shown(self.path)}: column {self.names[int(column)]!r} began as {kind}, but has "
                f"an {value[:60]} between rows {row + 1:,} and {row + rows:,}. Save the table to a "
                "file first, of which all rows are examined."
            ) from None
        for place, field in enumerate(table.schema):
            if field.type == pa.string():
                marked = pa.compute.is_in(table.column(place), pa.array(self.text_marks))
                if pa.compute.any(marked).as_py():
                    kept = pa.compute.if_else(marked, None, table.column(place))
                    table = table.set_column(place, field, kept)
        return table


class _ConflictError(FileError):
    """A value does not have the type of its column."""


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds the values of both, as the whole file would have had it."""
    pa = _arrow()
    if pa.null() in (one, other) or one == other:
        return one if other == pa.null() else other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    times = [pa.date32(), pa.timestamp("s"), pa.timestamp("ns")]
    if one in times and other in times:
        return times[max(times.index(one), times.index(other))]
    return pa.string()


def _end_of_row(block: bytes) -> int:
    """Return the place after the last line that ends outside quotes, or 0."""
    end = block.rfind(b"\n") + 1
    quotes = block.count(b'"', 0, end)
    while end and quotes % 2:
        before = block.rfind(b"\n", 0, end - 1) + 1
        quotes -= block.count(b'"', before, end)
        end = before
    return end


def _line_of(row: str, block: bytes) -> int:
    """Return how many lines of the block come before a row."""
    found = re.search(rb"(?:^|[\r\n])(%s)(?:[\r\n]|$)" % re.escape(row.encode()), block)
    return block.count(b"\n", 0, found.start(1)) if found else 0


def _find_delimiter(sample: bytes, default: str) -> str:
    """Return what divides the first lines into equally many fields, and most of them."""
    lines = sample.decode("utf-8-sig").splitlines()[:6]
    best, most = default, 1
    for delimiter in (default, *(set(",\t;|") - {default})):
        with suppress(csv.Error):  # a field of more than 128 kB
            counts = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
            if counts and min(counts) == max(counts) > most:
                best, most = delimiter, counts[0]
    return best


def _select(path: PathLike, names: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    """Return the wanted names, having refused duplicates and unknown ones."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise FileError(f"{_shown(path)} has duplicate column names: {listing(twice)}.")
    known = set(names)
    unknown = [name for name in columns or () if name not in known]
    if unknown:
        hint = did_you_mean(unknown[0], names)
        raise FileError(f"{_shown(path)} has no column {listing(unknown)}.{hint}")
    return list(names if columns is None else columns)


# Writing


class Writer:
    """Takes the batches of one table; see `open_writer`."""

    def __init__(self, file: IO[bytes], path: PathLike, format: str) -> None:
        self.path = path
        self.format = format
        self._file = file
        self._sink: Any = None
        self._schema: pa.Schema = None
        self._waiting: list[pa.Table] = []
        self._size = 0
        self._levels: dict[int, pa.Array] = {}

    def write(self, table: pa.Table) -> None:
        """Append rows; every table must have the columns of the first."""
        with _worded(self.path, "written"):
            if self._sink is None:
                self._schema = table.schema
                self._sink = self._start()
            if table.column_names != self._schema.names:
                raise FileError(f"{_shown(self.path)}: the columns changed between batches.")
            same = table.schema.equals(self._schema)
            self._waiting.append(table if same else table.cast(self._schema))
            self._size += table.nbytes
            if self._size >= _ROW_GROUP:
                self._flush()

    def finish(self) -> None:
        """Write what waits, and whatever ends the format."""
        with _worded(self.path, "written"):
            if self._sink is None:
                raise FileError(f"{_shown(self.path)}: there was no table to write.")
            if self._waiting:
                self._flush()
            self._sink.close()

    def abandon(self) -> None:
        """Close without regard to errors."""
        with suppress(Exception):
            if self._sink is not None:
                self._sink.close()

    def _start(self) -> Any:
        pa = _arrow()
        if self.format == "parquet":
            from pyarrow import parquet

            # to look for repeated values among measurements only costs time
            coded = [f.name for f in self._schema if not pa.types.is_floating(f.type)]
            return parquet.ParquetWriter(self._file, self._schema, use_dictionary=coded)
        if self.format == "arrow":
            options = pa.ipc.IpcWriteOptions(compression="lz4", emit_dictionary_deltas=True)
            new = pa.ipc.new_stream if str(self.path) == "-" else pa.ipc.new_file
            return new(self._file, self._schema, options=options)
        from pyarrow import csv as arrow_csv

        delimiter = _TEXT[self.format]
        header = io.StringIO()
        csv.writer(header, delimiter=delimiter, lineterminator="\n").writerow(self._schema.names)
        self._file.write(header.getvalue().encode())
        self._schema = pa.schema([(f.name, _plain(f.type)) for f in self._schema])
        options = arrow_csv.WriteOptions(include_header=False, delimiter=delimiter)
        return arrow_csv.CSVWriter(self._file, self._schema, write_options=options)

    def _flush(self) -> None:
        pa = _arrow()
        table = pa.concat_tables(self._waiting)
        self._waiting, self._size = [], 0
        if self.format != "arrow":
            self._sink.write_table(table, len(table) or None)
            return
        for place, field in enumerate(self._schema):
            if pa.types.is_dictionary(field.type):
                table = table.set_column(place, field, self._extend(place, table.column(place)))
        self._sink.write_table(table)

    def _extend(self, place: int, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Let a dictionary begin with that of the rows before: an Arrow file only adds to it."""
        pa = _arrow()
        if place in self._levels:
            none = pa.array([], column.type.index_type)
            before = pa.DictionaryArray.from_arrays(
                none, self._levels[place], ordered=column.type.ordered
            )
            column = pa.chunked_array([before, *column.chunks])
        column = column.unify_dictionaries()
        if column.num_chunks:
            self._levels[place] = column.chunk(0).dictionary
        return column


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type as which text is written."""
    types = _arrow().types
    return kind.value_type if types.is_dictionary(kind) else kind


@contextmanager
def _writing(path: PathLike, kind: str, zipped: bool) -> Iterator[Writer]:
    with _atomic(path) as file:
        # no name and no time, so that equal tables give equal files
        packed = gzip.GzipFile("", "wb", 6, file, mtime=0) if zipped else None
        writer = Writer(packed or file, path, kind)  # type: ignore[arg-type]
        try:
            yield writer
            writer.finish()
            with _worded(path, "written"):
                if packed:
                    packed.close()
        except BaseException:
            writer.abandon()
            raise


@contextmanager
def _atomic(path: PathLike) -> Iterator[IO[bytes]]:
    """Open a file that takes its name when all is written; a pipe or device is written at once."""
    if str(path) == "-" or (Path(path).exists() and not Path(path).is_file()):
        with ExitStack() as stack:
            file = sys.stdout.buffer
            if str(path) != "-":
                with _worded(path, "written"):
                    file = open(path, "wb")  # noqa: SIM115
                stack.callback(_close, file)
            yield file
            with _worded(path, "written"):
                file.flush()
        return
    path = Path(os.path.realpath(path))  # a link stays a link
    with _worded(path, "written"):
        handle, temporary = tempfile.mkstemp(".part", f".{path.name}.", path.parent)
        os.close(handle)
        file = open(temporary, "wb")  # noqa: SIM115
    try:
        with _terminable():
            yield file
            with _worded(path, "written"):
                umask = os.umask(0)
                os.umask(umask)
                os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes the file private
                file.flush()
                os.fsync(file.fileno())
                file.close()
                os.replace(temporary, path)
    except BaseException:
        _close(file)
        Path(temporary).unlink(missing_ok=True)
        raise


def _close(file: IO[bytes]) -> None:
    with suppress(OSError):
        file.close()


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the program as an exception does, so that it can clean up."""
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    )
    if ours:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def check_target(path: PathLike, force: bool) -> None:
    """Refuse a place that cannot be written, before anything is computed."""
    if str(path) == "-":
        return
    path = Path(path)
    if path.is_dir():
        raise FileError(f"{path} is a folder, not a file name.")
    if not path.parent.is_dir():
        raise FileError(f"{path} cannot be written: there is no folder {path.parent}.")
    if path.is_file() and not force:
        raise FileError(f"{path} exists; use --force to replace it.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise FileError(f"{path} cannot be written: permission denied.")


# Words


def _shown(path: PathLike, task: str = "read") -> str:
    stream = "Standard input" if task == "read" else "Standard output"
    return stream if str(path) == "-" else str(path)


def _format(path: PathLike, format: str | None) -> tuple[str, bool]:
    """Return the format, and whether it is compressed."""
    name = format or ("csv" if str(path) == "-" else Path(path).name)
    stem = name.casefold().removesuffix(".gz")
    kind, zipped = _FORMATS.get(stem.rpartition(".")[2], ""), stem != name.casefold()
    if not kind or (zipped and kind not in _TEXT):
        raise FileError(
            f"{_shown(path)}: the format of {name!r} is not known. Known are .csv, .tsv, .txt "
            "(each also .gz), .parquet, .pq, .feather, .arrow and .h5ad."
        )
    return kind, zipped


@contextmanager
def _worded(path: PathLike, task: str = "read") -> Iterator[None]:
    """Turn whatever goes wrong with a file into one line for the user."""
    shown = _shown(path, task)
    try:
        yield
    except (FileError, ModuleNotFoundError):
        raise
    except FileNotFoundError as error:
        folder = Path(path).parent
        if not folder.is_dir():
            raise FileError(f"{shown} does not exist: there is no folder {folder}.") from error
        hint = did_you_mean(Path(path).name, os.listdir(folder))
        raise FileError(f"{shown} does not exist.{hint}") from error
    except IsADirectoryError as error:
        raise FileError(f"{shown} is a folder, not a file.") from error
    except (EOFError, zlib.error) as error:
        raise FileError(f"{shown} is damaged or cut short: {error}.".replace("..", ".")) from error
    except BrokenPipeError as error:
        if str(path) == "-":  # else Python complains again when it flushes
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise FileError(f"{shown} was closed by its reader.") from error
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        said = os.strerror(number).lower() if number else str(error) or type(error).__name__
        line = next(iter(said.splitlines()), "").rstrip(".")[:300]
        raise FileError(f"{shown} cannot be {task}: {line}.") from error


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.compute
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "Files need pyarrow: install condokit with the extra 'files', condokit[files]."
        ) from None
    return pyarrow


def _anndata() -> Any:
    try:
        import anndata
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "An .h5ad file needs anndata: install condokit with the extra 'anndata', "
            "condokit[anndata]."
        ) from None
    return anndata


def _memory() -> float:
    """Return the bytes of memory that the machine has."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return 16e9
