"""The commands: parse, call the library, print; what does the work is imported where it is used."""

import io
import json
import os
import shlex
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click
from click import UsageError

import condokit
from condokit.checks import NoOverlapError, Sentence, naming
from condokit.cli import options as shared
from condokit.cli.outputs import (
    NotMet,
    answer,
    as_option,
    check_outputs,
    features_of,
    holds_statistics,
    load_map,
    show_result,
    tell,
    tell_warnings,
)

_EXAMPLES = """
\b
Examples:
  condokit check new.csv --reference old.csv --confounders seizure,age
  condokit fit new.parquet --reference old.parquet --confounders sex:cat,age:num \\
      --features 'eeg_*' --map auto -o map.json --report report.html
  condokit fit all.csv --domain batch --reference-label v1 --confounders sex -o map.json
  condokit fit all.csv --batch site --reference-label A -c age,sex -o maps.json
  condokit fit A.csv B.csv C.csv --reference-label A -c age,sex -o maps.json
  condokit add maps.json D.csv --label D --known A.csv -c age,sex -o maps2.json
  condokit check map.json incoming.csv
  condokit apply map.json incoming.csv -o adapted.parquet
  condokit apply maps.json newB.csv --batch-label B -o adapted.csv
  condokit apply map.json 'data/*.parquet' -o adapted/
  condokit stats site.csv --label A -c sex -o siteA.json
  condokit fit siteA.json siteB.json --reference-label A -o map.json
  condokit show map.json
  condokit export map.json --sql -

\b
Exit codes: 0 fine, 2 bad input, 3 the comparison is not possible, 4 the condition of --require or
--fail-on is not met, and nothing was written.
Completion: eval "$(_CONDOKIT_COMPLETE=bash_source condokit)" in ~/.bashrc (also zsh, fish).
"""


