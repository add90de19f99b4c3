"""After fitting: what is left of the shift, what was kept, and what it means for models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np

from condokit.adapter import ConDoAdapter
from condokit.checks import Array, check_integer, check_seed, listing
from condokit.compare.comparison import compare
from condokit.data.arrays import ones_for_zeros, rms
from condokit.data.domains import Domains, cell_names
from condokit.data.records import Finding, Part, Record, Sheet
from condokit.data.roles import column_values, from_table
from condokit.data.tables import Table
from condokit.maps.affine import AffineMap
from condokit.maps.families import Identity, Rigid
from condokit.maps.families import Shift as ShiftOnly
from condokit.maps.profile import profile
from condokit.solvers.lbfgs import threads
from condokit.trust.agreement import Agreement, agreement
from condokit.trust.blocks import Likewise
from condokit.trust.densities import densities
from condokit.trust.differences import Kept, differences_kept, silhouettes, variance_explained
from condokit.trust.models import by_stratum, calibration, predictions, true_values
from condokit.trust.rereading import in_order, known_features
from condokit.trust.shift import MapErrors, Permutations, Shift, measure

_LEVEL = 0.05
_FEWEST_PERMUTATIONS = 39  # with fewer, no p-value of two tests is below the level
_NEGLIGIBLE = 0.05  # standard deviations, or area under the curve beyond chance
_SMALL = 0.1  # standard deviations
_LARGE = 0.5
_LEAST_KEPT = 0.8
_MOST_DENSITIES = 100
_VERDICTS = {
    "good": "Good: no shift is found given the confounders, and real differences are kept.",
    "with care": "With care: the map helps, but see the reasons.",
    "poor": "Poor: the map does not make the domains comparable.",
}


@dataclass(frozen=True, repr=False)
class Evaluation(Record):
    """What a map changed, and what it left; see `evaluate`.

    Attributes
    ----------
    verdict : {"good", "with care", "poor"}
        In a word.
    findings : list of Finding
        The reasons.
    n_query, n_reference : int
        Rows compared (at most 5000 of each domain are looked at).
    versions : Sheet
        The data as they are, after plain moment matching, and after this map: the shift given the
        confounders (root mean square over features, in standard deviations), the log-ratio of
        standard deviations, how well the domain can be told from the features within strata, the
        variance that confounders explain, the share of real differences kept, and silhouettes.
    features : Sheet
        For every feature: shift in standard deviations and ratio of standard deviations given the
        confounders, before and after; permutation p-value, plain and adjusted for many features;
        the difference that confounders explain and the share of it kept.
    p_features, p_joint, p_value : float
        The smallest adjusted p-value of a feature, that of telling the domains apart by all
        features together, and twice the smaller: that of the two tests together.
    auc, auc_chance : float
        How well the domain can be told within strata after the map, and what chance gives.
    map_known_from : {"these rows", "other rows", "elsewhere"}
        Where the map came from, which the tests allow for: learned from these rows, from other rows
        with known standard errors, or taken as given.
    models, calibration : Sheet
        Outputs of frozen models by stratum, before and after; and predicted against true shares.
    agreement : Agreement or None
        Of paired measurements.
    densities : dict
        Densities by feature and stratum for plots and reports. Not printed.
    """

    verdict: str
    findings: list[Finding]
    n_query: int
    n_reference: int
    versions: Sheet
    features: Sheet
    p_features: float
    p_joint: float
    p_value: float
    auc: float
    auc_chance: float
    map_known_from: str
    models: Sheet
    calibration: Sheet
    agreement: Agreement | None
    densities: dict[str, Any]

    def parts(self) -> list[Part]:  # noqa: D102
        rows = f"{self.n_query} query and {self.n_reference} reference rows"
        parts: list[Part] = [("", f"{_VERDICTS[self.verdict]} {rows} compared.")]
        if self.findings:
            parts.append(("Reasons", [str(finding) for finding in self.findings]))
        parts.append(("Given the confounders", self.versions))
        worst = np.argsort(self.features["p_adjusted"], kind="stable")[:10]
        parts.append(("Features, the most shifted first", self.features.take(worst)))
        for heading, sheet in (("Frozen models", self.models), ("Calibration", self.calibration)):
            if len(sheet):
                parts.append((heading, sheet))
        if self.agreement is not None:
            parts += [("Paired measurements", self.agreement.parts()[0][1])]
            parts.append(("By feature", self.agreement.features))
        return parts


def evaluate(
    adapter_or_map: ConDoAdapter | AffineMap,
    X: Any,
    *,
    domain: Any,
    confounders: Any = None,
    features: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    reference: Any = None,
    categorical: Any = None,
    missing: str | None = None,
    models: Any = None,
    labels: Any = None,
    pairs: Any = None,
    n_permutations: int = 200,
    min_cell: int = 5,
    random_state: int | None = None,
) -> Evaluation:
    """Say what a fitted map changed and what it left, given the confounders.

    Parameters
    ----------
    adapter_or_map : ConDoAdapter or AffineMap
        A fitted adapter, or any map from the query's to the reference's features.
    X : array or data frame of shape (n_rows, n_columns)
        Rows of both domains, as recorded: the map is applied here.
    domain, confounders, features, groups, sample_weight : array-like, str or list of str
        As in `ConDoAdapter.fit`. Without `features`, those of the map if they have names.
    reference, categorical, missing
        As in `ConDoAdapter`; default: those of the adapter.
    models : fitted model, or dict of str to fitted models, default=None
        Binary classifiers or regressions trained on reference data, to be looked at by stratum.
    labels : array-like, str, or dict of str to these, default=None
        The truth that the models predict, for all models or by name.
    pairs : pair of lists of int, default=None
        Row numbers of X of query rows and of reference rows that are the same subjects, best those
        that were not used for fitting.
    n_permutations : int, default=200
        Permutations behind every p-value.
    min_cell : int, default=5
        Figures of cells with fewer rows are not shown.
    random_state : int or None, default=None
        Seed of the permutations; None is 0.

    Returns
    -------
    Evaluation
        The verdict with its reasons, and tables.

    Examples
    --------
    >>> from condokit import ConDoAdapter, datasets, evaluate
    >>> df = datasets.make_eeg(random_state=0).to_frame()
    >>> roles = {"domain": "device", "confounders": ["seizure"], "features": ["eeg_*"]}
    >>> adapter = ConDoAdapter(reference="v1").fit(df, **roles)
    >>> evaluate(adapter, df, **roles, n_permutations=100).verdict
    'good'
    """
    check_integer("n_permutations", n_permutations, _FEWEST_PERMUTATIONS)
    check_integer("min_cell", min_cell, 1)
    seed = check_seed(random_state)
    adapter = adapter_or_map if isinstance(adapter_or_map, ConDoAdapter) else None
    affine = adapter_or_map if adapter is None else getattr(adapter, "map_", None)
    if not isinstance(affine, AffineMap):
        raise ValueError(
            "'adapter_or_map' must be a fitted ConDoAdapter or an AffineMap. Got "
            f"{'one that is not fitted' if adapter else type(adapter_or_map).__name__}."
        )
    if affine.is_rectangular:
        raise ValueError("A map between different features cannot be evaluated in one table.")
    domains = from_table(
        X,
        domain,
        confounders,
        known_features(affine, X, features),
        groups,
        sample_weight,
        reference if adapter is None or reference is not None else adapter.reference,
        categorical if adapter is None or categorical is not None else adapter.categorical,
        missing or ("raise" if adapter is None else adapter.missing),
    )
    return evaluate_domains(
        domains, affine, adapter, models, labels, pairs, n_permutations, min_cell, seed
    )


def evaluate_domains(
    domains: Domains,
    affine: AffineMap,
    adapter: ConDoAdapter | None = None,
    models: Any = None,
    labels: Any = None,
    pairs: Any = None,
    n_permutations: int = 200,
    min_cell: int = 5,
    seed: int = 0,
) -> Evaluation:
    """Evaluate a map on domains that have been read already; `adapter` is what learned it."""
    with threads(1):  # the matrices are small: threads would only wait for each other
        return _evaluate(
            domains, affine, adapter, models, labels, pairs, n_permutations, min_cell, seed
        )


def _evaluate(
    domains: Domains,
    affine: AffineMap,
    adapter: ConDoAdapter | None,
    models: Any,
    labels: Any,
    pairs: Any,
    n_permutations: int,
    min_cell: int,
    seed: int,
) -> Evaluation:
    domains = in_order(domains, affine)
    names = domains.tables[0].labels
    comparison = compare(domains, quiet=True)
    rows = Likewise.of(domains, comparison, affine)
    strata = cell_names(comparison.support.names, comparison.support.levels)
    errors, known_from = _errors(affine, adapter, domains)
    left = rows.residuals(rows.after)
    permutations = Permutations(rows, rows.after, left, n_permutations, errors, seed)
    p, adjusted = permutations.test()
    auc, chance, p_joint = permutations.predictability()
    versions = {
        "as is": rows.before,
        "moment matching": _moments_matched(rows),
        "this map": rows.after,
    }
    shifts, areas = {"this map": measure(rows, left)}, {"this map": auc}
    for name in ("as is", "moment matching"):
        R = rows.residuals(versions[name])
        shifts[name] = measure(rows, R)
        areas[name] = Permutations(rows, versions[name], R).predictability()[0]
    kept = {name: differences_kept(rows, values) for name, values in versions.items()}
    sheet = _features_sheet(names, shifts, kept["this map"], p, adjusted)
    outputs, said = _model_sheets(models, labels, rows, strata, domains.tables[0], names, min_cell)
    paired = None if pairs is None else _paired(pairs, domains, affine, max(min_cell, 2))
    p_features = float(adjusted.min())
    findings = _findings(sheet, shifts, kept, p_features, p_joint, auc, chance)
    support = comparison.support
    moved = np.abs(shifts["as is"].difference)
    shown = np.lexsort((-moved, adjusted))[:_MOST_DENSITIES]
    chosen = replace(rows, before=rows.before[:, shown], after=rows.after[:, shown])
    return Evaluation(
        verdict=_verdict(shifts, kept, findings),
        findings=findings,
        n_query=int(support.count_query.sum()),
        n_reference=int(support.count_reference.sum()),
        versions=_versions_sheet(rows, versions, shifts, kept, areas),
        features=sheet,
        p_features=p_features,
        p_joint=p_joint,
        p_value=_together(p_features, p_joint),
        auc=auc,
        auc_chance=chance,
        map_known_from=known_from,
        models=outputs,
        calibration=said,
        agreement=paired,
        densities=densities(chosen, strata, [names[j] for j in shown], min_cell),
    )


def _errors(
    affine: AffineMap, adapter: ConDoAdapter | None, domains: Domains
) -> tuple[MapErrors | None, str]:
    """Return what is known of the map's errors, and where the map was learned."""
    now = profile(domains)
    same = affine.fitted_on is not None and affine.fitted_on.matches(now)
    centre = affine(now.mean[None])[0]
    if adapter is None or affine.links is not None:
        return None, "these rows" if same else "elsewhere"
    if same:
        return MapErrors(centre, kept=_followed(adapter)), "these rows"
    errors = adapter.errors_
    if errors is None or affine.kind != "diagonal":
        return None, "elsewhere"
    middle = getattr(errors, "centre", now.mean)
    error = errors.std(middle[None])[0]
    scale = ones_for_zeros(np.abs(affine.scale))
    return MapErrors(affine(middle[None])[0], error, errors.scale / scale), "other rows"


