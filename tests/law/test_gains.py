"""Features that are mostly zero: maps x -> m x."""

import numpy as np
import pytest

from condokit import BatchAdapter, ConDoAdapter

pytestmark = pytest.mark.filterwarnings(
    "ignore:Mostly zero, so only multiplied",
    "ignore:Nearly all values are equal",
    "ignore:These features look like counts",
)


def counts(rng, sizes, efficiency, d=40, size=2.0):
    """Return counts (negative binomial) of cells of four types, whose shares differ, by domain."""
    mean = 0.1 * np.exp(rng.normal(size=(4, d)) * 0.5)
    for k, (n, one) in enumerate(zip(sizes, efficiency)):
        kind = rng.choice(4, n, p=np.roll([0.1, 0.2, 0.3, 0.4], k))
        rate = mean[kind] * one * rng.gamma(size, 1 / size, (n, d))
        yield rng.poisson(rate).astype(float), kind.astype(str)


def mantel_haenszel(query, reference):
    """Return the ratio of Mantel and Haenszel of two domains' rates, over types."""
    (xq, zq), (xr, zr) = query, reference
    top, bottom = np.zeros((2, xq.shape[1]))
    for kind in np.unique(np.append(zq, zr)):
        a, b = xq[zq == kind], xr[zr == kind]
        top += b.sum(0) * len(a) / (len(a) + len(b))
        bottom += a.sum(0) * len(b) / (len(a) + len(b))
    return top / bottom


def test_the_gain_is_the_ratio_of_mantel_and_haenszel_and_its_errors_cover():
    covered = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        (xq, zq), (xr, zr) = counts(rng, (600, 900), (0.6, 1.0))
        adapter = ConDoAdapter(shrinkage=None).fit_pair(xq, xr, zq, zr)
        m, se = adapter.map_.scale, adapter.map_se_["scale"] / adapter.map_.scale
        np.testing.assert_allclose(m, mantel_haenszel((xq, zq), (xr, zr)), rtol=1e-9)
        np.testing.assert_array_equal(adapter.map_.offset, 0.0)
        covered.append(np.abs(np.log(m * 0.6)) < 1.96 * se)
    assert 0.9 < np.mean(covered) < 0.99


def test_gains_of_many_batches_are_those_at_which_all_zeros_meet():
    rng = np.random.default_rng(1)
    efficiency = 0.5, 1.5, 0.8, 1.0
    parts = list(counts(rng, (400, 500, 600, 700), efficiency))
    X, z = (np.concatenate(one) for one in zip(*parts))
    batch = np.repeat(list("abcd"), [len(one) for one, _ in parts])
    study = BatchAdapter(ConDoAdapter(shrinkage=None), reference="d")
    study.fit(X, batch=batch, confounders=z)
    levels = z[:, None] == np.unique(z)
    dummies = batch[:, None] == np.array(list("abc"))
    m = np.array([study.maps_[b].scale for b in "abc"])
    for j, scale in enumerate(m.T):  # the mapped values have no difference between batches
        mapped = X[:, j] * np.append(scale, 1.0)[np.searchsorted(list("abcd"), batch)]
        fit = np.linalg.lstsq(np.column_stack([levels, dummies]), mapped, rcond=None)[0]
        np.testing.assert_allclose(fit[-3:], 0.0, atol=1e-9)
    away = np.log(m * np.array(efficiency[:3])[:, None])
    assert np.sqrt((away**2).mean()) < 0.3


def test_gains_are_pulled_to_one_and_beat_a_shift():
    errors = {"location-scale": [], "shift": [], "none": []}
    for seed in range(4):
        for efficiency in (0.5, 1.0):
            rng = np.random.default_rng(seed)
            (xq, zq), (xr, zr) = counts(rng, (100, 100), (efficiency, 1.0))
            rng = np.random.default_rng(seed)  # the same rates
            (many, kind), _ = counts(rng, (20_000, 2), (efficiency, 1.0))
            maps = {
                name: ConDoAdapter(name).fit_pair(xq, xr, zq, zr).map_
                for name in errors
                if name != "none"
            }
            for name in errors:
                moved = many if name == "none" else maps[name](many)
                gap = [(moved - many / efficiency)[kind == k].mean(0) for k in np.unique(kind)]
                errors[name].append(np.sqrt(np.mean(np.square(gap))))
    half, equal = ({name: np.mean(found[k::2]) for name, found in errors.items()} for k in (0, 1))
    assert half["location-scale"] < 0.6 * min(half["shift"], half["none"])
    assert equal["location-scale"] < 0.01


def test_no_event_leaves_a_feature_as_it_is():
    rng = np.random.default_rng(0)
    (xq, zq), (xr, zr) = counts(rng, (100, 100), (1.0, 1.0))
    xq[:, 0] = 0
    map_ = ConDoAdapter(shrinkage=None).fit_pair(xq, xr, zq, zr).map_
    assert (map_.scale[0], map_.offset[0]) == (1.0, 0.0)
