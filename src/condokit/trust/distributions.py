"""Densities of features by stratum, before and after a map, where enough rows may be shown."""

from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import is_constant, ones_for_zeros
from condokit.data.bins import enough
from condokit.data.disclosure import MIN_CELL, hidden_cells, too_few
from condokit.trust.blocks import ComparableRows

_N_POINTS = 64  # at which a density is computed
_FINE = 3  # bins for each of these, in which rows are counted
_MOST_STRATA = 6  # the largest strata, which are shown separately


def densities(
    rows: ComparableRows, strata: list[str], names: list[str], min_cell: int
) -> dict[str, dict[str, Any]]:
    """Return for every feature a grid and densities by stratum ("all" first) and version.

    A density is None if it has fewer than `min_cell` rows, or if that of all less the others is
    of so few.
    """
    largest = np.argsort(-np.bincount(rows.category, minlength=len(strata)), kind="stable")
    shown = sorted(largest[:_MOST_STRATA]) if len(strata) > 1 else []
    few = np.zeros(len(names), dtype=bool) if rows.few is None else rows.few
    sides = {"reference": ~rows.is_query, "before": rows.is_query, "after": rows.is_query}
    out: dict[str, dict[str, Any]] = {}
    for name, before, after, hide in zip(names, rows.before.T, rows.after.T, few):
        if hide:
            continue
        grid = _grid(np.minimum(before, after), np.maximum(before, after))
        curves: dict[str, dict[str, Any]] = {label: {} for label in ("all", *strata)}
        for version, side in sides.items():
            values = (before if version == "before" else after)[side]
            counts = _counted(values, rows.category[side], len(strata), grid)
            curves["all"][version] = _density(counts.sum(axis=0), grid, min_cell)
            n = counts.sum(axis=1)
            hidden = hidden_cells(np.append(n[shown], n.sum() - n[shown].sum()), min_cell)
            for k, hide in zip(shown, hidden):
                curves[strata[k]][version] = None if hide else _density(counts[k], grid, min_cell)
        there = ("all", *(strata[k] for k in shown))
        out[name] = {"grid": grid.tolist(), "strata": {label: curves[label] for label in there}}
    return out


def _grid(lowest: Array, highest: Array) -> Array:
    """Return points from about the fifth lowest to the fifth highest value, and a little beyond.

    The extremes would disclose single rows, as would the exact ends.
    """
    lowest, highest = (np.sort(values[np.isfinite(values)]) for values in (lowest, highest))
    k = min(MIN_CELL - 1, max(len(lowest) - 1, 0) // 2)
    low, high = (lowest[k], highest[-1 - k]) if len(lowest) else (0.0, 1.0)
    constant = is_constant(high - low, max(abs(low), abs(high)))
    margin = max(0.5, 1e-3 * abs(low)) if constant else 0.1 * (high - low)
    step = 10.0 ** np.floor(np.log10(margin))
    low, high = step * np.floor(low / step - 1), step * np.ceil(high / step + 1)
    return np.linspace(low, high, _N_POINTS)


def _counted(values: Array, category: Array, n_strata: int, grid: Array) -> Array:
    """Return rows by stratum and fine bin of a range three times that of the grid.

    What lies beyond is counted in the first and last bin.
    """
    n, known = _N_POINTS * _FINE, np.isfinite(values)
    with np.errstate(over="ignore"):
        place = (values[known] - grid[0]) / (grid[1] - grid[0]) * _FINE
    place = np.clip(np.rint(place), -n, 2 * n - 1).astype(np.intp) + n
    cell = category[known] * (3 * n) + place
    return np.bincount(cell, minlength=3 * n * n_strata).reshape(n_strata, 3 * n)


def _density(counts: Array, grid: Array, min_cell: int) -> list[float] | None:
    """Return a Gaussian kernel density on a grid; None for fewer than `min_cell` rows.

    Silverman's bandwidth. Rows come as counts of fine bins, so the cost does not grow with them.
    At least `min_cell` neighbours are drawn as if they lay at their mean minus and plus their
    standard deviation: from a density of single rows all their values can be computed.
    """
    total, n = int(counts.sum()), _N_POINTS * _FINE
    if too_few(total, min_cell):
        return None
    bins, group = np.arange(len(counts)), enough(counts, min_cell)  # widths are in bins
    size, first, second = (np.bincount(group, counts * bins**k) for k in range(3))
    middle = first / ones_for_zeros(size)
    spread = np.sqrt(np.maximum(second / ones_for_zeros(size) - middle**2, 0.0))
    ends = np.clip(np.rint([middle - spread, middle + spread]), 0, bins[-1]).astype(np.intp)
    counts = np.bincount(ends.ravel(), np.tile(size / 2, 2), len(bins))
    below = np.cumsum(counts)
    sd = np.sqrt(counts @ (bins - counts @ bins / total) ** 2 / max(total - 1, 1))
    low, high = np.searchsorted(below, [0.25 * total, 0.75 * total])
    spread = min(sd, (high - low) / 1.349) if high > low else sd
    width = max(0.9 * spread * total**-0.2, float(_FINE))
    reach = min(int(np.ceil(4 * width)), n)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    smooth = np.convolve(counts[n - reach : 2 * n + reach], kernel, mode="valid")[::_FINE]
    unit = width * (grid[1] - grid[0]) / _FINE
    return [float(f"{h:.4g}") for h in smooth / (total * unit * np.sqrt(2 * np.pi))]
