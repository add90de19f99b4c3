"""The formula of a map, built once for every language in which it can be written."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from condokit.checks import Array

_MOST_TERMS = 30  # of a sum that is not split, since databases limit the depth of nesting


def write_outputs(affine: Any, columns: Sequence[Any], language: Any) -> list[Any]:
    """Return the outputs of a map of columns in a language, such as SQL.

    A language has these methods: `product` (a number times a column), `sum` (of terms and an
    offset), `curve` (of straight pieces from `lines_of`, each used below the next knot), `link` and
    `unlink`. `nothing` returns the terms of a sum whose weights are all zero. `step` names
    intermediate values on which later ones depend, together with those `beside` them.
    """
    links = affine.links or [None] * len(columns)
    x = [language.link(column, link) for column, link in zip(columns, links)]
    if affine.links is not None or affine.kind == "low-rank":
        x = language.step("x", x)
    if affine.kind == "monotone":
        curves = zip(affine.knots, *map(np.ndarray.tolist, lines_of(*affine.arrays().values())))
        y = []
        for one, (knots, *lines), straight in zip(x, curves, are_straight(affine)):
            own = list(zip(*lines))
            y.append(language.curve(one, *(([], own[:1]) if straight else (knots, own))))
    else:
        terms = _terms(affine, x, language)
        y = [language.sum(own, offset) for own, offset in zip(terms, affine.offset.tolist())]
    if affine.links is None:
        return y
    return [language.unlink(one, link) for one, link in zip(language.step("y", y), affine.links)]


def _terms(affine: Any, x: list[Any], language: Any) -> list[list[Any]]:
    """Return the terms of every output, without its offset."""

    def products(weights: Any, columns: list[Any]) -> list[Any]:
        """Return the products of columns and their weights, without those of weight zero."""
        some = [(float(w), column) for w, column in zip(weights, columns) if w != 0]
        return [language.product(*one) for one in some] or language.nothing(columns[0])

    if affine.kind == "dense":
        return [products(row, x) for row in affine.scale]
    if affine.kind == "diagonal":  # what is missing stays so, even with a scale of zero
        return [[language.product(w, one)] for w, one in zip(affine.scale.tolist(), x)]
    sums = [language.sum(products(weights, x)) for weights in affine.right.T]
    factors = language.step("t", sums, beside=x)
    parts = zip(affine.scale, affine.left, x)
    return [products([w, *left], [one, *factors]) for w, left, one in parts]


def in_groups(terms: list[Any], join: Callable[[list[Any]], Any]) -> list[Any]:
    """Join terms of a long sum in groups, until they are few."""
    while len(terms) > _MOST_TERMS:
        starts = range(0, len(terms), _MOST_TERMS)
        terms = [join(terms[i : i + _MOST_TERMS]) for i in starts]
    return terms


def are_straight(curves: Any) -> Array:
    """Mark the curves that are straight lines up to rounding."""
    knots, values, ends = curves.arrays().values()
    slope = (values[:, -1:] - values[:, :1]) / (knots[:, -1:] - knots[:, :1])
    off = np.abs(values - values[:, :1] - slope * (knots - knots[:, :1])).max(axis=1)
    least = 1e-9 * np.maximum(np.abs(values).max(axis=1), 1e-300)
    return np.asarray((off <= least) & (np.abs(ends - slope) <= 1e-6 * slope).all(axis=1))


def lines_of(knots: Array, values: Array, ends: Array) -> tuple[Array, Array, Array]:
    """Return the pieces of curves: the knot where each begins, its value there, and its slope."""
    # the first piece ends at the first knot; each of the others begins at one
    steep = np.diff(values) / np.diff(knots)
    slopes = np.concatenate([ends[..., :1], steep, ends[..., 1:]], axis=-1)
    starts, images = (np.concatenate([a[..., :1], a], axis=-1) for a in (knots, values))
    return starts, images, slopes


def interpolated(x: Array, knots: Array, values: Array, slopes: Array) -> Array:
    """Return the image of numbers under straight pieces; `slopes` are those of the two ends."""
    out = np.interp(x, knots, values)
    below, above = x < knots[0], x > knots[-1]
    out[below] = values[0] + slopes[0] * (x[below] - knots[0])
    out[above] = values[-1] + slopes[1] * (x[above] - knots[-1])
    return np.asarray(out)
