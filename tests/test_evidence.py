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
                "experiments/one.py", ("experiments/results/ONE.txt",), prints=True
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
        assert run("--check").split() == ["one", "not", "recorded"]
        run()
        assert (place / "experiments/results/ONE.txt").read_text() == "3\n"
        known = json.loads(evidence.RECORD.read_text())["one"]
        assert known["command"] == "python experiments/one.py"
        assert "numpy" in known["versions"]
        assert run("--check").split() == ["one", "present"]
        (place / "src/condokit/cli/show.py").write_text("changed = True\n")  # not imported
        (place / "src/condokit/law.py").write_text('"""Plain words."""\nANSWER = 42  # why\n')
        assert run("--check").split() == ["one", "present"]
        for path in ("src/condokit/law.py", "experiments/helper.py"):
            (place / path).write_text("SEEDS = 4\n")
            assert run("--check").split() == ["one", "older"]
            run()
            assert run("--check").split() == ["one", "present"]
        assert "| present |" in (place / "experiments/results/README.md").read_text()
    finally:
        names.type = kept


def test_every_script_exists():
    for name, result in evidence.RESULTS_OF.items():
        assert result.path.exists(), name
