"""How measured tables are kept: as CSV files, with the versions they were measured with."""

import csv
from pathlib import Path

import numpy as np
import sklearn

import condokit


def write(name, rows):
    """Write rows, the first of which are names, with the versions they were measured with."""
    versions = [condokit.__version__, np.__version__, sklearn.__version__]
    path = Path(__file__).parent / "results" / name
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*rows[0], "condokit", "numpy", "scikit-learn"])
        writer.writerows([*row, *versions] for row in rows[1:])
    print(f"Wrote {path}")
