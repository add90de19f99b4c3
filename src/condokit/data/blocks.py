"""Tables that are not in memory, in blocks of rows: lazy frames, Arrow, Dask, Spark."""

import os
import pickle
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

import narwhals.stable.v2 as nw
import numpy as np

from condokit.checks import refusal
from condokit.data.tables import as_narwhals, refuse_duplicates
from condokit.io.formats import arrow, need

S = TypeVar("S")
_VALUES = 1 << 22  # of a block: 32 MB of float64
_WORKERS = min(4, os.cpu_count() or 1)  # threads, which have two blocks each in flight
_AT_ONCE = 4  # blocks that are read from files at a time
_INDEXED = ("Parquet SCAN", "IPC SCAN", "DF [")  # plans of polars whose rows are found by number
_FAN = 8  # results that Dask merges at a time
_MOST_BATCHES = 1 << 16  # of a partition of Spark


@dataclass(frozen=True)
class Blocks:
    """A table that is read from top to bottom as often as needed, a block of rows at a time."""

    native: Any
    schema: dict[str, Any] | None  # types of columns as narwhals names them; None of an array
    engine: str
    # the native table with some columns, and so many rows at most in a block -> eager tables
    open: Callable[[Any, int], Iterator[Any]]
    lazy: Any = None  # the table as a narwhals LazyFrame, if it is one
    width: int = 0
    n_rows: int | None = None  # None if unknown

    @property
    def columns(self) -> list[str] | None:
        """Names of the columns, None of an array."""
        return None if self.schema is None else list(self.schema)

    def select(self, names: Sequence[str]) -> "Blocks":
        """Return some of the columns: others are not read."""
        if self.schema is None or list(names) == self.columns:
            return self
        schema = {name: self.schema[name] for name in names}
        lazy = None if self.lazy is None else self.lazy.select(list(names))
        native = _some_columns(self.native, list(names)) if lazy is None else lazy.to_native()
        return replace(self, native=native, schema=schema, lazy=lazy, width=len(names))

    def __iter__(self) -> Iterator[Any]:
        """Read all blocks in order; errors of the engine become one clear line."""
        with worded():
            blocks = iter(self.open(self.native, block_rows(self.width)))
        while True:
            with worded():
                block = next(blocks, None)
            if block is None:
                return
            yield block

    def first(self) -> Any:
        """Return the first block that has rows."""
        with worded():
            if self.lazy is not None:
                rows = min(block_rows(self.width), 100_000)
                block = self.lazy.head(rows).collect("pyarrow").to_native()
                if self.engine == "dask" and not len(block):  # of the first partition alone
                    block = next((b for b in self if len(b)), block)
            elif self.engine == "reader":
                block = self.native.first()
            else:
                block = next((b for b in self if len(b)), None)
        if block is None or not len(block):
            raise refusal("{@'X'} has no rows.")
        return block

    def tasks(self) -> list[Any] | None:
        """Return the blocks as tasks of Dask, if it is to schedule them."""
        if self.engine == "dask":
            return list(self.native.to_delayed())
        if self.engine == "dask.array":
            return [block.to_delayed().item() for block in _row_blocks(self.native)]
        if self.engine == "dataset" and _has_client():
            dataset, names = self.native
            delayed = need("dask", "clusters need dask", "dask").delayed
            return [delayed(part).to_table(columns=names) for part in dataset.get_fragments()]
        return None


