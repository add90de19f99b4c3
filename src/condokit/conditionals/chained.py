"""Features given confounders of any kind, by the chained imputation of the paper."""

from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.conditionals.base import VARIANCE_FLOOR, Conditional, Moments
from condokit.data.arrays import ones_for_zeros
from condokit.data.covariates import Covariates
from condokit.io.formats import need

# settings of MICE-Forest, which the paper names; the last ones make LightGBM reproducible
_FOREST = {
    "objective": "regression",
    "boosting": "rf",
    "max_depth": 8,
    "num_leaves": 128,
    "min_data_in_leaf": 1,
    "bagging_fraction": 0.632,
    "bagging_freq": 1,
    "feature_fraction_bynode": 0.632,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}


class Chained(Conditional):
    """The paper's chained imputation: random forests and predictive mean matching.

    In turn, every feature is predicted from the confounders and the other features by a random
    forest with the settings of MICE-Forest. An imputation is the observed value of a random row
    among those whose predictions are nearest (predictive mean matching). Every imputation grows new
    forests. This is for comparison: it is slower and noisier than the other estimators. Needs
    LightGBM (``pip install condokit[lightgbm]``).

    Parameters
    ----------
    n_draws : int, default=20
        Imputations at every confounder value; their mean and variance are the moments.
    n_iter : int, default=2
        Rounds over the features.
    n_neighbors : int, default=5
        Number of nearest predictions among which one is chosen at random.
    n_estimators : int, default=48
        Trees of a forest, each grown on 63.2% of the rows.
    fraction : float, default=1.0
        Share of the confounder values, evenly taken, at which features are imputed: the paper's
        F, whose default is all of them, too.
    random_state : int, default=0
        Seed.

    Examples
    --------
    >>> from condokit import Chained, ConDoAdapter, datasets
    >>> p = datasets.make_continuous1d(random_state=0)  # the true map is x / 2 - 2.5
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> adapter = ConDoAdapter(divergence="ot", conditional=Chained(n_draws=5)).fit_pair(*data)
    >>> adapter.map_.scale.round(1)
    array([0.5])
    """

    imputes_rows = True

    def __init__(
        self,
        n_draws: int = 20,
        n_iter: int = 2,
        n_neighbors: int = 5,
        n_estimators: int = 48,
        fraction: float = 1.0,
        random_state: int = 0,
    ) -> None:
        self.n_draws, self.n_iter, self.n_neighbors = n_draws, n_iter, n_neighbors
        self.n_estimators, self.fraction, self.random_state = n_estimators, fraction, random_state

    def moments_at(self, X: Array, covariates: Covariates, at: Covariates) -> Moments:  # noqa: D102
        rng = np.random.default_rng(self.random_state)
        draws = self.sample_at(X, covariates, at, self.n_draws, rng)
        pooled = X.var(axis=0, ddof=1)
        var = np.maximum(draws.var(axis=1, ddof=1), VARIANCE_FLOOR * pooled)
        # E[1 / s^2] = (n - 1) / (n - 3) / var for n normal draws, which is corrected here
        precision = max(self.n_draws - 3, 1) / ((self.n_draws - 1) * ones_for_zeros(var))
        count = np.full(len(at.Z), float(self.n_draws))
        return Moments(draws.mean(axis=1), var, precision, count, count - 1)

    def sample_at(
        self, X: Array, covariates: Covariates, at: Covariates, n_draws: int, rng: Any
    ) -> Array:
        """Impute features at other confounder values: (n_values, n_draws, n_features)."""
        lightgbm = need("lightgbm", "conditional='chained' needs LightGBM", "lightgbm")
        if len(X) < 2:
            raise ValueError("conditional='chained' cannot learn from 1 sample. Add rows.")
        known, asked = (
            np.column_stack([c.Z, np.eye(c.n_categories)[c.category]]) for c in (covariates, at)
        )
        draws = [self._impute(lightgbm, X, known, asked, rng) for _ in range(n_draws)]
        return np.stack(draws, axis=1)

    def _impute(self, lightgbm: Any, X: Array, known: Array, asked: Array, rng: Any) -> Array:
        """Return one imputation (n_asked, n_features) at the confounders `asked`."""
        n_rows, d = X.shape
        out = X[rng.integers(0, n_rows, len(asked))]
        for _, j in np.ndindex(self.n_iter if d > 1 else 1, d):
            inputs, wanted = (
                np.column_stack([side, np.delete(features, j, axis=1)])
                for side, features in ((known, X), (asked, out))
            )
            settings = {**_FOREST, "seed": int(rng.integers(2**31))}
            data = lightgbm.Dataset(inputs, X[:, j])
            # kept as it was grown: a copy by way of text takes a fifth of the time
            forest = lightgbm.train(settings, data, self.n_estimators, keep_training_booster=True)
            # trees predict few different values, so ties are broken at random
            spread = 1e-6 * float(X[:, j].std())
            donors, place = (
                np.asarray(forest.predict(rows)) + spread * rng.normal(size=len(rows))
                for rows in (inputs, wanted)
            )
            order = np.argsort(donors)
            near = np.searchsorted(donors[order], place)
            near += rng.integers(0, self.n_neighbors, len(asked)) - self.n_neighbors // 2
            out[:, j] = X[order[np.clip(near, 0, n_rows - 1)], j]
        return out
