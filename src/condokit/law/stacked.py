r"""Pooled likelihood of batches: one law given the confounders, a scale and an offset each.

Per feature, with :math:`x_b` the values of batch b in that batch's standard units and zero in rows
of other batches,

.. math:: \sum_b s_b x_b = D \theta + \sigma \sqrt{v} \epsilon, \quad \epsilon \sim t_\nu,

where D has the functions of the confounders (`design`) and the indicators of all batches but the
reference r, whose scale is one, and v is the effect of confounders on the variance. With weights
:math:`W = diag(w_i / v_i)`, the penalty P of curves, and :math:`B = (D'WD + P)^{-1}`,

.. math::
    Q_{bc} = x_b' W x_c - (D'W x_b)' B (D'W x_c), \quad
    n_b = N_b - tr[(D_b' W_b D_b B)_{unpenalised}], \quad dof = \sum_b n_b,

.. math:: -\log L = \tfrac{dof}{2} \log s'Qs - \sum_b n_b \log s_b.

The last term is the Jacobian: scales multiply the data. With :math:`N_b` in place of :math:`n_b`
scales would be biased where strata are small, as variances with divisor N are.

The value does not change if all scales are multiplied by one factor, so its minimum is that of the
convex function :math:`\tfrac12 s'Qs - \sum_b n_b \log s_b`, divided by :math:`s_r`; for two batches
it is the root of a quadratic equation (`design.best_scale`). :math:`\theta = \sum_b s_b T_b` with
:math:`T_b = B D'W x_b`, and :math:`\sigma^2 = s'Qs / dof`. For two batches, the image of
:math:`x_0 = T_{qq}`, which is :math:`-T_{qr}`, is uncorrelated with the scale.

Where rows share subjects (`subjects`), :math:`V^{-1}` replaces W for all batches together, and
:math:`n_b = N_b - \sum_{i \in b} d_i' B (V^{-1} D)_i`, for which the expectation of
:math:`s_b (Qs)_b` is :math:`n_b \sigma^2`. Free levels of bridge samples are like unpenalised
columns of D, but are eliminated without being written out.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.conditionals.curves import Products
from condokit.data.arrays import ones_for_zeros, sums_of
from condokit.data.grouped import GroupedMoments
from condokit.law.design import best_scale
from condokit.law.noise import NoiseModel, weighted
from condokit.law.subjects import Subjects

FLOOR = 1e-8  # smallest residual variance, in that of the feature
LARGEST_LEVERAGE = 0.8  # leverages are cut here, since residuals are divided by 1 - h
_NEWTON_STEPS = 60
_GRAM_VALUES = 1 << 24  # numbers of D'WD by batch and feature that are in memory at a time
_SMALLEST = 1e-75  # smallest standard deviation whose fourth power is above zero in float64


@dataclass(frozen=True)
class _Levels:
    """What the levels of subjects subtract from products of columns.

    The sums are over the rows of a pair of batch and subject. See `subjects` for the formula.
    """

    subjects: Subjects
    kappa: Array  # (n_subjects, 1 or n_features): share of the mean taken off
    w: Array  # (n_pairs, n_features): sums of weights
    wD: Array  # (n_pairs, n_columns, n_features): weighted sums of columns

    @cached_property
    def mean(self) -> Array:
        """The weighted mean of columns by subject, (n_subjects, n_columns, n_features)."""
        total = np.maximum(self.subjects.sums(self.w), 1e-300)[:, None]
        return self.subjects.sums(self.wD) / total

    @cached_property
    def gram(self) -> Array:
        """D_b' W D_b less D_b' (V^-1 D)_b of batches, (K, n_features, n_columns, n_columns)."""
        part = (self.kappa[:, None] * self.mean)[self.subjects.of_pair]
        found = []
        for own in self.subjects.by_batch:
            left, right = (np.moveaxis(one[own], 2, 0) for one in (self.wD, part))
            found.append(np.swapaxes(left, 1, 2) @ right)
        return np.stack(found)

    def taken(self, B: Array) -> Array:
        """Return the degrees of freedom that free levels take from each batch, (n_features, K).

        A pair p of weight :math:`w_p`, with the mean d of columns of its subject g, takes
        :math:`w_p / w_g - (w d)_p' B d + w_p d' B d`.
        """
        who = self.subjects
        of = who.of_pair
        total = np.maximum(who.sums(self.w), 1e-300)
        mean = self.mean[of]
        turned = np.einsum("drs,psd->prd", B, mean)
        each = self.w / total[of] + ((self.w[:, None] * mean - self.wD) * turned).sum(1)
        each = np.where(who.free[of, None], each, 0.0)
        return np.stack([each[own].sum(0) for own in who.by_batch], axis=1)


@dataclass
class Stacked:
    """Rows of all batches in standard units of each batch, and what their law depends on.

    Without D, the columns of the mean are one indicator for each level of the category of `noise`,
    and those of the batches.
    """

    X: Array  # (n_rows, n_features)
    D: Array | None  # (n_rows, n_columns): confounders, then all batches but the reference
    penalty: Array  # (n_columns,)
    batch: Array  # (n_rows,)
    n_batches: int
    reference: int
    counts: Array  # (n_rows, 1 or n_features): rows that each stands for; 0 if missing
    noise: NoiseModel  # what the variance depends on
    subjects: Subjects | None = None
    rho: Array = field(default_factory=lambda: np.zeros(1))  # (1 or n_features,): see `subjects`
    kept: dict[str, Any] = field(default_factory=dict)  # cache of what all features share

    def of(self, features: Any) -> "Stacked":
        """Return some of the features."""
        counts = self.counts if self.counts.shape[1] == 1 else self.counts[:, features]
        rho = self.rho if len(self.rho) == 1 else self.rho[features]
        return replace(self, X=self.X[:, features], counts=counts, rho=rho)

    @cached_property
    def others(self) -> Array:
        """The numbers of the batches that are mapped: all but the reference."""
        return np.delete(np.arange(self.n_batches), self.reference)

    @cached_property
    def rows(self) -> list[Any]:
        """The rows of every batch: slices if rows are sorted by batch, else their numbers."""
        if (self.batch[1:] >= self.batch[:-1]).all():
            edges = np.searchsorted(self.batch, np.arange(self.n_batches + 1))
            return [slice(a, b) for a, b in zip(edges[:-1], edges[1:])]
        return [np.flatnonzero(self.batch == b) for b in range(self.n_batches)]

    def weights(self, precision: Array | None) -> Array:
        """Return weights of rows whose variances are 1 / `precision`, or equal if that is None."""
        w = self.counts if precision is None else self.counts * precision
        return w if self.subjects is None else self.subjects.lighter(w, self.counts, self.rho)

    @cached_property
    def kappa(self) -> Array:
        """The share of their mean that is taken off rows of subjects, (n_subjects, 1 or d)."""
        assert self.subjects is not None
        return self.subjects.kappa(self.counts, self.rho)

    def apart(self, values: Array, precision: Array | None) -> Array:
        """Return values transformed so that rows of one subject are independent."""
        if self.subjects is None:
            return values
        return self.subjects.apart(values, self.weights(precision), self.counts, self.rho)

    def weighed(self, values: Array, precision: Array | None) -> Array:
        """Return V^-1 times values, for a covariance that all features share."""
        w = self.weights(precision)
        return w * values if self.subjects is None else self.subjects.inverse(values, w, self.kappa)

    def inverses(self, precision: Array | None) -> tuple[Array, Array]:
        """Return B and the degrees of freedom that columns take from batches.

        Their shapes are (1 or n_features, n_columns, n_columns) and (1 or n_features, K); the
        latter is N_b - n_b.
        """
        plain = precision is None and self.counts.shape[1] == len(self.rho) == 1
        if "plain" in self.kept and plain:
            return self.kept["plain"]
        if "products" not in self.kept:
            self.kept["products"] = [Products(np.asarray(self.D)[rows]) for rows in self.rows]
        B, taken, own = [], [], list(zip(self.kept["products"], self.rows))
        w, c = self.weights(precision), len(self.penalty)
        n_values = self.n_batches * c**2
        if self.subjects is not None:
            n_values = max(n_values, len(self.subjects.rows) * c)
        step = max(1, _GRAM_VALUES // n_values)
        for few in (slice(i, i + step) for i in range(0, w.shape[1], step)):
            gram = np.stack([products.gram(w[rows, few]) for products, rows in own])
            if self.subjects is not None:
                levels = self._levels(w[:, few], few)
                gram -= levels.gram
            B.append(_inverse(gram.sum(0), self.penalty))
            leverage = np.einsum("bdrs,dsr->dbr", gram, B[-1])
            taken.append(leverage[:, :, self.penalty == 0].sum(2))
            if self.subjects is not None and self.subjects.free.any():
                taken[-1] = taken[-1] + levels.taken(B[-1])
        found = np.concatenate(B), np.concatenate(taken)
        if plain:
            self.kept["plain"] = found
        return found

    def _levels(self, w: Array, few: slice) -> "_Levels":
        """Sum weights and weighted columns over the rows of batches and subjects."""
        who, D = self.subjects, np.asarray(self.D)
        assert who is not None
        kappa = self.kappa if self.kappa.shape[1] == 1 else self.kappa[:, few]
        w, D = w[who.rows], D[who.rows]
        return _Levels(who, kappa, who.pair_sums(w), who.pair_sums(w[:, None] * D[:, :, None]))

    @cached_property
    def total(self) -> Array:
        """How many rows each batch has, shape (1 or n_features, K): N_b."""
        return np.stack([self.counts[rows].sum(0) for rows in self.rows], axis=1)

    @cached_property
    def cell(self) -> Array:
        """The cell of every row: its level and batch, as one number."""
        return self.noise.category * self.n_batches + self.batch

    @cached_property
    def cells(self) -> Any:
        """The sparse matrix (n_cells, n_rows) that sums over the rows of cells."""
        return sums_of(self.cell, self.noise.n_categories * self.n_batches)

    def fitted(self, theta: Array) -> Array:
        """Return the columns times coefficients of shape (n_columns, n_features)."""
        if self.D is not None:
            return self.D @ theta
        effect = np.zeros((self.n_batches, theta.shape[1]))
        effect[self.others] = theta[1 - self.n_batches :]
        levels = theta[: 1 - self.n_batches, None] + effect
        return levels.reshape(-1, theta.shape[1])[self.cell]


def nodes(stats: GroupedMoments, middle: Array, unit: Array) -> tuple[Array, Array, Array]:
    r"""Return three values for each group with its first four moments, their counts and groups.

    Values are in units of groups, from their middle, so that groups are fitted from moments as if
    they were three rows each. With skewness g and kurtosis k the values are the mean and
    :math:`t_\pm` standard deviations from it, the roots of :math:`t^2 = g t + k - g^2`, with shares
    :math:`1 - 1 / (k - g^2)` and :math:`\pm 1 / (t_\pm (t_+ - t_-))`: sums of polynomials up to the
    fourth degree are exact.
    """
    n, sd = ones_for_zeros(stats.n), stats.sd
    own = ones_for_zeros(sd)
    g = stats.third / n / own**3
    left = np.maximum(stats.fourth / n / own**4 - g**2, 1.0)  # a kurtosis is at least 1 + g^2
    high = np.abs(g) / 2 + np.sqrt(g**2 / 4 + left)
    high, low = np.where(g < 0, left / high, high), -np.where(g < 0, high, left / high)
    shares = 1 / (high * (high - low)), 1 - 1 / left, -1 / (low * (high - low))
    mean, sd = (stats.mean - middle) / unit, sd / unit
    X = np.concatenate([mean + sd * high, mean, mean + sd * low])
    counts = np.concatenate([stats.n * share for share in shares])
    return X, counts, np.tile(np.arange(len(n)), 3)


@dataclass(frozen=True)
class Reduced:
    """What remains of the likelihood once all but the scales is projected off."""

    Q: Array  # (n_features, K, K): products of batches off the columns
    T: Array  # (K, n_columns, n_features): B D'W x_b, coefficients of each batch
    link: Array  # (K - 1, n_columns, 1 or n_features): the columns of B for batches
    n_eff: Array  # (1 or n_features, K)
    h: Array  # (n_rows, 1 or n_features): leverages
    log_det: Array | float  # of B

    @property
    def B(self) -> Array:
        """The part of B for batches, shape (K - 1, K - 1, 1 or n_features)."""
        return self.link[:, -len(self.link) :]

    @property
    def dof(self) -> Array:
        """Rows less unpenalised columns, at least 1, shape (1 or n_features,)."""
        return np.maximum(self.n_eff.sum(1), 1.0)


def reduce(at: Stacked, precision: Array | None = None) -> Reduced:
    """Project features off the columns of the mean.

    Rows have variances of 1 / `precision`, (n_rows, 1 or n_features), or equal ones.
    """
    if at.D is None:
        return _reduce_levels(at, precision)
    w, who = at.weights(precision), at.subjects
    B, taken = at.inverses(precision)
    p, K = at.X.shape[1], at.n_batches
    C, S = np.empty((K, len(at.penalty), p)), np.empty((K, p))
    for b, rows in enumerate(at.rows):
        wX = w[rows] * at.X[rows]
        C[b], S[b] = at.D[rows].T @ wX, np.einsum("nd,nd->d", wX, at.X[rows])
    if who is not None and len(who.rows):
        S = _off_levels(at, w, C, S)
    T = B[0] @ C if len(B) == 1 else np.einsum("drs,bsd->brd", B, C)
    h = _leverage(at, precision)
    link = np.moveaxis(B[:, :, len(at.penalty) - K + 1 :], (0, 2), (2, 0))
    return _reduced(S, C, T, link, at.total - taken, h, np.linalg.slogdet(B)[1])


def _off_levels(at: Stacked, w: Array, C: Array, S: Array) -> Array:
    """Subtract what subjects explain from C = D'W x_b, in place, and from the squares S.

    Returns the products x_b'W x_c with subjects off, (n_features, K, K): rows of one subject in two
    batches link these.
    """
    who, K, p = at.subjects, at.n_batches, at.X.shape[1]
    assert who is not None
    w, D = w[who.rows], np.asarray(at.D)[who.rows]
    total, y = np.maximum(who.sums(who.pair_sums(w)), 1e-300), who.pair_sums(w * at.X[who.rows])
    each = np.zeros((K, len(total), p))
    for b, own in enumerate(who.by_batch):
        each[b, who.of_pair[own]] = y[own]
    scaled = each * (at.kappa / total)
    for b in range(K):
        C[b] -= D.T @ (w * scaled[b][who.number])
    squares = -np.moveaxis(_products(each, scaled), 2, 0)
    squares[:, np.arange(K), np.arange(K)] += S.T
    return np.asarray(squares)


def _leverage(at: Stacked, precision: Array | None) -> Array:
    """Return the leverages of rows, (n_rows, 1 or n_features).

    They are exact for the mean precision of each level, and taken in proportion to a row's own
    precision beyond that: variances along curves and weights of Student's t are too noisy for more.
    """
    D, counts, share = np.asarray(at.D), at.counts.mean(axis=1), np.ones((1, 1))
    if precision is not None:
        share = precision / (weighted(at.counts, precision) / at.total.sum(1))
    if at.noise.levels and precision is not None:
        group = at.noise.group
        mean = group(counts * share.mean(axis=1)) / np.maximum(group(counts), 1e-300)
        counts = counts * mean[at.noise.category]
    elif "leverage" in at.kept:
        return at.kept["leverage"] * share
    level = np.zeros(1)
    if (who := at.subjects) is not None and len(who.rows):
        rho = np.median(at.rho, keepdims=True)
        D = who.apart(D, counts[:, None], at.counts.mean(axis=1, keepdims=True), rho)
        total = np.bincount(who.code, counts, minlength=who.n_subjects)  # free levels take a share
        level = np.where(who.is_free, 1 / np.maximum(total, 1e-300), 0.0)[who.code]
    root = D * np.sqrt(counts)[:, None]
    B = _inverse(root.T @ root, at.penalty)
    h = (np.einsum("nr,nr->n", D @ B, D) + level)[:, None]
    if precision is None and at.counts.shape[1] == len(at.rho) == 1:
        at.kept["leverage"] = h
    return h * share


def _reduced(
    S: Array, C: Array, T: Array, link: Array, n_eff: Array, h: Array, log_det: Array | float
) -> Reduced:
    """Return the reduced likelihood: Q is the squares or products S of batches less C'T."""
    K = len(C)
    Q = -np.moveaxis(_products(C, T), 2, 0)
    if S.ndim == 2:
        Q[:, np.arange(K), np.arange(K)] += S.T
    else:
        Q += S
    Q = (Q + np.swapaxes(Q, 1, 2)) / 2
    Q[:, np.arange(K), np.arange(K)] = np.maximum(np.einsum("dbb->db", Q), 0.0)
    return Reduced(Q, T, link, n_eff, np.minimum(h, LARGEST_LEVERAGE), log_det)


