"""Functions of the confounders: columns that are always fitted, and blocks that must be earned.

The mean of every feature given the confounders is ``U beta``, ``U = [D, Phi_1, ..., Phi_k]``. D is
unpenalised: an intercept, the continuous columns, the levels of the category, and the indicators of
batches. Each block Phi_k has coefficients N(0, theta_k s2), s2 the residual
variance. Blocks enter one at a time, while the features together speak for them (`select`).
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

NOISE_KNOTS = 6
MOST_CURVES = 40  # continuous columns that get a curve of their own
MOST_INTERACTING = 16  # continuous columns beyond which no kernel is tried
MOST_CROSSED = 60  # columns of a block that crosses levels with columns
SMOOTHEST = 4  # functions of a curve, that levels may have of their own
LANDMARKS = 400
FEWEST_RANK = 40
ROWS_PER_COLUMN = 4.0  # fewer rows than this per column of D: its columns are penalised too
INDEX_COST = 0.25  # evidence per column of an index
_MOST_DIRECTIONS = 8  # in which features move together,
_ROWS_A_DIRECTION = 8  # and rows that each of them takes
_LEAST_ALONG = 1e-3  # variance along a direction, in that of a feature, that counts as noise


def level_columns(at: Covariates) -> Array:
    """Return indicators of all levels but the first."""
    return (at.category[:, None] == np.arange(1, at.n_categories)).astype(float)


@dataclass(frozen=True)
class Block:
    """A penalised block of columns.

    `always` is one that is not up for selection: columns of D that rows are too few to leave free.
    """

    name: str
    function: Function
    unit: float = 1.0
    always: bool = False
    cost: float = 0.0  # evidence that it must bring beyond others, for a direction that was fitted

    def __call__(self, at: Covariates) -> Array:
        """Return its columns."""
        return self.function(at) * self.unit


@dataclass(frozen=True)
class Design:
    """The columns of U: D, then the chosen blocks with their shares theta."""

    free: tuple[Function, ...]
    blocks: tuple[Block, ...] = ()
    shares: tuple[float, ...] = ()
    kept: Array = field(default_factory=lambda: np.ones(0, dtype=bool))
    index: Array | None = None  # direction of Z in which features move most

    def columns(self, at: Covariates) -> tuple[Array, Array]:
        """Return U and the penalty 1 / theta of each column, zero for those of D."""
        free = self.unpenalised(at)
        parts = [block(at) for block in self.blocks]
        penalty = [np.full(part.shape[1], 1 / share) for part, share in zip(parts, self.shares)]
        return np.hstack([free, *parts]), np.concatenate([np.zeros(free.shape[1]), *penalty])

    def unpenalised(self, at: Covariates) -> Array:
        """Return D without batches."""
        parts = [np.ones((len(at.Z), 1)), *(part(at) for part in self.free)]
        free = np.hstack(parts)
        return free[:, self.kept] if len(self.kept) else free


def spline(axis: Array, at: Covariates, n_knots: int) -> Function | None:
    r"""Return a natural cubic spline of ``Z @ axis`` without its linear part, or None.

    Radial functions :math:`|t - k|^3` of knots k at the ends and at quantiles, with coefficients
    orthogonal to 1 and k, and turned so that the wiggliness :math:`\int f''^2` is a sum of squares.
    """
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
    """A Nystroem map of a kernel over all continuous columns: "rbf" or "laplace".

    Landmarks are taken evenly from the rows in the order of their values, so that the order in
    which rows are given does not matter.
    """

    def __init__(self, shape: str, at: Covariates) -> None:
        self.shape, n = shape, len(at.Z)
        self.marks = at.Z[np.lexsort(at.Z.T)[subsample(n, LANDMARKS)]]
        self.rank = int(np.clip(n // 20, FEWEST_RANK, len(self.marks)))

    @cached_property
    def _turn(self) -> Array:
        value, vector = np.linalg.eigh(self._compare(self.marks))
        value, vector = value[::-1][: self.rank], vector[:, ::-1][:, : self.rank]
        good = value > 1e-8 * value[0]
        return np.asarray(vector[:, good] / np.sqrt(value[good]))

    def _compare(self, Z: Array) -> Array:
        metric: Any = "sqeuclidean" if self.shape == "rbf" else "cityblock"
        away = cdist(Z, self.marks, metric)
        away *= -1 / ((1.44 if self.shape == "rbf" else 1.5) * Z.shape[1])
        return np.asarray(np.exp(away, out=away))

    def __call__(self, at: Covariates) -> Array:
        """Return its columns."""
        return self._compare(at.Z) @ self._turn


def free_columns(at: Covariates, basis: RangeBasis | None = None) -> tuple[Design, list[Block]]:
    """Return D, and those of its columns that rows are too few to leave unpenalised.

    Rows that stand for products have the functions of a `basis` for Z.
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


