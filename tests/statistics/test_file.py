"""The statistics file: what is in it, what is not, and that it is read as it was written."""

import copy
import io
import itertools
import json
import time
import tracemalloc
import warnings
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest
from sites_made import FEATURES, hospital, without_few

from condokit import ConDoAdapter, FileError, Statistics
from condokit.io.documents import digest

ROOT = Path(__file__).parents[2]
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((ROOT / "docs" / "reference" / "statistics-schema.json").read_text())
)
ROLES = {"confounders": ["sex", "ward"], "features": FEATURES}


def of(table, label="A", **more):
    return Statistics.of(table, label=label, **(ROLES | more))


def saved(stats, **how):
    content = io.BytesIO()
    stats.save(content, **how)
    return json.loads(content.getvalue())


def loaded(document):
    document = {**document, "sha256": digest(document)}
    return Statistics.load(io.BytesIO(json.dumps(document).encode()))


def cell_of(document, *levels):
    [found] = [one for one in document["cells"] if one["levels"] == list(levels)]
    return found


def with_gaps(table):
    rng = np.random.default_rng(0)
    table = table.copy()
    for name in FEATURES:
        table.loc[rng.random(len(table)) < 0.1, name] = np.nan
    return table


KINDS = ["plain", "gaps", "weights", "many", "unnamed", "ties", "ages", "rounds"]


@pytest.mark.parametrize("kind", KINDS)
def test_saved_files_follow_the_schema_and_are_read_back(kind, rng):
    table = hospital("A")
    table = with_gaps(table) if kind == "gaps" else table
    table["wbc"] = (table["wbc"] > 1).astype(float) if kind == "ties" else table["wbc"]
    weights = 1.0 + rng.integers(0, 3, len(table)) if kind == "weights" else None
    if kind == "unnamed":
        confounders = {"sex": table["sex"].tolist()}
        stats = Statistics.of(table[FEATURES].to_numpy(), label=1, confounders=confounders)
    elif kind == "ages":
        table["age"] = rng.uniform(20, 90, len(table))
        stats = of(table, confounders=["sex", "age"], ranges={"age": (18, 95)})
    elif kind == "rounds":
        stats = of(table, given=["crp"])
    elif kind == "many":
        stats = of(table, "A").merge(of(hospital("B"), "B"))
    else:
        stats = of(table, sample_weight=weights)
    document = saved(stats)
    jsonschema.Draft202012Validator.check_schema(VALIDATOR.schema)
    VALIDATOR.validate(document)
    again = saved(loaded(document))
    assert digest(document) == document["sha256"]
    for key in set(document) - {"sha256", "cells", "correlations", "equal_values", "values"}:
        assert again[key] == document[key], key
    for one, other in zip(document["cells"], again["cells"], strict=True):
        for key in ("domain", "levels", "count", "mean", "squares"):
            assert one[key] == other[key]
    for one, other in zip(document["correlations"], again["correlations"], strict=True):
        assert one["typical"] == pytest.approx(other["typical"], abs=0.2)
    assert (len(document["values"]) > 0) == (kind == "rounds")
    for one, other in zip(document["values"], again["values"], strict=True):
        assert min(one["counts"]) >= 5
        np.testing.assert_allclose(np.mean(one["ends"]), np.mean(other["ends"]), rtol=0.05)


@pytest.mark.parametrize("name", ["categories", "gaps", "numbers", "rounds"])
def test_files_of_schema_1_are_read_for_ever(name):
    path = Path(__file__).parent / "schema1" / f"{name}.json"  # written by condokit 1.0.0rc1
    document = json.loads(path.read_text())
    assert (document["schema"], document["condokit"]) == (1, "1.0.0rc1")
    stats = Statistics.load(path)
    for cell, k in zip(document["cells"], range(len(stats.cells)), strict=True):
        known = [j for j, v in enumerate(cell["mean"]) if v is not None]
        for key in ("mean", "squares"):
            written = [cell[key][j] for j in known]
            assert getattr(stats.sums.moments, key)[k][known].tolist() == written
    if document["continuous"] is not None:
        written = document["continuous"]["products"]["scatter"]
        np.testing.assert_array_equal(stats.sums.continuous.products.scatter, written)
    VALIDATOR.validate(document)
    if document["continuous"] is not None:
        with pytest.raises(ValueError, match="Sums with 'age' from files of condokit 1.0.0rc1"):
            saved(stats)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = saved(stats)  # of today
    VALIDATOR.validate(again)
    assert {len(again[key]) - len(document[key]) for key in ("cells", "values")} == {0}


