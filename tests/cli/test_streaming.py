"""Many files and large ones on the command line."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest

from condokit import AffineMap
from condokit.cli import main, tables


def made(n, seed):
    rng = np.random.default_rng(seed)
    query = rng.random(n) < 0.5
    X = rng.normal(size=(n, 3)) * (1 + query[:, None]) + query[:, None]
    frame = pd.DataFrame(X, columns=["eeg_a", "eeg_b", "eeg_c"])
    frame["site"] = np.where(query, 2, 1)
    frame["sex"] = rng.choice(["F", "M"], n)
    return frame


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    for k in range(3):
        made(400, k).to_parquet(tmp_path / "data" / f"{k}.parquet", index=False)
        made(400, k).to_csv(tmp_path / "data" / f"{k}.csv", index=False)
    whole = pd.concat([made(400, k) for k in range(3)])
    whole.to_parquet(tmp_path / "whole.parquet", index=False)
    return tmp_path


ROLES = ["--domain", "site", "--reference-label", "1", "-c", "sex", "-f", "eeg_*"]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("limit", [0, 1 << 27])
def test_many_files_give_the_map_of_one(folder, monkeypatch, ending, limit):
    monkeypatch.setattr(tables, "IN_MEMORY", limit)
    pattern = folder / "data" / f"*.{ending}"
    assert run("fit", folder / "whole.parquet", *ROLES, "-o", folder / "one.json", "-q") == 0
    assert run("fit", pattern, *ROLES, "-o", folder / "many.json", "-q") == 0
    one, many = (AffineMap.load(folder / name) for name in ("one.json", "many.json"))
    assert np.allclose(one.scale, many.scale, rtol=1e-9)
    facts = many.provenance["files"][0]
    assert facts["name"] == f"*.{ending}"
    assert facts["size"].startswith("3 files, ")
    assert run("check", pattern, *ROLES) == 0


def test_two_large_tables_are_compared(folder, monkeypatch):
    frame = pd.read_parquet(folder / "whole.parquet")
    for name, site in (("new", 2), ("old", 1)):
        frame[frame["site"] == site].to_parquet(folder / f"{name}.parquet", index=False)
    command = ["fit", folder / "new.parquet", "--reference", folder / "old.parquet"]
    command += ["-c", "sex", "-f", "eeg_*", "-q"]
    assert run(*command, "-o", folder / "one.json") == 0
    monkeypatch.setattr(tables, "IN_MEMORY", 0)
    assert run(*command, "-o", folder / "many.json") == 0
    one, many = (AffineMap.load(folder / name) for name in ("one.json", "many.json"))
    assert np.allclose(one.scale, many.scale, rtol=1e-9)
    assert many.provenance["domains"]["reference"] == "old.parquet"


def test_large_tables_without_polars(folder, monkeypatch):
    monkeypatch.setattr(tables, "IN_MEMORY", 0)
    frame = pl.read_parquet(folder / "whole.parquet").with_columns(pl.col("site").cast(pl.String))
    frame.write_parquet(folder / "text.parquet")
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    assert run("fit", folder / "text.parquet", *ROLES, "-o", folder / "map.json", "-q") == 0


def test_files_are_mapped_into_a_folder_or_one_file(folder, capsys):
    AffineMap([2.0] * 3, [1.0] * 3, ["eeg_a", "eeg_b", "eeg_c"]).save(folder / "map.json")
    command = ["apply", folder / "map.json", folder / "data" / "*.parquet", "-o"]
    assert run(*command, f"{folder}/out/") == 0
    assert run(*command, folder / "all.parquet") == 0
    parts = [pd.read_parquet(folder / "out" / f"{k}.parquet") for k in range(3)]
    for k, part in enumerate(parts):
        old = made(400, k)
        assert np.allclose(part["eeg_a"], 2 * old["eeg_a"] + 1)
        assert (part["sex"] == old["sex"]).all()
    assert pd.concat(parts, ignore_index=True).equals(pd.read_parquet(folder / "all.parquet"))
    assert run(*command, f"{folder}/out/") == 2
    assert "exists; use --force" in capsys.readouterr().err
    assert run(*command, folder / "data") == 2
    assert "would be lost" in capsys.readouterr().err


def test_nothing_is_half_written(folder, capsys):
    AffineMap([2.0] * 3, [1.0] * 3, ["eeg_a", "eeg_b", "eeg_c"]).save(folder / "map.json")
    made(10, 0).drop(columns="sex").to_parquet(folder / "data" / "3.parquet", index=False)
    command = ["apply", folder / "map.json", folder / "data" / "*.parquet", "-o"]
    assert run(*command, f"{folder}/out/") == 2
    assert "3.parquet has other columns than" in capsys.readouterr().err
    assert list((folder / "out").iterdir()) == []
    assert run("fit", folder / "data" / "*.parquet", *ROLES, "-o", folder / "m.json") == 2
    assert not (folder / "m.json").exists()
    assert run("fit", folder / "no" / "*.parquet", *ROLES, "-o", folder / "m.json") == 2
    assert "matches no file" in capsys.readouterr().err


def test_machines_learn_how_many_rows_there_are(folder, monkeypatch, capsys):
    monkeypatch.setattr(tables, "IN_MEMORY", 0)
    monkeypatch.setattr("condokit.data.reader._SAMPLED", 200)
    command = ["fit", folder / "whole.parquet", *ROLES, "-o", folder / "map.json", "--json"]
    assert run(*command) == 0
    record = json.loads(capsys.readouterr().out)
    site = pd.read_parquet(folder / "whole.parquet")["site"]
    assert record["rows_query"] == (site == 2).sum()
