"""Missing values in features: each feature is fitted where it is known, and gaps stay gaps."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from problems import Matching

from condokit import AffineMap, ConDoAdapter, IdentifiabilityWarning

pytestmark = pytest.mark.filterwarnings("ignore:.*values are missing:UserWarning")


def problem(seed=0, n=90, d=4, share=0.25, levels="abc"):
    """Two domains with strata, an age, and holes of a pattern of its own in every feature."""
    rng = np.random.default_rng(seed)
    sides = []
    for scale, offset in ((2.0, -1.0), (1.0, 0.0)):
        Z = rng.choice(list(levels), n)
        age = rng.uniform(0, 1, n)
        mean = 2.0 * (Z == "a")[:, None] + np.sin(3 * age)[:, None] * np.arange(d)
        X = scale * (rng.normal(size=(n, d)) + mean) + offset
        X[rng.random((n, d)) < share] = np.nan
        sides.append((X, Z, age))
    return sides


def fit(sides, Z, features=slice(None), rows=(slice(None), slice(None)), **parameters):
    """Fit some features and rows of a problem; Z picks the confounders by place."""
    X, confounders = [], []
    for side, mine in zip(sides, rows):
        X.append(side[0][mine][:, features])
        confounders.append({f"z{k}": side[k][mine] for k in Z} if Z else None)
    weights = parameters.pop("sample_weight", None)
    if weights is not None:
        weights = [w[mine] for w, mine in zip(weights, rows)]
    return ConDoAdapter(**parameters).fit_pair(*X, *confounders, sample_weight=weights)


CASES = {
    "strata": ((1,), {}),
    "forward": ((1,), {"divergence": "forward-kl"}),
    "paper": ((1,), {"prior": "paper", "divergence": "reverse-kl"}),
    "overlap": ((1,), {"prior": "overlap", "divergence": "ot"}),
    "own": ((1,), {"divergence": Matching()}),
    "shift": ((1,), {"map": "shift"}),
    "identity": ((1,), {"map": "identity"}),
    "nothing": ((), {}),
    "auto": ((1,), {"map": "auto"}),
    "likelihood": ((1,), {"divergence": "likelihood"}),
    "age": ((2,), {}),
    "age and strata, shift": ((1, 2), {"map": "shift"}),
    "kernel": ((1, 2), {"divergence": "reverse-kl", "conditional": "kernel"}),
    "splines": ((2,), {"divergence": "ot", "conditional": "splines"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_feature_is_fitted_as_if_alone_on_the_rows_where_it_is_known(case):
    Z, parameters = CASES[case]
    sides = problem(levels="abcdefgh" if case == "strata" else "abc")
    sides[0][0][sides[0][1] == "b", 1] = np.nan  # a stratum without this feature in the query
    together = fit(sides, Z, shrinkage=None, **parameters)
    for j in range(4):
        known = [~np.isnan(X[:, j]) for X, *_ in sides]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the query has no stratum b
            alone = fit(sides, Z, [j], known, shrinkage=None, **parameters)
        for name in ("scale", "offset"):
            ours, theirs = getattr(together.map_, name)[j], getattr(alone.map_, name)[0]
            assert ours == pytest.approx(theirs, rel=1e-6 if case == "own" else 1e-10)
            if alone.map_se_ is None or case == "own":  # which has no formula
                assert together.map_se_ is None
            else:
                assert together.map_se_[name][j] == pytest.approx(alone.map_se_[name][0], rel=1e-9)


def test_weights_count_known_rows():
    sides = problem(3)
    weights = [np.random.default_rng(k).integers(1, 4, 90).astype(float) for k in (1, 2)]
    together = fit(sides, (1,), shrinkage=None, sample_weight=weights)
    known = [~np.isnan(X[:, 2]) for X, *_ in sides]
    alone = fit(sides, (1,), [2], known, shrinkage=None, sample_weight=weights)
    assert together.map_.scale[2] == pytest.approx(alone.map_.scale[0], rel=1e-10)
    assert together.map_se_["offset"][2] == pytest.approx(alone.map_se_["offset"][0], rel=1e-10)


@pytest.mark.parametrize("map", ["location-scale", "auto"])
@pytest.mark.parametrize("Z", [(1,), (2,)])
def test_rows_without_values_and_the_order_of_things_change_nothing(map, Z):
    sides = problem(1, n=60)
    plain = fit(sides, Z, map=map)
    empty = [
        (np.vstack([X, np.full((1, 4), np.nan)]), np.append(z, "a"), np.append(age, 0.5))
        for X, z, age in sides
    ]
    more = fit(empty, Z, map=map)
    np.testing.assert_allclose(more.map_.A, plain.map_.A, rtol=1e-12)
    np.testing.assert_allclose(more.map_.b, plain.map_.b, rtol=1e-12, atol=1e-14)
    order = np.array([2, 0, 3, 1])
    turned = fit(sides, Z, order, [np.random.default_rng(k).permutation(60) for k in (0, 1)],
                 map=map)  # fmt: skip
    tolerance = {"rtol": 1e-8, "atol": 1e-10}
    np.testing.assert_allclose(np.diag(turned.map_.A), np.diag(plain.map_.A)[order], **tolerance)
    np.testing.assert_allclose(turned.map_.b, plain.map_.b[order], **tolerance)


def test_shrinkage_with_gaps_is_near_that_without():
    """Half of the features have one hole each: what is shared hardly changes."""
    sides = problem(2, n=200, d=30, share=0.0)
    plain = fit(sides, (1,))
    for X, *_ in sides:
        X[np.arange(15), np.arange(15)] = np.nan
    holes = fit(sides, (1,))
    np.testing.assert_allclose(holes.map_.scale[15:], plain.map_.scale[15:], rtol=0.01)
    np.testing.assert_allclose(holes.map_.scale, plain.map_.scale, rtol=0.05)


def test_subjects_count_for_less_with_gaps_too():
    sides = problem(4, n=80)
    repeated = [tuple(np.repeat(part, 5, axis=0) for part in side) for side in sides]
    groups = [np.repeat(np.arange(80), 5) + offset for offset in (0, 1000)]
    X, Z = zip(*(side[:2] for side in repeated))
    clustered = ConDoAdapter(shrinkage=None).fit_pair(*X, *Z, groups=groups)
    once = fit(sides, (1,), shrinkage=None)
    ratio = clustered.map_se_["offset"] / once.map_se_["offset"]
    np.testing.assert_allclose(ratio, 1, rtol=0.1)


def test_everything_is_counted():
    sides = problem(5)
    adapter = fit(sides, (1,))
    for j in range(4):
        expected = {
            name: int(np.isnan(side[0][:, j]).sum())
            for name, side in zip(("query", "reference"), sides)
        }
        assert adapter.report_["missing_features"][f"column {j}"] == expected
    complete = {
        name: int((~np.isnan(side[0]).any(axis=1)).sum())
        for name, side in zip(("query", "reference"), sides)
    }
    assert adapter.report_["complete_rows"] == complete
    assert fit(problem(share=0.0), (1,)).report_["missing_features"] == {}


def test_features_with_too_few_values():
    sides = problem(6)
    X = sides[0][0]
    X[3:, 1] = np.nan
    X[:3, 1] = [1.0, 2.0, 4.0]
    with pytest.warns(IdentifiabilityWarning, match="fewer than 5 values.*'column 1'. Their"):
        fit(sides, ())
    for Z, parameters in (((1,), {}), ((2,), {})):
        X[1:, 1] = np.nan
        with pytest.warns(IdentifiabilityWarning) as said:
            adapter = fit(sides, Z, **parameters)
        assert any("only shifted: 'column 1'" in str(w.message) for w in said)
        assert adapter.map_.scale[1] == 1
        assert np.isfinite(adapter.map_.offset).all()
    X[:, 1] = np.nan
    with pytest.raises(
        ValueError, match="All values of 'column 1' are missing in the 90 query rows.*`fea"
    ):
        fit(sides, ())
    X[sides[0][1] == "a", 1] = 1.0
    sides[1][0][sides[1][1] == "a", 1] = np.nan
    with pytest.raises(
        ValueError, match="'column 1', where values are known: confounder 'z1' has no level"
    ):
        fit(sides, (1,))


@pytest.mark.filterwarnings("ignore:The strata are too much alike:UserWarning")
@pytest.mark.parametrize(
    ("map", "divergence", "Z"),
    [
        ("affine", "likelihood", (1,)),
        ("affine", "reverse-kl", (1,)),
        ("affine", "ot", ()),
        ("orthogonal", "auto", (1,)),
        ("low-rank", "auto", (1,)),
        ("affine", "auto", (2,)),
        ("affine", "energy", (1,)),
        ("location-scale", "mmd", ()),
    ],
)
def test_matrices_and_samples_use_complete_rows_and_say_so(map, divergence, Z):
    sides = problem(7, n=300, share=0.05)
    known = [~np.isnan(X).any(axis=1) for X, *_ in sides]
    message = (
        rf"\d% of the query's.*values are missing.*{known[0].sum()} query and {known[1].sum()}"
    )
    with pytest.warns(IdentifiabilityWarning, match=message):
        adapter = fit(sides, Z, map=map, divergence=divergence)
    complete = fit(sides, Z, rows=known, map=map, divergence=divergence)
    np.testing.assert_allclose(adapter.map_.A, complete.map_.A, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(adapter.map_.b, complete.map_.b, rtol=1e-6, atol=1e-8)
    assert set(adapter.report_["missing_features"]) == {f"column {j}" for j in range(4)}


def test_too_few_complete_rows():
    sides = problem(8, share=0.0)
    for X, *_ in sides:
        X[2:, 3] = np.nan
        X[:9, 1] = np.nan
    for parameters in ({"divergence": "mmd"}, {"map": "low-rank"}, {"map": "affine"}):
        with pytest.raises(
            ValueError, match="Only 0 query rows and 0 reference.*'column 3', 'column 1': leave"
        ):
            fit(sides, (1,), **parameters)
    for X, *_ in sides:
        X[:5] = np.arange(20).reshape(5, 4) ** 1.5
    with pytest.warns(IdentifiabilityWarning, match="a location-scale map is fitted instead"):
        adapter = fit(sides, (), map="affine", shrinkage=None)
    np.testing.assert_allclose(adapter.map_.scale, fit(sides, (), shrinkage=None).map_.scale)


def test_the_ladder_climbs_with_gaps():
    rng = np.random.default_rng(10)
    Z = [rng.choice(["a", "b", "c"], 600) for _ in range(2)]
    spread = {"a": np.diag([1.0, 2.0, 0.5]), "b": np.diag([2.0, 0.5, 1.0]), "c": np.eye(3)}
    X = [np.stack([rng.normal(size=3) @ spread[k] for k in z]) for z in Z]
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    X[0] = X[0] @ turn.T
    for side in X:
        side[rng.random(side.shape) < 0.05] = np.nan
    adapter = ConDoAdapter("auto").fit_pair(*X, *Z)
    assert adapter.map_.kind == "dense"
    assert adapter.report_["missing_features"]
    X[0][:, 0] = np.where(rng.random(600) < 0.02, X[0][:, 0], np.nan)  # too few complete rows
    assert ConDoAdapter("auto").fit_pair(*X, *Z).map_.kind in ("diagonal", "monotone")


def test_pairs_with_gaps():
    sides = problem(11, share=0.02)
    rows = np.arange(30)
    X = [side[0] for side in sides]
    X[0][rows] = 2 * X[1][rows] - 1
    X[0][3, 1] = np.nan
    adapter = ConDoAdapter().fit_pair(*X, pairs=(rows, rows))
    known = ~np.isnan(np.hstack([x[:30] for x in X])).any(axis=1)
    assert adapter.report_["pairs"]["n_pairs"] == known.sum()
    X[0][:30, 0] = np.nan
    with pytest.raises(ValueError, match="All 30 'pairs' lack"):
        ConDoAdapter().fit_pair(*X, pairs=(rows, rows))


GAPS = np.array([[1.0, np.nan, 3.0], [np.nan, 2.0, 3.0], [1.0, 2.0, 3.0]])


def test_gaps_stay_gaps():
    diagonal = AffineMap([2.0, 3.0, 0.5], [1.0, 0.0, -1.0])
    np.testing.assert_array_equal(diagonal(GAPS), GAPS * [2, 3, 0.5] + [1, 0, -1])
    np.testing.assert_allclose(diagonal.inverse()(diagonal(GAPS)), GAPS)
    for dtype in (np.float64, np.float32):
        dense = AffineMap([[1.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]], [0.0, 0.0, 1.0])
        out = dense(GAPS.astype(dtype))
        assert out.dtype == dtype
        np.testing.assert_array_equal(out, [[np.nan, np.nan, 4], [np.nan, 4, 4], [3, 4, 4]])
    left, right = np.array([[1.0], [0.0], [0.0]]), np.array([[0.0], [1.0], [0.0]])
    low_rank = AffineMap([1.0, 2.0, 1.0], [0.0, 0.0, 1.0], left=left, right=right)
    np.testing.assert_array_equal(low_rank(GAPS), dense(GAPS))
    rectangular = AffineMap([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]], [0.0, 0.0])
    np.testing.assert_array_equal(rectangular(GAPS), [[1, np.nan], [np.nan, 5], [1, 5]])
    linked = AffineMap([1.0, 1.0, 1.0], [np.log(2), 0.0, 0.0], links=["log", 2.0, None])
    np.testing.assert_allclose(linked(GAPS), GAPS * [2, 1, 1])
    assert ConDoAdapter().__sklearn_tags__().input_tags.allow_nan
    bad = GAPS.copy()
    bad[2, 2] = np.inf
    for affine in (diagonal, dense, low_rank, linked):
        with pytest.raises(ValueError, match="X contains infinity, in 'column 2'"):
            affine(bad)
    with pytest.raises(ValueError, match="too large for float32"):
        AffineMap([1e30, 1e30, 1e30], [0.0, 0.0, 0.0])((GAPS * 1e30).astype(np.float32))


def test_links_fit_with_gaps():
    from condokit import LocationScale

    rng = np.random.default_rng(14)
    X = np.exp(rng.normal(size=(200, 2)))
    X[::7, 0] = np.nan
    adapter = ConDoAdapter(LocationScale(links="log"), shrinkage=None).fit_pair(3 * X, X)
    np.testing.assert_allclose(adapter.transform(3 * X), X, rtol=1e-10)


FRAMES = {
    "Int64": lambda a: pd.DataFrame({"a": pd.array(a, dtype="Int64"), "b": [1.0, 2.0, 4.0] * 10}),
    "Float64": lambda a: pd.DataFrame({"a": pd.array(a, dtype="Float64")}),
    "float32": lambda a: pd.DataFrame({"a": np.array(a, dtype=float)}, dtype="float32"),
    "arrow in pandas": lambda a: pd.DataFrame({"a": pd.array(a, dtype="int64[pyarrow]")}),
    "polars": lambda a: pl.DataFrame({"a": a}),
    "pyarrow": lambda a: pa.table({"a": a}),
    "objects": lambda a: np.array(a, dtype=object)[:, None],
}


@pytest.mark.parametrize("kind", FRAMES)
def test_nulls_of_every_kind(kind):
    values = [1, None, 3, 4, 7, None] * 5
    query = FRAMES[kind](values)
    reference = FRAMES[kind]([None if v is None else 2 * v for v in values])
    adapter = ConDoAdapter(shrinkage=None).fit_pair(query, reference, features=[0])
    name = "column 0" if kind == "objects" else "a"
    assert adapter.report_["missing_features"][name] == {"query": 10, "reference": 10}
    for out, expected in (
        (adapter.transform(query), 2 * np.array(values, dtype=float)),
        (adapter.inverse_transform(reference), np.array(values, dtype=float)),
    ):
        column = out[:, 0] if kind == "objects" else out["a"]
        column = column.to_numpy(zero_copy_only=False) if kind == "pyarrow" else column
        np.testing.assert_allclose(np.asarray(column, dtype=float), expected, rtol=1e-6)
