r"""How far a value is systematically off before and after a map, and how sure we are of it.

What the default estimator believes of the true map g at a query row x is a posterior mean p(x) and
standard deviation s(x), whichever way the map h was found. In standard deviations of the reference,
averaged over rows and features,

.. math:: before^2 = E (p - x)^2 + E s^2, \qquad after^2 = E (p - h)^2 + E s^2,

whose difference is linear in g. Features that are likely no straight line, by the evidence that
map="auto" goes by, have p and s of their curve, whichever kind of map h is: a line does not hide
what a curve finds beyond it. Features count as `n_effective` independent ones. Beside a matrix, s
is the sampling error of h instead, and p what a diagonal map of the mapped rows finds left; before
and after then count as independent. Squares are approximated by multiples of chi-squared variables
with the same mean and variance.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import gammaincinv

from condokit.adapter import ConDoAdapter
from condokit.checks import Array, quietly
from condokit.data.arrays import ONE_SIDED_95, ones_for_zeros
from condokit.data.links import apply as apply_links
from condokit.data.study import Study
from condokit.data.subsets import subsample
from condokit.data.tables import Table
from condokit.fit.choose import candidates
from condokit.fit.fit_map import Recipe, fit_solution, likely_curves
from condokit.maps.base import Map
from condokit.maps.formula import interpolated
from condokit.maps.standard_errors import CurveErrors
from condokit.solvers.solution import Curves, Solution
from condokit.trust.blocks import ComparableRows
from condokit.trust.bootstrap import bootstrap

_MOST_VALUES = 2_000_000
_FEWEST_ROWS = 100
_FALLS = 0.55  # of the error before, see `SystematicError.is_lowered`
_N_RESAMPLES = 20
_PIECES = 4  # of a curve, whose errors are nearly independent


@dataclass(frozen=True)
class SystematicError:
    """Squared errors of features before and after a map, in standard deviations."""

    unit: Array  # standard deviations of the reference
    before: Array
    after: Array
    # variances of these, and that of their difference
    variances: tuple[Array, Array, Array]
    n_effective: float  # as how many independent features these count
    # places of features that are likely no straight line
    curved: Array = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    # what the map takes off the square by the plain map, which nothing pulls, its variance, and
    # the squares by which the map moves values
    plain: tuple[Array, Array, Array] | None = None

    def rms(self, which: int) -> tuple[float, tuple[float, float]]:
        """Return the root of the mean square over features (0 before, 1 after), its interval."""
        square = float((self.before, self.after)[which].mean())
        size, sd = np.sqrt(square), np.sqrt(self._of_mean(self.variances[which]))
        if sd <= 1e-6 * square:
            return size, (size, size)
        half = (square / sd) ** 2  # of the degrees of freedom of chi-squared
        low, high = np.sqrt(square / half * gammaincinv(half, [0.025, 0.975]))
        return float(size), (float(low), float(high))

    @property
    def believed(self) -> tuple[Array, Array]:
        """What the map takes off the square of every feature, and its variance."""
        return self.before - self.after, self.variances[2]

    @property
    def told(self) -> tuple[Array, Array, Array]:
        """The same as data alone tell, and the squares by which the map moves values."""
        gain, variance = self.believed  # where nothing else is known, of a map that is believed
        return self.plain or (gain, variance, np.maximum(gain, 0.0))

    @property
    def gain(self) -> tuple[float, float]:
        """Lower and upper 95% limits, each one-sided, of what the map takes off the square."""
        mean = float((self.before - self.after).mean())
        reach = ONE_SIDED_95 * np.sqrt(self._of_mean(self.variances[2]))
        return mean - reach, mean + reach

    @property
    def is_lowered(self) -> bool:
        """Whether the map lowers the error: at the 95% limit, or nearly to half of it.

        The latter is enough if data alone say at their limit that the map gains: what is believed
        besides is often sure that an error falls a lot before it is sure by how much.
        """
        told, variance, _ = self.told
        sure = float(told.mean()) > ONE_SIDED_95 * np.sqrt(self._of_mean(variance))
        falls = float(self.after.mean()) < _FALLS**2 * float(self.before.mean())
        return self.gain[0] > 0 or bool(sure and falls)

    def with_strata(self, square: Array, variance: Array, is_line: bool) -> "SystematicError":
        """Add how far the maps of strata are from one map, which no one map takes away."""
        added = np.ones(len(square))
        if is_line:
            added[self.curved] = 0.0  # what a curve explains counts once
        square, variance = added * square, added * variance
        before, after, gain = self.variances
        variances = before + variance, after + variance, gain
        return replace(
            self, before=self.before + square, after=self.after + square, variances=variances
        )

    def _of_mean(self, variances: Array) -> float:
        return float(variances.mean()) / self.n_effective


def systematic_error(
    affine: Map,
    adapter: ConDoAdapter | None,
    domains: Study,
    rows: ComparableRows,
    is_learned_here: bool,
) -> SystematicError | None:
    """Return what is known of the error of a map; None if nothing is."""
    domains = replace(domains, links=affine.links)
    number = np.flatnonzero(rows.is_query)
    n = max(_MOST_VALUES // max(domains.n_features, 1), _FEWEST_ROWS)
    number = number[subsample(len(number), n)]
    x, reference = rows.before[number], rows.after[~rows.is_query]
    if affine.links is not None:
        labels = domains.tables[0].labels
        x, reference = (apply_links(affine.links, part, labels, "X") for part in (x, reference))
    h = affine.without_links(x)
    unit = np.sqrt(ones_for_zeros(reference.var(axis=0)))
    try:
        believed, recipe = _posterior(domains)
        p, s = _believed(believed, x)
        by_feature = affine.kind in ("diagonal", "monotone")
        found = likely_curves(domains, recipe, believed) if by_feature else None
        curved = _bend(found, x, p, s)
        if not by_feature:
            left, own = _believed(_posterior(_mapped(domains, rows))[0], h)
            if is_learned_here:
                own = np.maximum(own, _sampling_error(adapter, domains, x))
    except (ValueError, FloatingPointError):
        return None
    before, of_before = _square((p - x) / unit, s / unit)
    told = None
    if by_feature:
        after, of_after = _square((p - h) / unit, s / unit)
        gain = _of_gain(believed, x, h)
        gain[curved] += _of_curved_gain(x[:, curved], (2 * np.abs(h - x) * s)[:, curved])
        gain = gain / unit**4
        told = _told(believed.plain or believed, x, h, unit)
        told[0][curved], told[1][curved] = (before - after)[curved], gain[curved]
    else:
        after, of_after = _square((left - h) / unit, own / unit)
        gain = of_before + of_after
    known = believed.evidence
    n_effective = float(len(unit)) if known is None else known.n_effective
    variances = of_before, of_after, gain
    return SystematicError(unit, before, after, variances, n_effective, curved, told)


def _bend(found: tuple[Array, Curves] | None, x: Array, p: Array, s: Array) -> Array:
    """Put curves in the place of lines, where they are likely; return where."""
    if found is None:
        return np.empty(0, dtype=np.intp)
    places, c = found
    errors = CurveErrors(c.knots, c.sd, c.sd_slopes).std(x[:, places])
    for j, own, *curve in zip(places, errors.T, c.knots, c.values, c.slopes):
        p[:, j], s[:, j] = interpolated(x[:, j], *curve), own
    return places


def _believed(solution: Solution, x: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of the map at rows."""
    away, spread = x - solution.centre, solution.scale * np.asarray(solution.se_log_scale)
    mean = solution.image + solution.scale * away
    return mean, np.hypot(np.asarray(solution.se_image), spread * away)


