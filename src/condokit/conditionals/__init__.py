"""Features given confounders: moments of each domain at the compared values."""

from condokit.conditionals.base import BaseConditional, SmoothConditional
from condokit.conditionals.chained import Chained
from condokit.conditionals.kernel import KernelSmoother
from condokit.conditionals.splines import Splines
from condokit.conditionals.strata import StrataConditional, Stratified

__all__ = [
    "CONDITIONALS",
    "BaseConditional",
    "Chained",
    "KernelSmoother",
    "SmoothConditional",
    "Splines",
    "StrataConditional",
    "Stratified",
]

CONDITIONALS: dict[str, type[BaseConditional]] = {
    "stratified": Stratified,
    "kernel": KernelSmoother,
    "splines": Splines,
    "chained": Chained,
}
