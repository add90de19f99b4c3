"""Weights of rows, from Student's t and from unequal variances, and errors of estimates."""

from dataclasses import replace

import numpy as np
from scipy.special import gammaln

from condokit.checks import Array
from condokit.law.noise import Learned, noise_part, renew_noise, weighted
from condokit.law.stacked import FLOOR, Found, Stacked, solve
from condokit.law.subjects import Subjects

# infinity is the normal
NU = np.array([2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 8.5, 12.0, 18.0, 30.0, np.inf])
NU_BINS = 128  # bins of the logarithm of squared residuals, in which likelihoods of t are computed
_LOG_LOW, _LOG_WIDTH = -14.0, 24.0 / NU_BINS  # of bins of log squares
NU_STEPS = (0, 2, 4)  # iterations in which degrees of freedom are renewed
TAIL_PRIOR = 1.0  # times log(1 + 10 / nu) is taken off the likelihood
MOST_STEPS = 30  # iterations, at most
STILL = 0.02  # standard errors by which a scale may still move at the end
_FEWER = 0.75  # share of features that still move, below which only these go on
EXTREME = 12.0  # squared residual, in variances, of an extreme row: .0005 of normal rows
SANDWICH_ROWS = 40.0  # rows at which the sandwich has half of the weight, see `pulled`
_LARGEST = 4.0  # ratio of variances of log-scales that is believed of other features, at most
NO_MATTER = 0.1  # excess kurtosis that is too small to matter; that of t with 64 degrees of freedom


def shape(at: Stacked, found: Found) -> tuple[Array, Array]:
    """Return the kurtosis of residuals, (n_features,), and which features have heavy tails.

    Tails are heavy if the kurtosis is beyond 3 by more than chance (2.5 standard errors of a normal
    sample) and `NO_MATTER`, or if more rows are extreme than normal residuals would have.
    """
    square = found.e**2
    square /= found.sigma2 if found.v is None else found.sigma2 * found.v
    kurtosis = weighted(at.counts, square**2) / at.total.sum(1)
    extreme, n = weighted(at.counts, square > EXTREME), np.maximum(found.dof, 4.0)
    chance = 2.5 * np.sqrt(24 / n) * (1 - 3 / np.sqrt(n + 9))
    heavy = (kurtosis - 3 > np.maximum(chance, NO_MATTER)) | (extreme > 3 + 4 * 0.0005 * n)
    return kurtosis, heavy