def _of_gain(solution: Solution, x: Array, h: Array) -> Array:
    r"""Return the variance of :math:`E (g - x)^2 - E (g - h)^2`, which is linear in g."""
    shift = 2 * (h - x).mean(axis=0) * np.asarray(solution.se_image)
    away = (h - x) * solution.scale * (x - solution.centre)
    return shift**2 + (2 * away.mean(axis=0) * np.asarray(solution.se_log_scale)) ** 2


def _told(plain: Solution, x: Array, h: Array, unit: Array) -> tuple[Array, Array, Array]:
    """Return what a map gains by the plain one, the variance of that, and by how much it moves."""
    image = plain.image + plain.scale * (x - plain.centre)
    gain = ((image - x) ** 2 - (image - h) ** 2).mean(axis=0) / unit**2
    variance = _of_gain(plain, x, h) * np.asarray(plain.widening) ** 2 / unit**4
    return gain, variance, ((h - x) ** 2).mean(axis=0) / unit**2


def _of_curved_gain(x: Array, sd: Array) -> Array:
    """Return the same of curves: errors go together among neighbouring values, a quarter of rows.

    What goes together at all values is the error of the line that is bent.
    """
    ordered = np.take_along_axis(sd, x.argsort(axis=0), axis=0)
    parts = [part.sum(axis=0) / len(sd) for part in np.array_split(ordered, _PIECES)]
    return np.asarray((np.array(parts).reshape(_PIECES, -1) ** 2).sum(axis=0))


def _square(error: Array, sd: Array) -> tuple[Array, Array]:
    """Return mean and variance of the squared error of features."""
    square, noise = (error**2).mean(axis=0), (sd**2).mean(axis=0)
    return square + noise, 4 * square * noise + 2 * noise**2


def _posterior(domains: Study) -> tuple[Solution, Recipe]:
    """Return the default map of these domains, with the sds of its posterior, and its recipe."""
    settings = ConDoAdapter(divergence="likelihood").get_params(deep=False)
    [default] = candidates(settings, domains)
    with quietly():
        return fit_solution(domains, default.recipe), default.recipe


def _mapped(domains: Study, rows: ComparableRows) -> Study:
    """Return the comparable rows as domains, those of the query mapped."""
    taken = rows.row_number
    confounders = [
        replace(c, codes=c.codes[taken]) if c.values is None else replace(c, values=c.values[taken])
        for c in domains.confounders
    ]
    groups = None if domains.groups is None else domains.groups[taken]
    code = (~rows.is_query).astype(np.intp)
    return Study((Table(rows.after),), code, confounders, groups=groups)


def _sampling_error(adapter: ConDoAdapter | None, domains: Study, x: Array) -> Array:
    """Return the standard error of mapped rows, of resampled ones if no other is known."""
    if adapter is None:
        raise ValueError("A map alone does not tell its errors.")
    errors = adapter.errors_
    if errors is None:
        with quietly():
            errors = bootstrap(adapter, domains, domain=None, n_resamples=_N_RESAMPLES).errors
        adapter.errors_ = None
    return errors.std(x)
