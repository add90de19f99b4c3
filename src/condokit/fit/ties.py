"""Features most or all of whose values are equal, for which no matrix or no scale is learned."""

import numpy as np

from condokit.checks import Array, listing, warn
from condokit.data.study import Study
from condokit.data.tables import Table
from condokit.law.estimate import Discrete


def has_ties(domains: Study) -> bool:
    """Return whether most values of a feature, but not all, are equal in a domain; warn if so.

    Matrices that differ by a rotation can only be distinguished by how covariances change with the
    confounders. If most values are equal, a few rows determine that change by chance.
    """
    kept = domains.kept()
    sides = [np.flatnonzero(kept & (domains.code == k)) for k in range(2)]

    def values(features: Array | None, rows: Array) -> Array:
        return (domains if features is None else domains.of(features)).rows(rows)

    found = Discrete.of(values, domains.n_features, sides, domains.sums_only)
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
