"""The pooled likelihood: curves, the map given them, and data with a known answer."""

import numpy as np
import pytest
from protocols import EFFECTS, continuous1d, mixed, rmse
from scipy.optimize import minimize

from condokit import ConDoAdapter, LowOverlapWarning, NoOverlapError, PooledLikelihood
from condokit.conditionals.curves import Basis, Products, Regression
from condokit.data.covariates import Covariates


def fit(pair, **parameters):
    return ConDoAdapter(**parameters).fit_pair(
        pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference
    )


def heldout_errors(pairs, **parameters):
    return [
        rmse(fit(pair, **parameters).transform(pair.X_heldout), pair.truth_heldout)
        for pair in pairs
    ]


def covariates(Z, category=None, n_categories=1):
    Z = np.asarray(Z, float).reshape(len(Z), -1)
    category = np.zeros(len(Z), int) if category is None else category
    return Covariates((Z - Z.mean(axis=0)) / Z.std(axis=0), category, n_categories)


def test_regression_is_the_gaussian_posterior():
    """Against the dense covariance C = Phi tau^2 Phi + 1 / W."""
    rng = np.random.default_rng(0)
    rows = covariates(rng.uniform(size=60))
    basis = Basis(rows, 6, None)
    Phi = basis(rows)
    W = rng.uniform(0.5, 2, (60, 2))
    regression = Regression(basis, 2, 0.7)
    cov = regression.posterior(Products(Phi).gram(W))
    y = rng.normal(size=60)
    for j in range(2):
        prior = np.r_[1e8, np.full(Phi.shape[1] - 1, 0.7)]
        C = (Phi * prior) @ Phi.T + np.diag(1 / W[:, j])
        mean = prior * (Phi.T @ np.linalg.solve(C, y))
        np.testing.assert_allclose(cov[j] @ (Phi.T @ (W[:, j] * y)), mean, rtol=1e-5, atol=1e-6)
    leverage = Products(Phi).variances(cov)
    np.testing.assert_allclose(leverage[:, 0], np.einsum("nr,rs,ns->n", Phi, cov[0], Phi))


def test_the_map_minimises_the_likelihood_it_claims_to():
    """Given curves and noise, (m, b) is the minimum of -log N(y0 + m y1 + b y2; 0, C) - N log m."""
    from condokit.divergences.likelihood import _Curves
    from condokit.maps.families import LocationScale
    from condokit.summaries.rows import Rows

    rng = np.random.default_rng(1)
    z = rng.uniform(size=50)
    is_query = np.arange(50) < 20
    X = (np.sin(3 * z) + 0.3 * rng.normal(size=50))[:, None]
    one = np.ones(1)
    rows = Rows(X, is_query, np.ones(50), covariates(z), one * 0, one, one * 0, one)
    bases = Basis(rows.covariates, 6, None), Basis(rows.covariates, 4, None)
    Phi = bases[0](rows.covariates)
    curves = _Curves(bases, rows, Products(Phi), bases[1](rows.covariates), LocationScale())
    for _ in range(4):
        prior = np.r_[1e8, curves.mean.tau2[0][curves.mean.block[1:]]]
        noise = np.exp(curves.log_var[:, 0])
        curves._update_map_and_mean()
        curves._update_noise(first=False)
    C = (Phi * prior) @ Phi.T + np.diag(noise)

    def objective(theta):
        y = np.where(is_query, np.exp(theta[0]) * X[:, 0] + theta[1], X[:, 0])
        return y @ np.linalg.solve(C, y) / 2 - 19 * theta[0]  # the offset takes one of 20

    best = minimize(objective, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7})
    assert np.log(curves.m[0]) == pytest.approx(best.x[0], abs=1e-3)
    assert curves.b[0] == pytest.approx(best.x[1], abs=1e-3)


@pytest.mark.parametrize(("effect", "at_most"), list(zip(EFFECTS, (0.65, 1.5, 0.65))))
def test_one_continuous_confounder(effect, at_most):
    errors = heldout_errors(continuous1d(effect, s) for s in range(3000, 3040))
    assert np.mean(errors) < at_most


@pytest.mark.parametrize(
    ("kind", "limits"), [("split", (0.75, 1.7, 1.6)), ("irrelevant", (0.7, 1.6, 0.8))]
)
def test_many_confounders(kind, limits):
    for effect, at_most in zip(EFFECTS, limits):
        pairs = (continuous1d(effect, s, n_confounders=32, columns=kind) for s in range(4000, 4015))
        assert np.mean(heldout_errors(pairs)) < at_most


