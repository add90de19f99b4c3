"""Before fitting: whether two domains can be compared, and what data would help."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit.adapter import ConDoAdapter
from condokit.batches.adapter import BatchAdapter
from condokit.batches.plan import make_plan
from condokit.checks import (
    Array,
    Missing,
    NoOverlapError,
    check_integer,
    check_number,
    listing,
    said,
)
from condokit.compare.comparison import Comparison, compare
from condokit.compare.overlap import Overlap, counted_overlap
from condokit.compare.weak_points import FEW_SUBJECTS, batch_weak_points, few_subjects
from condokit.conditionals import Stratified
from condokit.data.arrays import computing, largest_of, sides
from condokit.data.disclosure import (
    MIN_CELL,
    hidden_counts,
    hidden_overlap,
    number_of,
    share_of,
    shares_of_few,
    shown_names,
)
from condokit.data.measurements import (
    FEW_LEVELS,
    LINKING,
    REPEATED,
    reasons_in_words,
    repeated_subjects,
)
from condokit.data.reader import read_two
from condokit.data.records import Finding, Part, Record, Sheet, gravest_first
from condokit.data.roles import Roles
from condokit.data.study import Strata, Study, cell_names
from condokit.data.subsets import subsample_sides
from condokit.fit.choose import MANY_ROWS
from condokit.fit.fit_map import determines_matrix
from condokit.law.subjects import tied_to_batches
from condokit.trust.columns import ADVICE, describe_features, unused_that_matter

_FEW_ROWS = MIN_CELL  # rows of a cell; advice asks for multiples, so it discloses no small count
_FEW_EFFECTIVE = 10.0  # effective rows of a domain, below which the comparison is doubtful
_MUCH_DROPPED = 0.05  # share of a domain's rows that are not compared
_MUCH_OUTSIDE = 0.1  # share of query rows beyond the reference's range
_N_BINS = 5  # of a continuous confounder
_MOST_DIGITS = 300  # decimals of the edges of bins
_PLANNED = 8  # samples that we propose to measure again
_FAR = 0.7  # sd: expected error along a path of batches, above which we warn
_MOST_WANTED = 5  # cells for which rows are asked for
_MOST_STEPS = 200  # of the search for rows to add
_MOST_FEATURES = 15  # with more it is not tried whether a matrix is determined, which is slow
_ROWS_OF_MATRIX = 5000  # of a domain, for the same reason
_VERDICTS = {
    "go": "Go: the domains can be compared.",
    "go with care": "Go with care: the domains can be compared, with reservations.",
    "not possible": "Not possible: these data do not allow the comparison.",
}
_ROTATION = said(
    "Without confounders that differ, a matrix is determined up to a rotation only; "
    "{@divergence='ot'} takes the symmetric one."
)
_FEW_FOR_MATRIX = (
    "{rows:.0f} rows in the smaller domain are few for {d} features (about {wanted} are needed): a "
    "matrix would fit noise. {@map='auto'} decides by held-out rows."
)
_ALIKE = said(
    "The strata are too much alike: rotations that they hardly distinguish fit as well. Use "
    "{@map='location-scale'}, or {@divergence='ot'}."
)


@dataclass(frozen=True, repr=False)
class Assessment(Record):
    """Whether two domains can be compared given their confounders; see `assess`."""

    verdict: str  #: "go", "go with care" or "not possible".
    findings: list[Finding]  #: The reasons, the gravest first.
    wanted: list[str]  #: Data that would help most.
    n_query: int  #: Rows of the query.
    n_reference: int  #: Rows of the reference.
    n_features: int  #: Number of features.
    overlap: Overlap | None  #: How far the confounders overlap; None if nothing can be compared.
    #: Association of every confounder with the domain: Cramer's V of categories, differences in
    #: standard deviations, the overlap of it alone, the share of query rows beyond the reference.
    confounders: Sheet
    strata: Sheet  #: Rows by combination of categories, and by range of continuous confounders.
    #: Features that are constant, discrete, bounded, skewed, heavy-tailed or mostly missing.
    features: Sheet
    #: Whether a full matrix is "identifiable" with these rows and strata, and "why".
    affine: dict[str, Any]

    def parts(self) -> list[Part]:  # noqa: D102
        rows = f"{self.n_query} query and {self.n_reference} reference rows"
        text = f"{_VERDICTS[self.verdict]} {rows}, {self.n_features} features."
        if self.overlap is not None:
            worths = hidden_overlap(vars(self.overlap), self.n_query, self.n_reference)
            both = (worths[f"effective_{side}"] for side in ("query", "reference"))
            worth = " and ".join(n if isinstance(n, str) else f"{n:.0f}" for n in both)
            coefficient = f"{self.overlap.coefficient:.2f}"
            text += f" Overlap of the confounders: {coefficient}, worth {worth} rows."
        return [
            ("", text),
            ("Reasons", self.findings),
            ("Data that would help", self.wanted),
            ("Confounders", self.confounders),
            ("Rows compared", self.strata),
            ("Features to look at", self.features),
            (said("Full matrix ({@map='affine'})"), self.affine["why"]),
        ]


@computing("assessment")
def assess(
    X: Any,
    *,
    domain: Any = None,
    batch: Any = None,
    bridge: Any = None,
    adapter: BatchAdapter | None = None,
    confounders: Any = None,
    features: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    reference: Any = None,
    categorical: Any = None,
    missing: Missing = "raise",
    reliability: Any = None,
    warn_overlap: float = 0.4,
    min_overlap: float = 0.05,
    min_cell: int = 5,
) -> Any:
    """Assess whether two domains (or many batches) can be compared, before anything is fitted.

    Parameters
    ----------
    X, domain
        A table with the rows of both domains, and the column that names the domain, as in
        `ConDoAdapter.fit`. X may also be a `Study`, which holds all of this.
    batch, bridge, adapter
        For many batches, in place of `domain`: `batch` and `bridge` as in `BatchAdapter.fit`, and
        a `BatchAdapter`, fitted or not, whose settings are used.
    confounders, features, groups, sample_weight
        As in `ConDoAdapter.fit`.
    reference, categorical, missing, reliability, warn_overlap, min_overlap
        As in `ConDoAdapter`.
    min_cell : int, default=5
        Counts of cells with fewer rows than this are not shown.

    Returns
    -------
    Assessment or BatchAssessment
        The verdict with its reasons, tables of what was found, and which data would help most.

    Examples
    --------
    >>> from condokit import assess, datasets
    >>> df = datasets.make_eeg(random_state=0).to_frame()
    >>> roles = {"domain": "device", "confounders": ["seizure"], "features": ["eeg_*"]}
    >>> found = assess(df, reference="v1", **roles)
    >>> found.verdict, round(found.overlap.coefficient, 2)
    ('go', 0.59)
    """
    if batch is not None or adapter is not None:
        limits = {"missing": missing, "categorical": categorical, "min_overlap": min_overlap}
        inside = ConDoAdapter(**limits, reliability=reliability)
        one = adapter or BatchAdapter(inside, reference=reference)
        given = X, batch, confounders, features, groups, sample_weight, bridge
        study = X if isinstance(X, Study) else one.read(*given)
        return _assessed_batches(one, study, bridge, groups)
    how: dict[str, Any] = {"categorical": categorical, "missing": missing}
    how["reliability"] = reliability
    roles = Roles(domain, confounders, features, groups, sample_weight, **how)
    domains = X if isinstance(X, Study) else read_two(X, roles, reference)
    check_number("warn_overlap", warn_overlap, 0, 1)
    check_number("min_overlap", min_overlap, 0, 1)
    check_integer("min_cell", min_cell, 1)
    strata, kept = domains.strata(), domains.kept()
    comparison, overlap = None, None
    try:
        comparison = compare(domains, quiet=True, measured=True)
    except NoOverlapError as error:
        findings = [Finding("stop", str(error).split("\n")[0])]
    else:
        overlap, n_query = comparison.overlap, float(strata.count_query.sum())
        findings = list(_of_overlap(overlap, warn_overlap, min_overlap, n_query, min_cell))
        findings += _of_rows(domains, comparison)
        few = shares_of_few(overlap.outside, n_query, min_cell)
        shown = {name: share for name, share in overlap.outside.items() if name not in few}
        overlap = replace(overlap, outside=shown)
    each = domains.rows_behind
    remarkable = describe_features(domains)
    findings += [*unused_that_matter(domains), *_of_columns(domains, remarkable, min_cell)]
    findings += _of_subjects(domains)
    findings = gravest_first(findings)
    gravest = findings[0].level if findings else "note"
    goal = 0.0 if gravest == "note" else max(warn_overlap, 0.5)
    return Assessment(
        verdict={"stop": "not possible", "care": "go with care", "note": "go"}[gravest],
        findings=findings,
        wanted=_wanted(domains, strata, goal),
        n_query=round(each[domains.is_query & kept].sum()),
        n_reference=round(each[~domains.is_query & kept].sum()),
        n_features=domains.n_features,
        overlap=overlap,
        confounders=Sheet.of_rows(_associations(domains, overlap, min_cell)),
        strata=_strata_sheet(domains, strata, min_cell),
        features=remarkable,
        affine=dict(zip(("identifiable", "why"), _identifies_matrix(domains, comparison))),
    )


@dataclass(frozen=True, repr=False)
class BatchAssessment(Record):
    """Whether many batches can be compared, and along which paths; see `assess`."""

    verdict: str  #: "go", "go with care" or "not possible".
    findings: list[Finding]  #: The reasons, the gravest first.
    reference: str  #: The batch to map to, and how it came about.
    #: Of every batch: rows, path to the reference, expected error of a value along it in sd.
    batches: Sheet
    pairs: Sheet  #: What any two batches have in common.
    wanted: list[str]  #: What to measure next.

    def parts(self) -> list[Part]:  # noqa: D102
        return [
            ("", f"{_VERDICTS[self.verdict].replace('domains', 'batches')}"),
            ("Reasons", self.findings),
            ("Reference", self.reference),
            ("Batches, with the error expected by numbers of rows alone", self.batches),
            ("Pairs of batches", self.pairs),
            ("Data that would help", self.wanted),
        ]


def _assessed_batches(adapter: BatchAdapter, study: Study, *names: Any) -> BatchAssessment:
    """Assess many batches: which of them have a path to the reference, and its expected error.

    `names` are the bridge and the groups, by which the plan names samples to be measured again.
    """
    graph, reference, paths, why = adapter.graph(study)
    plan = make_plan(study, graph, reference, _PLANNED, *names)
    rows, lost, far = [], [], []
    for b, label in enumerate(study.labels):
        path = paths.get(b)
        error = np.nan if path is None else graph.path_error(path)
        steps = [] if path is None else [str(study.labels[k]) for k in path]
        count = hidden_counts(graph.rows[[b]])[0]
        rows.append({"batch": label, "rows": count, "error": error, "path": " > ".join(steps)})
        lost += [label] if path is None else []
        far += [label] if path is not None and error > _FAR else []
    findings = []
    try:
        study.refuse_unbridged(reference, sorted(paths), 3)  # as a fit of scales and offsets does
    except ValueError as error:
        findings.append(Finding("stop", str(error)))
    if lost:
        text = f"no path of batches leads from {listing(lost)} to the reference."
        findings.append(Finding("stop", text, "Measure samples again in two batches."))
    if far:
        text = f"values of {listing(far)} will be off by more than {_FAR} sd."
        findings.append(Finding("care", text, "Add rows of shared strata, or bridges."))
    findings += _of_subjects(study)
    findings += [Finding("care", str(point.sentence)) for point in batch_weak_points(study)]
    levels = [finding.level for finding in findings]
    verdict = "not possible" if "stop" in levels else "go with care" if findings else "go"
    edges = graph.edges()
    for edge in edges:
        edge["batches"] = " - ".join(map(str, edge["batches"]))
        edge["bridges"] = hidden_counts(np.array([edge["bridges"]]))[0]
    wanted = str(plan).splitlines()[1:]
    return BatchAssessment(
        verdict, findings, why, Sheet.of_rows(rows), Sheet.of_rows(edges), wanted
    )


def _of_overlap(
    overlap: Overlap, warn_overlap: float, min_overlap: float, n_query: float, min_cell: int
) -> Iterator[Finding]:
    """Yield findings about the overlap of the confounders."""
    coefficient = overlap.coefficient
    alone = [f"{n} {c:.2f}" for n, c in overlap.by_confounder.items() if c < warn_overlap]
    blame = f" (alone: {', '.join(alone)})" if alone and len(overlap.by_confounder) > 1 else ""
    text = f"the confounders of the two domains overlap by {coefficient:.2f}{blame}."
    if coefficient < min_overlap:
        yield Finding("stop", text, "Adaptation compares like with like.")
    elif coefficient < warn_overlap:
        yield Finding("care", text, "Errors grow quickly below 0.4, and intervals do not show it.")
    effective = min(overlap.effective_query, overlap.effective_reference)
    if effective < _FEW_EFFECTIVE and coefficient >= min_overlap:
        yield Finding("care", f"the comparison rests on about {effective:.0f} rows of a domain.")
    for name, share in overlap.outside.items():
        if share > _MUCH_OUTSIDE:
            much = share_of(round(share * n_query), n_query, min_cell)
            yield Finding("care", f"{much} of the query rows have {name} unseen in the reference.")


def _of_rows(domains: Study, comparison: Comparison) -> Iterator[Finding]:
    """Yield findings about rows that can and cannot be compared, and about small cells."""
    support = comparison.support
    total = support.count_query + support.count_reference
    names = shown_names(cell_names(support.names, support.levels), total)
    for name, cells in (("query", support.count_query), ("reference", support.count_reference)):
        total = cells.sum()
        if total < 2:
            yield Finding("stop", f"only {total:g} {name} row can be compared.")
        elif total < _FEW_ROWS:
            yield Finding("care", f"fewer than {_FEW_ROWS} {name} rows can be compared.")
        lost = sum(row[f"n_{name}"] for row in support.dropped)
        if lost > _MUCH_DROPPED * (total + lost):
            text = f"{share_of(lost, total + lost)} of the {name} rows have confounder values "
            yield Finding("care", f"{text}that the other domain lacks, and are not compared.")
        few = [names[k] for k in np.flatnonzero((cells < _FEW_ROWS) & (support.weights > 0.02))]
        if few and total >= _FEW_ROWS:
            yield Finding("care", f"fewer than {_FEW_ROWS} {name} rows with {listing(few)}.")
    if domains.groups is not None:
        tied = tied_to_batches(comparison.covariates, comparison.is_query)
        if names := [c.name for c, one in zip(domains.continuous, tied) if one]:
            text = f"{listing(names)} changes within subjects only with the domain. Its effect "
            yield Finding("note", text + "within subjects is taken to be that between them.")
    parts = {name: mine & (comparison.place >= 0) for name, mine in sides(domains.is_query)}
    for name in few_subjects(domains, parts):
        yield Finding("care", f"the {name} rows come from fewer than {FEW_SUBJECTS} subjects.")


def _of_subjects(study: Study) -> list[Finding]:
    """Return a finding if columns look like subjects with several rows, not named as `groups`."""
    names = repeated_subjects(study)
    linking = said(LINKING) if study.n_domains > 2 else ""
    return [Finding("care", said(REPEATED, names=listing(names), linking=linking))] if names else []


def _of_columns(domains: Study, remarkable: Sheet, min_cell: int) -> Iterator[Finding]:
    """Yield findings about unusual features and missing confounders."""
    for kind, advice in ADVICE.items():
        names = [row["feature"] for row in remarkable.rows() if row["kind"] == kind]
        if names:
            is_grave = kind in ("heavy-tailed", "mostly missing")
            yield Finding("care" if is_grave else "note", f"{kind}: {listing(names)}.", advice)
    if domains.left:
        text = said("Name those that are in {@`features`}.")
        yield Finding("note", f"not taken as features: {reasons_in_words(domains.left)}.", text)
    if few := [c.name for c in domains.continuous if c.may_be_codes]:
        yield Finding("note", said(FEW_LEVELS, names=listing(few)))
    for name, count in domains.missing.items():
        if count:
            yield Finding("note", f"{name} is missing in {number_of(count, min_cell)} rows.")


def _associations(domains: Study, overlap: Overlap | None, min_cell: int) -> Iterator[Any]:
    """Yield a row of the table for every confounder: how strongly it differs between domains."""
    for confounder in domains.confounders:
        name = confounder.name
        if confounder.values is not None:
            kind, v, difference = "continuous", None, _mean_difference(domains, confounder.values)
        else:
            counts = _by_side(domains, confounder.codes, len(confounder.levels))
            kind, v, difference = "categorical", cramers_v(counts), share_difference(counts)
        yield {
            "confounder": name,
            "kind": kind,
            "cramers_v": v,
            "difference_sd": difference,
            "overlap": None if overlap is None else overlap.by_confounder[name],
            "outside": None if overlap is None else overlap.outside.get(name),
            "missing": hidden_counts(np.array([domains.missing.get(name, 0)]), min_cell)[0],
        }


def cramers_v(counts: Array) -> float:
    r"""Return Cramer's V, :math:`\sqrt{\chi^2 / n}`, of counts of shape (2, n_levels)."""
    expected = counts.sum(axis=0) * counts.sum(axis=1, keepdims=True) / counts.sum()
    seen = expected > 0
    return float(np.sqrt(((counts - expected)[seen] ** 2 / expected[seen]).sum() / counts.sum()))


