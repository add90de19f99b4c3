"""Hospitals that share files in place of rows, as they do it from the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sites_made import FEATURES, SITES, hospital, without_few
from stories import piped, write_h5ad
from stories import told as run

from condokit import AffineMap, BatchAdapter, ConDoAdapter, Statistics
from condokit.io.documents import digest

ROLES = ["-c", "sex,ward", "-f", ",".join(FEATURES)]


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Three tables, of which each hospital has one."""
    monkeypatch.chdir(tmp_path)
    found = {label: hospital(label) for label in SITES}
    for label, table in found.items():
        table.to_csv(f"{label}.csv", index=False)
    return found


@pytest.fixture
def sites(tables, capsys):
    """The same, with a statistics file of each."""
    for label in tables:
        how = ["--label", label, *ROLES, "-o", f"{label}.json"]
        assert run(capsys, "stats", f"{label}.csv", *how)[0] == 0
    return tables


def in_memory(tables, labels):
    parts = [without_few(tables[label]).assign(site=label) for label in labels]
    return pd.concat(parts, ignore_index=True)


def test_two_hospitals_get_the_map_that_their_rows_would_give(sites, capsys):
    code, _, err = run(capsys, "fit", "B.json", "A.json", "--reference-label", "A", "-o", "m.json")
    assert code == 0
    assert "A diagonal map of 4 features from 257 query and 297 reference rows" in err
    assert "Not evaluated" in err
    both = in_memory(sites, "AB")
    adapter = ConDoAdapter(reference="A").fit(
        both, domain="site", confounders=["sex", "ward"], features=FEATURES
    )
    affine = AffineMap.load("m.json")
    errors = adapter.errors_  # numbers are rounded to a tenth of their standard errors
    assert (abs(affine.scale - adapter.map_.scale) < 0.15 * errors.of_scale).all()
    assert (abs(affine.offset - adapter.map_.offset) < 0.15 * errors.of_image).all()
    assert affine.feature_names == tuple(FEATURES)
    facts = dict(affine.provenance)
    assert [one["name"] for one in facts["files"]] == ["B.json", "A.json"]
    assert "data" not in facts  # nobody has seen the rows
    assert run(capsys, "apply", "m.json", "B.csv", "-o", "adapted.csv")[0] == 0
    new = sites["B"]
    np.testing.assert_allclose(
        pd.read_csv("adapted.csv")[FEATURES], adapter.transform(new[FEATURES]), atol=0.03
    )


def test_three_hospitals_get_the_maps_that_their_rows_would_give(sites, capsys):
    how = ["--reference-label", "A", "-o", "maps.json", "--json"]
    code, out, _ = run(capsys, "fit", "C.json", "A.json", "B.json", *how)
    assert code == 0
    assert json.loads(out)["reference"] == "A, as asked for"
    found = BatchAdapter.load("maps.json")
    table, roles = in_memory(sites, "ABC"), {"batch": "site", "confounders": ["sex", "ward"]}
    expected = BatchAdapter(reference="A").fit(table, features=FEATURES, **roles)
    for label, one in expected.maps_.items():
        np.testing.assert_allclose(found.maps_[label].scale, one.scale, rtol=0.01)
        np.testing.assert_allclose(found.maps_[label].offset, one.offset, atol=0.03)
    both = pd.concat([sites[label].assign(site=label) for label in "BC"])
    both.to_csv("new.csv", index=False)
    assert run(capsys, "apply", "maps.json", "new.csv", "--batch", "site", "-o", "out.csv")[0] == 0


def test_the_order_of_files_and_the_split_of_tables_change_nothing(sites, capsys):
    first, second = sites["B"].iloc[:101], sites["B"].iloc[101:]
    for name, part in (("b1", first), ("b2", second)):
        part.to_parquet(f"{name}.parquet", index=False)
    how = ["--label", "B", *ROLES, "-o", "again.json"]
    assert run(capsys, "stats", "b2.parquet", "b1.parquet", *how)[0] == 0
    reference = ["--reference-label", "A", "-o"]
    for files, name in ((("A.json", "B.json"), "1.json"), (("again.json", "A.json"), "2.json")):
        assert run(capsys, "fit", *files, *reference, name)[0] == 0
    one, two = AffineMap.load("1.json"), AffineMap.load("2.json")
    np.testing.assert_allclose(one.scale, two.scale, rtol=1e-10)
    np.testing.assert_allclose(one.offset, two.offset, atol=1e-10)


