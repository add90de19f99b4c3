r"""The ratio rho of variances between and within subjects, by restricted likelihood.

At given scales, up to constants, the log-likelihood of rho is :math:`-\tfrac{dof}{2} \log s'Qs +
\tfrac12 \log|B| - \tfrac12 \log|V|`, computed on a grid. Each feature has a ratio. How ratios are
distributed over features is learned from all of them (empirical Bayes).
"""

from dataclasses import replace

import numpy as np
from scipy.interpolate import CubicSpline

from condokit.checks import Array
from condokit.law.stacked import Stacked, reduce, solve
from condokit.law.subjects import Subjects

RATIOS = np.concatenate([[0.0], np.geomspace(0.03, 3000.0, 11)])
_NEAR_ZERO = 0.01  # added before taking logarithms, since a ratio may be 0
_FINE = np.linspace(np.log(_NEAR_ZERO), np.log(RATIOS[-1] + _NEAR_ZERO), 60)
_SPREADS = np.array([0.2, 0.4, 0.8, 1.6])  # standard deviations of log ratios between features


def ratio_likelihoods(at: Stacked, fixed: Array, precision: Array | None) -> Array:
    """Return the restricted log-likelihood of all ratios, (n_ratios, n_features).

    Scales are held at those of the present ratio.
    """
    s, who = solve(at, fixed, precision).s, at.subjects
    assert who is not None
    none = np.zeros(len(at.X), dtype=np.intp)
    # at given scales, mapped rows are like rows of one batch
    who = Subjects(who.code, who.is_free, none, 1)
    at = replace(at, X=at.X * s.T[at.batch], batch=none, n_batches=1, reference=0, subjects=who)
    value = []
    for rho in RATIOS:
        found = reduce(replace(at, rho=np.array([rho]), kept={}), precision)
        square = np.maximum(found.Q[:, 0, 0], 1e-300)
        one = found.log_det - who.log_det(at.counts, rho) - found.dof * np.log(square)
        value.append(one / 2)
    return np.array(value)


def _finer(value: Array) -> Array:
    """Interpolate the likelihood between the ratios, by splines in their logarithm."""
    return np.asarray(CubicSpline(np.log(RATIOS + _NEAR_ZERO), value)(_FINE))


def common_ratio(value: Array) -> float:
    """Return the ratio with the highest likelihood averaged over features."""
    best = _FINE[_finer(value.mean(axis=1)).argmax()]
    return float(np.maximum(np.exp(best) - _NEAR_ZERO, 0.0))


def ratio_shares(value: Array, n_effective: float) -> Array:
    """Return the prior probability of each ratio on the fine grid, learned from all features.

    Log ratios of features are normal around the common one. Their standard deviation is averaged
    over `_SPREADS` by its evidence, where features count as `n_effective` independent ones.
    """
    value = _finer(value)
    away = _FINE - _FINE[value.mean(axis=1).argmax()]
    prior = np.exp(-0.5 * (away / _SPREADS[:, None]) ** 2)
    prior /= prior.sum(axis=1, keepdims=True)
    evidence = np.log(prior @ np.exp(value - value.max(axis=0)) + 1e-300).mean(axis=1)
    weights = np.exp(n_effective * (evidence - evidence.max()))
    return np.asarray(weights / weights.sum() @ prior)


def own_ratios(value: Array, shares: Array) -> Array:
    """Return the ratio of each feature: exp of the posterior mean of its logarithm."""
    value = _finer(value)
    belief = shares[:, None] * np.exp(value - value.max(axis=0))
    belief /= belief.sum(axis=0)
    return np.maximum(np.exp(_FINE @ belief) - _NEAR_ZERO, 0.0)
