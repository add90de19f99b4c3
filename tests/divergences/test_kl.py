from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import random_moments
from scipy.optimize import minimize

from condokit import ForwardKL, GaussianOT, Jeffreys, LocationScale, ReverseKL, Shift
from condokit.divergences import DIVERGENCES, MomentDivergence
from condokit.maps.families import MAPS, DiagonalFamily

VARIANTS = [ReverseKL(), ReverseKL(variant="paper"), GaussianOT(), ForwardKL(), Jeffreys()]
CLOSED_FORMS = [d for d in VARIANTS if not isinstance(d, Jeffreys)]
DIAGONAL = [name for name, family in MAPS.items() if issubclass(family, DiagonalFamily)]


def random_problem(seed, spread=1.0, n_features=3):
    rng = np.random.default_rng(seed)
    n_values = int(rng.integers(1, 7))
    weights = rng.dirichlet(np.ones(n_values))
    query, reference = (random_moments(rng, n_values, n_features, spread) for _ in range(2))
    return query, reference, weights


def moved(moments, name, step):
    """Move means or variances; precisions stay inverse to variances."""
    if name == "mean":
        return replace(moments, mean=moments.mean + step)
    var = moments.var + step
    return replace(moments, var=var, precision=moments.precision * moments.var / var)


@pytest.mark.parametrize("divergence", VARIANTS, ids=repr)
def test_gradients_agree_with_finite_differences(divergence):
    query, reference, weights = random_problem(0)
    _, d_mean, d_var = divergence.value_and_grad(query, reference, weights)
    for name, exact in (("mean", d_mean), ("var", d_var)):
        for place in np.ndindex(exact.shape):
            step = np.zeros(exact.shape)
            step[place] = 1e-6
            up, down = (
                divergence.value(moved(query, name, sign * step), reference, weights)
                for sign in (1, -1)
            )
            assert exact[place] == pytest.approx((up - down) / 2e-6, rel=1e-5, abs=1e-7)


def written_out(theta, query, reference, weights, j):
    """The location-scale objective of METHOD section 1, as a loop."""
    m, b = np.exp(theta[0]), theta[1]
    total = 0.0
    for k, w in enumerate(weights):
        s2 = reference.var[k, j]
        error = m * query.mean[k, j] + b - reference.mean[k, j]
        total += w * (-np.log(m) + (m**2 * query.var[k, j] + error**2) / (2 * s2))
    return total


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_closed_form_is_the_minimum_of_the_written_out_objective(seed):
    query, reference, weights = random_problem(seed, n_features=1)
    solution = ReverseKL().minimize(LocationScale(), query, reference, weights)
    arguments = (query, reference, weights, 0)
    here = np.array([np.log(solution.scale[0]), solution.offset[0]])
    best = minimize(written_out, [0.0, 0.0], arguments, method="BFGS", options={"gtol": 1e-9})
    value = written_out(here, *arguments)
    assert value <= best.fun + 1e-9 * max(1.0, abs(best.fun))
    np.testing.assert_allclose(here, best.x, rtol=1e-4, atol=1e-4)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(CLOSED_FORMS), st.sampled_from(DIAGONAL))
def test_closed_forms_equal_the_general_minimiser(seed, divergence, family):
    query, reference, weights = random_problem(seed)
    family = MAPS[family]()
    exact = divergence.minimize(family, query, reference, weights)
    numeric = MomentDivergence.minimize(divergence, family, query, reference, weights)
    np.testing.assert_allclose(exact.scale, numeric.scale, rtol=1e-4)
    np.testing.assert_allclose(exact.offset, numeric.offset, rtol=1e-4, atol=1e-4)


