"""Rows that are not in memory give the map of rows that are, whatever holds them."""

import os
import signal

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from reading import from_table as read_table

from condokit import ConDoAdapter, NeedsRows, assess, bootstrap, evaluate, sensitivity
from condokit.data import reader, tally

dask = pytest.importorskip("dask")
dask.config.set({"dataframe.convert-string": True})

ROLES = {"domain": "domain", "confounders": ["sex", "site"]}
FEATURES = [f"x{j}" for j in range(5)]


def made(n=30_000, missing=0.0, seed=0):
    rng = np.random.default_rng(seed)
    query = rng.random(n) < 0.4
    female = rng.random(n) < np.where(query, 0.3, 0.6)
    site = rng.choice(list("abc"), n)
    X = rng.normal(size=(n, 5)) + female[:, None] * np.linspace(0, 1, 5) + (site == "b")[:, None]
    X[query] = X[query] * 1.3 + 2
    X[rng.random(X.shape) < missing] = np.nan
    frame = pd.DataFrame(X, columns=FEATURES)
    frame["domain"] = np.where(query, "query", "reference")
    frame["sex"] = np.where(female, "F", "M")
    frame["site"] = site
    frame["years"] = rng.normal(50, 10, n) + 5 * query
    return frame


def frames(frame):
    """Yield the same rows in several engines, orders and blocks."""
    import dask.dataframe as dd

    mixed = frame.sample(frac=1, random_state=1)
    table = pa.Table.from_pandas(mixed, preserve_index=False)
    yield "polars", pl.from_pandas(frame).lazy()
    yield "polars, another order", pl.from_pandas(mixed).lazy()
    yield "duckdb", duckdb.from_arrow(table)
    yield "dask", dd.from_pandas(frame, npartitions=3)
    yield "dask, many partitions", dd.from_pandas(mixed.reset_index(drop=True), npartitions=17)
    yield "dataset", ds.dataset(table)
    yield "reader", pa.RecordBatchReader.from_batches(table.schema, table.to_batches(999))


@pytest.fixture
def few_in_sample(monkeypatch):
    monkeypatch.setattr(reader, "_SAMPLED", 2000)
    monkeypatch.setattr("condokit.data.blocks._VALUES", 1 << 15)  # some 4000 rows a block


def fitted(X, **settings):
    return ConDoAdapter(**settings).fit(X, features=FEATURES, **ROLES)


@pytest.mark.parametrize("missing", [0.0, 0.05])
@pytest.mark.usefixtures("few_in_sample")
def test_every_engine_gives_the_map_of_all_rows(missing):
    frame = made(missing=missing)
    wanted = fitted(frame)
    for name, X in frames(frame):
        found = fitted(X)
        # how many features are independent is of a sample, and weighs what they say together
        assert np.allclose(found.map_.scale, wanted.map_.scale, rtol=1e-6), name
        assert np.allclose(found.map_.offset, wanted.map_.offset, rtol=1e-6), name
        errors = found.map_se_["offset"], wanted.map_se_["offset"]
        assert np.allclose(*errors, rtol=1e-4), name
        assert found.overlap_.coefficient == pytest.approx(wanted.overlap_.coefficient, abs=1e-9)
        assert list(found.feature_names_in_) == FEATURES


@pytest.mark.usefixtures("few_in_sample")
def test_the_sample_depends_on_values_alone():
    frame = made()
    samples = []
    for name, X in frames(frame):
        domains = read_table(X, "domain", ["sex", "site"], FEATURES, *[None] * 4, "raise")
        rows = domains.tables[0].read(slice(0, None))
        assert 4000 <= len(rows) < 4600, name
        assert domains.weights.sum() == pytest.approx(len(frame))
        samples.append(rows[np.lexsort(rows.T)])
    assert all(np.array_equal(one, samples[0]) for one in samples)


@pytest.mark.usefixtures("few_in_sample")
def test_heavy_tails_take_another_pass():
    frame = made(20_000)
    frame["x1"] += np.random.default_rng(3).standard_t(2.5, len(frame))
    wanted = fitted(frame)
    assert "x1" in wanted.report_["heavy_tailed_features"]
    for name, X in frames(frame):
        if name == "reader":
            with pytest.raises(ValueError, match="A RecordBatchReader is read once"):
                fitted(X)
            continue
        found = fitted(X)
        apart = np.abs(found.map_.scale - wanted.map_.scale) / wanted.map_se_["scale"]
        assert apart.max() < 0.02, name


