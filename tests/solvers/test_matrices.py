"""The search of full matrices, and what divergences make of it."""

import numpy as np
import pytest
from problems import pushed, random_gaussians
from scipy.stats import ortho_group

from condokit import (
    Affine,
    ForwardKL,
    Orthogonal,
    PCMatch,
    PooledLikelihood,
    ReverseKL,
    Similarity,
)
from condokit.solvers.matrices import starts
from condokit.solvers.units import Units
from condokit.summaries.gaussians import GaussianPair

SEARCHED = [ReverseKL(), ForwardKL(), PooledLikelihood()]


@pytest.mark.parametrize("divergence", SEARCHED, ids=repr)
def test_a_known_matrix_is_recovered_from_exact_moments(divergence):
    rng = np.random.default_rng(0)
    A, b = ortho_group.rvs(4, random_state=1) @ np.diag([0.5, 1, 2, 3]), rng.normal(size=4)
    if np.linalg.det(A) < 0:
        A[:, 0] *= -1
    query = random_gaussians(rng, 3, 4)
    pair = GaussianPair(query, pushed(query, A, b), np.full(3, 1 / 3))
    solution = divergence.solve(Affine(), pair)
    np.testing.assert_allclose(solution.scale, A, atol=1e-4)
    np.testing.assert_allclose(solution.offset, b, atol=1e-4)
    assert solution.search_facts()["flips_orientation"] is False
    assert set(solution.starts) <= {name for name, *_ in starts(Units(pair, "white"), pair, 30)}


@pytest.mark.parametrize("divergence", SEARCHED, ids=repr)
@pytest.mark.parametrize("family", [Orthogonal(), Similarity()], ids=repr)
def test_rigid_maps_are_recovered_even_if_they_are_reflections(divergence, family):
    rng = np.random.default_rng(0)
    Q = ortho_group.rvs(4, random_state=2)
    Q[0] *= -np.sign(np.linalg.det(Q))
    scale = 1.7 if family.has_scale else 1.0
    query = random_gaussians(rng, 3, 4)
    pair = GaussianPair(query, pushed(query, scale * Q, np.ones(4)), np.full(3, 1 / 3))
    solution = divergence.solve(family, pair)
    np.testing.assert_allclose(solution.scale, scale * Q, atol=1e-4)
    assert solution.gradient_norm < 1e-3
    assert solution.search_facts()["flips_orientation"] is True


def test_a_reflection_needs_evidence():
    # a single Gaussian says nothing about orientation
    query = random_gaussians(np.random.default_rng(0), 1, 3)
    pair = GaussianPair(query, query, np.ones(1))
    for divergence in SEARCHED:
        assert np.linalg.det(divergence.solve(Affine(), pair).scale) > 0


@pytest.mark.parametrize("divergence", [*SEARCHED, PCMatch()], ids=repr)
@pytest.mark.parametrize("family", [Affine, Orthogonal, Similarity])
def test_only_maps_that_keep_the_orientation_are_searched_on_request(divergence, family):
    query = random_gaussians(np.random.default_rng(0), 3, 3)
    Q = ortho_group.rvs(3, random_state=1)
    Q[0] *= np.sign(np.linalg.det(Q))
    for A in (Q, Q * [[-1], [1], [1]]):
        pair = GaussianPair(query, pushed(query, A, np.ones(3)), np.full(3, 1 / 3))
        found = divergence.solve(family(orientation="kept"), pair).scale
        assert np.linalg.det(found) > 0
        turned = np.linalg.det(A) < 0
        assert (np.abs(found - A).max() > 0.1) == turned
        np.testing.assert_allclose(divergence.solve(family(), pair).scale, A, atol=1e-4)
    names = [name for name, _ in starts(Units(pair, "white"), pair, 8, kept=True)]
    assert names[3:] == [f"rotation {k}" for k in range(1, 6)]
    with pytest.raises(ValueError, match=f"'orientation' of {family.__name__} must be 'any' or"):
        divergence.solve(family(orientation="up"), pair)
