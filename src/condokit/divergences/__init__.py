"""What a map makes small: divergences between the domains given the confounders."""

from condokit.divergences.base import Divergence, GaussianDivergence, MomentDivergence
from condokit.divergences.kl import ForwardKL, ReverseKL
from condokit.divergences.likelihood import PooledLikelihood
from condokit.divergences.samples import MMD, Energy, SampleDivergence
from condokit.divergences.transport import GaussianOT, PCMatch

__all__ = ["DIVERGENCES", "Divergence", "GaussianDivergence", "MomentDivergence"]
__all__ += ["ForwardKL", "GaussianOT", "PCMatch", "PooledLikelihood", "ReverseKL"]
__all__ += ["MMD", "Energy", "SampleDivergence"]

DIVERGENCES: dict[str, type[Divergence]] = {
    "reverse-kl": ReverseKL,
    "forward-kl": ForwardKL,
    "likelihood": PooledLikelihood,
    "ot": GaussianOT,
    "pc-match": PCMatch,
    "mmd": MMD,
    "energy": Energy,
}
