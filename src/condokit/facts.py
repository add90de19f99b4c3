"""How a map came about, as plain facts that cannot be changed: text, numbers, lists and dicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

_DEEPEST = 6
_MOST_ENTRIES = 100_000
_LONGEST_TEXT = 100_000
_LARGEST = 1 << 63
_KINDS: dict[str, type | tuple[type, ...]] = {
    "versions": Mapping,
    "adapter": Mapping,
    "map": str,
    "divergence": str,
    "conditional": str,
    "domains": Mapping,
    "confounders": Mapping,
    "rows": Mapping,
    "overlap": Mapping,
    "standard_errors": bool,
    "warnings": (list, tuple),
    "data": Mapping,
    "command": (list, tuple),
    "files": (list, tuple),
}


class Facts(dict[str, Any]):
    """A dict that cannot be changed."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("Facts are immutable; make a new dict, {**facts, 'key': value}.")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return Facts, (dict(self),)


def check_provenance(value: Any) -> Facts | None:
    """Return how a map was fitted in a form that cannot be changed; refuse what JSON cannot say."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError(f"'provenance' must be a dict. Got {type(value).__name__}.")
    for key, kind in _KINDS.items():
        if key in value and not isinstance(value[key], kind):
            raise ValueError(f"{key!r} of 'provenance' is of the wrong type.")
    return _Freezer().freeze(value, 0)


class _Freezer:
    """Copies nested facts, counting them."""

    n_entries = 0

    def freeze(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            if len(value) > _LONGEST_TEXT:
                raise ValueError(f"'provenance' holds a text of {len(value)} characters.")
            return str(value)
        if isinstance(value, int) and abs(value) < _LARGEST:
            return int(value)
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
        if isinstance(value, int | float):
            raise ValueError("'provenance' must hold finite numbers only.")
        if not isinstance(value, Mapping | list | tuple):
            raise ValueError(f"'provenance' cannot hold {type(value).__name__}: use its repr.")
        self.n_entries += len(value)
        if depth >= _DEEPEST or self.n_entries > _MOST_ENTRIES:
            raise ValueError("'provenance' is too deeply nested or too long.")
        if not isinstance(value, Mapping):
            return tuple(self.freeze(item, depth + 1) for item in value)
        if not all(isinstance(key, str) for key in value):
            raise ValueError("The keys of 'provenance' must be strings.")
        return Facts({str(key): self.freeze(item, depth + 1) for key, item in value.items()})
