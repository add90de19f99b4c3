"""`BatchAdapter` beside its peers: simulated studies with their truth, and bladderbatch.

    PYTHONPATH=experiments OMP_NUM_THREADS=1 python -m batches.compare
        [--seeds 20] [--seed 10000] [--only NAME] [--quick]

NAME is a part of the names of studies, or "bladderbatch". `--quick` takes seeds 0 and 1 and leaves
out packages and bladderbatch. If all is run, experiments/results/BATCHES.md is written.
"""

import argparse
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import silhouette_score

import condokit
from batches import peers
from batches.simulations import ASSOCIATED, STUDIES, Study
from condokit import ConDoAdapter
from condokit.datasets import load_bladderbatch

PAGE = Path(__file__).parents[1] / "results" / "BATCHES.md"


def pairwise(study):
    """Fit each batch to the reference alone, without bridges."""
    moved, known = study.X.copy(), study.batch == study.reference
    for label in np.unique(study.batch[~known]):
        rows = study.batch == label
        pair = rows | known
        Z = None if study.confounders is None else study.confounders[pair]
        adapter = ConDoAdapter(reference=study.reference)
        adapter.fit(study.X[pair], domain=study.batch[pair], confounders=Z)
        moved[rows] = adapter.transform(study.X[rows])
    return moved


def joint(study):
    adapter = condokit.BatchAdapter(reference=study.reference)
    roles = {"confounders": study.confounders, "bridge": study.bridge}
    adapter.fit(study.X, batch=study.batch, **roles)
    return adapter.transform(study.X, batch=study.batch)


OURS = {"condokit, pairwise": pairwise}
if hasattr(condokit, "BatchAdapter"):
    OURS["condokit"] = joint
OWN = list(OURS)[-1]  # which is compared with the best peer


@dataclass
class Finding:
    """The error of a method in one simulated study, or why there is none."""

    study: str
    method: str
    seed: int
    error: float  # not a number where the method failed
    reason: str = ""


def results(studies, packages=True):
    """Yield (method, what it gives for each study)."""
    for name, method in (peers.PLAIN | OURS).items():
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield name, [peers.attempt(method, study) for study in studies]
        print(f"  {name}: {time.perf_counter() - start:.1f} s", flush=True)
    for name in peers.PACKAGES if packages else ():
        start = time.perf_counter()
        yield name, peers.run(name, studies)
        print(f"  {name}: {time.perf_counter() - start:.1f} s", flush=True)


def simulate(names, seeds, packages=True):
    """Return the error of every method in every study, one row for each seed."""
    drawn = [(name, seed, STUDIES[name](seed)) for name in names for seed in seeds]
    found = []
    for method, answers in results([study for *_, study in drawn], packages):
        for (name, seed, study), moved in zip(drawn, answers):
            failed = isinstance(moved, str)
            error = np.nan if failed else study.error(moved)
            found.append(Finding(name, method, seed, error, moved if failed else ""))
    return pd.DataFrame(found)


def summary(table):
    """Return geometric means: of none as it is, of others relative to none; NaN where one failed.

    Means are over all seeds or not at all, so that all are means over the same studies.
    """
    logs = table.assign(error=np.log(table.error)).groupby(["study", "method"], sort=False)["error"]
    mean = np.exp(logs.agg(lambda part: part.mean(skipna=False))).unstack(sort=False)
    others = mean.drop(columns="none").div(mean["none"], axis=0)
    ours = [name for name in others if name in OURS]
    order = [name for name in others if name not in OURS] + ours
    return pd.concat([mean[["none"]], others[order]], axis=1)


def verdict(table, shown, study):
    """Say whether condokit is as good as the peer whose mean is best.

    The ratio of their errors is a geometric mean over seeds, with its standard error.
    """
    rivals = shown.loc[study].drop(list(OURS))
    rivals["none"] = 1.0
    best = rivals.idxmin()
    logs = np.log(table[table.study == study].pivot(index="seed", columns="method", values="error"))
    gap = logs[OWN] - logs[best]
    ratio = np.exp(gap.mean(skipna=False))
    margin = f" ± {ratio * gap.sem():.3f}" if len(gap) > 1 else ""
    text = "fails" if np.isnan(ratio) else f"{ratio:.3f}{margin}"
    good = ratio <= (1.0 if study in ASSOCIATED else 1.05)
    return f"{'**yes**' if good else 'no'}, {text} ({best})"


def _cell(value, best, reason):
    if np.isnan(value):
        return "-" if reason == peers.NO_CONTROLS else "fails"
    return f"**{value:.3f}**" if value == best else f"{value:.3f}"


