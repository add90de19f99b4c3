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

    rows_query: float  #: Query rows compared.
    rows_reference: float  #: Reference rows compared.
    #: Missing values of every confounder.
    missing_confounders: dict[str, int] = field(default_factory=dict)
    #: Missing values of features, by domain.
    missing_features: dict[str, dict[str, int]] = field(default_factory=dict)
    complete_rows: dict[str, int] | None = None  #: Rows of each domain that lack no value.
    n_iter: int | None = None  #: Iterations of a search.
    objective: float | None = None  #: What was made small, for matrices.
    gradient_norm: float | None = None  #: Its slope at the end.
    starts: dict[str, float] | None = None  #: The objective reached from each start.
    condition_number: float | None = None  #: Of the matrix.
    flips_orientation: bool | None = None  #: Whether the matrix has a reflection.
    curvature: float | None = None  #: Times the rows: how well the data determine the matrix.
    kept_log_scale: float | None = None  #: Mean share of plain log-scales that shrinkage kept.
    kept_shift: float | None = None  #: Mean share of plain shifts that shrinkage kept.
    chance_of_difference: float | None = None  #: Probability that there is anything to correct.
    chance_of_scale: float | None = None  #: Probability that a shift is not enough.
    constant_features: list[str] | None = None  #: Within strata in a domain, so only shifted.
    mean_terms: list[str] | None = None  #: Of features given confounders, beyond straight lines.
    variance_terms: list[str] | None = None  #: What the spread of features depends on.
    heavy_tailed_features: list[str] | None = None  #: With Student's t residuals.
    fitted_as_normal: list[str] | None = None  #: Heavy tails, of which only moments are known.
    discrete_features: list[str] | None = None  #: Values nearly all equal, so only shifted.
    bent_features: list[str] | None = None  #: Whose curves are likely no straight lines.
    bent: Array | None = None  #: How likely that is of every feature.
    subject_ratio: float | None = None  #: Variance between subjects over that within.
    fallback: str | None = None  #: Fitted instead of a matrix that the rows are too few for.
    covariances: dict[str, Any] | None = None  #: How they were regularised.
    ladder: list[dict[str, Any]] | None = None  #: The kinds of maps tried, with scores.
    chosen_map: str | None = None  #: The one of them with the largest weight.
    pairs: dict[str, Any] | None = None  #: How rows that were measured twice were used.
    interrupted: bool | None = None  #: Whether Ctrl-C ended the search.
    n_controls: int | None = None  #: Features that hidden causes were learned from.
    control_factors: int | None = None  #: How many hidden causes were found.
    control_share: float | None = None  #: Of the controls' variance within domains.

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
