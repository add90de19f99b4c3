"""Run a script in a fresh process of some interpreter, with one thread."""

import os
import subprocess
import sys
from pathlib import Path


def run(python, script, *arguments):
    """Return the words that the script printed; our interpreter takes condokit from here."""
    here = str(Path(__file__).parents[1] / "src") if python == sys.executable else ""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": here}
    out = subprocess.run(
        [python, "-c", script, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return out.stdout.split()
