"""All batches together: one law given the confounders, and maps that share strength.

Rows are stacked in units of their batches (`Stacked`), the design is chosen as for two domains, and
scales and offsets of all batches are found at once, then pulled towards what features have in
common, and towards no change.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import is_constant, ones_for_zeros
from condokit.data.bins import side_by_side
from condokit.data.continuous import Continuous
from condokit.data.covariates import crossed
from condokit.data.grouped import GroupedMoments, GroupedScatter
from condokit.data.products import GroupedProducts
from condokit.data.study import Study
from condokit.data.subsets import subsample
from condokit.maps.standard_errors import DiagonalErrors
from condokit.solvers.pooled.batches import fit_joint, maps_of
from condokit.solvers.pooled.design import independent_number
from condokit.solvers.pooled.estimate import Discrete, Frame, Law, choose_law, law_of_products
from condokit.solvers.pooled.noise import NoiseModel
from condokit.solvers.pooled.products import residual_kurtosis, unexplained
from condokit.solvers.pooled.stacked import Stacked, nodes, solve
from condokit.solvers.pooled.subjects import Subjects
from condokit.solvers.pooled.weights import fit_weights, shape
from condokit.solvers.posterior import MAP_ARRAYS, Maps, posterior_of

_MOST_VALUES = 300_000  # of rows times features at a time
_FEWEST_TOGETHER = 16  # features that are fitted at a time
_ROW_VALUES = 20_000_000  # beyond which categories alone are fitted from moments of cells
_MOST_SELECTING = 128
_FEWEST_TIED = 10  # rows of a batch whose equal values count
_Part = tuple[Stacked, Array, Array, Array, Discrete]  # means, units, constant features, ties


@dataclass(frozen=True)
class JointFit:
    """Maps of all batches but the reference, in the users' units, and their errors.

    Arrays have the shape (n_batches - 1, n_features).
    """

    batches: list[int]
    scale: Array
    offset: Array
    errors: list[DiagonalErrors]
    flat: Array  # (n_features,): only shifted
    facts: dict[str, Any]


class _Layout:
    """What all features share: rows or cells, their confounders, and the columns of the design."""

    def __init__(self, study: Study, batches: list[int], reference: int) -> None:
        self.study, self.reference = study, batches.index(reference)
        self.K = len(batches)
        chosen = study.among(*batches)
        if study.n_bridges and not study.confounders:
            chosen &= study.bridge >= 0  # other rows tell nothing without confounders
        self.used = np.flatnonzero(chosen)
        number = np.full(study.n_domains, -1)
        number[batches] = np.arange(self.K)
        self.batch, self.bridge = number[study.code[self.used]], study.bridge[self.used]
        self.at = crossed(study, self.used)
        self.counts = self.at.counts
        table = self.study.tables[0]
        n_values = len(self.used) * (table.width if table.is_annotated else table.n_features)
        simple = not (self.at.Z.shape[1] or study.n_bridges or self.study.gaps)
        self.by_cells = simple and self.study.groups is None and n_values > _ROW_VALUES
        self.by_cells |= not self.study.is_whole

        bridge = self.bridge if (self.bridge >= 0).any() else None
        self.number: float | None = (
            None  # independent features for each, where residuals do not tell
        )
        self.features: list[Array] = []  # in the order of fits, if it is not theirs
        self.single: list[bool] = []  # whether values are known, fit by fit
        self.normal: list[int] = []  # features with heavy tails whose values are not known
        groups = None if study.groups is None else study.groups[self.used]
        subjects = Subjects.of(groups, bridge, self.batch, self.K)
        self.frame = Frame(self.at, self.batch, self.K, self.reference, subjects)

    def cells(self) -> Array:
        """Return the (batch, level) of every row, -1 of those that are not used."""
        code = np.full(len(self.study.code), -1, dtype=np.intp)
        code[self.used] = self.batch * self.at.n_categories + self.at.category
        return code

    def counts_of(self, known: Array | None) -> Array:
        """Return how many rows each value counts for."""
        return self.counts[:, None] * (1.0 if known is None else known)

    def blocks(self) -> Iterator[Array]:
        """Yield the numbers of features that are fitted at a time."""
        step = max(_FEWEST_TOGETHER, _MOST_VALUES // len(self.used))
        for start in range(0, self.study.n_features, step):
            yield np.arange(start, min(start + step, self.study.n_features))

    def values(self, features: Array) -> tuple[Array, Array, Array, Array | None]:
        """Return features in units of their batch, the units, and where values are known."""
        whole = len(features) == self.study.n_features
        X = (self.study if whole else self.study.of(features)).rows(self.used)
        known = None
        if np.isnan(X).any():
            known = (~np.isnan(X)).astype(float)
            X = np.nan_to_num(X)
        mean, unit = np.zeros((2, self.K, X.shape[1]))
        for b in range(self.K):
            mine = self.batch == b
            w = self.counts[mine][:, None] * (1.0 if known is None else known[mine])
            total = np.broadcast_to(w, X[mine].shape).sum(0)
            mean[b] = (w * X[mine]).sum(0) / total
            X[mine] -= mean[b]
            unit[b] = np.sqrt((w * X[mine] ** 2).sum(0) / total)
            unit[b] = np.where(is_constant(unit[b], mean[b]), 0.0, unit[b])
            X[mine] /= ones_for_zeros(unit[b])
        return X if known is None else X * known, mean, unit, known


def fit_study(
    study: Study, batches: list[int], reference: int, has_scale: bool, shrinks: bool
) -> JointFit:
    """Fit all batches together, one block of features after another."""
    layout = _Layout(study, batches, reference)
    others = [b for b in batches if b != reference]
    if study.products is not None:
        stacks, facts = _products(layout)
    elif layout.by_cells:
        stacks, facts = _cells(layout), {"variance": ["levels"]}
    else:
        few = np.arange(study.n_features)
        law = _law(layout, few[subsample(len(few), _MOST_SELECTING)])
        stacks, facts = _rows(layout, law), law.facts
    found, flat, normal = list[Maps](), list[Array](), list[int]()
    for at, mean, unit, constant, discrete in stacks:
        shifted = constant | (not has_scale)
        # a batch of equal values has the unit of the others, and 1 in the users' units is the ratio
        spread = np.sqrt((unit**2).sum(0) / np.maximum((unit > 0).sum(0), 1))
        unit = np.where(unit > 0, unit, ones_for_zeros(spread))
        fixed = np.where(shifted[:, None], (unit / unit[at.reference]).T, np.nan)
        number = None if layout.number is None else max(layout.number * len(fixed), 1.0)
        if layout.single and layout.single[len(found)]:
            number = None  # these are values, which tell of tails
        joint = fit_joint(at, fixed, number, ~discrete.tied)
        maps = maps_of(at, joint, shifted)
        if len(most := np.flatnonzero(discrete.modal & ~shifted)) and not at.noise.empty:
            equal = NoiseModel.of_levels(at.noise.category, at.noise.n_categories, False)
            alone = replace(at.of(most), noise=equal)
            again = fit_joint(alone, fixed[most], number, most < 0)
            maps = maps.put(most, maps_of(alone, again, shifted[most]))
        if not layout.study.is_whole and layout.study.products is None:
            before = sum(map(len, flat))
            heavy = np.flatnonzero(shape(at, joint)[1] & ~shifted)
            single = _with_values(layout, before + heavy, mean[:, heavy], unit[:, heavy])
            if single is None:
                normal += (before + heavy).tolist()
            else:
                again = fit_weights(
                    single, solve(single, fixed[heavy]), fixed[heavy], heavy >= 0, joint.n_effective
                )
                maps = maps.put(heavy, maps_of(single, again, shifted[heavy]))
        found.append(_in_units(maps, mean, unit, at, shifted))
        flat.append(constant)
    if normal := normal + layout.normal:
        facts["fitted_as_normal"] = [study.tables[0].labels[j] for j in normal]
    order = np.argsort(np.concatenate(layout.features)) if layout.features else slice(None)
    maps = _side_by_side(found, order)
    scale, offset, errors, chances = _settled(maps, shrinks)
    facts |= chances
    return JointFit(others, scale, offset, errors, np.concatenate(flat)[order], facts)


def _rows(layout: _Layout, law: Law) -> Iterator[_Part]:
    """Yield rows of some features, the means and units of batches, and which are constant."""
    empty = law.stacked(np.zeros((len(layout.used), 0)))
    for features in layout.blocks():
        X, mean, unit, known = layout.values(features)
        table = X if known is None else np.where(known, X, np.nan)
        read, d = partial(_values, table), len(features)
        rows = [np.flatnonzero(layout.batch == b) for b in range(layout.K)]
        flat = (unit == 0).any(axis=0) | Discrete.of(read, d, rows).rare
        discrete = Discrete.of(read, d, [own for own in rows if len(own) >= _FEWEST_TIED])
        at = replace(empty, X=X, counts=layout.counts_of(known))
        free = np.where(flat[:, None], np.ones(layout.K), np.nan)
        yield law.with_ratios(at, free), mean, unit, flat, discrete


def _values(X: Array, features: Array | None, rows: Array) -> Array:
    return X[rows] if features is None else X[np.ix_(rows, features)]


def _law(layout: _Layout, few: Array) -> Law:
    """Choose on some features what mean and variance depend on, and how alike subjects are."""
    X, mean, unit, known = layout.values(few)
    usable = (unit != 0).all(axis=0)
    if not usable.any():
        return Law(X, layout.frame, np.ones((len(usable), layout.K)), usable, known)
    X, known = X[:, usable], None if known is None else known[:, usable]
    fixed, every = np.full((X.shape[1], layout.K), np.nan), np.ones(X.shape[1], dtype=bool)
    return choose_law(X, layout.frame, fixed, every, X.shape[1], known)


def _cells(layout: _Layout) -> Iterator[_Part]:
    """Yield moments of (batch, level) cells in place of many rows with categories alone."""
    study, L, code = layout.study, layout.at.n_categories, layout.cells()
    if study.entries is not None:
        stats = GroupedMoments(layout.K * L, study.n_features)
        stats.update_sparse(study.entries, study.tables[0].positions, code, study.weights)
        stats.products = study.of(stats.few).gather(code, layout.K * L, GroupedScatter)
    else:
        stats = study.gather(code, layout.K * L, partial(GroupedMoments, products=True))
    batch, level = np.divmod(np.arange(layout.K * L), L)
    mean, unit = _units(stats, layout.K)
    layout.number = _independent_share(stats, ones_for_zeros(unit))
    X, counts, cell = nodes(stats, mean[batch], ones_for_zeros(unit)[batch])
    noise = NoiseModel.of_levels(level[cell], L, L > 1)
    where = np.zeros(0), batch[cell], layout.K, layout.reference
    stacked = Stacked(X, None, *where, counts, noise)
    step = max(1, _MOST_VALUES // (len(X) + 4 * layout.K**2))
    for start in range(0, study.n_features, step):
        few = slice(start, start + step)
        flat = (unit[:, few] == 0).any(axis=0)
        yield stacked.of(few), mean[:, few], unit[:, few], flat, Discrete(*[flat & False] * 3)


def _with_values(layout: _Layout, features: Array, mean: Array, unit: Array) -> Stacked | None:
    """Return the values of features with heavy tails, None if there are none, or not known."""
    sums, L = layout.study.sums_only, layout.at.n_categories
    known = sums.values(features)
    if not len(features) or not {*features.tolist()} <= known.keys():
        return None
    place = np.full(len(sums.label), -1)
    place[sums.cell[layout.used]] = layout.batch * L + layout.at.category
    cell, X, counts = side_by_side([known[j].placed(place) for j in features.tolist()])
    batch, level = np.divmod(cell, L)
    X = (X - mean[batch]) / ones_for_zeros(unit)[batch]
    where = np.zeros(0), batch, layout.K, layout.reference, counts
    return Stacked(X, None, *where, NoiseModel.of_levels(level, L, L > 1))


def _units(stats: GroupedMoments, K: int) -> tuple[Array, Array]:
    """Return means and spreads of K batches, given those of their cells; 0 for equal values."""
    first = np.arange(K) * (len(stats.count) // K)
    total = np.add.reduceat(stats.n, first)
    mean = np.add.reduceat(stats.n * stats.mean, first) / total
    away = stats.mean - np.repeat(mean, len(stats.count) // K, axis=0)
    unit = np.sqrt(np.add.reduceat(stats.squares + stats.n * away**2, first) / total)
    return mean, np.where(is_constant(unit, mean), 0.0, unit)


def _products(layout: _Layout) -> tuple[Iterable[_Part], dict[str, Any]]:
    """Return rows that stand for products with functions of continuous confounders."""
    K, L, sums, code = layout.K, layout.at.n_categories, layout.study.sums_only, layout.cells()
    stats = layout.study.gather(code, K * L, partial(GroupedMoments, products=True))
    mean, unit = _units(stats, K)
    place = np.full(len(sums.label), -1)
    place[sums.cell] = code
    whole = Continuous(sums.continuous.basis, K * L, layout.study.n_features)
    whole.merge(sums.continuous, place)
    stacks: list[_Part] = []
    facts: dict[str, Any] = {}
    layout.number = _independent_share(stats, ones_for_zeros(unit), whole.products)
    for features, known in whole.parts():
        units = mean[:, features], ones_for_zeros(unit[:, features])
        usable = np.asarray((unit[:, features] > 0).all(axis=0))
        free = np.full((len(features), K), np.nan)
        number = max((layout.number or 1.0) * len(features), 1.0)
        law, X = law_of_products(known, units, usable, free, number, layout.reference)
        kurtosis, heavy = residual_kurtosis(stats.of(features), known)
        at = law.stacked(X) if not heavy.any() else law.with_kurtosis(known, units, kurtosis)
        tailed = np.flatnonzero(heavy & usable)
        values = sums.values(features[tailed])
        single = [j for j in tailed.tolist() if int(features[j]) in values and j in known.robust]
        layout.normal += [int(features[j]) for j in tailed if j not in single]
        rest = np.setdiff1d(np.arange(len(features)), single)
        parts = [(rest, at.of(rest))] if len(rest) else []
        for j in single:
            group, X, counts = side_by_side([values[int(features[j])].placed(place)])
            X = (X - units[0][group // L][:, [j]]) / units[1][group // L][:, [j]]
            parts.append((np.array([j]), law.of_values(known, j, X, counts, group, units[1])))
        for few, one in parts:
            own = features[few]
            flat = ~usable[few]
            stacks.append((one, mean[:, own], unit[:, own], flat, Discrete(*[flat & False] * 3)))
            layout.features.append(own)
            layout.single.append(few[0] in single)
        facts = facts or law.facts
    return stacks, facts


def _independent_share(
    stats: GroupedMoments, unit: Array, given: GroupedProducts | None = None
) -> float | None:
    """Return as how many independent features each counts, from products of some of them.

    What columns explain is taken off, if products with these are `given`.
    """
    if stats.products is None:
        return None
    sums = np.zeros((len(stats.few), len(stats.few)))
    for scatter, own in zip(np.split(unexplained(stats, given), len(unit)), unit[:, stats.few]):
        sums += scatter.sum(axis=0) / np.outer(own, own)
    return independent_number(sums, float(stats.products.count.sum())) / len(stats.few)


def _in_units(maps: Maps, mean: Array, unit: Array, at: Stacked, fixed: Array) -> Maps:
    """Return maps in the users' units; `fixed` features are only shifted."""
    unit = ones_for_zeros(unit).T
    to, own = unit[:, [at.reference]], unit[:, at.others]
    scale = np.where(fixed[:, None], 1.0, maps.scale * to / own)
    return replace(
        maps,
        scale=scale,
        centre=mean.T[:, at.others] + own * maps.centre,
        image=mean.T[:, [at.reference]] + to * maps.image,
        cov_image=maps.cov_image * to[:, :, None] ** 2,
        sd=maps.sd * to[:, 0],
        profile=np.asarray(maps.profile) * (own / to)[:, :, None] ** np.arange(3),
    )