def candidates(at: Covariates, index: Array | None) -> list[Block]:
    """Return the blocks that may be added: curves, an index, slopes by level, interactions."""
    n, p = at.Z.shape
    found: list[Block] = []
    axes = [(f"curve {k}", axis) for k, axis in enumerate(np.eye(p))] if p <= MOST_CURVES else []
    if index is not None and p > 1:
        axes.append(("index", index))
    for name, axis in axes:
        curve = spline(axis, at, KNOTS)
        if curve is not None:
            found.append(Block(name, curve, cost=INDEX_COST * (p - 1) * (name == "index")))
    if 1 < p <= MOST_PAIRED:
        found.append(Block("products", lambda rows: paired(rows.Z)))
    K = at.n_categories
    if K > 1 and p and p * (K - 1) <= MOST_CROSSED:
        found.append(Block("slopes", lambda rows: cross(level_columns(rows), rows.Z)))
        for name, axis in axes:
            curve = spline(axis, at, NOISE_KNOTS)
            if curve is not None and NOISE_KNOTS * (K - 1) <= MOST_CROSSED:
                crossed: Function = lambda rows, c=curve: cross(  # type: ignore[misc]  # noqa: E731
                    level_columns(rows), c(rows)
                )
                found.append(Block(f"{name} by level", crossed))
    if 1 < p <= MOST_INTERACTING and n >= 40:
        found += [Block(shape, Kernel(shape, at)) for shape in ("rbf", "laplace")]
    return found


def _columns(own: slice) -> Function:
    return lambda rows: rows.Z[:, own]


def _crossed(own: slice) -> Function:
    return lambda rows: cross(level_columns(rows), rows.Z[:, own])


def basis_candidates(at: Covariates, basis: RangeBasis) -> list[Block]:
    """Return the blocks that products may add: curves, products, and slopes and curves by level."""
    p, K, start = len(basis.names), at.n_categories, len(basis.names) + basis.n_pairs
    ends = start + basis.n_bent * np.arange(1, p + 1)
    found = [
        Block(f"curve {k}", _columns(slice(end - basis.n_bent, end))) for k, end in enumerate(ends)
    ]
    if basis.n_pairs:
        found.append(Block("products", _columns(slice(p, start))))
    if K > 1 and p * (K - 1) <= MOST_CROSSED:
        found.append(Block("slopes", _crossed(slice(0, p))))
    if K > 1 and SMOOTHEST * (K - 1) <= MOST_CROSSED:
        for k, end in enumerate(ends):
            found.append(Block(f"curve {k} by level", _crossed(slice(end - SMOOTHEST, end))))
    return found


@dataclass(frozen=True)
class Together:
    r"""How features move together, from residuals E in columns of length one, or from E'E.

    The sum of squared correlations and the main directions are those of EE' as well, so that the
    smaller of rows x rows and features x features is enough.
    """

    gram: Array
    columns: Array  # (n_rows, n_varying) if the gram is that of rows, else (0, n_varying)
    varies: Array  # the numbers of features, those that vary
    n_rows: float

    @classmethod
    def of_residuals(cls, residuals: Array, n_rows: float) -> "Together":
        """Compare columns of residuals, of as many rows as are given."""
        size = np.sqrt(np.einsum("nd,nd->d", residuals, residuals))
        varies = np.flatnonzero(size > 0)
        E = residuals[:, varies] / size[varies]
        wide = len(E) < E.shape[1]
        gram = E @ E.T if wide else E.T @ E
        return cls(gram, E if wide else E[:0], varies, n_rows)

    @classmethod
    def of_products(cls, products: Array, n_rows: float) -> "Together":
        """Compare features, given sums of products of residuals."""
        size = np.sqrt(np.maximum(np.diag(products), 0.0))
        varies = np.flatnonzero(size > 0)
        gram = products[np.ix_(varies, varies)] / np.outer(size[varies], size[varies])
        return cls(gram, np.zeros((0, len(varies))), varies, n_rows)

    @classmethod
    def unknown(cls) -> "Together":
        """Say nothing of any feature."""
        return cls.of_products(np.zeros((0, 0)), 0.0)

    def among(self, features: Array) -> "Together":
        """Return the same, these features being those of a larger table."""
        return replace(self, varies=features[self.varies])

    @property
    def number(self) -> float:
        r"""As how many independent features these count: :math:`d / (1 + (d - 1) r^2)`.

        :math:`r^2` is the mean squared correlation beyond the 1/n of independent ones.
        """
        d, square = len(self.varies), float(np.einsum("ij,ij->", self.gram, self.gram))
        if d < 2:
            return 1.0
        r2 = min(max((square - d) / (d * (d - 1)) - 1 / max(self.n_rows, 1.0), 0.0), 1.0)
        return d / (1 + (d - 1) * r2)

    def number_of(self, n_features: int) -> float:
        """Return as how many all features count, of which these are some; 1 if nothing is known."""
        number, d = self.number, len(self.varies)
        return number / d * n_features if 0 < d < n_features and number > 0.5 * d else number

    def directions(self, n_features: int) -> Array:
        """Return weights of the main sums of features, (n_features, k): of variance one each.

        Features have variance one. What n rows cannot tell of small variances is added to them.
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

    The positive root of
    :math:`(dof - n) G_{11} m^2 + (dof - 2 n) G_{01} m - n G_{00} = 0`, n the effective number of
    query rows: where :math:`-n \log m + \tfrac{dof}{2} \log(G_{00} + 2 m G_{01} + m^2 G_{11})` is
    least. Written so that nothing cancels.
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
