"""The Gaussian KL divergence of full matrices, and its ways to the minimum."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from problems import check_map_gradients, kl_written_out, random_gaussians, random_pair
from scipy.optimize import minimize as scipy_minimize

from condokit.solvers.gaussian_kl import KLObjective, gap
from condokit.solvers.units import Units
from condokit.summaries.gaussians import GaussianPair

OBJECTIVES = {
    "reverse": KLObjective,
    "forward": lambda units: KLObjective(units, forward=True),
}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("kind", ["white", "common", "as given"])
def test_gradients_agree_with_finite_differences(name, kind):
    objective = OBJECTIVES[name](Units(random_pair(2), kind))
    rng = np.random.default_rng(0)
    B, c = rng.normal(size=(3, 3)), rng.normal(size=3)
    check_map_gradients(objective, B, c, rel=1e-5, abs=1e-6)


def test_the_objective_is_the_divergence_in_any_units():
    pair = random_pair(3)
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(3, 3)), rng.normal(size=3)
    expected = kl_written_out(A, b, pair)
    swapped = kl_written_out(np.linalg.inv(A), -np.linalg.inv(A) @ b, pair.swapped())
    values = {name: set() for name in OBJECTIVES}
    for kind in ("white", "common", "as given"):
        units = Units(pair, kind)
        for name, make in OBJECTIVES.items():
            values[name].add(round(make(units)(*units.encode(A, b))[0], 8))
    assert values["reverse"] == {round(expected, 8)}
    assert values["forward"] == {round(swapped, 8)}
    assert gap(A, b, pair) == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@example(39916799, 4, 1)  # a step ends at zero
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 4))
def test_newton_finds_the_minimum_of_the_written_out_divergence(seed, n_values, n_features):
    pair = random_pair(seed, n_values, n_features)
    units = Units(pair, "white")
    objective = KLObjective(units)
    found = objective.solve(np.eye(n_features), np.zeros(n_features))
    near = objective.explore(found.scale, found.offset)
    assert near.objective == pytest.approx(found.objective, abs=1e-9)  # two ways to one number
    A, b = units.decode(found.scale, found.offset)
    assert found.gradient_norm < 1e-6
    here = kl_written_out(A, b, pair)
    n = n_features**2
    shape = (n_features, n_features)

    def function(v):
        A = v[:n].reshape(shape)
        return kl_written_out(A, v[n:], pair) if np.linalg.det(A) > 0 else 1e6

    begin = np.concatenate([A.ravel(), b])
    best = scipy_minimize(function, begin * (1 + 1e-3), method="BFGS")
    assert here <= best.fun + 1e-7


def test_the_expected_divergence_is_that_of_samples_of_one_law():
    rng = np.random.default_rng(0)
    sizes = np.array([40, 60]), np.array([50, 30])
    values = []
    for _ in range(300):
        sides = []
        for rows in sizes:
            samples = [rng.normal(size=(n, 4)) for n in rows]
            cov = np.array([np.cov(x.T) for x in samples])
            mean = np.array([x.mean(axis=0) for x in samples])
            sides.append(random_gaussians(rng, 2, 4, mean, cov, rows))
        pair = GaussianPair(*sides, np.array([0.3, 0.7]))
        values.append(gap(np.eye(4), np.zeros(4), pair))
    expected = KLObjective(Units(pair, "white")).expected()
    assert expected == pytest.approx(np.mean(values), rel=0.05)


@pytest.mark.parametrize("n_values", [1, 3])
def test_descent_reaches_the_same_minimum_as_newton(n_values):
    for seed in range(5):
        units = Units(random_pair(seed, n_values, 5), "white")
        objective = KLObjective(units)
        newton = objective._newton(np.eye(5), 100)[0]  # near it, for there may be several minima
        near = newton + 0.01 * np.random.default_rng(seed).normal(size=(5, 5))
        values = [objective(B, objective.offset(B))[0] for B in (newton, near)]
        found = objective._by_descent(near, 500)
        assert found.objective == pytest.approx(values[0], abs=1e-8)
        assert found.objective < values[1]
