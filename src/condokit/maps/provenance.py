"""How a map was made, as plain facts that cannot be changed: text, numbers, lists, dicts."""

import hashlib
import math
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import metadata
from typing import Any, NoReturn

import numpy as np
import scipy

import condokit
from condokit.checks import Array
from condokit.data.study import Confounder, Study
from condokit.io.schema import MAPS, shown

_DEEPEST = 6  # levels of nesting
_MOST_ENTRIES = 100_000  # of all lists and dicts together
_LONGEST_TEXT = 100_000  # characters
_LARGEST = 1 << 63  # whole numbers below this fit in 64 bits
_LONGEST_SETTING = 1000  # characters
_MOST_NAMES = 1000  # in a setting
_version = cache(metadata.version)  # which is slow to look up
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class FrozenDict(dict[str, Any]):
    """A dict that cannot be changed."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse any change."""
        raise TypeError("The dict is immutable; make a new one, {**facts, 'key': value}.")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


def check_provenance(value: Any) -> FrozenDict | None:
    """Return how a map was fitted in a form that cannot be changed; refuse what JSON cannot say."""
    if value is None or isinstance(value, FrozenDict):  # the latter was checked before
        return value
    MAPS.read(value, "provenance", "provenance")
    return frozen(value)


def frozen(facts: Mapping[str, Any]) -> FrozenDict:
    """Return facts that cannot be changed; the file's schema is checked when they are saved."""
    found: FrozenDict = _frozen(facts, [_MOST_ENTRIES])
    return found


def _frozen(value: Any, room: list[int], depth: int = 0) -> Any:
    """Copy plain values into tuples and dicts that cannot be changed; refuse too many entries."""
    match value:
        case None | bool():
            return value
        case str() if len(value) <= _LONGEST_TEXT:
            return str(value)
        case int() if abs(value) < _LARGEST:
            return int(value)
        case float() if math.isfinite(value):
            return float(value)
        case Mapping() if not all(isinstance(key, str) for key in value):
            raise ValueError("The keys of 'provenance' must be strings.")
        case Mapping() | list() | tuple():
            pass
        case _:
            text = "'provenance' must hold finite numbers, lists, dicts and text that is not too "
            raise ValueError(f"{text}long. Got {shown(value)}: use its repr.")
    room[0] -= len(value)
    if depth >= _DEEPEST or room[0] < 0:
        raise ValueError("'provenance' is too deeply nested or too long.")
    if isinstance(value, Mapping):
        return FrozenDict({str(k): _frozen(v, room, depth + 1) for k, v in value.items()})
    return tuple(_frozen(item, room, depth + 1) for item in value)


def thawed(value: Any) -> Any:
    """Return facts as plain dicts and tuples, which pickle and other formats can restore."""
    if type(value) in (FrozenDict, dict):
        return {key: thawed(item) for key, item in value.items()}
    return tuple(map(thawed, value)) if isinstance(value, tuple) else value


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a map depends on."""
    return {
        "condokit": condokit.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": _version("scikit-learn"),
    }


def fingerprint(domains: Study) -> dict[str, str]:
    """Return SHA-256 hashes of the "query" and "reference" rows, features and confounders in order.

    They say whether a map was fitted on the same data, whatever file, container or precision these
    came in. Names of features are not included. One hash covers features and confounders, since
    that of a few categories on their own could be guessed.
    """
    sides = {"query": domains.is_query, "reference": ~domains.is_query}
    hashes = {name: hashlib.sha256() for name in sides}
    for rows, chunk in replace(domains, links=None).chunks():
        for name, side in sides.items():
            mine = side[rows]
            if mine.any():
                hashes[name].update(_bytes(chunk if mine.all() else chunk[mine]))
    for name, side in sides.items():
        for confounder in domains.confounders:
            for part in _confounder_bytes(confounder, side):
                hashes[name].update(part)
    return {name: found.hexdigest() for name, found in hashes.items()}


def setting(value: Any) -> Any:
    """Return a setting as a number or text, the same in every run."""
    match value:
        case np.generic():
            return setting(value.item())
        case None | bool():
            return value
        case str():
            return value[:_LONGEST_SETTING]
        case int() if abs(value) < _LARGEST:
            return value
        case float() if math.isfinite(value):
            return value
        case set() | frozenset():
            return setting(sorted(value, key=repr))
        case list() | tuple() if len(value) <= _MOST_NAMES:
            simple = [setting(item) for item in value]
            if list not in map(type, simple):
                return simple
    return " ".join(_ADDRESS.sub("", repr(value)).split())[:_LONGEST_SETTING]


def _bytes(values: Array) -> memoryview:
    """Return numbers as contiguous little-endian float64, all kinds of NaN alike."""
    numbers = np.ascontiguousarray(values, dtype="<f8")
    with np.errstate(invalid="ignore", over="ignore"):
        if np.isnan(numbers.sum()):
            numbers = np.where(np.isnan(numbers), np.nan, numbers)
    return numbers.data.cast("B") if numbers.size else memoryview(b"")


def _confounder_bytes(confounder: Confounder, side: Array) -> Iterator[bytes | memoryview]:
    """Yield name and values; of categories, the levels there are in the order of their text."""
    yield f"\0{confounder.name}\0".encode("utf-8", "surrogatepass")
    if confounder.values is not None:
        yield _bytes(confounder.values[side])
        return
    present, codes = np.unique(confounder.codes[side], return_inverse=True)
    texts = [str(confounder.levels[code]) if code >= 0 else "" for code in present]
    order = np.argsort(np.array(texts, dtype=object), kind="stable")
    yield "\0".join(texts[j] for j in order).encode("utf-8", "surrogatepass")
    yield np.argsort(order)[codes].astype("<i4").tobytes()
