"""Errors that mix those of the model with those of the rows."""

import numpy as np
import pytest

from condokit.law.weights import SANDWICH_ROWS, blend


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
    assert blended(1.0, 1.0, 0.0, 10.0, dof=2.0)[0] == pytest.approx(4.0)
    assert blended(1.0, 1.0, 0.0, 10.0, dof=1.0)[0] == pytest.approx(2.0)
