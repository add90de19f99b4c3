import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
from problems import two_domains
from protocols import ansur, bladderbatch, categorical1d, rmse

import condokit
from condokit import BatchAdapter, ConDoAdapter, GaussianOT, LowOverlapWarning, ReverseKL, datasets
from condokit.compare.priors import PRIORS
from condokit.divergences import DIVERGENCES, MomentDivergence
from condokit.maps.families import MAPS


def fit_pair(pair, **parameters):
    return ConDoAdapter(**parameters).fit_pair(
        pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference
    )


def test_the_true_map_is_recovered(eeg):
    adapter = ConDoAdapter().fit_pair(
        eeg.X_query, eeg.X_reference, eeg.seizure_query, eeg.seizure_reference
    )
    error = rmse(adapter.transform(eeg.X_query), eeg.truth)
    matching = ConDoAdapter(shrinkage=None).fit_pair(eeg.X_query, eeg.X_reference)
    assert error < 0.1
    assert error < 0.3 * rmse(matching.transform(eeg.X_query), eeg.truth)
    assert adapter.divergence_ == "likelihood"
    assert matching.divergence_ == "ot"


@pytest.mark.parametrize(("n", "published"), [(20, 2.957), (500, 2.548)])
def test_without_confounders_it_is_the_published_baseline(n, published):
    """The paper's Gaussian OT on its own draws, to the printed digits."""
    errors = []
    for seed in range(10):
        pair = categorical1d(n, seed)
        adapter = ConDoAdapter(shrinkage=None).fit_pair(pair.X_query, pair.X_reference)
        errors.append(rmse(adapter.transform(pair.X_query), pair.truth))
    assert np.mean(errors) == pytest.approx(published, abs=6e-4)


@pytest.mark.usefixtures("needs_data")
def test_ansur_protocol_gives_the_published_baselines():
    before, matched = [], []
    for seed in range(10):
        pair = ansur(seed)
        before.append(rmse(pair.X_query, pair.truth))
        adapter = ConDoAdapter(shrinkage=None).fit_pair(pair.X_query, pair.X_reference)
        matched.append(rmse(adapter.transform(pair.X_query), pair.truth))
    assert np.mean(before) == pytest.approx(1.3491051624616142, rel=1e-12)
    assert np.mean(matched) == pytest.approx(0.58577791, rel=1e-6)


@pytest.mark.usefixtures("needs_data")
def test_bladderbatch_keeps_cancer_and_removes_batch():
    from sklearn.metrics import silhouette_score

    X, result, batch = bladderbatch()
    query = batch == 2
    adapted = ConDoAdapter(reference=5).fit_transform(X, domain=batch, confounders=result)
    np.testing.assert_array_equal(adapted[~query], X[~query])
    assert silhouette_score(X, result) == pytest.approx(0.27982, abs=1e-5)
    assert silhouette_score(adapted, result) > 0.305
    assert abs(silhouette_score(adapted, batch)) < 0.03


def test_one_table_and_two_tables_give_the_same_map(eeg):
    frame = eeg.to_frame()
    one = ConDoAdapter(reference="v1").fit(
        frame, domain="device", confounders="seizure", features=["eeg_*"]
    )
    two = ConDoAdapter().fit_pair(
        eeg.X_query, eeg.X_reference, eeg.seizure_query, eeg.seizure_reference
    )
    np.testing.assert_allclose(one.map_.scale, two.map_.scale, rtol=1e-10)
    np.testing.assert_allclose(one.map_.offset, two.map_.offset, rtol=1e-9, atol=1e-10)


def test_fit_transform_maps_query_rows_and_keeps_order_and_reference(eeg):
    frame = eeg.to_frame().sample(frac=1, random_state=0)
    adapter = ConDoAdapter(reference="v1")
    out = adapter.fit_transform(frame, domain="device", confounders=["seizure"], features=["eeg_*"])
    assert out.index.equals(frame.index)
    reference = frame["device"] == "v1"
    features = list(adapter.feature_names_in_)
    np.testing.assert_array_equal(out[reference], frame.loc[reference, features])
    np.testing.assert_array_equal(out[~reference], adapter.transform(frame[~reference]))
    back = adapter.inverse_transform(out, domain=frame["device"])
    np.testing.assert_allclose(back, frame[features], atol=1e-12)


