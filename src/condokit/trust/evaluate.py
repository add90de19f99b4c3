"""After fitting: what is left of the shift, which real differences are kept, and the verdict."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from condokit.adapter import ConDoAdapter
from condokit.batches.adapter import BatchAdapter
from condokit.checks import Array, Missing, check_integer, check_seed, listing, said
from condokit.compare.comparison import Comparison, compare
from condokit.compare.weak_points import FEW_SUBJECTS, few_subjects
from condokit.data.arrays import computing, ones_for_zeros, rms, sides
from condokit.data.disclosure import hidden_counts, size_of
from condokit.data.links import steps
from condokit.data.records import Finding, Sheet, gravest_first, plain
from condokit.data.study import Study, cell_names
from condokit.law.discrete import MODAL
from condokit.maps.base import Map
from condokit.maps.profile import profile
from condokit.solvers.lbfgs import threads
from condokit.trust.agreement import Agreement, agreement
from condokit.trust.blocks import ROLES, ComparableRows, known_rows, read_for_map
from condokit.trust.by_feature import (
    SMALL,
    check_tolerance,
    in_doubt,
    intervals,
    judge,
    within_limits,
)
from condokit.trust.columns import unused_that_matter
from condokit.trust.distributions import densities
from condokit.trust.evaluation import BatchEvaluation, Evaluation, errors_of, gathered
from condokit.trust.models import model_sheets
from condokit.trust.pictures import pictures
from condokit.trust.residual_shift import MapErrors, ShiftTests, silhouettes, variance_explained
from condokit.trust.sites import mapped, sites_of
from condokit.trust.specification import specification
from condokit.trust.systematic import SystematicError, systematic_error

_LEVEL = 0.05  # of the tests of a shift that is left
_FEWEST_PERMUTATIONS = 39  # with fewer, Bonferroni's p-value of two tests is never below the level
_NEGLIGIBLE = 0.05  # standard deviations, or area under the ROC curve beyond chance
_THIN = 0.2  # overlap of the confounders, below which nothing can be told
_FEW_ROWS = 5.0  # effective rows of a domain, likewise
_SPREAD = float(np.log(1.3))  # log-ratio of standard deviations, above which a spread is doubtful
_ERRORS = 2.0  # standard errors by which that must be exceeded
_MOST_DENSITIES, _FEWEST_DENSITIES = 100, 10  # features drawn: in all, and at least for each site
_MADE_ALIKE = (
    "The map made the domains alike where they should differ: fit it given these confounders."
)
_UNEXPLAINED = said(
    "A richer map ({@map='auto'}) or a confounder that was not recorded may explain it."
)
_PLAIN_MATCHING = (
    "no confounders are given, so this is plain matching: differences between the people or "
    "samples measured are removed as well"
)
_BY_CONTROLS = "no confounders are given, so that a shift left may be a real difference"


@dataclass(frozen=True)
class _Asked:
    """The arguments of `evaluate` other than the map and the rows."""

    n_permutations: int
    min_cell: int
    seed: int
    models: Any = None
    labels: Any = None
    pairs: Any = None
    tolerance: Any = None
    imprecision: Any = None


@dataclass(frozen=True)
class _Known:
    """What is known about a map besides its numbers."""

    errors: MapErrors | None  # by which query rows are moved under permuted labels
    known_from: str  # see `Evaluation.map_known_from`
    error: Callable[[ComparableRows], SystematicError | None]  # computes the systematic error
    doubts: Sequence[str] = ()
    by_controls: bool = False  # whether negative controls were used
    by_bridges: bool = False  # whether the map was learned from bridge samples only
    is_site: bool = False  # whether this is one of many sites, whose fit has its expected error
    agreement: Agreement | None = None
    names: list[str] | None = None  # of features, if the domains do not have them
    n_drawn: int = _MOST_DENSITIES  # features of which densities are kept


@dataclass(frozen=True)
class _Draft:
    """An evaluation without verdicts of features: their p-values are adjusted over all sites."""

    evaluation: Evaluation
    error: SystematicError | None
    asked: _Asked


@threads(1)  # the matrices are small: threads would only wait for each other
@computing("evaluation")
def evaluate(
    adapter_or_map: ConDoAdapter | BatchAdapter | Map,
    X: Any,
    X_reference: Any = None,
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
    tolerance: Any = None,
    imprecision: Any = None,
    n_permutations: int = 200,
    min_cell: int = 5,
    random_state: int | None = None,
) -> Any:
    """Judge whether a fitted map makes data better, given the confounders.

    Parameters
    ----------
    adapter_or_map : ConDoAdapter, AffineMap, MonotoneMap or BatchAdapter
        A fitted adapter, or any map from the query's to the reference's features.
    X : array or data frame of shape (n_rows, n_columns)
        Rows of both domains as recorded (not mapped), as in `ConDoAdapter.fit`.
    X_reference : array or data frame of shape (n_rows, n_columns), default=None
        The reference as a second table, in place of `domain`; as in `ConDoAdapter.fit_pair`.
    domain : array-like of shape (n_rows,) or str, default=None
        As in `ConDoAdapter.fit`.
    batch, bridge : array-like of shape (n_rows,) or str, default=None
        For a `BatchAdapter`, in place of `domain`: as in `BatchAdapter.fit`.
    confounders, features, groups, sample_weight
        As in `ConDoAdapter.fit`. If not given, they are those of the adapter's fit, as far as they
        were names of columns, and the features that the map names.
    reference, categorical, missing, reliability
        As in `ConDoAdapter`; if not given, those of the adapter.
    models : fitted model, or dict of str to fitted models, default=None
        Binary classifiers or regressions that were trained on reference data; their outputs are
        compared by stratum before and after the map.
    labels : array-like, str, or dict of str to these, default=None
        The true values that the models predict, for all models or by name of the model.
    pairs : pair of lists of int, default=None
        Rows that are the same subjects in both domains: row numbers in X of query rows, and of
        reference rows in the same order. Best are rows that were not used for fitting. For a
        `BatchAdapter` rows of any two batches; if not given, bridge samples are used, mapped by
        fits without them (cross-validation).
    tolerance : dict of str to float, default=None
        The largest systematic error that is acceptable, by feature in its own unit.
    imprecision : dict of str to float, default=None
        The standard deviation of repeated measurements of one sample, by feature in its own unit.
        If given, `tolerance` is the acceptable total error: systematic error plus 1.65 standard
        deviations.
    n_permutations : int, default=200
        Number of permutations for every p-value.
    min_cell : int, default=5
        Figures of cells with fewer rows are not shown.
    random_state : int or None, default=None
        Seed of the permutations; None is 0.

    Returns
    -------
    Evaluation or BatchEvaluation
        The verdict with its reasons, and tables; for a `BatchAdapter`, one for every batch.

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
    asked = _Asked(n_permutations, min_cell, seed, models, labels, pairs, tolerance, imprecision)
    if isinstance(adapter_or_map, BatchAdapter):
        if X_reference is not None:
            raise ValueError("A BatchAdapter takes one table of all batches: stack them.")
        roles = batch, confounders, groups, sample_weight, bridge
        study = known_rows(adapter_or_map.read_as_fitted(X, *roles))
        return _evaluated_batches(adapter_or_map, study, asked)
    adapter = adapter_or_map if isinstance(adapter_or_map, ConDoAdapter) else None
    affine, settings = _map_of(adapter_or_map), adapter or ConDoAdapter()
    reference = settings.reference if reference is None else reference
    how: dict[str, Any] = {"reliability": reliability or settings.reliability}
    how["categorical"] = settings.categorical if categorical is None else categorical
    how["missing"] = missing or settings.missing
    given = dict(zip(ROLES, (domain, confounders, features, groups, sample_weight)))
    read = read_for_map(affine, X, X_reference, given, how, reference, adapter)
    return _evaluated(known_rows(read), affine, asked, adapter)