def _followed(adapter: ConDoAdapter) -> tuple[float, float]:
    """Return the share of an estimated shift and log-scale that an adapter's map follows."""
    report, family = adapter.report_, adapter.chosen_.recipe.family
    weights = report.get("candidates", {})
    shift = report.get("kept_shift", 1.0) * (1.0 - weights.get("identity", 0.0))
    log_scale = report.get("kept_log_scale", 1.0) * (1.0 - weights.get("shift", 0.0))
    log_scale *= 1.0 - weights.get("identity", 0.0)
    has_scales = not isinstance(family, Identity | ShiftOnly | Rigid)
    return (
        0.0 if isinstance(family, Identity) else shift,
        log_scale if has_scales else 0.0,
    )


def _moments_matched(rows: Likewise) -> Array:
    """Return the data after plain matching of means and standard deviations."""
    X, query = rows.before.copy(), rows.is_query
    scale = X[~query].std(axis=0) / ones_for_zeros(X[query].std(axis=0))
    scale = np.where(scale > 0, scale, 1.0)
    X[query] = (X[query] - X[query].mean(axis=0)) * scale + X[~query].mean(axis=0)
    return X


def _versions_sheet(
    rows: Likewise,
    versions: dict[str, Array],
    shifts: dict[str, Shift],
    kept: dict[str, Kept],
    areas: dict[str, float],
) -> Sheet:
    columns: dict[str, list[Any]] = {"data": list(versions)}
    columns["shift_sd"] = [rms(shifts[name].difference) for name in versions]
    columns["log_sd_ratio"] = [rms(shifts[name].log_ratio) for name in versions]
    # below chance is what overfitting leaves
    columns["domain_auc"] = [max(areas[name], 0.5) for name in versions]
    columns["explained"] = [variance_explained(rows, X) for X in versions.values()]
    columns["kept"] = [kept[name].share for name in versions]
    scores = [silhouettes(rows, X) for X in versions.values()]
    for name in ("domain", "confounders"):
        columns[f"silhouette_{name}"] = [score[name] for score in scores]
    return Sheet({name: v for name, v in columns.items() if any(x is not None for x in v)})


