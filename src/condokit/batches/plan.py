r"""What to measure next: the samples, or the new subjects, that lower the expected error most.

Let n be the numbers of rows of the batches, D the design matrix of the confounders in all rows, and
N the sums of D over the rows of each batch. The offsets of all batches have the information matrix

.. math:: L = diag(n) - N' (D'D)^{-1} N + \sum_i (1 + \rho) (diag(1_i) - 1_i 1_i' / m_i),

where the sum is over bridge samples i, each measured in :math:`m_i` batches, which :math:`1_i`
marks, and :math:`\rho` is that of `condokit.batches.graph`. The inverse V of L, without the
reference, is the covariance of the offsets in residual variances. Measuring a sample of batch a
also in b adds :math:`\omega c c'` to L, with :math:`c = e_a - e_b` and
:math:`\omega = (1 + \rho) / 2`. By the Sherman-Morrison formula this lowers the mean squared error
:math:`\sum_b w_b V_{bb}`, with w the shares of rows, by
:math:`c' V diag(w) V c / (1 / \omega + c' V c)`. Samples are chosen greedily, one after another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from condokit.batches.graph import RATIO, Graph
from condokit.checks import Array, check_integer
from condokit.data.measurements import names_of_rows
from condokit.data.study import Study, cell_names
from condokit.data.subsets import subsample

_UNKNOWN = 1e-4  # prior information on offsets (a prior sd of 100), so that L has an inverse
_MOST_CANDIDATES = 500  # rows of a batch among which samples are chosen
_LARGE = 10.0  # sd; larger errors come from the prior only, so that they count as unknown


@dataclass(frozen=True)
class Plan:
    """Which samples to measure again and where, or which subjects to add, and what that gains."""

    #: Samples to measure also in another batch: "row" and "name" of each, its "batch", and the
    #: batch "again_in".
    again: list[dict[str, Any]]
    #: Or else new subjects: their "batch", "values" of confounders, and number "n".
    add: list[dict[str, Any]]
    error_before: float  #: Expected error of a value now, in sd.
    error_after: float  #: Expected error if these samples are measured again, in sd.
    error_after_adding: float  #: The same if these subjects are added; nan without confounders.

    def __str__(self) -> str:
        moves: dict[tuple[Any, Any], list[str]] = {}
        for one in self.again:
            moves.setdefault((one["batch"], one["again_in"]), []).append(str(one["name"]))
        now = "Expected error of a value now: not known, some batches cannot be compared."
        if self.error_before <= _LARGE:
            now = "Expected error of a value now, by numbers of rows alone: "
            now += f"{self.error_before:.2f} sd."
        what = f"Measuring {len(self.again)} samples in another batch as well"
        lines = [now, f"{what} {self._to(self.error_after)}."]
        lines += [f"  of {a}, also in {b}: {', '.join(names)}" for (a, b), names in moves.items()]
        if self.add:
            lines.append(f"Adding new subjects instead {self._to(self.error_after_adding)}.")
            lines += [f"  {one['n']} in {one['batch']}: {one['values']}" for one in self.add]
        return "\n".join(lines)

    def _to(self, after: float) -> str:
        """Return the gain in words: a share of the error, since a fit expects other errors."""
        if after > _LARGE:
            return "does not connect them all"
        if self.error_before > _LARGE:
            return f"leaves an expected error of {after:.2f} sd"
        return f"lowers the expected error by {1 - after / self.error_before:.0%}"


def make_plan(study: Study, graph: Graph, reference: int, n: int, *columns: Any) -> Plan:
    """Choose n samples, or n new subjects, one after another; `columns` may name samples."""
    check_integer("n", n, 1)
    weights = np.where(np.arange(len(graph.size)) == reference, 0.0, graph.size)
    weights = weights / weights.sum()  # of values that are mapped; those of the reference stay
    scales = float(weights @ (0.5 / graph.size + 0.5 / graph.size[reference]))

    def error(L: Array) -> float:
        return float(np.sqrt(weights @ np.diag(covariance(L, reference)) + scales))

    start = graph.information_matrix(np.zeros(graph.levels.shape))
    L, moves = start.copy(), list[tuple[int, int]]()
    for _ in range(n):
        V = covariance(L, reference)
        M = (V * weights) @ V
        spread = np.diag(V)[:, None] + np.diag(V) - 2 * V
        gain = np.diag(M)[:, None] + np.diag(M) - 2 * M
        gain = gain / (2 / (1 + RATIO) + spread)
        for pair in {pair for pair in moves if moves.count(pair) >= graph.rows[pair[0]]}:
            gain[pair] = gain[pair[::-1]] = -np.inf  # all samples of this batch are chosen
        if gain.max() <= 0:
            break
        a, b = np.unravel_index(int(gain.argmax()), gain.shape)
        a, b = (a, b) if graph.size[a] >= graph.size[b] else (b, a)
        moves.append((int(a), int(b)))
        L[[a, b], [a, b]] += (1 + RATIO) / 2
        L[[a, b], [b, a]] -= (1 + RATIO) / 2
    again = _samples(study, moves, names_of_rows(study, *columns))
    add, extra = _subjects(study, graph, error, n)
    last = error(graph.information_matrix(extra)) if add else np.nan
    return Plan(again, add, error(start), error(L), last)


def covariance(L: Array, reference: int) -> Array:
    """Return the covariance (n_batches, n_batches) of offsets to the reference, whose own is 0."""
    others = np.delete(np.arange(len(L)), reference)
    V = np.zeros(L.shape)
    free = np.ix_(others, others)
    V[free] = np.linalg.inv(L[free] + _UNKNOWN * np.eye(len(others)))
    return V


def _samples(
    study: Study, moves: list[tuple[int, int]], names: Sequence[Any] | None
) -> list[dict[str, Any]]:
    """Choose samples for the moves, at even steps along the first principal axis of their batch.

    A move is a pair: the batch of the sample, and the batch in which it is measured again.
    """
    found: list[dict[str, Any]] = []
    for a in sorted({a for a, _ in moves}):
        there = sorted(b for one, b in moves if one == a)
        free = study.among(a) & (study.bridge < 0)
        rows = np.flatnonzero(free if free.any() else study.among(a))
        rows = rows[subsample(len(rows), _MOST_CANDIDATES)]
        X = np.nan_to_num(study.rows(rows))
        X = (X - X.mean(0)) / np.maximum(X.std(0), 1e-300)
        axis = np.linalg.svd(X, full_matrices=False)[2][0]
        order = np.argsort(X @ axis * np.sign(axis[np.abs(axis).argmax()]), kind="stable")
        place = ((np.arange(len(there)) + 0.5) / len(there) * len(rows)).astype(int)
        if len(there) > len(rows):  # the same samples, in other batches
            place = np.arange(len(there)) % len(rows)
        for row, b in zip(rows[order[place]], there):
            name = int(row) if names is None else names[row]
            labels = {"batch": study.labels[a], "again_in": study.labels[b]}
            found.append({"row": int(row), "name": name, **labels})
    return found


def _subjects(study: Study, graph: Graph, error: Any, n: int) -> tuple[list[dict[str, Any]], Array]:
    """Choose new subjects, one after another: the batch and stratum that lower the error most."""
    extra = np.zeros(graph.levels.shape)
    strata = study.strata()
    if not graph.is_counted or not strata.names:
        return [], extra
    chosen: dict[tuple[int, int], int] = {}
    for _ in range(n):
        best, found = np.inf, (0, 0)
        for b, k in np.ndindex(extra.shape):
            extra[b, k] += 1
            after = error(graph.information_matrix(extra))
            extra[b, k] -= 1
            if after < best:
                best, found = after, (b, k)
        extra[found] += 1
        chosen[found] = chosen.get(found, 0) + 1
    names = cell_names(strata.names, strata.levels)
    return [
        {"batch": study.labels[b], "values": names[k], "n": times}
        for (b, k), times in chosen.items()
    ], extra
