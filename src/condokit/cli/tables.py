"""Files of the command line as the library's reader takes them: tables, blocks of rows, AnnData.

Which columns are what is for the reader to say. Here text becomes numbers where it was declared so,
labels become text as they are typed, and what is wrong is told with the file and the row.
"""

import json
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from click import UsageError

from condokit.checks import FileError, did_you_mean, listing, repeated
from condokit.cli.options import READING, SHEET
from condokit.cli.outputs import tell
from condokit.data.blocks import Blocks
from condokit.data.columns import as_text
from condokit.data.disclosure import counted
from condokit.data.measurements import reasons_in_words
from condokit.data.reader import read, read_pair, read_two
from condokit.data.roles import Roles
from condokit.data.study import Study
from condokit.data.tables import Table
from condokit.io import OBSERVED, files_of, is_number, open_h5ad, read_table, scan_table
from condokit.io.formats import DELIMITERS, arrow, check_names, format_of

pa = arrow()
IN_MEMORY = 1 << 27  # bytes of files that are read as a whole
# what needs all rows at once, and formats that are not read in blocks
_ALL_ROWS = ("groups", "reliability", "batch", "more", "bridge", "controls")
_WHOLE = {("h5ad", False), ("xlsx", False), *((kind, True) for kind in DELIMITERS)}
_DOMAIN = "condokit: domain"


@dataclass
class Source:
    """A file, and how its rows are prepared for the reader."""

    path: str
    schema: Any
    reading: dict[str, Any]
    label: str | None = None  # the column of labels, which become text
    only: Sequence[str] | None = None  # rows with other labels are left out
    types: dict[str, Any] = field(default_factory=dict)  # that confounders are cast to
    side: str | None = None  # the label of all rows, in a column that is added
    data: Any = None  # the table, or AnnData; None of a file that is read in blocks
    n_rows: int | None = None  # where it is known

    @property
    def names(self) -> list[str]:
        """Names of all columns."""
        return list(self.schema.names)

    @property
    def is_annotated(self) -> bool:
        """Whether it is AnnData."""
        return hasattr(self.data, "var_names")

    def labels(self) -> list[str | None]:
        """Return the labels of all rows as text."""
        if self.is_annotated:
            return list(map(as_text, self.data.obs[self.label]))
        parts = self.parts([str(self.label)])
        return [label for part in parts for label in labels_of(part.column(self.label))]

    def add_label(self, label: str) -> None:
        """Add the column of labels to a whole table that lacks it: all rows have this label."""
        if self.label not in self.names and isinstance(self.data, pa.Table):
            same = pa.array([label] * len(self.data), pa.string())
            self.data = self.data.append_column(self.label, same)
            self.schema = self.data.schema

    def table(self, names: Sequence[str]) -> Any:
        """Return all rows as the reader takes them, with no other columns than these."""
        if not self.is_annotated:
            return self.prepared(self.data.select(names))
        data, mine = self.data, np.ones(self.data.n_obs, dtype=bool)
        labels = [] if self.label is None else self.labels()
        if self.only is not None:
            mine = np.array([label in self.only for label in labels])
        some = np.isin(data.var_names, names)
        if not (mine.all() and some.all()):
            X = data.X.to_memory() if hasattr(data.X, "to_memory") else data.X[:]
            data = type(data)(X[mine][:, some], obs=data.obs[mine], var=data.var.loc[some, []])
        if self.label is not None:
            data.obs[self.label] = [label for label, keep in zip(labels, mine) if keep]
        return data

    def prepared(self, table: Any) -> Any:
        """Return rows of a file as the reader takes them."""
        is_decimal, float64 = pa.types.is_decimal, pa.float64()
        kinds = [(f.name, float64 if is_decimal(f.type) else f.type) for f in table.schema]
        table = table.cast(pa.schema(kinds, metadata=table.schema.metadata))
        for name, wanted in self.types.items():
            column = cast_column(self.path, name, table.column(name), wanted)
            table = table.set_column(table.column_names.index(name), name, column)
        if self.label is not None:
            place = table.column_names.index(self.label)
            labels = _as_texts(table.column(self.label))
            table = table.set_column(place, self.label, labels)
            if self.only is not None:
                table = table.filter(pa.compute.is_in(labels, pa.array(self.only)))
        if self.side is not None:
            table = table.append_column(_DOMAIN, pa.array([self.side] * len(table), pa.string()))
        return table

    def parts(self, names: Sequence[str]) -> Iterator[Any]:
        """Yield some columns as they are in the file, in parts; of Parquet, others are not read."""
        if self.data is not None:
            yield self.data.select(names)
            return
        with scan_table(self.path, columns=names, **self.reading) as scan:
            for part in scan:
                yield part.select(names)


