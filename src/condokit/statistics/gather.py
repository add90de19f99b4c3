"""The class `Statistics`: sums over rows by domain and level, which can be merged."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from condokit.checks import LARGEST, SMALLEST, Array, is_number, listing, refusal
from condokit.data.arrays import ones_for_zeros
from condokit.data.basis import RangeBasis
from condokit.data.bins import Bins
from condokit.data.confounders import as_number
from condokit.data.disclosure import MIN_CELL
from condokit.data.reader import read
from condokit.data.roles import Roles, are_names
from condokit.data.study import Study
from condokit.data.sums import CellSums
from condokit.data.tables import Table
from condokit.io.documents import Place
from condokit.statistics import file, guard, reveals

_GIVEN = ("domain", "confounders", "sample_weight")  # roles that may be given as values
Cell = tuple[Any, ...]  # the label of a domain, then the level of every category


class Statistics:
    """Counts, means and sums of powers of rows by domain and level, from which maps are fitted.

    They are computed chunk by chunk, or at several sites, and merged in any order. If features have
    no heavy tails, the maps are those of a fit to all rows, up to rounding. A saved file contains
    no row, and nothing about cells with fewer than `min_cell` rows.

    Statistics are made by `of` or `load`.

    Attributes
    ----------
    feature_names : list of str or None
        Names of the features.
    labels : list
        Labels of the domains.
    confounders : dict of str to str
        The confounders, each with its kind: "categorical" or "continuous".
    reference : label or None
        The domain to map to, if it was given.

    See Also
    --------
    ConDoAdapter.fit_statistics : Fit the map between two domains.
    BatchAdapter.fit_statistics : Fit the maps of many batches.

    Examples
    --------
    >>> from condokit import ConDoAdapter, Statistics, datasets
    >>> eeg = datasets.make_eeg(random_state=0)
    >>> new = Statistics.of(eeg.X_query, label="query", confounders={"seizure": eeg.seizure_query})
    >>> old = Statistics.of(
    ...     eeg.X_reference, label="reference", confounders={"seizure": eeg.seizure_reference}
    ... )
    >>> adapter = ConDoAdapter().fit_statistics(new.merge(old))
    >>> adapted = adapter.transform(eeg.X_query)
    >>> bool(abs(adapted - eeg.truth).mean() < 0.1 * abs(eeg.X_query - eeg.truth).mean())
    True
    """

    feature_names: list[str] | None
    n_features: int

    def __init__(self) -> None:
        self.reference: Any = None
        self.confounders: dict[str, str] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        self.labels: list[Any] = []
        self.cells: dict[Cell, int] = {}
        self.sums = CellSums.empty(0)
        self.is_rounded = False  # whether all parts come from files, whose numbers are rounded
        self.by_cell = True  # whether products of features are known for each cell (files: domain)
        self.largest_weight = 1.0  # of a row
        self.weights = np.empty((2, 0))  # sum of squared weights and largest weight, by cell
        self.masked: dict[str, int] = {"cells": 0, "rows": 0}  # small cells left out of a file
        # some rows (features, then continuous confounders), to see which features are alike
        self.seen = np.empty((0, 0))
        self.hashes: list[str] = []  # SHA-256 of the files that these statistics were read from
        # columns that were not taken as features, and why, if no features were named
        self.left: dict[str, str] = {}
        self._roles: dict[str, Any] = {}

    @classmethod
    def of(
        cls,
        X: Any,
        *,
        domain: Any = None,
        label: Any = None,
        confounders: Any = None,
        features: Any = None,
        categorical: Any = None,
        ranges: Mapping[str, tuple[float, float]] | None = None,
        sample_weight: Any = None,
        missing: str = "raise",
        reference: Any = None,
        given: Any = None,
    ) -> "Statistics":
        """Compute the statistics of a table.

        Parameters
        ----------
        X : array or data frame of shape (n_rows, n_columns)
            Rows of one or more domains.
        domain : array-like of shape (n_rows,) or str, default=None
            The label of every row's domain, or the name of the column that holds it.
        label : str, default=None
            One label for all rows, in place of `domain`.
        confounders : list of str, array-like, data frame or dict, default=None
            As in `ConDoAdapter.fit`.
        features : list of str or int, default=None
            As in `ConDoAdapter.fit`. Statistics that are to be merged must have the same features.
        categorical : list of names, default=None
            Numeric confounders whose numbers are codes of categories.
        ranges : dict of name to (low, high), default=None
            The continuous confounders, each with the range of its possible values. All parts must
            declare the same range, because curves are built from functions on this range.
        sample_weight : array-like of shape (n_rows,) or str, default=None
            How many rows each row counts for.
        missing : {"raise", "drop"}, default="raise"
            Whether rows with missing confounders raise an error or are dropped. Missing values of
            features are always allowed: every feature is summed over the rows that have a value.
        reference : label, default=None
            The label of the domain to map to, if it is known already.
        given : ConDoAdapter, BatchAdapter, AffineMap or list of features, default=None
            For a second round: the fit to the statistics of the first round, or the names of the
            features with heavy tails. The values of these are then also counted in narrow bins, so
            that they can be fitted with Student's t.

        Returns
        -------
        Statistics
            The statistics of these rows.
        """
        new = cls()
        new.reference = reference
        new.ranges = _checked_ranges(ranges)
        new._roles = {
            "domain": domain if isinstance(domain, str) else None,
            "label": label,
            "confounders": confounders if are_names(confounders) else None,
            "sample_weight": sample_weight if isinstance(sample_weight, str) else None,
            "categorical": categorical,
            "missing": missing,
            "features": features,
        }
        roles = {"domain": domain, "confounders": confounders, "sample_weight": sample_weight}
        new.update(X, **roles)
        return new.with_values(X, heavy_features(given, new), **roles) if given is not None else new

    def update(
        self, X: Any, *, domain: Any = None, confounders: Any = None, sample_weight: Any = None
    ) -> "Statistics":
        """Add more rows with the same columns; roles given as column names are remembered.

        Parameters
        ----------
        X : array or data frame of shape (n_rows, n_columns)
            More rows. A table without rows adds nothing.
        domain, confounders, sample_weight
            As in `of`, for these rows.

        Returns
        -------
        Statistics
            These statistics themselves.

        Examples
        --------
        >>> from condokit import Statistics
        >>> statistics = Statistics.of([[1.0], [2.0]], label="new")
        >>> statistics.update([[3.0]])
        <Statistics of 1 features, rows {'new': 3}>
        """
        if getattr(X, "shape", (1,))[0] == 0 and self.cells:
            return self
        if self.sums.values:
            raise ValueError(
                "Rows cannot be added after the values of heavy-tailed features were counted. Add "
                "all rows first."
            )
        domains = self._read(X, domain, confounders, sample_weight)
        self._check(domains)
        values = self._confounders(domains)
        cell = self._cells(domains)
        if cell.max(initial=-1) < 0:
            names = listing(domains.tables[0].labels)
            text = "All values of {names} are missing in the rows with complete confounders."
            raise refusal(text, names=names)
        if domains.weights is not None:
            self.largest_weight = max(self.largest_weight, float(domains.weights.max()))
        number = {name: k for k, name in enumerate(self.labels)}
        label = np.array([number.get(name, -1) for name in domains.labels])  # -1: no row is used
        label = label[domains.code]
        for rows, chunk in domains.chunks():
            weights = None if domains.weights is None else domains.weights[rows]
            gaps = None if domains.gaps is None else np.isnan(chunk)
            self.sums.update(chunk, values[rows], cell[rows], label[rows], weights, gaps)
            each = np.ones(len(chunk)) if weights is None else weights
            self.weights[0] += np.bincount(cell[rows] + 1, each**2, 1 + len(self.cells))[1:]
            np.maximum.at(self.weights[1], cell[rows], np.where(cell[rows] < 0, 0.0, each))
            if len(self.seen) < guard.SEEN:
                few = np.flatnonzero(cell[rows] >= 0)[: guard.SEEN]
                self._see(np.hstack([chunk[few], values[rows][few]]))
        return self

    def _see(self, rows: Array) -> None:
        """Keep rows to compare features, as long as fewer than needed are kept."""
        if len(rows):
            self.seen = np.vstack([self.seen, rows][not len(self.seen) :])[: guard.SEEN]

    def _confounders(self, domains: Study) -> Array:
        """Return continuous confounders (n_rows, n_numbers); refuse values outside their range."""
        by_name = {c.name: c.values for c in domains.continuous}
        names = () if self.sums.continuous is None else self.sums.continuous.basis.names
        values = np.array([by_name[name] for name in names], dtype=float)
        values = values.reshape(len(names), len(domains.code)).T
        if self.sums.continuous is not None:
            self.sums.continuous.basis.check(values[domains.kept()])
        return values

    def bins(self, features: Array) -> Bins:
        """Return empty bins for the values of some features, centred on the means of cells."""
        return Bins(self.sums.moments.mean[:, features], self.sums.moments.sd[:, features])

    def fill(self, bins: Bins, features: Array, X: Any, **roles: Any) -> None:
        """Count the values of `features` in bins; the rows X must have been added before."""
        domains = self._read(X, *map(roles.get, _GIVEN))
        cell, part = self._cells(domains), domains.of(features)
        confounders = self._confounders(domains)
        for rows, chunk in part.chunks():
            weights = None if domains.weights is None else domains.weights[rows]
            if self.sums.continuous is not None:  # bins hold residuals from the curves of cells
                used, chunk = np.flatnonzero(cell[rows] >= 0), np.array(chunk)
                at = confounders[rows][used], cell[rows][used]
                for k, j in enumerate(features.tolist()):
                    chunk[used, k] -= self.sums.continuous.curves(*at, j)
            bins.update(chunk, cell[rows], weights)

    def _reweigh(self, features: Array, X: Any, **roles: Any) -> None:
        """Refit the curves of cells by reweighted least squares, which resists heavy tails."""
        assert self.sums.continuous is not None
        domains = self._read(X, *map(roles.get, _GIVEN))
        cell, values = self._cells(domains), self._confounders(domains)
        kept = np.flatnonzero(cell >= 0)
        weights = np.ones(len(cell)) if domains.weights is None else domains.weights
        known = values[kept], cell[kept], weights[kept]
        how = self.label_of_cell, guard.rule(MIN_CELL).least
        for j, x in zip(features.tolist(), domains.of(features).rows(kept).T):
            self.sums.continuous.reweigh(j, x, *known, *how)

    def with_values(self, X: Any, features: Array, **roles: Any) -> "Statistics":
        """Count the values of some features in bins; X must hold all rows that were added."""
        bins = self.bins(features)
        if self.sums.continuous is not None:
            self._reweigh(features, X, **roles)
        self.fill(bins, features, X, **roles)
        self.sums.values = {int(j): bins.values(k) for k, j in enumerate(features)}
        return self

    def _cells(self, domains: Study) -> Array:
        """Return the number of each row's cell; -1 for rows that are excluded."""
        strata, codes, labels = domains.strata(), domains.code, domains.labels
        kept, n_levels = strata.codes >= 0, len(strata.levels)
        both = np.where(kept, codes * n_levels + strata.codes, -1)
        distinct = np.unique(both[kept])
        pairs = [divmod(int(k), n_levels) for k in distinct]
        place = self._places([(labels[a], *strata.levels[b]) for a, b in pairs])
        number = np.full(len(labels) * n_levels + 1, -1)  # the last entry: rows that are left out
        number[distinct] = place
        return number[both]

    def merge(self, other: "Statistics") -> "Statistics":
        """Return the statistics of the rows of both parts.

        Parameters
        ----------
        other : Statistics
            Statistics with the same features and confounders.

        Returns
        -------
        Statistics
            A new object; the two parts are not changed.

        Examples
        --------
        >>> from condokit import Statistics
        >>> one, two = (Statistics.of([[1.0], [2.0]], label=label) for label in ("A", "B"))
        >>> one.merge(two)
        <Statistics of 1 features, rows {'A': 2, 'B': 2}>
        """
        if not self.cells or not other.cells:
            return copy(other if other.cells else self)
        _refuse_other(self, other)
        other = other._as(self)
        if self.hashes and other.hashes:
            reveals.warn_of_repeats(self, other)
        new = self.empty()
        new.reference = self.reference if other.reference is None else other.reference
        for part in (self, other):
            place = np.array(new._places(list(part.cells)))
            labels = np.array([new.labels.index(name) for name in part.labels])
            new.sums.merge(part.sums, place, labels)
            new.masked = {key: n + part.masked[key] for key, n in new.masked.items()}
            new._see(part.seen)
            new.weights[0, place] += part.weights[0]
            new.weights[1, place] = np.maximum(new.weights[1, place], part.weights[1])
        both = {*self.sums.values}.intersection(other.sums.values)
        new.sums.values = {j: new.sums.values[j] for j in both}
        new.hashes = [*self.hashes, *other.hashes]
        new.by_cell = self.by_cell and other.by_cell
        new.is_rounded = self.is_rounded and other.is_rounded
        new.largest_weight = max(self.largest_weight, other.largest_weight)
        return new

    def _as(self, other: "Statistics") -> "Statistics":
        """Return the same statistics with features and confounders in the order of another."""
        has_same_order = [*self.confounders] == [*other.confounders]
        if self.feature_names == other.feature_names and has_same_order:
            return self
        new = copy(self)
        if self.feature_names is not None and other.feature_names is not None:
            own = {name: j for j, name in enumerate(self.feature_names)}
            places = np.array([own[name] for name in other.feature_names])
            new.feature_names = other.feature_names
            new.sums = self.sums.of(places)
            numbers = np.arange(self.n_features, max(self.seen.shape[1], self.n_features))
            new.seen = self.seen[:, np.append(places, numbers)] if len(self.seen) else self.seen
        new.confounders = other.confounders
        mine, wanted = self.categories, other.categories
        turn = [0, *(1 + mine.index(name) for name in wanted)]
        new.cells = {tuple(cell[j] for j in turn): k for cell, k in self.cells.items()}
        return new

    def empty(self) -> "Statistics":
        """Return statistics of no rows, with the same features and confounders."""
        new = copy(self)
        new.labels, new.cells, new.hashes, new.seen = [], {}, [], np.empty((0, 0))
        new.weights = np.empty((2, 0))
        basis = None if self.sums.continuous is None else self.sums.continuous.basis
        new.sums = CellSums.empty(self.n_features, basis)
        new.masked = dict.fromkeys(self.masked, 0)
        return new

    @property
    def categories(self) -> list[str]:
        """The categorical confounders, in the order of the levels in cells."""
        return [name for name, kind in self.confounders.items() if kind == "categorical"]

    @property
    def names(self) -> Array:
        """The names of features for messages: their numbers if they have no names."""
        return np.array(self.feature_names or range(self.n_features), dtype=object)

    @property
    def label_of_cell(self) -> Array:
        """The position of each cell's domain in `labels`: (n_cells,)."""
        number = {label: k for k, label in enumerate(self.labels)}
        return np.array([number[cell[0]] for cell in self.cells], dtype=np.intp)

    @property
    def n_equal(self) -> Array:
        r"""For each cell :math:`\sum w^2 / \max w^2`: the number of rows, if weights are equal.

        A cell in which one row has nearly all the weight counts as hardly more than one row.
        """
        squares, largest = self.weights
        return np.asarray(squares / ones_for_zeros(largest**2))

    @property
    def n_rows(self) -> dict[Any, float]:
        """How many rows each domain has."""
        count = self.sums.moments.count
        total = np.bincount(self.label_of_cell, count, len(self.labels))
        return dict(zip(self.labels, total.tolist()))

    def save(self, path: Place, *, min_cell: int = 5, previous: Any = ()) -> None:
        """Write a readable JSON file that contains no row; `condokit show` describes it.

        The file follows this rule: no linear combination of its numbers, apart from the means and
        spreads of cells, has more than half of its weight on fewer than `min_cell` rows, or more
        than a fifth on one row. So products with continuous confounders are summed over a domain,
        where necessary as if all rows of a group of neighbours had the same confounders, and
        numbers are rounded to about a tenth of their standard error. Warnings name what was not
        written for this reason; cells in which one row is an outlier or all rows are equal; and
        earlier files that differ from the new one by a few rows, because the two files together
        reveal these rows.

        Parameters
        ----------
        path : path or open file
            Where to write. The file is written completely or not at all.
        min_cell : int, default=5
            The fewest rows of a cell (a domain and a level of each category) that is written; 3 or
            more. Smaller cells are not written, nor are features in a cell where fewer values are
            known. With weights, the sum
            of weights must be at least `min_cell` times the largest weight.
        previous : path or list of paths, default=()
            Earlier files of these rows, or of some of them, that others have received. They are
            compared with the new file, and so is a file that is already at `path`.
        """
        file.write(path, self, min_cell, previous)

    @classmethod
    def load(cls, path: Place) -> "Statistics":
        """Read a file that `save` wrote.

        Parameters
        ----------
        path : path or open file
            The file.

        Returns
        -------
        Statistics
            The statistics in it.

        Examples
        --------
        >>> import io
        >>> import numpy as np
        >>> from condokit import Statistics
        >>> X, file = np.random.default_rng(0).normal(size=(50, 2)), io.BytesIO()
        >>> Statistics.of(X, label="site A").save(file)
        >>> _ = file.seek(0)
        >>> Statistics.load(file)
        <Statistics of 2 features, rows {'site A': 50}>
        """
        return file.read(path, cls)

    def __repr__(self) -> str:
        rows = ", ".join(f"{name!r}: {n:g}" for name, n in self.n_rows.items())
        return f"<Statistics of {self.n_features} features, rows {{{rows}}}>"

    def _read(self, X: Any, domain: Any, confounders: Any, sample_weight: Any) -> Study:
        """Read a table with the given roles, or with those of earlier rows."""
        roles = self._roles
        domain = roles["domain"] if domain is None else domain
        confounders = roles["confounders"] if confounders is None else confounders
        weights = roles["sample_weight"] if sample_weight is None else sample_weight
        label = roles["label"] if domain is None else None
        features, categorical = roles["features"], roles["categorical"]
        if self.cells:
            features = self.feature_names or features
            categorical = self.categories
        if (domain is None) == (label is None):
            raise refusal("Give either {@'domain'}, a label per row, or {@'label'}, one for all.")
        given = domain if label is None else [label] * Table(X).n_rows
        how: dict[str, Any] = {"categorical": categorical or None, "missing": roles["missing"]}
        found = read(X, Roles(given, confounders, features, None, weights, **how))
        numbers = [as_number(c) if c.name in self.ranges else c for c in found.confounders]
        return replace(found, confounders=numbers)

    def _check(self, domains: Study) -> None:
        """Store features and confounders of the first rows; refuse later rows with others."""
        kinds = {c.name: c.kind for c in domains.confounders}
        undeclared = [
            n for n, kind in kinds.items() if kind == "continuous" and n not in self.ranges
        ]
        if undeclared:
            raise refusal(
                "The confounder {names} is numeric. If its numbers are codes of categories, {@list "
                "it in `categorical`}; otherwise give its smallest and largest possible values in "
                "{@`ranges`}.",
                names=listing(undeclared),
            )
        names = domains.tables[0].feature_names
        if self.cells:
            if names is None and domains.n_features != self.n_features:
                text = f"X has {domains.n_features} features, but Statistics is expecting "
                raise ValueError(text + f"{self.n_features} features as input.")
            if (names or self.feature_names) != self.feature_names or kinds != self.confounders:
                raise refusal(
                    "These rows have other features or confounders than the earlier rows: {new}, "
                    "not {old}.",
                    new=listing([*(names or []), *kinds]),
                    old=listing([*(self.feature_names or []), *self.confounders]),
                )
            return
        self.feature_names, self.n_features = names, domains.n_features
        self.confounders, self.left = kinds, domains.left
        ranges = {c.name: self.ranges[c.name] for c in domains.continuous}
        basis = RangeBasis.of(dict(sorted(ranges.items()))) if ranges else None
        self.sums = CellSums.empty(domains.n_features, basis)

    def _places(self, cells: Sequence[Cell]) -> list[int]:
        """Return the positions of cells among all; new cells are added."""
        for cell in cells:
            self.cells.setdefault(cell, len(self.cells))
        self.labels = list(dict.fromkeys([*self.labels, *(cell[0] for cell in cells)]))
        self.sums.resize(len(self.cells))
        more = np.zeros((2, len(self.cells) - self.weights.shape[1]))
        self.weights = np.hstack([self.weights, more])
        return [self.cells[cell] for cell in cells]


