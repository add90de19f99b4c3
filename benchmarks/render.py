"""BENCHMARKS.md and its figures from results/*.jsonl; nothing is measured here.

python benchmarks/render.py
"""

import json
import math
from collections import defaultdict
from pathlib import Path

from peers import FLOOR, METHODS, OURS

TITLES = {
    "none": "no confounder",
    "categorical": "one categorical confounder, 4 levels",
    "heavy tails": "categorical confounder, heavy tails",
    "continuous": "one continuous confounder, curved effects",
    "mixed": "2 categorical and 3 continuous confounders",
    "matrix": "no confounder, full matrix",
}
COLOURS = {
    "condo": "tab:red",
    "combatlearn": "tab:blue",
    "neuroHarmonize": "tab:green",
    "POT": "tab:purple",
    "skada": "tab:orange",
}
AXES = {"n": "rows", "d": "features"}


def quantity(value):
    """Return a positive number with two digits that count."""
    if value >= 100:
        return f"{value:,.0f}"
    digits = max(0, 1 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(digits, 4)}f}"


def time_of(seconds):
    return f"{quantity(seconds)} s" if seconds >= 0.1 else f"{quantity(1e3 * seconds)} ms"


def memory_of(n_bytes):
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{max(n_bytes, 0) / 1e6:.0f} MB"


def sentence(r):
    name = f"{r['kind']:12} {r['n']:>9,} x {r['d']:<6,} {r['method']:20}"
    if "not_run" in r:
        return f"{name} not run, {r['not_run']}"
    return f"{name} {time_of(r['seconds'])}, {memory_of(r['memory'])}, error {r['error']:.3f}"


def measured(records):
    return [r for r in records if "not_run" not in r]


def cell_of(r):
    return r["kind"], r["n"], r["d"]


def ratios(records, other):
    """Return {cell: our time over that of another method} where both were measured."""
    done = measured(records)
    theirs = {cell_of(r): r["seconds"] for r in done if r["method"] == other}
    ours = {cell_of(r): r["seconds"] for r in done if r["method"] in OURS}
    return {cell: ours[cell] / theirs[cell] for cell in ours if cell in theirs}


def lines(records, axis):
    """Return {(kind, method): [(size, record), ...]} and what is fixed."""
    other = "d" if axis == "n" else "n"
    sizes = defaultdict(set)
    for r in records:
        sizes[r[other]].add(r[axis])
    fixed = max(sizes, key=lambda k: len(sizes[k]))
    found = defaultdict(list)
    for r in sorted(measured(records), key=lambda r: r[axis]):
        if r[other] == fixed:
            found[r["kind"], r["method"]].append((r[axis], r))
    return found, fixed


def exponent(line, field="seconds", n_last=3):
    """Return the slope of log(time) on log(size) over the largest sizes, or None."""
    points = [(math.log(x), math.log(r[field])) for x, r in line[-n_last:] if r[field] > 0]
    if len(points) < 2:
        return None
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points))
    square = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / square


def floors(records):
    return {cell_of(r): r["seconds"] for r in measured(records) if r["method"] == FLOOR}


def limit(r, floor, shows_stages=False):
    """Return what limits a cell of ours, as measured.

    A fixed cost if the same call on 200 + 200 rows takes half of the time or more. Otherwise where
    most samples were; loops over arrays are bound by memory if all takes at most 3 times as long as
    the floor, which does little else than to read and write, and by arithmetic if not.
    """
    shares = r.get("shares")
    if not shares:
        return "not measured"
    order = sorted(shares, key=shares.get, reverse=True)
    parts = [f"{name} {100 * shares[name]:.0f}%" for name in order if shares[name] >= 0.01]
    fixed = min(1, (r["fixed"] or 0) / r["seconds"])
    what = "fixed cost (Python, small arrays)" if fixed >= 0.5 else order[0]
    if what == "arrays":
        near = r["seconds"] <= 3 * floor.get(cell_of(r), 0)
        what = "memory bandwidth" if near else "arithmetic on arrays"
    copies = f"{quantity(r['seconds'] / r['copy'])} copies"
    if shows_stages and r.get("stages"):
        slow = ", ".join(f"`{name}` {100 * share:.0f}%" for name, share in r["stages"].items())
        copies += f"; inside {slow}"
    return f"{what}: {', '.join([f'fixed {100 * fixed:.0f}%', *parts, copies])}"


