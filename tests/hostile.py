"""Random hostile calls over all doors: odd data in odd containers with odd arguments.

Each must give a finite result, or an error of our own that is raised by condokit (no exception, and
no warning, comes from a library below), within 20 seconds of processor time; and where both domains
are one population, the map is near the identity, or a warning says why not. A test does some of
them; `python tests/hostile.py 10000 --seed 1` prints what was found, `--only 17` one call with its
traceback.
"""

import argparse
import contextlib
import io
import json
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import anndata
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from scipy import sparse
from sklearn.base import clone

import condokit
from condokit import (
    BatchAdapter,
    ConDoAdapter,
    LocationScale,
    LowRank,
    Monotone,
    Shift,
    Statistics,
    assess,
    bootstrap,
    evaluate,
    load_map,
    sensitivity,
)
from condokit.cli import main
from condokit.compare.priors import PRIORS
from condokit.conditionals import CONDITIONALS
from condokit.divergences import DIVERGENCES
from condokit.maps.families import MAPS
from condokit.paper import ConDo, MMDBaseline, OTBaseline

MOST_SECONDS = 20
PACKAGE = str(Path(condokit.__file__).parent)
BELOW = (
    "numpy",
    "scipy",
    "sklearn",
    "pandas",
    "polars",
    "narwhals",
    "pyarrow",
    "duckdb",
    "anndata",
)


class TooLong(BaseException):
    """A call took more processor time than is allowed."""


class Call(NamedTuple):
    """What one call did."""

    door: str
    fault: str  # empty if none
    refusal: str
    seconds: float


# data


def _labels(rng, n, k):
    names = rng.choice(
        [["query", "reference", "third", "fourth"], [0, 1, 2, 3], ["é", "ü 1", "", "x" * 300]]
    ).tolist()
    labels = np.array(names, dtype=object)[np.sort(rng.integers(0, k, n))]
    return labels.astype(int) if isinstance(names[0], int) else labels


def _plain(rng, n, kind):
    """Return values of a feature."""
    return {
        "normal": lambda: rng.normal(size=n),
        "counts": lambda: rng.poisson(rng.choice([0.3, 3, 50]), n),
        "zeros": lambda: rng.gamma(1.0, size=n) * (rng.random(n) < 0.4),
        "binary": lambda: rng.random(n) < rng.choice([0.02, 0.5]),
        "ties": lambda: rng.normal(size=n).round(),
        "heavy": lambda: rng.standard_t(1.5, n),
        "lognormal": lambda: np.exp(2 * rng.normal(size=n)),
        "shares": lambda: rng.beta(2, 5, n),
        "float32": lambda: rng.normal(size=n).astype(np.float32),
        "narrow": lambda: 1e9 + 1e-3 * rng.normal(size=n),
    }[kind]()


def _hostile_values(rng, n, old):
    """Return values of a feature that may have anything wrong with them."""
    kind = rng.integers(22)
    x = np.asarray(old, dtype=float).copy()
    some = rng.random(n) < rng.choice([0.02, 0.3, 0.95])
    if kind < 6:
        x[some] = [np.nan, np.inf, -1e300, 1e12, 0.0, 1e-310][kind]
        return x
    return [
        lambda: np.full(n, rng.choice([0.0, 1.5, -1e40])),
        lambda: np.full(n, np.nan),
        lambda: (2**62 + rng.integers(0, 1000, n)).astype(np.int64),
        lambda: np.array([str(v) for v in x], dtype=object),
        lambda: np.array(["high" if s else v for s, v in zip(some, x)], dtype=object),
        lambda: np.array([None if s else v for s, v in zip(some, x)], dtype=object),
        lambda: some,
        lambda: np.array([date(2020, 1, 1) + timedelta(int(i)) for i in rng.integers(0, 99, n)]),
        lambda: np.array([datetime(2020, 1, 1, int(i) % 24) for i in range(n)], "datetime64[ns]"),
        lambda: x * 1e45,
        lambda: x * 1e-200,
        lambda: np.array([10**30 + int(i) for i in range(n)], dtype=object),
        lambda: x + 1j,
        lambda: np.where(np.arange(n) == 0, 1e15, 0.0),
        lambda: np.arange(n, dtype=float) ** 5,
        lambda: np.array([[v] for v in x] + [None], dtype=object)[:n],
    ][kind - 6]()


