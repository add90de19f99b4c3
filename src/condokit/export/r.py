"""Maps as R source, from the template `adapt.R.jinja`."""

from typing import Any

from condokit.export.python import rendered
from condokit.maps.affine import AffineMap


def to_r(affine: AffineMap) -> str:
    """Return the source of an R script with a function `adapt`, which needs no package.

    ``adapt(data)`` takes a data frame and returns it with mapped features; other columns stay
    unchanged. For a map without names it takes and returns a matrix. NA stays NA; infinity and
    values outside the domain of a link are an error. Read tables with ``check.names = FALSE`` if
    names of features are not valid names in R.

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
    """Return a list as source, and a matrix by its rows."""
    rows = list(values)
    if rows and isinstance(rows[0], list):
        inner = ",\n    ".join(", ".join(map(repr, row)) for row in rows)
        return f"matrix(c(\n    {inner}\n  ), nrow = {len(rows)}, byrow = TRUE)"
    kind = "list" if None in rows or len({*map(type, rows)}) > 1 else "c"
    return f"{kind}({', '.join(map(_one, rows))})"


def _one(value: Any) -> str:
    """Return a number, a text or None as source."""
    if not isinstance(value, str):
        return "NULL" if value is None else repr(value)
    if "\0" in value:
        raise ValueError(f"{value!r} cannot be the name of a column in R.")
    plain = (c if " " <= c <= "~" and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
    return f'"{"".join(plain)}"'
