"""What statistics reveal about rows: warnings when they are written, plain words for a file."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from condokit.checks import SMALLEST, Array, listing, warn
from condokit.data.arrays import is_constant
from condokit.statistics.attacks import attacks
from condokit.statistics.guard import SPREAD

CONCENTRATED = 0.8  # share of the squares of a cell that one row holds
_SAME = 0.1  # ratio of mean squared differences to what chance makes, for the same rows
_FEWEST_MEANS = 8  # that are compared
_ROUNDING = 1e-9
_FAR = 1e9  # standard errors, beyond which means are as different as can be


def warn_of_cells(content: dict[str, Any], stats: Any) -> None:
    """Warn of cells that are written in which a row stands out, or in which all are equal."""
    cells = [(one["domain"], *one["levels"]) for one in content["cells"]]
    fourth = stats.sums.moments.fourth[[stats.cells[cell] for cell in cells]]
    names, (single, flat) = _names(stats), _exposed(_written(content, "squares"), fourth)
    if single.any():
        text = "One row holds {share:.0%} or more of the squared deviations of {where}: its value "
        text += "is nearly told by mean and spread. Cut or transform such values, or merge levels."
        where = _where(cells, names, single)
        warn("concentration", text, UserWarning, share=CONCENTRATED, where=where)
    if flat.any():
        text = "All rows have the same value of {where}: the mean is everyone's value. Leave the "
        text += "feature out, or merge levels, if that must not be known."
        warn("constant-cells", text, UserWarning, where=_where(cells, names, flat))


def warn_of_differences(before: Any, stats: Any, min_cell: int) -> None:
    """Warn if two releases of the same domains together tell about a few rows."""
    changed = differences(before, stats, min_cell)
    if changed is None:
        text = "An earlier file has other confounders: whoever has both can subtract "
        text += "cells, and find those left out. Send one of the two alone."
        warn("differencing", text, UserWarning)
        return
    if changed:
        text = "Cells differ from those of an earlier file by fewer than {least} rows: "
        text += "{cells}. Whoever has both files can find what these rows are like. Wait until "
        text += "there are more, or send one of the two alone."
        cells = listing([_cell_name(cell) for cell in changed], 3)
        warn("differencing", text, UserWarning, least=min_cell, cells=cells)


def differences(before: Any, stats: Any, min_cell: int) -> list[Any] | None:
    """Return cells that differ by few rows from another file; None if confounders are others."""
    if not set(stats.labels).intersection(before.labels):
        return []
    if set(before.confounders) != set(stats.confounders):
        return None
    few = min_cell * np.ceil(stats.largest_weight)
    return [
        pair.cell
        for pair in _pairs(before, stats)
        if pair.cell[0] == pair.other[0]
        and pair.counts[1] >= few > abs(pair.counts[0] - pair.counts[1])
        and not pair.is_same
    ]


def warn_of_repeats(one: Any, other: Any) -> None:
    """Warn of parts that seem to have the same rows, at two times or under two labels."""
    pairs = list(_pairs(one, other))
    again = [pair for pair in pairs if pair.cell[0] == pair.other[0]]
    near = [pair for pair in again if 10 * abs(pair.counts[0] - pair.counts[1]) < pair.counts[0]]
    ratio = np.concatenate([np.empty(0), *(pair.distances for pair in near)])
    twice = [pair for pair in again if pair.is_same]
    if twice or (len(ratio) >= _FEWEST_MEANS and float(ratio.mean()) < _SAME):
        text = "Two parts of {label!r} look like the same rows at two times: these count twice. "
        label = (twice or near)[0].cell[0]
        warn("same-rows", text + "Give the newer one alone.", UserWarning, label=label)
    for pair in pairs:
        if pair.is_same and pair.cell[0] != pair.other[0]:
            text = "{one!r} and {other!r} have cells with the same numbers: are these the same "
            text += "rows under two labels?"
            warn("same-rows", text, UserWarning, one=pair.cell[0], other=pair.other[0])
            return


class _Pair(NamedTuple):
    """Cells with the same levels in two parts."""

    cell: Any
    other: Any
    counts: tuple[float, float]
    is_same: bool  # whether all numbers are the same, and are no constants
    distances: Array  # squared differences of means, relative to those by chance


def _pairs(one: Any, other: Any) -> Iterator[_Pair]:
    """Compare cells with the same levels by the features that both parts have."""
    mine, its = _names(one), {name: j for j, name in enumerate(_names(other))}
    a = [j for j, name in enumerate(mine) if name in its]
    b = [its[mine[j]] for j in a]
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
            same = (np.abs(x - y) <= _ROUNDING * (size + np.abs(x))) & (
                np.abs(s - t) <= 1e3 * _ROUNDING * s
            )
            is_same = bool(counts[0] == counts[1] and same.all() and size.any())
            chance = size * np.sqrt(1 / max(counts[0], 1) + 1 / max(counts[1], 1))
            varies = ~is_constant(size, x)
            away = np.abs(x - y)[varies] / chance[varies]
            distances = np.minimum(away, _FAR) ** 2
            yield _Pair(cell, near, counts, is_same, distances)


def _levels(stats: Any, cell: Any) -> Any:
    """Return the levels of a cell with the names of their confounders, in no order."""
    names = stats.categories
    return frozenset(zip(names, cell[1:]))


def _written(content: dict[str, Any], name: str) -> Array:
    """Return what is written of cells and features, NaN for nothing."""
    nothing = [None] * content["n_features"]
    return np.array([one.get(name) or nothing for one in content["cells"]], dtype=float)


def _exposed(squares: Array, fourth: Array) -> tuple[Array, Array]:
    r"""Mark cells and features in which a row holds most squares, and in which all are equal.

    With squared deviations :math:`a_i`, the largest share :math:`\max_i a_i / \sum a` is at least
    :math:`\sum a^2 / (\sum a)^2`, which the sums of fourth powers and squares tell.
    """
    flat = squares <= SMALLEST**2
    return ~flat & (fourth >= CONCENTRATED * squares**2), flat


def _names(stats: Any) -> list[Any]:
    return list(stats.feature_names or range(stats.n_features))


def _cell_name(cell: Any) -> str:
    return " / ".join(str(part) for part in cell)


def _where(cells: list[Any], names: list[Any], marks: Array) -> str:
    """Name features, each with the cells that are marked."""
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
    """Return what a file reveals, alone or with `previous` ones of other names."""
    cells, d = document["cells"], stats.n_features
    fourth = _written(document, "fourth")
    single, flat = _exposed(_written(document, "squares"), fourth)
    names, keys = _names(stats), list(stats.cells)
    categories = stats.categories
    levels = {n: sorted({str(c[j]) for c in keys}) for j, n in enumerate(categories, 1)}
    known = np.array([one.get("known", [one["count"]] * d) for one in cells], dtype=float)
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
        "incomplete": [
            names[j] for j in range(d) if (known[:, j] < stats.sums.moments.count).any()
        ],
        "with_powers": len(document["shapes"])
        if "shapes" in document
        else int((~np.isnan(fourth)).any(axis=1).sum()),
        "correlations_of": [one["domain"] for one in document["correlations"]],
        "few_values": sorted({str(names[one["feature"]]) for one in document["equal_values"]}),
        "binned": sorted({str(names[one["feature"]]) for one in document["values"]}),
        "concentrated": _where(keys, names, single) if single.any() else _limited(document, stats),
        "constant": _where(keys, names, flat) if flat.any() else None,
        "attacks": [*attacks(document, stats), *_together(document, stats, previous)],
        "level": _level(document),
        "sha256": document["sha256"],
    }


def _limited(document: dict[str, Any], stats: Any) -> str | None:
    """Name features whose tails are as heavy as a file may tell, or heavier, by domain."""
    few, found = (document["min_cell"] - 1) * document["largest_weight"], []
    for one in document.get("shapes", ()):
        kurtosis = np.array(one["kurtosis"], dtype=float)
        most = stats.n_rows[one["domain"]] / (SPREAD * few)
        names = [name for name, k in zip(_names(stats), kurtosis) if k > 0.98 * most]
        if names:
            found.append(f"{listing(names, 3)} in {one['domain']}")
    return "; ".join(found) or None


def _level(document: dict[str, Any]) -> int | None:
    """Return how many functions bend confounders, if that is told of a domain."""
    return (document["continuous"] or {}).get("level")


def _together(
    document: dict[str, Any], stats: Any, previous: Iterable[tuple[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Say what earlier files tell together with this one."""
    for name, before in previous:
        changed = differences(before, stats, document["min_cell"])
        text = ""
        if changed is None:
            text = f"{name} has other confounders: whoever has both files can subtract cells."
        elif changed:
            cells = listing([_cell_name(cell) for cell in changed], 3)
            text = f"With {name}, what fewer than {document['min_cell']} rows are like: {cells}."
        if text:
            yield {"kind": "differencing", "where": name, "text": text}