@pytest.mark.parametrize("name", ["categories", "gaps", "numbers", "rounds"])
def test_files_of_schema_2_are_read_and_written_again_without_a_change(name):
    path = Path(__file__).parent / "schema2" / f"{name}.json"  # written when it was frozen
    document = json.loads(path.read_text())
    VALIDATOR.validate(document)
    stats = Statistics.load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ConDoAdapter(reference="A").fit_statistics(stats)
        again = saved(stats)
    assert document["schema"] == again["schema"] == 2
    for key in ("cells", "confounders", "feature_names", "min_cell", "reference", "values"):
        assert again[key] == document[key]
    if document["continuous"] is not None:
        assert document["continuous"]["level"] == again["continuous"]["level"]
        one, other = (part["continuous"]["whole"]["domains"] for part in (document, again))
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a["slopes"], b["slopes"], atol=1e-6)


def test_files_merge_in_any_order_and_split(tmp_path):
    a, b = hospital("A"), hospital("B")
    cuts = np.random.default_rng(1).permutation(len(b))
    parts = [of(a, "A"), *(of(b.iloc[some], "B") for some in np.array_split(cuts, 2))]
    for k, part in enumerate(parts):
        part.save(tmp_path / f"{k}.json")
    maps = []
    for order in itertools.permutations(range(3)):
        files = [Statistics.load(tmp_path / f"{k}.json") for k in order]
        maps.append(ConDoAdapter(reference="A").fit_statistics(files).map_)
    for one in maps[1:]:
        np.testing.assert_allclose(one.scale, maps[0].scale, rtol=1e-10)
        np.testing.assert_allclose(one.offset, maps[0].offset, atol=1e-10)
    both = pd.concat([without_few(a).assign(site="A"), without_few(b).assign(site="B")])
    whole = ConDoAdapter(reference="A").fit(both, domain="site", **ROLES).map_
    np.testing.assert_allclose(maps[0].scale, whole.scale, rtol=0.01)  # numbers are rounded
    np.testing.assert_allclose(maps[0].offset, whole.offset, atol=0.02)


def test_cells_have_the_shape_of_their_domain(tmp_path):
    tables = {label: without_few(hospital(label, n=140), least=8) for label in "AB"}
    for label, table in tables.items():
        of(table, label).save(tmp_path / f"{label}.json")
    files = [Statistics.load(tmp_path / f"{label}.json") for label in "AB"]
    for label, file in zip("AB", files):
        document = json.loads((tmp_path / f"{label}.json").read_text())
        assert not any("fourth" in cell for cell in document["cells"])
        [shape] = document["shapes"]
        moments = file.sums.moments
        kurtosis = moments.fourth / moments.count[:, None] / moments.sd**4
        np.testing.assert_allclose(kurtosis, [shape["kurtosis"]] * len(kurtosis))
        rows = tables[label].groupby(["sex", "ward"])[FEATURES]
        z = (tables[label][FEATURES] - rows.transform("mean")) / rows.transform("std", ddof=0)
        assert ((z**4).mean() < 4).all()
        assert shape["kurtosis"] == [3.0] * 4  # one of a few classes
        assert shape["skewness"] == [0.0] * 4
    found = ConDoAdapter(reference="A").fit_statistics(files)
    both = pd.concat([table.assign(site=label) for label, table in tables.items()])
    whole = ConDoAdapter(reference="A").fit(both, domain="site", **ROLES)
    assert (abs(found.map_.scale - whole.map_.scale) < 0.2 * whole.errors_.scale).all()


