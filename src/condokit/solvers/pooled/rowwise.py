"""Estimates and errors of a batch of features from rows: normal ones, and any others."""

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.special import gammaln

from condokit.checks import Array
from condokit.data.subsets import subsample
from condokit.solvers.pooled.design import best_scale
from condokit.solvers.pooled.noise import NoiseModel, noise_part, renew_noise
from condokit.solvers.pooled.projections import (
    FLOOR,
    BasisProjection,
    Projection,
    Reduced,
    residual_variance,
)

NU = np.array([2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 8.5, 12.0, 18.0, 30.0, np.inf])
NU_BINS = 128
NU_STEPS = (1, 3, 6, 10, 15, 22)  # in which degrees of freedom are renewed
TAIL_PRIOR = 1.0
MOST_STEPS = 30
STILL = 0.02  # of a standard error
EXTREME = 12.0  # squared residual, in variances, of an extreme row
LARGEST_LEVERAGE = 0.8
SANDWICH_ROWS = 40.0
NO_MATTER = 0.1  # excess kurtosis, that of t with 64 degrees of freedom


@dataclass
class Batch:
    """Estimates in standard units; all of shape (n_features,) unless said."""

    m: Array
    red: Reduced
    s2: Array
    nu: Array
    V: Array
    V_image: Array
    covariance: Array


def fit_normal(
    projection: BasisProjection, X: Array, fixed: Array, clusters: Array | None
) -> tuple[Batch, Array, Array]:
    r"""Fit features with the weights that they share; return kurtosis and extreme rows as well.

    The scores of `_errors` in one line: with c = N_eff / dof, r = e / s and a = m y1 / s,
    :math:`\psi = r (a - c r) + c\, dof / N - q N_{eff} / N_q`, and
    :math:`H = (2 m^2 G_{11} + m G_{01}) / s^2 - 2 N_{eff}^2 / dof`.
    """
    weights, nq = projection.weights, projection.n_query
    N, d = float(weights.sum()), X.shape[1]
    dof = max(N - projection.rank, 1.0)
    red = projection.solve(X, None)
    m = np.where(np.isnan(fixed), best_scale(red.G, red.n_eff, dof), fixed)
    s2 = residual_variance(red, m, dof)
    e = projection.residuals(X, red, m)
    y1, column = projection.directions(X, red)
    n_eff = max(float(projection.n_eff), 0.25)
    c = n_eff / dof
    e /= np.sqrt(s2)
    y1 *= m / np.sqrt(s2)
    y1 -= c * e
    y1 *= e  # scores, but for a constant in each domain
    rest = 1 - np.minimum(projection.leverage[:, 0] * weights, LARGEST_LEVERAGE)
    known = np.where(np.arange(len(X)) < nq, c * dof / N - n_eff / weights[:nq].sum(), c * dof / N)
    square = e * e
    kurtosis = np.einsum("nd,nd->d", square, square) / len(X)
    extreme = np.count_nonzero(square > EXTREME, axis=0).astype(float)
    lever = column[:, 0] * weights / rest
    if clusters is None:
        g = weights / rest**2
        V_sand = np.einsum("n,nd,nd->d", g, y1, y1) + 2 * (g * known) @ y1 + g @ known**2
        V_b = (lever**2 / weights) @ square * s2
        y1 *= e
        cov = ((lever / rest) @ y1 + (lever / rest * known) @ e) * np.sqrt(s2)
        count, together = N, np.ones((2, d))
    else:
        score = (y1 + known[:, None]) * (weights / rest)[:, None]
        image = e * lever[:, None] * np.sqrt(s2)
        V_sand, V_b, cov, together, count = _clustered(
            score, image, square - dof / N, weights, clusters
        )
    quad = m**2 * red.G[2] / s2
    model = np.maximum(quad - n_eff, 0.0) + 2 * n_eff * max(1 - n_eff / dof, 0.02)
    H = np.maximum(quad + n_eff - 2 * n_eff * c, 0.25 * model)
    V_model, V_b_model = together * np.stack([1 / model, s2 / red.gqq])
    V, V_image, cov = blend(V_sand / H**2, V_model, V_b, V_b_model, cov / H, count, dof)
    red = replace(red, coefficients=())
    return Batch(m, red, s2, np.full(d, np.inf), V, V_image, cov), kurtosis, extreme


