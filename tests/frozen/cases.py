"""Behaviour of version 0.1.0 over a grid of cases, by public names only.

``PYTHONPATH=<checkout of 0.1.0>/src python tests/frozen/cases.py`` writes ``frozen.json.gz``;
``test_frozen.py`` compares. With arguments, only the cases of these names are run and timed.
"""

import contextlib
import csv
import dataclasses
import gzip
import importlib
import io
import json
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LinearRegression, LogisticRegression

from condokit import (
    MMD,
    Affine,
    AffineMap,
    Blocks,
    Chained,
    ConDoAdapter,
    Energy,
    KernelSmoother,
    LocationScale,
    LowRank,
    ProductPrior,
    ReverseKL,
    Shift,
    SlicedWasserstein,
    StochasticMMD,
    assess,
    bootstrap,
    datasets,
    evaluate,
    export,
    plots,
    report,
    sensitivity,
)

FROZEN = Path(__file__).parent / "frozen.json.gz"
DIVERGENCES = (
    "reverse-kl",
    "forward-kl",
    "jeffreys",
    "likelihood",
    "ot",
    "pc-match",
    "mmd",
    "mmd-paper",
    "energy",
    "sliced-wasserstein",
    "procrustes",
)
VERSIONS = ("condokit", "schema", "sha256", "versions")  # keys of map files that are left out
CASES = {}


def case(function):
    """Register a case under the name of its function."""
    CASES[function.__name__] = function
    return function


def run_case(name):
    """Return what a case yields, what it warned of, and the error that ended it."""
    return plain(attempt(CASES[name]))


def attempt(function, *arguments, **options):
    """Return value and warnings of a call, or its error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            found = {"value": function(*arguments, **options)}
        except Exception as error:
            found = {"error": [type(error).__name__, str(error)]}
    said = [[w.category.__name__, str(w.message)] for w in caught]
    return plain({**found, "warnings": said} if said else found)


def plain(value):
    """Turn whatever comes out of condokit into dicts, lists, text, numbers, bool and None."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): noted(key, plain(item)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=repr)
    if type(value).__module__.split(".")[0] in ("pandas", "polars", "pyarrow"):
        return table(value)
    if isinstance(value, AffineMap):
        return of_map(value)
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def noted(key, value):
    """Leave out digits of what is zero but for rounding: gradients at a minimum, and objectives."""
    if key == "gradient_norm" and isinstance(value, float) and value < 1e-4:
        return "below 1e-4"
    if key == "objective" and isinstance(value, float) and abs(value) < 1e-12:
        return 0.0
    return value


def table(value):
    """Return a data frame of any kind as its type, index and columns."""
    found = {"type": f"{type(value).__module__.split('.')[0]}.{type(value).__name__}"}
    if hasattr(value, "index"):
        found["index"] = plain(value.index.tolist())
    if isinstance(value, pd.Series):
        return {**found, "values": plain(value.tolist())}
    if hasattr(value, "columns") and isinstance(value, pd.DataFrame):
        columns = {str(name): value[name].tolist() for name in value.columns}
        found["dtypes"] = [str(kind) for kind in value.dtypes]
    elif hasattr(value, "to_pydict"):
        columns = value.to_pydict()
        found["dtypes"] = [str(kind) for kind in value.schema.types]
    else:
        columns = value.to_dict(as_series=False)
        found["dtypes"] = [str(kind) for kind in value.dtypes]
    return {**found, "order": list(columns), "columns": plain(columns)}


def of_map(affine):
    """Return a map as it can be seen from outside."""
    how = affine.provenance
    return {
        "kind": affine.kind,
        "scale": plain(affine.scale),
        "offset": plain(affine.offset),
        "left": plain(affine.left),
        "right": plain(affine.right),
        "links": plain(affine.links),
        "feature_names": plain(affine.feature_names),
        "output_names": plain(affine.output_names),
        "names_out": plain(affine.get_feature_names_out()),
        "repr": repr(affine),
        "fitted_on": None if affine.fitted_on is None else plain(affine.fitted_on.to_dict()),
        "provenance": None if how is None else plain({k: how[k] for k in how if k != "versions"}),
    }


def of_fit(adapter):
    """Return everything that a fitted adapter knows."""
    names = getattr(adapter, "feature_names_in_", None)
    return {
        "map": of_map(adapter.map_),
        "map_se": plain(adapter.map_se_),
        "report": plain(dict(adapter.report_)),
        "overlap": plain(adapter.overlap_.to_dict()),
        "support": {
            "repr": repr(adapter.support_),
            "columns": plain(adapter.support_.to_dict()),
            "dropped": plain(adapter.support_.dropped),
        },
        "divergence": plain(adapter.divergence_),
        "conditional": plain(adapter.conditional_),
        "n_features_in": adapter.n_features_in_,
        "feature_names_in": plain(names),
        "names_out": plain(adapter.get_feature_names_out()),
    }


def of_record(record):
    """Return a record as text and as a dict."""
    return {"repr": repr(record), "dict": plain(record.to_dict())}


def pair_fit(data, *, map="location-scale", pairs=None, groups=None, sample_weight=None, **options):
    """Fit two tables and return everything known of the fit."""
    adapter = ConDoAdapter(map, **options)
    adapter.fit_pair(*data, pairs=pairs, groups=groups, sample_weight=sample_weight)
    return of_fit(adapter)


def several(data, choices, **common):
    """Fit the same data with each of several settings, each with its warnings or error."""
    return {
        name: attempt(pair_fit, data, **{**common, **choice}) for name, choice in choices.items()
    }


# Data: small, with a known map, drawn from seeds.


def categorical(seed=0, n=60, d=3, mixes=False, n_levels=2):
    """Draw strata with means and covariances of their own: X and Z of query and reference."""
    rng = np.random.default_rng(seed)
    levels = np.array(["a", "b", "c", "d"])[:n_levels]
    shares = np.arange(1.0, n_levels + 1) / np.arange(1, n_levels + 1).sum()
    centre = rng.normal(0, 2, (n_levels, d))
    root = np.eye(d) + 0.5 * rng.normal(size=(n_levels, d, d))

    def draw(p):
        Z = rng.choice(n_levels, n, p=p)
        return centre[Z] + np.einsum("nij,nj->ni", root[Z], rng.normal(size=(n, d))), levels[Z]

    X_query, Z_query = draw(shares)
    X_reference, Z_reference = draw(shares[::-1])
    A = np.diag(np.linspace(0.6, 1.7, d))
    if mixes:
        A = A + 0.4 * rng.normal(size=(d, d))
    b = np.linspace(-1, 2, d)
    return (X_query - b) @ np.linalg.inv(A).T, X_reference, Z_query, Z_reference


def continuous(seed=0, n=60, d=2, n_confounders=1, mixes=False):
    """Draw features whose mean follows continuous confounders of other ranges."""
    rng = np.random.default_rng(seed)
    slope = rng.normal(0, 1.5, (n_confounders, d))

    def draw(low, high):
        Z = rng.uniform(low, high, (n, n_confounders))
        X = Z @ slope + np.sin(2 * Z[:, :1]) + 0.4 * rng.normal(size=(n, d))
        return X, Z[:, 0] if n_confounders == 1 else Z

    X_query, Z_query = draw(0.0, 3.0)
    X_reference, Z_reference = draw(0.5, 4.0)
    A = np.diag(np.linspace(0.7, 1.5, d))
    if mixes:
        A = A + 0.3 * rng.normal(size=(d, d))
    return (X_query - 1) @ np.linalg.inv(A).T, X_reference, Z_query, Z_reference


def mixed(seed=0, n=70):
    """Draw one continuous and one categorical confounder."""
    rng = np.random.default_rng(seed)

    def draw(low, high, share):
        age, sex = rng.uniform(low, high, n), rng.random(n) < share
        mean = np.column_stack([age / 10 + 2 * sex, -age / 20 + sex])
        X = mean + rng.normal(size=(n, 2)) * (0.5 + 0.3 * sex)[:, None]
        return X, pd.DataFrame({"age": age, "sex": np.where(sex, "F", "M")})

    X_query, Z_query = draw(20, 60, 0.6)
    X_reference, Z_reference = draw(30, 70, 0.4)
    return (X_query - 1) / [2.0, 0.5], X_reference, Z_query, Z_reference


def frame(seed=0, n=60, d=3):
    """Return one table of both domains with named columns and an index of its own."""
    X_query, X_reference, Z_query, Z_reference = categorical(seed, n, d)
    columns = ["height", "width", "depth", "mass", "speed"][:d]
    one = pd.DataFrame(np.vstack([X_query, X_reference]), columns=columns)
    one["sex"] = np.concatenate([Z_query, Z_reference])
    one["device"] = np.repeat(["v2", "v1"], n)
    one.index = [f"row{i}" for i in range(2 * n)]
    return one


ROLES = {"domain": "device", "confounders": ["sex"]}


def holes(data, seed=1, share=0.1):
    """Return the same data with missing features."""
    rng = np.random.default_rng(seed)
    X_query, X_reference, *Z = data
    return tuple(
        np.where(rng.random(X.shape) < share, np.nan, X) for X in (X_query, X_reference)
    ) + tuple(Z)


def by_distance(left, right):
    """Compare texts by their lengths and first letters: a kernel of a user."""
    left, right = ([str(t) for t in np.asarray(z).ravel()] for z in (left, right))
    return np.array(
        [
            [np.exp(-abs(len(a) - len(b)) / 2) * (1.0 if a[0] == b[0] else 0.3) for b in right]
            for a in left
        ]
    )


