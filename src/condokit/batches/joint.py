"""All batches together: one law given the confounders, and maps that share strength.

Rows are stacked in units of their batches (`Stacked`), the design is chosen as for two domains, and
scales and offsets of all batches are found at once, then pulled towards what features have in
common, and towards no change.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit.batches.study import Study
from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros
from condokit.data.grouped import GroupedMoments
from condokit.data.subsets import mixed_order, subsample
from condokit.solvers.pooled.batches import Stacked, fit_joint, residuals, solutions
from condokit.solvers.pooled.design import Design, free_columns, independent, select
from condokit.solvers.pooled.noise import NoiseModel, choose_noise
from condokit.solvers.posterior import posterior
from condokit.solvers.solution import Solution, joined

_MOST_VALUES = 4_000_000  # of rows times features at a time
_ROW_VALUES = 20_000_000  # beyond which categories alone are fitted from moments of cells
_MOST_SELECTING = 128
_MOST_ROWS = 4000
_LEVEL_ROWS = 10.0
_RARE = 0.8  # share of equal values beyond which a feature is only shifted


@dataclass(frozen=True)
class JointFit:
    """Plain and settled maps of batches, and what was found of the law they share."""

    plain: dict[int, Solution]
    settled: dict[int, Solution]
    flat: Array  # (n_features,): only shifted
    facts: dict[str, Any]


class _Layout:
    """What all features share: rows or cells, their confounders, and the columns of the design."""

    def __init__(self, study: Study, batches: list[int], reference: int) -> None:
        self.study, self.reference = study, batches.index(reference)
        self.K, self.domains = len(batches), study.domains
        chosen = study.rows(*batches)
        if study.n_bridges and not study.domains.confounders:
            chosen &= study.bridge >= 0  # other rows tell nothing without confounders
        self.used = np.flatnonzero(chosen)
        number = np.full(study.n_batches, -1)
        number[batches] = np.arange(self.K)
        self.batch, self.bridge = number[study.batch[self.used]], study.bridge[self.used]
        self.at = study.covariates(self.used)
        self.counts = self.at.counts
        n_values = len(self.used) * self.domains.n_features
        simple = not (self.at.Z.shape[1] or study.n_bridges or self.domains.gaps)
        self.by_cells = simple and self.domains.groups is None and n_values > _ROW_VALUES

    def dummies(self, batch: Array) -> Array:
        """Return the indicators of all batches but the reference."""
        others = np.delete(np.arange(self.K), self.reference)
        return (batch[:, None] == others).astype(float)

    def columns(self, design: Design | None) -> tuple[Array, Array]:
        """Return the columns of confounders, bridges and batches, and their penalties."""
        nobody = np.zeros(len(self.used), dtype=bool)
        if design is None:
            design, _ = free_columns(self.at, nobody)
        U, penalty = design.columns(self.at, nobody)
        place = int((penalty == 0).sum()) - 1  # of the query, whom nobody belongs to here
        U, penalty = np.delete(U, place, axis=1), np.delete(penalty, place)
        samples = np.unique(self.bridge[self.bridge >= 0])
        if len(samples):
            U = np.column_stack([(self.bridge[:, None] == samples).astype(float), U])
            penalty = np.concatenate([np.zeros(len(samples)), penalty])
            U, penalty = U[:, (kept := independent(U))], penalty[kept]
        last = self.dummies(self.batch)
        return np.column_stack([U, last]), np.concatenate([penalty, np.zeros(self.K - 1)])

    def blocks(self) -> Iterator[Array]:
        """Yield the numbers of features that are fitted at a time."""
        step = max(1, _MOST_VALUES // len(self.used))
        for start in range(0, self.domains.n_features, step):
            yield np.arange(start, min(start + step, self.domains.n_features))

    def values(self, features: Array) -> tuple[Array, Array, Array, Array | None]:
        """Return features in units of their batch, the units, and where values are known."""
        whole = len(features) == self.domains.n_features
        X = (self.domains if whole else self.domains.of(features)).rows(self.used)
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
            unit[b] = np.where(unit[b] > 1e-12 * np.abs(mean[b]), unit[b], 0.0)
            X[mine] /= ones_for_zeros(unit[b])
        return X if known is None else X * known, mean, unit, known


def fit_study(study: Study, batches: list[int], reference: int, has_scale: bool) -> JointFit:
    """Fit all batches together, one block of features after another."""
    layout = _Layout(study, batches, reference)
    if layout.by_cells:
        return _fit_cells(layout, batches, has_scale)
    few = np.arange(study.domains.n_features)
    few = few[subsample(len(few), _MOST_SELECTING)]
    design, noise, terms = _law(layout, few)
    D, penalty = layout.columns(design)
    parts: dict[int, list[tuple[Array, Solution]]] = {b: [] for b in batches if b != reference}
    flat = np.zeros(study.domains.n_features, dtype=bool)
    for features in layout.blocks():
        X, mean, unit, known = layout.values(features)
        flat[features] = (unit == 0).any(axis=0) | _rare(X, layout.batch, layout.K)
        at = Stacked(
            X,
            D,
            penalty,
            layout.batch,
            layout.K,
            layout.reference,
            layout.counts,
            noise,
            known=known,
        )
        fixed = flat[features] | (not has_scale)
        found = fit_joint(at, fixed)
        for place, solution in solutions(at, found).items():
            own = _in_units(solution, mean, unit, place, layout.reference, fixed)
            parts[batches[place]].append((features, own))
    plain = {b: joined(found) for b, found in parts.items()}
    return JointFit(plain, {b: settled(one) for b, one in plain.items()}, flat, terms)


def _law(layout: _Layout, few: Array) -> tuple[Design | None, NoiseModel, dict[str, Any]]:
    """Choose on some features what their mean and variance depend on, and weigh subjects."""
    X, mean, unit, known = layout.values(few)
    n, at = len(X), layout.at
    nothing = NoiseModel(at.category, at.n_categories, False, np.zeros((n, 0)), np.zeros(0))
    fixed, design = (unit == 0).any(axis=0), None
    usable = np.flatnonzero(~fixed)
    if not len(usable):
        return None, nothing, {}
    X, fixed = X[:, usable], fixed[usable]
    known = None if known is None else known[:, usable]
    for turn in range(2):
        D, penalty = layout.columns(design)
        where = layout.batch, layout.K, layout.reference, layout.counts
        stacked = Stacked(X, D, penalty, *where, nothing, known=known)
        found = fit_joint(stacked, fixed)
        theta = np.einsum("drb,db->rd", found.reduced.T, found.s)
        last = layout.K - 1
        mapped = X * found.s.T[layout.batch] - D[:, -last:] @ theta[-last:]
        if turn == 0 and (at.Z.shape[1] or at.n_categories > 1):
            design = _selected(layout, mapped)
    e = residuals(stacked, found)
    if layout.domains.groups is not None:
        _weigh_subjects(layout, e)
    square = e**2 / found.sigma2
    count = np.bincount(at.category, layout.counts)
    levels = at.n_categories > 1 and bool((count >= _LEVEL_ROWS).all())
    noise = nothing
    if at.Z.shape[1]:
        pooled = min(found.n_effective, float(len(usable)))
        noise = choose_noise(square, at, layout.counts, levels, pooled, None)
    noise = replace(noise, levels=levels)
    if (layout.bridge >= 0).any():
        code = np.where(layout.bridge >= 0, at.n_categories, at.category if levels else 0)
        noise = replace(noise, category=code, n_categories=at.n_categories + 1, levels=True)
    blocks = [] if design is None else [block.name for block in design.blocks]
    return design, noise, {"mean": blocks, "variance": [*(noise.levels * ["levels"]), *noise.names]}


def _selected(layout: _Layout, mapped: Array) -> Design:
    """Choose blocks of columns on rows that are mapped already, half of them as if of a query."""
    rows = np.arange(len(mapped))
    rows = rows[subsample(len(rows), _MOST_ROWS)]
    order = rows[mixed_order(mapped[rows][:, :3])]
    half = len(order) // 2
    ones = np.ones(len(order))
    own = layout.at.take(order)
    return select(mapped[order], half, own, own.counts, ones, np.ones(mapped.shape[1]))[0]


def _weigh_subjects(layout: _Layout, e: Array) -> None:
    r"""Let rows of a subject count :math:`1 / (1 + (m - 1) \rho)` each, rho their correlation."""
    subject = np.unique(layout.domains.groups[layout.used], return_inverse=True)[1]  # type: ignore[index]
    m = np.bincount(subject)
    if len(m) == len(e) or len(m) < 2:
        return
    sums = np.zeros((len(m), e.shape[1]))
    np.add.at(sums, subject, e)
    total = (e**2).sum(0)
    pairs = (sums**2).sum(0) - total  # over pairs of rows of one subject
    rho = float(np.clip(np.mean(pairs / (m * (m - 1)).sum() / (total / len(e))), 0.0, 1.0))
    layout.counts = layout.at.counts / (1 + (m[subject] - 1) * rho)
    layout.at = replace(layout.at, weights=layout.counts)


def _rare(X: Array, batch: Array, K: int) -> Array:
    """Mark features of which nearly all values of a batch are equal."""
    found = np.zeros(X.shape[1], dtype=bool)
    for b in range(K):
        part = np.sort(X[batch == b][subsample(int((batch == b).sum()), 64)], axis=0)
        middle = part[len(part) // 2]
        suspect = np.flatnonzero((part == middle).mean(0) > _RARE)
        if len(suspect):
            found[suspect] |= (X[batch == b][:, suspect] == middle[suspect]).mean(0) > _RARE
    return found


def _fit_cells(layout: _Layout, batches: list[int], has_scale: bool) -> JointFit:
    """Fit many rows with categories alone from moments of (batch, level) cells."""
    at, domains, L = layout.at, layout.domains, layout.at.n_categories
    code = np.full(len(domains.is_query), -1, dtype=np.intp)
    code[layout.used] = layout.batch * L + at.category
    stats = GroupedMoments(layout.K * L, domains.n_features, powers=2)
    weights = domains.weights
    for rows, chunk in domains.chunks():
        stats.update(chunk, code[rows], None if weights is None else weights[rows])
    cells = np.flatnonzero(stats.count)
    count, batch, level = stats.count[cells], cells // L, cells % L
    own = np.zeros((layout.K, len(cells)))
    own[batch, np.arange(len(cells))] = count
    total = own.sum(1)[:, None]
    mean = own @ stats.mean[cells] / total
    X = stats.mean[cells] - mean[batch]
    squares = (own / np.maximum(count, 1e-300)) @ stats.squares[cells] + own @ X**2
    unit = np.sqrt(squares / total)
    unit = np.where(unit > 1e-12 * np.abs(mean), unit, 0.0)
    flat = (unit == 0).any(axis=0)
    X /= ones_for_zeros(unit)[batch]
    inside = stats.squares[cells] / ones_for_zeros(unit)[batch] ** 2
    U = np.column_stack([np.ones(len(cells)), level[:, None] == np.arange(1, L)]).astype(float)
    D = np.column_stack([U, layout.dummies(batch)])
    noise = NoiseModel(level, L, L > 1, np.zeros((len(cells), 0)), np.zeros(0))
    parts: dict[int, list[tuple[Array, Solution]]] = {}
    for start in range(
        0, domains.n_features, step := max(1, _MOST_VALUES // (len(cells) + layout.K**2))
    ):
        few = np.arange(start, min(start + step, domains.n_features))
        where = np.zeros(D.shape[1]), batch, layout.K, layout.reference, count, noise
        stacked = Stacked(X[:, few], D, *where, inside=inside[:, few])
        fixed = flat[few] | (not has_scale)
        for place, one in solutions(stacked, fit_joint(stacked, fixed)).items():
            raw = _in_units(one, mean[:, few], unit[:, few], place, layout.reference, fixed)
            parts.setdefault(batches[place], []).append((few, raw))
    plain = {b: joined(found) for b, found in parts.items()}
    return JointFit(
        plain, {b: settled(one) for b, one in plain.items()}, flat, {"variance": ["levels"]}
    )


def _in_units(
    solution: Solution, mean: Array, unit: Array, b: int, reference: int, fixed: Array
) -> Solution:
    """Return a map in the users' units; `fixed` features are only shifted."""
    ratio = ones_for_zeros(unit[reference]) / ones_for_zeros(unit[b])
    known, to = solution.evidence, ones_for_zeros(unit[reference])
    scale = np.where(fixed, 1.0, solution.scale * ratio)
    centre = mean[b] + ones_for_zeros(unit[b]) * solution.centre
    image = mean[reference] + to * solution.image
    assert known is not None
    profile = known.profile / np.stack([np.ones_like(ratio), ratio, ratio**2])
    evidence = replace(known, residual_sd=known.residual_sd * to, profile=profile)
    return replace(
        solution,
        scale=scale,
        centre=centre,
        image=image,
        se_log_scale=np.where(fixed, 0.0, np.asarray(solution.se_log_scale)),
        se_image=np.asarray(solution.se_image) * to,
        evidence=evidence,
    )


