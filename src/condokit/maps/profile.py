"""The profile of the data that a map was fitted on, and the comparison of new data with it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
from scipy.special import bdtrc

from condokit.checks import LARGEST, Array, listing
from condokit.data.arrays import ones_for_zeros
from condokit.data.blocks import blocks_of
from condokit.data.disclosure import MIN_CELL, small_cells, too_few
from condokit.data.records import Finding, Part, Record, Sheet, gravest_first
from condokit.data.study import Study
from condokit.data.subsets import subsample
from condokit.data.tables import Table
from condokit.maps import drift

_UNKNOWN = {"mean": np.nan, "sd": np.nan, "missing": 0.0, "low": -np.inf, "high": np.inf}
_UNKNOWN["tails"] = np.nan
MOST_ROWS = 5000  # rows from which a profile is computed, at most,
_MANY_VALUES = 2_000_000  # fewer if they have more values than this,
_ENOUGH_ROWS = 1000  # but at least so many rows
_ROWS_FOR_RANGE = 100  # fewest rows for a range
_ROWS_FOR_TAILS = 20  # fewest rows for an estimate of tails
_SORTED_VALUES = 200_000  # values that are sorted to find equal ones, at most,
_FEWEST_SORTED = 200  # but at least so many rows
_LEVEL = 0.006  # rate of false alarms of each of six tests, except
_LEVELS = {"mean": 0.02}  # that of the mean, the most important one; all together 5%
_MUCH_OUTSIDE = 0.01  # share of rows
_MUCH_IN_TAILS = 0.05  # share of rows of a feature
# differences must also be large, or thousands of rows would raise alarms about nothing
_DRIFT = 0.5  # change of a mean, in standard deviations
_SPREAD = 1.5  # ratio of standard deviations
_ROUNDED = 1.1  # factor by which rounding in files may change a variance
_BLOCK_VALUES = 1 << 17  # values that a profile is computed from at a time, to stay in the cache
_TABLES = ("mean", "sd", "missing", "low", "high", "tails")
_ROUNDING = 1e-8  # variance, relative to that in the fit, below which higher powers are rounding
_MUCH_MISSING = 0.1  # more missing than in the fit, as a share of rows
_overflowing = np.errstate(over="ignore", invalid="ignore")  # values may be of any size
_VERDICTS = {
    "as fitted": "As fitted: the data look like those that the map was fitted on.",
    "look": "Look: the data differ from those that the map was fitted on.",
    "unknown": "Unknown: the map has no profile of the data that it was fitted on.",
    "stop": "Stop: the map cannot be applied to these data.",
}
VERDICTS = ("stop", "look", "unknown", "as fitted")  # the most serious first
_ADVICE = {
    "mean moved": "Without confounders, other subjects cannot be distinguished from a drifting "
    "device. Refit if the device changed.",
    "values far away": "Check these rows: units, codes for missing values, broken sensors.",
}


def profile(domains: Study, hidden: bool = False) -> "Profile":
    """Return range and moments of the query's features, from at most 5000 of the rows.

    With `hidden`, figures of fewer than five rows, or subjects if known, are left out.
    """
    query = np.flatnonzero(domains.kept() & domains.is_query)
    if not domains.is_whole:
        return _of_sums(domains, query)
    rows = query[subsample(len(query), _most_rows(domains.n_features))]
    step = max(1, _BLOCK_VALUES // max(len(rows), 1))
    if step >= domains.n_features:
        return _of_rows(domains, rows, len(query), hidden)
    every = np.arange(domains.n_features)
    parts = [
        _of_rows(domains.of(every[k : k + step]), rows, len(query), hidden)
        for k in range(0, len(every), step)
    ]
    tables: list[Any] = [[getattr(part, name) for part in parts] for name in _TABLES]
    known: list[Any] = [None if own[0] is None else np.concatenate(own) for own in tables]
    return Profile(len(query), *known)


def _most_rows(n_features: int) -> int:
    """Return how many rows a profile is computed from, at most."""
    return max(_ENOUGH_ROWS, min(MOST_ROWS, _MANY_VALUES // max(n_features, 1)))


def _of_rows(domains: Study, rows: Array, n_rows: int, hidden: bool) -> "Profile":
    """Describe the features of some rows of the query that stand for `n_rows`."""
    X, groups = domains.side(True, rows), None if domains.groups is None else domains.groups[rows]
    found = Profile.of(X, n_rows, groups=groups)
    if not hidden:
        return found
    marks = np.isnan(X)
    known, gaps = (
        (mark if groups is None else _by_subject(np.logical_or, mark, groups)).sum(axis=0)
        for mark in (~marks, marks)
    )
    few, mean, sd = too_few(known), found.mean, found.sd
    missing = np.where(small_cells(known), 1.0, found.missing)
    missing = np.where(small_cells(gaps), 0.0, missing)
    mean, sd = (np.where(few, np.nan, values) for values in (mean, sd))
    return replace(found, mean=mean, sd=sd, missing=missing)


def _of_sums(domains: Study, query: Array) -> "Profile":
    """Return moments of the query's features from sums over all rows, without a range."""
    group = np.full(len(domains.is_query), -1)
    group[query] = 0
    stats = domains.gather(group, 1)
    n = np.broadcast_to(stats.n[0], stats.mean.shape[1])
    few, sd = too_few(n), np.sqrt(stats.squares[0] / np.maximum(n - 1, 1))
    mean, sd = (np.where(few, np.nan, values) for values in (stats.mean[0], sd))
    missing = 1 - n / max(float(stats.count[0]), 1.0)
    kurtosis = n * stats.fourth[0] / ones_for_zeros(stats.squares[0] ** 2)
    tails = np.where(n < _ROWS_FOR_TAILS, np.nan, drift.degrees_of_freedom(kurtosis, n))
    return Profile(int(round(float(stats.count[0]))), mean, sd, missing, tails=tails)


