"""`map="monotone"`: known curves are recovered, lines are kept, and few rows fall back."""

import numpy as np
import pandas as pd
import pytest

from condokit import BatchAdapter, ConDoAdapter, Monotone, MonotoneMap, bootstrap, evaluate
from condokit.export import to_sql
from condokit.maps.formula import are_straight

SENSORS = {
    "asinh": lambda y: np.arcsinh(1.5 * y),
    "logistic": lambda y: 5 / (1 + np.exp(-1.3 * y)),
    "power": lambda y: np.maximum(y + 4, 0.1) ** 2 / 8,
    "line": lambda y: 1.3 * y + 0.5,
}


def draw(sensor, seed=0, n=500, kind="categorical", d=3):
    """Draw two domains with unequal confounders; the query is seen through a sensor."""
    rng = np.random.default_rng(seed)
    means, slope = rng.normal(size=(3, d)), rng.uniform(0.4, 0.9, d)

    def side(shares, centre, n):
        k, z = rng.choice(3, n, p=np.array(shares) / 6), rng.normal(centre, 1, n)
        if kind == "categorical":
            return means[k] + 0.8 * rng.normal(size=(n, d)), pd.DataFrame(
                {"k": [f"l{i}" for i in k]}
            )
        y = slope * z[:, None] + 0.8 * rng.normal(size=(n, d))
        return y, pd.DataFrame({"z": z})

    (yq, Zq), (yr, Zr), (yt, _) = (
        side(*how) for how in (((3, 2, 1), 0.5, n), ((1, 2, 3), -0.5, n), ((3, 2, 1), 0.5, 2000))
    )
    see = SENSORS[sensor]
    names = [f"f{j}" for j in range(d)]
    return (
        (pd.DataFrame(see(yq), columns=names), pd.DataFrame(yr, columns=names), Zq, Zr),
        see(yt),
        yt,
    )


def error(adapter, X, truth):
    X = pd.DataFrame(X, columns=adapter.feature_names_in_)
    return np.sqrt(np.mean((adapter.transform(X).to_numpy() - truth) ** 2 / truth.var(axis=0)))


@pytest.mark.filterwarnings("ignore:A curve is more likely")
@pytest.mark.parametrize("kind", ["categorical", "continuous"])
@pytest.mark.parametrize("sensor", ["asinh", "logistic", "power"])
def test_curves_are_found_where_lines_do_not_fit(sensor, kind):
    ratios = []
    for seed in range(3):
        rows, X, truth = draw(sensor, seed, kind=kind)
        curved, line = ConDoAdapter("monotone").fit_pair(*rows), ConDoAdapter().fit_pair(*rows)
        assert type(curved.map_) is MonotoneMap
        ratios.append(error(curved, X, truth) / error(line, X, truth))
    assert np.mean(ratios) < 0.8


@pytest.mark.parametrize("kind", ["categorical", "continuous"])
def test_lines_stay_lines(kind):
    rows, X, truth = draw("line", 1, kind=kind)
    curved, line = ConDoAdapter("monotone").fit_pair(*rows), ConDoAdapter().fit_pair(*rows)
    assert error(curved, X, truth) < 1.1 * error(line, X, truth)
    assert ConDoAdapter("auto").fit_pair(*rows).map_.kind == "diagonal"
    assert curved.report_["bent_features"] == []


def test_auto_bends_lines_on_evidence_only():
    rows, X, truth = draw("asinh", 2)
    auto, curved = ConDoAdapter("auto").fit_pair(*rows), ConDoAdapter("monotone").fit_pair(*rows)
    assert auto.map_.kind == "monotone"
    assert auto.report_["bent_features"] == ["f0", "f1", "f2"]
    assert auto.report_["chosen_map"] == auto.map_.provenance["map"] == "monotone"
    assert error(auto, X, truth) < 1.15 * error(curved, X, truth)


