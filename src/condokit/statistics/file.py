"""The statistics file: readable JSON without rows, and nothing of cells with few of them."""

import os
from typing import Any

import numpy as np

from condokit.checks import Array, FileError, check_integer
from condokit.data.arrays import ones_for_zeros
from condokit.data.bins import Values
from condokit.data.continuous import Continuous
from condokit.maps import file as mapfile
from condokit.statistics import reveals

STATISTICS = mapfile.Format("condokit-statistics", 1, "statistics file", FileError)
MIN_POWERS = 4  # times the fewest rows, from which sums of third and fourth powers are written
FEWEST = 3  # rows of a cell: mean and spread of two rows tell both
_TIES = 0.1  # share of rows from which equal values are written
_TABLES = ("mean", "squares", "third", "fourth")


def write(path: mapfile.Place, stats: Any, min_cell: int) -> None:
    """Write statistics, without cells of fewer than `min_cell` rows."""
    content = content_of(stats, min_cell)
    reveals.warn_of_cells(content, stats)
    if isinstance(path, str | os.PathLike) and os.path.isfile(path):
        warn_of_release(path, stats, min_cell)
    mapfile.write(path, content, STATISTICS)


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
    own = 0 if stats.continuous is None else stats.continuous.fewest_rows
    fewest = max(min_cell, own)
    few, least = min_cell * weight, fewest * weight
    cells, kept, masked, gone = [], [], dict(stats.masked), 0.0
    for cell, k in sorted(stats.cells.items(), key=lambda item: [str(x) for x in item[0]]):
        n = stats.moments.count[k]
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
        "continuous": stats.continuous and stats.continuous.written(kept, few, least),
    }


def _range(stats: Any, name: str) -> dict[str, Any]:
    return {"range": list(stats.ranges[name])} if name in stats.ranges else {}


def _cell(cell: tuple[Any, ...], stats: Any, k: int, least: int) -> dict[str, Any]:
    """Return what is written of a cell."""
    moments = stats.moments
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
            found[name] = [float(v) if show else None for v, show in zip(values, shown)]
    return found


def _correlations(stats: Any, kept: list[int], least: int, weight: int) -> list[dict[str, Any]]:
    """Return how a few features go together within the cells of a label.

    Not their products, since these are of rows that lack no feature: beside the squares of all
    rows they would tell about the others.
    """
    products, cells = stats.moments.products, list(stats.cells)
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
    for label, counts in zip(stats.labels, stats.ties.counts):
        rows = sum(stats.moments.count[k] for k in kept if cells[k][0] == label)
        step = max(least, round(rows / 100))
        for feature, marks in zip(stats.ties.features.tolist(), counts if rows else ()):
            many = np.flatnonzero(marks >= max(least, _TIES * rows))
            if len(many):
                pairs = [[int(m), whole(min(step * round(marks[m] / step), rows))] for m in many]
                found.append({"domain": plain(label), "feature": feature, "marks": pairs})
    return found


def _values(stats: Any, least: int, kept: list[int]) -> list[dict[str, Any]]:
    """Return the values of features with heavy tails, at least so many rows behind each pair."""
    found, moments, cells = [], stats.moments, list(stats.cells)
    sd = moments.sd
    for feature, every in stats.values.items():
        values = every.coarser(least, moments.mean[:, feature], sd[:, feature])
        for k in kept:
            mine = values.cell == k
            where = {"domain": plain(cells[k][0]), "levels": [plain(v) for v in cells[k][1:]]}
            counts, ends = [whole(n) for n in values.count[mine]], values.ends[:, mine].tolist()
            found.append({"feature": feature, **where, "counts": counts, "ends": ends})
    return found


def read(place: mapfile.Place, cls: Any) -> Any:
    """Return the statistics in a file; a `FileError` says what is wrong with it."""
    return document_of(place, cls)[1]


def document_of(place: mapfile.Place, cls: Any) -> tuple[dict[str, Any], Any]:
    """Return what is written in a file, and the statistics that it stands for."""
    path = getattr(place, "name", place)
    document = mapfile.parse(place, path, STATISTICS)
    try:
        if document.get("sha256") != mapfile.digest(document):
            raise ValueError("it was changed: its content does not fit its hash.")
        stats = _from(document, cls())
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        why = f"{error.args[0]!r} is missing" if type(error) is KeyError else error
        raise FileError(f"{path} is damaged: {str(why).rstrip('.')}.") from None
    stats.hashes = [document["sha256"]]
    return document, stats


def _from(document: dict[str, Any], stats: Any) -> Any:
    """Fill statistics from what was written."""
    d = _fill_head(document, stats)
    cells = document["cells"]
    keys = [(one["domain"], *one["levels"]) for one in cells]
    n_categories = len(stats.categories)
    if len(set(keys)) < len(keys) or {len(key) for key in keys} != {n_categories + 1}:
        raise ValueError("'cells' must be different, with a level of each confounder")
    stats._places(keys)
    part = stats.moments
    part.count[:] = [_number(one["count"]) for one in cells]
    known = np.array([one.get("known", [one["count"]] * d) for one in cells], dtype=float)
    part.known = known if any("known" in one for one in cells) else None
    for name in _TABLES[:2]:
        getattr(part, name)[:] = _table(name, cells, d, known > 0)
    _fill_powers(cells, stats, known)
    _spread_correlations(document["correlations"], stats)
    for one in [*document["equal_values"], *document["values"]]:
        if type(one["feature"]) is not int or not 0 <= one["feature"] < d:
            raise ValueError("'feature' must be the place of a feature")
    for one in document["equal_values"]:
        _add_ties(one, stats)
    if not ((part.squares >= 0).all() and (part.count > 0).all() and known.shape[1:] == (d,)):
        raise ValueError("its numbers are impossible")
    if not ((known >= 0) & (known <= part.count[:, None])).all():
        raise ValueError("'known' must be between 0 and 'count'")
    _fill_rounds(document, stats)
    stats._roles = dict.fromkeys(("domain", "label", "confounders", "sample_weight", "features"))
    stats._roles |= {"categorical": None, "missing": "raise"}
    return stats


