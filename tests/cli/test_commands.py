"""The command line, as a scientist or a pipeline uses it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from stories import call, data, piped, run

from condokit import AffineMap, ConDoAdapter, datasets
from condokit.cli import cli

COMMANDS = sorted(cli.commands)


def test_check_says_go(files, capsys):
    assert run("check", *data(files)) == 0
    out = capsys.readouterr()
    assert out.out.startswith("Go: the domains can be compared.")
    assert run("check", *data(files), "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "go"


def test_advice_names_options(files, capsys):
    for name in ("old", "new"):
        table = pd.read_csv(files / f"{name}.csv")
        table["eeg_delta_F3"] = np.exp(2 * table["eeg_delta_F3"])
        table.to_csv(files / f"{name}.csv", index=False)
    assert run("check", *data(files)) == 0
    assert "use --link FEATURE=log." in capsys.readouterr().out


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
    assert run("fit", *data(files, suffix), "-o", files / "map.json", "--quiet") == 0
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
    assert run("fit", *data(files), "-o", files / "two.json", "--quiet") == 0
    one = ["--domain", "device", "--reference-label", "v1", "-c", "seizure:cat", "-f", "eeg_*"]
    assert run("fit", files / "all.csv", *one, "-o", files / "one.json", "--quiet") == 0
    two = AffineMap.load(files / "two.json")
    np.testing.assert_allclose(AffineMap.load(files / "one.json").scale, two.scale)


def test_identical_inputs_give_identical_files(files):
    for name in ("a", "b"):
        assert run("fit", *data(files), "-o", files / f"{name}.json", "--quiet") == 0
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
    said = capsys.readouterr().err
    assert run("report", *data(files), "-o", files / "s.html", "--json") == 0
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    sentence = verdict["sentence"]
    assert (
        said.splitlines()[-1]
        == f"{verdict['word'].capitalize()}: {sentence[0].lower()}{sentence[1:]}"
    )


def test_resampled_rows_follow_the_seed(files, capsys):
    def lows(seed):
        arguments = ["--bootstrap", 20, "--seed", seed, "-o", files / "r.html", "--force", "--json"]
        assert run("report", *data(files)[:-1], "eeg_delta_F*", *arguments) == 0
        return json.loads(capsys.readouterr().out)["features"]["scale_low"]

    first, second = lows(1), lows(2)
    assert lows(1) == first != second


def test_existing_files_are_kept_unless_forced(files, capsys):
    (files / "map.json").write_text("mine")
    assert run("fit", *data(files), "-o", files / "map.json") == 2
    assert "--force" in capsys.readouterr().err
    assert (files / "map.json").read_text() == "mine"
    assert run("fit", *data(files), "-o", files / "map.json", "--force", "--quiet") == 0
    assert AffineMap.load(files / "map.json").n_features_in_ == 16


def test_show_and_export(files, capsys):
    assert run("fit", *data(files), "-o", files / "map.json", "--quiet") == 0
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
    assert run("fit", *data(files), "-o", files / "map.json", "--quiet") == 0
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


def test_standard_streams(files):
    assert run("fit", *data(files), "-o", files / "map.json", "--quiet") == 0
    text = (files / "new.csv").read_bytes()
    done = call("apply", files / "map.json", "-", "-o", "-", input=text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n") == text.count(b"\n")
    assert b"\r" not in done.stderr  # no progress bar in a pipe


def test_killed_in_the_middle_leaves_nothing(files):
    assert run("fit", *data(files), "-o", files / "map.json", "--quiet") == 0
    target = files / "out.csv"
    target.write_text("mine")
    command = [sys.executable, "-m", "condokit", "apply", str(files / "map.json"), "-"]
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
    assert run("fit", *data(files), "-o", files / "map.json", "--quiet") == 0
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "condokit", "apply", files / "map.json"]
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


def test_completion_scripts(capsys, monkeypatch):
    for shell in ("bash", "zsh", "fish"):
        monkeypatch.setenv("_CONDOKIT_COMPLETE", f"{shell}_source")
        assert run() == 0
        assert "_CONDOKIT_COMPLETE" in capsys.readouterr().out


@pytest.fixture
def few_people(eeg, monkeypatch):
    """Make the demo's own data those few of these tests."""
    monkeypatch.setattr(datasets, "make_eeg", lambda **_: eeg)