def _about(n: float) -> int:
    """Return a number of rows with two digits."""
    return int(float(f"{n:.1e}"))


def words(facts: dict[str, Any], powers: int) -> str:
    """Say to who protects data what a file reveals."""
    rows = ", ".join(f"about {n:,} of {label!r}" for label, n in facts["domains"].items())
    kinds = [
        f"{name!r} (numbers, declared to lie between {span[0]:g} and {span[1]:g})"
        if type(span[0]) is float
        else f"{name!r} ({listing(span, 12)})"
        for name, span in facts["confounders"].items()
    ]
    return "\n".join(
        [
            "Statistics for a comparison between sites. No single row is in this file: it has sums "
            "over groups of rows.",
            "",
            f"Rows: {rows}{', counted by weights' * (facts['largest_weight'] > 1)}.",
            f"Features ({len(facts['features'])}): {listing(facts['features'], 12)}.",
            f"Confounders: {', '.join(kinds) or 'none'}.",
            f"Cells: {facts['n_cells']}, each a domain with one level of every category. The "
            f"smallest has {facts['smallest_cell']} rows.",
            f"Reference: {'not said' if facts['reference'] is None else facts['reference']}.",
            "",
            *_told(facts, powers),
            "",
            *_cares(facts),
            f"SHA-256: {facts['sha256']}",
        ]
    )


