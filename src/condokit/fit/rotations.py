"""Checks of whether data determine a matrix, or a scale, and whether a matrix is allowed."""

from dataclasses import replace
from typing import Any

import numpy as np

from condokit.checks import Array, listing, refusal, warn
from condokit.data.arrays import rms
from condokit.data.study import Study
from condokit.data.subsets import subsample
from condokit.data.tables import Table
from condokit.divergences.samples import SampleObjective
from condokit.law.discrete import Discrete
from condokit.maps.families import LocationScale
from condokit.solvers.solution import Solution
from condokit.summaries.samples import Samples

_FAR = 0.7  # sd between the images of a matrix and of a diagonal map from which we test and warn
_PERMUTATIONS, _LEVEL = 39, 0.05  # of the test whether a diagonal map leaves more than chance
_THINNED, _MOST_STRATA = 200, 20  # rows of a stratum, and strata, that the test uses
ALIKE = (
    "The strata are too much alike to determine the matrix: rotations that they hardly distinguish "
    "fit as well. Use {@divergence='ot'}, {@map='location-scale'} or 'auto'."
)
AXES_ALIKE = (
    "The principal axes have nearly equal lengths, or are too symmetric to know their direction: "
    "the matrix may be off by a rotation. Use {@divergence='ot'}, {@map='location-scale'} or "
    "'auto'."
)


def warn_of_rotations(found: Solution, divergence: Any, samples: Samples) -> None:
    """Warn of a matrix that is far from a diagonal map although that would be good enough.

    A permutation test within strata asks whether the diagonal map leaves more difference between
    the domains than chance. If it does not, many rotations are as good as it, and the data did not
    determine the one that was found.
    """
    is_drawn = samples.n_rows is not None or not hasattr(divergence, "distances")
    if is_drawn or found.scale.ndim == 1:
        return
    some = samples.thinned(_THINNED).strata(subsample(len(samples.weights), _MOST_STRATA))
    some = replace(some, subjects=None)
    line = divergence.solve(LocationScale(), samples)
    x, unit = np.concatenate(some.query), np.concatenate(some.reference).std(axis=0)
    away = x @ found.scale.T + found.offset - x * line.scale - line.offset
    if rms(away / unit) < _FAR:
        return
    rng, left = np.random.default_rng(0), list[float]()
    sides = [rows * line.scale + line.offset for rows in some.query], some.reference
    for _ in range(1 + _PERMUTATIONS):
        one = replace(some, query=sides[0], reference=sides[1])
        left.append(SampleObjective(one, divergence)(np.ones(len(unit)), np.zeros(len(unit)))[0])
        both = [rng.permutation(np.concatenate(pair)) for pair in zip(*sides)]
        sides = tuple(zip(*(np.split(z, [len(q)]) for z, q in zip(both, some.query))))
    if np.mean(np.array(left) >= left[0]) > _LEVEL:
        warn("strata-alike", ALIKE)


def check_rectangular(recipe: Any) -> None:
    """Refuse families and settings that have no meaning for a map between different features."""
    if not recipe.family.is_free or recipe.family.links is not None:
        raise refusal("A map between different features is {@map='affine'} without links.")
    if isinstance(recipe.shrinkage, float):
        raise ValueError(
            "'shrinkage' cannot be a number for a map between different features: there is no "
            "identity to go to. Use 'auto' or None."
        )


def has_ties(domains: Study) -> bool:
    """Return whether most values of a feature, but not all, are equal in a domain; warn if so.

    Matrices that differ by a rotation can only be distinguished by how covariances change with the
    confounders. If most values are equal, a few rows determine that change by chance.
    """
    kept = domains.kept()
    sides = [np.flatnonzero(kept & (domains.code == k)) for k in range(2)]

    def values(features: Array | None, rows: Array) -> Array:
        return (domains if features is None else domains.of(features)).rows(rows)

    found = Discrete.of(values, np.zeros((2, domains.n_features)), sides, domains.sums_only)
    varies = domains.gather(np.where(kept, domains.code, -1), 2).sd > 0
    tied = found.modal & varies.all(axis=0)
    if tied.any():
        text = "Most values of {names} are equal (zeros, counts, yes and no), so no matrix can be "
        text += "learned; a location-scale map is fitted instead. Leave these features out "
        text += "for a matrix of the others, or use {@divergence='ot'}."
        names = listing(domains.tables[0].names_of(tied))
        warn("ties-for-matrix", text, names=names)
    return bool(tied.any())


def warn_constant(table: Table, flat: Array) -> None:
    """Warn of the features that are constant within strata, if there are any."""
    if flat.any():
        warn(
            "constant-features",
            "Constant or nearly so within strata in a domain, so only shifted: {names}.",
            names=listing(table.names_of(flat)),
        )
