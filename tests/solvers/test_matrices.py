"""Full matrices: objectives, solvers and what divergences make of them."""

import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import check_map_gradients, random_gaussians
from protocols import SCENARIOS, ansur, categorical2d, rmse, rotations
from scipy.optimize import minimize as scipy_minimize
from scipy.stats import ortho_group

from condokit import (
    Affine,
    Blocks,
    ConDoAdapter,
    ForwardKL,
    GaussianOT,
    IdentifiabilityWarning,
    Jeffreys,
    Orthogonal,
    PCMatch,
    PooledLikelihood,
    ReverseKL,
    Similarity,
)
from condokit.solvers.descent import free
from condokit.solvers.gaussian_kl import KLObjective, gap
from condokit.solvers.matrices import LikelihoodObjective
from condokit.solvers.starts import starts, transport_matrix
from condokit.solvers.units import Units
from condokit.summaries.covariances import GaussianPair

OBJECTIVES = {
    "reverse": KLObjective,
    "forward": lambda units: KLObjective(units, forward=True),
    "likelihood": LikelihoodObjective,
}
SEARCHED = [ReverseKL(), ForwardKL(), Jeffreys(), PooledLikelihood()]


def random_pair(seed, n_values=3, n_features=3):
    rng = np.random.default_rng(seed)
    query, reference = (random_gaussians(rng, n_values, n_features) for _ in range(2))
    return GaussianPair(query, reference, rng.dirichlet(np.ones(n_values)))


def pushed(gaussians, A, b):
    """The law of A x + b."""
    from condokit.summaries.covariances import Gaussians

    return Gaussians(gaussians.mean @ A.T + b, A @ gaussians.cov @ A.T, gaussians.count)


def kl_written_out(A, b, pair):
    """KL divergence of mapped query from reference, from its definition."""
    total = 0.0
    for k, w in enumerate(pair.weights):
        C, S = A @ pair.query.cov[k] @ A.T, pair.reference.cov[k]
        r = A @ pair.query.mean[k] + b - pair.reference.mean[k]
        P = np.linalg.inv(S)
        logs = np.log(np.linalg.det(S)) - np.log(np.linalg.det(C))
        total += w * 0.5 * (np.trace(P @ C) + r @ P @ r - len(r) + logs)
    return total


@pytest.mark.parametrize("kind", ["white", "feature", "common"])
def test_units_go_back_and_forth(kind):
    pair = random_pair(0)
    units = Units(pair, kind)
    rng = np.random.default_rng(1)
    A, b = rng.normal(size=(3, 3)), rng.normal(size=3)
    again = units.decode(*units.encode(A, b))
    np.testing.assert_allclose(again[0], A)
    np.testing.assert_allclose(again[1], b)
    if kind == "white":
        for side in (units.query, units.reference):
            mean, cov = side.balanced(pair.weights)
            np.testing.assert_allclose(mean, 0, atol=1e-12)
            np.testing.assert_allclose(cov, np.eye(3), atol=1e-10)
    else:
        np.testing.assert_allclose(units.encode(np.eye(3), b)[0], np.eye(3), atol=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("kind", ["white", "feature", "common"])
def test_gradients_agree_with_finite_differences(name, kind):
    objective = OBJECTIVES[name](Units(random_pair(2), kind))
    rng = np.random.default_rng(0)
    B, c = rng.normal(size=(3, 3)), rng.normal(size=3)
    check_map_gradients(objective, B, c, rel=1e-5, abs=1e-6)


def test_the_objective_is_the_divergence_in_any_units():
    pair = random_pair(3)
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(3, 3)), rng.normal(size=3)
    expected = kl_written_out(A, b, pair)
    swapped = kl_written_out(np.linalg.inv(A), -np.linalg.inv(A) @ b, pair.swapped())
    values = {name: set() for name in OBJECTIVES}
    for kind in ("white", "feature", "common"):
        units = Units(pair, kind)
        for name, make in OBJECTIVES.items():
            values[name].add(round(make(units)(*units.encode(A, b))[0], 8))
    assert values["reverse"] == {round(expected, 8)}
    assert values["forward"] == {round(swapped, 8)}
    assert len(values["likelihood"]) == 1
    assert gap(A, b, pair) == pytest.approx(expected)


