"""Every kind of bad input gets a clear error, or a documented treatment."""

import numpy as np
import pandas as pd
import pytest
from problems import two_domains
from scipy import sparse
from scipy.sparse.linalg import ArpackError

from condokit import (
    ConDoAdapter,
    IdentifiabilityWarning,
    KernelSmoother,
    NoOverlapError,
    PooledLikelihood,
    ProductPrior,
)


@pytest.fixture
def data():
    return two_domains(np.random.default_rng(0), n=40)


@pytest.fixture
def frame(data):
    X_query, X_reference, Z_query, Z_reference = data
    table = pd.DataFrame(np.vstack([X_query, X_reference]), columns=["height", "width", "depth"])
    table["sex"] = np.concatenate([Z_query, Z_reference])
    table["device"] = np.repeat(["v2", "v1"], 40)
    return table


def refused(message, error=ValueError, *, adapter=None, method="fit_pair", **arguments):
    adapter = adapter or ConDoAdapter()
    with pytest.raises(error, match=message):
        getattr(adapter, method)(**arguments)
    assert not hasattr(adapter, "map_")


def fit_refused(message, frame, error=ValueError, reference="v1", parameters=None, **arguments):
    adapter = ConDoAdapter(reference=reference, **(parameters or {}))
    arguments = {"domain": "device", "confounders": "sex", **arguments}
    refused(message, error, adapter=adapter, method="fit", X=frame, **arguments)


def test_row_counts_that_differ(frame, data):
    fit_refused("'domain' has 3 entries but X has 80 rows", frame, domain=["a", "b", "a"])
    fit_refused("'confounders' has 2 entries", frame, confounders=np.array(["a", "b"]))
    fit_refused("'groups' has 1 entries", frame, groups=[1])
    fit_refused("'sample_weight' has 2 entries", frame, sample_weight=[1, 1])
    X_query, X_reference, Z_query, Z_reference = data
    refused(
        "'Z_query' has 39 entries but X_query has 40 rows",
        X_query=X_query, X_reference=X_reference, Z_query=Z_query[1:], Z_reference=Z_reference,
    )  # fmt: skip


def test_columns_that_differ(frame):
    query = frame[["height", "width"]]
    refused(
        "only X_query has 'width'; only X_reference has 'widht'",
        X_query=query, X_reference=query.rename(columns={"width": "widht"}),
    )  # fmt: skip
    swapped = ConDoAdapter(shrinkage=None).fit_pair(query * [2, 3], query[["width", "height"]])
    np.testing.assert_allclose(swapped.map_.scale, [1 / 2, 1 / 3])
    refused("both have column names", X_query=query, X_reference=query.to_numpy())
    refused(
        "2 features and X_reference has 3", X_query=np.ones((9, 2)), X_reference=np.ones((5, 3))
    )


def test_transposed_matrices(data):
    X_query, X_reference, Z_query, Z_reference = data
    refused(
        "X_query looks transposed",
        X_query=X_query.T, X_reference=X_reference.T, Z_query=Z_query, Z_reference=Z_reference,
    )  # fmt: skip
    refused("look transposed", X_query=X_query[:9].T, X_reference=X_reference.T)
    stacked = np.vstack([X_query, X_reference])
    domain = np.repeat(["query", "reference"], 40)
    refused("X looks transposed", method="fit", X=stacked.T, domain=domain)
    adapter = ConDoAdapter().fit_pair(X_query, X_reference)
    with pytest.raises(ValueError, match="X has 40 features.*expecting 3.*looks transposed"):
        adapter.transform(X_query.T)


def test_unknown_column_names_get_a_suggestion(frame):
    fit_refused("'domain' names 'devise'.*Did you mean 'device'", frame, domain="devise")
    fit_refused("'confounders' names 'sxe'.*Did you mean 'sex'", frame, confounders=["sxe"])
    fit_refused("'features' names 'widht'.*Did you mean 'width'", frame, features=["widht"])
    fit_refused("'features' names 'eeg_\\*'", frame, features=["eeg_*"])
    fit_refused("'groups' names 'id'", frame, groups="id")
    fit_refused(
        "'categorical' lists 'sxe'.*Did you mean 'sex'", frame, parameters={"categorical": ["sxe"]}
    )
    fit_refused("X has no column names", frame[["height"]].to_numpy(), domain="device")
    fit_refused("also the domain, a confounder", frame, features=["height", "sex"])


