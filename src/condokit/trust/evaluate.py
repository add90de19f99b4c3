"""After fitting: what is left of the shift, what was kept, and what it means for models."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit.adapter import ConDoAdapter
from condokit.batches.adapter import BatchAdapter
from condokit.checks import Array, Missing, check_integer, check_seed, listing, said
from condokit.compare.comparison import Comparison, compare
from condokit.compare.weak_points import FEW_SUBJECTS, few_subjects
from condokit.data.arrays import computing, is_constant, ones_for_zeros, sides
from condokit.data.disclosure import MIN_CELL, hidden_counts, too_few
from condokit.data.records import Finding, Part, Record, Sheet, gravest_first, plain
from condokit.data.roles import Roles
from condokit.data.study import Study, cell_names
from condokit.maps.base import Map
from condokit.maps.profile import profile
from condokit.solvers.lbfgs import threads
from condokit.trust.agreement import Agreement, agreement
from condokit.trust.blocks import ComparableRows, known_rows, read_for_map
from condokit.trust.columns import unused_that_matter
from condokit.trust.models import model_sheets
from condokit.trust.residual_shift import MapErrors, ShiftTests, silhouettes, variance_explained
from condokit.trust.specification import specification
from condokit.trust.systematic import SystematicError, systematic_error

_LEVEL = 0.05
_FEWEST_PERMUTATIONS = 39  # with fewer, no p-value of two tests is below the level
_NEGLIGIBLE = 0.05  # standard deviations, or area under the curve beyond chance
_SMALL = 0.1  # standard deviations
_THIN = 0.2  # overlap of the confounders
_FEW_ROWS = 5.0  # that the comparison is worth
_CLEARLY = 0.9  # of the error as recorded, below which that along a path must be
_SPREAD = float(np.log(1.3))  # ratio of standard deviations
_ERRORS = 2.0  # standard errors by which that must be exceeded
_MOST_DENSITIES = 100
_N_POINTS = 64  # of a density
_MOST_STRATA = 6  # with densities of their own
_MADE_ALIKE = (
    "The map made the domains alike where they should differ: fit it given these confounders."
)
_UNEXPLAINED = said(
    "A richer map ({@map='auto'}) or a confounder that was not recorded may explain it."
)
_CAPITAL = {
    "better": "Better",
    "no change needed": "No change needed",
    "cannot tell": "Cannot tell whether the map helps",
    "worse": "Worse",
}
_WITHIN_ERROR = "what it gains is within its error"
_PLAIN_MATCHING = (
    "no confounders are given, so this is plain matching: differences between the people or "
    "samples measured are removed as well"
)
_BY_CONTROLS = "no confounders are given, so that a shift left may be a real difference"


@dataclass(frozen=True, repr=False)
class Evaluation(Record):
    """What a map changed, and what it left; see `evaluate`."""

    #: "better": the map makes the systematic error smaller, at 95%; "no change needed": there is
    #: hardly any; "worse"; "cannot tell": the data do not say, or are not to be trusted.
    verdict: str
    findings: list[Finding]  #: The reasons.
    #: Expected systematic error of a value as recorded: root mean square over rows and features in
    #: standard deviations of the reference; None if unknown.
    error_before: float | None
    error_after: float | None  #: The same after the map.
    error_before_interval: tuple[float, float] | None  #: 95% interval of `error_before`.
    error_after_interval: tuple[float, float] | None  #: 95% interval of `error_after`.
    doubts: list[str]  #: Why the verdict cannot be told, or could not without pairs.
    n_query: int  #: Query rows compared (at most 5000 are looked at).
    n_reference: int  #: Reference rows compared (at most 5000 are looked at).
    #: The data as they are, after plain moment matching, and after this map: the shift given the
    #: confounders (root mean square over features, in standard deviations), the log-ratio of
    #: standard deviations, how well the domain can be told from the features within strata, the
    #: variance that confounders explain, the share of real differences kept, and silhouettes.
    versions: Sheet
    #: For every feature: expected systematic error before and after, in standard deviations and in
    #: the feature's units; shift in standard deviations and ratio of standard deviations given the
    #: confounders, before and after; permutation p-value, plain and adjusted for many features; the
    #: difference that confounders explain and the share of it kept.
    features: Sheet
    #: For every feature: whether one map fits all strata (p-values, plain and adjusted), by how
    #: much strata disagree beyond chance, and those farthest apart.
    specification: Sheet
    p_features: float  #: The smallest adjusted p-value of a feature.
    p_joint: float  #: The p-value of telling the domains apart by all features together.
    p_value: float  #: Twice the smaller of these: that of the two tests together.
    auc: float  #: How well the domain can be told within strata after the map: 0.5 is chance.
    #: Where the map came from, which the tests allow for: learned from these rows, from other rows
    #: with known standard errors, or taken as given.
    map_known_from: str
    models: Sheet  #: Outputs of frozen models by stratum, before and after.
    calibration: Sheet  #: Their predicted against true shares.
    agreement: Agreement | None  #: Of paired measurements.
    densities: dict[str, Any]  #: Densities by feature and stratum, for plots. Not printed.

    @property
    def sentence(self) -> str:
        """The verdict with its figures."""
        word = _CAPITAL[self.verdict]
        if self.agreement is not None and self.agreement.decides:
            return f"{word}, by {self.agreement.sentence}"
        if self.error_before is None or self.error_after is None:
            return f"{word}: {'; '.join(self.doubts)}."
        before = _sd(self.error_before, self.error_before_interval)
        after = _sd(self.error_after, self.error_after_interval)
        errors = f"a value is systematically off by about {before} as recorded and {after} "
        errors += "after the map"
        if self.verdict != "cannot tell":
            return f"{word}: {errors}."
        return f"{word}: {'; '.join(self.doubts) or _WITHIN_ERROR}. By these data alone, {errors}."

    def parts(self) -> list[Part]:  # noqa: D102
        rows = f"{self.n_query} query and {self.n_reference} reference rows"
        worst = np.argsort(self.features["p_adjusted"], kind="stable")[:10]
        parts: list[Part] = [
            ("", f"{self.sentence} {rows} compared."),
            ("Reasons", self.findings),
            ("Given the confounders", self.versions),
            ("Features, the most shifted first", self.features.take(worst)),
            ("Frozen models", self.models),
            ("Calibration", self.calibration),
        ]
        if self.agreement is not None:
            (_, text), by_feature = self.agreement.parts()
            parts += [("Paired measurements", text), by_feature]
        return parts


@threads(1)  # the matrices are small: threads would only wait for each other
@computing("evaluation")
def evaluate(
    adapter_or_map: ConDoAdapter | BatchAdapter | Map,
    X: Any,
    *,
    domain: Any = None,
    batch: Any = None,
    bridge: Any = None,
    confounders: Any = None,
    features: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    reference: Any = None,
    categorical: Any = None,
    missing: Missing | None = None,
    reliability: Any = None,
    models: Any = None,
    labels: Any = None,
    pairs: Any = None,
    n_permutations: int = 200,
    min_cell: int = 5,
    random_state: int | None = None,
) -> Any:
    """Say what a fitted map changed and what it left, given the confounders.

    Parameters
    ----------
    adapter_or_map : ConDoAdapter, AffineMap, MonotoneMap or BatchAdapter
        A fitted adapter, or any map from the query's to the reference's features.
    X, domain
        As in `ConDoAdapter.fit`: rows of both domains as recorded, which are mapped here. Or
        `Study` as X.
    batch, bridge : array-like of shape (n_rows,) or str, default=None
        With a `BatchAdapter`, in place of `domain`: as in `BatchAdapter.fit`.
    confounders, features, groups, sample_weight
        As in `ConDoAdapter.fit`. Without `features`, those of the map if they have names.
    reference, categorical, missing, reliability
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
    Evaluation or BatchEvaluation
        The verdict with its reasons, and tables; of many batches, one for each.

    Examples
    --------
    >>> from condokit import ConDoAdapter, datasets, evaluate
    >>> df = datasets.make_eeg(random_state=0).to_frame()
    >>> roles = {"domain": "device", "confounders": "seizure", "features": ["*F3", "*F4"]}
    >>> adapter = ConDoAdapter(reference="v1").fit(df, **roles)
    >>> found = evaluate(adapter, df, **roles, n_permutations=50)
    >>> found.verdict
    'better'
    >>> print(found.sentence)
    Better: a value is systematically off by about ... as recorded and ... after the map.
    """
    check_integer("n_permutations", n_permutations, _FEWEST_PERMUTATIONS)
    check_integer("min_cell", min_cell, 1)
    seed = check_seed(random_state)
    if isinstance(adapter_or_map, BatchAdapter):
        if any(given is not None for given in (models, labels, pairs)):
            raise ValueError("'models', 'labels' and 'pairs' do not go with a BatchAdapter.")
        study = adapter_or_map.read_as_fitted(X, batch, confounders, groups, sample_weight, bridge)
        return _evaluated_batches(adapter_or_map, study, n_permutations, min_cell, seed)
    adapter = adapter_or_map if isinstance(adapter_or_map, ConDoAdapter) else None
    affine, settings = _map_of(adapter_or_map), adapter or ConDoAdapter()
    reference = settings.reference if reference is None else reference
    how: dict[str, Any] = {"reliability": reliability or settings.reliability}
    how["categorical"] = settings.categorical if categorical is None else categorical
    how["missing"] = missing or settings.missing
    roles = Roles(domain, confounders, features, groups, sample_weight, **how)
    domains = known_rows(read_for_map(affine, X, roles, reference))
    given = models, labels, pairs
    return _evaluated(domains, affine, n_permutations, min_cell, seed, adapter, *given)


def _evaluated(
    domains: Study,
    affine: Map,
    n_permutations: int,
    min_cell: int,
    seed: int,
    adapter: ConDoAdapter | None = None,
    models: Any = None,
    labels: Any = None,
    pairs: Any = None,
) -> Evaluation:
    comparison = compare(domains, quiet=True, measured=True)
    names, support = domains.tables[0].labels, comparison.support
    strata = cell_names(support.names, support.levels)
    rows = ComparableRows.of(domains, comparison, affine)
    errors, known_from = _errors(affine, adapter, domains)
    versions = {
        "as is": ShiftTests(rows, rows.before),
        "moment matching": ShiftTests(rows, _moments_matched(rows)),
        "this map": ShiftTests(rows, rows.after, n_permutations, errors, seed),
    }
    before, matched, after = versions.values()
    before.chance = matched.chance = after.chance  # one scale of telling apart
    error = systematic_error(affine, adapter, domains, rows, known_from == "these rows")
    fits = specification(rows, after.R, names, strata)
    gain = 0.0 if error is None else error.rms(0)[0] - error.rms(1)[0]
    if error is not None and affine.links is None:  # with links, units are those of the links
        error = error.with_strata(*fits.beyond(error.unit), affine.kind == "diagonal")
    features = _features_sheet(names, before, after, error)
    unused = unused_that_matter(domains)
    found = None if pairs is None else agreement(pairs, domains, affine, max(min_cell, 2))
    by_controls = adapter is not None and "n_controls" in adapter.report_
    doubts = [*_doubts(domains, comparison, error, before, after, by_controls)]
    misfit = fits.finding(gain, len(names) if error is None else error.n_effective)
    apart = [*unused, *filter(None, [misfit])]
    doubts += [finding.text.rstrip(".") for finding in apart]
    noted = [fits.note() if misfit is None else None, _of_curves(affine, error, names)]
    findings = gravest_first(
        [*apart, *filter(None, noted), *_findings(features, before, matched, after)]
    )
    sizes = [(None, None)] * 2 if error is None else [error.rms(k) for k in (0, 1)]
    sheets = model_sheets(models, labels, rows, strata, domains.tables[0], min_cell)
    shown = np.lexsort((-np.abs(features["shift_before"]), after.adjusted))[:_MOST_DENSITIES]
    drawn = replace(rows, before=rows.before[:, shown], after=rows.after[:, shown])
    return Evaluation(
        verdict=_verdict(error, doubts, found),
        findings=findings,
        error_before=sizes[0][0],
        error_after=sizes[1][0],
        error_before_interval=sizes[0][1],
        error_after_interval=sizes[1][1],
        doubts=doubts,
        n_query=int(support.count_query.sum()),
        n_reference=int(support.count_reference.sum()),
        versions=_versions_sheet(versions),
        features=features,
        specification=fits.sheet,
        p_features=after.p_features,
        p_joint=after.p_joint,
        p_value=after.p_value,
        auc=after.told_apart,
        map_known_from=known_from,
        models=sheets[0],
        calibration=sheets[1],
        agreement=found,
        densities=_densities(drawn, strata, [names[j] for j in shown], min_cell),
    )


@dataclass(frozen=True, repr=False)
class BatchEvaluation(Record):
    """What the maps of many batches changed, and what they left; see `evaluate`."""

    verdict: str  #: The gravest of all batches.
    #: Of every batch: verdict, rows, expected error of a value before and after in sd of the
    #: reference (along the whole path), and why the verdict cannot be told.
    batches: Sheet
    evaluations: dict[Any, Evaluation]  #: Each batch against all others, mapped.

    @property
    def sentence(self) -> str:
        """The verdicts in a line."""
        words = self.batches["verdict"]
        return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))

    def parts(self) -> list[Part]:  # noqa: D102
        return [("", f"{_CAPITAL[self.verdict]}. Batches: {self.sentence}."), ("", self.batches)]


_GRAVEST = ("worse", "cannot tell", "better", "no change needed")


def _evaluated_batches(adapter: BatchAdapter, study: Study, *asked: Any) -> BatchEvaluation:
    """Evaluate every batch against all others, which their maps have moved to the reference."""
    found, rows = {}, []
    for label, facts in adapter.report_.batches.items():
        if label not in study.labels or len(facts.path) == 1 and label == adapter.reference_:
            continue
        own = study.labels.index(label)
        domains = adapter.against_others(study, own)
        try:
            found[label] = one = _evaluated(domains, adapter.maps_[label], *asked)
            verdict, doubts = one.verdict, list(one.doubts)
        except (ValueError, ArithmeticError) as error:  # too few rows to say anything
            verdict, doubts = "cannot tell", [f"it cannot be evaluated: {error}"]
        if verdict == "better" and not facts.error_after < _CLEARLY * facts.error_before:
            verdict = "cannot tell"
            doubts.append("the path to the reference leaves about as much error as there was")
        if verdict == "better" and not study.confounders and 0 < facts.bridges < FEW_SUBJECTS:
            verdict = "cannot tell"
            doubts.append(f"fewer than {FEW_SUBJECTS} bridges connect it, and no confounders do")
        count = hidden_counts(np.array([float(study.among(own).sum())]))[0]
        errors = {"error_before": facts.error_before, "error_after": facts.error_after}
        told = {"path": " > ".join(map(str, facts.path)), "doubts": "; ".join(doubts)}
        rows.append({"batch": label, "verdict": verdict, "rows": count, **errors, **told})
    for label in adapter.report_.unreachable:
        nothing = {"rows": None, "error_before": None, "error_after": None, "path": ""}
        why = {"doubts": "no path leads to the reference; left as it is"}
        rows.append({"batch": label, "verdict": "cannot tell", **nothing, **why})
    words = [row["verdict"] for row in rows]
    gravest = min(words, key=_GRAVEST.index, default="cannot tell")
    return BatchEvaluation(gravest, Sheet.of_rows(rows), found)


def _map_of(adapter_or_map: Any) -> Any:
    is_adapter = isinstance(adapter_or_map, ConDoAdapter)
    affine = getattr(adapter_or_map, "map_", None) if is_adapter else adapter_or_map
    if not isinstance(affine, Map):
        got = "one that is not fitted" if is_adapter else type(adapter_or_map).__name__
        must = "'adapter_or_map' must be a fitted ConDoAdapter or a map."
        raise ValueError(f"{must} Got {got}.")
    if affine.is_rectangular:
        raise ValueError("A map between different features cannot be evaluated in one table.")
    return affine


def _errors(
    affine: Any, adapter: ConDoAdapter | None, domains: Study
) -> tuple[MapErrors | None, str]:
    """Return what is known of the map's errors, and where the map was learned."""
    now = profile(domains)
    same = affine.fitted_on is not None and affine.fitted_on.matches(now)
    if adapter is None or affine.links is not None:
        return None, "these rows" if same else "elsewhere"
    if same:
        # the share of an estimated shift and log-scale that the map follows
        report, family = adapter.report_, adapter.chosen_.recipe.family
        shift = report.get("kept_shift", 1.0) if family.has_scale or family.has_offset else 0.0
        scales = family.has_scale and not family.is_rigid
        followed = shift, report.get("kept_log_scale", 1.0) if scales else 0.0
        return MapErrors(affine(now.mean[None])[0], followed=followed), "these rows"
    errors = adapter.errors_
    if errors is None or affine.kind != "diagonal":
        return None, "elsewhere"
    middle = getattr(errors, "centre", now.mean)[None]
    log_scale = errors.scale / ones_for_zeros(np.abs(affine.scale))
    return MapErrors(affine(middle)[0], errors.std(middle)[0], log_scale), "other rows"


