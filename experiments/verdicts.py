"""Verdicts against the truth: simulations with a known map, and instruments measured twice.

    OMP_NUM_THREADS=1 python experiments/verdicts.py [simulations none hidden matrices strata pairs]
        [--n 200] [--seed 0]

Each map is judged by `evaluate` on the rows that it was fitted on, without the truth. Its actual
error is the root mean squared distance to the true map, or to the map fitted on all pairs (standard
deviations over each other), at the query rows, in standard deviations of the reference; before is
the same of the values as recorded. Printed: how often each verdict was given, the share of maps
called better that were worse than none, the share of maps better by 10% that were called better,
predicted over actual error, and how often 95% intervals held the actual one.
"""

import argparse
import time
import warnings

import numpy as np
import pandas as pd
from instruments import _noise, adapt, levels, sets, split_pair

from condokit import AffineMap, ConDoAdapter, evaluate
from condokit.checks import Array


def draw(seed: int):
    """Return query rows, reference rows, confounders, the true map, and the hidden half of z."""
    rng = np.random.default_rng(seed)
    kind, d = rng.choice(["categories", "number", "both"]), int(rng.choice([1, 2, 5, 20, 60]))
    sizes = np.exp(rng.uniform(np.log(15), np.log(400), 2)).astype(int)
    strength = rng.choice([0.3, 1.0, 2.0])  # of the confounding
    shift = rng.choice([0.0, 0.1, 0.3, 1.0, 3.0], p=[0.3, 0.15, 0.2, 0.2, 0.15])
    spread = rng.choice([0.0, 0.05], p=[0.8, 0.2]) if shift == 0 else rng.choice([0.0, 0.05, 0.3])
    tail = rng.choice(["normal", "t3", "exponential"], p=[0.6, 0.2, 0.2])
    slope, mean = rng.normal(size=d) * rng.choice([0.5, 1.5]), rng.normal(size=(3, d))
    bend, load = rng.choice([0.0, 0.5]), rng.normal(size=(2, d)) * rng.choice([0.0, 0.7])
    X, Z = [], []
    for n, sign in zip(sizes, (0.5, -0.5)):
        z, *marks = rng.normal(size=(3, n)) + sign * strength
        level = (marks[0] > 0).astype(int) + (marks[1] > 1)
        x = 5 + rng.normal(size=(n, 2)) @ load + _noise(tail, rng, (n, d))
        x += 0.0 if kind == "categories" else np.outer(z + bend * z**2, slope)
        x += 0.0 if kind == "number" else mean[level]
        X.append(x)
        columns = {"level": levels(level), "z": z}
        unused = {"categories": "z", "number": "level"}.get(kind)
        Z.append(pd.DataFrame(columns).drop(columns=unused or []))
    m = np.exp(spread * rng.normal(size=d))
    b = shift * (rng.normal(size=d) if rng.uniform() < 0.5 else rng.choice([-1, 1]) * np.ones(d))
    centre = X[0].mean(0)
    offset = centre + b - m * centre
    return (X[0] - offset) / m, X[1], Z[0], Z[1], m, offset


def rms(gap: Array) -> float:
    return float(np.sqrt(np.mean(gap**2)))


def judge(Xq, Xr, Zq, Zr, m, b, groups=None, used=True, **options) -> dict:
    """Fit and evaluate; return verdict, predicted and actual errors."""
    Zq, Zr = (None if Z is None or not used else pd.DataFrame(Z) for Z in (Zq, Zr))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter = ConDoAdapter(warn_overlap=0, min_overlap=0, **options)
        adapter.fit_pair(Xq, Xr, Zq, Zr, groups=groups)
    X, Z = np.vstack([Xq, Xr]), None if Zq is None else pd.concat([Zq, Zr], ignore_index=True)
    domain = np.repeat(["query", "reference"], [len(Xq), len(Xr)])
    who = None if groups is None else np.concatenate(groups)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = evaluate(adapter, X, domain=domain, confounders=Z, groups=who, n_permutations=39)
    unit, true = Xr.std(0), Xq @ m.T + b if np.ndim(m) == 2 else Xq * m + b
    return {
        "verdict": found.verdict,
        "before": rms((Xq - true) / unit),
        "after": rms((adapter.transform(Xq) - true) / unit),
        "predicted_before": found.error_before,
        "predicted_after": found.error_after,
        "interval": found.error_after_interval,
        "doubts": found.doubts,
    }


def tell(name: str, found: list[dict]) -> None:
    table = pd.DataFrame(found)
    better, harmed = table.verdict == "better", table.after > table.before * (1 + 1e-9)
    helped = table.after < 0.9 * table.before
    shares = ", ".join(
        f"{k} {v:.2f}" for k, v in table.verdict.value_counts(normalize=True).items()
    )
    print(f"- **{name}**: {len(table)} maps, {harmed.mean():.2f} worse than none; {shares}")
    print(
        f"    called better: {harmed[better].mean():.3f} worse than none (by 5%: "
        f"{(table.after > 1.05 * table.before)[better].mean():.3f}); of maps better by 10%, "
        f"{better[helped].mean():.2f} called better"
    )
    known = table[table.interval.notna() & (table.after > 0)]
    ratios = [known[f"predicted_{k}"] / known[k].clip(lower=1e-9) for k in ("before", "after")]
    text = "; ".join(
        f"{k} {r.median():.2f}, half within a factor of {np.exp(np.log(r).abs().median()):.2f}"
        for k, r in zip(("before", "after"), ratios)
    )
    inside = [low <= a <= high for (low, high), a in zip(known.interval, known.after)]
    print(f"    predicted / actual: {text}; intervals hold {np.mean(inside):.2f}", flush=True)


