"""Pooled conditional likelihood: one curve for reference rows and mapped query rows together."""

from collections.abc import Iterator
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
from scipy import sparse
from scipy.special import stdtrit

from condokit.checks import Array, check_number
from condokit.conditionals.curves import Basis, CurveRegression, Products, curve_bases, fit_noise
from condokit.divergences.base import Divergence, GaussianDivergence
from condokit.maps.families import DiagonalFamily
from condokit.solvers.gaussian_kl import log_det_inverse
from condokit.solvers.lbfgs import Evaluation, infinite
from condokit.solvers.matrices import minimise
from condokit.solvers.solution import Solution, decorrelated, joined, no_change
from condokit.solvers.units import Units
from condokit.summaries.rows import Rows

_FEATURE_BATCH = 256
_TOLERANCE = 0.03  # of a standard error; three times that for many features
_MANY_FEATURES = 64
_MOST_PASSES = 4
_CORRELATION_STEPS = 3  # in which the correlation within subjects is renewed
_FEWEST_DOF = 2.0
Bases = tuple[Basis, Basis]  # of the mean and of the noise


class PooledLikelihood(Divergence):
    r"""Likelihood of one conditional law shared by reference rows and mapped query rows.

    If :math:`m x_q + b` given z has the law of :math:`x_r` given z, both follow one mean and one
    variance curve. Per feature, stack :math:`y = y_0 + m y_1 + b y_2` with
    :math:`y_0 = (0, x_r)`, :math:`y_1 = (x_q, 0)`, :math:`y_2 = (1, 0)` over (query, reference)
    rows, and let :math:`y \sim N(0, C)`, with C from `CurveRegression`: curves with
    empirical-Bayes smoothness plus noise of variance :math:`\exp(\Psi(z) \gamma)`. Then, with
    :math:`G = [y_0\ y_1\ y_2]' C^{-1} [y_0\ y_1\ y_2]`, minus the log-likelihood,
    :math:`y' C^{-1} y / 2 - (N_q - 1) \log m`, is least at

    .. math::
        m = \frac{c + \sqrt{c^2 + 4 a (N_q - 1)}}{2 a}, \quad
        b = -\frac{G_{02} + m G_{12}}{G_{22}}, \quad
        a = G_{11} - \frac{G_{12}^2}{G_{22}}, \quad c = \frac{G_{02} G_{12}}{G_{22}} - G_{01}.

    The one taken from the :math:`N_q` query rows is the offset's, as in restricted likelihood. Rows
    of one subject (`groups`) count for what they are worth given the correlation of their
    residuals. This alternates with the smoothness and the noise until m and b stand still. No prior
    over the confounders is needed, and any number of them may be given. Full matrices have one
    Gaussian per support value for both domains; see `GaussianLikelihood`.

    Parameters
    ----------
    n_knots : int, default=12
        Knots of each mean curve; half of them for the noise, half more for surfaces.
    max_iter : int, default=50
        Most alternations.
    max_rows : int, default=10000
        Curves are learned on at most this many rows, evenly taken; the map then uses all rows.
    """

    forms: ClassVar[dict[str, str]] = {**GaussianDivergence.forms, "diagonal": "rows"}

    def __init__(self, n_knots: int = 12, max_iter: int = 50, max_rows: int = 10000) -> None:
        self.n_knots, self.max_iter, self.max_rows = n_knots, max_iter, max_rows

    def solve(self, family: Any, summary: Any) -> Solution:  # noqa: D102
        if family.form == "matrix":
            return minimise(family, summary, GaussianLikelihood)
        rows: Rows = summary
        for name, least in (("n_knots", 3), ("max_iter", 1), ("max_rows", 100)):
            check_number(name, getattr(self, name), least)
        if not family.has_offset and not family.has_scale:
            return no_change(rows.query_mean)
        part = rows.thinned(self.max_rows)
        bases = curve_bases(part.covariates, self.n_knots, part.X, part.is_query)
        products, Psi = Products(bases[0](part.covariates)), bases[1](part.covariates)
        features = np.arange(rows.X.shape[1])
        results: list[tuple[Array, Solution]] = []
        for start in range(0, len(features), _FEATURE_BATCH):
            batch = features[start : start + _FEATURE_BATCH]
            law = _SharedLaw(bases, part.of(batch), products, Psi, family)
            for place, done in law.alternate(self.max_iter, in_groups=part is rows):
                if part is not rows:
                    done.use_all(rows, batch[place], bases)
                results.append((batch[place], done.solution()))
        return joined(results)

    def matrix_objective(self, units: Units) -> "GaussianLikelihood":  # noqa: D102
        return GaussianLikelihood(units)


