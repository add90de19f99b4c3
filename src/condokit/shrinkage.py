"""Sharing strength across features: maps averaged by evidence, or pulled towards the identity.

Both are empirical Bayes: how much comes from the data, and it fades as rows are added.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit.checks import Array, refusal
from condokit.data.subsets import subsample
from condokit.solvers.solution import Solution

CANDIDATES = ("identity", "shift", "location-scale")
_FEES = np.array([0.0, 4.0, 1.0])  # in units of squared standard errors
_SLOWLY = 3.0  # costs are divided by it: 2 is the likelihood's own, more makes weights smoother
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
class KeptShares:
    """The share of the plain estimate that is kept: 1 is all of it, 0 the identity."""

    log_scale: Array
    shift: Array


def settle(
    solution: Solution, unit: Array, averages: bool, shrinkage: Any
) -> tuple[Solution, KeptShares, Array | None]:
    """Average or shrink the plain map as asked; return also what was kept and candidate weights."""
    all_of_it = np.ones(len(solution.scale))
    kept = KeptShares(all_of_it, all_of_it)
    if averages:
        solution, chances = average_candidates(solution)
        return solution, kept, chances
    if shrinkage == "auto":
        solution, kept = shrink(solution, unit)
    elif shrinkage:
        share = (1 - shrinkage) * all_of_it
        kept = KeptShares(share, share)
        solution = keep(solution, kept)
    return solution, kept, None


def average_candidates(solution: Solution) -> tuple[Solution, Array]:
    r"""Return the maps of every feature averaged by evidence, and the weights of `CANDIDATES`.

    The estimates of :math:`\log m` and of the image of the centre are independent and nearly
    normal, so minus twice the log-likelihood that a candidate loses is the squared distance of its
    best point, in standard errors: nothing for location-scale, :math:`z_m^2` for a shift and
    :math:`z_m^2 + z_r^2` for the identity. With fees of 0, 4 and 1 for identity, shift and
    location-scale, weights are :math:`\exp(-\mathrm{cost} / 3)`: evidence moves the result smoothly
    from the identity to the full map. With normal errors, the root mean squared error of the shift
    is then at most 1.13 times that of the full map and 0.75 times without any change, of the scale
    1.20 and 0.65 times, and neither changes by more than 1.5 times what the full map's does. A
    scale without offset is no candidate: it would depend on where the zero of a feature is.
    """
    if solution.se_log_scale is None or solution.se_image is None:
        raise refusal(
            "{@map='auto'} needs standard errors, which this divergence or conditional does "
            "not give. Leave `divergence` and `conditional` at 'auto', or name a map."
        )
    log_scale, centre, image = np.log(solution.scale), solution.centre, solution.image
    se_log = np.where(solution.se_log_scale > 0, solution.se_log_scale, np.inf)
    known = solution.se_image > 0  # constant features are shifted, whatever the evidence
    se_image = np.where(known, solution.se_image, np.inf)
    z_scale, z_shift = log_scale / se_log, (image - centre) / se_image
    loss = np.stack([z_scale**2 + z_shift**2, z_scale**2, np.zeros_like(z_scale)])
    cost = loss.T + _FEES
    weights = np.exp(-(cost - cost.min(axis=1, keepdims=True)) / _SLOWLY)
    weights /= weights.sum(axis=1, keepdims=True)
    weights[~known] = np.eye(len(CANDIDATES))[CANDIDATES.index("shift")]
    _, shift, full = weights.T
    moved = (shift + full) * (image - centre)
    return replace(solution, scale=np.exp(full * log_scale), image=centre + moved), weights


def shrink(solution: Solution, unit: Array) -> tuple[Solution, KeptShares]:
    """Pull scale and shift towards the identity as far as the data of all features advise."""
    if solution.se_log_scale is None or solution.se_image is None:
        one = np.ones(len(unit))
        return solution, KeptShares(one, one)
    shift = solution.image - solution.centre
    kept = KeptShares(
        _kept_share(np.log(solution.scale), solution.se_log_scale, _LARGEST_LOG_SCALE),
        _kept_share(shift / unit, solution.se_image / unit, _LARGEST_SHIFT),
    )
    return keep(solution, kept), kept


def keep(solution: Solution, kept: KeptShares) -> Solution:
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
    fitted by expectation-maximisation with pseudo-counts. Given scale l, :math:`\tau_l^2 / (1 +
    \tau_l^2)` is kept: features that moved a lot keep all, others little.
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

    grid = np.sort(z)[subsample(len(z), _MOST_FITTED)]
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
