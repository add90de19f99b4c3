"""Rows measured in both domains: a fitted map refined by regression on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from condokit.checks import Array, listing, warn
from condokit.data.arrays import ones_for_zeros
from condokit.data.study import Study
from condokit.data.tables import Table
from condokit.fit.record import Fit
from condokit.maps.affine import AffineMap
from condokit.maps.families import LocationScale, MapFamily
from condokit.maps.matrices import DiagonalPlusLowRank, Matrix, average
from condokit.maps.standard_errors import DiagonalErrors, StandardErrors
from condokit.solvers.standards import Base, Correction, Mix, Standards, mixes

_FIRST = 0.8  # prior probability that a rotation learned from many rows needs no change by pairs
_FEW = 0.2  # share of rows that may be both in pairs and in the first map
_FOREIGN = 1.5  # ratio of standard deviations of two domains from which units may differ
_OTHER = 0.2  # prior probability of other units, if the ratio may have come about by chance
_ALIKE = 30.0  # largest ratio of standard deviations of features that share a unit
_DEVICES = (1.0, 0.1)  # standard errors of shift and scale before any data, in standard units
_LEAST = 0.05  # smallest scale, in ratios of standard deviations
_TRUST = (np.inf, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.0)  # lambda of `_rotated`
_FOLDS = 5
_ENOUGH = 3  # subjects from which held-out pairs can judge a map
_USELESS = 0.95  # held-out error over that of a constant, from which pairs carry no information
_EXACT = 1e-12  # held-out squared error, in variances, that counts as zero
_MANY = 8  # rows per feature from which no single row matters much to the first map

Known = tuple[AffineMap, StandardErrors | None]  # a map and its standard errors


def row_numbers(pairs: Any, tables: Sequence[tuple[str, int]]) -> tuple[Array, Array]:
    """Return `pairs` as two arrays of row numbers of equal length, or raise an error.

    `tables` are the names and numbers of rows of the two tables that the numbers refer to.
    """
    try:
        query, reference = (np.asarray(side) for side in pairs)
    except (TypeError, ValueError):
        raise ValueError(
            "'pairs' must be two lists of row numbers, (rows_query, rows_reference), of equal "
            "length."
        ) from None
    for (name, size), side in zip(tables, (query, reference)):
        if side.ndim != 1 or len(side) == 0 or side.dtype.kind not in "iu":
            raise ValueError(f"'pairs' must list row numbers of {name}. Got {side!r:.80}.")
        if side.min() < 0 or side.max() >= size:
            raise ValueError(
                f"'pairs' names row {side.max() if side.max() >= size else side.min()} of {name}, "
                f"which has {size} rows, counted from 0."
            )
    if len(query) != len(reference):
        raise ValueError(
            f"'pairs' lists {len(query)} query rows but {len(reference)} reference rows; the first "
            "of one belongs to the first of the other, and so on."
        )
    return query, reference


def check_pairs(pairs: Any, domains: Study) -> tuple[Array, Array]:
    """Return the positions of paired rows in the query's and the reference's table."""
    tables = [(table.name, table.n_rows) for table in domains.tables]
    query, reference = row_numbers(pairs, tables)
    if domains.weights is not None:
        both = np.concatenate([query, tables[0][1] + reference])
        if (domains.weights[both] == 0).any():
            raise ValueError("'pairs' names rows whose sample_weight is 0. Leave them out.")
    listed, count = np.unique(np.column_stack([query, reference]), axis=0, return_counts=True)
    if (count > 1).any():
        raise ValueError(
            "'pairs' lists the same rows (query, reference) more than once: "
            f"{listing([tuple(pair) for pair in listed[count > 1].tolist()])}. List them once."
        )
    return query, reference


@dataclass(frozen=True)
class Paired:
    """Pairs of rows whose values are all known, and the complete rows of both domains."""

    X: Array  # (n_pairs, n_features of the query)
    Y: Array  # (n_pairs, n_features of the reference)
    everyone: Array  # all complete rows of the query, paired or not
    reference: Array  # the same of the reference
    fold: Array  # (n_pairs,); pairs of one subject are in one fold
    subject: Array  # (n_pairs,)

    @classmethod
    def read(cls, domains: Study, pairs: tuple[Array, Array]) -> tuple["Paired", Array]:
        """Return the pairs without missing values, and a mask of all rows of their subjects."""
        n_query = domains.tables[0].n_rows
        everyone = domains.side(True, np.arange(n_query))
        reference = domains.side(False, np.arange(n_query, len(domains.is_query)))
        X, Y = everyone[pairs[0]], reference[pairs[1]]
        known = ~np.isnan(np.hstack([X, Y])).any(axis=1)
        if not known.any():
            raise ValueError(
                f"All {len(X)} 'pairs' lack the value of a feature. Leave features out, or `pairs`."
            )
        X, Y = X[known], Y[known]
        everyone, reference = (rows[~np.isnan(rows).any(axis=1)] for rows in (everyone, reference))
        owner = np.arange(len(domains.is_query)) if domains.groups is None else domains.groups
        ends = owner[pairs[0][known]], owner[n_query + pairs[1][known]]
        fold, subject = _folds(*ends, np.hstack([X, Y]))
        return cls(X, Y, everyone, reference, fold, subject), np.isin(owner, np.concatenate(ends))

    @property
    def n_subjects(self) -> int:
        """Number of subjects."""
        return int(self.subject.max()) + 1

    @cached_property
    def middle(self) -> Array:
        """Means of the reference."""
        return np.asarray(self.reference.mean(axis=0))

    @cached_property
    def unit(self) -> Array:
        """Standard deviations of the reference."""
        return ones_for_zeros(self.reference.std(axis=0))

    def error_of_constant(self) -> float:
        """Return the root mean squared error of predicting a pair by the mean of other subjects."""
        own = np.zeros((self.n_subjects, self.Y.shape[1]))
        np.add.at(own, self.subject, self.Y)
        left = len(self.Y) - np.bincount(self.subject)[self.subject, None]
        gap = self.Y - (self.Y.sum(axis=0) - own[self.subject]) / np.maximum(left, 1)
        return float(np.sqrt(((gap / self.unit) ** 2).mean()))

    def loss(self, affine: AffineMap, asked: Any = slice(None)) -> float:
        """Return the mean squared error of a map on some pairs, in variances of the reference."""
        return float(
            (((affine.without_links(self.X[asked]) - self.Y[asked]) / self.unit) ** 2).mean()
        )


def refine(
    fitted: Known,
    family: MapFamily,
    domains: Study,
    pairs: tuple[Array, Array],
    refit: Callable[[Array], Known],
) -> tuple[AffineMap, StandardErrors | None, dict[str, Any]]:
    r"""Correct a map by regression on pairs of rows, and return it with its errors and facts.

    Several base maps are corrected: the map learned without pairs, its shift without its scales,
    the identity, and a constant for features in other units. The result averages over the base
    maps and over many priors (of the sizes of shifts and scales, and in families of matrices of the
    influence of other features), weighted by evidence; see `condokit.solvers.standards`. If more
    than a fifth of the rows are in pairs, `refit` learns the first map from the other rows, so that
    no row counts twice. For rotations, held-out pairs choose how far the first map is trusted. A
    map that was learned from many rows is not changed if a constant predicts pairs as well as it.
    """
    paired, is_paired = Paired.read(domains, pairs)
    used = domains.kept() & ~is_paired
    rows = min(int((used & (domains.is_query == side)).sum()) for side in (True, False))
    many = rows >= _MANY * (1 if family.form == "diagonal" else paired.X.shape[1])
    few = domains.is_rectangular and paired.n_subjects < _ENOUGH  # too few for any other map
    first: Known | None = fitted if few or rows >= _ENOUGH else None
    if rows >= _ENOUGH and used.sum() < (1 - _FEW) * domains.kept().sum():
        first = refit(used)
    if family.is_rigid:
        refined, errors, facts = _rotated(paired, family, (first or fitted)[0], many)
    else:
        averages = _Averages(paired, family, fitted[0], first)
        refined, errors, facts = averages.learn(np.ones(len(paired.X), bool))
        facts["held_out_error"] = averages.held_out_error()
    facts |= {
        "n_pairs": len(paired.X),
        "n_subjects": paired.n_subjects,
        "held_out_error_without": float(np.sqrt(paired.loss(fitted[0]))),
    }
    error = min(facts["held_out_error"], facts["held_out_error_without"])
    if paired.n_subjects >= _ENOUGH and error > _USELESS * paired.error_of_constant():
        warn(
            "pairs-unrelated",
            "The {n_pairs} pairs are predicted no better than by a constant (held-out error "
            "{error:.2f} standard deviations){unused}: check that their rows belong together.",
            n_pairs=len(paired.X),
            error=error,
            unused=" and are not used" if many else "",
        )
        if many:
            return *fitted, facts
    return refined, errors, facts


class _Averages:
    """Averages of corrected maps, learned from some of the pairs."""

    def __init__(
        self, paired: Paired, family: MapFamily, like: AffineMap, first: Known | None
    ) -> None:
        self.paired, self.like = paired, like
        d, square = paired.X.shape[1], paired.X.shape[1] == paired.Y.shape[1]
        square = square and not like.has_own_outputs
        self.centre, self.sd = paired.everyone.mean(axis=0), ones_for_zeros(paired.everyone.std(0))
        self.has_scale = square and family.has_scale
        alike = self.sd.max() <= _ALIKE * self.sd.min()
        self.sizes = self.sd / np.sqrt((self.sd**2).mean()) if alike else 1.0
        # name of a base map -> the map, its prior probability, and a mask of constant outputs
        self.bases: dict[str, tuple[AffineMap, float, Array]] = {}
        self.errors, left, n_outputs = None, 1.0, paired.Y.shape[1]
        likely = surely = np.full(n_outputs, not square)
        if self.has_scale:  # `likely`, and beyond chance `surely`, in other units
            sides = paired.everyone, paired.reference
            ratio = np.abs(np.log(paired.unit / self.sd)) * np.all([x.std(0) > 0 for x in sides], 0)
            chance = 1.5 * np.sqrt(sum(0.5 / max(len(rows) - 1, 1) for rows in sides))
            likely, surely = ratio > np.log(_FOREIGN), ratio > np.log(_FOREIGN) + chance
            likely = likely if paired.n_subjects >= _ENOUGH else surely
        if first is not None:
            self.bases["unpaired map"], left = (first[0], 0.5, np.zeros(n_outputs, bool)), 0.5
            diagonal = first[0].kind == "diagonal"
            self.errors = first[1] if diagonal else None
            if diagonal and self.has_scale and not likely.any():  # its scales may be wrong
                moved = first[0].without_links(self.centre[None])[0] - self.centre
                self.bases["unpaired map"] = first[0], 0.25, surely
                self.bases["unpaired shift"] = AffineMap(np.ones(d), moved), 0.25, surely
        if not surely.any():
            same = AffineMap(np.ones(n_outputs), np.zeros(n_outputs))
            share = 1 - _OTHER if likely.any() else 1.0
            self.bases["identity"] = same, left * share, surely
            left *= 1 - share
        if likely.any() and (square or paired.n_subjects >= _ENOUGH):
            A = np.where(likely, 0.0, 1.0) if square else np.zeros((n_outputs, d))
            flat = AffineMap(A, np.where(likely, paired.middle, 0.0))
            self.bases["other units"] = flat, left, likely
        self.mixes = [Mix()]
        if family.form == "matrix" and d > 1 and paired.n_subjects >= _ENOUGH:
            self.mixes = mixes(bool(likely.any()))

    def learn(self, known: Array) -> tuple[AffineMap, StandardErrors | None, dict[str, Any]]:
        """Return the average map learned from the pairs in `known`, its errors, and facts."""
        paired, unit, sd = self.paired, self.paired.unit, self.sd
        X, Y = paired.X[known], (paired.Y[known] - paired.middle) / unit
        U, subject = (X - self.centre) / sd, paired.subject[known]
        standards = Standards(U, Y, subject, self.has_scale, self.sizes)
        bases = [self._in_units(name, X) for name in self.bases]
        found = standards.correct(bases, self.mixes, bool(known.all()))
        weights = found.weights.sum(axis=1)
        if known.all():  # priors without weight are not tried again in cross-validation
            used = found.weights.sum(axis=0) > 0
            self.mixes = [mix for mix, some in zip(self.mixes, used) if some or not mix.kappa]
        facts = {
            "weights": dict(zip(self.bases, weights.tolist())),
            "weight_of_matrices": float(found.weights[:, 1:].sum()),
        }
        refined = self._assembled(found, weights)
        lost = "unpaired map" in self.bases and self.errors is None
        if refined.kind != "diagonal" or lost or found.variances is None:
            return refined, None, facts
        image, slope, both = found.variances
        errors = DiagonalErrors(
            np.sqrt(slope) * unit / sd, np.sqrt(image) * unit, self.centre, both * unit**2 / sd
        )
        return refined, errors, facts

    def _in_units(self, name: str, X: Array) -> Base:
        """Return a base map in standard units: its images, slopes, prior and standard errors."""
        (affine, prior, is_constant), paired = self.bases[name], self.paired
        images, centre = (
            (affine.without_links(rows) - paired.middle) / paired.unit
            for rows in (X, self.centre[None])
        )
        slope = np.zeros(len(paired.unit))
        if self.has_scale:
            slope = affine.matrix.diagonal() * self.sd / paired.unit
        se = np.stack([np.full(len(slope), _DEVICES[0]), _DEVICES[1] * slope])
        if name.startswith("unpaired") and self.errors is not None:
            se[0] = self.errors.std(self.centre[None])[0] / paired.unit
            if name == "unpaired map":
                se[1] = self.errors.scale * self.sd / paired.unit
        return Base(images, centre[0], slope, prior, se, is_constant)

    def _assembled(self, found: Correction, weights: Array) -> AffineMap:
        """Return the average of the base maps plus the average correction, as one map."""
        maps, unit, like = [one[0] for one in self.bases.values()], self.paired.unit, self.like
        slope = found.slope * unit / self.sd if self.has_scale else None
        matrix = average([affine.matrix for affine in maps], weights)
        offset = weights @ [affine.offset for affine in maps] + unit * found.shift
        if slope is not None:
            matrix = average([matrix, DiagonalPlusLowRank(slope)], np.ones(2))
            offset -= slope * self.centre
        if found.weights[:, 1:].any():
            left, right = unit[:, None] * found.matrix.T, found.axes / self.sd[:, None]
            offset -= left @ (right.T @ self.centre)
            matrix = matrix.plus(left, right)
            if matrix.kind == "low-rank" and 2 * left.shape[1] >= len(offset):
                matrix = Matrix(matrix.array())
        elif matrix.kind == "diagonal":  # uninformative pairs would leave a map nearly constant
            scale = np.maximum(matrix.scale, _LEAST * unit / self.sd)
            offset += (matrix.scale - scale) * self.centre
            matrix = DiagonalPlusLowRank(scale)
        return AffineMap(offset=offset, **matrix.arrays(), **_named_like(like))

    def held_out_error(self) -> float:
        """Return the root mean squared error of pairs whose subjects were left out."""
        paired = self.paired
        if paired.n_subjects < 2:
            return np.nan
        loss = 0.0
        for f in range(paired.fold.max() + 1):
            asked = paired.fold == f
            loss += paired.loss(self.learn(~asked)[0], asked) * asked.mean()
        return float(np.sqrt(loss))


def _rotated(
    paired: Paired, family: MapFamily, first: AffineMap, many: bool
) -> tuple[AffineMap, StandardErrors | None, dict[str, Any]]:
    r"""Choose by held-out pairs how far a rotation learned from pairs is pulled to the first map.

    For every :math:`\lambda` in `_TRUST` the rotation A and offset b minimise
    :math:`\sum_i |A x_i + b - y_i|^2 + \lambda n\, \overline{|A x + b - f_0(x)|^2}` over the n
    pairs, where :math:`f_0` is the first map and the mean is over all query rows. The weight of
    :math:`\lambda` is :math:`p\, L^{-m/2}`, with p its prior, m the number of subjects and L the
    mean squared error on held-out pairs: the likelihood with the error's variance profiled out.
    """
    n, everyone = paired.n_subjects, np.ones(len(paired.X), bool)
    loss = np.full(len(_TRUST), np.nan if n < _ENOUGH else 0.0)
    for f in range(paired.fold.max() + 1) if n >= _ENOUGH else ():
        asked = paired.fold == f
        maps = [_rotation(paired, family, first, ~asked, trust) for trust in _TRUST]
        loss += [paired.loss(one, asked) * asked.mean() for one in maps]
    best, weights = 0, np.eye(len(_TRUST))[0]
    if n < _ENOUGH:
        warn(
            "few-pairs",
            "The {n_pairs} pairs are too few to be judged and are not used: give those of "
            "{enough} subjects or more.",
            n_pairs=len(paired.X),
            enough=_ENOUGH,
        )
    else:
        share = _FIRST if many else 1 / len(loss)
        prior = np.where(weights, share, (1 - share) / (len(loss) - 1))
        weights = prior * np.maximum(loss / max(loss.min(), _EXACT), 1.0) ** (-n / 2)
        best = int(np.argmax(weights))
    facts = {
        "weights": {"unpaired map": float(weights[0] / weights.sum())},
        "held_out_error": float(np.sqrt(loss[best])),
    }
    return _rotation(paired, family, first, everyone, _TRUST[best]), None, facts


def _rotation(
    paired: Paired, family: MapFamily, first: AffineMap, known: Array, trust: float
) -> AffineMap:
    """Return the best rotation for one `trust` (lambda of `_rotated`): a Procrustes problem.

    The penalty is the same as adding pseudo-pairs (x, f(x)), which have the moments of all query
    rows.
    """
    if np.isinf(trust):
        return first
    X, Y, A = paired.X[known], paired.Y[known], first.A
    middle, cov = paired.everyone.mean(axis=0), np.cov(paired.everyone.T, bias=True)
    lift, image = trust * len(X), first.without_links(middle[None])[0]
    total = len(X) + lift
    middle_x = (X.sum(axis=0) + lift * middle) / total
    middle_y = (Y.sum(axis=0) + lift * image) / total
    left, right, far = X - middle_x, Y - middle_y, middle - middle_x
    cross = right.T @ left + lift * (A @ cov + np.outer(image - middle_y, far))
    turn, size, back = np.linalg.svd(cross)
    B = turn @ back
    if family.has_scale:
        B *= size.sum() / ((left**2).sum() + lift * (np.trace(cov) + far @ far))
    return AffineMap(B, middle_y - B @ middle_x, **_named_like(first))


def _named_like(map: AffineMap) -> dict[str, Any]:
    """Return the names and links of a map as arguments for another."""
    return {name: getattr(map, name) for name in ("feature_names", "output_names", "links")}


def _folds(query: Array, reference: Array, values: Array) -> tuple[Array, Array]:
    """Return a fold and a subject for each pair; all pairs of a subject are in one fold.

    A subject is a connected component of rows (or groups of rows) that pairs link. Subjects are
    dealt to folds in the order of their values, so that the order of rows and pairs in the tables
    does not matter.
    """
    size = int(max(query.max(), reference.max())) + 1
    graph = sparse.coo_array((np.ones(len(query)), (query, reference)), shape=(size, size))
    label = sparse.csgraph.connected_components(graph, directed=False)[1][query]
    order = np.lexsort(values.T[::-1])
    _, first, subject = np.unique(label[order], return_index=True, return_inverse=True)
    place = np.empty(len(order), dtype=np.intp)
    place[order] = np.argsort(np.argsort(first))[subject]
    return place % _FOLDS, place


def line_after_curves(fit: Fit, domains: Study, pairs: tuple[Array, Array]) -> Fit:
    """Correct fitted curves by a line learned from pairs; standard errors are then unknown."""
    curves, table = fit.map, domains.tables[0]
    if curves.links is not None:
        raise ValueError("'pairs' do not work with curves on the scale of links.")
    mapped = curves.without_links(domains.side(True, np.arange(table.n_rows)))
    same = AffineMap(np.ones(mapped.shape[1]), np.zeros(mapped.shape[1]), curves.feature_names)
    bent = replace(domains, tables=(Table(mapped), domains.tables[1]))
    first = same, None
    line, _, facts = refine(first, LocationScale(), bent, pairs, lambda keep: first)
    report = replace(fit.report, pairs=facts)
    return replace(fit, map=line.compose(curves), errors=None, report=report)
