"""Run a script in a fresh process of some interpreter, with one thread."""

import os
import subprocess


def run(python, script, *arguments):
    """Return the words that the script printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    out = subprocess.run(
        [python, "-c", script, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return out.stdout.split()