def heavy_features(given: Any, stats: Statistics) -> Array:
    """Return the positions of features with heavy tails in the fit of the first round.

    `given` is that fit, its map, or a list of names.
    """
    names = getattr(given, "map_", given)
    if hasattr(names, "provenance") or hasattr(given, "provenance_"):
        facts = getattr(given, "provenance_", None) or getattr(names, "provenance", None)
        names = (facts or {}).get("fitted_as_normal", [])
    places = {name: j for j, name in enumerate(stats.feature_names or [])}
    places |= {f"column {j}": j for j in range(stats.n_features)}
    unknown = [name for name in names if name not in places]
    if unknown:
        raise refusal("{@'given'} names {names}, which is not a feature.", names=listing(unknown))
    return np.array(sorted(places[name] for name in names), dtype=np.intp)


def _checked_ranges(ranges: Any) -> dict[str, tuple[float, float]]:
    """Return the ranges of continuous confounders as pairs of numbers, or raise an error."""
    found = {}
    for name, given in dict(ranges or {}).items():
        ends = tuple(given) if np.iterable(given) else ()
        if len(ends) != 2 or not all(map(is_number, ends)) or not ends[0] < ends[1]:
            text = "{@'ranges'} of {name!r} must be a pair (low, high) of numbers. Got {got!r}."
            raise refusal(text, name=name, got=given)
        if max(map(abs, ends)) > LARGEST or ends[1] - ends[0] < SMALLEST:
            raise refusal(
                "{@'ranges'} of {name!r} must lie within {most:g} of 0 and be at least {least:g} "
                "wide. Got {got!r}. Rescale the confounder.",
                name=name,
                most=LARGEST,
                least=SMALLEST,
                got=given,
            )
        found[str(name)] = float(ends[0]), float(ends[1])
    return found


