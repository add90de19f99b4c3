"""A map elsewhere: as an ONNX model, an SQL query, or Python source without dependencies.

All three yield what `AffineMap` does, and leave missing what is missing. Values that a link does
not admit, which the map refuses, come out as NaN or NULL where an error cannot be raised.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import condokit
from condokit.checks import Array, listing
from condokit.data.links import LEAST_SHARE, MOST_SHARE, Link
from condokit.io.atomic import write_bytes
from condokit.io.extras import need
from condokit.maps.affine import AffineMap

_OPSET = 13
_IR_VERSION = 8
_MOST_TERMS = 30  # in a row, since databases bound the depth of an expression


def export(affine: AffineMap, path: str | os.PathLike[str], **options: Any) -> None:
    """Write a map in the format that the ending of a file asks for: .onnx, .sql or .py.

    Parameters
    ----------
    affine : AffineMap
        The map.
    path : str or path
        Where to write it.
    **options
        Passed to `to_onnx`, `to_sql` or `to_python`.
    """
    formats: dict[str, Any] = {".onnx": to_onnx, ".sql": to_sql, ".py": to_python}
    ending = Path(path).suffix.lower()
    if ending not in formats:
        raise ValueError(f"The file name must end in {listing(formats)}. Got {str(path)!r}.")
    content = formats[ending](affine, **options)
    write_bytes(path, content.encode("utf-8") if isinstance(content, str) else content)


def _kind(link: Link) -> str:
    return link if isinstance(link, str) else "none" if link is None else "power"


def to_onnx(affine: AffineMap) -> bytes:
    """Return a map as an ONNX model; needs the extra `onnx`.

    Its input "X" and output "Y" are tables of doubles, rows by features. The names of the columns
    are in the model's metadata, as JSON under "feature_names" and "output_names".

    Parameters
    ----------
    affine : AffineMap
        The map.

    Returns
    -------
    bytes
        The content of an .onnx file.
    """
    need("onnx", "ONNX models need the package onnx", "onnx")
    from onnx import TensorProto, checker, helper

    graph = _Graph()
    _draw(graph, affine)
    sizes = (("X", affine.n_features_in_), ("Y", len(affine.offset)))
    x, y = (helper.make_tensor_value_info(n, TensorProto.DOUBLE, ["rows", d]) for n, d in sizes)
    model = helper.make_model(
        helper.make_graph(graph.nodes, "condokit_map", [x], [y], graph.constants),
        producer_name="condokit",
        producer_version=condokit.__version__,
        ir_version=_IR_VERSION,
        opset_imports=[helper.make_opsetid("", _OPSET)],
    )
    inputs, outputs = affine.feature_names, affine.outputs(affine.feature_names)
    facts = {"feature_names": inputs, "output_names": outputs}
    named = {name: json.dumps(value) for name, value in facts.items() if value is not None}
    helper.set_model_props(model, named)
    checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


class _Graph:
    """The nodes and constants of an ONNX graph, in the order of their making."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float64) -> str:
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        array = np.ascontiguousarray(value, dtype=dtype).reshape(np.shape(value))
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        from onnx import helper

        name = name or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name


def _draw(graph: _Graph, affine: AffineMap) -> None:
    """Draw the way from X to Y; as in `AffineMap.apply`, gaps are zeros until the end."""
    node, constant = graph.node, graph.constant
    if affine.kind == "diagonal" and affine.links is None:
        scaled = node("Mul", "X", constant(affine.scale))
        node("Add", scaled, constant(affine.offset), name="Y")
        return
    linked = _by_link(graph, "X", affine.links, _link)
    gaps, nan = node("IsNaN", linked), constant(math.nan)
    mapped = _linear(graph, node("Where", gaps, constant(0.0), linked), affine)
    mapped = _by_link(graph, mapped, affine.links, _unlink)
    node("Where", _depends(graph, gaps, affine), nan, mapped, name="Y")


def _linear(graph: _Graph, x: str, affine: AffineMap) -> str:
    node, constant = graph.node, graph.constant
    if affine.scale.ndim == 2:
        y = node("MatMul", x, constant(affine.scale.T))
    else:
        y = node("Mul", x, constant(affine.scale))
    if affine.left is not None and affine.right is not None:
        factors = node("MatMul", x, constant(affine.right))
        y = node("Add", y, node("MatMul", factors, constant(affine.left.T)))
    return node("Add", y, constant(affine.offset))


def _depends(graph: _Graph, gaps: str, affine: AffineMap) -> str:
    """Mark the outputs that depend on a gap."""
    node = graph.node
    if affine.kind == "diagonal":
        return gaps

    def filled(part: Array) -> str:
        return graph.constant(part != 0, np.float32)

    marked = node("Cast", gaps, to=1)  # float
    if affine.left is None or affine.right is None:
        count = node("MatMul", marked, filled(affine.scale.T))
    else:
        factors = node("MatMul", marked, filled(affine.right))
        count = node("MatMul", factors, filled(affine.left.T))
        count = node("Add", count, node("Mul", marked, filled(affine.scale)))
    return node("Greater", count, graph.constant(0.0, np.float32))


