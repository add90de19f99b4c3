r"""Posterior of a diagonal map: pulled towards the identity by priors that features share.

Two independent parts per feature, since scale and image are uncorrelated at the centre x0:

- u = log m has the profile likelihood of `Evidence`, tempered so that its curvature at the maximum
  is 1 / V (or a normal one, where no likelihood is known), and the prior
  :math:`\sum_l \pi_l N(0, \tau_l^2)`;
- the shift at x0 in residual standard deviations, :math:`\delta = (g(x_0) - x_0) / s`, is normal
  around its estimate, and a mixture of t_3 distributions a priori.

Weights :math:`\pi` are learned by expectation-maximisation over the features, which count as
`n_effective` independent ones, with pseudo-counts. They begin at a sharp prior on the scale for
devices that replace each other, and at a wide one as far as shifts tell that these do not: real
instruments shift by up to about 3 residual standard deviations. A scale whose 95% interval lies
outside [1/3, 3] is not pulled towards one: it is a matter of units. It is pulled towards the power
of ten that explains it, thousands first; if none does, neither scale nor shift is pulled.
"""

from dataclasses import replace

import numpy as np
from scipy.special import chdtri, fdtri, gammaincinv, ndtri

from condokit.checks import Array
from condokit.data.subsets import subsample
from condokit.solvers.solution import Evidence, Solution

_SCALE_SDS = np.array([0.02, 0.1, 0.5])
_NEAR = np.array([0.8, 0.17, 0.03])  # weights of these for a device that replaces another,
_FAR = np.array([0.02, 0.08, 0.9])  # and for any other
_SHIFT_SDS = np.array([0.01, 0.03, 0.1, 0.3, 1.0, 5.0])
_SHIFT_WEIGHTS = np.array([0.1, 0.15, 0.1, 0.2, 0.4, 0.05])
_PSEUDO_FEATURES = 2.0
_LARGEST_RATIO = 3.0  # scales whose interval lies beyond this, or below its inverse, keep all
_UNIT_TOLERANCE = float(np.log(1.5))  # of a power of ten that may be a change of units
_FEWEST_ROWS = 8.0  # of the query, below which features must agree on units
_MANY_ROWS = 1e6  # where no likelihood is known: intervals are normal
_T_DEGREES = 3.0
_T_NODES = 6
_BEYOND = 25.0  # residual standard deviations
_NODES = 15
_MEDIAN = 0.455  # of the square of a normal number
_EM_STEPS = 60
_MOST_LEARNING = 512


def posterior(solution: Solution, unit: Array) -> tuple[Solution, Array]:
    """Pull scale and shift of every feature as far as all features advise.

    `unit` is the residual standard deviation of the reference, where no likelihood is known. The
    result has standard deviations of the posterior in place of standard errors. Return also which
    scales have intervals outside [1/3, 3], those of all features together.
    """
    log_m, known = np.log(solution.scale), solution.evidence
    se_log, se_image = np.asarray(solution.se_log_scale), np.asarray(solution.se_image)
    sd = unit if known is None else known.residual_sd
    n_effective = float(len(unit)) if known is None else known.n_effective
    power, no_pull = _units(log_m, se_log, known, 0.025)
    ratio = 10.0**power
    # the shift at x0, against the unit's own zero
    pulled = ~no_pull & (se_image > 0)
    shift, error = (solution.image - ratio * solution.centre) / sd, se_image / sd
    far = 0.0
    if pulled.any():
        part = n_effective * float(pulled.mean())
        shift[pulled], error[pulled], far = _posterior_shift(shift[pulled], error[pulled], part)
    mean, width = log_m.copy(), se_log.copy()
    learning = (se_log > 0) & ~no_pull
    if learning.any():
        prior = (1 - far) * _NEAR + far * _FAR
        centre = power * np.log(10.0)
        found = _posterior_scale(solution, learning, centre, prior, n_effective)
        mean[learning], width[learning] = found
    settled = replace(
        solution,
        scale=np.exp(mean),
        image=np.where(pulled, ratio * solution.centre + shift * sd, solution.image),
        se_log_scale=width,
        se_image=error * sd,
    )
    power, no_pull = _units(log_m, se_log, known, 0.025 / len(unit))
    return settled, (power != 0) | no_pull


