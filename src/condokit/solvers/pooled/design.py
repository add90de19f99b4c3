"""Functions of the confounders: columns that are always fitted, and blocks that must be earned.

The mean of every feature given the confounders is ``U beta``, ``U = [D, Phi_1, ..., Phi_k]``. D is
unpenalised: an intercept, the continuous columns, the levels of the category, and the indicators of
batches. Each block Phi_k has coefficients N(0, theta_k s2), s2 the residual
variance. Blocks enter one at a time, while the features together speak for them (`select`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np
from scipy.linalg import null_space

from condokit.checks import Array
from condokit.data.arrays import quantiles
from condokit.data.covariates import Covariates
from condokit.data.subsets import subsample

Function = Callable[[Covariates], Array]

_KNOTS = 10  # of a curve
NOISE_KNOTS = 6
MOST_CURVES = 40  # continuous columns that get a curve of their own
MOST_INTERACTING = 16  # continuous columns beyond which no kernel is tried
MOST_CROSSED = 60  # columns of a block that crosses levels with columns
LANDMARKS = 400
FEWEST_RANK = 40
ROWS_PER_COLUMN = 4.0  # fewer rows than this per column of D: its columns are penalised too
INDEX_COST = 0.25  # evidence per column of an index
INDEX_STEPS = 1  # that bend the index
_PAIRS = ((0, 0), (0, 1), (1, 1))


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

    def columns(self, at: Covariates, is_query: Array | None = None) -> tuple[Array, Array]:
        """Return U, last the query, and the penalty 1 / theta of each column, zero for D's."""
        free = self.unpenalised(at)
        parts = [block(at) for block in self.blocks]
        penalty = [np.full(part.shape[1], 1 / share) for part, share in zip(parts, self.shares)]
        last = [] if is_query is None else [is_query[:, None].astype(float)]
        zeros = np.zeros(free.shape[1]), np.zeros(len(last))
        return np.hstack([free, *parts, *last]), np.concatenate([zeros[0], *penalty, zeros[1]])

    def unpenalised(self, at: Covariates) -> Array:
        """Return D without the query."""
        parts = [np.ones((len(at.Z), 1)), *(part(at) for part in self.free)]
        free = np.hstack(parts)
        return free[:, self.kept] if len(self.kept) else free


def spline(axis: Array, at: Covariates, n_knots: int) -> Function | None:
    r"""Return a natural cubic spline of ``Z @ axis`` without its linear part, or None.

    Radial functions :math:`|t - k|^3` of knots k at quantiles, with coefficients orthogonal to
    1 and k, and turned so that the wiggliness :math:`\int f''^2` is a sum of squares.
    """
    values = np.unique(at.Z @ axis)
    if len(values) < 3:
        return None
    at_most = min(n_knots, len(values))
    knots = values
    if len(values) > at_most:
        share = (np.arange(at_most) + 0.5) / at_most
        knots = np.unique(quantiles((at.Z @ axis)[:, None], share, at.weights))
        if len(knots) < 3:
            knots = np.linspace(values[0], values[-1], at_most)
    free = null_space(np.stack([np.ones(len(knots)), knots]))
    wiggle = free.T @ np.abs(knots[:, None] - knots) ** 3 @ free
    value, vector = np.linalg.eigh(wiggle)
    turn = free @ (vector[:, value > 1e-9 * value[-1]] / np.sqrt(value[value > 1e-9 * value[-1]]))
    return lambda rows: np.abs((rows.Z @ axis)[:, None] - knots) ** 3 @ turn