def _features_sheet(
    names: list[str], shifts: dict[str, Shift], kept: Kept, p: Array, adjusted: Array
) -> Sheet:
    before, after = shifts["as is"], shifts["this map"]
    share = np.where(kept.is_real, kept.observed / ones_for_zeros(np.abs(kept.expected)), np.nan)
    share = share * np.sign(kept.expected)
    return Sheet(
        {
            "feature": list(names),
            "shift_before": before.difference.tolist(),
            "shift_after": after.difference.tolist(),
            "sd_ratio_before": np.exp(before.log_ratio).tolist(),
            "sd_ratio_after": np.exp(after.log_ratio).tolist(),
            "p": p.tolist(),
            "p_adjusted": adjusted.tolist(),
            "explained_difference": kept.expected.tolist(),
            "kept": [x if np.isfinite(x) else None for x in share.tolist()],
        }
    )


def _is_over_corrected(kept: Kept) -> bool:
    if kept.share is None or kept.error is None:
        return False
    return kept.share + 2 * kept.error < _LEAST_KEPT


def _findings(
    sheet: Sheet,
    shifts: dict[str, Shift],
    kept: dict[str, Kept],
    p_features: float,
    p_joint: float,
    auc: float,
    chance: float,
) -> list[Finding]:
    found = []
    mine = kept["this map"]
    if mine.share is None:
        text = "the confounders explain no difference between the domains that could be lost."
        found.append(Finding("note", text))
    else:
        others = [kept[name].share for name in ("moment matching", "as is")]
        text = (
            f"{mine.share:.0%} of the difference that confounders explain is kept (moment "
            f"matching: {round(others[0] or 0.0, 2) + 0.0:.0%})."
        )
        if _is_over_corrected(mine):
            found.append(
                Finding(
                    "care",
                    f"over-corrected: only {text}",
                    "The map made the domains alike where they should differ: fit it given "
                    "these confounders.",
                )
            )
        else:
            found.append(Finding("note", text))
    sizes = [rms(shifts[name].difference) for name in ("as is", "this map")]
    change = f"the shift given the confounders goes from {sizes[0]:.2g} to {sizes[1]:.2g} sd"
    after = shifts["this map"]
    largest = max(np.abs(after.difference).max(), np.abs(after.log_ratio).max())
    negligible = largest < _NEGLIGIBLE and auc < 0.5 + _NEGLIGIBLE
    if negligible:
        text = f"{change}; no feature is off by more than {_NEGLIGIBLE} sd."
        found.append(Finding("note", text))
    elif (p_value := _together(p_features, p_joint)) <= _LEVEL:
        hit = [n for n, q in zip(sheet["feature"], sheet["p_adjusted"]) if q <= _LEVEL]
        which = f" in {listing(hit)}" if hit else ""
        found.append(
            Finding(
                "care",
                f"{change}, and what is left{which} is more than chance (p = {p_value:.3g} of two "
                f"tests: {p_features:.3g} by feature, {p_joint:.3g} jointly; domain told with an "
                f"area under the curve of {auc:.2f}, chance {chance:.2f}).",
                "A richer map (map='auto') or a confounder that was not recorded may explain it.",
            )
        )
    else:
        found.append(
            Finding(
                "note",
                f"{change}; what is left is within chance (p = {p_value:.2g} of two tests: "
                f"{p_features:.2g} by feature, {p_joint:.2g} jointly).",
            )
        )
    found.sort(key=lambda finding: ("care", "note").index(finding.level))
    return found


