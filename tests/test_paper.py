"""The paper as it is: prior, imputation, closed form, steps and minibatches against its text."""

import inspect
import warnings

import numpy as np
import pytest
from problems import different_features, papers_affine_objective
from scipy.optimize import check_grad, minimize
from scipy.stats import gaussian_kde
from sklearn.base import clone

import condokit
from condokit import (
    BatchAdapter,
    NeedsRows,
    Statistics,
    bootstrap,
    datasets,
    evaluate,
)
from condokit.divergences.minibatches import MinibatchMMD, rbf
from condokit.divergences.paper import appendix
from condokit.paper import ConDo, MMDBaseline, OTBaseline, PaperPrior

KINDS = [ConDo("kl"), ConDo("mmd", epochs=2), OTBaseline(), MMDBaseline(epochs=2)]


def classes(seed=0, d=2, sizes=((40, 60, 25), (70, 20, 45))):
    """Return rows of three classes that differ in means and spreads, and the classes."""
    rng = np.random.default_rng(seed)
    centre, root = rng.normal(0, 2, (3, d)), rng.normal(size=(3, d, d)) + 1.5 * np.eye(d)

    def side(counts):
        rows = [rng.normal(size=(n, d)) @ root[k] + centre[k] for k, n in enumerate(counts)]
        return np.concatenate(rows), np.repeat(list("abc"), counts)

    (X, Z), (Y, W) = side(sizes[0]), side(sizes[1])
    return 2 * X + 5, Y, Z, W


def ages(seed=0, n=80):
    rng = np.random.default_rng(seed)
    sides = []
    for low in (0.0, 0.5):
        z = rng.uniform(low, low + 2, n)
        sides.append((np.column_stack([z, z**2]) + 0.3 * rng.normal(size=(n, 2)), z))
    (X, z), (Y, w) = sides
    return 2 * X + 5, Y, z, w


def by_hand(X, Y, Z, W, weights, slip=1):
    """Return the appendix formula, feature by feature and class by class."""
    scale, offset = [], []
    for x, y in zip(X.T, Y.T):
        m_q, m_r = ([s[k == c].mean() for c in "abc"] for s, k in ((x, Z), (y, W)))
        v_q, v_r = ([s[k == c].var() + 1e-8 for c in "abc"] for s, k in ((x, Z), (y, W)))
        a_q, a_r = (sum(w * m for w, m in zip(weights, ms)) / slip for ms in (m_q, m_r))
        first = sum(w * (v + (m - a_q) ** 2) for w, v, m in zip(weights, v_q, m_q))
        second = sum(w * (a_r - r) * (m - a_q) for w, r, m in zip(weights, m_r, m_q))
        last = -sum(w * v for w, v in zip(weights, v_r))
        m = max(np.roots([first, second, last]))
        scale.append(m)
        offset.append(a_r - m * a_q)
    return np.array(scale), np.array(offset)


def test_the_closed_form_is_that_of_the_appendix():
    data = X, Y, Z, W = classes()
    n, m = (np.array([(k == c).sum() for c in "abc"]) for k in (Z, W))
    text = n * m * (n + m)
    published = np.sqrt(n * m)
    for adapter, weights, slip in (
        (ConDo("kl"), text, 1),
        (ConDo("kl", published=True), published, 3),
    ):
        weights = weights / weights.sum()
        found = adapter.fit_pair(*data)
        np.testing.assert_allclose(found.support_.weights, weights)
        scale, offset = by_hand(*data, weights, slip)
        np.testing.assert_allclose(found.map_.scale, scale, rtol=1e-10)
        np.testing.assert_allclose(found.map_.offset, offset, rtol=1e-9)


