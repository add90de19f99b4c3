"""How many single changes of the code do tests notice?

`python tests/mutants.py 30 --seed 1` changes one operator, comparison or number of a random line in
`law/`, `trust/` or `data/study.py` at a time, in a copy of the package, and runs the tests that
execute the line, the quickest first. It prints each change, and which test failed first, if any.
A change that no test notices is a missing test, or it changes nothing (a limit of iterations, a
tolerance): somebody has to look.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHANGED = ("law", "trust", "data/study.py")
TESTS = ("law", "trust", "data", "fit", "batches", "summaries", "statistics", "test_adapter.py")
OPPOSITE = {"+": "-", "-": "+", "*": "/", "/": "*", "@": "+", "**": "*"}
OPPOSITE |= {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
OPPOSITE |= {"and": "or", "or": "and", "is": "is not", "is not": "is", "in": "not in"}
SEEN = "CONDOKIT_MUTANTS_SEEN"  # the file of which test executes which changed line
_executed: set[int] = set()


def executed(number: int) -> None:
    """Note that a line is executed, which copies of the code call before it."""
    _executed.add(number)


def pytest_runtest_logreport(report: object) -> None:
    """Write which lines a test executed; this file is a plugin of the run that finds that out."""
    if report.when == "teardown" and os.environ.get(SEEN):  # type: ignore[attr-defined]
        with open(os.environ[SEEN], "a") as file:
            file.write(json.dumps([report.nodeid, sorted(_executed)]) + "\n")  # type: ignore[attr-defined]
        _executed.clear()


def changes(path: Path) -> list[tuple[int, int, str, str]]:
    """Return line of the statement, and place, text and new text of all that may be changed."""
    text = path.read_text()
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    raw, found = text.encode(), []

    def place(line: int, column: int) -> int:
        return starts[line - 1] + column

    def between(left: ast.expr, right: ast.expr, statement: int) -> None:
        start = place(left.end_lineno or 0, left.end_col_offset or 0)
        middle = raw[start : place(right.lineno, right.col_offset)].decode()
        operator = middle.strip("() \n")
        if operator in OPPOSITE and "\n" not in middle:
            at = start + middle.index(operator)
            found.append((statement, at, operator, OPPOSITE[operator]))

    def visit(node: ast.AST, statement: int | None) -> None:
        if isinstance(node, ast.FunctionDef):
            for child in node.body:
                visit(child, child.lineno)
            return
        if isinstance(node, ast.stmt):
            statement = node.lineno if statement else None
        if statement:
            if isinstance(node, ast.BinOp):
                between(node.left, node.right, statement)
            elif isinstance(node, ast.Compare) and len(node.ops) == 1:
                between(node.left, node.comparators[0], statement)
            elif isinstance(node, ast.BoolOp):
                between(node.values[0], node.values[1], statement)
            elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
                at, was = place(node.lineno, node.col_offset), ast.unparse(node)
                new = str(not node.value) if isinstance(node.value, bool) else f"({was} + 1)"
                if raw[at : at + len(was)].decode() == was:
                    found.append((statement, at, was, new))
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.JoinedStr):  # the words of messages
                visit(child, statement)

    visit(tree, None)
    return found


def compiles(text: str) -> bool:
    try:
        compile(text, "changed", "exec")
    except SyntaxError:
        return False
    return True


def chosen(source: Path, n: int, seed: int) -> list[dict]:
    """Choose changes at random, each of another statement that can be told to be executed."""
    rng, picked, taken = random.Random(seed), [], set()
    files = [
        f for c in CHANGED for p in [source / c] for f in (p.rglob("*.py") if p.is_dir() else [p])
    ]
    everything = [(path, change) for path in sorted(files) for change in changes(path)]
    rng.shuffle(everything)
    for path, (line, at, was, new) in everything:
        raw = path.read_bytes()
        changed = (raw[:at] + new.encode() + raw[at + len(was.encode()) :]).decode()
        if (path, line) in taken or not compiles(changed) or not compiles(probed(path, {line: 0})):
            continue
        taken.add((path, line))
        number = raw[:at].decode().count("\n") + 1
        picked.append({"path": path, "line": line, "changed": changed, "number": number})
        if len(picked) == n:
            break
    return picked


def probed(path: Path, numbers: dict[int, int]) -> str:
    """Return a module that says when it executes certain lines."""
    lines = path.read_text().splitlines(keepends=True)
    for line in sorted(numbers, reverse=True):
        before = lines[line - 1]
        indent = before[: len(before) - len(before.lstrip())]
        lines.insert(line - 1, f"{indent}__import__('mutants').executed({numbers[line]})\n")
    return "".join(lines)


def run(copy: Path, *words: str, seconds: float | None = None, **variables: str) -> tuple[int, str]:
    """Run tests with the copy; return the exit code, that of a timeout being 1, and the output."""
    paths = os.pathsep.join([str(copy), str(ROOT / "tests")])
    place = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    how = {"cwd": ROOT, "env": os.environ | place | variables, "text": True, "timeout": seconds}
    try:
        done = subprocess.run(command, capture_output=True, **how)
    except subprocess.TimeoutExpired:
        return 1, "FAILED by time\n"
    return done.returncode, done.stdout


def tests_of(copy: Path, picked: list[dict], words: list[str]) -> list[list[str]]:
    """Return for each change the tests that execute its line, in the order of their duration."""
    kept = {m["path"]: m["path"].read_text() for m in picked}
    for path in kept:
        path.write_text(
            probed(path, {m["line"]: k for k, m in enumerate(picked) if m["path"] == path})
        )
    seen = copy / "seen"
    _, output = run(
        copy, "-p", "mutants", "-m", "not slow", "--durations=0", "-vv", *words, **{SEEN: str(seen)}
    )
    for path, text in kept.items():
        path.write_text(text)
    took: dict[str, float] = {}
    for line in output.splitlines():
        parts = line.split(maxsplit=2)
        if len(parts) == 3 and parts[1] in ("call", "setup") and parts[0].endswith("s"):
            took[parts[2]] = took.get(parts[2], 0.0) + float(parts[0][:-1])
    tests: list[list[str]] = [[] for _ in picked]
    for line in seen.read_text().splitlines():
        name, numbers = json.loads(line)
        for number in numbers:
            tests[number].append(name)
    return [sorted(names, key=lambda name: took.get(name, 0.0)) for names in tests]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("n", type=int, nargs="?", default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=150, help="tests run for each change")
    parser.add_argument("--tests", nargs="+", default=[f"tests/{name}" for name in TESTS])
    options = parser.parse_args()
    copy = Path(tempfile.mkdtemp(prefix="condokit-mutants-"))
    shutil.copytree(ROOT / "src" / "condokit", copy / "condokit")
    picked = chosen(copy / "condokit", options.n, options.seed)
    start, noticed = time.perf_counter(), 0
    tests = tests_of(copy, picked, options.tests)
    print(f"{len(picked)} lines, looked up in {time.perf_counter() - start:.0f} s", flush=True)
    for mutant, names in zip(picked, tests, strict=True):
        path, kept = mutant["path"], mutant["path"].read_text()
        old, new = (t.splitlines()[mutant["number"] - 1] for t in (kept, mutant["changed"]))
        code, output = 0, ""
        if names:
            (copy / "names").write_text("\n".join(names[: options.most]))
            path.write_text(mutant["changed"])
            code, output = run(copy, "-x", f"@{copy / 'names'}", seconds=600)
            path.write_text(kept)
        noticed += bool(code)
        failed = next((x for x in output.splitlines() if x.startswith(("FAILED", "ERROR"))), "")
        what = failed.split(" - ")[0] if code else f"UNNOTICED by {len(names)} tests"
        where = f"{path.relative_to(copy / 'condokit')}:{mutant['number']}"
        print(f"{where}\n  - {old.strip()}\n  + {new.strip()}\n  {what}", flush=True)
    shutil.rmtree(copy)
    print(f"{noticed} of {len(picked)} changes are noticed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
