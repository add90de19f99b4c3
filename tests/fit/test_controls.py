"""Hidden causes that negative controls show."""

import warnings

import numpy as np
import pandas as pd
import pytest
from stories import run

from condokit import (
    AffineMap,
    BatchAdapter,
    ConDoAdapter,
    IdentifiabilityWarning,
    LocationScale,
    bootstrap,
    evaluate,
    sensitivity,
)
from condokit.export import to_python
from condokit.fit.controls import factor, parallel_rank


def study(seed=0, n=300, d=8, k=6, rank=1, noise=0.7, gain=1.0):
    """Return features moved by a hidden cause that controls show, and what they would be."""
    rng = np.random.default_rng(seed)
    query = np.arange(2 * n) < n
    sick = rng.random(2 * n) < np.where(query, 0.7, 0.3)
    hidden = rng.normal(size=(2 * n, rank)) + query[:, None]
    clean = np.outer(sick, rng.normal(size=d)) + rng.normal(size=(2 * n, d))
    X = clean + hidden @ rng.normal(size=(rank, d))
    X[query] /= gain
    C = hidden @ rng.choice([-1.0, 1.0], (rank, k)) * rng.uniform(0.7, 1.3, k)
    C += noise * rng.normal(size=C.shape)
    frame = pd.DataFrame(np.hstack([X, C]))
    frame.columns = [f"x{j}" for j in range(d)] + [f"ERCC-{j}" for j in range(k)]
    frame["sick"] = np.where(sick, "yes", "no")
    frame["domain"] = np.where(query, "query", "reference")
    return frame, clean[query]


FEATURES = {"domain": "domain", "features": ["x*", "ERCC-*"]}
ROLES = {**FEATURES, "confounders": ["sick"]}


def error(adapter, frame, truth):
    mapped = adapter.transform(frame[frame.domain == "query"])
    return np.sqrt(np.mean((mapped.filter(like="x").to_numpy() - truth) ** 2))


@pytest.mark.parametrize("rank", [1, 2])
def test_controls_take_off_what_confounders_do_not_know(rank):
    frame, truth = study(rank=rank, k=10)
    known = ConDoAdapter().fit(frame, **ROLES)
    alone = ConDoAdapter(controls=["ERCC-*"]).fit(frame, **FEATURES)
    assert alone.report_["control_factors"] == rank
    assert alone.map_.kind == "low-rank"
    assert alone.map_.left.shape[1] == rank
    assert error(alone, frame, truth) < 0.4 * error(known, frame, truth)


def test_a_conditional_map_follows():
    frame, truth = study(1, gain=1.6)
    both = ConDoAdapter(controls=["ERCC-*"]).fit(frame, **ROLES)
    assert both.map_.kind == "low-rank"
    alone = ConDoAdapter(controls=["ERCC-*"]).fit(frame, **FEATURES)
    assert error(both, frame, truth) < 0.7 * error(alone, frame, truth)
    dense = ConDoAdapter("affine", divergence="ot", controls=["ERCC-*"]).fit(frame, **ROLES)
    assert dense.map_.kind == "dense"
    assert error(dense, frame, truth) < 0.7 * error(alone, frame, truth)
    low_rank = ConDoAdapter("low-rank", controls=["ERCC-*"]).fit(frame, **ROLES)
    assert low_rank.map_.left.shape[1] == 3
    assert error(low_rank, frame, truth) < 0.7 * error(alone, frame, truth)


def test_the_map_is_the_one_of_the_formula():
    frame, _ = study(2, noise=0.4)
    adapter = ConDoAdapter(controls=["ERCC-*"]).fit(frame, **FEATURES)
    X, query = (
        frame[adapter.feature_names_in_].to_numpy(float),
        (frame.domain == "query").to_numpy(),
    )
    places = slice(8, 14)
    off = X - np.where(query[:, None], X[query].mean(axis=0), X[~query].mean(axis=0))
    # one factor in standard units, by maximum likelihood
    from sklearn.decomposition import FactorAnalysis

    unit = off[:, places].std(axis=0)
    fa = FactorAnalysis(1, tol=1e-10, max_iter=10_000).fit(off[:, places] / unit)
    L, noise = fa.components_[0], fa.noise_variance_
    G = L / noise / (L**2 / noise).sum() / unit
    alpha = (off[:, places] @ G) @ off[:, :8] / len(X)
    expected = X[query, :8] - np.outer(
        (X[query, places] - X[~query, places].mean(axis=0)) @ G, alpha
    )
    found = adapter.transform(frame[query]).to_numpy()
    np.testing.assert_allclose(found[:, :8], expected, atol=0.05)
    np.testing.assert_allclose(found[:, places].mean(axis=0), X[~query, places].mean(axis=0))
    np.testing.assert_allclose(found[:, places].std(axis=0), X[query, places].std(axis=0))


