"""Columns of the confounders: those that are always fitted, and blocks that must be earned.

The mean of every feature given the confounders is ``U beta``, ``U = [D, Phi_1, ..., Phi_k]``. D is
unpenalised: an intercept, the continuous columns, the levels of the category, and the indicators of
batches. Coefficients of a block Phi_k are N(0, theta_k s2), with s2 the residual variance and
theta_k the block's share. Blocks enter one at a time, as long as the features together support one
(`select`): so curves are straight unless the data say otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.spatial.distance import cdist

from condokit.checks import LARGEST, SMALLEST, Array
from condokit.conditionals.curves import cross
from condokit.data.arrays import independent, quantiles
from condokit.data.basis import KNOTS, MOST_PAIRED, Cubic, RangeBasis, paired
from condokit.data.covariates import Covariates
from condokit.data.subsets import subsample

Function = Callable[[Covariates], Array]

NOISE_KNOTS = 6  # of splines of the log-variance, and of curves by level
MOST_CURVES = 40  # continuous columns up to which each gets a curve
MOST_INTERACTING = 16  # continuous columns beyond which no kernel is tried
MOST_CROSSED = 60  # columns of a block that crosses levels with columns
SMOOTHEST = 4  # functions of a curve by level, where products are all that is known
LANDMARKS = 200, 400  # fewest and most rows that a kernel compares with (Nystroem); else n / 10
FEWEST_RANK = 40  # columns of a kernel, at least; else one for 20 rows
ROWS_PER_COLUMN = 4.0  # with fewer rows per column of D, its columns are penalised too
INDEX_COST = 0.25  # nats per continuous column: an index was fitted to the data
_MOST_DIRECTIONS = 8  # principal directions of features that are kept, at most,
_ROWS_A_DIRECTION = 8  # and rows needed for each
_MOST_COMPARED = 300  # features of which all pairs are compared
_LEAST_ALONG = 1e-3  # added to the variance along a direction, in that of one feature


def level_columns(at: Covariates) -> Array:
    """Return indicators of all levels but the first, (n_rows, n_levels - 1)."""
    return (at.category[:, None] == np.arange(1, at.n_categories)).astype(float)


@dataclass(frozen=True)
class Block:
    """A penalised block of columns.

    `always` marks one that is not selected: columns of D, penalised because rows are few.
    """

    name: str
    function: Function
    unit: float = 1.0  # factor of the columns, so that their mean row variance is 1
    always: bool = False
    cost: float = 0.0  # extra evidence demanded of a fitted direction (nats)

    def __call__(self, at: Covariates) -> Array:
        """Return the columns of some rows."""
        return self.function(at) * self.unit


@dataclass(frozen=True)
class Design:
    """The columns of U: those of D, then the chosen blocks with their shares theta."""

    free: tuple[Function, ...]
    blocks: tuple[Block, ...] = ()
    shares: tuple[float, ...] = ()
    kept: Array = field(default_factory=lambda: np.ones(0, dtype=bool))  # not repeated
    index: Array | None = None  # direction of Z along which features move most

    def columns(self, at: Covariates) -> tuple[Array, Array]:
        """Return U and the penalty 1 / theta of each column, zero for those of D."""
        free = self.unpenalised(at)
        parts = [block(at) for block in self.blocks]
        penalty = [np.full(part.shape[1], 1 / share) for part, share in zip(parts, self.shares)]
        return np.hstack([free, *parts]), np.concatenate([np.zeros(free.shape[1]), *penalty])

    def unpenalised(self, at: Covariates) -> Array:
        """Return D without the indicators of batches."""
        parts = [np.ones((len(at.Z), 1)), *(part(at) for part in self.free)]
        free = np.hstack(parts)
        return free[:, self.kept] if len(self.kept) else free


def spline(axis: Array, at: Covariates, n_knots: int) -> Function | None:
    r"""Return a natural cubic spline of ``Z @ axis`` without its linear part, or None.

    Radial functions :math:`|t - k|^3` of knots k at the ends and at quantiles, with coefficients
    orthogonal to 1 and k, and turned so that the wiggliness :math:`\int f''^2` is a sum of squares.
    """
    place = (axis.tobytes(), n_knots)
    if place not in at.splines:
        at.splines[place] = _spline(axis, at, n_knots)
    return at.splines[place]


def _spline(axis: Array, at: Covariates, n_knots: int) -> Function | None:
    """Return what `spline` does, anew."""
    values = np.unique(at.Z @ axis)
    if len(values) < 3:
        return None
    at_most = min(n_knots, len(values))
    knots = values
    if len(values) > at_most:
        share = np.array([0, *(np.arange(at_most - 2) + 0.5) / (at_most - 2), 1])
        knots = np.unique(quantiles((at.Z @ axis)[:, None], share, at.weights))
        if len(knots) < 3:
            knots = np.linspace(values[0], values[-1], at_most)
    cubic = Cubic(knots)
    return lambda rows: cubic.bent(rows.Z @ axis)


class Kernel:
    """Columns of a Gaussian kernel over all continuous confounders (Nystroem).

    Landmarks are taken evenly from the rows in the order of their values, so that the order in
    which rows are given does not matter.
    """

    def __init__(self, at: Covariates) -> None:
        n = len(at.Z)
        self.marks = at.Z[np.lexsort(at.Z.T)[subsample(n, int(np.clip(n // 10, *LANDMARKS)))]]
        self.rank = int(np.clip(n // 20, FEWEST_RANK, len(self.marks)))

    @cached_property
    def _turn(self) -> Array:
        """The matrix that turns kernel values at landmarks into orthogonal columns."""
        value, vector = np.linalg.eigh(self._compare(self.marks))
        value, vector = value[::-1][: self.rank], vector[:, ::-1][:, : self.rank]
        good = value > 1e-8 * value[0]
        return np.asarray(vector[:, good] / np.sqrt(value[good]))

    def _compare(self, Z: Array) -> Array:
        """Return the kernel between rows and landmarks; its width grows with the columns."""
        away = cdist(Z, self.marks, "sqeuclidean")
        away /= -1.44 * Z.shape[1]
        return np.asarray(np.exp(away, out=away))

    def __call__(self, at: Covariates) -> Array:
        """Return the columns of some rows, (n_rows, rank)."""
        return self._compare(at.Z) @ self._turn


def free_columns(at: Covariates, basis: RangeBasis | None = None) -> tuple[Design, list[Block]]:
    """Return D, and as blocks those of its columns that must be penalised, since rows are too few.

    For rows that stand for products, `basis` has the functions of Z with which these were taken.
    """
    linear: Function = attrgetter("Z")
    n, p = at.Z.shape
    if basis is not None:
        n, p = int(at.counts.sum()), len(basis.names)
        linear = _columns(slice(0, p))
    free: list[Function] = []
    always: list[Block] = []
    taken = 2.0
    columns = (("levels", at.n_categories - 1, level_columns), ("linear", p, linear))
    for name, size, function in columns:
        if size and n >= ROWS_PER_COLUMN * (taken + size):
            taken += size
            free.append(function)
        elif size:
            always.append(Block(name, function, always=True))
    D = Design(tuple(free)).unpenalised(at)
    return Design(tuple(free), kept=independent(D)), always


def candidates(at: Covariates, index: Array | None, basis: RangeBasis | None = None) -> list[Block]:
    """Return the blocks that may enter: curves, an index, slopes by level, interactions.

    If data are known only as products with a `basis`, they are made of its functions.
    """
    n, p, K = *at.Z.shape, at.n_categories
    linear, products = _columns(slice(0, p)), paired
    curves: list[tuple[str, Function | None, Function | None]] = []  # and coarser ones, by level
    if basis is not None:
        p, start = len(basis.names), len(basis.names) + basis.n_pairs
        linear, products = _columns(slice(0, p)), lambda Z: Z[:, p:start]
        for k, end in enumerate(start + basis.n_bent * np.arange(1, p + 1)):
            fine, coarse = (_columns(slice(end - m, end)) for m in (basis.n_bent, SMOOTHEST))
            curves.append((f"curve {k}", fine, coarse))
    else:
        axes = [
            (f"curve {k}", axis) for k, axis in enumerate(np.eye(p) if p <= MOST_CURVES else [])
        ]
        if index is not None and p > 1:
            axes.append(("index", index))
        for name, axis in axes:
            curves.append((name, spline(axis, at, KNOTS), spline(axis, at, NOISE_KNOTS)))
    costs = {"index": INDEX_COST * (p - 1)}
    found = [Block(name, one, cost=costs.get(name, 0.0)) for name, one, _ in curves if one]
    if basis.n_pairs if basis is not None else 1 < p <= MOST_PAIRED:
        found.append(Block("products", lambda rows: products(rows.Z)))
    if K > 1 and p and p * (K - 1) <= MOST_CROSSED:
        found.append(Block("slopes", _crossed(linear)))
        if (NOISE_KNOTS if basis is None else SMOOTHEST) * (K - 1) <= MOST_CROSSED:
            found += [Block(f"{name} by level", _crossed(one)) for name, _, one in curves if one]
    if basis is None and 1 < p <= MOST_INTERACTING and n >= 40:
        found.append(Block("rbf", Kernel(at)))
    return found


def _columns(own: slice) -> Function:
    """Return a function that selects columns of Z, which may be functions of a basis."""
    return lambda rows: rows.Z[:, own]


def _crossed(function: Function) -> Function:
    """Return a function whose columns are crossed with indicators of levels."""
    return lambda rows: cross(level_columns(rows), function(rows))


@dataclass(frozen=True)
class Together:
    """How features correlate, from residuals E with columns of length one.

    The sum of squared correlations and the main directions can be had from E'E, (n_features,
    n_features), as well as from EE', (n_rows, n_rows). The smaller one is kept: 22,283 genes would
    need three matrices of 4 GB.
    """

    gram: Array  # EE' or E'E
    columns: Array  # (n_rows, n_varying): E if the gram is EE', else (0, n_varying)
    varies: Array  # the numbers of the features that vary
    n_rows: float

    @classmethod
    def of_residuals(cls, residuals: Array, n_rows: float) -> "Together":
        """Compute correlations of the columns of residuals, which stand for `n_rows` rows."""
        size = np.sqrt(np.einsum("nd,nd->d", residuals, residuals))
        varies = np.flatnonzero(size > 0)
        E = residuals[:, varies] / size[varies]
        wide = len(E) < E.shape[1]
        gram = E @ E.T if wide else E.T @ E
        return cls(gram, E if wide else E[:0], varies, n_rows)

    @classmethod
    def of_products(cls, products: Array, n_rows: float) -> "Together":
        """Compute correlations from sums of products of residuals, (n_features, n_features)."""
        size = np.sqrt(np.maximum(np.diag(products), 0.0))
        varies = np.flatnonzero(size > 0)
        gram = products[np.ix_(varies, varies)] / np.outer(size[varies], size[varies])
        return cls(gram, np.zeros((0, len(varies))), varies, n_rows)

    def among(self, features: Array) -> "Together":
        """Return the same for a larger table, in which these are the numbers of its features."""
        return replace(self, varies=features[self.varies])

    @property
    def number(self) -> float:
        """The effective number of independent features: :math:`d / (1 + (d - 1) r^2)`.

        :math:`r^2` is the mean squared correlation, less the 1/n that independent features have.
        """
        d, square = len(self.varies), float(np.einsum("ij,ij->", self.gram, self.gram))
        if d < 2:
            return 1.0
        r2 = min(max((square - d) / (d * (d - 1)) - 1 / max(self.n_rows, 1.0), 0.0), 1.0)
        return d / (1 + (d - 1) * r2)

    @property
    def alike(self) -> float:
        """The mean correlation of two features, at least 0."""
        d = len(self.varies)
        total = np.sum(self.columns.sum(axis=1) ** 2) if len(self.columns) else self.gram.sum()
        return max(float(total - d) / (d * (d - 1)), 0.0) if d > 1 else 0.0

    @cached_property
    def apart(self) -> float:
        r"""The effective number of differences between features' log-scales.

        Errors of log-scales correlate by squared correlations of features. Without what they have
        in common, these are C, and the number is :math:`(\mathrm{tr}\, C)^2 / \mathrm{tr}\, C^2`.
        """
        few = subsample(len(self.varies), _MOST_COMPARED)
        if len(few) < 3:
            return 1.0
        E = self.columns[:, few]
        square = (E.T @ E if len(E) else self.gram[np.ix_(few, few)]) ** 2
        square -= square.mean(axis=0)
        square -= square.mean(axis=1, keepdims=True)
        return float(np.trace(square) ** 2 / max(np.einsum("ij,ij->", square, square), 1e-300))

    def number_of(self, n_features: int) -> float:
        """Return the effective number of all features, given that of the subset that was compared.

        It grows in proportion if the subset is nearly independent (more than half of its number);
        else further features are taken as copies of these. It is 1 if nothing is known.
        """
        number, d = self.number, len(self.varies)
        return number / d * n_features if 0 < d < n_features and number > 0.5 * d else number

    def facts(self, n_features: int) -> dict[str, Any]:
        """Return what maps of all features know of these correlations: see `posterior.Maps`."""
        number, directions = self.number_of(n_features), self.directions(n_features)
        return {"n_effective": number, "directions": directions, "n_apart": self.apart}

    def directions(self, n_features: int) -> Array:
        """Return weights of the main sums of features, (n_features, k), each of variance one.

        Features have variance one. Small variances along a direction are underestimated from n
        rows, so 1/n of the variance that is left, and a constant, are added to them.
        """
        d, n = len(self.varies), len(self.gram)
        k = min(_MOST_DIRECTIONS, int(self.n_rows / _ROWS_A_DIRECTION), n)
        found = np.zeros((n_features, k))
        if d < 2 or not k:
            return found[:, :0]
        variance, axes = eigh(self.gram, subset_by_index=[n - k, n - 1])
        variance = np.maximum(variance, 1e-12 * d)
        if len(self.columns):
            axes = self.columns.T @ axes / np.sqrt(variance)
        left = max(d - variance.sum(), 0.0) / self.n_rows
        found[self.varies] = axes / np.sqrt(variance + left + _LEAST_ALONG)
        return found


def best_scale(G: Array, n_eff: Array | float, dof: Array | float) -> Array:
    r"""Return the scale that maximises the likelihood with the variance profiled out.

    It minimises :math:`-n \log m + \tfrac{dof}{2} \log(G_{00} + 2 m G_{01} + m^2 G_{11})`, n being
    the effective number of query rows, and is the positive root of
    :math:`(dof - n) G_{11} m^2 + (dof - 2 n) G_{01} m - n G_{00} = 0`. Of the two forms of the
    root, the one is used in which no difference of nearly equal numbers is taken.
    """
    G00, G01, G11 = G
    n = np.minimum(np.maximum(n_eff, 0.25), 0.98 * np.asarray(dof))
    a = np.maximum((dof - n) * G11, 1e-300)
    half = (dof - 2 * n) * G01 / 2
    c = n * np.maximum(G00, 0.0)
    root = np.sqrt(half**2 + a * c)
    with np.errstate(over="ignore"):
        m = np.where(half < 0, (root - half) / a, c / np.maximum(root + half, 1e-300))
    return np.clip(m, SMALLEST, LARGEST)
