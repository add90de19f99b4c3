"""Moments of both domains at the compared confounder values, for diagonal maps."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import digamma, ndtri, polygamma, stdtrit

from condokit.checks import Array, listing, refusal
from condokit.compare.comparison import Comparison
from condokit.conditionals import Conditional, Moments
from condokit.conditionals.base import moments_from
from condokit.data.arrays import ones_for_zeros
from condokit.data.domains import Domains
from condokit.data.grouped import GroupedMoments, effective_counts

_LARGEST = 1e150
_ROUNDING = 1e-13  # relative spread below which a feature is constant
# Variance of the log-variances of strata, before any data; believed like this many features.
_PRIOR_SPREAD, _PRIOR_FEATURES = 0.8, 10.0


@dataclass(frozen=True)
class MomentPair:
    """Moments of both domains at the support values, with the weights of these."""

    query: Moments
    reference: Moments
    weights: Array  # (n_values,); they sum to one
    flat: Array  # features that are constant within strata in a domain; their variances are one
    widening: Any = 1.0  # factor of standard errors for what few rows leave unknown of them
    knows_errors: bool = True  # whether the moments at different values are independent

    @property
    def unit(self) -> Array:
        """The reference's spread given the confounders."""
        return np.sqrt(self.weights @ self.reference.var)

    def swapped(self) -> "MomentPair":
        """Return the pair with query and reference exchanged."""
        return replace(self, query=self.reference, reference=self.query)


def moment_pair(
    domains: Domains, comparison: Comparison, conditional: Conditional, shared: bool, scaled: bool
) -> MomentPair:
    """Gather the moments; `shared` across strata and features, `scaled` if spreads are needed."""
    if not conditional.is_smooth:
        refuse_continuous(domains)
        query, reference = moments_in_strata(domains, comparison)
        return paired(query, reference, comparison.support.weights, shared, scaled)
    used, covariates, is_query = comparison.used, comparison.covariates, comparison.is_query
    weighted = domains.weights is not None and len(set(domains.weights[used])) > 1
    if weighted and not conditional.takes_weights:
        raise refusal(
            "{@'sample_weight'} cannot be used with {kind}; use {@divergence='likelihood'}.",
            kind=type(conditional).__name__,
        )
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


def moments_in_strata(domains: Domains, comparison: Comparison) -> tuple[Moments, Moments]:
    """Return the moments of (query, reference) within strata, in one pass over the rows."""
    n_values = len(comparison.support.levels)
    cell = cells(domains, comparison)
    stats = gather(domains, cell, 2 * n_values)
    counts = stats.count if domains.groups is None else _independent(domains, cell, stats)
    tables = (stats.count, stats.mean, stats.squares, counts)
    query, reference = (moments_from(*half) for half in zip(*(np.split(t, 2) for t in tables)))
    return query, reference


def cells(domains: Domains, comparison: Comparison) -> Array:
    """Return the cell of every row: query's support values, then the reference's; -1 for none."""
    cell = comparison.place.copy()
    cell[(cell >= 0) & ~domains.is_query] += len(comparison.support.levels)
    return cell


def _independent(domains: Domains, cell: Array, stats: GroupedMoments) -> Array:
    """Return the number of independent rows in each cell."""
    groups, used = np.asarray(domains.groups), cell >= 0
    n_subjects = int(groups.max()) + 1
    pairs = cell.astype(np.int64) * n_subjects + groups
    cluster = np.full(len(cell), -1, dtype=np.int64)
    distinct, cluster[used] = np.unique(pairs[used], return_inverse=True)
    clusters, stratum = gather(domains, cluster, len(distinct)), distinct // n_subjects
    return effective_counts(stats.count, stats.squares, clusters, stratum)


def gather(domains: Domains, groups: Array, n_groups: int, kind: Any = GroupedMoments) -> Any:
    """Read all rows once, and return the moments of groups of them."""
    stats = kind(n_groups, domains.n_features)
    for rows, chunk in domains.chunks():
        weights = None if domains.weights is None else domains.weights[rows]
        with np.errstate(invalid="ignore", over="ignore"):
            stats.update(chunk, groups[rows], weights)
    refuse_huge(stats.squares)
    return stats


