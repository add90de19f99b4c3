"""Verdicts of features: false discoveries, power, tolerances, and reasons."""

import numpy as np
import pytest
from scipy.special import ndtr

from condokit import AffineMap, ConDoAdapter, evaluate
from condokit.trust.by_feature import in_doubt, intervals, judge
from condokit.trust.systematic import SystematicError


def two_devices(seed, correlation, shifted, d=12, n=50):
    """Return rows, their domain, a confounder, and the shifts of the query."""
    rng = np.random.default_rng(seed)
    mixed = np.linalg.cholesky(correlation + (1 - correlation) * np.eye(d))
    delta = np.zeros(d)
    m = int(shifted * d)
    delta[:m] = np.sign(rng.normal(size=m))
    sex, domain = rng.integers(0, 2, 2 * n).astype(str), np.repeat(["query", "reference"], n)
    X = rng.normal(size=(2 * n, d)) @ mixed.T + 0.5 * (sex == "1")[:, None]
    X[domain == "query"] += delta
    return X, domain, sex, delta


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize("shifted", [0.0, 0.5, 1.0])
def test_features_called_better_are(correlation, shifted):
    wrong, called, power = 0, 0, []
    for seed in range(4):
        X, domain, sex, delta = two_devices(seed, correlation, shifted)
        roles = {"domain": domain, "confounders": sex}
        adapter = ConDoAdapter().fit(X, **roles)
        found = evaluate(adapter, X, **roles, n_permutations=39)
        better = np.array(found.features["verdict"]) == "better"
        x = X[domain == "query"]
        truth, mapped = x - delta, adapter.map_(x)
        helps = ((x - truth) ** 2).mean(axis=0) > ((mapped - truth) ** 2).mean(axis=0)
        wrong, called = wrong + (better & ~helps).sum(), called + better.sum()
        power += better[delta != 0].tolist()
        reasons = found.features["reason"]
        told = [word == "cannot tell" for word in found.features["verdict"]]
        assert [reason is not None for reason in reasons] == told
    assert wrong <= 0.05 * called
    assert not power or np.mean(power) >= 0.5


def error_of(shift, error):
    """Return the systematic error of shifts with standard errors, and what maps gain by them."""
    noise = np.full(len(shift), error**2)
    before, variance = shift**2 + noise, 4 * shift**2 * noise + 2 * noise**2
    variances = np.array([variance, 2 * noise**2, (2 * shift * error) ** 2])
    return SystematicError(np.ones(len(shift)), before, noise, variances, float(len(shift)))


def test_p_values_are_those_of_half_the_shift():
    shift = np.array([1.0, 0.5, 0.1])
    [columns] = judge([error_of(shift, 0.2)], [[]])
    p = np.array([ndtr(-h / 0.4) + ndtr(-3 * h / 0.4) for h in shift])
    expected = [3 * p[0], 3 * p[1] / 2, p[2]]  # one of three, of two, of one
    np.testing.assert_allclose(columns["p_better"], expected)
    assert columns["verdict"] == ["better", "cannot tell", "cannot tell"]
    assert "smaller than its uncertainty" in columns["reason"][1]


def test_the_family_is_that_of_all_sites():
    one = error_of(np.array([0.36]), 0.1)  # 1.8 standard errors of the gain
    many = error_of(np.zeros(20_000), 0.1)
    assert judge([one], [[]])[0]["verdict"] == ["better"]
    assert judge([one, many], [[], []])[0]["verdict"] == ["cannot tell"]


def test_doubts_are_those_of_all_features():
    shift = np.array([1.0, 2.0])
    [columns] = judge([error_of(shift, 0.1)], [["few rows"]])
    assert columns["verdict"] == ["cannot tell"] * 2
    assert columns["reason"] == ["doubts about all features"] * 2


def test_intervals_hold_the_error_that_there_is():
    rng = np.random.default_rng(0)
    error, true = 0.2, np.full(4000, 0.5)
    bounds = intervals(error_of(true + error * rng.normal(size=4000), error))
    inside = (bounds["error_before_low"] <= 0.5) & (bounds["error_before_high"] >= 0.5)
    assert 0.93 <= inside.mean() <= 0.99


def test_a_reason_has_its_numbers():
    assert in_doubt(0.09, 0.01, 0.5, 0.4) == (
        "the gain (0.10 sd) is smaller than its uncertainty (0.18 sd)"
    )


def test_tolerances_are_met_not_met_or_need_more_rows():
    X, domain, sex, _ = two_devices(0, 0.0, 1.0, d=3, n=100)
    roles = {"domain": domain, "confounders": sex}
    adapter = ConDoAdapter().fit(X, **roles)
    limits = {"column 0": 5.0, "column 1": 0.15}
    found = evaluate(adapter, X, **roles, n_permutations=39, tolerance=limits).tolerances
    assert found["within"] == ["yes", "cannot tell"]
    assert found["more_rows"][0] is None
    expected = 100 * ((found["upper"][1] / 0.15) ** 2 - 1)
    assert found["more_rows"][1] == pytest.approx(expected, rel=0.1)
    wrong = AffineMap([1.0] * 3, [9.0] * 3)
    found = evaluate(wrong, X, **roles, n_permutations=39, tolerance=limits)
    assert found.tolerances["within"] == ["no", "no"]
    assert found.features["verdict"] == ["worse"] * 3
    assert found.leave_alone == ["column 0", "column 1", "column 2"]
    for bad, message in (({"x": 1.0}, "no feature"), ({"column 0": -1}, "positive"), (3, "dict")):
        with pytest.raises(ValueError, match=message):
            evaluate(adapter, X, **roles, tolerance=bad)


def test_every_verdict_that_cannot_be_told_has_its_reason():
    for seed in range(3):
        X, domain, sex, _ = two_devices(seed, 0.5, 0.5, d=4, n=12)
        roles = {"domain": domain, "confounders": sex}
        found = evaluate(ConDoAdapter().fit(X, **roles), X, **roles, n_permutations=39)
        if found.verdict == "cannot tell":
            assert found.doubts
            assert any(letter.isdigit() for letter in found.doubts[0])


def test_with_imprecision_the_total_error_is_limited():
    X, domain, sex, _ = two_devices(0, 0.0, 1.0, d=3, n=100)
    roles = {"domain": domain, "confounders": sex}
    adapter = ConDoAdapter().fit(X, **roles)
    limits = {"column 0": 5.0, "column 1": 2.0, "column 2": 1.5}
    asked = {"n_permutations": 39, "tolerance": limits}
    alone = evaluate(adapter, X, **roles, **asked).tolerances
    assert alone["within"] == ["yes"] * 3
    spread = {"column 1": 1.0, "column 2": 1.0}
    total = evaluate(adapter, X, **roles, **asked, imprecision=spread).tolerances
    assert total["imprecision"] == [0.0, 1.0, 1.0]
    assert "imprecision" not in alone.columns
    added = np.subtract(total["upper"], alone["upper"])
    np.testing.assert_allclose(added, [0, 1.65, 1.65], atol=1e-9)
    assert total["within"][0] == "yes"
    # 0.35 is left for the systematic error of the second, and nothing for that of the third
    expected = "yes" if alone["upper"][1] <= 0.35 else "cannot tell"
    assert total["within"][1:] == [expected, "no"]
    assert total["in_words"][2] == "imprecision alone is 1.65"
    with pytest.raises(ValueError, match="'column 2', for which there is no 'tolerance'"):
        evaluate(adapter, X, **roles, tolerance={"column 0": 1.0}, imprecision={"column 2": 1.0})
