"""A map applied to a file, in batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from condokit.checks import FileError
from condokit.cli.map_arrow import map_batch, some_rows
from condokit.cli.printing import tell
from condokit.cli.tables import check_label, labels_of, refuse_text, refuse_unknown
from condokit.io import is_text, open_writer, read_table, replace_h5ad, scan_table
from condokit.io.progress import progress
from condokit.maps.affine import AffineMap
from condokit.maps.profile import Monitor

_MOST_WATCHED = 100_000  # rows of a file that are all checked for drift; beyond, every tenth


class _Reference(NamedTuple):
    """Which rows are of the reference and stay as they are, if there is a column that tells."""

    column: str | None
    label: str | None

    def split(self, path: str, table: Any) -> tuple[Any, Any]:
        """Return a mark for every row that stays, and the other rows."""
        if self.column is None:
            return None, table
        refuse_unknown(path, [self.column], table.column_names)
        stays = np.array([label == self.label for label in labels_of(table.column(self.column))])
        return stays, table.filter(~stays)

    def tell(self, n_stay: int) -> None:
        if self.column is not None:
            tell(
                f"{n_stay:,} rows with {self.column} = {self.label} are of the reference, "
                "and stay as they are."
            )


def apply_to_file(
    affine: AffineMap,
    incoming: str,
    output: str,
    force: bool,
    *,
    domain: str | None,
    reference_label: str | None,
    output_format: str | None = None,
    **reading: Any,
) -> Any:
    """Map a file in batches, watching for drift; return what was noticed.

    With a column of domains, rows of the reference stay as they are. From text to text, all other
    columns stay as they are written.
    """
    check_label(domain, reference_label)
    reference = _Reference(domain, reference_label)
    if output.endswith(".h5ad"):
        return _apply_to_h5ad(affine, incoming, output, force, reference)
    names = affine.feature_names
    if is_text(incoming, reading["format"]):
        verbatim = names is not None and is_text(output, output_format)
        reading |= {"texts": None if verbatim else [domain], "numbers": names or ()}
    with (
        scan_table(incoming, **reading) as scan,
        open_writer(output, format=output_format, force=force) as writer,
        progress("rows", scan.n_rows) as advance,
    ):
        n_features, profile = affine.n_features_in_, affine.fitted_on
        monitor = Monitor(names, n_features, profile, scan.names, len(scan.names))
        stops = [finding.text for finding in monitor.findings if finding.level == "stop"]
        if stops:
            raise FileError(f"{incoming}: {stops[0]}")
        refuse_text(incoming, names or scan.names, scan.schema, scan, reading["decimal"])
        n_rows = n_mapped = 0
        for batch in scan:
            stays, moved = reference.split(incoming, batch)
            writer.write(map_batch(affine, batch, stays))
            if monitor.can_compare:
                monitor.update(some_rows(affine, moved, 1 if n_rows < _MOST_WATCHED else 10))
            n_rows, n_mapped = n_rows + batch.num_rows, n_mapped + moved.num_rows
            advance(n_rows)
    reference.tell(n_rows - n_mapped)
    return monitor.result(n_mapped)


def _apply_to_h5ad(
    affine: AffineMap, incoming: str, output: str, force: bool, reference: _Reference
) -> Any:
    """Map the features of an AnnData file, and keep all else that is in it."""
    if not incoming.endswith(".h5ad"):
        raise FileError(f"{output}: .h5ad can only be written from .h5ad; choose .parquet.")
    table = read_table(incoming)
    stays, moved = reference.split(incoming, table)
    found = affine.check(moved)
    if found.verdict == "stop":
        raise FileError(f"{incoming}: {found.findings[0].text}")
    replace_h5ad(incoming, output, map_batch(affine, table, stays), force)
    reference.tell(len(table) - len(moved))
    return found
