"""How far a map depends on recorded and unrecorded confounders."""

import numpy as np
import pandas as pd
import pytest
from reading import from_table
from stories import two_domains

from condokit import ConDoAdapter, sensitivity
from condokit.trust.sensitivity import (
    _alarms,
    _chances,
    _draw,
    degrees_of_freedom,
    hidden_bounds,
    moved_at_most,
    robustness_value,
)


@pytest.fixture(scope="module")
def found():
    rng = np.random.default_rng(3)
    frame = two_domains(rng, 300, 4).assign(coin=rng.choice(["a", "b"], 600))
    roles = {"domain": "domain", "confounders": ["sick", "coin"], "features": ["x*"]}
    adapter = ConDoAdapter(shrinkage=None).fit(frame, **roles)
    return sensitivity(adapter, frame, **roles, n_splits=6)


def test_the_confounder_that_matters_is_told_from_the_one_that_does_not(found):
    notes = dict(zip(found.left_out["without"], found.left_out["note"]))
    assert notes == {"sick": "matters", "coin": "hardly matters"}
    strong, weak = found.recorded["errors"]
    assert strong > 3 > 1 > weak


def test_placebo_maps_are_near_the_identity(found):
    assert set(found.placebo["split"]) == {"at random", "by confounders"}
    assert max(found.placebo["shift_sd"]) < 0.3
    assert max(found.placebo["beyond_2_errors"]) <= 0.25
    assert np.mean(found.placebo["alarms"]) <= 0.15


@pytest.mark.parametrize("kind", ["skewed", "continuous", "subjects"])
def test_placebo_splits_alarm_at_their_nominal_rate(kind):
    rng, rates = np.random.default_rng(0), []
    is_query = np.arange(200) < 100
    subject = np.arange(200) // (4 if kind == "subjects" else 1)
    for _ in range(20):
        z = rng.normal(size=200)[subject] + is_query
        effect, noise = np.sin(z), rng.normal(size=(200, 10))
        if kind == "subjects":
            noise += rng.normal(size=(200, 10))[subject]
        if kind == "skewed":
            z = np.where(z > 0.5, "high", "low")
            effect, noise = z == "high", rng.exponential(size=(200, 10))
        frame = pd.DataFrame(effect[:, None] + noise).add_prefix("x").assign(z=z)
        frame["domain"] = np.where(is_query, "query", "reference")
        groups = subject if kind == "subjects" else None
        domains = from_table(frame, "domain", "z", ["x*"], groups, *[None] * 3, "raise")
        chances = _chances(domains, "reference")
        assert list(chances) == ["at random", "by confounders"]
        assert chances["by confounders"].std() > 0.1
        for chance in chances.values():
            half = domains.divided(_draw(domains, chance, rng), keep=~is_query)
            rates.append(_alarms(half, rng))
    # 20 data sets, 2 kinds of splits, 10 features: 400 tests
    assert 0.02 < np.mean(rates) < 0.08


def test_the_strength_solves_its_equation():
    t, dof = np.array([0.5, 1.0, 4.0]), 200.0
    s = robustness_value(t, dof)
    np.testing.assert_allclose(s**2 / (1 - s), t**2 / dof)


def test_a_confounder_of_that_strength_moves_the_map_by_one_standard_error():
    # dof * R2_domain * R2_feature / (1 - R2_domain) = 1
    rng = np.random.default_rng(0)
    n, moves = 400, []
    s = robustness_value(1.0, 2 * n - 2)
    for _ in range(300):
        u = rng.normal(size=2 * n)
        noise = rng.normal(size=2 * n)
        domain = np.sqrt(s) * u + np.sqrt(1 - s) * noise > 0
        x = np.sqrt(s) * u + np.sqrt(1 - s) * rng.normal(size=2 * n)
        gap = x[domain].mean() - x[~domain].mean()
        moves.append(gap / (2 * x.std() / np.sqrt(2 * n)))
    # cutting a normal variable at its median loses a little of the association
    assert np.mean(moves) == pytest.approx(np.sqrt(2 / np.pi), abs=0.15)


@pytest.mark.parametrize("of_domain", [0.01, 0.1])
@pytest.mark.parametrize("of_feature", [0.01, 0.3])
def test_a_missing_confounder_moves_a_map_at_most_so_far(of_domain, of_feature):
    """The truth of a hidden confounder with known strengths, and what it moves these data by."""
    rng = np.random.default_rng(0)
    n, held = 150, []
    gap = 2 * np.sqrt(of_domain / (1 - of_domain))
    effect = np.sqrt(of_feature / (1 - of_feature))
    is_query = np.repeat([True, False], n)
    for _ in range(20):
        u = rng.normal(size=2 * n) + gap * is_query
        z = rng.choice(["a", "b"], 2 * n)
        X = (effect * u + (z == "a") + rng.normal(size=2 * n))[:, None]
        X[is_query] = X[is_query] / 1.3 - 0.5
        mean = X[is_query].mean(axis=0)[None]
        data = X[is_query], X[~is_query]
        without = ConDoAdapter().fit_pair(*data, z[is_query], z[~is_query])
        Z = [{"z": z[side], "u": u[side]} for side in (is_query, ~is_query)]
        images = [adapter.map_(mean) for adapter in (without, ConDoAdapter().fit_pair(*data, *Z))]
        moved = abs(images[0] - images[1]).item()
        most = moved_at_most(degrees_of_freedom(without), of_domain, of_feature)
        most *= without.errors_.std(mean).item()
        held.append((gap * effect <= most, moved <= most))
    assert np.mean(held, axis=0).min() >= 0.95


