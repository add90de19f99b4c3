"""What the fields of our JSON files must be, checked before anything is made of them.

A table of fields says what a kind of file holds. Files are read by it, nothing is written that it
would refuse, and tests compare it with the schemas that are published in `docs/reference`.

Sizes have names: all fields of `Numbers("cells features")` have as many rows and columns as the
first one in which these names occur. So every size is the length of a list in the file, and a
number that only claims a size (`Number(size="features")`) is refused before memory is taken for it.
"""

import reprlib
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from condokit.checks import is_number, listing

LARGEST = sys.float_info.max
LARGEST_COUNT = 1 << 53  # up to which float64 counts
_LARGEST_LABEL = 1 << 63
_TYPES: dict[str, Any] = {"string": str, "boolean": bool, "array": (list, tuple), "object": Mapping}
_WORDS = {"string": "text", "boolean": "true or false", "number": "a number"}
Sizes = dict[str, int]
_short = reprlib.Repr()
_short.maxlevel, _short.maxlist, _short.maxdict, _short.maxstring = 2, 3, 3, 80
shown = _short.repr  # a value in a message, which is one line and not long


def wrong(where: str, what: str, found: str) -> ValueError:
    """Return the error that says what a field must be, and what was found."""
    return ValueError(f"{shown(where)} must be {what}. Got {found}.")


@dataclass(frozen=True, kw_only=True)
class Field(ABC):
    """What a value must be."""

    optional: bool = False  # whether the key may be missing
    null: bool = False  # whether null may stand in its place

    def __call__(self, value: Any, where: str = "", sizes: Sizes | None = None) -> Any:
        """Return a value as it is used, or refuse it; `where` is its place in the file."""
        if value is None and self.null:
            return None
        return self._read(value, where, {} if sizes is None else sizes)

    @abstractmethod
    def _read(self, value: Any, where: str, sizes: Sizes) -> Any:
        """Do so for a value that is not null; sizes that are not known yet are noted."""


@dataclass(frozen=True)
class Plain(Field):
    """A value of some types, as JSON calls them: `Plain("string number")`."""

    types: str

    def _read(self, value: Any, where: str, sizes: Sizes) -> Any:
        for name in self.types.split():
            if name == "number" and is_number(value, (int, float)):
                if abs(value) < _LARGEST_LABEL:
                    return value
            elif name in _TYPES and isinstance(value, _TYPES[name]):
                return value
        what = " or ".join(_WORDS.get(name, name) for name in self.types.split())
        raise wrong(where, what, shown(value))


@dataclass(frozen=True)
class Word(Field):
    """One of a few words."""

    words: tuple[str, ...]

    def _read(self, value: Any, where: str, sizes: Sizes) -> Any:
        if isinstance(value, str) and value in self.words:
            return value
        raise wrong(where, f"one of {listing(self.words, 9)}", shown(value))


@dataclass(frozen=True)
class Number(Field):
    """A finite number in a range; it may claim a size, or stay `below` one."""

    low: float = -LARGEST
    high: float = LARGEST
    whole: bool = False
    above: bool = False  # whether it must be above `low`
    words: tuple[str, ...] = ()  # that may stand in its place
    size: str = ""
    below: str = ""

    def _read(self, value: Any, where: str, sizes: Sizes) -> Any:
        if isinstance(value, str) and value in self.words:
            return value
        fits = is_number(value, int if self.whole else (int, float))
        if not fits or not self.low <= value <= self.high or (self.above and value == self.low):
            what = "a whole number" if self.whole else "a number"
            raise wrong(where, what + _between(self), shown(value))
        if self.size and sizes.setdefault(self.size, value) != value:
            raise wrong(where, f"{sizes[self.size]}, the number of {self.size}", shown(value))
        if self.below and value >= sizes[self.below]:
            raise wrong(where, f"below the number of {self.below}", shown(value))
        return value


