r"""Rows of one subject share a level, wherever they are: random, or free for bridge samples.

The level of a subject g with m rows of weights :math:`w_g`, zero elsewhere, has the variance
:math:`\rho \sigma^2` times the mean variance of its rows, so that the covariance V of rows has, by
Woodbury,

.. math::
    V^{-1} = W - \sum_g \kappa_g \frac{w_g w_g'}{1'w_g}, \quad \kappa_g = \frac{m \rho}{1 + m \rho}.

So only sums over subjects are needed. A sample that was measured in several batches (a bridge) has
a free level, :math:`\kappa = 1`: only differences within it count. The only row of a subject has
the weight 1 / (1 + rho). Rows become independent if :math:`1 - \sqrt{1 - \kappa}` of the mean of
their subject is subtracted.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import sums_of
from condokit.data.covariates import Covariates
from condokit.law.design import Block, level_columns

MOST_LEVELS = 20  # levels of a category, whose means by subject may become columns
_TIED = 0.8  # share of changes within subjects that go with the batch, so that they show no slope
_CONSTANT = 0.9999  # share of a column's variance between subjects: above, none is within
_FEWEST_A_MEAN = 4  # subjects needed for each column of their means
_CROSSING = 1.2  # mean number of batches of a subject, below which slopes between subjects decide


@dataclass(frozen=True)
class Subjects:
    """The subject of every row. Only rows that share a level with others need sums."""

    code: Array  # (n_rows,): the number of each row's subject
    is_free: Array  # (n_subjects,): whether its level is free, as of a bridge sample
    batch: Array  # (n_rows,)
    n_batches: int

    @classmethod
    def of(
        cls, groups: Array | None, bridge: Array | None, batch: Array, n_batches: int
    ) -> "Subjects | None":
        """Return the subjects of rows: `groups`, or samples that bridge batches.

        `bridge` has the number of the sample, -1 for other rows. Returns None if no rows share a
        level.
        """
        if groups is None and bridge is None:
            return None
        code = np.arange(len(batch)) if groups is None else np.asarray(groups, dtype=np.intp)
        free = np.zeros(len(batch), dtype=np.bool_) if bridge is None else bridge >= 0
        if bridge is not None:
            code = np.where(free, bridge, code + int(bridge.max()) + 1)
        _, first, code = np.unique(code, return_index=True, return_inverse=True)
        found = cls(code, free[first], batch, n_batches)
        return found if len(found.rows) else None

    def take(self, rows: Array) -> "Subjects":
        """Return some of the rows."""
        kept, code = np.unique(self.code[rows], return_inverse=True)
        return replace(self, code=code, is_free=self.is_free[kept], batch=self.batch[rows])

    @property
    def n_subjects(self) -> int:
        """How many subjects there are."""
        return len(self.is_free)

    @cached_property
    def _shares(self) -> Array:
        """Whether each subject has a level to estimate: several rows, or a free one."""
        return np.asarray((np.bincount(self.code, minlength=self.n_subjects) > 1) | self.is_free)

    @cached_property
    def rows(self) -> Array:
        """The numbers of rows whose subject has a level to estimate."""
        return np.flatnonzero(self._shares[self.code])

    @cached_property
    def number(self) -> Array:
        """Of each of these `rows`, the number of its subject among those with a level."""
        return (np.cumsum(self._shares) - 1)[self.code[self.rows]]

    @cached_property
    def free(self) -> Array:
        """Whether the level is free, of each subject with a level."""
        return np.asarray(self.is_free[self._shares])

    @cached_property
    def alone(self) -> Array:
        """The numbers of rows that share no level."""
        return np.flatnonzero(~self._shares[self.code])

    @cached_property
    def _pair(self) -> tuple[Array, Array, Array]:
        """Return batch and subject of the pairs of these that have rows, and the pair of each row.

        Pairs are sorted by batch; rows are those of `rows`.
        """
        key = self.batch[self.rows] * len(self.free) + self.number
        found, pair = np.unique(key, return_inverse=True)
        return (*np.divmod(found, max(len(self.free), 1)), pair)

    @cached_property
    def by_batch(self) -> list[slice]:
        """The pairs of each batch, as slices."""
        edges = np.searchsorted(self._pair[0], np.arange(self.n_batches + 1))
        return [slice(a, b) for a, b in zip(edges[:-1], edges[1:])]

    @property
    def of_pair(self) -> Array:
        """The subject of each pair of batch and subject."""
        return self._pair[1]

    @cached_property
    def _to_pairs(self) -> Any:
        """The sparse matrix that sums `rows` by pair."""
        return sums_of(self._pair[2], len(self.of_pair))

    @cached_property
    def _to_subjects(self) -> Any:
        """The sparse matrix that sums pairs by subject."""
        return sums_of(self.of_pair, len(self.free))

    def pair_sums(self, part: Array) -> Array:
        """Return sums over pairs of batch and subject, of values of `rows`."""
        flat = self._to_pairs @ part.reshape(len(part), -1)
        return np.asarray(flat).reshape(-1, *part.shape[1:])

    def sums(self, pairs: Array) -> Array:
        """Return sums over subjects, given sums over pairs."""
        flat = self._to_subjects @ pairs.reshape(len(pairs), -1)
        return np.asarray(flat).reshape(-1, *pairs.shape[1:])

    def cluster_sums(self, values: Array) -> Array:
        """Return sums over every subject, those with a single row included, of all rows."""
        return np.asarray(sums_of(self.code, self.n_subjects) @ values)

    def kappa(self, counts: Array, rho: Array) -> Array:
        """Return kappa, (n_subjects, 1 or n_features): m rho / (1 + m rho), or 1 if free."""
        m = self.sums(self.pair_sums(counts[self.rows])) * rho
        return np.where(self.free[:, None], 1.0, m / (1 + m))

    def lighter(self, w: Array, counts: Array, rho: Array) -> Array:
        """Return weights in which the only row of a subject has w / (1 + rho)."""
        w = np.repeat(w, len(rho), axis=1) if w.shape[1] == 1 else w.copy()
        w[self.alone] /= 1 + rho * counts[self.alone]
        return w

    def means(self, values: Array, w: Array) -> Array:
        """Return the weighted means of subjects with a level, (n_subjects, n_features)."""
        w = w[self.rows]
        total = np.maximum(self.sums(self.pair_sums(w)), 1e-300)
        return self.sums(self.pair_sums(w * values[self.rows])) / total

    def apart(self, values: Array, w: Array, counts: Array, rho: Array) -> Array:
        """Return values made independent over rows, of weights w: see the module's formula."""
        part = 1 - np.sqrt(1 - self.kappa(counts, rho))
        values = values.copy()
        values[self.rows] -= (part * self.means(values, w))[self.number]
        values[self.alone] /= np.sqrt(1 + rho * counts[self.alone])
        return values

    def inverse(self, values: Array, w: Array, kappa: Array) -> Array:
        """Return V^-1 times values, given weights from `lighter`."""
        out = w * values
        out[self.rows] -= w[self.rows] * (kappa * self.means(values, w))[self.number]
        return out

    def log_det(self, counts: Array, rho: float) -> Array:
        """Return log |V| up to a constant, (1 or n_features,); free levels add none."""
        m = self.sums(self.pair_sums(counts[self.rows]))[~self.free]
        return np.asarray(np.log1p(m * rho).sum(0) + np.log1p(counts[self.alone] * rho).sum(0))


