"""Pooled conditional likelihood: one curve for reference rows and mapped query rows together."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit._validation import Array, check_number
from condokit.divergences.base import (
    MatrixDivergence,
    RowDivergence,
    Solution,
    decorrelated,
    no_change,
)
from condokit.divergences.matrix import LikelihoodObjective, MatrixSolution, minimise
from condokit.domains import Domains, GaussianPair
from condokit.maps import DiagonalFamily, MatrixFamily
from condokit.smoothing import (
    Basis,
    Covariates,
    Products,
    Regression,
    curve_bases,
    fit_noise,
    squared_residuals,
)
from condokit.statistics import GroupedMoments

_FEATURE_BATCH = 256
_CHUNK_ROWS = 1 << 12
_TOLERANCE = 0.03  # of a standard error; three times that for many features
_MANY_FEATURES = 64
_MOST_PASSES = 4


class PooledLikelihood(RowDivergence, MatrixDivergence):
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
        Knots of each mean curve; half of them for the noise, half more for surfaces.
    max_iter : int, default=50
        Most alternations.
    max_rows : int, default=10000
        Curves are learned on at most this many rows, evenly taken; the map then uses all rows.
    """

    def __init__(self, n_knots: int = 12, max_iter: int = 50, max_rows: int = 10000) -> None:
        self.n_knots = n_knots
        self.max_iter = max_iter
        self.max_rows = max_rows

    def minimize(
        self, family: DiagonalFamily, domains: Domains, covariates: Covariates, used: Array
    ) -> Solution:
        """Find the best diagonal map from rows; `used` are the numbers of the rows compared."""
        check_number("n_knots", self.n_knots, 3)
        check_number("max_iter", self.max_iter, 1)
        check_number("max_rows", self.max_rows, 100)
        rows = Rows.read(domains, covariates, used)
        if not family.has_offset:
            return no_change(rows.query_mean)
        part = rows.thinned(self.max_rows)
        bases = curve_bases(part.covariates, self.n_knots, part.X, part.is_query)
        products = Products(bases[0](part.covariates))
        Psi = bases[1](part.covariates)
        n_features = rows.X.shape[1]
        results: list[tuple[Array, Solution]] = []
        for start in range(0, n_features, _FEATURE_BATCH):
            batch = np.arange(start, min(start + _FEATURE_BATCH, n_features))
            curves = _Curves(bases, part.of(batch), products, Psi, family)
            for place, done in curves.alternate(self.max_iter, in_groups=part is rows):
                features = batch[place]
                if part is not rows:
                    done.use_all(rows, features, bases)
                results.append((features, done.solution()))
        return _joined(results)

    def solve(self, family: MatrixFamily, pair: GaussianPair) -> MatrixSolution:
        """Find the best full matrix, with one Gaussian per support value for both domains.

        The objective is `condokit.divergences.matrix.LikelihoodObjective`.
        """
        return minimise(family, pair, LikelihoodObjective)


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
        stats = GroupedMoments(2, X.shape[1])
        parts = [slice(i, i + _CHUNK_ROWS) for i in range(0, len(X), _CHUNK_ROWS)]
        for part in parts:
            stats.update(X[part], (~is_query[part]).astype(np.int32), weights[part])
        unit = np.sqrt(stats.squares / stats.count[:, None])
        unit = np.where(unit > 0, unit, 1.0)
        for part in parts:
            side = (~is_query[part]).astype(np.int32)
            X[part] -= stats.mean[side]
            X[part] /= unit[side]
        return cls(X, is_query, weights, covariates, stats.mean[0], unit[0], stats.mean[1], unit[1])

    def of(self, features: Array) -> Rows:
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
        self,
        bases: tuple[Basis, Basis],
        rows: Rows,
        products: Products,
        Psi: Array,
        family: DiagonalFamily,
    ) -> None:
        n_features = rows.X.shape[1]
        self.rows, self.products, self.Psi, self.family = rows, products, Psi, family
        self.mean = Regression(bases[0], n_features, 1.0)
        self.noise = Regression(bases[1], n_features, 0.3)
        self.query_pull = Psi.T @ (0.5 * rows.weights * rows.is_query)
        self.tolerance = _TOLERANCE if n_features < _MANY_FEATURES else 3 * _TOLERANCE
        self.n_query = float(rows.weights[rows.is_query].sum())
        self.log_var = np.full(rows.X.shape, np.log(0.3))
        self.m = np.ones(n_features)
        self.b = np.zeros(n_features)

    def alternate(self, max_iter: int, in_groups: bool) -> Iterator[tuple[Array, _Curves]]:
        """Renew map, curves and noise in turn; yield features whose map stands still.

        With `in_groups`, as soon as a good part of them does; otherwise all together.
        """
        place = np.arange(len(self.m))
        for self.n_iter in range(1, max_iter + 1):
            before = self.m, self.b
            self._update_map_and_mean()
            self._update_noise(first=self.n_iter == 1)
            error = self.standard_errors()
            moved = np.abs(np.log(self.m / before[0])) / np.maximum(error[0], 1e-12)
            moved = np.maximum(moved, np.abs(self.b - before[1]) / np.maximum(error[1], 1e-12))
            still = moved < self.tolerance if self.n_iter > 3 else np.zeros(len(moved), dtype=bool)
            if still.all() or self.n_iter == max_iter:
                yield place, self
                return
            if in_groups and still.sum() >= max(8, len(still) // 4):
                yield place[still], self._of(still)
                self.__dict__.update(self._of(~still).__dict__)
                place = place[~still]

    def _of(self, chosen: Array) -> _Curves:
        """Return the fit of some of the features."""
        part = copy(self)
        part.rows = self.rows.of(np.flatnonzero(chosen))
        part.mean, part.noise = self.mean.of(chosen), self.noise.of(chosen)
        for name in ("m", "b", "G", "beta", "gamma"):
            setattr(part, name, getattr(self, name)[chosen])
        for name in ("log_var", "W", "bounds"):
            setattr(part, name, getattr(self, name)[:, chosen])
        return part

    def _update_map_and_mean(self) -> None:
        self.W = np.exp(-self.log_var) * self.rows.weights[:, None]
        self._renew(*_sums(self.rows, self.products, self.W))
        self.mean.update_prior(self.beta)

    def _renew(self, gram: Array, cross: Array, G: Array) -> None:
        """Find the map and the mean curves, given sums over rows."""
        cov = self.mean.posterior(gram)
        self.G = G - np.einsum("drk,drs,dsl->dkl", cross, cov, cross, optimize=True)
        self._solve(self.G)
        theta = np.stack([np.ones_like(self.m), self.m, self.b], axis=1)
        self.beta = np.einsum("drs,dsk,dk->dr", cov, cross, theta, optimize=True)

    def _solve(self, G: Array) -> None:
        G[:, 2, 2] = np.maximum(G[:, 2, 2], 1e-9)  # rounding, where curves pass through all rows
        if self.family.has_scale:
            a = np.maximum(G[:, 1, 1] - G[:, 1, 2] ** 2 / G[:, 2, 2], 1e-9)
            c = G[:, 0, 2] * G[:, 1, 2] / G[:, 2, 2] - G[:, 0, 1]
            root = np.sqrt(c**2 + 4 * a * self.n_query)
            # the same number in two forms, neither of which cancels
            self.m = np.where(c > 0, (c + root) / (2 * a), 2 * self.n_query / (root + np.abs(c)))
        else:
            self.m = self.rows.query_unit / self.rows.reference_unit  # one, in the user's units
        self.b = -(G[:, 0, 2] + self.m * G[:, 1, 2]) / G[:, 2, 2]

    def _update_noise(self, first: bool) -> None:
        """Regress log-variances on squared residuals, freed of what the curve took from them."""
        square = self._squares(self.rows, self.products, self.W)
        start = None if first else self.log_var
        self.gamma, self.log_var, self.bounds = fit_noise(
            self.noise, self.Psi, self.rows.weights, square, start
        )

    def _squares(self, rows: Rows, products: Products, W: Array) -> Array:
        mapped = np.where(rows.is_query[:, None], self.m * rows.X + self.b, rows.X)
        return squared_residuals(mapped, products, self.beta, self.mean.cov, W)

    def standard_errors(self) -> tuple[Array, Array, Array]:
        """Return the errors of log m and of b, and the covariance of m with b.

        The noise curve is shared, so that only a part q of the N_q query rows informs on the scale.
        """
        if not self.family.has_scale:
            return np.zeros_like(self.m), 1 / np.sqrt(self.G[:, 2, 2]), np.zeros_like(self.m)
        shared = 2 * np.einsum("r,drs,s->d", self.query_pull, self.noise.cov, self.query_pull)
        informative = np.maximum(self.n_query - shared, 1.0)
        G = self.G
        info_m = G[:, 1, 1] + (2 * informative - self.n_query) / self.m**2
        info_m = np.maximum(info_m, G[:, 1, 2] ** 2 / G[:, 2, 2] * (1 + 1e-6) + 1e-9)
        determinant = info_m * G[:, 2, 2] - G[:, 1, 2] ** 2
        se_m = np.sqrt(G[:, 2, 2] / determinant)
        return se_m / self.m, np.sqrt(info_m / determinant), -G[:, 1, 2] / determinant

    def use_all(self, rows: Rows, features: Array, bases: tuple[Basis, Basis]) -> None:
        """Renew map, mean and noise from all rows, a chunk at a time."""
        self.n_query = float(rows.weights[rows.is_query].sum())
        n_features = len(self.m)
        sizes = [len(basis.block) for basis in bases]

        def chunks() -> Iterator[tuple[Rows, Products, Array, Array]]:
            for start in range(0, len(rows.X), _CHUNK_ROWS):
                chunk = rows.take(slice(start, start + _CHUNK_ROWS)).of(features)
                Psi = bases[1](chunk.covariates)
                log_var = np.clip(Psi @ self.gamma.T, *self.bounds)
                yield chunk, Products(bases[0](chunk.covariates)), Psi, log_var

        for turn in range(_MOST_PASSES):
            before = self.m
            gram = np.zeros((n_features, sizes[0], sizes[0]))
            cross, G = np.zeros((n_features, sizes[0], 3)), np.zeros((n_features, 3, 3))
            for chunk, products, _, log_var in chunks():
                sums = _sums(chunk, products, np.exp(-log_var) * chunk.weights[:, None])
                gram, cross, G = gram + sums[0], cross + sums[1], G + sums[2]
            self._renew(gram, cross, G)
            error = self.standard_errors()[0]
            moved = np.abs(np.log(self.m / before)) / np.maximum(error, 1e-12)
            if turn and (moved < 3 * _TOLERANCE).all():
                return
            right = np.zeros((sizes[1], n_features))
            noise_gram = np.zeros((sizes[1], sizes[1]))
            self.query_pull = np.zeros(sizes[1])
            for chunk, products, Psi, log_var in chunks():
                weighted = Psi * (0.5 * chunk.weights[:, None])
                W = np.exp(-log_var) * chunk.weights[:, None]
                excess = np.clip(self._squares(chunk, products, W) * np.exp(-log_var) - 1, -1, 20)
                right += weighted.T @ (log_var + excess)
                noise_gram += weighted.T @ Psi
                self.query_pull += weighted.T @ chunk.is_query.astype(float)
            cov = self.noise.posterior(np.broadcast_to(noise_gram, (n_features, *noise_gram.shape)))
            self.gamma = np.einsum("drs,sd->dr", cov, right)

    def solution(self) -> Solution:
        """Return the map in the user's units."""
        se_log, se_b, cov_mb = self.standard_errors()
        rows = self.rows
        at_mean = Solution(
            scale=self.m * rows.reference_unit / rows.query_unit,
            centre=rows.query_mean,
            image=rows.reference_mean + self.b * rows.reference_unit,
            se_log_scale=se_log,
            se_image=se_b * rows.reference_unit,
            n_iter=self.n_iter,
        )
        return decorrelated(at_mean, cov_mb / self.m * rows.reference_unit)


def _joined(results: list[tuple[Array, Solution]]) -> Solution:
    """Put the solutions of groups of features together in the order of the features."""
    order = np.argsort(np.concatenate([features for features, _ in results]))
    parts = [part for _, part in results]
    names = ("scale", "centre", "image", "se_log_scale", "se_image")
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])[order] for name in names
    }
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