def test_columns_that_are_not_numeric(frame):
    frame["name"] = "somebody"
    fit_refused("not numeric: 'name \\(", frame, features=["*"])
    with pytest.warns(UserWarning, match="Not taken as features: 'name' \\(not a number\\)"):
        ConDoAdapter(reference="v1").fit(frame, domain="device", confounders="sex")
    ConDoAdapter(reference="v1").fit(
        frame, domain="device", confounders="sex", features=["*t?"]
    )  # height, width, depth
    text = np.array([["1", "x"], ["2", "y"]])
    refused("X_query must hold numbers", X_query=text, X_reference=text)
    refused("Complex", X_query=np.ones((3, 1)) * 1j, X_reference=np.ones((3, 1)))


def test_infinity_is_told_by_column(frame, data):
    frame.loc[3:5, "width"] = [np.inf, -np.inf, np.nan]
    frame.loc[0, "depth"] = np.inf
    fit_refused("X contains infinity, in 'width', 'depth'", frame)
    X_query, X_reference, *_ = data
    bad = X_query.copy()
    bad[7, 1] = -np.inf
    refused("X_query contains infinity, in .column 1", X_query=bad, X_reference=X_reference)
    adapter = ConDoAdapter().fit_pair(X_query, X_reference)
    with pytest.raises(ValueError, match="X contains infinity, in 'column 1'"):
        adapter.transform(bad)


def test_infinity_in_rows_that_are_not_compared_is_found_too(frame):
    frame.loc[0, "sex"] = "other"
    frame.loc[0, "width"] = np.inf
    fit_refused("infinity, in .width", frame)


def test_missing_confounders_and_domains(frame):
    holes = frame.copy()
    holes.loc[[1, 2], "sex"] = None
    fit_refused("'sex' has 2 missing values .of 80", holes)
    holes = frame.copy()
    holes.loc[1, "device"] = None
    fit_refused("'domain' has 1 missing", holes)
    nothing = np.full(80, np.nan)
    fit_refused("'confounder 0' has 80 missing", frame, confounders=nothing, features=["height"])
    fit_refused("'missing' must be 'raise'", frame, parameters={"missing": "ignore"})


def test_constant_features_are_only_shifted(data):
    X_query, X_reference, Z_query, Z_reference = data
    X_query[:, 1] = 7.0
    X_reference[:, 1] = np.where(Z_reference == "a", 2.0, 2.0)
    X_query[:, 2] = 1e-300
    for shrinkage in ("auto", None):
        with pytest.warns(IdentifiabilityWarning, match="'column 1', 'column 2'"):
            adapter = ConDoAdapter(shrinkage=shrinkage).fit_pair(
                X_query, X_reference, Z_query, Z_reference
            )
        np.testing.assert_array_equal(adapter.map_.scale[1:], 1)
        assert adapter.map_.offset[1] == pytest.approx(-5)
        assert np.isfinite(adapter.map_.offset).all()
        assert adapter.report_["constant_features"] == ["column 1", "column 2"]


def test_a_feature_constant_in_one_stratum_only(data):
    X_query, X_reference, Z_query, Z_reference = data
    X_reference[Z_reference == "a", 0] = 1.0
    for shrinkage in ("auto", None):
        with pytest.warns(
            IdentifiabilityWarning, match="values are equal.*only shifted: 'column 0'"
        ):
            adapter = ConDoAdapter(shrinkage=shrinkage).fit_pair(
                X_query, X_reference, Z_query, Z_reference
            )
        assert np.isfinite(adapter.map_.offset).all()
        assert adapter.map_.scale[0] == 1
        assert adapter.report_.discrete_features == ["column 0"]


def test_no_common_stratum(frame):
    frame["site"] = np.where(frame["device"] == "v1", "old", "new")
    shared = {"error": NoOverlapError, "features": ["height"]}
    message = "(?s)'site' has no level in both domains.*n_query.*new.*40.*old"
    fit_refused(message, frame, confounders=["site"], **shared)
    message = "no combination of the confounders 'sex', 'site'"
    fit_refused(message, frame, confounders=["sex", "site"], **shared)


