"""Which curves enter: shares against a restricted likelihood by dense matrices, known answers."""

import numpy as np
import pytest

from condokit.data.covariates import Covariates
from condokit.law.select import Selector, _index, select

GRID = np.logspace(-4, 3, 43)  # the values that a share may have


def draw(seed, shape, n=150, d=1, noise=1.0):
    """Draw rows of two batches that differ by nothing, centred by batch, given one number."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=2 * n)
    z = (z - z.mean()) / z.std()
    batch = np.repeat([0, 1], n)
    X = shape(z)[:, None] + noise * rng.normal(size=(2 * n, d))
    for b in (0, 1):
        X[batch == b] -= X[batch == b].mean(axis=0)
    return X, batch, Covariates(z[:, None], np.zeros(2 * n, dtype=int), 1)


def chosen(X, batch, at, precision=None, fixed=1.0):
    one = np.ones(len(X))
    scales = np.full((X.shape[1], 2), fixed)
    return select(X, batch, 2, 1, at, one, one if precision is None else precision, scales)


def restricted(y, D, Phi, theta, W):
    """Return the restricted likelihood of y, its variance profiled out, by dense matrices."""
    V = np.diag(1 / W) + theta * Phi @ Phi.T
    inverse = np.linalg.inv(V)
    inner = D.T @ inverse @ D
    P = inverse - inverse @ D @ np.linalg.solve(inner, D.T @ inverse)
    dof = len(y) - D.shape[1]
    determinants = np.linalg.slogdet(V)[1] + np.linalg.slogdet(inner)[1]
    return -dof / 2 * np.log(y @ P @ y) - determinants / 2


@pytest.mark.parametrize("weighted", [False, True])
def test_the_share_of_a_curve_maximises_the_restricted_likelihood(weighted):
    X, batch, at = draw(1, np.square)
    W = np.random.default_rng(2).uniform(0.3, 3, len(X)) if weighted else np.ones(len(X))
    design, count = chosen(X, batch, at, W)
    assert [block.name for block in design.blocks] == ["curve 0"]
    assert count.number == 1.0
    D = np.column_stack([design.unpenalised(at), batch == 0])
    Phi = design.blocks[0](at)
    values = [restricted(X[:, 0], D, Phi, theta, W) for theta in GRID]
    assert design.shares[0] == pytest.approx(GRID[int(np.argmax(values))])
    assert max(values) - restricted(X[:, 0], D, Phi, 1e-12, W) > 3  # the evidence that is asked for


def test_a_straight_line_gets_no_curve():
    bent = [len(chosen(*draw(seed, lambda z: 2 * z))[0].blocks) for seed in range(30)]
    assert sum(bent) <= 2


def test_features_speak_together():
    """A curve that is too faint for one feature is seen by many that have it."""

    def faint(z):
        return 0.12 * z**2

    one = [len(chosen(*draw(seed, faint))[0].blocks) for seed in range(10)]
    many = [len(chosen(*draw(seed, faint, d=30))[0].blocks) for seed in range(10)]
    assert sum(one) <= 4
    assert sum(many) == 10


def test_copies_of_a_feature_count_once():
    """Thirty copies of one feature say no more than it does."""
    X, batch, at = draw(0, lambda z: 0 * z, d=1)
    copies = np.repeat(X, 30, axis=1)
    assert chosen(copies, batch, at)[1].number == pytest.approx(1, abs=0.05)
    own = draw(0, lambda z: 0 * z, d=30)
    assert chosen(*own)[1].number > 20


def test_blocks_that_others_made_needless_are_dropped(monkeypatch):
    """Whatever enters on the way, all blocks that stay bring the evidence that is asked for."""
    kept = []
    run = Selector.run

    def watched(self, always):
        shares = run(self, always)
        for k in shares:
            rest = {other: share for other, share in shares.items() if other != k}
            kept.append(self._gain(k, rest, self._mapped(shares))[0])
        return shares

    monkeypatch.setattr(Selector, "run", watched)
    rng = np.random.default_rng(3)
    z = rng.normal(size=(400, 2))
    z = (z - z.mean(0)) / z.std(0)
    batch = np.repeat([0, 1], 200)
    X = (z[:, 0] * z[:, 1])[:, None] + 0.5 * rng.normal(size=(400, 3))
    for b in (0, 1):
        X[batch == b] -= X[batch == b].mean(axis=0)
    design, _ = chosen(X, batch, Covariates(z, np.zeros(400, dtype=int), 1))
    assert "products" in [block.name for block in design.blocks]
    assert kept
    assert min(kept) > 0


@pytest.mark.parametrize("seed", range(4))
def test_the_direction_of_a_bent_index_is_nearer_than_that_of_a_plane(seed):
    """Numbers that are skewed and correlated lead a plane astray."""
    rng = np.random.default_rng(seed)
    Z = rng.exponential(size=(600, 2))
    Z[:, 1] += 0.5 * Z[:, 0]
    truth = np.array([1.0, -1.5])
    t = Z @ truth
    X = (np.sin(2 * t / t.std()) + 0.3 * rng.normal(size=600))[:, None]
    D = np.column_stack([Z, np.ones(600)])
    slope = np.linalg.lstsq(D, X)[0]
    at = Covariates(Z, np.zeros(600, dtype=int), 1)
    found = _index(at, np.empty((600, 0)), X, X - D @ slope, np.ones(600))

    def agreement(axis):
        return abs(axis @ truth) / np.linalg.norm(axis) / np.linalg.norm(truth)

    assert agreement(found) > agreement(slope[:2, 0]) + 0.05
    assert np.std(Z @ found) == pytest.approx(1)
