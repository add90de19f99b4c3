"""Sharing strength: variances across strata and features, and the map towards the identity.

Both steps are empirical Bayes: how much is shared comes from the data, and fades as rows are added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import digamma, polygamma

from condokit._validation import Array
from condokit.divergences.base import Solution
from condokit.domains import Moments
from condokit.statistics import average, columns, positive

# Variance of the log-variances of strata, before any data; believed like this many features.
_PRIOR_SPREAD = 0.8
_PRIOR_FEATURES = 10.0

# Prior standard deviations of what a map does: these, their halves, quarters and so on (and doubles
# where data ask for them). The scale by a factor of two, the shift in units of the reference's
# within-stratum standard deviation. The first counts as `_PSEUDO_FEATURES` features, each next one
# as an eighth of the one before: a weak prior, felt only where features are few.
_LARGEST_LOG_SCALE = float(np.log(2))
_LARGEST_SHIFT = 8.0
_OCTAVES = 8
_PSEUDO_FEATURES = 3.0

_MOST_FITTED = 200


@dataclass(frozen=True)
class Kept:
    """The share of the plain estimate that is kept: 1 is all of it, 0 the identity."""

    log_scale: Array
    shift: Array


def share_variances(moments: Moments) -> Moments:
    r"""Pull the variance of each stratum towards what strata and features have in common.

    The variance of feature j in stratum k is taken as
    :math:`\log \sigma_{jk}^2 = \log \bar\sigma_j^2 + f_k + \epsilon_{jk}`: the feature's common
    variance, a factor of the stratum shared by all features, and
    :math:`\epsilon \sim N(0, \omega^2)`. An estimate with :math:`\nu` degrees of freedom has
    :math:`\log s^2` with mean :math:`\log \sigma^2 + \psi(\nu / 2) - \log(\nu / 2)` and variance
    :math:`\psi'(\nu / 2)`, so :math:`\omega^2` is the spread of log-variances beyond that, and the
    posterior mean weighs the two by their precisions. The inverse of an estimated variance is too
    large on average: the precision is multiplied by (dof - 2) / dof.
    """
    own_dof = columns(moments.dof)  # of strata, or of every feature in them
    known, pooled_dof = own_dof >= 1, moments.dof.sum(axis=0)
    if not (pooled_dof > 0).any():
        return moments
    pooled = np.where(pooled_dof > 0, average(moments.dof, moments.var), 1.0) / positive(pooled_dof)
    log_var = np.repeat(np.log(pooled)[None], len(known), axis=0)
    dof = np.broadcast_to(pooled_dof, known.shape)
    several = known.sum(axis=0) > 1
    rows = np.flatnonzero((known & several).any(axis=1))
    if len(rows):
        seen = (known & several)[rows]
        each = np.broadcast_to(seen, (len(rows), len(pooled)))
        half = np.where(seen, own_dof[rows], 2.0) / 2
        logs = np.log(moments.var[rows])
        logs -= digamma(half) - np.log(half)
        typical = _masked(logs, each).sum(axis=0) / positive(each.sum(axis=0))
        differences = _masked(logs - typical, each)
        n_seen = each.sum(axis=1, keepdims=True)
        factor = n_seen / (n_seen + _PRIOR_FEATURES)
        factor = factor * (differences.sum(axis=1, keepdims=True) / n_seen)
        differences = _masked(differences - factor, each)
        noise = polygamma(1, half)
        n_features = int(each.any(axis=0).sum())
        squares = np.vdot(differences, differences) / (each.sum() - n_features)
        trust = n_features / (n_features + _PRIOR_FEATURES)
        excess = max(float(squares - noise[seen].mean()), 0.0)
        spread = (1 - trust) * _PRIOR_SPREAD + trust * excess
        own = spread / (spread + noise)
        weights = _masked(own_dof[rows], seen) * np.exp(-factor) / positive(pooled_dof)
        common = np.log(positive((weights * moments.var[rows]).sum(axis=0)))
        log_var[rows] = np.where(each, own * logs + (1 - own) * (common + factor), log_var[rows])
        dof = np.where(several, 2 / max(spread, 1e-12), dof)  # what the prior alone is worth
        dof[rows] += _masked(2 / noise, seen)
        dof = np.minimum(dof, pooled_dof)
    var = np.exp(log_var)
    precision = np.maximum(dof - 2, 0.5) / positive(dof) / var
    return replace(moments, var=var, precision=precision, dof=dof.reshape(moments.dof.shape))


def _masked(values: Array, seen: Array) -> Array:
    """Return values with zeros where none are seen."""
    return values if seen.all() else np.where(seen, values, 0.0)


def shrink(solution: Solution, unit: Array) -> tuple[Solution, Kept]:
    """Pull scale and shift towards the identity as far as the data of all features advise."""
    if solution.se_log_scale is None or solution.se_image is None:
        one = np.ones(len(unit))
        return solution, Kept(one, one)
    shift = solution.image - solution.centre
    kept = Kept(
        _kept_share(np.log(solution.scale), solution.se_log_scale, _LARGEST_LOG_SCALE),
        _kept_share(shift / unit, solution.se_image / unit, _LARGEST_SHIFT),
    )
    return keep(solution, kept), kept


def keep(solution: Solution, kept: Kept) -> Solution:
    """Return the map with the given share of its log scale and of its shift at the centre."""
    return replace(
        solution,
        scale=np.exp(kept.log_scale * np.log(solution.scale)),
        image=solution.centre + kept.shift * (solution.image - solution.centre),
    )


def _kept_share(estimate: Array, error: Array, largest: float) -> Array:
    r"""Return the posterior mean of every parameter, as a share of its estimate.

    Estimates in units of their standard errors, :math:`z_j \sim N(\theta_j, 1)`, share a prior
    :math:`\theta_j \sim \sum_l \pi_l N(0, \tau_l^2)` of fixed scales whose shares :math:`\pi` are
    fitted by expectation-maximisation with pseudo-counts. Given scale l, the share kept is
    :math:`\tau_l^2 / (1 + \tau_l^2)`: features that moved a lot keep all, others little.
    """
    free = error > 0
    if not free.all():
        share = np.ones(len(estimate))
        if free.any():
            share[free] = _kept_share(estimate[free], error[free], largest)
        return share
    z = np.abs(estimate) / error
    largest /= float(np.median(error))
    beyond = max(0, int(np.ceil(np.log2(max(float(z.max()) / largest, 1.0)))))
    octave = np.arange(-beyond, _OCTAVES)  # as far up as the data need
    tau2 = np.append((largest * 0.5**octave) ** 2, 0.0)
    pseudo = np.append(np.where(octave >= 0, _PSEUDO_FEATURES * 0.125**octave, 0.0), 0.0)

    grid = np.sort(z)
    if len(grid) > _MOST_FITTED:
        grid = grid[np.linspace(0, len(grid) - 1, _MOST_FITTED).round().astype(int)]
    likelihood = _likelihood(grid, tau2)
    share = np.full(len(tau2), 1 / len(tau2))
    for _ in range(50):
        responsible = likelihood.T @ (1 / (likelihood @ share)) * share
        update = responsible * (len(z) / len(grid)) + pseudo
        update /= update.sum()
        moved = np.abs(update - share).max()
        share = update
        if moved < 1e-4:
            break
    # the share kept is a smooth curve of z: a table over log(1 + z), read by interpolation
    far = float(np.log1p(grid[-1])) + 1e-9
    weight = _likelihood(np.expm1(np.linspace(0.0, far, 512)), tau2) * share
    curve = weight @ (tau2 / (1 + tau2)) / weight.sum(axis=1)
    place = np.log1p(z) * (511 / far)
    left = place.astype(np.intp).clip(0, 510)
    return curve[left] + (place - left) * np.diff(curve)[left]


def _likelihood(z: Array, tau2: Array) -> Array:
    """Return N(z; 0, 1 + tau2), each row up to a factor."""
    log = -0.5 * z[:, None] ** 2 / (1 + tau2) - 0.5 * np.log1p(tau2)
    return np.exp(log - log.max(axis=1, keepdims=True))
