"""Ingredient 4, the divergence: how far apart the domains are, and the map that closes the gap."""

from condokit.divergences.base import (
    BaseDivergence,
    MatrixDivergence,
    MomentDivergence,
    RowDivergence,
    Solution,
)
from condokit.divergences.kl import ForwardKL, Jeffreys, ReverseKL
from condokit.divergences.likelihood import PooledLikelihood
from condokit.divergences.paper_mmd import StochasticMMD
from condokit.divergences.samples import (
    MMD,
    Energy,
    Procrustes,
    SampleDivergence,
    SlicedWasserstein,
)
from condokit.divergences.transport import GaussianOT, PCMatch
from condokit.solvers.base import MatrixSolution

__all__ = [
    "DIVERGENCES",
    "MMD",
    "BaseDivergence",
    "Energy",
    "ForwardKL",
    "GaussianOT",
    "Jeffreys",
    "MatrixDivergence",
    "MatrixSolution",
    "MomentDivergence",
    "PCMatch",
    "PooledLikelihood",
    "Procrustes",
    "ReverseKL",
    "RowDivergence",
    "SampleDivergence",
    "SlicedWasserstein",
    "StochasticMMD",
    "Solution",
]

DIVERGENCES: dict[str, type[BaseDivergence]] = {
    "reverse-kl": ReverseKL,
    "forward-kl": ForwardKL,
    "jeffreys": Jeffreys,
    "likelihood": PooledLikelihood,
    "ot": GaussianOT,
    "pc-match": PCMatch,
    "mmd": MMD,
    "mmd-paper": StochasticMMD,
    "energy": Energy,
    "sliced-wasserstein": SlicedWasserstein,
    "procrustes": Procrustes,
}