@pytest.mark.usefixtures("few_people")
def test_demo(tmp_path, capsys):
    assert run("demo", tmp_path / "demo") == 0
    names = {path.name for path in (tmp_path / "demo").iterdir()}
    assert names == {"new.csv", "old.csv", "map.json", "report.html", "adapted.csv"}
    command = AffineMap.load(tmp_path / "demo" / "map.json").provenance["command"]
    assert command[:2] == ("condokit", "fit")  # of the commands within, the one that made it


def test_other_encodings_and_decimal_marks(files, capsys):
    new = pd.read_csv(files / "new.csv").rename(columns={"person": "pérson"})
    new.to_csv(files / "new.csv", index=False, sep=";", decimal=",", encoding="latin-1")
    assert run("fit", *data(files), "-o", files / "a.json") == 2
    assert "latin-1" in capsys.readouterr().err
    old = pd.read_csv(files / "old.csv")
    old.to_csv(files / "old.csv", index=False, sep=";", decimal=",", encoding="latin-1")
    options = ["--encoding", "latin-1", "--decimal", ","]
    assert run("fit", *data(files), *options, "-o", files / "a.json", "--quiet") == 0
    assert run("fit", *data(files, "parquet"), "-o", files / "b.json", "--quiet") == 0
    scales = [AffineMap.load(files / f"{name}.json").scale for name in "ab"]
    np.testing.assert_allclose(*scales, rtol=1e-12)


def test_text_among_the_features_is_named(files, capsys):
    assert run("fit", *data(files), "-o", files / "map.json", "--quiet") == 0
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
    from stories import write_h5ad

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


def identity(folder, *names, scale=2.0):
    """Save a map that doubles the features."""
    AffineMap([scale] * len(names), [0.0] * len(names), list(names)).save(folder / "map.json")
    return folder / "map.json"


def test_wide_tables_need_no_list_of_features(tmp_path, rng):
    names = ["sex", *(f"g{j}" for j in range(2000))]
    for name in ("new", "old"):
        frame = pd.DataFrame(rng.normal(size=(20, len(names))).round(4), columns=names)
        frame["sex"] = list("FM" * 10)
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    started = time.process_time()
    files = [tmp_path / "new.csv", "--reference", tmp_path / "old.csv"]
    assert run("fit", *files, "-c", "sex", "-o", tmp_path / "map.json") == 0
    assert time.process_time() - started < 10
    assert AffineMap.load(tmp_path / "map.json").n_features_in_ == 2000


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_of_the_reference_stay(files, eeg, suffix, capsys):
    frame = pd.read_csv(files / "all.csv")
    if suffix == "parquet":
        frame.to_parquet(files / "all.parquet")
    one = ["--domain", "device", "--reference-label", "v1"]
    write = ["-o", files / "map.json", "--adapted", files / f"a.{suffix}"]
    whole = files / f"all.{suffix}"
    assert run("fit", whole, *one, "-c", "seizure", "-f", "eeg_*", *write, "--quiet") == 0
    assert run("apply", files / "map.json", whole, *one, "-o", files / f"b.{suffix}") == 0
    assert f"{len(eeg.X_reference)} rows with device = v1" in capsys.readouterr().err
    read = pd.read_csv if suffix == "csv" else pd.read_parquet
    is_old = frame["device"] == "v1"
    for name in "ab":
        adapted = read(files / f"{name}.{suffix}")
        pd.testing.assert_frame_equal(adapted[is_old], frame[is_old])
        assert (adapted.loc[~is_old, "eeg_alpha_O1"] != frame.loc[~is_old, "eeg_alpha_O1"]).all()
    assert run("apply", files / "map.json", whole, "--domain", "device", "-o", files / "c.csv") == 2


