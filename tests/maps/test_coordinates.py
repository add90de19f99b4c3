"""Coordinates of families: where they start, what they stand for, and their gradients."""

import numpy as np
import pytest
from problems import random_moments
from scipy.stats import special_ortho_group

from condokit import Orthogonal, Similarity
from condokit.maps.coordinates import AllMatrices, Diagonals, Rotations
from condokit.maps.families import MAPS, DiagonalFamily

DIAGONAL = [family() for family in MAPS.values() if issubclass(family, DiagonalFamily)]


class Gain(DiagonalFamily):
    has_offset = False


def matrix(seed=0, shape=(3, 3)):
    return np.eye(*shape) + 0.3 * np.random.default_rng(seed).normal(size=shape)


def rotation(scale=1.0):
    return scale * special_ortho_group.rvs(3, random_state=0)


OFFSET = np.array([1.0, -2.0, 0.5])
SCALE = np.array([2.0, 0.5, 1.0])
# coordinates, and the map that they start from
EVERY = {
    "all": (AllMatrices(matrix(), OFFSET), matrix(), OFFSET),
    "rectangular": (AllMatrices(matrix(0, (3, 5)), OFFSET), matrix(0, (3, 5)), OFFSET),
    "all diagonals": (AllMatrices(SCALE, OFFSET), SCALE, OFFSET),
    "rotations": (Rotations(rotation(), OFFSET, False), rotation(), OFFSET),
    "similarities": (Rotations(rotation(1.7), OFFSET, True), rotation(1.7), OFFSET),
    **{
        f"diagonal {has_scale:d}{has_offset:d}": (
            Diagonals(SCALE, OFFSET, has_scale, has_offset),
            SCALE,
            OFFSET,
        )
        for has_scale in (False, True)
        for has_offset in (False, True)
    },
}


@pytest.mark.parametrize("name", EVERY)
def test_the_start_is_the_given_map(name):
    coordinates, A, b = EVERY[name]
    here = coordinates.unpack(coordinates.start)
    np.testing.assert_allclose(here[0], A, atol=1e-12)
    np.testing.assert_allclose(here[1], b)


@pytest.mark.parametrize("name", EVERY)
def test_pull_back_is_the_gradient_of_any_function_of_the_map(name):
    coordinates, A, b = EVERY[name]
    rng = np.random.default_rng(1)
    towards, pull, offset_pull = rng.normal(size=A.shape), rng.normal(size=A.shape), OFFSET[::-1]
    theta = coordinates.start + 0.2 * rng.uniform(size=coordinates.start.shape)

    def value(theta):
        A, b = coordinates.unpack(theta)
        return (pull * (A - towards) ** 2).sum() + (offset_pull * b**3).sum()

    A, b = coordinates.unpack(theta)
    exact = coordinates.pull_back(theta, 2 * pull * (A - towards), 3 * offset_pull * b**2)
    steps = 1e-6 * np.eye(len(theta))
    numeric = [(value(theta + step) - value(theta - step)) / 2e-6 for step in steps]
    assert exact.shape == theta.shape
    np.testing.assert_allclose(exact, np.reshape(numeric, theta.shape), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", [*DIAGONAL, Gain()], ids=repr)
def test_pull_back_is_the_gradient_of_mapped_moments(family):
    rng = np.random.default_rng(0)
    moments = random_moments(rng, 4, 3)
    coordinates = family.around(np.ones(3), np.zeros(3))
    theta = coordinates.start + 0.3 * rng.normal(size=coordinates.start.shape)
    d_mean, d_var = rng.normal(size=(2, 4, 3))

    def value(theta):
        scale, offset = coordinates.unpack(theta)
        mean, var = moments.mean * scale + offset, moments.var * scale**2
        return (d_mean * mean + d_var * var).sum()

    steps = 1e-6 * np.eye(len(theta))
    numeric = [(value(theta + step) - value(theta - step)) / 2e-6 for step in steps]
    scale = coordinates.unpack(theta)[0]
    d_scale = (d_mean * moments.mean + 2 * d_var * moments.var * scale).sum(axis=0)
    exact = coordinates.pull_back(theta, d_scale, d_mean.sum(axis=0))
    np.testing.assert_allclose(exact, np.reshape(numeric, theta.shape), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("family", [*DIAGONAL, Gain()], ids=repr)
def test_families_start_at_the_identity(family):
    coordinates = family.around(np.ones(3), np.zeros(3))
    scale, offset = coordinates.unpack(coordinates.start)
    np.testing.assert_array_equal(scale, 1)
    np.testing.assert_array_equal(offset, 0)
    assert len(coordinates.start) == 3 * (family.has_scale + family.has_offset)
    moved = coordinates.unpack(coordinates.start + 1)
    np.testing.assert_array_equal(moved[0], np.exp(1) if family.has_scale else 1)
    np.testing.assert_array_equal(moved[1], 1 if family.has_offset else 0)


@pytest.mark.parametrize("family", [Orthogonal(), Similarity()], ids=repr)
def test_rotations_start_at_the_nearest_and_stay_rotations(family):
    coordinates = family.around(matrix(), OFFSET)
    rng = np.random.default_rng(0)
    for theta in (coordinates.start, coordinates.start + rng.normal(size=len(coordinates.start))):
        A = coordinates.unpack(theta)[0]
        size = np.linalg.svd(A)[1]
        np.testing.assert_allclose(size, size[0])
        assert np.linalg.det(A) > 0
        if not family.has_scale:
            assert size[0] == pytest.approx(1)
    turned = np.diag([1.0, 1.0, -1.0])  # a reflection stays one
    near = family.around(turned, OFFSET)
    assert np.linalg.det(near.unpack(near.start + 0.1)[0]) < 0


def test_rotations_go_on_from_where_they_are_at_most_twice():
    here = Rotations(rotation(1.7), OFFSET, True)
    assert here.renewed(here.start + 0.1) is None  # not far
    for _ in range(2):
        theta = here.start.copy()
        theta[:3] = [0.9, -0.2, 0.3]
        following = here.renewed(theta)
        assert isinstance(following, Rotations)
        for one, other in zip(here.unpack(theta), following.unpack(following.start)):
            np.testing.assert_allclose(one, other, atol=1e-12)
        here = following
    theta[:3] = 2.0
    assert here.renewed(theta) is None


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"rotations", "similarities"}))
def test_others_reach_everywhere(name):
    coordinates = EVERY[name][0]
    assert coordinates.renewed(coordinates.start + 5.0) is None
