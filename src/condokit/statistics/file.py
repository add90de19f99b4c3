"""The statistics file: readable JSON without rows, and without cells of few rows."""

import os
from contextlib import suppress
from typing import Any

import numpy as np

from condokit.checks import Array, FileError, check_integer, listing, warn
from condokit.data.arrays import ones_for_zeros
from condokit.data.basis import RangeBasis
from condokit.data.bins import Values
from condokit.data.continuous import Continuous
from condokit.data.spots import Spots
from condokit.data.sums import MARKS
from condokit.io import documents
from condokit.io.documents import Place
from condokit.io.schema import STATISTICS as SCHEMA
from condokit.io.schema import refuse_if, shown
from condokit.statistics import guard, reveals

MIN_POWERS = 4  # times the fewest rows of a cell, from which a domain's correlation is written
FEWEST = 3  # rows of a cell, at least: mean and spread of two rows determine both values
_TIES = 0.1  # share of rows from which the count of a frequent value is written
_TABLES = ("mean", "squares", "third", "fourth")
_ROUNDED = 1 + 1e-9  # factor that sums of counts may be off by, as floating-point numbers
_POSSIBLE = 1.001  # largest correlation that is accepted: 1 and rounding
STATISTICS = documents.Format("condokit-statistics", 2, "statistics file", FileError, SCHEMA)


def write(path: Place, stats: Any, min_cell: int, previous: Any = ()) -> None:
    """Write statistics to a file, without cells of fewer than `min_cell` rows.

    Warns if this file and a `previous` one together reveal a few rows.
    """
    content, cls = content_of(stats, min_cell), type(stats)
    reveals.warn_of_cells(content, stats)
    earlier = [previous] if isinstance(previous, str | os.PathLike) else list(previous)
    for one in earlier:
        warn_of_release(read(one, cls), content, cls)
    if isinstance(path, str | os.PathLike) and os.path.isfile(path) and path not in earlier:
        warn_of_replacing(path, content, cls)
    documents.write(path, content, STATISTICS)


def warn_of_replacing(path: Any, content: dict[str, Any], cls: Any) -> None:
    """Warn if a file that is about to be replaced and the new one together reveal a few rows."""
    with suppress(FileError):  # what is replaced may be damaged, or another kind of file
        warn_of_release(read(path, cls), content, cls)


def warn_of_release(before: Any, content: dict[str, Any], cls: Any) -> None:
    """Warn if an earlier file and the new one, as written, together reveal a few rows."""
    document = {"format": STATISTICS.name, "schema": STATISTICS.newest, "condokit": ""}
    after = _from(SCHEMA.read({**document, **content, "sha256": "0" * 64}), cls())
    reveals.warn_of_differences(before, after, content["min_cell"])


def content_of(stats: Any, min_cell: int) -> dict[str, Any]:
    """Return the fields of the file after disclosure control.

    Rows may have weights. `min_cell` times the largest weight is at least the weight of `min_cell`
    rows, so sums of weights are compared with that.
    """
    check_integer("min_cell", min_cell, FEWEST)
    weight = int(np.ceil(stats.largest_weight))
    known, total = stats.sums.continuous, stats.sums.moments.count
    count = np.where(stats.n_equal >= min_cell * (1 - 1e-9), total, 0.0)
    label, least = stats.label_of_cell, min_cell * weight
    X, Z = np.split(stats.seen, [stats.n_features], axis=1)
    if known is not None and len(X):
        guard.refuse_multiples(X, Z, known.basis.ranges, stats.names, known.basis.names)
    if len(X):
        gaps = (total[:, None] - stats.sums.moments.n_values)[count >= least]
        guard.refuse_twins(X, gaps, total[count >= least], stats.names, least)
    order = sorted(stats.cells.items(), key=lambda item: [str(x) for x in item[0]])
    kept, masked = [k for _, k in order if count[k] >= least], dict(stats.masked)
    if not kept:
        raise ValueError(
            f"Nothing can be written: every cell has fewer than {least} rows. Merge levels of "
            "categories, or leave confounders out."
        )
    gone = total[(total > 0) & (count < least)]
    masked["cells"] += len(gone)
    # rounded up, as the exact number would reveal the size of a single small cell
    masked["rows"] += least * int(np.ceil(gone.sum() / least))
    hidden = stats.sums.moments.n_values[kept] < least
    numbers, values, squares = None, stats.sums.values, stats.sums.moments.squares[kept]
    if known is not None:
        values = _without_disclosive(stats, min_cell)
        numbers, squares = _continuous(stats, kept, label[kept], hidden, min_cell, least)
        numbers["curves"] = {j: v for j, v in numbers["curves"].items() if int(j) in values}
    where = [cell for cell, k in order if count[k] >= least]
    cells = [_cell(where[i], stats, k, hidden[i], squares[i]) for i, k in enumerate(kept)]
    return {
        "feature_names": stats.feature_names,
        "n_features": stats.n_features,
        "confounders": [
            {"name": name, "kind": kind}
            | ({"range": list(stats.ranges[name])} if name in stats.ranges else {})
            for name, kind in stats.confounders.items()
        ],
        "reference": stats.reference,
        "min_cell": min_cell,
        "fewest_rows": min_cell,
        "largest_weight": weight,
        "masked": masked,
        "cells": cells,
        "shapes": _shapes(stats, kept, hidden, (min_cell - 1) * weight),
        "correlations": _correlations(stats, kept, least, (min_cell - 1) * weight),
        "equal_values": _ties(stats, kept, least),
        "values": _values(stats, values, least, kept, cells),
        "continuous": numbers,
    }


