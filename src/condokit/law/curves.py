r"""An increasing curve for every feature, as far as data bend it from its straight line.

Of one feature, let t be query values mapped by the straight line and y reference values, with row
weights w that balance the confounders z of the two domains. One increasing function h makes the
feature normal given z,

.. math::
    h(y) = \theta' D(z) + \sqrt{v(z)}\, \epsilon, \qquad
    h(t) + c(t) = \theta' D(z) + \sqrt{v(z)}\, \epsilon, \qquad g = h^{-1} \circ (h + c),

with D and v of the straight line's law, and natural cubic splines h and c. The weighted
log-likelihood is concave in all coefficients together (squares, and logarithms of slopes, which are
linear in them), so Newton's method finds its one maximum. If the law given z is not normal, h and h
+ c are wrong in the same way, since both domains have the same weighted law of z: the curve g is
right whatever the law is. With D constant and rich splines it is the map between balanced
quantiles.

The wiggliness :math:`\int c''^2` has a prior of variance lambda, on a grid that begins with 0, the
straight line. Each value of the grid is weighted by its evidence (Laplace's approximation) times a
prior that features share. The curve is the weighted average, and its error contains the members'
posterior variances and their differences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import quantiles
from condokit.data.basis import Cubic
from condokit.maps.formula import interpolated

WIGGLES = (0.003, 0.03, 0.3, 3.0)  # variances of curvature, in units of residuals
STRAIGHT = 0.5  # prior probability of the straight line
_PSEUDO_FEATURES = 2.0  # features for which the prior of wiggliness counts, when it is learned
_LINEAR = 10.0  # prior variance of constant and slope of c, relative to that of its curvature
_FREE = 1e8  # prior variance of constant and slope of h
_MOST_KNOTS, _FEWEST_KNOTS = 16, 6  # of the splines
_KEPT = 0.1  # rows at every knot, so that slopes stay positive where a domain has none
_NODES = 200  # values, or means of neighbours, whose slopes are kept positive
_N_KNOTS = 33  # of the result
_BEYOND = 2.0  # rows beyond the first and the last knot of the result, where it is a line
_TAIL = 0.1  # share of rows whose curve gives that line its slope
_WIDER = 1.5  # factor of variances, for laws that are not Gaussian
_FINE = 400  # points at which h is inverted
_NEWTON_STEPS = 60  # at most
_EM_STEPS = 60  # that learn the prior of wiggliness


@dataclass(frozen=True)
class Bends:
    """A straight line and curves of increasing wiggliness that may replace it."""

    knots: Array  # (n_knots,): query values mapped by the line
    curves: Array  # (1 + n_wiggles, n_knots): where these go; the first is the knots themselves
    variances: Array  # of the curves; that of the line is not known here
    evidence: Array  # (1 + n_wiggles,): log evidence of each
    tails: tuple[float, float]  # the 10% and 90% quantiles of the query's mapped values

    def in_units(self, place: float, unit: float) -> "Bends":
        """Return the same curves in other units, where a value x is place + unit * x."""
        low, high = self.tails
        return Bends(
            place + unit * self.knots,
            place + unit * self.curves,
            unit**2 * self.variances,
            self.evidence,
            (place + unit * low, place + unit * high),
        )


@dataclass(frozen=True)
class FeatureValues:
    """Values of one feature in both domains: the query's, mapped by its line, come first."""

    values: Array
    n_query: int
    weights: Array  # (n_rows,): balance confounders; their sum is the effective sample size
    precision: Array  # (n_rows,): 1 / v, relative
    freedom: tuple[float, float]  # shares of rows that the columns of confounders leave
    rest: Callable[[Array], Array]  # residuals of given columns on those of confounders


def bends(sample: FeatureValues) -> Bends:
    """Fit curves of all degrees of wiggliness.

    The wiggliness of h is chosen first without c, then again at the best wiggliness of c.
    """
    problem = _CurveSearch(sample)
    best, penalty = -np.inf, WIGGLES[0]
    for wiggle in WIGGLES:  # of h, while there is no c
        found = problem.solve(wiggle, 0.0)
        if found.evidence > best:
            best, penalty = found.evidence, wiggle
    for _ in range(2):
        members = [problem.solve(penalty, wiggle) for wiggle in (0.0, *WIGGLES)]
        at = int(np.argmax([member.evidence for member in members]))
        again = [problem.solve(wiggle, (0.0, *WIGGLES)[at]).evidence for wiggle in WIGGLES]
        if at == 0 or WIGGLES[int(np.argmax(again))] == penalty:
            break
        penalty = WIGGLES[int(np.argmax(again))]
    return problem.curves(members)


@dataclass(frozen=True)
class _Member:
    """The fit for one wiggliness of c."""

    beta: Array  # coefficients of h and c
    covariance: Array
    evidence: float


