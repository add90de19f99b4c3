"""Plain (unshrunk) estimates of diagonal maps of K domains.

First the law of features given confounders is chosen from some features and rows: columns of the
mean, what the variance depends on, how alike rows of a subject are. Then scales and offsets of all
features are estimated under this law (`stacked`), a few features at a time.

Rows are in memory, read again block by block, or gone and only their sums are left. Everything that
is computed from rows is a sum, so that the results of blocks can be added.
"""

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
from condokit.law.design import Block, Design, Together, free_columns
from condokit.law.discrete import Discrete
from condokit.law.maps import gains, maps_of
from condokit.law.noise import NoiseModel, choose_noise, common_noise
from condokit.law.posterior import Maps
from condokit.law.products import (
    node_rows,
    residual_kurtosis,
    unexplained,
    value_rows,
)
from condokit.law.ratios import (
    common_ratio,
    own_ratios,
    ratio_likelihoods,
    ratio_shares,
)
from condokit.law.select import select
from condokit.law.stacked import Found, Stacked, nodes, solve
from condokit.law.streams import WEIGHTED_VALUES, Columns, PlainProducts, State, fit_in_passes
from condokit.law.subjects import Subjects
from condokit.law.weights import fit_weights, shape
from condokit.solvers.solution import Solution, joined_law
from condokit.summaries.rows import Rows

FEATURE_VALUES = 1 << 17  # rows x features of a group that is fitted at a time
_CELL_VALUES = 1 << 22  # the same where few values stand for all rows of a cell
MOST_SELECTING = 256  # features that choose the law; the others take it over
_CHOOSING_ROWS = 4000  # rows that choose the mean; the chosen design is fitted to all
MANY_ROWS = 20_000  # rows that choose what the variance depends on
LEVEL_ROWS = 10  # fewest rows of each level for variances by level, beside continuous confounders
_RATIO_STEPS = 3  # rounds of choosing the ratio of subjects' variances, then the scales
_FEWEST_SUBJECTS = 4  # below this, no variance between subjects is estimated


@dataclass(frozen=True)
class LawFit:
    """Plain maps of all domains but the reference, and what was chosen for the law of features."""

    maps: Maps
    flat: Array  # (n_features,): constant within the strata of a domain, so that no scale exists
    law: dict[str, Any]  # facts for the report, such as the columns of the mean

    @classmethod
    def joined(cls, parts: "list[tuple[Array, LawFit]]") -> "LawFit":
        """Join fits of groups of features, given the numbers of each group's features."""
        order = np.argsort(np.concatenate([own for own, _ in parts]))
        facts = joined_law([part.law for _, part in parts], order)
        maps = Maps.joined([part.maps for _, part in parts], order)
        return cls(maps, np.concatenate([part.flat for _, part in parts])[order], facts)

    def solution(self) -> Solution:
        """Return the map of the query to the reference; only for two domains."""
        maps = self.maps
        return Solution(
            scale=maps.scale[:, 0],
            centre=maps.centre[:, 0],
            image=maps.image[:, 0],
            se_log_scale=np.sqrt(maps.cov_log[:, 0, 0]),
            se_image=np.sqrt(maps.cov_image[:, 0, 0]),
            covariance=maps.cov_both[:, 0],
            evidence=maps,
            law=self.law,
        )


