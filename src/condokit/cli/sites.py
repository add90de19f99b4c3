"""Sites that share statistics: gathered from files in batches, and fitted without rows."""

import sys
from typing import Any

import click

from condokit.batches.adapter import BatchAdapter
from condokit.checks import listing, quietly
from condokit.cli.fit_adapter import Fitted, FittedBatches
from condokit.cli.options import READING
from condokit.cli.outputs import load_map, tell
from condokit.cli.tables import (
    alike,
    as_numbers,
    confounder_kinds,
    feature_columns,
    kind_of,
    labels_of,
    refuse_text,
)
from condokit.data.measurements import told
from condokit.io import OBSERVED, scan_table
from condokit.io.formats import arrow, check_names, is_number
from condokit.io.progress import progress
from condokit.statistics.domains import as_domains, cells_of, together
from condokit.statistics.file import MIN_POWERS, document_of
from condokit.statistics.gather import Statistics, heavy_features
from condokit.statistics.reveals import facts_of, words

pa = arrow()
_SAID = "reference domain query_label batch bridge confounders features groups weights reliability"
_NEED_ROWS = "report table adapted n_resamples controls links"


def gather(paths: tuple[str, ...], **options: Any) -> Statistics:
    """Gather the statistics of files, of which a batch at a time is in memory."""
    if (options["domain"] is None) == (options["label"] is None):
        text = "Give --domain COLUMN, which has the domain of each row, or --label NAME for all."
        raise click.UsageError(text)
    if len(set(paths)) < len(paths):
        raise click.UsageError("A table is named twice: its rows would count twice.")
    stats, numbers = None, set[str]()
    options["ranges"] = _ranges(options["ranges"])
    given = options.pop("given")
    known, parts = None if given is None else load_map(given, of_batches=True), list[Any]()
    for path in paths:
        stats = _with_file(stats, path, numbers, None if known is None else parts, **options)
    assert stats is not None
    _refuse_undeclared(stats, numbers)
    return stats if known is None else _second_round(stats, known, parts)


def _second_round(stats: Statistics, known: Any, parts: list[Any]) -> Statistics:
    """Add the values of features that a fit of the first round found to have heavy tails."""
    features = heavy_features(known, stats)
    if not len(features):
        tell("The map of --given was fitted without heavy tails: nothing more is needed.", False)
        return stats
    X = pa.concat_tables([X for X, _ in parts])
    roles: dict[str, Any] = {}
    for key, first in parts[0][1].items():
        every = [by_row[key] for _, by_row in parts]
        if type(first) is dict:
            roles[key] = {n: pa.chunked_array([one[n] for one in every]) for n in first}
        elif first is not None:
            roles[key] = [value for one in every for value in one]
    return stats.with_values(X, features, **roles)


def _with_file(
    stats: Statistics | None,
    path: str,
    numbers: set[str],
    parts: list[Any] | None,
    *,
    ranges: dict[str, Any],
    domain: str | None,
    label: str | None,
    weights: str | None,
    **options: Any,
) -> Statistics:
    """Add the rows of a file; note which confounders are numbers that nothing was said of.

    Rows are kept as `parts` if these are asked for.
    """
    reading = {name: options[name] for name in READING}
    with scan_table(path, texts=[domain], **reading) as scan, progress("rows", scan.n_rows) as step:
        kinds = confounder_kinds(options["confounders"], scan.names, {})
        if strange := [name for name in ranges if kinds.get(name, "cat") == "cat"]:
            raise click.UsageError(
                f"--range: {listing(strange)} is no confounder of numbers in -c."
            )
        kinds |= {name: kinds[name] or "num" for name in ranges}
        roles = [name for name in (*kinds, domain, weights) if name is not None]
        check_names(path, scan.names, roles)
        empty, decimal = scan.schema.empty_table(), options["decimal"]
        left: dict[str, str] = {}
        if stats is None:
            how = [path], [empty], roles, decimal, [scan]
            chosen, left = feature_columns(options["features"], *how)
        else:
            chosen = list(stats.feature_names or ())
            check_names(path, scan.names, chosen)
            refuse_text(path, chosen, scan.schema, scan, decimal)
        held = {name: kind_of(empty.column(name).type) for name in kinds}
        numbers.update(n for n, kind in kinds.items() if not kind and is_number(held[n]))
        is_named = options["features"] or OBSERVED in (scan.schema.metadata or {})
        n_rows = 0
        for batch in scan:
            rows = as_numbers(batch)
            given = {
                name: alike(name, kinds[name], [path], [rows.column(name)])[0] for name in kinds
            }
            by_row: dict[str, Any] = {
                "domain": None if domain is None else labels_of(rows.column(domain)),
                "confounders": given or None,
                "sample_weight": None if weights is None else rows.column(weights),
            }
            X = rows.select(chosen)
            if parts is not None:
                parts.append((X, by_row))
            if stats is None:
                stats = Statistics.of(
                    X,
                    label=label,
                    features=chosen if is_named else None,
                    categorical=[name for name, kind in kinds.items() if kind == "cat"] or None,
                    ranges=ranges,
                    missing=options["missing"],
                    reference=options["reference_label"],
                    **by_row,
                )
                _tell_features(stats, chosen, left)
            else:
                stats.update(X, **by_row)
            step(n_rows := n_rows + len(rows))
    if stats is None or not n_rows:
        raise ValueError(f"{path} has no rows.")
    return stats


