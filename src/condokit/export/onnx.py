"""Maps as ONNX models."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import condokit
from condokit.checks import Array, check_word
from condokit.data.links import LEAST_SHARE, MOST_SHARE
from condokit.io.formats import need
from condokit.maps.affine import AffineMap
from condokit.maps.formula import are_straight, lines_of

_OPSET = 13
_IR_VERSION = 8


def to_onnx(affine: AffineMap, *, named: bool = False, dtype: str = "float64") -> bytes:
    """Return a map as an ONNX model, the content of an .onnx file; needs the extra `onnx`.

    The model's input "X" and output "Y" are double arrays of shape (n_rows, n_features). The names
    of the columns are in its metadata, as JSON under "feature_names" and "output_names".

    Parameters
    ----------
    affine : AffineMap or MonotoneMap
        The map.
    named : bool, default=False
        Whether every feature is a separate input of its name, of shape (n_rows, 1), and every
        mapped feature a separate output, with the name of the feature and " (mapped)".
    dtype : {"float64", "float32"}, default="float64"
        The type of inputs and outputs; the computation is in double precision in either case.

    Returns
    -------
    bytes
        The model.

    Examples
    --------
    >>> import onnxruntime
    >>> from condokit import AffineMap
    >>> from condokit.export import to_onnx
    >>> model = onnxruntime.InferenceSession(to_onnx(AffineMap([2.0], [1.0], ["a"])))
    >>> model.run(None, {"X": [[3.0]]})
    [array([[7.]])]
    """
    need("onnx", "ONNX models need the package onnx", "onnx")
    from onnx import TensorProto, checker, helper

    check_word("'dtype'", dtype, ("float64", "float32"))
    names, single = affine.feature_names, dtype == "float32"
    if named and names is None:
        raise ValueError("'named' needs a map that knows the names of its features.")
    names = names or ()
    inputs, outputs = ["X"], ["Y"]
    sizes = affine.n_features_in_, affine.shape[0]
    if named:
        inputs, sizes = [*names], (1, 1)
        outputs = [f"{name} (mapped)" for name in affine.outputs(names) or ()]
    graph = _Nodes(affine, inputs, outputs, single)
    kind = TensorProto.FLOAT if single else TensorProto.DOUBLE
    x, y = (
        [helper.make_tensor_value_info(name, kind, ["rows", d]) for name in own]
        for own, d in zip((inputs, outputs), sizes)
    )
    model = helper.make_model(
        helper.make_graph(graph.nodes, "condokit_map", x, y, graph.constants),
        producer_name="condokit",
        producer_version=condokit.__version__,
        ir_version=_IR_VERSION,
        opset_imports=[helper.make_opsetid("", _OPSET)],
    )
    facts = {"feature_names": names or None, "output_names": affine.outputs(names)}
    known = {key: json.dumps(value) for key, value in facts.items() if value is not None}
    helper.set_model_props(model, known)
    checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


class _Nodes:
    """The nodes of the graph from X to Y.

    As in `AffineMap.apply`, missing values are computed as zeros, and are set to NaN at the end.
    """

    def __init__(
        self, affine: AffineMap, inputs: list[str], outputs: list[str], single: bool
    ) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.links = affine.links
        plain = [*inputs, *outputs] == ["X", "Y"]
        self.mark = "" if plain else "condokit: "  # of names inside, which features do not have
        x = inputs[0] if len(inputs) == 1 else self.node("Concat", *inputs, axis=1)
        x = self.node("Cast", x, to=11) if single else x  # 11 is float64, 1 float32
        y = self.mapped(x, affine, "Y" if plain and not single else "")
        y = self.node("Cast", y, to=1, name="Y" if plain else "") if single else y
        for j, name in enumerate(() if plain else outputs):
            self.node("Gather", y, self.constant(np.array([j])), axis=1, name=name)

    def mapped(self, x: str, affine: AffineMap, name: str) -> str:
        """Return the name of the mapped values, which is `name` unless that is empty."""
        linked = self.by_link(x, self.link)
        if affine.kind == "monotone":
            return self.node(
                "Identity", self.by_link(self.curves(linked, affine), self.unlink), name=name
            )
        parts, offset = (affine.scale, affine.left, affine.right), self.constant(affine.offset)
        if affine.kind == "diagonal" and affine.links is None:
            return self.node("Add", self.linear(x, *parts), offset, name=name)
        gaps, nan = self.node("IsNaN", linked), self.constant(math.nan)
        filled = self.node("Where", gaps, self.constant(0.0), linked)
        mapped = self.by_link(self.node("Add", self.linear(filled, *parts), offset), self.unlink)
        if affine.kind != "diagonal":  # all outputs that depend on a missing value are missing
            marks = (None if part is None else (part != 0).astype(np.float32) for part in parts)
            count = self.linear(self.node("Cast", gaps, to=1), *marks)  # 1 is float32
            gaps = self.node("Greater", count, self.constant(np.float32(0)))
        return self.node("Where", gaps, nan, mapped, name=name)

    def constant(self, value: Any) -> str:
        from onnx import numpy_helper

        name = f"{self.mark}c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, order="C"), name))
        return name

    def node(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        from onnx import helper

        name = name or f"{self.mark}t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def linear(self, x: str, scale: Any, left: Any, right: Any) -> str:
        if scale.ndim == 2:
            return self.node("MatMul", x, self.constant(scale.T))
        scaled = self.node("Mul", x, self.constant(scale))
        if left is None or right is None:
            return scaled
        factors = self.node("MatMul", x, self.constant(right))
        return self.node("Add", scaled, self.node("MatMul", factors, self.constant(left.T)))

    def curves(self, x: str, curves: Any) -> str:
        """Map every column by its curve, or by its line if it is straight (which is faster)."""
        straight, arrays = are_straight(curves), list(curves.arrays().values())
        if straight.all() or not straight.any():
            return self.line(x, *arrays) if straight.all() else self.bent(x, *arrays)
        parts, order = [], np.argsort(straight, kind="stable")
        for mine, step in ((~straight, self.bent), (straight, self.line)):
            part = self.node("Gather", x, self.constant(np.flatnonzero(mine)), axis=1)
            parts.append(step(part, *(array[mine] for array in arrays)))
        together = self.node("Concat", *parts, axis=1)
        return self.node("Gather", together, self.constant(np.argsort(order)), axis=1)

    def line(self, x: str, knots: Array, values: Array, slopes: Array) -> str:
        """Map every column by a straight line: value + slope (x - knot) at its first knot."""
        away = self.node("Sub", x, self.constant(knots[:, 0]))
        rise = self.node("Mul", away, self.constant(slopes[:, 0]))
        return self.node("Add", rise, self.constant(values[:, 0]))

    def bent(self, x: str, knots: Array, values: Array, ends: Array) -> str:
        """Map every column by a piecewise linear curve: the line from the knot below x."""
        first, images, slopes = lines_of(knots, values, ends)
        wide = self.node("Unsqueeze", x, self.constant(np.array([2])))
        above = self.node("Cast", self.node("Less", wide, self.constant(knots)), to=7)  # int64
        n_above = self.node("ReduceSum", above, self.constant(np.array([2])), keepdims=0)
        place = self.node("Sub", self.constant(np.int64(knots.shape[1])), n_above)
        step = np.arange(len(knots), dtype=np.int64) * first.shape[1]
        place = self.node("Add", place, self.constant(step))
        knot, slope, image = (
            self.node("Gather", self.constant(table.ravel()), place, axis=0)
            for table in (first, slopes, images)
        )
        away = self.node("Sub", x, knot)
        return self.node("Add", image, self.node("Mul", slope, away))

    def by_link(self, x: str, step: Callable[[str, str, Array], str]) -> str:
        """Apply `step` to the columns of every kind of link, and put them together in order."""
        if self.links is None:
            return x
        kinds = ["power" if isinstance(link, float) else link for link in self.links]
        parts, order = [], []
        for kind in dict.fromkeys(kinds):
            places = [j for j, k in enumerate(kinds) if k == kind]
            part = self.node("Gather", x, self.constant(places), axis=1)
            powers = np.array([self.links[j] if kind == "power" else np.nan for j in places], float)
            parts.append(part if kind is None else step(kind, part, powers))
            order += places
        together = self.node("Concat", *parts, axis=1)
        return self.node("Gather", together, self.constant(np.argsort(order)), axis=1)

    def link(self, kind: str, x: str, powers: Array) -> str:
        """Return columns after their link, NaN where a value is outside its domain."""
        node, zero = self.node, self.constant(0.0)
        bad = node("Less", x, zero)
        if kind != "power":
            bad = node("Or", bad, node("Equal", x, zero))
        if kind == "logit":
            one = self.constant(1.0)
            bad = node("Or", bad, node("Not", node("Less", x, one)))
        x = node("Where", bad, self.constant(math.nan), x)
        if kind == "power":
            return node("Pow", x, self.constant(powers))
        if kind == "log":
            return node("Log", x)
        return node("Sub", node("Log", x), node("Log", node("Sub", one, x)))

    def unlink(self, kind: str, y: str, powers: Array) -> str:
        """Return columns after the inverse of their link."""
        node, constant = self.node, self.constant
        if kind == "power":
            return node("Pow", node("Max", y, constant(0.0)), constant(1 / powers))
        if kind == "log":
            return node("Exp", y)
        odds = node("Exp", node("Neg", y))
        share = node("Div", constant(1.0), node("Add", constant(1.0), odds))
        return node("Min", node("Max", share, constant(LEAST_SHARE)), constant(MOST_SHARE))