def table(header, rows):
    body = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in body) + "\n"


def _entry(r):
    if r is None:
        return ""
    if "not_run" in r:
        reason, _, detail = r["not_run"].partition(": ")
        known = reason if detail.startswith("as in") else detail
        return "failed" if reason == "failed" else f"not run ({known})"
    return f"{time_of(r['seconds'])}, {memory_of(r['memory'])}, {r['error']:.3f}"


def _kind(kind, records):
    chosen = [r for r in records if r["kind"] == kind]
    names = [name for name in METHODS if any(r["method"] == name for r in chosen)]
    found = {(r["n"], r["d"], r["method"]): r for r in chosen}
    sizes = sorted({(n, d) for n, d, _ in found}, key=lambda s: (s[1] != 10, s))
    ours = next((name for name in names if name in OURS), None)
    rows = []
    for n, d in sizes:
        own = found.get((n, d, ours))
        what = limit(own, floors(chosen)) if own and "not_run" not in own else ""
        rows.append([f"{n:,} x {d:,}", *(_entry(found.get((n, d, k))) for k in names), what])
    text = f"### {TITLES[kind].capitalize()}\n\n"
    text += table(["rows x features", *names, f"what limits {ours}"], rows)
    failed = {
        (r["method"], r["not_run"]) for r in chosen if r.get("not_run", "").startswith("fail")
    }
    for name, why in sorted(failed):
        if "as in" not in why:
            cells = [f"{r['n']:,} x {r['d']:,}" for r in chosen if r.get("not_run") == why]
            text += f"\n{name} failed at {', '.join(cells)}: `{why.partition(': ')[2]}`\n"
    return text


def _exponents(records):
    rows = []
    by_axis = {axis: lines(records, axis)[0] for axis in AXES}
    keys = {key for found in by_axis.values() for key in found}
    order = {name: i for i, name in enumerate([*TITLES, *METHODS])}
    for kind, name in sorted(keys, key=lambda k: (order[k[0]], order[k[1]])):
        shown = []
        for axis in AXES:
            line = by_axis[axis].get((kind, name), [])
            power, step = exponent(line), exponent(line, n_last=2)
            shown.append("" if power is None else f"{power:.2f}, {step:.2f} (to {line[-1][0]:,})")
        rows.append([TITLES[kind], name, *shown])
    return table(["confounders", "method", "exponent of rows", "exponent of features"], rows)


