"""After fitting: what is left, what was kept, and what it means for models."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from stories import ROLES, truth, two_domains

from condokit import AffineMap, ConDoAdapter, evaluate
from condokit.trust.blocks import ComparableRows
from condokit.trust.residual_shift import _BlockMoments, area_within


@pytest.fixture(scope="module")
def frame():
    return two_domains(np.random.default_rng(1))


def test_a_correct_map_is_good_and_keeps_what_confounders_explain(frame):
    found = evaluate(ConDoAdapter().fit(frame, **ROLES), frame, **ROLES, n_permutations=99)
    assert found.verdict == "better"
    assert found.error_after < 0.2 < found.error_before
    assert found.map_known_from == "these rows"
    versions = {row["data"]: row for row in found.versions.rows()}
    assert versions["this map"]["kept"] == pytest.approx(1.0, abs=0.25)
    assert versions["moment matching"]["kept"] == pytest.approx(0.0, abs=1e-9)
    assert versions["this map"]["shift_sd"] < 0.1 < versions["as is"]["shift_sd"]
    assert versions["as is"]["domain_auc"] > 0.8 > 0.6 > versions["this map"]["domain_auc"]


def test_moment_matching_is_flagged_as_over_correction(frame):
    matched = ConDoAdapter(shrinkage=None).fit(frame, domain="domain", features=["x*"])
    found = evaluate(matched, frame, **ROLES, n_permutations=99)
    assert found.verdict != "better"
    assert any("over-corrected" in finding.text for finding in found.findings)
    assert found.p_features <= 0.01
    assert found.p_joint <= 0.01


def test_doing_nothing_is_noticed(frame):
    nothing = AffineMap(np.ones(4), np.zeros(4), [f"x{j}" for j in range(4)])
    found = evaluate(nothing, frame, **ROLES, n_permutations=99)
    assert found.verdict == "cannot tell"
    assert "the map changes nothing" in found.sentence
    assert found.error_before == pytest.approx(found.error_after)
    assert all(p <= 0.01 for p in found.features["p_adjusted"])


@pytest.mark.parametrize("kind", ["truth", "other rows", "these rows"])
def test_the_test_keeps_its_size_after_a_correct_map(kind):
    n_simulations, hits = 30, np.zeros(3)
    for seed in range(n_simulations):
        rng = np.random.default_rng(100 + seed)
        fitted_on, seen = two_domains(rng, 80, 3), two_domains(rng, 80, 3)
        adapter = ConDoAdapter(shrinkage=None).fit(fitted_on, **ROLES)
        data = fitted_on if kind == "these rows" else seen
        found = evaluate(truth(3) if kind == "truth" else adapter, data, **ROLES, n_permutations=39)
        assert found.map_known_from == ("elsewhere" if kind == "truth" else kind)
        hits += np.array([found.features["p"][0], found.p_features, found.p_joint]) <= 0.05
    # 30 draws of a chance of 0.05: more than 5 have a chance of 0.003
    assert (hits <= 5).all(), hits


def test_a_confounder_that_was_left_out_is_noticed():
    powers = []
    for seed in range(10):
        data = two_domains(np.random.default_rng(seed), 100, 3)
        blind = ConDoAdapter().fit(data, domain="domain", features=["x*"])
        powers.append(evaluate(blind, data, **ROLES, n_permutations=39).p_features)
    assert np.mean(np.array(powers) <= 0.05) > 0.9


def test_continuous_confounders_and_groups_are_taken_into_account(rng):
    n = 200
    frames = []
    for name, low in (("query", 3.0), ("reference", 0.0)):
        subject = np.repeat(np.arange(n // 4), 4)
        z = rng.uniform(low, low + 5, n // 4)[subject]
        x = np.sin(z) * 2 + z + rng.normal(size=n // 4)[subject] + 0.3 * rng.normal(size=n)
        x = (x - 1) / 2 if name == "query" else x
        labels = [f"{name}{s}" for s in subject]
        frames.append(pd.DataFrame({"x": x, "z": z, "domain": name, "subject": labels}))
    data = pd.concat(frames, ignore_index=True)
    roles = {"domain": "domain", "confounders": ["z"], "groups": "subject"}
    right = evaluate(AffineMap([2.0], [1.0], ["x"]), data, **roles, n_permutations=99)
    assert right.p_features > 0.05
    wrong = evaluate(AffineMap([2.0], [4.0], ["x"]), data, **roles, n_permutations=99)
    assert wrong.p_features <= 0.05


def test_permuted_labels_stay_within_blocks_and_subjects(rng):
    n = 120
    block, groups = np.repeat(np.arange(3), 40), np.repeat(np.arange(30), 4)
    is_query = np.repeat(rng.random(30) < 0.5, 4)
    is_query[:4] = [True, False, True, False]  # a subject seen in both domains
    X = np.zeros((n, 1))
    rows = ComparableRows(X, X, is_query, block, block, None, groups, np.arange(n))
    labels = rows.permuted(50, rng)
    for g in range(1, 30):
        mine = labels[groups == g]
        assert (mine == mine[0]).all()
    turned = labels[:4] ^ is_query[:4, None]
    assert (turned == turned[0]).all()
    assert 0 < turned[0].mean() < 1
    subjects = labels[4::4]
    kind = block[4::4]
    for k in range(3):
        assert (subjects[kind == k].sum(axis=0) == is_query[4::4][kind == k].sum()).all()


def test_block_moments_agree_with_numpy(rng):
    R, labels = rng.normal(5, 2, (30, 3)), rng.random((30, 4)) < 0.5
    block = _BlockMoments.of(R, labels)
    for b in range(4):
        q, r = R[labels[:, b]], R[~labels[:, b]]
        difference = block.mean[0, b] - block.mean[1, b]
        np.testing.assert_allclose(difference, q.mean(axis=0) - r.mean(axis=0))
        np.testing.assert_allclose(block.var[0, b], q.var(axis=0, ddof=1))
        np.testing.assert_allclose(block.var[1, b], r.var(axis=0, ddof=1))


def test_results_do_not_depend_on_the_order_of_features(frame):
    adapter = ConDoAdapter().fit(frame, **ROLES)
    turned = frame[["sick", "x3", "x1", "domain", "x0", "x2"]]
    one, other = (evaluate(adapter, f, **ROLES, n_permutations=49) for f in (frame, turned))
    assert one.features.to_dict() == other.features.to_dict()


def test_frozen_models_are_shown_by_stratum(frame):
    reference = frame[frame["domain"] == "reference"]
    names = ["x0", "x1", "x2", "x3"]
    models = {
        "named": LogisticRegression().fit(reference[names], reference["sick"]),
        "plain": LinearRegression().fit(reference[names].to_numpy(), reference["sick"]),
    }
    found = evaluate(
        truth(), frame, **ROLES, models=models, labels={"named": "sick"}, n_permutations=39
    )
    rows = {(row["model"], row["rows with"]): row for row in found.models.rows()}
    query = frame[frame["domain"] == "query"]
    before = models["named"].predict_proba(query[names])[:, 1]
    after = models["named"].predict_proba(2 * query[names] + 1)[:, 1]
    row = rows["named", "all"]
    assert row["query_before"] == pytest.approx(before.mean())
    assert row["query_after"] == pytest.approx(after.mean())
    assert row["query_truth"] == pytest.approx(query["sick"].mean())
    assert row["error_after"] == pytest.approx(np.mean((after - query["sick"]) ** 2))
    assert rows["plain", "sick = True"]["query_truth"] is None
    assert set(found.calibration["version"]) == {"before", "after"}


def test_small_cells_are_hidden_from_everything_rendered(rng):
    data = two_domains(rng, 60, 2)
    rare = np.flatnonzero((data["domain"] == "query") & ~data["sick"])
    data = data.drop(index=rare[3:])
    model = LogisticRegression().fit(data[["x0", "x1"]], data["sick"])
    found = evaluate(truth(2), data, **ROLES, models=model, n_permutations=39)
    row = next(row for row in found.models.rows() if row["rows with"] == "sick = False")
    assert row["query_after"] is None
    assert row["reference"] is not None
    curves = found.densities["x0"]["strata"]["sick = False"]
    assert curves["after"] is None
    assert curves["reference"] is not None


def test_pairs_measure_agreement(rng):
    n = 60
    true = rng.normal(3, 1, (n, 2))
    data = pd.DataFrame(np.vstack([(true - 1) / 2, true + 0.1 * rng.normal(size=(n, 2))]))
    data.columns = ["x0", "x1"]
    data["domain"] = np.repeat(["query", "reference"], n)
    pairs = (np.arange(n), n + np.arange(n))
    found = evaluate(truth(2), data, domain="domain", pairs=pairs, n_permutations=39).agreement
    assert found.n_pairs == n
    assert found.error_after < 0.15 < found.error_before
    row = next(iter(found.features.rows()))
    difference = 2 * data["x0"][:n].to_numpy() + 1 - data["x0"][n:].to_numpy()
    assert row["bias"] == pytest.approx(difference.mean())
    assert row["upper"] == pytest.approx(difference.mean() + 1.96 * difference.std(ddof=1))
    assert "mean" not in found.to_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": 3}, "has no `predict`"),
        ({"labels": "sick"}, "'labels' are for `models`"),
        ({"pairs": ([0, 1], [2, 3])}, "lists row 2 as a reference row"),
        ({"pairs": ([0, 1], [298, 299])}, "at least 5 pairs"),
        ({"pairs": ([0, 1], [299])}, "lists 2 query rows but 1"),
        ({"n_permutations": 3}, "n_permutations"),
        ({"features": ["x0"]}, "lacks 'x1'"),
    ],
)
def test_bad_input_is_refused(frame, change, message):
    with pytest.raises(ValueError, match=message):
        evaluate(truth(), frame, **{**ROLES, "n_permutations": 39, **change})


def test_records_are_plain_and_print(frame):
    found = evaluate(truth(), frame, **ROLES, n_permutations=39)
    assert json.dumps(found.to_dict(), allow_nan=False)
    assert "Given the confounders" in repr(found)
    assert "<table>" in found._repr_html_()


def test_missing_values_are_evaluated_as_if_they_were_not_missing(rng, frame):
    holes = frame.copy()
    holes.loc[rng.choice(300, 60, replace=False), "x1"] = np.nan
    adapter = ConDoAdapter().fit(holes, **ROLES)
    found = evaluate(adapter, holes, **ROLES, n_permutations=49)
    assert found.verdict == "better"
    assert np.isfinite(found.features["shift_after"]).all()
    wrong = evaluate(truth().compose(truth()), holes, **ROLES, n_permutations=49)
    assert wrong.features["p_adjusted"][1] <= 0.05
    pairs = (np.arange(50), 150 + np.arange(50))
    paired = evaluate(adapter, holes, **ROLES, pairs=pairs, n_permutations=39).agreement
    assert np.isfinite(paired.features["bias"]).all()


@pytest.mark.filterwarnings("ignore:The principal axes")  # equal domains of equal spreads
@pytest.mark.parametrize("name", ["identity", "shift", "orthogonal"])
def test_maps_that_fit_less_are_not_blamed_for_following_less_noise(name):
    blamed = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        data = pd.DataFrame(rng.normal(size=(160, 3)), columns=["x0", "x1", "x2"])
        data["domain"] = np.repeat(["query", "reference"], 80)
        adapter = ConDoAdapter(name).fit(data, domain="domain")
        found = evaluate(adapter, data, domain="domain", n_permutations=39)
        blamed += min(found.p_features, found.p_joint) <= 0.025
    assert blamed <= 2


def test_labels_may_be_missing_but_not_strange(frame):
    names = ["x0", "x1", "x2", "x3"]
    model = LogisticRegression().fit(frame[names], frame["sick"])
    label = frame["sick"].astype(object)
    label[frame["domain"] == "query"] = None
    found = evaluate(truth(), frame, **ROLES, models=model, labels=label, n_permutations=39)
    assert found.models["query_truth"] == [None] * len(found.models)
    assert found.models["error_reference"][0] > 0
    with pytest.raises(ValueError, match="must be its classes"):
        evaluate(truth(), frame, **ROLES, models=model, labels=["yes"] * len(frame))
    three = LogisticRegression().fit(frame[names], np.arange(len(frame)) % 3)
    with pytest.raises(ValueError, match="3 classes"):
        evaluate(truth(), frame, **ROLES, models=three)
    with pytest.raises(ValueError, match="not fitted"):
        evaluate(ConDoAdapter(), frame, **ROLES)


def test_no_mean_tells_that_of_a_small_cell(rng):
    data = two_domains(rng, 60, 2)
    rare = np.flatnonzero((data["domain"] == "query") & ~data["sick"])
    data = data.drop(index=rare[3:])
    model = LogisticRegression().fit(data[["x0", "x1"]], data["sick"])
    found = evaluate(truth(2), data, **ROLES, models=model, n_permutations=39)
    by_stratum = {row["rows with"]: row["query_after"] for row in found.models.rows()}
    assert by_stratum["all"] is not None
    assert by_stratum["sick = True"] is None  # with that of all, it would tell the other


def test_weights_count_rows(frame):
    weights = np.random.default_rng(0).integers(1, 4, len(frame))
    copies = frame.loc[np.repeat(frame.index, weights)].reset_index(drop=True)
    subject = np.repeat(np.arange(len(frame)), weights)
    weighted = evaluate(truth(), frame, **ROLES, sample_weight=weights, n_permutations=39)
    repeated = evaluate(truth(), copies, **ROLES, groups=subject, n_permutations=39)
    for name in ("shift_before", "shift_after", "sd_ratio_after"):
        np.testing.assert_allclose(weighted.features[name], repeated.features[name])
    plain = evaluate(truth(), frame, **ROLES, n_permutations=39)
    assert weighted.features["shift_after"] != plain.features["shift_after"]


def test_the_area_within_cells_is_the_share_of_pairs_in_order(rng):
    score, label = np.round(rng.normal(size=60), 1), rng.random(60) < 0.4
    cell = rng.integers(0, 6, 60)
    cell[0], label[cell == 3] = 6, True  # a cell of one row, and one of one label
    pairs = [
        (score[i] > score[j]) + 0.5 * (score[i] == score[j])
        for i in np.flatnonzero(label)
        for j in np.flatnonzero(~label)
        if cell[i] == cell[j]
    ]
    assert area_within(score, label, cell) == pytest.approx(np.mean(pairs))
    assert area_within(score, np.ones(60, dtype=bool), cell) == 0.5


def test_strata_of_single_rows_tell_nothing_of_spreads(rng):
    frame = two_domains(rng)
    own = frame[frame.domain == "query"].groupby("sick").head(1)  # one row of each stratum
    both = pd.concat([own, frame[frame.domain == "reference"]])
    found = evaluate(truth(), both, **ROLES, n_permutations=39)
    assert found.verdict == "cannot tell"
    assert found.to_dict()["features"]["sd_ratio_after"] == [None] * 4
    assert found.to_dict()["versions"]["log_sd_ratio"] == [None] * 3


def test_errors_of_prediction_are_bias_and_spread(rng):
    frame = two_domains(rng)
    reference = frame["domain"] == "reference"
    names = [f"x{j}" for j in range(4)]
    wanted = frame[names] @ [1.0, 2.0, 0.0, -1.0] + rng.normal(size=len(frame))
    model = LinearRegression().fit(frame.loc[reference, names], wanted[reference])
    found = evaluate(
        truth(), frame, **ROLES, models=model, labels=wanted.to_numpy(), n_permutations=39
    )
    rows = {row["data"]: row for row in found.predictions.rows()}
    assert [*rows] == ["reference", "query before", "query after"]
    query = frame.loc[~reference, names]
    for data, X in (("query before", query), ("query after", 2 * query + 1)):
        e = model.predict(X) - wanted[~reference]
        assert rows[data]["RMSEP"] == pytest.approx(np.sqrt(np.mean(e**2)))
        assert rows[data]["bias"] == pytest.approx(e.mean())
        assert rows[data]["SEP"] == pytest.approx(e.std(ddof=1))
    assert "Errors of prediction" in repr(found)


@pytest.mark.parametrize("share_missing", [0.0, 0.2])
def test_spread_of_small_strata_is_not_biased_by_few_rows_or_missing_values(share_missing):
    """Strata of 4 query and 25 reference rows, of one law: ratios of spreads are one on average."""
    rng = np.random.default_rng(0)
    z = np.concatenate([np.repeat(np.arange(20), 4), np.repeat(np.arange(20), 25)]).astype(str)
    domain = np.repeat(["query", "reference"], [80, 500])
    X = rng.normal(size=(580, 60))
    X[rng.random(X.shape) < share_missing] = np.nan
    same = AffineMap(np.ones(60), np.zeros(60))
    found = evaluate(same, X, domain=domain, confounders={"stratum": z}, n_permutations=39)
    # before: 0.87 without missing values, 0.53 with
    assert np.exp(np.mean(np.log(found.features["sd_ratio_before"]))) == pytest.approx(1, abs=0.06)


def test_labels_of_models_in_two_tables(rng):
    """A column of both, or an array of all rows: the same as one table."""
    frame = two_domains(rng, 60, 2).assign(y=rng.normal(size=120))
    new, old = (
        frame[frame["domain"] == side].drop(columns="domain") for side in ("query", "reference")
    )
    both = pd.concat([new, old])
    adapter = ConDoAdapter().fit_pair(new, old, confounders=["sick"], features=["x0", "x1"])
    models, how = LinearRegression().fit(old[["x0", "x1"]], old["y"]), {"n_permutations": 39}
    named, given = (
        evaluate(adapter, new, old, models=models, labels=labels, **how).predictions
        for labels in ("y", both["y"].to_numpy())
    )
    domain = np.repeat(["query", "reference"], [len(new), len(old)])
    one = evaluate(
        adapter, both, domain=domain, confounders=["sick"], models=models, labels="y", **how
    ).predictions
    for other in (given, one):
        for name in ("RMSEP", "bias", "SEP"):
            assert named[name] == pytest.approx(other[name])
    with pytest.raises(ValueError, match="120 values"):
        evaluate(adapter, new, old, models=models, labels=[1.0], **how)


def test_few_known_values_of_a_feature_are_not_told(frame):
    """One value, or another one: the same figures, but of the map itself."""
    some, told = frame.iloc[::3].reset_index(drop=True), []
    query = np.flatnonzero(some["domain"] == "query")
    some.loc[query[1:], "x0"] = np.nan
    for value in (0.5, 40.0):
        some.loc[query[0], "x0"] = value
        found = evaluate(truth(), some, **ROLES, n_permutations=39)
        columns = found.to_dict()["features"]
        k = columns["feature"].index("x0")
        for name in ("shift_before", "shift_after", "p", "explained_difference"):
            assert columns[name][k] is None
        assert "x0" not in found.densities
        scores = found.pictures.scores["before"]
        told.append([found.versions["shift_sd"], found.versions["domain_auc"], scores.tolist()])
    assert told[0][0] == pytest.approx(told[1][0])
    assert told[0][1] == pytest.approx(told[1][1])
    np.testing.assert_allclose(told[0][2], told[1][2])


def test_a_difference_that_rests_on_one_row_is_not_told(frame):
    some = frame.iloc[::3].reset_index(drop=True).assign(kind="usual")
    reference = np.flatnonzero(some["domain"] == "reference")
    some.loc[[*range(9), reference[0]], "kind"] = "rare"
    roles = {"domain": "domain", "confounders": ["kind"]}
    found = evaluate(truth(), some, **roles, n_permutations=39).to_dict()
    assert found["features"]["explained_difference"] == [None] * 4
    some.loc[reference[:9], "kind"] = "rare"
    found = evaluate(truth(), some, **roles, n_permutations=39).to_dict()
    assert None not in found["features"]["explained_difference"]


def test_a_stratum_with_few_known_labels_is_not_all_less_the_others(frame):
    labels = frame["sick"].astype(float) + 1
    query = frame["domain"] == "query"
    hidden = np.flatnonzero(query & ~frame["sick"])
    labels[hidden[2:]] = np.nan  # two of them are known
    model = LinearRegression().fit(frame[[f"x{j}" for j in range(4)]], frame["sick"])
    found = evaluate(truth(), frame, **ROLES, models=model, labels=labels, n_permutations=39)
    by_cell = {row["rows with"]: row["query_truth"] for row in found.models.rows()}
    assert by_cell["all"] is not None
    assert by_cell["sick = True"] is None
    assert by_cell["sick = False"] is None