def test_the_appendix_is_a_minimum_only_if_all_variances_of_the_reference_are_equal():
    rng = np.random.default_rng(1)
    w, mean_q, mean_r = rng.dirichlet(np.ones(4)), *rng.normal(size=(2, 4, 1))
    var_q = rng.uniform(0.5, 2, (4, 1))
    for var_r, is_minimum in ((np.ones((4, 1)), True), (rng.uniform(0.2, 4, (4, 1)), False)):

        def objective(x, var_r=var_r):
            gap = x[0] ** 2 * var_q + (x[0] * mean_q + x[1] - mean_r) ** 2
            return float(w @ (-np.log(x[0]) + gap / (2 * var_r))[:, 0])

        scale, offset = appendix(w, mean_q, var_q, mean_r, var_r)
        best = minimize(objective, [1.0, 0.0], method="Nelder-Mead", tol=1e-10)
        assert (objective([scale[0], offset[0]]) < best.fun + 1e-7) == is_minimum


def test_the_prior_is_the_papers_equation():
    data = X, Y, z, w = ages(n=30)

    def kernel(one, other):
        return np.exp(-np.abs(np.subtract.outer(one, other)))

    support = np.concatenate([z, w])
    f = [kernel(side, support).sum(axis=0) / kernel(side, side).sum() for side in (z, w)]
    expected = f[0] * f[1] / (f[0] * f[1]).sum()
    from condokit.data.covariates import Covariates

    covariates = Covariates(support[:, None], np.zeros(60, int), 1, objects=support)
    is_query = np.arange(60) < 30
    rows, weights = PaperPrior(kernel).points(covariates, is_query)
    np.testing.assert_allclose(weights, expected[rows])
    # without a kernel of one's own: Silverman's, with the covariance of all columns
    Z = np.random.default_rng(0).normal(size=(60, 3)) @ [[1, 0.9, 0], [0, 0.3, 0], [2, 0, 1]]
    at = Z[:7] + 0.1
    found, expected = (
        PaperPrior().density(*(Covariates(side, np.zeros(len(side), int), 1) for side in (at, Z))),
        gaussian_kde(Z.T, "silverman")(at.T),
    )
    np.testing.assert_allclose(found / found[0], expected / expected[0], rtol=1e-6)
    # of categories: k_Z between levels
    data = classes()

    def alike(one, other):
        return np.where(np.equal.outer(one, other), 1.0, 0.3)

    n, m = (np.array([(k == c).sum() for c in "abc"]) for k in data[2:])
    K = np.full((3, 3), 0.3) + 0.7 * np.eye(3)
    found = ConDo("kl", k_Z=alike).fit_pair(*data).support_.weights
    np.testing.assert_allclose(found, (K @ n) * (K @ m) * (n + m) / ((K @ n) * (K @ m) @ (n + m)))


def test_a_kernel_and_its_width_go_with_chained_imputation():
    pytest.importorskip("lightgbm")
    data = ages()
    plain, wide, narrow, own = (
        ConDo("kl", **how).fit_pair(*data).map_
        for how in (
            {},
            {"h_Z": 100.0},
            {"h_Z": 0.1},
            {"k_Z": lambda a, b: np.exp(-0.5 * (np.subtract.outer(a, b) / 0.1) ** 2)},
        )
    )
    assert own == narrow
    assert len({tuple(m.scale) for m in (plain, wide, narrow)}) == 3
    for found in (plain, wide, narrow):
        np.testing.assert_allclose(found.scale, 0.5, atol=0.15)


def test_every_imputation_has_models_of_its_own(monkeypatch):
    lightgbm = pytest.importorskip("lightgbm")
    trained, train = [], lightgbm.train
    monkeypatch.setattr(lightgbm, "train", lambda *a, **k: trained.append(1) or train(*a, **k))
    ConDo("kl", K_X=5, rounds=3).fit_pair(*ages())
    assert len(trained) == 2 * 5 * 3 * 2  # domains, imputations, rounds, features


