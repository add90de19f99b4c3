"""Make new data backwards-compatible: remove technical shift, keep what confounds it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from condokit._validation import FileError as FileError
    from condokit._validation import IdentifiabilityWarning as IdentifiabilityWarning
    from condokit._validation import LowOverlapWarning as LowOverlapWarning
    from condokit._validation import MapFileError as MapFileError
    from condokit._validation import NoOverlapError as NoOverlapError
    from condokit.adapter import ConDoAdapter as ConDoAdapter
    from condokit.conditionals import Chained as Chained
    from condokit.conditionals import KernelSmoother as KernelSmoother
    from condokit.conditionals import Splines as Splines
    from condokit.conditionals import Stratified as Stratified
    from condokit.divergences import MMD as MMD
    from condokit.divergences import Energy as Energy
    from condokit.divergences import ForwardKL as ForwardKL
    from condokit.divergences import GaussianOT as GaussianOT
    from condokit.divergences import Jeffreys as Jeffreys
    from condokit.divergences import PCMatch as PCMatch
    from condokit.divergences import PooledLikelihood as PooledLikelihood
    from condokit.divergences import Procrustes as Procrustes
    from condokit.divergences import ReverseKL as ReverseKL
    from condokit.divergences import SlicedWasserstein as SlicedWasserstein
    from condokit.divergences import StochasticMMD as StochasticMMD
    from condokit.maps import Affine as Affine
    from condokit.maps import AffineMap as AffineMap
    from condokit.maps import Blocks as Blocks
    from condokit.maps import Identity as Identity
    from condokit.maps import LocationScale as LocationScale
    from condokit.maps import LowRank as LowRank
    from condokit.maps import Orthogonal as Orthogonal
    from condokit.maps import Shift as Shift
    from condokit.maps import Similarity as Similarity
    from condokit.priors import ProductPrior as ProductPrior
    from condokit.priors import UniformPrior as UniformPrior
    from condokit.trust.assess import assess as assess
    from condokit.trust.evaluate import evaluate as evaluate
    from condokit.trust.sensitivity import sensitivity as sensitivity
    from condokit.trust.uncertainty import bootstrap as bootstrap

__version__ = "0.1.0"

_HOME = {
    "Affine": "maps",
    "AffineMap": "maps",
    "Blocks": "maps",
    "Chained": "conditionals",
    "ConDoAdapter": "adapter",
    "Energy": "divergences",
    "FileError": "_validation",
    "ForwardKL": "divergences",
    "GaussianOT": "divergences",
    "IdentifiabilityWarning": "_validation",
    "Identity": "maps",
    "Jeffreys": "divergences",
    "KernelSmoother": "conditionals",
    "LocationScale": "maps",
    "LowOverlapWarning": "_validation",
    "LowRank": "maps",
    "MMD": "divergences",
    "MapFileError": "_validation",
    "NoOverlapError": "_validation",
    "Orthogonal": "maps",
    "PCMatch": "divergences",
    "PooledLikelihood": "divergences",
    "Procrustes": "divergences",
    "ProductPrior": "priors",
    "ReverseKL": "divergences",
    "Shift": "maps",
    "Similarity": "maps",
    "SlicedWasserstein": "divergences",
    "Splines": "conditionals",
    "StochasticMMD": "divergences",
    "Stratified": "conditionals",
    "UniformPrior": "priors",
    "assess": "trust.assess",
    "bootstrap": "trust.uncertainty",
    "evaluate": "trust.evaluate",
    "sensitivity": "trust.sensitivity",
}

_MODULES = ("datasets", "export", "plots", "report")

__all__ = ["__version__", *_MODULES, *_HOME]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"condokit.{name}")
    if name in _HOME:
        return getattr(import_module(f"condokit.{_HOME[name]}"), name)
    raise AttributeError(f"module 'condokit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
