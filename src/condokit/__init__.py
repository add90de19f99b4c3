"""Make new data backwards-compatible: remove technical shift, keep what confounds it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from condokit.adapter import ConDoAdapter as ConDoAdapter
    from condokit.batches.adapter import BatchAdapter as BatchAdapter
    from condokit.checks import FileError as FileError
    from condokit.checks import IdentifiabilityWarning as IdentifiabilityWarning
    from condokit.checks import LowOverlapWarning as LowOverlapWarning
    from condokit.checks import MapFileError as MapFileError
    from condokit.checks import NeedsRows as NeedsRows
    from condokit.checks import NoOverlapError as NoOverlapError
    from condokit.compare.priors import OverlapPrior as OverlapPrior
    from condokit.compare.priors import ProductPrior as ProductPrior
    from condokit.conditionals.base import Stratified as Stratified
    from condokit.conditionals.chained import Chained as Chained
    from condokit.conditionals.curves import Splines as Splines
    from condokit.conditionals.kernel import KernelSmoother as KernelSmoother
    from condokit.divergences import MMD as MMD
    from condokit.divergences import Energy as Energy
    from condokit.divergences import ForwardKL as ForwardKL
    from condokit.divergences import GaussianOT as GaussianOT
    from condokit.divergences import PCMatch as PCMatch
    from condokit.divergences import PooledLikelihood as PooledLikelihood
    from condokit.divergences import ReverseKL as ReverseKL
    from condokit.maps import load_map as load_map
    from condokit.maps.affine import AffineMap as AffineMap
    from condokit.maps.families import Affine as Affine
    from condokit.maps.families import Identity as Identity
    from condokit.maps.families import LocationScale as LocationScale
    from condokit.maps.families import LowRank as LowRank
    from condokit.maps.families import Monotone as Monotone
    from condokit.maps.families import Orthogonal as Orthogonal
    from condokit.maps.families import Shift as Shift
    from condokit.maps.families import Similarity as Similarity
    from condokit.maps.monotone import MonotoneMap as MonotoneMap
    from condokit.statistics.gather import Statistics as Statistics
    from condokit.trust.assess import assess as assess
    from condokit.trust.bootstrap import bootstrap as bootstrap
    from condokit.trust.evaluate import evaluate as evaluate
    from condokit.trust.sensitivity import sensitivity as sensitivity

__version__ = "1.0.0"

# where public names live
_NAMES = {
    "adapter": "ConDoAdapter",
    "batches.adapter": "BatchAdapter",
    "checks": "FileError IdentifiabilityWarning LowOverlapWarning MapFileError NeedsRows "
    "NoOverlapError",
    "compare.priors": "OverlapPrior ProductPrior",
    "conditionals": "Chained KernelSmoother Splines Stratified",
    "divergences": "Energy ForwardKL GaussianOT MMD PCMatch PooledLikelihood ReverseKL",
    "maps": "load_map",
    "maps.affine": "AffineMap",
    "maps.families": "Affine Identity LocationScale LowRank Monotone Orthogonal Shift Similarity",
    "maps.monotone": "MonotoneMap",
    "statistics.gather": "Statistics",
    "trust.assess": "assess",
    "trust.bootstrap": "bootstrap",
    "trust.evaluate": "evaluate",
    "trust.sensitivity": "sensitivity",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

_MODULES = ("anndata", "datasets", "export", "paper", "plots", "report")

__all__ = ["__version__", *_MODULES, *_HOME]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"condokit.{name}")
    if name in _HOME:
        return getattr(import_module(f"condokit.{_HOME[name]}"), name)
    raise AttributeError(f"module 'condokit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