def test_one_row_does_not_make_a_shape():
    table = pd.DataFrame({"x": np.append(np.random.default_rng(0).normal(size=399), 1e5)})
    with pytest.warns(UserWarning, match="One row holds"):
        document = saved(Statistics.of(table, label="A"))
    [shape] = document["shapes"]
    assert shape["kurtosis"][0] == pytest.approx(400 / (2 ** (4 / 3) * 4), rel=0.01)  # not 399
    few = saved(Statistics.of(table.iloc[:30], label="A"))
    assert few["shapes"] == []


def test_missing_values_take_the_same_way(tmp_path):
    tables = {label: with_gaps(without_few(hospital(label))) for label in "AB"}
    for label, table in tables.items():
        of(table, label).save(tmp_path / f"{label}.json")
    files = [Statistics.load(tmp_path / f"{label}.json") for label in "AB"]
    found = ConDoAdapter(reference="A").fit_statistics(files)
    both = pd.concat([table.assign(site=label) for label, table in tables.items()])
    whole = ConDoAdapter(reference="A").fit(both, domain="site", **ROLES)
    error = whole.errors_.scale  # correlations are of rows that lack nothing
    assert (abs(found.map_.scale - whole.map_.scale) < 0.2 * error).all()


def test_no_order_of_rows_is_told():
    table = hospital("A")
    one, other = (saved(of(part)) for part in (table, table.iloc[::-1]))
    assert [c["levels"] for c in one["cells"]] == [c["levels"] for c in other["cells"]]


def test_nothing_of_small_cells_is_written():
    table = hospital("A")
    document = saved(of(table))
    assert "burns" not in json.dumps(document)
    assert {len(document["cells"]), document["masked"]["cells"]} == {4, 1}
    assert document["masked"]["rows"] == 5  # 3, 4 or 5
    alone = pd.concat([table.assign(site="A"), table.iloc[:3].assign(site="tiny")])
    roles = {**ROLES, "domain": "site"}
    assert "tiny" not in json.dumps(saved(Statistics.of(alone, **roles)))
    with pytest.raises(ValueError, match="every cell has fewer than 5 rows"):
        saved(of(table.iloc[:3]))
    with pytest.raises(ValueError, match="'min_cell' must be a whole number of at least 3"):
        saved(of(table), min_cell=2)


def test_weights_do_not_lift_a_cell_over_the_limit():
    table = hospital("A")
    document = saved(of(table, sample_weight=np.full(len(table), 40.0)))
    assert "burns" not in json.dumps(document)
    table.loc[table.index[table["ward"] == "icu"][2:], "crp"] = np.nan  # two values are known
    weights = np.where(table["crp"].notna() & (table["ward"] == "icu"), 3.0, 1.0)
    document = saved(of(table, sample_weight=weights))
    for sex in "FM":
        one = cell_of(document, sex, "icu")
        assert one["known"][0] == 0
        assert one["mean"][0] is None


def test_features_with_few_known_values_are_left_out_of_a_cell():
    table = hospital("A")
    icu = table.index[(table["ward"] == "icu") & (table["sex"] == "F")]
    table.loc[icu[4:], "crp"] = np.nan  # 4 values
    table.loc[icu[12:], "hb"] = np.nan  # 12 values
    one = cell_of(saved(of(table)), "F", "icu")
    assert one["known"] == [0, 12, len(icu), len(icu)]
    for name in ("mean", "squares"):
        assert one[name][0] is None
        assert one[name][1] is not None


def fives(mean, squares, top):
    """Return all sorted fives of whole numbers up to `top` with a mean and squares, as rounded."""
    every = np.array(list(itertools.combinations_with_replacement(range(top + 1), 5)))
    exact = every.mean(axis=1), ((every - every.mean(axis=1)[:, None]) ** 2).sum(axis=1)
    error = np.sqrt(exact[1] / 5 / 5), exact[1] / 5 * np.sqrt(10)
    near = abs(exact[0] - mean) <= 0.05 * error[0]
    return every[near & (abs(exact[1] - squares) <= 0.05 * error[1])]


