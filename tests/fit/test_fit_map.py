"""Fits of full matrices, through the adapter."""

import numpy as np
import pytest
from protocols import SCENARIOS, categorical2d, rmse, rotations

from condokit import ConDoAdapter, IdentifiabilityWarning


@pytest.mark.parametrize(
    ("n_features", "n_strata", "n", "most"), [(5, 4, 500, 0.13), (3, 3, 500, 0.2)]
)
def test_rotations_are_undone(n_features, n_strata, n, most):
    errors = []
    for seed in range(5):
        data = rotations(n_features, n_strata, 500, seed)
        adapter = ConDoAdapter(map="affine", divergence="likelihood").fit_pair(
            data.X_query, data.X_reference, data.Z_query, data.Z_reference
        )
        errors.append(rmse(adapter.transform(data.X_query), data.truth))
    assert np.median(errors) < most
    report = adapter.report_
    assert report["gradient_norm"] < 1e-3
    assert report["condition_number"] == pytest.approx(np.linalg.cond(adapter.map_.A))


def test_rings_are_mapped_with_the_right_orientation():
    for seed in range(3):
        pairs = categorical2d(seed)
        for scenario in SCENARIOS:
            data = pairs[scenario]
            adapter = ConDoAdapter(map="affine", divergence="reverse-kl").fit_pair(
                data.X_query, data.X_reference, data.Z_query, data.Z_reference
            )
            assert rmse(adapter.transform(data.X_heldout), data.truth_heldout) < 0.5


@pytest.mark.filterwarnings("ignore:Scales far from one")  # of lines where a matrix is true
@pytest.mark.filterwarnings("ignore:A curve is more likely")
def test_a_continuous_confounder_identifies_a_matrix():
    rng = np.random.default_rng(3)
    curve, F = rng.normal(size=(3, 4)), rng.normal(size=(4, 2))

    def draw(low, high):
        z = rng.uniform(low, high, 400)
        noise = rng.normal(size=(400, 2)) @ F.T + 0.4 * rng.normal(size=(400, 4))
        mean = np.column_stack([z, np.sin(2 * z), z**2 / 3]) @ curve
        return mean + 0.25 * (0.5 + 0.3 * z[:, None]) * noise, z

    (truth, z_query), (X_reference, z_reference) = draw(1, 4), draw(0, 3)
    A = rng.normal(size=(4, 4))
    A[0] *= np.sign(np.linalg.det(A))
    X_query = truth @ A.T + 1
    errors = {}
    for kind in ("location-scale", "affine"):
        adapter = ConDoAdapter(map=kind, divergence="likelihood")
        adapter.fit_pair(X_query, X_reference, z_query, z_reference)
        errors[kind] = rmse(adapter.transform(X_query), truth)
    assert errors["affine"] < 0.2 * errors["location-scale"]


def test_shrinkage_by_a_number_goes_to_the_identity():
    data = rotations(3, 3, 100, 0)
    rows = (data.X_query, data.X_reference, data.Z_query, data.Z_reference)
    maps = [
        ConDoAdapter(map="affine", divergence="reverse-kl", shrinkage=s).fit_pair(*rows).map_
        for s in (None, 0.5, 1.0)
    ]
    np.testing.assert_allclose(maps[1].A, (maps[0].A + np.eye(3)) / 2)
    np.testing.assert_allclose(maps[2].A, np.eye(3))
    np.testing.assert_allclose(maps[2].b, 0, atol=1e-12)


@pytest.mark.parametrize("divergence", ["auto", "reverse-kl", "likelihood", "ot", "pc-match"])
@pytest.mark.parametrize("shrinkage", ["auto", None])
@pytest.mark.filterwarnings("ignore::condokit.IdentifiabilityWarning")
def test_difficult_features_give_finite_maps(divergence, shrinkage):
    data = rotations(3, 2, 30, 0)
    rng = np.random.default_rng(0)

    def spoil(X):
        copies = [X, X[:, :1], X[:, :1] + X[:, 1:2], np.full((len(X), 1), 7.0)]
        return np.hstack(copies)  # a duplicate, a sum, a constant

    X_query, X_reference = spoil(data.X_query), spoil(data.X_reference)
    adapter = ConDoAdapter(map="affine", divergence=divergence, shrinkage=shrinkage)
    adapter.fit_pair(X_query, X_reference, data.Z_query, data.Z_reference)
    assert np.isfinite(adapter.transform(X_query)).all()
    assert adapter.map_.A[5, 5] == 1
    wide = rng.normal(size=(30, 40)), rng.normal(size=(25, 40))  # more features than rows
    with pytest.warns(IdentifiabilityWarning, match="location-scale map is fitted instead"):
        adapter = ConDoAdapter(map="affine", divergence=divergence, shrinkage=shrinkage).fit_pair(
            *wide, rng.choice(["a", "b"], 30), rng.choice(["a", "b"], 25)
        )
    assert adapter.map_.kind == "diagonal"