def fit_law(rows: Rows, has_scale: bool, has_tails: bool = True) -> LawFit:
    """Estimate the plain map of every feature.

    Without `has_scale` features are only shifted. Without `has_tails` residuals are taken as
    normal.
    """
    sums = rows.domains.sums_only
    places = rows.by_batch
    if sums is not None:
        places = [rows.used[rows.order[own]] for own in places]
    discrete = Discrete.of(rows.values, -rows.mean / rows.unit, places, sums)
    if not has_scale:
        discrete = replace(discrete, zero=np.zeros_like(discrete.zero))
    shifted = rows.flat | discrete.rare | (not has_scale)
    fixed = np.where(shifted, rows.unit / rows.unit[rows.reference], np.nan).T
    fixed[:, rows.reference] = 1.0  # in standard units; nan is free
    if not has_tails:
        discrete = replace(discrete, tied=np.ones(len(fixed), dtype=np.bool_))
    if sums is not None and sums.continuous is not None:
        return fit_products(rows, rows.continuous(), fixed, discrete)
    if rows.covariates.Z.shape[1] and sums is not None and sums.again is not None:
        return _fit_stream(rows, fixed, discrete)
    if rows.covariates.Z.shape[1] or rows.groups is not None or rows.bridge is not None:
        return _fit_design(rows, fixed, discrete)
    return _fit_strata(rows, fixed, discrete)


def _fit_strata(rows: Rows, fixed: Array, discrete: Discrete) -> LawFit:
    """Fit where all confounders are categories: first all features as normal, from cells' moments.

    A cell is a level in a domain. Features with heavy tails are then fitted again from their
    values.
    """
    at, d, L, K = rows.covariates, len(fixed), rows.covariates.n_categories, rows.n_batches
    together = together_of(rows, rare=discrete.rare)
    n_effective = together.number_of(d)
    batch = np.arange(K * L) // L
    X, counts, cell = nodes(rows.strata, rows.mean[batch], rows.unit[batch])
    noise = NoiseModel.of_levels(cell % L, L, L > 1)
    stacked = Stacked(X, None, np.zeros(0), batch[cell], K, rows.reference, counts, noise)
    never = np.zeros(d, dtype=np.bool_)
    own = fixed, never, ~discrete.modal, n_effective, discrete.origins(rows), _CELL_VALUES
    maps, tails = _estimates(stacked, *own)
    heavy, unknown = tails & ~discrete.tied & ~rows.flat, np.zeros(d, dtype=np.bool_)
    read, n_rows = rows.single(np.flatnonzero(heavy)), len(rows.order)
    if not rows.domains.is_whole:
        n_rows = round(float(rows.strata.count.sum()))
    for part in _parts(np.flatnonzero(heavy), n_rows):
        if (single := read(part)) is None:
            unknown[part] = True
            continue
        noise = NoiseModel.of_levels(single.category, at.n_categories, at.n_categories > 1)
        where = single.batch, K, rows.reference, single.counts
        stacked = Stacked(single.X, None, np.zeros(0), *where, noise)
        again = solve(stacked, fixed[part])
        again = fit_weights(stacked, again, fixed[part], tails[part], n_effective)
        maps.put(part, maps_of(stacked, again))
    facts: dict[str, Any] = {"variance": ["levels"]} if at.n_categories > 1 else {}
    facts["as_normal"] = unknown
    return _in_units(maps, rows, fixed, discrete, together, facts)


def _estimates(
    at: Stacked,
    fixed: Array,
    may_tail: Array,
    may_vary: Array,
    n_effective: float,
    zero: Array,
    n_values: int = FEATURE_VALUES,
    found_of: dict[int, tuple[Found, int]] | None = None,
) -> tuple[Maps, Array]:
    """Fit all features as normal, then refit those that need weights of rows.

    These are features with heavy tails (`may_tail`), and all that `may_vary` if the variance
    depends on the confounders. Features for which `zero` is not nan are only multiplied; see
    `gains`. Returns maps in standard units, and which features have heavy tails.
    `found_of` collects, by feature, the refitted solution and the feature's position in it.
    """
    n, d = at.X.shape
    found_maps, tails, vary = [], np.zeros(d, dtype=np.bool_), may_vary & (not at.noise.empty)
    for some in _parts(np.arange(d), n, n_values):
        part = at.of(slice(some[0], some[-1] + 1))
        found = solve(part, fixed[some])
        tails[some] = shape(part, found)[1]
        if not vary.all():  # else all are fitted again
            found_maps.append(maps_of(part, found))
    known = found if len(some) == d else None
    maps = Maps.joined(found_maps) if found_maps else None
    t = _heavy(at, fixed, tails & may_tail, vary, n_effective)
    for some in _parts(np.flatnonzero(t | vary), n, n_values):
        own = fixed[some]
        if known is None or len(some) < d:
            part = at.of(some)
            known = solve(part, own)
        found, known = fit_weights(part, known, own, t[some], n_effective), None
        if maps is None:
            found_maps.append(maps_of(part, found))
        else:
            maps.put(some, maps_of(part, found))
        if found_of is not None:
            found_of.update({int(j): (found, k) for k, j in enumerate(some)})
        if not may_tail.any():
            tails[some] = shape(part, found)[1]
    maps = maps or Maps.joined(found_maps)
    for some in _parts(np.flatnonzero(~np.isnan(zero).any(axis=1)), n, n_values):
        maps.put(some, gains(at.of(some), fixed[some], zero[some]))
    return maps, tails


