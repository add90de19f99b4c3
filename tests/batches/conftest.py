import pytest
from batches_made import Made


@pytest.fixture
def study():
    """Five batches that share three groups, in different shares."""
    return Made(0, [(0, 1, 2), (0, 0, 1), (1, 2, 2), (0, 2, 2), (0, 1, 1)])


@pytest.fixture
def chain():
    """Four batches of which neighbours share one group."""
    return Made(1, [(0, 1), (1, 2), (2, 3), (3, 4)])


@pytest.fixture
def made():
    """Make other studies."""
    return Made
