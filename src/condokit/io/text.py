"""Delimited text as tables, parsed in blocks of whole rows.

Text has no types, so they come from the whole file: whole numbers are int64, or float64 if any row
has a fraction; a column that mixes numbers and text is text, and so is one of whole numbers that
would lose digits: padded codes such as 007, and numbers beyond int64. Columns may also be declared
numbers, or text that stays as it is written.
A file of more than one block is therefore read twice when it is streamed:
first for its types, refusing damaged rows before anything is computed, then for its batches.
Standard input is read once: its types come from the first block, and a later conflict is an error.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from condokit.checks import FileError
from condokit.io.formats import DELIMITERS, PathLike, arrow, select, shown

if TYPE_CHECKING:
    import pyarrow as pa

_Types = dict[str, Any]
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL", "None", ".", "-")
_DASHES = {".", "-"}  # of the default marks, those that are text in a text column
_BYTES = 1 << 24  # of text parsed at once
_SAMPLE = 1 << 20  # bytes of text from which the delimiter is guessed
_SAVE_IT = "Save the table to a file first, of which all rows are examined."
_WIDE = 1000  # columns from which one thread parses faster than several


class Text:
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
        numbers: Collection[str],
        texts: Collection[str | None] | None,
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
        self.numbers = frozenset(numbers)
        self.texts = None if texts is None else frozenset(texts)
        self.names: list[str] = []
        self.columns: list[str] = []

    def open(
        self, files: ExitStack, columns: Sequence[str] | None, whole: bool
    ) -> tuple[pa.Schema, int | None, Iterator[pa.Table]]:
        """Find the types; return them, the number of rows if it is known, and the tables."""
        pa = arrow()
        size = None if whole else _BYTES
        blocks = self.blocks(files, size)
        first, second = next(blocks, b""), next(blocks, None)
        types = self.examine(first, columns)
        table = self.infer(first, types, 0, 1)
        again: Iterable[bytes] = chain([first, second or b""], blocks)
        n_rows = len(table) if second is None else None
        if second is not None and str(self.path) != "-" and Path(self.path).is_file():
            n_rows, line = len(table), 1 + first.count(b"\n")
            for block in chain([second], blocks):
                n_rows += len(self.infer(block, types, n_rows, line))
                line += block.count(b"\n")
            again = self.blocks(files, size)
        # a column without any value has the type of measurements
        types = {n: pa.float64() if t == pa.null() else t for n, t in types.items()}
        schema = pa.schema(types.items())
        if second is not None:
            return schema, n_rows, self.parse_all(again, types)
        same = table.schema.equals(schema)
        return schema, n_rows, iter([table if same else table.cast(schema)])

    def blocks(self, files: ExitStack, size: int | None) -> Iterator[bytes]:
        """Yield the file in UTF-8, in pieces of about `size` bytes that end where a row ends."""
        if str(self.path) == "-":
            file: Any = sys.stdin.buffer
        else:
            file = files.enter_context(open(self.path, "rb"))  # noqa: SIM115
        if self.zipped or file.peek(2)[:2] == b"\x1f\x8b":
            file = gzip.GzipFile(fileobj=file)
        encoded = self.encoding.casefold().replace("_", "-") not in ("utf-8", "utf8", "utf-8-sig")
        if encoded:
            file = io.TextIOWrapper(file, self.encoding, newline="")
            files.callback(file.detach)
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
                    f"{shown(self.path)} is not UTF-8 ({byte}). "
                    f"Convert it, or give its encoding, perhaps {guess!r}."
                ) from None
        return block

    def examine(self, block: bytes, columns: Sequence[str] | None) -> _Types:
        """Learn delimiter and names, the types that were declared, and a guess at others."""
        pa = arrow()
        end = block.rfind(b"\n", 0, _SAMPLE) + 1
        sample = block[:end] if end and len(block) > _SAMPLE else block
        if not sample.strip(b"\r\n\xef\xbb\xbf"):
            raise FileError(f"{shown(self.path)} is empty.")
        self.delimiter = self.delimiter or _find_delimiter(sample, DELIMITERS[self.kind])
        self.names = self.parse(sample[: _end_of_first_row(sample)], {}, 0, 1).column_names
        self.columns = select(self.path, self.names, columns)
        texts = dict.fromkeys(filter(self.stays, self.columns), pa.string())
        fractions = dict.fromkeys(self.fractions(sample), pa.float64())
        return dict.fromkeys(self.columns, pa.null()) | fractions | texts

    def stays(self, name: str) -> bool:
        """Tell whether a column stays as it is written."""
        return name not in self.numbers if self.texts is None else name in self.texts

    def fractions(self, sample: bytes) -> list[str]:
        """Name the columns that begin with a fraction: to try all other types takes long."""
        number = re.compile(rf"[-+]?[0-9]*{re.escape(self.decimal)}[0-9]+(?:[eE][-+]?[0-9]+)?")
        rows = csv.reader(sample.decode("utf-8-sig").splitlines()[:2], delimiter=self.delimiter)
        with suppress(csv.Error, ValueError):  # rows over several lines, or other than Arrow's
            header, first = rows
            known = set(self.columns)
            pairs = zip(header, first, strict=True)
            return [name for name, x in pairs if name in known and number.fullmatch(x)]
        return []

    def codes(self, block: bytes, before: _Types, found: _Types, row: int, line: int) -> list[str]:
        """Name the columns of whole numbers that would lose digits as numbers."""
        pa = arrow()
        start = rb'[\r\n"' + re.escape(self.delimiter.encode()) + b"]"
        if not re.search(start + rb"[-+]?(?:0[0-9]|[0-9]{19})", b"\n" + block):
            return []
        kinds = {
            name: kind
            for name, kind in found.items()
            if name not in self.numbers
            and (kind == pa.int64() or (kind == pa.float64() and before[name] != kind))
        }
        if not kinds:
            return []
        texts = self.parse(block, found | dict.fromkeys(kinds, pa.string()), row, line)

        def some(column: Any, pattern: str) -> bool:
            matches = pa.compute.match_substring_regex(column, pattern)
            return bool(pa.compute.any(matches).as_py())

        columns = dict(zip(texts.column_names, texts.columns))
        return [
            name
            for name, kind in kinds.items()
            if (
                some(columns[name], "^[-+]?0[0-9]")
                if kind == pa.int64()
                else some(columns[name], "^[-+]?[0-9]{19,}$")
                and not some(columns[name], "[^-+0-9.]|[.].|[0-9]-")
            )
        ]

    def infer(self, block: bytes, types: _Types, row: int, line: int) -> pa.Table:
        """Parse a block, after widening the types as far as it needs."""
        pa = arrow()
        known = {name: kind for name, kind in types.items() if kind != pa.null()}
        try:
            table = self.parse(block, known, row, line)
        except _ConflictError:
            texts = {name: kind for name, kind in known.items() if kind == pa.string()}
            table = self.parse(block, texts, row, line)
        found = {f.name: _common_type(types[f.name], f.type) for f in table.schema}
        codes = self.codes(block, types, found, row, line)
        types.update(found | dict.fromkeys(codes, pa.string()))
        if any(types[field.name] != field.type for field in table.schema):
            table = self.parse(block, types, row, line)
        return table

    def parse_all(self, blocks: Iterable[bytes], types: _Types) -> Iterator[pa.Table]:
        """Yield the blocks as tables of known types."""
        row, line = 0, 1
        for block in blocks:
            table = self.parse(block, types, row, line)
            if str(self.path) == "-" and (late := self.codes(block, types, types, row, line)):
                raise FileError(
                    f"{shown(self.path)}: column {late[0]!r} began as numbers, but has padded "
                    f"codes such as 007 after row {row + 1:,}. {_SAVE_IT}"
                )
            yield table
            row, line = row + len(table), line + block.count(b"\n")

    def parse(self, block: bytes, types: _Types, row: int, line: int) -> pa.Table:
        """Parse one block, which begins after so many rows and with this line of the file."""
        from pyarrow import csv as arrow_csv

        pa = arrow()
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
                    f"{shown(self.path)}, line {at:,}: {found} fields instead of {wanted} "
                    f"(delimiter {self.delimiter!r})."
                ) from None
            conflict = re.search(r"column #(\d+): .* error to (\S+): (.*)", str(error), re.DOTALL)
            if conflict is None:
                raise
            column, kind, value = conflict.groups()
            rows = block.count(b"\n")
            raise _ConflictError(
                f"{shown(self.path)}: column {self.names[int(column)]!r} began as {kind}, but has "
                f"an {value[:60]} between rows {row + 1:,} and {row + rows:,}. {_SAVE_IT}"
            ) from None
        for place, field in enumerate(table.schema):
            if field.type == pa.string() and not self.stays(field.name):
                marked = pa.compute.is_in(table.column(place), pa.array(self.text_marks))
                if pa.compute.any(marked).as_py():
                    kept = pa.compute.if_else(marked, None, table.column(place))
                    table = table.set_column(place, field, kept)
        return table


class _ConflictError(FileError):
    """A value does not have the type of its column."""


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds the values of both, as the whole file would have had it."""
    pa = arrow()
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


def _end_of_first_row(block: bytes) -> int:
    """Return the place after the first row that is not blank."""
    end = len(block) - len(block.lstrip(b"\r\n"))
    while True:
        end = block.find(b"\n", end) + 1 or len(block)
        if end == len(block) or block.count(b'"', 0, end) % 2 == 0:
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
