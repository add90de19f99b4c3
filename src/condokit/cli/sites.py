"""Sites that share statistics: gathered from files in batches, and fitted without rows."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from click import UsageError

from condokit.checks import listing
from condokit.cli.outputs import load_map, tell
from condokit.cli.tables import confounder_kinds, kind_of, open_source, roles_of
from condokit.data.measurements import reasons_in_words
from condokit.io.formats import arrow, check_names, is_number
from condokit.io.progress import watched
from condokit.statistics.domains import merge_parts
from condokit.statistics.file import MIN_POWERS, document_of
from condokit.statistics.gather import Statistics, heavy_features
from condokit.statistics.reveals import facts_of, words

pa = arrow()
_SAID = "reference domain query_label batch confounders features weights reliability"
_NEED_ROWS = "report table adapted n_resamples controls links groups bridge tolerance imprecision"


def gather(paths: tuple[str, ...], **options: Any) -> Statistics:
    """Gather the statistics of files, of which a batch at a time is in memory."""
    if (options["domain"] is None) == (options["label"] is None):
        raise UsageError("Give --domain COLUMN, the domain of each row, or --label NAME for all.")
    if len(set(paths)) < len(paths):
        raise UsageError("A table is named twice, so that its rows would count twice.")
    options["ranges"] = _ranges(options["ranges"])
    given = options.pop("given")
    known = None if given is None else load_map(given, of_batches=True)
    stats, numbers, parts = None, set[str](), list[Any]()
    for path in paths:
        for rows, roles in _rows(path, stats, numbers, options):
            if known is not None:
                parts.append(rows)
            if stats is None:
                stats = Statistics.of(rows, label=options["label"], **roles)
                names, left = stats.feature_names or [], stats.left
                tell(f"Features ({len(names)}): {listing(names, 10)}.", False)
                if left:
                    tell(f"Left alone: {reasons_in_words(left)}. Choose features with -f.", False)
            else:
                stats.update(rows)
    assert stats is not None
    _refuse_undeclared(stats, numbers)
    return stats if known is None else _second_round(stats, known, parts)


def _second_round(stats: Statistics, known: Any, parts: list[Any]) -> Statistics:
    """Add the values of features that a fit of the first round found to have heavy tails."""
    features = heavy_features(known, stats)
    if not len(features):
        tell("The map of --given was fitted without heavy tails: nothing more is needed.", False)
        return stats
    return stats.with_values(parts[0] if len(parts) == 1 else pa.concat_tables(parts), features)


def _rows(
    path: str, stats: Statistics | None, numbers: set[str], options: dict[str, Any]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the rows of a file, and the roles of columns; note which confounders are numbers."""
    domain, ranges = options["domain"], options["ranges"]
    source = open_source(path, options, domain, large=path != "-")
    if stats is not None:
        check_names(path, source.names, stats.feature_names or ())
        options = options | {"features": tuple(stats.feature_names or ())}
    roles = roles_of([source], options, domain)
    confounders, declared = roles.confounders or [], set(roles.categorical or ())
    if strange := [name for name in ranges if name not in confounders or name in declared]:
        raise UsageError(f"--range: {listing(strange)} is not a numeric confounder of -c.")
    how: dict[str, Any] = {"domain": domain, "confounders": confounders or None, "ranges": ranges}
    how |= {"features": roles.features, "categorical": roles.categorical}
    how |= {"sample_weight": roles.sample_weight, "missing": roles.missing}
    how["reference"] = options["reference_label"]
    if source.is_annotated:
        yield source.table(source.names), how
        return
    source.types |= dict.fromkeys(ranges, pa.float64())
    undeclared = set(confounders) - declared - set(source.types)
    numbers.update(n for n in undeclared if is_number(kind_of(source.schema.field(n).type)))
    n_rows = 0
    for part in watched(source.parts(source.names), source.n_rows):
        n_rows += len(part)
        yield source.prepared(part), how
    if not n_rows:
        raise ValueError(f"{path} has no rows.")