class GaussianLikelihood:
    r"""Minus the log-likelihood of one Gaussian per support value for both domains, per query row.

    With :math:`n_k, m_k` query and reference rows, :math:`\delta_k = B \mu_k + c - \nu_k` and

    .. math::
        S_k = \frac{n_k B C_k B' + m_k \Sigma_k + h_k \delta_k \delta_k'}{n_k + m_k},\quad
        h_k = \frac{n_k m_k}{n_k + m_k},

    it is :math:`-N_q \log|\det B| + \sum_k \tfrac{n_k + m_k}{2} \log\det S_k`: the likelihood
    with its means and covariances profiled out.
    """

    def __init__(self, units: Units) -> None:
        self.query, self.reference = query, reference = units.query, units.reference
        self.total = query.count + reference.count
        self.tie = query.count * reference.count / self.total
        self.n_query = float(query.count.sum())
        self._query_part = (query.count / self.total)[:, None, None] * query.cov
        self._reference_part = (reference.count / self.total)[:, None, None] * reference.cov
        # what the units add, so that the value is that of the user's units
        ratio = float(reference.count.sum()) / self.n_query
        self.constant = units.log_dets[0] + ratio * units.log_dets[1]

    def __call__(self, B: Array, c: Array) -> Evaluation:
        """Return the value and the gradients."""
        log_det, inverse = log_det_inverse(B)
        if inverse is None:
            return infinite(B, c)
        delta = self.query.mean @ B.T + c - self.reference.mean
        BC = B @ self._query_part
        S = BC @ B.T + self._reference_part
        S += (self.tie / self.total)[:, None, None] * delta[:, :, None] * delta[:, None, :]
        S_inverse = np.linalg.inv(S)
        value = float(self.total @ np.linalg.slogdet(S)[1]) / 2 - self.n_query * log_det
        pull = self.tie[:, None] * np.einsum("kij,kj->ki", S_inverse, delta)
        gradient = np.tensordot(self.total[:, None, None] * S_inverse, BC, axes=([0, 2], [0, 1]))
        gradient += pull.T @ self.query.mean - self.n_query * inverse.T
        value = value / self.n_query + self.constant
        return value, gradient / self.n_query, pull.sum(axis=0) / self.n_query


