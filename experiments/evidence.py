"""All results that pages quote, by one command: which are older than the code, and rerun them.

    python experiments/evidence.py [NAME ...] [--jobs N] [--quick] [--check]

Without names all results are made again that are older than the code, N at the same time (all
cores by default), the longest first; benchmarks come last, each alone. What scripts say is in
`.runs/NAME.log`. What was measured with which commit, versions, command and processor time is kept
in `results/evidence.json`, and `results/README.md` shows it. A result is older when code of the
package or of a script that it imported has changed since; comments, docstrings and sentences that
messages are made of do not count.
Stopped, it goes on where it was. `--check` only lists; `--quick` tries every script in its shortest
form and writes nothing here.
"""

import ast
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
import quotes

HERE = Path(__file__).parent
ROOT, RESULTS = HERE.parent, HERE / "results"
RECORD = RESULTS / "evidence.json"
IMPORTS = HERE / "imports"  # lists what a script imports
PACKAGE = ROOT / "src" / "condokit"
_SENTENCE = 3  # spaces from which a text in the code is taken for words of a message
# files that show numbers and change none
PRESENTATION = (
    *("experiments/imports", "experiments/evidence.py", "experiments/quotes.py"),
    *("experiments/figures.py", "experiments/results.py"),
)
PACKAGES = ("numpy", "scipy", "scikit-learn", "lightgbm", "combatlearn", "neuroHarmonize")
# names of the paper's experiments, and minutes of processor time that they are expected to take
PAPER = {
    **{"continuous1d": 6, "irrelevant": 4, "split": 4, "partial": 5, "categorical1d": 0.5},
    **{"categorical2d": 0.5, "ansur": 6, "photos": 4, "california": 12, "snareseq": 2},
    "bladderbatch": 2.5,
}


@dataclass(frozen=True)
class Result:
    """One script, the files that it writes, and how it is tried in short."""

    script: str
    files: tuple[str, ...]
    options: str = ""
    quick: str | None = None  # options of a short trial that writes nothing; None if there is none
    prints: bool = False  # whether its page is what it prints
    minutes: float = 1.0  # of processor time, expected as long as it was not measured
    alone: bool = False  # whether it measures time, and nothing else may run beside it

    def command(self, quick: bool = False) -> list[str]:
        """Return what is run from the root of the repository."""
        options = shlex.split((self.quick or "") if quick else self.options)
        module = self.script.removeprefix("-m ")
        start = ["-m", module] if module != self.script else [self.script]
        return [sys.executable, *start, *options]

    @property
    def path(self) -> Path:
        """The script as a file."""
        if self.script.startswith("-m "):
            return HERE / (self.script[3:].replace(".", "/") + ".py")
        return ROOT / self.script


RESULTS_OF = {
    **{
        name: Result(
            "experiments/run.py",
            (f"experiments/results/{name}.csv", "experiments/results/RESULTS.md"),
            name,
            f"{name} --quick",
            minutes=minutes,
        )
        for name, minutes in PAPER.items()
    },
    **{
        name: Result(
            f"experiments/{name}.py",
            tuple(f"experiments/results/{file}" for file in files.split()),
            minutes=minutes,
        )
        for name, files, minutes in (
            ("shrinkage", "shrinkage.csv", 1.2),
            ("confounders", "confounders.csv coverage.csv", 4),
            ("matrices", "matrices.csv", 1.6),
            ("penalties", "penalties.csv", 2),
            ("trust", "trust.csv", 4),
            ("standards", "STANDARDS.md", 2.5),
            ("errors", "errors.csv", 2),
            ("curves", "CURVES.md", 4.5),
            ("hidden", "HIDDEN.md", 2.5),
            ("cells", "published.csv", 9),
            ("paper_cost", "paper_cost.csv", 3.5),
            ("feature_verdicts", "features.csv", 1.5),
        )
    },
    "instruments": Result(
        "experiments/instruments.py", ("experiments/results/INSTRUMENTS.txt",), prints=True
    ),
    "verdicts": Result(
        "experiments/verdicts.py",
        ("experiments/results/VERDICTS.md",),
        "--n 400 --seed 20000",
        "simulations --n 4",
        prints=True,
        minutes=6,
    ),
    "batches": Result(
        "-m batches.compare",
        ("experiments/results/BATCHES.md",),
        "",
        "--quick --only balanced",
        minutes=6,
    ),
    "batches-trust": Result(
        "-m batches.trust", ("experiments/results/BATCHES_TRUST.md",), minutes=3
    ),
    "bench": Result(
        "benchmarks/page.py",
        ("benchmarks/BENCHMARKS.md", "benchmarks/results/page.jsonl"),
        "--ours --seconds 40",
        minutes=12,
        alone=True,
    ),
    **{
        f"bench-{name}": Result(
            f"benchmarks/{name}.py",
            (f"benchmarks/results/{name}.txt",),
            prints=True,
            minutes=minutes,
            alone=True,
        )
        for name, minutes in (
            ("matrices", 1.8),
            ("samples", 1.6),
            ("trust", 0.7),
            ("batches", 3),
            ("start", 0.3),
        )
    },
}