@pytest.mark.parametrize("divergence", ["ot", "likelihood", "reverse-kl", "forward-kl"])
def test_units_of_features_do_not_matter(divergence):
    data = rotations(4, 4, 200, 1)
    units = np.array([1e-8, 1.0, 1e3, 1e8])
    rows = data.X_query, data.X_reference
    adapter = ConDoAdapter("affine", divergence=divergence)
    plain = adapter.fit_pair(*rows, data.Z_query, data.Z_reference).transform(rows[0])
    scaled = [X * units for X in rows]
    adapted = adapter.fit_pair(*scaled, data.Z_query, data.Z_reference).transform(scaled[0])
    if divergence == "ot":  # which does depend on units, but always matches the spread
        sd = [
            np.sqrt(np.mean([X[z == Z].var(axis=0) for z in np.unique(Z)], axis=0))
            for X, Z in ((adapted, data.Z_query), (scaled[1], data.Z_reference))
        ]
        assert (np.abs(np.log(sd[0] / sd[1])) < 1.5).all()
    else:
        np.testing.assert_allclose(adapted / units, plain, rtol=1e-3, atol=1e-3)


def test_shrinkage_keeps_the_kind_of_map():
    data = rotations(4, 3, 100, 0)
    rows = (data.X_query, data.X_reference, data.Z_query, data.Z_reference)
    A = ConDoAdapter("orthogonal", shrinkage=0.5).fit_pair(*rows).map_.A
    np.testing.assert_allclose(A @ A.T, np.eye(4), atol=1e-10)


@pytest.mark.parametrize("conditional", ["kernel", "splines"])
def test_smooth_conditionals_also_take_categories(conditional):
    data = rotations(3, 3, 200, 0)
    adapter = ConDoAdapter("affine", divergence="reverse-kl", conditional=conditional)
    adapter.fit_pair(data.X_query, data.X_reference, data.Z_query, data.Z_reference)
    assert np.isfinite(adapter.map_.A).all()


def test_too_many_features_fall_back_at_once_and_say_so():
    rng = np.random.default_rng(0)
    Z = np.repeat(["a", "b"], 10)
    with pytest.warns(IdentifiabilityWarning, match="location-scale map is fitted instead"):
        adapter = ConDoAdapter("affine").fit_pair(
            rng.normal(size=(20, 200)), rng.normal(size=(20, 200)), Z, Z
        )
    assert adapter.report_["fallback"] == "location-scale"
    assert "ladder" not in adapter.report_


def test_strata_that_are_alike_do_not_determine_a_matrix():
    rng = np.random.default_rng(0)

    def draw():
        z = rng.integers(3, size=600)
        return rng.normal(size=(600, 6)) + 0.5 * z[:, None], z.astype(str)

    (X_query, Z_query), (X_reference, Z_reference) = draw(), draw()
    with pytest.warns(IdentifiabilityWarning, match="too much alike to determine the matrix"):
        ConDoAdapter("affine").fit_pair(X_query, X_reference, Z_query, Z_reference)
    data = rotations(5, 4, 100, 0)
    adapter = ConDoAdapter("affine").fit_pair(
        data.X_query, data.X_reference, data.Z_query, data.Z_reference
    )
    assert adapter.report_["curvature"] * 400 > 50


def test_one_stratum_does_not_determine_a_matrix():
    data = rotations(3, 1, 100, 0)
    with pytest.warns(IdentifiabilityWarning, match="up to a rotation only"):
        ConDoAdapter(map="affine", divergence="reverse-kl").fit_pair(
            data.X_query, data.X_reference, data.Z_query, data.Z_reference
        )


def test_weights_count_rows_in_covariances_too():
    data = rotations(3, 3, 40, 0)
    rng = np.random.default_rng(0)
    w_query, w_reference = (rng.integers(0, 4, len(X)) for X in (data.X_query, data.X_reference))
    adapter = ConDoAdapter(map="affine", divergence="likelihood", shrinkage=None)
    weighted = adapter.fit_pair(
        data.X_query, data.X_reference, data.Z_query, data.Z_reference,
        sample_weight=(w_query, w_reference),
    ).map_  # fmt: skip
    repeated = adapter.fit_pair(
        np.repeat(data.X_query, w_query, axis=0), np.repeat(data.X_reference, w_reference, axis=0),
        np.repeat(data.Z_query, w_query), np.repeat(data.Z_reference, w_reference),
    ).map_  # fmt: skip
    np.testing.assert_allclose(weighted.A, repeated.A, rtol=1e-5, atol=1e-6)
