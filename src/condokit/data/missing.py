"""Missing values in features: counted, looked up by row, by feature and by stratum."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from condokit.checks import LARGEST, Array, are_moderate, listing, refusal, sizes
from condokit.data.arrays import sides
from condokit.data.domains import Domains

SIDES = ("query", "reference")


def with_gaps(domains: Domains, by_side: bool = True) -> Domains:
    """Count the missing values, and leave out rows that have no value at all."""
    # extreme values are refused, and so is a feature that has no value in a domain, if asked
    if domains.entries is not None and are_moderate(domains.entries.data):
        return domains
    empty, kept = np.zeros(len(domains.is_query), dtype=bool), domains.kept()
    tables = domains.tables[0], domains.tables[-1]
    counts = [np.zeros(table.n_features, dtype=np.intp) for table in tables]
    for here, chunk in _as_given(domains):
        if are_moderate(chunk):
            continue
        if (sizes(chunk) > LARGEST).any():
            for table in domains.tables:
                table.refuse_extremes()
        missing = np.isnan(chunk) & kept[here, None]
        empty[here] = missing.all(axis=1)
        for count, (_, mine) in zip(counts, sides(domains.is_query[here])):
            if mine.any():
                count += missing[mine].sum(axis=0)
    if not any(count.any() for count in counts):
        return domains
    for table, count, (name, mine) in zip(tables, counts, sides(domains.is_query)):
        n_rows = int((mine & kept).sum())
        nothing = np.asarray(table.labels, dtype=object)[count == n_rows]
        if len(nothing) and by_side:
            text = "No value of {names} is known in the {n:rows} {side} rows. Leave features "
            text += "without values out with {@`features`}."
            raise refusal(text, names=listing(nothing), n=n_rows, side=name)
    if empty.any():
        domains = replace(domains, keep=kept & ~empty)
    return replace(domains, gaps=(counts[0], counts[1]))


def missing_features(domains: Domains) -> dict[str, dict[str, int]]:
    """Return how many values of each feature are missing in each domain, if any are."""
    found: dict[str, dict[str, int]] = {}
    tables = domains.tables[0], domains.tables[-1]
    for name, table, count in zip(SIDES, tables, domains.gaps or ()):
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


def complete_counts(domains: Domains) -> dict[str, int] | None:
    """Return how many rows of each domain lack no value, None if nothing is missing or known."""
    if domains.gaps is None or (domains.sums is not None and not domains.sums.are_rows):
        return None
    complete = complete_rows(domains)
    return {name: int((complete & mine).sum()) for name, mine in sides(domains.is_query)}


def same_gaps(domains: Domains) -> Iterator[tuple[Array, Array]]:
    """Yield the features that are missing in the same rows, and the rows where they are not."""
    kept = domains.kept()
    if domains.sums is not None:
        for features, known in domains.sums.alike():
            yield features, kept & known
        return
    bits = [np.packbits(np.isnan(chunk), axis=0) for _, chunk in _as_given(domains)]
    _, pattern = np.unique(np.concatenate(bits), axis=1, return_inverse=True)
    pattern = pattern.ravel()
    order = np.argsort(pattern, kind="stable")
    for features in np.split(order, np.flatnonzero(np.diff(pattern[order])) + 1):
        seen = [~np.isnan(chunk[:, 0]) for _, chunk in _as_given(domains.of(features[:1]))]
        yield features, kept & np.concatenate(seen)


def _as_given(domains: Domains) -> Iterator[tuple[slice, Array]]:
    """Return (stacked row numbers, rows) without links, from top to bottom."""
    return replace(domains, links=None).chunks()
