"""Maps in ONNX, SQL and plain Python do what they do here."""

import json
import math
import shutil
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from condokit import AffineMap, MonotoneMap
from condokit.export import export, to_onnx, to_python, to_r, to_sql
from condokit.export.sql import DIALECTS

HOSTILE = [
    'a"b',
    "select",
    "Größe; DROP TABLE incoming; --",
    "new\nline\u2028and tab\t",
    "x1",
    "back\\slash 'quote' {0} %s",
]
LINKS = ["log", "logit", 0.5, 3, None, "log"]


def make(kind, links=None, names=HOSTILE, seed=0):
    rng = np.random.default_rng(seed)
    d = len(names)
    scale, parts = rng.uniform(0.5, 2, d), {}
    if kind in ("dense", "sparse", "wide", "tall"):
        rows = {"wide": 3, "tall": 9}.get(kind, d)
        scale = rng.normal(size=(rows, d)) / 3
        if kind == "sparse":
            scale[rng.random(scale.shape) < 0.6] = 0
            scale[2] = 0
    elif kind == "low-rank":
        parts = {key: rng.normal(size=(d, 2)) / 3 for key in ("left", "right")}
        parts["left"][1], parts["right"][2], scale[3] = 0, 0, 0
    elif kind == "flat":
        scale[2] = 0
    elif kind == "monotone":
        knots, values = (np.cumsum(rng.uniform(0.1, 0.5, (d, 5)), axis=1) for _ in range(2))
        values[[1, 4]] = 1.3 * knots[[1, 4]] + 0.2  # straight lines beside curves
        return MonotoneMap(knots - 0.3, values - 0.5, None, names, links=links)
    offset = rng.normal(size=scale.shape[0])
    return AffineMap(scale, offset, names, links=links, **parts)


CASES = [
    pytest.param(kind, links, id=f"{kind}{'-links' * (links is not None)}")
    for kind in ("diagonal", "flat", "monotone", "low-rank", "dense", "sparse", "wide", "tall")
    for links in (None, LINKS)
    if links is None or kind not in ("wide", "tall")
]


def rows(n=50, gaps=True):
    rng = np.random.default_rng(1)
    X = rng.uniform(0.01, 0.99, size=(n, len(HOSTILE)))
    if gaps:
        X[rng.random(X.shape) < 0.15] = np.nan
        X[0] = np.nan
    return X


def run_onnx(affine, X):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(to_onnx(affine), providers=["CPUExecutionProvider"])
    return session.run(["Y"], {"X": X})[0], session.get_modelmeta().custom_metadata_map


@pytest.fixture
def duck():
    connection = pytest.importorskip("duckdb").connect()
    yield connection
    connection.close()


def fill(duck, names, X, nan=False, table="incoming"):
    def quoted(name):
        return '"' + name.replace('"', '""') + '"'

    columns = ", ".join(f"{quoted(name)} DOUBLE" for name in names)
    duck.execute(f"CREATE OR REPLACE TABLE {quoted(table)} ({columns}, id INTEGER)")
    values = [
        [None if np.isnan(v) and not nan else float(v) for v in row] + [i]
        for i, row in enumerate(X)
    ]
    marks = ", ".join("?" * (len(names) + 1))
    duck.executemany(f"INSERT INTO {quoted(table)} VALUES ({marks})", values)


def adapt_of(affine):
    module = {}
    exec(compile(to_python(affine), "adapt.py", "exec"), module)
    return module["adapt"]


@pytest.mark.parametrize(("kind", "links"), CASES)
def test_onnx_maps_as_the_map_does(kind, links):
    affine, X = make(kind, links), rows()
    Y, facts = run_onnx(affine, X)
    np.testing.assert_allclose(Y, affine(X), rtol=1e-12, atol=1e-13)
    assert json.loads(facts["feature_names"]) == HOSTILE
    assert json.loads(facts["output_names"]) == list(affine.outputs(HOSTILE))


def test_onnx_models_are_the_same_for_the_same_map_and_may_lack_names():
    affine = AffineMap([2.0, 3.0], [1.0, 1.0])
    assert to_onnx(affine) == to_onnx(affine)
    Y, facts = run_onnx(affine, np.array([[1.0, np.nan]]))
    np.testing.assert_array_equal(Y, [[3.0, np.nan]])
    assert facts == {}


def test_onnx_takes_any_number_of_rows():
    affine = make("dense", LINKS)
    for n in (0, 1, 1000):
        X = rows(n, gaps=False)
        np.testing.assert_allclose(run_onnx(affine, X)[0], affine(X) if n else X, rtol=1e-12)


