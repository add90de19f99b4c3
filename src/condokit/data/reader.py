"""From tables of any kind, and the roles of their columns, to a `Study`.

`read_two` and `read` take one table, of two domains or of any number; `read_pair` takes two tables.
If a table is not in memory, one pass sums all rows and keeps a sample of them. The same functions
decide on roles, kinds of confounders, features, missing values and weights in both cases.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np

from condokit.checks import Array, did_you_mean, listing, needs_rows, refusal, require_domain
from condokit.data.arrays import sides
from condokit.data.blocks import Blocks, block_rows, blocks_of, reduce_blocks
from condokit.data.columns import as_array, factorize, in_order, number_levels
from condokit.data.confounders import (
    declared_categorical,
    encode,
    fill_gaps,
    has_two_values,
    may_be_codes,
    mean_of_repeats,
    refuse_dates,
    refuse_few_known,
    refuse_gaps,
)
from condokit.data.grouped import GroupedMoments
from condokit.data.missing import refuse_valueless, with_gaps
from condokit.data.noise import calibrated
from condokit.data.roles import (
    Chosen,
    RoleColumns,
    Roles,
    check_total_weight,
    choose_features,
    name_domains,
    row_weights,
    subjects,
    unused_columns,
)
from condokit.data.study import Confounder, Study, in_several
from condokit.data.sums import CellSums, Sums
from condokit.data.tables import Table
from condokit.data.tally import Pass, Reading, Sample, Tally, domain_of, marks_of
from condokit.io.formats import arrow

_OF_SAMPLE = ("tables", "code", "weights", "gaps", "sums")  # fields that differ in a sample
_COLLECTED_VALUES = 1 << 24  # the largest lazy table that is read into memory if rows are needed
_SAMPLED = 20_000  # rows of a domain in the sample
_SAMPLED_VALUES = 1 << 22  # values of a domain in the sample


def read_two(X: Any, roles: Roles, reference: Any) -> Study:
    """Read one table of two domains, in memory or not."""
    require_domain(roles.label)
    return _read(X, roles, reference, True)


def read(X: Any, roles: Roles) -> Study:
    """Read one table of any number of domains, in memory or not, whose labels are a role."""
    if roles.label is None:
        raise ValueError(
            f"'{roles.argument}' is required: an array with the {roles.argument} of each row, or "
            "the name of a column."
        )
    study = _read(X, roles, None, False)
    return study if study.samples is None else study.with_bridges(study.samples)


def _read(X: Any, roles: Roles, reference: Any, two: bool) -> Study:
    """Read a table of two domains, or of any number, wherever its rows are."""
    blocks = blocks_of(X)
    if blocks is None:
        return _read_table(X, roles, reference, two)
    return _read_blocks(blocks, roles, reference, two)


def _read_table(X: Any, roles: Roles, reference: Any, two: bool) -> Study:
    """Read a table in memory."""
    found = roles.read(Table(X))
    groups, weights = subjects([found]), row_weights([found])
    found.table.refuse_empty()
    labels, code = factorize([found.label], roles.argument)
    old = int(np.bincount(code).argmax())
    if two:
        both = name_domains(labels, len(code), reference)
        code, labels, old = (code == labels.index(both[1])).astype(np.intp), [*both], 1
    chosen = choose_features([found], roles.features, code)
    bridge = None if found.bridge is None else _bridges(found.bridge, code)
    own = {"code": code, "labels": tuple(labels), "groups": groups, "weights": weights}
    return _study([found], chosen, roles, two, **own, reference=old, samples=bridge)


def read_pair(query: Any, reference: Any, roles: Sequence[Roles], any_features: bool) -> Study:
    """Read two tables in memory, perhaps of different features, each with its own roles."""
    tables = Table(query, "X_query"), Table(reference, "X_reference")
    if (tables[0].columns is None) != (tables[1].columns is None):
        raise ValueError(
            "X_query and X_reference must both have column names or both have none; "
            f"got {type(query).__name__} and {type(reference).__name__}."
        )
    found = [own.read(table) for own, table in zip(roles, tables)]
    groups = subjects(found)
    for table in tables:
        table.refuse_empty()
    code = np.repeat([0, 1], [table.n_rows for table in tables])
    if roles[0].features is None and _may_differ(found, any_features):
        chosen = Chosen([one.table.select(None, one.taken) for one in found])
    else:
        chosen = choose_features(found, roles[0].features, code)
    names, by_name = [name for name, _ in found[0].confounders], dict(found[1].confounders)
    if sorted(names) != sorted(by_name):
        raise ValueError(
            f"Z_query has the columns {listing(names)} but Z_reference has "
            f"{listing(by_name)}; they must be the same confounders."
        )
    found[1] = replace(found[1], confounders=[(name, by_name[name]) for name in names])
    own = {"code": code, "groups": groups, "weights": row_weights(found)}
    return _study(found, chosen, roles[0], True, **own)


def _may_differ(found: Sequence[RoleColumns], any_features: bool) -> bool:
    """Return whether two tables have different features; refuse those that differ by mistake."""
    query, reference = (one.table for one in found)
    if query.columns is None or reference.columns is None:
        if query.n_features != reference.n_features and not any_features:
            turned = query.n_rows == reference.n_rows < min(query.n_features, reference.n_features)
            hint = " The tables look transposed: samples are rows." if turned else ""
            text = f"X_query has {query.n_features} features and X_reference has "
            text += f"{reference.n_features}; they must be the same features, or else use "
            text += "{@map='affine'} with {@divergence='auto'}, 'mmd' or 'energy'."
            raise refusal(text + hint)
        return True
    left, right = (
        [c for c in one.table.labels if one.table.is_annotated or c not in one.taken]
        for one in found
    )
    # if some names are shared, others that differ are typing errors, not another assay
    if any_features and set(left).isdisjoint(right):
        return True
    common = set(left).intersection(right)
    only = {
        name: [column for column in columns if column not in common]
        for name, columns in (("X_query", left), ("X_reference", right))
    }
    if any(only.values()):
        parts = [f"only {name} has {listing(names)}" for name, names in only.items() if names]
        hints = "".join(did_you_mean(c, only["X_reference"]) for c in only["X_query"][:3])
        raise ValueError(
            f"X_query and X_reference must have the same columns; {'; '.join(parts)}.{hints}"
        )
    return False


def _bridges(given: Any, site: Array) -> Array:
    """Return the number of each row's sample if it is in several domains, else -1."""
    names, sample = factorize([given], "bridge", allow_missing=True)
    sample[sample == (names.index("") if "" in names else -1)] = -1
    return in_several(sample, site, sample >= 0)


