r"""Posterior of diagonal maps: whether devices differ at all, by a shift or also a scale, how far.

Scale and image of a feature are uncorrelated at the centre x0, so a map is two numbers: the
log-scale u = log m, and the shift at x0 in residual standard deviations,
:math:`\delta = (g(x_0) - x_0) / s`. Three levels are averaged by their marginal likelihoods:

- a device is the same as the reference (probability .7), is shifted, has another scale, or both;
- if it differs, so do all of its features or one in ten, and effects have a size :math:`\tau` that
  features share: log-scales are normal around 0, shifts have a t distribution with 3 degrees of
  freedom. Devices whose shifts are of the largest sizes may as well have large scales: real ones
  that replace each other shift by up to about 3 residual standard deviations;
- a shift is normal around its estimate. A log-scale has the profile likelihood of its map, tempered
  so that its curvature at the maximum is 1 / V, or a normal one where no likelihood is known.

Features are correlated, so d of them are evidence of `n_effective` independent ones: the logarithm
of their likelihood is multiplied by n_effective / d.

**Several devices.** Differences from the reference have errors of covariance S, and contain the
reference's own effect: :math:`d_b = o_b - o_r + e_b`. With prior variances of the effects of other
devices, :math:`A = (S + diag(\tau^2) + \tau_r^2 1 1')^{-1}`, and given the others, :math:`d_b` is
:math:`o_b` beside a normal error,

.. math:: x_b = (A d)_b / A_{bb}, \quad c_b = 1 / A_{bb} - \tau_b^2,

which is the problem of one device. Devices are gone through in turn, a few times; each begins with
what is usual and with what was found of the others. Two domains are one device and a reference
without an effect of its own: x = d and c = S.

A scale whose 95% interval lies outside [1/3, 3] is not pulled towards one: it is a matter of units.
It is pulled towards the power of ten that explains it, thousands first; if none does, neither scale
nor shift is pulled.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit, fdtri, gammaincinv, ndtri

from condokit.checks import Array
from condokit.data.subsets import subsample
from condokit.solvers.solution import Solution, joint_number

_DIFFERS = 0.3  # probability that a device differs from the reference at all,
_SCALED = 0.25  # and if so, that it does not only shift: half of these only scale
_SCALE_SDS = np.array([0.02, 0.05, 0.1, 0.2, 0.5])
_SCALE_WEIGHTS = np.full(5, 0.2)
# how far apart devices with shifts of these sizes are; how likely scales of such are, which sizes
_FAR = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0])
_FAR_SCALED = 0.97
_FAR_WEIGHTS = np.array([0.02, 0.03, 0.05, 0.1, 0.8])
_SHIFT_SDS = np.array([0.03, 0.1, 0.2, 0.4, 0.8, 1.6, 4.0])
_SHIFT_WEIGHTS = np.array([0.05, 0.05, 0.1, 0.15, 0.4, 0.15, 0.1])
_SHARES = np.array([0.1, 1.0])  # of features that differ,
_SHARE_WEIGHTS = np.array([0.2, 0.8])  # and how likely these are
_LARGEST_RATIO = 3.0  # scales whose interval lies beyond this, or below its inverse, keep all
_UNIT_TOLERANCE = float(np.log(1.5))  # of a power of ten that may be a change of units
_FEWEST_ROWS = 8.0  # of the query, below which features must agree on units
_MANY_ROWS = 1e6  # where no likelihood is known: intervals are normal
_T_DEGREES = 3.0
_T_NODES = 6
_BEYOND = 25.0  # residual standard deviations
_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_ROUNDS = 6  # in which several devices are gone through
_MOST_FEATURES = 2000  # that tell what several devices are like
_PSEUDO_DEVICES = 2.0  # for which what is usual counts, beside other devices
# which of the four hypotheses (the same, shifted, scaled, both) contain a shift, and a scale
_CONTAINS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
_FREE = 1e6  # prior variance of effects that are not pulled, in that of their error


@dataclass(frozen=True)
class Maps:
    r"""Maps x to r + m (x - c) of k devices to a reference, and covariances of errors.

    The profile likelihood of u = log m is
    :math:`n u - \tfrac{dof}{2} \log(G_{00} + 2 e^u G_{01} + e^{2u} G_{11})`. Arrays have the shape
    (n_features, k) and more axes.
    """

    scale: Array
    centre: Array  # where the image is learned independently of the scale
    image: Array
    cov_log: Array  # (n_features, k, k): of log-scales
    cov_image: Array
    sd: Array  # (n_features,): of residuals
    n_effective: float  # as how many independent features these count
    dof: Any = None  # (n_features,); None if no likelihood is known
    n_eff: Any = None  # n, the rows of a device that inform on its scale
    profile: Any = None  # (n_features, k, 3): G00, G01 and G11
    # covariances of log-scale and image that skewed data leave; degrees of freedom of residuals
    cov_both: Any = None
    nu: Any = None  # (n_features,)

    @classmethod
    def joined(cls, parts: "list[Maps]", order: Any = slice(None)) -> "Maps":
        """Put blocks of features together, each array being known, and order them."""
        arrays = {}
        for name in _MAP_ARRAYS:
            tables = [getattr(part, name) for part in parts]
            arrays[name] = np.concatenate(tables)[order]
        sizes, numbers = zip(*((len(part.sd), part.n_effective) for part in parts))
        return cls(n_effective=joint_number(np.array(sizes), np.array(numbers)), **arrays)

    def put(self, features: Array, other: "Maps", keeps_errors: bool = False) -> None:
        """Write other maps of some features over these, but for their errors if those are kept."""
        for name in _MAP_ARRAYS:
            if not (keeps_errors and name.startswith("cov_")):
                getattr(self, name)[features] = getattr(other, name)


_MAP_ARRAYS = (
    *("scale", "centre", "image", "cov_log", "cov_image", "cov_both"),
    *("sd", "dof", "n_eff", "profile", "nu"),
)


@dataclass(frozen=True)
class Posterior:
    """Means and variances of log-scales and images, (n_features, k), and what devices differ by."""

    log_scale: Array
    image: Array
    var_log: Array
    var_image: Array
    other_units: Array  # scales with intervals outside [1/3, 3], those of all features together
    differs: Array  # (k,): probability that there is anything to correct,
    scaled: Array  # (k,): and that it is not only a shift


def posterior(solution: Solution, unit: Array) -> tuple[Solution, Posterior]:
    """Pull scale and shift of every feature as far as all features advise.

    `unit` is the residual standard deviation of the reference, where no likelihood is known. The
    result has standard deviations of the posterior in place of standard errors.
    """
    known = solution.evidence
    maps = Maps(
        scale=solution.scale[:, None],
        centre=solution.centre[:, None],
        image=solution.image[:, None],
        cov_log=np.asarray(solution.se_log_scale)[:, None, None] ** 2,
        cov_image=np.asarray(solution.se_image)[:, None, None] ** 2,
        sd=unit if known is None else known.residual_sd,
        n_effective=float(len(unit)) if known is None else known.n_effective,
        dof=None if known is None else known.dof,
        n_eff=None if known is None else known.n_eff[:, None],
        profile=None if known is None else known.profile.T[:, None],
    )
    found = posterior_of(maps)
    settled = replace(
        solution,
        scale=np.exp(found.log_scale[:, 0]),
        image=found.image[:, 0],
        se_log_scale=np.sqrt(found.var_log[:, 0]),
        se_image=np.sqrt(found.var_image[:, 0]),
        plain=solution,
    )
    return settled, found


def posterior_of(maps: Maps) -> Posterior:
    """Pull scales and shifts of all devices and features as far as all of them advise."""
    log_m, sd = np.log(maps.scale), maps.sd[:, None]
    power, no_pull = _units(maps, 0.025)
    ratio, ten = 10.0**power, power * np.log(10.0)
    # the shift at x0, against the unit's own zero
    shift = (maps.image - ratio * maps.centre) / sd
    shifts = _Effects(shift, maps.cov_image / sd[:, :, None] ** 2, ~no_pull, _SHIFTS)
    scales = _Effects(log_m - ten, maps.cov_log, ~no_pull, _SCALES)
    (d, k), kinds = log_m.shape, (shifts, scales)
    number = min(maps.n_effective, d)
    start = _usual(shifts.pulled.any(), scales.pulled.any())
    prior, n_rounds = np.tile(start, (shifts.n_devices, 1)), _ROUNDS if k > 1 else 1
    if k > 1 and d > 2 * _MOST_FEATURES:  # some of many tell what devices are like
        few = subsample(d, _MOST_FEATURES)
        some, n_rounds = (shifts.of(few), scales.of(few)), 2
        for _ in range(_ROUNDS - n_rounds):
            prior = _from_others(start, _round(some, prior, number / len(few)))
        shifts.weights, scales.weights = (kind.weights for kind in some)
    for left in reversed(range(n_rounds)):
        chances = _round(kinds, prior, number / d, maps if left == 0 else None)
        prior = _from_others(start, chances)
    (delta, var_delta), (u, var_u) = (kind.result() for kind in kinds)
    outside = np.logical_or(*_units(maps, 0.025 / len(log_m)))
    differs, scaled = 1 - chances[:k, 0], chances[:k, 2:].sum(axis=1)
    return Posterior(
        u + ten,
        np.where(shifts.pulled, ratio * maps.centre + delta * sd, maps.image),
        var_u,
        var_delta * sd**2,
        outside,
        np.where(outside.any(axis=0), 1.0, differs),
        np.where(outside.any(axis=0), 1.0, scaled),
    )


def _round(
    kinds: "tuple[_Effects, _Effects]", prior: Array, share: float, maps: Maps | None = None
) -> Array:
    """Go through all devices once; return how likely the hypotheses of each are.

    Log-scales have the likelihood of `maps`, or a normal one; features count a `share` each.
    """
    shifts, scales = kinds
    for kind in kinds:
        kind.consider_others()
    levels = []
    for b in range(shifts.n_devices):
        exact = None
        if maps is not None and b < maps.scale.shape[1] and maps.profile is not None:
            exact = _Profile(maps, b)
        of_shift = shifts.level(b, share)
        far = float(of_shift.weights @ _FAR)  # if it is shifted
        if scales.pulled.any():
            prior[b] = _for_far_devices(prior[b], far)
        far *= float(expit(of_shift.log_evidence))
        levels.append((of_shift, scales.level(b, share, far, exact)))
    log = np.array([[one.log_evidence for one in pair] for pair in levels])
    chances = _hypotheses(prior, *log.T)
    for kind, found, chance in zip(kinds, zip(*levels), (chances @ _CONTAINS).T):
        kind.learn(found, chance)
    return chances


def _units(maps: Maps, chance: float) -> tuple[Array, Array]:
    """Return the power of ten of each scale, and which others lie outside [1/3, 3].

    Few query rows make ratios of variances that are skewed: the interval is that of F, scaled to
    the standard error. Below `_FEWEST_ROWS` it is one for all features together. `chance` is that
    of either side of the interval.
    """
    log_m, se = np.log(maps.scale), np.sqrt(np.einsum("dbb->db", maps.cov_log))
    n, rest = np.full(se.shape, _MANY_ROWS), np.full(se.shape, _MANY_ROWS)
    if maps.n_eff is not None and maps.dof is not None:
        n = np.maximum(maps.n_eff, 0.5)
        rest = np.maximum(maps.dof[:, None] - n, 0.5)
    level = np.where(n < _FEWEST_ROWS, min(chance, 0.025 / len(n)), chance)
    least = -float(ndtri(chance)) * se
    # most features have the same numbers of rows, and quantiles of F are slow
    _, one, place = np.unique((n + 1j * rest).ravel(), return_index=True, return_inverse=True)
    sides, beyond = (n.flat[one], rest.flat[one]), 1 - level.flat[one]
    up, down = (
        (0.5 * np.abs(np.log(fdtri(a, b, beyond))))[place].reshape(n.shape)
        for a, b in (sides[::-1], sides)
    )
    normal = np.sqrt(0.5 / n + 0.5 / rest)

    def reaches(away: Array) -> Array:
        """Return whether the interval around a log ratio reaches [1/3, 3]."""
        width = np.where(away > 0, up, down) / normal * se
        width = np.maximum(width, least)
        return np.asarray(np.abs(away) - width <= np.log(_LARGEST_RATIO))

    # the same units if that is possible, then thousands by the same rule (mV and V), then tens
    ten = np.log(10)
    thousand = 3 * np.round(log_m / (3 * ten)).astype(np.int64)
    nearest = np.round(log_m / ten).astype(np.int64)
    same, milli = reaches(log_m), reaches(log_m - thousand * ten)
    close = np.abs(log_m - nearest * ten) < _UNIT_TOLERANCE + least
    power = np.select([same, milli, close], [0, thousand, nearest], 0)
    return power, ~(same | milli | close)


def _usual(may_shift: bool, may_scale: bool) -> Array:
    """Return how likely the hypotheses are: the same, shifted, scaled, both."""
    usual = np.array([1 - _SCALED, _SCALED / 2, _SCALED / 2])
    usual *= [may_shift, may_scale, may_shift and may_scale]
    differs = _DIFFERS if usual.any() else 0.0
    return np.array([1 - differs, *(differs * usual / max(usual.sum(), 1e-300))])


def _for_far_devices(prior: Array, far: float) -> Array:
    """Let devices that are shifted, and `far` apart with that probability, be scaled, too."""
    shifted = prior[1] + prior[3]
    both = (1 - far) * prior[3] + far * _FAR_SCALED * shifted
    return np.array([prior[0], shifted - both, prior[2], both])


def _hypotheses(prior: Array, shift: Array, scale: Array) -> Array:
    """Return posterior probabilities of hypotheses of devices, given logarithms of evidence."""
    log = np.log(np.maximum(prior, 1e-300)) + np.stack([0 * shift, shift, scale, shift + scale], 1)
    chances = np.exp(log - log.max(axis=1, keepdims=True)) * (prior > 0)
    return np.asarray(chances / chances.sum(axis=1, keepdims=True))


def _from_others(start: Array, found: Array) -> Array:
    """Return what is usual, and what was found of all other devices, as weights for each."""
    counts = _PSEUDO_DEVICES * start + found.sum(axis=0) - found
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class _Level:
    """What features say of effects of one kind of a device, if it has any."""

    log_evidence: float  # against none
    weights: Array  # of their sizes
    mean: Array  # (n_features,)
    square: Array  # (n_features,): means of squares
    kept: Array  # (n_features,): mean shares of the estimates


@dataclass(frozen=True)
class _Sizes:
    """Sizes that effects may have, in the order of their standard deviations."""

    sd: Array
    weights: Array
    far: Array  # weights for devices that are far apart
    precision: Array  # of the normal distributions that each is a mixture of


class _Effects:
    """Effects of one kind, shifts or log-scales, of all devices, the last being the reference."""

    def __init__(self, estimate: Array, S: Array, pulled: Array, sizes: _Sizes) -> None:
        self.d, self.S, self.sizes = estimate, S, sizes
        self.var = np.einsum("dbb->db", S)
        self.pulled = pulled & (self.var > 0)
        p, k = estimate.shape
        self.n_devices = k + (k > 1)
        self.weights = np.tile(sizes.weights, (self.n_devices, 1))
        usual = float(sizes.weights @ sizes.sd**2) / 2
        self.tau2 = np.full((p, self.n_devices), usual)
        self.x, self.c = estimate, self.var
        self.free = (_FREE * self.var + 1) * ~self.pulled

    def of(self, features: Array) -> "_Effects":
        """Return some of the features, of which nothing was found yet."""
        return _Effects(self.d[features], self.S[features], self.pulled[features], self.sizes)

    def consider_others(self) -> None:
        """Find what is left of each device's differences, given those of the others."""
        k = self.d.shape[1]
        if k == 1:
            return
        own, reference = np.where(self.pulled, self.tau2[:, :k], self.free), self.tau2[:, k]
        C = self.S + own[:, :, None] * np.eye(k)
        inverse = np.linalg.inv(C)
        information = np.maximum(inverse.sum((1, 2)), 1e-300)
        x_r = -np.einsum("dbc,dc->d", inverse, self.d) / information
        A = np.linalg.inv(C + reference[:, None, None])
        sums, precision = A.sum(2), np.einsum("dbb->db", A)
        self.x = np.einsum("dbc,dc->db", A, self.d) / precision
        self.c = np.maximum(1 / precision - own, 1e-9 * self.var + 1e-300)
        # the reference's effect, of which x_b tells the share `passed`, and what is left unknown
        there = reference * np.einsum("db,db->d", sums, self.d)
        gain = reference[:, None] * sums
        self.moved = there[:, None] - gain * self.x
        self.passed = gain / precision / self.c
        left = reference - reference**2 * sums.sum(1)
        self.rest = np.maximum(left[:, None] + gain**2 / precision - self.passed**2 * self.c, 0.0)
        self.x = np.column_stack([self.x, x_r])
        self.c = np.column_stack([self.c, 1 / information])

    def at(self, b: int) -> Array:
        """Return which features of a device are pulled."""
        return self.pulled[:, b] if b < self.d.shape[1] else self.pulled.any(axis=1)

    def level(
        self, b: int, share: float, far: float = 0.0, exact: "_Profile | None" = None
    ) -> _Level:
        """Average over sizes of a device's effects, and over how many of its features have any.

        `far` is how likely it is that the device does not replace the reference.
        """
        at, zero = self.at(b), np.zeros((3, len(self.d)))
        if not at.any():
            return _Level(0.0, self.sizes.weights, *zero)
        x, c = self.x[at, b], self.c[at, b]
        log, kept, square = _normal(x, c, self.sizes)
        mean = kept * x[:, None]
        if exact is not None:
            log, mean, square = exact.integrate(x, c, self.sizes, at)
        prior, total, own = (1 - far) * self.weights[b] + far * self.sizes.far, [], []
        several = _SHARE_WEIGHTS if len(self.d) > 1 else np.array([0.0, 1.0])
        for part, weight in zip(_SHARES, several):
            either = np.logaddexp(np.log(part) + log, np.log(max(1 - part, 1e-300)))
            own.append(np.exp(np.log(part) + log - either))
            total.append(share * either.sum(axis=0) + np.log(np.maximum(prior * weight, 1e-300)))
        most = np.max(total)
        weights = np.exp(np.array(total) - most)
        evidence, weights = most + np.log(weights.sum()), weights / weights.sum()
        for place, table in zip(zero, (mean, square, kept)):
            place[at] = sum((table * mine) @ w for mine, w in zip(own, weights))
        return _Level(float(evidence), weights.sum(axis=0), *zero)

    def learn(self, levels: Any, chance: Array) -> None:
        """Take over what was found of all devices, and how likely it is that there are effects."""
        self.levels, self.chance = levels, chance
        kept = np.column_stack([one.kept for one in levels]) * chance
        kept = np.minimum(kept, 1 - 1e-6)
        self.tau2 = self.c * kept / (1 - kept)
        found = chance[:, None] * [one.weights for one in levels]
        self.weights = _from_others(self.sizes.weights, found)

    def result(self) -> tuple[Array, Array]:
        """Return means and variances of differences from the reference."""
        k = self.d.shape[1]
        mean, square = (
            np.column_stack([getattr(one, name) for one in self.levels[:k]]) * self.chance[:k]
            for name in ("mean", "square")
        )
        variance = np.maximum(square - mean**2, 0.0)
        if k > 1:
            mean = self.moved + self.passed * self.x[:, :k] + (1 - self.passed) * mean
            variance = self.rest + (1 - self.passed) ** 2 * variance
        return np.where(self.pulled, mean, self.d), np.where(self.pulled, variance, self.var)