def _heavy(at: Stacked, fixed: Array, tails: Array, vary: Array, n_effective: float) -> Array:
    """Return which of the features with heavy `tails` keep them once variances may differ.

    A mixture of normal rows with different variances looks heavy-tailed without being so.
    """
    tails = tails.copy()
    for some in _parts(np.flatnonzero(tails & vary), len(at.X)):
        part, own, never = at.of(some), fixed[some], np.zeros(len(some), dtype=np.bool_)
        found = fit_weights(part, solve(part, own), own, never, n_effective)
        tails[some] = shape(part, found)[1]
    return tails


def together_of(
    rows: Rows, given: GroupedProducts | None = None, rare: Array | bool = False
) -> Together:
    """Return how features correlate within cells, from the products of a subset of the features.

    `rare` features are left out if others vary. If products with the columns of continuous
    confounders are `given`, what these columns explain is subtracted first.
    """
    stats, d = rows.strata, len(rows.flat)
    if d == 1 or stats.products is None:
        return Together.of_products(np.zeros((0, 0)), 0.0)  # no correlation is known
    use = ~(rows.flat | rare)[stats.few]
    varies = np.flatnonzero(use if use.any() else ~rows.flat[stats.few])
    sums = np.zeros((len(varies), len(varies)))
    for scatter, unit in zip(np.split(unexplained(stats, given), rows.n_batches), rows.unit):
        own = unit[stats.few[varies]]
        sums += scatter.sum(axis=0)[np.ix_(varies, varies)] / np.outer(own, own)
    return Together.of_products(sums, stats.products.count.sum()).among(stats.few[varies])


def _fit_design(rows: Rows, fixed: Array, discrete: Discrete) -> LawFit:
    """Fit from rows in memory: any confounders, subjects, and samples of several domains."""
    X, known = rows.values(), None
    if rows.domains.gaps is not None and np.isnan(X).any():
        known = (~np.isnan(X)).astype(float)
        X = np.nan_to_num(X)
    law = law_of(rows, X, fixed, discrete, known)
    may_tail, may_vary = ~discrete.tied & ~rows.flat, ~discrete.modal
    own = fixed, may_tail, may_vary, law.n_effective, discrete.origins(rows)
    at = law.with_ratios(law.stacked(X, known), fixed)
    maps, _ = _estimates(at, *own)
    facts = {**law.facts, "subjects": float(np.median(at.rho)), "chosen": law.without_rows()}
    return _in_units(maps, rows, fixed, discrete, law.together, facts)