def _study(
    found: Sequence[RoleColumns], chosen: Chosen, roles: Roles, two: bool, **known: Any
) -> Study:
    """Return the study of all tables; `known` are fields of it.

    Confounders are encoded for all tables together, and rows that cannot be used are left out. Rows
    of bridges may lack confounders, because such samples are compared with themselves.
    """
    tables = tuple(chosen.tables)
    known["unused"] = unused_columns(found, tables)
    study = Study(tables, confounders=[], left=chosen.left, **known)
    code, labels, bridge = study.code, study.labels, study.samples
    called = ("query", "reference") if two else labels
    columns, reliability = mean_of_repeats([one.confounders for one in found], roles.reliability)
    declared = declared_categorical(roles.categorical, list(columns))
    confounders, keep = [], np.ones(len(code), dtype=bool)
    for name, parts in columns.items():
        confounder = encode(name, parts, name in declared)
        gaps = np.isnan(confounder.values) if confounder.is_number else confounder.codes < 0  # type: ignore[arg-type]
        asked = gaps if bridge is None else gaps & (bridge < 0)
        if gaps.any():
            refuse_gaps(name, int(asked.sum()), len(gaps), roles.missing)
            if roles.missing == "impute":
                refuse_few_known(name, asked, code, called, two)
            confounder = fill_gaps(confounder, gaps, code, labels)
            if roles.missing == "drop":
                keep &= ~asked
        confounders.append(replace(confounder, n_missing=int(asked.sum())))
    weights = study.weights
    for k, label in enumerate(called):
        mine = code == k
        if not mine.any():  # a site may have one of them only
            continue
        if not keep[mine].any():
            text = "No {side} row remains after dropping {n:rows} rows with missing confounders "
            names = listing(c.name for c in confounders if c.n_missing)
            raise refusal(text + "({names}).", side=label, n=mine.sum(), names=names)
        if weights is not None:
            check_total_weight(float(weights[mine].sum()), str(label))
    if weights is not None:
        keep &= weights > 0
    study = replace(study, confounders=confounders, keep=None if keep.all() else keep)
    study = with_gaps(study, by_side=two)
    return calibrated(study, reliability) if reliability else study


