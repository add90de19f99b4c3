"""Statistics give the maps that rows give."""

import numpy as np
import pandas as pd
import pytest

from condokit import BatchAdapter, ConDoAdapter, PooledLikelihood, Statistics

FEATURES = [f"f{j}" for j in range(5)]
ROLES = {"domain": "device", "confounders": ["group", "sex"], "features": FEATURES}


def make(n=1500, seed=0, tails=None, tied=True):
    rng = np.random.default_rng(seed)
    group, sex = rng.integers(0, 3, n), rng.integers(0, 2, n)
    query = rng.random(n) < np.where(group == 0, 0.7, 0.3)
    noise = rng.normal(size=(n, 5)) if tails is None else rng.standard_t(tails, (n, 5))
    X = noise @ (np.eye(5) + 0.3 * rng.normal(size=(5, 5)))
    X += group[:, None] * np.linspace(0, 2, 5) + sex[:, None]
    if tied:
        X[:, 4] = np.where(rng.random(n) < 0.3, 0.0, X[:, 4])
    X = np.where(query[:, None], 1.3 * X + 2, X)
    frame = pd.DataFrame(X, columns=FEATURES)
    frame["group"], frame["sex"] = np.array(["a", "b", "c"])[group], np.array(["m", "w"])[sex]
    return frame.assign(device=np.where(query, "new", "old"))


def adapter(**settings):
    return ConDoAdapter(reference="old", **settings)


def assert_same(one, other, rtol=1e-9):
    names = list(one.feature_names_in_)
    turn = [list(other.feature_names_in_).index(name) for name in names]
    for name in ("scale", "offset"):
        left, right = getattr(one.map_, name), getattr(other.map_, name)[turn]
        np.testing.assert_allclose(right, left, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(other.map_se_[name][turn], one.map_se_[name], rtol=10 * rtol)


def in_standard_errors(one, other):
    return max(
        np.abs((getattr(one.map_, n) - getattr(other.map_, n)) / one.map_se_[n]).max()
        for n in ("scale", "offset")
    )


@pytest.fixture(scope="module")
def frame():
    return make()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shrinkage": None},
        {"divergence": "reverse-kl"},
        {"divergence": "ot"},
        {"prior": "overlap", "divergence": "forward-kl"},
        {"map": "shift", "divergence": PooledLikelihood("normal")},
    ],
)
def test_statistics_tell_what_rows_tell(frame, settings):
    whole = adapter(**settings).fit(frame, **ROLES)
    assert_same(whole, adapter(**settings).fit_statistics(Statistics.of(frame, **ROLES)))


@pytest.mark.parametrize("seed", range(4))
def test_neither_chunks_nor_their_order_matter(frame, seed):
    rng = np.random.default_rng(seed)
    mixed = frame.iloc[rng.permutation(len(frame))]
    edges = np.sort(rng.integers(0, len(frame), rng.integers(1, 9)))
    parts = [mixed.iloc[a:b] for a, b in zip([0, *edges], [*edges, len(frame)]) if b > a]
    turned = {**ROLES, "confounders": ["sex", "group"], "features": FEATURES[::-1]}
    gathered = [Statistics.of(p, **(turned if i % 2 else ROLES)) for i, p in enumerate(parts)]
    whole = adapter().fit(frame, **ROLES)
    assert_same(whole, adapter().fit_statistics(gathered))
    growing = Statistics.of(parts[0], **ROLES)
    for part in parts[1:]:
        growing.update(part)
    growing.update(frame.iloc[:0])
    assert_same(whole, adapter().fit_statistics(growing))
    step = adapter()
    for part in parts:
        step.partial_fit(part, **ROLES)
    assert_same(whole, step)


def test_a_file_tells_the_same(frame, tmp_path):
    stats = Statistics.of(frame, **ROLES)
    stats.save(tmp_path / "stats.json")
    again = Statistics.load(tmp_path / "stats.json")
    rows, found = adapter().fit(frame, **ROLES), adapter().fit_statistics(again)
    assert 0 < in_standard_errors(rows, found) < 0.15  # numbers are rounded