class _CurveSearch:
    """The likelihood of h and c of one feature, in units of the feature's spread.

    There are about as many knots as the cube root of the effective rows. Logarithms of slopes count
    the share `freedom` of each domain's rows, as log-scales of lines count n_b instead of N_b rows.
    """

    def __init__(self, sample: FeatureValues) -> None:
        self.sample, n = sample, sample.n_query
        w = sample.weights
        low, middle, high = quantiles(sample.values[:, None], np.array([0.05, 0.5, 0.95]), None)[
            :, 0
        ]
        self.middle, self.unit = float(middle), float(high - low) / 3.29
        x = (sample.values - self.middle) / self.unit
        worth = w.sum()
        n_knots = int(np.clip(round(worth ** (1 / 3)), _FEWEST_KNOTS, _MOST_KNOTS))
        end = 0.25 / np.sqrt(worth)
        inner = (np.arange(n_knots - 2) + 0.5) / (n_knots - 2)
        self.x, self.spline = x, Cubic(_distinct(_weighted(x, w, np.array([end, *inner, 1 - end]))))
        B = self.spline(x)
        self.size = B.shape[1]
        own = B.copy()  # c acts on query rows only
        own[n:] = 0.0
        X = np.hstack([B, own])
        self.gram = X.T @ ((w * sample.precision)[:, None] * sample.rest(X))
        parts, mass = [], []
        for side, free in zip((slice(0, n), slice(n, None)), sample.freedom):
            nodes, weight = _nodes(x[side], w[side])
            slopes = self.spline.slopes(np.concatenate([nodes, self.spline.knots]))
            parts.append(np.hstack([slopes, slopes * (side.start == 0)]))
            mass.append(np.append(weight * free, np.full(len(self.spline.knots), _KEPT)))
        self.slopes, self.mass = np.vstack(parts), np.concatenate(mass)
        self.starts: dict[bool, Array] = {}

    def solve(self, of_h: float, of_c: float) -> _Member:
        """Return the maximum for given variances of curvature; without c if its variance is 0."""
        m, with_c = self.size, of_c > 0
        variances = [_FREE, _FREE, *[of_h] * (m - 2)]
        if with_c:
            variances += [_LINEAR * of_c] * 2 + [of_c] * (m - 2)
        k = len(variances)
        penalty = 1 / np.array(variances)
        start = self.starts.get(with_c)
        if start is None:
            start = np.zeros(k)
            start[1] = 1 / np.sqrt(max(self.gram[1, 1] / self.mass.sum(), 1e-12))
        gram, slopes = self.gram[:k, :k], self.slopes[:, :k]
        beta, value, H = minimum(gram, slopes, self.mass, penalty, start)
        self.starts[with_c] = beta
        evidence = -value - 0.5 * np.linalg.slogdet(H)[1] + 0.5 * np.log(penalty).sum()
        full = np.concatenate([beta, np.zeros(2 * m - k)])
        covariance = np.zeros((2 * m, 2 * m))
        covariance[:k, :k] = np.linalg.inv(H)
        return _Member(full, covariance, float(evidence))

    def curves(self, members: Sequence[_Member]) -> Bends:
        """Return the values to which knots of the line are mapped, and their variances."""
        n, w = self.sample.n_query, self.sample.weights
        x, own = self.x[:n], w[:n]
        share = np.clip(_BEYOND / own.sum(), 1e-6, 0.05)
        low, high, start, end = _weighted(x, own, np.array([share, 1 - share, _TAIL, 1 - _TAIL]))
        knots = _knots(x, own, low, high)
        curves, variances = [knots], [np.zeros(len(knots))]
        for member in members[1:]:
            g, variance = self._curve(member, knots)
            curves.append(g)
            variances.append(_WIDER * variance)
        evidence = np.array([member.evidence for member in members])
        found = np.stack(curves), np.stack(variances), evidence, (float(start), float(end))
        return Bends(knots, *found).in_units(self.middle, self.unit)

    def _curve(self, member: _Member, knots: Array) -> tuple[Array, Array]:
        r"""Return :math:`g = h^{-1}(h + c)` and its variance at knots.

        A change of the coefficients changes g by
        :math:`[B(t)' (\delta a + \delta c) - B(g)' \delta a] / h'(g)`.
        """
        m, spline = self.size, self.spline
        a, c = member.beta[:m], member.beta[m:]
        B = spline(knots)
        wide = knots[-1] - knots[0]
        fine = np.linspace(knots[0] - wide, knots[-1] + wide, _FINE)
        fine = np.unique(np.concatenate([fine, spline.knots, knots]))
        h = _rising(spline(fine) @ a, fine)
        steep = np.diff(fine)[[0, -1]] / np.maximum(np.diff(h)[[0, -1]], 1e-300)
        g = _rising(interpolated(B @ (a + c), h, fine, steep), knots)
        J = np.hstack([B - spline(g), B]) / np.maximum(spline.slopes(g) @ a, 1e-3)[:, None]
        return g, np.einsum("nr,nr->n", J @ member.covariance, J)


