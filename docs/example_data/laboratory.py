"""A laboratory changes its analyser: patients before and after, and split samples."""

from pathlib import Path

import numpy as np
import pandas as pd

ANALYTES = ("sodium", "glucose", "creatinine", "ALT", "CRP")
DIGITS = {"sodium": 0, "glucose": 1, "creatinine": 0, "ALT": 0, "CRP": 1}


def make(folder: Path) -> None:
    """Write analysers.csv, split_samples.csv and analysers_truth.csv."""
    rng = np.random.default_rng(31)
    old, new, split = (people(rng, n, late) for n, late in ((900, False), (600, True), (40, True)))
    truth = new.copy()
    table = pd.concat(
        [
            rounded(old).assign(analyser="old"),
            rounded(read_by_new(rng, new)).assign(analyser="new"),
        ],
        ignore_index=True,
    )
    table.insert(0, "patient", np.arange(1, len(table) + 1))
    table.insert(1, "analyser", table.pop("analyser"))
    table.to_csv(folder / "analysers.csv", index=False)
    truth.insert(0, "patient", table.loc[table["analyser"] == "new", "patient"].to_numpy())
    truth.drop(columns=["age", "sex", "ward"]).to_csv(
        folder / "analysers_truth.csv", index=False, float_format="%.3f"
    )
    twice = [rounded(imprecise(rng, split)), rounded(read_by_new(rng, split))]
    both = pd.concat(
        [side.assign(analyser=name) for side, name in zip(twice, ("old", "new"))], ignore_index=True
    )
    both.insert(0, "sample", [f"Q{k:02d}" for k in range(1, 41)] * 2)
    both.insert(1, "analyser", both.pop("analyser"))
    both.to_csv(folder / "split_samples.csv", index=False)


def people(rng: np.random.Generator, n: int, late: bool) -> pd.DataFrame:
    """Return patients; after the change the ward for old people sends more samples."""
    wards = ["surgery", "medicine", "geriatrics"]
    ward = rng.choice(wards, n, p=[0.25, 0.35, 0.40] if late else [0.45, 0.40, 0.15])
    mean = pd.Series(ward).map({"surgery": 48, "medicine": 58, "geriatrics": 81}).to_numpy()
    age = np.clip(rng.normal(mean, np.where(ward == "geriatrics", 6, 14)), 18, 99).round()
    sex = rng.choice(["F", "M"], n, p=[0.58, 0.42] if late else [0.48, 0.52])
    man, ill = (sex == "M") * 1.0, (ward != "surgery") * 1.0
    values = {
        "sodium": 140.5 - 0.03 * (age - 50) - 0.8 * ill + rng.normal(0, 2.6, n),
        "glucose": np.exp(1.62 + 0.005 * (age - 50) + 0.08 * ill + rng.normal(0, 0.2, n)),
        "creatinine": np.exp(4.15 + 0.26 * man + 0.006 * (age - 50) + rng.normal(0, 0.24, n)),
        "ALT": np.exp(3.1 + 0.25 * man - 0.004 * (age - 50) + rng.normal(0, 0.45, n)),
        "CRP": np.exp(0.9 + 0.012 * (age - 50) + 1.0 * ill + rng.normal(0, 1.0, n)),
    }
    return pd.DataFrame({"age": age.astype(int), "sex": sex, "ward": ward, **values})


def imprecise(rng: np.random.Generator, true: pd.DataFrame) -> pd.DataFrame:
    """Return a second reading, with the imprecision of an analyser."""
    out = true.copy()
    out["sodium"] += rng.normal(0, 0.5, len(out))
    for name in ANALYTES[1:]:
        out[name] *= np.exp(rng.normal(0, 0.025, len(out)))
    return out


def read_by_new(rng: np.random.Generator, true: pd.DataFrame) -> pd.DataFrame:
    """Return what the new analyser reads: glucose in mg/dL, others with a bias of their own."""
    out = imprecise(rng, true)
    out["sodium"] += 1.6
    out["glucose"] *= 18.016 * 0.985
    out["creatinine"] = out["creatinine"] * 1.12 - 3.0
    out["CRP"] = out["CRP"] ** 0.95 * 1.25
    return out


def rounded(table: pd.DataFrame) -> pd.DataFrame:
    """Return values as they are reported; CRP below 0.6 mg/L is reported as 0.6."""
    out = table.round(DIGITS)
    out["CRP"] = out["CRP"].clip(lower=0.6)
    for name, digits in DIGITS.items():
        if digits == 0 or (name == "glucose" and out[name].median() > 50):
            out[name] = out[name].round().astype(int)
    return out
