"""What reports of two domains and of many are made of: sentences, parameters, evaluations."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from condokit.checks import said
from condokit.data.arrays import NORMAL_95
from condokit.data.records import Finding, Sheet
from condokit.maps.provenance import versions
from condokit.maps.standard_errors import StandardErrors
from condokit.trust.evaluation import Evaluation, errors_of

LEVEL_OF = {"better": "good", "no change needed": "good", "cannot tell": "care", "worse": "poor"}
_OF_ERRORS = ("error_before", "before_low", "before_high", "error_after", "after_low", "after_high")
JUDGED = ("verdict", *_OF_ERRORS, "doubts")  # of a site, everywhere
_NOT_TWICE = ("findings", "features", "densities", "n_query", "n_reference")  # of an evaluation
_OF_PAIRS = ("bias", "lower", "upper", "icc_before", "icc_after", "ccc_before", "ccc_after")
_MOST_DOUBT = 0.5  # standard error of a share of differences kept


def judgement(one: Evaluation | None) -> dict[str, Any]:
    """Return what a batch's row and its details say of what its map leaves."""
    names = "verdict", "sentence", "counted", "leave_alone"
    facts = {name: getattr(one, name, None) for name in names} | errors_of(one)
    words = (facts["counted"] or "").split()
    facts["counted"] = " ".join(f"{int(w):,}" if w.isdigit() else w for w in words) or None
    if one is None:
        return facts | {"doubts": "", "findings": [], "evaluation": None}
    known = {name: value for name, value in one.to_dict().items() if name not in _NOT_TWICE}
    if one.agreement is not None:
        known["agreement"]["concordance"] = one.agreement.concordance()
    real = [e for share, e in _shares(one) if share is not None]
    if not _is_known(one, real):
        known["versions"].pop("kept", None)
    findings = [finding_in_words(f) for f in one.findings]
    return facts | {"doubts": "; ".join(one.doubts), "findings": findings, "evaluation": known}


def of_features(one: Evaluation) -> dict[str, Any]:
    """Return what was found of features, without shares of differences that are mostly noise."""
    kept = [share if _is_known(one, [e]) else None for share, e in _shares(one)]
    limits = {row["feature"]: row for row in one.tolerances.rows()}
    names = ("tolerance", "within", "more_rows") if limits else ()
    asked = [limits.get(feature, {}) for feature in one.features["feature"]]
    columns = {name: [row.get(name) for row in asked] for name in names}
    if one.agreement is not None:  # of samples measured twice, in the same order
        found = one.agreement.features.columns
        columns |= {f"pairs_{name}": found[name] for name in _OF_PAIRS}
    return one.features.columns | columns | ({"kept": kept} if kept else {})


def _shares(one: Evaluation) -> list[tuple[float | None, float]]:
    """Return by feature which share is kept of what difference, in sd, that confounders explain."""
    found = one.features.columns
    return [*zip(found.get("kept", []), found.get("explained_difference", []))]


def _is_known(one: Evaluation, explained: list[float]) -> bool:
    """Return whether the share kept of these differences has a standard error below a half."""
    noise = (1 / max(one.n_query, 1) + 1 / max(one.n_reference, 1)) ** 0.5  # of a difference, sd
    e = np.abs(explained)
    return bool(e.sum() * noise < _MOST_DOUBT * (e @ e))  # features go together


def most_shifted(features: Mapping[str, Any]) -> list[int]:
    """Return rows of a table of features: by what is left of their shift, then by what it was."""
    p, shift = features.get("p_adjusted", []), features.get("shift_before", [])
    rank = [(1.0 if p[k] is None else p[k], -abs(shift[k] or 0.0)) for k in range(len(p))]
    return sorted(range(len(p)), key=rank.__getitem__)


def finding_in_words(f: Finding) -> dict[str, str]:
    """Return a finding in the words of the reader."""
    return {"level": f.level, "text": capital(f"{f.text}"), "advice": f"{f.advice}"}


def capital(text: str) -> str:
    """Return a sentence that begins one."""
    return text[:1].upper() + text[1:]


def parameters(affine: Any, errors: StandardErrors | None) -> dict[str, Any]:
    r"""Return the mean of the query rows and parameters with 95% intervals, or a diagonal.

    These are the change at the mean, :math:`g(\bar x) - \bar x`, and of a diagonal map the rest.
    """
    columns = dict[str, Any]()
    mean, sd = affine.fitted_on.mean, affine.fitted_on.sd
    image, is_diagonal = affine(mean[None])[0], affine.kind == "diagonal"
    key, value = ("image_of_mean", image) if affine.is_rectangular else ("change", image - mean)
    shown = {key: value} | ({"scale": affine.scale, "offset": affine.offset} if is_diagonal else {})
    for name, values in shown.items():
        columns[name] = values
        if errors is not None:
            at_mean = name == key
            error = errors.of_mapped(mean[None], affine)[0] if at_mean else getattr(errors, name)
            columns[f"{name}_low"] = values - NORMAL_95 * error
            columns[f"{name}_high"] = values + NORMAL_95 * error
    if affine.is_rectangular:
        return columns
    own = {}
    if affine.kind == "monotone":
        own = {"slope": np.ptp(affine.values, axis=1) / np.ptp(affine.knots, axis=1)}
    elif not is_diagonal:
        own = {"own": affine.matrix.diagonal()}
    return {"mean": mean, "change_sd": value / np.where(sd > 0, sd, np.nan), **columns, **own}


def reproduce(used: dict[str, Any], command: Any, inputs: Any) -> dict[str, Any]:
    """Tell how to get the same again."""
    return {
        "command": command,
        "versions": versions(),
        # without folders, which are nobody's business
        "inputs": {Path(path).name: found for path, found in (inputs or {}).items()},
        "parameters": used,
        "options": {name: str(said(f"{{@{name}}}")) for name in used},  # what the reader calls them
    }


def drawn_densities(found: Mapping[Any, Evaluation], features: Sheet) -> Iterator[dict[str, Any]]:
    """Yield curves by feature in the order shown; the grid is its ends, evenly divided."""
    for row in features.rows():
        where: dict[str, Any] = {name: row[name] for name in ("batch", "feature") if name in row}
        if (known := found[row.get("batch")].densities.get(row["feature"])) is not None:
            grid, strata = known.values()
            curves = [{"stratum": stratum, **curves} for stratum, curves in strata.items()]
            yield {**where, "grid": [grid[0], grid[-1]], "strata": curves}
