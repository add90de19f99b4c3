"""Text files as blocks of whole rows in UTF-8, and how their rows are divided."""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from condokit.checks import FileError
from condokit.io.formats import PathLike, Request, shown


class Block(NamedTuple):
    """Some rows as they are written, and the line of the file with which they begin."""

    content: bytes
    line: int


def read_blocks(request: Request, zipped: bool, encoding: str, size: int | None) -> Iterator[Block]:
    """Yield a file in pieces of about `size` bytes that end where a row ends, or as one."""
    path, files = request.path, request.files
    file: Any = sys.stdin.buffer
    if not request.is_piped:
        file = files.enter_context(open(path, "rb"))  # noqa: SIM115
    if zipped or file.peek(2)[:2] == b"\x1f\x8b":
        file = gzip.GzipFile(fileobj=file)
    encoded = encoding.casefold().replace("_", "-") not in ("utf-8", "utf8", "utf-8-sig")
    if encoded:
        file = io.TextIOWrapper(file, encoding, newline="")
        files.callback(file.detach)
    position, line, rest = 0, 1, b""
    while piece := file.read(size):
        rest += piece.encode() if encoded else piece
        end = _end_of_row(rest) if size else len(rest)
        if not end and size and len(rest) > 8 * size:
            end = rest.rfind(b"\n") + 1  # a quote in the middle of a field, never closed
        if end:
            content, rest = rest[:end], rest[end:]
            _check_utf8(path, content, position)
            yield Block(content, line)
            position, line = position + end, line + content.count(b"\n")
    if rest:
        _check_utf8(path, rest, position)
        yield Block(rest, line)


def _check_utf8(path: PathLike, content: bytes, position: int) -> None:
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
    """Return the place after the last line that ends outside quotes, or 0."""
    end = content.rfind(b"\n") + 1
    quotes = content.count(b'"', 0, end)
    while end and quotes % 2:
        before = content.rfind(b"\n", 0, end - 1) + 1
        quotes -= content.count(b'"', before, end)
        end = before
    return end


def first_row(content: bytes) -> bytes:
    """Return all up to the end of the first row that is not blank."""
    end = len(content) - len(content.lstrip(b"\r\n"))
    while True:
        end = content.find(b"\n", end) + 1 or len(content)
        if end == len(content) or content.count(b'"', 0, end) % 2 == 0:
            return content[:end]


def line_of(row: str, block: Block) -> int:
    """Return the line of the file that a row is on."""
    pattern = rb"(?:^|[\r\n])(%s)(?:[\r\n]|$)" % re.escape(row.encode())
    found = re.search(pattern, block.content)
    return block.line + (block.content.count(b"\n", 0, found.start(1)) if found else 0)


def find_delimiter(sample: bytes, default: str) -> str:
    """Return what divides the first lines into equally many fields, and most of them."""
    lines = sample.decode("utf-8-sig").splitlines()[:6]
    best, most = default, 1
    for delimiter in (default, *(set(",\t;|") - {default})):
        with suppress(csv.Error):  # a field of more than 128 kB
            counts = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
            if counts and min(counts) == max(counts) > most:
                best, most = delimiter, counts[0]
    return best