def open_source(
    path: str,
    options: dict[str, Any],
    label: str | None = None,
    only: Sequence[str] | None = None,
    large: bool = False,
    plain: bool = False,
) -> Source:
    """Open a file: in blocks if it is large, else as a whole; as a plain table, or AnnData."""
    reading = {name: options[name] for name in READING}
    kind = _format(path, options)
    arranged = any(options.get(name) for name in SHEET)
    if kind == "h5ad" and not plain and not arranged:
        data = open_h5ad(path)
        schema = pa.schema(
            [(name, pa.null()) for name in (*Table(data).described, *data.var_names)]
        )
        return Source(path, schema, reading, label, only, data=data)
    reading["texts"] = [label]
    if large and not arranged:
        with scan_table(path, **reading) as scan:
            schema, n_rows = scan.schema, scan.n_rows
        known = {"schema": schema} if kind in DELIMITERS else {}
        return Source(path, schema, reading | known, label, only, n_rows=n_rows)
    whole = arranged_table(path, options, reading)
    return Source(path, whole.schema, reading, label, only, data=whole)


def arranged_table(path: str, options: dict[str, Any], reading: dict[str, Any]) -> Any:
    """Return a whole table, with samples in rows and the columns of their sheet."""
    turned, sheet, name = (options.get(option) for option in SHEET)
    if sheet is not None and name is None:
        raise UsageError("--samples needs --id, the column of the sample names in both tables.")
    if name is not None and sheet is None and not turned:
        raise UsageError("--id can only be used with --samples or --transpose.")
    reading = reading | {"texts": [*(reading.get("texts") or ()), name]}  # 007 is no number
    table = read_table(path, **reading)
    table = _transposed(path, table, name, options["decimal"]) if turned else table
    return table if sheet is None else _with_sheet(path, table, sheet, str(name), reading)


def _transposed(path: str, table: Any, name: str | None, decimal: str) -> Any:
    """Return a table whose first column has the features, and others a sample each."""
    first, *samples = table.column_names
    refuse_text(path, samples, table.schema, [table], decimal)
    features = labels_of(table.column(first))
    check_names(path, [str(feature) for feature in features], [])
    values = np.column_stack([table.column(sample).to_numpy() for sample in samples])
    columns = [pa.array(row, pa.float64(), from_pandas=True) for row in values.astype(np.float64)]
    called = name or "sample"
    if called in features:
        raise FileError(f"{path} has a feature {called!r}: name the column of samples with --id.")
    return pa.table([pa.array(samples), *columns], [called, *map(str, features)])


def _with_sheet(path: str, table: Any, sheet: str, name: str, reading: dict[str, Any]) -> Any:
    """Return a table with the columns of a sheet, whose rows are found by the names of samples."""
    text = {k: v for k, v in reading.items() if k not in ("format", "delimiter")}
    about = read_table(sheet, **text)
    if name not in about.column_names:  # also where a matrix is turned: its first column is no name
        hint = did_you_mean(name, about.column_names)
        names = f"--id is its column of sample names, among {listing(about.column_names, 12)}"
        raise FileError(f"{sheet} has no column {name!r}.{hint} {names}.")
    check_names(path, table.column_names, [name])
    there = labels_of(about.column(name))
    rows = {sample: k for k, sample in enumerate(there)}
    if len(rows) < len(there):
        raise FileError(f"{sheet} has several rows of {listing(repeated(there))} in {name!r}.")
    samples = labels_of(table.column(name))
    if lost := [sample for sample in samples if sample not in rows]:
        hint = did_you_mean(lost[0], there)
        raise FileError(f"{sheet} has no row of {listing(lost)} in {name!r}.{hint}")
    others = [column for column in about.column_names if column != name]
    check_names(path, [*table.column_names, *others])
    about = about.take(pa.array([rows[sample] for sample in samples]))
    for column in others:
        table = table.append_column(about.schema.field(column), about.column(column))
    return table


