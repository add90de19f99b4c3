r"""Pooled conditional likelihood of a diagonal map: one law for reference and mapped query rows.

Per feature, with x centred in each domain, y0 = x on reference rows and y1 = x on query rows (zero
elsewhere), q the indicator of the query:

.. math:: y_0 + m y_1 + b q = U \beta + s \sqrt{v} \epsilon, \quad \epsilon \sim t_\nu,

U the functions of the confounders (`design`), v their effect on the variance. With weights
:math:`W = diag(w_i / v_i)`, :math:`A = U'WU + diag(0, 1/\theta_k)` and :math:`B = A^{-1}`,

.. math::
    G_{ab} = y_a' W y_b - (U' W y_a)' B (U' W y_b), \quad
    N_{eff} = N_q - tr[(U_q' W_q U_q B)_{unpenalised}], \quad dof = N - rank D,

m is the positive root of `design.best_scale`, :math:`b = b_0 + m b_1` with
:math:`b_a = -(B U' W y_a)_q`, and :math:`s^2 = (G_{00} + 2 m G_{01} + m^2 G_{11}) / dof`. At
:math:`x_0 = -b_1` the image :math:`b_0` is uncorrelated with m.

All sums over rows come from functions of a block of rows whose results add up.
"""

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.covariates import Covariates
from condokit.data.subsets import subsample
from student.cells import (
    MOST_CHOOSING_ROWS,
    MOST_SELECTING,
    cell_moments,
    fit_moments,
    independent_features,
    positive_units,
)
from student.design import Design, best_scale, level_columns, select
from student.noise import NoiseModel, choose_noise, common_noise
from student.projections import (
    BasisProjection,
    StrataProjection,
    residual_variance,
)
from student.rowwise import (
    LARGEST_LEVERAGE,
    Batch,
    fit_normal,
    fit_rows,
    heavy_tailed,
)
from student.subjects import (
    subject_projection,
    subject_ratio,
    with_subject_means,
    without_subject,
)

FEATURE_VALUES = 1 << 17  # numbers of a batch of features
NORMAL_VALUES = 1 << 17  # the same, of features without weights of their own
LEVEL_ROWS = 10  # of a level whose variance is its own, among other confounders
TIED = 0.2
MODAL = 0.5
RARE = 0.8
FEWEST_OFF_MODE = 25


@dataclass(frozen=True)
class PooledFit:
    """Plain estimates of every feature, in the user's units.

    Attributes
    ----------
    scale, centre, image : ndarray of shape (n_features,)
        The map is x to image + scale (x - centre); at the centre, scale and image are uncorrelated.
    se_log_scale, se_image, covariance : ndarray of shape (n_features,)
        Standard errors, and the covariance of log scale and image that skewed residuals leave.
    residual_sd : ndarray of shape (n_features,)
        Typical scale of residuals in reference units, between and within subjects.
    nu : ndarray of shape (n_features,)
        Degrees of freedom of the residuals' t distribution; inf is normal.
    dof, n_eff : ndarray of shape (n_features,)
        Rows left after the columns of D, and query rows that inform on the scale.
    profile : ndarray of shape (3, n_features)
        G00, G01, G11 in reference units over the residual variance, for the profile likelihood.
    tied, modal, shift_only : ndarray of bool
        Features with many equal values: without t; without t and variance model; scale left alone.
    n_effective : float
        As how many independent features these count.
    blocks, noise : tuple of str
        What the mean and the variance depend on, beyond D.
    correlation_ratio : float
        Variance between subjects over that within.
    """

    scale: Array
    centre: Array
    image: Array
    se_log_scale: Array
    se_image: Array
    covariance: Array
    residual_sd: Array
    nu: Array
    dof: Array
    n_eff: Array
    profile: Array
    tied: Array
    modal: Array
    shift_only: Array
    n_effective: float
    blocks: tuple[str, ...] = ()
    noise: tuple[str, ...] = ()
    correlation_ratio: float = 0.0

    def joined(self, others: "list[PooledFit]", order: Array) -> "PooledFit":
        """Put fits of other features behind this one, and all in order."""
        fits = [self, *others]
        values = {f.name: [getattr(fit, f.name) for fit in fits] for f in fields(self)}
        arrays: dict[str, Any] = {
            name: np.concatenate(parts, axis=-1)[..., order]
            for name, parts in values.items()
            if name not in ("n_effective", "blocks", "noise", "correlation_ratio")
        }
        # the mean squared correlation of features, as far as some were fitted together
        size = np.array([len(fit.scale) for fit in fits])
        total, pairs = size.sum(), size * (size - 1)
        alike = np.maximum(size / np.array(values["n_effective"]) - 1, 0.0) * size
        r2 = min(float(alike.sum() / max(pairs.sum(), 1)), 1.0)
        return replace(self, n_effective=float(total / (1 + (total - 1) * r2)), **arrays)


