"""Values at the ends of double precision: a finite map, or an error that says what to do."""

import io
import traceback
import warnings

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest
from problems import two_domains

from condokit import (
    AffineMap,
    BatchAdapter,
    ConDoAdapter,
    LocationScale,
    Statistics,
    assess,
    evaluate,
)
from condokit.checks import LARGEST, SMALLEST
from condokit.fit.choose import _Score, _Trial

ROLES = {"domain": "device", "confounders": "sex", "features": list("abc")}


@pytest.fixture
def frame():
    X_query, X_reference, Z_query, Z_reference = two_domains(np.random.default_rng(0), n=150)
    table = pd.DataFrame(np.vstack([X_query, X_reference]), columns=list("abc"))
    table["sex"] = np.concatenate([Z_query, Z_reference])
    table["device"] = np.repeat(["query", "reference"], 150)
    table["age"] = np.random.default_rng(1).normal(size=300)
    return table


def fit(X, **roles):
    return ConDoAdapter().fit(X, **{**ROLES, **roles})


def both(frame, columns):
    """Return the rows of query and reference."""
    return [frame.loc[frame["device"] == side, columns] for side in ("query", "reference")]


def doors(frame, **roles):
    """Yield every way into a fit, as functions."""
    roles = {**ROLES, **roles}
    given = {name: value for name, value in roles.items() if name != "domain"}
    yield lambda: ConDoAdapter().fit(frame, **roles)
    yield lambda: ConDoAdapter().fit(pl.from_pandas(frame), **roles)
    yield lambda: ConDoAdapter().fit(pl.from_pandas(frame).lazy(), **roles)
    yield lambda: ConDoAdapter().fit(duckdb.from_df(frame), **roles)
    yield lambda: BatchAdapter(reference="reference").fit(frame, batch="device", **given)
    yield lambda: assess(frame, **roles)
    if roles["confounders"] == "sex":
        yield lambda: ConDoAdapter().fit_statistics(Statistics.of(frame, **roles))
    if "sample_weight" not in roles:
        sides = [*both(frame, list("abc")), *both(frame, [roles["confounders"]])]
        yield lambda: ConDoAdapter().fit_pair(*sides)


@pytest.mark.parametrize("value", [-1.1e50, 1e155, np.finfo(float).max])
def test_values_too_large_to_compute_with_are_named_at_every_door(frame, value):
    frame.loc[7, "b"] = value
    for door in doors(frame):
        with pytest.raises(ValueError, match=r"has values of up to .*, in 'b', .* limit is 1e\+50"):
            door()
    for door in doors(frame.assign(b=np.inf)):
        with pytest.raises(ValueError, match="contains infinity, in 'b'"):
            door()
    for door in doors(frame.assign(b=frame["a"])):  # and nothing else is wrong with the doors
        door()


def test_many_rows_of_a_stream_are_looked_at_as_well(frame):
    long = pd.concat([frame] * 20, ignore_index=True)
    long.loc[5999, "c"] = 2e50
    with pytest.raises(ValueError, match=r"values of up to 2e\+50, in 'c'"):
        fit(pl.from_pandas(long).lazy())


def test_confounders_too_large_to_compute_with(frame):
    frame.loc[3, "age"] = 1e156
    for door in doors(frame, confounders="age"):
        with pytest.raises(ValueError, match="Confounder 'age' has values of up to 1e.156"):
            door()
    with pytest.raises(ValueError, match="Confounder 'age' has values of up to 1e.156"):
        ConDoAdapter(reliability={"age": 0.8}).fit(frame, **{**ROLES, "confounders": "age"})
    for odd, message in ((np.inf, "1 infinite values"), (1e60, r"up to 1e\+60")):
        twice = frame.assign(age=0.5 * np.arange(300), again=0.5 * np.arange(300) + 1)
        twice.loc[5, "again"] = odd
        repeats = ConDoAdapter(reliability={"score": ["age", "again"]})
        with pytest.raises(ValueError, match=f"Confounder 'again' has .*{message}"):
            repeats.fit(twice, **{**ROLES, "confounders": ["score"]})
    for ends in ((-1e51, 0.0), (0.0, 1e-60)):
        with pytest.raises(ValueError, match="'ranges' of 'age' must lie within 1e.50 of 0"):
            Statistics.of(frame, **{**ROLES, "confounders": "age"}, ranges={"age": ends})


