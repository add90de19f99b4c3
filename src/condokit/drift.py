"""What the data looked like that a map was fitted on, and whether new data still do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit._validation import Array, listing
from condokit.frames import Table
from condokit.records import MIN_CELL, Finding, Part, Record, Sheet
from condokit.statistics import positive

MOST_ROWS = 5000  # that a profile looks at
_ROWS_FOR_RANGE = 100  # below which no range is kept
_FAR_AWAY = 10.0  # standard deviations
_MUCH_OUTSIDE = 0.01  # share of rows
_DRIFT = 0.5  # standard deviations
_SPREAD = 1.5  # ratio of standard deviations
_CERTAIN = 4.0  # standard errors
_MUCH_MISSING = 0.1  # more than when fitting
_VERDICTS = {
    "as fitted": "As fitted: the data look like those the map was fitted on.",
    "look": "Look: the data differ from those the map was fitted on.",
    "unknown": "Unknown: the map does not say what data it was fitted on.",
    "stop": "Stop: the map cannot be applied to these data.",
}


@dataclass(frozen=True)
class Profile:
    """Range and moments of the query features that a map was fitted on.

    Attributes
    ----------
    n_rows : int
        Query rows.
    mean, sd, missing : ndarray of shape (n_features,)
        Moments of the known values, and the share of missing ones.
    low, high : ndarray of shape (n_features,) or None
        The fifth lowest and highest value, so that no single row can be read off; None for fewer
        than 100 rows.
    """

    n_rows: int
    mean: Array
    sd: Array
    missing: Array
    low: Array | None = None
    high: Array | None = None

    @classmethod
    def of(cls, X: Array, n_rows: int) -> Profile:
        """Describe rows that stand for `n_rows` of them; NaN is missing."""
        gaps = np.isnan(X)
        some = bool(gaps.any())
        known = (~gaps).sum(axis=0) if some else np.full(X.shape[1], len(X))
        first = np.nan_to_num(X[0]) if len(X) else np.zeros(X.shape[1])
        D = np.where(gaps, 0.0, X - first) if some else X - first
        count = np.maximum(known, 1)
        shift = D.sum(axis=0) / count
        squares = np.einsum("nd,nd->d", D, D) - count * shift**2
        sd = np.sqrt(np.maximum(squares, 0.0) / np.maximum(count - 1, 1))
        low = high = None
        if len(X) >= _ROWS_FOR_RANGE:
            k = MIN_CELL - 1
            low = np.partition(np.where(gaps, np.inf, X) if some else X, k, axis=0)[k]
            high = -np.partition(np.where(gaps, np.inf, -X) if some else -X, k, axis=0)[k]
            enough = known >= _ROWS_FOR_RANGE
            low, high = np.where(enough, low, -np.inf), np.where(enough, high, np.inf)
        return cls(n_rows, first + shift, sd, 1 - known / max(len(X), 1), low, high)

    def matches(self, other: Profile) -> bool:
        """Tell whether two profiles are of the same rows."""
        return (
            self.n_rows == other.n_rows
            and len(self.mean) == len(other.mean)
            and np.allclose(self.mean, other.mean, rtol=1e-9, atol=1e-9 * self.sd.max(initial=0.0))
            and np.allclose(self.sd, other.sd, rtol=1e-9)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers; None where there is none, or it would be that of a few rows."""
        few = np.round(self.n_rows * (1 - self.missing)) < MIN_CELL
        safe = replace(
            self, mean=np.where(few, np.nan, self.mean), sd=np.where(few, np.nan, self.sd)
        )
        return {
            name: _finite(value) if isinstance(value, np.ndarray) else value
            for name, value in vars(safe).items()
        }

    @classmethod
    def from_dict(cls, content: Any, n_features: int) -> Profile:
        """Read what `to_dict` wrote; raise a ValueError for anything else."""
        if not isinstance(content, dict) or set(content) != set(cls.__annotations__):
            raise ValueError("'fitted_on' must hold " + listing(cls.__annotations__, 9) + ".")
        n_rows = content["n_rows"]
        if type(n_rows) is not int or n_rows < 0:
            raise ValueError(f"'n_rows' of 'fitted_on' is {n_rows!r}.")
        arrays: dict[str, Array | None] = {}
        for name, unknown in (
            ("mean", np.nan),
            ("sd", np.nan),
            ("missing", 0.0),
            ("low", -np.inf),
            ("high", np.inf),
        ):
            values = content[name]
            if values is None and name in ("low", "high"):
                arrays[name] = None
                continue
            good = isinstance(values, list) and len(values) == n_features
            if not good or not all(v is None or type(v) in (int, float) for v in values):
                raise ValueError(f"{name!r} of 'fitted_on' must be {n_features} numbers.")
            arrays[name] = np.array([unknown if v is None else float(v) for v in values])
        return cls(n_rows=n_rows, **arrays)  # type: ignore[arg-type]


@dataclass(frozen=True, repr=False)
class Check(Record):
    """Whether new data look like those a map was fitted on; see `AffineMap.check`.

    Attributes
    ----------
    verdict : {"as fitted", "look", "unknown", "stop"}
        In a word; "unknown" if the map does not say what it was fitted on.
    findings : list of Finding
        The reasons.
    n_rows : int
        Rows that were checked.
    missing_columns, extra_columns : list of str
        Features that the map needs and X lacks, and columns that it does not know.
    features : Sheet
        For every feature: the change of its mean in standard deviations, the ratio of standard
        deviations, the share of rows outside the range and of missing values, and what is wrong.
        Figures of fewer than five values are left out.
    """

    verdict: str
    findings: list[Finding]
    n_rows: int
    missing_columns: list[str]
    extra_columns: list[str]
    features: Sheet

    def parts(self) -> list[Part]:  # noqa: D102
        parts: list[Part] = [("", f"{_VERDICTS[self.verdict]} {self.n_rows} rows.")]
        if self.findings:
            parts.append(("Reasons", [str(finding) for finding in self.findings]))
        odd = [i for i, note in enumerate(self.features["note"]) if note] if self.features else []
        if odd:
            parts.append(("Features that differ", self.features.take(odd)))
        return parts