def _confounder(rng, n, labels, odd):
    """Return values of a confounder."""
    first = labels == labels[0] if n else np.zeros(0, bool)
    kind = rng.integers(8, 17) if odd else rng.integers(8)
    return [
        lambda: rng.choice(["F", "M"], n),
        lambda: rng.choice(["a", "b", "c", "d", "e", "f", "g", "h"], n),
        lambda: rng.normal(size=n),
        lambda: rng.normal(size=n) + first,
        lambda: rng.uniform(20, 80, n).round(),
        lambda: rng.integers(0, 2, n),
        lambda: pd.Categorical(rng.choice(["a", "b"], n), categories=["a", "b", "none"]),
        lambda: np.where(rng.random(n) < 0.95, "common", "rare"),
        lambda: np.array([f"one {i}" for i in range(n)], dtype=object),
        lambda: np.where(first, "only", "other"),
        lambda: np.full(n, "same"),
        lambda: np.full(n, 3.0),
        lambda: np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
        lambda: np.array([None if r < 0.1 else "ü" for r in rng.random(n)], dtype=object),
        lambda: rng.random(n) < 0.3,
        lambda: np.array(["2020-01-01", "2021-02-03"], "datetime64[ns]")[rng.integers(0, 2, n)],
        lambda: rng.normal(size=n) * 1e160,
    ][kind]()


class Data:
    """A table, with what its columns are."""

    def __init__(self, rng, many=False):
        self.rng, self.hostility = rng, rng.choice([0.05, 0.3, 1.0])
        n = int(rng.choice([20, 40, 80, 150, 300]))
        if self.odd(0.25):
            n = int(rng.choice([0, 1, 2, 3, 8]))
        self.n = n
        self.k = int(rng.choice([1, 3, 4, 4]) if self.odd(0.1) or many else 2)
        labels = _labels(rng, n, self.k)
        self.labels = list(dict.fromkeys(labels.tolist()))
        d = int(rng.choice([1, 2, 3, 6, 25], p=[0.3, 0.3, 0.2, 0.15, 0.05]))
        kinds = rng.choice(_KINDS, d)
        self.is_same = bool(rng.random() < 0.35)
        self.columns, self.features, self.confounders = {}, [], []
        for j in range(int(rng.choice([0, 1, 2, 3], p=[0.25, 0.45, 0.2, 0.1]))):
            name = str(rng.choice([f"z{j}", f"Größe {j}", f"age{j}"]))
            self.confounders.append(name)
            self.columns[name] = _confounder(rng, n, labels, self.odd(0.3))
        for j, kind in enumerate(kinds):
            x = _plain(rng, n, kind)
            if not self.is_same and n:
                first = labels == labels[0]
                x = np.where(first, x * rng.choice([1, 1.3, 1e6]) + rng.choice([0, 0.5, 40]), x)
            self.features.append(f"x{j}")
            self.columns[f"x{j}"] = x
        self.is_clean = True
        for name in self.features:
            if self.odd(0.2):
                self.is_clean = False
                with np.errstate(over="ignore", invalid="ignore"):
                    self.columns[name] = _hostile_values(rng, n, self.columns[name])
        if self.odd(0.05) and d > 1:
            self.is_clean = False
            self.columns["x1"] = self.columns["x0"]
        self.columns["device"] = labels
        self.weights = _weights(rng, n, self.odd(0.3)) if rng.random() < 0.15 else None
        self.groups = _groups(rng, n, self.odd(0.3)) if rng.random() < 0.15 else None

    def odd(self, share):
        """Tell whether to do something hostile."""
        return self.rng.random() < share * self.hostility

    def frame(self):
        return pd.DataFrame({k: pd.Series(v, dtype=_dtype(v)) for k, v in self.columns.items()})

    def array(self):
        return np.column_stack([self.columns[name] for name in self.features])

    def numbers(self):
        """Return the features as AnnData can hold them."""
        columns = [pd.Series(self.columns[name], dtype=object) for name in self.features]
        columns = [pd.to_numeric(column, errors="coerce") for column in columns]
        return np.real(np.column_stack(columns)).astype(float)

    def container(self):
        """Return the table as something that users hold, and whether columns have names."""
        kind = self.rng.choice(["array", "pandas", "polars", "lazy", "arrow", "duckdb", "anndata"])
        frame = self.frame()
        try:
            if kind == "array":
                return kind, self.array()
            if kind == "anndata":
                X = self.numbers()
                X = sparse.csr_matrix(X) if self.rng.random() < 0.3 else X
                obs = frame.drop(columns=self.features)
                obs.index = [f"r{i}" for i in range(self.n)]
                return kind, anndata.AnnData(X, obs=obs, var=pd.DataFrame(index=self.features))
            if kind == "pandas":
                return kind, self._odd_frame(frame)
            if kind == "arrow":
                return kind, pa.Table.from_pandas(frame)
            if kind == "duckdb":
                return kind, duckdb.from_df(frame)
            frame = pl.from_pandas(frame)
            return kind, frame.lazy() if kind == "lazy" else frame
        except Exception:  # what other libraries cannot hold is none of our business
            return "pandas", frame

    def _odd_frame(self, frame):
        odd = self.rng.integers(12)
        if odd == 0:
            self.is_clean = False
            return pd.concat([frame, frame[self.features[:1]]], axis=1)  # a name twice
        if odd == 1:
            return frame.set_index(pd.Index(np.zeros(len(frame))))
        if odd == 2:
            return frame.sample(frac=1.0, random_state=0)
        if odd == 3:
            return frame.convert_dtypes()
        return frame


