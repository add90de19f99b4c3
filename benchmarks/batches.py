"""Time of many batches over StandardScaler, dense and sparse, and memory of sparse input.

OMP_NUM_THREADS=1 python benchmarks/batches.py
"""

import sys
import time

import blackbox
import numpy as np
from sklearn.preprocessing import StandardScaler

from condokit import BatchAdapter

SPARSE = """
import sys, time, tracemalloc
import anndata, numpy as np, pandas as pd, scipy.sparse as sp
from sklearn.preprocessing import StandardScaler
from condokit import BatchAdapter
n, d, fits = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(0)
X = sp.random(n, d, 0.1, "csr", np.float32, rng=rng)
obs = pd.DataFrame({"batch": [f"b{k}" for k in rng.integers(0, 10, n)],
                    "cell_type": [f"t{k}" for k in rng.integers(0, 8, n)]},
                   index=[str(k) for k in range(n)])
data = anndata.AnnData(X, obs=obs)
size = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
if fits == "memory":
    tracemalloc.start()
start = time.perf_counter()
if fits == "scaler":
    StandardScaler(with_mean=False).fit(X)
else:
    BatchAdapter(reference="b0").fit(data, batch="batch", confounders=["cell_type"])
took = time.perf_counter() - start
print(took, tracemalloc.get_traced_memory()[1] / size if fits == "memory" else 0)
"""


def dense(n_batches=50, n=2000, d=2000):
    """Return times of fit and transform over those of StandardScaler, the best of two."""
    rng = np.random.default_rng(0)
    batch = np.repeat(np.arange(n_batches), n)
    group = np.array(["a", "b", "c"])[rng.integers(0, 3, len(batch))]
    X = rng.normal(size=(len(batch), d))
    times = []
    for _ in range(2):
        marks = [time.perf_counter()]
        scaler = StandardScaler().fit(X)
        marks.append(time.perf_counter())
        adapter = BatchAdapter(reference=0).fit(X, batch=batch, confounders=group)
        marks.append(time.perf_counter())
        scaler.transform(X)
        marks.append(time.perf_counter())
        adapter.transform(X, batch=batch)
        marks.append(time.perf_counter())
        times.append(np.diff(marks))
    best = np.min(times, axis=0)
    return best[1] / best[0], best[3] / best[2]


if __name__ == "__main__":
    fit, transform = dense()
    print(
        f"50 x 2000 rows x 2000 features: fit {fit:.2f} (wanted 4), transform {transform:.2f} (1.5)"
    )
    found = {
        what: [blackbox.run(sys.executable, SPARSE, 100_000, 2000, what) for _ in range(3)]
        for what in ("scaler", "batches")
    }
    took = {what: min(float(words[0]) for words in runs) for what, runs in found.items()}
    memory = float(blackbox.run(sys.executable, SPARSE, 100_000, 2000, "memory")[1])
    ratio = took["batches"] / took["scaler"]
    print(f"100,000 x 2000, 90% zeros: fit {ratio:.2f} (wanted 6), memory {memory:.2f} (2)")
