"""The comparison of many batches: studies, plain peers, failures that are told, the page."""

import numpy as np
import pytest
from batches import compare, peers, worker
from batches.simulations import REPEAT, STUDIES


@pytest.mark.parametrize("name", STUDIES)
def test_studies_are_batches_seen_through_scales_and_offsets(name):
    study = STUDIES[name](0)
    np.testing.assert_array_equal(study.X, STUDIES[name](0).X)
    assert not np.array_equal(study.X, STUDIES[name](1).X)
    for label in np.unique(study.batch):
        rows = study.batch == label
        X, truth = (a[rows] - a[rows].mean(0) for a in (study.X, study.truth))
        scale = (X * truth).sum(0) / (X**2).sum(0)
        np.testing.assert_allclose(scale * X, truth, atol=1e-10)
        assert (label == study.reference) == np.allclose(study.X[rows], study.truth[rows])
    assert study.error(study.truth) == 0
    assert 0.4 < study.error(study.X) < 2


def test_sd_is_that_within_strata_of_the_reference():
    found = []
    for seed in range(20):
        study = STUDIES["balanced"](seed)
        rows = study.batch == study.reference
        within = study.truth[rows].reshape(20, 3, -1)  # the groups take turns
        found.append(np.sqrt(within.var(0, ddof=1).mean(0)) / study.sd)
    assert np.mean(found) == pytest.approx(1, abs=0.02)


def test_a_chain_shares_groups_with_neighbours_only():
    study = STUDIES["chain of 3"](0)
    groups = [set(study.confounders.group[study.batch == label]) for label in "ABCD"]
    shared = [[len(a & b) for b in groups] for a in groups]
    assert shared == [[2, 1, 0, 0], [1, 2, 1, 0], [0, 1, 2, 1], [0, 0, 1, 2]]


@pytest.mark.parametrize(("name", "times"), [("bridges", 5), ("bridges, chain, groups unknown", 2)])
def test_controls_are_one_sample_in_several_batches(name, times):
    study = STUDIES[name](0)
    assert (study.confounders is None) == ("unknown" in name)
    gaps = []
    for one in set(study.bridge) - {None}:
        rows = study.bridge == one
        assert len(np.unique(study.batch[rows])) == rows.sum() == times
        gaps.append((study.truth[rows] / study.sd).std(0, ddof=1))
    assert np.sqrt(np.mean(np.square(gaps))) == pytest.approx(REPEAT, rel=0.1)


def test_plain_peers_and_the_page():
    names = ["balanced", "chain of 3", "bridges"]
    table = compare.simulate(names, [0], packages=False)
    shown = compare.summary(table)
    assert list(shown.index) == names
    assert list(shown)[:4] == list(peers.PLAIN)
    assert shown.loc["balanced", "standardised"] < 0.4
    assert shown.loc["bridges", "bridge_shift"] < shown.loc["bridges", "standardised"]
    assert np.isnan(shown.loc["chain of 3", "condokit, pairwise"])  # which is told, not dropped
    page = "\n".join(compare.simulated_page(table, [0]))
    assert "- chain of 3, condokit, pairwise: fails for 1 of 1 seeds: confounder 'group'" in page
    assert "bridge_shift: fails" not in page
    assert page.count("**yes**, ") + page.count("| no, ") == len(names)


def test_a_peer_that_fails_says_why(tmp_path, monkeypatch):
    def fussy(X, batch, design, reference):
        assert design.shape == (len(X), 2)
        if len(X) == 300:
            raise np.linalg.LinAlgError("Singular matrix")
        return 2 * X + 1

    monkeypatch.setattr(worker, "PEERS", {"scanpy": fussy})

    def inside(command, **_):
        worker.main(*command[2:])

    monkeypatch.setattr(peers, "environment", lambda peer: "python")
    monkeypatch.setattr(peers.subprocess, "run", inside)
    study = STUDIES["10 x 20 rows, groups"](0)
    moved, why = peers.run("scanpy", [study, STUDIES["balanced"](0)])
    np.testing.assert_allclose(moved, study.X)  # taken back by the reference's own rows
    assert why == "LinAlgError: Singular matrix"


def test_a_missing_environment_is_told(monkeypatch):
    def absent(peer):
        raise OSError("no disk")

    monkeypatch.setattr(peers, "environment", absent)
    assert peers.run("combatlearn", [STUDIES["balanced"](0)]) == ["no environment: no disk"]