def kernel(shape: str, at: Covariates) -> Function:
    """Return a Nystroem map of a kernel over all continuous columns: "rbf" or "laplace".

    Landmarks are taken evenly from the rows in the order of their values, so that the order in
    which rows are given does not matter.
    """
    Z = at.Z
    n, p = Z.shape
    order = np.lexsort(Z.T)
    marks = Z[order[subsample(n, LANDMARKS)]]
    wide = np.sqrt(2.0 * p) if shape == "rbf" else 2.0 * p

    def compare(A: Array) -> Array:
        if shape == "rbf":
            square = (A**2).sum(1)[:, None] + (marks**2).sum(1) - 2 * A @ marks.T
            return np.exp(-np.maximum(square, 0.0) / (2 * (0.6 * wide) ** 2))
        total = np.zeros((len(A), len(marks)))
        for a, b in zip(A.T, marks.T):
            total += np.abs(a[:, None] - b)
        return np.exp(-total / (0.75 * wide))

    rank = int(np.clip(n // 20, FEWEST_RANK, len(marks)))
    value, vector = np.linalg.eigh(compare(marks))
    value, vector = value[::-1][:rank], vector[:, ::-1][:, :rank]
    good = value > 1e-8 * value[0]
    turn = vector[:, good] / np.sqrt(value[good])
    return lambda rows: compare(rows.Z) @ turn


def free_columns(at: Covariates) -> tuple[Design, list[Block]]:
    """Return D, and those of its columns that rows are too few to leave unpenalised."""
    n, p = at.Z.shape
    free: list[Function] = []
    always: list[Block] = []
    taken, linear = 2.0, attrgetter("Z")
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
        curve = spline(axis, at, _KNOTS)
        if curve is not None:
            found.append(Block(name, curve, cost=INDEX_COST * (p - 1) * (name == "index")))
    K = at.n_categories
    if K > 1 and p and p * (K - 1) <= MOST_CROSSED:
        found.append(Block("slopes", lambda rows: _cross(level_columns(rows), rows.Z)))
        for name, axis in axes:
            curve = spline(axis, at, NOISE_KNOTS)
            if curve is not None and NOISE_KNOTS * (K - 1) <= MOST_CROSSED:
                crossed: Function = lambda rows, c=curve: _cross(  # type: ignore[misc]  # noqa: E731
                    level_columns(rows), c(rows)
                )
                found.append(Block(f"{name} by level", crossed))
    if 1 < p <= MOST_INTERACTING and n >= 40:
        found += [Block(shape, kernel(shape, at)) for shape in ("rbf", "laplace")]
    return found


def _cross(A: Array, B: Array) -> Array:
    return (A[:, :, None] * B[:, None, :]).reshape(len(A), -1)


def independent(D: Array) -> Array:
    """Return which columns are no combination of those before them."""
    kept = np.zeros(D.shape[1], dtype=bool)
    basis = np.zeros((len(D), 0))
    for j, column in enumerate(D.T):
        rest = column - basis @ (basis.T @ column)
        rest -= basis @ (basis.T @ rest)
        size = np.linalg.norm(rest)
        if size > 1e-7 * max(float(np.linalg.norm(column)), 1e-300):
            kept[j] = True
            basis = np.column_stack([basis, rest / size])
    return kept


# ---------------------------------------------------------------------------------------------
# Selection of blocks by restricted likelihood, pooled over features


def _sums(U: Array, y: tuple[Array, Array], weights: Array) -> tuple[Array, Array, Array]:
    """Return U'U, U'y_a of shape (2, n_columns, n_features), and y0 y0, y0 y1, y1 y1."""
    weighted = U * weights[:, None]
    square = [np.einsum("n,nd,nd->d", weights, y[a], y[b]) for a, b in _PAIRS]
    return weighted.T @ U, np.stack([weighted.T @ y[0], weighted.T @ y[1]]), np.stack(square)


def effective_number(residuals: Array, n_rows: float) -> float:
    r"""Return as how many independent features these count, :math:`d / (1 + (d - 1) r^2)`.

    :math:`r^2` is the mean squared correlation of residuals beyond the 1/n of independent ones.
    """
    d = residuals.shape[1]
    if d == 1:
        return 1.0
    size = np.sqrt((residuals**2).sum(0))
    scaled = residuals[:, size > 0] / size[size > 0]
    d = scaled.shape[1]
    if d < 2:
        return 1.0
    square = ((scaled.T @ scaled) ** 2).sum() - d
    r2 = min(max(square / (d * (d - 1)) - 1 / max(n_rows, 1.0), 0.0), 1.0)
    return d / (1 + (d - 1) * r2)


@dataclass
class Selector:
    r"""Forward selection of blocks, with shares by restricted likelihood pooled over features.

    For feature j with residual variance profiled out, over dof = N - rank D,

    .. math:: \ell(\theta) = -\tfrac{dof}{2} \log y' P y - \tfrac12 \log|I + \Theta \Phi' M \Phi|,

    M the projection off D, P the inverse covariance off D. The mean over features counts
    `n_effective` times. One block at a time the gain is a function of the eigenvalues of
    :math:`\Phi_k' P \Phi_k`.
    """

    gram: Array
    cross: Array
    square: Array
    dof: float
    n_query: float
    n_effective: float
    columns: list[Array]
    fixed: Array  # scales that are given, or nan
    costs: Array
    threshold: float = 3.0
    most: int = 8
    grid: Array = field(default_factory=lambda: np.logspace(-4, 3, 43))

    def run(self, always: list[int]) -> dict[int, float]:
        """Return the chosen blocks and their shares."""
        shares: dict[int, float] = {k: 0.1 for k in always}
        self._refit(shares, keep=set(always))
        while len(shares) - len(always) < self.most:
            y = self._mapped(shares)
            best, found, share = self.threshold, -1, 0.0
            for k in range(len(self.columns)):
                if k not in shares:
                    gain, theta = self._gain(k, shares, y)
                    if gain > best:
                        best, found, share = gain, k, theta
            if found < 0:
                break
            shares[found] = share
            self._refit(shares, keep={*always, found})
            if found not in shares:
                break
        return shares

    def _refit(self, shares: dict[int, float], keep: set[int]) -> None:
        """Renew all shares in turn; drop blocks that the others made needless."""
        for turn in range(3):
            for k in list(shares):
                if len(shares) == 1 and turn:
                    return
                rest = {other: share for other, share in shares.items() if other != k}
                gain, theta = self._gain(k, rest, self._mapped(shares))
                if gain < self.threshold and k not in keep:
                    del shares[k]
                else:
                    shares[k] = max(theta, 1e-4)

    def _inverse(self, shares: dict[int, float]) -> tuple[Array, Array]:
        parts = [self.columns[k] for k in shares]
        at = np.concatenate(parts) if parts else np.zeros(0, dtype=int)
        if not len(at):
            return at, np.zeros((0, 0))
        penalty = np.concatenate([np.full(len(c), 1 / s) for c, s in zip(parts, shares.values())])
        return at, np.linalg.inv(self.gram[np.ix_(at, at)] + np.diag(penalty))

    def _mapped(self, shares: dict[int, float]) -> tuple[Array, Array]:
        """Return U'M y and y'M y of the mapped features, at the best scales given the shares."""
        at, inverse = self._inverse(shares)
        c = self.cross[:, at]
        G = self.square - np.stack([(c[a] * (inverse @ c[b])).sum(0) for a, b in _PAIRS])
        m = best_scale(G, self.n_query, self.dof)
        m = np.where(np.isnan(self.fixed), m, self.fixed)
        square = self.square[0] + 2 * m * self.square[1] + m**2 * self.square[2]
        return self.cross[0] + m * self.cross[1], square

    def _gain(
        self, k: int, shares: dict[int, float], y: tuple[Array, Array]
    ) -> tuple[float, float]:
        """Return by how much block k raises the likelihood at its best share, and the share."""
        at, inverse = self._inverse(shares)
        own = self.columns[k]
        link = self.gram[np.ix_(own, at)] @ inverse
        left = self.gram[np.ix_(own, own)] - link @ self.gram[np.ix_(at, own)]
        cross = y[0][own] - link @ y[0][at]
        square = y[1] - (y[0][at] * (inverse @ y[0][at])).sum(0)
        value, vector = np.linalg.eigh((left + left.T) / 2)
        value = np.maximum(value, 0.0)
        turned = (vector.T @ cross) ** 2
        gain = np.empty(len(self.grid))
        for i, theta in enumerate(self.grid):
            explained = (theta / (1 + theta * value)) @ turned / np.maximum(square, 1e-300)
            log = np.log1p(-np.minimum(explained, 1 - 1e-12)).mean()
            gain[i] = -0.5 * self.dof * log - 0.5 * np.log1p(theta * value).sum()
        best = int(gain.argmax())
        return float(gain[best] * self.n_effective - self.costs[k]), float(self.grid[best])


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
    m = np.where(half < 0, (root - half) / a, c / np.maximum(root + half, 1e-300))
    return np.clip(m, 1e-150, 1e150)


def select(
    X: Array,
    n_query: int,
    at: Covariates,
    weights: Array,
    precision: Array,
    fixed: Array,
    transform: Callable[[Array], Array] | None = None,
) -> tuple[Design, float]:
    """Choose the design from rows of a few features (query rows first, centred by domain).

    Rows count `weights` and have variances proportional to 1 / `precision`; `transform` makes
    columns independent over rows, as X already is. Returns the design, and
    as how many independent features these count (`effective_number`).
    """
    is_query = np.arange(len(X)) < n_query
    design, always = free_columns(at)
    free = transform if transform is not None else np.asarray
    D = free(np.column_stack([design.unpenalised(at), is_query]))
    y = np.where(is_query[:, None], 0.0, X), np.where(is_query[:, None], X, 0.0)
    W = weights * precision
    gram, cross, square = _sums(D, y, W)
    total = float(weights.sum())
    dof = max(total - D.shape[1], 1.0)
    n_eff = max(float(weights[is_query].sum()) * dof / total, 0.5)
    inverse = np.linalg.pinv(gram)
    beta = np.stack([inverse @ c for c in cross])
    G = square - np.stack([(cross[a] * beta[b]).sum(0) for a, b in _PAIRS])
    m = np.where(np.isnan(fixed), best_scale(G, n_eff, dof), fixed)
    mapped = np.where(is_query[:, None], X * m, X)
    residuals = mapped - D @ (beta[0] + m * beta[1])
    n_effective = effective_number(residuals * np.sqrt(W)[:, None], total)
    index = _index(at, is_query, mapped, residuals, W) if transform is None else None
    design = replace(design, index=index)
    blocks = always + candidates(at, index)
    scaled, parts = [], []
    for block in blocks:  # off D, in units of mean row variance 1
        values = free(block(at))
        rest = values - D @ (inverse @ (D.T @ (values * W[:, None])))
        size2 = float(W @ (rest**2).sum(1) / total)
        if size2 > 1e-12 * float((values**2).sum(1).mean()):
            parts.append(rest / np.sqrt(size2))
            scaled.append(replace(block, unit=1 / np.sqrt(size2)))
    if not parts:
        return design, n_effective
    rest = y[0] - D @ beta[0], y[1] - D @ beta[1]
    gram, cross, _ = _sums(np.hstack(parts), rest, W)
    edges = np.cumsum([0, *(part.shape[1] for part in parts)])
    columns = [np.arange(a, b) for a, b in zip(edges[:-1], edges[1:])]
    costs = np.array([block.cost for block in scaled])
    selector = Selector(gram, cross, G, dof, n_eff, n_effective, columns, fixed, costs)
    shares = selector.run([k for k, block in enumerate(scaled) if block.always])
    chosen = tuple(scaled[k] for k in shares)
    return replace(design, blocks=chosen, shares=tuple(shares.values())), n_effective


def _index(
    at: Covariates, is_query: Array, mapped: Array, residuals: Array, weights: Array
) -> Array | None:
    """Return the leading direction of Z in which features move within the domains, or None."""
    p = at.Z.shape[1]
    if p < 2 or len(at.Z) < 2 * p:
        return None
    root = np.sqrt(weights)[:, None]
    D = np.column_stack([at.Z, np.ones(len(at.Z)), is_query])
    slope = np.linalg.lstsq(D * root, mapped * root, rcond=None)[0][:p]
    noise = np.maximum(np.sqrt((residuals**2).mean(0)), 1e-300)
    spread = np.maximum(at.Z.std(0)[:, None], 1e-300)
    left, _, right = np.linalg.svd(spread * slope / noise, full_matrices=False)
    axis = left[:, 0] / spread[:, 0]
    y = (mapped / noise) @ right[0]  # the combination of features that moves most
    for _ in range(INDEX_STEPS):
        axis = _bent(axis / max(float(np.std(at.Z @ axis)), 1e-300), at, is_query, y, weights)
    axis /= max(float(np.std(at.Z @ axis)), 1e-300)
    return axis * np.sign(axis[np.abs(axis).argmax()])


def _bent(axis: Array, at: Covariates, is_query: Array, y: Array, weights: Array) -> Array:
    """Return a better direction for a curve of one direction, by a Gauss-Newton step.

    With f fitted to ``Z @ axis``, ``y - f + f' Z axis`` is regressed on ``f' Z``, with a pull
    towards the axis as strong as one row in ten.
    """
    curve = spline(axis, at, NOISE_KNOTS)
    if curve is None:
        return axis
    t = at.Z @ axis

    def columns(shift: float) -> Array:
        moved = Covariates(at.Z + shift * axis / (axis @ axis), at.category, at.n_categories)
        return np.column_stack([np.ones(len(t)), is_query, t + shift, curve(moved)])

    root = np.sqrt(weights)
    D = columns(0.0)
    ridge = 1e-2 * len(t) * np.diag(np.r_[np.zeros(3), np.ones(D.shape[1] - 3)])
    scale = np.sqrt(np.maximum((D**2).mean(0), 1e-300))
    A = (D / scale * root[:, None]).T @ (D / scale * root[:, None]) + ridge
    beta = np.linalg.solve(A + 1e-9 * np.eye(len(A)), (D / scale).T @ (weights * y)) / scale
    slope = (columns(1e-3) - columns(-1e-3)) @ beta / 2e-3
    F = slope[:, None] * at.Z
    A = (F * weights[:, None]).T @ F
    pull = 0.1 * np.trace(A) / len(A) * np.eye(len(A))
    step = np.linalg.solve(A + pull + 1e-12 * np.eye(len(A)), F.T @ (weights * (y - D @ beta)))
    return axis + step
