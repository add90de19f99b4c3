"""Real data of the paper and of examples, looked for in `CONDOKIT_DATA` and in the user's cache."""

import os
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

from condokit.checks import Array, check_word
from condokit.io import read_table, sha256
from condokit.io.formats import need


def load_ansur() -> Bunch:
    """Load ANSUR II, 4082 men and 1986 women: X with feature_names, gender and height.

    93 body measurements, Male or Female, and the self-reported height in inches.
    """
    table = read_table(find("ansur2.csv.gz"))
    names = table.column_names[1:94]
    X = np.column_stack(table.select(names).columns).astype(float)
    gender, height = np.array(table["Gender"], str), np.array(table["Heightin"], float)
    return Bunch(X=X, feature_names=names, gender=gender, height=height)


def load_bladderbatch() -> Bunch:
    """Load bladderbatch, gene expression of bladder tissue: X with feature_names, result and batch.

    57 samples of 22,283 genes, Cancer or NonCancer, in five batches.
    """
    people, arrays = read_table(find("bladderbatch_pheno.csv")), _arrays("bladderbatch_expr.npz")
    result, batch = np.array(people["result"], str), np.array(people["batch"])
    names = [str(name) for name in arrays["gene_id"]]
    return Bunch(X=arrays["expr"], feature_names=names, result=result, batch=batch)


def load_snareseq() -> Bunch:
    """Load SNARE-seq, two assays of 1047 cells: atac (19 features), rna (10) and cell_type."""
    arrays = _arrays("snareseq.npz")
    types = arrays["cell_type"].astype(str)
    return Bunch(atac=arrays["atac"], rna=arrays["rna"], cell_type=types)


def load_california_housing() -> Bunch:
    """Load 20,640 census districts of California: X with feature_names, income and value.

    Seven features, the median income and the median house value.
    """
    table = read_table(find("california_housing.csv.gz"))
    income, value = np.array(table["MedInc"]), np.array(table["MedHouseVal"])
    table = table.drop_columns(["MedInc", "MedHouseVal"])
    X = np.column_stack(table.columns).astype(float)
    return Bunch(X=X, feature_names=table.column_names, income=income, value=value)


def load_corn() -> Bunch:
    """Load near-infrared spectra of 80 corn samples, each measured on three spectrometers.

    `spectra` has the absorbances of "m5", "mp5" and "mp6" at 700 `wavelengths` (nm); row i is the
    same sample everywhere. `chemistry` has Moisture, Oil, Protein and Starch of samples, in
    percent.
    """
    spectra = {
        name: read_table(find(f"pairs/corn/corn_{name}.csv.gz")).drop_columns("sample")
        for name in ("m5", "mp5", "mp6")
    }
    wavelengths = np.array(spectra["m5"].column_names, float)
    chemistry = read_table(find("pairs/corn/corn_chem.csv")).drop_columns("sample")
    return Bunch(
        spectra={name: np.column_stack(table.columns) for name, table in spectra.items()},
        wavelengths=wavelengths,
        chemistry={name: np.array(chemistry[name]) for name in chemistry.column_names},
    )


def load_photo(name: str) -> Bunch:
    """Load a photo of the paper: pixels (rows, columns, 3) within [0, 1), and the region of each.

    Parameters
    ----------
    name : {"day", "sunset", "beach"}
        Which. "beach" has sky, water and sand, the others sky and water.
    """
    files = {"day": "ocean_day.jpg", "sunset": "ocean_sunset.jpg", "beach": "cape_cod.jpg"}
    check_word("'name'", name, tuple(files))
    Image = need("PIL.Image", "load_photo needs Pillow", "plot")
    with Image.open(find(files[name])) as image:
        pixels = np.asarray(image.convert("RGB"), np.float32) / 256
    row, column = np.indices(pixels.shape[:2])
    horizon = {"day": 400, "sunset": 475, "beach": 275}[name]
    region = np.where(row < horizon, "sky", "water")
    if name == "beach":
        region = np.where((row >= horizon) & (row >= 300 + column / 5), "sand", region)
    return Bunch(pixels=pixels, region=region)


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


def _arrays(name: str) -> dict[str, Array]:
    with np.load(find(name), allow_pickle=False) as file:
        return dict(file)