def _by_link(
    graph: _Graph,
    x: str,
    links: tuple[Link, ...] | None,
    step: Callable[[_Graph, str, str, Array], str],
) -> str:
    """Take the columns of every kind of link apart, change them, and put them together again."""
    if links is None:
        return x
    kinds = [_kind(link) for link in links]
    parts, order = [], []
    for kind in dict.fromkeys(kinds):
        places = [j for j, k in enumerate(kinds) if k == kind]
        part = graph.node("Gather", x, graph.constant(places, np.int64), axis=1)
        powers = np.array([links[j] if kind == "power" else np.nan for j in places], dtype=float)
        parts.append(part if kind == "none" else step(graph, kind, part, powers))
        order += places
    together = graph.node("Concat", *parts, axis=1)
    return graph.node("Gather", together, graph.constant(np.argsort(order), np.int64), axis=1)


def _link(graph: _Graph, kind: str, x: str, powers: Array) -> str:
    """Return columns on the scale of their link, NaN where it does not admit a value."""
    node, zero = graph.node, graph.constant(0.0)
    bad = node("Less", x, zero)
    if kind != "power":
        bad = node("Or", bad, node("Equal", x, zero))
    if kind == "logit":
        one = graph.constant(1.0)
        bad = node("Or", bad, node("Not", node("Less", x, one)))
    x = node("Where", bad, graph.constant(math.nan), x)
    if kind == "power":
        return node("Pow", x, graph.constant(powers))
    if kind == "log":
        return node("Log", x)
    return node("Sub", node("Log", x), node("Log", node("Sub", one, x)))


def _unlink(graph: _Graph, kind: str, y: str, powers: Array) -> str:
    node, constant = graph.node, graph.constant
    if kind == "power":
        return node("Pow", node("Max", y, constant(0.0)), constant(1 / powers))
    if kind == "log":
        return node("Exp", y)
    odds = node("Exp", node("Neg", y))
    share = node("Div", constant(1.0), node("Add", constant(1.0), odds))
    return node("Min", node("Max", share, constant(LEAST_SHARE)), constant(MOST_SHARE))


def to_sql(
    affine: AffineMap,
    table: str | Sequence[str] = "incoming",
    *,
    keep: Sequence[str] = (),
    names: Sequence[str] | None = None,
) -> str:
    """Return a SELECT that maps the columns of a table.

    It keeps to what most databases understand. Numbers are exact, names are quoted, and NULL stays
    NULL. A dense matrix becomes one sum per output, which databases are slow to plan: beyond some
    100 features, prefer `to_onnx`.

    Parameters
    ----------
    affine : AffineMap
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
        The query, without a semicolon.

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
    parts = [table] if isinstance(table, str) else list(table)
    rows = ".".join(_quoted(part) for part in parts)
    kept = [_quoted(name) for name in keep]
    columns = [_quoted(name) for name in inputs]
    if affine.links is not None or affine.kind == "low-rank":
        # in steps, with names of their own that nothing can clash with
        links = affine.links or [None] * len(columns)
        linked = [_sql_link(x, link) for x, link in zip(columns, links)]
        columns = [f"x{j}" for j in range(len(columns))]
        rows, kept = _nested(rows, kept, dict(zip(columns, linked)))
    factors: list[str] = []
    if affine.right is not None:
        sums = [_sum(_products(w, columns)) or _number(0.0) for w in affine.right.T]
        factors = [f"t{k}" for k in range(len(sums))]
        rows, kept = _nested(rows, kept, dict(zip(columns, columns)) | dict(zip(factors, sums)))
    mapped = [
        _sum([*_terms(affine, j, columns, factors), _number(offset)])
        for j, offset in enumerate(affine.offset)
    ]
    if affine.links is not None:
        values = [f"y{j}" for j in range(len(mapped))]
        rows, kept = _nested(rows, kept, dict(zip(values, mapped)))
        mapped = [_sql_link(y, link, undo=True) for y, link in zip(values, affine.links)]
    made = [_quoted(name) for name in (*keep, *outputs)]
    return _select(rows, dict(zip(made, [*kept, *mapped]))) + "\n"


def _sql_names(
    affine: AffineMap, keep: Sequence[str], names: Sequence[str] | None
) -> tuple[Sequence[str], Sequence[str]]:
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
        twice = [name for name, n in Counter(columns).items() if n > 1]
        if twice:
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
    power = link if isinstance(link, float) else 1.0
    text = _SQL_LINKS[_kind(link)][undo]
    return text.format(x=x, power=_number(1 / power if undo else power))


_LOW, _HIGH = (_number(math.log(p) - math.log1p(-p)) for p in (LEAST_SHARE, MOST_SHARE))
_SQL_LINKS = {
    "none": ("{x}", "{x}"),
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


def to_python(affine: AffineMap) -> str:
    """Return the source of a Python module with a function `adapt`, which needs no package.

    ``adapt(row)`` takes a dict with the features (other keys are ignored) and returns a dict with
    the mapped ones; for a map without names, from a sequence to a list. None and NaN stay so,
    infinity and values that a link does not admit raise a ValueError.

    Parameters
    ----------
    affine : AffineMap
        The map.

    Returns
    -------
    str
        Python source.

    Examples
    --------
    >>> from condokit import AffineMap
    >>> from condokit.export import to_python
    >>> module = {}
    >>> exec(to_python(AffineMap([2.0], [1.0], ["a"])), module)
    >>> module["adapt"]({"a": 3.0, "id": "x"})
    {'a': 7.0}
    """
    names = affine.feature_names
    lists: dict[str, Any] = {
        "FEATURES": names or range(affine.n_features_in_),
        "OUTPUTS": affine.outputs(names) if names else range(len(affine.offset)),
        "LINKS": affine.links or [None] * affine.n_features_in_,
        "UNLINKS": affine.links or [None] * len(affine.offset),
        "SCALE": affine.scale.tolist(),
        "OFFSET": affine.offset.tolist(),
    }
    if affine.left is not None and affine.right is not None:
        lists |= {"LEFT": affine.left.tolist(), "RIGHT": affine.right.T.tolist()}
    given = [f"{name} = {_source(values)}\n" for name, values in lists.items()]
    head = _PYTHON_HEAD.format(version=condokit.__version__)
    adapt = _PYTHON_NAMED if names else _PYTHON_UNNAMED
    return "".join([head, *given, _PYTHON_BODY, _PYTHON_KINDS[affine.kind], _PYTHON_END, adapt])


def _source(values: Any) -> str:
    """Write a list on one line, or on one line for every row."""
    rows = list(values)
    if rows and isinstance(rows[0], list):
        return "[\n" + "".join(f"    {row!r},\n" for row in rows) + "]"
    return ascii(rows)


_PYTHON_HEAD = '''"""Map new features to those of the reference; written by condokit {version}.

