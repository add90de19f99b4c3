"""Real data of the paper and of examples, from files in `CONDOKIT_DATA` or the user's cache."""

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
    """Load ANSUR II, body measurements of 4082 men and 1986 women.

    Returns
    -------
    Bunch
        `X` of shape (6068, 93), `feature_names`, `gender` (Male or Female), and the self-reported
        `height` in inches.

    Examples
    --------
    >>> from condokit.datasets import load_ansur
    >>> load_ansur().X.shape  # doctest: +SKIP
    (6068, 93)
    """
    table = read_table(find("ansur2.csv.gz"))
    names = table.column_names[1:94]
    X = np.column_stack(table.select(names).columns).astype(float)
    gender, height = np.array(table["Gender"], str), np.array(table["Heightin"], float)
    return Bunch(X=X, feature_names=names, gender=gender, height=height)


def load_bladderbatch() -> Bunch:
    """Load bladderbatch, gene expression of bladder tissue in five batches.

    Returns
    -------
    Bunch
        `X` of shape (57, 22283), samples by genes, `feature_names`, `result` (Cancer or NonCancer)
        and `batch`.

    Examples
    --------
    >>> from condokit.datasets import load_bladderbatch
    >>> load_bladderbatch().X.shape  # doctest: +SKIP
    (57, 22283)
    """
    people, arrays = read_table(find("bladderbatch_pheno.csv")), _arrays("bladderbatch_expr.npz")
    result, batch = np.array(people["result"], str), np.array(people["batch"])
    names = [str(name) for name in arrays["gene_id"]]
    return Bunch(X=arrays["expr"], feature_names=names, result=result, batch=batch)


def load_snareseq() -> Bunch:
    """Load SNARE-seq, two assays of 1047 cells.

    Returns
    -------
    Bunch
        `atac` of shape (1047, 19), `rna` of shape (1047, 10), and `cell_type`.

    Examples
    --------
    >>> from condokit.datasets import load_snareseq
    >>> load_snareseq().rna.shape  # doctest: +SKIP
    (1047, 10)
    """
    arrays = _arrays("snareseq.npz")
    types = arrays["cell_type"].astype(str)
    return Bunch(atac=arrays["atac"], rna=arrays["rna"], cell_type=types)


def load_california_housing() -> Bunch:
    """Load 20,640 census districts of California.

    Returns
    -------
    Bunch
        `X` with seven `feature_names`, the median `income` and the median house `value`.

    Examples
    --------
    >>> from condokit.datasets import load_california_housing
    >>> load_california_housing().X.shape  # doctest: +SKIP
    (20640, 7)
    """
    table = read_table(find("california_housing.csv.gz"))
    income, value = np.array(table["MedInc"]), np.array(table["MedHouseVal"])
    table = table.drop_columns(["MedInc", "MedHouseVal"])
    X = np.column_stack(table.columns).astype(float)
    return Bunch(X=X, feature_names=table.column_names, income=income, value=value)


def load_corn() -> Bunch:
    """Load near-infrared spectra of 80 corn samples, each measured on three spectrometers.

    Returns
    -------
    Bunch
        `spectra` has the absorbances of "m5", "mp5" and "mp6" at 700 `wavelengths` (nm); row i is
        the same sample everywhere. `chemistry` has Moisture, Oil, Protein and Starch of samples, in
        percent.

    Examples
    --------
    >>> from condokit.datasets import load_corn
    >>> load_corn().spectra["m5"].shape  # doctest: +SKIP
    (80, 700)
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
    """Load a photo of the paper.

    Parameters
    ----------
    name : {"day", "sunset", "beach"}
        Which photo. "beach" has sky, water and sand, the others sky and water.

    Returns
    -------
    Bunch
        `pixels` of shape (n_rows, n_columns, 3) with values in [0, 1), and the `region` of each
        pixel, of shape (n_rows, n_columns).

    Examples
    --------
    >>> from condokit.datasets import load_photo
    >>> load_photo("beach").pixels.shape  # doctest: +SKIP
    (723, 964, 3)
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
    """Return the folders to search: `CONDOKIT_DATA`, then the user's cache."""
    given = os.environ.get("CONDOKIT_DATA")
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    home = Path(base) if base else Path.home() / ".cache"
    return ([Path(given)] if given else []) + [home / "condokit"]


def find(name: str) -> Path:
    """Return the path of a data file with the right checksum, or say where to get the file."""
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
    """Return the checksum of a file, kept until the file is `changed`."""
    return sha256(path)


def _arrays(name: str) -> dict[str, Array]:
    """Return the arrays of an .npz file by name."""
    with np.load(find(name), allow_pickle=False) as file:
        return dict(file)
