"""Before fitting: whether two domains can be compared, and what data would help."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit.checks import Array, NoOverlapError, check_integer, check_number, listing
from condokit.choose import MANY_ROWS
from condokit.compare.comparison import Comparison, compare
from condokit.compare.overlap import Overlap
from condokit.conditionals import Stratified
from condokit.data.disclosure import hidden_counts, share_of, small_cells
from condokit.data.domains import Confounder, Domains, Strata, cell_names
from condokit.data.records import Finding, Part, Record, Sheet
from condokit.data.roles import from_table
from condokit.data.subsets import subsample
from condokit.fit import determines_matrix
from condokit.trust.features import ADVICE, describe_features

_FEW_ROWS = 5  # of a cell
_FEW_EFFECTIVE = 10.0
_FEW_SUBJECTS = 5
_MUCH_DROPPED = 0.05
_MUCH_OUTSIDE = 0.1
_N_BINS = 5
_MOST_WANTED = 5
_MOST_STEPS = 200
_MOST_FEATURES = 15  # up to which it is tried out whether a matrix is determined
_MOST_ROWS = 5000  # of a domain, for that
_VERDICTS = {
    "go": "Go: the domains can be compared.",
    "go with care": "Go with care: the domains can be compared, with reservations.",
    "not possible": "Not possible: these data do not allow the comparison.",
}


@dataclass(frozen=True, repr=False)
class Assessment(Record):
    """Whether two domains can be compared given their confounders; see `assess`.

    Attributes
    ----------
    verdict : {"go", "go with care", "not possible"}
        In a word.
    findings : list of Finding
        The reasons, the gravest first.
    wanted : list of str
        Data that would help most.
    n_query, n_reference, n_features : int
        Rows of each domain and features.
    overlap : Overlap or None
        How far the confounders overlap, and the rows that the common part is worth.
    confounders : Sheet
        Association of every confounder with the domain: Cramer's V of categories, differences in
        standard deviations, the overlap of it alone, the share of query rows beyond the reference.
    strata : Sheet
        Rows by combination of categories, and by range of continuous confounders.
    features : Sheet
        Features that are constant, discrete, bounded, skewed, heavy-tailed or mostly missing.
    affine : dict
        Whether a full matrix is "identifiable" with these rows and strata, and "why".
    """

    verdict: str
    findings: list[Finding]
    wanted: list[str]
    n_query: int
    n_reference: int
    n_features: int
    overlap: Overlap | None
    confounders: Sheet
    strata: Sheet
    features: Sheet
    affine: dict[str, Any]

    def parts(self) -> list[Part]:  # noqa: D102
        rows = f"{self.n_query} query and {self.n_reference} reference rows"
        text = f"{_VERDICTS[self.verdict]} {rows}, {self.n_features} features."
        if self.overlap is not None:
            text += (
                f" Overlap of the confounders: {self.overlap.coefficient:.2f}, worth "
                f"{self.overlap.effective_query:.0f} and {self.overlap.effective_reference:.0f} "
                "rows."
            )
        parts: list[Part] = [("", text)]
        reasons = [str(finding) for finding in self.findings]
        for heading, content in (("Reasons", reasons), ("Data that would help", self.wanted)):
            if content:
                parts.append((heading, content))
        for heading, sheet in (
            ("Confounders", self.confounders),
            ("Rows compared", self.strata),
            ("Features to look at", self.features),
        ):
            if len(sheet):
                parts.append((heading, sheet))
        parts.append(("Full matrix (map='affine')", self.affine["why"]))
        return parts


def assess(
    X: Any,
    *,
    domain: Any,
    confounders: Any = None,
    features: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    reference: Any = None,
    categorical: Any = None,
    missing: str = "raise",
    warn_overlap: float = 0.4,
    min_overlap: float = 0.05,
    min_cell: int = 5,
) -> Assessment:
    """Say whether the two domains in a table can be compared, before anything is fitted.

    Parameters
    ----------
    X : array or data frame of shape (n_rows, n_columns)
        Rows of both domains.
    domain, confounders, features, groups, sample_weight : array-like, str or list of str
        As in `ConDoAdapter.fit`.
    reference, categorical, missing, warn_overlap, min_overlap
        As in `ConDoAdapter`.
    min_cell : int, default=5
        Counts of cells with fewer rows are not shown.

    Returns
    -------
    Assessment
        The verdict with its reasons, tables, and the data that would help.

    Examples
    --------
    >>> from condokit import assess, datasets
    >>> df = datasets.make_eeg(random_state=0).to_frame()
    >>> found = assess(
    ...     df, domain="device", reference="v1", confounders=["seizure"], features=["eeg_*"]
    ... )
    >>> found.verdict
    'go'
    """
    domains = from_table(
        X, domain, confounders, features, groups, sample_weight, reference, categorical, missing
    )
    return assess_domains(domains, warn_overlap, min_overlap, min_cell)


def assess_domains(
    domains: Domains,
    warn_overlap: float = 0.4,
    min_overlap: float = 0.05,
    min_cell: int = 5,
) -> Assessment:
    """Assess domains that have been read already."""
    check_number("warn_overlap", warn_overlap, 0, 1)
    check_number("min_overlap", min_overlap, 0, 1)
    check_integer("min_cell", min_cell, 1)
    strata = domains.strata()
    findings: list[Finding] = []
    comparison: Comparison | None = None
    try:
        comparison = compare(domains, quiet=True, measured=True)
    except NoOverlapError as error:
        findings.append(Finding("stop", str(error).split("\n")[0]))
    overlap = None
    if comparison is not None:
        n_query = float(strata.count_query.sum())
        findings += _of_overlap(comparison.overlap, warn_overlap, min_overlap, n_query, min_cell)
        overlap = _without_small_cells(comparison.overlap, n_query, min_cell)
        findings += _of_rows(domains, comparison)
    remarkable = describe_features(domains)
    findings += _of_features(remarkable)
    findings += _of_missing(domains, min_cell)
    affine = _affine(domains, comparison)
    levels = {finding.level for finding in findings}
    bad, weak = "stop" in levels, "care" in levels
    goal = max(warn_overlap, 0.5) if bad or weak else 0.0
    kept = domains.kept()
    findings.sort(key=lambda finding: ("stop", "care", "note").index(finding.level))
    return Assessment(
        verdict="not possible" if bad else "go with care" if weak else "go",
        findings=findings,
        wanted=_wanted(domains, strata, goal),
        n_query=int((domains.is_query & kept).sum()),
        n_reference=int((~domains.is_query & kept).sum()),
        n_features=domains.n_features,
        overlap=overlap,
        confounders=_associations(domains, overlap, min_cell),
        strata=_strata_sheet(domains, strata, min_cell),
        features=_features_sheet(remarkable),
        affine=affine,
    )


def _without_small_cells(overlap: Overlap, n_query: float, min_cell: int) -> Overlap:
    """Leave out the shares of query rows beyond the reference that are those of a few rows."""
    outside = {
        name: share
        for name, share in overlap.outside.items()
        if not small_cells(np.round(share * n_query), min_cell)
    }
    return replace(overlap, outside=outside)


def _of_overlap(
    overlap: Overlap, warn_overlap: float, min_overlap: float, n_query: float, min_cell: int
) -> list[Finding]:
    coefficient = overlap.coefficient
    alone = [f"{n} {c:.2f}" for n, c in overlap.by_confounder.items() if c < warn_overlap]
    blame = f" (alone: {', '.join(alone)})" if alone and len(overlap.by_confounder) > 1 else ""
    text = f"the confounders of the two domains overlap by {coefficient:.2f}{blame}."
    effective = min(overlap.effective_query, overlap.effective_reference)
    found = []
    if coefficient < min_overlap:
        found.append(Finding("stop", text, "Adaptation compares like with like."))
    elif coefficient < warn_overlap:
        found.append(
            Finding("care", text, "Errors grow quickly below 0.4, and intervals do not show it.")
        )
    if effective < _FEW_EFFECTIVE and coefficient >= min_overlap:
        found.append(
            Finding("care", f"the comparison rests on about {effective:.0f} rows of a domain.")
        )
    for name, share in overlap.outside.items():
        if share > _MUCH_OUTSIDE:
            much = share_of(round(share * n_query), n_query, min_cell)
            found.append(
                Finding("care", f"{much} of the query rows have {name} unseen in the reference.")
            )
    return found


def _of_rows(domains: Domains, comparison: Comparison) -> list[Finding]:
    support, found = comparison.support, []
    cells = np.stack([support.count_query, support.count_reference])
    totals = cells.sum(axis=1)
    names = cell_names(support.names, support.levels)
    for name, total, side in zip(("query", "reference"), totals, (0, 1)):
        if total < 2:
            found.append(Finding("stop", f"only {total:g} {name} row can be compared."))
        elif total < _FEW_ROWS:
            found.append(Finding("care", f"fewer than {_FEW_ROWS} {name} rows can be compared."))
        lost = sum(row[f"n_{name}"] for row in support.dropped)
        if lost > _MUCH_DROPPED * (total + lost):
            found.append(
                Finding(
                    "care",
                    f"{share_of(lost, total + lost)} of the {name} rows have confounder values "
                    "that the other domain lacks, and are not compared.",
                )
            )
        few = (cells[side] < _FEW_ROWS) & (support.weights > 0.02)
        if few.any() and total >= _FEW_ROWS:
            found.append(
                Finding(
                    "care",
                    f"fewer than {_FEW_ROWS} {name} rows with "
                    f"{listing([names[k] for k in np.flatnonzero(few)])}.",
                )
            )
    if domains.groups is not None:
        place = support.place(comparison.strata)
        for name, mine in (("query", domains.is_query), ("reference", ~domains.is_query)):
            n = len(np.unique(domains.groups[mine & (place >= 0)]))
            if n < _FEW_SUBJECTS:
                found.append(
                    Finding("care", f"the {name} rows are of fewer than {_FEW_SUBJECTS} subjects.")
                )
    return found


def _of_features(remarkable: dict[str, dict[str, str]]) -> list[Finding]:
    by_kind: dict[str, list[str]] = {}
    for name, notes in remarkable.items():
        for kind in notes:
            by_kind.setdefault(kind, []).append(name)
    return [
        Finding(
            "care" if kind in ("heavy-tailed", "mostly missing") else "note",
            f"{kind}: {listing(by_kind[kind])}.",
            advice,
        )
        for kind, advice in ADVICE.items()
        if kind in by_kind
    ]


def _of_missing(domains: Domains, min_cell: int) -> list[Finding]:
    return [
        Finding("note", f"{name} is missing in {count if count >= min_cell else 'a few'} rows.")
        for name, count in domains.missing.items()
        if count
    ]


def _associations(domains: Domains, overlap: Overlap | None, min_cell: int) -> Sheet:
    """Tell how strongly every confounder is associated with the domain."""
    kept = domains.kept()
    weights = np.where(kept, 1.0 if domains.weights is None else domains.weights, 0.0)
    rows = []
    for confounder in domains.confounders:
        v, difference = (
            cramers_v(confounder, domains.is_query, weights),
            standardised_difference(confounder, domains.is_query, weights),
        )
        rows.append(
            {
                "confounder": confounder.name,
                "kind": "categorical" if confounder.values is None else "continuous",
                "cramers_v": v,
                "difference_sd": difference,
                "overlap": None if overlap is None else overlap.by_confounder[confounder.name],
                "outside": None if overlap is None else overlap.outside.get(confounder.name),
                "missing": _shown(domains.missing.get(confounder.name, 0), min_cell),
            }
        )
    return Sheet({name: [row[name] for row in rows] for name in rows[0]} if rows else {})


def _shown(count: int, min_cell: int) -> int | str:
    return f"<{min_cell}" if small_cells(np.array(count), min_cell) else count


def cramers_v(confounder: Confounder, is_query: Array, weights: Array) -> float | None:
    r"""Return :math:`\sqrt{\chi^2 / n}` between domain and categories; None if continuous."""
    if confounder.values is not None:
        return None
    table = _counts(confounder, is_query, weights)
    expected = table.sum(axis=0) * table.sum(axis=1, keepdims=True) / table.sum()
    seen = expected > 0
    return float(np.sqrt(((table - expected)[seen] ** 2 / expected[seen]).sum() / table.sum()))


def standardised_difference(confounder: Confounder, is_query: Array, weights: Array) -> float:
    r"""Return the difference between the domains in standard deviations, query minus reference.

    Numbers: :math:`(\bar z_q - \bar z_r) / \sqrt{(s_q^2 + s_r^2) / 2}`. Categories, as a distance:
    :math:`\sqrt{\Delta' S^{+} \Delta}` with the difference of shares :math:`\Delta` and the mean S
    of their multinomial covariances (Yang and Dalton 2012).
    """
    if confounder.values is not None:
        moments = []
        for side in (is_query, ~is_query):
            w = weights[side] / weights[side].sum()
            mean = w @ np.nan_to_num(confounder.values[side])
            moments.append((mean, w @ (np.nan_to_num(confounder.values[side]) - mean) ** 2))
        spread = np.sqrt((moments[0][1] + moments[1][1]) / 2)
        difference = moments[0][0] - moments[1][0]
        if spread == 0:
            return 0.0 if difference == 0 else float(np.inf)
        return float(difference / spread)
    shares = _counts(confounder, is_query, weights)
    shares /= shares.sum(axis=1, keepdims=True)
    delta = (shares[0] - shares[1])[1:]
    S = np.mean([np.diag(p[1:]) - np.outer(p[1:], p[1:]) for p in shares], axis=0)
    if len(delta) == 0:
        return 0.0
    # no level in common: the difference is infinite, which the pseudo-inverse would hide
    if not np.minimum(shares[0], shares[1]).any():
        return float(np.inf)
    return float(np.sqrt(max(delta @ np.linalg.pinv(S, hermitian=True) @ delta, 0.0)))


def _counts(confounder: Confounder, is_query: Array, weights: Array) -> Array:
    """Count rows of (query, reference) by category."""
    known = confounder.codes >= 0
    n_levels = len(confounder.levels)
    return np.stack(
        [
            np.bincount(confounder.codes[side & known], weights[side & known], n_levels)
            for side in (is_query, ~is_query)
        ]
    )


def _cells(domains: Domains, strata: Strata) -> list[tuple[list[str], Array]]:
    """Return the ways to look at the rows: names of cells, and counts of query and reference."""
    views: list[tuple[list[str], Array]] = []
    counts = np.stack([strata.count_query, strata.count_reference]).astype(float)
    if strata.names:
        views.append((cell_names(strata.names, strata.levels), counts))
    kept = domains.kept()
    weights = np.where(kept, 1.0 if domains.weights is None else domains.weights, 0.0)
    for confounder in domains.continuous:
        assert confounder.values is not None
        edges = bin_edges(confounder.values[kept])
        place = np.searchsorted(edges, confounder.values, "right")
        table = np.stack(
            [
                np.bincount(place[side], weights[side], len(edges) + 1)
                for side in (domains.is_query, ~domains.is_query)
            ]
        )
        views.append((_bin_names(confounder.name, edges), table))
    return views


def bin_edges(values: Array) -> Array:
    """Return inner edges of bins with about equal numbers of rows."""
    inner = np.quantile(values, np.linspace(0, 1, _N_BINS + 1)[1:-1])
    spread = float(values.max() - values.min())
    digits = 2 - int(np.floor(np.log10(spread))) if spread > 0 else 0
    edges = np.unique(np.round(inner, digits))
    return edges[(edges > values.min()) & (edges <= values.max())]


def _bin_names(name: str, edges: Array) -> list[str]:
    if len(edges) == 0:
        return [name]
    shown = [f"{edge:.12g}" for edge in edges]
    between = [f"{name} {a} to {b}" for a, b in zip(shown, shown[1:])]
    return [f"{name} below {shown[0]}", *between, f"{name} from {shown[-1]}"]


def _strata_sheet(domains: Domains, strata: Strata, min_cell: int) -> Sheet:
    columns: dict[str, list[Any]] = {"rows with": [], "n_query": [], "n_reference": []}
    if domains.weights is not None:  # a heavy row is one row
        domains = replace(domains, weights=None)
        strata = domains.strata()
    for names, counts in _cells(domains, strata):
        columns["rows with"] += names
        columns["n_query"] += hidden_counts(counts[0], min_cell)
        columns["n_reference"] += hidden_counts(counts[1], min_cell)
    return Sheet(columns)


def _features_sheet(remarkable: dict[str, dict[str, str]]) -> Sheet:
    pairs = [
        (name, kind, text) for name, notes in remarkable.items() for kind, text in notes.items()
    ]
    keys = ("feature", "kind", "because")
    return Sheet({key: [pair[i] for pair in pairs] for i, key in enumerate(keys)})


def _wanted(domains: Domains, strata: Strata, goal: float) -> list[str]:
    """Name the rows that would bring the overlap of every confounder to a goal."""
    asked: dict[str, float] = {}
    sides = [f"{domains.labels[0]!r} (query)", f"{domains.labels[1]!r} (reference)"]
    if domains.labels == ("query", "reference"):
        sides = ["the query", "the reference"]
    for names, counts in _cells(domains, strata) if goal else []:
        more = _additions(counts, goal)
        for side, k in zip(*np.nonzero(more)):
            asked[f"{names[k]} in {sides[side]}"] = more[side, k]
    largest = sorted(asked, key=lambda cell: -asked[cell])[:_MOST_WANTED]
    return [f"about {asked[cell]:.0f} more rows with {cell}" for cell in largest]


def _additions(counts: Array, goal: float) -> Array:
    """Return the rows to add to (query, reference) cells, best first, for an overlap of `goal`.

    Cells that one domain has and the other hardly has get five. All are multiples of five: what is
    wanted must not tell the count of a small cell.
    """
    asked = np.zeros(counts.shape)
    step = np.maximum(np.ceil(0.02 * counts.sum(axis=1)), 1.0)
    seen = [(side, k) for side in (0, 1) for k in np.flatnonzero(counts.any(axis=0))]
    for _ in range(_MOST_STEPS):
        before = _coefficient(counts + asked)
        if before >= goal:
            break
        gains = []
        for side, k in seen:
            trial = counts + asked
            trial[side, k] += step[side]
            gains.append((_coefficient(trial) - before) / step[side])
        best = seen[int(np.argmax(gains))]
        asked[best] += step[best[0]]
    few = (counts + asked < _FEW_ROWS) & (counts[::-1] >= _FEW_ROWS)
    return _FEW_ROWS * np.ceil(np.where(few, np.maximum(asked, 1), asked) / _FEW_ROWS)


def _coefficient(counts: Array) -> float:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
    return float(shares.min(axis=0).sum())


def _affine(domains: Domains, comparison: Comparison | None) -> dict[str, Any]:
    """Tell whether these rows and strata determine a full matrix."""
    d = domains.n_features

    def answer(possible: bool | None, why: str) -> dict[str, Any]:
        return {"identifiable": possible, "why": why}

    if comparison is None:
        return answer(False, "Nothing can be compared.")
    if d == 1:
        return answer(True, "With one feature a matrix is a scale.")
    support = comparison.support
    rows = min(support.count_query.sum(), support.count_reference.sum())
    n_strata = len(support.weights)
    if n_strata == 1 and not domains.continuous:
        return answer(
            False,
            "Without confounders that differ, a matrix is determined up to a rotation only; "
            "divergence='ot' takes the symmetric one.",
        )
    if rows < MANY_ROWS * d:
        return answer(
            False,
            f"{rows:.0f} rows in the smaller domain are few for {d} features (about "
            f"{MANY_ROWS * d} are needed): a matrix would fit noise. map='auto' will see.",
        )
    if d > _MOST_FEATURES or domains.continuous or domains.gaps is not None:
        return answer(None, "There are rows enough; map='auto' decides on held-out rows.")
    try:
        is_determined = determines_matrix(*_thinned(domains), Stratified())
    except (FloatingPointError, np.linalg.LinAlgError):
        return answer(False, "No matrix fits these strata: some have too few rows.")
    if is_determined:
        return answer(True, "There are rows enough, and the strata differ enough.")
    return answer(
        False,
        "The strata are too much alike: rotations that they hardly tell apart are as good. Use "
        "map='location-scale', or divergence='ot'.",
    )


def _thinned(domains: Domains) -> tuple[Domains, Comparison]:
    """Return the domains with a part of their rows."""
    keep = np.zeros(len(domains.is_query), dtype=bool)
    for side in (domains.is_query, ~domains.is_query):
        rows = np.flatnonzero(domains.kept() & side)
        keep[rows[subsample(len(rows), _MOST_ROWS)]] = True
    part = replace(domains, keep=keep)
    return part, compare(part, quiet=True)
