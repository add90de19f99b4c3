"""Means and full covariances by stratum: gathered in one pass, and regularised by held-out rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from condokit.checks import Array
from condokit.data.subsets import subsample


@dataclass(frozen=True)
class Gaussians:
    """Conditional means and covariances of one domain at every support value.

    Attributes
    ----------
    mean : ndarray of shape (n_values, n_features)
        Means.
    cov : ndarray of shape (n_values, n_features, n_features)
        Covariances.
    count : ndarray of shape (n_values,)
        Rows behind them.
    """

    mean: Array
    cov: Array
    count: Array

    def of(self, features: Array) -> Gaussians:
        """Return the marginal law of some of the features."""
        cov = self.cov[:, features[:, None], features]
        return Gaussians(self.mean[:, features], cov, self.count)

    def balanced(self, weights: Array) -> tuple[Array, Array]:
        r"""Return the mean M and the covariance of the mixture with these weights.

        :math:`\sum_n w_n [\Sigma_n + (\mu_n - M)(\mu_n - M)']`.
        """
        mean = weights @ self.mean
        between = self.mean - mean
        within = np.tensordot(weights, self.cov, axes=1)
        return mean, within + (between.T * weights) @ between


Skewness = Callable[[Array, Array], tuple[Array, Array]]


@dataclass(frozen=True)
class GaussianPair:
    """Both domains as Gaussians at the support values, with the weights of these.

    Attributes
    ----------
    query, reference : Gaussians
        The domains.
    weights : ndarray of shape (n_values,)
        Prior weights; they sum to one.
    skewness : callable or None
        From axes of the query and of the reference to the skewness along them.
    """

    query: Gaussians
    reference: Gaussians
    weights: Array
    skewness: Skewness | None = None

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.query.mean.shape[1]

    def of(self, features: Array) -> GaussianPair:
        """Return the marginal laws of some of the features."""
        return GaussianPair(self.query.of(features), self.reference.of(features), self.weights)

    def swapped(self) -> GaussianPair:
        """Return the pair with query and reference exchanged."""
        skewness = self.skewness
        back: Skewness | None = None
        if skewness is not None:
            back = lambda left, right: skewness(right, left)[::-1]  # noqa: E731
        return GaussianPair(self.reference, self.query, self.weights, back)


_POOLED: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
_DIAGONAL: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
_MANY_FEATURES = 200  # beyond, fewer candidates are tried
_MOST_STRATA = 50  # on which the choice among them is made
_OUTER_NUMBERS = 4_000_000  # in outer products at a time


@dataclass(frozen=True)
class Shares:
    """How a covariance is regularised: the share of the pooled one, then of the diagonal."""

    pooled: float = 0.0
    diagonal: float = 0.0


class GroupedScatter:
    r"""Count, mean and scatter matrix of every group, mergeable in any order.

    The scatter is :math:`\sum_i (x_i - \mu)(x_i - \mu)'`; two parts a, b combine as in
    `condokit.statistics.GroupedMoments`, with :math:`\delta \delta' n_a n_b / n`.

    Parameters
    ----------
    n_groups, n_features : int
        Shape of the tables.
    """

    def __init__(self, n_groups: int, n_features: int) -> None:
        self.count = np.zeros(n_groups)
        self.mean = np.zeros((n_groups, n_features))
        self.scatter = np.zeros((n_groups, n_features, n_features))

    def update(self, X: Array, groups: Array, weights: Array | None = None) -> None:
        """Add rows; `groups` holds the group number of each, negative numbers are left out."""
        keep = groups >= 0 if weights is None else (groups >= 0) & (weights > 0)
        order = np.flatnonzero(keep)
        if len(order) == 0:
            return
        order = order[np.argsort(groups[order], kind="stable")]
        groups = groups[order]
        w = np.ones(len(order)) if weights is None else weights[order]
        first = np.flatnonzero(np.diff(groups, prepend=-1))
        present, sizes = groups[first], np.diff(first, append=len(groups))
        # sums of differences to the first row of a group: exact for constants
        rows = X[order]
        middle = rows[first]
        rows = rows - np.repeat(middle, sizes, axis=0)
        count = np.add.reduceat(w, first)
        shift = np.add.reduceat(w[:, None] * rows, first) / count[:, None]
        rows -= np.repeat(shift, sizes, axis=0)
        scatter = _scatters(rows, w, first)
        self._add(present, count, middle + shift, scatter)

    def _add(self, g: Array, count: Array, mean: Array, scatter: Array) -> None:
        total = self.count[g] + count
        delta = mean - self.mean[g]
        tie = (self.count[g] * count / total)[:, None, None]
        self.scatter[g] += scatter + tie * delta[:, :, None] * delta[:, None, :]
        self.mean[g] += delta * (count / total)[:, None]
        self.count[g] = total

    def without(self, fold: int, n_folds: int) -> GroupedScatter:
        """Return the groups (fold, stratum) merged over all folds but one; -1 leaves none out."""
        n_strata = len(self.count) // n_folds
        rest = GroupedScatter(n_strata, self.mean.shape[1])
        for f in range(n_folds):
            if f != fold:
                part = self.fold(f, n_folds)
                seen = np.flatnonzero(part.count)
                rest._add(seen, part.count[seen], part.mean[seen], part.scatter[seen])
        return rest

    def fold(self, fold: int, n_folds: int) -> GroupedScatter:
        """Return the strata of one fold."""
        n_strata = len(self.count) // n_folds
        part = GroupedScatter(n_strata, self.mean.shape[1])
        here = slice(fold * n_strata, (fold + 1) * n_strata)
        part.count, part.mean, part.scatter = self.count[here], self.mean[here], self.scatter[here]
        return part

    def gaussians(self) -> Gaussians:
        """Return means and covariances; a stratum with one row borrows the pooled covariance."""
        dof = self.count - 1
        lone = dof < 0.5
        pooled = self.scatter[~lone].sum(axis=0) / max(float(dof[~lone].sum()), 1e-300)
        cov = self.scatter / np.where(lone, 1.0, dof)[:, None, None]
        cov[lone] = pooled
        return Gaussians(self.mean, cov, self.count)


def _scatters(rows: Array, weights: Array, first: Array) -> Array:
    """Return the scatter matrices of groups of sorted rows that begin at `first`."""
    d = rows.shape[1]
    result = np.empty((len(first), d, d))
    if len(first) * d < len(rows):  # large groups: one product each
        for k, (start, stop) in enumerate(zip(first, [*first[1:], len(rows)])):
            part = rows[start:stop]
            result[k] = (part.T * weights[start:stop]) @ part
        return result
    # many small groups: sums of outer products, some groups at a time
    ends = np.append(first, len(rows))
    step = max(1, _OUTER_NUMBERS // (d * d * max(1, len(rows) // len(first))))
    for k in range(0, len(first), step):
        here = slice(ends[k], ends[min(k + step, len(first))])
        outer = (weights[here, None] * rows[here])[:, :, None] * rows[here, None, :]
        result[k : k + step] = np.add.reduceat(outer, first[k : k + step] - first[k])
    return result


def regularise(
    gaussians: Gaussians, shares: Shares, strata: Array | slice = slice(None)
) -> Gaussians:
    r"""Pull covariances to what strata have in common, and to their diagonal.

    :math:`(1 - \beta) S_k + \beta \operatorname{diag} S_k` with
    :math:`S_k = (1 - \alpha) \Sigma_k + \alpha \bar\Sigma`, the pooled within-stratum covariance;
    of all strata or some.
    """
    dof = np.maximum(gaussians.count - 1, 0.0)
    dof = dof / dof.sum() if dof.sum() > 0 else np.full(len(dof), 1 / len(dof))
    pooled = np.tensordot(dof, gaussians.cov, axes=1)
    cov = (1 - shares.pooled) * gaussians.cov[strata] + shares.pooled * pooled
    diagonal = np.arange(cov.shape[1])
    variances = cov[:, diagonal, diagonal]
    cov = (1 - shares.diagonal) * cov
    cov[:, diagonal, diagonal] = variances
    return Gaussians(gaussians.mean[strata], cov, gaussians.count[strata])


def choose_shares(scatter: GroupedScatter, n_folds: int) -> Shares:
    """Choose the shares by the Gaussian likelihood of held-out folds."""
    varies = np.flatnonzero(np.einsum("kii->ki", scatter.scatter).sum(axis=0) > 0)
    if len(varies) < scatter.mean.shape[1]:
        part = GroupedScatter(len(scatter.count), 0)
        part.count, part.mean = scatter.count, scatter.mean[:, varies]
        part.scatter = scatter.scatter[:, varies[:, None], varies]
        scatter = part
    n_features = scatter.mean.shape[1]
    pooled, diagonal, folds = _POOLED, _DIAGONAL, range(n_folds)
    if n_features > _MANY_FEATURES:
        pooled, diagonal, folds = (0.0, 0.5, 1.0), (0.01, 0.1, 0.3), range(1)
    loss = np.zeros((len(pooled), len(diagonal)))
    for fold in folds:
        known, asked = scatter.without(fold, n_folds), scatter.fold(fold, n_folds)
        model = known.gaussians()
        seen = np.flatnonzero((known.count > 0) & (asked.count > 0))
        seen = seen[subsample(len(seen), _MOST_STRATA)]
        from_mean = asked.mean - known.mean
        count = asked.count[:, None, None]
        about = asked.scatter + count * from_mean[:, :, None] * from_mean[:, None, :]
        for i, alpha in enumerate(pooled):
            for j, beta in enumerate(diagonal):
                cov = regularise(model, Shares(alpha, beta), seen).cov
                sign, log_det = np.linalg.slogdet(cov)
                if (sign <= 0).any():
                    loss[i, j] = np.inf
                    continue
                inside = np.einsum("kij,kij->", np.linalg.inv(cov), about[seen])
                loss[i, j] += asked.count[seen] @ log_det + inside
    best = np.unravel_index(np.argmin(loss), loss.shape)
    return Shares(pooled[best[0]], diagonal[best[1]])
