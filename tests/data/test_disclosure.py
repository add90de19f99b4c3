"""What is printed and saved tells of no single row, subject or folder."""

import json

import numpy as np
import pandas as pd
import pytest

from condokit import ConDoAdapter
from condokit.cli import main
from condokit.data.disclosure import hidden_overlap, shown_names


def frame(seed, n_rare):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(size=(200, 2)), columns=["x", "y"])
    table["illness"] = rng.choice(["flu", "cold"], 200)
    table.loc[: n_rare - 1, "illness"] = "kuru"
    table.loc[5:7, "y"] = np.nan
    return table


@pytest.fixture
def paths(tmp_path):
    folder = tmp_path / "ward_of_dr_who"
    folder.mkdir()
    for name, n_rare, seed in (("new", 3, 0), ("old", 0, 1)):
        frame(seed, n_rare).to_csv(folder / f"{name}.csv", index=False)
    return folder


def run(*arguments):
    with pytest.raises(SystemExit, match="0"):
        main([str(argument) for argument in arguments])


def test_nothing_tells_of_few_rows_rare_levels_or_folders(paths, tmp_path, capsys):
    out, page = tmp_path / "map.json", tmp_path / "report.html"
    roles = ["-c", "illness", "-f", "x,y", "--json", "-o", out, "--report", page]
    run("fit", paths / "new.csv", f"--reference={paths / 'old.csv'}", *roles)
    said = capsys.readouterr()
    for text in (said.out.split('"report":')[1], said.err, out.read_text(), page.read_text()):
        assert "kuru" not in text
        assert "dr_who" not in text
    record, saved = json.loads(said.out), json.loads(out.read_text())
    assert record["rows_query"] == record["overlap"]["effective_query"] == "~195"
    assert record["overlap"]["outside"] == {"illness": None}
    assert saved["provenance"]["command"][2:4] == ["new.csv", "--reference=old.csv"]
    assert saved["fitted_on"]["missing"] == [0, 0]
    assert list(record["report"]["reproduce"]["inputs"]) == ["new.csv", "old.csv"]
    incoming = pd.read_csv(paths / "new.csv")
    incoming.loc[0, "x"] = 1e3
    incoming.to_csv(paths / "incoming.csv", index=False)
    run("apply", out, paths / "incoming.csv", "-o", tmp_path / "out.csv", "--json")
    features = json.loads(capsys.readouterr().out)["features"]
    assert features["outside"][0] is None
    assert features["missing"] == [0, None]
    incoming[:3].to_csv(paths / "few.csv", index=False)
    run("apply", out, paths / "few.csv", "-o", tmp_path / "few.csv", "--json")
    assert json.loads(capsys.readouterr().out)["n_rows"] == "<5"


@pytest.mark.filterwarnings("ignore")
def test_the_range_is_not_that_of_a_subject():
    rng = np.random.default_rng(0)
    X, who = rng.normal(size=(2400, 1)), np.arange(2400) // 10  # 120 subjects of each domain
    X[30:40] += 100.0
    groups = (who[:1200], who[1200:])
    fitted = ConDoAdapter().fit_pair(X[:1200], X[1200:], groups=groups).map_.fitted_on
    most = np.sort([X[:1200][who[:1200] == k].max() for k in range(120)])
    assert fitted.high[0] == most[-5]
    few = ConDoAdapter().fit_pair(X[:200], X[1200:1400], groups=(who[:200], who[1200:1400])).map_
    assert few.fitted_on.high is None
    lone = ConDoAdapter("shift").fit_pair(X[:30], X[1200:1400], groups=(who[:30], who[1200:1400]))
    assert np.isnan(lone.map_.fitted_on.mean).all()  # of three subjects
    assert lone.map_.to_dict()["fitted_on"]["mean"] == [None]


def test_errors_and_memory_are_worded(paths, monkeypatch, capsys):
    def fail(*_, **__):
        raise MemoryError

    two = [paths / "old.csv", "--reference", paths / "new.csv", "-f", "x", "-o", paths / "m.json"]
    for _ in range(2):
        with pytest.raises(SystemExit, match="2"):
            main([str(part) for part in ("fit", *two, "-c", "y")])
        monkeypatch.setattr(ConDoAdapter, "fit_domains", fail)
        two += ["--missing", "drop"]
    said = capsys.readouterr().err
    assert "has 6 missing values" in said
    assert "There is not enough memory" in said
    frame(0, 0).fillna({"y": 0}).to_csv(paths / "old.csv", index=False)
    with pytest.raises(SystemExit, match="2"):
        main([str(part) for part in ("fit", *two[:-4], "-c", "y")])
    assert "has <5 missing values" in capsys.readouterr().err


def test_names_and_overlap():
    assert shown_names(["a", "b", "c"], np.array([4, 5, 0])) == ["(rare)", "b", "c"]
    overlap = {"outside": {"z": 0.03}, "effective_query": 97.0, "effective_reference": 80.0}
    shown = hidden_overlap(overlap, 100, 100)
    assert shown["outside"] == {"z": None}
    assert (shown["effective_query"], shown["effective_reference"]) == ("~95", 80.0)


def few_infinite():
    table = frame(0, 0)
    table.loc[:2, "x"] = np.inf
    return table


def none_known():
    return frame(0, 0)[:3].assign(illness=None)


def no_feature():
    return frame(0, 0)[:3].assign(x=np.nan)


def other_labels():
    day = ["c"] * 3 + ["a", "b", "b"] * 65 + ["a", "a"]
    return frame(0, 0).assign(day=day)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (few_infinite, [], "contains infinity, in 'x'."),
        (none_known, ["--missing", "drop"], "after dropping <5 rows"),
        (no_feature, [], "missing in the <5 query rows"),
        (other_labels, ["--domain", "day", "--query-label", "a"], "<5 rows with other labels"),
    ],
)
def test_messages_tell_of_no_few(paths, tmp_path, capsys, make, arguments, message):
    make().to_parquet(paths / "new.parquet")
    sides = ["--reference-label", "b"] if "--domain" in arguments else ["--reference"]
    sides += [] if "--domain" in arguments else [paths / "old.csv"]
    command = ["check", paths / "new.parquet", *sides, "-c", "illness", "-f", "x,y", *arguments]
    with pytest.raises(SystemExit):
        main([str(argument) for argument in command])
    said = capsys.readouterr().err
    assert message in said
    assert " 3 " not in said


def test_few_infinite_values_are_not_counted_when_applying(paths, tmp_path, capsys):
    run("fit", paths / "new.csv", "--reference", paths / "old.csv", "-f", "x", "-o", tmp_path / "m")
    few_infinite().to_parquet(paths / "new.parquet")
    command = ["apply", tmp_path / "m", paths / "new.parquet", "-o", tmp_path / "out.csv"]
    with pytest.raises(SystemExit, match="2"):
        main([str(argument) for argument in command])
    assert "'x' has infinite values" in capsys.readouterr().err