def _refuse_other(one: Statistics, other: Statistics) -> None:
    """Refuse to merge parts with other features or confounders, or the same file twice."""
    if set(one.hashes).intersection(other.hashes):
        raise ValueError("The same statistics are given twice: two files have the same content.")
    references = [part.reference for part in (one, other) if part.reference is not None]
    if len(set(references)) > 1:
        raise ValueError(
            "The parts name different references: {!r} and {!r}. They must agree.".format(
                *references
            )
        )
    names = [sorted(part.feature_names or []) for part in (one, other)]
    if names[0] != names[1] or one.n_features != other.n_features:
        only = [sorted({*names[k]}.difference(names[1 - k])) for k in (0, 1)]
        how = f"{one.n_features} and {other.n_features} features"
        if any(only):
            how = "; ".join(f"{listing(some)} in one part only" for some in only if some)
        text = "The parts have different features: {how}. Choose the same ones for all parts with "
        raise refusal(text + "{@`features`}.", how=how)
    for name in [*one.confounders, *other.confounders]:
        kinds = one.confounders.get(name), other.confounders.get(name)
        ranges = one.ranges.get(name), other.ranges.get(name)
        if kinds[0] != kinds[1] or (kinds[0] == "continuous" and ranges[0] != ranges[1]):
            words = [
                f"{kind or 'absent'}" + (f" from {span[0]:g} to {span[1]:g}" if span else "")
                for kind, span in zip(kinds, ranges)
            ]
            raise ValueError(
                f"Confounder {name!r} is {words[0]} in one part and {words[1]} in another. All "
                "parts must have the same confounders with the same ranges."
            )
