"""Agreement of mapped values with the reference, where the same subjects were measured in both."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import stdtrit

from condokit.checks import Array
from condokit.compare.weak_points import FEW_SUBJECTS
from condokit.data.arrays import NORMAL_95, ones_for_zeros
from condokit.data.disclosure import too_few
from condokit.data.records import Part, Record, Sheet
from condokit.data.study import Study
from condokit.fit.pairs import row_numbers
from condokit.maps.base import Map


@dataclass(frozen=True, repr=False)
class Agreement(Record):
    """How far paired measurements agree, before and after a map."""

    n_pairs: int  #: How many pairs there are.
    #: Root mean squared difference over all features, in standard deviations of the reference.
    error_before: float
    error_after: float  #: The same after the map.
    #: 95% limits, each one-sided, of the mean squared difference before less that after.
    gain: tuple[float, float]
    #: For every feature, in its own units: bias (mean of mapped minus reference), its standard
    #: error, limits of agreement (bias +- 1.96 standard deviations), root mean squared differences
    #: before and after, the correlation of the pairs, and before and after Lin's concordance and
    #: the intraclass correlation of single measurements with absolute agreement, ICC(A,1).
    features: Sheet
    #: (n_pairs, n_features): means of mapped and reference values. Not saved or printed.
    mean: Array = field(metadata={"private": True})
    #: (n_pairs, n_features): mapped less reference values. Not saved or printed.
    difference: Array = field(metadata={"private": True})
    #: How the pairs were mapped: by "this map", or, "left out", by maps that were fitted without
    #: the pair (cross-validation).
    mapped_by: str = "this map"

    @property
    def decides(self) -> bool:
        """Whether the limits of the gain exclude zero, so that the pairs decide the verdict."""
        return self.gain[0] > 0 or self.gain[1] < 0

    @property
    def sentence(self) -> str:
        """One sentence about how far the pairs agree before and after the map."""
        change = f"from {self.error_before:.2f} to {self.error_after:.2f} standard deviations"
        how = ", each left out of the fit in turn" if self.mapped_by == "left out" else ""
        return f"{self.n_pairs} pairs{how}: the difference to the reference goes {change}."

    def concordance(self, *features: str) -> str:
        """Return a sentence with ICC and CCC before and after the map: medians over features.

        It is empty if pairs are too few.

        Parameters
        ----------
        *features : str
            Names of features; all if none are given.

        Returns
        -------
        str
            The sentence.
        """
        found, names = [], self.features["feature"]
        chosen = np.array([not features or name in features for name in names])
        for name, called in (("icc", "ICC(A,1)"), ("ccc", "Lin's CCC")):
            ends = (np.array(self.features[f"{name}_{w}"], float) for w in ("before", "after"))
            both = np.array([*ends])[:, chosen]
            if np.isfinite(both).any(axis=1).all():
                before, after = np.nanmedian(both, axis=1)
                found.append(f"{called} {before:.2f} before and {after:.2f} after the map")
        which = f"Median of {chosen.sum():,} features: " if chosen.sum() > 1 else ""
        return f"{which}{', '.join(found)}." if found else ""

    def parts(self) -> list[Part]:  # noqa: D102
        text = f"{self.sentence} {self.concordance()}".rstrip()
        return [("", text), ("By feature", self.features)]


def agreement(pairs: Any, domains: Study, affine: Map, min_cell: int) -> Agreement:
    """Compare query rows with reference rows of the same subjects.

    Figures of features with fewer than `min_cell` known pairs are hidden.
    """
    tables = []
    numbered = _paired_rows(pairs, domains.is_query, min_cell)
    for numbers in numbered:
        distinct, place = np.unique(numbers, return_inverse=True)
        tables.append(domains.rows(distinct)[place])
    subject = numbered[0] if domains.groups is None else domains.groups[numbered[0]]
    names = domains.tables[0].labels
    return agreement_of(tables[0], affine(tables[0]), tables[1], subject, names, min_cell)


def agreement_of(
    before: Array, after: Array, reference: Array, subject: Array, names: list[str], min_cell: int
) -> Agreement:
    """Compare values before and after the map with those of the reference, row by row.

    The three arrays have the shape (n_pairs, n_features); `subject` has (n_pairs,).
    """
    hidden = np.isnan(after) | np.isnan(reference)
    hidden |= too_few((~hidden).sum(axis=0), min_cell)
    before, after, reference = (np.ma.masked_array(x, hidden) for x in (before, after, reference))
    unit = ones_for_zeros(reference.std(axis=0).filled(0.0))
    difference = after - reference
    sd = difference.std(axis=0, ddof=1).filled(np.nan)
    bias = difference.mean(axis=0).filled(np.nan)

    def rms(gap: Any) -> Any:
        return np.ma.sqrt((gap**2).mean(axis=0))

    columns = {
        "feature": names,
        "bias": bias,
        "se": sd / np.sqrt(np.maximum(difference.count(axis=0), 1)),
        "lower": bias - NORMAL_95 * sd,
        "upper": bias + NORMAL_95 * sd,
        "rms_before": rms(before - reference),
        "rms_after": rms(difference),
        "correlation": _concordance(after, reference)[2],
    }
    for name, values in (("before", before), ("after", after)):
        ccc, icc, _ = _concordance(values, reference)
        columns |= {f"ccc_{name}": ccc, f"icc_{name}": icc}
    return Agreement(
        n_pairs=len(after),
        error_before=float(rms(((before - reference) / unit).ravel())),
        error_after=float(rms((difference / unit).ravel())),
        gain=_gain(((before - reference) / unit) ** 2 - (difference / unit) ** 2, subject),
        features=Sheet(columns),
        mean=((after + reference) / 2).filled(np.nan),
        difference=difference.filled(np.nan),
    )


def _concordance(x: Any, y: Any) -> tuple[Array, Array, Array]:
    r"""Return Lin's concordance, ICC(A,1) and Pearson's correlation of the columns of two tables.

    Lin's concordance is :math:`2 s_{xy} / (s_x^2 + s_y^2 + (\bar x - \bar y)^2)`. For n subjects
    with two measurements each, let R, C and E be the mean squares of subjects, of tables and of
    the error in a two-way analysis of variance. Then ICC(A,1) is
    :math:`(R - E) / (R + E + 2 (C - E) / n)` (McGraw and Wong 1996).
    """
    n = np.maximum(x.count(axis=0), 2)
    gap = (x.mean(axis=0) - y.mean(axis=0)) ** 2
    together = ((x - x.mean(axis=0)) * (y - y.mean(axis=0))).mean(axis=0)
    spread = x.var(axis=0) + y.var(axis=0)
    ccc = 2 * together / ones_for_zeros((spread + gap).filled(0.0))
    apart = ones_for_zeros((x.std(axis=0) * y.std(axis=0)).filled(0.0))
    rows = n / (n - 1) * (spread / 2 + together)
    rest = n / (n - 1) * (spread / 2 - together)
    icc = (rows - rest) / ones_for_zeros((rows + rest + 2 * (n * gap / 2 - rest) / n).filled(0.0))
    return tuple(one.filled(np.nan) for one in (ccc, icc, together / apart))


def _gain(less: Any, subject: Array) -> tuple[float, float]:
    """Return one-sided 95% limits of the mean over pairs, with errors clustered by subject.

    `less` has the shape (n_pairs, n_features): squared differences before less those after.
    """
    by_pair = less.mean(axis=1)
    known = ~np.ma.getmaskarray(by_pair)
    values, place = np.asarray(by_pair[known]), np.unique(subject[known], return_inverse=True)[1]
    n = int(place.max(initial=-1)) + 1
    if n < FEW_SUBJECTS:
        return -np.inf, np.inf
    off = np.bincount(place, values - values.mean())
    reach = float(stdtrit(n - 1, 0.95)) * np.sqrt((off**2).sum() * n / (n - 1)) / len(values)
    return float(values.mean() - reach), float(values.mean() + reach)


def _paired_rows(pairs: Any, is_query: Array, fewest: int) -> tuple[Array, Array]:
    """Return the row numbers of query and reference, or raise an error if these are no pairs."""
    query, reference = row_numbers(pairs, [("X", len(is_query))] * 2)
    for name, side, is_here in (("query", query, is_query), ("reference", reference, ~is_query)):
        if not is_here[side].all():
            what = f"row {side[~is_here[side]][0]} as a {name} row"
            raise ValueError(f"'pairs' lists {what}, but its domain says otherwise.")
    if too_few(len(query), fewest):
        why = "the figures of fewer are not shown."
        raise ValueError(f"'pairs' must list at least {fewest} pairs: {why}")
    return query, reference
