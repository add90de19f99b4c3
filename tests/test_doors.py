"""The same rows by every door: one map, the same warnings, the same record."""

import warnings

import numpy as np
import pandas as pd
import pytest

from condokit import AffineMap, BatchAdapter, ConDoAdapter, Statistics, load_map
from condokit.cli import main, tables

FEATURES = ["left", "right", "count"]
ROLES = {"domain": "device", "confounders": ["sex", "age"], "features": FEATURES}


def made(n=150, seed=3):
    """Return rows of two devices; some values and one number are missing."""
    rng = np.random.default_rng(seed)
    new = np.repeat([True, False], n)
    sex = np.where(rng.random(2 * n) < 0.4 + 0.2 * new, "F", "M")
    age = np.round(rng.uniform(20, 60, 2 * n) + 8 * new, 1)
    X = rng.normal(size=(2 * n, 3)) + (sex == "F")[:, None] + 0.03 * age[:, None]
    X[new] = 1.3 * X[new] + 0.8
    frame = pd.DataFrame(X.round(4), columns=FEATURES)
    frame["count"] = (10 * frame["count"]).round() + 100
    frame.loc[rng.random(2 * n) < 0.05, "right"] = np.nan
    frame["device"] = np.where(new, "v2", "v1")
    frame["sex"], frame["age"] = sex, age
    return frame.iloc[rng.permutation(2 * n)].reset_index(drop=True)


def annotated(frame, kind):
    anndata = pytest.importorskip("anndata")
    from scipy import sparse

    X = frame[FEATURES].to_numpy()
    X = sparse.csr_matrix(X) if kind == "sparse" else X
    obs = frame[["device", "sex", "age"]].set_axis(frame.index.astype(str).astype(object))
    obs = obs.astype({"device": object, "sex": object})
    return anndata.AnnData(X, obs=obs, var=pd.DataFrame(index=pd.Index(FEATURES, dtype=object)))


def of_dask(frame):
    return pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=3)


def of_duckdb(frame):
    return pytest.importorskip("duckdb").from_arrow(as_arrow(frame))


def as_arrow(frame):
    import pyarrow as pa

    return pa.Table.from_pandas(frame, preserve_index=False)


def of_polars(frame):
    return pytest.importorskip("polars").from_pandas(frame)


def of_dataset(frame):
    from pyarrow import dataset

    return dataset.dataset(as_arrow(frame))


DOORS = {
    "pandas": lambda frame: frame,
    "nullable": lambda frame: frame.convert_dtypes(),
    "polars": of_polars,
    "arrow": as_arrow,
    "anndata": lambda frame: annotated(frame, "dense"),
    "lazy polars": lambda frame: of_polars(frame).lazy(),
    "duckdb": of_duckdb,
    "dask": of_dask,
    "dataset": of_dataset,
}


def fitted(X, **changed):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapter = ConDoAdapter(reference="v1").fit(X, **(ROLES | changed))
    return adapter, sorted(getattr(w.message, "code", str(w.message)) for w in caught)


@pytest.fixture(scope="module")
def frame():
    return made()


@pytest.fixture(scope="module")
def plain(frame):
    return fitted(frame)


@pytest.mark.parametrize("door", DOORS)
def test_every_container_gives_the_same_map_warnings_and_record(door, frame, plain):
    adapter, codes = fitted(DOORS[door](frame))
    np.testing.assert_allclose(adapter.map_.scale, plain[0].map_.scale, rtol=1e-9)
    np.testing.assert_allclose(adapter.map_.offset, plain[0].map_.offset, rtol=1e-9)
    assert codes == plain[1]
    one, other = (dict(a.map_.provenance) for a in (adapter, plain[0]))
    for facts in (one, other):
        facts.pop("adapter", None)
    assert {k: str(v) for k, v in one.items()} == {k: str(v) for k, v in other.items()}


