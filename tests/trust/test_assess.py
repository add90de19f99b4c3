"""Before fitting: verdicts, associations, remarkable features, and data that would help."""

import json

import numpy as np
import pandas as pd
import pytest

from condokit import assess
from condokit.compare.overlap import counted_overlap
from condokit.trust.assess import _additions


def table(rng, n_query=60, n_reference=80, **columns):
    n = n_query + n_reference
    frame = pd.DataFrame({f"x{j}": rng.normal(size=n) for j in range(3)})
    frame["domain"] = np.repeat(["query", "reference"], [n_query, n_reference])
    return frame.assign(**columns)


def random_design(seed):
    """Make a design that surely can or cannot be compared."""
    rng = np.random.default_rng(seed)
    n_query, n_reference = rng.integers(40, 300, 2)
    n = n_query + n_reference
    good, kind = bool(seed % 2), rng.choice(["categories", "number", "both", "many"])
    columns = {}
    if kind in ("categories", "both"):
        k = int(rng.integers(2, 5))
        shares = rng.dirichlet(np.full(k, 8.0), 2)
        columns["c"] = np.r_[
            rng.choice(k, n_query, p=shares[0]), rng.choice(k, n_reference, p=shares[1])
        ].astype(str)
        if kind == "categories" and not good:
            columns["c"][:n_query] = np.char.add("new ", columns["c"][:n_query])
    if kind in ("number", "both", "many"):
        gap = rng.uniform(0, 0.8) if good else rng.uniform(1.01, 3)
        spread = rng.normal if good else rng.uniform
        columns["z"] = np.r_[spread(size=n_query) + gap, spread(size=n_reference)]
    if kind == "many":
        columns |= {f"z{j}": rng.normal(size=n) for j in range(int(rng.integers(1, 7)))}
    return table(rng, n_query, n_reference, **columns), list(columns), good


def test_verdicts_of_100_random_designs_are_right():
    wrong = []
    for seed in range(100):
        frame, confounders, good = random_design(seed)
        features = ["x0", "x1", "x2"]
        found = assess(frame, domain="domain", confounders=confounders, features=features)
        if (found.verdict == "not possible") == good:
            wrong.append((seed, found.verdict, found.overlap))
    assert not wrong


def test_no_common_level_is_not_possible_and_says_what_would_help(rng):
    frame = table(rng, sex=np.repeat(["M", "F"], [60, 80]))
    found = assess(frame, domain="domain", confounders="sex")
    assert found.verdict == "not possible"
    assert found.overlap is None
    assert any("sex = F in the query" in text for text in found.wanted)
    assert found.confounders["cramers_v"] == [pytest.approx(1.0)]
    assert "not possible" in repr(found).lower()


def test_the_same_people_are_fine(rng):
    frame = table(rng, sex=np.tile(["M", "F"], 70))
    found = assess(frame, domain="domain", confounders="sex")
    assert found.verdict == "go"
    assert found.findings == []
    assert found.wanted == []
    assert found.confounders["cramers_v"][0] < 0.01


def test_added_rows_reach_the_overlap_that_was_asked_for():
    counts = np.array([[60.0, 0.0, 1.0], [5.0, 50.0, 40.0]])
    more = _additions(counts, 0.5)
    assert counted_overlap(counts) < 0.2
    assert counted_overlap(counts + more) >= 0.5


def test_standardised_differences_agree_with_their_definition(rng):
    age = np.r_[rng.normal(60, 8, 60), rng.normal(50, 10, 80)]
    sex = np.r_[rng.random(60) < 0.7, rng.random(80) < 0.4]
    found = assess(table(rng, age=age, sex=sex), domain="domain", confounders=["age", "sex"])
    by_name = dict(zip(found.confounders["confounder"], found.confounders["difference_sd"]))
    gap = age[:60].mean() - age[60:].mean()
    assert by_name["age"] == pytest.approx(gap / np.sqrt((age[:60].var() + age[60:].var()) / 2))
    p, q = sex[:60].mean(), sex[60:].mean()
    expected = abs(p - q) / np.sqrt((p * (1 - p) + q * (1 - q)) / 2)
    assert by_name["sex"] == pytest.approx(expected)


