"""Odd files, options and values: a clear message or a sound result, never a traceback."""

import io
import json
import os
import random
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from condokit import AffineMap
from condokit.cli import main

N_CALLS = 400


def people(seed, n=60):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(size=(n, 3)), columns=["x", "y", "w"])
    table["w"] = np.exp(table["w"])
    table["sex"], table["day"] = rng.choice(["F", "M"], n), rng.choice(["a", "b"], n)
    table["age"], table["who"] = rng.uniform(20, 80, n).round(1), [f"p{i // 2}" for i in range(n)]
    return table


def odd_tables():
    """Yield tables that have something wrong or rare with them."""
    plain = people(2)
    yield "const", plain.assign(x=1.5)
    yield "gap", plain.assign(x=np.nan)
    yield (
        "gaps",
        plain.assign(sex=plain["sex"].where(plain["x"] > 0), y=plain["y"].where(plain["x"] < 1)),
    )
    yield "few", plain[:2]
    yield "one", plain[:1]
    yield "levels", plain.assign(sex=[f"l{i}" for i in range(60)])
    yield "same", plain.assign(y=plain["x"], w=2 * plain["x"])
    yield "large", plain.assign(x=plain["x"] * 1e300, y=plain["y"] * 1e-300)
    yield "infinite", plain.assign(x=np.inf)
    yield "weights", plain.assign(w=-1.0)
    yield "labels", plain.assign(day=["a", "b", "c"] * 20)
    yield (
        "names",
        plain.rename(columns={"x": "x\ny", "y": "\U0001f600", "age": "{age}", "who": "%s"}),
    )