def simulations(n: int, seed: int) -> None:
    found = []
    for s in range(n):
        try:
            found.append(judge(*draw(seed + s)))
        except ValueError as error:  # too few rows in common
            print(f"    refused: {str(error).splitlines()[0]}")
    tell("simulations", found)


def none(n: int, seed: int) -> None:
    tell("without confounders", [judge(*draw(seed + s), used=False) for s in range(n // 4)])


def hidden(n: int, seed: int) -> None:
    """Judge maps fitted without one of two confounders, which the table has."""
    found = []
    for s in range(n):
        Xq, Xr, Zq, Zr, m, b = draw(seed + s)
        if len(Zq.columns) < 2:
            continue
        names = [f"x{j}" for j in range(Xq.shape[1])]
        parts = [pd.DataFrame(X, columns=names).join(Z) for X, Z in ((Xq, Zq), (Xr, Zr))]
        frame = pd.concat(parts, ignore_index=True)
        frame["domain"] = np.repeat(["query", "reference"], [len(Xq), len(Xr)])
        try:
            adapter = adapt(Xq, Xr, Zq[["level"]], Zr[["level"]]).adapter
        except ValueError:  # too few rows in common
            continue
        roles = {"domain": "domain", "confounders": ["level"], "features": names}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen = evaluate(adapter.map_, frame, **roles, n_permutations=39)
        unit, true = Xr.std(0), Xq * m + b
        before, after = rms((Xq - true) / unit), rms((adapter.transform(Xq) - true) / unit)
        sizes = seen.error_before, seen.error_after, seen.error_after_interval
        names = ("predicted_before", "predicted_after", "interval")
        found.append(
            {"verdict": seen.verdict, "before": before, "after": after} | dict(zip(names, sizes))
        )
    tell("a confounder left out", found)


def matrices(n: int, seed: int) -> None:
    """Judge full matrices, and diagonal maps where the truth is a matrix."""
    for options in ({"map": "affine", "divergence": "ot"}, {"map": "affine"}, {}):
        found = []
        for s in range(n // 8):
            rng = np.random.default_rng(seed + s)
            d, rows = int(rng.choice([2, 3, 6])), int(rng.choice([100, 300]))
            L, mean = rng.normal(size=(d, d)) * 0.5 + np.eye(d), rng.normal(size=(3, d))
            A = np.eye(d) + rng.choice([0.0, 0.2]) * rng.normal(size=(d, d)) / np.sqrt(d)
            b = rng.choice([0.0, 0.5]) * rng.normal(size=d)
            k = [rng.choice(3, rows, p=p) for p in ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5])]
            X = [mean[level] + rng.normal(size=(rows, d)) @ L.T for level in k]
            query = np.linalg.solve(A, (X[0] - b).T).T
            Z = [{"level": levels(level)} for level in k]
            found.append(judge(query, X[1], *Z, A, b, **options))
        tell(f"true matrices, {options}", found)


def strata(n: int, seed: int) -> None:
    """Measure how often a common shift of many small strata is seen."""
    seen = {0.0: [], 0.3: []}
    for s in range(n // 4):
        rng = np.random.default_rng(seed + s)
        k = np.tile(np.repeat(np.arange(100), 3), 2)
        X = rng.normal(size=(100, 1))[k] + rng.normal(size=(600, 1))
        domain = np.repeat(["query", "reference"], 300)
        for shift in seen:
            moved = X + shift * (domain == "query")[:, None]
            roles = {"domain": domain, "confounders": {"stratum": levels(k)}}
            found = evaluate(AffineMap([1.0], [0.0]), moved, **roles, n_permutations=99)
            seen[shift].append(found.p_features <= 0.05)
    text = ", ".join(f"shift {k} seen in {np.mean(v):.2f}" for k, v in seen.items())
    print(f"- **100 strata of 3 + 3 rows**: {text}")


def pairs(n: int, seed: int) -> None:
    found = []
    for name, data in sets().items():
        Xq, Xr, z, unit = data
        m = Xr.std(0) / Xq.std(0)
        b = Xr.mean(0) - m * Xq.mean(0)
        for small in (False, True):
            for s in range(max(n // 20, 4)):
                q, r, test = split_pair(data, seed + s, small)
                if min(q.sum(), r.sum()) < 4:
                    continue
                lone = len(np.unique(unit)) == len(unit)
                who = None if lone else (unit[q], unit[r])
                try:
                    one = judge(Xq[q], Xr[r], {"z": z[q]}, {"z": z[r]}, m, b, who)
                except ValueError as error:
                    print(f"    {name}: {error}")
                    continue
                found.append({"pair": name, **one})
    tell("development pairs", found)
    for name, part in pd.DataFrame(found).groupby("pair"):
        better = part.verdict == "better"
        print(
            f"    - {name}: before {part.before.mean():.2f} (predicted "
            f"{part.predicted_before.mean():.2f}), after {part.after.mean():.2f} "
            f"({part.predicted_after.mean():.2f}); better {better.mean():.2f}, of these worse than "
            f"none {(part.after > part.before)[better].sum()}"
        )


SECTIONS = {f.__name__: f for f in (simulations, none, hidden, matrices, strata, pairs)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sections", nargs="*", default=list(SECTIONS))
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("# Verdicts against the truth\n")
    command = f"experiments/verdicts.py --n {options.n} --seed {options.seed}"
    print(f"Written by `{command}`, which says what is measured.")
    print("Seeds below 10,000 were used while rules were chosen.\n", flush=True)
    for name in options.sections or list(SECTIONS):
        start = time.process_time()
        SECTIONS[name](options.n, options.seed)
        print(f"    ({time.process_time() - start:.0f} s of one core)\n", flush=True)


if __name__ == "__main__":
    main()
