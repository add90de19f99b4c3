"""Maps as ONNX models."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import condokit
from condokit.checks import Array
from condokit.data.links import LEAST_SHARE, MOST_SHARE, Link
from condokit.io.extras import need
from condokit.maps.affine import AffineMap

_OPSET = 13
_IR_VERSION = 8


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
    kinds = ["power" if isinstance(link, float) else link for link in links]
    parts, order = [], []
    for kind in dict.fromkeys(kinds):
        places = [j for j, k in enumerate(kinds) if k == kind]
        part = graph.node("Gather", x, graph.constant(places, np.int64), axis=1)
        powers = np.array([links[j] if kind == "power" else np.nan for j in places], dtype=float)
        parts.append(part if kind is None else step(graph, kind, part, powers))
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
