r"""Many batches together: covariances of their maps, and what effects of batches have in common.

In u = log s the second derivatives of the pooled likelihood (`stacked`) are
:math:`s_b Q_{bc} s_c / \sigma^2 + diag(n) - 2 n n' / \sum n`; without row and column of the
reference their inverse is the covariance of log-scales, along chains of batches as well.
"""

from dataclasses import dataclass, replace

import numpy as np

from condokit.checks import Array
from condokit.data.subsets import subsample
from condokit.solvers.pooled.design import effective_number
from condokit.solvers.pooled.stacked import Found, Stacked, solve
from condokit.solvers.pooled.weights import SANDWICH_ROWS, fit_weights, rows_together, shape

_TAIL = 4.0  # degrees of freedom of priors
_PSEUDO = 2.0  # features' worth of the mean of all batches, in the prior of each
_FEW_EFFECTS = 6.0  # effects' worth of what is usual, in that mean
_FEWEST_COMMON = 3.0  # features that may have something in common
_EM_STEPS = 40
_MOST_LEARNING = 512


def fit_joint(
    at: Stacked, fixed: Array, number: float | None = None, may_tail: Array | bool = True
) -> Found:
    """Find scales and offsets of all batches together; `fixed` scales are not nan.

    `number` is as how many independent features these count, where residuals do not tell.
    """
    found, given = solve(at, fixed), number
    if number is None:
        number = effective_number(found.e * (at.counts > 0), float(found.dof.mean()))
    # of cells only moments are known, no single rows that could be far out
    known = given is None and at.D is not None
    tails = shape(at, found)[1] & np.isnan(fixed).any(axis=1) & known & may_tail
    if at.noise.empty and not tails.any():
        return replace(found, n_effective=number)
    return fit_weights(at, found, fixed, tails, number)


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

    def put(self, features: Array, other: "Maps") -> "Maps":
        """Return these maps with others of some features."""
        arrays = {}
        for name in ("scale", "centre", "image", "cov_log", "cov_image", "sd"):
            arrays[name] = getattr(self, name).copy()
            arrays[name][features] = getattr(other, name)
        return replace(self, **arrays)


def maps_of(at: Stacked, found: Found, shifted: Array | bool = False) -> Maps:
    r"""Return maps and the covariances of their errors, in units of the batches.

    The image of c in batch b is :math:`s_b c - \theta_b(s)`, whose derivatives by u are
    :math:`J_{bc} = \delta_{bc} s_b c - T_{bc} s_c`, beside the covariance :math:`\sigma^2 B` at
    given scales; c makes it uncorrelated with the scale of b. Tails that are not normal multiply
    the variance of log-scales by (kurtosis - 1) / 2 to the power of dof / (dof + 40), or those of t
    with nu degrees of freedom by (nu + 3) / nu, and that of offsets by (nu + 3) / (nu + 1). Scales
    of `shifted` ones are known.
    """
    s, red, n, dof = found.s, found.reduced, found.n_eff, found.dof
    K, others = at.n_batches, at.others
    H = s[:, :, None] * red.Q * s[:, None, :] / found.sigma2[:, None, None]
    H = H + n[:, None] * np.eye(K) - 2 * n[:, :, None] * n[:, None] / dof[:, None, None]
    free = np.ix_(np.arange(len(s)), others, others)
    heavy = np.maximum((shape(at, found)[0] - 1) / 2, 1.0) ** (dof / (dof + SANDWICH_ROWS))
    nu = np.where(np.isinf(found.nu), 1e8, found.nu)
    widen, together = dof / np.maximum(dof - 2, 0.5), _together(at, found)
    factor = np.where(np.isinf(found.nu), heavy, (nu + 3) / nu) * widen
    factor, widen_image = factor * together[0], widen * together[1]
    cov = np.linalg.inv(H[free] + 1e-9 * n.min() * np.eye(K - 1)) * factor[:, None, None]
    own = np.arange(K - 1)
    # too few rows for a curvature: as of scales that are estimated alone
    alone = 0.5 * np.eye(K - 1) / n[:, others, None] + 0.5 / n[:, [at.reference], None]
    unsure = ~(cov[:, own, own] > 0).all(axis=1)
    cov = np.where(unsure[:, None, None], alone * factor[:, None, None], cov)
    cov = np.where(np.reshape(shifted, (-1, 1, 1)), 0.0, cov)
    T = np.moveaxis(red.T[:, 1 - K :], (0, 2), (2, 0)) * s[:, None, :]
    theta, J = T.sum(2), -T[:, :, others]
    variance = cov[:, own, own]
    both = np.einsum("dbc,dcb->db", J, cov)
    centre = -both / (s[:, others] * np.where(variance > 0, variance, 1.0))
    J[:, own, own] += s[:, others] * centre
    given = found.sigma2 * (nu + 3) / (nu + 1) * widen_image
    cov_image = given[:, None, None] * np.moveaxis(red.B, 2, 0)
    cov_image = cov_image + J @ cov @ np.swapaxes(J, 1, 2)
    image = s[:, others] * centre - theta
    return Maps(
        s[:, others],
        centre,
        image,
        cov,
        cov_image,
        np.sqrt(found.sigma2 * (1 + at.rho)),
        found.n_effective,
    )


def _together(at: Stacked, found: Found) -> Array:
    """Return by how much variances of log-scales and images are larger for rows of subjects."""
    if at.subjects is None:
        return np.ones((2, len(found.s)))
    root = np.sqrt(found.sigma2 if found.log_v is None else found.sigma2 * np.exp(found.log_v))
    r = found.e / root
    psi = r if found.t_weights is None else found.t_weights * r
    return rows_together(psi * r - found.dof / at.total.sum(1), psi, at.counts, at.subjects)


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
