"""Behaviour is that of version 0.1.0, case by case; see `cases.py`."""

import math
import re

import numpy as np
import pytest
from frozen.cases import CASES, read_frozen, run_case

RTOL = 1e-9
# numbers within text count as numbers if they are written in full; rounded ones are text
PRECISE = re.compile(r"(?<![\w.])-?\d+\.?\d*(?:e[-+]?\d+)?(?![\w.])")
DIGITS = 12


@pytest.fixture(scope="module")
def frozen():
    return read_frozen()


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_numeric(value):
    """Tell whether a value is a number, or a list of lists of nothing but numbers."""
    if isinstance(value, list):
        return all(map(is_numeric, value))
    return is_number(value)


def largest(value):
    """Return the largest finite number in nested lists."""
    if isinstance(value, list):
        return max(map(largest, value), default=0.0)
    return abs(value) if math.isfinite(value) else 0.0


def close(found, expected, atol=0.0):
    return bool(np.isclose(found, expected, rtol=RTOL, atol=atol, equal_nan=True))


def same_text(found, expected):
    """Compare texts; only numbers written in full may differ, within the tolerance."""
    if found == expected:
        return True
    if PRECISE.sub("#", found) != PRECISE.sub("#", expected):
        return False
    pairs = list(zip(PRECISE.findall(found), PRECISE.findall(expected)))
    return all(
        one == other
        or (
            min(sum(map(str.isdigit, text)) for text in (one, other)) >= DIGITS
            and close(float(one), float(other))
        )
        for one, other in pairs
    )


def differences(found, expected, path="", atol=0.0):
    """Yield where two plain structures differ."""
    if is_number(found) and is_number(expected):
        if not close(found, expected, atol):
            yield f"{path}: {found!r}, was {expected!r}"
    elif type(found) is not type(expected):
        yield f"{path}: {found!r:.300}, was {expected!r:.300}"
    elif isinstance(expected, dict):
        for key in sorted(found.keys() ^ expected.keys()):
            where = "new" if key in found else "gone"
            yield f"{path}/{key}: {where}, {found.get(key, expected.get(key))!r:.300}"
        for key in sorted(found.keys() & expected.keys()):
            yield from differences(found[key], expected[key], f"{path}/{key}")
    elif isinstance(expected, list):
        if len(found) != len(expected):
            yield f"{path}: {len(found)} entries, were {len(expected)}: {found!r:.300}"
            return
        if is_numeric(expected):
            atol = max(atol, RTOL * largest(expected))
        for k, (one, other) in enumerate(zip(found, expected)):
            yield from differences(one, other, f"{path}[{k}]", atol)
    elif isinstance(expected, str):
        if not same_text(found, expected):
            yield f"{path}:\n{found}\nwas\n{expected}"
    elif found != expected:
        yield f"{path}: {found!r}, was {expected!r}"


@pytest.mark.parametrize("name", CASES)
def test_as_before(name, frozen):
    found = list(differences(run_case(name), frozen[name]))
    assert not found, f"{len(found)} differences:\n" + "\n".join(found[:20])


def test_every_frozen_case_is_run(frozen):
    assert set(frozen) == set(CASES)
