"""Public names are documented, and the documentation is true."""

import doctest
import inspect
import io
import re
import shlex
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path

import click
import pytest
import run_pages
from numpydoc.docscrape import NumpyDocString
from sphinx.pycode import ModuleAnalyzer
from stories import run

import condokit
from condokit.cli import cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE = {"_build", "_extra", "_templates", "gallery", "generated"}
SITE = [p for p in sorted(DOCS.rglob("*.md")) if not MADE & set(p.relative_to(DOCS).parts)]
TEMPLATES = DOCS / "_templates" / "autosummary"
EMPTY = inspect.Parameter.empty


def listed():
    """Return the names on the page of the API with the template of each."""
    text, found = (DOCS / "reference" / "api.md").read_text(), {}
    for block in re.findall(r"\.\. autosummary::\n(.*?)```", text, re.DOTALL):
        template = re.search(r":template: autosummary/(\w+)\.rst", block)
        names = re.findall(r"^   (\w[\w.]*)$", block, re.MULTILINE)
        found |= dict.fromkeys(names, template[1] if template else "class")
    return found


def thing(name):
    """Return what a name on the page of the API stands for."""
    module, _, last = f"condokit.{name}".rpartition(".")
    return getattr(import_module(module), last)


def kept_back(template):
    """Return the methods that are for other modules of the package, not for users."""
    text = (TEMPLATES / f"{template}.rst").read_text()
    excluded = re.findall(r":exclude-members: (.*)", text)
    return {*re.findall(r'"(\w+)"', text), *re.findall(r"\w+", " ".join(excluded))}


def own_methods(kind):
    """Return the public methods of a class that are condokit's, by name."""
    found = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("condokit"):
            methods = (n for n, m in vars(base).items() if callable(getattr(m, "__func__", m)))
            found |= {n: getattr(kind, n) for n in methods if not n.startswith("_")}
    return {n: m for n, m in found.items() if inspect.isroutine(m) and not n.startswith("set_")}


NAMES = listed()
THINGS = {name: thing(name) for name in NAMES}
CLASSES = {n: one for n, one in THINGS.items() if inspect.isclass(one)}
ERRORS = tuple(n for n, one in CLASSES.items() if issubclass(one, Warning | Exception))
MADE_BY_US = [n for n, t in NAMES.items() if t == "record"]
METHODS = {
    f"{name}.{method}": function
    for name, kind in CLASSES.items()
    if NAMES[name] != "ingredient"  # what these have is told of their bases
    for method, function in own_methods(kind).items()
    if method not in kept_back(NAMES[name])
}
CALLED = {n: one for n, one in THINGS.items() if n not in (*ERRORS, *MADE_BY_US)} | METHODS
CALLED.pop("Statistics")  # made by `of` and `load`


def sections(one):
    return NumpyDocString(inspect.getdoc(one))


def parameters(one):
    """Return the documented parameters by name, each with its type; several may share a line."""
    found = {}
    for names, kind, _ in sections(one)["Parameters"]:
        several = names.split(", ")
        defaults = re.search(r"default=(.+)$", kind)
        values = re.split(r", (?![^(]*\))", defaults[1]) if defaults else []
        if len(values) != len(several):
            values = [defaults[1]] * len(several) if defaults else [None] * len(several)
        found |= dict(zip(several, values if kind else ["as elsewhere"] * len(several)))
    return found


def signature(one):
    """Return the parameters of a call by name, as they are documented."""
    stars = {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}
    given = inspect.signature(one).parameters.values()
    return {stars.get(p.kind, "") + p.name: p.default for p in given if p.name != "self"}


def test_the_page_of_the_api_has_all_public_names():
    public = {n for n in condokit.__all__ if not inspect.ismodule(getattr(condokit, n))}
    for module in condokit._MODULES:
        inside = import_module(f"condokit.{module}").__all__
        public |= {f"{module}.{name}" for name in inside if not name.isupper() or name == "EEG"}
    assert public - {"__version__"} <= set(NAMES)


@pytest.mark.parametrize("name", [*THINGS, *METHODS])
def test_public_names_are_documented(name):
    assert inspect.getdoc((THINGS | METHODS)[name])


@pytest.mark.parametrize("name", [n for n in THINGS if n not in MADE_BY_US])
def test_public_names_have_an_example(name):
    assert ">>>" in (inspect.getdoc(THINGS[name]) or ""), f"{name} has no example that runs"


@pytest.mark.parametrize("name", CALLED)
def test_documented_parameters_are_those_of_the_signature(name):
    assert list(parameters(CALLED[name])) == list(signature(CALLED[name]))


