"""Curves of one feature: the optimum of what they claim, and errors that hold."""

import numpy as np
import pytest
from scipy.optimize import minimize

from condokit.data.basis import Cubic
from condokit.law.curves import WIGGLES, FeatureValues, average, bends, minimum


def sample(rng, n=400, bend=0.0, skewed=False):
    """Draw both domains with one law, the query seen through arsinh(bend y) / bend."""
    noise = (lambda: rng.exponential(size=n) - 1) if skewed else (lambda: rng.normal(size=n))
    y, x = noise(), noise()
    root = x if bend == 0 else np.arcsinh(bend * x) / bend
    w, p = np.ones(2 * n), np.ones(2 * n)
    values = np.concatenate([root, y])
    return FeatureValues(values, n, w, p, (1.0, 1.0), lambda X: X - X.mean(axis=0)), root, x


def test_splines_are_natural_and_their_slopes_are_derivatives(rng):
    spline = Cubic(np.sort(rng.normal(size=6)))
    t = np.linspace(-4, 4, 41)
    numeric = (spline(t + 1e-6) - spline(t - 1e-6)) / 2e-6
    np.testing.assert_allclose(spline.slopes(t), numeric, atol=1e-6)
    far = spline(np.array([5.0, 6.0, 7.0]))
    np.testing.assert_allclose(far[2] - far[1], far[1] - far[0], atol=1e-9)


def test_squared_coefficients_sum_to_the_wiggliness(rng):
    spline, c = Cubic(np.sort(rng.normal(size=7))), rng.normal(size=5)
    t = np.linspace(spline.knots[0], spline.knots[-1], 200_001)
    bent = np.gradient(np.gradient(spline(t)[:, 2:] @ c, t), t)
    # |f''|^2 of |t - k|^3 is 36 |t - k|^2, whose quadratic form is 12 times that of |k - k'|^3
    assert np.sum(bent[2:-2] ** 2) * (t[1] - t[0]) == pytest.approx(12 * c @ c, rel=1e-2)


def test_newton_finds_the_minimum_of_the_objective(rng):
    root, slopes = rng.normal(size=(20, 4)), rng.normal(size=(30, 4))
    slopes[:, 1] = 5.0
    mass, penalty = rng.uniform(0.5, 2, 30), rng.uniform(0.1, 1, 4)
    start = np.array([0.0, 1.0, 0.0, 0.0])

    def objective(b):
        steep = slopes @ b
        if steep.min() <= 0:
            return np.inf
        squares = b @ (root.T @ root) @ b + (penalty * b**2).sum()
        return 0.5 * squares - mass @ np.log(steep)

    b, value, H = minimum(root.T @ root, slopes, mass, penalty, start)
    options = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 20_000}
    best = minimize(objective, start, method="Nelder-Mead", options=options)
    assert value == pytest.approx(objective(b))
    assert value <= best.fun + 1e-6
    np.testing.assert_allclose(b, best.x, atol=1e-3)
    for j, step in enumerate(1e-4 * np.eye(4)):
        numeric = (objective(b + step) - 2 * objective(b) + objective(b - step)) / 1e-8
        assert H[j, j] == pytest.approx(numeric, rel=1e-3)


@pytest.mark.parametrize("skewed", [False, True])
def test_a_curve_is_found_whatever_the_law(rng, skewed):
    drawn, seen, truth = sample(rng, 2000, 1.5, skewed)
    found = bends(drawn)
    [weights] = average([found], 1.0, 0.3)
    assert weights[0] < 0.01
    middle = (seen > found.knots[1]) & (seen < found.knots[-2])
    g = np.interp(seen[middle], found.knots, weights @ found.curves)
    line = np.polyval(np.polyfit(seen, truth, 1), seen)[middle]
    error, straight = (np.sqrt(np.mean((x - truth[middle]) ** 2)) for x in (g, line))
    assert error < 0.5 * straight


@pytest.mark.parametrize("skewed", [False, True])
def test_a_line_stays_a_line_whatever_the_law(skewed):
    weights = []
    for seed in range(8):
        drawn, _, _ = sample(np.random.default_rng(seed), 600, 0.0, skewed)
        weights += average([bends(drawn)], 1.0, 0.3)
    assert np.mean([w[0] for w in weights]) > 0.8


def test_curves_increase_and_errors_cover_them():
    held = []
    for seed in range(30):
        drawn, seen, truth = sample(np.random.default_rng(seed), 400, 1.5)
        found = bends(drawn)
        assert (np.diff(found.curves, axis=1) > 0).all()
        [w] = average([found], 1.0, 0.0)
        order = np.argsort(seen)
        goal = np.interp(found.knots, seen[order], truth[order])
        g = w @ found.curves
        sd = np.sqrt(w @ (found.variances + (found.curves - g) ** 2))
        held.append(np.abs(g - goal)[3:-3] < 1.96 * sd[3:-3])
    assert 0.88 < np.mean(held) <= 1.0


def test_features_share_the_prior_of_wiggliness(rng):
    doubtful = [bends(sample(np.random.default_rng(s), 150, 0.6)[0]) for s in range(2)]
    bent = [bends(sample(np.random.default_rng(s), 800, 1.5)[0]) for s in range(10, 18)]
    alone = average(doubtful[:1], 1.0, 0.5)[0][0]
    among = average([*doubtful, *bent], 10.0, 0.5)[0][0]
    assert among < alone
    assert average([None, doubtful[0]], 2.0, 0.5)[0][0] == 1.0
    assert len(average([None], 1.0, 0.5)[0]) == 1 + len(WIGGLES)
