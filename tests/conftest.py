import numpy as np
import pytest
from protocols import data_folder

from condokit import datasets


@pytest.fixture(scope="session")
def eeg():
    return datasets.make_eeg(random_state=0)


@pytest.fixture(params=["pandas", "polars", "pyarrow"])
def backend(request):
    return request.param


@pytest.fixture
def needs_data():
    folder = data_folder()
    if folder is None:
        pytest.skip("the real data are absent: set CONDOKIT_DATA to their folder")
    return folder


@pytest.fixture
def rng():
    return np.random.default_rng(0)
