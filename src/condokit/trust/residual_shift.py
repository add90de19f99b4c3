"""The shift that a map left, given the confounders, with permutation tests; differences it kept."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.special import digamma, polygamma

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros, rms
from condokit.data.subsets import folds, subsample
from condokit.divergences.samples import squared_distances
from condokit.trust.blocks import ComparableRows

_REAL = 3.0  # standard errors above which a difference that confounders explain is real
_LEAST_KEPT = 0.8  # share of the differences; a map that surely keeps less is doubted
_NOTABLE = 0.1  # standard deviations, and share of rows, below which a difference does not matter
_MOST_SILHOUETTES = 1000  # rows, as silhouettes need all distances
_FEATURE_BATCH = 256  # features that are permuted at a time, for memory
_MOST_CLASSIFIED = 1000  # rows on which the classifier of domains is trained
_FOLDS = 5  # of the classifier
_RIDGE = 5.0  # penalty of the classifier, in units of the mean eigenvalue
_MOST_COMPONENTS = 100  # principal components that the classifier uses
_WAVES = 100  # random Fourier features, by which it finds nonlinear differences
_MOST_MOVED = 2000  # with more features, the map's errors are not added for the classifier
_EXCEEDED = 10  # permuted labellings with as large an area, after which a p-value is known


@dataclass(frozen=True)
class ResidualShift:
    """The size of a shift given the confounders, feature by feature."""

    difference: Array  # (n_features,) mean of query minus reference within blocks, in sd
    log_ratio: Array  # (n_features,) logarithm of the ratio of standard deviations within blocks
    noise: tuple[float, float]  # sampling variances of a feature's difference and log-ratio

    @property
    def size(self) -> tuple[float, float]:
        """Root mean squares of both over features."""
        return rms(self.difference), rms(self.log_ratio)


@dataclass(frozen=True)
class MapErrors:
    """How far a map may be off by chance, in the reference's units.

    A map from other rows has standard errors. A map from these rows followed their noise instead:
    `followed` says how far, given shrinkage.
    """

    centre: Array  # image of the point at which errors of scale and shift are independent
    se_shift: Array | None = None  # standard error of the image of the centre
    se_log_scale: Array | None = None
    followed: tuple[float, float] | None = None  # shares of the shift and log-scale in the map


def measure_shift(rows: ComparableRows, R: Array) -> ResidualShift:
    """Return the shift within blocks, averaged over blocks with weights n_q n_r / (n_q + n_r).

    These weights are the inverse variances of differences of two means. `R` are residuals of shape
    (n_rows, n_features). The log-ratio uses blocks with three or more rows of each domain.
    """
    difference, log_ratio = np.zeros((2, R.shape[1]))
    weight = weight_ratio = noise_ratio = 1e-300
    for block in rows.shared_blocks():
        part = _BlockMoments.of(R[block], rows.is_query[block, None])
        h = part.weight[0]
        weight += h
        difference += h * (part.mean[0] - part.mean[1])[0] / part.spread
        if part.compares_spread[0]:
            weight_ratio += h
            log_ratio += h * part.log_ratio[0]
            # for normal rows log s^2 with f degrees of freedom has the variance psi'(f / 2)
            noise_ratio += h**2 * polygamma(1, (part.count[:, 0] - 1) / 2).sum() / 4
    each = rows.rows_per_subject
    noise = each / weight, each * (noise_ratio / weight_ratio) / weight_ratio
    # unknown where strata have single rows
    spread = log_ratio / (weight_ratio if weight_ratio > 1e-300 else np.nan)
    return ResidualShift(difference / weight, spread, noise)


@dataclass(frozen=True)
class KeptDifferences:
    """How much of the difference between domains that confounders explain is still there."""

    expected: Array  # (n_features,) difference that the confounders explain, in sd
    observed: Array  # (n_features,) difference of the domains' means, in sd
    is_real: Array  # (n_features,) whether the expected difference is beyond chance and matters
    limit: float  # the smallest difference that would be seen, in sd
    share: float | None  # observed over expected, of features with a real difference if any
    error: float | None  # standard error of the share

    @property
    def are_too_few(self) -> bool:
        """Whether surely too little of the real differences is left: over-correction."""
        if self.share is None or self.error is None:
            return False
        return self.share + 2 * self.error < _LEAST_KEPT


def kept_differences(rows: ComparableRows, X: Array) -> KeptDifferences:
    r"""Return the share :math:`\sum e o / \sum e^2` of real differences that is kept.

    Sums are over features; e is the difference between the domains' means that the confounders
    explain, by the reference's curve or strata, and o the observed difference.
    """
    query = rows.is_query
    unit = ones_for_zeros((rows.after - rows.expected)[~query].std(axis=0))
    expected, observed = (
        (x[query].mean(axis=0) - x[~query].mean(axis=0)) / unit for x in (rows.expected, X)
    )
    # the sampling error of e, from the weights of the reference's rows in it
    n_query, n_reference = query.sum(), (~query).sum()
    n_blocks = int(rows.block.max()) + 1
    counts = [np.bincount(rows.block[side], minlength=n_blocks) for side in (query, ~query)]
    shares = counts[0] / n_query - counts[1] / n_reference
    if rows.covariates is None and _is_of_few(np.abs(shares), counts[1], rows.min_cell):
        expected = np.full(len(expected), np.nan)
    each = rows.rows_per_subject
    error_expected = np.sqrt(each * (shares**2 / np.maximum(counts[1], 1)).sum())
    # sqrt(2 log d) is about the largest of d standard normal values
    doubt = _REAL + np.sqrt(2 * np.log(len(expected)))
    limit = float(doubt * error_expected)
    real = np.abs(expected) > max(limit, _NOTABLE)
    if not real.any() or np.abs(shares).sum() / 2 <= _NOTABLE:
        return KeptDifferences(expected, observed, real, limit, None, None)
    e, o = expected[real], observed[real]
    noise = np.sqrt(each / n_query + each / n_reference + error_expected**2)
    share = float(e @ o / (e @ e))
    # features are correlated, so their errors are taken not to average out
    error = float(np.abs(e).sum() * noise / (e @ e))
    return KeptDifferences(expected, observed, real, limit, share, error)


def _is_of_few(weight: Array, count: Array, min_cell: int) -> bool:
    """Return whether fewer than `min_cell` rows have over half of the weight of their blocks."""
    there = count > 0
    each = np.repeat(weight[there] / count[there], np.minimum(count[there], min_cell))
    return bool(np.sort(each)[::-1][: min_cell - 1].sum() > 0.5 * max(weight[there].sum(), 1e-9))


def variance_explained(rows: ComparableRows, X: Array) -> float | None:
    """Return the mean share of the features' variance that blocks of equal confounders explain."""
    total, within = X.var(axis=0), _centring(rows.block)(X).var(axis=0)
    varies = total > 0
    if len(np.unique(rows.block)) < 2 or not varies.any():
        return None
    return float((1 - within[varies] / total[varies]).mean())


