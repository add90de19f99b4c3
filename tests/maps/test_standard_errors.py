"""Errors of maps: passed on by other maps, and kept in files."""

import io
import json
import warnings

import jsonschema
import numpy as np
import pandas as pd
import polars as pl
import pytest

from condokit import (
    AffineMap,
    BatchAdapter,
    ConDoAdapter,
    MapFileError,
    MonotoneMap,
    NeedsRows,
    load_map,
)
from condokit.io import documents
from condokit.io.schema import MAPS
from condokit.maps.standard_errors import (
    CurveErrors,
    DiagonalErrors,
    DrawnErrors,
    averaged,
    drawn,
    of_rows,
)

FEATURES = 3


def some_map(rng, kind):
    """Return a map with errors, and a function that draws what it may have been."""
    d, b = FEATURES, rng.normal(size=FEATURES)
    if kind == "matrix":
        A, changes = rng.normal(size=(d, d)), 0.01 * rng.normal(size=(40, d, d))
        images, c = 0.01 * rng.normal(size=(40, d)), rng.normal(size=d)
        made = AffineMap(A, b).with_errors(DrawnErrors(changes, images, c))

        def draw():
            z = rng.normal(size=40)
            S = np.tensordot(z, changes, axes=1)
            return AffineMap(A + S, b + z @ images - S @ c)

        return made, draw
    m, c = rng.uniform(0.5, 2, d), rng.normal(size=d)
    of_scale, of_image = rng.uniform(0.02, 0.1, d), rng.uniform(0.02, 0.1, d)
    both = 0.5 * of_scale * of_image
    made = AffineMap(m, b).with_errors(DiagonalErrors(of_scale, of_image, c, both))

    def draw():
        u, v = rng.normal(size=(2, d))
        s = of_scale * u
        return AffineMap(m + s, b + of_image * (0.5 * u + np.sqrt(0.75) * v) - s * c)

    return made, draw


@pytest.mark.parametrize("kinds", [("line", "line"), ("matrix", "matrix"), ("line", "matrix")])
def test_errors_pass_through_another_map(kinds):
    rng = np.random.default_rng(0)
    for first, second in (kinds, kinds[::-1]):
        (one, draw_one), (two, draw_two) = some_map(rng, first), some_map(rng, second)
        both, X = two.compose(one), rng.normal(size=(4, FEATURES))
        images = np.array([draw_two()(draw_one()(X)) for _ in range(4000)])
        np.testing.assert_allclose(both.errors.std(X), images.std(axis=0), rtol=0.06)
        assert AffineMap(two.scale, two.offset).compose(one).errors is None  # of which one is not
        kept = DiagonalErrors if (first, second) == ("line", "line") else DrawnErrors
        assert type(both.errors) is kept


def test_errors_of_curves_pass_through_another_map():
    knots = np.array([[-1.0, 0.0, 1.0]])
    bend = MonotoneMap(knots, [[-2.0, 0.0, 1.0]])
    bend = bend.with_errors(CurveErrors(knots, np.array([[0.2, 0.1, 0.3]]), np.full((1, 2), 0.1)))
    line = AffineMap([3.0], [1.0]).with_errors(DiagonalErrors(*np.array([[0.0], [0.4], [0.0]])))
    after, before = line.compose(bend), bend.compose(line)
    found = after.errors.std(np.array([[-1.0], [0.0], [1.0], [2.0]]))[:, 0]
    expected = np.hypot(3 * np.array([0.2, 0.1, 0.3, 0.4]), 0.4)
    np.testing.assert_allclose(found[:3], expected[:3])
    assert found[3] == pytest.approx(expected[3], rel=0.05)  # growing as lines beyond the knots
    steep = (bend([[1.0 + 0.4]]) - bend([[1.0 - 0.4]]))[0, 0] / 2  # at 1, which the line makes of 0
    assert before.errors.std(np.zeros((1, 1)))[0, 0] == pytest.approx(np.hypot(steep, 0.3))
    for both in (after, before):
        document = json.loads(json.dumps(both.to_dict()))
        assert np.shape(document["errors"]["values"]) == np.shape(document["knots"])


def test_draws_of_diagonal_maps_are_a_covariance():
    rng = np.random.default_rng(1)
    scales, offsets = rng.normal(size=(2, 50, 4)) * 0.1 + 7
    offsets += 100 * scales  # far from zero, so that the two are correlated
    pull, X = rng.normal(size=(2, 4)), rng.normal(size=(6, 4)) - 100
    expected = np.std(X * scales[:, None] + offsets[:, None], axis=0, ddof=1)
    for given in (None, (pull[0], pull[1])):
        errors = drawn(scales, offsets, given)
        moved = 0.0 if given is None else X * pull[0] + pull[1]
        np.testing.assert_allclose(errors.std(X), np.hypot(expected, moved), rtol=1e-9)
        np.testing.assert_allclose(errors.draws().std(X), errors.std(X), rtol=1e-9)


