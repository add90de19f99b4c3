"""The choice among kinds of maps, from simple to rich, by how well they predict held-out rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condokit.checks import Array, Note, quietly
from condokit.compare.comparison import Comparison
from condokit.conditionals.base import SmoothConditional
from condokit.data.disclosure import hidden_counts, told
from condokit.data.domains import Domains
from condokit.data.links import check_links
from condokit.data.missing import complete_rows
from condokit.data.subsets import folds
from condokit.divergences import GaussianOT, PCMatch
from condokit.fit import Fit, Recipe, compare, fit_map, fit_quietly, gaussian_pair, warn_incomplete
from condokit.maps.affine import AffineMap
from condokit.maps.families import MAPS, Affine, LowRank
from condokit.maps.provenance import setting, versions
from condokit.summaries.covariances import GaussianPair

_NO_MATTER = ("n_jobs", "verbose")  # they do not change the map


def account(
    settings: Mapping[str, Any], domains: Domains, fit: Fit, rung: Rung, notes: Sequence[Note]
) -> dict[str, Any]:
    """Tell how a map was fitted, without anything that a file may not give away.

    There are no times and no addresses in it, so that the same fit yields the same file, and no
    counts of few rows.
    """
    labels = dict(zip(("query", "reference"), map(str, domains.labels)))
    return {
        "versions": versions(),
        "adapter": {key: setting(v) for key, v in settings.items() if key not in _NO_MATTER},
        "map": fit.report.get("fallback", rung.map),
        "divergence": called(rung.divergence),
        "conditional": called(rung.conditional),
        "domains": labels,
        "confounders": {
            c.name: "categorical" if c.values is None else "continuous" for c in domains.confounders
        },
        "rows": {side: _rows(domains, fit, side) for side in labels},
        "overlap": {
            "coefficient": round(fit.overlap.coefficient, 2),
            "by_confounder": {n: round(c, 2) for n, c in fit.overlap.by_confounder.items()},
        },
        "standard_errors": fit.errors is not None,
        "warnings": list(
            dict.fromkeys(f"{note.category}: {told(note.sentence)}" for note in notes)
        ),
    }


def _rows(domains: Domains, fit: Fit, side: str) -> Any:
    """Return how many rows were compared, or how many at most if that tells of too few."""
    compared = fit.report[f"rows_{side}"]
    mine = domains.kept() & (domains.is_query == (side == "query"))
    total = mine.sum() if domains.weights is None else domains.weights[mine].sum()
    return hidden_counts(np.array([compared, max(total - compared, 0.0)]))[0]


MOST_FEATURES = 300  # beyond, only diagonal maps are tried
_MOST_ROWS = 20_000  # of a domain that the choice looks at
_TOLERANCE = 0.05  # most nats per feature by which a simpler map may be worse
_COLLINEAR = 1e-6  # share of its variance that others leave of a feature
_LEAST_ROWS = 20  # of a domain, below which none are held out
MANY_ROWS = 8  # rows per feature from which all matrices are searched
_LOW_RANK_FEATURES = 10  # from which a matrix of low rank differs from a full one
_ERRORS = 2.0  # standard errors within which scores are equal
_SPREAD = (0.8, 1.25)  # of the mapped query's variance within strata, over the reference's


@dataclass(frozen=True)
class Rung:
    """A kind of map to try.

    Attributes
    ----------
    divergence, conditional : str or instance
        As the user calls them.
    recipe : Recipe
        How it is fitted.
    """

    divergence: Any
    conditional: Any
    recipe: Recipe

    @property
    def name(self) -> str:
        """What the report calls it."""
        return self.map if self.recipe.averages else f"{self.map} ({called(self.divergence)})"

    @property
    def map(self) -> str:
        """What the family of maps is called."""
        if self.recipe.averages:
            return "diagonal"
        kind = type(self.recipe.family)
        return next((name for name, known in MAPS.items() if kind is known), kind.__name__)


def called(ingredient: Any) -> str:
    """Return the name of an ingredient that was given as one, or as an instance."""
    return ingredient if isinstance(ingredient, str) else type(ingredient).__name__


def climb(domains: Domains, rungs: list[Rung]) -> tuple[Fit, Rung]:
    r"""Fit the first rung that is as good as the best on held-out rows.

    The score of a rung is the mean over held-out query rows of
    :math:`-\log p_r(A x + b \mid z) - \log|\det A|`: the likelihood of the row under the
    reference's conditional law, learned from other rows, so that neither shrinking data to their
    mean nor noise in a large matrix pays. A rung is as good as the best if its score is worse by
    at most two standard errors of the paired difference plus one nat for each of the
    :math:`d^2` numbers in a matrix, shared by the N query rows: :math:`d^2 / N`, but no more than
    0.05 nats per feature. Rungs that leave less than 80% or more than 125% of the reference's
    variance within strata, beyond sampling noise, are out; all matrices are searched only with 8
    rows per feature, and with fewer than 20 rows in a domain nothing but the first rung is tried.
    """
    first = fit_map(domains, rungs[0].recipe)  # says what is wrong with the data, if anything is
    fewest = min(first.report["rows_query"], first.report["rows_reference"])
    held = domains
    if domains.gaps is not None:  # rows that lack a value have no score
        held = replace(domains, keep=complete_rows(domains), gaps=None)
        fewest = min(fewest, *first.report["complete_rows"].values())
    if len(rungs) == 1 or fewest < _LEAST_ROWS or "fallback" in first.report:
        return first, rungs[0]
    with quietly():
        trial = _Trial(held, rungs)
        scores = trial.scores()
        while True:
            chosen = trial.first_good(scores)
            fit = first if chosen == 0 else fit_map(domains, rungs[chosen].recipe)
            scores[chosen].spread = trial.spread(fit.map)
            if chosen == 0 or trial.keeps_spread(scores[chosen].spread):
                break
            scores[chosen].failure = f"leaves {scores[chosen].spread:.0%} of the variance"
    if chosen > 0 and domains.gaps is not None and rungs[0].recipe.averages:
        warn_incomplete(domains)
    table = [
        {
            "map": rung.name,
            "score": score.mean,
            "worse_by": score.mean - min((s.mean for s in scores if not s.failure), default=0.0),
            "spread": score.spread,
            "failure": score.failure,
            "chosen": k == chosen,
        }
        for k, (rung, score) in enumerate(zip(rungs, scores))
    ]
    report = {**fit.report, "ladder": table, "chosen_map": rungs[chosen].name}
    return replace(fit, report=report), rungs[chosen]


@dataclass
class _Score:
    """What is known of a rung: nats of all held-out query rows, or why it is out."""

    nats: Array
    mean: float = np.nan
    spread: float = np.nan
    failure: str = ""


class _Trial:
    """Held-out scores of all rungs."""

    def __init__(self, domains: Domains, rungs: list[Rung]) -> None:
        self.rungs = rungs
        recipe = replace(rungs[-1].recipe, min_overlap=0.0)
        self.recipe = recipe
        links = check_links(recipe.family.links, domains.tables[0].labels)
        self.domains = replace(domains, links=links, keep=_thinned(domains))
        self.whole = compare(self.domains, recipe)
        self.pair, _ = gaussian_pair(self.domains, recipe, self.whole, False)
        self.weights = np.ones(1)
        # a constant or collinear feature would decide the scores by the noise it has not
        kept = _independent(self.pair)
        self.trial_domains = self.domains
        if len(kept) < domains.n_features:
            self.trial_domains = self.domains.of(kept)

    def scores(self) -> list[_Score]:
        """Fit every rung on all folds but one, and score it there, in turn."""
        domains, support = self.trial_domains, self.whole.support
        d = domains.n_features
        assert domains.keep is not None
        place = support.place(self.whole.strata)
        n_folds = 5 if d <= 30 else 2
        fold = folds(2 * place + ~domains.is_query, n_folds, domains.groups)
        fewest = min(support.count_query.sum(), support.count_reference.sum())
        why_not = [_not_tried(rung, fewest, d) for rung in self.rungs]
        nats: list[list[Array]] = [[] for _ in self.rungs]
        weights = []
        for f in range(n_folds):
            train = replace(domains, keep=domains.keep & (fold != f))
            asked = np.flatnonzero(domains.keep & (fold == f) & (place >= 0))
            try:
                judge = _Judge(domains, train, self.recipe, asked, self.whole)
            except (ValueError, np.linalg.LinAlgError):
                continue
            weights.append(judge.weights)
            for k, rung in enumerate(self.rungs):
                if why_not[k]:
                    continue
                try:
                    nats[k].append(judge(fit_quietly(train, rung.recipe).map))
                except (ValueError, FloatingPointError, np.linalg.LinAlgError) as error:
                    why_not[k] = str(error).splitlines()[0]
        if not weights:
            few = "too few rows to hold any out"
            return [_Score(np.zeros(1), 0.0), *(_Score(np.zeros(1), failure=few) for _ in nats[1:])]
        self.weights = np.concatenate(weights) / sum(w.sum() for w in weights)
        results = []
        for parts, failure in zip(nats, why_not):
            rows = np.zeros(1) if failure else np.concatenate(parts)
            mean = np.nan if failure else float(self.weights @ rows)
            if not failure and not np.isfinite(mean):
                failure = "maps held-out rows too far away"
            results.append(_Score(rows, mean, failure=failure))
        return results

    def first_good(self, scores: list[_Score]) -> int:
        """Return the first rung that is as good as the best."""
        alive = [k for k, score in enumerate(scores) if not score.failure]
        if not alive:
            return 0
        best = min(alive, key=lambda k: scores[k].mean)
        d, n_rows = self.domains.n_features, len(self.weights)
        tolerance = min(_TOLERANCE * d, d**2 / n_rows)
        for k in alive:
            difference = scores[k].nats - scores[best].nats
            gap = float(self.weights @ difference)
            error = float(np.sqrt(self.weights**2 @ (difference - gap) ** 2))
            if gap <= tolerance + _ERRORS * error:
                return k
        return best

    def spread(self, affine: AffineMap) -> float:
        """Return the variance within strata of the mapped query over that of the reference."""
        A, pair = affine.A, self.pair
        mapped = np.einsum("ij,kjl,il->ki", A, pair.query.cov, A, optimize=True)
        ratio = (pair.weights @ mapped) / np.maximum(
            pair.weights @ np.einsum("kii->ki", pair.reference.cov), 1e-300
        )
        return float(np.median(ratio))

    def keeps_spread(self, ratio: float) -> bool:
        """Tell whether variances are kept, give or take two standard errors of their ratio."""
        n, m, w = self.pair.query.count, self.pair.reference.count, self.pair.weights
        margin = 1 + 2 * float(np.sqrt(2 * (w**2 @ (1 / n + 1 / m))))
        return _SPREAD[0] / margin <= ratio <= _SPREAD[1] * margin


def _independent(pair: GaussianPair) -> Array:
    """Return the features that others do not determine, in either domain."""
    kept = np.arange(pair.n_features)
    for side in (pair.query, pair.reference):
        share = side.count / side.count.sum()
        cov = np.tensordot(share, side.cov, axes=1)[np.ix_(kept, kept)]
        chosen: list[int] = []
        for j in range(len(kept)):
            left = cov[j, j]
            if left > 0 and chosen:
                known = cov[np.ix_(chosen, chosen)]
                left -= cov[j, chosen] @ np.linalg.lstsq(known, cov[chosen, j], rcond=None)[0]
            if cov[j, j] > 0 and left > _COLLINEAR * cov[j, j]:
                chosen.append(j)
        kept = kept[chosen]
    return kept


def _not_tried(rung: Rung, n_rows: float, n_features: int) -> str:
    """Say why a rung is not tried, if it is not.

    Matching axes stands in for the search among all matrices where rows are too few for that.
    """
    family, divergence = rung.recipe.family, rung.recipe.divergence
    many = n_rows >= MANY_ROWS * n_features
    if isinstance(family, LowRank) and n_features < _LOW_RANK_FEATURES:
        return f"{n_features} features are few"
    if isinstance(divergence, PCMatch) and many:
        return "rows are enough to search all matrices"
    if isinstance(family, Affine) and not isinstance(divergence, GaussianOT | PCMatch) and not many:
        return f"{n_rows:g} rows are too few to search all matrices"
    return ""


class _Judge:
    """Scores maps on held-out query rows by the law of the reference, learned from other rows."""

    def __init__(
        self, domains: Domains, train: Domains, recipe: Recipe, asked: Array, whole: Comparison
    ) -> None:
        comparison = compare(train, recipe)
        pair, _ = gaussian_pair(train, recipe, comparison, True)
        place = comparison.support.place(replace(comparison.strata, codes=whole.strata.codes))
        asked = asked[place[asked] >= 0]
        is_query = domains.is_query[asked]
        self.X = domains.rows(asked)[is_query]
        if isinstance(recipe.conditional, SmoothConditional):
            self._by_curves(train, recipe, comparison, whole, asked, is_query, pair)
        else:
            self._by_strata(place[asked], is_query, pair)
        if len(self.X) == 0:
            raise ValueError("no rows to hold out")

    def _by_strata(self, place: Array, is_query: Array, pair: GaussianPair) -> None:
        law, mine = pair.reference, place[is_query]
        white = np.linalg.inv(np.linalg.cholesky(law.cov))
        self._mean, self._spread = law.mean[mine], np.ones(self.X.shape)
        self._white = [(mine == k, white[k]) for k in np.unique(mine)]
        share = pair.weights / np.maximum(np.bincount(mine, minlength=len(pair.weights)), 1)
        self.weights = share[mine]

    def _by_curves(
        self,
        train: Domains,
        recipe: Recipe,
        comparison: Comparison,
        whole: Comparison,
        asked: Array,
        is_query: Array,
        pair: GaussianPair,
    ) -> None:
        assert isinstance(recipe.conditional, SmoothConditional)
        used = comparison.used
        known = ~train.is_query[used]
        at = whole.covariates.take(np.searchsorted(whole.used, asked))
        # confounders in the units of all rows, where they are known and where they are asked for
        own = whole.covariates.take(np.searchsorted(whole.used, used[known]))
        moments = recipe.conditional.moments_at(train.rows(used)[known], own, at)
        self._mean, self._spread = moments.mean[is_query], np.sqrt(moments.var[is_query])
        sd = np.sqrt(pair.reference.cov[0].diagonal())
        correlation = pair.reference.cov[0] / np.outer(sd, sd)
        every = np.ones(len(self.X), dtype=bool)
        self._white = [(every, np.linalg.inv(np.linalg.cholesky(correlation)))]
        weights = np.zeros(len(asked))
        chosen, prior = recipe.prior.points(at, is_query)
        weights[chosen] = prior
        self.weights = weights[is_query]

    def __call__(self, affine: AffineMap) -> Array:
        """Return the nats of every query row."""
        residual = (affine.linear(self.X) - self._mean) / self._spread
        nats = np.log(self._spread).sum(axis=1) - affine.log_det()
        nats += 0.5 * self.X.shape[1] * np.log(2 * np.pi)
        for rows, white in self._white:
            nats[rows] += 0.5 * ((residual[rows] @ white.T) ** 2).sum(axis=1)
            nats[rows] -= np.log(np.diag(white)).sum()
        return nats


def _thinned(domains: Domains) -> Array:
    """Mark the rows that the choice looks at: all, or some of each domain."""
    kept = domains.kept()
    rng = np.random.default_rng(0)
    for side in (domains.is_query, ~domains.is_query):
        rows = np.flatnonzero(kept & side)
        if len(rows) > _MOST_ROWS:
            kept[rng.choice(rows, len(rows) - _MOST_ROWS, replace=False)] = False
    return kept
