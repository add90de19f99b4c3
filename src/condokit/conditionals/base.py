"""Ingredient 3, features given confounders: moments of each domain at the compared values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator

from condokit.checks import Array
from condokit.data.covariates import Covariates
from condokit.summaries.moments import Moments


class BaseConditional(BaseEstimator, ABC):
    """An estimator of the features of each domain given the confounders."""


class SmoothConditional(BaseConditional):
    """An estimator for confounders of any kind, one domain at a time."""

    takes_weights: ClassVar[bool] = False

    @abstractmethod
    def moments_at(self, X: Array, covariates: Covariates, at: Covariates) -> Moments:
        """Return the moments of features X, known at `covariates`, at other confounder values."""

    def sample_at(
        self, X: Array, covariates: Covariates, at: Covariates, n_draws: int, rng: Any
    ) -> Array:
        r"""Draw features at other confounder values, shape (n_values, n_draws, n_features).

        Whole rows of standardised residuals, :math:`\mu(z) + \sigma(z) \epsilon_i`, which keeps the
        correlations between features.
        """
        here = self.moments_at(X, covariates, covariates)
        there = self.moments_at(X, covariates, at)
        residual = (X - here.mean) / np.sqrt(here.var)
        share = covariates.counts / covariates.counts.sum()
        rows = rng.choice(len(X), (len(at.Z), n_draws), p=share)
        return there.mean[:, None] + np.sqrt(there.var)[:, None] * residual[rows]