@pytest.mark.parametrize("name", CALLED)
def test_documented_defaults_are_the_real_ones(name):
    documented = parameters(CALLED[name])
    for parameter, default in signature(CALLED[name]).items():
        told = documented[parameter]
        if told == "as elsewhere":
            continue
        if default is EMPTY:
            assert told is None, f"{parameter} has no default"
            continue
        shown = f'"{default}"' if isinstance(default, str) else repr(default)
        ignored = parameter == "y" or (parameter == "X" and default is None)
        assert told == shown or ignored, f"the default of {parameter} is {shown}"


@pytest.mark.parametrize("name", [n for n in CALLED if n not in CLASSES])
def test_what_is_returned_is_documented(name):
    returned = inspect.signature(CALLED[name]).return_annotation
    told = sections(CALLED[name])["Returns"] or sections(CALLED[name])["Yields"]
    assert bool(told) == (returned is not None), name


@pytest.mark.parametrize("name", MADE_BY_US)
def test_every_field_of_a_record_is_documented(name):
    kind = THINGS[name]
    comments = ModuleAnalyzer.for_module(kind.__module__).find_attr_docs()
    fields = [n for n in kind.__dataclass_fields__ if n not in kept_back("record")]
    assert not [n for n in fields if (kind.__name__, n) not in comments]


def test_see_also_names_what_exists():
    for name, one in (THINGS | METHODS).items():
        for group, _ in sections(one)["See Also"]:
            for other, _role in group:
                first, _, rest = other.partition(".")
                found = getattr(condokit, first)
                assert not rest or hasattr(found, rest), f"{name}: {other}"


@pytest.mark.parametrize("name", [n for n in THINGS if "load_" in n and n != "load_map"])
def test_examples_on_real_data(name, needs_data):
    text = inspect.getdoc(THINGS[name]).replace("  # doctest: +SKIP", "")
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("name", list(cli.commands))
def test_commands_and_their_options_are_explained(name):
    command = cli.commands[name]
    assert command.help
    page = (DOCS / "reference" / "commands.md").read_text()
    assert f"`condokit {name}`" in page, f"{name} is not introduced on the page of the commands"
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"{name} {option.opts[0]} has no help"


def test_the_reference_of_commands_is_generated():
    page = (DOCS / "reference" / "commands.md").read_text()
    assert re.search(r"\.\. click:: condokit\.cli:cli\n   :prog: condokit\n   :nested: full", page)
    named = set(re.findall(r"`condokit ([a-z]+)`", page))
    assert named <= set(cli.commands), "the page names commands that do not exist"


WITH_CODE = [p for p in run_pages.pages() if p.parent in (ROOT, DOCS / "reference")]


def typed(command, shell=run_pages.shell):
    """Run a command in this process, which has loaded all, unless it needs a shell.

    `make docs` runs each in a shell.
    """
    if not command.startswith("condokit ") or re.search(r"[|<>$;&`]", command):
        return shell(command)
    with redirect_stdout(io.StringIO()) as said, redirect_stderr(said):
        code = run(*shlex.split(command)[1:])
    return said.getvalue() + (f"[exit code {code}]\n" if code else "")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda p: p.stem)
def test_code_of_the_readme_and_the_reference_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_pages, "shell", typed)
    for name, value in (("MPLBACKEND", "agg"), ("COLUMNS", "100"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    assert not [
        f"{page}:{bad.start}: {bad.command}shows\n{bad.want}but prints\n{bad.got}"
        for bad in run_pages.run_page(page)
    ]


@pytest.mark.parametrize("page", SITE, ids=lambda p: str(p.relative_to(DOCS)))
def test_code_of_pages_is_not_indented(page):
    """What is indented is not run."""
    assert not re.findall(r"^[ \t]+```(?:python|console)", page.read_text(), re.MULTILINE)


def test_every_page_is_in_a_table_of_contents():
    named = set()
    for page in SITE:
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            for entry in entries:
                entry = re.sub(r".*<(.+)>", r"\1", entry).removesuffix(".md")
                named.add((DOCS / entry[1:] if entry[0] == "/" else page.parent / entry).resolve())
    pages = {page.with_suffix("") for page in SITE} - {DOCS / "index"}
    assert not pages - named


LINKING = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")), *SITE]


@pytest.mark.parametrize("page", LINKING, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(<?([^)\s>]+)>?\)", text)
    for link in links:
        path = link.partition("#")[0]
        if path and not re.match(r"[a-z]+:", link) and "_extra/" not in path:
            assert (page.parent / path).exists(), f"{page.name} links to {link}"
    for place in re.findall(r"\{doc\}`(?:[^`<]*<)?/?([^`>]+)>?`", page.read_text()):
        here = ROOT / "examples" / f"{place.removeprefix('gallery/')}.py"
        files = here, DOCS / f"{place}.md", page.parent / f"{place}.md"
        assert place == "gallery/index" or any(path.exists() for path in files), place


def test_the_readme_is_short():
    text = re.sub("<!--.*?-->", "", (ROOT / "README.md").read_text())
    assert len(text.split()) <= 900


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
    assert readme.index("make demo") < readme.index("pip install condokit") < 200
