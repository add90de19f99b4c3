"""Files that somebody changed, some of those that `python tests/mutations.py` tries."""

import contextlib
import json
import re

import jsonschema
import pytest
from mutations import KINDS, checked, measured, mutation, originals, with_hash

from condokit.io.schema import Schema

# refusals that JSON Schema cannot express: lengths that agree, and whole numbers as it has them
LENGTHS = r"of the shape|the number of|by numbers below"
LENGTHS += r"|a whole number.* Got -?\d+(\.\d*(e\+?\d+)?|e\+?\d+)\."


@pytest.mark.parametrize("kind", KINDS)
def test_valid_files_are_read_and_used(kind):
    for document in originals(kind):
        assert checked(kind, with_hash(document))


@pytest.mark.parametrize("kind", KINDS)
def test_changed_files_are_used_or_refused(kind):
    outcomes = {number: measured(kind, number, 0, False) for number in range(150)}
    assert {number: one.fault for number, one in outcomes.items() if one.fault} == {}
    assert 10 < sum(one.was_read for one in outcomes.values()) < 100


@pytest.mark.parametrize("kind", ["map", "batches", "statistics"])
def test_schemas_are_read_as_json_schema_has_it(kind):
    schema, n_wrong = Schema("statistics" if kind == "statistics" else "map"), 0
    jsonschema.Draft202012Validator.check_schema(schema.published)
    validator = jsonschema.Draft202012Validator(schema.published)
    for number in range(300):
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(mutation(kind, number))
            refused = ""
            try:
                schema.read(document)
            except ValueError as error:
                refused = str(error)
            expected = next(validator.iter_errors(document), None)
            n_wrong += expected is not None
            assert (refused == "") <= (expected is None), (number, expected)
            assert (expected is not None) >= bool(refused and not re.search(LENGTHS, refused)), (
                number,
                refused,
            )
    assert n_wrong > 50
