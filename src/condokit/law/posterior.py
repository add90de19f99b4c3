r"""Posterior of diagonal maps: whether devices differ, by a shift or also a scale, and how much.

Scale and image of a feature are uncorrelated at the centre x0, so a map is two numbers: the
log-scale u = log m, and the shift at x0 in residual standard deviations,
:math:`\delta = (g(x_0) - x_0) / s`. Three levels of hypotheses are averaged by their marginal
likelihoods:

- Devices. A device is the same as the reference (probability .7), is shifted, has another scale,
  or both. Effects have sizes (prior standard deviations) :math:`\tau_\delta` and :math:`\tau_u`
  that features share. One table has the prior probabilities of all pairs of sizes, since scales go
  with shifts: devices that replace each other shift by up to about 3 residual standard deviations
  and rarely have another scale; devices that are farther apart have other units or gains, with
  scales of about :math:`\tau_\delta / 4`.
- Features. If a device differs, either all of its features do or one in ten. Log-scales are normal
  around 0; shifts have a t distribution with 3 degrees of freedom.
- Estimates. A shift is normal around its estimate, or t where rows belong to few subjects. A
  log-scale has the profile likelihood of its map, tempered so that its curvature at the maximum is
  1 / V; where no likelihood is known it is normal.

Features are correlated, so d of them are the evidence of `n_effective` independent ones: the
logarithm of their likelihood is multiplied by n_effective / d. An effect that features have in
common can be an error that they share, but differences between features cannot. So log-scales that
differ are more evidence than that, and they may lie around one common gain (`_differences`). Sums
of features that hardly vary have precise shifts, and are further evidence of a difference
(`_Effects._along`).

The estimate of a shift is its posterior mean, except that the odds of a shift are squared: shifts
of which the data are not sure are what makes mapped values worse than unmapped ones.

**Several devices.** Differences from the reference have errors of covariance S, and contain the
reference's own effect: :math:`d_b = o_b - o_r + e_b`. With prior variances of the effects of the
other devices, :math:`A = (S + diag(\tau^2) + \tau_r^2 1 1')^{-1}`, what is left of :math:`d_b`
given the others is :math:`o_b` plus a normal error,

.. math:: x_b = (A d)_b / A_{bb}, \quad c_b = 1 / A_{bb} - \tau_b^2,

with c the variance of that error. This is the problem of one device. Devices are gone through in
turn, a few times; the prior of each is the usual table and what was found for the other devices.
Two domains are one device and a reference without an effect of its own: x = d and c = S.

**Units.** A scale whose 95% interval lies outside [1/3, 3] is not pulled towards one: it is a
matter of units. It is pulled towards the power of ten that explains it, thousands first; if none
does, neither scale nor shift is pulled.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import block_diag
from scipy.special import fdtri, gammaincinv, ndtri

from condokit.checks import Array
from condokit.data.subsets import subsample
from condokit.law.design import Together
from condokit.solvers.solution import Solution, joint_number

_DIFFERS = 0.3  # probability that a device differs from the reference at all,
_PURE = 0.125  # and if so, that it has another scale and no shift
_SHIFT_SDS = np.array([0.03, 0.1, 0.2, 0.4, 0.8, 1.6, 4.0])  # in residual sd
# prior probabilities of these sizes
_SHIFT_WEIGHTS = np.array([0.05, 0.05, 0.1, 0.15, 0.4, 0.15, 0.1])
_LOG_SHIFTS = np.log(_SHIFT_WEIGHTS)
_SCALED = np.array([0.14, 0.14, 0.14, 0.15, 0.2, 0.3, 0.95])  # chance of a scale beside each size
_SCALE_SDS = np.array([0.02, 0.05, 0.1, 0.2, 0.5])  # sizes of log-scales
# log sizes of scales are normal around the log of this share of the shift's size, with this sd;
# with this probability all sizes are equally likely
_SCALE_OF_SHIFT, _LOG_FACTOR, _ANY_SIZE = 0.25, 0.7, 0.1
_GAIN = 0.25  # probability that log-scales of all features lie around one gain,
_GAIN_SD = 0.3  # and the standard deviation of its logarithm
_SHARES = np.array([0.1, 1.0])  # of features that differ, if a device does,
_SHARE_WEIGHTS = np.array([0.2, 0.8])  # and their prior probabilities
_SUMS = (0.1, 0.5)  # the same for sums of features
_LARGEST_RATIO = 3.0  # scales whose interval lies beyond it, or its inverse, are not pulled to 1
_UNIT_TOLERANCE = float(np.log(1.5))  # log distance from a power of ten, at most
_FEWEST_ROWS = 8.0  # effective query rows below which intervals allow for the number of features
_MANY_ROWS = 1e6  # used where no likelihood is known, so that intervals are normal
_T_DEGREES = 3.0
_MANY_SUBJECTS = 40.0  # degrees of freedom from which errors are taken as normal
# posterior odds of a shift are raised to this power for the estimate: the mean of the posterior has
# power 1, its median is nearly a step. Doubtful shifts are the ones that make values worse
_ROUNDING = 2.0
_T_NODES = 6  # normal distributions whose mixture stands for t
_BEYOND = 25.0  # residual standard deviations beyond which that mixture is no t any more
_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_ROUNDS = 6  # passes over several devices
_MOST_FEATURES = 2000  # of which a subset decides how several devices differ
_PSEUDO_DEVICES = 2.0  # devices for which the usual table counts, beside what other devices show
_BLOCK = 1024  # features whose integrals are computed at a time
_FREE = 1e6  # prior variance of effects that are not pulled, relative to their error's


@dataclass(frozen=True)
class Maps:
    r"""Maps x to r + m (x - c) of k devices to a reference, and covariances of their errors.

    The log profile likelihood of u = log m is
    :math:`n u - \tfrac{dof}{2} \log(G_{00} + 2 e^u G_{01} + e^{2u} G_{11})`. Arrays have the shape
    (n_features, k), further axes after that, or the shape that is given.
    """

    scale: Array  # m
    centre: Array  # c, where errors of image and scale are uncorrelated
    image: Array
    cov_log: Array  # (n_features, k, k): errors of log-scales
    cov_image: Array  # (n_features, k, k): errors of images
    sd: Array  # (n_features,): of residuals
    n_effective: float  # effective number of independent features
    dof: Any = None  # (n_features,); None if no likelihood is known
    n_eff: Any = None  # n, the rows of a device that inform on its scale: less their leverage
    profile: Any = None  # (n_features, k, 3): G00, G01 and G11
    # (n_features, k): covariances of log-scale and image, nonzero for skewed residuals
    cov_both: Any = None
    nu: Any = None  # (n_features,): degrees of freedom of residuals
    df: Any = None  # (n_features,): subjects less columns of the mean, infinite without subjects
    n_apart: float = np.inf  # effective number of differences between features; see `Together`
    # (n_features, n_directions): weights of independent sums of residuals, of variance one each
    directions: Any = None
    is_gain: Any = None  # (n_features,): maps x -> m x, for features that are mostly zero
    alike: float = 0.0  # mean correlation of these features

    def of(self, features: Array) -> "Maps":
        """Return the maps of some features, which are their share of the independent ones."""
        arrays = {name: getattr(self, name)[features] for name in _MAP_ARRAYS}
        arrays["directions"] = None if self.directions is None else self.directions[features]
        share, alike = len(features) / len(self.sd), self.alike
        numbers = max(self.n_effective * share, 1.0), self.n_apart * share
        return Maps(n_effective=numbers[0], n_apart=numbers[1], alike=alike, **arrays)

    @classmethod
    def joined(cls, parts: "list[Maps]", order: Any = slice(None)) -> "Maps":
        """Join blocks of features whose arrays are all known, and put them in the given order."""
        arrays = {}
        for name in _MAP_ARRAYS:
            tables = [getattr(part, name) for part in parts]
            arrays[name] = np.concatenate(tables)[order]
        if all(part.directions is not None for part in parts):
            arrays["directions"] = block_diag(*(part.directions for part in parts))[order]
            arrays["n_apart"] = sum(part.n_apart for part in parts)
        arrays["alike"] = float(np.mean([part.alike for part in parts]))
        sizes, numbers = zip(*((len(part.sd), part.n_effective) for part in parts))
        return cls(n_effective=joint_number(np.array(sizes), np.array(numbers)), **arrays)

    def put(self, features: Array, other: "Maps", keeps_errors: bool = False) -> None:
        """Overwrite the maps of some features; with `keeps_errors` all but their covariances."""
        for name in _MAP_ARRAYS:
            if not (keeps_errors and name.startswith("cov_")):
                getattr(self, name)[features] = getattr(other, name)


_MAP_ARRAYS = (
    *("scale", "centre", "image", "cov_log", "cov_image", "cov_both"),
    *("sd", "dof", "n_eff", "profile", "nu", "df", "is_gain"),
)


@dataclass(frozen=True)
class Posterior:
    """Means and variances of log-scales and images, (n_features, k), and how devices differ."""

    log_scale: Array
    image: Array
    var_log: Array
    var_image: Array
    # (n_features, k): intervals of scales outside [1/3, 3], all features together
    other_units: Array
    differs: Array  # (k,): probability that a device differs at all,
    scaled: Array  # (k,): and that a shift is not enough


def posterior(
    solution: Solution, unit: Array, together: Together | None = None
) -> tuple[Solution, Posterior]:
    """Shrink scale and shift of every feature by the evidence of all features; two domains.

    Where no likelihood is known, `unit` is the reference's residual standard deviation,
    (n_features,), and `together` says how features correlate (None: not at all). The result has
    posterior standard deviations in place of standard errors.
    """
    maps = dict[str, Any](
        scale=solution.scale[:, None],
        centre=solution.centre[:, None],
        image=solution.image[:, None],
        cov_log=np.asarray(solution.se_log_scale)[:, None, None] ** 2,
        cov_image=np.asarray(solution.se_image)[:, None, None] ** 2,
    )
    if (known := solution.evidence) is None:
        known = Maps(**maps, sd=unit, n_effective=float(len(unit)))
        if together is not None:
            known = replace(known, **together.facts(len(unit)))
    found = posterior_of(replace(known, **maps))
    settled = replace(
        solution,
        scale=np.exp(found.log_scale[:, 0]),
        image=found.image[:, 0],
        se_log_scale=np.sqrt(found.var_log[:, 0]),
        se_image=np.sqrt(found.var_image[:, 0]),
        plain=solution,
    )
    return settled, found


def posterior_of(maps: Maps, chance: float = _DIFFERS) -> Posterior:
    """Shrink scales and shifts of all devices and features by the evidence of all of them.

    `chance` is the prior probability that a device differs.
    """
    if maps.is_gain is not None and 0 < maps.is_gain.sum() < len(maps.sd):
        return _by_kind(maps)
    log_m, sd = np.log(maps.scale), maps.sd[:, None]
    power, no_pull = _units(maps, 0.025)
    ratio, ten = 10.0**power, power * np.log(10.0)
    # the shift at x0, in the units that the power of ten suggests
    shift = (maps.image - ratio * maps.centre) / sd
    errors = maps.cov_image / sd[:, :, None] ** 2
    df = np.inf if maps.df is None else float(np.min(maps.df))
    shifts = _Effects(shift, errors, ~no_pull, _SHIFTS, df, directions=maps.directions)
    scales = _Effects(log_m - ten, maps.cov_log, ~no_pull, _SCALES, df, apart=maps.n_apart)
    (d, k), kinds = log_m.shape, (shifts, scales)
    number = min(maps.n_effective, d)
    if maps.is_gain is not None and maps.is_gain.all():  # errors of means, not of variances
        number = d / (1 + (d - 1) * maps.alike)
    start = _usual(shifts.pulled.any(), scales.pulled.any(), chance)
    prior, n_rounds = np.tile(start, (shifts.n_devices, 1, 1)), _ROUNDS if k > 1 else 1
    if k > 1 and d > 2 * _MOST_FEATURES:  # a subset decides how devices differ
        few = subsample(d, _MOST_FEATURES)
        some, n_rounds = (shifts.of(few), scales.of(few)), 2
        for _ in range(_ROUNDS - n_rounds):
            prior = _from_others(start, _round(some, prior, number / len(few)))
    for left in reversed(range(n_rounds)):
        chances = _round(kinds, prior, number / d, maps if left == 0 else None)
        prior = _from_others(start, chances)
    (delta, var_delta), (u, var_u) = (kind.result() for kind in kinds)
    outside = np.logical_or(*_units(maps, 0.025 / len(log_m)))  # for all features together
    differs, scaled = 1 - chances[:k, 0, 0], chances[:k, :, 1:].sum(axis=(1, 2))
    return Posterior(
        u + ten,
        np.where(shifts.pulled, ratio * maps.centre + delta * sd, maps.image),
        var_u,
        var_delta * sd**2,
        outside,
        np.where(outside.any(axis=0), 1.0, differs),
        np.where(outside.any(axis=0), 1.0, scaled),
    )


def _by_kind(maps: Maps) -> Posterior:
    """Shrink gains apart from other maps: where counts are multiplied, logarithms shift.

    Their prior probability of a difference is the mean of the usual one and of what other features
    showed. Both kinds are evidence of a difference, so Bayes factors are multiplied.
    """
    parts = [np.flatnonzero(~maps.is_gain), np.flatnonzero(maps.is_gain)]
    others, order = posterior_of(maps.of(parts[0])), np.argsort(np.concatenate(parts))
    chance = 0.5 * (_DIFFERS + float(others.differs.mean()))
    gains = posterior_of(maps.of(parts[1]), chance)
    arrays = {
        name: np.concatenate([getattr(one, name) for one in (others, gains)])[order]
        for name in ("log_scale", "image", "var_log", "var_image", "other_units")
    }
    yes, no = others.differs * gains.differs / chance, (1 - others.differs) * (1 - gains.differs)
    differs = yes / np.maximum(yes + no / (1 - chance), 1e-300)
    return Posterior(differs=differs, scaled=others.scaled, **arrays)


def _round(
    kinds: "tuple[_Effects, _Effects]", prior: Array, share: float, maps: Maps | None = None
) -> Array:
    """Update the effects of all devices once.

    Returns the posterior probabilities, (n_devices, 1 + n_shift_sizes, 1 + n_scale_sizes), where
    the first place is no effect. Log-scales have the profile likelihood of `maps`, or a normal one
    if that is None. Log evidence of each feature is multiplied by `share`.
    """
    shifts, scales = kinds
    for kind in kinds:
        kind.consider_others()
    chances, found = np.zeros_like(prior), []
    for b in range(shifts.n_devices):
        exact = None
        if maps is not None and b < maps.scale.shape[1] and maps.profile is not None:
            exact = _ScaleProfile(maps, b, scales.df)
        pair = shifts.level(b, share), scales.level(b, share, exact)
        shift, scale = (np.r_[0.0, evidence] for evidence, _ in pair)
        log = np.log(np.maximum(prior[b], 1e-300)) + shift[:, None] + scale
        chances[b] = np.exp(log - log.max()) * (prior[b] > 0)
        chances[b] /= chances[b].sum()
        sizes = chances[b].sum(axis=1)[1:], chances[b].sum(axis=0)[1:]
        found.append([moments @ chance for (_, moments), chance in zip(pair, sizes)])
        p = min(float(sizes[0].sum()), 1.0)
        shifts.rounded[b] = p ** (_ROUNDING - 1) / (p**_ROUNDING + (1 - p) ** _ROUNDING)
    for kind, moments in zip(kinds, zip(*found)):
        kind.learn(np.stack(moments, axis=2))
    return chances


def _units(maps: Maps, chance: float) -> tuple[Array, Array]:
    """Return the power of ten of each scale, and which other scales lie outside [1/3, 3].

    Ratios of variances of few query rows are skewed, so the interval is that of F, scaled to the
    standard error. Below `_FEWEST_ROWS` effective rows, its level is corrected for the number of
    features. `chance` is the probability beyond either side of the interval.
    """
    every = np.log(maps.scale)
    power, no_unit = np.zeros(every.shape, dtype=np.int64), np.zeros(every.shape, dtype=np.bool_)
    far = np.abs(every) > np.log(_LARGEST_RATIO)  # others lie inside, however wide the interval
    if not far.any():
        return power, no_unit
    log_m, se = every[far], np.sqrt(np.einsum("dbb->db", maps.cov_log)[far])
    n, rest = np.full(se.shape, _MANY_ROWS), np.full(se.shape, _MANY_ROWS)
    if maps.n_eff is not None and maps.dof is not None:
        n = np.maximum(np.broadcast_to(maps.n_eff, every.shape)[far], 0.5)
        dof = np.broadcast_to(np.asarray(maps.dof)[:, None], every.shape)[far]
        rest = np.maximum(dof - n, 0.5)
    level = np.where(n < _FEWEST_ROWS, min(chance, 0.025 / len(every)), chance)
    least = -float(ndtri(chance)) * se
    sides = (rest, n), (n, rest)
    up, down = (0.5 * np.abs(np.log(fdtri(a, b, 1 - level))) for a, b in sides)
    normal = np.sqrt(0.5 / n + 0.5 / rest)

    def reaches(away: Array) -> Array:
        """Return whether the interval around a log ratio overlaps [1/3, 3]."""
        width = np.where(away > 0, up, down) / normal * se
        width = np.maximum(width, least)
        return np.asarray(np.abs(away) - width <= np.log(_LARGEST_RATIO))

    # the same units if that is possible, then thousands by the same rule (mV and V), then tens
    ten = np.log(10)
    thousand = 3 * np.round(log_m / (3 * ten)).astype(np.int64)
    nearest = np.round(log_m / ten).astype(np.int64)
    same, milli = reaches(log_m), reaches(log_m - thousand * ten)
    close = np.abs(log_m - nearest * ten) < _UNIT_TOLERANCE + least
    power[far] = np.select([same, milli, close], [0, thousand, nearest], 0)
    no_unit[far] = ~(same | milli | close)
    return power, no_unit


def _usual(may_shift: bool, may_scale: bool, differs: float = _DIFFERS) -> Array:
    """Return the table of prior probabilities: no shift or its size, by no scale or its size."""
    away = np.log(_SCALE_SDS / (_SCALE_OF_SHIFT * _SHIFT_SDS)[:, None]) / _LOG_FACTOR
    sizes = np.exp(-0.5 * away**2)
    sizes *= (1 - _ANY_SIZE) / sizes.sum(axis=1, keepdims=True)
    sizes += _ANY_SIZE / len(_SCALE_SDS)
    shifted = (1 - _PURE) * _SHIFT_WEIGHTS[:, None]
    beside = np.column_stack([1 - _SCALED, _SCALED[:, None] * sizes]) * shifted
    table = np.vstack([np.r_[0.0, np.full(len(_SCALE_SDS), _PURE / len(_SCALE_SDS))], beside])
    table[1:] *= may_shift
    table[:, 1:] *= may_scale
    table *= differs / max(table.sum(), 1e-300)
    table[0, 0] = 1 - table.sum()
    return table


def _from_others(start: Array, found: Array) -> Array:
    """Return the prior of each device: the usual table and what was found for other devices.

    `start` is the usual table, which counts as two devices, and `found` are the posterior
    probabilities of all devices, (n_devices, 1 + n_shift_sizes, 1 + n_scale_sizes), as is the
    result.
    """
    counts = _PSEUDO_DEVICES * start + found.sum(axis=0) - found
    return np.asarray(counts / counts.sum(axis=(1, 2), keepdims=True))


@dataclass(frozen=True)
class _Sizes:
    """Sizes that effects of one kind may have."""

    sd: Array
    usual: float  # prior variance of effects, to begin with
    precision: Array  # of the normal distributions whose mixture is the prior, for size one


class _Effects:
    """Effects of one kind, shifts or log-scales, of all devices; the last device is the reference.

    `estimate` has the shape (n_features, k) and `S`, the covariance of its errors, (n_features, k,
    k). Only `pulled` effects are shrunk. `tau2` are present prior variances; `x` and `c` the
    estimates and error variances of each device given the others.
    """

    def __init__(
        self,
        estimate: Array,
        S: Array,
        pulled: Array,
        sizes: _Sizes,
        df: float = np.inf,
        directions: Any = None,
        apart: float = np.inf,
    ) -> None:
        self.d, self.S, self.sizes, self.directions = estimate, S, sizes, directions
        self.df, self.apart = df, apart
        self.var = np.einsum("dbb->db", S)
        self.pulled = pulled & (self.var > 0)
        p, k = estimate.shape
        self.n_devices = k + (k > 1)
        self.rounded = np.ones(self.n_devices)  # factors of means; see `_ROUNDING`
        self.tau2 = np.full((p, self.n_devices), sizes.usual)
        self.x, self.c = estimate, self.var
        self.free = (_FREE * self.var + 1) * ~self.pulled

    def of(self, features: Array) -> "_Effects":
        """Return the effects of some features, as at the beginning."""
        some = None if self.directions is None else self.directions[features]
        own = self.d[features], self.S[features], self.pulled[features]
        return _Effects(*own, self.sizes, self.df, some, self.apart)

    def consider_others(self) -> None:
        """Update x and c: each device's effect estimated given those of the others.

        The reference's effect moves all differences at once, so it is estimated by minus their
        weighted mean, x_r. A posterior difference contains it: `moved` is the part that is known
        apart from x_b, `passed` the share of x_b that belongs to it, and `rest` its remaining
        variance.
        """
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
        there = reference * np.einsum("db,db->d", sums, self.d)
        gain = reference[:, None] * sums
        self.moved = there[:, None] - gain * self.x
        self.passed = gain / precision / self.c
        left = reference - reference**2 * sums.sum(1)
        self.rest = np.maximum(left[:, None] + gain**2 / precision - self.passed**2 * self.c, 0.0)
        self.x = np.column_stack([self.x, x_r])
        self.c = np.column_stack([self.c, 1 / information])

    def at(self, b: int) -> Array:
        """Return which features of device b are pulled, (n_features,)."""
        return self.pulled[:, b] if b < self.d.shape[1] else self.pulled.any(axis=1)

    def level(
        self, b: int, share: float, exact: "_ScaleProfile | None" = None
    ) -> tuple[Array, Array]:
        """Return log evidence and moments of a device's effects, in all features or in a few.

        For each size: the log Bayes factor against no effect, and the posterior means, mean squares
        and shares kept of estimates, (3, n_features, n_sizes). `share` multiplies the log evidence
        of each feature; `exact` is the profile likelihood, if known.
        """
        at, n_sizes = self.at(b), len(self.sizes.sd)
        moments = np.zeros((3, len(self.d), n_sizes))
        if not at.any():
            return np.zeros(n_sizes), moments
        x, c = self.x[at, b], self.c[at, b]
        log, kept, square = _normal(x, c, self.sizes, self.df)
        mean = kept * x[:, None]
        if exact is not None:
            log, mean, square = exact.integrate(x, c, self.sizes, at)
        several = _SHARE_WEIGHTS if len(self.d) > 1 else np.array([0.0, 1.0])
        each, total, found = np.array([mean, square, kept]), [], []
        for part, weight in zip(_SHARES, several):
            either, own = log, each  # evidence of an effect with probability `part`
            if part < 1:
                either = np.logaddexp(np.log(part) + log, np.log(1 - part))
                own = np.exp(np.log(part) + log - either) * each
            found.append(own)
            total.append(share * either.sum(axis=0) + np.log(max(weight, 1e-300)))
        if self.sizes is _SCALES and len(x) > 1:  # errors of correlated features correlate
            apart, gain, around = _differences(
                x, c, self.sizes, share * len(x), self.apart, self.df
            )
            total[-1] += apart + np.log(1 - _GAIN)
            total.append(gain + np.log(_GAIN * several[-1]))
            found.append(around)
        evidence = np.logaddexp.reduce(total)
        moments[:, at] = sum(one * w for one, w in zip(found, np.exp(np.array(total) - evidence)))
        return evidence + self._along(x, c, at, share, evidence), moments

    def _along(self, x: Array, c: Array, at: Array, share: float, evidence: Array) -> float:
        """Return what sums of features add to the log `evidence` of all sizes.

        Features that move together show little one by one, while differences between them are
        precise. Half of the sums have an effect, or one in ten. The result is a mixture: the
        evidence of single features with probability `share` (n_effective / d, one for independent
        features), else that of sums.
        """
        use = self.directions
        if use is None or not use.shape[1] or use[~at].any():
            return 0.0
        use = use[at]
        effect = self.sizes.sd[:, None] ** 2 * np.mean(1 / c) * (use**2).sum(axis=0)
        square = (use.T @ (x / np.sqrt(c))) ** 2
        log = _evidence(square, effect, self.df)
        own = [np.logaddexp(log + np.log(p), np.log(1 - p)).sum(axis=1) for p in _SUMS]
        log = np.logaddexp.reduce(own) - np.log(len(own))
        single, sums = (np.logaddexp.reduce(one + _LOG_SHIFTS) for one in (evidence, log))
        together = np.log(max(1 - share, 1e-300)) + sums
        return float(np.logaddexp(np.log(share) + single, together) - single)

    def learn(self, moments: Array) -> None:
        """Store posterior means, mean squares and shares kept, (3, n_features, n_devices)."""
        self.mean, self.square, kept = moments
        kept = np.minimum(kept, 1 - 1e-6)
        self.tau2 = self.c * kept / (1 - kept)

    def result(self) -> tuple[Array, Array]:
        """Return posterior means and variances of differences from the reference."""
        k = self.d.shape[1]
        mean = self.mean[:, :k]
        variance = np.maximum(self.square[:, :k] - mean**2, 0.0)
        variance = variance + ((1 - self.rounded[:k]) * mean) ** 2
        mean = mean * self.rounded[:k]
        if k > 1:
            mean = self.moved + self.passed * self.x[:, :k] + (1 - self.passed) * mean
            variance = self.rest + (1 - self.passed) ** 2 * variance
        return np.where(self.pulled, mean, self.d), np.where(self.pulled, variance, self.var)


def _t_precisions(df: float) -> Array:
    """Return precisions of normals whose mixture is nearly a t: quantiles of its gamma."""
    return np.asarray(gammaincinv(df / 2, (np.arange(_T_NODES) + 0.5) / _T_NODES) / (df / 2))


_SHIFTS = _Sizes(_SHIFT_SDS, float(_SHIFT_WEIGHTS @ _SHIFT_SDS**2) / 2, _t_precisions(_T_DEGREES))
_SCALES = _Sizes(_SCALE_SDS, float(np.mean(_SCALE_SDS**2)) / 2, np.ones(1))


def _differences(
    x: Array, c: Array, sizes: _Sizes, number: float, apart: float, df: float
) -> tuple[Array, Array, Array]:
    r"""Return evidence of differences between features, and of a common gain, for each size.

    Errors of log-scales correlate by the squared correlation of features, whose mean is
    :math:`\rho = (d / n - 1) / (d - 1)` if d features are worth n. With :math:`z = x / \sqrt c`,
    :math:`a = \tau^2 / c` and :math:`a_0` the same for the gain, the mean of z has the variance
    :math:`\rho + (1 - \rho + a) / d`, and :math:`a_0` more if scales lie around a gain. Each
    difference from the mean has the variance :math:`1 - \rho + a`. The evidence is that of the mean
    and of differences that count as `apart` independent ones, d - 1 at most.

    The first result is without a gain, relative to the evidence of n independent features. The
    second is with a gain, and the third has the moments of effects around it: they are pulled
    towards the gain, and the gain towards 0.
    """
    d = len(x)
    number = min(number, d)
    rho = (d / number - 1) / (d - 1)
    own, tau2 = max(1 - rho, 1e-3), sizes.sd**2
    z, precision = x / np.sqrt(c), float(np.mean(1 / c))

    a, common = tau2 * precision, _GAIN_SD**2 * precision
    rest = min(apart, d - 1) * _evidence(np.var(z, ddof=1) / own, a / own, df)
    noise, square = rho + own / d, np.mean(z) ** 2
    level, gain = (_evidence(square / noise, (a / d + more) / noise, df) for more in (0.0, common))
    weight = 1 / (c[:, None] + tau2)
    middle = weight.T @ x / weight.sum(axis=0)
    unsure = rho / precision + 1 / weight.sum(axis=0)
    held = _GAIN_SD**2 / (_GAIN_SD**2 + unsure)
    middle, unsure = held * middle, held * unsure
    kept = tau2 * weight
    mean = middle + kept * (x[:, None] - middle)
    square = mean**2 + kept * c[:, None] + (1 - kept) ** 2 * unsure
    around = np.array([mean, square, (tau2 + middle**2) / (tau2 + middle**2 + c[:, None])])
    return level + rest - number * _evidence(np.mean(z**2), a, df), gain + rest, around


def _evidence(square: Any, effect: Array, df: float) -> Array:
    """Return log evidence of an effect, from a square of variance 1 without and 1 + effect with it.

    Errors are normal, or t with df degrees of freedom; so is their sum with the effect.
    """
    if df > _MANY_SUBJECTS:
        return np.asarray(0.5 * (square * effect / (1 + effect) - np.log1p(effect)))
    less = np.log1p(square / df) - np.log1p(square / (df * (1 + effect)))
    return np.asarray(0.5 * ((df + 1) * less - np.log1p(effect)))


def _normal(x: Array, c: Array, sizes: _Sizes, df: float) -> tuple[Array, Array, Array]:
    r"""Return log evidence against no effect, shares kept and mean squares, (n_features, n_sizes).

    With an estimate x of variance c and an effect of variance :math:`\tau^2`, the evidence is
    :math:`\sqrt{c / (c + \tau^2)} \exp(\tfrac{x^2}{2 c} \tfrac{\tau^2}{c + \tau^2})`. Errors
    of few degrees of freedom are a mixture of normals too, with precisions 1 / c times `noise`.
    """
    if len(x) > _BLOCK:
        return _joined([_normal(x[few], c[few], sizes, df) for few in _blocks(len(x))])
    # the first axis is that of the mixtures, as sums over a short last one are slow
    x, c = x[:, None], np.maximum(c, 1e-24)[:, None]
    noise = (_t_precisions(df) if df < _MANY_SUBJECTS else np.ones(1))[:, None, None]
    none = 0.5 * (np.log(noise) - noise * x**2 / c)
    none -= np.logaddexp.reduce(none, axis=0) - np.log(len(noise))
    precision = np.repeat(sizes.precision, len(noise))[:, None, None]
    none, c_of = (np.tile(one, (len(sizes.precision), 1, 1)) for one in (none, c / noise))
    ratio = c_of * precision / sizes.sd**2
    kept = 1 / (1 + ratio)
    log = none + 0.5 * (np.log(ratio * kept) + x**2 / c_of * kept)
    most = log.max(axis=0)
    weight = np.exp(log - most)
    total = weight.sum(axis=0)
    weight /= total
    share = (weight * kept).sum(axis=0)
    square = (weight * (kept * c_of + (kept * x) ** 2)).sum(axis=0)
    if len(sizes.precision) > 1:
        # far out six normals no longer form a t, whose pull fades as 1 / shift
        wide = _T_DEGREES * sizes.sd[-1] ** 2
        faint = 1 - (_T_DEGREES + 1) * c / (wide + x**2)
        beyond = np.abs(x) > _BEYOND
        share = np.where(beyond, faint, share)
        square = np.where(beyond, c + (faint * x) ** 2, square)
    return most + np.log(total / len(precision)), share, square


def _blocks(n: int) -> list[slice]:
    """Return slices of so many features each that tables of integrals stay in the cache."""
    return [slice(k, k + _BLOCK) for k in range(0, n, _BLOCK)]


def _joined(parts: list[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    """Return the tables of all blocks of features as one."""
    first, second, third = (np.concatenate(tables) for tables in zip(*parts))
    return first, second, third


@dataclass(frozen=True)
class _ScaleProfile:
    """The profile likelihood of the log-scales of a device."""

    maps: Maps
    b: int
    df: float

    def integrate(self, x: Array, c: Array, sizes: _Sizes, at: Array) -> tuple[Array, Array, Array]:
        """Return what `_normal` does, but for mean effects in place of shares.

        `x` is the distance of the maximum from no effect. Integrals use the Gauss-Hermite nodes of
        prior times a normal likelihood, each weighted by the ratio of the true likelihood to the
        normal one.
        """
        if len(x) > _BLOCK:
            own = np.flatnonzero(at)
            few = _blocks(len(x))
            return _joined([self.integrate(x[k], c[k], sizes, own[k]) for k in few])
        u0, node = np.log(self.maps.scale[at, self.b]), _NODES[:, None, None]
        weights = (_NODE_WEIGHTS / _NODE_WEIGHTS.sum())[:, None, None]
        log_weight = np.log(weights) + 0.5 * node**2
        tau2, none = sizes.sd[:, None] ** 2, u0 - x
        middle, width = x * tau2 / (tau2 + c), np.sqrt(tau2 * c / (tau2 + c))
        u = middle + width * node  # (n_nodes, n_sizes, n_features)
        log = self._log(u + none, u0, c, at)
        log -= self._log(none, u0, c, at)
        log += np.log(width / sizes.sd[:, None]) - 0.5 * u**2 / tau2
        log += log_weight
        most = log.max(axis=0)
        value = np.exp(log - most)
        total = value.sum(axis=0)
        first, second = ((value * u**power).sum(axis=0) / total for power in (1, 2))
        return (most + np.log(total)).T, first.T, second.T

    def _log(self, u: Array, u0: Array, V: Array, at: Array) -> Array:
        """Return the tempered log-likelihood at u, less that at its maximum u0."""
        G, dof = np.asarray(self.maps.profile)[at, self.b].T, np.asarray(self.maps.dof)[at]
        n = np.clip(np.asarray(self.maps.n_eff)[at, self.b], 0.25, None)
        n = np.minimum(n, 0.98 * dof)

        def log(u: Array, G: Array, n: Array, dof: Array) -> Array:
            """Return the profile log-likelihood of log-scales u."""
            m = np.exp(np.clip(u, -300, 300))
            return n * u - 0.5 * dof * np.log(np.maximum(G[0] + 2 * m * G[1] + m**2 * G[2], 1e-300))

        m = np.exp(u0)
        square = G[0] + 2 * m * G[1] + m**2 * G[2]
        first = 2 * m * (G[1] + m * G[2]) / square
        curvature = 0.5 * dof * ((2 * m * G[1] + 4 * m**2 * G[2]) / square - first**2)
        temper = 1 / (np.maximum(curvature, 1e-12) * V)
        away = temper * (log(u, G, n, dof) - log(u0, G, n, dof))
        if self.df < _MANY_SUBJECTS:  # as squares of t would
            away = -0.5 * (self.df + 1) * np.log1p(-2 * np.minimum(away, 0.0) / self.df)
        return np.asarray(away)