def _cell(
    cell: tuple[Any, ...], stats: Any, k: int, hidden: Array, squares: Array
) -> dict[str, Any]:
    """Return the fields of a cell: counts, means and sums of squared deviations.

    Numbers are rounded unless they come from a file, which has rounded them already.
    """
    moments = stats.sums.moments
    n, count = moments.n_values[k], moments.count[k]
    found: dict[str, Any] = {
        "domain": json_level(cell[0]),
        "levels": [json_level(level) for level in cell[1:]],
        "count": as_integer(count),
    }
    if (n < count).any() or hidden.any():
        found["known"] = [as_integer(v) for v in np.where(hidden, 0, n)]
    mean, squares, size = moments.mean[k], np.maximum(squares, 0.0), np.maximum(n, 1)
    if not stats.is_rounded:
        sd = moments.sd[k]
        mean = guard.rounded(mean, sd / np.sqrt(size))
        squares = guard.rounded(squares, sd**2 * np.sqrt(2 * size))
    for name, values in (("mean", mean), ("squares", squares)):
        found[name] = [None if hide else float(v) for v, hide in zip(values, hidden)]
    return found


def _domains(stats: Any, kept: list[int]) -> dict[Any, list[int]]:
    """Return for each domain the positions of its cells that are written."""
    cells, by_domain = list(stats.cells), dict[Any, list[int]]()
    for k in kept:
        by_domain.setdefault(cells[k][0], []).append(k)
    return by_domain


def _shapes(stats: Any, kept: list[int], hidden: Array, few: float) -> list[dict[str, Any]]:
    """Return skewness and kurtosis of features by domain, where there are enough rows."""
    found, shown = [], dict(zip(kept, ~hidden))
    for label, cells in _domains(stats, kept).items():
        enough = np.stack([shown[k] for k in cells])
        skewness, kurtosis = guard.shapes(stats, cells, enough, few)
        if not np.isnan(kurtosis).all():
            pair = {"skewness": _or_none(skewness), "kurtosis": _or_none(kurtosis)}
            found.append({"domain": json_level(label), **pair})
    return found


def _or_none(values: Array) -> list[float | None]:
    """Return a list with None for NaN, which JSON does not have."""
    return [None if np.isnan(v) else float(v) for v in values]


def _spread(stats: Any, cells: list[int], few: float) -> Array:
    """Mark features whose squared deviations do not come mostly from a few rows: (n_features,)."""
    moments = stats.sums.moments
    squares, fourth = (getattr(moments, name)[cells].sum(axis=0) for name in ("squares", "fourth"))
    return guard.is_spread(squares, fourth, few)


