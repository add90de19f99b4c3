"""Whether real differences were kept: what the confounders explain, before and after a map."""

from dataclasses import dataclass

import numpy as np
from sklearn.metrics import silhouette_score

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros
from condokit.data.subsets import subsample
from condokit.trust.blocks import ComparableRows

_REAL = 3.0  # standard errors above which a difference that confounders explain is real
_LEAST_KEPT = 0.8  # share of the differences
_NOTABLE = 0.1  # standard deviations, and share of rows, below which a difference is of no account
_MOST_ROWS = 1000  # for silhouettes


@dataclass(frozen=True)
class KeptDifferences:
    """How much of the difference that confounders explain is still there, by feature and in all."""

    expected: Array  # difference that the domains' confounders explain, in standard deviations
    observed: Array  # difference that there is
    is_real: Array  # whether the expected difference is beyond doubt, and of account
    share: float | None  # observed over expected, over features with a real difference if any
    error: float | None  # standard error of the share

    @property
    def are_too_few(self) -> bool:
        """Whether the map made the domains alike where they should differ, beyond doubt."""
        if self.share is None or self.error is None:
            return False
        return self.share + 2 * self.error < _LEAST_KEPT


def kept_differences(rows: ComparableRows, X: Array) -> KeptDifferences:
    r"""Compare the domains' difference with the one that their confounders explain.

    With the reference's mean :math:`\mu_r(z)`, the confounders explain
    :math:`e = \operatorname{mean}_q \mu_r(z) - \operatorname{mean}_r \mu_r(z)` of the difference
    :math:`o = \operatorname{mean}_q x - \operatorname{mean}_r x`. The share kept is
    :math:`\sum e o / \sum e^2`: 1 if only the technical part was removed, 0 if the domains were
    made alike.
    """
    query = rows.is_query
    unit = ones_for_zeros((rows.after - rows.expected)[~query].std(axis=0))
    expected, observed = (
        (x[query].mean(axis=0) - x[~query].mean(axis=0)) / unit for x in (rows.expected, X)
    )
    # the noise of e, from the weights that rows of the reference have in it
    n_query, n_reference = query.sum(), (~query).sum()
    n_blocks = int(rows.block.max()) + 1
    counts = [np.bincount(rows.block[side], minlength=n_blocks) for side in (query, ~query)]
    shares = counts[0] / n_query - counts[1] / n_reference
    error_expected = np.sqrt((shares**2 / np.maximum(counts[1], 1)).sum())
    doubt = _REAL + np.sqrt(2 * np.log(len(expected)))  # of the largest of so many features
    real = np.abs(expected) > max(doubt * error_expected, _NOTABLE)
    differ = np.abs(shares).sum() / 2 > _NOTABLE
    if not real.any() or not differ:
        return KeptDifferences(expected, observed, real, None, None)
    e, o = expected[real], observed[real]
    noise = np.sqrt(1 / n_query + 1 / n_reference + error_expected**2)
    share = float(e @ o / (e @ e))
    # features go together, so their errors do not average out
    error = float(np.abs(e).sum() * noise / (e @ e))
    return KeptDifferences(expected, observed, real, share, error)


def variance_explained(rows: ComparableRows, X: Array) -> float | None:
    """Return the mean share of the features' variance that blocks of equal confounders explain."""
    parts = [X[rows.block == k] for k in np.unique(rows.block)]
    total = len(X) * X.var(axis=0)
    within = sum(len(part) * part.var(axis=0) for part in parts)
    varies = total > 0
    if len(parts) < 2 or not varies.any():
        return None
    return float((1 - within[varies] / total[varies]).mean())


def silhouettes(rows: ComparableRows, X: Array) -> dict[str, float | None]:
    """Return silhouettes by domain and by combination of categories, of at most 1000 rows."""
    chosen = subsample(len(X), _MOST_ROWS)
    unit = ones_for_zeros(rows.after[~rows.is_query].std(axis=0))
    part = (X[chosen] - X[chosen].mean(axis=0)) / unit  # distances of large numbers are inexact
    out: dict[str, float | None] = {}
    for name, labels in (("domain", rows.is_query[chosen]), ("confounders", rows.category[chosen])):
        usable = 1 < len(np.unique(labels)) < len(labels)
        out[f"silhouette_{name}"] = float(silhouette_score(part, labels)) if usable else None
    return out