# 1. Fits


@case
def fit_one_categorical():
    return several(
        categorical(),
        {
            "auto": {},
            "plain": {"shrinkage": None},
            "fixed": {"shrinkage": 0.3},
            "zero": {"shrinkage": 0.0},
            "one": {"shrinkage": 1},
        },
    )


@case
def fit_two_categorical():
    X_query, X_reference, Z_query, Z_reference = categorical(1, n=80)
    rng = np.random.default_rng(5)
    Z = [
        pd.DataFrame({"site": z, "flag": rng.random(len(z)) < share})
        for z, share in ((Z_query, 0.3), (Z_reference, 0.6))
    ]
    return several((X_query, X_reference, *Z), {"auto": {}, "plain": {"shrinkage": None}})


@case
def fit_without_confounders():
    return several(
        categorical(2)[:2],
        {
            "auto": {},
            "plain": {"shrinkage": None},
            "fixed": {"shrinkage": 0.3},
            "affine": {"map": "affine"},
            "map auto": {"map": "auto"},
            "low-rank": {"map": LowRank(1)},
            "orthogonal": {"map": "orthogonal"},
        },
    )


@case
def fit_continuous():
    return several(
        continuous(), {"auto": {}, "plain": {"shrinkage": None}, "fixed": {"shrinkage": 0.3}}
    )


@case
def fit_mixed():
    return several(mixed(), {"auto": {}, "plain": {"shrinkage": None}})


@case
def fit_mixed_by_moments():
    return several(
        mixed(n=50), {"splines": {"divergence": "reverse-kl"}, "ot": {"divergence": "ot"}}
    )


@case
def fit_many_continuous():
    return several(
        continuous(3, n=90, n_confounders=6),
        {"auto": {}, "moments": {"divergence": "reverse-kl", "min_overlap": 0}},
    )


@case
def fit_shift_and_identity():
    choices = {"shift": {"map": "shift"}, "identity": {"map": "identity"}}
    return {
        "categorical": several(categorical(), choices),
        "continuous": several(continuous(), choices),
        "plain": several(categorical(), choices, shrinkage=None),
    }


@case
def fit_divergences_categorical():
    choices = {name: {"divergence": name} for name in DIVERGENCES}
    choices["paper"] = {"divergence": ReverseKL(variant="paper")}
    return several(categorical(4, n=40), choices)


@case
def fit_divergences_categorical_plain():
    choices = {name: {"divergence": name} for name in DIVERGENCES}
    choices["paper"] = {"divergence": ReverseKL(variant="paper")}
    return several(categorical(4, n=40), choices, shrinkage=None)


@case
def fit_divergences_continuous():
    names = [n for n in DIVERGENCES if n not in ("pc-match", "procrustes", "mmd-paper")]
    choices = {name: {"divergence": name} for name in names}
    choices["paper"] = {"divergence": ReverseKL(variant="paper")}
    return several(continuous(5, n=40), choices)


@case
def fit_divergences_of_samples_with_seeds():
    return several(
        categorical(6, n=40),
        {
            "sliced": {"divergence": "sliced-wasserstein", "random_state": 3},
            "sliced 20": {"divergence": SlicedWasserstein(n_directions=20)},
            "mmd scales": {"divergence": MMD(scales=(0.5, 1.0))},
            "mmd few rows": {"divergence": MMD(max_rows=30)},
            "energy few rows": {"divergence": Energy(max_rows=30)},
            "paper": {"divergence": StochasticMMD(epochs=2, learning_rate=0.01)},
            "paper by name": {"divergence": "mmd-paper", "random_state": 7},
        },
    )


@case
def fit_priors():
    choices = {name: {"prior": name} for name in ("product", "paper", "uniform")}
    choices["likelihood"] = {"prior": ProductPrior(bandwidth="likelihood")}
    choices["wide"] = {"prior": ProductPrior(bandwidth=2.0)}
    return {
        "categorical": several(categorical(7), choices),
        "continuous": several(continuous(7, n=50), choices, divergence="reverse-kl"),
        "mixed": several(mixed(7, n=50), choices, divergence="reverse-kl"),
    }


@case
def fit_conditionals():
    choices = {name: {"conditional": name} for name in ("stratified", "kernel", "splines")}
    choices["narrow"] = {"conditional": KernelSmoother(bandwidth=0.5)}
    return {
        "continuous": several(continuous(8, n=50), choices, divergence="reverse-kl"),
        "mixed": several(mixed(8, n=50), choices, divergence="ot"),
        "categorical": several(categorical(8), choices),
        "auto divergence": several(continuous(8, n=50), choices),
    }


@case
def fit_chained():
    if importlib.util.find_spec("lightgbm") is None:
        return None
    return several(
        continuous(9, n=30),
        {
            "instance": {"conditional": Chained(n_draws=4, n_iter=1, n_estimators=5)},
        },
        divergence="reverse-kl",
    )


@case
def fit_user_kernel():
    rng = np.random.default_rng(10)
    words = np.array(["ant", "ape", "bear", "bison", "cat", "crocodile"])
    Z_query, Z_reference = rng.choice(words, 50), rng.choice(words, 50)
    lengths = [np.char.str_len(z)[:, None] for z in (Z_query, Z_reference)]
    X = [z + 0.5 * rng.normal(size=(50, 2)) for z in lengths]
    kernels = {
        "prior": ProductPrior(kernel=by_distance),
        "conditional": KernelSmoother(kernel=by_distance),
    }
    return several(
        (X[0] * 2 - 1, X[1], Z_query, Z_reference),
        {
            "both": {**kernels, "divergence": "reverse-kl"},
            "prior alone": {"prior": kernels["prior"]},
            "ot": {**kernels, "divergence": "ot"},
        },
    )


@case
def fit_groups_and_weights():
    data, smooth = categorical(11), continuous(11)
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 15, 60), rng.integers(0, 15, 60)
    own = [f"q{g}" for g in groups[0]], [f"r{g}" for g in groups[1]]
    weights = rng.integers(0, 4, 60).astype(float), rng.uniform(0.5, 2, 60)
    choices = {
        "groups": {"groups": groups},
        "own groups": {"groups": own},
        "one side": {"groups": (None, own[1])},
        "weights": {"sample_weight": weights},
        "both": {"groups": groups, "sample_weight": weights},
        "plain": {"groups": own, "shrinkage": None},
    }
    return {"categorical": several(data, choices), "continuous": several(smooth, choices)}


@case
def fit_groups_and_weights_of_matrices():
    data = categorical(12, n=60, d=2, mixes=True)
    rng = np.random.default_rng(0)
    own = [f"q{g}" for g in rng.integers(0, 20, 60)], [f"r{g}" for g in rng.integers(0, 20, 60)]
    weights = rng.integers(0, 3, 60), rng.integers(1, 3, 60)
    return {
        "affine": several(
            data, {"groups": {"groups": own}, "weights": {"sample_weight": weights}}, map="affine"
        ),
        "auto": several(data, {"groups": {"groups": own}}, map="auto"),
        "mmd": several(data, {"weights": {"sample_weight": weights}}, divergence="mmd"),
    }


@case
def fit_missing_confounders():
    X_query, X_reference, Z_query, Z_reference = mixed(13)
    rng = np.random.default_rng(1)
    Z = []
    for z in (Z_query, Z_reference):
        z = z.copy()
        z.loc[rng.random(len(z)) < 0.1, "age"] = np.nan
        z.loc[rng.random(len(z)) < 0.1, "sex"] = None
        Z.append(z)
    return several(
        (X_query, X_reference, *Z),
        {name: {"missing": name} for name in ("raise", "drop", "impute", "other")},
    )


@case
def fit_missing_features_diagonal():
    choices = {
        "auto": {},
        "plain": {"shrinkage": None},
        "ot": {"divergence": "ot"},
        "likelihood": {"divergence": "likelihood"},
        "mmd": {"divergence": "mmd"},
        "shift": {"map": "shift"},
    }
    return {
        "categorical": several(holes(categorical(14)), choices),
        "continuous": several(holes(continuous(14)), choices),
        "no confounders": several(holes(categorical(14))[:2], {"auto": {}}),
    }


@case
def fit_missing_features_matrix():
    few = {"affine": {"map": "affine"}, "low-rank": {"map": LowRank(1)}, "auto": {"map": "auto"}}
    return {
        "categorical": several(holes(categorical(15, n=80, mixes=True)), few),
        "continuous": several(
            holes(continuous(15, n=60, mixes=True)), {"affine": {"map": "affine"}}
        ),
    }


@case
def fit_constant_features():
    X_query, X_reference, *Z = categorical(16)
    X_query, X_reference = X_query.copy(), X_reference.copy()
    X_query[:, 1] = 3.0
    X_reference[:, 1] = 5.0
    within = X_query.copy()
    within[:, 0] = np.where(Z[0] == "a", 1.0, 2.0)
    choices = {
        "auto": {},
        "affine": {"map": "affine"},
        "map auto": {"map": "auto"},
        "ot": {"divergence": "ot"},
    }
    return {
        "constant": several((X_query, X_reference, *Z), choices),
        "within": several((within, X_reference, *Z), {"auto": {}, "low-rank": {"map": "low-rank"}}),
    }