def _read_blocks(blocks: Blocks, roles: Roles, reference: Any, two: bool) -> Study:
    """Read all rows in one pass, or in two.

    Numbers with two values in the first rows count as categories. If later rows have more values,
    they are continuous, and all rows are read again.
    """
    by_row = {"'groups'": roles.groups, "'reliability'": roles.reliability or None}
    by_row |= {"'bridge'": roles.bridge}
    by_row["missing='impute'"] = None if roles.missing != "impute" else roles.missing
    for argument, given in by_row.items():
        if given is not None:
            return _read_table(_collected(blocks, argument), roles, reference, two)
    head = Table(blocks.first())
    found, values = _head_roles(blocks, head, roles)
    _, site = number_levels(found.label, "domain")
    chosen = choose_features([found], roles.features, site)
    [table] = chosen.tables
    columns = dict(found.confounders)
    kinds = {name: refuse_dates(name, [column]) for name, column in columns.items()}
    declared = declared_categorical(roles.categorical, list(columns))
    numbers = [n for n, kind in kinds.items() if kind.endswith("number") and n not in declared]
    doubtful = {n for n in numbers if has_two_values(as_array(columns[n], np.float64))}
    X = table.read(slice(0, table.n_rows))
    while True:
        continuous = [n for n in numbers if n not in doubtful]
        crossed: dict[str | None, Any] = {None: values[None]}
        crossed |= {n: values[n] for n in columns if n not in continuous}
        reading = Reading(
            [*table.labels] if blocks.columns is not None else [*table.positions],
            crossed,
            {name: values[name] for name in continuous},
            values.get("sample_weight"),
            *_how_sampled(X),
            # where blocks begin
            None if blocks.columns is not None else np.cumsum([0, *blocks.native.chunks[0]]),
        )
        needed = dict.fromkeys([*table.labels, *found.taken])
        some = blocks.select(list(needed))
        tally = reduce_blocks(some, reading)
        assert tally is not None  # there is a head
        levels = _levels(tally, list(crossed))
        wrong = {name for name in doubtful if len(levels.get(name, ())) > 2}
        if not wrong:
            break
        doubtful -= wrong
    _refuse_missing(tally, roles.missing)
    labels, n_rows = levels[None], dict.fromkeys(levels[None], 0.0)
    for key, k in tally.cells.items():
        n_rows[key[0]] += float(tally.moments.count[k])
    old = max(labels, key=lambda label: n_rows[label])
    if two:
        labels = [*name_domains(labels, tally.n_rows, reference)]
        old = labels[1]
    levels[None] = labels
    study = _domains(some, tally, reading, table, levels, kinds, two)
    return replace(study, reference=labels.index(old), left=chosen.left)


def _collected(blocks: Blocks, argument: str) -> Any:
    """Read a table into memory; refuse one that is too large."""
    most, n_rows, parts = _COLLECTED_VALUES // max(blocks.width, 1), 0, list[Any]()
    for block in blocks:
        n_rows += len(block)
        if n_rows > most:
            text = "{@" + argument + "} needs all rows in memory, but {@`X`} is too large: it has "
            text += "more than {most} rows of {width} columns. Select the columns that are needed, "
            raise needs_rows(text + "or some of the rows.", most=most, width=blocks.width)
        parts.append(block if blocks.columns is None else nw.from_native(block).to_arrow())
    if not parts:
        raise refusal("{@'X'} has no rows.")
    if blocks.columns is None:
        return np.concatenate(parts)
    return arrow().concat_tables(parts, promote_options="permissive")