def test_the_likelihood_is_that_of_the_rows():
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(2, 2)), rng.normal(size=2)
    rows = [
        [rng.normal(size=(n, 2)) + k for k, n in enumerate(sizes)] for sizes in ((7, 9), (8, 5))
    ]
    sides = []
    for side in rows:
        cov = np.array([np.cov(x.T, bias=True) for x in side])
        mean = np.array([x.mean(axis=0) for x in side])
        sides.append(random_gaussians(rng, 2, 2, mean, cov, [len(x) for x in side]))
    units = Units(GaussianPair(*sides, np.array([0.4, 0.6])), "white")
    value = LikelihoodObjective(units)(*units.encode(A, b))[0]
    total = -16 * np.log(abs(np.linalg.det(A)))
    for x, y in zip(*rows):
        both = np.vstack([x @ A.T + b, y])
        total += len(both) / 2 * np.log(np.linalg.det(np.cov(both.T, bias=True)))
    assert value == pytest.approx(total / 16)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 4))
def test_newton_finds_the_minimum_of_the_written_out_divergence(seed, n_values, n_features):
    pair = random_pair(seed, n_values, n_features)
    units = Units(pair, "white")
    objective = KLObjective(units)
    B, c, value, _, gradient = objective.solve(np.eye(n_features), np.zeros(n_features))
    near = objective.explore(B, c)
    assert near[2] == pytest.approx(value, abs=1e-9)  # two ways to the same number
    A, b = units.decode(B, c)
    assert gradient < 1e-6
    here = kl_written_out(A, b, pair)
    n = n_features**2
    shape = (n_features, n_features)

    def function(v):
        A = v[:n].reshape(shape)
        return kl_written_out(A, v[n:], pair) if np.linalg.det(A) > 0 else 1e6

    begin = np.concatenate([A.ravel(), b])
    best = scipy_minimize(function, begin * (1 + 1e-3), method="BFGS")
    assert here <= best.fun + 1e-7


def test_the_expected_divergence_is_that_of_samples_of_one_law():
    rng = np.random.default_rng(0)
    sizes = np.array([40, 60]), np.array([50, 30])
    values = []
    for _ in range(300):
        sides = []
        for rows in sizes:
            samples = [rng.normal(size=(n, 4)) for n in rows]
            cov = np.array([np.cov(x.T) for x in samples])
            mean = np.array([x.mean(axis=0) for x in samples])
            sides.append(random_gaussians(rng, 2, 4, mean, cov, rows))
        pair = GaussianPair(*sides, np.array([0.3, 0.7]))
        values.append(gap(np.eye(4), np.zeros(4), pair))
    expected = KLObjective(Units(pair, "white")).expected()
    assert expected == pytest.approx(np.mean(values), rel=0.05)


@pytest.mark.parametrize("n_values", [1, 2])
def test_row_sweeps_reach_the_same_minimum_as_newton(n_values):
    for seed in range(5):
        units = Units(random_pair(seed, n_values, 5), "white")
        objective = KLObjective(units)
        values = []
        newton = objective._newton(np.eye(5), 100)[0]  # near it, for there may be several minima
        near = newton + 0.01 * np.random.default_rng(seed).normal(size=(5, 5))
        for B in (newton, objective._row_sweeps(near, 500)[0]):
            c = objective.offset(B)
            value, d_B, d_c = objective(B, c)
            assert max(np.abs(d_B).max(), np.abs(d_c).max()) < 1e-6
            values.append(value)
        assert values[0] == pytest.approx(values[1], abs=1e-9)