def subject_means(at: Covariates, batch: Array) -> Block | None:
    """Return subjects' means of columns that vary within and between subjects, as a block, or None.

    With such a column the slope between subjects may differ from that within them (Mundlak). It is
    selected like other blocks, but always fitted if subjects hardly have rows in several batches:
    batches are then compared between subjects, so that a slope from within would be wrong where it
    differs. Columns that change within subjects only from batch to batch have no such mean: the
    change shows the effect of the batch, not a slope.
    """
    if at.groups is None:
        return None
    varies, tied = _within(at, batch)
    varying = np.flatnonzero(varies & ~tied)
    if not len(varying):
        return None
    n_subjects = len(np.unique(at.groups))
    n_pairs = len(np.unique(np.column_stack([np.asarray(at.groups), batch]), axis=0))
    apart = n_pairs < _CROSSING * n_subjects
    return Block("subject means", lambda rows: _means(rows)[:, varying], always=apart)


def tied_to_batches(at: Covariates, batch: Array) -> Array:
    """Mark continuous columns that change within subjects only from batch to batch.

    An example is age, if everybody is three years older at the second site. Their slope within
    subjects cannot be estimated, and is taken to be that between subjects.
    """
    if at.groups is None or not at.Z.shape[1]:
        return np.zeros(at.Z.shape[1], dtype=np.bool_)
    return _within(at, batch)[1][: at.Z.shape[1]]


def _columns(at: Covariates) -> Array:
    """Return the columns whose means by subject are considered."""
    few = at.n_categories <= MOST_LEVELS
    return np.column_stack([at.Z, level_columns(at)]) if few else at.Z


def _means(at: Covariates) -> Array:
    """Return these columns' means by subject, repeated for each row."""
    columns, code = _columns(at), np.unique(np.asarray(at.groups), return_inverse=True)[1]
    count = np.bincount(code)
    return np.asarray((sums_of(code, len(count)) @ columns / count[:, None])[code])


def _within(at: Covariates, batch: Array) -> tuple[Array, Array]:
    """Mark columns that vary within and between subjects; mark those tied to batches there."""
    columns, mean, n_subjects = _columns(at), _means(at), len(np.unique(np.asarray(at.groups)))
    between = mean.var(0) / np.maximum(columns.var(0), 1e-300)
    # the mean of n independent rows varies by 1 / n even if subjects are alike
    varies = (between < _CONSTANT) & (between > 0.02 + 1.5 * n_subjects / len(columns))
    varies &= n_subjects >= _FEWEST_A_MEAN * (1 + varies.sum())
    dummies = (batch[:, None] == np.unique(batch)[1:]).astype(float)
    own = replace(at, Z=dummies, n_categories=1, category=np.zeros(len(batch), dtype=np.intp))
    moved, within = dummies - _means(own), columns - mean
    slope = np.linalg.lstsq(moved, within, rcond=None)[0]
    total = (within**2).sum(0)
    changes = total > 1e-9 * np.maximum((columns**2).sum(0), 1e-300)
    return varies, changes & (((moved @ slope) ** 2).sum(0) > _TIED * total)
