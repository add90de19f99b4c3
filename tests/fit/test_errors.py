"""Standard errors without a formula: they cover, and count what they should."""

import pickle
import warnings

import numpy as np
import pytest
from problems import Matching
from reading import from_pair

import condokit.fit.errors as resampling
from condokit import Affine, ConDoAdapter, bootstrap, datasets
from condokit.compare.comparison import compare
from condokit.conditionals import Stratified
from condokit.divergences import DIVERGENCES
from condokit.summaries.gaussians import gaussian_pair
from condokit.summaries.resampled import ResampledGaussians

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def problem(seed, d=2, n=60, n_strata=3, kind="affine", subject_size=1):
    """Return both domains, their strata and subjects, and the true map."""
    rng, shape = np.random.default_rng(seed), np.random.default_rng(d)
    means = shape.normal(size=(n_strata, d))
    roots = [np.linalg.qr(shape.normal(size=(d, d)))[0] * np.linspace(0.6, 1.8, d) for _ in means]
    A = np.eye(d) + 0.3 * shape.normal(size=(d, d))
    if kind == "transport":
        A = A @ A.T
    elif kind == "rotation":
        A = np.linalg.qr(A)[0]
        A = A * np.sign(np.diag(A))
    elif kind == "diagonal":
        A = np.diag(np.linspace(0.7, 1.5, d))
    b, sides = shape.normal(size=d), []
    for _ in range(2):
        who = np.arange(n_strata * n) // subject_size
        stratum = np.repeat(np.arange(n_strata), n)
        noise = rng.normal(size=(len(who), d))
        if subject_size > 1:
            noise = np.sqrt(0.5) * (noise + rng.normal(size=(who.max() + 1, d))[who])
        rows = [mean + noise[stratum == k] @ roots[k].T for k, mean in enumerate(means)]
        sides.append((np.concatenate(rows), stratum.astype(str), who))
    (X, Z_query, who), (X_reference, Z_reference, others) = sides
    X_query = (X - b) @ np.linalg.inv(A).T
    Z = (None, None) if n_strata == 1 else (Z_query, Z_reference)
    return (X_query, X_reference, *Z), (who, others + 10_000), A, b


def in_errors(adapter, X, A, b):
    """Return how many standard errors scale, offset and single values are from the truth."""
    known, affine = adapter.map_se_, adapter.map_
    is_diagonal = affine.kind == "diagonal"
    scale, true_scale = (affine.scale, np.diag(A)) if is_diagonal else (affine.A, A)
    values, value_errors = adapter.transform(X, return_std=True)
    return np.concatenate(
        [
            np.ravel((scale - true_scale) / known["scale"]),
            (affine.offset - b) / known["offset"],
            np.ravel((values - X @ A.T - b) / value_errors),
        ]
    )


@pytest.mark.parametrize(
    ("map_", "divergence", "kind", "n_strata", "subject_size"),
    [
        ("affine", "likelihood", "affine", 3, 1),
        ("affine", "reverse-kl", "affine", 3, 1),
        ("affine", "likelihood", "affine", 3, 3),
        ("affine", "ot", "transport", 1, 1),
        ("orthogonal", "likelihood", "rotation", 3, 1),
        ("affine", "forward-kl", "affine", 3, 1),
        ("location-scale", Matching(), "diagonal", 3, 1),
        ("location-scale", "energy", "diagonal", 3, 1),
        ("affine", "mmd", "affine", 3, 1),
    ],
    ids=str,
)
def test_intervals_cover(map_, divergence, kind, n_strata, subject_size):
    found = []
    for seed in range(16):
        data, groups, A, b = problem(seed, 2, 60, n_strata, kind, subject_size)
        groups = groups if subject_size > 1 else None
        adapter = ConDoAdapter(map_, divergence=divergence).fit_pair(*data, groups=groups)
        found.append(in_errors(adapter, data[0][::30], A, b))
    # 16 data sets, each with about four independent values: three standard errors of 0.95
    assert 0.87 < np.mean(np.abs(found) < 1.96) <= 0.995
    assert 0.7 < np.sqrt(np.mean(np.square(found))) < 1.3


