"""The statistics file: readable JSON without rows, and nothing of cells with few of them."""

import os
from typing import Any

import numpy as np

from condokit.checks import Array, FileError, check_integer
from condokit.data.arrays import ones_for_zeros
from condokit.data.bins import Values
from condokit.data.continuous import Continuous
from condokit.data.sums import MARKS
from condokit.io import documents
from condokit.io.documents import Place
from condokit.io.schema import STATISTICS as SCHEMA
from condokit.io.schema import refuse_if, shown
from condokit.statistics import reveals

MIN_POWERS = 4  # times the fewest rows, from which sums of third and fourth powers are written
FEWEST = 3  # rows of a cell: mean and spread of two rows tell both
_TIES = 0.1  # share of rows from which equal values are written
_TABLES = ("mean", "squares", "third", "fourth")
_ROUNDED = 1 + 1e-9  # times a count that sums of its parts may reach
_POSSIBLE = 1.001  # the largest correlation, up to rounding
STATISTICS = documents.Format("condokit-statistics", 1, "statistics file", FileError, SCHEMA)


def write(path: Place, stats: Any, min_cell: int) -> None:
    """Write statistics, without cells of fewer than `min_cell` rows."""
    content = content_of(stats, min_cell)
    reveals.warn_of_cells(content, stats)
    if isinstance(path, str | os.PathLike) and os.path.isfile(path):
        warn_of_release(path, stats, min_cell)
    documents.write(path, content, STATISTICS)


def warn_of_release(path: str | os.PathLike[str], stats: Any, min_cell: int) -> None:
    """Warn if a file that is about to be replaced tells, with the new one, about a few rows."""
    try:
        before = read(path, type(stats))
    except FileError:  # something else, or damaged
        return
    reveals.warn_of_differences(before, stats, min_cell)


def content_of(stats: Any, min_cell: int) -> dict[str, Any]:
    """Return what is written."""
    check_integer("min_cell", min_cell, FEWEST)
    # so much weight has `min_cell` rows behind it at least
    weight = int(np.ceil(stats.largest_weight))
    own = 0 if stats.sums.continuous is None else stats.sums.continuous.fewest_rows
    fewest = max(min_cell, own)
    few, least = min_cell * weight, fewest * weight
    cells, kept, masked, gone = [], [], dict(stats.masked), 0.0
    for cell, k in sorted(stats.cells.items(), key=lambda item: [str(x) for x in item[0]]):
        n = stats.sums.moments.count[k]
        if 0 < n < least:
            masked["cells"] += 1
            gone += n
        elif n > 0:
            kept.append(k)
            cells.append(_cell(cell, stats, k, least))
    if not cells:
        raise ValueError(
            f"Nothing can be written: every cell has fewer than {least} rows. Merge levels, or "
            "leave confounders out."
        )
    masked["rows"] += least * int(np.ceil(gone / least))  # no exact number of few rows
    return {
        "feature_names": stats.feature_names,
        "n_features": stats.n_features,
        "confounders": [
            {"name": name, "kind": kind} | _range(stats, name)
            for name, kind in stats.confounders.items()
        ],
        "reference": stats.reference,
        "min_cell": min_cell,
        "fewest_rows": fewest,
        "largest_weight": weight,
        "masked": masked,
        "cells": cells,
        "correlations": _correlations(stats, kept, least, weight),
        "equal_values": _ties(stats, kept, few),
        "values": _values(stats, few, kept),
        "continuous": stats.sums.continuous and stats.sums.continuous.written(kept, few, least),
    }


def _range(stats: Any, name: str) -> dict[str, Any]:
    return {"range": list(stats.ranges[name])} if name in stats.ranges else {}


