import numpy as np
import pytest
from problems import points
from protocols import continuous1d, rmse

from condokit import Chained, ConDoAdapter


def test_chained_imputation():
    rng = np.random.default_rng(0)
    z = rng.uniform(-1, 1, 400)
    X = np.column_stack([z, -z]) * 3 + 0.5 * rng.normal(size=(400, 2))
    chained = Chained(n_draws=20)
    moments = chained.moments_at(X, points(z), points(np.array([-0.5, 0.5])))
    np.testing.assert_allclose(moments.mean, [[-1.5, 1.5], [1.5, -1.5]], atol=0.5)
    np.testing.assert_array_equal(
        chained.moments_at(X, points(z), points(np.array([0.0]))).mean,
        chained.moments_at(X, points(z), points(np.array([0.0]))).mean,
    )
    errors = []
    for seed in range(3):
        pair = continuous1d("homoscedastic", seed)
        adapter = ConDoAdapter(divergence="reverse-kl", conditional="chained").fit_pair(
            pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference
        )
        errors.append(rmse(adapter.transform(pair.X_heldout), pair.truth_heldout))
    assert np.mean(errors) < 2


def test_chained_imputation_names_its_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(ModuleNotFoundError, match=r"condokit\[lightgbm\]"):
        Chained().moments_at(np.ones((3, 1)), points(np.arange(3)), points(np.arange(1)))


def test_one_row_is_refused():
    with pytest.raises(ValueError, match="1 sample"):
        ConDoAdapter(conditional="chained", divergence="mmd", min_overlap=0).fit_pair(
            [[1.0]], [[2.0]], ["a"], ["a"]
        )


@pytest.mark.parametrize("divergence", ["reverse-kl", "mmd"])
def test_a_fraction_of_the_values_is_imputed(divergence, monkeypatch):
    asked, sample_at = [], Chained.sample_at

    def noted(self, X, covariates, at, *rest):
        asked.append((len(X), np.sort(at.Z[:, 0])))
        return sample_at(self, X, covariates, at, *rest)

    monkeypatch.setattr(Chained, "sample_at", noted)
    pair = continuous1d("homoscedastic", 0)
    rows = (pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference)
    for fraction in (1.0, 0.25):
        conditional = Chained(n_draws=8, n_estimators=5, fraction=fraction)
        ConDoAdapter(divergence=divergence, conditional=conditional).fit_pair(*rows)
    (n_query, whole), _, (n_again, part), _ = asked
    assert n_query == n_again == len(pair.X_query)  # models are trained on all rows
    assert len(part) == round(0.25 * len(whole))
    # evenly taken
    np.testing.assert_allclose(
        np.quantile(part, [0.1, 0.5]), np.quantile(whole, [0.1, 0.5]), atol=0.2
    )
    for wrong in (0.0, 1.5, "half"):
        with pytest.raises(ValueError, match="'fraction'"):
            ConDoAdapter(divergence=divergence, conditional=Chained(fraction=wrong)).fit_pair(*rows)