def silhouettes(rows: ComparableRows, X: Array) -> dict[str, float | None]:
    """Return mean silhouettes by domain and by combination of categories, of at most 1000 rows.

    The silhouette of a row is (b - a) / max(a, b), with a its mean distance to the other rows of
    its cluster, and b that to the nearest other cluster; 0 for a row alone in its cluster.
    """
    chosen = subsample(len(X), _MOST_SILHOUETTES)
    unit = ones_for_zeros(rows.after[~rows.is_query].std(axis=0))
    # centred, since distances between large numbers lose digits
    part = (X[chosen] - X[chosen].mean(axis=0)) / unit
    distance = np.sqrt(squared_distances(part, part))
    np.fill_diagonal(distance, 0.0)
    out: dict[str, float | None] = {}
    for name, labels in (("domain", rows.is_query[chosen]), ("confounders", rows.category[chosen])):
        place, count = np.unique(labels, return_inverse=True, return_counts=True)[1:]
        out[f"silhouette_{name}"] = None
        if 1 < len(count) < len(labels):
            sums, every = distance @ np.eye(len(count))[place], np.arange(len(place))
            mine = sums[every, place] / np.maximum(count[place] - 1, 1)
            sums[every, place] = np.inf
            other = (sums / count).min(axis=1)
            width = (other - mine) / ones_for_zeros(np.maximum(mine, other))
            out[f"silhouette_{name}"] = float(np.where(count[place] > 1, width, 0.0).mean())
    return out


