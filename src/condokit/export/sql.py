"""Maps as SQL queries."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from condokit.checks import check_word, listing, repeated
from condokit.data.links import LEAST_SHARE, MOST_SHARE, Link
from condokit.maps.affine import AffineMap
from condokit.maps.formula import in_groups, write_outputs


@dataclass(frozen=True)
class Dialect:
    """How a family of databases writes names and text, and what it calls the logarithm."""

    quotes: str = '""'  # opening and closing quote of names; a closing one in a name is doubled
    backslashes: bool = False  # whether backslashes are escapes in text
    escaped_names: bool = False  # whether backslashes are escapes in names
    logarithm: str = "LN"  # the function for the natural logarithm

    def name(self, name: str) -> str:
        """Quote the name of a column or table."""
        if not name or "\0" in name:
            raise ValueError(f"{name!r} cannot be the name of a column or table in SQL.")
        first, last = self.quotes[0], self.quotes[1]
        inner = name.replace("\\", "\\\\") if self.escaped_names else name
        return first + inner.replace(last, f"\\{last}" if self.escaped_names else last * 2) + last

    def label(self, value: Any) -> str:
        """Return the label of a batch as a literal."""
        if not isinstance(value, str):
            return str(value).upper() if isinstance(value, bool) else repr(value)
        if self.backslashes:
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return "'" + value.replace("'", "''") + "'"


_SPARK = Dialect("``", backslashes=True)
DIALECTS = {
    **dict.fromkeys(("ansi", "duckdb", "postgres", "sqlite", "trino"), Dialect()),
    **dict.fromkeys(("redshift", "snowflake"), Dialect(backslashes=True)),
    **dict.fromkeys(("databricks", "hive", "mariadb", "mysql", "spark"), _SPARK),
    "bigquery": Dialect("``", backslashes=True, escaped_names=True),
    "tsql": Dialect("[]", logarithm="LOG"),
}


def to_sql(
    affine: AffineMap | Mapping[Any, AffineMap],
    table: str | Sequence[str] = "incoming",
    *,
    keep: Sequence[str] = (),
    names: Sequence[str] | None = None,
    dialect: str = "ansi",
    batch: str | None = None,
) -> str:
    """Return a SELECT, without a semicolon, that maps the columns of a table.

    The query uses what most databases support. Numbers are exact, names are quoted, and NULL stays
    NULL. For a dense matrix every output is a sum over all features, which databases are slow to
    plan: with more than about 100 features, prefer `to_onnx`.

    Parameters
    ----------
    affine : AffineMap or MonotoneMap, or dict of these by label
        The map; or the maps of many batches, as `BatchAdapter.maps_`: each row is then mapped by
        the map of its label in the column `batch`. Rows with other labels become NULL.
    table : str or sequence of str, default="incoming"
        The name of the table; with a schema or database as a sequence: ``("lab", "incoming")``.
    keep : sequence of str, default=()
        Other columns that the query returns unchanged.
    names : sequence of str or None, default=None
        Names of the columns of features, for a map without names.
    dialect : str, default="ansi"
        The kind of database, which decides above all how names are quoted: "ansi", "bigquery",
        "databricks", "duckdb", "hive", "mariadb", "mysql", "postgres", "redshift", "snowflake",
        "spark", "sqlite", "trino" or "tsql".
    batch : str or None, default=None
        For maps of many batches: the column with their labels.

    Returns
    -------
    str
        The query.

    Examples
    --------
    >>> from condokit import AffineMap
    >>> from condokit.export import to_sql
    >>> print(to_sql(AffineMap([2.0, 0.5], [1.0, -1.0], ["a", "b"]), keep=["id"]))
    SELECT
      "id",
      2.0e0 * "a" + 1.0e0 AS "a",
      0.5e0 * "b" + -1.0e0 AS "b"
    FROM "incoming"
    <BLANKLINE>
    """
    check_word("'dialect'", dialect, sorted(DIALECTS))
    how, many = DIALECTS[dialect], isinstance(affine, Mapping)
    if many != (batch is not None):
        raise ValueError("'batch' goes with maps of many batches, as `BatchAdapter.maps_`.")
    maps: Mapping[Any, AffineMap] = affine if isinstance(affine, Mapping) else {None: affine}
    inputs, outputs = _sql_names(next(iter(maps.values())), keep, names)
    rows = ".".join(map(how.name, [table] if isinstance(table, str) else table))
    query = (_Inline if many else _Query)(rows, [how.name(name) for name in keep], how)
    columns = [how.name(name) for name in inputs]
    each = {k: write_outputs(one, columns, query) for k, one in maps.items()}
    mapped = next(iter(each.values()))
    if batch is not None:
        labels, column = [how.label(label) for label in maps], how.name(batch)
        cases = ([f"WHEN {k} THEN {y}" for k, y in zip(labels, own)] for own in zip(*each.values()))
        mapped = [f"CASE {column} {' '.join(case)} END" for case in cases]
    made = [how.name(name) for name in (*keep, *outputs)]
    return query.select(dict(zip(made, [*query.kept, *mapped]))) + "\n"


class _Query:
    """A query under construction: a table, or the step before as a subquery, and kept columns."""

    def __init__(self, rows: str, kept: list[str], dialect: Dialect) -> None:
        self.rows, self.kept, self.dialect = rows, kept, dialect

    def select(self, columns: dict[str, str]) -> str:
        """Return a SELECT of values by name."""
        listed = [v if v == name else f"{v} AS {name}" for name, v in columns.items()]
        return "SELECT\n  " + ",\n  ".join(listed) + f"\nFROM {self.rows}"

    def step(self, letter: str, values: list[str], beside: Sequence[str] = ()) -> list[str]:
        """Compute values in a subquery, and return their names there, which cannot clash."""
        names = [f"{letter}{j}" for j in range(len(values))]
        kept = [f"k{j}" for j in range(len(self.kept))]
        columns = dict(zip(kept, self.kept)) | dict(zip(beside, beside)) | dict(zip(names, values))
        self.rows, self.kept = f"(\n{self.select(columns)}\n) AS step", kept
        return names

    def product(self, weight: float, x: str) -> str:
        return f"{_number(weight)} * {x}"

    def sum(self, terms: list[str], offset: float | None = None) -> str:
        terms = terms if offset is None else [*terms, _number(offset)]
        return " + ".join(in_groups(terms, lambda group: f"({' + '.join(group)})")) or _number(0.0)

    def curve(self, x: str, knots: Any, lines: list[tuple[float, float, float]]) -> str:
        """Return a CASE with one piece of the curve each; the last also takes NULL, which stays."""
        cases = [f"WHEN {x} < {_number(knot)} THEN" for knot in knots] + ["ELSE"]
        made = [f"{_number(y)} + {_number(m)} * ({x} - {_number(t)})" for t, y, m in lines]
        if not len(knots):
            return made[0]
        return f"CASE {' '.join(f'{case} {line}' for case, line in zip(cases, made))} END"

    def nothing(self, _: str) -> list[str]:
        return []

    def link(self, x: str, link: Link, undo: bool = False) -> str:
        if isinstance(link, float):
            return _LINKS["power"][undo].format(x=x, power=_number(1 / link if undo else link))
        return _LINKS[link][undo].format(x=x, ln=self.dialect.logarithm)

    def unlink(self, y: str, link: Link) -> str:
        return self.link(y, link, undo=True)


class _Inline(_Query):
    """The same without subqueries: an expression is repeated wherever its value is used."""

    def step(self, letter: str, values: list[str], beside: Sequence[str] = ()) -> list[str]:
        """Return the expressions themselves, in brackets."""
        return [f"({value})" for value in values]


def _sql_names(affine: AffineMap, keep: Sequence[str], names: Any) -> Any:
    """Return the names of the columns that are read and of those that are returned."""
    inputs = affine.feature_names or names
    if inputs is None:
        raise ValueError(
            "SQL finds columns by name, and this map does not know the names of its features: give "
            "them with names=[...]."
        )
    if names is not None and len(names) != affine.n_features_in_:
        raise ValueError(f"'names' must be {affine.n_features_in_} names. Got {len(names)}.")
    if names is not None and tuple(names) != tuple(inputs):
        raise ValueError(f"The map has names of its own, {listing(inputs)}: leave 'names' out.")
    if isinstance(keep, str):
        raise ValueError(f"'keep' must be a list of columns. Got {keep!r}.")
    outputs = affine.outputs(inputs) or inputs
    for columns in (inputs, [*keep, *outputs]):
        if twice := repeated(columns):
            raise ValueError(f"Columns must have different names. Got {listing(twice)} twice.")
    return inputs, outputs


def _number(value: float) -> str:
    """Return a number with all its digits; without an exponent it might be taken as decimal."""
    text = repr(float(value))
    return text if "e" in text else f"{text}e0"


_LOW, _HIGH = (_number(math.log(p) - math.log1p(-p)) for p in (LEAST_SHARE, MOST_SHARE))
_LINKS: dict[Link, tuple[str, str]] = {
    None: ("{x}", "{x}"),
    "log": ("CASE WHEN {x} > 0 THEN {ln}({x}) END", "EXP({x})"),
    "logit": (
        "CASE WHEN {x} > 0 AND {x} < 1 THEN {ln}({x}) - {ln}(1.0e0 - {x}) END",
        # bounds come first, since an exponential may be too large for a database
        f"CASE WHEN {{x}} < {_LOW} THEN {_number(LEAST_SHARE)} "
        f"WHEN {{x}} BETWEEN {_HIGH} AND 1.7e308 THEN {_number(MOST_SHARE)} "  # NaN is not
        "ELSE 1.0e0 / (1.0e0 + EXP(-{x})) END",
    ),
    "power": (
        "CASE WHEN {x} >= 0 THEN POWER({x}, {power}) END",
        "CASE WHEN {x} < 0 THEN 0.0e0 ELSE POWER({x}, {power}) END",
    ),
}
