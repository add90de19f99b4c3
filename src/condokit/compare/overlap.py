"""Whether there is anything to compare: the overlap of the two domains' confounders."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import expit

from condokit.checks import Array
from condokit.conditionals.curves import Basis, Products, directions
from condokit.data.arrays import ones_for_zeros, sides
from condokit.data.covariates import Covariates
from condokit.data.domains import Domains, Strata
from condokit.data.subsets import folds

_MOST_ROWS = 20_000
_FOLDS = 3
_PENALTIES = (10.0, 1.0, 0.1)
_MOST_STEPS = 25


@dataclass(frozen=True)
class Overlap:
    """How far the confounders of the two domains overlap."""

    coefficient: float  # from 0, nothing in common, to 1, the same distribution
    by_confounder: dict[str, float] = field(default_factory=dict)  # the same for each alone
    effective_query: float = 0.0  # rows of each domain that the common part is worth
    effective_reference: float = 0.0
    # share of query rows beyond the reference's range, or in levels it does not have
    outside: dict[str, float] = field(default_factory=dict)

    def __float__(self) -> float:
        return self.coefficient

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers."""
        return dict(vars(self))


def measure_overlap(
    domains: Domains, strata: Strata, covariates: Covariates, is_query: Array
) -> Overlap:
    """Measure the overlap of all confounders together and of each alone."""
    # For categories, the sum of the smaller of both shares. With continuous columns, the mean over
    # both domains of 2 min(e, 1 - e), where e(z) is the cross-fitted probability that a row with
    # these confounders is a query row, the domains having equal weight; but no more than the share
    # of either domain's rows in the range of the other, column by column.
    counts = np.stack([strata.count_query, strata.count_reference]).astype(float)
    totals = counts.sum(axis=1)
    shares = counts / totals[:, None]
    by_confounder: dict[str, float] = {}
    outside: dict[str, float] = {}
    for j, name in enumerate(strata.names):
        levels: dict[Any, Array] = {}
        for level, share in zip(strata.levels, shares.T):
            levels[level[j]] = levels.get(level[j], 0) + share
        query, reference = np.stack(list(levels.values()), axis=1)
        by_confounder[name] = float(np.minimum(query, reference).sum())
        outside[name] = float(query[reference == 0].sum())
    if covariates.Z.shape[1] == 0:
        coefficient, effective = _of_shares(shares, totals)
    else:
        kept = domains.is_query if domains.keep is None else domains.is_query[domains.keep]
        used = [is_query.sum() / kept.sum(), (~is_query).sum() / (~kept).sum()]
        coefficient, effective = _from_propensity(covariates, is_query, used)
    is_only_one = covariates.Z.shape[1] == covariates.n_categories == 1
    for confounder, z in zip(domains.continuous, covariates.Z.T):
        # the rows in the range of the other domain are the most that two domains can share
        ranges = [(side, z[~side].min(), z[~side].max()) for _, side in sides(is_query)]
        inside = [float(((z[a] >= low) & (z[a] <= high)).mean()) for a, low, high in ranges]
        outside[confounder.name] = 1 - inside[0]
        found = coefficient
        if not is_only_one:
            alone = Covariates(z[:, None], 0 * covariates.category, 1, weights=covariates.weights)
            found, _ = _from_propensity(alone, is_query, [1.0, 1.0])
        by_confounder[confounder.name] = min(found, *inside)
        coefficient = min(coefficient, *inside)
    return Overlap(coefficient, by_confounder, effective[0], effective[1], outside)


def _of_shares(shares: Array, totals: Array) -> tuple[float, list[float]]:
    """Return the coefficient of strata with these shares, and the effective rows."""
    common = shares.min(axis=0)
    coefficient = float(common.sum())
    squares = (common**2 / ones_for_zeros(shares)).sum(axis=1)
    return coefficient, (totals * coefficient**2 / np.maximum(squares, 1e-300)).tolist()


def _from_propensity(
    covariates: Covariates, is_query: Array, used: list[float]
) -> tuple[float, list[float]]:
    """Return the coefficient and the effective rows; `used` is the share of rows seen here."""
    n_rows = [side.sum() for _, side in sides(is_query)]
    if len(is_query) > _MOST_ROWS:
        kept = covariates.thinned(_MOST_ROWS, by_weight=False)
        covariates, is_query = covariates.take(kept), is_query[kept]
    e = propensity(covariates, is_query)
    coefficient, effective = 0.0, []
    for k, (side, chance) in enumerate([(is_query, e), (~is_query, 1 - e)]):
        share = covariates.counts[side] / covariates.counts[side].sum()
        both = np.minimum(chance, 1 - chance)[side]
        part = both / chance[side]
        coefficient += float(used[k] * (share @ both))
        worth = (share @ part) ** 2 / max(share @ part**2, 1e-300) * part.max()
        effective.append(float(worth * n_rows[k]))
    return coefficient, effective


def propensity(covariates: Covariates, is_query: Array) -> Array:
    """Return the cross-fitted probability of being a query row, domains weighted equally."""
    # penalised logistic regression; the penalty with the highest held-out likelihood is taken
    y = is_query.astype(float)
    leading = directions(covariates, (y - y.mean())[:, None])
    Phi = Basis(covariates, 8, leading)(covariates)
    weights = covariates.counts * len(y)
    for _, side in sides(is_query):
        weights[side] *= 0.5 / covariates.counts[side].sum()
    fold = folds(
        is_query, _FOLDS, order=covariates.order()
    )  # every third row in order of the confounders
    trained = np.stack([fold != k for k in range(_FOLDS)], axis=1)
    beta = _logistic(Phi, y, np.tile(weights[:, None] * trained, len(_PENALTIES)))
    left_out = np.tile(~trained, len(_PENALTIES))
    e = expit(Phi @ beta)[left_out].reshape(len(y), -1)  # of every penalty, from the other folds
    e = np.clip(e, 1e-6, 1 - 1e-6)
    value = weights @ np.where(is_query[:, None], np.log(e), np.log(1 - e))
    return e[:, int(value.argmax())]


def _logistic(Phi: Array, y: Array, weights: Array) -> Array:
    """Fit ridge logistic regressions, one for every column of weights, by Newton's method."""
    # the folds of the first penalty come first; the first function is not penalised
    ridge = np.tile(np.repeat(_PENALTIES, _FOLDS), (Phi.shape[1], 1))
    ridge[0] = 1e-8
    diagonal = np.arange(len(ridge))
    products, beta = Products(Phi), np.zeros(ridge.shape)
    for _ in range(_MOST_STEPS):
        p = expit(Phi @ beta)
        gradient = Phi.T @ (weights * (y[:, None] - p)) - ridge * beta
        curvature = products.gram(weights * np.maximum(p * (1 - p), 1e-6))
        curvature[:, diagonal, diagonal] += ridge.T
        step = np.linalg.solve(curvature, gradient.T[:, :, None])[:, :, 0].T
        beta += step
        if np.abs(step).max() < 1e-2:
            break
    return beta
