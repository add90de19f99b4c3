"""Regression calibration of confounders that were measured with error."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from condokit.checks import Array, did_you_mean, is_number, listing, refusal
from condokit.data.arrays import largest_of, ones_for_zeros
from condokit.data.covariates import design, fitted
from condokit.data.study import Noise, Study
from condokit.data.subsets import subsample

_SMALLEST = 1e-6  # true variance in any direction, in standard units
_FEWEST_ROWS = 10  # rows of a level in a domain, below which it has no mean of its own
_MOST_PARTS = 3  # components of the normal mixture that confounders follow
_EVIDENCE = 3.0  # nats by which another component must improve the information criterion
_ROWS_OF_MIXTURE = 5000  # rows that the mixture is fitted to, at most
_STEPS = 200  # of expectation maximisation, at most


def check_reliability(reliability: Any) -> dict[Any, Any]:
    """Return the share of signal, or the names of repeated measurements, by confounder."""
    if reliability is None:
        return {}
    if not hasattr(reliability, "items"):
        text = "{@'reliability'} must be a dictionary such as {{'score': 0.8}} or {{'score': "
        raise refusal(text + "['score_1', 'score_2']}}. Got {got!r}.", got=reliability)
    for name, given in reliability.items():
        is_share = is_number(given) and 0 < given <= 1
        if not is_share and (np.ndim(given) != 1 or len(set(given)) < 2):
            text = "{@'reliability'} of {name!r} must be the share of its variance that is signal "
            text += "(above 0, at most 1), or two or more columns that measure it. Got {got!r}."
            raise refusal(text, name=name, got=given)
    return dict(reliability)


def repeats_of(reliability: Mapping[Any, Any]) -> dict[str, list[str]]:
    """Return the names of the columns of confounders that were measured several times."""
    return {name: list(v) for name, v in reliability.items() if not is_number(v)}


def kinds(domains: Study) -> dict[str, str]:
    """Describe every confounder: categorical or continuous, and how it was calibrated."""
    found = {}
    for c in domains.confounders:
        found[c.name] = c.kind
        share = None if domains.noise is None else domains.noise.shares.get(c.name)
        if is_number(share):
            found[c.name] += f", calibrated for a reliability of {share:g}"
        elif share is not None:
            found[c.name] += f", calibrated from {share.shape[1]} measurements"
    return found


def calibrated(domains: Study, reliability: Mapping[Any, Any]) -> Study:
    """Replace confounders that were measured with error by the expected true values.

    `reliability` has shares, or repeated measurements of shape (n_rows, n_repeats).
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
        if not domains.confounders[names.index(name)].is_number:
            text = "{@'reliability'} names {got!r}, which is categorical. Only continuous "
            raise refusal(text + "confounders can be calibrated.", got=name)
        shares[name] = share
    if not shares:
        return domains
    noise = Noise(domains.confounders, shares, domains.code, domains.labels)
    return recalibrated(replace(domains, noise=noise))


def at_reliability(domains: Study, name: str, share: float) -> Study:
    """Return the domains with another reliability of a confounder."""
    noise = domains.noise
    if noise is None:
        return calibrated(domains, {name: share})
    return recalibrated(replace(domains, noise=replace(noise, shares=noise.shares | {name: share})))


def recalibrated(domains: Study) -> Study:
    r"""Calibrate confounders by the rows that are kept, with their weights.

    With error variances E of the continuous confounders, M their mean within domain d given the
    levels of categorical ones, and W their covariance around it, true values are expected at
    :math:`z - E W^{-1} (z - M)`, the regression of the true on the measured values; for one
    confounder alone :math:`m_d + \lambda_d (z - m_d)` with :math:`\lambda_d = 1 - E / W`. E is
    common to all domains: :math:`1 - \lambda` of the pooled variance within domains, or the
    variance within rows of repeated measurements, divided by their number. Where values in a domain
    are far from normal, M and W are those of the components of a mixture, averaged with the
    probabilities that the row belongs to each (`mixture`).
    """
    noise = domains.noise
    if noise is None:
        return domains
    measured = [c for c in noise.confounders if c.values is not None]
    kept, Z = domains.kept(), np.column_stack([np.asarray(c.values) for c in measured])
    size = largest_of(Z[kept])
    spread = ones_for_zeros((Z[kept] / size).std(axis=0))
    Z, unit = (Z / size - (Z[kept] / size).mean(axis=0)) / spread, size * spread
    weights = kept * (1.0 if domains.weights is None else domains.weights)
    error = _errors([c.name for c in measured], noise, Z, unit, weights)
    levels = [c for c in noise.confounders if c.values is None]
    D = design(levels, np.arange(len(Z)), 1)[:, 1:]
    for d in range(len(noise.labels)):
        mine = noise.site == d
        Z[mine] -= expectation(Z[mine], D[mine], weights[mine], error)
    less = {c.name: z * u for c, z, u in zip(measured, Z.T, unit) if c.name in noise.shares}
    raw = {c.name: c for c in noise.confounders}
    now = [raw[c.name] for c in domains.confounders]
    now = [replace(c, values=c.values - less[c.name]) if c.name in less else c for c in now]
    return replace(domains, confounders=now)