class _SharedLaw:
    """The alternating fit of one batch of features."""

    def __init__(
        self, bases: Bases, rows: Rows, products: Products, Psi: Array, family: DiagonalFamily
    ) -> None:
        n_features = rows.X.shape[1]
        self.sample, self.products, self.Psi, self.family = rows, products, Psi, family
        self._discount(1.0)
        self.mean = CurveRegression(bases[0], n_features, 1.0)
        self.noise = CurveRegression(bases[1], n_features, 0.3)
        self.tolerance = _TOLERANCE if n_features < _MANY_FEATURES else 3 * _TOLERANCE
        self.log_var = np.full(rows.X.shape, np.log(0.3))
        self.m, self.b = np.ones(n_features), np.zeros(n_features)

    def _discount(self, correlation: float) -> None:
        """Take rows with the weights that a correlation within subjects leaves them."""
        self.correlation, self.rows = correlation, self.sample.discounted(correlation)
        self.query_pull = self.Psi.T @ (0.5 * self.rows.weights * self.rows.is_query)
        self._count(self.rows)

    def _count(self, rows: Rows) -> None:
        self.n_query = float(rows.weights[rows.is_query].sum())
        self.n_rows = float(rows.weights.sum())

    def alternate(self, max_iter: int, in_groups: bool) -> Iterator[tuple[Array, Self]]:
        """Renew map, curves and noise in turn; yield what stands still, in groups or at once."""
        place = np.arange(len(self.m))
        for self.n_iter in range(1, max_iter + 1):
            before = self.m, self.b
            self._update_map_and_mean()
            self._update_noise(first=self.n_iter == 1)
            if self.sample.groups is not None and self.n_iter <= _CORRELATION_STEPS:
                self._update_correlation()
            error = self.standard_errors()
            moved = np.abs(np.log(self.m / before[0])) / np.maximum(error[0], 1e-12)
            moved = np.maximum(moved, np.abs(self.b - before[1]) / np.maximum(error[1], 1e-12))
            still = (moved < self.tolerance) & (self.n_iter > 3)
            if still.all() or self.n_iter == max_iter:
                yield place, self
                return
            if in_groups and still.sum() >= max(8, len(still) // 4):
                yield place[still], self._of(still)
                self.__dict__.update(self._of(~still).__dict__)
                place = place[~still]

    def _update_map_and_mean(self) -> None:
        W = np.exp(-self.log_var) * self.rows.weights[:, None]
        self._renew(*_sums(self.rows, self.products, W))
        self.mean.update_prior(self.beta)

    def _update_noise(self, first: bool) -> None:
        """Regress log-variances on squared residuals, freed of what the curve took from them."""
        square = self._residuals(self.rows, self.products, self.log_var) ** 2
        log_var = None if first else self.log_var
        self.gamma, self.log_var, self.bounds = fit_noise(
            self.noise, self.Psi, self.rows.weights, square, log_var
        )

    def _of(self, chosen: Array) -> Self:
        """Return the fit of some of the features."""
        part = copy(self)
        for name in ("rows", "sample", "mean", "noise"):
            setattr(part, name, getattr(self, name).of(chosen))
        for name in ("m", "b", "G", "beta", "gamma", "curve_dof"):
            setattr(part, name, getattr(self, name)[chosen])
        for name in ("log_var", "bounds"):
            setattr(part, name, getattr(self, name)[:, chosen])
        return part

    def _renew(self, gram: Array, cross: Array, G: Array) -> None:
        """Find the map and the mean curves, given sums over rows."""
        cov = self.mean.posterior(gram)
        self.curve_dof = np.einsum("drs,dsr->d", cov, gram)
        self.G = G - np.einsum("drk,drs,dsl->dkl", cross, cov, cross, optimize=True)
        # rounding, where curves pass through all rows
        self.G[:, 2, 2] = np.maximum(self.G[:, 2, 2], 1e-9)
        _, G01, G02, G11, G12, G22 = self._sides()
        self.m = self.rows.query_unit / self.rows.reference_unit  # one, in the user's units
        slope, start = self._best_offset()
        if self.family.has_scale:
            n = max(self.n_query - self.family.has_offset, 0.5)  # the offset takes one
            a = np.maximum(G11 + 2 * slope * G12 + slope**2 * G22, 1e-9)
            c = -(G01 + start * G12 + slope * (G02 + start * G22))
            # a m^2 - c m - n = 0 has one positive root; in two forms, neither of which cancels
            root = np.sqrt(c**2 + 4 * a * n)
            self.m = np.where(c > 0, (c + root) / (2 * a), 2 * n / (root + np.abs(c)))
        self.b = self.m * slope + start
        theta = np.stack([np.ones_like(self.m), self.m, self.b], axis=1)
        self.beta = np.einsum("drs,dsk,dk->dr", cov, cross, theta, optimize=True)

    def _sides(self) -> Array:
        """Return G00, G01, G02, G11, G12 and G22 of every feature."""
        rows, columns = np.triu_indices(3)
        return self.G[:, rows, columns].T

    def _best_offset(self) -> tuple[Array, Array]:
        """Return slope and start of the best offset for a scale, b = m slope + start."""
        if not self.family.has_offset:  # zero in the user's units
            rows = self.rows
            return rows.query_mean / rows.query_unit, -rows.reference_mean / rows.reference_unit
        _, _, G02, _, G12, G22 = self._sides()
        return -G12 / G22, -G02 / G22

    def _residuals(self, rows: Rows, products: Products, log_var: Array) -> Array:
        r"""Return residuals over the root of one minus the leverage of their row, map included."""
        q = rows.is_query[:, None]
        mapped = np.where(q, self.m * rows.X + self.b, rows.X)
        leverage = products.variances(self.mean.cov) * np.exp(-log_var)
        leverage += q * (self._map_dof() / self.n_query)
        return (mapped - products.Phi @ self.beta.T) / np.sqrt(np.maximum(1 - leverage, 0.05))

    def _map_dof(self) -> Array:
        if not self.family.has_scale:
            return np.ones_like(self.m)
        _, _, _, G11, G12, G22 = self._sides()
        slope = np.maximum(G11 - G12**2 / G22, 0.0)
        return self.family.has_offset + slope / (slope + self.n_query / self.m**2)

    def _update_correlation(self) -> None:
        """Estimate the correlation of residuals within subjects, and count rows accordingly."""
        weights, groups = self.sample.weights, self.sample.groups
        assert groups is not None
        U = self._residuals(self.sample, self.products, self.log_var) * np.exp(-0.5 * self.log_var)
        WU = weights[:, None] * U
        sums = sparse.csr_array((np.ones(len(U)), (groups, np.arange(len(U))))) @ WU
        squares = np.maximum((WU * U).sum(axis=0), 1e-300)
        pairs = (np.bincount(groups, weights) ** 2).sum() - (weights**2).sum()
        together = (sums**2).sum(axis=0) - (WU**2).sum(axis=0)
        correlation = together / max(pairs, 1e-300) / squares * weights.sum()
        self._discount(float(np.clip(correlation, 0.0, 1.0).mean()))

    def standard_errors(self) -> tuple[Array, Array, Array]:
        """Return the errors of log m and of b, and the covariance of m with b, given the curves."""
        _, _, _, G11, G12, G22 = self._sides()
        none = np.zeros_like(self.m)
        if not self.family.has_scale:
            return none, 1 / np.sqrt(G22), none
        # the noise curve is shared, so that only a part of the query rows informs on the scale
        shared = 2 * np.einsum("r,drs,s->d", self.query_pull, self.noise.cov, self.query_pull)
        informative = np.maximum(self.n_query - shared, 1.0)
        info_m = G11 + (2 * informative - self.n_query) / self.m**2
        slope, has_offset = self._best_offset()[0], self.family.has_offset
        info = info_m + 2 * slope * G12 + slope**2 * G22  # with the best offset
        info = np.maximum(info, 1e-9 + has_offset * 1e-6 * G12**2 / G22)
        se_b = np.sqrt(has_offset / G22 + slope**2 / info)
        return 1 / np.sqrt(info) / self.m, se_b, has_offset * slope / info

    def _widening(self) -> Array:
        r"""Return by how much errors are greater because noise and curves are estimated.

        :math:`t_\nu / 1.96 \cdot \sqrt{1 + 6 / \nu}`, with the 97.5% quantile of Student's t, so
        that estimate +- 1.96 errors is a 95% interval. The log-variance at a row has the error
        :math:`\sqrt{2 / \nu}`, and curves and map take degrees of freedom. Meier (1953) has 4 for a
        mean with estimated weights; 6 was found by simulation (experiments/confounders.py).
        """
        Psi = self.Psi[self.rows.is_query]
        error = np.einsum("rs,drs->d", Psi.T @ Psi / len(Psi), self.noise.cov)
        taken = (self.curve_dof + self._map_dof()) / self.n_rows
        dof = np.maximum(2 / error * np.maximum(1 - taken, 0.0), _FEWEST_DOF)
        return stdtrit(dof, 0.975) / 1.96 * np.sqrt(1 + 6 / dof)

    def use_all(self, rows: Rows, features: Array, bases: Bases) -> None:
        """Renew map, mean and noise from all rows, a block at a time."""
        rows = rows.discounted(self.correlation)
        self._count(rows)

        def curves_at(block: Rows) -> tuple[Rows, Products, Array, Array]:
            Psi = bases[1](block.covariates)
            log_var = np.clip(Psi @ self.gamma.T, *self.bounds)
            return block.of(features), Products(bases[0](block.covariates)), Psi, log_var

        def mean_sums(block: Rows) -> tuple[Array, ...]:
            block, products, _, log_var = curves_at(block)
            return _sums(block, products, np.exp(-log_var) * block.weights[:, None])

        def noise_sums(block: Rows) -> tuple[Array, ...]:
            block, products, Psi, log_var = curves_at(block)
            weighted = Psi * (0.5 * block.weights[:, None])
            square = self._residuals(block, products, log_var) ** 2
            excess = np.clip(square * np.exp(-log_var) - 1, -1, 20)
            pull = weighted.T @ block.is_query.astype(float)
            return weighted.T @ (log_var + excess), weighted.T @ Psi, pull

        for turn in range(_MOST_PASSES):
            before = self.m
            self._renew(*rows.reduce(mean_sums))
            error = self.standard_errors()[0]
            moved = np.abs(np.log(self.m / before)) / np.maximum(error, 1e-12)
            if turn and (moved < 3 * _TOLERANCE).all():
                return
            right, gram, self.query_pull = rows.reduce(noise_sums)
            cov = self.noise.posterior(np.broadcast_to(gram, (len(before), *gram.shape)))
            self.gamma = np.einsum("drs,sd->dr", cov, right)

    def solution(self) -> Solution:
        """Return the map in the user's units."""
        rows, has_offset, widen = self.rows, self.family.has_offset, self._widening()
        se_log, se_b, cov_mb = self.standard_errors()
        image = rows.reference_mean + self.b * rows.reference_unit
        found = Solution(
            scale=self.m * rows.reference_unit / rows.query_unit,
            centre=np.where(has_offset, rows.query_mean, 0.0),
            image=np.where(has_offset, image, 0.0),
            se_log_scale=widen * se_log,
            se_image=np.where(has_offset, widen * se_b * rows.reference_unit, 0.0),
            n_iter=self.n_iter,
        )
        return decorrelated(found, widen**2 * cov_mb / self.m * rows.reference_unit)


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
