"""Selection of blocks of columns by restricted likelihood, pooled over features."""

from dataclasses import dataclass, field, replace

import numpy as np

from condokit.checks import Array
from condokit.data.basis import RangeBasis
from condokit.data.covariates import Covariates
from condokit.law.design import (
    NOISE_KNOTS,
    Block,
    Design,
    Together,
    candidates,
    free_columns,
    spline,
)
from condokit.law.noise import NoiseModel
from condokit.law.stacked import Found, Stacked, scales, solve
from condokit.law.subjects import Subjects, subject_means

INDEX_STEPS = 1  # Gauss-Newton steps that turn the index towards a bent curve


@dataclass
class Selector:
    r"""Forward selection of blocks, with shares by restricted likelihood pooled over features.

    For feature j, the residual variance profiled out, with dof = N - rank D,

    .. math:: \ell(\theta) = -\tfrac{dof}{2} \log y' P y - \tfrac12 \log|I + \Theta \Phi' M \Phi|,

    where M is the projection off D, P the inverse covariance off D, and y the mapped feature. The
    mean over features is multiplied by `n_effective`. For one more block, the gain as a function of
    its share needs only the eigenvalues of :math:`\Phi_k' P \Phi_k`.

    A block enters if it gains `threshold` nats. With a threshold of 0, the straight lines of corn
    spectra were bent: error .561 instead of .518.
    """

    parts: list[tuple[Array, Array]]  # columns of blocks off D, left and right factor
    cross: Array  # (K, n_columns, n_features): products of these columns with x_b
    start: Found  # the fit with D alone
    at: Stacked
    fixed: Array  # (n_features, K): scales that are given, or nan
    n_effective: float
    columns: list[Array]  # the numbers of each block's columns
    costs: Array  # nats that each block must gain beside the threshold
    threshold: float = 3.0  # nats
    most: int = 8  # blocks that enter at most
    grid: Array = field(default_factory=lambda: np.logspace(-4, 3, 43))  # shares that are tried
    grams: dict[tuple[int, int], Array] = field(default_factory=dict)

    def run(self, always: list[int]) -> dict[int, float]:
        """Return the chosen blocks and their shares; those in `always` are chosen anyway."""
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
        """Renew all shares in turn; drop blocks that later ones made needless, unless in `keep`."""
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

    def _gram(self, left: list[int], right: list[int]) -> Array:
        """Return products between columns of blocks; each is computed once."""
        for k, other in ((k, other) for k in left for other in right):
            if (k, other) not in self.grams:
                found = self.parts[k][0].T @ self.parts[other][1]
                self.grams[k, other], self.grams[other, k] = found, found.T
        return np.block([[self.grams[k, other] for other in right] for k in left])

    def _inverse(self, shares: dict[int, float]) -> tuple[Array, Array]:
        """Return the numbers of the chosen columns, and (Phi' M Phi + 1 / theta)^-1."""
        parts = [self.columns[k] for k in shares]
        at = np.concatenate(parts) if parts else np.zeros(0, dtype=int)
        if not len(at):
            return at, np.zeros((0, 0))
        penalty = np.concatenate([np.full(len(c), 1 / s) for c, s in zip(parts, shares.values())])
        chosen = list(shares)
        return at, np.linalg.inv(self._gram(chosen, chosen) + np.diag(penalty))

    def _mapped(self, shares: dict[int, float]) -> tuple[Array, Array]:
        """Return Phi'M y and y'M y of mapped features, at the best scales given the shares."""
        at, inverse = self._inverse(shares)
        c, Q = self.cross[:, at], self.start.reduced.Q
        left = Q - np.einsum("bid,cid->dbc", c, inverse @ c)
        s = scales(left, self.start, self.at, self.fixed, self.start.s)
        return np.einsum("db,bid->id", s, self.cross), np.einsum("db,dbc,dc->d", s, Q, s)

    def _gain(
        self, k: int, shares: dict[int, float], y: tuple[Array, Array]
    ) -> tuple[float, float]:
        """Return the gain in nats of block k at its best share, less its cost, and that share."""
        at, inverse = self._inverse(shares)
        left, cross = self._gram([k], [k]), y[0][self.columns[k]]
        if shares:
            between = self._gram([k], list(shares))
            link = between @ inverse
            left, cross = left - link @ between.T, cross - link @ y[0][at]
        square = y[1] - (y[0][at] * (inverse @ y[0][at])).sum(0)
        square = np.maximum(square, np.maximum(1e-14 * y[1], 1e-300))  # no less than rounding
        value, vector = np.linalg.eigh((left + left.T) / 2)
        value = np.maximum(value, 0.0)
        turned = (vector.T @ cross) ** 2
        size, dof = self.grid[:, None] * value, float(self.start.dof[0])
        explained = (self.grid[:, None] / (1 + size)) @ turned / square
        log = np.log1p(-np.minimum(explained, 1 - 1e-12)).mean(axis=1)
        gain = -0.5 * dof * log - 0.5 * np.log1p(size).sum(axis=1)
        best = int(gain.argmax())
        return float(gain[best] * self.n_effective - self.costs[k]), float(self.grid[best])