@pytest.mark.filterwarnings("ignore:A curve is more likely")
@pytest.mark.parametrize("unit", [1e-170, 1e45])
def test_confounders_in_any_units_give_the_same_map(frame, unit):
    roles = {**ROLES, "confounders": ["age", "sex"]}
    for settings in ({}, {"reliability": {"age": 0.8}}, {"divergence": "ot"}):
        plain = ConDoAdapter(**settings).fit(frame, **roles)
        other = ConDoAdapter(**settings).fit(frame.assign(age=unit * frame["age"]), **roles)
        np.testing.assert_allclose(other.map_.scale, plain.map_.scale, rtol=1e-6)
    again = frame.assign(age=unit * frame["age"], twice=unit * (frame["age"] + 0.1))
    names = {"reliability": {"score": ["age", "twice"]}}
    ConDoAdapter(**names).fit(again, **{**ROLES, "confounders": ["score"]})


@pytest.mark.parametrize("divergence", ["likelihood", "reverse-kl", "forward-kl", "ot"])
@pytest.mark.parametrize("units", [(1e48, 1e-48), (1e-48, 1e48), (1e-46, 1e-46)])
def test_features_in_any_units_give_the_same_map(divergence, units):
    X_query, X_reference, *Z = two_domains(np.random.default_rng(0), n=60)
    adapter = ConDoAdapter(divergence=divergence, shrinkage=None)
    plain = adapter.fit_pair(X_query, X_reference, *Z)
    scale, error = plain.map_.scale, plain.map_se_["scale"]
    other = adapter.fit_pair(X_query * units[0], X_reference * units[1], *Z)
    ratio = units[1] / units[0]
    np.testing.assert_allclose(other.map_.scale, scale * ratio, rtol=1e-9)
    np.testing.assert_allclose(other.map_se_["scale"], error * ratio, rtol=1e-6)


@pytest.mark.parametrize("spread", [0.4 * SMALLEST, 1e-160, 5e-324])
def test_spreads_too_small_to_compute_with_are_those_of_constants(frame, spread):
    frame["b"] = spread * (np.arange(300) % 7)
    for door in doors(frame):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = door()
        if isinstance(found, ConDoAdapter):
            assert any("only shifted: 'b'" in str(w.message) for w in caught)
            assert found.map_.scale[1] == 1
            assert abs(found.map_.offset[1]) <= 7 * spread
        assert not any(issubclass(w.category, RuntimeWarning) for w in caught)


def test_weights_that_count_next_to_nothing_leave_rows_out(frame):
    frame["w"] = np.where(np.arange(300) % 3, 1.0, 1e-300)
    whole = fit(frame[frame["w"] == 1]).map_.scale
    for X in (frame, pl.from_pandas(frame).lazy(), duckdb.from_df(frame)):
        np.testing.assert_allclose(fit(X, sample_weight="w").map_.scale, whole, rtol=1e-9)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (1e308, r"adds up to more than 2 \*\* 53"),
        (1e-300, "is zero for all query rows .weights below 1e-12 count"),
        (1e-3, "sums to 0.15 over the query rows"),
        ("x", "'sample_weight' must hold numbers"),
    ],
)
def test_weights_that_cannot_be_used_are_refused_at_every_door(frame, weight, message):
    for door in doors(frame.assign(w=weight), sample_weight="w"):
        with pytest.raises(ValueError, match=message):
            door()