FILES = {
    "comma.csv": lambda frame, path: frame.to_csv(path, index=False),
    "semicolon.csv": lambda frame, path: frame.to_csv(path, index=False, sep=";", na_rep="NULL"),
    "dots.tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t", na_rep="."),
    "table.parquet": lambda frame, path: frame.to_parquet(path, index=False),
    "table.h5ad": lambda frame, path: annotated(frame, "dense").write_h5ad(path),
}


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("name", FILES)
def test_files_of_any_size_give_the_same_map(name, size, frame, plain, tmp_path, monkeypatch):
    if name.endswith("h5ad"):
        pytest.importorskip("anndata")
    if size == "large":
        monkeypatch.setattr(tables, "IN_MEMORY", 0)
    path, out = str(tmp_path / name), str(tmp_path / "map.json")
    FILES[name](frame, path)
    options = ["--domain", "device", "--reference-label", "v1", "-c", "sex,age", "-f", "*"]
    options[-1] = ",".join(FEATURES)
    with pytest.raises(SystemExit) as ended:
        main(["fit", path, *options, "-o", out, "-q"])
    assert ended.value.code == 0
    found = load_map(out)
    np.testing.assert_allclose(found.scale, plain[0].map_.scale, rtol=1e-9)
    np.testing.assert_allclose(found.offset, plain[0].map_.offset, rtol=1e-9)
    assert found.provenance["data"]["query"]


@pytest.mark.parametrize("size", ["small", "large"])
def test_two_files_of_any_size_give_the_same_map(size, frame, plain, tmp_path, monkeypatch):
    if size == "large":
        monkeypatch.setattr(tables, "IN_MEMORY", 0)
    new, old, out = (str(tmp_path / name) for name in ("new.csv", "old.csv", "map.json"))
    frame[frame["device"] == "v2"].drop(columns="device").to_csv(new, index=False, sep=";")
    frame[frame["device"] == "v1"].drop(columns="device").to_csv(old, index=False)
    with pytest.raises(SystemExit) as ended:
        main(["fit", new, "--reference", old, "-c", "sex,age", "-f", "left", "-o", out, "-q"])
    assert ended.value.code == 0
    found = load_map(out)
    one = fitted(frame, features=["left"])[0].map_
    np.testing.assert_allclose([found.scale, found.offset], [one.scale, one.offset], rtol=1e-9)