def test_five_rows_cannot_be_read_off_their_cell(rng):
    # whole numbers are the easiest to find: rounded means and squares leave many fives
    numbers = []
    for _ in range(10):
        rows = np.sort(rng.integers(0, 31, 5))
        table = pd.DataFrame({"x": rows.astype(float)})
        [one] = saved(Statistics.of(table, label="A"))["cells"]
        assert set(one) == {"domain", "levels", "count", "mean", "squares"}
        found = fives(one["mean"][0], one["squares"][0], 30)
        assert (found == rows).all(axis=1).any()
        numbers.append(len(found))
    assert np.median(numbers) > 50
    assert np.mean(np.array(numbers) == 1) <= 0.1  # values next to each other


def test_a_row_that_lacks_a_value_cannot_be_found_by_subtraction():
    table = without_few(hospital("A"))
    at = table.index[(table["sex"] == "F") & (table["ward"] == "icu")][0]
    table.loc[at, "crp"] = np.nan
    stats = Statistics.of(table, label="A", features=FEATURES)  # one cell
    document = saved(stats)
    [one], [own] = document["cells"], document["correlations"]
    # products of complete rows would give (n - 1) / n (x - m)^2, and x with the mean of all
    moments, n, j = stats.sums.moments, len(table), 2
    inside, value = moments.products.scatter[0], table.loc[at, FEATURES[j]]
    guess = moments.mean[0, j] + np.sqrt((moments.squares[0, j] - inside[j, j]) * (n - 1) / n)
    assert min(abs(guess - value), abs(2 * moments.mean[0, j] - guess - value)) < 1e-6
    assert set(own) == {"domain", "typical"}  # and so they are not written
    assert one["squares"][j] != moments.squares[0, j]


def test_rows_before_the_first_gap_cannot_be_told_from_the_others(rng):
    table = without_few(hospital("A"))
    table = table.assign(age=rng.uniform(20, 90, len(table))).sort_values("sex", ascending=False)
    m = int((table["sex"] == "M").sum())
    stats = of(table.iloc[m : m + 1], confounders=["sex", "age"], ranges={"age": (18, 95)})
    rest = table.drop(index=table.index[m])
    rest.loc[rest.index[-9:], "crp"] = np.nan  # and one row came before
    stats.update(rest, confounders=rest[["sex", "age"]])
    inside = stats.sums.continuous.products
    k, r = stats.cells[("A", "F")], inside.n_columns
    first = table["crp"].iloc[m]
    assert abs(inside.count[k] * inside.mean[k, r] - first) < 1e-9  # its value
    written = saved(stats)["continuous"]
    [domain] = written["whole"]["domains"]
    assert not np.array(domain["slopes"])[:, 0].any()
    assert np.array(written["own"]["0"]["domains"][0]["slopes"]).any()


def test_few_rows_tell_no_correlations():
    table = hospital("A").iloc[3:22]
    assert saved(of(table, confounders=None))["correlations"] == []
    assert len(saved(of(hospital("A"), confounders=None))["correlations"]) == 1
    rng = np.random.default_rng(0)
    wide = pd.DataFrame(rng.normal(size=(60, 40)), columns=[f"x{j}" for j in range(40)])
    [one] = saved(Statistics.of(wide, label="A"))["correlations"]  # one number for 32 features
    assert set(one) == {"domain", "typical"}


def test_numbers_of_equal_values_are_rounded():
    # yes or no: the means of the cells that are written tell how many of their rows are yes
    def numbers(value):
        table = hospital("A").assign(crp=0.0)
        table.loc[table["sex"] == "F", "crp"] = 1.0
        table.loc[:2, "crp"] = value  # the three rows that are left out
        [found] = [one for one in saved(of(table))["equal_values"] if one["feature"] == 0]
        return sorted(found["marks"])

    with pytest.warns(UserWarning, match="same value"):
        found = [*numbers(0.0), *numbers(1.0)]
    assert all(count % 5 == 0 for _, count in found)


