"""Formats of files by their names, requests to read them, and errors of one line."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from condokit.checks import FileError, did_you_mean, listing, repeated, said

if TYPE_CHECKING:
    import pyarrow as pa

PathLike = str | os.PathLike[str]

DELIMITERS = {"csv": ",", "tsv": "\t", "txt": "\t"}
_VALUES = 1 << 21  # per batch: 16 MB of float64
_FORMATS = {name: name for name in (*DELIMITERS, "parquet", "arrow", "h5ad", "xlsx")}
_FORMATS |= {"pq": "parquet", "feather": "arrow"}


class Request(NamedTuple):
    """What to read of a file; `files` is the stack that closes whatever is opened for it."""

    path: PathLike
    files: ExitStack
    batch_rows: int | None  # None: about 16 MB
    is_piped: bool  # whether it is standard input
    is_whole: bool  # whether all is read at once
    columns: Sequence[str] | None = None  # of Parquet: others are not read
    content: bytes | None = None  # text made from a file that is not text (Excel)

    def check(self, names: Sequence[str]) -> None:
        """Raise an error if a name of a column occurs twice."""
        check_names(self.path, names)

    def rows_of_batch(self, n_columns: int) -> int:
        """Return the largest number of rows of a batch."""
        return self.batch_rows or max(_VALUES // max(n_columns, 1), 1)


class Content(NamedTuple):
    """The content of a file: its schema, its number of rows if known, and its tables."""

    schema: pa.Schema
    n_rows: int | None
    tables: Iterator[pa.Table]


def format_of(path: PathLike, format: str | None) -> tuple[str, bool]:
    """Return the format, and whether it is compressed."""
    name = format or ("csv" if str(path) == "-" else Path(path).name)
    stem = name.casefold().removesuffix(".gz")
    kind, zipped = _FORMATS.get(stem.rpartition(".")[2], ""), stem != name.casefold()
    if not kind or (zipped and kind not in DELIMITERS):
        raise FileError(
            f"{shown(path)}: the format of {name!r} is not known. The known endings are "
            ".csv, .tsv, .txt (each also .gz), .parquet, .pq, .feather, .arrow, .h5ad and .xlsx."
        )
    return kind, zipped


def is_text(path: PathLike, format: str | None) -> bool:
    """Return whether a file is delimited text."""
    return format_of(path, format)[0] in DELIMITERS


def shown(path: PathLike, task: str = "read") -> str:
    """Return the name of a file for messages."""
    stream = "Standard input" if task == "read" else "Standard output"
    return stream if str(path) == "-" else str(path) or "An empty name"


def exists(name: str) -> FileError:
    """Return the error that refuses to replace a file."""
    return FileError(said("{name} exists; {@set force to True} to replace it.", name=name))


@contextmanager
def worded(path: PathLike, task: str = "read") -> Iterator[None]:
    """Turn all errors that occur with a file into a `FileError` of one line."""
    name = shown(path, task)
    try:
        yield
    except (FileError, ModuleNotFoundError):
        raise
    except FileNotFoundError as error:
        folder = Path(path).parent
        if not folder.is_dir():
            raise FileError(f"{name} does not exist: there is no folder {folder}.") from error
        hint = did_you_mean(Path(path).name, os.listdir(folder))
        raise FileError(f"{name} does not exist.{hint}") from error
    except FileExistsError as error:
        raise exists(name) from error
    except IsADirectoryError as error:
        raise FileError(f"{name} is a folder, not a file.") from error
    except (EOFError, zlib.error) as error:
        raise FileError(f"{name} is damaged or cut short: {error}.".replace("..", ".")) from error
    except BrokenPipeError as error:
        if str(path) == "-":  # the reader of standard output has closed it, which is no error
            raise
        raise FileError(f"{name} was closed by its reader.") from error
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        reason = os.strerror(number).lower() if number else str(error) or type(error).__name__
        line = next(iter(reason.splitlines()), "").rstrip(".")[:300]
        raise FileError(f"{name} cannot be {task}: {line}.") from error


def check_names(path: PathLike, names: Sequence[str], wanted: Sequence[str] = ()) -> None:
    """Raise an error for names of columns that occur twice, and for wanted ones that are absent."""
    if twice := repeated(names):
        raise FileError(f"{shown(path)} has duplicate column names: {listing(twice)}.")
    known = set(names)
    if unknown := [name for name in wanted if name not in known]:
        hint = f"{did_you_mean(unknown[0], names)} Its columns are {listing(names, 10) or 'none'}."
        raise FileError(f"{shown(path)} has no column {listing(unknown)}.{hint}")


def is_number(kind: Any) -> bool:
    """Return whether a type of Arrow is numeric."""
    types = arrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def need(module: str, why: str, extra: str) -> Any:
    """Import a module, or raise an error that names the extra of condokit to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"{why}: install condokit with the extra '{extra}', condokit[{extra}]."
        ) from None


def arrow() -> Any:
    """Return pyarrow, imported only here: it is slow to load and not needed for arrays."""
    import pyarrow
    import pyarrow.compute

    return pyarrow
