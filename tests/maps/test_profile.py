"""At apply time: does new data look like what the map was fitted on?"""

import json
from dataclasses import replace

import numpy as np
import pytest

from condokit import AffineMap, ConDoAdapter, MapFileError, datasets
from condokit.io.documents import digest
from condokit.maps.profile import Profile


@pytest.fixture(scope="module")
def fitted():
    eeg = datasets.make_eeg(random_state=0)
    frame = eeg.to_frame()
    adapter = ConDoAdapter(reference="v1").fit(
        frame, domain="device", confounders=["seizure"], features=["eeg_*"]
    )
    return adapter, frame[frame["device"] == "v2"].copy()


def test_the_data_it_was_fitted_on_are_as_fitted(fitted):
    adapter, new = fitted
    assert adapter.map_.check(new).verdict == "as fitted"
    sheet = adapter.map_.check(new).features
    np.testing.assert_allclose(sheet["mean_moved_sd"], 0, atol=1e-12)
    np.testing.assert_allclose(sheet["sd_ratio"], 1)


def test_resampled_rows_raise_no_alarm(fitted, rng):
    adapter, new = fitted
    verdicts = [adapter.map_.check(new.iloc[rng.choice(len(new), 60)]).verdict for _ in range(50)]
    assert verdicts.count("as fitted") >= 47


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (lambda x: x + 3 * x.std(), "mean moved"),
        (lambda x: x.mean() + 3 * (x - x.mean()), "spread changed"),
        (lambda x: x.where(np.arange(len(x)) % 2 == 0), "more missing"),
        (lambda x: x.where(np.arange(len(x)) > 0, 1e6), "values far away"),
        (lambda x: x.where(np.arange(len(x)) > 0, np.inf), "infinite values"),
        (lambda x: x * np.nan, "no values"),
    ],
)
def test_changes_are_noticed(fitted, change, note):
    adapter, new = fitted
    new = new.assign(eeg_alpha_F3=change(new["eeg_alpha_F3"]))
    found = adapter.map_.check(new)
    assert found.verdict == "look"
    notes = dict(zip(found.features["feature"], found.features["note"]))
    assert note in notes.pop("eeg_alpha_F3")
    assert not any(notes.values())
    assert note in repr(found)
    assert "eeg_alpha_F3" in found._repr_html_()


def test_columns_missing_or_unknown_are_reported_not_refused(fitted):
    adapter, new = fitted
    found = adapter.map_.check(new.drop(columns="eeg_delta_F3"))
    assert found.verdict == "stop"
    assert found.missing_columns == ["eeg_delta_F3"]
    assert found.extra_columns == ["device", "seizure", "depression"]
    assert adapter.map_.check(new.iloc[:, 3:5].to_numpy()).verdict == "stop"


def test_a_map_from_elsewhere_has_nothing_to_compare_with():
    assert AffineMap([1.0], [0.0]).check([[1.0]]).verdict == "unknown"


def test_the_file_remembers(fitted, tmp_path):
    adapter, new = fitted
    adapter.map_.save(tmp_path / "map.json")
    loaded = AffineMap.load(tmp_path / "map.json")
    assert loaded == adapter.map_
    assert loaded.fitted_on.matches(adapter.map_.fitted_on)
    one, other = (map.check(new).features for map in (loaded, adapter.map_))  # up to rounding
    np.testing.assert_allclose(one["mean_moved_sd"], other["mean_moved_sd"], atol=0.06)
    np.testing.assert_allclose(one["sd_ratio"], other["sd_ratio"], rtol=0.06)
    assert loaded.check(new).verdict == adapter.map_.check(new).verdict


def test_rounded_moments_of_files_are_no_drift(tmp_path):
    rng, alarms = np.random.default_rng(0), 0
    for k in range(20):
        X = rng.normal(rng.normal(), 1.04, size=(3000, 3))
        adapter = ConDoAdapter().fit_pair(X[:1500], X[1500:] + 1)
        adapter.map_.save(tmp_path / f"{k}.json")
        fresh = rng.normal(X.mean(axis=0), 1.04, size=(5000, 3))
        alarms += AffineMap.load(tmp_path / f"{k}.json").check(fresh).verdict != "as fitted"
        assert AffineMap.load(tmp_path / f"{k}.json").check(fresh + 1).verdict == "look"
    assert alarms <= 3


def test_a_file_holds_no_value_of_a_row_and_tells_none_by_subtraction(rng):
    X = rng.normal(50, 7.3, (400, 60))
    found, rest = (Profile.of(rows, len(rows)) for rows in (X, X[1:]))
    assert np.isin(found.low, X).all()
    told = found.to_dict()
    for name in ("mean", "low", "high"):
        assert not np.isin(told[name], X).any()
    assert (np.array(told["low"]) <= found.low).all()
    assert (np.array(told["high"]) >= found.high).all()
    guess = 400 * np.array(told["mean"]) - 399 * np.array(rest.to_dict()["mean"])
    exact = 400 * found.mean - 399 * rest.mean
    np.testing.assert_allclose(exact, X[0], rtol=1e-9)
    assert ((guess - X[0]) ** 2).mean() > ((50 - X[0]) ** 2).mean()
    again = Profile.from_dict({k: np.array(v) if k != "n_rows" else v for k, v in told.items()})
    assert again.to_dict() == told
    assert again.matches(found)
    assert not again.matches(Profile.of(X + 2.0, 400))