def _head_roles(blocks: Blocks, head: Table, roles: Roles) -> tuple[RoleColumns, dict[Any, Any]]:
    """Return the roles of the first rows, and the column name or all values of each role.

    In a table with names, roles must be names; with an array of Dask, they must be values.
    """
    if blocks.columns is None:
        whole = roles.read(Table(np.broadcast_to(0.0, (blocks.n_rows or 0, blocks.width))))
        values: dict[Any, Any] = {None: whole.label, **dict(whole.confounders)}
        if whole.weights is not None:
            values["sample_weight"] = whole.weights
        n = head.n_rows
        first = [(name, column[:n]) for name, column in whole.confounders]
        return replace(whole, table=head, label=whole.label[:n], confounders=first), values
    weight = roles.sample_weight
    for argument, given in (
        ("domain", roles.label),
        ("confounders", [] if roles.confounders is None else roles.confounders),
        ("sample_weight", [] if weight is None else weight),
    ):
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
            text = "{@'" + argument + "'} must name columns of {@`X`}, which is not in memory. Got "
            raise refusal(text + "{got}.", got=type(given).__name__)
        head.refuse_unknown(argument, list(names))
    found = roles.read(head)
    values = {None: str(roles.label)} | {name: name for name, _ in found.confounders}
    return found, values if weight is None else values | {"sample_weight": str(weight)}


def in_blocks(domains: Study) -> Study:
    """Return a study in memory as one that is not: sums of all rows, and a sample of rows.

    Later steps then need memory for one block per thread only. The study itself is returned if the
    sample would contain all rows.
    """
    width, n = domains.n_features, len(domains.is_query)
    step = block_rows(width)
    head = domains.rows(np.arange(min(n, step)))
    marks, most = _how_sampled(head)
    if np.bincount(domains.is_query, minlength=2).max() <= most:
        return domains
    weights = domains.weights
    if domains.keep is not None:
        weights = domains.keep * (1.0 if weights is None else weights)
    crossed: dict[str | None, Any] = {None: domains.code}
    crossed |= {c.name: c.codes for c in domains.confounders if not c.is_number}
    numbers = {c.name: c.values for c in domains.continuous}
    starts = np.append(np.arange(0, n, step), n)
    reading = Reading([*range(width)], crossed, numbers, weights, marks, most, starts)
    blocks = Blocks(domains, None, "memory", _parts, None, width, n)
    tally = reduce_blocks(blocks, reading)
    assert tally is not None  # there are rows
    names = domains.tables[0].feature_names
    table = Table.named(head[:1], names)
    kinds = {c.name: "whole number" if c.may_be_codes else c.kind for c in domains.confounders}
    levels = _levels(tally, list(crossed))
    found = _domains(blocks, tally, reading, table, levels, kinds, True)
    known = {c.name: c for c in domains.confounders}
    confounders = [
        replace(known[c.name], codes=c.codes, values=c.values) for c in found.confounders
    ]
    return replace(domains, **{n: getattr(found, n) for n in _OF_SAMPLE}, confounders=confounders)


def _parts(domains: Study, rows: int) -> Iterator[Array]:
    """Yield the rows of domains in memory, so many at a time."""
    for start in range(0, len(domains.is_query), rows):
        yield domains.rows(np.arange(start, min(start + rows, len(domains.is_query))))