def test_large_weights_repeat_rows_without_memory():
    X_query, X_reference, *_ = two_domains(np.random.default_rng(0), n=40)
    weights = np.full(40, 3.0)
    adapter = ConDoAdapter(divergence="mmd", shrinkage=None)
    thrice = adapter.fit_pair(X_query, X_reference, sample_weight=(weights, weights)).map_.scale
    repeated = np.repeat(X_query, 3, axis=0), np.repeat(X_reference, 3, axis=0)
    np.testing.assert_allclose(adapter.fit_pair(*repeated).map_.scale, thrice, rtol=1e-6)
    weights = np.full(40, 1e13)
    huge = adapter.fit_pair(X_query, X_reference, sample_weight=(weights, weights))
    assert np.isfinite(huge.map_.scale).all()


@pytest.mark.filterwarnings("ignore:A curve is more likely")
def test_whole_numbers_beyond_double_precision(frame):
    large = np.iinfo(np.int64).max - 1000 * np.arange(300) ** 2
    frame["b"] = large
    wanted = fit(frame.assign(b=large.astype(float))).map_.scale
    for X in (frame, pl.from_pandas(frame).lazy(), duckdb.from_df(frame)):
        np.testing.assert_allclose(fit(X).map_.scale, wanted, rtol=1e-6)


def test_large_numbers_are_measured_though_all_of_them_are_whole(frame):
    large = frame.assign(a=1e22 * frame["a"]).drop(columns=["age", "b", "c"])
    adapter = ConDoAdapter().fit(large, domain="device", confounders="sex")
    assert list(adapter.feature_names_in_) == ["a"]


def test_links_that_make_values_too_large(frame):
    X_query, X_reference = (abs(part) * 1e20 for part in both(frame, ["a"]))
    with pytest.raises(ValueError, match="scale of its links has values of up to .*in 'a'"):
        ConDoAdapter(LocationScale(links=3.0)).fit_pair(X_query, X_reference)


