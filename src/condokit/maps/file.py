"""The map file: what it holds, kind by kind, and the class that each kind is read by."""

from collections.abc import Mapping
from typing import Any

from condokit.checks import MapFileError
from condokit.io import documents
from condokit.io.documents import Place
from condokit.io.fields import LARGEST_COUNT, ByKind, Field, List, Number, Plain
from condokit.maps.profile import PROFILE
from condokit.maps.provenance import PROVENANCE

CLASSES: dict[str, Any] = {}  # from a kind to the class that reads it; they enter themselves
KINDS: dict[str, Mapping[str, Field]] = {}  # from a kind to the fields that it alone has
TEXT, LABEL = Plain("string"), Plain("string number boolean")
_LINK = Number(0, above=True, words=("log", "logit"), null=True)
_OF_ONE: dict[str, Field] = {
    "feature_names": List(TEXT, 1, "features", different=True, null=True),
    "links": List(_LINK, 1, "features", optional=True),
    "output_names": List(TEXT, 1, "outputs", different=True, optional=True),
    "fitted_on": PROFILE,
    "provenance": PROVENANCE,
}
KINDS["batches"] = {
    "n_features": Number(1, LARGEST_COUNT, whole=True),  # columns of an array, if it is one
    "columns": List(Number(0, LARGEST_COUNT, whole=True), least=1, null=True),
    "reference": LABEL,
    "batches": List(ByKind({"label": LABEL, **_OF_ONE}, KINDS, without=("batches",)), least=1),
}
_FIELDS = ByKind({"condokit": TEXT, **_OF_ONE}, KINDS)
MAPS = documents.Format("condokit-map", 2, "map", MapFileError, _FIELDS)


def write(path: Place, content: dict[str, Any]) -> None:
    """Write a map to a file or an open one, the same bytes for the same map."""
    documents.write(path, content, MAPS)


def read(place: Place, wanted: Any) -> Any:
    """Return the map in a file, of the class that is wanted, or the one that reads its kind."""

    def make(_: Any, content: dict[str, Any]) -> Any:
        kind = content["kind"]
        reader = wanted if kind in getattr(wanted, "kinds", ()) else CLASSES.get(kind)
        return kind, None if reader is None else reader.from_dict(content)

    kind, found = documents.read(place, MAPS, make)
    if not isinstance(found, wanted):
        other = getattr(wanted, "__name__", "map")
        raise MapFileError(
            f"{MAPS.call(place)} holds a map of the kind {kind!r}, which is no {other}. "
            f"Read it with condokit.{'BatchAdapter.load' if kind == 'batches' else 'load_map'}."
        )
    return found