def _fit_stream(rows: Rows, fixed: Array, discrete: Discrete) -> LawFit:
    """Fit from rows that are read again block by block, where confounders are continuous.

    A sample of rows chooses the law and has the standard errors of the maps; scales and offsets are
    those of all rows. Normal features with equal variances need one pass (products with the columns
    of the mean); those with weights of rows need several (`fit_in_passes`).
    """
    X = rows.values()
    if np.isnan(X).any():
        rows, X = rows.complete(X)
    sums, at = rows.domains.sums_only, rows.covariates
    law = law_of(replace(rows, covariates=replace(at, weights=None)), X, fixed, discrete)
    plain = law.frame.at
    may_tail, may_vary = ~discrete.tied & ~rows.flat, ~discrete.modal
    alone = law.stacked(X)  # unweighted rows: tails are tested on as many rows as there are
    may_tail &= shape(alone, solve(alone, fixed))[1]
    vary = may_vary & (not law.noise.empty)
    may_tail = _heavy(alone, fixed, may_tail, vary, law.n_effective)
    law.frame = replace(law.frame, at=replace(plain, weights=at.weights))
    found_of: dict[int, tuple[Found, int]] = {}
    zero = discrete.origins(rows)
    how = law.n_effective, zero, FEATURE_VALUES, found_of
    maps, _ = _estimates(law.stacked(X), fixed, may_tail, may_vary, *how)
    standards = [standard_units(np.asarray(c.values)[rows.used]) for c in rows.domains.continuous]
    where = rows.place(), rows.n_batches, rows.reference
    columns = Columns(law.design, law.noise, plain, standards, *where)
    varied = law.noise.columns.shape[1] > 0
    weighted = np.isfinite(maps.nu) | (may_vary & varied)
    if len(some := np.flatnonzero(~weighted)):
        gathered = sums.again(partial(PlainProducts, columns, len(some)), some)
        for few, own in gathered.products.parts():
            mine, never = some[few], np.zeros(len(few), dtype=np.bool_)
            stacked = columns.stacked(node_rows(own), rows.units(mine), law.noise.levels)
            exact = fixed[mine], never, may_vary[mine], law.n_effective, zero[mine], _CELL_VALUES
            maps.put(mine, _estimates(stacked, *exact)[0], keeps_errors=True)
    for some in _parts(np.flatnonzero(weighted), columns.n_products, WEIGHTED_VALUES):
        state = State.of([found_of[j] for j in some.tolist()], rows.units(some), plain, columns)
        again = partial(sums.again, features=some)
        sizes = [np.einsum("dbb->bd", one[some]) for one in (maps.cov_log, maps.cov_image)]
        found = fit_in_passes(columns, state, again, fixed[some], np.sqrt(sizes), law.n_effective)
        maps.put(some, Maps.joined([maps_of(*one) for one in found]), keeps_errors=True)
    facts = {**law.facts, "subjects": 0.0}
    return _in_units(maps, rows, fixed, discrete, law.together, facts)


def fit_products(rows: Rows, continuous: Continuous, fixed: Array, discrete: Discrete) -> LawFit:
    """Fit from sums only: products of features with functions of continuous confounders.

    Features whose values are missing in different rows are fitted in separate groups. Products do
    not show tails: a feature with heavy tails is fitted from its binned values if there are some,
    else as if it were normal, and marked `as_normal`.
    """
    results = []
    for features, known in continuous.parts():
        part, own, kind = rows.of(features), fixed[features], discrete.of_features(features)
        together = together_of(part, known.products, kind.rare)
        units, zero = (part.mean, part.unit), kind.origins(part)
        law, X = law_of_products(known, units, ~part.flat, own, together, rows.reference)
        kurtosis, heavy = residual_kurtosis(part.strata, known)
        heavy[list(known.robust)] = True  # which a second round asked for
        never, vary = np.zeros(len(features), dtype=np.bool_), ~kind.modal
        stacked = law.stacked(X) if not heavy.any() else law.with_kurtosis(known, units, kurtosis)
        maps, _ = _estimates(stacked, own, never, vary, law.n_effective, zero, _CELL_VALUES)
        heavy &= ~kind.tied & ~part.flat
        read, unknown = part.single(np.flatnonzero(heavy)), heavy.copy()
        for one in np.flatnonzero(heavy)[:, None]:
            if (single := read(one)) is None or int(one[0]) not in known.robust:
                continue
            where = single.batch * law.frame.at.n_categories + single.category
            at = law.of_values(known, int(one[0]), single.X, single.counts, where, part.unit)
            again = fit_weights(at, solve(at, own[one]), own[one], one >= 0, law.n_effective)
            maps.put(one, maps_of(at, again))
            unknown[one] = False
        facts = {**law.facts, "as_normal": unknown}
        results.append((features, _in_units(maps, part, own, kind, law.together, facts)))
    return LawFit.joined(results) if len(results) > 1 else results[0][1]


