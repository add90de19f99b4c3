"""Curves of continuous confounders: residuals of them, and a few points to compare them at."""

import numpy as np

from condokit.checks import Array
from condokit.compare.comparison import Comparison
from condokit.conditionals import Conditional, Moments
from condokit.data.arrays import ones_for_zeros
from condokit.data.covariates import Covariates

_MOST_POINTS = 60  # support points of continuous confounders


def residuals(
    conditional: Conditional, X: Array, own: Covariates, at: Covariates
) -> tuple[Array, Moments, Moments]:
    """Return residuals in units of their spread, and the moments at the rows and elsewhere."""
    here, there = (conditional.moments_at(X, own, z) for z in (own, at))
    return (X - here.mean) / np.sqrt(ones_for_zeros(here.var)), here, there


def few_points(comparison: Comparison) -> tuple[Covariates, Array, Array]:
    """Return a few support points, their weights, and each row's nearest, -1 if it has none.

    Categories are kept apart; the points of one are centres of its rows, found by k-means.
    """
    from sklearn.cluster import KMeans  # slow to import

    covariates, (rows, weights) = comparison.covariates, comparison.points
    centres, categories, shares = [], [], []
    nearest = np.full(len(covariates.Z), -1, dtype=np.intp)
    n_centres = 0
    for category in np.unique(covariates.category):
        mine = covariates.category[rows] == category
        everyone = np.flatnonzero(covariates.category == category)
        if not weights[mine].sum() > 0:
            continue
        Z = covariates.Z[rows[mine]]
        n = min(max(2, round(_MOST_POINTS * len(Z) / len(rows))), len(np.unique(Z, axis=0)))
        if Z.shape[1] == 0 or n == 1:
            n, centre = 1, Z[:1]
            place, labels = np.zeros(len(everyone)), np.zeros(len(Z), dtype=np.intp)
        else:
            # sorted, so that the order of rows does not matter
            model = KMeans(n, n_init=1, random_state=0).fit(Z[np.lexsort(Z.T)])
            centre = model.cluster_centers_
            place, labels = model.predict(covariates.Z[everyone]), model.predict(Z)
        nearest[everyone] = place + n_centres
        n_centres += n
        centres.append(centre)
        categories += [category] * n
        shares.append(np.bincount(labels, weights[mine], minlength=n))
    share = np.concatenate(shares)
    at = Covariates(np.concatenate(centres), np.array(categories), covariates.n_categories)
    return at, share / share.sum(), nearest