@pytest.mark.parametrize("name", ["three.csv", "three.h5ad"])
def test_two_of_three_labels_give_the_map_of_their_rows(name, frame, tmp_path):
    frame = frame.assign(device=np.where(np.arange(len(frame)) % 3 == 0, "v3", frame["device"]))
    path, out = str(tmp_path / name), str(tmp_path / "map.json")
    if name.endswith("h5ad"):
        pytest.importorskip("anndata")
        annotated(frame, "sparse").write_h5ad(path)
    else:
        frame.to_csv(path, index=False)
    labels = ["--domain", "device", "--query-label", "v2", "--reference-label", "v1"]
    with pytest.raises(SystemExit) as ended:
        main(["fit", path, *labels, "-c", "sex,age", "-f", "left,right", "-o", out, "-q"])
    assert ended.value.code == 0
    one = fitted(frame[frame["device"] != "v3"], features=["left", "right"])[0].map_
    np.testing.assert_allclose(load_map(out).scale, one.scale, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:These features look like counts")
def test_zeros_stay_zero_by_every_door(tmp_path):
    pytest.importorskip("anndata")
    frame, rng = made(), np.random.default_rng(0)
    data = annotated(frame, "dense")
    data.X[:, 2] = np.where(rng.random(len(frame)) < 0.9, 0.0, data.X[:, 2])
    data.X[np.isnan(data.X)] = 0.0
    roles = {"domain": "device", "confounders": "sex"}
    names = list(data.var_names)
    with pytest.warns(UserWarning, match=f"only multiplied, and zeros stay zero: '{names[2]}'"):
        adapter = ConDoAdapter(reference="v1").fit(data, **roles)
    assert adapter.map_.offset[2] == 0
    assert adapter.map_.scale[2] != 1
    path, out = str(tmp_path / "cells.h5ad"), str(tmp_path / "map.json")
    data.write_h5ad(path)
    with pytest.raises(SystemExit):
        main(f"fit {path} --domain device --reference-label v1 -c sex -o {out} -q".split())
    table = frame.assign(**{name: data.X[:, j] for j, name in enumerate(names)})
    stats = Statistics.of(table, features=names, **roles)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        doors = [
            load_map(out),
            ConDoAdapter(reference="v1").fit_statistics(stats).map_,
            ConDoAdapter(reference="v1").fit(of_duckdb(table), features=names, **roles).map_,
        ]
    for one in doors:
        np.testing.assert_allclose(one.scale, adapter.map_.scale, rtol=1e-6)
        assert one.offset[2] == 0


def test_statistics_of_one_number_alone_are_fitted_by_all_defaults(tmp_path):
    frame = made().dropna()
    how = {"domain": "device", "confounders": "age", "features": ["left"]}
    ranges = {"age": (15.0, 75.0)}
    rows = ConDoAdapter(reference="v1").fit(frame, **how)
    stats = Statistics.of(frame, ranges=ranges, **how)
    by_stats = ConDoAdapter(reference="v1").fit_statistics(stats)
    by_parts = ConDoAdapter(reference="v1")
    for part in (frame[:100], frame[100:]):
        by_parts.partial_fit(part, ranges=ranges, **how)
    error = rows.map_se_
    for found in (by_stats, by_parts):
        assert found.map_.provenance["confounders"]["age"] == "continuous"
        for name in ("scale", "offset"):
            away = getattr(found.map_, name) - getattr(rows.map_, name)
            assert np.all(np.abs(away) < 0.2 * error[name])
    frame.to_csv(tmp_path / "all.csv", index=False)
    given = f"stats {tmp_path}/all.csv --domain device -c age --range age=15:75 -f left"
    with pytest.raises(SystemExit):
        main([*given.split(), "-o", f"{tmp_path}/s.json"])
    with pytest.raises(SystemExit) as ended:
        main(f"fit {tmp_path}/s.json --reference-label v1 -o {tmp_path}/map.json".split())
    assert ended.value.code == 0


@pytest.mark.parametrize("divergence", ["reverse-kl", "ot"])
def test_a_number_among_statistics_is_used_or_refused(divergence):
    how = {"domain": "device", "confounders": ["sex", "age"], "features": ["left"]}
    stats = Statistics.of(made(), ranges={"age": (15.0, 75.0)}, **how)
    with pytest.raises(ValueError, match="'age' is continuous"):
        ConDoAdapter(reference="v1", divergence=divergence).fit_statistics(stats)


def test_links_of_statistics_of_many_batches_are_refused_not_ignored():
    from condokit.maps.families import LocationScale

    frame = made()
    frame["site"] = np.arange(len(frame)) % 3
    stats = Statistics.of(frame, domain="site", confounders="sex", features=["count"])
    adapter = BatchAdapter(ConDoAdapter(LocationScale(links={"count": "log"})), reference=0)
    with pytest.raises(ValueError, match="needs single rows"):
        adapter.fit_statistics(stats)


def test_names_of_numpy_are_names():
    frame, name = made(), np.str_("device")
    lazy = of_polars(frame).lazy()
    for X in (frame, lazy):
        ConDoAdapter(reference="v1").fit(X, domain=name, confounders="sex", features=["left"])
    stats = Statistics.of(frame, domain=name, confounders=[np.str_("sex")], features=["left"])
    assert stats.update(frame).n_rows == {"v1": 300.0, "v2": 300.0}


@pytest.mark.parametrize("door", ["pandas", "polars", "arrow", "lazy polars"])
def test_a_column_without_any_value_is_one_of_missing_values(door, tmp_path):
    frame = pd.DataFrame({"a": [None, None], "b": [1.0, 2.0]})
    found = AffineMap([2.0, 3.0], [0.0, 1.0], ["a", "b"])(DOORS[door](frame))
    found = found.collect() if hasattr(found, "collect") else found
    found = found.to_pandas() if hasattr(found, "to_pandas") else found
    assert found["a"].isna().all()
    assert found["b"].tolist() == [4.0, 7.0]


def test_a_dead_sensor_does_not_stop_the_command_line(tmp_path):
    AffineMap([2.0, 3.0], [0.0, 1.0], ["a", "b"]).save(tmp_path / "map.json")
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"a": pa.nulls(2), "b": [1.0, 2.0]}), tmp_path / "in.parquet")
    (tmp_path / "in.csv").write_text("a,b\n,1\nNULL,2\n")
    for kind in ("csv", "parquet"):
        with pytest.raises(SystemExit) as ended:
            main(f"apply {tmp_path}/map.json {tmp_path}/in.{kind} -o {tmp_path}/out.{kind}".split())
        assert ended.value.code == 0
    assert pd.read_csv(tmp_path / "out.csv")["b"].tolist() == [4.0, 7.0]


