"""Speed and memory of the command line: apply against pyarrow alone, help, and the report.

Run with a number of million rows; 10 takes 3 GB of disk for a while.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from condokit import AffineMap, ConDoAdapter

N_FEATURES = 20
COPY = """
import sys, pyarrow.parquet as pq
source = pq.ParquetFile(sys.argv[1])
with pq.ParquetWriter(sys.argv[2], source.schema_arrow) as sink:
    for batch in source.iter_batches(1 << 17):
        sink.write_batch(batch)
"""
MEASURED = """
import resource, runpy, sys, time
sys.argv = sys.argv[1:]
start = time.perf_counter()
try:
    runpy.run_module(sys.argv[0], run_name="__main__") if sys.argv[0] != "copy" else exec({copy!r})
except SystemExit as end:
    assert not end.code, end.code
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(time.perf_counter() - start, peak / 1e3, file=sys.stderr)
"""


def measured(*arguments):
    """Run a module or the copy in a process of its own; return seconds and peak megabytes."""
    code = MEASURED.format(copy=COPY)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(map(float, done.stderr.strip().splitlines()[-1].split()))


def table(path, n_rows):
    rng = np.random.default_rng(0)
    names = [f"x{j}" for j in range(N_FEATURES)]
    schema = pa.schema([("id", pa.int64()), *((name, pa.float64()) for name in names)])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, n_rows, 500_000):
            n = min(500_000, n_rows - start)
            columns = [pa.array(np.arange(start, start + n))]
            columns += [pa.array(rng.normal(size=n)) for _ in names]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    return names


def main(millions):
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        names = table(place / "in.parquet", int(millions * 1e6))
        rng = np.random.default_rng(1)
        X = rng.normal(size=(1000, N_FEATURES))
        affine = ConDoAdapter(shrinkage=None).fit_pair(X, 2 * X + 1).map_
        affine = AffineMap(affine.scale, affine.offset, names, fitted_on=affine.fitted_on)
        affine.save(place / "map.json")
        paths = place / "in.parquet", place / "out.parquet"
        alone, alone_memory = measured("copy", paths[0], place / "copy.parquet")
        (place / "copy.parquet").unlink()
        ours, memory = measured(
            "condokit.cli", "apply", place / "map.json", paths[0], "-o", paths[1]
        )
        print(
            f"apply, {millions:g} million x {N_FEATURES}: {alone / ours:.2f} of pyarrow's rows per "
            f"second (target: at least 0.5), {memory:.0f} MB (target: below 500; pyarrow "
            f"{alone_memory:.0f} MB)"
        )
    start = time.perf_counter()
    for _ in range(5):
        subprocess.run([sys.executable, "-m", "condokit.cli", "--help"], stdout=-3, check=True)
    print(f"condokit --help: {(time.perf_counter() - start) / 5:.2f} s (target: below 0.3)")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
