"""Shares of variance and curves in bins, against regressions and loops of their own."""

import numpy as np
import pytest

from condokit.data.covariates import design
from condokit.data.study import Confounder
from condokit.trust.pictures import _curves, _fill, _shares


def left(X, *columns):
    """Return the sums of squares that an ordinary regression with an intercept leaves."""
    D = np.column_stack([np.ones(len(X)), *columns])
    return ((X - D @ np.linalg.lstsq(D, X)[0]) ** 2).sum(axis=0)


def test_shares_are_what_a_regression_without_the_term_explains_less():
    rng = np.random.default_rng(0)
    age, sex = rng.exponential(size=300) + 40, rng.integers(0, 3, 300)
    site = (rng.random(300) < 0.2 + 0.2 * sex).astype(float)[:, None]
    X = np.column_stack([0.1 * age + sex, (age - 41) ** 2, 2 * site[:, 0], age])
    X = X + rng.normal(size=X.shape) + 100
    terms = {
        "site": site,
        "age": design([Confounder("age", True, values=age)], np.arange(300), 3),
        "sex": design([Confounder("sex", levels=[0, 1, 2], codes=sex)], np.arange(300), 3),
    }
    plain = {"site": [site], "age": [age, age**2, age**3], "sex": [sex == 1, sex == 2]}
    full = left(X, *sum(plain.values(), []))
    total = left(X)
    found = {term: quartiles for _, term, *quartiles in _shares({"before": X}, terms)}
    assert set(found) == {*terms, "residual"}
    np.testing.assert_allclose(
        found["residual"], np.quantile(full / total, [0.25, 0.5, 0.75]), rtol=1e-6
    )
    for term in terms:
        others = sum((columns for name, columns in plain.items() if name != term), [])
        share = (left(X, *others) - full) / total
        np.testing.assert_allclose(
            found[term], np.quantile(share, [0.25, 0.5, 0.75]), rtol=1e-4, atol=1e-7
        )


def test_constant_features_have_no_shares():
    X = np.ones((20, 2))
    for _, _, *quartiles in _shares({"before": X}, {"site": np.arange(20.0)[:, None]}):
        assert quartiles == [0.0] * 3


def test_curves_are_means_of_bins_of_equal_rows():
    rng = np.random.default_rng(1)
    domain, age = np.repeat([0, 1, 2], [200, 12, 7]), rng.uniform(20, 80, 219)
    X = {"before": rng.normal(size=(219, 3)) + age[:, None], "after": rng.normal(size=(219, 3))}
    confounders = [Confounder("age", True, values=age), Confounder("sex", levels=["F"])]
    labels = ["a", "b", "c"]
    found = list(
        _curves(X, np.ones((219, 3), bool), [2, 0], ["x", "y", "z"], domain, labels, confounders)
    )
    assert [one["feature"] for one in found] == ["z", "x"]
    for one, j in zip(found, (2, 0)):
        assert one["confounder"] == "age"
        # 7 rows are too few for two bins that hide nobody
        assert [line["domain"] for line in one["lines"]] == ["a", "b"]
        for b, line in enumerate(one["lines"]):
            mine = np.flatnonzero(domain == b)
            order = mine[np.argsort(age[mine])]
            assert len(line["x"]) == (8 if b == 0 else 2)
            bins = np.array_split(order, len(line["x"]))
            assert line["x"] == pytest.approx([age[part].mean() for part in bins])
            for name in X:
                assert line[name] == pytest.approx([X[name][part, j].mean() for part in bins])


def test_curves_are_of_rows_with_both_values():
    """A bin of five rows of which one has a value would be that value beside a known mean."""
    rng = np.random.default_rng(2)
    domain, age = np.repeat([0, 1], [40, 40]), np.tile(np.arange(40.0), 2)
    X = {"before": rng.normal(size=(80, 1)), "after": rng.normal(size=(80, 1))}
    known = (np.arange(80) == 0) | (age >= 20)
    age[79] = np.nan
    confounders = [Confounder("age", True, values=age)]
    [found] = _curves(X, known[:, None], [0], ["x"], domain, ["a", "b"], confounders)
    for line, mine in zip(found["lines"], (known[:40], known[:79] & (np.arange(79) >= 40))):
        rows = np.flatnonzero(mine)
        bins = np.array_split(rows[np.argsort(age[rows], kind="stable")], len(line["x"]))
        assert min(map(len, bins)) >= 5
        assert line["before"] == pytest.approx([X["before"][b, 0].mean() for b in bins])


def test_missing_values_are_not_filled_with_the_mean_of_few():
    X = np.append(np.full(20, np.nan), np.arange(20.0))[:, None]
    X[0] = 1000.0
    _fill(X, np.repeat([0, 1], 20), 2)
    assert X[:20, 0] == pytest.approx(np.full(20, 9.5))
    assert X[20:, 0] == pytest.approx(np.arange(20.0))
