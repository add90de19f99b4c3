"""What estimators share as scikit-learn has it: the features they were fitted with."""

from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.base import OneToOneFeatureMixin

from condokit.checks import Array, warn
from condokit.data.study import Study
from condokit.data.tables import Table


def matched(estimator: Any, X: Any) -> tuple[Table, Table]:
    """Return a table, and the features in it that an estimator was fitted with."""
    everything, owner = Table(X), type(estimator).__name__
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and everything.columns is None:
        text = "X does not have valid feature names, but {owner} was fitted with feature names"
        warn("no-names", text, UserWarning, owner=owner)
    elif names is None and everything.columns is not None:
        text = "X has feature names, but {owner} was fitted without feature names"
        warn("names", text, UserWarning, owner=owner)
    columns = estimator._columns
    if columns is not None and everything.n_features == len(columns):
        return everything, everything.select(None)  # the features alone, as transform returns them
    table = everything.match(names, estimator.n_features_in_, owner)
    return everything, table if columns is None else everything.select(columns)


def how_read(adapter: Any) -> dict[str, Any]:
    """Return the settings of an adapter that say how confounders are read; see `Roles`."""
    return {name: getattr(adapter, name) for name in ("categorical", "missing", "reliability")}


def keep_features(estimator: Any, table: Table, columns: list[int] | None) -> None:
    """Note the features that an estimator was fitted with, as scikit-learn does."""
    estimator._columns = columns
    estimator.n_features_in_ = table.n_features if columns is None else table.width
    if table.feature_names is not None:
        estimator.feature_names_in_ = np.asarray(table.feature_names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_


def names_out(estimator: Any, input_features: Any) -> Array:
    """Return the names of features that a map does not change."""
    names, columns = getattr(estimator, "feature_names_in_", None), estimator._columns
    if names is None and columns is not None and input_features is None:
        return np.array([f"x{j}" for j in columns], dtype=object)
    if names is None:
        found = OneToOneFeatureMixin.get_feature_names_out(estimator, input_features)
        return np.asarray(found[columns or slice(None)])
    if input_features is not None and not set(names) <= set(input_features):
        raise ValueError("input_features is not equal to feature_names_in_.")
    return np.asarray(names, dtype=object)


def is_array_wanted(estimator: Any) -> bool:
    """Tell whether set_output will put the result of transform into a container of its own."""
    configured = getattr(estimator, "_sklearn_output_config", {}).get("transform")
    return (configured or get_config()["transform_output"]) != "default"


def by_place(features: Any, domains: Study) -> list[int] | None:
    """Return the columns of an array that were chosen as features, None if that is all or names."""
    table = domains.tables[0]
    return None if features is None or table.columns is not None else list(table.positions)