_KINDS = ["normal"] * 4 + [
    *("counts", "zeros", "binary", "ties", "heavy", "lognormal", "shares", "float32", "narrow")
]


def _dtype(values):
    return None if hasattr(values, "dtype") and values.dtype.kind != "O" else object


def _weights(rng, n, odd):
    return [
        lambda: rng.integers(0, 3, n),
        lambda: rng.random(n) + 0.1,
        lambda: np.ones(n, dtype=np.int8),
        lambda: np.zeros(n),
        lambda: rng.normal(size=n),
        lambda: np.full(n, np.nan),
        lambda: np.full(n, 1e300),
        lambda: np.full(n, "two"),
        lambda: np.ones(n + 1),
    ][rng.integers(3, 9) if odd else rng.integers(3)]()


def _groups(rng, n, odd):
    return [
        lambda: np.arange(n) // 2,
        lambda: rng.integers(0, max(n // 4, 1), n),
        lambda: np.arange(n).astype(str),
        lambda: np.zeros(n),
        lambda: np.array([None] * n, dtype=object),
        lambda: np.where(rng.random(n) < 0.5, np.nan, rng.integers(0, 5, n)),
    ][rng.integers(3, 6) if odd else rng.integers(3)]()


# arguments


def _settings(rng, data):
    """Return arguments of a ConDoAdapter: mostly sound ones, some hostile."""
    settings: dict[str, Any] = {}

    def maybe(name, share, *values, odd=False):
        if data.odd(share) if odd else rng.random() < share:
            settings[name] = values[rng.integers(len(values))]

    links = ["log", "logit", 0.5, {"x0": "log"}, {"no": "log"}, ["log"], -1.0, "sqrt"]
    families = [
        *(LocationScale(links=link) for link in links),
        *(Shift(links="log"), LowRank(rank=1), LowRank(rank=99), LowRank(rank=0)),
        *(Monotone(links="log"), "afine", None, 3, LocationScale),
    ]
    maybe("map", 0.6, *MAPS, "auto")
    maybe("map", 0.15, *families, odd=True)
    maybe("divergence", 0.3, *DIVERGENCES)
    maybe("divergence", 0.04, "kl", None, 7, DIVERGENCES["mmd"], odd=True)
    if data.confounders and "divergence" in settings:
        maybe("conditional", 0.4, *CONDITIONALS)
        maybe("prior", 0.3, *PRIORS)
    maybe("conditional", 0.1, *CONDITIONALS, "gp", 1, odd=True)
    maybe("prior", 0.1, *PRIORS, "uniform", odd=True)
    maybe("shrinkage", 0.25, None, 0.5, 1.0, 0)
    maybe("shrinkage", 0.04, -1, "none", np.nan, True, odd=True)
    maybe("missing", 0.5, "drop", "impute")
    maybe("missing", 0.05, "ignore", None, odd=True)
    maybe("categorical", 0.2, data.confounders, [0], ["no"], 5, "z0", odd=True)
    if "z0" in data.confounders and data.columns["z0"].dtype == float:
        maybe("reliability", 0.2, {"z0": 0.8}, {"z0": 0.4})
    reliabilities = {"z0": 0}, {"no": 0.5}, {"z0": ["x0", "x1"]}, 0.5, {"age0": 0.8}
    maybe("reliability", 0.1, *reliabilities, odd=True)
    maybe("controls", 0.1, ["x0"], [0], ["no*"], data.features, "x0", [99], odd=True)
    maybe("min_overlap", 0.6, 0.0)
    maybe("min_overlap", 0.05, 0.9, "a", odd=True)
    maybe("n_jobs", 0.04, 0, -1, "all", 2.5, odd=True)
    maybe("random_state", 0.1, 3, None)
    maybe("random_state", 0.04, -1, "seed", odd=True)
    return settings


def _paper(rng, data):
    """Return an adapter of the paper."""
    kind = rng.integers(2) if not data.confounders or data.odd(0.1) else 2
    if kind == 0:
        return OTBaseline("shift" if data.odd(0.1) else rng.choice(_PAPER_MAPS))
    if kind == 1:
        return MMDBaseline(epochs=0 if data.odd(0.1) else 2, published=bool(rng.random() < 0.3))
    settings: dict[str, Any] = {"map": str(rng.choice(_PAPER_MAPS))}
    if len(data.features) > 6:  # 20 draws in 2 rounds of 25 features fit 2000 forests: 40 seconds
        settings["K_X"] = 5
    settings["published"] = bool(rng.random() < 0.3)
    if data.odd(0.5):
        name = str(rng.choice(["K_X", "h_Z", "F", "rounds", "start", "steps", "k_Z", "epochs"]))
        settings[name] = [0, 1, 3, -1, 0.5, "identity", np.nan, None][rng.integers(8)]
    return ConDo(
        "tv" if data.odd(0.05) else str(rng.choice(["kl", "mmd"])), min_overlap=0.0, **settings
    )


_PAPER_MAPS = ["location-scale", "affine"]


# doors


def _given(data, kind, batch=False):
    """Return the roles of columns, by name or as values."""
    rng, named = data.rng, kind in ("lazy", "duckdb") and not data.odd(0.1)
    named = named or (kind != "array" and data.rng.random() < 0.8)
    roles = {"batch" if batch else "domain": "device" if named else data.columns["device"]}
    if data.confounders:
        by_value = pd.DataFrame({name: data.columns[name] for name in data.confounders})
        roles["confounders"] = data.confounders if named else by_value
    if kind != "array":
        roles["features"] = data.features
    if kind == "anndata" or rng.random() < 0.1:
        roles.pop("features", None)
    if data.odd(0.08):
        roles["features"] = [["no"], [], [0], "x*", [99], data.confounders, 1.5, "*"][
            rng.integers(8)
        ]
    if data.odd(0.08):
        roles["confounders"] = [["no"], 7, [], "device", ["x0"], [[1], [2]]][rng.integers(6)]
    for name, values in (("sample_weight", data.weights), ("groups", data.groups)):
        if values is not None and (kind not in ("lazy", "duckdb") or data.odd(0.1)):
            roles[name] = values
    return roles


def _reference(data):
    if data.odd(0.05):
        return [None, "no", np.nan, ["query"]][data.rng.integers(4)]
    return data.labels[-1] if data.labels else "reference"


def _fit(data, adapter, X, roles):
    if data.odd(0.05):
        roles.pop("domain")
    return adapter.set_params(reference=_reference(data)).fit(X, **roles)


def _two_tables(data, frame):
    """Return the rows of the first label and those of the last."""
    labels = data.columns["device"]
    return [frame[np.asarray(labels == side)] for side in (data.labels[0], data.labels[-1])]


def _fit_pair(data, adapter):
    frame = data.frame()
    if not data.labels:
        return adapter.fit_pair(frame, frame)
    parts = _two_tables(data, frame)
    given = {}
    if data.groups is not None:
        given["groups"] = [x["g"] for x in _two_tables(data, frame.assign(g=data.groups))]
    if data.odd(0.1):
        n = min(map(len, parts))
        given["pairs"] = [(range(n), range(n)), ([0], [99]), "no", ([0.5], [1])][
            data.rng.integers(4)
        ]
    X = [part[data.features] for part in parts]
    Z = [part[data.confounders] for part in parts] if data.confounders else [None, None]
    if data.rng.random() < 0.3:
        X = [part.to_numpy() for part in X]
    if data.rng.random() < 0.3 and data.confounders:
        return adapter.fit_pair(
            *parts, confounders=data.confounders, features=data.features, **given
        )
    return adapter.fit_pair(*X, *Z, **given)


def _door_fit(data):
    kind, X = data.container()
    adapter = ConDoAdapter(**_settings(data.rng, data))
    roles = _given(data, kind)
    adapter = _fit(data, adapter, X, roles)
    _use(data, adapter, X)
    return adapter


def _door_pair(data):
    adapter = _fit_pair(data, ConDoAdapter(**_settings(data.rng, data)))
    if data.labels:
        _use(data, adapter, _two_tables(data, data.frame())[0][data.features])
    return adapter


def _door_paper(data):
    return _fit_pair(data, _paper(data.rng, data))


def _door_batches(data):
    rng = data.rng
    kind, X = data.container()
    reference = ["auto", "consensus", _reference(data), _reference(data)][rng.integers(4)]
    settings = {
        "joint": "yes"
        if data.odd(0.05)
        else ["auto", True, False][rng.choice(3, p=[0.7, 0.1, 0.2])]
    }
    settings["unreachable"] = str(rng.choice(["raise", "keep", "keep"]))
    inner = ConDoAdapter(**_settings(rng, data)) if rng.random() < 0.6 else None
    roles = _given(data, kind, batch=True)
    if rng.random() < 0.15:
        roles["bridge"] = np.where(rng.random(data.n) < 0.5, None, rng.integers(0, 9, data.n))
    adapter = BatchAdapter(inner, reference=reference, **settings).fit(X, **roles)
    for one in adapter.maps_.values():
        _finite_map(one)
    if kind != "anndata" and roles.get("features", data.features) == data.features:
        _finite(adapter.transform(X, batch=roles["batch"]), data)
    str(adapter.report_)
    if rng.random() < 0.2:
        with contextlib.suppress(condokit.NeedsRows):
            str(evaluate(adapter, X, n_permutations=40, **roles))
    file = io.BytesIO()
    adapter.save(file)
    file.seek(0)
    BatchAdapter.load(file)
    return adapter


def _door_statistics(data):
    rng = data.rng
    kind, X = data.container()
    roles = _given(data, kind)
    roles.pop("groups", None)
    roles["missing"] = str(rng.choice(["raise", "drop", "drop"]))
    numbers = {c: np.asarray(data.columns[c]) for c in data.confounders}
    numbers = {c: v for c, v in numbers.items() if v.dtype.kind == "f" and v.size}
    if numbers and not data.odd(0.3):
        roles["ranges"] = {c: (-5.0, 100.0) for c in numbers}
    if data.odd(0.1):
        roles["ranges"] = [{"z0": (1, 0)}, {"no": (0, 1)}, {"z0": "ab"}, 3][rng.integers(4)]
    found = Statistics.of(X, **roles)
    if rng.random() < 0.5:
        file = io.BytesIO()
        found.save(file, **({"min_cell": 1} if data.odd(0.1) else {}))
        file.seek(0)
        found = Statistics.load(file)
    adapter = ConDoAdapter(**_settings(rng, data), reference=_reference(data))
    if rng.random() < 0.4:
        adapter = BatchAdapter(reference=_reference(data))
    adapter.fit_statistics(found)
    for one in getattr(adapter, "maps_", {}).values():
        _finite_map(one)
    return adapter


def _door_partial(data):
    kind, X = data.container()
    roles = _given(data, "pandas") | {"domain": "device"}
    for name in ("groups", "sample_weight"):
        roles.pop(name, None)
    frame, adapter = data.frame(), ConDoAdapter(reference=_reference(data))
    half = data.n // 2
    adapter.partial_fit(frame[:half], **roles).partial_fit(frame[half:], **roles)
    return adapter


def _door_assess(data):
    kind, X = data.container()
    if data.rng.random() < 0.3:
        found = assess(X, **_given(data, kind, batch=True), reference=_reference(data))
    else:
        found = assess(X, **_given(data, kind), reference=_reference(data))
    json.dumps(found.to_dict())
    str(found)


def _door_trust(data):
    """Evaluate, bootstrap, or ask how much the map depends on assumptions."""
    rng, frame = data.rng, data.frame()
    roles = _given(data, "pandas")
    adapter = ConDoAdapter(**_settings(rng, data), reference=_reference(data))
    adapter.fit(frame, **roles)
    roles.pop("features", None)
    what = rng.integers(4)
    if what == 0:
        bootstrap(adapter, frame, n_resamples=int(0 if data.odd(0.1) else 20), **roles)
    elif what == 1:
        found = sensitivity(adapter, frame, **roles)
        json.dumps(found.to_dict())
    else:
        found = evaluate(adapter, frame, n_permutations=40, **roles)
        json.dumps(found.to_dict())
        str(found)
        values = [found.error_before, found.error_after]
        assert all(v is None or np.isfinite(v) for v in values), f"errors {values}"
    return adapter


def _door_anndata(data):
    X = data.numbers()
    frame = data.frame().drop(columns=data.features)
    frame.index = [f"r{i}" for i in range(data.n)]
    cells = anndata.AnnData(sparse.csr_matrix(X) if data.rng.random() < 0.4 else X, obs=frame)
    keys = data.confounders or None
    condokit.anndata.adapt(
        cells, batch_key="device", reference=_reference(data), confounder_keys=keys
    )


def _door_command(data):
    rng, frame = data.rng, data.frame()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        suffix = str(rng.choice(["csv", "parquet", "tsv"]))
        try:
            if suffix == "parquet":
                frame.to_parquet(place / "all.parquet")
            else:
                frame.to_csv(place / f"all.{suffix}", sep="\t" if suffix == "tsv" else ",")
        except Exception:  # what pandas cannot write
            suffix = "csv"
            frame.astype(str).to_csv(place / "all.csv")
        table = str(place / f"all.{suffix}")
        words = [str(rng.choice(["fit", "fit", "report", "check", "stats", "plan"])), table]
        words += ["--batch" if rng.random() < 0.3 else "--domain", "device"]
        words += ["--reference-label", str(_reference(data))] if words[0] != "stats" else []
        for name in data.confounders:
            words += ["-c", name + str(rng.choice(["", "", ":cat", ":num"]))]
        if rng.random() < 0.8:
            words += ["-f", ",".join(data.features)]
        if words[0] == "fit":
            words += ["--output", str(place / "map.json")]
        if words[0] == "stats":
            words += ["--output", str(place / "s.json")]
        if rng.random() < 0.3 and words[0] in ("fit", "report"):
            words += ["--map", str(rng.choice([*MAPS, "auto"]))]
        if rng.random() < 0.2:
            words += ["--missing", str(rng.choice(["drop", "impute"]))]
        _command(words)
        if (place / "map.json").exists():
            _command(["show", str(place / "map.json")])
            _command(["check", str(place / "map.json"), table])
            _command(["apply", str(place / "map.json"), table, "--output", str(place / "o.csv")])
        if (place / "s.json").exists():
            _command(["show", str(place / "s.json")])


def _command(words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
            code = 0
        except SystemExit as end:
            code = end.code
    said = err.getvalue()
    assert code in (0, 2, 3, 4, None), f"exit {code} of {words}: {said}"
    assert "Traceback" not in said, said
    for word in ("RuntimeWarning", "site-packages"):
        assert word not in said, f"{words}: {said}"
    assert code in (0, None) or said.strip(), f"{words} fails in silence"


DOORS = {
    "fit": (_door_fit, 0.3),
    "fit_pair": (_door_pair, 0.14),
    "batches": (_door_batches, 0.17),
    "paper": (_door_paper, 0.06),
    "statistics": (_door_statistics, 0.1),
    "partial_fit": (_door_partial, 0.03),
    "assess": (_door_assess, 0.05),
    "trust": (_door_trust, 0.08),
    "adapt": (_door_anndata, 0.03),
    "command": (_door_command, 0.04),
}


# what must hold


def _finite_map(found):
    for name, values in found.arrays().items():
        assert np.isfinite(np.asarray(values, dtype=float)).all(), f"{name} of the map: {values}"


def _finite(out, data):
    """Refuse mapped values that are not finite where the row was."""
    if isinstance(out, duckdb.DuckDBPyRelation):
        out = out.df()
    out = out.collect() if hasattr(out, "collect") else out
    out = out.to_pandas() if hasattr(out, "to_pandas") else out
    if isinstance(out, pd.DataFrame):
        out = out[[name for name in data.features if name in out]]
    out = np.asarray(out)
    if out.dtype.kind == "f" and data.is_clean:
        assert np.isfinite(out).all(), "mapped values are not finite"


def _use(data, adapter, X):
    """Apply, invert, save and load a map."""
    _finite_map(adapter.map_)
    repr(adapter.map_), str(adapter.report_), str(adapter.overlap_)
    file = io.BytesIO()
    adapter.map_.save(file)
    file.seek(0)
    load_map(file)
    clone(adapter)
    if not isinstance(X, anndata.AnnData):
        _finite(adapter.transform(X), data)
        lazy = isinstance(X, (pl.LazyFrame, duckdb.DuckDBPyRelation))
        if adapter.errors_ is not None and not lazy and data.rng.random() < 0.5:
            adapter.transform(X, return_std=True)
    for name, values in (adapter.map_se_ or {}).items():
        assert np.isfinite(np.asarray(values, dtype=float)).all(), f"map_se_ {name}: {values}"


def _near_identity(data, adapter):
    """Refuse maps between equal domains that are far from the identity by their own errors."""
    maps = getattr(adapter, "maps_", None) or {data.labels[0]: getattr(adapter, "map_", None)}
    every = data.array().astype(float)  # a feature may be constant in one domain
    least = np.maximum(1e-3 * every.std(axis=0), 1e-9 * abs(every).max(axis=0) + 1e-300)
    for label, found in maps.items():
        X = data.array().astype(float)[np.asarray(data.columns["device"] == label)]
        if found is None or found.is_rectangular or len(X.T) != found.n_features_in_:
            continue
        if len(X) < (20 if found.kind == "diagonal" else 10 * len(X.T)):
            continue
        # which rotation was meant is not in the errors of matrices from samples or axes alone
        if isinstance(adapter, (ConDo, MMDBaseline)):  # as published, in the units of the data
            continue
        divergence = str(getattr(adapter, "divergence_", ""))
        if found.kind == "dense" and divergence in ("mmd", "energy") and data.confounders:
            continue  # rows that are drawn at numbers do not tell what is chance
        errors = adapter.errors_.get(label) if hasattr(adapter, "maps_") else adapter.errors_
        spread = np.where(
            X.std(axis=0) > least, X.std(axis=0), np.maximum(every.std(axis=0), least)
        )
        moved = np.median(abs(found(X) - X) / spread, axis=0)
        noise = np.zeros(len(X.T)) if errors is None else np.median(errors.std(X), axis=0) / spread
        far = moved > 4.5 * noise + (1.0 if errors is None else 0.1)
        assert not far.any(), f"equal domains: moved {moved[far]} sd, errors {noise[far]}"


def _own(error):
    """Return what is wrong with an exception, or nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    place = frames[-1]
    last = f"{Path(place.filename).name}:{place.lineno}"
    if isinstance(error, AssertionError):
        return str(error)
    if not isinstance(error, (ValueError, TypeError)):
        return f"{type(error).__name__} in {last}: {error}"
    if not place.filename.startswith(PACKAGE):
        ours = [f for f in frames if f.filename.startswith(PACKAGE)]
        by = f" by {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
        return f"{type(error).__name__} from below in {last}{by}: {str(error)[:200]}"
    if place.line and "raise" not in "".join(_source(place)):
        return f"{type(error).__name__} not raised by us in {last}: {str(error)[:200]}"
    return "" if len(str(error)) > 15 else f"{last} says {error}"


def _source(place):
    lines = Path(place.filename).read_text().splitlines()
    return lines[max(place.lineno - 12, 0) : (place.end_lineno or place.lineno)]


def _foreign(caught):
    """Return what is wrong with warnings: those of libraries below."""
    for one in caught:
        below = any(f"/{name}/" in one.filename for name in BELOW)
        if not issubclass(one.category, UserWarning) or below:
            return f"{one.category.__name__} {Path(one.filename).name}:{one.lineno} {one.message}"
    return ""


def call(seed, number):
    """Do one call; return what is wrong with it."""
    rng = np.random.default_rng([seed, number])
    door = str(rng.choice(list(DOORS), p=[share for _, share in DOORS.values()]))
    data = Data(rng, many=door == "batches" and rng.random() < 0.7)
    refusal = fault = ""
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught, _limit():
        warnings.simplefilter("always")
        try:
            adapter = DOORS[door][0](data)
            doubts = (condokit.IdentifiabilityWarning, condokit.LowOverlapWarning)
            doubted = any(issubclass(w.category, doubts) for w in caught)
            if data.is_same and data.is_clean and adapter is not None and not doubted:
                _near_identity(data, adapter)
        except TooLong:
            fault = f"more than {MOST_SECONDS} s"
        except Exception as error:
            fault = _own(error)
            refusal = f"{type(error).__name__}: {error}"
            if _SHOWN:
                traceback.print_exc()
    if _SHOWN:
        for one in caught:
            print(f"{one.category.__name__} {one.filename}:{one.lineno} {one.message}")
    return Call(door, fault or _foreign(caught), refusal, time.process_time() - start)


_SHOWN: list[bool] = []


@contextlib.contextmanager
def _limit():
    """Interrupt what takes too long."""

    def stop(*_):
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n", type=int, nargs="?", default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    if given.only is not None:
        _SHOWN.append(True)
        print(call(given.seed, given.only))
        return
    counts, refused, slowest = Counter(), Counter(), 0.0
    for number in range(given.start, given.start + given.n):
        one = call(given.seed, number)
        counts[one.door] += 1
        refused[one.door] += bool(one.refusal)
        slowest = max(slowest, one.seconds)
        if one.fault:
            print(f"{number} {one.door}: {one.fault}"[:400], flush=True)
            counts["faults"] += 1
        elif one.seconds > MOST_SECONDS / 4:
            print(f"({number} {one.door}: {one.seconds:.1f} s)", flush=True)
    print(f"{given.n} calls, {counts.pop('faults', 0)} faults, slowest {slowest:.1f} s")
    print("refused: " + ", ".join(f"{door} {refused[door]} of {counts[door]}" for door in counts))


if __name__ == "__main__":
    sys.exit(run())
