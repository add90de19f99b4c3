"""The statistics file: readable JSON without rows, and nothing of cells with few of them."""

from typing import Any

import numpy as np

from condokit.checks import Array, FileError, check_integer
from condokit.data.bins import Values
from condokit.data.continuous import Continuous
from condokit.maps import file as mapfile

STATISTICS = mapfile.Format("condokit-statistics", 1, "statistics file", FileError)
MIN_POWERS = 4  # times the fewest rows, from which sums of third and fourth powers are written
_TIES = 0.1  # share of rows from which equal values are written
_TABLES = ("mean", "squares", "third", "fourth")


def write(path: mapfile.Place, stats: Any, min_cell: int) -> None:
    """Write statistics, without cells of fewer than `min_cell` rows."""
    check_integer("min_cell", min_cell, 1)
    mapfile.write(path, content_of(stats, min_cell), STATISTICS)


def content_of(stats: Any, min_cell: int) -> dict[str, Any]:
    """Return what is written."""
    cells, moments = [], stats.moments
    masked, gone = dict(stats.masked), 0
    kept, least = [], min_cell
    if stats.continuous is not None:
        least = max(min_cell, stats.continuous.fewest_rows)
    for cell, k in stats.cells.items():
        n = moments.count[k]
        if 0 < n < least:
            masked["cells"] += 1
            gone += int(np.ceil(n))
        elif n > 0:
            kept.append(k)
            cells.append(_cell(cell, stats, k, least))
    if not cells:
        raise ValueError(
            f"Nothing can be written: every cell has fewer than {least} rows. Merge levels, or "
            "leave confounders out."
        )
    masked["rows"] += min_cell * round(gone / min_cell)  # no exact number of few rows
    return {
        "feature_names": stats.feature_names,
        "n_features": stats.n_features,
        "confounders": [
            {"name": name, "kind": kind} | _range(stats, name)
            for name, kind in stats.confounders.items()
        ],
        "reference": stats.reference,
        "min_cell": min_cell,
        "masked": masked,
        "cells": cells,
        "products": _products(stats, kept),
        "equal_values": _ties(stats, min_cell),
        "values": _values(stats, min_cell, kept),
        "continuous": stats.continuous and stats.continuous.written(kept, min_cell),
    }


def _range(stats: Any, name: str) -> dict[str, Any]:
    return {"range": list(stats.ranges[name])} if name in stats.ranges else {}


def _cell(cell: tuple[Any, ...], stats: Any, k: int, min_cell: int) -> dict[str, Any]:
    """Return what is written of a cell."""
    moments = stats.moments
    n = moments.n[k]
    hidden = n < min_cell  # of features with few known values
    found: dict[str, Any] = {
        "domain": plain(cell[0]),
        "levels": [plain(level) for level in cell[1:]],
        "count": whole(moments.count[k]),
    }
    if moments.known is not None:
        found["known"] = [whole(v) for v in np.where(hidden, 0, n)]
    few = moments.count[k] < MIN_POWERS * min_cell
    for name in _TABLES[: 2 if few else 4]:
        values = getattr(moments, name)[k]
        found[name] = [
            None if hide else float(v)
            for v, hide in zip(values, np.broadcast_to(hidden, len(values)))
        ]
    return found


def _products(stats: Any, kept: list[int]) -> dict[str, Any]:
    """Return sums of products of a few features within the cells of a label that are written."""
    products = stats.moments.products
    assert products is not None
    label = np.array([stats.labels.index(cell[0]) for cell in stats.cells])
    sums = []
    for k in range(len(stats.labels)):
        mine = [c for c in kept if label[c] == k]
        sums.append(products.scatter[mine].sum(axis=0).tolist())
    return {"labels": [plain(name) for name in stats.labels], "sums": sums}


def _ties(stats: Any, min_cell: int) -> list[dict[str, Any]]:
    """Return how many rows share a mark, where these are many, by label and feature."""
    found, rows = [], stats.n_rows
    for label, counts in zip(stats.labels, stats.ties.counts):
        least = max(min_cell, _TIES * rows[label])
        for feature, marks in zip(stats.ties.features.tolist(), counts):
            many = np.flatnonzero(marks >= least)
            if len(many):
                pairs = [[int(m), whole(marks[m])] for m in many]
                found.append({"domain": plain(label), "feature": feature, "marks": pairs})
    return found


def _values(stats: Any, min_cell: int, kept: list[int]) -> list[dict[str, Any]]:
    """Return the values of features with heavy tails, at least `min_cell` rows behind each pair."""
    found, moments, cells = [], stats.moments, list(stats.cells)
    sd = np.sqrt(moments.squares / np.maximum(moments.n, 1))
    for feature, every in stats.values.items():
        values = every.coarser(min_cell, moments.mean[:, feature], sd[:, feature])
        for k in kept:
            mine = values.cell == k
            where = {"domain": plain(cells[k][0]), "levels": [plain(v) for v in cells[k][1:]]}
            counts, ends = [whole(n) for n in values.count[mine]], values.ends[:, mine].tolist()
            found.append({"feature": feature, **where, "counts": counts, "ends": ends})
    return found


