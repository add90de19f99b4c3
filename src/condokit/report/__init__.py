"""The report: everything known of a map as one plain record, and as one page for scientists."""

import os
from typing import Any

from condokit.adapter import ConDoAdapter
from condokit.io import write_files
from condokit.report.contents import build
from condokit.report.render import render
from condokit.trust.blocks import read_as_fitted

__all__ = ["build", "render", "save"]


def save(
    path: str | os.PathLike[str],
    adapter: ConDoAdapter,
    X: Any,
    *,
    domain: Any,
    confounders: Any = None,
    features: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    force: bool = False,
) -> dict[str, Any]:
    """Write the report of a fitted adapter as one HTML file, and return its record.

    Parameters
    ----------
    path : str or path
        The file to write.
    adapter : ConDoAdapter
        A fitted adapter.
    X, domain, confounders, features, groups, sample_weight
        The table that it was fitted on, as in `ConDoAdapter.fit`.
    force : bool, default=False
        Replace an existing file.

    Returns
    -------
    dict
        Everything that the page shows, as plain numbers and text.
    """
    domains = read_as_fitted(adapter, X, domain, confounders, features, groups, sample_weight)
    record = build(adapter, domains)
    write_files({path: render(record).encode()}, force)
    return record
