"""Make new data backwards-compatible: remove technical shift, keep what confounds it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from condokit._validation import IdentifiabilityWarning as IdentifiabilityWarning
    from condokit._validation import LowOverlapWarning as LowOverlapWarning
    from condokit._validation import MapFileError as MapFileError
    from condokit._validation import NoOverlapError as NoOverlapError
    from condokit.adapter import ConDoAdapter as ConDoAdapter
    from condokit.conditionals import Chained as Chained
    from condokit.conditionals import KernelSmoother as KernelSmoother
    from condokit.conditionals import Splines as Splines
    from condokit.conditionals import Stratified as Stratified
    from condokit.divergences import GaussianOT as GaussianOT
    from condokit.divergences import PooledLikelihood as PooledLikelihood
    from condokit.divergences import ReverseKL as ReverseKL
    from condokit.maps import AffineMap as AffineMap
    from condokit.maps import Identity as Identity
    from condokit.maps import LocationScale as LocationScale
    from condokit.maps import Shift as Shift
    from condokit.priors import ProductPrior as ProductPrior
    from condokit.priors import UniformPrior as UniformPrior

__version__ = "0.1.0"

_HOME = {
    "AffineMap": "maps",
    "Chained": "conditionals",
    "ConDoAdapter": "adapter",
    "GaussianOT": "divergences",
    "IdentifiabilityWarning": "_validation",
    "Identity": "maps",
    "KernelSmoother": "conditionals",
    "LocationScale": "maps",
    "LowOverlapWarning": "_validation",
    "MapFileError": "_validation",
    "NoOverlapError": "_validation",
    "PooledLikelihood": "divergences",
    "ProductPrior": "priors",
    "ReverseKL": "divergences",
    "Shift": "maps",
    "Splines": "conditionals",
    "Stratified": "conditionals",
    "UniformPrior": "priors",
}

__all__ = ["__version__", "datasets", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "datasets":
        return import_module("condokit.datasets")
    if name in _HOME:
        return getattr(import_module(f"condokit.{_HOME[name]}"), name)
    raise AttributeError(f"module 'condokit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
