"""Checks of data on which maps rest too lightly, the same for two domains and for many batches."""

import warnings

import numpy as np
import pandas as pd
import pytest

from condokit import BatchAdapter, ConDoAdapter, assess, evaluate

FEATURES = ["a", "b", "c"]


def table(rng, labels, n=80, subjects=None, spread=0.0):
    """Draw n rows of each device; with subjects, these differ by `spread`."""
    rows = len(labels) * n
    X = rng.normal(5, 1, size=(rows, 3))
    frame = pd.DataFrame({"z": rng.choice(["u", "v"], rows), "device": np.repeat(labels, n)})
    if subjects is not None:
        number = np.repeat(np.arange(len(labels)) * subjects, n) + np.arange(rows) % subjects
        X += spread * rng.normal(size=(number.max() + 1, 3))[number]
        frame["person"] = number
    return pd.concat([pd.DataFrame(X, columns=FEATURES), frame], axis=1)


def heard(frame, labels, groups=None):
    """Return what `fit` warns of, the verdict of `assess`, and the adapter."""
    roles = {"confounders": "z", "features": FEATURES, "groups": groups}
    side = "domain" if len(labels) == 2 else "batch"
    adapter = (ConDoAdapter if len(labels) == 2 else BatchAdapter)(reference=labels[0])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        adapter.fit(frame, **{side: "device"}, **roles)
    found = assess(frame, reference=labels[0], **{side: "device"}, **roles)
    return [str(one.message) for one in said], found, adapter


@pytest.mark.parametrize("labels", ["AB", "ABCD"])
def test_one_value_far_away_is_told(labels, rng):
    frame = table(rng, list(labels))
    assert heard(frame, labels)[0] == []
    frame.loc[len(frame) - 1, "a"] = 1e12
    said, found, _ = heard(frame, labels)
    assert any("Values of 'a' in" in one and "robust standard deviations" in one for one in said)
    assert found.verdict == "go with care"
    last = "the query rows" if len(labels) == 2 else "batch 'D'"
    assert any(last in one for one in said)


@pytest.mark.parametrize("labels", ["AB", "ABCD"])
def test_other_units_are_told(labels, rng):
    frame = table(rng, list(labels))
    frame.loc[frame["device"] == labels[-1], "b"] *= 1e6
    said, _, _ = heard(frame, labels)
    assert len(said) == 1
    assert "'b'" in said[0]
    assert "units" in said[0]


@pytest.mark.parametrize("labels", ["AB", "ABCD"])
@pytest.mark.parametrize("subjects", [1, 4])
def test_few_subjects_are_told_once_and_never_better(labels, subjects, rng):
    frame = table(rng, list(labels), subjects=subjects, spread=5.0)
    said, found, adapter = heard(frame, labels, "person")
    assert len(said) == 1
    assert said[0].startswith("Fewer than 5 subjects in ")
    assert found.verdict == "go with care"
    roles = {"confounders": "z", "groups": "person", "n_permutations": 39}
    side = "domain" if len(labels) == 2 else "batch"
    found = evaluate(adapter, frame, **{side: "device"}, **roles)
    assert found.verdict in ("cannot tell", "worse")
    doubts = found.doubts if len(labels) == 2 else found.batches["doubts"]
    assert all("of fewer than 5 subjects" in one for one in doubts)


def test_five_subjects_are_enough_to_say_something(rng):
    frame = table(rng, list("AB"), subjects=8, spread=0.1)
    frame.loc[frame["device"] == "B", FEATURES] += 3
    said, found, adapter = heard(frame, "AB", "person")
    assert said == []
    assert found.verdict == "go"
    roles = {"confounders": "z", "groups": "person", "n_permutations": 39}
    assert evaluate(adapter, frame, domain="device", **roles).verdict == "better"


def test_pairs_of_few_subjects_decide_nothing(rng):
    frame = table(rng, list("AB"), subjects=8, spread=0.1)
    frame.loc[frame["device"] == "B", FEATURES] += 3
    adapter = heard(frame, "AB", "person")[2]
    for n, decides in ((3, False), (12, True)):
        pairs = np.arange(80, 80 + n), np.arange(n)
        how = {"pairs": pairs, "min_cell": 2, "n_permutations": 39}
        found = evaluate(adapter, frame, domain="device", confounders="z", **how)
        assert found.agreement.decides is decides


def test_values_of_rows_that_are_left_out_do_not_count_as_missing(rng):
    frame = table(rng, list("ABC"), n=40)
    frame.loc[frame.index % 2 == 0, FEATURES] = np.nan
    frame.loc[frame.index % 40 < 30, "b"] = np.nan
    assert not any("Mostly missing" in one for one in heard(frame, "ABC")[0])
    frame.loc[frame.index % 40 < 34, "b"] = np.nan
    assert any("Mostly missing" in one and "'b'" in one for one in heard(frame, "ABC")[0])
