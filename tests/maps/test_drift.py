"""Chances of new rows under the law of old ones, against simulations and other formulas."""

import numpy as np
import pytest
from scipy.stats import betabinom

from condokit.maps import drift


def test_chances_of_counts_are_beta_binomial():
    k, old = np.array([3.0, 9.0, 0.0]), np.array([1.0, 4.0, 2.0])
    p = drift.chance_of_count(k, np.full(3, 20.0), old, np.full(3, 60.0))
    known = betabinom.sf(k - 1, 20, old + 1, 60 - old + 1)
    np.testing.assert_allclose(p, known, rtol=1e-9)


def test_chances_of_counts_of_many_rows_are_cautious():
    k, n, old, m = (np.array([x]) for x in (3000.0, 100_000.0, 9.0, 1000.0))
    assert betabinom.sf(2999, 100_000, 10, 992) <= drift.chance_of_count(k, n, old, m)


@pytest.mark.parametrize("n", [2, 5, 50])
def test_means_and_spreads_of_normal_rows_exceed_a_level_as_often(n, rng):
    old, new = rng.normal(size=(100, 20_000)), rng.normal(size=(n, 20_000))
    z = (new - old.mean(axis=0)) / old.std(axis=0, ddof=1)
    m, n_new, tails = (np.full(20_000, float(x)) for x in (100, n, 100))
    var = z.var(axis=0, ddof=1)
    p = drift.chance_of_mean(z.mean(axis=0), var, n_new, m)
    assert 0.01 < (p < 0.05).mean() < 0.055
    kurtosis = ((z - z.mean(axis=0)) ** 4).mean(axis=0) / z.var(axis=0) ** 2
    p = drift.chance_of_spread(var, kurtosis, tails, tails < 2, n_new, m)
    assert (p < 0.05).mean() < 0.06
    assert (p < 0.001).mean() < 0.002


@pytest.mark.parametrize("law", ["normal", "t3", "exponential"])
def test_values_far_away_are_no_rarer_than_predicted(law, rng):
    draw = {"t3": lambda size: rng.standard_t(3, size=size), "normal": rng.standard_normal}
    draw = {**draw, "exponential": lambda size: rng.exponential(size=size)}[law]
    X, new, m = draw((400, 5000)), draw((100, 5000)), 400
    mean, sd = X.mean(axis=0), X.std(axis=0, ddof=1)
    kurtosis = ((X - mean) ** 4).mean(axis=0) / sd**4
    tails = drift.degrees_of_freedom(kurtosis, np.full(5000, m))
    end = (np.sort(X, axis=0)[-5] - mean) / sd
    p = drift.chance_of_value((new - mean) / sd, end, 5 / m, tails, np.full(5000, float(m)))
    for level in (1e-2, 1e-3, 1e-4):
        assert (p < level).mean() < 1.5 * level