def _t_precisions() -> Array:
    """Return precisions whose normal distributions make a t: quantiles of its gamma."""
    half = _T_DEGREES / 2
    return np.asarray(gammaincinv(half, (np.arange(_T_NODES) + 0.5) / _T_NODES) / half)


_SHIFTS = _Sizes(_SHIFT_SDS, _SHIFT_WEIGHTS, _SHIFT_WEIGHTS, _t_precisions())
_SCALES = _Sizes(_SCALE_SDS, _SCALE_WEIGHTS, _FAR_WEIGHTS, np.ones(1))


def _normal(x: Array, c: Array, sizes: _Sizes) -> tuple[Array, Array, Array]:
    r"""Return log evidence against none, shares kept and mean squares, (n_features, n_sizes).

    With an estimate x of variance c and an effect of variance :math:`\tau^2`, the evidence is
    :math:`\sqrt{c / (c + \tau^2)} \exp(\tfrac{x^2}{2 c} \tfrac{\tau^2}{c + \tau^2})`.
    """
    x, c = x[:, None, None], np.maximum(c, 1e-24)[:, None, None]
    ratio = c * sizes.precision / sizes.sd[:, None] ** 2
    kept = 1 / (1 + ratio)
    log = 0.5 * (np.log(ratio * kept) + x**2 / c * kept)
    most = log.max(axis=2, keepdims=True)
    weight = np.exp(log - most)
    total = weight.sum(axis=2)
    weight /= total[:, :, None]
    share = (weight * kept).sum(axis=2)
    square = (weight * (kept * c + (kept * x) ** 2)).sum(axis=2)
    if len(sizes.precision) > 1:
        # far out the few normals are no t any more: its pull fades as 1 / shift
        x, c = x[:, :, 0], c[:, :, 0]
        wide = _T_DEGREES * sizes.sd[-1] ** 2
        faint = 1 - (_T_DEGREES + 1) * c / (wide + x**2)
        beyond = np.abs(x) > _BEYOND
        share = np.where(beyond, faint, share)
        square = np.where(beyond, c + (faint * x) ** 2, square)
    return most[:, :, 0] + np.log(total / len(sizes.precision)), share, square