def test_a_recorded_confounder_moves_the_map_by_less_than_is_said():
    rng = np.random.default_rng(0)
    held = []
    for _ in range(20):
        is_query = np.repeat([True, False], 100)
        z = rng.choice(["a", "b"], 200)
        u = np.where(rng.random(200) < np.where(is_query, 0.65, 0.35), "p", "m")
        X = (0.7 * (u == "p") + (z == "a"))[:, None] + rng.normal(size=(200, 3))
        frame = pd.DataFrame(X).add_prefix("x").assign(z=z, u=u)
        frame["domain"] = np.where(is_query, "query", "reference")
        roles = {"domain": "domain", "confounders": ["z", "u"], "features": ["x*"]}
        found = sensitivity(ConDoAdapter().fit(frame, **roles), frame, **roles, n_splits=0)
        held += [
            moved <= most
            for moved, most in zip(found.left_out["moved_errors"], found.recorded["errors"])
        ]
    assert np.mean(held) >= 0.95


def test_it_prints(found):
    assert "unrecorded confounder" in repr(found)
    assert found.to_dict()["strength_one_error"] < 0.1


def test_a_map_is_off_by_the_bound_of_the_confounder_that_is_left_out():
    rng = np.random.default_rng(4)
    query = np.arange(4000) < 2000
    seen, hidden = rng.normal(size=(2, 4000)) + [[0.5], [0.6]] * query
    X = seen[:, None] * [1.0, 0.5] + hidden[:, None] * [0.8, 0.2] + rng.normal(size=(4000, 2))
    frame = pd.DataFrame(X, columns=["x0", "x1"]).assign(seen=seen, hidden=hidden)
    frame["domain"] = np.where(query, "query", "reference")
    roles = "domain", ["seen"], ["x*"], None, None, None, None, "raise"
    domains = from_table(frame, *roles)
    adapter = ConDoAdapter("shift", shrinkage=None).fit_domains(domains)
    # the shares that it explains, from regressions
    D = np.column_stack([np.ones(4000), seen])
    left = lambda D, y: y - D @ np.linalg.lstsq(D, y, rcond=None)[0]  # noqa: E731
    q, u = left(D, 1.0 * query), left(D, hidden)
    of_domain = (q @ u) ** 2 / (q @ q) / (u @ u)
    sheet, strongest = hidden_bounds(domains, adapter.map_)
    assert strongest == "seen"
    size = np.array(sheet["hidden_10"]) / (0.1 / np.sqrt(0.9))
    both = np.column_stack([D, query])
    y, u = left(both, X), left(both, hidden)
    of_feature = (y.T @ u) ** 2 / (y**2).sum(axis=0) / (u @ u)
    bound = size * np.sqrt(of_domain * of_feature / (1 - of_domain)) * X[~query].std(axis=0)
    known = from_table(frame, "domain", ["seen", "hidden"], *roles[2:])
    off = adapter.map_.offset - ConDoAdapter("shift", shrinkage=None).fit_domains(known).map_.offset
    np.testing.assert_allclose(np.abs(off), bound, rtol=0.05)


def test_the_map_is_shown_against_the_reliability_of_confounders():
    rng = np.random.default_rng(5)
    query = np.arange(2000) < 1000
    true = rng.normal(size=2000) + query
    frame = pd.DataFrame({"x0": true + 0.5 * rng.normal(size=2000), "kind": "a"})
    frame["z"] = true + 0.7 * rng.normal(size=2000)
    frame["domain"] = np.where(query, "query", "reference")
    roles = {"domain": "domain", "confounders": ["z"], "features": ["x0"]}
    adapter = ConDoAdapter(reliability={"z": 0.7}).fit(frame, **roles)
    found = sensitivity(adapter, frame, **roles, n_splits=0).reliability
    moved = dict(zip(found["reliability"], found["moved_sd"]))
    assert moved[0.7] == pytest.approx(0.0, abs=1e-9)
    assert moved[1.0] > moved[0.9] > moved[0.8] > 0.015 < moved[0.6] < moved[0.5]
    other = ConDoAdapter(reliability={"z": 0.5}).fit(frame, **roles)
    mean = np.array([[frame.x0[query].mean()]])
    gap = abs(other.map_(mean) - adapter.map_(mean))[0, 0] / frame.x0[~query].std()
    assert moved[0.5] == pytest.approx(gap, rel=0.02)
