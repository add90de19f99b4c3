"""How a map was fitted, for its file: versions, settings, what was compared, and fingerprints."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn

import condokit
from condokit._validation import Array
from condokit.domains import Confounder, Domains
from condokit.files import sha256
from condokit.fitting import Fit
from condokit.ladder import Rung, called
from condokit.records import MIN_CELL, hidden_counts

_NO_MATTER = ("n_jobs", "verbose")  # they do not change the map
_LONGEST = 1000  # characters of a setting
_MOST = 1000  # names in a list
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SMALL_COUNT = re.compile(
    rf"(?<![\d.])[1-{MIN_CELL - 1}](\.\d+)?(?= (of the )?(query|reference|rows))"
)


def account(
    settings: Mapping[str, Any], domains: Domains, fit: Fit, rung: Rung, notes: Sequence[str]
) -> dict[str, Any]:
    """Tell how a map was fitted, without anything that a file may not give away.

    There are no times and no addresses in it, so that the same fit yields the same file, and no
    counts below `MIN_CELL`.
    """
    labels = dict(zip(("query", "reference"), map(str, domains.labels)))
    return {
        "versions": versions(),
        "adapter": {key: setting(v) for key, v in settings.items() if key not in _NO_MATTER},
        "map": fit.report.get("fallback", rung.map),
        "divergence": called(rung.divergence),
        "conditional": called(rung.conditional),
        "domains": labels,
        "confounders": {
            c.name: "categorical" if c.values is None else "continuous" for c in domains.confounders
        },
        "rows": {side: _rows(domains, fit, side) for side in labels},
        "overlap": {
            "coefficient": round(fit.overlap.coefficient, 2),
            "by_confounder": {n: round(c, 2) for n, c in fit.overlap.by_confounder.items()},
        },
        "standard_errors": fit.errors is not None,
        "warnings": [_SMALL_COUNT.sub(f"<{MIN_CELL}", note) for note in dict.fromkeys(notes)],
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a map depends on."""
    return {
        "condokit": condokit.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
    }


def fingerprint(domains: Domains) -> dict[str, str]:
    """Return a hash of each domain's rows: features and confounders as read, in order.

    It tells whether a map was fitted on the same data, whatever file, container or precision they
    came in. Names of features are not part of it. One hash covers both, since that of a few
    categories alone could be guessed.

    Parameters
    ----------
    domains : Domains
        Both domains, as `condokit.intake` reads them.

    Returns
    -------
    dict of str to str
        SHA-256 in hexadecimal of "query" and "reference".
    """
    sides = {"query": domains.is_query, "reference": ~domains.is_query}
    hashes = {name: hashlib.sha256() for name in sides}
    start = 0
    for table in domains.tables:
        for rows, chunk in table.chunks():
            here = slice(start + rows.start, start + rows.stop)
            for name, side in sides.items():
                mine = side[here]
                if mine.any():
                    hashes[name].update(_bytes(chunk if mine.all() else chunk[mine]))
        start += table.n_rows
    for name, side in sides.items():
        for confounder in domains.confounders:
            for part in _confounder_bytes(confounder, side):
                hashes[name].update(part)
    return {name: found.hexdigest() for name, found in hashes.items()}


def file_fingerprint(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the name of a file, without its folder, and the SHA-256 of its content."""
    return {"name": Path(path).name, "sha256": sha256(path)}


def setting(value: Any) -> Any:
    """Return a setting as a number or text, the same in every run."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value[:_LONGEST]
    if isinstance(value, np.generic):
        return setting(value.item())
    if isinstance(value, int) and abs(value) < 1 << 63:
        return value
    if isinstance(value, float) and np.isfinite(value):
        return value
    if isinstance(value, set | frozenset):
        value = sorted(value, key=repr)
    if isinstance(value, list | tuple) and len(value) <= _MOST:
        simple = [setting(item) for item in value]
        if not any(isinstance(item, list) for item in simple):
            return simple
    return " ".join(_ADDRESS.sub("", repr(value)).split())[:_LONGEST]


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


def _rows(domains: Domains, fit: Fit, side: str) -> Any:
    """Return how many rows were compared, or how many at most if that tells of too few."""
    compared = fit.report[f"rows_{side}"]
    mine = domains.kept() & (domains.is_query == (side == "query"))
    total = mine.sum() if domains.weights is None else domains.weights[mine].sum()
    return hidden_counts(np.array([compared, max(total - compared, 0.0)]))[0]
