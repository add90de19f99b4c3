"""Moments of both domains at the compared confounder values, for diagonal maps."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import digamma, ndtri, polygamma, stdtrit

from condokit.checks import Array, listing, refusal
from condokit.compare.comparison import Comparison
from condokit.conditionals import Conditional, Moments
from condokit.conditionals.base import moments_from
from condokit.data.arrays import is_constant, ones_for_zeros
from condokit.data.grouped import GroupedMoments, effective_counts
from condokit.data.study import Study


@dataclass(frozen=True)
class MomentPair:
    """Moments of both domains at the support values, and the weights of these values."""

    query: Moments
    reference: Moments
    weights: Array  # (n_values,); they sum to one
    flat: Array  # (n_features,): constant within strata of a domain; variances are set to one
    widening: Any = 1.0  # factor of standard errors, for few degrees of freedom (Student's t)
    knows_errors: bool = True  # whether the moments at different values are independent

    @property
    def spread(self) -> Array:
        """The reference's standard deviation given the confounders, (n_features,)."""
        return np.sqrt(self.weights @ self.reference.var)

    def in_units(self, query: Array, reference: Array) -> "MomentPair":
        """Return the pair with the features of each domain divided by their units."""
        both = ((self.query, query), (self.reference, reference))
        one, other = (
            replace(m, mean=m.mean / u, var=m.var / u**2, precision=m.precision * u**2)
            for m, u in both
        )
        return replace(self, query=one, reference=other)

    def swapped(self) -> "MomentPair":
        """Return the pair with query and reference exchanged."""
        return replace(self, query=self.reference, reference=self.query)


def moment_pair(
    domains: Study, comparison: Comparison, conditional: Conditional, shared: bool, scaled: bool
) -> MomentPair:
    """Return the moments of both domains.

    With `shared`, variances are shrunk across strata and features. `scaled` says that the map has
    scales, so that variances are needed.
    """
    if not conditional.is_smooth:
        refuse_continuous(domains)
        query, reference = moments_in_strata(domains, comparison)
        return paired(query, reference, comparison.support.weights, shared, scaled)
    used, covariates, is_query = comparison.used, comparison.covariates, comparison.is_query
    refuse_weights(domains, comparison, conditional)
    if comparison.fewest_rows < 2:
        raise refusal(
            "A domain has only 1 sample, so its spread cannot be learned. Add rows, or use "
            "{@divergence='likelihood'} with {@map='shift'}."
        )
    rows, weights = comparison.points
    X, at = domains.rows(used), covariates.take(rows)
    query, reference = (
        conditional.moments_at(X[side], covariates.take(side), at) for side in (is_query, ~is_query)
    )
    query, reference, flat = without_flat(query, reference, scaled)
    return MomentPair(query, reference, weights, flat, knows_errors=False)


def paired(
    query: Moments, reference: Moments, weights: Array, shared: bool, scaled: bool
) -> MomentPair:
    """Make a pair of the moments of strata; see `moment_pair`."""
    query, reference, flat = without_flat(query, reference, scaled)
    widening = _widening(query, reference, shared)
    if shared:
        query, reference = share_variances(query), share_variances(reference)
    return MomentPair(query, reference, weights, flat, widening)


def moments_in_strata(domains: Study, comparison: Comparison) -> tuple[Moments, Moments]:
    """Return the moments of (query, reference) within strata, in one pass over the rows."""
    n_values = len(comparison.support.levels)
    cell = cells(domains, comparison)
    stats = domains.gather(cell, 2 * n_values)
    counts = stats.count if domains.groups is None else _independent(domains, cell, stats)
    tables = (stats.count, stats.mean, stats.squares, counts)
    query, reference = (moments_from(*half) for half in zip(*(np.split(t, 2) for t in tables)))
    return query, reference


def cells(domains: Study, comparison: Comparison) -> Array:
    """Return each row's cell: query's support values first, then the reference's; -1 for none."""
    cell = comparison.place.copy()
    cell[(cell >= 0) & ~domains.is_query] += len(comparison.support.levels)
    return cell


