"""Checks JSON files against their published schemas before their content is used.

`map-schema.json` and `statistics-schema.json` are JSON Schema. This module implements the part of
JSON Schema that they use, and three more keywords, for sizes that must agree:

- "shape" of nested lists of numbers: "cells features" must have as many rows as other fields with
  the size "cells", and as many columns as those with "features"; "columns+2" is a sum. Such lists
  become float64 arrays, with NaN for null.
- "size" of lists and whole numbers: the length, or the number, must be that of this name.
- "below" of whole numbers, and of the keys of objects: they must be smaller than that size.

So every size is the length of a list in the file. A number that only claims a size is refused
before memory is reserved for it.
"""

import json
import re
import reprlib
import sys
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from operator import ge, gt, le
from pathlib import Path
from typing import Any

import numpy as np

from condokit.checks import Array, is_number, listing

Node = dict[str, Any]
Sizes = dict[str, int]
_TYPES: dict[str, Any] = {
    "null": lambda value: value is None,
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: is_number(value, int),
    "number": lambda value: is_number(value, (int, float)) and abs(value) <= sys.float_info.max,
    "array": lambda value: isinstance(value, list | tuple),
    "object": lambda value: isinstance(value, Mapping),
}
_CALLED = {"string": "text", "boolean": "true or false", "array": "a list", "object": "an object"}
_CALLED |= {"number": "a finite number", "integer": "a whole number"}
_LIMITS: dict[str, Any] = {
    "minimum": (ge, "at least"),
    "exclusiveMinimum": (gt, "above"),
    "maximum": (le, "at most"),
}
_short = reprlib.Repr()
_short.maxlevel, _short.maxlist, _short.maxdict, _short.maxstring = 2, 3, 3, 80
shown = _short.repr  # a value in a message, which is one line and not long


def refuse_if(is_wrong: Any, why: str) -> None:
    """Raise a ValueError if a condition is true, or any of an array of conditions."""
    if np.any(is_wrong):
        raise ValueError(why)


def _wrong(where: str, what: str, found: str) -> ValueError:
    """Return the error for a field that is not what it must be."""
    return ValueError(f"{shown(where)} must be {what}. Got {found}.")


