"""Numbers that pages quote are written by this script, from the files of results.

    python experiments/quotes.py [--check]

A page marks what it quotes by two comments, which readers do not see:

    the default leaves <!-- quote pairs default all -->0.69<!-- end quote --> of the error

The first word is a function below, the others are its arguments. Tables are quoted likewise,
between empty lines; otherwise no line begins with such a comment, which Markdown takes for HTML.
`--check` writes nothing, and fails if a page says something else than its result. `make evidence`
ends with this script.
"""

import csv
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
import render  # noqa: E402

RESULTS = ROOT / "experiments" / "results"
QUOTE = re.compile(r"<!-- quote (.+?) -->(.*?)<!-- end quote -->", re.DOTALL)
PUBLISHED = "published.csv"
EFFECTS = ("homoscedastic", "heteroscedastic", "nonlinear")
PUBLISHED_EFFECTS = ("Homoscedastic Linear", "Heteroscedastic Linear", "Nonlinear")
SHIFTS = "NoiseFree-TargetShift-FeatureShift"
Row = dict[str, str]


def pages() -> list[Path]:
    """Return all pages that may quote results."""
    built = ROOT / "docs" / "_build"
    found = [p for p in (ROOT / "docs").rglob("*.md") if built not in p.parents]
    return [ROOT / "README.md", *sorted(found)]


# --------------------------------------------------------------------------- reading results


@cache
def text_of(file: str) -> str:
    """Return what a file of results says."""
    return (RESULTS / file).read_text(encoding="utf-8")


@cache
def rows_of(file: str) -> list[Row]:
    """Return the rows of a table of results."""
    return list(csv.DictReader(text_of(file).splitlines()))


@cache
def tables_of(file: str) -> list[list[Row]]:
    """Return all tables of a Markdown page, without emphasis."""
    tables: list[list[list[str]]] = [[]]
    for line in text_of(file).splitlines():
        if line.startswith("|"):
            tables[-1].append([cell.strip().strip("*") for cell in line.strip("|").split("|")])
        elif tables[-1]:
            tables.append([])
    return [[dict(zip(table[0], row)) for row in table[2:]] for table in tables if table]


def value(rows: Iterable[Row], column: str, **where: str) -> float:
    """Return the one number in a column of the row that has these values."""
    found = [row for row in rows if all(row[name] == want for name, want in where.items())]
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows with {where}.")
    return float(found[0][column])


def measured(name: str) -> str:
    """Say when and with which commit a result was measured."""
    known = json.loads(text_of("evidence.json")).get(name)
    return f"{known['date']}, commit {known['commit']}" if known else "before dates were recorded"


