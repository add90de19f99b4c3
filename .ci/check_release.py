"""Check what a release needs (`make release-check`); docs/development/release.md has the list.

Prints a line for each check and fails if any of them does. Environments are made in a folder for
temporary files; `.venv` is not touched. With --lowest or --newest it runs tests with the lowest
versions that pyproject.toml admits, or with the newest that there are.
"""

import argparse
import email
import glob
import os
import posixpath
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLS = ("build", "cffconvert", "twine")
EXAMPLES = ("eeg_devices", "scanners")
NOT_FOR_TESTS = ("mypy", "ruff", "scipy-stubs")
TESTS = """
    tests/test_adapter.py tests/maps tests/io tests/cli tests/data tests/statistics tests/trust
"""
MOST_BYTES = {".whl": 1_000_000, ".gz": 8_000_000}
LARGEST = {".whl": 100_000, ".gz": 2_000_000}
IN_WHEEL = """
    condokit/py.typed
    condokit/datasets/files.toml
    condokit/export/adapt.py.jinja
    condokit/io/map-schema.json
    condokit/io/statistics-schema.json
    condokit/report/templates/report.css
    condokit/report/templates/report.html.jinja
    condokit/report/templates/report.js
    condokit/report/templates/sites.jinja
"""
IN_SDIST = """
    CHANGELOG.md CITATION.cff CONTRIBUTING.md LICENSE Makefile README.md constraints.txt
    pyproject.toml benchmarks/page.py docs/conf.py docs/development/release.md docs/index.md
    docs/reference/map-schema.json examples/demo.py experiments/run.py src/condokit/py.typed
    experiments/results/continuous1d.csv tests/conftest.py tests/maps/schema1/dense.json
"""
NEEDED_METADATA = (
    "Author",
    "Classifier",
    "Description-Content-Type",
    "Keywords",
    "License-Expression",
    "License-File",
    "Requires-Python",
    "Summary",
)


class Wrong(Exception):
    """What a check found."""


def expect(true: object, otherwise: str) -> None:
    if not true:
        raise Wrong(otherwise)


def run(*words: str | Path, cwd: Path | None = None, **variables: str) -> str:
    """Return what a command prints; what went wrong is an error with the end of it."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise Wrong(f"{shlex.join(map(str, words))}\n{done.stdout[-4000:]}")
    return done.stdout


class Environment:
    """A new virtual environment; the words of a Python may begin with a command that runs it."""

    def __init__(self, folder: Path, python: str):
        *prefix, base = shlex.split(python)
        run(*prefix, base, "-m", "venv", folder)
        self.python = [*prefix, str(folder / "bin" / "python")]

    def run(self, *words: str | Path, **options: Any) -> str:
        return run(*self.python, *words, **options)

    def install(self, *words: str | Path) -> None:
        self.run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words)


# --- what is written


def version() -> str:
    source = (ROOT / "src" / "condokit" / "__init__.py").read_text()
    return re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)[1]


def check_clean() -> None:
    changed = run("git", "status", "--porcelain", cwd=ROOT)
    expect(not changed, f"Not committed (--dirty passes over it):\n{changed}")


def check_versions() -> None:
    """Compare version and day in the package, the changelog and the citation."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.findall(r"^## (\d\S*)(?: \((\S+)\))?$", changelog, re.MULTILINE)[0]
    citation = (ROOT / "CITATION.cff").read_text()
    cited = re.search(r"^version: (\S+)$", citation, re.MULTILINE)[1]
    released = re.search(r'^date-released: "(\S+)"$', citation, re.MULTILINE)[1]
    expect(newest[0] == version(), f"The newest section of CHANGELOG.md is {newest[0]}.")
    expect(cited == version(), f"CITATION.cff has the version {cited}.")
    expect(newest[1] == released, f"The days differ: {newest[1]} and {released}.")
    expect(stage(version()) in PROJECT["classifiers"], f"pyproject.toml: {stage(version())}.")
    frozen = ROOT / "tests" / "frozen" / version()
    # 1.0.0rc1 was before files were frozen; its files are in tests/maps and tests/statistics
    expect(version() == "1.0.0rc1" or frozen.is_dir(), "tests/frozen.py was not run.")


def stage(version: str) -> str:
    """Return the classifier of a version: candidates and 0.x are not stable."""
    is_stable = re.fullmatch(r"[1-9]\d*(\.\d+)*", version)
    return "Development Status :: " + ("5 - Production/Stable" if is_stable else "4 - Beta")


