"""Values in bins stand for single rows."""

import numpy as np
import pytest

from condokit.data.bins import Bins, Values, side_by_side
from condokit.law.weights import degrees_of_freedom


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    cell = rng.integers(-1, 3, 3000)
    X = 1e6 + rng.standard_t(2.5, (3000, 2)) * [1.0, 1e-3]
    X[::50, 0] = np.nan
    return X, cell


def binned(X, cell, step):
    mean = np.stack([np.nanmean(X[cell == k], axis=0) for k in range(3)])
    sd = np.stack([np.nanstd(X[cell == k], axis=0) for k in range(3)])
    whole = Bins(mean, sd)
    for start in range(0, len(X), step):
        part = Bins(mean, sd)
        part.update(X[start : start + step], cell[start : start + step])
        whole.merge(part)
    return whole


def test_counts_do_not_depend_on_chunks(rows):
    one, many = (binned(*rows, step) for step in (10_000, 17))
    np.testing.assert_allclose(one.sums, many.sums, atol=1e-9)


def test_sums_of_smooth_functions_are_those_of_all_rows(rows):
    X, cell = rows
    bins = binned(X, cell, 10_000)
    for j in range(2):
        values = bins.values(j)
        for k in range(3):
            mine, x = values.cell == k, X[(cell == k) & ~np.isnan(X[:, j]), j]
            assert values.count[mine].sum() == len(x)
            centre, unit = np.median(x), np.median(np.abs(x - np.median(x)))
            both = (values.ends[:, mine] - centre) / unit, (x - centre) / unit
            for weigh in (lambda t: t / (3 + t**2), lambda t: t**2 / (3 + t**2)):
                binned_sum = (values.count[mine] * weigh(both[0]).mean(axis=0)).sum()
                assert binned_sum == pytest.approx(weigh(both[1]).sum(), rel=2e-4, abs=2e-3)


def test_coarser_values_have_enough_rows_and_keep_the_tails(rows):
    X, cell = rows
    bins = binned(X, cell, 10_000)
    sd = bins.unit[:, 1] / 0.02
    values = bins.values(1)
    coarse = values.coarser(5, bins.mean[:, 1], sd)
    assert coarse.count.min() >= 5
    assert coarse.count.sum() == values.count.sum()
    squares = [((v.ends - bins.mean[v.cell, 1]) / sd[v.cell] * 3) ** 2 for v in (values, coarse)]
    found = [
        degrees_of_freedom(s.reshape(-1, 1), np.tile(v.count / 2, 2)[:, None])
        for s, v in zip(squares, (values, coarse))
    ]
    assert found[0] == found[1]
    few = Values(np.zeros(3, dtype=int), np.ones(3), np.zeros((2, 3)))
    assert len(few.coarser(5, np.zeros(1), np.ones(1)).count) == 0


def test_no_far_value_can_be_read_off(rows):
    X, cell = rows
    X = X.copy()
    X[100, 1], cell[100] = 5e6, 0
    bins = binned(X, cell, 10_000)
    coarse = bins.values(1).coarser(5, bins.mean[:, 1], bins.unit[:, 1] / 0.02)
    assert coarse.ends.max() < 0.9 * 5e6


def test_features_of_different_lengths_stand_side_by_side():
    one = Values(np.array([0, 0, 2]), np.array([4.0, 2.0, 6.0]), np.arange(6.0).reshape(2, 3))
    two = Values(np.array([2]), np.array([8.0]), np.array([[7.0], [9.0]]))
    cell, X, counts = side_by_side([one, two])
    for j, values in enumerate((one, two)):
        for k in (0, 1, 2):
            here = (cell == k) & (counts[:, j] > 0)
            mine = values.cell == k
            assert sorted(X[here, j]) == sorted(values.ends[:, mine].ravel())
            assert counts[here, j].sum() == values.count[mine].sum()