@pytest.mark.parametrize("kind", ["line", "matrix"])
def test_rows_of_several_maps_share_half_of_their_errors(kind):
    rng = np.random.default_rng(2)
    maps, shares = [some_map(rng, kind)[0] for _ in range(3)], np.array([0.5, 0.3, 0.2])
    Y = rng.normal(size=(5, FEATURES))
    each = np.array([one.errors.std(one.inverse()(Y)) for one in maps])
    expected = np.tensordot((shares**2 + shares) / 2, each**2, axes=1)
    np.testing.assert_allclose(of_rows(maps, shares).std(Y) ** 2, expected, rtol=1e-9)
    least = (np.tensordot(shares**2, each**2, 1) + np.tensordot(shares, each, 1) ** 2) / 2
    assert (expected >= least * (1 - 1e-12)).all()
    assert of_rows([*maps[:2], AffineMap(np.ones(3), np.zeros(3))], shares) is None


def test_the_error_of_an_average_counts_how_far_its_parts_are_apart():
    rng = np.random.default_rng(3)
    maps, weights = [some_map(rng, kind)[0] for kind in ("line", "matrix")], np.array([0.7, 0.3])
    both, X = AffineMap.average(maps, weights), rng.normal(size=(5, FEATURES))
    expected = sum(
        w * (g.errors.std(X) ** 2 + (g(X) - both(X)) ** 2) for g, w in zip(maps, weights)
    )
    np.testing.assert_allclose(averaged(maps, weights, both).std(X) ** 2, expected, rtol=1e-9)


def saved(made, **how):
    file = io.BytesIO()
    made.save(file, **how)
    return file.getvalue()


def in_strata(kind, seed=0, n=150):
    """Return rows of two domains with a category, and a map fitted to them."""
    rng = np.random.default_rng(seed)
    z = rng.integers(0, 3, 2 * n)
    spread = np.array([0.5, 1.0, 2.0])[z][:, None] * np.array([1.0, 0.7, 1.6])
    X = (rng.normal(size=(2 * n, 3)) * spread) @ (np.eye(3) + 0.4) + np.outer(z, [1, -1, 0.5]) + 500
    X[:n] = 2 * X[:n] + 1
    domain = np.repeat(["query", "reference"], n)
    frame = pd.DataFrame(X, columns=list("abc")).assign(z=z.astype(str), domain=domain)
    adapter = ConDoAdapter(kind, divergence="ot" if kind == "affine" else "auto")
    return adapter.fit(frame, domain="domain", confounders="z"), frame


@pytest.mark.parametrize("kind", ["location-scale", "shift", "monotone", "affine"])
def test_intervals_are_kept_in_files(kind):
    adapter, frame = in_strata(kind)
    mapped, expected = adapter.transform(frame, return_std=True)
    text = saved(adapter.map_, errors=True)
    jsonschema.Draft202012Validator(MAPS.published).validate(json.loads(text))
    loaded = load_map(io.BytesIO(text))
    values, errors = loaded.transform(frame, return_std=True)
    pd.testing.assert_frame_equal(values, mapped)
    assert list(errors) == list("abc")
    np.testing.assert_allclose(errors, expected, rtol=0.03)
    again = load_map(io.BytesIO(saved(loaded, errors=True)))
    np.testing.assert_allclose(again.transform(frame, return_std=True)[1], errors, rtol=0.03)
    without = json.loads(saved(adapter.map_, errors=False))
    assert "errors" not in without
    assert ("errors" in json.loads(saved(adapter.map_))) != (kind == "affine")
    if kind == "affine":
        factors = {"left": np.ones((3, 1)), "right": np.ones((3, 1))}
        low_rank = AffineMap(np.ones(3), np.zeros(3), **factors).with_errors(adapter.errors_)
        kept = load_map(io.BytesIO(saved(low_rank, errors=True)))
        X = frame[list("abc")].to_numpy()
        np.testing.assert_allclose(kept.errors.std(X), adapter.errors_.std(X), rtol=0.03)


def test_maps_without_errors_say_so():
    plain, rows = AffineMap([2.0], [1.0], ["a"]), pd.DataFrame({"a": [1.0, np.nan]})
    assert plain.errors is None
    assert "errors" not in json.loads(saved(plain, errors=True))
    with pytest.raises(ValueError, match="are not known"):
        plain.transform(rows, return_std=True)
    known = plain.with_errors(DiagonalErrors(*np.array([[0.1], [0.2], [0.0]])))
    assert known == plain
    errors = known.transform(rows, return_std=True)[1]
    assert errors["a"][0] == pytest.approx(np.hypot(0.1, 0.2))
    assert np.isnan(errors["a"][1])
    with pytest.raises(NeedsRows):
        known.transform(pl.LazyFrame({"a": [1.0]}), return_std=True)


