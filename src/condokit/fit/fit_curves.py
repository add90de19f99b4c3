"""From a fitted straight line to increasing curves: which rows, their weights, what z explains.

The curves themselves are found in `condokit.law.curves`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit.checks import Array, refusal
from condokit.compare.comparison import Comparison
from condokit.compare.overlap import overlap_weights
from condokit.data.arrays import ones_for_zeros
from condokit.data.covariates import design, projection
from condokit.data.missing import same_gaps
from condokit.data.study import Study
from condokit.data.subsets import subsample_sides
from condokit.law.curves import STRAIGHT, Bends, FeatureValues, average, bends
from condokit.law.discrete import Discrete
from condokit.law.estimate import FEATURE_VALUES, law_of
from condokit.law.noise import NoiseModel
from condokit.law.stacked import Stacked, solve
from condokit.law.weights import fit_weights, shape
from condokit.maps.standard_errors import StandardErrors
from condokit.solvers.solution import Curves, Solution
from condokit.summaries.rows import Rows

# effective rows of a domain below which lines are not bent: for map="monotone", and for map="auto"
FEWEST_ROWS, _FEWEST_SPARING = 25.0, 50.0
_TEMPER = 0.5  # power of the weights of curves in standard errors, as evidence may be wrong
_LEAST_TAIL = 0.05  # shortest piece, as a share of the range of knots, that gives an end slope
_ROWS_OF_CURVES = 20_000  # of a domain, to which curves are fitted
_MOST_SCREENED, _MOST_SUSPECTED = 2000, 50  # rows of a domain, features
_SCREENED_VALUES = 1 << 17  # rows x features that are screened at a time
_SUSPECT, _CUT = 9.2, 4.0  # 99% point of chi-squared(2); sd to clip at, as t^3 follows outliers
_BY_CHANCE = 2  # expected number of straight features that are suspected, at most
# probabilities of a curve, for "auto" and "monotone": up to the first a line, from the second all
_SPARING, _ABSENT = (0.5, 0.75), (0.05, 0.1)


def suspected(domains: Study, scale: Array, offset: Array) -> Array:
    r"""Return the positions of features whose fitted line may be wrong, by a quick score test.

    The test comes before curves are fitted, which is slow, and sees at most 2000 rows of a domain.
    Let t be the values after the line, and e their residuals given the confounders z, both in
    units of the residuals' spread. A curve that adds :math:`c\, \phi(t)` to query rows has the
    score :math:`\phi'(t) - e \phi(t)` at c = 0. If the line is right, this score has the same mean
    given z in both domains, whatever the law of e. So the scores of :math:`t^2` and :math:`t^3`,
    made orthogonal to those of 1 and t, are regressed on z and the domain. The statistic is the
    sum of the two squared coefficients of the domain over their variances: chi-squared with 2
    degrees of freedom if the line is right. A feature is suspected above the 99% quantile; with
    very many features the limit rises, so that about two straight features are suspected. Features
    that are only multiplied are mostly zero, and not tested.
    """
    lines = np.flatnonzero((offset != 0) | (scale == 1))
    if not len(lines):
        return lines
    if len(lines) < domains.n_features:
        domains, scale, offset = domains.of(lines), scale[lines], offset[lines]
    rows = np.sort(subsample_sides(domains.is_query, _MOST_SCREENED, domains.kept()))
    X, is_query = domains.rows(rows), domains.is_query[rows]
    D = design(domains.confounders, rows, 2)
    if min(is_query.sum(), (~is_query).sum()) < max(FEWEST_ROWS, 4 * D.shape[1]):
        return np.empty(0, dtype=np.intp)
    off, step = projection(D), max(8, _SCREENED_VALUES // len(X))
    q = off(is_query.astype(np.float32)[:, None])[:, 0]
    found = np.zeros(X.shape[1])
    for few in (slice(k, k + step) for k in range(0, len(found), step)):
        part = X[:, few]
        part = np.where(is_query[:, None], part * scale[few] + offset[few], part)
        found[few] = _bent(part, off, q)
    least = max(_SUSPECT, 2 * np.log(len(found) / _BY_CHANCE))
    return lines[found > least][:_MOST_SUSPECTED]


def _bent(X: Array, off: Callable[[Array], Array], q: Array) -> Array:
    """Return the statistics of `suspected`, with the indicator q of the query `off` confounders."""
    missing = np.isnan(X)
    if missing.any():
        X = np.where(missing, X.mean(axis=0, where=~missing), X)
    X -= X.mean(axis=0)
    e = off(X)
    unit = ones_for_zeros(np.sqrt(np.einsum("nd,nd->d", e, e) / len(e)))
    for part in (e, X):
        part /= unit
        np.clip(part, -_CUT, _CUT, out=part)
    e, t = e.astype(np.float32), X.astype(np.float32)
    power = e * t
    scores = [off(e), off(1 - power)]
    for k in (2, 3):
        power, slope = power * t, k * t if k == 2 else k * t * t
        scores.append(off(slope - power))
    squares, found = list[Array](), np.zeros(len(unit))
    for k, score in enumerate(scores):
        for other, square in zip(scores[:k], squares):
            score -= other * (np.einsum("nd,nd->d", other, score) / square)
        squares.append(ones_for_zeros(np.einsum("nd,nd->d", score, score)))
        if k > 1:
            own = q @ score, (q**2) @ score**2
            found += own[0] ** 2 / ones_for_zeros(own[1])
    return found


def fit_curves(
    domains: Study,
    compare: Callable[[Study], Comparison],
    comparison: Comparison,
    line: Solution,
    errors: StandardErrors | None,
    shrinkage: Any,
    sparing: bool,
) -> Curves | None:
    """Replace the fitted lines by increasing curves, as far as the data ask for it.

    A line stays straight if there is hardly any evidence for a curve; with `sparing`, also if the
    line is more likely than a curve. Returns None if no line is bent. `compare` compares the
    domains again where features are missing in some rows; `errors` are those of the line.
    """
    found: list[Bends | None] = [None] * domains.n_features
    fewest = _FEWEST_SPARING if sparing else FEWEST_ROWS
    every = [(np.arange(domains.n_features), domains.keep)]
    for features, known in every if domains.gaps is None else same_gaps(domains):
        part, compared, own = domains, comparison, line
        if domains.gaps is not None:  # features that are known in the same rows, on these rows
            part = replace(domains.of(features), keep=known, gaps=None)
            compared, own = compare(part), replace(line.lines(features), law={})
        for j, one in zip(features, _bends(Rows.read(part, compared, True), own, fewest)):
            found[j] = one
    if all(one is None for one in found):
        return None
    worth = float(len(found)) if line.evidence is None else line.evidence.n_effective
    weights = average(found, worth, STRAIGHT if shrinkage == "auto" or sparing else 0.0)
    if sparing or shrinkage == "auto":
        weights = [_spared(w, *(_SPARING if sparing else _ABSENT)) for w in weights]
    if sparing and all(w[0] == 1 for w in weights):
        return None
    kept = 1.0 if shrinkage in ("auto", None) else 1 - shrinkage
    return _assembled(found, weights, line, errors, kept)


def _spared(weights: Array, low: float, high: float) -> Array:
    """Move the weights of curves to the line (weight 0) where a curve is unlikely.

    All of them at a probability of a curve of `low` or less, none from `high` on.
    """
    share = np.clip((1 - weights[0] - low) / (high - low), 0.0, 1.0)
    return (1 - share) * np.eye(len(weights))[0] + share * weights


def _bends(rows: Rows, line: Solution, fewest: float) -> Iterator[Bends | None]:
    """Yield the candidate curves of every feature; None if its line stays straight."""
    if rows.covariates.objects is not None:
        raise refusal("{@map='monotone'} takes no kernel on confounders. Use {@map='shift'}.")
    is_query = np.arange(len(rows.order)) < rows.n_query
    sides = np.split(np.arange(len(is_query)), [rows.n_query])
    discrete = Discrete.of(rows.values, -rows.mean / rows.unit, sides)
    weights = _worth(overlap_weights(rows.covariates, is_query), is_query, rows.groups)
    stays = rows.flat | discrete.tied
    if min(weights[side].sum() for side in sides) < fewest or stays.all():
        yield from [None] * len(stays)
        return
    taken = subsample_sides(is_query, _ROWS_OF_CURVES, order=rows.covariates.order)
    law = _Dependence(rows, line, discrete, weights, taken)
    uq, ur = rows.unit
    offset = (line.offset + line.scale * rows.mean[0] - rows.mean[1]) / ur
    step = max(1, FEATURE_VALUES // len(taken))
    for start in range(0, len(stays), step):
        some = np.arange(start, min(start + step, len(stays)))
        X = rows.values(some, taken)
        precision = law.precision(X, some)
        X[: law.n_query] *= (line.scale * uq / ur)[some]
        X[: law.n_query] += offset[some]
        for j, values, v in zip(some, X.T, precision.T):
            yield None if stays[j] else law.bends(values, v).in_units(rows.mean[1, j], ur[j])


def _worth(weights: Array, is_query: Array, groups: Array | None) -> Array:
    r"""Scale weights to sum in each domain to the effective number of rows, or of subjects.

    That number is :math:`(\sum w)^2 / \sum w^2`, with w the weights of rows or sums by subject.
    """
    for side in (is_query, ~is_query):
        own = weights[side]
        units = own if groups is None else np.bincount(groups[side], own)
        weights[side] = own * (own.sum() / max(float(units @ units), 1e-300))
    return weights


class _Dependence:
    """How features depend on the confounders, as the likelihood of the line found it.

    Of the rows in `taken`, query rows first.
    """

    def __init__(
        self, rows: Rows, line: Solution, discrete: Discrete, weights: Array, taken: Array
    ) -> None:
        at, self.taken, self.tied = rows.covariates, taken, discrete.tied
        self.n_query = int((taken < rows.n_query).sum())
        self.fixed = np.column_stack([line.scale * rows.unit[0] / rows.unit[1], 0 * line.scale + 1])
        self.weights = weights[taken]
        for side in (slice(0, self.n_query), slice(self.n_query, None)):  # these stand for all rows
            whole = weights[: rows.n_query] if side.start == 0 else weights[rows.n_query :]
            self.weights[side] *= whole.sum() / self.weights[side].sum()
        self.category, self.n_categories = at.category[taken], at.n_categories
        self.side = (np.arange(len(taken)) >= self.n_query) * 1
        self.counts, self.D, self.n_effective = at.counts[taken, None], None, 1.0
        levels = at.n_categories > 1
        self.noise = NoiseModel.of_levels(self.category, at.n_categories, levels)
        self.penalty = np.zeros(0)
        if at.Z.shape[1] or rows.groups is not None:
            law = line.law.get("chosen")
            if law is None:
                law = law_of(rows, rows.values(), self.fixed, discrete)
            U, self.penalty = law.frame.columns(law.design)
            self.D, self.n_effective, noise = U[taken], law.n_effective, law.noise
            columns = noise.columns[taken]
            self.noise = replace(noise, category=noise.category[taken], columns=columns)
        self.leverage = _Rest(self, self.weights).leverage

    def precision(self, X: Array, features: Array) -> Array:
        """Return the precision 1/v of every row and feature, given rows in standard units."""
        if self.noise.empty:
            return np.ones(X.shape)
        where = self.side, 2, 1, self.counts, self.noise
        at, fixed = Stacked(X, self.D, self.penalty, *where), self.fixed[features]
        found = solve(at, fixed)
        tails = shape(at, found)[1] & ~self.tied[features]
        found = fit_weights(at, found, fixed, tails, self.n_effective)
        return 1 / np.asarray(found.v)

    def bends(self, values: Array, precision: Array) -> Bends:
        """Fit the curves of one feature, given its values and precisions in the rows taken.

        `free` are the shares of each domain's rows that the columns of confounders leave, which act
        as formula (6) of docs/explain/method.md does for lines.
        """
        n, w, h = self.n_query, self.weights, self.leverage
        free = tuple(1 - float(w[s] @ h[s] / w[s].sum()) for s in (slice(0, n), slice(n, None)))
        rest = _Rest(self, w * precision)
        return bends(FeatureValues(values, n, w, precision, (free[0], free[1]), rest))


@dataclass
class _Rest:
    """Residuals of columns after weighted regression on the confounders, without the domain."""

    law: _Dependence
    weights: Array

    def __post_init__(self) -> None:
        law, w = self.law, self.weights
        if law.D is None:
            self.total = np.maximum(np.bincount(law.category, w, law.n_categories), 1e-300)
            self.leverage = w / self.total[law.category]
            return
        self.D, penalty = law.D[:, :-1], law.penalty[:-1]  # without the domain
        gram = (self.D * w[:, None]).T @ self.D
        size = 1e-9 * np.trace(gram) / len(gram) + penalty * w.mean()
        self.inverse = np.linalg.inv(gram + size * np.eye(len(gram)))
        self.leverage = np.einsum("nr,nr->n", self.D @ self.inverse, self.D) * w

    def __call__(self, X: Array) -> Array:
        weighted = self.weights[:, None] * X
        if self.law.D is None:
            sums = self.law.noise.group(weighted)
            return np.asarray(X - (sums / self.total[:, None])[self.law.category])
        return np.asarray(X - self.D @ (self.inverse @ (self.D.T @ weighted)))


def _assembled(
    found: list[Bends | None],
    weights: list[Array],
    line: Solution,
    errors: StandardErrors | None,
    kept: float,
) -> Curves:
    """Average the curves of every feature by their weights, with standard errors.

    Features that stay lines get as many knots as the others, as all share one array. `kept` is the
    share of the map that a number for `shrinkage` leaves.
    """
    some = next(one for one in found if one is not None)
    shape = len(found), len(some.knots)
    knots, values, sd = (np.empty(shape) for _ in range(3))
    slopes, growth = np.empty((len(found), 2)), np.empty((len(found), 2))
    m, b = line.scale, line.offset
    for j, (one, weight) in enumerate(zip(found, weights)):
        if one is None:
            middle, wide = line.image[j], max(abs(line.image[j]), 1.0)
            at = np.linspace(middle - wide, middle + wide, shape[1])
            one = Bends(at, at[None], np.zeros((1, shape[1])), np.zeros(1), (at[8], at[-9]))
            weight = np.ones(1)
        knots[j] = (one.knots - b[j]) / m[j]
        values[j] = weight @ one.curves
        variances = one.variances
        if errors is not None:
            X = np.zeros((shape[1], len(found)))
            X[:, j] = knots[j]
            own = errors.std(X)[:, j] ** 2
            variances = np.maximum(variances, own)
        doubt = weight**_TEMPER / (weight**_TEMPER).sum()
        sd[j] = np.sqrt(doubt @ (variances + (one.curves - values[j]) ** 2))
        t, least = one.knots, _LEAST_TAIL * np.ptp(one.knots)
        low, high = max(one.tails[0], t[0] + least), min(one.tails[1], t[-1] - least)
        at_low, at_high = (np.interp([low, high], t, y) for y in (values[j], sd[j]))
        wide = np.array([low - t[0], t[-1] - high])
        slopes[j] = np.array([at_low[0] - values[j, 0], values[j, -1] - at_low[1]]) / wide * m[j]
        growth[j] = np.hypot(at_high, sd[j, [0, -1]]) / wide * m[j]
    values, slopes = (1 - kept) * knots + kept * values, (1 - kept) + kept * slopes
    bent = np.array([1 - w[0] for w in weights])
    return Curves(knots, values, slopes, sd, growth, bent)
