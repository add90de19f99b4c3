import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse

from condokit import AffineMap, ConDoAdapter


def fitted(eeg, frame):
    return ConDoAdapter(reference="v1").fit(
        frame, domain="device", confounders=["seizure"], features=["eeg_*"]
    )


def as_array(frame):
    return frame.to_numpy() if hasattr(frame, "to_numpy") else frame.to_pandas().to_numpy()


def test_the_same_kind_comes_out(eeg, backend):
    frame = eeg.to_frame(backend)
    adapter = fitted(eeg, frame)
    out = adapter.transform(frame)
    assert type(out) is type(frame)
    names = out.column_names if backend == "pyarrow" else list(out.columns)
    assert names == eeg.feature_names
    X = np.vstack([eeg.X_query, eeg.X_reference])
    np.testing.assert_allclose(as_array(out), X * adapter.map_.scale + adapter.map_.offset)
    back = adapter.inverse_transform(out)
    np.testing.assert_allclose(as_array(back), X, atol=1e-12)
    assert type(adapter.map_(frame)) is type(frame)


def test_all_containers_give_the_same_map(eeg):
    maps = [fitted(eeg, eeg.to_frame(b)).map_ for b in ("pandas", "polars", "pyarrow")]
    for other in maps[1:]:
        np.testing.assert_allclose(other.scale, maps[0].scale, rtol=1e-12)


def test_columns_are_found_by_name_in_any_order_and_others_ignored(eeg, backend):
    frame = eeg.to_frame(backend)
    adapter = fitted(eeg, frame)
    names = ["depression", *reversed(eeg.feature_names)]
    turned = frame.select(names) if backend != "pandas" else frame[names]
    np.testing.assert_array_equal(
        as_array(adapter.transform(turned)), as_array(adapter.transform(frame))
    )


def test_missing_columns_are_named(eeg, backend):
    frame = eeg.to_frame(backend)
    adapter = fitted(eeg, frame)
    fewer = pd.DataFrame({"eeg_delta_f3": [1.0]})
    with pytest.raises(ValueError, match="lacks 'eeg_delta_F3'.* and 11 more"):
        adapter.transform(fewer)
    misspelt = eeg.to_frame("pandas").rename(columns={"eeg_delta_F3": "eeg_delta_f3"})
    with pytest.raises(ValueError, match="lacks 'eeg_delta_F3'.*Did you mean 'eeg_delta_f3'"):
        adapter.transform(misspelt)


def test_float32_stays_float32(eeg, backend):
    frame = eeg.to_frame("pandas")
    frame[eeg.feature_names] = frame[eeg.feature_names].astype("float32")
    adapter = fitted(eeg, frame)
    if backend == "polars":
        out = adapter.transform(pl.from_pandas(frame))
        assert set(out.dtypes) == {pl.Float32}
    elif backend == "pyarrow":
        out = adapter.transform(pa.Table.from_pandas(frame))
        assert {str(t) for t in out.schema.types} == {"float"}
    else:
        out = adapter.transform(frame)
        assert (out.dtypes == "float32").all()
    mixed = frame.astype({"eeg_delta_F3": "float64"})
    out = adapter.transform(mixed)
    assert out.dtypes.value_counts()[np.dtype("float32")] == 15


def test_float32_arrays():
    X = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    adapter = ConDoAdapter().fit_pair(X * 2, X)
    out = adapter.transform(X)
    assert out.dtype == np.float32
    assert adapter.inverse_transform(out).dtype == np.float32
    assert adapter.transform(X.astype(np.float64)).dtype == np.float64


def test_integers_and_booleans_become_float():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 100, (60, 2))
    adapter = ConDoAdapter().fit_pair(3 * X + 1, X)
    assert adapter.transform(X).dtype == np.float64
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 0] > 50})
    out = ConDoAdapter().fit_pair(frame, frame[::-1], features=["a", "b"]).transform(frame)
    np.testing.assert_allclose(out, frame.astype(float), atol=1e-9)