@pytest.mark.parametrize("door", ["polars", "lazy polars", "arrow"])
def test_null_stays_null_and_nan_stays_nan(door):
    import polars as pl

    frame = pl.DataFrame({"a": [1.0, None, float("nan")], "b": [1, 2, None]})
    given = {"polars": frame, "lazy polars": frame.lazy(), "arrow": frame.to_arrow()}[door]
    for A in (np.diag([2.0, 3.0]), np.array([[2.0, 0.0], [1.0, 3.0]])):
        found = AffineMap(A, [0.0, 0.0], ["a", "b"])(given)
        found = pl.from_arrow(found) if door == "arrow" else found
        found = found.collect() if door == "lazy polars" else found
        assert found["a"].is_null().to_list() == [False, True, False]
        assert found["b"].is_null().to_list() == [False, A[1, 0] != 0, True]
        assert found["a"].fill_null(0.0).is_nan().to_list() == [False, False, True]


def test_nullable_types_of_pandas_stay_nullable():
    frame = pd.DataFrame({"a": [1.0, None], "b": [1, None]}).astype({"a": "Float64", "b": "Int64"})
    found = AffineMap([2.0, 3.0], [0.0, 1.0], ["a", "b"])(frame)
    assert found.dtypes.astype(str).tolist() == ["Float64", "Float64"]
    assert found["b"].tolist()[0] == 4.0
    assert found["b"].isna().tolist() == [False, True]


def test_whole_numbers_beyond_exact_floats_are_rounded_by_every_door():
    frame = made()
    frame["count"] = frame["count"].astype("int64") * 10**14 + 2**60
    one = fitted(frame)[0].map_
    for door in ("lazy polars", "duckdb", "dataset", "arrow"):
        found = fitted(DOORS[door](frame))[0].map_
        np.testing.assert_allclose(found.offset, one.offset, rtol=1e-9)


def test_incoming_rows_are_checked_where_they_are(frame, plain):
    affine = plain[0].map_
    rows = frame[frame["device"] == "v2"]
    one = affine.check(rows[FEATURES])
    for door in ("lazy polars", "duckdb", "dask"):
        found = affine.check(DOORS[door](rows[FEATURES]))
        assert (found.verdict, found.n_rows) == (one.verdict, one.n_rows) == ("as fitted", 150)
        assert found.features["note"] == one.features["note"]
        moved = affine.check(DOORS[door](rows[FEATURES] + 9))
        np.testing.assert_allclose(moved.features["sd_ratio"], one.features["sd_ratio"])
        assert moved.verdict == "look"


