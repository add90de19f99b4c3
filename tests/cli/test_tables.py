"""Which columns of files are what."""

import json
import re
import shlex

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from stories import data, run

from condokit import AffineMap
from condokit.cli import main

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
    assert "--domain must have exactly two labels. Got 3 ('v1', 'v2', 'v3'). For one pair" in err
    assert "name NEW with --query-label and OLD with --reference-label; for all of them, " in err
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
    assert "--query-label is one of the labels of --domain" in capsys.readouterr().err


def test_a_confounder_that_may_be_a_code_is_told(records, capsys):
    given = [records / "new.csv", "--reference", records / "old.csv", "-f", "eeg_*"]
    for kind, is_told in (("arm", True), ("arm:num", False), ("arm:cat", False)):
        assert run("check", *given, "-c", kind) == 0
        told = "confounder 'arm'. If it is a code of categories, declare it with :cat; if not"
        assert (told in capsys.readouterr().out) == is_told
    assert run("fit", *given, "-c", "arm", "-o", records / "map.json") == 0
    assert "few values: confounder 'arm'" in capsys.readouterr().err
