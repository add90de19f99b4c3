"""How far a map depends on the confounders that were recorded, and on one that was not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from condokit.adapter import ConDoAdapter
from condokit.checks import Array, NoOverlapError, check_integer, check_seed, quietly
from condokit.data.arrays import ones_for_zeros, rms
from condokit.data.domains import Domains
from condokit.data.records import Part, Record, Sheet
from condokit.maps.profile import profile
from condokit.trust.rereading import read_again

_MOST_ROWS = 5000  # of a domain that strengths are measured on
_LARGE = 2.0  # standard errors
_MUCH = 0.1  # standard deviations
_FEWEST_ROWS = 20  # of a domain that is split for a placebo


@dataclass(frozen=True, repr=False)
class Sensitivity(Record):
    """How a map depends on its confounders; see `sensitivity`.

    Attributes
    ----------
    left_out : Sheet
        The map without each confounder: by how much mapped values move, in standard deviations of
        the reference (root mean square and largest over features) and in standard errors.
    recorded : Sheet
        How strong each recorded confounder is: the share of the domain and of the features it
        explains, alone, and by how many standard errors a confounder like it, if it were
        missing, would move the map at most.
    strength_one_error, strength_two_errors : float
        Share of both the domain and a feature that an unrecorded confounder would have to explain,
        beyond the recorded ones, to move the map of the feature by one or two standard errors.
    features : Sheet
        For every feature: its shift in standard deviations and standard errors, and the strength
        that would explain all of it away. Empty where standard errors are not known.
    placebo : Sheet
        Maps fitted between two halves of one domain, which should be the identity: the median over
        splits of the root mean squared shift (in standard deviations) and log-scale, and the share
        of features farther than two standard errors off.
    """

    left_out: Sheet
    recorded: Sheet
    strength_one_error: float
    strength_two_errors: float
    features: Sheet
    placebo: Sheet

    def parts(self) -> list[Part]:  # noqa: D102
        text = (
            "An unrecorded confounder that explains "
            f"{self.strength_one_error:.1%} of both the domain and a feature, beyond the recorded "
            "ones, would move the feature's map by one standard error; "
            f"{self.strength_two_errors:.1%} by two."
        )
        parts: list[Part] = [("", text)]
        if len(self.recorded):
            parts.append(("Recorded confounders, for comparison", self.recorded))
        if len(self.left_out):
            parts.append(("The map without a confounder", self.left_out))
        if len(self.features):
            weakest = np.argsort(self.features["strength"], kind="stable")[:10]
            parts.append(("Features, the most fragile first", self.features.take(weakest)))
        if len(self.placebo):
            parts.append(("Placebo: two halves of one domain", self.placebo))
        return parts


def sensitivity(
    adapter: ConDoAdapter,
    X: Any,
    *,
    domain: Any,
    confounders: Any = None,
    features: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    n_splits: int = 10,
    random_state: int | None = None,
) -> Sensitivity:
    r"""Say how far a fitted map depends on its confounders, and how strong a missing one must be.

    A confounder that explains shares :math:`R_D^2` of the domain and :math:`R_Y^2` of a feature,
    given the others, biases the shift by at most
    :math:`\mathrm{se} \sqrt{\mathrm{dof}\, R_D^2 R_Y^2 / (1 - R_D^2)}` (Cinelli and Hazlett 2020).

    Parameters
    ----------
    adapter : ConDoAdapter
        A fitted adapter. It is fitted again without each confounder, and on halves of a domain.
    X : array or data frame of shape (n_rows, n_columns)
        The table that it was fitted on.
    domain, confounders, features, groups, sample_weight : array-like, str or list of str
        As in `ConDoAdapter.fit`.
    n_splits : int, default=10
        Placebo splits of every kind; 0 for none.
    random_state : int or None, default=None
        Seed of the splits; None is 0.

    Returns
    -------
    Sensitivity
        What was found, as tables.
    """
    check_integer("n_splits", n_splits, 0)
    seed = check_seed(random_state)
    domains = read_again(adapter, X, domain, confounders, features, groups, sample_weight)
    unit = _reference_spread(domains)
    errors = _shift_errors(adapter, domains)
    dof = degrees_of_freedom(adapter)
    return Sensitivity(
        left_out=_left_out(adapter, domains, unit, errors),
        recorded=_recorded(domains, dof),
        strength_one_error=strength(1.0, dof),
        strength_two_errors=strength(2.0, dof),
        features=_features(adapter, domains, unit, errors, dof),
        placebo=_placebo(adapter, domains, n_splits, seed),
    )


def degrees_of_freedom(adapter: ConDoAdapter) -> float:
    """Return the rows that were compared, less what was estimated of each stratum."""
    support = adapter.support_
    rows = support.count_query.sum() + support.count_reference.sum()
    return max(float(rows) - len(support.weights) - 1, 1.0)


def strength(t: Any, dof: float) -> Any:
    r"""Return the share s with :math:`s^2 / (1 - s) = t^2 / \mathrm{dof}`, the robustness value."""
    f2 = np.asarray(t, dtype=float) ** 2 / dof
    value = 0.5 * (np.sqrt(f2**2 + 4 * f2) - f2)
    return value if value.ndim else float(value)


def _refit(adapter: ConDoAdapter, domains: Domains) -> ConDoAdapter:
    with quietly():
        return clone(adapter).set_params(min_overlap=0.0).fit_domains(domains)


def _reference_spread(domains: Domains) -> Array:
    """Return the standard deviation of every feature of the reference."""
    turned = replace(domains, is_query=~domains.is_query)
    return ones_for_zeros(profile(turned).sd)


def _shift_errors(adapter: ConDoAdapter, domains: Domains) -> Array | None:
    """Return the standard error of the image of the query's mean, if it is known."""
    if adapter.errors_ is None:
        return None
    return ones_for_zeros(adapter.errors_.std(profile(domains).mean[None])[0])