def _format(path: str, options: dict[str, Any]) -> str:
    """Return the format of a file, or of the first of several."""
    return format_of(path if path == "-" else files_of(path)[0], options["format"])[0]


def read_data(
    new: str, reference: str | None, domain: str | None, reference_label: str | None, **options: Any
) -> Study:
    """Read one table or more, and say which columns are features; other options are ignored."""
    query_label, batch, more = options["query_label"], options["batch"], options["more"]
    _check_ways(new, reference, domain, reference_label, options)
    paths = [path for path in (new, reference, *more) if path is not None]
    only, large, label = None, are_large(paths, options), domain or batch
    if query_label is not None:
        only = [query_label, str(reference_label)]
    plain = (
        bool(more)
        or any(map(options.get, SHEET))
        or {_format(path, options) for path in paths} != {"h5ad"}
    )
    sources = [open_source(path, options, label, only, large, plain) for path in paths]
    if label is not None and options.get("side") is not None:
        sources[0].add_label(options["side"])
    roles = roles_of(sources, options, label)
    if only is not None:
        _check_labels(sources[0], only)
    shared = set(sources[0].names).intersection(*(source.names for source in sources))
    names = [name for name in sources[0].names if name in shared]
    many = bool(batch is not None or more)
    common = many and roles.features == ["common"] and "common" not in shared
    roles = replace(roles, features=None) if common else roles
    if large:
        found = read_two(*_in_blocks(sources, names, roles, reference_label))
    elif many:
        for source, name in zip(sources, () if batch or not more else file_labels(paths, options)):
            source.side = name
        roles = replace(roles, label=label or _DOMAIN, argument="batch")
        found = read(_stacked([source.table(names) for source in sources]), roles).compared()
    else:
        tables = [source.table(names) for source in sources]
        if domain is not None:
            found = read_two(tables[0], roles, reference_label)
        else:
            found = read_pair(tables[0], tables[1], (roles, roles), False)
    places = Path(paths[0]).name, Path(paths[-1]).name
    if label is None and not many and "-" not in places and places[0] != places[1]:
        found = replace(found, labels=places)
    if not sources[0].is_annotated and roles.features is None:
        alone = [n for source in sources for n in source.names if n not in shared]
        found = replace(found, left=found.left | dict.fromkeys(alone, "in one table only"))
    tell(f"Features ({found.n_features}): {listing(found.tables[0].labels, 10)}.", False)
    if found.left:
        tell(f"Left alone: {reasons_in_words(found.left)}. Choose features with -f.", False)
    return found.with_known_features(common) if many else found


def _check_ways(
    new: str,
    reference: str | None,
    domain: str | None,
    reference_label: str | None,
    options: dict[str, Any],
) -> None:
    """Refuse options that do not say in one way which rows are of which domain."""
    batch, more = options["batch"], options["more"]
    if more and (reference or domain) is not None:
        text = f"With --reference or --domain NEW is one table. Got {listing([new, *more])}. Quote "
        text += "patterns, so that the shell does not take them for names of files: -f 's*'. With "
        text += "a table for each batch, give --reference-label instead."
        raise UsageError(text)
    if [reference, domain, batch or more or None].count(None) != 2:
        text = "Give --reference OLD for two tables, or --domain for one, or --batch for one with "
        text += "many batches, or a table for each batch: A.csv B.csv C.csv --reference-label A."
        raise UsageError(text)
    if batch is None and not more:
        check_label(domain, reference_label, options["query_label"])
        if options["bridge"] is not None or options["keep_unreachable"]:
            text = "--bridge and --keep-unreachable need --batch, or a table per batch: "
            raise UsageError(f"{text}NEW OLD --reference-label NAME-OF-OLD.")
    if options["labels"] and (batch is not None or not more):
        raise UsageError("--labels can only be used with several tables, one per batch.")
    if [new, reference, *more].count("-") > 1:
        raise UsageError("Standard input can be one of the tables, but not several.")


def file_labels(paths: Sequence[str], options: dict[str, Any]) -> list[str]:
    """Return the labels of tables that are a batch each: those given, or the names of files."""
    given = split("--labels", options["labels"])
    names = given or [Path(Path(path).name.removesuffix(".gz")).stem for path in paths]
    if len(names) != len(paths) or len({*names}) < len(names) or {"", "-", "*"} & {*names}:
        raise UsageError(f"{len(paths)} tables need different --labels. Got {listing(names)}.")
    return names


