"""Ingredient 4, the divergence: how far apart the domains are, and the map that closes the gap."""

from condokit.divergences.base import (
    BaseDivergence,
    MomentDivergence,
    RowDivergence,
    Solution,
)
from condokit.divergences.likelihood import PooledLikelihood
from condokit.divergences.reverse_kl import ReverseKL
from condokit.divergences.transport import GaussianOT

__all__ = [
    "DIVERGENCES",
    "BaseDivergence",
    "GaussianOT",
    "MomentDivergence",
    "PooledLikelihood",
    "ReverseKL",
    "RowDivergence",
    "Solution",
]

DIVERGENCES: dict[str, type[BaseDivergence]] = {
    "reverse-kl": ReverseKL,
    "ot": GaussianOT,
    "likelihood": PooledLikelihood,
}
