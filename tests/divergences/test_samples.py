"""Divergences between samples, and maps between different features."""

from dataclasses import replace

import numpy as np
import pytest
from instruments import draw_tails, levels
from problems import check_map_gradients, different_features, random_samples
from protocols import ansur, categorical1d, data_folder, rmse, rotations
from sklearn.linear_model import LinearRegression, Ridge

from condokit import (
    MMD,
    Affine,
    AffineMap,
    ConDoAdapter,
    Energy,
    IdentifiabilityWarning,
    Identity,
    LocationScale,
    Orthogonal,
    Shift,
    Similarity,
)
from condokit.divergences import samples as module
from condokit.divergences.minibatches import MinibatchMMD
from condokit.divergences.samples import SampleObjective, on_means, squared_distances, with_spread
from condokit.solvers.lbfgs import descend
from condokit.solvers.matrices import means_map
from condokit.summaries.samples import Samples, as_gaussians

DIVERGENCES = [MMD(), MMD(scales=(1.0,)), Energy()]


def distance(divergence, Z, Y):
    """Return the divergence of two sets of rows, and its gradient in the first."""
    return divergence.distances(Samples([Z], [Y], np.ones(1)))(0, Z)


@pytest.mark.parametrize("fourier", [False, True])
@pytest.mark.parametrize("divergence", DIVERGENCES, ids=repr)
def test_gradients_agree_with_finite_differences(divergence, fourier, monkeypatch):
    monkeypatch.setattr(module, "_CACHED", 100)  # several parts of the rows
    if fourier:
        if not isinstance(divergence, MMD):
            pytest.skip("only MMD has an approximation")
        monkeypatch.setattr(module, "_EXACT_ROWS", 5)
    samples = random_samples(0)
    objective = SampleObjective(samples, divergence)
    rng = np.random.default_rng(1)
    for shape in ((3, 3), (3,), (3, 2)):  # square, diagonal and rectangular
        if shape == (3, 2):
            part = samples.each(lambda rows: rows[:, :2], lambda rows: rows)
            objective = SampleObjective(part, divergence)
        B, c = rng.normal(size=shape), rng.normal(size=3)
        check_map_gradients(objective, B, c, rel=1e-4, abs=1e-7)


def test_values_are_those_of_the_definitions():
    rng = np.random.default_rng(0)
    Z, Y = rng.normal(size=(6, 2)), rng.normal(1, 2, (9, 2))
    width = 2 * Y.var(axis=0, ddof=1).sum()

    def mean(f, left, right):
        pairs = [(i, j) for i, a in enumerate(left) for j, b in enumerate(right)]
        pairs = [(i, j) for i, j in pairs if left is not right or i != j]  # of different rows
        return np.mean([f(np.linalg.norm(left[i] - right[j])) for i, j in pairs])

    def mmd(r):
        return np.mean([np.exp(-(r**2) / (s * width)) for s in (0.125, 0.5, 2.0)])

    for divergence, f in ((MMD(), mmd), (Energy(), lambda r: -r)):
        expected = mean(f, Z, Z) - 2 * mean(f, Z, Y) + mean(f, Y, Y)
        assert distance(divergence, Z, Y)[0] == pytest.approx(expected, abs=2e-4)
        assert distance(divergence, Z[:1], Z[:1])[0] == pytest.approx(-2 * f(0), abs=2e-4)
    np.testing.assert_allclose(squared_distances(Z, Y)[2, 3], ((Z[2] - Y[3]) ** 2).sum())


def test_fourier_features_approximate_the_kernel(monkeypatch):
    rng = np.random.default_rng(0)
    Z, Y = rng.normal(size=(300, 3)), rng.normal(0.5, 1.5, (300, 3))
    for rows in (Y, Y[:100]):
        monkeypatch.setattr(module, "_EXACT_ROWS", 300)
        exact = distance(MMD(), Z, rows)[0]
        monkeypatch.setattr(module, "_EXACT_ROWS", 200)  # either domain may have many rows
        approximate = distance(MMD(n_fourier=20_000), Z, rows)[0]
        assert approximate != exact
        assert approximate == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=repr)
