import numpy as np
import pytest
from problems import two_domains
from protocols import ansur, rmse, rotations

from condokit import ConDoAdapter


def fitted(data, **parameters):
    return ConDoAdapter(map="auto", **parameters).fit_pair(
        data.X_query, data.X_reference, data.Z_query, data.Z_reference
    )


def test_a_rotation_is_found_and_the_report_says_why():
    data = rotations(5, 4, 300, 0)
    adapter = fitted(data)
    assert rmse(adapter.transform(data.X_query), data.truth) < 0.3
    assert adapter.report_["chosen_map"] == "affine (likelihood)"
    assert adapter.divergence_ == "likelihood"
    ladder = adapter.report_["ladder"]
    assert [row["map"] for row in ladder][:2] == ["diagonal", "affine (ot)"]
    [chosen] = [row for row in ladder if row["chosen"]]
    assert chosen["worse_by"] == 0
    assert 0.8 <= chosen["spread"] <= 1.25
    assert {row["failure"] for row in ladder if np.isnan(row["score"])} == {
        "rows are enough to search all matrices",
        "5 features are few",
    }


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (2.0, 5.0)])
def test_a_diagonal_truth_is_left_diagonal(scale, offset):
    for seed in range(4):
        data = two_domains(np.random.default_rng(seed), 200, 3, scale, offset)
        auto = ConDoAdapter(map="auto").fit_pair(*data)
        assert auto.map_.kind == "diagonal"
        assert auto.report_["chosen_map"] == "diagonal"
        assert set(auto.report_["candidates"]) == {"identity", "shift", "location-scale"}


def test_a_named_divergence_is_the_only_one_tried():
    data = rotations(4, 3, 200, 0)
    adapter = fitted(data, divergence="reverse-kl")
    assert [row["map"] for row in adapter.report_["ladder"]] == ["diagonal", "affine (reverse-kl)"]
    adapter = fitted(data, divergence="pc-match")
    assert adapter.divergence_ == "pc-match"


def test_few_rows_and_many_features_are_not_searched():
    rng = np.random.default_rng(0)
    few = two_domains(rng, 15, 3)
    assert "ladder" not in ConDoAdapter(map="auto").fit_pair(*few).report_
    many = two_domains(rng, 60, 301)
    assert "ladder" not in ConDoAdapter(map="auto").fit_pair(*many).report_


def test_subjects_stay_together_and_continuous_confounders_work():
    data = rotations(3, 3, 60, 1)
    rng = np.random.default_rng(0)
    subjects = [rng.integers(0, 40, len(X)) for X in (data.X_query, data.X_reference)]
    adapter = ConDoAdapter(map="auto").fit_pair(
        data.X_query, data.X_reference, data.Z_query, data.Z_reference, groups=subjects
    )
    assert adapter.report_["ladder"]
    z = [
        np.array([int(v[1:]) for v in side]) + rng.random(len(side))
        for side in (data.Z_query, data.Z_reference)
    ]
    adapter = ConDoAdapter(map="auto").fit_pair(data.X_query, data.X_reference, *z)
    assert np.isfinite(adapter.transform(data.X_query)).all()
    assert adapter.report_["ladder"]


@pytest.mark.filterwarnings("ignore::condokit.IdentifiabilityWarning")
@pytest.mark.parametrize("extra", ["twice", "sum", "constant"])
def test_collinear_and_constant_features_do_not_decide(extra):
    data = rotations(4, 4, 200, 1)

    def spoil(X):
        more = {"twice": X[:, 0], "sum": X.sum(axis=1), "constant": np.ones(len(X))}[extra]
        return np.column_stack([X, more])

    adapter = ConDoAdapter(map="auto").fit_pair(
        spoil(data.X_query), spoil(data.X_reference), data.Z_query, data.Z_reference
    )
    assert adapter.report_["chosen_map"] == "affine (likelihood)"
    assert rmse(adapter.transform(spoil(data.X_query))[:, :4], data.truth) < 0.2


@pytest.mark.parametrize("shift", ["large", None])
def test_ansur_stays_diagonal(needs_data, shift):
    data = ansur(101, shift=shift)
    adapter = fitted(data)
    assert adapter.map_.kind == "diagonal"
    assert rmse(adapter.transform(data.X_query), data.truth) < 0.1
