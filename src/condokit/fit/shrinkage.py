"""Shrinkage of diagonal maps towards the identity by empirical Bayes.

Its strength is learned from all features together, and it fades as rows are added.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from condokit.checks import Array, listing, warn
from condokit.data.tables import Table
from condokit.law.design import Together
from condokit.law.posterior import posterior
from condokit.solvers.solution import Solution

_FEW_OTHERS = 0.01  # share of features with scales far from one that may be chance, not other units


def warn_as_normal(names: list[str] | None) -> None:
    """Warn of features with heavy tails that were fitted as if they were normal, if any."""
    if names:
        warn(
            "heavy-tails",
            "Heavy tails, fitted as if they were normal since statistics hold no single values: "
            "{names}. Statistics of a second round, {@given} this fit, correct that.",
            names=listing(names),
        )


def warn_mostly_zero(table: Table, zero: Array) -> None:
    """Warn of features that are only multiplied, if there are any."""
    if zero.any():
        warn(
            "mostly-zero",
            "Mostly zero, so only multiplied, and zeros stay zero: {names} ({n} of {d} features).",
            UserWarning,
            names=listing(table.names_of(zero)),
            n=int(zero.sum()),
            d=len(zero),
        )


def _facts_of_law(law: dict[str, Any], table: Table) -> dict[str, Any]:
    """Return facts about the law of features given confounders; warn of discrete features."""
    if not law:
        return {}
    warn_mostly_zero(table, law["mostly_zero"])
    discrete = table.names_of(law["discrete"])
    if discrete:
        warn(
            "discrete-features",
            "Nearly all values are equal, or too few differ to learn a scale, so only shifted: "
            "{names}.",
            names=listing(discrete),
        )
    unknown = table.names_of(law.get("as_normal", np.zeros(1, dtype=bool)))
    warn_as_normal(unknown)
    return {
        "mean_terms": law.get("mean", []),
        "variance_terms": law.get("variance", []),
        "heavy_tailed_features": table.names_of(law["heavy_tails"]),
        "discrete_features": discrete,
        "mostly_zero_features": table.names_of(law["mostly_zero"]),
        "fitted_as_normal": unknown or None,
        "subject_ratio": law.get("subjects"),
    }


def shrink(
    solution: Solution, unit: Array, shrinkage: Any, together: Together | None, table: Table
) -> tuple[Solution, dict[str, Any]]:
    """Shrink a diagonal map as `shrinkage` asks; return it, and facts for the report.

    `unit` are standard deviations of the features. "auto" is the posterior mean of
    `condokit.law.posterior`; a number s leaves the share 1 - s of log-scales and shifts. `together`
    says as how many independent features the features count; it is used if the solution does not
    say so itself. Warns of scales that look like other units.
    """
    knows_errors = solution.se_log_scale is not None and solution.se_image is not None
    facts: dict[str, Any] = {"n_iter": solution.n_iter, **_facts_of_law(solution.law, table)}
    if shrinkage == "auto" and knows_errors:
        shrunk, found = posterior(solution, unit, together)
        if found.other_units.mean() > _FEW_OTHERS:
            warn(
                "other-units",
                "Scales far from one: {names}. Are these features in other units (mV and V)? Such "
                "scales are not shrunk towards one.",
                names=listing(table.names_of(found.other_units[:, 0])),
            )
        log_scale = _share(np.log(shrunk.scale), np.log(solution.scale))
        shift = _share(shrunk.image - shrunk.centre, solution.image - solution.centre)
        differs = {"chance_of_difference": found.differs[0], "chance_of_scale": found.scaled[0]}
        facts |= {name: float(chance) for name, chance in differs.items()}
        return shrunk, facts | {"kept_log_scale": log_scale, "kept_shift": shift}
    share = 1.0 if shrinkage in ("auto", None) else 1.0 - shrinkage
    facts |= {"kept_log_scale": share, "kept_shift": share}
    if share == 1:
        return solution, facts
    image = solution.centre + share * (solution.image - solution.centre)
    return replace(solution, scale=solution.scale**share, image=image), facts


def _share(kept: Array, plain: Array) -> float:
    """Return the mean share of the plain estimate that is left; 1 for features where it is 0."""
    share = np.divide(kept, plain, out=np.ones(len(plain)), where=plain != 0)
    return float(np.clip(share, 0.0, 1.0).mean())