@pytest.mark.usefixtures("few_in_sample")
def test_continuous_confounders_and_matrices_see_all_rows():
    frame = made(20_000)
    frame["x2"] += 0.05 * frame["years"] + 0.001 * (frame["years"] - 50) ** 2
    roles = {"domain": "domain", "confounders": ["sex", "years"], "features": FEATURES}
    wanted = ConDoAdapter().fit(frame, **roles)
    X = pl.from_pandas(frame).lazy()
    found = ConDoAdapter().fit(X, **roles)
    for part in ("scale", "offset"):
        apart = getattr(found.map_, part) - getattr(wanted.map_, part)
        assert np.abs(apart / wanted.map_se_[part]).max() < 0.1
    wanted, found = (fitted(data, map="affine", divergence="ot") for data in (frame, X))
    assert np.allclose(found.map_.A, wanted.map_.A, atol=1e-9)


@pytest.mark.filterwarnings("ignore:Confounders")
@pytest.mark.usefixtures("few_in_sample")
def test_what_needs_rows_takes_the_sample_and_says_so():
    frame = made(20_000)
    X = pl.from_pandas(frame).lazy()
    roles = {**ROLES, "features": FEATURES}
    for settings in ({"map": "monotone"}, {"divergence": "energy"}, {"controls": ["x0"]}):
        with pytest.warns(UserWarning, match="need rows, not sums over rows: a sampl"):
            found = ConDoAdapter(**settings).fit(X, **roles)
        assert np.isfinite(found.transform(frame[FEATURES]).to_numpy()).all()
    assert repr(assess(X, **roles)) == repr(assess(frame, **roles))
    adapter = fitted(X)
    assert evaluate(adapter, X, n_permutations=39, **roles).verdict == "better"
    assert sensitivity(adapter, X, n_splits=2, **roles).placebo is not None
    with pytest.raises(ValueError, match="must all be in memory"):
        bootstrap(adapter, X, **roles)


def test_few_rows_are_all_kept():
    frame = made(2000)
    wanted, found = fitted(frame), fitted(pl.from_pandas(frame).lazy())
    assert np.allclose(found.map_.scale, wanted.map_.scale, rtol=1e-10)
    domains = read_table(
        pl.from_pandas(frame).lazy(), "domain", "sex", FEATURES, *[None] * 4, "raise"
    )
    assert domains.sums is None
    assert domains.weights is None


@pytest.mark.usefixtures("few_in_sample")
def test_every_cell_is_in_the_sample_and_stands_for_its_rows(monkeypatch):
    frame = made(30_000)
    frame.loc[:99, ["domain", "sex", "site"]] = ["query", "F", "rare"]
    frame.loc[100:199, ["domain", "sex", "site"]] = ["reference", "F", "rare"]
    X = pl.from_pandas(frame).lazy()
    domains = read_table(X, "domain", ["sex", "site"], FEATURES, *[None] * 4, "raise")
    cells = domains.strata()
    rare = cells.codes == cells.levels.index(("F", "rare"))
    assert rare.sum() >= 2 * tally.FEWEST_OF_CELL
    assert domains.weights[rare].sum() == pytest.approx(200)


@pytest.mark.usefixtures("few_in_sample")
def test_equal_rows_count_together():
    rng = np.random.default_rng(0)
    frame = made(30_000)
    frame[FEATURES] = rng.integers(0, 3, (len(frame), 5)).astype(float)
    X = pl.from_pandas(frame).lazy()
    domains = read_table(X, "domain", "sex", FEATURES, *[None] * 4, "raise")
    assert domains.weights.sum() == len(frame)
    got = domains.weights @ domains.tables[0].read(slice(0, None))
    assert np.allclose(got, frame[FEATURES].sum())


@pytest.mark.usefixtures("few_in_sample")
def test_weights_count_rows():
    frame = made(20_000)
    frame["w"] = np.random.default_rng(0).integers(0, 3, len(frame))
    repeated = frame.loc[np.repeat(frame.index, frame["w"])]
    wanted = fitted(repeated)
    found = ConDoAdapter().fit(
        pl.from_pandas(frame).lazy(), features=FEATURES, sample_weight="w", **ROLES
    )
    assert np.allclose(found.map_.scale, wanted.map_.scale, rtol=1e-6)


