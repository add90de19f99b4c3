"""Matrices of every kind, alone and in pairs, against plain NumPy."""

import copy
import pickle

import numpy as np
import pytest

from condokit.maps.matrices import DiagonalPlusLowRank, Matrix, matrix_of

KINDS = ["diagonal", "low-rank", "dense"]


def make(kind, seed=0, n=5, rank=2):
    rng = np.random.default_rng(seed)
    if kind == "dense":
        return matrix_of(rng.normal(size=(n, n)))
    scale = rng.uniform(1, 2, n) * rng.choice([-1, 1], n)
    factors = rng.normal(size=(2, n, rank)) if kind == "low-rank" else ()
    return matrix_of(scale, *factors)


@pytest.fixture
def X(rng):
    return rng.normal(size=(7, 5))


@pytest.mark.parametrize("kind", KINDS)
def test_products_rows_and_diagonals_are_those_of_the_whole_matrix(kind, X):
    matrix = make(kind)
    A = matrix.array()
    assert matrix.kind == kind
    assert matrix.shape == A.shape == (5, 5)
    np.testing.assert_allclose(matrix.product(X), X @ A.T)
    np.testing.assert_allclose(matrix.T.product(X), X @ A)
    out = np.empty((7, 5))
    assert matrix.product(X, out) is out
    np.testing.assert_array_equal(out, matrix.product(X))
    np.testing.assert_allclose([matrix.row(j) for j in range(5)], A)
    order = [3, 0, 4, 1, 2]
    np.testing.assert_array_equal(matrix.take(order).array(), A[np.ix_(order, order)])
    assert matrix.take(order).kind == kind


@pytest.mark.parametrize("kind", KINDS)
def test_inverse_and_determinant(kind):
    matrix = make(kind)
    inverse = matrix.inverse()
    assert inverse.kind == kind
    np.testing.assert_allclose(inverse.array() @ matrix.array(), np.eye(5), atol=1e-12)
    assert matrix.log_det() == pytest.approx(np.linalg.slogdet(matrix.array())[1], rel=1e-12)
    assert inverse.log_det() == pytest.approx(-matrix.log_det())


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_the_product_of_two_keeps_the_simplest_form(first, second, X):
    B, A = make(first, 1), make(second, 2)
    both = A.compose(B)
    np.testing.assert_allclose(both.array(), A.array() @ B.array(), atol=1e-12)
    np.testing.assert_allclose(both.product(X), A.product(B.product(X)), atol=1e-12)
    assert KINDS.index(both.kind) == max(KINDS.index(first), KINDS.index(second))
    if first == second == "low-rank":
        assert both.left.shape == (5, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_depend_on_inputs_where_the_matrix_is_not_zero(kind, rng):
    parts = {name: part.copy() for name, part in make(kind).arrays().items()}
    parts["scale"][..., 2] = 0
    if kind == "low-rank":
        parts["left"][:3], parts["right"][3:] = 0, 0
    matrix = matrix_of(**parts)
    marked = rng.random((20, 5)) < 0.3
    expected = (marked[:, None] & (matrix.array() != 0)).any(axis=2)
    if kind == "diagonal":  # a missing value stays missing though its scale is 0
        expected[:, 2] = marked[:, 2]
    np.testing.assert_array_equal(matrix.depends(marked), expected)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (DiagonalPlusLowRank([1.0, 0.0]), "no finite inverse"),
        (DiagonalPlusLowRank([1.0, 1e-320]), "no finite inverse"),
        (Matrix([[1.0, 1.0], [1.0, 1.0]]), "no inverse: its matrix is singular"),
        (DiagonalPlusLowRank([1.0, 1.0], [[-1.0], [0.0]], [[1.0], [0.0]]), "is singular"),
        (DiagonalPlusLowRank([1.0, 0.0], [[1.0], [1.0]], [[1.0], [1.0]]), "no finite inverse"),
    ],
)
def test_no_inverse(matrix, message):
    with pytest.raises(ValueError, match=message):
        matrix.inverse()
    if "is singular" in message:
        assert matrix.log_det() == -np.inf


def test_rectangular_matrices_multiply(rng):
    wide, tall = matrix_of(rng.normal(size=(2, 5))), matrix_of(rng.normal(size=(5, 3)))
    assert wide.compose(tall).shape == (2, 3)
    for kind in KINDS:
        square = make(kind)
        for both, whole in (
            (wide.compose(square), wide.array() @ square.array()),
            (square.compose(tall), square.array() @ tall.array()),
        ):
            np.testing.assert_allclose(both.array(), whole, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_are_immutable_and_keep_what_they_are(kind):
    matrix = make(kind)
    for same in (
        pickle.loads(pickle.dumps(matrix)),
        copy.deepcopy(matrix),
        matrix_of(**matrix.arrays()),
    ):
        assert same.kind == kind
        np.testing.assert_array_equal(same.array(), matrix.array())
        with pytest.raises(ValueError, match="read-only"):
            same.scale[0] = 1.0
        with pytest.raises(AttributeError):
            same.scale = 1.0


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (([[[1.0]]],), "'scale' must be a vector with one number per feature, or a matrix"),
        (([np.inf],), "'scale' must be finite"),
        (([1.0], [[1.0]]), "must be given together"),
        (([1.0], [1.0], [1.0]), "'left' must be a matrix with one row per feature"),
        (([[1.0]], [[1.0]], [[1.0]]), "go with a vector 'scale'"),
        (([1.0, 1.0], [[1.0]], [[1.0]]), "must both have 2 rows"),
    ],
)
def test_arrays_that_make_no_matrix_are_refused(arrays, message):
    with pytest.raises(ValueError, match=message):
        matrix_of(*arrays)