def _correlations(stats: Any, kept: list[int], least: int, few: float) -> list[dict[str, Any]]:
    """Return the root mean square correlation of features within the cells of each domain.

    Single products are not written: those with a rare yes/no feature would be the means of other
    features in its few "yes" rows.
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
            found.append({"domain": json_level(label), "typical": typical})
    return found


def _continuous(
    stats: Any, kept: list[int], label: Array, hidden: Array, min_cell: int, least: int
) -> tuple[dict[str, Any], Array]:
    """Return sums with continuous confounders, and the squared deviations of cells.

    Features with too few known values in a cell are marked in `hidden`, which is changed in place.
    """
    sums, weight = stats.sums.continuous, int(np.ceil(stats.largest_weight))
    known = sums.suppressed(kept, label, least, guard.rule(min_cell))
    level, rows = int(known.level.min()), min_cell - 1
    known.restrict(level)
    for j, own in known.products.own.items():
        hidden[:, j] |= own.count == 0
    _warn_of_rough(stats, weight, known.products.own)
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
    # the weights of Student's t bound the influence of a row, so these slopes may be written
    sure = np.ones((len(domains), 1), dtype=bool)
    found["curves"] = {
        str(j): guard.written_products(one, label, columns, sure, share)
        for j, one in known.robust.items()
    }
    # they replace the unweighted slopes: the difference of the two would reveal the outliers
    for j, one in found["curves"].items():
        unweighted, place = found["own"].get(j), 0
        if unweighted is None:
            unweighted, place = found["whole"], int(j)
        for old, new in zip(unweighted["domains"], one["domains"]):
            for row, slope in zip(old["slopes"], new["slopes"]):
                row[place] = slope[0]
    squares = stats.sums.moments.squares[kept]
    if not stats.is_rounded:
        how, first = (kept, label, columns), len(known.basis.columns(0))
        squares = guard.squares_left(sums.products, *how, found["whole"], squares, first)
        for j in known.products.own:
            own, mine = sums.products.of(np.array([j])), stats.sums.moments.squares[kept][:, [j]]
            squares[:, [j]] = guard.squares_left(own, *how, found["own"][str(j)], mine, first)
    return {**found, "bins": known.bins.tolist()}, squares


def _warn_of_rough(stats: Any, weight: int, incomplete: Any) -> None:
    """Warn of incomplete features of rows with weights, whose groups are not those of all rows."""
    if weight > 1 and incomplete:
        text = "How {names} depends on {numbers} is roughly known, since values are missing and "
        text += "weights differ: a map may be several standard errors off. Leave out the weights, "
        text += "or the rows that lack values."
        names = listing(stats.names[sorted(incomplete)])
        warn("rough-slopes", text, UserWarning, names=names, numbers=listing(stats.ranges))


def _warn_of_rare(stats: Any, spread: Array) -> None:
    """Warn of features whose slopes on confounders are not written, as few rows determine them."""
    rare = ~spread.all(axis=0) & (stats.sums.moments.sd > 0).any(axis=0)
    if rare.any():
        text = "How {names} depends on {numbers} is not written, because a few rows hold most of "
        text += "the deviations and would be revealed. Cut or transform such values, or leave the "
        text += "feature out."
        names, numbers = listing(stats.names[rare]), listing(stats.sums.continuous.basis.names)
        warn("rare-feature", text, UserWarning, names=names, numbers=numbers)


def _ties(stats: Any, kept: list[int], least: int) -> list[dict[str, Any]]:
    """Return how many rows share a frequent value, by a hash of the value, rounded.

    Exact numbers, together with the means of two-valued features in written cells, would reveal
    the cells that are not written.
    """
    found, cells = [], list(stats.cells)
    for label, counts in zip(stats.labels, stats.sums.ties.counts):
        rows = sum(stats.sums.moments.count[k] for k in kept if cells[k][0] == label)
        step = max(least, round(rows / 100))
        for feature, marks in zip(stats.sums.ties.features.tolist(), counts if rows else ()):
            many = np.flatnonzero(marks >= max(least, _TIES * rows))
            if len(many):
                pairs = [
                    [int(m), as_integer(min(step * round(marks[m] / step), rows))] for m in many
                ]
                found.append({"domain": json_level(label), "feature": feature, "marks": pairs})
    return found


def _without_disclosive(stats: Any, min_cell: int) -> dict[int, Values]:
    """Return the binned values of features whose weighted sums do not reveal a few rows."""
    least = guard.rule(min_cell).least * (1 - 1e-9)
    gone = [j for j, worth in stats.sums.continuous.smallest.items() if worth < least]
    if gone:
        text = "The second round's values of {names} are not written, because their sums would "
        text += "reveal fewer than {least} rows. Collect more rows, or take a smaller minimum."
        names = listing(stats.names[gone])
        warn("second-round", text, UserWarning, names=names, least=min_cell)
    return {j: one for j, one in stats.sums.values.items() if j not in gone}


def _values(
    stats: Any,
    values_of: dict[int, Values],
    least: int,
    kept: list[int],
    cells: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return groups of values of heavy-tailed features, each of at least `least` rows."""
    found, mean, sd = [], np.zeros(len(stats.cells)), np.zeros(len(stats.cells))
    for feature, every in values_of.items():
        for k, one in zip(kept, cells):  # rounded mean and sd, so that groups reveal no more digits
            n = max(one.get("known", [one["count"]] * stats.n_features)[feature], 1)
            mean[k], sd[k] = one["mean"][feature] or 0, np.sqrt((one["squares"][feature] or 0) / n)
        values = every if stats.is_rounded else every.coarser(least, mean, sd)
        for k, one in zip(kept, cells):
            mine = values.cell == k
            where = {"domain": one["domain"], "levels": one["levels"]}
            counts, ends = (
                [as_integer(n) for n in values.count[mine]],
                values.ends[:, mine].tolist(),
            )
            found.append({"feature": feature, **where, "counts": counts, "ends": ends})
    return found