def block_rows(width: int) -> int:
    """Return how many rows of so many columns a block has."""
    return max(1, _VALUES // max(width, 1))


def blocks_of(X: Any) -> Blocks | None:
    """Return a table that is not in memory as blocks; None if it is in memory."""
    if type(X) is Blocks:
        return X
    if hasattr(X, "dask") and hasattr(X, "rechunk"):
        return _dask_array(X)
    module = type(X).__module__.partition(".")[0]
    if module == "pyarrow" and hasattr(X, "schema") and not hasattr(X, "column_names"):
        names = X.schema.names
        kinds = nw.from_native(X.schema.empty_table()).schema
        if hasattr(X, "get_fragments"):
            return Blocks((X, names), dict(kinds), "dataset", _dataset, None, len(names))
        if hasattr(X, "read_next_batch"):
            once = _Once(X, names)
            return Blocks(once, dict(kinds), "reader", lambda it, _: iter(it), None, len(names))
    refuse_duplicates(X, "X", " Rename them.")
    lazy = as_narwhals(X, eager_only=False)
    if type(lazy) is not nw.LazyFrame:
        return None
    X, engine = lazy.to_native(), lazy.implementation.value
    with worded():
        schema = dict(lazy.collect_schema())
        plain = engine == "polars" and X.explain(optimized=False).startswith(_INDEXED)
    opened = _slices if plain else ENGINES.get(engine, _no_blocks)
    return Blocks(X, schema, engine, opened, lazy, len(schema))


@contextmanager
def worded() -> Iterator[None]:
    """Turn an engine's error about a table that cannot be read into an error of one line."""
    try:
        yield
    except (StopIteration, MemoryError, NotImplementedError, ModuleNotFoundError):
        raise
    except ValueError as error:
        if type(error).__module__.startswith(("builtins", "condokit")):
            raise
        raise _unreadable(error) from error
    except Exception as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> ValueError:
    """Return an error with the first line of an engine's message."""
    line = next(iter(str(error).splitlines()), "").rstrip(".")[:300] or type(error).__name__
    return refusal("{@'X'} could not be read to its end: {why}.", why=line)


def _some_columns(native: Any, names: list[str]) -> Any:
    """Return a dataset, or a reader, with some columns."""
    if hasattr(native, "names"):
        native.names = names
        return native
    return native[0], names


def _polars(frame: Any, rows: int) -> Iterator[Any]:
    """Return the batches of a lazy frame of polars, in order."""
    if not hasattr(frame, "collect_batches"):
        raise refusal("polars is too old to read a LazyFrame in blocks: {@collect it}, or update.")
    return iter(frame.collect_batches(chunk_size=rows, maintain_order=True, engine="streaming"))


def _slices(frame: Any, rows: int) -> Iterator[Any]:
    """Read four blocks at a time; polars' batches would hold far more rows in memory."""
    n = nw.from_native(frame).select(nw.len()).collect().item()
    for start in range(0, n, _AT_ONCE * rows):
        part = frame.slice(start, _AT_ONCE * rows).collect(engine="streaming")
        yield from part.iter_slices(rows)


def _arrow_tables(batches: Iterator[Any]) -> Iterator[Any]:
    """Return record batches of Arrow as tables."""
    return (arrow().Table.from_batches([batch]) for batch in batches)


def _duckdb(relation: Any, rows: int) -> Iterator[Any]:
    """Return the batches of a relation of DuckDB."""
    anew = relation.project("*")  # older versions read a relation once
    read = getattr(anew, "to_arrow_reader", None) or anew.fetch_arrow_reader
    return _arrow_tables(read(rows))


def _ibis(table: Any, rows: int) -> Iterator[Any]:
    """Return the batches of a table of Ibis."""
    batches = iter(table.to_pyarrow_batches(chunk_size=rows))
    try:
        first = list(islice(batches, 1))
    except AttributeError as error:  # the engine is newer than Ibis knows
        text = "Ibis cannot read from its engine in blocks ({why}): pass the engine's own table, "
        raise refusal(
            text + "such as a relation of DuckDB, or {@`X`}.to_pyarrow().", why=error
        ) from None
    return _arrow_tables(chain(first, batches))


def _dataset(given: tuple[Any, list[str]], rows: int) -> Iterator[Any]:
    """Return the batches of an Arrow dataset."""
    dataset, names = given
    return _arrow_tables(dataset.to_batches(columns=names, batch_size=rows))


def _spark(frame: Any, rows: int) -> Iterator[Any]:
    """Fetch rows one after another, which is slow; reductions run on Spark's workers instead."""
    table, names, part = arrow().Table, list(frame.columns), list[Any]()
    for row in frame.toLocalIterator(prefetchPartitions=True):
        part.append(tuple(row))
        if len(part) == rows:
            yield table.from_pydict(dict(zip(names, zip(*part))))
            part = []
    if part:
        yield table.from_pydict(dict(zip(names, zip(*part))))


def _no_blocks(frame: Any, rows: int) -> Iterator[Any]:
    """Refuse an engine that cannot return blocks of rows."""
    raise refusal(
        "{engine} hands out no blocks of rows. Write the table to Parquet, and scan that with "
        "polars.",
        engine=nw.from_native(frame).implementation.value,
    )


class _Once:
    """A reader of batches, which can be read only once; the first batch is kept."""

    def __init__(self, reader: Any, names: list[str]) -> None:
        self.reader, self.names = reader, names
        self.waiting: list[Any] | None = []

    def first(self) -> Any:
        """Return the first batch that has rows, without using it up."""
        waiting = self._waiting()
        while not (waiting and len(waiting[-1])):
            try:
                waiting.append(arrow().Table.from_batches([self.reader.read_next_batch()]))
            except StopIteration:
                return None
        return waiting[-1].select(self.names)

    def _waiting(self) -> list[Any]:
        """Return the batches that were read ahead; refuse a second reading."""
        if self.waiting is None:
            text = "A RecordBatchReader is read once, but its rows are needed again. Pass a "
            raise refusal(text + "pyarrow.dataset of the files, or a table.")
        return self.waiting

    def __iter__(self) -> Iterator[Any]:
        waiting, self.waiting = self._waiting(), None
        for table in chain(waiting, _arrow_tables(self.reader)):
            yield table.select(self.names)


# that hand out blocks; the partitions of Dask are computed one after another
ENGINES: dict[str, Any] = {"polars": _polars, "duckdb": _duckdb, "ibis": _ibis, "pyspark": _spark}
ENGINES["dask"] = lambda frame, _: (part.compute() for part in frame.to_delayed())


def _dask_array(X: Any) -> Blocks:
    """Return a Dask array as blocks of rows."""
    if X.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {X.ndim}D array instead (shape {X.shape}) for X. Reshape your "
            "data: samples are rows, features are columns."
        )
    if np.isnan(X.shape[0]):
        X = X.compute_chunk_sizes()
    X = X.rechunk({1: -1})
    computed = lambda X, _: (block.compute() for block in _row_blocks(X))  # noqa: E731
    return Blocks(X, None, "dask.array", computed, None, X.shape[1], X.shape[0])


