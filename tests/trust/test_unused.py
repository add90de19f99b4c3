"""Columns that were not used, though they differ between domains and features follow them."""

import numpy as np
import pandas as pd
import pytest
from reading import from_pair, from_table
from stories import ROLES, truth, two_domains

from condokit import BatchAdapter, assess, evaluate
from condokit.trust.columns import unused_that_matter


def read(frame, **changes):
    roles = {"domain": "domain", "confounders": ["sick"], "features": ["x*"], **changes}
    given = [roles.get(k) for k in ("domain", "confounders", "features", "groups")]
    return from_table(frame, *given, None, None, None, "drop")


@pytest.fixture
def frame(rng):
    """A table with a column that matters, and others that do not."""
    data = two_domains(rng, 200, 3)
    query = (data["domain"] == "query").to_numpy()
    smokes = rng.random(400) < np.where(query, 0.8, 0.3)
    data["x1"] += 1.5 * smokes
    return data.assign(
        smokes=np.where(smokes, "yes", "no"),
        coin=rng.choice(["a", "b"], 400),  # goes with nothing
        site=np.where(query, "north", "south"),  # another name of the domain
        height=rng.normal(size=400) + query,  # differs, but features do not follow
        mood=data["x0"] - data.groupby(["domain", "sick"])["x0"].transform("mean"),  # is alike
        subject_id=np.arange(400),
        note=[f"free text {i}" for i in range(400)],
        empty=None,
    )


def test_only_the_column_that_matters_is_named(frame):
    [found] = unused_that_matter(read(frame))
    assert found.text.startswith("'smokes' is not used")
    assert "confounders" in found.advice
    assert unused_that_matter(read(frame, confounders=["sick", "smokes"])) == []
    [both] = unused_that_matter(read(frame, confounders=None))
    assert "'sick'" in both.text
    assert "'smokes'" in both.text


def test_it_is_found_in_two_tables_and_keeps_the_verdict_open(frame):
    query, reference = (frame[frame["domain"] == d] for d in ("query", "reference"))
    given = query[["sick"]], reference[["sick"]]
    domains = from_pair(query, reference, *given, None, None, None, "raise", features=["x*"])
    [found] = unused_that_matter(domains)
    assert "'smokes'" in found.text
    roles = {**ROLES, "features": ["x*"]}
    judged = evaluate(truth(3), frame, **roles, n_permutations=39)
    assert judged.verdict == "cannot tell"
    assert "'smokes' is not used" in judged.sentence
    assert assess(frame, **roles, reference="reference").verdict == "go with care"


def test_false_alarms_are_rare():
    hits = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        data = two_domains(rng, 60, 5)
        for j in range(3):
            data[f"age {j}"] = rng.normal(size=120) + (data["domain"] == "query") * (j == 0)
        hits += bool(unused_that_matter(read(data)))
    assert hits <= 4


def test_subjects_count_once(rng):
    people = two_domains(rng, 12, 2)
    people["grade"] = np.where(rng.random(24) < 0.5, "a", "b")
    many = pd.concat([people.assign(who=np.arange(24))] * 40, ignore_index=True)
    many[["x0", "x1"]] += 0.1 * rng.normal(size=(960, 2))
    assert unused_that_matter(read(many, groups="who")) == []


def test_many_other_measurements_are_no_confounders(rng):
    data = two_domains(rng, 200, 20)
    assert unused_that_matter(read(data, features=["x0", "x1"])) == []
    few = data.drop(columns=[f"x{j}" for j in range(5, 20)])
    assert unused_that_matter(read(few, features=["x0", "x1"])) == []
    [found] = unused_that_matter(read(few.rename(columns={"x4": "mass"}), features=["x0", "x1"]))
    assert "'mass'" in found.text  # which may be a confounder


def test_columns_of_any_kind_are_looked_at_without_harm(rng):
    data = two_domains(rng, 60, 2)
    n = len(data)
    data = data.assign(
        lists=[[1, 2]] * n,
        bytes=[b"a", b"b"] * (n // 2),
        when=pd.date_range("2020", periods=n),
        spent=pd.to_timedelta(np.arange(n), "s"),
        grade=pd.Categorical(rng.choice(["u", "v"], n)),
        known=pd.array([1, None] * (n // 2), dtype="Int64"),
        empty=np.nan,
        infinite=np.where(rng.random(n) < 0.1, np.inf, rng.normal(size=n)),
        mixed=[1, "a"] * (n // 2),
        constant=3.5,
        large=[10**30] * n,
        half=np.where(rng.random(n) < 0.5, np.nan, 1.0),
    )
    assert unused_that_matter(read(data)) == []


def test_other_measurements_are_no_confounders(rng):
    data = two_domains(rng, 150, 3)
    data = data.rename(columns={f"x{j}": f"region{j}_thickness" for j in range(3)})
    shared, query = data["region0_thickness"], data["domain"] == "query"
    for name in ("hippocampus", "amygdala", "caudate", "putamen"):
        data[f"{name}_volume"] = 40 * (shared + rng.normal(size=300)) + 90 * query
    features = {"features": ["*_thickness"]}
    assert unused_that_matter(read(data, **features)) == []
    alone = data.rename(columns={"hippocampus_volume": "weight"})
    alone = alone.drop(columns=["amygdala_volume", "caudate_volume", "putamen_volume"])
    [found] = unused_that_matter(read(alone, **features))
    assert "'weight'" in found.text


@pytest.mark.parametrize("is_measured", [True, False])
def test_a_number_that_differs_in_bridges_is_measured_by_the_devices(is_measured):
    rng = np.random.default_rng(0)
    n, k = 150, 10
    size = np.concatenate([rng.normal(0, 1, n), rng.normal(0.8, 1, n)])  # of heads
    size[n : n + k] = size[:k]  # the same people at both sites
    names = np.array([f"s{i}" for i in range(2 * n)], dtype=object)
    names[n : n + k] = names[:k]
    site = np.repeat(["a", "b"], n)
    frame = pd.DataFrame(size[:, None] + rng.normal(size=(2 * n, 3)), columns=["x0", "x1", "x2"])
    read = size + 0.05 * rng.normal(size=2 * n) + (0.8 * (site == "b") if is_measured else 0.0)
    frame = frame.assign(site=site, head_mm=10 * read + 0.5, person=names)
    frame["sex"] = np.where(rng.random(2 * n) < 0.5, "f", "m")
    roles = {"batch": "site", "features": ["x*"], "bridge": "person", "confounders": "sex"}
    found = evaluate(BatchAdapter(reference="a").fit(frame, **roles), frame, n_permutations=39)
    assert ("'head_mm'" in repr(found.evaluations["b"].doubts)) is not is_measured