def _cell(cell: tuple[Any, ...], stats: Any, k: int, least: int) -> dict[str, Any]:
    """Return what is written of a cell."""
    moments = stats.sums.moments
    n, count = np.broadcast_to(moments.n[k], stats.n_features), moments.count[k]
    found: dict[str, Any] = {
        "domain": plain(cell[0]),
        "levels": [plain(level) for level in cell[1:]],
        "count": whole(count),
    }
    if (n < count).any():
        found["known"] = [whole(v) for v in np.where(n < least, 0, n)]
    for power, name in enumerate(_TABLES, 1):
        shown = n >= least * (1 if power < 3 else MIN_POWERS)
        if power < 3 or shown.any():
            values = getattr(moments, name)[k]
            values = values if power % 2 else np.maximum(values, 0.0)  # not below by rounding
            found[name] = [float(v) if show else None for v, show in zip(values, shown)]
    return found


def _correlations(stats: Any, kept: list[int], least: int, weight: int) -> list[dict[str, Any]]:
    """Return how a few features go together within the cells of a label.

    Not their products, since these are of rows that lack no feature: beside the squares of all
    rows they would tell about the others.
    """
    products, cells = stats.sums.moments.products, list(stats.cells)
    assert products is not None
    enough, found = max(MIN_POWERS * least, 2 * weight * (products.mean.shape[1] + 1)), []
    for label in stats.labels:
        mine = [k for k in kept if cells[k][0] == label and products.count[k] >= least]
        if products.count[mine].sum() >= enough:
            sums = products.scatter[mine].sum(axis=0)
            size = ones_for_zeros(np.sqrt(np.diag(sums)))
            found.append({"domain": plain(label), "matrix": (sums / np.outer(size, size)).tolist()})
    return found


def _ties(stats: Any, kept: list[int], least: int) -> list[dict[str, Any]]:
    """Return about how many rows share a mark, where these are many, by label and feature.

    Rounded: beside the means of cells with two values, exact numbers would tell about the cells
    that are left out.
    """
    found, cells = [], list(stats.cells)
    for label, counts in zip(stats.labels, stats.sums.ties.counts):
        rows = sum(stats.sums.moments.count[k] for k in kept if cells[k][0] == label)
        step = max(least, round(rows / 100))
        for feature, marks in zip(stats.sums.ties.features.tolist(), counts if rows else ()):
            many = np.flatnonzero(marks >= max(least, _TIES * rows))
            if len(many):
                pairs = [[int(m), whole(min(step * round(marks[m] / step), rows))] for m in many]
                found.append({"domain": plain(label), "feature": feature, "marks": pairs})
    return found


def _values(stats: Any, least: int, kept: list[int]) -> list[dict[str, Any]]:
    """Return the values of features with heavy tails, at least so many rows behind each pair."""
    found, moments, cells = [], stats.sums.moments, list(stats.cells)
    sd = moments.sd
    for feature, every in stats.sums.values.items():
        values = every.coarser(least, moments.mean[:, feature], sd[:, feature])
        for k in kept:
            mine = values.cell == k
            where = {"domain": plain(cells[k][0]), "levels": [plain(v) for v in cells[k][1:]]}
            counts, ends = [whole(n) for n in values.count[mine]], values.ends[:, mine].tolist()
            found.append({"feature": feature, **where, "counts": counts, "ends": ends})
    return found


def read(place: Place, cls: Any) -> Any:
    """Return the statistics in a file; a `FileError` says what is wrong with it."""
    return document_of(place, cls)[1]


def document_of(place: Place, cls: Any) -> tuple[dict[str, Any], Any]:
    """Return what is written in a file, and the statistics that it stands for."""
    document, stats = documents.read(
        place, STATISTICS, lambda document, fields: (document, _from(fields, cls()))
    )
    stats.hashes = [document["sha256"]]
    return document, stats


def _from(content: dict[str, Any], stats: Any) -> Any:
    """Fill statistics from the fields of a file; refuse numbers that cannot be those of rows."""
    _fill_head(content, stats)
    _fill_cells(content, stats)
    _spread_correlations(content["correlations"], stats)
    _fill_ties(content["equal_values"], stats)
    _fill_values(content["values"], stats)
    if content["continuous"] is not None:
        stats.sums.continuous = Continuous.read(content["continuous"])
        _check_continuous(stats.sums.continuous, stats)
    stats._roles = dict.fromkeys(("domain", "label", "confounders", "sample_weight", "features"))
    stats._roles |= {"categorical": None, "missing": "raise"}
    return stats


