"""The methods that are compared, one function each, and the environments of those that are peers.

A function is given the data of a cell and puts them into the form that its package wants, which is
not timed. What it returns is timed: it fits, and returns the query's values in the units of the
reference. Imports are inside, as each function runs in the environment of its package alone.

The data are `Xq`, `Xr` (features), `Cq`, `Cr` (categorical confounders as text) and `Tq`, `Tr`
(continuous ones), tables of zero columns where there are none.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / ".envs"
FREE = "none", "categorical", "heavy tails", "continuous", "mixed"
GIVEN = FREE[1:]
CURVED = "continuous", "mixed"
MATRIX = ("matrix",)


def confounders(data):
    """Return data frames of the confounders of both domains, or None."""
    import pandas as pd

    def table(C, T):
        columns = {f"c{j}": C[:, j] for j in range(C.shape[1])}
        return pd.DataFrame(columns | {f"t{j}": T[:, j] for j in range(T.shape[1])})

    tables = table(data["Cq"], data["Tq"]), table(data["Cr"], data["Tr"])
    return tables if tables[0].shape[1] else (None, None)


def dummies(data):
    """Return the confounders as numbers, one level of each left out, the query first."""
    import pandas as pd

    query, reference = confounders(data)
    if query is None:
        return np.empty((len(data["Xq"]) + len(data["Xr"]), 0))
    return pd.get_dummies(pd.concat([query, reference]), drop_first=True).to_numpy(float)


def condokit(data):
    from condokit import ConDoAdapter

    Zq, Zr = confounders(data)
    return lambda: ConDoAdapter().fit_pair(data["Xq"], data["Xr"], Zq, Zr).transform(data["Xq"])


def condokit_matrix(data):
    from condokit import ConDoAdapter

    def run():
        adapter = ConDoAdapter("affine", divergence="ot").fit_pair(data["Xq"], data["Xr"])
        return adapter.transform(data["Xq"])

    return run


def scaler(data):
    from sklearn.preprocessing import StandardScaler

    def run():
        query, reference = StandardScaler().fit(data["Xq"]), StandardScaler().fit(data["Xr"])
        return reference.inverse_transform(query.transform(data["Xq"]))

    return run


def condo(data):
    """Call the published package: strata if there is one categorical confounder, else numbers."""
    import condo

    Zq, Zr = data["Cq"], data["Cr"]
    if data["Tq"].shape[1]:
        Zq, Zr = np.split(dummies(data), [len(data["Xq"])])

    def run():
        adapter = condo.ConDoAdapterKLD(transform_type="location-scale", verbose=0)
        adapter.fit(data["Xq"], data["Xr"], Zq, Zr)
        return adapter.transform(data["Xq"])

    return run


def _one_table(data):
    """Return features of both domains as one table, and the labels of its rows."""
    X = np.vstack([data["Xq"], data["Xr"]])
    return X, np.repeat(["query", "reference"], [len(data["Xq"]), len(data["Xr"])])


def combatlearn(data, **options):
    import pandas as pd
    from combatlearn import ComBat

    X, labels = _one_table(data)
    frame, batch, roles = pd.DataFrame(X), pd.Series(labels), {}
    for role, names in {"discrete_covariates": "CqCr", "continuous_covariates": "TqTr"}.items():
        columns = np.vstack([data[names[:2]], data[names[2:]]])
        if columns.shape[1]:
            roles[role] = pd.DataFrame(columns).add_prefix(role[0])
    query = frame.iloc[: len(data["Xq"])]

    def run():
        peer = ComBat(
            batch, reference_batch="reference", **{"method": "fortin", **roles, **options}
        )
        return np.asarray(peer.fit(frame).transform(query))

    return run


def combatlearn_gam(data):
    return combatlearn(data, method="gam")


def neuroharmonize(data, smooth=False):
    import pandas as pd
    from neuroHarmonize import harmonizationLearn

    X, labels = _one_table(data)
    table = pd.DataFrame(dummies(data)).add_prefix("z")
    curved = [k for k in table if smooth and table[k].nunique() > 2]
    table["SITE"] = labels
    n = len(data["Xq"])
    return lambda: harmonizationLearn(X, table, smooth_terms=curved, ref_batch="reference")[1][:n]


def neuroharmonize_gam(data):
    return neuroharmonize(data, smooth=True)


def pot(data):
    import ot

    def run():
        transport = ot.da.LinearTransport().fit(Xs=data["Xq"], Xt=data["Xr"])
        return transport.transform(Xs=data["Xq"])

    return run


def skada(data):
    from skada import LinearOTMappingAdapter

    X, labels = _one_table(data)
    domain = np.where(labels == "query", 1, -2)

    def run():
        adapter = LinearOTMappingAdapter().fit(X, sample_domain=domain)
        n = len(data["Xq"])
        return adapter.transform(X[:n], sample_domain=domain[:n], allow_source=True)

    return run


# method: function, environment (None: our own), kinds of confounders that it can take
METHODS = {
    "condokit": (condokit, None, FREE),
    "condokit, matrix": (condokit_matrix, None, MATRIX),
    "StandardScaler": (scaler, None, FREE + MATRIX),
    "condo": (condo, "condo", GIVEN),
    "combatlearn": (combatlearn, "combatlearn", FREE),
    "combatlearn, gam": (combatlearn_gam, "combatlearn", CURVED),
    "neuroHarmonize": (neuroharmonize, "neuroHarmonize", FREE),
    "neuroHarmonize, gam": (neuroharmonize_gam, "neuroHarmonize", CURVED),
    "POT": (pot, "POT", MATRIX),
    "skada": (skada, "skada", MATRIX),
}
OURS = "condokit", "condokit, matrix"
FLOOR = "StandardScaler"
REQUIREMENTS = {  # condo 1.1.0 ends with an error beside newer versions of these two
    "condo": ["condo==1.1.0", "numpy<2", "lightgbm<4.6"],
    "combatlearn": ["combatlearn==2.3.0"],
    "neuroHarmonize": ["neuroHarmonize==2.5.2"],
    "POT": ["POT==0.9.7.post1"],
    "skada": ["skada==0.6.0"],
}


def environment(name):
    """Return the python of a package's environment, which is made if it is not there yet."""
    if name is None:
        return sys.executable
    place, wanted = FOLDER / name, " ".join(REQUIREMENTS[name])
    python, ready = place / "bin" / "python", place / "ready"
    if not ready.exists() or ready.read_text() != wanted:
        print(f"Making the environment of {wanted} in {place}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        quiet = ["--quiet", "--disable-pip-version-check"]
        install = [str(python), "-m", "pip", "install", *quiet, *REQUIREMENTS[name]]
        subprocess.run(install, check=True, stderr=subprocess.PIPE, text=True)
        ready.write_text(wanted)
    return str(python)