def _how_sampled(X: Array) -> tuple[Array, int]:
    """Return the features from which rows are hashed, and how many rows of a domain to sample."""
    return marks_of(X), max(1, min(_SAMPLED, _SAMPLED_VALUES // X.shape[1]))


def _levels(tally: Tally, names: list[str | None]) -> dict[str | None, list[Any]]:
    """Return the levels of the domain and of categorical confounders, sorted."""
    columns = zip(*tally.cells) if tally.cells else [()] * len(names)
    return {name: in_order(set(column)) for name, column in zip(names, columns)}


def _refuse_missing(tally: Tally, missing: str) -> None:
    """Refuse missing labels of domains, and missing confounders unless they are to be dropped."""
    for name, n in tally.missing.items():
        if name is not None:
            refuse_gaps(name, n, tally.n_rows, missing, hint=False)
        elif n:
            text = f"{{@'domain'}} has {{n:rows}} missing values (of {tally.n_rows}). Drop these "
            raise refusal(text + "rows, or give them a separate category.", n=n)


def _domains(
    blocks: Blocks,
    tally: Tally,
    reading: Reading,
    table: Table,
    levels: dict[str | None, list[Any]],
    kinds: dict[str, str],
    two: bool,
) -> Study:
    """Return a study of the sampled rows, weighted by how many they stand for, and all sums.

    With `two`, there are two domains, query and reference in that order, which must have rows.
    """
    keys, side = list(tally.cells), domain_of(tally.cells)
    sample = Sample.joined(tally.samples, side, reading.most)[0]
    number = {label: k for k, label in enumerate(levels[None])}
    code = np.array([number[key[0]] for key in keys], dtype=np.intp)
    for name, mine in sides(code == 0) if two else ():
        total = tally.moments.count[mine].sum()
        if reading.weight is not None:
            check_total_weight(float(total), name)
        if not total:
            text = "No {side} row remains after dropping rows with missing confounders."
            raise refusal(text, side=name)
    confounders = []
    for name in kinds:
        n_missing = tally.missing.get(name, 0)
        if name in reading.categorical:
            number = {level: k for k, level in enumerate(levels[name])}
            place = list(reading.categorical).index(name)
            codes = np.array([number[key[place]] for key in keys], dtype=np.int32)[sample.cell]
            own = Confounder(name, False, levels[name], codes, n_missing=n_missing)
        else:
            values = sample.Z[:, list(reading.continuous).index(name)]
            few = may_be_codes(kinds[name], values)
            own = Confounder(name, True, values=values, n_missing=n_missing, may_be_codes=few)
        confounders.append(own)
    counts, sums = sample.counts, None
    if not sample.is_whole:
        sums = _sums(blocks, reading, tally, sample, side)
        counts = sums.weights
    return Study(
        (Table.named(sample.X, table.feature_names),),
        code[sample.cell],
        confounders,
        labels=tuple(levels[None]),
        weights=None if (counts == 1).all() else counts,
        gaps=_gaps(tally, code, table, two),
        sums=sums,
    )


def _sums(blocks: Blocks, reading: Reading, tally: Tally, sample: Sample, side: Array) -> Sums:
    """Return the sums of all rows; products of features and ties come from the sample."""
    moments = tally.moments
    gaps = np.isnan(sample.X) if moments.known is not None else None
    of_sample = GroupedMoments(len(side), sample.X.shape[1], products=True)
    of_sample.update(sample.X, sample.cell, None, gaps)
    moments.products = of_sample.products

    def again(make: Callable[[], Any], features: Array, has_confounders: bool = True) -> Any:
        """Read all rows once more."""
        known = tally.cells, make, features, has_confounders
        return reduce_blocks(blocks, Pass(reading, *known))

    cells = CellSums(moments)
    found = Sums(cells, side, sample.cell, again=again, are_rows=True, counts=sample.counts)
    cells.ties.update(sample.X, side[sample.cell], found.weights)
    return found


def _gaps(tally: Tally, code: Array, table: Table, refuses: bool) -> tuple[Array, ...] | None:
    """Return the numbers of missing values by domain; refuse empty features if asked."""
    moments, found = tally.moments, list[Array]()
    if moments.known is None:
        return None
    for k in range(int(code.max()) + 1):
        mine, name = code == k, ("query", "reference")[min(k, 1)]
        known, count = moments.known[mine].sum(axis=0), moments.count[mine].sum()
        if refuses:
            refuse_valueless(table.names_of(known == 0), name, int(count))
        found.append((count - known).round().astype(np.intp))
    return tuple(found)
