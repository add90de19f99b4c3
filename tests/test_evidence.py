"""Results say which code they were measured with, and are called older when it changes."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "experiments"))
import evidence  # noqa: E402


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A package of one module and one script that writes a number of it."""
    package, scripts = tmp_path / "src" / "condokit", tmp_path / "experiments"
    (package / "cli").mkdir(parents=True)
    (scripts / "results").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "law.py").write_text("ANSWER = 42\n")
    (package / "cli" / "show.py").write_text("")
    (scripts / "helper.py").write_text("SEEDS = 3\n")
    (scripts / "one.py").write_text(
        f"import sys\nsys.path.insert(0, {str(package.parent)!r})\n"
        "import helper\nimport condokit.law\nprint(helper.SEEDS)\n"
    )
    record = scripts / "results" / "evidence.json"
    for name, value in {
        "ROOT": tmp_path,
        "HERE": scripts,
        "RESULTS": scripts / "results",
        "RECORD": record,
        "PACKAGE": package,
        "PAPER": (),
        "RESULTS_OF": {
            "one": evidence.Result(
                "experiments/one.py", ("experiments/results/ONE.txt",), prints=True, minutes=2.0
            )
        },
    }.items():
        monkeypatch.setattr(evidence, name, value)
    monkeypatch.setattr(evidence.quotes, "pages", list)  # this place has no pages
    return tmp_path


def run(*arguments):
    found = CliRunner().invoke(evidence.main, arguments)
    assert found.exit_code == 0, found.output
    return found.output


def test_a_result_is_older_when_code_that_it_depends_on_changes(place):
    names = evidence.main.params[0]
    names.type, kept = type(names.type)(["one"]), names.type
    try:
        assert run("--check").split() == ["one", "not", "recorded", "2.0", "minutes"]
        run()
        assert (place / "experiments/results/ONE.txt").read_text() == "3\n"
        known = json.loads(evidence.RECORD.read_text())["one"]
        assert known["command"] == "python experiments/one.py"
        assert "numpy" in known["versions"]
        assert run("--check").split()[:2] == ["one", "present"]
        (place / "src/condokit/cli/show.py").write_text("changed = True\n")  # not imported
        (place / "src/condokit/law.py").write_text('"""Plain words."""\nANSWER = 42  # why\n')
        (place / "src/condokit/__init__.py").write_text("__version__ = '1.0.0'\n")
        assert run("--check").split()[:2] == ["one", "present"]
        for path in ("src/condokit/law.py", "experiments/helper.py"):
            (place / path).write_text("SEEDS = 4\n")
            assert run("--check").split()[:2] == ["one", "older"]
            run()
            assert run("--check").split()[:2] == ["one", "present"]
        assert "| present |" in (place / "experiments/results/README.md").read_text()
    finally:
        names.type = kept


def test_results_are_measured_together_and_benchmarks_alone_at_the_end(place, monkeypatch):
    path = place / "experiments"
    (path / "wait.py").write_text(
        "import pathlib, sys, time\n"
        "me, others = sys.argv[1], sys.argv[2:]\n"
        "here = pathlib.Path(__file__).parent\n"
        "(here / f'{me}.began').touch()\n"
        "end = time.time() + 20\n"
        "while not all((here / f'{other}.began').exists() for other in others):\n"
        "    assert time.time() < end\n"
        "    time.sleep(0.01)\n"
        "there = sorted(path.stem for path in here.glob('*.began'))\n"
        "(here / 'results' / f'{me}.txt').write_text(' '.join(there))\n"
    )
    files = {name: (f"experiments/results/{name}.txt",) for name in "abt"}
    script = "experiments/wait.py"
    a = evidence.Result(script, files["a"], "a b", minutes=3.0)  # each waits for the other
    b = evidence.Result(script, files["b"], "b a", minutes=5.0)
    benchmark = evidence.Result(script, files["t"], "t", minutes=9.0, alone=True)
    monkeypatch.setattr(evidence, "RESULTS_OF", {"t": benchmark, "a": a, "b": b})
    said = run("--jobs", "2")
    assert "2 at a time, 3 of 3 left; about 13 minutes more" in said
    assert said.index("b done") < said.index("t done")
    assert said.index("a done") < said.index("t done")
    assert (path / "results" / "t.txt").read_text() == "a b t"
    assert set(json.loads(evidence.RECORD.read_text())) == {"a", "b", "t"}


def test_a_result_that_failed_is_named_and_measured_again(place, monkeypatch):
    monkeypatch.setattr(evidence, "RESULTS_OF", dict(evidence.RESULTS_OF))
    (place / "experiments" / "one.py").write_text("raise SystemExit('no such data')\n")
    found = CliRunner().invoke(evidence.main, [])
    assert found.exit_code == 1
    assert "experiments/.runs/one.log" in found.output
    assert "no such data" in (place / "experiments/.runs/one.log").read_text()
    assert not evidence.RECORD.exists()


def test_every_script_exists():
    for name, result in evidence.RESULTS_OF.items():
        assert result.path.exists(), name