def test_single_rows_and_empty_tables(data):
    X_query, X_reference, Z_query, Z_reference = data
    one = {"X_query": X_query[:1], "X_reference": X_reference}
    few = "Only 1 of the query rows can be compared"
    with pytest.warns(IdentifiabilityWarning, match=few):
        shift = ConDoAdapter(map="shift").fit_pair(**one)
    assert (shift.map_se_["offset"] > 0.5 * X_reference.std(axis=0)).all()
    with (
        pytest.warns(IdentifiabilityWarning, match="one row in each stratum.*only shifted"),
        pytest.warns(IdentifiabilityWarning, match=few),
    ):
        fallen_back = ConDoAdapter().fit_pair(**one)
    np.testing.assert_array_equal(fallen_back.map_.offset, shift.map_.offset)
    assert fallen_back.report_.fallback == "shift"
    both = {"X_query": X_query[:1], "X_reference": X_reference[:1]}
    with pytest.warns(IdentifiabilityWarning, match="one row in each stratum"):
        refused("two domains have only 1 sample.*how sure a shift is cannot be learned", **both)
    refused("0 sample.s.*X_query is empty", X_query=X_query[:0], X_reference=X_reference)
    refused("0 feature", X_query=X_query[:, :0], X_reference=X_reference[:, :0])
    adapter = ConDoAdapter().fit_pair(X_query, X_reference)
    assert adapter.transform(X_query[:1]).shape == (1, 3)
    with pytest.raises(ValueError, match="0 sample"):
        adapter.transform(X_query[:0])


BY_KERNEL = {"divergence": "reverse-kl", "conditional": "kernel"}


@pytest.mark.parametrize("settings", [{}, BY_KERNEL])
def test_values_far_from_all_others_are_named(data, settings):
    X_query, X_reference, Z_query, Z_reference = data
    age = np.linspace(0, 1, 40)
    X_reference[3, 1] += 1000
    for Z in ((Z_query, Z_reference), (age, age)):
        with pytest.warns(IdentifiabilityWarning, match="'column 1' in the reference rows are"):
            ConDoAdapter(**settings).fit_pair(X_query, X_reference, *Z)
    ConDoAdapter(**settings).fit_pair(
        X_query, X_reference, Z_query, Z_reference, sample_weight=(None, np.arange(40) != 3)
    )  # rows that are left out do not count
    X_reference[3, 1] -= 980  # far, but not that far
    ConDoAdapter(**settings).fit_pair(X_query, X_reference, Z_query, Z_reference)


def test_duplicate_column_names(frame):
    frame.columns = ["height", "height", "depth", "sex", "device"]
    fit_refused("X has duplicate column names: 'height'", frame)


@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_huge_and_tiny_scales_side_by_side(data, unit):
    X_query, X_reference, Z_query, Z_reference = data
    units = np.array([unit, 1.0, 1 / unit])
    plain = ConDoAdapter().fit_pair(X_query, X_reference, Z_query, Z_reference)
    mixed = ConDoAdapter().fit_pair(X_query * units, X_reference * units, Z_query, Z_reference)
    np.testing.assert_allclose(mixed.map_.scale, plain.map_.scale, rtol=1e-9)


def test_numbers_too_large_to_square():
    X = np.random.default_rng(0).normal(size=(20, 1)) * 1e200
    refused("too large", X_query=X, X_reference=X)


def test_sparse_and_lazy_tables(data):
    X_query, X_reference, *_ = data
    refused("Sparse data was passed.*toarray", TypeError, X_query=sparse.csr_array(X_query),
            X_reference=X_reference)  # fmt: skip
    import polars as pl

    lazy = pl.DataFrame(X_query).lazy()
    refused("lazy frame; collect it", TypeError, X_query=lazy, X_reference=X_reference)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"map": "afine"}, "'map' must be one of 'identity', 'shift', 'location-scale'"),
        ({"map": "location_scale"}, "Got 'location_scale' instead. Did you mean 'location-scale'"),
        ({"divergence": "kl"}, "'divergence' must be one of 'reverse-kl', 'forward-kl'"),
        ({"prior": 3}, "'prior' must be one of"),
        ({"conditional": "forest"}, "'conditional' must be one of 'stratified'"),
        ({"shrinkage": "yes"}, "'shrinkage' must be 'auto', None or a number from 0 to 1"),
        ({"shrinkage": 1.5}, "Got 1.5"),
        ({"shrinkage": True}, "Got True"),
        ({"reference": "v1"}, "fit_pair takes the reference as its second table"),
    ],
)
def test_wrong_parameters(data, parameters, message):
    X_query, X_reference, *_ = data
    adapter = ConDoAdapter(**parameters)
    refused(message, adapter=adapter, X_query=X_query, X_reference=X_reference)


