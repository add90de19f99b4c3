"""The report of many sites: how they are connected, and what is known of the map of each."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from condokit.batches.adapter import BatchAdapter
from condokit.data.disclosure import hidden_counts
from condokit.data.records import Sheet, plain
from condokit.data.study import Study
from condokit.maps.profile import profile
from condokit.report import pieces
from condokit.report.pictures import sites_table
from condokit.report.pieces import LEVEL_OF, capital, finding_in_words
from condokit.trust.assess import BatchAssessment
from condokit.trust.evaluation import BatchEvaluation, stacked

_MOST_DENSITIES = 40


def of_sites(
    adapter: BatchAdapter, study: Study, assessment: BatchAssessment, evaluation: BatchEvaluation
) -> dict[str, Any]:
    """Return what is known of the maps of many sites; features by what is left of their shift."""
    report, account, word = adapter.report_, adapter.provenance_, evaluation.verdict
    sentence = f"{evaluation.sentence}. {evaluation.errors}"
    if len(evaluation.evaluations) > 1:
        sentence += " The study's verdict is that of its worst site."
    table, features = list(sites_table(study)), _features(adapter, study, evaluation)
    gaps = [row["missing"] for row in table if row["missing"]]
    first = features.take(pieces.most_shifted(features.columns))
    of_label = {str(label): one for label, one in evaluation.evaluations.items()}
    return {
        "verdict": {"level": LEVEL_OF[word], "word": word, "sentence": capital(sentence)},
        "reference": {"label": str(adapter.reference_), "why": report.why},
        "confounders": account.get("confounders", {}),
        "n_features": study.n_features,
        "batches": list(_batches(adapter, study, evaluation, table)),
        "joint": report.joint,
        "bridges_used": any(one.bridges for one in report.batches.values()),
        "n_bridges": hidden_counts(np.array([study.n_bridges]))[0] if study.n_bridges else None,
        "additions": account.get("additions", ()),
        "sites": table,
        "missing": float(np.mean(gaps)) if gaps else None,
        "has_errors": all(adapter.errors_[label] for label in evaluation.evaluations),
        "findings": [finding_in_words(f) for f in assessment.findings],
        "warnings": account.get("warnings", ()),
        # without the samples themselves, whose names are nobody's business
        "wanted": [line for line in assessment.wanted if not line.startswith(" ")],
        "pairs": list(_pairs(adapter, study).values()),
        "features": features,
        "densities": [*islice(pieces.drawn_densities(of_label, first), _MOST_DENSITIES)],
    }


def used_by_sites(adapter: BatchAdapter) -> dict[str, Any]:
    """Return the parameters of the maps."""
    own = {name: getattr(adapter, name) for name in ("reference", "joint", "unreachable")}
    used = {**adapter.provenance_.get("adapter", {}), **own}
    return {name: plain(value) for name, value in used.items()}


def _pairs(adapter: BatchAdapter, study: Study) -> dict[frozenset[str], dict[str, Any]]:
    """Return the pairs of batches that can be compared, the best first, and steps of paths."""
    steps = [path[:2] for path in adapter.paths_.values() if len(path) > 1]
    unknown = {"overlap": None, "bridges": None, "error": np.inf, "comparable": True}
    edges = [*(adapter.graph_ or adapter.graph(study)[0].edges())]
    edges += [{"batches": step, **unknown} for step in steps]  # to batches that were added later
    on_path, pairs = {frozenset(map(str, step)) for step in steps}, {}
    for edge in sorted(edges, key=lambda edge: edge["error"]):
        key, n = frozenset(both := [*map(str, edge["batches"])]), edge["bridges"]
        if edge["comparable"] and key not in pairs:
            shown = n if n is None else hidden_counts(np.array([n]))[0]
            overlap = None if edge["overlap"] is None else round(edge["overlap"], 3)
            facts = {"batches": both, "overlap": overlap, "bridges": shown}
            pairs[key] = {**edge, **facts, "on_path": key in on_path}
    return pairs


def _batches(
    adapter: BatchAdapter, study: Study, evaluation: BatchEvaluation, table: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield what is known of every batch; one that no path reaches has an empty path."""
    counted = {row["site"]: row for row in table}
    judged = {str(row["batch"]): row for row in evaluation.batches.rows()}  # bridges alone, too
    counts = np.array([float(study.among(b).sum()) for b in range(study.n_domains)])
    rows = dict(zip(map(str, study.labels), hidden_counts(counts)))
    later = [str(one["label"]) for one in adapter.provenance_.get("additions", ())]
    for label in adapter.maps_:
        name, one = str(label), evaluation.evaluations.get(label)
        path = [str(step) for step in adapter.paths_.get(label, ())]
        known = adapter.report_.batches.get(label) if len(path) > 1 else None
        yield {
            "batch": name,
            "rows": rows.get(name),
            "subjects": counted.get(name, {}).get("subjects"),
            "added": name in later,
            "path": path,
            "overlap": None if known is None else known.overlap,
            "bridges": None if known is None else known.bridges,
            "agreement": None if one is None or one.agreement is None else one.agreement.sentence,
            **pieces.judgement(one),
            **{key: value for key, value in judged.get(name, {}).items() if key in pieces.JUDGED},
        }


def _features(adapter: BatchAdapter, study: Study, evaluation: BatchEvaluation) -> Sheet:
    """Return all features of all batches: their maps with intervals, and what was found."""
    found = {}
    for label, one in evaluation.evaluations.items():
        maps = _parameters(adapter, study, label).columns
        found[str(label)] = Sheet({**maps, **pieces.of_features(one)})
    return Sheet({"batch": [], "feature": []} | stacked(found).columns)


def _parameters(adapter: BatchAdapter, study: Study, label: Any) -> Sheet:
    """Return what the map of a batch adds at the mean, its scales and offsets, with intervals."""
    own, errors = study.labels.index(label), adapter.errors_[label]
    mine = profile(study.pair(own, own), hidden=True)  # nothing of too few rows
    affine = adapter.maps_[label].with_origin(mine)
    columns = {"feature": study.tables[0].labels, **pieces.parameters(affine, errors)}
    if errors is not None:
        columns["change_sd_error"] = errors.of_mapped(mine.mean[None], affine)[0] / mine.sd
    return Sheet(columns)
