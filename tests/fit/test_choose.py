from copy import deepcopy
from functools import cache

import numpy as np
import pytest
from problems import two_domains
from protocols import ansur, rmse, rotations
from reading import from_pair

from condokit import ConDoAdapter, IdentifiabilityWarning, bootstrap
from condokit.fit.choose import stacked


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
    for seed in (1, 2):  # of the first seed, a curve is as likely as not
        data = two_domains(np.random.default_rng(seed), 200, 3, scale, offset)
        auto = ConDoAdapter(map="auto").fit_pair(*data)
        assert auto.map_.kind == "diagonal"
        assert auto.report_["chosen_map"] == "diagonal"
        np.testing.assert_array_equal(auto.map_.A, ConDoAdapter().fit_pair(*data).map_.A)


def turned(n=50, n_features=3, turn=0.3, seed=4, n_strata=3):
    """Draw correlated features in strata, and a query that was scaled, shifted and turned a bit."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(0.5 + 0.5 * np.eye(n_features))
    mean = 2 * rng.normal(size=(n_strata, n_features))
    skew = rng.normal(size=(n_features, n_features))
    A = 1.2 * (np.eye(n_features) + turn * (skew - skew.T) / np.sqrt(n_features))

    def draw(p):
        z = rng.choice(n_strata, n, p=p)
        x = mean[z] + rng.normal(size=(n, n_features)) @ root.T
        return x, np.array([f"z{k}" for k in z])

    shares = np.linspace(1, 2, n_strata) / np.linspace(1, 2, n_strata).sum()
    (X_query, Z_query), (X_reference, Z_reference) = draw(shares), draw(shares[::-1])
    return X_query @ A.T + 0.5, X_reference, Z_query, Z_reference


@cache
def mixed_data():
    """Return data that leave open whether the map is a matrix, with the map of them."""
    for seed in range(4, 24):
        data = turned(n=100, seed=seed, turn=0.2, n_strata=4)
        adapter = ConDoAdapter("auto").fit_pair(*data)
        if adapter.report_["ladder"][0]["weight"] * (adapter.map_.kind == "dense") > 0.1:
            return adapter, data
    raise AssertionError("no such data")


def balanced_sd(X, Z, support):
    """Return the standard deviations that a domain has with the weights of the support."""
    parts = [(w, X[level[0] == Z]) for w, level in zip(support.weights, support.levels)]
    mean = sum(w * x.mean(axis=0) for w, x in parts)
    return np.sqrt(
        sum(w * (x.var(axis=0, ddof=1) + (x.mean(axis=0) - mean) ** 2) for w, x in parts)
    )


def test_the_map_is_the_average_of_the_candidates():
    adapter, data = mixed_data()
    ladder = adapter.report_["ladder"]
    weights = {row["map"]: row["weight"] for row in ladder}
    assert sum(weights.values()) == pytest.approx(1)
    assert [row["chosen"] for row in ladder].index(True) == np.argmax([*weights.values()])
    assert adapter.report_["chosen_map"] == max(weights, key=weights.get)
    A = np.zeros((3, 3))
    unit = balanced_sd(data[1], data[3], adapter.support_)
    for divergence in ("ot", "likelihood"):
        standard = data[0] / unit, data[1] / unit, *data[2:]
        part = ConDoAdapter("affine", divergence=divergence).fit_pair(*standard).map_
        A += weights[f"affine ({divergence})"] * part.A * unit[:, None] / unit
    left = (adapter.map_.A - A) / weights["diagonal"]
    np.testing.assert_allclose(left, np.diag(np.diag(left)), atol=1e-5)
    plain = ConDoAdapter(shrinkage=None).fit_pair(*data).map_
    pulled, free = np.log(np.diag(left)), np.log(plain.scale)  # to no scale, or to a common one
    assert (pulled > min(0, free.min()) - 1e-4).all()
    assert (pulled < max(0, free.max()) + 1e-4).all()
    assert adapter.map_se_["scale"].shape == (3, 3)
    apart = weights["diagonal"] * (np.diag(np.diag(left)) - adapter.map_.A) ** 2
    assert (adapter.map_se_["scale"] ** 2 > 0.99 * apart).all()  # how far parts are apart counts


@pytest.mark.slow
def test_a_row_less_moves_little():
    """Adapted data move by little, and by at most 1.5 times what the default moves them."""
    for data in (turned(turn=0.1, seed=0), turned(turn=0.0, seed=1), turned(n_features=6, seed=2)):
        X_query, X_reference, Z_query, Z_reference = data
        moved = []
        for parameters in ({"map": "auto"}, {}):
            whole = ConDoAdapter(**parameters).fit_pair(*data).transform(X_query)
            sizes = []
            for i in range(0, 100, 5):
                q, r = np.arange(50) != i, np.arange(50) != i - 50
                part = X_query[q], X_reference[r], Z_query[q], Z_reference[r]
                change = ConDoAdapter(**parameters).fit_pair(*part).transform(X_query) - whole
                sizes.append(np.sqrt(np.mean((change / X_reference.std(axis=0)) ** 2)))
            moved.append(sizes)
        assert np.median(moved[0]) <= 0.05
        assert max(moved[0]) <= 1.5 * max(moved[1])


@pytest.mark.parametrize("kind", ["mixed", "rotated", "diagonal"])
def test_units_and_zeros_of_features_do_not_matter(kind):
    if kind == "mixed":
        data = mixed_data()[1]
    elif kind == "diagonal":
        data = turned(turn=0.0)
    else:
        drawn = rotations(4, 4, 100, 0)
        data = drawn.X_query, drawn.X_reference, drawn.Z_query, drawn.Z_reference
    factor, offset = np.ones(data[0].shape[1]), np.zeros(data[0].shape[1])
    factor[1], offset[0] = 7.0, 100.0
    moved = data[0] * factor + offset, data[1] * factor + offset, *data[2:]
    before, after = (ConDoAdapter("auto").fit_pair(*d).transform(d[0]) for d in (data, moved))
    np.testing.assert_allclose((after - offset) / factor, before, atol=1e-5)


def test_no_matrix_with_few_rows_per_feature():
    data = turned(n=40, n_features=12, turn=0.5)
    adapter = ConDoAdapter("auto").fit_pair(*data)
    assert adapter.map_.kind == "diagonal"
    reasons = {row["failure"] for row in adapter.report_["ladder"][1:]}
    assert reasons == {"80 rows are too few for a matrix of 12 features"}


def test_pairs_and_bootstrap_take_what_was_chosen():
    adapter, data = deepcopy(mixed_data())
    for given in (data, turned(turn=0.0), None):
        if given is None:
            drawn = rotations(4, 4, 100, 0)
            given = drawn.X_query, drawn.X_reference, drawn.Z_query, drawn.Z_reference
        rows = np.arange(30)
        truth = given[0][rows] * 0.5 + 1
        X_reference = np.vstack([truth, given[1][30:]])
        paired = ConDoAdapter("auto").fit_pair(
            given[0], X_reference, *given[2:], pairs=(rows, rows)
        )
        assert rmse(paired.transform(given[0][rows]), truth) < 0.1
    domains = from_pair(*data, None, None, None, "raise")
    drawn = bootstrap(adapter, domains, domain=None, n_resamples=20)
    assert drawn.n_resamples > 15
    assert adapter.map_se_["scale"].shape == (3, 3)


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


@pytest.mark.filterwarnings("ignore")
def test_a_fold_without_rows_of_one_domain_is_left_out():
    rng = np.random.default_rng(2)
    z, w = rng.normal(size=64), rng.normal(size=36)
    X, Y = rng.normal(size=(64, 2)) + z[:, None], 2 * rng.normal(size=(36, 2))
    for step in (6, 8):  # few subjects, so that one fold, or three, has those of one domain alone
        groups = (np.arange(64) // step, np.arange(36) // step + 1000)
        adapter = ConDoAdapter("auto").fit_pair(X, Y, z, w, groups=groups)
        assert np.isfinite(adapter.map_.offset).all()


def test_a_matrix_that_strata_do_not_determine_is_left_out():
    """Two strata leave rotations open that fit as well: the likelihood's matrix errs by sds."""
    rng = np.random.default_rng(31)
    mean, root = 1.5 * rng.normal(size=(2, 6)), np.eye(6) + 0.5 * rng.normal(size=(6, 6))
    z = [rng.choice(2, 300, p=p) for p in ([0.3, 0.7], [0.7, 0.3])]
    X, X_reference = (mean[k] + rng.normal(size=(300, 6)) @ root.T for k in z)
    names = [np.array(["a", "b"])[k] for k in z]
    A = np.eye(6) + 0.1 * rng.normal(size=(6, 6))
    query, sd = np.linalg.solve(A, X.T - 0.5).T, X_reference.std(axis=0)
    adapter = ConDoAdapter("auto").fit_pair(query, X_reference, *names)
    failures = {row["map"]: row["failure"] for row in adapter.report_["ladder"]}
    assert failures["affine (likelihood)"] == "the strata do not tell rotations apart"
    with pytest.warns(IdentifiabilityWarning):
        searched = ConDoAdapter("affine").fit_pair(query, X_reference, *names)
    errors = [rmse(a.transform(query) / sd, X / sd) for a in (adapter, searched)]
    assert errors[0] < 0.5 * errors[1]
    assert errors[0] < 0.8 * rmse(query / sd, X / sd)


