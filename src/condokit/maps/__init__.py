"""What comes out: families of maps, the fitted map, its file and its errors."""

from condokit.io.documents import Place
from condokit.maps import affine as affine  # each class of maps enters the kinds that it reads
from condokit.maps import monotone as monotone
from condokit.maps.base import Map


def load_map(path: Place) -> Map:
    """Read a map of any kind that `save` wrote; refuse any other file with a `MapFileError`.

    Parameters
    ----------
    path : path or open file
        The file.

    Returns
    -------
    AffineMap or MonotoneMap
        The map, equal to the one that was saved.

    Examples
    --------
    >>> import io
    >>> from condokit import AffineMap, load_map
    >>> file = io.BytesIO()  # or a path, such as "map.json"
    >>> AffineMap([2.0], [1.0], ["a"]).save(file)
    >>> _ = file.seek(0)
    >>> load_map(file)
    AffineMap of 1 feature (diagonal)
      a -> 2 * a + 1
    """
    return Map.load(path)
