"""Divergences between samples: MMD and energy distance, from kernels of distances of rows."""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from condokit.checks import Array, check_integer, said
from condokit.divergences.base import Divergence
from condokit.divergences.kl import ReverseKL
from condokit.maps.coordinates import AllMatrices
from condokit.maps.families import MapFamily
from condokit.solvers.lbfgs import Evaluation, descend, infinite, keeping_orientation
from condokit.solvers.matrices import Start, matrix_starts, means_regression, rectangular_starts
from condokit.solvers.solution import Solution
from condokit.solvers.units import FeatureUnits, Units, decoded
from condokit.summaries.samples import Samples, as_gaussians, as_moments, cut_tails

_BUDGETS = (5, 15, 40)  # numbers of iterations, from which held-out rows choose
EXPLORED_ROWS = 200  # of a stratum, on which starts are compared
_ROUNDS = (5, 15, 30)  # iterations after which the worse half of the starts is dropped
_EXACT_ROWS = 1000  # of a stratum; with more, the kernel is approximated by Fourier features
_FTOL, _GTOL = 1e-8, 1e-6  # tolerances at the limit of single precision
_BEYOND = 1e12  # in spreads: mapped values beyond, whose squared distances would overflow
_CACHED = 1 << 16  # pairs of rows compared at a time, so that they fit into the cache
Distance = Callable[[int, Array], tuple[float, Array]]
KernelProfile = Callable[[Array, Array], tuple[Array, Array]]


class RowDivergence(Divergence):
    """A divergence between rows, of which at most `max_rows` in every stratum are used."""

    forms: ClassVar[dict[str, str]] = {"diagonal": "samples", "matrix": "samples"}
    max_rows: int

    def refusal(self, family: MapFamily) -> str:  # noqa: D102
        text = "{mine} does not find {family} maps; use {@map='location-scale'}, 'affine', "
        text += "'orthogonal' or 'similarity'."
        return said(text, mine=type(self).__name__, family=type(family).__name__)


