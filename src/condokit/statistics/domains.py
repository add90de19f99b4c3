"""Statistics as domains: one row stands for every cell, and sums tell of all rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from condokit.checks import Array, NoOverlapError, listing, refusal, said, warn
from condokit.data.arrays import ones_for_zeros, sides
from condokit.data.columns import in_order
from condokit.data.complete import completed
from condokit.data.missing import refuse_valueless
from condokit.data.roles import name_domains
from condokit.data.study import Confounder, Study
from condokit.data.sums import Sums
from condokit.data.tables import Table
from condokit.io.formats import arrow
from condokit.statistics.gather import Statistics

_OTHER_UNITS = 1000.0  # ratio of typical sizes


def together(parts: Any) -> Statistics:
    """Return one `Statistics` of one or a list of them."""
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
        raise ValueError("The statistics are of no rows.")
    return merged


def as_domains(stats: Statistics, reference: Any) -> Study:
    """Return the two domains of statistics, of which one is the reference."""
    reference = stats.reference if reference is None else reference
    n_rows = int(sum(stats.n_rows.values()))
    query_label, reference_label = name_domains(stats.labels, n_rows, reference)
    study = cells_of(stats)
    is_query = study.code != stats.labels.index(reference_label)
    for name, side in sides(is_query):
        _refuse_unknown(stats, side, name)
    return study.divided(is_query, (query_label, reference_label))


def cells_of(stats: Statistics) -> Study:
    """Return the cells as rows; the largest domain is the reference."""
    _warn_of_units(stats)
    _warn_of_spellings(stats)
    cells, moments = list(stats.cells), stats.sums.moments
    names = stats.categories
    confounders = []
    for j, name in enumerate(names, 1):
        levels = in_order({cell[j] for cell in cells})
        number = {level: k for k, level in enumerate(levels)}
        codes = np.array([number[cell[j]] for cell in cells], dtype=np.int32)
        confounders.append(Confounder(name, False, levels, codes))
    ranges = stats.ranges
    confounders += [Confounder(n, True, range=ranges[n]) for n in stats.confounders if n in ranges]
    label = np.array([stats.labels.index(cell[0]) for cell in cells])
    whole = stats.sums
    if whole.continuous is not None:  # some files may know fewer functions than others
        continuous, wider = completed(whole.continuous, label)
        values = {
            j: one.narrower(moments.mean[:, j], wider[j]) if j in wider else one
            for j, one in whole.values.items()
        }
        whole = replace(whole, continuous=continuous, values=values)
    sums = Sums(whole, label, np.arange(len(cells)), by_cell=stats.by_cell)
    table: Any = moments.mean
    if stats.feature_names is not None:
        pa = arrow()
        table = pa.table(dict(zip(stats.feature_names, np.ascontiguousarray(moments.mean.T))))
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
    """Return the domains of statistics, however many, as a study."""
    label = np.array([stats.labels.index(cell[0]) for cell in stats.cells])
    for k, name in enumerate(stats.labels):
        _refuse_unknown(stats, label == k, str(name))
    study, order = cells_of(stats), in_order(stats.labels)
    number = np.array([order.index(name) for name in stats.labels])
    reference, gaps = int(number[study.reference]), study.gaps
    if gaps is not None:
        gaps = tuple(gaps[stats.labels.index(name)] for name in order)
    code, labels = number[study.code], tuple(order)
    return replace(study, code=code, labels=labels, reference=reference, gaps=gaps)


def _gaps(stats: Statistics, label: Array) -> tuple[Array, ...] | None:
    """Return how many values of features are missing, by label."""
    moments = stats.sums.moments
    if moments.known is None or (moments.known == moments.count[:, None]).all():
        return None
    lacking = moments.count[:, None] - moments.known
    return tuple(lacking[label == k].sum(axis=0) for k in range(len(stats.labels)))


def _refuse_unknown(stats: Statistics, cells: Array, name: str) -> None:
    """Refuse features of which nothing is known in the cells of a domain."""
    nothing = np.broadcast_to(stats.sums.moments.n, stats.sums.moments.mean.shape)[cells]
    nothing = nothing.sum(axis=0) == 0
    names = np.array(stats.feature_names or np.arange(stats.n_features), dtype=object)
    refuse_valueless(names[nothing].tolist(), name)


def _typical(stats: Statistics) -> Array:
    """Return the root mean square of every feature by label, shape (n_labels, n_features)."""
    moments = stats.sums.moments
    n = np.broadcast_to(moments.n, moments.mean.shape)
    found = []
    for name in stats.labels:
        mine = [k for cell, k in stats.cells.items() if cell[0] == name]
        square = moments.squares[mine] + n[mine] * moments.mean[mine] ** 2
        found.append(np.sqrt(square.sum(axis=0) / np.maximum(n[mine].sum(axis=0), 1)))
    return np.stack(found)


def _warn_of_units(stats: Statistics) -> None:
    """Warn of features whose sizes differ so much between labels that units must differ."""
    typical = _typical(stats)
    ratio = typical.max(axis=0) / ones_for_zeros(typical.min(axis=0))
    far = (ratio > _OTHER_UNITS) & (typical.min(axis=0) > 0)
    if far.any():
        names = np.array(stats.feature_names or np.arange(stats.n_features), dtype=object)
        text = (
            "Values of {names} are more than {ratio:g} times larger in one part than in another: "
        )
        text += "are they in the same units?"
        warn("units", text, UserWarning, names=listing(names[far]), ratio=_OTHER_UNITS)


def _warn_of_spellings(stats: Statistics) -> None:
    """Warn of levels that seem to be one, spelled in two ways."""
    for name, pairs in _spellings(stats):
        text = "Levels of confounder {name!r} look like one that is spelled in two ways: "
        text += "{pairs}. They are not compared; spell them alike."
        warn("spellings", text, UserWarning, name=name, pairs=pairs)


@contextmanager
def hinted(stats: Statistics) -> Iterator[None]:
    """Let the error that nothing overlaps say which levels look like one."""
    try:
        yield
    except NoOverlapError as error:
        pairs = [f"{name!r}: {pairs}" for name, pairs in _spellings(stats)]
        if not pairs:
            raise
        text = "{error} Levels may be spelled in two ways: {pairs}."
        raise NoOverlapError(said(text, error=error.args[0], pairs="; ".join(pairs))) from None


def _spellings(stats: Statistics) -> Iterator[tuple[str, str]]:
    """Yield confounders with levels that seem to be one, and these."""
    names = stats.categories
    for j, name in enumerate(names, 1):
        by_label = {
            label: {cell[j] for cell in stats.cells if cell[0] == label} for label in stats.labels
        }
        common = set.intersection(*by_label.values())
        alone = [(label, level) for label, own in by_label.items() for level in own - common]
        pairs = {
            " and ".join(sorted(map(repr, (a, b))))
            for k, (one, a) in enumerate(alone)
            for other, b in alone[k + 1 :]
            if one != other and a != b and _are_alike(str(a), str(b))
        }
        if pairs:
            yield name, ", ".join(sorted(pairs)[:5])


def _are_alike(one: str, other: str) -> bool:
    """Tell whether two words differ in capitals, blanks or points, or one begins the other."""
    a, b = ("".join(c for c in word.casefold() if c.isalnum()) for word in (one, other))
    return a == b or (
        bool(a) and bool(b) and not (a + b).isdigit() and (a.startswith(b) or b.startswith(a))
    )
