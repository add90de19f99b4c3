import numpy as np
import pytest
from problems import random_samples
from protocols import rotations

from condokit import ConDoAdapter
from condokit.solvers.units import FeatureUnits, Units
from condokit.summaries.samples import Samples, as_gaussians, as_moments, cut_tails


def test_variances_are_those_of_covariances():
    samples = random_samples(
        0, sizes=((20, 15), (12, 1))
    )  # a single row borrows the others' spread
    pair = as_gaussians(samples)
    both = as_moments(samples)
    for moments, gaussians in ((both.query, pair.query), (both.reference, pair.reference)):
        np.testing.assert_allclose(moments.mean, gaussians.mean)
        np.testing.assert_allclose(moments.var, np.einsum("kii->ki", gaussians.cov))
    scale, offset = np.array([2.0, 3.0, 0.5]), np.array([1.0, -1.0, 0.0])
    units, square = FeatureUnits(both), Units(pair, "feature")
    B, c = square.encode(np.diag(scale), offset)
    np.testing.assert_allclose(units.encode(scale, offset), (np.diag(B), c))
    np.testing.assert_allclose(units.decode(*units.encode(scale, offset)), (scale, offset))
    for method, rows in (("of_query", samples.query[0]), ("of_reference", samples.reference[0])):
        np.testing.assert_allclose(getattr(units, method)(rows), getattr(square, method)(rows))


def test_halves_keep_equal_rows_together():
    rows = np.repeat(np.arange(6.0)[:, None], [1, 3, 1, 2, 1, 1], axis=0)
    samples = Samples([rows], [rows], np.ones(1))
    first, second = (set(samples.half(which).query[0].ravel()) for which in (0, 1))
    assert first == {0.0, 2.0, 4.0}
    assert second == {1.0, 3.0, 5.0}
    assert len(samples.thinned(4).query[0]) == 4


@pytest.mark.parametrize("confounder", ["categorical", "continuous"])
def test_halves_keep_subjects_together(confounder, monkeypatch):
    data = rotations(3, 2, 40, 0)
    rng = np.random.default_rng(0)
    groups = tuple(rng.integers(first, first + 12, 80) for first in (0, 8))  # four in both domains
    Z = (data.Z_query, data.Z_reference)
    if confounder == "continuous":
        Z = tuple(rng.uniform(size=80) for _ in range(2))
    halves, half = [], Samples.half
    monkeypatch.setattr(
        Samples, "half", lambda self, which: halves.append(half(self, which)) or halves[-1]
    )
    adapter = ConDoAdapter(divergence="mmd")
    adapter.fit_pair(data.X_query, data.X_reference, *Z, groups=groups)
    assert len(halves) == 2
    subjects = [set(np.concatenate(sum(samples.subjects, []))) for samples in halves]
    assert not subjects[0] & subjects[1]
    assert subjects[0] | subjects[1] == set(np.unique(np.concatenate(groups)))
    for samples in halves:
        for rows, who in zip(samples.query + samples.reference, sum(samples.subjects, [])):
            assert len(rows) == len(who) > 0
    if confounder == "continuous":  # without groups, a residual is on one side at all points
        halves.clear()
        adapter.fit_pair(data.X_query, data.X_reference, *Z)
        subjects = [set(np.concatenate(sum(samples.subjects, []))) for samples in halves]
        assert not subjects[0] & subjects[1]


def test_far_values_are_cut_and_equal_ones_left():
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(50, 2)), 100 + rng.normal(size=(3, 2)), np.zeros((1, 2))]
    rows[0][0, 0], rows[1][0, 1] = 1e6, -1e6
    cut = cut_tails(rows)
    deviation = np.abs(np.concatenate([part - np.median(part, axis=0) for part in rows[:2]]))
    limit = 6 * np.median(deviation, axis=0)
    for before, after in zip(rows, cut):
        middle = np.median(before, axis=0)
        np.testing.assert_allclose(after, np.clip(before, middle - limit, middle + limit))
    assert np.mean(np.concatenate(cut) == np.concatenate(rows)) > 0.9
    mostly = [np.array([[0.0], [0.0], [0.0], [7.0]])]
    np.testing.assert_array_equal(cut_tails(mostly)[0], mostly[0])
    assert cut_tails([np.ones((1, 2))])[0].shape == (1, 2)