def fit_rows(
    projection: Projection,
    X: Array,
    fixed: Array,
    noise: NoiseModel | None,
    tails: Array,
    clusters: Array | None,
    n_effective: float,
) -> Batch:
    """Fit features with weights of their own: variance model, and t residuals where asked."""
    n, d = X.shape
    weights = projection.weights
    N = float(weights.sum())
    dof = max(N - projection.rank, 1.0)
    has_noise = noise is not None and not noise.empty
    nu = np.where(tails, 4.0, np.inf)
    log_v = np.zeros((n, d)) if has_noise else None
    gamma = np.zeros((noise.columns.shape[1] if noise is not None else 0, d))
    precision_level = np.inf
    some = _some_rows(X[:, 0], projection.n_query) if tails.any() else []
    red, m, e = _start(projection, X, fixed, tails, dof, some)
    s2 = residual_variance(red, m, dof)
    if tails.any():
        robust = (np.median(np.abs(e[np.concatenate(some)]), axis=0) / 0.6745) ** 2
        s2 = np.where(tails & (robust > FLOOR), robust, s2)
    leverage = np.minimum(projection.leverage * weights[:, None], LARGEST_LEVERAGE)
    h, w = leverage, np.ones((n, d))
    settled = not tails.any()
    for step in range(MOST_STEPS):
        before = m
        v = 1.0 if log_v is None else np.exp(log_v)
        square = e * e
        square /= s2 * v * (1 - h) if log_v is not None or h is not leverage else s2
        if tails.any():
            if step in NU_STEPS:
                last, nu = nu, np.where(tails, degrees_of_freedom(square, weights), np.inf)
                settled = bool((nu == last).all()) or step == NU_STEPS[-1]
            finite = np.where(np.isinf(nu), 1e8, nu)
            w = (finite + 1) / (finite + square)
        if has_noise and log_v is not None and noise is not None:
            log_v, gamma, precision_level = renew_noise(
                noise, w * square * v, log_v, gamma, weights, h, n_effective
            )
            W = np.exp(-log_v) * w
        else:
            W = w
        if not np.all(weights == 1):
            W = W * weights[:, None]
        red = projection.solve(X, W)
        m = np.where(np.isnan(fixed), best_scale(red.G, red.n_eff, dof), fixed)
        s2 = residual_variance(red, m, dof)
        e = projection.residuals(X, red, m)
        if step % 3 == 1:
            typical = np.maximum(weights @ W / N, 1e-300)
            h = np.minimum(leverage * (W / typical), LARGEST_LEVERAGE)
        H = 2 * red.n_eff * np.maximum(1 - red.n_eff / dof, 0.02)
        still = np.abs(np.log(m / before)) * np.sqrt(np.maximum(H, 1)) < STILL
        if step > 3 and settled and still.all():
            break
    typical = np.maximum(weights @ W / N, 1e-300)
    h = np.minimum(leverage * (W / typical), LARGEST_LEVERAGE)
    y1, column = projection.directions(X, red)
    V, V_image, covariance = _errors(
        projection, e, y1, column, red, m, s2, nu, w, log_v, h, noise, precision_level, clusters
    )
    red = replace(red, coefficients=())
    return Batch(m, red, s2, nu, V, V_image, covariance)


def _some_rows(x: Array, n_query: int) -> list[Array]:
    """Return at most 500 rows of either domain, evenly by value whatever the order of rows."""
    sides = np.arange(n_query), np.arange(n_query, len(x))
    return [side[np.argsort(x[side], kind="stable")][subsample(len(side), 500)] for side in sides]