def check(X: Any, names: Sequence[str] | None, n_features: int, profile: Profile | None) -> Check:
    """Compare new query rows with a profile; see `AffineMap.check`."""
    table = Table(X)
    lacking: list[str] = []
    extra: list[str] = []
    findings: list[Finding] = []
    if names is not None and table.columns is not None:
        known, there = set(names), set(table.columns)
        lacking = [name for name in names if name not in there]
        extra = [column for column in table.columns if column not in known]
    elif table.n_features != n_features:
        findings.append(
            Finding("stop", f"there are {table.n_features} columns, the map takes {n_features}.")
        )
    if lacking:
        findings.append(Finding("stop", f"columns are missing: {listing(lacking)}."))
    if extra:
        findings.append(Finding("note", f"columns that the map ignores: {listing(extra)}."))
    sheet = Sheet({})
    if profile is not None and not any(finding.level == "stop" for finding in findings):
        features = table.match(names, n_features, "this AffineMap")
        sheet = _compare(features, profile)
        findings += _findings(sheet)
    levels = {finding.level for finding in findings}
    is_known = profile is not None and bool(np.isfinite(profile.mean).any())
    verdict = "as fitted" if is_known else "unknown"
    verdict = "stop" if "stop" in levels else "look" if "care" in levels else verdict
    order = ("stop", "care", "note")
    findings.sort(key=lambda finding: order.index(finding.level))
    return Check(verdict, findings, table.n_rows, lacking, extra, sheet)


def _compare(table: Table, profile: Profile) -> Sheet:
    """Compare all rows of a table, a chunk at a time."""
    d = table.n_features
    known, outside, far, infinite = np.zeros((4, d))
    shift, squares = np.zeros((2, d))
    sd = positive(profile.sd)
    margin = profile.sd
    low = np.full(d, -np.inf) if profile.low is None else profile.low - margin
    high = np.full(d, np.inf) if profile.high is None else profile.high + margin
    for _, chunk in table.chunks():
        finite = np.isfinite(chunk)
        infinite += np.isinf(chunk).sum(axis=0)
        z = np.where(finite, (np.where(finite, chunk, 0.0) - profile.mean) / sd, 0.0)
        known += finite.sum(axis=0)
        shift, squares = shift + z.sum(axis=0), squares + np.einsum("nd,nd->d", z, z)
        outside += (finite & ((chunk < low) | (chunk > high))).sum(axis=0)
        far += (np.abs(z) > _FAR_AWAY).sum(axis=0)
    count = np.maximum(known, 1)
    mean = shift / count
    spread = np.sqrt(np.maximum(squares / count - mean**2, 0.0) * count / np.maximum(count - 1, 1))
    error = np.sqrt(spread**2 / count + 1 / max(profile.n_rows, 1))
    missing = 1 - known / max(table.n_rows, 1)
    flat = profile.sd == 0
    notes = []
    for j in range(d):
        note = []
        if infinite[j]:
            note.append("infinite values")
        if known[j] == 0:
            note.append("no values")
        elif flat[j]:
            note += ["was constant"] if shift[j] != 0 or squares[j] != 0 else []
        else:
            if far[j]:
                note.append("values far away")
            expected = _MUCH_OUTSIDE * count[j]
            if outside[j] > expected + 3 * np.sqrt(expected) + 1:
                note.append("outside the range")
            if abs(mean[j]) > max(_DRIFT, _CERTAIN * error[j]):
                note.append("mean moved")
            certain = _CERTAIN / np.sqrt(2 * max(min(known[j], profile.n_rows) - 1, 1))
            ratio = abs(np.log(max(spread[j], 1e-300)))
            if known[j] > 2 and ratio > max(np.log(_SPREAD), certain):
                note.append("spread changed")
        if missing[j] > profile.missing[j] + _MUCH_MISSING:
            note.append("more missing")
        notes.append(", ".join(note))
    return Sheet(
        {
            "feature": list(table.labels),
            "mean_moved_sd": _finite(np.where(known < MIN_CELL, np.nan, mean)),
            "sd_ratio": _finite(np.where(known < MIN_CELL, np.nan, spread)),
            "outside": _finite(np.where(known < MIN_CELL, np.nan, outside / count)),
            "missing": missing.tolist(),
            "note": notes,
        }
    )


def _finite(values: Array) -> list[float | None]:
    return [x if np.isfinite(x) else None for x in values.tolist()]


def _findings(sheet: Sheet) -> list[Finding]:
    by_note: dict[str, list[str]] = {}
    for name, notes in zip(sheet["feature"], sheet["note"]):
        for note in filter(None, notes.split(", ")):
            by_note.setdefault(note, []).append(name)
    advice = {
        "mean moved": "Confounders are not known here: other subjects or a drifting device look "
        "alike. Refit if the device changed.",
        "values far away": "Look at these rows: units, codes for missing values, broken sensors.",
    }
    return [
        Finding("care", f"{note}: {listing(names)}.", advice.get(note, ""))
        for note, names in by_note.items()
    ]
