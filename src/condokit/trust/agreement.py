"""Agreement of mapped values with the reference, where the same subjects were measured in both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros
from condokit.data.records import Part, Record, Sheet

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


def agreement(
    before: Array, after: Array, reference: Array, names: list[str], min_cell: int
) -> Agreement:
    """Compare query rows, before and after mapping, with reference rows of the same subjects.

    Features that fewer than `min_cell` pairs know have no figures.
    """
    n = len(reference)
    gaps = np.isnan(after) | np.isnan(reference)
    gaps |= (~gaps).sum(axis=0) < min_cell
    before, after, reference = (
        np.ma.masked_array(values, gaps) for values in (before, after, reference)
    )
    unit = ones_for_zeros(reference.std(axis=0).filled(0.0))
    difference = after - reference
    known = difference.count(axis=0)
    sd = difference.std(axis=0, ddof=1).filled(np.nan)
    bias = difference.mean(axis=0).filled(np.nan)

    def rms(gap: Any) -> Any:
        return np.ma.sqrt((gap**2).mean(axis=0))

    centred = [values - values.mean(axis=0) for values in (after, reference)]
    together = (centred[0] * centred[1]).mean(axis=0)
    apart = ones_for_zeros((centred[0].std(axis=0) * centred[1].std(axis=0)).filled(0.0))
    sheet = Sheet(
        {
            "feature": list(names),
            "bias": bias.tolist(),
            "se": (sd / np.sqrt(np.maximum(known, 1))).tolist(),
            "lower": (bias - _LIMITS * sd).tolist(),
            "upper": (bias + _LIMITS * sd).tolist(),
            "rms_before": rms(before - reference).tolist(),
            "rms_after": rms(difference).tolist(),
            "correlation": (together / apart).tolist(),
        }
    )
    sizes = [float(rms(((x - reference) / unit).ravel())) for x in (before, after)]
    mean = ((after + reference) / 2).filled(np.nan)
    return Agreement(n, sizes[0], sizes[1], sheet, mean, difference.filled(np.nan))
