"""The choice among diagonal maps: identity, shift, gain, location-scale, averaged by evidence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from condokit._validation import Array
from condokit.divergences.base import Solution

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