@dataclass(frozen=True)
class Numbers(Field):
    """Finite numbers of a shape, as float64: `Numbers("2 rows")`; with `gaps`, NaN for null."""

    shape: str
    low: float = -LARGEST
    high: float = LARGEST
    gaps: bool = False
    above: bool = False  # whether they must be above `low`
    least: int = 1  # fewest rows, columns and so on

    def _read(self, value: Any, where: str, sizes: Sizes) -> Any:
        names, parts, shape = self.shape.split(), [value], []
        for name in names:
            lengths = {len(part) if isinstance(part, list | tuple) else -1 for part in parts}
            if len(lengths) != 1 or min(lengths) < self.least:
                break
            shape.append(lengths.pop())
            if name.isidentifier():
                sizes.setdefault(name, shape[-1])
            parts = list(chain.from_iterable(parts))
        if shape != [_size(sizes, name) for name in names]:
            what = " x ".join(str(_size(sizes, name) or name) for name in names)
            is_array = len(shape) == len(names)
            found = " x ".join(map(str, shape)) if is_array else shown(value)
            raise wrong(where, f"numbers of the shape {what}", found)
        if odd := set(map(type, parts)) - {int, float, type(None) if self.gaps else int}:
            found = next(part for part in parts if type(part) in odd)
            raise wrong(where, "numbers" + " or null" * self.gaps, shown(found))
        array = np.array(parts, dtype=np.float64).reshape(shape)  # None becomes NaN
        known = array[~np.isnan(array)] if self.gaps else array
        fits = (known >= self.low) & (known <= self.high) & ~(self.above & (known == self.low))
        if not fits.all():
            raise wrong(where, f"numbers{_between(self)}", shown(known[~fits][0].item()))
        return array


@dataclass(frozen=True)
class List(Field):
    """A list of values of one kind, each with sizes of its own beside those known before."""

    item: Field
    least: int = 0
    size: str = ""
    different: bool = False  # of text

    def _read(self, value: Any, where: str, sizes: Sizes) -> Any:
        if not isinstance(value, list | tuple) or len(value) < self.least:
            what = "a list" + f" of {self.least} or more" * (self.least > 0)
            raise wrong(where, what, shown(value))
        if self.size and sizes.setdefault(self.size, len(value)) != len(value):
            raise wrong(where, f"a list of {sizes[self.size]}", f"{len(value)} of them")
        found = [self.item(one, f"{where}[{k}]", dict(sizes)) for k, one in enumerate(value)]
        if self.different and len(set(found)) < len(found):
            twice = next(iter(Counter(found) - Counter(set(found))))
            raise wrong(where, "different", f"{shown(twice)} twice")
        return found


@dataclass(frozen=True)
class ByName(Field):
    """Values of one kind by name, or by the numbers below a size."""

    item: Field
    below: str = ""

    def _read(self, value: Any, where: str, sizes: Sizes) -> Any:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise wrong(where, "an object", shown(value))
        found: dict[Any, Any] = {}
        for key, one in value.items():
            number = int(key) if self.below and key.isdecimal() and len(key) < 16 else -1
            if self.below and (str(number) != key or number >= sizes[self.below]):
                raise wrong(where, f"by numbers below that of {self.below}", shown(key))
            found[number if self.below else key] = self.item(one, f"{where}.{key}", dict(sizes))
        return found


@dataclass(frozen=True)
class Object(Field):
    """Fields by name, read in this order; others are ignored."""

    fields: Mapping[str, Field]

    def _read(self, value: Any, where: str, sizes: Sizes) -> Any:
        if not isinstance(value, Mapping):
            raise wrong(where, "an object", shown(value))
        found = {}
        for key, field in self.fields.items():
            place = f"{where}.{key}" if where else key
            if key in value:
                found[key] = field(value[key], place, sizes)
            elif not field.optional:
                raise ValueError(f"{shown(place)} is missing.")
        return found


@dataclass(frozen=True)
class ByKind(Field):
    """An object whose 'kind' says which fields it has beside the common ones."""

    common: Mapping[str, Field]
    kinds: Mapping[str, Mapping[str, Field]]  # by kind; more may enter later
    without: tuple[str, ...] = ()  # kinds that are not meant

    def _read(self, value: Any, where: str, sizes: Sizes) -> Any:
        known = {kind: own for kind, own in self.kinds.items() if kind not in self.without}
        first = {"kind": Word(tuple(known))}
        kind = Object(first)(value, where)["kind"]
        fields = {**first, **known[kind], **self.common}
        for key in chain.from_iterable(known.values()):
            if key in value and key not in fields:
                place = f"{where}.{key}" if where else key
                raise ValueError(f"{shown(place)} does not belong to the kind {kind!r}.")
        return Object(fields)(value, where, sizes)


def _between(limits: Number | Numbers) -> str:
    """Say between which limits a number must be."""
    low = "" if limits.low == -LARGEST else f" {'above' if limits.above else 'from'} {limits.low:g}"
    high = "" if limits.high == LARGEST else f" {'to' if low else 'up to'} {limits.high:g}"
    return low + high or ", and finite"


def _size(sizes: Sizes, name: str) -> int:
    """Return a size, 0 if it is not known: "2", "cells" or a sum, "columns+features"."""
    parts = [int(part) if part.isdecimal() else sizes.get(part, 0) for part in name.split("+")]
    return sum(parts) if all(parts) else 0