def test_low_rank_maps_cover():
    found = []
    for seed in range(8):
        data, _, A, b = problem(seed, 8, 80, 3, "diagonal")
        adapter = ConDoAdapter("low-rank").fit_pair(*data)
        assert adapter.map_se_["scale"].shape == (8, 8)
        values, error = adapter.transform(data[0][::40], return_std=True)
        found.append(np.abs(values - data[0][::40] @ A.T - b) / error)
    assert 0.9 < np.mean(np.array(found) < 1.96) <= 0.999


@pytest.mark.parametrize("divergence", ["likelihood", "reverse-kl", "forward-kl"])
def test_one_step_leads_to_where_a_search_does(divergence):
    data, _, _, _ = problem(0, 3, 400)
    domains = from_pair(*data, None, None, None, "raise")
    family, kind = Affine(n_starts=1), DIVERGENCES[divergence]()
    comparison = compare(domains)
    pair = gaussian_pair(domains, comparison, Stratified(), False)
    found = kind.solve(family, pair)
    refit = resampling._stepped(
        resampling.SolvedMap(kind, family, found, found, np.ones(3, bool)), pair
    )
    rows = ResampledGaussians(domains, comparison, pair, 400)
    moved, left = [], []
    for _ in range(10):
        drawn = rows.draw(1.0)
        A, searched = refit(drawn)[0], kind.solve(family, drawn).scale
        moved.append(searched - found.scale)
        left.append(searched - A)
    assert np.linalg.norm(left) < 0.2 * np.linalg.norm(moved)


def test_errors_are_about_those_of_refits():
    data, _, _, _ = problem(0, 2, 200)
    domains = from_pair(*data, None, None, None, "raise")
    adapter = ConDoAdapter("affine", divergence="ot").fit_domains(domains)
    one_step = adapter.map_se_
    bootstrap(adapter, domains, domain=None, n_resamples=150)
    for name, refitted in adapter.map_se_.items():
        # 60 and 150 draws: each error is known to 9% and 6%
        assert np.mean(one_step[name] / refitted) == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize(
    ("map_", "divergence"),
    [("affine", "likelihood"), ("affine", "ot"), ("location-scale", "mmd"), ("low-rank", "auto")],
)
def test_the_order_of_rows_does_not_matter(map_, divergence):
    data, _, _, _ = problem(1, 4, 120)
    order = np.random.default_rng(0).permutation(len(data[0]))
    turned = data[0][order], data[1][order], data[2][order], data[3][order]
    one, other = (
        ConDoAdapter(map_, divergence=divergence).fit_pair(*rows).map_se_ for rows in (data, turned)
    )
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=0.02)


def test_subjects_and_weights_count_for_what_they_are():
    data, _, _, _ = problem(2, 2, 80)
    four = tuple(np.concatenate([part] * 4) for part in data)
    subjects = tuple(np.tile(np.arange(240), 4) + shift for shift in (0, 1000))
    adapter = ConDoAdapter("affine")
    once = adapter.fit_pair(*data).map_se_["scale"]
    naive = adapter.fit_pair(*four).map_se_["scale"]
    together = adapter.fit_pair(*four, groups=subjects).map_se_["scale"]
    weighted = adapter.fit_pair(*data, sample_weight=(np.full(240, 4.0),) * 2).map_se_["scale"]
    assert np.mean(together / once) == pytest.approx(1, abs=0.2)
    assert np.mean(naive / once) == pytest.approx(0.5, abs=0.1)
    assert np.mean(weighted / once) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("map_", "divergence"),
    [("affine", "likelihood"), ("affine", "ot"), ("location-scale", "energy"),
     ("location-scale", Matching())],
)  # fmt: skip
def test_constant_features_have_no_errors(map_, divergence):
    data, _, _, _ = problem(3, 3, 60)
    X_query, X_reference = (np.insert(X, 1, value, axis=1) for X, value in zip(data, (2.0, 5.0)))
    adapter = ConDoAdapter(map_, divergence=divergence).fit_pair(X_query, X_reference, *data[2:])
    scale, offset = adapter.map_se_["scale"], adapter.map_se_["offset"]
    varies = np.array([True, False, True, True])
    own = scale if scale.ndim == 1 else np.diag(scale)
    np.testing.assert_array_equal(own > 0, varies)
    np.testing.assert_array_equal(offset > 0, varies)
    np.testing.assert_array_equal(adapter.transform(X_query, return_std=True)[1][:, 1], 0)