def fit_pooled(
    X: Array,
    is_query: Array,
    Z: Array | None = None,
    category: Array | None = None,
    n_categories: int = 1,
    weights: Array | None = None,
    groups: Array | None = None,
    has_scale: bool = True,
    flat: Array | None = None,
) -> PooledFit:
    """Estimate the map of every feature from the compared rows of both domains.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
        Features, no missing values.
    is_query : ndarray of bool, shape (n_rows,)
        Which rows are the query's.
    Z : ndarray of shape (n_rows, n_continuous) or None
        Continuous confounders in standard units.
    category, n_categories : ndarray of int, shape (n_rows,), and int
        Number of the level of each row, and of levels.
    weights : ndarray of shape (n_rows,) or None
        How many rows each counts for.
    groups : ndarray of int, shape (n_rows,) or None
        Subjects; one that occurs in both domains counts as two.
    has_scale : bool
        Whether the map may scale.
    flat : ndarray of bool, shape (n_features,) or None
        Features that are only shifted, beside those found here.
    """
    n = len(X)
    Z = np.zeros((n, 0)) if Z is None else Z
    category = np.zeros(n, dtype=np.int64) if category is None else category.astype(np.int64)
    w = np.ones(n) if weights is None else np.asarray(weights, dtype=float)
    at = Covariates(Z, category, n_categories, weights=w)
    share, off = modal_shares(X, is_query)
    tied, modal = share > TIED, share > MODAL
    rare = (share > RARE) | (modal & (off < FEWEST_OFF_MODE))
    flags = tied, modal, rare if flat is None else rare | flat
    if Z.shape[1] or groups is not None:
        return _fit_design(X, is_query, at, groups, has_scale, flags)
    return _fit_cells(X, is_query, at, has_scale, flags)


def modal_shares(X: Array, is_query: Array) -> tuple[Array, Array]:
    """Return the share of the most frequent value (the larger of both domains), and rows off it.

    Features without equal values among 64 rows of a domain are not looked at further.
    """
    d = X.shape[1]
    share, off = np.zeros(d), np.full(d, np.inf)
    for side in (is_query, ~is_query):
        rows = np.flatnonzero(side)
        if len(rows) < 2:
            continue
        few = np.sort(X[rows[subsample(len(rows), 64)]], axis=0)
        suspect = np.flatnonzero((np.diff(few, axis=0) == 0).any(0))
        for j in suspect:
            counts = np.unique(X[rows, j], return_counts=True)[1]
            largest = counts.max()
            share[j] = max(share[j], largest / len(rows))
            off[j] = min(off[j], len(rows) - largest)
    return share, off


