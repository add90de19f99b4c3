"""How far a map depends on the confounders that were recorded, and on one that was not."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from condokit.adapter import ConDoAdapter
from condokit.checks import Array, NoOverlapError, check_integer, check_seed, quietly
from condokit.compare.comparison import compare
from condokit.compare.overlap import propensity
from condokit.data.arrays import NORMAL_95, ones_for_zeros, rms, sides
from condokit.data.covariates import design, left_of
from condokit.data.noise import at_reliability
from condokit.data.records import Part, Record, Sheet, plain
from condokit.data.study import Confounder, Study
from condokit.data.subsets import subsample
from condokit.maps.affine import AffineMap
from condokit.maps.profile import profile
from condokit.trust.blocks import ComparableRows, known_rows, read_as_fitted
from condokit.trust.residual_shift import ShiftTests

_ROWS_OF_STRENGTHS = 10_000  # rows on which strengths of confounders are measured
_MUCH = 0.1  # standard deviations that a confounder which matters moves the map by
_FEWEST_ROWS = 20  # of each half of a domain that is split for a placebo
_SLOW_SPLITS = 2  # placebo splits where every fit is slow
_PERMUTATIONS = 99  # of the placebo's tests
_LEVEL = 0.05  # of the placebo's tests
_LARGE = 2.0  # standard errors, beyond which a placebo map is off
_STRENGTHS = (0.05, 0.1, 0.2)  # shares that a missed confounder explains
_RELIABILITIES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # for which maps are shown
_MOST_SHOWN = 5  # with more confounders, only two reliabilities of each
_RELIABILITY = ("confounder", "reliability", "moved_sd", "largest_sd", "moved_errors", "note")
_LEFT_OUT = ("without", "moved_sd", "largest_sd", "moved_errors", "note")


@dataclass(frozen=True, repr=False)
class Sensitivity(Record):
    """How a map depends on its confounders; see `sensitivity`."""

    #: The map fitted without each confounder: by how much mapped values move, in standard
    #: deviations of the reference (root mean square and largest over features) and in standard
    #: errors of the map.
    left_out: Sheet
    #: How strong each recorded confounder is: the shares of the domain's and of the features'
    #: variance that it explains by itself, and the standard errors by which a missing confounder
    #: as strong as it would move the map at most (in 19 of 20 data sets).
    recorded: Sheet
    #: Share of both the domain and a feature that an unrecorded confounder would have to explain,
    #: beyond the recorded ones, to move the map of the feature by one standard error.
    strength_one_error: float
    strength_two_errors: float  #: The same for two standard errors.
    #: For every feature: its shift in standard deviations and standard errors, and the strength
    #: that would explain all of it away. Empty where standard errors are not known.
    features: Sheet
    #: For every feature, how far its map is off at most, in standard deviations of the reference,
    #: if a confounder was missed. It explains 5, 10 or 20% of the variance of both the domain and
    #: the feature that the recorded ones leave, or as much as the strongest recorded one does.
    bounds: Sheet
    strongest: str  #: The name of the strongest recorded confounder.
    #: The map for other reliabilities of continuous confounders, as in `left_out`.
    reliability: Sheet
    #: Maps fitted between two parts of one domain, which should be the identity. Medians over
    #: splits of the root mean squared shift (in standard deviations) and log-scale; the share of
    #: features farther than two standard errors off; and `alarms`, the share of features that a
    #: permutation test at a level of 5% finds to differ given the confounders. That should be about
    #: 5%; it is more if confounders by which the parts were drawn are not adjusted for well.
    placebo: Sheet

    def parts(self) -> list[Part]:  # noqa: D102
        text = f"An unrecorded confounder that explains {self.strength_one_error:.1%} of both the "
        text += "domain and a feature, beyond the recorded ones, would move the feature's map by "
        text += f"one standard error; {self.strength_two_errors:.1%} by two."
        features = self.features
        if len(features):
            features = features.take(np.argsort(features["strength"], kind="stable")[:10])
        bounds = self.bounds.take(range(len(self.bounds))[:10])
        return [
            ("", text),
            ("Recorded confounders, for comparison", self.recorded),
            ("The map without a confounder", self.left_out),
            ("Features, the most fragile first", features),
            ("Off at most, if a confounder was missed", bounds),
            ("The map if confounders were measured with error", self.reliability),
            ("Placebo: two halves of one domain", self.placebo),
        ]


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
    r"""Measure how a fitted map depends on its confounders, and how strong a missing one must be.

    A missing confounder that explains shares :math:`R_D^2` of the domain's variance and
    :math:`R_Y^2` of a feature's, given the recorded ones, biases the shift by
    :math:`\mathrm{se} \sqrt{\mathrm{dof}\, R_D^2 R_Y^2 / (1 - R_D^2)}` (Cinelli and Hazlett 2020).
    Where a result says "at most", sampling errors of the shares are allowed for
    (`condokit.trust.sensitivity.moved_at_most`). A continuous confounder that was measured with
    error is adjusted for only in part: `reliability` shows the map for other shares of true
    variance in its variance.

    Parameters
    ----------
    adapter : ConDoAdapter
        A fitted adapter. It is fitted again without each confounder, and on halves of a domain.
    X, domain, confounders, features, groups, sample_weight
        The table that the adapter was fitted on, as in `ConDoAdapter.fit`.
    n_splits : int, default=10
        Placebo splits of every kind; 0 for none. Maps by MMD or energy given continuous confounders
        and those by chained imputation are slow: for these there are at most 2 splits, and of
        reliabilities only 0.8. With `map="auto"` these are 1 and 0.8.
    random_state : int or None, default=None
        Seed of the splits; None is 0.

    Returns
    -------
    Sensitivity
        Tables and figures; see its attributes.

    Examples
    --------
    >>> from condokit import ConDoAdapter, datasets, sensitivity
    >>> df = datasets.make_eeg(100, 100, random_state=0).to_frame()
    >>> roles = {"domain": "device", "confounders": "seizure", "features": ["*F3", "*F4"]}
    >>> adapter = ConDoAdapter(reference="v1").fit(df, **roles)
    >>> sensitivity(adapter, df, **roles, n_splits=0).left_out
    without  moved_sd  largest_sd  moved_errors     note
    seizure     0.646        0.85          4.46  matters
    """
    check_integer("n_splits", n_splits, 0)
    seed = check_seed(random_state)
    domains = read_as_fitted(adapter, X, domain, confounders, features, groups, sample_weight)
    domains, dof = known_rows(domains), degrees_of_freedom(adapter)
    fitted = _FirstFit.of(adapter, domains)
    bounds, strongest = hidden_bounds(domains, adapter.map_)
    by_feature: dict[str, Any] = {}
    if fitted.errors is not None:
        t = np.abs(fitted.shift) / fitted.errors
        by_feature = {"feature": domains.tables[0].labels, "shift_sd": fitted.shift / fitted.unit}
        by_feature |= {"shift_errors": t, "strength": robustness_value(t, dof)}
    return Sensitivity(
        left_out=Sheet.of_rows(_left_out(fitted), _LEFT_OUT if domains.confounders else ()),
        recorded=Sheet.of_rows(_recorded(domains, dof)),
        strength_one_error=robustness_value(1.0, dof),
        strength_two_errors=robustness_value(2.0, dof),
        features=Sheet(by_feature),
        bounds=bounds,
        strongest=strongest,
        reliability=Sheet.of_rows(_other_reliabilities(fitted), _RELIABILITY),
        placebo=_placebo(fitted, n_splits, np.random.default_rng(seed)),
    )


def degrees_of_freedom(adapter: ConDoAdapter) -> float:
    """Return the residual degrees of freedom: rows compared, less one for each stratum and one."""
    support = adapter.support_
    rows = support.count_query.sum() + support.count_reference.sum()
    return max(float(rows) - len(support.weights) - 1, 1.0)


def moved_at_most(dof: float, of_domain: float, of_feature: float) -> float:
    r"""Return the standard errors that a missing confounder moves a map by in 19 of 20 data sets.

    Let it explain shares :math:`R^2` of the domain (D) and of a feature (Y), and let
    :math:`f^2 = R^2 / (1 - R^2)`. In the data at hand it moves the map by
    :math:`\sqrt{\mathrm{dof}}\, \hat f_D \hat R_Y` standard errors of the map without it, or
    :math:`\sqrt{\mathrm{dof}}\, \hat R_D \hat f_Y` of the map with it; both are at most
    :math:`\sqrt{\mathrm{dof}}\, \hat f_D \hat f_Y`. An estimate of f has a standard error of about
    :math:`1 / \sqrt{\mathrm{dof}}`. So with z = 1.96 the result is

    .. math:: \sqrt{\mathrm{dof}}\, f_D f_Y + z \sqrt{f_D^2 + f_Y^2} + z^2 / \sqrt{\mathrm{dof}},

    where the last term is what two confounders of no strength do by chance.
    """
    f2_domain, f2_feature = (r2 / max(1 - r2, 1e-9) for r2 in (of_domain, of_feature))
    moved = np.sqrt(dof * f2_domain * f2_feature)
    return float(moved + NORMAL_95 * np.sqrt(f2_domain + f2_feature) + NORMAL_95**2 / np.sqrt(dof))


def robustness_value(t: Any, dof: float) -> Any:
    r"""Return the strength of a missing confounder that moves a map by t standard errors.

    It is the share s of both the domain and the feature with
    :math:`s^2 / (1 - s) = t^2 / \mathrm{dof}` (the robustness value of Cinelli and Hazlett 2020).
    """
    f2 = np.asarray(t, dtype=float) ** 2 / dof
    value = 0.5 * (np.sqrt(f2**2 + 4 * f2) - f2)
    return value if value.ndim else float(value)


def hidden_bounds(domains: Study, affine: AffineMap) -> tuple[Sheet, str]:
    r"""Return how far the map of every feature is off at most, and the strongest confounder.

    A missed confounder that explains shares :math:`R_D^2` of the domain D given the recorded ones,
    and :math:`R_Y^2` of a mapped feature Y given these and D, biases the shift by
    :math:`\sqrt{R_D^2 R_Y^2 / (1 - R_D^2)}\, \mathrm{sd}(Y | D, Z) / \mathrm{sd}(D | Z)`.
    """
    rows, is_query, X = _rows(domains)
    unit = ones_for_zeros(np.nanstd(X[~is_query], axis=0))
    X[is_query] = affine(X[is_query])
    Y, D = _centred(X / unit, is_query), design(domains.confounders, rows, 3)
    left = left_of(D, is_query[:, None].astype(float))
    size = np.sqrt((left_of(np.column_stack([D, is_query]), Y) ** 2).sum(axis=0))
    size /= max(float(np.sqrt((left**2).sum())), 1e-9)
    bounds = {f"hidden_{100 * s:.0f}": size * s / np.sqrt(1 - s) for s in _STRENGTHS}
    strongest, most = "", 0.0
    for confounder in domains.confounders:
        shares = _explained(confounder, rows, np.column_stack([is_query, Y]))[1]
        by_feature = np.sqrt(shares[1:] * shares[0] / max(1 - shares[0], 1e-9)) * size
        if rms(by_feature) > most:
            strongest, most, bounds["hidden_like"] = confounder.name, rms(by_feature), by_feature
    return Sheet({"feature": domains.tables[0].labels, **bounds}), strongest


def _rows(domains: Study) -> tuple[Array, Array, Array]:
    """Return the numbers of a subsample of rows, a mask of query rows, and their features."""
    kept = np.flatnonzero(domains.kept())
    rows = kept[subsample(len(kept), _ROWS_OF_STRENGTHS)]
    return rows, domains.is_query[rows], domains.rows(rows)


def _centred(X: Array, is_query: Array) -> Array:
    """Return features less the mean of their domain; missing values become that mean."""
    for mine in (is_query, ~is_query):
        X[mine] -= np.nanmean(X[mine], axis=0)
    return np.nan_to_num(X)


@dataclass(frozen=True)
class _FirstFit:
    """A fitted map and its rows; maps are compared by where they send the query's mean."""

    adapter: ConDoAdapter
    domains: Study
    mean: Array  # (1, n_features): the query's mean
    shift: Array  # (n_features,): image of the mean less the mean
    unit: Array  # (n_features,): standard deviations of the reference
    errors: Array | None  # (n_features,): standard errors of the image of the mean

    @classmethod
    def of(cls, adapter: ConDoAdapter, domains: Study) -> "_FirstFit":
        mean = profile(domains).mean[None]
        turned = profile(domains.divided(~domains.is_query))
        shift = (adapter.map_.without_links(mean) - mean)[0]
        errors = None if adapter.errors_ is None else ones_for_zeros(adapter.errors_.std(mean)[0])
        return cls(adapter, domains, mean, shift, ones_for_zeros(turned.sd), errors)

    @property
    def is_slow(self) -> bool:
        """Whether each fit draws or searches much, given numbers, or imputes rows by forests."""
        recipe, is_dense = self.adapter.chosen_.recipe, self.adapter.map_.kind == "dense"
        draws = (recipe.needs == "samples" or is_dense) and bool(self.domains.continuous)
        return draws or recipe.conditional.imputes_rows

    def refit(self, domains: Study, same_family: bool = False) -> ConDoAdapter:
        """Fit an adapter with the same settings to other domains, however small their overlap.

        With `same_family`, `map="auto"` is replaced by the family that was chosen before.
        """
        settings: dict[str, Any] = {"min_overlap": 0.0}
        if same_family and isinstance(self.adapter.map, str) and self.adapter.map == "auto":
            settings["map"] = self.adapter.chosen_.recipe.family
        if not domains.confounders and "prior" in self.adapter.get_params():
            settings |= {"prior": "product", "conditional": "auto"}  # there is nothing to weigh
        with quietly():
            return clone(self.adapter).set_params(**settings).fit_domains(domains)

    def moved(self, domains: Study) -> tuple[float, float, float | None, str]:
        """Refit to other domains and return how far the new map is from this one.

        In standard deviations (root mean square, largest) and in standard errors, with a note.
        """
        both = self.adapter, self.refit(domains)
        moved = np.abs(np.subtract(*(one.map_.without_links(self.mean)[0] for one in both)))
        moved_sd, largest_sd = rms(moved / self.unit), float((moved / self.unit).max())
        moved_errors = None if self.errors is None else rms(moved / self.errors)
        note = "matters" if moved_sd > _MUCH else "hardly matters"
        return moved_sd, largest_sd, moved_errors, note


