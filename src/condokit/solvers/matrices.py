"""The search for full matrices: many starts, the best of which is polished."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
from scipy import linalg

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros
from condokit.maps.coordinates import AllMatrices
from condokit.maps.families import MatrixFamily
from condokit.solvers.gaussian_kl import MOST_DENSE, KLObjective
from condokit.solvers.lbfgs import Objective, descend, keeping_orientation
from condokit.solvers.solution import Solution
from condokit.solvers.units import TINY, Units, decoded
from condokit.summaries.gaussians import GaussianPair, Gaussians

_MODES = 5  # maps that are suggested to other divergences as starts, at most
_MODE_SEARCHES = 20  # starts from which these are searched, at most
_FLIP_FEE = 5.0  # nats demanded of a reflection: round numbers between good and bad maps,
_FLIP_FEE_PER_ROW = 0.01  # and nats per row and feature, if that is more
_RIVAL, _APART = 2.0, 0.5  # nats by which a rotation, 60 degrees or more from the best, is as good
_TOLD_AXES = 20.0  # inverse variance of the angle between axes: a standard error of 13 degrees
_RIDGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # of regressions on stratum means
_RIDGE = 0.03  # the same where rows are too few to choose

Start = tuple[str, Solution]
Solver = Callable[[Array, Array], Solution]


def minimise(
    family: MatrixFamily,
    pair: GaussianPair,
    make_objective: Callable[[Units], Objective] | None = None,
) -> Solution:
    """Find the best matrix of a family for an objective; by default for reverse KL.

    If all matrices are allowed and features are few, starts are explored by reverse KL, which is
    fast, and the best is polished on the objective.
    """
    units, n_starts = Units(pair, family.search.units), family.search.n_starts
    few, max_iter = pair.n_features <= MOST_DENSE, int(family.search.max_iter)
    objective: Objective
    if make_objective:
        objective = make_objective(units)
    else:
        objective = kl = KLObjective(units)
    kept = family.keeps_orientation
    if not family.is_free:
        begin = starts(units, pair, n_starts, kept)
        solve: Solver = lambda B, c: descend(objective, family.around(B, c), max_iter)  # noqa: E731
        return best_of(units, solve, begin, is_rigid=family.is_rigid)

    def descent(max_iter: int) -> Solver:
        """Return a solver by L-BFGS that keeps the orientation of its start."""
        return lambda B, c: descend(keeping_orientation(objective, B), AllMatrices(B, c), max_iter)

    begin = starts(units, pair, n_starts if few else min(n_starts, 3), kept)
    if not make_objective:
        finish: Solver = partial(kl.solve, max_iter=max_iter)
        if n_starts == 1:  # nothing to explore
            return best_of(units, finish, begin)
    elif few:
        kl, finish = KLObjective(units), descent(5 * max_iter)
    else:
        return best_of(units, descent(50), begin, descent(5 * max_iter))
    best = best_of(units, kl.explore, begin, finish, kl.enough())
    return replace(best, curvature=kl.curvature(units.encode(best.scale, best.offset)[0]))


def best_of(
    units: Units,
    solve: Solver,
    starts: Iterable[Start],
    polish: Solver | None = None,
    enough: float = -np.inf,
    is_rigid: bool = False,
) -> Solution:
    """Solve from every start, keep the best and polish it; a reflection must be worth a fee.

    The fee is `_FLIP_FEE` nats in all, or `_FLIP_FEE_PER_ROW` nats per row and feature if that is
    more: rows are neither Gaussian nor independent, and most instruments do not reflect. A rigid
    map pays `_FLIP_FEE` for rotations too, for each axis that is turned. If another rotation is as
    good, the `curvature` of the result is 0, which means that it is not identified. Further starts
    are skipped after a map without reflection has a value below `enough`.
    """
    n_rows = max(float(units.query.count.sum()), 1.0)
    fee = max(_FLIP_FEE / n_rows, _FLIP_FEE_PER_ROW * units.n_features)

    def cost(solution: Solution) -> float:
        """Return the objective and the fees, in nats per query row."""
        turns = solution.turn - solution.is_reflection if is_rigid else 0.0
        return solution.objective + fee * solution.is_reflection + _FLIP_FEE / n_rows * turns

    def solved(solve: Solver, start: Solution) -> Solution:
        """Return the solution from a start, in the user's units."""
        return decoded(units, solve(*units.encode(start.scale, start.offset)))

    found: dict[str, Solution] = {}
    for name, start in starts:
        try:
            solution = solved(solve, start)
        except (ArithmeticError, np.linalg.LinAlgError):
            continue
        if np.isfinite(solution.objective) and np.isfinite(solution.scale).all():
            found[name] = solution
            if solution.objective < enough and not solution.is_reflection:
                break
    if not found:
        raise FloatingPointError("no start led to a finite map")
    best = min(found.values(), key=cost)
    if polish is not None:
        # the best of either orientation, if it is not clear which will win
        sides = ([s for s in found.values() if s.is_reflection == turned] for turned in (0, 1))
        rivals = [min(side, key=cost) for side in sides if side]
        close = [rival for rival in rivals if cost(rival) < cost(best) + max(1.0, fee)]
        best = min((solved(polish, rival) for rival in close), key=cost)
    if is_rigid and any(_rivals(one, best, _RIVAL / n_rows) for one in found.values()):
        best = replace(best, curvature=0.0)
    return replace(best, starts={name: s.objective for name, s in found.items()})


