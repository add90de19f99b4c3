"""Sharing strength across features: maps pulled towards the identity.

It is empirical Bayes: how much comes from the data, and it fades as rows are added.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit.checks import Array, listing, warn
from condokit.data.tables import Table
from condokit.law.posterior import posterior
from condokit.solvers.solution import Solution

_FEW_OTHERS = 0.01  # share of features with scales far from one, up to which nothing is said


@dataclass(frozen=True)
class Settled:
    """A map that was pulled, and what became of the plain one."""

    solution: Solution
    # mean shares of the plain log-scale and shift that are kept: 1 is all, 0 the identity
    kept: tuple[float, float] = (1.0, 1.0)
    # probabilities that there is anything to correct, and that a scale is needed
    chances: tuple[float | None, float | None] = (None, None)
    other_units: Array | None = None  # scales that no prior pulls towards one

    def facts(self, plain: Solution, table: Table) -> dict[str, Any]:
        """Return what the report tells; warn of features that are treated otherwise."""
        found: dict[str, Any] = dict(zip(("kept_log_scale", "kept_shift"), self.kept))
        found |= dict(zip(("chance_of_difference", "chance_of_scale"), self.chances))
        found["n_iter"] = plain.n_iter
        # a few of many thousands are no matter of units
        if self.other_units is not None and self.other_units.mean() > _FEW_OTHERS:
            warn(
                "other-units",
                "Scales far from one: {names}. Are these features in other units (mV and V)? Such "
                "scales are estimated without a pull towards one.",
                names=listing(table.names_of(self.other_units)),
            )
        return found | _law(plain.law, table)


def warn_as_normal(names: list[str] | None) -> None:
    """Name features with heavy tails that were fitted as if they were normal, if there are any."""
    if names:
        warn(
            "heavy-tails",
            "Heavy tails, fitted as if they were normal since single values are not known: "
            "{names}. Statistics of a second round, {@given} this fit, mend that.",
            names=listing(names),
        )


def _law(law: dict[str, Any], table: Table) -> dict[str, Any]:
    """Return what was found of features given confounders; name those that are only shifted."""
    if not law:
        return {}
    discrete = table.names_of(law["discrete"])
    if discrete:
        warn(
            "discrete-features",
            "Nearly all values equal, or too few others to learn a scale from, so only shifted: "
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
        "fitted_as_normal": unknown or None,
        "subject_ratio": law.get("subjects"),
    }


def settle(solution: Solution, unit: Array, shrinkage: Any) -> Settled:
    """Shrink the plain map as asked."""
    knows_errors = solution.se_log_scale is not None and solution.se_image is not None
    if shrinkage == "auto" and knows_errors:
        pulled, found = posterior(solution, unit)
        log_scale = _share(np.log(pulled.scale), np.log(solution.scale))
        shift = _share(pulled.image - pulled.centre, solution.image - solution.centre)
        chances = float(found.differs[0]), float(found.scaled[0])
        return Settled(pulled, (log_scale, shift), chances, found.other_units[:, 0])
    if shrinkage in ("auto", None, 0.0):
        return Settled(solution)
    share = 1.0 - shrinkage
    scale = np.exp(share * np.log(solution.scale))
    image = solution.centre + share * (solution.image - solution.centre)
    return Settled(replace(solution, scale=scale, image=image), (share, share))


def _share(kept: Array, plain: Array) -> float:
    """Return the mean share of the plain estimate that was kept; all of nothing."""
    share = np.divide(kept, plain, out=np.ones(len(plain)), where=plain != 0)
    return float(np.clip(share, 0.0, 1.0).mean())
