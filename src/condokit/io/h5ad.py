"""AnnData files as tables.

anndata reads them. When one is written, h5py copies the unchanged parts, since anndata would load
them into memory. HDF5 does not recover from a full disk, so room for the file is reserved first.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from condokit.checks import FileError
from condokit.io.formats import Content, PathLike, Request, arrow, check_names, need, worded
from condokit.io.writing import check_target, opened

if TYPE_CHECKING:
    import pyarrow as pa

OBSERVED = b"condokit.observed"  # in a schema's metadata: columns that describe rows, as JSON
_SLACK = 1 << 16  # bytes by which an HDF5 file may be larger than what is in it


def open_h5ad(path: PathLike) -> Any:
    """Open an AnnData whose X stays in the file."""
    read = need("anndata", "An .h5ad file needs anndata", "anndata").read_h5ad
    with worded(path):
        open(path, "rb").close()  # raises Python's errors, which `worded` knows
        return read(path, backed="r")


def read_h5ad(request: Request) -> Content:
    """Read the names of the observations, obs, and X (dense or sparse) as columns of a table."""
    pa = arrow()
    if request.is_piped:
        raise FileError("An .h5ad file cannot be read from standard input; give its name.")
    data = open_h5ad(request.path)
    request.files.callback(data.file.close)
    needed, memory = 8 * data.n_obs * data.n_vars, _memory()
    if request.is_whole and needed > memory / 2:
        raise FileError(
            f"{request.path} would take {needed / 1e9:.1f} GB as a dense table, more than half of "
            f"the {memory / 1e9:.1f} GB of memory; select fewer variables."
        )
    X = data.X
    if hasattr(X, "to_memory"):  # a sparse X is slow to read by rows from disk
        X = X.to_memory().tocsr()
    obs = data.obs.rename_axis(data.obs.index.name or "obs_names").reset_index()
    variables = [] if X is None else list(data.var_names)
    observed = [str(name) for name in obs.columns]
    names = [*observed, *variables]

    def part(start: int, stop: int) -> Any:
        table = pa.Table.from_pandas(obs.iloc[start:stop], preserve_index=False)
        arrays = list(table.columns)
        if X is not None:
            values = X[start:stop]
            values = values.toarray() if hasattr(values, "toarray") else values
            arrays += list(np.ascontiguousarray(values.T))
        return pa.table(arrays, names=names, metadata={OBSERVED: json.dumps(observed)})

    step = min(request.rows_of_batch(len(names)), data.n_obs) or 1
    tables = (part(start, start + step) for start in range(0, data.n_obs, step))
    return Content(part(0, 0).schema, data.n_obs, tables)


def replace_h5ad(
    path_in: PathLike, path_out: PathLike, table: pa.Table, force: bool = False
) -> None:
    """Copy an .h5ad file with new values in X; obs, var, uns and everything else stay unchanged.

    The table has one row per observation, in order, and one column per variable; other columns are
    ignored. With `force`, an existing file is replaced, which may be the one that is read.
    """
    data = open_h5ad(path_in)
    import h5py  # which anndata brings
    from anndata.io import write_elem

    check_target(path_out, force)
    with worded(path_in):
        names, shape, single = list(data.var_names), data.shape, data.X.dtype == np.float32
        data.file.close()
    check_names(path_out, table.column_names, names)
    if len(table) != shape[0]:
        raise FileError(
            f"{path_out} cannot be written: the table has {len(table)} rows, but {path_in} has "
            f"{shape[0]} observations."
        )
    with opened(path_out, force) as file, worded(path_out, "written"):
        values = np.empty(shape, np.float32 if single else np.float64)
        for place, name in enumerate(names):
            values[:, place] = table.column(name).to_numpy()
        with h5py.File(path_in) as old, h5py.File(file, "w") as new:
            _reserve(file, os.path.getsize(path_in) + values.nbytes + _SLACK)
            new.attrs.update(old.attrs)
            for key in set(old) - {"X"}:
                old.copy(key, new)
            write_elem(new, "X", values)


def _reserve(file: IO[bytes], size: int) -> None:
    """Reserve room on the disk for a file, or raise an error."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    elif shutil.disk_usage(Path(file.name).parent).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _memory() -> float:
    """Return the bytes of memory of the machine; 16 GB if unknown."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return 16e9