def settled(plain: Solution) -> Solution:
    r"""Pull features of a batch towards what they have in common, then towards no change.

    Shifts at the centre in residual standard deviations, and log-scales, have means over features
    weighted by :math:`1 / (\tau^2 + se^2)`, :math:`\tau^2` their variance beyond their errors; the
    part of a mean's square that its own variance does not explain is taken off before the priors
    of `posterior` apply, and put back after.
    """
    known = plain.evidence
    assert known is not None
    sd, se_log = known.residual_sd, np.asarray(plain.se_log_scale)
    shift = (plain.image - plain.centre) / sd
    shift = _common(shift, np.asarray(plain.se_image) / sd, known.n_effective) * sd
    log_scale = _common(np.log(plain.scale), se_log, known.n_effective) * (se_log > 0)
    factor = np.exp(log_scale)
    profile = known.profile * np.stack([np.ones_like(factor), factor, factor**2])
    rest = replace(
        plain,
        scale=plain.scale / factor,
        image=plain.image - shift,
        evidence=replace(known, profile=profile),
    )
    pulled, _ = posterior(rest, sd)
    return replace(pulled, scale=pulled.scale * factor, image=pulled.image + shift)


def _common(estimate: Array, error: Array, n_effective: float) -> float:
    """Return the mean that features have in common, as far as it is more than chance."""
    good = error > 0
    if good.sum() < 3:
        return 0.0
    estimate, error = estimate[good], error[good]
    tau2 = max(float(np.var(estimate) - np.mean(error**2)), 0.0)
    weight = 1 / (tau2 + error**2)
    mean = float(weight @ estimate / weight.sum())
    variance = len(estimate) / max(n_effective, 1.0) / float(weight.sum())
    return mean * max(1 - variance / max(mean**2, 1e-300), 0.0)
