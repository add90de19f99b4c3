import numpy as np
import pandas as pd
import pytest

from condokit import BatchAdapter
from condokit.batches.graph import Graph

ROLES = {"batch": "site", "confounders": "group"}


def test_a_plan_joins_islands(made):
    study = made(0, [(0, 1), (0, 1), (2, 3), (2, 3)])
    plan = BatchAdapter(reference="A").plan(study.table, features="f*", n=6, **ROLES)
    assert len(plan.again) == 6
    assert plan.error_before > 10 > plan.error_after
    islands = [{one["batch"] in "AB", one["again_in"] in "AB"} for one in plan.again]
    assert {True, False} in islands
    for one in plan.again:
        assert study.table["site"][one["row"]] == one["batch"]
    assert sum(one["n"] for one in plan.add) == 6
    assert "Measuring 6 samples in another batch as well" in str(plan)


def test_the_plan_is_better_than_chance(made):
    def expected(study, moves):
        """Return the error that the same formula expects of other samples."""
        from condokit.batches.graph import RATIO, Graph
        from condokit.batches.plan import covariance
        from condokit.data.reader import read
        from condokit.data.roles import Roles

        graph = Graph(read(study.X, Roles(study.code, study.table["group"])), 0.05)
        L = graph.information_matrix(np.zeros(graph.levels.shape))
        for a, b in moves:
            L[[a, b], [a, b]] += (1 + RATIO) / 2
            L[[a, b], [b, a]] -= (1 + RATIO) / 2
        return np.diag(covariance(L, 0)).sum()

    study = made(3, [(0, 1), (1, 2), (2, 3), (3, 4)])
    plan = BatchAdapter(reference="A").plan(study.table, features="f*", n=5, **ROLES)
    place = {label: k for k, label in enumerate(study.labels)}
    own = expected(study, [(place[one["batch"]], place[one["again_in"]]) for one in plan.again])
    rng = np.random.default_rng(0)
    others = [expected(study, [rng.permutation(4)[:2] for _ in range(5)]) for _ in range(30)]
    assert own <= min(others) * 1.02


def test_a_bad_number(made):
    study = made(0, [(0, 1), (0, 1)])
    with pytest.raises(ValueError, match="'n' must be a whole number"):
        BatchAdapter(reference="A").plan(study.table, features="f*", n=0, **ROLES)


def test_no_sample_is_chosen_twice_for_a_batch(made):
    table = made(0, [(0, 1), (0, 1), (0, 1)], n=4).table
    table["control"] = [f"s{k % 4}" for k in range(12)]
    for more in ({}, {"bridge": "control"}):  # in the second, all samples are bridges already
        plan = BatchAdapter(reference="A").plan(table, n=40, features="f*", **ROLES, **more)
        chosen = [(one["row"], one["again_in"]) for one in plan.again]
        assert 12 <= len(chosen) == len(set(chosen))
        assert all(one["batch"] != one["again_in"] for one in plan.again)


def test_the_best_reference_is_found_without_measuring_all_overlaps():
    fewer = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(3, 9, 16)
        batch = np.repeat(np.arange(16), sizes)
        z = rng.normal(size=len(batch)) + rng.normal(size=16)[batch] * (seed % 3)
        frame = pd.DataFrame({"x": rng.normal(size=len(batch)), "z": z, "batch": batch.astype(str)})
        roles = frame, "batch", "z", ["x"], None, None, None
        study = BatchAdapter(reference="auto").read(*roles)
        graph, every = Graph(study, 0.05), Graph(study, 0.05)
        found, best = graph.best_reference(), []
        for r in range(16):
            paths = every.paths(r)
            error = sum(every.size[b] * every.path_error(path) ** 2 for b, path in paths.items())
            best.append((every.size[list(paths)].sum(), -error))
        assert found == max(range(16), key=lambda r: best[r])
        fewer += len(every.overlaps) - len(graph.overlaps)
    assert fewer > 100