def _together(*p_values: float) -> float:
    """Return the p-value of several tests together, by Bonferroni."""
    return min(1.0, len(p_values) * min(p_values))


def _verdict(shifts: dict[str, Shift], kept: dict[str, Kept], findings: list[Finding]) -> str:
    if not any(finding.level == "care" for finding in findings):
        return "good"
    before, after = (
        float(np.hypot(rms(shifts[name].difference), rms(shifts[name].log_ratio)))
        for name in ("as is", "this map")
    )
    helps = after < max(before, _SMALL)
    large = rms(shifts["this map"].difference) > _LARGE
    poor = _is_over_corrected(kept["this map"]) or not helps or large
    return "poor" if poor else "with care"


def _paired(pairs: Any, domains: Domains, affine: AffineMap, fewest: int) -> Agreement:
    """Compare the rows that are the same subjects."""
    try:
        query, reference = (np.asarray(side) for side in pairs)
    except (TypeError, ValueError):
        raise ValueError("'pairs' must be two lists of row numbers of X.") from None
    n_rows = len(domains.is_query)
    for name, side, is_here in (
        ("query", query, domains.is_query),
        ("reference", reference, ~domains.is_query),
    ):
        if side.ndim != 1 or side.dtype.kind not in "iu" or len(side) == 0:
            raise ValueError(f"'pairs' must list row numbers of {name} rows.")
        if side.min() < 0 or side.max() >= n_rows:
            raise ValueError(f"'pairs' names a row that X, with {n_rows} rows, does not have.")
        strange = side[~is_here[side]]
        if len(strange):
            raise ValueError(
                f"'pairs' lists row {strange[0]} as a {name} row, but its domain says otherwise."
            )
    if len(query) != len(reference):
        raise ValueError(
            f"'pairs' lists {len(query)} query rows but {len(reference)} reference rows."
        )
    if len(query) < fewest:
        raise ValueError(
            f"'pairs' must list at least {fewest} pairs: the figures of fewer are not shown."
        )
    before, there = (_rows_in_order(domains, side) for side in (query, reference))
    return agreement(before, affine(before), there, domains.tables[0].labels, fewest)