def read(place: Place, cls: Any) -> Any:
    """Read the statistics in a file; raise a `FileError` that says what is wrong with it."""
    return document_of(place, cls)[1]


def document_of(place: Place, cls: Any) -> tuple[dict[str, Any], Any]:
    """Read a file; return its JSON and its statistics."""
    document, stats = documents.read(
        place, STATISTICS, lambda document, fields: (document, _from(fields, cls()))
    )
    stats.hashes = [document["sha256"]]
    return document, stats


def _from(content: dict[str, Any], stats: Any) -> Any:
    """Fill empty statistics from the fields of a file; refuse sums that no rows can have."""
    stats.is_rounded = content["schema"] > 1
    _fill_head(content, stats)
    _fill_cells(content, stats)
    if content["continuous"] is not None:
        read_sums = _continuous_sums if stats.is_rounded else _continuous_sums_of_schema_1
        stats.sums.continuous = read_sums(content["continuous"], stats)
        _check_continuous(stats.sums.continuous, stats)
    _spread_correlations(content["correlations"], stats)
    _fill_ties(content["equal_values"], stats)
    _fill_values(content["values"], stats)
    stats._roles = dict.fromkeys(("domain", "label", "confounders", "sample_weight", "features"))
    stats._roles |= {"categorical": None, "missing": "raise"}
    return stats


def _continuous_sums_of_schema_1(fields: dict[str, Any], stats: Any) -> Continuous:
    """Read sums with continuous confounders from a file of schema 1."""
    refuse_if(
        "products" not in fields or "robust" not in fields, "'continuous.products' is missing"
    )
    return Continuous.read(fields)


def _continuous_sums(fields: dict[str, Any], stats: Any) -> Continuous:
    """Read sums with continuous confounders from a file of schema 2.

    Products are written by domain; every cell gets its share of those of its domain.
    """
    lacking = {"level", "whole", "own", "curves"} - set(fields)
    refuse_if(lacking, f"'continuous' lacks {listing(sorted(lacking))}")
    basis, level = RangeBasis.from_dict(fields["basis"]), fields["level"]
    text = f"'continuous.level' must be from {basis.lowest} to {basis.n_bent}"
    refuse_if(not basis.lowest <= level <= basis.n_bent, text)
    columns, d, label = basis.columns(level), stats.n_features, stats.label_of_cell
    moments = stats.sums.moments
    known, n = moments.n, moments.n_values
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
    gone, r = list(found.products.own), basis.n_columns
    for table in (found.products.mean, found.products.scatter):
        table[..., [r + j for j in gone]] = 0.0
    found.products.squares[:, gone] = 0.0
    lacks = known.shape[1] > 1 and (known < moments.count[:, None]).any(axis=0)
    refuse_if(lacks & ~np.isin(np.arange(d), gone), "'continuous.own' lacks a feature with gaps")
    found.robust = {j: products(one, np.array([j]), n[:, j]) for j, one in fields["curves"].items()}
    found.bins, found.level = fields["bins"], np.full(len(label), level)
    refuse_if(found.bins.shape[1] != len(basis.names), "'continuous.bins' do not fit 'basis'")
    found.spots = Spots(basis, d)
    return found


