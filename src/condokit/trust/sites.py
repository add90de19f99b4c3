"""Many sites judged like two domains: one site as recorded, and all others after their maps."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit.batches.adapter import BatchAdapter
from condokit.batches.addition import against_others
from condokit.batches.estimate import mean_square, some_rows, unit_of
from condokit.batches.record import BatchFacts
from condokit.checks import Array, quietly
from condokit.compare.weak_points import FEW_SUBJECTS
from condokit.data.disclosure import size_of
from condokit.data.study import Study
from condokit.fit.pairs import row_numbers
from condokit.law.design import Together
from condokit.maps.base import Map
from condokit.maps.profile import profile
from condokit.maps.standard_errors import StandardErrors
from condokit.trust.agreement import Agreement, agreement_of
from condokit.trust.blocks import ComparableRows
from condokit.trust.systematic import SystematicError, systematic_error

_FOLDS = 5  # of bridges that are held out
_MOST_VALUES = 5_000_000  # rows times features; larger studies are not fitted again for that


@dataclass(frozen=True)
class Site:
    """A site with its map, to be compared with all others."""

    label: Any
    domains: Study  # the site as the query, all others as the reference
    map: Map
    errors: StandardErrors | None
    known_from: str  # where the map was learned: "these rows" or "other rows"
    facts: BatchFacts
    rows: Array  # (n_rows, n_features) of the site, after the links of its map, such as logarithms
    unit: Array  # (n_features,) standard deviations of the reference, after the same links
    agreement: Agreement | None = None

    def doubts(self) -> Iterator[str]:
        """Yield reasons not to trust the errors that two domains cannot show."""
        n_bridges, hidden = size_of(self.facts.bridges)
        if not self.domains.confounders and (hidden or 0 < n_bridges < FEW_SUBJECTS):
            yield f"fewer than {FEW_SUBJECTS} bridges connect it, and no confounders do"

    def error(self, rows: ComparableRows) -> SystematicError | None:
        """Return the systematic error of values of this site; None if it is unknown.

        If the maps were learned from these rows, their own standard errors are used: they hold for
        the whole path to the reference and count bridge samples. Otherwise, and for matrices, the
        site is judged against all others.
        """
        errors = self.errors
        if errors is None or self.map.kind != "diagonal" or self.known_from != "these rows":
            return systematic_error(self.map, self.domains, rows)
        R = rows.residuals(rows.after).copy()  # a copy, as residuals may be the rows themselves
        for block in np.unique(rows.block):
            here = rows.block == block
            R[here] = R[here] - R[here].mean(axis=0)
        x, unit = self.rows, self.unit
        h, noise = self.map.without_links(x), mean_square(errors.std(x) / unit)
        square = mean_square((h - x) / unit)
        known = ~np.isnan(x)
        n = np.maximum(known.sum(axis=0), 1)
        centre = np.where(known, x, 0.0).sum(axis=0) / n
        moved, away = (np.where(known, h - x, 0.0), np.where(known, x - centre, 0.0))
        shift = 2 * moved.sum(axis=0) / n * errors.std(centre[None])[0]
        stretch = 2 * (moved * away).sum(axis=0) / n * errors.scale
        of_after = 2 * noise**2
        variances = 4 * square * noise + of_after, of_after, (shift**2 + stretch**2) / unit**4
        number = Together.of_residuals(R, len(R)).number
        return SystematicError(unit, square + noise, noise, np.array(variances), number)


def sites_of(adapter: BatchAdapter, study: Study, pairs: Any, min_cell: int) -> Iterator[Site]:
    """Yield every site that has a path to the reference, except the reference itself."""
    known, labels = adapter.report_.batches, study.labels
    here = [label for label in known if label in labels]
    base = next((label for label in here if len(known[label].path) == 1), None)
    linked = replace(study, links=adapter.maps_[here[0]].links)
    rows = some_rows(linked, [labels.index(label) for label in here])
    if base is not None:
        unit = unit_of(rows[labels.index(base)])
    else:
        moved = [adapter.maps_[k].without_links(rows[labels.index(k)]) for k in here]
        unit = unit_of(np.concatenate(moved))
    # maps of large studies have no profile; if only some maps lack it, they are of another fit
    is_large = all(one.fitted_on is None for one in adapter.maps_.values())
    left_out = None if pairs is not None else _left_out(adapter, study)
    for label in here:
        if label == base and label == adapter.reference_:
            continue
        own, affine, errors = labels.index(label), adapter.maps_[label], adapter.errors_[label]
        now = profile(study.divided(study.code == own))
        same = is_large if affine.fitted_on is None else affine.fitted_on.matches(now)
        origin = "these rows" if same else "other rows"
        domains = against_others(adapter, study, own)
        of_pairs = _agreement(adapter, study, own, pairs, left_out, min_cell)
        yield Site(label, domains, affine, errors, origin, known[label], rows[own], unit, of_pairs)


def mapped(adapter: BatchAdapter, study: Study, rows: Array) -> Array:
    """Return the rows with these numbers, each mapped by the map of its site."""
    X = study.rows(rows)
    for b, label in enumerate(study.labels):
        here = study.code[rows] == b
        if label in adapter.maps_ and here.any():
            X[here] = adapter.maps_[label](X[here])
    return X


def _left_out(adapter: BatchAdapter, study: Study) -> tuple[Array, Array, str] | None:
    """Return numbers of the rows of bridge samples, and their values mapped by fits without them.

    The third result says how they were mapped. If the other rows are too few for a fit, or the
    study is large, the maps of all rows are used instead. None if there are no bridges.
    """
    numbers = np.flatnonzero((study.bridge >= 0) & study.kept())
    if not len(numbers) or not study.is_whole:
        return None
    values, bridge = mapped(adapter, study, numbers), study.bridge[numbers]
    if len(study.code) * study.n_features > _MOST_VALUES:
        return numbers, values, "this map"
    how: dict[str, Any] = {"joint": adapter.joint, "unreachable": "raise"}
    n_folds = min(_FOLDS, study.n_bridges)
    try:
        for fold in range(n_folds):
            out = study.bridge % n_folds == fold
            out &= study.bridge >= 0
            some = replace(study, keep=study.kept() & ~out)
            with quietly():
                again = BatchAdapter(adapter.adapter, reference=adapter.reference_, **how)
                again.fit_study(some.with_bridges(np.where(out, -1, study.bridge)))
            mine = bridge % n_folds == fold
            values[mine] = mapped(again, study, numbers[mine])
    except (ValueError, ArithmeticError, KeyError):  # too few rows are left for a fit
        return numbers, mapped(adapter, study, numbers), "this map"
    return numbers, values, "left out"


def _agreement(
    adapter: BatchAdapter, study: Study, own: int, pairs: Any, left_out: Any, min_cell: int
) -> Agreement | None:
    """Compare rows of a site with rows of the same samples at other sites, all mapped.

    The samples are those of `pairs` or, if there are none, of bridges (`left_out`).
    """
    if pairs is not None:
        first, second = row_numbers(pairs, [("X", len(study.code))] * 2)
        one, two = study.code[first] == own, study.code[second] == own
        query = np.concatenate([first[one & ~two], second[two & ~one]])
        other = np.concatenate([second[one & ~two], first[two & ~one]])
        parts, how = [mapped(adapter, study, rows) for rows in (query, other)], "this map"
        subject = query if study.groups is None else study.groups[query]
    elif left_out is not None:
        numbers, values, how = left_out
        mine = np.flatnonzero(study.code[numbers] == own)
        other = np.array(
            [_elsewhere(adapter, study, numbers, i, own) for i in mine.tolist()], dtype=np.intp
        )
        query, parts = numbers[mine], [values[mine], values[other]]
        subject = study.bridge[query]
    else:
        return None
    if len(query) < max(min_cell, 2):
        return None
    names, fewest = study.tables[0].labels, max(min_cell, 2)
    found = agreement_of(study.rows(query), parts[0], parts[1], subject, names, fewest)
    gain = found.gain if pairs is not None or how == "left out" else (-np.inf, np.inf)
    return replace(found, mapped_by=how, gain=gain)


def _elsewhere(adapter: BatchAdapter, study: Study, numbers: Array, i: int, own: int) -> int:
    """Return the position of a row of the same sample at another site, best the reference."""
    same = np.flatnonzero(
        (study.bridge[numbers] == study.bridge[numbers[i]]) & (study.code[numbers] != own)
    )
    at = [study.labels[k] == adapter.reference_ for k in study.code[numbers[same]]]
    return int(same[int(np.argmax(at))])
