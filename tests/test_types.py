"""Type checkers find wrong names, and know what comes out."""

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from condokit import checks
from condokit.compare.priors import PRIORS
from condokit.conditionals import CONDITIONALS
from condokit.divergences import DIVERGENCES
from condokit.maps.families import MAPS

ROOT = Path(__file__).parents[1]
SNIPPET = """
import numpy as np
import polars as pl
from condokit import Affine, ConDoAdapter, MMD, ProductPrior, ReverseKL, Splines

ConDoAdapter("auto", divergence="mmd", prior="overlap", conditional="kernel", shrinkage=None)
ConDoAdapter(Affine(), divergence=MMD(), prior=ProductPrior(), conditional=Splines(), shrinkage=0.5)
adapter = ConDoAdapter(missing="drop").fit_pair(np.ones((9, 2)), np.ones((9, 2)))
reveal_type(adapter.transform(np.ones((9, 2))))  # ndarray
reveal_type(adapter.transform(pl.DataFrame({"a": [1.0]})))  # DataFrame
reveal_type(adapter.transform(np.ones((9, 2)), return_std=True))  # tuple
reveal_type(adapter.transform([[1.0, 2.0]]))  # Any
ConDoAdapter(map="locscale")  # wrong
ConDoAdapter(divergence="kl")  # wrong
ConDoAdapter(prior="flat")  # wrong
ConDoAdapter(conditional="gp")  # wrong
ConDoAdapter(shrinkage="none")  # wrong
ConDoAdapter(missing="ignore")  # wrong
ReverseKL("papr")  # wrong
adapter.transform(np.ones((9, 2)), confounders=np.ones(9))  # wrong
"""


def test_wrong_names_and_no_others_are_found(tmp_path, monkeypatch):
    pytest.importorskip("mypy")
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET)
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    # with the options of `make types`, so that both use one cache; a program of its own,
    # since what mypy holds in memory slows down all that follows it
    how = ["--cache-dir", str(ROOT / ".mypy_cache"), "--config-file", str(ROOT / "pyproject.toml")]
    command = [sys.executable, "-m", "mypy", *how, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.stderr
    told = dict.fromkeys(range(1, SNIPPET.count("\n") + 1), "")
    for line, text in re.findall(r"snippet\.py:(\d+): (.*)", done.stdout):
        told[int(line)] += text + "\n"
    for line, code in enumerate(SNIPPET.splitlines(), 1):
        wanted = code.partition("  # ")[2]
        assert ("error" in told[line]) == (wanted == "wrong"), (code, told[line])
        if code.startswith("reveal_type"):
            assert re.search(rf'type is "[\w.]*\b{wanted}\b', told[line]), (code, told[line])


def test_the_names_are_those_that_there_are():
    assert set(get_args(checks.MapName)) == {"auto", *MAPS}
    assert set(get_args(checks.DivergenceName)) == {"auto", *DIVERGENCES}
    assert set(get_args(checks.PriorName)) == set(PRIORS)
    assert set(get_args(checks.ConditionalName)) == {"auto", *CONDITIONALS}
