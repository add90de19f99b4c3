"""A map applied to a file, in batches, and column by column where the map allows it."""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np

from condokit.checks import Array, FileError, listing
from condokit.cli.outputs import tell
from condokit.cli.tables import check_label, labels_of, refuse_text
from condokit.data.disclosure import counted
from condokit.data.roles import batch_of_rows
from condokit.data.tables import Table
from condokit.io import files_of, is_text, open_writer, replace_h5ad, scan_table
from condokit.io.formats import arrow, check_names
from condokit.io.progress import watched
from condokit.maps.affine import AffineMap
from condokit.maps.lazily import map_batch, matched, with_columns
from condokit.maps.profile import Monitor

pa = arrow()
_MOST_WATCHED = 100_000  # rows of a file that are all checked for drift; beyond, every tenth


def apply_to_file(
    affine: AffineMap,
    incoming: str,
    output: str,
    force: bool,
    *,
    domain: str | None,
    reference_label: str | None,
    query_label: str | None = None,
    output_format: str | None = None,
    **reading: Any,
) -> Any:
    """Map a file, watching for drift, and return what was noticed; rows of the reference stay."""
    # as do those of a third label, if the query's is named; from text to text, all other columns
    # stay as they are written. An output that is a folder has a file for each that comes in.
    check_label(domain, reference_label, query_label)
    fitted = dict(affine.provenance or {}).get("domains", {})
    column, old, seen = fitted.get("column"), fitted.get("reference"), set[Any]()
    n_rows = n_mapped = 0

    def split(table: Any) -> tuple[Array | None, Any]:
        """Return a mark for every row that stays, and the other rows."""
        if domain is None:
            seen.update(labels_of(table[column].unique()) if column in table.column_names else ())
            return None, table
        check_names(incoming, table.column_names, [domain])
        labels = labels_of(table.column(domain))
        named = reference_label if query_label is None else query_label
        stays = np.array([(x == named) == (query_label is None) for x in labels], dtype=bool)
        return stays, table.filter(~stays)

    names, place = affine.feature_names, (incoming, output, output_format, force)
    with _opened(*place, names, domain, reading) as (scan, write):
        monitor = Monitor(affine, scan.names, len(scan.names))
        if stops := [finding.text for finding in monitor.findings if finding.level == "stop"]:
            raise FileError(f"{scan.path}: {stops[0]}")
        refuse_text(scan.path, names or scan.names, scan.schema, scan, reading["decimal"])
        for part in watched(scan, scan.n_rows):
            stays, moved = split(part)
            write(map_batch(affine, part, stays))
            if monitor.can_compare:
                some = moved if n_rows < _MOST_WATCHED else moved.take(np.arange(0, len(moved), 10))
                monitor.watch(matched(affine, some))
            n_rows, n_mapped = n_rows + len(part), n_mapped + len(moved)
    if column and old in seen:
        text = (
            f"warning: rows with {column} = {old} are of the reference, and were mapped as well. "
        )
        tell(f"{text}They stay as they are with --domain {column} --reference-label {old}.")
    if domain is not None:
        which = f"with {domain} = {reference_label} are of the reference, and"
        which = which if query_label is None else f"without {domain} = {query_label}"
        tell(f"{counted(n_rows - n_mapped)} rows {which} stay as they are.")
    return monitor.result(n_mapped)


def apply_batches(
    adapter: Any,
    incoming: str,
    output: str,
    inverse: bool,
    *,
    batch: str | None,
    force: bool,
    output_format: str | None = None,
    **reading: Any,
) -> int:
    """Map a file by the maps of its rows' batches, and return its number of rows."""
    from condokit.fit.estimator import map_rows

    column = batch or dict(adapter.provenance_).get("column")
    if column is None:
        raise click.UsageError("Name the column of the batches with --batch.")
    if any(reading.pop(name) is not None for name in ("domain", "reference_label", "query_label")):
        raise click.UsageError("--domain and its labels do not go with maps of batches: --batch.")
    maps = {label: one.inverse() if inverse else one for label, one in adapter.maps_.items()}
    known = {str(label): label for label in maps}
    names, n_rows = next(iter(maps.values())).feature_names, 0

    def moved(part: Any) -> Any:
        labels = [known.get(str(x), x) for x in labels_of(part.column(column))]
        code = batch_of_rows(labels, Table(part), list(maps))
        table = Table(part).match(names, adapter.n_features_in_, "the map")
        values = map_rows(table, code, list(maps.values()))
        mapped = [pa.array(one, from_pandas=True) for one in values.T]
        return with_columns(part, list(names or part.column_names), mapped)

    place = incoming, output, output_format, force
    with _opened(*place, names, column, reading) as (scan, write):
        check_names(incoming, scan.names, [column, *(names or ())])
        refuse_text(incoming, names or scan.names, scan.schema, scan, reading["decimal"])
        for part in watched(scan, scan.n_rows):
            write(moved(part))
            n_rows += len(part)
    return n_rows


@contextmanager
def _opened(
    incoming: str,
    output: str,
    format: str | None,
    force: bool,
    names: Sequence[str] | None,
    column: str | None,
    reading: dict[str, Any],
) -> Iterator[tuple[Any, Any]]:
    """Open what is read, and yield it with what writes a part of it in its place."""
    if output.endswith(".h5ad"):  # all else that is in it stays
        if not incoming.endswith(".h5ad"):
            raise FileError(f"{output}: .h5ad can only be written from .h5ad; choose .parquet.")
        whole: list[Any] = []
        with scan_table(incoming, batch_rows=sys.maxsize) as scan:
            yield scan, whole.append
        replace_h5ad(incoming, output, whole[0], force)
        return
    reading = reading | _text_columns(incoming, output, reading, format, names, column)
    with scan_table(incoming, **reading) as scan, ExitStack() as stack:
        if is_folder(output):  # files take their names together, at the end
            yield scan, _Folder(scan, Path(output), format, force, stack).write
        else:
            writer = open_writer(output, format=format, force=force)
            yield scan, stack.enter_context(writer).write


def _text_columns(
    incoming: str, output: str, reading: Any, format: str | None, names: Any, column: str | None
) -> dict[str, Any]:
    """Return which columns are read as text: from text to text all others than the features."""
    first = files_of(incoming)[0]
    if not is_text(first, reading["format"]):
        return {}
    to_text = is_text(first if is_folder(output) else output, format)
    return {"texts": None if names is not None and to_text else [column], "numbers": names or ()}


def is_folder(output: str) -> bool:
    """Tell whether an output is a folder, in which every file that comes in has one."""
    return output != "-" and (output.endswith(("/", os.sep)) or Path(output).is_dir())


def targets(incoming: str, output: str) -> list[str]:
    """Return the files that are written."""
    if not is_folder(output):
        return [output]
    names = [Path(file).name for file in files_of(incoming)]
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise FileError(f"{output}: several files are called {listing(twice)}; map them apart.")
    return [str(Path(output) / name) for name in names]


class _Folder:
    """Writes the batches of every file into one of the same name."""

    def __init__(
        self, scan: Any, folder: Path, format: str | None, force: bool, stack: ExitStack
    ) -> None:
        self.scan, self.folder, self.how, self.stack = scan, folder, (format, force), stack
        self.path: Any = None
        self.writer: Any = None

    def write(self, table: Any) -> None:
        """Append rows of the file that is being read."""
        if self.scan.current != self.path:
            if self.path is not None:
                self.writer.flush()
            self.path, (format, force) = self.scan.current, self.how
            target = self.folder / Path(self.path).name
            self.writer = self.stack.enter_context(open_writer(target, format=format, force=force))
        self.writer.write(table)