@pytest.mark.parametrize(("kind", "links"), CASES)
@pytest.mark.parametrize("nan", [False, True])
def test_sql_maps_as_the_map_does(duck, kind, links, nan):
    affine, X = make(kind, links), rows()
    fill(duck, HOSTILE, X, nan=nan)
    result = duck.execute(to_sql(affine, keep=["id"]) + "ORDER BY id")
    assert [column[0] for column in result.description] == ["id", *affine.outputs(HOSTILE)]
    found = np.array(result.fetchall(), dtype=float)  # None becomes NaN
    np.testing.assert_array_equal(found[:, 0], np.arange(len(X)))
    np.testing.assert_allclose(found[:, 1:], affine(X), rtol=1e-10, atol=1e-12)


def test_sql_reads_any_table_and_loses_no_digit(duck):
    affine = AffineMap([0.1 + 0.2, 1e-300, 1 / 3], [1e22, -5e-324, 0.0], ["a", "b", "c"])
    X = np.array([[1.0, 1.0, 1.0], [7.0, -3.0, 1e10]])
    table = 'in"coming; --'
    fill(duck, "abc", X, table=table)
    found = duck.execute(to_sql(affine, ["main", table])).fetchall()
    np.testing.assert_array_equal(np.array(found), affine(X))


def test_long_sums_are_no_deep_expressions(duck):
    rng = np.random.default_rng(0)
    names = [f"f{j}" for j in range(1200)]
    factors = {key: rng.normal(size=(1200, 1)) for key in ("left", "right")}
    affine = AffineMap(rng.normal(size=1200), rng.normal(size=1200), names, **factors)
    X = rng.normal(size=(2, 1200))
    fill(duck, names, X)
    found = np.array(duck.execute(to_sql(affine)).fetchall())
    np.testing.assert_allclose(found, affine(X), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "does not know the names"),
        ({"names": ["a"]}, "must be 2 names"),
        ({"names": ["a", "a"]}, "different names"),
        ({"names": ["a", ""]}, "cannot be the name"),
        ({"names": ["a", "b\0"]}, "cannot be the name"),
        ({"names": ["a", "b"], "keep": ["b"]}, "Got 'b' twice"),
        ({"names": ["a", "b"], "keep": "id"}, "list of columns"),
        ({"names": ["a", "b"], "table": ""}, "cannot be the name"),
    ],
)
def test_sql_needs_good_names(arguments, message):
    with pytest.raises(ValueError, match=message):
        to_sql(AffineMap([1.0, 2.0], [0.0, 0.0]), **arguments)


def test_sql_takes_names_for_a_map_without_any():
    assert 'AS "b"' in to_sql(AffineMap([1.0, 2.0], [0.0, 0.0]), names=["a", "b"])
    with pytest.raises(ValueError, match="names of its own"):
        to_sql(make("diagonal"), names=list("abcdef"))


@pytest.mark.parametrize(("kind", "links"), CASES)
@pytest.mark.parametrize("gap", [None, math.nan])
def test_python_maps_as_the_map_does(kind, links, gap):
    affine, X = make(kind, links), rows()
    adapt = adapt_of(affine)
    unnamed = adapt_of(type(affine)(**{**affine.get_params(), "feature_names": None}))
    for x, y in zip(X, affine(X)):
        row = [gap if np.isnan(v) else float(v) for v in x]
        found = adapt({**dict(zip(HOSTILE, row)), "id": "ignored"})
        assert list(found) == list(affine.outputs(HOSTILE))
        values = list(found.values())
        assert all((v is None) == (np.isnan(t) and gap is None) for v, t in zip(values, y))
        numbers = np.array(values, dtype=float)
        np.testing.assert_allclose(numbers, y, rtol=1e-12, atol=1e-13)
        np.testing.assert_array_equal(np.array(unnamed(row), dtype=float), numbers)


