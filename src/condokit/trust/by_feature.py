r"""A verdict for every feature of every site, with false discoveries controlled.

The null hypothesis for a feature is that its map does not lower the systematic error. The gain of
the map, :math:`before^2 - after^2`, is linear in the unknown true map. So the plain map, without
shrinkage, estimates the gain without bias: by G, with variance v (`SystematicError.by_data_alone`).
Let M be the mean square by which the fitted map moves values. The p-value is

.. math:: p = \Phi(-G / \sqrt v) + \Phi(-(G + 2M) / \sqrt v).

Why: let the map shift values by h > 0, and let d be the plain estimate of the true shift, with
standard error s. Then :math:`G = 2dh - h^2`, :math:`\sqrt v = 2hs` and :math:`M = h^2`, so that p
is :math:`\Phi(-(d - h/2)/s) + \Phi(-(d + h/2)/s)`: the probability of an estimate as large as d, in
either direction, if the true shift is h / 2. If it were smaller, the mapped values would be farther
off than the recorded ones. So p is valid, :math:`P(p \le t) \le t`, however much h was shrunk.

These p-values of all features of all sites are adjusted by Benjamini and Hochberg's procedure. A
feature is called better if the adjusted p-value is small and also :math:`\Phi(-z)`, with z the mean
gain over its standard deviation by the posterior. The second condition excludes gains that are
likely, but next to nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtr
from scipy.stats import false_discovery_control

from condokit.checks import Array, listing
from condokit.data.arrays import ONE_SIDED_95, ones_for_zeros
from condokit.data.records import Sheet
from condokit.trust.systematic import SystematicError, limits

SMALL = 0.1  # standard deviations: errors below it need no change
_LEVEL = 0.05  # of tests, after adjustment
_OF_TOTAL = 1.65  # sd: 95% of a normal law are below; total error = bias + 1.65 sd (Westgard)
_MOST_ADVISED = 1e6  # rows; more are never asked for
_SURE = 40.0  # z of a gain whose standard error is zero


def intervals(error: SystematicError) -> dict[str, Array]:
    """Return the expected error of every feature before and after, with 95% intervals, in sd.

    The intervals are those of `condokit.trust.systematic.limits`.
    """
    columns = {}
    for k, (name, square) in enumerate((("before", error.before), ("after", error.after))):
        alike = None if error.alike is None else error.alike[k]
        ends = np.sqrt(limits(square, error.variances[k], error.chance, alike))
        columns[f"error_{name}"] = np.sqrt(np.maximum(square, 0.0))
        columns |= {f"error_{name}_low": ends[0], f"error_{name}_high": ends[1]}
    return columns


def in_doubt(gain: float, variance: float, before: float, after: float) -> str:
    """Return a sentence that says why the verdict is "cannot tell", with the gain in sd.

    `gain` is :math:`before^2 - after^2`, which is divided by before + after to be in sd.
    """
    total = max(before + after, 1e-12)
    won, reach = gain / total, ONE_SIDED_95 * np.sqrt(variance) / total
    if won <= 0:
        return f"the map gains nothing ({won:.2f} sd, with an uncertainty of {reach:.2f} sd)"
    if won > reach:
        return f"the gain ({won:.2f} sd) is not beyond chance among so many features"
    return f"the gain ({won:.2f} sd) is smaller than its uncertainty ({reach:.2f} sd)"


def judge(errors: Sequence[SystematicError | None], doubts: Sequence[Sequence[str]]) -> list[Any]:
    """Return, for every site, columns with the verdict, p-value and reason of its features.

    P-values are adjusted over all features of all sites. `doubts` of a site make its features
    "cannot tell", unless they are worse.
    """
    parts = [[np.zeros(0)] * 5 if e is None else [*e.by_data_alone, *e.believed] for e in errors]
    gain, variance, moved, mean, of_mean = (np.concatenate(one) for one in zip(*parts))
    q = []
    for own in (gain, -gain):
        both = [ndtr(-_in_errors(one, variance)) for one in (own, own + 2 * moved)]
        p = np.where(own > 0, np.minimum(sum(both), 1.0), 1.0)
        q.append(false_discovery_control(p) if len(p) else p)
    # the second condition for "better" of the module's docstring
    q[0] = np.maximum(q[0], np.where(mean == 0, 1.0, ndtr(-_in_errors(mean, of_mean))))
    found, start = list[Any](), 0
    for error, doubt in zip(errors, doubts):
        if error is None:
            found.append({})
            continue
        mine = slice(start, start := start + len(error.before))
        found.append(_judged(error, doubt, q[0][mine], q[1][mine]))
    return found


def _in_errors(gain: Array, variance: Array) -> Array:
    """Return gains divided by their standard errors."""
    sd = np.sqrt(variance)
    flat = sd <= 1e-9 * ones_for_zeros(np.abs(gain))
    return np.where(flat, _SURE * np.sign(gain), gain / ones_for_zeros(np.where(flat, 0.0, sd)))


def _judged(error: SystematicError, doubts: Sequence[str], q: Array, q_worse: Array) -> Any:
    """Return verdicts, p-values and reasons of the features of one site."""
    bounds = intervals(error)
    little = np.maximum(bounds["error_before_high"], bounds["error_after_high"]) < SMALL
    words, reasons = [], []
    for j in range(len(q)):
        word, why = "cannot tell", "doubts about all features" if doubts else ""
        if q_worse[j] <= _LEVEL:
            word, why = "worse", ""
        elif not doubts and q[j] <= _LEVEL:
            word = "better"
        elif not doubts and little[j]:
            word = "no change needed"
        elif not doubts:
            sizes = bounds["error_before"][j], bounds["error_after"][j]
            why = in_doubt(error.before[j] - error.after[j], error.variances[2][j], *sizes)
        words.append(word)
        reasons.append(why or None)
    return {"verdict": words, "p_better": q, "reason": reasons}


def check_limits(argument: str, given: Any, names: Sequence[str]) -> dict[str, float]:
    """Return a dict of features to positive numbers; raise an error for anything else."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(f"{argument!r} must be a dict of features to numbers.")
    if strange := [name for name in given if name not in names]:
        raise ValueError(f"{argument!r} names {listing(strange)}, which is no feature.")
    limits = {str(name): float(limit) for name, limit in given.items()}
    if wrong := [name for name, limit in limits.items() if not 0 < limit < np.inf]:
        raise ValueError(f"{argument!r} of {listing(wrong)} must be a positive number.")
    return limits