def digest(modules: list[str]) -> str:
    """Return a short name of the code of some files, without comments and sentences."""
    text = "".join(code_of(ROOT / name) for name in sorted(modules))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def code_of(path: Path) -> str:
    """Return the statements of a file, but for its version; nothing if it is gone."""
    if not path.exists():
        return ""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if not ast.unparse(node).startswith("__version__ =")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:]
        if isinstance(node, ast.Constant) and str(node.value).count(" ") >= _SENTENCE:
            node.value = ""  # words of a message change no number
    return ast.dump(tree)


def expected(name: str, record: dict[str, dict[str, Any]]) -> float:
    """Return the processor time that a result will take, in seconds."""
    return record.get(name, {}).get("seconds", 60 * RESULTS_OF[name].minutes)


def facts(result: Result, seconds: float, modules: list[str]) -> dict[str, Any]:
    """Return what a reader needs to repeat a result."""
    versions = {"python": platform.python_version()}
    for package in ("condokit", *PACKAGES):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "command": " ".join(["python", *result.command()[1:]]),
        "commit": commit_of(modules),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "seconds": round(seconds),
        "code": digest(modules),
        "modules": modules,
        "versions": versions,
        "files": list(result.files),
    }


def commit_of(modules: list[str]) -> str:
    """Return the present commit, marked if some of these files are not as it has them."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    commit = git("rev-parse", "--short", "HEAD") or "unknown"
    return f"{commit}-dirty" if git("status", "--porcelain", "--", *modules) else commit


def read_record() -> dict[str, dict[str, Any]]:
    """Return what is known of all results."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def state(name: str, record: dict[str, dict[str, Any]]) -> str:
    """Say whether a result is that of the present code."""
    if name not in record:
        return "not recorded"
    known = record[name]
    return "present" if known["code"] == digest(known.get("modules", [])) else "older"


