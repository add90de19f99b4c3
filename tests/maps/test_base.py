"""A class of maps that is not affine joins with a few lines."""

import copy
import io
import json
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from condokit import AffineMap, MapFileError, MonotoneMap, load_map
from condokit.maps.base import Map
from condokit.maps.profile import Profile


class SinhMap(Map):
    """x -> sinh(power arsinh(x))."""

    kinds, fields = ("sinh",), {"power": {"$ref": "#/$defs/vector"}}

    def __init__(self, power, feature_names=None, *, links=None, output_names=None):
        power = np.array(power, dtype=float)
        shape = (len(power), len(power))
        super().__init__("sinh", shape, feature_names, links, output_names, power=power)

    def arrays(self):
        return {"power": self.power}

    def without_links(self, X, out=None):
        return np.sinh(self.power * np.arcsinh(X), out=out)

    def inverse(self):
        return SinhMap(1 / self.power, links=self.links, **self.turned_names())

    def compose(self, other):
        order, names = self.joined(other)
        return SinhMap(self.power * other.power[order], **names)

    def formula(self, j, names):
        return f"sinh({self.power[j]:g} arsinh({names[j]}))"


@pytest.fixture
def sinh():
    return SinhMap([2.0, 0.5], ["a", "b"])


@pytest.fixture
def X(rng):
    return rng.normal(size=(200, 2))


def test_it_maps_there_and_back(sinh, X):
    np.testing.assert_allclose(sinh(X), np.sinh(sinh.power * np.arcsinh(X)))
    np.testing.assert_allclose(sinh.inverse()(sinh(X)), X)
    np.testing.assert_allclose(sinh.inverse_transform(sinh.transform(X)), X)
    turned = SinhMap([3.0, 1.0], ["b", "a"])
    np.testing.assert_allclose(sinh.compose(turned).power, [2.0, 1.5])
    with pytest.raises(ValueError, match="different features"):
        sinh.compose(SinhMap([1.0], ["a"]))
    assert repr(sinh).splitlines()[:2] == [
        "SinhMap of 2 features (sinh)",
        "  a -> sinh(2 arsinh(a))",
    ]


def test_links_missing_values_and_large_numbers_are_the_business_of_the_base(X):
    linked = SinhMap([2.0, 0.5], links=["log", None])
    np.testing.assert_allclose(linked(np.exp(X))[:, 0], np.exp(np.sinh(2.0 * np.arcsinh(X[:, 0]))))
    X[3, 1] = np.nan
    assert np.isnan(SinhMap([2.0, 0.5])(X)).sum() == 1
    with pytest.raises(ValueError, match="too large"):
        SinhMap([2.0])([[1e300]])
    with pytest.raises(ValueError, match="infin"):
        SinhMap([2.0])([[np.inf]])


def test_it_is_an_immutable_fitted_transformer(sinh, X):
    y = X[:, 0] > 0
    pipeline = make_pipeline(sinh, LogisticRegression()).fit(X, y)
    assert pipeline.score(X, y) > 0.9
    assert sinh.get_feature_names_out().tolist() == ["a", "b"]
    for same in (clone(sinh), pickle.loads(pickle.dumps(sinh)), copy.deepcopy(sinh)):
        assert same == sinh
        assert hash(same) == hash(sinh)
    assert sinh != SinhMap([2.0, 0.5], ["a", "c"])
    assert sinh != AffineMap([2.0, 0.5], [0.0, 0.0], ["a", "b"])
    with pytest.raises(AttributeError, match="SinhMap is immutable"):
        sinh.power = 3.0
    assert sinh.set_output(transform="pandas").transform(X).columns.tolist() == ["a", "b"]


def test_its_file_is_read_by_the_class_of_its_kind(sinh, X, tmp_path):
    path = tmp_path / "map.json"
    known = sinh.with_origin(Profile.of(X, len(X)), {"map": "sinh"})
    known.save(path)
    assert json.loads(path.read_text())["kind"] == "sinh"
    loaded = load_map(path)
    assert type(loaded) is SinhMap
    assert loaded == sinh == SinhMap.load(path)
    assert loaded.provenance == {"map": "sinh"}
    assert loaded.check(X).verdict == "as fitted"
    assert loaded.check(X + 9).verdict == "look"
    with pytest.raises(MapFileError, match="of the kind 'sinh', which is no AffineMap"):
        AffineMap.load(path)
    AffineMap([1.0], [0.0]).save(path)
    assert type(load_map(path)) is AffineMap
    with pytest.raises(MapFileError, match="of the kind 'diagonal', which is no SinhMap"):
        SinhMap.load(path)


@pytest.mark.parametrize("links", [None, ["log", None, 0.5]])
@pytest.mark.parametrize("kind", ["diagonal", "dense", "low-rank", "monotone"])
def test_columns_that_are_no_features_stay_in_their_places(kind, links, rng):
    names, columns = ["a", "b", "c"], ["x", "c", "a", "y", "b", "z"]
    parts = {"left": rng.normal(size=(3, 2)), "right": rng.normal(size=(3, 2))}
    if kind == "monotone":
        knots, values = (np.cumsum(rng.uniform(0.1, 1, (3, 4)), axis=1) for _ in range(2))
        one = MonotoneMap(knots, values, feature_names=names, links=links)
    else:
        scale = rng.uniform(0.5, 2, (3, 3)) if kind == "dense" else rng.uniform(0.5, 2, 3)
        more = parts if kind == "low-rank" else {}
        one = AffineMap(scale, rng.normal(size=3), names, links=links, **more)
    X = pd.DataFrame(rng.uniform(0.5, 2, (20, 6)), columns=columns)
    every = one.among(columns)
    found = every(X)
    assert list(found.columns) == columns
    assert every.kind == kind
    np.testing.assert_allclose(found[names], one(X)[names], rtol=1e-12)
    np.testing.assert_allclose(found[["x", "y", "z"]], X[["x", "y", "z"]], rtol=1e-12)
    again = io.BytesIO()
    every.save(again)
    again.seek(0)
    assert load_map(again) == every


def test_what_has_no_place_among_columns():
    with pytest.raises(ValueError, match="'b'"):
        AffineMap([2.0], [1.0], ["b"]).among(["a", "c"])
    with pytest.raises(ValueError, match="with feature names"):
        AffineMap([2.0], [1.0]).among(["a"])


def test_a_map_of_some_features_leaves_the_others(rng):
    X = np.abs(rng.normal(size=(20, 3))) + 1
    knots = np.tile(np.linspace(0.5, 4, 5), (3, 1))
    for affine in (
        AffineMap(
            [2.0, 3.0, 0.5], [1.0, 2.0, 3.0], ["a", "b", "c"], links={"a": "log", "b": "log"}
        ),
        MonotoneMap(knots, knots**2, feature_names=["a", "b", "c"]),
    ):
        some = affine.only(["b"])
        np.testing.assert_allclose(some(X)[:, [0, 2]], X[:, [0, 2]])
        np.testing.assert_allclose(some(X)[:, 1], affine(X)[:, 1])
        assert some.feature_names == affine.feature_names
        assert type(some).from_dict(some.to_dict()) == some
        with pytest.raises(ValueError, match="not a feature of the map"):
            affine.only(["d"])
    assert AffineMap([2.0, 3.0], [0.0, 0.0]).only([1]).scale.tolist() == [1.0, 3.0]
    with pytest.raises(ValueError, match="mixes features"):
        AffineMap(np.eye(2) + 0.1, [0.0, 0.0], ["a", "b"]).only(["a"])
