"""How the schemas of our files are read: sizes that agree, and what is said of others."""

import io
import tracemalloc

import numpy as np
import pytest

from condokit import AffineMap, MapFileError, load_map
from condokit.io.schema import MAPS, STATISTICS, Schema

NUMBERS = {"type": "array", "minItems": 1, "items": {"type": "number"}}
MATRIX = {"type": "array", "minItems": 1, "items": NUMBERS}


def read(properties, value, **more):
    """Read a value by a schema with these properties, all of which are required."""
    schema = Schema("map")
    node = {"type": "object", "properties": properties, "required": list(properties), **more}
    return schema._read(value, schema._resolved(node), "", {})


def test_numbers_become_arrays_whose_lengths_agree():
    properties = {"a": {**MATRIX, "shape": "n 2"}, "b": {**NUMBERS, "shape": "n+1"}}
    found = read(properties, {"b": [1, 2, 3], "a": [[1, 2], [3, 4.5]], "c": 1})
    assert list(found) == ["b", "a"]  # as in the file, without what is unknown
    np.testing.assert_array_equal(found["a"], [[1.0, 2.0], [3.0, 4.5]])
    for wrong, message in [
        (
            {"a": [[1, 2], [3]], "b": [1]},
            "'a' must be numbers of the shape 2 x 2. Got ..1, 2., .3..",
        ),
        ({"a": [[1, 2], [3, 4]], "b": [1]}, "'b' must be numbers of the shape 3. Got 1"),
        ({"a": [[1, 2, 3]], "b": [1]}, "'a' must be numbers of the shape 1 x 2. Got 1 x 3"),
        ({"a": [[1, None]], "b": [1, 2]}, "'a' must be numbers. Got None"),
        ({"a": [[1, 1e999]], "b": [1, 2]}, "'a' must be finite numbers. Got inf"),
        ({"a": [1, 2], "b": [1, 2]}, "'a' must be numbers of the shape 2 x 2"),
        ({"b": [1, 2]}, "'a' is missing"),
    ]:
        with pytest.raises(ValueError, match=message):
            read(properties, wrong)


def test_null_is_nan_where_it_may_be():
    node = {"type": "array", "shape": "n", "items": {"type": ["number", "null"], "minimum": 0}}
    np.testing.assert_array_equal(read({"a": node}, {"a": [None, 2]})["a"], [np.nan, 2.0])
    with pytest.raises(ValueError, match="'a' must be at least 0. Got -2"):
        read({"a": node}, {"a": [None, -2]})


def test_numbers_that_claim_a_size_take_no_memory():
    properties = {"n": {"type": "integer", "size": "n"}, "a": {**NUMBERS, "shape": "n"}}
    assert read(properties, {"n": 2, "a": [1, 2]})["n"] == 2
    tracemalloc.start()
    with pytest.raises(ValueError, match="'a' must be numbers of the shape 1000000000. Got 2"):
        read(properties, {"n": 10**9, "a": [1, 2]})
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def test_keys_can_be_places():
    keyed = {"type": "object", "below": "n", "additionalProperties": {"type": "string"}}
    properties = {"n": {"type": "integer", "size": "n"}, "by": keyed}
    assert read(properties, {"n": 12, "by": {"11": "a"}})["by"] == {11: "a"}
    for key in ("12", "-1", "01", "x", "\u0661", "9" * 5000):
        with pytest.raises(ValueError, match="'by' must be by numbers below 12") as caught:
            read(properties, {"n": 12, "by": {key: "a"}})
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("node", "value"),
    [
        ({"type": "integer"}, True),
        ({"type": "integer"}, 1.0),
        ({"type": "number"}, "1"),
        ({"type": "number"}, float("nan")),
        ({"type": "boolean"}, 1),
        ({"enum": [1, 2]}, True),
        ({"enum": ["a"]}, ["a"]),
        ({"type": "string", "pattern": "^a$"}, "b"),
        ({"type": "object"}, []),
        ({"type": "array", "uniqueItems": True, "items": {"type": "string"}}, ["a", "a"]),
    ],
)
def test_types_are_not_guessed(node, value):
    with pytest.raises(ValueError, match="'a' must be"):
        read({"a": node}, {"a": value})


def test_messages_name_the_place_and_stay_short():
    properties = {"a": {"type": "array", "items": {"type": "object", "properties": {"b": MATRIX}}}}
    with pytest.raises(ValueError, match=r"'a\[1\].b\[0\]' must be a list. Got 'x\\nx") as caught:
        read(properties, {"a": [{}, {"b": ["x\n" * 10**6]}]})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_the_published_schemas_are_those_that_files_are_read_by():
    from pathlib import Path

    folder = Path(__file__).parents[2] / "docs" / "reference"
    for name, schema in (("map", MAPS), ("statistics", STATISTICS)):
        assert (folder / f"{name}-schema.json").samefile(
            Path(MAPS.__init__.__code__.co_filename).with_name(f"{name}-schema.json")
        )
        assert schema.published["title"] == f"condokit {name}"


def test_nothing_is_written_that_would_be_refused(tmp_path):
    affine = AffineMap([1.0], [0.0], ["\ud800"])
    with pytest.raises(ValueError, match="The map cannot be written: it holds .*no character"):
        affine.save(tmp_path / "map.json")
    assert not list(tmp_path.iterdir())


def test_open_files_are_read_in_parts():
    class Pipe(io.RawIOBase):
        asked = 0

        def read(self, n=-1):
            self.asked = max(self.asked, n)
            return b""

    pipe = Pipe()
    with pytest.raises(MapFileError, match="no JSON"):
        load_map(pipe)
    assert 0 < pipe.asked < 1e8
