r"""Regression on a few pairs, averaged over priors by their evidence.

A base map f leaves residuals of the pairs :math:`(x_i, y_i)`, for every output in units of its
standard deviation

.. math::
    r_i = y_i - f(x_i) = \alpha + \beta u_i + \gamma' \phi_i + \epsilon_i,

where u is the feature of the same name in standard units and :math:`\phi` all features along the
principal axes of the pairs. Given the variance :math:`\sigma^2` of the noise, :math:`\alpha`,
:math:`\beta` and :math:`\gamma` are normal around zero a priori, with variances
:math:`p \sigma^2`, :math:`q \sigma^2` and :math:`\kappa \sigma^2 s_k^{2 a - 2}`, s being singular
values: a = 1 is ridge regression, which hardly believes the small axes, a = 1/2 believes them more.
So r is normal with covariance :math:`\sigma^2 V`,

.. math::
    V = I + p\, 1 1' + q\, u u' + \kappa Q \operatorname{diag}(s^{2 a}) Q',

and, with :math:`\sigma^2` integrated out, has the evidence
:math:`|V|^{-1/2} (r' V^{-1} r + \nu s_0^2)^{-(n + \nu) / 2}`. Results are averages of posterior
means over a grid of p, q, :math:`\kappa` and base maps, weighted by prior and evidence. Nothing
larger than features times pairs is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import ndtri, stdtrit

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros

# variances p of a shift, standard deviations of a scale in its own units, and variances kappa
_SHIFTS = np.array([0.0, 0.1, 1.0, 10.0, 100.0])
_SHIFT_WEIGHTS = np.array([0.05, 0.1, 0.15, 0.3, 0.4])
_SCALES = np.array([0.0, 0.03, 0.1, 0.25, 1.0, 30.0])
_SCALE_WEIGHTS = np.array([0.5, 0.2, 0.15, 0.1, 0.04, 0.01])
_KAPPAS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e4)
_UNMIXED = (0.65, 0.5)  # probability that features do not mix, between like and unlike devices
_FREE = np.array([10.0, 10.0, 10.0, 10.0, 10.0, 1e4])  # q of a slope of which nothing is known
_TYPICAL = 0.05  # a guess of a device's noise before three pairs, in variances of the reference
_GUESSED = 0.01  # pairs for which that guess counts: nu
_EXACT = 1e-12  # variances below this count as zero
_NEGLIGIBLE = 1e-3  # weights of the average below this are set to zero


@dataclass(frozen=True)
class Mix:
    """Prior of how strongly other features matter to an output."""

    kappa: float = 0.0
    power: float = 1.0  # a: 1 is ridge regression
    prior: float = 1.0


def mixes(unlike: bool) -> list[Mix]:
    """Return the priors of matrices; `unlike` devices measure different things."""
    # between unlike devices small axes are not worth believing: only a = 1
    some = list(product(_KAPPAS, (1.0,) if unlike else (0.5, 1.0)))
    unmixed = _UNMIXED[int(unlike)]
    return [Mix(prior=unmixed), *(Mix(*one, (1 - unmixed) / len(some)) for one in some)]


@dataclass(frozen=True)
class Base:
    """A map that the pairs may correct, in standard units."""

    images: Array  # (n_pairs, n_outputs), of the pairs
    image: Array  # (n_outputs,): image of the centre
    slope: Array  # (n_outputs,): the diagonal of the map's matrix
    prior: float  # its probability before any pair is seen
    se: Array  # (2, n_outputs): standard errors of image and slope
    is_constant: Array | bool = False  # (n_outputs,): where nothing is known of slopes


@dataclass(frozen=True)
class Correction:
    """What is added to the average of the base maps at u: shift + slope u + matrix' axes' u."""

    weights: Array  # (n_bases, n_mixes)
    shift: Array  # (n_outputs,)
    slope: Array  # (n_outputs,)
    matrix: Array  # (n_axes, n_outputs)
    axes: Array  # (n_features, n_axes)
    # (3, n_outputs), of a diagonal map: variances of the image of the centre and of the slope, and
    # their covariance
    variances: Array | None


class Standards:
    """Pairs in standard units; all pairs of one subject count as one."""

    def __init__(
        self, U: Array, Y: Array, subjects: Array, is_square: bool, sizes: Array | float = 1.0
    ) -> None:
        # `sizes` are the relative sizes of features, if these have the same units
        self.n = len(np.unique(subjects))
        self.root = 1 / np.sqrt(np.bincount(subjects)[subjects])[:, None]
        self.Y, self.own = Y, self.root * U if is_square else np.zeros_like(Y)
        Q, size, back = np.linalg.svd(self.root * U * sizes, full_matrices=False)
        kept = size > _EXACT * max(size[0], _EXACT)
        self.Q, self.size, self.axes = Q[:, kept], size[kept], (back[kept] * sizes).T
        self.total = (size**2).sum() / U.shape[1]

    def variances(self, mix: Mix) -> Array:
        """Return prior variances along the principal axes, relative to that of the noise."""
        shares = self.size ** (2 * mix.power)
        return np.asarray(mix.kappa * self.total / max(shares.sum(), _EXACT) * shares)

    def correct(
        self, bases: Sequence[Base], mixes: Sequence[Mix], with_errors: bool = True
    ) -> Correction:
        """Return the correction averaged over base maps and priors, by prior times evidence."""
        problems = [_Residuals(self, base) for base in bases]
        like = max(problem.n_independent() for problem in problems)
        guess = _TYPICAL
        if self.n > 2:
            guess = min(float(problem.noise.mean()) for problem in problems)
        for problem in problems:
            problem.guess = guess + _EXACT
        log = np.array([[one.log_evidence(mix) for mix in mixes] for one in problems]) * like
        log += np.log([mix.prior for mix in mixes])[:, None, None] + np.log(
            np.multiply.outer(_SHIFT_WEIGHTS, _SCALE_WEIGHTS)
        )
        log += np.log([base.prior for base in bases])[:, None, None, None]
        weights = np.exp(log - log.max())
        weights[weights.sum(axis=(2, 3)) < _NEGLIGIBLE * weights.sum()] = 0.0
        weights /= weights.sum()
        shift, slope = np.zeros((2, self.Y.shape[1]))
        matrix = np.zeros((len(self.size), len(shift)))
        for i, k in zip(*np.nonzero(weights.sum(axis=(2, 3)))):
            found, w = problems[i].solve(mixes[k]), weights[i, k][..., None]
            alpha, beta = (_sum(w * part) for part in (found.alpha, found.beta))
            matrix += problems[i].along_axes(mixes[k], w.sum(), alpha, beta)
            shift, slope = shift + alpha, slope + beta
        errors = self._errors(problems, weights[:, 0], shift, slope) if with_errors else None
        return Correction(weights.sum(axis=(2, 3)), shift, slope, matrix, self.axes, errors)

    def _errors(
        self, problems: "list[_Residuals]", weights: Array, shift: Array, slope: Array
    ) -> Array:
        """Return mean squared errors of a diagonal map's image and slope; their mean product."""
        # uncertainty of the base map is included; errors are measured from the average over all
        # base maps
        share = weights.sum(axis=(1, 2))
        image = shift + share @ [one.base.image for one in problems]
        slope = slope + share @ [one.base.slope for one in problems]
        n, result = self.n + _GUESSED, np.zeros((3, len(shift)))
        wide = float(stdtrit(n, 0.975) / ndtri(0.975)) ** 2  # Student's, for so few pairs
        for problem, w in zip(problems, weights[..., None]):
            base, found = problem.base, problem.solve(Mix(), with_errors=True)
            noise = wide * found.square / n
            off = found.alpha + base.image - image, found.beta + base.slope - slope
            result[0] += _sum(w * (noise * found.of_alpha + off[0] ** 2))
            result[1] += _sum(w * (noise * found.of_beta + off[1] ** 2))
            result[2] += _sum(w * (noise * found.of_both + off[0] * off[1]))
        return result


