r"""Pooled likelihood of many batches: one law given the confounders, a scale and an offset each.

Per feature, with :math:`x_b` the values of batch b in units of its own and zero elsewhere,

.. math:: \sum_b s_b x_b = D \theta + \sigma \sqrt{v} \epsilon, \quad D = [U, 1_b (b \ne r)],

U the functions of the confounders, the indicators of all batches but the reference r, and those of
samples that were measured in several batches (bridges). With weights W (counts over variances v,
times those of Student's t), the penalty P of U's curves, and :math:`B = (D'WD + P)^{-1}`,

.. math::
    Q_{bc} = x_b' W x_c - (D'W x_b)' B (D'W x_c), \quad
    -\log L = \tfrac{n}{2} \log s'Qs - \sum_b n_b \log s_b, \quad n = \sum_b n_b,

:math:`n_b` the rows of b less their leverage on unpenalised columns. It does not change if all
scales are multiplied, so its minimum is that of the convex
:math:`\tfrac12 s'Qs - \sum_b n_b \log s_b`, divided by :math:`s_r` (`best_scales`). In u = log s
its second derivatives are :math:`s_b Q_{bc} s_c / \sigma^2 + diag(n) - 2 n n' / \sum n`; without
row and column r their inverse is the covariance of log-scales, along chains of batches as well.
"""

from dataclasses import dataclass, replace

import numpy as np

from condokit.checks import Array
from condokit.conditionals.curves import Products
from condokit.data.subsets import subsample
from condokit.solvers.pooled.design import effective_number
from condokit.solvers.pooled.noise import NoiseModel, renew_noise, share_levels
from condokit.solvers.pooled.rowwise import (
    LARGEST_LEVERAGE,
    NU_STEPS,
    SANDWICH_ROWS,
    degrees_of_freedom,
    heavy_tailed,
)

_NEWTON_STEPS = 60
_MOST_STEPS = 16  # of weights
_STILL = 0.02  # of a standard error
_EXTREME = 12.0
_TAIL = 4.0  # degrees of freedom of priors
_PSEUDO = 2.0  # features' worth of the mean of all batches, in the prior of each
_FEW_EFFECTS = 6.0  # effects' worth of what is usual, in that mean
_FEWEST_COMMON = 3.0  # features that may have something in common
_EM_STEPS = 40
_MOST_LEARNING = 512


@dataclass(frozen=True)
class Stacked:
    """Rows of all batches, or cells of rows with equal confounders, in units of each batch."""

    X: Array  # (n_rows, n_features): values, or means of cells
    D: Array  # (n_rows, n_columns): confounders, then all batches but the reference
    penalty: Array  # (n_columns,)
    batch: Array  # (n_rows,)
    n_batches: int
    reference: int
    counts: Array  # (n_rows,): how many rows each counts for
    noise: NoiseModel  # what the variance depends on
    inside: Array | None = None  # (n_rows, n_features): sums of squares within cells
    known: Array | None = None  # (n_rows, n_features): where values are known

    def of(self, features: Array) -> "Stacked":
        """Return some of the features."""
        parts = (
            None if table is None else table[:, features] for table in (self.inside, self.known)
        )
        inside, known = parts
        return replace(self, X=self.X[:, features], inside=inside, known=known)

    @property
    def others(self) -> Array:
        """The batches that are mapped."""
        return np.delete(np.arange(self.n_batches), self.reference)


@dataclass(frozen=True)
class Reduced:
    """What is left of the likelihood when all but the scales is projected off."""

    Q: Array  # (n_features, K, K)
    T: Array  # (n_features, n_columns, K): theta = T s
    B: Array  # (n_features or 1, n_columns, n_columns)


@dataclass(frozen=True)
class Joint:
    """Scales and offsets of all batches, what the noise is like, and the covariances of errors."""

    s: Array  # (n_features, K), that of the reference 1
    sigma2: Array  # (n_features,)
    reduced: Reduced
    n_eff: Array  # (K,)
    nu: Array  # (n_features,)
    kurtosis: Array  # (n_features,) of standardised residuals
    n_effective: float  # as how many independent features these count

    @property
    def dof(self) -> float:
        """Rows less unpenalised columns."""
        return float(self.n_eff.sum())


