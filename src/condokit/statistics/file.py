"""The statistics file: readable JSON without rows, and nothing of cells with few of them."""

import os
from typing import Any

import numpy as np

from condokit.checks import Array, FileError, check_integer, listing, warn
from condokit.data.arrays import ones_for_zeros
from condokit.data.basis import RangeBasis
from condokit.data.bins import Values
from condokit.data.continuous import Continuous
from condokit.data.spots import Spots, spots_of_bins
from condokit.data.sums import MARKS
from condokit.io import documents
from condokit.io.documents import Place
from condokit.io.schema import STATISTICS as SCHEMA
from condokit.io.schema import refuse_if, shown
from condokit.statistics import guard, reveals

MIN_POWERS = 4  # times the fewest rows, from which it is told how features go together
_FEW_BENDS = 2  # functions of a curve, below which it is said that these are few
FEWEST = 3  # rows of a cell: mean and spread of two rows tell both
_TIES = 0.1  # share of rows from which equal values are written
_TABLES = ("mean", "squares", "third", "fourth")
_ROUNDED = 1 + 1e-9  # times a count that sums of its parts may reach
_POSSIBLE = 1.001  # the largest correlation, up to rounding
STATISTICS = documents.Format("condokit-statistics", 2, "statistics file", FileError, SCHEMA)


def write(path: Place, stats: Any, min_cell: int, previous: Any = ()) -> None:
    """Write statistics, without cells of fewer than `min_cell` rows."""
    content = content_of(stats, min_cell)
    reveals.warn_of_cells(content, stats)
    earlier = [previous] if isinstance(previous, str | os.PathLike) else list(previous)
    for one in earlier:
        warn_of_release(read(one, type(stats)), content, type(stats))
    if isinstance(path, str | os.PathLike) and os.path.isfile(path) and path not in earlier:
        warn_of_replacing(path, content, type(stats))
    documents.write(path, content, STATISTICS)


def warn_of_replacing(path: Any, content: dict[str, Any], cls: Any) -> None:
    """Warn if a file that is about to be replaced tells, with the new one, about a few rows."""
    try:
        before = read(path, cls)
    except FileError:  # something else, or damaged
        return
    warn_of_release(before, content, cls)


def warn_of_release(before: Any, content: dict[str, Any], cls: Any) -> None:
    """Warn if an earlier file tells, with a new one, about a few rows; as both are written."""
    document = {"format": STATISTICS.name, "schema": STATISTICS.newest, "condokit": ""}
    after = _from(SCHEMA.read({**document, **content, "sha256": "0" * 64}), cls())
    reveals.warn_of_differences(before, after, content["min_cell"])


def content_of(stats: Any, min_cell: int) -> dict[str, Any]:
    """Return what is written."""
    check_integer("min_cell", min_cell, FEWEST)
    # so much weight has `min_cell` rows behind it at least
    weight = int(np.ceil(stats.largest_weight))
    count, known = stats.sums.moments.count, stats.sums.continuous
    label = np.array([stats.labels.index(cell[0]) for cell in stats.cells], dtype=np.intp)
    fewest = min_cell
    if known is not None and (count >= min_cell * weight).any():
        allowed = guard.choose_level(known, count, label, min_cell, weight)
        fewest = allowed.fewest
        _warn_of_level(known, allowed.level)
    few, least = min_cell * weight, fewest * weight
    order = sorted(stats.cells.items(), key=lambda item: [str(x) for x in item[0]])
    kept, masked = [k for _, k in order if count[k] >= least], dict(stats.masked)
    if not kept:
        raise ValueError(
            f"Nothing can be written: every cell has fewer than {least} rows. Merge levels, or "
            "leave confounders out."
        )
    gone = count[(count > 0) & (count < least)]
    masked["cells"] += len(gone)
    masked["rows"] += least * int(np.ceil(gone.sum() / least))  # no exact number of few rows
    hidden = np.broadcast_to(stats.sums.moments.n, stats.sums.moments.mean.shape)[kept] < least
    numbers, values, squares = None, stats.sums.values, stats.sums.moments.squares[kept]
    if known is not None:
        values = _without_crowds(stats, min_cell)
        how = kept, label[kept], hidden, allowed.level, few, least
        numbers, squares = _continuous(stats, *how)
        numbers["curves"] = {j: v for j, v in numbers["curves"].items() if int(j) in values}
    where = [cell for cell, k in order if count[k] >= least]
    cells = [_cell(where[i], stats, k, hidden[i], squares[i]) for i, k in enumerate(kept)]
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
        "shapes": _shapes(stats, kept, hidden, (min_cell - 1) * weight),
        "correlations": _correlations(stats, kept, least, (min_cell - 1) * weight),
        "equal_values": _ties(stats, kept, few),
        "values": _values(stats, values, few, kept, cells),
        "continuous": numbers,
    }