def minimum(
    gram: Array, slopes: Array, mass: Array, penalty: Array, start: Array
) -> tuple[Array, float, Array]:
    r"""Minimise :math:`\tfrac12 b'(G + P) b - \sum_i m_i \log(s_i' b)`, which is convex, by Newton.

    Returns b, the value, and the second derivatives there. P is the diagonal `penalty`; the
    logarithms are a barrier that keeps all slopes s_i'b positive.
    """
    quadratic = gram + np.diag(penalty)

    def value_of(b: Array) -> float:
        """Return the value at b, infinite where a slope is not positive."""
        steep = slopes @ b
        if steep.min() <= 0:
            return np.inf
        return float(0.5 * b @ quadratic @ b - mass @ np.log(steep))

    b, value = start, value_of(start)
    for _ in range(_NEWTON_STEPS):
        steep = slopes @ b
        gradient = quadratic @ b - slopes.T @ (mass / steep)
        H = quadratic + (slopes * (mass / steep**2)[:, None]).T @ slopes
        step = np.linalg.solve(H, gradient)
        decrease, share = float(gradient @ step), 1.0
        if decrease < 1e-8:
            break
        while (new := value_of(b - share * step)) > value - 1e-4 * share * decrease:
            share /= 2
            if share < 1e-10:
                return b, value, H
        b, value = b - share * step, new
    return b, value, H


def average(found: Sequence[Bends | None], n_effective: float, straight: float) -> list[Array]:
    """Return the weights of each feature's curves, (1 + n_wiggles,); None has its line only.

    The prior of wiggliness is learned from all features, which count as `n_effective`. `straight`
    is the prior probability of the line to begin with; 0 excludes lines.
    """
    n_wiggles = len(WIGGLES)
    prior = np.append(straight, np.full(n_wiggles, (1 - straight) / n_wiggles))
    known = [one.evidence - one.evidence.max() for one in found if one is not None]
    share, evidence = prior, np.exp(np.array(known).reshape(-1, n_wiggles + 1))
    worth = n_effective * len(known) / max(len(found), 1)
    for _ in range(_EM_STEPS if len(known) > 1 else 0):
        weights = evidence * share
        weights /= weights.sum(axis=1, keepdims=True)
        share = (worth * weights.mean(axis=0) + _PSEUDO_FEATURES * prior) / (
            worth + _PSEUDO_FEATURES
        )
    weights = evidence * share
    rows = iter(weights / weights.sum(axis=1, keepdims=True))
    return [np.eye(n_wiggles + 1)[0] if one is None else next(rows) for one in found]


def _weighted(x: Array, weights: Array, shares: Array) -> Array:
    """Return quantiles of weighted values, interpolated between the middles of their weights."""
    order = np.argsort(x, kind="stable")
    upto = np.cumsum(weights[order])
    return np.interp(shares, (upto - 0.5 * weights[order]) / upto[-1], x[order])


def _rising(values: Array, at: Array) -> Array:
    """Return values whose steps are at least a thousandth of those of `at`, as between nodes."""
    steps = np.maximum(np.diff(values), 1e-3 * np.diff(at))
    return np.concatenate([values[:1], values[0] + np.cumsum(steps)])


def _distinct(knots: Array) -> Array:
    """Move knots that coincide because of ties apart."""
    least = 1e-3 * max(float(knots[-1] - knots[0]), 1e-9)
    return knots[0] + np.concatenate([[0.0], np.cumsum(np.maximum(np.diff(knots), least))])


def _knots(x: Array, weights: Array, low: float, high: float) -> Array:
    """Return knots of the result, spaced halfway between equal counts and equal distances."""
    shares = np.linspace(0, 1, _N_KNOTS)
    even = low + (high - low) * shares
    order = np.argsort(x, kind="stable")
    upto = np.cumsum(weights[order])
    place = np.interp(even, x[order], upto / upto[-1])
    place = (place - place[0]) / max(place[-1] - place[0], 1e-300)
    return np.interp(shares, 0.5 * (place + shares), even)


def _nodes(x: Array, weights: Array) -> tuple[Array, Array]:
    """Return values and weights; if there are many, means of neighbours and their total weights."""
    if len(x) <= _NODES:
        return x, weights
    order = np.argsort(x, kind="stable")
    first = np.linspace(0, len(x), _NODES, endpoint=False).astype(np.intp)
    total = np.maximum(np.add.reduceat(weights[order], first), 1e-300)
    return np.add.reduceat((weights * x)[order], first) / total, total
