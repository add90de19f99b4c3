"""What a fit hands over: the map, its errors, what was compared, and facts of the fit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from condokit.checks import Array
from condokit.compare.overlap import Overlap
from condokit.compare.priors import Support
from condokit.maps.standard_errors import StandardErrors


@dataclass(frozen=True, eq=False)
class FitReport(Mapping[str, Any]):
    """Facts of a fit, which can be read by name or as items; those that do not apply are None."""

    rows_query: float  # rows compared
    rows_reference: float
    missing_confounders: dict[str, int] = field(default_factory=dict)
    missing_features: dict[str, dict[str, int]] = field(default_factory=dict)
    complete_rows: dict[str, int] | None = None  # rows of each domain that lack no value
    n_iter: int | None = None
    objective: float | None = None  # what was made small, for matrices
    gradient_norm: float | None = None
    starts: dict[str, float] | None = None  # the objective reached from each start
    condition_number: float | None = None
    flips_orientation: bool | None = None
    curvature: float | None = None  # times the rows: how well the data determine the matrix
    kept_log_scale: float | None = None  # mean share of the plain estimate that shrinkage kept
    kept_shift: float | None = None
    constant_features: list[str] | None = None  # within strata in a domain, so only shifted
    mean_terms: list[str] | None = None  # of features given confounders, beyond straight lines
    variance_terms: list[str] | None = None  # what the spread of features depends on
    heavy_tailed_features: list[str] | None = None  # with Student's t residuals
    fitted_as_normal: list[str] | None = None  # heavy tails, of which only moments are known
    discrete_features: list[str] | None = None  # with values nearly all equal, so only shifted
    bent_features: list[str] | None = None  # whose curves are likely no straight lines
    bent: Array | None = None  # how likely that is of every feature
    subject_ratio: float | None = None  # variance between subjects over that within
    fallback: str | None = None  # fitted instead of a matrix that the rows are too few for
    covariances: dict[str, Any] | None = None  # how they were regularised
    blocks: list[dict[str, Any]] | None = None
    ladder: list[dict[str, Any]] | None = None  # the kinds of maps that were tried, with scores
    chosen_map: str | None = None
    pairs: dict[str, Any] | None = None  # how rows that were measured twice were used
    interrupted: bool | None = None
    n_controls: int | None = None  # features that hidden causes were learned from
    control_factors: int | None = None
    control_share: float | None = None  # of the controls' variance within domains

    def __getitem__(self, name: str) -> Any:
        if name not in list(self):
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return (f.name for f in fields(self) if getattr(self, f.name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class Fit:
    """A fitted map, and what is known of it."""

    map: Any  # a `Map`
    errors: StandardErrors | None
    support: Support
    overlap: Overlap
    report: FitReport
