r"""Maps of domains to the reference and covariances of their errors, given a fitted law.

In u = log s the second derivatives of minus the pooled log-likelihood (`stacked`) are :math:`s_b
Q_{bc} s_c / \sigma^2 + diag(n) - 2 n n' / \sum n`. Its inverse, without row and column of the
reference, is the covariance of the log-scales; it includes errors along chains of domains that are
linked only through others. Two domains have a closed form, and a sandwich estimate of the errors
(`weights.errors`).
"""

from dataclasses import replace

import numpy as np

from condokit.checks import Array
from condokit.law.posterior import Maps
from condokit.law.stacked import Found, Stacked, solve
from condokit.law.weights import errors, pulled, rows_together, shape

_UNKNOWN = 100.0  # variance of a log-scale of which the rows say nothing


def maps_of(at: Stacked, found: Found) -> Maps:
    """Return maps and the covariances of their errors, in the standard units of the domains."""
    s, red, others = found.s, found.reduced, at.others
    two = at.n_batches == 2
    centre, image, cov_log, cov_image, both = (_of_two if two else _of_many)(at, found)
    df, wider = _by_subjects(at, found)
    cov_image = cov_image * wider
    # of each domain, all others being given: R = rest + 2 s_b product + s_b^2 square
    whole = np.einsum("dbc,dc->db", red.Q, s)
    square = np.einsum("dbb->db", red.Q)[:, others]
    product = whole[:, others] - square * s[:, others]
    rest = (whole * s).sum(1)[:, None] - 2 * s[:, others] * product - s[:, others] ** 2 * square
    if two:  # the same, without rounding
        r, q = at.reference, others[0]
        product, rest = red.Q[:, [r], q], red.Q[:, [r], r]
    return Maps(
        s[:, others],
        centre,
        image,
        cov_log,
        cov_image,
        sd=np.sqrt(found.sigma2 * (1 + at.rho)),
        n_effective=found.n_effective,
        dof=np.broadcast_to(found.dof, len(s)),
        n_eff=np.broadcast_to(found.n_eff[:, others], s[:, others].shape),
        profile=np.stack([rest, product, square], axis=2) / found.sigma2[:, None, None],
        cov_both=both,
        nu=found.nu,
        df=np.full(len(s), df),
        is_gain=np.zeros(len(s), dtype=np.bool_),
    )


def gains(at: Stacked, fixed: Array, zero: Array) -> Maps:
    r"""Return maps x -> m x of features that are mostly zero, in standard units of the domains.

    `zero`, (n_features, K), is what zeros are there. A map of b takes zero to
    :math:`s_b z_b - \sum_c T_{bc} s_c` (`stacked`), which is :math:`z_r` for the solution of
    :math:`A s = z_r + T_r` with :math:`A = diag(z) - T`. For two domains, m is the ratio of the
    means that the law has at equal confounders. At the solution, zero's image has the error of an
    offset, and A turns it into that of s. If m is not positive, it is unknown, and `fixed` is kept.
    """
    r, others, own = at.reference, at.others, np.arange(at.n_batches - 1)
    T = np.moveaxis(solve(at, fixed).reduced.T[:, -len(own) :], (0, 2), (2, 0))
    A = -T[:, :, others]
    A[:, own, own] += zero[:, others]
    known = np.abs(np.linalg.det(A)) > 1e-12
    A[~known] = np.eye(len(own))
    s = np.linalg.solve(A, (zero[:, [r]] + T[:, :, r])[:, :, None])[:, :, 0]
    known &= (s > 0).all(axis=1)
    scales = fixed.copy()
    scales[:, others] = np.where(known[:, None], s, fixed[:, others])
    found = solve(at, scales)
    plain, s = maps_of(at, found), scales[:, others]
    variance = np.stack([errors(at, found, b)[1] for b in others], axis=1)
    B = np.moveaxis(found.reduced.B, 2, 0)
    size = np.sqrt(_by_subjects(at, found)[1] * variance / np.einsum("dbb->db", B))
    back = np.linalg.inv(A) / s[:, :, None] * size[:, None]
    cov = back @ B @ np.swapaxes(back, 1, 2)
    cov = np.where(known[:, None, None], cov, _UNKNOWN * np.eye(len(own)))
    # the likelihood of a ratio of two counts, which are expected to be equal at m
    profile = np.stack([np.ones(s.shape), 0.5 / s, np.zeros(s.shape)], axis=2)
    nothing = np.zeros(cov.shape)
    return replace(
        plain,
        centre=zero[:, others],
        image=np.repeat(zero[:, [r]], len(own), axis=1),
        cov_log=cov,
        cov_image=nothing,
        cov_both=nothing[:, 0],
        n_eff=np.repeat(plain.dof[:, None] / 4, len(own), axis=1),
        profile=profile,
        is_gain=np.ones(len(s), dtype=np.bool_),
    )