def best_scales(Q: Array, n: Array) -> Array:
    r"""Return the minimum of :math:`\tfrac12 s'Qs - \sum_b n_b \log s_b` by damped Newton steps."""
    diagonal = np.arange(len(n))
    s = np.sqrt(n / np.maximum(Q[:, diagonal, diagonal], 1e-12))
    for _ in range(_NEWTON_STEPS):
        gradient = np.einsum("dbc,dc->db", Q, s) - n / s
        H = Q.copy()
        H[:, diagonal, diagonal] += n / s**2
        step = np.linalg.solve(H, gradient[:, :, None])[:, :, 0]
        size = np.sqrt(np.maximum((gradient * step).sum(1), 0.0))
        share = np.where(size > 0.2, 1 / (1 + size / np.sqrt(n.min())), 1.0)
        share = np.minimum(share, 0.9 / np.maximum((step / s).max(axis=1), 1e-12))
        s = s - share[:, None] * step
        if size.max() < 1e-9:
            break
    return s


def reduce(at: Stacked, W: Array | None) -> Reduced:
    """Project features off the design, with weights of rows that all share (None) or have each."""
    shared = W is None
    w = at.counts[:, None] if W is None else W
    p, K, d = at.X.shape[1], at.n_batches, at.D.shape[1]
    gram = Products(at.D).gram(w)
    B = _inverse(gram, at.penalty)
    C, S = np.zeros((p, d, K)), np.zeros((p, K))
    for b in range(K):
        mine = at.batch == b
        weighted = at.X[mine] * (w[mine] if not shared else at.counts[mine][:, None])
        C[:, :, b] = weighted.T @ at.D[mine]
        S[:, b] = np.einsum("nd,nd->d", weighted, at.X[mine])
        if at.inside is not None:
            part = at.inside[mine] * (1.0 if shared else w[mine] / at.counts[mine][:, None])
            S[:, b] += part.sum(0)
    T = B @ C
    Q = -np.swapaxes(C, 1, 2) @ T
    Q[:, np.arange(K), np.arange(K)] += S
    return Reduced((Q + np.swapaxes(Q, 1, 2)) / 2, T, B)


def _inverse(gram: Array, penalty: Array) -> Array:
    """Return the inverse of gram + penalty, with a ridge of rounding for repeated columns."""
    size = np.einsum("...ii->...i", gram).max(-1)
    return np.linalg.inv(
        gram + np.diag(penalty) + 1e-10 * size[..., None, None] * np.eye(len(penalty))
    )


def _effective(at: Stacked, typical: Array) -> tuple[Array, Array]:
    """Return the rows of each batch less their leverage on free columns, and all leverages."""
    w = typical * at.counts
    gram = (at.D * w[:, None]).T @ at.D
    B = _inverse(gram, at.penalty)
    projected = at.D @ B
    free = at.penalty == 0
    taken = w * np.einsum("nr,nr->n", projected[:, free], at.D[:, free])
    lever = np.minimum(w * np.einsum("nr,nr->n", projected, at.D), LARGEST_LEVERAGE * at.counts)
    n = np.bincount(at.batch, at.counts - taken, at.n_batches)
    return np.maximum(n, 0.25), lever / at.counts


def fit_joint(at: Stacked, only_shift: Array) -> Joint:
    """Find scales and offsets of all batches together; `only_shift` features have no scales."""
    n, p = at.X.shape
    n_eff, h = _effective(at, np.ones(n))
    W = None if at.known is None else at.counts[:, None] * at.known
    found = _solved(at, W, n_eff, only_shift)
    if at.inside is not None:
        return _fit_cells(at, found, h, only_shift)
    square = _squares(at, found, h)
    dof = max(found.dof, 4.0)
    kurtosis = (at.counts @ square**2) / at.counts.sum()
    extreme = np.count_nonzero(square > _EXTREME, axis=0).astype(float)
    tails = heavy_tailed(kurtosis, extreme, dof) & ~only_shift
    number = effective_number(np.sqrt(square) * np.sign(residuals(at, found)), dof)
    found = replace(found, n_effective=number, kurtosis=kurtosis)
    if at.noise.empty and not tails.any():
        return found
    return _fit_weights(at, found, tails, h, only_shift)


def _solved(
    at: Stacked, W: Array | None, n_eff: Array, only_shift: Array, old: Joint | None = None
) -> Joint:
    """Return the best scales for given weights."""
    p = at.X.shape[1]
    red = reduce(at, W)
    s = best_scales(red.Q, n_eff)
    s = s / s[:, [at.reference]]
    s = np.where(only_shift[:, None], 1.0, s)
    sigma2 = np.einsum("db,dbc,dc->d", s, red.Q, s) / n_eff.sum()
    if old is not None:
        return replace(old, s=s, sigma2=np.maximum(sigma2, 1e-300), reduced=red, n_eff=n_eff)
    nothing = np.full(p, np.inf)
    return Joint(s, np.maximum(sigma2, 1e-300), red, n_eff, nothing, np.full(p, 3.0), float(p))


