"""Features given confounders of any kind, by local linear kernel regression."""

from dataclasses import replace

import numpy as np

from condokit.checks import Array
from condokit.conditionals.base import VARIANCE_FLOOR, Conditional, Moments
from condokit.data.arrays import precisions
from condokit.data.covariates import Covariates
from condokit.data.kernels import Kernel, call, check_kernel, column_widths, rbf_delta

_MOST_SMOOTHED = 2000  # rows of a domain that a kernel smoother uses
_WIDEST = 2.0  # bandwidth from which the search starts, as a multiple of Silverman's
_NARROWINGS = 8  # largest number of steps, each a division by the root of two
_CAUTION = 1.0  # standard errors by which a narrower bandwidth must be better
_FEW_ROWS = 3  # a category with fewer rows gets the spread of all others
_ENOUGH_ROWS = 20.0  # effective rows; with fewer, variances are pulled to that of all rows
_FAR = 1e-12  # weight of every row at a point far from all rows, so that no sum is 0


class KernelSmoother(Conditional):
    r"""Local linear means, and smoothed squared residuals as variances.

    One matrix of smoothing weights serves all features. The bandwidth starts at twice Silverman's,
    and is divided by :math:`\sqrt 2` as long as the leave-one-out likelihood of all features gains
    more than its standard error. Categories with fewer than three rows get the spread of all
    others. Where fewer than 20 effective rows are near, the variance is pulled to that of all rows.

    Parameters
    ----------
    bandwidth : float or None, default=None
        Multiple of Silverman's bandwidth. None chooses it by leave-one-out likelihood.
    kernel : callable or None, default=None
        A kernel k(Z1, Z2) -> matrix on the confounders as they were given. Means are then local
        averages instead of local lines.

    Examples
    --------
    >>> from condokit import ConDoAdapter, KernelSmoother, datasets
    >>> p = datasets.make_continuous1d(random_state=0)  # the true map is x / 2 - 2.5
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> adapter = ConDoAdapter(divergence="ot", conditional=KernelSmoother()).fit_pair(*data)
    >>> adapter.map_.scale.round(1)
    array([0.5])
    """

    takes_weights = True

    def __init__(self, bandwidth: float | None = None, kernel: Kernel | None = None) -> None:
        self.bandwidth, self.kernel = bandwidth, kernel

    def moments_at(self, X: Array, covariates: Covariates, at: Covariates) -> Moments:  # noqa: D102
        check_kernel(self.kernel, self.bandwidth)
        if len(X) > _MOST_SMOOTHED:
            rows = covariates.thinned(_MOST_SMOOTHED)
            X, covariates = X[rows], replace(covariates.take(rows), weights=None)
        counts, width = covariates.counts, column_widths(covariates)
        share = counts / counts.sum()
        middle = share @ X
        X = X - middle
        fixed = self.bandwidth is not None or self.kernel is not None or len(width) == 0
        width *= (self.bandwidth or 1.0) if fixed else _WIDEST
        K = self._kernel(covariates, covariates, width)
        likelihood, square = self._at_rows(X, covariates, K)
        best = 0
        for k in range(1, 1 if fixed else _NARROWINGS + 1):
            K = K * K  # the square of an RBF kernel is narrower by the root of two
            tried = self._at_rows(X, covariates, K)
            gain = tried[0] - likelihood
            mean = share @ gain
            if mean > _CAUTION * np.sqrt(share @ (gain - mean) ** 2 / counts.sum()):
                best, (likelihood, square) = k, tried
            elif k > best + 1:
                break
        width = width * 0.5 ** (best / 2)
        K = self._kernel(at, covariates, width)
        means, _, total = _local_linear(X, self._lines(covariates), self._lines(at), K, counts)
        square *= counts[:, None]
        rare = np.bincount(covariates.category, counts, covariates.n_categories) < _FEW_ROWS
        if rare.any() and self.kernel is None:  # variances of rare categories: rows of all others
            borrowing = rare[at.category]
            few, every = (
                Covariates(c.Z, 0 * c.category, 1) for c in (at.take(borrowing), covariates)
            )
            K[borrowing] = self._kernel(few, every, width)
            total[borrowing] = (K[borrowing] @ counts + _FAR * counts.sum())[:, None]
        var = (K @ square + _FAR * square.sum(axis=0)) / total
        count = total[:, 0] ** 2 / ((K * K) @ counts + _FAR**2 * counts.sum())
        # a variance from few rows may be nearly 0, and its inverse would dominate the map
        alone = np.minimum(count / _ENOUGH_ROWS, 1.0)[:, None]
        var = alone * var + (1 - alone) * square.sum(axis=0) / counts.sum()
        var = np.maximum(var, VARIANCE_FLOOR * (share @ X**2))
        dof = np.maximum(count - 1, 0.5)
        return Moments(means + middle, var, precisions(var), count, dof)

    def _at_rows(self, X: Array, covariates: Covariates, K: Array) -> tuple[Array, Array]:
        """Return the leave-one-out log-likelihood of every row (n_rows,), and squared residuals."""
        Z, counts = self._lines(covariates), covariates.counts
        mean, tilt, total = _local_linear(X, Z, Z, K, counts)
        own = np.diag(K)[:, None]
        left_out = np.maximum(1 - own * tilt, 0.05)
        square = ((X - mean) / left_out) ** 2
        sums = counts @ square
        pooled = np.maximum(sums / counts.sum(), 1e-300)
        nearby = (K @ (counts[:, None] * square) - own * square + _FAR * sums) / (total - own)
        var = np.maximum(nearby, 1e-3 * pooled)
        likelihood = -0.5 * (np.log(var) + square / var).mean(axis=1)
        # e^2 / (1 - h) is unbiased for the variance; e^2 / (1 - h)^2 is that of predictions
        return likelihood, square * left_out

    def _lines(self, covariates: Covariates) -> Array:
        """Return the columns in which means are locally linear; none if the user gave a kernel."""
        return covariates.Z[:, :0] if self.kernel is not None else covariates.Z

    def _kernel(self, left: Covariates, right: Covariates, width: Array) -> Array:
        """Return the kernel matrix (n_left, n_right), scaled to at most about one."""
        if self.kernel is not None:
            K = call(self.kernel, left, right)
            return K / max(float(K.max()), 1e-300)
        if right.Z.shape[1] == 0:
            return (left.category[:, None] == right.category).astype(float)
        return rbf_delta(left, right, width)


