"""Subjects: sums against dense matrices, the ratio of variances, and designs with known answers."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from condokit import BatchAdapter, ConDoAdapter
from condokit.law.noise import NoiseModel
from condokit.law.stacked import Stacked, reduce, solve
from condokit.law.subjects import Subjects


def rows(seed, n=40, K=3, d=2, rho=2.5):
    """Rows of K batches, some of samples with a level of their own, some alone."""
    rng = np.random.default_rng(seed)
    batch, z = rng.integers(0, K, n), rng.normal(size=n)
    groups = rng.integers(0, 14, n)
    groups[:6] = np.arange(20, 26)  # alone
    bridge = np.where(groups < 4, groups, -1)
    U = np.column_stack([np.ones(n), z, np.sin(3 * z), np.cos(3 * z)])
    U[bridge >= 0] = 0
    D = np.column_stack([U, batch[:, None] == np.arange(1, K)])
    penalty = np.r_[0, 0, 2.0, 3.0, np.zeros(K - 1)]
    noise = NoiseModel.of_levels(np.zeros(n, dtype=int), 1, False)
    who = Subjects.of(groups, bridge, batch, K), np.atleast_1d(rho)
    at = Stacked(rng.normal(size=(n, d)), D, penalty, batch, K, 0, np.ones((n, 1)), noise, *who)
    return at, groups, bridge, rng


def dense(at, groups, bridge, w, j):
    """Return Q, n and B of feature j from matrices of rows by rows, free levels as columns."""
    rho, K, unknown = (
        at.rho[min(j, len(at.rho) - 1)],
        at.n_batches,
        at.counts[:, -1 if j else 0] == 0,
    )
    here, random = ~unknown, bridge < 0
    V = np.diag(1 / np.where(here, w, 1.0))
    for g in np.unique(groups[random]):
        mine = (groups == g) & random & here
        if mine.any():
            V += rho * np.outer(mine, mine) * mine.sum() / w[mine].sum()
    samples = bridge[:, None] == np.unique(bridge[~random])
    D = np.column_stack([at.D[:, :4], samples, at.D[:, 4:]])[here]
    penalty = np.r_[at.penalty[:4], np.zeros(samples.shape[1]), at.penalty[4:]]
    Vi = np.linalg.inv(V[np.ix_(here, here)])
    B = np.linalg.inv(D.T @ Vi @ D + np.diag(penalty))
    X = np.where(at.batch == np.arange(K)[:, None], at.X[:, j], 0.0)[:, here]
    VX, VD = Vi @ X.T, Vi @ D
    Q = X @ VX - (X @ VD) @ B @ (VD.T @ X.T)
    each = (D * (VD @ B))[:, penalty == 0].sum(1)
    n = [(1 - each)[at.batch[here] == b].sum() for b in range(K)]
    return Q, n, B[-K + 1 :, -K + 1 :]


@pytest.mark.parametrize("kind", ["equal", "shared", "each", "missing", "ratios"])
def test_sums_over_subjects_are_those_of_the_whole_covariance(kind):
    at, groups, bridge, rng = rows(0, rho=[0.4, 9.0] if kind == "ratios" else 2.5)
    n = len(groups)
    precision = (
        None
        if kind in ("equal", "ratios")
        else rng.uniform(0.3, 3, (n, 1 if kind == "shared" else 2))
    )
    if kind == "missing":
        counts = np.ones((n, 2))
        counts[[3, 9, 17, 25], 1] = 0
        at = replace(at, counts=counts, X=at.X * counts)
    found = reduce(at, precision)
    for j in range(2):
        w = np.ones(n) if precision is None else precision[:, min(j, precision.shape[1] - 1)]
        Q, n_eff, B = dense(at, groups, bridge, w, j)
        k = min(j, len(found.n_eff) - 1)
        np.testing.assert_allclose(found.Q[j], Q, atol=1e-8)
        np.testing.assert_allclose(found.n_eff[k], n_eff, atol=1e-8)
        np.testing.assert_allclose(found.B[:, :, k], B, atol=1e-8)


def test_residuals_are_independent_once_subjects_are_taken_off():
    rng = np.random.default_rng(0)
    n = 90
    batch, groups = np.arange(n) % 2, np.r_[np.arange(60) // 3, 100 + np.arange(30)]
    who = Subjects.of(groups, None, batch, 2), np.array([4.0])
    noise = NoiseModel.of_levels(np.zeros(n, dtype=int), 1, False)
    D = np.column_stack([np.ones(n), batch == 0])
    level = 2 * rng.normal(size=(130, 3000))[groups]
    X = level + rng.normal(size=(n, 3000))
    at = Stacked(X, D, np.zeros(2), batch, 2, 1, np.ones((n, 1)), noise, *who)
    found = solve(at, np.ones((3000, 2)))
    assert found.sigma2.mean() == pytest.approx(1, abs=0.01)
    products = found.e @ found.e.T / 3000
    np.testing.assert_allclose(np.diag(products) / (1 - found.reduced.h[:, 0]), 1, atol=0.15)
    assert np.abs(products - np.diag(np.diag(products))).max() < 0.12


def people(seed, visits, n=60, d=1, slope=0.1):
    """People scanned at A and three years later at B, who differ by ten times the noise."""
    rng = np.random.default_rng(seed)
    age, level, parts = rng.uniform(55, 80, n), 3 * rng.normal(size=(n, d)), []
    for site, later, shift in (("A", 0.0, 0.0), ("B", 3.0, 0.8)):
        for visit in range(visits):
            now = age + later + visit
            x = slope * now[:, None] + level + shift + 0.3 * rng.normal(size=(n, d))
            part = pd.DataFrame(x, columns=[f"x{j}" for j in range(d)])
            parts.append(part.assign(age=now, site=site, person=[f"p{i}" for i in range(n)]))
    return pd.concat(parts, ignore_index=True)


def by_hand(table):
    """Return the shift by generalised least squares with the true ratio of variances."""
    D = np.column_stack([np.ones(len(table)), table["age"] - 65, table["site"] == "B"])
    same = table["person"].to_numpy()[:, None] == table["person"].to_numpy()
    Vi = np.linalg.inv(np.eye(len(table)) + 100.0 * same)
    return np.linalg.solve(D.T @ Vi @ D, D.T @ Vi @ table["x0"].to_numpy())[2]


@pytest.mark.parametrize(("visits", "most"), [(1, 0.2), (2, 0.15)])
def test_people_seen_at_both_sites_tell_the_shift(visits, most):
    found = []
    for seed in range(20):
        table = people(seed, visits)
        roles = {"domain": "site", "confounders": "age", "features": ["x0"], "groups": "person"}
        x = table.loc[table["site"] == "B", ["x0"]].to_numpy()
        row = [by_hand(table) - 0.8]
        for shrinkage in (None, "auto"):
            adapter = ConDoAdapter(reference="A", shrinkage=shrinkage).fit(table, **roles)
            row.append(float((x - adapter.map_(x)).mean()) - 0.8)
        row.append(float(np.abs(row[-1]) < 1.96 * adapter.errors_.std(x).mean()))
        found.append(row)
    found = np.array(found)
    best, plain, default = np.sqrt((found[:, :3] ** 2).mean(axis=0))
    assert plain == pytest.approx(best, rel=0.03)
    # a shift that is small beside the spread between people may be none at all
    assert default < 1.42 * best
    assert np.abs(found[:, 2]).mean() < most
    assert found[:, 3].mean() >= 0.85


def unbalanced(seed, rho, n=40, d=12):
    """Subjects with one to five visits, more often in one domain than in the other."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(n), rng.integers(1, 6, n))
    query = rng.random(len(who)) < np.clip(rng.beta(0.7, 0.7, n), 0.02, 0.98)[who]
    z = rng.normal(size=n)[who] + 0.5 * rng.normal(size=len(who))
    y = z[:, None] + np.sqrt(rho) * rng.normal(size=(n, d))[who] + rng.normal(size=(len(who), d))
    domain = np.where(query, "query", "reference")
    return np.where(query[:, None], (y - 0.7) / 1.5, y), domain, z, who