def test_one_table_with_all_domains_and_a_reference_in_the_file(tables, capsys):
    table = pd.concat([tables[label].assign(site=label) for label in "AB"])
    table.to_csv("all.csv", index=False)
    how = ["--domain", "site", "--reference-label", "A", *ROLES, "-o", "s.json", "--json"]
    code, out, _ = run(capsys, "stats", "all.csv", *how)
    assert code == 0
    facts = json.loads(out)
    assert facts["labels"] == ["A", "B"]
    assert facts["masked"] == {"cells": 2, "rows": 10}  # of 3 rows each
    code, _, err = run(capsys, "fit", "s.json", "--reference-label", "B", "-o", "m.json")
    assert code == 2
    assert "Files and --reference-label name 'A', 'B' as OLD" in err
    assert run(capsys, "fit", "s.json", "-o", "m.json")[0] == 0
    assert dict(AffineMap.load("m.json").provenance)["domains"] == {"query": "B", "reference": "A"}


def test_labels_that_are_numbers_are_named_as_they_are_written(tables, capsys):
    for label, name in ((1, "A"), (2, "B")):
        roles = {"confounders": ["sex", "ward"], "features": FEATURES}
        Statistics.of(tables[name], label=label, **roles).save(f"{label}.json")
    assert run(capsys, "fit", "1.json", "2.json", "--reference-label", "1", "-o", "m.json")[0] == 0
    assert dict(AffineMap.load("m.json").provenance)["domains"] == {"query": "2", "reference": "1"}


def test_h5ad_and_weights(tables, capsys, rng):
    write_h5ad(Path("cells.h5ad"), rng.normal(size=(9, 3)))
    how = ["--label", "A", "-c", "sex", "--min-cell", 3, "-o", "cells.json"]
    code, _, err = run(capsys, "stats", "cells.h5ad", *how)
    assert code == 0
    assert list(Statistics.load("cells.json").cells) == [("A", "F"), ("A", "M")]
    assert "Features (3): 'g0', 'g1', 'g2'" in err
    table = tables["A"].assign(times=2)
    table.to_csv("w.csv", index=False)
    how = ["--label", "A", *ROLES, "--weights", "times", "-o", "w.json"]
    assert run(capsys, "stats", "w.csv", *how)[0] == 0
    assert Statistics.load("w.json").n_rows == {"A": 594}  # the cell of 3 rows counts for 6


def test_a_table_larger_than_a_batch_is_read_in_parts(tables, capsys, monkeypatch):
    from condokit.io import formats

    def number_of_updates(values):
        monkeypatch.setattr(formats, "_VALUES", values)
        calls.clear()
        how = ["--label", "A", *ROLES, "-o", f"{values}.json", "-q"]
        assert run(capsys, "stats", "A.parquet", *how)[0] == 0
        return len(calls)

    calls, update = [], Statistics.update
    monkeypatch.setattr(Statistics, "update", lambda *a, **k: calls.append(1) or update(*a, **k))
    tables["A"].to_parquet("A.parquet", index=False)
    assert number_of_updates(1 << 21) == 1
    assert number_of_updates(7 * 64) == 5
    one, many = (Path(name).read_text() for name in (f"{1 << 21}.json", "448.json"))
    assert one == many  # numbers are rounded