def _fill_head(content: dict[str, Any], stats: Any) -> None:
    """Read the fields for all cells: features, confounders, reference and weights."""
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
    """Read counts, means and sums of powers of deviations of all cells."""
    cells, d, part = content["cells"], stats.n_features, stats.sums.moments
    keys, unknown = [(one["domain"], *one["levels"]) for one in cells], np.full(d, np.nan)
    has_twins, n_levels = len(set(keys)) < len(keys), {len(key) - 1 for key in keys}
    is_wrong = has_twins or n_levels != {len(stats.categories)}
    refuse_if(is_wrong, "'cells' must be different, with a level of each category")
    n_marks = len({key[0] for key in keys}) * MARKS
    n_values = len(cells) * (6 * d + len(part.few) ** 2)
    n_values += n_marks * len({one["feature"] for one in content["equal_values"]})
    text = f"it would take {n_values} numbers in memory, which is too many"
    refuse_if(n_values > documents.MOST_VALUES, text)
    stats._places(keys)
    part = stats.sums.moments
    part.count[:] = count = np.array([one["count"] for one in cells], dtype=float)
    stats.weights = np.stack([count, np.ones(len(count))])  # as if all weights were 1
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
        tables["third"][mine] = size * unit**3 * third
        tables["fourth"][mine] = size * unit**4 * fourth
    _fill_powers(tables["third"], tables["fourth"], part, known)


def _fill_powers(third: Array, fourth: Array, part: Any, n: Array) -> None:
    """Fill in the sums of third and fourth powers of deviations, also where a file has none.

    A cell without them gets the mean skewness and kurtosis of the other cells, or those of the
    normal distribution. `n` are numbers of known values, (n_cells, n_features).
    """
    unit = np.sqrt(part.squares / np.maximum(n, 1))
    for power, table, normal in ((3, third, 0.0), (4, fourth, 3.0)):
        has, sizes = ~np.isnan(table), n * unit**power
        total, expected = np.nansum(table, axis=0), np.where(has, sizes, 0.0).sum(axis=0)
        shape = np.where(expected > 0, total / ones_for_zeros(expected), normal)
        getattr(part, _TABLES[power - 1])[:] = np.where(has, table, shape * sizes)


def _spread_correlations(content: list[dict[str, Any]], stats: Any) -> None:
    """Turn the correlations of a domain into products of features, shared among its cells."""
    moments = stats.sums.moments
    products, few = moments.products, moments.few
    cells = _domains(stats, list(stats.cells.values()))
    for one in content:
        mine = cells.pop(one["domain"], [])
        where = f"'correlations' of {shown(one['domain'])}"
        refuse_if(not mine, f"{where} occur twice, or no cell has this domain")
        key = "typical" if stats.is_rounded else "matrix"
        refuse_if(key not in one, f"{where} do not fit the schema of the file")
        products.count[mine] = moments.count[mine]
        products.mean[mine] = moments.mean[mine][:, few]
        share: Array = products.count[mine] / products.count[mine].sum()
        if stats.is_rounded:
            correlations = _typical(one["typical"], mine, stats)
        else:
            correlations = one["matrix"]
            is_square = correlations.shape == (len(few),) * 2
            refuse_if(not is_square, f"{where} must be of {len(few)} features")
            is_wrong = np.abs(correlations - correlations.T).max() > _POSSIBLE - 1
            is_wrong = is_wrong or np.linalg.eigvalsh(correlations)[0] < 1 - _POSSIBLE
            refuse_if(is_wrong, f"{where} cannot be those of any rows")
        size = np.sqrt(moments.squares[mine][:, few].sum(axis=0))
        products.scatter[mine] = share[:, None, None] * (correlations * np.outer(size, size))


