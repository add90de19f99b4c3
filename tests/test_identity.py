"""Between equal domains every map is the identity within its own errors, or says why not."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

from condokit import BatchAdapter, ConDoAdapter, Statistics
from condokit.checks import IdentifiabilityWarning
from condokit.divergences import DIVERGENCES
from condokit.maps.families import MAPS

N, FEATURES = 150, ["x0", "x1", "x2"]
ROLES = {"features": FEATURES, "confounders": ["sex"]}


def table(seed):
    """Return rows of one law, of features that go together, under two labels."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["F", "M"], 2 * N)
    mix = np.array([[1.0, 0.6, 0.2], [0.0, 0.9, -0.4], [0.0, 0.0, 0.7]])
    X = rng.normal(size=(2 * N, 3)) @ mix + 0.8 * (sex == "M")[:, None] * [1, -1, 0.5]
    return pd.DataFrame(X, columns=FEATURES).assign(sex=sex, device=np.repeat(["q", "r"], N))


def fit(adapter, frame):
    return adapter.fit(frame, domain="device", **ROLES)


def fit_pair(adapter, frame):
    return adapter.fit_pair(*(part for _, part in frame.groupby("device")), **ROLES)


def lazy(adapter, frame):
    return adapter.fit(pl.from_pandas(frame).lazy(), domain="device", **ROLES)


def statistics(adapter, frame):
    return adapter.fit_statistics(Statistics.of(frame, domain="device", **ROLES))


def batches(adapter, frame):
    return BatchAdapter(adapter, reference="r").fit(frame, batch="device", **ROLES)


DOORS = [fit, fit_pair, lazy, statistics, batches]


def fitted(door, frame, settings):
    """Return the map and its errors; None if this is refused, or warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapter = ConDoAdapter(reference="r", **settings)
        try:
            adapter = door(adapter, frame)
        except ValueError:  # no such map is found by this divergence, or from sums
            return None
        errors = adapter.errors_["q"] if door is batches else adapter.errors_
    if any(issubclass(one.category, IdentifiabilityWarning) for one in caught):
        return None
    return (adapter.maps_["q"] if door is batches else adapter.map_), errors


@pytest.mark.parametrize("shrinkage", ["auto", None])
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_equal_domains_give_the_identity_by_every_door(divergence, shrinkage):
    frame, n_found = table(0), 0
    X = frame.loc[frame["device"] == "q", FEATURES].to_numpy()
    for kind in [*MAPS, "auto"]:
        settings = {"map": kind, "divergence": divergence, "shrinkage": shrinkage}
        for door in DOORS:
            found = fitted(door, frame, settings)
            if found is None:
                continue
            n_found += 1
            moved = np.median(abs(found[0](X) - X), axis=0)
            if found[1] is None:
                assert (moved < 0.5 * X.std(axis=0)).all(), (kind, door.__name__, moved)
                continue
            error = np.median(found[1].std(X), axis=0)
            assert (moved <= 3 * error + 0.02).all(), (kind, door.__name__, moved, error)
    assert n_found >= 2
