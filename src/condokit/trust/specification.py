"""Tests whether one map fits all strata: what it leaves should not depend on the confounders."""

from dataclasses import dataclass

import numpy as np
from scipy.special import fdtrc
from scipy.stats import false_discovery_control

from condokit.checks import Array, said
from condokit.data.arrays import ONE_SIDED_95, ones_for_zeros
from condokit.data.records import Finding, Sheet
from condokit.trust.blocks import ComparableRows

_FEWEST_ROWS = 8  # of each domain in a block that is compared with other blocks
_MUCH = 0.2  # standard deviations by which strata may disagree, whatever the map gains,
_OF_GAIN = 0.5  # or the share of the gain: a larger disagreement is a doubt
_LEVEL = 0.01  # of adjusted p-values of features that are named
_MOST_NAMED = 3  # features
_ENDS = ("lowest", "highest")
_ADVICE = said(
    "Try {@map='monotone'}; look for a confounder that is not used, or a device that answers "
    "otherwise there; fit strata apart if they are meant to differ."
)


@dataclass(frozen=True)
class Disagreement:
    """How far one map for all strata is off in each of them."""

    sheet: Sheet  # a row for every feature
    square: Array  # (n_features,) unbiased mean squared deviation of strata, beyond chance
    variance: Array  # (n_features,) sampling variance of `square`
    by_strata: bool  # else blocks of similar propensity
    unit: Array  # (n_features,) the unit of all: standard deviation of the reference within blocks

    def pooled(self, n_effective: float) -> tuple[float, float]:
        """Return the error that strata add, over all features, and its lower 90% limit."""
        square = float(self.square.mean())
        low = square - ONE_SIDED_95 * float(np.sqrt(self.variance.mean() / n_effective))
        return float(np.sqrt(max(square, 0.0))), float(np.sqrt(max(low, 0.0)))

    def finding(self, gain: float, n_effective: float) -> Finding | None:
        """Return a finding that one map does not fit all strata, if the error of that matters.

        It matters if it is more than half of the map's `gain`, or if its lower limit is above .2
        sd; both are root mean squares in standard deviations. Significance alone is no reason:
        with enough rows any disagreement is significant.
        """
        if not len(self.square):
            return None
        size, low = self.pooled(n_effective)
        if low == 0 or size <= _OF_GAIN * gain and low <= _MUCH:
            return None
        where = "all strata" if self.by_strata else "all values of the confounders"
        text = f"one map does not fit {where}, which are off by about {size:.2f} sd from it: "
        return Finding(
            "care", f"{text}{self._named(self.square > self.square.max() / 2)}.", _ADVICE
        )

    def note(self) -> Finding | None:
        """Return a note that names features in which strata clearly disagree, if there are any."""
        if not len(self.square):
            return None
        hit = (np.array(self.sheet["p_adjusted"]) < _LEVEL) & (self.square > _MUCH**2)
        text = f"strata disagree beyond one map in some features: {self._named(hit)}."
        return Finding("note", text, _ADVICE) if hit.any() else None

    def beyond(self, unit: Array) -> tuple[Array, Array]:
        """Return `square` and its variance in other units; 0 for features within chance."""
        if not len(self.square):
            return np.zeros(len(unit)), np.zeros(len(unit))
        hit = (np.array(self.sheet["p_adjusted"]) < _LEVEL) & (self.square > 0)
        ratio = np.where(hit, (self.unit / unit) ** 2, 0.0)
        return ratio * self.square, ratio**2 * self.variance

    def _named(self, hit: Array) -> str:
        """List the marked features as text, those in which strata disagree most first."""
        sheet, shown, worst = self.sheet, [], np.argsort(-self.square, kind="stable")
        worst = worst[hit[worst]]
        for j in worst[:_MOST_NAMED]:
            ends = (f"{sheet[e][j]} {sheet[f'{e}_shift'][j]:+.2f} sd" for e in _ENDS)
            name = sheet["feature"][j]
            shown.append(f"{name} ({', '.join(ends)})" if self.by_strata else name)
        more = f" and {len(worst) - len(shown)} more" if len(worst) > len(shown) else ""
        return ", ".join(shown) + more