def _fill_head(document: dict[str, Any], stats: Any) -> int:
    """Read what is said of all cells, and return the number of features."""
    names, d = document["feature_names"], document["n_features"]
    if type(d) is not int or d < 1 or (names is not None and len(names) != d):
        raise ValueError("'n_features' does not fit 'feature_names'")
    if names is not None and (set(map(type, names)) != {str} or len(set(names)) < d):
        raise ValueError("'feature_names' must be different strings")
    stats.feature_names, stats.n_features = names, d
    for one in document["confounders"]:
        if one["kind"] not in ("categorical", "continuous") or type(one["name"]) is not str:
            raise ValueError("'confounders' must have a name and a kind")
        stats.confounders[one["name"]] = one["kind"]
        if "range" in one:
            low, high = map(_number, one["range"])
            stats.ranges[one["name"]] = low, high
    stats.reference = plain(document["reference"])
    stats.masked = {key: int(_number(document["masked"][key])) for key in ("cells", "rows")}
    for key in ("min_cell", "fewest_rows"):
        if type(document[key]) is not int or document[key] < FEWEST:
            raise ValueError(f"{key!r} must be a whole number of at least {FEWEST}")
    stats.largest_weight = _number(document["largest_weight"])
    if not 1 <= stats.largest_weight <= 1 << 53:
        raise ValueError("'largest_weight' is impossible")
    stats.by_cell = False
    stats.moments = type(stats.moments)(0, d, products=True)
    return d


def _fill_rounds(document: dict[str, Any], stats: Any) -> None:
    """Read the values of features with heavy tails, and sums of continuous confounders."""
    for one in document["values"]:
        k = stats.cells[(one["domain"], *one["levels"])]
        count = np.array(one["counts"], dtype=float)
        ends = np.array(one["ends"], dtype=float).reshape(2, len(count))
        found = Values(np.full(len(count), k), count, ends)
        known = stats.values.get(one["feature"])
        stats.values[one["feature"]] = found if known is None else known.merge(found)
    if document["continuous"] is not None:
        stats.continuous = Continuous.read(document["continuous"])


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _table(name: str, cells: list[dict[str, Any]], d: int, known: Array) -> Array:
    """Return numbers of cells and features; those of features that are not known are zero."""
    rows = [one.get(name) or [None] * d for one in cells]
    if not all(set(map(type, row)) <= {int, float, type(None)} for row in rows):
        raise ValueError(f"{name!r} must hold numbers")
    values = np.array(rows, dtype=float)
    if values.shape != (len(cells), d) or np.isnan(values[known]).any():
        raise ValueError(f"{name!r} lacks numbers of features that are known")
    return np.where(known, values, 0.0)


def _fill_powers(cells: list[dict[str, Any]], stats: Any, n: Array) -> None:
    """Read sums of third and fourth powers; where there are none, they are those of the others.

    In units of its standard deviation, a small cell has the skewness and kurtosis that larger
    cells have on average, or those of the normal distribution.
    """
    part, d = stats.moments, stats.n_features
    for j, (name, normal) in enumerate((("third", 0.0), ("fourth", 3.0))):
        has = np.array([[v is not None for v in one.get(name) or [None] * d] for one in cells])
        table, unit = _table(name, cells, d, has), np.sqrt(part.squares / np.maximum(n, 1))
        sizes = n * unit ** (3 + j)
        expected = np.where(has, sizes, 0.0).sum(axis=0)
        shape = np.where(expected > 0, table.sum(axis=0) / ones_for_zeros(expected), normal)
        getattr(part, name)[:] = np.where(has, table, shape * sizes)


def _spread_correlations(content: list[dict[str, Any]], stats: Any) -> None:
    """Give every cell its share of the products of its label."""
    products, few = stats.moments.products, stats.moments.few
    assert products is not None
    for one in content:
        mine = np.array([k for cell, k in stats.cells.items() if cell[0] == one["domain"]])
        products.count[mine] = stats.moments.count[mine]
        products.mean[mine] = stats.moments.mean[mine][:, few]
        size = np.sqrt(stats.moments.squares[mine][:, few].sum(axis=0))
        matrix = np.array(one["matrix"], dtype=float)
        if matrix.shape != (len(few), len(few)) or not (np.abs(matrix) < 1.001).all():
            raise ValueError("'correlations' must be between -1 and 1, of all features")
        sums = matrix * np.outer(size, size)
        share: Array = products.count[mine] / products.count[mine].sum()
        products.scatter[mine] = share[:, None, None] * sums


def _add_ties(one: dict[str, Any], stats: Any) -> None:
    feature, label = one["feature"], stats.labels.index(one["domain"])
    ties = stats.ties
    ties.make_room(np.array([feature]), label + 1)
    here = int(np.searchsorted(ties.features, feature))
    for mark, count in one["marks"]:
        ties.counts[label, here, mark] += count


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
