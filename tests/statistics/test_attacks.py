"""Attacks on statistics files: what fails on those of today is found in those of schema 1."""

import io
import json
import warnings
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from condokit import Statistics
from condokit.data.basis import RangeBasis
from condokit.data.spots import Rule, Spots
from condokit.statistics import guard
from condokit.statistics.attacks import _is_single, attacks
from condokit.statistics.file import document_of

RANGES = {"age": (18.0, 95.0), "bmi": (14.0, 60.0), "height": (140.0, 210.0)}


def written(table, confounders, features, **how):
    """Return the document of a file, and what is read from it."""
    ranges = {name: RANGES[name] for name in confounders if name in RANGES}
    stats = Statistics.of(
        table,
        label="A",
        features=features,
        confounders=confounders or None,
        ranges=ranges,
        **how,
    )
    place = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stats.save(place)
    place.seek(0)
    return document_of(place, Statistics)


def lonely(rng):
    return np.append(rng.uniform(20, 60, 400), 90.0)


def clustered(rng):
    return np.append(rng.uniform(20, 60, 300), 85 + rng.uniform(0, 4, 4))


def plain(rng):
    return np.clip(rng.normal(52, 14, 100), 18.5, 94.5)


def skewed(rng):
    return np.clip(18 + rng.gamma(1.5, 9, 250), 18, 94)


def rounded(rng):
    return np.round(np.clip(rng.normal(60, 15, 160), 18, 95))


DESIGNS = [lonely, clustered, plain, skewed, rounded]


def simulated(design, seed, tails):
    rng = np.random.default_rng(seed)
    age = design(rng)
    noise = rng.standard_t(3, len(age)) if tails else rng.normal(size=len(age))
    table = pd.DataFrame({"hb": 140 + 0.3 * (age - 50) + 15 * noise, "age": age})
    table["sex"] = np.where(rng.random(len(age)) < 0.5, "F", "M")
    return table


def functions_of(table, confounders, weights=None):
    """Return the functions with which products are written, of rows that are all known."""
    numbers = sorted(name for name in confounders if name in RANGES)
    w = np.ones(len(table)) if weights is None else weights
    others = [name for name in confounders if name not in RANGES]
    cell = table.groupby(others).ngroup().to_numpy() if others else np.zeros(len(table), int)
    largest = np.maximum.reduceat(w[np.argsort(cell)], np.unique(np.sort(cell), True)[1])
    worth = np.bincount(cell, w**2) / largest**2
    cell = np.where((worth >= 5 - 1e-9)[cell], cell, -1)
    spots = Spots(RangeBasis.of({name: RANGES[name] for name in numbers}), 0)
    at, here = table[numbers].to_numpy(float), cell >= 0
    spots.update(np.empty((here.sum(), 0)), at[here], cell[here], w[here])
    Phi = spots.written(np.zeros(len(worth), int), guard.rule(5))
    found = np.zeros((len(table), Phi.shape[1]))
    found[here] = spots.of_rows(at[here], cell[here], Phi)
    for k in np.unique(cell[here]):
        found[cell == k] -= np.average(found[cell == k], axis=0, weights=w[cell == k])
    return found, cell


def whitened(Phi, scatter):
    """Return Phi in units in which a row's squared length is its largest share of a weight."""
    size = np.sqrt(np.diag(scatter)) + 1e-300
    value, vector = np.linalg.eigh(scatter / np.outer(size, size))
    return Phi / size @ (vector / np.sqrt(np.where(value > 1e-9, value, np.inf)))


def weights_on(table, confounders):
    """Return the share of each row in combinations of what is written, all rows known."""
    Phi, cell = functions_of(table, confounders)
    return whitened(Phi, Phi.T @ Phi), cell


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("confounders", [["age"], ["age", "sex"]])
def test_no_combination_rests_on_few_rows(design, confounders):
    for seed in range(3):
        table = simulated(design, seed, False)
        written(table, confounders, ["hb"])
        U, _ = weights_on(table, confounders)
        h = (U**2).sum(axis=1)
        assert h.max() <= 0.2 * 1.02
        top = np.argsort(-h)[:12]
        K = U[top] @ U[top].T
        largest = max(np.linalg.eigvalsh(K[np.ix_(s, s)])[-1] for s in combinations(range(12), 4))
        assert largest <= 0.5 * 1.02


