"""Repeat the paper's experiments: scenario x method x seed, then tables and figures.

Every (scenario, seed) is a job; finished jobs are kept in `.runs/` until the code of the package or
of the experiments changes, so that an interrupted run goes on where it stopped. Several experiments
may run at the same time. `make evidence` writes RESULTS.md from all tables.
"""

import hashlib
import importlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

import click
import joblib
import pandas as pd
from evidence import PACKAGE, PRESENTATION, ROOT, digest

from condokit.io import write_files

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SEEDS = range(10)
FRESH_SEEDS = range(100, 140)  # choices were made while looking at seeds 0 to 9
SYNTHETIC = ("continuous1d", "irrelevant", "split", "partial", "categorical1d", "categorical2d")
DOWNSTREAM = ("ansur", "california", "snareseq")  # have classifiers
REAL = ("ansur", "photos", "california", "snareseq", "bladderbatch")


def jobs(experiment, quick):
    """Return all (scenario, seed) of an experiment."""
    seeds = list(getattr(experiment, "SEEDS", SEEDS))
    if with_tabpfn():
        seeds = seeds[: getattr(experiment, "TABPFN_SEEDS", None)]  # it is slow
        return [(scenario, seed) for seed in seeds for scenario in experiment.TABPFN]
    if quick:
        scenarios = getattr(experiment, "QUICK", experiment.SCENARIOS)
        return [(scenario, seed) for scenario in scenarios for seed in seeds[:2]]
    fresh = FRESH_SEEDS if getattr(experiment, "FRESH", False) else ()
    return [(scenario, seed) for seed in (*seeds, *fresh) for scenario in experiment.SCENARIOS]


def with_tabpfn():
    """Tell whether the paper's classifier was asked for."""
    return bool(os.environ.get("CONDOKIT_TABPFN"))


def work(name, scenario, seed, quick, folder):
    """Run one job unless it is done; return its rows and seconds."""
    path = folder / f"{seed}-{hashlib.sha256(scenario.encode()).hexdigest()[:12]}.json"
    if path.exists():
        return json.loads(path.read_text())
    experiment = importlib.import_module(name)
    start = time.process_time()
    rows = [
        {"scenario": scenario, "seed": seed, **row}
        for row in experiment.run(scenario, seed, quick=quick)
    ]
    done = {"rows": rows, "seconds": time.process_time() - start}
    write_files({path: json.dumps(done).encode()}, force=True)
    return done


def reproduce(name, quick=False, n_jobs=-1, output=RESULTS):
    """Run one experiment; write its table and figures; return the table and its seconds."""
    experiment = importlib.import_module(name)
    folder = _runs(name, quick)
    todo = jobs(experiment, quick)
    with joblib.parallel_config("loky", n_jobs=n_jobs, inner_max_num_threads=1):
        results = joblib.Parallel(return_as="generator_unordered")(
            joblib.delayed(work)(name, scenario, seed, quick, folder) for scenario, seed in todo
        )
    rows, seconds = [], 0.0
    with click.progressbar(results, length=len(todo), label=f"{name:14}", file=sys.stderr) as bar:
        for done in bar:
            rows += done["rows"]
            seconds += done["seconds"]
    table = pd.DataFrame(rows)
    place = {scenario: k for k, scenario in enumerate(experiment.SCENARIOS)}
    table["place"] = table["scenario"].map(place)
    table = table.sort_values(["place", "seed"], kind="stable").drop(columns="place")
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{name}{'-tabpfn' if with_tabpfn() else ''}.csv"
    table.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
    if not quick and not with_tabpfn():
        experiment.figures(pd.read_csv(path), output / "figures")
    return table, seconds


def _runs(name, quick):
    """Return the folder of finished jobs, named after all code that they may depend on."""
    files = (path.relative_to(ROOT) for path in (*PACKAGE.rglob("*.py"), *HERE.glob("*.py")))
    code = digest([name for name in map(Path.as_posix, files) if name not in PRESENTATION])
    kind = "quick-" if quick else "tabpfn-" if with_tabpfn() else ""
    folder = HERE / ".runs" / f"{name}-{kind}{code}"
    for old in (HERE / ".runs").glob(f"{name}-*"):
        if code not in old.name:
            shutil.rmtree(old)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@click.command()
@click.argument("names", nargs=-1, type=click.Choice((*SYNTHETIC, *REAL)))
@click.option(
    "--quick", is_flag=True, help="Two seeds of some scenarios, without the slow methods."
)
@click.option("--jobs", "n_jobs", default=-1, help="Processes; all cores by default.")
def main(names, quick, n_jobs):
    """Run the experiments NAMES, all by default."""
    from condokit.datasets import real

    start, summary = time.time(), []
    for name in names or (DOWNSTREAM if with_tabpfn() else (*SYNTHETIC, *REAL)):
        began = time.time()
        try:
            table, seconds = reproduce(
                name, quick, n_jobs, HERE / ".runs" / "quick-results" if quick else RESULTS
            )
        except FileNotFoundError as error:
            summary.append((name, "left out", str(error)))
            continue
        summary.append(
            (
                name,
                f"{time.time() - began:.0f} s",
                f"{len(table)} rows, {seconds:.0f} s of processor",
            )
        )
    if with_tabpfn() and not quick:
        import results

        results.write((*SYNTHETIC, *REAL))
        summary.append(("RESULTS.md", "written", str(RESULTS / "RESULTS.md")))
    for row in (*summary, ("all", f"{time.time() - start:.0f} s", "")):
        click.echo("{:14} {:>9}  {}".format(*row))
    if any(state == "left out" for _, state, _ in summary):
        click.echo(f"Data folders searched: {', '.join(map(str, real.folders()))}", err=True)


if __name__ == "__main__":
    main()
