"""A map applied to a file, in batches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from condokit.cli.tables import reading_options, refuse_text

if TYPE_CHECKING:
    from condokit.maps import AffineMap

_MOST_WATCHED = 100_000  # rows of a file that are all checked for drift; beyond, every tenth


def apply_to_file(
    affine: AffineMap,
    incoming: str,
    output: str,
    force: bool,
    reading: dict[str, Any],
    output_format: str | None = None,
) -> Any:
    """Map a file in batches, watching for drift; return what was noticed."""
    from condokit._validation import FileError
    from condokit.drift import Monitor
    from condokit.files import open_writer, scan_table
    from condokit.streaming import map_batch, some_rows

    if output.endswith(".h5ad"):
        return _apply_to_h5ad(affine, incoming, output, force)
    with (
        scan_table(incoming, **reading_options(reading)) as scan,
        open_writer(output, format=output_format, force=force) as writer,
        _progress(scan.n_rows) as advance,
    ):
        names, profile = affine.feature_names, affine.fitted_on
        monitor = Monitor(names, affine.n_features_in_, profile, scan.names, len(scan.names))
        stops = [finding.text for finding in monitor.findings if finding.level == "stop"]
        if stops:
            raise FileError(f"{incoming}: {stops[0]}")
        refuse_text(incoming, list(names or scan.names), scan.schema)
        n_rows = 0
        for batch in scan:
            writer.write(map_batch(affine, batch))
            if monitor.can_compare:
                monitor.update(some_rows(affine, batch, 1 if n_rows < _MOST_WATCHED else 10))
            n_rows += batch.num_rows
            advance(n_rows)
    return monitor.result(n_rows)


def _apply_to_h5ad(affine: AffineMap, incoming: str, output: str, force: bool) -> Any:
    """Map the features of an AnnData file, and keep all else that is in it."""
    from condokit._validation import FileError
    from condokit.files import check_target, read_table, replace_h5ad
    from condokit.streaming import map_batch

    if not incoming.endswith(".h5ad"):
        raise FileError(f"{output}: .h5ad can only be written from .h5ad; choose .parquet.")
    check_target(output, force)
    table = read_table(incoming)
    found = affine.check(table)
    if found.verdict == "stop":
        raise FileError(f"{incoming}: {found.findings[0].text}")
    replace_h5ad(incoming, output, map_batch(affine, table), force)
    return found


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
