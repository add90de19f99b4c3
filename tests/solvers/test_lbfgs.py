import time

import numpy as np
import pytest
from problems import random_pair

from condokit import ConDoAdapter, Energy
from condokit.divergences.likelihood import GaussianLikelihood
from condokit.maps.coordinates import AllMatrices
from condokit.solvers.gaussian_kl import KLObjective
from condokit.solvers.lbfgs import descend, keeping_orientation, lbfgs, watched
from condokit.solvers.units import Units


def valley(v):
    return float(((v - 3) ** 4).sum()), 4 * (v - 3) ** 3


def test_it_finds_a_minimum_beside_cliffs():
    assert lbfgs(valley, np.zeros(2)).x == pytest.approx([3, 3], abs=0.1)

    def cliff(v):
        return (np.inf, v) if (v > 1).any() else valley(v)

    assert np.isfinite(lbfgs(cliff, np.zeros(2)).fun)


def test_ctrl_c_ends_a_search_with_the_best_so_far():
    calls = []

    def interrupted(v):
        calls.append(v)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return valley(v)

    with pytest.raises(KeyboardInterrupt):
        lbfgs(interrupted, np.zeros(2))
    calls.clear()
    with watched(False, 1) as watch:
        found = lbfgs(interrupted, np.zeros(2))
        assert watch.stopped
        assert found.fun < valley(np.zeros(2))[0]
        assert lbfgs(valley, np.zeros(2)).fun == valley(np.zeros(2))[0]  # later ones end at once
    assert lbfgs(valley, np.zeros(2)).fun < 0.1


def test_progress_is_shown_on_request_only(capsys):
    def slow(v):  # what takes no time is not shown
        time.sleep(0.25)
        return valley(v)

    for verbose in (False, True):
        with watched(verbose, None):
            lbfgs(slow, np.zeros(2), max_iter=1)
        assert ("objective" in capsys.readouterr().err) is verbose


def test_an_interrupted_fit_is_a_fit(monkeypatch):
    from condokit.divergences.samples import SampleObjective

    rng = np.random.default_rng(0)
    X_query, X_reference = rng.exponential(size=(80, 3)), rng.normal(size=(80, 3))
    original, calls = SampleObjective.__call__, []

    def interrupted(self, B, c):
        calls.append(None)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return original(self, B, c)

    monkeypatch.setattr(SampleObjective, "__call__", interrupted)
    adapter = ConDoAdapter("affine", divergence=Energy(max_iter=50))
    with pytest.warns(UserWarning, match="best that was found so far"):
        adapter.fit_pair(X_query, X_reference)
    assert adapter.report_["interrupted"] is True
    assert np.isfinite(adapter.transform(X_query)).all()


@pytest.mark.filterwarnings("ignore:The strata are too much alike")  # equal domains
def test_threads_and_seeds_are_checked_and_change_nothing_else():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(1100, 3)), rng.normal(size=(1100, 3))  # so many are drawn at random
    maps = [
        ConDoAdapter("affine", divergence="mmd", **parameters).fit_pair(*data).map_
        for parameters in ({}, {"random_state": 0}, {"random_state": 1}, {"n_jobs": -1})
    ]
    assert maps[0] == maps[1]
    assert maps[0] != maps[2]
    np.testing.assert_allclose(maps[0].A, maps[3].A, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="'n_jobs' must be a whole number"):
        ConDoAdapter(n_jobs=0).fit_pair(*data)
    with pytest.raises(ValueError, match="'random_state' must be a whole number"):
        ConDoAdapter(random_state=-1).fit_pair(*data)


def test_a_search_never_crosses_singular_matrices():
    pair = random_pair(4, 3, 3)
    units = Units(pair, "white")
    turned = np.diag([-1.0, 1.0, 1.0])
    for begin in (np.eye(3), turned):
        sign = np.linalg.det(begin)
        likelihood = keeping_orientation(GaussianLikelihood(units), begin)
        for found in (
            KLObjective(units).solve(begin, np.zeros(3)),
            descend(likelihood, AllMatrices(begin, np.zeros(3)), 500),
        ):
            assert np.sign(np.linalg.det(found.scale)) == sign