@pytest.fixture(scope="module")
def forged():
    """Return documents with everything that a file can hold."""
    table = with_gaps(without_few(hospital("A", n=900)))
    table["wbc"] = (table["wbc"] > 1).astype(float)
    table["age"] = np.random.default_rng(0).uniform(20, 90, len(table))
    ages = {"confounders": ["sex", "age"], "ranges": {"age": (18, 95)}}
    return {
        "plain": saved(of(table, features=["wbc", "hb", "na"])),
        "ages": saved(of(table, given=["crp"], features=["crp", "hb"], **ages)),
    }


def change(document, path, value):
    """Return a document with another value at a path of keys."""
    document = copy.deepcopy(document)
    place = document
    for key in path[:-1]:
        place = place[key]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value(place[path[-1]]) if callable(value) else value
    return document


def negative(value):
    return -abs(value)


@pytest.mark.parametrize("claim", [10**6, 10**9, 2**53, 10**30])
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("plain", ["n_features"]),
        ("plain", ["equal_values", 0, "feature"]),
        ("plain", ["equal_values", 0, "marks", 0, 0]),
        ("ages", ["values", 0, "feature"]),
        ("ages", ["continuous", "basis", "n_knots"]),
        ("ages", ["continuous", "level"]),
    ],
)
def test_sizes_that_a_file_claims_take_neither_memory_nor_time(forged, kind, path, claim):
    document = change(forged[kind], path, claim)
    start = time.process_time()
    tracemalloc.start()
    with pytest.raises(FileError, match="features" if path[0] == "n_features" else path[0]):
        loaded(document)
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()
    assert time.process_time() - start < 1


