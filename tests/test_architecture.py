"""Imports go one way: a lower layer never imports a higher one."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "condokit"
LAYERS = [
    {"_validation", "atomic"},
    {"frames", "files", "mapfile", "statistics", "smoothing"}
    | {"links", "optimise", "records", "facts"},
    {"kernels", "drift", "datasets"},
    {"domains"},
    {"gaps"},
    {"maps", "intake", "covariances", "lowrank"},
    {"priors", "conditionals", "divergences", "overlap", "fragility", "errors"},
    {"shrinkage", "selection", "matrices"},
    {"sampling", "pairing"},
    {"fitting"},
    {"ladder"},
    {"provenance", "export"},
    {"adapter"},
    {"trust"},
    {"plots", "streaming", "report"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def module_of(path):
    return path.relative_to(SOURCE).with_suffix("").parts[0]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.name)
def test_imports_go_down(path):
    here = module_of(path)
    if here == "__init__":
        return
    assert here in LEVEL, f"{here} has no layer yet: add it to LAYERS"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("condokit."):
            there = node.module.split(".")[1]
            assert there == here or LEVEL[there] < LEVEL[here], f"{here} imports {there}"


def test_nobody_says_source_or_target():
    import re

    words = re.compile(r"\b(X|Z)_?(source|target|s|t)\b|\b(source|target)_(X|Z|domain|data)\b")
    for path in SOURCE.rglob("*.py"):
        assert not words.search(path.read_text()), path
