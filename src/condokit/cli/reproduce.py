"""What a map file and a report tell of their making: the command and the files that were read."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from condokit.adapter import ConDoAdapter
from condokit.data.domains import Domains
from condokit.io import sha256, write_text
from condokit.maps.affine import AffineMap
from condokit.maps.provenance import fingerprint

_OUTPUTS = ("-o", "--output", "--report", "--adapted")
_NO_MATTER = ("--force", "--json", "-v", "--verbose")


class Making:
    """The arguments of a command, and the fingerprints of the files that it read."""

    def __init__(self, arguments: list[str], paths: tuple[str | None, ...]) -> None:
        self.arguments = arguments
        self.hashes = [(path, sha256(path)) for path in paths if path not in (None, "-")]

    def command(self, *written: str) -> list[str]:
        """Return the command with plain names for what it writes, which do not change the map."""
        kept, skip = ["condokit"], False
        for argument in self.arguments:
            name, sign, _ = argument.partition("=")
            attached = argument.startswith("-o") and argument != "-o"
            if not (skip or name in _OUTPUTS or attached or argument in _NO_MATTER):
                kept.append(argument)
            skip = name in _OUTPUTS and not sign and not skip
        return [*kept, "-o", *written]

    def remembered_by(self, affine: AffineMap, domains: Domains) -> AffineMap:
        """Return a map that knows the command, the files and the rows it comes from."""
        facts = {
            **(affine.provenance or {}),
            "data": fingerprint(domains),
            "command": self.command("map.json"),
            "files": [{"name": Path(path).name, "sha256": found} for path, found in self.hashes],
        }
        return affine.with_origin(affine.fitted_on, facts)

    def write_report(
        self, adapter: ConDoAdapter, domains: Domains, path: str, force: bool, *written: str
    ) -> dict[str, Any]:
        """Write the report of a fitted adapter, and return its record."""
        from condokit.report import build, render

        command = shlex.join(self.command(*written))
        record = build(adapter, domains, command=command, inputs=dict(self.hashes))
        write_text(path, render(record), force)
        return record
