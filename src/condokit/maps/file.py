"""Map files, and which class reads which kind of map."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from condokit.checks import MapFileError
from condokit.io import documents
from condokit.io.documents import Place
from condokit.io.schema import MAPS as SCHEMA

CLASSES: dict[str, Any] = {}  # from a kind to the class that reads it; classes register themselves
MAPS = documents.Format("condokit-map", 2, "map", MapFileError, SCHEMA)


def enter(reader: Any, kinds: Sequence[str], fields: Mapping[str, Any]) -> None:
    """Register a class as the reader of files of some kinds.

    Kinds that the published schema lacks are added to it, with these `fields`.
    """
    CLASSES.update(dict.fromkeys(kinds, reader))
    definitions = SCHEMA.published["$defs"]
    one = definitions["batches"]["properties"]["batches"]["items"]
    for kind in kinds:
        if kind not in SCHEMA.published["properties"]["kind"]["enum"]:
            for place in (SCHEMA.published, one):
                place["properties"]["kind"]["enum"].append(kind)
            condition = {"properties": {"kind": {"const": kind}}}
            then = {"required": list(fields), "properties": dict(fields)}
            definitions["kinds"]["allOf"].append({"if": condition, "then": then})
            SCHEMA.refresh()


def read(place: Place, wanted: Any, of_batches: Callable[[], Any] | None = None) -> Any:
    """Return the map in a file: an instance of `wanted`, or of the class registered for its kind.

    If `of_batches` is given, it imports the class for maps of batches, which are then accepted too.
    """

    def make(_: Any, content: dict[str, Any]) -> Any:
        """Return the kind of a file's map, the map, and whether it is what is wanted."""
        kind = content["kind"]
        if kind == "batches" and of_batches is not None:
            return kind, of_batches().from_dict(content), True
        reader = wanted if kind in wanted.kinds else CLASSES.get(kind)
        found = None if reader is None else reader.from_dict(content)
        return kind, found, isinstance(found, wanted)

    kind, found, is_wanted = documents.read(place, MAPS, make)
    if not is_wanted:
        raise MapFileError(
            f"{MAPS.call(place)} holds a map of the kind {kind!r}, which is no {wanted.__name__}. "
            f"Read it with condokit.{'BatchAdapter.load' if kind == 'batches' else 'load_map'}."
        )
    return found