def test_mixed_confounders():
    pairs = (mixed(s) for s in range(20))
    assert np.mean(heldout_errors(pairs, warn_overlap=0.2)) < 0.4


def test_standard_errors_cover_the_truth():
    """Nominal 95% intervals of the plain scale, over effects and simulations."""
    hits = []
    for effect in EFFECTS:
        for seed in range(5000, 5060):
            adapter = fit(continuous1d(effect, seed), shrinkage=None)
            error = adapter.map_se_["scale"][0]
            hits.append(abs(adapter.map_.scale[0] - 0.5) < 1.96 * error)
    assert 0.9 < np.mean(hits) < 0.99


def test_features_are_fitted_as_if_alone():
    """One matrix product serves all features, and none changes another."""
    rng = np.random.default_rng(0)
    Z_query, Z_reference = rng.uniform(0.3, 1, 150), rng.uniform(0, 1, 200)
    B = rng.normal(size=40)
    X_query = 2 * (np.outer(Z_query, B) + 0.3 * rng.normal(size=(150, 40))) + 1
    X_reference = np.outer(Z_reference, B) + 0.3 * rng.normal(size=(200, 40))
    together = ConDoAdapter(shrinkage=None).fit_pair(X_query, X_reference, Z_query, Z_reference)
    for j in (0, 17, 39):
        alone = ConDoAdapter(shrinkage=None).fit_pair(
            X_query[:, [j]], X_reference[:, [j]], Z_query, Z_reference
        )
        error = together.map_se_["scale"][j]
        assert alone.map_.scale[0] == pytest.approx(together.map_.scale[j], abs=0.2 * error)
        assert alone.map_se_["scale"][0] == pytest.approx(error, rel=0.05)


def test_large_data_use_all_rows_for_the_map():
    rng = np.random.default_rng(0)
    n = 30_000
    Z_query, Z_reference = rng.uniform(0.3, 1, n), rng.uniform(0, 1, n)
    X_query = (2 * (np.sin(4 * Z_query) + 0.5 * rng.normal(size=n)) + 1)[:, None]
    X_reference = (np.sin(4 * Z_reference) + 0.5 * rng.normal(size=n))[:, None]
    data = X_query, X_reference, Z_query, Z_reference
    thin = ConDoAdapter(divergence=PooledLikelihood(max_rows=2000), shrinkage=None).fit_pair(*data)
    full = ConDoAdapter(divergence=PooledLikelihood(max_rows=10**6), shrinkage=None).fit_pair(*data)
    assert abs(thin.map_.scale[0] - full.map_.scale[0]) < full.map_se_["scale"][0]
    assert thin.map_se_["scale"][0] == pytest.approx(full.map_se_["scale"][0], rel=0.2)


def test_row_order_and_units_do_not_matter():
    pair = continuous1d("heteroscedastic", 1)
    first = fit(pair, shrinkage=None).map_
    p = np.random.default_rng(0).permutation(100)
    again = ConDoAdapter(shrinkage=None).fit_pair(
        pair.X_query[p] * 1e6, pair.X_reference * 1e6, pair.Z_query[p] * 1e-3 + 7,
        pair.Z_reference * 1e-3 + 7,
    ).map_  # fmt: skip
    np.testing.assert_allclose(again.scale, first.scale, rtol=1e-6)
    np.testing.assert_allclose(again.offset, first.offset * 1e6, rtol=1e-5)
    overlap = [
        ConDoAdapter().fit_pair(pair.X_query, pair.X_reference, z, pair.Z_reference).overlap_
        for z in (pair.Z_query, pair.Z_query[p])
    ]
    assert overlap[0].coefficient == pytest.approx(overlap[1].coefficient, rel=1e-9)


def test_heavy_tailed_confounders_are_compared_by_rank():
    rng = np.random.default_rng(0)
    Z_query, Z_reference = rng.normal(0.7, 1, 300), rng.normal(0, 1, 300)
    X_query = (2 * (3 * Z_query + 0.5 * rng.normal(size=300)) + 5)[:, None]
    X_reference = (3 * Z_reference + 0.5 * rng.normal(size=300))[:, None]
    for change in (np.exp, lambda z: z**5):
        adapter = ConDoAdapter().fit_pair(
            X_query, X_reference, change(3 * Z_query), change(3 * Z_reference)
        )
        assert adapter.map_.scale[0] == pytest.approx(0.5, abs=0.03)
        assert adapter.map_.offset[0] == pytest.approx(-2.5, abs=0.3)


