"""The downstream models that are trained in one domain and applied in the other."""

import atexit
import functools
import os
import subprocess
from pathlib import Path

import numpy as np
import tabpfn_worker
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


def make(name, depth=None):
    """Return an unfitted classifier: "hgb" (of some depth), "logreg" or the paper's "tabpfn"."""
    if name == "hgb":
        return HistGradientBoostingClassifier(max_depth=depth, random_state=0)
    if name == "logreg":
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    if name == "tabpfn":
        return TabPFN()
    raise ValueError(f"The classifier must be 'hgb', 'logreg' or 'tabpfn'. Got {name!r}.")


def chosen():
    """Return {suffix of the metrics: classifier}: the fast ones, or the paper's if it is asked for.

    TabPFN v1 needs an older scikit-learn than condokit does, so it runs in an environment of its
    own, whose interpreter CONDOKIT_TABPFN names.
    """
    if os.environ.get("CONDOKIT_TABPFN"):
        return {"": "tabpfn"}
    return {"": "hgb", "_logreg": "logreg"}


class TabPFN(ClassifierMixin, BaseEstimator):
    """The paper's classifier with default settings, in another interpreter."""

    def fit(self, X, y):
        """Keep the rows: the model conditions on them when it predicts."""
        self.classes_, labels = np.unique(y, return_inverse=True)
        self.rows_ = np.asarray(X, float), labels
        return self

    def predict(self, X):
        """Return the most probable classes."""
        if len(self.classes_) == 1:
            return np.full(len(X), self.classes_[0])
        worker = _worker()
        X_train, labels = self.rows_
        tabpfn_worker.send(worker.stdin, X=X_train, y=labels, asked=np.asarray(X, float))
        return self.classes_[tabpfn_worker.receive(worker.stdout)["labels"]]


@functools.cache
def _worker():
    worker = subprocess.Popen(
        [os.environ["CONDOKIT_TABPFN"], str(Path(tabpfn_worker.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(worker.kill)
    return worker
