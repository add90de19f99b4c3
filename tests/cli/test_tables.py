"""Which columns of files are what."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from batches_made import Made
from pyarrow import parquet
from stories import data, run

from condokit import AffineMap, BatchAdapter
from condokit.cli import main
from condokit.io import read_table

NESTED = {
    "list": pa.array([[1.0]] * 40),
    "struct": pa.array([{"a": 1.0}] * 40),
    "binary": pa.array([b"\xff"] * 40),
}


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("roles", ["-f x,odd", "-f x -c odd", "-f x -c odd:num", "-f x -c odd:cat"])
def test_nested_columns_are_one_line(tmp_path, capsys, kind, roles):
    table = {"x": np.arange(40.0), "odd": NESTED[kind], "day": ["a", "b"] * 20}
    parquet.write_table(pa.table(table), tmp_path / "all.parquet")
    one = [tmp_path / "all.parquet", "--domain", "day", "--reference-label", "a", *roles.split()]
    with pytest.raises(SystemExit, match="2"):
        main([str(part) for part in ("fit", *one, "-o", tmp_path / "map.json")])
    assert "neither numbers nor text" in capsys.readouterr().err


@pytest.fixture
def records(files):
    """Tables with columns that are no measurements."""
    rng = np.random.default_rng(0)
    for name in ("new", "old", "all"):
        frame = pd.read_csv(files / f"{name}.csv")
        frame["age"] = rng.uniform(20, 80, len(frame))
        frame["arm"] = rng.choice([1, 2, 3], len(frame))
        frame.to_csv(files / f"{name}.csv", index=False)
    return files


@pytest.mark.parametrize("one", [True, False])
def test_features_are_told(records, one, eeg, capsys):
    pair = [records / "new.csv", "--reference", records / "old.csv"]
    table = [records / "all.csv", "--domain", "device", "--reference-label", "v1"]
    given = [*(table if one else pair), "-c", "seizure"]
    assert run("fit", *given, "-o", records / "map.json", "--json") == 0
    told = capsys.readouterr()
    record = json.loads(told.out)
    assert record["features"] == eeg.feature_names
    assert set(record["columns_left_alone"]) == {"depression", "person", "age", "arm"}
    made = AffineMap.load(records / "map.json")
    assert made.provenance["columns_left_alone"] == record["columns_left_alone"]
    assert run("check", *given) == 0
    for err in (told.err, capsys.readouterr().err):
        assert f"Features ({len(eeg.feature_names)}): {eeg.feature_names[0]!r}" in err
        assert re.search(r"Left alone: .*'age' \(by its name\)", err)
        assert "warning" not in err


def test_features_that_are_not_clear_are_refused(records, capsys):
    for name in ("new", "old"):
        frame = pd.read_csv(records / f"{name}.csv")
        frame["my site"] = frame["arm"]
        kept = ["eeg_delta_F3", "arm", "my site", "seizure"]
        frame[kept].to_csv(records / f"{name}.csv", index=False)
    given = [records / "new.csv", "--reference", records / "old.csv", "-c", "seizure"]
    assert run("check", *given) == 2
    err = capsys.readouterr().err
    assert "'arm', 'my site' (whole numbers with few values)" in err
    typed = re.search(r"(--features \S+), or (--features '\*')", err)
    assert run("check", *given, *shlex.split(typed[1])) == 0
    assert run("check", *given, *shlex.split(typed[2])) == 0


def test_one_pair_of_many_labels(files, capsys):
    frame = pd.read_csv(files / "all.csv")
    third = frame[:30].assign(device="v3")
    third[third.filter(like="eeg").columns] = 1e6
    many = pd.concat([third, frame])
    many.to_csv(files / "many.csv", index=False)
    told = ["--domain", "device", "--reference-label", "v1"]
    given = [files / "many.csv", *told, "-c", "seizure", "-f", "eeg_*"]
    assert run("fit", *given, "-o", files / "map.json") == 2
    err = capsys.readouterr().err
    assert "--domain must have exactly two labels. Got 3 ('v1', 'v2', 'v3'). To compare two" in err
    assert (
        "name NEW with --query-label and OLD with --reference-label; to map all of them to one, "
        in err
    )
    unknown = [files / "many.csv", "--domain", "device", "--reference-label", "v9"]
    assert run("fit", *unknown, "--query-label", "v2", "-o", files / "map.json") == 2
    assert "--reference-label v9: the labels are 'v1', 'v2', 'v3'." in capsys.readouterr().err
    one = ["--query-label", "v2"]
    written = ["-o", files / "map.json", "--adapted", files / "adapted.csv"]
    assert run("fit", *given, *one, *written) == 0
    err = capsys.readouterr().err
    assert "30 rows with other labels of 'device' are left out." in err
    only = [files / "all.csv", *told, "-c", "seizure", "-f", "eeg_*", "-o", files / "only.json"]
    assert run("fit", *only) == 0
    made, wanted = (AffineMap.load(files / f"{name}.json") for name in ("map", "only"))
    np.testing.assert_allclose(made.scale, wanted.scale, rtol=1e-12)
    adapted = pd.read_csv(files / "adapted.csv", engine="pyarrow")  # to the last digit
    stays = (many["device"] != "v2").to_numpy()
    features = adapted.filter(like="eeg")
    np.testing.assert_array_equal(features[stays], many.filter(like="eeg")[stays])
    moved = wanted(many.filter(like="eeg")[~stays])
    np.testing.assert_allclose(features[~stays], moved, rtol=1e-9)
    assert run("check", *given, "--query-label", "v5") == 2
    assert "the labels are 'v1', 'v2', 'v3'" in capsys.readouterr().err
    assert run("check", *given, "--query-label", "v1") == 2
    assert run("check", *data(files), *one) == 2
    assert "--query-label must be the label of NEW" in capsys.readouterr().err


def test_a_confounder_that_may_be_a_code_is_told(records, capsys):
    given = [records / "new.csv", "--reference", records / "old.csv", "-f", "eeg_*"]
    for kind, is_told in (("arm", True), ("arm:num", False), ("arm:cat", False)):
        assert run("check", *given, "-c", kind) == 0
        told = "If they are codes of categories, declare it with :cat; if not"
        assert (told in capsys.readouterr().out) == is_told
    assert run("fit", *given, "-c", "arm", "-o", records / "map.json") == 0
    assert "confounder 'arm' has few distinct whole numbers" in capsys.readouterr().err


@pytest.fixture
def sheets(tmp_path, monkeypatch):
    """A matrix of genes and a sheet of samples, the same with samples in rows, and all in one."""
    monkeypatch.chdir(tmp_path)
    made = Made(1, [(0, 1), (0, 1), (1, 2)])
    rows = made.table.drop(columns="years")
    rows.insert(0, "sample", [f"{i:04d}" for i in range(len(rows))])
    rows.to_csv("all.csv", index=False)
    about = ["sample", "site", "group"]
    rows[about].sample(frac=1, random_state=0).to_csv("sheet.csv", index=False, sep=";")
    matrix = rows.drop(columns=about[1:])
    matrix.to_csv("plain.csv", index=False)
    matrix.set_index("sample").T.rename_axis("gene").to_csv("genes.tsv", sep="\t")
    return rows


ROLES_OF_SHEET = ["--batch", "site", "--reference-label", "A", "-c", "group", "-q"]
SHEET = ["--samples", "sheet.csv", "--id", "sample"]


def test_a_matrix_with_a_sheet_of_samples(sheets, capsys):
    def maps(path, *arguments):
        assert run("fit", path, *arguments, *ROLES_OF_SHEET, "-o", "maps.json", "--force") == 0
        return BatchAdapter.load("maps.json").maps_

    expected = maps("all.csv", "-f", "f*")
    assert maps("plain.csv", *SHEET) == expected
    assert maps("genes.tsv", "--transpose", *SHEET) == expected
    assert run("apply", "maps.json", "all.csv", "-o", "one.csv") == 0
    assert run("apply", "maps.json", "genes.tsv", "--transpose", *SHEET, "-o", "two.csv") == 0
    one, two = pd.read_csv("one.csv"), pd.read_csv("two.csv")
    pd.testing.assert_frame_equal(two[one.columns], one)
    assert run("check", "maps.json", "genes.tsv", "--transpose", *SHEET) == 0
    assert capsys.readouterr().out.startswith("As fitted")
    stats = ["stats", "genes.tsv", "--transpose", *SHEET, "--domain", "site", "-c", "group"]
    assert run(*stats, "-o", "stats.json") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plain.csv", "--samples", "sheet.csv"], "--samples needs --id"),
        (["plain.csv", "--id", "sample"], "--id can only be used with"),
        (["plain.csv", "--samples", "sheet.csv", "--id", "sampel"], "Did you mean 'sample'?"),
        (["plain.csv", "--samples", "less.csv", "--id", "sample"], "has no row of '0000'"),
        (["plain.csv", "--samples", "twice.csv", "--id", "sample"], "several rows of '0000'"),
        (["all.csv", *SHEET], "duplicate column names: 'site', 'group'"),
        (["all.csv", "--transpose"], "should hold numbers"),
    ],
)
def test_sheets_that_do_not_fit(sheets, capsys, arguments, message):
    sheet = pd.read_csv("sheet.csv", sep=";", dtype=str)
    sheet[sheet["sample"] != "0000"].to_csv("less.csv", index=False)
    pd.concat([sheet, sheet[sheet["sample"] == "0000"]]).to_csv("twice.csv", index=False)
    assert run("fit", *arguments, *ROLES_OF_SHEET, "-o", "maps.json") == 2
    assert message in capsys.readouterr().err


def test_excel_files_are_read_as_text_files_are(sheets, capsys):
    pytest.importorskip("openpyxl")
    rows = sheets.assign(code=[f"{i:03d}" for i in range(len(sheets))], empty=None)
    rows.loc[3, "f0"] = None
    rows["f1"] = rows["f1"].astype(object)
    rows.loc[4, "f1"] = "NA"
    rows.to_excel("all.xlsx", index=False)
    rows.to_csv("all.csv", index=False)
    found, expected = read_table("all.xlsx"), read_table("all.csv")
    assert found.schema == expected.schema
    pd.testing.assert_frame_equal(found.to_pandas(), expected.to_pandas(), rtol=1e-12)
    data = [*ROLES_OF_SHEET, "-f", "f*", "-o", "maps.json"]
    assert run("fit", "all.xlsx", *data) == 0
    assert run("apply", "maps.json", "all.xlsx", "-o", "out.csv") == 0
    assert run("apply", "maps.json", "all.xlsx", "-o", "out.xlsx") == 2
    assert "read, but not written" in capsys.readouterr().err
    Path("bad.xlsx").write_text("no workbook")
    assert run("apply", "maps.json", "bad.xlsx", "-o", "out2.csv") == 2
    assert "bad.xlsx cannot be read" in capsys.readouterr().err
