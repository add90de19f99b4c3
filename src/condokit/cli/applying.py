"""A map applied to a file, in batches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from condokit.cli.printing import tell
from condokit.cli.tables import check_label, labels_of, reading_options, refuse_text, refuse_unknown

if TYPE_CHECKING:
    from condokit.maps.affine import AffineMap

_MOST_WATCHED = 100_000  # rows of a file that are all checked for drift; beyond, every tenth


def apply_to_file(
    affine: AffineMap,
    incoming: str,
    output: str,
    force: bool,
    domain: str | None,
    reference_label: str | None,
    output_format: str | None = None,
    **reading: Any,
) -> Any:
    """Map a file in batches, watching for drift; return what was noticed.

    With a column of domains, rows of the reference stay as they are. From text to text, all other
    columns stay as they are written.
    """
    from condokit.checks import FileError
    from condokit.cli.map_arrow import map_batch, some_rows
    from condokit.io import is_text, open_writer, scan_table
    from condokit.maps.profile import Monitor

    check_label(domain, reference_label)
    if output.endswith(".h5ad"):
        return _apply_to_h5ad(affine, incoming, output, force, domain, reference_label)
    options = reading_options(reading)
    if is_text(incoming, options["format"]):
        verbatim = affine.feature_names is not None and is_text(output, output_format)
        options["texts"] = None if verbatim else [domain]
        options["numbers"] = affine.feature_names or ()
    with (
        scan_table(incoming, **options) as scan,
        open_writer(output, format=output_format, force=force) as writer,
        _progress(scan.n_rows) as advance,
    ):
        names, profile = affine.feature_names, affine.fitted_on
        monitor = Monitor(names, affine.n_features_in_, profile, scan.names, len(scan.names))
        stops = [finding.text for finding in monitor.findings if finding.level == "stop"]
        if stops:
            raise FileError(f"{incoming}: {stops[0]}")
        refuse_text(incoming, names or scan.names, scan.schema, scan, options["decimal"])
        n_rows = n_mapped = 0
        for batch in scan:
            as_is = _as_is(incoming, batch, domain, reference_label)
            writer.write(map_batch(affine, batch, as_is))
            moved = batch if as_is is None else batch.filter(~as_is)
            if monitor.can_compare:
                monitor.update(some_rows(affine, moved, 1 if n_rows < _MOST_WATCHED else 10))
            n_rows, n_mapped = n_rows + batch.num_rows, n_mapped + moved.num_rows
            advance(n_rows)
    _tell_of_labels(n_rows, n_mapped, domain, reference_label)
    return monitor.result(n_mapped)


def _apply_to_h5ad(
    affine: AffineMap,
    incoming: str,
    output: str,
    force: bool,
    domain: str | None,
    reference_label: str | None,
) -> Any:
    """Map the features of an AnnData file, and keep all else that is in it."""
    from condokit.checks import FileError
    from condokit.cli.map_arrow import map_batch
    from condokit.io import read_table, replace_h5ad

    if not incoming.endswith(".h5ad"):
        raise FileError(f"{output}: .h5ad can only be written from .h5ad; choose .parquet.")
    table = read_table(incoming)
    as_is = _as_is(incoming, table, domain, reference_label)
    moved = table if as_is is None else table.filter(~as_is)
    found = affine.check(moved)
    if found.verdict == "stop":
        raise FileError(f"{incoming}: {found.findings[0].text}")
    replace_h5ad(incoming, output, map_batch(affine, table, as_is), force)
    _tell_of_labels(len(table), len(moved), domain, reference_label)
    return found


def _as_is(path: str, batch: Any, domain: str | None, reference_label: str | None) -> Any:
    """Mark the rows of the reference, if there is a column that tells."""
    if domain is None:
        return None
    refuse_unknown(path, [domain], batch.column_names)
    return np.array([label == reference_label for label in labels_of(batch.column(domain))])


def _tell_of_labels(
    n_rows: int, n_mapped: int, domain: str | None, reference_label: str | None
) -> None:
    if domain is not None:
        tell(
            f"{n_rows - n_mapped:,} rows with {domain} = {reference_label} are of the reference, "
            "and stay as they are."
        )


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[int], None]]:
    """Show how many rows are done, where a person watches."""
    watched, shown = sys.stderr.isatty(), time.monotonic()
    wrote = False

    def advance(done: int) -> None:
        nonlocal shown, wrote
        now = time.monotonic()
        if watched and now - shown > 0.2:
            shown, wrote = now, True
            share = f" of {total:,} ({done / max(total, 1):.0%})" if total else ""
            sys.stderr.write(f"\r{done:,}{share} rows")
            sys.stderr.flush()

    try:
        yield advance
    finally:
        if wrote:
            sys.stderr.write("\r\033[K")