@pytest.mark.parametrize(
    "settings",
    [{"conditional": "kernel", "divergence": "reverse-kl"}, {"divergence": "forward-kl"}],
)
def test_ingredients_without_standard_errors_are_weighed_by_held_out_rows(settings):
    rng = np.random.default_rng(0)
    z = rng.uniform(0, 3, 120), rng.uniform(1, 4, 120)
    truth, Y = (np.column_stack([side, -side]) + rng.normal(size=(120, 2)) for side in z)
    adapter = ConDoAdapter("auto", **settings).fit_pair(2 * truth + 3, Y, *z)
    assert rmse(adapter.transform(2 * truth + 3), truth) < 0.4
    assert [row["map"].split()[0] for row in adapter.report_["ladder"]][0] == "diagonal"
    assert len(adapter.report_["ladder"]) > 1


def test_shares_of_matrices_make_their_mixture_most_likely():
    rng = np.random.default_rng(0)
    nats, weights = rng.normal(size=(3, 200)), rng.dirichlet(np.ones(200))
    nats[2] += 3  # which has no share
    found = stacked(nats, weights)

    def loss(p):
        return -weights @ np.log(p @ np.exp(-nats))

    assert found.sum() == pytest.approx(1)
    assert found[2] == 0
    others = rng.dirichlet(np.ones(3), 2000)
    assert loss(found) < min(map(loss, others)) + 1e-4
    np.testing.assert_array_equal(stacked(nats[:1], weights), [1.0])


def test_a_named_matrix_of_few_rows_stays_near_the_identity_where_nothing_differs():
    rng = np.random.default_rng(0)
    mix, Z = rng.normal(size=(12, 12)), np.tile(["a", "b"], 30)
    X, Y = (rng.normal(size=(60, 12)) @ mix + (Z == "b")[:, None] for _ in range(2))
    for shrinkage, at_most in (("auto", 0.1), (None, np.inf)):
        adapter = ConDoAdapter("affine", shrinkage=shrinkage).fit_pair(X, Y, Z, Z)
        names = [row["map"] for row in adapter.report_["ladder"]]
        assert ("location-scale (likelihood)" in names) == (shrinkage == "auto")
        assert rmse(adapter.transform(X), X) < at_most * X.std()
    assert rmse(adapter.transform(X), X) > 0.2 * X.std()  # of the matrices themselves
