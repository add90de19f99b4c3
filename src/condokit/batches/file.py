"""The file of all maps of a `BatchAdapter`: its content, and how an adapter is read from it."""

import ast
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from condokit.adapter import ConDoAdapter
from condokit.batches.record import label_for_file, report_from_file
from condokit.compare.priors import PRIORS
from condokit.conditionals import CONDITIONALS
from condokit.divergences import DIVERGENCES
from condokit.io.schema import refuse_if, shown
from condokit.maps import file as mapfile
from condokit.maps.families import MAPS, LocationScale, Monotone, Shift
from condokit.maps.provenance import check_provenance
from condokit.maps.standard_errors import DiagonalErrors
from condokit.paper import ConDo, MMDBaseline, OTBaseline

_NAMES: dict[str, Any] = {  # what settings can be as text
    "map": (*MAPS, "auto"),
    "divergence": (*DIVERGENCES, "auto", "kl", "mmd"),
    "prior": PRIORS,
    "conditional": (*CONDITIONALS, "auto"),
    "shrinkage": ("auto",),
    "missing": ("raise", "drop", "impute"),
    "start": ("identity", "location-scale"),
}
_WITH_LINKS: dict[str, Any] = {one.__name__: one for one in (LocationScale, Monotone, Shift)}
_METHODS = {one.__name__: one for one in (ConDo, OTBaseline, MMDBaseline)}


def content_of(adapter: Any, errors: bool | None) -> dict[str, Any]:
    """Return the content of the file of a fitted adapter."""
    names, reference = getattr(adapter, "feature_names_in_", None), adapter.reference_
    return {
        "kind": "batches",
        "feature_names": None if names is None else [str(name) for name in names],
        "columns": adapter._columns,
        "n_features": adapter.n_features_in_,
        "reference": label_for_file(reference),
        "batches": [
            {"label": label_for_file(label), **one.to_dict(False if label == reference else errors)}
            for label, one in adapter.maps_.items()
        ],
        "provenance": adapter.provenance_,
    }


def adapter_of(kind: Any, content: dict[str, Any]) -> Any:
    """Return a fitted adapter of class `kind` from a file's content, or raise a ValueError."""
    reference, maps = content["reference"], _maps_of(content)
    links = next((one.links for one in maps.values()), None)
    inner, lost = _adapter_in(content.get("provenance") or {}, links)
    is_default = inner.described() == ConDoAdapter().described()
    adapter = kind(None if is_default else inner, reference=reference)
    adapter._lost = adapter.adapter, lost
    is_known = reference in (*maps, "consensus")
    refuse_if(not is_known, f"'reference' is {shown(reference)}, which is no batch.")
    adapter.provenance_ = check_provenance(content.get("provenance")) or {}
    adapter.report_ = report_from_file(reference, adapter.provenance_, list(maps))
    adapter.reference_ = reference
    if reference in maps:  # its map is the identity, which has no error
        no_errors = DiagonalErrors(*np.zeros((3, maps[reference].n_features_in_)))
        maps[reference] = maps[reference].with_errors(no_errors)
    adapter.maps_, adapter.graph_ = maps, []
    adapter.paths_ = {label: facts.path for label, facts in adapter.report_.batches.items()}
    adapter._columns, adapter.n_features_in_ = content.get("columns"), content["n_features"]
    if content["feature_names"] is not None:
        adapter.feature_names_in_ = np.asarray(content["feature_names"], dtype=object)
    return adapter


def _adapter_in(provenance: Mapping[str, Any], links: Any) -> tuple[ConDoAdapter, dict[str, Any]]:
    """Return an adapter with the settings that a file has, and those that no file can hold.

    Ingredients are known by name. Instances are text in a file, from which nothing is made, but for
    plain families on the scale of links (which the maps have) and dicts of reliabilities.
    """
    given = dict(provenance.get("adapter", {}))
    adapter: Any = _METHODS.get(str(given.get("method")), ConDoAdapter)()
    kept, lost = dict[str, Any](), dict[str, Any]()
    for name in adapter.get_params(deep=False):
        value = given.get(name)
        family = _WITH_LINKS.get(str(value).partition("(")[0])
        if name in ("reference", "n_jobs", "verbose") or name not in given:
            continue
        if (name, value) == ("random_state", 0):  # what commands write if the user gave none
            continue
        if name == "map" and family is not None and links is not None:
            value = family(links)
        elif name == "reliability" and isinstance(value, str):
            with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                value = ast.literal_eval(value)
        is_text = isinstance(value, str) and value not in _NAMES.get(name, ())
        (lost if is_text else kept)[name] = value
    return adapter.set_params(**kept), lost


def _maps_of(content: dict[str, Any]) -> dict[Any, Any]:
    """Return the maps in a file by label; raise an error if they are of different features."""
    names, columns, width = content["feature_names"], content.get("columns"), content["n_features"]
    if columns is not None:
        is_wrong = len({*columns}) < len(columns) or max(columns) >= width
        refuse_if(is_wrong, f"'columns' must be different places among {width} columns")
    n_features, maps = width if columns is None else len(columns), dict[Any, Any]()
    for k, one in enumerate(content["batches"]):
        where, label = f"'batches[{k}]'", one["label"]
        refuse_if(label in maps, f"{where} has the label {shown(label)}, as another batch")
        try:
            maps[label] = found = mapfile.CLASSES[one["kind"]].from_dict(one)
        except ValueError as error:
            raise ValueError(f"{where} holds no map: {error}") from None
        text = f"{where} maps {found.shape[1]} features to {found.shape[0]}, not {n_features}"
        refuse_if(found.shape != (n_features, n_features), text)
        text = f"{where} has other 'feature_names' than the file, or in another order"
        refuse_if(one["feature_names"] != names, text)
    return maps