def write_page(record: dict[str, dict[str, Any]]) -> None:
    """Write which results there are, and of which commit."""
    lines = [
        "# Results, and what they were measured with\n",
        "Written by `make evidence`. A result is *older* if code that it depends on has changed "
        "since it was measured; `make evidence` measures such results again.\n",
        "| result | files | command | commit | date | minutes of processor time | |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in RESULTS_OF.items():
        known = record.get(name, {})
        files = ", ".join(Path(f).name for f in result.files)
        seconds = known.get("seconds")
        minutes = "" if seconds is None else f"{seconds / 60:.1f}"
        cells = (name, files, f"`{known.get('command', ' '.join(result.command()[1:]))}`")
        rest = known.get("commit", ""), known.get("date", ""), minutes, state(name, record)
        lines.append("| " + " | ".join(map(str, (*cells, *rest))) + " |")
    (RESULTS / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def measure(name: str, quick: bool, cores: int) -> tuple[float, list[str]] | None:
    """Run one script on so many cores.

    Return its processor time in seconds and the files that it imported, or None if it failed.
    """
    result = RESULTS_OF[name]
    log = HERE / ".runs" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, log.open("w", encoding="utf-8") as said:
        list_of_files, printed = Path(folder) / "imported.txt", Path(folder) / "printed.txt"
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "LOKY_MAX_CPU_COUNT": str(cores),
            "PYTHONPATH": os.pathsep.join(map(str, (IMPORTS, HERE, PACKAGE.parent))),
            "LIST_OF_IMPORTS": str(list_of_files),
        }
        with printed.open("w", encoding="utf-8") as out:
            to = out if result.prints and not quick else said
            child = subprocess.Popen(
                result.command(quick), cwd=ROOT, env=env, stdout=to, stderr=said
            )
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            return None
        files = map(Path, list_of_files.read_text(encoding="utf-8").splitlines())
        mine = {p.relative_to(ROOT).as_posix() for p in files if p.is_relative_to(ROOT)}
        if result.prints and not quick:
            (ROOT / result.files[0]).write_text(printed.read_text("utf-8"), encoding="utf-8")
    seconds = used.ru_utime + used.ru_stime
    return seconds, sorted(
        p for p in mine if "/." not in f"/{p}" and not p.startswith(PRESENTATION)
    )


def measure_all(
    names: list[str], quick: bool, jobs: int
) -> Iterator[tuple[str, tuple[float, list[str]] | None]]:
    """Yield the name of each result when it is done, and what `measure` gives."""
    pool = ThreadPoolExecutor(jobs)
    together = [name for name in names if quick or not RESULTS_OF[name].alone]
    cores = max((os.cpu_count() or 1) // max(min(jobs, len(together)), 1), 1)
    try:
        running = {pool.submit(measure, name, quick, cores): name for name in together}
        for done in as_completed(running):
            yield running[done], done.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    for name in names:
        if name not in together:
            yield name, measure(name, quick, 1)


def keep(name: str, done: tuple[float, list[str]]) -> None:
    """Write down what a result was measured with: one by one, so that a stopped run can go on."""
    record = read_record()
    record[name] = facts(RESULTS_OF[name], *done)
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    write_page(record)
    if name in PAPER:
        import results

        results.write(tuple(PAPER))


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(RESULTS_OF)))
@click.option("--jobs", default=os.cpu_count() or 1, help="Results measured at the same time.")
@click.option("--quick", is_flag=True, help="Try the scripts in short; nothing is kept.")
@click.option("--check", is_flag=True, help="Only say which results are older than the code.")
def main(names: tuple[str, ...], jobs: int, quick: bool, check: bool) -> None:
    """Measure NAMES again, or all results that are older than the code."""
    record, failed = read_record(), []
    if check:
        for name in names or RESULTS_OF:
            minutes = expected(name, record) / 60
            click.echo(f"{name:14} {state(name, record):12} {minutes:5.1f} minutes")
        return
    todo = list(names) or [n for n in RESULTS_OF if quick or state(n, record) != "present"]
    if quick:
        todo = [name for name in todo if RESULTS_OF[name].quick is not None]
    todo.sort(key=lambda name: -expected(name, record))
    left = dict.fromkeys(todo)
    start = time.time()

    def tell(what: str) -> None:
        seconds = sum(expected(n, record) / (1 if RESULTS_OF[n].alone else jobs) for n in left)
        more = f"; about {seconds / 60:.0f} minutes more" if left and not quick else ""
        passed = (time.time() - start) / 60
        click.echo(f"{passed:5.1f} min  {what}, {len(left)} of {len(todo)} left{more}", err=True)

    tell(f"{jobs} at a time")
    for name, done in measure_all(todo, quick, jobs):
        del left[name]
        if done is None:
            failed.append(name)
        elif not quick:
            keep(name, done)
        tell(f"{name} " + ("FAILED" if done is None else f"done in {done[0] / 60:.1f}"))
    if not quick:
        quotes.main(check=False)
    if failed:
        logs = ", ".join(f"experiments/.runs/{name}.log" for name in failed)
        raise click.ClickException(f"Failed: {logs}.")


if __name__ == "__main__":
    main()
