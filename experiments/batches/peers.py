"""Peers of `BatchAdapter`: plain corrections, and packages in environments of their own.

The environments are made with venv and pip under CONDOKIT_PEERS (default: condokit_peers in the
folder for temporary files), once; worker.py runs inside them. A peer gives for every study the
corrected values, or a sentence that says why not.
"""

import os
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path

import numpy as np
import pandas as pd

PACKAGES = {  # peer: what pip installs; whether results are in the units of a reference batch
    "neuroharmonize": ("neuroHarmonize==2.5.2", True),
    "combatlearn": ("combatlearn==2.3.0", True),
    "scanpy": ("scanpy==1.11.5", False),
    "harmonypy": ("harmonypy==2.1.0", False),
}
NO_CONTROLS = "no controls"
SECONDS = 1200  # for all studies of one peer


def design(study):
    """Return the confounders as numbers, one level of each left out."""
    if study.confounders is None:
        return np.empty((len(study.X), 0))
    return pd.get_dummies(study.confounders, drop_first=True).to_numpy(float)


def none(study):
    return study.X


def standardised(study):
    """Give each batch the means and standard deviations of the reference, feature by feature."""
    moved, known = study.X.copy(), study.X[study.batch == study.reference]
    for label in np.unique(study.batch[study.batch != study.reference]):
        rows = study.batch == label
        moved[rows] = _from_to(moved[rows], known)(moved[rows])
    return moved


def regression(study):
    """Take off the coefficients of the batches in features ~ batch + confounders."""
    others = [label for label in np.unique(study.batch) if label != study.reference]
    batches = (study.batch[:, None] == np.array(others)).astype(float)
    M = np.column_stack([batches, design(study), np.ones(len(study.X))])
    if np.linalg.matrix_rank(M) < M.shape[1]:
        raise ValueError("batches and confounders are collinear")
    coefficients = np.linalg.lstsq(M, study.X, rcond=None)[0]
    return study.X - batches @ coefficients[: len(others)]


def bridge_shift(study):
    """Shift each batch by the mean difference of its controls, starting from the reference."""
    if study.bridge is None:
        raise ValueError(NO_CONTROLS)
    moved, waiting, reached = study.X.copy(), deque([study.reference]), {study.reference}
    where = {label: study.batch == label for label in np.unique(study.batch)}
    controls = {k: set(study.bridge[rows]) - {None} for k, rows in where.items()}
    while waiting:
        known = waiting.popleft()
        for label in where:
            shared = controls[known] & controls[label]
            if label in reached or not shared:
                continue
            gaps = [
                moved[where[known] & (study.bridge == one)].mean(0)
                - study.X[where[label] & (study.bridge == one)].mean(0)
                for one in sorted(shared)
            ]
            moved[where[label]] += np.mean(gaps, axis=0)
            reached.add(label)
            waiting.append(label)
    if len(reached) < len(where):
        raise ValueError(f"no controls lead to {sorted(set(where) - reached)}")
    return moved


PLAIN = {f.__name__: f for f in (none, standardised, regression, bridge_shift)}


def attempt(method, study):
    """Return what a method gives, or why it gives nothing."""
    try:
        moved = np.asarray(method(study))
        return moved if np.isfinite(moved).all() else "values that are not finite"
    except (ValueError, np.linalg.LinAlgError) as error:
        return str(error).splitlines()[0]


def _from_to(old, new):
    """Return the map of each feature that gives `old` the mean and sd of `new`."""
    spread = old.std(0, ddof=1)
    scale = np.divide(new.std(0, ddof=1), spread, out=np.ones_like(spread), where=spread > 0)
    return lambda X: new.mean(0) + (X - old.mean(0)) * scale


def folder():
    default = Path(tempfile.gettempdir()) / "condokit_peers"
    return Path(os.environ.get("CONDOKIT_PEERS") or default)


def environment(peer):
    """Return the python of a peer's environment, which is made if it is not there yet."""
    place, requirement = folder() / peer, PACKAGES[peer][0]
    python, ready = place / "bin" / "python", place / "ready"
    if not ready.exists() or ready.read_text() != requirement:
        print(f"Making the environment of {requirement} in {place}", flush=True)
        quiet = ["--quiet", "--disable-pip-version-check"]
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        install = [str(python), "-m", "pip", "install", *quiet, requirement]
        subprocess.run(install, check=True, stderr=subprocess.PIPE, text=True)
        ready.write_text(requirement)
    return python


def run(peer, studies):
    """Return the results of a peer for all studies; it is started once."""
    try:
        python = environment(peer)
    except (subprocess.CalledProcessError, OSError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return [f"no environment: {said[-1]}"] * len(studies)
    given = {"count": len(studies)}
    for i, study in enumerate(studies):
        parts = {"X": study.X, "batch": study.batch.astype(str), "design": design(study)}
        given |= {f"{name}_{i}": part for name, part in parts.items()}
        given[f"reference_{i}"] = str(study.reference)
    with tempfile.TemporaryDirectory() as place:
        files = [str(Path(place) / name) for name in ("in.npz", "out.npz")]
        np.savez(files[0], **given)
        command = [str(python), str(Path(__file__).with_name("worker.py")), peer, *files]
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        clean["OMP_NUM_THREADS"] = "1"
        quiet = {"capture_output": True, "text": True, "timeout": SECONDS}
        try:
            subprocess.run(command, check=True, env=clean, **quiet)
        except subprocess.TimeoutExpired:
            return [f"not done within {SECONDS} s"] * len(studies)
        except subprocess.CalledProcessError as error:
            return [(error.stderr.strip() or "ended").splitlines()[-1]] * len(studies)
        with np.load(files[1]) as found:
            return [_answer(peer, study, found, i) for i, study in enumerate(studies)]


def _answer(peer, study, found, i):
    """Return values in the units of the reference batch.

    If the peer has no reference batch, they are taken there by the means and standard deviations
    that the reference's own rows have before and after correction.
    """
    if f"failed_{i}" in found:
        return str(found[f"failed_{i}"])
    moved, rows = found[f"moved_{i}"], study.batch == study.reference
    return moved if PACKAGES[peer][1] else _from_to(moved[rows], study.X[rows])(moved)
