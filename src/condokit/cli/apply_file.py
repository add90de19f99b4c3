"""A map applied to a file, in batches, and column by column where the map allows it."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from click import UsageError

from condokit.checks import Array, FileError, did_you_mean, listing, repeated
from condokit.cli.options import SHEET
from condokit.cli.outputs import NotMet, tell
from condokit.cli.tables import arranged_table, check_label, labels_of, refuse_text
from condokit.data.disclosure import counted
from condokit.data.roles import batch_of_rows
from condokit.data.tables import Table
from condokit.io import files_of, is_text, open_writer, replace_h5ad, scan_table
from condokit.io.formats import arrow, check_names
from condokit.io.progress import watched
from condokit.io.writing import written_format
from condokit.maps.base import Map
from condokit.maps.lazily import map_batch, matched, with_columns
from condokit.maps.profile import VERDICTS, Check, Monitors

pa = arrow()
_MOST_WATCHED = 100_000  # rows of a file that are all checked for drift; beyond, every tenth


class OneMap:
    """A map for all rows, but for those that a column says are not of the query."""

    def __init__(
        self,
        affine: Map,
        domain: str | None = None,
        reference_label: str | None = None,
        query_label: str | None = None,
    ) -> None:
        check_label(domain, reference_label, query_label)
        self.maps: dict[Any, Map] = {None: affine}
        self.column, self.labels = domain, (query_label, reference_label)
        fitted = dict(affine.provenance or {}).get("domains", {})
        self.fitted, self.old = fitted.get("column"), fitted.get("reference")
        self.seen, self.n_rows, self.n_mapped = set[Any](), 0, 0

    def place(self, table: Any) -> Array:
        """Return 0 for every row that is mapped, -1 for others."""
        code, (new, old) = np.zeros(len(table), dtype=np.intp), self.labels
        if self.column is None:
            there = self.fitted in table.column_names
            self.seen.update(labels_of(table[self.fitted].unique()) if there else ())
        else:
            labels = labels_of(table.column(self.column))
            code -= [x == old if new is None else x != new for x in labels]
        self.n_rows, self.n_mapped = self.n_rows + len(code), self.n_mapped + int((code == 0).sum())
        return code

    def mapped(self, table: Any, code: Array) -> Any:
        """Return the rows, mapped."""
        return map_batch(self.maps[None], table, code < 0 if self.column else None)

    def tell(self) -> None:
        """Say which rows stayed as they are, or should have."""
        new, old = self.labels
        if self.fitted and self.old in self.seen:
            which = f"rows with {self.fitted} = {self.old} are of the reference, and were mapped"
            how = f"--domain {self.fitted} --reference-label {self.old}"
            tell(f"warning: {which} as well. To leave them as they are, use {how}.")
        if self.column is not None:
            which = f"with {self.column} = {old} are of the reference, and"
            which = which if new is None else f"without {self.column} = {new}"
            tell(f"{counted(self.n_rows - self.n_mapped)} rows {which} stay as they are.")


class MapsOfBatches:
    """The maps of many batches, each for the rows that have its label in a column."""

    def __init__(self, adapter: Any, batch: str | None, inverse: bool = False) -> None:
        column = batch or dict(adapter.provenance_).get("column")
        if column is None:
            raise UsageError(_which(adapter.maps_))
        self.column: str = column
        self.maps = {k: one.inverse() if inverse else one for k, one in adapter.maps_.items()}
        self.known = {str(label): label for label in self.maps}

    def place(self, table: Any) -> Array:
        """Return the number of each row's map."""
        labels = [self.known.get(str(x), x) for x in labels_of(table.column(self.column))]
        return batch_of_rows(labels, Table(table), list(self.maps))

    def mapped(self, table: Any, code: Array) -> Any:
        """Return the rows, mapped."""
        from condokit.fit.estimator import map_rows  # which takes long to import

        each = list(self.maps.values())
        values = map_rows(matched(each[0], table), code, each)
        made = [pa.array(one, from_pandas=True) for one in values.T]
        return with_columns(table, list(each[0].feature_names or table.column_names), made)

    def tell(self) -> None:
        """Say nothing: every row has its map."""


def _which(maps: Any) -> str:
    text = "Name the column of the batches with --batch or, if all rows are of one batch, the batch"
    return f"{text} with --batch-label: {listing(maps, 12)}."


def one_or_many(
    known: Any, path: str, inverse: bool = False, **labels: Any
) -> OneMap | MapsOfBatches:
    """Return how the map or maps in a file go with rows, given options that name labels."""
    batch, label = labels.pop("batch", None), labels.pop("batch_label", None)
    if known.kinds != ("batches",):
        if batch is not None or label is not None:
            raise UsageError(f"{path} holds one map, for which there are no batches.")
        if inverse:
            known = known.pseudo_inverse() if known.is_rectangular else known.inverse()
        return OneMap(known, **labels)
    if any(value is not None for value in labels.values()):
        raise UsageError("With maps of many batches, use --batch in place of --domain.")
    if label is None:
        return MapsOfBatches(known, batch, inverse)
    if batch is not None:
        raise UsageError("Give --batch or --batch-label, not both.")
    one = map_of_label(known, label)
    return OneMap(one.inverse() if inverse else one)


