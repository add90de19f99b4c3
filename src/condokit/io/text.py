"""Delimited text as tables, parsed in blocks of whole rows.

Text has no types, so they come from the whole file: whole numbers are int64, or float64 if any row
has a fraction; a column that mixes numbers and text is text, and so is one of whole numbers that
would lose digits: padded codes such as 007, and numbers beyond int64. Columns may also be declared
numbers, or text that stays as it is written.
A file of more than one block is therefore read twice when it is streamed:
first for its types, refusing damaged rows before anything is computed, then for its batches.
Standard input is read once: its types come from the first block, and a later conflict is an error.
pyarrow parses and types each block; alone it would read 007 as 7, "." in text as missing, round
whole numbers beyond int64, and take the types of a stream from its first block.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from condokit.checks import FileError
from condokit.io.extras import arrow
from condokit.io.formats import DELIMITERS, Content, PathLike, Request, select, shown
from condokit.io.text_blocks import Block, find_delimiter, first_row, line_of, read_blocks

if TYPE_CHECKING:
    import pyarrow as pa

_Types = dict[str, Any]
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL", "None", ".", "-")
_DASHES = {".", "-"}  # of the default marks, those that are text in a text column
_BYTES = 1 << 24  # of text parsed at once
_SAMPLE = 1 << 20  # bytes of text from which the delimiter is guessed
_SAVE_IT = "Save the table to a file first, of which all rows are examined."
_WIDE = 1000  # columns from which one thread parses faster than several


class TextOptions(TypedDict, total=False):
    """How text is to be read; `read_table` tells what each means."""

    delimiter: str | None
    na_values: Sequence[str] | None
    encoding: str
    decimal: str
    numbers: Collection[str]
    texts: Collection[str | None] | None


class Text:
    """A file of delimited text, parsed in blocks of whole rows."""

    def __init__(
        self,
        path: PathLike,
        kind: str,
        zipped: bool,
        *,
        delimiter: str | None = None,
        na_values: Sequence[str] | None = None,
        encoding: str = "utf-8",
        decimal: str = ".",
        numbers: Collection[str] = (),
        texts: Collection[str | None] | None = (),
    ) -> None:
        self.path, self.kind, self.zipped = path, kind, zipped
        self.delimiter = delimiter or ("\t" if kind == "tsv" else "")
        self.marks = list(MISSING if na_values is None else na_values)
        dashes = _DASHES if na_values is None else set()
        self.text_marks = [mark for mark in self.marks if mark not in dashes]
        self.encoding, self.decimal = encoding, decimal
        self.numbers = frozenset(numbers)
        self.texts = None if texts is None else frozenset(texts)
        self.names: list[str] = []
        self.columns: list[str] = []

    def open(self, request: Request) -> Content:
        """Find the types of the columns, and open the file for its tables."""
        pa = arrow()
        size = None if request.is_whole else _BYTES
        opened = (request, self.zipped, self.encoding, size)
        blocks = read_blocks(*opened)
        first, second = next(blocks, Block(b"", 1)), next(blocks, None)
        types = self.examine(first.content, request.columns)
        table = self.infer(first, types)
        n_rows, again = None, chain([first], [second] if second else [], blocks)
        if second is not None and not request.is_piped and Path(self.path).is_file():
            n_rows = len(table) + sum(len(self.infer(b, types)) for b in chain([second], blocks))
            again = chain(read_blocks(*opened))
        # a column without any value has the type of measurements
        types = {n: pa.float64() if t == pa.null() else t for n, t in types.items()}
        schema = pa.schema(types.items())
        if second is not None:
            return Content(schema, n_rows, self.parse_all(again, types))
        same = table.schema.equals(schema)
        return Content(schema, len(table), iter([table if same else table.cast(schema)]))

    def examine(self, content: bytes, columns: Sequence[str] | None) -> _Types:
        """Learn delimiter and names, the types that were declared, and a guess at others."""
        pa = arrow()
        end = content.rfind(b"\n", 0, _SAMPLE) + 1
        sample = content[:end] if end and len(content) > _SAMPLE else content
        if not sample.strip(b"\r\n\xef\xbb\xbf"):
            raise FileError(f"{shown(self.path)} is empty.")
        self.delimiter = self.delimiter or find_delimiter(sample, DELIMITERS[self.kind])
        self.names = self.parse(Block(first_row(sample), 1), {}).column_names
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

    def infer(self, block: Block, types: _Types) -> pa.Table:
        """Parse a block, after widening the types as far as it needs."""
        pa = arrow()
        known = {name: kind for name, kind in types.items() if kind != pa.null()}
        try:
            table = self.parse(block, known)
        except _ConflictError:
            texts = {name: kind for name, kind in known.items() if kind == pa.string()}
            table = self.parse(block, texts)
        found = {f.name: _common_type(types[f.name], f.type) for f in table.schema}
        codes = self.codes(block, types, found)
        types.update(found | dict.fromkeys(codes, pa.string()))
        if any(types[field.name] != field.type for field in table.schema):
            table = self.parse(block, types)
        return table

    def codes(self, block: Block, before: _Types, found: _Types) -> list[str]:
        """Name the columns of whole numbers that would lose digits as numbers."""
        pa = arrow()
        start = rb'[\r\n"' + re.escape(self.delimiter.encode()) + b"]"
        if not re.search(start + rb"[-+]?(?:0[0-9]|[0-9]{19})", b"\n" + block.content):
            return []
        kinds = {
            name: kind
            for name, kind in found.items()
            if name not in self.numbers
            and (kind == pa.int64() or (kind == pa.float64() and before[name] != kind))
        }
        if not kinds:
            return []
        texts = self.parse(block, found | dict.fromkeys(kinds, pa.string()))
        columns = dict(zip(texts.column_names, texts.columns))

        def some(name: str, pattern: str) -> bool:
            matches = pa.compute.match_substring_regex(columns[name], pattern)
            return bool(pa.compute.any(matches).as_py())

        def is_code(name: str) -> bool:
            if kinds[name] == pa.int64():
                return some(name, "^[-+]?0[0-9]")
            return some(name, "^[-+]?[0-9]{19,}$") and not some(name, "[^-+0-9.]|[.].|[0-9]-")

        return [name for name in kinds if is_code(name)]

    def parse_all(self, blocks: Iterable[Block], types: _Types) -> Iterator[pa.Table]:
        """Yield the blocks as tables of known types."""
        for block in blocks:
            table = self.parse(block, types)
            if str(self.path) == "-" and (late := self.codes(block, types, types)):
                raise FileError(
                    f"{shown(self.path)}: column {late[0]!r} began as numbers, but has padded "
                    f"codes such as 007 after row {max(block.line - 1, 1):,}. {_SAVE_IT}"
                )
            yield table

    def parse(self, block: Block, types: _Types) -> pa.Table:
        """Parse one block, inferring the types that are not given."""
        pa = arrow()
        ragged: list[Any] = []
        if b"\n" not in block.content:
            block = Block(block.content + b"\n", block.line)  # else names alone are nothing
        whole = min(len(block.content), 1 << 30) + 1
        size = whole if len(self.names) >= _WIDE else min(whole, 1 << 22)
        try:
            try:
                table = self.read(block, types, size, ragged)
            except pa.ArrowInvalid as error:
                if "straddl" not in str(error):
                    raise
                table = self.read(block, types, whole, ragged)  # a row is longer than usual
        except pa.ArrowInvalid as error:
            raise self.explained(error, block, ragged) from None
        for place, field in enumerate(table.schema):
            if field.type == pa.string() and not self.stays(field.name):
                marked = pa.compute.is_in(table.column(place), pa.array(self.text_marks))
                if pa.compute.any(marked).as_py():
                    kept = pa.compute.if_else(marked, None, table.column(place))
                    table = table.set_column(place, field, kept)
        return table

    def read(self, block: Block, types: _Types, size: int, ragged: list[Any]) -> pa.Table:
        """Let pyarrow parse a block in parts of a size; rows of another length go to `ragged`."""
        from pyarrow import csv as arrow_csv

        def refuse(row: Any) -> str:
            ragged.append(row)
            return "error"

        return arrow_csv.read_csv(
            arrow().BufferReader(block.content),
            arrow_csv.ReadOptions(
                use_threads=len(self.names) < _WIDE,
                block_size=size,
                column_names=self.names if block.line > 1 else None,
            ),
            arrow_csv.ParseOptions(
                delimiter=self.delimiter,
                newlines_in_values=b'"' in block.content,
                ignore_empty_lines=len(self.names) != 1,
                invalid_row_handler=refuse,
            ),
            arrow_csv.ConvertOptions(
                check_utf8=False,
                column_types=types,
                null_values=self.marks,
                decimal_point=self.decimal,
                include_columns=self.columns if self.columns != self.names else None,
            ),
        )

    def explained(self, error: Exception, block: Block, ragged: list[Any]) -> Exception:
        """Return an error that tells where the file is wrong."""
        if ragged:
            line, bad = min((line_of(row.text, block), i) for i, row in enumerate(ragged))
            return FileError(
                f"{shown(self.path)}, line {line:,}: {ragged[bad].actual_columns} fields instead "
                f"of {ragged[bad].expected_columns} (delimiter {self.delimiter!r})."
            )
        conflict = re.search(r"column #(\d+): .* error to (\S+): (.*)", str(error), re.DOTALL)
        if conflict is None:
            return error
        column, kind, value = conflict.groups()
        start = max(block.line - 2, 0)  # rows of one line, below the names
        stop = start + block.content.count(b"\n")
        return _ConflictError(
            f"{shown(self.path)}: column {self.names[int(column)]!r} began as {kind}, but has an "
            f"{value[:60]} between rows {start + 1:,} and {stop:,}. {_SAVE_IT}"
        )


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
