"""Rows of both domains, and reductions over blocks of them."""

import numpy as np
import pytest
from problems import covariates

from condokit.compare.comparison import compare
from condokit.data.roles import from_pair
from condokit.summaries import rows as module
from condokit.summaries.rows import Rows


def random_rows(n=97, d=3, groups=False, seed=0):
    rng = np.random.default_rng(seed)
    zero, one = np.zeros(d), np.ones(d)
    return Rows(
        rng.normal(size=(n, d)),
        rng.random(n) < 0.4,
        rng.uniform(0.5, 2, n),
        covariates(rng.uniform(size=n)),
        zero,
        one,
        zero,
        one,
        one > 1,
        one,
        rng.integers(0, 20, n) if groups else None,
    )


def sums(rows):
    """Cross-products, a count and a sum that need every field of a row."""
    WX = rows.weights[:, None] * rows.X
    q = rows.is_query
    groups = np.zeros(len(q)) if rows.groups is None else rows.groups
    return (
        WX.T @ rows.X,
        WX[q].sum(axis=0),
        np.array(len(rows.X)),
        rows.covariates.Z.T @ (WX * groups[:, None]),
    )


@pytest.mark.parametrize("size", [1, 7, 96, 97, 98, 1000])
@pytest.mark.parametrize("groups", [False, True])
def test_a_reduction_is_one_sum_over_all_rows_for_any_block_size(size, groups, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_ROWS", size)
    rows = random_rows(groups=groups)
    seen = []

    def kernel(block):
        seen.append(len(block.X))
        return sums(block)

    for found, expected in zip(rows.reduce(kernel), sums(rows), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)
    assert sum(seen) == 97
    assert max(seen) <= size
    assert len(seen) == -(-97 // size)


def test_blocks_can_be_reduced_repeatedly_and_elsewhere(monkeypatch):
    rows = random_rows()
    whole = sums(rows)
    parts = [rows.take(np.arange(start, 97, 3)) for start in range(3)]  # three sites
    added = [sum(part.reduce(sums)[k] for part in parts) for k in range(4)]
    for found, expected in zip(added, whole, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)
    monkeypatch.setattr(module, "_BLOCK_ROWS", 10)
    first, again = rows.reduce(sums), rows.reduce(sums)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_some_rows_and_some_features_keep_what_belongs_to_them():
    rows = random_rows(groups=True)
    some = rows.take(np.array([5, 2, 50]))
    np.testing.assert_array_equal(some.X, rows.X[[5, 2, 50]])
    for name in ("is_query", "weights", "groups"):
        np.testing.assert_array_equal(getattr(some, name), getattr(rows, name)[[5, 2, 50]])
    np.testing.assert_array_equal(some.covariates.Z, rows.covariates.Z[[5, 2, 50]])
    part = rows.of(np.array([2, 0]))
    np.testing.assert_array_equal(part.X, rows.X[:, [2, 0]])
    assert len(part.query_mean) == len(part.flat) == len(part.spread) == 2


def test_rows_of_one_subject_are_worth_less():
    rows = random_rows(groups=True)
    alone = random_rows()
    assert alone.discounted(0.5) is alone  # no subjects are known
    np.testing.assert_array_equal(rows.discounted(0.0).weights, rows.weights)
    alike = rows.discounted(1.0)
    for subject in np.unique(rows.groups):
        mine = rows.groups == subject
        others = rows.weights[mine].sum() - rows.weights[mine]
        np.testing.assert_allclose(alike.weights[mine], rows.weights[mine] / (1 + others))


def test_a_thinned_sample_takes_both_domains():
    rows = random_rows(n=1000)
    assert rows.thinned(1000) is rows
    few = rows.thinned(100)
    assert len(few.X) == 100
    assert few.is_query.sum() == 50
    lopsided = rows.take(np.r_[np.flatnonzero(rows.is_query)[:10], np.flatnonzero(~rows.is_query)])
    few = lopsided.thinned(100)
    assert few.is_query.sum() == 10  # what one has not, the other may have
    assert len(few.X) == 100


@pytest.mark.parametrize("size", [7, 1 << 12])
def test_rows_are_read_in_standard_units(size, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_ROWS", size)
    rng = np.random.default_rng(0)
    X_query, X_reference = rng.normal(5, 3, (40, 2)), rng.normal(-1, 0.1, (60, 2))
    weights = rng.integers(1, 4, 40).astype(float), rng.integers(1, 4, 60).astype(float)
    Z = np.repeat(["a", "b"], 20), np.repeat(["a", "b"], 30)
    domains = from_pair(X_query, X_reference, *Z, None, weights, None, "raise")
    rows = Rows.read(domains, compare(domains, by_rows=True), True)
    sides = (
        (rows.is_query, X_query, weights[0], rows.query_mean, rows.query_unit),
        (~rows.is_query, X_reference, weights[1], rows.reference_mean, rows.reference_unit),
    )
    for side, X, w, mean, unit in sides:
        np.testing.assert_allclose(mean, np.average(X, axis=0, weights=w))
        np.testing.assert_allclose(unit, np.sqrt(np.average((X - mean) ** 2, axis=0, weights=w)))
        np.testing.assert_allclose(rows.X[side] * unit + mean, X)
        np.testing.assert_array_equal(rows.weights[side], w)
    assert not rows.flat.any()