def test_python_source_needs_no_package(tmp_path):
    affine = make("low-rank", LINKS)
    export(affine, tmp_path / "adapt.py")
    row = dict(zip(HOSTILE, rows(gaps=False)[0].tolist()))
    (tmp_path / "row.json").write_text(json.dumps(row))
    code = (
        "import json, sys, adapt\n"
        "row = json.load(open('row.json'))\n"
        "result = adapt.adapt(row)\n"
        "assert not {'numpy', 'condokit'} & set(sys.modules)\n"
        "json.dump(result, sys.stdout)\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    expected = affine(rows(gaps=False)[:1])[0]
    np.testing.assert_allclose([found[name] for name in HOSTILE], expected, rtol=1e-12)


@pytest.mark.parametrize("link", ["log", "logit", 2.0])
@pytest.mark.parametrize("value", [-0.5, 0.0, 1.0, 1.5])
def test_values_that_a_link_does_not_admit(duck, link, value):
    affine = AffineMap([1.5], [0.3], ["a"], links=link)
    X = np.array([[value]])
    try:
        expected = float(affine(X)[0, 0])
    except ValueError:
        expected = np.nan
        with pytest.raises(ValueError, match="does not admit"):
            adapt_of(affine)({"a": value})
    else:
        assert adapt_of(affine)({"a": value})["a"] == pytest.approx(expected, rel=1e-12)
    fill(duck, ["a"], X)
    [[by_sql]] = duck.execute(to_sql(affine)).fetchall()
    assert (by_sql is None) == np.isnan(expected)
    for found in (run_onnx(affine, X)[0][0, 0], by_sql):
        if found is not None:
            assert found == pytest.approx(expected, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("offset", [-2000.0, -90.0, 20.0, 2000.0])
def test_bounded_features_stay_bounded(duck, offset):
    affine = AffineMap([1.0], [offset], ["a"], links="logit")
    X = np.array([[0.5], [np.nan]])
    expected = affine(X)
    assert 0 < expected[0, 0] < 1
    fill(duck, ["a"], X)
    by_sql = np.array(duck.execute(to_sql(affine)).fetchall(), dtype=float)
    by_python = [[adapt_of(affine)({"a": v})["a"]] for v in X[:, 0].tolist()]
    for found in (run_onnx(affine, X)[0], by_sql, by_python):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_powers_below_zero_become_zero(duck):
    affine = AffineMap([1.0], [-5.0], ["a"], links=2.0)
    X = np.array([[1.0], [3.0], [np.nan]])
    fill(duck, ["a"], X)
    by_sql = np.array(duck.execute(to_sql(affine)).fetchall(), dtype=float)
    by_python = [[adapt_of(affine)({"a": v})["a"]] for v in X[:, 0].tolist()]
    for found in (run_onnx(affine, X)[0], by_sql, by_python):
        np.testing.assert_allclose(found, [[0.0], [2.0], [np.nan]], rtol=1e-12)


def test_python_refuses_what_the_map_refuses():
    adapt = adapt_of(AffineMap([2.0], [0.0]))
    for row in ([math.inf], [1e308], [1.0, 2.0]):
        with pytest.raises(ValueError, match="infinite|too large|must have 1 values"):
            adapt(row)


def test_files_are_written_by_their_ending(tmp_path):
    affine = make("diagonal")
    for ending, content in ((".onnx", to_onnx(affine)), (".sql", to_sql(affine).encode())):
        export(affine, tmp_path / f"map{ending}")
        assert (tmp_path / f"map{ending}").read_bytes() == content
    export(affine, tmp_path / "other.sql", table="t", keep=["id"])
    assert '"id"' in (tmp_path / "other.sql").read_text()
    with pytest.raises(ValueError, match=r"must end in '.onnx', '.sql', '.py'"):
        export(affine, tmp_path / "map.txt")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModuleNotFoundError, match=r"condokit\[onnx\]"):
        to_onnx(make("diagonal"))


@pytest.mark.parametrize("link", ["log", "logit", 0.5])
def test_onnx_models_hold_nothing_in_vain(link):
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(to_onnx(AffineMap([1.0], [0.5], ["x"], links={"x": link})))
    used = {name for node in model.graph.node for name in node.input}
    assert {constant.name for constant in model.graph.initializer} <= used


@pytest.mark.parametrize("table", ["", ".", "lab.", "a\nb"])
def test_tables_that_are_none_are_refused(tmp_path, capsys, table):
    from condokit.cli import main

    AffineMap([2.0], [1.0], ["a"]).save(tmp_path / "map.json")
    with pytest.raises(SystemExit, match="2"):
        main(["export", str(tmp_path / "map.json"), "--sql", "-", "--table", table])
    assert "is neither TABLE nor SCHEMA.TABLE" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("kind", "links"), CASES)
