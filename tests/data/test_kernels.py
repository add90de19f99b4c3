"""Kernel densities of confounders."""

import numpy as np
import pytest
from problems import points

from condokit.data.covariates import Covariates
from condokit.data.kernels import column_widths, density, rbf_delta


def test_rbf_times_delta_agrees_with_a_loop():
    rng = np.random.default_rng(0)
    left = points(rng.normal(size=(5, 2)), np.array([0, 1, 0, 1, 1]), 2)
    right = points(rng.normal(size=(4, 2)), np.array([0, 0, 1, 1]), 2)
    width = np.array([0.5, 2.0])
    K = rbf_delta(left, right, width)
    for i in range(5):
        for j in range(4):
            square = (((left.Z[i] - right.Z[j]) / width) ** 2).sum()
            same = left.category[i] == right.category[j]
            assert K[i, j] == pytest.approx(np.exp(-square / 2) * same)


def test_the_density_of_fewer_centres_is_the_direct_one():
    rng = np.random.default_rng(0)
    at, data = points(rng.normal(size=500)), points(rng.normal(size=20_000) * 1.5)
    width = column_widths(data)
    fewer = density(at, data, width, None)
    direct = density(at, data, width, None, most_centres=20_000)
    assert not np.array_equal(fewer, direct)
    np.testing.assert_allclose(fewer, direct, atol=1e-3 * direct.max())


def test_densities_of_large_data_need_no_large_matrix():
    import tracemalloc

    rng = np.random.default_rng(0)
    for columns in (1, 3):
        data = points(rng.normal(size=(200_000, columns)))
        tracemalloc.start()
        values = density(data.take(slice(0, 1000)), data, column_widths(data), None)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 150e6
        assert (values > 0).all()


def test_weights_are_repeated_rows_in_densities():
    rng = np.random.default_rng(0)
    z, times = rng.normal(size=200), rng.integers(1, 4, 200)
    weighted = Covariates(z[:, None], np.zeros(200, int), 1, weights=times.astype(float))
    repeated = points(z.repeat(times))
    width = column_widths(repeated)
    np.testing.assert_allclose(column_widths(weighted), width)
    at = points(rng.normal(size=50))
    direct = density(at, repeated, width, None)
    np.testing.assert_allclose(density(at, weighted, width, None), direct)
    in_parts = density(at, weighted, width, None, most_elements=1000)
    np.testing.assert_allclose(in_parts, direct, rtol=1e-12)
    spread = times / times.sum() @ z
    plane = Covariates(np.column_stack([z, z]), weighted.category, 1, weights=weighted.weights)
    few = density(plane, plane, np.ones(2), None, most_centres=100)
    assert np.isfinite(few).all()
    assert np.average(z[weighted.thinned(100)]) == pytest.approx(spread, abs=0.1)
