"""Maps as R source; `adapt.R.jinja` is what they have in common."""

from typing import Any

from condokit.export.python import rendered
from condokit.maps.affine import AffineMap


def to_r(affine: AffineMap) -> str:
    """Return the source of an R script with a function `adapt`, which needs no package.

    ``adapt(data)`` takes a data frame, whose other columns stay, and returns it with the features
    mapped; for a map without names, from a matrix to a matrix. NA stays NA, infinity and values
    that a link does not admit are an error. Read tables with ``check.names = FALSE`` if the names
    of features are no plain words.

    Parameters
    ----------
    affine : AffineMap or MonotoneMap
        The map.

    Returns
    -------
    str
        The source.

    Examples
    --------
    >>> from condokit import AffineMap
    >>> from condokit.export import to_r
    >>> print(to_r(AffineMap([2.0], [1.0], ["a"])).splitlines()[0][:51])
    # Map new features to those of the reference; writt
    """
    return rendered(affine, "adapt.R.jinja", _source)


def _source(values: Any) -> str:
    """Write a list, or a matrix by its rows."""
    rows = list(values)
    if rows and isinstance(rows[0], list):
        inner = ",\n    ".join(", ".join(map(repr, row)) for row in rows)
        return f"matrix(c(\n    {inner}\n  ), nrow = {len(rows)}, byrow = TRUE)"
    kind = "list" if None in rows or len({*map(type, rows)}) > 1 else "c"
    return f"{kind}({', '.join(map(_one, rows))})"


def _one(value: Any) -> str:
    """Write a number, a text, or nothing."""
    if not isinstance(value, str):
        return "NULL" if value is None else repr(value)
    if "\0" in value:
        raise ValueError(f"{value!r} cannot be the name of a column in R.")
    plain = (c if " " <= c <= "~" and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
    return f'"{"".join(plain)}"'