def _stacked(tables: Sequence[Any]) -> Any:
    """Return one table below the other; a column that is text in one of them is so in all."""
    if len(tables) == 1:
        return tables[0]
    kinds = [{field.name: kind_of(field.type) for field in table.schema} for table in tables]
    text = {n for own in kinds for n, kind in own.items() if kind == pa.string()}
    fields = [
        [(f.name, pa.string() if f.name in text else f.type) for f in table.schema]
        for table in tables
    ]
    parts = [table.cast(pa.schema(own)) for table, own in zip(tables, fields)]
    return pa.concat_tables(parts, promote_options="permissive")


def are_large(paths: Sequence[str], options: dict[str, Any]) -> bool:
    """Return whether files are better read in blocks than as a whole, and can be."""
    if "-" in paths or options["missing"] == "impute":
        return False
    if any(map(options.get, (*_ALL_ROWS, *SHEET))):
        return False
    files = [file for path in paths for file in files_of(path)]
    kinds = {format_of(file, options["format"]) for file in files}
    size = sum(os.path.getsize(file) for file in files if os.path.isfile(file))
    return size > IN_MEMORY and kinds.isdisjoint(_WHOLE)


def roles_of(sources: Sequence[Source], options: dict[str, Any], label: str | None) -> Roles:
    """Return the roles that options give columns; types of confounders go to the sources."""
    first, reliability = sources[0].names, reliabilities(options.get("reliability", ()))
    kinds = confounder_kinds(options["confounders"], first, reliability)
    named = {name: options.get(name) for name in ("bridge", "groups", "weights")}
    taken = [name for name in (label, *kinds, *named.values()) if name is not None]
    for source in sources:
        check_names(source.path, source.names, taken)
        source.types = {}
    features = split("--features", options["features"], first) or _variables(sources, taken)
    if not any(source.is_annotated for source in sources):
        for name, declared in kinds.items():
            if (wanted := _common_type(name, declared, sources)) is not None:
                for source in sources:
                    source.types[name] = wanted
        many = options.get("batch") or options.get("more")
        if features is not None and not (many and features == ["common"]):
            table = Table(_empty(sources[0]), sources[0].path)
            chosen = [first[i] for i in table.find(features, set(taken))]
            for source in sources:
                check_names(source.path, source.names, chosen)
                rows = source.parts(chosen)
                refuse_text(source.path, chosen, source.schema, rows, options["decimal"])
    return Roles(
        label,
        list(kinds) or None,
        features,
        groups=named["groups"],
        sample_weight=named["weights"],
        bridge=named["bridge"],
        categorical=[name for name, kind in kinds.items() if kind == "cat"] or None,
        missing=options["missing"],
        reliability=reliability or None,
    )


def _variables(sources: Sequence[Source], taken: Sequence[str]) -> list[str] | None:
    """Return the variables of tables that were made of AnnData, which say what describes rows."""
    about = [(source.schema.metadata or {}).get(OBSERVED) for source in sources]
    if None in about:
        return None
    others = {*taken}.union(*map(json.loads, about))  # type: ignore[arg-type]
    numbers = (field.name for field in sources[0].schema if is_number(field.type))
    return [name for name in numbers if name not in others] or None


def _in_blocks(
    sources: Sequence[Source], names: list[str], roles: Roles, reference_label: str | None
) -> tuple[Blocks, Roles, str | None]:
    """Return large files as one table in blocks, with roles and the label of the reference."""
    if len(sources) > 1:
        for source, side in zip(sources, ("query", "reference")):
            source.side = side
        roles, reference_label = replace(roles, label=_DOMAIN), "reference"
    empty = sources[0].prepared(_empty(sources[0]).select(names))
    schema = dict(nw.from_native(empty).schema)
    blocks = Blocks((sources, list(schema)), schema, "file", _rows_of, None, len(schema))
    return blocks, roles, reference_label


def _rows_of(given: tuple[Sequence[Source], list[str]], _: int) -> Iterator[Any]:
    """Yield the rows of sources with some of their columns."""
    sources, names = given
    for source in sources:
        there = [source.label] if source.label is not None else []
        read = dict.fromkeys([*(n for n in names if n != _DOMAIN), *source.types, *there])
        for part in source.parts(list(read)):
            yield source.prepared(part).select(names)


