import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from condokit import AffineMap, MapFileError

finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.fixture
def affine():
    return AffineMap([2.0, 0.5], [1.0, -1.0], ["a", "b"])


def test_it_maps_rows(affine):
    np.testing.assert_array_equal(affine([[1.0, 2.0]]), [[3.0, 0.0]])
    np.testing.assert_array_equal(affine.A, np.diag([2.0, 0.5]))
    np.testing.assert_array_equal(affine.b, [1.0, -1.0])
    assert affine.kind == "diagonal"


def test_inverse_undoes_it(affine):
    X = np.random.default_rng(0).normal(size=(20, 2))
    np.testing.assert_allclose(affine.inverse()(affine(X)), X, atol=1e-14)
    np.testing.assert_allclose(affine.inverse_transform(affine.transform(X)), X, atol=1e-14)


def test_compose_applies_the_other_first(affine):
    other = AffineMap([3.0, 4.0], [5.0, 6.0], ["b", "a"])
    together = affine.compose(other)
    np.testing.assert_array_equal(together.scale, [8.0, 1.5])
    np.testing.assert_array_equal(together.offset, [2 * 6 + 1, 0.5 * 5 - 1])
    nothing = affine.compose(affine.inverse())
    np.testing.assert_allclose(nothing.scale, 1)
    with pytest.raises(ValueError, match="different features"):
        affine.compose(AffineMap([1.0, 1.0], [0.0, 0.0], ["a", "c"]))
    with pytest.raises(ValueError, match="2 and 1 features"):
        affine.compose(AffineMap([1.0], [0.0]))


@pytest.mark.parametrize(
    "kinds",
    [
        ("dense", "low-rank"),
        ("low-rank", "low-rank"),
        ("low-rank", "diagonal"),
        ("diagonal", "dense"),
    ],
)
def test_all_kinds_of_matrices_map_invert_compose_and_are_saved(kinds, tmp_path):
    rng = np.random.default_rng(0)
    X, names = rng.normal(size=(7, 4)), list("abcd")
    made = []
    for kind in kinds:
        scale, factors = rng.uniform(1, 2, 4), {}
        if kind == "dense":
            scale = rng.normal(size=(4, 4))
        elif kind == "low-rank":
            factors = {"left": rng.normal(size=(4, 1)), "right": rng.normal(size=(4, 1))}
        made.append(AffineMap(scale, rng.normal(size=4), names, **factors))
        assert made[-1].kind == kind
    one, other = made
    np.testing.assert_allclose(one(X), X @ one.A.T + one.b)
    np.testing.assert_allclose(one.inverse()(one(X)), X, atol=1e-10)
    assert one.inverse().kind == one.kind
    np.testing.assert_allclose(one.compose(other)(X), one(other(X)))
    assert one.log_slopes(np.ones((2, len(one.A)))) == pytest.approx(np.linalg.slogdet(one.A)[1])
    turned = AffineMap(other.A[::-1, ::-1], other.b[::-1], names[::-1])
    np.testing.assert_allclose(one.compose(turned).A, one.A @ other.A)
    one.save(tmp_path / "map.json")
    assert AffineMap.load(tmp_path / "map.json") == one
    assert pickle.loads(pickle.dumps(one)) == clone(one)
    assert "a -> " in repr(one)


def test_no_inverse_of_a_zero_scale():
    with pytest.raises(ValueError, match="'b' is 0"):
        AffineMap([1.0, 0.0], [0.0, 0.0], ["a", "b"]).inverse()


def test_it_is_immutable(affine):
    with pytest.raises(AttributeError, match="immutable"):
        affine.scale = [1.0, 1.0]
    with pytest.raises(ValueError, match="read-only"):
        affine.scale[0] = 1.0
    with pytest.raises(AttributeError, match="immutable"):
        affine.set_params(scale=[1.0, 1.0])
    with pytest.raises(AttributeError, match="immutable"):
        del affine.scale


def test_it_is_a_frozen_transformer_in_front_of_a_fitted_model(affine):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 2)), rng.integers(0, 2, 50)
    model = LogisticRegression().fit(affine(X), y)
    pipeline = make_pipeline(affine, model)
    np.testing.assert_array_equal(pipeline.predict(X), model.predict(affine(X)))
    assert clone(affine) == affine
    assert pickle.loads(pickle.dumps(affine)) == affine
    assert affine.set_output(transform="pandas").transform(X).columns.tolist() == ["a", "b"]


