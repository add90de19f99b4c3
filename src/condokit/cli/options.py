"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_READING = ("format", "delimiter", "na_values", "encoding", "decimal")
_ROLES = ("domain", "reference_label", "confounders", "features", "groups", "weights", "missing")
DATA = ("new", "reference", *_ROLES, *_READING)
APPLIED = ("domain", "reference_label", *_READING)


def _options(*options: Callable[..., Any]) -> Callable[..., Any]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


with_json = click.option("--json", "as_json", is_flag=True, help="Print a record for machines.")
with_verbose = click.option("--verbose", "-v", is_flag=True, help="Show progress of long fits.")
with_overlap = _options(
    click.option("--warn-overlap", type=float, default=0.4, show_default=True),
    click.option("--min-overlap", type=float, default=0.05, show_default=True),
)
with_force = click.option("--force", is_flag=True, help="Replace existing files.")
with_reading = _options(
    click.option("--format", help="Format of input, if its name does not tell."),
    click.option("--delimiter", help="Delimiter of text tables; detected by default."),
    click.option(
        "--na",
        "na_values",
        multiple=True,
        metavar="MARK",
        callback=lambda _, __, marks: list(marks) or None,
        help="Mark of missing values, in place of the usual ones (nothing, NA, N/A, n/a, #N/A, "
        "NaN, nan, null, NULL, None and, among numbers, . and -); repeatable.",
    ),
    click.option("--encoding", default="utf-8", show_default=True, help="Encoding of text tables."),
    click.option("--decimal", default=".", show_default=True, help="Decimal mark of text tables."),
)
with_domain = _options(
    click.option("--domain", metavar="COLUMN", help="With one table: the column of the domain."),
    click.option(
        "--reference-label",
        metavar="LABEL",
        help="With --domain: which is OLD. Its rows are never changed.",
    ),
)
with_data = _options(
    click.argument("new"),
    click.option("--reference", metavar="OLD", help="The table that NEW should look like."),
    with_domain,
    click.option(
        "--confounders",
        "-c",
        multiple=True,
        metavar="NAME[:cat|:num],...",
        help="Columns that differ between domains for reasons that are not technical.",
    ),
    click.option(
        "--features",
        "-f",
        multiple=True,
        metavar="PATTERN,...",
        help="Feature columns; default: all other numeric columns, or the variables of h5ad.",
    ),
    click.option("--groups", metavar="COLUMN", help="The subject of each row."),
    click.option("--weights", metavar="COLUMN", help="How many rows each row counts for."),
    click.option(
        "--missing",
        type=click.Choice(["raise", "drop", "impute"]),
        default="raise",
        show_default=True,
        help="Missing confounders.",
    ),
    with_reading,
)
with_fitting = _options(
    click.option(
        "--map",
        "map_",
        default="location-scale",
        show_default=True,
        metavar="NAME",
        help="auto, identity, shift, location-scale, affine, orthogonal, similarity, or "
        "low-rank[:RANK].",
    ),
    click.option(
        "--divergence",
        default="auto",
        show_default=True,
        metavar="NAME",
        help="auto, reverse-kl, forward-kl, jeffreys, likelihood, ot, pc-match, mmd, mmd-paper, "
        "energy, sliced-wasserstein, or procrustes.",
    ),
    click.option("--shrinkage", default="auto", show_default=True, help="auto, none, or 0 to 1."),
    click.option(
        "--link",
        "links",
        multiple=True,
        metavar="FEATURE=log|logit|POWER",
        help="Keep a feature positive or bounded; repeatable.",
    ),
    with_overlap,
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True),
    click.option(
        "--bootstrap",
        "n_resamples",
        type=click.IntRange(0),
        default=0,
        help="Refits for errors of any map.",
    ),
)
