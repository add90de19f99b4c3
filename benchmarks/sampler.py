"""Where a process spends its time, seen from outside: which library it is in, every 10 ms.

The kernel stops the process for some microseconds (ptrace), and the address it was at is looked up
in its list of libraries. Linux on x86-64 alone; elsewhere nothing is counted.
"""

import ctypes
import os
import platform
import signal
import sys
import threading
import time
from collections import Counter

SEIZE, INTERRUPT, GET_REGISTERS, CONTINUE = 0x4206, 0x4207, 12, 7
ALL_CHILDREN = 0x40000000  # __WALL of waitpid
PLACES = {"python": "Python", "blas": "BLAS", "lapack": "BLAS"}  # all else: loops over arrays


def place(library):
    return next((name for part, name in PLACES.items() if part in library), "arrays")


class Libraries:
    """The names of the libraries that a process has in memory, by address."""

    def __init__(self, pid):
        self.pid, self.ranges = pid, []

    def at(self, address):
        """Return the name of the library at an address."""
        for _ in range(2):
            for first, last, name in self.ranges:
                if first <= address < last:
                    return name
            self.read()
        return ""

    def read(self):
        """Read the list anew, as libraries are loaded late."""
        self.ranges = []
        with open(f"/proc/{self.pid}/maps") as file:
            for line in file:
                words = line.split()
                if "x" in words[1]:
                    first, last = (int(word, 16) for word in words[0].split("-"))
                    name = os.path.basename(words[5]) if len(words) > 5 else ""
                    # python's own modules (_json.cpython-311-...) are extensions like others
                    is_module = ".cpython-" in name
                    self.ranges.append((first, last, name.split(".")[0] if is_module else name))


class Sampler(threading.Thread):
    """Count where the main thread of a process is until it ends or `stop` is called."""

    def __init__(self, pid, interval=0.01):
        super().__init__(daemon=True)
        self.pid, self.interval, self.counts = pid, interval, Counter()
        self._stopped = threading.Event()

    def run(self):
        """Look every interval, as the one thread that may."""
        if sys.platform != "linux" or platform.machine() != "x86_64":
            return
        library = ctypes.CDLL(None, use_errno=True)
        library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        registers = (ctypes.c_ulong * 27)()
        libraries = Libraries(self.pid)
        if library.ptrace(SEIZE, self.pid, None, None) != 0:
            return
        while not self._stopped.is_set():
            time.sleep(self.interval)
            if library.ptrace(INTERRUPT, self.pid, None, None) != 0:
                return
            try:
                _, status = os.waitpid(self.pid, ALL_CHILDREN)
            except ChildProcessError:
                return
            if not os.WIFSTOPPED(status):
                return
            if library.ptrace(GET_REGISTERS, self.pid, None, ctypes.addressof(registers)) == 0:
                self.counts[place(libraries.at(registers[16]))] += 1
            received = os.WSTOPSIG(
                status
            )  # a signal for the process, such as its alarm, goes on to it
            library.ptrace(CONTINUE, self.pid, None, 0 if received == signal.SIGTRAP else received)

    def shares(self):
        """Stop, and return the share of samples in Python, BLAS and loops over arrays."""
        self._stopped.set()
        self.join()
        total = sum(self.counts.values())
        return {name: round(n / total, 3) for name, n in self.counts.items()} if total else {}