def _warn_of_level(known: Continuous, level: int) -> None:
    """Say if single rows kept all but lines and the first bend from being written."""
    if level < min(_FEW_BENDS, int(known.level.min())):
        text = "Sums with {names} are written for {what} alone: with more functions they would "
        text += "tell of single rows that stand apart, or of few. Cut such values to those of "
        text += "others, or gather more rows, if curves matter."
        what = "straight lines" if level < 1 else "lines with one bend"
        names = listing(known.basis.names)
        warn("fewer-functions", text, UserWarning, names=names, what=what)


def _range(stats: Any, name: str) -> dict[str, Any]:
    return {"range": list(stats.ranges[name])} if name in stats.ranges else {}


def _cell(
    cell: tuple[Any, ...], stats: Any, k: int, hidden: Array, squares: Array
) -> dict[str, Any]:
    """Return what is written of a cell: counts, means and squares, rounded if they are not yet."""
    moments = stats.sums.moments
    n, count = np.broadcast_to(moments.n[k], stats.n_features), moments.count[k]
    found: dict[str, Any] = {
        "domain": plain(cell[0]),
        "levels": [plain(level) for level in cell[1:]],
        "count": whole(count),
    }
    if (n < count).any() or hidden.any():
        found["known"] = [whole(v) for v in np.where(hidden, 0, n)]
    mean, squares, size = moments.mean[k], np.maximum(squares, 0.0), np.maximum(n, 1)
    if not stats.is_rounded:
        sd = moments.sd[k]
        mean = guard.rounded(mean, sd / np.sqrt(size))
        squares = guard.rounded(squares, sd**2 * np.sqrt(2 * size))
    for name, values in (("mean", mean), ("squares", squares)):
        found[name] = [None if hide else float(v) for v, hide in zip(values, hidden)]
    return found


def _domains(stats: Any, kept: list[int]) -> dict[Any, list[int]]:
    """Return the cells of each domain that are written, by their number among all."""
    cells, found = list(stats.cells), dict[Any, list[int]]()
    for k in kept:
        found.setdefault(cells[k][0], []).append(k)
    return found


def _shapes(stats: Any, kept: list[int], hidden: Array, few: float) -> list[dict[str, Any]]:
    """Return skewness and kurtosis of features by domain, where enough rows tell."""
    found, shown = [], dict(zip(kept, ~hidden))
    for label, cells in _domains(stats, kept).items():
        enough = np.stack([shown[k] for k in cells])
        skewness, kurtosis = guard.shapes(stats.sums.moments, cells, enough, few)
        if not np.isnan(kurtosis).all():
            pair = {"skewness": _or_none(skewness), "kurtosis": _or_none(kurtosis)}
            found.append({"domain": plain(label), **pair})
    return found


def _or_none(values: Array) -> list[float | None]:
    return [None if np.isnan(v) else float(v) for v in values]


def _spread(stats: Any, cells: list[int], few: float) -> Array:
    """Tell of which features few rows do not hold most of the deviations."""
    moments = stats.sums.moments
    squares, fourth = (getattr(moments, name)[cells].sum(axis=0) for name in ("squares", "fourth"))
    return guard.is_spread(squares, fourth, few)


def _correlations(stats: Any, kept: list[int], least: int, few: float) -> list[dict[str, Any]]:
    """Return how closely features go together within the cells of a domain, as one number.

    Not their products: those with a rare yes are the means of other features in its few rows.
    """
    moments, found = stats.sums.moments, []
    products = moments.products
    assert products is not None
    for label, cells in _domains(stats, kept).items():
        mine = [k for k in cells if products.count[k] >= least]
        if products.count[mine].sum() < MIN_POWERS * least:
            continue
        used = np.flatnonzero(_spread(stats, cells, few)[moments.few])
        typical = guard.typical_correlation(moments, mine, used)
        if typical is not None:
            found.append({"domain": plain(label), "typical": typical})
    return found


