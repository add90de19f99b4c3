import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from condokit import Affine, AffineMap, ConDoAdapter, LocationScale
from condokit.data.links import apply, check_links, undo


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-3, 0.999), st.sampled_from(["log", "logit", 0.5, 2.0, None]))
def test_links_are_undone(x, link):
    X = np.array([[x, 0.5]])
    links = check_links({"a": link}, ["a", "b"])
    np.testing.assert_allclose(undo(links, apply(links, X, ["a", "b"], "X")), X, rtol=1e-9)


def test_links_are_given_for_all_for_each_or_by_name():
    assert check_links("log", ["a", "b"]) == ("log", "log")
    assert check_links([None, 2], ["a", "b"]) == (None, 2.0)
    assert check_links({"b": "logit"}, ["a", "b"]) == (None, "logit")
    assert check_links(None, ["a"]) is None
    assert check_links({}, ["a"]) is None


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ("lgo", "'log', 'logit', a power above 0 or None. Got 'lgo'"),
        (1e-310, "Got 1e-310"),
        (-1.0, "a power above 0 or None. Got -1.0"),
        (["log"], "one entry per feature: 2. Got 1"),
        ({"c": "log"}, "'links' names 'c', which is no feature"),
        ([True, None], "Got True"),
    ],
)
def test_wrong_links_are_refused(links, message):
    with pytest.raises(ValueError, match=message):
        check_links(links, ["a", "b"])


def test_values_outside_of_a_link_are_named():
    affine = AffineMap([1.0, 1.0], [0.0, 0.0], ["a", "b"], links={"a": "log", "b": "logit"})
    with pytest.raises(
        ValueError, match="'log' of 'column 0' does not admit. It needs values above 0"
    ):
        affine([[1.0, 0.5], [-1.0, 0.5]])
    with pytest.raises(ValueError, match="'logit' of 'column 1' .* between 0 and 1"):
        affine([[1.0, 1.0]])


def test_a_linked_map_is_saved_inverted_and_composed(tmp_path):
    affine = AffineMap([2.0, 0.5], [1.0, 0.1], ["a", "b"], links={"a": "log", "b": 0.5})
    X = np.array([[1.0, 4.0], [3.0, 9.0]])
    expected = np.column_stack([np.exp(2 * np.log(X[:, 0]) + 1), (0.5 * X[:, 1] ** 0.5 + 0.1) ** 2])
    np.testing.assert_allclose(affine(X), expected)
    np.testing.assert_allclose(affine.inverse()(affine(X)), X)
    np.testing.assert_allclose(affine.compose(affine)(X), affine(affine(X)))
    affine.save(tmp_path / "map.json")
    assert AffineMap.load(tmp_path / "map.json") == affine
    assert "log(a) -> 2 * log(a) + 1" in repr(affine)
    with pytest.raises(ValueError, match="different links"):
        affine.compose(AffineMap([1.0, 1.0], [0.0, 0.0], ["a", "b"]))


@pytest.mark.filterwarnings("ignore:Values of:condokit.IdentifiabilityWarning")
@pytest.mark.filterwarnings("ignore:Scales far from one:condokit.IdentifiabilityWarning")
@pytest.mark.parametrize("family", [LocationScale, Affine])
@pytest.mark.parametrize("continuous", [False, True])
def test_positive_features_stay_positive(family, continuous):
    rng = np.random.default_rng(0)
    z = [rng.normal(size=300), rng.normal(0.5, 1, 300)]
    truth, X_reference = (np.exp(np.outer(side, [1, 2]) + rng.normal(size=(300, 2))) for side in z)
    X_query = 3 * truth**1.5
    Z = z if continuous else [np.where(side > 0, "high", "low") for side in z]
    adapter = ConDoAdapter(map=family(links="log")).fit_pair(X_query, X_reference, *Z)
    adapted = adapter.transform(X_query)
    assert (adapted > 0).all()
    plain = ConDoAdapter().fit_pair(X_query, X_reference, *Z).transform(X_query)
    error, of_plain = (np.abs(np.log(np.abs(Y) / truth)).mean() for Y in (adapted, plain))
    assert error < 0.5 * of_plain
    np.testing.assert_allclose(adapter.inverse_transform(adapted), X_query)
    with pytest.raises(ValueError, match="X_query has values that the link 'log'"):
        ConDoAdapter(map=family(links="log")).fit_pair(-X_query, X_reference, *Z)