@pytest.mark.parametrize("rho", [0.5, 2.0, 8.0])
def test_scales_of_unbalanced_visits_have_no_bias_and_errors_cover(rho):
    away, held, ratios = [], [], []
    for seed in range(25):
        X, domain, z, who = unbalanced(seed, rho)
        adapter = ConDoAdapter(shrinkage=None, warn_overlap=0)
        adapter.fit(X, domain=domain, confounders=z, groups=who)
        away.append(np.log(adapter.map_.scale / 1.5))
        for name, truth in (("scale", 1.5), ("offset", 0.7)):
            error = np.abs(getattr(adapter.map_, name) - truth)
            held.append(error < 1.96 * adapter.map_se_[name])
        ratios.append(adapter.report_.subject_ratio)
    assert np.abs(np.mean(away)) < 0.01
    assert 0.92 < np.mean(held) < 0.98
    assert np.abs(np.log(np.median(ratios) / rho)) < 0.25


def test_subjects_with_a_row_each_change_nothing():
    X, domain, z, _ = unbalanced(0, 2.0)
    adapter = ConDoAdapter(warn_overlap=0)
    alone = adapter.fit(X, domain=domain, confounders=z, groups=np.arange(len(X))).map_
    plain = adapter.fit(X, domain=domain, confounders=z).map_
    np.testing.assert_allclose(alone.scale, plain.scale, rtol=1e-10)
    np.testing.assert_allclose(alone.offset, plain.offset, atol=1e-10)


