"""What an estimator of features given confounders offers, and what it finds."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from sklearn.base import BaseEstimator

from condokit.checks import Array
from condokit.data.covariates import Covariates

VARIANCE_FLOOR = 1e-4  # of the feature's pooled within-stratum variance


@dataclass(frozen=True)
class Moments:
    """Conditional means and variances of one domain at every support value."""

    mean: Array  # (n_values, n_features)
    var: Array
    precision: Array  # what to use for 1 / var: exactly that, or an estimate freed of its bias
    # (n_values,), or (n_values, n_features) where values are missing: independent rows behind each
    # mean, and degrees of freedom behind each variance
    count: Array
    dof: Array


class Conditional(BaseEstimator, ABC):
    """An estimator of features given confounders, one domain at a time."""

    # whether neighbouring confounder values learn from each other; otherwise the values that are
    # compared are strata
    is_smooth: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = False  # whether rows may have weights
    # whether it draws rows itself (`sample_at`), `n_draws` with the seed `random_state`
    imputes_rows: ClassVar[bool] = False

    @abstractmethod
    def moments_at(self, X: Array, covariates: Covariates, at: Covariates) -> Moments:
        """Return the moments of features X, known at `covariates`, at other confounder values."""
