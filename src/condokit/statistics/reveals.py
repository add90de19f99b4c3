"""What statistics reveal about rows: warnings when a file is written, and its description."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from condokit.checks import SMALLEST, Array, listing, warn
from condokit.data.arrays import is_constant
from condokit.statistics.attacks import attacks
from condokit.statistics.guard import SPREAD

CONCENTRATED = 0.8  # share of the squared deviations of a cell that one row holds
_SAME = 0.1  # mean squared difference of means in sampling variances, below which rows are the same
_FEWEST_MEANS = 8  # that must be compared to conclude this
_ROUNDING = 1e-9  # relative difference of equal numbers
_FAR = 1e9  # standard errors at which differences are cut, so that squares do not overflow


def warn_of_cells(content: dict[str, Any], stats: Any) -> None:
    """Warn of written cells in which one row is an outlier, or in which all rows are equal."""
    cells = [(one["domain"], *one["levels"]) for one in content["cells"]]
    fourth = stats.sums.moments.fourth[[stats.cells[cell] for cell in cells]]
    single, flat = _exposed(_written(content, "squares"), fourth)
    if single.any():
        text = "One row holds {share:.0%} or more of the squared deviations of {where}: its value "
        text += "can nearly be computed from mean and spread. Cut or transform such values, or "
        text += "merge levels."
        where = _where(cells, stats.names, single)
        warn("concentration", text, UserWarning, share=CONCENTRATED, where=where)
    if flat.any():
        text = "All rows have the same value of {where}: the mean is everyone's value. Leave the "
        text += "feature out, or merge levels, if that must not be known."
        warn("constant-cells", text, UserWarning, where=_where(cells, stats.names, flat))


def warn_of_differences(before: Any, stats: Any, min_cell: int) -> None:
    """Warn if two files of the same domains together reveal a few rows."""
    changed = differences(before, stats, min_cell)
    if changed is None:
        text = "An earlier file has other confounders, or other ranges of them: anyone who has "
        text += "both files can subtract or combine their sums, and so learn what neither reveals. "
        text += "Send only one of the two files."
        warn("differencing", text, UserWarning)
    elif changed:
        text = "Some cells differ from those of an earlier file by fewer than {least} rows: "
        text += "{cells}. Anyone who has both files can compute what these rows are like. Wait "
        text += "until there are more rows, or send only one of the two files."
        cells = listing([_cell_name(cell) for cell in changed], 3)
        warn("differencing", text, UserWarning, least=min_cell, cells=cells)


def differences(before: Any, stats: Any, min_cell: int) -> list[Any] | None:
    """Return the cells whose counts differ by a few rows from those of another file.

    None if the files have different confounders. Files with different labels are compared if their
    means are so close that most rows must be the same.
    """
    few, pairs = min_cell * np.ceil(stats.largest_weight), list(_pairs(before, stats))
    alike = np.concatenate([np.empty(0), *(pair.distances for pair in pairs if pair.is_near(few))])
    is_renamed = len(alike) >= _FEWEST_MEANS and float(alike.mean()) < _SAME
    labels = set(stats.labels).intersection(before.labels)
    if not labels and not is_renamed:
        return []
    if set(before.confounders) != set(stats.confounders) or before.ranges != stats.ranges:
        return None
    changed = [
        pair.cell
        for pair in pairs
        if (pair.cell[0] == pair.other[0] if labels else is_renamed)
        and pair.counts[1] >= few
        and pair.is_near(few)
        and not pair.is_same
    ]
    return changed or list(_merged_levels(before, stats, few))


def _merged_levels(before: Any, stats: Any, few: float) -> Iterator[Any]:
    """Yield domains, or levels, whose counts differ by few rows although their cells differ."""
    for label in set(stats.labels).intersection(before.labels):
        parts = [
            {
                _levels(one, cell): one.sums.moments.count[k]
                for cell, k in one.cells.items()
                if cell[0] == label
            }
            for one in (before, stats)
        ]
        if parts[0].keys() == parts[1].keys():
            continue
        common = set.intersection(*({level for cell in part for level in cell} for part in parts))
        for level in [None, *sorted(common, key=str)]:
            one, other = (
                sum(n for cell, n in part.items() if level is None or level in cell)
                for part in parts
            )
            if 0 < abs(one - other) < few:
                yield (label,) if level is None else (label, level[1])


def warn_of_repeats(one: Any, other: Any) -> None:
    """Warn of parts that seem to contain the same rows twice, at two times or under two labels."""
    pairs = list(_pairs(one, other))
    same_label = [pair for pair in pairs if pair.cell[0] == pair.other[0]]
    near = [p for p in same_label if 10 * abs(p.counts[0] - p.counts[1]) < p.counts[0]]
    ratio = np.concatenate([np.empty(0), *(pair.distances for pair in near)])
    twice = [pair for pair in same_label if pair.is_same]
    if twice or (len(ratio) >= _FEWEST_MEANS and float(ratio.mean()) < _SAME):
        text = "Two parts of {label!r} look like the same rows at two times, which would count "
        label = (twice or near)[0].cell[0]
        warn("same-rows", text + "twice. Give only the newer part.", UserWarning, label=label)
    for pair in pairs:
        if pair.is_same and pair.cell[0] != pair.other[0]:
            text = "{one!r} and {other!r} have cells with the same numbers. Check that they are "
            text += "not the same rows under two labels."
            warn("same-rows", text, UserWarning, one=pair.cell[0], other=pair.other[0])
            return


class _Pair(NamedTuple):
    """Cells with the same levels in two parts."""

    cell: Any
    other: Any
    counts: tuple[float, float]
    is_same: bool  # whether all numbers are the same, and some feature varies
    distances: Array  # squared differences of means, in units of their sampling variance

    def is_near(self, few: float) -> bool:
        """Return whether the counts differ by fewer than `few` rows."""
        return abs(self.counts[0] - self.counts[1]) < few


def _pairs(one: Any, other: Any) -> Iterator[_Pair]:
    """Compare cells with the same levels by the features that both parts have."""
    place = {name: j for j, name in enumerate(other.names)}
    a = [j for j, name in enumerate(one.names) if name in place]
    b = [place[one.names[j]] for j in a]
    by_levels: dict[Any, list[Any]] = {}
    for cell in other.cells:
        by_levels.setdefault(_levels(other, cell), []).append(cell)
    for cell, k in one.cells.items():
        for near in by_levels.get(_levels(one, cell), ()):
            m = other.cells[near]
            parts = (one.sums.moments, k, a), (other.sums.moments, m, b)
            (x, y), (s, t) = (
                [getattr(moments, name)[at, some] for moments, at, some in parts]
                for name in ("mean", "squares")
            )
            counts = float(one.sums.moments.count[k]), float(other.sums.moments.count[m])
            size = np.sqrt(s / max(counts[0] - 1, 1))
            has_same_means = np.abs(x - y) <= _ROUNDING * (size + np.abs(x))
            same = has_same_means & (np.abs(s - t) <= 1e3 * _ROUNDING * s)
            is_same = counts[0] == counts[1] and bool(same.all() and (size.any() or not a))
            error = size * np.sqrt(1 / max(counts[0], 1) + 1 / max(counts[1], 1))
            varies = ~is_constant(size, x)
            away = np.abs(x - y)[varies] / error[varies]
            distances = np.minimum(away, _FAR) ** 2
            yield _Pair(cell, near, counts, is_same, distances)


def _levels(stats: Any, cell: Any) -> Any:
    """Return the pairs (confounder, level) of a cell as a set, for comparison between files."""
    return frozenset(zip(stats.categories, cell[1:]))


def _written(content: dict[str, Any], name: str) -> Array:
    """Return a written table of shape (n_cells, n_features), NaN where there is no number."""
    nothing = [None] * content["n_features"]
    return np.array([one.get(name) or nothing for one in content["cells"]], dtype=float)


def _exposed(squares: Array, fourth: Array) -> tuple[Array, Array]:
    r"""Mark cells and features in which one row holds most squares, and in which all are equal.

    With squared deviations :math:`a_i`, the largest share :math:`\max_i a_i / \sum a` is at least
    :math:`\sum a^2 / (\sum a)^2`: the sum of fourth powers over the squared sum of squares.
    """
    flat = squares <= SMALLEST**2
    return ~flat & (fourth >= CONCENTRATED * squares**2), flat


def _cell_name(cell: Any) -> str:
    """Return the name of a cell for messages."""
    return " / ".join(str(part) for part in cell)


def _where(cells: list[Any], names: Any, marks: Array) -> str:
    """Return the marked features as text, each with its marked cells."""
    found = []
    for j in np.flatnonzero(marks.any(axis=0))[:3]:
        where = [_cell_name(cells[k]) for k in np.flatnonzero(marks[:, j])]
        more = f" and {len(where) - 3} more cells" if len(where) > 3 else ""
        found.append(f"{names[j]!r} in {', '.join(where[:3])}{more}")
    n_more = int(marks.any(axis=0).sum()) - len(found)
    return "; ".join(found) + (f"; and {n_more} more features" if n_more else "")


def facts_of(
    document: dict[str, Any], stats: Any, previous: Iterable[tuple[str, Any]] = ()
) -> dict[str, Any]:
    """Return what a file reveals, by itself and together with `previous` files.

    `previous` are pairs of a name and statistics.
    """
    cells, fourth = document["cells"], _written(document, "fourth")
    single, flat = _exposed(_written(document, "squares"), fourth)
    names, keys = stats.names.tolist(), list(stats.cells)
    levels = {n: sorted({str(c[j]) for c in keys}) for j, n in enumerate(stats.categories, 1)}
    moments = stats.sums.moments
    incomplete = (moments.n_values < moments.count[:, None]).any(axis=0)
    n_with_powers = int((~np.isnan(fourth)).any(axis=1).sum())  # of schema 1
    return {
        "domains": {str(label): _about(n) for label, n in stats.n_rows.items()},
        "reference": document["reference"],
        "features": names,
        "confounders": levels | {name: list(span) for name, span in stats.ranges.items()},
        "largest_weight": document["largest_weight"],
        "n_cells": len(cells),
        "smallest_cell": int(min(one["count"] for one in cells)),
        "min_cell": document["min_cell"],
        "schema": document["schema"],
        "fewest_rows": document["fewest_rows"],
        "masked": dict(document["masked"]),
        "incomplete": stats.names[incomplete].tolist(),
        "with_powers": len(document["shapes"]) if "shapes" in document else n_with_powers,
        "correlations_of": [one["domain"] for one in document["correlations"]],
        "few_values": sorted({str(names[one["feature"]]) for one in document["equal_values"]}),
        "binned": sorted({str(names[one["feature"]]) for one in document["values"]}),
        "concentrated": _where(keys, names, single) if single.any() else _limited(document, stats),
        "constant": _where(keys, names, flat) if flat.any() else None,
        "attacks": [*attacks(document, stats), *_together(document, stats, previous)],
        "level": (document["continuous"] or {}).get("level"),
        "sha256": document["sha256"],
    }


def _limited(document: dict[str, Any], stats: Any) -> str | None:
    """Return as text the features of each domain whose kurtosis was cut, or nearly so."""
    few, found = (document["min_cell"] - 1) * document["largest_weight"], []
    for one in document.get("shapes", ()):
        kurtosis = np.array(one["kurtosis"], dtype=float)
        most = stats.n_rows[one["domain"]] / (SPREAD * few)
        names = stats.names[kurtosis > 0.98 * most]
        if len(names):
            found.append(f"{listing(names, 3)} in {one['domain']}")
    return "; ".join(found) or None


def _together(
    document: dict[str, Any], stats: Any, previous: Iterable[tuple[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield what earlier files and this one reveal together."""
    for name, before in previous:
        changed = differences(before, stats, document["min_cell"])
        text = ""
        if changed is None:
            text = f"{name} has other confounders: anyone who has both files can subtract cells."
        elif changed:
            cells = listing([_cell_name(cell) for cell in changed], 3)
            text = f"Together with {name}, this file reveals what fewer than "
            text += f"{document['min_cell']} rows are like: {cells}."
        if text:
            yield {"kind": "differencing", "where": name, "text": text}