def test_show_tells_in_plain_words_what_a_file_reveals(sites, capsys, monkeypatch):
    code, out, _ = run(capsys, "show", "A.json")
    assert code == 0
    assert "This file contains no single row" in out
    assert "Rows: about 300 of 'A'." in out
    assert "'sex' ('F', 'M'), 'ward' ('icu', 'surgery')" in out
    assert "burns" not in out
    smallest = without_few(sites["A"]).groupby(["sex", "ward"]).size().min()
    assert "Cells: 4, each a domain with one level of every category." in out
    assert f"The smallest has {smallest} rows." in out
    assert "Left out: 1 cell, 5 rows at most, with fewer than 5 rows (min_cell = 5)" in out
    assert "skewness and kurtosis of features" in out
    assert "rounded to about a tenth of their standard error" in out
    assert "condokit wrote only sums of which no combination rests on few rows" in out
    assert "differ by 1 to 4 rows" in out
    facts = json.loads(run(capsys, "show", "A.json", "--json")[1])
    assert facts["masked"] == {"cells": 1, "rows": 5}
    assert facts["domains"] == {"A": 300}
    assert piped(Path("A.json").read_bytes(), monkeypatch, "show", "-") == (0, out.encode())


def test_what_stands_out_is_warned_of_and_shown(tables, capsys):
    table = tables["A"].copy()
    icu = (table["ward"] == "icu") & (table["sex"] == "F")
    table.loc[icu.idxmax(), "crp"] = 1e4
    table.loc[icu, "na"] = 140.0
    table.to_csv("odd.csv", index=False)
    code, _, err = run(capsys, "stats", "odd.csv", "--label", "A", *ROLES, "-o", "odd.json")
    assert code == 0
    assert "warning: One row holds 80% or more of the squared deviations of 'crp' in A / F" in err
    assert "warning: All rows have the same value of 'na' in A / F / icu" in err
    out = run(capsys, "show", "odd.json")[1]
    assert "- All rows have the same value of 'na' in A / F / icu" in out


def test_tails_that_a_file_must_not_tell_are_shown(tables, capsys):
    table = tables["A"].copy()
    table.loc[5, "crp"] = 1e4
    table.to_csv("odd.csv", index=False)
    how = ["--label", "A", "-f", "crp,hb", "-o", "odd.json"]
    assert "One row holds 80% or more" in run(capsys, "stats", "odd.csv", *how)[2]
    out = run(capsys, "show", "odd.json")[1]
    assert "- A few rows hold most of the squared deviations of 'crp' in A: such values" in out


def test_a_second_release_with_a_few_more_rows_is_warned_of(sites, capsys):
    more = pd.concat([sites["A"], hospital("A", seed=5, n=8).iloc[3:5]])
    more.to_csv("more.csv", index=False)
    how = ["more.csv", "--label", "A", *ROLES, "-o", "A.json"]
    assert run(capsys, "stats", *how)[0] == 2  # it exists
    code, _, err = run(capsys, "stats", *how, "--force")
    assert code == 0
    assert "by fewer than 5 rows: 'A / " in err
    run(capsys, "stats", "A.csv", "--label", "A", *ROLES, "-o", "old.json")
    how = ["A.csv", "--label", "A", *ROLES, "-o", "new.json", "--previous", "A.json"]
    assert "by fewer than 5 rows: 'A / " in run(capsys, "stats", *how)[2]  # at another place
    out = run(capsys, "show", "old.json", "--previous", "A.json")[1]
    assert "- Together with A.json, this file reveals what fewer than 5 rows are like: 'A / " in out
    assert "With " not in run(capsys, "show", "old.json", "--previous", "B.json")[1]
    assert run(capsys, "stats", *how[:-1], "gone.json", "--force")[0] == 2
    code, _, err = run(
        capsys, "fit", "A.json", "old.json", "B.json", "--reference-label", "A", "-o", "m.json"
    )
    assert code == 0
    assert "Two parts of 'A' look like the same rows at two times" in err


def write_forged(path, document):
    """Write a file as an attacker does, with a hash that fits."""
    Path(path).write_text(json.dumps({**document, "sha256": digest(document)}))


