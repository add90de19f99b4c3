"""A study: rows of any number of domains, and samples that were measured in several."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit.checks import Array, listing, refusal, warn
from condokit.data.covariates import Covariates
from condokit.data.domains import Domains
from condokit.data.grouped import GroupedMoments


@dataclass(frozen=True)
class Study:
    """Rows of all domains (batches), with confounders; the largest is the reference for now."""

    domains: Domains
    batch: Array  # (n_rows,): the number of each row's batch
    labels: list[Any]
    bridge: Array  # (n_rows,): the number of a sample that is in several batches, -1 for others
    reference: Any = None  # the batch to map to, if the data say so
    has_bridges: bool = False  # whether some were named

    def compared(self) -> "Study":
        """Return the study if it has batches to compare; warn of samples that are not as said."""
        if self.n_batches < 2:
            text = "{@'batch'} has the label {only} alone; there is nothing to compare."
            raise refusal(text, only=listing(self.labels))
        if not self.has_bridges:
            return self
        if not self.n_bridges:
            text = "No value of {@'bridge'} is in two batches, so it marks no sample of several."
            if not self.domains.confounders:
                raise refusal(text + " Without it and {@`confounders`} nothing can be compared.")
            warn("no-bridges", text, UserWarning)
        rows = np.column_stack([self.bridge, self.batch, self.domains.strata().codes])
        there = np.unique(rows[(rows >= 0).all(axis=1)], axis=0)[:, :2]
        pairs, kinds = np.unique(there, axis=0, return_counts=True)
        if n := len(np.unique(pairs[kinds > 1, 0])):
            text = "{n} of {all} samples that {@'bridge'} marks differ in confounders within a "
            text += "batch. Each value must stand for one sample; that of other rows is missing."
            warn("mixed-samples", text, UserWarning, n=n, all=self.n_bridges)
        return self

    def moments(self) -> GroupedMoments:
        """Return the moments of batches, where sums tell them."""
        group = np.where(self.domains.kept(), self.batch, -1)
        found: GroupedMoments = self.domains.sums.gather(group, self.n_batches, GroupedMoments)
        return found

    def size(self, b: int) -> float:
        """Return how many rows, or weights, a batch has."""
        rows, weights = self.rows(b), self.domains.weights
        return float(rows.sum() if weights is None else weights[rows].sum())

    def with_bridges(self, sample: Array) -> "Study":
        """Return the study with samples, of which those count that are in several batches."""
        bridge = in_several(sample, self.batch, self.domains.kept())
        return replace(self, bridge=bridge, has_bridges=True)

    def with_known_features(self, common: bool) -> "Study":
        """Refuse features that a batch has no value of, or take those in `common` alone."""
        if self.domains.gaps is None:
            return self
        known = np.zeros((self.n_batches, self.domains.n_features))
        if self.domains.sums is not None:
            known = np.broadcast_to(self.moments().n, known.shape)
        else:
            kept = self.domains.kept()
            for rows, chunk in self.domains.chunks():
                np.add.at(known, self.batch[rows], ~np.isnan(chunk) & kept[rows, None])
        absent = known == 0
        if not absent.any():
            return self
        if common and not absent.any(axis=0).all():
            places = np.flatnonzero(~absent.any(axis=0))
            return replace(self, domains=self.domains.of(places))
        b = int(absent.any(axis=1).argmax())
        text = "No value of {names} is known in the batch {batch!r}. Leave features that a batch "
        text += "lacks out with {@`features`}, all of them with {@features='common'}."
        names = listing(self.domains.tables[0].names_of(absent[b]))
        raise refusal(text, names=names, batch=self.labels[b])

    def refuse_unbridged(self, reference: int, batches: list[int], fewest: int) -> None:
        """Refuse features of which bridges alone do not tell all batches, as values are missing.

        Two batches are compared by a feature if so many samples have a value of it in both.
        """
        if self.domains.confounders or not self.n_bridges or self.domains.gaps is None:
            return
        rows = np.flatnonzero(self.bridge >= 0)
        there = np.zeros((self.n_batches, self.n_bridges, self.domains.n_features), dtype=bool)
        known = ~np.isnan(self.domains.rows(rows))
        np.logical_or.at(there, (self.batch[rows], self.bridge[rows]), known)
        of_feature = np.moveaxis(there, 2, 0).astype(np.float32)
        compared = of_feature @ np.swapaxes(of_feature, 1, 2) >= fewest
        reached = np.zeros((len(compared), self.n_batches), dtype=bool)
        reached[:, reference] = True
        for _ in batches:  # as many steps as a path can have
            reached |= (compared & reached[:, None]).any(axis=2)
        for b in batches:
            if not reached[:, b].all():
                text = "Bridges do not tell {names} in the batch {batch!r}: fewer than {fewest} "
                text += "samples have a value both there and in a batch with a path to the "
                text += "reference. Leave such features out with {@`features`}."
                names = listing(self.domains.tables[0].names_of(~reached[:, b]))
                raise refusal(text, names=names, batch=self.labels[b], fewest=fewest)

    def merged(self, new: int, domains: Domains, reference: Any) -> "Study":
        """Return two batches: one of these, and all others as one that has been mapped already."""
        is_new = self.batch == new
        own = self.labels[new]
        domains = replace(domains, is_query=is_new, labels=(own, reference))
        both = Study(domains, (~is_new).astype(np.intp), [own, reference], np.full(len(is_new), -1))
        return both.with_bridges(self.bridge)

    @property
    def n_batches(self) -> int:
        """How many batches there are."""
        return len(self.labels)

    @property
    def n_bridges(self) -> int:
        """How many samples are in several batches."""
        return int(self.bridge.max(initial=-1)) + 1

    def rows(self, *batches: int) -> Array:
        """Mark the rows of some batches that are not left out."""
        return self.domains.kept() & np.isin(self.batch, batches)

    def counts(self, codes: Array, n_levels: int) -> Array:
        """Return the rows, or weights, of every batch and level; negative codes are left out."""
        kept = self.domains.kept() & (codes >= 0)
        weights = None if self.domains.weights is None else self.domains.weights[kept]
        cells = self.batch[kept] * n_levels + codes[kept]
        size = self.n_batches * n_levels
        return np.bincount(cells, weights, size).reshape(-1, n_levels).astype(float)

    def pair(self, query: int, reference: int) -> Domains:
        """Return two of the batches as domains."""
        labels = self.labels[query], self.labels[reference]
        keep = self.rows(query, reference)
        return replace(self.domains, is_query=self.batch == query, keep=keep, labels=labels)

    def covariates(self, used: Array) -> Covariates:
        """Return the confounders of some rows as numbers."""
        strata = self.domains.strata()
        codes, category = np.unique(strata.codes[used], return_inverse=True)
        return Covariates.of(self.domains, used, category, len(codes), False)


def in_several(sample: Array, batch: Array, kept: Array) -> Array:
    """Return the number of the sample of each row, -1 if it is not in several batches."""
    kept = kept & (sample >= 0)
    pairs = np.unique(np.column_stack([sample, batch])[kept], axis=0)
    several = np.flatnonzero(np.bincount(pairs[:, 0], minlength=1) > 1)
    number = np.full(max(int(sample.max(initial=0)) + 1, 1), -1)
    number[several] = np.arange(len(several))
    return np.where(kept, number[np.maximum(sample, 0)], -1)
