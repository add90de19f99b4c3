"""The commands: parse, call the library, print."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import Any

import click

import condokit
from condokit.cli.applying import apply_to_file
from condokit.cli.fitting import fit_adapter, fit_record, summary
from condokit.cli.options import with_data, with_fitting, with_force, with_json, with_reading
from condokit.cli.origin import given, inputs_of, with_origin, write_report
from condokit.cli.printing import show_result, tell
from condokit.cli.tables import read_domains

_EXAMPLES = """
\b
Examples:
  condokit check new.csv --reference old.csv --confounders seizure,age
  condokit fit new.parquet --reference old.parquet --confounders sex:cat,age:num \\
      --features 'eeg_*' --map auto -o map.json --report report.html
  condokit fit all.csv --domain batch --reference-label v1 --confounders sex -o map.json
  condokit apply map.json incoming.csv -o adapted.parquet
  condokit show map.json
  condokit export map.json --sql -

\b
Exit codes: 0 fine, 2 bad input, 3 the comparison is not possible.
Completion: eval "$(condokit completion bash)" in ~/.bashrc (also zsh, fish).
"""


@click.group(epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(condokit.__version__, prog_name="condokit")
def cli() -> None:
    """Make new data backwards-compatible: remove technical shift, keep what confounds it.

    NEW (query) data are mapped so that they look like the OLD (reference) data, comparing the two
    given the confounders. Tables are CSV (also .gz), TSV, Parquet, Feather or h5ad; "-" is
    standard input or output.
    """


@cli.command()
@with_data
@click.option("--warn-overlap", type=float, default=0.4, show_default=True)
@click.option("--min-overlap", type=float, default=0.05, show_default=True)
@with_json
def check(as_json: bool, warn_overlap: float, min_overlap: float, **data: Any) -> None:
    """Say whether NEW can be compared with OLD at all, before anything is fitted."""
    from condokit.trust.assess import assess_domains

    domains = read_domains(**data)
    found = assess_domains(domains, warn_overlap, min_overlap)
    show_result(found.to_dict() if as_json else repr(found))
    if found.verdict == "not possible":
        raise SystemExit(3)


@cli.command()
@with_data
@with_fitting
@click.option("--output", "-o", required=True, help="The map file to write (JSON).")
@click.option("--report", "report_path", help="The report to write (HTML).")
@click.option("--adapted", help="Also write NEW, mapped, to this table.")
@with_force
@click.option("--verbose", "-v", is_flag=True, help="Show progress of long fits.")
@with_json
def fit(
    output: str,
    report_path: str | None,
    adapted: str | None,
    force: bool,
    verbose: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Learn the map from NEW to OLD, and write it."""
    from condokit.files import check_target

    for path in (output, report_path, adapted):
        if path is not None:
            check_target(path, force)
    adapter, domains, said = fit_adapter(verbose, **options)
    inputs = inputs_of(options)
    affine = with_origin(adapter.map_, domains, inputs)
    affine.save(output)
    record = None
    if report_path is not None:
        record = write_report(adapter, domains, inputs, report_path, force)
    if adapted is not None:
        apply_to_file(affine, options["new"], adapted, force, options)
    if as_json:
        show_result(fit_record(adapter, output, report_path, said) | ({"report": record or {}}))
        return
    tell(f"{summary(adapter)}\nWrote {output}" + (f" and {report_path}." if report_path else "."))


@cli.command("apply")
@click.argument("map_file")
@click.argument("incoming")
@click.option("--output", "-o", required=True, help="The table to write; - is standard output.")
@click.option("--inverse", is_flag=True, help="Map from OLD units back to NEW.")
@click.option("--output-format", help="Format of output, if its name does not tell.")
@with_reading
@with_force
@with_json
def apply_(
    map_file: str,
    incoming: str,
    output: str,
    inverse: bool,
    output_format: str | None,
    force: bool,
    as_json: bool,
    **reading: Any,
) -> None:
    """Map the features of INCOMING, and keep all other columns and the order of rows."""
    from condokit.maps import AffineMap

    affine = AffineMap.load(map_file)
    if inverse:
        affine = affine.pseudo_inverse() if affine.is_rectangular else affine.inverse()
    found = apply_to_file(affine, incoming, output, force, reading, output_format)
    if as_json:
        if output == "-":
            raise click.UsageError("--json and -o - both want standard output.")
        show_result({"output": output, **found.to_dict()})
        return
    for finding in found.findings:
        if finding.level == "care":
            tell(f"warning: {finding.text} {finding.advice}".rstrip())
    tell(f"Mapped {found.n_rows:,} rows to {output}.")


@cli.command()
@with_data
@with_fitting
@click.option("--output", "-o", required=True, help="The report to write (HTML).")
@with_force
@click.option("--verbose", "-v", is_flag=True, help="Show progress of long fits.")
@with_json
def report(output: str, force: bool, verbose: bool, as_json: bool, **options: Any) -> None:
    """Fit, and write the report alone: what was compared, changed and left, and how sure we are."""
    from condokit.files import check_target

    check_target(output, force)
    adapter, domains, _ = fit_adapter(verbose, **options)
    record = write_report(adapter, domains, inputs_of(options), output, force)
    if as_json:
        show_result(record)
    else:
        tell(f"Wrote {output}.")


