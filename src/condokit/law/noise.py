"""Variance given the confounders: levels by empirical Bayes, columns by pooled evidence."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import sums_of
from condokit.data.covariates import Covariates
from condokit.law.design import NOISE_KNOTS, Function, spline
from condokit.summaries.moments import share_levels as share_levels

NOISE_EVIDENCE = 2.0  # nats that a block must gain, beside log(n_effective) / 2


def weighted(weights: Array, values: Array) -> Array:
    """Return weighted sums over rows; weights have the shape (n_rows, 1) or that of the values."""
    if weights.shape[1] == 1:
        return np.asarray(weights[:, 0] @ values)
    return np.einsum("nd,nd->d", weights, values)


@dataclass(frozen=True)
class NoiseModel:
    """The log-variance of rows, log v = effect of the level + columns @ coefficients.

    Effects and coefficients are both shrunk.
    """

    category: Array  # (n_rows,): the level of each row
    n_categories: int
    levels: bool  # whether levels have variances of their own
    columns: Array  # (n_rows, n_columns)
    prior: Array  # (n_columns,): prior variance of each coefficient
    names: tuple[str, ...] = ()
    functions: tuple[Function, ...] = ()  # that give the columns of any rows

    @classmethod
    def of_levels(cls, category: Array, n_categories: int, levels: bool) -> "NoiseModel":
        """Return a model whose variances differ between levels, or are equal without `levels`."""
        none = np.zeros((len(category), 0))
        return cls(category, n_categories, levels, none, np.zeros(0))

    def at(self, at: Covariates) -> "NoiseModel":
        """Return the model for other rows."""
        columns = [np.zeros((len(at.Z), 0)), *(one(at) for one in self.functions)]
        return replace(self, category=at.category, columns=np.hstack(columns))

    @property
    def empty(self) -> bool:
        """Whether the variance is constant."""
        return not self.levels and not self.columns.shape[1]

    def group(self, values: Array) -> Array:
        """Return sums over the rows of each level."""
        return self._cells @ values

    @cached_property
    def _cells(self) -> Any:
        """The sparse matrix that sums rows by level."""
        return sums_of(self.category, self.n_categories)


def choose_noise(
    squares: Array,
    at: Covariates,
    weights: Array,
    levels: bool,
    n_effective: float,
    index: Array | None = None,
) -> NoiseModel:
    r"""Choose what the variance depends on, by score evidence pooled over features.

    `squares`, (n_rows, n_features), are standardised squared residuals; :math:`u = r^2 - 1` over
    its standard deviation is regressed on each continuous column, then on its spline. For a block
    of columns V with eigenvalues l of V'V and scores c = V'u along its eigenvectors, the evidence
    at share t is :math:`\tfrac12 \sum c^2 t / (1 + t l) - \tfrac12 \sum \log(1 + t l)`. The best
    block enters, at most 4 in turn.
    """
    n, p = at.Z.shape
    u = np.clip(squares - 1, -1, 15)  # one outlier must not decide
    model = NoiseModel.of_levels(at.category, at.n_categories, levels)
    if levels:
        u = u - (model.group(u) / np.maximum(model.group(np.ones((n, 1))), 1))[at.category]
    u = u - weights @ u / weights.sum()
    spread = np.sqrt(np.maximum((weights @ u**2) / weights.sum(), 1e-300))
    u = u / spread
    names, prior = [], []
    chosen: list[Function] = []
    axes = [(f"z{k}", axis) for k, axis in enumerate(np.eye(p))]
    if index is not None:
        axes.append(("index", index))
    parts: dict[str, Function] = {}
    for name, axis in axes:
        parts[name] = partial(_along, axis)
        if (curve := spline(axis, at, NOISE_KNOTS)) is not None:
            parts[f"curve {name}"] = curve
    parts = {
        name: _centred(one, parts[name.removeprefix("curve ")], at, weights)
        for name, one in parts.items()
    }
    tried = {name: one(at) for name, one in parts.items()}
    grid = np.logspace(-5, 0.5, 23)
    for _ in range(4):
        best = (NOISE_EVIDENCE + 0.5 * np.log(n_effective), "", np.zeros((n, 0)), 0.0)
        for name, values in tried.items():
            if name in names or not values.any():
                continue
            value, vector = np.linalg.eigh((values * weights[:, None]).T @ values)
            value = np.maximum(value, 0.0)
            score = (vector.T @ ((values * weights[:, None]).T @ u)) ** 2
            mean = score.mean(1)
            gain = [0.5 * (mean * t / (1 + t * value) - np.log1p(t * value)).sum() for t in grid]
            at_best = int(np.argmax(gain))
            if gain[at_best] * n_effective > best[0]:
                best = (gain[at_best] * n_effective, name, values, float(grid[at_best]))
        if not best[1]:
            break
        _, name, values, share = best
        names.append(name)
        chosen.append(parts[name])
        prior.append(np.full(values.shape[1], 2 * share))
        A = (values * weights[:, None]).T @ values + np.eye(values.shape[1]) / share
        u = u - values @ np.linalg.solve(A, (values * weights[:, None]).T @ u)
    if names:
        found = tuple(names), tuple(chosen)
        model = replace(model, prior=np.concatenate(prior), names=found[0], functions=found[1])
    return model.at(at)


def _along(axis: Array, at: Covariates) -> Array:
    """Return the projection of confounders on an axis."""
    return (at.Z @ axis)[:, None]


def _centred(function: Function, line: Function, at: Covariates, weights: Array) -> Function:
    """Return a function without its mean and, unless it is one, its linear part.

    Its mean square is one over the given rows.
    """
    share = weights / weights.sum()
    z, values, middle = line(at), function(at), share @ line(at)
    slope = np.zeros((1, values.shape[1]))
    if function is not line:
        square = max(float(share @ (z[:, 0] - middle) ** 2), 1e-300)
        slope = (share * (z[:, 0] - middle)) @ values / square
    rest = values - (z - middle) * slope
    origin = share @ rest
    size = np.sqrt(share @ ((rest - origin) ** 2).sum(axis=1))
    unit = 1 / size if size > 0 else 0.0
    return lambda rows: unit * (function(rows) - (line(rows) - middle) * slope - origin)


@dataclass
class Learned:
    """What steps of the log-variance know of all features: these are pulled towards each other."""

    gamma: Array  # (n_columns, n_features): coefficients of columns
    squares: Array  # (n_levels, n_features): squared residuals, and
    dof: Array  # how many these are worth

    @classmethod
    def nothing(cls, noise: NoiseModel, d: int) -> "Learned":
        """Return the state before the first step."""
        by_level = np.zeros((2, noise.n_categories, d))
        return cls(np.zeros((noise.columns.shape[1], d)), *by_level)


def renew_noise(
    noise: NoiseModel,
    squares: Array,
    learned: Learned,
    weights: Array,
    h: Array,
    n_effective: float,
    features: Array | slice,
) -> tuple[Array, float]:
    """Renew the variances v of rows of some features by one step, and what is `learned`.

    `squares` are weighted squared residuals over sigma2 that are not yet divided by v. Coefficients
    of columns are pulled towards their mean over features. The second result is the precision of
    the prior of levels. Logarithms of v have a weighted mean of 0, since sigma2 has the level.
    """
    n, d = squares.shape
    level, gamma = np.zeros((noise.n_categories, d)), learned.gamma[:, features]
    precision, free = np.inf, weights * (1 - h)
    curve = np.clip(noise.columns @ gamma, -6, 6) if len(gamma) else None
    if noise.levels:
        squares_left = squares * (free if curve is None else np.exp(-curve) * free)
        learned.squares[:, features] = noise.group(squares_left)
        learned.dof[:, features] = noise.group(free)
        level, precision = share_levels(learned.squares, learned.dof, n_effective)
        level = level[:, features]
    if curve is None:
        rows = noise.group(weights)
        return np.exp(level - (rows * level).sum(0) / rows.sum(0))[noise.category], precision
    own = level[noise.category] if noise.levels else 0.0
    columns = noise.columns * weights.mean(axis=1, keepdims=True)
    # a normal residual has the information 1/2 on its log-variance
    A = 0.5 * columns.T @ noise.columns + np.diag(1 / noise.prior)
    u = squares * np.exp(-curve - own)
    middle = weighted(weights, np.minimum(u, 20)) / weights.sum(0)
    u = np.clip(u / np.maximum(middle, 1e-300) - 1, -1, 15)
    common = learned.gamma.mean(axis=1, keepdims=True) * (n_effective / (n_effective + 1))
    score = 0.5 * noise.columns.T @ (weights * u)
    score -= (gamma - common) / noise.prior[:, None]
    gamma = gamma + np.linalg.solve(A, score)
    learned.gamma[:, features] = gamma
    total = np.clip(noise.columns @ gamma, -6, 6) + own
    return np.exp(total - weighted(weights, total) / weights.sum(0)), precision


def common_noise(
    noise: NoiseModel, squares: Array, weights: Array, h: Array, n_effective: float
) -> Array:
    """Return the variance of rows that all features together have, (n_rows,)."""
    mean = np.minimum(squares, 16).mean(1, keepdims=True)
    learned, one = Learned.nothing(noise, 1), np.zeros(1, dtype=np.intp)
    for _ in range(8):
        v, _ = renew_noise(noise, mean, learned, weights[:, None], h, n_effective, one)
    return v[:, 0]


def noise_part(
    curve: Array, wa: Array, r: Array, weights: Array, noise: NoiseModel, precision: float
) -> tuple[Array, Array]:
    """Return what the log-variance takes from the score of the log-scale, and from its curvature.

    Let P be the columns of the log-variance, levels included, and `ka`, `kr` each row's second
    derivative by log-scale and log-variance, and by log-variance alone. With a = (P'kr P + prior
    precision)^-1 P'ka these are P a, the multiple of t by row, and (P'ka)'a. Levels are eliminated
    first, since there can be many.
    """
    n, d = r.shape
    ka, kr = 0.5 * curve * wa, 0.25 * curve * r * weights
    if noise.empty:
        L, Q = ka.sum(0), np.maximum(kr.sum(0), 1e-12)
        return np.broadcast_to(L / Q, (n, d)), L**2 / Q
    P = np.column_stack([np.ones(n), noise.columns])
    c = P.shape[1]
    u = P.T @ ka
    upper = np.triu_indices(c)
    HPP = np.zeros((d, c, c))
    HPP[:, upper[0], upper[1]] = kr.T @ (P[:, upper[0]] * P[:, upper[1]])
    HPP[:, upper[1], upper[0]] = HPP[:, upper[0], upper[1]]
    HPP[:, np.arange(1, c), np.arange(1, c)] += 1 / noise.prior
    if noise.levels and np.isfinite(precision):
        L, Q = noise.group(ka), np.maximum(noise.group(kr), 0.0) + precision
        HkP = np.stack([noise.group(kr * P[:, [i]]) for i in range(c)])  # (c, K, d)
        u = u - (HkP * (L / Q)).sum(1)
        HPP = HPP - np.einsum("ikd,kd,jkd->dij", HkP, 1 / Q, HkP, optimize=True)
    ridge = 1e-9 * np.trace(HPP, axis1=1, axis2=2)[:, None, None] * np.eye(c) + 1e-12 * np.eye(c)
    x = np.linalg.solve(HPP + ridge, u.T[:, :, None])[:, :, 0].T  # (c, d)
    freed = P @ x
    drop = (u * x).sum(0)
    if noise.levels and np.isfinite(precision):
        own = (L - np.einsum("ikd,id->kd", HkP, x)) / Q
        freed = freed + own[noise.category]
        drop = drop + (L**2 / Q).sum(0)
    return freed, drop