def test_a_search_never_crosses_singular_matrices():
    pair = random_pair(4, 3, 3)
    units = Units(pair, "white")
    turned = np.diag([-1.0, 1.0, 1.0])
    for begin in (np.eye(3), turned):
        sign = np.linalg.det(begin)
        for B in (
            KLObjective(units).solve(begin, np.zeros(3))[0],
            free(LikelihoodObjective(units), begin, np.zeros(3))[0],
        ):
            assert np.sign(np.linalg.det(B)) == sign


@pytest.mark.parametrize("divergence", SEARCHED, ids=repr)
def test_a_known_matrix_is_recovered_from_exact_moments(divergence):
    rng = np.random.default_rng(0)
    A, b = ortho_group.rvs(4, random_state=1) @ np.diag([0.5, 1, 2, 3]), rng.normal(size=4)
    if np.linalg.det(A) < 0:
        A[:, 0] *= -1
    query = random_gaussians(rng, 3, 4)
    pair = GaussianPair(query, pushed(query, A, b), np.full(3, 1 / 3))
    solution = divergence.solve(Affine(), pair)
    np.testing.assert_allclose(solution.A, A, atol=1e-4)
    np.testing.assert_allclose(solution.b, b, atol=1e-4)
    assert solution.facts()["flips_orientation"] is False
    assert set(solution.starts) <= {name for name, *_ in starts(Units(pair, "white"), pair, 30)}


@pytest.mark.parametrize("divergence", SEARCHED, ids=repr)
@pytest.mark.parametrize("family", [Orthogonal(), Similarity()], ids=repr)
def test_rigid_maps_are_recovered_even_if_they_are_reflections(divergence, family):
    rng = np.random.default_rng(0)
    Q = ortho_group.rvs(4, random_state=2)
    Q[0] *= -np.sign(np.linalg.det(Q))
    scale = 1.7 if family.has_scale else 1.0
    query = random_gaussians(rng, 3, 4)
    pair = GaussianPair(query, pushed(query, scale * Q, np.ones(4)), np.full(3, 1 / 3))
    solution = divergence.solve(family, pair)
    np.testing.assert_allclose(solution.A, scale * Q, atol=1e-4)
    assert solution.gradient_norm < 1e-3
    assert solution.facts()["flips_orientation"] is True


def test_a_reflection_needs_evidence():
    # a single Gaussian says nothing about orientation
    query = random_gaussians(np.random.default_rng(0), 1, 3)
    pair = GaussianPair(query, query, np.ones(1))
    for divergence in SEARCHED:
        assert np.linalg.det(divergence.solve(Affine(), pair).A) > 0


@pytest.mark.parametrize("divergence", SEARCHED, ids=repr)
def test_penalties_pull_to_the_identity_and_bounds_hold(divergence):
    pair = random_pair(6, 3, 3)
    units = Units(pair, "feature")

    def size(family):
        B = units.encode(*_parts(divergence.solve(family, pair)))[0]
        return np.abs(B - np.eye(3)), B

    for name in ("l1", "l2"):
        sizes = [size(Affine(**{name: amount}))[0].sum() for amount in (0.001, 0.1, 5.0)]
        assert sizes[0] > sizes[1] > sizes[2]
    assert (size(Affine(l1=1.0))[0] < 1e-9).sum() > (size(Affine(l2=1.0))[0] < 1e-9).sum()
    assert size(Affine(nonnegative=True))[1].min() >= -1e-12


def test_a_penalised_map_is_the_minimum_of_its_objective():
    pair = random_pair(7, 2, 2)
    units = Units(pair, "feature")
    objective = KLObjective(units)
    solution = ReverseKL().solve(Affine(l2=0.3), pair)

    def function(v):
        B = v[:4].reshape(2, 2)
        if np.linalg.det(B) <= 0:
            return 1e6
        return objective(B, v[4:])[0] + 0.3 * ((B - np.eye(2)) ** 2).sum()

    B, c = units.encode(solution.A, solution.b)
    here = function(np.concatenate([B.ravel(), c]))
    best = scipy_minimize(function, np.concatenate([B.ravel() + 0.01, c]), method="BFGS")
    assert here <= best.fun + 1e-6


