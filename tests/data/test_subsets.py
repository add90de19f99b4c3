import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from condokit.data.subsets import folds, subsample, subsample_sides


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 60), st.integers(1, 40))
def test_a_subsample_has_the_asked_size_in_order_without_repeats(n, most):
    rows = subsample(n, most)
    assert len(rows) == min(n, most)
    assert (np.diff(rows) > 0).all()
    assert ((rows >= 0) & (rows < n)).all()


@pytest.mark.parametrize("weights", [None, np.array([0.0, 5.0, 1.0, 2.0])])
def test_few_rows_are_all_taken(weights):
    for most in (4, 5, 100):
        np.testing.assert_array_equal(subsample(4, most, weights), np.arange(4))


def test_rows_are_evenly_spaced_from_first_to_last():
    rows = subsample(1001, 101)
    np.testing.assert_array_equal(rows, np.arange(0, 1001, 10))
    rows = subsample(1000, 7)
    assert rows[0] == 0
    assert rows[-1] == 999
    assert np.ptp(np.diff(rows)) <= 1


def test_weighted_rows_are_taken_in_proportion_and_never_without_weight():
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 5, 500).astype(float)
    rows = subsample(500, 300, weights)
    assert len(rows) == 300
    assert (np.diff(rows) >= 0).all()
    assert (weights[rows] > 0).all()
    share = weights / weights.sum()
    # as often as it should be, but for rounding
    assert (np.abs(np.bincount(rows, minlength=500) - 300 * share) < 1).all()
    for level in range(1, 5):
        mine = weights == level
        assert mine[rows].mean() == pytest.approx(share[mine].sum(), abs=0.07)


def test_evenly_taken_weighted_rows_are_those_of_repeated_rows():
    times = np.array([1, 4, 0, 2, 3])
    rows = subsample(5, 4, times.astype(float))
    np.testing.assert_array_equal(rows, np.arange(5).repeat(times)[[1, 3, 6, 8]])


def test_each_domain_has_its_own_subsample_query_first():
    is_query = np.arange(30) % 3 == 0
    rows = subsample_sides(is_query, 6)
    assert is_query[rows[:6]].all()
    assert not is_query[rows[6:]].any()
    assert len(rows) == 12
    for side in (rows[:6], rows[6:]):
        assert (np.diff(side) > 0).all()
    kept = np.arange(30) < 15
    rows = subsample_sides(is_query, 6, kept)
    assert kept[rows].all()
    assert is_query[rows].sum() == 5  # all there are
    np.testing.assert_array_equal(np.sort(subsample_sides(is_query, 100)), np.arange(30))


def test_folds_are_even_within_cells_and_keep_subjects_together():
    cell = np.repeat([0, 1, 2], [10, 25, 5])
    fold = folds(cell, 5)
    for k in range(3):
        counts = np.bincount(fold[cell == k], minlength=5)
        assert counts.max() - counts.min() <= 1
    subjects = np.repeat(np.arange(13), 3)
    fold = folds(np.zeros(39, dtype=int), 4, subjects)
    assert all(len(set(fold[subjects == s])) == 1 for s in range(13))
    assert len(set(fold)) == 4


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.booleans())
def test_folds_of_any_cells_are_balanced(seed, n_folds, in_order):
    rng = np.random.default_rng(seed)
    cell = rng.integers(-1, 4, 50)
    order = rng.permutation(50) if in_order else None
    fold = folds(cell, n_folds, order=order)
    assert fold.min() >= 0
    assert fold.max() < n_folds
    for k in np.unique(cell):
        counts = np.bincount(fold[cell == k], minlength=n_folds)
        assert counts.max() - counts.min() <= 1


def test_folds_by_a_given_order():
    cell = np.repeat([0, 1], 20)
    backwards = np.arange(40)[::-1]
    fold = folds(cell, 4, order=backwards)
    for k in range(2):  # in turn, from the first fold on, in every cell
        np.testing.assert_array_equal(fold[backwards][cell[backwards] == k], np.arange(20) % 4)


def test_subjects_are_together_over_cells_and_in_a_given_order():
    rng = np.random.default_rng(0)
    cell, subjects = rng.integers(0, 3, 90), rng.integers(0, 11, 90)
    for order in (None, np.arange(90)):
        fold = folds(cell, 3, subjects, order)
        assert all(len(set(fold[subjects == s])) == 1 for s in np.unique(subjects))
        n_subjects = [len(set(subjects[fold == f])) for f in range(3)]
        assert max(n_subjects) - min(n_subjects) <= 1
