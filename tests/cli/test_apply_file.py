"""Batches of Arrow tables are mapped as whole tables are."""

import numpy as np
import pyarrow as pa
import pytest

from condokit import AffineMap
from condokit.maps.lazily import map_batch


@pytest.fixture
def batch(rng):
    return pa.table(
        {
            "id": ["a", "b", "c"],
            "x": pa.array([1.0, None, 3.0]),
            "y": pa.array(np.array([1, 2, 3], dtype=np.float32)),
            "n": pa.array([7, 8, 9]),
        }
    )


def test_columns_order_nulls_and_precision_stay(batch):
    mapped = map_batch(AffineMap([2.0, 3.0], [1.0, 0.0], ["y", "x"]), batch)
    assert mapped.column_names == batch.column_names
    assert mapped["x"].to_pylist() == [3.0, None, 9.0]
    assert mapped["y"].to_pylist() == [3.0, 5.0, 7.0]
    assert mapped["y"].type == pa.float32()
    assert mapped["id"].to_pylist() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "affine",
    [
        AffineMap([2.0, 3.0], [1.0, 0.0], ["y", "x"]),
        AffineMap([[2.0, 1.0], [0.0, 3.0]], [1.0, 0.0], ["y", "x"]),
        AffineMap([1.5, 2.0], [0.5, 0.0], ["n", "y"]),
        AffineMap([1.5, 2.0], [0.5, 0.0], ["x", "y"], links={"x": "log"}),
    ],
)
def test_the_same_as_the_map_itself(batch, affine):
    ours = map_batch(affine, batch)
    for name, column in zip(affine.feature_names, affine(batch).columns):
        expected = column.to_numpy(zero_copy_only=False)
        np.testing.assert_allclose(ours[name].to_numpy(), expected, rtol=1e-6)


def test_other_features_come_last(batch):
    affine = AffineMap([[1.0, 1.0]], [0.0], ["x", "y"], output_names=["sum"])
    mapped = map_batch(affine, batch)
    assert mapped.column_names == ["id", "n", "sum"]
    assert mapped["sum"].to_pylist() == [2.0, None, 6.0]


def test_whole_numbers_beyond_double_precision_are_rounded(batch):
    large = batch.set_column(3, "n", pa.array([2**64 - 1, 2**53 + 1, 9], pa.uint64()))
    mapped = map_batch(AffineMap([0.5], [0.0], ["n"]), large)
    assert mapped["n"].to_pylist() == [2.0**63, 2.0**52, 4.5]


def test_infinity_is_refused(batch):
    bad = batch.set_column(1, "x", pa.array([1.0, np.inf, 2.0]))
    with pytest.raises(ValueError, match="'x' has infinite values"):
        map_batch(AffineMap([1.0], [0.0], ["x"]), bad)


def test_empty_batches(batch):
    affine = AffineMap([2.0, 3.0], [1.0, 0.0], ["y", "x"])
    assert map_batch(affine, batch.slice(0, 0)).num_rows == 0


def test_marked_rows_and_metadata_stay(batch):
    batch = batch.replace_schema_metadata({"index": "id"})
    as_is = np.array([True, False, False])
    dense = AffineMap([[2.0, 0.0], [0.0, 3.0]], [1.0, 0.0], ["y", "n"])
    for affine in (AffineMap([2.0, 3.0], [1.0, 0.0], ["y", "n"]), dense):
        mapped = map_batch(affine, batch, as_is)
        assert mapped["y"].to_pylist() == [1.0, 5.0, 7.0]
        assert mapped["n"].to_pylist() == [7.0, 24.0, 27.0]
        assert mapped["y"].type == pa.float32()
        assert mapped.schema.metadata == {b"index": b"id"}
    with pytest.raises(ValueError, match="different features"):
        map_batch(AffineMap([[1.0, 1.0]], [0.0], ["x", "y"], output_names=["s"]), batch, as_is)