def residuals(at: Stacked, found: Joint) -> Array:
    """Return what the law does not explain of rows mapped to the reference."""
    theta = np.einsum("drb,db->rd", found.reduced.T, found.s)
    e = at.X * found.s.T[at.batch] - at.D @ theta
    return e if at.known is None else e * at.known


def _squares(at: Stacked, found: Joint, h: Array) -> Array:
    return residuals(at, found) ** 2 / (found.sigma2 * (1 - np.minimum(h, 0.9))[:, None])


def _fit_weights(at: Stacked, found: Joint, tails: Array, h: Array, only_shift: Array) -> Joint:
    """Renew variances, degrees of freedom of t, and scales in turn."""
    n, p = at.X.shape
    log_v, gamma = np.zeros((n, p)), np.zeros((at.noise.columns.shape[1], p))
    nu, known = np.where(tails, 4.0, np.inf), 1.0 if at.known is None else at.known
    n_eff = found.n_eff
    for step in range(_MOST_STEPS):
        v = np.exp(log_v)
        square = _squares(at, found, h) / v
        if step in NU_STEPS:
            nu = np.where(tails, degrees_of_freedom(square, at.counts), np.inf)
        finite = np.where(np.isinf(nu), 1e8, nu)
        w = (finite + 1) / (finite + square)
        if not at.noise.empty:
            lever = np.broadcast_to(h[:, None], (n, p))
            log_v, gamma, _ = renew_noise(
                at.noise, w * square * v, log_v, gamma, at.counts, lever, found.n_effective
            )
        W = w * np.exp(-log_v) * known * at.counts[:, None]
        typical = np.exp(np.log(np.maximum(W / at.counts[:, None], 1e-6)).mean(axis=1))
        n_eff, h = _effective(at, typical / np.average(typical, weights=at.counts))
        before = found.s
        found = _solved(at, W, n_eff, only_shift, found)
        moved = np.abs(np.log(found.s / before)) * np.sqrt(2 * n_eff)
        if step > 3 and moved.max() < _STILL:
            break
    square = _squares(at, found, h) / np.exp(log_v)
    kurtosis = (at.counts @ square**2) / at.counts.sum()
    return replace(found, nu=nu, kurtosis=kurtosis)


def _fit_cells(at: Stacked, found: Joint, h: Array, only_shift: Array) -> Joint:
    """Renew the variances of levels and the scales in turn, from moments of cells."""
    number = found.n_effective
    if at.noise.empty:
        return found
    group, free = at.noise.group, at.counts * (1 - np.minimum(h, 0.9))
    dof = np.broadcast_to(group(free[:, None]), (at.noise.n_categories, at.X.shape[1]))
    for _ in range(8):
        inside = np.asarray(at.inside) * found.s.T[at.batch] ** 2
        square = at.counts[:, None] * residuals(at, found) ** 2 + inside
        log_v, _ = share_levels(group(square) / found.sigma2, dof, number)
        log_v -= group(at.counts[:, None]).T @ log_v / at.counts.sum()
        W = at.counts[:, None] * np.exp(-log_v)[at.noise.category]
        before = found.s
        found = _solved(at, W, found.n_eff, only_shift, found)
        if (np.abs(np.log(found.s / before)) * np.sqrt(2 * found.n_eff)).max() < _STILL:
            break
    return found


@dataclass(frozen=True)
class Maps:
    """Maps x to r + m (x - c) of all batches but the reference, and covariances of errors.

    All but `sd` and `n_effective` have the shape (n_features, K - 1), covariances one more axis.
    """

    scale: Array
    centre: Array  # where the image is learned independently of the scale
    image: Array
    cov_log: Array  # of log-scales
    cov_image: Array
    sd: Array  # (n_features,): of residuals
    n_effective: float  # as how many independent features these count