def _side_by_side(parts: list[Maps], order: Any) -> Maps:
    """Put blocks of features together, in their order."""
    tables = {name: np.concatenate([getattr(part, name) for part in parts]) for name in MAP_ARRAYS}
    arrays = {name: table[order] for name, table in tables.items()}
    share = sum(part.n_effective for part in parts) / len(arrays["sd"])
    return Maps(**arrays, n_effective=max(share * len(arrays["sd"]), 1.0))


def _settled(
    maps: Maps, shrinks: bool
) -> tuple[Array, Array, list[DiagonalErrors], dict[str, list[float]]]:
    """Pull maps if asked; return scales, offsets, errors and what is found of differences.

    Errors of sampling, with the pull as an error of its own, cover too much where few rows leave
    much to the priors; those of the posterior too little where these are wrong. A geometric mean of
    the two variances, with weights 0.4 and 0.6, covers 92 to 98% in simulations, along chains too.
    """
    log_scale, image, facts = np.log(maps.scale), maps.image, dict[str, list[float]]()
    var_log, var_image = (np.einsum("dbb->db", c) for c in (maps.cov_log, maps.cov_image))
    of_log, of_image = np.sqrt(var_log), np.sqrt(var_image)
    if shrinks:
        found = posterior_of(maps)
        of_log = _between(found.var_log, var_log + (found.log_scale - log_scale) ** 2)
        of_image = _between(found.var_image, var_image + (found.image - image) ** 2)
        log_scale, image = found.log_scale, found.image
        facts = {"differs": found.differs.tolist(), "scaled": found.scaled.tolist()}
    scale = np.exp(log_scale)
    errors = [
        DiagonalErrors(*parts) for parts in zip((scale * of_log).T, of_image.T, maps.centre.T)
    ]
    return scale.T, (image - scale * maps.centre).T, errors, facts


def _between(believed: Array, sampled: Array) -> Array:
    """Return standard errors from variances of the posterior, and of sampling with the pull."""
    return np.asarray(believed**0.3 * sampled**0.2)
