"""Features given confounders by penalised curves: a basis, and a regression of all features on it.

Mean and log-variance of a feature are sums of ridge-penalised blocks of basis functions. The prior
variance of each block's coefficients is estimated (empirical Bayes), so blocks that are not needed
shrink to zero. All features share the basis, so that most of the work is a few matrix products.
"""

from functools import cached_property

import numpy as np
from scipy.spatial.distance import cdist

from condokit.checks import Array
from condokit.conditionals.base import VARIANCE_FLOOR, Conditional, Moments
from condokit.data.arrays import is_constant, ones_for_zeros, precisions, quantiles
from condokit.data.covariates import Covariates

_FEATURE_BATCH = 256  # features fitted at a time, for memory
_KNOTS = 12  # of each mean curve; half of them for the variance
_ALTERNATIONS = 10  # of fitting means and variances in turn
_MOST_COLUMNS = 60  # of a block of products of curves and categories
_ADDITIVE = 4  # with up to so many continuous columns, each has a curve
_LEADING = 2  # with more, only this many of the most important columns,
_FEW_PRODUCTS = 1 << 18  # products of functions that are cheaper to keep than to compute again
_LEAST_NOISE = 1e-8  # smallest variance, in standard units, if curves explain a feature exactly
_INDICES = 3  # and this many linear combinations of the columns


class Basis:
    """Basis functions of the confounders in blocks: constant, linear, levels, curves, surfaces.

    Every block is scaled to a mean square of one over rows.
    """

    def __init__(self, covariates: Covariates, n_knots: int, directions: Array | None) -> None:
        axes = _axes(covariates.Z, directions)
        self._curves = [_Radial(covariates, axis, n_knots) for axis in axes]
        counts, blocks = covariates.counts, self._blocks(covariates)
        squares = [counts @ np.einsum("nr,nr->n", v, v) / counts.sum() for v in blocks]
        self._units = 1 / np.maximum(np.sqrt(squares), 1e-12)
        self.n_blocks = len(blocks)
        self.block = np.repeat(np.arange(-1, len(blocks)), [1, *(v.shape[1] for v in blocks)])

    def _blocks(self, covariates: Covariates) -> list[Array]:
        """Return all blocks except the constant, before they are scaled."""
        Z, n_categories = covariates.Z, covariates.n_categories
        E = np.eye(n_categories)[covariates.category] if n_categories > 1 else None
        p = Z.shape[1]
        blocks = [Z] if p else []
        if E is not None:
            blocks.append(E)
            if p and p * n_categories <= _MOST_COLUMNS:
                blocks.append(cross(E, Z))
        for curve in self._curves:
            if p > _ADDITIVE and np.count_nonzero(curve.axes) == 1:  # a column, no combination
                blocks.append(Z @ curve.axes)
            values = curve(Z)
            blocks.append(values)
            if E is not None and curve.n_knots * n_categories <= _MOST_COLUMNS:
                blocks.append(cross(E, values))
        return blocks

    def __call__(self, covariates: Covariates) -> Array:
        """Return the basis at some rows, shape (n_rows, n_functions); the first is constant."""
        blocks = [block * unit for block, unit in zip(self._blocks(covariates), self._units)]
        return np.concatenate([np.ones((len(covariates.Z), 1)), *blocks], axis=1)


