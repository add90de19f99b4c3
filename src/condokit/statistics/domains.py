"""Statistics as a `Study`: each cell becomes one row, and the sums are those of all rows.

So a fit from statistics goes the same way as a fit from rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from condokit.checks import Array, NoOverlapError, listing, refusal, said, warn
from condokit.data.arrays import ones_for_zeros, sides
from condokit.data.columns import in_order
from condokit.data.missing import refuse_valueless
from condokit.data.roles import name_domains
from condokit.data.study import Confounder, Study
from condokit.data.sums import Sums
from condokit.data.tables import Table
from condokit.io.formats import arrow
from condokit.statistics.gather import Statistics

OTHER_UNITS = 1000.0  # ratio of spreads beyond which units probably differ


def merge_parts(parts: Any) -> Statistics:
    """Merge one `Statistics` or a list of them into one."""
    parts = [parts] if type(parts) is Statistics else list(parts)
    if not parts or {type(part) for part in parts} != {Statistics}:
        raise refusal(
            "fit_statistics takes Statistics, or a list of them. Got {got}.",
            got=listing([type(part).__name__ for part in parts]) or "nothing",
        )
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    if not merged.cells:
        raise ValueError("The statistics contain no rows.")
    return merged


def as_domains(stats: Statistics, reference: Any) -> Study:
    """Return statistics of two domains as a study of query and reference."""
    reference = stats.reference if reference is None else reference
    n_rows = int(sum(stats.n_rows.values()))
    query_label, reference_label = name_domains(stats.labels, n_rows, reference)
    study = cells_of(stats)
    is_query = study.code != stats.labels.index(reference_label)
    for name, side in sides(is_query):
        _refuse_unknown(stats, side, name)
    return study.divided(is_query, (query_label, reference_label))


def cells_of(stats: Statistics) -> Study:
    """Return a study with one row for each cell; the domain with most rows is the reference."""
    _warn_of_units(stats)
    _warn_of_spellings(stats)
    cells, moments = list(stats.cells), stats.sums.moments
    confounders = []
    for j, name in enumerate(stats.categories, 1):
        levels = in_order({cell[j] for cell in cells})
        number = {level: k for k, level in enumerate(levels)}
        codes = np.array([number[cell[j]] for cell in cells], dtype=np.int32)
        confounders.append(Confounder(name, False, levels, codes))
    ranges = stats.ranges
    confounders += [Confounder(n, True, range=ranges[n]) for n in stats.confounders if n in ranges]
    label, cell_sums = stats.label_of_cell, stats.sums
    known = cell_sums.continuous
    if known is not None and len(np.unique(known.level)) > 1:  # of early files of schema 2
        known = deepcopy(known)
        known.restrict(known.level.min())
        cell_sums = replace(cell_sums, continuous=known)
    sums = Sums(cell_sums, label, np.arange(len(cells)), by_cell=stats.by_cell)
    table: Any = moments.mean
    if stats.feature_names is not None:
        columns = dict(zip(stats.feature_names, np.ascontiguousarray(moments.mean.T)))
        table = arrow().table(columns)
    return Study(
        (Table(table),),
        label,
        confounders,
        labels=tuple(stats.labels),
        reference=int(np.argmax([*stats.n_rows.values()])),
        weights=moments.count.copy(),
        gaps=_gaps(stats, label),
        sums=sums,
        wanted=stats.reference,
    )


def as_study(stats: Statistics) -> Study:
    """Return statistics of any number of domains as a study, with labels in sorted order."""
    for k, name in enumerate(stats.labels):
        _refuse_unknown(stats, stats.label_of_cell == k, str(name))
    study, order = cells_of(stats), in_order(stats.labels)
    number = np.array([order.index(name) for name in stats.labels])
    reference, gaps = int(number[study.reference]), study.gaps
    if gaps is not None:
        gaps = tuple(gaps[stats.labels.index(name)] for name in order)
    code, labels = number[study.code], tuple(order)
    return replace(study, code=code, labels=labels, reference=reference, gaps=gaps)


def _gaps(stats: Statistics, label: Array) -> tuple[Array, ...] | None:
    """Return numbers of missing values by domain, each (n_features,); None if there are none."""
    moments = stats.sums.moments
    if moments.known is None or (moments.known == moments.count[:, None]).all():
        return None
    lacking = moments.count[:, None] - moments.known
    return tuple(lacking[label == k].sum(axis=0) for k in range(len(stats.labels)))


def _refuse_unknown(stats: Statistics, cells: Array, name: str) -> None:
    """Raise an error if a feature has no value in the cells of a domain."""
    has_no_value = stats.sums.moments.n_values[cells].sum(axis=0) == 0
    refuse_valueless(stats.names[has_no_value].tolist(), name)


def _warn_of_units(stats: Statistics) -> None:
    """Warn of features whose root mean squares differ by a factor of 1000 between domains."""
    moments, label = stats.sums.moments, stats.label_of_cell
    n = moments.n_values
    squares = moments.squares + n * moments.mean**2
    members = label == np.arange(len(stats.labels))[:, None]  # (n_labels, n_cells)
    rms = np.sqrt(members @ squares / np.maximum(members @ n, 1))  # (n_labels, n_features)
    ratio = rms.max(axis=0) / ones_for_zeros(rms.min(axis=0))
    far = (ratio > OTHER_UNITS) & (rms.min(axis=0) > 0)
    if far.any():
        text = "Values of {names} are more than {ratio:g} times larger in one domain than in "
        text += "another. Check that all domains use the same units."
        warn("units", text, UserWarning, names=listing(stats.names[far]), ratio=OTHER_UNITS)


def _warn_of_spellings(stats: Statistics) -> None:
    """Warn of levels that are probably two spellings of one level."""
    for name, pairs in _spellings(stats):
        text = "Some levels of confounder {name!r} look like one level in two spellings: {pairs}. "
        text += "They are treated as different levels; use the same spelling everywhere."
        warn("spellings", text, UserWarning, name=name, pairs=pairs)


@contextmanager
def hinted(stats: Statistics) -> Iterator[None]:
    """Add to a `NoOverlapError` which levels are probably two spellings of one level."""
    try:
        yield
    except NoOverlapError as error:
        pairs = [f"{name!r}: {pairs}" for name, pairs in _spellings(stats)]
        if not pairs:
            raise
        text = "{error} Some levels may be one level in two spellings: {pairs}."
        raise NoOverlapError(said(text, error=error.args[0], pairs="; ".join(pairs))) from None


def _spellings(stats: Statistics) -> Iterator[tuple[str, str]]:
    """Yield confounders with levels that are probably two spellings of one, and these levels."""
    for j, name in enumerate(stats.categories, 1):
        by_label = {
            label: {cell[j] for cell in stats.cells if cell[0] == label} for label in stats.labels
        }
        common = set.intersection(*by_label.values())
        others = [(label, level) for label, levels in by_label.items() for level in levels - common]
        pairs = {
            " and ".join(sorted(map(repr, (a, b))))
            for (one, a), (other, b) in combinations(others, 2)
            if one != other and a != b and _are_alike(str(a), str(b))
        }
        if pairs:
            yield name, ", ".join(sorted(pairs)[:5])


def _are_alike(one: str, other: str) -> bool:
    """Return whether two words differ in case or punctuation only, or one begins with the other."""
    a, b = ("".join(c for c in word.casefold() if c.isalnum()) for word in (one, other))
    return a == b or (
        bool(a) and bool(b) and not (a + b).isdigit() and (a.startswith(b) or b.startswith(a))
    )
