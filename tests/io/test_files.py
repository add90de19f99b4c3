"""Tables come back as they were written, and whatever is wrong with a file is one clear line."""

import errno
import io
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from stories import write_h5ad

from condokit import FileError
from condokit import io as files
from condokit.io import open_writer, read_table, scan_table, sha256, write_files

SUFFIXES = ["csv", "csv.gz", "tsv", "tsv.gz", "txt", "parquet", "pq", "feather", "arrow"]
TEXT = [suffix for suffix in SUFFIXES if suffix[0] in "ct"]


def table(n=50, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n) * 10.0 ** rng.integers(-300, 300, n)
    return pa.table(
        {
            "id": np.arange(n),
            "x": pa.array(x, mask=np.arange(n) % 7 == 0),
            "whole": pa.array([float(i) / 2 for i in range(n)]),
            "sex": pa.array(["F", "M"] * (n // 2)).dictionary_encode(),
            "note": pa.array(
                [None, 'a "quoted" word', "two\nlines", "Zürich,\t;|", "-"] * (n // 5)
            ),
            "when": pa.array(np.datetime64("2024-01-01T10:00:00", "ms") + np.arange(n)),
            "ok": pa.array([True, False] * (n // 2)),
        }
    )


def save(path, content, format=None):
    with open_writer(path, format=format) as writer:
        writer.write(content)
    return path


def write(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(path, *words, read=read_table, **options):
    with pytest.raises(FileError) as caught:
        read(path, **options)
    line = str(caught.value)
    assert "\n" not in line
    for word in words:
        assert word in line, line
    return line


def scanned(path, **options):
    with scan_table(path, **options) as scan:
        return pa.concat_tables(scan)


def pipe_in(monkeypatch, content):
    buffer = io.BufferedReader(io.BytesIO(content))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(buffer))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_table_comes_back_as_it_was(tmp_path, suffix):
    whole = table()
    path = tmp_path / f"t.{suffix}"
    with open_writer(path) as writer:
        writer.write(whole.slice(0, 20))
        writer.write(whole.slice(20))
    back = read_table(path)
    assert back.column_names == whole.column_names
    assert back.to_pydict() == whole.to_pydict()
    if suffix not in TEXT:
        assert back.schema == whole.schema
    with scan_table(path, batch_rows=7) as scan:
        assert scan.names == whole.column_names
        assert scan.n_rows in (50, None)
        parts = list(scan)
    assert max(map(len, parts)) == 7
    assert all(part.schema == scan.schema for part in parts)
    assert pa.concat_tables(parts).to_pydict() == whole.to_pydict()
    assert os.listdir(tmp_path) == [path.name]


def test_new_levels_are_added_to_the_dictionary_of_an_arrow_file(tmp_path):
    parts = [["b", "a"], ["c", "a", None], ["d"]]
    for name in ("t.arrow", "t.parquet", "t.csv"):
        with open_writer(tmp_path / name) as writer:
            for part in parts:
                writer.write(pa.table({"x": pa.array(part).dictionary_encode(), "y": part}))
                writer.flush()  # as after 64 MB
        assert read_table(tmp_path / name)["x"].to_pylist() == ["b", "a", "c", "a", None, "d"]


def test_equal_tables_give_equal_files(tmp_path):
    one, two = (save(tmp_path / f"{name}.csv.gz", table()) for name in "ab")
    assert sha256(one) == sha256(two)
    assert len(sha256(one)) == 64


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_the_delimiter_is_found(tmp_path, delimiter):
    for name in ("t.csv", "t.txt"):
        path = write(tmp_path, f"a{delimiter}b\n1{delimiter}2.5\n3{delimiter}x y\n", name)
        assert read_table(path).to_pydict() == {"a": [1, 3], "b": ["2.5", "x y"]}
    assert read_table(path, delimiter="~").num_columns == 1


def test_decimal_commas(tmp_path):
    path = write(tmp_path, "a;b\n1,5;2\n3,25;4\n")
    assert read_table(path, decimal=",").to_pydict() == {"a": [1.5, 3.25], "b": [2, 4]}


def test_marks_of_missing_values(tmp_path):
    path = write(tmp_path, "a,b\n1,x\n.,.\n-,-\nNA,NA\n,\nn/a,None\n#N/A,null\n")
    assert read_table(path).to_pydict() == {
        "a": [1] + [None] * 6,
        "b": ["x", ".", "-", None, None, None, None],
    }
    path = write(tmp_path, "a,b\n1,x\n999,999\n")
    assert read_table(path, na_values=["999"]).to_pydict() == {"a": [1, None], "b": ["x", None]}


@pytest.mark.parametrize("block_bytes", [64, 1 << 24])
@pytest.mark.parametrize(
    ("late", "kind"), [("3.5", "double"), ("x", "string"), ("NA", "int64"), ("4", "int64")]
)
def test_types_come_from_the_whole_file(tmp_path, block_bytes, late, kind):
    rows = "".join(f"{i},,s{i},007\n" for i in range(100))
    path = write(tmp_path, f"a,late,c,code\n{rows}{late},1.5,2024-01-01,8\n")
    sizes = {"block_bytes": block_bytes, "sampled_bytes": 32}
    whole = read_table(path, **sizes)
    with scan_table(path, **sizes) as scan:
        assert scan.n_rows == 101
        parts = list(scan)
    assert (len(parts) > 10) == (block_bytes == 64)
    assert [str(t) for t in whole.schema.types] == [kind, "double", "string", "string"]
    assert pa.concat_tables(parts) == whole
    assert whole["code"][0].as_py() == "007"


def test_numbers_that_would_lose_digits_are_text(tmp_path, monkeypatch):
    rows = "".join(f"{i},1,5,{i}.5\n" for i in range(100))
    path = write(tmp_path, f"code,id,x,y\n{rows}007,12345678901234567890,1,99999999999999999999\n")
    for found in (read_table(path), scanned(path, block_bytes=64)):
        assert [str(t) for t in found.schema.types] == ["string", "string", "int64", "double"]
        assert found["code"].to_pylist()[::100] == ["0", "007"]
        assert found["id"].to_pylist()[-1] == "12345678901234567890"
    found = read_table(path, numbers=["code", "id"])
    assert [str(t) for t in found.schema.types] == ["int64", "double", "int64", "double"]
    pipe_in(monkeypatch, b"a,b\n" + b"1,2\n" * 100 + b"1,02\n")
    refused("-", "column 'b'", "007", read=scanned, block_bytes=64)


def test_columns_that_stay_as_they_are_written(tmp_path):
    path = write(tmp_path, "a,b,c\n01,NA,1\n2, x,NA\n")
    found = read_table(path, texts=["a", "b"])
    assert found.to_pydict() == {"a": ["01", "2"], "b": ["NA", " x"], "c": [1, None]}
    found = read_table(path, numbers=["a"], texts=None)
    assert found.to_pydict() == {"a": [1, 2], "b": ["NA", " x"], "c": ["1", "NA"]}


def test_wide_text_is_read_in_a_moment(tmp_path):
    names = ",".join(f"g{j}" for j in range(20_000))
    row = ",".join(f"{x:.4f}" for x in np.random.default_rng(0).normal(size=20_000))
    path = write(tmp_path, "\n".join([names, *[row] * 10]) + "\n")
    started = time.process_time()
    assert read_table(path).shape == (10, 20_000)
    assert time.process_time() - started < 3


def test_a_late_conflict_on_standard_input_names_column_and_rows(monkeypatch):
    pipe_in(monkeypatch, b"a,b\n" + b"1,2\n" * 100 + b"1,x\n")
    with scan_table("-", block_bytes=64) as scan:
        assert scan.n_rows is None
        with pytest.raises(FileError, match=r"'b' began as int64.*'x' between rows \d+ and \d+"):
            list(scan)
    pipe_in(monkeypatch, b"a,b\n" + b"1,2\n" * 100)
    with scan_table("-", block_bytes=64) as scan:
        assert sum(map(len, scan)) == 100


@pytest.mark.parametrize("block_bytes", [16, 1 << 24])
def test_quoted_lines_and_stray_quotes(tmp_path, block_bytes):
    text = 'a,b\n"x\ny","p ""q"""\n' * 1 + '"x\n\n\ny",2\n' * 9
    whole = read_table(write(tmp_path, text))
    assert scanned(tmp_path / "t.csv", block_bytes=block_bytes) == whole
    assert whole["a"].to_pylist() == ["x\ny"] + ["x\n\n\ny"] * 9
    rows = 'a,b\n1,5" pipe\n' + "2,rod\n" * 50
    assert len(scanned(write(tmp_path, rows), block_bytes=block_bytes)) == 51


def test_encodings(tmp_path):
    text = "name,x\nZürich,1\n"
    expected = {"name": ["Zürich"], "x": [1]}
    assert read_table(write(tmp_path, text.encode("utf-8-sig"))).to_pydict() == expected
    path = write(tmp_path, text.encode("latin-1"))
    refused(path, "byte 8", "0xfc", "'latin-1'")
    assert read_table(path, encoding="latin-1").to_pydict() == expected
    path = write(tmp_path, text.encode("utf-16"))
    refused(path, "byte 0", "'utf-16'")
    assert read_table(path, encoding="utf-16").to_pydict() == expected
    refused(path, "unknown encoding", encoding="nonsense")


def test_line_ends_and_missing_last_line_end(tmp_path):
    for text in ("a,b\r\n1,2\r\n3,4", "a,b\n\n1,2\n3,4\n\n", "a,b\r1,2\r3,4\r"):
        assert read_table(write(tmp_path, text)).to_pydict() == {"a": [1, 3], "b": [2, 4]}
    assert read_table(write(tmp_path, "a\n1\n\n3\n"))["a"].to_pylist() == [1, None, 3]


@pytest.mark.parametrize("read", [read_table, scanned])
def test_damaged_text(tmp_path, read):
    refused(write(tmp_path, ""), "is empty", read=read)
    refused(write(tmp_path, "\n\n"), "is empty", read=read)
    refused(write(tmp_path, "a,b\n"), "no rows", read=read)
    refused(write(tmp_path, "a,b"), "no rows", read=read)
    refused(write(tmp_path, "a,b,a\n1,2,3\n"), "duplicate column names: 'a'", read=read)
    rows = "1,2\n" * 10
    refused(write(tmp_path, f"a,b\n{rows}1,2,3\n"), "line 12", "3 fields", "of 2", read=read)
    refused(write(tmp_path, f"a,b\n\n{rows}1\n{rows}"), "line 13", "1 fields", read=read)


def test_ragged_rows_of_later_blocks_have_their_line(tmp_path):
    path = write(tmp_path, "a,b\n" + "1,2\n" * 500 + "1\n" + "1,2\n" * 50)
    refused(path, "line 502", read=scan_table, block_bytes=64)


@pytest.mark.parametrize("suffix", ["csv.gz", "parquet", "feather"])
def test_files_cut_short(tmp_path, suffix):
    path = save(tmp_path / f"t.{suffix}", table(5000))
    content = path.read_bytes()
    for length in (0, 1, 5, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        refused(path, path.name)
        refused(path, path.name, read=scanned)


def test_places_that_cannot_be_read(tmp_path, monkeypatch):
    path = write(tmp_path, "a\n1\n", "patients.csv")
    refused(tmp_path / "patient.csv", "does not exist", "Did you mean 'patients.csv'?")
    refused(tmp_path / "no" / "t.csv", "there is no folder")
    (tmp_path / "d.csv").mkdir()
    refused(tmp_path / "d.csv", "is a folder")
    refused(tmp_path / "t.xls", "not known", ".parquet")
    refused(tmp_path / "t.parquet.gz", "not known")
    refused(path, "not known", format="cvs")
    refused(tmp_path / "no.csv", "does not exist", read=sha256)

    def locked(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", locked)
    refused(path, "cannot be read: permission denied")


def test_places_that_cannot_be_written(tmp_path):
    path = write(tmp_path, "a\n1\n")
    refused(path, "exists; set force to True to replace it", read=open_writer)
    refused(tmp_path, "", read=open_writer, format="csv")
    refused(tmp_path / "no" / "t.csv", "no folder", read=open_writer)
    refused(tmp_path / "t.h5ad", ".h5ad", read=open_writer)
    refused(path, "exists", read=lambda p: write_files({p: b"x"}))
    write_files({path: "ä\n".encode()}, force=True)
    assert path.read_text() == "ä\n"
    with open_writer(path, force=True) as writer:
        writer.write(pa.table({"b": [1]}))
    assert path.read_text() == '"b"\n1\n'.replace('"', "")
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    umask = os.umask(0)
    os.umask(umask)
    return umask


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, SystemExit])
def test_an_exception_leaves_the_old_file_and_no_other(tmp_path, suffix, error):
    path = write(tmp_path, "old", f"t.{suffix}")
    with pytest.raises(error), open_writer(path, force=True) as writer:  # noqa: PT012
        writer.write(table())
        raise error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_remove_the_temporary_file(tmp_path, number):
    code = f"""
        import signal, time, pyarrow as pa
        from condokit.io import open_writer
        signal.signal({int(number)}, signal.SIG_DFL)  # nohup makes programs ignore it
        with open_writer({str(tmp_path / "t.parquet")!r}) as writer:
            writer.write(pa.table({{"a": [1]}}))
            print("open", flush=True)
            time.sleep(60)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "open\n"
        assert len(os.listdir(tmp_path)) == 1
        process.send_signal(number)
        assert process.wait(20) == 128 + number
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "arrow"])
def test_a_full_disk(tmp_path, monkeypatch, suffix):
    with (
        pytest.raises(FileError, match="no space left"),
        open_writer("/dev/full", format=suffix) as writer,
    ):
        writer.write(table(5000))

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="t.*cannot be written: no space left"):
        save(tmp_path / f"t.{suffix}", table())
    assert os.listdir(tmp_path) == []


def test_a_closed_pipe_says_so():
    code = """
        import pyarrow as pa
        from condokit.io import open_writer
        try:
            with open_writer("-") as writer:
                for _ in range(100):
                    writer.write(pa.table({"a": range(100_000)}))
        except BrokenPipeError:
            import os, sys
            print("closed", file=sys.stderr)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b"closed\n"


@pytest.mark.parametrize("format", [None, "tsv", "csv.gz", "parquet", "arrow"])
def test_standard_input_and_output(monkeypatch, capfdbinary, format):
    save("-", table(), format)
    written = capfdbinary.readouterr().out
    pipe_in(monkeypatch, written)
    assert read_table("-", format=format).to_pydict() == table().to_pydict()
    pipe_in(monkeypatch, written)
    with scan_table("-", format=format) as scan:
        assert pa.concat_tables(scan).to_pydict() == table().to_pydict()
    write_files({"-": b"text\n"})
    assert capfdbinary.readouterr().out == b"text\n"
    pipe_in(monkeypatch, b"")
    refused("-", "Standard input", format=format)


def test_tables_that_cannot_be_written(tmp_path):
    with pytest.raises(FileError, match="list"):
        save(tmp_path / "t.csv", pa.table({"a": [[1]]}))
    with open_writer(tmp_path / "t.csv") as writer:
        writer.write(pa.table({"a": [1]}))
        with pytest.raises(FileError, match="columns changed"):
            writer.write(pa.table({"b": [1]}))
    (tmp_path / "t.csv").unlink()
    with pytest.raises(FileError, match="no table"), open_writer(tmp_path / "t.csv"):
        pass
    assert os.listdir(tmp_path) == []


def test_a_link_stays_a_link(tmp_path):
    path = write(tmp_path, "old", "real.csv")
    (tmp_path / "link.csv").symlink_to(path)
    write_files({tmp_path / "link.csv": b"new"}, force=True)
    assert path.read_text() == "new"
    assert (tmp_path / "link.csv").is_symlink()


def test_wide_tables(tmp_path):
    values = np.random.default_rng(0).normal(size=(3000, 4))
    whole = pa.table(list(values), names=[f"x{j}" for j in range(3000)])
    for suffix in ("csv", "parquet", "arrow"):
        with scan_table(save(tmp_path / f"t.{suffix}", whole)) as scan:
            assert pa.concat_tables(scan) == whole


def test_empty_parquet_is_refused(tmp_path):
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", "no rows")


def mutated(content, rng):
    content = bytearray(content)
    for _ in range(rng.integers(1, 6)):
        at, kind = rng.integers(len(content) + 1), rng.integers(7)
        stop = min(at + rng.integers(1, 40), len(content))
        if kind == 0:
            content[at:stop] = rng.bytes(stop - at)
        elif kind == 1:
            del content[at:stop]
        elif kind == 2:
            content[at:at] = rng.bytes(rng.integers(1, 20))
        elif kind == 3:
            del content[at:]
        elif kind == 4:
            content[at:at] = b"\0" * rng.integers(1, 10)
        elif kind == 5:
            content[at:at] = b"9" * 200_000
        else:
            content[at:at] = rng.choice([b'"', b"\n", b"\r", b",", b"\t", b";", b"\xef\xbb\xbf"])
    return bytes(content)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_text_gives_a_table_or_one_line(tmp_path, seed):
    content = save(tmp_path / "t.csv", table(20)).read_bytes()
    rng = np.random.default_rng(seed)
    start = time.perf_counter()
    for trial in range(125):
        path = write(tmp_path, mutated(content, rng), "m.csv")
        block_bytes = 1 << 24 if trial % 2 else 256
        for read in (read_table, scanned):
            try:
                assert read(path, block_bytes=block_bytes).num_rows
            except FileError as error:
                assert "\n" not in str(error)  # noqa: PT017
    assert time.perf_counter() - start < 30


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv.gz"])
def test_damaged_binary_files_give_a_table_or_one_line(tmp_path, suffix):
    content = save(tmp_path / f"t.{suffix}", table(20)).read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(50):
        path = write(tmp_path, mutated(content, rng), f"m.{suffix}")
        try:
            read_table(path)
        except FileError as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_h5ad(tmp_path, monkeypatch):
    anndata = pytest.importorskip("anndata")
    X = np.random.default_rng(0).poisson(1.0, size=(9, 3)).astype(np.float32)
    genes = ["g0", "g1", "g2"]
    for kind in (np.asarray, sparse.csr_matrix, sparse.csc_matrix):
        path = write_h5ad(tmp_path / f"{kind.__name__}.h5ad", kind(X))
        whole = read_table(path)
        assert whole.column_names == ["obs_names", "sex", *genes]
        assert np.array_equal(np.column_stack([whole[gene] for gene in genes]), X)
        assert whole["sex"].to_pylist() == list("FMF" * 3)
        with scan_table(path, batch_rows=4) as scan:
            assert (scan.n_rows, scan.format) == (9, "h5ad")
            parts = list(scan)
        assert [len(part) for part in parts] == [4, 4, 1]
        assert pa.concat_tables(parts).to_pydict() == whole.to_pydict()
        out = tmp_path / "out.h5ad"
        new = whole.set_column(2, "g0", pa.array(np.arange(9.0)))
        files.replace_h5ad(path, out, new, force=True)
        back = anndata.read_h5ad(out)
        assert np.array_equal(back.X[:, 0], np.arange(9.0))
        assert np.array_equal(back.X[:, 1:], X[:, 1:])
        assert back.X.dtype == np.float32
        assert back.uns["who"] == "us"
        assert back.obsm["pca"].shape == (9, 2)
        assert back.var["long"].tolist() == ["a", "b", "c"]
    refused(path, "exists", read=lambda p: files.replace_h5ad(p, out, new))
    with pytest.raises(FileError, match="'g1'"):
        files.replace_h5ad(path, out, new.drop_columns("g1"), force=True)
    with pytest.raises(FileError, match="9 observations"):
        files.replace_h5ad(path, out, new.slice(1), force=True)
    monkeypatch.setattr(files.h5ad, "_memory", lambda: 100.0)
    refused(path, "GB of memory")
    path.write_bytes(path.read_bytes()[:500])
    refused(path, path.name)


def test_missing_extras_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape("condokit[anndata]")):
        read_table(write(tmp_path, "", "t.h5ad"))