@dataclass(frozen=True)
class _Rows:
    """Compared rows, the query's first, in units that make each domain's features standard."""

    X: Array
    n_query: int
    order: Array
    mean: Array  # (2, n_features): query, reference
    unit: Array

    @classmethod
    def read(cls, X: Array, is_query: Array, weights: Array) -> "_Rows":
        order = np.concatenate([np.flatnonzero(is_query), np.flatnonzero(~is_query)])
        nq = int(is_query.sum())
        out = X[order]
        w = weights[order]
        mean, unit = np.empty((2, X.shape[1])), np.empty((2, X.shape[1]))
        for side, rows in enumerate((slice(0, nq), slice(nq, len(X)))):
            mean[side] = w[rows] @ out[rows] / w[rows].sum()
            out[rows] -= mean[side]
            square = np.einsum("n,nd,nd->d", w[rows], out[rows], out[rows]) / w[rows].sum()
            unit[side] = np.sqrt(square)
        unit = positive_units(unit, mean)
        out[:nq] /= unit[0]
        out[nq:] /= unit[1]
        return cls(out, nq, order, mean, unit)


def _fit_cells(
    X: Array,
    is_query: Array,
    at: Covariates,
    has_scale: bool,
    flags: tuple[Array, Array, Array],
) -> PooledFit:
    """Fit with categories alone: normal features from moments, heavy tails from rows."""
    category, n_categories, weights = at.category, at.n_categories, at.counts
    d = X.shape[1]
    cells = cell_moments(X, is_query, category, n_categories, weights)
    uq, ur = cells.unit
    one = uq / ur  # the scale that changes nothing
    fixed = np.where(flags[2] | (not has_scale), one, np.nan)
    n_effective = independent_features(X, is_query, category, n_categories)
    plain, kurtosis = fit_moments(cells, fixed, flags[1], n_effective)
    N = float(weights.sum())
    rank = int((cells.count.sum(1) > 0).sum()) + 1
    tails = heavy_tailed(kurtosis, np.zeros(d), max(N - rank, 4.0)) & ~flags[0]
    parts = [(np.arange(d), plain)]
    if tails.any():
        rows = _Rows.read(X[:, tails], is_query, weights)
        k, w = category[rows.order], weights[rows.order]
        projection = StrataProjection(k, n_categories, rows.n_query, w)
        noise = NoiseModel(k, n_categories, n_categories > 1, np.zeros((len(k), 0)), np.zeros(0))
        where = np.flatnonzero(tails)
        own = np.where(np.isnan(fixed[where]), np.nan, rows.unit[0] / rows.unit[1])
        for some in _batches(np.arange(len(where)), len(X)):
            asked, values = np.ones(len(some), dtype=np.bool_), rows.X[:, some]
            part = fit_rows(projection, values, own[some], noise, asked, None, n_effective)
            parts.append((where[some], part))
        # batches of rows have units of their own
        cells.centre[:, where], cells.unit[:, where] = rows.mean, rows.unit
    noise_names = ("levels",) if n_categories > 1 else ()
    return _assemble(
        parts,
        cells.centre,
        cells.unit,
        max(N - rank, 1.0),
        flags,
        fixed,
        n_effective,
        noise=noise_names,
    )


def _fit_design(
    X: Array,
    is_query: Array,
    at: Covariates,
    groups: Array | None,
    has_scale: bool,
    flags: tuple[Array, Array, Array],
) -> PooledFit:
    """Fit with any confounders and subjects."""
    n, d = X.shape
    rows = _Rows.read(X, is_query, at.counts)
    at = at.take(rows.order)
    fixed = np.where(flags[2] | (not has_scale), rows.unit[0] / rows.unit[1], np.nan)
    subjects = None
    if groups is not None:
        is_first = np.arange(n) < rows.n_query
        subjects = np.unique(2 * groups[rows.order] + is_first, return_inverse=True)[1]
        at = with_subject_means(at, subjects)
    law = _Law(rows, at, subjects, fixed, flags)
    law.choose()
    projection, noise, n_effective = law.projection(), law.noise, law.n_effective
    clean = without_subject(rows.X, subjects, law.rho)
    parts = []
    dof = max(float(at.counts.sum()) - projection.rank, 1.0)
    tails = np.zeros(d, dtype=np.bool_)
    for batch in _batches(np.arange(d), n, NORMAL_VALUES):
        part, kurtosis, extreme = fit_normal(
            projection, clean[:, batch[0] : batch[-1] + 1], fixed[batch], subjects
        )
        tails[batch] = heavy_tailed(kurtosis, extreme, dof) & ~flags[0][batch]
        parts.append((batch, part))
    for batch in _batches(np.flatnonzero(tails | (~flags[1] & (noise is not None))), n):
        part = fit_rows(
            projection, clean[:, batch], fixed[batch], noise, tails[batch], subjects, n_effective
        )
        parts.append((batch, part))
    facts = {
        "blocks": tuple(block.name for block in law.design.blocks),
        "noise": () if noise is None else noise.levels * ("levels",) + noise.names,
        "correlation_ratio": law.rho,
    }
    return _assemble(parts, rows.mean, rows.unit, dof, flags, fixed, n_effective, **facts)


