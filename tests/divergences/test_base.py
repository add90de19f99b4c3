"""What all divergences between moments have in common."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import pair_of, random_moment_pair, random_moments, random_pair
from protocols import rotations
from scipy.optimize import minimize_scalar

from condokit import (
    Affine,
    ConDoAdapter,
    ForwardKL,
    GaussianOT,
    LocationScale,
    Orthogonal,
    ReverseKL,
    Shift,
)
from condokit.divergences import DIVERGENCES as NAMED
from condokit.divergences import MomentDivergence
from condokit.maps.families import MAPS, DiagonalFamily


def test_what_does_not_fit_together_is_refused():
    data = rotations(3, 2, 40, 0)
    rows = (data.X_query, data.X_reference, data.Z_query, data.Z_reference)
    for family, divergence, message in (
        (Orthogonal(), GaussianOT(), "'ot' finds diagonal maps and map='affine'"),
        (Affine(), ReverseKL(variant="paper"), "variant='paper' of ReverseKL is for diagonal"),
    ):
        assert message in divergence.supports(family)
        with pytest.raises(ValueError, match=message):
            ConDoAdapter(family, divergence=divergence).fit_pair(*rows)
    with pytest.raises(ValueError, match="n_starts of Affine"):
        ReverseKL().solve(Affine(n_starts=0), random_pair(0))
    with pytest.raises(ValueError, match="PCMatch finds full matrices, not LocationScale"):
        ConDoAdapter(divergence="pc-match").fit_pair(*rows)


VARIANTS = [ReverseKL(), ReverseKL(variant="paper"), GaussianOT(), ForwardKL()]

DIAGONAL = [name for name, family in MAPS.items() if issubclass(family, DiagonalFamily)]


def moved(moments, name, step):
    """Move means or variances; precisions stay inverse to variances."""
    if name == "mean":
        return replace(moments, mean=moments.mean + step)
    var = moments.var + step
    return replace(moments, var=var, precision=moments.precision * moments.var / var)


@pytest.mark.parametrize("divergence", VARIANTS, ids=repr)
def test_gradients_agree_with_finite_differences(divergence):
    pair = random_moment_pair(0)
    query = pair.query
    _, d_mean, d_var = divergence.value_and_grad(query, pair.reference, pair.weights)
    for name, exact in (("mean", d_mean), ("var", d_var)):
        for place in np.ndindex(exact.shape):
            step = np.zeros(exact.shape)
            step[place] = 1e-6
            up, down = (
                divergence.value(replace(pair, query=moved(query, name, sign * step)))
                for sign in (1, -1)
            )
            assert exact[place] == pytest.approx((up - down) / 2e-6, rel=1e-5, abs=1e-7)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(VARIANTS), st.sampled_from(DIAGONAL))
def test_closed_forms_equal_the_general_minimiser(seed, divergence, family):
    pair = random_moment_pair(seed)
    family = MAPS[family]()
    exact, numeric = divergence.solve(family, pair), divergence.by_descent(family, pair)
    np.testing.assert_allclose(exact.scale, numeric.scale, rtol=1e-4)
    np.testing.assert_allclose(exact.offset, numeric.offset, rtol=1e-4, atol=1e-4)


class Gain(DiagonalFamily):
    has_offset = False


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(VARIANTS))
def test_closed_forms_without_an_offset_are_the_minimum(seed, divergence):
    pair = random_moment_pair(seed, n_features=1)
    found = divergence.solve(Gain(), pair)
    np.testing.assert_array_equal(found.offset, 0)

    def value(log_scale):
        scale = np.exp(log_scale)
        query = pair.query
        mapped = replace(
            query,
            mean=query.mean * scale,
            var=query.var * scale**2,
            precision=query.precision / scale**2,
        )
        return divergence.value(replace(pair, query=mapped))

    here = np.log(found.scale[0])
    tried = [
        minimize_scalar(value, bounds=(low, low + 4), method="bounded", options={"xatol": 1e-9})
        for low in np.arange(-10, 10, 2)
    ]
    best = min(tried, key=lambda result: result.fun)
    if found.scale[0] < 1e-3:  # means of opposite signs: the less, the better
        assert isinstance(divergence, GaussianOT)
        assert value(here) <= best.fun + 1e-6 * abs(best.fun)
        return
    assert value(here) <= best.fun + 1e-9 * max(1.0, abs(best.fun))
    assert here == pytest.approx(best.x, abs=1e-4)


@pytest.mark.parametrize("divergence", VARIANTS, ids=repr)
def test_zero_stays_zero_without_an_offset_in_the_general_minimiser(divergence):
    pair = random_moment_pair(7)
    exact, numeric = divergence.solve(Gain(), pair), divergence.by_descent(Gain(), pair)
    np.testing.assert_allclose(exact.scale, numeric.scale, rtol=1e-4)
    np.testing.assert_allclose(numeric.offset, 0, atol=1e-12)


@pytest.mark.parametrize("divergence", VARIANTS, ids=repr)
def test_splitting_a_support_value_changes_nothing(divergence):
    pair = random_moment_pair(1)

    def split(moments):
        fields = ("mean", "var", "precision", "count", "dof")
        return replace(moments, **{f: np.repeat(getattr(moments, f), 2, axis=0) for f in fields})

    once = divergence.solve(LocationScale(), pair)
    halves = pair_of(split(pair.query), split(pair.reference), np.repeat(pair.weights / 2, 2))
    twice = divergence.solve(LocationScale(), halves)
    np.testing.assert_allclose(once.scale, twice.scale)
    np.testing.assert_allclose(once.offset, twice.offset)


@pytest.mark.parametrize("divergence", VARIANTS, ids=repr)
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
    solution = divergence.solve(family, pair_of(*sides, weights))
    if family.has_scale:
        spread = np.log(solution.scale).std()
        assert np.mean(solution.se_log_scale) == pytest.approx(spread, rel=0.1)
    centre = (weights @ sides[0].mean).mean()
    at_centre = solution.image + solution.scale * (centre - solution.centre)
    assert np.mean(solution.se_image) == pytest.approx(at_centre.std(), rel=0.15)


def test_every_named_divergence_works_with_every_named_map():
    pair = random_moment_pair(5)
    for make_divergence in NAMED.values():
        if not issubclass(make_divergence, MomentDivergence):
            continue
        for name in DIAGONAL:
            solution = make_divergence().solve(MAPS[name](), pair)
            assert np.isfinite(solution.offset).all()
            assert (solution.scale > 0).all()
