"""What is published agrees with itself; `make release-check` builds and tries it."""

import importlib.util
import os
import re
import tarfile
import tomllib
from pathlib import Path

import pytest

import condokit

ROOT = Path(__file__).parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "check_release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sections(text, level):
    """Return headings of a level with what is below them."""
    parts = re.split(rf"^{level} (.+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2]))


def test_the_changelog_has_a_section_for_the_version():
    releases = [name for name in sections(CHANGELOG, "##") if name != "Unreleased"]
    assert re.fullmatch(rf"{re.escape(condokit.__version__)} \(\d{{4}}-\d\d-\d\d\)", releases[0])
    assert releases[-1] == "0.1.0"
    changes = sections(sections(CHANGELOG, "##")[releases[0]], "###")
    assert set(changes) >= {"Added", "Changed", "Fixed", "Removed"}
    assert max(len(line) for line in CHANGELOG.splitlines()) <= 120


def test_the_citation_names_this_version_and_the_paper():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == condokit.__version__
    assert f"## {condokit.__version__} ({citation['date-released']})" in CHANGELOG
    assert citation["authors"] == PYPROJECT["project"]["authors"]
    assert citation["license"] == PYPROJECT["project"]["license"]
    (paper,) = citation["references"]
    page = (ROOT / "src/condokit/report/templates/report.html.jinja").read_text()
    assert paper["title"] in page


def test_only_releases_are_called_stable(script):
    assert (
        script.stage("1.0.0")
        == script.stage("2.3.1")
        == ("Development Status :: 5 - Production/Stable")
    )
    for early in ("0.1.0", "1.0.0rc1", "1.1.0.dev1"):
        assert script.stage(early) == "Development Status :: 4 - Beta"
    assert script.stage(condokit.__version__) in PYPROJECT["project"]["classifiers"]


def test_data_of_the_package_are_those_that_the_release_looks_for(script):
    source = ROOT / "src"
    wanted = {source / name for name in script.IN_WHEEL.split()}
    assert all(path.is_file() for path in wanted)
    data = {path for path in source.rglob("*") if path.suffix in (".css", ".js", ".toml", ".typed")}
    assert data <= wanted
    assert all((ROOT / name).is_file() for name in script.IN_SDIST.split())
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert all((ROOT / name.strip("/")).exists() for name in included)


def test_an_sdist_may_hold_links_to_what_it_holds(script, tmp_path):
    path, top = tmp_path / "it.tar.gz", f"condokit-{script.version()}"
    for missing in ((), ("docs/reference/map-schema.json",), ("src/condokit/io/map-schema.json",)):
        with tarfile.open(path, "w:gz") as archive:
            for name in {*script.IN_SDIST.split(), "src/condokit/io/map-schema.json"} - {*missing}:
                item = tarfile.TarInfo(f"{top}/{name}")
                if (ROOT / name).is_symlink():
                    item.type, item.linkname = tarfile.SYMTYPE, os.readlink(ROOT / name)
                archive.addfile(item)
        if missing:
            with pytest.raises(script.Wrong, match="map-schema"):
                script.check_sdist(path)
        else:
            script.check_sdist(path)


def test_versions_that_differ_are_found(script, monkeypatch, tmp_path):
    script.check_versions()
    (tmp_path / "src" / "condokit").mkdir(parents=True)
    for name in ("CHANGELOG.md", "CITATION.cff", "src/condokit/__init__.py"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.setattr(script, "ROOT", tmp_path)
    (tmp_path / "src/condokit/__init__.py").write_text('__version__ = "9.0"\n')
    with pytest.raises(script.Wrong, match=r"newest section of CHANGELOG\.md is"):
        script.check_versions()


def test_lower_bounds_are_exact_versions_and_newer_ones_are_pinned(script):
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"#.*|[\w.-]+==[\w.]+", line) for line in pinned)
    versions = dict(line.casefold().split("==") for line in pinned if "==" in line)
    for line in script.lowest():
        name, lowest = line.casefold().split("==")
        newest = versions[name] if name in versions else versions[name.replace("-", "_")]
        numbers = [[int(n) for n in re.findall(r"\d+", v)] for v in (lowest, newest)]
        assert numbers[0] <= numbers[1], line


def test_the_python_versions_are_those_that_are_named(script):
    lowest = PYPROJECT["project"]["requires-python"].removeprefix(">=")
    assert script.classified()[0] == lowest
    page = (ROOT / "docs" / "development" / "release.md").read_text()
    assert f"Python {script.classified()[0]} to {script.classified()[-1]}" in page