def test_newton_goes_down_from_the_start_that_is_asked_for():
    data = X, Y, Z, W = classes()
    n, m = (np.array([(k == c).sum() for c in "abc"]) for k in (Z, W))
    w = n * m * (n + m) / (n * m @ (n + m))
    means = [np.array([s[k == c].mean(axis=0) for c in "abc"]) for s, k in ((X, Z), (Y, W))]
    covs = [np.array([np.cov(s[k == c].T) for c in "abc"]) for s, k in ((X, Z), (Y, W))]
    objective = papers_affine_objective(w, means[0], covs[0], means[1], covs[1])

    def value(found):
        return objective.of_numbers(np.append(found.A.ravel(), found.b))[0]

    end = ConDo("kl", "affine").fit_pair(*data)
    assert end.report_["n_iter"] > 2
    at_end = np.append(end.map_.A.ravel(), end.map_.b)
    both = [lambda x, k=k: objective.of_numbers(x)[k] for k in (0, 1)]
    assert np.abs(both[1](at_end)).max() < 1e-3
    assert check_grad(*both, at_end + 0.1) < 1e-4
    np.testing.assert_allclose(end.map_.A, 0.5 * np.eye(2), atol=0.15)
    assert end.report_["objective"] == pytest.approx(value(end.map_))  # whatever the units
    first = ConDo("kl", "affine", steps=1).fit_pair(*data)
    other = ConDo("kl", "affine", steps=1, start="location-scale").fit_pair(*data)
    diagonal = ConDo("kl").fit_pair(*data)
    assert value(end.map_) < min(value(first.map_), value(other.map_))
    assert value(other.map_) < value(diagonal.map_)
    assert first.map_ != other.map_


@pytest.mark.parametrize("published", [False, True])
def test_the_sets_of_an_epoch_are_new_ones_if_f_is_below_one(published, monkeypatch):
    drawn, draw = [], MinibatchMMD._draw
    monkeypatch.setattr(MinibatchMMD, "_draw", lambda *a: drawn.append(draw(*a)) or drawn[-1])
    data = classes()
    ConDo("mmd", F=0.01 if published else 0.5, published=published).fit_pair(*data)
    assert len(drawn) == (1 if published else 5)
    X, Y = drawn[0]
    assert X.shape == ((1 if published else 62), 20, 2)
    assert X.shape == Y.shape


def test_minibatches_take_a_kernel_and_its_width():
    def inverse(s):  # the rational kernel 1 / (1 + s)
        return 1 / (1 + s), -1 / (1 + s) ** 2

    rng = np.random.default_rng(0)
    Z, Y = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 5, 3))
    for how in ({"h_X": 2.0}, {"h_X": 0.7, "k_X": inverse}):
        divergence = MinibatchMMD(**how)
        step = np.zeros(Z.shape)
        step[1, 2, 0] = 1e-6
        slope = np.subtract(*(divergence.of_sets(Z + s * step, Y)[0] for s in (1, -1))) / 2e-6
        assert divergence.of_sets(Z, Y)[1][1, 2, 0] == pytest.approx(slope, rel=1e-4)
        kernel = how.get("k_X", rbf)
        both = (Z[0], Y[0])
        k = [
            kernel(((a[:, None] - b) ** 2).sum(axis=2) / how["h_X"])[0].mean()
            for a, b in ((Z[0], Z[0]), both, (Y[0], Y[0]))
        ]
        assert divergence.of_sets(Z[:1], Y[:1])[0] == pytest.approx(k[0] - 2 * k[1] + k[2])
    data = classes()
    maps = [
        ConDo("mmd", **how).fit_pair(*data).map_ for how in ({}, {"h_X": 3.0}, {"k_X": inverse})
    ]
    assert len({tuple(m.offset) for m in maps}) == 3


def test_different_features_by_minibatches():
    X, Y, types = different_features(0)
    for adapter, given in ((ConDo("mmd", "affine"), (types, types)), (MMDBaseline("affine"), ())):
        assert adapter.fit_pair(X, Y, *given).map_.A.shape == (3, 5)
    with pytest.raises(ValueError, match="must be the same features"):
        ConDo("kl", "affine").fit_pair(X, Y, types, types)