def share_difference(counts: Array) -> float:
    r"""Return the standardised difference of the shares of levels (Yang and Dalton 2012).

    It is :math:`\sqrt{\Delta' S^{+} \Delta}`, with :math:`\Delta` the difference of the shares of
    all levels but the first, and S the mean of their multinomial covariances in both domains.
    `counts` have the shape (2, n_levels). Without a common level it is infinite, which the
    pseudo-inverse would hide.
    """
    shares = counts / counts.sum(axis=1, keepdims=True)
    if shares.shape[1] == 1:
        return 0.0
    if not shares.min(axis=0).any():
        return float(np.inf)
    delta = (shares[0] - shares[1])[1:]
    S = np.mean([np.diag(p[1:]) - np.outer(p[1:], p[1:]) for p in shares], axis=0)
    return float(np.sqrt(max(delta @ np.linalg.pinv(S, hermitian=True) @ delta, 0.0)))


def _mean_difference(domains: Study, values: Array) -> float:
    r"""Return the standardised difference :math:`(\bar z_q - \bar z_r) / \sqrt{(s_q^2 + s_r^2)/2}`.

    q is the query and r the reference.
    """
    weights, moments = _weights(domains), []
    values = np.nan_to_num(values)
    values = values / largest_of(values)
    for _, side in sides(domains.is_query):
        z, w = values[side], weights[side] / weights[side].sum()
        moments.append((w @ z, w @ (z - w @ z) ** 2))
    means, variances = zip(*moments)
    difference, spread = means[0] - means[1], np.sqrt((variances[0] + variances[1]) / 2)
    if spread == 0:
        return 0.0 if difference == 0 else float(np.inf)
    return float(difference / spread)