def _moved(adapter: ConDoAdapter, other: ConDoAdapter, domains: Domains) -> Array:
    """Return by how much the image of the query's mean moves from one map to another."""
    middle = profile(domains).mean[None]
    return (other.map_.linear(middle) - adapter.map_.linear(middle))[0]


def _left_out(adapter: ConDoAdapter, domains: Domains, unit: Array, errors: Array | None) -> Sheet:
    columns: dict[str, list[Any]] = {
        name: [] for name in ("without", "moved_sd", "largest_sd", "moved_errors", "note")
    }
    for k, confounder in enumerate(domains.confounders):
        others = [c for i, c in enumerate(domains.confounders) if i != k]
        columns["without"].append(confounder.name)
        try:
            other = _refit(adapter, replace(domains, confounders=others))
        except NoOverlapError as error:
            for name in ("moved_sd", "largest_sd", "moved_errors"):
                columns[name].append(None)
            columns["note"].append(str(error).split("\n")[0])
            continue
        moved = np.abs(_moved(adapter, other, domains))
        columns["moved_sd"].append(rms(moved / unit))
        columns["largest_sd"].append(float((moved / unit).max()))
        columns["moved_errors"].append(None if errors is None else rms(moved / errors))
        matters = rms(moved / unit) > _MUCH
        columns["note"].append("matters" if matters else "hardly matters")
    return Sheet(columns) if domains.confounders else Sheet({})


def _recorded(domains: Domains, dof: float) -> Sheet:
    """Measure how much of the domain and of the features every confounder explains, alone."""
    kept = np.flatnonzero(domains.kept())
    rows = kept[np.linspace(0, len(kept) - 1, min(len(kept), 2 * _MOST_ROWS)).astype(np.intp)]
    X = domains.rows(rows)
    is_query = domains.is_query[rows]
    side = is_query.astype(float)
    for mine in (is_query, ~is_query):  # what it explains of features is judged within domains
        X[mine] -= np.nanmean(X[mine], axis=0)
    X = np.nan_to_num(X)
    table: dict[str, list[Any]] = {
        name: []
        for name in ("confounder", "explains_domain", "explains_features", "largest", "errors")
    }
    for confounder in domains.confounders:
        design = _design(confounder, rows)
        of_domain = float(_explained(design, side[:, None])[0])
        of_features = _explained(design, X)
        table["confounder"].append(confounder.name)
        table["explains_domain"].append(of_domain)
        table["explains_features"].append(float(np.median(of_features)))
        table["largest"].append(float(of_features.max()))
        odds = of_domain / max(1 - of_domain, 1e-9)
        table["errors"].append(float(np.sqrt(dof * odds * np.median(of_features))))
    return Sheet(table) if domains.confounders else Sheet({})