SETTINGS = {
    "k_X": (lambda s: (np.exp(-s / 2), -np.exp(-s / 2) / 2), "mmd"),
    "h_X": (3.0, "mmd"),
    "k_Z": (lambda a, b: 0.5 + np.equal.outer(a, b), "kl"),
    "h_Z": (0.1, "numbers"),
    "K_X": (7, "mmd"),
    "K_Z": (3, "mmd"),
    "rounds": (1, "numbers"),
    "F": (0.5, "mmd"),
    "epochs": (2, "mmd"),
    "learning_rate": (0.01, "mmd"),
    "weight_decay": (0.1, "mmd"),
    "patience": (1, "patience"),
    "start": ("location-scale", "steps"),
    "steps": (1, "affine"),
    "published": (True, "kl"),
}
WHERE = {
    "kl": {},
    "mmd": {"divergence": "mmd"},
    "patience": {"divergence": "mmd", "epochs": 60, "learning_rate": 0.01, "F": 0.3},
    "affine": {"map": "affine"},
    "steps": {"map": "affine", "steps": 1},
    "numbers": {},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_used_or_refused(name):
    if name in ("h_Z", "rounds"):
        pytest.importorskip("lightgbm")
    other, where = SETTINGS[name]
    data = ages() if where == "numbers" else classes()
    plain, changed = (
        ConDo(**WHERE[where], **how).fit_pair(*data).map_ for how in ({}, {name: other})
    )
    assert plain != changed
    if name in ("published", "k_Z"):
        return
    idle = {"divergence": "mmd"} if where in ("affine", "steps", "numbers") else {}
    with pytest.raises(ValueError, match=f"'{name}' is not used by ConDo"):
        ConDo(**idle, **{name: other}).fit_pair(*classes())


def test_all_settings_are_walked():
    shared = {"reference", "categorical", "missing", "warn_overlap", "min_overlap", "n_jobs"}
    shared |= {"verbose", "random_state", "divergence", "map"}
    assert set(inspect.signature(ConDo).parameters) == shared | set(SETTINGS)


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (ConDo("kld"), "'divergence' must be 'kl' or 'mmd'"),
        (ConDo(map="monotone"), "'map' must be 'location-scale' or 'affine'"),
        (ConDo("mmd", F=0), "'F' must be a share of the rows, above 0 and at most 1. Got 0"),
        (ConDo("mmd", F=1.2), "'F' must be a share"),
        (ConDo("mmd", K_X=1), "'K_X' must be a whole number of at least 2"),
        (ConDo("mmd", K_Z=0.5), "'K_Z' must be a whole number"),
        (ConDo("mmd", h_X=-1.0), "'h_X' must be"),
        (ConDo("mmd", k_X=3), "'k_X' must take squared distances"),
        (ConDo("mmd", k_X=lambda s: np.exp(-s)), "'k_X' must take squared distances"),
        (ConDo("mmd", k_X=lambda s: (s.sum(), s)), "both of their shape"),
        (ConDo("mmd", k_X=lambda s: (-np.exp(-s), np.exp(-s))), "not negative"),
        (ConDo("mmd", k_X=lambda s: (np.exp(-s), np.exp(-s))), "slope that 'k_X' returns"),
        (ConDo(k_Z=3), r"'k_Z' must be a function k\(Z1, Z2\)"),
        (ConDo(k_Z=lambda a, b: np.ones((2, 2))), "must return a matrix of shape"),
        (ConDo(k_Z=lambda a, b: 1 / 0), "kernel .* of the confounders failed: ZeroDivisionError"),
        (ConDo(k_Z=lambda a: a), "kernel .* of the confounders failed: TypeError"),
        (ConDo(published="yes"), "'published' must be True or False. Got 'yes'"),
        (ConDo(k_Z=lambda a, b: -np.ones((len(a), len(b)))), "not negative"),
        (ConDo(k_Z=lambda a, b: np.zeros((len(a), len(b)))), "gives no weight"),
        (ConDo(map="affine", steps=0), "'steps' must be"),
        (ConDo(map="affine", start="truth"), "'start' of PaperKL"),
        (ConDo("mmd", K_X=10, published=True), "published numbers use no other 'K_X'"),
        (ConDo("mmd", epochs=50, published=True), "5 epochs with learning_rate=0.001, or 100"),
        (ConDo("mmd", F=0.5, published=True), "F=1, or F=0.01"),
        (ConDo(map="affine", steps=5, published=True), "published numbers use no other 'steps'"),
        (OTBaseline(), "compares without `confounders`"),
        (MMDBaseline(), "compares without `confounders`"),
    ],
)
def test_bad_settings(adapter, message):
    with pytest.raises(ValueError, match=message):
        adapter.fit_pair(*classes())


