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
flag = partial(option, is_flag=True)
column = partial(option, metavar="COLUMN")

json = flag("--json", "as_json", help="Print the result as JSON.")
verbose = flag("--verbose", "-v", help="Show progress even if the output is not a terminal.")
overlap = _together(
    setting("--warn-overlap", type=float, default=0.4, help="Warn if confounders overlap by less."),
    setting("--min-overlap", type=float, default=0.05, help="Refuse if they overlap by less."),
)
quiet = flag("--quiet", "-q", help="Print errors only.")
previous = several(
    "--previous",
    metavar="FILE",
    help="An earlier statistics file of this site that others already have; repeatable.",
)
table = option("--table", metavar="CSV", help="Also write a table of all features.")
force = flag("--force", help="Replace existing files.")
writing = _together(force, json)
running = _together(table, force, verbose, quiet, json, click.pass_obj)
reading = _together(
    option("--format", help="Format of the input, if the file name does not show it."),
    option("--delimiter", help="Delimiter of text tables; detected by default."),
    several(
        "--na",
        "na_values",
        metavar="MARK",
        callback=lambda _, __, marks: list(marks) or None,
        help="Text that means a missing value, in place of the usual ones (an empty cell, NA, N/A, "
        "n/a, #N/A, NaN, nan, null, NULL, None and, among numbers, . and -); repeatable.",
    ),
    setting("--encoding", default="utf-8", help="Encoding of text tables."),
    setting("--decimal", default=".", help="Decimal mark of text tables."),
    flag("--transpose", help="The input has features in rows and samples in columns."),
    option("--samples", metavar="SHEET", help="A second table: further columns of the samples."),
    column("--id", help="With --samples or --transpose: the column of the sample names."),
)
domain = _together(
    column("--domain", help="With one table: the column that says which rows are NEW or OLD."),
    option(
        "--reference-label",
        metavar="LABEL",
        help="The label of OLD, for --domain, --batch or one table per batch. Its rows are never "
        "changed. With batches, auto and consensus choose the reference.",
    ),
    option(
        "--query-label",
        metavar="LABEL",
        help="With --domain: the label of NEW. Other rows are neither used nor changed.",
    ),
)
bridge = column("--bridge", help="Sample names; the same name in two batches is the same sample.")
batches = _together(
    column("--batch", help="With many batches in one table or several: the batch of each row."),
    several(
        "--labels",
        metavar="NAME,...",
        help="With one table per batch: the labels of the batches; by default the file names.",
    ),
    bridge,
    flag("--keep-unreachable", help="Leave batches that cannot be compared as they are."),
)
batch_label = option(
    "--batch-label", metavar="LABEL", help="With maps of many batches: the batch of all rows."
)
fail_on = option(
    "--fail-on",
    type=click.Choice(["look", "unknown"]),
    help="Write nothing and exit with code 4 if the rows do not look like those the map was "
    "fitted on (look), or also if this is not known (unknown).",
)
require = option(
    "--require",
    type=click.Choice(["better", "not worse", "within limits"]),
    help="Write nothing and exit with code 4 unless the verdict is 'better', or is not 'worse', or "
    "every feature with a --tolerance is within its limit.",
)
limits = _together(
    several(
        "--tolerance",
        metavar="FEATURE=ERROR",
        help="The largest allowed systematic error of a feature, in its unit; or the name of a CSV "
        "table with the columns feature, tolerance and, if wanted, imprecision; repeatable.",
    ),
    several(
        "--imprecision",
        metavar="FEATURE=SD",
        help="The standard deviation of repeated measurements of one sample. --tolerance is then "
        "the largest allowed total error; repeatable.",
    ),
)
weights = column("--weights", help="The weight of each row: for how many rows it counts.")
confounders = several(
    "--confounders",
    "-c",
    metavar="NAME[:cat|:num],...",
    help="Columns that differ between NEW and OLD for reasons that are not technical, such as "
    "age or diagnosis. After the name, :cat means categories and :num numbers.",
)
columns = _together(
    confounders,
    several(
        "--features",
        "-f",
        metavar="PATTERN,...",
        help="The columns to map. By default the variables of an h5ad file, or all other columns "
        "of numbers that do not look like identifiers, dates, ages, codes or labels.",
    ),
)
about_rows = _together(
    column("--groups", help="The subject (person, animal) of each row."),
    weights,
    setting(
        "--missing",
        type=_MISSING,
        default="raise",
        help="Rows that lack a confounder: refuse (raise), leave out (drop) or fill in (impute).",
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
        help="For a confounder that is measured with error: the share of its variance that is not "
        "error, or the columns of repeated measurements of it; repeatable.",
    ),
    about_rows,
    reading,
)
adding = _together(
    click.argument("new"),
    option("--label", metavar="NAME", help="The label of the new batch; by default the file name."),
    several("--known", "more", metavar="TABLE", help="Rows of a batch in MAPS; repeatable."),
    several(
        "--known-label",
        metavar="LABEL",
        help="The batch of each --known table, in the same order; by default the file names.",
    ),
    column("--batch", help="The column with the batch of each row, in place of labels of tables."),
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
        help="condo-kl and condo-mmd are the methods exactly as in the paper, for comparison. They "
        "take --map location-scale or affine, and no --divergence, --shrinkage, --link, --controls "
        "or --reliability.",
    ),
    setting(
        "--map",
        "map_",
        default="location-scale",
        metavar="NAME",
        help="The kind of map: auto, identity, shift, location-scale, monotone, affine, "
        "orthogonal, similarity, or low-rank[:RANK].",
    ),
    setting(
        "--divergence",
        default="auto",
        metavar="NAME",
        help="Criterion: auto, reverse-kl, forward-kl, likelihood, ot, pc-match, mmd, or energy.",
    ),
    setting("--shrinkage", default="auto", help="Pull towards no change: auto, none, or 0 to 1."),
    several(
        "--link",
        "links",
        metavar="FEATURE=log|logit|POWER",
        help="Keep a feature positive (log, POWER) or between 0 and 1 (logit); repeatable.",
    ),
    several(
        "--controls",
        metavar="PATTERN,...",
        help="Negative controls: features that differ for technical reasons only.",
    ),
    overlap,
    setting("--seed", type=IntRange(0), default=0, help="Seed of the random numbers."),
    option(
        "--bootstrap",
        "n_resamples",
        type=IntRange(0),
        default=0,
        help="Number of refits on resampled rows, to find standard errors of any map.",
    ),
)
gathering = _together(
    click.argument("tables", nargs=-1, required=True, metavar="TABLE..."),
    column("--domain", help="The column with the site of each row."),
    option("--label", metavar="NAME", help="In place of --domain: the site of all rows."),
    option("--reference-label", metavar="NAME", help="The site that the others are mapped to."),
    columns,
    several(
        "--range",
        "ranges",
        metavar="NAME=LOW:HIGH",
        help="Lowest and highest possible value of a number, the same at all sites; repeatable.",
    ),
    weights,
    option(
        "--given",
        metavar="MAP",
        help="For a second round: the map that was fitted in the first. Features with heavy tails "
        "are then also counted in bins, with all rows in memory.",
    ),
    setting(
        "--missing",
        type=click.Choice(["raise", "drop"]),
        default="raise",
        help="Rows that lack a confounder: refuse (raise) or leave out (drop).",
    ),
    setting(
        "--min-cell",
        type=IntRange(3),
        default=5,
        help="Nothing is written about groups of fewer rows than this.",
    ),
    previous,
    reading,
    option("--output", "-o", required=True, help="The statistics file to write (JSON), or -."),
    quiet,
    writing,
)