def test_rows_of_the_reference_stay_in_anndata(tmp_path):
    anndata = pytest.importorskip("anndata")
    from stories import write_h5ad

    X = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    path = write_h5ad(tmp_path / "cells.h5ad", X)
    one = ["--domain", "sex", "--reference-label", "F", "-o", tmp_path / "out.h5ad"]
    assert run("apply", identity(tmp_path, "g0", "g1", "g2"), path, *one) == 0
    scale = np.where(np.array(list("FMF" * 3)) == "F", 1, 2)[:, None]
    np.testing.assert_allclose(anndata.read_h5ad(tmp_path / "out.h5ad").X, X * scale, rtol=1e-6)


@pytest.mark.usefixtures("few_people")
def test_the_demo_keeps_what_is_there(tmp_path, capsys):
    (tmp_path / "old.csv").write_text("mine")
    assert run("demo", tmp_path) == 2
    assert "old.csv exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["old.csv"]
    assert run("demo", tmp_path, "--force", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["written"]) == 5


HARD = "12345678901234567890,1E1,0xFF,2020-01-01T10:00:00+02:00,True,TRUE,None,1.500, a ,007,"


def test_other_columns_stay_as_they_are_written(tmp_path):
    names = ",".join(f"c{j}" for j in range(HARD.count(",") + 1))
    lines = [f"1.5,{'1,' * HARD.count(',')}"] * 700_000 + [f"1.5,{HARD}", f"-,{HARD}"]
    source = "\n".join([f"x,{names}", *lines]) + "\n"
    (tmp_path / "in.csv").write_text(source)
    assert run("apply", identity(tmp_path, "x"), tmp_path / "in.csv", "-o", tmp_path / "o.csv") == 0
    expected = source.replace("\n1.5,", "\n3,").replace("\n-,", "\n,")
    assert (tmp_path / "o.csv").read_text() == expected
    (tmp_path / "in.csv").write_text('x,who\n1,"A, B"\n2,C\n')
    options = ["-o", tmp_path / "o.tsv", "--force"]
    assert run("apply", tmp_path / "map.json", tmp_path / "in.csv", *options) == 0
    assert (tmp_path / "o.tsv").read_text() == "x\twho\n2\tA, B\n4\tC\n"


def test_anndata_on_a_full_disk_is_one_line(tmp_path):
    pytest.importorskip("anndata")
    resource = pytest.importorskip("resource")
    from stories import write_h5ad

    path = write_h5ad(tmp_path / "cells.h5ad", np.ones((9, 3), dtype=np.float32))
    mapfile = identity(tmp_path, "g0", "g1", "g2")

    def little():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    done = call("apply", mapfile, path, "-o", tmp_path / "out.h5ad", preexec_fn=little)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count(b"\n") == 1
    assert b"out.h5ad cannot be written: file too large." in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["cells.h5ad", "map.json"]


def pair(folder, new, old):
    """Save two tables with a feature x and a confounder z."""
    for name, values in (("new", new), ("old", old)):
        x = np.random.default_rng(0).normal(size=len(values))
        pd.DataFrame({"x": x, "z": values}).to_parquet(folder / f"{name}.parquet")
    return [folder / "new.parquet", "--reference", folder / "old.parquet", "-f", "x"]


def test_confounders_of_different_types(tmp_path, capsys):
    numbers, texts = [0, 1] * 20, ["0", "1"] * 20
    both = pair(tmp_path, numbers, texts)
    for role in ("z", "z:cat", "z:num"):
        assert run("check", *both, "-c", role) == 0
    both = pair(tmp_path, numbers, [*texts[1:], "unknown"])
    for role in ("z", "z:num"):
        assert run("check", *both, "-c", role) == 2
        error = capsys.readouterr().err
        for word in ("old.parquet", "'z' holds string, not double", "'unknown' in row 40", "--na"):
            assert word in error