def test_several_confounders_of_any_dtype_are_crossed():
    import pandas as pd

    rng = np.random.default_rng(0)
    n = 600
    frame = pd.DataFrame(
        {
            "sex": rng.choice(["F", "M"], n),
            "ward": pd.Categorical(rng.choice(["x", "y", "z"], n)),
            "smokes": rng.random(n) < 0.5,
            "site": rng.integers(1, 4, n),
            "device": rng.choice(["old", "new"], n),
        }
    )
    frame["f"] = rng.normal(size=n) + (frame["sex"] == "F") * 3 + frame["site"]
    frame.loc[frame["device"] == "new", "f"] *= 2
    adapter = ConDoAdapter(reference="old", categorical=["site"]).fit(
        frame, domain="device", confounders=["sex", "ward", "smokes", "site"]
    )
    assert len(adapter.support_.levels) == 2 * 3 * 2 * 3
    assert adapter.support_.count_query.sum() == (frame["device"] == "new").sum()
    assert adapter.map_.scale[0] == pytest.approx(0.5, rel=0.1)


def test_a_numeric_confounder_with_two_values_is_categorical():
    X_query, X_reference, Z_query, Z_reference = two_domains(np.random.default_rng(0))
    numbers = ConDoAdapter().fit_pair(X_query, X_reference, Z_query == "a", Z_reference == "a")
    ones = ConDoAdapter().fit_pair(
        X_query, X_reference, (Z_query == "a").astype(int), (Z_reference == "a") * 1.0
    )
    assert ones.map_ == numbers.map_


@pytest.mark.parametrize("order", ["rows", "features"])
def test_row_and_feature_order_do_not_matter(order):
    rng = np.random.default_rng(0)
    X_query, X_reference, Z_query, Z_reference = two_domains(rng)
    first = ConDoAdapter().fit_pair(X_query, X_reference, Z_query, Z_reference)
    if order == "rows":
        p = rng.permutation(len(X_query))
        again = ConDoAdapter().fit_pair(X_query[p], X_reference, Z_query[p], Z_reference)
        np.testing.assert_allclose(again.map_.scale, first.map_.scale, rtol=1e-10)
    else:
        again = ConDoAdapter().fit_pair(
            X_query[:, ::-1], X_reference[:, ::-1], Z_query, Z_reference
        )
        np.testing.assert_allclose(again.map_.scale[::-1], first.map_.scale, rtol=1e-10)


@pytest.mark.parametrize("shrinkage", [None, "auto", 0.3])
@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_units_do_not_matter(shrinkage, unit):
    X_query, X_reference, Z_query, Z_reference = two_domains(np.random.default_rng(0))
    plain = ConDoAdapter(shrinkage=shrinkage).fit_pair(X_query, X_reference, Z_query, Z_reference)
    scaled = ConDoAdapter(shrinkage=shrinkage).fit_pair(
        X_query * unit, X_reference * unit, Z_query, Z_reference
    )
    np.testing.assert_allclose(scaled.map_.scale, plain.map_.scale, rtol=1e-9)
    np.testing.assert_allclose(scaled.map_.offset, plain.map_.offset * unit, rtol=1e-8)


def test_shrinkage_as_a_number_goes_from_plain_to_identity():
    data = two_domains(np.random.default_rng(0))
    plain, zero, half, one = (
        ConDoAdapter(shrinkage=s).fit_pair(*data).map_ for s in (None, 0.0, 0.5, 1)
    )
    assert zero == plain
    np.testing.assert_allclose(half.scale, np.sqrt(plain.scale))
    np.testing.assert_allclose(one.scale, 1)
    np.testing.assert_allclose(one.offset, 0, atol=1e-12)


def test_sample_weights_count_rows():
    rng = np.random.default_rng(0)
    X_query, X_reference, Z_query, Z_reference = two_domains(rng, n=40)
    times = rng.integers(0, 4, 40), rng.integers(1, 3, 40)
    weighted = ConDoAdapter().fit_pair(
        X_query, X_reference, Z_query, Z_reference, sample_weight=times
    )
    repeated = ConDoAdapter().fit_pair(
        np.repeat(X_query, times[0], axis=0),
        np.repeat(X_reference, times[1], axis=0),
        np.repeat(Z_query, times[0]),
        np.repeat(Z_reference, times[1]),
    )
    np.testing.assert_allclose(weighted.map_.scale, repeated.map_.scale)
    np.testing.assert_allclose(weighted.map_.offset, repeated.map_.offset)
    np.testing.assert_allclose(weighted.support_.weights, repeated.support_.weights)


@pytest.mark.filterwarnings(
    "ignore:A curve is more likely"
)  # of rows that are counted twenty times
def test_repeated_rows_of_the_same_subjects_are_no_new_evidence():
    rng = np.random.default_rng(0)
    X_query, X_reference, Z_query, Z_reference = two_domains(rng, n=30, scale=1.1, offset=0.2)
    once = ConDoAdapter().fit_pair(X_query, X_reference, Z_query, Z_reference)
    twenty = [np.repeat(a, 20, axis=0) for a in (X_query, X_reference, Z_query, Z_reference)]
    subjects = np.repeat(np.arange(30), 20)
    naive = ConDoAdapter().fit_pair(*twenty)
    grouped = ConDoAdapter().fit_pair(*twenty, groups=(subjects, subjects + 100))
    np.testing.assert_allclose(grouped.map_se_["scale"], once.map_se_["scale"], rtol=0.15)
    assert naive.report_["kept_log_scale"] > grouped.report_["kept_log_scale"] + 0.1
    assert grouped.report_["kept_log_scale"] == pytest.approx(
        once.report_["kept_log_scale"], abs=0.1
    )