def _moments_matched(rows: ComparableRows) -> Array:
    """Return the data after plain matching of means and standard deviations."""
    X, query = rows.before.copy(), rows.is_query
    scale = X[~query].std(axis=0) / ones_for_zeros(X[query].std(axis=0))
    scale = np.where(scale > 0, scale, 1.0)
    X[query] = (X[query] - X[query].mean(axis=0)) * scale + X[~query].mean(axis=0)
    return X


def _versions_sheet(versions: dict[str, ShiftTests]) -> Sheet:
    table = [
        {
            "data": name,
            "shift_sd": version.left.size[0],
            "log_sd_ratio": version.left.size[1],
            "domain_auc": version.told_apart,
            "explained": variance_explained(version.rows, version.X),
            "kept": version.kept.share,
            **silhouettes(version.rows, version.X),
        }
        for name, version in versions.items()
    ]
    columns = Sheet.of_rows(table).columns
    return Sheet({name: v for name, v in columns.items() if any(x is not None for x in v)})


def _features_sheet(
    names: list[str], before: ShiftTests, after: ShiftTests, error: SystematicError | None
) -> Sheet:
    kept, columns = after.kept, dict[str, Any](feature=names)
    if error is not None:
        for name, square in (("before", error.before), ("after", error.after)):
            size = np.sqrt(np.maximum(square, 0.0))
            columns |= {f"error_{name}": size, f"error_{name}_unit": size * error.unit}
    share = np.where(kept.is_real, kept.observed / ones_for_zeros(np.abs(kept.expected)), np.nan)
    columns |= {
        "shift_before": before.left.difference,
        "shift_after": after.left.difference,
        "sd_ratio_before": np.exp(before.left.log_ratio),
        "sd_ratio_after": np.exp(after.left.log_ratio),
        "p": after.p,
        "p_adjusted": after.adjusted,
        "explained_difference": kept.expected,
        "kept": plain(share * np.sign(kept.expected)),
    }
    return Sheet(columns)


