"""Tables of the command line as domains: which columns are what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from condokit.cli.printing import tell

if TYPE_CHECKING:
    from condokit.domains import Domains


def read_domains(
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
    _refuse_declared(numbers, tables)
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


def reading_options(reading: dict[str, Any]) -> dict[str, Any]:
    """Return what `condokit.files` calls the options of reading."""
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


def _refuse_declared(names: list[str], tables: list[Any]) -> None:
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
            refuse_text(name, list(chosen), table.schema)
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
        tell(f"Not features (text, or in one table only): {listing(left, 10)}.")
    return numeric


def refuse_text(path: str, names: list[str], schema: Any) -> None:
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


def _table(path: str, reading: dict[str, Any]) -> Any:
    from condokit.files import read_table

    return read_table(path, **reading_options(reading))