def test_groups_are_found_by_column_name_and_are_no_feature(eeg):
    frame = eeg.to_frame()
    frame["subject"] = np.arange(len(frame)) // 2
    adapter = ConDoAdapter(reference="v1").fit(
        frame.drop(columns="depression"), domain="device", confounders="seizure", groups="subject"
    )
    assert list(adapter.feature_names_in_) == eeg.feature_names


@pytest.mark.filterwarnings("ignore:The strata are too much alike", "ignore:The principal axes")
@pytest.mark.parametrize("parameter", ["map", "prior", "divergence"])
def test_names_and_instances_are_the_same(parameter):
    data = two_domains(np.random.default_rng(0), n=60, n_features=4)
    named = {"map": MAPS, "prior": PRIORS, "divergence": DIVERGENCES}[parameter]
    for name, make in named.items():
        others = {"divergence": {"map": "affine"}, "prior": {"divergence": "ot"}}.get(parameter, {})
        by_name = ConDoAdapter(**{parameter: name}, **others).fit_pair(*data)
        by_instance = ConDoAdapter(**{parameter: make()}, **others).fit_pair(*data)
        assert by_name.map_ == by_instance.map_


def test_the_paper_variants_are_reachable():
    data = two_domains(np.random.default_rng(0))
    scales = {
        ConDoAdapter(divergence=d, prior=p, shrinkage=None).fit_pair(*data).map_.scale[0]
        for d in (ReverseKL(), ReverseKL(variant="paper"), GaussianOT())
        for p in ("product", "paper", "overlap")
    }
    assert len(scales) == 9


def test_a_new_divergence_is_one_class():
    class ForwardKL(MomentDivergence):
        def value_and_grad(self, query, reference, weights):
            w = weights[:, None]
            error = query.mean - reference.mean
            excess = reference.var + error**2
            value = (w * (np.log(query.var) + excess / query.var)).sum()
            d_var = w * (1 / query.var - excess / query.var**2)
            return float(value), 2 * w * error / query.var, d_var

    X_query, X_reference, Z_query, Z_reference = two_domains(np.random.default_rng(0), n=5000)
    adapter = ConDoAdapter(divergence=ForwardKL()).fit_pair(
        X_query, X_reference, Z_query, Z_reference
    )
    np.testing.assert_allclose(adapter.map_.scale, 2.0, rtol=0.04)
    np.testing.assert_allclose(adapter.map_.offset, 5.0, atol=0.1)
    assert adapter.report_["n_iter"] > 0
    assert (np.abs(adapter.map_.scale - 2) < 3 * adapter.map_se_["scale"]).all()
    assert (adapter.map_se_["scale"] < 0.05).all()


def test_shift_and_identity_maps():
    data = two_domains(np.random.default_rng(0), scale=1.0)
    shift = ConDoAdapter(map="shift").fit_pair(*data).map_
    np.testing.assert_array_equal(shift.scale, 1)
    np.testing.assert_allclose(shift.offset, 5, atol=0.3)
    identity = ConDoAdapter(map="identity").fit_pair(*data).map_
    np.testing.assert_array_equal(identity.offset, 0)


def test_strata_of_one_domain_are_left_out_with_a_warning():
    X_query, X_reference, Z_query, Z_reference = two_domains(np.random.default_rng(0))
    Z_query = Z_query.astype("U9")
    X_query[:5], Z_query[:5] = 1e6, "only new"
    with pytest.warns(LowOverlapWarning, match=r"'only new',\) \(5 query and 0 reference rows\)"):
        adapter = ConDoAdapter().fit_pair(X_query, X_reference, Z_query, Z_reference)
    kept = Z_query != "only new"
    without = ConDoAdapter().fit_pair(X_query[kept], X_reference, Z_query[kept], Z_reference)
    np.testing.assert_allclose(adapter.map_.scale, without.map_.scale)
    assert adapter.support_.dropped[0]["n_query"] == 5


def test_one_row_strata_borrow_the_pooled_variance():
    X_query, X_reference, Z_query, Z_reference = two_domains(np.random.default_rng(0), n=50)
    Z_query[:] = "a"
    Z_query[0] = "b"
    for shrinkage in (None, "auto"):
        adapter = ConDoAdapter(shrinkage=shrinkage).fit_pair(
            X_query, X_reference, Z_query, Z_reference
        )
        assert np.isfinite(adapter.map_.scale).all()
        assert (np.abs(np.log(adapter.map_.scale / 2)) < 1).all()


