import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from condokit import AffineMap, BatchAdapter, ConDoAdapter, assess
from condokit.checks import IdentifiabilityWarning
from condokit.data.measurements import (
    look_like_counts,
    looks_like,
    looks_like_a_label,
    measurements,
)
from condokit.data.tables import Table
from condokit.maps.families import LocationScale

N = 200
LOOKS = {
    "PatientID": "by its name",
    "age_years": "by its name",
    "record": "another whole number in every row",
    "scanned": "dates",
    "arm": "whole numbers with few values",
    "note": "not a number",
}


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    domain = np.repeat(["query", "reference"], N // 2)
    frame = pd.DataFrame(rng.normal(size=(N, 4)), columns=["x0", "x1", "x2", "pulse"])
    frame["pulse"] = rng.integers(40, 110, N)  # measured, in whole numbers
    frame["PatientID"] = rng.permutation(N) // 4 + 1000.5
    frame["age_years"] = rng.uniform(20, 80, N)
    frame["record"] = rng.permutation(10**6)[:N]
    frame["scanned"] = 20230100 + rng.integers(1, 28, N)
    frame["arm"] = rng.choice([1.0, 2.0, 3.0, np.nan], N)
    frame["note"] = "fine"
    return frame.assign(domain=domain)


TAKEN = ["x0", "x1", "x2", "pulse"]


@pytest.mark.parametrize("container", [pd.DataFrame, pl.from_pandas, pa.Table.from_pandas])
def test_measurements_alone_are_features(frame, container, tmp_path):
    X = container(frame)
    with pytest.warns(UserWarning, match="PatientID") as caught:
        adapter = ConDoAdapter().fit(X, domain="domain")
    assert [w.message.args[0].code for w in caught] == ["repeated-subjects", "not-features"]
    assert str(caught[1].message).startswith("Not taken as features: 'PatientID', 'age_years'")
    assert list(adapter.feature_names_in_) == TAKEN
    assert adapter.map_.provenance["columns_left_alone"] == LOOKS
    adapter.map_.save(tmp_path / "map.json")
    loaded = AffineMap.load(tmp_path / "map.json")
    assert loaded.provenance["columns_left_alone"] == LOOKS
    found = assess(X, domain="domain")
    assert found.n_features == 4
    assert "not taken as features: 'PatientID'" in repr(found)


def test_features_that_are_named_are_taken(frame):
    named = ["x0", "arm", "age_years", "record"]
    adapter = ConDoAdapter().fit(frame.drop(columns="PatientID"), domain="domain", features=named)
    assert list(adapter.feature_names_in_) == named
    assert adapter.map_.provenance["columns_left_alone"] == {}


def test_columns_with_another_role_are_not_spoken_of(frame):
    roles = {"domain": "domain", "confounders": ["age_years"], "groups": "PatientID"}
    with pytest.warns(UserWarning, match="Not taken as features: 'record'") as caught:
        ConDoAdapter().fit(frame, **roles)
    assert "age_years" not in str(caught[0].message)


def test_both_tables_are_looked_at(frame):
    columns = frame.drop(columns=["domain", "PatientID"])
    # subjects measured in both domains: their numbers are unique in each
    columns["record"] = np.tile(np.arange(N // 2), 2)
    query, reference = columns[: N // 2], columns[N // 2 :]
    with pytest.warns(UserWarning, match="Not taken as features"):
        adapter = ConDoAdapter().fit_pair(query, reference[reversed(list(columns))])
    assert list(adapter.feature_names_in_) == TAKEN
    adapter = ConDoAdapter().fit_pair(query, reference, features=["x*", "arm"])
    assert list(adapter.feature_names_in_) == ["x0", "x1", "x2", "arm"]
    # numbers in one table, text in the other
    query = query[TAKEN].astype({"pulse": str})
    with pytest.warns(UserWarning, match=r"'pulse' \(not a number\)"):
        adapter = ConDoAdapter().fit_pair(query, reference[TAKEN])
    assert list(adapter.feature_names_in_) == TAKEN[:3]


def test_arrays_are_taken_as_they_are(frame):
    X, domain = frame[[*TAKEN, "arm", "record"]].fillna(0).to_numpy(), frame["domain"]
    assert ConDoAdapter().fit(X, domain=domain).n_features_in_ == 6
    query, reference = X[: N // 2], X[N // 2 :]
    adapter = ConDoAdapter().fit_pair(query, reference, features=[0, 4])
    assert adapter.transform(query).shape == (N // 2, 2)
    same = ConDoAdapter().fit(X, domain=domain, features=[0, 4]).transform(query)
    np.testing.assert_array_equal(adapter.transform(query), same)


def test_what_is_not_clear_is_refused(frame):
    def refused(columns, match):
        with pytest.raises(ValueError, match=match):
            ConDoAdapter().fit(frame[[*columns, "domain"]], domain="domain")

    refused(["x0", "arm"], r"'arm' \(whole.*features=\['x0'\], or features=\['\*'\]")
    refused(["x0", "x1", "arm", "record"], r"not clear.*features=\['x0', 'x1'\]")
    refused(["age_years", "note"], r"'age_years' \(by its name\).*features=\['age_years'\]")
    refused(["note"], r"'note' \(not a number\).*features=\['note'\]")
    every = frame[["x0", "arm", "domain"]]
    adapter = ConDoAdapter().fit(every, domain="domain", features=["*"])
    assert list(adapter.feature_names_in_) == ["x0", "arm"]


def test_few_rows_tell_nothing_of_values():
    X = pd.DataFrame({"a": [1, 2, 4, 7], "b": [0, 1, 1, 0]})
    taken, left = measurements([Table(X)], ["a", "b"], np.array([True, True, False, False]))
    assert (taken, left) == (["a", "b"], {})


def test_names():
    for name in (
        "id",
        "ID",
        "subject_id",
        "sampleId",
        "Age",
        "age_at_scan",
        "visit-date",
        "icd code",
    ):
        assert looks_like_a_label(name), name
    for name in (
        "Subject",
        "patient_number",
        "label",
        "target",
        "y_target_id",
        "Unnamed: 0",
        "sex",
    ):
        assert looks_like_a_label(name), name
    # genes and measurements
    for name in ("ID1", "AGER", "PAGE4", "birth_weight", "reaction_time", "label_free_intensity"):
        assert not looks_like_a_label(name), name
    for name in ("voltage", "patient_weight", "sex_hormone", "x", "7", "", "valid", "day1"):
        assert not looks_like_a_label(name), name


def subjects(names, n=40):
    """Return rows of two domains in whose columns there may be subjects."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(2 * n, 2)), columns=["x0", "x1"])
    return frame.assign(domain=np.repeat(["query", "reference"], n), **names)


ONE, ANY = np.arange(40), np.random.default_rng(1)
REPEATED = {
    "both domains": {"person": [f"p{i}" for i in ONE] * 2},
    "within domains": {"subject_id": np.arange(80) // 2},
    "some": {"Patient": np.where(np.arange(80) % 8 == 1, np.arange(80) - 1, np.arange(80))},
    "another word": {"wer": [f"p{i}" for i in ONE] * 2},
}
ORDINARY = {
    "no repetition": {"person": [f"p{i}" for i in range(80)]},
    "categories": {
        "patient": ANY.choice(["yes", "no"], 80),
        "group": ANY.choice(list("abcde"), 80),
    },
    "sites": {"site_id": np.arange(80) % 20, "plate": [f"plate {i % 20}" for i in range(80)]},
    "numbers": {"patient_weight": ANY.integers(50, 90, 80)},
}


@pytest.mark.parametrize("kind", REPEATED)
def test_subjects_that_come_several_times_are_pointed_out(kind):
    names = REPEATED[kind]
    frame, roles = subjects(names), {"domain": "domain", "features": ["x0", "x1"]}
    (name,) = names
    with pytest.warns(IdentifiabilityWarning, match=f"Values of '{name}' occur in several rows"):
        ConDoAdapter().fit(frame, **roles)
    assert f"Values of '{name}' occur in several rows" in repr(assess(frame, **roles))
    ConDoAdapter().fit(frame, **roles, groups=name)  # and no more, once they are named


@pytest.mark.parametrize("kind", ORDINARY)
def test_other_columns_are_no_subjects(kind):
    frame = subjects(ORDINARY[kind])
    roles = {"domain": "domain", "features": ["x0", "x1"]}
    ConDoAdapter().fit(frame, **roles)
    assert "occur in several rows" not in repr(assess(frame, **roles))


def test_a_few_travelling_subjects_among_many_are_pointed_out():
    names = np.array([f"sub-{i:04}" for i in range(240)], dtype=object)
    names[[80, 81, 82, 160, 161, 162]] = [*names[:3]] * 2  # three people, at three sites
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(240, 2)), columns=["x0", "x1"])
    frame = frame.assign(site=np.repeat(["a", "b", "c"], 80), participant_id=names)
    roles = {"batch": "site", "features": ["x0", "x1"]}
    with pytest.warns(IdentifiabilityWarning, match="or in `bridge` if some were measured"):
        BatchAdapter(reference="a").fit(frame, **roles)
    BatchAdapter(reference="a").fit(frame, **roles, bridge="participant_id")


def test_numbers_that_start_again_in_each_domain_are_no_subjects():
    number = [f"sub-{i:03}" for i in [*range(1, 36), *range(1, 46)]]
    frame = subjects({"subject": number})
    frame["domain"] = np.repeat(["query", "reference"], [35, 45])
    ConDoAdapter().fit(frame, domain="domain", features=["x0", "x1"])
    frame["domain"] = np.repeat(["query", "reference"], [45, 35])
    with pytest.warns(IdentifiabilityWarning, match="Values of 'subject' occur in several rows"):
        ConDoAdapter().fit(frame, domain="domain", features=["x0", "x1"])


def test_travelling_subjects_that_are_bridges_are_not_spoken_of_again():
    frame = subjects({"person": [f"p{i}" for i in ONE] * 2})
    roles = {"batch": "domain", "features": ["x0", "x1"]}
    adapter = BatchAdapter(reference="reference")
    adapter.fit(frame.assign(again=frame["person"]), bridge="again", **roles)
    with pytest.warns(IdentifiabilityWarning, match="Values of 'person' occur in several rows"):
        adapter.fit(frame, **roles)
    assert "occur in several rows" in repr(assess(frame, **roles, reference="reference"))


def test_whole_numbers_that_were_measured_are_no_identifiers():
    rng = np.random.default_rng(0)
    site = np.repeat([0, 1, 2], 60)
    volume = np.rint(rng.normal(1.5e6, 1.5e5, 180) + 5e4 * site)  # eTIV of FreeSurfer
    assert looks_like(volume, site) == ""
    given_out = {
        "in order": np.arange(180.0) + 1000,
        "at random": rng.choice(10**6, 180, replace=False).astype(float),
        "in blocks": np.arange(180.0) + 100_000 * site,
        "with gaps": np.cumsum(rng.integers(1, 40, 180)).astype(float),
        "in two waves": np.concatenate([np.arange(160.0), 10_000 + np.arange(20.0)]),
    }
    for how, numbers in given_out.items():
        assert looks_like(numbers, site) == "another whole number in every row", how


def test_counts_are_noticed_by_fit_and_by_assess():
    rng = np.random.default_rng(0)
    domain, kind = np.repeat(["query", "reference"], N), np.tile([0, 1], N)
    rate = np.exp(rng.normal(size=2 * N) + kind)
    gain = np.where(domain == "query", 8.0, 4.0)
    frame = pd.DataFrame(
        {"reads": rng.poisson(gain * rate) + 1, "height": rng.integers(150, 200, 2 * N)}
    )
    frame = frame.assign(domain=domain, kind=kind.astype(str))
    roles = {"domain": "domain", "confounders": "kind", "features": ["reads", "height"]}
    with pytest.warns(UserWarning, match="look like counts: 'reads'. .*log") as caught:
        ConDoAdapter().fit(frame, **roles)
    assert [w.message.args[0].code for w in caught] == ["counts"]
    how = {"batch": "domain", "confounders": "kind", "features": ["reads", "height"]}
    with pytest.warns(UserWarning, match="look like counts: 'reads'"):
        BatchAdapter(reference="reference").fit(frame, **how)
    found = assess(frame, **roles)
    notes = dict(zip(found.features["feature"], found.features["kind"]))
    assert notes["reads"] == "counts"
    assert "counts" not in (notes.get("height"),)
    linked = LocationScale(links={"reads": "log"})
    ConDoAdapter(linked).fit(frame, **roles)  # says nothing more


def test_what_looks_like_counts():
    rng = np.random.default_rng(0)
    few = rng.poisson(1.0, 300).clip(0, 5)
    columns = {
        "negative binomial": rng.negative_binomial(1, 0.05, 300),
        "with gaps": np.where(rng.random(300) < 0.2, np.nan, rng.negative_binomial(1, 0.05, 300)),
        "codes": few,
        "even": rng.integers(0, 100, 300),
        "whole, far from zero": 1000 + rng.negative_binomial(1, 0.05, 300),
        "with fractions": rng.lognormal(size=300),
        "negative": -rng.negative_binomial(1, 0.05, 300),
        "unknown": np.full(300, np.nan),
    }
    marked = look_like_counts(np.column_stack([*columns.values()]).astype(float))
    assert marked.tolist() == [True, True, *[False] * 6]