def test_onnx_with_names_and_in_single_precision(kind, links, dtype):
    runtime = pytest.importorskip("onnxruntime")
    affine, X = make(kind, links), rows().astype(dtype)
    close = {"rtol": 1e-12, "atol": 1e-13} if dtype == "float64" else {"rtol": 1e-5, "atol": 1e-6}
    where = {"providers": ["CPUExecutionProvider"]}
    session = runtime.InferenceSession(to_onnx(affine, named=True, dtype=dtype), **where)
    assert [one.name for one in session.get_inputs()] == HOSTILE
    given = {name: X[:, [j]] for j, name in enumerate(HOSTILE)}
    made = session.run([f"{name} (mapped)" for name in affine.outputs(HOSTILE)], given)
    assert {one.dtype for one in made} == {np.dtype(dtype)}
    np.testing.assert_allclose(np.hstack(made), affine(X.astype(float)), **close)
    session = runtime.InferenceSession(to_onnx(affine, dtype=dtype), **where)
    np.testing.assert_allclose(session.run(["Y"], {"X": X})[0], np.hstack(made), **close)


def test_onnx_names_need_names():
    with pytest.raises(ValueError, match="'named' needs"):
        to_onnx(AffineMap([2.0], [1.0]), named=True)
    with pytest.raises(ValueError, match="'dtype' must be"):
        to_onnx(AffineMap([2.0], [1.0]), dtype="float16")


@pytest.fixture(scope="module")
def rscript():
    found = shutil.which("Rscript")
    if found is None:
        pytest.skip("R is not installed")
    return found