def test_no_affine_map_given_numbers_was_published():
    with pytest.raises(ValueError, match="No affine map given continuous confounders"):
        ConDo(map="affine", published=True).fit_pair(*ages())
    with pytest.raises(ValueError, match="'h_Z' is the width of the RBF"):
        ConDo(h_Z=1.0, k_Z=lambda a, b: 1.0).fit_pair(*ages())
    with pytest.raises(ValueError, match="no other 'K_X'"):
        MMDBaseline(K_X=5, published=True).fit_pair(*classes()[:2])


def test_what_the_paper_has_not_is_refused():
    X, Y, Z, W = classes(sizes=((20, 20, 20), (20, 20, 20)))
    for how in (
        {"pairs": (range(60), range(60))},
        {"groups": (np.arange(60), np.arange(60))},
        {"sample_weight": (np.ones(60) + 1, np.ones(60))},
    ):
        with pytest.raises(ValueError, match=f"'{next(iter(how))}' is not in the paper"):
            ConDo().fit_pair(X, Y, Z, W, **how)
    statistics = Statistics.of(
        np.concatenate([X, Y]),
        domain=np.repeat(["query", "reference"], 60),
        confounders=np.concatenate([Z, W]),
    )
    with pytest.raises(NeedsRows, match="ConDo needs single rows"):
        ConDo().fit_statistics(statistics)
    with pytest.warns(UserWarning, match="covariance of 40 features of 20 rows is singular"):
        ConDo("kl", "affine", steps=1).fit_pair(*classes(d=40, sizes=((20, 20, 20),) * 2))
    with pytest.raises(ValueError, match="one row in a domain, of which no covariance"):
        ConDo("kl", "affine").fit_pair(*classes(sizes=((1, 20, 20), (20, 20, 20))))


@pytest.mark.parametrize("adapter", KINDS, ids=lambda a: type(a).__name__ + str(a.divergence))
def test_they_are_adapters_like_every_other(adapter, tmp_path):
    eeg = datasets.make_eeg(150, 150, random_state=0).to_frame()
    conditional = isinstance(adapter, ConDo)
    given = {"confounders": "seizure"} if conditional else {}
    adapter = clone(adapter).set_params(reference="v1")
    adapter.fit(eeg, domain="device", features="eeg_delta*", **given)
    path = tmp_path / "map.json"
    adapter.map_.save(path)
    assert condokit.load_map(path) == adapter.map_
    assert adapter.transform(eeg, domain="device").shape == (300, 8)
    assert condokit.export.to_python(adapter.map_)
    roles = {"domain": "device", "confounders": "seizure", "features": "eeg_delta*"}
    assert evaluate(adapter, eeg, **roles).verdict
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        roles = {"domain": "device", "features": "eeg_delta*", **given}
        condokit.report.save(tmp_path / "page.html", adapter, eeg, **roles)
    page = (tmp_path / "page.html").read_text()
    assert "formulas of that paper" in page or "minibatches as in that paper" in page
    assert "Estimates were not shrunk" in page
    if type(adapter) is ConDo and adapter.divergence == "kl":
        errors = bootstrap(adapter, eeg, domain="device", features="eeg_delta*", **given)
        assert errors.n_resamples > 10
        assert adapter.map_se_ is not None


def test_batches_by_the_papers_method():
    rng = np.random.default_rng(0)
    batch = np.repeat(list("ABC"), 60)
    level = rng.integers(0, 2, 180).astype(str)
    X = rng.normal(size=(180, 2)) + 3.0 * (level == "1")[:, None] + 2.0 * (batch == "B")[:, None]
    adapter = BatchAdapter(ConDo("kl"), reference="A").fit(X, batch=batch, confounders=level)
    np.testing.assert_allclose(adapter.maps_["B"].offset, -2.0, atol=0.7)
    np.testing.assert_allclose(adapter.maps_["C"].offset, 0.0, atol=0.7)
