"""Write the example tables that pages offer for download: simulated, so that the truth is known.

    python docs/make_data.py FOLDER

Each module of `example_data` has `make(folder)`, which writes its tables.
"""

import pkgutil
import sys
from importlib import import_module
from pathlib import Path

import example_data


def main(folder: Path) -> None:
    """Write all tables into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for module in pkgutil.iter_modules(example_data.__path__):
        import_module(f"example_data.{module.name}").make(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
