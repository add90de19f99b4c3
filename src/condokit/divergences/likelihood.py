"""Pooled conditional likelihood: one curve for reference rows and mapped query rows together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from condokit._validation import Array
from condokit.divergences.base import RowDivergence, Solution, no_change
from condokit.domains import Domains
from condokit.maps import DiagonalFamily, MapFamily
from condokit.smoothing import Basis, Covariates, Products, Regression, directions

_FEATURE_BATCH = 256
_CHUNK_ROWS = 1 << 14


class PooledLikelihood(RowDivergence):
    r"""Likelihood of one conditional law shared by reference rows and mapped query rows.

    If :math:`m x_q + b` given z has the law of :math:`x_r` given z, both follow one mean and one
    variance curve. Per feature, stack :math:`y = y_0 + m y_1 + b y_2` with
    :math:`y_0 = (0, x_r)`, :math:`y_1 = (x_q, 0)`, :math:`y_2 = (1, 0)` over (query, reference)
    rows, and let :math:`y \sim N(0, C)`, with C from `condokit.smoothing.Regression`: curves with
    empirical-Bayes smoothness plus noise of variance :math:`\exp(\Psi(z) \gamma)`. Then, with
    :math:`G = [y_0\ y_1\ y_2]' C^{-1} [y_0\ y_1\ y_2]`, minus the log-likelihood,
    :math:`y' C^{-1} y / 2 - N_q \log m`, is least at

    .. math::
        m = \frac{c + \sqrt{c^2 + 4 a N_q}}{2 a}, \quad b = -\frac{G_{02} + m G_{12}}{G_{22}}, \quad
        a = G_{11} - \frac{G_{12}^2}{G_{22}}, \quad c = \frac{G_{02} G_{12}}{G_{22}} - G_{01}.

    This alternates with the smoothness and the noise until m and b stand still. No prior over the
    confounders is needed, and any number of them may be given.

    Parameters
    ----------
    n_knots : int, default=12
        Knots of each curve; surfaces have twice as many.
    max_iter : int, default=50
        Most alternations.
    max_rows : int, default=20000
        Curves are learned on at most this many rows, evenly taken; the map then uses all rows.
    """

    def __init__(self, n_knots: int = 12, max_iter: int = 50, max_rows: int = 20000) -> None:
        self.n_knots = n_knots
        self.max_iter = max_iter
        self.max_rows = max_rows

    def minimize(
        self, family: MapFamily, domains: Domains, covariates: Covariates, used: Array
    ) -> Solution:
        """Find the best diagonal map from rows; `used` are the numbers of the rows compared."""
        if not isinstance(family, DiagonalFamily):
            raise ValueError("divergence='likelihood' works with diagonal maps so far.")
        rows = Rows.read(domains, covariates, used)
        if not family.has_offset:
            return no_change(rows.query_mean)
        part = rows.thinned(self.max_rows)
        leading = directions(part.covariates.Z, part.X, part.is_query)
        basis = Basis(part.covariates, self.n_knots, leading)
        products = Products(basis(part.covariates))
        n_features = rows.X.shape[1]
        results = []
        for start in range(0, n_features, _FEATURE_BATCH):
            batch = slice(start, min(start + _FEATURE_BATCH, n_features))
            curves = _Curves(basis, part.of(batch), products, family)
            curves.alternate(self.max_iter)
            results.append(curves.finish(rows.of(batch) if part is not rows else None, basis))
        return _joined(results)


@dataclass(frozen=True)
class Rows:
    """Rows of both domains in units that make each domain's features standard."""

    X: Array
    is_query: Array
    weights: Array
    covariates: Covariates
    query_mean: Array
    query_unit: Array
    reference_mean: Array
    reference_unit: Array

    @classmethod
    def read(cls, domains: Domains, covariates: Covariates, used: Array) -> Rows:
        """Gather the compared rows, refusing NaN and infinity."""
        X = domains.rows(used)
        is_query = domains.is_query[used]
        weights = np.ones(len(used)) if domains.weights is None else domains.weights[used]
        units = []
        for side in (is_query, ~is_query):
            w = weights[side] / weights[side].sum()
            mean = w @ X[side]
            units += [mean, np.sqrt(np.maximum(w @ (X[side] - mean) ** 2, 1e-300))]
        X -= np.where(is_query[:, None], units[0], units[2])
        X /= np.where(is_query[:, None], units[1], units[3])
        return cls(X, is_query, weights, covariates, *units)

    def of(self, features: slice) -> Rows:
        """Return some of the features."""
        units = ("query_mean", "query_unit", "reference_mean", "reference_unit")
        parts = {name: getattr(self, name)[features] for name in units}
        return replace(self, X=self.X[:, features], **parts)

    def take(self, rows: Array | slice) -> Rows:
        """Return some of the rows."""
        return replace(
            self,
            X=self.X[rows],
            is_query=self.is_query[rows],
            weights=self.weights[rows],
            covariates=self.covariates.take(rows),
        )

    def thinned(self, max_rows: int) -> Rows:
        """Return at most so many rows, taken at random from each domain, or all."""
        if len(self.X) <= max_rows:
            return self
        rng = np.random.default_rng(0)
        kept = []
        for side in (self.is_query, ~self.is_query):
            rows = np.flatnonzero(side)
            n = min(len(rows), max(max_rows // 2, max_rows - int((~side).sum())))
            kept.append(np.sort(rng.choice(rows, n, replace=False)))
        return self.take(np.concatenate(kept))


class _Curves:
    """The alternating fit of one batch of features."""

    def __init__(
        self, basis: Basis, rows: Rows, products: Products, family: DiagonalFamily
    ) -> None:
        n_features = rows.X.shape[1]
        self.rows, self.products, self.family = rows, products, family
        self.mean = Regression(basis, n_features, 1.0)
        self.noise = Regression(basis, n_features, 0.3)
        Phi = products.Phi
        weighted = Phi * rows.weights[:, None]
        self._noise_gram = 0.5 * (weighted.T @ Phi)
        self.n_query = float(rows.weights[rows.is_query].sum())
        self.log_var = np.full(rows.X.shape, np.log(0.3))
        # a family without a scale has m fixed in the user's units
        self.fixed_scale = rows.query_unit / rows.reference_unit
        self.m = np.ones(n_features)
        self.b = np.zeros(n_features)

    def alternate(self, max_iter: int) -> None:
        """Renew map, curves and noise in turn until the map stands still."""
        for iteration in range(1, max_iter + 1):
            before = self.m, self.b
            self._update_map_and_mean()
            self._update_noise(first=iteration == 1)
            error = self.standard_errors()
            moved = np.abs(np.log(self.m / before[0])) / np.maximum(error[0], 1e-12)
            moved = np.maximum(moved, np.abs(self.b - before[1]) / np.maximum(error[1], 1e-12))
            self.n_iter = iteration
            if iteration > 3 and (moved < 0.05).all():
                break

    def _update_map_and_mean(self) -> None:
        W = np.exp(-self.log_var) * self.rows.weights[:, None]
        gram, cross, self.G = _sums(self.rows, self.products, W)
        cov = self.mean.posterior(gram)
        self.G -= np.einsum("drk,drs,dsl->dkl", cross, cov, cross, optimize=True)
        self._solve(self.G)
        theta = np.stack([np.ones_like(self.m), self.m, self.b], axis=1)
        self.beta = np.einsum("drs,dsk,dk->dr", cov, cross, theta, optimize=True)
        self.mean.update_prior(self.beta)
        self.W = W

    def _solve(self, G: Array) -> None:
        if self.family.has_scale:
            a = G[:, 1, 1] - G[:, 1, 2] ** 2 / G[:, 2, 2]
            c = G[:, 0, 2] * G[:, 1, 2] / G[:, 2, 2] - G[:, 0, 1]
            self.m = (c + np.sqrt(c**2 + 4 * a * self.n_query)) / (2 * a)
        else:
            self.m = self.fixed_scale
        self.b = -(G[:, 0, 2] + self.m * G[:, 1, 2]) / G[:, 2, 2]

    def _update_noise(self, first: bool) -> None:
        """Regress log-variances on squared residuals, freed of what the curve took from them."""
        rows, Phi = self.rows, self.products.Phi
        mapped = np.where(rows.is_query[:, None], self.m * rows.X + self.b, rows.X)
        residual = mapped - Phi @ self.beta.T
        leverage = self.products.variances(self.mean.cov) * self.W
        square = residual**2 / np.maximum(1 - leverage, 0.05)
        if first:
            self.log_var[:] = np.log(rows.weights @ square / rows.weights.sum())
        gram = np.broadcast_to(self._noise_gram, (len(self.m), *self._noise_gram.shape))
        cov = self.noise.posterior(gram)
        weighted = Phi * (0.5 * rows.weights[:, None])
        for _ in range(2):  # Fisher scoring of a gamma likelihood with log link
            excess = np.clip(square * np.exp(-self.log_var) - 1, -1.0, 20.0)
            self.gamma = np.einsum("drs,sd->dr", cov, weighted.T @ (self.log_var + excess))
            self.log_var = np.clip(Phi @ self.gamma.T, -25.0, 25.0)
        self.noise.update_prior(self.gamma)

    def standard_errors(self) -> tuple[Array, Array, Array]:
        """Return the errors of log m and of b, and the covariance of m with b.

        The noise curve is shared, so that only a part q of the N_q query rows informs on the scale.
        """
        if not self.family.has_scale:
            return np.zeros_like(self.m), 1 / np.sqrt(self.G[:, 2, 2]), np.zeros_like(self.m)
        query = self.products.Phi.T @ (self.rows.weights * self.rows.is_query)
        shared = 0.5 * np.einsum("r,drs,s->d", query, self.noise.cov, query)
        informative = np.maximum(self.n_query - shared, 1.0)
        G = self.G
        info_m = G[:, 1, 1] + (2 * informative - self.n_query) / self.m**2
        info_m = np.maximum(info_m, G[:, 1, 2] ** 2 / G[:, 2, 2] * (1 + 1e-6) + 1e-12)
        determinant = info_m * G[:, 2, 2] - G[:, 1, 2] ** 2
        se_m = np.sqrt(G[:, 2, 2] / determinant)
        return se_m / self.m, np.sqrt(info_m / determinant), -G[:, 1, 2] / determinant

    def finish(self, everything: Rows | None, basis: Basis) -> Solution:
        """Return the map in the user's units, from all rows if curves were learned on some."""
        if everything is not None:
            self.n_query = float(everything.weights[everything.is_query].sum())
            share = everything.weights.sum() / self.rows.weights.sum()
            self.noise.cov = self.noise.cov / share
            n_functions, n_features = len(basis.block), len(self.m)
            gram = np.zeros((n_features, n_functions, n_functions))
            cross, G = np.zeros((n_features, n_functions, 3)), np.zeros((n_features, 3, 3))
            for start in range(0, len(everything.X), _CHUNK_ROWS):
                chunk = everything.take(slice(start, start + _CHUNK_ROWS))
                products = Products(basis(chunk.covariates))
                log_var = np.clip(products.Phi @ self.gamma.T, -25.0, 25.0)
                W = np.exp(-log_var) * chunk.weights[:, None]
                sums = _sums(chunk, products, W)
                gram, cross, G = gram + sums[0], cross + sums[1], G + sums[2]
            cov = self.mean.posterior(gram)
            self.G = G - np.einsum("drk,drs,dsl->dkl", cross, cov, cross, optimize=True)
            self._solve(self.G)
        se_log, se_b, cov_mb = self.standard_errors()
        rows = self.rows
        # the point whose image is learned independently of the scale
        variance_m = np.maximum((se_log * self.m) ** 2, 1e-300)
        at = np.where(se_log > 0, -cov_mb / variance_m, 0.0)
        se_at = np.sqrt(np.maximum(se_b**2 - at**2 * variance_m * (se_log > 0), 1e-300))
        scale = self.m * rows.reference_unit / rows.query_unit
        centre = rows.query_mean + at * rows.query_unit
        image = rows.reference_mean + (self.m * at + self.b) * rows.reference_unit
        return Solution(scale, centre, image, se_log, se_at * rows.reference_unit, self.n_iter)


def _joined(parts: list[Solution]) -> Solution:
    """Put the solutions of feature batches side by side."""
    names = ("scale", "centre", "image", "se_log_scale", "se_image")
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return replace(parts[0], n_iter=max(part.n_iter for part in parts), **arrays)


def _sums(rows: Rows, products: Products, W: Array) -> tuple[Array, Array, Array]:
    """Return Phi' W Phi, Phi' W [y0 y1 y2] and [y0 y1 y2]' W [y0 y1 y2] of every feature."""
    Phi, q = products.Phi, rows.is_query
    WX = W * rows.X
    cross = np.stack([(Phi[~q].T @ WX[~q]).T, (Phi[q].T @ WX[q]).T, (Phi[q].T @ W[q]).T], axis=2)
    G = np.zeros((W.shape[1], 3, 3))
    G[:, 0, 0] = np.einsum("nd,nd->d", WX[~q], rows.X[~q])
    G[:, 1, 1] = np.einsum("nd,nd->d", WX[q], rows.X[q])
    G[:, 1, 2] = G[:, 2, 1] = WX[q].sum(axis=0)
    G[:, 2, 2] = W[q].sum(axis=0)
    return products.gram(W), cross, G