def test_forward_kl_is_the_inverse_of_reverse_kl_of_swapped_domains():
    pair = random_pair(8)
    forward = ForwardKL().solve(Affine(), pair)
    back = ReverseKL().solve(Affine(), pair.swapped())
    np.testing.assert_allclose(forward.A @ back.A, np.eye(3), atol=1e-8)
    units = Units(pair, "white")
    objective = KLObjective(units, forward=True)
    _, d_B, d_c = objective(*units.encode(forward.A, forward.b))
    assert max(np.abs(d_B).max(), np.abs(d_c).max()) < 1e-6


def test_transport_without_confounders_is_the_classical_map():
    rng = np.random.default_rng(0)
    X_query = rng.normal(size=(80, 4)) @ rng.normal(size=(4, 4)) + 3
    X_reference = rng.normal(size=(80, 4)) @ rng.normal(size=(4, 4))
    ours = ConDoAdapter(map="affine").fit_pair(X_query, X_reference)
    assert ours.divergence_ == "ot"
    theirs = ot.da.LinearTransport(reg=0).fit(Xs=X_query, Xt=X_reference)
    np.testing.assert_allclose(ours.transform(X_query), theirs.transform(X_query), rtol=1e-9)
    A, b = ot.gaussian.bures_wasserstein_mapping(
        X_query.mean(axis=0), X_reference.mean(axis=0), np.cov(X_query.T), np.cov(X_reference.T)
    )
    np.testing.assert_allclose(ours.map_.A, A, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ours.map_.b, b.ravel(), rtol=1e-9, atol=1e-12)


def test_transport_with_confounders_matches_balanced_moments():
    pair = random_pair(9)
    solution = GaussianOT().solve(Affine(), pair)
    mean, cov = pushed(pair.query, solution.A, solution.b).balanced(pair.weights)
    np.testing.assert_allclose(mean, pair.reference.balanced(pair.weights)[0])
    np.testing.assert_allclose(cov, pair.reference.balanced(pair.weights)[1])
    np.testing.assert_allclose(solution.A, solution.A.T, atol=1e-12)
    np.testing.assert_allclose(transport_matrix(np.eye(2), np.diag([4.0, 9.0])), np.diag([2, 3]))


def test_matched_axes_find_a_rotation_that_one_covariance_cannot():
    rng = np.random.default_rng(0)
    Q = ortho_group.rvs(5, random_state=3)
    Q[0] *= np.sign(np.linalg.det(Q))
    sizes = np.array([8.0, 5.0, 3.0, 2.0, 1.0])
    truth, X_reference = ((rng.exponential(size=(4000, 5)) - 1) * sizes for _ in range(2))
    adapter = ConDoAdapter(map="orthogonal").fit_pair(truth @ Q.T, X_reference)
    assert adapter.divergence_ == "pc-match"
    assert rmse(adapter.transform(truth @ Q.T), truth) < 0.35
    np.testing.assert_allclose(adapter.map_.A @ adapter.map_.A.T, np.eye(5), atol=1e-10)
    similar = ConDoAdapter(map="similarity").fit_pair(2 * truth @ Q.T, X_reference)
    assert np.linalg.svd(similar.map_.A)[1] == pytest.approx(np.full(5, 0.5), rel=0.05)


def test_what_does_not_fit_together_is_refused():
    pair = random_pair(0)
    with pytest.raises(ValueError, match="'ot' finds diagonal maps and map='affine'"):
        GaussianOT().solve(Orthogonal(), pair)
    with pytest.raises(ValueError, match="'pc-match' takes no penalty"):
        PCMatch().solve(Affine(l2=1.0), pair)
    with pytest.raises(ValueError, match="variant='paper' of ReverseKL is for diagonal"):
        ReverseKL(variant="paper").solve(Affine(), pair)
    with pytest.raises(ValueError, match="l2 of Affine"):
        ReverseKL().solve(Affine(l2=-1.0), pair)
    data = rotations(3, 2, 40, 0)
    rows = (data.X_query, data.X_reference, data.Z_query, data.Z_reference)
    with pytest.raises(ValueError, match="PCMatch finds full matrices, not LocationScale"):
        ConDoAdapter(divergence="pc-match").fit_pair(*rows)
    with pytest.raises(ValueError, match="'groups' of Blocks is empty"):
        ConDoAdapter(map="blocks").fit_pair(*rows)
    with pytest.raises(ValueError, match="names 'column 9', which is no feature"):
        ConDoAdapter(map=Blocks([["column 9"]])).fit_pair(*rows)
    with pytest.raises(ValueError, match="names 'column 1' twice"):
        ConDoAdapter(map=Blocks([[0, 1], [1, 2]])).fit_pair(*rows)


