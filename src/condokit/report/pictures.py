"""Pictures of all domains together as a page draws them: groups of five rows or more alone."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.disclosure import (
    MIN_CELL,
    hidden_cells,
    hidden_counts,
    shown_names,
    small_cells,
    too_few,
)
from condokit.data.study import Study
from condokit.trust.pictures import Pictures

_MOST_CURVES = 4
_MOST_DRAWN = 40  # domains
_MOST_CONFOUNDERS = 3  # by which components are drawn
_MOST_LEVELS = 10  # of such a confounder
_HALF = 1.0  # standard deviations that an ellipse has on each side
_WIDE, _HIGH = 300.0, 220.0  # pixels of a panel


def pictured(known: Pictures | None) -> dict[str, Any] | None:
    """Return what a page shows of all rows, None if nothing is known of them."""
    if known is None:
        return None
    names = list(dict.fromkeys(one["confounder"] for one in known.curves))
    drawn = [one for one in known.curves if one["confounder"] == names[0]] if names else []
    return {
        "labels": known.labels,
        "shares": list(known.shares.rows()),
        "explained": list(known.explained),
        "components": list(_components(known)),
        "curves": [_placed(one, known.labels) for one in drawn[:_MOST_CURVES]],
        "against": names[:1],
        "n_curves_left": known.n_features - min(len(drawn), _MOST_CURVES),
        "n_rows_left": known.n_rows - len(known.domain),
    }


def _components(known: Pictures) -> Iterator[dict[str, Any]]:
    """Yield groups of rows on the first components: domains, and levels or thirds of confounders.

    Groups are ellipses of one standard deviation, in pixels of a panel.
    """
    named = known.labels[:_MOST_DRAWN]
    yield {"by": None, "labels": named, "ellipses": _ellipses(known, known.domain, named)}
    for c in known.confounders[:_MOST_CONFOUNDERS]:
        codes, labels = c.codes, [str(level) for level in c.levels or ()]
        if c.values is not None:
            low, high = np.nanquantile(c.values, [1 / 3, 2 / 3])
            codes = np.where(np.isfinite(c.values), np.digitize(c.values, [low, high]), -1)
            labels = [f"below {low:.3g}", f"{low:.3g} to {high:.3g}", f"from {high:.3g}"]
        if len(labels) <= _MOST_LEVELS:
            labels = shown_names(labels, np.bincount(codes[codes >= 0], minlength=len(labels)))
            yield {"by": c.name, "labels": labels, "ellipses": _ellipses(known, codes, labels)}


def _ellipses(known: Pictures, codes: Array, labels: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return an ellipse of every group that has rows enough, before and after the maps.

    One more group is left out where subtracting the others from all rows would reveal few rows.
    """
    hidden = hidden_cells(np.bincount(codes + 1, minlength=len(labels) + 1))[1:]
    shown = [b for b in range(len(labels)) if not (hidden[b] or too_few(np.sum(codes == b)))]
    ends = [*np.quantile(np.concatenate([*known.scores.values()]), [0.02, 0.98], axis=0)]
    for part in (scores[codes == b] for scores in known.scores.values() for b in shown):
        ends += [part.mean(axis=0) + side * part.std(axis=0, ddof=1) for side in (-_HALF, _HALF)]
    low, high = np.min(ends, axis=0), np.max(ends, axis=0)  # no ellipse leaves its panel
    size = np.where(high > low, high - low, 1.0)
    out: dict[str, list[dict[str, Any]]] = {}
    for when, scores in known.scores.items():
        out[when] = []
        at = (scores - low) / size * [_WIDE, -_HIGH] + [0, _HIGH]
        for b in shown:
            part = at[codes == b]
            width, axes = np.linalg.eigh(np.cov(part.T))
            rx, ry = _HALF * np.sqrt(np.maximum(width[::-1], 0.0))
            turn = float(np.degrees(np.arctan2(axes[1, 1], axes[0, 1])))
            place = {"x": float(part[:, 0].mean()), "y": float(part[:, 1].mean())}
            shape = {"rx": float(rx), "ry": float(ry), "turn": turn}
            out[when].append({"label": labels[b], "number": b, **place, **shape})
    return out


def _placed(one: dict[str, Any], labels: list[str]) -> dict[str, Any]:
    """Return lines of a feature against a confounder in pixels, and the ends of both axes."""
    lines = one["lines"]
    x = np.concatenate([line["x"] for line in lines])
    y = np.concatenate([line[when] for line in lines for when in ("before", "after")])
    (x0, x1), (y0, y1) = (x.min(), x.max()), (y.min(), y.max())
    found: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
    for when, drawn in found.items():
        for line in lines:
            across = (np.array(line["x"]) - x0) / ((x1 - x0) or 1.0) * _WIDE
            up = _HIGH - (np.array(line[when]) - y0) / ((y1 - y0) or 1.0) * _HIGH
            points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, up))
            drawn.append({"number": labels.index(line["domain"]), "points": points})
    ends = {"x": [float(x0), float(x1)], "y": [float(y0), float(y1)]}
    return {"feature": one["feature"], "confounder": one["confounder"], **ends, **found}


def sites_table(study: Study) -> Iterator[dict[str, Any]]:
    """Yield rows, subjects, missing values and confounders of every domain, few rows hidden."""
    kept = study.kept()
    for b, label in enumerate(study.labels):
        mine = kept & (study.code == b)
        n = int(mine.sum())
        groups = None if study.groups is None else len(np.unique(study.groups[mine]))
        gaps = None if study.gaps is None else float(study.gaps[b].sum())
        gaps = 0.0 if gaps and small_cells(gaps) else gaps
        yield {
            "site": str(label),
            "rows": hidden_counts(np.array([float(n)]))[0],
            "subjects": groups if groups is None or groups >= MIN_CELL else f"<{MIN_CELL}",
            "missing": None if gaps is None else gaps / max(n * study.n_features, 1),
            "confounders": {c.name: _typical(c, mine, n) for c in study.confounders},
        }


def _typical(confounder: Any, mine: Array, n: int) -> str:
    """Return mean and standard deviation of a number, shares of levels, nothing of too few rows."""
    if too_few(n):
        return "–"
    if confounder.values is not None:
        z = confounder.values[mine]
        z = z[np.isfinite(z)]
        return "–" if too_few(len(z)) else f"{z.mean():.3g} ± {z.std():.2g}"
    codes = confounder.codes[mine]
    counts = np.bincount(codes[codes >= 0], minlength=len(confounder.levels)).astype(float)
    hidden = hidden_cells(counts, MIN_CELL)
    every = np.bincount(confounder.codes[confounder.codes >= 0], minlength=len(counts))
    largest = np.argsort(-every, kind="stable")[:4]  # of all sites, in one order
    shown = [
        f"{confounder.levels[k]} {counts[k] / n:.0%}"
        for k in largest
        if counts[k] and not hidden[k]
    ]
    more = int((counts > 0).sum()) - len(shown)
    if not shown and more:
        return "not shown"
    return ", ".join(shown + ([f"{more} more"] if more else []))
