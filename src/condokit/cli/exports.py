"""Maps, and the maps of many batches, as files for other systems."""

import csv
import re
from pathlib import Path
from typing import Any

from click import UsageError

from condokit import export as exports
from condokit.cli.apply_file import is_folder as is_folder
from condokit.cli.apply_file import map_of_label

_ENDINGS = {"onnx": "onnx", "python": "py", "r": "R"}


def exported(known: Any, paths: dict[str, str | None], options: dict[str, Any]) -> dict[str, bytes]:
    """Return the content of files by path: of a map, or of one for each batch."""
    many, label = known.kinds == ("batches",), options["batch_label"]
    if not many and (label is not None or options["batch"] is not None):
        raise UsageError("The file holds one map, for which there are no batches.")
    maps: Any = {"": known}
    if many:
        maps = known.maps_ if label is None else {"": map_of_label(known, label)}
    made: dict[str, bytes] = {}
    for language, path in paths.items():
        if path is None:
            continue
        if language == "sql":
            made[path] = _sql(maps, known, options).encode()
        elif "" in maps:
            made[path] = _content(maps[""], language, options)
        else:
            made |= _one_for_each(maps, language, path, options)
    return made


def _content(affine: Any, language: str, options: dict[str, Any]) -> bytes:
    if language == "onnx":
        dtype = "float32" if options["float32"] else "float64"
        return exports.to_onnx(affine, named=options["named"], dtype=dtype)
    return (exports.to_python if language == "python" else exports.to_r)(affine).encode()


def _one_for_each(
    maps: dict[Any, Any], language: str, path: str, options: dict[str, Any]
) -> dict[str, bytes]:
    """Return a file for each batch in a folder, which is made."""
    if not is_folder(path):
        raise UsageError(f"--{language}: many batches need a folder ({path}/), or --batch-label.")
    names = [re.sub(r"[^\w.-]", "_", str(label)).lstrip(".") or "_" for label in maps]
    if len({name.casefold() for name in names}) < len(names):
        raise UsageError("Two labels give the same file name: use --batch-label for each.")
    Path(path).mkdir(parents=True, exist_ok=True)
    return {
        str(Path(path) / f"{name}.{_ENDINGS[language]}"): _content(one, language, options)
        for name, one in zip(names, maps.values())
    }


def _sql(maps: dict[Any, Any], known: Any, options: dict[str, Any]) -> str:
    """Return the query of a map, or of all with the label of each row."""
    whole = len(options["table"].splitlines()) == 1  # neither nothing nor several lines
    table = next(csv.reader([options["table"]], delimiter=".")) if whole else [""]
    if not all(table):
        raise UsageError(f"--table {options['table']!r} is neither TABLE nor SCHEMA.TABLE.")
    how = {"keep": list(options["keep"]), "dialect": options["dialect"]}
    if "" in maps:
        return exports.to_sql(maps[""], table, **how)
    column = options["batch"] or dict(known.provenance_).get("column")
    if column is None:
        raise UsageError("Name the column of the batches with --batch.")
    return exports.to_sql(maps, table, batch=column, **how)
