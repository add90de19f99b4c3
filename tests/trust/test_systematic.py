"""How far values are systematically off: known answers, limits, and maps of all kinds."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from reading import from_table
from scipy.stats import norm
from stories import ROLES, truth, two_domains

from condokit import AffineMap, ConDoAdapter, datasets, evaluate
from condokit.compare.comparison import compare
from condokit.data.links import apply, steps, undo
from condokit.maps.families import LocationScale
from condokit.solvers.solution import Solution
from condokit.trust.blocks import ComparableRows
from condokit.trust.mixing import mixing
from condokit.trust.systematic import SystematicError, _believed, _of_gain, _squares, limits


def belief(rng, d=3):
    scale, se = np.exp(0.2 * rng.normal(size=d)), 0.1 + rng.random((2, d))
    sds = {"se_log_scale": 0.05 * se[0], "se_image": se[1]}
    return Solution(scale, rng.normal(size=d), rng.normal(size=d), **sds)


def draws(rng, solution, n):
    """Return images and scales as far as they are linear in the logarithm."""
    for _ in range(n):
        noise = rng.normal(size=(2, len(solution.scale)))
        scale = solution.scale * (1 + solution.se_log_scale * noise[0])
        yield replace(solution, scale=scale, image=solution.image + solution.se_image * noise[1])


def test_squares_and_gains_are_those_of_drawn_maps(rng):
    solution, x = belief(rng), rng.normal(size=(40, 3))
    h = 0.7 * x + 0.2
    p, s = _believed(solution, x)
    squares, gains = [], []
    for drawn in draws(rng, solution, 20_000):
        g = drawn.image + drawn.scale * (x - drawn.centre)
        squares.append(((g - h) ** 2).mean(axis=0))
        gains.append(((g - x) ** 2).mean(axis=0) - squares[-1])
    means, (_, variance) = _squares(p, x, h, (s**2).mean(axis=0))
    expected = means[1]
    assert np.mean(squares, axis=0) == pytest.approx(expected, rel=0.03)
    # as if all rows went together: an upper limit, nearly reached by shifts
    assert (np.var(squares, axis=0) < 1.05 * variance).all()
    assert np.mean(gains, axis=0) == pytest.approx(means[2], abs=0.03)
    assert np.var(gains, axis=0) == pytest.approx(_of_gain(solution, x, h), rel=0.05)


def test_limits_are_those_of_the_distribution():
    one = np.ones(1)
    square = SystematicError(one, one, 4 * one, np.array([0 * one, 32 * one, one]), 1.0, one[:0])
    size, (low, high) = square.rms(1)
    assert size == 2.0
    limits = 2 * norm.ppf([0.5125, 0.9875])  # of twice the size of a normal number
    assert [low, high] == pytest.approx(limits, rel=1e-6)
    assert square.rms(0) == (1.0, (1.0, 1.0))
    assert square.gain == pytest.approx((-3 - 1.645, -3 + 1.645))


@pytest.mark.parametrize("chance", [0.02, 0.1, 0.5, 0.96, 1.0])
def test_limits_are_those_of_devices_that_may_be_alike(rng, chance):
    n, alike = 200_000, 0.09
    some = 3 * rng.chisquare(4, n) / 4  # whose variance is half of its square
    drawn = np.where(rng.random(n) < chance, some, alike)
    mean = 3 * chance + alike * (1 - chance)
    low, high = limits(np.array([mean]), np.array([mean**2 / 2]), chance, np.array([alike]))
    assert [low[0], high[0]] == pytest.approx(np.quantile(drawn, [0.025, 0.975]), rel=0.02)


def test_a_large_fall_is_enough_if_data_alone_are_sure():
    one, none = np.ones(1), np.empty(0, dtype=np.intp)

    def is_lowered(after, sd, told, told_sd):
        plain = told * one, told_sd**2 * one, one
        variances = np.array([one, one, sd**2 * one])
        return SystematicError(one, one, after * one, variances, 1.0, none, plain).is_lowered

    assert is_lowered(0.9, 0.05, 0.1, 1.0)  # believed at its limit
    assert is_lowered(0.3, 0.5, 0.9, 0.5)
    assert not is_lowered(0.31, 0.5, 0.9, 0.5)
    assert not is_lowered(0.3, 0.5, 0.9, 0.6)
    known = SystematicError(one, one, 0.3 * one, np.array([one, one, 0.25 * one]), 1.0, none)
    assert not known.is_lowered  # nothing but what is believed


@pytest.mark.parametrize("share", [0.0, 0.8, 1.0, 2.0])
def test_the_error_of_a_given_map_is_its_distance_to_the_truth(rng, share):
    data = two_domains(rng, 2000, 2)
    scale = 1 + share
    found = evaluate(AffineMap([scale] * 2, [share] * 2), data, **ROLES, n_permutations=39)
    query, unit = data.loc[data["domain"] == "query", ["x0", "x1"]].to_numpy(), None
    unit = data.loc[data["domain"] == "reference", ["x0", "x1"]].std(ddof=0).to_numpy()
    true = truth(2)(query)
    sizes = [
        np.sqrt((((value - true) / unit) ** 2).mean()) for value in (query, scale * query + share)
    ]
    assert found.error_before == pytest.approx(sizes[0], abs=0.05)
    assert found.error_after == pytest.approx(sizes[1], abs=0.07)
    low, high = found.error_after_interval
    assert low <= found.error_after <= high
    assert found.verdict == {0.0: "cannot tell", 2.0: "cannot tell"}.get(share, "better")
    in_units = np.array(found.features["error_before"]) * unit
    assert found.features["error_before_unit"] == pytest.approx(in_units)


def test_a_map_that_doubles_the_error_is_worse(rng):
    data = two_domains(rng, 500, 2)
    found = evaluate(AffineMap([0.3] * 2, [-2.0] * 2), data, **ROLES, n_permutations=39)
    assert found.verdict == "worse"
    assert found.sentence.startswith("Worse: a value is systematically off by about")


def test_equal_domains_need_no_change(rng):
    data = two_domains(rng, 3000, 3)
    query = data["domain"] == "query"
    data.loc[query, ["x0", "x1", "x2"]] = 2 * data.loc[query, ["x0", "x1", "x2"]] + 1
    found = evaluate(ConDoAdapter().fit(data, **ROLES), data, **ROLES, n_permutations=39)
    assert found.verdict == "no change needed"
    assert found.error_before_interval[1] < 0.1


@pytest.mark.parametrize("options", [{"divergence": "ot"}, {"divergence": "mmd"}])
def test_a_matrix_is_judged_by_its_own_errors(rng, options):
    data = two_domains(rng, 300, 2)
    adapter = ConDoAdapter("affine", **options).fit(data, **ROLES)
    found = evaluate(adapter, data, **ROLES, n_permutations=39)
    assert found.verdict == "better"
    assert found.error_after < 0.5 * found.error_before
    alone = evaluate(adapter.map_, data, **ROLES, n_permutations=39)
    assert (alone.verdict, alone.error_after) == ("better", found.error_after)
    few = data.groupby(["domain", "sick"]).head(2)
    assert "no error of the map is known" in evaluate(adapter.map_, few, **ROLES).doubts


def mixed(rng, n, entry):
    """Return two domains of a category, where the true map adds `entry` of x1 to x0."""
    parts, mean = [], rng.normal(size=(3, 2))
    for is_query in (True, False):
        level = rng.choice(3, n, p=[0.5, 0.3, 0.2] if is_query else [0.2, 0.3, 0.5])
        x = mean[level] + rng.normal(size=(n, 2)) @ np.array([[1.0, 0.3], [0.0, 1.0]])
        x[:, 0] -= entry * x[:, 1] * is_query
        part = pd.DataFrame(x, columns=["x0", "x1"]).assign(level=level.astype(str))
        parts.append(part.assign(domain="query" if is_query else "reference"))
    return pd.concat(parts, ignore_index=True)


def test_what_a_matrix_would_find_is_in_the_error_of_lines(rng):
    roles = {"domain": "domain", "confounders": "level", "features": ["x0", "x1"]}
    same = AffineMap([1.0, 1.0], [0.0, 0.0])
    for entry in (0.0, 0.3):
        data = mixed(rng, 1000, entry)
        x = data.loc[data["domain"] == "query", "x1"] * entry
        unit = data.loc[data["domain"] == "reference", "x0"].std()
        actual = np.sqrt((x.to_numpy() ** 2).mean() / 2) / unit  # mean over both features
        found = evaluate(same, data, **roles, n_permutations=39)
        low, high = found.error_after_interval
        assert low <= actual <= high or high < 0.1
        assert found.error_after == pytest.approx(actual, abs=0.06)


def test_entries_that_are_found_have_their_errors(rng):
    true, off = 0.2, []
    for _ in range(40):
        data = mixed(rng, 300, true)
        study = from_table(data, "domain", "level", ["x0", "x1"])
        same = AffineMap([1.0, 1.0], [0.0, 0.0])
        rows = ComparableRows.of(study, compare(study, quiet=True), same)
        one = mixing(rows, rows.after)[1][-1]  # of the widest prior, which hardly pulls
        off.append((one.mean[0, 1] - true) / np.sqrt(one.cov[0, 1, 1]))
    assert abs(np.mean(off)) < 0.5
    assert 0.7 < np.std(off) < 1.3


def test_links_are_judged_where_the_map_is_a_line(rng):
    data = two_domains(rng, 300, 2)
    for name in ("x0", "x1"):
        data[name] = np.exp(data[name])
    adapter = ConDoAdapter(LocationScale(links={"x0": "log", "x1": "log"})).fit(data, **ROLES)
    found = evaluate(adapter, data, **ROLES, n_permutations=39)
    assert found.verdict == "better"


def test_errors_of_linked_features_are_in_their_units(rng):
    z, new = rng.normal(0, 0.5, size=(600, 2)), np.repeat([True, False], 300)
    true = 80 * np.exp(z)
    X = np.where(new[:, None], true * [1.2, 0.9], true)
    adapter = ConDoAdapter(LocationScale(links="log")).fit_pair(X[new], X[~new])
    tolerance = {"column 0": 8.0, "column 1": 0.5}
    found = evaluate(adapter, X[new], X[~new], n_permutations=39, tolerance=tolerance)
    actual = np.sqrt(((X - true)[new] ** 2).mean(axis=0))
    np.testing.assert_allclose(found.features["error_before_unit"], actual, rtol=0.3)
    left = np.sqrt(((adapter.transform(X[new]) - true[new]) ** 2).mean(axis=0))
    assert (left < found.features["error_after_high_unit"]).all()
    # errors of about a tenth of a logarithm would be far below 0.5
    assert found.tolerances["within"] != ["yes", "yes"]


@pytest.mark.parametrize("link", ["log", "logit", 0.5, 2.0, None])
def test_steps_are_derivatives(link):
    x = np.array([[0.2], [0.5], [0.9]])
    y = apply((link,), x, ["x"], "X")
    numeric = (undo((link,), y + 1e-6) - undo((link,), y - 1e-6)) / 2e-6
    np.testing.assert_allclose(steps((link,), x), numeric, rtol=1e-6)


def test_without_confounders_nothing_is_called_better(rng):
    data = two_domains(rng).drop(columns="sick")
    adapter = ConDoAdapter().fit(data, domain="domain")
    found = evaluate(adapter, data, domain="domain", n_permutations=39)
    assert found.verdict == "cannot tell"
    assert "plain matching" in found.sentence


def test_held_out_pairs_decide(rng):
    data, n = two_domains(rng, 200, 2), 30
    same = two_domains(rng, n, 2)[:n]
    twin = same.copy()
    twin[["x0", "x1"]] = truth(2)(same[["x0", "x1"]].to_numpy()) + 0.1 * rng.normal(size=(n, 2))
    both = pd.concat([data, same, twin.assign(domain="reference")], ignore_index=True)
    pairs = np.arange(400, 400 + n), np.arange(400 + n, 400 + 2 * n)
    adapter = ConDoAdapter().fit(data, domain="domain", features=["x*"])
    roles = {"domain": "domain", "features": ["x*"], "pairs": pairs, "n_permutations": 39}
    found = evaluate(adapter, both, **roles)
    assert found.doubts
    assert found.verdict == "better"
    assert found.sentence.startswith("Better, by 30 pairs: the difference to the reference goes")
    wrong = AffineMap([1.0, 1.0], [-3.0, -3.0])
    assert evaluate(wrong, both, **roles).verdict == "worse"


def test_few_rows_of_many_features_do_not_look_mixed():
    """Of 20 rows, the evidence on matrices of 16 features is chance; the true map has none."""
    said, true = [], []
    for seed in range(4):
        eeg = datasets.make_eeg(random_state=seed)
        table = eeg.to_frame()
        few = pd.concat([table[table["device"] == "v1"], table[table["device"] == "v2"].head(20)])
        roles = {"domain": "device", "confounders": "seizure", "features": ["eeg_*"]}
        adapter = ConDoAdapter(reference="v1").fit(few, **roles)
        said.append(evaluate(adapter, few, **roles).error_after)
        off = adapter.map_(eeg.X_query) - (eeg.X_query * eeg.scale + eeg.offset)
        true.append(np.sqrt(((off / eeg.X_reference.std(axis=0)) ** 2).mean()))
    assert 0.75 < np.mean(said) / np.mean(true) < 1.25