def fit_weights(at: Stacked, found: Found, fixed: Array, tails: Array, n_effective: float) -> Found:
    """Renew variances of rows, degrees of freedom of t where there are `tails`, and scales.

    They are renewed in turn. A row's weight is (nu + 1) / (nu + r^2) over its variance, with r^2
    the squared residual in variances and corrected for leverage. Features are left as they are once
    their scales move by less than 0.02 standard errors.
    """
    noise, d = at.noise, at.X.shape[1]
    nu, s, stable = np.where(tails, 4.0, np.inf), found.s.copy(), ~tails
    w = np.ones(at.X.shape) if tails.any() else None
    v = None if noise.empty else np.ones(at.X.shape)
    learned, level = Learned.nothing(noise, d), np.inf
    e, sigma2, h = found.e, found.sigma2, found.reduced.h
    if tails.any():
        robust = (_median(np.abs(e), at.counts) / 0.6745) ** 2  # sigma2 is inflated by outliers
        sigma2 = np.where(tails & (robust > FLOOR), robust, sigma2)
    some, part = np.arange(d), at  # features that still move
    place: Array | slice = slice(None)  # the same, without copies while these are all
    for step in range(MOST_STEPS):
        precision, square = None, e**2
        square /= sigma2 * (1 - h)
        if w is not None:
            before = 1.0 if v is None else v[:, place]
            square /= before
            few = np.flatnonzero(tails[some])
            if step in NU_STEPS and len(few):
                counts, own = part.counts, some[few]
                counts = counts if counts.shape[1] == 1 else counts[:, few]
                now = degrees_of_freedom(square[:, few], counts)
                stable[own], nu[own] = (now == nu[own]) | (step == NU_STEPS[-1]), now
            finite = np.where(np.isinf(nu[some]), 1e8, nu[some])
            w[:, place] = precision = (finite + 1) / (finite + square)
        if v is not None:
            if precision is not None:
                square *= precision
                square *= before
            new, level = renew_noise(noise, square, learned, part.counts, h, n_effective, place)
            v[:, place] = new
            precision = (1.0 if precision is None else precision) / new
        found = solve(part, fixed[some], precision, s[some])
        if step > 0 and tails.any():
            _go_further(found, e, s[some], sigma2, nu[some])
        n = found.n_eff
        H = 2 * n * np.maximum(1 - n / found.dof[:, None], 0.02)  # information on log-scales
        moved = np.abs(np.log(found.s / s[some])) * np.sqrt(np.maximum(H, 1))
        s[some], e, sigma2, h = found.s, found.e, found.sigma2, found.reduced.h
        moves = ~stable[some] | (moved.max(axis=1) >= STILL)
        if (step > 2 or w is None) and not moves.any():
            break
        if step > 2 and moves.mean() < _FEWER:
            some = place = some[moves]
            e, sigma2 = e[:, moves], sigma2[moves]
            part, h = at.of(some), h if h.shape[1] == 1 else h[:, moves]
    if len(some) < d:
        precision = w if v is None else (1.0 if w is None else w) / v
        found = solve(at, fixed, precision, s)
    return replace(found, nu=nu, t_weights=w, v=v, level_precision=level, n_effective=n_effective)


def _go_further(found: Found, e: Array, s: Array, sigma2: Array, nu: Array) -> None:
    """Lengthen the step from residuals `e`, scales and variances to what was found, in place.

    Reweighting for t leaves 3 / (nu + 3) of the distance to go in variances and 2 / (nu + 3) in
    means. Steps that are longer by the inverse of what they cover end at the same place.
    """
    more = np.where(np.isinf(nu), 0.0, 3 / (2 * nu + 3))
    found.e += more * (found.e - e)
    found.s *= (found.s / s) ** more[:, None]
    found.sigma2 *= (found.sigma2 / sigma2) ** np.where(np.isinf(nu), 0.0, 3 / nu)


def _median(values: Array, counts: Array) -> Array:
    """Return the weighted median of every column, up to one row."""
    if (counts == counts[0]).all():
        return np.median(values, axis=0)
    order = np.argsort(values, axis=0)
    upto = np.cumsum(np.take_along_axis(np.broadcast_to(counts, values.shape), order, 0), axis=0)
    middle = (upto < 0.5 * upto[-1]).sum(axis=0)
    return np.take_along_axis(values, order, axis=0)[middle, np.arange(values.shape[1])]


def degrees_of_freedom(square: Array, counts: Array) -> Array:
    """Return nu of the grid with the highest likelihood less log(1 + 10 / nu), (n_features,).

    `square` are squared residuals. The scale is profiled out for every nu. The likelihood is
    computed from counts in narrow bins of log squares, so that its cost does not depend on the
    number of rows.
    """
    return nu_of_counts(log_counts(square, counts))


def log_counts(square: Array, counts: Array) -> Array:
    """Return how many squares are in each bin of their logarithm, (n_features, NU_BINS).

    The counts of blocks of rows can be added.
    """
    n, d = square.shape
    place = ((np.log(np.maximum(square, 1e-30)) - _LOG_LOW) / _LOG_WIDTH).astype(np.int64)
    place = np.clip(place, 0, NU_BINS - 1) + NU_BINS * np.arange(d)
    every = np.broadcast_to(counts, (n, d)).ravel()
    return np.bincount(place.ravel(), every, minlength=NU_BINS * d).reshape(d, NU_BINS)


