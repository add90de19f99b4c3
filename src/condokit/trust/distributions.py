"""Densities of features by stratum, before and after a map, where enough rows may be shown."""

from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import is_constant
from condokit.data.disclosure import MIN_CELL, too_few
from condokit.trust.blocks import ComparableRows

_N_POINTS = 64  # at which a density is computed
_MOST_STRATA = 6  # the largest strata, which are shown separately


def densities(
    rows: ComparableRows, strata: list[str], names: list[str], min_cell: int
) -> dict[str, dict[str, Any]]:
    """Return for every feature a grid and densities by stratum ("all" first) and version.

    A density is None if it has fewer than `min_cell` rows.
    """
    largest = np.argsort(-np.bincount(rows.category, minlength=len(strata)), kind="stable")
    cells: dict[str, Array] = {"all": np.ones(len(rows.is_query), dtype=bool)}
    if len(strata) > 1:
        cells |= {strata[k]: rows.category == k for k in sorted(largest[:_MOST_STRATA])}
    out: dict[str, dict[str, Any]] = {}
    for name, before, after in zip(names, rows.before.T, rows.after.T):
        grid = _grid(np.minimum(before, after), np.maximum(before, after))
        out[name] = {"grid": grid.tolist(), "strata": {}}
        for label, mine in cells.items():
            query, reference = mine & rows.is_query, mine & ~rows.is_query
            shown = {"reference": after[reference], "before": before[query], "after": after[query]}
            curves = {key: _density(values, grid, min_cell) for key, values in shown.items()}
            out[name]["strata"][label] = curves
    return out


def _grid(lowest: Array, highest: Array) -> Array:
    """Return points from the fifth lowest to the fifth highest value, and a little beyond.

    The extremes themselves would disclose single rows.
    """
    lowest, highest = (np.sort(values[np.isfinite(values)]) for values in (lowest, highest))
    k = min(MIN_CELL - 1, max(len(lowest) - 1, 0) // 2)
    low, high = (lowest[k], highest[-1 - k]) if len(lowest) else (0.0, 1.0)
    constant = is_constant(high - low, max(abs(low), abs(high)))
    margin = max(0.5, 1e-3 * abs(low)) if constant else 0.1 * (high - low)
    return np.linspace(low - margin, high + margin, _N_POINTS)


def _density(values: Array, grid: Array, min_cell: int) -> list[float] | None:
    """Return a Gaussian kernel density on a grid; None for fewer than `min_cell` rows.

    Silverman's bandwidth; rows are counted in 511 bins first, so the cost does not grow with them.
    """
    known = values[np.isfinite(values)]
    if too_few(len(known), min_cell):
        return None
    spread = min(known.std(ddof=1), np.subtract(*np.quantile(known, [0.75, 0.25])) / 1.349)
    spread = spread if spread > 0 else known.std(ddof=1)
    width = max(0.9 * spread * len(known) ** -0.2, grid[1] - grid[0])
    fine = np.linspace(grid[0] - 3 * width, grid[-1] + 3 * width, 512)
    counts, edges = np.histogram(known, bins=fine)
    centres = (edges[:-1] + edges[1:]) / 2
    kernel = np.exp(-0.5 * ((grid[:, None] - centres) / width) ** 2)
    height = kernel @ counts / (len(known) * width * np.sqrt(2 * np.pi))
    return [float(f"{h:.4g}") for h in height]