@pytest.mark.parametrize("tails", [False, True])
@pytest.mark.parametrize("confounders", [["age"], ["age", "sex"]])
def test_rows_that_stand_apart_are_not_recovered(tails, confounders):
    """The best guess of a row from all that is written, against that from the other rows."""
    ratios, within = [], []
    for design in DESIGNS:
        for seed in range(8):
            table = simulated(design, 100 + seed, tails)
            document, _ = written(table, confounders, ["hb"])
            numbers = document["continuous"]
            columns = RangeBasis.of({"age": RANGES["age"]}).columns(numbers["level"])
            Phi, cell = functions_of(table, confounders)
            cells = [one["levels"] for one in document["cells"]]
            order = sorted(table["sex"].unique()) if "sex" in confounders else [None]
            i = int((whitened(Phi, Phi.T @ Phi) ** 2).sum(axis=1).argmax())
            k = cells.index([order[cell[i]]]) if "sex" in confounders else 0
            [one] = numbers["whole"]["domains"]
            L, c = np.array(one["root"]), np.array(one["slopes"])[:, 0]
            away = np.linalg.pinv(L) @ Phi[i, columns]
            mean, n = document["cells"][k]["mean"][0], len(table)
            truth = table["hb"][i]
            # the fitted curve, and the combination that has most weight on the row
            found = [mean + away @ c, mean + away @ c * n / (away @ away)]
            guess = 140 + 0.3 * (table["age"][i] - 50)  # the law itself
            sd = 15 * (np.sqrt(3) if tails else 1.0)
            ratios.append([(x - truth) / sd for x in (*found, guess)])
            within.append([abs(x - truth) < 0.1 * sd for x in (*found, guess)])
    error = np.sqrt(np.mean(np.square(ratios), axis=0))
    assert (error[:2] >= 0.8 * error[2]).all()
    share = np.mean(within, axis=0)
    assert (share[:2] <= share[2] + 0.03 + 1.0 / np.sqrt(len(within))).all()


def test_two_numbers_keep_the_rule():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.uniform(30, 70, 500), "bmi": rng.normal(27, 3, 500)})
    table.loc[0] = [90.0, 55.0]
    table["hb"] = rng.normal(size=500)
    written(table, ["age", "bmi"], ["hb"])
    U, _ = weights_on(table, ["age", "bmi"])
    assert (U**2).sum(axis=1).max() <= 0.2 * 1.02


def test_a_row_far_away_is_one_of_a_group():
    rng = np.random.default_rng(0)
    age = np.append(rng.uniform(40, 42, 99), 95.0)
    table = pd.DataFrame({"age": age, "hb": rng.normal(size=100)})
    document, _ = written(table, ["age"], ["hb"])
    U, _ = weights_on(table, ["age"])
    assert (U**2).sum(axis=1).max() <= 1 / 8 + 1e-6
    table.loc[99, "age"] = 70.0  # which changes means by less than their errors
    other, _ = written(table, ["age"], ["hb"])
    one, two = (np.array(d["continuous"]["whole"]["mean"][0]) for d in (document, other))
    assert abs(one - two).max() < 0.1


def test_sums_over_groups_keep_the_rule_whatever_weights_are():
    rng = np.random.default_rng(0)
    rule = Rule(0.2, 0.5, 4)
    assert rule.least == 8
    for p in (1, 2, 5):
        names = {f"z{j}": (0.0, 1.0) for j in range(p)}
        for w in (np.ones(300), rng.integers(1, 5, 300) * 1.0, rng.gamma(0.3, 1, 300)):
            spots, cell = Spots(RangeBasis.of(names), 1), rng.integers(0, 2, 300)
            Z = rng.beta(0.5, 2, (300, p))
            spots.update(rng.normal(size=(300, 1)), Z, cell, w)
            number = spots.of_rows(Z, cell, spots.neighbours(rule.least))
            for k in np.unique(number):
                assert len(np.unique(cell[number == k])) == 1
                share, whole = (
                    np.sort(w[some] ** 2)[::-1]
                    for some in (number == k, cell == cell[number == k][0])
                )
                if whole.sum() >= 8 * whole[0]:
                    assert share[:4].sum() <= 0.5 * share.sum() * (1 + 1e-9)