def _evaluated(
    domains: Study, affine: Map, asked: _Asked, adapter: ConDoAdapter | None
) -> Evaluation:
    """Evaluate one map: a study of one site and its reference."""
    errors, known_from = _errors(affine, adapter, domains)
    by_controls = adapter is not None and "n_controls" in adapter.report_
    error = partial(systematic_error, affine, domains)
    known = _Known(errors, known_from, error, by_controls=by_controls)
    if asked.pairs is not None:
        paired = agreement(asked.pairs, domains, affine, max(asked.min_cell, 2))
        known = replace(known, agreement=paired)
    [found] = _finished([_draft(domains, affine, known, asked)])
    if not domains.has_rows or not domains.is_whole:
        return found
    order = np.argsort(-np.abs(found.features["shift_before"]), kind="stable")

    def moved(rows: Array) -> Array:
        X = domains.rows(rows)
        X[domains.is_query[rows]] = affine(X[domains.is_query[rows]])
        return X

    names = [str(found.features["feature"][j]) for j in order]
    return replace(found, pictures=pictures(domains, moved, names))


def _draft(domains: Study, affine: Map, known: _Known, asked: _Asked) -> _Draft:
    """Evaluate one map except for the verdicts of features."""
    comparison = compare(domains, quiet=True, measured=True)
    names, support = known.names or domains.tables[0].labels, comparison.support
    check_tolerance(asked.tolerance, asked.imprecision, names)
    strata = cell_names(support.names, support.levels)
    rows = ComparableRows.of(domains, comparison, affine, asked.min_cell)
    versions = {
        "as is": ShiftTests(rows, rows.before),
        "moment matching": ShiftTests(rows, _moments_matched(rows)),
        "this map": ShiftTests(rows, rows.after, asked.n_permutations, known.errors, asked.seed),
    }
    before, matched, after = versions.values()
    before.chance = matched.chance = after.chance  # so that areas under the curve are comparable
    error = known.error(rows)
    fits = specification(rows, after.R, names, strata)
    gain = 0.0 if error is None else error.rms(0)[0] - error.rms(1)[0]
    # not with links, as units differ then; nor for sites, whose error is that which the fit expects
    if error is not None and affine.links is None and not known.is_site:
        error = error.with_strata(*fits.beyond(error.unit), affine.kind == "diagonal")
    per_unit = steps(affine.links, rows.after[rows.is_query])  # errors are those of linked values
    features = _features_sheet(names, before, after, error, np.sqrt((per_unit**2).mean(axis=0)))
    misfit = fits.finding(gain, len(names) if error is None else error.n_effective)
    apart = [] if known.by_bridges else [*unused_that_matter(domains), *filter(None, [misfit])]
    doubts = [*_doubts(domains, comparison, error, before, after, known)]
    doubts += [*(finding.text.rstrip(".") for finding in apart), *known.doubts]
    notes = [fits.note() if misfit is None else None, _of_curves(affine, error, names)]
    if known.known_from == "other rows":
        notes.append(Finding("note", "these are other rows than the map was fitted on."))
    notes += [*_findings(features, before, matched, after)]
    findings = gravest_first([*apart, *filter(None, notes)])
    sizes = [(None, None)] * 2 if error is None else [error.rms(k) for k in (0, 1)]
    labelled = asked.models, asked.labels
    sheets = model_sheets(*labelled, rows, strata, domains.tables, asked.min_cell)
    shown = np.lexsort((-np.abs(features["shift_before"]), after.adjusted))[: known.n_drawn]
    drawn = rows.take(shown)
    evaluation = Evaluation(
        verdict=_verdict(error, doubts, known.agreement),
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
        map_known_from=known.known_from,
        models=sheets[0],
        calibration=sheets[1],
        predictions=sheets[2],
        agreement=known.agreement,
        densities=densities(drawn, strata, [names[j] for j in shown], asked.min_cell),
    )
    return _Draft(evaluation, error, asked)