class _Radial:
    r"""A low-rank radial curve or surface, :math:`\sum_k c_k |u - \kappa_k|^3`, with knots kappa.

    With K the matrix of cubed distances between knots, the functions are multiplied by the inverse
    root of K, so that a ridge penalty on the coefficients penalises roughness. Their linear part,
    which has its own block, is removed by regression.
    """

    def __init__(self, covariates: Covariates, axes: Array, n_knots: int) -> None:
        self.axes = axes
        self.n_knots = n_knots if axes.shape[1] == 1 else 3 * n_knots // 2
        u = covariates.Z @ axes
        self.knots = _knots(u, self.n_knots, covariates.weights)
        _, size, right = np.linalg.svd(_cubes(self.knots, self.knots))
        size = np.sqrt(np.maximum(size, 1e-10 * size[0]))
        self.turn = (right.T * np.where(size > 0, 1 / ones_for_zeros(size), 0.0)) @ right
        values = _cubes(u, self.knots) @ self.turn
        linear = np.column_stack([np.ones(len(u)), u])
        root = np.sqrt(covariates.counts)[:, None]
        self.linear = np.linalg.lstsq(root * linear, root * values, rcond=None)[0]

    def __call__(self, Z: Array) -> Array:
        u = Z @ self.axes
        values = _cubes(u, self.knots) @ self.turn
        return values - self.linear[0] - u @ self.linear[1:]


def _cubes(one: Array, other: Array) -> Array:
    """Return the third powers of distances between points."""
    away = cdist(one, other)
    return np.asarray(away * away * away)


def _axes(Z: Array, directions: Array | None) -> list[Array]:
    """Return projections (n_columns, 1 or more) of Z that get a curve (one) or a surface (more)."""
    p = Z.shape[1]
    unit = np.eye(p)
    if p <= _ADDITIVE:
        axes = [unit[:, [j]] for j in range(p)]
        return [*axes, unit] if 2 <= p <= 3 else axes
    if directions is None:
        return []
    leading = np.argsort(-(directions**2).sum(axis=1), kind="stable")[:_LEADING]
    indices = directions / np.maximum((Z @ directions).std(axis=0), 1e-12)
    return [axis[:, None] for axis in (*indices.T, *unit[leading])]


def directions(covariates: Covariates, Y: Array) -> Array | None:
    """Return linear combinations of many columns along which features vary most; None for few.

    They are the leading left singular vectors of the coefficients of a ridge regression.
    """
    Z = covariates.Z
    p = Z.shape[1]
    if p <= _ADDITIVE:
        return None
    design = np.column_stack([np.ones(len(Z)), Z])
    penalty = np.diag(np.repeat([0.0, float(p)], [1, p]))
    weighted = (covariates.counts[:, None] * design).T
    coefficients = np.linalg.solve(weighted @ design + penalty, weighted @ Y)[1:]
    left, size, _ = np.linalg.svd(coefficients, full_matrices=False)
    kept = max(1, int((size[:_INDICES] > 0.2 * size[0]).sum()))
    return left[:, :kept] * size[:kept]


class CurveRegression:
    r"""Posterior of the curves of many features given the noise of every row.

    For each feature, :math:`y = \Phi \beta + \varepsilon`, with
    :math:`\varepsilon_i \sim N(0, 1 / W_i)` and :math:`\beta_b \sim N(0, \tau_b^2)` in block b (the
    constant is free). Marginally :math:`y \sim N(0, C)` with
    :math:`C^{-1} = W - W \Phi \Sigma \Phi' W` and :math:`\Sigma = (\Phi' W \Phi + \tau^{-2})^{-1}`.
    The prior variances :math:`\tau_b^2` have the starting value `start`.
    """

    def __init__(self, basis: Basis, n_features: int, start: float) -> None:
        self.block = basis.block
        self.tau2 = np.full((n_features, basis.n_blocks), start)

    def posterior(self, gram: Array) -> Array:
        """Return the posterior covariances of coefficients, given Phi' W Phi of each feature."""
        self.precision = np.full((len(self.tau2), len(self.block)), 1e-8)
        self.precision[:, 1:] = 1 / self.tau2[:, self.block[1:]]
        H, diagonal = gram.copy(), np.arange(len(self.block))
        # collinear functions leave only rounding errors on the diagonal, which must not be inverted
        least = 1e-14 * np.trace(gram, axis1=1, axis2=2)[:, None]
        H[:, diagonal, diagonal] += self.precision + least
        self.cov = np.linalg.inv(H)
        return self.cov

    def update_prior(self, beta: Array) -> None:
        r"""Update the prior variances: :math:`\tau_b^2 = |\beta_b|^2 / \gamma_b`.

        :math:`\gamma_b` is the effective number of coefficients of block b that the data determine
        (MacKay 1992).
        """
        variance = np.einsum("drr->dr", self.cov)
        for b in range(self.tau2.shape[1]):
            mine = self.block == b
            gamma = mine.sum() - (variance[:, mine] * self.precision[:, mine]).sum(axis=1)
            size = (beta[:, mine] ** 2).sum(axis=1)
            self.tau2[:, b] = np.clip(size / np.maximum(gamma, 1e-3), 1e-8, 1e4)