@case
def fit_one_row_strata():
    X_query, X_reference, Z_query, Z_reference = categorical(17, n=30, n_levels=3)
    Z_query, Z_reference = Z_query.copy(), Z_reference.copy()
    Z_query[:2] = ["e", "f"]
    Z_reference[0] = "e"
    every = np.array([f"s{i}" for i in range(30)])
    return {
        "some": several(
            (X_query, X_reference, Z_query, Z_reference), {"auto": {}, "plain": {"shrinkage": None}}
        ),
        "all": several(
            (X_query, X_reference, every, every),
            {"auto": {}, "likelihood": {"divergence": "likelihood"}},
        ),
    }


@case
def fit_links():
    X_query, X_reference, *Z = categorical(18)
    names = ["dose", "share", "area"]

    def bend(X):
        return pd.DataFrame(
            {
                "dose": np.exp(X[:, 0] / 2),
                "share": 1 / (1 + np.exp(-X[:, 1] / 2)),
                "area": np.abs(X[:, 2]) + 0.1,
            },
            columns=names,
        )

    data = (bend(X_query), bend(X_reference), *Z)
    links = {"dose": "log", "share": "logit", "area": 0.5}
    choices = {
        "all": {"map": LocationScale(links=links)},
        "one": {"map": LocationScale(links={"dose": "log"})},
        "shift": {"map": Shift(links=["log", None, None])},
        "affine": {"map": Affine(n_starts=2, links=links)},
        "low-rank": {"map": LowRank(1, links=links)},
        "unknown": {"map": LocationScale(links={"dos": "log"})},
        "bad": {"map": LocationScale(links="sqrt")},
        "outside": {"map": LocationScale(links="logit")},
    }
    adapter = ConDoAdapter(LocationScale(links=links)).fit_pair(*data)
    mapped, error = adapter.transform(data[0][:5], return_std=True)
    return {
        "fits": several(data, choices),
        "mapped": mapped,
        "error": error,
        "back": adapter.inverse_transform(mapped),
        "negative": attempt(adapter.transform, -data[0][:5]),
    }


@case
def fit_auto_categorical():
    return several(
        categorical(19, n=80),
        {"diagonal": {}, "plain": {"shrinkage": None}, "given": {"divergence": "reverse-kl"}},
        map="auto",
    )


@case
def fit_auto_mixing():
    data = categorical(20, n=100, mixes=True)
    return several(
        data,
        {"auto": {}, "given": {"divergence": "likelihood"}, "pc": {"divergence": "pc-match"}},
        map="auto",
    )


@case
def fit_auto_few_rows():
    return several(
        categorical(21, n=15, d=4, mixes=True), {"auto": {}, "ot": {"divergence": "ot"}}, map="auto"
    )


@case
def fit_auto_continuous():
    return several(continuous(22, n=60), {"auto": {}}, map="auto")


@case
def fit_auto_samples():
    return several(categorical(22, n=40, d=2), {"mmd": {"divergence": "mmd"}}, map="auto")


@case
def fit_affine_few_rows():
    return several(
        categorical(23, n=20, d=5, mixes=True),
        {"auto": {}, "plain": {"shrinkage": None}},
        map="affine",
    )


@case
def fit_affine_more_features_than_rows():
    return several(
        categorical(23, n=8, d=12, mixes=True),
        {
            "auto": {},
            "likelihood": {"divergence": "likelihood"},
            "low-rank": {"map": "low-rank"},
            "map auto": {"map": "auto"},
        },
        **{"map": "affine"},
    )


@case
def fit_affine_many_rows():
    return several(
        categorical(24, n=100, mixes=True),
        {"auto": {}, "plain": {"shrinkage": None}, "fixed": {"shrinkage": 0.3}},
        map="affine",
    )


@case
def fit_affine_just_enough_rows():
    return {
        f"{n} rows": several(categorical(24, n=n, mixes=True), {"auto": {}}, map="affine")
        for n in (23, 24)
    }


@case
def fit_affine_divergences():
    choices = {
        name: {"divergence": name}
        for name in ("reverse-kl", "forward-kl", "jeffreys", "ot", "pc-match", "likelihood")
    }
    choices["paper"] = {"divergence": ReverseKL(variant="paper")}
    return several(categorical(25, n=60, mixes=True), choices, map=Affine(n_starts=5))


@case
def fit_affine_penalties():
    choices = {
        "l1": {"map": Affine(l1=0.05, n_starts=3)},
        "l2": {"map": Affine(l2=0.1, n_starts=3)},
        "nonnegative": {"map": Affine(nonnegative=True, n_starts=3)},
        "all": {"map": Affine(l1=0.01, l2=0.01, nonnegative=True, n_starts=2)},
        "reverse": {"map": Affine(l2=0.1, n_starts=3), "divergence": "reverse-kl"},
        "few steps": {"map": Affine(max_iter=3, n_starts=2)},
        "bad": {"map": Affine(l1=-1)},
        "no starts": {"map": Affine(n_starts=0)},
    }
    return several(categorical(26, n=60, mixes=True), choices)


@case
def fit_affine_continuous():
    choices = {
        "likelihood": {},
        "reverse": {"divergence": "reverse-kl"},
        "ot": {"divergence": "ot"},
    }
    return several(continuous(27, n=60, mixes=True), choices, map=Affine(n_starts=4))


@case
def fit_rigid():
    data = categorical(28, n=80, mixes=True)
    choices = {
        f"{name} {divergence}": {"map": name, "divergence": divergence}
        for name in ("orthogonal", "similarity")
        for divergence in ("auto", "pc-match", "procrustes")
    }
    choices["affine pc-match"] = {"map": "affine", "divergence": "pc-match"}
    choices["affine procrustes"] = {"map": "affine", "divergence": "procrustes"}
    return {
        "categorical": several(data, choices),
        "continuous": several(continuous(28, n=50), {"orthogonal": {"map": "orthogonal"}}),
    }


@case
def fit_low_rank():
    return {
        "categorical": several(
            categorical(29, n=40, d=8, mixes=True),
            {f"rank {r}": {"map": LowRank(r)} for r in (1, 3)},
        ),
        "plain": several(
            categorical(29, n=40, d=5), {"plain": {"shrinkage": None}}, map="low-rank"
        ),
        "continuous": several(continuous(29, n=50, d=5), {"continuous": {}}, map="low-rank"),
    }


@case
def fit_blocks():
    one = frame(30, n=80, d=5)
    query, reference = (one[one["device"] == v] for v in ("v2", "v1"))
    names = ["height", "width", "depth", "mass", "speed"]
    data = (query[names], reference[names], query["sex"], reference["sex"])
    gaps = holes((query[names].to_numpy(), reference[names].to_numpy()))
    gaps = tuple(pd.DataFrame(X, columns=names) for X in gaps)
    groups = [["height", "width"], ["depth", "mass"]]
    return {
        "names": several(
            data,
            {
                "list": {"map": Blocks(groups)},
                "dict": {"map": Blocks({"size": ["height", 1], "rest": [3]})},
                "ot": {"map": Blocks(groups), "divergence": "ot"},
                "unknown": {"map": Blocks([["heigth"]])},
                "twice": {"map": Blocks([["height"], [0]])},
                "empty": {"map": "blocks"},
                "text": {"map": Blocks("height")},
            },
        ),
        "missing": several(
            (*gaps, query["sex"].to_numpy(), reference["sex"].to_numpy()),
            {"list": {"map": Blocks(groups)}},
        ),
    }


@case
def fit_affine_samples():
    data = categorical(31, n=40, d=2, mixes=True)
    choices = {name: {"divergence": name} for name in ("mmd", "energy", "sliced-wasserstein")}
    return several(data, choices, map=Affine(n_starts=3))


@case
def fit_rectangular():
    X_query, X_reference, *Z = categorical(32, n=40, d=4, mixes=True)
    query = pd.DataFrame(X_query, columns=[f"atac{j}" for j in range(4)])
    reference = pd.DataFrame(X_reference[:, :2], columns=["rna0", "rna1"])
    adapter = ConDoAdapter(Affine(n_starts=3), divergence="mmd").fit_pair(query, reference, *Z)
    mapped = adapter.transform(query[:4])
    return {
        "fit": of_fit(adapter),
        "mapped": mapped,
        "back": adapter.inverse_transform(mapped),
        "inverse": attempt(adapter.map_.inverse),
        "domain": attempt(adapter.transform, query[:4], domain=["query"] * 4),
        "arrays": several(
            (X_query, X_reference[:, :2], *Z),
            {"energy": {"divergence": "energy"}, "ot": {"divergence": "ot"}, "auto": {}},
            map=Affine(n_starts=2),
        ),
    }