def _typical(typical: float, mine: list[int], stats: Any) -> Array:
    """Return correlations of features of which only the root mean square is known.

    They are what continuous confounders explain, and equal correlations of all residuals.
    """
    few, known = stats.sums.moments.few, stats.sums.continuous
    explained = np.zeros((len(few),) * 2)
    if known is not None:
        c = known.products.roots()[1][mine][:, :, few]
        c = c * np.sqrt(known.products.count[mine])[:, None, None]
        size = ones_for_zeros(np.sqrt(stats.sums.moments.squares[mine][:, few].sum(axis=0)))
        explained = np.einsum("grj,grk->jk", c, c) / np.outer(size, size)
    left = np.sqrt(np.clip(1 - np.diag(explained), 0.0, 1.0))
    pair, beside = np.outer(left, left), explained - np.diag(np.diag(explained))
    np.fill_diagonal(pair, 0.0)
    # the residuals' correlation r solves: sum of (beside + r pair)^2 = sum of typical^2
    a, b = (pair**2).sum(), (pair * beside).sum()
    missing = (beside**2).sum() - typical**2 * len(few) * (len(few) - 1)
    r = (np.sqrt(max(b**2 - a * missing, 0.0)) - b) / a if a > 0 else 0.0
    found = beside + np.clip(r, 0.0, 1.0) * pair
    np.fill_diagonal(found, 1.0)
    return np.asarray(found)


def _fill_ties(content: list[dict[str, Any]], stats: Any) -> None:
    """Read how many rows share a hash of their value."""
    ties, rows = stats.sums.ties, stats.n_rows
    ties.make_room(np.array([one["feature"] for one in content], dtype=np.intp), len(rows))
    label = {name: k for k, name in enumerate(rows)}
    for one in content:
        refuse_if(one["domain"] not in rows, "'equal_values' are of a 'domain' without cells")
        here = label[one["domain"]], int(np.searchsorted(ties.features, one["feature"]))
        mark, count = one["marks"].T
        is_mark = (mark < MARKS) & (mark % 1 == 0)
        refuse_if(~is_mark, f"'equal_values' has a mark that is not a whole number below {MARKS}")
        np.add.at(ties.counts[here], mark.astype(np.intp), count)
        most = rows[one["domain"]] * _ROUNDED
        refuse_if(ties.counts[here] > most, "'equal_values' has more rows than 'cells'")


def _fill_values(content: list[dict[str, Any]], stats: Any) -> None:
    """Read the grouped values of heavy-tailed features."""
    parts: dict[int, dict[int, Values]] = {}
    moments = stats.sums.moments
    for one in content:
        j, k = one["feature"], stats.cells.get((one["domain"], *one["levels"]))
        is_wrong = k is None or k in parts.get(j, ())
        refuse_if(is_wrong, "'values' has a cell twice, or one of no rows")
        total = one["counts"].sum()
        most = moments.count[k] + 2.0 * len(one["counts"]) * stats.is_rounded
        refuse_if(total > most * _ROUNDED, "'values' has more rows than 'cells'")
        factor = 1.0
        if stats.is_rounded and total > 0:  # so that rounded counts add up to the known values
            factor = float(moments.n_values[k, j]) / total
        found = Values(np.full(len(one["counts"]), k), factor * one["counts"], one["ends"])
        parts.setdefault(j, {})[k] = found
    stats.sums.values = {j: Values.joined(every.values()) for j, every in parts.items()}


def _check_continuous(found: Continuous, stats: Any) -> None:
    """Refuse sums with continuous confounders that cannot belong to these cells."""
    count, text = stats.sums.moments.count, "cannot be sums of the rows of 'cells'"
    ranges = dict(zip(found.basis.names, found.basis.ranges))
    refuse_if(ranges != stats.ranges, "'continuous.basis.ranges' are not those of 'confounders'")
    rows = np.column_stack([found.products.count, *found.bins.sum(axis=2).T])
    refuse_if(np.abs(rows - count[:, None]) > 1e-6 * count[:, None], f"'continuous.bins' {text}")
    for one in (found.products, *found.products.own.values(), *found.robust.values()):
        refuse_if(not one.are_possible(), f"'continuous.products' or 'robust' {text}")


def json_level(value: Any) -> Any:
    """Return a label or level as a value that JSON has; refuse others."""
    value = value.item() if hasattr(value, "item") else value
    if value is None or type(value) in (str, bool, int, float):
        return value
    raise ValueError(
        f"The level {value!r} ({type(value).__name__}) cannot be written; convert it to text."
    )


def as_integer(n: float) -> int | float:
    """Return a count as an int if it is a whole number, else as a float."""
    return int(n) if float(n).is_integer() else float(n)