@pytest.mark.usefixtures("few_in_sample")
def test_arrays_of_dask_take_values_beside_them():
    import dask.array as da

    frame = made(10_000, missing=0.02)
    X, beside = frame[FEATURES].to_numpy(), {name: frame[name] for name in ("sex", "site")}
    lazy = da.from_array(X, chunks=(999, 2))
    domain = frame["domain"].to_numpy()
    wanted = ConDoAdapter().fit(X, domain=domain, confounders=beside)
    found = ConDoAdapter().fit(lazy, domain=domain, confounders=beside)
    assert np.allclose(found.map_.scale, wanted.map_.scale, rtol=1e-6)
    mapped = found.transform(lazy, domain=domain)
    assert hasattr(mapped, "dask")
    assert np.allclose(mapped.compute(), found.transform(X, domain=domain), equal_nan=True)


@pytest.mark.filterwarnings("ignore:Nearly all values are equal")
def test_empty_blocks_and_all_kinds_of_columns_are_read():
    import dask.dataframe as dd

    frame = made(2000)
    frame["x1"] = frame["x1"].round().astype("Int64")
    frame.loc[5, "x1"] = pd.NA
    frame["x2"] = frame["x2"].astype("float32")
    frame["x3"] = frame["x3"] > frame["x3"].median()
    frame["sex"] = frame["sex"].astype("category")
    wanted = fitted(frame)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    batches, empty = table.to_batches(900), pa.RecordBatch.from_pylist([], schema=table.schema)
    reader = pa.RecordBatchReader.from_batches(
        table.schema, [empty, batches[0], empty, *batches[1:], empty]
    )
    lazies = [reader, pl.from_arrow(table).lazy(), duckdb.from_arrow(table)]
    lazies.append(dd.concat([dd.from_pandas(frame[:900], 1), dd.from_pandas(frame[900:], 2)]))
    lazies.append(lazies[-1].map_partitions(lambda part: part, meta=frame.head(0)))
    hollow = lazies[-1].map_partitions(lambda part: part.head(0), meta=frame.head(0))
    lazies.append(dd.concat([hollow, lazies[-1]]))
    for X in lazies:
        found = fitted(X)
        assert np.allclose(found.map_.scale, wanted.map_.scale, rtol=1e-6)


def test_anndata_in_zarr_is_read_by_dask(tmp_path):
    import dask.array as da

    anndata, zarr = pytest.importorskip("anndata"), pytest.importorskip("zarr")
    frame = made(2000)
    stored = zarr.open(
        str(tmp_path / "x.zarr"), mode="w", shape=(2000, 5), chunks=(300, 5), dtype="f8"
    )
    stored[:] = frame[FEATURES].to_numpy()
    obs = frame[["domain", "sex", "site"]].astype("category")
    obs.index = pd.Index([f"c{i}" for i in range(len(obs))], dtype=object)
    var = pd.DataFrame(index=pd.Index(FEATURES, dtype=object))
    data = anndata.AnnData(da.from_zarr(stored), obs=obs, var=var)
    found, wanted = ConDoAdapter().fit(data, **ROLES), fitted(frame)
    assert np.allclose(found.map_.scale, wanted.map_.scale, rtol=1e-9)


def test_two_numbers_at_first_may_become_many():
    frame = made(3000)
    frame["grade"] = np.where(np.arange(len(frame)) < 2500, np.arange(len(frame)) % 2, 0.5)
    X = pl.from_pandas(frame).lazy()
    how = [FEATURES, *[None] * 4, "raise"]
    head = read_table(X.head(2500), "domain", "grade", *how)
    assert head.confounders[0].levels == [0.0, 1.0]
    streamed_blocks = duckdb.from_arrow(pa.Table.from_pandas(frame, preserve_index=False))
    domains = read_table(streamed_blocks, "domain", "grade", *how)
    assert domains.confounders[0].values is not None