def _row_blocks(X: Any) -> Iterator[Any]:
    """Return the blocks of rows of a Dask array, not computed."""
    return (X.blocks[k] for k in range(X.numblocks[0]))


def _has_client() -> bool:
    """Return whether the user is connected to a Dask cluster."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return False
    try:
        distributed.default_client()
    except ValueError:
        return False
    return True


class Reduction(Protocol[S]):
    """Something that blocks are reduced to, such as sums."""

    def of_block(self, number: int) -> "Callable[[Any, S | None], S]":
        """Return a function that reduces a block, given it and the result so far, or None."""

    def merge(self, one: S, other: S) -> S:
        """Return the results of two blocks merged; the first must not be used afterwards."""


def reduce_blocks(blocks: Blocks, reduction: Reduction[S]) -> S | None:
    """Reduce every block and merge the results in order; None if there is no block.

    Blocks are reduced by threads here, or by the schedulers of Dask and Spark where the blocks are;
    these repeat what a lost worker did.
    """
    tasks = blocks.tasks()
    if tasks is not None:
        return _by_dask(tasks, reduction)
    if blocks.engine == "pyspark":
        return _by_spark(blocks.native, reduction)
    result: S | None = None
    waiting: deque[Future[S]] = deque()

    def take() -> S:
        """Wait for the oldest block's result and merge it."""
        found = waiting.popleft().result()
        return found if result is None else reduction.merge(result, found)

    with ThreadPoolExecutor(_WORKERS) as pool:
        try:
            for k, block in enumerate(blocks):
                waiting.append(pool.submit(reduction.of_block(k), block, result))
                if len(waiting) >= 2 * _WORKERS:
                    result = take()
            while waiting:
                result = take()
        finally:
            for future in waiting:
                future.cancel()
    return result


def _by_dask(tasks: list[Any], reduction: Reduction[S]) -> S | None:
    """Reduce by a tree of tasks."""
    dask = need("dask", "Dask collections need dask", "dask")
    join = dask.delayed(_merged, pure=False)
    level = [
        dask.delayed(reduction.of_block(k), pure=False)(task, None) for k, task in enumerate(tasks)
    ]
    while len(level) > 1:
        parts = (level[i : i + _FAN] for i in range(0, len(level), _FAN))
        level = [join(reduction.merge, part) for part in parts]
    with worded():
        return dask.compute(*level)[0] if level else None


def _by_spark(frame: Any, reduction: Reduction[S]) -> S | None:
    """Reduce the rows of every partition on Spark's workers, and merge the results in order.

    The workers need condokit and pyarrow.
    """

    def reduced(batches: Iterator[Any]) -> Iterator[Any]:
        """Reduce a partition's batches; yield the pickled result and the partition's place."""
        from pyspark import TaskContext, cloudpickle

        pa, result = arrow(), None
        first = TaskContext.get().partitionId() * _MOST_BATCHES
        for k, batch in enumerate(batches):
            part = reduction.of_block(first + k)(pa.Table.from_batches([batch]), result)
            result = part if result is None else reduction.merge(result, part)
        if result is not None:
            columns = [pa.array([first]), pa.array([cloudpickle.dumps(result)], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, ["place", "result"])

    with worded():
        try:
            found = frame.mapInArrow(reduced, "place long, result binary").collect()
        except Exception as error:
            if lost := re.search("No module named '(condokit|pyarrow|narwhals)'", str(error)):
                text = "The workers of Spark have no {module}: install condokit there, or set "
                text += "PYSPARK_PYTHON to a Python that has it."
                raise refusal(text, module=lost[1]) from error
            raise
    parts = [pickle.loads(row["result"]) for row in sorted(found, key=lambda row: row["place"])]
    return _merged(reduction.merge, parts) if parts else None


def _merged(merge: Callable[[S, S], S], parts: list[S]) -> S:
    """Return all parts merged in order."""
    result = deepcopy(parts[0])  # a worker may need it again, if another is lost
    for part in parts[1:]:
        result = merge(result, part)
    return result