def check_all_released() -> None:
    """Refuse changes that are still under *Unreleased*, where they belong between releases."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    unreleased = re.search(r"^## Unreleased\n(.*?)^## ", changelog, re.MULTILINE | re.DOTALL)
    expect(not unreleased or not unreleased[1].strip(), "CHANGELOG.md has unreleased changes.")


def check_citation(tools: Environment) -> None:
    script = Path(tools.python[-1]).with_name("cffconvert")
    run(script, "--validate", "-i", ROOT / "CITATION.cff")


# --- what is built


def build(tools: Environment, folder: Path) -> tuple[Path, Path]:
    tools.run("-m", "build", "--outdir", folder, ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def check_sizes(path: Path, sizes: dict[str, int]) -> None:
    total = path.stat().st_size
    expect(total < MOST_BYTES[path.suffix], f"{path.name} has {total} bytes.")
    large = {name: size for name, size in sizes.items() if size > LARGEST[path.suffix]}
    expect(not large, f"Large files: {large}")


def check_wheel(wheel: Path) -> None:
    """Look at what users get: the package with its data, nothing else, nothing large."""
    with zipfile.ZipFile(wheel) as archive:
        sizes = {item.filename: item.file_size for item in archive.infolist()}
    info = f"condokit-{version()}.dist-info"
    wanted = {*IN_WHEEL.split(), f"{info}/licenses/LICENSE", f"{info}/entry_points.txt"}
    expect(wanted <= set(sizes), f"Missing: {wanted - set(sizes)}")
    tops = {PurePosixPath(name).parts[0] for name in sizes}
    expect(tops == {"condokit", info}, f"It holds {tops}.")
    folders = ROOT / "src" / "condokit"
    sources = {str(path.relative_to(folders.parent)) for path in folders.rglob("*.py")}
    expect(sources <= set(sizes), f"Missing: {sources - set(sizes)}")
    odd = [name for name in sizes if "test" in name or name.endswith((".pyc", ".csv", ".ipynb"))]
    expect(not odd, f"It holds {odd}.")
    check_sizes(wheel, sizes)


def check_sdist(sdist: Path) -> None:
    """Look for what builds, tests and documents the package."""
    top = f"condokit-{version()}/"
    with tarfile.open(sdist) as archive:
        sizes = {item.name.removeprefix(top): item.size for item in archive if not item.isdir()}
        links = {item.name: item.linkname for item in archive if item.issym()}
        there = set(archive.getnames())
    to = (posixpath.join(posixpath.dirname(name), target) for name, target in links.items())
    nowhere = [name for name in map(posixpath.normpath, to) if name not in there]
    expect(not nowhere, f"Links to what it does not hold: {nowhere}")
    expect(set(IN_SDIST.split()) <= set(sizes), f"Missing: {set(IN_SDIST.split()) - set(sizes)}")
    made = [
        name
        for name in sizes
        if name.startswith((".venv", "dist", "demo-output", "docs/_build", "docs/gallery"))
    ]
    expect(not made, f"It holds what is made: {made[:5]}")
    check_sizes(sdist, sizes)


def check_metadata(tools: Environment, wheel: Path, sdist: Path) -> None:
    """Look at the fields that package indexes show, and render the readme."""
    tools.run("-m", "twine", "check", "--strict", wheel, sdist)
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"condokit-{version()}.dist-info/METADATA").decode()
    fields = email.message_from_string(text)
    missing = [name for name in NEEDED_METADATA if not fields.get_all(name)]
    expect(not missing, f"Without {missing}.")
    expect(fields["Version"] == version(), f"Version {fields['Version']}.")
    kinds = fields.get_all("Classifier")
    expect("Typing :: Typed" in kinds, "It does not say that it is typed.")
    expect(not any(kind.startswith("License ::") for kind in kinds), "The licence is told twice.")
    lowest = fields["Requires-Python"].removeprefix(">=")
    expect(lowest == classified(kinds)[0], f"Requires-Python is {fields['Requires-Python']}.")


def classified(kinds: list[str] = PROJECT["classifiers"]) -> list[str]:
    """Return the versions of Python that are named, oldest first."""
    found = (re.search(r"Python :: (3\.\d+)$", kind) for kind in kinds)
    return sorted((each[1] for each in found if each), key=lambda text: int(text[2:]))


# --- what is installed


def pythons(given: list[str]) -> dict[str, str]:
    """Return a Python of each version that is named, as far as there are."""
    places = [shutil.which(f"python{minor}") for minor in classified()]
    places += sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python")))
    found: dict[str, str] = {}
    for place in [*given, *filter(None, places), sys.executable]:
        code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        try:
            found.setdefault(run(*shlex.split(place), "-c", code).strip(), place)
        except Wrong:
            continue  # a name that pyenv knows, but that is not installed
    return {minor: found[minor] for minor in classified() if minor in found}


def check_installed(folder: Path, python: str, wheel: Path) -> None:
    """Try the wheel alone in a new environment, by .ci/try_wheel.py."""
    alone = Environment(folder, python)
    alone.install(wheel)
    alone.run("-m", "pip", "check")
    script = shutil.copy(ROOT / ".ci" / "try_wheel.py", folder)
    alone.run("-I", script, PYTHONPATH="")


def check_examples(folder: Path, python: str, wheel: Path) -> None:
    """Run examples, whose code is that of the notebooks, with what readers will have."""
    reader = Environment(folder, python)
    reader.install(f"{wheel}[plot]", "pandas")
    for name in EXAMPLES:
        script = shutil.copy(ROOT / "examples" / f"{name}.py", folder)
        reader.run("-I", script, cwd=folder, MPLBACKEND="agg")


def lowest() -> list[str]:
    """Return the lower bounds of pyproject.toml as exact versions."""
    extras = PROJECT["optional-dependencies"]
    bounds = [*PROJECT["dependencies"], *(line for lines in extras.values() for line in lines)]
    found = (re.fullmatch(r"([\w-]+)(?:\[.+\])?>=([\w.]+)", line) for line in bounds)
    exact = {each[1]: f"{each[1]}=={each[2]}" for each in found if each}
    exact["distributed"] = exact["dask"].replace("dask", "distributed")
    return list(exact.values())


def test_with(folder: Path, python: str, tests: list[str], constrained: bool) -> str:
    """Run tests of a copy of the project with the lowest or the newest versions."""
    place = Environment(folder / "venv", python)
    tools = [
        line
        for line in PROJECT["optional-dependencies"]["dev"]
        if not line.startswith((*NOT_FOR_TESTS, "condokit"))
    ]
    extras = re.search(r"\[.+\]", PROJECT["optional-dependencies"]["dev"][0])[0]
    bounds: list[str | Path] = []
    quiet: list[str] = []
    if constrained:
        # newer libraries tell old ones to mend their ways, which is not ours to do
        quiet = ["-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"]
        path = folder / "lowest.txt"
        path.write_text("\n".join(lowest()) + "\n")
        bounds = ["-c", path]
    place.install(*bounds, "-e", f"{ROOT}{extras}", *tools)
    words = ["-q", "-n", "2", "-m", "not slow", "-p", "no:cacheprovider", *quiet, *tests]
    told = place.run("-m", "pytest", *words, cwd=ROOT, OMP_NUM_THREADS="1")
    return told.strip().splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--python", action="append", default=[], help="one more Python to try; may be a command")
    add("--dirty", action="store_true", help="pass over what is not committed")
    add("--lowest", action="store_true", help="run tests with the lowest versions alone")
    add("--newest", action="store_true", help="run tests with the newest versions alone")
    add("--tests", nargs="+", default=TESTS.split(), help="which tests; by default a part of them")
    add("--folder", type=Path, help="where environments are made (default: temporary)")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="condokit-release-"))
    failed = []

    def check(name: str, function: Any, *arguments: Any) -> Any:
        try:
            result = function(*arguments)
        except Wrong as wrong:
            failed.append(name)
            print(f"WRONG  {name}: {wrong}", flush=True)
            return None
        print(f"fine   {name}{f': {result}' if isinstance(result, str) else ''}", flush=True)
        return result

    found = pythons(options.python)
    if options.lowest or options.newest:
        for name, wanted, python in (
            ("lowest", options.lowest, min(found, key=classified().index)),
            ("newest", options.newest, max(found, key=classified().index)),
        ):
            if wanted:
                (folder / name).mkdir(parents=True)
                what = f"tests with the {name} versions on Python {python}"
                check(
                    what, test_with, folder / name, found[python], options.tests, name == "lowest"
                )
        return bool(failed)
    if not options.dirty:
        check("everything is committed", check_clean)
    check("one version everywhere", check_versions)
    check("nothing is unreleased", check_all_released)
    tools = Environment(folder / "tools", sys.executable)
    tools.install(*TOOLS)
    check("citation", check_citation, tools)
    built = check("wheel and sdist are built", build, tools, folder / "dist")
    if built:
        wheel, sdist = built
        check("contents of the wheel", check_wheel, wheel)
        check("contents of the sdist", check_sdist, sdist)
        check("metadata", check_metadata, tools, wheel, sdist)
        for minor, python in found.items():
            check(f"installed on Python {minor}", check_installed, folder / minor, python, wheel)
        check("examples", check_examples, folder / "examples", sys.executable, wheel)
    for minor in classified():
        if minor not in found:
            print(f"no     Python {minor} here: say where with --python", flush=True)
    if not options.folder:
        shutil.rmtree(folder)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
