"""Example data with a known truth, the paper's generators, and loaders of real data."""

from condokit.datasets.real import (
    load_ansur,
    load_bladderbatch,
    load_california_housing,
    load_corn,
    load_photo,
    load_snareseq,
)
from condokit.datasets.synthetic import (
    EEG,
    EFFECTS,
    SCENARIOS,
    Problem,
    make_categorical1d,
    make_categorical2d,
    make_continuous1d,
    make_eeg,
)

__all__ = ["EEG", "EFFECTS", "SCENARIOS", "Problem"]
__all__ += ["load_ansur", "load_bladderbatch", "load_california_housing", "load_corn"]
__all__ += ["load_photo", "load_snareseq"]
__all__ += ["make_categorical1d", "make_categorical2d", "make_continuous1d", "make_eeg"]