def _sum(values: Array) -> Array:
    """Return the sum over the grid."""
    return np.asarray(values.sum(axis=(0, 1)))


@dataclass(frozen=True)
class _GridPosterior:
    """Posterior of shifts and slopes for each prior, (n_shifts, n_scales, n_outputs)."""

    alpha: Array
    beta: Array
    # variances and covariance, in those of the noise
    of_alpha: Array
    of_beta: Array
    of_both: Array
    det: Array  # of V, without kappa
    square: Array  # r' V^-1 r + nu s_0^2


class _Residuals:
    """Residuals of the pairs from a base map."""

    guess: float  # variance of the noise that is guessed, s_0^2

    def __init__(self, pairs: Standards, base: Base) -> None:
        self.pairs, self.base = pairs, base
        one, own, rest = pairs.root, pairs.own, pairs.root * (pairs.Y - base.images)
        # products of (1, u, r) with each other, and along the axes
        self.products = [(a * b).sum(axis=0) for a, b in _couples(one, own, rest)]
        self.along = [pairs.Q.T @ part for part in (one, own, rest)]
        around = rest - one * (self.products[3] / self.products[0])
        self.left = around / ones_for_zeros(np.sqrt((around**2).sum(axis=0)))
        square = (around**2).sum(axis=0)
        mean = square.mean() / (pairs.n - 1) if pairs.n > 2 else _TYPICAL
        self.noise = (square + mean) / pairs.n  # one more pair has the mean of all features

    def n_independent(self) -> float:
        """Return the effective number of independent features, by correlations of residuals."""
        n, d = self.left.shape
        gram = self.left @ self.left.T if n < d else self.left.T @ self.left
        square = float((gram**2).sum()) / d**2 - 1 / self.pairs.n
        return 1 / (1 / d + (1 - 1 / d) * min(max(square, 0.0), 1.0))

    def _variances(self) -> tuple[Array, Array]:
        """Return p and q for all priors of the grid."""
        p, tau = _SHIFTS[:, None, None], _SCALES[:, None]
        q = (tau * self.base.slope) ** 2 / (self.noise + _EXACT)
        q = np.where(self.base.is_constant, _FREE[:, None], q)
        return p, q * (self.pairs.own**2).any(axis=0)

    def solve(self, mix: Mix, with_errors: bool = False) -> "_GridPosterior":
        r"""Return the posterior for all priors of the grid; `with_errors` of the base map included.

        With :math:`P = (I + \kappa Q s^{2a} Q')^{-1}` and :math:`W = (1, u)`, the posterior mean of
        :math:`(\alpha, \beta)` is :math:`(D^{-1} + W'PW)^{-1} W'Pr` where D = diag(p, q).
        """
        take = self.pairs.variances(mix)
        take = (take / (1 + take))[:, None]
        parts = zip(self.products, _couples(*self.along))
        a, c, e, x, y, rest = (total - (take * s * t).sum(axis=0) for total, (s, t) in parts)
        p, q = self._variances()
        if with_errors:
            p, q = (v + se**2 / (self.noise + _EXACT) for v, se in zip((p, q), self.base.se))
        det = (1 + a * p) * (1 + e * q) - c**2 * p * q
        alpha = p * ((1 + e * q) * x - c * q * y) / det
        beta = q * ((1 + a * p) * y - c * p * x) / det
        square = np.maximum(rest - x * alpha - y * beta, 0.0) + _GUESSED * self.guess
        return _GridPosterior(
            alpha, beta, p * (1 + e * q) / det, q * (1 + a * p) / det, -c * p * q / det, det, square
        )

    def log_evidence(self, mix: Mix) -> Array:
        """Return the log evidence, averaged over outputs, for all priors of the grid."""
        found = self.solve(mix)
        log = np.log(found.det) + (self.pairs.n + _GUESSED) * np.log(found.square)
        return np.asarray(-0.5 * (log.mean(axis=2) + np.log1p(self.pairs.variances(mix)).sum()))

    def along_axes(self, mix: Mix, weight: float, alpha: Array, beta: Array) -> Array:
        """Return the matrix along the principal axes, given weighted sums of shifts and slopes."""
        one, own, rest = self.along
        take = self.pairs.variances(mix)
        take = take / (1 + take) / self.pairs.size
        return np.asarray(take[:, None] * (weight * rest - one * alpha - own * beta))


def _couples(one: Array, own: Array, rest: Array) -> list[tuple[Array, Array]]:
    """Return all pairs of three arrays, in the order of `products`."""
    return [(one, one), (one, own), (own, own), (one, rest), (own, rest), (rest, rest)]
