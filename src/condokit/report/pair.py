"""The report of two domains: how they were compared, the map between them, and how it was found."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from condokit.adapter import ConDoAdapter
from condokit.checks import listing, said
from condokit.data.arrays import sides
from condokit.data.disclosure import hidden_counts, hidden_overlap, rounded_beside, shares_of_few
from condokit.data.records import LEVELS, Finding, Sheet
from condokit.data.study import Study
from condokit.maps.affine import AffineMap
from condokit.maps.monotone import drawn_curves
from condokit.maps.provenance import setting
from condokit.report import pieces
from condokit.report.pieces import LEVEL_OF, capital, finding_in_words
from condokit.trust.assess import Assessment
from condokit.trust.evaluation import Evaluation
from condokit.trust.sensitivity import degrees_of_freedom, hidden_bounds, robustness_value

_MOST_NOTES = 100  # features that are described in words
_MOST_ENTRIES = 20  # of a matrix
_MOST_CURVES = 12
_COUNTED = ("missing_features", "constant_features")
_LARGE_MATRIX = 2000  # features beyond which no square array is formed
_NOT_HERE = ("reference", "verbose")  # of parameters
_HIDDEN = ("hidden_10", "hidden_like")  # bounds of all features; others are multiples of the first
_NOT_POSSIBLE = (
    "These data do not allow a comparison of like with like: do not use the map before the "
    "findings are resolved."
)
_NOT_EVALUATED = (
    "The map joins different features, so that what it leaves of the shift cannot be measured here."
)


def of_pair(
    adapter: ConDoAdapter,
    domains: Study,
    assessment: Assessment | None,
    evaluation: Evaluation | None,
) -> dict[str, Any]:
    """Return what is known of two domains; features by what is left of their shift."""
    affine, strongest = adapter.map_, ""
    outward = inward = [str(name) for name in affine.feature_names or domains.tables[0].labels]
    if affine.is_rectangular:
        outward = [str(name) for name in affine.outputs(domains.tables[0].columns) or ()]
    columns = {"feature": outward, **pieces.parameters(affine, adapter.errors_)}
    if not affine.is_rectangular:
        hidden, strongest = hidden_bounds(domains, affine)
        kept = [name for name in _HIDDEN if name in hidden.columns]
        columns |= {name: [float(f"{bound:.2g}") for bound in hidden[name]] for name in kept}
    features = Sheet(columns)
    if evaluation is not None:
        found = pieces.of_features(evaluation)
        order = pieces.most_shifted(found)
        features = Sheet(columns | found | {"feature": outward}).take(order)
    compared = _compared(adapter, domains)
    query, reference = compared["query"], compared["reference"]
    overlap = None if assessment is None else assessment.overlap
    return {
        "verdict": verdict(assessment, evaluation),
        "reference": {"label": reference, "why": f"{reference}, as asked for"},
        "confounders": compared["kinds"],
        "n_features": compared["n_features"],
        "batches": [
            {"batch": reference, "rows": compared["n_reference"], "path": [reference]}
            | pieces.judgement(None),
            {"batch": query, "rows": compared["n_query"], "path": [query, reference]}
            | {"overlap": None if overlap is None else overlap.coefficient}
            | pieces.judgement(evaluation),
        ],
        "compared": compared,
        "findings": _findings(adapter, assessment, evaluation),
        "wanted": [] if assessment is None else assessment.wanted,
        "assessment": None if assessment is None else _assessment(assessment),
        "map": _map(adapter, inward, outward),
        "fit": _fit(adapter),
        "uncertainty": {**_uncertainty(adapter), "strongest": strongest},
        "features": features,
        "densities": [*pieces.drawn_densities({None: evaluation}, features)] if evaluation else [],
    }


def used_by_pair(adapter: ConDoAdapter, domains: Study) -> dict[str, Any]:
    """Return the parameters with what "auto" and None stood for."""
    facts, recipe = adapter.report_, adapter.chosen_.recipe
    used = {
        **{k: v for k, v in adapter.get_params(deep=False).items() if k not in _NOT_HERE},
        "shrinkage": adapter.shrinkage,
        "divergence": adapter.divergence_,
        "conditional": None if recipe.needs == "rows" else adapter.conditional_,
        "prior": adapter.prior if "prior" in recipe.divergence.uses(recipe.family) else None,
        "categorical": [c.name for c in domains.confounders if not c.is_number],
        "random_state": adapter.random_state or 0,
        "n_jobs": adapter.n_jobs or 1,
    }
    if adapter.map == "auto":
        used["map"] = f"auto: {facts.get('chosen_map', adapter.chosen_.name)}"
    if adapter.shrinkage == "auto" and "kept_shift" in facts:
        text = "auto: {kept_shift:.0%} of the estimated shifts and {kept_log_scale:.0%} of the "
        used["shrinkage"] = f"{text}log-scales were kept".format(**facts)
    return {name: setting(value) for name, value in used.items()}


def verdict(assessment: Assessment | None, evaluation: Evaluation | None) -> dict[str, str]:
    """Say in a sentence whether the mapped data may be used."""
    if assessment is not None and assessment.verdict == "not possible":
        return {"level": "poor", "word": "not possible", "sentence": _NOT_POSSIBLE}
    if evaluation is None:
        return {"level": "care", "word": "not evaluated", "sentence": _NOT_EVALUATED}
    word = evaluation.verdict
    sentence = capital(evaluation.sentence.split(": ", 1)[1])
    return {"level": LEVEL_OF[word], "word": word, "sentence": sentence}


def _uncertainty(adapter: ConDoAdapter) -> dict[str, Any]:
    dof, errors, how = degrees_of_freedom(adapter), adapter.errors_, "none"
    if errors is not None:
        how = "resampled" if errors.is_drawn else "formula"
    strengths = (robustness_value(errors, dof) for errors in (1.0, 2.0))
    return {"how": how, **dict(zip(("strength_one_error", "strength_two_errors"), strengths))}


def _compared(adapter: ConDoAdapter, domains: Study) -> dict[str, Any]:
    totals = {s: int((mine & domains.kept()).sum()) for s, mine in sides(domains.is_query)}
    compared = {side: adapter.report_.get(f"rows_{side}", total) for side, total in totals.items()}
    return {
        **{side: str(label) for side, label in zip(totals, domains.labels)},
        **{f"n_{side}": total for side, total in totals.items()},
        **{f"rows_{s}": rounded_beside(compared[s], total) for s, total in totals.items()},
        "n_features": domains.n_features,
        "confounders": [c.name for c in domains.confounders],
        "noisy": [] if domains.noise is None else list(domains.noise.shares),
        "kinds": dict(adapter.map_.provenance or {})["confounders"],
        "left_out": list(_left_out(adapter, domains, totals)),
        "subjects": None if domains.groups is None else len(np.unique(domains.groups)),
        "weighted": domains.weights is not None,
    }


def _left_out(adapter: ConDoAdapter, domains: Study, totals: dict[str, int]) -> Iterator[Any]:
    """Yield why rows were left out, and how many of each domain as far as that may be told."""
    out, weights, support = ~domains.kept(), domains.weights, adapter.support_
    empty = np.zeros(len(out), dtype=bool)
    for rows, chunk in () if domains.gaps is None else domains.chunks():
        empty[rows] = out[rows] & np.isnan(chunk).all(axis=1)
    why = [f"no value of {listing(domains.missing)}"] if adapter.missing == "drop" else []
    why += ["a weight of zero"] if weights is not None and not weights.all() else []
    counts = [
        (reason, [int((rows & mine).sum()) for _, mine in sides(domains.is_query)])
        for reason, rows in (("no value of any feature", empty), (" or ".join(why), out & ~empty))
    ]
    alone = [sum(row[f"n_{side}"] for row in support.dropped) for side in totals]
    names = ("(rare)" if v == "(rare)" else ", ".join(map(str, v)) for v in support.left_out())
    counts.append((f"confounder values in one data set only: {listing(names)}", alone))
    if domains.gaps is not None and weights is None:
        rest = [totals[s] - adapter.report_[f"rows_{s}"] - n for s, n in zip(totals, alone)]
        counts.append(("a feature without a value, where this map needs all of them", rest))
    for reason, both in counts:
        if any(both):
            shown = (hidden_counts(np.array([n]))[0] for n in both)
            yield {"because": reason, **dict(zip(totals, shown))}


def _findings(
    adapter: ConDoAdapter, assessment: Assessment | None, evaluation: Evaluation | None
) -> list[dict[str, str]]:
    """Gather what was found, the gravest first, with where it was found."""
    parts = {
        "after the map": [] if evaluation is None else evaluation.findings,
        "the data": [] if assessment is None else assessment.findings,
        "the fit": list(_of_fit(adapter)),
    }
    found: dict[str, dict[str, str]] = {}  # by text: what is said of the data may be said again
    for about, findings in parts.items():
        for f in findings:
            one = {"about": about, **finding_in_words(f)}
            found.setdefault(one["text"], one)
    return sorted(found.values(), key=lambda finding: LEVELS.index(finding["level"]))


def _of_fit(adapter: ConDoAdapter) -> Iterator[Finding]:
    facts = adapter.report_
    if "fallback" in facts:
        yield Finding("care", said("another map than asked for: {why}.", why=facts["fallback"]))
    if facts.get("interrupted"):
        yield Finding("care", "the search was interrupted.", "Fit again to the end.")
    if dropped := adapter.support_.dropped:
        text = "combinations of confounder values that occur in one data set only, and are not "
        yield Finding("note", f"{text}compared: {len(dropped)}.")


def _assessment(assessment: Assessment) -> dict[str, Any]:
    record = assessment.to_dict()
    del record["findings"]
    if record["overlap"] is not None:
        rows, sheet = (assessment.n_query, assessment.n_reference), record["confounders"]
        for name in shares_of_few(record["overlap"]["outside"], rows[0]):  # they tell how many
            sheet["outside"][sheet["confounder"].index(name)] = None
        record["overlap"] = hidden_overlap(record["overlap"], *rows)
    record["n_notes"] = len(assessment.features)
    record["features"] = assessment.features.take(range(record["n_notes"])[:_MOST_NOTES])
    return record


def _map(adapter: ConDoAdapter, inward: list[str], outward: list[str]) -> dict[str, Any]:
    affine = adapter.map_
    record: dict[str, Any] = {
        "kind": affine.kind,
        "n_in": affine.n_features_in_,
        "n_out": affine.shape[0],
        "links": sum(link is not None for link in affine.links or ()),
        "has_intervals": affine.kind in ("diagonal", "monotone") and adapter.errors_ is not None,
    }
    if affine.kind == "monotone":
        facts = adapter.report_
        drawn = drawn_curves(affine, adapter.errors_, facts.get("bent"), _MOST_CURVES)
        return record | {"curves": drawn, "n_bent": len(facts.get("bent_features", []))}
    if affine.kind == "diagonal":
        scale = np.abs(affine.scale)
        return record | {"smallest_scale": scale.min(), "largest_scale": scale.max()}
    if affine.left is not None:
        record["rank"] = affine.left.shape[1]
    if affine.n_features_in_ <= _LARGE_MATRIX:
        record["condition"] = float(np.linalg.cond(affine.A))
        record["entries"] = _largest(affine, inward, outward)
    return record


def _largest(affine: AffineMap, inward: list[str], outward: list[str]) -> dict[str, Any]:
    """Return entries that move outputs most for a standard deviation, but of a feature itself."""
    A = affine.A
    sd = np.ones(A.shape[1]) if affine.fitted_on is None else affine.fitted_on.sd
    size = np.abs(A * sd)
    if not affine.is_rectangular:
        size = size / np.maximum(sd, 1e-300)[:, None]
        np.fill_diagonal(size, 0.0)
    largest = np.argsort(-size, axis=None, kind="stable")[:_MOST_ENTRIES]
    to, origin = np.unravel_index(largest[size.ravel()[largest] > 0], A.shape)
    return {
        "from": [inward[j] for j in origin],
        "to": [outward[i] for i in to],
        "entry": A[to, origin],
        "standardised": np.sign(A[to, origin]) * size[to, origin],
    }


def _fit(adapter: ConDoAdapter) -> dict[str, Any]:
    """Return how the map was chosen and found; counts of single features are summed up."""
    report, plain = adapter.report_, str | bool | int | float | np.number
    facts = {name: len(report[name]) for name in _COUNTED if name in report}
    others = (name for name in report if name not in ("rows_query", "rows_reference"))  # elsewhere
    facts |= {name: report[name] for name in others if isinstance(report[name], plain)}
    return {
        "divergence": setting(adapter.divergence_),
        "conditional": setting(adapter.conditional_),
        "ladder": report.get("ladder", []),
        "chosen": report.get("chosen_map", adapter.chosen_.name),
        "map": dict(adapter.map_.provenance or {})["map"],
        "by_rows": adapter.chosen_.recipe.needs == "rows",
        "facts": facts,
    }