class _Law:
    """What mean and variance depend on, and how alike subjects are, chosen on some features."""

    def __init__(
        self,
        rows: _Rows,
        at: Covariates,
        subjects: Array | None,
        fixed: Array,
        flags: tuple[Array, Array, Array],
    ) -> None:
        self.at, self.subjects, self.nq, self.weights = at, subjects, rows.n_query, at.counts
        d = rows.X.shape[1]
        few = np.flatnonzero(~flags[2])
        few = (few if len(few) else np.arange(d))[subsample(len(few) or d, MOST_SELECTING)]
        self.X, self.fixed, self.usable = _winsorised(rows, at, few), fixed[few], ~flags[1][few]
        self.n_features = d
        self.design, self.rho, self.n_effective = Design(()), 0.0, 1.0
        self.noise: NoiseModel | None = None
        self.precision = np.ones(len(rows.X))

    def choose(self) -> None:
        """Choose the design, the ratio of variances of subjects and the noise in turn."""
        for turn in range(2 if self.subjects is None else 3):
            before = self.rho
            self._choose_mean()
            if turn == 0 and self.rho != before:
                continue
            if self.noise is not None or not self._choose_noise():
                break

    def projection(self) -> BasisProjection:
        """Return the projection off the design."""
        return subject_projection(
            self.U, self.penalty, self.nq, self.weights, self.subjects, self.rho
        )

    def _choose_mean(self) -> None:
        sample, apart = _sample_rows(self.at, self.nq), None
        if self.subjects is not None:
            sample = np.arange(len(self.X))
            apart = partial(without_subject, subjects=self.subjects, rho=self.rho)
        self.design, self.n_effective = select(
            without_subject(self.X, self.subjects, self.rho)[sample],
            int((sample < self.nq).sum()),
            self.at.take(sample),
            self.weights[sample],
            self.precision[sample],
            self.fixed,
            transform=apart,
        )
        few = self.X.shape[1]
        if few < self.n_features and self.n_effective > 0.5 * few:
            self.n_effective *= self.n_features / few
        self.U, self.penalty = self.design.columns(self.at, np.arange(len(self.X)) < self.nq)
        if self.subjects is not None:
            W = self.weights * self.precision
            self.rho = subject_ratio(
                self.U, self.penalty, self.X, self.nq, W, self.subjects, self.fixed
            )

    def _choose_noise(self) -> bool:
        """Choose what the variance depends on; return whether it depends on anything."""
        at, w, projection = self.at, self.weights, self.projection()
        clean = without_subject(self.X, self.subjects, self.rho)
        red = projection.solve(clean, None)
        dof = max(float(w.sum()) - projection.rank, 1.0)
        m = np.where(np.isnan(self.fixed), best_scale(red.G, red.n_eff, dof), self.fixed)
        h = np.minimum(projection.leverage * w[:, None], LARGEST_LEVERAGE)
        square = projection.residuals(clean, red, m) ** 2
        square /= residual_variance(red, m, dof) * (1 - h)
        count = np.bincount(at.category, w, minlength=at.n_categories)
        levels = at.n_categories > 1 and bool((count[count > 0] >= LEVEL_ROWS).all())
        if not self.usable.any():
            return False
        square = square[:, self.usable]
        pooled = min(self.n_effective, float(self.usable.sum()))
        noise = choose_noise(square, at, w, levels, pooled, self.design.index)
        if noise.empty:
            return False
        self.noise = noise
        self.precision = np.exp(-common_noise(noise, square, w, h, self.n_effective))
        return True