class Products:
    """Weighted products of basis functions, computed in the cheaper of two ways.

    For few features, one matrix product for each; for many, all products of two functions are kept,
    and one matrix product serves all features.
    """

    def __init__(self, Phi: Array) -> None:
        self.Phi = Phi

    @cached_property
    def _pairs(self) -> tuple[Array, Array, Array]:
        """All products of two functions (n_rows, n_pairs), and the numbers of these functions."""
        up, down = np.triu_indices(self.Phi.shape[1])
        pairs = self.Phi[:, up]
        pairs *= self.Phi[:, down]
        return pairs, up, down

    def _one_by_one(self, n_features: int) -> bool:
        """Return whether one product for each feature is cheaper."""
        n, r = self.Phi.shape
        return n_features <= r and (n_features < 4 or n * r**2 > _FEW_PRODUCTS)

    def gram(self, W: Array) -> Array:
        """Return Phi' diag(w) Phi for every column w of W, shape (n_features, r, r)."""
        Phi, r = self.Phi, self.Phi.shape[1]
        if self._one_by_one(W.shape[1]):
            roots = (Phi * root[:, None] for root in np.sqrt(W).T)
            return np.stack([root.T @ root for root in roots])  # BLAS does half of the work then
        pairs, up, down = self._pairs
        out = np.empty((W.shape[1], r, r))
        out[:, up, down] = out[:, down, up] = W.T @ pairs
        return out

    def variances(self, cov: Array) -> Array:
        """Return phi' cov phi for every row and feature, shape (n_rows, n_features)."""
        Phi = self.Phi
        if self._one_by_one(len(cov)):
            return np.stack([np.einsum("nr,nr->n", Phi @ c, Phi) for c in cov], axis=1)
        pairs, up, down = self._pairs
        return pairs @ (cov[:, up, down] * np.where(up == down, 1.0, 2.0)).T