def _about(n: float) -> int:
    """Return a number of rows rounded to two digits."""
    return int(float(f"{n:.1e}"))


def words(facts: dict[str, Any], powers: int) -> str:
    """Describe a file for a data protection officer."""
    rows = ", ".join(f"about {n:,} of {label!r}" for label, n in facts["domains"].items())
    kinds = [
        f"{name!r} (numbers, declared to lie between {span[0]:g} and {span[1]:g})"
        if type(span[0]) is float
        else f"{name!r} ({listing(span, 12)})"
        for name, span in facts["confounders"].items()
    ]
    return "\n".join(
        [
            "Statistics for a comparison between sites. This file contains no single row, but sums "
            "over groups of rows.",
            "",
            f"Rows: {rows}{', counted by weights' * (facts['largest_weight'] > 1)}.",
            f"Features ({len(facts['features'])}): {listing(facts['features'], 12)}.",
            f"Confounders: {', '.join(kinds) or 'none'}.",
            f"Cells: {facts['n_cells']}, each a domain with one level of every category. The "
            f"smallest has {facts['smallest_cell']} rows.",
            f"Reference: {'not named' if facts['reference'] is None else facts['reference']}.",
            "",
            *_contents(facts, powers),
            "",
            *_risks(facts),
            f"SHA-256: {facts['sha256']}",
        ]
    )