def _weights(domains: Study) -> Array:
    """Return the weight of every row; 0 for rows that are excluded."""
    return np.where(domains.kept(), 1.0 if domains.weights is None else domains.weights, 0.0)


def _by_side(domains: Study, cell: Array, n_cells: int) -> Array:
    """Return counts of shape (2, n_cells): rows of query and reference by cell; -1 is no cell."""
    weights = _weights(domains)
    rows = [(cell >= 0) & side for _, side in sides(domains.is_query)]
    return np.stack([np.bincount(cell[side], weights[side], n_cells) for side in rows])


def _cells(
    domains: Study, strata: Strata, least: int = MIN_CELL
) -> Iterator[tuple[list[str], Array]]:
    """Yield names and counts (2, n_cells) of the strata, then of bins of continuous confounders."""
    if strata.names:
        counts = np.stack([strata.count_query, strata.count_reference]).astype(float)
        names = cell_names(strata.names, strata.levels)
        yield shown_names(names, counts.sum(axis=0), least), counts
    for confounder in domains.continuous:
        assert confounder.values is not None
        names, edges = _bins(confounder.name, confounder.values[domains.kept()])
        place = np.searchsorted(edges, confounder.values, "right")
        yield names, _by_side(domains, place, len(names))


def _bins(name: str, values: Array) -> tuple[list[str], Array]:
    """Return names and inner edges of bins with about equal numbers of rows."""
    lowest, highest = float(values.min()), float(values.max())
    inner = np.quantile(values, np.linspace(0, 1, _N_BINS + 1)[1:-1])
    digits = 2 - int(np.floor(np.log10(highest - lowest))) if highest > lowest else 0
    edges = np.unique(np.round(inner, min(digits, _MOST_DIGITS)))
    edges = edges[(edges > lowest) & (edges <= highest)]
    if len(edges) == 0:
        return [name], edges
    shown = [f"{edge:.12g}" for edge in edges]
    between = [f"{name} {a} to {b}" for a, b in zip(shown, shown[1:])]
    return [f"{name} below {shown[0]}", *between, f"{name} from {shown[-1]}"], edges