def _units(log_m: Array, se: Array, known: Evidence | None, chance: float) -> tuple[Array, Array]:
    """Return the power of ten of each scale, and which others lie outside [1/3, 3].

    Few query rows make ratios of variances that are skewed: the interval is that of F, scaled to
    the standard error. Below `_FEWEST_ROWS` it is one for all features together. `chance` is that
    of either side of the interval.
    """
    n = np.full(len(se), _MANY_ROWS) if known is None else np.maximum(known.n_eff, 0.5)
    rest = np.full(len(se), _MANY_ROWS) if known is None else np.maximum(known.dof - n, 0.5)
    level = np.where(n < _FEWEST_ROWS, min(chance, 0.025 / len(n)), chance)
    least = -float(ndtri(chance)) * se
    # most features have the same numbers of rows, and quantiles of F are slow
    _, one, place = np.unique(n + 1j * rest, return_index=True, return_inverse=True)
    sides, beyond = (n[one], rest[one]), 1 - level[one]
    up, down = (0.5 * np.abs(np.log(fdtri(a, b, beyond)))[place] for a, b in (sides[::-1], sides))
    normal = np.sqrt(0.5 / n + 0.5 / rest)

    def reaches(away: Array) -> Array:
        """Return whether the interval around a log ratio reaches [1/3, 3]."""
        width = np.where(away > 0, up, down) / normal * se
        width = np.maximum(width, least)
        return np.asarray(np.abs(away) - width <= np.log(_LARGEST_RATIO))

    # the same units if that is possible, then thousands by the same rule (mV and V), then tens
    ten = np.log(10)
    thousand = 3 * np.round(log_m / (3 * ten)).astype(np.int64)
    nearest = np.round(log_m / ten).astype(np.int64)
    same, milli = reaches(log_m), reaches(log_m - thousand * ten)
    close = np.abs(log_m - nearest * ten) < _UNIT_TOLERANCE + least
    power = np.select([same, milli, close], [0, thousand, nearest], 0)
    return power, ~(same | milli | close)


def _posterior_scale(
    solution: Solution, at: Array, centre: Array, prior: Array, n_effective: float
) -> tuple[Array, Array]:
    r"""Return posterior means and standard deviations of log m.

    Component l is integrated by Gauss-Hermite nodes of its product with the normal approximation
    of the likelihood, each weighted by the ratio of the true product to that normal.
    """
    u0, centre = np.log(solution.scale[at]), centre[at]
    V = np.asarray(solution.se_log_scale)[at] ** 2
    node, weight = np.polynomial.hermite_e.hermegauss(_NODES)
    weight = weight / weight.sum()
    tau2 = _SCALE_SDS[:, None] ** 2
    away = u0 - centre
    middle = away * tau2 / (tau2 + V)  # (L, d)
    width = np.sqrt(tau2 * V / (tau2 + V))
    u = middle[:, :, None] + width[:, :, None] * node  # (L, d, nodes), from the centre
    log_likelihood = -0.5 * (u - away[:, None]) ** 2 / V[:, None]
    if solution.evidence is not None:
        log_likelihood = _profile(u + centre[:, None], u0, V, solution.evidence, at)
    log_prior = -0.5 * u**2 / tau2[:, :, None] - np.log(_SCALE_SDS)[:, None, None]
    log_normal = -0.5 * node**2 - np.log(width)[:, :, None]
    value = np.exp(np.minimum(log_likelihood + log_prior - log_normal, 50.0)) * weight
    total = np.maximum(value.sum(2), 1e-300)  # evidence of each component
    first, second = ((value * u**k).sum(2) / total for k in (1, 2))
    part = n_effective * float(at.mean())
    share = _learn(total.T, prior, _independent(away, np.sqrt(V), part))
    belief = total.T * share
    belief /= belief.sum(1, keepdims=True)
    mean = (belief * first.T).sum(1)
    variance = (belief * second.T).sum(1) - mean**2
    return mean + centre, np.sqrt(np.maximum(variance, 0.0))


