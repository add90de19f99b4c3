import numpy as np
import pytest
from protocols import ansur, categorical1d, rmse

from condokit import ConDoAdapter
from condokit.shrinkage import _kept_share, share_variances
from condokit.summaries.moments import Moments


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
    wild = [np.exp(rng.normal(0, 2, 300)) for _ in range(2)]
    for counts, sd in (([30, 30], wild), ([100_000, 100_000], [np.ones(20), 2 * np.ones(20)])):
        plain = moments_of(rng, sd, counts, len(sd[0]))
        shared = share_variances(plain)
        np.testing.assert_allclose(shared.var, plain.var, rtol=0.12 if counts[0] < 50 else 2e-3)


def test_shared_precision_is_not_biased():
    rng = np.random.default_rng(2)
    plain = moments_of(rng, [np.ones(2000), np.ones(2000)], [6, 6], 2000)
    assert plain.precision.mean() > 1.4
    assert share_variances(plain).precision.mean() == pytest.approx(1, abs=0.1)


def test_noise_is_removed_and_signal_is_kept():
    rng = np.random.default_rng(0)
    error = np.full(400, 0.05)
    noise = rng.normal(0, 0.05, 400)
    assert _kept_share(noise, error, 1.0).mean() < 0.15
    signal = rng.normal(0, 1.0, 400)
    assert _kept_share(signal + noise, error, 1.0).mean() > 0.9


def test_a_few_large_shifts_among_none_keep_their_size():
    rng = np.random.default_rng(0)
    estimate = rng.normal(0, 0.05, 400)
    estimate[:20] += 2.0
    kept = _kept_share(estimate, np.full(400, 0.05), 1.0)
    assert kept[:20].min() > 0.98
    assert kept[20:].mean() < 0.2


@pytest.mark.parametrize("size", [1e2, 1e5, 1e9])
def test_huge_shifts_are_moved_by_less_than_their_error(size):
    kept = _kept_share(np.array([size, -size]), np.array([0.1, 0.1]), 8.0)
    assert (size * (1 - kept) < 0.1).all()


def test_shrinkage_is_smooth_in_the_evidence():
    """No threshold at which it switches: the estimate grows steadily with the data."""
    z = np.linspace(0, 6, 601)
    posterior = np.array([x * _kept_share(np.array([x]), np.array([1.0]), 8.0)[0] for x in z])
    steps = np.diff(posterior)
    assert (steps > 0).all()
    assert steps.max() < 0.02


def test_it_fades_as_rows_are_added():
    errors = []
    for n in (20, 200, 2000):
        pair = categorical1d(n, 0)
        plain, default = (
            ConDoAdapter(shrinkage=s).fit_pair(
                pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference
            )
            for s in (None, "auto")
        )
        errors.append(rmse(plain.transform(pair.X_query), default.transform(pair.X_query)))
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


def fitted_errors(pairs):
    plain, default = [], []
    for pair in pairs:
        for shrinkage, errors in ((None, plain), ("auto", default)):
            adapter = ConDoAdapter(shrinkage=shrinkage).fit_pair(
                pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference
            )
            errors.append(rmse(adapter.transform(pair.X_query), pair.truth))
    return np.array(plain), np.array(default)


@pytest.mark.parametrize(("n", "at_most"), [(10, 0.8), (20, 0.95), (500, 1.02)])
@pytest.mark.parametrize("seeds", [range(10), range(1000, 1400)], ids=["paper", "fresh"])
def test_categorical1d_gains_at_small_n_and_loses_nothing_at_large(n, at_most, seeds):
    plain, default = fitted_errors(categorical1d(n, s) for s in seeds)
    assert default.mean() <= at_most * plain.mean()


@pytest.mark.usefixtures("needs_data")
@pytest.mark.parametrize(
    ("shift", "at_most"),
    [
        ("large", 0.08),
        (None, 0.03),
        ((0.02, 0.02), 0.03),
        ((0.05, 0.05), 0.05),
        ((0.1, 0.1), 0.065),
    ],
)
def test_ansur(shift, at_most):
    plain, default = fitted_errors(ansur(s, shift=shift) for s in range(10))
    assert default.mean() <= at_most
    assert default.mean() <= plain.mean()
    if shift != "large":
        assert default.mean() < 0.8 * plain.mean()