def _contents(facts: dict[str, Any], powers: int) -> Iterator[str]:
    """Yield sentences that say what is written, and what is left out."""
    least, few, masked = facts["min_cell"], facts["fewest_rows"], facts["masked"]
    is_first = facts["schema"] == 1
    yield "For each cell: its levels and its number of rows."
    known = ", and how many rows have a value" if facts["incomplete"] else ""
    yield f"For each feature in a cell: mean and spread (sum of squared deviations){known}."
    if is_first:
        yield (
            f"Where {powers * few} rows or more have a value ({facts['with_powers']} of the "
            "cells): sums of third and fourth powers of deviations (for skewness and kurtosis)."
        )
    elif facts["with_powers"]:
        yield "For all cells of a domain together: classes of skewness and kurtosis of features."
    if facts["correlations_of"]:
        what = "root mean square correlation of features, one number"
        what = "correlations of features" if is_first else what
        where = listing(facts["correlations_of"])
        yield f"For all cells of a domain together: the {what}, in {where}."
    if facts["few_values"]:
        yield (
            f"For {listing(facts['few_values'])}: how often the most frequent values occur, "
            "rounded, without the values. The mean of a yes/no feature also reveals how many rows "
            "of a cell are yes."
        )
    if facts["binned"]:
        yield (
            f"For {listing(facts['binned'])} (heavy tails): the values of every cell in groups of "
            f"neighbours, {least} rows or more in each, as the middle and spread of the group."
        )
    numeric = [name for name, span in facts["confounders"].items() if type(span[0]) is float]
    if numeric:
        what = "sums of products of smooth functions with features"
        if facts["level"] is not None:
            what = "means of smooth functions; for all cells of a domain together, how features "
            what += "depend on these, where it must be as means of groups of neighbours"
        yield (
            f"For {listing(numeric)} in each cell: how many rows lie in intervals of the range, "
            f"{least} or more in each, and {what}."
        )
    if not is_first:
        yield "All numbers but counts are rounded to about a tenth of their standard error."
    gone = f"{masked['cells'] or 'no'} cell{'s' * (masked['cells'] != 1)}"
    gone += f", {masked['rows']:,} rows at most," if masked["rows"] else ""
    why = f"min_cell = {least}" if few == least else f"required for sums with {listing(numeric)}"
    yield (
        f"Left out: {gone} with fewer than {few} rows ({why}), and features of which fewer than "
        f"{few} rows of a cell have a value."
    )


