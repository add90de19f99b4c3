"""Features given confounders: moments of each domain at the compared values."""

from condokit.conditionals.base import Conditional as Conditional
from condokit.conditionals.base import Moments as Moments
from condokit.conditionals.base import Stratified as Stratified
from condokit.conditionals.chained import Chained
from condokit.conditionals.curves import Splines
from condokit.conditionals.kernel import KernelSmoother

CONDITIONALS: dict[str, type[Conditional]] = {
    "stratified": Stratified,
    "kernel": KernelSmoother,
    "splines": Splines,
    "chained": Chained,
}