def test_weights_count_rows():
    pair = continuous1d("homoscedastic", 2)
    times = np.random.default_rng(0).integers(1, 4, 100)
    weighted = ConDoAdapter().fit_pair(
        pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference,
        sample_weight=(times, np.ones(200)),
    )  # fmt: skip
    repeated = ConDoAdapter().fit_pair(
        np.repeat(pair.X_query, times, axis=0), pair.X_reference,
        np.repeat(pair.Z_query, times, axis=0), pair.Z_reference,
    )  # fmt: skip
    assert weighted.map_.scale[0] == pytest.approx(repeated.map_.scale[0], rel=0.02)


def test_repeated_rows_of_the_same_subjects_are_no_new_evidence():
    pair = continuous1d("homoscedastic", 4)
    once = fit(pair).map_se_["scale"][0]
    ten = [
        np.repeat(a, 10, axis=0)
        for a in (pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference)
    ]
    subjects = np.repeat(np.arange(100), 10), np.repeat(np.arange(200), 10) + 1000
    naive = ConDoAdapter().fit_pair(*ten).map_se_["scale"][0]
    grouped = ConDoAdapter().fit_pair(*ten, groups=subjects).map_se_["scale"][0]
    assert naive < 0.5 * once
    assert grouped == pytest.approx(once, rel=0.2)


def coverage(n, n_features=20, rows_each=1, correlation=0.0):
    """Share of intervals, estimate +- 1.96 errors, that hold the true scale and offset."""
    held = []
    for seed in range(20):
        rng = np.random.default_rng(seed)

        def draw(low, first, rng=rng):
            z = rng.uniform(low, 8, n)
            shared = rng.normal(size=(n, n_features)).repeat(rows_each, axis=0)
            own = rng.normal(size=(n * rows_each, n_features))
            noise = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
            z = z.repeat(rows_each)
            return 4 * z[:, None] + 1 + 2 * noise, z, np.arange(first, first + n).repeat(rows_each)

        (X_query, *query), (X_reference, *reference) = draw(2, 0), draw(0, n)
        adapter = ConDoAdapter(shrinkage=None, warn_overlap=0).fit_pair(
            2 * X_query + 5, X_reference, query[0], reference[0],
            groups=(query[1], reference[1]) if rows_each > 1 else None,
        )  # fmt: skip
        for name, truth in (("scale", 0.5), ("offset", -2.5)):
            error = np.abs(getattr(adapter.map_, name) - truth)
            held.append(error < 1.96 * adapter.map_se_[name])
    return np.mean(held)


def test_intervals_of_few_rows_cover():
    assert 0.92 < coverage(10) < 0.98
    assert 0.92 < coverage(20) < 0.98


@pytest.mark.parametrize("correlation", [0.3, 0.8])
def test_intervals_of_few_subjects_cover(correlation):
    assert 0.92 < coverage(20, rows_each=10, correlation=correlation) < 0.98


def test_shift_and_identity():
    pair = continuous1d("homoscedastic", 3, scale=1.0)
    shift = fit(pair, map="shift").map_
    assert shift.scale[0] == 1
    assert shift.offset[0] == pytest.approx(-5, abs=1)
    assert fit(pair, map="identity").map_.offset[0] == 0


class TestOverlap:
    @pytest.mark.parametrize("columns", [1, 32])
    def test_it_is_one_for_equal_and_zero_for_separate_domains(self, columns):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(600, 1))
        Z = rng.normal(size=(600, columns))
        same = ConDoAdapter().fit_pair(X[:300], X[300:], Z[:300], Z[300:]).overlap_
        assert same.coefficient > 0.85
        Z[:300, 0] += 2
        with pytest.warns(LowOverlapWarning, match="0.3|0.2|0.4"):
            apart = ConDoAdapter(warn_overlap=0.6).fit_pair(X[:300], X[300:], Z[:300], Z[300:])
        assert apart.overlap_.coefficient == pytest.approx(0.317, abs=0.1)

    def test_separate_domains_are_refused_and_the_column_named(self):
        rng = np.random.default_rng(0)
        X, age = rng.normal(size=(400, 1)), rng.normal(size=400)
        age[:200] += 12
        dose = rng.normal(size=400)
        Z = {"age": age, "dose": dose}
        halves = [{k: v[half] for k, v in Z.items()} for half in (slice(200), slice(200, None))]
        with pytest.raises(NoOverlapError, match=r"overlap coefficient .*alone: age 0.0"):
            ConDoAdapter().fit_pair(X[:200], X[200:], *halves)
        with pytest.warns(LowOverlapWarning):
            forced = ConDoAdapter(min_overlap=0).fit_pair(X[:200], X[200:], *halves)
        assert forced.overlap_.by_confounder["dose"] > 0.85
        assert forced.overlap_.outside["age"] > 0.95

    def test_categories_use_the_smaller_share(self):
        X = np.random.default_rng(0).normal(size=(20, 1))
        Z_query, Z_reference = np.repeat(["a", "b"], [8, 2]), np.repeat(["a", "b"], [3, 7])
        overlap = ConDoAdapter().fit_pair(X[:10], X[10:], Z_query, Z_reference).overlap_
        assert overlap.coefficient == pytest.approx(0.3 + 0.2)
        assert overlap.to_dict()["by_confounder"] == {"confounder 0": pytest.approx(0.5)}


