"""Figures are drawn from records alone."""

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from stories import ROLES, truth, two_domains

from condokit import BatchAdapter, ConDoAdapter, assess, evaluate, plots
from condokit.report import build

matplotlib.use("Agg")
FACTS = "feature", "batch", "change_sd"


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


@pytest.fixture(scope="module")
def study():
    rng = np.random.default_rng(0)
    site, age = np.repeat(["A", "B", "C"], 50), rng.normal(50, 10, 150)
    X = rng.normal(size=(150, 3)) + age[:, None] / 10 + (site == "B")[:, None]
    X[:, 2] *= 1000  # in another unit
    X[site == "C"] *= 0.5
    table = pd.DataFrame(X, columns=["thick", "thin", "volume"])
    table = table.assign(site=site, age=age, sex=np.resize(["F", "M", "F"], 150))
    roles = {"batch": "site", "confounders": ["age", "sex"]}
    adapter = BatchAdapter(reference="A").fit(table, **roles)
    return adapter, table, evaluate(adapter, table, n_permutations=39)


def test_figures_of_a_study(study):
    adapter, table, found = study
    assert [axis.get_title(loc="left") for axis in plots.love(found).axes] == ["B", "C"]
    for axis in plots.map_intervals(adapter).axes:
        assert len(axis.containers) == 2  # a site each
    titles = [axis.get_title(loc="left") for axis in plots.components(found).axes[:6]]
    assert titles == [
        f"{c}, {when}" for when in ("before", "after") for c in ("site", "age", "sex")
    ]
    lines = plots.against(found).axes[0].lines
    assert [line.get_label() for line in lines] == ["A", "B", "C"]
    terms = [t.get_text() for t in plots.variance(found).axes[0].get_yticklabels()]
    assert terms == ["site", "age", "sex", "residual"]
    assert len(plots.confounders(found).axes) == 2
    kept = {"assessment": None, "evaluation": found, "formats": ["png"]}
    names = [name for name, _ in plots.files(adapter, **kept)]
    assert {"shift.png", "map.png", "components.png", "sites.png", "distribution_2.png"} <= {*names}
    assert {name.removesuffix(".png") for name in names} <= {*plots.FIGURES}


def test_figures_and_the_page_show_the_same_changes(study):
    adapter, table, found = study
    scales, axis = plots.map_intervals(adapter).axes
    names = [label.get_text() for label in scales.get_yticklabels()]
    record = build(adapter, adapter.read(table, "site", ["age", "sex"], None), evaluation=found)
    rows = record["features"]
    for site, drawn in zip("BC", axis.containers):
        known = {f: x for f, b, x in zip(*map(rows.get, FACTS)) if b == site}
        assert dict(zip(names, drawn[0].get_xdata())) == pytest.approx(known, rel=1e-3)


def test_features_of_other_units_have_an_axis_of_their_own(study):
    adapter, *_ = study
    figure = plots.site_effects(adapter)
    names = [[t.get_text() for t in axis.get_yticklabels()] for axis in figure.axes]
    assert names == [["thick", "thin"], ["volume"]]


def test_figures_say_what_they_leave_out(rng):
    table = pd.DataFrame(rng.normal(size=(60, 50))).rename(columns=str)
    table["domain"] = np.repeat(["query", "reference"], 30)
    adapter = ConDoAdapter().fit(table, domain="domain")
    assert "not shown: 10 features" in plots.site_effects(adapter).get_suptitle()
    found = evaluate(adapter, table, n_permutations=39)
    assert "10 more" in plots.love(found).axes[0].get_title(loc="left")
    with pytest.raises(ValueError, match="no continuous confounder"):
        plots.against(found)
    with pytest.raises(ValueError, match="no confounders"):
        plots.confounders(found)
