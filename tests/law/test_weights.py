"""Errors that mix those of the model with those of the rows."""

import numpy as np
import pytest

from condokit import ConDoAdapter
from condokit.law.weights import SANDWICH_ROWS, blend, pulled


def blended(V, V_b, cov, count, dof=30.0, model=1.0):
    parts = (np.array([value]) for value in (V, model, V_b, model, cov, count, dof))
    return [float(one[0]) for one in blend(*parts)]


def test_many_rows_have_their_own_errors_and_few_those_of_the_model():
    V, V_b, cov = blended(4.0, 9.0, 1.0, 1e12)
    widen = 30 / 28
    assert (V, V_b, cov) == pytest.approx((4 * widen, 9 * widen, 1.0))
    V, V_b, cov = blended(4.0, 9.0, 1.0, 0.0)
    assert (V, V_b, cov) == pytest.approx((widen, widen, 0.0))
    V, V_b, cov = blended(4.0, 9.0, 1.0, SANDWICH_ROWS)
    assert (V, V_b, cov) == pytest.approx((2 * widen, 3 * widen, 0.5))


def test_errors_are_never_below_those_of_the_model():
    assert blended(0.1, 0.2, 0.0, 1e12)[:2] == pytest.approx([30 / 28] * 2)


@pytest.mark.parametrize("cov", [-50.0, 50.0, 3.0])
def test_the_covariance_stays_possible(cov):
    V, V_b, found = blended(4.0, 9.0, cov, 1e12)
    assert abs(found) <= 0.96 * np.sqrt(V * V_b)
    assert found == pytest.approx(np.clip(cov, -0.95 * 6 * 30 / 28, 0.95 * 6 * 30 / 28))
    assert np.linalg.eigvalsh([[V, found], [found, V_b]]).min() > 0


def test_few_degrees_of_freedom_widen_without_bound_but_stay_finite():
    assert blended(1.0, 1.0, 0.0, 10.0, dof=2.0)[1] == pytest.approx(4.0)
    assert blended(1.0, 1.0, 0.0, 10.0, dof=1.0)[1] == pytest.approx(2.0)


def test_few_rows_of_many_features_have_the_ratio_that_these_share():
    rng = np.random.default_rng(0)
    own = np.exp(0.5 * rng.normal(size=200))
    few = pulled(2 * own, np.array([20.0]))
    assert np.mean(few) == pytest.approx(2 * np.mean(own), rel=0.1)
    assert np.std(np.log(few)) < 0.4 * np.std(np.log(own))
    np.testing.assert_allclose(pulled(2 * own, np.array([1e9])), np.maximum(2 * own, 1), rtol=1e-6)
    one = np.append(np.ones(200), 1e6)  # does not decide for the others
    assert pulled(one, np.array([20.0]))[:-1].max() < 1.05


def test_tails_of_few_rows_are_hardly_evidence_of_other_scales():
    chances = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        query, reference = rng.standard_t(3, (12, 40)), rng.standard_t(3, (20, 40))
        same = np.repeat("a", 12), np.repeat("a", 20)
        chances.append(ConDoAdapter().fit_pair(query, reference, *same).report_.chance_of_scale)
    assert np.mean(chances) < 0.25  # .32 if features do not learn from each other