@case
def fit_pairs():
    rng = np.random.default_rng(33)
    X_query, X_reference, *Z = categorical(33, n=50)
    X_query = X_query.copy()
    X_query[:12] = (X_reference[:12] - [-1, 0.5, 2]) / [0.6, 1.15, 1.7] + 0.1 * rng.normal(
        size=(12, 3)
    )
    pairs = np.arange(12), np.arange(12)
    wrong = np.arange(12), 40 - np.arange(12)
    data = (X_query, X_reference, *Z)
    common = {"pairs": pairs}
    return {
        "good": several(
            data,
            {
                "location-scale": {},
                "shift": {"map": "shift"},
                "affine": {"map": Affine(n_starts=3)},
                "few": {"pairs": ([0, 1], [0, 1])},
                "orthogonal": {"map": "orthogonal"},
                "wrong": {"pairs": wrong},
                "low-rank": {"map": "low-rank"},
                "penalty": {"map": Affine(l1=0.1, n_starts=2)},
            },
            **common,
        ),
        "few rows": several(
            tuple(part[:14] for part in data),
            {"affine": {"map": "affine"}, "diagonal": {}},
            **common,
        ),
        "missing": several(holes(data), {"diagonal": {}}, **common),
        "groups": several(
            data, {"diagonal": {"groups": (np.arange(50) // 2, np.arange(50) // 2)}}, **common
        ),
    }


@case
def containers():
    one = frame(34, n=30)
    found = {}
    arrow = importlib.import_module("pyarrow")
    polars = importlib.import_module("polars")
    made = {
        "pandas": one,
        "polars": polars.from_pandas(one),
        "pyarrow": arrow.Table.from_pandas(one, preserve_index=False),
    }
    for name, value in made.items():
        adapter = ConDoAdapter(reference="v1").fit(value, **ROLES)
        mapped, error = adapter.transform(value[:4], return_std=True)
        found[name] = {
            "fit": of_fit(adapter),
            "mapped": mapped,
            "error": error,
            "back": adapter.inverse_transform(mapped),
            "domain": adapter.transform(value[28:33], domain="device"),
            "together": adapter.fit_transform(value, **ROLES)[27:33],
            "features": of_fit(
                ConDoAdapter(reference="v1").fit(value, **ROLES, features=["dep*", "width"])
            )["map"],
        }
    return found


@case
def containers_of_numbers():
    X_query, X_reference, *Z = categorical(35, n=30)
    small = ConDoAdapter().fit_pair(X_query.astype(np.float32), X_reference.astype(np.float32), *Z)
    mapped = small.transform(X_query[:3].astype(np.float32))
    X, domain = np.vstack([X_query, X_reference]), np.repeat(["query", "reference"], 30)
    one = ConDoAdapter().fit(X, domain=domain, confounders=np.concatenate(Z), features=[0, 2])
    affine = ConDoAdapter("affine").fit_pair(X_query, X_reference, *Z)
    output = ConDoAdapter().fit_pair(X_query, X_reference, *Z).set_output(transform="pandas")
    given = pd.DataFrame(X_query[:3], columns=["a", "b", "c"])
    return {
        "float32": of_fit(small),
        "dtype": [str(mapped.dtype), str(small.map_.inverse()(mapped).dtype)],
        "mapped": mapped,
        "by place": of_fit(one),
        "by place mapped": one.transform(X[28:32], domain=domain[28:32]),
        "by place alone": one.transform(X[:2, [0, 2]]),
        "by place std": one.transform(X[28:32], domain=domain[28:32], return_std=True),
        "no errors": attempt(affine.transform, X_query, return_std=True),
        "set_output": output.transform(X_query[:2]),
        "names given": attempt(small.transform, given),
        "names missing": attempt(ConDoAdapter().fit_pair(given, given + 1).transform, X_query[:2]),
        "too few": attempt(small.transform, X_query[:, :2]),
        "missing column": attempt(
            ConDoAdapter().fit_pair(given, given + 1).transform, given[["a", "b"]]
        ),
        "strange label": attempt(one.transform, X[:2], domain=["query", "other"]),
        "infinite": attempt(small.transform, np.array([[1.0, np.inf, 2.0]])),
        "nan": small.transform(np.array([[1.0, np.nan, 2.0]])),
        "nan of a matrix": affine.transform(np.array([[1.0, np.nan, 2.0]])),
        "not fitted": attempt(ConDoAdapter().transform, X_query),
        "lists": of_fit(
            ConDoAdapter().fit_pair(X_query.tolist(), X_reference.tolist(), list(Z[0]), list(Z[1]))
        )["map"],
        "dict": of_fit(ConDoAdapter().fit_pair(X_query, X_reference, {"sex": Z[0]}, {"sex": Z[1]})),
    }


@case
def confounder_kinds():
    X_query, X_reference, *_ = categorical(36, n=50)
    rng = np.random.default_rng(36)
    numbers = rng.integers(0, 3, 50), rng.integers(0, 3, 50)
    binary = rng.integers(0, 2, 50), rng.integers(0, 2, 50)
    kinds = {
        "numbers": numbers,
        "binary": binary,
        "bool": tuple(b.astype(bool) for b in binary),
        "category": tuple(
            pd.Series(n).map({0: "x", 1: "y", 2: "z"}).astype("category") for n in numbers
        ),
        "object": tuple(
            np.array([("x", 1, None)[0 if i == 2 else i] for i in n], dtype=object) for n in numbers
        ),
        "array": tuple(np.column_stack(two) for two in zip(numbers, binary)),
    }
    found = {name: attempt(pair_fit, (X_query, X_reference, *Z)) for name, Z in kinds.items()}
    found["declared"] = attempt(pair_fit, (X_query, X_reference, *numbers), categorical=[0])
    found["array declared"] = attempt(
        pair_fit, (X_query, X_reference, *kinds["array"]), categorical=[0]
    )
    found["unknown"] = attempt(pair_fit, (X_query, X_reference, *numbers), categorical=["z"])
    return found


# 2. All maps with all divergences


def _grid(names):
    data = categorical(40, n=80)
    sides = []
    for X in data[:2]:
        Z = np.repeat(["a", "b"], 40)
        sides.append((X + np.where(Z == "a", 0.0, 1.0)[:, None], Z))
    (X_query, Z_query), (X_reference, Z_reference) = sides

    def fitted(family, divergence):
        adapter = ConDoAdapter(family, divergence=divergence)
        affine = adapter.fit_pair(X_query, X_reference, Z_query, Z_reference).map_
        return {
            "kind": affine.kind,
            "A": plain(affine.scale if affine.kind == "diagonal" else affine.A),
            "offset": plain(affine.offset),
        }

    return {
        f"{name} {divergence}": attempt(
            fitted, Blocks([[0, 1]]) if name == "blocks" else name, divergence
        )
        for name in names
        for divergence in DIVERGENCES
    }


@case
def grid_diagonal():
    return _grid(["identity", "shift", "location-scale"])


@case
def grid_affine():
    return _grid(["affine"])


@case
def grid_low_rank_and_blocks():
    return _grid(["low-rank", "blocks"])


@case
def grid_rigid():
    return _grid(["orthogonal", "similarity"])


# 3. Maps


def saved(affine):
    """Return the content of the file of a map, and that of the file of what was read from it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "map.json"
        affine.save(path)
        loaded = AffineMap.load(path)
        content = json.loads(path.read_text())
        layout = [line[:30] for line in path.read_text().splitlines()][:4]
    assert loaded == affine
    stream = io.BytesIO()
    loaded.save(stream)
    return {
        "content": without_versions(content),
        "keys": list(content),
        "lines": [line for line in layout if 'condokit":' not in line and "schema" not in line],
        "again": without_versions(json.loads(stream.getvalue())) == without_versions(content),
    }


def without_versions(content):
    """Drop what differs between versions: at the top, and in how the map was fitted."""
    if not isinstance(content, dict):
        return content
    kept = {key: item for key, item in content.items() if key not in VERSIONS}
    how = kept.get("provenance")
    if isinstance(how, dict):
        kept["provenance"] = {key: item for key, item in how.items() if key != "versions"}
    return kept


def example_maps():
    rng = np.random.default_rng(50)
    left, right = rng.normal(size=(2, 3, 1))
    names = ["a", "b", "c"]
    return {
        "diagonal": AffineMap([2.0, 0.5, -1.0], [1.0, 0.0, 3.0], names),
        "unnamed": AffineMap([2.0, 0.5, 4.0], [1.0, 0.0, 3.0]),
        "low-rank": AffineMap(
            [1.0, 2.0, 3.0], [0.0, 1.0, 2.0], ["c", "a", "b"], left=left, right=right
        ),
        "dense": AffineMap(rng.normal(size=(3, 3)), [0.5, 0.25, 0.0], names),
        "wide": AffineMap(rng.normal(size=(2, 3)), [1.0, 2.0], names, output_names=["u", "v"]),
        "tall": AffineMap(rng.normal(size=(3, 2)), [1.0, 2.0, 3.0], ["u", "v"], output_names=names),
        "renamed": AffineMap(np.eye(3) * 2, [0.0, 0.0, 1.0], names, output_names=["x", "y", "z"]),
        "linked": AffineMap([2.0, 0.5, 1.0], [0.1, 0.0, 0.2], names, links=["log", "logit", 0.5]),
    }


@case
def maps_alone():
    X = np.array([[0.5, 0.25, 4.0], [0.1, 0.9, 1.0], [np.nan, 0.5, 2.0]])
    found = {}
    for name, affine in example_maps().items():
        rows = X[:, : affine.n_features_in_]
        found[name] = {
            "map": affine,
            "A": affine.A,
            "b": affine.b,
            "rectangular": affine.is_rectangular,
            "html": affine._repr_html_(),
            "mapped": affine(rows),
            "frame": affine(pd.DataFrame(rows, columns=affine.feature_names)),
            "inverse": attempt(affine.inverse),
            "pseudo": attempt(affine.pseudo_inverse),
            "back": attempt(
                lambda m, Y: m.inverse_transform(Y), affine, np.abs(affine(rows[:2])) / 10
            ),
            "log_det": attempt(affine.log_det),
            "saved": saved(affine),
            "check": attempt(lambda m, Y: of_record(m.check(Y)), affine, rows[:2]),
        }
    return found


@case
def maps_together():
    maps = example_maps()
    composed = {
        f"{one} after {other}": attempt(maps[one].compose, maps[other])
        for one in maps
        for other in maps
    }
    equal = {f"{one} is {other}": maps[one] == maps[other] for one in maps for other in maps}
    again = example_maps()
    return {
        "composed": composed,
        "equal": equal,
        "again": [
            maps[name] == again[name] and hash(maps[name]) == hash(again[name]) for name in maps
        ],
        "other": maps["diagonal"] == 3,
        "immutable": attempt(setattr, maps["diagonal"], "scale", 1),
        "delete": attempt(delattr, maps["diagonal"], "scale"),
        "set_params": attempt(maps["diagonal"].set_params, scale=1),
    }


@case
def maps_refused():
    bad = {
        "shape": ([[[1.0]]], [1.0]),
        "empty": ([], []),
        "unequal": ([1.0, 2.0], [1.0]),
        "nan": ([np.nan], [1.0]),
        "infinite": ([1.0], [np.inf]),
        "matrix offset": ([1.0], [[1.0]]),
    }
    found = {name: attempt(AffineMap, *arguments) for name, arguments in bad.items()}
    two = ([1.0, 2.0], [0.0, 0.0])
    options = {
        "names": {"feature_names": ["a"]},
        "same names": {"feature_names": ["a", "a"]},
        "left alone": {"left": [[1.0], [1.0]]},
        "other shapes": {"left": [[1.0], [1.0]], "right": [[1.0, 1.0], [1.0, 1.0]]},
        "link": {"links": "sqrt"},
        "links": {"links": ["log"]},
        "unknown link": {"links": {"z": "log"}, "feature_names": ["x", "y"]},
        "outputs": {"output_names": ["a"]},
        "provenance": {"provenance": [1]},
        "provenance nan": {"provenance": {"a": float("nan")}},
        "provenance object": {"provenance": {"a": object}},
    }
    found |= {name: attempt(AffineMap, *two, **more) for name, more in options.items()}
    found["matrix and left"] = attempt(
        AffineMap, np.eye(2), [0, 0], left=[[1.0]] * 2, right=[[1.0]] * 2
    )
    found["singular"] = attempt(AffineMap([1.0, 0.0], [0.0, 0.0]).inverse)
    found["singular matrix"] = attempt(AffineMap(np.ones((2, 2)), [0.0, 0.0]).inverse)
    found["tiny"] = attempt(AffineMap([1e-320], [1.0]).inverse)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "map.json"
        AffineMap([2.0], [1.0], ["a"]).save(path)
        good = path.read_text()
        for name, text in {
            "not json": "hello",
            "cut": good[: len(good) // 2],
            "changed": good.replace("2.0", "3.0"),
            "other format": '{"format": "other"}',
            "newer": re.sub(r'"schema": ?[12]', '"schema": 99', good),
            "list": "[]",
        }.items():
            path.write_text(text)
            found[name] = attempt(AffineMap.load, path)
        found["absent"] = attempt(AffineMap.load, Path(folder) / "no.json")
        return source_of(replaced(found, folder))


@case
def maps_fitted():
    one = frame(51, n=40)
    adapter = ConDoAdapter(reference="v1").fit(one, **ROLES)
    affine = ConDoAdapter(Affine(n_starts=3), reference="v1").fit(one, **ROLES)
    low = ConDoAdapter(LowRank(1), reference="v1").fit(one, **ROLES)
    new = one[one["device"] == "v2"]
    moved = new.assign(height=new["height"] * 3 + 10)
    gaps = new.assign(width=np.nan)
    return {
        "diagonal": saved(adapter.map_),
        "dense": saved(affine.map_),
        "low-rank": saved(low.map_),
        "same": of_record(adapter.map_.check(new)),
        "drift": of_record(adapter.map_.check(moved)),
        "missing": of_record(adapter.map_.check(gaps)),
        "columns": of_record(adapter.map_.check(new[["height", "width"]].assign(more=1.0))),
        "few": of_record(adapter.map_.check(new[:2])),
        "array": attempt(
            lambda: of_record(adapter.map_.check(new[["height", "width", "depth"]].to_numpy()))
        ),
        "inverse": adapter.map_.inverse(),
        "round": adapter.map_.compose(adapter.map_.inverse()),
    }


@case
def exports():
    maps = example_maps()
    found = {}
    for name, affine in maps.items():
        found[name] = {
            "sql": attempt(export.to_sql, affine, keep=["id"]),
            "python": source_of(attempt(export.to_python, affine)),
        }
    found["names"] = attempt(export.to_sql, maps["unnamed"], ["lab", "runs"], names=["p", "q", "r"])
    found["bad names"] = attempt(export.to_sql, maps["unnamed"], names=["p"])
    found["ending"] = attempt(export.export, maps["diagonal"], "map.txt")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("map.sql", "map.py"):
            export.export(maps["linked"], Path(folder) / name)
            found[name] = source_of((Path(folder) / name).read_text())
    return found


@case
def exports_onnx():
    onnx = importlib.import_module("onnx")
    found = {}
    for name, affine in example_maps().items():
        model = onnx.load_from_string(export.to_onnx(affine))
        found[name] = {
            "nodes": [node.op_type for node in model.graph.node],
            "inputs": [i.name for i in model.graph.input],
            "outputs": [o.name for o in model.graph.output],
            "metadata": {p.key: p.value for p in model.metadata_props if p.key.endswith("names")},
            "constants": [onnx.numpy_helper.to_array(c).tolist() for c in model.graph.initializer],
        }
    return found


def source_of(text):
    """Leave the version out of generated source."""
    if isinstance(text, dict):
        return {key: source_of(value) for key, value in text.items()}
    if isinstance(text, list):
        return [source_of(value) for value in text]
    if not isinstance(text, str):
        return text
    return re.sub(r"condokit (\(?)\d+\.\d+(\.\w+)*", r"condokit \1VERSION", text)


# 4. Trust


@case
def assess_tables():
    one = frame(60, n=60)
    rng = np.random.default_rng(60)
    one["age"] = rng.uniform(20, 60, len(one)) + 10 * (one["device"] == "v1")
    one["person"] = rng.integers(0, 40, len(one))
    odd = one.assign(
        depth=1.0,
        width=np.round(one["width"]),
        height=np.where(rng.random(len(one)) < 0.7, np.nan, one["height"]),
        heavy=rng.standard_cauchy(len(one)),
        rate=np.clip(rng.normal(0.5, 0.5, len(one)), 0, 1),
    )
    apart = one[(one["device"] == "v1") == (one["sex"] == "a")]
    nearly = pd.concat([apart, one[one["device"] == "v1"][:50]])
    rare = one.assign(sex=np.where(np.arange(len(one)) % 30 == 0, "rare", one["sex"]))
    common = {"domain": "device", "reference": "v1", "features": ["height", "width", "depth"]}

    def found(table, **options):
        return attempt(lambda: of_record(assess(table, **{**common, **options})))

    return {
        "categorical": found(one, confounders=["sex"]),
        "mixed": found(one, confounders=["sex", "age"]),
        "none": found(one),
        "groups": found(one, confounders=["sex"], groups="person"),
        "weights": found(one, confounders=["sex"], sample_weight=np.arange(len(one)) % 3 + 1),
        "odd": found(
            odd, confounders=["sex"], features=["depth", "width", "height", "heavy", "rate"]
        ),
        "apart": found(apart, confounders=["sex"]),
        "nearly": found(nearly, confounders=["sex"]),
        "rare": found(rare, confounders=["sex"]),
        "cells": found(rare, confounders=["sex"], min_cell=1),
        "limits": found(one, confounders=["sex"], warn_overlap=0.95),
        "refused": found(one, confounders=["sex"], min_overlap=0.99),
        "html": assess(one, confounders=["sex"], **common)._repr_html_(),
    }


@case
def evaluate_adapter():
    one = frame(61, n=50)
    adapter = ConDoAdapter(reference="v1").fit(one, **ROLES)
    found = evaluate(adapter, one, **ROLES, n_permutations=50)
    return {"record": of_record(found), "html": found._repr_html_()}


@case
def evaluate_maps():
    one = frame(62, n=40)
    names = ["height", "width", "depth"]
    options = {**ROLES, "reference": "v1", "n_permutations": 39, "features": names}
    identity = AffineMap(np.ones(3), np.zeros(3), names)
    plain_map = ConDoAdapter(shrinkage=None, reference="v1").fit(one, **ROLES, features=names).map_
    return {
        "identity": of_record(evaluate(identity, one, **options)),
        "fitted": of_record(evaluate(plain_map, one, **{**options, "random_state": 5})),
        "few": attempt(evaluate, identity, one, **{**options, "n_permutations": 3}),
        "not a map": attempt(evaluate, 3, one, **options),
        "not fitted": attempt(evaluate, ConDoAdapter(), one, **options),
    }


@case
def evaluate_models_and_pairs():
    one = frame(63, n=50)
    names = ["height", "width", "depth"]
    rng = np.random.default_rng(63)
    one["ill"] = (one["height"] + rng.normal(size=len(one)) > one["height"].median()).astype(int)
    one["level"] = one["width"] * 2 + rng.normal(size=len(one))
    old = one[one["device"] == "v1"]
    models = {
        "ill": LogisticRegression().fit(old[names], old["ill"]),
        "level": LinearRegression().fit(old[names], old["level"]),
    }
    adapter = ConDoAdapter(reference="v1").fit(one, **ROLES, features=names)
    options = {**ROLES, "features": names, "n_permutations": 39}
    labels = {"ill": "ill", "level": "level"}
    pairs = np.arange(15), 50 + np.arange(15)
    full = evaluate(adapter, one, **options, models=models, labels=labels, pairs=pairs)
    return {
        "full": of_record(full),
        "one model": of_record(evaluate(adapter, one, **options, models=models["ill"])),
        "agreement": of_record(full.agreement),
        "bad labels": attempt(
            evaluate, adapter, one, **options, models=models, labels={"other": "ill"}
        ),
        "bad pairs": attempt(evaluate, adapter, one, **options, pairs=([0], [1])),
    }


@case
def evaluate_groups_and_others():
    one = frame(64, n=40)
    one["person"] = [f"p{i // 2}" for i in range(len(one))]
    names = ["height", "width", "depth"]
    options = {**ROLES, "features": names}
    matrix = ConDoAdapter(Affine(n_starts=3), reference="v1").fit(one, **options)
    grouped = ConDoAdapter(reference="v1").fit(one, **options, groups="person")
    rng = np.random.default_rng(64)
    one["age"] = rng.uniform(20, 60, len(one))
    smooth = {**options, "confounders": ["age"]}
    by_age = ConDoAdapter(reference="v1").fit(one, **smooth)
    return {
        "groups": of_record(evaluate(grouped, one, **options, groups="person", n_permutations=39)),
        "matrix": of_record(evaluate(matrix, one, **options, n_permutations=39)),
        "continuous": of_record(evaluate(by_age, one, **smooth, n_permutations=39)),
        "missing": attempt(
            lambda: of_record(
                evaluate(
                    grouped,
                    one.assign(width=one["width"].where(one["width"] > -1)),
                    **options,
                    n_permutations=39,
                )
            )
        ),
    }


@case
def bootstrap_diagonal():
    one = frame(65, n=40)
    one["person"] = [f"p{i // 2}" for i in range(len(one))]
    found = {}
    for name, options, more in (
        ("plain", {}, {}),
        ("groups", {"groups": "person"}, {}),
        ("seed", {}, {"random_state": 4}),
    ):
        roles = {**ROLES, **options, "features": ["height", "width", "depth"]}
        adapter = ConDoAdapter(reference="v1").fit(one, **roles)
        record = of_record(bootstrap(adapter, one, **roles, n_resamples=20, **more))
        value, error = adapter.transform(one[:3], return_std=True)
        found[name] = {"record": record, "se": adapter.map_se_, "value": value, "error": error}
    roles = {**ROLES, "features": ["height", "width", "depth"]}
    found["few"] = attempt(
        bootstrap, ConDoAdapter(reference="v1").fit(one, **roles), one, **roles, n_resamples=1
    )
    found["other rows"] = attempt(
        bootstrap,
        ConDoAdapter(reference="v1").fit(one, **roles),
        one[5:70],
        **roles,
        n_resamples=20,
    )
    return found


@case
def bootstrap_rows():
    one = frame(66, n=40)
    one["age"] = np.random.default_rng(66).uniform(20, 60, len(one))
    found = {}
    for name, family, roles in (
        ("affine", Affine(n_starts=2), ROLES),
        ("ot", "affine", {"domain": "device"}),
        ("continuous", "location-scale", {"domain": "device", "confounders": "age"}),
    ):
        roles = {**roles, "features": ["height", "width"]}
        adapter = ConDoAdapter(family, reference="v1").fit(one, **roles)
        record = bootstrap(adapter, one, **roles, n_resamples=20)
        value, error = adapter.transform(one[:3], return_std=True)
        found[name] = {
            "record": of_record(record),
            "se": adapter.map_se_,
            "value": value,
            "error": error,
        }
    return found


@case
def sensitivity_of_maps():
    one = frame(67, n=50)
    rng = np.random.default_rng(67)
    one["age"] = rng.uniform(20, 60, len(one))
    one["site"] = rng.choice(["x", "y"], len(one))
    features = ["height", "width"]
    found = {}
    for name, confounders, family in (
        ("categorical", ["sex", "site"], "location-scale"),
        ("mixed", ["sex", "age"], "location-scale"),
        ("matrix", ["sex"], Affine(n_starts=2)),
    ):
        roles = {"domain": "device", "confounders": confounders, "features": features}
        adapter = ConDoAdapter(family, reference="v1").fit(one, **roles)
        found[name] = of_record(sensitivity(adapter, one, **roles, n_splits=2))
    return found


def _reported(adapter, one, roles, uncertainty=None):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        record = report.save(path, adapter, one, **roles, uncertainty=uncertainty)
        return {
            "record": unversioned(record),
            "written": path.read_text() == report.render(record),
            "again": replaced(attempt(report.save, path, adapter, one, **roles), folder)
            if uncertainty is None
            else None,
        }


@case
def report_diagonal():
    one = frame(68, n=40)
    roles = {**ROLES, "features": ["height", "width", "depth"]}
    return _reported(ConDoAdapter(reference="v1").fit(one, **roles), one, roles)


@case
def report_matrix():
    one = frame(68, n=40)
    roles = {**ROLES, "features": ["height", "width"]}
    adapter = ConDoAdapter(Affine(n_starts=2), reference="v1").fit(one, **roles)
    return _reported(adapter, one, roles, bootstrap(adapter, one, **roles, n_resamples=20))


def unversioned(value):
    """Drop versions anywhere in a record."""
    if isinstance(value, Mapping):
        return {k: unversioned(v) for k, v in value.items() if k not in ("versions", "version")}
    return [unversioned(item) for item in value] if isinstance(value, list | tuple) else value


@case
def plots_drawn():
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    one = frame(69, n=40)
    roles = {**ROLES, "features": ["height", "width", "depth"]}
    adapter = ConDoAdapter(reference="v1").fit(one, **roles)
    pairs = np.arange(10), 40 + np.arange(10)
    seen = evaluate(adapter, one, **roles, n_permutations=39, pairs=pairs)
    figures = {
        "overlap": plots.overlap(assess(one, reference="v1", **roles)),
        "love": plots.love(seen),
        "map": plots.map_intervals(adapter),
        "densities": plots.densities(seen, "width"),
        "bland_altman": plots.bland_altman(seen.agreement),
    }
    found = {"unknown": attempt(plots.densities, seen, "no")}
    for name, figure in figures.items():
        found[name] = [
            {
                "title": [axis.get_title(), axis.get_title(loc="left")],
                "labels": [axis.get_xlabel(), axis.get_ylabel()],
                "ticks": [text.get_text() for text in axis.get_yticklabels()],
                "lines": [np.asarray(line.get_xydata()) for line in axis.get_lines()],
                "points": [np.asarray(c.get_offsets()) for c in axis.collections],
                "texts": [text.get_text() for text in axis.texts],
                "bars": [
                    [p.get_width(), p.get_height()] for p in axis.patches if hasattr(p, "get_width")
                ],
            }
            for axis in figure.axes
        ]
        pyplot.close(figure)
    return found


@case
def example_data():
    eeg = datasets.make_eeg(20, 30, random_state=1)
    found = {
        "eeg": eeg,
        "columns": list(eeg.columns()),
        "frames": [table(eeg.to_frame(name))["type"] for name in ("pandas", "polars", "pyarrow")],
    }
    for name, problem in {
        "continuous": datasets.make_continuous1d(
            "nonlinear", n_query=8, n_reference=9, n_heldout=5, random_state=0
        ),
        "split": datasets.make_continuous1d(
            n_confounders=3, columns="split", n_query=8, n_reference=9, n_heldout=5, random_state=0
        ),
        "one": datasets.make_categorical1d(8, random_state=0),
    }.items():
        found[name] = {f.name: plain(getattr(problem, f.name)) for f in dataclasses.fields(problem)}
    found["two"] = datasets.make_categorical2d("random transform", random_state=0).X_query[:5]
    found["bad"] = attempt(datasets.make_continuous1d, "wrong")
    return found


# 5. Errors


@case
def errors_of_arguments():
    data = categorical(70, n=40)
    choices = {
        "map": {"map": "afine"},
        "map type": {"map": 3},
        "divergence": {"divergence": "reverse_kl"},
        "divergence type": {"divergence": Affine()},
        "prior": {"prior": "produkt"},
        "conditional": {"conditional": "spline"},
        "shrinkage": {"shrinkage": 2},
        "shrinkage text": {"shrinkage": "much"},
        "shrinkage bool": {"shrinkage": True},
        "missing": {"missing": "ignore"},
        "overlap": {"warn_overlap": 1.5},
        "min overlap": {"min_overlap": "no"},
        "seed": {"divergence": "mmd-paper", "random_state": -1},
        "jobs": {"n_jobs": 0},
        "rank": {"map": LowRank(0)},
        "pc-match": {"divergence": "pc-match"},
        "variant": {"divergence": ReverseKL(variant="other")},
        "prior variant": {"prior": ProductPrior(variant="other")},
        "bandwidth": {
            "prior": ProductPrior(bandwidth=-1.0),
            "divergence": "reverse-kl",
            "conditional": "kernel",
        },
        "reference": {"reference": "v1"},
        "pairs twice": {"pairs": ([0, 0, 1], [2, 2, 3])},
        "pairs outside": {"pairs": ([0], [99])},
        "pairs unequal": {"pairs": ([0, 1], [0])},
        "pairs kind": {"pairs": 3},
        "pairs text": {"pairs": (["a"], ["b"])},
        "weights": {"sample_weight": (-np.ones(40), np.ones(40))},
        "weights zero": {"sample_weight": (np.zeros(40), np.ones(40))},
        "weights small": {"sample_weight": (np.full(40, 0.001), np.ones(40))},
        "weights length": {"sample_weight": (np.ones(3), np.ones(40))},
        "weights nan": {"sample_weight": (np.full(40, np.nan), np.ones(40))},
        "weights kind": {"sample_weight": np.ones(40)},
        "groups length": {"groups": ([1], [2])},
        "paper and affine": {"map": "affine", "divergence": ReverseKL(variant="paper")},
        "low-rank and ot": {"map": "low-rank", "divergence": "ot"},
    }
    return several(data, choices)


@case
def errors_of_tables():
    one = frame(71, n=40)
    numbers = one[["height", "width", "depth"]]

    def refused(table=one, reference="v1", **arguments):
        arguments = {"domain": "device", "confounders": "sex", **arguments}
        return attempt(lambda: of_fit(ConDoAdapter(reference=reference).fit(table, **arguments)))

    return {
        "no domain": refused(domain=None),
        "three labels": refused(one.assign(device=["v1", "v2", "v3", "v1"] * 20)),
        "one label": refused(one.assign(device="v1")),
        "no reference": refused(reference=None),
        "reference": refused(reference="v3"),
        "near reference": refused(reference="V1"),
        "column": refused(confounders="sxe"),
        "columns": refused(confounders=["sex", "aeg"]),
        "feature": refused(features=["hieght"]),
        "pattern": refused(features=["eeg_*"]),
        "feature is confounder": refused(features=["sex", "height"]),
        "feature twice": refused(features=["height", "height"]),
        "domain column": refused(domain="divice"),
        "domain length": refused(domain=["v1", "v2"]),
        "confounder length": refused(confounders=np.array(["a"])),
        "text features": refused(one.assign(width="wide")),
        "numeric text": refused(one.assign(width=one["width"].astype(str))),
        "infinite": refused(one.assign(width=np.inf)),
        "all missing": refused(one.assign(width=np.nan)),
        "missing domain": refused(one.assign(device=one["device"].where(one["device"] == "v1"))),
        "no features": refused(one[["sex", "device"]]),
        "empty": refused(one[:0]),
        "two rows": refused(one.iloc[[0, -1]]),
        "confounder object": refused(confounders=[[1, 2]] * 80),
        "sample weight column": refused(sample_weight="weight"),
        "array names": attempt(
            ConDoAdapter(reference="v1").fit, numbers.to_numpy(), domain="device"
        ),
        "duplicate": refused(pd.concat([one, one[["height"]]], axis=1)),
        "not a table": attempt(ConDoAdapter().fit, 3, domain=[1]),
        "one dimension": attempt(ConDoAdapter().fit, np.ones(4), domain=[1, 1, 0, 0]),
        "complex": attempt(ConDoAdapter().fit, np.ones((4, 1), dtype=complex), domain=[1, 1, 0, 0]),
    }


@case
def errors_of_pairs_of_tables():
    X_query, X_reference, Z_query, Z_reference = categorical(72, n=40)
    rng = np.random.default_rng(72)
    names = (
        pd.DataFrame(X_query, columns=["a", "b", "c"]),
        pd.DataFrame(X_reference, columns=["a", "b", "cc"]),
    )
    gaps = np.where(rng.random(40) < 0.1, None, Z_query)
    low = np.where(np.arange(40) < 2, "b", "a"), np.where(np.arange(40) < 2, "a", "b")
    smooth = rng.uniform(0, 1, 40), rng.uniform(0.9, 2, 40)

    def refused(*data, **options):
        return attempt(pair_fit, data, **options)

    return {
        "columns": refused(*names, Z_query, Z_reference),
        "count": refused(X_query, X_reference[:, :2], Z_query, Z_reference),
        "transposed": refused(rng.normal(size=(5, 30)), rng.normal(size=(5, 40))),
        "one confounder": refused(X_query, X_reference, Z_query),
        "length": refused(X_query, X_reference, Z_query[1:], Z_reference),
        "missing": refused(X_query, X_reference, gaps, Z_reference),
        "missing number": refused(
            X_query, X_reference, np.r_[np.nan, np.arange(39.0)], np.arange(40.0)
        ),
        "infinite confounder": refused(
            X_query, X_reference, np.r_[np.inf, np.arange(39.0)], np.arange(40.0)
        ),
        "no overlap": refused(X_query, X_reference, np.repeat("a", 40), np.repeat("b", 40)),
        "no overlap of numbers": refused(X_query, X_reference, smooth[0], smooth[1] + 10),
        "low overlap": refused(X_query, X_reference, *low),
        "low overlap refused": refused(X_query, X_reference, *low, min_overlap=0.2),
        "low overlap of numbers": refused(X_query, X_reference, *smooth),
        "never refused": refused(X_query, X_reference, smooth[0], smooth[1] + 3, min_overlap=0),
        "kinds": refused(X_query, X_reference, np.arange(40.0), Z_reference),
        "names of confounders": refused(
            X_query,
            X_reference,
            pd.DataFrame({"sex": Z_query}),
            pd.DataFrame({"gender": Z_reference}),
        ),
        "widths": refused(
            X_query, X_reference, Z_query, np.column_stack([Z_reference, Z_reference])
        ),
        "one row": refused(X_query[:1], X_reference[:1]),
        "weak matrix": refused(
            X_query[:12],
            X_reference[:12],
            Z_query[:12],
            Z_reference[:12],
            map=Affine(n_starts=2),
            divergence="likelihood",
        ),
        "outliers": refused(
            np.vstack([X_query, [[1e6, 0, 0]]]), X_reference, np.append(Z_query, "a"), Z_reference
        ),
        "large": refused(X_query * 1e200, X_reference, Z_query, Z_reference),
        "tiny": refused(X_query * 1e-200, X_reference, Z_query, Z_reference),
    }


# 6. The command line


def run(*arguments, stdin=b""):
    """Run a command in this process; return exit code, output and messages."""
    from condokit.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin)), "utf-8")
    code = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main(list(arguments))
            except SystemExit as end:
                code = end.code or 0
    finally:
        sys.stdin = before
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    texts = [re.sub(r"^versions: .*$", "versions: VERSIONS", t, flags=re.M) for t in texts]
    found = {"code": code, "out": texts[0], "err": texts[1]}
    if "--json" in arguments and code == 0:
        found["out"] = unversioned(json.loads(texts[0]))
    return replaced(found, os.getcwd())


def replaced(value, folder):
    """Write FOLDER for a temporary folder, anywhere."""
    if isinstance(value, Mapping):
        return {replaced(k, folder): replaced(v, folder) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [replaced(item, folder) for item in value]
    if isinstance(value, str):
        return value.replace(os.path.realpath(folder), "FOLDER").replace(str(folder), "FOLDER")
    return value


@contextlib.contextmanager
def folder_of_files(seed=80, n=40):
    """Work in a folder with tables of both domains, together and apart."""
    one = frame(seed, n=n).reset_index(names="id")
    one["note"] = [f"0{i}" for i in range(len(one))]
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            one.to_csv("all.csv", index=False)
            for label, name in (("v2", "new"), ("v1", "old")):
                part = one[one["device"] == label].drop(columns="device")
                part.to_csv(f"{name}.csv", index=False)
                part.to_parquet(f"{name}.parquet", index=False)
            yield one
        finally:
            os.chdir(before)


TWO = ("new.csv", "--reference", "old.csv", "-c", "sex", "-f", "height,width,depth")
ONE = (
    "all.csv",
    "--domain",
    "device",
    "--reference-label",
    "v1",
    "-c",
    "sex",
    "-f",
    "height,width,depth",
)


def map_file(path):
    """Return the content of a map file without versions."""
    return without_versions(json.loads(Path(path).read_text()))


def text_table(path):
    """Return the cells of a CSV file as they are written."""
    with open(path, newline="") as file:
        return list(csv.reader(file))


@case
def cli_check():
    with folder_of_files() as one:
        apart = one[(one["device"] == "v1") == (one["sex"] == "a")]
        apart.to_csv("apart.csv", index=False)
        return {
            "text": run("check", *TWO),
            "json": run("check", *TWO, "--json"),
            "one table": run("check", *ONE),
            "default features": run("check", "new.csv", "--reference", "old.csv", "-c", "sex"),
            "parquet": run(
                "check", "new.parquet", "--reference", "old.parquet", "-c", "sex:cat", "-f", "*th"
            ),
            "apart": run("check", "apart.csv", *ONE[1:]),
            "apart json": run("check", "apart.csv", *ONE[1:], "--json"),
            "limits": run("check", *TWO, "--min-overlap", "0.99"),
        }


@case
def cli_fit():
    with folder_of_files():
        return {
            "two": run("fit", *TWO, "-o", "two.json"),
            "two map": map_file("two.json"),
            "one": run("fit", *ONE, "-o", "one.json"),
            "one map": map_file("one.json"),
            "json": run("fit", *TWO, "-o", "j.json", "--json"),
            "standard output": {
                **(found := run("fit", *TWO, "-o", "-")),
                "out": without_versions(json.loads(found["out"])),
            },
            "options": run(
                "fit",
                *TWO,
                "--map",
                "low-rank:1",
                "--shrinkage",
                "none",
                "--seed",
                "3",
                "-o",
                "low.json",
            ),
            "options map": map_file("low.json"),
            "adapted": run(
                "fit", *TWO, "-o", "a.json", "--adapted", "adapted.csv", "--bootstrap", "20"
            ),
            "adapted table": text_table("adapted.csv")[:5],
            "adapted map": map_file("a.json"),
            "low overlap": run("fit", *TWO, "-o", "w.json", "--warn-overlap", "0.99"),
            "affine": run(
                "fit", *TWO, "--map", "affine", "--divergence", "ot", "-o", "affine.json"
            ),
            "affine map": map_file("affine.json"),
            "parquet": run(
                "fit", "new.parquet", "--reference", "old.parquet", *TWO[3:], "-o", "p.json"
            ),
            "same map": map_file("p.json")["scale"] == map_file("two.json")["scale"],
        }


@case
def cli_fit_link_and_auto():
    with folder_of_files() as one:
        bent = one.assign(height=np.exp(one["height"] / 3))
        bent.to_csv("bent.csv", index=False)
        return {
            "link": run("fit", "bent.csv", *ONE[1:], "--link", "height=log", "-o", "link.json"),
            "link map": map_file("link.json"),
            "show": run("show", "link.json"),
            "auto": run("fit", *TWO, "--map", "auto", "-o", "auto.json", "--json"),
            "auto map": map_file("auto.json"),
            "bad link": run("fit", *TWO, "--link", "height", "-o", "x.json"),
            "bad power": run("fit", *TWO, "--link", "height=big", "-o", "x.json"),
            "blocks": run("fit", *TWO, "--map", "blocks", "-o", "x.json"),
            "bad rank": run("fit", *TWO, "--map", "low-rank:x", "-o", "x.json"),
            "bad shrinkage": run("fit", *TWO, "--shrinkage", "much", "-o", "x.json"),
        }


@case
def cli_fit_report():
    with folder_of_files(81):
        return {
            "fit": run("fit", *TWO, "-o", "map.json", "--report", "r.html", "--json"),
            "files": sorted(os.listdir()),
        }


@case
def cli_report():
    with folder_of_files(82):
        return {
            "json": run("report", *ONE, "-o", "r.html", "--json"),
            "exists": run("report", *ONE, "-o", "r.html"),
        }


@case
def cli_apply():
    with folder_of_files() as one:
        run("fit", *TWO, "-o", "map.json")
        one.assign(height=one["height"] + 20).to_csv("drift.csv", index=False)
        found = {
            "csv": run("apply", "map.json", "new.csv", "-o", "out.csv"),
            "csv table": text_table("out.csv"),
            "parquet": run("apply", "map.json", "new.csv", "-o", "out.parquet"),
            "parquet table": pd.read_parquet("out.parquet"),
            "parquet to csv": run("apply", "map.json", "new.parquet", "-o", "out2.csv"),
            "parquet to csv table": text_table("out2.csv")[:4],
            "drift": run("apply", "map.json", "drift.csv", "-o", "drifted.csv"),
            "drift json": run("apply", "map.json", "drift.csv", "-o", "drifted.parquet", "--json"),
            "inverse": run("apply", "map.json", "out.csv", "-o", "back.csv", "--inverse"),
            "inverse table": text_table("back.csv")[:10],
            "domain": run(
                "apply",
                "map.json",
                "all.csv",
                "--domain",
                "device",
                "--reference-label",
                "v1",
                "-o",
                "d.csv",
            ),
            "domain table": text_table("d.csv")[38:45],
            "standard output": run(
                "apply", "map.json", "new.csv", "-o", "-", "--output-format", "tsv"
            ),
            "standard input": run(
                "apply",
                "map.json",
                "-",
                "-o",
                "-",
                "--format",
                "csv",
                "--output-format",
                "csv",
                stdin=b"depth,height,x,width\n1,2,a,3\n,0.5,b,NA\n",
            ),
            "exists": run("apply", "map.json", "new.csv", "-o", "out.csv"),
            "force": run("apply", "map.json", "new.csv", "-o", "out.csv", "--force"),
        }
        one.drop(columns="height").to_csv("less.csv", index=False)
        one.assign(height="tall").to_csv("text.csv", index=False)
        found["missing column"] = run("apply", "map.json", "less.csv", "-o", "no.csv")
        found["text column"] = run("apply", "map.json", "text.csv", "-o", "no.csv")
        found["label alone"] = run(
            "apply", "map.json", "all.csv", "--domain", "device", "-o", "no.csv"
        )
        found["absent"] = run("apply", "map.json", "absent.csv", "-o", "no.csv")
        found["no map"] = run("apply", "absent.json", "new.csv", "-o", "no.csv")
        found["files"] = sorted(os.listdir())
        return found


@case
def cli_show_and_export():
    with folder_of_files():
        run("fit", *TWO, "-o", "map.json")
        run("fit", *TWO, "--map", "low-rank:1", "-o", "low.json")
        shown = run("show", "map.json")
        python = run("export", "map.json", "--python", "-")
        python["out"] = source_of(python["out"])
        sql = run("export", "map.json", "--sql", "-")
        sql["out"] = source_of(sql["out"])
        low = run("export", "low.json", "--sql", "-", "--table", "lab.runs", "--keep", "id")
        low["out"] = source_of(low["out"])
        return {
            "show": shown,
            "show json": run("show", "map.json", "--json"),
            "show low": run("show", "low.json", "--json"),
            "sql": sql,
            "low": low,
            "python": python,
            "files": run("export", "map.json", "--sql", "m.sql", "--python", "m.py"),
            "json": run("export", "map.json", "--sql", "m2.sql", "--json"),
            "nothing": run("export", "map.json"),
            "exists": run("export", "map.json", "--sql", "m.sql"),
        }


@case
def cli_demo():
    with folder_of_files():
        found = run("demo", "demo")
        rows = text_table("demo/adapted.csv")
        return {
            "run": found,
            "files": sorted(os.listdir("demo")),
            "map": map_file("demo/map.json"),
            "adapted": rows[:6],
            "n_rows": len(rows),
        }


@case
def cli_errors():
    with folder_of_files() as one:
        apart = one[(one["device"] == "v1") == (one["sex"] == "a")]
        apart.to_csv("apart.csv", index=False)
        one.assign(sex=one["sex"].where(one.index > 3)).to_csv("gaps.csv", index=False)
        one.assign(device=["v1", "v2", "v3", "v1"] * 20).to_csv("three.csv", index=False)
        Path("ragged.csv").write_text("a,b\n1,2\n3\n")
        Path("empty.csv").write_text("")
        Path("bad.json").write_text("{}")
        to = ("-o", "x.json")
        return {
            "no overlap": run("fit", "apart.csv", *ONE[1:], *to),
            "refused overlap": run("fit", *TWO, "--min-overlap", "0.99", *to),
            "missing confounder": run("fit", "gaps.csv", *ONE[1:], *to),
            "dropped": run("fit", "gaps.csv", *ONE[1:], "--missing", "drop", "-o", "dropped.json"),
            "imputed": run(
                "fit", "gaps.csv", *ONE[1:], "--missing", "impute", "-o", "imputed.json"
            ),
            "three labels": run("fit", "three.csv", *ONE[1:], *to),
            "map": run("fit", *TWO, "--map", "afine", *to),
            "divergence": run("fit", *TWO, "--divergence", "klx", *to),
            "pc-match": run("fit", *TWO, "--divergence", "pc-match", *to),
            "column": run("fit", "new.csv", "--reference", "old.csv", "-c", "sxe", *to),
            "feature": run(
                "fit", "new.csv", "--reference", "old.csv", "-c", "sex", "-f", "hieght", *to
            ),
            "kind": run("fit", "new.csv", "--reference", "old.csv", "-c", "sex:num", *to),
            "no reference": run("fit", "new.csv", "-c", "sex", *to),
            "domain alone": run("fit", "all.csv", "--domain", "device", *to),
            "label": run("fit", "all.csv", "--domain", "device", "--reference-label", "v9", *to),
            "both": run("fit", *ONE, "--reference", "old.csv", *to),
            "absent": run("fit", "absent.csv", "--reference", "old.csv", *to),
            "format": run("fit", "new.xyz", "--reference", "old.csv", *to),
            "ragged": run("check", "ragged.csv", "--reference", "old.csv"),
            "empty": run("check", "empty.csv", "--reference", "old.csv"),
            "bad map": run("show", "bad.json"),
            "no output": run("fit", *TWO),
            "no folder": run("fit", *TWO, "-o", "no/where.json"),
            "input": run("fit", *TWO, "-o", "new.csv", "--force"),
            "two outputs": run("fit", *TWO, "-o", "x.json", "--report", "x.json"),
            "weights": run("fit", *TWO, "--weights", "id", *to),
            "option": run("fit", *TWO, "--no-such", *to),
            "command": run("no-such"),
            "files": sorted(os.listdir()),
        }


def freeze():
    """Run all cases and write what they yield."""
    found = {}
    for name in CASES:
        found[name] = run_case(name)
    text = json.dumps(found, indent=0, sort_keys=True)
    with (
        open(FROZEN, "wb") as file,
        gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as zipped,
    ):
        zipped.write(text.encode())
    return len(text)


def read_frozen():
    """Return what the cases yielded in version 0.1.0."""
    with gzip.open(FROZEN, "rt", encoding="utf-8") as file:
        return json.load(file)


if __name__ == "__main__":
    if sys.argv[1:]:
        for chosen in sys.argv[1:] if sys.argv[1] != "--times" else CASES:
            start = time.perf_counter()
            result = run_case(chosen)
            size = len(json.dumps(result))
            sys.stdout.write(f"{time.perf_counter() - start:6.2f} s {size:9,} {chosen}\n")
            if sys.argv[1] != "--times":
                sys.stdout.write(json.dumps(result, indent=1)[:20000] + "\n")
            elif "error" in result:
                sys.stdout.write(f"    {result['error']}\n")
    else:
        freeze()
