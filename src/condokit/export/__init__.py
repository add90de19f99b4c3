"""Maps for other systems: as an ONNX model, an SQL query, or Python or R source code.

All of them give the values that `AffineMap` gives, and keep missing values missing. Values outside
the domain of a link (such as zero for a logarithm) are an error for `AffineMap`; in systems that
cannot raise errors they become NaN or NULL.
"""

import os
from pathlib import Path
from typing import Any

from condokit.checks import listing
from condokit.export.onnx import to_onnx as to_onnx
from condokit.export.python import to_python as to_python
from condokit.export.r import to_r as to_r
from condokit.export.sql import to_sql as to_sql
from condokit.io.atomic import write_bytes
from condokit.maps.affine import AffineMap

__all__ = ["export", "to_onnx", "to_python", "to_r", "to_sql"]


def export(affine: AffineMap, path: str | os.PathLike[str], **options: Any) -> None:
    """Write a map to a file in the format of its ending: .onnx, .sql, .py or .R.

    Parameters
    ----------
    affine : AffineMap or MonotoneMap
        The map.
    path : str or path
        The file to write.
    **options
        Passed to `to_onnx`, `to_sql`, `to_python` or `to_r`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from condokit import AffineMap
    >>> from condokit.export import export
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(AffineMap([2.0], [1.0], ["a"]), Path(folder, "map.sql"), table="new")
    ...     print(Path(folder, "map.sql").read_text().rstrip())
    SELECT
      2.0e0 * "a" + 1.0e0 AS "a"
    FROM "new"
    """
    formats: dict[str, Any] = {".onnx": to_onnx, ".sql": to_sql, ".py": to_python, ".r": to_r}
    ending = Path(path).suffix.lower()
    if ending not in formats:
        raise ValueError(f"The file name must end in {listing(formats)}. Got {str(path)!r}.")
    content = formats[ending](affine, **options)
    write_bytes(path, content.encode("utf-8") if isinstance(content, str) else content)