def check_tolerance(tolerance: Any, imprecision: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return for each feature its tolerance and its imprecision (0 if none was given)."""
    limits = check_limits("tolerance", tolerance, names)
    spreads = check_limits("imprecision", imprecision, names)
    if alone := [name for name in spreads if name not in limits]:
        text = f"'imprecision' names {listing(alone)}, for which there is no 'tolerance'."
        raise ValueError(f"{text} Give the total error that is allowed, too.")
    return {name: (limit, spreads.get(name, 0.0)) for name, limit in limits.items()}


def within_limits(features: Sheet, limits: Mapping[str, Any], n_rows: float) -> Sheet:
    """Return a table that says whether errors after the map are within limits, in feature units.

    Without an imprecision s the error is the systematic one. With s it is the total error that 95%
    of measurements do not exceed, systematic error + 1.65 s (Westgard, Carey and Wold, 1974). If
    the upper 95% limit E of the systematic error exceeds the room T that is left for it, about
    :math:`n (E / T)^2` rows are needed, as errors fall with the root of the number of rows n.
    """
    place = {name: j for j, name in enumerate(features["feature"])}
    rows, is_total = [], any(spread for _, spread in limits.values())
    for name, (limit, spread) in limits.items():
        ends = [features[f"error_after{end}_unit"][place[name]] for end in ("", "_low", "_high")]
        random, more = _OF_TOTAL * spread, None
        room = limit - random
        if room <= 0:
            word, text = "no", f"imprecision alone is {random:.3g}"
        elif ends[2] <= room:
            word, text = "yes", f"at most {ends[2] + random:.3g} at 95%"
        elif ends[1] > room:
            word, text = "no", f"at least {ends[1] + random:.3g} at 95%"
        else:
            more = n_rows * ((ends[2] / room) ** 2 - 1)
            more = float(f"{min(np.ceil(more), _MOST_ADVISED):.2g}")
            word, text = "cannot tell", f"needs about {more:,.0f} more rows"
        row = {"feature": name, "tolerance": limit}
        row |= {"imprecision": spread} if is_total else {}
        row |= {"error": ends[0] + random}
        row |= {"upper": ends[2] + random, "within": word, "more_rows": more, "in_words": text}
        rows.append(row)
    return Sheet.of_rows(rows)
