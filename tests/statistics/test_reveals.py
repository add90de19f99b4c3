"""What statistics reveal is warned of when they are written and merged."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sites_made import FEATURES, hospital, without_few

from condokit import ConDoAdapter, Statistics
from condokit.statistics.file import MIN_POWERS, document_of
from condokit.statistics.reveals import _exposed, facts_of, words

ROLES = {"confounders": ["sex", "ward"], "features": FEATURES}


def of(table, label="A", **more):
    return Statistics.of(table, label=label, **(ROLES | more))


def codes(do):
    """Return the codes of what is warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do()
    return [one.message.args[0].code for one in caught]


def file_of(table, path, label="A", **more):
    of(table, label, **more).save(path)
    return Statistics.load(path)


def test_the_bound_on_the_largest_share_is_one(rng):
    for df in (1, 2, 5):
        x = rng.standard_t(df, size=(30, 200))
        a = (x - x.mean(axis=0)) ** 2
        largest = (a / a.sum(axis=0)).max(axis=0)
        squares, fourth = a.sum(axis=0), (a**2).sum(axis=0)
        assert (fourth / squares**2 <= largest).all()
        single, flat = _exposed(squares, fourth)
        assert (largest[single] >= 0.8).all()
        assert not flat.any()
        assert single[largest > 0.9].all()  # 0.9^2 is more than 0.8


def test_rows_that_stand_out_and_constants_are_warned_of(tmp_path):
    table = without_few(hospital("A"))
    assert codes(lambda: of(table).save(tmp_path / "a.json")) == []
    table.loc[7, "crp"] = 1e5
    assert codes(lambda: of(table).save(tmp_path / "b.json")) == ["concentration"]
    table.loc[table["sex"] == "M", "na"] = 3.0
    found = codes(lambda: of(table).save(tmp_path / "c.json"))
    assert found == ["concentration", "constant-cells"]
    few = hospital("A")
    few.loc[0, "crp"] = 1e5  # in a cell that is left out
    assert codes(lambda: of(few).save(tmp_path / "d.json")) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda t: t, []),
        (lambda t: t.iloc[:-1], ["differencing"]),
        (lambda t: pd.concat([t, t.iloc[-2:]]), ["differencing"]),
        (lambda t: t.assign(crp=t["crp"].where(t.index != 9, 2.5)), ["differencing"]),
        (lambda t: pd.concat([t, hospital("A", seed=3)]), []),
        (lambda t: t.drop(columns="wbc"), []),
        (lambda t: t.iloc[:-1].drop(columns="wbc"), ["differencing"]),
    ],
)
def test_a_release_that_differs_by_few_rows_is_warned_of(tmp_path, change, expected):
    path, table = tmp_path / "a.json", hospital("A")
    of(table).save(path)
    table = change(table)
    features = [name for name in FEATURES if name in table]
    assert codes(lambda: of(table, features=features).save(path)) == expected


def test_a_release_by_other_confounders_is_warned_of(tmp_path):
    path, table = tmp_path / "a.json", hospital("A")
    of(table).save(path)
    assert codes(lambda: of(table, confounders=["sex"]).save(path)) == ["differencing"]
    path.write_text("mine")
    of(table).save(path)
    assert codes(lambda: of(table, confounders=["ward", "sex"]).save(path)) == []
    assert codes(lambda: of(hospital("B"), "B").save(path)) == []  # another site


def test_releases_that_hide_that_they_are_of_the_same_rows_are_warned_of(tmp_path):
    path, table = tmp_path / "a.json", hospital("A").assign(age=50.0 + np.arange(300) % 30)
    here, less = tmp_path / "b.json", table.iloc[:-1]

    def after(first, second):
        for place in (path, here):
            place.unlink(missing_ok=True)
        first.save(path)
        return codes(lambda: second.save(here, previous=path))

    assert after(of(table), of(less, "A2")) == ["differencing"]  # another label
    assert after(of(table), of(hospital("B").iloc[:219], "A2")) == []
    features = {"features": FEATURES[:2]}
    rest = {"features": FEATURES[2:]}
    assert after(of(table, **features), of(table, **rest)) == []  # other columns of these rows
    assert after(of(table, **features), of(less, **rest)) == ["differencing"]
    merged = table.replace({"ward": {"burns": "surgery"}})  # 3 rows, which were left out
    assert after(of(table), of(merged)) == ["differencing"]
    numbers = {"confounders": ["age"]}
    one, other = (of(table, **numbers, ranges={"age": (40, high)}) for high in (90, 91))
    assert after(one, one) == []
    assert after(one, other) == ["differencing"]  # twice as many functions of the same rows


def test_what_two_releases_tell_about_one_row():
    # the reason: count, mean and spread before and after give the row
    table = without_few(hospital("A"))
    one, other = of(table), of(table.iloc[:-1])
    last = table.iloc[-1]
    cell = ("A", last["sex"], last["ward"])
    (n, x), (m, y) = (
        (part.sums.moments.count[part.cells[cell]], part.sums.moments.mean[part.cells[cell]])
        for part in (one, other)
    )
    np.testing.assert_allclose(n * x - m * y, last[FEATURES].astype(float), atol=1e-9)


def test_the_same_rows_at_two_times_or_under_two_labels_are_warned_of(tmp_path):
    table = hospital("A")
    first = file_of(table, tmp_path / "1.json")
    second = file_of(pd.concat([table, table.iloc[-2:]]), tmp_path / "2.json")
    assert codes(lambda: first.merge(second)) == ["same-rows"]
    many = file_of(pd.concat([table, table.iloc[-9:-1]]), tmp_path / "3.json")
    assert codes(lambda: first.merge(many)) == ["same-rows"]  # no cell is the same any more
    renamed = file_of(table, tmp_path / "4.json", "B")
    assert codes(lambda: first.merge(renamed)) == ["same-rows"]
    assert codes(lambda: first.merge(file_of(hospital("B"), tmp_path / "5.json", "B"))) == []


def test_halves_of_a_site_are_no_repeats(tmp_path):
    found = []
    for seed in range(40):
        table = hospital("A", seed=seed)
        halves = [file_of(table.iloc[k::2], tmp_path / f"{seed}{k}.json") for k in (0, 1)]
        found += codes(lambda halves=halves: halves[0].merge(halves[1]))
    assert found == []


def test_references_must_agree(tmp_path):
    parts = [of(hospital(label), label, reference=label) for label in "AB"]
    with pytest.raises(ValueError, match="different references: 'A' and 'B'"):
        ConDoAdapter().fit_statistics(parts)


def test_numbers_and_text_are_two_spellings():
    one = of(hospital("A").assign(ward=1), "A", categorical=["ward"])
    other = of(hospital("B").assign(ward="1"), "B")
    said = "'1' and 1"
    with pytest.warns(UserWarning, match=said), pytest.raises(ValueError, match=said):
        ConDoAdapter(reference="A").fit_statistics([one, other])


def test_a_reference_whose_label_is_zero_is_said(tmp_path):
    X, label = np.random.default_rng(0).normal(size=(40, 1)), np.repeat([0, 1], 20)
    Statistics.of(X, domain=label, reference=0).save(tmp_path / "site.json")
    facts = facts_of(*document_of(tmp_path / "site.json", Statistics))
    assert "Reference: 0." in words(facts, MIN_POWERS)