def _fill_head(content: dict[str, Any], stats: Any) -> None:
    """Read what is said of all cells."""
    stats.feature_names, stats.n_features = content["feature_names"], content["n_features"]
    for one in content["confounders"]:
        name, kind, span = one["name"], one["kind"], one.get("range")
        refuse_if(name in stats.confounders, f"'confounders' has {shown(name)} twice")
        stats.confounders[name] = kind
        if kind == "continuous":
            is_range = span is not None and span[0] < span[1]
            refuse_if(not is_range, f"{shown(name)} must have a 'range' from low to high")
            stats.ranges[name] = float(span[0]), float(span[1])
    is_there = content["continuous"] is not None
    refuse_if(
        is_there != bool(stats.ranges), "'continuous' does not fit the kinds of 'confounders'"
    )
    stats.reference, stats.masked = content["reference"], content["masked"]
    stats.largest_weight = float(content["largest_weight"])
    stats.by_cell = False
    stats.sums = type(stats.sums).empty(stats.n_features)


def _fill_cells(content: dict[str, Any], stats: Any) -> None:
    """Read counts and sums of powers."""
    cells, d, part = content["cells"], stats.n_features, stats.sums.moments
    keys, unknown = [(one["domain"], *one["levels"]) for one in cells], np.full(d, np.nan)
    is_wrong = len(set(keys)) < len(keys) or {len(key) - 1 for key in keys} != {
        len(stats.categories)
    }
    refuse_if(is_wrong, "'cells' must be different, with a level of each category")
    n_marks = len({key[0] for key in keys}) * MARKS
    n_values = len(cells) * (6 * d + len(part.few) ** 2)
    n_values += n_marks * len({one["feature"] for one in content["equal_values"]})
    refuse_if(
        n_values > documents.MOST_VALUES, f"it stands for {n_values} values, which is too much"
    )
    stats._places(keys)
    part = stats.sums.moments
    part.count[:] = count = np.array([one["count"] for one in cells], dtype=float)
    least = content["fewest_rows"] * stats.largest_weight
    refuse_if(count < least, f"'cells' has a 'count' below {least:g}, the fewest rows")
    known = np.stack([one.get("known", np.full(d, one["count"])) for one in cells])
    refuse_if(known > count[:, None], "'cells' has a 'known' above its 'count'")
    part.known = known if any("known" in one for one in cells) else None
    tables = {}
    for name in _TABLES:
        rows = [one.get(name, unknown) for one in cells]
        tables[name] = np.where(known > 0, rows, np.nan)
    for name in _TABLES[:2]:
        lacking = np.isnan(tables[name]) & (known > 0)
        refuse_if(lacking, f"'cells' lacks {name!r} of a feature that is known")
        getattr(part, name)[:] = np.nan_to_num(tables[name])
    _fill_powers(tables["third"], tables["fourth"], part, known)


def _fill_powers(third: Array, fourth: Array, part: Any, n: Array) -> None:
    """Read sums of third and fourth powers; where there are none, they are those of the others.

    In units of its standard deviation, a small cell has the skewness and kurtosis that larger
    cells have on average, or those of the normal distribution.
    """
    unit = np.sqrt(part.squares / np.maximum(n, 1))
    for power, table, normal in ((3, third, 0.0), (4, fourth, 3.0)):
        has, sizes = ~np.isnan(table), n * unit**power
        total, expected = np.nansum(table, axis=0), np.where(has, sizes, 0.0).sum(axis=0)
        shape = np.where(expected > 0, total / ones_for_zeros(expected), normal)
        getattr(part, _TABLES[power - 1])[:] = np.where(has, table, shape * sizes)


