"""Maps as Python source, from the template `adapt.py.jinja`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import condokit
from condokit.data.links import LEAST_SHARE, MOST_SHARE
from condokit.maps.affine import AffineMap


def to_python(affine: AffineMap) -> str:
    """Return the source of a Python module with a function `adapt`, which needs no package.

    ``adapt(row)`` takes a dict with the features (other keys are ignored) and returns a dict with
    the mapped features; for a map without names it takes a sequence and returns a list. None and
    NaN stay unchanged; infinity and values outside the domain of a link raise a ValueError.

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
    >>> from condokit.export import to_python
    >>> module = {}
    >>> exec(to_python(AffineMap([2.0], [1.0], ["a"])), module)
    >>> module["adapt"]({"a": 3.0, "id": "x"})
    {'a': 7.0}
    """
    return rendered(affine, "adapt.py.jinja", _source)


def rendered(affine: AffineMap, template: str, write: Callable[[Any], str]) -> str:
    """Return a template filled with the numbers of a map; `write` formats lists in the language."""
    from jinja2 import Template

    names = affine.feature_names
    lists: dict[str, Any] = {
        "FEATURES": names or range(affine.n_features_in_),
        "OUTPUTS": affine.outputs(names) if names else range(affine.shape[0]),
        "LINKS": affine.links or [None] * affine.n_features_in_,
        "UNLINKS": affine.links or [None] * affine.shape[0],
        **{name.upper(): array.tolist() for name, array in affine.arrays().items()},
    }
    if affine.kind == "low-rank":
        lists["RIGHT"] = affine.arrays()["right"].T.tolist()
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    return Template(text, trim_blocks=True, keep_trailing_newline=True).render(
        version=condokit.__version__,
        lists={name: write(values) for name, values in lists.items()},
        kind=affine.kind,
        is_named=names is not None,
        least=repr(LEAST_SHARE),
        most=repr(MOST_SHARE),
    )


def _source(values: Any) -> str:
    """Return a list as source on one line, and a matrix with one line for every row."""
    rows = list(values)
    if rows and isinstance(rows[0], list):
        return "[\n" + "".join(f"    {row!r},\n" for row in rows) + "]"
    return ascii(rows)