class SampleDivergence(RowDivergence):
    """A divergence between rows of mapped query and reference in every stratum."""

    max_iter: int | None
    precision: type[np.floating[Any]] = np.float64  # the numbers to compute with

    @abstractmethod
    def distances(self, samples: Samples) -> Distance:
        """Return a function from (stratum, mapped rows) to the divergence and its gradient."""

    def solve(self, family: Any, summary: Samples) -> Solution:
        """Find the best map of a family by L-BFGS from several starts.

        Unless `max_iter` is given, the number of iterations is chosen: maps are found from one half
        of the rows, and the divergence of the other half judges them. This early stopping is the
        regularisation of large matrices, since many iterations would fit noise.
        """
        if self.max_iter is not None:
            check_integer("max_iter", self.max_iter, 1)
        summary = with_spread(family, summary)
        units, starts = problem(family, summary)
        inside = summary.each(
            lambda rows: units.of_query(rows).astype(self.precision),
            lambda rows: units.of_reference(rows).astype(self.precision),
        )
        few = inside.thinned(EXPLORED_ROWS)
        begin = {name: Solution.of(*units.encode(s.scale, s.offset)) for name, s in starts}
        budget = self.max_iter or self._budget(family, inside, begin)
        budget = min(budget, 5 * getattr(family, "max_iter", budget))
        name, best, values = self._explore(family, few, dict(begin), budget)
        objective = SampleObjective(inside, self)
        # starts were compared on few rows, which may have been misleading
        best = min((best, begin[name]), key=lambda map: objective(map.scale, map.offset)[0])
        found = objective.descend(family, best, budget)
        return replace(decoded(units, found), starts=values)

    def _budget(self, family: MapFamily, samples: Samples, begin: dict[str, Solution]) -> int:
        """Return the number of iterations, by cross-validation on two halves of the subjects."""
        known, asked = samples.half(0), samples.half(1).thinned(_EXACT_ROWS)
        halves = known.query + known.reference + asked.query + asked.reference
        if min(map(len, halves)) < 2:  # too few to judge; a diagonal map has few numbers to overfit
            return _BUDGETS[0 if family.form == "matrix" else -1]
        learn, judge = SampleObjective(known, self), SampleObjective(asked, self)
        here = min(begin.values(), key=lambda start: learn(start.scale, start.offset)[0])
        best, least, done = _BUDGETS[0], np.inf, 0
        for budget in _BUDGETS:
            here = learn.descend(family, here, budget - done)
            value = judge(here.scale, here.offset)[0]
            if value < least:
                best, least = budget, value
            if here.n_iter < budget - done:  # it has converged
                break
            done = budget
        return best

    def _explore(
        self, family: MapFamily, samples: Samples, begin: dict[str, Solution], budget: int
    ) -> tuple[str, Solution, dict[str, float]]:
        """Return the name of the best start, the map that it leads to, and the values of all.

        In rounds of more iterations each, only the better half of the starts is continued. A start
        that is rotated or reflected must be better by more than chance (`fee`).
        """
        values: dict[str, float] = {}
        objective, done = SampleObjective(samples, self), 0
        sizes = [sum(map(len, side)) for side in (samples.query, samples.reference)]
        fee = 1 / ((samples.n_rows or min(sizes)) * samples.reference[0].shape[1])
        for stop in _ROUNDS:
            if len(begin) == 1 or done == budget:
                break
            for name, start in begin.items():
                begin[name] = objective.descend(family, start, min(stop, budget) - done)
                values[name] = begin[name].objective
            turned = {k: s.turn if family.is_rigid else s.is_reflection for k, s in begin.items()}
            best = sorted(begin, key=lambda name: values[name] + fee * turned[name])
            begin = {name: begin[name] for name in best[: (len(best) + 1) // 2]}
            done = min(stop, budget)
        return *next(iter(begin.items())), values


def with_spread(family: Any, samples: Samples) -> Samples:
    """Return the samples without strata of one query row, for families with a scale.

    A single row shows no spread, so any scale but zero would be too large for it.
    """
    has_spread = np.array([len(rows) > 1 for rows in samples.query])
    same_spread = family.is_rigid or family.form == "diagonal"
    if (same_spread and not family.has_scale) or has_spread.all() or not has_spread.any():
        return samples
    return samples.strata(np.flatnonzero(has_spread))


def problem(family: Any, samples: Samples) -> tuple[Units | FeatureUnits, list[Start]]:
    """Return the units in which maps of a family are found, and maps to start from."""
    units, cut = sample_units(family, samples), samples.without_tails()
    if family.form == "diagonal":
        moments = ReverseKL().solve_diagonal(family, as_moments(cut))
        image = moments.image if family.has_offset else moments.centre
        shift = replace(moments, scale=np.ones_like(moments.scale), image=image)
        # moments of many equal values (zeros, counts) may be far from where the search should start
        return units, [("moments", moments), ("shift", shift)][: 1 + family.has_scale]
    gaussians = as_gaussians(cut)
    if samples.is_rectangular:
        return units, rectangular_starts(gaussians, on_means(samples))[: family.n_starts]
    n_starts = getattr(family, "n_starts", None)
    return units, matrix_starts(gaussians, n_starts, family.keeps_orientation)


def on_means(samples: Samples) -> Solution:
    """Return the regression of the reference's stratum means on query rows."""
    halves = [samples.half(which) for which in (0, 1)]
    sizes = [[len(rows) for rows in (*half.query, *half.reference)] for half in halves]
    known = np.reshape(sizes, (4, -1)).min(axis=0) > 0
    some = [as_gaussians(half.strata(np.flatnonzero(known))) for half in halves if known.sum() > 1]
    return means_regression(as_gaussians(samples), some)


def sample_units(family: Any, samples: Samples) -> Units | FeatureUnits:
    """Return the units in which maps of a family are found; outlying values do not change them."""
    samples = samples.without_tails()
    if family.form == "diagonal":
        return FeatureUnits(as_moments(samples), family.has_offset)
    kind = "samples" if samples.is_rectangular or family.is_free else family.search.units
    return Units(as_gaussians(samples), kind)


class SampleObjective:
    """The weighted mean divergence over strata as a function of the map, with its gradients."""

    def __init__(self, samples: Samples, divergence: SampleDivergence) -> None:
        self.samples, self.distance = samples, divergence.distances(samples)

    def descend(self, family: Any, start: Solution, max_iter: int) -> Solution:
        """Minimise from a start within a family; between different features, over all matrices."""
        A, b = start.scale, start.offset
        free = A.ndim == 2 and A.shape[0] != A.shape[1]
        near = AllMatrices(A, b) if free else family.around(A, b)
        tolerance = (_FTOL, _GTOL) if free or family.is_free or A.ndim == 1 else ()
        kept = not free and A.ndim == 2 and family.keeps_orientation
        objective = keeping_orientation(self, A) if kept else self
        with np.errstate(over="ignore", invalid="ignore"):  # a step may go too far
            return descend(objective, near, max_iter, *tolerance)

    def __call__(self, B: Array, c: Array) -> Evaluation:
        """Return the value and its gradients with respect to B, a matrix or a diagonal, and c."""
        total, d_B, d_c = 0.0, np.zeros_like(B), np.zeros_like(c)
        for k, (w, X) in enumerate(zip(self.samples.weights, self.samples.query)):
            Z = mapped(X, B.astype(X.dtype), c.astype(X.dtype))
            if not np.abs(Z).max() < _BEYOND:
                return infinite(B, c)
            value, d_Z = self.distance(k, Z)
            total += w * value
            d_B += w * gradient_in_map(d_Z, X, B)
            d_c += w * d_Z.sum(axis=0)
        return total, d_B, d_c


def mapped(X: Array, B: Array, c: Array) -> Array:
    """Return the images of rows X under B x + c, where B is a matrix or a diagonal."""
    return X * B + c if B.ndim == 1 else X @ B.T + c


def gradient_in_map(d_Z: Array, X: Array, B: Array) -> Array:
    """Return the gradient with respect to B, given that with respect to the images of X."""
    return np.einsum("ij,ij->j", d_Z, X) if B.ndim == 1 else d_Z.T @ X


class StratumMeans(RowDivergence):
    """Regression of the reference's stratum means on query rows, between different features.

    Its ridge penalty is chosen on held-out rows; see `condokit.solvers.matrices.means_regression`.
    This is `divergence="auto"` between different features; `divergence_` calls it "regression".
    """

    forms = {"matrix": "samples"}
    is_weighted = False
    max_rows = 5000

    def solve(self, family: Any, summary: Samples) -> Solution:  # noqa: D102
        return on_means(summary)


class _KernelDivergence(SampleDivergence):
    r"""Squared maximum mean discrepancy with a kernel of the squared distance, as a U-statistic.

    :math:`\overline{k(z, z')} - 2 \overline{k(z, y)} + \overline{k(y, y')}` is averaged over all
    pairs of different rows; its gradient with respect to a row :math:`z_i` is a sum of terms
    :math:`2 k'(|z_i - y|^2)(z_i - y)`. Pairs of a row with itself are left out: their distance of
    zero would count as similarity, and make the scales of small strata too small.
    """

    @abstractmethod
    def _profile(self, reference: list[Array]) -> KernelProfile:
        """Return a function of squared distances (n, m) and column weights (m,).

        It returns the weighted row sums of the kernel (n,), and the kernel's derivative (n, m).
        """

    def distances(self, samples: Samples) -> Distance:  # noqa: D102
        profile = self._profile(samples.reference)
        reference = samples.reference
        zero = float(profile(np.zeros((1, 1)), np.ones(1))[0][0])  # the kernel of equal rows
        own = []
        for Y in reference:
            w = np.full(len(Y), 1 / max(len(Y) - 1, 1), dtype=Y.dtype)
            own.append(float(profile(squared_distances(Y, Y), w)[0].mean()) - zero * float(w[0]))

        def distance(k: int, Z: Array) -> tuple[float, Array]:
            n, m = len(Z), len(reference[k])
            both = np.concatenate([Z, reference[k]])
            others = max(n - 1, 1)
            share = np.repeat([1 / others, -1 / m], [n, m]).astype(Z.dtype)
            twice = np.repeat([1 / others, -2 / m], [n, m]).astype(Z.dtype)
            partners = share[:, None] * np.column_stack([both, np.ones_like(share)])
            left, right = _factors(Z, both)
            value, pull = 0.0, np.empty_like(partners[:n])
            step = max(1, _CACHED // (n + m))
            for first in range(0, n, step):
                here = slice(first, first + step)
                means, slope = profile(np.maximum(left[here] @ right, 0.0), twice)
                value += float(means.sum(dtype=np.float64)) / n
                np.matmul(slope, partners, out=pull[here])
            value += own[k] - zero / others
            return value, (4 / n) * (pull[:, -1:] * Z - pull[:, :-1])

        return distance


class MMD(_KernelDivergence):
    r"""Maximum mean discrepancy with Gaussian kernels of several widths.

    :math:`k(x, y) = \frac{1}{S} \sum_s \exp(-|x - y|^2 / (s h))` over S widths s, where h is the
    mean squared distance of reference rows within strata, and features are in units of the
    reference's spread. For h and the units, values are cut at six median deviations from their
    stratum's median. Strata with more than 1000 rows are compared by random Fourier features of the
    same kernel.

    Parameters
    ----------
    scales : tuple of float, default=(0.125, 0.5, 2.0)
        The widths s, as multiples of h.
    max_rows : int, default=5000
        Largest number of rows of a stratum and domain that are used, evenly taken.
    max_iter : int or None, default=None
        Iterations of L-BFGS; None chooses 5, 15 or 40 by held-out rows.
    n_fourier : int or None, default=None
        Number of random Fourier features for large strata. None is two for each entry of a matrix
        of d features, but at least 256 and at most 1024: with fewer, the map would fit the noise of
        some directions.
    random_state : int, default=0
        Seed of the Fourier features.

    Examples
    --------
    >>> from condokit import MMD, ConDoAdapter, datasets
    >>> p = datasets.make_categorical1d(200, random_state=0)  # the true map is x / 2 - 2.5
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> adapter = ConDoAdapter(divergence=MMD()).fit_pair(*data)
    >>> adapter.map_.scale.round(1)
    array([0.5])
    """

    precision = np.float32  # far finer than sampling errors

    def __init__(
        self,
        scales: tuple[float, ...] = (0.125, 0.5, 2.0),
        max_rows: int = 5000,
        max_iter: int | None = None,
        n_fourier: int | None = None,
        random_state: int = 0,
    ) -> None:
        self.scales, self.max_rows, self.max_iter = scales, max_rows, max_iter
        self.n_fourier, self.random_state = n_fourier, random_state

    def _profile(self, reference: list[Array]) -> KernelProfile:
        widths = sorted(self._widths(reference), reverse=True)

        def profile(square: Array, shares: Array) -> tuple[Array, Array]:
            means, slope = np.zeros_like(square[:, 0]), np.zeros_like(square)
            part, last = square, np.inf
            for width in widths:
                if abs(last - 4 * width) < 1e-9 * last:  # products are cheaper than an exponential
                    part *= part
                    part *= part
                else:
                    part = np.exp(square * square.dtype.type(-1 / width))
                last = width
                means += part @ shares
                slope -= part * square.dtype.type(1 / width)
            slope /= len(widths)
            return means / len(widths), slope

        return profile

    def _widths(self, reference: list[Array]) -> list[float]:
        """Return the squared widths of the kernels."""
        scales: list[float] = []
        with suppress(TypeError, ValueError):
            scales = [float(scale) for scale in self.scales]
        if not scales or not all(0 < scale < np.inf for scale in scales):
            raise ValueError(f"'scales' of MMD must be positive numbers. Got {self.scales!r}.")
        if self.n_fourier is not None:
            check_integer("n_fourier", self.n_fourier, 1)
        rows_cut = [rows for rows in cut_tails(reference) if len(rows) > 1]
        variances = [rows.var(axis=0, ddof=1).sum() for rows in rows_cut]
        spread = 2 * float(np.mean(variances)) if variances else 1.0
        return [scale * max(spread, 1e-300) for scale in scales]

    def distances(self, samples: Samples) -> Distance:  # noqa: D102
        reference = samples.reference
        if max(map(len, samples.query + reference)) <= _EXACT_ROWS:
            return super().distances(samples)
        frequencies = self._frequencies(reference).astype(reference[0].dtype)
        n_waves = frequencies.shape[1]

        def waves(rows: Array) -> tuple[Array, Array, Array]:
            angle = rows @ frequencies
            cos, sin = np.cos(angle), np.sin(angle, out=angle)
            share = np.full(len(rows), 1 / len(rows), dtype=angle.dtype)
            return cos, sin, np.stack([share @ cos, share @ sin])

        def likeness(mean: Array, n: int) -> float:
            """Return what turns the mean kernel of all pairs into that of different rows."""
            return ((mean**2).sum() / n_waves - 1) / max(n - 1, 1)

        means = [waves(rows)[2] for rows in reference]

        def distance(k: int, Z: Array) -> tuple[float, Array]:
            cos, sin, mean = waves(Z)
            gap = mean - means[k]
            value = (gap**2).sum() / n_waves + likeness(mean, len(Z))
            value += likeness(means[k], len(reference[k]))
            gap = (gap + mean / max(len(Z) - 1, 1))[:, :, None] * frequencies.T
            # d cos = -sin, d sin = cos
            return float(value), 2 / (n_waves * len(Z)) * (cos @ gap[1] - sin @ gap[0])

        return distance

    def _frequencies(self, reference: list[Array]) -> Array:
        """Return random frequencies (d, n) of the kernels, orthogonal within sets of at most d."""
        rng, d = np.random.default_rng(self.random_state), reference[0].shape[1]
        n = self.n_fourier or int(np.clip(2 * d * d, 256, 1024))
        sets = rng.normal(size=(-(-n // min(d, n)), d, min(d, n)))
        lengths = np.sqrt(rng.chisquare(d, n) * 2 / np.resize(self._widths(reference), n))
        return np.hstack(list(np.linalg.qr(sets)[0]))[:, :n] * lengths


class Energy(_KernelDivergence):
    r"""Energy distance, :math:`2 \overline{|z - y|} - \overline{|z - z'|} - \overline{|y - y'|}`.

    Best for values on a grid, such as scores and counts in another unit: the distance has a cusp
    where rows coincide, so the scale is found that maps one grid onto the other.

    Parameters
    ----------
    max_rows : int, default=2000
        Largest number of rows of a stratum and domain that are used, evenly taken.
    max_iter : as for `MMD`, default=None
        Iterations of L-BFGS.

    Examples
    --------
    >>> from condokit import ConDoAdapter, Energy, datasets
    >>> p = datasets.make_categorical1d(200, random_state=0)  # the true map is x / 2 - 2.5
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> adapter = ConDoAdapter(divergence=Energy()).fit_pair(*data)
    >>> adapter.map_.scale.round(1)
    array([0.5])
    """

    def __init__(self, max_rows: int = 2000, max_iter: int | None = None) -> None:
        self.max_rows, self.max_iter = max_rows, max_iter

    def _profile(self, reference: list[Array]) -> KernelProfile:
        least = 1e-8 * max(float(np.mean([rows.var() for rows in reference])), 1e-300)

        def profile(square: Array, shares: Array) -> tuple[Array, Array]:
            length = np.sqrt(square + least)
            return -(length @ shares), -0.5 / length

        return profile


def squared_distances(left: Array, right: Array) -> Array:
    """Return all squared distances, (n_left, n_right)."""
    return np.maximum(np.matmul(*_factors(left, right)), 0.0)


def _factors(left: Array, right: Array) -> tuple[Array, Array]:
    """Return two matrices whose product has all squared distances as its entries."""
    here, there = (np.einsum("ij,ij->i", rows, rows) for rows in (left, right))
    return (
        np.column_stack([-2 * left, here, np.ones_like(here)]),
        np.column_stack([right, np.ones_like(there), there]).T,
    )
