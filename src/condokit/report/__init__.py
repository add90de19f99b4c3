"""The report: everything known of a map as one plain record, and as one page for scientists."""

import os
from typing import Any

from condokit.adapter import ConDoAdapter
from condokit.batches.adapter import BatchAdapter
from condokit.io import write_files
from condokit.report.contents import build
from condokit.report.render import render
from condokit.trust.blocks import read_as_fitted

__all__ = ["render", "save"]


def save(
    path: str | os.PathLike[str],
    adapter: ConDoAdapter | BatchAdapter,
    X: Any,
    X_reference: Any = None,
    *,
    domain: Any = None,
    batch: Any = None,
    confounders: Any = None,
    features: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    bridge: Any = None,
    force: bool = False,
) -> dict[str, Any]:
    """Write the report of a fitted adapter as one HTML file, and return its record.

    Parameters
    ----------
    path : str or path
        The file to write.
    adapter : ConDoAdapter or BatchAdapter
        A fitted adapter.
    X, X_reference, domain, batch, confounders, features, groups, sample_weight, bridge
        The table that it was fitted on, as in `ConDoAdapter.fit`, or both, as in `fit_pair`; of a
        `BatchAdapter`, `batch` in place of `domain`, as in `BatchAdapter.fit`. Roles that were
        names of columns need not be given again.
    force : bool, default=False
        Replace an existing file.

    Returns
    -------
    dict
        Everything that the page shows, as plain numbers and text.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from condokit import ConDoAdapter, datasets, report
    >>> df = datasets.make_eeg(100, 100, random_state=0).to_frame()
    >>> roles = {"domain": "device", "confounders": "seizure", "features": ["*F3", "*F4"]}
    >>> adapter = ConDoAdapter(reference="v1").fit(df, **roles)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     record = report.save(Path(folder, "report.html"), adapter, df, **roles)
    >>> record["verdict"]["word"]
    'better'
    """
    if isinstance(adapter, BatchAdapter):
        study = adapter.read_as_fitted(X, batch, confounders, groups, sample_weight, bridge)
    else:
        roles = domain, confounders, features, groups, sample_weight
        study = read_as_fitted(adapter, X, *roles, other=X_reference)
    record = build(adapter, study)
    write_files({path: render(record).encode()}, force)
    return record
