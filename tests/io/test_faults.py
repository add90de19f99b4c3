"""Files that are odd, that change, or that several programs want at once."""

import hashlib
import json
import os
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from condokit import AffineMap
from condokit.checks import FileError
from condokit.cli import main
from condokit.io import atomic, open_writer, read_table, scan_table
from condokit.io.atomic import whole_file, write_bytes


def run(code, *arguments):
    with pytest.raises(SystemExit, match=str(code)):
        main([str(argument) for argument in arguments])


def test_a_row_of_20_megabytes_is_told_at_once(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("x,t\n1,a\n2," + "b" * 20_000_000 + ",c\n3,d\n")
    start = time.perf_counter()
    with pytest.raises(FileError, match="line 3: 3 fields instead of 2"):
        read_table(path)
    assert time.perf_counter() - start < 20


def test_a_row_is_found_among_rows_that_contain_it(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("x,t\n11,2\n1,1,1\n3,4\n")
    with pytest.raises(FileError, match="line 3"):
        read_table(path)
    path.write_text("x,t,u\n21,1,5\n1,15,3\n1,1\n")
    with pytest.raises(FileError, match="line 4"):
        read_table(path)


@pytest.mark.parametrize("read", [read_table, lambda path: list(scan_table(path))])
def test_an_unclosed_quote_is_no_value(tmp_path, read):
    path = tmp_path / "quote.csv"
    path.write_text('x,t\n1,a\n2,"b\n' + "3,c\n" * 1000)
    with pytest.raises(FileError, match="line 3: a quote is not closed"):
        read(path)
    path.write_text('x,t\n1,"a\nb"\n2,5" pipe\n3,c\n')  # neither of these is unclosed
    assert len(read_table(path)) == 3


@pytest.mark.parametrize("read", [read_table, lambda path: list(scan_table(path))])
def test_a_quote_that_is_closed_in_a_later_row_joins_no_rows(tmp_path, read):
    path = tmp_path / "quote.csv"
    path.write_text('x,t,u\n1,a,b\n2,"b,c\n3,c,d\n4,"d,e\n5,e,f\n')  # still three fields each
    with pytest.raises(FileError, match="line 3: a quote is not closed where its value ends"):
        read(path)
    path.write_text('x,t,u\n1,a,b\n2,"b,c\n3,c,d\n4,d",e\n5,e,f\n')
    with pytest.raises(FileError, match="line 3: the lines of a quoted value look like rows"):
        read(path)
    path.write_text('x,t\n1,a\n2,"b\n3,c"\n4,d\n')
    with pytest.raises(FileError, match="line 3: the lines of a quoted value look like rows"):
        read(path)
    path.write_text('x;t\n1,5;"a\r\n,5;c"\r\n2,5;d\n')
    with pytest.raises(FileError, match="line 2: the lines"):
        read_table(path, decimal=",")


def test_values_of_several_lines_are_read(tmp_path):
    texts = ["Street 1,\n12345 City, Country", 'a "word"\nb', "one\ntwo\nthree", "é\r\n1", "x\n,"]
    frame = pd.DataFrame({"x": np.arange(len(texts)) + 0.5, "t": texts, "u": texts[::-1]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    for name in ("t", "u"):
        assert read_table(tmp_path / "t.csv").column(name).to_pylist() == frame[name].tolist()
    frame[["t"]].to_csv(tmp_path / "one.csv", index=False)
    assert read_table(tmp_path / "one.csv").column("t").to_pylist() == texts


def test_a_file_that_shrinks_is_an_error(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("x\n" + "1.5\n" * 1000)
    with scan_table(path, block_bytes=1000) as scan:
        path.write_text("x\n" + "1.5\n" * 500)
        with pytest.raises(FileError, match="changed while it was read"):
            list(scan)


def test_an_empty_feather_file_has_no_rows(tmp_path):
    import pyarrow as pa

    table = pa.table({"x": pa.array([], pa.float64())})
    with pa.ipc.new_file(tmp_path / "t.feather", table.schema):
        pass
    with pytest.raises(FileError, match="has no rows"):
        read_table(tmp_path / "t.feather")


@pytest.mark.parametrize("links", [True, False])
def test_one_of_several_writers_wins(tmp_path, monkeypatch, links):
    def no_links(*_):
        raise PermissionError

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "out.csv"
    table = pd.DataFrame({"x": [1.0]})
    import pyarrow as pa

    first, second = (open_writer(path) for _ in range(2))
    with first as one:
        with second as two:
            two.write(pa.Table.from_pandas(table))
        one.write(pa.Table.from_pandas(2 * table))
        with pytest.raises(FileError, match="exists; set force to True"):
            first.__exit__(None, None, None)
    assert pd.read_csv(path)["x"].tolist() == [1.0]
    assert os.listdir(tmp_path) == ["out.csv"]


def test_what_killed_programs_left_is_removed(tmp_path):
    path, other = tmp_path / "out.csv", tmp_path / ".other.csv.abc.part"
    other.write_text("not of this file")
    with whole_file(path) as mine:
        stale, fresh = tmp_path / ".out.csv.old.part", tmp_path / ".out.csv.new.part"
        for part in (stale, fresh, other):
            part.write_text("half a row")
        for part in (stale, other, mine.name):
            os.utime(part, (1, 1))
        write_bytes(path, b"whole")
        assert not stale.exists()
        assert fresh.exists()  # perhaps somebody is about to write it
        assert other.exists()
        assert os.path.exists(mine.name)  # it has a lock
    assert atomic._STALE >= 60


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("new", "old"):
        pd.DataFrame({"x": rng.normal(size=60)}).to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


def test_a_hard_link_to_an_input_is_refused(files, capsys):
    os.link(files / "new.csv", files / "map.json")
    two = [files / "new.csv", "--reference", files / "old.csv"]
    run(2, "fit", *two, "-o", files / "map.json", "--force")
    assert "is read, and would be lost" in capsys.readouterr().err


def test_outputs_of_a_fit_are_a_set(files, monkeypatch):
    import condokit.report.contents

    def fail(*_, **__):
        raise ValueError("no report")

    monkeypatch.setattr(condokit.report.contents, "build", fail)
    two = [files / "new.csv", "--reference", files / "old.csv"]
    run(2, "fit", *two, "-o", files / "map.json", "--report", files / "report.html")
    assert sorted(os.listdir(files)) == ["new.csv", "old.csv"]


def test_outputs_of_a_fit_take_their_names_together(files, monkeypatch, capsys):
    outputs = {name: files / name for name in ("map.json", "report.html", "adapted.csv")}
    for path in outputs.values():
        path.write_text("old")
    taken, take = [], atomic._take_name

    def noted(name, place, replaces):
        if not taken:  # all is written by then
            parts = [path.name for path in files.glob(".*.part")]
            assert len(parts) == 3
        taken.append(place.name)
        take(name, place, replaces)

    monkeypatch.setattr(atomic, "_take_name", noted)
    two = [files / "new.csv", "--reference", files / "old.csv", "--force", "--json"]
    written = ["-o", outputs["map.json"], "--report", outputs["report.html"]]
    run(0, "fit", *two, *written, "--adapted", outputs["adapted.csv"])
    assert taken == ["adapted.csv", "report.html", "map.json"]  # a new map has all new beside it
    found = hashlib.sha256(outputs["map.json"].read_bytes()).hexdigest()
    assert found in outputs["report.html"].read_text()
    assert json.loads(capsys.readouterr().out)["report"]["reproduce"]["map_sha256"] == found


def test_a_table_that_cannot_be_mapped_leaves_all_as_it_was(files, monkeypatch):
    def fail(*_, **__):
        raise ValueError("no table")

    monkeypatch.setattr("condokit.cli.apply_file.apply_to_file", fail)
    (files / "map.json").write_text("old")
    two = [files / "new.csv", "--reference", files / "old.csv", "--force"]
    run(2, "fit", *two, "-o", files / "map.json", "--adapted", files / "adapted.csv")
    assert (files / "map.json").read_text() == "old"
    assert sorted(os.listdir(files)) == ["map.json", "new.csv", "old.csv"]


def test_apply_does_not_replace_its_input(files, capsys):
    AffineMap([2.0], [1.0], ["x"]).save(files / "map.json")
    before = (files / "new.csv").read_bytes()
    run(2, "apply", files / "map.json", files / "new.csv", "-o", files / "new.csv", "--force")
    assert "new.csv is read, and would be lost" in capsys.readouterr().err
    assert (files / "new.csv").read_bytes() == before


def test_files_of_one_name_are_told_apart_without_their_folders(files):
    for name in ("new", "old"):
        (files / name).mkdir()
        os.rename(files / f"{name}.csv", files / name / "x.csv")
    two = [files / "new" / "x.csv", f"--reference={files / 'old' / 'x.csv'}"]
    run(0, "fit", *two, "-o", files / "map.json")
    made = AffineMap.load(files / "map.json").provenance
    assert list(made["command"])[2:4] == ["x.csv", "--reference=x (2).csv"]
    assert [file["name"] for file in made["files"]] == ["x.csv", "x (2).csv"]


RACE = """
import os
import sys
import pyarrow.csv
from condokit.cli import apply_file, main

children = []
for _ in range(8):
    child = os.fork()
    if not child:
        try:
            main(sys.argv[1:])
        except SystemExit as end:
            sys.stderr.flush()
            os._exit(end.code or 0)
    children.append(child)
print(*sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="programs do not divide here")
def test_eight_parallel_applies_have_one_winner(files):
    """Eight that are loaded already, so that they want the name at the same time."""
    AffineMap([2.0], [1.0], ["x"]).save(files / "map.json")
    command = [sys.executable, "-c", RACE, "apply", "map.json", "new.csv", "-o", "o.csv"]
    done = subprocess.run(command, cwd=files, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"] + ["2"] * 7
    assert done.stderr.count("o.csv exists; use --force") == 7


def test_closed_standard_output_is_one_line(files):
    AffineMap([2.0], [1.0], ["x"]).save(files / "map.json")
    command = f"{sys.executable} -m condokit apply map.json new.csv -o - >&-"
    done = subprocess.run(command, shell=True, cwd=files, capture_output=True, text=True)
    assert done.stderr.startswith("error: Standard output is closed")
    if int(pa.__version__.partition(".")[0]) >= 26:  # threads of older ones may abort at the end
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
    assert json.loads((files / "map.json").read_text())["format"]
