"""Agreement of mapped values with the reference, where the same subjects were measured in both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros
from condokit.data.disclosure import too_few
from condokit.data.domains import Domains
from condokit.data.records import Part, Record, Sheet
from condokit.maps.affine import AffineMap

_LIMITS = 1.96


@dataclass(frozen=True, repr=False)
class Agreement(Record):
    """How far paired measurements agree, before and after a map.

    Attributes
    ----------
    n_pairs : int
        Pairs.
    error_before, error_after : float
        Root mean squared difference over all features, in standard deviations of the reference.
    features : Sheet
        For every feature, in its own units: bias (mean of mapped minus reference), its standard
        error, limits of agreement (bias +- 1.96 standard deviations), root mean squared
        differences before and after, and the correlation of the pairs.
    mean, difference : ndarray of shape (n_pairs, n_features)
        What a Bland-Altman picture shows: means and differences of mapped and reference values.
        Not saved or printed.
    """

    n_pairs: int
    error_before: float
    error_after: float
    features: Sheet
    mean: Array = field(metadata={"private": True})
    difference: Array = field(metadata={"private": True})

    def parts(self) -> list[Part]:  # noqa: D102
        text = (
            f"{self.n_pairs} pairs: the difference to the reference goes from "
            f"{self.error_before:.2f} to {self.error_after:.2f} standard deviations."
        )
        return [("", text), ("By feature", self.features)]


def agreement(pairs: Any, domains: Domains, affine: AffineMap, min_cell: int) -> Agreement:
    """Compare query rows, before and after mapping, with reference rows of the same subjects.

    Features that fewer than `min_cell` pairs know have no figures.
    """
    rows = _paired_rows(pairs, domains.is_query, min_cell)
    before, reference = (domains.rows(np.unique(r))[_places(r)] for r in rows)
    after = affine(before)
    hidden = np.isnan(after) | np.isnan(reference)
    hidden |= too_few((~hidden).sum(axis=0), min_cell)
    before, after, reference = (np.ma.masked_array(x, hidden) for x in (before, after, reference))
    unit = ones_for_zeros(reference.std(axis=0).filled(0.0))
    difference = after - reference
    sd = difference.std(axis=0, ddof=1).filled(np.nan)
    bias = difference.mean(axis=0).filled(np.nan)

    def rms(gap: Any) -> Any:
        return np.ma.sqrt((gap**2).mean(axis=0))

    centred = [values - values.mean(axis=0) for values in (after, reference)]
    together = (centred[0] * centred[1]).mean(axis=0)
    apart = ones_for_zeros((centred[0].std(axis=0) * centred[1].std(axis=0)).filled(0.0))
    columns = {
        "feature": domains.tables[0].labels,
        "bias": bias,
        "se": sd / np.sqrt(np.maximum(difference.count(axis=0), 1)),
        "lower": bias - _LIMITS * sd,
        "upper": bias + _LIMITS * sd,
        "rms_before": rms(before - reference),
        "rms_after": rms(difference),
        "correlation": together / apart,
    }
    return Agreement(
        n_pairs=len(after),
        error_before=float(rms(((before - reference) / unit).ravel())),
        error_after=float(rms((difference / unit).ravel())),
        features=Sheet(columns),
        mean=((after + reference) / 2).filled(np.nan),
        difference=difference.filled(np.nan),
    )


def _places(rows: Array) -> Array:
    """Return the place of every row among the distinct ones."""
    return np.unique(rows, return_inverse=True)[1]


def _paired_rows(pairs: Any, is_query: Array, fewest: int) -> tuple[Array, Array]:
    """Return the row numbers of query and reference; refuse what are no pairs."""
    try:
        query, reference = (np.asarray(side) for side in pairs)
    except (TypeError, ValueError):
        raise ValueError("'pairs' must be two lists of row numbers of X.") from None
    n_rows = len(is_query)
    for name, side, is_here in (("query", query, is_query), ("reference", reference, ~is_query)):
        if side.ndim != 1 or side.dtype.kind not in "iu" or len(side) == 0:
            raise ValueError(f"'pairs' must list row numbers of {name} rows.")
        if side.min() < 0 or side.max() >= n_rows:
            raise ValueError(f"'pairs' names a row that X, with {n_rows} rows, does not have.")
        strange = side[~is_here[side]]
        if len(strange):
            raise ValueError(
                f"'pairs' lists row {strange[0]} as a {name} row, but its domain says otherwise."
            )
    if len(query) != len(reference):
        raise ValueError(
            f"'pairs' lists {len(query)} query rows but {len(reference)} reference rows."
        )
    if too_few(len(query), fewest):
        raise ValueError(
            f"'pairs' must list at least {fewest} pairs: the figures of fewer are not shown."
        )
    return query, reference
