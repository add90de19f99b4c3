"""What a report says, as plain numbers, text, lists and dicts; nothing is drawn here."""

from collections.abc import Mapping
from typing import Any

from condokit.adapter import ConDoAdapter
from condokit.batches.adapter import BatchAdapter
from condokit.data.records import plain
from condokit.data.study import Study
from condokit.report.pair import of_pair, used_by_pair
from condokit.report.pictures import pictured
from condokit.report.pieces import reproduce
from condokit.report.sites import of_sites, used_by_sites
from condokit.solvers.lbfgs import threads
from condokit.trust.assess import assess
from condokit.trust.evaluate import evaluate

FORMAT, SCHEMA = "condokit-report", 2
_DIGITS = 6  # significant, of what the map is
_FEW_DIGITS = 4  # of what is said about it
_EXACT = {"scale", "own", "slope", "offset", "image_of_mean", "mean", "change"}
_EXACT |= {"grid", "parameters", "curves"}
# Sentences say these with two digits: of four, 0.76499 would be told as 0.76 there and 0.77 here.
_ERRORS = {"before_low", "before_high", "after_low", "after_high", "error_before", "error_after"}
_ERRORS |= {"error_before_interval", "error_after_interval"}
# What only one of the two kinds of studies has: one map with all its details, or many sites.
_OF_ONE_KIND: dict[str, Any] = {
    **dict.fromkeys(("compared", "assessment", "map", "fit", "uncertainty", "joint", "missing")),
    **dict.fromkeys(("n_bridges", "has_errors")),
    **{"bridges_used": False, "additions": [], "sites": [], "pairs": [], "warnings": []},
}


def build(
    adapter: ConDoAdapter | BatchAdapter,
    study: Study,
    *,
    assessment: Any = None,
    evaluation: Any = None,
    command: str | None = None,
    inputs: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Gather everything that is known of the maps of these domains, ready for JSON and `render`.

    Assessment and evaluation are computed if they are not given; neither exists for a map between
    different features. `command` gets this report again, `inputs` are the SHA-256 of files by name.
    Two domains that were fitted as such are a study with one map, which has more details.
    """
    assessment, evaluation = judged(adapter, study, assessment, evaluation)
    if isinstance(adapter, BatchAdapter):
        facts, used = of_sites(adapter, study, assessment, evaluation), used_by_sites(adapter)
    else:
        facts = of_pair(adapter, study, assessment, evaluation)
        used = used_by_pair(adapter, study)
    record = {
        "format": FORMAT,
        "schema": SCHEMA,
        **_OF_ONE_KIND,
        **facts,
        "pictures": None if evaluation is None else pictured(evaluation.pictures),
        "reproduce": reproduce(used, command, inputs),
    }
    return tidy(plain(record))


def judged(
    adapter: ConDoAdapter | BatchAdapter,
    study: Study,
    before: Any = None,
    after: Any = None,
    **asked: Any,
) -> tuple[Any, Any]:
    """Return what is known before and after the maps; nothing of one between different features."""
    if isinstance(adapter, BatchAdapter):
        before = before or assess(study, adapter=adapter)
        return before, after or evaluate(adapter, study, **asked)
    if adapter.map_.is_rectangular or study.is_rectangular:
        return before, after
    limits = {name: getattr(adapter, name) for name in ("warn_overlap", "min_overlap")}
    with threads(adapter.n_jobs):
        before = before or assess(study, domain=None, **limits)
        return before, after or evaluate(adapter, study, domain=None, **asked)


def tidy(value: Any, digits: int = _FEW_DIGITS) -> Any:
    """Round numbers, and replace what cannot be written as UTF-8."""
    if isinstance(value, float):
        short = float(f"{value:.{digits}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [tidy(item, digits) for item in value]
    if isinstance(value, dict):
        columns = {k for k, item in value.items() if isinstance(item, list) and len(item) != 2}
        exact = _EXACT | (_ERRORS - columns)
        return {tidy(k): tidy(v, _DIGITS if k in exact else digits) for k, v in value.items()}
    return value
