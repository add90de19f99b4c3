"""Imports go one way, rooms stay small, and the page that tells so is true."""

import ast
import re
from pathlib import Path

import pytest

import condokit

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "condokit"
PAGE = (ROOT / "docs" / "development" / "architecture.md").read_text()
MODULES = sorted(SOURCE.rglob("*.py"))


def listed(name):
    return re.search(rf":name: {name}\n\n(.*?)```", PAGE, re.DOTALL).group(1)


def places():
    """Return the place of every module in the one list of layers."""
    order = []
    for line in listed("layers").splitlines():
        folder, colon, names = line.partition(":")
        order += [f"{folder}.{name}" for name in names.split()] if colon else [folder]
    assert len(order) == len(set(order))
    return {name.removesuffix(".__init__"): place for place, name in enumerate(order)}


def module_of(path):
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imported(path):
    """Yield the modules of condokit that a file imports, wherever and however it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("condokit."):
                    yield alias.name.removeprefix("condokit.")
        if not isinstance(node, ast.ImportFrom) or node.level:
            continue
        if node.module == "condokit":
            yield from (condokit._HOME.get(alias.name, alias.name) for alias in node.names)
        elif (node.module or "").startswith("condokit."):
            there = node.module.removeprefix("condokit.")
            for alias in node.names:  # a name, or a module of the folder
                inside = f"{there}.{alias.name}"
                yield inside if inside in places() else there


@pytest.mark.parametrize("path", MODULES, ids=module_of)
def test_imports_go_down(path):
    here, place = module_of(path), places()
    if here == "__init__":
        return
    assert here in place, f"{here} has no place yet: add it to docs/development/architecture.md"
    for there in imported(path):
        assert place[there] < place[here], f"{here} imports {there}"


def test_every_listed_module_exists():
    assert set(places()) == {module_of(path) for path in MODULES} - {"__init__"}


def test_the_example_of_a_divergence_runs():
    [example] = [part for part in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)]
    from condokit.divergences import DIVERGENCES

    known = dict(DIVERGENCES)
    try:
        exec(compile(example, "docs/development/architecture.md", "exec"), {})
    finally:
        DIVERGENCES.clear()
        DIVERGENCES.update(known)


def functions(tree):
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def docstring_lines(node):
    """Return how many lines the docstring of a module, class or function has."""
    if ast.get_docstring(node) is None:
        return 0
    return node.body[0].end_lineno - node.body[0].lineno + 1


@pytest.mark.parametrize("path", MODULES, ids=module_of)
def test_rooms_stay_small(path):
    text = path.read_text()
    assert lines_of_code(path) <= 560
    for function in functions(ast.parse(text)):
        length = function.end_lineno - function.body[0].lineno + 1 - docstring_lines(function)
        assert length <= 60, f"{function.name} has {length} lines, its docstring aside"


def lines_of_code(path):
    """Return how many lines a module has without docstrings, whose examples are welcome."""
    text, kinds = path.read_text(), (ast.Module, ast.ClassDef, ast.FunctionDef)
    told = (node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))
    return len(text.splitlines()) - sum(map(docstring_lines, told))


def test_the_house_stays_small():
    entries = {path.relative_to(SOURCE).parts[0] for path in MODULES}  # not py.typed, a marker
    assert len(entries) <= 24
    assert sum(map(lines_of_code, MODULES)) <= 33_050


def test_no_two_classes_share_a_name():
    homes = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(module_of(path))
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_users_classes_are_not_met_by_assertions():
    for path in MODULES:
        assert "assert isinstance" not in path.read_text(), path


def test_nobody_says_source_or_target():
    words = re.compile(r"\b(X|Z)_?(source|target|s|t)\b|\b(source|target)_(X|Z|domain|data)\b")
    for path in MODULES:
        assert not words.search(path.read_text()), path
