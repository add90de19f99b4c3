"""Example data with a known truth, the paper's generators, and loaders of its real data."""

from condokit.datasets.eeg import EEG, make_eeg
from condokit.datasets.real import (
    Ansur,
    Bladder,
    Housing,
    Photo,
    Snare,
    load_ansur,
    load_bladderbatch,
    load_california_housing,
    load_photo,
    load_snareseq,
)
from condokit.datasets.synthetic import (
    EFFECTS,
    SCENARIOS,
    Problem,
    make_categorical1d,
    make_categorical2d,
    make_continuous1d,
)

__all__ = [
    "EEG",
    "EFFECTS",
    "SCENARIOS",
    "Ansur",
    "Bladder",
    "Housing",
    "Photo",
    "Problem",
    "Snare",
    "load_ansur",
    "load_bladderbatch",
    "load_california_housing",
    "load_photo",
    "load_snareseq",
    "make_categorical1d",
    "make_categorical2d",
    "make_continuous1d",
    "make_eeg",
]
