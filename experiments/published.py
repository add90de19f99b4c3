"""The published methods as they were run, slips included: a check of the published numbers.

The methods that a user should compare with are in `methods.py`.
"""

import json
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from condokit import AffineMap, ProductPrior

JITTER = 1e-8
NUMBERS = json.loads((Path(__file__).parent / "published_numbers.json").read_text(encoding="utf-8"))


def gaussian_ot(X_query, X_reference, diagonal):
    """Match means and standard deviations, or means and covariances by the symmetric map."""
    if diagonal:
        scale = (X_reference.std(axis=0) + JITTER) / (X_query.std(axis=0) + JITTER)
        return AffineMap(scale, X_reference.mean(axis=0) - scale * X_query.mean(axis=0))
    C, D = (np.cov(X, rowvar=False) + JITTER * np.eye(X.shape[1]) for X in (X_query, X_reference))
    root, inverse = _power(C, 0.5), _power(C, -0.5)
    A = inverse @ _power(root @ D @ root, 0.5) @ inverse
    return AffineMap(A, X_reference.mean(axis=0) - A @ X_query.mean(axis=0))


def condo_kl(X_query, X_reference, Z_query, Z_reference, diagonal, max_iter=10):
    """Fit the categorical ConDo KLD of the published numbers.

    Class weights are sqrt(p_query p_reference). The location-scale form is that of the paper's
    appendix, with centring means divided by the number of classes a second time. The
    affine form starts there and stops after ten steps of trust-region Newton-CG.
    """
    w, classes = _classes(X_query, X_reference, Z_query, Z_reference)
    mean_q, mean_r = (np.array([rows.mean(axis=0) for rows in side]) for side in classes)
    var_q, var_r = (np.array([rows.var(axis=0) for rows in side]) + JITTER for side in classes)
    scale, offset = appendix(w, mean_q, var_q, mean_r, var_r)
    if diagonal:
        return AffineMap(scale, offset)
    d = len(offset)
    objective = _affine(w, classes)
    found = minimize(
        objective.value,
        np.append(np.diag(scale).ravel(), offset),
        jac=objective.gradient,
        hessp=objective.hessian_product,
        method="trust-ncg",
        options={"maxiter": max_iter},
    )
    return AffineMap(found.x[: d * d].reshape(d, d), found.x[d * d :])


def appendix(w, mean_q, var_q, mean_r, var_r):
    """Return scales and offsets of the paper's appendix, with the slip in the centring means."""
    a_q, a_r = (w @ mean / len(w) for mean in (mean_q, mean_r))  # the slip: w sums to one already
    P = w @ (var_q + (mean_q - a_q) ** 2)
    Q = w @ ((mean_q - a_q) * (mean_r - a_r))
    scale = (Q + np.sqrt(Q**2 + 4 * P * (w @ var_r))) / (2 * P)
    return scale, a_r - scale * a_q


class AffineKL:
    """Twice the reverse KL divergence of A x + b, less its terms without A and b.

    sum_n w_n [tr(P_n A C_n A') + (A m_n + b - r_n)' P_n (A m_n + b - r_n)] - 2 log |det A|, with
    query means m_n and covariances C_n, reference means r_n and precisions P_n. The published
    values of the objective are `value` + `constant`.
    """

    def __init__(self, w, mean_q, cov_q, mean_r, precision):
        self.w, self.mean_r, self.precision = w, mean_r, precision
        self.mean_q, self.second = mean_q, cov_q + mean_q[:, :, None] * mean_q[:, None, :]
        self.constant = -w @ np.linalg.slogdet(cov_q)[1]
        self.d = mean_q.shape[1]

    def _split(self, x):
        return x[: self.d**2].reshape(self.d, self.d), x[self.d**2 :]

    def _linear(self, A, b, mean_r):
        """Return the gradient of the quadratic part; without `mean_r`, its linear part."""
        G, g = np.zeros((self.d, self.d)), np.zeros(self.d)
        for w, m, S, r, P in zip(self.w, self.mean_q, self.second, mean_r, self.precision):
            G += 2 * w * P @ (A @ S + np.outer(b - r, m))
            g += 2 * w * P @ (A @ m + b - r)
        return G, g

    def value(self, x):
        """Return the objective."""
        A, b = self._split(x)
        _, logdet = np.linalg.slogdet(A)
        total = -2 * logdet
        for w, m, S, r, P in zip(self.w, self.mean_q, self.second, self.mean_r, self.precision):
            error = A @ m + b - r
            spread = S - np.outer(m, m)
            total += w * (np.sum((P @ A @ spread) * A) + error @ P @ error)
        return total

    def gradient(self, x):
        """Return its gradient in A and b."""
        A, b = self._split(x)
        G, g = self._linear(A, b, self.mean_r)
        return np.append((G - 2 * np.linalg.inv(A).T).ravel(), g)

    def hessian_product(self, x, v):
        """Return the derivative of the gradient along v."""
        (A, _), (V, u) = self._split(x), self._split(v)
        inverse = np.linalg.inv(A)
        G, g = self._linear(V, u, np.zeros_like(self.mean_r))
        return np.append((G + 2 * (inverse @ V @ inverse).T).ravel(), g)


def _power(matrix, exponent):
    values, vectors = np.linalg.eigh(matrix)
    return vectors * values**exponent @ vectors.T


def affine_objective(X_query, X_reference, Z_query, Z_reference):
    """Return what the affine ConDo KLD of the published numbers makes small."""
    return _affine(*_classes(X_query, X_reference, Z_query, Z_reference))


def _affine(w, classes):
    mean_q, mean_r = (np.array([rows.mean(axis=0) for rows in side]) for side in classes)
    cov_q, cov_r = (
        np.array([np.cov(rows, rowvar=False) + JITTER * np.eye(mean_q.shape[1]) for rows in side])
        for side in classes
    )
    return AffineKL(w, mean_q, cov_q, mean_r, np.linalg.inv(cov_r))


def _classes(X_query, X_reference, Z_query, Z_reference):
    """Return weights of the classes that both domains have, and the rows of each by domain."""
    levels = np.intersect1d(Z_query, Z_reference)
    classes = [
        [X[k == Z] for k in levels] for X, Z in ((X_query, Z_query), (X_reference, Z_reference))
    ]
    counts = np.array([[len(rows) for rows in side] for side in classes], float)
    w = np.sqrt(np.prod(counts / counts.sum(axis=1, keepdims=True), axis=0))
    return w / w.sum(), classes


class RootPrior(ProductPrior):
    """The weights sqrt(p_query p_reference) of the published numbers, for categories."""

    def weigh(self, share_query, share_reference, share_pooled):
        """Return weights that need not sum to one."""
        return np.sqrt(share_query * share_reference)
