from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import ot
import pytest
from problems import pair_of, pushed, random_moment_pair, random_pair
from protocols import ansur, rmse
from scipy.stats import ortho_group

from condokit import Affine, ConDoAdapter, GaussianOT, IdentifiabilityWarning, LocationScale
from condokit.solvers.matrices import transport_matrix


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
    mean, cov = pushed(pair.query, solution.scale, solution.offset).balanced(pair.weights)
    np.testing.assert_allclose(mean, pair.reference.balanced(pair.weights)[0])
    np.testing.assert_allclose(cov, pair.reference.balanced(pair.weights)[1])
    np.testing.assert_allclose(solution.scale, solution.scale.T, atol=1e-12)
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


@pytest.mark.filterwarnings("ignore:Scales far from one")
def test_ansur_needs_matched_axes(needs_data):
    data = ansur(100, shift="affine")
    adapter = ConDoAdapter(map="affine").fit_pair(
        data.X_query, data.X_reference, data.Z_query, data.Z_reference
    )
    assert adapter.divergence_ == "pc-match"
    assert rmse(adapter.transform(data.X_query), data.truth) < 0.75


def test_small_strata_give_transport_and_axes_but_no_divergence():
    rng = np.random.default_rng(0)
    Z = np.repeat([f"z{k}" for k in range(20)], 3)
    X_query, X_reference = rng.normal(size=(60, 4)), rng.normal(size=(60, 4))
    for divergence in ("ot", "pc-match"):
        adapter = ConDoAdapter("affine", divergence=divergence)
        alike = pytest.warns(IdentifiabilityWarning, match="axes have nearly equal lengths")
        with alike if divergence == "pc-match" else nullcontext():
            adapter.fit_pair(X_query, X_reference, Z, Z)
        assert np.isfinite(adapter.map_.A).all()
        assert np.isnan(adapter.report_["objective"])


def test_optimal_transport_of_one_stratum_matches_mean_and_standard_deviation():
    pair = random_moment_pair(0)
    query, reference = (
        replace(m, mean=m.mean[:1], var=m.var[:1], precision=m.precision[:1], count=m.count[:1],
                dof=m.dof[:1])
        for m in (pair.query, pair.reference)
    )  # fmt: skip
    solution = GaussianOT().solve(LocationScale(), pair_of(query, reference, np.ones(1)))
    np.testing.assert_allclose(solution.scale, np.sqrt(reference.var / query.var)[0])
    np.testing.assert_allclose(solution.image, reference.mean[0])