def test_nullable_and_arrow_backed_pandas_columns():
    values = np.random.default_rng(0).normal(size=50)
    plain = pd.DataFrame({"a": values})
    for dtype in ("Float64", "float64[pyarrow]"):
        frame = plain.astype(dtype)
        out = ConDoAdapter(shrinkage=None).fit_pair(frame * 2, frame).transform(frame * 2)
        np.testing.assert_allclose(out["a"].to_numpy(float), values)


def test_views_and_read_only_arrays():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    X.flags.writeable = False
    plain = ConDoAdapter().fit_pair(X[:30] * 2, X[30:])
    fortran = ConDoAdapter().fit_pair(np.asfortranarray(X[:30] * 2), np.asfortranarray(X[30:]))
    np.testing.assert_allclose(fortran.map_.scale, plain.map_.scale, rtol=1e-12)
    strided = ConDoAdapter().fit_pair(X[::2, ::2], X[1::2, ::2])
    copied = ConDoAdapter().fit_pair(X[::2, ::2].copy(), X[1::2, ::2].copy())
    np.testing.assert_allclose(strided.map_.scale, copied.map_.scale, rtol=1e-12)
    np.testing.assert_allclose(plain.transform(X[::2]), plain.transform(X)[::2])


def test_one_row_or_many_give_the_same_result():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100_000, 3))
    affine = AffineMap([2.0, 3.0, 4.0], [1.0, 1.0, 1.0])
    whole = affine(X)
    np.testing.assert_array_equal(affine(X[77_777:77_778]), whole[77_777:77_778])
    np.testing.assert_array_equal(affine(X.tolist()[:2]), whole[:2])


def test_pandas_frames_with_numbers_for_names(eeg):
    frame = pd.DataFrame(eeg.X_query)
    adapter = ConDoAdapter().fit_pair(frame, pd.DataFrame(eeg.X_reference))
    out = adapter.transform(frame)
    assert list(out.columns) == list(range(16))
    assert not hasattr(adapter, "feature_names_in_")


def test_features_by_position_and_pattern(eeg):
    X = np.vstack([eeg.X_query, eeg.X_reference])
    domain = np.repeat(["query", "reference"], [400, 500])
    adapter = ConDoAdapter().fit(X, domain=domain, features=[0, -1])
    assert adapter.transform(X).shape == (900, 2)
    assert list(adapter.get_feature_names_out()) == ["x0", "x15"]
    frame = eeg.to_frame()
    adapter = ConDoAdapter(reference="v1").fit(
        frame, domain="device", features=["eeg_alpha_*", "eeg_delta_F3"]
    )
    assert adapter.n_features_in_ == 9
    assert adapter.feature_names_in_[-1] == "eeg_delta_F3"


def test_confounders_in_every_form(eeg):
    frame = eeg.to_frame()
    features = frame[eeg.feature_names]
    seizure = frame["seizure"]
    forms = [
        "seizure",
        ["seizure"],
        seizure,
        seizure.to_numpy(),
        seizure.tolist(),
        seizure.to_frame(),
        {"seizure": seizure},
        seizure.to_numpy()[:, None],
        pl.from_pandas(seizure.to_frame()),
        np.where(seizure, "yes", "no"),
        seizure.astype("category"),
    ]
    scales = []
    for form in forms:
        table = frame.drop(columns="depression") if isinstance(form, str | list) else features
        if isinstance(form, list) and len(form) > 1:
            table = features
        named = (
            isinstance(form, str) or form == ["seizure"] if isinstance(form, str | list) else False
        )
        domain = "device" if named else frame["device"]
        adapter = ConDoAdapter(reference="v1").fit(table, domain=domain, confounders=form)
        assert list(adapter.feature_names_in_) == eeg.feature_names
        scales.append(adapter.map_.scale)
    np.testing.assert_allclose(scales, np.broadcast_to(scales[0], np.shape(scales)), rtol=1e-10)


