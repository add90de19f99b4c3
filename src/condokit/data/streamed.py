"""Domains from rows that are not in memory: the sums of all rows, and a sample of them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from condokit.checks import (
    LARGEST,
    Array,
    check_total,
    check_word,
    listing,
    refusal,
    require_domain,
)
from condokit.data.arrays import sides
from condokit.data.bins import Bins, Values
from condokit.data.blocks import Blocks, blocks_of, reduce_blocks
from condokit.data.columns import as_array, in_order, kind_of, number_levels
from condokit.data.domains import Confounder, Domains
from condokit.data.grouped import GroupedMoments
from condokit.data.measurements import CODES, looks_like, measurements
from condokit.data.pushdown import computed
from condokit.data.roles import (
    confounder_columns,
    declared_categorical,
    from_table,
    name_domains,
    one_column,
)
from condokit.data.sums import Sums, Ties
from condokit.data.tables import Table
from condokit.data.tally import Pass, Reading, Sample, Tally, domain_of, marks_of

_SAMPLED = 20_000  # rows of a domain
_SAMPLED_VALUES = 1 << 22  # of a domain


def read_table(X: Any, domain: Any, *roles: Any) -> Domains:
    """Read one table whose rows `domain` labels, in memory or not; see `from_table`."""
    blocks = blocks_of(X)
    return from_table(X, domain, *roles) if blocks is None else _read(blocks, domain, *roles)


def _read(
    blocks: Blocks,
    domain: Any,
    confounders: Any,
    features: Any,
    groups: Any,
    sample_weight: Any,
    reference: Any,
    categorical: Any,
    missing: str,
    reliability: Any = None,
) -> Domains:
    """Read all rows in one pass, or in two if a confounder is not what it seemed."""
    require_domain(domain)
    check_word("'missing'", missing, ("raise", "drop", "impute"))
    unknown = {"'groups'": groups, "'reliability'": reliability}
    unknown["missing='impute'"] = None if missing != "impute" else missing
    for argument, given in unknown.items():
        if given is not None:
            text = "{@" + argument + "} needs all rows in memory. Collect {@`X`} first, or take a "
            raise refusal(text + "part of its rows.")
    head = Table(blocks.first())
    domain, named, weight = _roles(blocks, head, domain, confounders, sample_weight)
    reserved = [given for given in (domain, *named.values(), weight) if type(given) is str]
    table, left = _features(head, features, reserved, domain)
    kinds = {name: _kind(name, _values(head, given)) for name, given in named.items()}
    declared = declared_categorical(categorical, list(named))
    doubtful = {n for n, kind in kinds.items() if kind == "two numbers"} - declared
    continuous = [n for n in named if kinds[n].endswith("number") and n not in declared]
    X = table.read(slice(0, table.n_rows))
    while True:
        crossed: dict[str | None, Any] = {None: domain}
        crossed |= {n: given for n, given in named.items() if n not in continuous}
        reading = Reading(
            [*table.labels] if blocks.columns is not None else [*table.positions],
            crossed,
            {name: named[name] for name in continuous},
            weight,
            *_how_sampled(X),
            _starts(blocks),
        )
        needed = dict.fromkeys([*table.labels, *reserved])
        some = blocks.select(list(needed))
        tally = computed(some, reading, _middle(X)) or reduce_blocks(some, reading)
        assert tally is not None  # there is a head
        levels = _levels(tally, list(crossed))
        wrong = {name for name in doubtful if len(levels.get(name, ())) > 2}
        if not wrong:
            break
        continuous, doubtful = [n for n in named if n in wrong or n in continuous], set()
    _refuse_gaps(tally, missing)
    labels = name_domains(levels[None], tally.n_rows, reference)
    return _domains(some, tally, reading, table, levels, labels, kinds, left)


def _roles(
    blocks: Blocks, head: Table, domain: Any, confounders: Any, sample_weight: Any
) -> tuple[Any, dict[str, Any], Any]:
    """Return the domain, the confounders and the weights: names of columns, or all values."""
    if blocks.columns is None:  # an array beside which values are given
        shape = Table(np.broadcast_to(0.0, (blocks.n_rows or 0, blocks.width)))
        if sample_weight is not None:
            sample_weight = one_column(shape, "sample_weight", sample_weight, [])
        columns = confounder_columns(shape, confounders, [], "confounders", {})
        return one_column(shape, "domain", domain, []), dict(columns), sample_weight
    names = [] if confounders is None else confounders
    names = [names] if type(names) is str else names
    given = {"domain": [domain], "confounders": names}
    given |= {} if sample_weight is None else {"sample_weight": [sample_weight]}
    for argument, values in given.items():
        if type(values) not in (list, tuple) or {type(name) for name in values} - {str}:
            text = "{@'" + argument + "'} must name columns of {@`X`}, which is not in memory. Got "
            raise refusal(text + "{got}.", got=type(values).__name__)
        head.refuse_unknown(argument, list(values))
    return domain, {name: name for name in names}, sample_weight


def _values(head: Table, given: Any) -> Any:
    """Return the first values of a role."""
    return head.column("confounders", given) if type(given) is str else given[: head.n_rows]


def _features(
    head: Table, features: Any, reserved: list[str], domain: Any
) -> tuple[Table, dict[str, str]]:
    """Select the features, by the first rows where none are named; and say why others are none."""
    left: dict[str, str] = {}
    if features is None and head.columns is not None:
        free = [column for column in head.columns if column not in reserved]
        is_first = number_levels(_values(head, domain), "domain")[1] == 0
        taken, left = measurements([head], free, is_first)
        features = taken if left else None
    return head.select(features, reserved), left


def _how_sampled(X: Array) -> tuple[Array, int, bool]:
    """Return features that tell rows apart, how many rows are sampled, and if the first do so."""
    marks, is_telling = marks_of(X)
    return marks, max(1, min(_SAMPLED, _SAMPLED_VALUES // X.shape[1])), is_telling


def _middle(X: Array) -> Array:
    """Return about the means of features, from the first rows."""
    known = np.abs(X) <= LARGEST
    return np.where(known, X, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)


def _kind(name: str, column: Any) -> str:
    """Return what a confounder holds by its first rows: a number, "two numbers" or a category."""
    kind = kind_of(column)
    if kind == "datetime":
        raise ValueError(
            f"Confounder {name!r} holds dates or times. Convert it to a number, for example of "
            "days, or to categories."
        )
    if kind.endswith("number"):
        values = as_array(column, np.float64)
        known = values[~np.isnan(values)]
        if ((known == known.min(initial=np.inf)) | (known == known.max(initial=-np.inf))).all():
            return "two numbers"
    return kind


def _starts(blocks: Blocks) -> Array | None:
    """Return where the blocks of an array begin, and where the last one ends."""
    return None if blocks.columns is not None else np.cumsum([0, *blocks.native.chunks[0]])


def _levels(tally: Tally, names: list[str | None]) -> dict[str | None, list[Any]]:
    """Return the levels of the domain and of categorical confounders, sorted."""
    columns = zip(*tally.cells) if tally.cells else [()] * len(names)
    return {name: in_order(set(column)) for name, column in zip(names, columns)}


def _refuse_gaps(tally: Tally, missing: str) -> None:
    """Refuse missing labels of domains, and missing confounders unless they are to be dropped."""
    for name, n in tally.missing.items():
        if not n or (missing == "drop" and name is not None):
            continue
        text = f"has {{n:rows}} missing values (of {tally.n_rows}). "
        if name is None:
            text = f"{{@'domain'}} {text}Drop these rows, or give them a category of their own."
        else:
            text = f"Confounder {{name!r}} {text}Use {{@missing='drop'}} to leave these rows out."
        raise refusal(text, name=name, n=n)


def _domains(
    blocks: Blocks,
    tally: Tally,
    reading: Reading,
    table: Table,
    levels: dict[str | None, list[Any]],
    labels: tuple[Any, Any],
    kinds: dict[str, str],
    left: dict[str, str],
) -> Domains:
    """Return the sampled rows, weighted by how many they stand for, with the sums of all rows."""
    keys, side = list(tally.cells), domain_of(tally.cells)
    sample, _ = Sample.joined(tally.samples).cut(side, reading.most)
    is_query_cell = np.array([key[0] != labels[1] for key in keys], dtype=bool)
    for name, mine in sides(is_query_cell):
        total = tally.moments.count[mine].sum()
        if reading.weight is not None:
            check_total(name, total)
        if not total:
            text = "No {side} row is left after dropping rows with missing confounders."
            raise refusal(text, side=name)
    confounders = []
    for name in kinds:
        if name in reading.categorical:
            number = {level: k for k, level in enumerate(levels[name])}
            place = list(reading.categorical).index(name)
            codes = np.array([number[key[place]] for key in keys], dtype=np.int32)
            confounders.append(Confounder(name, levels[name], codes[sample.cell]))
        else:
            values = sample.Z[:, list(reading.continuous).index(name)]
            few = kinds[name] == "whole number" and looks_like(values, values == 0) == CODES
            none = np.empty(0, dtype=np.int32)
            confounders.append(Confounder(name, [], none, values, few))
    counts, sums = sample.counts, None
    if not sample.is_whole:
        sums = _sums(blocks, reading, tally, sample, side)
        counts = sums.weights
    return Domains(
        (Table.named(sample.X, table.feature_names),),
        is_query_cell[sample.cell],
        confounders,
        labels=labels,
        weights=None if (counts == 1).all() else counts,
        gaps=_gaps(tally, is_query_cell, table),
        missing={name: n for name, n in tally.missing.items() if n and name is not None},
        left=left,
        sums=sums,
    )


def _sums(blocks: Blocks, reading: Reading, tally: Tally, sample: Sample, side: Array) -> Sums:
    """Return the sums of all rows; how features go together, and equal values, tells the sample."""
    moments, ties = tally.moments, Ties()
    gaps = np.isnan(sample.X) if moments.known is not None else None
    own = GroupedMoments(len(side), sample.X.shape[1], products=True)
    own.update(sample.X, sample.cell, None, gaps)
    moments.products = own.products

    def again(make: Callable[[], Any], features: Array, has_confounders: bool = True) -> Any:
        """Read all rows once more."""
        known = tally.cells, make, features, has_confounders
        return reduce_blocks(blocks, Pass(reading, *known))

    def values(features: Array) -> dict[int, Values]:
        """Count the values of features with heavy tails in bins."""
        empty = partial(Bins, moments.mean[:, features], moments.sd[:, features])
        bins = again(empty, features, has_confounders=False)
        return {int(j): bins.values(k) for k, j in enumerate(features)}

    rows: dict[str, Any] = {"are_rows": True, "counts": sample.counts}
    found = Sums(moments, side, ties, sample.cell, values=values, again=again, **rows)
    ties.update(sample.X, side[sample.cell], found.weights)
    return found


def _gaps(tally: Tally, is_query: Array, table: Table) -> tuple[Array, Array] | None:
    """Return how many values are missing in either domain; refuse features without any."""
    moments, found = tally.moments, list[Array]()
    if moments.known is None:
        return None
    for name, mine in sides(is_query):
        known, count = moments.known[mine].sum(axis=0), moments.count[mine].sum()
        if not known.all():
            text = "No value of {names} is known in the {n:rows} {side} rows. Leave features "
            text += "without values out with {@`features`}."
            names = listing(table.names_of(known == 0))
            raise refusal(text, names=names, n=int(count), side=name)
        found.append((count - known).round().astype(np.intp))
    return found[0], found[1]
