"""The command line: parse, call the library, print. Messages for people go to standard error."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

import condokit

if TYPE_CHECKING:
    from condokit.adapter import ConDoAdapter
    from condokit.domains import Domains
    from condokit.maps import AffineMap

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
_Inputs = list[tuple[str, dict[str, str]]]
_READING = ("file_format", "delimiter", "na_values", "encoding", "decimal")
_ROLES = ("domain", "reference_label", "confounders", "features", "groups", "weights", "missing")
_DATA = ("new", "reference", *_ROLES, *_READING)
_arguments: list[str] = []  # as they were given, for the record
_MOST_WATCHED = 100_000  # rows of a file that are all checked for drift; beyond, every tenth


@click.group(epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(condokit.__version__, prog_name="condokit")
def cli() -> None:
    """Make new data backwards-compatible: remove technical shift, keep what confounds it.

    NEW (query) data are mapped so that they look like the OLD (reference) data, comparing the two
    given the confounders. Tables are CSV (also .gz), TSV, Parquet, Feather or h5ad; "-" is
    standard input or output.
    """


def _options(*options: Callable[..., Any]) -> Callable[..., Any]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_as_json = click.option("--json", "as_json", is_flag=True, help="Print a record for machines.")
_force = click.option("--force", is_flag=True, help="Replace existing files.")
_reading = _options(
    click.option("--format", "file_format", help="Format of input, if its name does not tell."),
    click.option("--delimiter", help="Delimiter of text tables; detected by default."),
    click.option("--na", "na_values", multiple=True, help="Mark of missing values; repeatable."),
    click.option("--encoding", default="utf-8", show_default=True, help="Encoding of text tables."),
    click.option("--decimal", default=".", show_default=True, help="Decimal mark of text tables."),
)
_data = _options(
    click.argument("new"),
    click.option("--reference", metavar="OLD", help="The table that NEW should look like."),
    click.option("--domain", metavar="COLUMN", help="With one table: the column of the domain."),
    click.option("--reference-label", metavar="LABEL", help="With --domain: which is OLD."),
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
        help="Feature columns; default: all other numeric columns.",
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
    _reading,
)
_fitting = _options(
    click.option("--map", "map_", default="location-scale", show_default=True, metavar="NAME"),
    click.option("--divergence", default="auto", show_default=True, metavar="NAME"),
    click.option("--shrinkage", default="auto", show_default=True, help="auto, none, or 0 to 1."),
    click.option(
        "--link",
        "links",
        multiple=True,
        metavar="FEATURE=log|logit|POWER",
        help="Keep a feature positive or bounded; repeatable.",
    ),
    click.option("--warn-overlap", type=float, default=0.4, show_default=True),
    click.option("--min-overlap", type=float, default=0.05, show_default=True),
    click.option("--seed", type=int, default=0, show_default=True),
    click.option(
        "--bootstrap", "n_resamples", type=int, default=0, help="Refits for errors of any map."
    ),
)


@cli.command()
@_data
@click.option("--warn-overlap", type=float, default=0.4, show_default=True)
@click.option("--min-overlap", type=float, default=0.05, show_default=True)
@_as_json
def check(as_json: bool, warn_overlap: float, min_overlap: float, **data: Any) -> None:
    """Say whether NEW can be compared with OLD at all, before anything is fitted."""
    from condokit.trust.assess import assess_domains

    domains = _read(**data)
    found = assess_domains(domains, warn_overlap, min_overlap)
    _show(found.to_dict() if as_json else repr(found))
    if found.verdict == "not possible":
        raise SystemExit(3)


@cli.command()
@_data
@_fitting
@click.option("--output", "-o", required=True, help="The map file to write (JSON).")
@click.option("--report", "report_path", help="The report to write (HTML).")
@click.option("--adapted", help="Also write NEW, mapped, to this table.")
@_force
@click.option("--verbose", "-v", is_flag=True, help="Show progress of long fits.")
@_as_json
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
    adapter, domains, said = _fitted(verbose, **options)
    inputs = _inputs(options)
    affine = _with_origin(adapter.map_, domains, inputs)
    affine.save(output)
    record = None
    if report_path is not None:
        record = _write_report(adapter, domains, inputs, report_path, force)
    if adapted is not None:
        _apply_to_file(affine, options["new"], adapted, force, options)
    if as_json:
        _show(_fit_record(adapter, output, report_path, said) | ({"report": record or {}}))
        return
    _tell(f"{_summary(adapter)}\nWrote {output}" + (f" and {report_path}." if report_path else "."))


@cli.command("apply")
@click.argument("map_file")
@click.argument("incoming")
@click.option("--output", "-o", required=True, help="The table to write; - is standard output.")
@click.option("--inverse", is_flag=True, help="Map from OLD units back to NEW.")
@click.option("--output-format", help="Format of output, if its name does not tell.")
@_reading
@_force
@_as_json
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
    found = _apply_to_file(affine, incoming, output, force, reading, output_format)
    if as_json:
        if output == "-":
            raise click.UsageError("--json and -o - both want standard output.")
        _show({"output": output, **found.to_dict()})
        return
    for finding in found.findings:
        if finding.level == "care":
            _tell(f"warning: {finding.text} {finding.advice}".rstrip())
    _tell(f"Mapped {found.n_rows:,} rows to {output}.")


@cli.command()
@_data
@_fitting
@click.option("--output", "-o", required=True, help="The report to write (HTML).")
@_force
@click.option("--verbose", "-v", is_flag=True, help="Show progress of long fits.")
@_as_json
def report(output: str, force: bool, verbose: bool, as_json: bool, **options: Any) -> None:
    """Fit, and write the report alone: what was compared, changed and left, and how sure we are."""
    from condokit.files import check_target

    check_target(output, force)
    adapter, domains, _ = _fitted(verbose, **options)
    record = _write_report(adapter, domains, _inputs(options), output, force)
    if as_json:
        _show(record)
    else:
        _tell(f"Wrote {output}.")


@cli.command()
@click.argument("map_file")
@_as_json
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
        _show(plain(record))
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
    _show("\n".join(lines))


@cli.command()
@click.argument("map_file")
@click.option("--onnx", metavar="PATH", help="Write an ONNX model.")
@click.option("--sql", metavar="PATH", help="Write a SELECT; - is standard output.")
@click.option("--python", metavar="PATH", help="Write a function without dependencies; or -.")
@click.option("--table", default="incoming", show_default=True, help="With --sql: the table.")
@click.option("--keep", multiple=True, help="With --sql: other columns to keep; repeatable.")
@_force
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
        _show(text) if sql == "-" else write_text(sql, text + "\n", force)
    if python:
        text = exports.to_python(affine)
        _show(text) if python == "-" else write_text(python, text, force)
    for path in (onnx, sql, python):
        if path and path != "-":
            _tell(f"Wrote {path}.")


@cli.command()
@click.argument("folder", default="condokit-demo")
@_force
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
        _tell(click.style(f"\n$ condokit {shlex.join(arguments)}", bold=True))
        _arguments[:] = arguments
        cli.main(arguments, standalone_mode=False)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "condokit", "_CONDOKIT_COMPLETE").source())


def _read(
    new: str,
    reference: str | None,
    domain: str | None,
    reference_label: str | None,
    confounders: tuple[str, ...],
    features: tuple[str, ...],
    groups: str | None,
    weights: str | None,
    missing: str,
    **reading: Any,
) -> Domains:
    """Read one table or two, and tell features from the rest."""
    from condokit.intake import from_pair, from_table

    if (reference is None) == (domain is None):
        raise click.UsageError("Give --reference OLD for two tables, or --domain for one.")
    tables = [_table(path, reading) for path in (new, reference) if path is not None]
    names, declared, numbers = _confounders(confounders, tables[0].column_names)
    roles = [name for name in (*names, domain, groups, weights) if name is not None]
    for path, table in zip((new, reference), tables):
        _refuse_unknown(path, roles, table.column_names)
    _refuse_text(numbers, tables)
    chosen = _features(features, tables, roles)
    categorical = declared or None
    if domain is not None:
        if reference_label is None:
            raise click.UsageError("--domain needs --reference-label: which label is OLD?")
        table = tables[0]
        labels = [None if v is None else str(v) for v in table.column(domain).to_pylist()]
        return from_table(
            table,
            labels,
            {name: table.column(name) for name in names} or None,
            chosen,
            groups,
            weights,
            reference_label,
            categorical,
            missing,
        )
    sides = [{name: table.column(name) for name in names} or None for table in tables]
    pair = [None if c is None else tuple(t.column(c) for t in tables) for c in (groups, weights)]
    return from_pair(
        tables[0].select(chosen),
        tables[1].select(chosen),
        sides[0],
        sides[1],
        pair[0],
        pair[1],
        categorical,
        missing,
    )


def _table(path: str, reading: dict[str, Any]) -> Any:
    from condokit.files import read_table

    return read_table(path, **_reading_options(reading))


def _reading_options(reading: dict[str, Any]) -> dict[str, Any]:
    return {
        "format": reading.get("file_format"),
        "delimiter": reading.get("delimiter"),
        "na_values": list(reading.get("na_values") or ()) or None,
        "encoding": reading.get("encoding") or "utf-8",
        "decimal": reading.get("decimal") or ".",
    }


def _split(values: tuple[str, ...], known: list[str]) -> list[str]:
    """Split lists at commas, but not the name of a column that has some."""
    parts: list[str] = []
    for value in values:
        parts += [value] if value in known else [p.strip() for p in value.split(",") if p.strip()]
    return list(dict.fromkeys(parts))


def _confounders(
    values: tuple[str, ...], known: list[str]
) -> tuple[list[str], list[str], list[str]]:
    """Return all confounders, those declared categorical, and those declared numbers."""
    names: list[str] = []
    declared: dict[str, list[str]] = {"cat": [], "num": []}
    for part in _split(values, known):
        name, _, kind = part.rpartition(":")
        if part in known or not name:
            names.append(part)
            continue
        if kind not in declared:
            raise click.UsageError(
                f"--confounders {part}: after the colon comes cat (categories) or num (a number)."
            )
        names.append(name)
        declared[kind].append(name)
    return names, declared["cat"], declared["num"]


def _refuse_unknown(path: str | None, wanted: list[str], known: list[str]) -> None:
    from condokit._validation import did_you_mean, listing

    for name in wanted:
        if name not in known:
            raise ValueError(
                f"{path} has no column {name!r}.{did_you_mean(name, known)} Its columns are "
                f"{listing(known, 10)}."
            )


def _refuse_text(names: list[str], tables: list[Any]) -> None:
    import pyarrow.types as types

    for name in names:
        for table in tables:
            kind = table.schema.field(name).type
            if not (types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind)):
                raise ValueError(f"Confounder {name!r} is declared a number, but holds {kind}.")


def _features(values: tuple[str, ...], tables: list[Any], roles: list[str]) -> list[str]:
    """Choose the feature columns: by pattern, or all numeric ones that every table has."""
    import fnmatch

    import pyarrow.types as types

    from condokit._validation import did_you_mean, listing

    first = tables[0].column_names
    free = [name for name in first if name not in roles]
    if values:
        chosen: dict[str, None] = {}
        for pattern in _split(values, first):
            hits = [pattern] if pattern in first else fnmatch.filter(free, pattern)
            if not hits:
                raise ValueError(
                    f"--features {pattern!r} matches no column.{did_you_mean(pattern, free)} "
                    f"The columns are {listing(free, 10)}."
                )
            chosen.update(dict.fromkeys(hits))
        both = [name for name in chosen if name in roles]
        if both:
            raise ValueError(f"--features names {listing(both)}, which has another role.")
        for table in tables[1:]:
            _refuse_unknown("The reference", list(chosen), table.column_names)
        for name, table in zip(("NEW", "OLD"), tables):
            _refuse_text_features(name, list(chosen), table.schema)
        return list(chosen)
    numeric: list[str] = []
    left: list[str] = []
    for name in free:
        kinds = [t.schema.field(name).type for t in tables if name in t.column_names]
        is_number = all(types.is_integer(k) or types.is_floating(k) for k in kinds)
        (numeric if is_number and len(kinds) == len(tables) else left).append(name)
    if not numeric:
        raise ValueError(
            "No numeric column that every table has is left for features; name them with "
            f"--features. The columns are {listing(free, 10)}."
        )
    if left:
        _tell(f"Not features (text, or in one table only): {listing(left, 10)}.")
    return numeric


def _refuse_text_features(path: str, names: list[str], schema: Any) -> None:
    """Refuse features that hold text, which no map can take."""
    import pyarrow.types as types

    from condokit._validation import FileError, listing

    text = []
    for name in names:
        kind = schema.field(name).type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            text.append(name)
    if text:
        raise FileError(
            f"{path}: {listing(text)} should hold numbers, but there is text in it. Correct it, or "
            "name the mark of missing values with --na."
        )


def _fitted(verbose: bool, **options: Any) -> tuple[ConDoAdapter, Domains, list[str]]:
    """Read the data, fit the map, and return what was warned of."""
    from condokit.adapter import ConDoAdapter
    from condokit.trust.uncertainty import bootstrap_domains

    domains = _read(**{name: options[name] for name in _DATA})
    adapter = ConDoAdapter(
        _family(options["map_"], options["links"]),
        divergence=options["divergence"],
        shrinkage=_shrinkage(options["shrinkage"]),
        warn_overlap=options["warn_overlap"],
        min_overlap=options["min_overlap"],
        random_state=options["seed"],
        verbose=verbose,
        n_jobs=-1,
    )
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapter.fit_domains(domains)
        if options["n_resamples"]:
            n_resamples, seed = options["n_resamples"], options["seed"]
            bootstrap_domains(adapter, domains, n_resamples, None, verbose, seed)
    for warning in caught:
        text = str(warning.message)
        if issubclass(warning.category, UserWarning) and text not in said:
            said.append(text)
            _tell(f"warning: {text}")
    return adapter, domains, said


def _family(name: str, links: tuple[str, ...]) -> Any:
    """Return a map by name, with its rank or links."""
    from condokit.maps import MAPS, LowRank

    name, _, rank = name.partition(":")
    if not links and not rank:
        return name
    found: dict[str, Any] = {}
    for link in links:
        feature, sign, kind = link.rpartition("=")
        if not sign:
            raise click.UsageError(f"--link {link}: write FEATURE=log, FEATURE=logit or a power.")
        found[feature] = kind if kind in ("log", "logit") else _number("--link", kind)
    if name == "low-rank":
        return LowRank(int(_number("--map", rank or "2")), links=found or None)
    if rank or name not in MAPS or name == "blocks":
        raise click.UsageError(f"--map {name}: links and ranks do not go with it.")
    return MAPS[name](links=found)


def _shrinkage(value: str) -> Any:
    if value == "auto":
        return value
    return None if value.lower() == "none" else _number("--shrinkage", value)


def _number(option: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise click.UsageError(f"{option}: {value!r} is not a number.") from None


def _with_origin(affine: AffineMap, domains: Domains, inputs: _Inputs) -> AffineMap:
    """Return a map that knows the command, the files and the rows it comes from."""
    from condokit.provenance import fingerprint

    origin = {
        **(affine.provenance or {}),
        "data": fingerprint(domains),
        "command": _command(),
        "files": [known for _, known in inputs],
    }
    return affine.remembering(affine.fitted_on, origin)


def _command() -> list[str]:
    """Return the command without what it wrote, which does not change the map."""
    kept, skip = ["condokit"], False
    for argument in _arguments:
        name, sign, _ = argument.partition("=")
        written = name in ("-o", "--output", "--report", "--adapted")
        if not (skip or written or argument in ("--force", "--json", "-v", "--verbose")):
            kept.append(argument)
        skip = written and not sign and not skip
    return kept


def _inputs(options: dict[str, Any]) -> _Inputs:
    """Return the files that were read with their fingerprints."""
    from condokit.provenance import file_fingerprint

    paths = (options["new"], options["reference"])
    return [(path, file_fingerprint(path)) for path in paths if path not in (None, "-")]


def _write_report(
    adapter: ConDoAdapter,
    domains: Domains,
    inputs: _Inputs,
    path: str,
    force: bool,
) -> dict[str, Any]:
    from condokit.files import write_text
    from condokit.report import build, render

    hashes = {name: known["sha256"] for name, known in inputs}
    record = build(adapter, domains, command=shlex.join(_command()), inputs=hashes)
    write_text(path, render(record), force)
    return record


def _apply_to_file(
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
        scan_table(incoming, **_reading_options(reading)) as scan,
        open_writer(output, format=output_format, force=force) as writer,
        _progress(scan.n_rows) as advance,
    ):
        names, profile = affine.feature_names, affine.fitted_on
        monitor = Monitor(names, affine.n_features_in_, profile, scan.names, len(scan.names))
        stops = [finding.text for finding in monitor.findings if finding.level == "stop"]
        if stops:
            raise FileError(f"{incoming}: {stops[0]}")
        _refuse_text_features(incoming, list(names or scan.names), scan.schema)
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


def _fit_record(
    adapter: ConDoAdapter, output: str, report_path: str | None, said: list[str]
) -> dict[str, Any]:
    from condokit.records import plain

    affine = adapter.map_
    return {
        "map": output,
        "report_path": report_path,
        "kind": affine.kind,
        "n_features": affine.n_features_in_,
        "divergence": str(adapter.divergence_),
        "chosen": adapter.report_.get("chosen_map", str(adapter.map)),
        "rows_query": adapter.report_["rows_query"],
        "rows_reference": adapter.report_["rows_reference"],
        "overlap": plain(adapter.overlap_),
        "warnings": said,
    }


def _summary(adapter: ConDoAdapter) -> str:
    affine, facts = adapter.map_, adapter.report_
    chosen = facts.get("chosen_map")
    return (
        f"A {affine.kind} map of {affine.n_features_in_} features"
        + (f", chosen as {chosen}," if chosen else "")
        + f" from {facts['rows_query']:,.0f} query and {facts['rows_reference']:,.0f} reference "
        f"rows; overlap of the confounders {adapter.overlap_.coefficient:.2f}."
    )


def _show(what: Any) -> None:
    """Print a result: text, or a record as JSON."""
    click.echo(what if isinstance(what, str) else json.dumps(what, allow_nan=False, indent=1))


def _tell(text: str) -> None:
    """Say something to people."""
    click.echo(text, err=True)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; every failure is one line on standard error, and an exit code."""
    code = 0
    _arguments[:] = sys.argv[1:] if arguments is None else arguments
    try:
        result = cli.main(_arguments, prog_name="condokit", standalone_mode=False)
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
        _tell("Interrupted.")
        code = 130
    except (ValueError, ImportError, OSError, MemoryError, TypeError) as error:
        from condokit._validation import NoOverlapError

        text = str(error) or type(error).__name__
        _tell(click.style("error: ", fg="red", bold=True) + text)
        code = 3 if isinstance(error, NoOverlapError) else 2
    sys.exit(code)


if __name__ == "__main__":
    main()