def _start(
    projection: Projection, X: Array, fixed: Array, tails: Array, dof: float, some: list[Array]
) -> tuple[Reduced, Array, Array]:
    """Fit without weights; features with heavy tails again with their residuals cut."""
    red = projection.solve(X, None)
    m = np.where(np.isnan(fixed), best_scale(red.G, red.n_eff, dof), fixed)
    e = projection.residuals(X, red, m)
    if not tails.any():
        return red, m, e
    nq = projection.n_query
    for _ in range(3):
        cut = X.copy()
        sides = (slice(0, nq), m), (slice(nq, len(X)), np.ones_like(m))
        for (rows, unit), few in zip(sides, some):
            part, seen = e[rows], e[few]
            middle = np.median(seen, axis=0)
            spread = np.median(np.abs(seen - middle), axis=0) / 0.6745
            spread = np.where(tails & (spread > 0), 3 * spread, np.inf)
            limited = np.clip(part, middle - spread, middle + spread)
            cut[rows] -= (part - limited) / unit
        red = projection.solve(cut, None)
        m = np.where(np.isnan(fixed), best_scale(red.G, red.n_eff, dof), fixed)
        e = projection.residuals(X, red, m)
    return red, m, e


def degrees_of_freedom(square: Array, weights: Array) -> Array:
    r"""Return nu of the grid with the highest likelihood less log(1 + 10 / nu), per feature.

    The scale is profiled out for every nu, on counts of log squares in narrow bins.
    """
    n, d = square.shape
    low, high = -14.0, 10.0
    width = (high - low) / NU_BINS
    place = ((np.log(np.maximum(square, 1e-30)) - low) / width).astype(np.int64)
    place = np.clip(place, 0, NU_BINS - 1) + NU_BINS * np.arange(d)
    count = np.bincount(
        place.ravel(), np.broadcast_to(weights[:, None], (n, d)).ravel(), minlength=NU_BINS * d
    ).reshape(d, NU_BINS)
    x = np.exp(low + width * (np.arange(NU_BINS) + 0.5))
    total = count.sum(1)
    best, found = np.full(d, -np.inf), np.full(d, np.inf)
    for nu in NU:
        if np.isinf(nu):
            s2 = count @ x / total
            log = -0.5 * total * np.log(s2) - 0.5 * total - 0.5 * total * np.log(2 * np.pi)
        else:
            s2 = np.ones(d)
            for _ in range(12):
                s2 = (count * ((nu + 1) * x / (nu + x / s2[:, None]))).sum(1) / total
            constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi)
            fit = (count * np.log1p(x / (nu * s2[:, None]))).sum(1)
            log = total * (constant - 0.5 * np.log(s2)) - (nu + 1) / 2 * fit
            log -= TAIL_PRIOR * np.log1p(10 / nu)
        found = np.where(log > best, nu, found)
        best = np.maximum(log, best)
    return found


def heavy_tailed(kurtosis: Array, extreme: Array, n: float) -> Array:
    """Return which features have heavier tails than the normal, by moments or extreme rows."""
    chance = 2.5 * np.sqrt(24 / n) * (1 - 3 / np.sqrt(n + 9))
    return (kurtosis - 3 > max(chance, NO_MATTER)) | (extreme > 3 + 4 * 0.0005 * n)


