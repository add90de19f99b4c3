"""Confounders that were measured with error."""

import numpy as np
import pandas as pd
import pytest
from reading import from_pair, from_table

from condokit import BatchAdapter, ConDoAdapter, assess, bootstrap, evaluate
from condokit.data.noise import _belongs, expectation, mixture, recalibrated


def scores(seed=0, n=500, shift=1.0, noise=0.8, n_features=2):
    """Return a table whose features follow a score that was measured twice, with error."""
    rng = np.random.default_rng(seed)
    query = np.repeat([True, False], n)
    true = rng.normal(size=2 * n) + shift * query
    X = true[:, None] * [1.0, -0.7, 1.3, 0.8][:n_features] + 0.5 * rng.normal(
        size=(2 * n, n_features)
    )
    truth = X[query].copy()
    X[query] = (X[query] - 1.5) / 0.8
    measured = true[:, None] + noise * rng.normal(size=(2 * n, 2))
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(n_features)])
    frame["true"], frame["score_1"], frame["score_2"] = true, *measured.T
    frame["site"] = np.where(query, "new", "old")
    return frame, truth


ROLES = {"domain": "site", "features": ["x*"]}


def error(adapter, frame, truth):
    mapped = adapter.transform(frame[frame.site == "new"])[["x0", "x1"]].to_numpy()
    return np.sqrt(np.mean((mapped - truth) ** 2))


def read(frame, confounders, reliability, **options):
    roles = {"groups": None, "sample_weight": None, "categorical": None, "missing": "raise"}
    given = roles | {"reference": "old", "features": ["x*"]} | options
    return from_table(frame, "site", confounders=confounders, reliability=reliability, **given)


def test_one_confounder_is_pulled_to_the_mean_of_its_domain():
    frame, _ = scores()
    domains = read(frame, ["score_1"], {"score_1": 0.7})
    sides = [frame.score_1[frame.site == s].to_numpy() for s in ("new", "old")]
    wrong = 0.3 * np.mean([side.var(ddof=1) for side in sides])
    for side, query in zip(sides, (True, False)):
        share = 1 - wrong / side.var(ddof=1)
        expected = side.mean() + share * (side - side.mean())
        np.testing.assert_allclose(
            domains.confounders[0].values[domains.is_query == query], expected
        )


def test_expectations_are_the_regression_of_the_true_on_the_measured_values():
    rng = np.random.default_rng(1)
    n, level = 40_000, rng.integers(0, 3, 40_000)
    exact = rng.normal(size=n) + 0.5 * level
    true = np.column_stack([exact + rng.normal(size=n) + level, 0.5 * exact + rng.normal(size=n)])
    noise = np.array([0.8, 0.5, 0.0])
    Z = np.column_stack([true, exact]) + np.sqrt(noise) * rng.normal(size=(n, 3))
    found = expectation(Z, level[:, None] == [1, 2], np.ones(n), noise)
    D = np.column_stack([Z, level[:, None] == np.arange(3)])
    best = D @ np.linalg.lstsq(D, np.column_stack([true, exact]), rcond=None)[0]
    assert np.abs(found - best).max() < 0.12  # of the noise's sampling alone
    assert np.sqrt(np.mean((found - best) ** 2)) < 0.03
    np.testing.assert_array_equal(found[:, 2].round(9), exact.round(9))


def test_values_that_are_not_normal_are_calibrated_by_their_law():
    rng = np.random.default_rng(7)
    true = rng.exponential(size=1000)
    Z = true + 0.6 * rng.normal(size=1000)
    # by numerical integration over the true law
    grid = np.linspace(0, 12, 4000)
    likely = np.exp(-0.5 * ((Z[:, None] - grid) / 0.6) ** 2 - grid)
    best = likely @ grid / likely.sum(axis=1)
    order = rng.permutation(1000)
    nothing, ones = np.zeros((1000, 0)), np.ones(1000)
    found = expectation(Z[:, None], nothing, ones, np.array([0.36]))[:, 0]
    again = expectation(Z[order, None], nothing, ones, np.array([0.36]))[:, 0]
    np.testing.assert_allclose(again, found[order], atol=1e-9)
    line = Z.mean() + (1 - 0.36 / Z.var()) * (Z - Z.mean())
    assert np.mean((found - best) ** 2) < 0.35 * np.mean((line - best) ** 2)


