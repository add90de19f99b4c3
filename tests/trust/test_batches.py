import numpy as np
import pytest
from batches_made import Made

from condokit import BatchAdapter, ConDoAdapter, assess, bootstrap, evaluate
from condokit.maps.families import LowRank

ROLES = {"batch": "site", "confounders": "group"}


@pytest.fixture(scope="module")
def study():
    made = Made(0, [(0, 1, 2), (0, 0, 1), (1, 2, 2), (0, 2, 2)], n=100)
    made.table = made.table.drop(columns="years")
    made.adapter = BatchAdapter(reference="A").fit(made.table, **ROLES)
    return made


def test_assess_tells_paths_and_pairs(study):
    found = assess(study.table, reference="A", **ROLES)
    assert found.verdict == "go"
    assert found.batches["path"] == ["A", "B > A", "C > A", "D > A"]
    assert len(found.pairs) == 6
    islands = study.table[(study.table["site"] != "B") | (study.table["group"] != "g0")]
    islands = islands.assign(group=np.where(islands["site"] == "B", "own", islands["group"]))
    found = assess(islands, adapter=BatchAdapter(reference="A"), **ROLES)
    assert found.verdict == "not possible"
    assert "'B'" in found.findings[0].text
    assert found.wanted


def test_good_maps_are_called_better_and_bad_ones_worse(study):
    found = evaluate(study.adapter, study.table, n_permutations=50, **ROLES)
    assert found.verdict == "better"
    assert found.batches["batch"] == ["B", "C", "D"]
    assert found.sentence == "3 better"
    for row in found.batches.rows():
        actual = study.error(study.adapter.transform(study.table, batch="site"))
        assert row["error_after"] == pytest.approx(actual, rel=0.6)
    bad = BatchAdapter(reference="A").fit(study.table, **ROLES)
    bad.maps_["C"] = bad.maps_["C"].inverse()
    again = evaluate(bad, study.table, n_permutations=50, **ROLES)
    assert dict(zip(again.batches["batch"], again.batches["verdict"]))["C"] == "worse"
    assert again.verdict == "worse"


def test_without_confounders_nothing_is_called_better(study):
    table = study.table.drop(columns="group")
    plain = BatchAdapter(reference="A").fit(table, batch="site")
    found = evaluate(plain, table, batch="site", n_permutations=50)
    assert set(found.batches["verdict"]) == {"cannot tell"}


def test_refits_find_the_errors_of_the_fit(study):
    adapter = BatchAdapter(reference="A").fit(study.table, **ROLES)
    before = {label: errors.std(study.X) for label, errors in adapter.errors_.items()}
    found = bootstrap(adapter, study.table, n_resamples=60, **ROLES)
    assert set(found) == {"B", "C", "D"}
    for label, errors in found.items():
        ratio = np.median(errors.std(study.X) / before[label])
        assert 0.75 < ratio < 1.4
    assert adapter.errors_["B"] is found["B"]
    _, std = adapter.transform(study.table, batch="site", return_std=True)
    assert (std.to_numpy()[study.code == 0] == 0).all()


def test_controls_need_no_confounders_here_either():
    made = Made(0, [(0, 1), (0, 1), (0, 1)])
    table = made.table
    table["control"] = [f"s{k % 60}" if k % 60 < 4 else None for k in range(180)]
    table.loc[table["control"].notna() & (made.code > 0), "group"] = None
    roles = {**ROLES, "features": "f*", "bridge": "control"}
    adapter = BatchAdapter(reference="A").fit(table, **roles)
    found = evaluate(adapter, table, n_permutations=50, **roles)
    assert found.batches["batch"] == ["B", "C"]


@pytest.mark.slow
def test_all_of_a_matrix_of_low_rank_is_refitted():
    rng, site = np.random.default_rng(0), np.repeat(["A", "B"], 100)
    kind = np.tile(["u", "v"], 100)
    X = rng.normal(size=(200, 6)) @ (np.eye(6) + 0.3) + (kind == "u")[:, None] * np.arange(6) / 3
    X[100:] = X[100:] @ (np.eye(6) + 0.3 * np.outer(rng.normal(size=6), rng.normal(size=6)))
    adapter = BatchAdapter(ConDoAdapter(LowRank(1)), reference="A")
    adapter.fit(X, batch=site, confounders=kind)
    found = bootstrap(adapter, X, batch=site, confounders=kind, n_resamples=20)
    assert (found["B"].scale > 0).all()
