"""Fits from rows that are read again, block by block: sums of products with columns of a design.

The design and the form of the variance were chosen on a sample of rows; scales, offsets and the
weights of Student's t are estimated from all rows. Every sum has `update`, which adds a block of
rows, and `merge`, which adds another sum.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.conditionals.curves import Products
from condokit.data.arrays import ones_for_zeros
from condokit.data.covariates import Covariates
from condokit.data.products import GroupedProducts
from condokit.law.design import Design
from condokit.law.noise import NoiseModel, share_levels
from condokit.law.products import NodeRows, node_rows
from condokit.law.stacked import Found, Stacked, solve
from condokit.law.weights import NU_BINS, STILL, log_counts, nu_of_counts

MOST_PASSES = 12  # over all rows, until weights, scales and offsets are still
WEIGHTED_VALUES = 1 << 23  # products of columns of the features that are fitted in the same passes
_ROWS = 1 << 13  # rows of a piece, so that its arrays stay in cache

Again = Callable[[Callable[[], Any]], Any]  # something empty -> what it is after all rows
Units = tuple[Array, Array]  # means and spreads of features, (n_batches, n_features) each


class Columns:
    """The columns of a design and of its log-variance, chosen on a sample, computed for any rows.

    Columns that are constant within levels need no rows: they are stored by level. A group is a
    level in a batch.
    """

    def __init__(
        self,
        design: Design,
        noise: NoiseModel,
        at: Covariates,
        standards: list[Any],
        place: Array,
        n_batches: int = 2,
        reference: int = 1,
    ) -> None:
        self.design, self.standards, self.place = design, standards, place  # the group of each cell
        self.n_levels, self.n_batches, self.reference = at.n_categories, n_batches, reference
        self.others = np.delete(np.arange(n_batches), reference)
        self.n_groups = n_batches * at.n_categories
        U, self.penalty = design.columns(at)
        seen, first = np.unique(at.category, return_index=True)
        self.constant = np.zeros((self.n_levels, U.shape[1]))
        self.constant[seen] = U[first]
        self.varies = np.flatnonzero((self.constant[at.category] != U).any(axis=0))
        self.origin = np.zeros((self.n_groups, len(self.varies)))  # rough means of columns
        for k in seen:
            self.origin[k :: self.n_levels] = U[at.category == k][:, self.varies].mean(axis=0)
        self.model = noise

    @property
    def n_products(self) -> int:
        """How many products of columns each feature with weights needs."""
        return self.n_groups * (1 + len(self.varies)) ** 2

    def of(self, Z: Array, cell: Array) -> tuple[Array, Array, Covariates, Array]:
        """Return which rows are used, sorted by group; their groups, confounders and columns.

        `Z` are the confounders as given, `cell` is -1 for rows that are left out. Columns are those
        that vary within levels.
        """
        group = np.where(cell >= 0, self.place[cell], -1)
        used = np.argsort(
            group.astype(np.int16 if len(self.place) < 1 << 15 else int), kind="stable"
        )
        used = used[np.searchsorted(group[used], 0) :]
        group = group[used]
        z = [one(values) for one, values in zip(self.standards, Z[used].T)]
        at = Covariates(np.stack(z, axis=1), group % self.n_levels, self.n_levels)
        return used, group, at, self.design.columns(at)[0][:, self.varies]

    def whole(self, Phi: Array, level: Array, batch: Array) -> Array:
        """Return all columns, those of batches last, given those that vary within levels."""
        U = self.constant[level]
        U[:, self.varies] = Phi
        return np.column_stack([U, batch[:, None] == self.others])

    def stacked(self, nodes: NodeRows, units: Units, levels: bool) -> Stacked:
        """Return rows that stand for products with these columns.

        Variances differ by level if `levels` is true.
        """
        L = self.n_levels
        batch, level = np.divmod(nodes.group, L)
        X = (nodes.X - units[0][batch]) / units[1][batch]
        D, noise = self.whole(nodes.Phi, level, batch), NoiseModel.of_levels(level, L, levels)
        penalty = np.append(self.penalty, np.zeros(len(self.others)))
        where = batch, self.n_batches, self.reference
        return Stacked(X, D, penalty, *where, nodes.counts, noise)


class _InPieces(ABC):
    """A sum that adds blocks of rows in pieces that stay in cache."""

    def update(self, X: Array, Z: Array, cell: Array, weights: Array | None = None) -> None:
        """Add rows of features, continuous confounders and cells; a cell of -1 leaves a row out."""
        for start in range(0, len(X), _ROWS):
            few = slice(start, start + _ROWS)
            self.add(X[few], Z[few], cell[few], None if weights is None else weights[few])

    @abstractmethod
    def add(self, X: Array, Z: Array, cell: Array, weights: Array | None) -> None:
        """Add a piece."""


class PlainProducts(_InPieces):
    """Unweighted products of all rows with columns, for features that are normal."""

    def __init__(self, columns: Columns, n_features: int) -> None:
        self.columns = columns
        self.products = GroupedProducts(columns.n_groups, len(columns.varies), n_features)

    def add(self, X: Array, Z: Array, cell: Array, weights: Array | None) -> None:
        """Add a piece of rows."""
        used, group, _, Phi = self.columns.of(Z, cell)
        w = None if weights is None else weights[used]
        self.products.update(X[used], Phi, group, w)

    def merge(self, other: "PlainProducts") -> None:
        """Add another sum."""
        self.products.merge(other.products)


@dataclass
class State:
    """Present estimates for some features, in standard units; shapes end in n_features."""

    units: Units
    s: Array  # (n_batches,): scales
    theta: Array  # (n_columns,): coefficients of the mean
    sigma2: Array
    nu: Array
    level: Array  # (n_levels,): effects on the log-variance
    gamma: Array  # (n_noise,): coefficients of the log-variance's columns
    middle: Array  # mean of squared residuals in variances, outliers cut at 20

    @classmethod
    def of(
        cls, found: list[tuple[Found, int]], units: Units, at: Covariates, columns: Columns
    ) -> "State":
        """Return the estimates from sampled rows; each feature has a fit and its position there."""
        theta = [np.einsum("b,br->r", one.s[k], one.reduced.T[:, :, k]) for one, k in found]
        s, nu, sigma2 = (
            np.stack([getattr(one, name)[k] for one, k in found], axis=-1)
            for name in ("s", "nu", "sigma2")
        )
        zero, L = np.zeros(len(at.Z)), at.n_categories
        log_v = [zero if one.v is None else np.log(one.v[:, k]) for one, k in found]
        D = np.column_stack([at.category[:, None] == np.arange(L), columns.model.at(at).columns])
        effects = np.linalg.lstsq(D.astype(float), np.stack(log_v, axis=1), rcond=None)[0]
        rest = effects[:L], effects[L:], np.ones(len(nu))
        return cls(units, s, np.stack(theta, axis=1), sigma2, nu, *rest)


class WeightedSums(_InPieces):
    """Sums over rows weighted by their variances and Student's t, at the present estimates.

    Apart from products with columns, they have what `fit_in_passes` needs to renew the weights:
    numbers of rows, counts of log squared residuals in bins, and squared residuals by level and
    with the columns of the log-variance.
    """

    def __init__(self, columns: Columns, state: State) -> None:
        self.columns, self.state = columns, state
        L, groups, c = columns.n_levels, columns.n_groups, 1 + len(columns.varies)
        d, k = len(state.nu), len(state.gamma)
        shapes: dict[str, tuple[int, ...]] = {
            "gram": (groups, d, c, c),  # of 1 and the columns
            "cross": (groups, c, d),
            "squares": (groups, d),
            "rows": (groups, d),
            "logs": (d, NU_BINS),
            "weights": (d,),  # of Student's t
            "left": (L, d),  # squares of residuals
            "middle": (d,),
            "score": (k, d),
            "information": (k, k),
            "total": (k,),
        }
        self.tables = {name: np.zeros(shape) for name, shape in shapes.items()}

    def add(self, X: Array, Z: Array, cell: Array, weights: Array | None) -> None:
        """Add a piece of rows, with weights from the present estimates."""
        state, columns, sums = self.state, self.columns, self.tables
        used, group, at, Phi = columns.of(Z, cell)
        batch, level, N = group // columns.n_levels, at.category, columns.model.at(at).columns
        X, known = (X[used] - state.units[0][batch]) / state.units[1][batch], ~np.isnan(X[used])
        X = np.where(known, X, 0.0)
        w = (np.ones(len(X)) if weights is None else weights[used])[:, None] * known
        curve = np.clip(N @ state.gamma, -6, 6)
        e = X * state.s[batch] - columns.whole(Phi, level, batch) @ state.theta
        left = e**2 * np.exp(-curve) / state.sigma2  # effects of levels are renewed from these
        square = left * np.exp(-state.level[level])
        nu = np.where(np.isinf(state.nu), 1e8, state.nu)
        t = (nu + 1) / (nu + square)
        W, V = w * t * np.exp(-curve - state.level[level]), Phi - columns.origin[group]
        V = np.column_stack([np.ones(len(V)), V])
        first = np.flatnonzero(np.diff(group, prepend=-1))
        for start, stop in zip(first, [*first[1:], len(V)]):
            mine, g = slice(start, stop), group[start]
            WX = W[mine] * X[mine]
            sums["gram"][g] += Products(V[mine]).gram(W[mine])
            sums["cross"][g] += V[mine].T @ WX
            sums["squares"][g] += (WX * X[mine]).sum(axis=0)
            sums["rows"][g] += w[mine].sum(axis=0)
            sums["left"][level[start]] += (w[mine] * t[mine] * left[mine]).sum(axis=0)
        square *= t
        sums["middle"] += (w * np.minimum(square, 20)).sum(axis=0)
        sums["score"] += 0.5 * N.T @ (w * np.clip(square / state.middle - 1, -1, 15))
        sums["information"] += 0.5 * (N * w.mean(axis=1, keepdims=True)).T @ N
        sums["total"] += w.mean(axis=1) @ N
        sums["weights"] += (w * t).sum(axis=0)
        sums["logs"] += log_counts(np.where(known, square / t, 1.0), w)

    def merge(self, other: "WeightedSums") -> None:
        """Add another sum."""
        for name, table in self.tables.items():
            table += other.tables[name]

    def products(self, j: int) -> GroupedProducts:
        """Return the products of feature j as means and products around them, in standard units."""
        gram, cross = self.tables["gram"][:, j], self.tables["cross"][:, :, j]
        found = GroupedProducts(len(gram), gram.shape[1] - 1, 1)
        found.count, n = gram[:, 0, 0], ones_for_zeros(gram[:, 0, 0])[:, None]
        V = np.concatenate([gram[:, 0, 1:], cross[:, :1]], axis=1) / n
        raw = np.concatenate([gram[:, 1:, 1:], cross[:, 1:, None]], axis=2)
        found.scatter = raw - n[:, :, None] * V[:, :-1, None] * V[:, None, :]
        found.squares = self.tables["squares"][:, [j]] - n * V[:, -1:] ** 2
        found.mean = V
        found.mean[:, :-1] += self.columns.origin
        return found


def fit_in_passes(
    columns: Columns, state: State, again: Again, fixed: Array, errors: Array, n_effective: float
) -> list[tuple[Stacked, Found]]:
    """Read all rows until weights, scales and offsets are still; return the fit of each feature.

    This is the iteration of `fit_weights`, but all quantities are renewed from the sums of one
    pass. `errors` are the standard errors of log-scales and images, (2, K - 1, n_features): a
    change must be less than 0.02 of them.
    """
    for _ in range(MOST_PASSES):
        part = again(partial(WeightedSums, columns, state))
        sums, before = part.tables, _maps(state, columns)
        found = [
            _solved(columns, part.products(j), sums["rows"][:, j], fixed[[j]])
            for j in range(len(fixed))
        ]
        theta = [np.einsum("b,br->r", one.s[0], one.reduced.T[:, :, 0]) for _, one in found]
        s = np.stack([one.s[0] for _, one in found], axis=1)
        nu = np.where(np.isinf(state.nu), np.inf, nu_of_counts(sums["logs"]))
        n = sums["rows"].sum(axis=0)
        sigma2 = np.concatenate([one.sigma2 for _, one in found]) * n / sums["weights"]
        state, changed = (
            replace(
                _renewed(columns, state, sums, n_effective),
                s=s,
                theta=np.stack(theta, axis=1),
                sigma2=sigma2,
                nu=nu,
            ),
            (nu != state.nu).any(),
        )
        moved = np.abs(_maps(state, columns) - before) / np.maximum(errors, 1e-300)
        if moved.max() < STILL and not changed:
            break
    return [(at, replace(one, nu=nu[[j]])) for j, (at, one) in enumerate(found)]


def _maps(state: State, columns: Columns) -> Array:
    """Return log-scales and offsets of the batches that are mapped, (2, K - 1, n_features)."""
    return np.stack([np.log(state.s[columns.others]), state.theta[-len(columns.others) :]])


def _renewed(columns: Columns, state: State, sums: dict[str, Array], n_effective: float) -> State:
    """Renew the coefficients of the log-variance, as `renew_noise` does."""
    noise, n = columns.model, sums["rows"].sum(axis=0)
    level, gamma = state.level, state.gamma
    rows = sums["rows"].reshape(columns.n_batches, columns.n_levels, -1).sum(axis=0)
    if noise.levels:
        level, _ = share_levels(sums["left"], rows, n_effective)
    if len(gamma):
        A = sums["information"] + np.diag(1 / noise.prior)
        common = gamma.mean(axis=1, keepdims=True) * (n_effective / (n_effective + 1))
        score = sums["score"] - (gamma - common) / noise.prior[:, None]
        gamma = gamma + np.linalg.solve(A, score)
    centre = ((rows * level).sum(axis=0) + sums["total"] @ gamma) / n
    middle = np.maximum(sums["middle"] / n, 1e-300)
    return replace(state, level=level - centre, gamma=gamma, middle=middle)


def _solved(
    columns: Columns, products: GroupedProducts, rows: Array, fixed: Array
) -> tuple[Stacked, Found]:
    """Solve for one feature, given weighted products and how many rows each group has."""
    weight = np.where(products.count > 0, products.count / np.maximum(rows, 1e-300), 1.0)
    nodes = node_rows(products)
    nodes = replace(nodes, counts=nodes.counts / weight[nodes.group][:, None])
    K = columns.n_batches
    at = columns.stacked(nodes, (np.zeros((K, 1)), np.ones((K, 1))), False)
    return at, solve(at, fixed, weight[nodes.group][:, None])