def test_many_knots_are_refused_before_functions_are_made_of_them(forged):
    document = change(forged["ages"], ["continuous", "basis", "n_knots"], 3000)
    start = time.process_time()
    with pytest.raises(FileError, match=r"'continuous.basis.n_knots' must be at most 64. Got 3000"):
        loaded(document)
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("kind", "path", "value", "message"),
    [
        ("plain", ["shapes", 0, "kurtosis", 0], negative, r"'shapes\[0\].kurtosis' must be at"),
        ("plain", ["shapes", 0, "domain"], "B", "'shapes' are of a 'domain' without cells"),
        ("plain", ["cells", 0, "squares", 0], negative, "must be at least 0"),
        ("plain", ["cells", 0, "mean", 0], None, "lacks 'mean' of a feature that is known"),
        ("plain", ["cells", 0, "mean", 0], 1e80, "must be at most 1"),
        ("plain", ["cells", 0, "mean", 0], True, "must be numbers or null. Got True"),
        ("plain", ["cells", 0, "mean"], lambda row: row[:2], "of the shape 3. Got 2"),
        ("plain", ["cells", 0, "known", 0], 10**6, "'known' above its 'count'"),
        ("plain", ["cells", 0, "count"], 1, "'count' below 5, the fewest rows"),
        ("plain", ["cells", 0, "count"], 10**30, "must be at most 9007199254740992"),
        ("plain", ["cells", 0, "levels", 0], ["F"], r"levels\[0\]' must be text or"),
        ("plain", ["cells", 0, "levels"], ["F"], "a level of each category"),
        ("plain", ["cells", 1, "levels"], lambda _: ["F", "icu"], "'cells' must be different"),
        ("plain", ["cells", 0, "domain"], {}, r"'cells\[0\].domain' must be text or a finite"),
        ("plain", ["cells"], [], "'cells' must be a list of 1 or more"),
        ("plain", ["equal_values", 0, "marks", 0, 0], -1, "must be at least 0. Got -1"),
        ("plain", ["equal_values", 0, "marks", 0, 0], 256, "not a whole number below 256"),
        ("plain", ["equal_values", 0, "marks", 0, 0], 0.5, "not a whole number below 256"),
        ("plain", ["equal_values", 0, "marks", 0, 1], -1, "must be at least 0"),
        ("plain", ["equal_values", 0, "marks", 0, 1], 10**6, "more rows than 'cells'"),
        ("plain", ["equal_values", 0, "domain"], "B", "'domain' without cells"),
        ("plain", ["correlations", 0, "typical"], 1.1, "must be at most 1. Got 1.1"),
        ("plain", ["correlations", 0, "typical"], KeyError, "do not fit the schema of the file"),
        ("plain", ["correlations", 0, "domain"], "B", "occur twice, or no cell"),
        ("plain", ["feature_names", 0], "hb", "must be different. Got 'hb' twice"),
        ("plain", ["feature_names"], ["a"], "must be a list of 3, the number of features. Got 1"),
        ("plain", ["confounders", 0, "name"], "ward", "'confounders' has 'ward' twice"),
        ("plain", ["confounders", 0, "kind"], "odd", "one of 'categorical', 'continuous'"),
        ("plain", ["confounders", 0, "kind"], "continuous", "must have a 'range' from low to"),
        ("plain", ["masked", "rows"], -1, "'masked.rows' must be at least 0"),
        ("plain", ["masked"], KeyError, "'masked' is missing"),
        ("plain", ["largest_weight"], 0.5, "'largest_weight' must be at least 1"),
        ("plain", ["min_cell"], 1, "'min_cell' must be at least 3. Got 1"),
        ("plain", ["reference"], [], "'reference' must be text or"),
        ("plain", ["continuous"], KeyError, "'continuous' is missing"),
        ("ages", ["continuous"], None, "'continuous' does not fit the kinds of"),
        ("ages", ["confounders", 1, "range"], [95, 18], "'age' must have a 'range' from low"),
        ("ages", ["confounders", 1, "range"], [18, 90], "are not those of 'confounders'"),
        ("ages", ["values", 0, "counts", 0], 0, "must be above 0"),
        ("ages", ["values", 0, "counts", 0], 10**6, "'values' has more rows than 'cells'"),
        ("ages", ["values", 0, "levels"], ["X"], "has a cell twice, or one of no rows"),
        ("ages", ["values", 0, "ends", 0], [], "of the shape 2 x"),
        ("ages", ["continuous", "bins", 0, 0, 0], 10**6, "cannot be sums of the rows"),
        ("ages", ["continuous", "bins", 0, 0, 0], -1, "must be at least 0"),
        ("ages", ["continuous", "level"], 7, "do not fit 'level'"),
        ("ages", ["continuous", "level"], -1, "'continuous.level' must be from"),
        ("ages", ["continuous", "whole"], KeyError, "'continuous' lacks 'whole'"),
        ("ages", ["continuous", "whole", "mean", 0], [], "numbers of the shape"),
        ("ages", ["continuous", "whole", "domains"], [], "do not fit 'level'"),
        ("ages", ["continuous", "whole", "domains", 0, "root", 0, 0], 1e80, "must be at most 1.0"),
        ("ages", ["continuous", "curves"], lambda one: {"7": one["0"]}, "numbers below 2. Got '7'"),
        ("ages", ["continuous", "curves"], lambda one: {"x": one["0"]}, "numbers below 2. Got 'x'"),
        ("ages", ["continuous", "own"], [], "continuous.own' must be an object"),
        ("ages", ["continuous", "own"], {}, "'continuous.own' lacks a feature with gaps"),
    ],
)
def test_forged_numbers_are_refused_by_name(forged, kind, path, value, message):
    with pytest.raises(FileError, match=message) as caught:
        loaded(change(forged[kind], path, value))
    assert "\n" not in str(caught.value)


