"""Results do not depend on the order of rows, nor on the number of threads."""

import numpy as np
import pytest

from condokit import ConDoAdapter
from condokit.divergences import DIVERGENCES
from condokit.maps.families import MAPS as NAMED
from condokit.maps.families import Affine, LocationScale

MAPS = ("shift", "location-scale", "affine", "orthogonal", "low-rank", "auto")
BY_SAMPLES = ("mmd", "energy")


def drawn(n, n_features, is_continuous):
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(0.5 + 0.5 * np.eye(n_features))

    def side(low):
        z = rng.uniform(low, low + 0.8, n)
        level = (4 * z).astype(int)
        spread = 1 + level[:, None] % 2 * np.arange(n_features) / n_features
        x = (rng.exponential(size=(n, n_features)) - 1) @ root.T * spread
        x += 2 * np.sin(3 * z)[:, None] * np.arange(1, n_features + 1) / n_features
        return x, z if is_continuous else np.array(list("abcde"))[level]

    (X_query, Z_query), (X_reference, Z_reference) = side(0.2), side(0.0)
    return 1.3 * X_query + 0.5, X_reference, Z_query, Z_reference


def change(data, **parameters):
    """Fit rows as they are and shuffled: how far apart mapped rows are, in standard deviations."""
    rng = np.random.default_rng(1)
    q, r = (rng.permutation(len(X)) for X in data[:2])
    shuffled = data[0][q], data[1][r], data[2][q], data[3][r]
    one, other = (
        ConDoAdapter(**parameters).fit_pair(*d).transform(data[0]) for d in (data, shuffled)
    )
    return np.sqrt(np.mean(((one - other) / data[1].std(axis=0)) ** 2))


@pytest.mark.filterwarnings("ignore::condokit.IdentifiabilityWarning")
@pytest.mark.parametrize("is_continuous", [False, True], ids=["categories", "continuous"])
@pytest.mark.parametrize("divergence", ["auto", *DIVERGENCES])
@pytest.mark.parametrize("map", MAPS)
def test_the_order_of_rows_does_not_matter(map, divergence, is_continuous):
    if map == "auto" and divergence in BY_SAMPLES and is_continuous:
        pytest.skip("half a minute, and the same fits as of other maps")
    family = LocationScale() if map == "auto" else NAMED[map]()
    if divergence != "auto" and DIVERGENCES[divergence]().supports(family) is not None:
        pytest.skip("refused")
    d = {"low-rank": 12, "auto": 2}.get(map, 3)
    try:
        moved = change(drawn(60, d, is_continuous), map=map, divergence=divergence)
    except ValueError as error:
        if "needs standard errors" in str(error):
            pytest.skip("refused")
        raise
    # a tenth of a standard error where samples are searched from several starts
    assert moved < (0.01 if divergence in BY_SAMPLES else 1e-6)


@pytest.mark.parametrize(
    ("map", "divergence"),
    [("location-scale", "auto"), ("location-scale", "ot"), ("affine", "auto"), ("auto", "auto")],
)
def test_the_order_of_many_rows_does_not_matter(map, divergence):
    """Where only some of the rows are looked at, they are the same ones."""
    assert change(drawn(6000, 2, True), map=map, divergence=divergence) < 1e-6


@pytest.mark.parametrize("map", ["location-scale", Affine(n_starts=1), "auto"], ids=str)
def test_threads_do_not_matter(map):
    data = drawn(150, 2, False) if map == "auto" else drawn(300, 4, False)
    one, two = (ConDoAdapter(map, n_jobs=n).fit_pair(*data).transform(data[0]) for n in (1, 2))
    np.testing.assert_allclose(one, two, atol=1e-8)
