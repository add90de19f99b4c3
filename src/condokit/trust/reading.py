"""The table that a map was fitted on, read again: its features by name, in the map's order."""

from __future__ import annotations

from typing import Any

import numpy as np

from condokit.adapter import ConDoAdapter
from condokit.checks import listing
from condokit.data.domains import Domains
from condokit.data.roles import from_table
from condokit.data.tables import Table
from condokit.maps.affine import AffineMap


def read_again(
    adapter: ConDoAdapter,
    X: Any,
    domain: Any,
    confounders: Any,
    features: Any,
    groups: Any,
    sample_weight: Any,
) -> Domains:
    """Read a table as a fitted adapter did."""
    if not isinstance(adapter, ConDoAdapter) or not hasattr(adapter, "map_"):
        raise ValueError("'adapter' must be a fitted ConDoAdapter.")
    domains = from_table(
        X,
        domain,
        confounders,
        known_features(adapter.map_, X, features),
        groups,
        sample_weight,
        adapter.reference,
        adapter.categorical,
        adapter.missing,
    )
    return in_order(domains, adapter.map_)


def known_features(affine: AffineMap, X: Any, features: Any) -> Any:
    """Return the features that were asked for; without any, those of a map that names them."""
    if features is None and affine.feature_names is not None and Table(X).columns is not None:
        return list(affine.feature_names)
    return features


def in_order(domains: Domains, affine: AffineMap) -> Domains:
    """Return the domains with the features of a map, in its order."""
    table = domains.tables[0]
    if affine.feature_names is not None and table.columns is not None:
        place = {name: j for j, name in enumerate(table.labels)}
        lacking = [name for name in affine.feature_names if name not in place]
        if lacking:
            raise ValueError(f"'features' lacks {listing(lacking)}, which the map takes.")
        return domains.of(np.array([place[name] for name in affine.feature_names]))
    if table.n_features != affine.n_features_in_:
        raise ValueError(
            f"There are {table.n_features} features, but the map takes {affine.n_features_in_}."
        )
    return domains