This file needs Python alone: `adapt(row)` maps one row.
"""

import math

'''

_PYTHON_BODY = f"""

def _link(x, link, name):
    if x is None:
        return None
    if math.isinf(x):
        raise ValueError(f"{{name!r}} is infinite.")
    bad = (x < 0 or (x == 0 and isinstance(link, str)) or (x >= 1 and link == "logit"))
    if bad and link is not None:
        raise ValueError(f"The link {{link!r}} of {{name!r}} does not admit {{x!r}}.")
    if link == "log":
        return math.log(x)
    if link == "logit":
        return math.log(x) - math.log1p(-x)
    return x if link is None else x ** link


def _unlink(y, link):
    if y is None or link is None:
        return y
    if link == "log":
        return math.exp(y)
    if link == "logit":
        share = 1 / (1 + math.exp(min(-y, 700.0)))
        return min(max(share, {LEAST_SHARE!r}), {MOST_SHARE!r})
    return max(y, 0.0) ** (1 / link)


def _total(weights, values):
    used = [(w, v) for w, v in zip(weights, values) if w != 0]
    return None if any(v is None for _, v in used) else sum(w * v for w, v in used)


def _add(y, offset):
    y = None if y is None else y + offset
    if y is not None and math.isinf(y):
        raise ValueError("A mapped value is too large.")
    return y


def _mapped(values):
    x = [_link(v, link, name) for v, link, name in zip(values, LINKS, FEATURES)]
"""

_PYTHON_KINDS = {
    "diagonal": "    y = [None if v is None else w * v for w, v in zip(SCALE, x)]\n",
    "dense": "    y = [_total(row, x) for row in SCALE]\n",
    "low-rank": """    t = [_total(column, x) for column in RIGHT]
    y = [_total([w, *row], [v, *t]) for w, v, row in zip(SCALE, x, LEFT)]
""",
}

_PYTHON_END = """    return [_unlink(_add(v, c), link) for v, c, link in zip(y, OFFSET, UNLINKS)]
"""

_PYTHON_NAMED = '''

def adapt(row):
    """Return the mapped features of a row, a dict; other keys are ignored."""
    return dict(zip(OUTPUTS, _mapped([row[name] for name in FEATURES])))
'''

_PYTHON_UNNAMED = '''

def adapt(row):
    """Return the mapped features of a row, a sequence in the order of the features."""
    if len(row) != len(FEATURES):
        raise ValueError(f"A row must have {len(FEATURES)} values. Got {len(row)}.")
    return _mapped(row)
'''
