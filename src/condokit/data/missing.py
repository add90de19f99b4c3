"""Missing values in features; one scan of the rows counts them and sums rows by cell."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from condokit.checks import LARGEST, Array, are_moderate, listing, refusal, sizes, warn
from condokit.data.arrays import equal_columns, sides
from condokit.data.grouped import GroupedMoments, GroupedScatter
from condokit.data.study import Study
from condokit.data.subsets import subsample
from condokit.data.sums import CellSums, Sums, no_rows

SIDES = ("query", "reference")
_FEWEST_COMPLETE = 5  # complete rows of a domain, for maps that need complete rows
_PRODUCT_ROWS = 50_000  # rows from which products of features are computed, at most
_FEWEST_OF_CELL = 8  # rows of a cell on average, so that sums are far smaller than rows


def with_gaps(domains: Study, by_side: bool = True) -> Study:
    """Count missing values, sum the rows by cell, and leave out rows without any value.

    Extreme values are refused, and with `by_side` also features without a value in a domain.
    """
    if domains.entries is not None and are_moderate(domains.entries.data):
        return domains
    empty, kept = np.zeros(len(domains.is_query), dtype=bool), domains.kept()
    cell, moments = _cells(domains)
    tables = [domains.tables[0]] * (domains.n_domains - 1) + [domains.tables[-1]]
    counts = [np.zeros(table.n_features, dtype=np.intp) for table in tables]
    for here, chunk in _as_given(domains):
        weights = None if domains.weights is None else domains.weights[here]
        if are_moderate(chunk):
            if moments is not None:
                moments.update(chunk, cell[here], weights)
            continue
        if (sizes(chunk) > LARGEST).any():
            for table in domains.tables:
                table.refuse_extremes()
        missing = np.isnan(chunk) & kept[here, None]
        empty[here] = missing.all(axis=1)
        cell[here][empty[here]] = -1
        if moments is not None:
            moments.update(chunk, cell[here], weights, np.isnan(chunk))
        for k in np.unique(domains.code[here]):
            counts[k] += missing[domains.code[here] == k].sum(axis=0)
    if moments is not None:
        if moments.products is None:
            moments.products = _products(domains, cell, moments)
        made_of = domains.tables, domains.weights, domains.links
        label = np.repeat(np.arange(domains.n_domains), len(moments.count) // domains.n_domains)
        cells = CellSums(moments)
        sums = Sums(cells, label, cell, are_rows=True, is_whole=True, made_of=made_of)
        domains = replace(domains, sums=sums)
    if not any(count.any() for count in counts):
        return domains
    both = sides(domains.is_query) if by_side else []
    for table, count, (name, mine) in zip(tables, counts, both):
        n_rows = int((mine & kept).sum())
        refuse_valueless(table.names_of(count == n_rows), name, n_rows)
    if empty.any():
        domains = replace(domains, keep=kept & ~empty)
    return replace(domains, gaps=tuple(counts))


def refuse_valueless(names: list[str], side: str, n_rows: int | None = None) -> None:
    """Refuse features that have no value in a domain, if there are any."""
    if not names:
        return
    where = "the {side} rows" if n_rows is None else "the {n:rows} {side} rows"
    text = f"All values of {{names}} are missing in {where}. Leave such features out with "
    raise refusal(text + "{@`features`}.", names=listing(names), n=n_rows, side=side)


def _cells(domains: Study) -> tuple[Array, GroupedMoments | None]:
    """Return the cell of every row, and empty moments unless there are too many cells.

    A cell is a domain with one level of each categorical confounder.
    """
    strata = domains.strata()
    cell = np.where(strata.codes < 0, -1, domains.code * len(strata.levels) + strata.codes)
    n_cells = domains.n_domains * len(strata.levels)
    if _FEWEST_OF_CELL * n_cells > len(cell) or domains.is_rectangular or domains.links:
        return cell, None
    return cell, GroupedMoments(n_cells, domains.n_features, len(cell) <= _PRODUCT_ROWS)


def _products(domains: Study, cell: Array, moments: GroupedMoments) -> GroupedScatter:
    """Return the scatter matrices of some features by cell, from at most 50,000 rows."""
    used = np.flatnonzero(cell >= 0)
    rows = used[subsample(len(used), _PRODUCT_ROWS)]
    X = domains.of(moments.few).rows(rows)
    complete = np.where(np.isnan(X).any(axis=1), -1, cell[rows])
    found = GroupedScatter(len(moments.count), len(moments.few))
    weights = None if domains.weights is None else domains.weights[rows]
    found.update(np.nan_to_num(X), complete, weights)
    return found


def missing_features(domains: Study) -> dict[str, dict[str, int]]:
    """Return how many values of each feature are missing in each domain, if any are."""
    found: dict[str, dict[str, int]] = {}
    tables = domains.tables[0], domains.tables[-1]
    for name, table, count in zip(SIDES, tables, domains.gaps or ()):
        for label, n in zip(table.labels, count.tolist()):
            if n:
                found.setdefault(label, dict.fromkeys(SIDES, 0))[name] = n
    return found


def complete_rows(domains: Study) -> Array:
    """Mark the rows that are kept and complete."""
    complete = domains.kept()
    for here, chunk in _as_given(domains):
        complete[here] &= ~np.isnan(chunk).any(axis=1)
    return complete


def complete_counts(domains: Study) -> dict[str, int] | None:
    """Return how many rows of each domain are complete, None if all are or rows are not known."""
    if domains.gaps is None or not domains.has_rows:
        return None
    return _by_side(domains, complete_rows(domains))


def _by_side(domains: Study, rows: Array) -> dict[str, int]:
    """Count the marked rows of each domain."""
    return {name: int((rows & mine).sum()) for name, mine in sides(domains.is_query)}


def without_gaps(domains: Study) -> Study:
    """Leave out rows with missing values, and warn."""
    if domains.gaps is None or not domains.has_rows:
        raise no_rows()
    complete = complete_rows(domains)
    n_rows = _by_side(domains, complete)
    if min(n_rows.values()) < _FEWEST_COMPLETE:
        counts = {name: sum(n.values()) for name, n in missing_features(domains).items()}
        worst = sorted(counts, key=counts.__getitem__, reverse=True)
        raise refusal(
            "Only {query:rows} query rows and {reference:rows} reference rows are complete, which "
            "is too few for this map and divergence. The features with most missing values are "
            "{worst}: leave features out with {@`features`}, or use {@map='location-scale'}.",
            worst=listing(worst),
            **n_rows,
        )
    warn_incomplete(domains, n_rows)
    return replace(domains, keep=complete, gaps=None)


def warn_incomplete(domains: Study, n_rows: dict[str, int]) -> None:
    """Warn how many values are missing, and how many rows of each domain are used."""
    both = zip(domains.gaps or (), (domains.is_query, ~domains.is_query))
    query, reference = (count.mean() / side.sum() for count, side in both)
    text = "{query:.1%} of the query's and {reference:.1%} of the reference's values are missing. "
    text += "This map needs complete rows: it is fitted on {n_query:rows} query and "
    text += "{n_reference:rows} reference rows."
    numbers: dict[str, Any] = {f"n_{side}": n for side, n in n_rows.items()}
    warn("complete-rows", text, query=query, reference=reference, **numbers)


def same_gaps(domains: Study) -> Iterator[tuple[Array, Array]]:
    """Yield features that are missing in the same rows, and the rows that have values."""
    kept = domains.kept()
    if (sums := domains.sums_only) is not None:
        for features, known in sums.alike():
            yield features, kept & known
        return
    bits = [np.packbits(np.isnan(chunk), axis=0) for _, chunk in _as_given(domains)]
    for features in equal_columns(np.concatenate(bits)):
        seen = [~np.isnan(chunk[:, 0]) for _, chunk in _as_given(domains.of(features[:1]))]
        yield features, kept & np.concatenate(seen)


def _as_given(domains: Study) -> Iterator[tuple[slice, Array]]:
    """Yield (stacked row numbers, rows) from top to bottom, without links."""
    return replace(domains, links=None).chunks()
