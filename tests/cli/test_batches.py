import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from batches_made import Made
from stories import told as run

from condokit import BatchAdapter

DATA = ["--batch", "site", "--reference-label", "A", "-c", "group"]


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = Made(1, [(0, 1), (1, 2), (2, 3), (3, 4)])
    made.table = made.table.drop(columns="years")
    made.table.insert(0, "note", "as, written")
    made.table.to_csv("all.csv", index=False)
    return made


def test_fit_apply_show(made, capsys):
    code, _, err = run(capsys, "fit", "all.csv", *DATA, "-o", "maps.json", "--adapted", "a.csv")
    assert code == 0
    assert "D > C > B > A" in err
    assert "Batches: " in err
    adapter = BatchAdapter.load("maps.json")
    expected = adapter.transform(made.table, batch="site")
    code, _, err = run(capsys, "apply", "maps.json", "all.csv", "-o", "b.csv")
    assert code == 0
    written = pd.read_csv("b.csv")
    np.testing.assert_allclose(written[made.features], expected, rtol=1e-12)
    assert written["note"].eq("as, written").all()
    assert Path("a.csv").read_text() == Path("b.csv").read_text()
    code, _, _ = run(capsys, "apply", "maps.json", "b.csv", "-o", "c.parquet", "--inverse")
    assert code == 0
    np.testing.assert_allclose(pd.read_parquet("c.parquet")[made.features], made.X, atol=1e-9)
    code, out, _ = run(capsys, "show", "maps.json")
    assert code == 0
    assert "D > C > B > A" in out
    facts = json.loads(run(capsys, "show", "maps.json", "--json")[1])
    assert facts["files"][0]["name"] == "all.csv"
    assert facts["column"] == "site"


def test_files_fit_the_schema(made, capsys):
    jsonschema = pytest.importorskip("jsonschema")

    run(capsys, "fit", "all.csv", *DATA, "-o", "maps.json", "--quiet")
    schema = json.loads(
        (Path(__file__).parents[2] / "docs" / "reference" / "map-schema.json").read_text()
    )
    jsonschema.validate(json.loads(Path("maps.json").read_text()), schema)


def test_reports(made, capsys):
    code, _, _ = run(capsys, "fit", "all.csv", *DATA, "-o", "maps.json", "--report", "r.html")
    assert code == 0
    code, _, err = run(capsys, "report", "all.csv", *DATA, "-o", "s.html")
    assert code == 0
    assert "Batches: " in err
    for name in ("r.html", "s.html"):
        page = Path(name).read_text()
        assert "<svg" in page
        assert "all.csv" in page


def test_reports_of_a_batch_that_bridges_alone_reach(made, capsys):
    made.table["control"] = [f"s{k % 60}" if k % 60 < 12 else "" for k in range(240)]
    rows = made.table[(made.table["site"] != "C") & (made.table["site"] != "B")]
    rows.to_csv("all.csv", index=False)
    data = [*DATA, "--bridge", "control", "-f", "f*", "-o", "maps.json", "--report", "r.html"]
    code, _, err = run(capsys, "fit", "all.csv", *data)
    assert code == 0
    assert "Traceback" not in err
    assert "nothing but bridges connects" in Path("r.html").read_text()


def test_check_and_plan(made, capsys):
    code, out, _ = run(capsys, "check", "all.csv", *DATA)
    assert code == 0
    assert "Pairs of batches" in out
    record = json.loads(run(capsys, "check", "all.csv", *DATA, "--json")[1])
    assert record["batches"]["path"][3] == "D > C > B > A"
    code, out, err = run(capsys, "plan", "all.csv", *DATA, "-n", "3")
    assert "row numbers" in err
    assert code == 0
    assert "Measuring 3 samples in another batch as well lowers" in out
    record = json.loads(run(capsys, "plan", "all.csv", *DATA, "-n", "3", "--json")[1])
    assert len(record["again"]) == 3
    assert record["error_after"] < record["error_before"]


def test_rows_without_a_bridge_are_not_one_sample(made, capsys):
    made.table.insert(0, "control", ["" if k % 20 else f"s{k % 60}" for k in range(240)])
    made.table.to_csv("all.csv", index=False)
    code, out, _ = run(capsys, "check", "all.csv", *DATA, "--bridge", "control", "--json")
    assert code == 0
    assert json.loads(out)["pairs"]["bridges"] == ["<5"] * 6


def test_features_that_a_batch_lacks_and_rows_without_a_label(made, capsys):
    made.table.loc[made.code == 1, "f0"] = np.nan
    made.table.to_csv("all.csv", index=False)
    code, _, err = run(capsys, "fit", "all.csv", *DATA, "-o", "maps.json")
    assert code == 2
    assert "--features common" in err
    code, _, _ = run(capsys, "fit", "all.csv", *DATA, "-o", "maps.json", "-f", "common")
    assert code == 0
    assert list(BatchAdapter.load("maps.json").feature_names_in_) == made.features[1:]
    made.table.loc[:9, "site"] = ""
    made.table.to_csv("all.csv", index=False)
    code, _, err = run(capsys, "check", "all.csv", *DATA)
    assert code == 2
    assert "10 missing values" in err