def _left_out(fitted: _FirstFit) -> Iterator[Any]:
    """Yield for every confounder how far the map moves if it is left out."""
    for confounder in fitted.domains.confounders:
        others = [other for other in fitted.domains.confounders if other is not confounder]
        try:
            yield confounder.name, *fitted.moved(replace(fitted.domains, confounders=others))
        except NoOverlapError as error:
            yield confounder.name, None, None, None, str(error).split("\n")[0]


def _other_reliabilities(fitted: _FirstFit) -> Iterator[Any]:
    """Yield how far the map moves for other reliabilities of each continuous confounder."""
    several = fitted.domains.continuous
    tries_all = isinstance(fitted.adapter.map, str) and fitted.adapter.map == "auto"
    shown = _RELIABILITIES if len(several) <= _MOST_SHOWN and not tries_all else (1.0, 0.8)
    for confounder in several:
        for share in (0.8,) if fitted.is_slow else shown:
            try:
                domains = at_reliability(fitted.domains, confounder.name, share)
                yield confounder.name, share, *fitted.moved(domains)
            except ValueError as error:
                yield confounder.name, share, None, None, None, str(error).split("\n")[0]


def _recorded(domains: Study, dof: float) -> Iterator[dict[str, Any]]:
    """Yield for every confounder the shares of domain and features that it explains by itself."""
    rows, is_query, X = _rows(domains)
    X = _centred(X, is_query)  # what it explains of features is judged within domains
    for confounder in domains.confounders:
        explained, adjusted = _explained(confounder, rows, np.column_stack([is_query, X]))
        yield {
            "confounder": confounder.name,
            "explains_domain": float(adjusted[0]),
            "explains_features": float(np.median(adjusted[1:])),
            "largest": float(adjusted[1:].max()),
            "errors": moved_at_most(dof, explained[0], explained[1:].max()),
        }


