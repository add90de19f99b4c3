"""A peer in its own environment: studies come in as an npz file, corrected values go out as one.

    environment/bin/python worker.py NAME in.npz out.npz

Study i is X_i, batch_i (labels), design_i (confounders as numbers, one level of each left out) and
reference_i. The answer is moved_i, or failed_i with the reason.
"""

import sys

import numpy as np


def neuroharmonize(X, batch, design, reference):
    import pandas as pd
    from neuroHarmonize import harmonizationLearn

    table = pd.DataFrame(design, columns=[f"c{j}" for j in range(design.shape[1])])
    table["SITE"] = batch
    return harmonizationLearn(X, table, ref_batch=reference)[1]


def combatlearn(X, batch, design, reference):
    import pandas as pd
    from combatlearn import ComBat

    known = pd.DataFrame(design) if design.shape[1] else None
    labels = pd.Series(batch)
    peer = ComBat(labels, continuous_covariates=known, method="fortin", reference_batch=reference)
    return np.asarray(peer.fit(pd.DataFrame(X)).transform(pd.DataFrame(X)))


def scanpy(X, batch, design, reference):
    import anndata
    import pandas as pd
    import scanpy

    names = [f"c{j}" for j in range(design.shape[1])]
    obs = pd.DataFrame(design, columns=names, index=[f"r{i}" for i in range(len(X))])
    obs["batch"] = pd.Categorical(batch)
    return scanpy.pp.combat(
        anndata.AnnData(X, obs=obs), key="batch", covariates=names or None, inplace=False
    )


def harmonypy(X, batch, design, reference):
    """Correct up to 50 principal components of standardised features, and go back to features."""
    import harmonypy

    centre, sd = X.mean(0), X.std(0)
    sd[sd == 0] = 1.0
    V = np.linalg.svd((X - centre) / sd, full_matrices=False)[2]
    V = V[: min(50, len(X) - 1, len(V))]
    scores = (X - centre) / sd @ V.T
    found = harmonypy.run_harmony(scores, {"batch": batch}, "batch", verbose=False, ncores=1)
    return X + (found.Z_corr - scores) @ V * sd


PEERS = {f.__name__: f for f in (neuroharmonize, combatlearn, scanpy, harmonypy)}


def main(name, given, answer):
    found = {}
    with np.load(given) as file:
        for i in range(int(file["count"])):
            parts = [file[f"{part}_{i}"] for part in ("X", "batch", "design")]
            try:
                moved = np.asarray(PEERS[name](*parts, str(file[f"reference_{i}"])), float)
                if not np.isfinite(moved).all():
                    raise ValueError("values that are not finite")
                found[f"moved_{i}"] = moved
            except Exception as error:  # any failure of a peer is a result
                found[f"failed_{i}"] = f"{type(error).__name__}: {error}".splitlines()[0]
    np.savez(answer, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