@pytest.mark.parametrize("damage", [3, {"n_rows": 1}, {"mean": ["x"]}, {"n_rows": -1}])
def test_a_damaged_profile_is_refused(fitted, tmp_path, damage):
    adapter, _ = fitted
    path = tmp_path / "map.json"
    adapter.map_.save(path)
    content = json.loads(path.read_text())
    if isinstance(damage, dict):
        profile = dict(content["fitted_on"])
        profile = (
            {**profile, **damage} if "n_rows" not in damage or damage["n_rows"] < 0 else damage
        )
        content["fitted_on"] = profile
    else:
        content["fitted_on"] = damage
    path.write_text(json.dumps({**content, "sha256": digest(content)}))
    with pytest.raises(MapFileError, match="fitted_on"):
        AffineMap.load(path)


def test_values_far_beyond_a_profile_do_not_overflow():
    profile = Profile(200, np.array([1e300]), np.array([1e-5]), np.zeros(1))
    found = AffineMap([1.0], [0.0], fitted_on=profile).check(np.ones((9, 1)))
    assert found.verdict == "look"
    assert found.features["note"][0].startswith("values far away")


def test_no_single_row_can_be_read_off_a_profile(rng):
    X = rng.normal(size=(200, 2))
    profile = Profile.of(X, 200)
    np.testing.assert_array_equal(profile.low, np.sort(X, axis=0)[4])
    np.testing.assert_array_equal(profile.high, np.sort(X, axis=0)[-5])
    assert Profile.of(X[:50], 50).low is None


def test_a_profile_knows_moments_around_gaps(rng):
    X = rng.normal(5, 2, size=(300, 2))
    X[::3, 1] = np.nan
    profile = Profile.of(X, 300)
    np.testing.assert_allclose(profile.mean, np.nanmean(X, axis=0))
    np.testing.assert_allclose(profile.sd, np.nanstd(X, axis=0, ddof=1))
    np.testing.assert_allclose(profile.missing, [0, 1 / 3])


def test_figures_of_a_few_rows_are_not_shown(rng, tmp_path):
    X = rng.normal(size=(3, 2))
    with pytest.warns(UserWarning, match="guesses"):
        affine = ConDoAdapter().fit_pair(X, rng.normal(size=(50, 2))).map_
    affine.save(tmp_path / "map.json")
    assert AffineMap.load(tmp_path / "map.json").fitted_on.to_dict()["mean"] == [None, None]
    assert AffineMap.load(tmp_path / "map.json").check(X).verdict == "unknown"
    whole = ConDoAdapter().fit_pair(rng.normal(size=(50, 2)), rng.normal(size=(50, 2))).map_
    assert whole.check(X).features["mean_moved_sd"] == [None, None]
    assert "values far away" in whole.check(X + 100).features["note"][0]


# false alarms, and real drifts

LAWS = {
    "normal": lambda rng, size: rng.normal(10, 1, size=size),
    "correlated": lambda rng, size: rng.normal(size=size) + 2 * rng.normal(size=(size[0], 1)),
    "heavy": lambda rng, size: rng.standard_t(3, size=size),
    "skewed": lambda rng, size: np.exp(rng.normal(size=size)),
    "count": lambda rng, size: rng.poisson(2, size=size).astype(float),
    "rare": lambda rng, size: (rng.random(size) < 0.02).astype(float),
    "gaps": lambda rng, size: np.where(rng.random(size) < 0.2, np.nan, rng.normal(size=size)),
}


def checked(X, new, older=False):
    profile = Profile.of(X, len(X))
    if older:
        profile = replace(profile, tails=None)
    d = X.shape[1]
    return AffineMap(np.ones(d), np.zeros(d), fitted_on=profile).check(new).verdict


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("law", list(LAWS))
def test_fresh_rows_of_the_same_law_raise_no_alarm(law, older, rng):
    draw, verdicts = LAWS[law], []
    for n_fit in (30, 200, 1000):
        for d in (1, 10, 100):
            for n in (1, 5, 20, 200):
                for _ in range(3):
                    X, new = draw(rng, (n_fit, d)), draw(rng, (n, d))
                    verdicts.append(checked(X, new, older))
    assert len(verdicts) == 108
    assert verdicts.count("look") <= 8  # more than 8 of 108 have a chance of 8% at a level of 5%


@pytest.mark.parametrize("law", ["normal", "heavy"])
def test_real_drifts_are_told(law, rng):
    for d in (1, 10, 100):
        X, new = LAWS[law](rng, (400, d)), LAWS[law](rng, (20, d))
        moved = [checked(X, LAWS[law](rng, (20, d)) + 1.5 * X.std(axis=0)) for _ in range(5)]
        stuck, broken = new.copy(), new.copy()
        stuck[:, 0], broken[:, 0] = new[0, 0], -999
        assert moved.count("look") >= 4
        assert checked(X, 10 * new) == checked(X, stuck) == checked(X, broken) == "look"
        assert checked(X, broken[:1]) == "look"


def test_files_tell_how_heavy_tails_are_and_nothing_of_single_rows(rng):
    X = rng.normal(size=(2000, 4))
    X[:, 1] = rng.standard_t(2, size=2000)
    X[:, 2] = rng.integers(0, 2, size=2000)
    before = Profile.of(X, 2000).tails
    assert before[0] > 8
    assert before[1:3].tolist() == [3, 1]
    X[0, 1] *= 1e6
    np.testing.assert_array_equal(Profile.of(X, 2000).tails, before)
    older = replace(Profile.of(X, 2000), tails=None).to_dict()
    assert "tails" not in older
