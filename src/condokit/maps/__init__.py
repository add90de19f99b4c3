"""What comes out: families of maps, the fitted map, its file and its errors."""

from condokit.maps import affine as affine  # each class of maps enters the kinds that it reads
from condokit.maps import monotone as monotone
from condokit.maps.base import Map
from condokit.maps.file import Place


def load_map(path: Place) -> Map:
    """Read a map of any kind that `save` wrote; refuse any other file with a `MapFileError`."""
    return Map.load(path)
