"""A table for each batch, a batch that comes later, and rows that are not as they were."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from batches_made import Made
from stories import told as run

from condokit import BatchAdapter, ConDoAdapter, IdentifiabilityWarning, Statistics, load_map

STUDY = ["--reference-label", "A", "-c", "group", "-f", "f*"]


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = Made(1, [(0, 1), (0, 1), (1, 2), (0, 1)])
    made.table = made.table.drop(columns="years")
    made.table.to_csv("all.csv", index=False)
    for site, rows in made.table.groupby("site"):
        rows.drop(columns="site").to_csv(f"{site}.csv", index=False)
    return made


def part(made, sites):
    return made.table[made.table["site"].isin([*sites])]


def fitted(capsys, *more, path="maps.json"):
    assert run(capsys, "fit", "A.csv", "B.csv", "C.csv", *STUDY, "-q", "-o", path, *more)[0] == 0
    return BatchAdapter.load(path)


def test_a_table_for_each_batch_is_a_study(made, capsys):
    adapter = fitted(capsys)
    part(made, "ABC").to_csv("three.csv", index=False)
    assert run(capsys, "fit", "three.csv", "--batch", "site", *STUDY, "-q", "-o", "m.json")[0] == 0
    assert BatchAdapter.load("m.json").maps_ == adapter.maps_
    code, out, _ = run(capsys, "check", "A.csv", "B.csv", "C.csv", *STUDY)
    assert (code, "Pairs of batches" in out) == (0, True)
    assert run(capsys, "plan", "A.csv", "B.csv", "C.csv", *STUDY, "-n", "2")[0] == 0
    assert run(capsys, "report", "A.csv", "B.csv", "C.csv", *STUDY, "-o", "r.html")[0] == 0
    assert "C.csv" in Path("r.html").read_text()


def test_small_numbers_of_bridges_are_hidden_in_all_that_is_printed(made, capsys):
    rows = part(made, "AB").assign(who=[f"p{k}" for k in range(len(part(made, "AB")))])
    for site in "AB":  # two people were measured at both
        rows.loc[rows.index[rows["site"] == site][:2], "who"] = ["one", "two"]
    rows.to_csv("two.csv", index=False)
    data = ["two.csv", "--batch", "site", *STUDY, "--bridge", "who"]
    printed = [run(capsys, "check", *data)[1], run(capsys, "fit", *data, "-o", "m.json")[2]]
    printed.append(run(capsys, "show", "m.json")[1])
    for text in printed:
        assert any(
            "<5" in line for line in text.splitlines() if line.strip()[:5] in ("A - B", "B    ")
        )
    records = [run(capsys, "check", *data, "--json")[1], run(capsys, "show", "m.json", "--json")[1]]
    records.append(run(capsys, "fit", *data, "-o", "n.json", "--json")[1])
    counts = [re.findall(r'"bridges": (?:\[\s*)?("<5"|[1-9]\d*)', text) for text in records]
    assert counts == [['"<5"']] * 3


def test_labels_of_tables(made, capsys):
    labels = ["--labels", "x,y,z", "--reference-label", "y", "-c", "group", "-f", "f*", "-q"]
    assert run(capsys, "fit", "A.csv", "B.csv", "C.csv", *labels, "-o", "m.json")[0] == 0
    assert list(BatchAdapter.load("m.json").maps_) == ["x", "y", "z"]


def test_a_column_that_is_text_in_one_table_is_no_feature(made, capsys):
    rows = part(made, "B").drop(columns="site")
    rows["f3"] = rows["f3"].astype(object)
    rows.iloc[0, rows.columns.get_loc("f3")] = "broken"
    rows.to_csv("B.csv", index=False)
    data = ["A.csv", "B.csv", "--reference-label", "A", "-c", "group", "-o", "m.json"]
    code, _, err = run(capsys, "fit", *data)
    assert code == 0
    assert "'f3' (not a number)" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["A.csv", "B.csv", "--reference", "C.csv"], "a table for each batch"),
        (["A.csv", "B.csv", "--batch", "site"], "has no column 'site'"),
        (["A.csv", "B.csv", "--labels", "x"], "need different --labels"),
        (["A.csv", "./A.csv"], "different --labels"),
        (["A.csv", "B.csv"], "--reference-label must name"),
        (["A.csv", "B.csv", *STUDY, "--adapted", "x.csv"], "use condokit apply"),
        (
            ["all.csv", "--batch", "site", *STUDY, "--labels", "x"],
            "--labels can only be used with several",
        ),
        (["-", "-", *STUDY], "Standard input"),
        (["B.csv", "--reference", "A.csv", "-f", "f0", "f1"], "Quote patterns, so that the shell"),
    ],
)
def test_tables_that_are_no_study(made, capsys, arguments, message):
    code, _, err = run(capsys, "fit", *arguments, "-o", "m.json")
    assert code == 2
    assert message in err
    assert not Path("m.json").exists()


def test_a_batch_that_comes_later(made, capsys):
    adapter = fitted(capsys)
    add = ["add", "maps.json", "D.csv", "--label", "D", "--known", "A.csv", "-c", "group"]
    code, _, err = run(capsys, *add, "-o", "maps2.json")
    assert code == 0
    assert "D > A" in err
    assert "D: better. A value is systematically off by about" in err
    found = BatchAdapter.load("maps2.json")
    rows = part(made, "AD")
    adapter.add_batch(rows, batch="site", confounders="group")
    assert found.maps_ == adapter.maps_
    [added] = found.provenance_["additions"]
    assert (added["label"], added["compared_with"]) == ("D", ("A",))
    assert [one["name"] for one in added["files"]] == ["maps.json", "D.csv", "A.csv"]
    record = json.loads(run(capsys, *add, "-o", "maps3.json", "--json")[1])
    assert (record["map"], record["verdict"]) == ("maps3.json", "better")
    rows.to_csv("AD.csv", index=False)
    one = ["add", "maps.json", "AD.csv", "--batch", "site", "-c", "group", "-q", "-o", "m4.json"]
    assert run(capsys, *one)[0] == 0
    assert BatchAdapter.load("m4.json").maps_ == found.maps_
    part(made, "A").to_csv("A_with_site.csv", index=False)  # several tables with a column of labels
    part(made, "D").to_csv("D_with_site.csv", index=False)
    two = ["add", "maps.json", "D_with_site.csv", "--known", "A_with_site.csv", "--batch", "site"]
    assert run(capsys, *two, "-c", "group", "-q", "-o", "m5.json")[0] == 0
    assert BatchAdapter.load("m5.json").maps_ == found.maps_
    for new in ("D.csv", "D_with_site.csv"):  # --label for NEW, --batch for the known table
        named = [*two[:2], new, "--label", "D", *two[3:]]
        assert run(capsys, *named, "-c", "group", "-q", "--force", "-o", "m6.json")[0] == 0
        assert BatchAdapter.load("m6.json").maps_ == found.maps_


def test_a_batch_that_comes_later_is_fitted_as_the_others_were(made, capsys):
    fitted(capsys, "--map", "shift")
    add = ["add", "maps.json", "D.csv", "--known", "A.csv", "-c", "group", "-q", "-o", "m2.json"]
    assert run(capsys, *add)[0] == 0
    assert (BatchAdapter.load("m2.json").maps_["D"].scale == 1).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--label", "D"], "with --known, or --batch"),
        (["--label", "B", "--known", "A.csv"], "--label B: maps.json has its map already"),
        (["--label", "D", "--known", "all.csv"], "'all' has no map; known are 'A', 'B', 'C'."),
        (["--known", "A.csv", "--tolerance", "x=1"], "names 'x', which is no feature"),
        (["--known", "A.csv", "--known-label", "A", "--batch", "site"], "does not go with --batch"),
        (["--known", "A.csv", "--known-label", "A,B"], "has no map"),
        (["--known", "A.csv", "-c", "sex"], "has no column 'sex'"),
    ],
)
def test_what_cannot_be_added(made, capsys, arguments, message):
    fitted(capsys)
    code, _, err = run(capsys, "add", "maps.json", "D.csv", *arguments, "-o", "m.json")
    assert code == 2
    assert message in err
    assert not Path("m.json").exists()


@pytest.mark.parametrize(("limit", "code"), [("0.001", 4), ("1000", 0)])
def test_limits_of_a_batch_that_comes_later(made, capsys, limit, code):
    fitted(capsys)
    add = ["add", "maps.json", "D.csv", "--known", "A.csv", "-c", "group", "-o", "m.json"]
    limits = ["--tolerance", f"f0={limit}", "--require", "within limits"]
    found, _, err = run(capsys, *add, *limits)
    assert found == code
    assert Path("m.json").exists() == (code == 0)
    assert "to be within limits: 'f0'" in err if code else re.search(r"D +f0 +1000 .* yes ", err)


def test_a_table_of_several_batches_is_not_taken_for_one(made, capsys):
    rows = pd.concat([pd.read_csv(f"{site}.csv").assign(site=site) for site in "ABC"])
    rows.to_csv("ABC.csv", index=False)
    data = ["--batch", "site", "--reference-label", "A", "-c", "group"]
    assert run(capsys, "fit", "ABC.csv", *data, "-q", "-o", "of_one.json")[0] == 0
    add = ["add", "of_one.json", "D.csv", "--label", "D", "--known", "ABC.csv", "-c", "group"]
    code, _, err = run(capsys, *add, "--known-label", "A", "-o", "m.json")
    assert code == 2
    assert "ABC.csv has rows of 'A', 'B', 'C' in its column 'site', not of 'A' alone: give" in err


def test_one_map_cannot_be_added_to(made, capsys):
    pair = ["B.csv", "--reference", "A.csv", "-c", "group", "-f", "f*", "-q", "-o", "one.json"]
    assert run(capsys, "fit", *pair)[0] == 0
    code, _, err = run(capsys, "add", "one.json", "D.csv", "--known", "A.csv", "-o", "m.json")
    assert code == 2
    assert "many batches" in err
    code, _, err = run(capsys, "apply", "one.json", "B.csv", "--batch-label", "B", "-o", "b.csv")
    assert code == 2
    assert "no batches" in err


def test_rows_of_one_batch_need_no_column(made, capsys):
    adapter = fitted(capsys)
    code, _, err = run(capsys, "apply", "maps.json", "B.csv", "-o", "out.csv")
    assert code == 2
    assert "--batch-label" in err
    assert run(capsys, "apply", "maps.json", "B.csv", "--batch-label", "B", "-o", "out.csv")[0] == 0
    expected = adapter.transform(part(made, "B"), batch="site")
    np.testing.assert_allclose(pd.read_csv("out.csv")[made.features], expected, rtol=1e-12)
    back = ["apply", "maps.json", "out.csv", "--batch-label", "B", "--inverse", "-o", "back.csv"]
    assert run(capsys, *back)[0] == 0
    again = pd.read_csv("back.csv")[made.features]
    np.testing.assert_allclose(again, part(made, "B")[made.features], rtol=1e-9)
    code, _, err = run(capsys, "apply", "maps.json", "B.csv", "--batch-label", "b", "-o", "o.csv")
    assert code == 2
    assert "Did you mean 'B'?" in err


def test_rows_of_a_study_are_looked_at(made, capsys):
    fitted(capsys)
    rows = part(made, "ABC").copy()
    rows.loc[rows["site"] == "B", made.features] *= 10
    rows.to_csv("ten.csv", index=False)
    apply = ["apply", "maps.json", "ten.csv", "--batch", "site"]
    code, _, err = run(capsys, *apply, "-o", "out.csv")
    assert code == 0
    assert "warning: B: spread changed: 'f0'" in err
    assert "A: " not in err
    code, _, err = run(capsys, *apply, "-o", "none.csv", "--fail-on", "look")
    assert code == 4
    assert "B: spread changed" in err
    assert not Path("none.csv").exists()
    code, _, err = run(capsys, *apply, "-o", "-", "--fail-on", "look")
    assert code == 2
    part(made, "ABC").to_csv("good.csv", index=False)
    good = ["apply", "maps.json", "good.csv", "--batch", "site", "--fail-on", "unknown"]
    assert run(capsys, *good, "-o", "good-out.csv")[0] == 0


def test_check_of_a_map_and_rows(made, capsys):
    fitted(capsys)
    data = ["check", "maps.json", "all.csv", "--batch", "site"]
    code, _, err = run(capsys, *data)
    assert code == 2
    assert "'D', for which there is no map" in err
    assert "with condokit add" in err
    code, out, _ = run(capsys, "check", "maps.json", "B.csv", "--batch-label", "B")
    assert code == 0
    assert out.startswith("As fitted")
    rows = part(made, "B").drop(columns="f0")
    rows.to_csv("less.csv", index=False)
    code, out, _ = run(capsys, "check", "maps.json", "less.csv", "--batch", "site", "--json")
    assert code == 3
    assert json.loads(out)["missing_columns"] == ["f0"]
    rows = part(made, "B").copy()
    rows[made.features] += 50
    rows.to_csv("far.csv", index=False)
    far = ["check", "maps.json", "far.csv", "--batch", "site"]
    code, out, _ = run(capsys, *far)
    assert (code, out.split(":")[0]) == (0, "Look")
    assert run(capsys, *far, "--fail-on", "look")[0] == 4
    pair = ["B.csv", "--reference", "A.csv", "-c", "group", "-f", "f*", "-q", "-o", "one.json"]
    assert run(capsys, "fit", *pair)[0] == 0
    code, out, _ = run(capsys, "check", "one.json", "far.csv", "--json")
    assert (code, json.loads(out)["verdict"]) == (0, "look")
    expected = load_map("one.json").check(rows).to_dict()
    assert json.loads(out)["findings"] == expected["findings"]
    code, _, err = run(capsys, "check", "one.json", "far.csv", "--batch-label", "B")
    assert (code, "no batches" in err) == (2, True)
    assert run(capsys, "check", "one.json")[0] == 2
    code, _, err = run(capsys, "check", "A.csv", "B.csv", *STUDY, "--fail-on", "look")
    assert (code, "need a map" in err) == (2, True)


def test_check_in_python_is_that_of_the_command(made, capsys):
    adapter = fitted(capsys)
    rows = part(made, "ABC").copy()
    rows.loc[rows["site"] == "C", "f1"] += 100
    rows.to_csv("rows.csv", index=False)
    _, out, _ = run(capsys, "check", "maps.json", "rows.csv", "--batch", "site", "--json")
    found = adapter.check(rows, batch="site")
    assert json.loads(out)["findings"] == found.to_dict()["findings"]
    assert found.verdict == "look"
    assert {row["batch"] for row in found.features.rows() if row["note"]} == {"C"}
    assert all(finding.text.startswith("C: ") for finding in found.findings[:2])
    assert adapter.check(rows[rows["site"] == "A"], batch="site").verdict == "as fitted"


def test_what_is_required_of_a_map(made, capsys):
    same = part(made, "A").drop(columns="site")
    same.to_csv("A2.csv", index=False)
    fit = ["fit", "A2.csv", "--reference", "A.csv", "-c", "group", "-f", "f*", "-o", "m.json"]
    code, _, err = run(capsys, *fit, "--require", "better")
    assert code == 4
    assert "nothing is written" in err
    assert not Path("m.json").exists()
    assert run(capsys, *fit, "--require", "not worse")[0] == 0
    study = ["fit", "A.csv", "B.csv", *STUDY, "--require", "better", "-o", "two.json"]
    assert run(capsys, *study)[0] == 0


def test_old_may_be_statistics(made, capsys):
    stats = ["stats", "A.csv", "--label", "A", "-c", "group", "-f", "f*", "-o", "A.json"]
    assert run(capsys, *stats)[0] == 0
    code, _, err = run(capsys, "fit", "B.csv", "--reference", "A.json", "-o", "m.json")
    assert code == 0
    assert "Not evaluated" in err
    rows = part(made, "B")
    new = Statistics.of(rows, label="B", confounders=["group"], features=made.features)
    parts = [new, Statistics.load("A.json")]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", IdentifiabilityWarning
        )  # of a feature that looks heavy-tailed
        expected = ConDoAdapter(reference="A").fit_statistics(parts).map_
    assert load_map("m.json") == expected
    code, _, err = run(capsys, "fit", "B.csv", "--reference", "A.json", "-c", "f0", "-o", "n.json")
    assert code == 2
    assert "has the confounders 'group'" in err


def test_exports_of_a_study(made, capsys, monkeypatch):
    adapter = fitted(capsys)
    code, _, err = run(capsys, "export", "maps.json", "--sql", "-")
    assert (code, "--batch" in err) == (2, True)
    code, out, _ = run(capsys, "export", "maps.json", "--sql", "-", "--batch", "site")
    assert code == 0
    duck = pytest.importorskip("duckdb").connect()
    rows = part(made, "ABC").reset_index(drop=True)
    duck.register("incoming", rows)
    mapped = duck.execute(out).df()
    np.testing.assert_allclose(mapped, adapter.transform(rows, batch="site"), rtol=1e-12)
    spark = ["export", "maps.json", "--sql", "-", "--batch", "site", "--dialect", "spark"]
    assert "CASE `site` WHEN 'A' THEN" in run(capsys, *spark)[1]
    code, _, err = run(capsys, "export", "maps.json", "--python", "adapt.py")
    assert (code, "many batches need a folder" in err) == (2, True)
    folders = ["--python", "py/", "--r", "r/", "--onnx", "onnx/", "--float32", "--named"]
    assert run(capsys, "export", "maps.json", *folders)[0] == 0
    assert sorted(p.name for p in Path("r").iterdir()) == ["A.R", "B.R", "C.R"]
    assert sorted(p.name for p in Path("onnx").iterdir()) == ["A.onnx", "B.onnx", "C.onnx"]
    one = ["export", "maps.json", "--batch-label", "B", "--python", "B.py", "--sql", "B.sql"]
    assert run(capsys, *one)[0] == 0
    assert Path("B.py").read_text() == Path("py/B.py").read_text()
    assert "CASE" not in Path("B.sql").read_text()
    module = {}
    exec(Path("B.py").read_text(), module)
    row = part(made, "B").iloc[0]
    expected = adapter.maps_["B"](part(made, "B")[made.features])
    made_by_file = module["adapt"](dict(row[made.features]))
    np.testing.assert_allclose([*made_by_file.values()], expected.iloc[0], rtol=1e-12)
    code, _, err = run(capsys, *one)
    assert (code, "--force" in err) == (2, True)
    pair = ["B.csv", "--reference", "A.csv", "-c", "group", "-f", "f*", "-q", "-o", "one.json"]
    assert run(capsys, "fit", *pair)[0] == 0
    code, _, err = run(capsys, "export", "one.json", "--sql", "-", "--batch", "site")
    assert (code, "no batches" in err) == (2, True)
    assert run(capsys, "export", "one.json", "--r", "one.R")[0] == 0
    assert "adapt <- local" in Path("one.R").read_text()


def test_samples_are_called_by_their_names(made, capsys):
    rows = made.table.assign(subject=[f"p{i}" for i in range(len(made.table))])
    rows.to_csv("all.csv", index=False)
    data = ["plan", "all.csv", "--batch", "site", *STUDY, "-n", "3"]
    code, out, err = run(capsys, *data, "--json")
    assert code == 0
    assert "row numbers" not in err
    assert all(one["name"] == f"p{one['row']}" for one in json.loads(out)["again"])
    rows.rename(columns={"subject": "who"}).to_csv("all.csv", index=False)
    _, out, err = run(capsys, *data, "--json")
    assert "row numbers" in err
    _, out, err = run(capsys, *data, "--groups", "who", "--json")
    assert all(one["name"] == f"p{one['row']}" for one in json.loads(out)["again"])
