"""Continuous confounders of rows that are read again: a sample chooses, all rows estimate."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from reading import from_pair

from condokit import ConDoAdapter
from condokit.compare.comparison import compare
from condokit.data.covariates import standard_units
from condokit.data.grouped import GroupedMoments
from condokit.data.sums import CellSums, Sums
from condokit.law import estimate
from condokit.law.estimate import Frame, fit_law
from condokit.law.noise import NoiseModel
from condokit.law.stacked import solve
from condokit.law.streams import Columns, PlainProducts, State, WeightedSums
from condokit.law.weights import fit_weights
from condokit.summaries.rows import Rows

sys.path.insert(0, str(Path(__file__).parent))
from test_estimate import read  # noqa: E402


def draw(seed=1, n=12000, K=3, tails=False, noise=0.0, curve=np.square):
    """Return features, which are query rows, a confounder and levels, of both domains."""
    rng = np.random.default_rng(seed)
    q, k = np.arange(2 * n) < n, rng.integers(0, K, 2 * n)
    z = rng.normal(0.4 * q, 1)
    e = rng.standard_t(3, (2 * n, 3)) if tails else rng.normal(size=(2 * n, 3))
    x = rng.normal(size=(K, 3))[k] + np.outer(curve(z), rng.uniform(0.5, 1.5, 3))
    x += np.exp(0.3 * (k - 1) + noise * z)[:, None] * e
    x[q] = (x[q] - 1) / 1.5
    return x, q, z[:, None], k


def streamed(x, q, Z, k, n_sample=4000, n_blocks=5, passes=None, shuffled=0):
    """Return a sample of rows, and sums of all of them that are read in blocks."""
    L, rng = int(k.max()) + 1, np.random.default_rng(0)
    cell = k + L * ~q
    some = [rng.permutation(np.flatnonzero(cell == c)) for c in range(2 * L)]
    some = np.sort(np.concatenate([own[: n_sample // (2 * L)] for own in some]))
    some = np.concatenate([some[q[some]], some[~q[some]]])
    names = np.array([f"level {one}" for one in k], dtype=object)
    frame = pd.DataFrame({"z": Z[some, 0], "level": names[some]})
    mine = q[some]
    parts = x[some][mine], x[some][~mine], frame[mine], frame[~mine]
    domains = from_pair(*parts, None, None, None, "raise")
    moments = GroupedMoments(2 * L, x.shape[1], products=True)
    moments.update(x, cell, None, np.isnan(x) if np.isnan(x).any() else None)

    def again(make, features):
        order = np.random.default_rng(shuffled).permutation(len(x))
        found = []
        for rows in np.array_split(order, n_blocks):
            found.append(make())
            found[-1].update(x[rows][:, features], Z[rows], cell[rows], None)
        for part in found[1:]:
            found[0].merge(part)
        if passes is not None:
            passes.append(len(features))
        return found[0]

    cells = CellSums(moments)
    cells.ties.update(x[some], (~mine).astype(int))
    sums = Sums(cells, np.arange(2 * L) // L, cell[some], are_rows=True, again=again)
    domains = replace(domains, sums=sums, weights=sums.weights)
    return Rows.read(domains, compare(domains, by_rows=True, quiet=True), True)


def away(one, other):
    """Return how far maps are apart, in standard errors."""
    image = one.image + one.scale * (other.centre - one.centre)
    scale = np.log(one.scale / other.scale) / other.se_log_scale
    return np.abs([scale, (image - other.image) / other.se_image])


def test_lines_are_those_of_all_rows_to_rounding():
    data, passes = draw(curve=lambda z: z), []
    x, q, Z, k = data
    found = fit_law(streamed(*data, passes=passes), True).solution()
    rows = read(x, q, Z=Z, category=k)
    whole = fit_law(rows, True).solution()
    assert passes == [3]  # one pass beside the one that samples
    assert away(found, whole).max() < 1e-3
    np.testing.assert_allclose(found.se_log_scale, whole.se_log_scale, rtol=0.1)


@pytest.mark.parametrize(("n_blocks", "shuffled"), [(1, 1), (30, 2)])
def test_a_design_on_all_rows_is_that_of_blocks(n_blocks, shuffled):
    data = draw(n=4000)
    x, q, Z, k = data
    rows = streamed(*data, n_sample=2000, n_blocks=n_blocks, shuffled=shuffled)
    found = fit_law(rows, True).solution()
    at = replace(rows.covariates, weights=None)
    fixed = np.column_stack([np.full(3, np.nan), np.ones(3)])
    none = estimate.Discrete(*np.zeros((4, 3), dtype=bool))
    law = estimate.law_of(replace(rows, covariates=at), rows.values(), fixed, none)
    z = standard_units(rows.domains.continuous[0].values[rows.used])(Z[:, 0])
    side = (~q).astype(int)
    law.frame = Frame(replace(at, Z=z[:, None], category=k), side, 2, 1)
    law.noise = NoiseModel.of_levels(k, 3, law.noise.levels)
    stacked = law.stacked((x - rows.mean[side]) / rows.unit[side])
    exact = fit_weights(stacked, solve(stacked, fixed), fixed, np.zeros(3, bool), law.n_effective)
    np.testing.assert_allclose(found.scale * rows.unit[0] / rows.unit[1], exact.s[:, 0], rtol=1e-8)
    T = exact.reduced.T[:, -1]
    np.testing.assert_allclose(found.centre, rows.mean[0] + T[0] * rows.unit[0], atol=1e-8)
    np.testing.assert_allclose(found.image, rows.mean[1] - T[1] * rows.unit[1], atol=1e-8)


@pytest.mark.parametrize(("tails", "noise"), [(True, 0.0), (False, 0.3), (True, 0.3)])
def test_weights_settle_where_those_of_all_rows_do(tails, noise):
    data, passes = draw(tails=tails, noise=noise, curve=lambda z: z), []
    x, q, Z, k = data
    found = fit_law(streamed(*data, passes=passes), True).solution()
    rows = read(x, q, Z=Z, category=k)
    whole = fit_law(rows, True).solution()
    assert away(found, whole).max() < 0.1
    assert 2 < len(passes) < 12
    np.testing.assert_array_equal(found.law["heavy_tails"], whole.law["heavy_tails"])
    np.testing.assert_allclose(found.se_log_scale, whole.se_log_scale, rtol=0.15)
    np.testing.assert_allclose(found.se_image, whole.se_image, rtol=0.1)


def test_values_are_missing_in_blocks():
    x, q, Z, k = draw(curve=lambda z: z)
    gone = np.random.default_rng(5).random(len(x)) < 0.3
    whole = fit_law(
        read(x[~gone][:, [1]], q[~gone], Z=Z[~gone], category=k[~gone]), True
    ).solution()
    x = x[:, [1]].copy()
    x[gone] = np.nan
    rows = streamed(x, q, Z, k)
    found = fit_law(rows, True).solution()
    assert away(found, whole).max() < 1e-3


def test_weighted_sums_do_not_depend_on_blocks_and_are_those_written_out():
    x, q, Z, k = draw(n=600, noise=0.3)
    rows = streamed(x, q, Z, k, n_sample=600)
    at = replace(rows.covariates, weights=None)
    design, _ = estimate.free_columns(at)
    noise = NoiseModel(at.category, 3, True, at.Z, np.ones(1), ("z0",), (lambda rows: rows.Z,))
    standards = [standard_units(rows.domains.continuous[0].values[rows.used])]
    columns = Columns(design, noise, at, standards, rows.place())
    rng, units = np.random.default_rng(0), rows.units(np.arange(3))
    c = len(columns.penalty) + 1
    state = State(units, np.ones((2, 3)), rng.normal(size=(c, 3)), np.ones(3), np.full(3, 4.0),
                  rng.normal(size=(3, 3)), rng.normal(size=(1, 3)), np.ones(3))  # fmt: skip
    cell = k + 3 * ~q
    one, two = WeightedSums(columns, state), WeightedSums(columns, state)
    one.update(x, Z, cell)
    for part in np.array_split(rng.permutation(len(x)), 9):
        more = WeightedSums(columns, state)
        more.update(x[part], Z[part], cell[part])
        two.merge(more)
    for name, table in one.tables.items():
        np.testing.assert_allclose(table, two.tables[name], rtol=1e-9, atol=1e-9)
    plain = PlainProducts(columns, 3)
    plain.update(x, Z, cell)
    z, side = standards[0](Z[:, 0])[:, None], (~q).astype(int)
    U = design.columns(replace(at, Z=z, category=k))[0]
    e = (x - units[0][side]) / units[1][side] - np.column_stack([U, q]) @ state.theta
    v = np.exp(state.level[k] + z @ state.gamma)
    precision = 5 / (4 + e**2 / v) / v
    for j in range(3):
        found = one.products(j)
        for g in range(6):
            mine = cell == g
            np.testing.assert_allclose(found.count[g], precision[mine, j].sum())
            mean = precision[mine, j] @ z[mine, 0] / precision[mine, j].sum()
            np.testing.assert_allclose(found.mean[g, 0], mean)
    np.testing.assert_allclose(plain.products.count, np.bincount(cell))
    assert partial(WeightedSums, columns, state)().tables["rows"].sum() == 0


@pytest.mark.parametrize("tails", [False, True])
def test_lazy_tables_in_any_chunks_have_the_map_of_rows(monkeypatch, tails):
    pl = pytest.importorskip("polars")
    monkeypatch.setattr("condokit.data.reader._SAMPLED", 2000)
    x, q, Z, k = draw(n=6000, tails=tails, curve=lambda z: z)
    columns = {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "z": Z[:, 0], "k": k.astype(str)}
    frame = pl.DataFrame({**columns, "d": np.where(q, "new", "old")})
    roles = {"domain": "d", "confounders": ["z", "k"], "features": ["a", "b", "c"]}
    maps = []
    for some in (frame.lazy(), frame.sample(fraction=1.0, shuffle=True, seed=1).lazy()):
        found = ConDoAdapter(reference="old", shrinkage=None).fit(some, **roles)
        maps.append(found.map_)
    np.testing.assert_allclose(maps[0].scale, maps[1].scale, rtol=1e-9)
    np.testing.assert_allclose(maps[0].offset, maps[1].offset, atol=1e-9)
    rows = ConDoAdapter(reference="old", shrinkage=None).fit(frame, **roles)
    assert (np.abs(maps[0].scale - rows.map_.scale) < 0.1 * rows.errors_.of_scale).all()
    assert (np.abs(maps[0].offset - rows.map_.offset) < 0.1 * rows.errors_.of_image).all()
