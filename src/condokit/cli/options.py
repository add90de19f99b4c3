"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click import option

_READING = ("format", "delimiter", "na_values", "encoding", "decimal")
_ROLES = ("domain", "reference_label", "confounders", "features", "groups", "weights", "missing")
DATA = ("new", "reference", *_ROLES, *_READING)
APPLIED = ("domain", "reference_label", *_READING)


def _together(*options: Callable[..., Any]) -> Callable[..., Any]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(options):
            command = each(command)
        return command

    return decorate


json = option("--json", "as_json", is_flag=True, help="Print a record for machines.")
verbose = option("--verbose", "-v", is_flag=True, help="Show progress of long fits.")
overlap = _together(
    option("--warn-overlap", type=float, default=0.4, show_default=True),
    option("--min-overlap", type=float, default=0.05, show_default=True),
)
force = option("--force", is_flag=True, help="Replace existing files.")
reading = _together(
    option("--format", help="Format of input, if its name does not tell."),
    option("--delimiter", help="Delimiter of text tables; detected by default."),
    option(
        "--na",
        "na_values",
        multiple=True,
        metavar="MARK",
        callback=lambda _, __, marks: list(marks) or None,
        help="Mark of missing values, in place of the usual ones (nothing, NA, N/A, n/a, #N/A, "
        "NaN, nan, null, NULL, None and, among numbers, . and -); repeatable.",
    ),
    option("--encoding", default="utf-8", show_default=True, help="Encoding of text tables."),
    option("--decimal", default=".", show_default=True, help="Decimal mark of text tables."),
)
domain = _together(
    option("--domain", metavar="COLUMN", help="With one table: the column of the domain."),
    option(
        "--reference-label",
        metavar="LABEL",
        help="With --domain: which is OLD. Its rows are never changed.",
    ),
)
data = _together(
    click.argument("new"),
    option("--reference", metavar="OLD", help="The table that NEW should look like."),
    domain,
    option(
        "--confounders",
        "-c",
        multiple=True,
        metavar="NAME[:cat|:num],...",
        help="Columns that differ between domains for reasons that are not technical.",
    ),
    option(
        "--features",
        "-f",
        multiple=True,
        metavar="PATTERN,...",
        help="Feature columns; default: all other numeric columns, or the variables of h5ad.",
    ),
    option("--groups", metavar="COLUMN", help="The subject of each row."),
    option("--weights", metavar="COLUMN", help="How many rows each row counts for."),
    option(
        "--missing",
        type=click.Choice(["raise", "drop", "impute"]),
        default="raise",
        show_default=True,
        help="Missing confounders.",
    ),
    reading,
)
fitting = _together(
    option(
        "--map",
        "map_",
        default="location-scale",
        show_default=True,
        metavar="NAME",
        help="auto, identity, shift, location-scale, affine, orthogonal, similarity, or "
        "low-rank[:RANK].",
    ),
    option(
        "--divergence",
        default="auto",
        show_default=True,
        metavar="NAME",
        help="auto, reverse-kl, forward-kl, jeffreys, likelihood, ot, pc-match, mmd, mmd-paper, "
        "energy, sliced-wasserstein, or procrustes.",
    ),
    option("--shrinkage", default="auto", show_default=True, help="auto, none, or 0 to 1."),
    option(
        "--link",
        "links",
        multiple=True,
        metavar="FEATURE=log|logit|POWER",
        help="Keep a feature positive or bounded; repeatable.",
    ),
    overlap,
    option("--seed", type=click.IntRange(0), default=0, show_default=True),
    option(
        "--bootstrap",
        "n_resamples",
        type=click.IntRange(0),
        default=0,
        help="Refits for errors of any map.",
    ),
)