def claims(records):
    """Return the aims as sentences and a table of peers, computed, with all exceptions."""
    worst = []
    for axis, called in AXES.items():
        for (kind, name), line in lines(records, axis)[0].items():
            power, step = exponent(line), exponent(line, n_last=2)
            if name == OURS[0] and power is not None and max(power, step) > 1.1:
                floor = exponent(lines(records, axis)[0].get((kind, FLOOR), []), n_last=2)
                beside = "" if floor is None else f", of {FLOOR} {floor:.2f}"
                worst.append(f"{called}, {TITLES[kind]}: {power:.2f}, last step {step:.2f}{beside}")
    said = "; ".join(worst) if worst else "none is"
    text = (
        "Exponents of condokit's default are to be at most 1.1, over the three largest sizes and "
    )
    text += f"over the last step alone. Above: {said}.\n\n"
    text += (
        "condokit is to be 10 times as fast as condo everywhere, and faster than every other peer "
    )
    text += "in 90% of the cells that both ran:\n\n"
    rows, exceptions = [], []
    for peer in (name for name in METHODS if name not in (*OURS, FLOOR)):
        aim, share = (10, 1) if peer == "condo" else (1, 0.9)
        found = {cell: 1 / ratio for cell, ratio in ratios(records, peer).items()}
        if not found:
            rows.append([peer, "0", "", "", "no cell that both ran"])
            continue
        held = sum(times >= aim for times in found.values())
        order = sorted(found.values())
        middle = [quantity(v) for v in (order[0], order[len(order) // 2], order[-1])]
        verdict = "held" if held >= share * len(found) else "not held"
        shown = f"{held} ({100 * held / len(found):.0f}%)"
        rows.append([peer, len(found), " / ".join(middle), shown, verdict])
        short = [cell for cell, times in found.items() if times < aim]
        exceptions += [_exception(records, cell, found[cell], peer) for cell in short]
    heads = ["peer", "cells", "times as fast: least / median / most", "cells as wanted", "aim"]
    text += table(heads, rows) + "\n### Exceptions\n\n"
    text += (
        f"Beside ours stands how many times as fast {FLOOR} is; where that is too little as well, "
    )
    text += "what is wanted lies below the floor.\n\n"
    heads = ["peer", "confounders", "rows x features", "times as fast", f"{FLOOR}, times as fast"]
    heads += ["error, ours / theirs", "memory, ours / theirs", "what limits condokit"]
    return text + table(heads, exceptions)


def _exception(records, cell, times, peer):
    """Return one exception with errors, memory and what limits us there."""
    both = {r["method"]: r for r in measured(records) if cell_of(r) == cell}
    ours, theirs = next(both[name] for name in OURS if name in both), both[peer]
    kind, n, d = cell
    floor = floors(records)
    best = quantity(theirs["seconds"] / floor[cell]) if cell in floor else ""
    errors = f"{ours['error']:.3f} / {theirs['error']:.3f}"
    memory = f"{memory_of(ours['memory'])} / {memory_of(theirs['memory'])}"
    shown = [peer, TITLES[kind], f"{n:,} x {d:,}", quantity(times), best, errors, memory]
    return [*shown, limit(ours, floor, True)]


def _style(name):
    if name in OURS:
        return {"color": "black", "lw": 2.4, "marker": "o", "zorder": 3}
    if name == FLOOR:
        return {"color": "0.55", "ls": "--", "marker": "o"}
    package, _, variant = name.partition(",")
    return {"color": COLOURS[package], "lw": 1.3, "marker": "s" if variant else "o"} | (
        {"ls": ":"} if variant else {}
    )


def draw(records, folder):
    """Draw time over rows and features and memory over rows, one panel for each kind."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = [kind for kind in TITLES if any(r["kind"] == kind for r in records)]
    for axis, field, label in (
        ("n", "seconds", "seconds"),
        ("d", "seconds", "seconds"),
        ("n", "memory", "bytes beyond the data"),
    ):
        found, fixed = lines(records, axis)
        other = AXES["d" if axis == "n" else "n"]
        figure, panels = plt.subplots(2, 3, figsize=(14, 8), layout="constrained", sharex=True)
        for panel in panels.flat[len(kinds) :]:
            panel.set_visible(False)
        for panel, kind in zip(panels.flat, kinds):
            for name in METHODS:
                line = [(x, r) for x, r in found.get((kind, name), []) if r[field] > 0]
                if not line:
                    continue
                power = exponent(line, field)
                text = name if power is None else f"{name}, {power:.2f}"
                points = [x for x, _ in line], [r[field] for _, r in line]
                panel.loglog(*points, ms=3.5, label=text, **_style(name))
            panel.set_yscale("log")
            low, high = panel.get_ylim()
            legend = 0.07 * len(panel.lines) + 0.02  # share of the height that it needs
            panel.set_ylim(low, high * (high / low) ** (legend / (1 - legend)))
            panel.set_title(TITLES[kind], fontsize=10)
            panel.set(xlabel=AXES[axis], ylabel=label)
            panel.xaxis.set_tick_params(labelbottom=True)
            panel.grid(alpha=0.25)
            if panel.lines:
                panel.legend(fontsize=8, loc="upper left", framealpha=0.8, edgecolor="none")
        figure.suptitle(f"{label} over {AXES[axis]}, {fixed:,} {other}; exponents in the legends")
        figure.savefig(folder / f"{AXES[axis]}_{field}.png", dpi=90)
        plt.close(figure)


HEAD = """# Benchmarks

Written by `make bench` (benchmarks/page.py) from `results/page.jsonl`.

Measured on {date} in {parts}: {processor}, {cores} cores, Python {python},
condokit {condokit}, NumPy {numpy}, SciPy {scipy}, scikit-learn {scikit-learn}.
Peers, each in an environment of its own: {packages}.

An entry is **seconds of processor time** of fit and transform (the least of some calls; import and
the form of data that a package wants are not timed), **memory** (highest resident size during the
calls less that before them, as the kernel keeps it) and **error** (root mean square of the query's
values in the reference's units less their truth; noise has sd 1). Every entry is measured in a
fresh process with one thread, all methods on the same file; half of the rows are query. What needs
more than 8 GB or {seconds:g} s is not run, by the exponent of entries before it or by a hard limit.

{floor} (fitted to query and reference) is the floor: it ignores confounders, hence its error.
ComBat (combatlearn, neuroHarmonize) scales what confounders leave over and not their effects, and
the simulated query is scaled as a whole, as by a change of units: that is the part of its error
that more rows do not remove. It fits straight lines of continuous confounders, and with "gam"
curves, as condokit does. POT and skada take no confounders: they are compared with condokit's full
matrix (`map="affine", divergence="ot"`), which has standard errors as well, and is diagonal where
features outnumber rows (from 1000 on). condo is the method's first implementation, called as a
black box (`ConDoAdapterKLD`, location-scale).

What limits condokit is measured: the time of the same call on 200 + 200 rows and 3 features
("fixed"), the library that the process is in, noted from outside every 10 ms (Python, BLAS, or
loops over arrays: NumPy, SciPy, memory), and the time of copying both tables once, in which ours is
counted. Loops over arrays are "memory bandwidth" within 3 times the floor, else "arithmetic". Of
exceptions, the functions that most of the time is spent inside are told too (by cProfile).

"""
SCALE = """Parquet files, all cores, with the command line (benchmarks/scale.py). The floor of fit
is plain means of the features by polars' streaming engine, that of apply a copy of the files by it.

"""


def scale_table(runs):
    """Return the table of files larger than memory, from the records of scale.py."""
    rows = []
    for run in runs:
        size = f"{run['n']:,} x {run['d']} ({run['bytes'] / 1e9:.1f} GB)"
        for name, found in run["found"].items():
            if "failed" in found:
                rows.append([size, name, "failed", "", "", found["failed"]])
                continue
            floor = run["found"].get({"f": "means", "a": "copy"}.get(name[0], ""))
            ratio = quantity(found["seconds"] / floor["seconds"]) if floor else ""
            aim = "" if not floor else 6 if "continuous" in name else 3
            memory = f"{found['memory'] / 1e9:.2f} GB"
            rows.append([size, name, f"{found['seconds']:.1f} s", memory, ratio, aim])
    return table(["rows x features", "task", "time", "peak memory", "times the floor", "aim"], rows)


def write(records, folder):
    """Write BENCHMARKS.md into a folder and the figures into its folder results."""
    about, records = records[0], records[1:]
    packages = "; ".join(", ".join(wanted) for wanted in about["requirements"].values())
    parts = "one run" if len(about["runs"]) == 1 else f"several runs ({'; '.join(about['runs'])})"
    text = HEAD.format(**about, packages=packages, floor=FLOOR, parts=parts)
    text += f"## Aims\n\n{claims(records)}\n## Growth\n\n"
    text += (
        "Exponents of time over the three largest sizes that were run, and over the last two.\n\n"
    )
    text += _exponents(records)
    for name in ("rows_seconds", "features_seconds", "rows_memory"):
        text += f"\n![{name.replace('_', ': ')}](results/{name}.png)\n"
    text += "\n## All cells\n\n"
    present = [kind for kind in TITLES if any(r["kind"] == kind for r in records)]
    text += "\n".join(_kind(kind, records) for kind in present)
    scale = folder / "results" / "scale.jsonl"
    if scale.exists():
        runs = [json.loads(line) for line in scale.read_text(encoding="utf-8").splitlines()]
        text += f"\n## Files larger than memory\n\n{SCALE}{scale_table(runs)}"
    (folder / "results").mkdir(exist_ok=True)
    draw(records, folder / "results")
    (folder / "BENCHMARKS.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    here = Path(__file__).parent
    file = here / "results" / "page.jsonl"
    write([json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()], here)
