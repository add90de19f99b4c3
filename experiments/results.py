"""Write RESULTS.md: published | repeated | ours, claims and discrepancies, all read from tables."""

import importlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pandas as pd
from compare import of_the_paper
from evidence import read_record
from methods import OURS, REPEATED
from published import NUMBERS

HERE = Path(__file__).parent
COMPETITORS = ("Gaussian OT", "MMD", "ConDo Gaussian KLD", "ConDo MMD")
PACKAGES = ("condokit", "numpy", "scipy", "scikit-learn", "lightgbm", "combatlearn")
FIRST = ("none", "Gaussian OT", "MMD", "ConDo KL", "ConDo MMD")  # published | repeated
INTRODUCTION = """# The paper's experiments, repeated

Written by `make evidence` from the tables beside this file; no number here is typed. Every cell
is the mean over simulations. `p | r ± s` is the published value, the same method repeated here, and
the standard error of its mean (sd / sqrt(n)); a dash means that nothing was published. Methods:

- **none**: no adaptation. **constant**: every row becomes the mean of the reference.
- **Gaussian OT**, **MMD**: the paper's baselines, without confounders.
- **ComBat**: reference batch and covariates; new rows get a constant covariate, since theirs
  are not known.
- **ConDo KL**, **ConDo MMD**: the paper's methods as its text has them. **as published**: with
  the slips of the published numbers, which it repeats.
- **exact KL**: the minimum of the paper's objective in closed form or by Newton's method.
- **condokit**: the default settings with the map that the experiment asks for. **condokit auto**:
  `ConDoAdapter(map="auto")`.

Whether a claim of the paper holds is judged for the repeated methods by rules of ours, mostly
strict: in every cell that it speaks of. The evidence also tells how condokit does.
"""


def write(names, folder=HERE / "results"):
    """Write RESULTS.md about the experiments whose tables are in the folder."""
    reports, cells = [], []
    for name in names:
        path = folder / f"{name}.csv"
        if not path.exists():
            continue
        experiment, table = importlib.import_module(name), pd.read_csv(path)
        compared = compare(experiment, table)
        cells.append((experiment, compared))
        reports.append(_section(name, experiment, table, compared, folder))
        with_tabpfn = folder / f"{name}-tabpfn.csv"
        if with_tabpfn.exists():
            reports.append(_tabpfn_section(name, experiment, pd.read_csv(with_tabpfn)))
    text = "\n".join([INTRODUCTION, _versions(), _summary(cells), *reports])
    (folder / "RESULTS.md").write_text(text.rstrip() + "\n", encoding="utf-8")


def compare(experiment, table):
    """Compare ours with the best published method: auto, or the default where that is not defined.

    A cell is lost if ours is worse by more than one standard error of the difference, which a
    single run does not have. Published accuracies are of another classifier: there, the
    repeated methods are the competitors.
    """
    table, rows = of_the_paper(table), []
    own_name = next(name for name in reversed(OURS) if name in set(table["method"]))
    for scenario in experiment.SCENARIOS:
        for metric, goal in experiment.BEST.items():
            ours = _values(table, scenario, own_name, metric)
            if len(ours) == 0:
                continue
            found = _competitors(experiment, table, scenario, metric)
            if not found:
                continue
            loss = {"low": lambda x: x, "high": lambda x: -x, "zero": abs}[goal]
            best = min(found, key=lambda m: loss(found[m][0]))
            value, error = found[best]
            own, own_error = ours.mean(), _standard_error(ours)
            gap = loss(own) - loss(value)
            allowed = np.hypot(error, own_error)
            verdict = "better" if gap < -allowed else "worse" if gap > allowed else "equal"
            if len(ours) == 1:
                verdict = "one run, better" if gap <= 0 else "one run, worse"
            rows.append(
                {
                    "scenario": scenario,
                    "metric": metric,
                    "best": best,
                    "published": value,
                    "auto": own,
                    "se": allowed,
                    "verdict": verdict,
                }
            )
    return pd.DataFrame(
        rows, columns=["scenario", "metric", "best", "published", "auto", "se", "verdict"]
    )


def _competitors(experiment, table, scenario, metric):
    """Return {method: (value, standard error)} of the published methods."""
    setting = _setting(experiment, scenario)
    found = {}
    for method in COMPETITORS:
        repeated = _values(table, scenario, REPEATED[method], metric)
        if metric.startswith(("acc", "f1")):
            if len(repeated):
                found[f"{method} (repeated)"] = repeated.mean(), _standard_error(repeated)
            continue
        key = experiment.METRICS.get(metric)
        value = setting.get(method, {}).get(key)
        if value is not None:
            sd = setting[method].get(f"{key}_std")
            error = sd / np.sqrt(10) if sd is not None else _standard_error(repeated)
            found[method] = value, error
    return found


