"""Products of columns and features by group: the same whatever the split, gaps left out."""

import json

import numpy as np
import pytest

from condokit.data.products import GroupedProducts
from condokit.io.schema import STATISTICS


def table(seed=0, n=400, r=3, d=4, groups=3, offset=0.0):
    rng = np.random.default_rng(seed)
    Phi = rng.normal(size=(n, r))
    X = offset + Phi @ rng.normal(size=(r, d)) + rng.normal(size=(n, d))
    return X, Phi, rng.integers(-1, groups, n), rng.integers(0, 4, n).astype(float)


def gathered(X, Phi, groups, weights, cuts=(), n_groups=3):
    """Gather parts and merge them from the last to the first."""
    parts = []
    for rows in np.split(np.arange(len(X)), cuts):
        part = GroupedProducts(n_groups, Phi.shape[1], X.shape[1])
        part.update(X[rows], Phi[rows], groups[rows], weights[rows])
        parts.append(part)
    total = parts.pop()
    while parts:
        total.merge(parts.pop())
    return total


def check(found, X, Phi, groups, weights, offset=0.0):
    V, r = np.column_stack([Phi, X - offset]), Phi.shape[1]
    for g in range(len(found.count)):
        mine = (groups == g) & (weights > 0)
        w = weights[mine]
        assert found.count[g] == w.sum()
        mean = w @ V[mine] / w.sum()
        rest = V[mine] - mean
        scatter = (rest.T * w) @ rest
        np.testing.assert_allclose(found.mean[g], mean + offset * (np.arange(len(mean)) >= r))
        tight = {"rtol": 1e-9, "atol": 1e-9 if not offset else 1e-5}
        np.testing.assert_allclose(found.scatter[g], scatter[:r], **tight)
        np.testing.assert_allclose(found.squares[g], np.diag(scatter)[r:], **tight)


@pytest.mark.parametrize("cuts", [(), (1, 2, 200), (100, 100, 399), tuple(range(7, 400, 7))])
def test_any_split_gives_the_products_of_all_rows(cuts):
    data = table()
    check(gathered(*data, cuts), *data)


def test_a_large_offset_does_not_spoil_products():
    data = table(offset=1e8)
    check(gathered(*data, (50, 300)), *data, offset=1e8)


def test_constants_have_no_spread():
    X, Phi, groups, weights = table()
    X[:, 1] = 0.1
    assert (gathered(X, Phi, groups, weights, (33, 150)).squares[:, 1] == 0).all()


@pytest.mark.parametrize("cuts", [(), (60, 61, 250)])
def test_gaps_leave_out_rows_of_their_feature_alone(cuts):
    X, Phi, groups, weights = table()
    X[100:140, 1], X[300:, 3] = np.nan, np.nan  # the first part has none
    X = np.column_stack([X, X[:, 3] ** 2])  # missing where another is
    found = gathered(X, Phi, groups, weights, cuts)
    parts = {tuple(features): own for features, own in found.parts()}
    assert set(parts) == {(0, 2), (1,), (3, 4)}
    for features, own in parts.items():
        known = ~np.isnan(X[:, features]).any(axis=1)
        check(own, X[known][:, features], Phi[known], groups[known], weights[known])


def plain(one):
    """Return products as files of schema 1 have them."""
    record = {name: getattr(one, name).tolist() for name in ("count", "mean", "scatter", "squares")}
    return {
        **record,
        "n_columns": one.n_columns,
        "own": {str(j): plain(o) for j, o in one.own.items()},
    }


def test_products_survive_a_file_and_a_new_grouping():
    X, Phi, groups, weights = table()
    X[:30, 2] = np.nan
    found = gathered(X, Phi, groups, weights, (200,))
    node = STATISTICS.root["properties"]["continuous"]["properties"]["products"]
    written = json.loads(json.dumps(plain(found)))
    fields = STATISTICS._read(written, node, "", {"features": X.shape[1]})
    again = GroupedProducts.from_dict(fields)
    for one, other in ((found, again), (found.own[2], again.own[2])):
        for name in ("count", "mean", "scatter", "squares"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    place = np.array([1, -1, 1])
    merged = GroupedProducts(2, 3, 4)
    merged.merge(again.resized(5), np.append(place, [0, 0]))
    new = np.where(groups >= 0, place[groups], -1)
    known = ~np.isnan(X[:, 2])
    direct = gathered(X[known][:, [2]], Phi[known], new[known], weights[known], (), 2)
    np.testing.assert_allclose(merged.own[2].scatter[1], direct.scatter[1])
    assert merged.count[0] == 0