REFUSED = [
    (["A.json", "A.json"], "The same statistics are given twice"),
    (["A.json", "other.json"], "'hb' in one part only"),
    (["A.json", "gone.json"], "gone.json does not exist"),
    (["A.json", "empty.json"], "empty.json is not a statistics file"),
    (["A.json", "newer.json"], "written by a newer condokit (9.0; schema 3"),
    (["A.json", "changed.json"], "changed.json was changed or damaged"),
    (["A.json", "knots.json"], "knots.json is damaged: 'continuous.basis' is missing"),
    (["A.json", "claim.json"], "must be a list of 1000000000, the number of features. Got 4."),
    (["A.json", "squares.json"], "'cells[0].squares' must be at least 0. Got -1."),
    (["A.json", "m.csv"], "or statistics files alone"),
    (["A.json", "map.json"], "its 'format' is not 'condokit-statistics'"),
    (["A.json"], "All statistics are of 'A'"),
    (["A.json", "B.json", "-c", "sex"], "--confounders cannot be used with statistics files"),
    (["A.json", "B.json", "--report", "r.html"], "--report cannot be used with statistics files"),
    (["A.json", "B.json", "--bootstrap", "9"], "--bootstrap cannot be used with statistics files"),
    (["A.json", "B.json", "--map", "affine"], "This needs single rows"),
    (["A.json", "B.json", "--reference-label", "Z"], "the domain labels are 'A', 'B'"),
    (["A.json", "B.json", "--reference-label", ""], "Say with --reference-label which is OLD"),
]


@pytest.mark.parametrize(("arguments", "text"), REFUSED)
def test_files_that_cannot_be_fitted_are_refused_and_nothing_is_written(
    sites, capsys, arguments, text
):
    how = ["--label", "B", "-c", "sex,ward", "-f", "crp,na,wbc", "-o", "other.json"]
    assert run(capsys, "stats", "B.csv", *how)[0] == 0
    Path("empty.json").write_text("")
    Path("map.json").write_text('{"format": "condokit-map"}')
    written = Path("B.json").read_text()
    newer = written.replace('"schema": 2', '"schema": 3')
    Path("newer.json").write_text(newer.replace('"condokit": "', '"condokit": "9.0", "x": "'))
    Path("changed.json").write_text(written.replace('"count": ', '"count": 1'))
    forged = json.loads(written)
    forged["cells"][0]["squares"][0] = -1.0
    write_forged("squares.json", forged)
    write_forged("claim.json", {**json.loads(written), "n_features": 10**9})
    write_forged("knots.json", {**json.loads(written), "continuous": {"products": {}}})
    before = sorted(os.listdir())
    if "--reference-label" not in arguments:
        arguments = [*arguments, "--reference-label", "A"]
    code, out, err = run(capsys, "fit", *arguments, "-o", "out.json")
    assert code == 2
    assert text in err
    assert not out
    assert "Traceback" not in err
    assert sorted(os.listdir()) == before


