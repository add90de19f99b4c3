"""AnnData in, AnnData out: dense, sparse, on disk, as a view; and `condokit.anndata.adapt`."""

import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import condokit
from condokit import BatchAdapter, ConDoAdapter

anndata = pytest.importorskip("anndata")
pytestmark = pytest.mark.filterwarnings(
    "ignore:Mostly zero, so only multiplied",
    "ignore:Constant or nearly so within a batch, so only shifted",
    "ignore:Of the mapped",
    "ignore:Observation names are not unique",
    "ignore:Setting element",
    "ignore:The 'mode.chained_assignment'",
)
ROLES = {"batch": "batch", "confounders": ["cell_type"]}
KEYS = {"batch_key": "batch", "confounder_keys": ["cell_type"], "reference": "a"}
N_EXPRESSED = 6  # variables that most cells express; others are mostly zero


def text_option(*value):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (pd.set_option if value else pd.get_option)("future.infer_string", *value)


@pytest.fixture(autouse=True)
def _text_that_files_can_hold():
    before = text_option()
    text_option(False)  # anndata 0.12 does not write the text of pandas 3
    yield
    text_option(before)


def cells(n=600, dtype=np.float32, seed=0):
    """Return cells whose types differ in number between batches, and what batch a would measure."""
    rng = np.random.default_rng(seed)
    batch = np.repeat(["a", "b", "c"], n // 3)
    share = {"a": 0.3, "b": 0.7, "c": 0.5}
    is_t = rng.random(n) < np.array([share[b] for b in batch])
    genes = [f"g{j}" for j in range(N_EXPRESSED + 4)]
    truth = rng.gamma(4.0, 0.5, (n, len(genes))) + 1.5 * is_t[:, None]
    factor = {"a": 1.0, "b": 1.6, "c": 0.7}
    X = truth * np.array([factor[b] for b in batch])[:, None]
    is_found = rng.random((n, 4)) < 0.3
    for values in (X, truth):
        values[:, N_EXPRESSED:] *= is_found
    obs = {"batch": batch, "cell_type": np.where(is_t, "T", "B"), "depth": rng.random(n)}
    names = pd.Index([f"cell{i}" for i in range(n)], dtype=object)
    obs = pd.DataFrame(obs, index=names)
    data = anndata.AnnData(X.astype(dtype), obs=obs, var=pd.DataFrame(index=pd.Index(genes)))
    data.layers["raw"] = data.X.copy()
    data.obsm["X_pca"] = data.X[:, :N_EXPRESSED] - 3.0
    data.uns["who"] = "us"
    return data, truth


def kinds(data, folder):
    """Yield the same cells in all containers."""
    data.write_h5ad(folder / "dense.h5ad")
    yield "dense", data
    for name in ("csr_matrix", "csc_matrix", "csr_array"):
        other = data.copy()
        other.X = getattr(sp, name)(data.X)
        yield name, other
        if name != "csr_array":
            other.write_h5ad(folder / f"{name}.h5ad")
            yield f"backed {name}", anndata.read_h5ad(folder / f"{name}.h5ad", backed="r")
    yield "backed", anndata.read_h5ad(folder / "dense.h5ad", backed="r")
    order = np.arange(data.n_obs - 1, -1, -1)
    turned = data[order].copy()
    turned.X = sp.csr_matrix(turned.X)
    yield "view", turned[order]


def values_of(data):
    return data.X.toarray() if sp.issparse(data.X) else np.asarray(data.X)


def error(values, truth, batch):
    moved = np.asarray(batch != "a")
    return np.sqrt(np.mean((values - truth)[moved][:, :N_EXPRESSED] ** 2))


def test_all_containers_give_the_same_maps_and_cells(tmp_path):
    data, truth = cells()
    before = error(data.X, truth, data.obs["batch"])
    by_batch, wanted = np.arange(data.n_obs).reshape(3, -1), None
    for name, other in kinds(data, tmp_path):
        adapter = BatchAdapter(reference="a").fit(other, **ROLES)
        out = adapter.transform(other, batch="batch")
        assert isinstance(out, anndata.AnnData), name
        assert not out.isbacked
        assert not out.is_view
        assert out.X.dtype == np.float32, name
        assert sp.issparse(out.X) == any(kind in name for kind in ("cs", "view")), name
        assert isinstance(out.X, sp.sparray) == (name == "csr_array")
        assert list(out.obs_names) == list(data.obs_names)
        assert list(out.var_names) == list(data.var_names)
        assert out.uns["who"] == "us"
        np.testing.assert_array_equal(out.layers["raw"], data.layers["raw"])
        np.testing.assert_array_equal(out.obsm["X_pca"], data.obsm["X_pca"])
        values = values_of(out)
        rare, were = values[:, N_EXPRESSED:], data.X[:, N_EXPRESSED:]
        np.testing.assert_array_equal(rare == 0, were == 0)
        gains = [rare[rows][were[rows] > 0] / were[rows][were[rows] > 0] for rows in by_batch]
        assert gains[1].max() < 1 < gains[2].min()
        reference = (data.obs["batch"] == "a").to_numpy()
        np.testing.assert_array_equal(values[reference], data.X[reference])
        assert error(values, truth, data.obs["batch"]) < 0.15 * before
        wanted = values if wanted is None else wanted
        np.testing.assert_allclose(values, wanted, atol=1e-6, err_msg=name)
        if other.isbacked:
            other.file.close()


def test_many_cells_are_summed_up_the_same_way_in_every_container(tmp_path):
    data, truth = cells(dtype=np.float64)
    weights = np.random.default_rng(1).integers(0, 3, data.n_obs).astype(float)
    found = {}
    for name, other in kinds(data, tmp_path):
        for given in (None, weights):
            one = BatchAdapter(reference="a").fit(other, sample_weight=given, **ROLES)
            found.setdefault(given is None, []).append(one.maps_["b"])
        assert abs(found[True][-1].scale[:N_EXPRESSED] * 1.6 - 1).max() < 0.15, name
    for maps in found.values():
        for one in maps[1:]:
            np.testing.assert_allclose(one.scale, maps[0].scale, rtol=1e-9)
            np.testing.assert_allclose(one.offset, maps[0].offset, rtol=1e-9, atol=1e-9)
    assert abs(found[True][0].scale - found[False][0].scale).max() > 1e-3


def test_two_domains(tmp_path):
    data, truth = cells()
    two = data[data.obs["batch"] != "c"].copy()
    wanted = None
    for name, other in kinds(two, tmp_path):
        adapter = ConDoAdapter(reference="a").fit(other, domain="batch", confounders="cell_type")
        assert adapter.report_.mostly_zero_features == ["g6", "g7", "g8", "g9"]
        np.testing.assert_array_equal(adapter.map_.offset[N_EXPRESSED:], 0.0)
        out, std = adapter.transform(other, domain="batch", return_std=True)
        values = values_of(out)
        wanted = values if wanted is None else wanted
        np.testing.assert_allclose(values, wanted, atol=1e-6, err_msg=name)
        std = values_of(std)
        there = (two.obs["batch"] == "b").to_numpy()
        np.testing.assert_array_equal(std[there] > 0, two.X[there] != 0)
        assert not std[~there].any()
        back = adapter.inverse_transform(out, domain="batch")
        np.testing.assert_allclose(values_of(back), two.X, atol=1e-4)
    with pytest.warns(UserWarning, match="Rows of the reference are mapped"):
        adapter.transform(two)
    sides = [two[two.obs["batch"] == b] for b in ("b", "a")]
    pair = ConDoAdapter().fit_pair(*sides, "cell_type", "cell_type")
    np.testing.assert_allclose(pair.map_.scale, adapter.map_.scale, rtol=1e-4)


def test_zeros_stay_zero_and_others_that_become_negative_are_counted():
    data, _ = cells()
    with pytest.warns(UserWarning, match="so only multiplied, and zeros .* \\(4 of 10 features"):
        adapter = BatchAdapter(reference="a").fit(data, **ROLES)
    assert adapter.report_.facts["mostly_zero"] == ["g6", "g7", "g8", "g9"]
    named = BatchAdapter(reference="a").fit(data, features=["g1", "g7"], **ROLES)
    assert list(named.feature_names_in_) == ["g1", "g7"]
    assert named.maps_["b"].scale.max() < 0.8
    assert named.maps_["b"].offset[1] == 0
    out = named.transform(data, batch="batch")
    np.testing.assert_array_equal(values_of(out)[:, [0, 6]], data.X[:, [0, 6]])
    low = data.copy()
    low.X[:200, :N_EXPRESSED] = np.maximum(low.X[:200, :N_EXPRESSED] - 2, 0)
    low.X[200:400:10, :N_EXPRESSED] = 0
    with pytest.warns(UserWarning, match="Of the mapped values") as told:
        moved = BatchAdapter(reference="a").fit(low, **ROLES).transform(low, batch="batch").X
    assert not (moved < 0)[:, N_EXPRESSED:].any()
    shares = [((moved < 0) & mark).mean() for mark in (low.X > 0, low.X == 0)]
    assert min(shares) > 0.01
    text = f"{shares[0]:.1%} are negative that were positive, and {shares[1]:.1%} that were zero."
    assert any(text in str(warning.message) for warning in told)


def test_a_gene_that_a_batch_does_not_have_stays_as_it_is(tmp_path):
    data, _ = cells()
    none = data[:, N_EXPRESSED:].copy()
    none.X[none.obs["batch"] == "b", 0] = 0
    two = none[none.obs["batch"] != "c"].copy()
    two.X = sp.csr_matrix(two.X)
    with pytest.warns(UserWarning, match="4 of 4 features"):
        one = ConDoAdapter(reference="a").fit(two, domain="batch", confounders="cell_type")
    assert (one.map_.scale[0], one.map_.offset[0]) == (1.0, 0.0)
    assert (one.map_.scale[1:] < 1).all()
    adapter = BatchAdapter(reference="a").fit(none, **ROLES)
    adapter.save(tmp_path / "maps.json")
    again = BatchAdapter.load(tmp_path / "maps.json")
    assert again.maps_["b"] == adapter.maps_["b"]
    for one in again.maps_.values():
        assert one.scale[0] == 1
        np.testing.assert_array_equal(one.offset, 0.0)


def test_a_later_batch(tmp_path):
    data, truth = cells()
    data.X = sp.csr_matrix(data.X)
    adapter = BatchAdapter(reference="a").fit(data[:400], **ROLES)
    old = adapter.maps_["b"]
    adapter.add_batch(data[np.r_[0:200, 400:600]], **ROLES)
    assert adapter.maps_["b"] is old
    out = adapter.transform(data, batch="batch")
    assert error(values_of(out), truth, data.obs["batch"]) < 0.3


def test_names_that_are_used_twice():
    data, _ = cells()
    wanted = BatchAdapter(reference="a").fit(data, **ROLES).maps_["b"]
    twice = data.copy()
    twice.obs_names = ["cell"] * twice.n_obs
    twice.obs["g0"] = twice.obs["cell_type"]
    found = BatchAdapter(reference="a").fit(twice, batch="batch", confounders=["g0"])
    assert list(found.feature_names_in_) == list(data.var_names)
    np.testing.assert_array_equal(found.maps_["b"].scale, wanted.scale)
    assert list(found.transform(twice, batch="batch").obs_names) == ["cell"] * twice.n_obs
    twice.var_names = ["g0", "g0", *twice.var_names[2:]]
    with pytest.raises(ValueError, match=r"not unique, 'g0'; call adata.var_names_make_unique"):
        BatchAdapter(reference="a").fit(twice, **ROLES)


def test_clear_errors():
    data, _ = cells()
    fit = BatchAdapter(reference="a").fit
    with pytest.raises(ValueError, match="'batch' names 'bach', which its obs does not have.*Did"):
        fit(data, batch="bach")
    with pytest.raises(ValueError, match="Did you mean 'cell_type'"):
        fit(data, batch="batch", confounders=["celltype"])
    with pytest.raises(ValueError, match="it has no X; layers go through condokit.anndata.adapt"):
        fit(anndata.AnnData(obs=data.obs, var=data.var), **ROLES)
    with pytest.raises(ValueError, match="0 sample"):
        fit(data[:0], **ROLES)
    with pytest.raises(ValueError, match=r"0 feature\(s\)"):
        fit(data[:, :0].copy(), **ROLES)
    adapter = fit(data, **ROLES)
    with pytest.raises(ValueError, match="X lacks 'g1'"):
        adapter.transform(data[:, [0, 2, 3, 4, 5]], batch="batch")
    far = data.copy()
    far.X = sp.csr_matrix(far.X)
    far.X.data[3] = np.inf
    with pytest.raises(ValueError, match="X contains infinity"):
        fit(far, **ROLES)


def test_adapt_in_place_and_on_disk(tmp_path):
    data, truth = cells()
    data.X = sp.csr_matrix(data.X)
    X = data.X.copy()
    assert condokit.anndata.adapt(data, **KEYS) is None
    assert (data.X != X).nnz == 0
    assert error(data.layers["condokit"].toarray(), truth, data.obs["batch"]) < 0.3
    facts = data.uns["condokit"]
    assert (facts["n_mapped"], facts["n_left_alone"]) == (data.n_vars, 0)
    assert facts["error_after"] < 0.3 * facts["error_before"]
    data.write_h5ad(tmp_path / "out.h5ad")
    back = anndata.read_h5ad(tmp_path / "out.h5ad")
    assert (back.layers["condokit"] != data.layers["condokit"]).nnz == 0
    again = back.uns["condokit"]
    assert again.keys() == facts.keys()
    assert again["params"]["batch_key"] == "batch"
    assert list(again["params"]["confounder_keys"]) == ["cell_type"]
    assert list(again["batches"]["batch"]) == ["a", "b", "c"]
    assert list(again["batches"]["path"]) == ["a", "b > a", "c > a"]
    assert again["batches"]["error_before"][1] == pytest.approx(facts["batches"]["error_before"][1])
    assert again["reference"] == "a"
    assert "Mostly zero" in again["warnings"][0]
    stored = anndata.read_h5ad(tmp_path / "out.h5ad", backed="r")
    there = condokit.anndata.adapt(stored, key_added="again", inplace=False, **KEYS)
    assert (there.layers["again"] != data.layers["condokit"]).nnz == 0
    assert list(there.uns["again"]["batches"]["verdict"]) == ["", "better", "better"]
    data.obs["batch"] = [f"plate {label}/1" for label in data.obs["batch"]]
    condokit.anndata.adapt(data, **KEYS | {"reference": "plate a/1"})
    data.write_h5ad(tmp_path / "slashes.h5ad")
    back = anndata.read_h5ad(tmp_path / "slashes.h5ad")
    assert list(back.uns["condokit"]["batches"]["verdict"]) == ["", "better", "better"]


def test_adapt_layers_and_representations():
    data, truth = cells()
    out = condokit.anndata.adapt(data, layer="raw", key_added="mapped", inplace=False, **KEYS)
    assert "mapped" not in data.layers
    assert "mapped" not in data.uns
    assert error(out.layers["mapped"], truth, data.obs["batch"]) < 0.3
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        condokit.anndata.adapt(data, use_rep="X_pca", **KEYS)
    found = data.obsm["X_pca_condokit"]
    assert error(found + 3, truth[:, :N_EXPRESSED], data.obs["batch"]) < 0.3
    assert data.uns["X_pca_condokit"]["params"]["use_rep"] == "X_pca"
    data.obsm["sparse"] = sp.csr_matrix(data.obsm["X_pca"])
    condokit.anndata.adapt(data, use_rep="sparse", **KEYS)
    np.testing.assert_allclose(data.obsm["sparse_condokit"].toarray(), found, rtol=1e-5)
    view = data[data.obs["batch"] != "c"]
    condokit.anndata.adapt(view, **KEYS)
    assert view.layers["condokit"].shape == (400, data.n_vars)
    assert "condokit" not in data.layers
    data.obs["batch"] = pd.Categorical(data.obs["batch"].map({"a": 1, "b": 2, "c": 3}))
    condokit.anndata.adapt(data, batch_key="batch", reference=1, confounder_keys="cell_type")
    assert list(data.uns["condokit"]["batches"]["batch"]) == ["1", "2", "3"]


def test_adapt_refuses():
    data, _ = cells()
    adapt = condokit.anndata.adapt
    for wrong, match in {
        "batch_key": "'batch_key' names 'nothing', which obs does not have",
        "confounder_keys": "'confounder_keys' names 'nothing'",
        "layer": "'layer' names 'nothing', which layers does not have. Its columns are 'raw'",
        "use_rep": "'use_rep' names 'nothing', which obsm does not have",
        "reference": "'reference' is 'nothing', but the batches are 'a', 'b', 'c'",
    }.items():
        with pytest.raises(ValueError, match=match):
            adapt(data, **{**KEYS, wrong: "nothing"})
    with pytest.raises(ValueError, match="not both"):
        adapt(data, layer="raw", use_rep="X_pca", **KEYS)
    with pytest.raises(TypeError, match="'adata' must be an AnnData. Got DataFrame"):
        adapt(data.to_df(), **KEYS)
    assert "condokit" not in data.uns


def test_adapt_names_the_extra(monkeypatch):
    data, _ = cells()
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(ModuleNotFoundError, match=r"condokit\[anndata\]"):
        condokit.anndata.adapt(data, **KEYS)


def test_a_file_with_the_text_of_pandas_3_maps_other_cells(tmp_path):
    """What the FAQ advises to those who have anndata 0.12 and pandas 3."""
    text_option(True)
    with (
        pd.option_context("mode.string_storage", "python"),
        anndata.settings.override(allow_write_nullable_strings=True),
    ):
        X = np.random.default_rng(0).normal(5, 1, size=(80, 3))
        obs = pd.DataFrame({"batch": ["old", "new"] * 40}, index=[f"c{i}" for i in range(80)])
        data = anndata.AnnData(X + (obs["batch"] == "new").to_numpy()[:, None], obs=obs)
        assert obs["batch"].dtype == "str"
        condokit.anndata.adapt(data, batch_key="batch", reference="old")
        data.write_h5ad(tmp_path / "text.h5ad")
        month = anndata.AnnData(data.X[:9], obs=data.obs[:9])
        condokit.anndata.apply(month, from_uns_of=anndata.read_h5ad(tmp_path / "text.h5ad"))
    np.testing.assert_array_equal(month.layers["condokit"], data.layers["condokit"][:9])


def test_maps_are_kept_for_next_month(tmp_path):
    data, _ = cells()
    condokit.anndata.adapt(data, **KEYS)
    condokit.anndata.adapt(data, use_rep="X_pca", **KEYS)  # beside the other, not in its place
    data.write_h5ad(tmp_path / "old.h5ad")
    old, month = anndata.read_h5ad(tmp_path / "old.h5ad"), data[::3].copy()
    for kept in (month.layers, month.obsm, month.uns):
        kept.clear()
    month.obsm["X_pca"] = data.obsm["X_pca"][::3]
    month = month[:, ::-1].copy()  # variables are found by name
    condokit.anndata.apply(month, from_uns_of=old)
    expected = data.layers["condokit"][::3, ::-1]
    np.testing.assert_allclose(month.layers["condokit"], expected, rtol=1e-6)
    assert month.var["condokit_mapped"].all()
    condokit.anndata.apply(month, from_uns_of=old, use_rep="X_pca")
    np.testing.assert_allclose(month.obsm["X_pca_condokit"], data.obsm["X_pca_condokit"][::3])
    again = month.copy()  # which has the maps as well
    condokit.anndata.apply(again, from_uns_of=month)
    np.testing.assert_array_equal(again.layers["condokit"], month.layers["condokit"])
    known = old.uns["condokit"]
    ends = np.nanmax(known["batches"]["error_after"]), np.nanmax(known["batches"]["after_high"])
    assert all(f"{end:.2f} sd" in known["sentence"] for end in ends)
    with pytest.raises(TypeError, match="'from_uns_of' must be an AnnData. Got str"):
        condokit.anndata.apply(month, from_uns_of="old.h5ad")
    with pytest.raises(ValueError, match=r"no maps under uns\['mapped'\]; there are maps under"):
        condokit.anndata.apply(month, from_uns_of=old, key_added="mapped")
    month.obs["batch"] = "z"
    with pytest.raises(ValueError, match="'z', for which there is no map"):
        condokit.anndata.apply(month, from_uns_of=old)


def test_adapt_takes_what_a_fit_takes():
    data, _ = cells()
    data.obs["donor"] = [f"d{i % 40}" for i in range(data.n_obs)]
    condokit.anndata.adapt(data, features=["g0", "g7"], map="shift", groups="donor", **KEYS)
    assert list(data.var_names[data.var["condokit_mapped"]]) == ["g0", "g7"]
    moved = data.layers["condokit"] - data.X
    assert np.abs(moved[:, 1]).max() == 0
    for batch in "abc":
        assert np.ptp(moved[data.obs["batch"] == batch, 0]) < 1e-5
    assert data.uns["condokit"]["n_left_alone"] == 8
    assert "verdict" in data.uns["condokit"]
    assert len(data.uns["condokit"]["batches"]["doubts"]) == 3
    del data.obs["donor"]
    condokit.anndata.adapt(data, evaluate=False, **KEYS)
    assert "verdict" not in data.uns["condokit"]
    data.obs.loc[data.obs_names[:30], "cell_type"] = None
    with pytest.raises(ValueError, match="missing"):
        condokit.anndata.adapt(data, **KEYS)
    condokit.anndata.adapt(data, missing="drop", evaluate=False, **KEYS)
    with pytest.raises(ValueError, match="'groups' names 'doner'"):
        condokit.anndata.adapt(data, groups="doner", **KEYS)
    alone = data[(data.obs["batch"] != "c") | (data.obs["cell_type"] == "T")].copy()
    alone = alone[(alone.obs["batch"] == "c") | (alone.obs["cell_type"] == "B")].copy()
    with pytest.warns(UserWarning, match="No path .* from 'c'"):
        condokit.anndata.adapt(alone, unreachable="keep", evaluate=False, **KEYS)
    last = (alone.obs["batch"] == "c").to_numpy()
    np.testing.assert_array_equal(alone.layers["condokit"][last], alone.X[last])
    data.uns["mine"] = {"colours": ["red"]}
    with pytest.raises(ValueError, match="holds something else"):
        condokit.anndata.adapt(data, key_added="mine", **KEYS)


def test_samples_in_several_batches_are_bridges():
    data, _ = cells()
    data.obs["sample"] = [f"s{i % 200}" if i % 200 < 60 else "" for i in range(data.n_obs)]
    for batch in range(3):
        data.X[200 * batch : 200 * batch + 60] = data.X[:60] + batch
    keys = {"batch_key": "batch", "reference": "a", "bridge": "sample"}
    condokit.anndata.adapt(data, evaluate=False, **keys)
    gap = data.layers["condokit"][400:460, :3] - data.X[:60, :3]
    assert np.abs(gap.mean(axis=0)).max() < 0.2