def test_domains_that_are_not_two_or_not_named(frame):
    fit_refused("'domain' is required", frame, domain=None)
    fit_refused("'reference' is 'v3', but the domain labels are 'v1', 'v2'", frame, reference="v3")
    fit_refused("'reference' must name the domain to map to, 'v1' or 'v2'", frame, reference=None)
    three = frame["device"].where(frame.index > 3, "v0")
    fit_refused("exactly two labels. Got 3", frame, domain=three, features=["height"])
    adapter = ConDoAdapter(reference="v1").fit(frame, domain="device", confounders="sex")
    with pytest.raises(ValueError, match="label 'v0', which is unknown"):
        adapter.transform(frame, domain=three)


def test_confounders_of_the_wrong_kind(frame):
    height = {"features": ["height"]}
    frame["day"] = pd.date_range("2026-01-01", periods=80)
    fit_refused("'day' holds dates", frame, confounders="day", **height)
    frame["age"] = np.arange(80.0) % 40
    stratified = {"divergence": "reverse-kl", "conditional": "stratified"}
    message = "needs categorical confounders, but 'age' is continuous"
    fit_refused(message, frame, confounders="age", parameters=stratified, **height)
    frame.loc[3, "age"] = np.inf
    fit_refused("'age' has 1 infinite values", frame, confounders="age", **height)
    ConDoAdapter(categorical=0).fit_pair(
        np.arange(9.0)[:, None], np.arange(9.0)[:, None], np.arange(9) % 3, np.arange(9) % 3
    )


def test_pairs_that_are_no_pairs(data):
    X_query, X_reference, Z_query, Z_reference = data
    both = {"X_query": X_query, "X_reference": X_reference}
    refused("both Z_query and Z_reference", **both, Z_query=Z_query)
    refused("'groups' must be a pair", **both, groups=np.arange(40))
    refused("'sample_weight' must be a pair", **both, sample_weight=np.ones(40))
    refused("same confounders", **both, Z_query={"sex": Z_query}, Z_reference={"age": Z_query})


def test_weights_that_are_no_weights(data):
    X_query, X_reference, *_ = data
    both = {"X_query": X_query, "X_reference": X_reference}
    ones = np.ones(40)
    refused("finite and not negative", **both, sample_weight=(-ones, ones))
    refused("must hold numbers", **both, sample_weight=(["a"] * 40, ones))
    refused("sums to 1 over the query rows", **both, sample_weight=(ones / 40, ones))
    fitted = ConDoAdapter().fit_pair(**both, sample_weight=(None, ones))
    assert fitted.map_ == ConDoAdapter().fit_pair(**both).map_


def test_one_dimensional_tables(data):
    X_query, X_reference, *_ = data
    refused("Expected 2D array, got 1D", X_query=X_query[:, 0], X_reference=X_reference)
    series = pd.Series(X_query[:, 0])
    refused("Expected 2D array, got 1D", X_query=series, X_reference=X_reference)


def test_boolean_columns_are_features_only_when_listed(frame):
    frame["smokes"] = frame["height"] > 0
    with pytest.warns(UserWarning, match="Not taken as features: 'smokes'"):
        ConDoAdapter(reference="v1").fit(frame, domain="device", confounders="sex")
    listed = ["height", "smokes"]
    with pytest.warns(IdentifiabilityWarning, match="only shifted: 'smokes'"):
        adapter = ConDoAdapter(reference="v1").fit(
            frame, domain="device", confounders="sex", features=listed
        )
    assert list(adapter.feature_names_in_) == listed


def test_text_dates_and_masks_in_arrays(data):
    X_query, X_reference, *_ = data
    for dtype in (str, "M8[s]"):
        refused("X_query must hold numbers", X_query=X_query.astype(dtype), X_reference=X_reference)
    masked = np.ma.masked_array(X_query, mask=np.zeros(X_query.shape, bool))
    masked[3, 1] = np.ma.masked
    adapter = ConDoAdapter().fit_pair(masked, X_reference)
    assert adapter.report_["missing_features"] == {"column 1": {"query": 1, "reference": 0}}
    refused("cannot be read as a table", X_query=[[1.0], [2.0, 3.0]], X_reference=X_reference)