def _strata_sheet(domains: Study, strata: Strata, min_cell: int) -> Sheet:
    """Return the table of rows by cell, with small counts hidden."""
    if domains.weights is not None and domains.is_whole:  # disclosure counts rows, not weights
        domains = replace(domains, weights=None)
        strata = domains.strata()
    rows: list[Any] = []
    for names, counts in _cells(domains, strata, min_cell):
        rows += zip(names, *(hidden_counts(side, min_cell) for side in counts))
    return Sheet.of_rows(rows, ("rows with", "n_query", "n_reference"))


def _wanted(domains: Study, strata: Strata, goal: float) -> list[str]:
    """Return advice on which rows to add so that the overlap of every confounder reaches `goal`."""
    asked: list[tuple[float, str]] = []
    where = [f"{domains.labels[0]!r} (query)", f"{domains.labels[1]!r} (reference)"]
    if domains.labels == ("query", "reference"):
        where = ["the query", "the reference"]
    for names, counts in _cells(domains, strata) if goal else ():
        more = _additions(counts, goal)
        asked += [(more[s, k], f"{names[k]} in {where[s]}") for s, k in np.argwhere(more)]
    largest = sorted(asked, key=lambda item: -item[0])[:_MOST_WANTED]
    return [f"about {n:.0f} more rows with {cell}" for n, cell in largest]


