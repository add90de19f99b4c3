"""A progress line on the error stream, renewed a few times a second and removed at the end."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress(
    unit: str, total: int | None = None, shown: bool | None = None, doing: str = "condokit"
) -> Iterator[Callable[..., None]]:
    """Show the progress of work; call the result with the number of units done and a remark.

    `total` is the number of units, if known; with an empty `unit` only `doing` is shown. If `shown`
    is None, progress is shown if the error stream is a terminal.
    """
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda done, remark="": None
        return
    from tqdm import tqdm  # imported only if progress is shown

    look: dict[str, Any] = {"desc": doing, "unit": f" {unit}", "mininterval": 0.2, "leave": False}
    look["bar_format"] = None if unit else "{desc} ..."
    with tqdm(total=total, file=sys.stderr, **look) as bar:

        def advance(done: int, remark: str = "") -> None:
            bar.set_postfix_str(remark, refresh=False)
            bar.update(done - bar.n)

        yield advance


def watched(tables: Iterable[Any], n_rows: int | None) -> Iterator[Any]:
    """Yield tables, and show the progress in rows."""
    done = 0
    with progress("rows", n_rows) as advance:
        for table in tables:
            yield table
            advance(done := done + len(table))
