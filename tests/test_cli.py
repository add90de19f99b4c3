"""The command line, as a scientist or a pipeline uses it."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from condokit import AffineMap, ConDoAdapter
from condokit.cli import cli, main

COMMANDS = sorted(cli.commands)


def run(*arguments):
    """Run a command in this process; return its exit code."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return end.value.code or 0


@pytest.fixture
def files(eeg, tmp_path):
    frame = eeg.to_frame()
    frame["person"] = [f"p{i}" for i in range(len(frame))]
    frame.to_csv(tmp_path / "all.csv", index=False)
    for label, name in (("v2", "new"), ("v1", "old")):
        part = frame[frame["device"] == label].drop(columns="device")
        part.to_csv(tmp_path / f"{name}.csv", index=False)
        part.to_parquet(tmp_path / f"{name}.parquet", index=False)
    return tmp_path


def data(folder, suffix="csv"):
    old = folder / f"old.{suffix}"
    return [folder / f"new.{suffix}", "--reference", old, "-c", "seizure", "-f", "eeg_*"]


def test_check_says_go(files, capsys):
    assert run("check", *data(files)) == 0
    out = capsys.readouterr()
    assert out.out.startswith("Go: the domains can be compared.")
    assert run("check", *data(files), "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "go"


def test_check_without_overlap_exits_with_3(files, capsys):
    for name, kept in (("old", False), ("new", True)):
        part = pd.read_csv(files / f"{name}.csv")
        part[part["seizure"] == kept].to_csv(files / f"{name}.csv", index=False)
    assert run("check", *data(files)) == 3
    assert "Not possible" in capsys.readouterr().out
    assert run("fit", *data(files), "-o", files / "map.json") == 3
    assert "has no level in both domains" in capsys.readouterr().err
    assert not (files / "map.json").exists()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_fit_and_apply_agree_with_the_library(files, eeg, suffix, capsys):
    target = files / f"adapted.{suffix}"
    assert run("fit", *data(files, suffix), "-o", files / "map.json") == 0
    assert run("apply", files / "map.json", files / f"new.{suffix}", "-o", target) == 0
    read = pd.read_csv if suffix == "csv" else pd.read_parquet
    new, adapted = read(files / f"new.{suffix}"), read(target)
    adapter = ConDoAdapter().fit_pair(
        eeg.X_query, eeg.X_reference, eeg.seizure_query, eeg.seizure_reference
    )
    assert list(adapted.columns) == list(new.columns)
    pd.testing.assert_series_equal(adapted["person"], new["person"])
    ours = adapted[eeg.feature_names].to_numpy()
    np.testing.assert_allclose(ours, adapter.transform(eeg.X_query), rtol=1e-9, atol=1e-12)
    back = files / f"back.{suffix}"
    assert run("apply", files / "map.json", target, "-o", back, "--inverse") == 0
    restored = read(back)[eeg.feature_names].to_numpy()
    np.testing.assert_allclose(restored, eeg.X_query, rtol=1e-9, atol=1e-9)


def test_one_table_gives_the_same_map_as_two(files):
    assert run("fit", *data(files), "-o", files / "two.json") == 0
    one = ["--domain", "device", "--reference-label", "v1", "-c", "seizure:cat", "-f", "eeg_*"]
    assert run("fit", files / "all.csv", *one, "-o", files / "one.json") == 0
    two = AffineMap.load(files / "two.json")
    np.testing.assert_allclose(AffineMap.load(files / "one.json").scale, two.scale)


def test_identical_inputs_give_identical_files(files):
    for name in ("a", "b"):
        assert run("fit", *data(files), "-o", files / f"{name}.json") == 0
    assert (files / "a.json").read_bytes() == (files / "b.json").read_bytes()


def test_without_features_all_numbers_are_taken_and_the_rest_is_named(files, capsys):
    options = ["--reference", files / "old.csv", "-c", "seizure,depression"]
    assert run("fit", files / "new.csv", *options, "-o", files / "map.json", "--json") == 0
    out = capsys.readouterr()
    assert json.loads(out.out)["n_features"] == 16
    assert "'person'" in out.err


def test_the_report_is_written(files, capsys):
    command = ["fit", *data(files), "-o", files / "map.json", "--report", files / "r.html"]
    assert run(*command) == 0
    page = (files / "r.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "eeg_delta_F3" in page
    assert run("report", *data(files), "-o", files / "s.html", "--json") == 0
    assert json.loads(capsys.readouterr().out)


def test_resampled_rows_follow_the_seed(files, capsys):
    def lows(seed):
        arguments = ["--bootstrap", 20, "--seed", seed, "-o", files / "r.html", "--force", "--json"]
        assert run("report", *data(files), *arguments) == 0
        return json.loads(capsys.readouterr().out)["features"]["scale_low"]

    first, second = lows(1), lows(2)
    assert lows(1) == first != second


def test_existing_files_are_kept_unless_forced(files, capsys):
    (files / "map.json").write_text("mine")
    assert run("fit", *data(files), "-o", files / "map.json") == 2
    assert "--force" in capsys.readouterr().err
    assert (files / "map.json").read_text() == "mine"
    assert run("fit", *data(files), "-o", files / "map.json", "--force") == 0
    assert AffineMap.load(files / "map.json").n_features_in_ == 16


def test_show_and_export(files, capsys):
    assert run("fit", *data(files), "-o", files / "map.json") == 0
    capsys.readouterr()
    assert run("show", files / "map.json") == 0
    assert "A diagonal map of 16 features" in capsys.readouterr().out
    assert run("show", files / "map.json", "--json") == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "diagonal"
    assert run("export", files / "map.json", "--sql", "-") == 0
    assert "SELECT" in capsys.readouterr().out
    assert run("export", files / "map.json", "--python", files / "adapt.py") == 0
    assert run("export", files / "map.json", "--onnx", files / "map.onnx") == 0
    assert (files / "map.onnx").stat().st_size > 100
    assert run("export", files / "map.json") == 2


def test_drift_is_reported_when_applying(files, capsys):
    assert run("fit", *data(files), "-o", files / "map.json") == 0
    new = pd.read_csv(files / "new.csv")
    new["eeg_alpha_O1"] += 100
    new.to_csv(files / "odd.csv", index=False)
    assert run("apply", files / "map.json", files / "odd.csv", "-o", files / "out.csv") == 0
    assert "eeg_alpha_O1" in capsys.readouterr().err
    new.drop(columns="eeg_alpha_O1").to_csv(files / "less.csv", index=False)
    assert run("apply", files / "map.json", files / "less.csv", "-o", files / "no.csv") == 2
    assert "columns are missing: 'eeg_alpha_O1'" in capsys.readouterr().err
    assert not (files / "no.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "new.csv", "-o", "m.json"], "--reference OLD"),
        (["fit", "nwe.csv", "--reference", "old.csv", "-o", "m.json"], "nwe.csv"),
        (["fit", "new.csv", "--reference", "old.csv", "-c", "sizure", "-o", "m.json"], "seizure"),
        (["fit", "new.csv", "--reference", "old.csv", "-c", "seizure:x", "-o", "m.json"], "cat"),
        (["fit", "new.csv", "--reference", "old.csv", "-f", "ecg_*", "-o", "m.json"], "ecg_"),
        (["fit", "new.csv", "--reference", "old.csv", "--map", "afine", "-o", "m.json"], "affine"),
        (["fit", "new.csv", "--reference", "old.csv", "--shrinkage", "x", "-o", "m.json"], "x"),
        (["fit", "new.csv", "--reference", "old.csv", "-c", "person:num", "-o", "m"], "person"),
        (["fit", "all.csv", "--domain", "device", "-o", "m.json"], "--reference-label"),
        (["apply", "new.csv", "new.csv", "-o", "x.csv"], "not a map"),
        (["apply", "none.json", "new.csv", "-o", "x.csv"], "none.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(files, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(files)
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    assert run(command, "--help") == 0
    assert len(capsys.readouterr().out) > 100


def call(*arguments, **options):
    command = [sys.executable, "-m", "condokit.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=120, check=False, **options)


def test_standard_streams(files):
    assert run("fit", *data(files), "-o", files / "map.json") == 0
    text = (files / "new.csv").read_bytes()
    done = call("apply", files / "map.json", "-", "-o", "-", input=text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n") == text.count(b"\n")
    assert b"\r" not in done.stderr  # no progress bar in a pipe


def test_killed_in_the_middle_leaves_nothing(files):
    assert run("fit", *data(files), "-o", files / "map.json") == 0
    target = files / "out.csv"
    target.write_text("mine")
    command = [sys.executable, "-m", "condokit.cli", "apply", str(files / "map.json"), "-"]
    process = subprocess.Popen([*command, "-o", str(target), "--force"], stdin=subprocess.PIPE)
    lines = (files / "new.csv").read_bytes().splitlines(keepends=True)
    process.stdin.write(lines[0] + b"".join(lines[1:]) * 20)
    process.stdin.flush()
    time.sleep(2)
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    process.stdin.close()
    assert target.read_text() == "mine"
    assert sorted(os.listdir(files)) == sorted(
        ["all.csv", "map.json", "new.csv", "new.parquet", "old.csv", "old.parquet", "out.csv"]
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk_is_one_line(files):
    assert run("fit", *data(files), "-o", files / "map.json") == 0
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "condokit.cli", "apply", files / "map.json"]
        done = subprocess.run(
            [*map(str, command), str(files / "new.csv"), "-o", "-"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"space" in done.stderr


def test_completion_scripts(capsys):
    for shell in ("bash", "zsh", "fish"):
        assert run("completion", shell) == 0
        assert "_CONDOKIT_COMPLETE" in capsys.readouterr().out


def test_demo(tmp_path, capsys):
    assert run("demo", tmp_path / "demo") == 0
    names = {path.name for path in (tmp_path / "demo").iterdir()}
    assert names == {"new.csv", "old.csv", "map.json", "report.html", "adapted.csv"}


def test_other_encodings_and_decimal_marks(files, capsys):
    new = pd.read_csv(files / "new.csv").rename(columns={"person": "pérson"})
    new.to_csv(files / "new.csv", index=False, sep=";", decimal=",", encoding="latin-1")
    assert run("fit", *data(files), "-o", files / "a.json") == 2
    assert "latin-1" in capsys.readouterr().err
    old = pd.read_csv(files / "old.csv")
    old.to_csv(files / "old.csv", index=False, sep=";", decimal=",", encoding="latin-1")
    options = ["--encoding", "latin-1", "--decimal", ","]
    assert run("fit", *data(files), *options, "-o", files / "a.json") == 0
    assert run("fit", *data(files, "parquet"), "-o", files / "b.json") == 0
    scales = [AffineMap.load(files / f"{name}.json").scale for name in "ab"]
    np.testing.assert_allclose(*scales, rtol=1e-12)


def test_text_among_the_features_is_named(files, capsys):
    assert run("fit", *data(files), "-o", files / "map.json") == 0
    new = pd.read_csv(files / "new.csv")
    new["eeg_delta_F3"] = new["eeg_delta_F3"].astype(object)
    new.loc[3, "eeg_delta_F3"] = "broken"
    new.to_csv(files / "new.csv", index=False)
    for command in (
        ["apply", files / "map.json", files / "new.csv", "-o", files / "out.csv"],
        ["fit", *data(files), "-o", files / "other.json"],
    ):
        assert run(*command) == 2
        assert "'eeg_delta_F3' should hold numbers" in capsys.readouterr().err
    marked = ["apply", files / "map.json", files / "new.csv", "-o", files / "out.csv"]
    assert run(*marked, "--na", "broken") == 0
    assert pd.read_csv(files / "out.csv")["eeg_delta_F3"].isna().sum() == 1


def test_anndata_files_keep_all_but_the_features(tmp_path):
    anndata = pytest.importorskip("anndata")
    from test_files import write_h5ad

    X = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    path = write_h5ad(tmp_path / "cells.h5ad", X)
    AffineMap([2.0, 3.0], [1.0, 0.0], ["g2", "g0"]).save(tmp_path / "map.json")
    out = tmp_path / "adapted.h5ad"
    assert run("apply", tmp_path / "map.json", path, "-o", out) == 0
    back = anndata.read_h5ad(out)
    np.testing.assert_allclose(back.X, X * [3.0, 1.0, 2.0] + [0.0, 0.0, 1.0], rtol=1e-6)
    assert back.uns["who"] == "us"
    assert back.obs["sex"].tolist() == list("FMF" * 3)
    assert run("apply", tmp_path / "map.json", path, "-o", tmp_path / "flat.parquet") == 0
    assert pd.read_parquet(tmp_path / "flat.parquet")["sex"].tolist() == list("FMF" * 3)