def test_likelihoods_of_mixtures_rise_to_a_maximum():
    rng = np.random.default_rng(8)
    Z = np.concatenate([rng.normal(size=(300, 2)), rng.normal(size=(200, 2)) + [4, 0]])
    noise, ones = np.array([0.3, 0.0]), np.ones(500)
    Z = Z - Z.mean(axis=0)
    shares, means, covs = mixture(Z, ones, np.cov(Z.T), noise)
    assert len(shares) == 2
    best = _belongs(Z, shares, means, covs)[1].sum()
    for by in (-0.02, 0.02):
        assert _belongs(Z, shares, means + [by, 0], covs)[1].sum() < best
        assert _belongs(Z, shares, means, covs * (1 + by))[1].sum() < best
        moved = shares + [by, -by]
        assert _belongs(Z, moved, means, covs)[1].sum() < best


def test_small_strata_borrow_from_their_domain():
    rng = np.random.default_rng(2)
    stratum = np.repeat(np.arange(300), 2)
    true = rng.normal(size=600)
    Z = (true + rng.normal(size=600))[:, None]
    levels = stratum[:, None] == np.arange(1, 300)
    found = expectation(Z, levels, np.ones(600), np.array([1.0]))[:, 0]
    assert np.mean((found - true) ** 2) < 1.1 * np.mean((0.5 * Z[:, 0] - true) ** 2)


def test_nothing_changes_without_error():
    frame, _ = scores()
    domains = read(frame, ["true"], {"true": 1.0})
    np.testing.assert_array_equal(domains.confounders[0].values, frame.true)


def test_repeated_measurements_tell_their_error():
    frame, truth = scores(n=1000)
    known = 1 / (1 + 0.8**2 / 2)
    domains = read(frame, ["score"], {"score": ["score_1", "score_2"]})
    assert [c.name for c in domains.confounders] == ["score"]
    assert domains.tables[0].labels == ["x0", "x1"]
    assert "score_1" not in domains.unused
    mean = frame[["score_1", "score_2"]].mean(axis=1).rename("score")
    by_share = read(frame.assign(score=mean), ["score"], {"score": known})
    values = [d.confounders[0].values for d in (domains, by_share)]
    assert np.sqrt(np.mean((values[0] - values[1]) ** 2)) < 0.05
    listed = read(frame, ["score_1", "score_2"], {"score": ["score_1", "score_2"]})
    np.testing.assert_array_equal(listed.confounders[0].values, values[0])
    new, old = (frame[frame.site == s] for s in ("new", "old"))
    columns = ["score_1", "score_2"]
    pair = from_pair(
        new[["x0", "x1"]], old[["x0", "x1"]], new[columns], old[columns], None, None, None, "raise",
        reliability={"score": columns},
    )  # fmt: skip
    np.testing.assert_allclose(pair.confounders[0].values, values[0])


def test_a_measurement_that_is_missing_leaves_the_others():
    frame, _ = scores(n=300)
    frame.loc[::3, "score_2"] = np.nan
    domains = read(frame, ["score"], {"score": ["score_1", "score_2"]})
    assert np.isfinite(domains.confounders[0].values).all()
    frame.loc[5, ["score_1", "score_2"]] = np.nan
    with pytest.raises(ValueError, match="'score' has 1 missing"):
        read(frame, ["score"], {"score": ["score_1", "score_2"]})


def test_weights_count_rows():
    frame, _ = scores(n=200)
    weights = np.random.default_rng(0).integers(0, 4, 400)
    weighted = read(frame, ["score_1"], {"score_1": 0.7}, sample_weight=weights)
    again = frame.loc[np.repeat(np.arange(400), weights)].reset_index(drop=True)
    repeated = read(again, ["score_1"], {"score_1": 0.7})
    np.testing.assert_allclose(
        np.repeat(weighted.confounders[0].values, weights), repeated.confounders[0].values
    )
    np.testing.assert_allclose(
        recalibrated(weighted).confounders[0].values, weighted.confounders[0].values
    )