def _findings(
    sheet: Sheet, before: ShiftTests, matched: ShiftTests, after: ShiftTests
) -> Iterator[Finding]:
    text = "the confounders explain no difference between the domains that could be lost."
    if after.kept.limit > _SMALL:
        text = "whether the confounders explain a difference between the domains cannot be told: "
        text += f"one below {after.kept.limit:.2g} sd would not be seen."
    if after.kept.share is not None:
        otherwise = round(matched.kept.share or 0.0, 2) + 0.0
        text = f"{after.kept.share:.0%} of the difference that confounders explain is kept (moment "
        text += f"matching: {otherwise:.0%})."
    if after.kept.are_too_few:
        yield Finding("care", f"over-corrected: only {text}", _MADE_ALIKE)
    elif after.rows.block.any():
        yield Finding("note", text)
    sizes = f"{before.left.size[0]:.2g} to {after.left.size[0]:.2g} sd"
    change = f"the shift given the confounders goes from {sizes}"
    largest = max(np.abs(after.left.difference).max(), np.abs(after.left.log_ratio).max())
    if largest < _NEGLIGIBLE and after.told_apart < 0.5 + _NEGLIGIBLE:
        yield Finding("note", f"{change}; no feature is off by more than {_NEGLIGIBLE} sd.")
    elif after.p_value > _LEVEL:
        yield Finding("note", f"{change}; what is left is within chance ({after.told('.2g')}).")
    else:
        hit = [n for n, p in zip(sheet["feature"], sheet["p_adjusted"]) if p <= _LEVEL]
        where = f" in {listing(hit)}" if hit else ""
        told = f"domain told with an area under the curve of {after.told_apart:.2f})."
        text = f"{change}, and what is left{where} is more than chance ({after.told('.3g')}; "
        yield Finding("care", f"{text}{told}", _UNEXPLAINED)