def _empty(source: Source) -> Any:
    """Return a table with the columns of a source, and no rows."""
    return source.schema.empty_table()


def check_label(domain: str | None, reference_label: str | None, query_label: str | None) -> None:
    """Refuse a column of domains without the label of OLD, and labels without the column."""
    if (domain is None) != (reference_label is None):
        raise UsageError("Give both --domain and --reference-label, the label of OLD, or neither.")
    if query_label is not None and (domain is None or query_label == reference_label):
        raise UsageError("--query-label must be the label of NEW in the column --domain.")


def _check_labels(source: Source, only: Sequence[str]) -> None:
    """Refuse labels that no row has; say how many rows have others."""
    labels = source.labels()
    known = sorted({label for label in labels if label is not None})
    for option, label in zip(("--query-label", "--reference-label"), only):
        if label not in known:
            hint = did_you_mean(label, known)
            raise ValueError(f"{option} {label}: the labels are {listing(known)}.{hint}")
    left_out = counted(len(labels) - sum(label in only for label in labels))
    tell(f"{left_out} rows with other labels of {source.label!r} are left out.", False)


def labels_of(column: Any) -> list[str | None]:
    """Return the labels of domains as text, as they are given on the command line."""
    found: list[str | None] = _as_texts(column).to_pylist()
    return found


def _as_texts(column: Any) -> Any:
    """Return a column of labels as text, of which few are distinct."""
    column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    column = pa.concat_arrays(column.chunks) if hasattr(column, "chunks") else column
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    texts = pa.array(map(as_text, coded.dictionary.to_pylist()), pa.string())
    return texts.take(coded.indices)


def split(option: str, values: tuple[str, ...], known: Sequence[str] = ()) -> list[str]:
    """Split lists at commas, but not the name of a column that has some."""
    parts: list[str] = []
    for value in values:
        parts += [value] if value in known else [p.strip() for p in value.split(",") if p.strip()]
    if values and not parts:
        raise UsageError(f"{option} {values[0]!r} names no column.")
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
            raise UsageError(
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
            raise UsageError(f"--reliability {value}: write NAME=0.8 or NAME=COLUMN,COLUMN.")
        try:
            found[name] = float(given)
        except ValueError:
            found[name] = columns
    return found


def _common_type(name: str, declared: str, sources: Sequence[Source]) -> Any:
    """Return the type that a confounder has in all tables: of text that of another, if declared."""
    # None if it stays as it is
    types = [kind_of(source.schema.field(name).type) for source in sources]
    kinds = [pa.float64() if is_number(kind) else kind for kind in types]
    for source, kind in zip(sources, kinds):
        _refuse_nested(source.path, name, kind)
    others = {kind for kind in kinds if kind not in (pa.string(), pa.null())}
    if declared == "cat":
        return None if len(set(kinds)) == 1 else pa.string()
    if declared == "num":
        return pa.float64()
    return others.pop() if pa.string() in kinds and len(others) == 1 else None


def cast_column(path: str, name: str, column: Any, wanted: Any) -> Any:
    """Return a confounder with the type that it has in all tables; name a value that has not."""
    if kind_of(column.type) in (wanted, pa.null()):
        return column
    try:
        same = is_number(column.type) and is_number(wanted)
        return column.cast(wanted) if same else column.cast(pa.string()).cast(wanted)
    except pa.ArrowInvalid:
        raise ValueError(
            f"{path}: confounder {name!r} holds {kind_of(column.type)}, not {wanted} as declared "
            f"or as in the other table: {_first_other([column], wanted)}. Correct it, name the "
            f"mark of missing values with --na, or declare categories with -c {name}:cat."
        ) from None


def kind_of(kind: Any) -> Any:
    """Return the type of values, whichever way text is stored."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.string() if pa.types.is_large_string(kind) else kind


def refuse_text(
    path: str, names: Iterable[str], schema: Any, tables: Iterable[Any], decimal: str
) -> None:
    """Refuse features that hold text, which no map can take; `tables` are the rows of the file."""
    kinds = {field.name: field.type for field in schema}
    taken = (pa.bool_(), pa.null())  # a column without any value is one of missing values
    text = [name for name in names if not (is_number(kinds[name]) or kinds[name] in taken)]
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
