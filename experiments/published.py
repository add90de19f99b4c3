"""The published methods as they were run, slips included: a check of the published numbers.

All of them are `condokit.paper` with `published=True`; what a user should compare with is in
`methods.py`.
"""

import json
import warnings
from pathlib import Path

import numpy as np

from condokit import ConDoAdapter, LowOverlapWarning
from condokit.divergences.paper import AffineKL, PaperKL
from condokit.paper import ConDo, OTBaseline, PaperPrior
from condokit.solvers.units import Units
from condokit.summaries.gaussians import GaussianPair, Gaussians

NUMBERS = json.loads((Path(__file__).parent / "published_numbers.json").read_text(encoding="utf-8"))


def gaussian_ot(X_query, X_reference, diagonal):
    """Match means and standard deviations, or means and covariances by the symmetric map."""
    family = "location-scale" if diagonal else "affine"
    return OTBaseline(family).fit_pair(X_query, X_reference).map_


def condo_kl(X_query, X_reference, Z_query, Z_reference, diagonal, max_iter=10):
    """Fit the ConDo KLD of the published numbers, or let it go on for more than ten steps."""
    data, family = (X_query, X_reference, Z_query, Z_reference), "affine"
    if diagonal or max_iter == 10:
        family = "location-scale" if diagonal else family
        return ConDo("kl", family, published=True).fit_pair(*data).map_
    longer = PaperKL("location-scale", max_iter, published=True)
    how = {"divergence": longer, "prior": PaperPrior(published=True), "shrinkage": None}
    with warnings.catch_warnings():  # regions that one photo alone has are left out, as they were
        warnings.simplefilter("ignore", LowOverlapWarning)
        return ConDoAdapter(family, **how).fit_pair(*data).map_


def affine_objective(p, published=True):
    """Return what the affine ConDo KLD makes small, given the published prior or the text's.

    The published values have the mean log-determinant of the query's covariances taken off.
    """
    levels = np.intersect1d(p.Z_query, p.Z_reference)
    domains = (p.X_query, p.Z_query), (p.X_reference, p.Z_reference)
    sides = [[X[k == Z] for k in levels] for X, Z in domains]
    n, m = np.array([[len(rows) for rows in side] for side in sides], float)
    means = [np.array([rows.mean(axis=0) for rows in side]) for side in sides]
    covs = [np.array([np.cov(rows, rowvar=False) for rows in side]) for side in sides]
    w = np.sqrt(n * m) if published else n * m * (n + m)
    w /= w.sum()
    query, reference = (Gaussians(mean, cov, 0 * w) for mean, cov in zip(means, covs))
    objective = AffineKL(Units(GaussianPair(query, reference, w), "as given"))
    objective.constant = -0.5 * float(w @ np.linalg.slogdet(covs[0])[1])
    return objective
