"""Time, memory and error of condokit beside its peers, over rows, features and confounders.

    python benchmarks/page.py [--quick] [--keep] [--ours] [--only KIND] [--method NAME]
        [--seconds 600]

Every cell is measured in a fresh process with one thread, all methods on the same file of data.
Results go to results/page.jsonl, from which BENCHMARKS.md and its figures are written (render.py).
`--only` and `--method` measure a part anew, `--ours` condokit and StandardScaler, `--keep` what is
not in that file yet; other cells stay, with their day. `--quick`
measures condokit and StandardScaler on few cells, and warns where their ratio is more than twice
the one in that file.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import render
from peers import FLOOR, METHODS, OURS, REQUIREMENTS, environment
from sampler import Sampler

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "page.jsonl"
KINDS = "none", "categorical", "heavy tails", "continuous", "mixed", "matrix"
ROWS, FEATURES = (10**3, 10**4, 10**5, 10**6, 10**7), (1, 10, 100, 1000, 20_000)
FIXED_FEATURES, FIXED_ROWS = 10, 1000
QUICK = (100_000, 10), (1000, 100)
BYTES = 8e9


def problem(kind, n, d, seed=0):
    """Draw n rows, half of them query, whose true values are (Xq - offset) / scale.

    Noise has sd 1. Confounders differ between the domains and move the features: one of four
    levels (with "heavy tails" the noise is Student's t with 3 degrees of freedom), or a value whose
    effect is a wave, or ("mixed") two with four and three levels and three values, one with a wave.
    """
    rng = np.random.default_rng(seed)
    scale, offset = rng.uniform(0.5, 2, d), 5 * rng.normal(size=d)
    levels = {"categorical": [4], "heavy tails": [4], "mixed": [4, 3]}.get(kind, [])
    n_values = {"continuous": 1, "mixed": 3}.get(kind, 0)
    effects = [rng.normal(size=(k, d)) for k in levels]
    waves = 2 * rng.normal(size=d), rng.uniform(0, 2 * np.pi, d), rng.normal(size=(n_values, d))
    data = {"scale": scale, "offset": offset}
    for side, low in (("q", 0.25), ("r", 0.0)):
        m = n // 2
        tailed = rng.standard_t(3, (m, d)) / math.sqrt(3) if kind == "heavy tails" else None
        X = rng.standard_normal((m, d)) if tailed is None else tailed
        C = np.empty((m, len(levels)), "U1")
        for j, k in enumerate(levels):
            odds = np.arange(1, k + 1) if side == "q" else np.arange(k, 0, -1)
            drawn = rng.choice(k, m, p=odds / odds.sum())
            C[:, j] = np.array(list("abcd"))[drawn]
            X += effects[j][drawn]
        T = low + 0.75 * rng.random((m, n_values))
        if n_values:
            for k in range(0, m, 100_000):
                t = T[k : k + 100_000]
                X[k : k + 100_000] += waves[0] * np.sin(4 * t[:, :1] + waves[1])
                X[k : k + 100_000] += t[:, 1:] @ waves[2][1:]
        if side == "q":
            X *= scale
            X += offset
        data |= {f"X{side}": X, f"C{side}": C, f"T{side}": T}
    return data


class Watch(threading.Thread):
    """Stop a process after some seconds of processor time, or three times as many in all.

    From outside: a timer of the process itself would make its clock coarse.
    """

    def __init__(self, child, seconds):
        super().__init__(daemon=True)
        self.child, self.seconds, self.is_late, self.done = child, seconds, False, threading.Event()
        self.start()

    def used(self):
        """Return the processor time of the process so far."""
        with open(f"/proc/{self.child.pid}/stat") as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def run(self):
        """Look twice a second."""
        start, before = time.perf_counter(), self.used()
        while not self.done.wait(0.5):
            try:
                used = self.used() - before
            except OSError:  # it has ended
                return
            if used > self.seconds or time.perf_counter() - start > 3 * self.seconds:
                self.is_late = True
                self.child.kill()
                return


def measure(name, python, path, seconds):
    """Return what cell.py found, or {"not_run": why}."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environ |= {f"{k}_NUM_THREADS": "1" for k in ("OMP", "OPENBLAS", "MKL", "NUMBA", "POLARS")}
    if python == sys.executable:
        environ["PYTHONPATH"] = str(HERE.parent / "src")
    command = [python, str(HERE / "cell.py"), name, str(path), str(BYTES)]
    with tempfile.TemporaryFile("w+") as said:
        sampler, watch, lines = None, None, []
        child = subprocess.Popen(command, env=environ, stdout=-1, stderr=said, text=True)
        for line in child.stdout:
            lines.append(line)
            if line == "begin\n":
                watch = Watch(child, seconds)
                if name in OURS:
                    sampler = Sampler(child.pid)
                    sampler.start()
            if line == "end\n":
                watch.done.set()
                if sampler:
                    sampler.shares()
        shares = sampler.shares() if sampler else {}
        child.wait()
        said.seek(0)
        errors = said.read().strip()
    if lines and lines[-1].startswith("{"):
        return json.loads(lines[-1]) | ({"shares": shares} if shares else {})
    if watch and watch.is_late:
        return {"not_run": f"time: stopped after {seconds:g} s"}
    if "MemoryError" in errors or "bad_alloc" in errors or "allocate memory" in errors:
        return {"not_run": f"memory: needed more than {BYTES / 1e9:g} GB"}
    return {"not_run": f"failed: {(errors or 'ended by a signal').splitlines()[-1][:200]}"}


def predict(known, n, d, seconds):
    """Return why the next cell of a line is not run, or None.

    Time and memory are prolonged from the last cell of the line by the exponent of its last two
    cells (at most 3 for time and 2 for memory), or by 1 if there is one; what was not run before is
    not run with more rows or features.
    """
    line = [r for r in known if (r["d"] == d and r["n"] < n) or (r["n"] == n and r["d"] < d)]
    if not line:
        return None
    line = sorted(line, key=lambda r: r["n"] * r["d"])
    if "not_run" in line[-1]:
        return line[-1]["not_run"].split(":")[0] + ": as in the cell before"
    size = [r["n"] * r["d"] for r in line[-2:]]
    size = [*size, n * d]
    for field, limit, what, most in (
        ("seconds", seconds, "time", 3),
        ("memory", BYTES, "memory", 2),
    ):
        values = [max(r[field], 1e-9) for r in line[-2:]]
        power = math.log(values[1] / values[0]) / math.log(size[1] / size[0]) if values[1:] else 1
        expected = values[-1] * (size[-1] / size[-2]) ** min(power, most)
        expected += 8 * n * d if what == "memory" else 0
        if expected > limit:
            shown = f"{expected:.0f} s" if what == "time" else f"{expected / 1e9:.0f} GB"
            return f"{what}: {shown} expected"
    return None


def cells(kind, quick):
    if quick:
        return list(QUICK)
    many = [(n, FIXED_FEATURES) for n in ROWS]
    return sorted({*many, *((FIXED_ROWS, d) for d in FEATURES)}, key=lambda c: (c[0] * c[1], c))


def machine():
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if "model name" in line), "")
    versions = {k: version(k) for k in ("condokit", "numpy", "scipy", "scikit-learn")}
    about = {"date": date.today().isoformat(), "processor": model or platform.machine()}
    return about | {"cores": os.cpu_count(), "python": platform.python_version(), **versions}