def _profile(u: Array, u0: Array, V: Array, known: Evidence, at: Array) -> Array:
    """Return the tempered profile likelihood at u less that at its maximum u0."""
    G, dof = known.profile[:, at], known.dof[at]
    n = np.minimum(np.clip(known.n_eff[at], 0.25, None), 0.98 * dof)

    def log(u: Array, G: Array, n: Array, dof: Array) -> Array:
        m = np.exp(np.clip(u, -300, 300))
        return n * u - 0.5 * dof * np.log(np.maximum(G[0] + 2 * m * G[1] + m**2 * G[2], 1e-300))

    m = np.exp(u0)
    square = G[0] + 2 * m * G[1] + m**2 * G[2]
    first = 2 * m * (G[1] + m * G[2]) / square
    curvature = 0.5 * dof * ((2 * m * G[1] + 4 * m**2 * G[2]) / square - first**2)
    temper = 1 / (np.maximum(curvature, 1e-12) * V)
    there = log(u, G[:, :, None], n[:, None], dof[:, None])
    return temper[:, None] * (there - log(u0, G, n, dof)[:, None])


def _posterior_shift(shift: Array, error: Array, n_effective: float) -> tuple[Array, Array, float]:
    """Return posterior means and standard deviations of the shift, and how far devices are apart.

    Each t_3 is a mixture of normals whose precisions are quantiles of its gamma distribution.
    Devices are apart by the chance, before learning, that shifts are of the widest one.
    """
    half = _T_DEGREES / 2
    precision = gammaincinv(half, (np.arange(_T_NODES) + 0.5) / _T_NODES) / half
    tau2 = (_SHIFT_SDS[:, None] ** 2 / precision).ravel()  # (L * nodes,)
    var = np.maximum(error, 1e-12)[:, None] ** 2
    spread = tau2 + var
    log = -0.5 * shift[:, None] ** 2 / spread - 0.5 * np.log(spread)
    each = np.exp(log - log.max(1, keepdims=True))
    evidence = each.reshape(len(shift), len(_SHIFT_SDS), _T_NODES).mean(2)
    chance = evidence * _SHIFT_WEIGHTS
    far = float((chance[:, -1] / chance.sum(axis=1)).mean())
    share = _learn(evidence, _SHIFT_WEIGHTS, _independent(shift, error, n_effective))
    belief = each * np.repeat(share, _T_NODES)
    belief /= belief.sum(1, keepdims=True)
    keep = tau2 / spread
    share = (belief * keep).sum(1)
    mean = share * shift
    variance = share * var[:, 0] + (belief * (keep - share[:, None]) ** 2).sum(1) * shift**2
    # far out the few normals are no t any more: its pull fades as 1 / shift
    wide, beyond = _T_DEGREES * _SHIFT_SDS[-1] ** 2, np.abs(shift) > _BEYOND
    faint = shift * (1 - (_T_DEGREES + 1) * var[:, 0] / (wide + shift**2))
    sd = np.where(beyond, np.sqrt(var[:, 0]), np.sqrt(variance))
    return np.where(beyond, faint, mean), sd, far


def _independent(estimate: Array, error: Array, n_effective: float) -> float:
    r"""Return as how many independent features these estimates count.

    Their noise has the mean squared correlation :math:`r^2` of the features,
    :math:`n_{eff} = d / (1 + (d - 1) r^2)`, but what they estimate may be independent: with the
    share s of noise in their variance, :math:`d / (1 + (d - 1) r^2 s^2)`. The share is at most what
    chance could make it: the median of squares of that many normal numbers, at its 99% limit.
    """
    d = len(estimate)
    if d == 1 or n_effective >= d:
        return float(d)
    typical = max(float(np.median((estimate / error) ** 2)), 1e-300)  # 0 for equal domains
    share = min(1.0, float(chdtri(n_effective, 0.01)) / n_effective * _MEDIAN / typical)
    return d / (1 + (d / n_effective - 1) * share**2)


def _learn(evidence: Array, start: Array, n_effective: float) -> Array:
    """Return weights of components by EM, with the start as pseudo-counts."""
    d = len(evidence)
    if d > _MOST_LEARNING:
        order = np.argsort(evidence[:, 0] / evidence.sum(1), kind="stable")
        evidence = evidence[order[subsample(d, _MOST_LEARNING)]]
    share = start
    for _ in range(_EM_STEPS):
        belief = evidence * share
        belief /= np.maximum(belief.sum(1, keepdims=True), 1e-300)
        update = belief.mean(0) * n_effective + _PSEUDO_FEATURES * start
        update /= update.sum()
        if np.abs(update - share).max() < 1e-4:
            return update
        share = update
    return share
