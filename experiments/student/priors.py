r"""Shrinkage of a fitted map towards the identity, by priors that features share.

Two independent parts per feature, since scale and image are uncorrelated at the centre x0:

- u = log m has the profile likelihood
  :math:`\ell(u) = N_{eff} u - \tfrac{dof}{2} \log(G_{00} + 2 e^u G_{01} + e^{2u} G_{11})`,
  tempered so that its curvature at the maximum is 1 / V, and the prior
  :math:`\sum_l \pi_l N(0, \tau_l^2)`;
- the shift at x0 in residual standard deviations, :math:`\delta = (g(x_0) - x_0) / s`, is normal
  around its estimate, and a mixture of t_3 distributions a priori.

Weights :math:`\pi` are learned by expectation-maximisation over the features, which count as
`n_effective` independent ones, with pseudo-counts. A scale that is far from one in units of 95%
intervals is not pulled towards one: it is a matter of units.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import fdtri, gammaincinv

from condokit.checks import Array
from condokit.data.subsets import subsample
from student.estimate import PooledFit

SCALE_SDS = np.array([0.02, 0.1, 0.5])
SCALE_WEIGHTS = np.array([0.68, 0.27, 0.05])
SHIFT_SDS = np.array([0.03, 0.1, 0.3, 1.0, 5.0])
SHIFT_WEIGHTS = np.array([0.10, 0.15, 0.25, 0.45, 0.05])
PSEUDO_FEATURES = 2.0
LARGEST_RATIO = 3.0  # scales whose interval lies beyond this, or below its inverse, keep all
UNIT_TOLERANCE = float(np.log(1.5))  # of a power of ten that may be a change of units
FEWEST_ROWS = 8.0  # of the query, below which features must agree on units
T_DEGREES = 3.0
T_NODES = 6
NODES = 15
EM_STEPS = 60
MOST_LEARNING = 512


@dataclass(frozen=True)
class Shrunk:
    """A shrunken map, x to image + scale (x - centre), and what was believed.

    Attributes
    ----------
    scale, centre, image : ndarray of shape (n_features,)
        The map.
    se_log_scale, se_image : ndarray of shape (n_features,)
        Root of posterior variance + (plain - shrunk)^2.
    posterior_sd_log_scale, posterior_sd_image : ndarray of shape (n_features,)
        The posterior alone.
    units : ndarray of int, shape (n_features,)
        Power of ten by which units seem to differ; 0 for none.
    no_pull : ndarray of bool, shape (n_features,)
        Scales that lie outside [1/3, 3] and are no power of ten: left as they are.
    scale_weights, shift_weights : ndarray
        The learned priors.
    """

    scale: Array
    centre: Array
    image: Array
    se_log_scale: Array
    se_image: Array
    posterior_sd_log_scale: Array
    posterior_sd_image: Array
    units: Array
    no_pull: Array
    scale_weights: Array
    shift_weights: Array


def shrink(fit: PooledFit) -> Shrunk:
    """Pull scale and shift of every feature towards the identity as far as all features advise."""
    log_m = np.log(fit.scale)
    power, no_pull = _units(log_m, fit)
    ratio = 10.0**power
    free = fit.se_log_scale > 0
    learning = free & ~no_pull
    mean, var = log_m.copy(), np.square(fit.se_log_scale)
    scale_weights = SCALE_WEIGHTS
    if learning.any():
        found = _posterior_scale(fit, learning, log_m, ratio)
        mean[learning], var[learning], scale_weights = found
    # the shift at x0, against the unit's own zero
    pulled = ~no_pull & (fit.se_image > 0)
    shift = (fit.image - ratio * fit.centre) / fit.residual_sd
    error = fit.se_image / fit.residual_sd
    kept, sd = shift.copy(), error.copy()
    shift_weights = SHIFT_WEIGHTS
    if pulled.any():
        kept[pulled], sd[pulled], shift_weights = _posterior_shift(
            shift[pulled], error[pulled], fit.n_effective * pulled.mean()
        )
    image = np.where(pulled, ratio * fit.centre + kept * fit.residual_sd, fit.image)
    sd_image = sd * fit.residual_sd
    return Shrunk(
        scale=np.exp(mean),
        centre=fit.centre,
        image=image,
        se_log_scale=np.sqrt(var + (mean - log_m) ** 2),
        se_image=np.hypot(sd_image, image - fit.image),
        posterior_sd_log_scale=np.sqrt(var),
        posterior_sd_image=sd_image,
        units=power,
        no_pull=no_pull,
        scale_weights=scale_weights,
        shift_weights=shift_weights,
    )


def other_units(fit: PooledFit) -> Array:
    """Return which scales have intervals outside [1/3, 3]: those that are not pulled to one."""
    power, no_pull = _units(np.log(fit.scale), fit)
    return (power != 0) | no_pull


def _units(log_m: Array, fit: PooledFit) -> tuple[Array, Array]:
    """Return the power of ten of each scale, and which others lie outside [1/3, 3].

    Few query rows make ratios of variances that are skewed: the interval is that of F, scaled to
    the standard error. Below `FEWEST_ROWS` it is one for all features together.
    """
    n = np.maximum(fit.n_eff, 0.5)
    rest = np.maximum(fit.dof - n, 0.5)
    level = np.where(n < FEWEST_ROWS, 0.025 / len(n), 0.025)
    up, down = (0.5 * np.abs(np.log(fdtri(a, b, 1 - level))) for a, b in ((rest, n), (n, rest)))
    normal = np.sqrt(0.5 / n + 0.5 / rest)

    def reaches(away: Array) -> Array:
        """Return whether the interval around a log ratio reaches [1/3, 3]."""
        width = np.where(away > 0, up, down) / normal * fit.se_log_scale
        width = np.maximum(width, 1.96 * fit.se_log_scale)
        return np.asarray(np.abs(away) - width <= np.log(LARGEST_RATIO))

    # the same units if that is possible, then thousands by the same rule (mV and V), then tens
    ten = np.log(10)
    thousand = 3 * np.round(log_m / (3 * ten)).astype(np.int64)
    nearest = np.round(log_m / ten).astype(np.int64)
    same, milli = reaches(log_m), reaches(log_m - thousand * ten)
    close = np.abs(log_m - nearest * ten) < UNIT_TOLERANCE + 1.96 * fit.se_log_scale
    power = np.select([same, milli, close], [0, thousand, nearest], 0)
    return power, ~(same | milli | close)


def _posterior_scale(
    fit: PooledFit, at: Array, log_m: Array, ratio: Array
) -> tuple[Array, Array, Array]:
    r"""Return posterior means and variances of log m, and the learned weights.

    Component l is integrated by Gauss-Hermite nodes of its product with the normal approximation
    of the likelihood, each weighted by the ratio of the true product to that normal.
    """
    u0, V = log_m[at], fit.se_log_scale[at] ** 2
    centre = np.log(ratio[at])
    node, weight = np.polynomial.hermite_e.hermegauss(NODES)
    weight = weight / weight.sum()
    G = fit.profile[:, at]
    n, dof = np.clip(fit.n_eff[at], 0.25, None), fit.dof[at]
    n = np.minimum(n, 0.98 * dof)
    tau2 = SCALE_SDS[:, None] ** 2
    away = u0 - centre
    middle = away * tau2 / (tau2 + V)  # (L, d)
    width = np.sqrt(tau2 * V / (tau2 + V))
    u = middle[:, :, None] + width[:, :, None] * node  # (L, d, nodes), from the centre
    log_likelihood = _profile(u + centre[:, None], u0, V, G, n, dof)
    log_prior = -0.5 * u**2 / tau2[:, :, None] - np.log(SCALE_SDS)[:, None, None]
    log_normal = -0.5 * node**2 - np.log(width)[:, :, None]
    value = np.exp(np.minimum(log_likelihood + log_prior - log_normal, 50.0)) * weight
    total = np.maximum(value.sum(2), 1e-300)  # evidence of each component
    first = (value * u).sum(2) / total
    second = (value * u**2).sum(2) / total
    share = _learn(total.T, SCALE_WEIGHTS, fit.n_effective * at.mean())
    belief = total.T * share
    belief /= belief.sum(1, keepdims=True)
    mean = (belief * first.T).sum(1)
    var = (belief * second.T).sum(1) - mean**2
    return mean + centre, np.maximum(var, 1e-12), share


def _profile(u: Array, u0: Array, V: Array, G: Array, n: Array, dof: Array) -> Array:
    """Return the tempered profile likelihood at u less that at its maximum u0."""

    def log(u: Array, G: Array, n: Array, dof: Array) -> Array:
        m = np.exp(np.clip(u, -300, 300))
        return n * u - 0.5 * dof * np.log(np.maximum(G[0] + 2 * m * G[1] + m**2 * G[2], 1e-300))

    m = np.exp(u0)
    square = G[0] + 2 * m * G[1] + m**2 * G[2]
    first = 2 * m * (G[1] + m * G[2]) / square
    curvature = 0.5 * dof * ((2 * m * G[1] + 4 * m**2 * G[2]) / square - first**2)
    temper = 1 / (np.maximum(curvature, 1e-12) * V)
    wide = tuple(a[..., None] for a in (n, dof))
    there = log(u, G[:, :, None], *wide)
    return temper[:, None] * (there - log(u0, G, n, dof)[:, None])


def _posterior_shift(shift: Array, error: Array, n_effective: float) -> tuple[Array, Array, Array]:
    """Return posterior means and standard deviations of the shift, and the learned weights.

    Each t_3 is a mixture of normals whose precisions are quantiles of its gamma distribution.
    """
    half = T_DEGREES / 2
    precision = gammaincinv(half, (np.arange(T_NODES) + 0.5) / T_NODES) / half
    tau2 = (SHIFT_SDS[:, None] ** 2 / precision).ravel()  # (L * nodes,)
    var = np.maximum(error, 1e-12)[:, None] ** 2
    spread = tau2 + var
    log = -0.5 * shift[:, None] ** 2 / spread - 0.5 * np.log(spread)
    each = np.exp(log - log.max(1, keepdims=True))
    evidence = each.reshape(len(shift), len(SHIFT_SDS), T_NODES).mean(2)
    share = _learn(evidence, SHIFT_WEIGHTS, n_effective)
    belief = each * np.repeat(share, T_NODES)
    belief /= belief.sum(1, keepdims=True)
    keep = tau2 / spread
    means = keep * shift[:, None]
    mean = (belief * means).sum(1)
    second = (belief * (keep * var + means**2)).sum(1)
    return mean, np.sqrt(np.maximum(second - mean**2, 1e-24)), share


def _learn(evidence: Array, start: Array, n_effective: float) -> Array:
    """Return weights of components by EM, with the start as pseudo-counts."""
    d = len(evidence)
    if d > MOST_LEARNING:
        order = np.argsort(evidence[:, 0] / evidence.sum(1), kind="stable")
        evidence = evidence[order[subsample(d, MOST_LEARNING)]]
    share = start
    for _ in range(EM_STEPS):
        belief = evidence * share
        belief /= np.maximum(belief.sum(1, keepdims=True), 1e-300)
        update = belief.mean(0) * n_effective + PSEUDO_FEATURES * start
        update /= update.sum()
        if np.abs(update - share).max() < 1e-4:
            return update
        share = update
    return share
