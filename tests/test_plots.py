"""Figures are drawn from records alone."""

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from stories import ROLES, truth, two_domains

from condokit import ConDoAdapter, assess, evaluate, plots

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def frame():
    return two_domains(np.random.default_rng(1), 60, 2)


@pytest.fixture(autouse=True)
def _closes_figures():
    yield
    pyplot.close("all")


def test_overlap(frame):
    axis = plots.overlap(assess(frame, **ROLES)).axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["sick = False", "sick = True"]
    lengths = [bar.get_width() for bar in axis.patches[:2]]
    assert sum(lengths) == pytest.approx(1.0)


def test_overlap_leaves_small_cells_open(frame):
    few = frame.drop(index=np.flatnonzero((frame["domain"] == "query") & ~frame["sick"])[2:])
    axis = plots.overlap(assess(few, **ROLES)).axes[0]
    assert sum(not bar.get_fill() for bar in axis.patches) == 1


def test_love_and_densities(frame):
    found = evaluate(truth(2), frame, **ROLES, n_permutations=39)
    assert len(plots.love(found).axes[0].get_yticklabels()) == 2
    figure = plots.densities(found, "x1")
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "all",
        "sick = False",
        "sick = True",
    ]
    with pytest.raises(ValueError, match="must be one of"):
        plots.densities(found, "x9")


def test_map_with_intervals(frame):
    adapter = ConDoAdapter().fit(frame, **ROLES)
    assert len(plots.map_intervals(adapter).axes) == 2
    adapter.errors_ = None
    assert len(plots.map_intervals(adapter).axes) == 2


def test_bland_altman(rng):
    frame = two_domains(rng, 30, 2)
    pairs = (np.arange(30), 30 + np.arange(30))
    found = evaluate(truth(2), frame, **ROLES, pairs=pairs, n_permutations=39)
    axis = plots.bland_altman(found.agreement, "x1").axes[0]
    assert axis.get_title(loc="left") == "x1: 30 pairs"


def test_without_matplotlib_the_extra_is_named(frame, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"condokit\[plot\]"):
        plots.overlap(assess(frame, **ROLES))


def test_names_are_not_formulas(rng):
    hostile = "$\\frac{$"
    frame = pd.DataFrame(rng.normal(size=(60, 2)), columns=[hostile, "x"])
    frame["domain"] = np.repeat(["query", "reference"], 30)
    frame["sex"] = np.tile(["$_{$", "M"], 30)
    roles = {"domain": "domain", "confounders": ["sex"]}
    adapter = ConDoAdapter().fit(frame, **roles)
    pairs = (np.arange(30), np.arange(30, 60))
    found = evaluate(adapter, frame, **roles, pairs=pairs, n_permutations=39)
    for figure in (
        plots.overlap(assess(frame, **roles)),
        plots.love(found),
        plots.densities(found, hostile),
        plots.map_intervals(adapter),
        plots.bland_altman(found.agreement),
    ):
        figure.canvas.draw()