def _doubts(
    domains: Study,
    comparison: Comparison,
    error: SystematicError | None,
    before: ShiftTests,
    after: ShiftTests,
    by_controls: bool,
) -> Iterator[str]:
    """Tell why the expected error is not to be trusted."""
    if not domains.confounders:
        yield _BY_CONTROLS if by_controls else _PLAIN_MATCHING
    parts = {name: mine & (comparison.place >= 0) for name, mine in sides(domains.is_query)}
    if few := few_subjects(domains, parts):
        text = f"the {' and the '.join(few)} rows are of fewer than {FEW_SUBJECTS} subjects, "
        yield text + "who cannot be told from the device"
    overlap = comparison.overlap
    worth = min(overlap.effective_query, overlap.effective_reference)
    if overlap.coefficient < _THIN:
        yield f"the confounders of the domains overlap by {overlap.coefficient:.2f} only"
    elif worth < _FEW_ROWS:
        yield f"the comparison rests on about {_FEW_ROWS:.0f} rows of a domain, or fewer"
    if error is None:
        yield "no error of the map is known"
        return
    if np.array_equal(after.rows.before, after.rows.after):
        yield "the map changes nothing"
    (shift, log_ratio), noise = after.left.size, after.left.noise
    if after.p_value <= _LEVEL and np.sqrt(max(shift**2 - noise[0], 0.0)) > error.rms(1)[1][1]:
        yield f"the shift that is left, {shift:.2g} sd, is more than the map's errors explain"
    if shift > max(before.left.size[0], _SMALL) and after.p_value <= _LEVEL:
        yield f"the shift grew from {before.left.size[0]:.2g} to {shift:.2g} sd"
    if log_ratio**2 > _SPREAD**2 + _ERRORS**2 * noise[1]:
        yield "the spread within strata is off by more than 30%"
    if after.kept.are_too_few:
        yield "the map made the domains alike where they should differ"