def _design(confounder: Any, rows: Array) -> Array:
    """Return the columns of a confounder: indicators of its levels, or a cubic."""
    if confounder.values is None:
        return np.eye(len(confounder.levels))[confounder.codes[rows]]
    z = confounder.values[rows]
    z = (z - z.mean()) / max(float(z.std()), 1e-300)
    return np.column_stack([np.ones(len(z)), z, z**2, z**3])


def _explained(design: Array, Y: Array) -> Array:
    """Return the share of the variance of every column that a design explains, adjusted."""
    Y = Y - Y.mean(axis=0)
    fitted = design @ np.linalg.lstsq(design, Y, rcond=None)[0]
    total = ones_for_zeros((Y**2).sum(axis=0))
    left = ((Y - fitted) ** 2).sum(axis=0)
    n, p = len(Y), np.linalg.matrix_rank(design)
    return np.clip(1 - left / max(n - p, 1) / (total / max(n - 1, 1)), 0.0, 1.0)


def _features(
    adapter: ConDoAdapter, domains: Domains, unit: Array, errors: Array | None, dof: float
) -> Sheet:
    if errors is None:
        return Sheet({})
    middle = profile(domains).mean[None]
    shift = (adapter.map_.linear(middle) - middle)[0]
    t = np.abs(shift) / errors
    return Sheet(
        {
            "feature": list(domains.tables[0].labels),
            "shift_sd": (shift / unit).tolist(),
            "shift_errors": t.tolist(),
            "strength": strength(t, dof).tolist(),
        }
    )


def _placebo(adapter: ConDoAdapter, domains: Domains, n_splits: int, seed: int) -> Sheet:
    """Fit maps between two parts of one domain, drawn at random or by confounders."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("domain", "split", "shift_sd", "log_scale", "beyond_2_errors")
    }
    if n_splits == 0:
        return Sheet({})
    kept = domains.kept()
    strata = domains.strata()
    shares = strata.count_query / max(strata.count_query.sum(), 1)
    others = strata.count_reference / max(strata.count_reference.sum(), 1)
    for name, side in (("reference", ~domains.is_query), ("query", domains.is_query)):
        if (side & kept).sum() < 2 * _FEWEST_ROWS:
            continue
        mine, theirs = (others, shares) if name == "reference" else (shares, others)
        odds = theirs / ones_for_zeros(mine)
        chance = {
            "at random": np.full(len(kept), 0.5),
            "by confounders": np.clip(0.5 * odds / max(np.median(odds), 1e-9), 0.1, 0.9)[
                strata.codes
            ],
        }
        if len(odds) == 1:
            del chance["by confounders"]
        for split, probability in chance.items():
            found = []
            for _ in range(n_splits):
                half = replace(
                    domains,
                    is_query=_draw(domains, probability, rng),
                    keep=side & kept,
                )
                try:
                    fitted = _refit(adapter, half)
                except (ValueError, np.linalg.LinAlgError):
                    continue
                found.append(_distance(fitted, half))
            if found:
                columns["domain"].append(name)
                columns["split"].append(split)
                for j, key in enumerate(("shift_sd", "log_scale", "beyond_2_errors")):
                    values = [x for row in found if (x := row[j]) is not None]
                    columns[key].append(float(np.median(values)) if values else None)
    return Sheet(columns)


def _draw(domains: Domains, probability: Array, rng: np.random.Generator) -> Array:
    """Draw which rows play the query; rows of a subject go together."""
    coin = rng.random(len(probability))
    if domains.groups is not None:
        coin = rng.random(int(domains.groups.max()) + 1)[domains.groups]
        first = np.unique(domains.groups, return_index=True)[1]
        probability = probability[first][np.searchsorted(domains.groups[first], domains.groups)]
    return coin < probability


def _distance(fitted: ConDoAdapter, domains: Domains) -> tuple[float, float | None, float | None]:
    """Return how far a map is from the identity: shift, log-scale, and significant features."""
    middle = profile(domains).mean[None]
    shift = (fitted.map_.linear(middle) - middle)[0]
    unit = _reference_spread(domains)
    errors = _shift_errors(fitted, domains)
    scale = None
    if fitted.map_.kind == "diagonal":
        scale = rms(np.log(ones_for_zeros(np.abs(fitted.map_.scale))))
    beyond = None if errors is None else float((np.abs(shift) > _LARGE * errors).mean())
    return rms(shift / unit), scale, beyond