class ShiftTests:
    """Permutation tests of the shift that a map left, given the confounders.

    Domain labels are permuted within blocks of similar confounders. A map from other rows has
    sampling errors, so under permuted labels query rows are moved by random errors of that size. A
    map from these rows followed their noise, so under permuted labels it is fitted again. Otherwise
    the tests would be too strict or too lenient. Of arrays over labellings, row 0 is the real one.
    """

    left: ResidualShift
    kept: KeptDifferences
    p: Array  # (n_features,) permutation p-values
    adjusted: Array  # (n_features,) the same, with the family-wise error controlled
    p_features: float  # the smallest of `adjusted`
    auc: float  # area under the ROC curve of a classifier of domains, in held-out rows
    chance: float  # its mean under permuted labels, which is below 0.5 as blocks are small
    p_joint: float  # how probable an area at least as large is under permuted labels

    def __init__(
        self,
        rows: ComparableRows,
        X: Array,
        n_permutations: int = 0,
        errors: MapErrors | None = None,
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng(seed)
        labels = rows.permuted(n_permutations, rng)
        self.rows, self.X, self.R, self.errors = rows, X, rows.residuals(X), errors
        self.left, self.kept = measure_shift(rows, self.R), kept_differences(rows, X)
        self.labels = np.column_stack([rows.is_query, labels])
        self.shift, self.log_scale = np.zeros((2, n_permutations + 1, X.shape[1]))
        if errors is not None and errors.se_shift is not None and errors.se_log_scale is not None:
            noise = rng.standard_normal((2, n_permutations, X.shape[1]))
            self.shift[1:] = noise[0] * errors.se_shift
            self.log_scale[1:] = noise[1] * errors.se_log_scale
        if n_permutations:
            self._test_features()
        self._tell_domains()

    @property
    def p_value(self) -> float:
        """The p-value of both tests together (by feature and jointly), by Bonferroni."""
        return min(1.0, 2 * min(self.p_features, self.p_joint))

    @property
    def told_apart(self) -> float:
        """The area under the ROC curve, rescaled so that 0.5 is chance (or less) and 1 certain."""
        return 0.5 + 0.5 * max(self.auc - self.chance, 0.0) / max(1 - self.chance, 1e-12)

    def p_in_words(self, digits: str) -> str:
        """Return the p-values as text."""
        p, each, joint = (format(p, digits) for p in (self.p_value, self.p_features, self.p_joint))
        return f"p = {p} of two tests: {each} by feature, {joint} jointly"

    def _test_features(self) -> None:
        """Compute permutation p-values of features, adjusted by Westfall and Young's max-T.

        The statistic of a feature is the larger of two standardised ones; see `_statistics`.
        """
        n, d = self.shift.shape
        self.p, standard = np.empty(d), np.empty((n, d))
        for start in range(0, d, _FEATURE_BATCH):
            batch = slice(start, min(start + _FEATURE_BATCH, d))
            found = self._statistics(batch)
            null = found[:, 1:]
            centre, spread = null.mean(axis=1, keepdims=True), null.std(axis=1, keepdims=True)
            statistic = ((found - centre) / ones_for_zeros(spread)).max(axis=0)
            tolerance = 1e-9 * (1 + np.abs(statistic[0]))
            self.p[batch] = (statistic >= statistic[0] - tolerance).mean(axis=0)
            standard[:, batch] = statistic
        largest = standard.max(axis=1)[:, None]
        self.adjusted = np.maximum((largest >= standard[0] - 1e-9).mean(axis=0), self.p)
        self.p_features = float(self.adjusted.min())

    def _statistics(self, batch: slice) -> Array:
        r"""Return two statistics of every labelling and feature: (2, n_labellings, n_features).

        With :math:`\Delta` the difference of means in a block, s its spread and
        :math:`h = n_q n_r / (n_q + n_r)`, the first is the sum over blocks of
        :math:`h [\Delta^2 / s^2 + 2 \log^2(s_q / s_r)]`. It finds differences of any kind, but has
        the noise of all blocks. The second, :math:`(\sum h \Delta)^2 / (s^2 \sum h)` plus the same
        for pooled variances, finds a shift that many small blocks share.
        """
        blocks = []
        for rows in self.rows.shared_blocks():
            X, R = self.X[rows, batch], self.R[rows, batch]
            base = (X - R).mean(axis=0) + R.mean(axis=0)
            blocks.append((_BlockMoments.of(R, self.labels[rows]), base))
        centre = 0.0 if self.errors is None else self.errors.centre[batch]
        if self.errors is not None and self.errors.followed is not None:
            shift, log_scale = _refitted_maps(blocks, centre)
            self.shift[1:, batch] = self.errors.followed[0] * shift
            self.log_scale[1:, batch] = self.errors.followed[1] * log_scale
        stretch = np.exp(self.log_scale[:, batch])
        statistic, common, total = np.zeros((3, *stretch.shape))
        squares, dof = np.zeros((2, *stretch.shape)), np.zeros((2, len(stretch), 1))
        for block, base in blocks:
            moved = (stretch - 1) * (block.mean[0] + base - centre) + self.shift[:, batch]
            difference = block.mean[0] + moved - block.mean[1]
            weight = block.weight[:, None]
            statistic += weight * (difference / block.spread) ** 2
            ratio = block.log_ratio + self.log_scale[:, batch]
            ratio[~block.compares_spread] = 0.0
            statistic += 2 * weight * ratio**2
            common, total = common + weight * difference, total + weight
            free = np.maximum(block.count - 1, 0)[:, :, None]
            squares, dof = squares + free * block.var, dof + free
        var = squares / np.maximum(dof, 1)
        within = ones_for_zeros(squares.sum(axis=0) / np.maximum(dof.sum(axis=0), 1))
        pooled = common**2 / np.maximum(total, 1e-300) / within
        ratio = 0.5 * np.log(ones_for_zeros(var[0]) / ones_for_zeros(var[1]))
        ratio = np.where((dof > 0).all(axis=0), ratio + self.log_scale[:, batch], 0.0)
        pooled += 2 * ratio**2 * dof[0] * dof[1] / np.maximum(dof.sum(axis=0), 1)
        return np.stack([statistic, pooled])

    def _tell_domains(self) -> None:
        """Classify the domain by the leading components of all features, within blocks and folds.

        Computes the area under the ROC curve for the real labels and all permuted ones.
        """
        n_labels, d = self.shift.shape
        chosen = subsample(len(self.X), _MOST_CLASSIFIED)
        block, labels = self.rows.block[chosen], self.labels[chosen]
        centre = _centring(block)
        centred = centre(self.R[chosen])
        unit = ones_for_zeros(centred.std(axis=0))
        axes = np.linalg.svd(centred / unit, full_matrices=False)[2][:_MOST_COMPONENTS].T
        groups = None if self.rows.groups is None else self.rows.groups[chosen]
        fold = folds(block, _FOLDS, groups, order=np.arange(len(block)))
        classify = _Classifier(block, fold, axes.shape[1], centre)
        projected = centred / unit @ axes
        is_moved = d <= _MOST_MOVED and bool(self.shift.any() or self.log_scale.any())
        if self.errors is None or not is_moved:
            auc = classify(projected, labels)
        else:
            # rows are moved after the projection: the products then have few columns
            axes = axes / unit[:, None]
            from_centre = self.X[chosen] - self.errors.centre
            areas = list[float]()
            for b, mine in enumerate(labels.T):
                stretch, moved = np.expm1(self.log_scale[b])[:, None], projected.copy()
                moved[mine] += from_centre[mine] @ (stretch * axes) + self.shift[b] @ axes
                areas.append(classify(centre(moved), mine[:, None])[0])
                if sum(area >= areas[0] - 1e-12 for area in areas[1:]) == _EXCEEDED:
                    break
            auc = np.array(areas)
        # A large p-value needs few labellings: h exceedances in n of them give h / n (Besag and
        # Clifford, 1991). If all were tried, the real one counts among them.
        whole, exceeded = len(auc) == n_labels, int((auc[1:] >= auc[0] - 1e-12).sum())
        self.auc, self.p_joint = float(auc[0]), (exceeded + whole) / (len(auc) - 1 + whole)
        self.chance = float(auc[1:].mean()) if n_labels > 1 else 0.5


def _refitted_maps(
    blocks: "list[tuple[_BlockMoments, Array]]", centre: Array | float
) -> tuple[Array | float, Array | float]:
    """Return offsets at the centre and log-scales of maps refitted under permuted labels.

    Both have the shape (n_permutations, n_features). Maps are those of reverse KL, in closed form.
    """
    usable = [(block, base) for block, base in blocks if block.compares_spread.all()]
    if not usable:
        return 0.0, 0.0
    shape = usable[0][0].mean[0, 1:].shape  # every labelling of a feature is a feature of one fit
    weights = np.array([block.weight[0] for block, _ in usable])
    (x, var), (y, of_y) = (
        [
            np.stack([(block.mean[k, 1:] + base - centre).ravel() for block, base in usable]),
            ones_for_zeros(np.stack([block.var[k, 1:].ravel() for block, _ in usable])),
        ]
        for k in (0, 1)
    )
    v = (weights / weights.sum())[:, None] / of_y
    x_mean, y_mean = ((v * side).sum(axis=0) / v.sum(axis=0) for side in (x, y))
    P = (v * (var + (x - x_mean) ** 2)).sum(axis=0)
    Q = (v * (x - x_mean) * (y - y_mean)).sum(axis=0)
    scale = (Q + np.sqrt(Q**2 + 4 * P)) / (2 * P)
    return (y_mean - scale * x_mean).reshape(shape), np.log(scale).reshape(shape)


class _Classifier:
    """Cross-fitted ridge regression of domain labels on components and random Fourier features.

    Scores are compared within blocks and folds only.
    """

    def __init__(
        self, block: Array, fold: Array, n_components: int, centre: Callable[[Array], Array]
    ) -> None:
        self.centre = centre
        self.folds = [np.flatnonzero(fold == f) for f in np.unique(fold)]
        self.cell = np.unique(block * (fold.max() + 1) + fold, return_inverse=True)[1]
        rng = np.random.default_rng(0)
        self.frequencies = rng.standard_normal((n_components, _WAVES))
        self.phases = rng.uniform(0, 2 * np.pi, _WAVES)
        self.width: float | None = None

    def __call__(self, P: Array, labels: Array) -> Array:
        """Return the area under the ROC curve for every column of `labels`, (n_labellings,)."""
        if self.width is None:
            rows = subsample(len(P), 200)
            gaps = ((P[rows, None] - P[rows]) ** 2).sum(axis=2)
            self.width = max(float(np.sqrt(np.median(gaps[gaps > 0]))), 1e-12) if gaps.any() else 1
        waves = np.cos(P @ (self.frequencies / self.width) + self.phases)
        size = max(float(np.sqrt((P**2).sum(axis=1).mean())), 1e-12)
        Phi = np.column_stack([P / size, self.centre(waves) * np.sqrt(2 / _WAVES)])
        y = self.centre(labels.astype(float))
        parts = [Phi[mine] for mine in self.folds]
        grams = [part.T @ part for part in parts]
        crosses = [part.T @ y[mine] for part, mine in zip(parts, self.folds)]
        gram, cross = sum(grams), sum(crosses)
        ridge = _RIDGE * np.eye(len(gram)) * max(float(np.trace(gram)) / len(gram), 1e-12)
        predicted, rest = np.empty(labels.shape), gram + ridge
        found = np.linalg.solve(rest - np.stack(grams), cross - np.stack(crosses))
        for part, mine, slopes in zip(parts, self.folds, found):
            predicted[mine] = part @ slopes
        return np.array([area_within(*pair, self.cell) for pair in zip(predicted.T, labels.T)])


def area_within(score: Array, label: Array, cell: Array) -> float:
    """Return the area under the ROC curve within cells: the share of pairs in the right order.

    A pair is a labelled and an unlabelled row of one cell. The share comes from ranks within cells;
    equal scores get their mean rank.
    """
    size, n_query = np.bincount(cell), np.bincount(cell, label)
    order = np.lexsort((score, cell))
    s, c = score[order], cell[order]
    first = np.append(True, (s[1:] != s[:-1]) | (c[1:] != c[:-1]))  # of equal ones
    edges = np.append(np.flatnonzero(first), len(s))
    rank = np.empty(len(s))
    rank[order] = ((edges[:-1] + edges[1:] + 1) / 2)[np.cumsum(first) - 1]
    rank -= (np.cumsum(size) - size)[cell]
    won = np.bincount(cell, rank * label) - n_query * (n_query + 1) / 2
    n_pairs = (n_query * (size - n_query)).sum()
    return float(won.sum() / n_pairs) if n_pairs > 0 else 0.5


def _centring(block: Array) -> Callable[[Array], Array]:
    """Return a function that subtracts from every row the mean of its block."""
    _, place, count = np.unique(block, return_inverse=True, return_counts=True)
    members = sparse.csr_array((np.ones(len(place)), (place, np.arange(len(place)))))
    return lambda X: np.asarray(X - ((members @ X) / count[:, None])[place])


@dataclass(frozen=True)
class _BlockMoments:
    """Moments of query and reference rows of one block under several labellings."""

    weight: Array  # (n_labellings,): n_q n_r / (n_q + n_r)
    count: Array  # (2, n_labellings), as all that follow query first
    mean: Array  # (2, n_labellings, n_features), of rows less the block's mean
    var: Array  # (2, n_labellings, n_features)
    spread: Array  # (n_features,): standard deviation of all rows of the block
    compares_spread: Array  # (n_labellings,): whether both domains have three rows or more

    @property
    def log_ratio(self) -> Array:
        """Logarithm of the ratio of standard deviations, freed of the bias of few rows.

        For normal rows log s^2 with f degrees of freedom has the bias psi(f / 2) - log(f / 2).
        """
        half = np.maximum(self.count - 1, 1) / 2
        bias = digamma(half) - np.log(half)
        ratio = np.log(ones_for_zeros(self.var[0]) / ones_for_zeros(self.var[1]))
        return 0.5 * (ratio - (bias[0] - bias[1])[:, None])

    @classmethod
    def of(cls, R: Array, labels: Array) -> "_BlockMoments":
        n, R, L = len(R), R - R.mean(axis=0), labels.T.astype(float)
        sums, squares, total = L @ R, L @ R**2, (R**2).sum(axis=0)
        count = np.stack([L.sum(axis=1), n - L.sum(axis=1)])
        at_least_one = np.maximum(count, 1)[:, :, None]
        mean = np.stack([sums, -sums]) / at_least_one
        var = np.stack([squares, total - squares]) - at_least_one * mean**2
        var = np.maximum(var / np.maximum(count - 1, 1)[:, :, None], 1e-12 * total / n)
        spread = ones_for_zeros(np.sqrt(total / max(n - 1, 1)))
        return cls(count[0] * count[1] / n, count, mean, var, spread, np.minimum(*count) > 2)