def _independent(domains: Study, cell: Array, stats: GroupedMoments) -> Array:
    """Return the effective sample size of each cell, given rows of the same subjects."""
    groups, used = np.asarray(domains.groups), cell >= 0
    n_subjects = int(groups.max()) + 1
    pairs = cell.astype(np.int64) * n_subjects + groups
    cluster = np.full(len(cell), -1, dtype=np.int64)
    distinct, cluster[used] = np.unique(pairs[used], return_inverse=True)
    clusters, stratum = domains.gather(cluster, len(distinct)), distinct // n_subjects
    return effective_counts(stats.count, stats.squares, clusters, stratum)


def refuse_continuous(domains: Study) -> None:
    """Refuse continuous confounders where strata are compared."""
    names = [c.name for c in domains.continuous]
    if domains.products is not None:
        names += domains.products.basis.names
    if names:
        raise refusal(
            "This divergence with conditional='stratified' needs categorical confounders, but "
            "{names} is continuous. Use {@divergence='likelihood'}, conditional='kernel', or "
            "{@list it in `categorical`}.",
            names=listing(names),
        )


def refuse_weights(domains: Study, comparison: Comparison, conditional: Conditional) -> None:
    """Refuse weights of rows that a conditional would ignore."""
    used = comparison.used
    weighted = domains.weights is not None and len(set(domains.weights[used])) > 1
    if weighted and not conditional.takes_weights:
        raise refusal(
            "{@'sample_weight'} cannot be used with {kind}; use {@divergence='likelihood'}.",
            kind=type(conditional).__name__,
        )


def is_flat(mean: Array, var: Array) -> Array:
    """Mark features whose spread within strata is nothing but rounding."""
    return is_constant(np.sqrt(var.max(axis=0)), np.abs(mean).max(axis=0))


def without_flat(
    query: Moments, reference: Moments, scaled: bool
) -> tuple[Moments, Moments, Array]:
    """Mark features that are constant within strata of a domain, and give them unit variances.

    A domain with one row in every stratum gets the variances of the other domain.
    """
    sides = {"query": query, "reference": reference}
    single = [name for name, moments in sides.items() if not (moments.dof > 0).any()]
    if single and (scaled or len(query.count) == len(single) - 1):
        text = "The {names} only 1 sample in each stratum compared, so {what} cannot be learned. "
        raise refusal(
            text + ("Add rows, merge strata, or use {@map='shift'}." if scaled else "Add rows."),
            names=f"{single[0]} domain has" if len(single) == 1 else "two domains have",
            what="a scale" if scaled else "how sure a shift is",
        )
    query, reference = _with_spread(query, reference, single)
    flat = is_flat(query.mean, query.var) | is_flat(reference.mean, reference.var)
    if flat.any():
        query, reference = (
            replace(m, **{k: np.where(flat, 1.0, getattr(m, k)) for k in ("var", "precision")})
            for m in (query, reference)
        )
    return query, reference, flat


def _with_spread(query: Moments, reference: Moments, single: list[str]) -> tuple[Moments, Moments]:
    """Give a domain with only one row in every stratum the variances of the other domain.

    If both have one row per stratum, the variance is half of that of their differences over strata.
    """
    if not single:
        return query, reference
    known = reference if single == ["query"] else query
    var, precision = known.var, known.precision
    if len(single) == 2:
        var = (reference.mean - query.mean).var(axis=0, ddof=1) / 2 + 0 * known.var
        precision = 1 / ones_for_zeros(var)
    dof = np.maximum(known.dof, 0.5 if len(single) == 2 else 0.0)
    query, reference = (
        replace(m, var=var, precision=precision, dof=dof)
        if name in single or len(single) == 2
        else m
        for name, m in (("query", query), ("reference", reference))
    )
    return query, reference


def _widening(query: Moments, reference: Moments, shared: bool) -> Any:
    """Return Student's 97.5% quantile over 1.96, by the variances' degrees of freedom.

    Then 1.96 standard errors are a 95% interval.
    """
    dof = np.concatenate([query.dof, reference.dof])
    seen = np.concatenate([query.count, reference.count]) > 0
    known = np.where(seen, np.maximum(dof, 0.5), 0.0)
    if shared:
        total = known.sum(axis=0)
    else:
        total = seen.sum(axis=0) / (seen / np.maximum(known, 0.5)).sum(axis=0)
    return stdtrit(np.maximum(total, 1.0), 0.975) / ndtri(0.975)


