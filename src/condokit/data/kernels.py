"""Kernels on confounders: RBF times delta, bandwidths, and densities without large matrices."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.signal import fftconvolve

from condokit.checks import Array, check_number
from condokit.data.arrays import quantiles
from condokit.data.covariates import Covariates

Kernel = Callable[[Any, Any], Array]
_MOST_ELEMENTS = 1 << 22  # of a kernel matrix held at a time, 32 MB
_MOST_CENTRES = 5000  # of a density beyond one dimension; relative error about 1 / sqrt of that
_MOST_LEFT_OUT = 2000  # rows whose densities choose a bandwidth
_BINS = 1 << 14
NOTHING = 1e-250  # densities below this are rounding


def silverman(n_rows: float, n_columns: int) -> float:
    """Return Silverman's bandwidth for columns in standard units."""
    return float((4 / ((n_columns + 2) * max(n_rows, 2))) ** (1 / (n_columns + 4)))


def column_widths(covariates: Covariates) -> Array:
    """Return Silverman's bandwidth of every column of one domain."""
    Z, counts = covariates.Z, covariates.counts
    if Z.shape[1] == 0:
        return np.empty(0)
    n = counts.sum()
    spread = np.sqrt(counts @ (Z - counts @ Z / n) ** 2 / n)
    quartiles = quantiles(Z, np.array([0.75, 0.25]), covariates.weights)
    between = (quartiles[0] - quartiles[1]) / 1.349
    spread = np.where(between > 0, np.minimum(spread, between), np.maximum(spread, 1e-12))
    return spread * silverman(n, Z.shape[1])


def rbf_delta(left: Covariates, right: Covariates, width: Array) -> Array:
    """Return exp(-|z - z'|^2 / 2 width^2), zero between different categories."""
    a, b = left.Z / width, right.Z / width
    K = a @ b.T
    K -= 0.5 * (a**2).sum(axis=1)[:, None]
    K -= 0.5 * (b**2).sum(axis=1)
    np.exp(np.clip(K, -600.0, 0.0, out=K), out=K)  # smaller numbers are slow
    if left.n_categories > 1:
        K *= left.category[:, None] == right.category
    return K


def density(at: Covariates, data: Covariates, width: Array, kernel: Kernel | None) -> Array:
    """Return the kernel density of `data` at some points, up to a constant factor."""
    # In one dimension by binning and a fast Fourier transform (error below 1e-4 of the peak);
    # beyond, in blocks, with at most 5000 of the data as centres. Never a large matrix.
    one_column = kernel is None and data.Z.shape[1] == 1 and data.n_categories == 1
    if one_column and len(at.Z) * len(data.Z) > _MOST_ELEMENTS:
        return _binned(at.Z[:, 0], data.Z[:, 0], float(width[0]), data.counts)
    if len(data.Z) > _MOST_CENTRES:
        data = replace(data.take(data.thinned(_MOST_CENTRES)), weights=None)
    counts = data.counts / data.counts.sum()
    out = np.empty(len(at.Z))
    step = max(1, _MOST_ELEMENTS // len(data.Z))
    for start in range(0, len(out), step):
        part = at.take(slice(start, start + step))
        K = rbf_delta(part, data, width) if kernel is None else call(kernel, part, data)
        out[start : start + step] = K @ counts
    return out


def likelihood_factor(data: Covariates, width: Array) -> float:
    r"""Return the factor of all bandwidths that makes the rows likeliest, each left out once.

    The greatest of :math:`\sum_i \log \sum_{j \ne i} K_f(z_i, z_j) - n p \log f` for kernels of
    bandwidths f times `width`, found among powers of the root of two from 1/32 to 4 and a parabola
    through the best three. Of many rows, 2000 with the bandwidths that suit as many: factors of
    Silverman's bandwidth hardly depend on the number of rows. A row that has no neighbours counts
    as if it had a trillionth of one, so that outliers do not decide alone.
    """
    n, p = data.counts.sum(), data.Z.shape[1]
    if p == 0 or n < 3:
        return 1.0
    if len(data.Z) > _MOST_LEFT_OUT:
        data = replace(data.take(data.thinned(_MOST_LEFT_OUT)), weights=None)
        width = width * silverman(_MOST_LEFT_OUT, p) / silverman(n, p)
    counts = data.counts
    twins = np.maximum(counts - 1, 0.0)  # other rows just like this one
    K = rbf_delta(data, data, 4.0 * width)
    np.fill_diagonal(K, 0.0)
    log_factors = np.log(4.0) - 0.5 * np.log(2.0) * np.arange(15)
    value = -p * log_factors
    for k in range(len(value)):
        others = np.log(np.maximum(K @ counts + twins, 1e-12))
        value[k] += counts @ others / counts.sum()
        K *= K  # as wide as before, over the root of two
    best = int(value[1:-1].argmax()) + 1
    left, middle, right = value[best - 1 : best + 2]
    bend = left - 2 * middle + right
    shift = (left - right) / (2 * bend) if bend < 0 else 0.0
    step = log_factors[1] - log_factors[0]
    return float(np.exp(log_factors[best] + step * np.clip(shift, -1.0, 1.0)))


def check_kernel(kernel: Any, bandwidth: Any) -> None:
    """Refuse a kernel that cannot be called, or a bandwidth that is no factor."""
    if kernel is not None and not callable(kernel):
        raise ValueError(f"'kernel' must be a function k(Z1, Z2) -> matrix. Got {kernel!r}.")
    if bandwidth is not None:
        check_number("bandwidth", bandwidth, 1e-6)


def call(kernel: Kernel, left: Covariates, right: Covariates) -> Array:
    """Evaluate a user's kernel on the confounders as the user gave them."""
    K = np.asarray(kernel(left.objects, right.objects), dtype=np.float64)
    shape = (len(left.Z), len(right.Z))
    if K.shape != shape:
        raise ValueError(f"The kernel must return a matrix of shape {shape}. Got {K.shape}.")
    if not np.isfinite(K).all() or (K < 0).any():
        raise ValueError("The kernel must return finite numbers that are not negative.")
    return K


def _binned(at: Array, data: Array, width: float, counts: Array) -> Array:
    low, high = min(at.min(), data.min()), max(at.max(), data.max())
    step = max((high - low) / (_BINS - 1), 1e-300)
    place = (data - low) / step
    left = np.minimum(place.astype(np.int64), _BINS - 2)
    share = (place - left) * counts
    mass = np.bincount(left, counts - share, _BINS) + np.bincount(left + 1, share, _BINS)
    reach = int(min(np.ceil(6 * width / step), _BINS - 1))
    bump = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / width) ** 2)
    smooth = fftconvolve(mass, bump)[reach : reach + _BINS]
    grid = low + step * np.arange(_BINS)
    return np.interp(at, grid, np.maximum(smooth, 0.0)) / counts.sum()