@pytest.mark.parametrize(
    ("map_", "shrinkage"),
    [("affine", 0.7), ("orthogonal", 0.7)],
)
def test_a_pull_is_an_error(map_, shrinkage):
    data, _, A, b = problem(4, 2, 400, kind="rotation" if map_ == "orthogonal" else "affine")
    adapter = ConDoAdapter(map_, divergence="likelihood", shrinkage=shrinkage).fit_pair(*data)
    z = in_errors(adapter, data[0][:20], A, b)
    assert np.mean(np.abs(z) < 1.96) > 0.9
    plain = ConDoAdapter("affine", divergence="likelihood", shrinkage=None).fit_pair(*data)
    assert adapter.map_se_["scale"].mean() > 2 * plain.map_se_["scale"].mean()


def test_what_is_not_determined_has_no_errors(rng):
    [X_query, X_reference, *_], _, _, _ = problem(5, 2, 80, n_strata=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = ConDoAdapter("affine", divergence="likelihood").fit_pair(X_query, X_reference)
        ages = [rng.uniform(0, 1, 80) for _ in range(2)]
        smooth = ConDoAdapter("affine", divergence="reverse-kl", conditional="kernel")
        given_age = smooth.fit_pair(X_query, X_reference, *ages)
        wide = [rng.normal(size=(300, 40)) for _ in range(2)]
        strata = [np.tile(["a", "b"], 150)] * 2
        many = ConDoAdapter("affine", divergence="reverse-kl").fit_pair(*wide, *strata)
        closed = ConDoAdapter("affine", divergence="ot").fit_pair(*wide, *strata)
    for adapter in (one, given_age, many):
        assert adapter.map_se_ is None
        with pytest.raises(ValueError, match="bootstrap"):
            adapter.transform(adapter.map_.fitted_on.mean[None], return_std=True)
    assert closed.map_se_["scale"].shape == (40, 40)


def test_a_fitted_adapter_stays_small():
    sizes = []
    for n in (50, 2000):
        data, _, _, _ = problem(6, 3, n)
        adapter = ConDoAdapter("affine").fit_pair(*data)
        sizes.append(len(pickle.dumps(adapter)))
        again = pickle.loads(pickle.dumps(adapter))
        np.testing.assert_array_equal(again.map_se_["scale"], adapter.map_se_["scale"])
    assert sizes[1] < 1.1 * sizes[0] < 50_000


@pytest.mark.parametrize(
    "settings", [{"map": "affine"}, {"divergence": "mmd"}, {"map": "affine", "age": True}]
)
def test_errors_that_take_long_are_found_when_they_are_asked_for(settings):
    drawn = datasets.make_categorical2d(random_state=0)
    data = [np.array(part) for part in (drawn.X_query, drawn.X_reference)]
    Z = drawn.Z_query, drawn.Z_reference
    if "age" in settings:  # whose curves are found anew
        rng, settings = np.random.default_rng(0), {"map": "affine"}
        Z = tuple(part[:, 0] + rng.normal(size=len(part)) for part in data)
    one = ConDoAdapter(**settings).fit_pair(*data, *Z)
    other = ConDoAdapter(**settings).fit_pair(*data, *Z)
    assert callable(vars(other.map_)["_errors"])
    kept = pickle.loads(pickle.dumps(ConDoAdapter(**settings).fit_pair(*data, *Z)))
    expected = one.map_se_
    data[0][:] = 0.0  # what was fitted is no longer there
    for found in (other.map_se_, kept.map_se_):
        for name, errors in expected.items():
            np.testing.assert_array_equal(found[name], errors)
    assert not callable(vars(other.map_)["_errors"])
