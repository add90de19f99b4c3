"""Results go to standard output, messages for people to standard error."""

from __future__ import annotations

import json
from typing import Any

import click


def show_result(what: Any) -> None:
    """Print a result: text, or a record as JSON."""
    click.echo(what if isinstance(what, str) else json.dumps(what, allow_nan=False, indent=1))


def tell(text: str) -> None:
    """Say something to people."""
    click.echo(text, err=True)