def read(place: mapfile.Place, cls: Any) -> Any:
    """Return the statistics in a file; a `FileError` says what is wrong with it."""
    path = getattr(place, "name", place)
    document = mapfile.parse(place, path, STATISTICS)
    try:
        if document.get("sha256") != mapfile.digest(document):
            raise ValueError("it was changed: its content does not fit its hash.")
        stats = _from(document, cls())
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        why = f"{error.args[0]!r} is missing" if type(error) is KeyError else error
        raise FileError(f"{path} is damaged: {str(why).rstrip('.')}.") from None
    stats.hashes = [document["sha256"]]
    return stats


def _from(document: dict[str, Any], stats: Any) -> Any:
    """Fill statistics from what was written."""
    stats.feature_names, stats.n_features = document["feature_names"], document["n_features"]
    d = stats.n_features
    if type(d) is not int or d < 1 or (stats.feature_names and len(stats.feature_names) != d):
        raise ValueError("'n_features' does not fit 'feature_names'")
    for one in document["confounders"]:
        stats.confounders[one["name"]] = one["kind"]
        if "range" in one:
            low, high = one["range"]
            stats.ranges[one["name"]] = float(low), float(high)
    stats.reference, stats.masked = document["reference"], dict(document["masked"])
    n_categories = sum(kind == "categorical" for kind in stats.confounders.values())
    stats.moments = type(stats.moments)(0, d, products=True)
    keys = [(one["domain"], *one["levels"]) for one in document["cells"]]
    if len(set(keys)) < len(keys) or {len(key) for key in keys} != {n_categories + 1}:
        raise ValueError("'cells' must be different, with a level of each confounder")
    stats._places(keys)
    part = stats.moments
    part.count[:] = [one["count"] for one in document["cells"]]
    if any("known" in one for one in document["cells"]):
        part.known = np.array([one.get("known", [one["count"]] * d) for one in document["cells"]])
        part.known = part.known.astype(float)
    for name in _TABLES[:2]:
        rows = [one[name] for one in document["cells"]]
        getattr(part, name)[:] = np.nan_to_num(np.array(rows, dtype=float))
    _fill_powers(document, stats)
    _spread_products(document["products"], stats)
    stats.by_cell = False
    for one in document["equal_values"]:
        _add_ties(one, stats)
    for one in document["values"]:
        k = stats.cells[(one["domain"], *one["levels"])]
        count = np.array(one["counts"], dtype=float)
        ends = np.array(one["ends"], dtype=float).reshape(2, len(count))
        found = Values(np.full(len(count), k), count, ends)
        known = stats.values.get(one["feature"])
        stats.values[one["feature"]] = found if known is None else known.merge(found)
    if document["continuous"] is not None:
        stats.continuous = Continuous.read(document["continuous"])
    if not (np.isfinite(part.mean).all() and (part.squares >= 0).all() and (part.count > 0).all()):
        raise ValueError("its numbers are impossible")
    stats._roles = dict.fromkeys(("domain", "label", "confounders", "sample_weight", "features"))
    stats._roles |= {"categorical": None, "missing": "raise"}
    return stats


def _fill_powers(document: dict[str, Any], stats: Any) -> None:
    """Read sums of third and fourth powers; where there are none, they are those of the others.

    In units of its standard deviation, a small cell has the skewness and kurtosis that larger
    cells have on average, or those of the normal distribution.
    """
    part, n = stats.moments, np.broadcast_to(stats.moments.n, stats.moments.mean.shape)
    for j, (name, normal) in enumerate((("third", 0.0), ("fourth", 3.0))):
        rows = [one.get(name) for one in document["cells"]]
        has = np.array([row is not None for row in rows])
        unit = np.sqrt(part.squares / np.maximum(n, 1)) ** (3 + j)
        table = getattr(part, name)
        for k in np.flatnonzero(has):
            table[k] = np.nan_to_num(np.array(rows[k], dtype=float))
        expected = (unit * n)[has].sum(axis=0)
        shape = np.where(
            expected > 0, table[has].sum(axis=0) / np.where(expected, expected, 1), normal
        )
        table[~has] = (shape * unit * n)[~has]


def _spread_products(content: dict[str, Any], stats: Any) -> None:
    """Give every cell its share of the sums of products of its label."""
    products, few = stats.moments.products, stats.moments.few
    assert products is not None
    products.count[:], products.mean[:] = stats.moments.count, stats.moments.mean[:, few]
    label = np.array([cell[0] for cell in stats.cells], dtype=object)
    for name, sums in zip(content["labels"], content["sums"]):
        mine = np.flatnonzero(np.array([one == name for one in label]))
        share: Array = products.count[mine] / max(float(products.count[mine].sum()), 1e-300)
        products.scatter[mine] = share[:, None, None] * np.array(sums, dtype=float)


def _add_ties(one: dict[str, Any], stats: Any) -> None:
    feature, label = int(one["feature"]), stats.labels.index(one["domain"])
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
