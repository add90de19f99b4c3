"""The one progress line: on the error stream, a few times a second, gone when done."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def working(on: str, shown: bool) -> Iterator[None]:
    """Show what is done meanwhile, where nobody can tell how far it has come."""
    if shown:
        sys.stderr.write(f"{on} ...\r")
        sys.stderr.flush()
    try:
        yield
    finally:
        if shown:
            sys.stderr.write("\033[K")


@contextmanager
def progress(
    unit: str, total: int | None = None, shown: bool | None = None
) -> Iterator[Callable[..., None]]:
    """Show how far work has come; call the result with what is done and a remark."""
    # `total` is the number of units, if known; `shown` is None for "where a person watches"
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda done, remark="": None
        return
    from tqdm import tqdm  # only where it is shown

    with tqdm(
        total=total, desc="condokit", unit=f" {unit}", file=sys.stderr, mininterval=0.2, leave=False
    ) as bar:

        def advance(done: int, remark: str = "") -> None:
            bar.set_postfix_str(remark, refresh=False)
            bar.update(done - bar.n)

        yield advance
