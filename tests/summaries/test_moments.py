import numpy as np
import pytest

from condokit.conditionals import Moments
from condokit.summaries.moments import share_variances


def moments_of(rng, sd, counts, n_features):
    rows = [rng.normal(0, 1, (n, n_features)) * s for n, s in zip(counts, sd)]
    var = np.array([r.var(axis=0, ddof=1) for r in rows])
    counts = np.array(counts, float)
    return Moments(np.array([r.mean(axis=0) for r in rows]), var, 1 / var, counts, counts - 1)


def test_variances_are_shared_when_features_agree():
    """Every feature has the same ratio of variances: four rows then say as much as hundreds."""
    rng = np.random.default_rng(0)
    scale = np.exp(rng.normal(size=500))
    sd = [scale, 3 * scale]
    plain = moments_of(rng, sd, [4, 20], 500)
    shared = share_variances(plain)
    for k, gain in enumerate((0.4, 0.95)):
        before = np.log(plain.var[k] / sd[k] ** 2)
        after = np.log(shared.var[k] / sd[k] ** 2)
        assert np.abs(after).mean() < gain * np.abs(before).mean()
        assert abs(after.mean()) < 0.15


def test_variances_are_left_alone_when_features_differ_or_rows_abound():
    rng = np.random.default_rng(1)
    wild = [np.exp(rng.normal(0, 0.8, 300)) for _ in range(2)]
    for counts, sd in (([60, 60], wild), ([100_000, 100_000], [np.ones(20), 2 * np.ones(20)])):
        plain = moments_of(rng, sd, counts, len(sd[0]))
        shared = share_variances(plain)
        np.testing.assert_allclose(shared.var, plain.var, rtol=0.12 if counts[0] < 100 else 2e-3)


def test_shared_precision_is_not_biased():
    rng = np.random.default_rng(2)
    plain = moments_of(rng, [np.ones(2000), np.ones(2000)], [6, 6], 2000)
    assert plain.precision.mean() > 1.4
    assert share_variances(plain).precision.mean() == pytest.approx(1, abs=0.1)
