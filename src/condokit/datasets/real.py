"""The paper's real data, looked for in `CONDOKIT_DATA` and in the user's cache."""

import csv
import gzip
import os
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.io import sha256
from condokit.io.formats import need


@dataclass(frozen=True)
class Ansur:
    """ANSUR II: body measurements of 4082 men and 1986 women; see `load_ansur`."""

    X: Array
    feature_names: list[str]
    gender: Array
    height: Array


@dataclass(frozen=True)
class Bladder:
    """Gene expression of bladder tissue in five batches; see `load_bladderbatch`."""

    X: Array
    feature_names: list[str]
    result: Array
    batch: Array


@dataclass(frozen=True)
class Snare:
    """Two assays of the same 1047 cells; see `load_snareseq`."""

    atac: Array
    rna: Array
    cell_type: Array


@dataclass(frozen=True)
class Housing:
    """Census districts of California; see `load_california_housing`."""

    X: Array
    feature_names: list[str]
    income: Array
    value: Array


@dataclass(frozen=True)
class Photo:
    """A photo, and what each of its pixels shows; see `load_photo`."""

    pixels: Array
    region: Array


def load_ansur() -> Ansur:
    """Load ANSUR II: 93 measurements, gender (Male, Female), self-reported height in inches."""
    columns = _columns("ansur2.csv.gz")
    names = list(columns)[1:94]
    X = np.column_stack([np.array(columns[name], float) for name in names])
    return Ansur(X, names, np.array(columns["Gender"]), np.array(columns["Heightin"], float))


def load_bladderbatch() -> Bladder:
    """Load bladderbatch: 57 samples of 22,283 genes, their batch and result (Cancer, NonCancer)."""
    people, arrays = _columns("bladderbatch_pheno.csv"), _arrays("bladderbatch_expr.npz")
    result, batch = np.array(people["result"]), np.array(people["batch"], int)
    return Bladder(arrays["expr"], [str(name) for name in arrays["gene_id"]], result, batch)


def load_snareseq() -> Snare:
    """Load SNARE-seq: 19 ATAC and 10 RNA features of the same 1047 cells, and the type of each."""
    arrays = _arrays("snareseq.npz")
    return Snare(arrays["atac"], arrays["rna"], arrays["cell_type"].astype(str))


def load_california_housing() -> Housing:
    """Load 20,640 districts: seven features, median income and median house value."""
    columns = {k: np.array(v, float) for k, v in _columns("california_housing.csv.gz").items()}
    income, value = columns.pop("MedInc"), columns.pop("MedHouseVal")
    return Housing(np.column_stack(list(columns.values())), list(columns), income, value)


def load_photo(name: str) -> Photo:
    """Load a photo of the paper: pixels (rows, columns, 3) within [0, 1), and their regions.

    Parameters
    ----------
    name : {"day", "sunset", "beach"}
        Which. "beach" has sky, water and sand, the others sky and water.
    """
    files = {"day": "ocean_day.jpg", "sunset": "ocean_sunset.jpg", "beach": "cape_cod.jpg"}
    if name not in files:
        raise ValueError(f"name must be one of {', '.join(map(repr, files))}; got {name!r}.")
    Image = need("PIL.Image", "load_photo needs Pillow", "plot")
    with Image.open(find(files[name])) as image:
        pixels = np.asarray(image.convert("RGB"), np.float32) / 256
    row, column = np.indices(pixels.shape[:2])
    horizon = {"day": 400, "sunset": 475, "beach": 275}[name]
    region = np.where(row < horizon, "sky", "water")
    if name == "beach":
        region = np.where((row >= horizon) & (row >= 300 + column / 5), "sand", region)
    return Photo(pixels, region)


def folders() -> list[Path]:
    """Return the folders that are searched: `CONDOKIT_DATA`, then the user's cache."""
    given = os.environ.get("CONDOKIT_DATA")
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    home = Path(base) if base else Path.home() / ".cache"
    return ([Path(given)] if given else []) + [home / "condokit"]


def find(name: str) -> Path:
    """Return the path of a data file whose checksum is right, or explain where to get it."""
    known = tomllib.loads(Path(__file__).with_name("files.toml").read_text(encoding="utf-8"))
    right, origin = known[name]["sha256"], known[name]["origin"]
    for folder in folders():
        path = folder / name
        if path.is_file():
            found = _sha256(path, path.stat().st_mtime_ns)
            if found != right:
                raise ValueError(
                    f"{path} is not the file that is meant: its SHA-256 is {found}, that of the "
                    f"file is {right}. Replace it. {origin}"
                )
            return path
    raise FileNotFoundError(
        f"{name} was not found in {' or '.join(map(str, folders()))}. Put it there, or set "
        f"CONDOKIT_DATA to the folder that has it. Origin: {origin} SHA-256 of the file: {right}."
    )


@cache
def _sha256(path: Path, changed: int) -> str:
    return sha256(path)


def _columns(name: str) -> dict[str, list[str]]:
    path = find(name)
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    return dict(zip(names, map(list, zip(*rows))))


def _arrays(name: str) -> dict[str, Array]:
    with np.load(find(name), allow_pickle=False) as file:
        return dict(file)