def _explained(confounder: Confounder, rows: Array, Y: Array) -> tuple[Array, Array]:
    """Return R squared and adjusted R squared of every column of Y, regressed on a confounder."""
    D, Y = design([confounder], rows, 3), Y - Y.mean(axis=0)
    left = (left_of(D, Y) ** 2).sum(axis=0) / ones_for_zeros((Y**2).sum(axis=0))
    n, p = len(Y), np.linalg.matrix_rank(D)
    adjusted = 1 - left * (max(n - 1, 1) / max(n - p, 1))
    return np.clip(1 - left, 0.0, 1.0), np.clip(adjusted, 0.0, 1.0)


def _placebo(fitted: _FirstFit, n_splits: int, rng: np.random.Generator) -> Sheet:
    """Fit maps between two parts of one domain, drawn at random or depending on confounders.

    As the parts were measured in the same way, these maps should be the identity.
    """
    if n_splits == 0:
        return Sheet({})
    domains, rows = fitted.domains, []
    n_splits = min(n_splits, _SLOW_SPLITS) if fitted.is_slow else n_splits
    for name, side in sides(domains.is_query)[::-1]:
        mine = side & domains.kept()
        if mine.sum() < 2 * _FEWEST_ROWS:
            continue
        for split, probability in _chances(domains, name).items():
            found = []
            for _ in range(n_splits):
                half = domains.divided(_draw(domains, probability, rng), keep=mine)
                try:
                    one = fitted.refit(half, same_family=True)
                    found.append((*_distance(one, half), _alarms(half, rng)))
                except (ValueError, np.linalg.LinAlgError):
                    continue
            if found:
                shift, scale, beyond, alarm = np.array(found).T
                figures = np.median(shift), np.median(scale), beyond.mean(), alarm.mean()
                rows.append((name, split, *plain(list(figures))))
    columns = ("domain", "split", "shift_sd", "log_scale", "beyond_2_errors", "alarms")
    return Sheet.of_rows(rows, columns)