def map_of_label(adapter: Any, label: str) -> Map:
    """Return the map of one batch, whose label is given as text."""
    known = {str(name): one for name, one in adapter.maps_.items()}
    if label not in known:
        hint = did_you_mean(label, known)
        raise ValueError(f"--batch-label {label}: known are {listing(known, 12)}.{hint}")
    found: Map = known[label]
    return found


def apply_to_file(
    rule: OneMap | MapsOfBatches,
    incoming: str,
    output: str | None,
    force: bool = False,
    *,
    fail_on: str | None = None,
    output_format: str | None = None,
    **reading: Any,
) -> Check:
    """Map a file, watching for drift, and return what was noticed; without output, only that."""
    # From text to text, all other columns stay as they are written. An output that is a folder has
    # a file for each that comes in.
    one, n_rows = next(iter(rule.maps.values())), 0
    names, place = one.feature_names, (incoming, output, output_format, force)
    with _opened(*place, names, rule.column, reading) as (scan, write):
        if isinstance(rule, MapsOfBatches) and rule.column not in scan.names:
            raise FileError(f"{incoming} has no column {rule.column!r}. {_which(rule.maps)}")
        check_names(incoming, scan.names, [rule.column] if rule.column else [])
        monitors = Monitors(rule.maps, scan.names, len(scan.names))
        if monitors.stops:
            if output is None:
                return monitors.result()
            raise FileError(f"{scan.path}: {monitors.stops[0]}")
        refuse_text(scan.path, names or scan.names, scan.schema, scan, reading["decimal"])
        for part in watched(scan, scan.n_rows):
            code = rule.place(part)
            monitors.count(code)
            if output is not None:
                write(rule.mapped(part, code))
            if monitors.can_compare:
                rows = np.arange(0, len(part), 1 if n_rows < _MOST_WATCHED else 10)
                some = part if len(rows) == len(part) else part.take(rows)
                monitors.watch(matched(one, some), code[rows])
            n_rows += len(part)
        found = monitors.result()
        refuse_if_not_met(found, fail_on)  # what is written is then thrown away
    rule.tell()
    return found


def refuse_if_not_met(found: Check, fail_on: str | None, with_reasons: bool = True) -> None:
    """Refuse to go on if rows differ as much as they must not."""
    if fail_on is not None and VERDICTS.index(found.verdict) <= VERDICTS.index(fail_on):
        text = f"--fail-on {fail_on}: the verdict on the rows is {found.verdict!r}."
        reasons = [str(finding) for finding in found.findings if finding.level != "note"]
        raise NotMet(" ".join([text, *reasons] if with_reasons else [text]))


@contextmanager
def _opened(
    incoming: str,
    output: str | None,
    format: str | None,
    force: bool,
    names: Sequence[str] | None,
    column: str | None,
    reading: dict[str, Any],
) -> Iterator[tuple[Any, Any]]:
    """Open what is read, and yield it with what writes a part of it in its place."""
    arranged = {name: reading.pop(name, None) for name in SHEET}
    is_arranged = any(arranged.values())
    if output is not None and output.endswith(".h5ad"):  # all else that is in it stays
        if not incoming.endswith(".h5ad") or is_arranged:
            raise FileError(f"{output}: .h5ad can only be written from .h5ad; choose .parquet.")
        whole: list[Any] = []
        with scan_table(incoming, batch_rows=sys.maxsize) as scan:
            yield scan, whole.append
        replace_h5ad(incoming, output, whole[0], force)
        return
    if output is not None and not is_folder(output):
        written_format(output, format)  # before anything is read
    if is_arranged:
        table = arranged_table(incoming, reading | arranged, reading | {"texts": [column]})
        opening: Any = nullcontext(_Whole(incoming, table))
    else:
        reading = reading | _text_columns(incoming, output, reading, format, names, column)
        opening = scan_table(incoming, **reading)
    with opening as scan, ExitStack() as stack:
        if output is None:
            yield scan, None
        elif is_folder(output):  # files take their names together, at the end
            yield scan, _Folder(scan, Path(output), format, force, stack).write
        else:
            writer = open_writer(output, format=format, force=force)
            yield scan, stack.enter_context(writer).write


def _text_columns(
    incoming: str,
    output: str | None,
    reading: Any,
    format: str | None,
    names: Any,
    column: str | None,
) -> dict[str, Any]:
    """Return which columns are read as text: from text to text all others than the features."""
    first = files_of(incoming)[0]
    if not is_text(first, reading["format"]):
        return {}
    to_text = output is not None and is_text(first if is_folder(output) else output, format)
    return {"texts": None if names is not None and to_text else [column], "numbers": names or ()}


def is_folder(output: str) -> bool:
    """Return whether an output is a folder, in which every file that comes in has one."""
    return output != "-" and (output.endswith(("/", os.sep)) or Path(output).is_dir())


def targets(incoming: str, output: str) -> list[str]:
    """Return the files that are written."""
    if not is_folder(output):
        return [output]
    names = [Path(file).name for file in files_of(incoming)]
    if twice := repeated(names):
        raise FileError(f"{output}: several files are called {listing(twice)}; map each alone.")
    return [str(Path(output) / name) for name in names]


class _Whole:
    """A table in memory, in place of one that is read in batches."""

    def __init__(self, path: str, table: Any) -> None:
        self.path, self.current, self.table = path, path, table
        self.names, self.schema, self.n_rows = table.column_names, table.schema, len(table)

    def __iter__(self) -> Iterator[Any]:
        yield self.table


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
