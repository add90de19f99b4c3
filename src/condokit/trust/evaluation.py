"""What `evaluate` returns: records of one map, and of the maps of many sites."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from condokit.data.records import Finding, Part, Record, Sheet
from condokit.trust.agreement import Agreement
from condokit.trust.pictures import Pictures

CAPITAL = {
    "better": "Better",
    "no change needed": "No change needed",
    "cannot tell": "Cannot tell whether the map helps",
    "worse": "Worse",
}
WITHIN = "Within limits: error after the map, and its upper 95% limit, in units of the feature"
GRAVEST = ("worse", "cannot tell", "better", "no change needed")


@dataclass(frozen=True, repr=False)
class Evaluation(Record):
    """What a map changed, and what it left; see `evaluate`."""

    #: "better": the map lowers the systematic error, at the 95% limit; "no change needed": that is
    #: below 0.1 sd before and after; "worse": the map raises it; "cannot tell": the gain is within
    #: its uncertainty, or there is a doubt (see `doubts`).
    verdict: str
    findings: list[Finding]  #: The reasons.
    #: Expected systematic error of a value as recorded: root mean square over rows and features in
    #: standard deviations of the reference; None if unknown.
    error_before: float | None
    error_after: float | None  #: The same after the map.
    error_before_interval: tuple[float, float] | None  #: 95% interval of `error_before`.
    error_after_interval: tuple[float, float] | None  #: 95% interval of `error_after`.
    doubts: list[str]  #: Why the verdict is "cannot tell", or would be without pairs.
    n_query: int  #: Query rows compared (at most 5000 are used).
    n_reference: int  #: Reference rows compared (at most 5000 are used).
    #: The data as recorded, after plain moment matching, and after this map: the shift given the
    #: confounders (root mean square over features, in standard deviations), the log-ratio of
    #: standard deviations, the area under the ROC curve of a classifier of domains within strata,
    #: the variance that confounders explain, the share of real differences kept, and silhouettes.
    versions: Sheet
    #: For every feature: verdict, p-value that it is better (adjusted for all features of all
    #: sites: a false discovery rate of 5%) and the reason if it is "cannot tell"; expected
    #: systematic error before and after with 95% intervals, in standard deviations and in the
    #: feature's units; shift in standard deviations and ratio of standard deviations given the
    #: confounders, before and after; permutation p-value, plain and adjusted for many features;
    #: the difference that confounders explain and the share of it kept.
    features: Sheet
    #: For every feature: whether one map fits all strata (p-values, plain and adjusted), by how
    #: much strata disagree beyond chance, and the two strata that are farthest apart.
    specification: Sheet
    p_features: float  #: The smallest adjusted p-value of a feature.
    p_joint: float  #: The p-value of classifying the domain by all features together.
    p_value: float  #: Twice the smaller of `p_features` and `p_joint` (Bonferroni).
    auc: float  #: Area under the ROC curve of that classifier after the map: 0.5 is chance.
    #: Where the map was learned, which the tests allow for: "these rows", "other rows" (with known
    #: standard errors), or "elsewhere" (taken as given).
    map_known_from: str
    models: Sheet  #: Mean outputs of the given models by stratum, before and after the map.
    calibration: Sheet  #: Predicted and true shares of classifiers, in bins of the prediction.
    #: Of regressions with labels: root mean squared error of prediction (RMSEP), mean error (bias)
    #: and its standard deviation (SEP), in the reference and in the query before and after.
    predictions: Sheet
    agreement: Agreement | None  #: Agreement of paired measurements, or of bridge samples.
    densities: dict[str, Any]  #: Densities by feature and stratum, for plots. Not printed.
    #: Whether the systematic error after the map, or with `imprecision` the total error, is within
    #: the tolerances that were given.
    tolerances: Sheet = field(default_factory=lambda: Sheet({}))
    #: Data that `plots` needs for figures of all domains. Not saved or printed.
    pictures: Pictures | None = field(default=None, metadata={"private": True})

    @property
    def leave_alone(self) -> list[str]:
        """Features that need no change, or that the map makes worse; see `Map.only`."""
        rows = zip(self.features["feature"], self.features.columns.get("verdict", ()))
        return [name for name, word in rows if word in ("worse", "no change needed")]

    @property
    def sentence(self) -> str:
        """The verdict in a sentence, with the expected errors or the reasons for doubt."""
        word = CAPITAL[self.verdict]
        of_pairs, decided = "", self.agreement is not None and self.agreement.decides
        if self.agreement is not None and decided:
            if self.agreement.mapped_by == "this map" or self.error_before is None:
                return f"{word}, by {self.agreement.sentence}"
            of_pairs = f" Of {self.agreement.sentence}"
        if self.error_before is None or self.error_after is None:
            return f"{word}: {'; '.join(self.doubts)}."
        before, after = (error_in_words(errors_of(self), when) for when in ("before", "after"))
        errors = f"a value is systematically off by about {before} as recorded and {after} after "
        errors += "the map"
        if self.verdict != "cannot tell":
            return f"{word}: {errors}.{of_pairs}"
        return f"{word}: {'; '.join(self.doubts)}. By these data alone, {errors}."

    @property
    def counted(self) -> str:
        """How many features have each verdict, as text: "3 better, 1 worse"."""
        words = self.features.columns.get("verdict", [])
        return ", ".join(f"{words.count(w)} {w}" for w in CAPITAL if w in words)

    def parts(self) -> list[Part]:  # noqa: D102
        rows = f"{self.n_query} query and {self.n_reference} reference rows"
        worst = np.argsort(self.features["p_adjusted"], kind="stable")[:10]
        shown = {n: v for n, v in self.features.columns.items() if n not in _LONG}
        parts: list[Part] = [
            ("", f"{self.sentence} {rows} compared."),
            ("Reasons", self.findings),
            ("Given the confounders", self.versions),
            ("Verdicts by feature", self.counted),
            ("Leave these alone", ", ".join(self.leave_alone)),
            (WITHIN, self.tolerances),
            ("Features, the most shifted first", Sheet(shown).take(worst)),
            ("Frozen models", self.models),
            ("Errors of prediction", self.predictions),
            ("Calibration", self.calibration),
        ]
        if self.agreement is not None:
            (_, text), by_feature = self.agreement.parts()
            parts += [("Paired measurements", text), by_feature]
        return parts


_LONG = (
    "reason",
    *(
        f"error_{w}_{e}{u}"
        for w in ("before", "after")
        for e in ("low", "high")
        for u in ("", "_unit")
    ),
)


@dataclass(frozen=True, repr=False)
class BatchEvaluation(Record):
    """What the maps of many batches changed, and what they left; see `evaluate`."""

    verdict: str  #: That of the worst batch.
    #: For every batch: verdict, rows, expected error of a value before and after in sd of the
    #: reference (along the whole path) with 95% intervals, number of features called better, path
    #: to the reference, and reasons for doubt. The same figures as in `evaluations`.
    batches: Sheet
    evaluations: dict[Any, Evaluation]  #: By label: the batch against all others after their maps.
    #: Data that `plots` needs for figures of all batches. Not saved or printed.
    pictures: Pictures | None = field(default=None, metadata={"private": True})

    @property
    def features(self) -> Sheet:
        """All features of all batches, as `Evaluation.features` has them, with a column `batch`."""
        return stacked({label: one.features for label, one in self.evaluations.items()})

    @property
    def tolerances(self) -> Sheet:
        """Whether errors after the maps are within tolerances, with a column `batch`."""
        return stacked({label: one.tolerances for label, one in self.evaluations.items()})

    @property
    def leave_alone(self) -> dict[Any, list[str]]:
        """By batch: features that need no change, or that its map makes worse."""
        return {label: one.leave_alone for label, one in self.evaluations.items()}

    @property
    def sentence(self) -> str:
        """How many batches have each verdict, as text."""
        words = self.batches["verdict"]
        return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))

    @property
    def errors(self) -> str:
        """The expected errors of all batches in a sentence; an empty string if unknown."""
        found = [row for row in self.batches.rows() if row["error_after"] is not None]
        if not found:
            return ""
        ends = [_between([row[f"error_{when}"] for row in found]) for when in ("before", "after")]
        text = f"A value is systematically off by about {ends[0]} sd as recorded and {ends[1]} sd "
        text += "after the maps"
        upper = [row["after_high"] for row in found if row["after_high"] is not None]
        return f"{text} (95% intervals up to {max(upper):.2f} sd)." if upper else f"{text}."

    def parts(self) -> list[Part]:  # noqa: D102
        shown: dict[str, Any] = {n: self.batches[n] for n in ("batch", "verdict", "rows")}
        for when in ("before", "after"):
            texts = (error_in_words(row, when) for row in self.batches.rows())
            shown[f"error_{when}"] = [text and text.replace(" sd", "") for text in texts]
        shown |= {n: self.batches[n] for n in ("better_features", "path")}
        rows = self.batches.rows()
        doubts = [f"{row['batch']}: {row['doubts']}." for row in rows if row["doubts"]]
        return [
            ("", f"{CAPITAL[self.verdict]}. Batches: {self.sentence}. {self.errors}".rstrip()),
            ("", Sheet(shown)),
            (WITHIN, self.tolerances),
            ("Doubts", doubts),
        ]


def errors_of(one: Evaluation | None) -> dict[str, float | None]:
    """Return expected errors before and after the map with their limits, None where unknown."""
    found: dict[str, float | None] = {}
    for when in ("before", "after"):
        ends = getattr(one, f"error_{when}_interval", None) or (None, None)
        found[f"error_{when}"] = getattr(one, f"error_{when}", None)
        found |= {f"{when}_low": ends[0], f"{when}_high": ends[1]}
    return found


def error_in_words(row: dict[str, Any], when: str) -> str | None:
    """Return the expected error "before" or "after" of a row of batches as text, if it is known."""
    size, low, high = (row[name] for name in (f"error_{when}", f"{when}_low", f"{when}_high"))
    ends = "" if low is None else f" ({low:.2f} to {high:.2f})"
    return None if size is None else f"{size:.2f} sd{ends}"


def _between(sizes: list[float]) -> str:
    """Return the range of some numbers as text."""
    low, high = f"{min(sizes):.2f}", f"{max(sizes):.2f}"
    return low if low == high else f"{low} to {high}"


def stacked(sheets: dict[Any, Sheet]) -> Sheet:
    """Concatenate tables, with a first column `batch` that has the label of each."""
    names: dict[str, None] = {}
    for sheet in sheets.values():
        names |= dict.fromkeys(sheet.columns)
    columns: dict[str, list[Any]] = {name: [] for name in ("batch", *names)}
    for label, sheet in sheets.items():
        columns["batch"] += [label] * len(sheet)
        for name in names:
            columns[name] += sheet.columns.get(name, [None] * len(sheet))
    return Sheet(columns)


def gathered(
    rows: list[dict[str, Any]], found: dict[Any, Evaluation], pictures: Pictures | None
) -> BatchEvaluation:
    """Return the record of many batches, whose verdict is that of the worst of them."""
    words = [row["verdict"] for row in rows]
    gravest = min(words, key=GRAVEST.index, default="cannot tell")
    return BatchEvaluation(gravest, Sheet.of_rows(rows), found, pictures)