def _rows_in_order(domains: Domains, numbers: Array) -> Array:
    distinct, place = np.unique(numbers, return_inverse=True)
    return domains.rows(distinct)[place]


def _model_sheets(
    models: Any,
    labels: Any,
    rows: Likewise,
    strata: list[str],
    table: Table,
    names: list[str],
    min_cell: int,
) -> tuple[Sheet, Sheet]:
    """Return outputs of frozen models by stratum, and their calibration."""
    if models is None:
        if labels is not None:
            raise ValueError("'labels' are for `models`, which are not given.")
        return Sheet({}), Sheet({})
    if not isinstance(models, dict):
        models = {type(models).__name__: models}
    if not isinstance(labels, dict):
        labels = {} if labels is None else dict.fromkeys(models, labels)
    strange = [name for name in labels if name not in models]
    if strange:
        raise ValueError(f"'labels' names {listing(strange)}, which is not among the models.")
    outputs: dict[str, dict[str, Array]] = {}
    what: dict[str, str] = {}
    truth: dict[str, Array] = {}
    chances: dict[str, Array] = {}
    for name, model in models.items():
        inputs = {
            version: _as_trained(model, values, table, names)
            for version, values in (("before", rows.before), ("after", rows.after))
        }
        outputs[name] = {}
        for version, values in inputs.items():
            outputs[name][version], what[name] = predictions(name, model, values)
        if name in labels:
            values = np.asarray(column_values(table, "labels", labels[name]))[rows.number]
            classes = list(getattr(model, "classes_", []))
            truth[name] = true_values(name, values, classes)
            if classes:
                chances[name] = truth[name]
    stratum, query = rows.category, rows.is_query
    sheet = by_stratum(outputs, what, truth, strata, stratum, query, min_cell)
    return sheet, calibration(outputs, chances, query, min_cell)


def _as_trained(model: Any, values: Array, table: Table, names: list[str]) -> Any:
    """Return rows in the form that a model was trained on: with column names, or without."""
    if table.columns is None or not hasattr(model, "feature_names_in_"):
        return values
    native = nw.from_native(table.native, eager_only=True)
    columns = {name: values[:, j] for j, name in enumerate(names)}
    return nw.from_dict(columns, backend=native.implementation).to_native()
