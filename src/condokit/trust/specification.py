"""Whether one map fits all strata: what it leaves should not depend on the confounders."""

import numpy as np
from scipy.special import fdtrc
from scipy.stats import false_discovery_control

from condokit.checks import Array, said
from condokit.data.arrays import ones_for_zeros
from condokit.data.records import Finding, Sheet
from condokit.trust.blocks import ComparableRows

_FEWEST_ROWS = 8  # of a domain in a block that is compared with others
_LEVEL = 0.01
_LEVEL_OF_BLOCKS = 0.001  # which are cut from continuous confounders
_NOTABLE = 0.1  # standard deviations by which strata must disagree beyond chance
_MOST_NAMED = 3
_ADVICE = said(
    "Try {@map='monotone'}; look for a confounder that is not used, or a device that answers "
    "otherwise there; fit strata apart if they are meant to differ."
)


def specification(rows: ComparableRows, R: Array, names: list[str], strata: list[str]) -> Sheet:
    r"""Test for every feature whether the mapped query fits the reference equally in all strata.

    R are the residuals of mapped rows given the confounders, `rows.residuals(rows.after)`.
    With :math:`\delta_k` the difference of means within block k, v its variance and weights 1 / v,
    Welch's F compares :math:`\sum_k (\delta_k - \bar\delta)^2 / v_k` with chance; the logarithms of
    ratios of mean distances from medians are compared likewise. `p` is twice the smaller;
    `disagreement` the root mean squared deviation beyond chance, in standard deviations of the
    reference. Blocks are categories, or of equal propensity given continuous confounders.
    """
    pairs = [[b[rows.is_query[b]], b[~rows.is_query[b]]] for b in rows.shared_blocks()]
    pairs = [pair for pair in pairs if min(map(len, pair)) >= _FEWEST_ROWS]
    if len(pairs) < 2:
        return Sheet({})
    parts = [[R[side] for side in pair] for pair in pairs]
    n = np.array([[len(x) for x in pair] for pair in parts])[:, :, None]
    mean, var = _moments(parts)
    within = (n[:, 1] * var[:, 1]).sum(axis=0) / n[:, 1].sum(axis=0)
    unit = np.sqrt(ones_for_zeros(within))
    least, each = 1e-12 * unit**2, rows.rows_per_subject
    p_mean, off, v = _welch(mean, np.maximum(var, least), n, each)
    size, var = _moments([[np.abs(x - np.median(x, axis=0)) for x in pair] for pair in parts])
    size = np.maximum(size, 1e-6 * unit)
    p_spread = _welch(np.log(size), np.maximum(var, least) / size**2, n, each)[0]
    p = np.minimum(2 * np.minimum(p_mean, p_spread), 1.0)
    excess = np.maximum((off**2).mean(axis=0) - v.mean(axis=0), 0.0)
    columns = {"feature": names, "p": p, "p_adjusted": false_discovery_control(p)}
    columns["disagreement"] = np.sqrt(excess) / unit
    label = [f"block {k + 1}" for k in range(len(pairs))]
    if rows.covariates is None:
        label = [strata[rows.category[query[0]]] for query, _ in pairs]
    for end, place in (("lowest", off.argmin(axis=0)), ("highest", off.argmax(axis=0))):
        columns[end] = [label[k] for k in place]
        columns[f"{end}_shift"] = np.take_along_axis(off, place[None], 0)[0] / unit
    return Sheet(columns)


def misfit(found: Sheet, by_strata: bool) -> Finding | None:
    """Say which features one map does not fit in all strata, if there are any."""
    if not len(found):
        return None
    p, size = np.array(found["p_adjusted"]), np.array(found["disagreement"])
    hit = np.flatnonzero((p < (_LEVEL if by_strata else _LEVEL_OF_BLOCKS)) & (size > _NOTABLE))
    if not len(hit):
        return None
    worst = hit[np.argsort(p[hit], kind="stable")][:_MOST_NAMED]
    told = []
    for j in worst:
        ends = (f"{found[e][j]} {found[f'{e}_shift'][j]:+.2f} sd" for e in ("lowest", "highest"))
        told.append(
            f"{found['feature'][j]} ({', '.join(ends)})" if by_strata else found["feature"][j]
        )
    more = f" and {len(hit) - len(worst)} more" if len(hit) > len(worst) else ""
    where = "all strata" if by_strata else "all values of the confounders"
    return Finding("care", f"one map does not fit {where}: {', '.join(told)}{more}.", _ADVICE)


def _moments(parts: list[list[Array]]) -> tuple[Array, Array]:
    """Return means and variances of the rows of every block and side."""
    mean = np.array([[x.mean(axis=0) for x in pair] for pair in parts])
    return mean, np.array([[x.var(axis=0, ddof=1) for x in pair] for pair in parts])


def _welch(mean: Array, var: Array, n: Array, each: float) -> tuple[Array, Array, Array]:
    """Return p of Welch's test that differences are equal, how far they are off, and variances."""
    # of the two sides along the second axis
    delta, parts = mean[:, 0] - mean[:, 1], each * var / n
    v, k = parts.sum(axis=1), len(delta)
    dof, w = v**2 / (parts**2 / (n - 1)).sum(axis=1), 1 / v
    total = w.sum(axis=0)
    off = delta - (w * delta).sum(axis=0) / total
    uneven = ((1 - w / total) ** 2 / dof).sum(axis=0)
    F = (w * off**2).sum(axis=0) / (k - 1) / (1 + 2 * (k - 2) / (k**2 - 1) * uneven)
    return fdtrc(k - 1, (k**2 - 1) / (3 * np.maximum(uneven, 1e-12)), F), off, v