def share_variances(moments: Moments) -> Moments:
    """Shrink the variance of each stratum towards what strata and features have in common.

    The inverse of an estimated variance is too large on average, E[1 / s^2] = f / ((f - 2) sigma^2)
    with f degrees of freedom. So the precision is multiplied by (f - 2) / f, where f counts the
    stratum's own degrees of freedom and those that the prior is worth.
    """
    own, total = moments.dof, float(moments.dof.sum())
    if total == 0:
        return moments
    var, worth = np.tile(own @ moments.var / total, (len(own), 1)), np.full(len(own), total)
    if (own >= 1).sum() > 1:
        dof = np.broadcast_to(own[:, None], var.shape)
        log_ratio, prior = share_levels(dof * moments.var, dof, var.shape[1])
        var *= np.exp(log_ratio)
        worth = np.minimum(2 * prior + own, total)
    precision = (np.maximum(worth - 2, 0.5) / worth)[:, None] / var
    # shared variances are not learned in each stratum anew: errors are those of its own rows
    return replace(moments, var=var, precision=precision, dof=np.maximum(own, total / len(own)))


def share_levels(squares: Array, dof: Array, n_effective: float) -> tuple[Array, float]:
    r"""Return log-variances of levels by empirical Bayes, and the precision of their prior.

    They are relative to the pooled variance of each feature, (n_levels, n_features). With f degrees
    of freedom :math:`\log s_{jk}^2` is about normal around
    :math:`\log \sigma_{jk}^2 + \psi(f/2) - \log(f/2)` with variance :math:`\psi'(f/2)`.
    Log-variances differ between levels by a factor that all features share (shrunk by d / (d + 10))
    and by :math:`N(0, \omega^2)`, with :math:`\omega^2` estimated from their spread beyond that of
    the noise.

    `squares`, sums of squared residuals, and `dof` have the shape (n_levels, n_features). The d
    features count as `n_effective` independent ones.
    """
    known = dof >= 0.9
    half = np.where(known, dof, 2.0) / 2
    pooled = squares.sum(0) / np.maximum(dof.sum(0), 1e-300)
    floor = 1e-4 * np.maximum(pooled, 1e-300)
    logs = np.log(np.maximum(squares / (2 * half), floor)) - digamma(half) + np.log(half)
    noise = polygamma(1, half)
    precision = np.where(known, 1 / (0.3 + noise), 0.0)
    total = np.maximum(precision.sum(0), 1e-300)
    typical = (precision * logs).sum(0) / total
    away = np.where(known, logs - typical, 0.0)
    trust = n_effective / (n_effective + 10)
    weight = np.maximum(precision.sum(1, keepdims=True), 1e-300)
    factor = trust * (precision * away).sum(1, keepdims=True) / weight
    away = np.where(known, away - factor, 0.0)
    # spread beyond the noise; weights are inverse variances of squares, at a spread of .1
    gain = np.where(known, 1 / (0.1 + noise) ** 2, 0.0)
    n_known = np.maximum(known.sum(0), 2)
    inflate = n_known / (n_known - 1.0)
    excess = (gain * (away**2 * inflate - noise)).sum() / max(float(gain.sum()), 1e-300)
    # precision of the estimated spread, as if from `n_effective` features
    own = gain.sum() ** 2 / max(float((gain**2 * 2 * (0.1 + noise) ** 2).sum()), 1e-300)
    own *= n_effective / squares.shape[1]
    error2 = 1 / max(own, 1e-300)
    omega2 = (max(excess, 0.0) * 0.3 + 0.1 * error2) / (0.3 + error2)
    omega2 = max(omega2, 1e-3)
    keep = np.where(known, omega2 / (omega2 + noise), 0.0)
    return typical + factor + keep * away - np.log(np.maximum(pooled, 1e-300)), 1 / omega2