def _distance(adapter: ConDoAdapter, domains: Study) -> tuple[float, float, float]:
    """Return how far a map is from the identity.

    Three numbers: root mean squared shift in sd, the same of log-scales, and the share of features
    whose shift is beyond two standard errors.
    """
    affine = adapter.map_
    if affine.kind not in ("diagonal", "monotone"):  # errors of a matrix take many refits
        adapter.errors_ = None
    fitted = _FirstFit.of(adapter, domains)
    scale = beyond = np.nan
    if affine.kind == "diagonal":
        scale = rms(np.log(ones_for_zeros(np.abs(affine.scale))))
    if fitted.errors is not None:
        beyond = float((np.abs(fitted.shift) > _LARGE * fitted.errors).mean())
    return rms(fitted.shift / fitted.unit), scale, beyond


def _alarms(domains: Study, rng: np.random.Generator) -> float:
    """Return the share of features that differ between two parts of a domain, at a level of 5%."""
    identity = AffineMap(np.ones(domains.n_features), np.zeros(domains.n_features))
    rows = ComparableRows.of(domains, compare(domains, quiet=True), identity)
    tests = ShiftTests(rows, rows.before, _PERMUTATIONS, seed=int(rng.integers(1 << 31)))
    return float((tests.p <= _LEVEL).mean())