@dataclass(frozen=True)
class _Profile:
    """The profile likelihood of the log-scales of a device."""

    maps: Maps
    b: int

    def integrate(self, x: Array, c: Array, sizes: _Sizes, at: Array) -> tuple[Array, Array, Array]:
        """Return what `_normal` does with mean effects; x is how far the maximum is from none.

        Integrals are by Gauss-Hermite nodes of the product of prior and a normal likelihood, each
        weighted by the ratio of the true product to that normal.
        """
        u0, node = np.log(self.maps.scale[at, self.b]), _NODES
        log_weight = np.log(_NODE_WEIGHTS / _NODE_WEIGHTS.sum()) + 0.5 * node**2
        tau2, none = sizes.sd[:, None] ** 2, u0 - x
        middle, width = x * tau2 / (tau2 + c), np.sqrt(tau2 * c / (tau2 + c))
        u = middle[:, :, None] + width[:, :, None] * node  # (n_sizes, n_features, n_nodes)
        log = self._log(u + none[:, None], u0, c, at)
        log -= self._log(none[None, :, None], u0, c, at)
        log += np.log(width / sizes.sd[:, None])[:, :, None] - 0.5 * u**2 / tau2[:, :, None]
        log += log_weight
        most = log.max(axis=2, keepdims=True)
        value = np.exp(log - most)
        total = value.sum(axis=2)
        first, second = ((value * u**power).sum(axis=2) / total for power in (1, 2))
        return (most[:, :, 0] + np.log(total)).T, first.T, second.T

    def _log(self, u: Array, u0: Array, V: Array, at: Array) -> Array:
        """Return the logarithm of the likelihood at u less that at its maximum u0, tempered."""
        G, dof = np.asarray(self.maps.profile)[at, self.b].T, np.asarray(self.maps.dof)[at]
        n = np.clip(np.asarray(self.maps.n_eff)[at, self.b], 0.25, None)
        n = np.minimum(n, 0.98 * dof)

        def log(u: Array, G: Array, n: Array, dof: Array) -> Array:
            m = np.exp(np.clip(u, -300, 300))
            return n * u - 0.5 * dof * np.log(np.maximum(G[0] + 2 * m * G[1] + m**2 * G[2], 1e-300))

        m = np.exp(u0)
        square = G[0] + 2 * m * G[1] + m**2 * G[2]
        first = 2 * m * (G[1] + m * G[2]) / square
        curvature = 0.5 * dof * ((2 * m * G[1] + 4 * m**2 * G[2]) / square - first**2)
        temper = 1 / (np.maximum(curvature, 1e-12) * V)
        there = log(u, G[:, :, None], n[:, None], dof[:, None])
        return np.asarray(temper[:, None] * (there - log(u0, G, n, dof)[:, None]))
