"""Missing values in features: counted, looked up by row, by feature and by stratum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from condokit.checks import Array, listing, said
from condokit.data.domains import Domains

SIDES = ("query", "reference")


def with_gaps(domains: Domains) -> Domains:
    """Count the missing values, and leave out rows that have no value at all.

    Infinity is refused, and so is a feature that has no value in a domain.
    """
    empty, kept = np.zeros(len(domains.is_query), dtype=bool), domains.keep
    gaps: list[Any] = [0, 0]
    for here, chunk in _as_given(domains):
        with np.errstate(invalid="ignore", over="ignore"):
            if np.isfinite(chunk.sum()):
                continue
        if np.isinf(chunk).any():
            for table in domains.tables:
                table.refuse_infinity()
        missing = np.isnan(chunk)
        if kept is not None:
            missing &= kept[here, None]
        empty[here] = missing.all(axis=1)
        for side, mine in enumerate(_sides(domains.is_query[here])):
            if mine.any():
                gaps[side] = gaps[side] + missing[mine].sum(axis=0)
    if not np.any(gaps[0]) and not np.any(gaps[1]):
        return domains
    tables = domains.tables[0], domains.tables[-1]
    counts = [count + np.zeros(t.n_features, dtype=np.intp) for count, t in zip(gaps, tables)]
    for name, table, count, mine in zip(SIDES, tables, counts, _sides(domains.is_query)):
        n_rows = int((mine if kept is None else mine & kept).sum())
        nothing = np.asarray(table.labels, dtype=object)[count == n_rows]
        if len(nothing):
            raise ValueError(
                said(
                    f"No value of {{names}} is known in the {n_rows} {name} rows. Leave "
                    "features without values out with {@`features`}.",
                    names=listing(nothing),
                )
            )
    if empty.any():
        domains = replace(domains, keep=domains.kept() & ~empty)
    return replace(domains, gaps=(counts[0], counts[1]))


def missing_features(domains: Domains) -> dict[str, dict[str, int]]:
    """Return how many values of each feature are missing in each domain, if any are."""
    found: dict[str, dict[str, int]] = {}
    if domains.gaps is None:
        return found
    for name, table, count in zip(SIDES, (domains.tables[0], domains.tables[-1]), domains.gaps):
        for label, n in zip(table.labels, count.tolist()):
            if n:
                found.setdefault(label, dict.fromkeys(SIDES, 0))[name] = n
    return found


def complete_rows(domains: Domains) -> Array:
    """Mark the rows that are kept and lack no value."""
    complete = domains.kept()
    for here, chunk in _as_given(domains):
        complete[here] &= ~np.isnan(chunk).any(axis=1)
    return complete


def complete_counts(domains: Domains) -> dict[str, int]:
    """Return how many rows of each domain lack no value."""
    complete = complete_rows(domains)
    sides = zip(SIDES, _sides(domains.is_query))
    return {name: int((complete & side).sum()) for name, side in sides}


def same_gaps(domains: Domains) -> Iterator[tuple[Array, Array]]:
    """Yield the features that are missing in the same rows, and the rows where they are not."""
    kept = domains.kept()
    bits = [np.packbits(np.isnan(chunk), axis=0) for _, chunk in _as_given(domains)]
    _, pattern = np.unique(np.concatenate(bits), axis=1, return_inverse=True)
    pattern = pattern.ravel()
    order = np.argsort(pattern, kind="stable")
    for features in np.split(order, np.flatnonzero(np.diff(pattern[order])) + 1):
        seen = [~np.isnan(chunk[:, 0]) for _, chunk in _as_given(domains.of(features[:1]))]
        yield features, kept & np.concatenate(seen)


def observed_counts(domains: Domains, place: Array, n_values: int) -> tuple[Array, Array]:
    """Return the rows behind each feature at every support value, of query and of reference.

    Shape (n_values, n_features). A value that a feature lacks in one domain does not count.
    """
    counts = np.zeros((2 * n_values, domains.n_features))
    cell = place + n_values * ~domains.is_query
    for here, chunk in _as_given(domains):
        used = place[here] >= 0
        seen = (~np.isnan(chunk[used])).astype(np.float64)
        if domains.weights is not None:
            seen *= domains.weights[here][used, None]
        order = np.argsort(cell[here][used], kind="stable")
        cells, first = np.unique(cell[here][used][order], return_index=True)
        if len(cells):
            counts[cells] += np.add.reduceat(seen[order], first, axis=0)
    query, reference = counts[:n_values], counts[n_values:]
    common = (query > 0) & (reference > 0)
    return query * common, reference * common


def _as_given(domains: Domains) -> Iterator[tuple[slice, Array]]:
    """Return (stacked row numbers, rows) without links, from top to bottom."""
    return replace(domains, links=None).chunks()


def _sides(is_query: Array) -> tuple[Array, Array]:
    return is_query, ~is_query