def test_missing_values_and_weights(frame):
    rng = np.random.default_rng(5)
    gaps = frame.copy()
    gaps.loc[rng.random(len(gaps)) < 0.2, "f1"] = np.nan
    gaps.loc[rng.random(len(gaps)) < 0.4, "f2"] = np.nan
    whole = adapter().fit(gaps, **ROLES)
    found = adapter().fit_statistics(Statistics.of(gaps, **ROLES))
    assert in_standard_errors(whole, found) < 2e-3
    assert found.report_["missing_features"] == whole.report_["missing_features"]
    weight = rng.integers(1, 4, len(frame)).astype(float)
    whole = adapter().fit(frame, **ROLES, sample_weight=weight)
    found = adapter().fit_statistics(Statistics.of(frame, **ROLES, sample_weight=weight))
    assert_same(whole, found)


def test_arrays_without_names():
    frame = make(400)
    X, other = frame[FEATURES].to_numpy(), frame[["group", "sex"]]
    whole = adapter().fit(X, domain=frame["device"], confounders=other)
    new = frame["device"] == "new"
    parts = [
        Statistics.of(X[mine], label=label, confounders=other[mine])
        for label, mine in (("new", new), ("old", ~new))
    ]
    found = adapter().fit_statistics(parts)
    np.testing.assert_allclose(found.map_.scale, whole.map_.scale, rtol=1e-9)
    assert found.transform(X[:3]).shape == (3, 5)


@pytest.mark.parametrize("tails", [2.5, 4.0])
def test_heavy_tails_take_a_second_round(tails, tmp_path):
    frame = make(3000, tails=tails, tied=False)
    whole = adapter().fit(frame, **ROLES)
    stats = Statistics.of(frame, **ROLES)
    with pytest.warns(UserWarning, match="Heavy tails, fitted as if they were normal"):
        first = adapter().fit_statistics(stats)
    normal = adapter(divergence=PooledLikelihood("normal")).fit(frame, **ROLES)
    assert_same(normal, first)
    assert in_standard_errors(whole, first) > 0.3
    again = Statistics.of(frame, **ROLES, given=first)
    assert in_standard_errors(whole, adapter().fit_statistics(again)) < 0.02
    new = frame["device"] == "new"
    for label, mine in (("new", new), ("old", ~new)):
        Statistics.of(frame[mine], **ROLES, given=first.map_).save(tmp_path / f"{label}.json")
    files = [Statistics.load(tmp_path / f"{label}.json") for label in ("old", "new")]
    assert (
        in_standard_errors(whole, adapter().fit_statistics(files)) < 0.35
    )  # groups of five rows or more


def test_many_rows_with_heavy_tails_are_binned(monkeypatch):
    frame = make(2500, tails=3.0, tied=False)
    weight = np.random.default_rng(0).integers(1, 3, len(frame)).astype(float)
    for given in (None, weight):
        rows = adapter().fit(frame, **ROLES, sample_weight=given)
        with monkeypatch.context() as few:
            few.setattr("condokit.summaries.rows.MANY_ROWS", 1000)
            bins = adapter().fit(frame, **ROLES, sample_weight=given)
        assert rows.report_["heavy_tailed_features"] == bins.report_["heavy_tailed_features"]
        assert len(rows.report_["heavy_tailed_features"]) > 2
        assert 0 < in_standard_errors(rows, bins) < 0.03


def test_many_batches(frame):
    rng = np.random.default_rng(1)
    new = np.where(rng.random(len(frame)) < 0.5, "n1", "n2")
    frame = frame.assign(device=np.where(frame["device"] == "new", new, "old"))
    roles = {**ROLES, "features": FEATURES[:4]}
    stats = [Statistics.of(part, **roles) for _, part in frame.groupby("device")]
    found = BatchAdapter(reference="old").fit_statistics(stats)
    roles["batch"] = roles.pop("domain")
    whole = BatchAdapter(reference="old").fit(frame, **roles)
    for label in ("n1", "n2"):
        away = (found.maps_[label].scale - whole.maps_[label].scale) / whole.errors_[label].scale
        assert np.abs(away).max() < 0.1
    assert found.reference_ == "old"
    consensus = BatchAdapter(reference="consensus").fit_statistics(stats)
    assert set(consensus.maps_) == {"n1", "n2", "old"}