def test_it_may_stand_in_a_pipeline_that_is_fitted(affine):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 2)), rng.integers(0, 2, 50)
    pipeline = make_pipeline(affine, LogisticRegression()).fit(X, y)
    assert pipeline[0] == affine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[[1.0]]], [1.0]), "'scale' must be a vector"),
        (([[1.0, 0.0]], [1.0, 2.0]), "1 entries and 'offset' 2"),
        (([], []), "'scale' must be a vector"),
        (([1.0], [np.nan]), "'offset' must be finite"),
        (([1.0, 2.0], [1.0]), "2 entries and 'offset' 1"),
        (([1.0, 2.0], [1.0, 1.0], ["a", "a"]), "2 different names"),
    ],
)
def test_wrong_parts_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        AffineMap(*arguments)


def test_repr_shows_the_first_features(affine):
    assert "a -> 2 * a + 1" in repr(affine)
    assert "b -&gt; 0.5 * b - 1" in affine._repr_html_()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(finite, finite, st.text()), min_size=1, max_size=8))
def test_a_saved_map_is_read_back_exactly(tmp_path_factory, features):
    scale, offset, names = zip(*features)
    names = [f"{j}{name}".encode("utf-8", "ignore").decode() for j, name in enumerate(names)]
    path = tmp_path_factory.mktemp("map") / "map.json"
    affine = AffineMap(scale, offset, names)
    affine.save(path)
    assert AffineMap.load(path) == affine
    assert sorted(p.name for p in path.parent.iterdir()) == ["map.json"]


def test_the_file_is_plain_json_and_deterministic(affine, tmp_path):
    affine.save(tmp_path / "one.json")
    affine.save(tmp_path / "two.json")
    text = (tmp_path / "one.json").read_text()
    assert text == (tmp_path / "two.json").read_text()
    document = json.loads(text)
    assert document["scale"] == [2.0, 0.5]
    assert document["schema"] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: "{", "damaged or no JSON"),
        (lambda d: "[" * 100_000, "damaged or no JSON"),
        (lambda d: "[1, 2]", "not a map"),
        (lambda d: {"hello": 1}, "not a map"),
        (lambda d: {**d, "schema": 99, "condokit": "9.0"}, "newer condokit .9.0; schema 99"),
        (lambda d: {**d, "schema": "1"}, "'schema' is '1'"),
        (
            lambda d: {**d, "kind": "magic"},
            "'kind' must be one of 'diagonal', .* Got 'magic'",
        ),
        (lambda d: {**d, "scale": [2.0]}, "'offset' must be numbers of the shape 1. Got 2"),
        (lambda d: {**d, "scale": [2.0, "x"]}, "'scale' must be numbers. Got 'x'"),
        (lambda d: {**d, "scale": [2.0, float("nan")]}, "finite numbers"),
        (lambda d: {**d, "scale": [2.0, 10**400]}, "finite numbers"),
        (lambda d: {**d, "scale": [2.0, True]}, "'scale' must be numbers. Got True"),
        (lambda d: {**d, "feature_names": ["a", "a"]}, "must be different. Got 'a' twice"),
        (lambda d: {**d, "feature_names": "ab"}, "'feature_names' must be a list"),
        (lambda d: {k: v for k, v in d.items() if k != "offset"}, "'offset' is missing"),
        (lambda d: {**d, "offset": [1.0, -1.5]}, "does not fit its hash"),
        (lambda d: {k: v for k, v in d.items() if k != "sha256"}, "'sha256' is missing"),
    ],
)
def test_damaged_foreign_and_newer_files_are_refused(affine, tmp_path, change, message):
    path = tmp_path / "map.json"
    affine.save(path)
    changed = change(json.loads(path.read_text()))
    path.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    with pytest.raises(MapFileError, match=message):
        AffineMap.load(path)


def test_unreadable_paths_are_named(affine, tmp_path):
    with pytest.raises(MapFileError, match="absent.json does not exist"):
        AffineMap.load(tmp_path / "absent.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MapFileError, match="cannot be read"):
        AffineMap.load(tmp_path / "binary.json")
    with pytest.raises(FileNotFoundError, match="the folder .* does not exist"):
        affine.save(tmp_path / "no" / "map.json")
