"""Spectra of two instruments with standards, filter readings that mix, and sensors that drift."""

from pathlib import Path

import numpy as np
import pandas as pd

NM = np.arange(1100, 2500, 20)  # wavelengths in nm


def make(folder: Path) -> None:
    """Write nir.csv, nir_truth.csv, filters.csv and gas.csv."""
    rng = np.random.default_rng(20)
    spectra(rng, folder)
    filters(rng).to_csv(folder / "filters.csv", index=False, float_format="%.4f")
    gas(rng).to_csv(folder / "gas.csv", index=False, float_format="%.2f")


def bump(centre: float, width: float) -> np.ndarray:
    """Return an absorption band."""
    return np.exp(-0.5 * ((NM - centre) / width) ** 2)


def absorbance(rng: np.random.Generator, moisture: np.ndarray, protein: np.ndarray) -> np.ndarray:
    """Return spectra of flour: water, protein, oil and starch, and how samples scatter light."""
    n = len(moisture)
    oil, starch = rng.normal(3.5, 0.2, n), 78 - moisture - protein + rng.normal(0, 0.4, n)
    bands = {
        "moisture": (moisture, 0.012 * bump(1450, 50) + 0.030 * bump(1940, 45)),
        "protein": (
            protein,
            0.006 * bump(2050, 35) + 0.008 * bump(2180, 30) + 0.003 * bump(1510, 40),
        ),
        "oil": (oil, 0.012 * bump(1725, 30) + 0.016 * bump(2310, 25)),
        "starch": (starch, 0.002 * bump(2100, 60) + 0.0015 * bump(1580, 80)),
    }
    light = sum(share[:, None] * band for share, band in bands.values())
    light += 0.15 + 0.35 * (NM - 1100) / 1400
    scatter, base = rng.normal(1, 0.03, (n, 1)), rng.normal(0, 0.02, (n, 1))
    return scatter * light + base


def spectra(rng: np.random.Generator, folder: Path) -> None:
    """Write flour on two spectrometers: others, and wetter ones, on the second; eight on both."""
    where = np.repeat(["primary", "secondary", "both"], [110, 70, 8])
    moisture = rng.normal(np.where(where == "secondary", 13.6, 12.4), 0.9).round(2)
    protein = rng.normal(11.5, 1.2, len(where)).round(2)
    true = absorbance(rng, moisture, protein)
    gain = 1.06 + 0.04 * np.sin((NM - 1100) / 300)
    offset = 0.045 - 0.02 * (NM - 1100) / 1400 + 0.01 * np.cos((NM - 1100) / 200)
    noise = {side: rng.normal(0, 0.0015, true.shape) for side in ("primary", "secondary")}
    seen = {
        "primary": true + noise["primary"],
        "secondary": (true - offset) / gain + noise["secondary"],
    }
    sample = [f"F{k:03d}" for k in range(1, 181)] + [f"STD{k}" for k in range(1, 9)]
    names, tables, truths = [f"nm_{w}" for w in NM], [], []
    for side in ("primary", "secondary"):
        rows = np.isin(where, [side, "both"])
        about = pd.DataFrame(
            {"sample": sample, "instrument": side, "moisture": moisture, "protein": protein}
        )
        tables.append(about.join(pd.DataFrame(seen[side], columns=names))[rows])
        truths.append(about[["sample"]].join(pd.DataFrame(true, columns=names))[rows])
    table = pd.concat(tables)
    table.to_csv(folder / "nir.csv", index=False, float_format="%.4f")
    truths[1].to_csv(folder / "nir_truth.csv", index=False, float_format="%.4f")


def filters(rng: np.random.Generator) -> pd.DataFrame:
    """Return six filter channels of leaves by crop, whose neighbours leak into each other."""
    n, channels = 400, ["blue", "green", "yellow", "red", "edge", "nir"]
    share = {"old": [0.5, 0.3, 0.2], "new": [0.2, 0.3, 0.5]}
    means = np.array(
        [
            [0.05, 0.12, 0.10, 0.07, 0.30, 0.48],
            [0.07, 0.17, 0.15, 0.12, 0.33, 0.42],
            [0.04, 0.10, 0.11, 0.05, 0.24, 0.55],
        ]
    )
    factors = rng.normal(0, 0.012, (3, 3, 6))
    leak = np.eye(6) * 0.78 + 0.11 * (np.eye(6, k=1) + np.eye(6, k=-1))
    tables = []
    for camera in ("old", "new"):
        crop = rng.choice(3, n, p=share[camera])
        X = means[crop] + np.einsum("nk,nkj->nj", rng.normal(size=(n, 3)), factors[crop])
        X += rng.normal(0, 0.006, X.shape)
        truth = X.copy()
        if camera == "new":
            X = X @ leak.T + 0.02
        about = {"camera": camera, "crop": np.array(["wheat", "maize", "clover"])[crop]}
        truths = {f"true_{c}": truth[:, j] for j, c in enumerate(channels)}
        tables.append(pd.DataFrame({**about, **dict(zip(channels, X.T)), **truths}))
    return pd.concat(tables, ignore_index=True)


def gas(rng: np.random.Generator) -> pd.DataFrame:
    """Return metal oxide sensors in two years; all drift, and the last one saturates as well."""
    n = 500
    tables = []
    for year, mean in ((2022, 12.0), (2024, 17.0)):
        temperature = rng.normal(mean, 6.0, n)
        humidity = np.clip(rng.normal(62 - 0.6 * (temperature - 14), 9.0), 10, 99)
        pollution = rng.normal(size=n)
        loads = np.array([[60, 4.0, -1.0], [85, -6.0, 1.5], [45, 9.0, 0.5], [70, 3.0, -1.2]])
        X = np.array([900, 1100, 780, 960]) + pollution[:, None] * loads[:, 0]
        X = X + temperature[:, None] * loads[:, 1] + humidity[:, None] * loads[:, 2]
        X += rng.normal(0, 12, X.shape)
        truth = X.copy()
        if year == 2024:
            X = X * [0.93, 0.97, 1.04, 1.0] + [-25, 60, -12, 0]
            X[:, 3] = 990 - 35 * np.log1p(np.exp((960 - X[:, 3]) / 35))
        values = {f"S{j + 1}": X[:, j] for j in range(4)}
        truths = {f"true_S{j + 1}": truth[:, j] for j in range(4)}
        about = {"year": year, "temperature": temperature, "humidity": humidity}
        tables.append(pd.DataFrame({**about, **values, **truths}))
    return pd.concat(tables, ignore_index=True)
