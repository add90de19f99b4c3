"""Choices that identical domains must survive: kernels with few rows, matrices of equal values."""

import warnings

import numpy as np
import pandas as pd
import pytest

from condokit import BatchAdapter, ConDoAdapter, IdentifiabilityWarning

LAWS = {
    "zero-inflated": lambda rng, size: (rng.random(size) < 0.3) * np.exp(rng.normal(size=size)),
    "count": lambda rng, size: rng.poisson(0.5, size=size).astype(float),
    "yes or no": lambda rng, size: (rng.random(size) < 0.2).astype(float),
}


@pytest.mark.filterwarnings("ignore:Nearly all values", "ignore:Mostly zero")
@pytest.mark.parametrize("law", list(LAWS))
def test_no_matrix_is_made_of_equal_values(law):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        frame = pd.DataFrame(LAWS[law](rng, (400, 2)), columns=["x", "y"])
        frame = frame.assign(g=rng.choice(["a", "b"], 400), d=np.repeat(["q", "r"], 200))
        roles = {"domain": "d", "confounders": "g", "features": ["x", "y"]}
        with pytest.warns(IdentifiabilityWarning, match="Most values of 'x', 'y' are equal"):
            adapter = ConDoAdapter("affine", reference="r").fit(frame, **roles)
        assert adapter.map_.kind == "diagonal"
        assert adapter.report_["fallback"] == "location-scale"
        assert (np.abs(np.log(adapter.map_.scale)) < 0.7).all()
        plain = ConDoAdapter("affine", reference="r", divergence="ot").fit(frame, **roles)
        assert plain.map_.kind == "dense"


def test_a_kernel_with_few_rows_in_a_category_is_warned_of_and_keeps_its_scale():
    scales = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        frame = pd.DataFrame({"x": rng.normal(size=120), "z": rng.normal(size=120)})
        frame = frame.assign(g=rng.choice(list("abcdefgh"), 120), d=np.repeat(["q", "r"], 60))
        roles = {"domain": "d", "confounders": ["g", "z"], "features": "x"}
        with pytest.warns(IdentifiabilityWarning, match="A kernel smooths within categories"):
            adapter = ConDoAdapter(
                reference="r", conditional="kernel", divergence="reverse-kl"
            ).fit(frame, **roles)
        scales.append(adapter.map_.scale[0])
    assert min(scales) > 0.4  # 0.007 before variances of few rows leaned on others


def test_splines_of_many_numbers_with_few_rows_are_warned_of():
    rng = np.random.default_rng(0)
    sides = [rng.normal(size=(30, 2)) for _ in range(2)], [rng.normal(size=(30, 3)) for _ in "qr"]
    named = ConDoAdapter(divergence="forward-kl", min_overlap=0)
    with pytest.warns(IdentifiabilityWarning, match="Splines of 3 continuous .* about 30 rows"):
        named.fit_pair(*sides[0], *sides[1])
    ConDoAdapter(min_overlap=0).fit_pair(*sides[0], *sides[1])  # the default needs none


@pytest.mark.parametrize("family", ["orthogonal", "similarity"])
def test_rigid_maps_turn_nothing_around_that_the_data_do_not_tell(family):
    turned, said = [], 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X = [rng.normal(size=(80, 2)) * [3, 1] for _ in "qr"]
        Z = [rng.choice(["F", "M"], 80) for _ in "qr"]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            adapter = ConDoAdapter(family).fit_pair(*X, *Z)
        turned.append(np.trace(adapter.map_.A) < 0)
        said += any(one.message.code == "strata-alike" for one in caught)
    assert not any(turned)  # 9 of 12 before rotations had a fee
    assert said >= 10
    turn = np.array([[-0.8, -0.6], [0.6, -0.8]])  # and finds rotations that strata tell
    rng = np.random.default_rng(0)
    Z = [np.repeat(list("abc"), 60) for _ in "qr"]
    means = {"a": [0, 0], "b": [4, 1], "c": [0, 3]}
    X = [rng.normal(size=(180, 2)) + [means[z] for z in side] for side in Z]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter = ConDoAdapter(family).fit_pair(X[0] @ turn, X[1], *Z)
    np.testing.assert_allclose(adapter.map_.A, turn, atol=0.15)


@pytest.mark.filterwarnings("ignore:Fewer than 5 subjects")
def test_one_subject_in_a_domain_is_counted_in_the_errors():
    rng = np.random.default_rng(0)
    X, Z = [rng.normal(size=(100, 2)) for _ in "qr"], [rng.choice(["F", "M"], 100) for _ in "qr"]
    lone = ConDoAdapter().fit_pair(*X, *Z, groups=(np.zeros(100), np.ones(100)))
    assert (lone.map_se_["offset"] > 1).all()  # 0.14 with 100 people
    several = ConDoAdapter().fit_pair(*X, *Z, groups=(np.arange(100), 100 + np.arange(100)))
    assert (several.map_se_["offset"] < 0.3).all()
    same = ConDoAdapter().fit_pair(*X, *Z, groups=(np.zeros(100), np.zeros(100)))
    assert (same.map_se_["offset"] < 0.3).all()  # who is on both devices tells them apart


def test_batches_of_few_rows_are_named():
    rng = np.random.default_rng(0)
    batch = np.repeat(["A", "B", "C", "D"], [40, 3, 40, 2])
    X, sex = rng.normal(size=(85, 2)), np.resize(["F", "M"], 85)
    with pytest.warns(IdentifiabilityWarning, match="Fewer than 5 rows in batch 'B' and batch 'D'"):
        BatchAdapter(reference="A").fit(X, batch=batch, confounders=sex)
    kept = batch != "D"
    kept &= batch != "B"
    BatchAdapter(reference="A").fit(X[kept], batch=batch[kept], confounders=sex[kept])