def _sample_rows(at: Covariates, n_query: int) -> Array:
    """Return rows that choose the design: evenly taken by value from either domain."""
    n = len(at.Z)
    if n <= MOST_CHOOSING_ROWS:
        return np.arange(n)
    order = np.lexsort((*at.Z.T, at.category))
    kept = []
    for side in (order[order < n_query], order[order >= n_query]):
        most = max(MOST_CHOOSING_ROWS // 2, MOST_CHOOSING_ROWS - (n - len(side)))
        kept.append(np.sort(side[subsample(len(side), most)]))
    return np.concatenate(kept)


def _winsorised(all_rows: _Rows, at: Covariates, few: Array) -> Array:
    """Return some features with residuals of a linear fit cut at 5 robust standard deviations."""
    X, nq = all_rows.X, all_rows.n_query
    out = X[:, few].copy()
    D = np.column_stack(
        [np.ones(len(X)), at.Z, level_columns(at) if at.n_categories <= 64 else at.Z[:, :0]]
    )
    for rows in (slice(0, nq), slice(nq, len(X))):
        if D.shape[1] * 3 > len(D[rows]):
            continue
        beta = np.linalg.lstsq(D[rows], out[rows], rcond=None)[0]
        e = out[rows] - D[rows] @ beta
        square = e * e
        kurtosis = (square * square).mean(0) / np.maximum(square.mean(0), 1e-300) ** 2
        heavy = np.flatnonzero(kurtosis > 3 + 2 * np.sqrt(24 / len(e)))
        if not len(heavy):
            continue
        e = e[:, heavy]
        middle = np.median(e, axis=0)
        spread = np.median(np.abs(e - middle), axis=0) / 0.6745
        spread = np.where(spread > 0, 5 * spread, np.inf)
        out[rows, heavy] -= e - np.clip(e, middle - spread, middle + spread)
    return out


def _assemble(
    parts: list[tuple[Array, Batch]],
    mean: Array,
    unit: Array,
    dof: float,
    flags: tuple[Array, Array, Array],
    fixed: Array,
    n_effective: float,
    **facts: Any,
) -> PooledFit:
    """Put batches together, in the user's units."""
    d = len(fixed)
    m, s2, nu, V, Vi, cov, n_eff = (np.empty(d) for _ in range(7))
    G, b = np.empty((3, d)), np.empty((2, d))
    for at, part in parts:
        m[at], s2[at], nu[at], V[at], Vi[at] = part.m, part.s2, part.nu, part.V, part.V_image
        cov[at], n_eff[at], G[:, at], b[:, at] = (
            part.covariance,
            part.red.n_eff,
            part.red.G,
            part.red.b,
        )
    uq, ur = unit
    free = np.isnan(fixed)
    # where the scale is given, the image is best known at the query's own mean: same line
    profile = np.stack([G[0], G[1] * uq / ur, G[2] * (uq / ur) ** 2]) / s2
    return PooledFit(
        scale=m * ur / uq,
        centre=mean[0] - b[1] * uq,
        image=mean[1] + b[0] * ur,
        se_log_scale=np.where(free, np.sqrt(V), 0.0),
        se_image=np.sqrt(Vi) * ur,
        covariance=np.where(free, cov * ur, 0.0),
        residual_sd=np.sqrt(s2 * (1 + facts.get("correlation_ratio", 0.0))) * ur,
        nu=nu,
        dof=np.full(d, dof),
        n_eff=n_eff,
        profile=profile,
        tied=flags[0],
        modal=flags[1],
        shift_only=flags[2],
        n_effective=n_effective,
        **facts,
    )


def _batches(at: Array, n_rows: int, values: int = FEATURE_VALUES) -> list[Array]:
    size = max(8, values // max(n_rows, 1))
    return [at[i : i + size] for i in range(0, len(at), size)]