def _additions(counts: Array, goal: float) -> Array:
    """Return numbers of rows (2, n_cells) to add for an overlap of `goal`, by greedy steps.

    Each step adds rows to the cell where the overlap gains most per row. Numbers are rounded up to
    multiples of five, so that they disclose no small count.
    """
    asked = np.zeros(counts.shape)
    step = np.maximum(np.ceil(0.02 * counts.sum(axis=1)), 1.0)
    seen = [(side, k) for side in (0, 1) for k in np.flatnonzero(counts.any(axis=0))]
    for _ in range(_MOST_STEPS):
        before = counted_overlap(counts + asked)
        if before >= goal:
            break
        gains = []
        for side, k in seen:
            trial = counts + asked
            trial[side, k] += step[side]
            gains.append((counted_overlap(trial) - before) / step[side])
        best = seen[int(np.argmax(gains))]
        asked[best] += step[best[0]]
    few = (counts + asked < _FEW_ROWS) & (counts[::-1] >= _FEW_ROWS)
    return _FEW_ROWS * np.ceil(np.where(few, np.maximum(asked, 1), asked) / _FEW_ROWS)


def _identifies_matrix(domains: Study, comparison: Comparison | None) -> tuple[bool | None, str]:
    """Return whether these rows and strata determine a full matrix (None: unknown), and why."""
    if comparison is None:
        return False, "Nothing can be compared."
    support, d = comparison.support, domains.n_features
    if d == 1:
        return True, "With one feature a matrix is a scale."
    if len(support.weights) == 1 and not domains.continuous:
        return False, _ROTATION
    rows = min(support.count_query.sum(), support.count_reference.sum())
    if rows < MANY_ROWS * d:
        return False, said(_FEW_FOR_MATRIX, rows=rows, d=d, wanted=MANY_ROWS * d)
    if d > _MOST_FEATURES or domains.continuous or domains.gaps is not None:
        return None, said("There are rows enough; {@map='auto'} decides on held-out rows.")
    domains = domains if domains.is_whole else domains.sampled()
    keep = np.zeros(len(domains.is_query), dtype=bool)
    keep[subsample_sides(domains.is_query, _ROWS_OF_MATRIX, domains.kept())] = True
    part = replace(domains, keep=keep)
    try:
        is_determined = determines_matrix(part, compare(part, quiet=True), Stratified())
    except (FloatingPointError, np.linalg.LinAlgError):
        return False, "No matrix fits these strata: some have too few rows."
    if is_determined:
        return True, "There are rows enough, and the strata differ enough."
    return False, _ALIKE
