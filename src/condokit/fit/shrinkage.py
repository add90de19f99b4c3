"""Sharing strength across features: maps averaged by evidence, or pulled towards the identity.

Both are empirical Bayes: how much comes from the data, and it fades as rows are added.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit.checks import Array, listing, refusal, warn
from condokit.data.tables import Table
from condokit.solvers.posterior import posterior
from condokit.solvers.solution import Solution

CANDIDATES = ("identity", "shift", "location-scale")
_FEES = np.array([0.0, 4.0, 1.0])  # in units of squared standard errors
_SLOWLY = 3.0  # costs are divided by it: 2 is the likelihood's own, more makes weights smoother
_FEW_OTHERS = 0.01  # share of features with scales far from one, up to which nothing is said


@dataclass(frozen=True)
class Settled:
    """A map that was averaged or pulled, and what became of the plain one."""

    solution: Solution
    # mean shares of the plain log-scale and shift that are kept: 1 is all, 0 the identity
    kept: tuple[float, float] = (1.0, 1.0)
    other_units: Array | None = None  # scales that no prior pulls towards one
    chances: Array | None = None  # weights of `CANDIDATES` for every feature

    def facts(self, plain: Solution, table: Table) -> dict[str, Any]:
        """Return what the report tells; warn of features that are treated otherwise."""
        found: dict[str, Any] = dict(zip(("kept_log_scale", "kept_shift"), self.kept))
        found["n_iter"] = plain.n_iter
        # a few of many thousands are no matter of units
        if self.other_units is not None and self.other_units.mean() > _FEW_OTHERS:
            warn(
                "other-units",
                "Scales far from one: {names}. Are these features in other units (mV and V)? Such "
                "scales are estimated without a pull towards one.",
                names=listing(table.names_of(self.other_units)),
            )
        if self.chances is not None:
            heaviest = [CANDIDATES[k] for k in self.chances.argmax(axis=1)]
            found["candidates"] = dict(zip(CANDIDATES, self.chances.mean(axis=0).tolist()))
            found["chosen"] = dict(zip(table.labels, heaviest))
            found["candidate_weights"] = self.chances
        return found | _law(plain.law, table)


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
    return {
        "mean_terms": law.get("mean", []),
        "variance_terms": law.get("variance", []),
        "heavy_tailed_features": table.names_of(law["heavy_tails"]),
        "discrete_features": discrete,
        "subject_ratio": law.get("subjects"),
    }


def settle(solution: Solution, unit: Array, averages: bool, shrinkage: Any) -> Settled:
    """Average or shrink the plain map as asked."""
    if averages:
        solution, chances = average_candidates(solution)
        return Settled(solution, chances=chances)
    knows_errors = solution.se_log_scale is not None and solution.se_image is not None
    if shrinkage == "auto" and knows_errors:
        pulled, other_units = posterior(solution, unit)
        log_scale = _share(np.log(pulled.scale), np.log(solution.scale))
        shift = _share(pulled.image - pulled.centre, solution.image - solution.centre)
        return Settled(pulled, (log_scale, shift), other_units)
    if shrinkage in ("auto", None, 0.0):
        return Settled(solution)
    share = 1.0 - shrinkage
    scale = np.exp(share * np.log(solution.scale))
    image = solution.centre + share * (solution.image - solution.centre)
    return Settled(replace(solution, scale=scale, image=image), (share, share))


def average_candidates(solution: Solution) -> tuple[Solution, Array]:
    r"""Return the maps of every feature averaged by evidence, and the weights of `CANDIDATES`.

    The estimates of :math:`\log m` and of the image of the centre are independent and nearly
    normal, so minus twice the log-likelihood that a candidate loses is the squared distance of its
    best point, in standard errors: nothing for location-scale, :math:`z_m^2` for a shift and
    :math:`z_m^2 + z_r^2` for the identity. With fees of 0, 4 and 1 for identity, shift and
    location-scale, weights are :math:`\exp(-\mathrm{cost} / 3)`: evidence moves the result smoothly
    from the identity to the full map. With normal errors, the root mean squared error of the shift
    is then at most 1.13 times that of the full map and 0.75 times without any change, of the scale
    1.20 and 0.65 times, and neither changes by more than 1.5 times what the full map's does. A
    scale without offset is no candidate: it would depend on where the zero of a feature is.
    """
    if solution.se_log_scale is None or solution.se_image is None:
        raise refusal(
            "{@map='auto'} needs standard errors, which this divergence or conditional does "
            "not give. Leave `divergence` and `conditional` at 'auto', or name a map."
        )
    log_scale, centre, image = np.log(solution.scale), solution.centre, solution.image
    se_log = np.where(solution.se_log_scale > 0, solution.se_log_scale, np.inf)
    known = solution.se_image > 0  # constant features are shifted, whatever the evidence
    se_image = np.where(known, solution.se_image, np.inf)
    z_scale, z_shift = log_scale / se_log, (image - centre) / se_image
    loss = np.stack([z_scale**2 + z_shift**2, z_scale**2, np.zeros_like(z_scale)])
    cost = loss.T + _FEES
    weights = np.exp(-(cost - cost.min(axis=1, keepdims=True)) / _SLOWLY)
    weights /= weights.sum(axis=1, keepdims=True)
    weights[~known] = np.eye(len(CANDIDATES))[CANDIDATES.index("shift")]
    _, shift, full = weights.T
    moved = (shift + full) * (image - centre)
    return replace(solution, scale=np.exp(full * log_scale), image=centre + moved), weights


def _share(kept: Array, plain: Array) -> float:
    """Return the mean share of the plain estimate that was kept; all of nothing."""
    share = np.divide(kept, plain, out=np.ones(len(plain)), where=plain != 0)
    return float(np.clip(share, 0.0, 1.0).mean())
