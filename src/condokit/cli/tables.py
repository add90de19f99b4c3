"""Tables of the command line as domains: which columns are what."""

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from condokit.batches.study import Study
from condokit.checks import FileError, did_you_mean, listing
from condokit.cli.options import READING
from condokit.cli.outputs import tell
from condokit.cli.streaming import are_large, columns_of, read_large, scanned
from condokit.data.disclosure import counted
from condokit.data.domains import Domains
from condokit.data.measurements import told
from condokit.data.roles import from_pair, from_table
from condokit.data.tables import Table
from condokit.io import OBSERVED, is_number, read_table
from condokit.io.formats import arrow, check_names

pa = arrow()


def read_data(
    new: str, reference: str | None, domain: str | None, reference_label: str | None, **options: Any
) -> Domains | Study:
    """Read one table or two, and tell features from the rest; other options are ignored."""
    query_label, batch, bridge = (options[name] for name in ("query_label", "batch", "bridge"))
    if [reference, domain, batch].count(None) != 2:
        text = "Give --reference OLD for two tables, or --domain for one, or --batch for one with "
        raise click.UsageError(text + "many batches.")
    if batch is None:
        check_label(domain, reference_label, query_label)
    if batch is None and (bridge is not None or options["keep_unreachable"]):
        raise click.UsageError("--bridge and --keep-unreachable go with --batch.")
    if new == reference == "-":
        raise click.UsageError("Standard input can be NEW or OLD, but not both.")
    groups, weights, missing = (options[name] for name in ("groups", "weights", "missing"))
    paths = [path for path in (new, reference) if path is not None]
    if are_large(paths, options):
        return _told(_read_large(paths, domain, (query_label, reference_label), options))
    reading = {name: options[name] for name in READING}
    tables = [_table(path, texts=[domain, batch], **reading) for path in paths]
    if query_label is not None:
        tables = [_pair_of(new, tables[0], str(domain), query_label, reference_label)]
    reliability = reliabilities(options["reliability"])
    kinds = confounder_kinds(options["confounders"], tables[0].column_names, reliability)
    roles = [n for n in (*kinds, domain, batch, bridge, groups, weights) if n is not None]
    for path, table in zip(paths, tables):
        check_names(path, table.column_names, roles)
    known = set(tables[0].column_names)
    common = batch is not None and options["features"] == ("common",) and "common" not in known
    options["features"] = () if common else options["features"]
    chosen, others = feature_columns(options["features"], paths, tables, roles, options["decimal"])
    whole = [OBSERVED in (table.schema.metadata or {}) for table in tables]  # AnnData
    named = chosen if options["features"] or all(whole) else None
    columns = {
        name: alike(name, kind, paths, [table.column(name) for table in tables])
        for name, kind in kinds.items()
    }
    sides = [{name: columns[name][k] for name in columns} or None for k in range(len(tables))]
    categorical = [name for name, kind in kinds.items() if kind == "cat"] or None
    by_row = [None if c is None else [t.column(c) for t in tables] for c in (groups, weights)]
    shared = known.intersection(*(t.column_names for t in tables))
    unused = [n for n in tables[0].column_names if n in shared.difference(chosen, roles)]
    X = [table.select([*chosen, *unused]) for table in tables]
    how: tuple[Any, ...] = categorical, missing
    if batch is not None:
        labels, own = labels_of(tables[0].column(batch)), [each and each[0] for each in by_row]
        samples = None if bridge is None else labels_of(tables[0].column(bridge))
        how = *how, reliability
        study = Study.read(X[0], labels, sides[0], named, *own, *how, bridge=samples)
        found = study.domains
    elif domain is not None:
        labels, own = labels_of(tables[0].column(domain)), [each and each[0] for each in by_row]
        how = reference_label, *how, reliability
        found = from_table(X[0], labels, sides[0], named, own[0], own[1], *how)
    else:
        how = *how, False, named, reliability
        found = from_pair(X[0], X[1], *sides, *by_row, *how)  # type: ignore[arg-type]
        names = Path(new).name, Path(str(reference)).name
        if "-" not in names and names[0] != names[1]:
            found = replace(found, labels=names)
    found = _told(replace(found, left=others | found.left))
    return found if batch is None else replace(study, domains=found).with_known_features(common)


def _told(found: Domains) -> Domains:
    """Say which columns are features."""
    tell(f"Features ({found.n_features}): {listing(found.tables[0].labels, 10)}.", False)
    if found.left:
        tell(f"Left alone: {told(found.left)}. Choose features with -f.", False)
    return found