def _spread_correlations(content: list[dict[str, Any]], stats: Any) -> None:
    """Give every cell its share of the products of its label."""
    moments, cells = stats.sums.moments, dict[Any, list[int]]()
    products, few = moments.products, moments.few
    for cell, k in stats.cells.items():
        cells.setdefault(cell[0], []).append(k)
    for one in content:
        mine, matrix = cells.pop(one["domain"], None), one["matrix"]
        where = f"'correlations' of {shown(one['domain'])}"
        refuse_if(mine is None, f"{where} are there twice, or of no cell")
        refuse_if(matrix.shape != (len(few),) * 2, f"{where} must be of {len(few)} features")
        is_wrong = np.abs(matrix - matrix.T).max() > _POSSIBLE - 1
        is_wrong = is_wrong or np.linalg.eigvalsh(matrix)[0] < 1 - _POSSIBLE
        refuse_if(is_wrong, f"{where} cannot be those of any rows")
        products.count[mine] = moments.count[mine]
        products.mean[mine] = moments.mean[mine][:, few]
        size = np.sqrt(moments.squares[mine][:, few].sum(axis=0))
        sums = matrix * np.outer(size, size)
        share: Array = products.count[mine] / products.count[mine].sum()
        products.scatter[mine] = share[:, None, None] * sums


def _fill_ties(content: list[dict[str, Any]], stats: Any) -> None:
    """Read how many rows share a mark."""
    ties, rows = stats.sums.ties, stats.n_rows
    ties.make_room(np.array([one["feature"] for one in content], dtype=np.intp), len(rows))
    label = {name: k for k, name in enumerate(rows)}
    for one in content:
        refuse_if(one["domain"] not in rows, "'equal_values' are of a 'domain' without cells")
        here = label[one["domain"]], int(np.searchsorted(ties.features, one["feature"]))
        mark, count = one["marks"].T
        is_mark = (mark < MARKS) & (mark % 1 == 0)
        refuse_if(~is_mark, f"'equal_values' has a mark that is no whole number below {MARKS}")
        np.add.at(ties.counts[here], mark.astype(np.intp), count)
        most = rows[one["domain"]] * _ROUNDED
        refuse_if(ties.counts[here] > most, "'equal_values' has more rows than 'cells'")


def _fill_values(content: list[dict[str, Any]], stats: Any) -> None:
    """Read the values of features with heavy tails."""
    parts: dict[int, dict[int, Values]] = {}
    for one in content:
        j, k = one["feature"], stats.cells.get((one["domain"], *one["levels"]))
        refuse_if(
            k is None or k in parts.get(j, ()), "'values' has a cell twice, or one of no rows"
        )
        most = stats.sums.moments.count[k] * _ROUNDED
        refuse_if(one["counts"].sum() > most, "'values' has more rows than 'cells'")
        found = Values(np.full(len(one["counts"]), k), one["counts"], one["ends"])
        parts.setdefault(j, {})[k] = found
    stats.sums.values = {j: Values.joined(every.values()) for j, every in parts.items()}


def _check_continuous(found: Continuous, stats: Any) -> None:
    """Refuse sums with confounders of numbers that are not of these cells."""
    count, text = stats.sums.moments.count, "cannot be sums of the rows of 'cells'"
    ranges = dict(zip(found.basis.names, found.basis.ranges))
    refuse_if(ranges != stats.ranges, "'continuous.basis.ranges' are not those of 'confounders'")
    rows = np.column_stack([found.products.count, *found.bins.sum(axis=2).T])
    refuse_if(np.abs(rows - count[:, None]) > 1e-6 * count[:, None], f"'continuous.bins' {text}")
    for one in (found.products, *found.products.own.values(), *found.robust.values()):
        refuse_if(not one.are_possible(), f"'continuous.products' or 'robust' {text}")


def plain(value: Any) -> Any:
    """Return a label or level as JSON knows it."""
    value = value.item() if hasattr(value, "item") else value
    if value is None or type(value) in (str, bool, int, float):
        return value
    raise ValueError(
        f"The level {value!r} ({type(value).__name__}) cannot be written; convert it to text."
    )


def whole(n: float) -> int | float:
    """Return a count as a whole number, if it is one."""
    return int(n) if float(n).is_integer() else float(n)
