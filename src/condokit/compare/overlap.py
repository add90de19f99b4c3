"""Whether there is anything to compare: the overlap of the two domains' confounders."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import betainc, expit, logit, xlogy

from condokit.checks import Array
from condokit.conditionals.curves import Basis, directions
from condokit.data.arrays import ones_for_zeros, sides
from condokit.data.covariates import Covariates
from condokit.data.study import Strata, Study
from condokit.data.subsets import folds

_ROWS_OF_OVERLAP = 2000  # rows from which the propensity is estimated, at most
_FOLDS = 3
_PENALTIES = (10.0, 1.0, 0.1)  # of squared coefficients, tried by held-out likelihood
_MOST_STEPS = 30
_SLOW = 0.2  # share of the last step from which on the curvature is renewed
_STILL = 5e-4  # largest change of a coefficient at the last step
_STEEPEST = 5.0  # largest factor by which calibration multiplies log-odds
_CHANCES = np.sin(np.linspace(0, np.pi / 2, 21)) ** 2  # chances that strata may have
_MOST_ROUNDS = 1000  # iterations of expectation maximisation, at most
_BY_CHANCE = 0.01  # probability that equal domains have so many rows outside each other's range


@dataclass(frozen=True)
class Overlap:
    """How far the confounders of the two domains overlap."""

    coefficient: float  #: From 0, nothing in common, to 1, the same distribution.
    by_confounder: dict[str, float] = field(default_factory=dict)  #: The same for each alone.
    effective_query: float = 0.0  #: Query rows that the common part is worth.
    effective_reference: float = 0.0  #: Reference rows that it is worth.
    #: Share of query rows beyond the reference's range, or in levels it does not have.
    outside: dict[str, float] = field(default_factory=dict)

    def __float__(self) -> float:
        return self.coefficient

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers.

        Returns
        -------
        dict
            Values by field.
        """
        return dict(vars(self))


def measure_overlap(
    domains: Study, strata: Strata, covariates: Covariates, is_query: Array, each: bool = True
) -> Overlap:
    """Measure the overlap of all confounders together, and of each on its own if `each`.

    For categories it is the sum over strata of the smaller of both shares. With continuous columns
    it is the mean over both domains of 2 min(e, 1 - e), where e(z) is the cross-fitted probability
    that a row with these confounders is a query row if the domains have equal weight; but at most
    the share of either domain's rows in the range of the other, column by column.
    """
    counts = np.stack([strata.count_query, strata.count_reference]).astype(float)
    coefficient, unseen = overlap_of_counts(counts, _rows_per_subject(domains, strata.codes))
    by_confounder: dict[str, float] = {}
    outside: dict[str, float] = {}
    for j, name in enumerate(strata.names):
        if len(strata.names) == 1:  # the strata are its levels
            by_confounder[name] = coefficient
            outside[name] = float(counts[0, counts[1] == 0].sum() / counts[0].sum())
            continue
        number = {
            level: k for k, level in enumerate(dict.fromkeys(row[j] for row in strata.levels))
        }
        of_stratum = np.array([number[row[j]] for row in strata.levels])
        levels = np.stack([np.bincount(of_stratum, side) for side in counts])
        per_subject = _rows_per_subject(domains, np.append(of_stratum, -1)[strata.codes])
        by_confounder[name], _ = overlap_of_counts(levels, per_subject)
        outside[name] = float(levels[0, levels[1] == 0].sum() / levels[0].sum())
    effective = _effective_rows(counts)
    ranges = [_ranges(z, covariates, is_query) for _, z in zip(domains.continuous, covariates.Z.T)]
    if not each and any(most == 0 for _, most in ranges):
        return Overlap(0.0)  # no need of more
    if covariates.Z.shape[1]:
        kept = domains.is_query if domains.keep is None else domains.is_query[domains.keep]
        used = np.array([is_query.sum() / kept.sum(), (~is_query).sum() / (~kept).sum()])
        used, every = np.minimum(used + unseen, 1.0), [side.sum() for _, side in sides(is_query)]
        kept = covariates.thinned(_ROWS_OF_OVERLAP, by_weight=False)
        covariates, is_query = covariates.take(kept), is_query[kept]
        coefficient, worth = _from_propensity(covariates, is_query, used)
        effective = [share * n for share, n in zip(worth, every)]
    if domains.products is not None:
        sums = domains.sums_only
        for j, name in enumerate(sums.continuous.basis.names):  # counts by level and bin
            bins = sums.continuous.bins[:, j]
            table = np.zeros((2, len(strata.levels), bins.shape[1]))
            for row in np.flatnonzero(strata.codes >= 0):
                table[int(not domains.is_query[row]), strata.codes[row]] += bins[sums.cell[row]]
            joint, single = table.reshape(2, -1), table.sum(axis=1)
            found, _ = overlap_of_counts(joint[:, joint.any(axis=0)])
            if found < coefficient:
                coefficient, effective = found, _effective_rows(joint)
            by_confounder[name], _ = overlap_of_counts(single[:, single.any(axis=0)])
            outside[name] = float(single[0, single[1] == 0].sum() / single[0].sum())
    is_only_one = covariates.Z.shape[1] == covariates.n_categories == 1
    for confounder, z, (share, most) in zip(domains.continuous, covariates.Z.T, ranges):
        outside[confounder.name], found = share, coefficient
        if each and not is_only_one:
            alone = replace(covariates, Z=z[:, None], category=0 * is_query, n_categories=1)
            found, _ = _from_propensity(alone, is_query, np.ones(2))
        by_confounder[confounder.name] = min(found, most)
        coefficient = min(coefficient, most)
    return Overlap(coefficient, by_confounder, effective[0], effective[1], outside)


