r"""Many batches together: their maps, and covariances of these.

In u = log s the second derivatives of the pooled likelihood (`stacked`) are
:math:`s_b Q_{bc} s_c / \sigma^2 + diag(n) - 2 n n' / \sum n`; without row and column of the
reference their inverse is the covariance of log-scales, along chains of batches as well.
"""

from dataclasses import replace

import numpy as np

from condokit.checks import Array
from condokit.solvers.pooled.design import effective_number
from condokit.solvers.pooled.stacked import Found, Stacked, solve
from condokit.solvers.pooled.weights import SANDWICH_ROWS, fit_weights, rows_together, shape
from condokit.solvers.posterior import Maps


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
    # of each batch, all others being given
    whole = np.einsum("dbc,dc->db", red.Q, s)
    own_square = np.einsum("dbb->db", red.Q)[:, others]
    product = whole[:, others] - own_square * s[:, others]
    rest = (whole * s).sum(1)[:, None] - 2 * s[:, others] * product - s[:, others] ** 2 * own_square
    return Maps(
        s[:, others],
        centre,
        image,
        cov,
        cov_image,
        sd=np.sqrt(found.sigma2 * (1 + at.rho)),
        n_effective=found.n_effective,
        dof=np.broadcast_to(dof, len(s)),
        n_eff=np.broadcast_to(n[:, others], s[:, others].shape),
        profile=np.stack([rest, product, own_square], axis=2) / found.sigma2[:, None, None],
    )


def _together(at: Stacked, found: Found) -> Array:
    """Return by how much variances of log-scales and images are larger for rows of subjects."""
    if at.subjects is None:
        return np.ones((2, len(found.s)))
    root = np.sqrt(found.sigma2 if found.log_v is None else found.sigma2 * np.exp(found.log_v))
    r = found.e / root
    psi = r if found.t_weights is None else found.t_weights * r
    return rows_together(psi * r - found.dof / at.total.sum(1), psi, at.counts, at.subjects)