def run_r(rscript, source, table, folder, columns):
    """Run adapt on a table of numbers, whose first line are names, if there are any."""
    (folder / "adapt.R").write_text(source, encoding="utf-8")
    np.savetxt(folder / "in.txt", table, fmt="%.17g")
    names = ", ".join(json.dumps(name) for name in columns or ())
    called = f"names(data) <- c({names})" if columns else "data <- as.matrix(data)"
    script = f"""
        source("adapt.R", encoding = "UTF-8")
        data <- read.table("in.txt", na.strings = "nan")
        {called}
        out <- adapt(data)
        writeLines(enc2utf8(as.character(names(out))), "names.txt", useBytes = TRUE)
        write.table(format(as.matrix(out), digits = 17), "out.txt", row.names = FALSE,
                    col.names = FALSE, quote = FALSE)
    """
    (folder / "run.R").write_text(script, encoding="utf-8")
    done = subprocess.run([rscript, "run.R"], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    texts = (folder / "out.txt").read_text().replace("NaN", "nan").replace("NA", "nan")
    return np.array([line.split() for line in texts.splitlines()], dtype=float)


@pytest.mark.parametrize(("kind", "links"), CASES)
def test_r_maps_as_the_map_does(rscript, kind, links, tmp_path):
    names = ["a", "b c", "Gr\u00f6\u00dfe", 'quote " and \\', "x1", "last_one"]
    affine, X = make(kind, links, names), rows()
    out = run_r(
        rscript, to_r(affine), np.column_stack([X, np.arange(len(X))]), tmp_path, [*names, "id"]
    )
    made = [*affine.outputs(names)]
    order = ["id", *made] if affine.is_rectangular else [*names, "id"]
    listed = (tmp_path / "names.txt").read_text(encoding="utf-8").splitlines()
    assert listed == order
    found = out[:, [order.index(name) for name in made]]
    np.testing.assert_allclose(found, affine(X), rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(out[:, order.index("id")], np.arange(len(X)))


def test_r_without_names_and_what_it_refuses(rscript, tmp_path):
    affine = AffineMap([2.0, 3.0], [1.0, -1.0], links=["log", None])
    X = np.array([[1.0, np.nan], [2.0, 5.0]])
    np.testing.assert_allclose(run_r(rscript, to_r(affine), X, tmp_path, None), affine(X))
    with pytest.raises(RuntimeError, match="does not admit 0"):
        run_r(rscript, to_r(affine), X - 1, tmp_path, None)
    named = AffineMap([2.0, 3.0], [1.0, -1.0], ["a", "b"])
    with pytest.raises(RuntimeError, match="Columns are missing: b"):
        run_r(rscript, to_r(named), X, tmp_path, ["a", "c"])
    with pytest.raises(RuntimeError, match="infinite"):
        run_r(rscript, to_r(named), X * [[np.inf, 1]], tmp_path, ["a", "b"])


def test_numbers_and_names_of_r_are_written_plainly():
    source = to_r(AffineMap([0.1], [1e-300], ['a"b\\\n\u2028']))
    assert 'FEATURES <- c("a\\U00000022b\\U0000005c\\U0000000a\\U00002028")' in source
    assert "OFFSET <- c(1e-300)" in source
    with pytest.raises(ValueError, match="in R"):
        to_r(AffineMap([1.0], [0.0], ["a\0"]))


LABELS = ["it's", "back\\slash", 'B"2', "D"]


def lookup(kind, links):
    return {label: make(kind, links, seed=k) for k, label in enumerate(LABELS)}


@pytest.mark.parametrize(("kind", "links"), [c.values for c in CASES if c.values[0] != "wide"])
def test_sql_looks_maps_up_by_label(duck, kind, links):
    maps, X = lookup(kind, links), rows()
    fill(duck, HOSTILE, X)
    duck.execute("ALTER TABLE incoming ADD COLUMN site VARCHAR")
    sites = [[*LABELS, "other"][i % 5] for i in range(len(X))]
    duck.executemany("UPDATE incoming SET site = ? WHERE id = ?", list(zip(sites, range(len(X)))))
    query = to_sql(maps, keep=["id"], batch="site")
    found = np.array(duck.execute(f"SELECT * FROM ({query}) ORDER BY id").fetchall(), dtype=float)
    expected = np.full((len(X), maps["D"].shape[0]), np.nan)
    for label, one in maps.items():
        mine = np.array([site == label for site in sites])
        expected[mine] = one(X[mine])
    np.testing.assert_allclose(found[:, 1:], expected, rtol=1e-12, atol=1e-13)


def test_maps_by_label_need_the_column_of_labels():
    with pytest.raises(ValueError, match="'batch' goes with"):
        to_sql(lookup("diagonal", None))
    with pytest.raises(ValueError, match="'batch' goes with"):
        to_sql(make("diagonal"), batch="site")
    with pytest.raises(ValueError, match="'dialect' must be"):
        to_sql(make("diagonal"), dialect="sparc")
    assert "WHEN 7 THEN" in to_sql({7: make("diagonal"), True: make("flat")}, batch="site")
    assert "WHEN TRUE THEN" in to_sql({7: make("diagonal"), True: make("flat")}, batch="site")


@pytest.mark.parametrize("dialect", [d for d in DIALECTS if d != "bigquery"])
def test_sqlite_reads_the_quotes_of_all_dialects(dialect):
    names = [name for name in HOSTILE if "]" not in name]
    affine, X = make("diagonal", names=names), rows(gaps=False)
    base = sqlite3.connect(":memory:")
    columns = ", ".join('"' + name.replace('"', '""') + '" REAL' for name in names)
    base.execute(f"CREATE TABLE incoming ({columns})")
    base.executemany(f"INSERT INTO incoming VALUES ({', '.join('?' * len(names))})", X.tolist())
    found = base.execute(to_sql(affine, dialect=dialect)).fetchall()
    np.testing.assert_allclose(np.array(found), affine(X), rtol=1e-12)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kind", ["diagonal", "monotone", "low-rank", "dense"])
def test_parsers_of_all_dialects_read_names_and_labels(dialect, kind):
    sqlglot = pytest.importorskip("sqlglot")
    where = {"ansi": None, "mariadb": "mysql"}.get(dialect, dialect)
    names = ["a b", "select", "Gr\u00f6\u00dfe; DROP TABLE x; --", "back\\slash", "5", "o'clock"]
    maps = {label: make(kind, LINKS, names, k) for k, label in enumerate(LABELS)}
    for query in (
        to_sql(maps, ("lab", "in coming"), keep=["id"], batch="si te", dialect=dialect),
        to_sql(maps["D"], ("lab", "in coming"), keep=["id"], dialect=dialect),
    ):
        [parsed] = sqlglot.parse(query, dialect=where)
        assert parsed.named_selects == ["id", *names]
        columns = {column.name for column in parsed.find_all(sqlglot.exp.Column)}
        assert {*names, "id"} <= columns
        texts = {one.this for one in parsed.find_all(sqlglot.exp.Literal) if one.is_string}
        assert texts == ({*LABELS} if "si te" in columns else set())
        assert "lab" in {table.db for table in parsed.find_all(sqlglot.exp.Table)}


def test_databases_that_call_the_logarithm_otherwise():
    affine = make("diagonal", LINKS)
    assert "LN(" not in to_sql(affine, dialect="tsql")
    assert "LOG(" in to_sql(affine, dialect="tsql")
    assert "LN(" in to_sql(affine, dialect="spark")