def _reduce_levels(at: Stacked, precision: Array | None) -> Reduced:
    r"""Project features off levels and batches, by sums over (level, batch) cells.

    With :math:`n_{kb}` the weights of level k in batch b, :math:`f_{kb} = n_{kb} / n_k`, and
    :math:`y_{kb}` the sums of x: off levels
    :math:`D'WD = diag(\sum_k n_{kb}) - \sum_k n_k f_k f_k'` and
    :math:`D'W x_c = (\delta_{bc} \sum_k y_{kb} - \sum_k f_{kb} y_{kc})_b`.
    """
    w = at.counts if precision is None else at.counts * precision
    K, L, others, wX = at.n_batches, at.noise.n_categories, at.others, w * at.X
    n, y = ((at.cells @ values).reshape(L, K, -1) for values in (w, wX))
    total = np.maximum(n.sum(1), 1e-300)[:, None]
    f, mean = n / total, y / total
    diagonal = np.arange(K)
    by_batch = [np.swapaxes(table, 0, 1) for table in (n, f, y, mean)]
    gram, C, S = (-_products(by_batch[a], by_batch[b]) for a, b in ((0, 1), (1, 2), (2, 3)))
    for table, own in ((gram, n), (C, y)):
        table[diagonal, diagonal] += own.sum(0)
    S[diagonal, diagonal] += (at.cells @ (wX * at.X)).reshape(L, K, -1).sum(0)
    B = _inverse(gram[np.ix_(others, others)].transpose(2, 0, 1)).transpose(1, 2, 0)
    f, C = f[:, others], np.swapaxes(C[others], 0, 1)
    T, of_level = _products(C, B), _products(B, f)
    T_level = np.swapaxes(mean, 0, 1) - _products(T, f)
    h = np.repeat(1 / total + np.einsum("kc...,ck...->k...", f, of_level)[:, None], K, axis=1)
    h[:, others] += np.einsum("bb...->b...", B) - 2 * np.swapaxes(of_level, 0, 1)
    n_eff = at.total - (n * h).sum(0).T
    h = h.reshape(L * K, -1)[at.cell] * (1.0 if precision is None else precision)
    link = np.concatenate([-of_level, B], axis=1)
    T_all = np.concatenate([T_level, T], axis=1)
    found = _reduced(np.moveaxis(S, 2, 0), C, T, link, n_eff, h, 0.0)
    return replace(found, T=T_all)


