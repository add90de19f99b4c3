"""How far a map depends on recorded and unrecorded confounders."""

import numpy as np
import pytest
from stories import two_domains

from condokit import ConDoAdapter, sensitivity
from condokit.trust.sensitivity import robustness_value


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


def test_it_prints(found):
    assert "unrecorded confounder" in repr(found)
    assert found.to_dict()["strength_one_error"] < 0.1
