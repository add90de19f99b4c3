"""The map file: versioned JSON, readable without condokit, checked in full when read."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import condokit
from condokit._validation import MapFileError

FORMAT = "condokit-map"
SCHEMA = 1
KINDS = ("diagonal", "low-rank", "dense")
_KEYS = {"kind": str, "feature_names": list | None, "scale": list, "offset": list}


def write(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write a map beside `path` and rename it, so that no half-written file is ever seen."""
    path = Path(path)
    document = {
        "format": FORMAT,
        "schema": SCHEMA,
        "condokit": condokit.__version__,
        **content,
    }
    document["sha256"] = _digest(document)
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    if path.is_dir():
        raise IsADirectoryError(f"Cannot save the map: {path} is a folder, not a file name.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"Cannot save the map: the folder {path.parent} does not exist.")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes the file private
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a map file, or raise a `MapFileError` that says what is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MapFileError(f"{path} cannot be read as a map: {error}.") from None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MapFileError(f"{path} is not a map: it is damaged or no JSON ({error}).") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise MapFileError(f"{path} is not a map: its 'format' is not {FORMAT!r}.")
    schema = document.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise MapFileError(f"{path} is damaged: its 'schema' is {schema!r}.")
    if schema > SCHEMA:
        raise MapFileError(
            f"{path} was written by a newer condokit ({document.get('condokit')}; schema {schema}, "
            f"this version reads up to {SCHEMA}). Upgrade condokit."
        )
    _check_content(path, document)
    if document.get("sha256") != _digest(document):
        raise MapFileError(f"{path} was changed or damaged: its content does not fit its hash.")
    return document


def _digest(document: dict[str, Any]) -> str:
    """Hash everything but the hash, in a form that does not depend on layout."""
    body = {key: value for key, value in document.items() if key != "sha256"}
    canonical = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def _check_content(path: str | os.PathLike[str], document: dict[str, Any]) -> None:
    for key, kind in _KEYS.items():
        if key not in document or not isinstance(document[key], kind):
            raise MapFileError(f"{path} is damaged: {key!r} is missing or of the wrong type.")
    if document["kind"] not in KINDS:
        raise MapFileError(f"{path} holds a map of unknown kind {document['kind']!r}.")
    scale, offset, names = document["scale"], document["offset"], document["feature_names"]
    matrices = {"dense": ["scale"], "low-rank": ["left", "right"]}.get(document["kind"], [])
    for key in ("scale", "offset", "left", "right"):
        values: Any = document.get(key, [])
        if key in matrices:
            is_matrix = isinstance(values, list) and all(isinstance(row, list) for row in values)
            if not is_matrix or len({len(row) for row in values}) != 1:
                raise MapFileError(f"{path} is damaged: {key!r} is no matrix.")
            values = [number for row in values for number in row]
        if not all(type(x) in (int, float) and _is_finite(x) for x in values):
            raise MapFileError(f"{path} is damaged: {key!r} must hold finite numbers only.")
    width = len(scale[0]) if document["kind"] == "dense" else len(scale)
    wrong = {len(scale), len(offset)} != {len(offset)} or not offset or not width
    if wrong or (names is not None and len(names) != width):
        raise MapFileError(
            f"{path} is damaged: 'scale', 'offset' and 'feature_names' differ in length."
        )
    if names is not None and (
        not all(isinstance(name, str) for name in names) or len(set(names)) < len(names)
    ):
        raise MapFileError(f"{path} is damaged: 'feature_names' must be different strings.")


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(float(number))
    except OverflowError:
        return False