def _products(A: Array, B: Array) -> Array:
    """Return sums over the second axis of products: (a, r, d) and (b, r, d) give (a, b, d)."""
    return (A.transpose(2, 0, 1) @ B.transpose(2, 1, 0)).transpose(1, 2, 0)


def _inverse(gram: Array, penalty: Array | float = 0.0) -> Array:
    """Return the inverse of gram + penalty; a ridge of rounding size allows repeated columns."""
    size = np.einsum("...ii->...i", gram).max(-1)[..., None, None]
    return np.linalg.inv(gram + (penalty + 1e-12 * size) * np.eye(gram.shape[-1]))


def best_scales(Q: Array, n: Array, near: Array | None = None) -> Array:
    r"""Return the minimum of :math:`\tfrac12 s'Qs - \sum_b n_b \log s_b` by damped Newton steps.

    `near` are scales close to the minimum up to a common factor, to start from.
    """
    diagonal, left = np.arange(Q.shape[1]), np.arange(len(Q))  # features that still move
    n = np.atleast_2d(n)
    if near is None:
        s = np.sqrt(n / np.maximum(Q[:, diagonal, diagonal], 1e-12))
    else:
        size = np.maximum(np.einsum("db,dbc,dc->d", near, Q, near), 1e-12)
        s = near * np.sqrt(n.sum(1) / size)[:, None]
    least = np.sqrt(n.min())
    for _ in range(_NEWTON_STEPS):
        own, rows = s[left], n if len(n) == 1 else n[left]
        H = Q[left]
        gradient = np.einsum("dbc,dc->db", H, own) - rows / own
        H[:, diagonal, diagonal] += rows / own**2
        step = np.linalg.solve(H, gradient[:, :, None])[:, :, 0]
        size = np.sqrt(np.maximum((gradient * step).sum(1), 0.0))
        share = np.where(size > 0.2, 1 / (1 + size / least), 1.0)  # self-concordant
        share = np.minimum(share, 0.9 / np.maximum((step / own).max(axis=1), 1e-12))
        s[left] = own - share[:, None] * step
        left = left[size >= 1e-9]
        if not len(left):
            break
    return s


