"""The result of every solver: the parts of a map, their errors, and facts of the search."""

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros


@dataclass(frozen=True)
class Curves:
    """Increasing curves of all features, straight between knots and beyond them, with errors."""

    knots: Array  # (n_features, n_knots)
    values: Array  # their images
    slopes: Array  # (n_features, 2): below the first knot and above the last
    sd: Array  # standard errors of values
    sd_slopes: Array  # by which these grow beyond the knots
    bent: Array  # (n_features,): probability that the curve is not a straight line


@dataclass(frozen=True)
class Solution:
    r"""The best map of a family, written as :math:`x \mapsto r + A (x - c)`."""

    scale: Array  # (n_features,) or (n_outputs, n_features): the diagonal of A, or all of it
    centre: Array  # (n_features,): c, for diagonal maps the middle of the query data
    image: Array  # (n_features,): r, where that is mapped to
    # (n_features, rank): with them, A = diag(scale) + left right'
    left: Array | None = None
    right: Array | None = None
    # (n_features,): sampling standard errors of the logarithm of scales and of r, nearly
    # independent of each other; None if unknown
    se_log_scale: Array | None = None
    se_image: Array | None = None
    # (n_features,): covariance of log scale and image, nonzero for skewed data; None if neglected
    covariance: Array | None = None
    evidence: Any = None  # `law.posterior.Maps`: what a likelihood says beyond these errors
    plain: "Solution | None" = None  # the solution before shrinkage
    curves: "Curves | None" = None  # curves that replace the lines
    # facts of the law of features given confounders, for the report
    law: dict[str, Any] = field(default_factory=dict)
    # (n_features,): factor of standard errors, for few degrees of freedom
    widening: Any = 1.0
    objective: float = float("nan")  # value of what was minimised
    n_iter: int = 0  # iterations from the best start; 0 for a closed form
    # largest entry of the gradient in the solver's units, along free directions
    gradient_norm: float = 0.0
    # the value reached from each start: of the objective, or of reverse KL where that explores
    starts: dict[str, float] = field(default_factory=dict)
    # least eigenvalue of the Hessian of reverse KL in white units, if known; times the number of
    # rows, it says how well the least certain direction of the map is determined
    curvature: float = float("nan")
    is_told: bool = True  # whether the data tell matched axes, and their signs, from each other

    @classmethod
    def of(cls, A: Array, b: Array, **facts: Any) -> Self:
        """Return the map x -> A x + b; A may be the diagonal of a diagonal matrix."""
        return cls(A, np.zeros(A.shape[-1]), b, **facts)

    @property
    def offset(self) -> Array:
        """The offset of the map, r - A c."""
        if self.scale.ndim == 2:
            return self.image - self.scale @ self.centre
        if self.left is not None and self.right is not None:
            return self.image - self.scale * self.centre - self.left @ (self.right.T @ self.centre)
        return self.image - self.scale * self.centre

    def lines(self, features: Array) -> "Solution":
        """Return the lines of some features, without what is known of their errors."""
        scale, centre, image = (one[features] for one in (self.scale, self.centre, self.image))
        return Solution(scale, centre, image, law=self.law)

    def dense(self) -> "Solution":
        """Return a map of low rank with all of its matrix."""
        if self.left is None or self.right is None:
            return self
        return Solution.of(np.diag(self.scale) + self.left @ self.right.T, self.offset)

    @property
    def is_reflection(self) -> bool:
        """Whether the map reverses orientation: its determinant is negative."""
        if self.scale.ndim == 1:
            return bool(np.prod(np.sign(self.scale)) < 0)
        rows, columns = self.scale.shape
        return rows == columns and bool(np.linalg.slogdet(self.scale)[0] < 0)

    @property
    def turn(self) -> float:
        """How far a matrix that keeps angles turns, (d - tr Q) / 2: 1 for a reversed axis."""
        size = np.abs(np.linalg.det(self.scale)) ** (1 / len(self.scale))
        return float(len(self.scale) - np.trace(self.scale) / ones_for_zeros(size)) / 2

    def search_facts(self) -> dict[str, Any]:
        """Return what is known of the search, for the report."""
        is_diagonal = self.scale.ndim == 1
        size = np.abs(self.scale) if is_diagonal else np.linalg.svd(self.scale, compute_uv=False)
        names = ("objective", "n_iter", "gradient_norm", "starts", "curvature")
        return {name: getattr(self, name) for name in names} | {
            "condition_number": float(size.max() / size.min()) if size.min() > 0 else np.inf,
            "flips_orientation": self.is_reflection,
        }


