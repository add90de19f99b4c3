"""Five sites with an MRI scanner each: regional measures of patients and controls.

Ages and shares of patients differ between sites, and scanners change scale and offset of every
measure. `scanners_truth.csv` has what the scanner of Aarhus would have shown of the same people.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

REGIONS = {  # mean in mm, change in ten years, effect of the disease, sd of people
    "superiorfrontal": (2.72, -0.045, -0.04, 0.11),
    "rostralmiddlefrontal": (2.45, -0.040, -0.03, 0.11),
    "precentral": (2.55, -0.035, -0.02, 0.11),
    "superiorparietal": (2.22, -0.030, -0.05, 0.10),
    "inferiorparietal": (2.45, -0.040, -0.10, 0.10),
    "precuneus": (2.40, -0.040, -0.10, 0.10),
    "superiortemporal": (2.77, -0.045, -0.07, 0.12),
    "middletemporal": (2.85, -0.035, -0.11, 0.12),
    "entorhinal": (3.40, -0.030, -0.30, 0.28),
    "insula": (3.00, -0.040, -0.06, 0.13),
}
VOLUMES = {  # mean in mm3, change in ten years, effect of the disease, sd of people
    "Left-Hippocampus": (4050, -110, -420, 330),
    "Right-Hippocampus": (4150, -110, -410, 340),
    "Left-Amygdala": (1600, -40, -170, 170),
    "Right-Amygdala": (1650, -40, -170, 170),
}
SITES = {  # people, youngest, oldest, share of patients
    "Aarhus": (90, 50, 85, 0.40),
    "Bern": (80, 55, 88, 0.60),
    "Cork": (60, 45, 75, 0.25),
    "Delft": (70, 60, 90, 0.50),
}
ADDED = {"Exeter": (45, 52, 84, 0.35)}
N_TRAVELLING = 6


def people(rng: np.random.Generator, sites: dict[str, tuple]) -> pd.DataFrame:
    """Return who was scanned where."""
    parts = []
    for site, (n, youngest, oldest, share) in sites.items():
        part = pd.DataFrame({"site": [site] * n})
        part["age"] = rng.uniform(youngest, oldest, n).round(1)
        part["sex"] = rng.choice(["F", "M"], n)
        part["diagnosis"] = np.where(rng.random(n) < share, "AD", "control")
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def measures(rng: np.random.Generator, who: pd.DataFrame) -> pd.DataFrame:
    """Return what the scanner of Aarhus shows of these people."""
    decades, sick = (who["age"].to_numpy() - 65) / 10, (who["diagnosis"] == "AD").to_numpy()
    male, n = (who["sex"] == "M").to_numpy(), len(who)
    head, whole = rng.normal(size=n), rng.normal(size=n)  # head size, and the brain's general state
    found = {}
    for name, (mean, slope, effect, sd) in REGIONS.items():
        both = (
            mean + slope * decades + effect * sick + sd * (0.5 * whole + 0.6 * rng.normal(size=n))
        )
        for side in ("lh", "rh"):
            found[f"{side}_{name}_thickness"] = both + 0.6 * sd * rng.normal(size=n)
    for name, (mean, slope, effect, sd) in VOLUMES.items():
        value = mean + slope * decades + effect * sick + 0.05 * mean * male
        found[name] = value + sd * (0.5 * head + 0.4 * whole + 0.75 * rng.normal(size=n))
    found["ICV"] = 1450 + 150 * male + 90 * head + 45 * rng.normal(size=n)
    return pd.DataFrame(found)


def scanners(rng: np.random.Generator, truth: pd.DataFrame) -> dict[str, tuple]:
    """Return scale and offset of all measures by site; the scanner of Aarhus changes nothing."""
    p, mean, sd = truth.shape[1], truth.mean().to_numpy(), truth.std().to_numpy()
    found = {"Aarhus": (np.ones(p), np.zeros(p))}
    for site in [*SITES, *ADDED][1:]:
        scale = np.exp(0.06 * rng.normal() + 0.07 * rng.normal(size=p))
        shift = 0.4 * rng.normal() + 0.5 * rng.normal(size=p)
        found[site] = scale, mean - scale * mean + shift * sd
    return found


def seen(truth: pd.DataFrame, site: Iterable[str], changes: dict[str, tuple]) -> pd.DataFrame:
    """Return what the scanners of these sites show instead, with the digits of FreeSurfer."""
    scale, offset = (np.stack([changes[name][k] for name in site]) for k in (0, 1))
    return rounded(scale * truth + offset)


def rounded(table: pd.DataFrame) -> pd.DataFrame:
    """Return measures with the digits that FreeSurfer writes."""
    return table.round({name: 3 if name.endswith("_thickness") else 1 for name in table})


def make(folder: Path) -> None:
    """Write the tables."""
    rng = np.random.default_rng(20)
    who = people(rng, {**SITES, **ADDED})
    who.insert(0, "subject", [f"sub-{i:03d}" for i in range(1, len(who) + 1)])
    truth = measures(rng, who)
    changes = scanners(rng, truth)
    table = pd.concat([who, seen(truth, who["site"], changes)], axis=1)
    first = table[table["site"].isin(SITES)]
    later = first.groupby("site", sort=False).tail(2)
    tables = {
        "scanners": first.drop(later.index),
        "scanners_incoming": later.drop(columns=["age", "sex", "diagnosis"]),
        "scanners_exeter": table[table["site"].isin(ADDED)],
        "scanners_travelling": travelling(rng, truth, changes),
        "scanners_truth": pd.concat([who[["subject", "site"]], rounded(truth)], axis=1),
    }
    for name, one in tables.items():
        one.to_csv(folder / f"{name}.csv", index=False)


def travelling(
    rng: np.random.Generator, truth: pd.DataFrame, changes: dict[str, tuple]
) -> pd.DataFrame:
    """Return measures of healthy volunteers who were scanned in all of the four sites."""
    who = people(rng, {"": (N_TRAVELLING, 25, 45, 0.0)}).drop(columns="site")
    who.insert(0, "subject", [f"trav-{i}" for i in range(1, N_TRAVELLING + 1)])
    own, sd, parts = measures(rng, who), truth.std().to_numpy(), []
    for site in SITES:
        again = own + 0.3 * sd * rng.normal(size=own.shape)
        part = who.copy()
        part.insert(1, "site", site)
        parts.append(pd.concat([part, seen(again, part["site"], changes)], axis=1))
    return pd.concat(parts, ignore_index=True)