def cells_of_bench() -> list[dict[str, Any]]:
    """Return the cells of `make bench` that were measured."""
    text = (ROOT / "benchmarks" / "results" / "page.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()[1:]]


# --------------------------------------------------------------------------- writing


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table between empty lines."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n"


def shown(x: float, digits: int = 2) -> str:
    """Return a number as pages show it."""
    return f"{x:.{digits}f}"


def least_bold(numbers: Sequence[float], digits: int = 3) -> list[str]:
    """Return numbers, the least of them in bold type if it is less than all others."""
    texts = [shown(x, digits) for x in numbers]
    least = min(texts, key=float)
    return [f"**{t}**" if t == least and texts.count(least) == 1 else t for t in texts]


def span(numbers: Iterable[float], digits: int = 2) -> str:
    """Return the least and the largest of some numbers."""
    known = sorted(numbers)
    ends = shown(known[0], digits), shown(known[-1], digits)
    return " to ".join(dict.fromkeys(ends))


# --------------------------------------------------------------------------- what pages quote


def pairs(method: str, what: str) -> str:
    """Return what a method leaves of the error on real instruments, or how often it harms."""
    order = ["default", "plain", "shift", "regression", "moments"]
    text = text_of("INSTRUMENTS.txt")
    if what == "harm":
        line = re.search(r"worse than none by 5%(.*)", text)
        return f"{100 * float(line[1].split()[order.index(method)]):.0f}%"
    line = re.search(r"geometric mean(.*)", text)
    all_rows, few = line[1].split()[order.index(method)].split("/")
    return shown(float(all_rows if what == "all" else few))


def pairs_table() -> str:
    """Return what every method leaves of the error on real instruments."""
    names = {
        "default": "default",
        "shift": '`map="shift"`',
        "regression": "regression on confounder and domain, shift",
        "plain": "`shrinkage=None`",
        "moments": "matching of moments, no confounders",
    }
    rows = [
        (name, f"{pairs(m, 'all')} / {pairs(m, 'few')}", pairs(m, "harm"))
        for m, name in names.items()
    ]
    return table(["method", "geometric mean", "worse than nothing by 5%"], rows)


def instrument(section: str, name: str, digits: int = 2) -> str:
    """Return the error of the default in one line of `instruments.py`, the plain map's first."""
    part = text_of("INSTRUMENTS.txt").split(section)[1].split(" s)")[0]
    line = re.search(rf"^  {re.escape(name)}\s+(.*)", part, re.MULTILINE)
    return shown(float(line[1].split("/")[1].split()[0]), digits)


def device_pairs(prefix: str) -> dict[str, dict[str, tuple[float, float]]]:
    """Return errors of methods over nothing, all rows and few, by pair of instruments."""
    part = text_of("INSTRUMENTS.txt").split("development pairs:")[1].split("geometric mean")[0]
    head, found = ("default", "plain", "shift", "regression", "moments"), {}
    for name, cells in re.findall(rf"^  ({prefix}.*?)  +(.*)$", part, re.MULTILINE):
        numbers = (tuple(map(float, cell.split("/"))) for cell in cells.split())
        found[name] = dict(zip(head, numbers))
    return found


def devices(prefix: str, method: str, rows: str = "all") -> str:
    """Return what a method leaves of the error on some instruments, a geometric mean."""
    known = (one[method][rows == "few"] for one in device_pairs(prefix).values())
    return shown(geometric_mean(known), 3)


def devices_harmed(prefix: str, what: str) -> str:
    """Return on how many instruments every method harms with few rows, or the default's errors."""
    known = [{m: errors[1] for m, errors in one.items()} for one in device_pairs(prefix).values()]
    harmed = [one for one in known if min(one.values()) > 1]
    if what == "count":
        return f"{len(harmed)} of {len(known)}"
    return span(one["default"] for one in harmed)


def strata_bias(sizes: str, features: str = "") -> str:
    """Return the largest bias of the default's scale with many strata, a true scale of 1.5."""
    lines = rf"^  {re.escape(sizes)}, {features or '[0-9]+'} features +\S+ / (\S+) "
    found = re.findall(lines, text_of("INSTRUMENTS.txt"), re.MULTILINE)
    return shown(max(abs(float(x)) for x in found), 3)


def interaction(name: str) -> str:
    """Return errors with 300 and 4000 rows and four confounders that interact."""
    part = text_of("INSTRUMENTS.txt").split("four confounders")[1]
    line = re.search(rf"^  {name}\s+([\d.]+), ([\d.]+)", part, re.MULTILINE)
    return f"{shown(float(line[1]))} / {shown(float(line[2]))}"


def shrinkage(data: str, setting: str, method: str) -> str:
    """Return a mean error of `shrinkage.py`."""
    rows = [row for row in rows_of("shrinkage.csv") if row["metric"] == "rmse"]
    return shown(value(rows, "mean", data=data, setting=setting, method=method), 3)


def shrinkage_table() -> str:
    """Return plain and default errors on body measurements."""
    shifts = {"no shift": "no shift", "5% and 0.05 sd": "5% / 0.05 sd", "large": "large"}
    rows = []
    for n in (10, 20, 50, 500):
        cells = []
        for shift in shifts.values():
            both = [shrinkage("ansur", f"n={n}, {shift}", m) for m in ("plain", "default")]
            cells.append(", ".join(least_bold(list(map(float, both)))))
        rows.append((str(n), *cells))
    return table(["people", *shifts], rows)


def matrices_table() -> str:
    """Return errors of matrices: medians of rotations, means elsewhere."""
    problems = {
        "rotations (5, 4, 500)": "rotated, 5 features, 4 strata of 500 rows",
        "rotations (12, 6, 500)": "12 features, 6 strata of 500",
        "rotations (3, 2, 500)": "3 features, 2 strata of 500",
        "rotations (12, 6, 60)": "12 features, 6 strata of 60",
        "categorical2d no confounding": "rings in the plane, same shares",
        "categorical2d confounded": "rings, other shares",
        "categorical2d random transform": "rings, random matrix",
        "ansur affine": "body measurements, 93 features, random matrix",
        "ansur location-scale": "the same, scales and offsets",
        "ansur no shift": "the same, no shift",
    }
    methods = ("identity", "location-scale", "affine", "auto")
    rows = []
    for problem, name in problems.items():
        column = "median_rmse" if problem.startswith("rot") else "mean_rmse"
        known = partial(value, rows_of("matrices.csv"), column, problem=problem)
        rows.append((name, *(shown(known(method=m), 3) for m in methods)))
    return table(["problem", "none", "location-scale", '`"affine"`', '`"auto"`'], rows)


def skewed(method: str) -> str:
    """Return the median error of a matrix of skewed features."""
    rows = [row for row in rows_of("matrices.csv") if row["problem"].startswith("skewed")]
    return shown(value(rows, "median_rmse", method=method))


def penalties_table() -> str:
    """Return errors of the paper's affine KL divergence with the best penalty of each kind."""
    kinds = {"KL": "KL", "$p = 1$": "p=1", "$p = 2$": "p=2"}
    kinds |= {"no negative entry": "no negative entry", '`map="auto"`': "condokit auto"}
    rows = []
    for problem in dict.fromkeys(row["problem"] for row in rows_of("penalties.csv")):
        known = [row for row in rows_of("penalties.csv") if row["problem"] == problem]
        least = (
            min(float(r["rmse"]) for r in known if r["method"].split(",")[0] == kind)
            for kind in kinds.values()
        )
        rows.append((problem, *(shown(x, 3) for x in least)))
    return table(("", *kinds), rows)


def verdict_number(name: str, what: str) -> float:
    """Return a number of `VERDICTS.md`."""
    part = text_of("VERDICTS.md").split(f"- **{name}**: ")[1].split("\n- **")[0]
    patterns = {
        "maps": r"^(\d+) maps",
        "bad": r"maps, ([\d.]+) worse than none",
        "unsure": r"cannot tell ([\d.]+)",
        "better": r"better ([\d.]+)",
        "false": r"called better: ([\d.]+|nan) worse",
        "power": r"of maps better by 10%, ([\d.]+)",
        "factor": r"after [\d.]+, half within a factor of ([\d.]+)",
        "held": r"intervals hold ([\d.]+)",
    }
    found = re.search(patterns[what], part)
    return float(found[1]) if found else 0.0


def verdict(name: str, what: str) -> str:
    """Return a share of `VERDICTS.md` in percent, or a factor."""
    number = verdict_number(name, what)
    return shown(number) if what == "factor" else f"{number:.0%}"


def verdict_table() -> str:
    """Return how often verdicts were right."""
    kinds = {
        "simulations": "simulations",
        "development pairs": "real instruments",
        "a confounder left out": "a confounder left out",
        "without confounders": "no confounders",
        "true matrices, {}": "true matrices, default map",
        "true matrices, {'map': 'affine'}": 'true matrices, `"affine"`',
        "true matrices, {'map': 'affine', 'divergence': 'ot'}": 'true matrices, `"ot"`',
    }
    rows = []
    for kind, name in kinds.items():
        wrong = verdict_number(kind, "false")
        rows.append(
            (
                f"{name} ({verdict_number(kind, 'maps'):.0f} maps)",
                verdict(kind, "better"),
                "–" if wrong != wrong else f"{wrong:.1%}",
                verdict(kind, "power"),
            )
        )
    head = ("maps", "called better", "of these worse than none", "of maps better by 10%, found")
    return table(head, rows)


def confounders(setting: str, method: str, digits: int = 2) -> str:
    """Return errors of the three effects of the paper's simulation."""
    known = partial(value, rows_of("confounders.csv"), "heldout_rmse", setting=setting)
    return " / ".join(shown(known(effect=e, method=method), digits) for e in EFFECTS)


def scale_table() -> str:
    """Return the default's error over that of the plain map, by the true scale."""
    scales = ("1.02", "1.05", "1.1", "1.2", "1.3", "2.0")
    rows = []
    for effect in EFFECTS:
        known = partial(value, rows_of("confounders.csv"), "heldout_rmse", effect=effect)
        cells = [
            known(setting=f"scale {s}", method="auto") / known(setting=f"scale {s}", method="plain")
            for s in scales
        ]
        rows.append((effect, *map(shown, cells)))
    return table(["true scale", *scales], rows)


def fits(file: str, column: str) -> str:
    """Return how many fits or simulations there were in each setting."""
    numbers = sorted(int(float(row[column])) for row in rows_of(file))
    return " to ".join(dict.fromkeys((str(numbers[0]), str(numbers[-1]))))


def coverage(effect: str, n: str, what: str) -> str:
    """Return the share of intervals of a scale or offset that hold the truth."""
    where = {"effect": effect, "subjects_per_domain": n, "rows_each": "1"}
    return shown(value(rows_of("coverage.csv"), f"coverage_{what}", **where))


def coverage_table() -> str:
    """Return which shares of intervals hold the truth, by rows a domain."""
    sheet, rows = rows_of("coverage.csv"), []
    for n in ("10", "20", "50", "100"):
        both = (f"{coverage(e, n, 'scale')}, {coverage(e, n, 'offset')}" for e in EFFECTS)
        rows.append((n, *both))
    several = [
        span(
            float(row[f"coverage_{what}"])
            for row in sheet
            if row["effect"] == e and row["rows_each"] == "10"
            for what in ("scale", "offset")
        )
        for e in EFFECTS
    ]
    return table(["rows a domain", *EFFECTS], [*rows, ("20 subjects of 10 rows", *several)])


def errors_held() -> str:
    """Return between which shares intervals of matrices hold the truth."""
    columns = ("entries_held", "offsets_held", "values_held")
    return span(float(row[c]) for row in rows_of("errors.csv") for c in columns if row[c])


def curves_table() -> str:
    """Return errors of curves over those of lines, by rows a domain."""
    rows = []
    for n in ("100", "500", "2000"):
        sheet = [row for row in tables_of("CURVES.md")[0] if row["rows"] == n]
        ratio = {
            kind: [float(row["curve / line"]) for row in sheet if (row["sensor"] in names) == here]
            for kind, names, here in (
                ("bent", ("line", "no shift"), False),
                ("line", ("line",), True),
                ("none", ("no shift",), True),
            )
        }
        held = [float(r["coverage"]) for r in sheet if r["sensor"] not in ("line", "no shift")]
        rows.append(
            (
                n,
                f"{shown(geometric_mean(ratio['bent']))} ({span(ratio['bent'])})",
                f"{span(ratio['line'])}; no shift {span(ratio['none'])}",
                f"{shown(mean(held))} ({span(held)})",
            )
        )
    head = ("rows a domain", "curve / line, bent truth", "straight truth", "95% intervals hold")
    return table(head, rows)


def curves_auto(limit: str = "") -> str:
    """Return how far `auto` is from the better map at most, or how often it is within a limit."""
    over = [float(row["auto / better"]) for row in tables_of("CURVES.md")[0]]
    if not limit:
        return f"{100 * (max(over) - 1):.0f}%"
    return f"{sum(one <= float(limit) for one in over)} of {len(over)}"


def of_standards(sheet: int, methods: Sequence[str]) -> float:
    """Return what the best of some methods leaves of the error: 5 standards alone, beside; 10."""
    return min(float(tables_of("STANDARDS.md")[sheet][-1][method]) for method in methods)


def standards(n: str, *methods: str) -> str:
    """Return what the best of some methods leaves of the error with n standards alone."""
    return shown(of_standards(0 if n == "5" else 2, methods), 3)


def standards_lost(rivals: str) -> str:
    """Return by how much rivals are better than us at most, and where.

    Rivals are "simple", against the default, or "all", against `map="auto"`.
    """
    names = list(tables_of("STANDARDS.md")[0][0])[1:-2]
    names, own = (names[:2], "location-scale") if rivals == "simple" else (names, "auto")
    where = ("5 standards alone", "5 beside other rows", "10 alone", "10 beside other rows")
    lost = [
        (float(row[own]) / min(float(row[name]) for name in names), row["set"], place)
        for sheet, place in zip(tables_of("STANDARDS.md"), where)
        for row in sheet[:-1]
    ]
    most, name, place = max(lost)
    return f"{100 * (most - 1):.0f}% ({name}, {place})"


def standards_table() -> str:
    """Return what methods leave of the error of standards, by their number."""
    names = {
        "mean difference": ["mean shift"],
        "slope and bias": ["slope, bias"],
        "direct standardisation, ridge": ["DS ridge"],
        "piecewise, best of three": ["PDS 3/1", "PDS 7/2", "PDS 11/3"],
        "condokit, default": ["location-scale"],
        'condokit, `map="auto"`': ["auto"],
    }
    columns = [[of_standards(sheet, cs) for cs in names.values()] for sheet in range(4)]
    cells = zip(*(least_bold(column) for column in columns))
    head = ["method", "5 alone", "5 beside", "10 alone", "10 beside"]
    return table(head, [(name, *row) for name, row in zip(names, cells)])


def batches_ratio() -> str:
    """Return between which shares of the best peer's error ours is."""
    column = "as good as the best peer?"
    found = (re.search(r"([\d.]+) ±", row[column]) for row in tables_of("BATCHES.md")[0])
    return span(float(one[1]) for one in found if one)


def batches_table() -> str:
    """Return errors of studies of many batches, relative to doing nothing."""
    studies = {
        "balanced": "balanced groups",
        "unbalanced groups": "unbalanced groups",
        "unbalanced groups and ages": "unbalanced groups and ages",
        "10 x 20 rows, groups": "10 batches of 20 rows, groups",
        "chain of 3": "batches in a chain",
    }
    rows = []
    for study, name in studies.items():
        (one,) = (row for row in tables_of("BATCHES.md")[0] if row["study"] == study)
        combat = min(float(one[m]) for m in ("neuroharmonize", "combatlearn", "scanpy"))
        others = [float(one["regression"]), combat, float(one["harmonypy"])]
        rows.append((name, *least_bold([*others, float(one["condokit"])], 2)))
    return table(["study", "regression", "ComBat", "Harmony", "condokit"], rows)


def bladder(method: str) -> str:
    """Return how samples of bladderbatch group by cancer."""
    return shown(value(tables_of("BATCHES.md")[1], "by cancer", method=method))


def bladder_combat() -> str:
    """Return between which silhouettes by cancer the three ComBats are."""
    names = ("neuroharmonize", "combatlearn", "scanpy")
    return span(float(bladder(name)) for name in names)


def batches_trust(column: str) -> str:
    """Return between which numbers coverage or expected over actual errors are."""
    rows = tables_of("BATCHES_TRUST.md")[0]
    return span(float(x) for row in rows for x in row[column].replace("to", "").split())


def plan(which: str) -> str:
    """Return the error after samples of a plan, or random ones, were measured again."""
    pattern = r"`BatchAdapter.plan` ([\d.]+), with random ones ([\d.]+)"
    return re.search(pattern, text_of("BATCHES_TRUST.md"))[1 + (which == "random")].rstrip(".")


def hidden(setting: str, column: str) -> str:
    """Return an error with noisy or hidden confounders."""
    rows = next(t for t in tables_of("HIDDEN.md") if column in t[0])
    return shown(value(rows, column, setting=setting))


def simulations(file: str, word: str = "simulations") -> str:
    """Return how many simulations a page of results names."""
    return re.search(rf"(\d+) {word}", text_of(file))[1]


def controls_table() -> str:
    """Return errors with hidden confounders and negative controls."""
    heads = ("setting", "as is", "map given the known", "controls", "controls, then map")
    rows = ([row[head] for head in heads] for row in tables_of("HIDDEN.md")[1])
    return table(heads, rows)


def hidden_table() -> str:
    """Return errors with noisy confounders."""
    names = {
        "reliability .8": "reliability .8",
        "reliability .6": "reliability .6",
        "and an exact one that goes with it": ".6, and an exact one beside it",
        "and a category that goes with it": ".6, and a category beside it",
        "two measurements of .6 each": "two measurements of .6 each",
        "curved effect": ".6, curved effect",
        "query spread 1.5 times": ".7, query spread 1.5 times",
        "exponential": ".8, skewed (exponential)",
    }
    rows = []
    for setting, name in names.items():
        (one,) = (r for r in tables_of("HIDDEN.md")[0] if r["setting"] == setting)
        off = f"{one['share + .1']}, {one['share - .1']}"
        held = shown(float(one["coverage"]))
        rows.append((name, one["as measured"], one["calibrated"], off, one["true"], held))
    head = ("setting", "as measured", "calibrated", "share ± .1", "true", "95% intervals hold")
    return table(head, rows)


def rejected(*maps: str) -> str:
    """Return between which shares of maps a shift is found that is left, at a level of 5%."""
    rows = [r for r in rows_of("trust.csv") if r["what"] == "rejected" and r["map"] in maps]
    shares = sorted({round(100 * float(row["share"])) for row in rows})
    return f"{shares[0]} to {shares[-1]}%" if len(shares) > 1 else f"{shares[0]}%"


def covered(kind: str) -> str:
    """Return between which shares of intervals hold the truth in `trust.csv`."""
    rows = [r for r in rows_of("trust.csv") if r["what"] == "covered" and r["kind"] == kind]
    return span(float(row["share"]) for row in rows)


def features(size: str, what: str) -> str:
    """Return false discoveries or found shifts among features, for shifts of a size."""
    rows = [r for r in rows_of("features.csv") if r["shift"] == size]
    known = [float(r[what]) for r in rows if r[what] != "nan"]
    return shown(max(known), 3) if what == "false_discoveries" else span(known)


def printed(name: str, pattern: str) -> str:
    """Return the groups of a pattern in what a benchmark printed."""
    text = (ROOT / "benchmarks" / "results" / f"{name}.txt").read_text(encoding="utf-8")
    found = re.search(pattern, text)
    if found is None:
        raise LookupError(f"{name}.txt has nothing like {pattern}.")
    return " / ".join(found.groups())


def bench_table() -> str:
    """Return processor times and errors of some cells of `make bench`."""
    cells = {
        "categorical": ("categorical", ((1000, 10), (10**6, 10), (10**7, 10), (1000, 20_000))),
        "continuous": ("continuous", ((1000, 10), (10**6, 10))),
        "mixed": ("2 categorical, 3 continuous", ((10_000, 10), (100_000, 10))),
    }
    methods = ("condokit", "StandardScaler", "combatlearn", "condo")
    known = {(r["kind"], r["n"], r["d"], r["method"]): r for r in cells_of_bench()}
    rows = []
    for kind, (name, sizes) in cells.items():
        for n, d in sizes:
            entries = (_bench_entry(known.get((kind, n, d, method))) for method in methods)
            rows.append((f"{n:,} x {d:,}, {name}", *entries))
    return table(["rows x features, confounders", *methods], rows)


def _bench_entry(cell: dict[str, Any] | None) -> str:
    if cell is None or "not_run" in cell:
        return "not run" if cell is None else f"not run ({cell['not_run'].partition(':')[0]})"
    seconds = cell["seconds"]
    shown_time = f"{seconds:.2g} s" if seconds >= 0.1 else f"{1e3 * seconds:.2g} ms"
    return f"{shown_time} ({cell['error']:.3f})"


def bench_scale() -> str:
    """Return times and memory of the largest table on disk."""
    text = (ROOT / "benchmarks" / "results" / "scale.jsonl").read_text(encoding="utf-8")
    found = max((json.loads(line) for line in text.splitlines()), key=lambda r: r["n"])["found"]
    steps = {
        "means of all columns by polars": ("means",),
        "copy of the files by polars": ("copy",),
        "`condokit fit`, given a category": ("fit, categorical",),
        "`condokit fit`, given a continuous confounder": ("fit, continuous",),
        "`condokit apply`": ("apply, categorical", "apply, continuous"),
    }
    rows = []
    for step, names in steps.items():
        seconds = sorted(f"{found[name]['seconds']:.2g}" for name in names)
        memory = max(found[name]["memory"] for name in names) / 1e9
        rows.append((step, " to ".join(dict.fromkeys(seconds)), f"{memory:.2f} GB"))
    return table(("step", "seconds", "peak of memory"), rows)


def bench_matrices() -> str:
    """Return times of matrices and of MMD beside those of the method's first package."""
    folder, rows = ROOT / "benchmarks" / "results", []
    text = (folder / "matrices.txt").read_text(encoding="utf-8")
    kl = (
        r"^(\d+ features, .*)\n  published +([\d.]+) ms, KL ([\d.]+) nats\n"
        r"  default .*?KL ([\d.]+) nats, (\d+)x"
    )
    for what, theirs, value, own, ratio in re.findall(kl, text, re.MULTILINE):
        seconds = f"{float(theirs) / 1e3:.2g} s, KL {float(value):.3g}"
        rows.append((f"reverse KL, {what}", seconds, f"{ratio} times as fast, KL {float(own):.3g}"))
    text = (folder / "samples.txt").read_text(encoding="utf-8")
    mmd = r"^(.*): [\d.]+ s, rMSE ([\d.]+|nan); published ([\d.]+) s, rMSE ([\d.]+|nan): (\d+)x"
    for what, own, theirs, error, ratio in re.findall(mmd, text, re.MULTILINE):
        errors = [f", error {float(x):.2f}" if x != "nan" else "" for x in (error, own)]
        faster = f"{ratio} times as fast{errors[1]}"
        rows.append((f"MMD, {what}", f"{float(theirs):.2g} s{errors[0]}", faster))
    return table(["task", "condo", "condokit"], rows)


def bench_peer(peer: str, what: str) -> str:
    """Return in how many cells we are as fast as a peer, or the median or least ratio."""
    both = [1 / ours for ours in render.ratios(cells_of_bench(), peer).values()]
    if what == "cells":
        return f"{sum(ratio >= 1 for ratio in both)} of {len(both)}"
    return f"{median(both) if what == 'median' else min(both):.2g}"


def repeated(name: str, scenario: str, method: str, metric: str = "rmse", digits: str = "3") -> str:
    """Return the mean over the paper's simulations of a method in one of its experiments."""
    return shown(of_experiment(name, scenario, method, metric), int(digits))


def of_experiment(name: str, scenario: str, method: str, metric: str) -> float:
    """Return a mean over the paper's simulations, without fresh seeds."""
    rows = [r for r in rows_of(f"{name}.csv") if int(r["seed"]) < 100]
    return mean(
        float(r[metric]) for r in rows if (r["scenario"], r["method"]) == (scenario, method)
    )


def printed_in_the_paper(name: str, scenario: str, method: str, metric: str = "rmse") -> float:
    """Return a published number."""
    known = json.loads((ROOT / "experiments" / "published_numbers.json").read_text("utf-8"))
    return float(known[name][scenario][method][metric])


def both_shifts(method: str) -> str:
    """Return published errors of the three effects of the paper's simulation."""
    scenarios = (f"{SHIFTS} / {effect}" for effect in PUBLISHED_EFFECTS)
    return " / ".join(
        shown(printed_in_the_paper("continuous1d", one, method, "test_rmse")) for one in scenarios
    )


def published_here(name: str, cell: str, method: str, metric: str) -> str:
    """Return what `published=True` gives in place of a published number."""
    where = {"experiment": name, "cell": cell, "method": method, "metric": metric}
    return shown(value(rows_of(PUBLISHED), "here", **where), 3)


def against_the_paper(verdict: str) -> str:
    """Return in how many cells we are better, equal or worse than the best published method."""
    return str(sum(int(row[verdict]) for row in tables_of("RESULTS.md")[0]))


def against_the_paper_table() -> str:
    """Return the same by experiment."""
    rows = tables_of("RESULTS.md")[0]
    return table(list(rows[0]), [list(row.values()) for row in rows if row["cells"] != "0"])


def cell(name: str, scenario: str, method: str, metric: str = "rmse", digits: str = "3") -> str:
    """Return a published number as pages show it."""
    return shown(printed_in_the_paper(name, scenario, method, metric), int(digits))


def published(verdict: str = "") -> str:
    """Return how many published numbers were compared, or are within or outside their noise."""
    return str(sum(row["verdict"] in (verdict or row["verdict"]) for row in rows_of(PUBLISHED)))


def published_table() -> str:
    """Return how many published numbers are within their noise, by experiment and method."""
    methods = ("Gaussian OT", "MMD", "ConDo Gaussian KLD", "ConDo MMD")
    rows = rows_of(PUBLISHED)
    lines = []
    for name in dict.fromkeys(row["experiment"] for row in rows):
        cells = []
        for method in methods:
            known = [r for r in rows if r["experiment"] == name and r["method"] == method]
            within = sum(r["verdict"] == "within" for r in known)
            cells.append(f"{within} of {len(known)}" if known else "–")
        lines.append((name, *cells))
    return table(("experiment", *methods), lines)


def published_outside() -> str:
    """Return how far numbers outside their noise are from those published, and why."""
    rows = [row for row in rows_of(PUBLISHED) if row["verdict"] == "outside"]
    lines = []
    for key in dict.fromkeys((row["experiment"], row["method"], row["why"]) for row in rows):
        known = [r for r in rows if (r["experiment"], r["method"], r["why"]) == key]
        ratios = sorted(float(r["here"]) / float(r["published"]) for r in known)
        lines.append((*key[:2], str(len(known)), shown(median(ratios)), span(ratios), key[2]))
    return table(("experiment", "method", "outside", "here / published", "range", "why"), lines)


def cost(method: str, of: str, what: str = "exponent") -> str:
    """Return the seconds of a method at the largest size, or the exponent of its growth."""
    rows = [r for r in rows_of("paper_cost.csv") if r["method"] == method and r["of"] == of]
    (n, early), (m, late) = ((float(r["size"]), float(r["seconds"])) for r in rows[-2:])
    if what == "seconds":
        return f"{late:.2g} s"
    return shown(math.log(late / early) / math.log(m / n), 1)


def paper_table() -> str:
    """Return errors of the paper's text, its published numbers and the default."""
    both = "location-scale, target shift + feature shift"
    # title, file, metric here, metric there, scenarios here and there
    parts = [
        ("categorical1d, 10 / 20 / 50 rows", "rmse", "rmse", [f"N={n}" for n in (10, 20, 50)]),
        (
            "categorical1d, 100 / 200 / 500 rows",
            "rmse",
            "rmse",
            [f"N={n}" for n in (100, 200, 500)],
        ),
        (
            "continuous1d, both shifts",
            "heldout_rmse",
            "test_rmse",
            [f"{SHIFTS} / {e}" for e in EFFECTS],
        ),
        ("ansur, scales and offsets, both shifts", "rmse", "rmse", [both]),
    ]
    lines = []
    for title, metric, there, scenarios in parts:
        name = title.split(",")[0]
        cells = []
        for method in ("ConDo KL", None, "condokit"):
            numbers = []
            for k, scenario in enumerate(scenarios):
                if method is not None:
                    numbers.append(of_experiment(name, scenario, method, metric))
                    continue
                if name == "continuous1d":
                    scenario = f"{SHIFTS} / {PUBLISHED_EFFECTS[k]}"
                numbers.append(printed_in_the_paper(name, scenario, "ConDo Gaussian KLD", there))
            cells.append(" / ".join(map(shown, numbers)))
        lines.append((title, *cells))
    return table(("", 'text, `ConDo("kl")`', "published numbers", "`ConDoAdapter()`"), lines)


def runtimes_table() -> str:
    """Return the seconds of fits of the paper's figure of runtimes."""
    methods = ("Gaussian OT", "MMD", "ConDo KL", "ConDo MMD", "condokit")
    rows = rows_of("categorical1d.csv")
    lines = []
    for n in (10, 20, 50, 100, 200, 500):
        known = [r for r in rows if r["scenario"] == f"N={n}" and int(r["seed"]) < 100]
        seconds = (
            mean(float(r["seconds"]) for r in known if r["method"] == method) for method in methods
        )
        lines.append((str(n), *(f"{s:.1g}" for s in seconds)))
    return table(("rows", *methods), lines)


QUOTES: dict[str, Callable[..., str]] = {
    one.__name__: one
    for one in (
        *(measured, pairs, pairs_table, instrument, interaction, shrinkage, shrinkage_table),
        *(devices, devices_harmed, strata_bias, matrices_table, skewed, penalties_table),
        *(verdict, verdict_table, confounders, scale_table, fits, coverage, coverage_table),
        *(errors_held, curves_table, curves_auto, standards, standards_lost, standards_table),
        *(batches_ratio, batches_table, bladder, bladder_combat, batches_trust, plan, hidden),
        *(simulations, controls_table, hidden_table, rejected, covered, features),
        *(printed, bench_table, bench_scale, bench_matrices, bench_peer),
        *(repeated, both_shifts, cell, published_here),
        *(against_the_paper, against_the_paper_table),
        *(published, published_table, published_outside, cost, runtimes_table, paper_table),
    )
}


def quoted(call: str) -> str:
    """Return what stands between the comments: a function's answer to the words after its name."""
    name, *words = shlex.split(call)
    if name not in QUOTES:
        raise LookupError(f"Nothing is called {name!r}; known are {', '.join(QUOTES)}.")
    return QUOTES[name](*words)


def update(page: str) -> str:
    """Return a page with the numbers of today's results."""
    return QUOTE.sub(lambda m: f"<!-- quote {m[1]} -->{quoted(m[1])}<!-- end quote -->", page)


def main(check: bool) -> int:
    """Write all pages anew, or list those that say something else than results."""
    stale = []
    for path in pages():
        before = path.read_text(encoding="utf-8")
        after = update(before)
        if after != before:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(after, encoding="utf-8")
    sys.stdout.write("".join(f"{'older' if check else 'written'}: {name}\n" for name in stale))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
