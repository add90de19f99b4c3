"""The file of all maps of a `BatchAdapter`: its content, and how an adapter is read from it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from condokit.adapter import ConDoAdapter
from condokit.batches.record import label_for_file, report_from_file
from condokit.divergences import DIVERGENCES
from condokit.io.schema import refuse_if, shown
from condokit.maps import file as mapfile
from condokit.maps.families import MAPS
from condokit.maps.provenance import check_provenance
from condokit.maps.standard_errors import DiagonalErrors


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
    reference, settings = content["reference"], _settings_of(content.get("provenance"))
    inner, default = ConDoAdapter(**settings), ConDoAdapter()
    is_default = inner.get_params(deep=False) == default.get_params(deep=False)
    adapter = kind(None if is_default else inner, reference=reference)
    maps = _maps_of(content)
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


def _settings_of(provenance: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the adapter's settings that a file has by name; instances cannot be read from text."""
    given = dict((provenance or {}).get("adapter", {}))
    named = {"map": (*MAPS, "auto"), "divergence": (*DIVERGENCES, "auto")}
    some = ("shrinkage", "categorical", "missing", "warn_overlap", "min_overlap", "random_state")
    settings = {name: given[name] for name in some if given.get(name) is not None}
    if settings.get("random_state") == 0:  # what commands write if the user gave none
        del settings["random_state"]
    if "shrinkage" in given:  # where None means no shrinkage, not the default
        settings["shrinkage"] = given["shrinkage"]
    return settings | {n: given[n] for n, known in named.items() if given.get(n) in known}


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