def law_of_products(
    known: Continuous,
    units: tuple[Array, Array],
    usable: Array,
    fixed: Array,
    together: Together,
    reference: int = 1,
) -> "tuple[Law, Array]":
    """Choose the law from products with functions of the continuous confounders, by cell.

    `known` has the products, `units` the means and spreads of domains, (n_domains, n_features)
    each. Features that are `usable` choose; `together` says how all of them correlate. Returns the
    law, and the values of rows that stand for the products (`products.node_rows`), in standard
    units.
    """
    mean, unit = units
    K, nodes = len(mean), node_rows(known.products)
    L = len(known.bins) // K
    batch, level = np.divmod(nodes.group, L)
    X = (nodes.X - mean[batch]) / unit[batch]
    at = Covariates(nodes.Phi, level, L, weights=nodes.counts[:, 0])
    frame = Frame(at, batch, K, reference, basis=known.basis, together=together)
    few = np.flatnonzero(usable) if usable.any() else np.arange(len(usable))
    few = few[subsample(len(few), MOST_SELECTING)]
    return choose_law(X[:, few], frame, fixed[few], usable[few] | ~usable.any(), len(fixed)), X


def law_of(
    rows: Rows, X: Array, fixed: Array, discrete: Discrete, known: Array | None = None
) -> "Law":
    """Choose the law from rows X in standard units; `known` is 0 where a value is missing."""
    where = rows.batch, rows.n_batches
    subjects = Subjects.of(rows.groups, rows.bridge, *where)
    frame = Frame(rows.covariates, *where, rows.reference, subjects)
    few = np.flatnonzero(~discrete.rare & ~rows.flat)
    few = few if len(few) else np.arange(len(fixed))
    few = few[subsample(len(few), MOST_SELECTING)]
    some = None if known is None else known[:, few]
    law = choose_law(X[:, few], frame, fixed[few], ~discrete.modal[few], len(fixed), some)
    law.together = law.together.among(few)
    return law


@dataclass(frozen=True)
class Frame:
    """What is known of rows beside their features: confounders, domain, subject."""

    at: Covariates  # the confounders
    batch: Array  # (n_rows,): the number of the domain
    n_batches: int
    reference: int
    subjects: Subjects | None = None
    # if rows stand for products: functions with which these were taken; correlations of all
    # features
    basis: RangeBasis | None = None
    together: Together | None = None

    def take(self, rows: Array) -> "Frame":
        """Return some of the rows."""
        if len(rows) == len(self.batch):
            return self  # all of them, with what is known of them already
        subjects = None if self.subjects is None else self.subjects.take(rows)
        return replace(self, at=self.at.take(rows), batch=self.batch[rows], subjects=subjects)

    def columns(self, design: Design) -> tuple[Array, Array]:
        """Return the columns of the mean, (n_rows, n_columns), and the penalty of each.

        The last columns are indicators of all domains but the reference; their coefficients are
        offsets.
        """
        U, penalty = design.columns(self.at)
        if self.subjects is not None and self.subjects.is_free.any():
            # a bridge sample has a free level, which explains all that its confounders could
            U[self.subjects.is_free[self.subjects.code]] = 0.0
            U, penalty = U[:, (kept := independent(U))], penalty[kept]
        dummies = self.batch[:, None] == np.delete(np.arange(self.n_batches), self.reference)
        return np.column_stack([U, dummies]), np.append(penalty, np.zeros(dummies.shape[1]))

    def sample(self, most_rows: int) -> Array:
        """Return the numbers of at most `most_rows` rows, as many of each domain as possible.

        They are evenly spaced in the order of confounders. All rows that share a subject are among
        them.
        """
        n, K = len(self.batch), self.n_batches
        together = np.zeros(0, dtype=np.intp) if self.subjects is None else self.subjects.rows
        most_rows -= len(together)
        if n - len(together) <= most_rows or most_rows <= 0 or self.basis is not None:
            return np.arange(n)
        order, kept = self.at.order, [together]
        if len(together):
            order = order[~np.isin(order, together)]
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
    """Choose the law from a sample of rows.

    X has the features that choose, `n_features` is the number of all features.
    """
    some = frame.sample(MANY_ROWS)
    law = Law(X[some], frame.take(some), fixed, usable, None if known is None else known[some])
    law.choose(n_features)
    law.frame, law.noise = frame, law.noise.at(frame.at)
    return law


