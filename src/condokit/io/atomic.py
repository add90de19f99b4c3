"""Files that appear whole or not at all."""

import glob
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

fcntl: Any
try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None
_STALE = 60.0  # seconds without a write


@contextmanager
def whole_file(
    path: str | os.PathLike[str],
    worded: Callable[[], AbstractContextManager[None]] = nullcontext,
    replaces: bool = True,
) -> Iterator[IO[bytes]]:
    """Open a file that gets its name only when it is complete; pipes and devices are written to.

    Until then it has a temporary name in the same folder, and is removed upon any exception,
    interrupt, SIGTERM or SIGHUP. Unless `replaces` is true, it is an error if a file of the name
    has appeared in the meantime. The file operations here, but not the `with` block of the caller,
    run within `worded()`, which may translate errors.
    """
    place = Path(os.path.realpath(path))  # the target of a link is replaced, not the link
    is_file = place.is_file() or not place.exists()
    with ExitStack() as stack:
        with worded():
            file = _temporary(place) if is_file else open(path, "wb")  # noqa: SIM115
        if is_file:
            stack.callback(Path(file.name).unlink, missing_ok=True)
        stack.callback(_close, file)
        if is_file:
            stack.enter_context(_terminable())
        yield file
        with worded():
            file.flush()
            if is_file:
                umask = os.umask(0)
                os.umask(umask)
                os.chmod(file.name, 0o666 & ~umask)  # a temporary file is private at first
                os.fsync(file.fileno())
                file.close()
                _take_name(file.name, place, replaces)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write bytes to a file, completely or not at all; an existing file is replaced."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"Cannot write {path}: it is a folder, not a file name.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"Cannot write {path}: the folder {path.parent} does not exist.")
    with whole_file(path) as file:
        file.write(content)


def _take_name(name: str, place: Path, replaces: bool) -> None:
    """Rename a file; unless it `replaces`, only one of several programs at a time succeeds."""
    if replaces:
        os.replace(name, place)
        return
    try:
        os.link(name, place)  # fails if the name exists; the temporary name is removed later
    except FileExistsError:
        raise
    except OSError:  # the file system has no hard links
        os.close(os.open(place, os.O_CREAT | os.O_EXCL))
        os.replace(name, place)


def _temporary(place: Path) -> IO[bytes]:
    """Open a temporary file in the same folder; remove those that killed programs have left."""
    for stale in place.parent.glob(f".{glob.escape(place.name)}.*.part"):
        with suppress(OSError), open(stale, "rb") as file:
            if fcntl and time.time() - stale.stat().st_mtime > _STALE:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if it is being written
                stale.unlink()
    handle, name = tempfile.mkstemp(".part", f".{place.name}.", place.parent)
    os.close(handle)
    opened = open(name, "w+b")  # noqa: SIM115
    with suppress(OSError):
        if fcntl:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return opened


def _close(file: IO[bytes]) -> None:
    """Close a file; errors of the system are ignored."""
    with suppress(OSError):
        file.close()


@contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception (SystemExit), so that files are cleaned up."""
    ours = []
    if threading.current_thread() is threading.main_thread():
        signals = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
        ours = [s for s in signals if s is not None and signal.getsignal(s) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
