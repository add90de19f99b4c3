"""The default on simulations with known answers and on real instruments measured twice.

    OMP_NUM_THREADS=1 python experiments/instruments.py [tails paper split sizes strata
        interactions coverage pairs equivariance few] [--n 20]

Each section prints errors of the plain map (shrinkage=None) and of the default beside a target,
where there is one. Real pairs are read from CONDOKIT_DATA. Speed is in benchmarks/.
"""

import argparse
import csv
import gzip
import os
import time
import warnings
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from condokit import ConDoAdapter
from condokit.checks import Array
from condokit.datasets import EFFECTS, make_continuous1d

PAIRS = Path(os.environ.get("CONDOKIT_DATA", ".")) / "pairs"
SEED = 50_000  # added to every seed; 0 was used while constants were chosen


@dataclass
class Line:
    """A diagonal map, and the adapter that found it."""

    scale: Array
    offset: Array
    adapter: ConDoAdapter | None = None

    def __call__(self, X: Array) -> Array:
        """Map rows."""
        return self.scale * X + self.offset


def adapt(Xq, Xr, Zq=None, Zr=None, groups=None, **options) -> Line:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter = ConDoAdapter(warn_overlap=0, min_overlap=0, **options)
        adapter.fit_pair(Xq, Xr, Zq, Zr, groups=groups)
    return Line(adapter.map_.scale * np.ones(Xq.shape[1]), adapter.map_.offset, adapter)


def both(*data, **options) -> tuple[Line, Line]:
    """Return the plain map and the default."""
    return adapt(*data, shrinkage=None, **options), adapt(*data, **options)


def levels(k: Array) -> Array:
    return np.array([f"level {value}" for value in k], dtype=object)


def rmse(mapped: Array, truth: Array) -> float:
    return float(np.sqrt(np.mean((mapped - truth) ** 2)))


def show(name: str, ours: object, target: str = "") -> None:
    print(f"  {name:34} {ours!s:60} target {target}", flush=True)


def held(f: Line, m: Array, b: Array, X: Array, truth: Array) -> list[float]:
    """Return which shares of 95% intervals of scales, offsets and values hold the truth."""
    errors = f.adapter.map_se_
    value, error = f.adapter.transform(X, return_std=True)
    return [
        float(np.mean(np.abs(f.scale - m) < 1.96 * errors["scale"])),
        float(np.mean(np.abs(f.offset - b) < 1.96 * errors["offset"])),
        float(np.mean(np.abs(value - truth) < 1.96 * error)),
    ]


def cover(shares: list) -> str:
    mean = np.mean(shares, axis=0)
    return "cover " + "; ".join("/".join(f"{v:.2f}" for v in row) for row in mean)


# --------------------------------------------------------------------------- tails (10b)


