"""Run the code of pages, and compare what it prints with what the pages show.

    python docs/run_pages.py [PAGE ...] [--update]

A page is a Markdown file. Its blocks run in order, in an empty folder and one Python namespace:

- ``python`` with prompts (``>>>``) is compared like a doctest; ``...`` stands for anything,
- ``python`` without prompts must run,
- ``console``: lines after ``$`` run in bash, and what they print is compared.

Tables of `make_data` that the page names are in the folder. A block after the comment
``<!-- not run: REASON -->`` is only shown. ``--update`` writes what was printed into the page.
"""

import argparse
import contextlib
import doctest
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import make_data

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs" / "_extra" / "data"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
BLOCK = re.compile(
    r"^(?P<fence>`{3,})(?P<kind>python|pycon|console)[ \t]*\n(?P<code>.*?)^(?P=fence)[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
NOT_RUN = re.compile(r"<!-- not run: .+ -->\s*\Z")


@dataclass
class Difference:
    """Lines `start` to `stop` of the page show something else than `got`."""

    start: int
    stop: int
    command: str
    want: str
    got: str


class Runner(doctest.DocTestRunner):
    """Keeps what differs instead of printing it."""

    def __init__(self) -> None:
        super().__init__(optionflags=OPTIONS)
        self.differences: list[Difference] = []

    def report_failure(self, out, test, example, got):
        self._keep(test, example, got)

    def report_unexpected_exception(self, out, test, example, exc_info):
        last = "".join(traceback.format_exception_only(*exc_info[:2]))
        self._keep(test, example, f"Traceback (most recent call last):\n    ...\n{last}")

    def _keep(self, test, example, got):
        start = test.lineno + example.lineno + example.source.count("\n")
        stop = start + example.want.count("\n")
        self.differences.append(Difference(start, stop, example.source, example.want, got))


def run_page(path: Path) -> list[Difference]:
    """Run all blocks of a page in the current folder."""
    text, found = path.read_text(encoding="utf-8"), []
    namespace = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        if NOT_RUN.search(text[: block.start()]):
            continue
        line, code = text.count("\n", 0, block.start("code")), block["code"]
        if block["kind"] == "console":
            found += run_console(code, line)
        elif ">>>" in code:
            parser, runner = doctest.DocTestParser(), Runner()
            test = parser.get_doctest(code, namespace, path.name, str(path), line)
            test.globs = namespace  # not a copy: functions of earlier blocks see what is new
            runner.run(test, out=lambda _: None, clear_globs=False)
            found += runner.differences
        else:
            exec(compile("\n" * line + code, str(path), "exec"), namespace)
    return found


def run_console(code: str, line: int) -> list[Difference]:
    """Run the commands of a block one after another."""
    found, lines = [], code.splitlines(keepends=True)
    place = 0
    while place < len(lines):
        assert lines[place].startswith("$ "), f"line {line + place + 1}: a command begins with '$ '"
        command = lines[place][2:]
        place += 1
        while command.endswith("\\\n"):
            command += lines[place]
            place += 1
        start = place
        while place < len(lines) and not lines[place].startswith("$ "):
            place += 1
        want, got = "".join(lines[start:place]), shell(command)
        if not doctest.OutputChecker().check_output(want, got, OPTIONS):
            found.append(Difference(line + start, line + place, command, want, got))
    return found


def shell(command: str) -> str:
    """Return what a command prints on either stream, and its exit code if it is not 0."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-c", command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout + (f"[exit code {done.returncode}]\n" if done.returncode else "")


def rewrite(path: Path, differences: list[Difference]) -> None:
    """Write what was printed in place of what the page shows."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for found in sorted(differences, key=lambda d: -d.start):
        got = "".join(map(wrap, re.sub(r"(?m)^[ \t]+$", "", found.got).splitlines(keepends=True)))
        if ">>>" in lines[found.start - 1] or lines[found.start - 1].startswith("..."):
            got = re.sub(r"(?m)^$(?=\n.)", "<BLANKLINE>", got)
        lines[found.start : found.stop] = got.splitlines(keepends=True)
    path.write_text("".join(lines), encoding="utf-8")


def wrap(line: str) -> str:
    """Break a long sentence, which is compared without regard to its lines; tables stay."""
    if len(line) <= 100 or "  " in line.strip():
        return line
    return "\n".join(textwrap.wrap(line, 98, break_on_hyphens=False, break_long_words=False)) + "\n"


def one(path: Path, update: bool) -> int:
    """Run a page in an empty folder, and say what differs."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        text = path.read_text(encoding="utf-8")
        for table in DATA.glob("*"):
            if table.name in text:
                shutil.copy(table, folder)
        found = run_page(path)
    if update:
        rewrite(path, found)
        return 0
    for bad in found:
        print(f"{path}:{bad.start}: {bad.command.rstrip()}")
        print(f"--- the page shows\n{bad.want}--- printed\n{bad.got}")
    return len(found)


def pages() -> list[Path]:
    """Return all pages with code: those of the site, and the first one of the repository."""
    made = {"_build", "gallery", "_extra", "generated"}
    found = [p for p in (ROOT / "docs").rglob("*.md") if not made & set(p.relative_to(ROOT).parts)]
    return sorted(p for p in [ROOT / "README.md", *found] if BLOCK.search(p.read_text("utf-8")))


def apart(path: Path) -> tuple[Path, int, str]:
    """Run a page in a process of its own."""
    command = [sys.executable, "-W", "ignore", __file__, str(path), "--one"]
    environment = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", **os.environ}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    return path, done.returncode, done.stdout + (done.stderr if done.returncode else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument(
        "--update", action="store_true", help="write what was printed into the pages"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    wanted = [path.resolve() for path in given.pages] or pages()
    if not given.one:
        make_data.main(DATA)
    if given.one or given.update:
        sys.exit(min(1, sum(one(path, given.update) for path in wanted)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(apart, wanted))
    for path, code, said in results:
        print(f"{'ok' if code == 0 else 'FAILED':7}{path.relative_to(ROOT)}")
        if code:
            print(said)
    failed = sum(code != 0 for _, code, _ in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
