"""A report's record as one page of HTML that needs no network; nothing is computed here."""

import base64
import hashlib
import json
import math
import re
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from condokit.data.disclosure import size_of
from condokit.data.records import Sheet
from condokit.report.graph import placed
from condokit.report.pieces import most_shifted

TOP = 20  # features shown without a script, and in pictures of many
_MOST_STRATA = 40
_MOST_CHANGED = 5  # features on the first screen
_BREAKS = re.compile(r"(?<=[_./:-])(?=.)|(?<=[a-z])(?=[A-Z])")  # the script does the same
_MOST_EXPLORED = 4000  # features of all batches together that a page has
_COLUMNS = {
    "data": "Data",
    "shift_sd": "Shift (sd)",
    "log_sd_ratio": "Spread mismatch",
    "domain_auc": "Telling apart",
    "explained": "Explained",
    "kept": "Kept",
    "silhouette_domain": "Silhouette: data set",
    "silhouette_confounders": "Silhouette: confounders",
}
_VERSIONS = {
    "as is": "As it is",
    "moment matching": "Plain moment matching",
    "this map": "This map",
}


def render(record: dict[str, Any]) -> str:
    """Return one self-contained HTML page; the same record always gives the same page.

    Parameters
    ----------
    record : dict
        What `save` returned, or the same read from JSON.

    Returns
    -------
    str
        The page: no requests, no dependencies, below 3 MB for 100 features.

    Examples
    --------
    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from condokit import ConDoAdapter, datasets, report
    >>> df = datasets.make_eeg(60, 60, random_state=0).to_frame()
    >>> roles = {"domain": "device", "confounders": "seizure", "features": "*F3"}
    >>> adapter = ConDoAdapter(reference="v1").fit(df, **roles)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     record = report.save(Path(folder, "report.html"), adapter, df, **roles)
    >>> report.render(json.loads(json.dumps(record))) == report.render(record)
    True
    """
    script = _file("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    features = record["features"]
    if "batch" in features:  # those of a pair are in this order, and all of them are shown
        features = Sheet(features).take(most_shifted(features)[:_MOST_EXPLORED]).to_dict()
    environment = Environment(
        loader=PackageLoader("condokit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, count=count, percent=percent, breakable=breakable)
    shown = {
        "features": features,
        "n_all": len(record["features"]["feature"]),
        "style": Markup(_file("report.css")),
        "columns": _COLUMNS,
        "version_names": _VERSIONS,
        "script": Markup(script),
        "script_hash": digest,
        "data": Markup(_embedded({"features": features, "densities": record["densities"]})),
        "bars": _bars(record) if record["compared"] else {},
        "graph": placed(record["batches"]) if record["pairs"] else None,
        "top": list(Sheet(features).rows())[:TOP],
        "love": _largest(features, ("shift_before", "shift_after"), TOP),
        "changed": _largest(features, ("change_sd",), _MOST_CHANGED),
        "n_shown": TOP,
    }
    return environment.get_template("report.html.jinja").render(**record | shown)


def number(value: Any) -> str:
    """Return three digits (two below 0.1), more before the point; the script does the same."""
    if value is None:
        return "–"
    if isinstance(value, str | bool):
        return str(value)
    size = abs(value)
    if size < 1e-12:
        return "0"
    if size >= 1e7 or size < 1e-4:
        text = f"{value:.1e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    elif size >= 100 or isinstance(value, int):
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{(1 if size < 0.1 else 2) - math.floor(math.log10(size))}f}"
    return text.replace("-", "−")


def count(value: Any) -> str:
    """Return a count of rows with separators; hidden and rounded ones as they are."""
    if isinstance(value, str):
        return value.replace("<", "< ").replace("~", "≈ ")
    return "–" if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    """Return a share as a whole percentage."""
    return "–" if value is None else f"{round(100 * value)}%".replace("-", "−")


def breakable(text: str) -> Markup:
    """Return a name that may be broken between its parts, where a line is too short for it."""
    return Markup("<wbr>").join(_BREAKS.split(text))


def _file(name: str) -> str:
    return files("condokit.report").joinpath("templates", name).read_text(encoding="utf-8")


def _embedded(value: Any) -> str:
    """Return JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _bars(record: dict[str, Any]) -> dict[str, Any]:
    """Return shares of rows by stratum, and the largest of them."""
    sheet = (record["assessment"] or {"strata": {}})["strata"]
    names, bars = sheet.get("rows with", []), []
    rows: list[dict[str, Any]] = [{"name": name} for name in names[:_MOST_STRATA]]
    for side in ("query", "reference"):
        total = max(record["compared"][f"n_{side}"], 1)
        for row, shown in zip(rows, sheet.get(f"n_{side}", [])):
            size, hidden = size_of(shown)
            row[side] = {"count": shown, "share": size / total, "hidden": hidden}
            bars.append(row[side])
    longest = max((bar["share"] for bar in bars), default=1) or 1
    hidden = any(bar["hidden"] for bar in bars)
    return {"rows": rows, "longest": longest, "hidden": hidden, "n": len(names)}


def _largest(features: dict[str, Any], keys: tuple[str, ...], most: int) -> list[dict[str, Any]]:
    """Return the features that have the largest of these values, whatever their signs."""
    if keys[0] not in features:
        return []
    size = [max(abs(x or 0) for x in row) for row in zip(*(features[key] for key in keys))]
    order = sorted(range(len(size)), key=lambda k: -size[k])
    return list(Sheet(features).take(order[:most]).rows())
