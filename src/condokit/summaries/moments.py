"""The plain records that flow through a fit: Domains, Strata, Support, Moments, Gaussians."""

from __future__ import annotations

from dataclasses import dataclass

from condokit.checks import Array


@dataclass(frozen=True)
class Moments:
    """Conditional means and variances of one domain at every support value.

    Attributes
    ----------
    mean, var : ndarray of shape (n_values, n_features)
        Mean and variance of every feature.
    precision : ndarray of shape (n_values, n_features)
        What to use for 1 / var: exactly that, or an estimate freed of its bias.
    count : ndarray of shape (n_values,) or (n_values, n_features)
        Independent rows behind each mean; of every feature where values are missing.
    dof : ndarray of shape (n_values,) or (n_values, n_features)
        Degrees of freedom behind each variance.
    """

    mean: Array
    var: Array
    precision: Array
    count: Array
    dof: Array
