"""Where a map comes from: the command and the files, kept in map files and reports."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from condokit.adapter import ConDoAdapter
    from condokit.data.domains import Domains
    from condokit.maps.affine import AffineMap

_NO_MATTER = ("--force", "--json", "-v", "--verbose")
Inputs = list[tuple[str, dict[str, str]]]
given: list[str] = []  # as they were given, for the record


def inputs_of(options: dict[str, Any]) -> Inputs:
    """Return the files that were read with their fingerprints."""
    from condokit.maps.provenance import file_fingerprint

    paths = (options["new"], options["reference"])
    return [(path, file_fingerprint(path)) for path in paths if path not in (None, "-")]


def with_origin(affine: AffineMap, domains: Domains, inputs: Inputs) -> AffineMap:
    """Return a map that knows the command, the files and the rows it comes from."""
    from condokit.maps.provenance import fingerprint

    origin = {
        **(affine.provenance or {}),
        "data": fingerprint(domains),
        "command": _command("map.json"),
        "files": [known for _, known in inputs],
    }
    return affine.with_origin(affine.fitted_on, origin)


def write_report(
    adapter: ConDoAdapter,
    domains: Domains,
    inputs: Inputs,
    path: str,
    force: bool,
    with_map: bool,
) -> dict[str, Any]:
    """Write the report of a fitted adapter, and return its record."""
    from condokit.io import write_text
    from condokit.report import build, render

    hashes = {name: known["sha256"] for name, known in inputs}
    written = ("map.json", "--report", "report.html") if with_map else ("report.html",)
    record = build(adapter, domains, command=shlex.join(_command(*written)), inputs=hashes)
    write_text(path, render(record), force)
    return record


def _command(*written: str) -> list[str]:
    """Return the command with plain names for what it writes, which do not change the map."""
    kept, skip = ["condokit"], False
    for argument in given:
        name, sign, _ = argument.partition("=")
        is_output = name in ("-o", "--output", "--report", "--adapted")
        attached = argument.startswith("-o") and argument != "-o"
        if not (skip or is_output or attached or argument in _NO_MATTER):
            kept.append(argument)
        skip = is_output and not sign and not skip
    return [*kept, "-o", *written]
