"""The result of a fit: the map, its errors, what was compared, and facts for the report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from condokit.checks import Array, Note
from condokit.compare.overlap import Overlap
from condokit.compare.priors import Support
from condokit.data.disclosure import hidden_counts, hiding_few
from condokit.data.noise import kinds
from condokit.data.study import Study
from condokit.maps.provenance import FrozenDict, frozen, setting, versions
from condokit.maps.standard_errors import StandardErrors


@dataclass(frozen=True, eq=False)
class FitReport(Mapping[str, Any]):
    """Facts about a fit, as attributes or as items; those that do not apply are None."""

    rows_query: float  #: Query rows compared (a sum of weights if rows have weights).
    rows_reference: float  #: Reference rows compared.
    #: Number of missing values of every confounder.
    missing_confounders: dict[str, int] = field(default_factory=dict)
    #: Missing values of features, by domain.
    missing_features: dict[str, dict[str, int]] = field(default_factory=dict)
    complete_rows: dict[str, int] | None = None  #: Rows of each domain without missing values.
    n_iter: int | None = None  #: Iterations of a search.
    objective: float | None = None  #: The minimised objective, for matrices.
    gradient_norm: float | None = None  #: Norm of the objective's gradient at the end.
    starts: dict[str, float] | None = None  #: The objective reached from each start.
    condition_number: float | None = None  #: Condition number of the matrix.
    flips_orientation: bool | None = None  #: Whether the matrix has a reflection.
    curvature: float | None = None  #: Least eigenvalue of the Hessian: how well rows determine it.
    kept_log_scale: float | None = None  #: Mean share of log-scales that shrinkage left.
    kept_shift: float | None = None  #: Mean share of shifts that shrinkage left.
    chance_of_difference: float | None = None  #: Probability that the domains differ at all.
    chance_of_scale: float | None = None  #: Probability that scales differ, not only levels.
    constant_features: list[str] | None = None  #: Constant within strata, so only shifted.
    mean_terms: list[str] | None = None  #: Terms of means given confounders, beyond lines.
    variance_terms: list[str] | None = None  #: What the variance of features depends on.
    heavy_tailed_features: list[str] | None = None  #: Features with Student's t residuals.
    fitted_as_normal: list[str] | None = None  #: Heavy-tailed, but only sums are known.
    discrete_features: list[str] | None = None  #: Values nearly all equal, so only shifted.
    mostly_zero_features: list[str] | None = None  #: Only multiplied, so that zeros stay zero.
    bent_features: list[str] | None = None  #: Features for which a curve is likelier than a line.
    bent: Array | None = None  #: Probability of a curve for every feature: (n_features,).
    subject_ratio: float | None = None  #: Variance between subjects over the variance within.
    fallback: str | None = None  #: The map fitted instead, if there are too few rows for the asked.
    covariances: dict[str, Any] | None = None  #: How covariances were regularised.
    ladder: list[dict[str, Any]] | None = None  #: The kinds of maps tried, with held-out scores.
    chosen_map: str | None = None  #: The kind of map with the largest weight.
    pairs: dict[str, Any] | None = None  #: How rows that were measured in both domains were used.
    interrupted: bool | None = None  #: Whether Ctrl-C ended the search.
    n_controls: int | None = None  #: Number of negative controls.
    control_factors: int | None = None  #: Number of hidden causes found in the controls.
    control_share: float | None = None  #: Share of the controls' variance that these explain.

    def __getitem__(self, name: str) -> Any:
        value = getattr(self, name) if name in self.__dataclass_fields__ else None
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return (f.name for f in fields(self) if getattr(self, f.name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __str__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self.items())


@dataclass(frozen=True)
class Fit:
    """A fitted map, and what is known of it."""

    map: Any  # a `Map`
    # the standard errors, or a function that computes them if that takes long
    errors: StandardErrors | Callable[[], StandardErrors | None] | None
    support: Support
    overlap: Overlap
    report: FitReport
    straight: Any = None  # the `Comparison` and `Solution` of a line, from which curves may start

    def compute_errors(self) -> StandardErrors | None:
        """Return the standard errors, computing them now if that has not been done."""
        return self.errors() if callable(self.errors) else self.errors


def name_of(ingredient: Any) -> str:
    """Return the name of an ingredient, which may be a name already or an instance."""
    return ingredient if isinstance(ingredient, str) else type(ingredient).__name__


def account(
    settings: Mapping[str, Any], domains: Study, notes: Sequence[Note], facts: Mapping[str, Any]
) -> FrozenDict:
    """Return how maps were fitted, as far as a file may disclose it.

    No times and no paths, so that the same fit yields the same file; no counts of few rows, since
    the file leaves the site.
    """
    return frozen(
        {
            "versions": versions(),
            "adapter": {k: setting(value) for k, value in settings.items() if k != "verbose"},
            "confounders": kinds(domains),
            **{name: value for name, value in facts.items() if value is not None},
            "warnings": list(
                dict.fromkeys(f"{n.category}: {hiding_few(n.sentence)}" for n in notes)
            ),
        }
    )


def account_of_map(
    settings: Mapping[str, Any],
    domains: Study,
    fit: Fit,
    chosen: Any,  # a `Candidate`
    notes: Sequence[Note],
) -> Mapping[str, Any]:
    """Return how the map of two domains was fitted, as far as a file may disclose it."""
    labels = dict(zip(("query", "reference"), map(str, domains.labels)))
    recipe = chosen.recipe
    is_weighted = bool(domains.confounders) and "prior" in recipe.divergence.uses(recipe.family)
    facts = {
        "map": "monotone" if fit.map.kind == "monotone" else fit.report.get("fallback", chosen.map),
        "divergence": name_of(chosen.divergence),
        "conditional": name_of(chosen.conditional),
        # "adapter" above has it already if it was an argument
        "prior": name_of(recipe.prior) if is_weighted and "prior" not in settings else None,
        "domains": labels,
        "columns_left_alone": dict(domains.left),
        "rows": {side: _rows(domains, fit, side) for side in labels},
        "overlap": {
            "coefficient": round(fit.overlap.coefficient, 2),
            "by_confounder": {n: round(c, 2) for n, c in fit.overlap.by_confounder.items()},
        },
        "standard_errors": fit.errors is not None,
        "fitted_as_normal": fit.report.fitted_as_normal or None,
    }
    return account(settings, domains, notes, facts)


def _rows(domains: Study, fit: Fit, side: str) -> Any:
    """Return how many rows of a domain were compared.

    If only a few rows were not compared, their number must not be disclosed by subtraction: the
    count is then an upper bound.
    """
    compared = fit.report[f"rows_{side}"]
    mine = domains.kept() & (domains.is_query == (side == "query"))
    total = mine.sum() if domains.weights is None else domains.weights[mine].sum()
    return hidden_counts(np.array([compared, max(total - compared, 0.0)]))[0]