class Law:
    """What mean and variance depend on, and how alike rows of a subject are, for all features."""

    def __init__(
        self, X: Array, frame: Frame, fixed: Array, usable: Array, known: Array | None
    ) -> None:
        self.frame, self.fixed, self.usable, self.known = frame, fixed, usable, known
        self.design, self.rho, self.n_effective = free_columns(frame.at, frame.basis)[0], 0.0, 1.0
        self.shares: Array | None = None  # prior of features' ratios, on a grid (`ratios`)
        self.noise = NoiseModel.of_levels(frame.at.category, frame.at.n_categories, False)
        self.precision, self.blocks = np.ones(len(X)), dict[str, tuple[Block, Array]]()
        self.X = _winsorised(self.stacked(X, known), fixed)

    @property
    def facts(self) -> dict[str, Any]:
        """What the report says of the law: columns of the mean and of the variance."""
        variance = [*(self.noise.levels * ["levels"]), *self.noise.names]
        return {"mean": [block.name for block in self.design.blocks], "variance": variance}

    def without_rows(self) -> "Law":
        """Drop the rows that chose the law, so that keeping it takes little memory."""
        self.X, self.precision, self.blocks = np.empty((0, 0)), np.empty(0), {}
        return self

    def choose(self, n_features: int) -> None:
        """Choose mean, ratio of subjects' variances and variance in turn, each given the others.

        The mean is chosen again if subjects or unequal variances are found.
        """
        for turn in range(2 if self.frame.subjects is None else 3):
            before = self.rho
            self._choose_mean()
            if turn == 0 and self.rho != before:
                continue
            if not self.noise.empty or not self._choose_noise():
                break
        self.n_effective = self.together.number_of(n_features)

    def stacked(self, X: Array, known: Array | None = None) -> Stacked:
        """Return rows of features X with the columns, variances and subjects of this law."""
        frame, at = self.frame, self.frame.at
        U, penalty = frame.columns(self.design)
        counts = at.counts[:, None] * (1.0 if known is None else known)
        where = frame.batch, frame.n_batches, frame.reference
        who = frame.subjects, np.array([self.rho])
        return Stacked(X, U, penalty, *where, counts, self.noise, *who)

    def with_kurtosis(
        self, known: Continuous, units: tuple[Array, Array], kurtosis: Array
    ) -> Stacked:
        """Return rows that stand for products, with residuals of the given kurtosis by feature."""
        nodes, batch = node_rows(known.products, kurtosis), self.frame.batch
        X = (nodes.X - units[0][batch]) / units[1][batch]
        return self.stacked(X, nodes.counts / self.frame.at.counts[:, None])

    def of_values(
        self, known: Continuous, j: int, X: Array, counts: Array, group: Array, unit: Array
    ) -> Stacked:
        """Return rows that stand for feature j, from its values X less curves of confounders.

        Values are binned. Each is combined with points that have the cell's products of columns
        (`value_rows`).
        """
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
        """Choose the columns of the mean on a sample of rows, then the ratio of subjects."""
        sample = self.frame.sample(_CHOOSING_ROWS)
        part = self.frame.take(sample)
        where = part.batch, part.n_batches, part.reference, part.at, part.at.counts
        known = part.subjects, self.rho, part.basis, part.together, self.blocks
        chosen = select(self.X[sample], *where, self.precision[sample], self.fixed, *known)
        self.design, self.together = chosen
        self.n_effective = self.together.number
        who = self.frame.subjects
        if who is not None and (~who.is_free).sum() >= _FEWEST_SUBJECTS:
            self._choose_ratio()

    def _choose_ratio(self) -> None:
        """Choose the ratio of variances between and within subjects, and the scales, in turn.

        First one ratio for all features, then how far ratios of single features spread around it.
        """
        for _ in range(_RATIO_STEPS):
            before, at = self.rho, self.stacked(self.X, self.known)
            value = ratio_likelihoods(at, self.fixed, self.precision[:, None])
            self.rho = common_ratio(value)
            if abs(np.log((self.rho + 0.01) / (before + 0.01))) < 0.1:
                break
        self.shares = ratio_shares(value, self.n_effective)

    def with_ratios(self, at: Stacked, fixed: Array) -> Stacked:
        """Return the rows with a ratio of subjects' variances for each feature (posterior mean)."""
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
        if self.frame.basis is not None:  # products hold variances by level, not by z
            at = replace(at, Z=at.Z[:, :0])
        noise = choose_noise(square, at, w, levels, pooled, self.design.index)
        if noise.empty:
            return False
        self.noise = noise
        self.precision = 1 / common_noise(noise, square, w, h, self.n_effective)
        return True