def overlap_of_counts(counts: Array, per_subject: Array | float = 1.0) -> tuple[float, float]:
    r"""Return the overlap of strata, corrected for chance, and the share seen in one domain only.

    The overlap is :math:`\sum_k \min(p_k, r_k)` with the true shares p and r of strata; with
    counted shares it is too small, and the expected deficit is added. Of the n rows of a stratum,
    Binomial(n, pi) are query rows, with :math:`\pi = N_q e / (N_q e + N_r (1 - e))` and e the
    probability of a query row if both domains had equal size. The smaller of the two counted shares
    is on average :math:`n [\pi P(B < c) / N_q + (1 - \pi) P(B > c) / N_r]` with B binomial of n - 1
    rows and c = floor(n N_q / N), while
    :math:`\min(p, r) = n \min(e, 1 - e) / (N_q e + N_r (1 - e))`. The difference is averaged over
    the distribution of e in strata (`_known_chances`). Since totals are given, counts vary less, by
    the root of 1 - n / N.

    `counts` has the shape (2, n_strata); `per_subject` rows count as one. The second result is the
    true overlap that is expected in strata where one domain has no rows.
    """
    totals, plain = counts.sum(axis=1), counted_overlap(counts)
    if plain == 0:
        return 0.0, 0.0
    counts, totals = counts / np.reshape(per_subject, (-1, 1)), totals / per_subject
    cells, times = np.unique(counts, axis=1, return_counts=True)
    n, total = cells.sum(axis=0)[:, None], totals.sum()
    rate = totals[0] * _CHANCES + totals[1] * (1 - _CHANCES)
    pi = totals[0] * _CHANCES / rate
    known = _known_chances(cells, pi, times)
    c = np.floor(n * totals[0] / total + 1e-9)
    below, above = _binomial(c - 1, n - 1, pi), 1 - _binomial(c, n - 1, pi)
    counted = n * (pi * below / totals[0] + (1 - pi) * above / totals[1])
    smaller = n * np.minimum(_CHANCES, 1 - _CHANCES) / rate
    deficit = (known * (smaller - counted)).sum(axis=1)
    deficit *= times * np.sqrt(np.maximum(1 - n[:, 0] / total, 0.0))
    unseen = (known * smaller).sum(axis=1)[~cells.all(axis=0)] @ times[~cells.all(axis=0)]
    return min(plain + float(deficit.sum()), 1.0), float(unseen)


def counted_overlap(counts: Array) -> float:
    """Return the sum over cells of the smaller of both shares; `counts` are (2, n_cells)."""
    return float((counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)).min(axis=0).sum())


