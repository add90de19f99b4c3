"""The downstream models that are trained in one domain and applied in the other."""

import importlib.util
import os
import typing
import warnings

from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

DEFAULT = ("hgb", "logreg")


def make(name, depth=None):
    """Return an unfitted classifier: "hgb" (of some depth), "logreg" or the paper's "tabpfn"."""
    if name == "hgb":
        return HistGradientBoostingClassifier(max_depth=depth, random_state=0)
    if name == "logreg":
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    if name == "tabpfn":
        return _tabpfn()
    raise ValueError(f"The classifier must be 'hgb', 'logreg' or 'tabpfn'. Got {name!r}.")


def chosen():
    """Return {suffix of the metrics: classifier}.

    Gradient boosting has none. CONDOKIT_CLASSIFIER=tabpfn adds the paper's model if it is there.
    """
    names = list(DEFAULT)
    asked = os.environ.get("CONDOKIT_CLASSIFIER") or DEFAULT[0]
    if asked not in (*DEFAULT, "tabpfn"):
        raise ValueError(f"CONDOKIT_CLASSIFIER must be hgb, logreg or tabpfn. Got {asked!r}.")
    if asked == "tabpfn":
        if importlib.util.find_spec("tabpfn") and importlib.util.find_spec("torch"):
            names.append("tabpfn")
        else:
            warnings.warn(
                "TabPFN is left out: packages tabpfn (0.1.11) and torch are not installed.",
                stacklevel=2,
            )
    return {"" if name == DEFAULT[0] else f"_{name}": name for name in names}


def _tabpfn():
    """Return TabPFN v1; its weights come with release 0.1 of the package, not with 0.1.11."""
    import torch

    torch.nn.modules.transformer.Optional = typing.Optional  # which release 0.1.11 imports
    from tabpfn import TabPFNClassifier

    return TabPFNClassifier(device="cpu")
