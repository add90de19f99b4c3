import numpy as np
import pytest
from problems import random_pair

from condokit.solvers.units import Units


@pytest.mark.parametrize("kind", ["white", "common", "as given"])
def test_units_go_back_and_forth(kind):
    pair = random_pair(0)
    units = Units(pair, kind)
    rng = np.random.default_rng(1)
    A, b = rng.normal(size=(3, 3)), rng.normal(size=3)
    again = units.decode(*units.encode(A, b))
    np.testing.assert_allclose(again[0], A)
    np.testing.assert_allclose(again[1], b)
    if kind == "white":
        for side in (units.query, units.reference):
            mean, cov = side.balanced(pair.weights)
            np.testing.assert_allclose(mean, 0, atol=1e-12)
            np.testing.assert_allclose(cov, np.eye(3), atol=1e-10)
    else:
        np.testing.assert_allclose(units.encode(np.eye(3), b)[0], np.eye(3), atol=1e-12)