def _read_large(paths: list[str], domain: str | None, labels: Any, options: Any) -> Domains:
    """Read files that are larger than memory."""
    columns = columns_of(scanned(paths[0], options))
    kinds = confounder_kinds(options["confounders"], columns, {})
    features = split("--features", options["features"], columns) or None
    found = read_large(paths, domain, labels, kinds, features, options)
    names = Path(paths[0]).name, Path(paths[-1]).name
    return replace(found, labels=names) if names[0] != names[1] else found


def check_label(domain: str | None, reference_label: str | None, query_label: str | None) -> None:
    """Refuse a column of domains without the label of OLD, and labels without the column."""
    if (domain is None) != (reference_label is None):
        raise click.UsageError("--domain and --reference-label (which label is OLD) go together.")
    if query_label is not None and (domain is None or query_label == reference_label):
        raise click.UsageError("--query-label is one of the labels of --domain, that of NEW.")


def _pair_of(path: str, table: Any, domain: str, query_label: str, reference_label: Any) -> Any:
    """Return the rows of two domains of a table that has more."""
    check_names(path, table.column_names, [domain])
    labels = labels_of(table.column(domain))
    known = sorted({label for label in labels if label is not None})
    for option, label in (("--query-label", query_label), ("--reference-label", reference_label)):
        if label not in known:
            hint = did_you_mean(label, known)
            raise ValueError(f"{option} {label}: the labels are {listing(known)}.{hint}")
    mine = [label in (query_label, reference_label) for label in labels]
    left_out = counted(len(mine) - sum(mine))
    tell(f"{left_out} rows with other labels of {domain!r} are left out.", False)
    return table.filter(pa.array(mine))


def labels_of(column: Any) -> list[str | None]:
    """Return the labels of domains as text, as they are given on the command line."""
    return [None if label in (None, "") else str(label) for label in column.to_pylist()]


def split(option: str, values: tuple[str, ...], known: Sequence[str] = ()) -> list[str]:
    """Split lists at commas, but not the name of a column that has some."""
    parts: list[str] = []
    for value in values:
        parts += [value] if value in known else [p.strip() for p in value.split(",") if p.strip()]
    if values and not parts:
        raise click.UsageError(f"{option} {values[0]!r} names no column.")
    return list(dict.fromkeys(parts))


def confounder_kinds(
    values: tuple[str, ...], known: list[str], reliability: dict[str, Any]
) -> dict[str, str]:
    """Return the confounders, and what each was declared: "cat", "num" or nothing."""
    kinds: dict[str, str] = {}
    for part in split("--confounders", values, known):
        name, _, kind = part.rpartition(":")
        if part in known or not name:
            name, kind = part, ""
        elif kind not in ("cat", "num"):
            raise click.UsageError(
                f"--confounders {part}: after the colon comes cat (categories) or num (a number)."
            )
        repeats = reliability.get(name)
        kinds |= dict.fromkeys(repeats if isinstance(repeats, list) else [name], kind)
    return kinds


def reliabilities(values: tuple[str, ...]) -> dict[str, Any]:
    """Return shares of signal, or columns of repeated measurements, by confounder."""
    found: dict[str, Any] = {}
    for value in values:
        name, _, given = value.partition("=")
        columns = [column.strip() for column in given.split(",") if column.strip()]
        if not name or not columns:
            raise click.UsageError(f"--reliability {value}: write NAME=0.8 or NAME=COLUMN,COLUMN.")
        try:
            found[name] = float(given)
        except ValueError:
            found[name] = columns
    return found


def alike(name: str, declared: str, paths: list[str], columns: list[Any]) -> list[Any]:
    """Return a confounder with one kind of values: text becomes what the other table holds."""
    kinds = [pa.float64() if is_number(column.type) else kind_of(column.type) for column in columns]
    for path, kind in zip(paths, kinds):
        _refuse_nested(path, name, kind)
    others = {kind for kind in kinds if kind not in (pa.string(), pa.null())}
    if declared == "cat":
        return columns if len(set(kinds)) == 1 else [c.cast(pa.string()) for c in columns]
    if declared == "num":
        others = {pa.float64()}
    elif pa.string() not in kinds or len(others) != 1:
        return columns
    wanted, alike = others.pop(), []
    for path, column, kind in zip(paths, columns, kinds):
        try:
            same = kind in (wanted, pa.null())
            alike.append(column if same else column.cast(pa.string()).cast(wanted))
            if declared and pa.types.is_integer(column.type):  # not a code
                alike[-1] = column.cast(wanted)
        except pa.ArrowInvalid:
            where = "declared" if declared else f"in {paths[kinds.index(wanted)]}"
            raise ValueError(
                f"{path}: confounder {name!r} holds {kind}, not {wanted} as {where}: "
                f"{_first_other([column], wanted)}. Correct it, name the mark of missing values "
                f"with --na, or declare categories with -c {name}:cat."
            ) from None
    return alike