def _verdict(error: SystematicError | None, doubts: list[str], pairs: Agreement | None) -> str:
    """Return what pairs say, if they do, else what the expected error does, if it is trusted."""
    if pairs is not None and pairs.decides:
        return "better" if pairs.gain[0] > 0 else "worse"
    if error is not None and error.gain[1] < 0:
        return "worse"
    if error is None or doubts:
        return "cannot tell"
    if error.gain[0] > 0:
        return "better"
    return "no change needed" if max(error.rms(k)[1][1] for k in (0, 1)) < _SMALL else "cannot tell"


def _of_curves(affine: Map, error: SystematicError | None, names: list[str]) -> Finding | None:
    """Name the features for which a straight line is likely wrong."""
    if error is None or affine.kind != "diagonal" or not len(error.curved):
        return None
    text = "in all likelihood not a straight line: {names}; what a curve finds beyond it is in the "
    text += "errors."
    bent = said(text, names=listing(names[j] for j in error.curved))
    return Finding("care", bent, said("Use {@map='auto'} or 'monotone', or a link."))


def _sd(size: float | None, interval: tuple[float, float] | None) -> str:
    low, high = interval or (0.0, 0.0)
    return f"{size:.2f} sd ({low:.2f} to {high:.2f})"


def _densities(
    rows: ComparableRows, strata: list[str], names: list[str], min_cell: int
) -> dict[str, dict[str, Any]]:
    """Return a grid and densities by feature and stratum, "all" first; None for too few rows."""
    largest = np.argsort(-np.bincount(rows.category, minlength=len(strata)), kind="stable")
    cells: dict[str, Array] = {"all": np.ones(len(rows.is_query), dtype=bool)}
    if len(strata) > 1:
        cells |= {strata[k]: rows.category == k for k in sorted(largest[:_MOST_STRATA])}
    out: dict[str, dict[str, Any]] = {}
    for name, before, after in zip(names, rows.before.T, rows.after.T):
        grid = _grid(np.minimum(before, after), np.maximum(before, after))
        out[name] = {"grid": grid.tolist(), "strata": {}}
        for label, mine in cells.items():
            query, reference = mine & rows.is_query, mine & ~rows.is_query
            shown = {"reference": after[reference], "before": before[query], "after": after[query]}
            curves = {key: _density(values, grid, min_cell) for key, values in shown.items()}
            out[name]["strata"][label] = curves
    return out


