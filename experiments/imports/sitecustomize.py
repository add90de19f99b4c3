"""Python imports this file by itself at its start: it lists which files a script imported.

`evidence.py` sets the path and LIST_OF_IMPORTS; processes that a script starts are listed too.
"""

import atexit
import os
import sys


def _write() -> None:
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    with open(os.environ["LIST_OF_IMPORTS"], "a", encoding="utf-8") as out:
        out.writelines(f"{os.path.abspath(file)}\n" for file in files if file)


if "LIST_OF_IMPORTS" in os.environ:
    atexit.register(_write)