def _told(facts: dict[str, Any], powers: int) -> Iterator[str]:
    """Say what is written, and what is not."""
    least, few, masked = facts["min_cell"], facts["fewest_rows"], facts["masked"]
    yield "Told of each cell: its levels and its number of rows."
    yield (
        "Told of each feature in a cell: the mean and the spread (sum of squared deviations)"
        + (", and how many rows have a value." if facts["incomplete"] else ".")
    )
    if facts["schema"] == 1:
        yield (
            f"Told where {powers * few} rows or more have a value ({facts['with_powers']} of the "
            "cells): sums of third and fourth powers of deviations (lopsidedness and tails)."
        )
    elif facts["with_powers"]:
        yield (
            "Told of all cells of a domain together: lopsidedness and tails (skewness and "
            "kurtosis) of features."
        )
    if facts["correlations_of"]:
        where = listing(facts["correlations_of"])
        what = (
            "correlations of features"
            if facts["schema"] == 1
            else ("how closely features go together on average, as one number")
        )
        yield f"Told of all cells of a domain together: {what}, in {where}."
    if facts["few_values"]:
        yield (
            f"Told of {listing(facts['few_values'])}: how often the most frequent values occur, "
            "rounded, without the values. If a feature is yes or no, its mean tells how many rows "
            "of a cell are yes."
        )
    if facts["binned"]:
        yield (
            f"Told of {listing(facts['binned'])} (heavy tails): the values of every cell in groups "
            f"of neighbours, {least} rows or more in each, by the middle and spread of the group."
        )
    ages = [name for name, span in facts["confounders"].items() if type(span[0]) is float]
    if ages:
        yield (
            f"Told of {listing(ages)} in each cell: how many rows lie in parts of the range, "
            f"{least} or more together, and "
            + (
                "sums of products of smooth functions with features."
                if facts["level"] is None
                else "means of smooth functions; of all cells of a domain together, how features "
                f"depend on these: on lines and {max(facts['level'], 0)} of 8 bends."
            )
        )
    if facts["schema"] > 1:
        yield "All numbers but counts are rounded to about a tenth of their standard error."
    gone = f"{masked['cells'] or 'no'} cell{'s' * (masked['cells'] != 1)}"
    gone += f", {masked['rows']:,} rows at most," if masked["rows"] else ""
    why = f"min_cell = {least}" if few == least else f"sums with {listing(ages)} need so many"
    yield (
        f"Left out: {gone} with fewer than {few} rows ({why}), and features of a cell that fewer "
        f"than {few} rows have a value of."
    )


def _cares(facts: dict[str, Any]) -> Iterator[str]:
    """Say what to look at before a file is sent."""
    yield "Look at this before the file leaves the house:"
    if facts["concentrated"]:
        who = f"One row holds {CONCENTRATED:.0%} or more"
        who = who if facts["schema"] == 1 else "Few rows hold most"
        yield (
            f"- {who} of the squared deviations of {facts['concentrated']}: mean and spread nearly "
            "tell such values."
        )
    if facts["constant"]:
        yield (
            f"- All rows have the same value of {facts['constant']}: whoever is known to be in the "
            "cell is known to have it."
        )
    yield from (f"- {one['text']}" for one in facts["attacks"])
    if not (facts["concentrated"] or facts["constant"] or facts["attacks"]):
        yield (
            "- Nothing was found when condokit tried to compute single rows: combinations of sums "
            "that rest on few rows, sets of rounded values, means of few. No row stands out in a "
            "cell as far as sums tell, and no cell is constant."
        )
    yield (
        f"- Two files of the same site whose counts differ by 1 to {facts['min_cell'] - 1} rows "
        "tell what these rows are like, and files with other confounders tell about cells that are "
        "left out. Send one file, or wait for more rows."
    )
    if facts["smallest_cell"] < 4 * facts["min_cell"]:
        yield (
            "- Of whole numbers (scores, counts), mean and spread of a cell with few rows leave "
            "few possible values. A larger min_cell helps."
        )
    yield "- Whoever knows the number of all rows can tell how many were left out."
