"""The command line: parse, call the library, print."""

from condokit.cli.commands import cli, main

__all__ = ["cli", "main"]
