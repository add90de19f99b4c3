"""The pooled likelihood: the map given curves, matrices, and data with a known answer."""

import numpy as np
import pytest
from problems import (
    check_map_gradients,
    fit,
    heldout_errors,
    random_gaussians,
    random_pair,
)
from protocols import EFFECTS, continuous1d, mixed

from condokit import ConDoAdapter
from condokit.divergences.likelihood import GaussianLikelihood
from condokit.law import estimate
from condokit.maps.families import DiagonalFamily
from condokit.solvers.units import Units
from condokit.summaries.gaussians import GaussianPair


@pytest.mark.parametrize("kind", ["white", "feature", "common", "as given"])
def test_gradients_in_a_matrix_agree_with_finite_differences(kind):
    objective = GaussianLikelihood(Units(random_pair(2), kind))
    rng = np.random.default_rng(0)
    B, c = rng.normal(size=(3, 3)), rng.normal(size=3)
    check_map_gradients(objective, B, c, rel=1e-5, abs=1e-6)


def test_the_likelihood_of_a_matrix_is_the_same_in_any_units():
    pair, rng = random_pair(3), np.random.default_rng(0)
    A, b = rng.normal(size=(3, 3)), rng.normal(size=3)
    values = set()
    for kind in ("white", "feature", "common", "as given"):
        units = Units(pair, kind)
        values.add(round(GaussianLikelihood(units)(*units.encode(A, b))[0], 8))
    assert len(values) == 1


def test_the_likelihood_is_that_of_the_rows():
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(2, 2)), rng.normal(size=2)
    rows = [
        [rng.normal(size=(n, 2)) + k for k, n in enumerate(sizes)] for sizes in ((7, 9), (8, 5))
    ]
    sides = []
    for side in rows:
        cov = np.array([np.cov(x.T, bias=True) for x in side])
        mean = np.array([x.mean(axis=0) for x in side])
        sides.append(random_gaussians(rng, 2, 2, mean, cov, [len(x) for x in side]))
    units = Units(GaussianPair(*sides, np.array([0.4, 0.6])), "white")
    value = GaussianLikelihood(units)(*units.encode(A, b))[0]
    total = -16 * np.log(abs(np.linalg.det(A)))
    for x, y in zip(*rows):
        both = np.vstack([x @ A.T + b, y])
        total += len(both) / 2 * np.log(np.linalg.det(np.cov(both.T, bias=True)))
    assert value == pytest.approx(total / 16)


class Gain(DiagonalFamily):
    has_offset = False


def test_a_scale_without_offset_is_found():
    pair = continuous1d("homoscedastic", 0, scale=2.0, offset=0.0)
    adapter = fit(pair, map=Gain(), shrinkage=None)
    assert adapter.map_.offset[0] == 0
    assert adapter.map_.scale[0] == pytest.approx(0.5, abs=3 * adapter.map_se_["scale"][0])
    free = fit(pair, shrinkage=None)
    assert adapter.map_se_["scale"][0] < free.map_se_["scale"][0]


@pytest.mark.parametrize(("effect", "at_most"), list(zip(EFFECTS, (0.65, 1.5, 0.65))))
def test_one_continuous_confounder(effect, at_most):
    errors = heldout_errors(continuous1d(effect, s) for s in range(3000, 3020))
    assert np.mean(errors) < at_most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "limits"), [("split", (0.75, 1.7, 1.6)), ("irrelevant", (0.75, 1.6, 0.8))]
)
def test_many_confounders(kind, limits):
    for effect, at_most in zip(EFFECTS, limits):
        pairs = (continuous1d(effect, s, n_confounders=32, columns=kind) for s in range(4000, 4015))
        assert np.mean(heldout_errors(pairs)) < at_most


def test_mixed_confounders():
    pairs = (mixed(s) for s in range(20))
    assert np.mean(heldout_errors(pairs, warn_overlap=0.2)) < 0.4


def test_standard_errors_cover_the_truth():
    """Nominal 95% intervals of the plain scale, over effects and simulations."""
    hits = []
    for effect in EFFECTS:
        for seed in range(5000, 5060):
            adapter = fit(continuous1d(effect, seed), shrinkage=None)
            error = adapter.map_se_["scale"][0]
            hits.append(abs(adapter.map_.scale[0] - 0.5) < 1.96 * error)
    assert 0.9 < np.mean(hits) < 0.99


def test_features_are_fitted_as_if_alone():
    """One matrix product serves all features, and none changes another."""
    rng = np.random.default_rng(0)
    Z_query, Z_reference = rng.uniform(0.3, 1, 150), rng.uniform(0, 1, 200)
    B = rng.normal(size=40)
    X_query = 2 * (np.outer(Z_query, B) + 0.3 * rng.normal(size=(150, 40))) + 1
    X_reference = np.outer(Z_reference, B) + 0.3 * rng.normal(size=(200, 40))
    together = ConDoAdapter(shrinkage=None).fit_pair(X_query, X_reference, Z_query, Z_reference)
    for j in (0, 17, 39):
        alone = ConDoAdapter(shrinkage=None).fit_pair(
            X_query[:, [j]], X_reference[:, [j]], Z_query, Z_reference
        )
        error = together.map_se_["scale"][j]
        assert alone.map_.scale[0] == pytest.approx(together.map_.scale[j], abs=0.2 * error)
        assert alone.map_se_["scale"][0] == pytest.approx(error, rel=0.05)