def test_a_file_tells_no_mean_and_no_draw():
    adapter, frame = in_strata("location-scale")
    told, errors = adapter.map_.to_dict()["errors"], adapter.errors_
    assert all(number == float(f"{number:.2e}") for n in ("scale", "image") for number in told[n])
    far = np.abs(told["centre"] - errors.centre) / frame[list("abc")].std()
    assert (far > 1e-4).all()
    assert (far < 0.15).all()
    # draws in another order, or turned among each other, have the same errors and the same file
    rng = np.random.default_rng(0)
    scales, images = rng.normal(size=(10, 2, 2)), rng.normal(size=(10, 2))
    turn = np.linalg.qr(rng.normal(size=(10, 10)))[0]
    one, other = (
        DrawnErrors(np.tensordot(Q, scales, axes=1), Q @ images, np.zeros(2)).to_dict()["factors"]
        for Q in (np.eye(10), turn)
    )
    np.testing.assert_allclose(np.abs(one), np.abs(other), rtol=1e-4)
    assert one.shape == (2, 3, 3)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("location-scale", {"scale": [-0.1, 0.1, 0.1]}),
        ("location-scale", {"image": [0.1]}),
        ("location-scale", {"centre": None}),
        ("affine", {"factors": [[[1.0]]]}),
    ],
)
def test_errors_that_are_none(kind, change, tmp_path):
    document = json.loads(saved(in_strata(kind)[0].map_, errors=True))
    document["errors"] |= change
    document["sha256"] = documents.digest(document)
    (tmp_path / "map.json").write_text(json.dumps(document))
    with pytest.raises(MapFileError, match="errors"):
        load_map(tmp_path / "map.json")


def chain_of_matrices(n=300, seed=0, number=False):
    """Return a table of three batches, of which the last shares groups with the second alone."""
    rng = np.random.default_rng(seed)
    shared = {"A": [0, 1, 2], "B": [0, 1, 2, 3, 4, 5], "C": [3, 4, 5]}
    centre, spread = 2 * rng.normal(size=(6, 2)), rng.uniform(0.4, 1.6, size=(6, 2))
    tables, truth = [], []
    for b, groups in shared.items():
        z = rng.choice(groups, n)
        T = centre[z] + rng.normal(size=(n, 2)) * spread[z] @ np.array([[1, 0.5], [0, 1]])
        A = np.eye(2) if b == "A" else np.eye(2) + 0.25 * rng.normal(size=(2, 2))
        X = np.linalg.solve(A, (T - (b != "A")).T).T
        zs = z + 0.2 * rng.normal(size=n) if number else [f"g{k}" for k in z]
        tables.append(pd.DataFrame(X, columns=["f0", "f1"]).assign(site=b, group=zs))
        truth.append(T)
    return pd.concat(tables, ignore_index=True), np.concatenate(truth)


def test_matrices_along_paths_have_errors_which_files_keep():
    held = []
    for seed in range(4):
        table, truth = chain_of_matrices(seed=seed)
        study = BatchAdapter(ConDoAdapter("affine"), reference="A")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that C and A have no group in common
            study.fit(table, batch="site", confounders="group", features="f*")
        assert study.paths_["C"] == ["C", "B", "A"]
        assert all(np.isfinite(one.error_after) for one in study.report_.batches.values())
        assert isinstance(study.errors_["C"], DrawnErrors)
        mapped, error = study.transform(table, batch="site", return_std=True)
        apart = np.abs(mapped.to_numpy() - truth) < 1.96 * error.to_numpy()
        held.append(apart[table["site"] == "C"].mean())
        loaded = BatchAdapter.load(io.BytesIO(saved(study, errors=True)))
        again = loaded.transform(table, batch="site", return_std=True)[1]
        np.testing.assert_allclose(again, error, rtol=0.03)
    assert np.mean(held) > 0.8


def test_studies_keep_intervals_in_files(tmp_path):
    table, _ = chain_of_matrices()
    study = BatchAdapter(reference="A").fit(table, batch="site", confounders="group", features="f*")
    study.save(tmp_path / "study.json")
    loaded = BatchAdapter.load(tmp_path / "study.json")
    _, expected = study.transform(table, batch="site", return_std=True)
    _, found = loaded.transform(table, batch="site", return_std=True)
    np.testing.assert_allclose(found, expected, rtol=0.03)
    assert (found[table["site"] == "A"] == 0).all(axis=None)
    written = json.loads((tmp_path / "study.json").read_text())["batches"]
    assert ["errors" in one for one in written] == [False, True, True]


@pytest.mark.slow
def test_errors_of_matrices_given_a_number_cover():
    """Noise is the same everywhere, so that nothing but sampling is wrong: measured 0.955."""
    held = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        A, M = np.eye(3) + 0.25 * rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
        F, z = 1.5 * rng.normal(size=(3, 3)), rng.uniform(-2, 2, 800)
        T = np.column_stack([z, np.cos(2 * z), np.sin(3 * z)]) @ F
        T += 0.5 * rng.normal(size=(800, 3)) @ M.T
        X = np.linalg.solve(A, (T[:400] - 1).T).T
        adapter = ConDoAdapter("affine").fit_pair(X, T[400:], z[:400], z[400:])
        mapped, error = adapter.transform(X, return_std=True)
        held.append((np.abs(mapped - T[:400]) < 1.96 * error).mean())
    assert 0.88 < np.mean(held) < 0.99