def test_intervals_of_mapped_values_hold_the_truth():
    held = []
    for seed in range(12):
        rows, X, truth = draw("asinh", seed, 400)
        adapter = ConDoAdapter("monotone").fit_pair(*rows)
        value, sd = adapter.transform(pd.DataFrame(X, columns=rows[0].columns), return_std=True)
        held.append(np.abs(value - truth) < 1.96 * sd)
        assert adapter.map_se_["values"].shape == adapter.map_.knots.shape
    assert 0.9 < np.mean(held) < 0.99


def test_the_map_is_inverted_saved_and_does_not_depend_on_units_or_the_order_of_rows(tmp_path):
    rows, X, _ = draw("logistic", 3)
    adapter = ConDoAdapter("monotone").fit_pair(*rows)
    X = pd.DataFrame(X, columns=rows[0].columns)
    mapped = adapter.transform(X)
    np.testing.assert_allclose(adapter.inverse_transform(mapped), X, atol=1e-9)
    adapter.map_.save(tmp_path / "map.json")
    np.testing.assert_array_equal(MonotoneMap.load(tmp_path / "map.json")(X), mapped)
    other = ConDoAdapter("monotone").fit_pair(7 * rows[0] + 5, 7 * rows[1] + 5, *rows[2:])
    np.testing.assert_allclose((other.transform(7 * X + 5) - 5) / 7, mapped, atol=1e-4)
    order = np.random.default_rng(0).permutation(len(rows[0]))
    turned = [part.iloc[order] for part in rows]
    again = ConDoAdapter("monotone").fit_pair(turned[0], rows[1], turned[2], rows[3])
    np.testing.assert_allclose(again.transform(X), mapped, atol=1e-6)


def test_few_rows_and_few_values_fall_back_to_lines(rng):
    rows, _, _ = draw("asinh", 0, 20)
    with pytest.warns(UserWarning, match="No curve can be learned"):
        adapter = ConDoAdapter("monotone").fit_pair(*rows)
    assert adapter.map_.kind == "diagonal"
    assert adapter.report_["fallback"] == "location-scale"
    rows, _, _ = draw("asinh", 0)
    counts = [
        rows[0].assign(f0=rng.integers(0, 3, 500)),
        rows[1].assign(f0=rng.integers(0, 3, 500)),
    ]
    adapter = ConDoAdapter("monotone").fit_pair(*counts, *rows[2:], features=["f0", "f1", "f2"])
    straight = np.diff(adapter.map_.values[0]) / np.diff(adapter.map_.knots[0])
    np.testing.assert_allclose(straight, straight[0])
    assert adapter.report_["bent"][0] == 0


def test_rounded_values_and_a_sensor_at_its_limit_give_increasing_curves():
    rows, X, truth = draw("asinh", 4)
    adapter = ConDoAdapter("monotone").fit_pair(rows[0].round(1), rows[1].round(1), *rows[2:])
    plain = ConDoAdapter("monotone").fit_pair(*rows)
    assert error(adapter, X, truth) < 1.2 * error(plain, X, truth)
    limited = rows[0].clip(upper=rows[0].quantile(0.9), axis=1)
    mapped = ConDoAdapter("monotone").fit_pair(limited, *rows[1:]).transform(limited)
    assert np.isfinite(mapped.to_numpy()).all()