def _risks(facts: dict[str, Any]) -> Iterator[str]:
    """Yield sentences that say what to check before a file is sent."""
    yield "Check this before you send the file:"
    if facts["concentrated"]:
        who = f"One row holds {CONCENTRATED:.0%} or more"
        who = who if facts["schema"] == 1 else "A few rows hold most"
        yield (
            f"- {who} of the squared deviations of {facts['concentrated']}: such values can nearly "
            "be computed from mean and spread."
        )
    if facts["constant"]:
        yield (
            f"- All rows have the same value of {facts['constant']}: anyone who is known to be in "
            "the cell is known to have this value."
        )
    yield from (f"- {one['text']}" for one in facts["attacks"])
    if not (facts["concentrated"] or facts["constant"] or facts["attacks"]):
        tried = "tried to compute single rows from this file, and failed: it looked for "
        tried += "combinations of sums that rest on few rows, for sets of rounded values, and for "
        tried += "means of few rows."
        if facts["schema"] > 1:
            tried = "wrote only sums of which no combination rests on few rows. It tried to "
            tried += "compute single values from groups of rounded values, and failed."
        yield (
            f"- condokit {tried} As far as the sums show, no cell has an outlying row or is "
            "constant."
        )
    yield (
        f"- Two files of the same site whose counts differ by 1 to {facts['min_cell'] - 1} rows "
        "reveal what these rows are like, and files with other confounders reveal cells that are "
        "left out. Send one file, or wait for more rows."
    )
    if facts["smallest_cell"] < 4 * facts["min_cell"]:
        yield (
            "- If a feature has whole numbers (scores, counts), the mean and spread of a cell with "
            "few rows leave few possible values. A larger min_cell helps."
        )
    yield "- Anyone who knows the number of all rows can compute how many were left out."
