"""Estimates of diagonal maps of two domains: what features depend on, then `stacked` by features.

All sums over rows come from functions of a block of rows whose results add up.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import independent
from condokit.data.basis import RangeBasis
from condokit.data.continuous import Continuous
from condokit.data.covariates import Covariates, standard_units
from condokit.data.products import GroupedProducts
from condokit.data.subsets import subsample
from condokit.solvers.pooled.design import Design, free_columns, independent_number
from condokit.solvers.pooled.noise import NoiseModel, choose_noise, common_noise
from condokit.solvers.pooled.products import (
    node_rows,
    residual_kurtosis,
    unexplained,
    value_rows,
)
from condokit.solvers.pooled.ratios import (
    common_ratio,
    own_ratios,
    ratio_likelihoods,
    ratio_shares,
)
from condokit.solvers.pooled.select import select
from condokit.solvers.pooled.stacked import Found, Stacked, nodes, solve
from condokit.solvers.pooled.streams import WEIGHTED_VALUES, Columns, PlainProducts, State, settle
from condokit.solvers.pooled.subjects import Subjects
from condokit.solvers.pooled.weights import errors, fit_weights, shape
from condokit.solvers.solution import Evidence, Solution, joined
from condokit.summaries.rows import Rows

FEATURE_VALUES = 1 << 17  # numbers of some features that are fitted together
_CELL_VALUES = 1 << 22  # of features that are fitted from moments
MOST_SELECTING = 256  # features that choose the design
_CHOOSING_ROWS = 4000  # rows that choose it
MANY_ROWS = 20_000  # rows that tell whether the variance depends on anything
_SCREENED = 64  # rows of a domain in which equal values are looked for
LEVEL_ROWS = 10  # of a level whose variance is its own, among other confounders
_RATIO_STEPS = 3  # in which the ratio of subjects is chosen at the scales of the last one
_FEWEST_SUBJECTS = 4
TIED = 0.2
MODAL = 0.5
RARE = 0.8
FEWEST_OFF_MODE = 25


@dataclass(frozen=True)
class Discrete:
    """Features with many equal values, by the share of the most frequent one in either domain."""

    tied: Array  # so many that a t distribution would shrink onto them: without t
    modal: Array  # most: neither t nor a model of the variance
    rare: Array  # nearly all, or too few others to learn a spread from: only shifted

    @classmethod
    def of(
        cls, values: Callable[..., Array], d: int, batches: list[Array], sums: Any = None
    ) -> "Discrete":
        """Count equal values of features that have some among 64 rows of a batch.

        `values` returns rows of features, given the numbers of both; None is all features.
        Otherwise `Sums` tell.
        """
        share, off = np.zeros(d), np.full(d, np.inf)
        for own in batches:
            if sums is not None:
                largest, n = sums.most_frequent(own)
                share, off = np.maximum(share, largest / n), np.minimum(off, n - largest)
                continue
            few = np.sort(values(None, own[subsample(len(own), _SCREENED)]), axis=0)
            suspect = np.flatnonzero((np.diff(few, axis=0) == 0).any(axis=0))
            for j, column in zip(suspect, values(suspect, own).T if len(suspect) else ()):
                largest = np.unique(column, return_counts=True, equal_nan=False)[1].max()
                share[j] = max(share[j], largest / len(own))
                off[j] = min(off[j], len(own) - largest)
        modal = share > MODAL
        return cls(share > TIED, modal, (share > RARE) | (modal & (off < FEWEST_OFF_MODE)))

    def of_features(self, features: Array) -> "Discrete":
        """Return some of the features."""
        return Discrete(self.tied[features], self.modal[features], self.rare[features])


def fit_pooled(rows: Rows, has_scale: bool, has_tails: bool = True) -> Solution:
    """Estimate the plain map of every feature; `has_tails` if residuals may have heavy ones."""
    sides = np.split(np.arange(len(rows.order)), [rows.n_query])
    sums = rows.domains.sums_only
    places = sides if sums is None else [rows.used[rows.order[own]] for own in sides]
    discrete = Discrete.of(rows.values, len(rows.flat), places, sums)
    one = rows.unit[0] / rows.unit[1]  # the scale that changes nothing
    fixed = np.where(rows.flat | discrete.rare | (not has_scale), one, np.nan)
    fixed = np.column_stack([fixed, np.ones(len(fixed))])
    if not has_tails:
        discrete = replace(discrete, tied=np.ones(len(fixed), dtype=np.bool_))
    if sums is not None and sums.continuous is not None:
        return fit_products(rows, rows.continuous(), fixed, discrete)
    if rows.covariates.Z.shape[1] and sums is not None and sums.again is not None:
        return _fit_stream(rows, fixed, discrete)
    if rows.covariates.Z.shape[1] or rows.groups is not None:
        return _fit_design(rows, fixed, discrete)
    return _fit_strata(rows, fixed, discrete)


def _fit_strata(rows: Rows, fixed: Array, discrete: Discrete) -> Solution:
    """Fit with categories alone: normal features from moments, heavy tails from rows."""
    at, d, L = rows.covariates, len(fixed), len(rows.strata.count) // 2
    n_effective = _independent_features(rows)
    side = np.arange(2 * L) // L
    X, counts, cell = nodes(rows.strata, rows.mean[side], rows.unit[side])
    noise = NoiseModel.of_levels(cell % L, L, L > 1)
    stacked = Stacked(X, None, np.zeros(0), side[cell], 2, 1, counts, noise)
    never = np.zeros(d, dtype=np.bool_)
    own = fixed, never, ~discrete.modal, n_effective, _CELL_VALUES
    table, tails = _estimates(stacked, *own)
    heavy, unknown = tails & ~discrete.tied & ~rows.flat, np.zeros(d, dtype=np.bool_)
    read, n_rows = rows.single(np.flatnonzero(heavy)), len(rows.order)
    if not rows.domains.is_whole:
        n_rows = round(float(rows.strata.count.sum()))
    for part in _parts(np.flatnonzero(heavy), n_rows):
        if (single := read(part)) is None:
            unknown[part] = True
            continue
        noise = NoiseModel.of_levels(single.category, at.n_categories, at.n_categories > 1)
        where = single.side, 2, 1, single.counts
        stacked = Stacked(single.X, None, np.zeros(0), *where, noise)
        again = solve(stacked, fixed[part])
        again = fit_weights(stacked, again, fixed[part], tails[part], n_effective)
        table[:, part] = _table(stacked, again)
    facts: dict[str, Any] = {"variance": ["levels"]} if at.n_categories > 1 else {}
    facts["as_normal"] = unknown
    return _assemble(table, rows, fixed, discrete, n_effective, facts)


def _estimates(
    at: Stacked,
    fixed: Array,
    may_tail: Array,
    may_vary: Array,
    n_effective: float,
    n_values: int = FEATURE_VALUES,
    found_of: dict[int, tuple[Found, int]] | None = None,
) -> tuple[Array, Array]:
    """Fit features as normal, then those with weights that need these; mark heavy tails.

    What is found of the latter is kept in `found_of`, by feature, with its place in it.
    """
    n, d = at.X.shape
    table, tails = np.empty((13, d)), np.zeros(d, dtype=np.bool_)
    for some in _parts(np.arange(d), n, n_values):
        part = at.of(slice(some[0], some[-1] + 1))
        found = solve(part, fixed[some])
        table[:, some], tails[some] = _table(part, found), shape(part, found)[1]
    vary = may_vary & (not at.noise.empty)
    t = _heavy(at, fixed, tails & may_tail, vary, n_effective)
    for some in _parts(np.flatnonzero(t | vary), n, n_values):
        part, own = at.of(some), fixed[some]
        found = fit_weights(part, solve(part, own), own, t[some], n_effective)
        table[:, some] = _table(part, found)
        if found_of is not None:
            found_of.update({int(j): (found, k) for k, j in enumerate(some)})
        if not may_tail.any():
            tails[some] = shape(part, found)[1]
    return table, tails


def _heavy(at: Stacked, fixed: Array, tails: Array, vary: Array, n_effective: float) -> Array:
    """Mark features whose tails are heavy not for variances that differ alone."""
    tails = tails.copy()
    for some in _parts(np.flatnonzero(tails & vary), len(at.X)):
        part, own, never = at.of(some), fixed[some], np.zeros(len(some), dtype=np.bool_)
        found = fit_weights(part, solve(part, own), own, never, n_effective)
        tails[some] = shape(part, found)[1]
    return tails


def _table(at: Stacked, found: Found) -> Array:
    """Return what `_assemble` needs of features in standard units, a column for each."""
    own = np.broadcast_arrays(*errors(at, found, 0), found.s[:, 0])[:3]
    return np.concatenate([np.stack(own), _row(found)])


def _row(found: Found) -> Array:
    """Return the same without errors."""
    Q, T, last = found.reduced.Q, found.reduced.T[:, -1], (found.nu, found.sigma2, found.dof)
    parts = (*last, found.reduced.n_eff[:, 0], found.s[:, 0], Q[:, 1, 1], Q[:, 0, 1], Q[:, 0, 0])
    return np.stack([np.broadcast_to(row, len(Q)) for row in (*parts, *T)])


def _independent_features(rows: Rows, given: GroupedProducts | None = None) -> float:
    """Return as how many independent features these count, from products of some of them.

    What columns explain is taken off, if products with these are `given`.
    """
    stats, d = rows.strata, len(rows.flat)
    if d == 1 or stats.products is None:
        return 1.0
    varies = np.flatnonzero(~rows.flat[stats.few])
    sums, n = np.zeros((len(varies), len(varies))), len(varies)
    for scatter, unit in zip(np.split(unexplained(stats, given), 2), rows.unit):
        own = unit[stats.few[varies]]
        sums += scatter.sum(axis=0)[np.ix_(varies, varies)] / np.outer(own, own)
    found = independent_number(sums, float(stats.products.count.sum()))
    return found / n * d if 0 < n < d and found > 0.5 * n else found


def _fit_design(rows: Rows, fixed: Array, discrete: Discrete) -> Solution:
    """Fit with any confounders and subjects."""
    X = rows.values()
    law = law_of(rows, X, fixed, discrete)
    may_tail, may_vary = ~discrete.tied & ~rows.flat, ~discrete.modal
    own = fixed, may_tail, may_vary, law.n_effective
    at = law.with_ratios(law.stacked(X), fixed)
    table, _ = _estimates(at, *own)
    facts = {**law.facts, "subjects": float(np.median(at.rho))}
    return _assemble(table, rows, fixed, discrete, law.n_effective, facts, at.rho)


def _fit_stream(rows: Rows, fixed: Array, discrete: Discrete) -> Solution:
    """Choose the law, and estimate errors, from a sample of rows; all else from all rows."""
    X = rows.values()
    if np.isnan(X).any():
        rows, X = rows.complete(X)
    sums, at = rows.domains.sums_only, rows.covariates
    law = law_of(replace(rows, covariates=replace(at, weights=None)), X, fixed, discrete)
    plain = law.frame.at
    may_tail, may_vary = ~discrete.tied & ~rows.flat, ~discrete.modal
    alone = law.stacked(X)  # as many rows as there are tell of tails
    may_tail &= shape(alone, solve(alone, fixed))[1]
    vary = may_vary & (not law.noise.empty)
    may_tail = _heavy(alone, fixed, may_tail, vary, law.n_effective)
    law.frame = replace(law.frame, at=replace(plain, weights=at.weights))
    found_of: dict[int, tuple[Found, int]] = {}
    how = law.n_effective, FEATURE_VALUES, found_of
    table, _ = _estimates(law.stacked(X), fixed, may_tail, may_vary, *how)
    standards = [standard_units(np.asarray(c.values)[rows.used]) for c in rows.domains.continuous]
    if law.noise.empty:  # perhaps of some of these rows
        law.noise = NoiseModel.of_levels(plain.category, plain.n_categories, False)
    columns = Columns(law.design, law.noise, plain, standards, rows.place())
    varied = law.noise.columns.shape[1] > 0
    weighted = np.isfinite(table[3]) | (may_vary & varied)
    if len(some := np.flatnonzero(~weighted)):
        gathered = sums.again(partial(PlainProducts, columns, len(some)), some)
        for few, own in gathered.products.parts():
            mine, never = some[few], np.zeros(len(few), dtype=np.bool_)
            stacked = columns.stacked(node_rows(own), rows.units(mine), law.noise.levels)
            exact = fixed[mine], never, may_vary[mine], law.n_effective, _CELL_VALUES
            table[3:, mine] = _estimates(stacked, *exact)[0][3:]
    for some in _parts(np.flatnonzero(weighted), columns.n_products, WEIGHTED_VALUES):
        state = State.of([found_of[j] for j in some.tolist()], rows.units(some), plain, columns)
        again, sizes = partial(sums.again, features=some), np.sqrt(table[:2, some])
        found = settle(columns, state, again, fixed[some], sizes, law.n_effective)
        table[3:, some] = np.hstack([_row(one) for one in found])
    facts = {**law.facts, "subjects": 0.0}
    return _assemble(table, rows, fixed, discrete, law.n_effective, facts)


def fit_products(rows: Rows, continuous: Continuous, fixed: Array, discrete: Discrete) -> Solution:
    """Fit from products with functions of continuous confounders, by the query's levels first.

    Features that are missing in different rows are fitted apart. Heavy tails need values.
    """
    results = []
    for features, known in continuous.parts():
        part, own, kind = rows.of(features), fixed[features], discrete.of_features(features)
        number, units = _independent_features(part, known.products), (part.mean, part.unit)
        law, X = law_of_products(known, units, ~part.flat, own, number)
        kurtosis, heavy = residual_kurtosis(part.strata, known)
        never, vary = np.zeros(len(features), dtype=np.bool_), ~kind.modal
        stacked = law.stacked(X) if not heavy.any() else law.with_kurtosis(known, units, kurtosis)
        table, _ = _estimates(stacked, own, never, vary, law.n_effective, _CELL_VALUES)
        heavy &= ~kind.tied & ~part.flat
        read, unknown = part.single(np.flatnonzero(heavy)), heavy.copy()
        for one in np.flatnonzero(heavy)[:, None]:
            if (single := read(one)) is None or int(one[0]) not in known.robust:
                continue
            where = single.side * law.frame.at.n_categories + single.category
            at = law.of_values(known, int(one[0]), single.X, single.counts, where, part.unit)
            again = fit_weights(at, solve(at, own[one]), own[one], one >= 0, law.n_effective)
            table[:, one], unknown[one] = _table(at, again), False
        facts = {**law.facts, "as_normal": unknown}
        results.append((features, _assemble(table, part, own, kind, law.n_effective, facts)))
    return joined(results) if len(results) > 1 else results[0][1]


def law_of_products(
    known: Continuous,
    units: tuple[Array, Array],
    usable: Array,
    fixed: Array,
    number: float,
    reference: int = 1,
) -> "tuple[Law, Array]":
    """Choose what features depend on, given products by (batch, level).

    Return also rows that stand for them, in `units` of means and spreads of batches. `usable`
    features choose, and count as `number` independent ones.
    """
    mean, unit = units
    K, nodes = len(mean), node_rows(known.products)
    L = len(known.bins) // K
    batch, level = np.divmod(nodes.group, L)
    X = (nodes.X - mean[batch]) / unit[batch]
    at = Covariates(nodes.Phi, level, L, weights=nodes.counts[:, 0])
    frame = Frame(at, batch, K, reference, basis=known.basis, n_effective=number)
    few = np.flatnonzero(usable) if usable.any() else np.arange(len(usable))
    few = few[subsample(len(few), MOST_SELECTING)]
    return choose_law(X[:, few], frame, fixed[few], usable[few] | ~usable.any(), len(fixed)), X


def law_of(rows: Rows, X: Array, fixed: Array, discrete: Discrete) -> "Law":
    """Choose what features depend on, given all rows in standard units."""
    at, side = rows.covariates, np.where(np.arange(len(rows.order)) < rows.n_query, 0, 1)
    frame = Frame(at, side, 2, 1, Subjects.of(rows.groups, None, side, 2))
    few = np.flatnonzero(~discrete.rare & ~rows.flat)
    few = few if len(few) else np.arange(len(fixed))
    few = few[subsample(len(few), MOST_SELECTING)]
    return choose_law(X[:, few], frame, fixed[few], ~discrete.modal[few], len(fixed))


@dataclass(frozen=True)
class Frame:
    """What is known of rows beside their features."""

    at: Covariates
    batch: Array
    n_batches: int
    reference: int
    subjects: Subjects | None = None
    # of rows that stand for products: their functions, and as how many features these count
    basis: RangeBasis | None = None
    n_effective: float | None = None

    def take(self, rows: Array) -> "Frame":
        """Return some of the rows."""
        subjects = None if self.subjects is None else self.subjects.take(rows)
        return replace(self, at=self.at.take(rows), batch=self.batch[rows], subjects=subjects)

    def columns(self, design: Design) -> tuple[Array, Array]:
        """Return the columns of confounders and batches, and their penalties."""
        U, penalty = design.columns(self.at)
        if self.subjects is not None and self.subjects.is_free.any():
            # a sample's own level stands for its confounders
            U[self.subjects.is_free[self.subjects.code]] = 0.0
            U, penalty = U[:, (kept := independent(U))], penalty[kept]
        dummies = self.batch[:, None] == np.delete(np.arange(self.n_batches), self.reference)
        return np.column_stack([U, dummies]), np.append(penalty, np.zeros(dummies.shape[1]))

    def sample(self, most_rows: int) -> Array:
        """Return rows that choose the design: evenly taken by value from every batch."""
        n, K = len(self.batch), self.n_batches
        together = np.zeros(0, dtype=np.intp) if self.subjects is None else self.subjects.rows
        most_rows -= len(together)
        if n - len(together) <= most_rows or most_rows <= 0 or self.basis is not None:
            return np.arange(n)
        order = np.lexsort((*self.at.Z.T, self.at.category))
        order, kept = order[~np.isin(order, together)], [together]
        for own in (order[self.batch[order] == b] for b in range(K)):
            most = max(most_rows // K, most_rows - (len(order) - len(own)))
            kept.append(np.sort(own[subsample(len(own), most)]))
        return np.concatenate(kept) if not len(together) else np.sort(np.concatenate(kept))


def choose_law(
    X: Array,
    frame: Frame,
    fixed: Array,
    usable: Array,
    n_features: int,
    known: Array | None = None,
) -> "Law":
    """Choose what features depend on; if some of many rows tell of no noise model, from these."""
    every, some = np.arange(len(X)), frame.sample(MANY_ROWS)
    for rows in (some, every):
        part = None if known is None else known[rows]
        law = Law(X[rows], frame.take(rows), fixed, usable, part)
        law.choose(n_features)
        if law.noise.empty or len(rows) == len(every):
            break
    law.frame = frame
    return law


class Law:
    """What mean and variance depend on, and how alike subjects are, chosen on some features."""

    def __init__(
        self, X: Array, frame: Frame, fixed: Array, usable: Array, known: Array | None
    ) -> None:
        self.frame, self.fixed, self.usable, self.known = frame, fixed, usable, known
        self.design, self.rho, self.n_effective = free_columns(frame.at, frame.basis)[0], 0.0, 1.0
        self.shares: Array | None = None  # of features with each ratio of variances of subjects
        self.noise = NoiseModel.of_levels(frame.at.category, frame.at.n_categories, False)
        self.precision = np.ones(len(X))
        self.X = _winsorised(self.stacked(X, known), fixed)

    @property
    def facts(self) -> dict[str, Any]:
        """What the report says of it."""
        variance = [*(self.noise.levels * ["levels"]), *self.noise.names]
        return {"mean": [block.name for block in self.design.blocks], "variance": variance}

    def choose(self, n_features: int) -> None:
        """Choose the design, the ratio of variances of subjects and the noise in turn."""
        few = self.X.shape[1]
        for turn in range(2 if self.frame.subjects is None else 3):
            before = self.rho
            self._choose_mean()
            if turn == 0 and self.rho != before:
                continue
            if not self.noise.empty or not self._choose_noise():
                break
        given = self.frame.n_effective is not None
        if few < n_features and self.n_effective > 0.5 * few and not given:
            self.n_effective *= n_features / few

    def stacked(self, X: Array, known: Array | None = None) -> Stacked:
        """Return rows with what they depend on."""
        frame, at = self.frame, self.frame.at
        U, penalty = frame.columns(self.design)
        counts, noise = at.counts[:, None] * (1.0 if known is None else known), self.noise
        if noise.empty:
            noise = NoiseModel.of_levels(at.category, at.n_categories, False)
        where = frame.batch, frame.n_batches, frame.reference
        who = frame.subjects, np.array([self.rho])
        return Stacked(X, U, penalty, *where, counts, noise, *who)

    def with_kurtosis(
        self, known: Continuous, units: tuple[Array, Array], kurtosis: Array
    ) -> Stacked:
        """Return rows that stand for products, with residuals of some kurtosis."""
        nodes, batch = node_rows(known.products, kurtosis), self.frame.batch
        X = (nodes.X - units[0][batch]) / units[1][batch]
        return self.stacked(X, nodes.counts / self.frame.at.counts[:, None])

    def of_values(
        self, known: Continuous, j: int, X: Array, counts: Array, group: Array, unit: Array
    ) -> Stacked:
        """Return rows that stand for values of one feature in units, without groups' curves."""
        K, L, robust = self.frame.n_batches, self.frame.at.n_categories, known.robust[j]
        counts = counts * (robust.count[group] > 0)[:, None]
        nodes = value_rows(robust, X, counts, group, unit[group // L][:, [j]])
        batch, level = np.divmod(nodes.group, L)
        at = Covariates(nodes.Phi, level, L, weights=nodes.counts[:, 0])
        U, penalty = replace(self.frame, at=at, batch=batch).columns(self.design)
        where = batch, K, self.frame.reference, nodes.counts
        return Stacked(
            nodes.X, U, penalty, *where, NoiseModel.of_levels(level, L, self.noise.levels)
        )

    def _choose_mean(self) -> None:
        sample = self.frame.sample(_CHOOSING_ROWS)
        part = self.frame.take(sample)
        where = part.batch, part.n_batches, part.reference, part.at, part.at.counts
        known = part.subjects, self.rho, part.basis, part.n_effective
        chosen = select(self.X[sample], *where, self.precision[sample], self.fixed, *known)
        self.design, self.n_effective = chosen
        who = self.frame.subjects
        if who is not None and (~who.is_free).sum() >= _FEWEST_SUBJECTS:
            self._choose_ratio()

    def _choose_ratio(self) -> None:
        """Choose the ratio of variances that features have in common, and how far theirs differ."""
        for _ in range(_RATIO_STEPS):
            before, at = self.rho, self.stacked(self.X, self.known)
            value = ratio_likelihoods(at, self.fixed, self.precision[:, None])
            self.rho = common_ratio(value)
            if abs(np.log((self.rho + 0.01) / (before + 0.01))) < 0.1:
                break
        self.shares = ratio_shares(value, self.n_effective)

    def with_ratios(self, at: Stacked, fixed: Array) -> Stacked:
        """Return rows with the ratio of variances of subjects of each feature."""
        if at.subjects is None or self.shares is None:
            return at
        w = self.precision[:, None] if len(self.precision) == len(at.X) else None
        rho = np.zeros(at.X.shape[1])
        for some in _parts(np.arange(len(rho)), len(at.X)):
            part = at.of(some)
            part = replace(part, X=_winsorised(part, fixed[some]))
            rho[some] = own_ratios(ratio_likelihoods(part, fixed[some], w), self.shares)
        return replace(at, rho=rho, kept={})

    def _choose_noise(self) -> bool:
        """Choose what the variance depends on; return whether it depends on anything."""
        at, w = self.frame.at, self.frame.at.counts
        found = solve(self.stacked(self.X, self.known), self.fixed)
        h = found.reduced.h
        square = found.e**2 / (found.sigma2 * (1 - h))
        if self.known is not None:
            square = np.where(self.known, square, 1.0)
        count = np.bincount(at.category, w, minlength=at.n_categories)
        levels = at.n_categories > 1 and bool((count[count > 0] >= LEVEL_ROWS).all())
        if not self.usable.any():
            return False
        square = square[:, self.usable]
        pooled = min(self.n_effective, float(self.usable.sum()))
        if self.frame.basis is not None:  # whose rows tell of variances by level alone
            at = replace(at, Z=at.Z[:, :0])
        noise = choose_noise(square, at, w, levels, pooled, self.design.index)
        if noise.empty:
            return False
        self.noise = noise
        self.precision = np.exp(-common_noise(noise, square, w, h, self.n_effective))
        return True


def _winsorised(at: Stacked, fixed: Array) -> Array:
    """Return features with heavy tails cut at 5 robust standard deviations of their residuals."""
    found, X = solve(at, fixed), at.X.copy()
    heavy = np.flatnonzero(shape(at, found)[1])
    for b, rows in enumerate(at.rows):
        own = np.arange(len(X))[rows][:, None], heavy
        e = found.e[own]
        middle = np.median(e, axis=0)
        spread = np.median(np.abs(e - middle), axis=0) / 0.6745
        spread = np.where(spread > 0, 5 * spread, np.inf)
        X[own] -= (e - np.clip(e, middle - spread, middle + spread)) / found.s[heavy, b]
    return X


def _assemble(
    table: Array,
    rows: Rows,
    fixed: Array,
    discrete: Discrete,
    n_effective: float,
    facts: dict[str, Any],
    rho: Array | float = 0.0,
) -> Solution:
    """Return the solution in the user's units; `rho` is the ratio of variances of subjects."""
    V, V_image, cov, nu, s2, dof, n_eff, m, *G, at, image = table
    uq, ur = rows.unit
    free = np.isnan(fixed[:, 0])
    evidence = Evidence(
        residual_sd=np.sqrt(s2 * (1 + rho)) * ur,
        n_effective=n_effective,
        dof=dof,
        n_eff=n_eff,
        profile=np.stack([G[0], G[1] * uq / ur, G[2] * (uq / ur) ** 2]) / s2,
    )
    facts = {**facts, "heavy_tails": np.isfinite(nu), "discrete": discrete.rare & ~rows.flat}
    return Solution(
        scale=np.where(free, m * ur / uq, 1.0),
        centre=rows.mean[0] + at * uq,
        image=rows.mean[1] - image * ur,
        se_log_scale=np.where(free, np.sqrt(V), 0.0),
        se_image=np.where(rows.flat, 0.0, np.sqrt(V_image) * ur),
        covariance=np.where(free, cov * ur, 0.0),
        evidence=evidence,
        law=facts,
    )


def _parts(features: Array, n_rows: int, n_values: int = FEATURE_VALUES) -> list[Array]:
    size = max(8, n_values // max(n_rows, 1))
    return [features[i : i + size] for i in range(0, len(features), size)]
