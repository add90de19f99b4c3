"""The map file: versioned JSON, readable without condokit, checked in full when read.

`docs/reference/map-schema.json` describes it. Keys may be added to a schema if older versions can
do without them; its number rises if they would apply the map wrongly. Files of all schemas are read
for ever.
"""

import hashlib
import json
import os
import reprlib
import stat
from typing import IO, Any, NamedTuple

import numpy as np

import condokit
from condokit.checks import Array, MapFileError
from condokit.io.atomic import write_bytes


class Format(NamedTuple):
    """A kind of file: what it is called in itself and in messages, and its newest schema."""

    name: str
    schema: int
    what: str
    error: type[ValueError]


FORMAT = "condokit-map"
SCHEMA = 2
MAPS = Format(FORMAT, SCHEMA, "map", MapFileError)
CLASSES: dict[str, Any] = {}  # from a kind to the class of its maps; they enter themselves
MOST_BYTES = 2 << 30
MOST_VALUES = 100_000_000
_MOST_DIGITS = 300
Place = str | os.PathLike[str] | IO[bytes]
_REQUIRED = {"condokit": str, "kind": str, "feature_names": list | None}
_OPTIONAL = {"links": list, "output_names": list, "sha256": str}
_OPTIONAL |= dict.fromkeys(("fitted_on", "provenance"), dict)


def write(path: Place, content: dict[str, Any], kind: Format = MAPS) -> None:
    """Write a map to a file or an open one, the same bytes for the same content."""
    head = {"format": kind.name, "schema": kind.schema, "condokit": condokit.__version__}
    document = head | content
    document["sha256"] = digest(document)
    text = (_layout(document) + "\n").encode("utf-8")
    if len(text) > MOST_BYTES or text.count(b",") >= MOST_VALUES:
        raise ValueError(f"The {kind.what} is too large for a file: {len(text)} bytes.")
    if isinstance(path, str | os.PathLike):
        write_bytes(path, text)
    else:
        path.write(text)


def read(place: Place, wanted: Any) -> Any:
    """Return the map in a file, of the class that is wanted, or the one that reads its kind."""
    # a `MapFileError` says what is wrong; nothing in the file is ever executed
    path = place if isinstance(place, str | os.PathLike) else getattr(place, "name", "The map")
    document = parse(place, path)
    try:
        _check_keys(document)
        kind = document["kind"]
        if kind not in CLASSES:
            raise ValueError(f"it holds a map of unknown kind {reprlib.repr(kind)}.")
        reader = wanted if kind in getattr(wanted, "kinds", ()) else CLASSES[kind]
        found = reader.from_dict(document)
        intact = document.get("sha256") == digest(document)
    except (ValueError, RecursionError) as error:
        raise MapFileError(f"{path} is damaged: {error}") from None
    if not intact:
        raise MapFileError(f"{path} was changed or damaged: its content does not fit its hash.")
    if not isinstance(found, wanted):
        other = getattr(wanted, "__name__", "map")
        raise MapFileError(
            f"{path} holds a map of the kind {kind!r}, which is no {other}. "
            f"Read it with condokit.{'BatchAdapter.load' if kind == 'batches' else 'load_map'}."
        )
    return found


def numbers(key: str, content: dict[str, Any], dimensions: int) -> Array:
    """Return a vector or matrix of finite numbers; truth values are none."""
    values = content.get(key)
    if type(values) is not list:
        raise ValueError(f"{key!r} is missing or of the wrong type.")
    rows = values if dimensions == 2 else [values]
    if not all(type(row) is list for row in rows) or len({len(row) for row in rows}) != 1:
        raise ValueError(f"{key!r} is no matrix.")
    if all(set(map(type, row)) <= {int, float} for row in rows):
        array = np.array(values, dtype=np.float64)
        if np.isfinite(array).all():
            return array
    raise ValueError(f"{key!r} must hold finite numbers only.")


def _layout(value: Any, margin: str = "") -> str:
    """Write one line for every key, and for every row of a matrix."""
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
    """Hash everything but the hash, in a form that does not depend on layout."""
    body = {key: value for key, value in document.items() if key != "sha256"}
    canonical = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def parse(place: Place, path: Any, kind: Format = MAPS) -> dict[str, Any]:
    """Return the JSON of a file that claims to be a map, of a schema that is known here."""
    error_of, what = kind.error, kind.what
    try:
        text = _read_bytes(place).decode("utf-8")
    except FileNotFoundError:
        raise error_of(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise error_of(f"{path} cannot be read as a {what}: {said}.") from None
    try:
        document = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer
        )
    except (ValueError, RecursionError) as error:
        raise error_of(f"{path} is not a {what}: it is damaged or no JSON ({error}).") from None
    if type(document) is not dict or document.get("format") != kind.name:
        raise error_of(f"{path} is not a {what}: its 'format' is not {kind.name!r}.")
    schema = document.get("schema")
    if type(schema) is not int or schema < 1:
        raise error_of(f"{path} is damaged: its 'schema' is {reprlib.repr(schema)}.")
    if schema > kind.schema:
        version = reprlib.repr(document.get("condokit")).strip("'")
        raise error_of(
            f"{path} was written by a newer condokit ({version}; schema {reprlib.repr(schema)}, "
            f"this version reads up to {kind.schema}). Upgrade condokit."
        )
    return document


def _read_bytes(place: Place) -> bytes:
    """Read a regular file, or an open one, that is not too large."""
    size = 0
    if not isinstance(place, str | os.PathLike):
        content = place.read(MOST_BYTES + 1)
    elif not stat.S_ISREG(os.stat(place).st_mode):  # a pipe or device could go on for ever
        raise ValueError("it is no regular file")
    else:
        with open(place, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            content = b"" if size > MOST_BYTES else file.read(MOST_BYTES + 1)
    if max(size, len(content)) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    if content.count(b",") >= MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES} values")
    return content


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON, which knows finite numbers only")


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits; it knows finite numbers only")
    return int(digits)


def _check_keys(document: dict[str, Any]) -> None:
    """Refuse keys that all maps share if they are missing or not what they must be."""
    for key, kind in {**_REQUIRED, **_OPTIONAL}.items():
        fits = isinstance(document[key], kind) if key in document else key in _OPTIONAL
        if not fits:
            raise ValueError(f"{key!r} is missing or of the wrong type.")
    for key in ("feature_names", "output_names"):
        listed = document.get(key) or []
        if not set(map(type, listed)) <= {str} or len(set(listed)) < len(listed):
            raise ValueError(f"{key!r} must be different strings.")
