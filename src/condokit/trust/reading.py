"""Tables read as a fitted map needs them: its features by name, in its order."""

from typing import Any

import numpy as np

from condokit.adapter import ConDoAdapter
from condokit.checks import listing
from condokit.data.domains import Domains
from condokit.data.roles import from_table
from condokit.data.tables import Table
from condokit.maps.affine import AffineMap


def read_as_fitted(adapter: ConDoAdapter, X: Any, *roles: Any) -> Domains:
    """Read a table as a fitted adapter did; `roles` are those of `ConDoAdapter.fit`."""
    if not isinstance(adapter, ConDoAdapter) or not hasattr(adapter, "map_"):
        raise ValueError("'adapter' must be a fitted ConDoAdapter.")
    settings = adapter.reference, adapter.categorical, adapter.missing
    return read_for_map(adapter.map_, X, *roles, *settings)


def read_for_map(
    affine: AffineMap, X: Any, domain: Any, confounders: Any, features: Any, *others: Any
) -> Domains:
    """Read a table; without `features` those of the map, if it names them. See `from_table`."""
    if features is None and affine.feature_names is not None and Table(X).columns is not None:
        features = list(affine.feature_names)
    return in_map_order(from_table(X, domain, confounders, features, *others), affine)


def in_map_order(domains: Domains, affine: AffineMap) -> Domains:
    """Return the domains with the features of a map, in its order."""
    table = domains.tables[0]
    if affine.feature_names is not None and table.columns is not None:
        place = {name: j for j, name in enumerate(table.labels)}
        lacking = [name for name in affine.feature_names if name not in place]
        if lacking:
            raise ValueError(f"'features' lacks {listing(lacking)}, which the map takes.")
        return domains.of(np.array([place[name] for name in affine.feature_names]))
    n, n_taken = table.n_features, affine.n_features_in_
    if n != n_taken:
        raise ValueError(f"There are {n} features, but the map takes {n_taken}.")
    return domains