def test_two_tables_take_names_or_pairs(frame):
    new, old = (frame[frame["device"] == label] for label in ("v2", "v1"))
    columns = ["sex", "age"]
    one = ConDoAdapter().fit_pair(new, old, columns, columns, features=["left"]).map_
    adapter = ConDoAdapter().fit_pair(new, old, confounders=columns, features=["left"])
    assert adapter.map_ == one
    values = new[columns], old[columns]
    assert ConDoAdapter().fit_pair(new, old, confounders=values, features=["left"]).map_ == one
    new, old = (t.assign(who=[f"{k // 2}" for k in range(len(t))]) for t in (new, old))
    pair = new["who"], old["who"]
    by_name, by_pair = (
        ConDoAdapter().fit_pair(new, old, confounders="sex", features=["left"], groups=groups).map_
        for groups in ("who", pair)
    )
    assert by_name == by_pair
    with pytest.raises(ValueError, match="not both"):
        ConDoAdapter().fit_pair(new, old, columns, columns, confounders=columns)
    with pytest.raises(ValueError, match="'confounders' must be a pair"):
        ConDoAdapter().fit_pair(new, old, confounders=new[columns])
    with pytest.raises(ValueError, match="'confounders' names 'sexx'.*Did you mean 'sex'"):
        ConDoAdapter().fit_pair(new, old, confounders=["sexx"])


def test_a_new_batch_takes_the_features_of_the_maps(frame):
    frame = frame.assign(site=np.arange(len(frame)) % 3)
    how = {"batch": "site", "confounders": "sex", "features": ["left"]}
    adapter = BatchAdapter(reference=0).fit(frame[frame["site"] < 2], **how)
    assert set(adapter.add_batch(frame, **how).maps_) == {0, 1, 2}
    adapter = BatchAdapter(reference=0).fit(frame[frame["site"] < 2], **how)
    with pytest.raises(ValueError, match="'features' are 'count', but the maps are of 'left'"):
        adapter.add_batch(frame, **how | {"features": ["count"]})


def test_bridges_excuse_no_others_from_missing_confounders(frame):
    frame = frame.assign(site=np.where(frame["device"] == "v2", "B", "A"))
    frame["who"] = [f"p{k}" for k in range(len(frame))]
    twice = [frame.index[frame["site"] == label][:8] for label in "AB"]
    frame.loc[twice[1], "who"] = frame.loc[twice[0], "who"].to_numpy()
    frame.loc[twice[0], "sex"] = None  # of samples that are compared with themselves
    how = {"batch": "site", "confounders": "sex", "features": ["left"], "bridge": "who"}
    BatchAdapter(reference="A").fit(frame, **how)
    others = frame.index.difference(twice[0]).difference(twice[1])[:60]
    frame.loc[others, "sex"] = None
    with pytest.raises(ValueError, match="Confounder 'sex' has 60 missing values"):
        BatchAdapter(reference="A").fit(frame, **how)


@pytest.mark.parametrize("door", ["lazy polars", "duckdb", "dask", "dataset"])
def test_lazy_tables_of_many_batches_and_subjects_are_read_as_rows(door, frame):
    frame = frame.assign(site=np.array(["A", "B", "C"])[np.arange(len(frame)) % 3])
    lazy = DOORS[door](frame)
    how = {"batch": "site", "confounders": ["sex", "age"], "features": ["left"], "bridge": None}
    one, other = (BatchAdapter(reference="A").fit(X, **how).maps_ for X in (frame, lazy))
    assert all(one[k].scale == pytest.approx(other[k].scale, rel=1e-9) for k in "ABC")
    known = frame.assign(who=[f"p{k // 2}" for k in range(len(frame))])
    for extra in ({"groups": "who"}, {"reliability": {"age": 0.9}}):
        frame = known if "groups" in extra else known.drop(columns="who")
        lazy = DOORS[door](frame)
        settings = {k: v for k, v in extra.items() if k == "reliability"}
        roles = ROLES | {k: v for k, v in extra.items() if k == "groups"}
        one, other = (
            ConDoAdapter(reference="v1", **settings).fit(X, **roles).map_ for X in (frame, lazy)
        )
        np.testing.assert_allclose(one.scale, other.scale, rtol=1e-9)


def test_many_batches_beyond_the_sample_are_summed(frame, monkeypatch):
    frame = frame.assign(site=np.array(["A", "B", "C"])[np.arange(len(frame)) % 3])
    how = {"batch": "site", "confounders": "sex", "features": ["left", "right"]}
    rows = BatchAdapter(reference="A").fit(frame, **how)
    monkeypatch.setattr("condokit.data.reader._SAMPLED", 40)
    lazy = of_polars(frame).lazy()
    found = BatchAdapter(reference="A").fit(lazy, **how)
    for label in "BC":
        assert found.maps_[label].scale == pytest.approx(rows.maps_[label].scale, abs=0.01)


