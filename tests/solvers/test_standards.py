"""Regression on a few pairs, against normal laws written out in full."""

import numpy as np
import pytest
from scipy import stats

from condokit.solvers import standards as module
from condokit.solvers.standards import Base, Mix, Standards, mixes


def problem(seed, n=7, d=4, subjects=None):
    rng = np.random.default_rng(seed)
    U, Y = rng.normal(size=(2, n, d)) @ rng.normal(size=(d, d))
    pairs = Standards(U, Y, np.arange(n) if subjects is None else subjects, True)
    zero = np.zeros(d)
    base = Base(np.zeros((n, d)), zero, np.linspace(0.5, 2, d), 1.0, np.zeros((2, d)))
    residuals = module._Residuals(pairs, base)
    residuals.guess = 0.7
    return U, Y, pairs, residuals


def priors(residuals):
    p, q = residuals._variances()
    return np.broadcast_arrays(p, q, np.zeros((5, 6, 1)))[:2]


@pytest.mark.parametrize("mix", [Mix(), Mix(2.0, 0.5), Mix(30.0, 1.0)])
def test_posterior_and_evidence_are_those_of_a_normal_law(mix):
    U, Y, pairs, residuals = problem(0)
    n, d = U.shape
    Q, size, _ = np.linalg.svd(U, full_matrices=False)
    power = size ** (2 * mix.power)
    kernel = Q * (mix.kappa * (size**2).sum() / d / power.sum() * power) @ Q.T
    found, (p, q) = residuals.solve(mix), priors(residuals)
    log = residuals.log_evidence(mix)
    weight = n + module._GUESSED
    for s, t in [(0, 0), (1, 3), (4, 2), (3, 5)]:
        expected = []
        for j in range(d):
            u, r = U[:, j], Y[:, j]
            pj, qj = p[s, t, j], q[s, t, j]
            V = np.eye(n) + pj + qj * np.outer(u, u) + kernel
            square = r @ np.linalg.solve(V, r) + module._GUESSED * residuals.guess
            expected.append(-0.5 * np.linalg.slogdet(V)[1] - 0.5 * weight * np.log(square))
            W, D = np.column_stack([np.ones(n), u]), np.diag([pj, qj])
            mean = D @ W.T @ np.linalg.solve(V, r)
            cov = D - D @ W.T @ np.linalg.solve(V, W @ D)
            at = s, t, j
            np.testing.assert_allclose([found.alpha[at], found.beta[at]], mean, atol=1e-9)
            three = found.of_alpha[at], found.of_beta[at], found.of_both[at]
            np.testing.assert_allclose(three, [cov[0, 0], cov[1, 1], cov[0, 1]], atol=1e-9)
            # what the kernel adds at the pairs
            left = kernel @ np.linalg.solve(V, r)
            matrix = residuals.along_axes(mix, 1.0, found.alpha[s, t], found.beta[s, t])
            np.testing.assert_allclose(U @ pairs.axes @ matrix[:, j], left, atol=1e-9)
        np.testing.assert_allclose(log[s, t], np.mean(expected), rtol=1e-10)


def test_evidence_integrates_over_the_noise():
    from scipy.integrate import quad

    U, Y, _, residuals = problem(1, n=5, d=1)
    p, q = priors(residuals)
    nu, guess = module._GUESSED, residuals.guess

    def evidence(s, t):
        V = np.eye(5) + p[s, t, 0] + q[s, t, 0] * U @ U.T

        def density(log):
            v = np.exp(log)
            normal = stats.multivariate_normal(np.zeros(5), v * V).pdf(Y[:, 0])
            return normal * v ** (-nu / 2) * np.exp(-0.5 * nu * guess / v)

        return np.log(quad(density, -12, 12, limit=200)[0])

    log = residuals.log_evidence(Mix())
    np.testing.assert_allclose(log[4, 3] - log[1, 1], evidence(4, 3) - evidence(1, 1), rtol=1e-6)


def test_pairs_of_one_subject_count_as_one():
    rng = np.random.default_rng(2)
    U, Y = rng.normal(size=(2, 5, 3))
    zero = np.zeros(3)

    def found(times):
        rows = np.repeat(np.arange(5), times)
        base = Base(np.zeros((len(rows), 3)), zero, zero + 1, 1.0, np.ones((2, 3)))
        return Standards(U[rows], Y[rows], rows, True).correct([base], mixes(False))

    once, thrice = found(1), found(3)
    np.testing.assert_allclose(thrice.shift, once.shift)
    np.testing.assert_allclose(thrice.axes @ thrice.matrix, once.axes @ once.matrix, atol=1e-9)
    np.testing.assert_allclose(thrice.variances, once.variances)


def test_the_right_base_and_features_are_found():
    rng = np.random.default_rng(3)
    U = rng.normal(size=(20, 5))
    Y = U[:, ::-1] + 0.01 * rng.normal(size=(20, 5))
    one, zero, se = np.ones(5), np.zeros(5), np.ones((2, 5))
    wrong = Base(U + 5, zero + 5, one, 0.5, se)
    found = Standards(U, Y, np.arange(20), True).correct(
        [wrong, Base(U, zero, one, 0.5, se)], mixes(False)
    )
    assert found.weights[1].sum() > 0.9
    assert found.weights[:, 0].sum() < 0.01
    A = np.eye(5) + np.diag(found.slope) + found.matrix.T @ found.axes.T
    np.testing.assert_allclose(A, np.eye(5)[::-1], atol=0.05)