def test_large_data_use_all_rows_for_the_map(monkeypatch):
    rng = np.random.default_rng(0)
    n = 30_000
    Z_query, Z_reference = rng.uniform(0.3, 1, n), rng.uniform(0, 1, n)
    X_query = (2 * (np.sin(4 * Z_query) + 0.5 * rng.normal(size=n)) + 1)[:, None]
    X_reference = (np.sin(4 * Z_reference) + 0.5 * rng.normal(size=n))[:, None]
    data = X_query, X_reference, Z_query, Z_reference
    monkeypatch.setattr(estimate, "_CHOOSING_ROWS", 2000)
    thin = ConDoAdapter(shrinkage=None).fit_pair(*data)
    monkeypatch.setattr(estimate, "_CHOOSING_ROWS", 10**6)
    full = ConDoAdapter(shrinkage=None).fit_pair(*data)
    assert abs(thin.map_.scale[0] - full.map_.scale[0]) < full.map_se_["scale"][0]
    assert thin.map_se_["scale"][0] == pytest.approx(full.map_se_["scale"][0], rel=0.2)


def test_row_order_and_units_do_not_matter():
    pair = continuous1d("heteroscedastic", 1)
    first = fit(pair, shrinkage=None).map_
    p = np.random.default_rng(0).permutation(100)
    again = ConDoAdapter(shrinkage=None).fit_pair(
        pair.X_query[p] * 1e6, pair.X_reference * 1e6, pair.Z_query[p] * 1e-3 + 7,
        pair.Z_reference * 1e-3 + 7,
    ).map_  # fmt: skip
    np.testing.assert_allclose(again.scale, first.scale, rtol=1e-6)
    np.testing.assert_allclose(again.offset, first.offset * 1e6, rtol=1e-5)
    overlap = [
        ConDoAdapter().fit_pair(pair.X_query, pair.X_reference, z, pair.Z_reference).overlap_
        for z in (pair.Z_query, pair.Z_query[p])
    ]
    assert overlap[0].coefficient == pytest.approx(overlap[1].coefficient, rel=1e-9)


def test_heavy_tailed_confounders_are_compared_by_rank():
    rng = np.random.default_rng(0)
    Z_query, Z_reference = rng.normal(0.7, 1, 300), rng.normal(0, 1, 300)
    X_query = (2 * (3 * Z_query + 0.5 * rng.normal(size=300)) + 5)[:, None]
    X_reference = (3 * Z_reference + 0.5 * rng.normal(size=300))[:, None]
    for change in (np.exp, lambda z: z**5):
        adapter = ConDoAdapter().fit_pair(
            X_query, X_reference, change(3 * Z_query), change(3 * Z_reference)
        )
        assert adapter.map_.scale[0] == pytest.approx(0.5, abs=0.03)
        assert adapter.map_.offset[0] == pytest.approx(-2.5, abs=0.3)


def test_weights_count_rows():
    pair = continuous1d("homoscedastic", 2)
    times = np.random.default_rng(0).integers(1, 4, 100)
    weighted = ConDoAdapter().fit_pair(
        pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference,
        sample_weight=(times, np.ones(200)),
    )  # fmt: skip
    repeated = ConDoAdapter().fit_pair(
        np.repeat(pair.X_query, times, axis=0), pair.X_reference,
        np.repeat(pair.Z_query, times, axis=0), pair.Z_reference,
    )  # fmt: skip
    assert weighted.map_.scale[0] == pytest.approx(repeated.map_.scale[0], rel=0.02)


def test_repeated_rows_of_the_same_subjects_are_no_new_evidence():
    pair = continuous1d("homoscedastic", 4)
    once = fit(pair).map_se_["scale"][0]
    ten = [
        np.repeat(a, 10, axis=0)
        for a in (pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference)
    ]
    subjects = np.repeat(np.arange(100), 10), np.repeat(np.arange(200), 10) + 1000
    naive = ConDoAdapter().fit_pair(*ten).map_se_["scale"][0]
    grouped = ConDoAdapter().fit_pair(*ten, groups=subjects).map_se_["scale"][0]
    assert naive < 0.5 * once
    assert grouped == pytest.approx(once, rel=0.2)


def coverage(n, n_features=20, rows_each=1, correlation=0.0):
    """Share of intervals, estimate +- 1.96 errors, that hold the true scale and offset."""
    held = []
    for seed in range(20):
        rng = np.random.default_rng(seed)

        def draw(low, first, rng=rng):
            z = rng.uniform(low, 8, n)
            shared = rng.normal(size=(n, n_features)).repeat(rows_each, axis=0)
            own = rng.normal(size=(n * rows_each, n_features))
            noise = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
            z = z.repeat(rows_each)
            return 4 * z[:, None] + 1 + 2 * noise, z, np.arange(first, first + n).repeat(rows_each)

        (X_query, *query), (X_reference, *reference) = draw(2, 0), draw(0, n)
        adapter = ConDoAdapter(shrinkage=None, warn_overlap=0).fit_pair(
            2 * X_query + 5, X_reference, query[0], reference[0],
            groups=(query[1], reference[1]) if rows_each > 1 else None,
        )  # fmt: skip
        for name, truth in (("scale", 0.5), ("offset", -2.5)):
            error = np.abs(getattr(adapter.map_, name) - truth)
            held.append(error < 1.96 * adapter.map_se_[name])
    return np.mean(held)


def test_intervals_of_few_rows_cover():
    assert 0.92 < coverage(10) < 0.98
    assert 0.92 < coverage(20) < 0.98


@pytest.mark.parametrize("correlation", [0.3, 0.8])
def test_intervals_of_few_subjects_cover(correlation):
    assert 0.92 < coverage(20, rows_each=10, correlation=correlation) < 0.98


def test_shift_and_identity():
    pair = continuous1d("homoscedastic", 3, scale=1.0)
    shift = fit(pair, map="shift").map_
    assert shift.scale[0] == 1
    assert shift.offset[0] == pytest.approx(-5, abs=1)
    assert fit(pair, map="identity").map_.offset[0] == 0