def test_obs_of_anndata_are_no_features(tmp_path, capsys):
    pytest.importorskip("anndata")
    import h5py
    from stories import write_h5ad

    for seed, name in enumerate(("new", "old")):
        X = np.random.default_rng(seed).normal(size=(9, 3))
        path = write_h5ad(tmp_path / f"{name}.h5ad", X)
        with h5py.File(path, "r+") as file:
            file["obs/age"] = np.arange(9.0)
            file["obs/age"].attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
            file["obs"].attrs["column-order"] = [*file["obs"].attrs["column-order"], "age"]
    two = [tmp_path / "new.h5ad", "--reference", tmp_path / "old.h5ad", "-c", "sex"]
    assert run("fit", *two, "-o", tmp_path / "map.json") == 0
    assert list(AffineMap.load(tmp_path / "map.json").feature_names) == ["g0", "g1", "g2"]
    assert "Features (3): 'g0', 'g1', 'g2'." in capsys.readouterr().err


def test_the_recorded_command_runs(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    two = ["new.csv", "--reference", "old.csv", "-c", "seizure", "-f", "eeg_delta_F*"]
    assert run("fit", *two, "-oout.json", "--report=out.html", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    command = record["report"]["reproduce"]["command"]
    assert command.endswith("-o map.json --report report.html")
    assert run(*shlex.split(command)[1:], "--force") == 0
    assert (files / "map.json").read_bytes() == (files / "out.json").read_bytes()
    assert (files / "report.html").read_bytes() == (files / "out.html").read_bytes()
    kept = AffineMap.load(files / "map.json").provenance["command"]
    assert run(*kept[1:], "--force") == 0
    assert run("report", *two, "-o", "r.html", "--json") == 0
    command = json.loads(capsys.readouterr().out)["reproduce"]["command"]
    assert run(*shlex.split(command)[1:], "--force") == 0


def test_maps_go_through_pipes(files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    code, made = piped(b"", monkeypatch, "fit", *data(files), "-o", "-")
    assert code == 0
    assert b"A diagonal map" in piped(made, monkeypatch, "show", "-")[1]
    text = (files / "new.csv").read_bytes()
    sides = ["--reference", files / "old.csv", "-c", "seizure", "-f", "eeg_*"]
    given = ["fit", "-", *sides, "-o", "m.json", "--adapted", "a.csv"]
    assert piped(text, monkeypatch, *given)[0] == 2
    assert "--adapted" in capsys.readouterr().err
    assert not (files / "m.json").exists()
    assert not (files / "-").exists()


def test_a_reader_may_leave(tmp_path):
    (tmp_path / "in.csv").write_text("x\n" + "1.5\n" * 200_000)
    command = [sys.executable, "-m", "condokit", "apply", str(identity(tmp_path, "x"))]
    with subprocess.Popen(
        [*command, str(tmp_path / "in.csv"), "-o", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"x\n"
        process.stdout.close()
        error = process.stderr.read()
    assert (process.returncode, error) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["apply", "m", "new.csv", "-o", "old.csv"], "old.csv exists"),
        (["apply", "m", "new.csv", "-o", "-", "--json"], "standard output"),
        (["fit", "no.csv", "--reference", "old.csv", "-o", "x", "--report", "./x"], "two outputs"),
        (["fit", "no.csv", "--reference", "old.csv", "-o", "-", "--json"], "standard output"),
        (["fit", "no.csv", "--reference", "old.csv", "-o", "old.csv", "--force"], "is read"),
        (["report", "no.csv", "--reference", "old.csv", "-o", "-", "--json"], "standard output"),
        (["export", "m", "--python", "q.py", "--sql", "old.csv"], "old.csv exists"),
    ],
)
def test_outputs_are_checked_before_any_work(files, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(files)
    before = sorted(os.listdir())
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err
    assert sorted(os.listdir()) == before


def test_machines_can_read_every_command(files, capsys):
    mapfile = identity(files, "eeg_alpha_O1")
    assert run("export", mapfile, "--sql", files / "m.sql", "--json") == 0
    assert json.loads(capsys.readouterr().out)["sql"] == str(files / "m.sql")
    assert all("as_json" in {p.name for p in c.params} for c in cli.commands.values())


def test_parquet_keeps_its_index_and_precision(tmp_path):
    from decimal import Decimal

    import pyarrow as pa

    frame = pd.DataFrame(
        {"a": np.float32([1, 2]), "n": [1, 2], "d": [Decimal("1.50"), None]},
        index=pd.Index(["p", "q"], name="who"),
    )
    frame.to_parquet(tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    mapfile = identity(tmp_path, "a", "n", "d")
    assert run("apply", mapfile, tmp_path / "in.parquet", "-o", out) == 0
    back = pd.read_parquet(out)
    assert back.index.equals(frame.index)
    assert back["a"].dtype == np.float32
    assert back["d"].tolist()[0] == 3.0
    dense = AffineMap([[2.0, 0.0], [0.0, 2.0]], [0.0, 0.0], ["a", "n"])
    dense.save(tmp_path / "dense.json")
    assert run("apply", tmp_path / "dense.json", tmp_path / "in.parquet", "-o", out, "--force") == 0
    assert pd.read_parquet(out)["a"].dtype == np.float32
    assert pa.parquet.read_schema(out).field("d").type == pa.decimal128(3, 2)


def test_decimals_are_numbers(tmp_path):
    from decimal import Decimal

    z = [Decimal(j) / 4 for j in range(40)]
    both = pair(tmp_path, z, z)
    for name in ("new", "old"):
        frame = pd.read_parquet(tmp_path / f"{name}.parquet")
        frame["x"] = [Decimal(round(1000 * x)) / 1000 for x in frame["x"]]
        frame.to_parquet(tmp_path / f"{name}.parquet")
    assert run("fit", *both[:-2], "-c", "z", "-o", tmp_path / "map.json") == 0
    affine = AffineMap.load(tmp_path / "map.json")
    assert list(affine.feature_names) == ["x"]
    assert affine.provenance["confounders"]["z"] == "continuous"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--decimal", ",", "-f", "t"], "'oops' in row 2"),
        (["-f", "t"], "'1,5' in row 1. Give the decimal mark with --decimal"),
        (["-c", "z", "-f", "x"], "--missing drop"),
        (["-f", "x", "--min-overlap", "7"], "--min-overlap"),
        (["-f", "x", "--bootstrap", "-3"], "x>=0"),
        (["-f", "x", "--map", "low-rank:1e400"], "whole number"),
        (["-f", "x", "--map", "zzz:2"], "Got 'zzz' instead"),
        (["-f", "x", "--map", "auto", "--link", "x=log"], "links and ranks do not go with it"),
        (["-f", "x", "--divergence", "jeffreys"], "Got 'jeffreys' instead"),
        (["-f", "x", "--reference-label", "a"], "--domain"),
    ],
)
def test_messages_help(tmp_path, capsys, arguments, message):
    for name in ("new", "old"):
        (tmp_path / f"{name}.csv").write_text("x;t;z\n1;1,5;a\n2;oops;\n3;2,5;b\n")
    two = [tmp_path / "new.csv", "--reference", tmp_path / "old.csv"]
    assert run("fit", *two, *arguments, "-o", tmp_path / "map.json") == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "map.json").exists()


def test_help_lists_maps_and_divergences(capsys):
    from condokit.divergences import DIVERGENCES
    from condokit.maps.families import MAPS

    assert run("fit", "--help") == 0
    words = set(re.split(r"[^\w-]+", re.sub(r"-\n +", "-", capsys.readouterr().out)))
    assert set(MAPS) | set(DIVERGENCES) <= words


def test_a_missing_map_is_one_line(tmp_path, capsys):
    assert run("show", tmp_path / "no.json") == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'no.json'} does not exist.\n"


def test_the_schema_of_a_table_is_quoted_apart(files, capsys):
    assert run("export", identity(files, "a"), "--sql", "-", "--table", "lab.runs") == 0
    assert 'FROM "lab"."runs"' in capsys.readouterr().out


def test_ctrl_c_says_so(files, monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("condokit.cli.commands.load_map", stopped)
    assert run("show", "map.json") == 130
    assert "Interrupted." in capsys.readouterr().err