def simulated_page(table, seeds):
    shown = summary(table)
    reasons = table.groupby(["study", "method"])["reason"].first()
    lines = [
        "## Simulated studies\n",
        "Root mean square of (mapped - truth) / sd within strata of the reference, over the rows "
        f"of the other batches; geometric mean of {len(seeds)} seeds from {seeds[0]} on. `none`: "
        "in sd; others relative to it. Bold: the best. Last column: the error of `" + OWN + "` "
        "over that of the best other method that is not condokit's, with its standard error; "
        "**yes** if it is at most 1 (1.05 where batch and confounders are not associated).\n",
        "| study | " + " | ".join(shown.columns) + " | as good as the best peer? |",
        "|---|" + "---|" * (len(shown.columns) + 1),
    ]
    for name, row in shown.iterrows():
        best = row.drop("none").min()
        cells = [_cell(value, best, reasons[name, method]) for method, value in row.items()]
        cells.append(verdict(table, shown, name))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*lines, "", *_failures(table)]


def _failures(table):
    """Say why methods failed, and how often."""
    lines = []
    failed = table[~table.reason.isin(["", peers.NO_CONTROLS])]
    for (study, method), part in failed.groupby(["study", "method"], sort=False):
        (reason, _), *_ = Counter(part.reason).most_common()
        count = (table.study.eq(study) & table.method.eq(method)).sum()
        lines.append(f"- {study}, {method}: fails for {len(part)} of {count} seeds: {reason}")
    return ["Where a method fails for a seed it has no mean. Why:\n", *lines, ""] if lines else []


def bladder():
    """Return bladderbatch as a study without truth; batch 5 is the reference, as in the paper."""
    data = load_bladderbatch()
    Z, nothing = pd.DataFrame({"result": data.result}), np.empty(0)
    return Study(data.X, data.batch.astype(str), Z, None, "5", nothing, nothing)


def bladder_page(packages=True):
    study = bladder()
    lines = [
        "## bladderbatch, all five batches\n",
        "57 samples of 22,283 genes, confounder `result` (Cancer or not), reference batch 5; "
        "batches 1, 3 and 4 have one of the two alone. Silhouettes by cancer (large is wanted) "
        "and by batch (zero is wanted).\n",
        "| method | by cancer | by batch |",
        "|---|---|---|",
    ]
    scores, failed = {}, {}
    for method, (moved,) in results([study], packages):
        if isinstance(moved, str):
            failed[method] = moved
        else:
            labels = study.confounders.result, study.batch
            scores[method] = [silhouette_score(moved, one) for one in labels]
    best = max(s for s, _ in scores.values()), min((s for _, s in scores.values()), key=abs)
    for method, pair in scores.items():
        cells = [f"**{s:.4f}**" if s == b else f"{s:.4f}" for s, b in zip(pair, best)]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    failed.pop("bridge_shift")
    return [*lines, *(f"| {method} | fails: {why} | |" for method, why in failed.items()), ""]


NOTES = [
    "neuroharmonize and combatlearn (`method='fortin'`) map to the reference batch themselves. "
    "scanpy and harmonypy have none: their values are taken there by the mean and sd of each "
    "feature in the reference's own rows before and after correction.",
    "The three ComBats are given the confounders as numbers, one level of each group left out "
    "(scanpy's own coding of groups makes its design singular). harmonypy takes none; it corrects "
    "up to 50 principal components of standardised features, which are taken back to features.",
    "`standardised`: mean and sd of every batch to those of the reference. `regression`: features "
    "on batch and confounders, the coefficient of the batch taken off. `bridge_shift`: the mean "
    "difference of the controls, along the chain; only where there are controls.",
    "`condokit, pairwise`: one `ConDoAdapter` for each batch and the reference, without bridges; "
    "it refuses batches that share nothing with the reference.",
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=10_000)  # the first
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.seed, options.seeds = 0, 2
    seeds = [options.seed + k for k in range(options.seeds)]
    names = [name for name in STUDIES if options.only in name]
    real = not options.quick and options.only in "bladderbatch"
    if not names and not real:
        parser.error(f"--only {options.only}: no study has this in its name: {list(STUDIES)}")
    command = f"python -m batches.compare --seeds {len(seeds)} --seed {options.seed}"
    packages = [requirement.replace("==", " ") for requirement, _ in peers.PACKAGES.values()]
    lines = [
        "# Many batches: condokit and its peers\n",
        f"Written by `{command}` (`make evidence`) with condokit {condokit.__version__}, "
        f"{', '.join(packages)}. Seeds below 10,000 were used while rules were chosen.\n",
    ]
    lines += simulated_page(simulate(names, seeds, not options.quick), seeds) if names else []
    lines += bladder_page() if real else []
    page = "\n".join([*lines, "## Notes\n", *(f"- {note}" for note in NOTES)]) + "\n"
    print(page)
    if options.quick or options.only:
        print("Nothing was written: not all studies were run.")
    else:
        PAGE.write_text(page, encoding="utf-8")
        print(f"Wrote {PAGE}")


if __name__ == "__main__":
    main()
