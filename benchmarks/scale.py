"""Files larger than memory: `condokit fit` and `apply` beside polars on the same files.

    python benchmarks/scale.py [MILLIONS] [--features 20] [--folder DIR] [--repeats 2] [--floors]

Writes MILLIONS (default 50, which are 8 GB) of rows as eight Parquet files, and measures from
outside, each in a fresh process with all cores: the means of all features and a copy of the files,
both by polars' streaming engine, then fit and apply with a categorical and with a continuous
confounder, without the verdict (`--quiet`), which looks at a sample. Times are the least of some
repeats; memory is the highest resident size that the kernel reports of the process that ended.
Ratios go to results/scale.jsonl, one line for each run.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
FILES, BLOCK = 8, 500_000
CONFOUNDERS = {"categorical": "site:cat", "continuous": "age:num"}
AIMS = {"categorical": 3, "continuous": 6}
MEANS = """
import sys, polars as pl
pl.scan_parquet(sys.argv[1]).select(pl.col("^x[0-9]+$").mean()).collect(engine="streaming")
"""
COPY = """
import sys, polars as pl
pl.scan_parquet(sys.argv[1]).sink_parquet(sys.argv[2])
"""
ERROR = """
import sys
from condokit import AffineMap
scales = AffineMap.load(sys.argv[1]).scale
half = len(scales) // 2
print(abs(2 * (scales[half:] if sys.argv[2] == "continuous" else scales[:half]) - 1).max())
"""


def write(folder, n_rows, n_features):
    """Write the files: half of the rows are "new", whose features are doubled and shifted by 5.

    The first half of the features depends on `site` (ten levels), the second on `age`, and both
    differ between the domains; noise is normal.
    """
    import numpy as np
    import polars as pl

    rng = np.random.default_rng(0)
    half = n_features // 2
    sites, slopes = rng.normal(size=(10, half)), rng.normal(size=n_features - half)
    odds = np.arange(1.0, 11)
    names = np.array([f"site{k}" for k in range(10)])
    for file, first in enumerate(range(0, n_rows, -(-n_rows // FILES))):
        blocks = []
        last = min(first + -(-n_rows // FILES), n_rows)
        for start in range(first, last, BLOCK):
            n = min(BLOCK, last - start)
            new = rng.random(n) < 0.5
            old_site, new_site = (rng.choice(10, n, p=p / p.sum()) for p in (odds[::-1], odds))
            site, age = np.where(new, new_site, old_site), rng.normal(np.where(new, 55, 50), 10)
            X = rng.standard_normal((n, n_features))
            X[:, :half] += sites[site]
            X[:, half:] += (age[:, None] - 50) / 10 * slopes
            X[new] = 2 * X[new] + 5
            columns = {f"x{j}": X[:, j] for j in range(n_features)}
            roles = {"domain": np.where(new, "new", "old"), "site": names[site], "age": age}
            blocks.append(pl.DataFrame(columns | roles))
        pl.concat(blocks).write_parquet(Path(folder) / f"part{file}.parquet")


def measured(command, repeats=1, made=None):
    """Return {seconds, memory} of a command in a process of its own; `made` is removed before."""
    found = []
    environ = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
    for _ in range(repeats):
        if made and made.exists():
            shutil.rmtree(made) if made.is_dir() else made.unlink()
        with tempfile.TemporaryFile() as said:
            start = time.perf_counter()
            child = subprocess.Popen(
                [sys.executable, *map(str, command)], env=environ, stdout=said, stderr=said
            )
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            took = time.perf_counter() - start
            said.seek(0)
            if child.returncode:
                end = said.read().decode().strip().splitlines()[-1:]
                return {"failed": f"exit {child.returncode}: {' '.join(end)}"[:300]}
        found.append((took, used.ru_maxrss * 1024))
    return {"seconds": min(t for t, _ in found), "memory": max(m for _, m in found)}


def show(name, found, floor=None, aim=None):
    if "failed" in found:
        print(f"{name:24} failed, {found['failed']}", flush=True)
        return
    ratio = f", {found['seconds'] / floor['seconds']:.2f} times the floor" if floor else ""
    goal = f" (aim {aim})" if aim else ""
    error = f", error of scales {found['error']:.2g}" if "error" in found else ""
    memory = f"{found['memory'] / 1e9:.2f} GB"
    print(f"{name:24} {found['seconds']:8.2f} s, {memory}{ratio}{goal}{error}", flush=True)


def run(place, repeats, floors):
    """Measure on the files of a folder; return {name: what was found}."""
    files, out = str(place / "*.parquet"), place / "out" / "copy.parquet"
    out.parent.mkdir()
    found = {"means": measured(["-c", MEANS, files], repeats)}
    show("means by polars", found["means"])
    found["copy"] = measured(["-c", COPY, files, out], repeats, out)
    show("copy by polars", found["copy"])
    out.unlink(missing_ok=True)
    for kind, confounders in {} if floors else CONFOUNDERS.items():
        file, moved = place / f"{kind}.json", place / "out" / "moved.parquet"
        given = ["--domain", "domain", "--reference-label", "old", "-c", confounders]
        fit = ["-m", "condokit", "fit", files, *given, "-f", "x*", "-o", file, "--quiet"]
        ours = found[f"fit, {kind}"] = measured(fit, repeats, file)
        if "failed" not in ours:
            told = [sys.executable, "-c", ERROR, str(file), kind]
            ours["error"] = float(subprocess.run(told, stdout=-1, check=True).stdout)
        show(f"fit, {kind}", ours, found["means"], AIMS[kind])
        if "failed" in ours:
            continue
        apply = ["-m", "condokit", "apply", file, files, "-o", moved]
        found[f"apply, {kind}"] = measured(apply, repeats, moved)
        show(f"apply, {kind}", found[f"apply, {kind}"], found["copy"], AIMS[kind])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("millions", type=float, nargs="?", default=50)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--folder", help="where files are written for a while")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--floors", action="store_true", help="polars alone; nothing is stored")
    parser.add_argument("--write", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    n_rows = int(options.millions * 1e6)
    if options.write:
        write(options.write, n_rows, options.features)
        return
    if options.folder is not None:
        Path(options.folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        start = time.perf_counter()
        size = [str(options.millions), "--features", str(options.features)]
        # in a process of its own, as a child begins with the highest memory of its parent
        subprocess.run([sys.executable, __file__, *size, "--write", folder], check=True)
        n_bytes = sum(p.stat().st_size for p in Path(folder).iterdir())
        took = time.perf_counter() - start
        print(f"{n_rows:,} x {options.features}: {n_bytes / 1e9:.2f} GB, written in {took:.0f} s")
        found = run(Path(folder), options.repeats, options.floors)
    if not options.floors:
        record = {"n": n_rows, "d": options.features, "bytes": n_bytes, "cores": os.cpu_count()}
        with (HERE / "results" / "scale.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record | {"found": found}) + "\n")


if __name__ == "__main__":
    main()