def _tell_features(stats: Statistics, chosen: list[str], left: dict[str, str]) -> None:
    names = stats.feature_names or []
    tell(f"Features ({len(names)}): {listing(names, 10)}.", False)
    others = {name: "no measurement" for name in chosen if name not in names} | left
    if others:
        tell(f"Left alone: {told(others)}. Choose features with -f.", False)


def _refuse_undeclared(stats: Statistics, numbers: set[str]) -> None:
    """Refuse numbers of which nobody said that they are categories, if these are more than two."""
    names = stats.categories
    for j, name in enumerate(names, 1):
        if name in numbers and len({cell[j] for cell in stats.cells}) > 2:
            raise click.UsageError(
                f"Confounder {name!r} has numbers: say -c {name}:cat if they are categories, or "
                f"--range {name}=LOW:HIGH between which values they can lie."
            )


def _ranges(values: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    found = {}
    for value in values:
        name, _, span = value.rpartition("=")
        try:
            low, high = map(float, span.split(":"))
        except ValueError:
            low = high = 0.0
        if not name or not low < high:
            raise click.UsageError(f"--range {value}: write NAME=LOW:HIGH, as age=18:95.")
        found[name] = low, high
    return found


def are_statistics(new: str, more: tuple[str, ...]) -> bool:
    """Tell whether files to fit are statistics; refuse several tables, or both kinds."""
    found = {path.endswith(".json") for path in (new, *more)}
    if len(found) > 1 or (more and not found.pop()):
        raise click.UsageError(
            "Give one table NEW (and --reference OLD), or statistics files alone (.json)."
        )
    return new.endswith(".json")


def fit_sites(arguments: list[str], options: dict[str, Any]) -> Fitted:
    """Fit two domains of statistics files, or many."""
    for refused, why in ((_SAID, "was said when they were made"), (_NEED_ROWS, "needs rows")):
        for key in refused.split():
            if options.get(key):
                name = {"n_resamples": "bootstrap", "links": "link"}.get(key, key)
                option = f"--{name.replace('_', '-')}"
                raise click.UsageError(f"{option} does not go with statistics files: it {why}.")
    paths = [options["new"], *options["more"]]
    parts = [Statistics.load(path) for path in paths]
    labels = list(dict.fromkeys(label for part in parts for label in part.labels))
    given = options["reference_label"]
    given = next((label for label in labels if str(label) == given), given)  # 1 is written "1"
    said = {given, *(part.reference for part in parts)} - {None, ""}
    if len(labels) < 2:
        together(parts)  # which says if one was given twice
        raise ValueError(f"All statistics are of {listing(labels)}: there is nothing to compare.")
    if len(said) > 1:
        raise click.UsageError(
            f"Files and --reference-label name {listing(sorted(said, key=str))} as OLD."
        )
    if not said and "reference" not in labels:
        raise click.UsageError(f"Say with --reference-label which is OLD: {listing(labels, 12)}.")
    kind = FittedSites if len(labels) == 2 else FittedManySites
    return kind(arguments, {**options, "parts": parts, "reference_label": given})


def reveal(path: str, as_json: bool) -> Any:
    """Return what a statistics file reveals, as a record or in plain words."""
    place = sys.stdin.buffer if path == "-" else path
    facts = facts_of(*document_of(place, Statistics))
    return facts if as_json else words(facts, MIN_POWERS)


class FittedSites(Fitted):
    """An adapter fitted to the statistics of two domains."""

    def read(self, options: dict[str, Any]) -> Any:  # noqa: D102
        return options["parts"]

    def inputs(self, options: dict[str, Any]) -> list[str]:  # noqa: D102
        return [options["new"], *options["more"]]

    def fit(self, options: dict[str, Any]) -> None:  # noqa: D102
        stats, label = together(self.data), options["reference_label"]
        self.adapter.set_params(reference=label).fit_statistics(stats)
        with quietly():
            self.domains = as_domains(stats, label)

    def verdict(self) -> str:  # noqa: D102
        return "Not evaluated: statistics have no rows on which a map could be judged."


class FittedManySites(FittedSites, FittedBatches):
    """A `BatchAdapter` fitted to the statistics of many domains."""

    def fit(self, options: dict[str, Any]) -> None:  # noqa: D102
        stats, unreachable = together(self.data), "keep" if options["keep_unreachable"] else "raise"
        how = {"reference": options["reference_label"], "unreachable": unreachable}
        self.adapter = BatchAdapter(self.adapter, **how).fit_statistics(stats)
        with quietly():
            self.domains, _ = cells_of(stats)
        self.column = None
