"""What a map makes small: divergences between the domains given the confounders."""

from condokit.divergences.base import Divergence, GaussianDivergence, MomentDivergence
from condokit.divergences.kl import ForwardKL, Jeffreys, ReverseKL
from condokit.divergences.likelihood import PooledLikelihood
from condokit.divergences.samples import (
    MMD,
    Energy,
    Procrustes,
    SampleDivergence,
    SlicedWasserstein,
)
from condokit.divergences.transport import GaussianOT, PCMatch

__all__ = ["DIVERGENCES", "Divergence", "GaussianDivergence", "MomentDivergence"]
__all__ += ["ForwardKL", "GaussianOT", "Jeffreys", "PCMatch", "PooledLikelihood", "ReverseKL"]
__all__ += ["MMD", "Energy", "Procrustes", "SampleDivergence", "SlicedWasserstein"]

DIVERGENCES: dict[str, type[Divergence]] = {
    "reverse-kl": ReverseKL,
    "forward-kl": ForwardKL,
    "jeffreys": Jeffreys,
    "likelihood": PooledLikelihood,
    "ot": GaussianOT,
    "pc-match": PCMatch,
    "mmd": MMD,
    "energy": Energy,
    "sliced-wasserstein": SlicedWasserstein,
    "procrustes": Procrustes,
}
