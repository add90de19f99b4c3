"""Maps of increasing curves: exact inverses, files, composition, and refusals."""

import numpy as np
import pytest
from scipy.interpolate import interp1d
from sklearn.base import clone

from condokit import AffineMap, MapFileError, MonotoneMap, load_map
from condokit.maps.profile import Profile


def curves(seed=0, d=3, k=7, names=("a", "b", "c"), **options):
    rng = np.random.default_rng(seed)
    knots, values = (np.cumsum(rng.uniform(0.1, 1, (d, k)), axis=1) - 2 for _ in range(2))
    return MonotoneMap(knots, values, rng.uniform(0.5, 2, (d, 2)), names, **options)


@pytest.fixture
def X(rng):
    return rng.normal(0, 3, (400, 3))


def test_it_interpolates_between_knots_and_is_a_line_beyond(X):
    one = MonotoneMap(curves().knots, curves().values)
    for j, column in enumerate(one(X).T):
        line = interp1d(one.knots[j], one.values[j], fill_value="extrapolate")
        np.testing.assert_allclose(column, line(X[:, j]), atol=1e-12)
    steep = curves()(np.full((1, 3), 1e3)) - curves()(np.full((1, 3), 1e3 - 1))
    np.testing.assert_allclose(steep[0], curves().slopes[:, 1])


def test_the_inverse_holds_to_rounding_and_slopes_are_derivatives(X):
    one = curves()
    np.testing.assert_allclose(one.inverse()(one(X)), X, atol=1e-9)
    np.testing.assert_allclose(one(one.inverse()(X)), X, atol=1e-9)
    assert one.inverse().inverse() == MonotoneMap(*one.arrays().values(), ["a", "b", "c"])
    numeric = np.log((one(X + 1e-7) - one(X - 1e-7)) / 2e-7).sum(axis=1)
    far = (np.abs(X[:, :, None] - one.knots) > 1e-6).all(axis=(1, 2))
    np.testing.assert_allclose(one.log_slopes(X)[far], numeric[far], atol=1e-5)


def test_it_composes_with_curves_and_lines_and_refuses_matrices(X):
    one, other = curves(1), curves(2)
    line = AffineMap([2.0, 0.5, 1.0], [1.0, 0.0, -3.0], ["a", "b", "c"])
    for last, first in ((one, other), (one, line), (line, one), (other, one.inverse())):
        both = last.compose(first)
        assert type(both) is MonotoneMap
        np.testing.assert_allclose(both(X), last(first(X)), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(both.inverse()(both(X)), X, atol=1e-8)
    np.testing.assert_allclose(one.compose(one.inverse())(X), X, atol=1e-9)
    for matrix in (AffineMap(np.ones((3, 3)), np.zeros(3)), AffineMap([1.0, -1.0, 1.0], [0.0] * 3)):
        for call in (lambda m=matrix: one.compose(m), lambda m=matrix: m.compose(one)):
            with pytest.raises(ValueError, match="cannot be composed with curves"):
                call()


def test_features_are_matched_by_name_in_composition(X):
    one, other = curves(1), curves(2, names=("c", "a", "b"))
    both = one.compose(other)
    assert both.feature_names == ("a", "b", "c")
    swapped = other(X[:, [2, 0, 1]])[:, [1, 2, 0]]
    np.testing.assert_allclose(both(X), one(swapped), atol=1e-9)


def test_it_is_saved_and_read_with_its_links(tmp_path, X):
    one = curves(links={"a": "log"})
    path = tmp_path / "map.json"
    one.save(path)
    assert load_map(path) == one == clone(one)
    assert MonotoneMap.load(path) == one
    with pytest.raises(MapFileError, match="no AffineMap"):
        AffineMap.load(path)
    Y = np.abs(X) + 0.1
    np.testing.assert_allclose(load_map(path).inverse()(one(Y)), Y, rtol=1e-9)
    first = float(one.values[0, 0])
    text = path.read_text().replace(repr(first), repr(first - 1.0))
    path.write_text(text)
    with pytest.raises(MapFileError, match="hash"):
        load_map(path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([[0.0, 1.0]], [[0.0, 1.0, 2.0]]), "same shape"),
        (([[0.0]], [[0.0]]), "at least 2 knots"),
        (([[0.0, 0.0]], [[0.0, 1.0]]), "'knots' must increase in every row; row 0"),
        (([[0.0, 1.0]], [[1.0, 0.0]]), "'values' must increase"),
        (([[0.0, np.nan]], [[0.0, 1.0]]), "knots"),
        (([[0.0, 1.0]], [[0.0, 1.0]], [[1.0, 0.0]]), "positive"),
        (([[0.0, 1.0]], [[0.0, 1.0]], [1.0]), "slopes"),
    ],
)
def test_what_is_no_increasing_curve_is_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        MonotoneMap(*arguments)


def test_missing_values_stay_missing_and_infinity_is_refused(X):
    X[3, 1] = np.nan
    mapped = curves()(X)
    assert np.isnan(mapped[3, 1])
    assert np.isnan(mapped).sum() == 1
    X[4, 0] = np.inf
    with pytest.raises(ValueError, match="infin"):
        curves()(X)


def test_check_says_how_many_rows_lie_in_the_tails(X):
    one = curves().with_origin(Profile.of(X, len(X)))
    beyond = ((one.knots[:, 0] > X) | (one.knots[:, -1] < X)).any(axis=1).mean()
    said = [finding for finding in one.check(X).findings if "beyond the knots" in finding.text]
    assert said[0].text.startswith(f"{beyond:.1%} of rows lie beyond the knots")
    assert said[0].level == "care"
    middle = one.knots[:, 3] + 0 * X
    assert not [
        finding for finding in one.check(middle).findings if "beyond the knots" in finding.text
    ]
