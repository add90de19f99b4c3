"""Projection of features off what the confounders explain, and what is left of the likelihood."""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from condokit.checks import Array
from condokit.conditionals.curves import Products

FLOOR = 1e-8  # of a variance, relative to the feature's


@dataclass(frozen=True)
class Reduced:
    """What a feature's likelihood is made of once all else is projected off; (n_features,) each."""

    G: Array  # (3, n_features)
    b: Array  # (2, n_features)
    gqq: Array
    n_eff: Array
    coefficients: tuple[Array, ...]


class StrataProjection:
    """Projection off the levels of a category and the query indicator, by group sums."""

    def __init__(self, category: Array, n_categories: int, n_query: int, weights: Array) -> None:
        n = len(category)
        self.category, self.K, self.n_query, self.weights = category, n_categories, n_query, weights
        self.side = (np.arange(n) >= n_query)[:, None]
        cell = 2 * category + self.side[:, 0]
        self.cells = sparse.csr_matrix(
            (np.ones(n), (cell, np.arange(n))), shape=(2 * n_categories, n)
        )
        seen = np.bincount(category, minlength=n_categories) > 0
        self.rank = int(seen.sum()) + 1
        count = (self.cells @ weights[:, None]).reshape(-1, 2, 1)
        self.leverage = self._leverage(count)[cell]

    def _leverage(self, count: Array) -> Array:
        """Return the leverage of a row in each cell with unit precision, shape (2 K, 1)."""
        total = np.maximum(count.sum(1, keepdims=True), 1e-300)
        other = count[:, ::-1] / total
        gqq = max(float((count.prod(1) / total[:, 0]).sum()), 1e-300)
        return (1 / total + other**2 / gqq).reshape(-1, 1)

    def solve(self, X: Array, W: Array | None) -> Reduced:
        """Return the reduced likelihood; W of shape (n_rows, n_features) or None for `weights`."""
        W = np.broadcast_to(self.weights[:, None], X.shape) if W is None else W
        WX = W * X
        sums = [self.cells @ V for V in (W, WX, WX * X)]
        n, first, second = (s.reshape(self.K, 2, -1) for s in sums)
        mean = first / np.maximum(n, 1e-300)
        return strata_reduced(n, mean, np.maximum(second - first * mean, 0.0), None, self.counts())

    def counts(self) -> Array:
        """Return the number of query rows."""
        return np.asarray(self.weights[: self.n_query].sum())

    def residuals(self, X: Array, red: Reduced, m: Array) -> Array:
        """Return what is left of the mapped features."""
        share, xq, xr = red.coefficients  # (K, d) each: share of the query in the level's weight
        gap = m * (xq + red.b[1]) + red.b[0] - xr  # query mean less reference mean, mapped
        k, nq = self.category, self.n_query
        e = X - np.where(self.side, (xr + share * gap)[k], (xq - (1 - share) * gap / m)[k])
        e[:nq] *= m
        return e

    def directions(self, X: Array, red: Reduced) -> tuple[Array, Array]:
        """Return y1 off all columns, and q off the others over its sum of squares."""
        share, xq, _ = red.coefficients
        k, lift = self.category, xq + red.b[1]
        y1 = -np.where(self.side, (share * lift)[k], (xq - (1 - share) * lift)[k])
        y1[: self.n_query] += X[: self.n_query]
        return y1, np.where(self.side, -share[k], 1 - share[k]) / red.gqq


def strata_reduced(
    n: Array, mean: Array, squares: Array, v: Array | None, n_query: Array
) -> Reduced:
    r"""Return the reduced likelihood from counts, means and squares of (level, side) cells.

    With :math:`g_k = n_{qk} n_{rk} / n_k`, off the level means
    :math:`S_{00} = SS_r + g x_r^2`, :math:`S_{11} = SS_q + g x_q^2`, :math:`S_{01} = -g x_q x_r`,
    :math:`S_{qq} = g`, :math:`S_{0q} = -g x_r`, :math:`S_{1q} = g x_q`, summed over levels with
    1 / v, then off q. Side 0 is the query.
    """
    total = np.maximum(n.sum(1), 1e-300)
    share = n[:, 0] / total
    precision = 1.0 if v is None else 1 / v
    g = n[:, 1] * share * precision
    xq, xr = mean[:, 0], mean[:, 1]
    gqq = np.maximum(g.sum(0), 1e-300)
    q0, q1 = -(g * xr).sum(0), (g * xq).sum(0)
    G00 = (squares[:, 1] * precision + g * xr**2).sum(0) - q0**2 / gqq
    G11 = (squares[:, 0] * precision + g * xq**2).sum(0) - q1**2 / gqq
    G01 = -(g * xq * xr).sum(0) - q0 * q1 / gqq
    taken = share.sum(0) + (g * (1 - share)).sum(0) / gqq
    G = np.stack([np.maximum(G00, 0.0), G01, np.maximum(G11, 0.0)])
    b = np.stack([-q0 / gqq, -q1 / gqq])
    d = xq.shape[1]
    return Reduced(
        G,
        b,
        np.broadcast_to(gqq, (d,)),
        np.broadcast_to(n_query - taken, (d,)),
        (np.broadcast_to(share, xq.shape), xq, xr),
    )


