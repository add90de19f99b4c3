"""Engines that hand out no blocks compute moments themselves."""

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from reading import from_table

from condokit import ConDoAdapter
from condokit.data import blocks, pushdown, reader

FEATURES = ["a", "b", "c", "d", "e"]
ROLES = {"domain": "domain", "confounders": ["sex"], "features": FEATURES}


@pytest.fixture(autouse=True)
def no_blocks(monkeypatch):
    monkeypatch.delitem(blocks.ENGINES, "duckdb")
    monkeypatch.setattr(reader, "_SAMPLED", 1000)
    monkeypatch.setattr(pushdown, "_TOGETHER", 2)


def made(n=20_000, missing=0.0):
    rng = np.random.default_rng(0)
    query, female = rng.random(n) < 0.4, rng.random(n) < 0.5
    X = rng.normal(size=(n, 5)) + female[:, None]
    X[query] = X[query] * 1.3 + 2
    X[rng.random(X.shape) < missing] = np.nan
    frame = pd.DataFrame(X, columns=FEATURES)
    frame["domain"] = np.where(query, "query", "reference")
    frame["sex"] = np.where(female, "F", "M")
    return frame


def relation(frame):
    return duckdb.from_arrow(pa.Table.from_pandas(frame, preserve_index=False))


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_moments_are_those_of_all_rows(missing, offset):
    frame = made(missing=missing)
    frame[FEATURES] += offset
    if missing:
        frame.loc[:99, FEATURES] = np.nan  # these rows count for nothing
    wanted = ConDoAdapter().fit(frame, **ROLES)
    X = relation(frame)
    found = ConDoAdapter().fit(X, **ROLES)
    assert np.allclose(found.map_.scale, wanted.map_.scale, rtol=1e-6)
    assert np.allclose(found.map_.offset, wanted.map_.offset, rtol=1e-6)
    domains = from_table(X, "domain", "sex", FEATURES, *[None] * 4, "raise")
    assert domains.sums.moments.count.sum() == len(frame) - 100 * (missing > 0)
    assert 2000 <= len(domains.is_query) < 2300


def test_constant_features_and_far_origins_are_exact():
    frame = made()
    frame["a"] = np.where(frame["domain"] == "query", 5.1, 7.3)
    frame["b"] = 1e9 + 1e-3 * frame["b"]
    frame.loc[: len(frame) // 2, "b"] -= 0.0
    domains = from_table(relation(frame), "domain", "sex", FEATURES, *[None] * 4, "raise")
    moments = domains.sums.moments
    assert (moments.squares[:, 0] == 0).all()
    assert set(moments.mean[:, 0]) == {5.1, 7.3}
    sizes = frame.groupby(["domain", "sex"])["b"].var() * 1e6
    assert np.allclose(
        sorted(moments.squares[:, 1] / (moments.count - 1) * 1e6), sorted(sizes), rtol=1e-4
    )


def test_rare_cells_are_sampled_as_well():
    frame = made()
    frame.loc[:149, "sex"] = "other"
    domains = from_table(relation(frame), "domain", "sex", FEATURES, *[None] * 4, "raise")
    codes = domains.confounders[0].codes
    rare = codes == domains.confounders[0].levels.index("other")
    assert rare.sum() > 80
    assert domains.weights[rare].sum() == pytest.approx(150)


def test_what_needs_blocks_is_refused():
    frame = made()
    frame["years"] = np.arange(len(frame)) % 71.5
    with pytest.raises(ValueError, match="duckdb hands out no blocks of rows"):
        ConDoAdapter().fit(relation(frame), **ROLES | {"confounders": ["years"]})
    frame.loc[3, "a"] = np.inf
    with pytest.raises(ValueError, match="X contains infinity, in 'a'"):
        ConDoAdapter().fit(relation(frame), **ROLES)
    frame = made()
    frame.loc[:9, "sex"] = None
    with pytest.raises(ValueError, match="'sex' has 10 missing values .of 20000"):
        ConDoAdapter().fit(relation(frame), **ROLES)
