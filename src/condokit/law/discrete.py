"""Features in which many rows have the same value: zeros, counts, yes and no."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.subsets import subsample
from condokit.summaries.rows import Rows

_SCREENED = 64  # rows of a domain in which equal values are looked for first
TIED = 0.2
MODAL = 0.5
RARE = 0.8
TWO_VALUED = 0.99  # share of rows with one of two values, from which these are all there is
FEWEST_OFF_MODE = 25  # rows unlike the most frequent value, if most rows have it
FEWEST_TIED = 10  # rows of a domain below which equal values are no sign of a discrete feature


@dataclass(frozen=True)
class Discrete:
    """Marks features in which many rows have the same value; arrays have shape (n_features,).

    What counts is the share of rows with the most frequent value, in the domain where it is larger.
    Student's t alone, without these limits, gave absurd scales for 4 to 24% of such features: its
    weights prefer the rows that are equal.
    """

    tied: Array  # share above 0.2: no Student's t
    modal: Array  # share above 0.5: no model of the variance either
    rare: Array  # share above 0.8, or too few other rows to learn a scale from: only shifted
    # The most frequent value is zero in every domain, and the feature rare, or modal with more than
    # two values: only multiplied. These are marked as rare, too. In simulated cells a gain through
    # zero beats shift and scale from a share of 0.5 on, but of 0/1 features only from 0.8.
    zero: Array

    @classmethod
    def of(
        cls, values: Callable[..., Array], zero: Array, batches: list[Array], sums: Any = None
    ) -> "Discrete":
        """Find the most frequent value of each feature in each domain.

        `values(features, rows)` returns rows of features, None being all features, and `zero`,
        (n_domains, n_features), is what zeros are there; `batches` has the numbers of the rows of
        each domain. Only features with equal values among 64 screened rows are counted in full.
        Where rows are gone, the `sums` of domains have the counts.
        """
        d = zero.shape[1]
        share, tied, off, two = np.zeros(d), np.zeros(d), np.full(d, np.inf), np.ones(d)
        is_zero = np.ones(d, dtype=np.bool_)
        for own, origin in zip(batches, zero):
            (largest, second), at_zero = np.zeros((2, d)), np.zeros(d, dtype=np.bool_)
            if sums is not None:
                (largest, second), at_zero, n = sums.most_frequent(own)
            else:
                n = len(own)
                few = np.sort(values(None, own[subsample(n, _SCREENED)]), axis=0)
                suspect = np.flatnonzero((np.diff(few, axis=0) == 0).any(axis=0))
                for j, column in zip(suspect, values(suspect, own).T if len(suspect) else ()):
                    value, count = np.unique(column, return_counts=True, equal_nan=False)
                    largest[j], second[j] = np.sort(np.append(count, 0))[:-3:-1]
                    at_zero[j] = value[count.argmax()] == origin[j]
            share = np.maximum(share, largest / n)
            tied = np.maximum(tied, np.where(n >= FEWEST_TIED, largest / n, 0.0))
            off = np.where(largest > 0, np.minimum(off, n - largest), off)
            is_zero &= at_zero
            two = np.minimum(two, (largest + second) / n)
        rare = (share > RARE) | ((share > MODAL) & (off < FEWEST_OFF_MODE))
        zeros = is_zero & (rare | ((tied > MODAL) & (two < TWO_VALUED)))
        return cls(tied > TIED, tied > MODAL, rare | zeros, zeros)

    def of_features(self, features: Array) -> "Discrete":
        """Return the same marks for some of the features."""
        kinds = self.tied, self.modal, self.rare, self.zero
        return Discrete(*(kind[features] for kind in kinds))

    def origins(self, rows: Rows) -> Array:
        """Return what zero is in standard units, (n_features, K); nan for features not `zero`."""
        return np.where(self.zero & ~rows.flat, -rows.mean / rows.unit, np.nan).T
