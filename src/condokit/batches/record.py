"""What is known of the maps of many batches: facts that print, and that go into their file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from condokit.batches.graph import Graph
from condokit.checks import Note
from condokit.data.disclosure import hidden_counts
from condokit.data.study import Study
from condokit.divergences import DIVERGENCES
from condokit.fit.record import account
from condokit.io.schema import refuse_if, shown
from condokit.maps import file as mapfile
from condokit.maps.families import MAPS
from condokit.maps.provenance import frozen

ERRORS = ("error_before", "error_after")
_FIGURES = ("overlap", "bridges", *ERRORS)


def plain(label: Any) -> Any:
    """Return a label as a file can hold it."""
    label = label.item() if hasattr(label, "item") else label
    return label if isinstance(label, str | int | float | bool) else str(label)


@dataclass(frozen=True)
class BatchFacts:
    """What is known of one batch: figures that the report tells."""

    rows: Any  #: Number of rows; hidden if they are few.
    path: list[Any]  #: Labels from the batch to the reference.
    overlap: float  #: With the next batch on the path.
    bridges: int  #: With the next batch on the path.
    error_before: float  #: Expected systematic error of a value, in sd of the reference.
    error_after: float  #: The same after the map.


@dataclass(frozen=True)
class BatchReport:
    """Facts of a fit of many batches."""

    reference: Any  #: The batch that was mapped to.
    why: str  #: How it came about.
    joint: bool  #: Whether all batches were estimated together.
    batches: dict[Any, BatchFacts]  #: Facts of every batch by its label.
    unreachable: list[Any]  #: Labels of batches that no path reaches.
    facts: dict[str, Any]  #: Facts of the fit.

    @classmethod
    def told(
        cls, reference: Any, provenance: Mapping[str, Any], labels: Sequence[Any]
    ) -> "BatchReport":
        """Return what a file tells of batches with some labels; refuse paths that lead nowhere."""
        facts: dict[Any, BatchFacts] = {}
        for one in provenance.get("batches", ()):
            rest: Any = (float("nan") if one[name] is None else one[name] for name in _FIGURES)
            facts[one["label"]] = BatchFacts(one["rows"], list(one["path"]), *rest)
        lost, why = provenance.get("unreachable", ()), provenance.get("reference", "")
        for label, known in facts.items():
            on = known.path[1:]
            is_known = label in labels and known.path[:1] == [label] and label not in lost
            nowhere = on and (on[0] not in facts or facts[on[0]].path != on)
            text = f"'provenance.batches' has no path from {shown(label)} to the others."
            refuse_if(nowhere or not is_known, text)
        refuse_if(set(lost) - set(labels), "'provenance.unreachable' names what is no batch.")
        return cls(reference, why, provenance.get("joint", False), facts, list(lost), {})

    def plain(self) -> list[dict[str, Any]]:
        """Return what a file may tell of every batch."""
        return [
            {
                "label": plain(label),
                "rows": one.rows,
                "path": [plain(step) for step in one.path],
                "overlap": one.overlap,
                "bridges": one.bridges,
                **{n: e if (e := getattr(one, n)) == e else None for n in ERRORS},
            }
            for label, one in self.batches.items()
        ]

    def __str__(self) -> str:
        lines = [
            f"{'batch':<16}{'rows':>7}{'overlap':>9}{'bridges':>9}{'before':>8}{'after':>8}  path"
        ]
        for label, one in self.batches.items():
            name = str(label) if len(str(label)) < 16 else f"{str(label)[:14]}…"
            line = f"{name:<16}{one.rows!s:>7}{one.overlap:>9.2f}{one.bridges:>9}"
            line += f"{one.error_before:>8.2f}{one.error_after:>8.2f}  "
            lines.append(line + " > ".join(map(str, one.path)))
        lines += [f"{label}: left as it is, no path to the reference" for label in self.unreachable]
        return "\n".join([*lines, f"reference: {self.why}; errors in sd of the reference"])


def with_errors(facts: BatchFacts, expected: Sequence[float]) -> BatchFacts:
    """Return facts with other expected errors, before and after, rounded as all doors say them."""
    before, after = (round(e, 4) for e in expected)
    return replace(facts, error_before=before, error_after=after)


def facts_of(
    graph: Graph, paths: dict[int, list[int]], expected: Mapping[int, tuple[float, float]]
) -> dict[Any, BatchFacts]:
    """Return what is known of every batch that has a path, by label."""
    facts, labels = {}, graph.study.labels
    for b, path in sorted(paths.items()):
        with_next = 1.0, 0
        if path[1:]:
            overlap = round(graph.overlap(b, path[1]), 3)  # once, so that all doors say the same
            with_next = overlap, int(graph.bridges[b, path[1]])
        rows, names = hidden_counts(graph.rows[[b]])[0], [labels[k] for k in path]
        errors = expected.get(b, (float("nan"), float("nan")))
        known = BatchFacts(rows, names, *with_next, *errors)
        facts[labels[b]] = with_errors(known, errors)
    return facts


def account_of_batches(
    report: BatchReport, settings: Mapping[str, Any], study: Study, notes: list[Note]
) -> Mapping[str, Any]:
    """Tell how the maps came about, without anything that a file may not give away."""
    facts = {
        "joint": report.joint,
        "reference": report.why,
        "batches": report.plain(),
        "unreachable": [plain(label) for label in report.unreachable],
        "fitted_as_normal": report.facts.get("fitted_as_normal"),
    }
    return account(settings, study, notes, facts)


def with_added(
    known: Mapping[str, Any],
    fitted: Mapping[str, Any],
    report: BatchReport,
    label: Any,
    others: Sequence[Any],
) -> Mapping[str, Any]:
    """Return the account of maps, given that of the fit of one that was added to them later."""
    own = {"label": plain(label), "compared_with": [plain(one) for one in others]}
    own |= {name: fitted[name] for name in ("versions", "confounders", "warnings")}
    changed = {"batches": report.plain(), "additions": [*known.get("additions", ()), own]}
    return frozen({**known, **changed})


def settings_of(provenance: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings of an adapter that a file names; instances are not told by their text."""
    given = dict((provenance or {}).get("adapter", {}))
    named = {"map": (*MAPS, "auto"), "divergence": (*DIVERGENCES, "auto")}
    some = ("shrinkage", "categorical", "missing", "warn_overlap", "min_overlap", "random_state")
    found = {name: given[name] for name in some if given.get(name) is not None}
    if found.get("random_state") == 0:  # as commands have it, where none was asked for
        del found["random_state"]
    if "shrinkage" in given:  # None is a setting of its own
        found["shrinkage"] = given["shrinkage"]
    return found | {n: given[n] for n, known in named.items() if given.get(n) in known}


def maps_of(content: dict[str, Any]) -> dict[Any, Any]:
    """Return the maps in a file, which must be of the same features, by their labels."""
    names, columns, width = content["feature_names"], content.get("columns"), content["n_features"]
    if columns is not None:
        is_wrong = len({*columns}) < len(columns) or max(columns) >= width
        refuse_if(is_wrong, f"'columns' must be different places among {width} columns")
    n_features, maps = width if columns is None else len(columns), dict[Any, Any]()
    for k, one in enumerate(content["batches"]):
        where, label = f"'batches[{k}]'", one["label"]
        refuse_if(label in maps, f"{where} has the label {shown(label)}, as another batch")
        try:
            maps[label] = found = mapfile.CLASSES[one["kind"]].from_dict(one)
        except ValueError as error:
            raise ValueError(f"{where} holds no map: {error}") from None
        text = f"{where} maps {found.shape[1]} features to {found.shape[0]}, not {n_features}"
        refuse_if(found.shape != (n_features, n_features), text)
        text = f"{where} has other 'feature_names' than the file, or in another order"
        refuse_if(one["feature_names"] != names, text)
    return maps
