"""Whether one map fits all strata: p-values hold their level, and strata that differ are named."""

import numpy as np
import pytest

from condokit.trust.blocks import ComparableRows
from condokit.trust.specification import misfit, specification


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
@pytest.mark.parametrize("n", [10, 60])
def test_the_level_is_held_where_one_map_fits_all_strata(noise, n):
    p, alarms = [], 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        found = outcome(rows(rng, n, noise=getattr(rng, "standard_" + noise)))
        p += found["p"]
        alarms += misfit(found, True) is not None
    assert np.mean(np.array(p) < 0.05) < 0.09
    assert alarms <= 5


@pytest.mark.parametrize(("off", "spread"), [(1.5, 1.0), (0.0, 3.0)])
def test_strata_that_disagree_are_found_and_named(rng, off, spread):
    found = outcome(rows(rng, 60, off=off, spread=spread))
    assert found["p_adjusted"][0] < 1e-4
    assert min(found["p_adjusted"][1:]) > 0.01
    if off:
        said = misfit(found, True)
        assert said.text.startswith("one map does not fit all strata: f0 (")
        assert "site = 3 +" in said.text
        assert found["highest"][0] == "site = 3"
        assert found["disagreement"][0] == pytest.approx(off * np.sqrt(3) / 4, rel=0.3)


def test_one_stratum_or_few_rows_tell_nothing(rng):
    assert len(outcome(rows(rng, strata=1))) == 0
    assert len(outcome(rows(rng, n=4))) == 0
    assert misfit(outcome(rows(rng, n=4)), True) is None