ODD_TEXT = {
    "empty": b"",
    "head": b"x,y,sex\n",
    "mark": b"\xef\xbb\xbf",
    "binary": bytes(range(256)) * 9,
    "latin": "x,sex\n1,é\n2,é\n".encode("latin-1"),
    "twice": b"x,x,y\n1,2,3\n",
    "ragged": b"x,y\n1,2\n3\n",
    "quote": b'x,sex\n1,"F\n2,M\n3,"M\n4,F\n',
    "huge": b"x,y\n" + b"".join(b"1%025d,%d\n" % (i, i) for i in range(30)),
    "tiny": b"x,y\n" + b"".join(b"%de-320,%d\n" % (i, i) for i in range(30)),
}
ODD_TYPES = {
    "x": pa.array(range(40), pa.int8()),
    "sex": pa.array(list("FM") * 20, pa.string_view()),
    "age": pa.array([Decimal(i) for i in range(40)]),
    "nested": pa.array([[1.0]] * 40),
    "nothing": pa.nulls(40),
    "day": pa.array([1, 2] * 20).dictionary_encode(),
    "time": pa.array(range(40), pa.timestamp("s")),
}
OPTIONS = {
    "--map": [
        "shift",
        "identity",
        "affine",
        "orthogonal",
        "low-rank:1",
        "low-rank:0",
        "auto",
        "",
        "zzz",
    ],
    "--divergence": ["reverse-kl", "likelihood", "ot", "mmd", "energy", "procrustes", "", "zzz"],
    "--shrinkage": ["none", "0.5", "nan", "inf", "", "abc"],
    "--link": ["w=log", "w=0.5", "w=nan", "w=0", "x=", "zzz=log", "w=1e-320"],
    "--min-overlap": ["0", "nan", "1e400", "-1", "x"],
    "--seed": ["1", "-1", "x", "99999999999999999999999"],
    "--missing": ["drop", "impute", "", "x"],
    "--groups": ["who", "zzz", "", "nested", "nothing"],
    "--weights": ["w", "who", "zzz", "", "nothing"],
    "--delimiter": [";", "ab", "\n", '"', ""],
    "--na": ["", "F", "\0"],
    "--encoding": ["latin-1", "utf-16", "zzz", "base64", ""],
    "--decimal": [",", "", "ab", "1"],
    "--format": ["csv", "parquet", "zzz", "h5ad"],
}
CONFOUNDERS = [
    "sex",
    "age",
    "sex,age",
    "sex:num",
    "age:cat",
    "",
    ",",
    "zzz",
    "nested",
    "{age}",
    "time",
]
FEATURES = ["x", "x,y", "*", "", "zzz", "sex", "[", "x\ny", "nothing"]
MAPS = [
    "doubled.json",
    "matrix.json",
    "log.json",
    "cut.json",
    "nan.json",
    "list.json",
    "new.csv",
    "no.json",
    "",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    for name, seed in (("new", 0), ("old", 1)):
        people(seed).to_csv(folder / f"{name}.csv", index=False)
        people(seed).to_parquet(folder / f"{name}.parquet")
    for name, table in odd_tables():
        table.to_csv(folder / f"{name}.csv", index=False)
    for name, content in ODD_TEXT.items():
        (folder / f"{name}.csv").write_bytes(content)
    types = pa.table(ODD_TYPES)
    try:
        parquet.write_table(types, folder / "types.parquet")
    except pa.ArrowNotImplementedError:  # older versions write no views
        text = types["sex"].cast(pa.string())
        types = types.set_column(types.column_names.index("sex"), "sex", text)
        parquet.write_table(types, folder / "types.parquet")
    (folder / "cut.parquet").write_bytes((folder / "new.parquet").read_bytes()[:-30])
    (folder / "folder.csv").mkdir()
    AffineMap([2.0], [1.0], ["x"]).save(folder / "doubled.json")
    AffineMap([[1.0, 0.5], [0.0, 2.0]], [0.0, 1.0], ["x", "y"]).save(folder / "matrix.json")
    AffineMap([2.0], [0.0], ["w"], links={"w": "log"}).save(folder / "log.json")
    text = (folder / "doubled.json").read_text()
    (folder / "cut.json").write_text(text[:-20])
    (folder / "nan.json").write_text(text.replace("2.0", "NaN"))
    (folder / "list.json").write_text("[]")
    return folder


def some(rng, options, share):
    return [
        part
        for n, values in options.items()
        if rng.random() < share
        for part in (n, rng.choice(values))
    ]


def hostile_call(rng, tables):
    """Return the arguments of a call, of which one or two are odd."""
    new = rng.choice(tables) if rng.random() < 0.4 else rng.choice(["new.csv", "types.parquet"])
    if rng.random() < 0.35:
        found = [
            "apply",
            rng.choice([MAPS[0], rng.choice(MAPS)]),
            new,
            "-o",
            rng.choice(["out.csv", "out.parquet", "out.x", ""]),
        ]
        found += rng.choice([[], [], ["--inverse"], ["--domain", "sex", "--reference-label", "F"]])
        reading = ("--delimiter", "--na", "--encoding", "--decimal", "--format")
        return found + some(rng, {name: OPTIONS[name] for name in reading}, 0.05)
    two = ["--reference", rng.choice([rng.choice(tables), "old.csv", "old.parquet", new])]
    one = ["--domain", rng.choice(["day", "day", "zzz"]), "--reference-label", rng.choice("aa1")]
    found = ["fit", new, *(two if rng.random() < 0.7 else one), "-o", "out.json"]
    found += rng.choice([[], ["-c", "sex"], ["-c", "sex,age"], ["-c", rng.choice(CONFOUNDERS)]])
    found += rng.choice([["-f", "x"], ["-f", "x,y"], ["-f", rng.choice(FEATURES)]])
    quietly = [["--quiet"]] * 6  # a verdict is a hundred times the work of such a fit
    return found + some(rng, OPTIONS, 0.04) + rng.choice([*quietly, [], ["--json"]])


def outcome(arguments, monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    monkeypatch.setattr(sys, "stdout", stdout)
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code or 0, stdout.buffer.getvalue().decode()


@pytest.mark.filterwarnings("ignore")
def test_hostile_calls(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    before = {path.name for path in folder.iterdir()}
    tables = sorted(n for n in before if not n.endswith("json")) + ["no.csv", "no/no.csv", "x.doc"]
    rng, codes = random.Random(0), []
    for _ in range(N_CALLS):
        arguments = hostile_call(rng, tables)
        code, said = outcome(arguments, monkeypatch)
        codes.append(code)
        made = {path.name for path in folder.iterdir()} - before
        if code != 0:
            assert code in (2, 3), arguments
            assert not made, arguments
            assert capsys.readouterr().err.strip(), arguments
            continue
        if "--json" in arguments:
            json.loads(said)
        if arguments[0] == "fit":
            affine = AffineMap.load("out.json")
            assert np.isfinite(affine.offset).all(), arguments
            assert np.isfinite(affine.scale).all(), arguments
        elif arguments[2] == "new.csv" and "out.csv" in made:
            assert len(pd.read_csv("out.csv")) == 60, arguments
        for name in made:
            os.remove(name)
    assert codes.count(0) > N_CALLS / 10  # else nothing but the first check would be tried


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c", ","], "--confounders ',' names no column"),
        (["-f", ""], "--features '' names no column"),
        (["--decimal", ""], "--decimal must be one mark"),
        (["--delimiter", "ab"], "--delimiter must be one mark"),
        (["-o", ""], "An output has an empty name"),
        (["--reference", ""], "An empty name: the format"),
    ],
)
def test_empty_values_are_told(folder, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(folder)
    code, _ = outcome(
        ["fit", "new.csv", "--reference", "old.csv", "-o", "m", *arguments], monkeypatch
    )
    assert code == 2
    assert message in capsys.readouterr().err


def test_text_as_polars_writes_it(tmp_path, monkeypatch):
    polars = pytest.importorskip("polars")
    kinds = {"day": polars.Categorical}
    polars.from_pandas(people(0)).cast(kinds).write_ipc(tmp_path / "new.arrow")
    AffineMap([2.0], [1.0], ["x"]).save(tmp_path / "map.json")
    monkeypatch.chdir(tmp_path)
    for column in ("sex", "day"):
        for target in ("out.csv", "out.arrow"):
            label = people(0)[column][0]
            one = ["--domain", column, "--reference-label", label, "-o", target, "--force"]
            assert outcome(["apply", "map.json", "new.arrow", *one], monkeypatch)[0] == 0
        stays = people(0)[column] == label
        expected = people(0)["x"].where(stays, 2 * people(0)["x"] + 1)
        np.testing.assert_allclose(pd.read_csv("out.csv")["x"], expected)