def odd_columns(rng, n):
    """Return columns whose sums are hard on rounding."""
    x = rng.normal(size=n)
    return {
        "constant": np.full(n, 0.1) * (1 + 1e-16 * rng.integers(0, 3, n)),
        "far": 1e9 + 1e-6 * x,
        "first": np.where(np.arange(n) == 0, 1e7, x),
        "last": np.where(np.arange(n) == n - 1, 1e6, 7.0),
        "ties": rng.integers(0, 2, n).astype(float),
        "tails": rng.standard_t(1.5, n),
        "small": 1e-30 * x,
    }


@pytest.mark.filterwarnings("ignore:One row holds", "ignore:All rows have the same value")
@pytest.mark.filterwarnings("ignore:How ", "ignore:Sums with ", "ignore:The second round")
@pytest.mark.parametrize("seed", range(12))
def test_whatever_rows_are_like_their_file_is_read(seed):
    rng = np.random.default_rng(seed)
    n, by_age = int(rng.integers(700, 900)), seed % 3 > 0
    table = pd.DataFrame(odd_columns(rng, n))
    features = list(table)
    table["age"] = np.full(n, 50.0) if seed % 3 == 1 else rng.uniform(20, 90, n)
    table["exact"] = 3 * table["age"]
    table = table.mask(rng.random(table.shape) < [0.0, 0.05][seed % 2]).assign(age=table["age"])
    table["sex"] = np.where(np.arange(n) % 7 > 2, "F", "M")
    confounders = ["age", "sex"][: 1 + seed % 2] if by_age else ["sex"]
    how = {"features": [*features, "exact"], "ranges": {"age": (18, 95)} if by_age else None}
    weights = rng.choice([0.5, 1.0, 2.0], n) if seed % 4 == 3 else None
    given = None if seed % 4 == 3 else ["tails", "last"]
    stats = Statistics.of(
        table, label="A", confounders=confounders, given=given, sample_weight=weights, **how
    )
    again = loaded(saved(stats))
    assert again.n_rows == stats.n_rows
    how["confounders"], how["given"], how["sample_weight"] = confounders, given, weights
    other = Statistics.of(table.iloc[::-1], label="B", **how)
    assert len(loaded(saved(again.merge(other))).cells) == 2 * len(stats.cells)
    if by_age:
        with pytest.raises(ValueError, match="partly from a file and partly from rows"):
            saved(again.merge(stats))


def test_a_file_that_stands_for_very_many_values_is_refused(forged, monkeypatch):
    from condokit.io import documents

    monkeypatch.setattr(documents, "MOST_VALUES", 300)
    document = {**forged["plain"], "equal_values": [], "correlations": []}
    assert loaded(document).labels == ["A"]
    with pytest.raises(FileError, match="it would take .* numbers in memory, which is too many"):
        loaded({**document, "equal_values": forged["plain"]["equal_values"]})


def test_values_that_no_file_can_hold_are_told_when_it_is_written(rng):
    stats = Statistics.of(rng.normal(size=(40, 2)), label="A")
    stats.sums.moments.mean *= 1e90
    with pytest.raises(ValueError, match=r"cannot be written: 'cells\[0\].mean' must be at"):
        saved(stats)


@pytest.mark.filterwarnings("ignore:How 'crp' depends:UserWarning")
@pytest.mark.parametrize("confounders", [["sex"], ["sex", "age"]])
def test_files_with_weights_and_missing_values_can_be_read(confounders):
    """Sums of weights in two orders differ by rounding; no value is known beyond all rows."""
    for seed in range(6):
        rng, table = np.random.default_rng(seed), hospital("A", seed)
        table["age"] = rng.uniform(20, 90, len(table))
        table.loc[rng.random(len(table)) < 0.1, "crp"] = np.nan
        ranges = {"age": (18, 95)} if "age" in confounders else None
        weights = rng.gamma(5, 0.2, len(table))
        document = saved(of(table, confounders=confounders, ranges=ranges, sample_weight=weights))
        assert Statistics.load(io.BytesIO(json.dumps(document).encode())).n_features == 4
        for cell in document["cells"]:
            assert cell["known"][0] < cell["count"]
            assert cell["known"][1:] == [cell["count"]] * 3