def test_weights_count_rows_of_a_subject():
    X, domain, z, who = unbalanced(0, 2.0)
    twice = np.repeat(np.arange(len(X)), 2)
    adapter = ConDoAdapter(warn_overlap=0, shrinkage=None)
    roles = {"domain": domain, "confounders": z, "groups": who}
    weighted = adapter.fit(X, **roles, sample_weight=np.full(len(X), 2.0))
    a, se = weighted.map_, weighted.map_se_
    b = adapter.fit(X[twice], **{name: given[twice] for name, given in roles.items()})
    np.testing.assert_allclose(a.scale, b.map_.scale, rtol=1e-6)
    np.testing.assert_allclose(a.offset, b.map_.offset, atol=1e-6)
    np.testing.assert_allclose(se["offset"], b.map_se_["offset"], rtol=0.02)


def travelling(seed, reliability=0.3, n=90, n_travel=10, d=12):
    """Ninety people, ten of whom were scanned by all three scanners; others by one."""
    rng = np.random.default_rng(seed)
    age, own = rng.uniform(20, 80, n), rng.integers(0, 3, n)
    truth = 0.03 * (age - 50)[:, None] * rng.normal(size=d) + rng.normal(size=(n, d))
    scale = np.exp(0.25 * rng.normal(size=(3, d)))
    offset = 0.7 * rng.normal(size=(3, d))
    scale[0], offset[0] = 1.0, 0.0
    who = np.r_[np.repeat(np.arange(n_travel), 3), np.arange(n_travel, n)]
    batch = np.r_[np.tile(np.arange(3), n_travel), own[n_travel:]]
    noise = reliability * np.exp(0.5 * rng.normal(size=d))
    y = truth[who] + noise * rng.normal(size=(len(who), d))
    sample = np.array([f"s{i}" if i < n_travel else None for i in who], dtype=object)
    return (y - offset[batch]) / scale[batch], y, batch, age[who], who, sample, scale, offset


def test_travelling_subjects_help_as_groups_and_as_bridges():
    error, held = [], []
    for seed in range(8):
        X, y, batch, age, who, sample, scale, offset = travelling(seed)
        roles = {"batch": batch, "confounders": age}
        row, mapped = [], batch > 0
        for more in ({}, {"groups": who}, {"bridge": sample}):
            adapter = BatchAdapter(reference=0).fit(X, **roles, **more)
            gap = (adapter.transform(X, batch=batch) - y)[mapped]
            row.append(np.sqrt((gap**2).mean() / y.var(axis=0).mean()))
            for b in (1, 2) if more else ():
                truth = X[batch == b] * scale[b] + offset[b]
                wrong = np.abs(adapter.maps_[b](X[batch == b]) - truth)
                held.append(np.mean(wrong < 1.96 * adapter.errors_[b].std(X[batch == b])))
        error.append(row)
    alone, groups, bridge = np.mean(error, axis=0)
    assert groups < 0.8 * alone
    assert bridge < 0.8 * alone
    assert 0.91 < np.mean(held) < 0.98


def test_slopes_between_and_within_subjects_differ_only_on_evidence():
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(120), 4)
    query = (who + (np.arange(480) % 4 == 0)) % 2 == 0  # a row of each in the other domain
    between = rng.normal(size=120)[who] + 0.8 * (who % 2 == 0)
    z = between + rng.normal(size=len(who))
    level = rng.normal(size=(120, 4))[who]
    noise = 0.5 * rng.normal(size=(len(who), 4))
    adapter = ConDoAdapter()
    names = np.where(query, "query", "reference")
    for slope, differ in ((0.0, False), (2.0, True)):
        X = z[:, None] + slope * between[:, None] + level + noise
        adapter.fit(X, domain=names, confounders=z, groups=who)
        assert ("subject means" in adapter.report_.mean_terms) == differ
        assert np.abs(adapter.transform(X[query]) - X[query]).mean() < 0.35
    # where everybody ages by three years between the sites, within tells the site alone
    table = people(0, 1, slope=0.5)
    table.loc[table["site"] == "B", "x0"] += 4.0
    roles = {"domain": "site", "confounders": "age", "features": ["x0"], "groups": "person"}
    adapter = ConDoAdapter(reference="A").fit(table, **roles)
    assert "subject means" not in adapter.report_.mean_terms


@pytest.mark.parametrize(("n", "visits", "most"), [(24, 3, 0.9), (40, 4, 0.85)])
def test_subjects_of_one_domain_are_compared_between_subjects(n, visits, most):
    """A third device knows people, not the days: its slope within subjects is none."""
    error = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        who, level = np.repeat(np.arange(n), visits), 3 * rng.normal(size=n)
        query = (2 * rng.normal(size=n) + level > 0)[who]
        own, third = (
            (level + 0.7 * rng.normal(size=n))[who] + 0.3 * rng.normal(size=len(who))
            for _ in range(2)
        )
        adapter = ConDoAdapter(warn_overlap=0, min_overlap=0, shrinkage=None)
        names = np.where(query, "query", "reference")
        adapter.fit(own[:, None], domain=names, confounders=third, groups=who)
        error.append(np.abs(adapter.transform(own[query, None])[:, 0] - own[query]).mean())
    assert np.mean(error) < most
