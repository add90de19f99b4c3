"""Results go to standard output, messages for people to standard error."""

from __future__ import annotations

import json
from typing import Any

import click

_OPTIONS = {
    "confounders": "--confounders",
    "divergence": "--divergence",
    "features": "--features",
    "map": "--map",
    "min_overlap": "--min-overlap",
    "missing": "--missing",
    "n_resamples": "--bootstrap",
    "random_state": "--seed",
    "sample_weight": "--weights",
    "shrinkage": "--shrinkage",
    "warn_overlap": "--warn-overlap",
    "list it in `categorical`": "declare it with :cat",
}


def show_result(what: Any) -> None:
    """Print a result: text, or a record as JSON."""
    click.echo(what if isinstance(what, str) else json.dumps(what, allow_nan=False, indent=1))


def tell(text: str) -> None:
    """Say something to people."""
    click.echo(text, err=True)


def answer(as_json: bool, record: Any, text: str) -> None:
    """Print a record for machines, or say it to people."""
    if as_json:
        show_result(record)
    else:
        tell(text)


def as_option(argument: str) -> str:
    """Return what an argument of Python, or its setting, is called on the command line."""
    name, sign, value = argument.partition("=")
    option = _OPTIONS.get(name.strip("`'"), _OPTIONS.get(name))
    if option is None:
        return argument
    return option + (f" {value.strip(chr(39))}" if sign else "")