def test_the_paper_variant_is_exact_only_when_reference_variances_are_equal():
    query, reference, weights = random_problem(3)
    exact, paper = (
        d.minimize(LocationScale(), query, reference, weights)
        for d in (ReverseKL(), ReverseKL(variant="paper"))
    )
    assert abs(exact.scale - paper.scale).max() > 0.01
    same = np.broadcast_to(reference.var[:1], reference.var.shape)
    reference = replace(reference, var=same, precision=1 / same)
    exact, paper = (
        d.minimize(LocationScale(), query, reference, weights)
        for d in (ReverseKL(), ReverseKL(variant="paper"))
    )
    np.testing.assert_allclose(exact.scale, paper.scale)
    np.testing.assert_allclose(exact.offset, paper.offset)


def test_optimal_transport_of_one_stratum_matches_mean_and_standard_deviation():
    query, reference, _ = random_problem(0)
    query, reference = (
        replace(m, mean=m.mean[:1], var=m.var[:1], precision=m.precision[:1], count=m.count[:1],
                dof=m.dof[:1])
        for m in (query, reference)
    )  # fmt: skip
    solution = GaussianOT().minimize(LocationScale(), query, reference, np.ones(1))
    np.testing.assert_allclose(solution.scale, np.sqrt(reference.var / query.var)[0])
    np.testing.assert_allclose(solution.image, reference.mean[0])


@pytest.mark.parametrize("divergence", VARIANTS, ids=repr)
def test_splitting_a_support_value_changes_nothing(divergence):
    query, reference, weights = random_problem(1)

    def split(moments):
        fields = ("mean", "var", "precision", "count", "dof")
        return replace(moments, **{f: np.repeat(getattr(moments, f), 2, axis=0) for f in fields})

    once = divergence.minimize(LocationScale(), query, reference, weights)
    halves = np.repeat(weights / 2, 2)
    twice = divergence.minimize(LocationScale(), split(query), split(reference), halves)
    np.testing.assert_allclose(once.scale, twice.scale)
    np.testing.assert_allclose(once.offset, twice.offset)


@pytest.mark.parametrize("divergence", CLOSED_FORMS, ids=repr)
@pytest.mark.parametrize("family", [LocationScale(), Shift()], ids=repr)
def test_standard_errors_match_the_spread_of_repeated_samples(divergence, family):
    rng = np.random.default_rng(0)
    n = np.array([30, 60]), np.array([80, 25])  # query, reference
    mean, sd = np.array([0.0, 3.0]), np.array([1.0, 2.0])
    weights = np.array([0.5, 0.5])
    repeats = 4000
    sides = []
    for count, scale in zip(n, (0.8, 1.0)):
        x = [rng.normal(mean[k], sd[k], (count[k], repeats)) * scale for k in range(2)]
        moments = random_moments(rng, 2, repeats)
        var = np.array([rows.var(axis=0, ddof=1) for rows in x])
        sides.append(
            replace(
                moments,
                mean=np.array([rows.mean(axis=0) for rows in x]),
                var=var,
                precision=1 / var,
                count=count.astype(float),
                dof=count - 1.0,
            )
        )
    solution = divergence.minimize(family, *sides, weights)
    if family.has_scale:
        spread = np.log(solution.scale).std()
        assert np.mean(solution.se_log_scale) == pytest.approx(spread, rel=0.1)
    centre = (weights @ sides[0].mean).mean()
    at_centre = solution.image + solution.scale * (centre - solution.centre)
    assert np.mean(solution.se_image) == pytest.approx(at_centre.std(), rel=0.15)


def test_wrong_variants_are_refused():
    query, reference, weights = random_problem(0)
    with pytest.raises(ValueError, match="'exact' or 'paper'. Got 'papre'"):
        ReverseKL(variant="papre").minimize(LocationScale(), query, reference, weights)


def test_every_named_divergence_works_with_every_named_map():
    query, reference, weights = random_problem(5)
    for make_divergence in DIVERGENCES.values():
        if not issubclass(make_divergence, MomentDivergence):
            continue
        for name in DIAGONAL:
            solution = make_divergence().minimize(MAPS[name](), query, reference, weights)
            assert np.isfinite(solution.offset).all()
            assert (solution.scale > 0).all()