def select(
    X: Array,
    batch: Array,
    n_batches: int,
    reference: int,
    at: Covariates,
    weights: Array,
    precision: Array,
    fixed: Array,
    subjects: Subjects | None = None,
    rho: float = 0.0,
    basis: RangeBasis | None = None,
    together: Together | None = None,
    kept: dict[str, tuple[Block, Array]] | None = None,
) -> tuple[Design, Together]:
    """Choose the columns of the mean, from rows of some features that are centred by batch.

    Each row stands for `weights` rows and has a variance proportional to 1 / `precision`. Rows
    whose subject has a free level have no confounders. Rows that stand for products need the
    `basis` of functions with which these were taken. Blocks whose columns do not depend on the
    features are cached in `kept` for the next call. Returns the design and how features correlate:
    `together`, if given.
    """
    dummies = (batch[:, None] == np.delete(np.arange(n_batches), reference)).astype(float)
    design, always = free_columns(at, basis)
    free = np.ones((len(X), 1)) if subjects is None else ~subjects.is_free[subjects.code][:, None]
    D, W = np.column_stack([free * design.unpenalised(at), dummies]), precision[:, None]
    noise = NoiseModel.of_levels(at.category, at.n_categories, False)
    where = np.zeros(D.shape[1]), batch, n_batches, reference, weights[:, None]
    rows = Stacked(X, D, *where, noise, subjects, np.array([rho]))
    start, root = solve(rows, fixed, W), np.sqrt(weights * precision)[:, None]
    if together is None:
        together = Together.of_residuals(start.e * root, float(weights.sum()))
    index = None
    if subjects is None and basis is None:
        index = _index(at, dummies, X * start.s.T[batch], start.e, root[:, 0] ** 2)
    design = replace(design, index=index)
    offered = candidates(at, index, basis)
    if subjects is not None and (means := subject_means(at, batch)) is not None:
        offered.append(means)
    scaled, parts, inverse, WD = [], [], rows.inverses(W)[0][0], rows.weighed(D, W)
    kept, Y = {} if kept is None else kept, X if subjects is not None else X * root
    for block in always + offered:  # off D, in units of mean row variance 1
        block, values = kept.get(block.name) or (block, free * block(at))
        if not block.name.startswith("index"):  # which depends on the features
            kept[block.name] = block, values
        rest = values - D @ (inverse @ (WD.T @ values))
        left = right = rest * root
        if subjects is not None:
            left, right = rest, rows.weighed(rest, W)
        size2 = float(np.einsum("nr,nr->", left, right) / weights.sum())
        if size2 > 1e-12 * float((values**2).sum(1).mean()):  # D explains less
            scaled.append(replace(block, unit=1 / np.sqrt(size2)))
            left = left / np.sqrt(size2)
            parts.append((left, left if subjects is None else right / np.sqrt(size2)))
    if not parts:
        return design, together
    cross = np.stack(
        [np.concatenate([part[own].T @ Y[own] for _, part in parts]) for own in rows.rows]
    )
    edges = np.cumsum([0, *(part.shape[1] for part, _ in parts)])
    columns = [np.arange(a, b) for a, b in zip(edges[:-1], edges[1:])]
    costs = np.array([block.cost for block in scaled])
    selector = Selector(parts, cross, start, rows, fixed, together.number, columns, costs)
    shares = selector.run([k for k, block in enumerate(scaled) if block.always])
    chosen = tuple(scaled[k] for k in shares)
    return replace(design, blocks=chosen, shares=tuple(shares.values())), together


