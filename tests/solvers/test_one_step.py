"""One Newton step."""

import numpy as np
import pytest

from condokit.maps.coordinates import AllMatrices
from condokit.solvers.lbfgs import in_coordinates
from condokit.solvers.one_step import OneStep


@pytest.mark.parametrize("between_rows", [False, True])
def test_the_minimum_of_a_quadratic_form_is_reached(rng, between_rows):
    root, goal, start = rng.normal(size=(5, 4)), rng.normal(size=4), rng.normal(size=4)
    H = root.T @ root
    step = OneStep(lambda theta: (0.0, H @ (theta - goal)), start, between_rows)
    np.testing.assert_allclose(step(H @ (start - goal)), goal, atol=1e-4)


def test_directions_that_change_nothing_are_not_taken(rng):
    way = np.array([1.0, 1.0, 0.0]) / np.sqrt(2)
    H = np.diag([1.0, 2.0, 3.0])
    H = (np.eye(3) - np.outer(way, way)) @ H @ (np.eye(3) - np.outer(way, way))
    with pytest.raises(np.linalg.LinAlgError):
        OneStep(lambda theta: (0.0, H @ theta), np.ones(3))
    there = OneStep(lambda theta: (0.0, H @ theta), np.ones(3), idle=way[None])(H @ np.ones(3))
    np.testing.assert_allclose(H @ there, 0, atol=1e-4)
    assert there @ way == pytest.approx(np.ones(3) @ way)


def test_the_gradient_is_that_of_the_coordinates(rng):
    near = AllMatrices(rng.normal(size=(2, 2)), rng.normal(size=2))

    def objective(A, b):
        return float((A**2).sum() + b.sum()), 2 * A, np.ones(2)

    gradient = in_coordinates(objective, near)(near.start)[1]
    np.testing.assert_allclose(gradient, np.append(2 * near.start[:4], [1, 1]))
