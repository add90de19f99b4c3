"""The graph of batches: information against least squares, paths against all paths, refusals."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest

from condokit import NoOverlapError
from condokit.batches.graph import RATIO, Graph
from condokit.data.reader import read
from condokit.data.roles import Roles


def graph_of(sites, confounders=None, bridge=None, min_overlap=0.05):
    X = np.random.default_rng(0).normal(size=(len(sites), 3))
    return Graph(read(X, Roles(np.asarray(sites), confounders, bridge=bridge)), min_overlap)


def random_sites(seed, K=6, n=40, levels=4):
    """Return batches and groups of rows; each batch has only some of the groups."""
    rng = np.random.default_rng(seed)
    sites = np.repeat([f"s{k}" for k in range(K)], n)
    groups = np.concatenate([rng.choice(rng.choice(levels, 2, False), n) for _ in range(K)])
    return sites, np.array([f"g{k}" for k in groups])


def precision_of_the_difference(sites, Z, a, b):
    """Return one over the variance of the offset between two batches, by least squares."""
    rows = np.isin(sites, [a, b])
    D = np.column_stack([Z[rows], sites[rows] == b])
    return 1 / np.linalg.pinv(D.T @ D, hermitian=True)[-1, -1]


def test_information_of_categories_is_that_of_least_squares():
    sites, groups = random_sites(1)
    graph = graph_of(sites, groups)
    one_hot = (groups[:, None] == np.unique(groups)).astype(float)
    compared = 0
    for a in range(6):
        for b in range(a):
            if graph.is_edge(a, b):
                found = precision_of_the_difference(sites, one_hot, f"s{a}", f"s{b}")
                assert graph.information(a, b) == pytest.approx(found)
                compared += 1
    assert compared > 5


def test_information_of_numbers_is_that_of_least_squares():
    rng = np.random.default_rng(2)
    sites = np.repeat(["s0", "s1"], 50)
    age = rng.normal(size=100) + (sites == "s1")
    graph = graph_of(sites, age)
    found = precision_of_the_difference(sites, np.column_stack([np.ones(100), age]), "s0", "s1")
    assert graph.information(0, 1) == pytest.approx(found)
    assert graph.information(1, 0) == pytest.approx(found)


@pytest.mark.parametrize("seed", range(4))
def test_paths_are_the_best_of_all(seed):
    graph = graph_of(*random_sites(seed))
    for reference in range(6):
        paths = graph.paths(reference)
        for b in range(6):
            errors = [0.0] if b == reference else []
            others = [k for k in range(6) if k not in (b, reference)]
            for size in range(len(others) + 1 if b != reference else 0):
                for middle in permutations(others, size):
                    path = [b, *middle, reference]
                    if all(graph.is_edge(*edge) for edge in zip(path[:-1], path[1:])):
                        errors.append(graph.path_error(path))
            assert (b in paths) == bool(errors)
            if errors:
                assert graph.path_error(paths[b]) == pytest.approx(min(errors))


@pytest.mark.parametrize("seed", range(6))
def test_the_best_reference_is_that_of_all_paths(seed):
    graph = graph_of(*random_sites(seed))

    def value(r):
        paths = graph.paths(r)
        square = sum(graph.size[b] * graph.path_error(path) ** 2 for b, path in paths.items())
        return -sum(graph.size[b] for b in paths), square

    best = min(value(r) for r in range(6))
    assert value(graph.best_reference()) == pytest.approx(best)


def test_bridges_alone_join_batches():
    sites = np.repeat(["s0", "s1", "s2"], 10)
    bridge = np.array([None] * 30, dtype=object)
    bridge[[0, 1, 10, 11]] = ["x", "y", "x", "y"]
    bridge[[12, 20]] = ["z", "z"]  # one sample is not enough
    graph = graph_of(sites, bridge=bridge)
    assert graph.is_edge(0, 1)
    assert not graph.is_edge(1, 2)
    assert graph.error[0, 1] ** 2 == pytest.approx(1 / (1 + RATIO) + 0.1)
    assert set(graph.paths(0)) == {0, 1}


def test_batches_that_no_path_reaches_are_refused_or_kept():
    sites, groups = np.repeat(["s0", "s1", "s2"], 8), np.repeat(["g0", "g0", "g1"], 8)
    graph = graph_of(sites, groups)
    paths = graph.paths(0)
    with pytest.raises(NoOverlapError, match="s2"):
        graph.refuse(paths, 0, keep=False)
    with pytest.warns(UserWarning, match="s2.*left as they are"):
        graph.refuse(paths, 0, keep=True)
    alone = graph_of(sites[8:], groups[8:])
    with pytest.raises(NoOverlapError):
        alone.refuse(alone.paths(0), 0, keep=False)


def test_overlap_of_categories_is_the_sum_of_least_shares():
    sites = np.array(["s0"] * 4 + ["s1"] * 8)
    table = pd.Series(["a"] * 3 + ["b"] + ["a"] * 2 + ["b"] * 6)
    assert graph_of(sites, table).overlap(0, 1) == pytest.approx(0.25 + 0.25)
