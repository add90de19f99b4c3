"""Where batches stand in the picture of what can be compared."""

from typing import Any

import numpy as np

from condokit.data.disclosure import size_of

_COLUMN, _ROW, _LOW_ROW, _MANY = 230, 46, 30, 10  # of the picture: pixels, and batches in a column


def placed(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Place batches in columns by steps to the reference, beside the next on their path."""
    n_steps = max(len(one["path"]) for one in batches)
    columns = [[one for one in batches if len(one["path"]) == k + 1] for k in range(n_steps)]
    columns += [lost] if (lost := [one for one in batches if not one["path"]]) else []
    longest, most = max(map(len, columns)), max(size_of(one["rows"] or 0)[0] for one in batches)
    row = _ROW if longest <= _MANY else _LOW_ROW
    at: dict[str | None, dict[str, float]] = {None: {"y": 24 + row * longest / 2}}
    for k, column in enumerate(columns):
        nexts = [(*one["path"], None)[min(len(one["path"]), 1)] for one in column]
        last, end = -np.inf, at[None]["y"] + row * (longest / 2 - len(column) - 0.5)
        order = sorted(range(len(column)), key=lambda i: at[nexts[i]]["y"])
        for place, i in enumerate(order, 1):
            beside = at[nexts[i]]["y"] - row * (nexts.count(nexts[i]) - 1) / 2
            last = min(max(beside, last + row, 24 + row / 2), end + row * place)
            radius = 4 + 7 * (size_of(column[i]["rows"] or 0)[0] / (most or 1)) ** 0.5
            at[column[i]["batch"]] = {"x": 20 + _COLUMN * k, "y": last, "r": radius}
    size = {"column": _COLUMN, "width": _COLUMN * len(columns) - 80, "height": 40 + row * longest}
    return {"at": at, **size}