def test_cramers_v_agrees_with_scipy(rng):
    from scipy.stats.contingency import association

    site = rng.choice(list("abc"), 140)
    frame = table(rng, site=site)
    found = assess(frame, domain="domain", confounders="site")
    counts = pd.crosstab(frame["domain"], frame["site"]).to_numpy()
    assert found.confounders["cramers_v"][0] == pytest.approx(association(counts))


def test_remarkable_features_are_found(rng):
    n = 140
    frame = table(
        rng,
        constant=np.r_[np.full(60, 2.0), rng.normal(size=80)],
        count=rng.poisson(3, n),
        floor=np.maximum(rng.normal(size=n), 0.0),
        tails=rng.standard_t(1, n),
        dose=np.exp(rng.normal(size=n)),
    )
    frame.loc[:50, "x2"] = np.nan
    found = assess(frame, domain="domain", features=[c for c in frame if c != "domain"])
    kinds = dict(zip(found.features["feature"], found.features["kind"]))
    assert kinds == {
        "constant": "constant",
        "count": "discrete",
        "floor": "bounded",
        "tails": "heavy-tailed",
        "dose": "positive and skewed",
        "x2": "mostly missing",
    }
    assert found.verdict == "go with care"


def test_small_cells_are_not_shown(rng):
    sex = np.r_[["F"] * 3, ["M"] * 57, ["F"] * 40, ["M"] * 40]
    found = assess(table(rng, sex=sex), domain="domain", confounders="sex")
    assert "<5" in repr(found)
    assert found.strata["n_query"] == ["<5", "~55"]
    assert any("sex = F" in text for text in found.wanted)
    assert json.dumps(found.to_dict(), allow_nan=False)
    free = assess(table(rng, sex=sex), domain="domain", confounders="sex", min_cell=1)
    assert free.strata["n_query"] == [3, 57]


def test_a_full_matrix_is_judged(rng):
    frame = table(rng, 400, 400)
    assert not assess(frame, domain="domain").affine["identifiable"]
    stratum = np.tile(np.arange(4), 200)
    for j in range(3):
        frame[f"x{j}"] += rng.normal(0, 3, 4)[stratum]
        frame[f"x{j}"] *= rng.uniform(0.5, 3, 4)[stratum]
    frame["s"] = stratum.astype(str)
    assert assess(frame, domain="domain", confounders="s").affine["identifiable"]
    few = frame.iloc[::30]
    assert not assess(few, domain="domain", confounders="s").affine["identifiable"]


def test_few_subjects_are_named(rng):
    frame = table(rng, subject=np.r_[np.zeros(60), np.arange(80)])
    found = assess(frame, domain="domain", groups="subject")
    assert any("fewer than 5 subjects" in finding.text for finding in found.findings)


def test_nothing_tells_the_count_of_a_small_cell(rng):
    asked = set()
    for few in (1, 2, 3, 4):
        sex = np.r_[["F"] * few, ["M"] * (60 - few), ["F"] * 40, ["M"] * 40]
        site = np.r_[["x"] * few, ["y"] * 136, ["z"] * (4 - few)].astype(object)
        site[30 : 30 + few] = None
        frame = table(rng, sex=sex, site=site)
        roles = {"domain": "domain", "missing": "drop", "features": ["x*"]}
        found = assess(frame, confounders=["sex"], **roles)
        asked.update(found.wanted)
        heavy = assess(frame, confounders=["sex"], sample_weight=np.full(140, 9.0), **roles)
        assert heavy.strata["n_query"][0] == "<5"
        dropped = assess(frame, confounders=["site"], **roles)
        assert dropped.confounders["missing"] == ["<5"]
        assert dropped.confounders["outside"] == [None]
        assert "site" not in dropped.overlap.outside
        assert any("missing in a few rows" in finding.text for finding in dropped.findings)
    assert asked == {"about 5 more rows with sex = F in the query"}


def test_bins_of_large_numbers_are_told_apart(rng):
    year = rng.uniform(2015, 2025, 140)
    found = assess(table(rng, year=year), domain="domain", confounders="year")
    assert len(found.strata) == 5
    assert found.strata["rows with"][0].startswith("year below 201")