def test_a_fitted_adapter_can_be_pickled_and_refitted(eeg):
    import pickle

    adapter = ConDoAdapter(reference="v1").fit(
        eeg.to_frame(), domain="device", confounders="seizure", features=["eeg_*"]
    )
    assert pickle.loads(pickle.dumps(adapter)).map_ == adapter.map_
    adapter.set_params(reference=None).fit_pair(eeg.X_query, eeg.X_reference)
    assert not hasattr(adapter, "feature_names_in_")


def test_import_is_lazy():
    import subprocess
    import sys

    code = "import condokit, sys; print('numpy' in sys.modules, 'sklearn' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]
    assert set(condokit.__all__) <= set(dir(condokit))
    with pytest.raises(AttributeError, match="no attribute 'ConDo'"):
        condokit.ConDo  # noqa: B018


def test_transform_needs_no_confounders(eeg):
    Z = eeg.seizure_query
    adapter = ConDoAdapter().fit_pair(eeg.X_query, eeg.X_reference, Z, eeg.seizure_reference)
    with pytest.raises(TypeError, match="takes no 'confounders': it needs the features alone"):
        adapter.transform(eeg.X_query, confounders=Z)


def test_rows_of_the_reference_that_are_mapped_are_told(rng):
    frame = pd.DataFrame(rng.normal(size=(40, 2)), columns=["a", "b"])
    frame["device"] = ["new", "old"] * 20
    adapter = ConDoAdapter(reference="old").fit(frame, domain="device")
    with pytest.warns(UserWarning, match="Rows of the reference are mapped"):
        adapter.transform(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter.transform(frame, domain="device")
        adapter.transform(frame[frame["device"] == "new"])
        adapter.transform(frame[["a", "b"]])


def test_a_domain_that_was_asked_for_and_does_not_come_is_told(frame_of_eeg):
    data, roles = frame_of_eeg
    with sklearn.config_context(enable_metadata_routing=True):
        adapter = ConDoAdapter(reference="v1").set_transform_request(domain=True)
    adapter.fit(data, **roles)
    with pytest.warns(UserWarning, match="no 'domain' came"):
        adapter.transform(data.drop(columns="device"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter.transform(data, domain="device")
        plain = ConDoAdapter(reference="v1").fit(data, **roles)
        plain.transform(data.drop(columns="device"))


def test_warnings_are_logged_as_well(frame_of_eeg, caplog):
    data, roles = frame_of_eeg
    with sklearn.config_context(enable_metadata_routing=True):
        adapter = ConDoAdapter(reference="v1").set_transform_request(domain=True)
    adapter.fit(data, **roles)
    with caplog.at_level("WARNING", logger="condokit"), pytest.warns(UserWarning, match="came"):
        adapter.transform(data.drop(columns="device"))
    [record] = caplog.records
    assert (record.name, record.code, record.category) == ("condokit", "no-domain", "UserWarning")
    assert "no 'domain' came" in record.getMessage()


@pytest.fixture
def frame_of_eeg():
    data = datasets.make_eeg(60, 60, random_state=0).to_frame()
    return data, {"domain": "device", "confounders": "seizure", "features": "eeg_*F3"}


@pytest.mark.parametrize("how", ["joblib", "skops"])
@pytest.mark.parametrize("kind", ["location-scale", "monotone", "affine", "batches"])
def test_everything_fitted_can_be_stored(frame_of_eeg, tmp_path, how, kind):
    store = pytest.importorskip("skops.io" if how == "skops" else "joblib")
    data, roles = frame_of_eeg
    if kind == "batches":
        roles["batch"] = roles.pop("domain")
        found, given = BatchAdapter(reference="v1").fit(data, **roles), {"batch": "device"}
    else:
        found, given = ConDoAdapter(kind, reference="v1").fit(data, **roles), {"domain": "device"}
    things = [found, *([] if kind == "batches" else [found.map_])]
    for one, keys in zip(things, (given, {})):
        store.dump(one, tmp_path / "stored")
        if how == "skops":
            trusted = store.get_untrusted_types(file=tmp_path / "stored")
            assert all(name.startswith("condokit.") for name in trusted)
            again = store.load(tmp_path / "stored", trusted=trusted)
        else:
            again = store.load(tmp_path / "stored")
        pd.testing.assert_frame_equal(again.transform(data, **keys), one.transform(data, **keys))
    assert again.provenance if kind != "batches" else again.provenance_
    if kind != "batches":
        with pytest.raises(TypeError, match="immutable"):
            again.provenance["adapter"]["map"] = "other"