def maps_of(at: Stacked, found: Joint) -> Maps:
    r"""Return maps and the covariances of their errors, in units of the batches.

    The image of c in batch b is :math:`s_b c - \theta_b(s)`, whose derivatives by u are
    :math:`J_{bc} = \delta_{bc} s_b c - T_{bc} s_c`, beside the covariance :math:`\sigma^2 B` at
    given scales; c makes it uncorrelated with the scale of b. Tails that are not normal multiply
    the variance of log-scales by (kurtosis - 1) / 2, or those of t with nu degrees of freedom by
    (nu + 3) / nu, and that of offsets by (nu + 3) / (nu + 1).
    """
    s, red, n, p = found.s, found.reduced, found.n_eff, len(found.s)
    K, others, dof = at.n_batches, at.others, found.dof
    H = s[:, :, None] * red.Q * s[:, None, :] / found.sigma2[:, None, None]
    H = H + np.diag(n) - 2 * np.outer(n, n) / n.sum()
    free = np.ix_(np.arange(p), others, others)
    share = dof / (dof + SANDWICH_ROWS)
    heavy = np.maximum((found.kurtosis - 1) / 2, 1.0) ** share
    nu = np.where(np.isinf(found.nu), 1e8, found.nu)
    widen = dof / max(dof - 2, 0.5)
    factor = np.where(np.isinf(found.nu), heavy, (nu + 3) / nu) * widen
    cov = np.linalg.inv(H[free] + 1e-9 * n.min() * np.eye(K - 1)) * factor[:, None, None]
    last = np.arange(at.D.shape[1] - (K - 1), at.D.shape[1])
    T = red.T[:, last] * s[:, None, :]
    theta, J = T.sum(2), -T[:, :, others]
    own = np.arange(K - 1)
    variance = cov[:, own, own]
    both = np.einsum("dbc,dcb->db", J, cov)
    centre = -both / (s[:, others] * np.where(variance > 0, variance, 1.0))
    J[:, own, own] += s[:, others] * centre
    given = found.sigma2 * (nu + 3) / (nu + 1) * widen
    cov_image = given[:, None, None] * red.B[:, last[:, None], last]
    cov_image = cov_image + J @ cov @ np.swapaxes(J, 1, 2)
    image = s[:, others] * centre - theta
    return Maps(
        s[:, others], centre, image, cov, cov_image, np.sqrt(found.sigma2), found.n_effective
    )


def towards_each_other(d: Array, S: Array, n_effective: float, usual: float) -> tuple[Array, Array]:
    r"""Return posterior means and variances of differences between batches and the reference.

    For every feature, :math:`d_b = \gamma_b + o_b - o_r + e_b`, with errors e of covariance S, and
    effects o of all batches, the reference's too, that are t distributed with 4 degrees of freedom
    and a scale for each batch, learned over features by expectation-maximisation, beside the mean
    of all batches and what is `usual`. :math:`\gamma_b` is what the features of a batch have in
    common, as far as it is more than chance. Where all differences of a feature point one way, it
    is the reference that is off.
    """
    p, k = d.shape
    some = subsample(p, max(_MOST_LEARNING // max(k // 5, 1), 64))
    noise = np.einsum("dbb->db", S)
    V = np.full(k + 1, max(float(np.median((d**2 - noise).clip(0).mean(0))) / 2, 1e-4))
    gamma, W = np.zeros(k), np.ones((len(some), k + 1))
    part = n_effective * len(some) / p
    for _ in range(_EM_STEPS):
        second, _ = _effects(d[some] - gamma, S[some], V / W)
        W = (_TAIL + 1) / (_TAIL + second / V)
        found, before = (W * second).mean(0), V
        pooled = part * found.sum() + _FEW_EFFECTS * usual**2
        pooled /= part * (k + 1) + _FEW_EFFECTS
        V = np.maximum((part * found + _PSEUDO * pooled) / (part + _PSEUDO), 1e-6)
        gamma = _common(d, noise, 2 * V[:k], n_effective)
        if (np.abs(V - before) < 1e-2 * V + 1e-5).all():
            break
    second, _ = _effects(d - gamma, S, np.broadcast_to(V, (p, k + 1)))
    _, A = _effects(d - gamma, S, V * (_TAIL + second / V) / (_TAIL + 1))
    SA = S @ A
    mean = d - np.einsum("dbc,dc->db", SA, d - gamma)
    return mean, np.maximum(noise - np.einsum("dbc,dcb->db", SA, S), 1e-12 * noise)


def _effects(d: Array, S: Array, prior: Array) -> tuple[Array, Array]:
    """Return second moments of effects given differences, and the inverse covariance of these."""
    k = d.shape[1]
    total = S + prior[:, -1, None, None]
    total[:, np.arange(k), np.arange(k)] += prior[:, :k]
    A = np.linalg.inv(total)
    z = np.einsum("dbc,dc->db", A, d)
    mean = np.column_stack([prior[:, :k] * z, -prior[:, -1] * z.sum(1)])
    inner = np.column_stack([np.einsum("dbb->db", A), A.sum((1, 2))])
    return mean**2 + np.maximum(prior - prior**2 * inner, 0.0), A


def _common(d: Array, noise: Array, V: Array, n_effective: float) -> Array:
    """Return what the features of a batch have in common, as far as it is more than chance."""
    weight = 1 / (V + noise)
    mean = (weight * d).sum(0) / weight.sum(0)
    variance = len(d) / max(n_effective, 1.0) / weight.sum(0)
    chance = variance / np.maximum(mean**2, 1e-300)
    return mean * np.maximum(1 - chance, 0.0) * (n_effective >= _FEWEST_COMMON)
