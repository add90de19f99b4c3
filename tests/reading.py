"""Study of small tables, as `fit` and `fit_pair` read them."""

from condokit.data.reader import read_pair, read_two
from condokit.data.roles import Roles


def from_table(
    X,
    domain,
    confounders=None,
    features=None,
    groups=None,
    sample_weight=None,
    reference=None,
    categorical=None,
    missing="raise",
    reliability=None,
):
    how = {"categorical": categorical, "missing": missing, "reliability": reliability}
    roles = Roles(domain, confounders, features, groups, sample_weight, **how)
    return read_two(X, roles, reference)


def from_pair(
    X_query,
    X_reference,
    Z_query=None,
    Z_reference=None,
    groups=None,
    sample_weight=None,
    categorical=None,
    missing="raise",
    any_features=False,
    features=None,
    reliability=None,
):
    how = {"categorical": categorical, "missing": missing, "reliability": reliability}
    Z = Z_query, Z_reference
    roles = Roles.of_pair(Z, None, groups, sample_weight, features=features, **how)
    return read_pair(X_query, X_reference, roles, any_features)