def test_columns_named_by_numbers_must_be_in_order(data):
    X_query, X_reference, *_ = map(pd.DataFrame, data)
    adapter = ConDoAdapter().fit_pair(X_query, X_reference)
    with pytest.raises(ValueError, match="not strings .2, 1, 0., so columns cannot be found"):
        adapter.transform(X_query[[2, 1, 0]])


def test_a_failed_refit_leaves_the_adapter_as_it_was(frame):
    adapter = ConDoAdapter(reference="v1").fit(frame, domain="device", confounders="sex")
    before = adapter.map_, adapter.divergence_
    with pytest.raises(NoOverlapError):
        adapter.fit(frame, domain="device", confounders="device", features=["height"])
    assert (adapter.map_, adapter.divergence_) == before
    assert adapter.transform(frame).shape == (80, 3)


def test_features_constant_up_to_rounding_are_constant(data):
    X_query, X_reference, Z_query, Z_reference = data
    X_query[:, 0] = np.where(np.arange(40) % 3, 0.1 + 0.2, 0.3)
    with pytest.warns(IdentifiabilityWarning, match="column 0"):
        adapter = ConDoAdapter().fit_pair(X_query, X_reference, Z_query, Z_reference)
    assert adapter.map_.scale[0] == 1


def test_strata_with_hardly_any_evidence_do_no_harm():
    rng = np.random.default_rng(0)
    X_query, X_reference, Z_query, Z_reference = two_domains(rng)
    plain = ConDoAdapter(divergence="ot").fit_pair(X_query, X_reference, Z_query, Z_reference)
    Z_query, Z_reference = Z_query.astype("U4"), Z_reference.astype("U4")
    Z_query[:2] = Z_reference[:2] = "rare"
    for weight in (0.5000001, 0.505, 0.6):
        weights = np.ones(200)
        weights[:2] = weight
        adapter = ConDoAdapter(divergence="ot").fit_pair(
            X_query, X_reference, Z_query, Z_reference, sample_weight=(weights, weights)
        )
        np.testing.assert_allclose(adapter.map_.scale, plain.map_.scale, rtol=0.1)
        assert np.isfinite(adapter.map_se_["offset"]).all()


@pytest.mark.filterwarnings("ignore:Fewer than 5 subjects")
def test_one_subject_with_many_rows_is_not_one_sample():
    rng = np.random.default_rng(0)
    X_query, X_reference, Z_query, Z_reference = two_domains(rng, n=60)
    subject = np.where(Z_query == "a", 0, 1), np.where(Z_reference == "a", 2, 3)
    adapter = ConDoAdapter().fit_pair(X_query, X_reference, Z_query, Z_reference, groups=subject)
    assert np.isfinite(adapter.map_.offset).all()
    half = ConDoAdapter().fit_pair(
        X_query, X_reference, Z_query, Z_reference, groups=(subject[0], None)
    )
    assert half.map_se_["scale"].mean() <= 1.05 * adapter.map_se_["scale"].mean()


@pytest.mark.filterwarnings("ignore:Fewer than 5 subjects")
def test_named_columns_in_fit_pair_are_no_features(frame):
    query, reference = (frame[frame["device"] == d].drop(columns="device") for d in ("v2", "v1"))
    named = ConDoAdapter().fit_pair(query, reference, "sex", "sex")
    assert list(named.feature_names_in_) == ["height", "width", "depth"]
    query, reference = query.assign(subject=1.0), reference.assign(subject=2.0)
    grouped = ConDoAdapter().fit_pair(query, reference, "sex", "sex", groups=("subject", "subject"))
    assert list(grouped.feature_names_in_) == ["height", "width", "depth"]


def test_masks_in_categorical(frame):
    frame["site"], frame["age"] = np.arange(80) % 3, np.arange(80) % 23
    mask = {"categorical": [True, False], "conditional": "stratified", "divergence": "ot"}
    message = "but 'age' is continuous"
    arguments = {"confounders": ["site", "age"], "features": ["height"]}
    fit_refused(message, frame, parameters=mask, **arguments)
    fit_refused("mask of 1 booleans", frame, parameters={"categorical": [True]}, **arguments)
    fit_refused("must list names or positions", frame, parameters={"categorical": 1.5})


