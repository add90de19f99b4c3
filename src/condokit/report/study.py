"""The page of a study of many batches: what is known of all maps, and where they are drawn."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from condokit.batches.adapter import BatchAdapter
from condokit.data.disclosure import hidden_counts, size_of
from condokit.data.records import Sheet, plain
from condokit.data.study import Study
from condokit.maps.profile import profile
from condokit.report.contents import LEVEL_OF, capital, parameters, reproduce, tidy, told_finding
from condokit.report.pictures import pictured, sites_table
from condokit.report.render import page
from condokit.trust.assess import BatchAssessment, assess
from condokit.trust.evaluate import evaluate
from condokit.trust.evaluation import BatchEvaluation, Evaluation, stacked

FORMAT, SCHEMA = "condokit-study", 1
_MOST_CHANGED = 100  # features of a batch
_WHEN = ("before", "after")
_JUDGED = (
    *("verdict", "doubts", "better_features"),
    *(f"error_{when}" for when in _WHEN),
    *(f"{when}_{end}" for when in _WHEN for end in ("low", "high")),
)
_ENDS = ("", "_low", "_high")
_OF_FEATURE = ("verdict", *(f"error_{when}{end}" for when in _WHEN for end in _ENDS))
_ARE = {"better": "are better", "no change needed": "need no change"}
_ARE |= {"cannot tell": "cannot be told", "worse": "are worse"}
_COLUMN, _ROW, _LOW_ROW, _MANY = 230, 46, 30, 10  # of the picture: pixels, and batches in a column


def build_study(
    adapter: BatchAdapter,
    study: Study,
    *,
    assessment: BatchAssessment | None = None,
    evaluation: BatchEvaluation | None = None,
    command: str | None = None,
    inputs: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Gather what is known of the maps of a study; the parameters are those of `build`."""
    assessment = assessment or assess(study, adapter=adapter)
    evaluation = evaluation or evaluate(adapter, study)
    report, account, word = adapter.report_, adapter.provenance_, evaluation.verdict
    pairs, names = _pairs(adapter, study), ("reference", "joint", "unreachable")
    used = {**account.get("adapter", {}), **{n: getattr(adapter, n) for n in names}}
    sentence = f"{evaluation.sentence}. {evaluation.errors} The study's verdict is that of its "
    sentence += "worst site."
    table, words = list(sites_table(study)), evaluation.features.columns.get("verdict", [])
    told = [f"{words.count(w)} {_ARE[w]}" for w in _ARE if w in words]
    gaps = [row["missing"] for row in table if row["missing"]]
    record = {
        "format": FORMAT,
        "schema": SCHEMA,
        "verdict": {"level": LEVEL_OF[word], "word": capital(word), "sentence": capital(sentence)},
        "reference": {"label": str(adapter.reference_), "why": report.why},
        "confounders": account.get("confounders", {}),
        "n_features": study.n_features,
        "joint": report.joint,
        "bridges_used": any(one.bridges for one in report.batches.values()),
        "n_bridges": hidden_counts(np.array([study.n_bridges]))[0] if study.n_bridges else None,
        "additions": account.get("additions", ()),
        "sites": table,
        "missing": float(np.mean(gaps)) if gaps else None,
        "counted": ", ".join(told),
        "leave_alone": {str(k): names for k, names in evaluation.leave_alone.items() if names},
        "pictures": pictured(evaluation.pictures),
        "features": _features(adapter, study, evaluation).to_dict(),
        "has_errors": all(adapter.errors_[label] for label in evaluation.evaluations),
        "findings": [told_finding(f) for f in assessment.findings],
        "warnings": account.get("warnings", ()),
        # without the samples themselves, whose names are nobody's business
        "wanted": [line for line in assessment.wanted if not line.startswith(" ")],
        "batches": list(_batches(adapter, study, evaluation, pairs)),
        "pairs": list(pairs.values()),
        "reproduce": reproduce({n: plain(value) for n, value in used.items()}, command, inputs),
    }
    return tidy(plain(record))


