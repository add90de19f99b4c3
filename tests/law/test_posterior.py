"""The posterior against sums over fine grids, and against the conditional of joint normals.

What it does to shifts and scales of many features is tested in `tests/fit/test_shrinkage.py`.
"""

import numpy as np
import pytest
from scipy.stats import norm

from condokit.law.posterior import _SCALE_SDS, _SHIFTS, Maps, _Effects, _usual, posterior_of


def map_of(shift, se_shift, scale=1.0, se_scale=0.0, **known):
    """Return the map of one feature of one device, whose residuals have the variance 1."""
    one = np.ones((1, 1))
    errors = {"cov_log": one[..., None] * se_scale**2, "cov_image": one[..., None] * se_shift**2}
    return Maps(
        scale * one, 0 * one, shift * one, **errors, sd=np.ones(1), n_effective=1.0, **known
    )


@pytest.mark.parametrize("variance", [1.0, 2.5])  # beside that of the likelihood's curvature
@pytest.mark.parametrize("n", [6.0, 15.0, 30.0])
def test_scales_have_the_profile_likelihood_of_their_map(n, variance):
    dof, G00, G11 = 40.0, 30.0, 10.0
    scale = np.sqrt(n * G00 / ((dof - n) * G11))  # its maximum
    curvature = 2 * n * (1 - n / dof)
    found = posterior_of(
        map_of(
            0.0, 0.0, scale, np.sqrt(variance / curvature),
            dof=np.array([dof]), n_eff=np.array([[n]]), profile=np.array([[[G00, 0.0, G11]]]),
        )
    )  # fmt: skip
    u = np.linspace(-4, 4, 200_001)
    at = np.append(u, 0.0)
    log = (n * at - 0.5 * dof * np.log(G00 + np.exp(2 * at) * G11)) / variance
    likelihood = np.exp(log[:-1] - log[-1])
    each = np.array([norm.pdf(u, 0, sd) * likelihood for sd in _SCALE_SDS]) * (u[1] - u[0])
    evidence, means, squares = each.sum(1), each @ u, each @ u**2
    prior = _usual(False, True)[0]  # without errors of the image, no shift is pulled
    chances = prior * np.r_[1, evidence]
    chances /= chances.sum()
    mean, square = (chances[1:] @ (moment / evidence) for moment in (means, squares))
    assert found.scaled[0] == pytest.approx(1 - chances[0], rel=0.01)
    assert found.log_scale[0, 0] == pytest.approx(mean, rel=0.02)
    assert found.var_log[0, 0] == pytest.approx(square - mean**2, rel=0.03)
    assert found.image[0, 0] == 0


def joint(S, tau2, d):
    """Return means and covariances of all effects, the last the reference's, given differences."""
    k = len(d)
    H = np.column_stack([np.eye(k), -np.ones(k)])
    gain = np.diag(tau2) @ H.T @ np.linalg.inv(H @ np.diag(tau2) @ H.T + S)
    return gain @ d, np.diag(tau2) - gain @ H @ np.diag(tau2)


