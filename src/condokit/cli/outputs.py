"""What a command writes, checked before any work, and what it reads or writes as a map."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from condokit.maps.affine import AffineMap


def check_outputs(
    outputs: Iterable[str | None],
    force: bool,
    as_json: bool = False,
    inputs: Iterable[str | None] = (),
) -> None:
    """Refuse outputs that cannot be written, that collide, or that would replace an input."""
    from condokit.io import check_target

    wanted = [path for path in outputs if path is not None]
    if wanted.count("-") + as_json > 1:
        raise click.UsageError("Only one of --json and the outputs can go to standard output.")
    read = {os.path.realpath(path) for path in inputs if path not in (None, "-")}
    places = [os.path.realpath(path) for path in wanted if path != "-"]
    for place in places:
        if places.count(place) > 1:
            raise click.UsageError(f"{place} is named for two outputs.")
        if place in read:
            raise click.UsageError(f"{place} is read, and would be lost; choose another output.")
    for path in wanted:
        check_target(path, force)


def load_map(path: str) -> AffineMap:
    """Read a map; "-" is standard input."""
    from condokit.maps.affine import AffineMap

    return AffineMap.load(sys.stdin.buffer if path == "-" else path)


def save_map(affine: AffineMap, path: str, force: bool) -> None:
    """Write a map; "-" is standard output."""
    from condokit.io import write_bytes

    content = io.BytesIO()
    affine.save(content)
    write_bytes(path, content.getvalue(), force)
