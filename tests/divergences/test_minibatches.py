import numpy as np
import pytest
from problems import different_features
from protocols import categorical1d, rmse

from condokit import ConDoAdapter
from condokit.divergences.minibatches import MinibatchMMD
from condokit.divergences.samples import squared_distances


def test_the_papers_minibatches_go_the_right_way():
    data = categorical1d(100, 0)
    rows = (data.X_query, data.X_reference, data.Z_query, data.Z_reference)
    errors = []
    for divergence in (MinibatchMMD(), MinibatchMMD(epochs=100, learning_rate=0.01)):
        adapter = ConDoAdapter(divergence=divergence).fit_pair(*rows)
        errors.append(rmse(adapter.transform(data.X_query), data.truth))
    assert errors[1] < errors[0] < rmse(data.X_query, data.truth)
    assert errors[1] < 1.0
    X, Y, types = different_features(0)
    adapter = ConDoAdapter("affine", divergence=MinibatchMMD()).fit_pair(X, Y, types, types)
    assert adapter.map_.A.shape == (3, 5)
    rng = np.random.default_rng(0)
    Z, Y = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 5, 3))
    _, gradient = MinibatchMMD().of_sets(Z, Y)
    both = np.concatenate([Z, Y], axis=1)
    width = [
        squared_distances(rows, rows).sum() / 72 for rows in both
    ]  # held fixed in the gradient

    def value(Z):
        total = 0.0
        for z, y, h in zip(Z, Y, width):
            k = [np.exp(-squared_distances(a, b) / h).mean() for a, b in ((z, z), (z, y), (y, y))]
            total += k[0] - 2 * k[1] + k[2]
        return total

    for place in ((0, 1, 2), (1, 3, 0)):
        step = np.zeros(Z.shape)
        step[place] = 1e-6
        numeric = (value(Z + step) - value(Z - step)) / 2e-6
        assert gradient[place] == pytest.approx(numeric, rel=1e-4)