class _Commands(click.Group):
    """Commands that know their arguments, and end quietly when whoever read the output has left."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing to flush
            return 0


@click.group(
    cls=_Commands, epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(condokit.__version__, prog_name="condokit")
def cli() -> None:
    """Make new data backwards-compatible: remove technical shift, keep what confounds it.

    \b
    Install:  pip install condokit    ('condokit[anndata]' for h5ad, 'condokit[onnx]' for ONNX)
    Start:    condokit demo           (example data, with check, fit and apply on them)

    NEW (query) data are mapped so that they look like the OLD (reference) data, comparing the two
    given the confounders. Tables are CSV (also .gz), TSV, Parquet, Feather or h5ad; "-" is
    standard input or output, and a folder or 'data/*.parquet' many files. Large ones are not read
    into memory.
    """  # noqa: D301


@cli.command()
@shared.data
@shared.overlap
@shared.batch_label
@shared.fail_on
@shared.json
def check(as_json: bool, batch_label: str | None, fail_on: str | None, **data: Any) -> None:
    """Say whether NEW can be compared with OLD at all, before anything is fitted.

    With a map file in place of NEW, as in condokit check map.json rows.csv: whether the rows look
    like those that the map was fitted on. condokit apply says this, too.
    """
    if data["new"].endswith(".json") and not holds_statistics(data["new"]):
        _check_rows(data, batch_label, fail_on, as_json)
        return
    if batch_label is not None or fail_on is not None:
        raise UsageError(
            "--batch-label and --fail-on need a map: condokit check map.json rows.csv."
        )
    from condokit.cli.tables import read_data
    from condokit.trust.assess import assess

    taken = ("warn_overlap", "min_overlap", "bridge", "groups")  # the last two name samples
    how = {name: data[name] for name in taken} | {"batch": data["batch"] or data["more"] or None}
    found = assess(read_data(**data), reference=data["reference_label"], **how)
    show_result(found.to_dict() if as_json else repr(found))
    if found.verdict == "not possible":
        raise SystemExit(3)


def _check_rows(
    data: dict[str, Any], batch_label: str | None, fail_on: str | None, as_json: bool
) -> None:
    """Compare the rows of a file with what a map was fitted on; see `check`."""
    from condokit.cli.apply_file import apply_to_file, one_or_many, refuse_if_not_met

    if len(data["more"]) != 1 or data["reference"] is not None:
        raise UsageError("Give a map file and one table: condokit check map.json rows.csv.")
    labels = {name: data[name] for name in (*shared.LABELS, "batch")}
    known = load_map(data["new"], of_batches=True)
    rule = one_or_many(known, data["new"], batch_label=batch_label, **labels)
    reading = {name: data[name] for name in (*shared.READING, *shared.SHEET)}
    found = apply_to_file(rule, data["more"][0], None, **reading)
    show_result(found.to_dict() if as_json else repr(found))
    refuse_if_not_met(found, fail_on, with_reasons=False)  # these were just printed
    if found.verdict == "stop":
        raise SystemExit(3)


@cli.command()
@shared.data
@shared.setting("-n", type=click.IntRange(1), default=8, help="How many samples can be measured.")
@shared.setting("--min-overlap", type=float, default=0.05, help="Least overlap to be compared.")
@shared.json
def plan(n: int, min_overlap: float, as_json: bool, **data: Any) -> None:
    """Say which samples to measure in which other batch as well, or which subjects to add."""
    from condokit.adapter import ConDoAdapter
    from condokit.batches.adapter import BatchAdapter
    from condokit.cli.tables import read_data
    from condokit.data.records import plain

    if data["batch"] is None and not data["more"]:
        raise UsageError("condokit plan needs --batch COLUMN, or one table per batch.")
    adapter = BatchAdapter(ConDoAdapter(min_overlap=min_overlap), reference=data["reference_label"])
    study: Any = read_data(**data)
    found = adapter.plan_study(study, n, data["bridge"], data["groups"])
    if all(one["name"] == one["row"] for one in found.again):
        tell("Samples are shown as row numbers; the first row below the header is 0.", False)
    show_result(plain(found) if as_json else str(found))


@cli.command()
@shared.data
@shared.fitting
@click.option("--output", "-o", required=True, help="The map file to write (JSON), or -.")
@click.option("--report", help="The report to write (HTML).")
@click.option("--adapted", help="Also write the mapped rows of NEW to this table.")
@shared.require
@shared.limits
@shared.running
def fit(
    arguments: list[str], /, output: str, report: str | None, adapted: str | None, **options: Any
) -> None:
    """Learn the map from NEW to OLD, and write it.

    Several tables, one per batch, give one map for each batch:
    condokit fit A.csv B.csv C.csv --reference-label A -o maps.json.
    In place of tables, statistics files of sites can be given (see stats): condokit fit a.json
    b.json -o map.json. OLD may be a statistics file, too: condokit fit new.csv --reference old.json
    -o map.json.
    """
    from condokit.cli.apply_file import apply_to_file, one_or_many
    from condokit.cli.fit_adapter import FitCommand
    from condokit.io import together

    table, many = options["table"], bool(options["batch"] is not None or options["more"])
    outputs = [path for path in (output, report, table, adapted) if path is not None]
    new, force, as_json = options["new"], options["force"], options["as_json"]
    check_outputs(outputs, force, as_json, inputs=(new, *options["more"], options["reference"]))
    if adapted is not None and (new == "-" or options["more"]):
        raise UsageError("--adapted can map one table NEW only; use condokit apply for the others.")
    fitted = FitCommand(arguments, {**options, "report": report, "adapted": adapted})
    fitted.check_required(options["require"])
    affine, content = fitted.map_file()
    made, record = {output: content}, {}
    if report is not None or table is not None:
        record = fitted.account("map.json", "--report", "report.html", made=content)
        made |= fitted.pages(record, report, table)
    with together(made, force):
        if adapted is not None:
            named = ["batch"] if many else shared.LABELS
            rule = one_or_many(affine, output, **{name: options[name] for name in named})
            reading = {name: options[name] for name in (*shared.READING, *shared.SHEET)}
            apply_to_file(rule, new, adapted, force, **reading)
    facts = {"map": output, "report_path": report, **fitted.record()}
    facts |= {"report": record if report else {}}
    if not as_json:
        answer(False, facts, f"{fitted.summary()}\nWrote {', '.join(outputs)}.")
    judged = {} if options["quiet"] else fitted.verdict()
    text = judged.pop("text", "")
    answer(as_json, {**facts, "verdict": None, "sentence": None, **judged}, text)


@cli.command()
@click.argument("map_file", metavar="MAPS")
@shared.adding
@shared.limits
@shared.require
@click.option("--output", "-o", required=True, help="The map file to write (JSON), or -.")
@shared.quiet
@shared.writing
@click.pass_obj
def add(
    arguments: list[str], /, map_file: str, output: str, require: str | None, **options: Any
) -> None:
    """Add the map of a new batch to MAPS; all other maps stay as they are.

    NEW has the rows of the new batch, and the --known tables have rows of batches that are in MAPS
    already, with which it is compared: condokit add maps.json D.csv --label D --known A.csv -o
    maps2.json.
    """
    from condokit.cli.fit_adapter import Added
    from condokit.io import write_files

    force, as_json = options["force"], options["as_json"]
    inputs = (map_file, options["new"], *options["more"])
    check_outputs([output], force, as_json, inputs=inputs)
    known = load_map(map_file, of_batches=True)
    added = Added(arguments, known, options | {"map_file": map_file})
    added.check_required(require)
    write_files({output: added.map_file()[1]}, force)
    judged = {} if options["quiet"] else added.verdict()
    text = f"{added.summary()}\nWrote {output}.\n{judged.pop('text', '')}".rstrip()
    known = {"map": output, **added.record(), "verdict": None, "sentence": None}
    answer(as_json, known | judged, text)


@cli.command()
@shared.gathering
def stats(output: str, min_cell: int, previous: tuple[str, ...], **options: Any) -> None:
    """Summarise the rows of a site for a fit elsewhere, and write the sums without any row.

    Every site does the same with its own tables; then condokit fit siteA.json siteB.json finds the
    map. condokit show siteA.json tells what the file reveals.
    """
    from condokit.cli.sites import gather
    from condokit.io import write_files
    from condokit.statistics.file import warn_of_replacing

    paths, force, as_json = (options.pop(name) for name in ("tables", "force", "as_json"))
    check_outputs([output], force, as_json, inputs=paths)
    content = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = gather(paths, **options)
        found.save(content, min_cell=min_cell, previous=previous)
        document = json.loads(content.getvalue())
        if os.path.isfile(output) and output not in previous:
            warn_of_replacing(output, document, type(found))
    warned = tell_warnings(caught)
    write_files({output: content.getvalue()}, force)
    facts = {"output": output, "n_cells": len(document["cells"]), "masked": document["masked"]}
    facts |= {"labels": found.labels, "features": found.feature_names, "warnings": warned}
    text = f"Wrote {output}: {facts['n_cells']} cells, {facts['masked']['cells']} left out. "
    answer(as_json, facts, f"{text}See what it reveals with condokit show {shlex.quote(output)}.")


@cli.command("apply")
@click.argument("map_file")
@click.argument("incoming")
@click.option(
    "--output",
    "-o",
    required=True,
    help="The table to write; - is standard output. FOLDER/ gets one file for each input file.",
)
@shared.flag("--inverse", help="Map in the other direction, from OLD to NEW.")
@click.option("--output-format", help="Format of the output, if the file name does not show it.")
@shared.domain
@shared.column("--batch", help="The batch of each row, if that column has another name now.")
@shared.batch_label
@shared.fail_on
@shared.reading
@shared.writing
def apply_(
    map_file: str, incoming: str, output: str, inverse: bool, force: bool, **options: Any
) -> None:
    """Map the features of INCOMING, and keep all other columns and the order of rows.

    INCOMING may be many files: a folder, or 'data/*.parquet'. If both tables are text, all other
    values stay exactly as they are written. Otherwise a column of text becomes numbers, truth
    values or times if nothing is lost. There is a warning if the rows do not look like those that
    the map was fitted on.
    """
    from condokit.cli.apply_file import apply_to_file, one_or_many, targets
    from condokit.data.disclosure import counted, small_cells
    from condokit.io import files_of

    as_json, fail_on = options.pop("as_json"), options.pop("fail_on")
    if fail_on is not None and output == "-":
        raise UsageError("--fail-on needs an output file: what is printed cannot be taken back.")
    written, read = targets(incoming, output), [map_file, *files_of(incoming)]
    if written != [output]:
        Path(output).mkdir(parents=True, exist_ok=True)
    check_outputs(written, force, as_json, inputs=read)
    known, labels = load_map(map_file, of_batches=True), (*shared.LABELS, "batch", "batch_label")
    rule = one_or_many(known, map_file, inverse, **{name: options.pop(name) for name in labels})
    found = apply_to_file(rule, incoming, output, force, fail_on=fail_on, **options)
    cares = [finding for finding in found.findings if finding.level == "care"]
    lines = [f"warning: {care.text} {care.advice}".rstrip() for care in cares]
    n_rows = counted(found.n_rows) if small_cells(found.n_rows) else found.n_rows
    lines.append(f"Mapped {counted(found.n_rows)} rows to {output}.")
    answer(as_json, {"output": output, **found.to_dict(), "n_rows": n_rows}, "\n".join(lines))


@cli.command()
@shared.data
@shared.fitting
@click.option("--output", "-o", required=True, help="The report to write (HTML).")
@click.option(
    "--figures", type=click.Path(file_okay=False), help="Also write figures into this folder."
)
@shared.several(
    "--figure-format",
    "formats",
    type=shared.FORMATS,
    default=["png"],
    help="Format of the figures; repeatable.",
)
@shared.limits
@shared.running
def report(
    arguments: list[str], /, output: str, figures: str | None, formats: Any, **options: Any
) -> None:
    """Fit, and write only the report: what was compared, what the map does, and how sure it is."""
    from condokit import plots
    from condokit.cli.fit_adapter import FitCommand
    from condokit.io import write_files

    folder, force, drawn = Path(figures or ""), options["force"], []
    if figures:
        plots.pyplot()
        drawn = [str(folder / f"{name}.{kind}") for name in plots.FIGURES for kind in formats]
    drawn = drawn if folder.is_dir() else []
    inputs = (options["new"], *options["more"], options["reference"])
    check_outputs([output, options["table"], *drawn], force, options["as_json"], inputs)
    fitted = FitCommand(arguments, {**options, "report": output})
    record = fitted.account("report.html")
    made = fitted.pages(record, output, options["table"])
    for name, content in plots.files(fitted.adapter, *fitted.judged, formats) if figures else ():
        made[str(folder / name)] = content
    folder.mkdir(parents=True, exist_ok=True)
    write_files(made, force)
    wrote = ", ".join(filter(None, (output, options["table"], figures)))
    answer(options["as_json"], record, f"Wrote {wrote}.\n{fitted.verdict()['text']}")


@cli.command()
@click.argument("map_file")
@shared.previous
@shared.json
def show(map_file: str, previous: tuple[str, ...], as_json: bool) -> None:
    """Say what a map file holds, or what a statistics file reveals; - is standard input.

    From a statistics file, condokit tries to compute single rows, and says what it finds.
    """
    from condokit.data.records import Sheet, plain

    if holds_statistics(map_file):
        from condokit.cli.sites import reveal

        show_result(reveal(map_file, as_json, previous))
        return
    if previous:
        raise UsageError("--previous can only be used with statistics files.")
    affine = load_map(map_file, of_batches=True)
    if affine.kinds == ("batches",):
        known = plain(affine.provenance_) if as_json else affine.report_
        show_result(known if as_json else str(known))
        return
    names = affine.feature_names or [f"column {j}" for j in range(affine.n_features_in_)]
    facts = {
        "kind": affine.kind,
        "n_features": affine.n_features_in_,
        "feature_names": names,
        "links": affine.links,
        "fitted_on_rows": None if affine.fitted_on is None else affine.fitted_on.n_rows,
        "provenance": affine.provenance,
        **(affine.arrays() if affine.kind in ("diagonal", "monotone") else {}),
        **({"offset": affine.offset} if affine.kind in ("dense", "low-rank") else {}),
    }
    record = plain(facts)
    if as_json:
        show_result(record)
        return
    lines = [f"A {affine.kind} map of {features_of(affine)}."]
    if affine.fitted_on is not None:
        lines.append(f"Fitted on {affine.fitted_on.n_rows:,} query rows.")
    if "scale" in record:
        columns = {"feature": list(names), "scale": record["scale"], "offset": record["offset"]}
        columns |= {"link": record["links"]} if affine.links else {}
        lines += ["", repr(Sheet(columns))]
    if affine.kind == "monotone":
        ends = (f"{name}_{end}" for name in ("knots", "values") for end in ("first", "last"))
        parts = (record[name] for name in ("knots", "values"))
        figures = ([row[k] for row in part] for part in parts for k in (0, -1))
        lines += ["", repr(Sheet({"feature": list(names), **dict(zip(ends, figures))}))]
    for key, value in (record["provenance"] or {}).items():
        is_simple = isinstance(value, str | int | float)
        lines.append(f"{key}: {value if is_simple else json.dumps(value)}")
    show_result("\n".join(lines))


@cli.command()
@click.argument("map_file")
@click.option("--onnx", metavar="PATH", help="Write an ONNX model.")
@click.option("--sql", metavar="PATH", help="Write an SQL query, or - to print it.")
@click.option("--python", metavar="PATH", help="Write a plain Python function, or - to print it.")
@click.option("--r", metavar="PATH", help="Write a plain R function, or - to print it.")
@shared.setting("--table", default="incoming", help="With --sql: the table, or SCHEMA.TABLE.")
@click.option("--keep", multiple=True, help="With --sql: other columns to keep; repeatable.")
@shared.setting(
    "--dialect",
    default="ansi",
    metavar="NAME",
    help="With --sql: ansi, bigquery, databricks, duckdb, hive, mariadb, mysql, postgres, "
    "redshift, snowflake, spark, sqlite, trino, tsql.",
)
@shared.column("--batch", help="With --sql and many batches: the batch of each row.")
@click.option("--batch-label", metavar="LABEL", help="With many batches: only the map of this one.")
@shared.flag("--named", help="With --onnx: every feature is an input and an output of its own.")
@shared.flag("--float32", help="With --onnx: use single precision.")
@shared.writing
def export(map_file: str, force: bool, as_json: bool, **options: Any) -> None:
    """Write a map for other systems: ONNX, SQL, plain Python or R.

    With many batches, the SQL query finds the map of each row by its label. For the others, PATH/
    is a folder, which gets one file for each batch.
    """
    from condokit.cli.exports import exported, is_folder
    from condokit.io import write_files

    paths = {language: options[language] for language in ("onnx", "sql", "python", "r")}
    if not any(paths.values()):
        raise UsageError("Say what to write: --onnx, --sql, --python or --r.")
    files = [path for path in paths.values() if path and not is_folder(path)]
    check_outputs(files, force, as_json, inputs=[map_file])
    made = exported(load_map(map_file, of_batches=True), paths, options)
    check_outputs(made, force, as_json, inputs=[map_file])
    write_files(made, force)
    if as_json:
        show_result(paths)
    elif wrote := [f"Wrote {path}." for path in made if path != "-"]:
        tell("\n".join(wrote))


@cli.command()
@click.argument("folder", default="condokit-demo")
@shared.writing
def demo(folder: str, force: bool, as_json: bool) -> None:
    """Make example data in FOLDER and run check, fit and apply on them."""
    from condokit import datasets
    from condokit.io import open_writer

    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    names = ("new.csv", "old.csv", "map.json", "report.html", "adapted.csv")
    new, old, *out = paths = [str(place / name) for name in names]
    check_outputs(paths, force, as_json, inputs=())
    table = datasets.make_eeg(random_state=0).to_frame("pyarrow")
    device = table["device"].to_numpy()
    for label, path in (("v2", new), ("v1", old)):
        with open_writer(path, force=force) as writer:
            writer.write(table.drop_columns("device").filter(device == label))
    data = [new, "--reference", old, "-c", "seizure", "-f", "eeg_*"]
    again = ["--force"] if force else []
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        for arguments in (
            ["check", *data],
            ["fit", *data, "-o", out[0], "--report", out[1], *again],
            ["apply", out[0], new, "-o", out[2], *again],
        ):
            tell(click.style(f"\n$ condokit {shlex.join(arguments)}", bold=True))
            cli.main(arguments, standalone_mode=False)
    if as_json:
        show_result({"written": paths})


def main(arguments: list[str] | None = None) -> None:
    """Run a command; every failure is one line on standard error, and an exit code."""
    with naming(as_option):
        try:
            result = cli.main(arguments, prog_name="condokit", standalone_mode=False)
            sys.exit(result if isinstance(result, int) else 0)
        except click.ClickException as error:
            error.show()
            sys.exit(4 if isinstance(error, NotMet) else 2)
        except (click.exceptions.Abort, KeyboardInterrupt):
            tell("Interrupted.")
            sys.exit(130)
        except (ValueError, ImportError, OSError, MemoryError, TypeError, ArithmeticError) as error:
            from condokit.data.disclosure import hiding_few

            said = error.args[0] if error.args else ""
            text = hiding_few(said, as_option) if isinstance(said, Sentence) else str(error)
            if isinstance(error, MemoryError):
                text = "There is not enough memory. Use fewer features or rows, or a simpler map."
            tell(click.style("error: ", fg="red", bold=True) + (text or type(error).__name__))
            sys.exit(3 if isinstance(error, NoOverlapError) else 2)
