"""Everything that "auto" means: the rules, the candidates, and the choice among them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from condokit.checks import Array, listing, pick, quietly, refusal, warn
from condokit.compare.comparison import Comparison
from condokit.compare.priors import PRIORS, Prior
from condokit.conditionals import CONDITIONALS, Conditional
from condokit.data.arrays import independent, ones_for_zeros
from condokit.data.links import check_links
from condokit.data.missing import complete_rows, warn_incomplete
from condokit.data.study import Study
from condokit.data.subsets import folds, mixed_order
from condokit.divergences import DIVERGENCES, Divergence, PCMatch, PooledLikelihood
from condokit.fit.controls import Controls, find_controls
from condokit.fit.fit_map import Recipe, fit_map, fit_quietly, likely_curves
from condokit.fit.ingredients import (
    NOTHING_NAMED,
    ONLY_AUTO,
    checked_shrinkage,
    is_auto,
    refuse_unused,
    rule,
    seeded,
)
from condokit.fit.pairs import line_after_curves, refine
from condokit.fit.record import Fit, name_of
from condokit.maps.affine import AffineMap
from condokit.maps.families import MAPS, Affine, LocationScale, LowRank, MapFamily, Monotone
from condokit.maps.standard_errors import StandardErrors
from condokit.maps.standard_errors import averaged as averaged_errors
from condokit.summaries.gaussians import GaussianPair, gaussian_pair

# Matrices that map="auto" tries beside diagonal maps and curves, from simple to rich: only the
# first without confounders, none of them for one feature or for very many
_MATRICES = (
    ("ot", Affine()),
    ("pc-match", Affine()),
    ("reverse-kl", LowRank()),
    ("likelihood", Affine()),
)
_FEW_ROWS = ("ot", "pc-match")  # what map="affine" tries where rows are too few to search matrices

MANY_ROWS = 8  # rows per feature, in the smaller domain, from which all matrices are searched
_MOST_FEATURES = 300  # with more features only diagonal maps are tried
_MOST_SCORED = 20_000  # rows of a domain on which candidates are scored, given categories
_MOST_ON_CURVES, _MORE = 1000, 40  # the same given numbers: 1000 rows, plus 40 per feature
_TOLERANCE = 0.1  # nats per feature by which the held-out score of a diagonal map may be worse
_FEW_ON_FOLDS = 1000  # rows of a domain from which two folds are enough (else five)
_COLLINEAR = 1e-3  # a feature is collinear if others leave less than this share of its spread
_LEAST_ROWS = 20  # rows of a domain; with fewer no rows are held out
_LEAST_PER_FEATURE = 2  # rows per feature from which map="affine" is averaged with a diagonal map
_LOW_RANK_FEATURES = 10  # with fewer features a full matrix is small enough
_ERRORS = (1.0, 4.0)  # standard errors between scores: up to 1 as good as the best, from 4 excluded
_NATS = 2.0  # by which all held-out rows together prefer another map, that count as one such error
_ROUNDS, _LEAST_SHARE = 200, 0.01  # EM steps for the weights of matrices; smaller weights are 0
_MOST_WORSE = 1.0  # nats per feature that one held-out row may at most count against a map
_DETERMINED = 60.0  # curvature times rows; in simulations matrices were found again from 70 on
_SPREAD = (0.8, 1.25)  # allowed ratio of variances within strata, mapped query over reference


@dataclass(frozen=True)
class Candidate:
    """A kind of map to fit."""

    # names or instances, as the user gives them
    divergence: Any
    conditional: Any
    recipe: Recipe  # how it is fitted
    parts: tuple[tuple[float, Recipe], ...] = ()  # of an average: weights and recipes
    controls: Controls | None = None  # whose common factors are removed before the map

    def refit(self, domains: Study) -> Any:
        """Fit other rows in the same way, without weighing candidates again."""
        if self.controls is not None:
            controls = Controls.of(domains, self.controls.places, self.controls.rank)
            return controls.before(replace(self, controls=None).refit(controls.others(domains)))
        weights, recipes = zip(*(self.parts or ((1.0, self.recipe),)))
        maps = [fit_quietly(domains, recipe).map for recipe in recipes]
        return AffineMap.average(maps, np.array(weights))

    @property
    def name(self) -> str:
        """Its name in the report."""
        return self.map if self.recipe.sparing else f"{self.map} ({name_of(self.divergence)})"

    @property
    def map(self) -> str:
        """The name of its family of maps."""
        if self.recipe.sparing:
            return "diagonal"
        kind = type(self.recipe.family)
        return next((name for name, known in MAPS.items() if kind is known), kind.__name__)


def candidates(settings: Mapping[str, Any], domains: Study) -> list[Candidate]:
    """Return what is to be fitted: one kind of map, or several to choose from."""
    divergence, named = settings["divergence"], not is_auto(settings["divergence"])
    if not is_auto(settings["map"]):
        family = pick("map", settings["map"], MAPS, MapFamily)
        each = domains.rows_behind
        fewest = min(each[domains.is_query].sum(), each[~domains.is_query].sum())
        few = fewest < MANY_ROWS * domains.n_features
        square = not domains.is_rectangular
        if family.is_free and few and not named and domains.confounders and square:
            tried = [_candidate(settings, family, name, domains) for name in _FEW_ROWS]
            enough = fewest >= max(_LEAST_ROWS, _LEAST_PER_FEATURE * domains.n_features)
            if settings["shrinkage"] == "auto" and enough:  # a diagonal map stands for the identity
                diagonal = LocationScale(family.links)
                tried = [_candidate(settings, diagonal, "likelihood", domains), *tried]
            return tried
        return [_candidate(settings, family, divergence, domains)]
    simple = is_auto(settings["conditional"]) and settings["controls"] is None and not named
    bends = simple and domains.is_whole and domains.n_features <= _MOST_FEATURES
    lines: MapFamily = Monotone() if bends and domains.confounders else LocationScale()
    first = _candidate(settings, lines, divergence, domains, sparing=True)
    matrices: Sequence[tuple[Any, MapFamily]] = _MATRICES if domains.confounders else _MATRICES[:1]
    if named:  # a divergence that was asked for is the only one to be tried
        matrices = [(divergence, Affine())]
    if not 2 <= domains.n_features <= _MOST_FEATURES or not domains.is_whole:
        matrices = []
    others = [_candidate(settings, family, name, domains) for name, family in matrices]
    others = [replace(one, recipe=replace(one.recipe, in_units=True)) for one in others]
    if first.recipe.divergence.supports(lines) is not None and others:
        return others
    return [first, *others]


def _candidate(
    settings: Mapping[str, Any],
    family: MapFamily,
    divergence: Any,
    domains: Study,
    sparing: bool = False,
) -> Candidate:
    """Return the candidate for a family and a divergence, with every "auto" decided."""
    conditional = settings["conditional"]
    if is_auto(divergence):
        divergence = rule(family, domains, settings["shrinkage"])
    known = DIVERGENCES if not is_auto(settings["divergence"]) else {**DIVERGENCES, **ONLY_AUTO}
    chosen = seeded("divergence", divergence, known, Divergence, settings)
    if is_auto(conditional):
        by_rows = chosen.forms.get(family.form) == "rows"
        conditional = "splines" if domains.continuous and not by_rows else "stratified"
    recipe = Recipe(
        family=family,
        prior=pick("prior", settings["prior"], PRIORS, Prior),
        conditional=seeded("conditional", conditional, CONDITIONALS, Conditional, settings),
        divergence=chosen,
        sparing=sparing,
        shrinkage=checked_shrinkage(settings["shrinkage"]),
        warn_overlap=settings["warn_overlap"],
        min_overlap=settings["min_overlap"],
    )
    refuse_unused(settings, recipe, domains, name_of(divergence))
    return Candidate(divergence, conditional, recipe)


def find(
    settings: Mapping[str, Any], domains: Study, pairs: tuple[Array, Array] | None = None
) -> tuple[Fit, Candidate]:
    """Fit the map that the settings ask for, and return it with the candidate that was chosen.

    In this order: remove the factors of negative controls, choose among the candidates, refine the
    map by pairs.
    """
    controls, left, wanted = None, domains, settings["map"]
    if settings["controls"] is not None:
        controls = Controls.of(domains, find_controls(settings["controls"], domains, wanted))
        left = controls.others(domains)
    if controls is not None and not domains.confounders:
        settings = {**settings, **NOTHING_NAMED, "map": "identity", "divergence": "auto"}
    tried = candidates(settings, left)
    chosen = tried[0]
    fit = fit_map(left, chosen.recipe)  # raises or warns if something is wrong with the data
    if len(tried) > 1:
        fit, chosen = averaged(left, tried, fit)
    elif pairs is None and chosen.recipe.family.form == "diagonal" and controls is None:
        _warn_of_curves(left, chosen.recipe, fit)
    if pairs is not None:
        fit = after_pairs(fit, chosen, left, pairs, wanted)
    return (fit, chosen) if controls is None else after_controls(controls, fit, chosen)


def _warn_of_curves(domains: Study, recipe: Recipe, fit: Fit) -> None:
    """Warn of features for which a curve is more likely than the fitted straight line."""
    is_default = isinstance(recipe.divergence, PooledLikelihood) and recipe.family.links is None
    found = likely_curves(domains, recipe, fit.map, fit.straight) if is_default else None
    if found is None:
        return
    text = (
        "A curve is more likely than a straight line for {names}, or a confounder that differs "
        "between the domains is missing. Use {@map='auto'} or 'monotone', which fit curves, or "
        "a link (see Maps in the documentation)."
    )
    names = listing(domains.tables[0].take(found[0]).labels)
    warn("curve-likely", text, UserWarning, names=names)


def averaged(domains: Study, candidates: list[Candidate], first: Fit) -> tuple[Fit, Candidate]:
    """Average the fitted candidates by their scores on held-out rows; simpler ones come first.

    `first` is the fit of the first candidate. The score of a candidate is the mean over held-out
    query rows of `-log p_r(A x + b | z) - log|det A|`: minus the log-likelihood of the mapped row
    under the reference's conditional law, which was learned from other rows. The determinant makes
    it useless to shrink data to their mean; held-out rows make it useless to fit noise. These are
    excluded:

    - candidates after which the variance within strata is less than 80% or more than 125% of the
      reference's, beyond sampling noise;
    - matrices that the strata do not determine: their rotations have the same score;
    - all matrices, if both domains together have fewer than 8 rows per feature;
    - matrices found by a search, if one domain has fewer than 16 rows per feature (8 without a
      diagonal candidate);
    - everything but the first candidate, if a domain has fewer than 20 rows.
    """
    report = first.report
    fewest = min(report.rows_query, report.rows_reference)
    held = domains
    if domains.gaps is not None:  # rows that lack a value have no score
        held = replace(domains, keep=complete_rows(domains), gaps=None)
        fewest = min(fewest, *(report.complete_rows or {}).values())
    if fewest < _LEAST_ROWS or report.fallback is not None:
        return first, candidates[0]
    if first.map.kind == "diagonal" and candidates[0].recipe.sparing:  # no line is bent
        straight = replace(candidates[0].recipe, family=LocationScale())
        candidates = [replace(candidates[0], recipe=straight), *candidates[1:]]
    with quietly():
        trial = _Trial(held, candidates)
        if trial.trial_domains.n_features == 0:  # all are constant
            return first, candidates[0]
        scores = trial.scores()
        fits = {0: first}
        while True:
            weights = trial.weigh(scores)
            used = np.flatnonzero(weights).tolist()
            for k in used:
                if k not in fits:
                    fits[k] = fit_map(domains, candidates[k].recipe, quiet=True)
                if fits[k].map.kind != "monotone":
                    scores[k].spread = trial.spread(fits[k].map)
                if k > 0 and not trial.keeps_spread(scores[k].spread):
                    scores[k].failure = f"leaves {scores[k].spread:.0%} of the variance"
                curvature = fits[k].report.curvature or np.nan  # of a search among matrices
                if k > 0 and curvature * fewest < _DETERMINED:
                    scores[k].failure = "the strata do not tell rotations apart"
            if not any(scores[k].failure for k in used if k > 0):
                break  # otherwise weigh again, without those that have just failed
    if any(used) and domains.gaps is not None and candidates[0].recipe.sparing:
        warn_incomplete(domains, report.complete_rows or {})
    if any(fits[k].map.kind == "monotone" for k in used):  # curves and matrices make no one map
        bent = weights[0] >= 0.5
        weights = np.where(np.arange(len(weights)) == 0, bent, ~bent * weights)
        weights, used = weights / weights.sum(), np.flatnonzero(weights).tolist()
    chosen = int(weights.argmax())
    table = _ladder(candidates, scores, weights)
    name = candidates[chosen].name if fits[chosen].map.kind != "monotone" else "monotone"
    report = replace(fits[chosen].report, ladder=table, chosen_map=name)
    best = replace(fits[chosen], overlap=first.overlap, report=report)
    if len(used) == 1:
        return best, candidates[chosen]
    maps = [fits[k].map.with_errors(fits[k].errors) for k in used]
    mixed = AffineMap.average(maps, weights[used])
    parts = tuple((float(weights[k]), candidates[k].recipe) for k in used)
    later = partial(averaged_errors, maps, weights[used], mixed)
    return replace(best, map=mixed, errors=later), replace(candidates[chosen], parts=parts)


def after_controls(controls: Controls, fit: Fit, chosen: Candidate) -> tuple[Fit, Candidate]:
    """Return a fit whose map first removes the factors of controls, then maps the other features.

    Its standard errors are not known.
    """
    if fit.map.kind not in AffineMap.kinds:
        raise refusal("{@'controls'} work with affine maps only. Use {@map='location-scale'}.")
    report = replace(
        fit.report,
        n_controls=len(controls.places),
        control_factors=controls.rank,
        control_share=controls.shared,
    )
    whole = replace(fit, map=controls.before(fit.map), errors=None, report=report)
    return whole, replace(chosen, controls=controls)


def after_pairs(
    fit: Fit, chosen: Candidate, domains: Study, pairs: tuple[Array, Array], wanted: Any
) -> Fit:
    """Refine a fitted map by pairs of rows that were measured in both domains.

    `wanted` is the map that the user asked for. Of the map before this step, standard errors enter
    only if it is diagonal.
    """
    family = chosen.recipe.family
    if is_auto(wanted):
        family = Affine()
    elif fit.map.kind == "low-rank":
        raise refusal("'pairs' do not work with {@map='low-rank'}. Use {@map='auto'}.")
    if not (family.has_scale or family.has_offset):
        return fit
    is_custom = family.form == "matrix" and not (family.is_free or family.is_rigid)
    if is_custom or not family.has_offset:
        raise ValueError(f"'pairs' do not work with {type(family).__name__}.")
    if fit.map.kind == "diagonal" and family.is_rigid:
        family = LocationScale()
    if fit.map.kind == "monotone":
        return line_after_curves(fit, domains, pairs)
    linked = replace(domains, links=fit.map.links)

    def refit(keep: Array) -> tuple[AffineMap, StandardErrors | None]:
        others = replace(domains, keep=keep)
        try:
            if chosen.parts:
                return chosen.refit(others), None
            recipe = chosen.recipe
            if recipe.family.form == "monotone":  # no line was bent
                recipe = replace(recipe, family=LocationScale())
            again = fit_quietly(others, recipe)
            return again.map, again.compute_errors()
        except ValueError:
            return fit.map, known  # too few rows without these pairs

    known = fit.compute_errors() if fit.map.kind == "diagonal" else None
    refined, errors, facts = refine((fit.map, known), family, linked, pairs, refit)
    return replace(fit, map=refined, errors=errors, report=replace(fit.report, pairs=facts))


def _ladder(
    candidates: list[Candidate], scores: "list[_Score]", weights: Array
) -> list[dict[str, Any]]:
    """Return the table of all candidates for the report."""
    best = min((score.mean for score in scores if not score.failure), default=0.0)
    return [
        {
            "map": candidate.name,
            "score": score.mean,
            "worse_by": score.mean - best,
            "spread": score.spread,
            "failure": score.failure,
            "weight": float(weights[k]),
            "chosen": k == int(weights.argmax()),
        }
        for k, (candidate, score) in enumerate(zip(candidates, scores))
    ]


@dataclass
class _Score:
    """The held-out scores of a candidate in nats, one per query row, or why it is excluded.

    Smaller is better: these are minus log-likelihoods. `mean` is their weighted mean, `spread` the
    variance within strata after the map over that of the reference.
    """

    nats: Array
    mean: float = np.nan
    failure: str = ""
    spread: float = np.nan


class _Trial:
    """Scores all candidates on held-out rows, and turns the scores into weights."""

    def __init__(self, domains: Study, candidates: list[Candidate]) -> None:
        self.candidates = candidates
        self.recipes = [candidate.recipe for candidate in candidates]
        self.recipe = recipe = replace(candidates[-1].recipe, min_overlap=0.0)
        links = check_links(recipe.family.links, domains.tables[0].labels)
        domains, d = replace(domains, links=links), domains.n_features
        most = _MOST_ON_CURVES + _MORE * d if recipe.conditional.is_smooth else _MOST_SCORED
        self.marks = domains.marks()
        self.domains = replace(domains, keep=_some_rows(domains, self.marks, most))
        self.whole = recipe.compare(self.domains)
        self.pair = gaussian_pair(self.domains, self.whole, recipe.conditional, False)
        self.weights = np.ones(1)
        # constant and collinear features have hardly any noise: tiny errors would decide scores
        kept = _independent(self.pair)
        some = len(kept) < domains.n_features
        self.trial_domains = self.domains.of(kept) if some else self.domains

    def scores(self) -> list[_Score]:
        """Score all candidates by cross-validation: fit on all folds but one, score on that."""
        domains = self.trial_domains
        d = domains.n_features
        assert domains.keep is not None
        place = self.whole.place
        n_folds = 5 if d <= 30 and self.whole.fewest_rows < _FEW_ON_FOLDS else 2
        cell = 2 * place + ~domains.is_query
        fold = folds(cell, n_folds, domains.groups, values=self.marks)
        why_not = [self._why_not(k) for k in range(len(self.candidates))]
        nats: list[list[Array]] = [[] for _ in self.candidates]
        weights = []
        for f in range(n_folds):
            train = replace(domains, keep=domains.keep & (fold != f))
            asked = np.flatnonzero(domains.keep & (fold == f) & (place >= 0))
            try:
                judge = _Judge(domains, train, self.recipe, asked, self.whole)
            except (ValueError, np.linalg.LinAlgError):
                continue
            weights.append(judge.weights)
            for k in [k for k, reason in enumerate(why_not) if not reason]:
                try:
                    nats[k].append(judge(fit_quietly(train, self.recipes[k]).map))
                except ValueError as error:
                    why_not[k] = str(error).splitlines()[0]
        if not weights:
            few = "too few rows to hold any out"
            return [_Score(np.zeros(1), 0.0), *(_Score(np.zeros(1), failure=few) for _ in nats[1:])]
        self.weights = np.concatenate(weights) / sum(w.sum() for w in weights)
        rows = np.full((len(nats), len(self.weights)), np.inf)
        for k, parts in enumerate(nats):
            if not why_not[k]:
                rows[k] = np.concatenate(parts)
                if not np.isfinite(rows[k]).all():
                    why_not[k] = "maps held-out rows too far away"
        rows = np.minimum(rows, rows.min(axis=0) + _MOST_WORSE * d)  # no single row decides
        means = [
            np.nan if failure else float(self.weights @ r) for r, failure in zip(rows, why_not)
        ]
        return [_Score(*known) for known in zip(rows, means, why_not)]

    def _not_tried(self, candidate: Candidate) -> str:
        """Return why a candidate is not tried; an empty string if it is.

        Matching of principal axes replaces the search among all matrices where rows are too few.
        """
        family, divergence = candidate.recipe.family, candidate.recipe.divergence
        d, fewest = self.trial_domains.n_features, self.whole.fewest_rows
        beside = self.candidates[0].recipe.sparing
        total, many = float(self.whole.support.n_rows.sum()), fewest >= (1 + beside) * MANY_ROWS * d
        if family.form != "diagonal" and beside and total < MANY_ROWS * d:
            return f"{total:g} rows are too few for a matrix of {d} features"
        if family.form == "low-rank" and d < _LOW_RANK_FEATURES:
            return f"{d} features are few"
        if isinstance(divergence, PCMatch) and many:
            return "rows are enough to search all matrices"
        if family.form == "matrix" and not divergence.in_closed_form and not many:
            return f"{fewest:g} rows are too few to search all matrices"
        return ""

    def _why_not(self, k: int) -> str:
        """Return why a candidate cannot be scored; an empty string if it can.

        A search among matrices has local minima. So on each fold it starts at the matrix that was
        found from all rows, to end in the same minimum.
        """
        reason, recipe = self._not_tried(self.candidates[k]), self.recipes[k]
        if not reason and recipe.family.form == "matrix" and not recipe.divergence.in_closed_form:
            try:
                found = fit_quietly(self.trial_domains, recipe).map
            except ValueError as error:
                return str(error).splitlines()[0]
            self.recipes[k] = replace(recipe, start=(found.A, found.b))
        return reason

    def weigh(self, scores: list[_Score]) -> Array:
        r"""Return the weights of all candidates; they change smoothly with the scores.

        If the score of candidate k is worse than the best by :math:`t_k` standard errors of the
        paired difference, or by 2 t_k nats in all rows together, it counts as equally good to the
        degree :math:`v_k = (4 - t_k) / 3`, clipped to [0, 1]. The simplest equally good candidate
        is wanted, and simpler ones come first, so :math:`w_k = v_k \prod_{j < k} (1 - v_j)`. A
        diagonal map may be worse than a matrix by two nats for each of the :math:`d (d - 1)`
        entries off the diagonal, shared by the N query rows: by :math:`2 d (d - 1) / N`, but no
        more than 0.1 nats per feature. The weight that remains for matrices is divided among them
        by likelihood; see `stacked`.
        """
        weights = np.zeros(len(scores))
        alive = [k for k, score in enumerate(scores) if not score.failure]
        if not alive:  # the first candidate has been fitted already, and is taken
            return np.eye(len(scores))[0]
        best = min(alive, key=lambda k: scores[k].mean)
        d, n_rows = self.domains.n_features, len(self.weights)
        tolerance, left = min(_TOLERANCE * d, 2 * d * (d - 1) / n_rows), 1.0
        for k in alive:
            difference = scores[k].nats - scores[best].nats
            gap = float(self.weights @ difference)
            error = float(np.sqrt(self.weights**2 @ (difference - gap) ** 2))
            if self.candidates[k].recipe.sparing:
                gap -= tolerance
            worse = max(gap / max(error, 1e-300), gap * n_rows / _NATS)
            weights[k] = left * np.interp(worse, _ERRORS, (1.0, 0.0))
            left -= weights[k]
        matrices = [k for k in alive if k > 0]
        if matrices and self.candidates[0].recipe.sparing:
            total = weights[matrices].sum()
            weights[matrices] = total * stacked([scores[k].nats for k in matrices], self.weights)
        return weights

    def spread(self, affine: Any) -> float:
        """Return the ratio of variances within strata, mapped query over reference.

        It is the median over features of ratios of means over the strata.
        """
        A, pair = affine.A, self.pair
        mapped = np.einsum("ij,kjl,il->ki", A, pair.query.cov, A, optimize=True)
        ratio = (pair.weights @ mapped) / np.maximum(
            pair.weights @ np.einsum("kii->ki", pair.reference.cov), 1e-300
        )
        return float(np.median(ratio))

    def keeps_spread(self, ratio: float) -> bool:
        """Return whether a ratio of variances is near one, up to two standard errors of it.

        The variance of n normal values has the relative variance 2 / n.
        """
        n, m, w = self.pair.query.count, self.pair.reference.count, self.pair.weights
        margin = 1 + 2 * float(np.sqrt(2 * (w**2 @ (1 / n + 1 / m))))
        return _SPREAD[0] / margin <= ratio <= _SPREAD[1] * margin


def stacked(nats: Sequence[Array], weights: Array) -> Array:
    r"""Return the shares p of a mixture of candidates that is most likely on held-out rows.

    With :math:`l_{ik} = e^{-nats_{ik}}` for row i and candidate k, and the weights :math:`w_i` of
    rows, p maximises :math:`\sum_i w_i \log \sum_k p_k l_{ik}`. The EM algorithm starts from equal
    shares and repeats :math:`p_k \leftarrow \sum_i w_i\, p_k l_{ik} / \sum_j p_j l_{ij}`. Shares
    below 1% are set to zero.
    """
    table = np.stack(nats)
    likely = np.exp(table.min(axis=0) - table)
    shares = np.full(len(table), 1 / len(table))
    for _ in range(_ROUNDS):
        shares = shares * ((likely / (shares @ likely)) @ weights)
    shares = np.where(shares < _LEAST_SHARE * shares.sum(), 0.0, shares)
    return np.asarray(shares / shares.sum())


def _independent(pair: GaussianPair) -> Array:
    """Return the positions of features that are not collinear with others in either domain."""
    kept = np.arange(pair.n_features)
    for side in (pair.query, pair.reference):
        cov = np.tensordot(side.count / side.count.sum(), side.cov, axes=1)[np.ix_(kept, kept)]
        sd = np.sqrt(ones_for_zeros(np.diag(cov)))
        size, axes = np.linalg.eigh(cov / np.outer(sd, sd))
        root = np.sqrt(np.maximum(size, 0.0))[:, None] * axes.T
        kept = kept[independent(root, _COLLINEAR)]
    return kept


class _Judge:
    """Scores maps on held-out query rows, by the reference's law given z from the other rows.

    The law is normal: with the mean and covariance of each stratum, or, given numbers, with a curve
    for the mean and spread of each feature and one correlation matrix. `whole` is the comparison of
    all rows, so that strata have the same numbers in every fold.
    """

    def __init__(
        self, domains: Study, train: Study, recipe: Recipe, asked: Array, whole: Comparison
    ) -> None:
        comparison = recipe.compare(train)
        pair = gaussian_pair(train, comparison, recipe.conditional, True)
        place = comparison.support.place(replace(comparison.strata, codes=whole.strata.codes))
        asked = asked[place[asked] >= 0]
        is_query = domains.is_query[asked]
        if not is_query.any() or (recipe.conditional.is_smooth and is_query.all()):
            raise ValueError("no rows to hold out")
        self.X = domains.rows(asked)[is_query]
        law = pair.reference
        if not recipe.conditional.is_smooth:
            mine = place[asked][is_query]
            white = np.linalg.inv(np.linalg.cholesky(law.cov))
            self._mean, self._spread = law.mean[mine], np.ones(self.X.shape)
            self._white = [(mine == k, white[k]) for k in np.unique(mine)]
            share = pair.weights / np.maximum(np.bincount(mine, minlength=len(pair.weights)), 1)
            self.weights = share[mine]
            return
        # confounders in the units of all rows, of the rows to learn from and of those to score
        used = comparison.used
        known = ~train.is_query[used]
        at = whole.covariates.take(np.searchsorted(whole.used, asked))
        own = whole.covariates.take(np.searchsorted(whole.used, used[known]))
        moments = recipe.conditional.moments_at(train.rows(used)[known], own, at)
        self._mean, self._spread = moments.mean[is_query], np.sqrt(moments.var[is_query])
        sd = np.sqrt(ones_for_zeros(law.cov[0].diagonal()))
        white = np.linalg.inv(np.linalg.cholesky(law.cov[0] / np.outer(sd, sd)))
        self._white = [(np.ones(len(self.X), dtype=bool), white)]
        weights = np.zeros(len(asked))
        chosen, prior = recipe.prior.points(at, is_query)
        weights[chosen] = prior
        self.weights = weights[is_query]

    def __call__(self, found: Any) -> Array:
        """Return -log p(g(x) | z) - log|det g'(x)| in nats for every held-out query row."""
        residual = (found.without_links(self.X) - self._mean) / self._spread
        nats = np.log(self._spread).sum(axis=1) - found.log_slopes(self.X)
        nats += 0.5 * self.X.shape[1] * np.log(2 * np.pi)
        for rows, white in self._white:
            nats[rows] += 0.5 * ((residual[rows] @ white.T) ** 2).sum(axis=1)
            nats[rows] -= np.log(np.diag(white)).sum()
        return nats


def _some_rows(domains: Study, marks: Array, most: int) -> Array:
    """Return a mask of the rows used for scores: at most so many of each domain, well mixed."""
    order, taken = mixed_order(marks), domains.kept()
    for side in (domains.is_query, ~domains.is_query):
        taken[order[(taken & side)[order]][most:]] = False
    return taken