def _continuous(
    stats: Any, kept: list[int], label: Array, hidden: Array, level: int, few: int, least: int
) -> tuple[dict[str, Any], Array]:
    """Return sums with continuous confounders, and squares of cells; hide what has too few rows."""
    weight = int(np.ceil(stats.largest_weight))
    known = stats.sums.continuous.shielded(kept, few, least)
    known.restrict(level)
    rows = (few // weight) - 1
    for j, own in known.products.own.items():
        own.forget(guard.crowded(known, own, label, level, rows + 1, weight))
        hidden[:, j] |= own.count == 0
    domains = list(_domains(stats, kept).items())
    spread = np.stack([_spread(stats, cells, rows * weight) for _, cells in domains])
    _warn_of_rare(stats, spread | np.isin(np.arange(stats.n_features), list(known.robust)))
    columns, share = known.basis.columns(level), guard.AGAIN if stats.is_rounded else 1.0
    found: dict[str, Any] = {"basis": known.basis.to_dict(), "level": level}
    found["whole"] = guard.written_products(known.products, label, columns, spread, share)
    found["own"] = {
        str(j): guard.written_products(one, label, columns, spread[:, [j]], share)
        for j, one in known.products.own.items()
    }
    sure = np.ones((len(domains), 1), dtype=bool)  # as weights bound what one row adds
    found["curves"] = {
        str(j): guard.written_products(one, label, columns, sure, share)
        for j, one in known.robust.items()
    }
    for j, one in found["curves"].items():  # in place of others: two kinds would tell of tails
        other, place = found["own"].get(j), 0
        if other is None:
            other, place = found["whole"], int(j)
        for mine, its in zip(other["domains"], one["domains"]):
            for row, slope in zip(mine["slopes"], its["slopes"]):
                row[place] = slope[0]
    squares = stats.sums.moments.squares[kept]
    if not stats.is_rounded:
        squares = guard.squares_left(known.products, label, columns, found["whole"], squares)
        for j, own in known.products.own.items():
            mine = stats.sums.moments.squares[kept][:, [j]]
            mine = guard.squares_left(own, label, columns, found["own"][str(j)], mine)
            squares[:, j] = mine[:, 0]
    return {**found, "bins": known.bins.tolist()}, squares


def _warn_of_rare(stats: Any, spread: Array) -> None:
    """Warn of features whose relation to confounders is not written, as few rows would tell it."""
    rare = np.flatnonzero(~spread.all(axis=0) & (stats.sums.moments.sd > 0).any(axis=0))
    if len(rare):
        names = np.array(stats.feature_names or range(stats.n_features), dtype=object)
        text = "How {names} depends on {numbers} is not written: few rows hold most of the "
        text += "deviations, and would be told. Cut or transform such values, or leave it out."
        numbers = listing(stats.sums.continuous.basis.names)
        warn("rare-feature", text, UserWarning, names=listing(names[rare]), numbers=numbers)


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


def _without_crowds(stats: Any, min_cell: int) -> dict[int, Values]:
    """Return the values of features for which sums with weights keep the rule."""
    known, values = stats.sums.continuous, stats.sums.values
    gone = guard.crowds(known, min_cell)
    if gone:
        names = np.array(stats.feature_names or range(stats.n_features), dtype=object)[gone]
        text = "Nothing of a second round is written of {names}: its sums would tell of few "
        text += "rows. Gather more rows, or cut values that stand apart."
        warn("second-round", text, UserWarning, names=listing(names))
    return {j: one for j, one in values.items() if j not in gone}


def _values(
    stats: Any,
    values_of: dict[int, Values],
    least: int,
    kept: list[int],
    cells: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return the values of features with heavy tails, at least so many rows behind each pair."""
    found, mean, sd = [], np.zeros(len(stats.cells)), np.zeros(len(stats.cells))
    for feature, every in values_of.items():
        for k, one in zip(kept, cells):  # as they are written, so that groups tell no more digits
            n = max(one.get("known", [one["count"]] * stats.n_features)[feature], 1)
            mean[k], sd[k] = one["mean"][feature] or 0, np.sqrt((one["squares"][feature] or 0) / n)
        values = every if stats.is_rounded else every.coarser(least, mean, sd)
        for k, one in zip(kept, cells):
            mine = values.cell == k
            where = {"domain": one["domain"], "levels": one["levels"]}
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
    stats.is_rounded = content["schema"] > 1
    _fill_head(content, stats)
    _fill_cells(content, stats)
    if content["continuous"] is not None:
        read = _numbers_of if stats.is_rounded else _numbers_of_1
        stats.sums.continuous = read(content["continuous"], stats)
        _check_continuous(stats.sums.continuous, stats)
    _spread_correlations(content["correlations"], stats)
    _fill_ties(content["equal_values"], stats)
    _fill_values(content["values"], stats)
    stats._roles = dict.fromkeys(("domain", "label", "confounders", "sample_weight", "features"))
    stats._roles |= {"categorical": None, "missing": "raise"}
    return stats


def _numbers_of_1(fields: dict[str, Any], stats: Any) -> Continuous:
    """Read sums with continuous confounders from a file of schema 1."""
    refuse_if(
        "products" not in fields or "robust" not in fields, "'continuous.products' is missing"
    )
    found = Continuous.read(fields)
    found.spots = spots_of_bins(found)
    return found


def _numbers_of(fields: dict[str, Any], stats: Any) -> Continuous:
    """Read sums with continuous confounders: each cell has its share of those of its domain."""
    lacking = {"level", "whole", "own", "curves"} - set(fields)
    refuse_if(lacking, f"'continuous' lacks {listing(sorted(lacking))}")
    basis, level, moments = (
        RangeBasis.from_dict(fields["basis"]),
        fields["level"],
        stats.sums.moments,
    )
    text = "'continuous.level' is none of 'continuous.basis'"
    refuse_if(not basis.lowest <= level <= basis.n_bent, text)
    columns, d = basis.columns(level), stats.n_features
    label = np.array([stats.labels.index(cell[0]) for cell in stats.cells])
    known, n = moments.n, np.broadcast_to(moments.n, moments.mean.shape)
    found = Continuous(basis, len(label), d)

    def products(part: dict[str, Any], features: Any, count: Array) -> Any:
        sizes = [part["mean"].shape[1], *(len(one["root"]) for one in part["domains"])]
        are_right = set(sizes) == {len(columns)} and len(part["domains"]) == len(stats.labels)
        refuse_if(not are_right, "'continuous.whole', 'own' or 'curves' do not fit 'level'")
        own = moments.mean[:, features], moments.squares[:, features]
        return guard.spread_products(part, label, count, *own, basis, level)

    found.products = products(fields["whole"], np.arange(d), moments.count)
    found.products.own = {
        j: products(one, np.array([j]), n[:, j]) for j, one in fields["own"].items()
    }
    gone = list(found.products.own)
    r = basis.n_columns
    for table in (found.products.mean, found.products.scatter):
        table[..., [r + j for j in gone]] = 0.0
    found.products.squares[:, gone] = 0.0
    lacks = known.shape[1] > 1 and (known < moments.count[:, None]).any(axis=0)
    refuse_if(lacks & ~np.isin(np.arange(d), gone), "'continuous.own' lacks a feature with gaps")
    found.robust = {j: products(one, np.array([j]), n[:, j]) for j, one in fields["curves"].items()}
    found.bins, found.level = fields["bins"], np.full(len(label), level)
    refuse_if(found.bins.shape[1] != len(basis.names), "'continuous.bins' do not fit 'basis'")
    found.spots = Spots(basis.ranges)
    return found


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
    for one in content.get("shapes", ()):
        mine = np.array([key[0] == one["domain"] for key in keys])
        refuse_if(not mine.any(), "'shapes' are of a 'domain' without cells")
        size, unit = known[mine], np.sqrt(part.squares[mine] / np.maximum(known[mine], 1))
        third, fourth = one["skewness"], one["kurtosis"]
        tables["third"][mine], tables["fourth"][mine] = (
            size * unit**3 * third,
            size * unit**4 * fourth,
        )
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
        mine = cells.pop(one["domain"], None)
        where = f"'correlations' of {shown(one['domain'])}"
        refuse_if(mine is None, f"{where} are there twice, or of no cell")
        assert mine is not None
        key = "typical" if stats.is_rounded else "matrix"
        refuse_if(key not in one, f"{where} are not those of its schema")
        products.count[mine] = moments.count[mine]
        products.mean[mine] = moments.mean[mine][:, few]
        share: Array = products.count[mine] / products.count[mine].sum()
        sums = _alike(one["typical"], mine, stats) if stats.is_rounded else None
        if sums is None:
            matrix = one["matrix"]
            refuse_if(matrix.shape != (len(few),) * 2, f"{where} must be of {len(few)} features")
            is_wrong = np.abs(matrix - matrix.T).max() > _POSSIBLE - 1
            is_wrong = is_wrong or np.linalg.eigvalsh(matrix)[0] < 1 - _POSSIBLE
            refuse_if(is_wrong, f"{where} cannot be those of any rows")
            size = np.sqrt(moments.squares[mine][:, few].sum(axis=0))
            sums = matrix * np.outer(size, size)
        products.scatter[mine] = share[:, None, None] * sums


def _alike(typical: float, mine: list[int], stats: Any) -> Array:
    """Return products of features that all go together to the same degree."""
    few = stats.sums.moments.few
    size = np.sqrt(stats.sums.moments.squares[mine][:, few].sum(axis=0))
    matrix = np.full((len(few),) * 2, typical) + (1 - typical) * np.eye(len(few))
    return np.asarray(matrix * np.outer(size, size))


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
        rows, total = stats.sums.moments.count[k], one["counts"].sum()
        most = rows + 2.0 * len(one["counts"]) * stats.is_rounded
        refuse_if(total > most * _ROUNDED, "'values' has more rows than 'cells'")
        share = 1.0
        if stats.is_rounded and total > 0:  # counts are rounded: together they are those of values
            share = (
                float(
                    np.broadcast_to(stats.sums.moments.n, (len(stats.cells), stats.n_features))[
                        k, j
                    ]
                )
                / total
            )
        found = Values(np.full(len(one["counts"]), k), share * one["counts"], one["ends"])
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
