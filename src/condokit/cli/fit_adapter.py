"""The fit of the command line: from options to a fitted adapter, and what is said of it."""

from __future__ import annotations

import warnings
from typing import Any

import click

from condokit.adapter import ConDoAdapter
from condokit.cli.options import DATA
from condokit.cli.printing import tell
from condokit.cli.tables import read_domains
from condokit.data.domains import Domains
from condokit.data.records import plain
from condokit.maps.families import MAPS, LowRank


def fit_adapter(verbose: bool, options: dict[str, Any]) -> tuple[ConDoAdapter, Domains, list[str]]:
    """Read the data, fit the map, and return what was warned of."""
    domains = read_domains(**{name: options[name] for name in DATA})
    adapter = ConDoAdapter(
        _family(options["map_"], options["links"]),
        divergence=options["divergence"],
        shrinkage=_shrinkage(options["shrinkage"]),
        warn_overlap=options["warn_overlap"],
        min_overlap=options["min_overlap"],
        random_state=options["seed"],
        verbose=verbose,
        n_jobs=-1,
    )
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapter.fit_domains(domains)
        if options["n_resamples"]:
            from condokit.trust.bootstrap import bootstrap_domains

            n_resamples, seed = options["n_resamples"], options["seed"]
            bootstrap_domains(adapter, domains, n_resamples, None, verbose, seed)
    for warning in caught:
        text = str(warning.message)
        if issubclass(warning.category, UserWarning) and text not in said:
            said.append(text)
            tell(f"warning: {text}")
    return adapter, domains, said


def fit_record(
    adapter: ConDoAdapter, output: str, report_path: str | None, said: list[str]
) -> dict[str, Any]:
    """Return what was fitted and written, for machines."""
    affine = adapter.map_
    return {
        "map": output,
        "report_path": report_path,
        "kind": affine.kind,
        "n_features": affine.n_features_in_,
        "divergence": str(adapter.divergence_),
        "chosen": adapter.report_.get("chosen_map", str(adapter.map)),
        "rows_query": adapter.report_["rows_query"],
        "rows_reference": adapter.report_["rows_reference"],
        "overlap": plain(adapter.overlap_),
        "warnings": said,
    }


def summary(adapter: ConDoAdapter) -> str:
    """Return what was fitted, in a sentence."""
    affine, facts = adapter.map_, adapter.report_
    chosen = ", the simplest that predicts rows as well as any," if "chosen_map" in facts else ""
    return (
        f"A {affine.kind} map of {affine.n_features_in_} features{chosen} "
        f"from {facts['rows_query']:,.0f} query and {facts['rows_reference']:,.0f} reference "
        f"rows; overlap of the confounders {adapter.overlap_.coefficient:.2f}."
    )


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
        found[feature] = kind if kind in ("log", "logit") else _number("--link", kind)
    if name == "low-rank":
        if rank and not rank.isdecimal():
            raise click.UsageError(f"--map {name}:{rank}: the rank must be a whole number.")
        return LowRank(int(rank or 2), links=found or None)
    if rank or name not in MAPS:
        raise click.UsageError(f"--map {name}: links and ranks do not go with it.")
    return MAPS[name](links=found)


def _shrinkage(value: str) -> Any:
    if value == "auto":
        return value
    return None if value.lower() == "none" else _number("--shrinkage", value)


def _number(option: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise click.UsageError(f"{option}: {value!r} is not a number.") from None
