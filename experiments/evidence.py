"""All results that pages quote, by one command: which are older than the code, and rerun them.

    python experiments/evidence.py [NAME ...] [--quick] [--check]

Without names all results are made again that are older than the code. What was measured with which
commit, versions, command and seconds is kept in `results/evidence.json`, and `results/README.md`
shows it. A result is older when a file of the package that it may import, or its own script, has
changed since. `--check` only lists; `--quick` tries every script in its shortest form and writes
nothing here.
"""

import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

HERE = Path(__file__).parent
ROOT, RESULTS = HERE.parent, HERE / "results"
RECORD = RESULTS / "evidence.json"
PACKAGE = ROOT / "src" / "condokit"
UNUSED = ("cli", "export", "plots.py", "report", "anndata.py")  # of the package, by no result
_JUDGES = r"\b(assess|evaluate|bootstrap|sensitivity|trust)\b"  # what needs condokit.trust
PACKAGES = ("numpy", "scipy", "scikit-learn", "lightgbm", "combatlearn", "neuroHarmonize")
PAPER = (
    *("continuous1d", "irrelevant", "split", "partial", "categorical1d", "categorical2d"),
    *("ansur", "photos", "california", "snareseq", "bladderbatch"),
)


@dataclass(frozen=True)
class Result:
    """One script, the files that it writes, and how it is tried in short."""

    script: str
    files: tuple[str, ...]
    options: str = ""
    quick: str | None = None  # options of a short trial that writes nothing; None if there is none
    prints: bool = False  # whether its page is what it prints

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
        )
        for name in PAPER
    },
    **{
        name: Result(f"experiments/{name}.py", tuple(f"experiments/results/{f}" for f in files))
        for name, files in {
            "shrinkage": ("shrinkage.csv",),
            "confounders": ("confounders.csv", "coverage.csv"),
            "matrices": ("matrices.csv",),
            "trust": ("trust.csv",),
            "standards": ("STANDARDS.md",),
            "errors": ("errors.csv",),
            "curves": ("CURVES.md",),
            "hidden": ("HIDDEN.md",),
        }.items()
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
    ),
    "batches": Result(
        "-m batches.compare", ("experiments/results/BATCHES.md",), "", "--quick --only balanced"
    ),
    "batches-trust": Result("-m batches.trust", ("experiments/results/BATCHES_TRUST.md",)),
    "bench": Result(
        "benchmarks/page.py", ("benchmarks/BENCHMARKS.md", "benchmarks/results/page.jsonl")
    ),
}


def digest(result: Result, name: str) -> str:
    """Return a short name of all code that a result depends on."""
    scripts = imported(result.path, set())
    if result.script == "experiments/run.py":
        scripts = imported(HERE / f"{name}.py", scripts)
    return digest_of(scripts)


def digest_of(scripts: set[Path]) -> str:
    """Return a short name of scripts and of the package as far as they may import it."""
    judges = any(re.search(_JUDGES, path.read_text(encoding="utf-8")) for path in scripts)
    unused = UNUSED if judges else (*UNUSED, "trust")
    used = [p for p in PACKAGE.rglob("*.py") if p.relative_to(PACKAGE).parts[0] not in unused]
    text = b"".join(path.read_bytes() for path in (*sorted(used), *sorted(scripts)))
    return hashlib.sha256(text).hexdigest()[:12]


def imported(path: Path, seen: set[Path]) -> set[Path]:
    """Return a script and those beside it that it imports; figures change no number."""
    if path.exists() and path.stem != "figures" and path not in seen:
        seen.add(path)
        for line in path.read_text(encoding="utf-8").splitlines():
            if found := re.match(r"(?:from|import) ([\w.]+)", line):
                imported(path.parent / f"{found[1]}.py", seen)
                imported(HERE / (found[1].replace(".", "/") + ".py"), seen)
    return seen


def facts(result: Result, name: str, seconds: float) -> dict[str, object]:
    """Return what a reader needs to repeat a result."""
    versions = {"python": platform.python_version()}
    for package in ("condokit", *PACKAGES):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return {
        "command": " ".join(["python", *result.command()[1:]]),
        "commit": commit or "unknown",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "seconds": round(seconds),
        "code": digest(result, name),
        "versions": versions,
        "files": list(result.files),
    }


def read_record() -> dict[str, dict[str, object]]:
    """Return what is known of all results."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def state(name: str, record: dict[str, dict[str, object]]) -> str:
    """Say whether a result is that of the present code."""
    if name not in record:
        return "not recorded"
    return "present" if record[name]["code"] == digest(RESULTS_OF[name], name) else "older"


def write_page(record: dict[str, dict[str, object]]) -> None:
    """Write which results there are, and of which commit."""
    lines = [
        "# Results, and what they were measured with\n",
        "Written by `make evidence`. A result is *older* if code that it depends on has changed "
        "since it was measured; `make evidence` measures such results again.\n",
        "| result | files | command | commit | date | minutes | |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in RESULTS_OF.items():
        known = record.get(name, {})
        files = ", ".join(Path(f).name for f in result.files)
        seconds = known.get("seconds")
        minutes = "" if seconds is None else f"{float(str(seconds)) / 60:.1f}"
        cells = (name, files, f"`{known.get('command', ' '.join(result.command()[1:]))}`")
        rest = known.get("commit", ""), known.get("date", ""), minutes, state(name, record)
        lines.append("| " + " | ".join(map(str, (*cells, *rest))) + " |")
    (RESULTS / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def measure(name: str, quick: bool) -> float | None:
    """Run one script; return its seconds, None if it failed."""
    result = RESULTS_OF[name]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    start = time.time()
    out = None
    if result.prints or quick:
        out = subprocess.PIPE
    done = subprocess.run(result.command(quick), cwd=ROOT, env=env, stdout=out, text=True)
    if done.returncode:
        return None
    if result.prints and not quick:
        (ROOT / result.files[0]).write_text(done.stdout, encoding="utf-8")
    return time.time() - start


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(RESULTS_OF)))
@click.option("--quick", is_flag=True, help="Try the scripts in short; nothing is kept.")
@click.option("--check", is_flag=True, help="Only say which results are older than the code.")
def main(names: tuple[str, ...], quick: bool, check: bool) -> None:
    """Measure NAMES again, or all results that are older than the code."""
    record = read_record()
    if check:
        for name in names or RESULTS_OF:
            click.echo(f"{name:14} {state(name, record)}")
        return
    todo = names or [name for name in RESULTS_OF if quick or state(name, record) != "present"]
    if quick:
        todo = [name for name in todo if RESULTS_OF[name].quick is not None]
    seconds = [float(str(record.get(name, {}).get("seconds", 0))) for name in todo]
    if any(seconds) and not quick:
        click.echo(f"About {sum(seconds) / 60:.0f} minutes, as measured before.", err=True)
    failed = []
    for k, name in enumerate(todo, 1):
        click.echo(f"[{k} of {len(todo)}] {name}", err=True)
        took = measure(name, quick)
        if took is None:
            failed.append(name)
        elif not quick:  # kept one by one, so that an interrupted run goes on where it stopped
            record[name] = facts(RESULTS_OF[name], name, took)
            RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            write_page(record)
            if name in PAPER:
                import results

                results.write(PAPER)
    if failed:
        raise click.ClickException(f"Failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
