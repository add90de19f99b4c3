"""Features given confounders of any kind, by penalised curves."""

import numpy as np

from condokit.checks import Array
from condokit.conditionals.base import VARIANCE_FLOOR, Conditional, Moments
from condokit.conditionals.curves import Basis, CurveRegression, Products, curve_bases, fit_noise
from condokit.data.arrays import is_constant, precisions
from condokit.data.covariates import Covariates

_FEATURE_BATCH = 256
_KNOTS = 12  # of each mean curve; half of them for the variance
_ALTERNATIONS = 10  # of mean and variance


class Splines(Conditional):
    """Penalised curves of the mean and of the log-variance of every feature.

    Additive curves, surfaces of two or three columns, and curves for every category, with
    smoothness by empirical Bayes; see `condokit.conditionals.curves`.

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
        unit = np.where(constant, np.inf, spread)  # what is rounding becomes 0
        bases = curve_bases(covariates, _KNOTS, (X - middle) / unit)
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
        """Alternate mean and variance curves of standardised features."""
        mean = CurveRegression(bases[0], Y.shape[1], 1.0)
        noise = CurveRegression(bases[1], Y.shape[1], 0.3)
        log_var, precision = None, np.full(Y.shape, 1 / 0.3)
        for _ in range(_ALTERNATIONS):
            W = counts[:, None] * precision
            cov = mean.posterior(products.gram(W))
            beta = np.einsum("drs,sd->dr", cov, products.Phi.T @ (W * Y))
            mean.update_prior(beta)
            # squared residuals over one minus the leverage of their row
            square = (Y - products.Phi @ beta.T) ** 2
            square /= np.maximum(1 - products.variances(cov) * precision, 0.05)
            gamma, log_var, bounds = fit_noise(noise, Psi, counts, square, log_var)
            precision = np.exp(-log_var)
        return beta, gamma, bounds