@pytest.mark.parametrize(
    ("n_features", "n_strata", "n", "most"), [(5, 4, 500, 0.13), (3, 3, 500, 0.2)]
)
def test_rotations_are_undone(n_features, n_strata, n, most):
    errors = []
    for seed in range(5):
        data = rotations(n_features, n_strata, 500, seed)
        adapter = ConDoAdapter(map="affine", divergence="likelihood").fit_pair(
            data.X_query, data.X_reference, data.Z_query, data.Z_reference
        )
        errors.append(rmse(adapter.transform(data.X_query), data.truth))
    assert np.median(errors) < most
    report = adapter.report_
    assert report["gradient_norm"] < 1e-3
    assert report["condition_number"] == pytest.approx(np.linalg.cond(adapter.map_.A))


def test_rings_are_mapped_with_the_right_orientation():
    for seed in range(3):
        pairs = categorical2d(seed)
        for scenario in SCENARIOS:
            data = pairs[scenario]
            adapter = ConDoAdapter(map="affine", divergence="reverse-kl").fit_pair(
                data.X_query, data.X_reference, data.Z_query, data.Z_reference
            )
            assert rmse(adapter.transform(data.X_heldout), data.truth_heldout) < 0.5


def test_ansur_needs_matched_axes(needs_data):
    data = ansur(100, shift="affine")
    adapter = ConDoAdapter(map="affine").fit_pair(
        data.X_query, data.X_reference, data.Z_query, data.Z_reference
    )
    assert adapter.divergence_ == "pc-match"
    assert rmse(adapter.transform(data.X_query), data.truth) < 0.75


def test_a_continuous_confounder_identifies_a_matrix():
    rng = np.random.default_rng(3)
    curve, F = rng.normal(size=(3, 4)), rng.normal(size=(4, 2))

    def draw(low, high):
        z = rng.uniform(low, high, 400)
        noise = rng.normal(size=(400, 2)) @ F.T + 0.4 * rng.normal(size=(400, 4))
        mean = np.column_stack([z, np.sin(2 * z), z**2 / 3]) @ curve
        return mean + 0.25 * (0.5 + 0.3 * z[:, None]) * noise, z

    (truth, z_query), (X_reference, z_reference) = draw(1, 4), draw(0, 3)
    A = rng.normal(size=(4, 4))
    A[0] *= np.sign(np.linalg.det(A))
    X_query = truth @ A.T + 1
    errors = {}
    for kind in ("location-scale", "affine"):
        adapter = ConDoAdapter(map=kind, divergence="likelihood")
        adapter.fit_pair(X_query, X_reference, z_query, z_reference)
        errors[kind] = rmse(adapter.transform(X_query), truth)
    assert errors["affine"] < 0.2 * errors["location-scale"]


def test_blocks_are_full_inside_and_diagonal_outside():
    data = rotations(4, 4, 400, 1)
    rng = np.random.default_rng(0)
    extra = rng.normal(size=(len(data.X_query), 1)), rng.normal(size=(len(data.X_reference), 1))
    X_query = np.hstack([data.X_query, 3 * extra[0] + 1])
    X_reference = np.hstack([data.X_reference, extra[1]])
    adapter = ConDoAdapter(map=Blocks([[0, 1, 2, 3]])).fit_pair(
        X_query, X_reference, data.Z_query, data.Z_reference
    )
    A = adapter.map_.A
    assert (A[:4, 4] == 0).all()
    assert (A[4, :4] == 0).all()
    assert A[4, 4] == pytest.approx(1 / 3, rel=0.1)
    alone = ConDoAdapter(map="affine", divergence="likelihood").fit_pair(
        data.X_query, data.X_reference, data.Z_query, data.Z_reference
    )
    np.testing.assert_allclose(A[:4, :4], alone.map_.A, rtol=1e-6)