def pythons(methods):
    """Return {method: its python, or why there is none}."""
    found = {}
    for place in {METHODS[name][1] for name in methods}:
        try:
            found[place] = environment(place), None
        except (subprocess.CalledProcessError, OSError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            plain = [line for line in said if "://" not in line] or ["pip ended with an error"]
            found[place] = None, f"failed: no environment, {plain[-1][:200]}"
    return {name: found[METHODS[name][1]] for name in methods}


def run(kinds, methods, quick, seconds, known=(), keep=None):
    """Yield the records of all cells that are not known yet; `keep` is told each at once."""
    ready, records = pythons(methods), list(known)
    done = {(r["kind"], r["n"], r["d"], r["method"]) for r in records}
    for kind in kinds:
        able = [name for name in methods if kind in METHODS[name][2]]
        for n, d in cells(kind, quick):
            wanted = [name for name in able if (kind, n, d, name) not in done]
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "data.npz"
                for name in wanted:
                    python, missing = ready[name]
                    line = [r for r in records if r["method"] == name and r["kind"] == kind]
                    why = missing or predict(line, n, d, seconds)
                    if why is None and not path.exists():
                        np.savez(path, **problem(kind, n, d))
                    found = {"not_run": why} if why else measure(name, python, path, seconds)
                    record = {"kind": kind, "n": n, "d": d, "method": name, **found}
                    print(render.sentence(record), flush=True)
                    records.append(record)
                    if keep:
                        keep(record)
    return records


def compare(records, stored):
    """Print our ratios to the floor beside stored ones; return the number that doubled."""
    old, doubled = render.ratios(stored, FLOOR), 0
    for cell, ratio in render.ratios(records, FLOOR).items():
        before = old.get(cell)
        text = f"{cell[0]}, {cell[1]} x {cell[2]}: {ratio:.1f} times {FLOOR}"
        if before is None:
            print(f"{text} (nothing stored)")
            continue
        print(f"{text} (stored {before:.1f})")
        if ratio > 2 * before:
            doubled += 1
            print(f"WARNING: {text}, more than twice the stored {before:.1f}")
    print("No ratio doubled." if not doubled else f"WARNING: {doubled} ratios doubled.")
    return doubled


def read(path=RESULTS):
    """Return the records of a results file, the first of which is about the machine."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--only", choices=KINDS, action="append")
    parser.add_argument("--method", choices=METHODS, action="append")
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    kinds = options.only or KINDS
    stored = read()
    if options.quick:
        records = run(kinds, [*OURS, FLOOR], True, options.seconds)
        compare(records, stored[1:])
        return
    methods = options.method or ([*OURS, FLOOR] if options.ours else list(METHODS))
    about, *known = stored or [{}]
    if not options.keep:
        known = [r for r in known if r["kind"] not in kinds or r["method"] not in methods]
    today = machine() | {"seconds": options.seconds, "requirements": REQUIREMENTS}
    if known and about["date"] != today["date"]:  # cells of another day stay
        today["date"] = f"{about['date']} and {today['date']}"
    named = "all" if len(methods) == len(METHODS) else ", ".join(methods)
    part = f"{', '.join(options.only or ['all kinds'])}: {named}"
    today["runs"] = [
        *(about["runs"] if known else []),
        part + (", missing" if options.keep else ""),
    ]
    stored = [today, *known]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("".join(json.dumps(r) + "\n" for r in stored), encoding="utf-8")

    def keep(record):
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    run(kinds, methods, False, options.seconds, known, keep)
    render.write(read(), HERE)


if __name__ == "__main__":
    main()