def _rivals(one: Solution, best: Solution, most: float) -> bool:
    """Return whether another rotation of the same orientation is as good, within `most`."""
    if one.objective > best.objective + most or one.is_reflection != best.is_reflection:
        return False
    between = Solution.of(one.scale @ np.linalg.inv(best.scale), one.image)
    return between.turn > _APART


def matrix_starts(
    pair: GaussianPair, n_starts: int | None = None, kept: bool = False
) -> list[Start]:
    """Return full matrices to start from: the best few local minima of reverse KL."""
    n_starts = n_starts or _MODE_SEARCHES
    units = Units(pair, "white")
    if pair.n_features > MOST_DENSE or len(pair.weights) == 1:
        return list(starts(units, pair, min(n_starts, 3), kept))
    objective = KLObjective(units)
    found: list[Start] = []
    for name, start in starts(units, pair, min(n_starts, _MODE_SEARCHES), kept):
        mode = objective.explore(*units.encode(start.scale, start.offset))
        value = mode.objective
        if all(abs(value - other.objective) > 1e-3 * max(1.0, abs(value)) for _, other in found):
            found.append((name, decoded(units, mode)))
    return sorted(found, key=lambda item: item[1].objective)[:_MODES]


def means_map(pair: GaussianPair, ridge: float) -> tuple[Array, Array]:
    r"""Return the regression of the reference's stratum means on query rows.

    :math:`A = C (B + W / 2 + \lambda \operatorname{diag}(B + W))^{-1}`, where C is the covariance
    of the stratum means of both domains, B that of the query's, and W that of query rows within
    strata. With W in full, the means would be regressed on rows, whose spread within strata is then
    only noise; without W, they would be regressed on means, as if rows had no spread. Strata are
    weighted by :math:`n m / (n + m)` with their n and m rows.
    """
    weights = _weights_of_differences(pair)
    mean_q, total = pair.query.balanced(weights)
    mean_r = weights @ pair.reference.mean
    between_q, between_r = pair.query.mean - mean_q, pair.reference.mean - mean_r
    known = (total + (between_q.T * weights) @ between_q) / 2 + ridge * np.diag(np.diag(total))
    A = np.linalg.solve(known, (between_q.T * weights) @ between_r).T
    return A, mean_r - A @ mean_q


def _weights_of_differences(pair: GaussianPair) -> Array:
    """Return weights of strata, by the inverse variances of differences of their means."""
    n, m = pair.query.count, pair.reference.count
    weights = n * m / (n + m)
    return np.asarray(weights / weights.sum())


