"""Example data with a known truth, the paper's generators, and loaders of real data."""

from condokit.datasets.real import load_ansur as load_ansur
from condokit.datasets.real import load_bladderbatch as load_bladderbatch
from condokit.datasets.real import load_california_housing as load_california_housing
from condokit.datasets.real import load_corn as load_corn
from condokit.datasets.real import load_photo as load_photo
from condokit.datasets.real import load_snareseq as load_snareseq
from condokit.datasets.synthetic import EEG as EEG
from condokit.datasets.synthetic import EFFECTS as EFFECTS
from condokit.datasets.synthetic import SCENARIOS as SCENARIOS
from condokit.datasets.synthetic import Problem as Problem
from condokit.datasets.synthetic import make_categorical1d as make_categorical1d
from condokit.datasets.synthetic import make_categorical2d as make_categorical2d
from condokit.datasets.synthetic import make_continuous1d as make_continuous1d
from condokit.datasets.synthetic import make_eeg as make_eeg