def _finished(drafts: list[_Draft]) -> list[Evaluation]:
    """Add the verdicts of features, whose p-values are adjusted over all features of all sites."""
    if not drafts:
        return []
    columns = judge([d.error for d in drafts], [d.evaluation.doubts for d in drafts])
    found = []
    for draft, judged in zip(drafts, columns):
        one, error, asked = draft.evaluation, draft.error, draft.asked
        limits = check_tolerance(asked.tolerance, asked.imprecision, one.features["feature"])
        features = Sheet({"feature": one.features["feature"], **judged, **one.features.columns})
        known = limits if error is not None else {}
        tolerances = within_limits(features, known, min(one.n_query, one.n_reference))
        doubts = one.doubts
        if one.verdict == "cannot tell" and not doubts and error is not None:
            gain, sizes = error.before - error.after, [error.rms(k)[0] for k in (0, 1)]
            variance = float(error.variances[2].mean()) / error.n_effective
            doubts = [in_doubt(float(gain.mean()), variance, *sizes)]
        found.append(replace(one, features=features, tolerances=tolerances, doubts=doubts))
    return found


def _evaluated_batches(adapter: BatchAdapter, study: Study, asked: _Asked) -> BatchEvaluation:
    """Evaluate every batch against all others, which are mapped to the reference first."""
    drafts, rows, failed = dict[Any, _Draft](), list[Any](), dict[Any, str]()
    for site in sites_of(adapter, study, asked.pairs, asked.min_cell):
        known = _Known(
            None,
            site.known_from,
            site.error,
            [*site.doubts()],
            by_bridges=not study.confounders and size_of(site.facts.bridges)[0] > 0,
            is_site=True,
            agreement=site.agreement,
            names=study.tables[0].labels,
            n_drawn=max(_MOST_DENSITIES // study.n_domains, _FEWEST_DENSITIES),
        )
        try:
            drafts[site.label] = _draft(site.domains, site.map, known, replace(asked, pairs=None))
        except (ValueError, ArithmeticError) as error:  # too few rows to say anything
            first = str(error).splitlines()[0].rstrip(".")  # without tables of levels
            failed[site.label] = f"it cannot be evaluated: {first}"
    found = dict(zip(drafts, _finished(list(drafts.values()))))
    for label, facts in adapter.report_.batches.items():
        if label in found or label in failed:
            count = hidden_counts(np.array([float(study.among(study.labels.index(label)).sum())]))
            path = " > ".join(map(str, facts.path))
            rows.append(_row(label, count[0], path, found.get(label), failed.get(label, "")))
    for label in adapter.report_.unreachable:
        rows.append(_row(label, None, "", None, "no path leads to the reference; left as it is"))
    names = list[str]()
    if found:
        features = max(found.values(), key=lambda one: one.error_before or 0.0).features
        order = np.argsort(-np.abs(features["shift_before"]), kind="stable")
        names = [str(features["feature"][j]) for j in order]
    pictured = None
    if study.is_whole and study.has_rows:
        pictured = pictures(study, partial(mapped, adapter, study), names)
    return gathered(rows, found, pictured)


def _row(label: Any, rows: Any, path: str, found: Evaluation | None, why: str) -> dict[str, Any]:
    """Return the row of one batch in the table of all batches."""
    words = [] if found is None else found.features.columns.get("verdict", [])
    verdict = "cannot tell" if found is None else found.verdict
    doubts = why if found is None else "; ".join(found.doubts)
    better = words.count("better") if words else None
    row = {"batch": label, "verdict": verdict, "rows": rows, **errors_of(found)}
    return row | {"better_features": better, "path": path, "doubts": doubts}


def _map_of(adapter_or_map: Any) -> Any:
    """Return the fitted map of an adapter, or a map itself; raise an error for anything else."""
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
    """Return the errors of the map under permuted labels (None if unknown), and its origin.

    The origin is "these rows" (recognised by their moments), "other rows" or "elsewhere".
    """
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
    """Return the rows after plain matching of means and standard deviations, as a comparison."""
    X, query = rows.before.copy(), rows.is_query
    scale = X[~query].std(axis=0) / ones_for_zeros(X[query].std(axis=0))
    scale = np.where(scale > 0, scale, 1.0)
    X[query] = (X[query] - X[query].mean(axis=0)) * scale + X[~query].mean(axis=0)
    return X


def _versions_sheet(versions: dict[str, ShiftTests]) -> Sheet:
    """Return the table that compares the data before, after moment matching, and after the map."""
    table = [
        {
            "data": name,
            "shift_sd": np.nan if version.rows.hides_all else version.left.size[0],
            "log_sd_ratio": np.nan if version.rows.hides_all else version.left.size[1],
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
    names: list[str],
    before: ShiftTests,
    after: ShiftTests,
    error: SystematicError | None,
    per_unit: Array,
) -> Sheet:
    """Return the table of features, without their verdicts.

    `per_unit` is how far the feature moves for a step of one on the scale of its link.
    """
    kept, columns, few = after.kept, dict[str, Any](feature=names), after.rows.few
    if error is not None:
        for name, size in intervals(error).items():
            columns[name] = size
            if name == "error_before" or name.startswith("error_after"):
                columns[f"{name}_unit"] = size * error.unit * per_unit
    share = np.where(kept.is_real, kept.observed / ones_for_zeros(np.abs(kept.expected)), np.nan)
    figures = {
        "shift_before": before.left.difference,
        "shift_after": after.left.difference,
        "sd_ratio_before": np.exp(before.left.log_ratio),
        "sd_ratio_after": np.exp(after.left.log_ratio),
        "p": after.p,
        "p_adjusted": after.adjusted,
        "explained_difference": kept.expected,
        "kept": share * np.sign(kept.expected),
    }
    hidden = False if few is None else few
    columns |= {name: np.where(hidden, np.nan, x) for name, x in figures.items()}
    return Sheet(columns | {"kept": plain(columns["kept"])})


def _findings(
    sheet: Sheet, before: ShiftTests, matched: ShiftTests, after: ShiftTests
) -> Iterator[Finding]:
    """Yield findings about kept differences and about the shift that is left."""
    text = "the confounders explain no difference between the domains that could be lost."
    if after.kept.limit > SMALL:
        text = "whether the confounders explain a difference between the domains is not known: "
        text += f"one below {after.kept.limit:.2g} sd would not be seen."
    if after.kept.share is not None:
        otherwise = round(matched.kept.share or 0.0, 2) + 0.0
        text = f"{after.kept.share:.0%} of the difference that confounders explain is kept (moment "
        text += f"matching: {otherwise:.0%})."
    if after.kept.are_too_few:
        yield Finding("care", f"over-corrected: only {text}", _MADE_ALIKE)
    elif after.rows.block.any():
        yield Finding("note", text)
    if after.rows.hides_all:
        return
    sizes = f"{before.left.size[0]:.2g} to {after.left.size[0]:.2g} sd"
    change = f"the shift given the confounders goes from {sizes}"
    largest = max(np.abs(after.left.difference).max(), np.abs(after.left.log_ratio).max())
    if largest < _NEGLIGIBLE and after.told_apart < 0.5 + _NEGLIGIBLE:
        yield Finding("note", f"{change}; no feature is off by more than {_NEGLIGIBLE} sd.")
    elif after.p_value > _LEVEL:
        yield Finding(
            "note", f"{change}; what is left is within chance ({after.p_in_words('.2g')})."
        )
    else:
        hit = [n for n, p in zip(sheet["feature"], sheet["p_adjusted"]) if p <= _LEVEL]
        where = f" in {listing(hit)}" if hit else ""
        text = f"{change}, and what is left{where} is more than chance ({after.p_in_words('.3g')}; "
        text += f"the area under the curve of a classifier of domains is {after.told_apart:.2f})."
        yield Finding("care", text, _UNEXPLAINED)


def _doubts(
    domains: Study,
    comparison: Comparison,
    error: SystematicError | None,
    before: ShiftTests,
    after: ShiftTests,
    known: _Known,
) -> Iterator[str]:
    """Yield the reasons why the expected error should not be trusted, if there are any."""
    if known.by_bridges:  # other rows of such sites are of different people, and may differ
        if error is None:
            yield "no error of the map is known"
        return
    if not domains.confounders:
        yield _BY_CONTROLS if known.by_controls else _PLAIN_MATCHING
    parts = {name: mine & (comparison.place >= 0) for name, mine in sides(domains.is_query)}
    if few := few_subjects(domains, parts):
        text = f"the {' and the '.join(few)} rows are of fewer than {FEW_SUBJECTS} subjects, "
        yield text + "whose own levels cannot be separated from the device"
    overlap = comparison.overlap
    worth = min(overlap.effective_query, overlap.effective_reference)
    if overlap.coefficient < _THIN:
        between = "its rows and all others" if known.is_site else "the domains"
        yield f"the confounders of {between} overlap by {overlap.coefficient:.2f} only"
    elif worth < _FEW_ROWS:
        yield f"the comparison rests on about {_FEW_ROWS:.0f} rows of a domain, or fewer"
    if error is None:
        yield "no error of the map is known"
        return
    if np.array_equal(after.rows.before, after.rows.after):
        yield "the map changes nothing"
    if after.rows.hides_all:
        return
    shift, noise = after.left.size[0], after.left.noise
    # of counts, mostly zero, a gain makes means equal, not variances
    measured = (after.rows.before == 0).mean(axis=0) < MODAL
    log_ratio = rms(after.left.log_ratio[measured]) if measured.any() else 0.0
    if after.p_value <= _LEVEL and np.sqrt(max(shift**2 - noise[0], 0.0)) > error.rms(1)[1][1]:
        yield f"the shift that is left, {shift:.2g} sd, is more than the map's errors explain"
    if shift > max(before.left.size[0], SMALL) and after.p_value <= _LEVEL:
        yield f"the shift grew from {before.left.size[0]:.2g} to {shift:.2g} sd"
    if log_ratio**2 > _SPREAD**2 + _ERRORS**2 * noise[1]:
        yield "the spread within strata is off by more than 30%"
    if after.kept.are_too_few:
        yield "the map made the domains alike where they should differ"


def _verdict(error: SystematicError | None, doubts: list[str], pairs: Agreement | None) -> str:
    """Return the verdict: by pairs if they decide, else by the expected error without doubts.

    The rules and their order are those of docs/explain/method.md, "Verdicts".
    """
    if pairs is not None and pairs.decides:
        return "better" if pairs.gain[0] > 0 else "worse"
    if error is not None and error.gain[1] < 0:
        return "worse"
    if error is None or doubts:
        return "cannot tell"
    if error.is_lowered:
        return "better"
    return "no change needed" if max(error.rms(k)[1][1] for k in (0, 1)) < SMALL else "cannot tell"


def _of_curves(affine: Map, error: SystematicError | None, names: list[str]) -> Finding | None:
    """Return a finding about features for which a straight line is likely wrong, if any."""
    if error is None or affine.kind != "diagonal" or not len(error.curved):
        return None
    text = "in all likelihood not a straight line: {names}; what a curve finds beyond it is in the "
    text += "errors."
    bent = said(text, names=listing(names[j] for j in error.curved))
    return Finding("care", bent, said("Use {@map='auto'} or 'monotone', or a link."))