def means_regression(whole: GaussianPair, halves: list[GaussianPair]) -> Solution:
    r"""Return `means_map` with the ridge that, fitted on half of the rows, is best for the others.

    The criterion is :math:`|A \mu_q + b - \mu_r|^2 + \operatorname{tr}(A W A') / 2` on the other
    half, averaged over strata, with features of the reference in units of their spread.
    """
    values = dict.fromkeys(_RIDGES if halves else (_RIDGE,), 0.0)
    cov = whole.reference.balanced(_weights_of_differences(whole))[1]
    unit = ones_for_zeros(np.sqrt(np.diag(cov)))
    for learn, judge in zip(halves, halves[::-1]):
        weights = _weights_of_differences(judge)
        within = np.tensordot(weights, judge.query.cov, axes=1)
        for ridge in values:
            A, b = means_map(learn, ridge)
            error = ((judge.query.mean @ A.T + b - judge.reference.mean) / unit) ** 2
            spread = np.einsum("ij,jk,ik->i", A, within, A, optimize=True) / unit**2
            values[ridge] += float((weights @ error + spread / 2).mean()) / len(halves)
    best = min(values, key=values.__getitem__)
    value = values[best]
    return Solution.of(*means_map(whole, best), objective=value, starts={"means": value})


def rectangular_starts(pair: GaussianPair, means: Solution) -> list[Start]:
    """Return maps between different features: from stratum means, and from principal axes."""
    weights, A_means = pair.weights, means.scale
    mean_q, size_q, axes_q, along_q = principal_axes(pair.query, weights)
    mean_r, size_r, axes_r, along_r = principal_axes(pair.reference, weights)
    cov_q, cov_r = (axes_q * size_q**2) @ axes_q.T, (axes_r * size_r**2) @ axes_r.T
    p = min(len(size_q), len(size_r))
    lead_q, lead_r = slice(len(size_q) - p, None), slice(len(size_r) - p, None)
    agreement = (weights[:, None] * along_q[:, lead_q] * along_r[:, lead_r]).sum(axis=0)
    sign = np.where(agreement < 0, -1.0, 1.0)
    A_axes = (axes_r[:, lead_r] * (sign * size_r[lead_r] / size_q[lead_q])) @ axes_q[:, lead_q].T
    # the means' map brought to the reference's spread by transport
    cov = A_means @ cov_q @ A_means.T + 1e-3 * np.diag(np.diag(cov_r))
    A_moved = transport_matrix(cov, cov_r) @ A_means
    maps = {"means": A_means, "axes": A_axes, "moved means": A_moved}
    return [(name, Solution.of(A, mean_r - A @ mean_q)) for name, A in maps.items()]


def starts(units: Units, pair: GaussianPair, n: int, kept: bool = False) -> Iterator[Start]:
    """Yield n maps to start from: diagonal, transport, matched axes, then random rotations.

    Every second random one is a reflection, unless orientation is `kept`.
    """
    if pair.start is not None:
        yield "given", Solution.of(*pair.start)
        return
    mean_q, cov_q = pair.query.balanced(pair.weights)
    mean_r, cov_r = pair.reference.balanced(pair.weights)
    A = np.diag(np.sqrt(np.diag(cov_r) / np.diag(cov_q)))
    yield "diagonal", Solution.of(A, mean_r - A @ mean_q)
    if n > 1:
        A = transport_matrix(cov_q, cov_r)
        yield "transport", Solution.of(A, mean_r - A @ mean_q)
    if n > 2:
        yield "axes", Solution.of(*match_axes(pair, kept)[:2])
    rng, d = np.random.default_rng(0), units.n_features
    for k in range(n - 3):
        Q, R = np.linalg.qr(rng.normal(size=(d, d)))
        Q = Q * np.sign(np.diag(R))
        turned = k % 2 == 1 and not kept
        if (np.linalg.slogdet(Q)[0] < 0) != turned:
            Q[0] *= -1
        name = f"{'reflection' if turned else 'rotation'} {(k if kept else k // 2) + 1}"
        yield name, Solution.of(*units.decode(Q, np.zeros(d)))


