"""Small arithmetic that several layers share: averages, quantiles, and the two domains."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from scipy.sparse.linalg import ArpackError

from condokit.checks import SMALLEST, Array, refusal


@contextmanager
def computing(what: str) -> Iterator[None]:
    """Word the error of whatever is no number, or has no solution, while this is computed."""
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            yield
    except (ArithmeticError, np.linalg.LinAlgError, ArpackError) as error:
        text = "No {what} could be computed from these features ({why}). Look for values far from "
        text += "all others, rescale features, or use {@map='location-scale'} or 'shift'."
        raise refusal(text, what=what, why=str(error).rstrip(".")) from error


def sides(is_query: Array) -> tuple[tuple[str, Array], tuple[str, Array]]:
    """Return name and rows of either domain."""
    return ("query", is_query), ("reference", ~is_query)


def rms(values: Array) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(values**2)))


def ones_for_zeros(sizes: Array) -> Array:
    """Return variances or units with ones in place of zeros, as divisors of constant features."""
    return np.where(sizes > SMALLEST**2, sizes, 1.0)


def largest_of(values: Array) -> Array:
    """Return the largest size in every column, 1 for zeros, over which no square underflows."""
    size = np.abs(values).max(axis=0, initial=0.0)
    return np.where(size > 0, size, 1.0)


def precisions(variances: Array) -> Array:
    """Return the inverse of variances, infinity where a feature is constant."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(1 / variances)


def is_constant(spread: Any, size: Any, rounding: float = 1e-13) -> Array:
    """Mark features whose spread is nothing but rounding of values of this size."""
    return np.asarray(spread <= np.maximum(rounding * np.abs(size), SMALLEST))


def independent(D: Array, tolerance: float = 1e-7) -> Array:
    """Return which columns are no combination of those before them."""
    kept = np.zeros(D.shape[1], dtype=bool)
    basis = np.zeros((len(D), 0))
    for j, column in enumerate(D.T):
        rest = column - basis @ (basis.T @ column)
        rest -= basis @ (basis.T @ rest)
        size = np.linalg.norm(rest)
        if size > tolerance * max(float(np.linalg.norm(column)), 1e-300):
            kept[j] = True
            basis = np.column_stack([basis, rest / size])
    return kept


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
