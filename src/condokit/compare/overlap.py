"""Whether there is anything to compare: the overlap of the two domains' confounders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.conditionals.curves import Basis, Products, directions
from condokit.data.covariates import Covariates
from condokit.data.domains import Strata
from condokit.data.subsets import folds, subsample

_MOST_ROWS = 20_000
_FOLDS = 3
_PENALTIES = (10.0, 1.0, 0.1)
_MOST_STEPS = 25


@dataclass(frozen=True)
class Overlap:
    """How far the confounders of the two domains overlap.

    Attributes
    ----------
    coefficient : float
        From 0, nothing in common, to 1, the same distribution.
    by_confounder : dict of str to float
        The same for each confounder alone.
    effective_query, effective_reference : float
        Rows of each domain that the common part is worth.
    outside : dict of str to float
        Share of query rows beyond the reference's range, or in levels it does not have.
    """

    coefficient: float
    by_confounder: dict[str, float] = field(default_factory=dict)
    effective_query: float = 0.0
    effective_reference: float = 0.0
    outside: dict[str, float] = field(default_factory=dict)

    def __float__(self) -> float:
        return self.coefficient

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers."""
        return dict(vars(self))


@dataclass(frozen=True)
class Columns:
    """Continuous confounders of the rows compared, and how many rows each domain has in all."""

    names: list[str]
    covariates: Covariates
    is_query: Array
    n_query: int
    n_reference: int


def measure_overlap(strata: Strata, columns: Columns | None) -> Overlap:
    """Measure the overlap of all confounders together and of each alone.

    For categories, the sum of the smaller of both shares. With continuous columns, the mean over
    both domains of 2 min(e, 1 - e), where e(z) is the cross-fitted probability that a row
    with these confounders is a query row, the domains having equal weight; but no more than the
    share of either domain's rows in the range of the other, column by column.
    """
    counts = np.stack([strata.count_query, strata.count_reference]).astype(float)
    totals = counts.sum(axis=1)
    by_confounder: dict[str, float] = {}
    outside: dict[str, float] = {}
    for j, name in enumerate(strata.names):
        levels: dict[Any, Array] = {}
        for k, level in enumerate(strata.levels):
            levels[level[j]] = levels.get(level[j], 0) + counts[:, k] / totals
        shares = np.stack(list(levels.values()))
        by_confounder[name] = float(shares.min(axis=1).sum())
        outside[name] = float(shares[shares[:, 1] == 0, 0].sum())
    if columns is None:
        coefficient, *effective = _of_shares(counts / totals[:, None], totals)
        return Overlap(coefficient, by_confounder, effective[0], effective[1], outside)

    covariates, is_query = columns.covariates, columns.is_query
    used = [is_query.sum() / columns.n_query, (~is_query).sum() / columns.n_reference]
    coefficient, *effective = _from_propensity(covariates, is_query, used)
    single = len(columns.names) == 1 and covariates.n_categories == 1
    for j, name in enumerate(columns.names):
        z = covariates.Z[:, j]
        inside = [_share_between(z[a], z[~a]) for a in (is_query, ~is_query)]
        outside[name] = 1 - inside[0]
        alone = Covariates(
            z[:, None], np.zeros(len(z), dtype=np.int32), 1, weights=covariates.weights
        )
        found = coefficient if single else _from_propensity(alone, is_query, [1.0, 1.0])[0]
        by_confounder[name] = min(found, *inside)
        coefficient = min(coefficient, *inside)
    return Overlap(coefficient, by_confounder, effective[0], effective[1], outside)


def _share_between(z: Array, others: Array) -> float:
    """Return the share of values in the range of others, the most that two domains can share."""
    return float(((z >= others.min()) & (z <= others.max())).mean())


def _of_shares(shares: Array, totals: Array) -> tuple[float, float, float]:
    common = shares.min(axis=0)
    coefficient = float(common.sum())
    seen = common > 0
    effective = [
        float(total * coefficient**2 / max((common[seen] ** 2 / s[seen]).sum(), 1e-300))
        for s, total in zip(shares, totals)
    ]
    return coefficient, effective[0], effective[1]


def _from_propensity(
    covariates: Covariates, is_query: Array, used: list[float]
) -> tuple[float, float, float]:
    """Return the coefficient and the effective rows; `used` is the share of rows seen here."""
    n_query, n_reference = int(is_query.sum()), int((~is_query).sum())
    if len(is_query) > _MOST_ROWS:
        kept = subsample(len(is_query), _MOST_ROWS, seed=0)
        covariates, is_query = covariates.take(kept), is_query[kept]
    e = propensity(covariates, is_query)
    both = np.minimum(e, 1 - e)
    parts = [both[is_query] / e[is_query], both[~is_query] / (1 - e[~is_query])]
    shares = [covariates.counts[side] for side in (is_query, ~is_query)]
    shares = [counts / counts.sum() for counts in shares]
    coefficient = float(
        used[0] * (shares[0] @ both[is_query]) + used[1] * (shares[1] @ both[~is_query])
    )
    effective = [
        float((share @ part) ** 2 / max(share @ part**2, 1e-300) * part.max())
        for share, part in zip(shares, parts)
    ]
    return coefficient, effective[0] * n_query, effective[1] * n_reference


def propensity(covariates: Covariates, is_query: Array) -> Array:
    """Return the cross-fitted probability of being a query row, domains weighted equally.

    Penalised logistic regression on the basis of `condokit.smoothing`; the penalty with the
    highest held-out likelihood is taken.
    """
    y = is_query.astype(float)
    leading = directions(covariates, (y - y.mean())[:, None])
    Phi = Basis(covariates, 8, leading)(covariates)
    weights = covariates.counts * len(y)
    for side in (is_query, ~is_query):
        weights[side] *= 0.5 / covariates.counts[side].sum()
    order = np.lexsort([*covariates.Z.T, covariates.category])
    fold = folds(is_query, _FOLDS, order=order)  # every third row in order of the confounders
    trained = np.stack([fold != k for k in range(_FOLDS)], axis=1)
    beta = _logistic(Phi, y, np.tile(weights[:, None] * trained, len(_PENALTIES)))
    left_out = np.tile(~trained, len(_PENALTIES))
    e = _sigmoid(Phi @ beta)[left_out].reshape(len(y), -1)  # of every penalty, from the other folds
    e = np.clip(e, 1e-6, 1 - 1e-6)
    value = weights @ np.where(is_query[:, None], np.log(e), np.log(1 - e))
    return e[:, int(value.argmax())]


def _logistic(Phi: Array, y: Array, weights: Array) -> Array:
    """Fit ridge logistic regressions, one for every column of weights, by Newton's method.

    The folds of the first penalty come first; the first function is not penalised.
    """
    n_functions = Phi.shape[1]
    ridge = np.tile(np.repeat(_PENALTIES, _FOLDS), (n_functions, 1))
    ridge[0] = 1e-8
    diagonal = np.arange(n_functions)
    products = Products(Phi)
    beta = np.zeros(ridge.shape)
    for _ in range(_MOST_STEPS):
        p = _sigmoid(Phi @ beta)
        gradient = Phi.T @ (weights * (y[:, None] - p)) - ridge * beta
        curvature = products.gram(weights * np.maximum(p * (1 - p), 1e-6))
        curvature[:, diagonal, diagonal] += ridge.T
        step = np.linalg.solve(curvature, gradient.T[:, :, None])[:, :, 0].T
        beta += step
        if np.abs(step).max() < 1e-2:
            break
    return beta


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-np.clip(x, -30, 30)))
