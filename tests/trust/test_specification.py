"""Whether one map fits all strata: p-values hold their level, and strata that differ are named."""

import numpy as np
import pytest

from condokit.trust.blocks import ComparableRows
from condokit.trust.specification import specification


def rows(rng, n=40, strata=4, d=5, off=0.0, spread=1.0, noise=None):
    """Draw strata of n rows of each domain; the query of the last is off in the first feature."""
    block = np.repeat(np.arange(strata), 2 * n)
    is_query = np.tile(np.repeat([True, False], n), strata)
    X = (noise or rng.normal)(size=(len(block), d)) + rng.normal(size=(strata, d))[block]
    odd = is_query & (block == strata - 1)
    X[odd, 0] = (X[odd, 0] - X[odd, 0].mean()) * spread + X[odd, 0].mean() + off
    return ComparableRows(X, X, is_query, block, block, None, None, np.arange(len(block)))


def outcome(drawn):
    names = [f"f{j}" for j in range(drawn.after.shape[1])]
    strata = [f"site = {k}" for k in range(int(drawn.category.max()) + 1)]
    return specification(drawn, drawn.after, names, strata)


@pytest.mark.parametrize("noise", ["normal", "exponential"])
@pytest.mark.parametrize(("n", "strata"), [(10, 4), (60, 4), (60, 2), (8, 60)])
def test_the_level_is_held_where_one_map_fits_all_strata(noise, n, strata):
    p, alarms, squares, spreads = [], 0, [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        found = outcome(rows(rng, n, strata, noise=getattr(rng, "standard_" + noise)))
        p += found.sheet["p"]
        alarms += found.finding(0.05, 5.0) is not None
        squares.append(found.square)
        spreads.append(found.variance)
    if n * strata < 400:
        assert np.mean(np.array(p) < 0.05) < 0.09
    assert alarms <= 8  # of 60, at a level of 5%
    squares = np.array(squares)
    error = squares.std() / np.sqrt(squares.size)
    assert abs(squares.mean()) < 3 * error + 0.01 * squares.std()  # unbiased
    if noise == "normal":
        assert 0.7 < np.sqrt(np.mean(spreads)) / squares.std() < 1.6


@pytest.mark.parametrize(("off", "spread"), [(1.5, 1.0), (0.0, 3.0)])
def test_strata_that_disagree_are_found_and_named(rng, off, spread):
    found = outcome(rows(rng, 60, off=off, spread=spread))
    sheet = found.sheet
    assert sheet["p_adjusted"][0] < 1e-4
    assert min(sheet["p_adjusted"][1:]) > 0.01
    if off:
        said = found.finding(0.3, 5.0)
        assert said.text.startswith("one map does not fit all strata, which are off by about 0.")
        assert ": f0 (" in said.text
        assert "site = 3 +" in said.text
        assert sheet["highest"][0] == "site = 3"
        assert found.finding(2.0, 5.0) is None  # much in one feature, little in all
        assert found.note().text.startswith("strata disagree beyond one map in some features: f0 (")
        assert sheet["disagreement"][0] == pytest.approx(off * np.sqrt(3) / 4, rel=0.3)


def test_the_size_of_a_disagreement_counts_not_its_significance(rng):
    found = outcome(rows(rng, 20_000, off=0.1, d=1))
    assert found.sheet["p"][0] < 1e-9
    assert found.pooled(1.0)[0] == pytest.approx(0.1 * np.sqrt(3) / 4, rel=0.25)
    assert found.finding(0.4, 1.0) is None
    assert found.finding(0.05, 1.0) is not None  # more than half of the gain


def test_a_large_disagreement_counts_whatever_the_map_gains(rng):
    assert outcome(rows(rng, 200, off=1.0, d=1)).finding(3.0, 1.0) is not None
    assert outcome(rows(rng, 8, off=1.0, d=1)).finding(3.0, 1.0) is None  # within its error


def test_one_stratum_or_few_rows_tell_nothing(rng):
    for drawn in (rows(rng, strata=1), rows(rng, n=4)):
        found = outcome(drawn)
        assert len(found.sheet) == 0
        assert found.finding(0.0, 1.0) is None
