"""Maps as queries of databases."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from condokit.checks import listing
from condokit.data.links import LEAST_SHARE, MOST_SHARE, Link
from condokit.maps.affine import AffineMap

_MOST_TERMS = 30  # in a row, since databases bound the depth of an expression


def to_sql(
    affine: AffineMap,
    table: str | Sequence[str] = "incoming",
    *,
    keep: Sequence[str] = (),
    names: Sequence[str] | None = None,
) -> str:
    """Return a SELECT, without a semicolon, that maps the columns of a table.

    It keeps to what most databases understand. Numbers are exact, names are quoted, and NULL stays
    NULL. A dense matrix becomes one sum per output, which databases are slow to plan: beyond some
    100 features, prefer `to_onnx`.

    Parameters
    ----------
    affine : AffineMap or MonotoneMap
        The map.
    table : str or sequence of str, default="incoming"
        The table; as a sequence, with what it is in: ``("lab", "incoming")``.
    keep : sequence of str, default=()
        Other columns to take along as they are.
    names : sequence of str or None, default=None
        Columns of the features, for a map that does not know their names.

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
    inputs, outputs = _sql_names(affine, keep, names)
    rows = ".".join(map(_quoted, [table] if isinstance(table, str) else table))
    kept, columns = [_quoted(name) for name in keep], [_quoted(name) for name in inputs]
    if affine.links is not None or affine.kind == "low-rank":
        # in steps, with names of their own that nothing can clash with
        links = affine.links or [None] * len(columns)
        linked = [_sql_link(x, link) for x, link in zip(columns, links)]
        columns = [f"x{j}" for j in range(len(columns))]
        rows, kept = _nested(rows, kept, dict(zip(columns, linked)))
    if affine.kind == "monotone":
        mapped = [_curve(*curve) for curve in zip(columns, *affine.arrays().values())]
    else:
        rows, kept, mapped = _affine(affine, rows, kept, columns)
    if affine.links is not None:
        values = [f"y{j}" for j in range(len(mapped))]
        rows, kept = _nested(rows, kept, dict(zip(values, mapped)))
        mapped = [_sql_link(y, link, undo=True) for y, link in zip(values, affine.links)]
    made = [_quoted(name) for name in (*keep, *outputs)]
    return _select(rows, dict(zip(made, [*kept, *mapped]))) + "\n"


def _affine(
    affine: AffineMap, rows: str, kept: list[str], columns: list[str]
) -> tuple[str, list[str], list[str]]:
    """Return what to select from, and the outputs of an affine map."""
    factors: list[str] = []
    if affine.right is not None:
        sums = [_sum(_products(w, columns)) or _number(0.0) for w in affine.right.T]
        factors = [f"t{k}" for k in range(len(sums))]
        rows, kept = _nested(rows, kept, dict(zip(columns, columns)) | dict(zip(factors, sums)))
    mapped = [
        _sum([*_terms(affine, j, columns, factors), _number(offset)])
        for j, offset in enumerate(affine.offset)
    ]
    return rows, kept, mapped


def _curve(x: str, knots: Any, values: Any, ends: Any) -> str:
    """Return lines between knots, each from the knot where it begins; NULL stays NULL."""
    steep = [(b - a) / (t - s) for a, b, s, t in zip(values, values[1:], knots, knots[1:])]
    slopes, cases = [ends[0], *steep, ends[1]], []
    for upto, knot, value, slope in zip(
        [*knots, None], [knots[0], *knots], [values[0], *values], slopes
    ):
        line = f"{_number(value)} + {_number(slope)} * ({x} - {_number(knot)})"
        cases.append(f"ELSE {line}" if upto is None else f"WHEN {x} < {_number(upto)} THEN {line}")
    return f"CASE {' '.join(cases)} END"


def _sql_names(affine: AffineMap, keep: Sequence[str], names: Any) -> Any:
    """Return the columns that are read and made."""
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
        if twice := [name for name, n in Counter(columns).items() if n > 1]:
            raise ValueError(f"Columns must have different names. Got {listing(twice)} twice.")
    return inputs, outputs


def _select(rows: str, columns: dict[str, str]) -> str:
    listed = [v if v == name else f"{v} AS {name}" for name, v in columns.items()]
    return "SELECT\n  " + ",\n  ".join(listed) + f"\nFROM {rows}"


def _nested(rows: str, kept: list[str], columns: dict[str, str]) -> tuple[str, list[str]]:
    """Return a query in brackets to select from, and the names of the columns taken along."""
    names = [f"k{j}" for j in range(len(kept))]
    return f"(\n{_select(rows, dict(zip(names, kept)) | columns)}\n) AS step", names


def _quoted(name: str) -> str:
    if not name or "\0" in name:
        raise ValueError(f"{name!r} cannot be the name of a column or table in SQL.")
    return '"' + name.replace('"', '""') + '"'


def _number(value: float) -> str:
    """Write a number so that nothing is lost; without an exponent it might be read as decimal."""
    text = repr(float(value))
    return text if "e" in text else f"{text}e0"


def _sum(terms: list[str]) -> str:
    while len(terms) > _MOST_TERMS:
        groups = [terms[i : i + _MOST_TERMS] for i in range(0, len(terms), _MOST_TERMS)]
        terms = [f"({' + '.join(group)})" for group in groups]
    return " + ".join(terms)


def _terms(affine: AffineMap, j: int, columns: list[str], factors: list[str]) -> list[str]:
    """Return the terms of an output; a scale of zero counts only where it is all there is."""
    if affine.scale.ndim == 2:
        return _products(affine.scale[j], columns)
    if affine.left is None:
        return [f"{_number(affine.scale[j])} * {columns[j]}"]
    return _products([affine.scale[j], *affine.left[j]], [columns[j], *factors])


def _products(weights: Any, columns: list[str]) -> list[str]:
    return [f"{_number(w)} * {x}" for w, x in zip(weights, columns) if w != 0]


def _sql_link(x: str, link: Link, undo: bool = False) -> str:
    """Return a column on the scale of its link, NULL where it does not admit a value, or back."""
    if isinstance(link, float):
        return _LINKS["power"][undo].format(x=x, power=_number(1 / link if undo else link))
    return _LINKS[link][undo].format(x=x)


_LOW, _HIGH = (_number(math.log(p) - math.log1p(-p)) for p in (LEAST_SHARE, MOST_SHARE))
_LINKS: dict[Link, tuple[str, str]] = {
    None: ("{x}", "{x}"),
    "log": ("CASE WHEN {x} > 0 THEN LN({x}) END", "EXP({x})"),
    "logit": (
        "CASE WHEN {x} > 0 AND {x} < 1 THEN LN({x}) - LN(1.0e0 - {x}) END",
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