def _index(
    at: Covariates, dummies: Array, mapped: Array, residuals: Array, weights: Array
) -> Array | None:
    """Return the direction of Z along which features move most within batches, or None.

    It is the first left singular vector of the slopes of all features, in units of the residuals'
    standard deviations, then turned by `INDEX_STEPS`. A curve along it serves features that depend
    on a sum of many confounders.
    """
    p = at.Z.shape[1]
    if p < 2 or len(at.Z) < 2 * p:
        return None
    root = np.sqrt(weights)[:, None]
    D = np.column_stack([at.Z, np.ones(len(at.Z)), dummies])
    slope = np.linalg.lstsq(D * root, mapped * root, rcond=None)[0][:p]
    noise = np.maximum(np.sqrt((residuals**2).mean(0)), 1e-300)
    spread = np.maximum(at.Z.std(0)[:, None], 1e-300)
    left, _, right = np.linalg.svd(spread * slope / noise, full_matrices=False)
    axis = left[:, 0] / spread[:, 0]
    y = (mapped / noise) @ right[0]  # the combination of features that moves most
    for _ in range(INDEX_STEPS):
        axis = _bent(axis / max(float(np.std(at.Z @ axis)), 1e-300), at, dummies, y, weights)
    axis /= max(float(np.std(at.Z @ axis)), 1e-300)
    return axis * np.sign(axis[np.abs(axis).argmax()])


def _bent(axis: Array, at: Covariates, dummies: Array, y: Array, weights: Array) -> Array:
    """Return a better direction for a curve of one direction, by a Gauss-Newton step.

    With a spline f fitted to ``t = Z @ axis``, ``y - f(t) + f'(t) t`` is regressed on ``f'(t) Z``.
    A pull towards the present axis is as strong as one row in ten.
    """
    curve = spline(axis, at, NOISE_KNOTS)
    if curve is None:
        return axis
    t = at.Z @ axis

    def columns(shift: float) -> Array:
        """Return the columns at confounders moved along the axis, for slopes by differences."""
        moved = Covariates(at.Z + shift * axis / (axis @ axis), at.category, at.n_categories)
        return np.column_stack([np.ones(len(t)), dummies, t + shift, curve(moved)])

    root = np.sqrt(weights)
    D = columns(0.0)
    free = dummies.shape[1] + 2
    ridge = 1e-2 * len(t) * np.diag(np.arange(D.shape[1]) >= free)
    scale = np.sqrt(np.maximum((D**2).mean(0), 1e-300))
    A = (D / scale * root[:, None]).T @ (D / scale * root[:, None]) + ridge
    beta = np.linalg.solve(A + 1e-9 * np.eye(len(A)), (D / scale).T @ (weights * y)) / scale
    slope = (columns(1e-3) - columns(-1e-3)) @ beta / 2e-3
    F = slope[:, None] * at.Z
    A = (F * weights[:, None]).T @ F
    pull = 0.1 * np.trace(A) / len(A) * np.eye(len(A))
    step = np.linalg.solve(A + pull + 1e-12 * np.eye(len(A)), F.T @ (weights * (y - D @ beta)))
    return axis + step