def _errors(names: list[str], noise: Noise, Z: Array, unit: Array, weights: Array) -> Array:
    """Return the error variances of confounders; refuse an error as large as the whole variance."""
    variances, dofs = [], []
    for d in range(len(noise.labels)):
        own = weights * (noise.site == d)
        dofs.append(max(own.sum() - 1.0, 0.0))
        centre = own @ Z / max(own.sum(), 1e-300)
        variances.append(own @ (Z - centre) ** 2 / max(dofs[-1], 1e-300))
    pooled = np.average(variances, axis=0, weights=np.maximum(dofs, 1e-300))
    error = np.zeros(len(names))
    for j, name in enumerate(names):
        if name in noise.shares:
            share = noise.shares[name]
            known = is_number(share)
            error[j] = (1 - share) * pooled[j] if known else _within(name, share / unit[j], weights)
    for label, variance, dof in zip(noise.labels, variances, dofs):
        lost = (error > 0) & (variance <= error) & (dof > 0)
        if lost.any():
            j = int(lost.argmax())
            text = (
                "By {@'reliability'}, {name!r} has no signal in {label!r}, where its variance is "
            )
            text += "{total:.3g}, and that of its error {error:.3g}. Give a larger reliability, or "
            fields = {"total": variance[j] * unit[j] ** 2, "error": error[j] * unit[j] ** 2}
            raise refusal(text + "leave it out.", name=names[j], label=label, **fields)
    return error


def _within(name: str, repeats: Array, weights: Array) -> float:
    """Return the error variance of the mean of repeated measurements, from their differences."""
    known = np.isfinite(repeats)
    n = known.sum(axis=1)
    weights = weights * (n > 0)
    dof = float(weights @ np.maximum(n - 1, 0))
    if dof < 2:
        text = "{@'reliability'} of {name!r} needs at least two rows with repeated measurements."
        raise refusal(text, name=name)
    mean = np.where(known, repeats, 0.0).sum(axis=1) / np.maximum(n, 1)
    away = np.where(known, repeats - mean[:, None], 0.0)
    variance = weights @ (away**2).sum(axis=1) / dof
    return float(variance * (weights @ (1 / np.maximum(n, 1))) / weights.sum())


def expectation(Z: Array, D: Array, weights: Array, error: Array) -> Array:
    """Return the expected true values of one domain, given indicators D of levels."""
    often = weights @ D >= _FEWEST_ROWS  # rarer levels share the mean of the first
    D = np.column_stack([np.ones(len(D)), D[:, often]])
    root = np.sqrt(weights)[:, None]
    away = Z - D @ fitted(root * D, root * Z)
    W = (away.T * weights) @ away / max(float(weights.sum()) - D.shape[1], 1.0)
    shares, means, covs = mixture(away, weights, W, error)
    belongs, found = _belongs(away, shares, means, covs)[0], Z.copy()
    for k, (mean, cov) in enumerate(zip(means, covs)):
        found -= belongs[:, [k]] * np.linalg.solve(cov, (away - mean).T).T * error
    return found


def mixture(Z: Array, weights: Array, W: Array, error: Array) -> tuple[Array, Array, Array]:
    """Return shares, means and covariances of the normal mixture that measured values follow.

    It has one component, of covariance W, unless an information criterion favours two or three,
    fitted by expectation maximisation; no component is narrower than the error.
    """
    order = np.lexsort([*Z.T, Z @ np.linalg.eigh(W)[1][:, -1]])  # the same for any order of rows
    order = order[weights[order] > 0]
    order = order[subsample(len(order), _ROWS_OF_MIXTURE)]
    Z, weights = Z[order], weights[order]
    p, n = len(W), max(float(weights.sum()), 1.0)
    found = np.ones(1), np.zeros((1, p)), _at_least(W[None], error)
    best = weights @ _belongs(Z, *found)[1] - 0.5 * (p + p * (p + 1) / 2) * np.log(n)
    for parts in range(2, _MOST_PARTS + 1):
        free = parts * (1 + p + p * (p + 1) / 2) - 1
        if free > n / 10:
            break
        R = (np.arange(len(Z)) * parts // max(len(Z), 1))[:, None] == np.arange(parts)
        before = -np.inf
        for _ in range(_STEPS):
            N = np.maximum((R * weights[:, None]).sum(axis=0), 1e-9)
            means = (R * weights[:, None]).T @ Z / N[:, None]
            away = Z - means[:, None]
            covs = np.einsum("nk,n,kni,knj->kij", R, weights, away, away, optimize=True)
            trial = N / N.sum(), means, _at_least(covs / N[:, None, None], error)
            R, nats = _belongs(Z, *trial)
            before, last = float(weights @ nats), before
            if before < last + 1e-3:
                break
        value = before - 0.5 * free * np.log(n)
        if value < best + _EVIDENCE:
            break
        best, found = value, trial
    return found


def _at_least(covs: Array, error: Array) -> Array:
    """Return covariances of measured values, raised where needed to exceed those of the error."""
    size, axes = np.linalg.eigh(covs - np.diag(error))
    true = (axes * np.maximum(size, _SMALLEST)[:, None]) @ np.swapaxes(axes, 1, 2)
    return np.asarray(true + np.diag(error))


def _belongs(Z: Array, shares: Array, means: Array, covs: Array) -> tuple[Array, Array]:
    """Return the probability of each component for each row, and the log-density of rows."""
    away = Z - means[:, None]
    square = np.einsum(
        "kni,kni->nk", away, np.swapaxes(np.linalg.solve(covs, np.swapaxes(away, 1, 2)), 1, 2)
    )
    log = np.log(shares) - 0.5 * (square + np.linalg.slogdet(2 * np.pi * covs)[1])
    density = np.logaddexp.reduce(log, axis=1)
    return np.exp(log - density[:, None]), density