@pytest.mark.parametrize("seed", range(4))
def test_several_devices_are_the_problems_of_one_that_the_conditional_makes_of_them(seed):
    rng = np.random.default_rng(seed)
    k, n_features = 3, 5
    S = np.array([(A := rng.normal(size=(k, k))) @ A.T / 4 + 0.02 * np.eye(k) for _ in range(5)])
    d, tau2 = rng.normal(size=(n_features, k)), rng.uniform(0.1, 2.0, (n_features, k + 1))
    effects = _Effects(d, S, np.ones((n_features, k), bool), _SHIFTS)
    effects.tau2 = tau2
    effects.consider_others()
    kept = tau2 / (tau2 + effects.c)
    mean = kept * effects.x
    effects.learn(np.array([mean, kept * effects.c + mean**2, kept]))
    np.testing.assert_allclose(effects.tau2, tau2, rtol=1e-4)
    differences, variances = effects.result()
    for j in range(n_features):
        known, covariance = joint(S[j], tau2[j], d[j])
        np.testing.assert_allclose(mean[j], known, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose((kept * effects.c)[j], np.diag(covariance), rtol=1e-6)
        for b in range(k):
            part = np.zeros(k + 1)
            part[[b, k]] = 1, -1
            assert differences[j, b] == pytest.approx(part @ known, rel=1e-6, abs=1e-9)
            assert variances[j, b] == pytest.approx(part @ covariance @ part, rel=1e-5)


def test_effects_that_are_not_pulled_keep_their_estimate_and_inform_nobody():
    d, S = np.array([[5.0, 0.3]]), np.array([[[0.1, 0.05], [0.05, 0.2]]])
    effects = _Effects(d, S, np.array([[False, True]]), _SHIFTS)
    effects.consider_others()
    alone = _Effects(d[:, 1:], S[:, 1:, 1:], np.array([[True]]), _SHIFTS)
    # beside the reference's own effect, which both differences share
    reference = effects.tau2[0, 2]
    assert effects.x[0, 1] == pytest.approx(alone.x[0, 0], rel=1e-3)
    assert effects.c[0, 1] == pytest.approx(alone.c[0, 0] + reference, rel=1e-3)
    evidence, moments = effects.level(0, 1.0)
    assert (evidence == 0).all()
    assert (moments == 0).all()


def test_prior_probabilities_are_those_of_the_page():
    table = _usual(True, True)
    assert table.sum() == pytest.approx(1)
    assert table[0, 0] == pytest.approx(0.7)
    assert table[0, 1:].sum() == pytest.approx(0.3 * 0.125)
    # the larger the shift, the likelier a scale
    scaled = table[1:, 1:].sum(axis=1) / table[1:].sum(axis=1)
    assert (np.diff(scaled) >= -1e-12).all()
    assert scaled[-1] > 3 * scaled[0]
    none = _usual(False, False)
    assert none[0, 0] == 1
    assert none.sum() == 1
    assert _usual(True, False)[:, 1:].sum() == 0
    assert _usual(False, True)[1:].sum() == 0


@pytest.mark.parametrize(
    ("scale", "power"), [(1.1, 0), (2.5, 0), (10.5, 1), (0.0098, -2), (1020.0, 3), (0.00097, -3)]
)
def test_scales_of_other_units_are_pulled_towards_their_power_of_ten(scale, power):
    found = posterior_of(map_of(0.0, 0.1, scale, 0.02))
    away = abs(np.log(scale) - power * np.log(10))
    assert abs(found.log_scale[0, 0] - power * np.log(10)) <= away
    assert found.other_units[0, 0] == (power != 0)


def test_a_gain_that_no_power_of_ten_explains_is_not_pulled():
    found = posterior_of(map_of(0.5, 0.1, 5.0, 0.02))
    assert found.log_scale[0, 0] == pytest.approx(np.log(5.0), rel=1e-12)
    assert found.image[0, 0] == 0.5
    assert found.var_image[0, 0] == pytest.approx(0.01)


def test_log_scales_that_lie_around_one_gain_are_pulled_towards_it():
    """Of two features with equal estimates, the less certain one follows the others' gain."""
    d, gain = 20, np.log(1.4)
    u, se = np.full(d, gain), np.full(d, 0.03)
    u[0], se[0] = gain + 0.5, 0.4
    maps = Maps(
        np.exp(u)[:, None], np.zeros((d, 1)), np.zeros((d, 1)),
        (se**2)[:, None, None], np.zeros((d, 1, 1)), np.ones(d), float(d),
    )  # fmt: skip
    found = posterior_of(maps)
    assert found.log_scale[1:, 0] == pytest.approx(gain, abs=0.03)
    assert abs(found.log_scale[0, 0] - gain) < 0.2
    assert found.scaled[0] > 0.99
    only = Maps(
        np.exp(u)[:1, None], np.zeros((1, 1)), np.zeros((1, 1)),
        (se[:1] ** 2)[:, None, None], np.zeros((1, 1, 1)), np.ones(1), 1.0,
    )  # fmt: skip
    assert posterior_of(only).log_scale[0, 0] < 0.2  # towards none