def test_many_batches_with_heavy_tails():
    frame = make(6000, tails=3.0, tied=False)
    new = np.where(np.arange(len(frame)) % 2, "n1", "n2")
    frame = frame.assign(device=np.where(frame["device"] == "new", new, "old"))
    with pytest.warns(UserWarning, match="Heavy tails, fitted as if they were normal"):
        first = BatchAdapter(reference="old").fit_statistics(Statistics.of(frame, **ROLES))
    again = Statistics.of(frame, **ROLES, given=first)
    second = BatchAdapter(reference="old").fit_statistics(again)
    roles = {**ROLES, "batch": "device"}
    del roles["domain"]
    whole = BatchAdapter(reference="old").fit(frame, **roles)
    away = [
        np.abs((found.maps_["n1"].scale - whole.maps_["n1"].scale) / whole.errors_["n1"].scale)
        for found in (first, second)
    ]
    assert away[0].max() > 0.5
    assert away[1].max() < 0.1


def test_matrices_of_few_features_come_from_covariances():
    frame, settings = make(4000, tied=False), {"map": "affine", "divergence": "ot"}
    whole = adapter(**settings).fit(frame, **ROLES)
    stats = [Statistics.of(frame.iloc[i::3], **ROLES) for i in range(3)]
    found = adapter(**settings).fit_statistics(stats)
    assert whole.map_.kind == found.map_.kind == "dense"
    np.testing.assert_allclose(found.map_.A, whole.map_.A, atol=2e-4)
    np.testing.assert_allclose(found.map_.offset, whole.map_.offset, atol=2e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"map": "orthogonal", "divergence": "energy"},
        {"map": "monotone"},
        {"divergence": "mmd"},
        {"map": "low-rank"},
    ],
)
def test_what_needs_rows_is_refused(frame, settings):
    with pytest.raises(ValueError, match="single rows, which statistics do not contain"):
        adapter(**settings).fit_statistics(Statistics.of(frame, **ROLES))


@pytest.mark.filterwarnings("ignore")
def test_parts_that_do_not_go_together(frame):
    stats = Statistics.of(frame, **ROLES)
    fewer = Statistics.of(frame, **{**ROLES, "features": FEATURES[:3]})
    with pytest.raises(ValueError, match="different features.*f3.*in one part only"):
        stats.merge(fewer)
    with pytest.raises(ValueError, match="'sex' is categorical in one part and absent"):
        stats.merge(Statistics.of(frame, **{**ROLES, "confounders": ["group"]}))
    with pytest.raises(ValueError, match="list it in `categorical`.*otherwise.*in `ranges`"):
        Statistics.of(frame.assign(age=np.arange(len(frame))), **{**ROLES, "confounders": ["age"]})
    with pytest.raises(ValueError, match="either 'domain'.*or 'label'"):
        Statistics.of(frame[FEATURES])
    with pytest.raises(ValueError, match="takes Statistics, or a list of them. Got nothing"):
        adapter().fit_statistics([])
    with pytest.raises(ValueError, match="exactly two labels"):
        adapter().fit_statistics(Statistics.of(frame[frame["device"] == "old"], **ROLES))
    large = frame.assign(f0=np.where(frame["device"] == "new", 1e5 * frame["f0"], frame["f0"]))
    with pytest.warns(UserWarning, match="f0.*in the same units|Scales far from one"):
        adapter().fit_statistics(Statistics.of(large, **ROLES))
    spelled = frame.assign(
        sex=np.where((frame["device"] == "new") & (frame["sex"] == "w"), "woman", frame["sex"])
    )
    with pytest.warns(UserWarning, match="'w' and 'woman'"):
        adapter().fit_statistics(Statistics.of(spelled, **ROLES))