def _grid(lowest: Array, highest: Array) -> Array:
    """Return points between the fifth rows from below and above, and a little beyond."""
    lowest, highest = (np.sort(values[np.isfinite(values)]) for values in (lowest, highest))
    k = min(MIN_CELL - 1, max(len(lowest) - 1, 0) // 2)
    low, high = (lowest[k], highest[-1 - k]) if len(lowest) else (0.0, 1.0)
    constant = is_constant(high - low, max(abs(low), abs(high)))
    margin = max(0.5, 1e-3 * abs(low)) if constant else 0.1 * (high - low)
    return np.linspace(low - margin, high + margin, _N_POINTS)


def _density(values: Array, grid: Array, min_cell: int) -> list[float] | None:
    """Return a Gaussian kernel density on a grid, of rows counted first; None for too few."""
    known = values[np.isfinite(values)]
    if too_few(len(known), min_cell):
        return None
    spread = min(known.std(ddof=1), np.subtract(*np.quantile(known, [0.75, 0.25])) / 1.349)
    spread = spread if spread > 0 else known.std(ddof=1)
    width = max(0.9 * spread * len(known) ** -0.2, grid[1] - grid[0])
    fine = np.linspace(grid[0] - 3 * width, grid[-1] + 3 * width, 512)
    counts, edges = np.histogram(known, bins=fine)
    centres = (edges[:-1] + edges[1:]) / 2
    kernel = np.exp(-0.5 * ((grid[:, None] - centres) / width) ** 2)
    height = kernel @ counts / (len(known) * width * np.sqrt(2 * np.pi))
    return [float(f"{h:.4g}") for h in height]
