r"""Whether the true map mixes features: evidence for off-diagonal entries beyond a map at hand.

The true map is :math:`(1 + E) h` up to a shift, where features are in units of their spread within
blocks of equal confounders. Rows that h maps tell E by two kinds of figures. Let
:math:`\Sigma = L L'` be the covariance within blocks, and :math:`F = L^{-1} E L`. To first order,
and in units of L,

- covariances differ by :math:`S_r - S_q = F + F'`, with errors whose variances come from products
  of rows (tails may be heavy);
- means of block k differ by :math:`m_k = c + F u_k`, with errors of variance
  :math:`1/n_{q,k} + 1/n_{r,k}`.

A priori E is 0, or its entries are normal with one of a few standard deviations. These fall with
the root of the number of features, so that what all others together add to a feature does not grow
with their number. Marginal likelihoods say how probable these hypotheses are.
"""

from dataclasses import dataclass

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros
from condokit.trust.blocks import ComparableRows

_SPREADS = np.array([0.05, 0.1, 0.2, 0.4, 0.8])  # of entries of E for two features,
_WEIGHTS = np.array([0.2, 0.25, 0.25, 0.2, 0.1])  # and their prior probabilities
_FEWEST = 3  # rows of each domain in a block, and rows per feature in all


@dataclass(frozen=True)
class Mixing:
    """The law of E if it is not 0, for one spread of its entries."""

    log_odds: float  # of this hypothesis against E = 0, before any prior probabilities
    spread: float  # of entries of E, a priori
    mean: Array  # (n_features, n_features), in the features' units
    cov: Array  # (n_features, n_features, n_features): of the entries of each row of E

    def variance(self, q: Array) -> Array:
        """Return the variance of entry i of E q_i for every feature i; q has rows q_i."""
        return np.maximum(np.einsum("ij,ijk,ik->i", q, self.cov, q, optimize=True), 0.0)

    def mean_variance(self, y: Array) -> Array:
        """Return the variance of E y for every feature, averaged over rows y."""
        return np.maximum(np.einsum("ijk,jk->i", self.cov, y.T @ y / len(y)), 0.0)


def mixing(rows: ComparableRows, Y: Array, is_rigid: bool = False) -> tuple[float, list[Mixing]]:
    """Return how badly E = 0 fits, as chi-squared, and the hypotheses that it is not 0.

    `Y` are all rows, with the query's mapped by h. With `is_rigid`, E is a small rotation. There
    are no hypotheses if rows are too few.
    """
    d, query, each = Y.shape[1], rows.is_query, rows.rows_per_subject
    R = rows.residuals(Y)
    unit = ones_for_zeros(R[~query].std(axis=0))
    blocks = [[R[b[own]] / unit for own in (query[b], ~query[b])] for b in rows.shared_blocks()]
    blocks = [pair for pair in blocks if min(map(len, pair)) >= _FEWEST]
    n = np.array([[len(x) for x in pair] for pair in blocks]).reshape(-1, 2)
    dof = (n - 1).sum(axis=0)
    if d < 2 or dof.sum() < _FEWEST * d or dof.min() < d:
        return 0.0, []
    h = n.prod(axis=1) / n.sum(axis=1)
    mean = np.array([[x.mean(axis=0) for x in pair] for pair in blocks])
    away = [[x - m for x, m in zip(*parts)] for parts in zip(blocks, mean)]
    w = (h / h.sum())[:, None] / (n - 1)  # weights of rows in covariances
    S = [sum(w[k, side] * x[side].T @ x[side] for k, x in enumerate(away)) for side in (0, 1)]
    middle, ridge = (S[0] + S[1]) / 2, d / (d + dof.sum())
    L = np.linalg.cholesky(middle + ridge * np.diag(np.diag(middle)) + 1e-9 * np.eye(d))
    inverse = np.linalg.inv(L)
    # residuals given numbers have the same mean in all blocks
    u = 0 * mean[:, 0] if rows.covariates is not None else mean.mean(axis=1)
    u, gap = ((x - h @ x / h.sum()) @ inverse.T for x in (u, mean[:, 1] - mean[:, 0]))
    s, v = inverse @ (S[1] - S[0]) @ inverse.T, np.zeros((d, d))
    for k, pair in enumerate(away):
        for side, x in enumerate(pair):
            x = x @ inverse.T
            v += each * w[k, side] ** 2 * ((x**2).T @ x**2 - (x.T @ x) ** 2 / len(x))
    # of few rows, products of single rows vary too little by chance: at least as of normal ones
    least = each * (w**2 * (n - 1)).sum() * (1 + np.eye(d))
    r = np.tril(1 / np.maximum(v, least))  # precision of every sum, counted once
    pairs = np.arange(d * d).reshape(d, d)
    P = np.kron(np.eye(d), (u.T * (h / each)) @ u)  # precision of F, and below its product with F
    for one in (pairs, pairs.T):
        for two in (pairs, pairs.T):
            np.add.at(P, (one, two), r)
    b = (gap.T * (h / each)) @ u + r * s + (r * s).T
    chi_squared = float((r * s**2).sum() + (h / each) @ (gap**2).sum(axis=1))
    free, back = np.eye(d * d), unit[:, None] / unit
    if is_rigid:
        turns = (free[pairs] - free[pairs.T])[np.triu_indices(d, 1)]
        free = (turns / back.ravel()).T
        free /= np.sqrt((free**2).sum(axis=0) / 2)
    J = np.kron(inverse, L.T) @ free
    level, axes = np.linalg.eigh(J.T @ P @ J)
    level, along = np.maximum(level, 0.0), axes.T @ (J.T @ b.ravel())
    axes, out = free @ axes, []
    for spread in _SPREADS * np.sqrt(2 / d):
        var = 1 / (level + 1 / spread**2)
        odds = 0.5 * (along**2 @ var - np.log1p(level * spread**2).sum())
        rowwise = (axes * np.sqrt(var)).reshape(d, d, len(var))
        cov = rowwise @ rowwise.transpose(0, 2, 1) * back[:, :, None] * back[:, None, :]
        out.append(
            Mixing(float(odds), float(spread), (axes @ (var * along)).reshape(d, d) * back, cov)
        )
    return chi_squared, out


def probabilities(log_odds: Array, prior: float) -> Array:
    """Return probabilities of E = 0 and of each spread, given the prior of any mixing at all."""
    odds = np.log(np.append(1 - prior, prior * _WEIGHTS)) + np.append(0.0, log_odds)
    odds = np.exp(odds - odds.max())
    return odds / odds.sum()