def _winsorised(at: Stacked, fixed: Array) -> Array:
    """Return X with outliers cut, in features with heavy tails only.

    Residuals are cut at 5 robust standard deviations (median absolute deviation / 0.6745) from the
    domain's median. So outliers do not choose columns.
    """
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


def _in_units(
    maps: Maps,
    rows: Rows,
    fixed: Array,
    discrete: Discrete,
    together: Together,
    facts: dict[str, Any],
) -> LawFit:
    """Return maps in the users' units, from maps between standard units of domains.

    With means M and units u of domains, g(x) = M_r + u_r h((x - M_b) / u_b). Scales that were fixed
    are 1 in users' units and have no error. Features that are only multiplied have no offset; if
    they are zero in all rows of a domain, they stay as they are.
    """
    others = np.delete(np.arange(rows.n_batches), rows.reference)
    mean, own, to = rows.mean.T[:, others], rows.unit.T[:, others], rows.unit[rows.reference]
    zero, flat = discrete.zero[:, None], np.asarray(rows.flat)[:, None]
    to, free = to[:, None], np.isnan(fixed[:, others]) | (zero & ~flat)
    both = free[:, :, None] & free[:, None]
    known = ~flat[:, None]
    found = replace(
        maps,
        scale=np.where(free, maps.scale * to / own, 1.0),
        centre=np.where(zero, 0.0, mean + own * maps.centre),
        image=np.where(zero, 0.0, rows.mean[rows.reference][:, None] + to * maps.image),
        cov_log=np.where(both, maps.cov_log, 0.0),
        cov_image=np.where(known, maps.cov_image * to[:, :, None] ** 2, 0.0),
        cov_both=np.where(free, maps.cov_both * to, 0.0),
        sd=maps.sd * to[:, 0],
        profile=maps.profile * (own / to)[:, :, None] ** np.arange(3),
        alike=together_of(rows, rare=~discrete.zero).alike if zero.any() else 0.0,
        **together.facts(len(fixed)),
    )
    heavy, shifted = np.isfinite(maps.nu), discrete.rare & ~discrete.zero & ~rows.flat
    facts |= {"heavy_tails": heavy, "discrete": shifted, "mostly_zero": discrete.zero}
    return LawFit(found, rows.flat, facts)


def _parts(features: Array, n_rows: int, n_values: int = FEATURE_VALUES) -> list[Array]:
    """Split numbers of features into groups of about `n_values` values, at least 8 a group."""
    size = max(8, n_values // max(n_rows, 1))
    return [features[i : i + size] for i in range(0, len(features), size)]
