"""Maps of lazy tables are lazy, of the same kind, and give what they give of rows in memory."""

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from condokit import AffineMap, ConDoAdapter, MonotoneMap

pytest.importorskip("dask")
RNG = np.random.default_rng(0)
NAMES = ["a", "b", "c"]
LOW_RANK = {"left": RNG.normal(size=(3, 2)), "right": RNG.normal(size=(3, 2))}
CURVES = [[-1.0, 0.0, 2.0]] * 3, [[-3.0, 0.0, 1.0]] * 3
MAPS = {
    "diagonal": AffineMap([2.0, 0.5, 1.0], [1.0, 2.0, 3.0], NAMES),
    "dense": AffineMap(RNG.normal(size=(3, 3)), [1.0, 2.0, 3.0], NAMES),
    "triangular": AffineMap(np.tril(np.ones((3, 3))), [1.0, 2.0, 3.0], NAMES),
    "low-rank": AffineMap([2.0, 0.5, 1.0], [1.0, 2.0, 3.0], NAMES, **LOW_RANK),
    "curves": MonotoneMap(*CURVES, [[0.5, 2.0]] * 3, NAMES),
    "rectangular": AffineMap(RNG.normal(size=(2, 3)), [1.0, 2.0], NAMES, output_names=["u", "v"]),
}


def made(n=200):
    frame = pd.DataFrame(RNG.normal(size=(n, 3)), columns=NAMES)
    frame.loc[3, "b"] = np.nan
    frame["c"] = frame["c"].astype("float32")
    frame["id"], frame["domain"] = np.arange(n), np.where(frame["a"] > 0, "query", "reference")
    return frame


def engines(frame):
    import dask.dataframe as dd

    table = pa.Table.from_pandas(frame, preserve_index=False)
    yield pl.from_pandas(frame).lazy(), lambda found: found.collect().to_pandas()
    yield duckdb.from_arrow(table), lambda found: found.df()
    yield dd.from_pandas(frame, npartitions=3), lambda found: found.compute()
    yield ds.dataset(table), lambda found: found.read_all().to_pandas()


def numbers(frame, names):
    return frame.sort_values("id")[list(names)].to_numpy(dtype=float)


@pytest.mark.parametrize("kind", MAPS)
def test_all_engines_map_as_memory_does(kind):
    frame, mapping = made(), MAPS[kind]
    wanted = mapping(frame)
    for lazy, collect in engines(frame):
        found = mapping(lazy)
        assert type(found) is type(lazy) or isinstance(found, pa.RecordBatchReader)
        found = collect(found)
        assert set(found) == {"id", "domain", *wanted}
        got = numbers(found, wanted)
        assert np.allclose(got, wanted.to_numpy(dtype=float), rtol=1e-6, equal_nan=True)
        assert [found[name].dtype for name in wanted] == list(wanted.dtypes)


def test_links_are_undone_where_outputs_have_names_of_their_own():
    mapping = AffineMap([1.0, 2.0], [0.5, 0.0], ["a", "b"], links="log", output_names=["u", "v"])
    frame = pl.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    found = mapping(frame.lazy()).collect()
    assert np.allclose(found.to_numpy(), mapping(frame).to_numpy())


@pytest.mark.parametrize("link", ["log", "logit", 0.5])
def test_links_are_applied_and_undone(link):
    frame = made()
    frame[NAMES] = 0.02 + 0.9 * RNG.random((len(frame), 3))
    mapping = AffineMap([1.1, 0.9, 1.0], [0.1, -0.1, 0.0], NAMES, links=link)
    wanted = mapping(frame).to_numpy(dtype=float)
    for lazy, collect in engines(frame):
        assert np.allclose(numbers(collect(mapping(lazy)), NAMES), wanted, rtol=1e-6)


def test_rows_of_the_reference_stay():
    frame = made()
    adapter = ConDoAdapter().fit(frame.dropna(), domain="domain", features=NAMES)
    wanted = adapter.transform(frame, domain="domain")
    for lazy, collect in engines(frame):
        found = collect(adapter.transform(lazy, domain="domain"))
        assert np.allclose(numbers(found, NAMES), wanted.to_numpy(), rtol=1e-6, equal_nan=True)
        with pytest.raises(ValueError, match="`return_std` needs rows in memory"):
            adapter.transform(lazy, return_std=True)
        with pytest.raises(ValueError, match="'domain' must name a column"):
            adapter.transform(lazy, domain=frame["domain"])


def test_there_and_back():
    frame = made()
    adapter = ConDoAdapter().fit(frame.dropna(), domain="domain", features=NAMES)
    lazy = pl.from_pandas(frame).lazy()
    found = adapter.inverse_transform(adapter.transform(lazy)).collect().to_pandas()
    assert np.allclose(numbers(found, NAMES), numbers(frame, NAMES), atol=1e-6, equal_nan=True)


def test_columns_that_are_missing_are_named():
    lazy = pl.from_pandas(made()).lazy().drop("b")
    with pytest.raises(ValueError, match="names 'b', which X does not have"):
        MAPS["diagonal"](lazy)
    with pytest.raises(ValueError, match="without names of features needs `X` in memory"):
        AffineMap([1.0], [0.0])(lazy)


def test_arrays_of_dask_stay_lazy():
    import dask.array as da

    X = RNG.normal(size=(100, 3)).astype("float32")
    mapping = AffineMap([2.0, 0.5, 1.0], [1.0, 2.0, 3.0])
    found = mapping(da.from_array(X, chunks=(30, 2)))
    assert found.dtype == np.float32
    assert found.chunks[0] == (30, 30, 30, 10)
    assert np.array_equal(found.compute(), mapping(X))
    with pytest.raises(ValueError, match="X has 2 features, but the map is expecting 3"):
        mapping(da.from_array(X[:, :2]))
