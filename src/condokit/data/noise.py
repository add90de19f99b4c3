"""Confounders that were measured with error, in place of which their expectations are compared."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from condokit.checks import Array, did_you_mean, is_number, listing, refusal
from condokit.data.arrays import ones_for_zeros
from condokit.data.domains import Domains, Noise

_SMALLEST = 1e-10  # variance of a direction, relative to the largest


def check_reliability(reliability: Any) -> dict[Any, Any]:
    """Return the share of signal, or the names of repeated measurements, by confounder."""
    if reliability is None:
        return {}
    if not isinstance(reliability, Mapping):
        text = "{@'reliability'} must be a dictionary such as {{'score': 0.8}} or {{'score': "
        raise refusal(text + "['score_1', 'score_2']}}. Got {got!r}.", got=reliability)
    for name, given in reliability.items():
        if is_number(given):
            if not 0 < given <= 1:
                text = "{@'reliability'} of {name!r} must be a share of its variance, above 0 and "
                raise refusal(text + "at most 1. Got {got!r}.", name=name, got=given)
        elif not np.iterable(given) or len(set(given)) < 2 or isinstance(given, str):
            text = "{@'reliability'} of {name!r} must be a number above 0 and at most 1, or list "
            text += "two or more columns that measure it. Got {got!r}."
            raise refusal(text, name=name, got=given)
    return dict(reliability)


def repeats_of(reliability: Mapping[Any, Any]) -> dict[str, list[str]]:
    """Return the columns of confounders that were measured several times."""
    return {name: list(v) for name, v in reliability.items() if not is_number(v)}


def kinds(domains: Domains) -> dict[str, str]:
    """Say of every confounder whether it is categorical or continuous, and known to be noisy."""
    found = {}
    for c in domains.confounders:
        found[c.name] = "categorical" if c.values is None else "continuous"
        share = None if domains.noise is None else domains.noise.shares.get(c.name)
        if is_number(share):
            found[c.name] += f", calibrated for a reliability of {share:g}"
        elif share is not None:
            found[c.name] += f", calibrated from {share.shape[1]} measurements"
    return found


def calibrated(
    domains: Domains, reliability: Mapping[Any, Any], site: Array | None = None, labels: Any = None
) -> Domains:
    """Replace confounders that were measured with error by what they lead one to expect.

    `reliability` has shares, or repeated measurements of shape (n_rows, n_repeats). `site` are the
    domains to calibrate in, if they are not query and reference, and `labels` what they are called.
    """
    names = [c.name for c in domains.confounders]
    shares = {}
    for key, share in reliability.items():
        is_place = is_number(key, (int, np.integer)) and -len(names) <= key < len(names)
        name = names[key] if is_place else key
        if name not in names:
            known = f"The confounders are {listing(names)}." if names else "There are none."
            text = "{@'reliability'} names {got!r}, which is not a confounder. {known}{hint}"
            raise refusal(text, got=key, known=known, hint=did_you_mean(key, names))
        if domains.confounders[names.index(name)].values is None:
            text = "{@'reliability'} names {got!r}, but it is categorical, and only numbers can be "
            raise refusal(text + "calibrated.", got=name)
        shares[name] = share
    if not shares:
        return domains
    site = (~domains.is_query).astype(np.intp) if site is None else site
    noise = Noise(domains.confounders, shares, site, labels or domains.labels)
    return recalibrated(replace(domains, noise=noise))


def at_reliability(domains: Domains, name: str, share: float) -> Domains:
    """Return the domains with another reliability of a confounder."""
    noise = domains.noise
    if noise is None:
        side = (~domains.is_query).astype(np.intp)
        noise = Noise(domains.confounders, {}, side, domains.labels)
    return recalibrated(replace(domains, noise=replace(noise, shares=noise.shares | {name: share})))


def recalibrated(domains: Domains) -> Domains:
    r"""Calibrate anew, from the rows that are kept and as often as they count.

    With error variances E of the continuous confounders, W their covariance within domain d and
    stratum c (of the categorical confounders), and M their mean there, true values are expected at
    :math:`z - E W^{-1} (z - M)`, the regression of the true on the measured values; for one
    confounder alone :math:`m_d + \lambda_d (z - m_d)` with :math:`\lambda_d = 1 - E / W`. E is
    common to all domains: :math:`1 - \lambda` of the pooled variance within domains, or the
    variance within rows of repeated measurements, over their number.
    """
    noise = domains.noise
    if noise is None:
        return domains
    measured = [c for c in noise.confounders if c.values is not None]
    kept, Z = domains.kept(), np.column_stack([np.asarray(c.values) for c in measured])
    unit = ones_for_zeros(Z[kept].std(axis=0))
    Z = (Z - Z[kept].mean(axis=0)) / unit
    weights = kept * (1.0 if domains.weights is None else domains.weights)
    error = _errors([c.name for c in measured], noise, Z, unit, weights)
    stratum = replace(domains, confounders=noise.confounders, keep=None).strata().codes
    for d in range(len(noise.labels)):
        mine = noise.site == d
        Z[mine] -= expectation(Z[mine], stratum[mine], weights[mine], error)
    less = {c.name: z * u for c, z, u in zip(measured, Z.T, unit) if c.name in noise.shares}
    raw = {c.name: c for c in noise.confounders}
    now = [raw[c.name] for c in domains.confounders]
    now = [replace(c, values=c.values - less[c.name]) if c.name in less else c for c in now]
    return replace(domains, confounders=now)


def _errors(names: list[str], noise: Noise, Z: Array, unit: Array, weights: Array) -> Array:
    """Return the error variances of confounders in these units; refuse those that leave nothing."""
    squares = [_squares(Z, weights * (noise.site == d)) for d in range(len(noise.labels))]
    pooled = np.sum([square for square, _ in squares], axis=0)
    pooled = pooled / max(sum(dof for _, dof in squares), 1.0)
    error = np.zeros(len(names))
    for j, name in enumerate(names):
        if name in noise.shares:
            share = noise.shares[name]
            known = is_number(share)
            error[j] = (1 - share) * pooled[j] if known else _within(name, share, weights)
            error[j] /= 1.0 if known else unit[j] ** 2
    for label, (square, dof) in zip(noise.labels, squares):
        lost = (error > 0) & (square <= error * dof) & (dof > 0)
        if lost.any():
            j = int(lost.argmax())
            text = "{@'reliability'} leaves nothing of {name!r} in {label!r}: its variance there "
            text += "is {own:.3g}, and that of its error {error:.3g}. Give a larger share, or "
            fields = {"own": square[j] / dof * unit[j] ** 2, "error": error[j] * unit[j] ** 2}
            raise refusal(text + "leave it out.", name=names[j], label=label, **fields)
    return error


def _squares(Z: Array, weights: Array) -> tuple[Array, float]:
    """Return the sum of squares around the mean of weighted rows, and its degrees of freedom."""
    total = max(float(weights.sum()), 1e-300)
    return weights @ (Z - weights @ Z / total) ** 2, max(total - 1.0, 0.0)


def _within(name: str, repeats: Array, weights: Array) -> float:
    """Return the error variance of the mean of repeated measurements, from their differences."""
    known = np.isfinite(repeats)
    n = known.sum(axis=1)
    weights = weights * (n > 0)
    dof = float(weights @ np.maximum(n - 1, 0))
    if dof < 2:
        text = "{@'reliability'} of {name!r} needs two rows or more with repeated measurements."
        raise refusal(text, name=name)
    mean = np.where(known, repeats, 0.0).sum(axis=1) / np.maximum(n, 1)
    away = np.where(known, repeats - mean[:, None], 0.0)
    variance = weights @ (away**2).sum(axis=1) / dof
    return float(variance * (weights @ (1 / np.maximum(n, 1))) / weights.sum())


def expectation(Z: Array, stratum: Array, weights: Array, error: Array) -> Array:
    """Return what measured values of one domain lead to expect; see `recalibrated`.

    Means of strata are pulled to the domain's as far as their rows tell little (random effects).
    """
    M, W = _stratum_means(Z, stratum, weights)
    size, axes = np.linalg.eigh(W)
    root = np.sqrt(np.maximum(size, max(size.max(), 1e-300) * _SMALLEST))
    half, inverse = (axes * root) @ axes.T, (axes / root) @ axes.T
    lost, turned = np.linalg.eigh(inverse * error @ inverse)
    gain = half @ (turned * np.clip(lost, 0.0, 1.0)) @ turned.T @ inverse  # E W^-1
    return np.asarray(Z - (Z - M) @ gain.T)


def _stratum_means(Z: Array, stratum: Array, weights: Array) -> tuple[Array, Array]:
    """Return the expected mean of every row's stratum, and the covariance within strata."""
    n, total = np.bincount(stratum, weights), weights.sum()
    mean = weights @ Z / total
    sums = np.column_stack([np.bincount(stratum, weights * z) for z in Z.T])
    means = sums / ones_for_zeros(n)[:, None]
    left, n_strata = Z - means[stratum], int((n > 0).sum())
    if n_strata == 1 or total - n_strata < max(n_strata, Z.shape[1] + 1):  # too few rows to tell
        left = Z - mean
        return np.broadcast_to(mean, Z.shape), (left.T * weights) @ left / max(total - 1, 1.0)
    W = (left.T * weights) @ left / (total - n_strata)
    away = means - mean
    between = (away.T * n) @ away - (n_strata - 1) * W
    size, axes = np.linalg.eigh(between / (total - n @ n / total))
    T = (axes * np.maximum(size, 0.0)) @ axes.T
    floor = _SMALLEST * np.trace(W) * np.eye(len(W))
    for k in np.flatnonzero(n > 0):
        away[k] = T @ np.linalg.solve(T + W / n[k] + floor, away[k])
    return mean + away[stratum], W
