"""Measure what shrinkage="auto" gains and costs against the plain exact form, on real data.

Writes one row per scenario and method to results/shrinkage.csv, and prints them.
"""

import warnings

import numpy as np
from protocols import Pair, ansur, bladderbatch, categorical1d, rmse
from sklearn.metrics import silhouette_score
from tables import write

import condokit
from condokit import ConDoAdapter

METHODS = {"plain": {"shrinkage": None}, "default": {}}
SHIFTS = {
    "no shift": None,
    "2% / 0.02 sd": (0.02, 0.02),
    "5% / 0.05 sd": (0.05, 0.05),
    "10% / 0.1 sd": (0.1, 0.1),
    "large": "large",
}


def errors(pairs):
    """Return the rMSE of every method on every data set."""
    result = {name: [] for name in ["identity", *METHODS]}
    for pair in pairs:
        result["identity"].append(rmse(pair.X_query, pair.truth))
        for name, parameters in METHODS.items():
            adapter = ConDoAdapter(**parameters).fit_pair(
                pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference
            )
            result[name].append(rmse(adapter.transform(pair.X_query), pair.truth))
    return {name: np.array(values) for name, values in result.items()}


def known_truth_in_genes(seed, log_scale, shift):
    """Split batch 5 in two and shift one half, so that the truth is known for 22,283 genes."""
    X, result, batch = bladderbatch()
    rng = np.random.RandomState(seed)
    X, result = X[batch == 5], result[batch == 5]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    cancer = rng.permutation(np.flatnonzero(result == "Cancer"))
    other = rng.permutation(np.flatnonzero(result != "Cancer"))
    query, reference = np.r_[cancer[:5], other[:2]], np.r_[cancer[5:], other[2:]]
    scale = np.exp(rng.uniform(-log_scale, log_scale, X.shape[1]))
    observed = X[query] * scale + rng.normal(0, 1, X.shape[1]) * shift
    return Pair(observed, X[reference], result[query], result[reference], X[query])


def silhouettes(seed):
    """Return (by result, by batch) for the unadapted data and every method."""
    X, result, batch = bladderbatch(seed)
    query = batch == 2
    scores = {"identity": X}
    for name, parameters in METHODS.items():
        adapter = ConDoAdapter(**parameters)
        adapter.fit_pair(X[query], X[~query], result[query], result[~query])
        scores[name] = X.copy()
        scores[name][query] = adapter.transform(X[query])
    return {
        name: (silhouette_score(Y, result), silhouette_score(Y, batch))
        for name, Y in scores.items()
    }


def main():
    warnings.simplefilter("ignore", condokit.LowOverlapWarning)
    rows = []

    def add(data, setting, metric, values):
        for method, v in values.items():
            v = np.asarray(v)
            se = v.std(ddof=1) / np.sqrt(len(v)) if len(v) > 1 else float("nan")
            gain = v - values["plain"]
            gain_se = gain.std(ddof=1) / np.sqrt(len(v)) if len(v) > 1 else float("nan")
            rows.append(
                [data, setting, len(v), method, metric]
                + [f"{x:.5f}" for x in (v.mean(), se, gain.mean(), gain_se)]
            )
            print(f"{data:14} {setting:22} {method:9} {metric:22} {v.mean():8.4f} +- {se:.4f}")

    for n in (10, 20, 50, 100, 500):
        for label, seeds in (("seeds 0-9", range(10)), ("seeds 100-499", range(100, 500))):
            add(
                "categorical1d",
                f"N={n}, {label}",
                "rmse",
                errors(categorical1d(n, s) for s in seeds),
            )
    for n in (10, 20, 50, 500):
        for label, shift in SHIFTS.items():
            seeds = range(100, 130) if n < 500 else range(10)
            add(
                "ansur",
                f"n={n}, {label}",
                "rmse",
                errors(ansur(s, n=n, shift=shift) for s in seeds),
            )
    for label, size in (("no shift", (0, 0)), ("small", (0.05, 0.1)), ("large", (0.5, 1.0))):
        pairs = (known_truth_in_genes(s, *size) for s in range(10))
        add("bladder halves", label, "rmse", errors(pairs))
    for label, seeds in (("all samples", [None]), ("7 removed", range(10))):
        scores = [silhouettes(seed) for seed in seeds]
        for j, metric in enumerate(("silhouette by cancer", "silhouette by batch")):
            add("bladderbatch", label, metric, {m: [s[m][j] for s in scores] for m in scores[0]})

    names = ["data", "setting", "n_simulations", "method", "metric", "mean", "se"]
    write("shrinkage.csv", [[*names, "minus_plain", "minus_plain_se"], *rows])


if __name__ == "__main__":
    main()