def test_confounders_named_like_our_own_columns():
    X_query, X_reference, Z_query, Z_reference = two_domains(np.random.default_rng(0))
    support = (
        ConDoAdapter()
        .fit_pair(X_query, X_reference, {"weight": Z_query}, {"weight": Z_reference})
        .support_
    )
    assert support.to_dict()["weight (confounder)"] == ["a", "b"]


def test_levels_that_look_the_same_are_told_apart(data):
    X_query, X_reference, Z_query, Z_reference = data
    numbers, text = (Z_query == "a").astype(int), (Z_reference == "a").astype(int).astype(str)
    refused(
        "(?s)no level in both.*'0'", NoOverlapError,
        X_query=X_query, X_reference=X_reference, Z_query=numbers, Z_reference=text,
    )  # fmt: skip


def test_results_too_large_for_their_dtype():
    from condokit import AffineMap

    with pytest.raises(ValueError, match="too large for float32"):
        AffineMap([1e30], [0.0])(np.array([[1e20]], dtype=np.float32))
    with pytest.raises(ValueError, match="no finite inverse"):
        AffineMap([1e-320], [1.0]).inverse()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"warn_overlap": None}, "'warn_overlap' must be a number from 0 to 1. Got None"),
        ({"min_overlap": 2}, "'min_overlap' must be a number"),
        ({**BY_KERNEL, "conditional": KernelSmoother(bandwidth=-1)}, "'bandwidth' must be"),
        ({**BY_KERNEL, "prior": ProductPrior(bandwidth="x")}, "'bandwidth' must be"),
        (
            {
                **BY_KERNEL,
                "conditional": KernelSmoother(kernel=max, bandwidth=1.0),
                "prior": ProductPrior(kernel=max, bandwidth=1.0),
            },
            "With a 'kernel' of your own, leave it out",
        ),
    ],
)
def test_wrong_parameters_with_a_continuous_confounder(data, parameters, message):
    X_query, X_reference, *_ = data
    z = np.linspace(0, 1, 40)
    refused(
        message, adapter=ConDoAdapter(**parameters),
        X_query=X_query, X_reference=X_reference, Z_query=z, Z_reference=z,
    )  # fmt: skip


def test_constant_features_with_a_continuous_confounder(data):
    X_query, X_reference, *_ = data
    z = np.linspace(0, 1, 40)
    X_query[:, 1] = 7.0
    for parameters in (
        {},
        {"map": "auto"},
        {"shrinkage": None},
        {**BY_KERNEL, "conditional": "splines"},
    ):
        with pytest.warns(IdentifiabilityWarning, match="'column 1'"):
            adapter = ConDoAdapter(**parameters).fit_pair(X_query, X_reference, z, z)
        assert adapter.map_.scale[1] == 1
        assert adapter.map_.offset[1] == pytest.approx(X_reference[:, 1].mean() - 7, abs=0.5)


@pytest.mark.filterwarnings("ignore:Splines of")
@pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::condokit.LowOverlapWarning")
@pytest.mark.filterwarnings("ignore:Only . of the:condokit.IdentifiabilityWarning")
@pytest.mark.parametrize(
    "parameters", [{}, {"map": "auto"}, {"divergence": "reverse-kl", "conditional": "splines"}]
)
def test_very_few_rows_give_a_map_without_numerical_trouble(parameters):
    for seed in range(30):
        rng = np.random.default_rng(seed)
        n_query, n_reference, columns = rng.integers(2, 8), rng.integers(2, 8), rng.integers(1, 4)
        Z_query, Z_reference = (rng.normal(size=(n, columns)) for n in (n_query, n_reference))
        X_query, X_reference = (rng.normal(size=(n, 2)) for n in (n_query, n_reference))
        adapter = ConDoAdapter(min_overlap=0, **parameters).fit_pair(
            X_query, X_reference, Z_query, Z_reference
        )
        assert np.isfinite(adapter.map_.offset).all()