def test_the_index_is_kept(eeg):
    frame = eeg.to_frame().set_index(pd.Index([f"p{i}" for i in range(900)]))
    adapter = fitted(eeg, frame)
    assert adapter.transform(frame).index.equals(frame.index)


def test_round_trip_of_arrays_with_chosen_features(eeg):
    X = np.vstack([eeg.X_query, eeg.X_reference])
    domain = np.repeat(["query", "reference"], [400, 500])
    adapter = ConDoAdapter().fit(X, domain=domain, features=[0, 2])
    np.testing.assert_allclose(adapter.inverse_transform(adapter.transform(X)), X[:, [0, 2]])


def test_inverse_transform_keeps_the_container_whatever_set_output_says(eeg):
    frame = eeg.to_frame()
    adapter = fitted(eeg, frame).set_output(transform="polars")
    back = adapter.inverse_transform(frame)
    assert isinstance(back, pd.DataFrame)
    assert back.index.equals(frame.index)


def test_copies_of_a_map_are_read_only():
    import copy
    import pickle

    affine = AffineMap([1.0], [0.0])
    for other in (copy.deepcopy(affine), pickle.loads(pickle.dumps(affine))):
        with pytest.raises(ValueError, match="read-only"):
            other.scale[0] = 2.0


def test_anndata_as_a_table():
    anndata = pytest.importorskip("anndata")
    rng = np.random.default_rng(0)
    values = rng.poisson(2.0, (120, 5)) + rng.normal(size=(120, 5)).round() * 0.5
    obs = pd.DataFrame(
        {"batch": np.repeat(["v2", "v1"], 60), "type": pd.Categorical(rng.choice(["a", "b"], 120))},
        index=[f"cell{i}" for i in range(120)],
    )
    genes = pd.DataFrame(index=["ID", "AGE", "G3", "G4", "G5"])
    frame = pd.DataFrame(values, columns=genes.index, index=obs.index)
    roles = {"domain": "batch", "confounders": "type"}
    wanted = ConDoAdapter(reference="v1").fit(
        frame.assign(batch=obs["batch"].to_numpy(), type=obs["type"].to_numpy()),
        features=list(genes.index),
        **roles,
    )
    query = (obs["batch"] == "v2").to_numpy()
    for X in (values, scipy.sparse.csr_matrix(values)):
        data = anndata.AnnData(X, obs=obs, var=genes)
        adapter = ConDoAdapter(reference="v1").fit(data, **roles)
        assert list(adapter.feature_names_in_) == list(genes.index)
        np.testing.assert_array_equal(adapter.map_.scale, wanted.map_.scale)
        out = adapter.transform(data, domain="batch")
        pd.testing.assert_frame_equal(out.to_df(), wanted.transform(frame, domain=obs["batch"]))
        sides = [anndata.AnnData(X[s], obs=obs[s], var=genes) for s in (query, ~query)]
        pair = ConDoAdapter().fit_pair(*sides, "type", "type")
        np.testing.assert_allclose(pair.map_.offset, wanted.map_.offset)
        some = ConDoAdapter(reference="v1").fit(data, features=["G*"], **roles)
        assert list(some.feature_names_in_) == ["G3", "G4", "G5"]
    with pytest.raises(ValueError, match="it has no X"):
        ConDoAdapter(reference="v1").fit(anndata.AnnData(obs=obs, var=genes), **roles)


def test_sparse_tables_are_refused_at_once():
    X = scipy.sparse.csr_matrix((10**6, 10**5))  # dense, it would not fit
    with pytest.raises(TypeError, match="Sparse data was passed for X,"):
        ConDoAdapter().fit(X, domain=["query"] * 10**6)
    with pytest.raises(TypeError, match="Sparse data was passed for X_query"):
        ConDoAdapter().fit_pair(X, X)
