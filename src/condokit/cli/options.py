"""Options that several commands have."""

from collections.abc import Callable
from functools import partial
from typing import Any

import click
from click import IntRange, option

READING = ("format", "delimiter", "na_values", "encoding", "decimal")
_MISSING = click.Choice(["raise", "drop", "impute"])
FORMATS = click.Choice(["png", "svg", "pdf"])
SHEET = ("transpose", "samples", "id")  # how tables are arranged before they are read
LABELS = ("domain", "reference_label", "query_label")


def _together(*options: Callable[..., Any]) -> Callable[..., Any]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(options):
            command = each(command)
        return command

    return decorate


setting = partial(option, show_default=True)
several = partial(option, multiple=True)

json = option("--json", "as_json", is_flag=True, help="Print a record for machines.")
verbose = option("--verbose", "-v", is_flag=True, help="Show progress, not on terminals alone.")
overlap = _together(
    setting("--warn-overlap", type=float, default=0.4, help="Warn if confounders overlap by less."),
    setting("--min-overlap", type=float, default=0.05, help="Refuse if they overlap by less."),
)
quiet = option("--quiet", "-q", is_flag=True, help="Say what is wrong alone; no verdict.")
previous = several(
    "--previous",
    metavar="FILE",
    help="An earlier statistics file of the site, which others have; repeatable.",
)
table = option("--table", metavar="CSV", help="Also write a table of all features.")
force = option("--force", is_flag=True, help="Replace existing files.")
writing = _together(force, json)
running = _together(table, force, verbose, quiet, json, click.pass_obj)
reading = _together(
    option("--format", help="Format of input, if its name does not tell."),
    option("--delimiter", help="Delimiter of text tables; detected by default."),
    several(
        "--na",
        "na_values",
        metavar="MARK",
        callback=lambda _, __, marks: list(marks) or None,
        help="Mark of missing values, in place of the usual ones (nothing, NA, N/A, n/a, #N/A, "
        "NaN, nan, null, NULL, None and, among numbers, . and -); repeatable.",
    ),
    setting("--encoding", default="utf-8", help="Encoding of text tables."),
    setting("--decimal", default=".", help="Decimal mark of text tables."),
    option("--transpose", is_flag=True, help="Rows of input are features, and columns samples."),
    option("--samples", metavar="SHEET", help="A table with more columns, a row for each sample."),
    option("--id", metavar="COLUMN", help="With --samples, --transpose: the column of samples."),
)
domain = _together(
    option("--domain", metavar="COLUMN", help="With one table: the column of the domain."),
    option(
        "--reference-label",
        metavar="LABEL",
        help="With --domain, --batch or a table for each batch: which is OLD. Its rows are never "
        "changed. (Of batches also: auto, consensus.)",
    ),
    option(
        "--query-label",
        metavar="LABEL",
        help="With --domain: which is NEW, if there are more labels. Other rows are left alone.",
    ),
)
bridge = option("--bridge", metavar="COLUMN", help="Of batches: equal values are one sample.")
batches = _together(
    option("--batch", metavar="COLUMN", help="With one table of many batches: their column."),
    several(
        "--labels",
        metavar="NAME,...",
        help="With a table for each batch: their labels; default: the names of the files.",
    ),
    bridge,
    option(
        "--keep-unreachable",
        is_flag=True,
        help="Leave batches as they are that cannot be compared.",
    ),
)
batch_label = option(
    "--batch-label", metavar="LABEL", help="With a map file of many batches: that of all rows."
)
fail_on = option(
    "--fail-on",
    type=click.Choice(["look", "unknown"]),
    help="Write nothing, with exit code 4, if rows do not look like those the map was fitted on; "
    "unknown: nor if that cannot be told.",
)
require = option(
    "--require",
    type=click.Choice(["better", "not worse", "within limits"]),
    help="Write nothing, with exit code 4, unless this is the verdict, or every --tolerance is "
    "met.",
)
limits = _together(
    several(
        "--tolerance",
        metavar="FEATURE=ERROR",
        help="The systematic error that is allowed, in the feature's unit; or a table with "
        "columns feature, tolerance and maybe imprecision; repeatable.",
    ),
    several(
        "--imprecision",
        metavar="FEATURE=SD",
        help="The standard deviation of repeated measurements of a sample: --tolerance is then "
        "the total error that is allowed; repeatable.",
    ),
)
weights = option("--weights", metavar="COLUMN", help="How many rows each row counts for.")
confounders = several(
    "--confounders",
    "-c",
    metavar="NAME[:cat|:num],...",
    help="Columns that differ between domains for reasons that are not technical.",
)
columns = _together(
    confounders,
    several(
        "--features",
        "-f",
        metavar="PATTERN,...",
        help="Feature columns; default: the variables of h5ad, or other columns of numbers that do "
        "not look like identifiers, dates, ages, codes or labels.",
    ),
)
about_rows = _together(
    option("--groups", metavar="COLUMN", help="The subject of each row."),
    weights,
    setting(
        "--missing",
        type=_MISSING,
        default="raise",
        help="Rows with missing confounders: refuse, leave out, or fill in.",
    ),
)
data = _together(
    click.argument("new"),
    click.argument("more", nargs=-1, metavar="[MORE]..."),
    option("--reference", metavar="OLD", help="The table that NEW should look like."),
    domain,
    batches,
    columns,
    several(
        "--reliability",
        metavar="NAME=SHARE|COLUMN,...",
        help="Of a confounder measured with error: the share of its variance that is signal, or "
        "the columns that measure it; repeatable.",
    ),
    about_rows,
    reading,
)
adding = _together(
    click.argument("new"),
    option("--label", metavar="NAME", help="The label of the new batch; default: the file's name."),
    several("--known", "more", metavar="TABLE", help="Rows of a batch that has a map; repeatable."),
    several(
        "--known-label",
        metavar="LABEL",
        help="Of which batch these are, in the same order; default: the names of the files.",
    ),
    option("--batch", metavar="COLUMN", help="In place of these: NEW has all rows, and labels."),
    confounders,
    bridge,
    about_rows,
    reading,
)
fitting = _together(
    setting(
        "--method",
        default="condokit",
        type=click.Choice(["condokit", "condo-kl", "condo-mmd"]),
        help="condo-kl, condo-mmd: the method of the paper as it is, for comparisons; with --map "
        "location-scale or affine, and without --divergence, --shrinkage, --link, --controls and "
        "--reliability.",
    ),
    setting(
        "--map",
        "map_",
        default="location-scale",
        metavar="NAME",
        help="auto, identity, shift, location-scale, monotone, affine, orthogonal, similarity, "
        "or low-rank[:RANK].",
    ),
    setting(
        "--divergence",
        default="auto",
        metavar="NAME",
        help="auto, reverse-kl, forward-kl, likelihood, ot, pc-match, mmd, or energy.",
    ),
    setting("--shrinkage", default="auto", help="Pull to no change: auto, none, or 0 to 1."),
    several(
        "--link",
        "links",
        metavar="FEATURE=log|logit|POWER",
        help="Keep a feature positive or bounded; repeatable.",
    ),
    several(
        "--controls",
        metavar="PATTERN,...",
        help="Negative controls: features that nothing of interest moves.",
    ),
    overlap,
    setting("--seed", type=IntRange(0), default=0, help="Seed of what draws at random."),
    option(
        "--bootstrap",
        "n_resamples",
        type=IntRange(0),
        default=0,
        help="Refits for errors of any map.",
    ),
)
gathering = _together(
    click.argument("tables", nargs=-1, required=True, metavar="TABLE..."),
    option("--domain", metavar="COLUMN", help="The column with the domain (the site) of each row."),
    option("--label", metavar="NAME", help="In place of --domain: the domain of all rows."),
    option("--reference-label", metavar="NAME", help="The domain that the others are mapped to."),
    columns,
    several(
        "--range",
        "ranges",
        metavar="NAME=LOW:HIGH",
        help="Of a confounder of numbers: between which values it can lie, the same at all sites; "
        "repeatable.",
    ),
    weights,
    option(
        "--given",
        metavar="MAP",
        help="For a second round: the map of the first. Features that had heavy tails are then "
        "also counted in bins, with all rows in memory.",
    ),
    setting(
        "--missing",
        type=click.Choice(["raise", "drop"]),
        default="raise",
        help="Rows with missing confounders: refuse, or leave out.",
    ),
    setting(
        "--min-cell",
        type=IntRange(3),
        default=5,
        help="The fewest rows of which anything is written.",
    ),
    previous,
    reading,
    option("--output", "-o", required=True, help="The statistics file to write (JSON), or -."),
    quiet,
    writing,
)
