r"""The graph of batches: which two can be compared, how well, and the best paths between batches.

Two batches a and b can be compared if their confounders overlap, or if samples were measured in
both (bridge samples). Let D be the design matrix of the confounders in the rows of both (a
constant, straight lines, levels) and :math:`1_b` the indicator of rows of b. The offset between the
batches is estimated with the information (inverse variance, in units of one over the residual
variance)

.. math:: g_{ab} = n_b - 1_b' D (D'D)^{-1} D' 1_b + m_{ab} \frac{1 + \rho}{2},

where :math:`m_{ab}` is the number of bridge samples and :math:`\rho` the variance between samples
over that of repeated measurements of one sample. The error of a mapped value is then about
:math:`\sqrt{1 / g_{ab} + 1 / 2 n_a + 1 / 2 n_b}` residual standard deviations: the first term is
from the offset, the others from the two scales. Squared errors add up along a path of batches.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse.csgraph import shortest_path

from condokit.checks import Array, NoOverlapError, did_you_mean, listing, refusal, said, warn
from condokit.compare.comparison import compare
from condokit.data.covariates import crossed
from condokit.data.study import Study

RATIO = 4.0  # assumed rho: variance between samples over that of repeated measurements
_MOST_PAIRS = 100  # up to so many pairs all overlaps are measured; else only those on paths
_FEWEST_ROWS = 2  # of a batch that can be compared
_FEWEST_BRIDGES = 2  # bridge samples that connect two batches, whatever their overlap
_MOST_LEVELS = 200  # combinations of categories; with more, only numbers enter D
_ROUNDING = 1e-9  # relative difference up to which two references are equally good


@dataclass
class Graph:
    """Which batches can be compared, how well, and the best paths to the reference.

    Batches are numbered as in `study.labels`. `error` (n_batches, n_batches) has the expected error
    of a value of one batch in units of the other, infinite if they cannot be compared.
    """

    study: Study
    min_overlap: float
    overlaps: dict[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        used = np.flatnonzero(self.study.kept())
        at, self.batch = crossed(self.study, used), self.study.code[used]
        K = self.study.n_domains
        self.has_confounders = bool(self.study.confounders)
        self.size = np.bincount(self.batch, at.counts, K)
        self.rows = np.bincount(self.batch, minlength=K)
        if not self.study.is_whole:
            self.rows = self.size  # each row stands for many
        strata = self.study.strata()
        self.levels = self.study.counts(strata.codes, len(strata.levels))
        D = np.column_stack([np.ones(len(used)), at.Z])
        if at.Z.shape[1] and 1 < at.n_categories <= _MOST_LEVELS:
            D = np.column_stack([D, at.category[:, None] == np.arange(1, at.n_categories)])
        self.is_counted = not at.Z.shape[1]  # with categories only, counts are all that is needed
        root = np.sqrt(at.counts)[:, None]
        parts = [(D * root)[self.batch == b] for b in range(K)]
        self.gram = np.stack([part.T @ part for part in parts])
        bridge = self.study.bridge
        self.samples = np.zeros((K, self.study.n_bridges))
        self.samples[self.study.code[bridge >= 0], bridge[bridge >= 0]] = 1.0
        self.bridges = self.samples @ self.samples.T
        self.error = np.full((K, K), np.inf)
        for a in range(K):
            for b in range(a):
                self.error[a, b] = self.error[b, a] = self._error(a, b)
        if K * (K - 1) / 2 <= _MOST_PAIRS or self.is_counted:
            for a in range(K):
                for b in range(a):
                    self.overlap(a, b)

    def information(self, a: int, b: int) -> float:
        r"""Return the information on the offset of two batches from confounders, without bridges.

        For categories it is :math:`\sum_k n_{ak} n_{bk} / (n_{ak} + n_{bk})` over levels k.
        """
        if self.is_counted:
            both = (
                self.levels[a] * self.levels[b] / np.maximum(self.levels[a] + self.levels[b], 1e-9)
            )
            return float(both.sum())
        own = self.gram[b][:, 0]
        inverse = np.linalg.pinv(self.gram[a] + self.gram[b], rcond=1e-9, hermitian=True)
        g = float(self.size[b] - own @ inverse @ own)
        return g if g > 1e-9 * self.size[b] else 0.0  # otherwise rounding

    def information_matrix(self, extra: Array) -> Array:
        """Return the information matrix (n_batches, n_batches) of the offsets of all batches.

        `extra` (n_batches, n_strata) are rows to be added; the formula is in
        `condokit.batches.plan`.
        """
        if self.is_counted:
            counts = self.levels + extra
            total = np.maximum(counts.sum(axis=0), 1e-300)
            L = np.diag(counts.sum(axis=1)) - (counts / total) @ counts.T
        else:
            N = self.gram[:, :, 0]
            L = np.diag(self.size) - N @ np.linalg.pinv(self.gram.sum(0), hermitian=True) @ N.T
        if self.study.n_bridges and not self.has_confounders:
            L = 0 * L
        for sample in self.samples.T:
            L = L + (1 + RATIO) * (np.diag(sample) - np.outer(sample, sample) / sample.sum())
        return L

    def _error(self, a: int, b: int) -> float:
        """Return the expected error in sd of a value that is mapped from one batch to the other."""
        if min(self.rows[a], self.rows[b]) < _FEWEST_ROWS:
            return np.inf
        # without confounders, only bridge samples carry information on the offset
        g = self.bridges[a, b] * (1 + RATIO) / 2
        if self.has_confounders or not self.study.n_bridges:
            g += self.information(a, b)
        return float(np.sqrt(1 / g + 0.5 / self.size[a] + 0.5 / self.size[b])) if g > 0 else np.inf

    def overlap(self, a: int, b: int) -> float:
        """Return the overlap coefficient of two batches' confounders; it is kept once measured."""
        pair = (a, b) if a < b else (b, a)
        if pair not in self.overlaps:
            self.overlaps[pair] = self._measured(*pair)
        return self.overlaps[pair]

    def _measured(self, a: int, b: int) -> float:
        """Measure the overlap coefficient of two batches' confounders."""
        sums = self.study.sums_only
        if self.is_counted and (sums is None or sums.continuous is None):
            shares = self.levels[[a, b]] / np.maximum(self.size[[a, b]], 1e-300)[:, None]
            return float(shares.min(axis=0).sum())
        try:
            two = self.study.pair(a, b)
            found = compare(two, quiet=True, measured=True, by_rows=True, each=False)
        except (NoOverlapError, ValueError):
            return 0.0
        return found.overlap.coefficient

    def is_edge(self, a: int, b: int) -> bool:
        """Return whether two batches can be compared directly."""
        if not np.isfinite(self.error[a, b]):
            return False
        if self.bridges[a, b] >= _FEWEST_BRIDGES:
            return True
        if self.study.n_bridges and not self.has_confounders:
            return False
        return self.overlap(a, b) >= max(self.min_overlap, 1e-9)

    def paths(self, reference: int) -> dict[int, list[int]]:
        """Return the path of least squared error from each batch to the reference, if any.

        Dijkstra's algorithm; overlaps, which are slow, are measured only for edges that it needs.
        """
        cost, before = {reference: 0.0}, {reference: reference}
        visited: list[int] = []
        while open_ := [b for b in cost if b not in visited]:
            here = min(open_, key=lambda b: cost[b])
            visited.append(here)
            for b in range(self.study.n_domains):
                there = cost[here] + self.error[here, b] ** 2
                if b not in visited and there < cost.get(b, np.inf) and self.is_edge(here, b):
                    cost[b], before[b] = there, here
        paths = {}
        for b in visited:
            path = [b]
            while path[-1] != reference:
                path.append(before[path[-1]])
            paths[b] = path
        return paths

    def best_reference(self) -> int:
        """Return the batch to which all others have the best paths, weighted by their rows.

        Measuring overlaps is slow. So candidates are tried in the order of a bound: how good they
        would be if all overlaps that are not measured yet were sufficient. The search ends when no
        other candidate can be better. Paths are equally long in both directions.
        """
        square = np.where(np.isfinite(self.error), self.error**2, 0.0)  # 0: no edge
        reach, best, found = np.ones(square.shape, dtype=bool), (-np.inf, -np.inf), 0
        left = set(range(self.study.n_domains))
        while left:
            for pair in self.overlaps:
                if not self.is_edge(*pair):
                    square[pair] = square[pair[::-1]] = 0.0
            least = shortest_path(square)
            reach &= np.isfinite(least)
            known = {r: self.size * np.where(reach[r], least[r], 0.0) for r in left}
            bound = {r: (float(self.size[reach[r]].sum()), -known[r].sum()) for r in left}
            r = min(left, key=lambda r: (-bound[r][0], -bound[r][1], r))
            if bound[r] < (best[0], best[1] * (1 + _ROUNDING)):
                break
            left.remove(r)
            paths = self.paths(r)
            error = sum(self.size[b] * self.path_error(path) ** 2 for b, path in paths.items())
            own = float(self.size[list(paths)].sum()), -error
            if own > best or (own == best and r < found):
                best, found = own, r
            here = np.zeros(len(reach), dtype=bool)
            here[list(paths)] = True
            reach[here] = here
        return found

    def reference(self, wanted: Any) -> tuple[int, str]:
        """Return the batch to map to, and in words why it is the reference; see `BatchAdapter`."""
        labels = self.study.labels
        wanted = self.study.wanted if wanted is None else wanted
        if wanted is None and "reference" in labels:
            wanted = "reference"
        if isinstance(wanted, str) and wanted in ("auto", "consensus") and wanted not in labels:
            best = self.best_reference()
            chosen = f"{labels[best]}, to which all others have the best paths"
            centre = f"the centre of all batches, by way of {labels[best]}"
            return best, chosen if wanted == "auto" else centre
        if wanted is None:
            text = "{@'reference'} must name the batch to map to, one of {known}, or be 'auto' or "
            raise refusal(text + "'consensus'.", known=listing(labels, 12))
        if wanted not in labels:
            text = "{@'reference'} is {got!r}, but the batches are {known}.{hint}"
            hint = did_you_mean(wanted, labels)
            raise refusal(text, got=wanted, known=listing(labels, 12), hint=hint)
        return labels.index(wanted), f"{wanted}, as asked for"

    def refuse(self, paths: dict[int, list[int]], reference: int, keep: bool) -> None:
        """Raise an error for batches without a path; with `keep`, warn that they stay unchanged."""
        lost = [b for b in range(self.study.n_domains) if b not in paths]
        if lost:
            self._refuse(lost, keep)
        if len(paths) == 1:
            raise NoOverlapError(
                f"No batch can be compared with the reference {self.study.labels[reference]!r}."
            )

    def _refuse(self, lost: list[int], keep: bool) -> None:
        """Raise an error for batches without a path, or warn that they stay unchanged."""
        single = [self.study.labels[b] for b in lost if self.rows[b] < 2]
        names = listing([self.study.labels[b] for b in lost], 12)
        text = "No path of batches with common confounder values or bridges leads from {names} to "
        text += "the reference."
        text += " {single} has fewer than two rows." if single else ""
        if keep:
            text += " They are left as they are."
            warn("unreachable", text, UserWarning, names=names, single=listing(single))
            return
        text += " Measure samples again in two batches ({@`bridge`}; {@BatchAdapter.plan} tells "
        text += "which), leave these batches out, or {@set unreachable to 'keep'}."
        raise NoOverlapError(said(text, names=names, single=listing(single)))

    def path_error(self, path: list[int]) -> float:
        """Return the expected error along a path."""
        return float(np.sqrt(sum(self.error[a, b] ** 2 for a, b in zip(path[:-1], path[1:]))))

    def edges(self) -> list[dict[str, Any]]:
        """Return the pairs of batches whose overlap was measured, and what they have in common."""
        found = []
        for (a, b), overlap in sorted(self.overlaps.items()):
            bridges, error = int(self.bridges[a, b]), float(self.error[a, b])
            found.append(
                {
                    "batches": (self.study.labels[a], self.study.labels[b]),
                    "overlap": overlap,
                    "bridges": bridges,
                    "error": error,
                    "comparable": self.is_edge(a, b),
                }
            )
        return found
