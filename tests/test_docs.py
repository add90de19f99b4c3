"""Public names are documented, and the documentation is true."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

import condokit

ROOT = Path(__file__).parents[1]
CLASSES = [
    getattr(condokit, name) for name in condokit.__all__ if inspect.isclass(getattr(condokit, name))
]


@pytest.mark.parametrize("thing", CLASSES, ids=lambda c: c.__name__)
def test_public_classes_and_methods_have_docstrings(thing):
    assert thing.__doc__
    for name, member in vars(thing).items():
        if inspect.isfunction(member) and not name.startswith("_"):
            assert inspect.getdoc(getattr(thing, name)), f"{thing.__name__}.{name}"


@pytest.mark.parametrize("thing", CLASSES, ids=lambda c: c.__name__)
def test_documented_defaults_are_the_real_ones(thing):
    documented = dict(re.findall(r"^(\w+) : .*default=(.+)$", inspect.getdoc(thing), re.MULTILINE))
    if issubclass(thing, Warning | Exception):
        return
    for name, parameter in inspect.signature(thing).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            assert name in documented, f"the default of {name} is not documented"
            default = parameter.default
            shown = f'"{default}"' if isinstance(default, str) else repr(default)
            assert documented[name] == shown


def test_every_parameter_is_documented():
    for name in inspect.signature(condokit.ConDoAdapter).parameters:
        assert f"\n{name} : " in inspect.getdoc(condokit.ConDoAdapter)


def test_the_readme_names_the_commands_and_the_changelog_the_version():
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert "## Unreleased" in changelog or f"## {condokit.__version__}" in changelog


def test_the_package_says_what_it_is_and_brings_what_files_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
    assert "pyarrow" in needed
    assert not needed & {"pandas", "polars", "matplotlib"}  # 84, 180 and 97 MB
    assert project["authors"] == [{"name": "condokit developers"}]
    assert {"batch correction", "harmonization", "ComBat", "method comparison"} <= set(
        project["keywords"]
    )
    assert (ROOT / "src" / "condokit" / "py.typed").exists()
    pinned = (ROOT / "constraints.txt").read_text().casefold()
    assert all(f"\n{name}==" in pinned for name in needed)
    readme = (ROOT / "README.md").read_text()
    assert readme.index("pip install condokit") < 100
