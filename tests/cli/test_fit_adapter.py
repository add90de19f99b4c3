"""What a fit says and writes beside its map: verdicts, tables, figures, progress."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from stories import data, run

from condokit import AffineMap


def said_last(capsys):
    return capsys.readouterr().err.splitlines()[-1]


def test_fit_ends_with_the_verdict(files, capsys):
    write = ["-o", files / "map.json", "--force"]
    assert run("fit", *data(files), *write) == 0
    verdict = said_last(capsys)
    assert run("fit", *data(files), *write, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["sentence"] == verdict
    known = record["evaluation"]
    assert record["verdict"] == known["verdict"] == "better"
    assert f"about {known['error_before']:.2f} sd ({known['before_low']:.2f} to " in verdict
    assert f"and {known['error_after']:.2f} sd ({known['after_low']:.2f} to " in verdict
    assert run("report", *data(files), "-o", files / "r.html") == 0
    assert said_last(capsys) == verdict
    page = (files / "r.html").read_text()
    assert verdict.partition(": ")[2][1:] in page
    assert "new.csv made comparable with old.csv" in page
    assert run("fit", *data(files), *write, "--quiet") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "code"), [(ValueError("no idea"), 0), (KeyboardInterrupt(), 130)]
)
def test_a_map_is_kept_whatever_becomes_of_its_verdict(files, capsys, monkeypatch, error, code):
    from condokit.report import contents

    def failing(*_):
        raise error

    monkeypatch.setattr(contents, "judged", failing)
    assert run("fit", *data(files), "-o", files / "map.json") == code
    err = capsys.readouterr().err
    assert "Wrote" in err
    assert err.splitlines()[-1] == ("Interrupted." if code else "Not evaluated: no idea")
    assert AffineMap.load(files / "map.json").n_features_in_ == 16
    assert run("report", *data(files), "-o", files / "r.html") == (code or 2)
    assert not (files / "r.html").exists()


@pytest.mark.parametrize("command", ["fit", "report"])
def test_all_features_go_into_a_table(files, command, capsys):
    arguments = [*data(files), "-o", files / "out", "--table", files / "t.csv"]
    assert run(command, *arguments) == 0
    capsys.readouterr()
    assert run("report", *data(files), "-o", files / "r.html", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    frame = pd.read_csv(files / "t.csv")
    assert len(frame) == 16
    for name, values in record["features"].items():
        column = [None if pd.isna(x) else x for x in frame[name]]
        assert column == values
    assert (frame["change_low"] < frame["change"]).all()
    assert "--table" not in record["reproduce"]["command"]
    assert run(command, *arguments[:-1], files / "t.csv") == 2  # both exist
    assert run(command, *arguments[:-1], files / "old.csv", "--force") == 2
    assert "is read" in capsys.readouterr().err


def test_a_table_of_features_computes_nothing_in_a_spreadsheet(tmp_path, capsys):
    rng, names = np.random.default_rng(0), ["=HYPERLINK(A1)", "+1", "-cmd", "@x", "\tx", "plain"]
    for name in ("new", "old"):
        frame = pd.DataFrame(rng.normal(size=(40, 6)), columns=names)
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    sides = [tmp_path / "new.csv", "--reference", tmp_path / "old.csv"]
    arguments = [*sides, "-o", tmp_path / "m.json", "--table", tmp_path / "t.csv"]
    assert run("fit", *arguments) == 0
    written = pd.read_csv(tmp_path / "t.csv")
    assert sorted(written["feature"]) == sorted([f"'{name}" for name in names[:-1]] + ["plain"])
    assert written["change"].dtype == float  # negative numbers are no text
    assert (written["change"] < 0).any()
    # the columns of whoever applies the map stay as they are
    assert run("apply", tmp_path / "m.json", sides[0], "-o", tmp_path / "out.csv") == 0
    assert list(pd.read_csv(tmp_path / "out.csv").columns) == names


def test_figures_go_into_a_folder(files, capsys, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "figures"
    three = [part for kind in ("png", "svg", "pdf") for part in ("--figure-format", kind)]
    one = [*data(files)[:-1], "eeg_delta_F3"]
    arguments = ["report", *one, "-o", files / "r.html", "--figures", folder, *three]
    assert run(*arguments) == 0
    names = {path.name for path in folder.iterdir()}
    # of one feature there are no components
    stems = ["overlap", "shift", "map", "variance", "confounders", "sites", "distribution_1"]
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg", "pdf")}
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert all(content.startswith(starts[p.suffix[1:]]) for p, content in before.items())
    (files / "r.html").unlink()
    assert run(*arguments) == 2
    assert "overlap.png exists; use --force" in capsys.readouterr().err
    assert not (files / "r.html").exists()
    assert run(*arguments, "--force") == 0
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_six_features_have_figures(files):
    folder = files / "figures"
    assert run("report", *data(files), "-o", files / "r.html", "--figures", folder) == 0
    assert len(list(folder.glob("distribution_*"))) == 6


def test_figures_need_a_folder_and_matplotlib(files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    before = sorted(os.listdir())
    assert run("report", *data(files), "-o", "r.html", "--figures", "old.csv") == 2
    assert "old.csv" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("report", *data(files), "-o", "r.html", "--figures", "drawn") == 2
    assert "condokit[plot]" in capsys.readouterr().err
    assert sorted(os.listdir()) == before


def test_parameters_of_a_report_are_those_of_the_command(files, capsys):
    new = pd.read_csv(files / "new.csv")
    new["seizure"] = new["seizure"].where(new.index > 9)
    new.to_csv(files / "new.csv", index=False)
    options = ["--missing", "drop", "--seed", 3, "-o", files / "r.html", "--json"]
    assert run("report", *data(files), *options) == 0
    record = json.loads(capsys.readouterr().out)
    used, names = record["reproduce"]["parameters"], record["reproduce"]["options"]
    assert (used["missing"], used["random_state"]) == ("drop", 3)
    assert (names["missing"], names["random_state"]) == ("--missing", "--seed")
    assert record["compared"]["left_out"] == [
        {"because": "no value of 'seizure'", "query": 10, "reference": 0}
    ]
    assert {"query": "new.csv", "reference": "old.csv"}.items() <= record["compared"].items()


def test_rows_of_the_reference_that_are_mapped_are_told(files, capsys):
    one = ["--domain", "device", "--reference-label", "v1"]
    roles = ["-c", "seizure", "-f", "eeg_*", "-o", files / "map.json"]
    assert run("fit", files / "all.csv", *one, *roles, "--quiet") == 0
    told = "warning: rows with device = v1 are of the reference, and were mapped as well."
    frame = pd.read_csv(files / "all.csv")
    frame[frame["device"] == "v1"].to_csv(files / "only.csv", index=False)
    for name, options, is_told in (
        ("all", [], True),
        ("only", [], True),
        ("new", [], False),
        ("all", one, False),
        ("all", ["--inverse"], False),
    ):
        write = ["-o", files / "out.csv", "--force"]
        assert run("apply", files / "map.json", files / f"{name}.csv", *options, *write) == 0
        assert (told in capsys.readouterr().err) == is_told


def test_a_pipe_shows_nothing_of_what_is_being_done(files, capsys):
    assert run("fit", *data(files), "-o", files / "map.json") == 0
    assert "Evaluating" not in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
@pytest.mark.parametrize(("options", "is_shown"), [([], True), (["--quiet"], False)])
def test_a_terminal_shows_what_is_done(files, options, is_shown):
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    command = [sys.executable, "-m", "condokit", "fit", *data(files), *options]
    with subprocess.Popen([*map(str, command), "-o", files / "map.json"], stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 1 << 16):
                shown += part
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    assert process.returncode == 0
    for text in (b"Fitting", b"Evaluating the map ..."):
        assert (text in shown) == is_shown


def test_noisy_confounders_are_told(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for name, shift in (("new", 1.0), ("old", 0.0)):
        true = rng.normal(size=300) + shift
        x = {f"x{j}": true + 0.5 * rng.normal(size=300) + 2 * shift for j in (0, 1)}
        scores = {f"score_{k}": true + 0.7 * rng.normal(size=300) for k in (1, 2)}
        pd.DataFrame(x | scores).to_csv(tmp_path / f"{name}.csv", index=False)
    given = [tmp_path / "new.csv", "--reference", tmp_path / "old.csv", "-f", "x*"]
    repeated = ["-c", "score", "--reliability", "score=score_1,score_2"]
    assert run("fit", *given, *repeated, "-o", tmp_path / "map.json", "--quiet") == 0
    twice = AffineMap.load(tmp_path / "map.json")
    kind = twice.provenance["confounders"]["score"]
    assert kind == "continuous, calibrated from 2 measurements"
    once = ["-c", "score_1", "--reliability", "score_1=0.67"]
    assert run("report", *given, *once, "-o", tmp_path / "r.html", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["compared"]["noisy"] == ["score_1"]
    assert "(continuous, calibrated for a reliability of 0.67)" in (tmp_path / "r.html").read_text()
    assert twice([[3.0, 3.0]])[0] == pytest.approx([1.0, 1.0], abs=0.2)
    capsys.readouterr()
    assert run("check", *given, "-c", "score_1", "--reliability", "score_1=2") == 2
    assert "--reliability of 'score_1' must be the share" in capsys.readouterr().err
    assert run("check", *given, "-c", "score_1", "--reliability", "0.8") == 2


@pytest.mark.parametrize("method", ["condo-kl", "condo-mmd"])
def test_the_papers_method_by_its_name(files, capsys, method):
    write = ["-o", files / "map.json", "--force", "--method", method]
    given = data(files)
    assert run("fit", *given, *write) == 0
    found = AffineMap.load(files / "map.json")
    assert found.provenance["divergence"] in ("PaperKL", "MinibatchMMD")
    assert found.provenance["prior"] == "PaperPrior"
    assert found.provenance["adapter"]["divergence"] == method.removeprefix("condo-")
    assert found.provenance["adapter"]["method"] == "ConDo"
    assert run("fit", *given, *write, "--shrinkage", "none", "--map", "affine") == 0
    assert AffineMap.load(files / "map.json").kind == "dense"
    capsys.readouterr()
    for other in (
        ["--divergence", "mmd"],
        ["--shrinkage", "0.5"],
        ["--shrinkage", "0"],
        ["--link", "height=log"],
        ["--controls", "height"],
    ):
        assert run("fit", *given, *write, *other) == 2
        message = capsys.readouterr().err
        assert f"{other[0]} cannot be used with --method {method}, that of the paper" in message
    assert run("fit", *given, *write, "--map", "shift") == 2
    assert "must be 'location-scale' or 'affine'" in capsys.readouterr().err
    assert run("fit", *given, *write, "--groups", "seizure") == 2
    assert "--groups is not in the paper" in (err := capsys.readouterr().err)
    assert "Leave --method out" in err