@dataclass
class Found:
    """Estimated scales of all batches and variances; shapes are (n_features,) unless said."""

    s: Array  # (n_features, K), that of the reference 1
    sigma2: Array
    reduced: Reduced
    e: Array  # (n_rows, n_features): residuals, made independent within subjects
    nu: Array  # degrees of freedom of Student's t, infinite if normal
    t_weights: Array | None = None  # (n_rows, n_features), of Student's t
    v: Array | None = None  # (n_rows, n_features): variances of rows relative to sigma2
    level_precision: float = np.inf  # of the normal prior of levels' log-variances
    n_effective: float = 1.0  # number of independent features that these are worth

    @property
    def n_eff(self) -> Array:
        """n_b of batches: rows less their leverage, at least 1/4, shape (1 or n_features, K)."""
        return np.maximum(self.reduced.n_eff, 0.25)

    @property
    def dof(self) -> Array:
        """Rows less unpenalised columns, shape (1 or n_features,)."""
        return self.reduced.dof


def scales(
    Q: Array, known: Reduced | Found, at: Stacked, fixed: Array, near: Array | None = None
) -> Array:
    """Return the best scales for Q, (n_features, K), that of the reference 1.

    Where `fixed` is not nan, it is the scale.
    """
    n, r = np.maximum(known.n_eff, 0.25), at.reference
    if at.n_batches == 2:
        q, s = 1 - r, np.ones((len(Q), 2))
        s[:, q] = best_scale(np.stack([Q[:, r, r], Q[:, r, q], Q[:, q, q]]), n[:, q], known.dof)
    else:
        s = best_scales(Q, n, near)
        s = s / s[:, [r]]
    return np.where(np.isnan(fixed), s, fixed)


def solve(
    at: Stacked, fixed: Array, precision: Array | None = None, near: Array | None = None
) -> Found:
    """Return the best scales for given variances 1 / `precision` of rows.

    Where `fixed`, (n_features, K), is not nan, it is the scale.
    """
    red = reduce(at, precision)
    s, Q = scales(red.Q, red, at, fixed, near), red.Q
    sigma2 = np.maximum(np.einsum("db,dbc,dc->d", s, Q, s) / red.dof, FLOOR)
    e = at.fitted(-np.einsum("db,brd->rd", s, red.T))
    for b, rows in enumerate(at.rows):
        e[rows] += s[:, b] * at.X[rows]
    e = at.apart(e, precision)
    return Found(s, sigma2, red, e, np.full(len(s), np.inf))