WRONG = [
    (["A.csv"], "Give --domain COLUMN"),
    (["A.csv", "--label", "A", "--domain", "sex"], "Give --domain COLUMN"),
    (["A.csv", "gone.csv", "--label", "A"], "gone.csv does not exist"),
    (["A.csv", "A.csv", "--label", "A"], "named twice"),
    (["A.csv", "empty.csv", "--label", "A"], "empty.csv is empty"),
    (["A.csv", "header.csv", "--label", "A"], "header.csv has no rows"),
    (["A.csv", "less.csv", "--label", "A"], "less.csv has no column 'hb'"),
    (["text.csv", "--label", "A"], "'crp' should hold numbers, but there is text in it: 'high'"),
    (["A.csv", "text.csv", "--label", "A"], "'crp' should hold numbers"),
    (["A.csv", "--label", "A", "--range", "age=9:3"], "write NAME=LOW:HIGH"),
    (["A.csv", "--label", "A", "--range", "age=9:30"], "'age' is not a numeric confounder"),
    (["A.csv", "--label", "A", "-c", "grade"], "has no column 'grade'"),
    (["A.csv", "--label", "A", "--min-cell", "2"], "2 is not in the range x>=3"),
    (["A.csv", "--label", "A", "--min-cell", "900"], "every cell has fewer than 900 rows"),
    (["gaps.csv", "--label", "A"], "Confounder 'sex' has 10 missing values"),
    (["A.csv", "aged.csv", "--label", "A", "-c", "stage"], "has no column 'stage'"),
    (["aged.csv", "--label", "A", "-c", "stage"], "declare it with :cat; otherwise"),
    (["staged.csv", "--label", "A", "-c", "stage"], "say -c stage:cat if they are categories"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG)
def test_tables_that_cannot_be_gathered_are_refused_and_nothing_is_written(
    tables, capsys, monkeypatch, arguments, text
):
    table = tables["A"]
    Path("empty.csv").write_text("")
    table.iloc[:0].to_csv("header.csv", index=False)
    table.drop(columns="hb").to_csv("less.csv", index=False)
    table.assign(crp=["high", *table["crp"][1:]]).to_csv("text.csv", index=False)
    table.assign(sex=[None] * 10 + list(table["sex"][10:])).to_csv("gaps.csv", index=False)
    table.assign(stage=np.arange(len(table)) % 5).to_csv("aged.csv", index=False)
    staged = table.assign(stage=np.repeat([1, 2, 3], 100))  # two values in the first batch
    staged.to_parquet("staged.parquet", index=False)
    if "staged.csv" in arguments:
        from condokit.io import formats

        monkeypatch.setattr(formats, "_VALUES", 8 * 150)
        arguments = ["staged.parquet", *arguments[1:]]
    before = sorted(os.listdir())
    code, out, err = run(capsys, "stats", *arguments, *ROLES, "-o", "out.json")
    assert code == 2
    assert text in err
    assert not out
    assert sorted(os.listdir()) == before


@pytest.fixture
def aged(tables):
    """The same tables with an age on which features depend."""
    for label, table in tables.items():
        age = np.random.default_rng(len(table)).uniform(20, 90, len(table))
        table["age"] = age
        table[FEATURES] += SITES[label][2] * age[:, None] / 20
        table.to_csv(f"{label}.csv", index=False)
    return tables


def test_ages_take_a_declared_range(aged, capsys):
    ages = ["-c", "sex,age", "-f", ",".join(FEATURES), "--range", "age=18:95"]
    for label in aged:
        how = ["--label", label, *ages, "-o", f"{label}.json"]
        assert run(capsys, "stats", f"{label}.csv", *how)[0] == 0
    out = run(capsys, "show", "A.json")[1]
    assert "'age' (numbers, declared to lie between 18 and 95)" in out
    assert "For 'age' in each cell" in out
    assert "how features depend on these" in out
    assert run(capsys, "fit", "A.json", "B.json", "--reference-label", "A", "-o", "m.json")[0] == 0
    both = pd.concat([aged[label].assign(site=label) for label in "AB"])
    whole = ConDoAdapter(reference="A").fit(
        both, domain="site", confounders=["sex", "age"], features=FEATURES
    )
    apart = abs(AffineMap.load("m.json").scale - whole.map_.scale)
    assert (apart < 0.1 * whole.errors_.scale).all()
    how = ["--label", "A", *ages[:-1], "age=18:80", "-o", "no.json"]
    code, _, err = run(capsys, "stats", "A.csv", *how)
    assert code == 2
    assert "outside its declared range 18 to 80" in err
    assert "wider range at every site with --range" in err
    how = ["--label", "B", *ages[:-1], "age=10:95", "-o", "other.json"]
    assert run(capsys, "stats", "B.csv", *how)[0] == 0
    code, _, err = run(capsys, "fit", "A.json", "other.json", "--reference-label", "A", "-o", "no")
    assert code == 2
    assert "from 18 to 95 in one part and continuous from 10 to 95 in another" in err


def test_a_first_batch_with_two_ages_is_of_numbers(aged, capsys, monkeypatch):
    from condokit.io import formats

    aged["A"].sort_values("age").to_parquet("A.parquet", index=False)
    monkeypatch.setattr(formats, "_VALUES", 8 * 2)  # two rows at a time
    ages = ["-c", "sex,age", "-f", ",".join(FEATURES), "--range", "age=18:95"]
    assert run(capsys, "stats", "A.parquet", "--label", "A", *ages, "-o", "A.json")[0] == 0
    assert Statistics.load("A.json").confounders == {"sex": "categorical", "age": "continuous"}


def test_levels_that_are_spelled_in_two_ways_are_named(tables, capsys):
    names = {"F": "female", "M": "male"}
    for label, table in tables.items():
        table = table if label == "A" else table.assign(sex=table["sex"].map(names))
        table.to_csv(f"{label}.csv", index=False)
        how = ["--label", label, *ROLES, "-o", f"{label}.json"]
        assert run(capsys, "stats", f"{label}.csv", *how)[0] == 0
    for files in (["A.json", "B.json"], ["A.json", "B.json", "C.json"]):
        code, _, err = run(capsys, "fit", *files, "--reference-label", "A", "-o", "m.json")
        assert code == 3
        assert "'F' and 'female', 'M' and 'male'" in err
    assert not Path("m.json").exists()


def test_other_units_are_warned_of(sites, capsys):
    table = sites["B"].assign(crp=1e4 * sites["B"]["crp"])
    table.to_csv("mg.csv", index=False)
    run(capsys, "stats", "mg.csv", "--label", "B", *ROLES, "-o", "mg.json")
    how = ["--reference-label", "A", "-o", "m.json"]
    code, _, err = run(capsys, "fit", "A.json", "mg.json", *how)
    assert code == 0
    assert "Values of 'crp' are more than 1000 times larger" in err


def test_a_command_that_is_ended_leaves_nothing(tables):
    before = sorted(os.listdir())
    command = [sys.executable, "-m", "condokit", "stats", "-", "--label", "A", *ROLES]
    process = subprocess.Popen(
        [*command, "-o", "big.json"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    process.stdin.write(Path("A.csv").read_bytes())
    process.stdin.flush()  # and more is to come
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) != 0
    process.stdin.close()
    assert sorted(os.listdir()) == before


def test_heavy_tails_take_a_second_round(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    parts = []
    for k, label in enumerate("AB"):
        sex, ward = rng.integers(0, 2, 2000), rng.integers(0, 2, 2000)
        tails, plain = rng.standard_t(3, 2000) + sex, rng.normal(size=2000) + ward
        table = {"sex": np.array(["F", "M"])[sex], "ward": ward, "crp": tails, "hb": plain}
        parts.append(pd.DataFrame(table).assign(crp=lambda t, k=k: (1 + 0.3 * k) * t["crp"] + k))
        parts[-1].to_csv(f"{label}.csv", index=False)
    roles = ["-c", "sex,ward:cat", "-f", "crp,hb"]
    for label in "AB":
        run(capsys, "stats", f"{label}.csv", "--label", label, *roles, "-o", f"{label}1.json")
    fit = ["--reference-label", "A", "-o"]
    code, _, err = run(capsys, "fit", "A1.json", "B1.json", *fit, "first.json")
    assert code == 0
    assert "Heavy tails" in err
    assert "--given" in err
    for label in "AB":
        how = ["--label", label, *roles, "--given", "first.json", "-o", f"{label}2.json"]
        assert run(capsys, "stats", f"{label}.csv", *how)[0] == 0
    code, _, err = run(capsys, "fit", "A2.json", "B2.json", *fit, "second.json")
    assert code == 0
    assert "Heavy tails" not in err
    both = pd.concat([part.assign(site=label) for part, label in zip(parts, "AB")])
    whole = ConDoAdapter(reference="A", categorical=["ward"]).fit(
        both, domain="site", confounders=["sex", "ward"], features=["crp", "hb"]
    )
    first, second = (AffineMap.load(f"{name}.json") for name in ("first", "second"))
    away = [abs(one.scale - whole.map_.scale) / whole.map_se_["scale"] for one in (first, second)]
    assert away[0][0] > 0.3
    assert max(away[1]) < 0.2
    how = ["--label", "A", *roles, "--given", "second.json", "-o", "A3.json"]
    assert "nothing more is needed" in run(capsys, "stats", "A.csv", *how)[2]
