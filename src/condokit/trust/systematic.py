r"""How far a value is systematically off before and after a map, and how sure we are of it.

The default estimator gives the true map g at a query row x a posterior mean p(x) and standard
deviation s(x), by whatever method the map h that is judged was found. In standard deviations of the
reference, averaged over query rows and features,

.. math:: before^2 = E (p - x)^2 + E s^2, \qquad after^2 = E (p - h)^2 + E s^2,

and their difference is linear in g. If a curve is more likely than a line for a feature (by the
evidence that map="auto" uses), p and s are those of the curve, even if h is a line: the error of a
line includes what a curve would find beyond it. Correlated features count as `n_effective`
independent ones. If h is a matrix, the error after it is found in another way: s is the sampling
error of h, and p the result of a diagonal map of the mapped rows, which finds what is left; before
and after then count as independent. Squares are approximated by multiples of chi-squared variables
with the same mean and variance, mixed with the case that the domains do not differ (`limits`).
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import gammainc, gammaincinv

from condokit.adapter import ConDoAdapter
from condokit.checks import Array, quietly
from condokit.data.arrays import ONE_SIDED_95, ones_for_zeros
from condokit.data.links import apply as apply_links
from condokit.data.study import Study
from condokit.data.subsets import subsample
from condokit.fit.choose import candidates
from condokit.fit.fit_map import Recipe, fit_quietly, fit_solution, likely_curves
from condokit.maps.base import Map
from condokit.maps.formula import interpolated
from condokit.maps.standard_errors import CurveErrors
from condokit.solvers.solution import Curves, Solution
from condokit.trust.blocks import ComparableRows
from condokit.trust.mixing import Mixing, mixing, probabilities

_MOST_VALUES = 2_000_000  # query rows times features that errors are averaged over
_FEWEST_ROWS = 100  # of the query, however many features there are
_FALLS = 0.55  # error after over error before; see `SystematicError.is_lowered`
# probabilities that a map mixes features, if domains differ, and if a matrix was fitted
_MIXES, _ASKED = 0.3, 0.5
_MOST_LINES, _MOST_MATRIX = 20, 30  # features of which this is looked for, as it is slow
_PIECES = 4  # of a curve, whose errors are taken to be independent


@dataclass(frozen=True)
class SystematicError:
    """Squared systematic errors of features before and after a map, in variances.

    All arrays but `curved` have the shape (n_features,).
    """

    unit: Array  # standard deviations of the reference
    before: Array
    after: Array
    # (3, n_features): variances of `before`, of `after`, and of their difference
    variances: Array
    n_effective: float  # number of independent features that these are worth
    # positions of features for which a curve is more likely than a line
    curved: Array = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    # by the plain map (without shrinkage): estimated gain before - after, its variance, and the
    # mean squares by which the judged map moves values
    plain: tuple[Array, Array, Array] | None = None
    # probability that the domains differ at all, and the squares before and after if they do not
    chance: float = 1.0
    alike: tuple[Array, Array] | None = None
    # (n_hypotheses, 3, n_features): what hypotheses that all features share add to the means of the
    # three, times the roots of their probabilities; `variances` contain the sums of their squares
    shared: Array | None = None

    def rms(self, which: int) -> tuple[float, tuple[float, float]]:
        """Return the root mean square over features, and its 95% interval.

        `which` is 0 for the error before the map and 1 for the error after it.
        """
        squares = np.array([(self.before, self.after)[which].mean()])
        variances = np.array([self._of_mean(which)])
        alike = None if self.alike is None else self.alike[which].mean(keepdims=True)
        low, high = np.sqrt(limits(squares, variances, self.chance, alike))
        return float(np.sqrt(squares[0])), (float(low[0]), float(high[0]))

    @property
    def believed(self) -> tuple[Array, Array]:
        """Expected gain (before - after, squared errors) of every feature, and its variance.

        By the posterior, that is after shrinkage.
        """
        return self.before - self.after, self.variances[2]

    @property
    def by_data_alone(self) -> tuple[Array, Array, Array]:
        """Gain of every feature, its variance, and mean squares of what the map moves values by.

        All three are by data alone, that is by the plain map without shrinkage; if that map is
        not known, by the posterior.
        """
        gain, variance = self.believed
        return self.plain or (gain, variance, np.maximum(gain, 0.0))

    @property
    def gain(self) -> tuple[float, float]:
        """Lower and upper 95% limits (each one-sided) of the gain, before - after, in variances."""
        mean = float((self.before - self.after).mean())
        reach = ONE_SIDED_95 * np.sqrt(self._of_mean(2))
        return mean - reach, mean + reach

    @property
    def is_lowered(self) -> bool:
        """Whether the map lowers the error; either of two rules is enough.

        First, the lower 95% limit of the gain by the posterior is above zero. Second, the same
        limit by the plain map is above zero, and the expected error falls to .55 of it or less.
        With the second rule more maps that help are recognised; docs/explain/method.md, "Verdicts",
        says how many, and how many verdicts are wrong.
        """
        gain, variance, _ = self.by_data_alone
        of_mean = self._of_mean(2) if self.plain is None else variance.mean() / self.n_effective
        sure = float(gain.mean()) > ONE_SIDED_95 * np.sqrt(of_mean)
        falls = float(self.after.mean()) < _FALLS**2 * float(self.before.mean())
        return self.gain[0] > 0 or bool(sure and falls)

    def with_strata(self, square: Array, variance: Array, is_line: bool) -> "SystematicError":
        """Add the squared error that strata have since one map cannot fit them all.

        `is_line` says that the map is a line: features that are likely curves get nothing added,
        as the curve explains the same disagreement.
        """
        added = np.ones(len(square))
        if is_line:
            added[self.curved] = 0.0
        square, variance = added * square, added * variance
        variances = self.variances + np.array([variance, variance, 0 * variance])
        alike = self.alike and (self.alike[0] + square, self.alike[1] + square)
        before, after = self.before + square, self.after + square
        return replace(self, before=before, after=after, variances=variances, alike=alike)

    def _of_mean(self, which: int) -> float:
        """Return a variance of the mean over features, which count as `n_effective`."""
        variance = self.variances[which]
        if self.shared is None:
            return float(variance.mean()) / self.n_effective
        own = self.shared[:, which]
        within = float((variance - (own**2).sum(axis=0)).mean()) / self.n_effective
        return within + float((own.mean(axis=1) ** 2).sum())


def limits(squares: Array, variances: Array, chance: float, alike: Array | None) -> Array:
    r"""Return the 2.5% and 97.5% quantiles of squared errors, as an array of shape (2, n).

    `squares` (n,) are their means S and `variances` (n,) their variances. The law is a mixture.
    With probability :math:`1 - \pi` the domains do not differ, and the square is :math:`S_0`
    (`alike`). With probability :math:`\pi` (`chance`) they do, and the square is a multiple of a
    chi-squared variable with mean :math:`(S - (1 - \pi) S_0) / \pi` and the degrees of freedom
    :math:`2 S^2 / \mathrm{variance}`. So if few rows leave it in doubt whether the domains differ,
    the upper limit is that of a difference, and not one around the mean of both cases. Where the
    variance is negligible, both limits are S.
    """
    squares = np.maximum(squares, 0.0)
    known = np.sqrt(np.maximum(variances, 0.0)) > 1e-6 * ones_for_zeros(squares)
    half = squares**2 / ones_for_zeros(np.where(known, variances, 1.0))  # of degrees of freedom
    half = np.maximum(np.where(known, half, 1.0), 1e-3)
    none = np.zeros_like(squares) if alike is None else np.minimum(alike, squares)
    chance = min(max(chance, 1e-6), 1.0)
    some = np.maximum((squares - (1 - chance) * none) / chance, 0.0)
    below = chance * gammainc(half, half * none / ones_for_zeros(some))  # probability below S_0
    found = []
    for share in (0.025, 0.975):
        early = some / half * gammaincinv(half, min(share / chance, 1 - 1e-12))
        late = some / half * gammaincinv(half, max(share - (1 - chance), 0.0) / chance)
        limit = np.where(below + 1 - chance >= share, none, late)
        found.append(np.where(known, np.where(below >= share, early, limit), squares))
    return np.array(found)


def systematic_error(affine: Map, domains: Study, rows: ComparableRows) -> SystematicError | None:
    """Return the systematic errors of a map; None if they cannot be estimated."""
    domains = replace(domains, links=affine.links)
    is_query, by_feature = rows.is_query, affine.kind in ("diagonal", "monotone")
    x, Y = rows.before[is_query], rows.after
    if affine.links is not None:
        labels = domains.tables[0].labels
        x, Y = (apply_links(affine.links, part, labels, "X") for part in (x, Y))
    unit = np.sqrt(ones_for_zeros(Y[~is_query].var(axis=0)))
    n = max(_MOST_VALUES // max(domains.n_features, 1), _FEWEST_ROWS)
    every, x = x, x[subsample(len(x), n)]
    h = affine.without_links(x)
    try:
        believed, recipe, chance = _posterior(domains)
        p, s = _believed(believed, x)  # the likely true values of rows x, and how sure they are
        curves = likely_curves(domains, recipe, believed) if by_feature else None
        curved, noise = _bend(curves, x, p, s), (s**2).mean(axis=0)
        bent = affine.kind == "monotone" or len(curved)
        lines = Y.copy()
        lines[is_query] = _believed(believed, every)[0]
        mixed = [] if bent else _mixed(affine, believed, rows, lines, Y, (p, h), by_feature)
    except (ValueError, ArithmeticError, np.linalg.LinAlgError):
        return None
    if not (by_feature or mixed):
        return None  # rows are too few to tell how far a matrix is off
    gain = _of_gain(believed, x, h)
    gain[curved] += _of_curved_gain(x[:, curved], (2 * np.abs(h - x) * s)[:, curved])
    # the true map is diagonal, or it mixes features in one of several ways
    cases = [(*_squares(p, x, h, noise), gain)]
    at_centre = _believed(believed, x.mean(axis=0)[None])[1][0] ** 2
    for _, y, law in mixed:
        noise, q = at_centre + law.mean_variance(y), (h - x).T @ y / len(x)
        of_gain = 4 * (at_centre * (h - x).mean(axis=0) ** 2 + law.variance(q))
        cases.append((*_squares(p.mean(axis=0) + y + y @ law.mean.T, x, h, noise), of_gain))
    means = np.array([case[0] for case in cases]) / unit**2
    within = np.array([[*case[1], case[2]] for case in cases]) / unit**4
    chances = np.ones(1)
    if mixed:
        log_odds = np.array([odds for odds, *_ in mixed])
        chances = probabilities(log_odds, _MIXES * chance if by_feature else _ASKED)
    mean, within = np.tensordot(chances, means, axes=1), np.tensordot(chances, within, axes=1)
    before, after, _ = mean
    # which case is true is as uncertain for all features at once: it does not average out
    shared = np.sqrt(chances)[:, None, None] * (means - mean)
    variances = within + (shared**2).sum(axis=0)
    if not by_feature:  # which rotation is right is less sure than linear approximations say
        variances[2] = np.maximum(variances[2], variances[0] + variances[1])
    by_data = None
    if by_feature:
        by_data = _gain_by_data(believed.plain or believed, x, h, unit)
        by_data[0][curved], by_data[1][curved] = (before - after)[curved], variances[2][curved]
    evidence = believed.evidence
    n_effective = float(len(unit)) if evidence is None else evidence.n_effective
    error = SystematicError(unit, before, after, variances, n_effective, curved, by_data)
    error = replace(error, shared=shared if mixed else None)
    if not by_feature or len(curved):  # a curve is a difference, and a matrix has no such chance
        return error
    alike = np.zeros_like(before), (((h - x) / unit) ** 2).mean(axis=0)
    return replace(error, chance=chance, alike=alike)


def _mixed(
    affine: Any,
    believed: Solution,
    rows: ComparableRows,
    lines: Array,
    Y: Array,
    images: tuple[Array, Array],
    by_feature: bool,
) -> list[tuple[float, Array, Mixing]]:
    """Return hypotheses that the true map mixes features: log odds, centred images, and law of E.

    E is relative to the believed diagonal map. If the judged map is a matrix that fits the rows
    better, E is measured from there, less the log-density of that matrix a priori. `lines` and
    `Y` are all rows, the query's mapped by the believed map and by the judged one; `images` are
    some query rows likewise.
    """
    d, (p, h) = Y.shape[1], images
    if d > (_MOST_LINES if by_feature else _MOST_MATRIX):
        return []
    badly, at_lines = mixing(rows, lines)
    if by_feature:
        return [(one.log_odds, p - p.mean(axis=0), one) for one in at_lines]
    unit = Y[~rows.is_query].std(axis=0)
    away = (affine.A / believed.scale - np.eye(d)) * unit / ones_for_zeros(unit)[:, None]
    square = affine.A @ affine.A.T
    is_rigid = np.allclose(square, square[0, 0] * np.eye(d), atol=1e-6 * square[0, 0])
    less, at_matrix = mixing(rows, Y, is_rigid)
    found = []
    for one, other in zip(at_lines, at_matrix):
        odds = other.log_odds + 0.5 * (badly - less) - 0.5 * (away**2).sum() / one.spread**2
        cases = (one.log_odds, p - p.mean(axis=0), one), (odds, h - h.mean(axis=0), other)
        found.append(max(cases, key=lambda case: case[0]))
    return found


def _bend(found: tuple[Array, Curves] | None, x: Array, p: Array, s: Array) -> Array:
    """Replace mean p and sd s at rows x by those of curves, where these are likely.

    Works in place; returns the positions of these features.
    """
    if found is None:
        return np.empty(0, dtype=np.intp)
    places, c = found
    errors = CurveErrors(c.knots, c.sd, c.sd_slopes).std(x[:, places])
    for j, own, *curve in zip(places, errors.T, c.knots, c.values, c.slopes):
        p[:, j], s[:, j] = interpolated(x[:, j], *curve), own
    return places


def _believed(solution: Solution, x: Array) -> tuple[Array, Array]:
    r"""Return mean and standard deviation of a diagonal map at rows x, (n_rows, n_features).

    Errors of the image of the centre and of the log-scale are independent, so the variance is
    :math:`se_{image}^2 + (m\, se_{\log m} (x - centre))^2`.
    """
    away, spread = x - solution.centre, solution.scale * np.asarray(solution.se_log_scale)
    mean = solution.image + solution.scale * away
    return mean, np.hypot(np.asarray(solution.se_image), spread * away)


def _of_gain(solution: Solution, x: Array, h: Array) -> Array:
    r"""Return the variance of the gain :math:`E (g - x)^2 - E (g - h)^2` of every feature.

    The gain is linear in g: up to a constant it is :math:`2 E\, g\, (h - x)`.
    """
    shift = 2 * (h - x).mean(axis=0) * np.asarray(solution.se_image)
    away = (h - x) * solution.scale * (x - solution.centre)
    return shift**2 + (2 * away.mean(axis=0) * np.asarray(solution.se_log_scale)) ** 2


def _gain_by_data(plain: Solution, x: Array, h: Array, unit: Array) -> tuple[Array, Array, Array]:
    """Return the gain of a map h by the plain map, its variance, and mean squares of h - x.

    All in variances of the reference (`unit` squared).
    """
    image = plain.image + plain.scale * (x - plain.centre)
    gain = ((image - x) ** 2 - (image - h) ** 2).mean(axis=0) / unit**2
    variance = _of_gain(plain, x, h) * np.asarray(plain.widening) ** 2 / unit**4
    return gain, variance, ((h - x) ** 2).mean(axis=0) / unit**2


def _of_curved_gain(x: Array, sd: Array) -> Array:
    """Return what the errors of curves add to the variance of the gain.

    Errors at neighbouring values are taken to be equal within each quarter of the rows and
    independent between quarters. The part of the error that all values share is that of the line,
    which `_of_gain` has.
    """
    ordered = np.take_along_axis(sd, x.argsort(axis=0), axis=0)
    parts = [part.sum(axis=0) / len(sd) for part in np.array_split(ordered, _PIECES)]
    return np.asarray((np.array(parts).reshape(_PIECES, -1) ** 2).sum(axis=0))


def _squares(p: Array, x: Array, h: Array, noise: Array) -> tuple[Array, tuple[Array, Array]]:
    r"""Return mean squares of features before, after, and their difference; variances of two.

    `noise` is the mean square of errors of p. If an error is normal with mean e and variance s^2,
    its square has the mean :math:`e^2 + s^2` and the variance :math:`4 e^2 s^2 + 2 s^4`; here with
    means over rows for both squares.
    """
    before, after = (((p - one) ** 2).mean(axis=0) for one in (x, h))
    means = np.array([before + noise, after + noise, before - after])
    return means, (4 * before * noise + 2 * noise**2, 4 * after * noise + 2 * noise**2)


def _posterior(domains: Study) -> tuple[Solution, Recipe, float]:
    """Return the default map with its posterior errors, its recipe, and the chance of a difference.

    The chance is the probability that the domains differ at all; 1 if it is not known.
    """
    settings = ConDoAdapter(divergence="likelihood").get_params(deep=False)
    [default] = candidates(settings, domains)
    if domains.is_whole and domains.gaps is None:
        fit = fit_quietly(domains, default.recipe)
        if fit.straight is not None and fit.report.fallback is None:
            chance = fit.report.chance_of_difference
            return fit.straight[1], default.recipe, 1.0 if chance is None else chance
    with quietly():
        return fit_solution(domains, default.recipe), default.recipe, 1.0