def test_shrinkage_by_a_number_goes_to_the_identity():
    data = rotations(3, 3, 100, 0)
    rows = (data.X_query, data.X_reference, data.Z_query, data.Z_reference)
    maps = [
        ConDoAdapter(map="affine", divergence="reverse-kl", shrinkage=s).fit_pair(*rows).map_
        for s in (None, 0.5, 1.0)
    ]
    np.testing.assert_allclose(maps[1].A, (maps[0].A + np.eye(3)) / 2)
    np.testing.assert_allclose(maps[2].A, np.eye(3))
    np.testing.assert_allclose(maps[2].b, 0, atol=1e-12)


@pytest.mark.parametrize("divergence", ["auto", "reverse-kl", "likelihood", "ot", "pc-match"])
@pytest.mark.parametrize("shrinkage", ["auto", None])
@pytest.mark.filterwarnings("ignore::condokit.IdentifiabilityWarning")
def test_difficult_features_give_finite_maps(divergence, shrinkage):
    data = rotations(3, 2, 30, 0)
    rng = np.random.default_rng(0)

    def spoil(X):
        copies = [X, X[:, :1], X[:, :1] + X[:, 1:2], np.full((len(X), 1), 7.0)]
        return np.hstack(copies)  # a duplicate, a sum, a constant

    X_query, X_reference = spoil(data.X_query), spoil(data.X_reference)
    adapter = ConDoAdapter(map="affine", divergence=divergence, shrinkage=shrinkage)
    adapter.fit_pair(X_query, X_reference, data.Z_query, data.Z_reference)
    assert np.isfinite(adapter.transform(X_query)).all()
    assert adapter.map_.A[5, 5] == 1
    wide = rng.normal(size=(30, 40)), rng.normal(size=(25, 40))  # more features than rows
    with pytest.warns(IdentifiabilityWarning, match="location-scale map is fitted instead"):
        adapter = ConDoAdapter(map="affine", divergence=divergence, shrinkage=shrinkage).fit_pair(
            *wide, rng.choice(["a", "b"], 30), rng.choice(["a", "b"], 25)
        )
    assert adapter.map_.kind == "diagonal"


@pytest.mark.parametrize("divergence", ["ot", "likelihood", "reverse-kl", "jeffreys"])
def test_units_of_features_do_not_matter(divergence):
    data = rotations(4, 4, 200, 1)
    units = np.array([1e-8, 1.0, 1e3, 1e8])
    rows = data.X_query, data.X_reference
    adapter = ConDoAdapter("affine", divergence=divergence)
    plain = adapter.fit_pair(*rows, data.Z_query, data.Z_reference).transform(rows[0])
    scaled = [X * units for X in rows]
    adapted = adapter.fit_pair(*scaled, data.Z_query, data.Z_reference).transform(scaled[0])
    if divergence == "ot":  # which does depend on units, but always matches the spread
        sd = [
            np.sqrt(np.mean([X[z == Z].var(axis=0) for z in np.unique(Z)], axis=0))
            for X, Z in ((adapted, data.Z_query), (scaled[1], data.Z_reference))
        ]
        assert (np.abs(np.log(sd[0] / sd[1])) < 1.5).all()
    else:
        np.testing.assert_allclose(adapted / units, plain, rtol=1e-3, atol=1e-3)


