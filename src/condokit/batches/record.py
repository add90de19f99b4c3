"""Facts about the maps of many batches, for printing and for their file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from condokit.batches.graph import Graph
from condokit.checks import Note
from condokit.data.disclosure import hidden_counts
from condokit.data.study import Study
from condokit.fit.record import account
from condokit.io.schema import refuse_if, shown
from condokit.maps.provenance import frozen

ERRORS = ("error_before", "error_after")
_FIGURES = ("overlap", "bridges", *ERRORS)


def label_for_file(label: Any) -> Any:
    """Return a label as a text, number or bool, which JSON can hold."""
    label = label.item() if hasattr(label, "item") else label
    return label if isinstance(label, str | int | float | bool) else str(label)


@dataclass(frozen=True)
class BatchFacts:
    """Facts about one batch and its map."""

    rows: Any  #: Number of rows; hidden if they are few.
    path: list[Any]  #: Labels from the batch to the reference.
    overlap: float  #: Overlap of confounders with the next batch on the path.
    bridges: Any  #: Bridge samples in common with the next batch on it; hidden if they are few.
    error_before: float  #: Expected systematic error of a value, in sd of the reference.
    error_after: float  #: The same after the map.


@dataclass(frozen=True)
class BatchReport:
    """Facts about a fit of many batches."""

    reference: Any  #: The batch to which all are mapped.
    why: str  #: Why it is that batch.
    joint: bool  #: Whether all batches were estimated together.
    batches: dict[Any, BatchFacts]  #: Facts about every batch by its label.
    unreachable: list[Any]  #: Labels of batches without a path to the reference.
    facts: dict[str, Any]  #: Other facts about the fit.

    def __str__(self) -> str:
        lines = [
            f"{'batch':<16}{'rows':>7}{'overlap':>9}{'bridges':>9}{'before':>8}{'after':>8}  path"
        ]
        for label, one in self.batches.items():
            name = str(label) if len(str(label)) < 16 else f"{str(label)[:14]}…"
            line = f"{name:<16}{one.rows!s:>7}{one.overlap:>9.2f}{one.bridges!s:>9}"
            line += f"{one.error_before:>8.2f}{one.error_after:>8.2f}  "
            lines.append(line + " > ".join(map(str, one.path)))
        lines += [f"{label}: left as it is, no path to the reference" for label in self.unreachable]
        return "\n".join([*lines, f"reference: {self.why}; errors in sd of the reference"])


def report_from_file(
    reference: Any, provenance: Mapping[str, Any], labels: Sequence[Any]
) -> BatchReport:
    """Return the report in a file; raise an error if a path does not lead to the reference."""
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
    return BatchReport(reference, why, provenance.get("joint", False), facts, list(lost), {})


def facts_for_file(report: BatchReport) -> list[dict[str, Any]]:
    """Return the facts about every batch in the form of the file."""
    return [
        {
            "label": label_for_file(label),
            "rows": one.rows,
            "path": [label_for_file(step) for step in one.path],
            "overlap": one.overlap,
            "bridges": one.bridges,
            **{n: e if (e := getattr(one, n)) == e else None for n in ERRORS},
        }
        for label, one in report.batches.items()
    ]


def with_errors(facts: BatchFacts, expected: Sequence[float]) -> BatchFacts:
    """Return facts with other expected errors (before, after), rounded to 8 decimals.

    With fewer, 0.76499 becomes 0.765 here and is printed as 0.77, but elsewhere as 0.76.
    """
    before, after = (round(e, 8) for e in expected)
    return replace(facts, error_before=before, error_after=after)


def facts_of(
    graph: Graph, paths: dict[int, list[int]], expected: Mapping[int, tuple[float, float]]
) -> dict[Any, BatchFacts]:
    """Return facts about every batch with a path, by label."""
    facts, labels = {}, graph.study.labels
    for b, path in sorted(paths.items()):
        with_next = 1.0, 0
        if path[1:]:
            # rounded here, so that the record, the file and the page show the same number
            overlap = round(graph.overlap(b, path[1]), 3)
            with_next = overlap, hidden_counts(graph.bridges[[b], path[1]])[0]
        rows, names = hidden_counts(graph.rows[[b]])[0], [labels[k] for k in path]
        errors = expected.get(b, (float("nan"), float("nan")))
        known = BatchFacts(rows, names, *with_next, *errors)
        facts[labels[b]] = with_errors(known, errors)
    return facts


def account_of_batches(
    report: BatchReport, settings: Mapping[str, Any], study: Study, notes: list[Note]
) -> Mapping[str, Any]:
    """Return how the maps were fitted, as far as a file may disclose it."""
    facts = {
        "joint": report.joint,
        "reference": report.why,
        "batches": facts_for_file(report),
        "unreachable": [label_for_file(label) for label in report.unreachable],
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
    """Return the account of all maps after one was added later, whose fit has its own account."""
    own = {"label": label_for_file(label), "compared_with": [label_for_file(one) for one in others]}
    own |= {name: fitted[name] for name in ("versions", "confounders", "warnings")}
    changed = {"batches": facts_for_file(report), "additions": [*known.get("additions", ()), own]}
    return frozen({**known, **changed})
