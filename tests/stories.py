"""Tables, maps and files that tests of several folders share."""

import io
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from reading import from_table

from condokit import AffineMap, ConDoAdapter
from condokit.cli import main
from condokit.report import build
from condokit.trust.evaluate import evaluate

ROLES = {"domain": "domain", "confounders": ["sick"]}


def two_domains(rng, n=150, d=4, effect=2.0, share=(0.7, 0.3)):
    """Return a table in which `sick` shifts and widens features, and the query is 2 x + 1."""
    parts = []
    for name, sick_share in zip(("query", "reference"), share):
        sick = rng.random(n) < sick_share
        X = effect * sick[:, None] + (1 + 0.5 * sick[:, None]) * rng.normal(size=(n, d))
        X += 0.5 * rng.normal(size=(n, 1))
        X = (X - 1) / 2 if name == "query" else X
        part = pd.DataFrame(X, columns=[f"x{j}" for j in range(d)])
        parts.append(part.assign(domain=name, sick=sick))
    return pd.concat(parts, ignore_index=True)


def truth(d=4):
    return AffineMap(np.full(d, 2.0), np.ones(d), [f"x{j}" for j in range(d)])


HOSTILE = [
    "</script><img src=x onerror=\"document.title='pwned'\">",
    "<!--<script>",
    "'\"`&amp;{{ 7 * 7 }}",
    "\u202eright to left עברית",
    "emoji 🧠\u2028",
    "__proto__",
    "constructor",
]


def table(n_features, names=None, n=60, seed=0):
    rng = np.random.default_rng(seed)
    sick = np.repeat([True, False, True, False], [n, n // 2, n // 2, n])
    X = rng.normal(size=(3 * n, n_features)) + sick[:, None]
    domain = np.repeat(["new", "old"], [n + n // 2, n // 2 + n])
    X[domain == "new"] = 1.5 * X[domain == "new"] + 1
    names = names or [f"x{j}" for j in range(n_features)]
    return pd.DataFrame(X, columns=names).assign(domain=domain, sick=sick)


def read(frame, confounders=("sick",)):
    return from_table(frame, "domain", list(confounders), None, None, None, "old", None, "raise")


def built(adapter, domains, **more):
    """Build a record from few permutations."""
    evaluation = evaluate(adapter, domains, domain=None, n_permutations=39)
    return build(adapter, domains, evaluation=evaluation, **more)


def report(frame, map="location-scale", **more):
    domains = read(frame)
    divergence = "ot" if map == "affine" else "auto"  # two strata determine no matrix
    adapter = ConDoAdapter(map, divergence=divergence, reference="old").fit_domains(domains)
    return built(adapter, domains, **more)


def write_h5ad(path, X):
    h5py = pytest.importorskip("h5py")
    write_elem = pytest.importorskip("anndata.io").write_elem
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        tables = {
            "obs": {"_index": [f"cell{i}" for i in range(9)], "sex": list("FMF" * 3)},
            "var": {"_index": ["g0", "g1", "g2"], "long": ["a", "b", "c"]},
        }
        for key, columns in tables.items():
            part = file.create_group(key)
            for name, column in columns.items():
                write_elem(part, name, np.array(column, object))
            kind = {"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"}
            file[key].attrs.update(kind | {"column-order": list(columns)[1:]})
        write_elem(file, "X", X)
        write_elem(file, "uns", {"who": "us"})
        write_elem(file, "obsm", {"pca": X[:, :2]})
    return path


def run(*arguments):
    """Run a command in this process; return its exit code."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return end.value.code or 0


def told(capsys, *arguments):
    """Run a command in this process; return its exit code, output and messages."""
    capsys.readouterr()
    code = run(*arguments)
    return code, *capsys.readouterr()


def piped(given, monkeypatch, *arguments):
    """Run a command in this process with bytes as its standard input: exit code and output."""
    with monkeypatch.context() as patch:
        stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(given)), "utf-8")
        patch.setattr(sys, "stdin", stdin)
        stdout = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
        patch.setattr(sys, "stdout", stdout)
        return run(*arguments), stdout.buffer.getvalue()


def data(folder, suffix="csv"):
    old = folder / f"old.{suffix}"
    return [folder / f"new.{suffix}", "--reference", old, "-c", "seizure", "-f", "eeg_*"]


def call(*arguments, **options):
    """Run a command in a process of its own."""
    command = [sys.executable, "-m", "condokit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=120, check=False, **options)