def test_islands(made, capsys):
    rows = made.table[made.table["site"] != "B"]
    rows.to_csv("islands.csv", index=False)
    code, _, err = run(capsys, "fit", "islands.csv", *DATA, "-o", "maps.json")
    assert code == 3
    assert "'C', 'D'" in err
    assert "condokit plan" in err
    assert run(capsys, "check", "islands.csv", *DATA)[0] == 3
    data = ["--batch", "site", "--reference-label", "C", "-c", "group", "--keep-unreachable"]
    code, _, err = run(capsys, "fit", "islands.csv", *data, "-o", "maps.json")
    assert code == 0
    assert "left as it is" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "all.csv", "--batch", "sight", "-o", "m.json"], "Did you mean 'site'"),
        (["fit", "all.csv", "--batch", "site", "-o", "m.json"], "--reference-label must name"),
        (["fit", "all.csv", *DATA, "--domain", "site", "-o", "m.json"], "or --batch"),
        (["check", "all.csv", "--domain", "site", "--reference-label", "A"], "use --batch"),
        (["plan", "all.csv", "--domain", "site", "--reference-label", "A"], "needs --batch"),
        (["check", "all.csv", "--bridge", "note", "--reference", "all.csv"], "--bridge"),
    ],
)
def test_bad_options(made, capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_an_unknown_batch_is_named(made, capsys):
    run(capsys, "fit", "all.csv", *DATA, "-o", "maps.json", "--quiet")
    made.table.replace({"site": {"D": "Z"}}).to_csv("new.csv", index=False)
    code, _, err = run(capsys, "apply", "maps.json", "new.csv", "-o", "out.csv")
    assert code == 2
    assert "'Z', for which there is no map. There are maps for 'A', 'B', 'C', 'D'" in err
    made.table.drop(columns="site").to_csv("new.csv", index=False)
    code, _, err = run(capsys, "apply", "maps.json", "new.csv", "-o", "out.csv")
    assert code == 2
    assert "has no column 'site'. Name the column of the batches with --batch or" in err


def test_a_report_with_table_figures_and_tolerances(made, capsys):
    arguments = ["all.csv", *DATA, "-o", "r.html", "--table", "t.csv", "--figures", "out"]
    code, _, err = run(
        capsys, "report", *arguments, "--tolerance", "f0=9", "--tolerance", "f1=1e-9"
    )
    assert code == 0
    table = pd.read_csv("t.csv")
    assert len(table) == 3 * 12
    assert {"batch", "verdict", "change_low", "error_after_high", "scale_high"} <= {*table.columns}
    assert {"shift.png", "components.png", "sites.png"} <= {p.name for p in Path("out").iterdir()}
    assert "Within limits: error after the map, and its upper 95% limit, in units" in err
    assert err.count("yes") == 3
    asked = table[table["feature"] == "f0"]
    assert (asked["tolerance"] == 9).all()
    assert (asked["within"] == "yes").all()
    assert table.loc[~table["feature"].isin(["f0", "f1"]), "within"].isna().all()
    page = Path("r.html").read_text()
    assert "within 9: yes" in page.replace("<wbr>", "").replace("</bdi>", "")
    unknown = ["--tolerance", "g0=1", "-o", "not.json"]
    code, _, err = run(capsys, "fit", "all.csv", *DATA, *unknown)
    assert (code, "'g0'" in err, Path("not.json").exists()) == (2, True, False)
    code, _, err = run(capsys, "report", *arguments, "--force", "--tolerance", "f0")
    assert (code, "FEATURE=NUMBER" in err) == (2, True)
    Path("limits.csv").write_text("feature,tolerance,imprecision\nf0,9,0.1\nf1,9,\n")
    wanted = ["fit", "all.csv", *DATA, "-o", "m.json", "--require", "within limits"]
    code, _, err = run(capsys, *wanted, "--tolerance", "limits.csv")
    assert (code, err.count("yes")) == (0, 6)
    code, out, _ = run(
        capsys, *wanted[:-2], "--tolerance", "limits.csv", "--force", "--json", "--quiet"
    )
    assert json.loads(out)["verdict"] is None
    code, out, _ = run(capsys, *wanted[:-2], "--tolerance", "limits.csv", "--force", "--json")
    record = json.loads(out)
    assert record["verdict"] in ("better", "cannot tell")
    assert "\n" not in record["sentence"]
    known = record["evaluation"]
    assert [one["within"] for one in known["tolerances"]] == ["yes"] * 6
    assert (
        f"{max(one['error_after'] for one in known['batches']):.2f} sd after" in record["sentence"]
    )
    more = ["--tolerance", "limits.csv", "--imprecision", "f1=8", "--force"]
    code, _, err = run(capsys, *wanted, *more)
    assert (code, err.count("imprecision alone is 13.2")) == (4, 3)
    code, _, err = run(capsys, *wanted, "--force")
    assert (code, "needs --tolerance" in err) == (2, True)
    Path("limits.csv").write_text("name,limit\nf0,9\n")
    code, _, err = run(capsys, *wanted, "--force", "--tolerance", "limits.csv")
    assert (code, "Got 'name', 'limit'" in err) == (2, True)
