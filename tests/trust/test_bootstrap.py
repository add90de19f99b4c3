"""Refits to resampled rows: standard errors, intervals, single values."""

import warnings

import numpy as np
import pandas as pd
import pytest
from reading import from_pair
from stories import ROLES, two_domains

from condokit import ConDoAdapter, bootstrap, datasets, sensitivity
from condokit.fit import choose
from condokit.solvers.lbfgs import lbfgs
from condokit.trust import bootstrap as uncertainty


def fitted(frame, **parameters):
    return ConDoAdapter(shrinkage=None, **parameters).fit(frame, **ROLES)


def test_errors_agree_with_the_analytic_ones_for_many_rows():
    frame = two_domains(np.random.default_rng(0), 800, 3)
    adapter = fitted(frame)
    analytic = adapter.map_se_
    found = bootstrap(adapter, frame, **ROLES, n_resamples=200)
    # three times the chance error of 200 draws
    np.testing.assert_allclose(found.features["scale_se"], analytic["scale"], rtol=0.15)
    np.testing.assert_allclose(found.features["offset_se"], analytic["offset"], rtol=0.15)
    np.testing.assert_array_equal(adapter.map_se_["scale"], found.features["scale_se"])


def test_parcels_give_the_errors_of_single_rows(monkeypatch):
    frame = two_domains(np.random.default_rng(1), 400, 2)
    options = {"divergence": "reverse-kl"}
    by_rows = bootstrap(fitted(frame, **options), frame, **ROLES, n_resamples=500).features[
        "scale_se"
    ]
    monkeypatch.setattr(uncertainty, "_MOST_PARCELS", 40)
    parcels = bootstrap(fitted(frame, **options), frame, **ROLES, n_resamples=500).features[
        "scale_se"
    ]
    np.testing.assert_allclose(parcels, by_rows, rtol=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("n", [15, 60])
def test_intervals_cover(n):
    covered = []
    for seed in range(30):
        frame = two_domains(np.random.default_rng(seed), n, 2, share=(0.6, 0.4))
        adapter = fitted(frame)
        row = pd.DataFrame({"x0": [0.5], "x1": [0.5]})
        value, error = (f.to_numpy() for f in adapter.transform(row, return_std=True))
        sheet = bootstrap(adapter, frame, **ROLES, n_resamples=100).features
        for truth, name in ((2.0, "scale"), (1.0, "offset")):
            low, high = np.array(sheet[f"{name}_low"]), np.array(sheet[f"{name}_high"])
            covered += ((low < truth) & (truth < high)).tolist()
        covered += (np.abs(value - 2.0) < 1.96 * error)[0].tolist()
    # 180 correlated values: within about three standard errors of 0.95
    assert 0.88 < np.mean(covered) <= 1


def test_subjects_are_drawn_whole():
    rng = np.random.default_rng(5)
    frame = two_domains(rng, 60, 2)
    copies = pd.concat([frame] * 4, ignore_index=True)
    subject = np.tile(np.arange(120), 4)
    alone = bootstrap(fitted(frame), frame, **ROLES, n_resamples=30)
    adapter = ConDoAdapter(shrinkage=None).fit(copies.assign(s=subject), **ROLES, groups="s")
    together = bootstrap(adapter, copies.assign(s=subject), **ROLES, groups="s", n_resamples=30)
    naive = bootstrap(fitted(copies), copies, **ROLES, n_resamples=30)
    ratio = np.array(together.features["offset_se"]) / alone.features["offset_se"]
    assert (ratio > 0.75).all()
    assert (
        np.array(naive.features["offset_se"]) < 0.7 * np.array(alone.features["offset_se"])
    ).all()


@pytest.mark.parametrize("map_", ["affine", "orthogonal"])
def test_matrices_get_errors(map_):
    frame = two_domains(np.random.default_rng(0), 200, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter = ConDoAdapter(map_, divergence="ot" if map_ == "affine" else "auto")
        adapter.fit(frame, **ROLES)
        found = bootstrap(adapter, frame, **ROLES, n_resamples=30)
        mapped, error = adapter.transform(frame, return_std=True)
    assert found.stability < 0.5
    assert error.shape == mapped.shape == (400, 2)
    assert (error.to_numpy() > 0).all()
    assert adapter.map_se_["scale"].shape == (2, 2)


def test_continuous_confounders_are_refitted_from_rows():
    rng = np.random.default_rng(2)
    z = np.r_[rng.uniform(1, 4, 80), rng.uniform(0, 3, 80)]
    x = np.sin(z) + z + 0.5 * rng.normal(size=160)
    x[:80] = (x[:80] - 1) / 2
    frame = pd.DataFrame({"x": x, "z": z, "domain": np.repeat(["query", "reference"], 80)})
    roles = {"domain": "domain", "confounders": ["z"]}
    adapter = ConDoAdapter(shrinkage=None).fit(frame, **roles)
    analytic = adapter.map_se_["scale"]
    one, two = (
        bootstrap(adapter, frame, **roles, n_resamples=30, n_jobs=jobs, random_state=3)
        for jobs in (None, 2)
    )
    np.testing.assert_array_equal(one.errors.scale, two.errors.scale)
    assert 0.5 < one.features["scale_se"][0] / analytic[0] < 2


def test_progress_goes_to_the_error_stream(capsys):
    frame = two_domains(np.random.default_rng(0), 40, 2)
    bootstrap(fitted(frame), frame, **ROLES, n_resamples=20, verbose=True)
    shown = capsys.readouterr().err
    assert "/21" in shown
    assert "refits" in shown
    bootstrap(fitted(frame), frame, **ROLES, n_resamples=20)
    assert capsys.readouterr().err == ""


def test_errors_of_reference_rows_are_zero_and_links_are_followed():
    frame = two_domains(np.random.default_rng(0), 100, 2)
    adapter = fitted(frame)
    _, error = adapter.transform(frame, domain="domain", return_std=True)
    is_query = frame["domain"] == "query"
    assert (error[~is_query] == 0).all(axis=None)
    assert (error[is_query] > 0).all(axis=None)
    from condokit import LocationScale

    positive = frame.assign(x0=np.exp(frame["x0"]), x1=np.exp(frame["x1"]))
    linked = ConDoAdapter(LocationScale(links="log"), shrinkage=None).fit(positive, **ROLES)
    mapped, wide = linked.transform(positive, return_std=True)
    plain = adapter.transform(frame, return_std=True)[1]
    inner = positive.index[is_query][:50]
    ratio = wide.loc[inner] / (mapped.loc[inner] * plain.loc[inner])
    np.testing.assert_allclose(ratio, 1, rtol=0.1)


def test_bad_input_is_refused():
    frame = two_domains(np.random.default_rng(0), 40, 2)
    with pytest.raises(ValueError, match="fitted ConDoAdapter"):
        bootstrap(ConDoAdapter(), frame, **ROLES)
    with pytest.raises(ValueError, match="n_resamples"):
        bootstrap(fitted(frame), frame, **ROLES, n_resamples=3)
    with pytest.raises(ValueError, match="lacks 'x1'"):
        bootstrap(fitted(frame), frame, **ROLES, features=["x0"])
    with pytest.raises(ValueError, match="random_state"):
        bootstrap(fitted(frame), frame, **ROLES, random_state=-1)


def test_ctrl_c_in_a_search_ends_with_the_refits_so_far(monkeypatch):
    frame = two_domains(np.random.default_rng(0), 40, 2)
    adapter = fitted(frame, divergence="likelihood")
    refit, calls = choose.fit_quietly, []

    def press(v):
        if len(calls) == 25 and v[0] != 1:
            raise KeyboardInterrupt
        return float(v @ v), 2 * v

    def interrupted(domains, recipe):
        calls.append(recipe)
        lbfgs(press, np.ones(1))
        return refit(domains, recipe)

    monkeypatch.setattr(choose, "fit_quietly", interrupted)
    with pytest.warns(UserWarning, match="errors come from 24 refits"):
        assert bootstrap(adapter, frame, **ROLES).n_resamples == 23


def test_a_map_refined_by_pairs_is_not_refitted_without_them(rng):
    X = rng.normal(size=(60, 2))
    domains = from_pair(X, 2 * X, None, None, None, None, None, "raise")
    adapter = ConDoAdapter().fit_pair(X, 2 * X, pairs=(range(60), range(60)))
    with pytest.raises(ValueError, match="refined by pairs"):
        bootstrap(adapter, domains, domain=None)


@pytest.mark.parametrize(
    ("look", "how"), [(bootstrap, {"n_resamples": 20}), (sensitivity, {"n_splits": 3})]
)
def test_features_are_found_by_name(look, how):
    df = datasets.make_eeg(100, 120, random_state=0).to_frame()
    names = [name for name in df.columns if name.startswith("eeg_")]
    roles = {"domain": "device", "confounders": ["seizure"]}
    adapter = ConDoAdapter(reference="v1").fit(df, **roles, features=names)
    plain, turned = (
        look(adapter, df, **roles, features=features, **how).features
        for features in (None, names[::-1])
    )
    assert plain["feature"] == turned["feature"] == names
    error = "scale_se" if look is bootstrap else "shift_errors"
    np.testing.assert_allclose(plain[error], turned[error], rtol=1e-9)
    with pytest.raises(ValueError, match="lacks"):
        look(adapter, df, **roles, features=names[1:])


def test_what_a_subject_has_in_both_domains_cancels():
    found = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        subject = np.tile(np.repeat(np.arange(20), 4), 2)
        frame = pd.DataFrame({"x": rng.normal(size=20)[subject] + 0.5 * rng.normal(size=160)})
        frame["domain"] = np.repeat(["query", "reference"], 80)
        roles = {"domain": "domain", "groups": subject}
        adapter = ConDoAdapter(shrinkage=None).fit(frame, **roles)
        bootstrap(adapter, frame, **roles, n_resamples=50)
        mapped, error = adapter.transform(frame[["x"]].iloc[:1] * 0, return_std=True)
        found.append((mapped.iloc[0, 0], error.iloc[0, 0]))
    mapped, error = np.array(found).T
    assert np.sqrt(np.mean(error**2)) == pytest.approx(mapped.std(), rel=0.4)


def test_lines_that_auto_did_not_bend_are_refitted_as_lines():
    rng = np.random.default_rng(0)
    X, Z = [rng.normal(size=(120, 1)) for _ in "qr"], [rng.choice(["F", "M"], 120) for _ in "qr"]
    domain = np.repeat(["query", "reference"], 120)
    roles = {"domain": domain, "confounders": np.concatenate(Z)}
    adapter = ConDoAdapter("auto").fit(np.vstack(X), **roles)
    assert adapter.map_.kind == "diagonal"
    found = bootstrap(adapter, np.vstack(X), n_resamples=20, **roles)
    assert found.errors.scale.shape == (1,)
