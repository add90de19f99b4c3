import numpy as np
from problems import random_pair

from condokit.divergences.likelihood import GaussianLikelihood
from condokit.maps.coordinates import AllMatrices
from condokit.solvers.descent import descend, keeping_orientation
from condokit.solvers.gaussian_kl import KLObjective
from condokit.solvers.units import Units


def test_a_search_never_crosses_singular_matrices():
    pair = random_pair(4, 3, 3)
    units = Units(pair, "white")
    turned = np.diag([-1.0, 1.0, 1.0])
    for begin in (np.eye(3), turned):
        sign = np.linalg.det(begin)
        likelihood = keeping_orientation(GaussianLikelihood(units), begin)
        for found in (
            KLObjective(units).solve(begin, np.zeros(3)),
            descend(likelihood, AllMatrices(begin, np.zeros(3)), 500),
        ):
            assert np.sign(np.linalg.det(found.scale)) == sign