class BasisProjection:
    """Projection off the columns of a design; penalised columns are shrunk, not removed."""

    def __init__(self, U: Array, penalty: Array, last: int, n_query: int, weights: Array) -> None:
        self.U, self.penalty, self.last = U, penalty, last
        self.n_query, self.weights = n_query, weights
        self.free = penalty == 0
        self.rank = int(self.free.sum())
        self.gram = [self._gram(rows) for rows in (slice(0, n_query), slice(n_query, len(U)))]
        self.B = np.linalg.inv(self.gram[0] + self.gram[1] + np.diag(penalty))
        self.n_eff = self._left(self.gram[0], self.B)
        self.leverage = np.einsum("nr,nr->n", U @ self.B, U)[:, None]
        self.products = Products(U[:n_query]), Products(U[n_query:])

    def _gram(self, rows: slice) -> Array:
        return (self.U[rows].T * self.weights[rows]) @ self.U[rows]

    def _left(self, query: Array, B: Array) -> float:
        taken = np.einsum("rs,sr->r", query, B)[self.free].sum()
        return float(self.weights[: self.n_query].sum() - taken)

    def solve(self, X: Array, W: Array | None) -> Reduced:
        """Return the reduced likelihood; W of shape (n_rows, n_features) or None for `weights`."""
        nq, U, last = self.n_query, self.U, self.last
        weighted = X * (self.weights[:, None] if W is None else W)
        S = [U[nq:].T @ weighted[nq:], U[:nq].T @ weighted[:nq]]
        G00 = np.einsum("nd,nd->d", weighted[nq:], X[nq:])
        G11 = np.einsum("nd,nd->d", weighted[:nq], X[:nq])
        if W is None:
            beta = [self.B @ s for s in S]
            gqq = np.full(X.shape[1], 1 / self.B[last, last])
            n_eff = np.full(X.shape[1], self.n_eff)
            column = self.B[:, last, None]
        else:
            B, n_eff = self._inverses(W)
            beta = [np.einsum("drs,sd->rd", B, s) for s in S]
            gqq = 1 / B[:, last, last]
            column = B[:, :, last].T
        G = np.stack([G00, np.zeros_like(G00), G11])
        for i, (a, c) in enumerate(((0, 0), (0, 1), (1, 1))):
            G[i] -= (S[a] * beta[c]).sum(0)
        G[0], G[2] = np.maximum(G[0], 0.0), np.maximum(G[2], 0.0)
        b = np.stack([-beta[0][last], -beta[1][last]])
        return Reduced(G, b, gqq, n_eff, (beta[0], beta[1], column))

    def _inverses(self, W: Array) -> tuple[Array, Array]:
        """Return B and N_eff of every feature with weights of its own."""
        nq, r = self.n_query, self.U.shape[1]
        both = np.stack([p.gram(part) for p, part in zip(self.products, (W[:nq], W[nq:]))])
        B = np.linalg.inv(both.sum(0) + np.diag(self.penalty) + 1e-12 * np.eye(r))
        taken = np.einsum("drs,dsr->dr", both[0], B)[:, self.free].sum(1)
        return B, self.weights[:nq].sum() - taken

    def residuals(self, X: Array, red: Reduced, m: Array) -> Array:
        """Return what is left of the mapped features."""
        beta0, beta1, _ = red.coefficients
        nq = self.n_query
        e = self.U @ -(beta0 + m * beta1)
        e[:nq] += m * X[:nq]
        e[nq:] += X[nq:]
        return e

    def directions(self, X: Array, red: Reduced) -> tuple[Array, Array]:
        """Return y1 off all columns, and q off the others over its sum of squares."""
        _, beta1, last = red.coefficients
        y1 = self.U @ -beta1
        y1[: self.n_query] += X[: self.n_query]
        return y1, self.U @ last


Projection = StrataProjection | BasisProjection


def residual_variance(red: Reduced, m: Array, dof: float) -> Array:
    """Return the variance of residuals in standard units, at least `FLOOR`."""
    return np.maximum((red.G[0] + 2 * m * red.G[1] + m**2 * red.G[2]) / dof, FLOOR)
