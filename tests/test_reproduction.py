"""The experiments draw the published problems: what needs no fitting equals what was published."""

import json
from pathlib import Path

import ansur
import california
import numpy as np
import pytest
from published import gaussian_ot

from condokit.datasets import real

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
PUBLISHED = json.loads((EXPERIMENTS / "published_numbers.json").read_text())


def needs(name):
    missing = not any((folder / name).is_file() for folder in real.folders())
    return pytest.mark.skipif(missing, reason=f"{name} is not here")


@needs("ansur2.csv.gz")
@pytest.mark.parametrize("scenario", ansur.SCENARIOS[:8])
def test_ansur_draws_the_published_problems(scenario):
    family, *shifts = ansur.parts(scenario)
    found = []
    for seed in range(10):
        problem = ansur.draw(family, *shifts, seed)
        ot = gaussian_ot(problem.X_query, problem.X_reference, family == "location-scale")
        found.append([ansur.rmse(X, problem.truth) for X in (problem.X_query, ot(problem.X_query))])
    experiment, setting = ansur.published_key(scenario)
    rows = PUBLISHED[experiment][setting]
    for name, values in zip(("Target (post-feature shift)", "Gaussian OT"), np.transpose(found)):
        np.testing.assert_allclose(values.mean(), rows[name]["rmse"], rtol=1e-8)
        np.testing.assert_allclose(values.std(), rows[name]["rmse_std"], rtol=1e-7)


@needs("ansur2.csv.gz")
def test_ansur_knows_its_true_map_and_turns_determinants():
    signs = []
    for family in ("affine", ansur.POSITIVE):
        problem = ansur.draw(family, True, True, 0)
        mapped = problem.X_heldout @ problem.A.T + problem.b
        np.testing.assert_allclose(mapped, problem.truth_heldout, atol=1e-10)
        signs.append(np.linalg.slogdet(problem.A)[0])
    assert signs == [-1, 1]


@needs("california_housing.csv.gz")
def test_california_has_the_published_domains():
    _, is_high, is_poor = california.districts()
    assert is_poor.sum() == 10_320
    assert round(is_high[is_poor].mean(), 3) == 0.258
    train, poor, rich = california.draw(0)
    assert len(np.unique(np.concatenate([train, poor, rich]))) == 1500
    assert is_poor[poor].all()
    assert not is_poor[rich].any()


@needs("california_housing.csv.gz")
def test_california_maps_are_the_same_in_other_units():
    X, _, is_poor = california.districts()
    problem = california.Problem.of(X[~is_poor], X[is_poor]).few(300)

    def fit(p):
        return gaussian_ot(p.X_query, p.X_reference, diagonal=True)

    np.testing.assert_allclose(
        california._standardised(fit)(problem)(X[:5]), fit(problem)(X[:5]), rtol=1e-4
    )
    np.testing.assert_array_equal(
        california._without_places(fit)(problem)(X[:5])[:, -2:], X[:5, -2:]
    )