def test_location_scale_is_recovered(divergence):
    errors = []
    for seed in range(4):
        data = categorical1d(500, seed)
        adapter = ConDoAdapter(divergence=divergence).fit_pair(
            data.X_query, data.X_reference, data.Z_query, data.Z_reference
        )
        errors.append(rmse(adapter.transform(data.X_query), data.truth))
    assert np.mean(errors) < 0.3
    assert adapter.map_.kind == "diagonal"


@pytest.mark.parametrize("divergence", ["mmd", "energy"])
def test_scales_of_many_small_strata_are_not_too_small(divergence):
    scales = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        z = np.repeat(np.arange(60), 3)
        sides = [rng.normal(size=(180, 4)) + 0.5 * np.cos(z)[:, None] for _ in range(2)]
        z = z.astype(str)
        sides[0], z_query = np.append(sides[0], [[6.0] * 4], axis=0), np.append(z, "once")
        sides[1], z_reference = np.append(sides[1], [[0.0] * 4], axis=0), np.append(z, "once")
        adapter = ConDoAdapter(divergence=divergence)
        adapter.fit_pair((sides[0] - 2) / 1.5, sides[1], z_query, z_reference)
        scales.append(adapter.map_.scale)
    assert np.mean(scales) == pytest.approx(1.5, abs=0.06)  # 1 if rows were compared to themselves


def test_one_row_tells_where_it_is_and_no_spread():
    samples = random_samples(0, sizes=((20, 1), (12, 25)))
    for family, kept in ((LocationScale(), 1), (Affine(), 1), (Similarity(), 1), (Shift(), 2)):
        some = with_spread(family, samples)
        assert len(some.query) == len(some.reference) == len(some.weights) == kept
        assert some.weights.sum() == pytest.approx(1)
    lone = random_samples(0, sizes=((1, 1), (12, 25)))
    assert with_spread(LocationScale(), lone) is lone


@pytest.mark.parametrize("divergence", ["mmd", "energy"])
@pytest.mark.parametrize("kind", ["location-scale", "affine"])
def test_outliers_do_not_lead_the_search_astray(kind, divergence):
    errors = []
    for seed in (60007, 60014, 60028):
        X, Y, k, m, clean, truth, *_, unit = draw_tails("5q", seed)  # in the query alone
        adapter = ConDoAdapter(kind, divergence=divergence).fit_pair(X, Y, levels(k), levels(m))
        errors.append(rmse(adapter.transform(clean) / unit, truth / unit))
    assert max(errors) < 0.4
    assert np.mean(errors) < 0.2


def test_many_rows_find_a_matrix():
    rng = np.random.default_rng(0)
    z = np.repeat(["a", "b"], 4000)
    X, Y = (rng.exponential(size=(8000, 20)) + (z == "a")[:, None] for _ in range(2))
    adapter = ConDoAdapter("affine", divergence="mmd").fit_pair(2 * X + 5, Y, z, z)
    assert np.sqrt(np.mean((adapter.map_.A - 0.5 * np.eye(20)) ** 2)) < 0.015  # .078 once
    waves = MMD(n_fourier=50)._frequencies([Y[:300]])[:, :20]
    lengths = np.linalg.norm(waves, axis=0)
    angles = waves.T @ waves / np.outer(lengths, lengths)
    np.testing.assert_allclose(angles, np.eye(20), atol=1e-10)


@pytest.mark.parametrize("divergence", [MMD(), Energy()], ids=repr)
def test_skewness_tells_more_than_moments(divergence):
    errors = {}
    for name in (divergence, "reverse-kl"):
        errors[str(name)] = []
        for seed in range(3):
            data = rotations(3, 2, 200, seed, skewed=True)
            adapter = ConDoAdapter("affine", divergence=name).fit_pair(
                data.X_query, data.X_reference, data.Z_query, data.Z_reference
            )
            errors[str(name)].append(rmse(adapter.transform(data.X_query), data.truth))
    assert np.median(errors[str(divergence)]) < np.median(errors["reverse-kl"])


