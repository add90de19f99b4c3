"""scikit-learn's own checks, through a small subclass that supplies domain labels."""

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from condokit import ConDoAdapter

routed_by_scorers = pytest.mark.skipif(
    tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 8),
    reason="before scikit-learn 1.8, scorers of pipelines hand no metadata to transformers",
)


class SelfLabelled(ConDoAdapter):
    """Call a row "query" or "reference" by its own first number, so that copies agree."""

    def labels(self, X):
        try:
            first = np.asarray(X)[:, 0].real.astype(float)
        except (IndexError, NotImplementedError, TypeError, ValueError):
            first = np.arange(np.shape(X)[0] if np.shape(X) else 2) / 1000
        codes = np.nan_to_num(first * 1000, posinf=0, neginf=0).astype(np.int64) % 2
        if len(codes) > 1 and codes.min() == codes.max():
            codes = np.arange(len(codes)) % 2
        return np.where(codes == 0, "query", "reference")

    def fit(self, X, y=None, *, sample_weight=None):
        return super().fit(X, domain=self.labels(X), sample_weight=sample_weight)

    def partial_fit(self, X, y=None, *, sample_weight=None):
        return super().partial_fit(X, domain=self.labels(X), sample_weight=sample_weight)

    def fit_transform(self, X, y=None, *, sample_weight=None):
        return self.fit(X, y, sample_weight=sample_weight).transform(X)


EXPECTED = {
    "check_dataframe_column_names_consistency": (
        "features are found by name at transform, in any order"
    ),
}


@pytest.mark.filterwarnings("ignore:Only . of the:condokit.IdentifiabilityWarning")
@parametrize_with_checks(
    [SelfLabelled(), SelfLabelled(map="shift", shrinkage=None)],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def routed():
    return (
        ConDoAdapter(reference="v1")
        .set_fit_request(domain=True, confounders=True)
        .set_transform_request(domain=True)
    )


@pytest.fixture
def stacked(eeg):
    X = np.vstack([eeg.X_query, eeg.X_reference])
    domain = np.repeat(["v2", "v1"], [len(eeg.X_query), len(eeg.X_reference)])
    seizure = np.concatenate([eeg.seizure_query, eeg.seizure_reference])
    depression = np.concatenate([eeg.depression_query, eeg.depression_reference])
    order = np.random.default_rng(0).permutation(len(X))
    return X[order], depression[order], domain[order], seizure[order]


@pytest.mark.usefixtures("routing")
@routed_by_scorers
def test_pipeline_and_cross_validation_through_metadata_routing(stacked):
    X, y, domain, seizure = stacked
    pipeline = make_pipeline(routed(), StandardScaler(), LogisticRegression())
    metadata = {"domain": domain, "confounders": seizure}
    pipeline.fit(X, y, **metadata)
    direct = ConDoAdapter(reference="v1").fit_transform(X, **metadata)
    np.testing.assert_array_equal(pipeline[0].transform(X, domain=domain), direct)
    scores = cross_val_score(pipeline, X, y, params=metadata)
    assert scores.mean() > 0.9


@pytest.mark.usefixtures("routing")
@routed_by_scorers
def test_grid_search_over_ingredients(stacked):
    X, y, domain, seizure = stacked
    search = GridSearchCV(
        Pipeline([("adapt", routed()), ("model", LogisticRegression())]),
        {"adapt__map": ["identity", "location-scale"], "adapt__shrinkage": ["auto", None]},
        cv=3,
    )
    search.fit(X, y, domain=domain, confounders=seizure)
    assert search.best_params_["adapt__map"] == "location-scale"


def test_clone_and_parameters():
    adapter = ConDoAdapter("shift", reference="v1", shrinkage=0.5)
    assert clone(adapter).get_params() == adapter.get_params()
    assert "map='shift'" in repr(adapter)
    with pytest.raises(TypeError, match="unexpected keyword argument 'shrink'"):
        ConDoAdapter(shrink=1)
    with pytest.raises(ValueError, match="Invalid parameter 'shrink'"):
        adapter.set_params(shrink=1)


@pytest.mark.parametrize("container", ["pandas", "polars"])
@pytest.mark.parametrize("given", ["numpy", "pandas", "polars", "pyarrow"])
def test_set_output(eeg, container, given):
    frame = eeg.to_frame("pandas" if given == "numpy" else given)
    adapter = ConDoAdapter(reference="v1").set_output(transform=container)
    adapter.fit(frame, domain="device", confounders="seizure", features=["eeg_*"])
    out = adapter.transform(frame)
    assert type(out).__module__.startswith(container)
    assert list(out.columns) == eeg.feature_names == list(adapter.get_feature_names_out())
    default = adapter.set_output(transform="default").transform(frame)
    assert type(default) is type(frame)
    values = default.to_numpy() if hasattr(default, "to_numpy") else default.to_pandas().to_numpy()
    np.testing.assert_array_equal(out.to_numpy(), values)
