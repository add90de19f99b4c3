"""A few standards, measured on both instruments: the fit beside what chemists do with them.

    OMP_NUM_THREADS=1 python experiments/standards.py [--n 12] [--seed 90000] [--only corn]

Writes results/STANDARDS.md: errors on held-out units relative to doing nothing, for 5 and 10
standards, alone or beside other rows of each domain that z confounds, and times on 80 x 700.
Real pairs are read from CONDOKIT_DATA.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from instruments import PAIRS, rmse, split_pair, table
from instruments import sets as instrument_sets

from condokit import ConDoAdapter
from condokit.checks import Array

RESULTS = Path(__file__).parent / "results"
RIDGES = 10.0 ** np.arange(-8, 2)  # of the summed variance
MAPS = ("location-scale", "auto")  # of ours
Method = Callable[[Array, Array], Callable[[Array], Array]]


def sets() -> dict[str, tuple[Array, Array, Array, Array]]:
    """Return query readings, reference readings, z and unit of each development pair."""
    spectra = {}
    for device in ("m5", "mp5", "mp6"):
        columns = table(PAIRS / "corn" / f"corn_{device}.csv.gz")
        spectra[device] = np.column_stack([v for n, v in columns.items() if n != "sample"])
    z = table(PAIRS / "corn" / "corn_chem.csv")["Moisture"]
    found = {}
    for bands in (700, 35, 14):
        mean = {
            k: np.stack([part.mean(1) for part in np.array_split(s, bands, axis=1)], 1)
            for k, s in spectra.items()
        }
        for a, b in (("mp5", "m5"), ("mp6", "m5"), ("mp6", "mp5")):
            found[f"corn{bands} {a}>{b}"] = mean[a], mean[b], z, np.arange(80)
    found |= {k: v for k, v in instrument_sets().items() if not k.startswith("corn")}
    t = table(PAIRS / "airquality" / "AirQualityUCI.csv.gz")
    names = ["PT08_S1_CO", "PT08_S3_NOx", "PT08_S4_NO2", "CO_GT", "NOx_GT", "NO2_GT", "T"]
    values = np.column_stack([t[n] for n in names])
    ok = (values > np.array([0] * 6 + [-100])).all(axis=1)
    X = np.log(values[ok, :6])
    day = np.unique(t["Date"][ok], return_inverse=True)[1]
    hour = np.unique(day, return_index=True)[1][::2] + 12  # one noon of every other day, about
    some = np.zeros(len(day), bool)
    some[np.minimum(hour, len(day) - 1)] = True
    X[:, 1] *= -1
    found["air quality"] = X[some, :3], X[some, 3:], values[ok, 6][some], day[some]
    return found


# --------------------------------------------------------------------------- rivals


def mean_shift(X: Array, Y: Array) -> Callable[[Array], Array]:
    shift = (Y - X).mean(axis=0)
    return lambda new: new + shift


def slope_and_bias(X: Array, Y: Array) -> Callable[[Array], Array]:
    left, right = X - X.mean(axis=0), Y - Y.mean(axis=0)
    slope = (left * right).sum(axis=0) / np.maximum((left**2).sum(axis=0), 1e-300)
    return lambda new: Y.mean(axis=0) + slope * (new - X.mean(axis=0))


def by_leave_one_out(left: Array, right: Array, values: Array, factors: list[Array]) -> int:
    """Return which hat matrix U diag(f) U' (plus a mean) has the least leave-one-out error."""
    errors = []
    for f in factors:
        hat = (values * f) @ values.T + 1 / len(left)
        gap = (right - hat @ right) / np.maximum(1 - np.diag(hat), 1e-9)[:, None]
        errors.append((gap**2).sum())
    return int(np.argmin(errors))


def direct(kind: str) -> Method:
    """Direct standardisation: a full matrix by ridge, or of the rank that predicts best."""

    def method(X: Array, Y: Array) -> Callable[[Array], Array]:
        left, right = X - X.mean(axis=0), Y - Y.mean(axis=0)
        U, size, back = np.linalg.svd(left, full_matrices=False)
        k = max(int((size > 1e-9 * size.max()).sum()), 1)
        U, size, back = U[:, :k], np.maximum(size[:k], 1e-300), back[:k]
        if kind == "ridge":
            factors = [size**2 / (size**2 + r * (size**2).sum()) for r in RIDGES]
        else:
            factors = [np.arange(len(size)) < k for k in range(1, min(k, len(X) - 2) + 1)]
        f = factors[by_leave_one_out(left, right, U, factors)]
        matrix = back.T @ ((f / size)[:, None] * (U.T @ right))
        return lambda new: Y.mean(axis=0) + (new - X.mean(axis=0)) @ matrix

    return method


def piecewise(half: int, rank: int) -> Method:
    """Piecewise direct standardisation: each channel from its neighbours' principal components."""

    def method(X: Array, Y: Array) -> Callable[[Array], Array]:
        d = X.shape[1]
        left, right = X - X.mean(axis=0), Y - Y.mean(axis=0)
        matrix = np.zeros((d, d))
        for j in range(d):
            near = slice(max(j - half, 0), j + half + 1)
            U, size, back = np.linalg.svd(left[:, near], full_matrices=False)
            k = min(rank, len(size), len(X) - 1)
            matrix[near, j] = back[:k].T @ (U[:, :k].T @ right[:, j] / np.maximum(size[:k], 1e-300))
        return lambda new: Y.mean(axis=0) + (new - X.mean(axis=0)) @ matrix

    return method