def _by_subjects(at: Stacked, found: Found) -> tuple[float, float]:
    """Return degrees of freedom by subjects, and the factor of variances of images.

    Degrees of freedom are infinite without subjects, else numbers of subjects less the columns of
    the mean; subjects of several batches count as often as they have rows, less one. Variances of
    images were multiplied by dof / (dof - 2) of rows, which becomes that of subjects.
    """
    who = at.subjects
    if who is None:
        return np.inf, 1.0
    pairs = np.unique(who.batch * who.n_subjects + who.code) % who.n_subjects
    crosses = np.bincount(pairs, minlength=who.n_subjects) > 1
    counts = at.counts.mean(axis=1)
    rows = np.maximum(np.bincount(who.code, counts, who.n_subjects), 1e-300)
    units = float(counts @ np.where(crosses, 1.0, 1 / rows)[who.code])
    fitted = len(at.penalty) - (np.einsum("drr->dr", at.inverses(None)[0]) @ at.penalty).mean()
    df, dof = max(units - crosses.sum() - fitted, 1.0), float(np.mean(found.dof))
    df = np.inf if df > 0.8 * dof else df  # as of bridge samples, which vary as rows do
    widen, widened = (1 + 2 / (max(x, 2.5) - 2) for x in (df, dof))
    return df, max(widen / widened, 1.0)


def _of_two(at: Stacked, found: Found) -> tuple[Array, Array, Array, Array, Array]:
    """Return centre, image, variances of log-scale and of image, and their covariance.

    The covariance is nonzero for skewed residuals only.
    """
    T, q = found.reduced.T[:, -1], at.others[0]
    V, V_image, both = (np.broadcast_to(one, len(found.s)) for one in errors(at, found, q))
    points = T[q][:, None], -T[at.reference][:, None]
    return *points, V[:, None, None], V_image[:, None, None], both[:, None]


def _of_many(at: Stacked, found: Found) -> tuple[Array, Array, Array, Array, Array]:
    r"""Return centres, images, and the covariances of log-scales and of images.

    The image of c in domain b is :math:`s_b c - \theta_b(s)`, whose derivatives by u are
    :math:`J_{bc} = \delta_{bc} s_b c - T_{bc} s_c`. Its covariance is J cov(u) J' plus
    :math:`\sigma^2 B`, that at given scales. The centre c is where the image is uncorrelated with
    the scale of b.

    Residuals that are not normal multiply the variance of log-scales by (kurtosis - 1) / 2, as far
    as that is believed (`weights.pulled`); those of t with nu degrees of freedom multiply it by
    (nu + 3) / nu, and that of offsets by (nu + 3) / (nu + 1).
    """
    s, red, n, dof = found.s, found.reduced, found.n_eff, found.dof
    K, others = at.n_batches, at.others
    H = s[:, :, None] * red.Q * s[:, None, :] / found.sigma2[:, None, None]
    H = H + n[:, None] * np.eye(K) - 2 * n[:, :, None] * n[:, None] / dof[:, None, None]
    free = np.ix_(np.arange(len(s)), others, others)
    heavy = pulled((shape(at, found)[0] - 1) / 2, dof)
    nu = np.where(np.isinf(found.nu), 1e8, found.nu)
    widen, together = dof / np.maximum(dof - 2, 0.5), _together(at, found)
    factor = np.where(np.isinf(found.nu), heavy, (nu + 3) / nu) * widen
    factor, widen_image = factor * together[0], widen * together[1]
    cov = np.linalg.inv(H[free] + 1e-9 * n.min() * np.eye(K - 1)) * factor[:, None, None]
    own = np.arange(K - 1)
    # too few rows for a positive curvature: log-scales as if each domain were alone
    alone = 0.5 * np.eye(K - 1) / n[:, others, None] + 0.5 / n[:, [at.reference], None]
    unsure = ~(cov[:, own, own] > 0).all(axis=1)
    cov = np.where(unsure[:, None, None], alone * factor[:, None, None], cov)
    T = np.moveaxis(red.T[:, 1 - K :], (0, 2), (2, 0)) * s[:, None, :]
    theta, J = T.sum(2), -T[:, :, others]
    variance = cov[:, own, own]
    both = np.einsum("dbc,dcb->db", J, cov)
    centre = -both / (s[:, others] * np.where(variance > 0, variance, 1.0))
    J[:, own, own] += s[:, others] * centre
    given = found.sigma2 * (nu + 3) / (nu + 1) * widen_image
    cov_image = given[:, None, None] * np.moveaxis(red.B, 2, 0)
    cov_image = cov_image + J @ cov @ np.swapaxes(J, 1, 2)
    return centre, s[:, others] * centre - theta, cov, cov_image, np.zeros(centre.shape)


def _together(at: Stacked, found: Found) -> Array:
    """Return the factors by which rows of subjects increase the variances, (2, n_features).

    The first is that of log-scales, the second that of images; see `rows_together`.
    """
    if at.subjects is None:
        return np.ones((2, len(found.s)))
    root = np.sqrt(found.sigma2 if found.v is None else found.sigma2 * found.v)
    r = found.e / root
    psi = r if found.t_weights is None else found.t_weights * r
    return rows_together(psi * r - found.dof / at.total.sum(1), psi, at.counts, at.subjects)
