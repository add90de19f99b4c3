import numpy as np
import pytest
from problems import dense, random_sides
from protocols import rmse

from condokit import ConDoAdapter, IdentifiabilityWarning, LowRank
from condokit.solvers.low_rank import LowRankKL

pytestmark = pytest.mark.filterwarnings(
    "ignore:Scales far from one:condokit.IdentifiabilityWarning"
)


def test_the_value_is_the_divergence_and_gradients_agree_with_finite_differences():
    rng = np.random.default_rng(0)
    query, reference = random_sides(rng)
    weights = np.array([0.2, 0.3, 0.5])
    objective = LowRankKL(query, reference, weights, penalty=0.1)
    theta = [0.2 * rng.normal(size=6), *0.3 * rng.normal(size=(2, 6, 2)), rng.normal(size=6)]

    def value(theta):
        return objective.value_and_grad(np.exp(theta[0]), *theta[1:])[0]

    U, V = theta[1:3]
    A = np.diag(np.exp(theta[0])) + U @ V.T
    expected = 0.05 * ((U**2).sum() + (V**2).sum()) - np.linalg.slogdet(A)[1] - 3
    for w, q, r in zip(weights, query, reference):
        residual = A @ q.mean + theta[3] - r.mean
        P, C, S = np.linalg.inv(dense(r)), dense(q), dense(r)
        logs = np.linalg.slogdet(S)[1] - np.linalg.slogdet(C)[1]
        expected += 0.5 * w * (np.trace(P @ A @ C @ A.T) + residual @ P @ residual + logs)
    assert value(theta) == pytest.approx(expected)
    gradients = objective.value_and_grad(np.exp(theta[0]), *theta[1:])[1]
    for part, gradient in enumerate(gradients):
        for place in np.ndindex(gradient.shape):
            up, down = ([t.copy() for t in theta] for _ in range(2))
            up[part][place] += 1e-6
            down[part][place] -= 1e-6
            numeric = (value(up) - value(down)) / 2e-6
            assert gradient[place] == pytest.approx(numeric, rel=1e-5, abs=1e-6)


def test_the_start_follows_the_steepest_directions():
    rng = np.random.default_rng(1)
    query, reference = random_sides(rng)
    objective = LowRankKL(query, reference, np.full(3, 1 / 3), 0.0)
    U, V = objective.leading(1)
    G = -np.eye(6)
    for q, r in zip(query, reference):
        P = np.linalg.inv(dense(r))
        G += P @ (dense(q) + np.outer(q.mean - r.mean, q.mean)) / 3
    left, _, right = np.linalg.svd(-G)
    assert abs(U[:, 0] @ left[:, 0]) == pytest.approx(np.linalg.norm(U), rel=1e-6)
    assert U[:, 0] @ left[:, 0] * (V[:, 0] @ right[0]) > 0


def mixed_sensors(seed, n_features, n=400, rank=2, continuous=False):
    """Query features are scaled and cross-talk through a few channels."""
    rng = np.random.default_rng(seed)
    mean, F = rng.normal(size=(3, n_features)), 0.7 * rng.normal(size=(4, n_features, 3))

    def draw(shares):
        z = rng.choice(3, n, p=shares)
        own = np.einsum("nij,nj->ni", F[z], rng.normal(size=(n, 3)))
        common = rng.normal(size=(n, 3)) @ F[3].T
        return mean[z] + own + common + 0.7 * rng.normal(size=(n, n_features)), z.astype(str)

    (truth, Z_query), (X_reference, Z_reference) = draw([0.2, 0.3, 0.5]), draw([0.5, 0.3, 0.2])
    U = rng.normal(size=(n_features, rank)) / np.sqrt(n_features)
    V = rng.normal(size=(n_features, rank))
    X_query = truth * rng.uniform(0.7, 1.5, n_features) + (truth @ V) @ U.T + 1
    return X_query, X_reference, Z_query, Z_reference, truth


@pytest.mark.filterwarnings("ignore:A curve is more likely")
@pytest.mark.parametrize("n_features", [20, 200])
def test_cross_talk_is_removed_without_a_square_matrix(n_features):
    *data, truth = mixed_sensors(0, n_features)
    errors = {}
    for kind in ("location-scale", "low-rank"):
        adapter = ConDoAdapter(map=kind, shrinkage=None).fit_pair(*data)
        errors[kind] = rmse(adapter.transform(data[0]), truth)
    assert errors["low-rank"] < 0.5 * errors["location-scale"]
    affine = adapter.map_
    assert affine.kind == "low-rank"
    assert affine.left.shape == (n_features, 2)
    np.testing.assert_allclose(affine.inverse()(affine(data[0])), data[0], atol=1e-8)
    assert np.isfinite(adapter.report_["objective"])


def test_a_continuous_confounder_works_too():
    *data, truth = mixed_sensors(1, 30)
    rng = np.random.default_rng(0)
    z = [np.asarray(side, dtype=float) + 0.1 * rng.random(len(side)) for side in data[2:]]
    adapter = ConDoAdapter(map=LowRank(rank=2)).fit_pair(*data[:2], *z)
    plain = ConDoAdapter().fit_pair(*data[:2], *z)
    assert rmse(adapter.transform(data[0]), truth) < 0.7 * rmse(plain.transform(data[0]), truth)


def test_bad_ranks_and_few_features_are_answered():
    *data, _ = mixed_sensors(0, 20)
    with pytest.raises(ValueError, match="rank of LowRank"):
        ConDoAdapter(map=LowRank(rank=0)).fit_pair(*data)
    with pytest.raises(ValueError, match="in its exact variant, not by GaussianOT"):
        ConDoAdapter(map="low-rank", divergence="ot").fit_pair(*data)
    with pytest.warns(IdentifiabilityWarning, match="rank 30 cannot be learned from 20 features"):
        adapter = ConDoAdapter(map=LowRank(rank=30)).fit_pair(*data)
    assert adapter.map_.kind == "diagonal"
