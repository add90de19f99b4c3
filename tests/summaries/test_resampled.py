"""What is drawn together, and summaries of what was drawn."""

import numpy as np
import pandas as pd
import pytest
from reading import from_table

from condokit.compare.comparison import compare
from condokit.conditionals import Stratified
from condokit.summaries.gaussians import gaussian_pair
from condokit.summaries.resampled import Parcels, ResampledGaussians, ResampledMoments
from condokit.summaries.samples import Samples


def domains_of(rng, n=40, weights=None):
    frame = pd.DataFrame(rng.normal(3, 2, (n, 2)), columns=["x", "y"])
    frame["domain"] = np.tile(["query", "reference"], n // 2)
    frame["sick"] = np.repeat(["a", "b"], n // 2)
    return frame, from_table(frame, "domain", ["sick"], None, None, weights, None, None, "raise")


def test_subjects_of_both_domains_are_drawn_once(rng):
    units = Parcels(np.array([0, 1, 2, 0, 1, 3]), np.array([0, 0, 0, 1, 1, 1]), 1, True)
    drawn = np.array([units.draw(rng) for _ in range(200)])
    np.testing.assert_array_equal(drawn[:, :2], drawn[:, 3:5])
    np.testing.assert_array_equal(drawn[:, :2].sum(axis=1), 1)  # one fewer than there are
    np.testing.assert_array_equal(drawn[:, [2, 5]], 1)  # each alone of its kind
    assert units.fewest == 3


def test_weights_have_the_mean_and_spread_of_draws(rng):
    units = Parcels(np.arange(30), np.repeat([0, 1], 15), 1, False)
    weights = np.array([units.weights(rng, 0.5) for _ in range(4000)])
    np.testing.assert_allclose(weights.mean(axis=0), 1, atol=0.05)
    assert weights.std() == pytest.approx(0.5, rel=0.05)
    np.testing.assert_allclose(weights[:, :15].sum(axis=1), 15)


@pytest.mark.parametrize("most", [100, 4])
def test_resampled_gaussians_are_those_of_weighted_rows(rng, monkeypatch, most):
    _, domains = domains_of(rng)
    comparison = compare(domains)
    pair = gaussian_pair(domains, comparison, Stratified(), False)
    rows = ResampledGaussians(domains, comparison, pair, most)
    unchanged = rows.draw(0.0)
    for side in ("query", "reference"):
        np.testing.assert_allclose(getattr(unchanged, side).mean, getattr(pair, side).mean)
        np.testing.assert_allclose(getattr(unchanged, side).cov, getattr(pair, side).cov)
    chosen = (np.arange(len(rows.parcels.cell)) % 3 > 0).astype(float)
    monkeypatch.setattr(Parcels, "weights", lambda *_: chosen)
    drawn = rows.draw(1.0)
    if most == 100:  # every row alone: the numbers of rows are those of sorted marks
        n = chosen[rows.parcels.cell == 0].sum()
        assert drawn.query.count[0] == 10 > n
    moments = ResampledMoments(
        domains, comparison, False, True, np.random.default_rng(0), most
    ).pair(chosen)
    np.testing.assert_allclose(moments.query.mean, drawn.query.mean)
    np.testing.assert_allclose(moments.reference.var, np.einsum("kii->ki", drawn.reference.cov))


def test_resampled_moments_are_those_of_resampled_rows(rng):
    frame, domains = domains_of(rng)
    rows = ResampledMoments(domains, compare(domains), False, True, rng, 1000)
    drawn = rows.parcels.draw(rng)
    count, mean, squares = rows._merged(drawn)
    # a parcel of one row is known by its values
    X = frame[["x", "y"]].to_numpy()
    place = np.array([np.abs(X - row).sum(axis=1).argmin() for row in rows.stats.mean])
    for c in range(4):
        mine = X[np.repeat(place, (drawn * (rows.parcels.cell == c)).astype(int))]
        assert count[c] == len(mine)
        np.testing.assert_allclose(mean[c], mine.mean(axis=0))
        np.testing.assert_allclose(squares[c], mine.var(axis=0) * len(mine))


def test_samples_are_resampled_with_their_subjects(rng):
    query, reference = [np.arange(6.0)[:, None]], [10 + np.arange(4.0)[:, None]]
    plain = Samples(query, reference, np.ones(1)).resampled(rng)
    assert len(plain.query[0]) == 5
    assert set(plain.query[0].ravel()) <= set(range(6))
    who = ([np.array([0, 0, 1, 1, 2, 2])], [np.array([7, 7, 8, 8])])
    together = Samples(query, reference, np.ones(1), who).resampled(rng)
    values, times = np.unique(together.query[0], return_counts=True)
    assert dict(zip(values[values % 2 == 0], times[values % 2 == 0])) == {
        value - 1: n for value, n in zip(values[values % 2 == 1], times[values % 2 == 1])
    }