def nu_of_counts(count: Array) -> Array:
    """Return the degrees of freedom of features, (n_features,), given counts of log squares."""
    d, x = len(count), np.exp(_LOG_LOW + _LOG_WIDTH * (np.arange(NU_BINS) + 0.5))
    total, product = count.sum(1), count * x
    best, found, s2 = np.full(d, -np.inf), np.full(d, np.inf), np.ones(d)
    for nu in NU:
        if np.isinf(nu):
            s2 = product.sum(1) / total
            log = -0.5 * total * np.log(s2) - 0.5 * total - 0.5 * total * np.log(2 * np.pi)
        else:
            # starts from the scale at the previous nu, which is near; fixed point of the likelihood
            for _ in range(4 if nu == NU[0] else 2):
                mean = (nu + 1) / total * (product / (x + nu * s2[:, None])).sum(1)
                s2 = s2 * mean ** ((nu + 3) / nu)
            constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi)
            fit = (count * np.log(x + nu * s2[:, None])).sum(1) - total * np.log(nu * s2)
            log = total * (constant - 0.5 * np.log(s2)) - (nu + 1) / 2 * fit
            log -= TAIL_PRIOR * np.log1p(10 / nu)
        found = np.where(log > best, nu, found)
        best = np.maximum(log, best)
    return found


def errors(at: Stacked, found: Found, b: int) -> tuple[Array, Array, Array]:
    r"""Return the variances of the log-scale of b and of the image at x0, and their covariance.

    Let r = e / (s sqrt v), a = s_b x_b / (s sqrt v) off all columns, :math:`\psi = w r`, and q the
    indicator of b. The score of the log-scale is :math:`\psi a - q n_b / N_b`. From it a multiple
    of the score of the log-variance, :math:`t = (\psi r - dof / N) / 2` times its columns, is
    subtracted, such that the two have no second derivative in common; the result is divided by 1 -
    h. With equal variances and normal residuals the multiple of t is :math:`2 n_b / dof`.

    The sandwich, squared scores over the squared curvature H, is blended with the model's variance
    (`blend`). H contains the derivative of psi, not its weights: with the curvature of the
    reweighted least squares, squared z values would double for t with 3 degrees of freedom.

    The model's information on the log-scale of normal rows is the second derivative of the profile
    likelihood, :math:`(s_b^2 Q_{bb} / s^2 - n_b) + 2 n_b (1 - n_b / dof)`. For t the first part, of
    the mean, is multiplied by :math:`\kappa = (\nu + 1) / (\nu + 3)`, the second, of the variance,
    by :math:`\nu / (\nu + 3)`.

    Rows of one subject are made independent first, and their scores are summed before they are
    squared.
    """
    red, counts, w, j = found.reduced, at.counts, found.t_weights, int(np.sum(at.others < b))
    N, N_b, n_b, dof = at.total.sum(1), at.total[:, b], found.n_eff[:, b], found.dof
    v = 1.0 if found.v is None else found.v
    root = np.sqrt(found.sigma2 * v)
    precision = w if found.v is None else np.asarray(1.0 if w is None else w) / v
    r, a = found.e / root, at.fitted(-red.T[b])
    a[at.rows[b]] += at.X[at.rows[b]]
    a = at.apart(a, precision) * (found.s[:, b] / root)
    psi = r if w is None else w * r
    nu = np.where(np.isinf(found.nu), 1e8, found.nu)
    kappa = (nu + 1) / (nu + 3)
    left = n_b * np.maximum(1 - n_b / dof, 0.02)
    quad = found.s[:, b] ** 2 * red.Q[:, b, b] / found.sigma2
    model = kappa * np.maximum(quad - n_b, 0.0) + 2 * nu / (nu + 3) * left
    bread, H = np.ones(1), quad + n_b
    freed, drop, curve = 2 * n_b / dof, 2 * n_b**2 / dof, 2 * r
    if w is not None:
        slope = (nu + 1) * (nu - r**2) / (nu + r**2) ** 2  # of psi
        curve = slope * r + psi
        bread = weighted(counts, slope) / np.maximum(weighted(counts, w), 1e-300)
        bread, H = np.clip(bread, 0.3, 1.0), weighted(counts, slope * a**2) + n_b
    if w is not None or found.v is not None:
        freed, drop = noise_part(curve, counts * a, r, counts, at.noise, found.level_precision)
    H = np.maximum(H - drop, 0.25 * model)
    t = psi * r - dof / N
    score = psi * a - 0.5 * freed * t
    score[at.rows[b]] -= n_b / N_b
    rest = 1 - red.h
    image = psi * (at.apart(at.fitted(red.link[j]), precision) / rest) * (root / (v * bread))
    score /= rest
    if at.subjects is None:
        pairs = (image, image), (score, image), (score, score)
        V_b, cov, V_sand = (weighted(counts, x * y) for x, y in pairs)
        together, count = np.ones((2, len(H))), N
    else:
        V_sand, V_b, cov, together, count = _clustered(
            score * counts, image * counts, 0.5 * t, counts, at.subjects
        )
    V_model, V_b_model = together * np.stack([1 / model, found.sigma2 * red.B[j, j] / kappa])
    return blend(V_sand / H**2, V_model, V_b, V_b_model, cov / H, count, dof)


