"""Pumps watched by sensors of an old and of a new vendor, for a model that predicts failures."""

from pathlib import Path

import numpy as np
import pandas as pd

SCALE = {"temperature_c": 1.05, "vibration_db": 1.3, "current_a": 0.94, "pressure_bar": 1.0}
OFFSET = {"temperature_c": 0.5, "vibration_db": -26.0, "current_a": 0.4, "pressure_bar": 0.3}
NO_FAULT: dict[str, float] = {}


def pumps(
    n: int, loads: tuple[float, ...], failing: float, rng: np.random.Generator
) -> pd.DataFrame:
    """Return pumps as the sensors of the old vendor see them."""
    load = rng.choice(3, n, p=loads)
    failed = rng.random(n) < failing * (1 + load)
    X = {
        "temperature_c": 48 + 6 * load + 7 * failed + rng.normal(0, 4, n),
        "vibration_db": 96 + 4 * load + 6 * failed + rng.normal(0, 3, n),
        "current_a": 21 + 5 * load + 1.0 * failed + rng.normal(0, 1.6, n),
        "pressure_bar": 6.2 - 0.4 * load - 0.5 * failed + rng.normal(0, 0.35, n),
    }
    return pd.DataFrame({"load": np.array(["low", "normal", "high"])[load], "failed": failed, **X})


def seen_by_new(table: pd.DataFrame, fault: dict[str, float] = NO_FAULT) -> pd.DataFrame:
    """Return what the sensors of the new vendor read, with a fault that came later."""
    seen = {n: SCALE[n] * table[n] + OFFSET[n] + fault.get(n, 0.0) for n in SCALE}
    return table.assign(**seen)


def make(folder: Path) -> None:
    """Write the pumps of both vendors, and what comes in later."""
    rng = np.random.default_rng(3)
    old = pumps(2500, (0.4, 0.4, 0.2), 0.06, rng)
    new = pumps(800, (0.15, 0.35, 0.5), 0.12, rng)  # heavily loaded and troubled pumps came first
    later, faulty = (pumps(400, (0.15, 0.35, 0.5), 0.12, rng) for _ in range(2))
    tables = {
        "pumps_old": old.assign(vendor="old"),
        "pumps_new": seen_by_new(new).assign(vendor="new"),
        "pumps_new_truth": new.drop(columns=["load", "failed"]),
        "pumps_may": seen_by_new(later).drop(columns=["load", "failed"]),
        "pumps_june": seen_by_new(faulty, {"temperature_c": 6.0}).drop(columns=["load", "failed"]),
    }
    for name, table in tables.items():
        table.insert(0, "pump", [f"{name[6].upper()}{k:04}" for k in range(len(table))])
        table.round(2).to_csv(folder / f"{name}.csv", index=False)