def _refuse_undeclared(stats: Statistics, numbers: set[str]) -> None:
    """Refuse numbers of which nobody said that they are categories, if these are more than two."""
    names = stats.categories
    for j, name in enumerate(names, 1):
        if name in numbers and len({cell[j] for cell in stats.cells}) > 2:
            raise UsageError(
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
            raise UsageError(f"--range {value}: write NAME=LOW:HIGH, for example age=18:95.")
        found[name] = low, high
    return found


def are_statistics(new: str, more: tuple[str, ...], reference: str | None = None) -> bool:
    """Return whether a fit has statistics in place of rows, of all sites or of OLD alone."""
    found = {path.endswith(".json") for path in (new, *more)}
    if len(found) > 1:
        raise UsageError(
            "Give tables, or statistics files alone (.json). OLD may be such a file beside a table "
            "NEW: condokit fit new.csv --reference old.json."
        )
    return new.endswith(".json") or (reference or "").endswith(".json")


def read_sites(options: dict[str, Any]) -> tuple[list[Statistics], Any]:
    """Return the statistics of files, and the label of the reference."""
    beside = not options["new"].endswith(".json")
    said = {"reference", "confounders", "features", "weights"} if beside else set[str]()
    for refused, why in ((_SAID, "was said when they were made"), (_NEED_ROWS, "needs rows")):
        for key in refused.split():
            if options.get(key) and key not in said:
                name = {"n_resamples": "bootstrap", "links": "link"}.get(key, key)
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option} cannot be used with statistics files: it {why}.")
    if beside:
        old = Statistics.load(options["reference"])
        parts = [_gathered_like(old, options), old]
        if options["reference_label"] is None and len(old.labels) == 1:
            options = options | {"reference_label": str(old.labels[0])}
    else:
        parts = [Statistics.load(path) for path in (options["new"], *options["more"])]
    labels = list(dict.fromkeys(label for part in parts for label in part.labels))
    given = options["reference_label"]
    given = next((label for label in labels if str(label) == given), given)  # 1 is written "1"
    names = {given, *(part.reference for part in parts)} - {None, ""}
    if len(labels) < 2:
        merge_parts(parts)  # which says if one was given twice
        raise ValueError(f"All statistics are of {listing(labels)}: there is nothing to compare.")
    if len(names) > 1:
        raise UsageError(
            f"Files and --reference-label name {listing(sorted(names, key=str))} as OLD."
        )
    if not names and "reference" not in labels:
        raise UsageError(f"Say with --reference-label which is OLD: {listing(labels, 12)}.")
    return parts, given


def _gathered_like(old: Statistics, options: dict[str, Any]) -> Statistics:
    """Gather the statistics of NEW, of the features and confounders that those of OLD have."""
    path, kinds = options["new"], old.confounders
    if options["more"]:
        raise UsageError("--reference cannot be used with one table per batch.")
    given = confounder_kinds(options["confounders"], list(kinds), {})
    if given and {*given} != {*kinds}:
        text = f"{options['reference']} has the confounders {listing(kinds)}, which NEW needs, too."
        raise UsageError(f"{text} Got -c {','.join(given)}.")
    marks = (f"{name}{':cat' if kind == 'categorical' else ''}" for name, kind in kinds.items())
    label = "new" if path == "-" else Path(Path(path).name.removesuffix(".gz")).stem
    said: dict[str, Any] = {"domain": None, "confounders": tuple(marks)}
    said |= {"label": f"{label} (new)" if label in old.labels else label}
    said |= {"features": tuple(old.feature_names or ())}
    said |= {"ranges": tuple(f"{n}={low}:{high}" for n, (low, high) in old.ranges.items())}
    return gather((path,), **{**options, **said, "reference_label": None, "given": None})


def reveal(path: str, as_json: bool, previous: tuple[str, ...] = ()) -> Any:
    """Return what a statistics file reveals, as a record or in plain words."""
    place = sys.stdin.buffer if path == "-" else path
    earlier = [(name, Statistics.load(name)) for name in previous]
    facts = facts_of(*document_of(place, Statistics), earlier)
    return facts if as_json else words(facts, MIN_POWERS)