def _local_linear(
    X: Array, Z: Array, at: Array, K: Array, counts: Array
) -> tuple[Array, Array, Array]:
    r"""Return local linear means, the tilt of every point at itself, and sums of the kernel.

    With the kernel-weighted mean and covariance :math:`\bar z_i, S_i` of the confounders Z around
    a point :math:`z_i` of `at`, the mean there is :math:`\sum_j K_{ij} t_i(z_j) x_j`, where
    :math:`t_i(z) = [1 - (z - \bar z_i)' S_i^{-1} (\bar z_i - z_i)] / \sum_j K_{ij}` is the tilt.
    Every row j counts for `counts` rows.
    """
    n, p = Z.shape
    line = np.concatenate([np.ones((n, 1)), Z], axis=1)
    squares = (Z[:, :, None] * Z[:, None, :]).reshape(n, -1)
    products = np.concatenate([line, squares], axis=1) * counts[:, None]
    sums = K @ products
    sums += _FAR * products.sum(axis=0)  # far from all rows, every row counts a little
    total = sums[:, :1]
    coefficients = 1 / total
    if p:
        middle = sums[:, 1 : p + 1] / total
        spread = (sums[:, p + 1 :] / total).reshape(-1, p, p)
        spread -= middle[:, :, None] * middle[:, None, :]
        trace = np.trace(spread, axis1=1, axis2=2) / p
        spread += (1e-3 * trace[:, None, None] + 1e-12) * np.eye(p)
        slope = (middle - at)[:, :, None]
        slope = (slope / spread if p == 1 else np.linalg.solve(spread, slope))[:, :, 0]
        constant = 1 + (slope * middle).sum(axis=1, keepdims=True)
        coefficients = np.concatenate([constant, -slope], axis=1) / total
    X = counts[:, None] * X
    mean = (K * (coefficients @ line.T)) @ X + _FAR * coefficients @ (line.T @ X)
    tilt = coefficients[:, :1] + (coefficients[:, 1:] * at).sum(axis=1, keepdims=True)
    return mean, tilt, total