@pytest.mark.filterwarnings("ignore:The strata are too much alike")
def test_the_result_does_not_depend_on_the_order_of_rows():
    data = rotations(3, 2, 40, 0)
    rng = np.random.default_rng(0)
    q, r = rng.permutation(len(data.X_query)), rng.permutation(len(data.X_reference))
    rows = (data.X_query, data.X_reference, data.Z_query, data.Z_reference)
    moved = (data.X_query[q], data.X_reference[r], data.Z_query[q], data.Z_reference[r])
    groups = (rng.integers(0, 15, len(q)), rng.integers(10, 25, len(r)))
    for kind in ("location-scale", "affine"):
        for divergence in ("mmd", "energy"):
            adapter = ConDoAdapter(kind, divergence=divergence)
            one = adapter.fit_pair(*rows, groups=groups).map_
            other = adapter.fit_pair(*moved, groups=(groups[0][q], groups[1][r])).map_
            np.testing.assert_allclose(one.A, other.A, rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(one.b, other.b, rtol=1e-6, atol=1e-7)


def test_a_continuous_confounder_and_none_at_all():
    rng = np.random.default_rng(0)
    z = rng.uniform(0, 3, 200), rng.uniform(1, 4, 200)
    truth, X_reference = (
        np.column_stack([side, -side]) + rng.exponential(size=(200, 2)) for side in z
    )
    X_query = 2 * truth + 3
    adapter = ConDoAdapter(divergence="energy").fit_pair(X_query, X_reference, *z)
    assert rmse(adapter.transform(X_query), truth) < 0.3
    alone = ConDoAdapter(divergence="mmd").fit_pair(X_query, truth)
    assert rmse(alone.transform(X_query), truth) < 0.01


def test_energy_finds_the_scale_of_whole_numbers():
    errors = {"auto": [], "mmd": [], "energy": []}
    for seed in range(4):
        rng = np.random.default_rng(seed)
        level, z = rng.normal(size=(3, 2)), np.repeat([0, 1, 2], 100)
        truth, scores = (np.round(level[z] + rng.normal(size=(300, 2))) for _ in range(2))
        data = (truth - 3) / 1.5, scores, z.astype(str), z.astype(str)
        for name, found in errors.items():
            mapped = ConDoAdapter(divergence=name).fit_pair(*data).transform(data[0])
            found.append(rmse(mapped, truth))
    default, mmd, energy = map(np.mean, errors.values())
    assert energy < 0.5 * min(default, mmd)


@pytest.mark.parametrize("family", [Affine(), LocationScale(), Shift(), Identity()], ids=repr)
def test_a_search_goes_down(family):
    samples = random_samples(0, d=3).each(lambda rows: 2 * rows + 1, lambda rows: rows)
    objective = SampleObjective(samples, MMD())
    start = np.eye(3) if isinstance(family, Affine) else np.ones(3)
    before = objective(start, np.zeros(3))[0]
    found = descend(objective, family.around(start, np.zeros(3)), 500, 1e-8, 1e-6)
    B, c, value = found.scale, found.offset, found.objective
    assert value == pytest.approx(objective(B, c)[0])
    if isinstance(family, Identity):
        np.testing.assert_allclose((*B, *c), (1, 1, 1, 0, 0, 0))
        return
    assert value < 0.9 * before
    assert found.gradient_norm < 1e-3
    _, d_B, d_c = objective(B, c)
    assert np.abs(d_c).max() < 1e-3
    if isinstance(family, Shift):
        np.testing.assert_allclose(B, 1)
    else:
        assert np.abs(d_B * B).max() < 1e-3


def test_single_precision_is_precise_enough(monkeypatch):
    data = rotations(3, 2, 200, 0, skewed=True)
    rows = (data.X_query, data.X_reference, data.Z_query, data.Z_reference)
    maps = []
    for precision in (np.float32, np.float64):
        monkeypatch.setattr(MMD, "precision", precision)
        maps.append(ConDoAdapter("affine", divergence=MMD(max_iter=100)).fit_pair(*rows).map_)
    assert not np.array_equal(maps[0].A, maps[1].A)
    np.testing.assert_allclose(maps[0].A, maps[1].A, atol=0.01)
    np.testing.assert_allclose(maps[0].b, maps[1].b, atol=0.01)


@pytest.mark.parametrize("kind", ["location-scale", "shift"])
@pytest.mark.parametrize("divergence", [*DIVERGENCES, MinibatchMMD(K_Z=2, K_X=4)], ids=repr)
def test_diagonal_maps_need_no_square_arrays(kind, divergence):
    import tracemalloc

    rng = np.random.default_rng(0)
    X_query, X_reference = (rng.exponential(size=(8, 1500)) for _ in range(2))
    adapter = ConDoAdapter(kind, divergence=divergence)
    tracemalloc.start()
    adapter.fit_pair(X_query + 1, X_reference)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert adapter.map_.kind == "diagonal"
    assert peak < 1500**2 * 4  # bytes; half of one square array


@pytest.mark.filterwarnings("ignore:The strata are too much alike")
def test_starts_and_iterations_of_the_family_are_honoured():
    data = rotations(3, 2, 40, 0)
    rows = (data.X_query, data.X_reference, data.Z_query, data.Z_reference)
    facts = {
        n: ConDoAdapter(Affine(n_starts=n), divergence="mmd").fit_pair(*rows).report_["starts"]
        for n in (1, 2, 30)
    }
    assert len(facts[1]) == 0  # nothing to compare
    assert len(facts[2]) <= 2 < len(facts[30])
    X, Y, types = different_features(0)
    adapter = ConDoAdapter(Affine(n_starts=2), divergence="mmd", shrinkage=None)
    adapter.fit_pair(X, Y, types, types)
    assert set(adapter.report_["starts"]) == {"means", "axes"}
    adapter = ConDoAdapter(Affine(max_iter=1), divergence=MMD(max_iter=40)).fit_pair(*rows)
    assert adapter.report_["n_iter"] == 5


def test_domains_may_have_different_features(tmp_path):
    import pandas as pd

    X, Y, types = different_features(0)
    constant = rmse(Y.mean(axis=0), Y)
    maps = [ConDoAdapter("affine").fit_pair(X, Y, types, types).map_.A]
    for divergence in ("mmd", "energy"):  # one that is named is what the map makes small
        adapter = ConDoAdapter("affine", divergence=divergence)
        adapter.fit_pair(X, Y, types, types)
        assert adapter.divergence_ == divergence
        assert adapter.report_["objective"] < adapter.report_["starts"]["means"] + 1e-9
        assert all(np.abs(adapter.map_.A - A).max() > 1e-3 for A in maps)
        maps.append(adapter.map_.A)
        assert adapter.map_.A.shape == (3, 5)
        assert rmse(adapter.transform(X), Y) < 0.5 * constant
        assert adapter.inverse_transform(Y).shape == X.shape
    with pytest.raises(ValueError, match="takes 5 features to 3 and has no inverse"):
        adapter.map_.inverse()
    with pytest.raises(ValueError, match="'domain' cannot be used with a map between different"):
        adapter.transform(X, domain=np.repeat("query", len(X)))
    frames = pd.DataFrame(X, columns=list("vwxyz")), pd.DataFrame(Y, columns=["g1", "g2", "g3"])
    adapter = ConDoAdapter("affine", divergence="energy").fit_pair(*frames, types, types)
    out = adapter.transform(frames[0])
    assert list(out.columns) == ["g1", "g2", "g3"]
    assert list(adapter.get_feature_names_out()) == ["g1", "g2", "g3"]
    assert list(adapter.inverse_transform(frames[1]).columns) == list("vwxyz")
    adapter.map_.save(tmp_path / "map.json")
    assert AffineMap.load(tmp_path / "map.json") == adapter.map_
    assert "5 features to 3" in repr(adapter.map_)
    with pytest.raises(ValueError, match="must be the same features, or else use map='affine'"):
        ConDoAdapter("auto").fit_pair(X, Y, types, types)
    for how, given in ({}, ()), ({"shrinkage": None}, (types, types)):
        adapter = ConDoAdapter("affine", **how).fit_pair(X, Y, *given)
        assert adapter.map_.A.shape == (3, 5)
        assert adapter.divergence_ == "mmd"  # given nothing, or no ridge
    same = ["a"] * len(X)
    assert ConDoAdapter("affine").fit_pair(X, Y, same, same).divergence_ == "mmd"
    for divergence in ("reverse-kl", "likelihood", "ot"):
        with pytest.raises(ValueError, match="with divergence='auto', 'mmd' or 'energy'"):
            ConDoAdapter("affine", divergence=divergence).fit_pair(X, Y, types, types)


@pytest.mark.filterwarnings("ignore:The strata are too much alike")
@pytest.mark.parametrize("kind", ["location-scale", "shift", "affine", "orthogonal"])
def test_constant_features_are_only_shifted(kind):
    data = rotations(3, 2, 30, 0)
    rows = [
        np.column_stack([X, np.full(len(X), value)])
        for X, value in ((data.X_query, 1.0), (data.X_reference, 3.0))
    ]
    with pytest.warns(IdentifiabilityWarning, match="only shifted: 'column 3'"):
        adapter = ConDoAdapter(kind, divergence="energy").fit_pair(
            *rows, data.Z_query, data.Z_reference
        )
    np.testing.assert_allclose(adapter.transform(rows[0])[:, 3], 3.0)
    assert adapter.report_["constant_features"] == ["column 3"]


def test_names_lead_through_maps_between_different_features():
    rng = np.random.default_rng(0)
    wide = AffineMap(rng.normal(size=(2, 3)), [1.0, 2.0], ["a", "b", "c"], output_names=["u", "v"])
    scale = AffineMap([2.0, 3.0, 4.0], [0.0, 1.0, 2.0], ["c", "b", "a"])
    X = rng.normal(size=(5, 3))
    together = wide.compose(scale)
    np.testing.assert_allclose(together(X), wide(scale(X)[:, [2, 1, 0]]))
    after = AffineMap([5.0, 7.0], [0.0, 0.0], ["v", "u"])
    np.testing.assert_allclose(after.compose(wide).A, np.diag([5.0, 7.0]) @ wide.A[[1, 0]])
    with pytest.raises(ValueError, match="outputs are 'u', 'v', but this map takes 'x', 'y'"):
        AffineMap([1.0, 1.0], [0.0, 0.0], ["x", "y"]).compose(wide)
    with pytest.raises(ValueError, match="has 2 outputs, but this map takes 3"):
        wide.compose(wide)
    renamed = AffineMap(np.diag([2.0, 4.0]), [1.0, 1.0], ["a", "b"], output_names=["A", "B"])
    back = renamed.inverse()
    assert (back.feature_names, back.output_names) == (("A", "B"), ("a", "b"))
    linked = AffineMap([2.0], [1.0], links="log")
    np.testing.assert_allclose(linked.pseudo_inverse()(linked([[3.0]])), [[3.0]])
    with pytest.raises(ValueError, match="cannot be composed"):
        wide.compose(AffineMap([1.0, 1.0, 1.0], [0.0, 0.0, 0.0], ["a", "b", "c"], links="log"))


def test_what_samples_cannot_do_is_refused():
    data = rotations(3, 2, 30, 0)
    rows = (data.X_query, data.X_reference, data.Z_query, data.Z_reference)
    with pytest.raises(ValueError, match="MMD does not find LowRank maps"):
        ConDoAdapter("low-rank", divergence="mmd").fit_pair(*rows)
    with pytest.raises(ValueError, match="whole numbers"):
        ConDoAdapter(divergence="mmd").fit_pair(
            *rows, sample_weight=(np.full(60, 0.5), np.ones(60))
        )
    for wrong, message in (
        (MMD(max_rows=0), "'max_rows'"),
        (MMD(scales=()), "'scales' of MMD must be positive"),
        (MMD(scales=(-1.0,)), "'scales' of MMD must be positive"),
        (MMD(max_iter=0), "'max_iter'"),
        (MMD(n_fourier=0), "'n_fourier'"),
    ):
        with pytest.raises(ValueError, match=message):
            ConDoAdapter(divergence=wrong).fit_pair(*rows)
    with pytest.raises(ValueError, match="only 1 sample in each stratum"):
        ConDoAdapter(divergence="mmd").fit_pair(rows[0][:1], rows[1][:5])
    X, Y, types = different_features(0)
    for adapter, message in (
        (ConDoAdapter(Affine(links="log"), divergence="mmd"), "without links"),
        (ConDoAdapter("affine", divergence="mmd", shrinkage=0.5), "there is no identity"),
    ):
        with pytest.raises(ValueError, match=message):
            adapter.fit_pair(X, Y, types, types)
    import pandas as pd

    frames = pd.DataFrame(X, columns=list("abcde")), pd.DataFrame(X, columns=list("abcdE"))
    with pytest.raises(ValueError, match="'e'"):  # one mistyped name is no other assay
        ConDoAdapter("affine", divergence="mmd").fit_pair(*frames, types, types)


@pytest.mark.filterwarnings("ignore:The strata are too much alike")
@pytest.mark.parametrize("divergence", ["mmd", "energy"])
def test_shrunk_rotations_stay_rotations(divergence):
    data = rotations(3, 2, 30, 0)
    adapter = ConDoAdapter("orthogonal", divergence=divergence, shrinkage=0.5)
    adapter.fit_pair(data.X_query, data.X_reference, data.Z_query, data.Z_reference)
    np.testing.assert_allclose(adapter.map_.A @ adapter.map_.A.T, np.eye(3), atol=1e-10)


def test_snareseq_silhouettes_beat_the_published_ones(needs_data):
    from sklearn.metrics import silhouette_score

    data = np.load(data_folder() / "snareseq.npz")
    atac, rna = (X / np.linalg.norm(X, axis=1, keepdims=True) for X in (data["atac"], data["rna"]))
    types = data["cell_type"].astype(str)
    adapter = ConDoAdapter("affine")
    adapted = adapter.fit_pair(atac, rna, types, types).transform(atac)
    both = np.vstack([adapted, rna])
    assert silhouette_score(both, np.tile(types, 2)) > 0.494
    assert abs(silhouette_score(both, np.repeat([0, 1], len(rna)))) < 0.0218


def test_links_hold_for_samples():
    rng = np.random.default_rng(0)
    truth, X_reference = (np.exp(rng.normal(size=(100, 2))) for _ in range(2))
    adapter = ConDoAdapter(LocationScale(links="log"), divergence="energy")
    adapted = adapter.fit_pair(5 * truth, X_reference).transform(5 * truth)
    assert (adapted > 0).all()
    assert np.abs(np.log(adapted / truth)).mean() < 0.5


@pytest.mark.parametrize(
    ("family", "divergence"), [(Affine, "mmd"), (Orthogonal, "energy"), (Similarity, "mmd")]
)
def test_the_orientation_is_kept_on_request(family, divergence):
    rng = np.random.default_rng(0)
    centres, z = np.array([[0, 0], [4, 0], [0, 2]]), np.repeat([0, 1, 2], 60)
    truth, Y = (centres[z] + rng.exponential(size=(180, 2)) * [2, 1] for _ in range(2))
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    for A in (turn, turn * [[-1], [1]]):
        errors = {}
        for orientation in ("any", "kept"):
            adapter = ConDoAdapter(family(orientation=orientation), divergence=divergence)
            adapter.fit_pair(truth @ A.T, Y, z.astype(str), z.astype(str))
            errors[orientation] = rmse(adapter.transform(truth @ A.T), truth)
        assert errors["any"] < 0.5
        assert np.linalg.det(adapter.map_.A) > 0
        assert (errors["kept"] > 0.5) == (np.linalg.det(A) < 0)


def test_chance_makes_no_reflection():
    X, Y, k, m, clean, truth, *_, unit = draw_tails("t3", 60010)  # one is better by .0006
    adapter = ConDoAdapter("affine", divergence="mmd").fit_pair(X, Y, levels(k), levels(m))
    assert not adapter.report_["flips_orientation"]
    assert rmse(adapter.transform(clean) / unit, truth / unit) < 0.2


def two_views(seed, n_types, n_latent, p, m):
    """Cells of several types seen by two assays: rows of either, their types, and cells of both."""
    rng = np.random.default_rng(seed)
    centres = 2 * rng.normal(size=(n_types, n_latent))
    views = rng.normal(size=(n_latent, p)), rng.normal(size=(n_latent, m))

    def cells(n, shares):
        types = rng.choice(n_types, n, p=shares)
        latent = centres[types] + rng.normal(size=(n, n_latent))
        rows = [latent @ view + rng.normal(size=(n, view.shape[1])) for view in views]
        return *rows, types.astype(str)

    up = np.arange(1, n_types + 1) / np.arange(1, n_types + 1).sum()
    (X, _, of_X), (_, Y, of_Y) = cells(80 * n_types, up), cells(80 * n_types, up[::-1])
    return (X, Y, of_X, of_Y), cells(500, np.full(n_types, 1 / n_types))


def test_different_features_are_no_worse_than_ridge_to_stratum_means():
    ratios = []
    for seed, sizes in enumerate([(4, 3, 12, 6), (7, 5, 20, 9), (10, 6, 9, 14), (5, 4, 90, 30)]):
        (X, Y, types, others), (seen, truth, _) = two_views(seed, *sizes)
        means = np.stack([Y[others == t].mean(axis=0) for t in types])
        rival = Ridge(1.0).fit(X, means).predict(seen)
        adapter = ConDoAdapter("affine").fit_pair(X, Y, types, others)
        assert adapter.divergence_ == "regression"
        ratios.append(rmse(adapter.transform(seen), truth) / rmse(rival, truth))
        units = np.exp(np.arange(X.shape[1]) % 5), np.exp(np.arange(Y.shape[1]) % 3)
        again = ConDoAdapter("affine").fit_pair(X * units[0], Y * units[1], types, others)
        in_units = again.transform(seen * units[0]) / units[1]
        np.testing.assert_allclose(in_units, adapter.transform(seen), rtol=1e-6, atol=1e-6)
    assert max(ratios) < 1.0
    assert np.mean(ratios) < 0.97


def test_regression_on_stratum_means_is_that_of_rows_where_all_spread_is_noise():
    rng = np.random.default_rng(0)
    z = np.repeat([0, 1, 2, 3], 50)
    X, Y = rng.normal(size=(200, 3)) + z[:, None] ** [1, 0.5, 2], rng.normal(size=(200, 2))
    strata = [[side[z == k] for k in range(4)] for side in (X, Y + z[:, None])]
    samples = Samples(strata[0], strata[1], np.full(4, 0.25), is_rectangular=True)
    pair = as_gaussians(samples)
    pair = replace(pair, query=replace(pair.query, cov=2 * pair.query.cov * 49 / 50))
    A, b = means_map(pair, 0.0)  # half of twice the spread
    means = np.stack([rows.mean(axis=0) for rows in strata[1]])[z]
    plain = LinearRegression().fit(X, means)
    np.testing.assert_allclose(A, plain.coef_, atol=0.01)  # covariances are lightly regularised
    np.testing.assert_allclose(X.mean(axis=0) @ A.T + b, means.mean(axis=0))
    found = on_means(samples)
    assert found.objective == found.starts["means"] > 0
    few = Samples([rows[:1] for rows in strata[0]], strata[1], np.full(4, 0.25), None, None, True)
    assert np.isfinite(on_means(few).scale).all()  # nothing to hold out


def test_no_fee_hides_the_matched_axes_of_many_features(needs_data):
    data = ansur(0, shift="affine")
    adapter = ConDoAdapter("affine", divergence="mmd")
    adapter.fit_pair(data.X_query, data.X_reference, data.Z_query, data.Z_reference)
    assert rmse(adapter.transform(data.X_query), data.truth) < 0.8  # 1 is a constant


@pytest.mark.parametrize("divergence", ["mmd", "energy"])
@pytest.mark.parametrize("kind", ["similarity", "orthogonal", "affine"])
def test_a_rotation_between_equal_domains_is_warned_of(kind, divergence):
    rng = np.random.default_rng(1)
    X, z = rng.normal(size=(200, 3)), rng.choice(["a", "b"], 200)
    with pytest.warns(IdentifiabilityWarning, match="too much alike to determine the matrix"):
        ConDoAdapter(kind, divergence=divergence).fit_pair(X[:100], X[100:], z[:100], z[100:])