def refuse_huge(squares: Array) -> None:
    """Refuse features whose squares are too large to compute with."""
    if not squares.max(initial=0.0) < _LARGEST:
        raise ValueError(
            "The features are too large for double precision (their squares exceed 1e150). "
            "Rescale them."
        )


def refuse_continuous(domains: Domains) -> None:
    """Refuse continuous confounders where strata are compared."""
    if domains.continuous:
        raise refusal(
            "This divergence with conditional='stratified' needs categorical confounders, but "
            "{names} is continuous. Use {@divergence='likelihood'}, conditional='kernel', or "
            "{@list it in `categorical`}.",
            names=listing([c.name for c in domains.continuous]),
        )


def is_flat(mean: Array, var: Array) -> Array:
    """Mark features whose spread within strata is nothing but rounding."""
    return var.max(axis=0) <= (_ROUNDING * np.abs(mean).max(axis=0)) ** 2


def without_flat(
    query: Moments, reference: Moments, scaled: bool
) -> tuple[Moments, Moments, Array]:
    """Mark features that are constant within strata in a domain, and give them unit variances."""
    sides = {"query": query, "reference": reference}
    single = [name for name, moments in sides.items() if not (moments.dof > 0).any()]
    if single and scaled:
        raise refusal(
            "The {names} domain has only 1 sample in each stratum compared, so a scale cannot "
            "be learned. Add rows, merge strata, or use {@map='shift'}.",
            names=" and the ".join(single),
        )
    flat = is_flat(query.mean, query.var) | is_flat(reference.mean, reference.var)
    if flat.any():
        query, reference = (
            replace(m, **{k: np.where(flat, 1.0, getattr(m, k)) for k in ("var", "precision")})
            for m in (query, reference)
        )
    return query, reference, flat


def _widening(query: Moments, reference: Moments, shared: bool) -> Any:
    """Return the factor that makes 1.96 errors a 95% interval: Student's, by the variances' dof."""
    dof = np.concatenate([query.dof, reference.dof])
    seen = np.concatenate([query.count, reference.count]) > 0
    known = np.where(seen, np.maximum(dof, 0.5), 0.0)
    if shared:
        total = known.sum(axis=0)
    else:
        total = seen.sum(axis=0) / (seen / np.maximum(known, 0.5)).sum(axis=0)
    return stdtrit(np.maximum(total, 1.0), 0.975) / ndtri(0.975)


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
    known, pooled_dof = moments.dof >= 1, float(moments.dof.sum())
    if pooled_dof == 0:
        return moments
    log_var = np.tile(np.log(moments.dof @ moments.var / pooled_dof), (len(known), 1))
    dof = np.full(len(known), pooled_dof)
    if known.sum() > 1:
        half, var = moments.dof[known, None] / 2, moments.var[known]
        logs = np.log(var) - (digamma(half) - np.log(half))
        noise, d = polygamma(1, half), var.shape[1]
        trust = d / (d + _PRIOR_FEATURES)
        differences = logs - logs.mean(axis=0)
        factor = trust * differences.mean(axis=1, keepdims=True)
        squares = ((differences - factor) ** 2).sum() / (differences.size - d)
        excess = max(float(squares - noise.mean()), 0.0)
        spread = (1 - trust) * _PRIOR_SPREAD + trust * excess
        own = spread / (spread + noise)
        common = np.log(ones_for_zeros((2 * half * np.exp(-factor) / pooled_dof).T @ var))
        log_var[known] = own * logs + (1 - own) * (common + factor)
        dof[:] = 2 / max(spread, 1e-12)  # what the prior alone is worth
        dof[known] += 2 / noise[:, 0]
        dof = np.minimum(dof, pooled_dof)
    var = np.exp(log_var)
    precision = (np.maximum(dof - 2, 0.5) / dof)[:, None] / var
    return replace(moments, var=var, precision=precision, dof=dof)