@pytest.mark.parametrize(
    ("reliability", "message"),
    [
        ({"score_1": 0.0}, "above 0, at most 1.*Got 0.0"),
        ({"score_1": 1.2}, "above 0, at most 1.*Got 1.2"),
        ({"score_1": "high"}, "or two or more columns"),
        ({"score_1": ["score_2"]}, "or two or more columns"),
        ({"score": ["score_1", "score_3"]}, "'score_3', which is not in `confounders`"),
        ({"score_1": 0.1, "x": 0.8}, "'x', which is not a confounder"),
        ({"kind": 0.8}, "'kind', which is categorical"),
        (0.8, "must be a dictionary"),
    ],
)
def test_what_is_refused(reliability, message):
    frame, _ = scores(n=50)
    frame["kind"] = np.tile(["a", "b"], 50)
    with pytest.raises(ValueError, match=message):
        read(frame, ["score_1", "score_2", "kind"], reliability)


def test_a_domain_in_which_nothing_is_left_is_refused():
    frame, _ = scores()
    new = frame.site == "new"
    frame.loc[new, "score_1"] = 1.0 + 0.1 * (frame.score_1[new] - 1.0)
    with pytest.raises(ValueError, match="'score_1' has no signal in 'new'"):
        read(frame, ["score_1"], {"score_1": 0.5})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"divergence": "reverse-kl", "conditional": "kernel"},
        {"divergence": "reverse-kl", "conditional": "splines"},
        {"divergence": "reverse-kl", "conditional": "chained"},
        {"map": "affine"},
        {"map": "auto"},
        {"map": "shift", "divergence": "energy"},
    ],
    ids=str,
)
def test_every_estimator_gains(settings):
    if settings.get("conditional") == "chained":
        pytest.importorskip("lightgbm")
    frame, truth = scores(3, n=300)
    how = {"reference": "old", "min_overlap": 0.0, **settings}
    naive = ConDoAdapter(**how).fit(frame, confounders=["score_1"], **ROLES)
    known = ConDoAdapter(**how, reliability={"score_1": 0.61})
    known.fit(frame, confounders=["score_1"], **ROLES)
    shifts = [
        a.map_.without_links(frame[["x0", "x1"]][:300].to_numpy()).mean(axis=0)
        for a in (naive, known)
    ]
    off = [np.abs(shift - truth.mean(axis=0)).max() for shift in shifts]
    assert off[1] < 0.6 * off[0]


def test_a_thousand_rows_are_enough():
    errors = []
    for seed in range(4):
        frame, truth = scores(seed)
        for column, reliability in (
            ("score_1", None),
            ("score_1", {"score_1": 0.61}),
            ("true", None),
        ):
            adapter = ConDoAdapter(reference="old", reliability=reliability)
            adapter.fit(frame, confounders=[column], **ROLES)
            errors.append(error(adapter, frame, truth))
    noisy, calibrated, best = np.reshape(errors, (4, 3)).mean(axis=0)
    assert noisy > 0.25
    assert calibrated < 0.1
    assert best < 0.06


def test_all_that_looks_at_the_data_sees_the_calibrated_ones():
    frame, _ = scores(5, n=300)
    roles = {**ROLES, "confounders": ["score"]}
    reliability = {"score": ["score_1", "score_2"]}
    adapter = ConDoAdapter(reference="old", reliability=reliability).fit(frame, **roles)
    known = assess(frame, reference="old", reliability=reliability, **roles).overlap.coefficient
    assert known == pytest.approx(adapter.overlap_.coefficient, abs=0.02)
    found = evaluate(adapter, frame, n_permutations=59, **roles)
    assert found.map_known_from == "these rows"
    assert found.p_value > 0.05  # 0.033 is the least
    before = adapter.map_se_["offset"]
    draws = bootstrap(adapter, frame, n_resamples=20, **roles)
    assert np.all(draws.errors.offset > 0.5 * before)
    assert "score_1" in adapter.map_.provenance["adapter"]["reliability"]


def test_batches_are_calibrated_one_by_one():
    frame, _ = scores(6, n=300)
    frame.loc[:99, "site"] = "newer"
    known = BatchAdapter(ConDoAdapter(reliability={"score_1": 0.61}), reference="old")
    naive = BatchAdapter(reference="old")
    roles = {"batch": "site", "confounders": ["score_1"], "features": ["x*"]}
    for adapter in (known, naive):
        adapter.fit(frame, **roles)
    best = BatchAdapter(reference="old").fit(frame, **{**roles, "confounders": ["true"]})
    x = frame.loc[:99, ["x0", "x1"]].to_numpy()
    at = [a.maps_["newer"](x).mean(axis=0) for a in (best, known, naive)]
    assert np.abs(at[1] - at[0]).max() < 0.5 * np.abs(at[2] - at[0]).max()
