"""The fit of the command line: from options to a map that knows its making, and its report."""

import hashlib
import io
import shlex
import sys
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from condokit.adapter import ConDoAdapter
from condokit.batches.adapter import BatchAdapter
from condokit.cli.outputs import tell_warnings
from condokit.cli.streaming import IN_MEMORY
from condokit.cli.tables import read_data, reliabilities, split
from condokit.data.disclosure import hidden_overlap
from condokit.data.domains import Domains
from condokit.data.records import plain
from condokit.io import files_of, sha256, spreadsheet
from condokit.io.progress import progress
from condokit.maps.families import MAPS, LowRank
from condokit.maps.provenance import fingerprint

_OUTPUTS = ("-o", "--output", "--report", "--adapted", "--table", "--figures", "--figure-format")
_NO_MATTER = ("--force", "--json", "-v", "--verbose", "-q", "--quiet")


class Fitted:
    """An adapter as a command fits it, with its data, what was warned of, and how it was made."""

    def __init__(self, arguments: list[str], options: dict[str, Any]) -> None:
        self.arguments, self.column, seed = arguments, options["domain"], options["seed"]
        self.watched = options["verbose"] or (sys.stderr.isatty() and not options["quiet"])
        self.data: Any = self.read(options)
        is_plain = options["shrinkage"].lower() == "none"
        self.adapter: Any = ConDoAdapter(
            _family(options["map_"], options["links"]),
            divergence=options["divergence"],
            shrinkage=None if is_plain else _number("--shrinkage", options["shrinkage"], "auto"),
            missing=options["missing"],
            reliability=reliabilities(options["reliability"]) or None,
            controls=split("--controls", options["controls"]) or None,
            warn_overlap=options["warn_overlap"],
            min_overlap=options["min_overlap"],
            random_state=seed,
            verbose=self.watched,
            n_jobs=-1,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.fit(options)
            if n_resamples := options["n_resamples"]:
                from condokit.trust.bootstrap import bootstrap

                how = {"n_resamples": n_resamples, "verbose": self.watched, "random_state": seed}
                bootstrap(self.adapter, self.data, **how)
        self.warnings = tell_warnings(caught)
        self.names: dict[str, str] = {}  # folders are nobody's business
        for path in self.inputs(options):
            same = sum(Path(other).name == Path(path).name for other in self.names)
            name, dot, kind = Path(path).name.partition(".")
            self.names[path] = f"{name} ({same + 1}){dot}{kind}" if same else Path(path).name
        self.hashes = {self.names[path]: _content(path) for path in self.names}

    def read(self, options: dict[str, Any]) -> Any:
        """Return the data."""
        return read_data(**options)

    def inputs(self, options: dict[str, Any]) -> list[str]:
        """Return the files that are read."""
        return [path for path in (options["new"], options["reference"]) if path not in (None, "-")]

    def fit(self, options: dict[str, Any]) -> None:
        """Fit the adapter to the data."""
        self.domains: Domains = self.data
        self.adapter.fit_domains(self.domains)

    def command(self, *written: str) -> list[str]:
        """Return the command with plain names for what it writes, which do not change the map."""
        kept, skip = ["condokit"], False
        for argument in self.arguments:
            name, sign, _ = argument.partition("=")
            attached = argument.startswith("-o") and argument != "-o"
            if not (skip or name in _OUTPUTS or attached or argument in _NO_MATTER):
                for path, plain_name in self.names.items():
                    if argument in (path, f"--reference={path}"):
                        argument = argument.removesuffix(path) + plain_name
                        break
                kept.append(argument)
            skip = name in _OUTPUTS and not sign and not skip
        return [*kept, "-o", *written]

    def origin(self) -> dict[str, Any]:
        """Return the command, files and rows that a map comes from."""
        sums = self.domains.sums
        known = (
            {} if sums is not None and not sums.are_rows else {"data": fingerprint(self.domains)}
        )
        return known | {
            "command": self.command("map.json"),
            "files": [
                {"name": name, "size" if " " in found else "sha256": found}
                for name, found in self.hashes.items()
            ],
        }

    def map_file(self) -> tuple[Any, bytes]:
        """Return the map, which knows the command, files and rows it comes from, and its file."""
        affine, content = self.adapter.map_, io.BytesIO()
        facts = dict(affine.provenance or {}) | self.origin()
        facts["domains"] = facts["domains"] | ({"column": self.column} if self.column else {})
        affine = affine.with_origin(affine.fitted_on, facts)
        affine.save(content)
        return affine, content.getvalue()

    @cached_property
    def judged(self) -> tuple[Any, Any]:
        """What is known of the data before the map, and of what it leaves."""
        from condokit.report.contents import judged

        with progress("", shown=self.watched, doing="Evaluating the map"):
            return judged(self.adapter, self.domains)

    def account(self, *written: str, made: bytes = b"") -> dict[str, Any]:
        """Return the record of the report, which knows the file of the map that it goes with."""
        from condokit.report.contents import build

        found = dict(zip(("assessment", "evaluation"), self.judged))
        command = shlex.join(self.command(*written))
        record = build(self.adapter, self.domains, **found, command=command, inputs=self.hashes)
        if made:
            record["reproduce"]["map_sha256"] = hashlib.sha256(made).hexdigest()
        return record

    def verdict(self) -> str:
        """Say in a line whether the map can be trusted."""
        from condokit.report.contents import verdict

        try:
            found = verdict(*self.judged)
        except (ValueError, ArithmeticError) as error:  # the map is made, and may be used
            return f"Not evaluated: {error}"
        return f"{found['word']}: {found['sentence'][:1].lower()}{found['sentence'][1:]}"

    def table(self, record: dict[str, Any]) -> bytes:
        """Return all features as text: changes, parameters and what is left of the shift."""
        return spreadsheet(record["features"])

    def rows(self) -> dict[str, Any]:
        """Return the numbers of rows compared, as far as they may be told."""
        return dict(self.adapter.map_.provenance or {})["rows"]

    def record(self) -> dict[str, Any]:
        """Return what was fitted, for machines."""
        adapter, facts, rows = self.adapter, self.adapter.report_, self.rows()
        kept, is_query, sums = self.domains.kept(), self.domains.is_query, self.domains.sums
        counts = kept if sums is None else kept * sums.weights
        totals = [float(counts[side].sum()) for side in (is_query, ~is_query)]
        return {
            "kind": adapter.map_.kind,
            "n_features": adapter.map_.n_features_in_,
            "features": self.domains.tables[0].labels,
            "columns_left_alone": self.domains.left,
            "divergence": str(adapter.divergence_),
            "chosen": facts.get("chosen_map", str(adapter.map)),
            "rows_query": rows["query"],
            "rows_reference": rows["reference"],
            "overlap": hidden_overlap(plain(adapter.overlap_), *totals),
            "warnings": self.warnings,
        }

    def summary(self) -> str:
        """Return what was fitted, in a sentence."""
        affine, facts = self.adapter.map_, self.adapter.report_
        n_rows = {k: n if isinstance(n, str) else f"{n:,.0f}" for k, n in self.rows().items()}
        is_chosen = "chosen_map" in facts
        chosen = ", an average of kinds that predict rows well and simply," if is_chosen else ""
        return (
            f"A {affine.kind} map of {affine.n_features_in_} features{chosen} "
            f"from {n_rows['query']} query and {n_rows['reference']} reference "
            f"rows; overlap of the confounders {self.adapter.overlap_.coefficient:.2f}."
        )


def _content(path: str) -> str:
    """Return the hash of a file; of several, or a large one, how many there are and their size."""
    files = files_of(path)
    size = sum(Path(file).stat().st_size for file in files)
    if len(files) == 1 and size <= IN_MEMORY:
        return sha256(path)
    return f"{len(files)} files, {size} bytes"


class FittedBatches(Fitted):
    """A `BatchAdapter` as a command fits it."""

    def fit(self, options: dict[str, Any]) -> None:  # noqa: D102
        unreachable = "keep" if options["keep_unreachable"] else "raise"
        label, self.column, self.domains = (
            options["reference_label"],
            options["batch"],
            self.data.domains,
        )
        self.adapter = BatchAdapter(self.adapter, reference=label, unreachable=unreachable)
        self.adapter.fit_study(self.data)

    def map_file(self) -> tuple[Any, bytes]:  # noqa: D102
        content, facts = io.BytesIO(), dict(self.adapter.provenance_)
        self.adapter.provenance_ = facts | self.origin() | {"column": self.column}
        self.adapter.save(content)
        return self.adapter, content.getvalue()

    @cached_property
    def judged(self) -> tuple[Any, Any]:  # noqa: D102
        from condokit.trust.assess import assess
        from condokit.trust.evaluate import evaluate

        with progress("", shown=self.watched, doing="Evaluating the maps"):
            assessment = assess(self.data, adapter=self.adapter)
            return assessment, evaluate(self.adapter, self.data)

    def account(self, *written: str, made: bytes = b"") -> dict[str, Any]:  # noqa: D102
        from condokit.report.study import build_study

        found = dict(zip(("assessment", "evaluation"), self.judged))
        command = shlex.join(self.command(*written))
        return build_study(self.adapter, self.data, **found, command=command, inputs=self.hashes)

    def verdict(self) -> str:  # noqa: D102
        try:
            return repr(self.judged[1])
        except (ValueError, ArithmeticError) as error:
            return f"Not evaluated: {error}"

    def record(self) -> dict[str, Any]:  # noqa: D102
        facts = plain(dict(self.adapter.provenance_))
        return {"features": self.domains.tables[0].labels, **facts, "warnings": self.warnings}

    def summary(self) -> str:  # noqa: D102
        return str(self.adapter.report_)


def _family(name: str, links: tuple[str, ...]) -> Any:
    """Return a map by name, with its rank or links."""
    name, _, rank = name.partition(":")
    if name == "blocks":
        raise click.UsageError("--map blocks: groups of features can be named in Python only.")
    if not links and not rank:
        return name
    found: dict[str, Any] = {}
    for link in links:
        feature, sign, kind = link.rpartition("=")
        if not sign:
            raise click.UsageError(f"--link {link}: write FEATURE=log, FEATURE=logit or a power.")
        found[feature] = _number("--link", kind, "log", "logit")
    if name == "low-rank":
        if rank and not rank.isdecimal():
            raise click.UsageError(f"--map {name}:{rank}: the rank must be a whole number.")
        return LowRank(int(rank or 2), links=found or None)
    if rank or name not in MAPS:
        raise click.UsageError(f"--map {name}: links and ranks do not go with it.")
    return MAPS[name](links=found)


def _number(option: str, value: str, *words: str) -> Any:
    """Return the number that an option gives, or one of some words."""
    try:
        return value if value in words else float(value)
    except ValueError:
        raise click.UsageError(f"{option}: {value!r} is not a number.") from None