def _errors(
    projection: Projection,
    e: Array,
    y1: Array,
    column: Array,
    red: Reduced,
    m: Array,
    s2: Array,
    nu: Array,
    w: Array,
    log_v: Array | None,
    h: Array,
    noise: NoiseModel | None,
    level_precision: float,
    clusters: Array | None,
) -> tuple[Array, Array, Array]:
    r"""Return the variances of log m and of the image at x0, and their covariance.

    With r = e / (s sqrt v), a = m y1 / (s sqrt v) (y1 off all columns), :math:`\psi = w r`, the
    scores :math:`\psi a - q N_{eff} / N_q` of log m are freed of those of the log-variance,
    :math:`t = (\psi r - 1) / 2` times its columns, by the second derivatives, and divided by 1 - h.
    Blended with the model's variance: V = max(V_model, V_sand^k V_model^(1-k)) dof / (dof - 2),
    k = N / (N + 40), N the number of rows or subjects.
    """
    weights, nq = projection.weights, projection.n_query
    n, d = e.shape
    N = float(weights.sum())
    dof = max(N - projection.rank, 1.0)
    root = np.sqrt(s2) if log_v is None else np.sqrt(s2) * np.exp(0.5 * log_v)
    r, a = e / root, y1 / root
    a *= m
    n_eff = np.maximum(red.n_eff, 0.25)
    rest = 1 - h
    psi = w * r
    finite = np.where(np.isinf(nu), 1e8, nu)
    slope = (finite + 1) * (finite - r**2) / (finite + r**2) ** 2
    curve = slope * r + psi
    kappa = (finite + 1) / (finite + 3)
    bread = np.clip((weights @ slope) / np.maximum(weights @ w, 1e-300), 0.3, 1.0)
    wa = weights[:, None] * a
    score = psi * a
    H = np.einsum("nd,nd->d", wa, slope * a) + n_eff
    L = np.maximum(np.einsum("nd,nd->d", wa, w * a) - n_eff, 0.0)
    model = kappa * L + 2 * finite / (finite + 3) * n_eff * np.maximum(1 - n_eff / dof, 0.02)
    t = 0.5 * (psi * r - dof / N)
    freed, drop = noise_part(curve, wa, r, weights, noise, level_precision)
    H = np.maximum(H - drop, 0.25 * model)
    score -= freed * t
    score[:nq] -= n_eff / weights[:nq].sum()
    score /= rest
    image = column * (weights[:, None] * w) * e / (rest * bread)
    if log_v is not None:
        image = image / np.exp(log_v)
    score *= weights[:, None]
    if clusters is None:
        V_sand = np.einsum("nd,nd->d", score, score / weights[:, None])
        V_b = np.einsum("nd,nd->d", image, image / weights[:, None])
        cov = np.einsum("nd,nd->d", score, image / weights[:, None])
        count, together = N, np.ones((2, d))
    else:
        V_sand, V_b, cov, together, count = _clustered(score, image, t, weights, clusters)
    V_model, V_b_model = together * np.stack([1 / model, s2 / red.gqq / kappa])
    return blend(V_sand / H**2, V_model, V_b, V_b_model, cov / H, count, dof)


def _clustered(
    score: Array, image: Array, excess: Array, weights: Array, clusters: Array
) -> tuple[Array, Array, Array, Array, float]:
    """Return sums of squares over subjects, how far rows go together in them, and their number.

    Variances that differ between subjects make squared residuals alike within them; copies of rows
    leave residuals alike.
    """
    n = len(score)
    total = sparse.csr_matrix((np.ones(n), (clusters, np.arange(n))))
    alone = np.maximum(weights @ excess**2, 1e-300)
    joint = ((total @ (weights[:, None] * excess)) ** 2).sum(0) / alone
    most = float(weights.sum()) / total.shape[0]
    single = np.maximum((image**2).sum(0), 1e-300)
    score, image = total @ score, total @ image
    squares = (score**2).sum(0), (image**2).sum(0), (score * image).sum(0)
    together = np.stack([np.clip(ratio, 1.0, most) for ratio in (joint, squares[1] / single)])
    return (*squares, together, float(total.shape[0]))


def blend(
    V: Array, V_model: Array, V_b: Array, V_b_model: Array, cov: Array, count: float, dof: float
) -> tuple[Array, Array, Array]:
    """Return max(V_model, V^k V_model^(1-k)) dof / (dof - 2) of both, and their covariance."""
    share = count / (count + SANDWICH_ROWS)
    widen = dof / max(dof - 2, 0.5)
    V = np.maximum(V_model, V**share * V_model ** (1 - share)) * widen
    V_b = np.maximum(V_b_model, V_b**share * V_b_model ** (1 - share)) * widen
    limit = 0.95 * np.sqrt(V * V_b)
    return V, V_b, np.clip(cov * share, -limit, limit)