class Schema:
    """A published schema by which files are checked and read."""

    def __init__(self, name: str) -> None:
        path = Path(__file__).with_name(f"{name}-schema.json")
        self.published: Node = json.loads(path.read_text(encoding="utf-8"))
        self.root: Node = {}
        self.refresh()

    def refresh(self) -> None:
        """Resolve the schema again, after something was added to what is published."""
        self.root = self._resolved(self.published)

    def _resolved(self, node: Any) -> Any:
        """Return a node with references replaced; keywords beside a reference are added to it."""
        if isinstance(node, list):
            return [self._resolved(one) for one in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            there = self.published["$defs"][node["$ref"].rpartition("/")[2]]
            return self._resolved({**there, **{k: v for k, v in node.items() if k != "$ref"}})
        return {key: self._resolved(one) for key, one in node.items()}

    def read(self, value: Any, definition: str = "", where: str = "") -> Any:
        """Return the checked fields of a document, or of a part with a `definition`."""
        node = self.root["$defs"][definition] if definition else self.root
        return self._read(value, node, where, {})

    def _read(self, value: Any, node: Node, where: str, sizes: Sizes) -> Any:
        """Return a checked value; `sizes` are those of the names met so far."""
        types = node.get("type", list(_TYPES))
        types = [types] if isinstance(types, str) else types
        if not any(_TYPES[name](value) for name in types):
            what = " or ".join(_CALLED.get(name, name) for name in types)
            raise _wrong(where, what, shown(value))
        words = node.get("enum", [node["const"]] if "const" in node else None)
        if words and not any(type(value) is type(word) and value == word for word in words):
            raise _wrong(where, f"one of {listing(words, 9)}", shown(value))
        if isinstance(value, str) and not re.search(node.get("pattern", ""), value):
            raise _wrong(where, f"of the form {node['pattern']}", shown(value))
        match value:
            case list() | tuple() if "shape" in node:
                return _read_numbers(value, node, where, sizes)
            case list() | tuple():
                return self._read_list(value, node, where, sizes)
            case Mapping():
                return self._read_object(value, node, where, sizes)
            case int() | float() if not isinstance(value, bool):
                _check_limits(value, node, where)
                _check_size(value, node, where, sizes)
        return value

    def _read_list(self, value: Any, node: Node, where: str, sizes: Sizes) -> list[Any]:
        """Read a list; sizes that are learned in an item hold for this item only."""
        least, each = node.get("minItems", 0), node.get("items", {})
        if len(value) < least:
            raise _wrong(where, f"a list of {least} or more", shown(value))
        _check_size(len(value), node, where, sizes, "a list of ")
        if each == {"type": "string"} and set(map(type, value)) <= {str}:  # many names
            found = list(value)
        else:
            found = [self._read(v, each, f"{where}[{k}]", dict(sizes)) for k, v in enumerate(value)]
        if node.get("uniqueItems") and len(set(found)) < len(found):
            twice = next(iter(Counter(found) - Counter(set(found))))
            raise _wrong(where, "different", f"{shown(twice)} twice")
        return found

    def _read_object(self, value: Any, node: Node, where: str, sizes: Sizes) -> dict[Any, Any]:
        """Read the named fields in the order of the schema, and others if the schema has a rule."""
        own, others, found = node.get("properties", {}), node.get("additionalProperties", {}), {}
        if not own and not others and "allOf" not in node:
            return dict(value)
        begin = f"{where}." if where else ""
        for key, said in own.items():
            if key in value and said is not False:
                found[key] = self._read(value[key], said, begin + key, sizes)
            elif key in value:
                raise ValueError(f"{shown(begin + key)} does not belong to this kind.")
            elif key in node.get("required", ()):
                raise ValueError(f"{shown(begin + key)} is missing.")
        for key in value if others else ():
            if key not in own:
                name = _number_of(key, sizes[node["below"]], where) if "below" in node else key
                found[name] = self._read(value[key], others, f"{begin}{key}", dict(sizes))
        for part in node.get("allOf", ()):
            if "if" not in part or self._applies(part["if"], value):
                found |= self._read(value, part.get("then", part), where, sizes)
        return found if "below" in node else {key: found[key] for key in value if key in found}

    def _applies(self, condition: Node, value: Any) -> bool:
        """Return whether an object satisfies a condition ("if")."""
        try:
            return bool(self._read(value, condition, "", {}))
        except ValueError:
            return False


def _read_numbers(value: Any, node: Node, where: str, sizes: Sizes) -> Array:
    """Return nested lists of finite numbers as an array, whose shape must agree with `sizes`."""
    names, parts, shape = node["shape"].split(), [value], list[int]()
    for name in names:
        least, node = node.get("minItems", 0), node["items"]
        lengths = {len(part) if isinstance(part, list | tuple) else -1 for part in parts}
        if len(lengths) != 1 or min(lengths) < least:
            break
        shape.append(lengths.pop())
        if name.isidentifier():
            sizes.setdefault(name, shape[-1])
        parts = list(chain.from_iterable(parts))
    wanted = [_sum_of(sizes, name) for name in names]
    if shape != wanted:
        what = " x ".join(str(size or name) for size, name in zip(wanted, names))
        found = " x ".join(map(str, shape)) if len(shape) == len(names) else shown(value)
        raise _wrong(where, f"numbers of the shape {what}", found)
    has_gaps = "null" in node["type"]
    if odd := set(map(type, parts)) - {int, float, type(None) if has_gaps else int}:
        found = shown(next(part for part in parts if type(part) in odd))
        raise _wrong(where, "numbers" + " or null" * has_gaps, found)
    array = np.array(parts, dtype=np.float64).reshape(shape)  # None becomes NaN
    known = array[~np.isnan(array)] if has_gaps else array
    if not (fits := np.isfinite(known)).all():
        raise _wrong(where, "finite numbers", f"{known[~fits][0]}")
    _check_limits(known, node, where)
    return array


def _check_limits(values: Any, node: Node, where: str) -> None:
    """Raise an error for a number, or any number of an array, beyond the limits."""
    for name, (compare, words) in _LIMITS.items():
        if name in node and not np.all(fits := compare(values, node[name])):
            odd = np.extract(~np.asarray(fits), values)[0]
            raise _wrong(where, f"{words} {node[name]:.17g}", f"{odd:g}")


def _check_size(size: Any, node: Node, where: str, sizes: Sizes, what: str = "") -> None:
    """Raise an error for a size that differs from earlier ones, or a number not below its size."""
    name, above = node.get("size", ""), node.get("below", "")
    if name and sizes.setdefault(name, size) != size:
        raise _wrong(where, f"{what}{sizes[name]}, the number of {name}", str(size))
    if above and size >= sizes[above]:
        raise _wrong(where, f"below {sizes[above]}, the number of {above}", str(size))


def _number_of(key: str, size: int, where: str) -> int:
    """Return a key as a whole number below a size."""
    if key.isdecimal() and len(key) < 16 and str(number := int(key)) == key and number < size:
        return number
    raise _wrong(where, f"by numbers below {size}", shown(key))


def _sum_of(sizes: Sizes, name: str) -> int:
    """Return the size of "2", "cells" or a sum as "columns+features"; 0 if it is unknown."""
    parts = [int(part) if part.isdecimal() else sizes.get(part, 0) for part in name.split("+")]
    return sum(parts) if all(parts) else 0


MAPS, STATISTICS = Schema("map"), Schema("statistics")