def test_many_batches_given_a_number_are_those_of_all_rows(frame, monkeypatch):
    frame = frame.assign(site=np.array(["A", "B", "C"])[np.arange(len(frame)) % 3]).dropna()
    how = {"batch": "site", "confounders": ["sex", "age"], "features": ["left", "right"]}
    rows = BatchAdapter(reference="A").fit(frame, **how)
    monkeypatch.setattr("condokit.data.reader._SAMPLED", 200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = BatchAdapter(reference="A").fit(of_polars(frame).lazy(), **how)
    for label in "BC":
        one, other = found.maps_[label], rows.maps_[label]
        assert one.scale == pytest.approx(other.scale, abs=0.02)
        assert one.offset == pytest.approx(other.offset, abs=0.05)


@pytest.mark.parametrize("map", ["location-scale", "affine"])
@pytest.mark.parametrize("door", ["lazy polars", "duckdb"])
def test_rows_of_many_batches_are_mapped_where_they_are(map, door, frame):
    frame = frame.assign(site=np.array(["A", "B", "C"])[np.arange(len(frame)) % 3]).dropna()
    adapter = BatchAdapter(ConDoAdapter(map), reference="A")
    adapter.fit(frame, batch="site", confounders="sex", features=["left", "right"])
    found = adapter.transform(DOORS[door](frame), batch="site")
    found = (found.collect() if hasattr(found, "collect") else found.pl()).to_pandas()
    expected = adapter.transform(frame, batch="site")
    assert list(found.columns) == list(frame.columns)
    np.testing.assert_allclose(found[["left", "right"]], expected, rtol=1e-9)
    with pytest.raises(ValueError, match="'batch' names 'place'"):
        adapter.transform(DOORS[door](frame), batch="place")


def test_a_table_that_was_made_of_anndata_has_its_variables_as_features(frame, tmp_path):
    pytest.importorskip("anndata")
    cells, table, out = (str(tmp_path / name) for name in ("c.h5ad", "c.parquet", "map.json"))
    data = annotated(frame, "dense")
    data.obs["depth"] = np.random.default_rng(0).normal(size=len(frame))
    data.write_h5ad(cells)
    AffineMap(np.ones(3), np.zeros(3), FEATURES).save(tmp_path / "same.json")
    with pytest.raises(SystemExit):
        main(["apply", str(tmp_path / "same.json"), cells, "-o", table])
    how = ["--domain", "device", "--reference-label", "v1", "-c", "sex,age", "-o", out, "-q"]
    with pytest.raises(SystemExit) as ended:
        main(["fit", table, *how])
    assert ended.value.code == 0
    assert list(load_map(out).feature_names) == FEATURES


@pytest.mark.parametrize("confounders", [["sex"], ["age"], ["sex", "age"]])
@pytest.mark.parametrize("door", ["rows", "lazy", "statistics"])
def test_two_domains_have_one_map_whichever_adapter_asks(confounders, door):
    frame = made()
    one, many = ConDoAdapter(reference="v1"), BatchAdapter(reference="v1", joint=True)
    roles = {"confounders": confounders, "features": FEATURES}
    if door == "statistics":
        ranges = {"age": (0, 100)} if "age" in confounders else None
        stats = Statistics.of(frame, domain="device", ranges=ranges, **roles)
        one.fit_statistics(stats)
        many.fit_statistics(stats)
    else:
        rows = of_polars(frame).lazy() if door == "lazy" else frame
        one.fit(rows, domain="device", **roles)
        many.fit(rows, batch="device", **roles)
    np.testing.assert_allclose(many.maps_["v2"].scale, one.map_.scale, rtol=1e-8)
    np.testing.assert_allclose(many.maps_["v2"].offset, one.map_.offset, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(many.errors_["v2"].scale, one.errors_.scale, rtol=1e-8)
