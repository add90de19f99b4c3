"""Blood tests of three hospitals, each with an analyser and patients of its own."""

from pathlib import Path

import numpy as np
import pandas as pd

ANALYTES = ("haemoglobin", "albumin", "sodium", "creatinine")
# what the analysers of B and C make of the values that A would measure: scale and offset
ANALYSERS = {
    "A": ((1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0)),
    "B": ((1.06, 0.92, 1.0, 1.12), (-3.0, 1.5, 1.8, -4.0)),
    "C": ((0.97, 1.05, 1.0, 0.90), (2.0, 0.0, -1.2, 6.0)),
}
# patients, share of women, shares of wards, mean age
PATIENTS = {
    "A": (3000, 0.52, {"surgery": 0.45, "medicine": 0.4, "emergency": 0.15}, 58),
    "B": (2500, 0.45, {"surgery": 0.25, "medicine": 0.45, "emergency": 0.3}, 66),
    "C": (2200, 0.45, {"surgery": 0.25, "medicine": 0.35, "emergency": 0.4}, 62),
}


def patients(site: str, rng: np.random.Generator) -> pd.DataFrame:
    """Return the patients of a hospital with their values as A would measure them."""
    n, women, wards, age = PATIENTS[site]
    sex = np.where(rng.random(n) < women, "F", "M")
    ward = rng.choice(list(wards), n, p=list(wards.values()))
    years = np.clip(rng.normal(age, 14, n), 18, 95).round()
    is_man, late = sex == "M", (years - 60) / 10
    ill = np.select([ward == "medicine", ward == "emergency"], [1.0, 1.6], 0.0)
    values = {
        "haemoglobin": 131 + 13 * is_man - 6 * ill - 2.5 * late + rng.normal(0, 12, n),
        "albumin": 39 - 2.5 * ill - 1.0 * late + rng.normal(0, 3.5, n),
        "sodium": 139.5 - 0.8 * ill + rng.normal(0, 2.6, n),
        "creatinine": 66 + 16 * is_man + 8 * ill + 5 * late + 11 * rng.standard_t(4, n),
    }
    facts = {"patient": [f"{site}{k:04}" for k in range(n)], "sex": sex, "ward": ward}
    return pd.DataFrame({**facts, "age": years.astype(int), **values})


def make(folder: Path) -> None:
    """Write the table of every hospital, and what its analyser does."""
    rng, truth = np.random.default_rng(7), []
    for site, (scales, offsets) in ANALYSERS.items():
        table = patients(site, rng)
        if site == "B":
            table.loc[rng.choice(len(table), 3, replace=False), "ward"] = "dialysis"
        for name, scale, offset in zip(ANALYTES, scales, offsets):
            table[name] = (scale * table[name] + offset).round(1)
            # the map to A undoes what the analyser does
            truth.append((site, name, round(1 / scale, 4), round(-offset / scale, 4)))
        table.to_csv(folder / f"hospital_{site}.csv", index=False)
    columns = ["site", "feature", "scale", "offset"]
    pd.DataFrame(truth, columns=columns).to_csv(folder / "hospital_truth.csv", index=False)
