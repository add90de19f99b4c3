"""Packages that not every user has: imported where they are used, or named with their extra."""

from importlib import import_module
from typing import Any


def need(module: str, why: str, extra: str) -> Any:
    """Return a module, or say which extra of condokit brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"{why}: install condokit with the extra '{extra}', condokit[{extra}]."
        ) from None


def arrow() -> Any:
    """Return pyarrow; asked for every column, so that the usual case is a mere import."""
    try:
        import pyarrow
        import pyarrow.compute
    except ModuleNotFoundError:
        return need("pyarrow", "Files need pyarrow", "files")
    return pyarrow
