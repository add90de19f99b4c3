"""Which columns of files are what."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from condokit.cli import main

NESTED = {
    "list": pa.array([[1.0]] * 40),
    "struct": pa.array([{"a": 1.0}] * 40),
    "binary": pa.array([b"\xff"] * 40),
}


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("roles", ["-f x,odd", "-f x -c odd", "-f x -c odd:num", "-f x -c odd:cat"])
def test_nested_columns_are_one_line(tmp_path, capsys, kind, roles):
    table = {"x": np.arange(40.0), "odd": NESTED[kind], "day": ["a", "b"] * 20}
    parquet.write_table(pa.table(table), tmp_path / "all.parquet")
    one = [tmp_path / "all.parquet", "--domain", "day", "--reference-label", "a", *roles.split()]
    with pytest.raises(SystemExit, match="2"):
        main([str(part) for part in ("fit", *one, "-o", tmp_path / "map.json")])
    assert "neither numbers nor text" in capsys.readouterr().err