RIVALS: dict[str, Method] = {
    "mean shift": mean_shift,
    "slope, bias": slope_and_bias,
    "DS ridge": direct("ridge"),
    "DS low rank": direct("rank"),
    "PDS 3/1": piecewise(1, 1),
    "PDS 7/2": piecewise(3, 2),
    "PDS 11/3": piecewise(5, 3),
}


# --------------------------------------------------------------------------- cases


def draw(data, n: int, seed: int):
    """Return standards, test rows, and other rows of the query and of the reference."""
    query, reference, test = split_pair(data, seed, small=False)
    unit, rng = data[3], np.random.default_rng(seed + 1)
    chosen = rng.choice(np.unique(unit[query | reference]), n, replace=False)
    standards = np.array([rng.choice(np.flatnonzero(unit == u)) for u in chosen])
    others = ~np.isin(unit, chosen)
    rows = (np.flatnonzero(side & others) for side in (query, reference))
    return standards, np.flatnonzero(test), *rows


def ours(data, standards: Array, query: Array, reference: Array, alone: bool, **options):
    """Return an adapter fitted with standards, alone or beside other rows."""
    Xq, Xr, z, unit = data
    n = np.arange(len(standards))
    q, r = (
        standards if alone else np.concatenate([standards, rows]) for rows in (query, reference)
    )
    Z = (None, None) if alone else (z[q], z[r])
    who = None if len(np.unique(unit)) == len(unit) else (unit[q], unit[r])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter = ConDoAdapter(warn_overlap=0, min_overlap=0, **options)
        return adapter.fit_pair(Xq[q], Xr[r], *Z, groups=who, pairs=(n, n))


def errors(data, n: int, alone: bool, seeds: range) -> Array | None:
    """Return errors / none of all rivals and of two maps of ours; None if units are too few."""
    Xq, Xr, _, unit = data
    if len(np.unique(unit)) < 3 * n:
        return None
    sd, out = Xr.std(axis=0), []
    for seed in seeds:
        standards, test, *others = draw(data, n, seed)
        maps = [method(Xq[standards], Xr[standards]) for method in RIVALS.values()]
        for kind in MAPS:
            maps.append(ours(data, standards, *others, alone, map=kind).transform)
        none = rmse(Xq[test] / sd, Xr[test] / sd)
        out.append([rmse(f(Xq[test]) / sd, Xr[test] / sd) / none for f in maps])
    return np.mean(out, axis=0)


def table_of(found: dict[str, Array]) -> list[str]:
    names = [*RIVALS, *MAPS]
    lines = ["| set | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [
        f"| {name} | " + " | ".join(f"{value:.3f}" for value in row) + " |"
        for name, row in found.items()
    ]
    rows = np.array(list(found.values()))
    mean = np.exp(np.log(rows).mean(axis=0))
    lines.append("| geometric mean | " + " | ".join(f"**{v:.3f}**" for v in mean) + " |")
    bars = rows[:, :2].min(axis=1), rows[:, : len(RIVALS)].min(axis=1)
    words = "the better of mean shift and slope and bias", "the best of all rivals"
    lines.append("")
    for kind, bar, what, ratio in zip(MAPS, bars, words, rows[:, -2:].T):
        ratio = ratio / bar
        lines.append(
            f"`{kind}` over {what} of each set: geometric mean "
            f"{np.exp(np.log(ratio).mean()):.3f}, largest {ratio.max():.3f}, at or below it in "
            f"{int((ratio <= 1).sum())} of {len(ratio)}, within 5% in "
            f"{int((ratio <= 1.05).sum())}."
        )
    return lines


def times() -> list[str]:
    """Return seconds of PDS and of fits on 80 x 700, the best of five."""
    Xq, Xr, z, _ = sets()["corn700 mp5>m5"]

    def best(run: Callable[..., object], *data: Array, **options: object) -> float:
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            run(*data, **options)
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    names = ["pairs", "PDS 7/2", "map", "alone", "of 80 + 80 rows", "given z", "no pairs, given z"]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for n in (5, 10, 80):
        pairs = np.arange(n), np.arange(n)
        pds = best(RIVALS["PDS 7/2"], Xq[:n], Xr[:n])
        for kind in MAPS:
            fit = ConDoAdapter(kind).fit_pair
            spent = [
                best(fit, Xq[:n], Xr[:n], pairs=pairs),
                best(fit, Xq, Xr, pairs=pairs),
                best(fit, Xq, Xr, z, z, pairs=pairs),
                best(fit, Xq, Xr, z, z),
            ]
            cells = " | ".join(f"{value:.3f}" for value in spent)
            lines.append(f"| {n} | {pds:.3f} | {kind} | {cells} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=12, help="seeds")
    parser.add_argument("--seed", type=int, default=90_000)
    parser.add_argument("--only", default="", help="sets whose names begin so; prints alone")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.n)
    page = [
        "# Standards",
        "",
        f"Error on held-out units over that of doing nothing, mean of {options.n} seeds from "
        f"{options.seed}; `python experiments/standards.py`. PDS w/k: from w channels by k "
        "principal components. The last two columns are ours.",
    ]
    for n in (5, 10):
        for alone in (True, False):
            where = "alone" if alone else "beside other rows, strongly confounded by z"
            found = {
                name: row
                for name, data in sets().items()
                if name.startswith(options.only)
                and (row := errors(data, n, alone, seeds)) is not None
            }
            part = ["", f"## {n} standards {where}", "", *table_of(found)]
            print("\n".join(part), flush=True)
            page += part
    if not options.only:
        page += ["", "## Seconds on 80 x 700", "", *times(), ""]
        (RESULTS / "STANDARDS.md").write_text("\n".join(page))


if __name__ == "__main__":
    main()
