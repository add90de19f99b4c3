"""JSON files of condokit: versioned, readable without condokit, checked completely when read.

The schemas in `docs/reference` describe them. Keys may be added to a schema if older versions can
ignore them; its number rises if older versions would misunderstand the file. Files of all schemas
remain readable.
"""

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from typing import IO, Any

import condokit
from condokit.checks import is_number
from condokit.io.atomic import write_bytes
from condokit.io.schema import Schema, shown

MOST_BYTES = 2 << 30
MOST_VALUES = 100_000_000
_MOST_DIGITS = 300
_PART = 1 << 20  # bytes that are read at a time
Place = str | os.PathLike[str] | IO[bytes]


@dataclass(frozen=True)
class Format:
    """A kind of file: its name in itself and in messages, and its newest schema."""

    name: str
    newest: int
    what: str
    error: type[ValueError]
    schema: Schema

    def call(self, place: Place) -> str:
        """Return what a message calls a file."""
        path = place if isinstance(place, str | os.PathLike) else getattr(place, "name", None)
        return str(path or f"The {self.what}")


def write(path: Place, content: dict[str, Any], kind: Format) -> None:
    """Write a document to a file, or to an open one; the same content gives the same bytes."""
    first = {"format": kind.name, "schema": kind.newest, "condokit": condokit.__version__}
    document = first | content
    try:
        document["sha256"] = digest(document)
        kind.schema.read(document)
    except ValueError as error:
        raise ValueError(f"The {kind.what} cannot be written: {error}") from None
    text = (_layout(document) + "\n").encode("utf-8")
    if len(text) > MOST_BYTES or text.count(b",") >= MOST_VALUES:
        raise ValueError(f"The {kind.what} is too large for a file: {len(text)} bytes.")
    if isinstance(path, str | os.PathLike):
        write_bytes(path, text)
    else:
        path.write(text)


def read(place: Place, kind: Format, make: Any) -> Any:
    """Read a file and return `make(document, fields)`, with the fields checked by the schema.

    A file of another kind raises the error of this kind, in one line; nothing in a file is ever
    executed. `make` raises a ValueError if something is wrong with the content.
    """
    path = kind.call(place)
    try:
        text = _read_bytes(place).decode("utf-8")
    except FileNotFoundError:
        raise kind.error(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise kind.error(f"{path} cannot be read as a {kind.what}: {said}.") from None
    document = _parsed(text, path, kind)
    try:
        found = make(document, kind.schema.read(document))
        is_intact = document.get("sha256") == digest(document)
    except (ValueError, RecursionError) as error:
        raise kind.error(f"{path} is damaged: {str(error).rstrip('.')}.") from None
    if not is_intact:
        raise kind.error(f"{path} was changed or damaged: its content does not fit its hash.")
    return found


def _parsed(text: str, path: str, kind: Format) -> dict[str, Any]:
    """Return the JSON of a file, if its format is this kind and its schema is known."""
    try:
        document = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer
        )
    except (ValueError, RecursionError) as error:
        raise kind.error(
            f"{path} is not a {kind.what}: it is damaged or no JSON ({error})."
        ) from None
    if not isinstance(document, dict) or document.get("format") != kind.name:
        raise kind.error(f"{path} is not a {kind.what}: its 'format' is not {kind.name!r}.")
    schema: Any = document.get("schema")
    if not is_number(schema, int) or schema < 1:
        raise kind.error(f"{path} is damaged: its 'schema' is {shown(schema)}.")
    if schema > kind.newest:
        version = shown(document.get("condokit")).strip("'")
        raise kind.error(
            f"{path} was written by a newer condokit ({version}; schema {shown(schema)}, "
            f"this version reads up to {kind.newest}). Upgrade condokit."
        )
    return document


def _layout(value: Any, margin: str = "") -> str:
    """Return JSON with a line for every key, and for every row of a matrix."""
    inner, ends = margin + " ", "[]"
    match value:
        case {**items} if items:
            ends = "{}"
            lines = [f"{json.dumps(key)}: {_layout(item, inner)}" for key, item in items.items()]
        case [list(), *_]:
            lines = [_layout(row) for row in value]
        case [dict(), *_] if not margin[1:]:
            lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in value]
        case _:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
    return f"{ends[0]}\n{inner}" + f",\n{inner}".join(lines) + f"\n{margin}{ends[1]}"


def digest(document: dict[str, Any]) -> str:
    """Return the SHA-256 of a document without its hash, whatever its layout."""
    body = {key: value for key, value in document.items() if key != "sha256"}
    canonical = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    try:
        return hashlib.sha256(canonical.encode("utf-8")).hexdigest()
    except UnicodeEncodeError as error:
        found = error.object[error.start : error.end]
        raise ValueError(f"it holds {found!r}, which is no character.") from None


def _read_bytes(place: Place) -> bytearray:
    """Read a regular file, or an open one, up to a limit of size."""
    if isinstance(place, str | os.PathLike):
        if not stat.S_ISREG(os.stat(place).st_mode):  # a pipe or device could go on for ever
            raise ValueError("it is no regular file")
        with open(place, "rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            return _read_bytes(file)
    content = bytearray()
    while part := place.read(_PART):  # in parts: read(MOST_BYTES) would reserve all that memory
        content += part
        if len(content) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
    if content.count(b",") >= MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES} values")
    return content


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; raise an error if a key occurs twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _constant(name: str) -> Any:
    """Raise an error for NaN and Infinity, which are not JSON."""
    raise ValueError(f"{name} is not JSON, which knows finite numbers only")


def _integer(digits: str) -> int:
    """Return a whole number; raise an error if it is absurdly long."""
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits; it knows finite numbers only")
    return int(digits)