def _noise(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    if kind == "t3":
        return rng.standard_t(3, shape) / np.sqrt(3)
    if kind == "lognormal":
        x = np.exp(rng.normal(size=shape))
        return (x - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)
    if kind == "exponential":
        return rng.exponential(size=shape) - 1
    return rng.normal(size=shape)


def draw_tails(kind: str, seed: int, n: int = 200, d: int = 2):
    rng = np.random.default_rng(seed)
    mean, sd = 2 * rng.normal(size=(3, d)), rng.uniform(0.6, 1.6, (3, d))
    m, b = rng.uniform(0.5, 2, d), 2 * rng.normal(size=d)
    out = []
    for shares in ((3, 2, 1), (1, 2, 3)):
        k = rng.choice(3, n, p=np.array(shares) / 6)
        out.append((k, mean[k] + sd[k] * _noise(kind, rng, (n, d))))
    (kq, xq), (kr, xr) = out
    truth = xq.copy()
    unit = xq.std(0)
    dirty_q, dirty_r = xq.copy(), xr.copy()
    for name, share, sides in (("5q", 0.05, "q"), ("5b", 0.05, "qr"), ("1b", 0.01, "qr")):
        if kind == name:
            for side, x in (("q", dirty_q), ("r", dirty_r)):
                if side in sides:
                    hit = rng.uniform(size=x.shape) < share
                    size = rng.uniform(8, 15, x.shape) * rng.choice([-1, 1], x.shape)
                    x += hit * size * unit
    # observed query = (x - b) / m, so that the map is m x + b
    return (dirty_q - b) / m, dirty_r, kq, kr, (xq - b) / m, truth, m, b, unit


def tails(n_sim: int) -> None:
    print("tails: 200 + 200 rows, 2 features, 3 strata; rMSE in sd (plain / default)")
    targets = {
        "normal": ".098",
        "5q": ".13",
        "5b": ".135",
        "1b": ".12",
        "t3": ".095",
        "lognormal": ".09",
        "exponential": "",
    }
    for kind, target in targets.items():
        errors, shares = [], []
        for seed in range(n_sim):
            Xq, Xr, kq, kr, clean, truth, m, b, unit = draw_tails(kind, SEED + 1000 + seed)
            found = both(Xq, Xr, levels(kq), levels(kr))
            errors.append([rmse(f(clean) / unit, truth / unit) for f in found])
            shares.append([held(f, m, b, clean, truth) for f in found])
        e = np.mean(errors, axis=0)
        show(kind, f"{e[0]:.3f} / {e[1]:.3f}  {cover(shares)}", target)


# --------------------------------------------------------------------------- the paper


def paper(n_sim: int) -> None:
    print("paper: continuous1d, heldout rMSE, three effects (plain; default)")
    for name, arguments, target in (
        ("both shifts", {}, ".56 / 1.25 / .60"),
        ("no shift", {"scale": 1.0, "offset": 0.0}, ""),
    ):
        rows, shares = [], []
        for effect in EFFECTS:
            errors = []
            for seed in range(n_sim):
                p = make_continuous1d(effect, random_state=SEED + 5000 + seed, **arguments)
                found = both(p.X_query, p.X_reference, p.Z_query, p.Z_reference)
                errors.append([rmse(f(p.X_heldout), p.truth_heldout) for f in found])
                shares.append(
                    [held(f, p.A.item(), p.b.item(), p.X_heldout, p.truth_heldout) for f in found]
                )
            rows.append(np.mean(errors, axis=0))
        text = "; ".join(" / ".join(f"{v:.3f}" for v in row) for row in np.transpose(rows))
        show(name, f"{text}  {cover(shares)}", target)


def split(n_sim: int) -> None:
    print("32 columns, heldout rMSE, three effects (default)")
    for kind in ("split", "irrelevant"):
        rows = []
        for effect in EFFECTS:
            errors = []
            for seed in range(max(n_sim // 2, 10)):
                p = make_continuous1d(
                    effect, n_confounders=32, columns=kind, random_state=SEED + 6000 + seed
                )
                f = adapt(p.X_query, p.X_reference, p.Z_query, p.Z_reference)
                errors.append(rmse(f(p.X_heldout), p.truth_heldout))
            rows.append(np.mean(errors))
        show(kind, " / ".join(f"{v:.3f}" for v in rows))


# --------------------------------------------------------------------------- sizes and strata


def draw_strata(rng, nq, nr, K, d, m, b, per=None, sd=True, shares=None):
    """Stratum means 2 N(0, 1), sds U[.6, 1.6]; `per` rows a stratum and domain, or drawn ones."""
    mean = 2 * rng.normal(size=(K, d))
    sds = rng.uniform(0.6, 1.6, (K, d)) if sd else np.ones((K, d))
    kq = np.repeat(np.arange(K), per) if per else rng.choice(K, nq, p=shares)
    back = None if shares is None else shares[::-1]
    kr = np.repeat(np.arange(K), per) if per else rng.choice(K, nr, p=back)
    xq = mean[kq] + sds[kq] * rng.normal(size=(len(kq), d))
    xr = mean[kr] + sds[kr] * rng.normal(size=(len(kr), d))
    return (xq - b) / m, xr, kq, kr, xq


def sizes(n_sim: int) -> None:
    print(
        "unequal sizes, 2 strata, 8 features, m U[.5, 2], b N(0, 4): rMSE in sd (plain / default)"
    )
    cells = [(20, 5000, ".27"), (50, 1000, ".156")]
    for shares, (nq, nr, target) in product(([0.5, 0.5], [0.75, 0.25], [0.9, 0.1]), cells):
        errors, inside = [], []
        for seed in range(n_sim):
            rng = np.random.default_rng(SEED + 2000 + seed)
            m, b = rng.uniform(0.5, 2, 8), 2 * rng.normal(size=8)
            Xq, Xr, kq, kr, truth = draw_strata(rng, nq, nr, 2, 8, m, b, shares=shares)
            found = both(Xq, Xr, levels(kq), levels(kr))
            unit = Xr.std(0)
            errors.append([rmse(f(Xq) / unit, truth / unit) for f in found])
            inside.append([held(f, m, b, Xq, truth) for f in found])
        e = np.mean(errors, axis=0)
        name = f"{nq} v {nr}, shares {shares[0]}"
        show(name, f"{e[0]:.3f} / {e[1]:.3f}  {cover(inside)}", target)


def strata(n_sim: int) -> None:
    print("many strata: bias of a scale 1.5 (plain / default), rMSE in sd (default)")
    for K, per in ((800, 3), (200, 3), (100, 2), (10, 30)):
        for d in (1, 10, 100):
            bias, errors = [], []
            for seed in range(max(3, n_sim // (2 if d < 100 else 8))):
                rng = np.random.default_rng(SEED + 3000 + seed)
                Xq, Xr, kq, kr, truth = draw_strata(rng, 0, 0, K, d, 1.5, 1.0, per)
                found = both(Xq, Xr, levels(kq), levels(kr))
                bias.append([f.scale.mean() - 1.5 for f in found])
                errors.append(rmse(found[1](Xq), truth) / Xr.std())
            e = np.mean(bias, axis=0)
            text = f"{e[0]:+.3f} / {e[1]:+.3f}  rMSE {np.mean(errors):.3f}"
            show(f"{K} x {per}, {d} features", text, ".04 plain; .05 default at 800 x 3")


# --------------------------------------------------------------------------- interactions


def draw_interaction(kind: str, n: int, seed: int):
    rng = np.random.default_rng(seed)
    Zq, Zr = 4 * rng.beta(2.5, 1, (n, 4)) - 2, rng.uniform(-2, 2, (n, 4))

    def mean(Z: Array) -> Array:
        if kind == "condition":
            return 3 * ((Z[:, 0] > 0.4) & (Z[:, 1] > 0.4) & (Z[:, 2] > 0.4)) + Z[:, 3]
        if kind == "product":
            return Z[:, 0] * Z[:, 1] + Z[:, 3]
        return np.sin(2 * (Z[:, 0] + Z[:, 1]) / np.sqrt(2)) * 2 + Z[:, 3]

    xq, xr = (mean(Z)[:, None] + rng.normal(size=(n, 1)) for Z in (Zq, Zr))
    return (xq - 1) / 1.5, xr, Zq, Zr, xq


def interactions(n_sim: int) -> None:
    print("four confounders: rMSE in sd at 300 and 4000 rows together, growth of rMSE sqrt(n)")
    for kind in ("condition", "product", "ridge"):
        out, terms = [], None
        for n, times in ((300, n_sim), (4000, max(3, n_sim // 6))):
            errors = []
            for seed in range(times):
                Xq, Xr, Zq, Zr, truth = draw_interaction(kind, n // 2, SEED + 4000 + seed)
                f = adapt(Xq, Xr, Zq, Zr)
                errors.append(rmse(f(Xq), truth) / Xr.std())
                terms = f.adapter.report_.mean_terms
            out.append(np.mean(errors))
        growth = out[1] / out[0] * np.sqrt(4000 / 300)
        show(kind, f"{out[0]:.3f}, {out[1]:.3f}  x{growth:.2f} {terms}", "x1.5")


# --------------------------------------------------------------------------- coverage


def coverage(n_sim: int) -> None:
    print("coverage of nominal 95%: scale / offset / value; plain then default")
    for K in (2, 4, 10):
        shares = []
        for seed in range(max(4, n_sim // 4)):
            rng = np.random.default_rng(SEED + 7000 + seed)
            m = np.exp(rng.uniform(np.log(0.5), np.log(2), 400))
            Xq, Xr, kq, kr, truth = draw_strata(rng, 0, 0, K, 400, m, 1.0, 30)
            found = both(Xq, Xr, levels(kq), levels(kr))
            shares.append([held(f, m, 1.0, Xq, truth) for f in found])
        show(f"400 features, {K} strata x 30", cover(shares), ".92")
    for kind, target in (
        ("normal", ".92"),
        ("exponential", ".90"),
        ("t3", ".90"),
        ("lognormal", ".88"),
    ):
        for n in (100, 500):
            shares = []
            for seed in range(2 * n_sim):
                Xq, Xr, kq, kr, clean, truth, m, b, _ = draw_tails(kind, SEED + 8000 + seed, n)
                found = both(Xq, Xr, levels(kq), levels(kr))
                shares.append([held(f, m, b, clean, truth) for f in found])
            show(f"{kind}, {n} rows", cover(shares), target)


# --------------------------------------------------------------------------- real pairs


def regression_shift(Xq, Xr, Zq, Zr) -> Line:
    is_query = np.arange(len(Xq) + len(Xr)) < len(Xq)
    D = np.column_stack([np.ones(len(is_query)), np.concatenate([Zq, Zr]), is_query])
    beta = np.linalg.lstsq(D, np.vstack([Xq, Xr]), rcond=None)[0]
    return Line(np.ones(Xq.shape[1]), -beta[-1])


def moments(Xq, Xr) -> Line:
    m = Xr.std(0) / np.maximum(Xq.std(0), 1e-300)
    return Line(m, Xr.mean(0) - m * Xq.mean(0))


def table(path: Path) -> dict[str, Array]:
    """Read columns; those of numbers as numbers, NaN where nothing is written."""
    opening = gzip.open if path.suffix == ".gz" else open
    with opening(path, "rt") as file:
        rows = list(csv.DictReader(file))
    out = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        try:
            out[name] = np.array(
                [float(v) if v not in ("", "NA", "nan") else np.nan for v in values]
            )
        except ValueError:
            out[name] = np.array(values)
    return out


def sets() -> dict[str, tuple[Array, Array, Array, Array]]:
    """Return query readings, reference readings, z and unit of each development pair."""
    found = {}
    corn = {k: table(PAIRS / "corn" / f"corn_{k}.csv.gz") for k in ("m5", "mp5", "mp6")}
    spectra = {
        k: np.column_stack([v for n, v in t.items() if n != "sample"]) for k, t in corn.items()
    }
    z = table(PAIRS / "corn" / "corn_chem.csv")["Moisture"]
    for bands in (14, 100):
        mean = {
            k: np.stack([part.mean(1) for part in np.array_split(s, bands, axis=1)], 1)
            for k, s in spectra.items()
        }
        pairs = (
            (("mp5", "m5"), ("mp6", "m5"), ("mp6", "mp5"))
            if bands == 14
            else (("mp5", "m5"), ("mp6", "mp5"))
        )
        for a, b in pairs:
            found[f"corn{bands} {a}>{b}"] = mean[a], mean[b], z, np.arange(80)
    t = table(PAIRS / "clinical" / "vitcap.csv")
    for a in ("ExpSkil", "ExpNew"):
        found[f"vitcap {a}"] = t[a][:, None], t["StSkil"][:, None], t["StNew"], np.arange(72)
    t = table(PAIRS / "clinical" / "hba1c.csv")
    who = np.unique(t["subject"], return_inverse=True)[1]
    for a, b, third in (
        ("Tosoh_Cap", "BR.VC_Cap", "BR.V2_Cap"),
        ("BR.V2_Ven", "BR.VC_Ven", "Tosoh_Ven"),
        ("Tosoh_Ven", "BR.VC_Ven", "BR.V2_Ven"),
    ):
        ok = np.isfinite(t[third])
        mean = np.bincount(who[ok], t[third][ok], minlength=who.max() + 1) / np.maximum(
            np.bincount(who[ok], minlength=who.max() + 1), 1
        )
        seen = np.bincount(who[ok], minlength=who.max() + 1) > 0
        ok = np.isfinite(t[a]) & np.isfinite(t[b]) & seen[who]
        found[f"hba1c {a}"] = t[a][ok, None], t[b][ok, None], mean[who[ok]], who[ok]
    t = table(PAIRS / "clinical" / "ox.csv")
    who = np.unique(t["item"], return_inverse=True)[1]
    count = np.bincount(who)
    total = np.bincount(who, t["CO"])
    ok = count[who] > 1
    found["ox"] = (
        t["pulse"][ok, None],
        t["CO"][ok, None],
        ((total[who] - t["CO"]) / np.maximum(count[who] - 1, 1))[ok],
        who[ok],
    )
    t = table(PAIRS / "clinical" / "glucose.csv")
    who = np.unique(t["subject"], return_inverse=True)[1]
    for a in ("h.cap", "h.blood", "n.plas2", "k.plas", "m.plas", "o.cap"):
        ok = np.isfinite(t[a]) & np.isfinite(t["n.plas1"]) & np.isfinite(t["time"])
        found[f"glucose {a}"] = t[a][ok, None], t["n.plas1"][ok, None], t["time"][ok], who[ok]
    return found


def split_pair(data, seed: int, small: bool):
    """Send units to one side each, the test units to none (strong confounding by z)."""
    Xq, Xr, z, unit = data
    rng = np.random.default_rng(seed)
    units = np.unique(unit)
    level = np.array([z[unit == u].mean() for u in units])
    third = np.searchsorted(np.quantile(level, [1 / 3, 2 / 3]), level)
    if len(np.unique(level)) < 6:
        third = np.searchsorted([1 / 3, 2 / 3], rng.permutation(len(units)) / len(units))
    order = rng.permutation(len(units))
    test = order[: len(units) // 4]
    rest = order[len(units) // 4 :]
    side = rng.uniform(size=len(units)) < np.array([0.15, 0.5, 0.85])[third]
    query, reference = rest[side[rest]], rest[~side[rest]]
    if small:
        query, reference = query[:12], reference[:12]
    pick = [np.isin(unit, units[part]) for part in (query, reference, test)]
    if len(np.unique(level)) < 6 or np.std(level) < 0.2 * np.std(z):  # z varies within units alone
        row = np.searchsorted(np.quantile(z, [1 / 3, 2 / 3]), z)
        chance = np.array([0.15, 0.5, 0.85])[row]
        u = rng.uniform(size=len(z))
        pick[0] &= u < chance
        pick[1] &= u < 1 - chance
    return pick


def pairs(n_sim: int) -> None:
    print("development pairs: error / none, strong confounding, all rows / 12 units a domain")
    names = ["default", "plain", "shift", "reg shift", "moments"]
    print(" " * 26 + "".join(f"{n:>15}" for n in names))
    logs, harm = [], []
    for name, data in sets().items():
        cells = []
        for small in (False, True):
            out = []
            for seed in range(n_sim):
                q, r, test = split_pair(data, SEED + seed, small)
                Xq, Xr, z, unit = data
                if q.sum() < 4 or r.sum() < 4:
                    continue
                args = Xq[q], Xr[r], z[q], z[r]
                who = None if len(np.unique(unit)) == len(unit) else (unit[q], unit[r])
                plain, default = both(*args, groups=who)
                maps = [default, plain, adapt(*args, groups=who, map="shift")]
                maps += [regression_shift(*args), moments(*args[:2])]
                sd = Xr.std(0)
                none = rmse(Xq[test] / sd, Xr[test] / sd)
                out.append([rmse(f(Xq[test]) / sd, Xr[test] / sd) / none for f in maps])
            cells.append(np.mean(out, axis=0))
            harm.append(np.mean(np.array(out) > 1.05, axis=0))
        logs.append(np.log(cells))
        print(f"  {name:24}" + "".join(f"{a:>8.3f}/{b:.3f} " for a, b in zip(*cells)), flush=True)
    mean = np.exp(np.mean(logs, axis=0))
    print(f"  {'geometric mean':24}" + "".join(f"{a:>8.3f}/{b:.3f} " for a, b in zip(*mean)))
    shares = "".join(f"{a:>14.2f} " for a in np.mean(harm, axis=0))
    print(f"  {'worse than none by 5%':24}" + shares)
    logs = np.array(logs)
    above = logs[:, :, 0] > logs[:, :, 2:].min(2) + np.log(1.1)
    print(f"  above the best other by 10%: {above.sum()} of {above.size}")


# --------------------------------------------------------------------------- properties


def equivariance(n_sim: int) -> None:
    print("query x 1000, a common change: root mean square move of adapted data, in sd")
    for n in (20, 50, 200):
        common, thousand, plain = [], [], []
        for seed in range(n_sim):
            rng = np.random.default_rng(SEED + 9000 + seed)
            m = np.exp(0.1 * rng.normal(size=4))
            Xq, Xr, kq, kr, _ = draw_strata(rng, n, n, 2, 4, m, 0.3)
            Z = levels(kq), levels(kr)
            before = both(Xq, Xr, *Z)
            base = before[1](Xq)
            moved = adapt(7 * Xq + 100, 7 * Xr + 100, *Z)
            common.append(np.abs((moved(7 * Xq + 100) - 100) / 7 - base).max())
            after = both(1000 * Xq, Xr, *Z)
            thousand.append(rmse(after[1](1000 * Xq), base) / Xr.std())
            plain.append(np.abs(after[0](1000 * Xq) - before[0](Xq)).max())
        text = f"common {np.max(common):.1e} x 1000 mean {np.mean(thousand):.3f} "
        text += f"max {np.max(thousand):.3f} plain {np.max(plain):.1e}"
        show(f"{n} + {n} rows", text, ".05")


def few(n_sim: int) -> None:
    print("2 + 7 rows of 1174 features: error / none of plain, default and shift; largest scales")
    out = []
    for seed in range(max(5, n_sim // 4)):
        rng = np.random.default_rng(SEED + 11000 + seed)
        d = 1174
        factor = rng.normal(size=(15, 3)) @ rng.normal(size=(3, d)) * 0.5
        x = rng.normal(20, 2, d) + factor + rng.normal(size=(15, d)) * 0.5
        shift = rng.normal(0, 0.6, d)
        Xq, Xr, Z = x[:2] - shift, x[8:], (levels(np.zeros(2)), levels(np.zeros(7)))
        found = [*both(Xq, Xr, *Z), adapt(Xq, Xr, *Z, map="shift", shrinkage=None)]
        test, truth = x[:8] - shift, x[:8]
        row = [rmse(f(test), truth) / rmse(test, truth) for f in found]
        out.append([*row, found[0].scale.max(), found[1].scale.max()])
    e = np.mean(out, axis=0)
    text = f"{e[0]:.2f} / {e[1]:.2f} / {e[2]:.2f}, scales {e[3]:.1f} / {e[4]:.2f}"
    show("plain / default / shift", text, "shift or less")


SECTIONS = {
    f.__name__: f
    for f in (
        tails,
        paper,
        split,
        sizes,
        strata,
        interactions,
        coverage,
        pairs,
        equivariance,
        few,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sections", nargs="*", default=list(SECTIONS))
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    globals()["SEED"] = options.seed
    for name in options.sections or list(SECTIONS):
        start = time.process_time()
        SECTIONS[name](options.n)
        print(f"  ({time.process_time() - start:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
