"""The choice among diagonal maps: identity, shift, gain, location-scale, averaged by evidence."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import digamma, polygamma

from condokit.checks import Array
from condokit.data.arrays import average, columns, positive
from condokit.divergences.base import Solution
from condokit.summaries.moments import Moments

CANDIDATES = ("identity", "shift", "gain", "location-scale")
_PARAMETERS = np.array([0, 1, 1, 2])
_ANY_CHANGE = 1.25  # fee of any change, beyond the logarithm of the number of rows


def average_candidates(solution: Solution, n_rows: float | Array) -> tuple[Solution, Array]:
    r"""Average the candidate maps of every feature, weighted by their evidence.

    The estimates of :math:`\log m` and of the image of the centre are independent and nearly
    normal, so minus twice the log-likelihood that a candidate loses is the squared distance of its
    best point, in standard errors: nothing for location-scale, :math:`z_m^2` for a shift,
    :math:`z_m^2 + z_r^2` for the identity, and the least distance to the line through the origin
    for a gain. Each parameter costs 1; any change at all costs :math:`\log n + 1.25` more, much
    as in the Bayesian information criterion. Weights are :math:`\exp(-\mathrm{cost} / 2)`, so
    that evidence moves the result smoothly from the identity to the full map.

    Returns
    -------
    Solution
        The averaged map.
    ndarray of shape (n_features, 4)
        The weights of `CANDIDATES`.
    """
    if solution.se_log_scale is None or solution.se_image is None:
        raise ValueError(
            "map='auto' needs standard errors, which this divergence or conditional does not give. "
            "Leave `divergence` and `conditional` at 'auto', or name a map."
        )
    log_scale, centre, image = np.log(solution.scale), solution.centre, solution.image
    se_log = np.where(solution.se_log_scale > 0, solution.se_log_scale, np.inf)
    known = solution.se_image > 0  # constant features are shifted, whatever the evidence
    se_image = np.where(known, solution.se_image, np.inf)
    z_scale, z_shift = log_scale / se_log, (image - centre) / se_image
    log_gain = _gain(log_scale, se_log, centre, image, se_image)
    gain_loss = ((log_gain - log_scale) / se_log) ** 2
    gain_loss += ((np.exp(log_gain) * centre - image) / se_image) ** 2
    loss = np.stack([z_scale**2 + z_shift**2, z_scale**2, gain_loss, np.zeros_like(z_scale)])
    fee = np.reshape(np.log(n_rows) + _ANY_CHANGE, (-1, 1))  # one for all features, or one each
    cost = loss.T + _PARAMETERS + fee * (_PARAMETERS > 0)
    weights = np.exp(-(cost - cost.min(axis=1, keepdims=True)) / 2)
    weights /= weights.sum(axis=1, keepdims=True)
    weights[~known] = np.eye(len(CANDIDATES))[CANDIDATES.index("shift")]
    _, shift, gain, full = weights.T
    scale = np.exp(gain * log_gain + full * log_scale)
    moved = (shift + full) * (image - centre) + gain * (np.exp(log_gain) - 1) * centre
    return replace(solution, scale=scale, image=centre + moved), weights


def _gain(log_scale: Array, se_log: Array, centre: Array, image: Array, se_image: Array) -> Array:
    """Return the log of the best scale without offset, by Gauss-Newton steps."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = image / centre
        log_gain = np.where(ratio > 0, np.log(np.where(ratio > 0, ratio, 1.0)), log_scale)
    log_gain = np.clip(log_gain, -20, 20)
    for _ in range(20):
        mapped = np.exp(log_gain) * centre
        gradient = (log_gain - log_scale) / se_log**2 + (mapped - image) * mapped / se_image**2
        curvature = 1 / se_log**2 + (mapped / se_image) ** 2
        step = gradient / np.maximum(curvature, 1e-300)
        log_gain = np.clip(log_gain - np.clip(step, -1, 1), -20, 20)
    return log_gain


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
