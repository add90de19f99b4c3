from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import random_moment_pair, random_pair
from scipy.optimize import minimize

from condokit import Affine, ForwardKL, LocationScale, ReverseKL
from condokit.solvers.gaussian_kl import KLObjective
from condokit.solvers.units import Units


def test_forward_kl_is_the_inverse_of_reverse_kl_of_swapped_domains():
    pair = random_pair(8)
    forward = ForwardKL().solve(Affine(), pair)
    back = ReverseKL().solve(Affine(), pair.swapped())
    np.testing.assert_allclose(forward.scale @ back.scale, np.eye(3), atol=1e-8)
    units = Units(pair, "white")
    objective = KLObjective(units, forward=True)
    _, d_B, d_c = objective(*units.encode(forward.scale, forward.offset))
    assert max(np.abs(d_B).max(), np.abs(d_c).max()) < 1e-6


def written_out(theta, pair, j):
    """The location-scale objective of METHOD section 1, as a loop."""
    m, b = np.exp(theta[0]), theta[1]
    query, reference = pair.query, pair.reference
    total = 0.0
    for k, w in enumerate(pair.weights):
        s2 = reference.var[k, j]
        error = m * query.mean[k, j] + b - reference.mean[k, j]
        total += w * (-np.log(m) + (m**2 * query.var[k, j] + error**2) / (2 * s2))
    return total


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_closed_form_is_the_minimum_of_the_written_out_objective(seed):
    pair = random_moment_pair(seed, n_features=1)
    solution = ReverseKL().solve(LocationScale(), pair)
    arguments = (pair, 0)
    here = np.array([np.log(solution.scale[0]), solution.offset[0]])
    best = minimize(written_out, [0.0, 0.0], arguments, method="BFGS", options={"gtol": 1e-9})
    value = written_out(here, *arguments)
    assert value <= best.fun + 1e-9 * max(1.0, abs(best.fun))
    np.testing.assert_allclose(here, best.x, rtol=1e-4, atol=1e-4)


def test_the_paper_variant_is_exact_only_when_reference_variances_are_equal():
    pair = random_moment_pair(3)
    exact, paper = (
        d.solve(LocationScale(), pair) for d in (ReverseKL(), ReverseKL(variant="paper"))
    )
    assert abs(exact.scale - paper.scale).max() > 0.01
    same = np.broadcast_to(pair.reference.var[:1], pair.reference.var.shape)
    pair = replace(pair, reference=replace(pair.reference, var=same, precision=1 / same))
    exact, paper = (
        d.solve(LocationScale(), pair) for d in (ReverseKL(), ReverseKL(variant="paper"))
    )
    np.testing.assert_allclose(exact.scale, paper.scale)
    np.testing.assert_allclose(exact.offset, paper.offset)


def test_wrong_variants_are_refused():
    with pytest.raises(ValueError, match="'exact' or 'paper'. Got 'papre'"):
        ReverseKL(variant="papre").solve(LocationScale(), random_moment_pair(0))