def test_factors_are_found_again():
    rng = np.random.default_rng(0)
    L = np.array([[0.8, 0.1], [0.7, 0.3], [0.6, -0.4], [0.5, 0.5], [0.9, 0.0], [0.4, -0.6]])
    noise = 1 - (L**2).sum(axis=1)
    found, own = factor(L @ L.T + np.diag(noise), 2)
    np.testing.assert_allclose(found @ found.T, L @ L.T, atol=1e-3)
    np.testing.assert_allclose(own, noise, atol=1e-3)
    scores = rng.normal(size=(500, 2)) @ L.T + np.sqrt(noise) * rng.normal(size=(500, 6))
    assert parallel_rank(scores) == 2
    assert np.mean([parallel_rank(rng.normal(size=(100, 6))) for _ in range(20)]) < 0.3


def test_noise_in_controls_does_not_weaken_what_is_taken_off():
    shifts = []
    for seed in range(4):
        frame, truth = study(seed, n=1000, noise=1.5)
        adapter = ConDoAdapter(controls=["ERCC-*"]).fit(frame, **FEATURES)
        mapped = adapter.transform(frame[frame.domain == "query"]).filter(like="x").to_numpy()
        shifts.append(np.abs(mapped.mean(axis=0) - truth.mean(axis=0)))
    assert np.mean(shifts) < 0.1  # of effects of one standard deviation


def test_a_cause_that_varies_more_in_a_domain_moves_features_no_more():
    rng = np.random.default_rng(9)
    query = np.arange(2000) < 1000
    hidden = rng.normal(size=2000) * np.where(query, 2.0, 0.7) + 2 * query
    X = hidden[:, None] * [1.0, -0.5] + rng.normal(size=(2000, 2))
    C = hidden[:, None] * [1.0, 0.8, 1.2, 0.9] + rng.normal(size=(2000, 4))
    domain = np.where(query, "query", "reference")
    adapter = ConDoAdapter(controls=[2, 3, 4, 5]).fit(np.hstack([X, C]), domain=domain)
    moved = adapter.map_.left[:2, 0]
    assert moved / moved[0] == pytest.approx([1.0, -0.5], abs=0.05)
    left = adapter.transform(np.hstack([X, C])[query])[:, :2].mean(axis=0)
    assert left == pytest.approx(X[~query].mean(axis=0), abs=0.15)


def test_the_map_is_frozen_exact_and_portable(tmp_path):
    frame, _ = study(3)
    adapter = ConDoAdapter(controls=["ERCC-*"]).fit(frame, **ROLES)
    new = frame[frame.domain == "query"][list(adapter.feature_names_in_)]
    mapped = adapter.transform(new)
    np.testing.assert_allclose(adapter.inverse_transform(mapped), new, atol=1e-9)
    adapter.map_.save(tmp_path / "map.json")
    loaded = AffineMap.load(tmp_path / "map.json")
    np.testing.assert_array_equal(loaded(new), mapped)
    assert "ERCC-*" in loaded.provenance["adapter"]["controls"]
    assert isinstance(to_python(loaded), bytes | str)


def test_errors_come_from_refits_and_evaluations_work():
    frame, truth = study(4, n=200, d=3)
    adapter = ConDoAdapter(controls=["ERCC-*"]).fit(frame, **ROLES)
    with pytest.raises(ValueError, match="bootstrap"):
        adapter.transform(frame, return_std=True)
    assert evaluate(adapter, frame, n_permutations=100, **ROLES).verdict == "better"
    found = sensitivity(adapter, frame, n_splits=0, **ROLES)
    assert found.left_out["without"] == ["sick"]
    assert len(found.bounds) == 9
    bootstrap(adapter, frame, n_resamples=30, **ROLES)
    mean = frame[frame.domain == "query"].mean(numeric_only=True).to_frame().T
    mapped, sd = adapter.transform(mean, return_std=True)
    off = (mapped.to_numpy()[0, :3] - truth.mean(axis=0)) / sd.to_numpy()[0, :3]
    assert np.abs(off).max() < 4