def test_missing_values_weights_groups_links_and_shrinkage(rng):
    rows, X, truth = draw("power", 5)
    plain = ConDoAdapter("monotone").fit_pair(*rows)
    holes = rows[0].mask(rng.random(rows[0].shape) < 0.1)
    adapter = ConDoAdapter("monotone").fit_pair(holes, *rows[1:])
    assert error(adapter, X, truth) < 1.5 * error(plain, X, truth)
    twice = [np.full(500, 2.0)] * 2
    adapter = ConDoAdapter("monotone").fit_pair(*rows, sample_weight=twice)
    assert error(adapter, X, truth) < 1.2 * error(plain, X, truth)
    groups = [np.arange(500) // 2, 1000 + np.arange(500) // 2]
    adapter = ConDoAdapter("monotone").fit_pair(*rows, groups=groups)
    assert error(adapter, X, truth) < 2.0 * error(plain, X, truth)
    linked = ConDoAdapter(Monotone(links="log")).fit_pair(rows[0], np.exp(rows[1]), *rows[2:])
    assert (linked.transform(rows[0]).to_numpy() > 0).all()
    half = ConDoAdapter("monotone", shrinkage=0.5).fit_pair(*rows)
    none = ConDoAdapter("monotone", shrinkage=0.0).fit_pair(*rows)
    middle = (none.transform(rows[0]) + rows[0]) / 2
    np.testing.assert_allclose(half.transform(rows[0]), middle, atol=1e-9)


def test_other_divergences_and_kernels_are_refused(rng):
    rows, _, _ = draw("asinh", 0, 60)
    with pytest.raises(ValueError, match="Monotone"):
        ConDoAdapter("monotone", divergence="reverse-kl").fit_pair(*rows)


def test_resampling_agrees_with_the_formula_of_errors():
    rows, X, _ = draw("asinh", 6, 300)
    whole = pd.concat([rows[0], rows[1]], ignore_index=True)
    confounders = pd.concat([rows[2], rows[3]], ignore_index=True)
    table = whole.assign(k=confounders["k"], device=np.repeat(["new", "old"], 300))
    roles = {"domain": "device", "confounders": "k"}
    adapter = ConDoAdapter("monotone", reference="old").fit(table, **roles)
    known = adapter.map_se_["values"][:, 5:-5].mean()
    found = bootstrap(adapter, table, **roles, n_resamples=30)
    assert "change" in found.features.columns
    assert 0.4 < adapter.map_se_["values"][:, 5:-5].mean() / known < 1.6


def test_evaluate_tells_that_one_line_does_not_fit_all_strata():
    rng = np.random.default_rng(0)
    sex = rng.choice(["F", "M"], 1200)
    device = np.repeat(["new", "old"], 600)
    y = np.where(sex == "M", 2.0, -2.0) + 0.7 * rng.normal(size=1200)
    seen = np.where(device == "new", np.abs(y) - 0.3 * y, y)  # falls, then rises
    table = pd.DataFrame({"signal": seen, "sex": sex, "device": device})
    roles = {"domain": "device", "confounders": "sex"}
    adapter = ConDoAdapter("monotone", reference="old").fit(table, **roles)
    found = evaluate(adapter, table, **roles, n_permutations=39)
    assert found.verdict in ("cannot tell", "worse")
    assert any("does not fit all strata" in finding.text for finding in found.findings)
    assert {found.specification["lowest"][0], found.specification["highest"][0]} == {
        "sex = F",
        "sex = M",
    }
    right = table.assign(signal=np.where(device == "new", np.arcsinh(y), y))
    adapter = ConDoAdapter("monotone", reference="old").fit(right, **roles)
    assert evaluate(adapter, right, **roles, n_permutations=39).verdict == "better"


def test_many_batches_take_curves_along_paths():
    rng = np.random.default_rng(1)
    site = np.repeat(["A", "B", "C"], 300)
    sex = np.where(rng.random(900) < np.repeat([0.3, 0.5, 0.7], 300), "F", "M")
    y = np.where(sex == "F", 1.0, -0.5) + rng.normal(size=900)
    seen = np.select([site == "A", site == "B"], [y, np.arcsinh(2 * y)], np.sinh(0.7 * y))
    table = pd.DataFrame({"signal": seen, "site": site, "sex": sex})
    study = BatchAdapter(ConDoAdapter("monotone"), reference="A").fit(
        table, batch="site", confounders="sex"
    )
    mapped, sd = study.transform(table, batch="site", return_std=True)
    for label in "BC":
        mine = site == label
        assert study.maps_[label].kind == "monotone"
        before, after = (
            np.sqrt(np.mean((x - y[mine]) ** 2)) for x in (seen[mine], mapped["signal"][mine])
        )
        assert after < 0.5 * before
        assert np.isfinite(sd["signal"][mine]).all()


def test_features_without_evidence_of_a_curve_are_straight_and_exported_as_lines():
    (query, reference, *Z), X, _ = draw("line", 3, d=12)
    bent, _, _ = draw("asinh", 3, d=12)
    query["f4"] = bent[0]["f4"]
    found = ConDoAdapter("monotone").fit_pair(query, reference, *Z)
    assert found.report_["bent_features"] == ["f4"]
    assert are_straight(found.map_).tolist() == [j != 4 for j in range(12)]
    text = to_sql(found.map_, "t")
    assert text.count("CASE") == 1
    assert text.count("WHEN") == found.map_.knots.shape[1]


@pytest.mark.parametrize("kind", ["categorical", "continuous"])
def test_fits_of_lines_name_features_that_are_likely_curves(kind):
    (query, reference, *Z), *_ = draw("line", 4, kind=kind)
    ConDoAdapter().fit_pair(query, reference, *Z)  # and says nothing of straight ones
    query["f1"] = draw("asinh", 4, kind=kind)[0][0]["f1"]
    text = "A curve is more likely than a straight line for 'f1', .*Use"
    with pytest.warns(UserWarning, match=text):
        line = ConDoAdapter().fit_pair(query, reference, *Z)
    assert line.map_.kind == "diagonal"
    ConDoAdapter("monotone").fit_pair(query, reference, *Z)


@pytest.mark.filterwarnings("ignore:A curve is more likely")
@pytest.mark.parametrize("sensor", ["asinh", "logistic", "power"])
def test_the_error_of_a_line_has_what_a_curve_finds_beyond_it(sensor):
    shown, true = ({"location-scale": [], "monotone": []} for _ in range(2))
    verdicts = {kind: [] for kind in shown}
    for seed in range(3):
        (query, reference, *Z), X, truth = draw(sensor, seed)
        both = pd.concat([query.join(Z[0]), reference.join(Z[1])], ignore_index=True)
        both["device"] = np.repeat(["query", "reference"], 500)
        roles = {"domain": "device", "confounders": "k", "features": list(query)}
        for kind in shown:
            adapter = ConDoAdapter(kind).fit(both, **roles)
            found = evaluate(adapter, both, **roles, n_permutations=39)
            verdicts[kind].append(found.verdict)
            shown[kind].append(found.error_after)
            gap = adapter.map_(X) - truth
            true[kind].append(np.sqrt((gap**2 / reference.var().to_numpy()).mean()))
            if kind == "location-scale":
                assert any("not a straight line" in str(one.text) for one in found.findings)
    for kind in shown:  # without curves, that of lines was a third of the truth
        assert 1 / 1.6 < np.mean(shown[kind]) / np.mean(true[kind]) < 1.6
    assert verdicts["monotone"].count("better") >= 2
    assert np.mean(shown["monotone"]) < 0.8 * np.mean(shown["location-scale"])


def test_a_suspected_curve_of_many_rows_given_a_number_is_looked_at(monkeypatch):
    # equal variances are found from 20,000 of these rows, the curve is looked for in all
    monkeypatch.setattr("condokit.fit.fit_map.suspected", lambda *_: np.array([0]))
    z = np.random.default_rng(0).normal(size=(2, 13_000))
    query, reference = z + np.random.default_rng(1).normal(size=z.shape)
    adapter = ConDoAdapter().fit_pair(query[:, None], reference[:, None], z[0], z[1])
    assert adapter.map_.scale[0] == pytest.approx(1, abs=0.05)


def test_transform_of_a_matrix_finds_no_errors():
    rng = np.random.default_rng(0)
    query, reference = rng.normal(size=(2, 60, 2))
    adapter = ConDoAdapter("affine", divergence="ot").fit_pair(query, reference)
    adapter.transform(query)
    assert callable(vars(adapter.map_)["_errors"])
    assert adapter.transform(query, return_std=True)[1].shape == (60, 2)