def test_weights_with_chained_imputation_are_refused_and_zeros_left_out(data):
    X_query, X_reference, *_ = data
    z = np.linspace(0, 1, 40)
    weights = np.ones(40)
    weights[:3] = 2
    arguments = {"X_query": X_query, "X_reference": X_reference, "Z_query": z, "Z_reference": z}
    adapter = ConDoAdapter(divergence="reverse-kl", conditional="chained")
    message = "'sample_weight' cannot be used with Chained"
    refused(message, adapter=adapter, **arguments, sample_weight=(weights, weights))
    weights[:3], weights[3:] = 0, 1
    spoiled = X_query.copy()
    spoiled[:3] = 1e6
    arguments["X_query"] = spoiled
    for settings in ({}, BY_KERNEL):
        out = ConDoAdapter(**settings).fit_pair(**arguments, sample_weight=(weights, np.ones(40)))
        by_hand = ConDoAdapter(**settings).fit_pair(X_query[3:], X_reference, z[3:], z)
        np.testing.assert_allclose(out.map_.scale, by_hand.map_.scale, rtol=1e-6)


def test_confounders_missing_in_a_whole_domain(data):
    X_query, X_reference, *_ = data
    z, nothing = np.linspace(0, 1, 40), np.full(40, np.nan)
    for missing, message in (
        ("impute", "missing in all query rows"),
        ("drop", "No query row remains"),
        ("impute", "missing in all but fewer than 5 query rows"),
    ):
        refused(
            message, adapter=ConDoAdapter(missing=missing),
            X_query=X_query, X_reference=X_reference, Z_query=nothing, Z_reference=z,
        )  # fmt: skip
        nothing[:1] = 0.5 if missing == "drop" else np.nan


@pytest.mark.parametrize("kind", ["affine", "orthogonal", "similarity"])
@pytest.mark.filterwarnings("ignore::condokit.IdentifiabilityWarning", "error::RuntimeWarning")
def test_a_constant_column_does_not_change_the_matrix_of_the_others(kind):
    rng = np.random.default_rng(0)
    z, w, mix = rng.normal(size=300) + 0.3, rng.normal(size=300), rng.normal(size=(2, 2))
    query, reference = (rng.normal(size=(300, 2)) @ mix + np.outer(c, [1, 2]) for c in (z, w))
    query = query @ [[0.9, 0.3], [-0.3, 1.2]] + 1
    alone = ConDoAdapter(kind).fit_pair(query, reference, z, w).map_
    query, reference = (np.insert(X, 1, c, axis=1) for X, c in ((query, 5), (reference, 7)))
    both = ConDoAdapter(kind).fit_pair(query, reference, z, w).map_
    np.testing.assert_allclose(both.A[np.ix_([0, 2], [0, 2])], alone.A, atol=1e-6)
    np.testing.assert_allclose(both.A[1], [0, 1, 0])
    assert both.b[1] == pytest.approx(2)


@pytest.mark.parametrize("Z", [None, np.repeat(["a", "b"], 20), np.linspace(0, 1, 40)])
@pytest.mark.parametrize("kind", ["location-scale", "affine", "auto"])
@pytest.mark.filterwarnings("ignore::condokit.IdentifiabilityWarning")
def test_constant_features_alone_are_shifted(kind, Z):
    X = np.tile([1.0, 2.0, 3.0], (40, 1))
    adapter = ConDoAdapter(kind).fit_pair(X, X + 1, Z, Z)
    np.testing.assert_allclose(adapter.transform(X), X + 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["affine", "orthogonal"])
def test_numbers_too_large_to_square_with_a_continuous_confounder(kind):
    X, z = 1e160 * np.random.default_rng(0).normal(size=(100, 2)), np.linspace(0, 1, 100)
    refused("too large", adapter=ConDoAdapter(kind),
            X_query=X, X_reference=X, Z_query=z, Z_reference=z)  # fmt: skip


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("by 0"), FloatingPointError("no start"), ArpackError(-9)]
)
def test_errors_from_below_are_worded(data, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(PooledLikelihood, "solve", fail)
    refused("The map could not be computed", X_query=data[0], X_reference=data[1],
            Z_query=data[2], Z_reference=data[3])  # fmt: skip


def test_integers_beyond_64_bits(data):
    X, Y, *_ = data
    large = [2**64 + k for k in range(40)]
    refused("must hold numbers", X_query=[[10**400], [1]], X_reference=[[1], [2]])
    refused("64 bits", X_query=X, X_reference=Y, Z_query=large, Z_reference=large)
    refused("more than 2", X_query=X, X_reference=Y, sample_weight=(large, large))
    refused("must hold", X_query=X, X_reference=Y, sample_weight=([10**400] * 40, large))