def specification(
    rows: ComparableRows, R: Array, names: list[str], strata: list[str]
) -> Disagreement:
    r"""Compare how the mapped query differs from the reference in all strata, by feature.

    `R` are the residuals of mapped rows given the confounders, `rows.residuals(rows.after)`.
    Blocks are combinations of categories; given continuous confounders, bins of the propensity.
    Let :math:`\delta_k` be the difference of means (query less reference) within block k, and
    :math:`v_k` its variance. Welch's F test asks whether all :math:`\delta_k` are equal; as in
    Levene's test, a second one asks the same of log-ratios of mean distances from medians, that is
    of spreads. `p` is twice the smaller p-value. The size of the disagreement is the square root of

    .. math:: \sum_k w_k (\delta_k - \sum_l w_l \delta_l)^2 - \sum_k w_k (1 - w_k) v_k,

    with :math:`w_k` the block's share of query rows, in standard deviations of the reference. The
    second sum is the expectation of the first if strata agree.
    """
    pairs = [[b[rows.is_query[b]], b[~rows.is_query[b]]] for b in rows.shared_blocks()]
    pairs = [pair for pair in pairs if min(map(len, pair)) >= _FEWEST_ROWS]
    by_strata = rows.covariates is None
    if len(pairs) < 2:
        none = np.empty(0)
        return Disagreement(Sheet({}), none, none, by_strata, none)
    parts = [[R[side] for side in pair] for pair in pairs]
    n = np.array([[len(x) for x in pair] for pair in parts])[:, :, None]
    mean, var = _moments(parts)
    within = (n[:, 1] * var[:, 1]).sum(axis=0) / n[:, 1].sum(axis=0)
    unit = np.sqrt(ones_for_zeros(within))
    least, each = 1e-12 * unit**2, rows.rows_per_subject  # weights 1 / v must be finite
    p_mean, v = _welch(mean, np.maximum(var, least), n, each)
    size, var = _moments([[np.abs(x - np.median(x, axis=0)) for x in pair] for pair in parts])
    size = np.maximum(size, 1e-6 * unit)
    p_spread, _ = _welch(np.log(size), np.maximum(var, least) / size**2, n, each)
    p = np.minimum(2 * np.minimum(p_mean, p_spread), 1.0)
    delta, v = (mean[:, 0] - mean[:, 1]) / unit, v / unit**2
    off, square, variance = _between(delta, v, n[:, 0, 0] / n[:, 0].sum())
    columns = {"feature": names, "p": p, "p_adjusted": false_discovery_control(p)}
    columns["disagreement"] = np.sqrt(np.maximum(square, 0.0))
    label = [f"block {k + 1}" for k in range(len(pairs))]
    if by_strata:
        label = [strata[rows.category[query[0]]] for query, _ in pairs]
    for end, place in zip(_ENDS, (off.argmin(axis=0), off.argmax(axis=0))):
        columns[end] = [label[k] for k in place]
        columns[f"{end}_shift"] = np.take_along_axis(off, place[None], 0)[0]
    return Disagreement(Sheet(columns), square, variance, by_strata, unit)


def _between(delta: Array, v: Array, w: Array) -> tuple[Array, Array, Array]:
    r"""Return deviations of blocks, their mean square beyond chance, and its variance.

    `delta` and `v` have the shape (n_blocks, n_features), `w` (n_blocks,). With
    :math:`A = diag(w) - w w'` and :math:`V = diag(v)`, the square is
    :math:`\delta' A \delta - tr(A V)`. If :math:`\delta` is normal with mean :math:`\mu`, its
    variance is :math:`2 tr(A V A V) + 4 \mu' A V A \mu`. For the unknown :math:`\mu` in the second
    term, :math:`\delta` is used, and what errors add to that in expectation is subtracted.
    """
    off = delta - w @ delta
    A = np.diag(w) - np.outer(w, w)
    square = w @ off**2 - (w * (1 - w)) @ v
    chance = np.einsum("kl,kj,kl,lj->j", A, v, A, v, optimize=True)
    known = 4 * (w**2) @ (v * off**2) - 4 * chance
    return off, square, 2 * chance + np.maximum(known, 0.0)


def _moments(parts: list[list[Array]]) -> tuple[Array, Array]:
    """Return means and variances of every block and domain: (n_blocks, 2, n_features)."""
    mean = np.array([[x.mean(axis=0) for x in pair] for pair in parts])
    return mean, np.array([[x.var(axis=0, ddof=1) for x in pair] for pair in parts])


def _welch(mean: Array, var: Array, n: Array, each: float) -> tuple[Array, Array]:
    """Return p-values of Welch's test that differences are equal in all blocks; their variances.

    `mean`, `var` and `n` have the shape (n_blocks, 2, ...); `each` is the mean number of rows per
    subject, by which variances are multiplied.
    """
    delta, parts = mean[:, 0] - mean[:, 1], each * var / n
    v, k = parts.sum(axis=1), len(delta)
    dof, w = v**2 / (parts**2 / (n - 1)).sum(axis=1), 1 / v
    total = w.sum(axis=0)
    off = delta - (w * delta).sum(axis=0) / total
    uneven = ((1 - w / total) ** 2 / dof).sum(axis=0)
    F = (w * off**2).sum(axis=0) / (k - 1) / (1 + 2 * (k - 2) / (k**2 - 1) * uneven)
    return fdtrc(k - 1, (k**2 - 1) / (3 * np.maximum(uneven, 1e-12)), F), v
