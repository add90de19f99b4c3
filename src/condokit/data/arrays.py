"""Small arithmetic that several layers share: averages, quantiles, and the two domains."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from condokit.checks import SMALLEST, Array, refusal

# quantiles of the normal distribution: 95% lie within +- the first, and below the second
NORMAL_95, ONE_SIDED_95 = 1.96, 1.645
_FEW_ENTRIES = 1 << 12  # of a matrix of sums, up to which it is dense


@contextmanager
def computing(what: str) -> Iterator[None]:
    """Turn overflow, NaN and unsolvable equations in the `with` block into a clear error."""
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            yield
    except (ArithmeticError, np.linalg.LinAlgError, _not_converged()) as error:
        text = "The {what} could not be computed from these features ({why}). Look for outliers, "
        text += "rescale features, or use {@map='location-scale'} or 'shift'."
        raise refusal(text, what=what, why=str(error).rstrip(".")) from error


def _not_converged() -> type[Exception]:
    """Return the error of a sparse decomposition that did not converge."""
    from scipy.sparse.linalg import ArpackError  # slow to import

    return ArpackError


def sides(is_query: Array) -> tuple[tuple[str, Array], tuple[str, Array]]:
    """Return the name and the mask of rows of both domains."""
    return ("query", is_query), ("reference", ~is_query)


def rms(values: Array) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(values**2)))


def ones_for_zeros(sizes: Array) -> Array:
    """Return variances or units with ones in place of zeros, so that they can be divisors."""
    return np.where(sizes > SMALLEST**2, sizes, 1.0)


def largest_of(values: Array) -> Array:
    """Return the largest absolute value of every column, 1 for zeros: a scale against overflow."""
    size = np.abs(values).max(axis=0, initial=0.0)
    return np.where(size > 0, size, 1.0)


def precisions(variances: Array) -> Array:
    """Return the inverse of variances, infinity for constant features."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(1 / variances)


def is_constant(spread: Any, size: Any, rounding: float = 1e-13) -> Array:
    """Mark features whose spread is no larger than the rounding of values of this size."""
    return np.asarray(spread <= np.maximum(rounding * np.abs(size), SMALLEST))


def independent(D: Array, tolerance: float = 1e-7) -> Array:
    """Mark the columns that are not linear combinations of those before them (Gram-Schmidt)."""
    is_independent = np.zeros(D.shape[1], dtype=bool)
    basis = np.zeros((len(D), 0))
    for j, column in enumerate(D.T):
        residual = column - basis @ (basis.T @ column)
        residual -= basis @ (basis.T @ residual)  # twice, against rounding
        size = np.linalg.norm(residual)
        if size > tolerance * max(float(np.linalg.norm(column)), 1e-300):
            is_independent[j] = True
            basis = np.column_stack([basis, residual / size])
    return is_independent


def equal_columns(X: Array) -> list[Array]:
    """Return the numbers of columns in groups of equal ones."""
    number = np.unique(X, axis=1, return_inverse=True)[1].ravel()
    order = np.argsort(number, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(number[order])) + 1)


def sums_of(group: Array, size: int, weights: Array | None = None) -> Any:
    """Return the matrix whose product with rows is their sums over groups, sparse if it is large.

    Rows are finite; products with a sparse matrix take some ten microseconds however small it is.
    """
    n = len(group)
    if n * size <= _FEW_ENTRIES:
        dense = np.zeros((size, n))
        dense[group, np.arange(n)] = 1.0 if weights is None else weights
        return dense
    from scipy import sparse  # slow to import, and not needed to apply a map

    entries = (np.ones(n) if weights is None else weights, group, np.arange(n + 1))
    return sparse.csc_array(entries, shape=(size, n))


def quantiles(values: Array, shares: Array, weights: Array | None = None) -> Array:
    """Return quantiles of every column, as NumPy does for rows repeated by their weights."""
    if weights is None:
        return np.quantile(values, shares, axis=0)
    last = weights.sum() - 1
    place = np.maximum(last * shares, 0.0)
    low = np.floor(place)
    ends = np.stack([low, np.minimum(low + 1, max(last, 0.0))])
    order = np.argsort(values, axis=0, kind="stable")
    upto = np.cumsum(weights[order], axis=0)
    columns = [
        values[order[np.minimum(np.searchsorted(c, ends, "right"), len(c) - 1), j], j]
        for j, c in enumerate(upto.T)
    ]
    below, above = np.stack(columns, axis=-1)
    return below + (place - low)[:, None] * (above - below)