def render_study(record: dict[str, Any]) -> str:
    """Return one self-contained HTML page for a study of many batches.

    Parameters
    ----------
    record : dict
        What `save` returned for a `BatchAdapter`, or the same read from JSON.

    Returns
    -------
    str
        The page.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from condokit import BatchAdapter, report
    >>> X, batch = np.random.default_rng(0).normal(size=(60, 1)), np.repeat(["A", "B"], 30)
    >>> adapter = BatchAdapter(reference="A").fit(X, batch=batch)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     record = report.save(Path(folder, "study.html"), adapter, X, batch=batch)
    >>> report.render_study(record)[:15]
    '<!DOCTYPE html>'
    """
    return page("study.html.jinja", **record, graph=_placed(record))


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
    adapter: BatchAdapter, study: Study, evaluation: BatchEvaluation, pairs: dict[Any, Any]
) -> Iterator[dict[str, Any]]:
    """Yield what is known of every batch; one that no path reaches has an empty path."""
    judged = {str(row["batch"]): row for row in evaluation.batches.rows()}
    counts = np.array([float(study.among(b).sum()) for b in range(study.n_domains)])
    rows = dict(zip(map(str, study.labels), hidden_counts(counts)))
    subjects = {row["site"]: row["subjects"] for row in sites_table(study)}
    later = [str(one["label"]) for one in adapter.provenance_.get("additions", ())]
    for label in adapter.maps_:
        name, one = str(label), evaluation.evaluations.get(label)
        path, found = [str(step) for step in adapter.paths_.get(label, ())], judged.get(name, {})
        known = adapter.report_.batches.get(label) if len(path) > 1 else None
        yield {
            "batch": name,
            "rows": rows.get(name),
            "subjects": subjects.get(name),
            "added": name in later,
            "path": path,
            "overlap": None if known is None else known.overlap,
            "bridges": None if known is None else hidden_counts(np.array([known.bridges]))[0],
            **{key: found.get(key) for key in _JUDGED},
            "sentence": "" if one is None else one.sentence,
            "counted": "" if one is None else one.counted,
            "agreement": None if one is None or one.agreement is None else one.agreement.sentence,
            "tolerances": [] if one is None else list(one.tolerances.rows()),
            "findings": [] if one is None else [told_finding(f) for f in one.findings],
            "versions": {} if one is None else one.versions,
            "changed": [] if one is None else _changed(adapter, study, label, one),
        }


def _features(adapter: BatchAdapter, study: Study, evaluation: BatchEvaluation) -> Sheet:
    """Return all features of all batches: their maps with intervals, and what was found."""
    found = {}
    for label, one in evaluation.evaluations.items():
        maps = _parameters(adapter, study, label).columns
        found[str(label)] = Sheet({**maps, **one.features.columns})
    return stacked(found)


def _parameters(adapter: BatchAdapter, study: Study, label: Any) -> Sheet:
    """Return what the map of a batch adds at the mean, its scales and offsets, with intervals."""
    own, errors = study.labels.index(label), adapter.errors_[label]
    mine = profile(study.pair(own, own), hidden=True)  # nothing of too few rows
    affine = adapter.maps_[label].with_origin(mine)
    columns = {"feature": study.tables[0].labels, **parameters(affine, errors)}
    if errors is not None:
        columns["change_sd_error"] = errors.of_mapped(mine.mean[None], affine)[0] / mine.sd
    return Sheet(columns)


def _changed(
    adapter: BatchAdapter, study: Study, label: Any, found: Evaluation
) -> list[dict[str, Any]]:
    """Return the features that change most at the mean, in standard deviations of the batch."""
    sheet = _parameters(adapter, study, label)
    told = {n: v for n, v in found.features.columns.items() if n in _OF_FEATURE}
    size = np.abs(np.array(sheet["change_sd"], dtype=float))
    shown = np.argsort(-size)[: min(_MOST_CHANGED, (size >= 0).sum())]
    return [*Sheet({**sheet.columns, **told}).take(shown).rows()]


def _placed(record: dict[str, Any]) -> dict[str, Any]:
    """Place batches in columns by steps to the reference, beside the next on their path."""
    batches = record["batches"]
    n_steps = max(len(one["path"]) for one in batches)
    columns = [[one for one in batches if len(one["path"]) == k + 1] for k in range(n_steps)]
    columns += [lost] if (lost := [one for one in batches if not one["path"]]) else []
    longest, most = max(map(len, columns)), max(size_of(one["rows"] or 0)[0] for one in batches)
    row = _ROW if longest <= _MANY else _LOW_ROW
    at: dict[str | None, dict[str, float]] = {None: {"y": 24 + row * longest / 2}}
    for k, column in enumerate(columns):
        nexts = [(*one["path"], None)[min(len(one["path"]), 1)] for one in column]
        last, end = -np.inf, at[None]["y"] + row * (longest / 2 - len(column) - 0.5)
        order = sorted(range(len(column)), key=lambda i: at[nexts[i]]["y"])
        for place, i in enumerate(order, 1):
            beside = at[nexts[i]]["y"] - row * (nexts.count(nexts[i]) - 1) / 2
            last = min(max(beside, last + row, 24 + row / 2), end + row * place)
            radius = 4 + 7 * (size_of(column[i]["rows"] or 0)[0] / (most or 1)) ** 0.5
            at[column[i]["batch"]] = {"x": 20 + _COLUMN * k, "y": last, "r": radius}
    size = {"column": _COLUMN, "width": _COLUMN * len(columns) - 80, "height": 40 + row * longest}
    return {"at": at, **size}
