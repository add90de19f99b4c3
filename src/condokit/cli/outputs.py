"""What a command says and writes: results to standard output, messages to standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import click
from click import UsageError

_HEAD = 1 << 12  # bytes of a file that tell what it holds
_SAME = "batch bridge confounders controls decimal delimiter divergence domain features groups map "
_SAME += "min_overlap missing reliability shrinkage warn_overlap"
_OPTIONS = {name: "--" + name.replace("_", "-") for name in _SAME.split()} | {
    "n_resamples": "--bootstrap",
    "categorical": "-c NAME:cat",
    "ranges": "--range",
    "label": "--label",
    "given": "--given",
    "min_cell": "--min-cell",
    "random_state": "--seed",
    "sample_weight": "--weights",
    "reference": "--reference-label",
    "set unreachable to 'keep'": "leave them as they are with --keep-unreachable",
    "set force to True": "use --force",
    "BatchAdapter.plan": "condokit plan",
    "BatchAdapter.add_batch": "condokit add",
    "links such as 'log'": "--link FEATURE=log",
    "`links` of LocationScale": "--link",
    "use BatchAdapter": "use --batch",
    "Use ConDoAdapter": "Leave --method out",
    "fit on the rows of two labels": "name NEW with --query-label and OLD with --reference-label",
    "list it in `categorical`": "declare it with :cat",
    "pass it as float": "declare it with :num",
}


class NotMet(click.ClickException):
    """A condition that was asked for is not met; nothing is written."""

    exit_code = 4


def show_result(what: Any) -> None:
    """Print a result: text, or a record as JSON."""
    click.echo(what if isinstance(what, str) else json.dumps(what, allow_nan=False, indent=1))


def tell(text: str, matters: bool = True) -> None:
    """Print a message on the error stream; with --quiet only those that matter."""
    context = click.get_current_context(silent=True)
    if matters or context is None or not context.params.get("quiet"):
        click.echo(text, err=True)


def features_of(affine: Any) -> str:
    """Return how many features a map takes."""
    n = affine.n_features_in_
    return f"{n} feature{'s' * (n != 1)}"


def answer(as_json: bool, record: Any, text: str) -> None:
    """Print a record for machines, or say it to people."""
    if as_json:
        show_result(record)
    else:
        tell(text, matters=False)


def tell_warnings(caught: Iterable[Any]) -> list[str]:
    """Print the warnings, and return them in a form that may be saved."""
    from condokit.data.disclosure import hiding_few

    ours = [one.message for one in caught if issubclass(one.category, UserWarning)]
    kept = [hiding_few(getattr(warning, "kept", str(warning)), as_option) for warning in ours]
    for text in (found := list(dict.fromkeys(kept))):
        if not text.startswith("Not taken as features:"):  # read_data has said it
            tell(f"warning: {text}")
    return found


def as_option(argument: str) -> str:
    """Return what an argument of Python, or its setting, is called on the command line."""
    name, sign, value = argument.partition("=")
    option = _OPTIONS.get(name.strip("`'"), _OPTIONS.get(name))
    if option is None:
        return argument
    return option + (f" {value.strip(chr(39))}" if sign else "")


def check_outputs(
    outputs: Iterable[str | None], force: bool, as_json: bool, inputs: Iterable[str | None]
) -> None:
    """Refuse outputs that cannot be written, that collide, or that would replace an input."""
    from condokit.io import check_target

    wanted = [path for path in outputs if path is not None]
    if wanted.count("-") + as_json > 1:
        raise UsageError("Only one of --json and the outputs can go to standard output.")
    read = {_file_of(path) for path in inputs if path not in (None, "-")}
    places = {path: _file_of(path) for path in wanted if path != "-"}
    for path, place in places.items():
        if list(places.values()).count(place) > 1 or wanted.count(path) > 1:
            raise UsageError(f"{path} is named for two outputs.")
        if place in read:
            raise UsageError(f"{path} is read, and would be lost; choose another output.")
    for path in wanted:
        check_target(path, force)


def _file_of(path: Any) -> Any:
    """Return what tells a file from others, whatever links lead to it."""
    place = os.path.realpath(path)
    return os.stat(place)[1:3] if os.path.isfile(place) else place


def holds_statistics(path: str) -> bool:
    """Return whether a file holds statistics, and no map; "-" is standard input."""
    head = b""
    if path == "-":
        piped: Any = sys.stdin.buffer
        head = piped.peek(_HEAD)
    elif os.path.isfile(path):
        with suppress(OSError), open(path, "rb") as file:
            head = file.read(_HEAD)
    return b'"condokit-statistics"' in head


def load_map(path: str, of_batches: bool = False) -> Any:
    """Read a map, or those of many batches as well; "-" is standard input."""
    from condokit.maps import file
    from condokit.maps.base import Map

    def adapter() -> Any:  # which takes long to import
        from condokit.batches.adapter import BatchAdapter

        return BatchAdapter

    place = sys.stdin.buffer if path == "-" else path
    return file.read(place, Map, adapter if of_batches else None)
