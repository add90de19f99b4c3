"""Tables of the command line that are larger than memory: scanned by polars, or read by Arrow."""

import os
from collections.abc import Sequence
from typing import Any

from condokit.checks import FileError
from condokit.data.blocks import in_slices
from condokit.data.domains import Domains
from condokit.data.streamed import read_table
from condokit.io import files_of
from condokit.io.formats import DELIMITERS, check_names, format_of

IN_MEMORY = 1 << 27  # bytes of files that are read as a whole
_ALL_ROWS = ("groups", "reliability", "batch", "bridge", "controls")  # what needs these at once
_DOMAIN = "condokit: domain"


def are_large(paths: Sequence[str], options: dict[str, Any]) -> bool:
    """Tell whether files are better read in blocks than as a whole, and can be."""
    if "-" in paths or options["missing"] == "impute" or any(map(options.get, _ALL_ROWS)):
        return False
    files = [file for path in paths for file in files_of(path)]
    kinds = {format_of(file, options["format"]) for file in files}
    size = sum(os.path.getsize(file) for file in files if os.path.isfile(file))
    return size > IN_MEMORY and len(kinds) == 1 and kinds.isdisjoint(_WHOLE)


_WHOLE = {("h5ad", False), *((kind, True) for kind in DELIMITERS)}


def scanned(path: str, options: dict[str, Any]) -> Any:
    """Return the files of a path as a lazy table: a frame of polars, or a dataset of Arrow."""
    files, (kind, _) = files_of(path), format_of(files_of(path)[0], options["format"])
    try:
        import polars
    except ModuleNotFoundError:
        from pyarrow import dataset

        return dataset.dataset(files, format="csv" if kind in DELIMITERS else kind)
    if kind == "parquet":
        return polars.scan_parquet(files)
    if kind == "arrow":
        return polars.scan_ipc(files)
    return polars.scan_csv(
        files,
        separator=options["delimiter"] or DELIMITERS[kind],
        null_values=options["na_values"] or ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "None"],
        encoding="utf8" if options["encoding"] == "utf-8" else options["encoding"],
        decimal_comma=options["decimal"] == ",",
        infer_schema_length=10_000,
    )


def read_large(
    paths: list[str],
    domain: str | None,
    labels: tuple[str | None, str | None],
    kinds: dict[str, str],
    features: list[str] | None,
    options: dict[str, Any],
) -> Domains:
    """Read files in blocks; `labels` are those of query, if it is named, and reference."""
    tables = [scanned(path, options) for path in paths]
    weights, (query, reference) = options["weights"], labels
    roles = [name for name in (*kinds, domain, weights) if name is not None]
    for path, table in zip(paths, tables):
        check_names(path, columns_of(table), roles)
    if hasattr(tables[0], "collect_schema"):
        is_indexed = format_of(files_of(paths[0])[0], options["format"])[0] not in DELIMITERS
        X, domain = _prepared(tables, domain, query, reference, kinds, is_indexed)
    elif len(tables) > 1 or query is not None:
        raise FileError("Two tables that are larger than memory need polars: install it.")
    else:
        X = tables[0]
    reference = reference if len(tables) == 1 else "reference"
    categorical = [name for name, kind in kinds.items() if kind == "cat"] or None
    how = (weights, reference, categorical, options["missing"])
    return read_table(X, domain, list(kinds) or None, features, None, *how)


def columns_of(table: Any) -> list[str]:
    """Return the names of the columns of a lazy table."""
    return list(table.collect_schema() if hasattr(table, "collect_schema") else table.schema.names)


def _prepared(
    tables: list[Any],
    domain: str | None,
    query: str | None,
    reference: str | None,
    kinds: dict[str, str],
    is_indexed: bool,
) -> tuple[Any, str]:
    """Return one frame of polars, with labels as text and declared numbers as such."""
    import polars as pl

    if domain is None:
        shared = set(columns_of(tables[0])).intersection(*map(columns_of, tables))
        names = [name for name in columns_of(tables[0]) if name in shared]
        sides = zip(tables, ("query", "reference"))
        parts = [t.select(*names, pl.lit(side).alias(_DOMAIN)) for t, side in sides]
        frame, domain = pl.concat(parts, how="vertical_relaxed"), _DOMAIN
    else:
        frame = tables[0].with_columns(pl.col(domain).cast(pl.String))
    if query is not None:
        frame = frame.filter(pl.col(domain).is_in([query, reference]))
    numbers = [pl.col(name).cast(pl.Float64) for name, kind in kinds.items() if kind == "num"]
    decimals = [name for name, kind in frame.collect_schema().items() if kind.is_decimal()]
    frame = frame.with_columns(*numbers, pl.col(decimals).cast(pl.Float64))
    return (in_slices(frame) if query is None and is_indexed else frame), domain