@cli.command()
@click.argument("map_file")
@with_json
def show(map_file: str, as_json: bool) -> None:
    """Say what a map file holds."""
    from condokit.maps import AffineMap
    from condokit.records import Sheet, plain

    affine = AffineMap.load(map_file)
    names = list(affine.feature_names or [f"column {j}" for j in range(affine.n_features_in_)])
    record: dict[str, Any] = {
        "kind": affine.kind,
        "n_features": affine.n_features_in_,
        "feature_names": names,
        "offset": affine.offset,
        "links": affine.links,
        "fitted_on_rows": None if affine.fitted_on is None else affine.fitted_on.n_rows,
        "provenance": affine.provenance,
    }
    if affine.kind == "diagonal":
        record["scale"] = affine.scale
    if as_json:
        show_result(plain(record))
        return
    lines = [f"A {affine.kind} map of {len(names)} features."]
    if affine.fitted_on is not None:
        lines.append(f"Fitted on {affine.fitted_on.n_rows:,} query rows.")
    if affine.kind == "diagonal":
        sheet = Sheet(
            {
                "feature": names,
                "scale": affine.scale.tolist(),
                "offset": affine.offset.tolist(),
                **({} if affine.links is None else {"link": list(affine.links)}),
            }
        )
        lines += ["", repr(sheet)]
    for key, value in (plain(record["provenance"]) or {}).items():
        lines.append(
            f"{key}: {value if isinstance(value, str | int | float) else json.dumps(value)}"
        )
    show_result("\n".join(lines))


@cli.command()
@click.argument("map_file")
@click.option("--onnx", metavar="PATH", help="Write an ONNX model.")
@click.option("--sql", metavar="PATH", help="Write a SELECT; - is standard output.")
@click.option("--python", metavar="PATH", help="Write a function without dependencies; or -.")
@click.option("--table", default="incoming", show_default=True, help="With --sql: the table.")
@click.option("--keep", multiple=True, help="With --sql: other columns to keep; repeatable.")
@with_force
def export(
    map_file: str,
    onnx: str | None,
    sql: str | None,
    python: str | None,
    table: str,
    keep: tuple[str, ...],
    force: bool,
) -> None:
    """Write a map for other systems: ONNX, SQL or plain Python."""
    from condokit import export as exports
    from condokit.files import write_bytes, write_text
    from condokit.maps import AffineMap

    if not (onnx or sql or python):
        raise click.UsageError("Say what to write: --onnx, --sql or --python.")
    affine = AffineMap.load(map_file)
    if onnx:
        write_bytes(onnx, exports.to_onnx(affine), force)
    if sql:
        text = exports.to_sql(affine, table, keep=list(keep))
        show_result(text) if sql == "-" else write_text(sql, text + "\n", force)
    if python:
        text = exports.to_python(affine)
        show_result(text) if python == "-" else write_text(python, text, force)
    for path in (onnx, sql, python):
        if path and path != "-":
            tell(f"Wrote {path}.")


@cli.command()
@click.argument("folder", default="condokit-demo")
@with_force
def demo(folder: str, force: bool) -> None:
    """Make example data in FOLDER and run check, fit and apply on them."""
    import csv
    from pathlib import Path

    from condokit import datasets

    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    columns = datasets.make_eeg(random_state=0).columns()
    device = columns.pop("device")
    for label, name in (("v2", "new.csv"), ("v1", "old.csv")):
        with open(place / name, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            rows = zip(*(values[device == label].tolist() for values in columns.values()))
            writer.writerows(rows)
    new, old = str(place / "new.csv"), str(place / "old.csv")
    data = [new, "--reference", old, "-c", "seizure", "-f", "eeg_*"]
    out = [str(place / name) for name in ("map.json", "report.html", "adapted.csv")]
    again = ["--force"] if force else []
    for arguments in (
        ["check", *data],
        ["fit", *data, "-o", out[0], "--report", out[1], *again],
        ["apply", out[0], new, "-o", out[2], *again],
    ):
        tell(click.style(f"\n$ condokit {shlex.join(arguments)}", bold=True))
        given[:] = arguments
        cli.main(arguments, standalone_mode=False)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "condokit", "_CONDOKIT_COMPLETE").source())


def main(arguments: list[str] | None = None) -> None:
    """Run a command; every failure is one line on standard error, and an exit code."""
    code = 0
    given[:] = sys.argv[1:] if arguments is None else arguments
    try:
        result = cli.main(given, prog_name="condokit", standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        code = 2
    except click.exceptions.Abort:
        code = 130
    except BrokenPipeError:
        # whoever read the output has left: nothing to say, and nothing to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        tell("Interrupted.")
        code = 130
    except (ValueError, ImportError, OSError, MemoryError, TypeError) as error:
        from condokit._validation import NoOverlapError

        text = str(error) or type(error).__name__
        tell(click.style("error: ", fg="red", bold=True) + text)
        code = 3 if isinstance(error, NoOverlapError) else 2
    sys.exit(code)
