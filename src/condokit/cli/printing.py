"""Results go to standard output, messages for people to standard error."""

from __future__ import annotations

import json
import re
from typing import Any

import click

_OPTIONS = {
    r"\b(map|divergence|missing|shrinkage)='([\w-]+)'": r"--\1 \2",
    r"'?\b(min|warn)_overlap\b'?=?": r"--\1-overlap ",
    r"`(features|confounders)`|'(features|confounders)'(?= (must|lists|names))": r"--\1\2",
    r"'sample_weight'": "--weights",
    r"'random_state'": "--seed",
    r"'n_resamples'": "--bootstrap",
    r"list it in `categorical`": "declare it with :cat",
}


def show_result(what: Any) -> None:
    """Print a result: text, or a record as JSON."""
    click.echo(what if isinstance(what, str) else json.dumps(what, allow_nan=False, indent=1))


def tell(text: str) -> None:
    """Say something to people."""
    click.echo(text, err=True)


def as_options(text: str) -> str:
    """Call arguments of Python what they are on the command line."""
    for pattern, option in _OPTIONS.items():
        text = re.sub(pattern, option, text)
    return re.sub(r" +([.,;)])", r"\1", text)