@pytest.mark.filterwarnings("ignore::condokit.IdentifiabilityWarning")
def test_a_constant_column_does_not_change_a_map_of_low_rank():
    rng = np.random.default_rng(0)
    query, reference = (rng.normal(size=(300, 6)) @ rng.normal(size=(6, 6)) for _ in range(2))
    z = np.repeat(["a", "b"], 150)
    alone = ConDoAdapter("low-rank").fit_pair(query, reference, z, z)
    query, reference = (np.insert(X, 1, c, axis=1) for X, c in ((query, 5), (reference, 7)))
    beside = ConDoAdapter("low-rank").fit_pair(query, reference, z, z)
    others = [0, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(beside.map_.A[np.ix_(others, others)], alone.map_.A, atol=1e-9)
    np.testing.assert_array_equal(beside.map_.A[1], np.eye(7)[1])
    np.testing.assert_array_equal(beside.map_.A[:, 1], np.eye(7)[1])
    assert beside.map_.b[1] == pytest.approx(2)
    assert beside.report_.constant_features == ["column 1"]
    assert np.isfinite(beside.map_se_["offset"]).all()
    few = ConDoAdapter("low-rank").fit_pair(query[:, :3], reference[:, :3], z, z)
    assert few.report_.fallback == "location-scale"


def test_a_choice_of_which_no_candidate_can_be_scored_ends(monkeypatch, frame):
    def failed(self):
        self.weights = np.ones(1)
        return [_Score(np.full(1, np.inf), failure="no rows") for _ in self.candidates]

    monkeypatch.setattr(_Trial, "scores", failed)
    found = ConDoAdapter("auto").fit_pair(*both(frame, list("abc")), *both(frame, ["sex"]))
    assert found.report_.chosen_map == "diagonal"


def test_statistics_of_rows_without_any_value(frame):
    nothing = frame.assign(**dict.fromkeys("abc", np.nan))
    with pytest.raises(ValueError, match="All values of 'a', 'b', 'c' are missing in the rows"):
        Statistics.of(nothing, **ROLES)
    half = frame.assign(a=frame["a"].where(frame["device"] == "query"))
    found = Statistics.of(half, **{**ROLES, "features": ["a"]})
    assert found.labels == ["query"]


@pytest.mark.parametrize("size", [2 * SMALLEST, LARGEST])
def test_statistics_of_all_values_that_are_read_can_be_saved(frame, size):
    values = frame.assign(**{name: np.clip(frame[name], -1, 1) * size for name in "abc"})
    values["age"] = np.linspace(0, size, 300)
    roles = {**ROLES, "confounders": ["age", "sex"]}
    weights = np.full(300, 2.0**52 / 300)
    found = Statistics.of(values, **roles, ranges={"age": (0, size)}, sample_weight=weights)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of equal values
        found.save(file)
    file.seek(0)
    assert Statistics.load(file).labels == found.labels


def test_large_values_are_mapped_as_far_as_numbers_go(frame):
    adapter = ConDoAdapter().fit_pair(*both(frame, list("abc")))
    row = pd.DataFrame({"a": [1e200, 1.0], "b": [0.0, np.nan], "c": [-1e307, 0.0]})
    values, errors = (part.to_numpy() for part in adapter.transform(row, return_std=True))
    np.testing.assert_array_equal(np.isnan(values), np.isnan(row))
    np.testing.assert_allclose(values[0], adapter.map_.scale * row.iloc[0] + adapter.map_.offset)
    slope = adapter.errors_.std(np.array([[1e30, 0.0, 0.0]]))[0, 0] / 1e30
    assert errors[0, 0] == pytest.approx(slope * 1e200)
    assert adapter.map_.check(row).verdict == "look"
    assert AffineMap([1e60], [0.0])([[1e-200]]) == pytest.approx(1e-140)
    with pytest.raises(ValueError, match="Mapped values are too large for float64"):
        adapter.transform(row.assign(a=1.7e308))
    adapter.errors_.of_scale[0] = 1e150
    with pytest.raises(ValueError, match="errors of mapped values are too large"):
        adapter.transform(row, return_std=True)


# columns of n values in a domain, the query's if it is told
COLUMNS = {
    "normal": lambda rng, n, query: rng.normal(size=n) * (1 + query) + query,
    "largest": lambda rng, n, query: np.clip(rng.normal(size=n), -5, 5) * LARGEST / 5,
    "too large": lambda rng, n, query: rng.normal(size=n) * 1e160,
    "small": lambda rng, n, query: rng.normal(size=n) * 1e-48,
    "too small": lambda rng, n, query: rng.normal(size=n) * 1e-160,
    "denormal": lambda rng, n, query: rng.integers(0, 9, n) * 5e-324,
    "any size": lambda rng, n, query: 10.0 ** rng.uniform(-300, 49, n),
    "far apart": lambda rng, n, query: rng.normal(size=n) * (1e48 if query else 1e-48),
    "one far away": lambda rng, n, query: np.where(np.arange(n) == 1, 1e49, rng.normal(size=n)),
    "large offset": lambda rng, n, query: rng.normal(size=n) + 1e12,
    "rounded away": lambda rng, n, query: rng.normal(size=n) + 1e16,
    "constant": lambda rng, n, query: np.full(n, 3e49),
    "constant query": lambda rng, n, query: np.full(n, 3.0) if query else rng.normal(size=n),
    "constants": lambda rng, n, query: np.full(n, 3.0 + query),
    "heavy": lambda rng, n, query: np.clip(rng.standard_cauchy(n) ** 9, -1e50, 1e50),
    "spike": lambda rng, n, query: (np.arange(n) == 1).astype(float),
    "true or not": lambda rng, n, query: (rng.random(n) < 0.4).astype(float),
    "whole": lambda rng, n, query: rng.choice([-(2.0**63), 2.0**63, 0, 5], n),
}
FAMILIES = (
    "location-scale", "shift", "affine", "low-rank", "orthogonal", "similarity", "monotone", "auto"
)  # fmt: skip


def drawn(rng, n, n_sides):
    """Return rows of several domains: features, confounders, weights and subjects, as it falls."""
    names = rng.choice(list(COLUMNS), int(rng.choice([1, 2, 4])))
    sides = range(n_sides)
    X = np.vstack([np.column_stack([COLUMNS[m](rng, n, k % 2) for m in names]) for k in sides])
    if rng.random() < 0.3:
        X[rng.random(X.shape) < 0.15] = np.nan
    Z, kind = {}, rng.integers(4)
    if kind in (1, 3):
        levels = [np.arange(n) % 2, np.arange(n), np.arange(n) == 0, rng.integers(0, 3, n)]
        Z["level"] = np.tile(levels[rng.integers(4)], n_sides).astype(str)
    if kind in (2, 3):
        column = COLUMNS[rng.choice(list(COLUMNS))]
        Z["number"] = np.concatenate([column(rng, n, k % 2) for k in sides])
    weights = [None, None, None, rng.random(n * n_sides) * 3, np.full(n * n_sides, 1e11)]
    w = weights[rng.integers(5)]
    groups = np.arange(n * n_sides) // 2 if rng.random() < 0.2 else None
    return X, np.repeat([f"b{k}" for k in sides], n), Z or None, w, groups


def tried(seed):
    """Fit what is drawn, at one of the doors; return the maps."""
    rng = np.random.default_rng(seed)
    door, n = rng.choice(["fit", "evaluate", "assess", "batches", "sums"]), int(rng.choice([3, 40]))
    X, label, Z, w, groups = drawn(rng, n, 3 if door == "batches" else 2)
    how = {"confounders": Z, "sample_weight": w}
    family = str(rng.choice(FAMILIES))
    if door == "assess":
        assess(X, domain=label, reference="b0", groups=groups, **how)
        return []
    if door == "batches":
        adapter = BatchAdapter(ConDoAdapter(family), reference="b0")
        return list(adapter.fit(X, batch=label, groups=groups, **how).maps_.values())
    adapter = ConDoAdapter(family, reference="b0", min_overlap=0)
    if door == "sums":
        ranges = {"number": (Z["number"].min(), Z["number"].max())} if Z and "number" in Z else {}
        found = Statistics.of(X, domain=label, ranges=ranges, **how)
        found.save(io.BytesIO(), min_cell=3)
        return [adapter.fit_statistics(found).map_]
    adapter.fit(X, domain=label, groups=groups, **how)
    if door == "evaluate":
        evaluate(adapter, X, domain=label, groups=groups, n_permutations=100, **how)
    adapter.transform(X, domain=label)
    for errors in (adapter.map_se_ or {}).values():
        assert np.isfinite(errors).all()
    return [adapter.map_]


def test_whatever_is_drawn_gives_finite_maps_or_errors_of_ours():
    n_maps = n_refused = 0
    for seed in range(110):
        refused = None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", UserWarning)
            try:
                maps = tried(seed)
            except ValueError as error:
                maps, refused = [], error
        if refused is not None:
            last = traceback.extract_tb(refused.__traceback__)[-1]
            is_ours = "condokit" in last.filename and last.line.startswith("raise ")
            assert is_ours, f"{seed}: {refused!r} at {last.filename}"
            n_refused += 1
        for found in maps:
            n_maps += 1
            numbers = found.arrays() if hasattr(found, "arrays") else vars(found)
            for name in ("scale", "offset", "knots", "values", "slopes"):
                assert np.isfinite(numbers.get(name, 0.0)).all(), (seed, name)
    assert n_maps > 40  # so that not all of it is refused
    assert n_refused > 20