def _tails(X: Array, D: Array, gaps: Array) -> Array:
    """Return `Profile.tails`, given rows X and their deviations D from the means."""
    D[gaps] = 0.0
    n, D = len(X) - gaps.sum(axis=0), D * D
    variance = D.sum(axis=0) / np.maximum(n, 1)
    kurtosis = np.einsum("nd,nd->d", D, D) / np.maximum(n, 1) / ones_for_zeros(variance**2)
    some = max(_FEWEST_SORTED, _SORTED_VALUES // max(X.shape[1], 1))
    tied = drift.are_tied(np.sort(X[subsample(len(X), some)], axis=0))
    tails = np.where(tied, drift.TIED, drift.degrees_of_freedom(kurtosis, n))
    return np.where(n < _ROWS_FOR_TAILS, np.nan, tails)


def _by_subject(reduce: np.ufunc, values: Array, groups: Array) -> Array:
    """Reduce the rows of every subject to one."""
    order = np.argsort(groups, kind="stable")
    first = np.flatnonzero(np.diff(groups[order], prepend=groups.min(initial=0) - 1))
    return reduce.reduceat(values[order], first, axis=0)


@dataclass(frozen=True)
class Profile:
    """Range and moments of the query features that a map was fitted on."""

    n_rows: int  #: Rows behind it; in a file, 0 stands for fewer than five.
    mean: Array  #: Of the known values of every feature.
    sd: Array  #: Their standard deviations.
    missing: Array  #: Shares of missing values.
    #: The fifth lowest value of every feature; of subjects, if they are known, that of the fifth
    #: lowest subject; None for fewer than 100 of them. Files have it rounded, as all of these.
    low: Array | None = None
    high: Array | None = None  #: The fifth highest, likewise.
    #: How heavy the tails of every feature are: degrees of freedom of a Student t with such tails,
    #: 1 for features with many equal values; None for fewer than 20 rows.
    tails: Array | None = None
    is_from_file: bool = False  #: Whether its numbers are rounded, as in files.

    @classmethod
    def of(cls, X: Array, n_rows: int, groups: Array | None = None) -> "Profile":
        """Describe rows that stand for `n_rows` of them; NaN is missing."""
        gaps = np.isnan(X)
        known = len(X) - gaps.sum(axis=0)
        first = np.nan_to_num(X[0]) if len(X) else np.zeros(X.shape[1])
        with np.errstate(over="ignore"):
            D = np.clip(X - first, -LARGEST, LARGEST)
        D[gaps] = 0.0
        count = np.maximum(known, 1)
        shift = D.sum(axis=0) / count
        squares = np.einsum("nd,nd->d", D, D) - count * shift**2
        sd = np.sqrt(np.maximum(squares, 0.0) / np.maximum(count - 1, 1))
        low = high = None
        units = [X] if groups is None else [_by_subject(f, X, groups) for f in (np.fmin, np.fmax)]
        if len(units[0]) >= _ROWS_FOR_RANGE:
            n = known if groups is None else (~np.isnan(units[0])).sum(axis=0)
            enough, k = n >= _ROWS_FOR_RANGE, MIN_CELL - 1
            # sorting is faster than partitions, and NaN comes last
            ordered = [np.sort(table, axis=0) for table in units]
            highest = ordered[-1][np.maximum(n - 1 - k, 0), np.arange(len(n))]
            low, high = np.where(enough, ordered[0][k], -np.inf), np.where(enough, highest, np.inf)
        tails = None if len(X) < _ROWS_FOR_TAILS else _tails(X, D - shift, gaps)
        return cls(n_rows, first + shift, sd, 1 - known / max(len(X), 1), low, high, tails)

    def matches(self, other: "Profile") -> bool:
        """Return whether two profiles, which may be rounded, may be of the same rows."""
        if self.n_rows != other.n_rows or len(self.mean) != len(other.mean):
            return False
        fine = 1.1 * np.fmax(steps(self.sd), steps(other.sd))
        return all(
            _close(getattr(self, name), getattr(other, name), fine) for name in ("mean", "sd")
        )

    def rounded(self) -> "Profile":
        """Return the same to a tenth of standard deviations, which are rounded to two digits.

        So a file holds no value of a row, and two files that differ by one row do not reveal it: n
        times a mean that is known to s / 10 is known to n s / 10 only. Ranges are rounded
        outwards.

        Returns
        -------
        Profile
            The profile as it is written to files.
        """
        step, size = steps(self.sd), _digits(self.sd)
        mean = np.where(step > 0, multiples(np.rint, self.mean, step), self.mean)
        low, high = (
            ends if ends is None else np.where(step > 0, multiples(turn, ends, step), ends)
            for ends, turn in ((self.low, np.floor), (self.high, np.ceil))
        )
        return replace(self, mean=mean, sd=size, low=low, high=high)

    def to_dict(self) -> dict[str, Any]:
        """Return rounded numbers for JSON; None where unknown, or where few rows are behind it.

        Returns
        -------
        dict
            Values by field.
        """
        few = np.round(self.n_rows * (1 - self.missing)) < MIN_CELL
        hidden: dict[str, Any] = {"n_rows": 0 if too_few(self.n_rows) else self.n_rows}
        rounded = self if self.is_from_file else self.rounded()
        hidden |= {name: np.where(few, np.nan, getattr(rounded, name)) for name in ("mean", "sd")}
        return {
            name: None if values is None else _none_for_unknown(values)
            for name, values in {**vars(rounded), **hidden}.items()
            # files of earlier versions have no tails
            if name != "is_from_file" and (name != "tails" or values is not None)
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Profile":
        """Return the profile with these fields of a file."""
        arrays: dict[str, Any] = {
            name: values if values is None else np.where(np.isnan(values), _UNKNOWN[name], values)
            for name, values in fields.items()
            if name in _UNKNOWN
        }
        found = cls(fields["n_rows"], **arrays, is_from_file=True)
        if found.low is not None and found.high is not None and (found.low > found.high).any():
            raise ValueError("'fitted_on.low' must not be above 'fitted_on.high'.")
        return found


@dataclass(frozen=True, repr=False)
class Check(Record):
    """Whether new data look like those a map was fitted on; see `AffineMap.check`."""

    verdict: str  #: "as fitted", "look", "stop"; "unknown" if there is nothing to compare with.
    findings: list[Finding]  #: The reasons.
    n_rows: int  #: Rows that were checked.
    missing_columns: list[str]  #: Features that the map needs and X lacks.
    extra_columns: list[str]  #: Columns that the map does not know.
    #: For every feature: the change of its mean in standard deviations, the ratio of standard
    #: deviations, the shares of rows outside the range and missing, and what is wrong; figures of
    #: fewer than five values are left out.
    features: Sheet

    def parts(self) -> list[Part]:  # noqa: D102
        rows = f" {self.n_rows} rows." if self.n_rows or self.verdict != "stop" else ""  # not read
        parts: list[Part] = [("", _VERDICTS[self.verdict] + rows)]
        if self.findings:
            parts.append(("Reasons", [str(finding) for finding in self.findings]))
        odd = [i for i, note in enumerate(self.features["note"]) if note] if self.features else []
        if odd:
            parts.append(("Features that differ", self.features.take(odd)))
        return parts


def check(maps: Mapping[Any, Any], X: Any, place: Callable[[Table], Array] | None = None) -> Check:
    """Compare new rows with the data that their maps were fitted on; see `AffineMap.check`.

    `place` returns the number of each row's map; without it, the first map is for all rows.
    """
    blocks, one = blocks_of(X), next(iter(maps.values()))
    given, names = Table(X) if blocks is None else blocks, one.feature_names
    columns = given.columns if names is not None else None
    monitors = Monitors(maps, columns, given.width)
    if blocks is not None and columns is not None and monitors.can_compare and place is None:
        blocks = blocks.select(list(names or ()))
    for table in [given] if isinstance(given, Table) else (Table(block) for block in blocks or ()):
        code = np.zeros(table.n_rows, dtype=np.intp) if place is None else place(table)
        monitors.count(code)
        if monitors.can_compare:
            monitors.watch(table.match(names, one.n_features_in_, "this map"), code)
    return monitors.result()


class Monitors:
    """Compares the rows of batches, block by block, with the data their maps were fitted on."""

    def __init__(
        self, maps: Mapping[Any, Any], columns: Sequence[str] | None, n_columns: int
    ) -> None:
        self.each = {label: Monitor(one, columns, n_columns) for label, one in maps.items()}
        self.n_rows = np.zeros(len(maps), dtype=np.intp)

    @property
    def stops(self) -> list[str]:
        """Why rows cannot be mapped, which is the same for all maps."""
        first = next(iter(self.each.values()))
        return [finding.text for finding in first.findings if finding.level == "stop"]

    @property
    def can_compare(self) -> bool:
        """Whether the rows of any batch can be compared."""
        return any(monitor.can_compare for monitor in self.each.values())

    def count(self, code: Array) -> None:
        """Count the rows of each map; -1 means no map."""
        self.n_rows += np.bincount(code[code >= 0], minlength=len(self.n_rows))

    def watch(self, table: Table, code: Array) -> None:
        """Add the rows of a table whose columns are the features in order."""
        each = list(self.each.values())
        for rows, chunk in table.chunks():
            here = code[rows]
            for b in np.unique(here[here >= 0]).tolist():
                if each[b].can_compare:
                    mine = here == b
                    each[b].update(chunk if mine.all() else chunk[mine])

    def result(self) -> Check:
        """Return the result of the comparison."""
        seen = {label: n for label, n in zip(self.each, self.n_rows.tolist()) if n}
        some = seen or {next(iter(self.each)): 0}
        for monitor in self.each.values():
            monitor.n_batches = len(some)
        return _together({label: self.each[label].result(n) for label, n in some.items()})


def _together(parts: Mapping[Any, Check]) -> Check:
    """Return one record for the rows of several batches, by their labels."""
    each = list(parts.values())
    if len(each) == 1:
        return each[0]
    common = [f for f in each[0].findings if all(f in one.findings for one in each)]
    said = list(common)
    for label, one in parts.items():  # findings that all parts share are reported once
        own = [finding for finding in one.findings if finding not in common]
        said += [replace(f, text=f"{label}: {f.text}") for f in own]
    rows = (({"batch": n} | row) for n, one in parts.items() for row in one.features.rows())
    verdict = min((one.verdict for one in each), key=VERDICTS.index)
    n_rows, columns = sum(one.n_rows for one in each), vars(each[0])
    alone = columns["missing_columns"], columns["extra_columns"]
    return Check(verdict, gravest_first(said), n_rows, *alone, Sheet.of_rows(rows))


class Monitor:
    """Compares rows, block by block, with the data that a map was fitted on."""

    def __init__(self, map: Any, columns: Sequence[str] | None, n_columns: int) -> None:
        self.profile, self.reach, self.n_beyond = map.fitted_on, map.reach(), 0
        self.n_batches = 1  # among which false alarms are shared
        names, n_features = map.feature_names, map.n_features_in_
        self.beyond = np.zeros(n_features)
        self.names = list(names or [f"column {j}" for j in range(n_features)])
        known, there = set(names or ()), set(columns or ())
        are_named = names is not None and columns is not None
        self.lacking = [name for name in self.names if are_named and name not in there]
        self.extra = [column for column in columns or () if are_named and column not in known]
        self.findings: list[Finding] = []
        if not are_named and n_columns != n_features:
            text = f"there are {n_columns} columns, but the map takes {n_features}."
            self.findings.append(Finding("stop", text))
        if self.lacking:
            text = f"columns are missing: {listing(self.lacking)}."
            self.findings.append(Finding("stop", text))
        if self.extra:
            text = f"columns that the map ignores: {listing(self.extra)}."
            self.findings.append(Finding("note", text))
        self.n_seen = 0
        self.known, self.outside, self.differ, self.infinite = np.zeros((4, n_features))
        self.powers = np.zeros((4, n_features))  # sums of z to z ** 4
        self.lowest, self.highest = np.zeros((2, n_features))  # z, at least on their side

    @property
    def can_compare(self) -> bool:
        """Whether rows can be compared: all features are there, and a profile is known."""
        return self.profile is not None and not any(f.level == "stop" for f in self.findings)

    @_overflowing
    def update(self, X: Array) -> None:
        """Add rows whose columns are the features in order."""
        profile, finite = self.profile, np.isfinite(X)
        assert profile is not None
        with np.errstate(over="ignore"):
            z = np.where(finite, X - profile.mean, 0.0) / ones_for_zeros(profile.sd)
        z = np.clip(z, -LARGEST, LARGEST)
        low = -np.inf if profile.low is None else profile.low - profile.sd
        high = np.inf if profile.high is None else profile.high + profile.sd
        self.n_seen += len(X)
        self.infinite += np.isinf(X).sum(axis=0)
        self.known += finite.sum(axis=0)
        square = z**2
        sums = z.sum(axis=0), square.sum(axis=0), np.einsum("nd,nd->d", square, z)
        self.powers += [*sums, np.einsum("nd,nd->d", square, square)]
        self.outside += (finite & ((low > X) | (high < X))).sum(axis=0)
        self.differ += (finite & (z != 0)).sum(axis=0)
        self.lowest = np.minimum(self.lowest, z.min(axis=0, initial=0.0))
        self.highest = np.maximum(self.highest, z.max(axis=0, initial=0.0))
        if self.reach is not None:
            beyond = finite & ((self.reach[0] > X) | (self.reach[1] < X))
            self.beyond += beyond.sum(axis=0)
            self.n_beyond += int(beyond.any(axis=1).sum())

    def result(self, n_rows: int) -> Check:
        """Return the result for a table of `n_rows` rows."""
        sheet, findings = Sheet({}), list(self.findings)
        if self.can_compare and self.n_seen:
            sheet, more = self._sheet()
            findings += [*more, *self._of_tails()]
        levels = {finding.level for finding in findings}
        is_known = self.profile is not None and np.isfinite(self.profile.mean).any()
        verdict = "as fitted" if is_known else "unknown"
        verdict = "stop" if "stop" in levels else "look" if "care" in levels else verdict
        return Check(verdict, gravest_first(findings), n_rows, self.lacking, self.extra, sheet)

    def _of_tails(self) -> Iterator[Finding]:
        """Report how many rows lie beyond the knots of curves."""
        if too_few(self.n_beyond):
            return
        often = np.argsort(-self.beyond, kind="stable")[: int((self.beyond > 0).sum())]
        share = self.n_beyond / self.n_seen
        text = f"{share:.1%} of rows lie beyond the knots of a curve, where it is extrapolated as "
        text += f"a straight line: {listing(self.names[j] for j in often)}."
        seen = max(self.n_seen, 1)
        more = bdtrc(self.beyond - 1, seen, _MUCH_IN_TAILS) < _LEVEL / len(self.names)
        much = (more & (self.beyond > _MUCH_IN_TAILS * seen)).any()
        yield Finding("care" if much else "note", text)

    @_overflowing
    def _sheet(self) -> tuple[Sheet, list[Finding]]:
        """Return a table of all features, and findings about those that differ.

        Levels of tests are divided by the number of features, not of independent ones: that is made
        for sums of squares, and the largest of 100 features that correlate by .5 exceeds the 5%
        limit of 4 independent ones in 35% of cases.
        """
        profile, known = self.profile, self.known
        assert profile is not None
        count = np.maximum(known, 1)
        mean, square, cube, fourth = self.powers / count
        variance = np.maximum(square - mean**2, 0.0)
        fourth = fourth - 4 * mean * cube + 6 * mean**2 * square - 3 * mean**4
        kurtosis = np.where(variance > _ROUNDING, fourth / ones_for_zeros(variance**2), 0.0)
        variance *= count / np.maximum(count - 1, 1)
        spread, missing = np.sqrt(variance), 1 - known / max(self.n_seen, 1)
        p = self._chances(mean, variance, kurtosis)
        d = max(int(np.isfinite(profile.mean).sum()), 1) * self.n_batches
        sure = {name: chance < _LEVELS.get(name, _LEVEL) / d for name, chance in p.items()}
        varies = (profile.sd > 0) & (known > 0)
        moved = np.abs(np.log(np.maximum(spread, 1e-300))) > np.log(_SPREAD)
        lacks = sure["missing"] & (missing > profile.missing + _MUCH_MISSING)
        found = {
            "infinite values": self.infinite > 0,
            "no values": (known == 0) & lacks,
            "was constant": (profile.sd == 0) & sure["constant"],
            "values far away": varies & sure["value"],
            "outside the range": varies & (self.outside > _MUCH_OUTSIDE * count) & sure["outside"],
            "mean moved": varies & (np.abs(mean) > _DRIFT) & sure["mean"],
            "spread changed": varies & (known > 2) & moved & sure["spread"],
            "more missing": lacks,
        }
        notes = [", ".join(n for n, hit in found.items() if hit[j]) for j in range(len(known))]
        figures = {"mean_moved_sd": mean, "sd_ratio": spread, "outside": self.outside / count}
        few, gaps = too_few(known), self.n_seen - known
        figures["outside"] = np.where(small_cells(self.outside), np.nan, figures["outside"])
        shown = {k: _none_for_unknown(np.where(few, np.nan, v)) for k, v in figures.items()}
        missing = np.where(small_cells(gaps) | small_cells(known), np.nan, missing)
        shown["missing"] = _none_for_unknown(missing)
        sheet = {"feature": self.names, **shown, "note": notes}
        findings = [
            Finding("care", f"{note}: {listing(compress(self.names, hit))}.", _ADVICE.get(note, ""))
            for note, hit in sorted(found.items(), key=lambda item: int(item[1].argmax()))
            if hit.any()
        ]
        return Sheet(sheet), findings

    def _chances(self, mean: Array, variance: Array, kurtosis: Array) -> dict[str, Array]:
        """Return p-values of six tests that new rows have the same distribution as the old."""
        profile, n = self.profile, self.known
        assert profile is not None
        m = np.maximum(min(profile.n_rows, _most_rows(len(n))) * (1 - profile.missing), 2.0)
        sd = ones_for_zeros(profile.sd)
        if profile.is_from_file:  # moments are rounded, and differences by rounding are not drift
            mean = np.sign(mean) * np.maximum(np.abs(mean) - 0.5 * steps(profile.sd) / sd, 0.0)
            less, more = np.maximum(variance / _ROUNDED, 1.0), np.minimum(variance * _ROUNDED, 1.0)
            variance = np.where(variance > 1, less, more)
        low = -np.inf if profile.low is None else (profile.low - profile.mean) / sd
        high = np.inf if profile.high is None else (profile.high - profile.mean) / sd
        low, high = np.broadcast_arrays(low, high, n)[:2]
        tails, area = drift.assumed(profile.tails, low, high), MIN_CELL / m
        below = drift.chance_of_value(-self.lowest, -low, area, tails, m)
        above = drift.chance_of_value(self.highest, high, area, tails, m)
        guessed = True if profile.tails is None else np.isnan(profile.tails)
        tied = (tails <= drift.TIED) | guessed & (np.isinf(low) | (n < _ROWS_FOR_TAILS))
        gaps = np.maximum(m * profile.missing, MIN_CELL - 1)  # smaller numbers are hidden in files
        beyond, seen = np.full(len(n), 2.0 * MIN_CELL - 1), np.full(len(n), float(self.n_seen))
        return {
            "value": 2 * np.maximum(n, 1) * np.minimum(below, above),
            "mean": drift.chance_of_mean(mean, variance, n, m),
            "spread": drift.chance_of_spread(variance, kurtosis, tails, tied, n, m),
            "outside": drift.chance_of_count(self.outside, n, beyond, m),
            "missing": drift.chance_of_count(seen - n, seen, gaps, m),
            "constant": drift.chance_of_count(self.differ, n, np.zeros(len(n)), m),
        }


def _close(one: Array, other: Array, atol: Array) -> bool:
    """Return whether numbers are equal up to rounding, where both are known."""
    known = np.isfinite(one) & np.isfinite(other)
    return np.allclose(one[known], other[known], rtol=1e-9, atol=atol[known])


def _digits(sd: Array) -> Array:
    """Return standard deviations with two digits."""
    return np.array([float(f"{s:.1e}") for s in sd])


def steps(sd: Array) -> Array:
    """Return the power of ten at or below a tenth of standard deviations; 0 if these are 0."""
    size = np.where(np.isfinite(sd) & (sd > 0), _digits(sd), 1.0)
    with np.errstate(all="ignore"):
        step = 10.0 ** np.floor(np.log10(size / 10) + 1e-9)
    return np.where(np.isfinite(sd) & (sd > 0) & (step > 0), step, 0.0)


def multiples(turn: Any, values: Array, step: Array) -> Array:
    """Return values rounded by `turn` to multiples of powers of ten, in their shortest form."""
    power = -np.rint(np.log10(ones_for_zeros(step)))
    with np.errstate(all="ignore"):
        many = turn(values / ones_for_zeros(step))
        found = np.where(power > 0, many / 10.0**power, many * step)
    return np.where(np.isfinite(found), found, values)


def _none_for_unknown(values: Any) -> Any:
    """Return plain numbers with None in place of NaN and infinity."""
    known: Any = np.where(np.isfinite(values), values, None)
    return known.tolist()