def transport_matrix(cov_query: Array, cov_reference: Array) -> Array:
    r"""Return the symmetric A with :math:`A C_q A = C_r`, the optimal transport of Gaussians.

    :math:`C_q^{-1/2} (C_q^{1/2} C_r C_q^{1/2})^{1/2} C_q^{-1/2}`, computed as
    :math:`L_r U V' L_q^{-1}` from Cholesky factors and :math:`L_r' L_q = U S V'`, which keeps its
    accuracy when features have very different units.
    """
    left, right = _cholesky(cov_reference), _cholesky(cov_query)
    U, _, V = np.linalg.svd(left.T @ right)
    return left @ linalg.solve_triangular(right.T, (U @ V).T, lower=False).T


def principal_axes(gaussians: Gaussians, weights: Array) -> tuple[Array, Array, Array, Array]:
    """Return the balanced mean, sizes and axes (smallest first), and strata's means along these."""
    mean, cov = gaussians.balanced(weights)
    size, axes = np.linalg.eigh(cov)
    size = np.sqrt(np.maximum(size, TINY * size[-1]))
    return mean, size, axes, (gaussians.mean - mean) @ axes / size


def match_axes(pair: GaussianPair, kept: bool = False) -> tuple[Array, Array, bool]:
    """Return the map that aligns principal axes in their order; see `PCMatch`.

    Signs follow from stratum means and skewness. A reflection is avoided if orientation is `kept`,
    or if the sign of the least certain axis has less evidence than the fee. The third result says
    whether the data tell axes apart and, but for one that orientation decides, their signs.
    """
    query, reference = pair.query, pair.reference
    mean_q, size_q, axes_q, along_q = principal_axes(query, pair.weights)
    mean_r, size_r, axes_r, along_r = principal_axes(reference, pair.weights)
    noise = 1 / np.maximum(query.count, 1e-9) + 1 / np.maximum(reference.count, 1e-9)
    evidence = 2 * (along_q * along_r / noise[:, None]).sum(axis=0)
    if pair.scores is not None:
        along = (rows @ axes for rows, axes in zip(pair.scores, (axes_q, axes_r)))
        cut = (np.clip(a / ones_for_zeros(a.std(axis=0)), -3, 3) for a in along)
        skew_q, skew_r = map(_skewness, cut)
        evidence += 2 * skew_q * skew_r / sum(6 / len(rows) for rows in pair.scores)
    sign = np.where(evidence < 0, -1.0, 1.0)
    orientation = np.linalg.slogdet(axes_r)[0] * np.linalg.slogdet(axes_q)[0] * sign.prod()
    least = int(np.argmin(np.abs(evidence)))
    if orientation < 0 and (kept or abs(evidence[least]) < _FLIP_FEE):
        sign[least] *= -1
    A = (axes_r * (sign * size_r / size_q)) @ axes_q.T
    # axes with variances a and b are known up to an angle of variance a b / (n (a - b)^2)
    is_told = bool(np.sort(np.abs(evidence))[1:].min(initial=np.inf) >= _FLIP_FEE)
    for side, size in ((query, size_q), (reference, size_r)):
        square = np.sort(size**2)
        gap = np.diff(square) ** 2 / ones_for_zeros(square[1:] * square[:-1])
        is_told &= bool(float(side.count.sum()) * gap.min(initial=np.inf) >= _TOLD_AXES)
    return A, mean_r - A @ mean_q, is_told


def _skewness(scores: Array) -> Array:
    """Return the skewness of columns, 0 of constant ones."""
    away = scores - scores.mean(axis=0)
    return np.asarray((away**3).mean(axis=0) / ones_for_zeros((away**2).mean(axis=0)) ** 1.5)


def nearest_rigid(A: Array, has_scale: bool) -> Array:
    """Return the orthogonal matrix nearest to A, times the mean of its scales or one."""
    left, size, right = np.linalg.svd(A)
    return (float(np.exp(np.log(size).mean())) if has_scale else 1.0) * (left @ right)


def _cholesky(cov: Array) -> Array:
    """Return the Cholesky factor; if there is none, with a slightly raised diagonal."""
    for raised in (0.0, 1e-12, 1e-9, 1e-6):
        with suppress(np.linalg.LinAlgError):
            return np.linalg.cholesky(cov + raised * np.diag(np.diag(cov)))
    raise FloatingPointError("a covariance is not positive")