class TestMissing:
    def frame(self):
        import pandas as pd

        rng = np.random.default_rng(0)
        frame = pd.DataFrame({"age": rng.normal(size=300), "sex": rng.choice(["F", "M"], 300)})
        frame["x"] = frame["age"] + (frame["sex"] == "F") + 0.3 * rng.normal(size=300)
        frame["device"] = np.repeat(["query", "reference"], 150)
        frame.loc[:149, "x"] = 2 * frame.loc[:149, "x"] + 1
        frame.loc[::10, "age"] = np.nan
        frame.loc[5::50, "sex"] = None
        return frame

    def test_dropping_is_leaving_the_rows_out(self):
        frame = self.frame()
        how = {"domain": "device", "confounders": ["age", "sex"]}
        with pytest.raises(ValueError, match="'age' has 30 missing values .of 300"):
            ConDoAdapter().fit(frame, **how)
        dropped = ConDoAdapter(missing="drop").fit(frame, **how)
        by_hand = ConDoAdapter().fit(frame.dropna(), **how)
        np.testing.assert_allclose(dropped.map_.scale, by_hand.map_.scale, rtol=1e-9)
        assert dropped.report_["missing_confounders"] == {"age": 30, "sex": 6}
        assert dropped.support_.count_query.sum() == by_hand.support_.count_query.sum()

    def test_dropping_with_categories_alone(self):
        frame = self.frame().drop(columns="age")
        frame.loc[frame["sex"].isna(), "x"] = 1e3  # must not reach any stratum
        how = {"domain": "device", "confounders": "sex"}
        dropped = ConDoAdapter(missing="drop").fit(frame, **how)
        by_hand = ConDoAdapter().fit(frame.dropna(), **how)
        np.testing.assert_allclose(dropped.map_.scale, by_hand.map_.scale, rtol=1e-9)

    def test_imputing_keeps_all_rows(self):
        adapter = ConDoAdapter(missing="impute").fit(
            self.frame(), domain="device", confounders=["age", "sex"]
        )
        assert adapter.support_.count_query.sum() == 150
        assert adapter.map_.scale[0] == pytest.approx(0.5, abs=0.1)


class TestAuto:
    def test_it_leaves_alone_what_has_not_shifted(self):
        for effect in EFFECTS:
            pairs = (continuous1d(effect, s, scale=1.0, offset=0.0) for s in range(6000, 6030))
            assert np.mean(heldout_errors(pairs, map="auto")) < 0.2

    def test_it_finds_large_shifts(self):
        for effect, at_most in zip(EFFECTS, (0.56, 1.25, 0.60)):
            pairs = [continuous1d(effect, s) for s in range(6000, 6020)]
            assert np.mean(heldout_errors(pairs, map="auto")) < at_most
        report = fit(pairs[0], map="auto").report_
        assert report["chosen"] == {"column 0": "location-scale"}
        assert sum(report["candidates"].values()) == pytest.approx(1)

    @pytest.mark.parametrize(("scale", "offset"), [(1.0, 3.0), (1.3, 0.0)])
    def test_simpler_truths_are_found_more_precisely(self, scale, offset):
        """A shift or a gain alone: the average beats the plain location-scale map."""
        pairs = [continuous1d("homoscedastic", s, scale=scale, offset=offset) for s in range(20)]
        plain = heldout_errors(pairs, shrinkage=None)
        assert np.mean(heldout_errors(pairs, map="auto")) < np.mean(plain)
        assert fit(pairs[0], map="auto").report_["candidates"]["identity"] < 0.01

    def test_categorical_confounders_too(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(400, 5))
        z = rng.choice(["a", "b"], 400)
        same = ConDoAdapter("auto").fit_pair(X[:200], X[200:], z[:200], z[200:])
        assert set(same.report_["chosen"].values()) == {"identity"}
        assert rmse(same.transform(X), X) < 0.05