def test_controls_that_move_with_confounders_are_no_controls():
    frame, _ = study(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ConDoAdapter(controls=["ERCC-*"]).fit(frame, **ROLES)
    for j in range(6):
        frame[f"ERCC-{j}"] += 1.0 * (frame.sick == "yes")
    with pytest.warns(IdentifiabilityWarning, match="'sick'.* explain up to .* 6 of 6"):
        ConDoAdapter(controls=["ERCC-*"]).fit(frame, **ROLES)


def test_arrays_name_controls_by_position_and_weights_count_rows():
    frame, _ = study(6, n=100)
    X = frame.drop(columns=["sick", "domain"]).to_numpy()
    weights = np.random.default_rng(0).integers(1, 3, 200)
    again = np.repeat(np.arange(200), weights)
    one, two = (
        ConDoAdapter(controls=range(8, 14)).fit(X[rows], domain=frame.domain[rows], sample_weight=w)
        for rows, w in ((np.arange(200), weights), (again, None))
    )
    np.testing.assert_allclose(one.map_.A, two.map_.A, atol=1e-8)
    np.testing.assert_allclose(one.map_.b, two.map_.b, atol=1e-8)


def test_missing_values_of_other_features_are_kept():
    frame, truth = study(7)
    frame.loc[::5, "x0"] = np.nan
    adapter = ConDoAdapter(controls=["ERCC-*"]).fit(frame, **ROLES)
    mapped = adapter.transform(frame[frame.domain == "query"]).x0.to_numpy()
    known = np.isfinite(mapped)
    np.testing.assert_array_equal(known, frame.x0[frame.domain == "query"].notna())
    assert np.sqrt(np.mean((mapped - truth[:, 0])[known] ** 2)) < 0.6


@pytest.mark.parametrize(
    ("controls", "change", "message"),
    [
        (["ERCC-*", "x*"], {}, "names 14 of 14 features"),
        (["ERC-*"], {}, "names 'ERC-\\*', which the list of features does not have"),
        ([], {}, "names 0 of 14 features"),
        (["ERCC-0", "ERCC-1"], {"ERCC-1": 2.0}, "'ERCC-1' are constant"),
        (["ERCC-*"], {"ERCC-1": np.nan}, "must have values in all rows"),
        (["x0", "x1"], {"x0": np.random.default_rng(0).normal(size=600)}, "nothing in common"),
    ],
)
def test_what_is_refused(controls, change, message):
    frame, _ = study()
    for name, value in change.items():
        frame.loc[: 3 if np.isscalar(value) and np.isnan(value) else None, name] = value
    with pytest.raises(ValueError, match=message):
        ConDoAdapter(controls=controls).fit(frame, **FEATURES)


def test_what_does_not_go_with_controls_is_refused():
    frame, _ = study(n=40)
    some = frame.iloc[[0, 1, 2, 40, 41, 42]]
    with pytest.raises(ValueError, match="need 6 more rows"):
        ConDoAdapter(controls=["ERCC-*"]).fit(some, **FEATURES)
    positive = frame.assign(**{c: np.exp(frame[c]) for c in frame if c[:2] in ("x0", "ER")})
    linked = ConDoAdapter(LocationScale(links={"x0": "log"}), controls=["ERCC-*"])
    with pytest.raises(ValueError, match="do not go with links"):
        linked.fit(positive, **ROLES)
    many = BatchAdapter(ConDoAdapter(controls=["ERCC-*"]), reference="reference")
    with pytest.raises(ValueError, match="two domains"):
        many.fit(frame, batch="domain", confounders=["sick"], features=["x*", "ERCC-*"])


def test_the_command_line_takes_controls(tmp_path):
    frame, truth = study(8)
    for name, label in (("new", "query"), ("old", "reference")):
        frame[frame.domain == label].drop(columns="domain").to_csv(tmp_path / f"{name}.csv")
    given = [tmp_path / "new.csv", "--reference", tmp_path / "old.csv", "-f", "x*,ERCC-*"]
    made = ["-o", tmp_path / "map.json", "--report", tmp_path / "r.html", "--quiet"]
    assert run("fit", *given, "--controls", "ERCC-*", *made) == 0
    page = (tmp_path / "r.html").read_text()
    assert "What 6 negative controls have in common" in page
    assert "every difference between the two was removed" not in page
    assert "plain matching: differences" not in page
    assert "Estimates were shrunk" not in page
    found = AffineMap.load(tmp_path / "map.json")
    mapped = found(frame[frame.domain == "query"])[[f"x{j}" for j in range(8)]].to_numpy()
    assert np.sqrt(np.mean((mapped - truth) ** 2)) < 0.6
