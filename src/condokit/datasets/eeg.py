"""A story with a known truth: a new EEG device, and other people wearing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from condokit.checks import Array

_CHANNELS = ("F3", "F4", "C3", "C4", "P3", "P4", "O1", "O2")


@dataclass(frozen=True)
class EEG:
    """Two EEG devices, two groups of people; see `make_eeg`.

    Attributes
    ----------
    feature_names : list of str
        Names of the columns of the arrays below.
    X_query, X_reference : ndarray of shape (n_people, n_features)
        What device V2 (query) and device V1 (reference) recorded.
    seizure_query, seizure_reference : ndarray of bool
        The confounder, known while fitting.
    depression_query, depression_reference : ndarray of bool
        The label of a downstream model.
    truth : ndarray of shape (n_query, n_features)
        What device V1 would have recorded of the query people.
    scale, offset : ndarray of shape (n_features,)
        The true map from V2 to V1.
    """

    feature_names: list[str]
    X_query: Array
    X_reference: Array
    seizure_query: Array
    seizure_reference: Array
    depression_query: Array
    depression_reference: Array
    truth: Array
    scale: Array
    offset: Array

    def columns(self) -> dict[str, Array]:
        """Return one table of both devices as columns: device, seizure, depression, features."""
        X = np.vstack([self.X_query, self.X_reference])
        return {
            "device": np.repeat(["v2", "v1"], [len(self.X_query), len(self.X_reference)]),
            "seizure": np.concatenate([self.seizure_query, self.seizure_reference]),
            "depression": np.concatenate([self.depression_query, self.depression_reference]),
            **{name: X[:, j] for j, name in enumerate(self.feature_names)},
        }

    def to_frame(self, backend: Literal["pandas", "polars", "pyarrow"] = "pandas") -> Any:
        """Return `columns` as a data frame of "pandas", "polars" or "pyarrow"."""
        import narwhals.stable.v2 as nw

        try:
            return nw.from_dict(self.columns(), backend=backend).to_native()
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                f"to_frame(backend={backend!r}) needs {backend}; install it, or use columns()."
            ) from None


def make_eeg(
    n_query: int = 400,
    n_reference: int = 500,
    *,
    seizure_query: float = 0.6,
    seizure_reference: float = 0.2,
    random_state: int | np.random.Generator | None = None,
) -> EEG:
    """Make the motivating story of the paper: a new EEG device, and other people wearing it.

    A hospital replaced device V1 by V2, whose amplifiers have another gain and baseline in each
    channel. V1 was mostly worn by healthy volunteers, V2 mostly by people with seizures,
    which raise delta and lower alpha power. Depression lowers the alpha power of the left frontal
    channel and raises that of the right one, on either device. The features are log band powers
    of eight channels.

    Parameters
    ----------
    n_query, n_reference : int, default=400, 500
        People recorded with V2 (query) and V1 (reference).
    seizure_query, seizure_reference : float, default=0.6, 0.2
        Share of people with seizures in each group.
    random_state : int, Generator or None, default=None
        Seed.

    Returns
    -------
    EEG
        The data with the truth.

    Examples
    --------
    >>> from condokit.datasets import make_eeg
    >>> eeg = make_eeg(random_state=0)
    >>> eeg.X_query.shape, eeg.X_reference.shape
    ((400, 16), (500, 16))
    """
    rng = np.random.default_rng(random_state)
    n = len(_CHANNELS)
    names = [f"eeg_{band}_{channel}" for band in ("delta", "alpha") for channel in _CHANNELS]
    baseline = np.r_[rng.normal(2.0, 0.3, n), rng.normal(1.0, 0.3, n)]
    of_seizure = np.r_[rng.uniform(1.0, 2.0, n), rng.uniform(-1.5, 0.0, n)]
    of_depression = np.zeros(2 * n)
    of_depression[n : n + 2] = (-1.6, 0.8)  # alpha, F3 and F4

    def people(n_people: int, share: float) -> tuple[Array, Array, Array]:
        seizure, depression = rng.random(n_people) < share, rng.random(n_people) < 0.4
        brain = rng.normal(size=(n_people, 1)) * 0.5 + rng.normal(size=(n_people, 2 * n)) * 0.5
        brain *= np.where(seizure, 1.4, 1.0)[:, None]
        X = baseline + brain + np.outer(seizure, of_seizure)
        return X + np.outer(depression, of_depression), seizure, depression

    X, seizure, depression = people(n_reference, seizure_reference)
    truth, seizure_new, depression_new = people(n_query, seizure_query)
    scale, offset = rng.uniform(0.6, 1.6, 2 * n), rng.uniform(-1.5, 1.5, 2 * n)
    labels = (seizure_new, seizure, depression_new, depression)
    return EEG(names, (truth - offset) / scale, X, *labels, truth, scale, offset)