def kind_of(kind: Any) -> Any:
    """Return the type of values, whichever way text is stored."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.string() if pa.types.is_large_string(kind) else kind


def feature_columns(
    values: tuple[str, ...],
    paths: list[str],
    tables: list[Any],
    roles: list[str],
    decimal: str,
    rows: list[Any] | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Choose the feature columns: by pattern, or all numeric ones that every table has."""
    # and say why other columns are none, if none are named; `rows` are the tables in batches
    first = tables[0].column_names
    free = [name for name in first if name not in roles]
    if values:
        wanted = split("--features", values, first)
        chosen = [first[i] for i in Table(tables[0], paths[0]).find(wanted, set(roles))]
        for path, table, parts in zip(paths, tables, rows or [[table] for table in tables]):
            check_names(path, table.column_names, chosen)
            refuse_text(path, chosen, table.schema, parts, decimal)
        return chosen, {}
    numeric = dict.fromkeys(free)
    for table in tables:
        observed = set(json.loads((table.schema.metadata or {}).get(OBSERVED, "[]")))
        numbers = {field.name for field in table.schema if is_number(field.type)} - observed
        numeric = {name: None for name in numeric if name in numbers}
    if not numeric:
        raise ValueError(
            "No numeric column that every table has is left for features; name them with "
            f"--features. The columns are {listing(free, 10)}."
        )
    why = "text, about rows, or in one table only"
    return list(numeric), {name: why for name in free if name not in numeric}


def refuse_text(
    path: str, names: Iterable[str], schema: Any, tables: Iterable[Any], decimal: str
) -> None:
    """Refuse features that hold text, which no map can take; `tables` are the rows of the file."""
    kinds = {field.name: field.type for field in schema}
    text = [name for name in names if not (is_number(kinds[name]) or kinds[name] == pa.bool_())]
    if text:
        _refuse_nested(path, text[0], kinds[text[0]])
        found = _first_other((table.column(text[0]) for table in tables), pa.float64(), decimal)
        comma = re.search("'[-+]?[0-9]+,[0-9]+'", found)
        hint = "Give the decimal mark with --decimal=','" if comma else "Correct it"
        raise FileError(
            f"{path}: {listing(text)} should hold numbers, but there is text in it: {found}. "
            f"{hint}, or name the mark of missing values with --na."
        )


def _refuse_nested(path: str, name: str, kind: Any) -> None:
    """Refuse values that are no plain ones: lists, structures, bytes."""
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        raise FileError(f"{path}: column {name!r} holds {kind}, neither numbers nor text.")


def _first_other(columns: Iterable[Any], kind: Any, decimal: str = ".") -> str:
    """Name the first value that is not of a kind, and its row."""

    def fails(values: Any) -> bool:
        try:
            values.cast(kind)
        except pa.ArrowInvalid:
            return True
        return False

    n_rows = 0
    for column in columns:
        texts = column.cast(pa.string())
        plain = pa.compute.replace_substring(texts, decimal, ".")
        row = bisect_left(range(len(plain)), True, key=lambda row: fails(plain[: row + 1]))
        if row < len(plain):
            return f"{texts[row].as_py()[:60]!r} in row {n_rows + row + 1:,}"
        n_rows += len(plain)
    return "whole numbers with too many digits, or padded codes"


def _table(path: str, **reading: Any) -> Any:
    """Read a table, with decimals as the numbers that they are."""
    return as_numbers(read_table(path, **reading))


def as_numbers(table: Any) -> Any:
    """Return a table with decimals as the numbers that they are."""
    is_decimal = pa.types.is_decimal
    kinds = [(f.name, pa.float64() if is_decimal(f.type) else f.type) for f in table.schema]
    return table.cast(pa.schema(kinds, metadata=table.schema.metadata))
