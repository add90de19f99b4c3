"""Rows of both domains, the query's first, in standard units."""

import numpy as np
import pytest
from reading import from_pair

from condokit.compare.comparison import compare
from condokit.summaries.rows import Rows


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X_query, X_reference = rng.normal(5, 3, (40, 3)), rng.normal(-1, 0.1, (60, 3))
    weights = rng.integers(1, 4, 40).astype(float), rng.integers(1, 4, 60).astype(float)
    return X_query, X_reference, weights


def read(X_query, X_reference, weights, swapped=False):
    Z = np.repeat(["a", "b"], 20), np.repeat(["a", "b"], 30)
    domains = from_pair(X_query, X_reference, *Z, None, weights, None, "raise")
    if swapped:  # as in a table where the reference comes first
        domains = domains.divided(~domains.is_query)
    return Rows.read(domains, compare(domains, by_rows=True), True)


@pytest.mark.parametrize("swapped", [False, True])
def test_rows_are_read_in_standard_units(data, swapped):
    X_query, X_reference, weights = data
    rows = read(*data, swapped)
    sides = [(X_query, weights[0]), (X_reference, weights[1])]
    values = rows.values()
    first = 0
    for k, (X, w) in enumerate(sides[::-1] if swapped else sides):
        mean = np.average(X, axis=0, weights=w)
        np.testing.assert_allclose(rows.mean[k], mean)
        unit = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=w))
        np.testing.assert_allclose(rows.unit[k], unit)
        np.testing.assert_allclose(values[first : first + len(X)] * unit + mean, X)
        np.testing.assert_array_equal(rows.weights[first : first + len(X)], w)
        first += len(X)
    assert rows.n_query == (60 if swapped else 40)
    assert not rows.flat.any()


@pytest.mark.parametrize("swapped", [False, True])
def test_some_features_and_some_rows_are_those_of_all(data, swapped):
    rows = read(*data, swapped)
    features, some = np.array([2, 0]), np.array([3, 30, 70, 99])
    values = rows.values()
    np.testing.assert_array_equal(rows.values(features), values[:, features])
    np.testing.assert_array_equal(rows.values(rows=some), values[some])
    np.testing.assert_array_equal(rows.values(features, some), values[np.ix_(some, features)])


def test_strata_have_the_powers_of_their_rows(data):
    X_query, X_reference, weights = data
    rows = read(*data)
    for k, (X, w) in enumerate(
        [(X_query[20:], weights[0][20:]), (X_reference[:30], weights[1][:30])]
    ):
        cell = (1, 2)[k]  # b of the query, a of the reference
        mean = np.average(X, axis=0, weights=w)
        np.testing.assert_allclose(rows.strata.mean[cell], mean)
        for power, name in ((2, "squares"), (3, "third"), (4, "fourth")):
            expected = w @ (X - mean) ** power
            np.testing.assert_allclose(getattr(rows.strata, name)[cell], expected, rtol=1e-8)