def test_small_strata_give_transport_and_axes_but_no_divergence():
    rng = np.random.default_rng(0)
    Z = np.repeat([f"z{k}" for k in range(20)], 3)
    X_query, X_reference = rng.normal(size=(60, 4)), rng.normal(size=(60, 4))
    for divergence in ("ot", "pc-match"):
        adapter = ConDoAdapter("affine", divergence=divergence)
        adapter.fit_pair(X_query, X_reference, Z, Z)
        assert np.isfinite(adapter.map_.A).all()
        assert np.isnan(adapter.report_["objective"])


def test_shrinkage_keeps_the_kind_of_map():
    data = rotations(4, 3, 100, 0)
    rows = (data.X_query, data.X_reference, data.Z_query, data.Z_reference)
    A = ConDoAdapter("orthogonal", shrinkage=0.5).fit_pair(*rows).map_.A
    np.testing.assert_allclose(A @ A.T, np.eye(4), atol=1e-10)
    A = ConDoAdapter(Blocks([[0, 1]]), shrinkage=1.0).fit_pair(*rows).map_.A
    np.testing.assert_allclose(A, np.eye(4), atol=1e-12)


@pytest.mark.parametrize("conditional", ["kernel", "splines"])
def test_smooth_conditionals_also_take_categories(conditional):
    data = rotations(3, 3, 200, 0)
    adapter = ConDoAdapter("affine", divergence="reverse-kl", conditional=conditional)
    adapter.fit_pair(data.X_query, data.X_reference, data.Z_query, data.Z_reference)
    assert np.isfinite(adapter.map_.A).all()


def test_too_many_features_fall_back_at_once_and_say_so():
    rng = np.random.default_rng(0)
    Z = np.repeat(["a", "b"], 10)
    with pytest.warns(IdentifiabilityWarning, match="location-scale map is fitted instead"):
        adapter = ConDoAdapter("affine").fit_pair(
            rng.normal(size=(20, 200)), rng.normal(size=(20, 200)), Z, Z
        )
    assert adapter.report_["fallback"] == "location-scale"
    assert "ladder" not in adapter.report_


def test_strata_that_are_alike_do_not_determine_a_matrix():
    rng = np.random.default_rng(0)

    def draw():
        z = rng.integers(3, size=600)
        return rng.normal(size=(600, 6)) + 0.5 * z[:, None], z.astype(str)

    (X_query, Z_query), (X_reference, Z_reference) = draw(), draw()
    with pytest.warns(IdentifiabilityWarning, match="too much alike to determine the matrix"):
        ConDoAdapter("affine").fit_pair(X_query, X_reference, Z_query, Z_reference)
    data = rotations(5, 4, 100, 0)
    adapter = ConDoAdapter("affine").fit_pair(
        data.X_query, data.X_reference, data.Z_query, data.Z_reference
    )
    assert adapter.report_["curvature"] * 400 > 50


def test_one_stratum_does_not_determine_a_matrix():
    data = rotations(3, 1, 100, 0)
    with pytest.warns(IdentifiabilityWarning, match="up to a rotation only"):
        ConDoAdapter(map="affine", divergence="reverse-kl").fit_pair(
            data.X_query, data.X_reference, data.Z_query, data.Z_reference
        )


def test_weights_count_rows_in_covariances_too():
    data = rotations(3, 3, 40, 0)
    rng = np.random.default_rng(0)
    w_query, w_reference = (rng.integers(0, 4, len(X)) for X in (data.X_query, data.X_reference))
    adapter = ConDoAdapter(map="affine", divergence="likelihood", shrinkage=None)
    weighted = adapter.fit_pair(
        data.X_query, data.X_reference, data.Z_query, data.Z_reference,
        sample_weight=(w_query, w_reference),
    ).map_  # fmt: skip
    repeated = adapter.fit_pair(
        np.repeat(data.X_query, w_query, axis=0), np.repeat(data.X_reference, w_reference, axis=0),
        np.repeat(data.Z_query, w_query), np.repeat(data.Z_reference, w_reference),
    ).map_  # fmt: skip
    np.testing.assert_allclose(weighted.A, repeated.A, rtol=1e-5, atol=1e-6)


def _parts(solution):
    return solution.A, solution.b