class Splines(Conditional):
    """Penalised curves for the mean and for the log-variance of every feature.

    There are additive curves, surfaces of two or three columns, and curves for every category.
    Their smoothness is chosen by empirical Bayes.

    Examples
    --------
    >>> from condokit import ConDoAdapter, Splines, datasets
    >>> p = datasets.make_continuous1d(random_state=0)  # the true map is x / 2 - 2.5
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> adapter = ConDoAdapter(divergence="ot", conditional=Splines()).fit_pair(*data)
    >>> adapter.map_.scale.round(1)
    array([0.5])
    """

    takes_weights = True

    def moments_at(self, X: Array, covariates: Covariates, at: Covariates) -> Moments:  # noqa: D102
        counts = covariates.counts
        middle = counts @ X / counts.sum()
        spread = np.sqrt(counts @ (X - middle) ** 2 / counts.sum())
        constant = is_constant(spread, middle)
        unit = np.where(constant, np.inf, spread)  # rounding errors of a constant become 0
        leading = directions(covariates, (X - middle) / unit)
        bases = Basis(covariates, _KNOTS, leading), Basis(covariates, _KNOTS // 2, leading)
        products, Psi = Products(bases[0](covariates)), bases[1](covariates)
        means, variances = np.empty((2, len(at.Z), X.shape[1]))
        for start in range(0, X.shape[1], _FEATURE_BATCH):
            batch = slice(start, start + _FEATURE_BATCH)
            Y = (X[:, batch] - middle[batch]) / unit[batch]
            beta, gamma, bounds = self._fit(Y, bases, products, Psi, counts)
            size = np.where(constant, 0.0, spread)[batch]
            means[:, batch] = bases[0](at) @ beta.T * size + middle[batch]
            log_var = np.clip(bases[1](at) @ gamma.T, *bounds)
            variances[:, batch] = np.maximum(np.exp(log_var), VARIANCE_FLOOR) * size**2
        count = np.full(len(at.Z), counts.sum() / len(bases[0].block))
        dof = np.maximum(count - 1, 0.5)
        return Moments(means, variances, precisions(variances), count, dof)

    def _fit(
        self, Y: Array, bases: tuple[Basis, Basis], products: Products, Psi: Array, counts: Array
    ) -> tuple[Array, Array, Array]:
        """Fit mean and log-variance curves of standardised features in turn."""
        mean = CurveRegression(bases[0], Y.shape[1], 1.0)
        noise = CurveRegression(bases[1], Y.shape[1], 0.3)
        log_var, precision = None, np.full(Y.shape, 1 / 0.3)
        for _ in range(_ALTERNATIONS):
            W = counts[:, None] * precision
            cov = mean.posterior(products.gram(W))
            beta = np.einsum("drs,sd->dr", cov, products.Phi.T @ (W * Y))
            mean.update_prior(beta)
            square = (Y - products.Phi @ beta.T) ** 2
            square /= np.maximum(1 - products.variances(cov) * precision, 0.05)
            gamma, log_var, bounds = _fit_noise(noise, Psi, counts, square, log_var)
            precision = np.exp(-log_var)
        return beta, gamma, bounds


def _fit_noise(
    noise: CurveRegression, Psi: Array, weights: Array, square: Array, log_var: Array | None
) -> tuple[Array, Array, Array]:
    r"""Fit log-variances :math:`\Psi \gamma` to squared residuals `square` (leverage-corrected).

    Two steps of Fisher scoring for a gamma likelihood with log link. Returns :math:`\gamma`, the
    log-variances, and the bounds at which they are cut.
    """
    typical = np.log(np.maximum(weights @ square / weights.sum(), _LEAST_NOISE))
    bounds = typical + np.array([[-7.0], [4.0]])  # so that no single row has nearly all weight
    log_var = np.broadcast_to(typical, square.shape) if log_var is None else log_var
    weighted = Psi * (0.5 * weights[:, None])
    gram = weighted.T @ Psi
    cov = noise.posterior(np.broadcast_to(gram, (square.shape[1], *gram.shape)))
    for _ in range(2):
        excess = np.clip(square * np.exp(-log_var) - 1, -1.0, 20.0)
        gamma = np.einsum("drs,sd->dr", cov, weighted.T @ (log_var + excess))
        log_var = np.clip(Psi @ gamma.T, *bounds)
    noise.update_prior(gamma)
    return gamma, log_var, bounds


def cross(E: Array, values: Array) -> Array:
    """Return the products of every column of E with every column of `values`."""
    return (E[:, :, None] * values[:, None, :]).reshape(len(values), -1)


def _knots(u: Array, n_knots: int, weights: Array | None) -> Array:
    """Return knots among the rows: quantiles in one dimension, else farthest-point sampling."""
    if u.shape[1] == 1:
        return np.unique(quantiles(u, (np.arange(n_knots) + 0.5) / n_knots, weights))[:, None]
    chosen = [int(np.argmin((u**2).sum(axis=1)))]
    distance = np.full(len(u), np.inf)
    while len(chosen) < n_knots:
        distance = np.minimum(distance, cdist(u, u[chosen[-1:]])[:, 0])
        chosen.append(int(np.argmax(distance)))
    return u[chosen]