def _section(name, experiment, table, compared, folder):
    n_seeds = of_the_paper(table)["seed"].nunique()
    fresh = table[table["seed"] >= 100]
    parts = [f"## {experiment.TITLE}\n", f"`make evidence NAME={name}`; {n_seeds} simulation(s)."]
    if len(fresh):
        parts[-1] += f" *fresh*: {fresh['seed'].nunique()} other seeds."
    parts[-1] += "\n"
    known = read_record().get(name)
    when = f"commit {known['commit']}, {known['date']}" if known else "version 0.1.0, older code"
    parts[-1] = f"{parts[-1].rstrip()} Measured with {when}.\n"
    parts += _origins(experiment)
    for metric, key in experiment.METRICS.items():
        parts.append(_metric_table(experiment, table, metric, key))
    parts.append("### Does it hold?\n\n| the paper says | repeated | measured |\n|---|---|---|")
    for sentence, check in experiment.CLAIMS:
        holds, evidence = check(table)
        parts.append(f"| {sentence} | {'yes' if holds else '**no**'} | {evidence} |")
    parts.append("\n### Discrepancies\n")
    parts += [f"- {note}" for note in experiment.NOTES]
    pictures = sorted((folder / "figures").glob(f"{name}*.[pj][np]g"))
    if pictures:
        parts.append("\n### Figures\n")
        parts += [f"![{path.stem}](figures/{path.name})" for path in pictures]
    lost = compared[compared["verdict"].str.endswith("worse")]
    if len(lost):
        parts.append("\n### Where ours is worse than the best published method\n")
        reasons = getattr(experiment, "REASONS", {})
        for row in lost.itertuples():
            cell = f"{row.scenario}, {row.metric}"
            reason = next((why for part, why in reasons.items() if part in cell), "Not explained.")
            parts.append(
                f"- {cell}: {_number(row.auto)} against {_number(row.published)} of {row.best} "
                + ("(one run). " if row.verdict.startswith("one") else f"(± {_number(row.se)}). ")
                + reason
            )
    return "\n".join(parts) + "\n"


def _tabpfn_section(name, experiment, table):
    parts = [f"### With the paper's classifier: {experiment.TITLE}\n"]
    parts.append(
        f"TabPFN v1 (`make tabpfn NAME={name}`), {table['seed'].nunique()} simulations: published "
        "accuracies can be compared with these.\n"
    )
    for metric, key in experiment.METRICS.items():
        if metric in table and metric.startswith(("acc", "f1")):
            parts.append(_metric_table(experiment, table, metric, key).replace("### ", "#### ", 1))
    return "\n".join(parts)


def _metric_table(experiment, table, metric, key):
    main, fresh = of_the_paper(table), table[table["seed"] >= 100]
    present = [
        m
        for m in dict.fromkeys(main["method"])
        if main.loc[main["method"] == m, metric].notna().any()
    ]
    first = [m for m in FIRST if m in present]
    others = [m for m in present if m not in FIRST and m not in OURS]
    ours = [m for m in OURS if m in present]
    shown = [*first, *others, *ours]
    head = shown + (["condokit auto, fresh"] if len(fresh) else [])
    lines = [f"### {metric}\n", "| | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for scenario in experiment.SCENARIOS:
        if not main.loc[main["scenario"] == scenario, metric].notna().any():
            continue
        same = getattr(experiment, "REPEATED", REPEATED)
        setting = {same.get(m, m): v for m, v in _setting(experiment, scenario).items()}
        cells = []
        for method in shown:
            values = _values(main, scenario, method, metric)
            cell = _with_error(values)
            published = setting.get(method, {}).get(key)
            if method in first or published is not None:
                cell = f"{'-' if published is None else _number(published)} \\| {cell}"
            cells.append(cell)
        if len(fresh):
            cells.append(_with_error(_values(fresh, scenario, "condokit auto", metric)))
        lines.append(f"| {scenario} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _summary(cells):
    lines = [
        "## Summary\n",
        "`condokit auto` (`condokit` for SNARE-seq, whose domains have different features) against "
        "the best published method in every cell: better or worse by more than one standard error "
        "of the difference, or equal within it; single runs have none. Published accuracies are "
        "of another classifier; there the repeated methods are the competitors. Every cell that is "
        "lost is listed with its experiment.\n",
        "| experiment | cells | better | equal | worse | one run, better | one run, worse |",
        "|---|---|---|---|---|---|---|",
    ]
    for experiment, compared in cells:
        counts = compared["verdict"].value_counts()
        verdicts = ("better", "equal", "worse", "one run, better", "one run, worse")
        numbers = [len(compared), *(int(counts.get(verdict, 0)) for verdict in verdicts)]
        lines.append(f"| {experiment.TITLE} | " + " | ".join(map(str, numbers)) + " |")
    return "\n".join(lines) + "\n"


def _origins(experiment):
    """Say where the published values are from: tables, printed output, or figures."""
    keys = filter(None, map(experiment.published_key, experiment.SCENARIOS))
    notes = {name: NUMBERS[name].get("source") for name in dict.fromkeys(key[0] for key in keys)}
    return [f"Published values of `{name}`: {note}.\n" for name, note in notes.items() if note]


def _versions():
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {package}")
    return (
        f"Measured with {', '.join(found)}, but for experiments that say older code: those are to "
        "be measured again.\n"
    )


def _setting(experiment, scenario):
    key = experiment.published_key(scenario)
    return NUMBERS[key[0]].get(key[1], {}) if key else {}


def _values(table, scenario, method, metric):
    if metric not in table:
        return np.empty(0)
    rows = table[(table["scenario"] == scenario) & (table["method"] == method)]
    return rows[metric].dropna().to_numpy()


def _standard_error(values):
    return float(np.std(values) / np.sqrt(len(values))) if len(values) else 0.0


def _with_error(values):
    if len(values) == 0:
        return "-"
    if len(values) == 1:
        return _number(values[0])
    return f"{_number(values.mean())} ± {_number(_standard_error(values))}"


def _number(x):
    if 1e-9 < abs(x) < 0.001:
        return f"{x:.1e}"
    return f"{x:.3f}" if abs(x) < 10 else f"{x:.1f}"
