"""What kernel smoothers and splines have in common."""

import numpy as np
import pytest
from problems import points
from protocols import EFFECTS, continuous1d, mixed, rmse

from condokit import ConDoAdapter, KernelSmoother, Splines
from condokit.data.covariates import Covariates


@pytest.mark.parametrize("smoother", [KernelSmoother(), Splines()], ids=repr)
def test_curve_and_spread_are_found(smoother):
    rng = np.random.default_rng(0)
    z = rng.uniform(-1, 1, 1500)
    X = (np.sin(3 * z) + (0.2 + 0.2 * (z > 0)) * rng.normal(size=1500))[:, None]
    at = points(np.array([-0.5, 0.5]))
    moments = smoother.moments_at(X, points(z), at)
    np.testing.assert_allclose(moments.mean[:, 0], np.sin([-1.5, 1.5]), atol=0.06)
    np.testing.assert_allclose(np.sqrt(moments.var[:, 0]), [0.2, 0.4], rtol=0.2)


@pytest.mark.parametrize("columns", [1, 2, 6])
@pytest.mark.parametrize(
    "smoother", [KernelSmoother(), KernelSmoother(0.7), Splines()], ids=["kernel", "0.7", "splines"]
)
def test_weights_are_repeated_rows(smoother, columns):
    rng = np.random.default_rng(0)
    Z, category = rng.normal(size=(60, columns)), rng.integers(0, 2, 60)
    X = np.column_stack([np.sin(2 * Z[:, 0]) + category, Z[:, 0] ** 2]) + rng.normal(size=(60, 2))
    times = rng.integers(1, 4, 60)
    weighted = Covariates(Z, category, 2, weights=times.astype(float))
    repeated = points(Z.repeat(times, axis=0), category.repeat(times), 2)
    at = points(rng.normal(size=(9, columns)), np.arange(9) % 2, 2)
    one = smoother.moments_at(X, weighted, at)
    two = smoother.moments_at(X.repeat(times, axis=0), repeated, at)
    for name in ("mean", "var", "count"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-6)
    plain = smoother.moments_at(X, points(Z, category, 2), at)
    assert np.abs(plain.mean - one.mean).max() > 0.01


@pytest.mark.parametrize("prior", ["product", "paper"])
@pytest.mark.parametrize("conditional", ["kernel", "splines"])
def test_maps_with_weights_are_those_of_repeated_rows(conditional, prior):
    pair = continuous1d("heteroscedastic", 2)
    times = np.random.default_rng(0).integers(1, 4, 100)
    adapter = ConDoAdapter(divergence="reverse-kl", conditional=conditional, prior=prior)
    weighted = adapter.fit_pair(
        pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference,
        sample_weight=(times, None),
    ).map_  # fmt: skip
    repeated = adapter.fit_pair(
        pair.X_query.repeat(times, axis=0), pair.X_reference,
        pair.Z_query.repeat(times, axis=0), pair.Z_reference,
    ).map_  # fmt: skip
    plain = adapter.fit_pair(pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference).map_
    rtol = 1e-6 if conditional == "kernel" else 2e-3  # confounders are in slightly other units
    np.testing.assert_allclose(weighted.scale, repeated.scale, rtol=rtol)
    assert abs(plain.scale[0] / repeated.scale[0] - 1) > 2 * rtol


@pytest.mark.parametrize("conditional", ["kernel", "splines"])
@pytest.mark.parametrize("divergence", ["reverse-kl", "ot"])
def test_the_map_is_found_given_a_continuous_confounder(divergence, conditional):
    for effect, at_most in zip(EFFECTS, (1.0, 2.2, 1.2)):
        errors = []
        for seed in range(10):
            pair = continuous1d(effect, seed)
            adapter = ConDoAdapter(divergence=divergence, conditional=conditional).fit_pair(
                pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference
            )
            errors.append(rmse(adapter.transform(pair.X_heldout), pair.truth_heldout))
        assert np.mean(errors) < at_most
    assert adapter.map_se_ is None


@pytest.mark.parametrize("conditional", ["kernel", "splines"])
def test_mixed_confounders(conditional):
    pair = mixed(0)
    adapter = ConDoAdapter(
        divergence="reverse-kl", conditional=conditional, warn_overlap=0
    ).fit_pair(pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference)
    assert rmse(adapter.transform(pair.X_heldout), pair.truth_heldout) < 1
