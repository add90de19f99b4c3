"""The methods that every table compares, each a function of a problem that returns a map."""

import importlib.util
import time
import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np
import published

from condokit import AffineMap, ConDoAdapter
from condokit.paper import ConDo, MMDBaseline

# published name: the same method here
REPEATED = {
    "Before Correction": "none",
    "No Adaptation": "none",
    "Target (post-feature shift)": "none",
    "Oracle": "oracle",
    "ComBat": "ComBat",
    "Gaussian OT": "Gaussian OT",
    "MMD": "MMD",
    "ConDo Gaussian KLD": "ConDo KL",
    "ConDo MMD": "ConDo MMD",
}
OURS = ("condokit", "condokit auto")
SLOW = ("MMD", "ConDo MMD")  # left out of quick trials
COLORS = {
    "none": "0.6",
    "constant": "0.8",
    "oracle": "tab:green",
    "Gaussian OT": "tab:blue",
    "MMD": "tab:red",
    "ComBat": "tab:olive",
    "ConDo KL (as published)": "paleturquoise",
    "ConDo KL": "c",
    "ConDo MMD": "m",
    "exact KL": "teal",
    "condokit": "black",
    "condokit auto": "tab:orange",
    "condokit, pairs": "tab:orange",
    "paired ridge": "tab:brown",
    "pairs' own RNA": "tab:pink",
}


@dataclass(frozen=True)
class TwoDomains:
    """Features and confounders of both domains: all that a method is given."""

    X_query: np.ndarray
    X_reference: np.ndarray
    Z_query: np.ndarray
    Z_reference: np.ndarray


def methods(family="location-scale", *, epochs=5, learning_rate=1e-3, continuous=False, seed=0):
    """Return {name: function of a problem}, in the order of the tables.

    `family` is the map that the experiment asks for; "condokit auto" may choose another one.
    `epochs` and `learning_rate` are those of the published MMDs.
    """
    diagonal = family == "location-scale"
    descent = {"epochs": epochs, "learning_rate": learning_rate, "random_state": seed}
    return {
        "none": _none,
        "constant": _constant,
        "Gaussian OT": lambda p: published.gaussian_ot(p.X_query, p.X_reference, diagonal),
        "MMD": lambda p: MMDBaseline(family, **descent).fit_pair(p.X_query, p.X_reference).map_,
        **({"ComBat": _combat} if importlib.util.find_spec("combatlearn") else {}),
        **(
            {}
            if continuous
            else {"ConDo KL (as published)": partial(_published, diagonal=diagonal)}
        ),
        # as in the text
        "ConDo KL": lambda p: _fitted(p, ConDo("kl", family, random_state=seed)),
        "ConDo MMD": lambda p: _fitted(p, ConDo("mmd", family, **descent)),
        "exact KL": partial(
            _condo,
            map=family,
            divergence="reverse-kl",
            shrinkage=None,
            conditional="kernel" if continuous else "auto",
        ),
        "condokit": partial(_condo, map=family),
        "condokit auto": partial(_condo, map="auto"),
    }


def fits_of(fits, seed, quick):
    """Return the methods that a simulation fits: with fresh seeds only what tables show of them."""
    if seed >= 100:
        return {name: fits[name] for name in ("none", *OURS)}
    return {name: fit for name, fit in fits.items() if not (quick and name in SLOW)}


def fit_all(problem, fits, leave_out=()):
    """Fit all methods; yield (name, map, seconds of processor time)."""
    for name, fit in fits.items():
        if name in leave_out:
            continue
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = fit(problem)
        yield name, fitted, time.process_time() - start


def rmse(adapted, truth):
    """Root mean squared error over all rows and features."""
    return float(np.sqrt(np.mean((np.asarray(adapted) - truth) ** 2)))


def parameter_errors(fitted, A, b):
    """Spectral norm of the error of A, Euclidean norm of that of b."""
    return {
        "A_error": float(np.linalg.norm(fitted.A - A, 2)),
        "b_error": float(np.linalg.norm(fitted.b - b)),
    }


def _none(p):
    d = p.X_query.shape[1]
    return AffineMap(np.ones(d), np.zeros(d))


def _constant(p):
    return AffineMap(np.zeros(p.X_query.shape[1]), p.X_reference.mean(axis=0))


def _published(p, diagonal):
    return published.condo_kl(p.X_query, p.X_reference, p.Z_query, p.Z_reference, diagonal)


def _fitted(p, adapter):
    return adapter.fit_pair(p.X_query, p.X_reference, p.Z_query, p.Z_reference).map_


def _condo(p, **parameters):
    found = _fitted(p, ConDoAdapter(**parameters))
    return Bent(found) if found.kind == "monotone" else found


class Bent:
    """A map with curves, and the line through the ends of each, where parameters are asked for."""

    def __init__(self, found):
        self.found = found
        slope = np.ptp(found.values, axis=1) / np.ptp(found.knots, axis=1)
        self.A, self.b = np.diag(slope), found.values[:, 0] - slope * found.knots[:, 0]

    def __call__(self, X):
        """Map rows by the curves."""
        return self.found(X)


def _combat(p):
    """Fit ComBat to the reference batch with covariates; map rows whose covariates are unknown.

    It wants them of new rows too, so all of these get the same: the commonest level of the
    reference, or its mean. ComBat moves every feature by a line: two rows tell it.
    """
    import pandas as pd
    from combatlearn import ComBat

    n, d = len(p.X_query) + len(p.X_reference), p.X_query.shape[1]
    Z, Z_reference = (pd.DataFrame(np.asarray(Z)) for Z in (p.Z_query, p.Z_reference))
    typical = (
        Z_reference.mode().iloc[:1]
        if Z[0].dtype.kind not in "fi"
        else Z_reference.mean().to_frame().T
    )
    covariates = pd.concat([Z, Z_reference, typical, typical], ignore_index=True)
    rows = pd.DataFrame(np.vstack([p.X_query, p.X_reference, np.zeros((1, d)), np.ones((1, d))]))
    batch = pd.Series(["query"] * len(Z) + ["reference"] * len(Z_reference) + ["query"] * 2)
    kind = "continuous" if Z[0].dtype.kind in "fi" else "discrete"
    combat = ComBat(
        batch,
        **{f"{kind}_covariates": covariates},
        method="fortin",
        reference_batch="reference",
    ).fit(rows[:n])
    zero, one = np.asarray(combat.transform(rows[n:]))
    return AffineMap(one - zero, zero)