def _known_chances(cells: Array, pi: Array, times: Array) -> Array:
    """Return the posterior probability of each of `_CHANCES` for every stratum, given all strata.

    Their distribution over strata maximises the likelihood (Kiefer and Wolfowitz 1956), found by
    expectation maximisation. One more stratum at e = 1/2 is added: domains differ on evidence only.
    """
    log_likelihood = xlogy(cells[0][:, None], pi) + xlogy(cells[1][:, None], 1 - pi)
    likelihood = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
    share = np.full(len(pi), 1 / len(pi))
    for _ in range(_MOST_ROUNDS):
        before = share
        share = (times / (likelihood @ share)) @ likelihood * share
        share[len(pi) // 2] += 1
        share = share / share.sum()
        if np.abs(share - before).max() < 1e-6:
            break
    known = likelihood * share
    return known / known.sum(axis=1, keepdims=True)


def _binomial(k: Array, n: Array, pi: Array) -> Array:
    """Return P(B <= k) of a binomial B; n need not be a whole number."""
    inside = betainc(np.maximum(n - k, 1e-9), np.maximum(k + 1, 1e-9), 1 - pi)
    return np.where(k < 0, 0.0, np.where(k >= n, 1.0, inside))


def _rows_per_subject(domains: Study, code: Array) -> Array | float:
    """Return the mean number of rows of a subject in a stratum, by domain, averaged over rows."""
    if domains.groups is None:
        return 1.0
    weights, per_subject = np.ones(len(code)), []
    if domains.weights is not None:
        weights = domains.weights
    for _, side in sides(domains.is_query):
        mine = side & (code >= 0)
        cell = domains.groups[mine] * (int(code.max()) + 1) + code[mine]
        rows = np.bincount(np.unique(cell, return_inverse=True)[1], weights[mine])
        per_subject.append((rows**2).sum() / rows.sum())
    return np.maximum(per_subject, 1.0)


def _effective_rows(counts: Array) -> list[float]:
    """Return each domain's effective sample size for the common part of the strata."""
    totals = counts.sum(axis=1)
    shares = counts / totals[:, None]
    common = shares.min(axis=0)
    squares = (common**2 / ones_for_zeros(shares)).sum(axis=1)
    return (totals * common.sum() ** 2 / np.maximum(squares, 1e-300)).tolist()


def _ranges(z: Array, covariates: Covariates, is_query: Array) -> tuple[float, float]:
    r"""Return the share of query rows outside the reference's range, and a bound of the overlap.

    The overlap is at most the share of either domain's rows in the range of the other. If domains
    are equal, more than :math:`\log(2 p / \alpha) / \log(N / n)` of n rows are outside with
    probability about :math:`\alpha` in one of p columns. So many rows, or rows of so many subjects,
    are ignored.
    """
    outside, most = [], []
    level = np.log(2 * covariates.Z.shape[1] / _BY_CHANCE)
    for _, side in sides(is_query):
        inside = (z[side] >= z[~side].min()) & (z[side] <= z[~side].max())
        allowed = level / np.log(len(z) / len(inside))
        if covariates.groups is not None:
            allowed *= len(inside) / len(np.unique(covariates.groups[side]))
        outside.append(float(1 - inside.mean()))
        most.append(float(inside.sum() / max(len(inside) - allowed, 1.0)))
    return outside[0], min(*most, 1.0)


def _from_propensity(
    covariates: Covariates, is_query: Array, used: Array
) -> tuple[float, list[float]]:
    """Return the overlap coefficient and the effective shares of rows, from the propensity.

    `used` is the share of each domain's rows whose stratum both domains have.
    """
    e = calibrated(propensity(covariates, is_query), covariates, is_query)
    coefficient, effective = 0.0, []
    for k, (side, chance) in enumerate([(is_query, e), (~is_query, 1 - e)]):
        share = covariates.counts[side] / covariates.counts[side].sum()
        both = np.minimum(chance, 1 - chance)[side]
        part = both / chance[side]
        coefficient += float(used[k] * (share @ both))
        worth = (share @ part) ** 2 / max(share @ part**2, 1e-300) * part.max()
        effective.append(float(worth))
    return coefficient, effective


def propensity(covariates: Covariates, is_query: Array) -> Array:
    """Return the cross-fitted probability of being a query row, domains weighted equally.

    The penalty is that with the highest held-out likelihood.
    """
    y = is_query.astype(float)
    weights, fold = _equal_weights(covariates, is_query), _folds(covariates, is_query)
    e = np.empty((len(y), len(_PENALTIES)))
    Phi = Basis(covariates, 8, None)(covariates)
    for k in range(_FOLDS):
        here, rest = fold == k, fold != k
        leading = directions(covariates.take(rest), (y - y.mean())[rest, None])
        if leading is not None:  # they may not know the labels of the rows left out
            Phi = Basis(covariates, 8, leading)(covariates)
        e[here] = expit(Phi[here] @ _logistic(Phi[rest], y[rest], weights[rest]))
    e = np.clip(e, 1e-6, 1 - 1e-6)
    value = weights @ np.where(is_query[:, None], np.log(e), np.log(1 - e))
    return np.asarray(e[:, value.argmax()])


def overlap_weights(covariates: Covariates, is_query: Array) -> Array:
    """Return weights of rows under which both domains have nearly the same confounders.

    They are 1 - e for query rows and e for others, with e the probability of being a query row.
    Both then have the density :math:`f_q f_r / (f_q + f_r)`: exactly for categories, and as nearly
    as logistic regression fits for numbers.
    """
    weights, y = _equal_weights(covariates, is_query), is_query.astype(float)
    if covariates.Z.shape[1] == 0:
        total, own = (np.bincount(covariates.category, w) for w in (weights, weights * y))
        e = (own / np.maximum(total, 1e-300))[covariates.category]
    else:
        kept = covariates.thinned(_ROWS_OF_OVERLAP, by_weight=False)
        some, y, weights = covariates.take(kept), y[kept], weights[kept]
        basis = Basis(some, 8, directions(some, (y - y.mean())[:, None]))
        e = expit(basis(covariates) @ _logistic(basis(some), y, weights, _PENALTIES[:2])[:, -1])
    return covariates.counts * np.where(is_query, 1 - e, e)


def calibrated(e: Array, covariates: Covariates, is_query: Array) -> Array:
    """Return probabilities with log-odds times the factor of highest held-out likelihood.

    Noise that was learned would otherwise pass for a difference; the factor is then about 0.
    """
    margin, weights = logit(e), _equal_weights(covariates, is_query)
    signed = np.where(is_query, margin, -margin)

    def loss(factor: float) -> float:
        """Return minus the weighted log-likelihood if log-odds are multiplied by a factor."""
        return float(weights @ np.logaddexp(0.0, -factor * signed))

    found = minimize_scalar(loss, bounds=(0.0, _STEEPEST), method="bounded")
    return expit(found.x * margin)


def _equal_weights(covariates: Covariates, is_query: Array) -> Array:
    """Return weights of rows that sum to half the rows in each domain."""
    weights = covariates.counts * len(is_query)
    for _, side in sides(is_query):
        weights[side] *= 0.5 / covariates.counts[side].sum()
    return weights


def _folds(covariates: Covariates, is_query: Array) -> Array:
    """Assign rows to folds at random, whatever their order; subjects stay together."""
    rng, groups = np.random.default_rng(0), covariates.groups
    if groups is not None:
        _, subject = np.unique(groups, return_inverse=True)
        mostly = np.bincount(subject, is_query) / np.bincount(subject) > 0.5
        if _FOLDS <= mostly.sum() <= len(mostly) - _FOLDS:
            return folds(mostly, _FOLDS, order=rng.permutation(len(mostly)))[subject]
    order = np.lexsort([is_query, *covariates.Z.T, covariates.category])
    return folds(is_query, _FOLDS, order=order[rng.permutation(len(order))])


def _logistic(
    Phi: Array, y: Array, weights: Array, penalties: tuple[float, ...] = _PENALTIES
) -> Array:
    """Fit ridge logistic regressions, one for every penalty, by Newton's method.

    Returns coefficients, (n_columns, n_penalties). Each penalty starts from the solution of the
    last one. Computing the curvature costs more than a few steps. So the first steps use that at
    p = 1/2, which is nearly right if the domains are alike; it is computed again only where steps
    shrink slowly.
    """
    found, curvature = np.zeros((Phi.shape[1], len(penalties))), None
    beta, p = np.zeros(Phi.shape[1]), np.full(len(y), 0.5)
    for k, penalty in enumerate(penalties):
        ridge, inverse, left = np.full(len(beta), penalty), None, np.inf
        ridge[0] = 1e-8  # the constant
        for _ in range(_MOST_STEPS):
            if curvature is None:
                root = Phi * np.sqrt(weights * np.maximum(p * (1 - p), 1e-6))[:, None]
                curvature, inverse = root.T @ root, None
            if inverse is None:
                inverse = np.linalg.inv(curvature + np.diag(ridge))
            step = inverse @ (Phi.T @ (weights * (y - p)) - ridge * beta)
            beta, before, left = beta + step, left, float(np.abs(step).max())
            p = expit(Phi @ beta)
            if left < _STILL:
                break
            if left > _SLOW * before:
                curvature = None
        found[:, k] = beta
    return found