def decorrelated(solution: Solution, covariance: Array) -> Solution:
    r"""Move the centre to the point whose image is learned independently of the scale.

    `covariance` is that of log m with the image of the present centre c. The image of another
    point x is r + m (x - c), whose covariance with log m vanishes at
    :math:`x = c - \mathrm{cov} / (m \operatorname{var}(\log m))`.
    """
    variance, error = np.asarray(solution.se_log_scale) ** 2, np.asarray(solution.se_image) ** 2
    slope = np.where(variance > 0, covariance / ones_for_zeros(variance), 0.0)
    se_image = np.sqrt(np.maximum(error - slope * covariance, 0.01 * error))
    centre, image = solution.centre - slope / solution.scale, solution.image - slope
    return replace(solution, centre=centre, image=image, se_image=se_image)


def without_offset(solution: Solution) -> Solution:
    """Return the best scale of a map without offset, with its standard error.

    The estimated log-scale and image are normal with their standard errors; both determine the
    scale.
    """
    se_log, se_image = np.asarray(solution.se_log_scale), np.asarray(solution.se_image)
    free = (se_log > 0) & (se_image > 0)  # not so for constants, which stay
    se_log, se_image = np.where(free, se_log, 1.0), np.where(free, se_image, 1.0)
    centre, image, zero = solution.centre, solution.image, np.zeros(len(free))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = image / centre
    start = np.where(ratio > 0, ratio, solution.scale)
    log_gain = np.clip(np.log(start), -20, 20)
    for _ in range(20):  # steps of Gauss and Newton
        mapped = np.exp(log_gain) * centre
        away = (log_gain - np.log(solution.scale)) / se_log**2
        information = 1 / se_log**2 + (mapped / se_image) ** 2
        step = (away + (mapped - image) * mapped / se_image**2) / np.maximum(information, 1e-300)
        log_gain = np.clip(log_gain - np.clip(step, -1, 1), -20, 20)
    scale = np.where(free, np.exp(log_gain), 1.0)
    information = 1 / se_log**2 + (scale * centre / se_image) ** 2
    none: dict[str, Any] = dict.fromkeys(("centre", "image", "se_image"), zero)
    none |= {"covariance": None, "evidence": None}
    return replace(solution, scale=scale, se_log_scale=free / np.sqrt(information), **none)


def no_change(centre: Array) -> Solution:
    """Return the identity as a solution."""
    zero = np.zeros(len(centre))
    return Solution(np.ones(len(centre)), centre, centre, se_log_scale=zero, se_image=zero)


def only_shifted(solution: Solution, flat: Array) -> Solution:
    """Set the scale of `flat` features to one, and their standard errors to 0: none is known."""
    errors: dict[str, Any] = {
        name: np.where(flat, 0.0, error)
        for name in ("se_log_scale", "se_image")
        if (error := getattr(solution, name)) is not None
    }
    return replace(solution, scale=np.where(flat, 1.0, solution.scale), **errors)


def joined(results: list[tuple[Array, Solution]]) -> Solution:
    """Join solutions of groups of features, given the numbers of each group's features."""
    features, parts = zip(*results)
    order = np.argsort(np.concatenate(features))
    names = ("scale", "centre", "image", "se_log_scale", "se_image", "covariance")
    every = {name: [getattr(part, name) for part in parts] for name in names}
    arrays: dict[str, Any] = {
        n: np.concatenate(v)[order] for n, v in every.items() if v[0] is not None
    }
    widening = [np.broadcast_to(part.widening, part.scale.shape) for part in parts]
    arrays["widening"] = np.concatenate(widening)[order]
    known = [part.evidence for part in parts if part.evidence is not None]
    if len(known) == len(parts):
        arrays["evidence"] = known[0].joined(known, order)
        arrays["law"] = joined_law([part.law for part in parts], order)
    return replace(parts[0], n_iter=max(part.n_iter for part in parts), **arrays)


def joined_law(laws: list[dict[str, Any]], order: Array) -> dict[str, Any]:
    """Join facts of groups of features; other facts are those of the first group."""
    found = dict(laws[0])
    for name in {"heavy_tails", "discrete", "mostly_zero", "as_normal"}.intersection(found):
        found[name] = np.concatenate([law[name] for law in laws])[order]
    return found


def joint_number(size: Array, found: Array) -> float:
    """Return the effective number of features of all parts, given sizes and those of each part."""
    # mean squared correlation; it is known only between features of the same part
    alike = np.maximum(size / found - 1, 0.0) * size
    r2 = min(float(alike.sum() / max((size * (size - 1)).sum(), 1)), 1.0)
    total = size.sum()
    return float(total / (1 + (total - 1) * r2))
