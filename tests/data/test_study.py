"""A study against loops over the rows of its table."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from condokit.data.reader import read
from condokit.data.roles import Roles
from condokit.data.study import cell_names, in_several

FEATURES = ["x", "y", "z"]
N = 240


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3))
    X[rng.random((N, 3)) < 0.1] = np.nan
    frame = pd.DataFrame(X, columns=FEATURES)
    frame["site"] = rng.choice(["a", "b", "c"], N, p=[0.2, 0.5, 0.3])
    frame["sex"], frame["stage"] = rng.choice(["F", "M"], N), rng.choice(["I", "II", "III"], N)
    frame["age"] = rng.uniform(20, 80, N)
    return frame


def study_of(table, weights=None, confounders=("sex", "stage", "age")):
    roles = Roles("site", list(confounders), FEATURES, None, weights)
    return read(table, roles)


@pytest.fixture(scope="module")
def study(table):
    return study_of(table)


WEIGHTS = np.random.default_rng(1).integers(1, 4, N).astype(float)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("leaves_out", [False, True])
def test_strata_are_the_cells_of_categories(table, weights, leaves_out):
    study = study_of(table, weights)
    kept = np.arange(N) % 5 > 0 if leaves_out else np.ones(N, bool)
    if leaves_out:
        study = study.pair(1, 0)
        kept &= table["site"].isin(["a", "b"]).to_numpy()
        study = replace(study, keep=kept)
    strata = study.strata()
    assert strata.names == ["sex", "stage"]
    w = np.ones(N) if weights is None else weights
    for k, (sex, stage) in enumerate(strata.levels):
        here = (table["sex"] == sex) & (table["stage"] == stage) & kept
        np.testing.assert_array_equal(strata.codes == k, here)
        assert strata.count_query[k] == w[here & study.is_query].sum()
        assert strata.count_reference[k] == w[here & ~study.is_query].sum()
    assert (strata.codes[~kept] == -1).all()
    assert len(strata.levels) == 6


def test_the_largest_domain_is_the_reference_and_rows_of_others_are_queries(table, study):
    assert study.labels[study.reference] == "b"
    np.testing.assert_array_equal(study.is_query, table["site"] != "b")


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_moments_of_groups_are_those_of_their_rows(table, weights):
    study, X = study_of(table, weights), table[FEATURES].to_numpy()
    groups = np.random.default_rng(2).integers(-1, 4, N)
    found = study.gather(groups, 4)
    w = np.ones(N) if weights is None else weights
    for g in range(4):
        for j in range(3):
            rows = (groups == g) & ~np.isnan(X[:, j])
            mean = np.average(X[rows, j], weights=w[rows])
            assert found.mean[g, j] == pytest.approx(mean)
            assert found.squares[g, j] == pytest.approx(w[rows] @ (X[rows, j] - mean) ** 2)
            assert found.n_values[g, j] == rows.sum() or weights is not None
    cells = study.moments()
    known = study_of(table.iloc[::-1], None if weights is None else weights[::-1]).moments()
    order = [study_of(table.iloc[::-1]).labels.index(label) for label in study.labels]
    np.testing.assert_allclose(cells.mean, known.mean[order])


@pytest.mark.parametrize("n", [1, 7, 59, 61, N])
def test_rows_are_read_by_their_numbers_however_many(table, study, n):
    used = np.sort(np.random.default_rng(n).permutation(N)[:n])
    np.testing.assert_array_equal(study.rows(used), table[FEATURES].to_numpy()[used])
    np.testing.assert_array_equal(
        study.side(True, used), table[FEATURES].to_numpy()[used[study.is_query[used]]]
    )


def test_sums_of_some_features_are_those_of_a_smaller_table(table, study):
    some = study.of(np.array([2, 0]))
    groups = np.arange(N) % 3
    np.testing.assert_array_equal(
        some.gather(groups, 3).mean, study.gather(groups, 3).mean[:, [2, 0]]
    )
    np.testing.assert_array_equal(some.moments().squares, study.moments().squares[:, [2, 0]])
    np.testing.assert_array_equal(some.gaps, np.asarray(study.gaps)[:, [2, 0]])
    whole = study_of(table.fillna({"x": 0.0}))
    assert whole.of(np.array([0])).gaps is None
    assert whole.of(np.array([0, 1])).gaps is not None


def test_a_pair_has_the_rows_and_the_gaps_of_two_domains(table, study):
    a, c = study.labels.index("a"), study.labels.index("c")
    pair = study.pair(c, a)
    assert pair.labels == ("c", "a")
    np.testing.assert_array_equal(pair.kept(), table["site"].isin(["a", "c"]))
    np.testing.assert_array_equal(pair.is_query[pair.kept()], (table["site"] == "c")[pair.kept()])
    missing = table[FEATURES].isna()
    for label, gaps in zip("ca", pair.gaps):
        np.testing.assert_array_equal(gaps, missing[table["site"] == label].sum())


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_counts_of_batches_and_levels(table, weights):
    study = study_of(table, weights)
    codes = np.where(np.arange(N) % 7 == 0, -1, np.arange(N) % 2)
    w = np.ones(N) if weights is None else weights
    found = study.counts(codes, 2)
    for b, label in enumerate(study.labels):
        mine = (table["site"] == label).to_numpy()
        assert study.size(b) == w[mine].sum()
        for level in range(2):
            assert found[b, level] == w[mine & (codes == level)].sum()


def test_a_sample_by_weight_keeps_the_sum_of_each_domain(table):
    study = study_of(table, WEIGHTS)
    few = study.sampled()
    counts = few.weights * few.kept()
    assert few.sums is None
    for side in (study.is_query, ~study.is_query):
        assert counts[side].sum() == pytest.approx(side.sum(), abs=1)
        share = WEIGHTS[side] / WEIGHTS[side].mean()
        assert abs(counts[side] - share).max() <= 1
    assert study_of(table).sampled().weights is None


def test_samples_of_several_batches_are_numbered():
    sample = np.array([0, 0, 1, 1, 2, 2, 3, -1, -1, 4, 4])
    batch = np.array([0, 1, 0, 0, 1, 2, 0, 0, 1, 0, 1])
    kept = np.ones(11, bool)
    kept[-1] = False
    expected = [0, 0, -1, -1, 1, 1, -1, -1, -1, -1, -1]
    np.testing.assert_array_equal(in_several(sample, batch, kept), expected)


def test_cells_have_names():
    assert cell_names(["sex", "site"], [("F", "A")]) == ["sex = F and site = A"]
    assert cell_names([], [()]) == ["all"]
