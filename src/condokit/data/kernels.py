"""Kernels on confounders: RBF times delta, bandwidths, and densities without large matrices."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from condokit.checks import Array, check_number
from condokit.data.arrays import ones_for_zeros, quantiles
from condokit.data.covariates import Covariates

Kernel = Callable[[Any, Any], Array]
_ALIKE = 1e-6  # similarity within this of one counts as equal
NOTHING = 1e-250  # densities below this are rounding


def column_widths(covariates: Covariates) -> Array:
    """Return Silverman's bandwidth of every column of one domain, (n_columns,).

    For n rows of p columns it is :math:`(4 / ((p + 2) n))^{1 / (p + 4)}` times the standard
    deviation or the interquartile range over 1.349, whichever is smaller.
    """
    Z, counts = covariates.Z, covariates.counts
    if Z.shape[1] == 0:
        return np.empty(0)
    n = counts.sum()
    spread = np.sqrt(counts @ (Z - counts @ Z / n) ** 2 / n)
    quartiles = quantiles(Z, np.array([0.75, 0.25]), covariates.weights)
    between = (quartiles[0] - quartiles[1]) / 1.349
    spread = np.where(between > 0, np.minimum(spread, between), np.maximum(spread, 1e-12))
    p = Z.shape[1]
    return spread * (4 / ((p + 2) * max(n, 2))) ** (1 / (p + 4))


def rbf_delta(left: Covariates, right: Covariates, width: Array) -> Array:
    """Return exp(-|z - z'|^2 / 2 width^2), zero between different categories."""
    a, b = left.Z / width, right.Z / width
    K = a @ b.T
    K -= 0.5 * (a**2).sum(axis=1)[:, None]
    K -= 0.5 * (b**2).sum(axis=1)
    np.exp(np.clip(K, -600.0, 0.0, out=K), out=K)  # subnormal numbers are slow
    if left.n_categories > 1:
        K *= left.category[:, None] == right.category
    return K


def density(
    at: Covariates,
    data: Covariates,
    width: Array,
    kernel: Kernel | None,
    *,
    most_centres: int = 5000,
    most_elements: int = 1 << 22,
) -> Array:
    """Return the kernel density of `data` at some points, up to a constant factor.

    Of more than `most_centres` rows, a subset evenly spaced by value serves as centres. The kernel
    matrix is computed in parts of 32 MB.
    """
    if len(data.Z) > most_centres:
        data = replace(data.take(data.thinned(most_centres)), weights=None)
    counts = data.counts / data.counts.sum()
    out = np.empty(len(at.Z))
    step = max(1, most_elements // len(data.Z))
    for start in range(0, len(out), step):
        part = at.take(slice(start, start + step))
        K = rbf_delta(part, data, width) if kernel is None else call(kernel, part, data)
        out[start : start + step] = K @ counts
    return out


def check_kernel(kernel: Any, bandwidth: Any, name: str = "kernel") -> None:
    """Refuse a kernel that cannot be called, or a bandwidth that is no factor."""
    if kernel is not None and not callable(kernel):
        raise ValueError(f"'{name}' must be a function k(Z1, Z2) -> matrix. Got {kernel!r}.")
    if bandwidth is not None:
        check_number("bandwidth", bandwidth, 1e-6)
    if kernel is not None and bandwidth is not None:
        raise ValueError(
            "'bandwidth' belongs to the built-in kernel on numbers. With a 'kernel' of your own, "
            "leave it out and set the width in that kernel."
        )


def call(kernel: Kernel, left: Covariates, right: Covariates) -> Array:
    """Evaluate a user's kernel on the confounders as the user gave them."""
    shape, what = (len(left.Z), len(right.Z)), "The kernel k(Z1, Z2) of the confounders"
    try:
        K = np.asarray(kernel(left.objects, right.objects), dtype=np.float64)
    except Exception as error:  # the user's function may raise anything
        text = f"{what} failed: {type(error).__name__}: {error}. It was called with {shape[0]} and "
        raise ValueError(f"{text}{shape[1]} values, and must return their matrix.") from error
    if K.shape != shape:
        raise ValueError(f"{what} must return a matrix of shape {shape}, not {K.shape}.")
    if not np.isfinite(K).all() or (K < 0).any():
        raise ValueError(f"{what} must return finite numbers that are not negative.")
    return K


def spread_points(
    kernel: Kernel, points: Covariates, weights: Array, everyone: Covariates, most: int
) -> tuple[Array, Array, Array]:
    r"""Choose a few points that are far from each other.

    The first is the point of largest weight; then each time the one least similar to all chosen
    before, by the normalised kernel :math:`k(x, y) / \sqrt{k(x, x) k(y, y)}`, until there are
    `most` or all others are equal to a chosen one. Returns the numbers of the chosen points, and
    the nearest chosen point of every point and of everyone.
    """
    K = call(kernel, points, points)
    size = np.sqrt(ones_for_zeros(np.diag(K)))
    K = K / np.outer(size, size)
    chosen = [int(np.argmax(weights))]
    alike = K[:, chosen[0]]
    while len(chosen) < most and alike.min() < 1 - _ALIKE:
        chosen.append(int(np.argmin(alike)))
        alike = np.maximum(alike, K[:, chosen[-1]])
        alike[chosen[-1]] = np.inf
    nearest = K[:, chosen].argmax(axis=1)
    nearest[chosen] = np.arange(len(chosen))
    there = call(kernel, everyone, points.take(np.array(chosen))) / size[chosen]
    return np.array(chosen), nearest, there.argmax(axis=1)