def test_groups_merge_in_any_order():
    rng = np.random.default_rng(0)
    z, group, x = rng.uniform(18, 93, (300, 1)), rng.integers(0, 3, 300), rng.normal(size=(300, 2))
    x[rng.random(300) < 0.1, 1] = np.nan
    basis = RangeBasis.of({"age": RANGES["age"]})
    parts = [slice(0, 100), slice(100, 180), slice(180, 300)]
    found = []
    for order in (parts, parts[::-1]):
        whole = Spots(basis, 2)
        for rows in order:
            part = Spots(basis, 2)
            part.update(x[rows], z[rows], group[rows])
            whole.merge(part)
        found.append(whole.products(np.zeros(3, int), Rule(0.2, 0.5, 4)))
    for one, other in zip(*([whole, whole.own[1]] for whole in found)):
        for name in ("count", "mean", "scatter"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-9)
    assert found[0].own[1].count.sum() == (~np.isnan(x[:, 1])).sum()


def test_rounding_is_by_tenths_of_errors_and_in_short_numbers():
    rng = np.random.default_rng(0)
    values, error = rng.normal(size=1000) * 1e3, 10 ** rng.uniform(-4, 4, 1000)
    found = guard.rounded(values, error)
    assert (abs(found - values) <= 0.05 * error * (1 + 1e-9)).all()
    assert (abs(found - values) >= 0.005 * error).mean() > 0.5
    np.testing.assert_array_equal(found, [float(f"{v:.12g}") for v in found])
    np.testing.assert_array_equal(guard.rounded(found, error), found)
    np.testing.assert_array_equal(guard.rounded(values, 0.0), values)


def test_few_yes_take_part_in_no_products():
    rng = np.random.default_rng(0)
    for k in (1, 3, 4, 60):
        yes = (np.arange(400) < k) * 1.0
        age = rng.uniform(20, 90, 400)
        table = pd.DataFrame({"yes": yes, "hb": rng.normal(size=400) + 3 * yes, "age": age})
        table["yes2"] = yes
        document, _ = written(table, ["age"], ["yes", "hb"])
        slopes = np.array(document["continuous"]["whole"]["domains"][0]["slopes"])
        assert slopes[:, 0].any() == (k == 60)
        assert slopes[:, 1].any()
        assert (document["correlations"] == []) == (k < 60)  # of two features, one does not count
    assert "matrix" not in json.dumps(document)


def test_the_bound_on_deviations_of_few_rows_is_one():
    rng = np.random.default_rng(0)
    for df in (1, 2, 5, 50):
        x = rng.standard_t(df, size=(60, 300))
        a = abs(x - x.mean(axis=0))
        few = np.sort(a, axis=0)[-4:].sum(axis=0) / a.sum(axis=0)
        is_spread = guard.is_spread((a**2).sum(axis=0), (a**4).sum(axis=0), 4)
        assert (few[is_spread] <= 0.5).all()
        assert is_spread.mean() > {1: 0.0, 2: 0.1, 5: 0.5, 50: 0.9}[df] - 1e-9


@pytest.mark.parametrize("step", [1.0, 0.1])
def test_rounded_values_of_a_second_round_cannot_be_enumerated(step):
    found, exact, groups = 0, 0, 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x = np.round((120 + 12 * rng.standard_t(3, 300)) / step) * step
        document, stats = written(pd.DataFrame({"x": x}), [], ["x"], given=["x"])
        found += sum(
            one["n_rows"] for one in attacks(document, stats) if one["kind"] == "enumerated"
        )
        [one] = document["values"]
        groups += len(one["counts"])
        mean, unit = x.mean(), 0.02 * x.std()
        order = np.sort(x)
        for k in range(0, 300, 5):  # what schema 1 told
            u = np.arcsinh((order[k : k + 5] - mean) / unit)
            exact += 5 * _is_single(u.mean() + np.array([-1, 1]) * u.std(), 5, mean, unit, 1e-7)
    assert groups > 60
    assert exact > 500
    assert found <= 0.03 * 1200


def test_what_schema_1_gave_away_is_found():
    from pathlib import Path

    folder = Path(__file__).parent / "schema1"
    kinds = {}
    for name in ("lonely", "few"):  # written by condokit 1.0.0rc1
        kinds[name] = {
            one["kind"] for one in attacks(*document_of(folder / f"{name}.json", Statistics))
        }
    assert kinds == {"lonely": {"isolated"}, "few": {"enumerated", "rare"}}