def _chances(domains: Study, name: str) -> dict[str, Array]:
    """Return probabilities that a row plays the query in a placebo: equal, or by confounders.

    The second imitate how confounders differ between the real domains: they grow with the odds of
    the other domain given z.
    """
    chances = {"at random": np.full(len(domains.is_query), 0.5)}
    strata = domains.strata()
    if domains.continuous:
        try:
            comparison = compare(domains, quiet=True)
        except NoOverlapError:
            return chances
        e = propensity(comparison.covariates, comparison.is_query)
        odds = np.zeros(len(domains.is_query))  # where one domain has no rows
        odds[comparison.used] = e / (1 - e) if name == "reference" else (1 - e) / e
    elif len(strata.levels) > 1:
        query, reference = (
            counts / max(counts.sum(), 1) for counts in (strata.count_query, strata.count_reference)
        )
        mine, theirs = (reference, query) if name == "reference" else (query, reference)
        odds = (theirs / ones_for_zeros(mine))[strata.codes]
    else:
        return chances
    ours = domains.kept() & (domains.is_query == (name == "query"))
    middle = max(float(np.median(odds[ours])), 1e-9)
    chances["by confounders"] = np.clip(0.5 * odds / middle, 0.1, 0.9)
    return chances


def _draw(domains: Study, probability: Array, rng: np.random.Generator) -> Array:
    """Draw which rows play the query; all rows of a subject get the same draw."""
    coin = rng.random(len(probability))
    if domains.groups is not None:
        coin = rng.random(int(domains.groups.max()) + 1)[domains.groups]
        first = np.unique(domains.groups, return_index=True)[1]
        probability = probability[first][np.searchsorted(domains.groups[first], domains.groups)]
    return coin < probability