class Killed:
    """A step that ends its worker the first time it meets a certain partition."""

    def __init__(self, mark):
        self.mark = mark

    def __call__(self, part):
        if part.index[0] == 10_000 and not os.path.exists(self.mark):
            open(self.mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return part


@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_dies_changes_nothing(tmp_path, monkeypatch):
    import dask.dataframe as dd
    from distributed import Client, LocalCluster

    monkeypatch.setattr(reader, "_SAMPLED", 2000)
    frame = made(20_000)
    wanted = fitted(frame)
    parts = dd.from_pandas(frame, npartitions=8)  # row 10,000 begins the fifth
    mark = tmp_path / "killed"
    dying = parts.map_partitions(Killed(str(mark)), meta=frame.head(0))
    how = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    for k in range(3):
        pl.from_pandas(frame[k::3]).write_parquet(tmp_path / f"{k}.parquet")
    with LocalCluster(**how) as cluster, Client(cluster):
        results = [fitted(dying), fitted(ds.dataset(list(tmp_path.glob("*.parquet"))))]
    assert mark.exists()
    for found in results:
        assert np.allclose(found.map_.scale, wanted.map_.scale, rtol=1e-6)
        assert np.allclose(found.map_.offset, wanted.map_.offset, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:A curve is more likely")
def test_bad_input_is_refused_by_name(monkeypatch, tmp_path):
    frame = made(3000)
    lazy = pl.from_pandas(frame).lazy()
    with pytest.raises(ValueError, match="'domain' must name columns of `X`, which is not in mem"):
        ConDoAdapter().fit(lazy, domain=frame["domain"], confounders="sex")
    with monkeypatch.context() as small:
        small.setattr(reader, "_COLLECTED_VALUES", 100)
        with pytest.raises(NeedsRows, match="'groups' needs all rows in memory.*more than"):
            ConDoAdapter().fit(lazy, domain="domain", confounders="sex", groups="site")
    with pytest.raises(ValueError, match="'confounders' names 'sxe'"):
        ConDoAdapter().fit(lazy, domain="domain", confounders="sxe")
    with pytest.raises(ValueError, match="'X' has no rows"):
        ConDoAdapter().fit(lazy.filter(pl.col("x0") > 1e9), domain="domain", confounders="sex")
    with pytest.raises(ValueError, match="exactly two labels. Got 1"):
        ConDoAdapter().fit(
            lazy.filter(pl.col("domain") == "query"), domain="domain", confounders="sex"
        )
    gaps = lazy.with_columns(pl.when(pl.col("x1") > 0).then(pl.col("sex")).alias("sex"))
    with pytest.raises(ValueError, match="Confounder 'sex' has .* missing values .of 3000."):
        ConDoAdapter().fit(gaps, domain="domain", confounders="sex", features=FEATURES)
    dropped = ConDoAdapter(missing="drop").fit(
        gaps, domain="domain", confounders="sex", features=FEATURES
    )
    assert dropped.report_.missing_confounders["sex"] == int((frame["x1"] <= 0).sum())
    endless = lazy.with_columns(pl.lit(float("inf")).alias("x1"))
    with pytest.raises(ValueError, match="infinity, in 'x1'"):
        ConDoAdapter().fit(endless, domain="domain", confounders="sex", features=FEATURES)
    once = pa.RecordBatchReader.from_batches(
        (t := pa.Table.from_pandas(frame)).schema, t.to_batches()
    )
    list(once)
    with pytest.raises(ValueError, match="'X' has no rows"):
        fitted(once)


def test_a_file_that_vanishes_is_an_error_of_one_line(tmp_path):
    paths = [tmp_path / f"{k}.parquet" for k in range(3)]
    for k, path in enumerate(paths):
        pl.from_pandas(made(1000, seed=k)).write_parquet(path)
    for X in (pl.scan_parquet(tmp_path / "*.parquet"), ds.dataset(paths)):
        pl.from_pandas(made(1000, seed=1)).write_parquet(paths[1])
        if hasattr(X, "get_fragments"):
            paths[1].unlink()
        else:
            X = X.map_batches(lambda part: 1 / 0, schema=X.collect_schema())
        with pytest.raises(ValueError, match="'X' could not be read to its end") as caught:
            fitted(X)
        assert "\n" not in str(caught.value)


def test_a_law_that_some_of_the_sampled_rows_tell(monkeypatch):
    monkeypatch.setattr(reader, "_SAMPLED", 2000)
    monkeypatch.setattr("condokit.law.estimate.MANY_ROWS", 1000)
    rng = np.random.default_rng(0)
    n = 10_000
    query, age = rng.random(n) < 0.5, rng.normal(50, 10, n)
    X = rng.normal(size=(n, 2)) + 0.1 * age[:, None]
    table = {"x": X[:, 0] * (1 + query), "y": X[:, 1] + query, "age": age + 5 * query}
    table = pl.DataFrame(table | {"device": np.where(query, "new", "old")})
    roles = {"domain": "device", "confounders": ["age"], "features": ["x", "y"]}
    lazy, eager = (ConDoAdapter(reference="old").fit(t, **roles) for t in (table.lazy(), table))
    away = np.abs(lazy.map_.scale - eager.map_.scale) / eager.map_se_["scale"]
    assert away.max() < 0.1