def _clustered(
    score: Array, image: Array, excess: Array, counts: Array, subjects: Subjects
) -> tuple[Array, Array, Array, Array, Array]:
    """Sum scores over subjects and square them.

    Returns the sums of squares of image and score and of their products, the factors of
    `rows_together`, and the number of subjects.
    """
    together = rows_together(excess, image / np.maximum(counts, 1e-300), counts, subjects)
    score, image = subjects.cluster_sums(score), subjects.cluster_sums(image)
    squares = (score**2).sum(0), (image**2).sum(0), (score * image).sum(0)
    return (*squares, together, np.array([subjects.n_subjects]))


def rows_together(excess: Array, image: Array, counts: Array, subjects: Subjects) -> Array:
    """Return by what factor variances are larger than those of independent rows, (2, n_features).

    The first is that of log-scales: subjects with different variances have squared residuals that
    are alike within them. The second is that of images: repeated rows have the same residuals.
    `excess` and `image` are the rows' contributions to both.
    """
    most, ratios = float(counts.sum(0).mean()) / subjects.n_subjects, []
    for values in (excess, image):
        alone = np.maximum(weighted(counts, values**2), 1e-300)
        joint = (subjects.cluster_sums(counts * values) ** 2).sum(0)
        ratios.append(np.clip(joint / alone, 1.0, max(most, 1.0)))
    return np.stack(ratios)


def blend(
    V: Array, V_model: Array, V_b: Array, V_b_model: Array, cov: Array, count: Array, dof: Array
) -> tuple[Array, Array, Array]:
    """Blend sandwich variances V with those of the model, see `pulled`; no result is below these.

    The results for the log-scale and for the image (`V_b`) are multiplied by dof / (dof - 2).
    Returns both variances and the covariance, which is kept possible.
    """
    share, widen = count / (count + SANDWICH_ROWS), dof / np.maximum(dof - 2, 0.5)
    V = V_model * pulled(V / V_model, count) * widen
    V_b = np.maximum(V_b_model, V_b**share * V_b_model ** (1 - share)) * widen
    limit = 0.95 * np.sqrt(V * V_b)
    return V, V_b, np.clip(cov * share, -limit, limit)


def pulled(ratio: Array, count: Array) -> Array:
    """Return ratios of variances of log-scales to those of normal rows, at least 1.

    Ratios of few rows are noisy and too small. Logarithms of those of N rows or subjects have the
    weight N / (N + 40). The rest has the mean of other features, to which 40 normal rows are added.
    """
    known, share = np.clip(ratio, 0.0, _LARGEST), count / (count + SANDWICH_ROWS)
    others = count * (known.sum() - known) + SANDWICH_ROWS
    usual = np.maximum(others / (count * (len(known) - 1) + SANDWICH_ROWS), 1.0)
    return np.asarray(np.maximum(np.maximum(ratio, 0.0) ** share * usual ** (1 - share), 1.0))
