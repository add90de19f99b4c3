"""Reads delimited text as tables, in blocks of whole rows in UTF-8.

Text has no types, so they are inferred from the whole file. Whole numbers are int64, or float64 if
any row has a fraction. A column that mixes numbers and text is text. So is a column of whole
numbers that would lose digits: padded codes such as 007, and numbers beyond int64. Columns may also
be declared to be numbers, or text that stays as it is written.

A streamed file of more than one block is therefore read twice: first for its types, when damaged
rows raise an error before anything is computed, then for its batches. Standard input can be read
only once: its types come from the first block, and a later conflict is an error.

pyarrow parses and types each block. By itself it would read 007 as 7, "." in text as missing, would
round whole numbers beyond int64, and would take the types of a stream from its first block.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from condokit.checks import FileError, refusal
from condokit.io.formats import DELIMITERS, Content, PathLike, Request, arrow, is_number, shown

if TYPE_CHECKING:
    import pyarrow as pa

_Types = dict[str, Any]
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL", "None", ".", "-")
_DASHES = {".", "-"}  # marks of missing values only in columns of numbers; in text they are text
_SAVE_IT = "Save the table to a file first, of which all rows are examined."
_UNCLOSED = "a quote is not closed where its value ends"
_LIKE_ROWS = "the lines of a quoted value look like rows; close its quote, or save it as .parquet"
_WIDE = 1000  # columns from which one thread parses faster than several


class TextBlock(NamedTuple):
    """The text of some rows, and the number of the line of the file with which they begin."""

    content: bytes
    line: int


@dataclass
class Text:
    """A reader of delimited text, with its options."""

    kind: str
    zipped: bool
    _: KW_ONLY
    delimiter: Any = None  # None: tab in .tsv, else guessed among comma, tab, semicolon and bar
    na_values: Sequence[str] | None = None  # marks of missing values; None: `MISSING`
    encoding: str = "utf-8"
    decimal: str = "."
    numbers: Collection[str] = ()  # columns of numbers, even if they look like codes
    texts: Collection[str | None] | None = ()  # stay as they are written; None: all but `numbers`
    block_bytes: int = 1 << 24  # of text parsed at once
    sampled_bytes: int = 1 << 20  # of text from which the delimiter is guessed
    schema: pa.Schema | None = None  # known from an earlier reading: types are not inferred again

    def __post_init__(self) -> None:
        self.delimiter = self.delimiter or ("\t" if self.kind == "tsv" else "")
        for what, mark in (("decimal", self.decimal), ("delimiter", self.delimiter or ",")):
            if len(mark) != 1 or not mark.isascii() or mark.isalnum() or mark in '"\r\n\0+-':
                raise refusal(f"{{@'{what}'}} must be one mark. Got {{mark!r}} instead.", mark=mark)
        self.marks = list(MISSING if self.na_values is None else self.na_values)
        dashes = _DASHES if self.na_values is None else set()
        self.text_marks = [mark for mark in self.marks if mark not in dashes]
        self.numbers = frozenset(self.numbers)
        self.texts = None if self.texts is None else frozenset(self.texts)
        self.names: list[str] = []

    def open(self, request: Request) -> Content:
        """Infer the types of the columns, and open the file for its tables."""
        pa = arrow()
        self.path = request.path
        blocks = self.blocks(request)
        first, second = next(blocks, TextBlock(b"", 1)), next(blocks, None)
        types = self.examine(first.content, request)
        if self.schema is not None:
            types = {field.name: field.type for field in self.schema}
            every = chain([first], [second] if second else [], blocks)
            return Content(self.schema, None, self.parse_all(every, types))
        table = self.infer(first, types)
        n_rows, again = None, chain([first], [second] if second else [], blocks)
        if second is not None and not request.is_piped and Path(self.path).is_file():
            n_rows = len(table) + sum(len(self.infer(b, types)) for b in chain([second], blocks))
            again = chain(self.blocks(request))
        # a column without any value gets the type of measurements
        types = {n: pa.float64() if t == pa.null() else t for n, t in types.items()}
        schema = pa.schema(types.items())
        if second is not None:
            return Content(schema, n_rows, self.parse_all(again, types))
        same = table.schema.equals(schema)
        return Content(schema, len(table), iter([table if same else table.cast(schema)]))

    def blocks(self, request: Request) -> Iterator[TextBlock]:
        """Yield the file in blocks that end where a row ends, or as one block."""
        size = None if request.is_whole else self.block_bytes
        file: Any = sys.stdin.buffer
        if request.content is not None:
            file = io.BufferedReader(io.BytesIO(request.content))
        elif not request.is_piped:
            file = request.files.enter_context(open(self.path, "rb"))  # noqa: SIM115
        if self.zipped or file.peek(2)[:2] == b"\x1f\x8b":
            file = gzip.GzipFile(fileobj=file)
        encoded = self.encoding.casefold().replace("_", "-") not in ("utf-8", "utf8", "utf-8-sig")
        if encoded:
            file = io.TextIOWrapper(file, self.encoding, newline="")
            request.files.callback(file.detach)
        position, line, rest, ended = 0, 1, b"", False
        while not ended:
            piece = file.read(size)
            ended = not piece
            rest += piece.encode() if encoded else piece
            end = _end_of_row(rest) if size and not ended else len(rest)
            if not end and size and len(rest) > 8 * size:
                end = rest.rfind(b"\n") + 1  # a quote was never closed: do not wait for its end
            if end:
                content, rest = rest[:end], rest[end:]
                _check_utf8(self.path, content, position)
                yield TextBlock(content, line)
                position, line = position + end, line + content.count(b"\n")

    def examine(self, content: bytes, request: Request) -> _Types:
        """Find delimiter and names of columns; return declared types, and guesses of others."""
        pa = arrow()
        end = content.rfind(b"\n", 0, self.sampled_bytes) + 1
        sample = content[:end] if end and len(content) > self.sampled_bytes else content
        if not sample.strip(b"\r\n\xef\xbb\xbf"):
            raise FileError(f"{shown(self.path)} is empty.")
        self.delimiter = self.delimiter or _find_delimiter(sample, DELIMITERS[self.kind])
        lines = io.StringIO(sample.decode("utf-8-sig"), newline="")
        rows = filter(None, csv.reader(lines, delimiter=self.delimiter))
        self.names, first = next(rows), []
        request.check(self.names)
        with suppress(csv.Error):  # a field of more than 128 kB
            first = next(rows, [])
        number = re.compile(rf"[-+]?[0-9]*{re.escape(self.decimal)}[0-9]+(?:[eE][-+]?[0-9]+)?")
        fractions = {name for name, x in zip(self.names, first) if number.fullmatch(x)}
        # a column whose first value has a fraction is taken as float, as trying all types is slow
        types = {n: pa.float64() if n in fractions else pa.null() for n in self.names}
        return types | dict.fromkeys(filter(self.stays, self.names), pa.string())

    def stays(self, name: str) -> bool:
        """Return whether a column stays as it is written (text)."""
        return name not in self.numbers if self.texts is None else name in self.texts

    def infer(self, block: TextBlock, types: _Types) -> pa.Table:
        """Parse a block; types that do not fit it are widened, in place."""
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

    def codes(self, block: TextBlock, before: _Types, found: _Types) -> list[str]:
        """Return the columns of whole numbers that would lose digits if read as numbers."""
        pa = arrow()
        kinds = {
            name: kind
            for name, kind in found.items()
            if name not in self.numbers
            and (kind == pa.int64() or (kind == pa.float64() and before[name] != kind))
        }
        start = rb'[\r\n"' + re.escape(self.delimiter.encode()) + b"]"
        long = start + rb"[-+]?(?:0[0-9]|[0-9]{19})"
        if not kinds or not re.search(long, b"\n" + block.content):
            return []
        texts = self.parse(block, found | dict.fromkeys(kinds, pa.string()))

        def some(name: str, pattern: str) -> bool:
            matches = pa.compute.match_substring_regex(texts.column(name), pattern)
            return bool(pa.compute.any(matches).as_py())

        def is_code(name: str) -> bool:
            if kinds[name] == pa.int64():
                return some(name, "^[-+]?0[0-9]")
            return some(name, "^[-+]?[0-9]{19,}$") and not some(name, "[^-+0-9.]|[.].|[0-9]-")

        return [name for name in kinds if is_code(name)]

    def parse_all(self, blocks: Iterable[TextBlock], types: _Types) -> Iterator[pa.Table]:
        """Yield the blocks as tables of known types."""
        for block in blocks:
            table = self.parse(block, types)
            if str(self.path) == "-" and (late := self.codes(block, types, types)):
                raise FileError(
                    f"{shown(self.path)}: column {late[0]!r} began as numbers, but has padded "
                    f"codes such as 007 after row {max(block.line - 1, 1):,}. {_SAVE_IT}"
                )
            yield table

    def parse(self, block: TextBlock, types: _Types) -> pa.Table:
        """Parse one block, inferring the types that are not given."""
        pa = arrow()
        ragged: list[Any] = []
        if b"\n" not in block.content:
            block = TextBlock(block.content + b"\n", block.line)  # else pyarrow ignores a header
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
        if b'"' in block.content:
            self.refuse_merged(table, block)
        for place, field in enumerate(table.schema):
            if field.type == pa.string() and not self.stays(field.name):
                marked = pa.compute.is_in(table.column(place), pa.array(self.text_marks))
                if pa.compute.any(marked).as_py():
                    kept = pa.compute.if_else(marked, None, table.column(place))
                    table = table.set_column(place, field, kept)
        return table

    def refuse_merged(self, table: pa.Table, block: TextBlock) -> None:
        """Raise an error for a quote that is not closed, or only in a later row.

        Such a quote would make one value of several rows.
        """
        pa, content = arrow(), block.content
        for field in table.schema:
            column, start = table.column(field.name), 0
            lines = field.type == pa.string() and pa.compute.match_substring(column, "\n")
            for value in column.filter(lines).to_pylist() if lines else ():
                written = '"{}"'.format(value.replace('"', '""')).encode()
                place = content.find(written, start)
                if place < 0 or self.looks_like_rows(value, field.name, table.schema):
                    first = content.find(written.partition(b"\n")[0], start)
                    line = block.line + content.count(b"\n", 0, first)
                    wrong = _UNCLOSED if place < 0 else _LIKE_ROWS
                    raise FileError(f"{shown(self.path)}, line {line:,}: {wrong}.")
                start = place + len(written)

    def looks_like_rows(self, value: str, name: str, schema: pa.Schema) -> bool:
        """Return whether all lines of a value except its first look like rows of the table."""
        rows = [line.split(self.delimiter) for line in value.split("\n")[1:]]
        sizes = [len(self.names)] * (len(rows) - 1) + [self.names.index(name) + 1]
        if [len(row) for row in rows] != sizes:
            return False
        numbers = {field.name for field in schema if is_number(field.type)}
        cells = [x for row in rows for n, x in zip(self.names, row) if n in numbers]
        known, digits = set(cells) - {*self.marks}, {*" +-0123456789.eE", self.decimal}
        return bool(known) and all(set(cell) <= digits for cell in known)

    def read(self, block: TextBlock, types: _Types, size: int, ragged: list[Any]) -> pa.Table:
        """Parse a block by pyarrow in parts of `size` bytes; ragged rows go to `ragged`."""
        from pyarrow import csv as arrow_csv

        def refuse(row: Any) -> str:
            ragged.append(row)
            return "error"

        names, is_narrow = self.names if block.line > 1 else None, len(self.names) < _WIDE
        rows = {"ignore_empty_lines": len(self.names) != 1, "invalid_row_handler": refuse}
        rows |= {"delimiter": self.delimiter, "newlines_in_values": b'"' in block.content}
        cells = {"check_utf8": False, "column_types": types, "null_values": self.marks}
        return arrow_csv.read_csv(
            arrow().BufferReader(block.content),
            arrow_csv.ReadOptions(use_threads=is_narrow, block_size=size, column_names=names),
            arrow_csv.ParseOptions(**rows),
            arrow_csv.ConvertOptions(**cells, decimal_point=self.decimal),
        )

    def explained(self, error: Exception, block: TextBlock, ragged: list[Any]) -> Exception:
        """Return an error that says where in the file something is wrong."""
        if ragged:
            line, bad = min((_line_of(row.text, block), i) for i, row in enumerate(ragged))
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
    """Return the type that can hold the values of both, as inferred from both blocks at once."""
    pa = arrow()
    if pa.null() in (one, other) or one == other:
        return one if other == pa.null() else other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    times = [pa.date32(), pa.timestamp("s"), pa.timestamp("ns")]
    if one in times and other in times:
        return times[max(times.index(one), times.index(other))]
    return pa.string()


def _check_utf8(path: PathLike, content: bytes, position: int) -> None:
    """Raise an error that names the first byte that is not UTF-8."""
    if content.isascii():
        return
    try:
        content.decode()
    except UnicodeDecodeError as error:
        byte = f"byte {position + error.start:,}: 0x{content[error.start]:02x}"
        guess = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1"
        raise FileError(
            f"{shown(path)} is not UTF-8 ({byte}). "
            f"Convert it, or give its encoding, perhaps {guess!r}."
        ) from None


def _end_of_row(content: bytes) -> int:
    """Return the position after the last line end that is outside quotes, or 0."""
    end = content.rfind(b"\n") + 1
    quotes = content.count(b'"', 0, end)
    while end and quotes % 2:
        before = content.rfind(b"\n", 0, end - 1) + 1
        quotes -= content.count(b'"', before, end)
        end = before
    return end


def _line_of(row: str, block: TextBlock) -> int:
    """Return the line of the file that a row is on."""
    text, ends = row.encode(), (b"", b"\r", b"\n")  # a regular expression would be slow
    start = block.content.find(text)
    while start >= 0 and not (
        block.content[max(start - 1, 0) : start] in ends
        and block.content[start + len(text) : start + len(text) + 1] in ends
    ):
        start = block.content.find(text, start + 1)
    return block.line + block.content.count(b"\n", 0, max(start, 0))


def _find_delimiter(sample: bytes, default: str) -> str:
    """Return the delimiter that divides the first lines into equally many fields, and most."""
    lines = sample.decode("utf-8-sig").splitlines()[:6]
    best, most = default, 1
    for delimiter in (default, *(set(",\t;|") - {default})):
        with suppress(csv.Error):  # a field of more than 128 kB
            counts = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
            if counts and min(counts) == max(counts) > most:
                best, most = delimiter, counts[0]
    return best