def numbers_of(rng, n, k):
    """Return a table of three numbers, some far from all others, correlated or tied."""
    kind = rng.choice(["lonely", "clump", "ends", "gamma", "ties", "normal", "two of each"])
    age = {
        "lonely": lambda: np.append(rng.uniform(20, 60, n - 1), 90.0),
        "clump": lambda: np.append(rng.uniform(30, 50, n - 5), rng.uniform(80, 90, 5)),
        "ends": lambda: np.concatenate([[18.5], rng.uniform(45, 60, n - 2), [94.0]]),
        "gamma": lambda: np.clip(18 + rng.gamma(0.7, 12, n), 18, 95),
        "ties": lambda: np.append(rng.choice([20.0, 40, 60], n - 3), [61.0, 85, 85]),
        "normal": lambda: np.clip(rng.normal(52, 14, n), 18, 95),
        "two of each": lambda: np.repeat(rng.normal(52, 10, -(-n // 2)), 2)[:n].clip(18, 95),
    }[kind]()
    r = rng.choice([0.0, 0.9])
    z = r * (age - age.mean()) / age.std() + np.sqrt(1 - r**2) * rng.standard_t(3, n)
    table = pd.DataFrame({"age": age, "bmi": np.clip(27 + 4 * z, 14, 60)})
    table["height"] = np.clip(170 + 9 * rng.normal(size=n), 140, 210)
    table["sex"] = np.where(rng.random(n) < 0.5, "F", "M")
    table["ward"] = rng.choice(list("abcd"), n, p=[0.55, 0.25, 0.15, 0.05])
    table["hb"] = 140 + 0.5 * (age - 50) + 15 * rng.normal(size=n)
    return table, ["age", "bmi", "height"][:k]


def best_guess(document, table, confounders, weights=None):
    """Return the values of a feature given all linear numbers of it, all else and its law known.

    The law is the prior, with independent errors; rounding is by digits. Returned as well: the
    share of its variance that the numbers take from every row.
    """
    numbers = sorted(name for name in confounders if name in RANGES)
    categories = [name for name in confounders if name not in RANGES]
    w = np.ones(len(table)) if weights is None else weights
    keys = [tuple(one["levels"]) for one in document["cells"]]
    own = [tuple(row) for row in table[categories].to_numpy()] if categories else [()] * len(table)
    cell = np.array([keys.index(key) if key in keys else -1 for key in own])
    shares = [np.where(cell == k, w, 0) / w[cell == k].sum() for k in range(len(keys))]
    told = [one["mean"][0] for one in document["cells"]]
    if numbers:
        continuous = document["continuous"]
        basis = RangeBasis.of({name: RANGES[name] for name in numbers})
        Phi = functions_of(table, confounders, w)[0][:, basis.columns(continuous["level"])]
        [one] = continuous["whole"]["domains"]
        slopes = np.array(one["slopes"])[:, 0]
        if slopes.any():
            known = np.diag(one["root"]) > 0
            L = np.array(one["root"])[np.ix_(known, known)]
            shares += [*np.linalg.solve(L, Phi.T[known] * w) / w[cell >= 0].sum()]
            told += [*slopes[known]]
    A, b, law = np.array(shares), np.array(told), 140 + 0.5 * (table["age"] - 50).to_numpy()
    step = [10.0 ** -len(np.format_float_positional(v, trim="-").partition(".")[2]) for v in b]
    K = 15**2 * A @ A.T + np.diag(np.square(step) / 12 + 1e-12)
    gain = 15**2 * np.linalg.solve(K, A)
    found = law + gain.T @ (b - A @ law)
    return found, law, np.einsum("kn,kn->n", gain, A), cell >= 0


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_random_designs_are_not_recovered(weighted):
    """Of each file the row that its numbers tell most of, given everything but the feature."""
    errors, most, refused = [], [], 0
    for seed in range(50):
        rng = np.random.default_rng([7, seed])
        n = int(rng.choice([100, 250, 600, 1500] if weighted else [40, 60, 100, 250, 600]))
        table, numbers = numbers_of(rng, n, int(rng.integers(1, 4)))
        confounders = [*numbers[: rng.integers(4)], *["sex", "ward"][: rng.integers(3)]]
        kinds = [
            rng.integers(1, 5, n).astype(float),
            np.where(np.arange(n) % 20 == 0, 5.0, 0.5),
            np.where(rng.random(n) < 0.05, 1.0, 0.02),
        ]
        table["w"] = kinds[seed % 3] if weighted else 1.0
        try:
            document, _ = written(table, confounders, ["hb"], sample_weight="w")
        except ValueError:
            refused += 1
            continue
        found = best_guess(document, table, confounders, table["w"].to_numpy())
        told = np.where(found[3], found[2], 0.0)
        i = int(told.argmax())
        most.append(told[i])
        errors.append([(value[i] - table["hb"][i]) / 15 for value in found[:2]])
    assert refused < 40
    assert max(most) < 0.4
    size, share = (
        np.sqrt(np.mean(np.square(errors), axis=0)),
        np.mean(np.abs(errors) < 0.1, axis=0),
    )
    assert size[0] >= 0.8 * size[1]
    assert share[0] <= share[1] + 0.03 + 1 / np.sqrt(len(errors))


@pytest.mark.parametrize("gaps", [False, True])
def test_a_feature_that_is_another_times_a_function_of_a_number_is_refused(gaps):
    rng = np.random.default_rng(0)
    table, _ = numbers_of(rng, 300, 2)
    table["weight"] = 24 * (table["height"] / 100) ** 2 + 12 * rng.normal(size=300)
    table["index"] = (table["weight"] / (table["height"] / 100) ** 2).round(1)
    table["in pounds"] = table["weight"] / 0.4536  # has the same sums, so tells no more
    table["near"] = table["weight"] + 0.1 * rng.normal(size=300)
    if gaps:
        table.loc[rng.random(300) < 0.2, "weight"] = np.nan
        table.loc[rng.random(300) < 0.2, "hb"] = np.nan
    written(table, ["height"], ["hb", "weight", "in pounds", "near"])
    written(table, ["age"], ["hb", "weight", "index"])
    for names in (["hb", "weight", "index"], ["index", "hb", "weight"]):
        with pytest.raises(ValueError, match="Leave one out of `features`"):
            written(table, ["height", "age"], names)
    parts = [
        Statistics.of(
            part,
            label="A",
            features=names,
            confounders=["height"],
            ranges={"height": (140.0, 210.0)},
        )
        for part, names in (
            (table.iloc[:15], ["weight", "index", "hb"]),
            (table.iloc[15:], ["hb", "index", "weight"]),
        )
    ]
    with pytest.raises(ValueError, match="'index' and 'weight'|'weight' and 'index'"):
        parts[0].merge(parts[1]).save(io.BytesIO())


def test_a_heavy_row_hides_the_cell_whose_mean_would_be_its_value():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"hb": rng.normal(size=200), "sex": np.repeat(["F", "M"], 100), "w": 0.5})
    table.loc[[0, 100, 101, 102, 103, 104], "w"] = 5.0
    document, _ = written(table, ["sex"], ["hb"], sample_weight="w")
    assert [one["levels"] for one in document["cells"]] == [["M"]]
    assert document["masked"] == {"cells": 1, "rows": 75}


@pytest.mark.parametrize("z", [6.0, 8.0, 12.0])
def test_a_value_far_from_all_others_is_not_computed_from_the_kurtosis(z):
    exact, found = [], []
    for seed in range(6):
        x = np.append(np.random.default_rng(seed).normal(size=399), z)
        document, _ = written(pd.DataFrame({"x": x}), [], ["x"])
        [cell], [shape] = document["cells"], document["shapes"]
        fourth = shape["kurtosis"][0] * cell["squares"][0] ** 2 / 400
        rows = ((x - x.mean()) ** 4).sum()
        exact.append((rows - 3 * 399) ** 0.25 - z)  # what others add is known, on average
        found.append(max(fourth - 3 * 399, 0.0) ** 0.25 - z)
        assert shape["kurtosis"][0] in (3.0, 9.0, 36.0)
    assert np.abs(exact).max() < 0.6
    assert np.sqrt(np.mean(np.square(found))) > 2 * np.sqrt(np.mean(np.square(exact)))


def test_two_columns_of_the_same_thing_have_values_in_the_same_rows():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(100, 3)), columns=list("abc"))
    table["total"], table["a in other units"] = table.sum(axis=1), 1000 * table["a"]
    few, many = table.copy(), table.copy()
    few.loc[7, "a"] = np.nan
    many.loc[:40, ["a", "a in other units"]] = np.nan
    written(table, [], list(table))
    written(many, [], ["a", "a in other units", "b"])
    written(few, [], ["a", "b", "c"])
    for names in (["a", "a in other units"], ["total", "c", "b", "a"]):
        with pytest.raises(ValueError, match="the few rows that lack only one"):
            written(few, [], names)
    table["age"] = 50 + 10 * table["b"]
    apart = table.mask(rng.random(table.shape) < 0.2).assign(age=table["age"])
    written(apart, ["age"], ["a", "a in other units"])  # many rows lack only one
